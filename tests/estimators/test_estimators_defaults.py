"""Estimators of which nothing is said: length-scales, ridge and folds that the rows choose."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import accuracy_score, r2_score, recall_score, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, PredefinedSplit, TimeSeriesSplit, cross_val_predict

from dorff import ORFFClassifier, ORFFRegressor, kernels
from dorff.errors import QualityWarning
from dorff.frequencies import Orthogonal
from dorff.passes import FoldRule
from dorff.plan import sampled as look_at
from dorff.plan.sampled import linear_r2

GAUSSIAN = kernels.Gaussian(1.5)


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, 4) of scales 1, 100, 0.01, and one that has no effect; a target (n,)."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 4))
    y = np.sin(2.0 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + 0.05 * rng.standard_normal(n)
    return Z * [1.0, 100.0, 0.01, 1.0], y


@pytest.mark.statistical
def test_inputs_of_different_scales_need_nothing_said() -> None:
    (X, y), (at, truth) = table(600), table(600, seed=1)
    fitted = ORFFRegressor().fit(X, y)
    assert fitted.score(at, truth) > 0.95
    lengthscale = np.array(fitted.model_.kernel.scalar.lengthscale)
    assert lengthscale.shape == (4,) and lengthscale[3] > 3.0 * lengthscale[:3].max()
    np.testing.assert_allclose(fitted.model_.feature_map.scale, X.std(axis=0))
    assert ORFFClassifier().fit(X, y > 0).score(at, truth > 0) > 0.9


def test_a_walk_is_dealt_in_blocks_and_other_rows_one_by_one() -> None:
    rng, ridges = np.random.default_rng(0), [1e-3, 1.0]
    X, walk = rng.standard_normal((2000, 2)), np.cumsum(rng.standard_normal(2000))
    for y, run in ((walk, 64), (rng.permutation(walk), 1)):
        fold_of = FoldRule(5, by_rows=True, run=run).of_rows(np.arange(2000))
        errors = []
        for ridge in ridges:
            one, squares = ORFFRegressor(GAUSSIAN, 32, ridge=ridge, sampler=Orthogonal()), []
            for held in (fold_of == fold for fold in range(5)):
                squares.append((one.fit(X[~held], y[~held]).predict(X[held]) - y[held]) ** 2)
            errors.append(np.concatenate(squares).mean())
        fitted = ORFFRegressor(GAUSSIAN, 32, ridge=ridges, sampler=Orthogonal()).fit(X, y)
        np.testing.assert_allclose(fitted.cv_errors_, errors, rtol=1e-6)


def test_without_folds_and_by_a_criterion_trials_are_compared_on_all_rows() -> None:
    X, y = table(150)
    X = X / X.std(axis=0)
    estimator = ORFFRegressor(GAUSSIAN, 32)
    by_folds = clone(estimator).fit(X, y)
    assert len(by_folds.cv_errors_) == len(by_folds.cv_scores_) >= 9 and not hasattr(by_folds, "gcv_")
    for options, kept in (({"cv": None}, "gcv_"), ({"criterion": "gcv"}, "gcv_"),
                          ({"criterion": "evidence"}, "log_evidences_")):  # fmt: skip
        fitted = clone(estimator).set_params(**options).fit(X, y)
        assert len(getattr(fitted, kept)) >= 9 and not hasattr(fitted, "cv_errors_")
    one = clone(estimator).set_params(ridge=1e-4).fit(X, y)
    assert one.ridge_ == 1e-4 and not hasattr(one, "cv_errors_") and not hasattr(one, "gcv_")
    few = clone(estimator).fit(X[:4], y[:4])  # fewer rows than folds
    assert hasattr(few, "gcv_") and len(clone(few).fit(X, y).cv_errors_) >= 9
    assert np.all(by_folds.model_.feature_map.scale == 1.0)  # the kernel's length-scale is in the units of X


@pytest.mark.filterwarnings("error")
def test_a_ridge_that_nobody_named_keeps_digits() -> None:
    """Few rows without noise would have the least ridge that there is."""
    X = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    fitted = ORFFRegressor(GAUSSIAN, 64).fit(X, X[:, 0])
    assert fitted.digits_ >= 3.0 and fitted.score(X, X[:, 0]) > 0.999


def test_a_grid_over_parameters_of_the_kernel() -> None:
    X, y = table(150)
    X = X / X.std(axis=0)
    grid = {"kernel__lengthscale": [0.01, 2.0], "n_features": [64]}
    search = GridSearchCV(ORFFRegressor(), grid, cv=3).fit(X, y)
    assert search.best_params_ == {"kernel__lengthscale": 2.0, "n_features": 64}
    assert search.best_estimator_.model_.kernel.scalar.lengthscale == 2.0


def test_quality_is_that_of_the_folds_by_hand() -> None:
    X, y = table(300)
    Y, X = np.column_stack([y, X[:, 0] + 0.3 * np.cos(7 * y)]), X / X.std(axis=0)
    fold_of = FoldRule(4, by_rows=True, seed=0).of_rows(np.arange(300))
    one = ORFFRegressor(GAUSSIAN, 64, ridge=1e-3, sampler=Orthogonal())
    splits = PredefinedSplit(fold_of)
    for cv, by in ((4, "rows"), (splits, "splits")):
        fitted = clone(one).set_params(cv=cv).fit(X, Y)
        quality = fitted.quality_
        values = cross_val_predict(one, X, Y, cv=splits)
        assert (quality.by, quality.folds, quality.rows, quality.linear_rows) == (by, 4, 300, 300)
        assert quality.r2 == pytest.approx(r2_score(Y, values)) == pytest.approx(fitted.cv_scores_[0])
        linear = linear_r2((X - X.mean(axis=0)) / fitted.model_.feature_map.scale, Y, fold_of)
        for at, output in enumerate(quality.outputs):
            own = r2_score(Y[:, at], fitted.predict(X)[:, at])
            assert output.target == f"y{at}" and output.r2 == pytest.approx(r2_score(Y[:, at], values[:, at]))
            assert output.rmse == pytest.approx(root_mean_squared_error(Y[:, at], values[:, at]))
            assert output.rmse_mean == pytest.approx(Y[:, at].std())
            assert output.r2_train == pytest.approx(own) and output.r2_linear == pytest.approx(linear[at], abs=1e-9)
    assert clone(one).set_params(cv=4).fit(X, y).quality_.outputs[0].target == "y"
    named = clone(one).set_params(cv=4).fit(X, pd.DataFrame(Y, columns=["depth", 7])).quality_
    assert [output.target for output in named.outputs] == ["depth", "7"]
    for cv in (None, TimeSeriesSplit(3)):
        assert clone(one).set_params(cv=cv).fit(X, y).quality_ is None


def test_quality_of_classes_is_that_of_rows_held_out() -> None:
    X, y = make_blobs(400, centers=[[0, 0], [2, 0], [0, 2]], cluster_std=0.8, random_state=0)
    labels, weights = np.array(["ash", "elm", "oak"])[y], np.random.default_rng(0).uniform(0.5, 2.0, 400)
    one = ORFFClassifier(GAUSSIAN, 64, ridge=1e-3)
    held = FoldRule.one_held(5, by_rows=True, seed=0).of_rows(np.arange(400)) == 0
    fitted = clone(one).fit(X, labels, weights)
    said = clone(one).set_params(calibrate=False).fit(X[~held], labels[~held], weights[~held]).predict(X[held])
    quality = fitted.quality_
    assert (quality.by, quality.folds, quality.rows, quality.r2) == ("rows", 1, held.sum(), None)
    assert quality.accuracy == pytest.approx(accuracy_score(labels[held], said, sample_weight=weights[held]))
    assert [one.label for one in quality.classes] == ["ash", "elm", "oak"]
    recalls = recall_score(labels[held], said, average=None, sample_weight=weights[held])
    np.testing.assert_allclose([one.recall for one in quality.classes], recalls)
    splits = PredefinedSplit(np.arange(400) % 4)
    quality = clone(one).set_params(cv=splits).fit(X, labels).quality_
    everywhere = cross_val_predict(clone(one).set_params(calibrate=False), X, labels, cv=splits)
    assert (quality.by, quality.folds, quality.rows) == ("splits", 4, 400)
    assert quality.accuracy == pytest.approx(accuracy_score(labels, everywhere))
    assert quality.accuracy_frequent == pytest.approx(np.bincount(y).max() / 400)
    assert clone(one).set_params(calibrate=False).fit(X, labels).quality_ is None


def warned(estimator: ORFFRegressor | ORFFClassifier, X: np.ndarray, y: np.ndarray) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y)
    assert all(one.category is QualityWarning for one in caught)
    return " | ".join(str(one.message) for one in caught)


@pytest.mark.slow
def test_a_fit_warns_of_what_is_wrong_in_the_words_of_estimators() -> None:
    (X, y), rng = table(400), np.random.default_rng(0)
    X = X / X.std(axis=0)
    walk = np.zeros(400)
    for row in range(1, 400):
        walk[row] = 0.97 * walk[row - 1] + 0.25 * rng.standard_normal()
    plane = rng.uniform(-2, 2, (3000, 2))
    fast = np.sin(9 * plane[:, 0]) * np.cos(7 * plane[:, 1])
    cases = [
        (ORFFRegressor(), y, ""),
        (ORFFRegressor(), rng.standard_normal(400), "hardly better than the mean"),
        (ORFFRegressor(GAUSSIAN, 64, ridge=[10.0, 100.0]), y, "set ridge='auto'"),
        (ORFFRegressor(kernels.Gaussian(5000.0), 64, cv=5), y, "almost flat; give the kernel by its name"),
        (ORFFRegressor(kernels.Gaussian(0.15), 128, cv=5), fast, "raise n_features"),
        (ORFFRegressor(cv=5), walk, "set cv='auto'"),
        (ORFFRegressor(cv=None), rng.standard_normal(400), ""),
        (ORFFClassifier(), y > 0, ""),
        (ORFFClassifier(), rng.integers(0, 2, 400), "set class_weight='balanced'"),
        (ORFFClassifier(), np.arange(30) % 2, "the inputs tell nothing here"),
    ]
    for estimator, target, words in cases:
        said = warned(estimator, plane if target is fast else X[: len(target)], target)
        assert words in said if words else said == "", (estimator, said)
        assert "solve." not in said and "features.count" not in said and "dorff " not in said


def test_a_target_that_no_row_left_out_has_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_at, "LEFT_OUT", 64)
    X = np.linspace(-2, 2, 400)[:, None]
    Y = np.column_stack([np.sin(2 * X[:, 0]), np.full(400, np.nan)])
    rows = np.concatenate([np.arange(start, stop) for start, stop in look_at.left_out_runs(0, 400, 3)])
    assert len(rows) == 64
    others = np.setdiff1d(np.arange(400), rows)
    Y[others, 1] = X[others, 0]
    fitted = ORFFRegressor(GAUSSIAN, 64, cv=None, criterion="loo", ridge=[1e-4, 1e-2], missing="partial").fit(X, Y)
    seen, unseen = fitted.quality_.outputs
    assert seen.r2 > 0.9 and 0 < seen.rmse < seen.rmse_mean
    assert (unseen.r2, unseen.rmse, unseen.rmse_mean) == (None, None, None)


@pytest.mark.filterwarnings("ignore::dorff.errors.QualityWarning")
@pytest.mark.parametrize("seed", range(3))
def test_few_labels_have_no_lengthscale_that_one_input_tells_by_heart(seed: int) -> None:
    """Of 25 labels the evidence of ones and zeros without noise has no bound: one input told them all apart."""
    digits = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits.target))
    labelled, others = order[:25], order[25:]
    scaled = digits.data[labelled] / np.where(np.ptp(digits.data[labelled], axis=0) > 0, digits.data.std(axis=0), 1.0)
    found = ORFFClassifier(calibrate=False).fit(digits.data[labelled], digits.target[labelled])
    median = kernels.Gaussian(kernels.median_lengthscale(scaled))
    one = ORFFClassifier(median, calibrate=False, standardize=True).fit(digits.data[labelled], digits.target[labelled])
    at, truth = digits.data[others], digits.target[others]
    assert found.score(at, truth) > one.score(at, truth) - 0.05 and found.score(at, truth) > 0.5
