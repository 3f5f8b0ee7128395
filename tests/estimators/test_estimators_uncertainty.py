"""ORFFRegressor: deviations, evidence, row weights and folds, against scikit-learn and dense twins."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.errors import InputError
from dorff.frequencies import Orthogonal
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(1.5)
COUPLED = kernels.Decomposable(GAUSSIAN, [[2.0, 0.5], [0.5, 1.0]])
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSSIAN) + 0.7 * kernels.DivergenceFree(GAUSSIAN)
RIDGE = 1e-3


def field(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    Y = np.stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, 2))


def in_zarr(path, values: np.ndarray, rows: int) -> zarr.Array:
    zarr.create_array(path, data=values, chunks=(rows, *values.shape[1:]), config={"write_empty_chunks": True})
    return zarr.open_array(path, mode="r")


def test_deviations_and_evidence_are_a_gaussian_process_s_with_the_linear_kernel(tmp_path):
    """The twin of DESIGN: kernel F F^T / (n ridge) and noise 1, in units of the noise variance; to 1e-8.

    Beside the part of f that depends on the draw of the features.
    """
    X, Y = field(70)
    y, at = Y[:, 0], field(25, seed=1)[0]
    fitted = ORFFRegressor(GAUSSIAN, 24, ridge=RIDGE, intercept=False, sampler=Orthogonal()).fit(X, y)
    model = fitted.model_
    F, G = (model.feature_map.transform(rows) * model.operator_weights.gain for rows in (X, at))
    root = 1.0 / np.sqrt(len(X) * RIDGE)
    twin = GaussianProcessRegressor(DotProduct(0.0, "fixed"), alpha=1.0, optimizer=None).fit(root * F, y)
    mean, std = twin.predict(root * G, return_std=True)
    noise = float(y @ twin.alpha_) / len(y)  # where the likelihood is greatest
    assert fitted.noise_ == pytest.approx(noise, rel=1e-8)
    n = len(y)  # scaled by the noise, the likelihood is that of y / sqrt(noise), less n log of the scale
    scaled = twin.log_marginal_likelihood_value_ + 0.5 * y @ twin.alpha_ - 0.5 * n - 0.5 * n * np.log(noise)
    assert fitted.log_evidence_ == pytest.approx(scaled, rel=1e-8)
    for x in (at, in_zarr(tmp_path / "x", at, 10), da.from_array(at, chunks=(10, 1))):
        found, deviation = fitted.predict(x, return_std=True)
        assert isinstance(found, da.Array) == isinstance(deviation, da.Array) == isinstance(x, da.Array)
        np.testing.assert_allclose(np.asarray(found), mean, rtol=1e-8)
        drawn = fitted.posterior_model_.posterior.unexplained[0, 0]
        np.testing.assert_allclose(np.asarray(deviation) ** 2 - drawn, noise * std**2, rtol=1e-8)
        _, wider = fitted.predict(x, return_std=True, noise=True)
        np.testing.assert_allclose(np.asarray(wider) ** 2 - drawn, noise * (1.0 + std**2), rtol=1e-8)


@pytest.mark.parametrize("kernel", [COUPLED, HELMHOLTZ], ids=["matrix", "field"])
@pytest.mark.parametrize("observe", [None, [[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]]], ids=["all", "observed"])
def test_the_model_with_a_posterior_says_the_same_and_is_published(tmp_path, kernel, observe):
    X, F = field(80)
    Y = F if observe is None else F @ np.transpose(observe)
    fitted = ORFFRegressor(kernel, 24, ridge=RIDGE, observe=observe, sampler=Orthogonal()).fit(X, Y)
    q = Y.shape[1]
    assert fitted.model_.posterior is None and fitted.posterior_model_ is fitted.posterior_model_
    save_model(fitted.posterior_model_, tmp_path)
    again = load_model(tmp_path)
    mean, std = fitted.predict(X, return_std=True)
    _, noisy = fitted.predict(X, return_std=True, noise=True)
    assert mean.shape == std.shape == (80, 2) and noisy.shape == (80, q) and fitted.noise_.shape == (q, q)
    np.testing.assert_array_equal(mean, fitted.predict(X))
    np.testing.assert_allclose(again.std(X), std, rtol=1e-12)
    np.testing.assert_allclose(again.std(X, noise=True), noisy, rtol=1e-12)
    drawn = np.stack([one.predict(X[:5]) for one in again.sample(400, seed=1)])
    of_features = np.sqrt(std[:5] ** 2 - np.diag(again.posterior.unexplained))  # which samples of functions share
    assert np.all(np.abs(drawn.std(axis=0) / of_features - 1.0) < 6 / np.sqrt(800))


def test_one_target_is_one_dimensional_and_fitted_ones_travel():
    X, Y = field(50)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(X, Y[:, 0])
    for noise in (False, True):
        mean, std = pickle.loads(pickle.dumps(fitted)).predict(X, return_std=True, noise=noise)
        assert mean.shape == std.shape == (50,)
    lazy = fitted.predict(da.from_array(X, chunks=(20, 2)), return_std=True)
    assert [part.shape for part in lazy] == [(50,), (50,)]


def test_evidence_chooses_the_ridge_of_greatest_evidence():
    X, Y = field(150)
    ridges = [1e-6, 1e-3, 1e-1]
    fitted = ORFFRegressor(COUPLED, 64, ridge=ridges, criterion="evidence").fit(X, Y)
    single = [ORFFRegressor(COUPLED, 64, ridge=ridge).fit(X, Y).log_evidence_ for ridge in ridges]
    np.testing.assert_allclose(fitted.log_evidences_, single, rtol=1e-8)
    assert fitted.ridge_ == ridges[int(np.argmax(single))] and fitted.log_evidence_ == pytest.approx(max(single))
    assert not hasattr(fitted, "gcv_")
    again = fitted.set_params(criterion="gcv").fit(X, Y)
    assert again.gcv_.shape == (3,) and not hasattr(again, "log_evidences_")


# --- row weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("options", [{}, {"intercept": False}, {"kernel": HELMHOLTZ}])
def test_weighted_rows_are_the_weighted_objective_written_out(options, standardize):
    """Minh's objective with a weight a row, l their sum; the scales are the weighted spreads."""
    X, Y = field(90)
    w = np.random.default_rng(4).gamma(1.0, size=90)
    w[:7] = 0.0
    estimator = ORFFRegressor(n_features=40, ridge=RIDGE, standardize=standardize, **{"kernel": COUPLED, **options})
    fitted = estimator.fit(X, Y, sample_weight=w)
    model = fitted.model_
    scale = model.target_scale
    Phi = np.einsum("na,arp->npar", model.feature_map.transform(X), model.weights).reshape(180, -1)
    ones = np.tile(np.eye(2), (90, 1)) if estimator.intercept else np.empty((180, 0))
    full, penalty = np.hstack([Phi, ones]), np.zeros(Phi.shape[1] + ones.shape[1])
    penalty[: Phi.shape[1]] = w.sum() * RIDGE
    each = np.repeat(w, 2)[:, None]
    h = np.linalg.solve(full.T @ (each * full) + np.diag(penalty), full.T @ (each[:, 0] * (Y / scale).ravel()))
    np.testing.assert_allclose(fitted.predict(X), (full @ h).reshape(-1, 2) * scale, rtol=1e-6)
    if standardize:
        spread = np.average((Y - np.average(Y, axis=0, weights=w)) ** 2, axis=0, weights=w)
        np.testing.assert_allclose(np.mean(scale**2), np.mean(spread))
    assert fitted.model_.info["report"]["rows_used"] == 83


def test_whole_weights_are_rows_given_as_often_for_every_kind_of_input(tmp_path):
    X, Y = field(1200)
    w = np.random.default_rng(4).integers(0, 3, 1200)
    estimator = ORFFRegressor(GAUSSIAN, 32, ridge=1e-4, standardize=True, sampler=Orthogonal())
    fitted = clone(estimator).fit(X[:900], Y[:900], sample_weight=w[:900])
    often = clone(estimator).fit(np.repeat(X[:900], w[:900], axis=0), np.repeat(Y[:900], w[:900], axis=0))
    scales = [one.model_.feature_map.scale for one in (fitted, often)]
    np.testing.assert_allclose(*scales, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(X), often.predict(X), rtol=1e-6)
    # The noise is that of a row of mean weight, and found from fewer rows.
    noises = [np.diag(fitted.noise_) * w[:900][w[:900] > 0].mean(), np.diag(often.noise_)]
    drawn = [np.diag(one.posterior_model_.posterior.unexplained) for one in (fitted, often)]
    np.testing.assert_allclose(*drawn, rtol=1e-6)
    variances = [one.predict(X, return_std=True)[1] ** 2 - drawn[0] for one in (fitted, often)]
    np.testing.assert_allclose(variances[0] / noises[0], variances[1] / noises[1], rtol=1e-6)
    expected = estimator.fit(X, Y, sample_weight=w).predict(X)
    lazy = da.from_array(X, chunks=(500, 2)), da.from_array(Y, chunks=(300, 2))
    for x, y, weights in (
        (in_zarr(tmp_path / "x", X, 256), Y, in_zarr(tmp_path / "w", w.astype("f8"), 100)),
        (*lazy, da.from_array(w, chunks=77)),
        (*lazy, w.tolist()),
    ):
        np.testing.assert_allclose(clone(estimator).fit(x, y, sample_weight=weights).predict(X), expected, rtol=1e-7)


def test_weights_go_with_their_rows_where_targets_are_missing():
    X, Y = field(80)
    Y[::3, 0] = np.nan
    Y[5] = np.nan
    w = np.random.default_rng(1).integers(0, 3, 80)
    estimator = ORFFRegressor(kernels.Decomposable(GAUSSIAN), 24, ridge=RIDGE, missing="partial", sampler=Orthogonal())
    often = clone(estimator).fit(np.repeat(X, w, axis=0), np.repeat(Y, w, axis=0))
    np.testing.assert_allclose(estimator.fit(X, Y, sample_weight=w).predict(X), often.predict(X), rtol=1e-7)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(19), r"one number for each of the 20 rows; got shape \(19,\)"),
        (np.ones((20, 2)), r"got shape \(20, 2\)"),
        (-np.ones(20), "finite and not negative"),
        (np.full(20, np.nan), "finite and not negative"),
        (np.zeros(20), "so that no row counts"),
        (["a"] * 20, "sample_weight must be numbers"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    with pytest.raises(InputError, match=message):
        ORFFRegressor(n_features=8).fit(*field(20), sample_weight=weights)


# --- folds that are given ---------------------------------------------------------------------------------------


def test_splits_of_scikit_learn_are_the_folds():
    X, Y = field(120)
    ridges, groups = [1e-4, 1e-1], np.arange(120) % 7
    splits = list(GroupKFold(4).split(X, groups=groups))
    estimator = ORFFRegressor(COUPLED, 32, ridge=ridges, sampler=Orthogonal())
    fitted = clone(estimator).set_params(cv=splits).fit(X, Y)
    expected = []
    for ridge in ridges:
        single = ORFFRegressor(COUPLED, 32, ridge=ridge, sampler=Orthogonal())
        squares = [(single.fit(X[a], Y[a]).predict(X[b]) - Y[b]) ** 2 for a, b in splits]
        expected.append(np.concatenate(squares).mean())
    np.testing.assert_allclose(fitted.cv_errors_, expected, rtol=1e-6)
    masks = [(np.isin(np.arange(120), a), np.isin(np.arange(120), b)) for a, b in splits]
    x, y = da.from_array(X, chunks=(50, 2)), da.from_array(Y, chunks=(50, 2))
    for rows, cv in (((X, Y), masks), ((x, y), splits)):
        np.testing.assert_allclose(clone(estimator).set_params(cv=cv).fit(*rows).cv_errors_, expected, rtol=1e-6)
    assert clone(estimator).set_params(cv=KFold(3)).fit(X, Y).cv_errors_.shape == (2,)
    by_number = clone(estimator).set_params(cv=4).fit(X, Y, groups=groups)
    np.testing.assert_allclose(by_number.cv_errors_, fitted.cv_errors_, rtol=1e-12)
    three, most = (clone(estimator).set_params(cv=cv).fit(X, Y, groups=groups % 3).cv_errors_ for cv in (3, 5))
    np.testing.assert_array_equal(three, most)  # no more folds than groups
    with pytest.raises(InputError, match="groups: all rows are in one"):
        clone(estimator).set_params(cv=3).fit(X, Y, groups=np.zeros(120))
    np.testing.assert_allclose(
        clone(estimator).set_params(cv=GroupKFold(4)).fit(X, Y, groups=groups.tolist()).cv_errors_, expected, rtol=1e-6
    )


@pytest.mark.parametrize("cv", [TimeSeriesSplit(3, gap=5), ShuffleSplit(3, test_size=0.3, random_state=0)])
def test_splits_that_are_no_partition_are_made_of_their_parts(cv):
    X, Y = field(120)
    w, ridges = np.random.default_rng(0).integers(0, 3, 120), [1e-6, 1e-1, 1e2]
    fitted = ORFFRegressor(COUPLED, 32, ridge=ridges, cv=cv, sampler=Orthogonal()).fit(X, Y, w)
    errors, scores = [], []
    for ridge in ridges:
        single, held = ORFFRegressor(COUPLED, 32, ridge=ridge, sampler=Orthogonal()), []
        for a, b in cv.split(X):
            held.append(np.column_stack([Y[b], single.fit(X[a], Y[a], w[a]).predict(X[b]), w[b]]))
        y, f, of_rows = np.split(np.concatenate(held), [2, 4], axis=1)
        errors.append((of_rows * (f - y) ** 2).sum() / (2 * of_rows.sum()))
        scores.append(r2_score(y, f, sample_weight=of_rows[:, 0]))
    np.testing.assert_allclose(fitted.cv_errors_, errors, rtol=1e-6)
    np.testing.assert_allclose(fitted.cv_scores_, scores, rtol=1e-6)
    assert fitted.ridge_ == ridges[int(np.argmax(scores))]
    np.testing.assert_allclose(fitted.predict(X), single.set_params(ridge=fitted.ridge_).fit(X, Y, w).predict(X))
    labels = np.digitize(Y[:, 0], [-1.0, 1.0])
    for calibrate in (False, True):
        classes = ORFFClassifier(GAUSSIAN, 32, ridge=ridges, cv=cv, calibrate=calibrate, sampler=Orthogonal()).fit(
            X, labels
        )
        assert classes.score(X, labels) > 0.7 and classes.cv_errors_.shape == (3,)


def test_splits_by_groups_and_labels_of_a_classifier():
    X, Y = field(120)
    labels, groups = np.digitize(Y[:, 0], [-1.0, 1.0]), np.arange(120) % 7
    estimator = ORFFClassifier(GAUSSIAN, 32, ridge=[1e-6, 1e-1], cv=4)
    fitted = clone(estimator).fit(X, labels, groups=groups)
    for cv in (GroupKFold(4), list(GroupKFold(4).split(X, groups=groups))):
        same = clone(estimator).set_params(cv=cv).fit(X, labels, groups=groups)
        assert np.array_equal(same.cv_errors_, fitted.cv_errors_)
        assert np.array_equal(same.predict_proba(X), fitted.predict_proba(X))
    strata = list(StratifiedKFold(4).split(X, labels))
    by_name = clone(estimator).set_params(cv=StratifiedKFold(4)).fit(X, labels)
    assert np.array_equal(by_name.cv_errors_, clone(estimator).set_params(cv=strata).fit(X, labels).cv_errors_)
    lazy = da.from_array(X, chunks=(50, 2)), da.from_array(labels, chunks=50)
    with pytest.raises(InputError, match="groups and splits need X and y in memory, or calibrate=False"):
        clone(estimator).fit(*lazy, groups=groups)
    uncalibrated = clone(estimator).set_params(calibrate=False).fit(*lazy, groups=groups)
    np.testing.assert_allclose(uncalibrated.cv_errors_, fitted.cv_errors_, rtol=1e-6)
    for wrong in (ORFFClassifier(cv=None), ORFFRegressor(cv=None)):
        with pytest.raises(InputError, match="groups: folds alone look at them; give cv too"):
            wrong.fit(X, labels, groups=groups)
    with pytest.raises(InputError, match="split 0 has no rows with targets"):  # all that it trains on weigh nothing
        weightless, others = np.arange(9), np.arange(9, 60)
        splits = [(weightless, others), (others, np.arange(60, 120))]
        ORFFRegressor(cv=splits, ridge=[1e-3, 1.0]).fit(X, Y, np.arange(120) > 8)
    with pytest.raises(InputError, match=r"into 64 parts at most, each of .*; 90 cut them into 120; use fewer"):
        ORFFRegressor(cv=ShuffleSplit(90, random_state=0)).fit(X, Y)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        ([], "the splits must be one or more"),
        ([(np.arange(0), np.arange(10))], "split 0 has no rows to train on or to hold out"),
        ([([1, 2], [1])], "split 0 has no rows .* or names one twice"),
        ([([1, 1], [2])], "split 0 has no rows .* or names one twice"),
        ([([0], [99])], "splits of the 20 rows"),
        ([1, 2], "splits of the 20 rows"),
        ("all", "cv must be 'auto', None or a number of folds"),
        (object(), "splits of the 20 rows"),
    ],
)  # fmt: skip
def test_splits_that_cannot_be_are_refused(cv, message):
    with pytest.raises(InputError, match=message):
        ORFFRegressor(n_features=8, cv=cv, ridge=[1e-3, 1.0]).fit(*field(20))


# --- what is asked wrongly, and precision -----------------------------------------------------------------------


def test_mixed_precision_is_close():
    X, Y = field(400)
    double, mixed = (ORFFRegressor(COUPLED, 64, ridge=1e-3, precision=name).fit(X, Y) for name in ("double", "mixed"))
    error = np.abs(double.predict(X) - mixed.predict(X)).max()
    assert 1e-12 < error < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "aic"}, "criterion must be 'auto' or 'gcv' or 'evidence'"),
        ({"precision": "half"}, "precision must be"),
    ],
)
def test_wrong_arguments_are_refused_in_fit(options, message):
    with pytest.raises(InputError, match=message):
        ORFFRegressor(**options).fit(*field(20))


def test_what_is_not_kept_or_not_fitted_is_refused():
    X, Y = field(30)
    without = ORFFRegressor(n_features=16, posterior=False).fit(X, Y)
    for ask in (lambda: without.predict(X, return_std=True), lambda: without.log_evidence_,
                lambda: without.posterior_model_):  # fmt: skip
        with pytest.raises(InputError, match="fit with posterior=True"):
            ask()
    with pytest.raises(InputError, match="ask for return_std=True too"):
        without.predict(X, noise=True)
    with pytest.raises(NotFittedError):
        ORFFRegressor().predict(X, return_std=True)
    assert not hasattr(ORFFRegressor(), "posterior_model_")


@pytest.mark.parametrize("absolute", [False, True])
def test_the_median_distance_counts_rows_by_their_weights(absolute):
    X, _ = field(60)
    w = np.random.default_rng(2).integers(0, 4, 60)
    often = kernels.median_lengthscale(np.repeat(X, w, axis=0), absolute=absolute)
    assert kernels.median_lengthscale(X, absolute=absolute, weights=w.astype(float)) == pytest.approx(often, rel=1e-12)
    assert kernels.median_lengthscale(X, absolute=absolute, weights=0.3 * w) == pytest.approx(often, rel=1e-2)
    assert kernels.median_lengthscale(X, absolute=absolute, weights=np.zeros(60)) == 1.0
