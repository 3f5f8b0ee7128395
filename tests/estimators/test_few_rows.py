"""Few rows: standard deviations over ridges that were compared, against an exact process; ridges of few labels."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_moons

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.errors import InputError, QualityWarning
from dorff.fit import fit
from dorff.frequencies import Landmarks, Orthogonal
from dorff.spec.job import Job
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(0.7)
RIDGES = [1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1.0]


def wave(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, 2) and a noisy target (n,)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(n)


def gaussian_gram(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """k(x, z) of `GAUSSIAN`, (n, k)."""
    return np.exp(-0.5 * ((X[:, None] - Z[None]) ** 2).sum(axis=2) / 0.7**2)


def exact_process(
    X: np.ndarray, y: np.ndarray, at: np.ndarray, ratio: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return mean, variance, noise and log evidence of a Gaussian process with a flat mean.

    The noise is s2 and the prior covariance s2 / `ratio` k; s2 has its most likely value by the restricted likelihood
    (Rasmussen & Williams 2006, eq. 2.42 and 2.45, for a constant basis function).
    """
    n = len(y)
    V = gaussian_gram(X, X) / ratio + np.eye(n)
    inverse, ones = np.linalg.inv(V), np.ones(n)
    precision = ones @ inverse @ ones
    mean = ones @ inverse @ y / precision
    s2 = float((y - mean) @ inverse @ (y - mean)) / (n - 1)
    cross = gaussian_gram(at, X) / ratio
    rest = 1.0 - cross @ inverse @ ones
    variance = 1.0 / ratio - np.einsum("ij,jk,ik->i", cross, inverse, cross) + rest**2 / precision
    log_evidence = -0.5 * ((n - 1) * np.log(s2) + np.linalg.slogdet(V)[1] + np.log(precision))
    return mean + cross @ inverse @ (y - mean), s2 * variance, s2, float(log_evidence)


def test_deviations_are_averaged_over_the_ridges_that_were_compared() -> None:
    """The variance is the mean of those at each ridge and of the squared differences of the functions."""
    n = 25
    X, y = wave(n)
    at = np.random.default_rng(1).uniform(-1.5, 1.5, (30, 2))
    fitted = ORFFRegressor(GAUSSIAN, 500, sampler=Landmarks(), ridge=RIDGES, cv=None).fit(X, y)
    each = [exact_process(X, y, at, n * ridge) for ridge in RIDGES]
    evidence = np.array([one[3] for one in each])
    weights = np.exp(evidence - evidence.max()) * np.gradient(np.log(RIDGES))
    weights /= weights.sum()
    assert weights.max() < 0.9  # several have a say

    mean, std = fitted.predict(at, return_std=True)
    _, noisy = fitted.predict(at, return_std=True, noise=True)
    chosen = each[RIDGES.index(fitted.ridge_)]
    variance = sum(w * (one[1] + (one[0] - chosen[0]) ** 2) for w, one in zip(weights, each, strict=True))
    noise = sum(w * one[2] for w, one in zip(weights, each, strict=True))
    factor = (n - 1) / (n - 3)
    assert fitted.posterior_model_.posterior.factor == pytest.approx(factor)
    np.testing.assert_allclose(mean, chosen[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(std**2, factor * variance, rtol=3e-3)  # ridges of little weight are left out
    np.testing.assert_allclose(noisy**2 - std**2, factor * noise, rtol=3e-3)
    assert fitted.noise_[0, 0] == pytest.approx(chosen[2], rel=1e-6)


@pytest.mark.parametrize("kernel", [GAUSSIAN, kernels.CurlFree(GAUSSIAN)], ids=["separable", "coupled"])
def test_draws_and_files_have_the_same_variances(tmp_path: Path, kernel: kernels.OperatorKernel) -> None:
    X, y = wave(40)
    Y = np.column_stack([y, np.cos(X[:, 0])])
    fitted = ORFFRegressor(kernel, 32, sampler=Orthogonal(), ridge=RIDGES, cv=None).fit(X, Y)
    model = fitted.posterior_model_
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    np.testing.assert_allclose(again.std(X, noise=True), model.std(X, noise=True), rtol=1e-12)
    assert again.posterior.freedom == model.posterior.freedom == 39
    covariance = again.covariance(X)
    np.testing.assert_allclose(np.einsum("npp->np", covariance), again.std(X) ** 2, rtol=1e-9)
    drawn = np.stack([one.predict(X[:5]) for one in again.sample(4000, seed=1)])
    of_features = again.std(X[:5]) ** 2 - np.diag(again.posterior.unexplained)
    assert np.all(np.abs(drawn.var(axis=0) / of_features - 1.0) < 6 * np.sqrt(2 / 4000))


def test_of_many_rows_and_of_one_ridge_nothing_is_averaged() -> None:
    X, y = wave(400)
    listed = ORFFRegressor(GAUSSIAN, 64, sampler=Orthogonal(), ridge=RIDGES, cv=None).fit(X, y)
    single = ORFFRegressor(GAUSSIAN, 64, sampler=Orthogonal(), ridge=listed.ridge_).fit(X, y)
    np.testing.assert_allclose(listed.predict(X, return_std=True)[1], single.predict(X, return_std=True)[1], rtol=1e-8)
    posterior = listed.posterior_model_.posterior
    assert len(posterior.blocks) == 1 and posterior.factor == pytest.approx(399 / 397)


def test_a_job_of_few_rows_has_the_deviations_of_the_estimator(tmp_path: Path) -> None:
    X, y = wave(60)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("x", data=X, chunks=X.shape)
    group.create_array("y", data=y[:, None], chunks=(60, 1))
    described = {
        "data": {"store": str(tmp_path / "rows.zarr")},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.7}},
        "features": {"count": 32, "sampler": {"type": "orthogonal"}},
        "solve": {"select": "loo", "ridge": RIDGES, "posterior": True, "standardize": False},
        "cluster": {"type": "serial"},
        "state": str(tmp_path / "state"),
        "model": str(tmp_path / "model"),
    }
    fit(Job.model_validate(described))
    model = load_model(tmp_path / "model")
    assert model.posterior.freedom == 59 and len(model.posterior.blocks) == 2
    single = Job.model_validate(described | {"solve": {"ridge": model.info["report"]["ridge"], "posterior": True}})
    fit(single)
    alone = load_model(tmp_path / "model")
    assert len(alone.posterior.blocks) == 1 and alone.posterior.freedom == 59


def test_a_fit_that_uses_up_its_rows_is_warned_of_where_deviations_are_asked_for() -> None:
    X, y = wave(20)
    short = kernels.Gaussian(0.1)
    fitted = ORFFRegressor(short, 64, sampler=Landmarks(), ridge=1e-6).fit(X, y)
    with pytest.warns(QualityWarning, match=r"all but 0\.\d degrees of freedom of 20 rows"):
        fitted.predict(X, return_std=True)
    smooth = ORFFRegressor(GAUSSIAN, 64, sampler=Landmarks(), ridge=0.1).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", QualityWarning)
        smooth.predict(X, return_std=True)


def test_degrees_of_freedom_that_cannot_be_are_refused(tmp_path: Path) -> None:
    X, y = wave(30)
    model = ORFFRegressor(GAUSSIAN, 16, sampler=Orthogonal(), ridge=0.1).fit(X, y).posterior_model_
    save_model(replace(model, posterior=replace(model.posterior, freedom=2.0)), tmp_path / "wrong")
    with pytest.raises(InputError, match="posterior_freedom should be more than 2"):
        load_model(tmp_path / "wrong")
    save_model(replace(model, posterior=replace(model.posterior, freedom=None)), tmp_path / "old")
    assert load_model(tmp_path / "old").posterior.factor == 1.0


# --- ridges of few labels ------------------------------------------------------------------------------------------


def moons(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    X, y = make_moons(n + 500, noise=0.25, random_state=seed)
    return X[:n], y[:n], X[n:], y[n:]


def without_each(fitted: ORFFClassifier, X: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """Decision values (n, K) of each row by ridge regression on the features of all other rows, l that of all."""
    F, Y = fitted.model_.feature_map.transform(X), np.eye(2)[y]
    A = np.column_stack([F, np.ones(len(F))])
    penalty = np.diag([len(X) * ridge] * F.shape[1] + [0.0])
    values = np.empty(Y.shape)
    for i in range(len(X)):
        B, targets = np.delete(A, i, axis=0), np.delete(Y, i, axis=0)
        values[i] = A[i] @ np.linalg.solve(B.T @ B + penalty, B.T @ targets)
    return values


def test_ridges_of_few_labels_are_compared_by_leave_one_out() -> None:
    X, y, _, _ = moons(40, seed=0)
    ridges = [1e-4, 1e-2, 1.0]
    fitted = ORFFClassifier(
        GAUSSIAN, 32, coding="one_vs_all", sampler=Orthogonal(), ridge=ridges, cv=None, calibrate=False
    ).fit(X, y)
    expected = []
    for ridge in ridges:
        f = without_each(fitted, X, y, ridge)
        f, Y = f - f.mean(axis=1, keepdims=True), np.eye(2)[y] - 0.5
        s = max(np.sum(f * Y) / np.sum(f * f), 0.0)  # the scale of f changes no class
        expected.append(np.sum((Y - s * f) ** 2) / (2 * 40))
    np.testing.assert_allclose(fitted.cv_errors_, expected, rtol=1e-6)
    assert fitted.ridge_ == ridges[int(np.argmin(expected))] and not hasattr(fitted, "gcv_")


def test_few_labels_are_predicted_where_gcv_chose_the_least_ridge() -> None:
    """GCV has 0.68 in one of these draws."""
    shares = []
    for seed in range(8):
        X, y, at, truth = moons(20, seed)
        fitted = ORFFClassifier(kernels.Gaussian(0.3), cv=None, calibrate=False).fit(X, y)
        shares.append(fitted.score(at, truth))
    assert min(shares) > 0.72 and np.mean(shares) > 0.8


def test_many_labels_and_rows_that_come_in_parts_keep_gcv() -> None:
    X, y, _, _ = moons(1024, seed=0)
    estimator = ORFFClassifier(GAUSSIAN, 32, sampler=Orthogonal(), ridge=[1e-4, 1e-2], cv=None, calibrate=False)
    assert estimator.fit(X, y).gcv_.shape == (2,)
    assert estimator.fit(X[:1023], y[:1023]).cv_errors_.shape == (2,)
    estimator = clone(estimator)
    estimator.partial_fit(X[:40], y[:40], classes=[0, 1])
    assert estimator.gcv_.shape == (2,)


def test_a_target_that_does_not_vary_leaves_the_other_as_sure() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(20)
    at = rng.uniform(-1, 1, (200, 2))
    _, alone = ORFFRegressor(posterior=True).fit(X, y).predict(at, return_std=True)
    _, beside = ORFFRegressor(posterior=True).fit(X, np.c_[y, np.full(20, 2.0)]).predict(at, return_std=True)
    assert 0.7 < np.median(beside[:, 0]) / np.median(alone) < 1.3


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_few_labels_with_weights_and_calibration(class_weight: str | None) -> None:
    X, y, at, truth = moons(60, seed=1)
    w = np.random.default_rng(0).integers(1, 3, 60).astype(float)
    fitted = ORFFClassifier(GAUSSIAN, 32, cv=None, class_weight=class_weight).fit(X, y, sample_weight=w)
    assert hasattr(fitted, "cv_errors_") and fitted.predict_proba(at).shape == (500, 2)
    assert fitted.score(at, truth) > 0.8


def few_of(X: np.ndarray, y: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Labels of n rows, -1 of the others."""
    labelled = np.random.default_rng(seed).permutation(len(X))[:n]
    some = np.full(len(X), -1)
    some[labelled] = y[labelled]
    return some


def test_few_labels_get_a_length_scale_for_each_input_only_where_it_pays() -> None:
    """The columns of K classes say one label a row, so that their evidence is not that of K targets."""
    X, y = load_breast_cancer(return_X_y=True)
    some = few_of(X, y, 50, seed=14)
    fitted = ORFFClassifier(manifold=0.0, calibrate=False).fit(X, some)
    in_deviations = fitted.lengthscales_[0] / X.std(axis=0)  # of all rows, not the labelled ones alone
    np.testing.assert_allclose(in_deviations, in_deviations[0], rtol=1e-9)
    assert np.mean(fitted.transduction_ == y) > 0.93

    X, y = make_moons(1000, noise=0.2, random_state=1)
    X = np.hstack([X, np.random.default_rng(5).standard_normal((1000, 8))])
    fitted = ORFFClassifier(manifold=0.0, calibrate=False).fit(X, few_of(X, y, 50, seed=11))
    lengths = fitted.lengthscales_[0] / X.std(axis=0)
    assert lengths[:2].max() < 0.5 * lengths[2:].min()  # those of the eight that say nothing are longer


@pytest.mark.parametrize("seed", range(6))
def test_the_ridge_of_few_rows_that_are_fitted_exactly_is_no_rounding(seed: int) -> None:
    """Their held-out error hardly depends on a small ridge, and the prior's variance is noise / (n ridge)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (30, 3))
    y = X @ [1.0, -0.5, 0.7] + 0.05 * rng.standard_normal(30)
    model = ORFFRegressor(kernels.Gaussian(0.5), standardize=False).fit(X, y)
    assert model.ridge_ >= 1e-8
    _, std = model.predict(rng.uniform(-3, 3, (100, 3)), return_std=True)
    assert std.max() < 3.0 * y.std()
