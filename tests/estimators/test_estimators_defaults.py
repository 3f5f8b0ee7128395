"""Estimators of which nothing is said: length-scales, ridge and folds that the rows choose."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dorff import ORFFClassifier, ORFFRegressor, kernels
from dorff.passes import FoldRule

GAUSSIAN = kernels.Gaussian(1.5)


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, 4) of scales 1, 100, 0.01, and one that has no effect; a target (n,)."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 4))
    y = np.sin(2.0 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + 0.05 * rng.standard_normal(n)
    return Z * [1.0, 100.0, 0.01, 1.0], y


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
    for y, run in ((walk, 32), (rng.permutation(walk), 1)):
        fold_of = FoldRule(5, by_rows=True, run=run).of_rows(np.arange(2000))
        errors = []
        for ridge in ridges:
            one, squares = ORFFRegressor(GAUSSIAN, 32, ridge=ridge), []
            for held in (fold_of == fold for fold in range(5)):
                squares.append((one.fit(X[~held], y[~held]).predict(X[held]) - y[held]) ** 2)
            errors.append(np.concatenate(squares).mean())
        fitted = ORFFRegressor(GAUSSIAN, 32, ridge=ridges).fit(X, y)
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
