"""Landmarks in estimators: dense twins by NumPy, exact kernel ridge regression, the choice that `fit` makes, models."""

import pickle
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import zarr
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as gp_kernels

from dorff import (
    DoublyStochasticRegressor,
    ORFFClassifier,
    ORFFRegressor,
    RandomFeatures,
    StochasticORFFRegressor,
    graphs,
    kernels,
    load_model,
)
from dorff.errors import InputError
from dorff.exact import ExactRidge
from dorff.frequencies import IID, Landmarks, Lattice, Orthogonal
from dorff.kernels import FloatArray, OperatorKernel, ScalarKernel
from dorff.store import save_model

RIDGE = 1e-4
ROUGH = kernels.Matern(0.5, nu=0.5)  # no row is a combination of others
MATRIX = [[2.0, 0.5], [0.5, 1.0]]


def field(n: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Inputs (n, 2) and targets (n, 2) with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    Y = np.stack([np.sin(2.0 * X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, 2))


def clusters(n: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Rows near 30 points in six dimensions, each of which has a value of its own: few random features lose there."""
    places = np.random.default_rng(5)
    centres, values = 3.0 * places.standard_normal((30, 6)), places.standard_normal(30)
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 30, n)
    X = centres[cluster] + 0.1 * rng.standard_normal((n, 6))
    return X, values[cluster] + 0.05 * rng.standard_normal(n)


def nystroem(scalar: ScalarKernel, points: FloatArray, X: FloatArray) -> FloatArray:
    """Features (n, m) whose products are k(x, Z) K_ZZ^-1 k(Z, z), by eigenvectors in the place of a factorization."""
    values, vectors = np.linalg.eigh(scalar.gram(points, points))
    return scalar.gram(X, points) @ (vectors / np.sqrt(values)) @ vectors.T


def landmarks_of(estimator: ORFFRegressor) -> FloatArray:
    """The landmarks (m, d) of a fit, in the units of its inputs."""
    features = estimator.model_.feature_map
    return features.phi.arrays()["landmarks"] * features.scale + features.center


def scaled_kernel(estimator: ORFFRegressor) -> ScalarKernel:
    """The scalar kernel of a fit whose inputs were not scaled."""
    np.testing.assert_array_equal(estimator.model_.feature_map.scale, 1.0)
    return estimator.model_.kernel.terms()[0][1].scalar


@pytest.mark.parametrize("output", ["identity", MATRIX], ids=["identity", "matrix"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_fit_is_ridge_regression_on_nystroem_features(
    output: str | list[list[float]], weighted: bool, intercept: bool
) -> None:
    """1/l sum w |y - f|^2 + ridge |f|^2 on features (x) root of the output matrix, written out."""
    X, Y = field(120)
    w = np.random.default_rng(4).integers(0, 3, 120).astype(float) if weighted else np.ones(120)
    kernel = kernels.Decomposable(kernels.Gaussian(0.8), output)
    fitted = ORFFRegressor(kernel, 20, sampler=Landmarks(), ridge=RIDGE, intercept=intercept)
    fitted.fit(X, Y, sample_weight=w if weighted else None)
    points, at = landmarks_of(fitted), field(40, seed=1)[0]
    assert points.shape == (20, 2) and all(np.any(np.all(np.isclose(X, point), axis=1)) for point in points)
    root = scipy.linalg.sqrtm(np.eye(2) if output == "identity" else np.array(MATRIX)).real

    def design(rows: FloatArray) -> FloatArray:
        features = np.kron(nystroem(kernels.Gaussian(0.8), points, rows), root)
        return np.hstack([features, np.tile(np.eye(2), (len(rows), 1))]) if intercept else features

    Phi, each = design(X), np.repeat(w, 2)
    penalty = np.zeros(Phi.shape[1])
    penalty[:40] = w.sum() * RIDGE
    h = np.linalg.solve(Phi.T @ (each[:, None] * Phi) + np.diag(penalty), Phi.T @ (each * Y.ravel()))
    np.testing.assert_allclose(fitted.predict(at), (design(at) @ h).reshape(-1, 2), rtol=1e-6, atol=1e-7)
    assert not weighted or np.all(w[[np.argmin(np.sum((X - point) ** 2, axis=1)) for point in points]] > 0)


@pytest.mark.parametrize("output", ["identity", MATRIX], ids=["identity", "matrix"])
def test_with_all_rows_as_landmarks_the_fit_is_exact(output: str | list[list[float]]) -> None:
    X, Y = field(60)
    at, kernel = field(40, seed=1)[0], kernels.Decomposable(ROUGH, output)
    fitted = ORFFRegressor(kernel, 500, sampler=Landmarks(), ridge=RIDGE).fit(X, Y)
    assert fitted.model_.feature_map.m == 60
    exact = ExactRidge.fit(kernel.fix(2, 2), X, Y, ridge=RIDGE)
    np.testing.assert_allclose(fitted.predict(at), exact.predict(at), rtol=1e-7)


def test_with_all_rows_as_landmarks_deviations_are_the_exact_process_s() -> None:
    """Of f ~ GP(0, s2 / (l ridge) k) and noise s2; far from the rows too, where features alone would say 0.

    Times what a noise that is estimated adds.
    """
    X, Y = field(60)
    at = np.vstack([field(40, seed=1)[0], [[30.0, -30.0]]])
    fitted = ORFFRegressor(ROUGH, 500, sampler=Landmarks(), ridge=1e-2, intercept=False).fit(X, Y[:, 0])
    kernel = gp_kernels.Matern(0.5, length_scale_bounds="fixed", nu=0.5)
    twin = GaussianProcessRegressor(kernel, alpha=60 * 1e-2, optimizer=None).fit(X, Y[:, 0])
    mean, std = twin.predict(at, return_std=True)
    factor = fitted.posterior_model_.posterior.factor
    assert factor == pytest.approx(60 / 58, rel=1e-12)
    prior = np.sqrt(factor * fitted.noise_[0, 0] / (60 * 1e-2))
    found, deviation = fitted.predict(at, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(deviation, prior * std, rtol=1e-6)
    assert deviation[-1] == pytest.approx(prior, rel=1e-6)


def test_fewer_landmarks_are_the_first_of_more() -> None:
    X, Y = field(300)
    few, many = (ORFFRegressor(ROUGH, m, sampler=Landmarks(), ridge=RIDGE).fit(X, Y) for m in (24, 96))
    np.testing.assert_array_equal(landmarks_of(few), landmarks_of(many)[:24])
    first = many.model_.feature_map.transform(X)[:, :24]
    np.testing.assert_allclose(few.model_.feature_map.transform(X), first, rtol=1e-9, atol=1e-12)


def test_fit_takes_landmarks_where_random_features_lose() -> None:
    (X, y), (at, truth) = clusters(600), clusters(600, seed=1)
    estimator = ORFFRegressor(kernels.Gaussian(0.5), 64)
    chosen = clone(estimator).fit(X, y)
    random = clone(estimator).set_params(sampler=Orthogonal()).fit(X, y)
    assert chosen.model_.sampler == {"type": "landmarks"} and random.model_.sampler["type"] == "orthogonal"
    assert chosen.score(at, truth) > 0.97 and random.score(at, truth) < 0.85
    labels = truth_labels(y)
    classes = ORFFClassifier(kernels.Gaussian(0.5), 64).fit(X, labels)
    assert classes.model_.sampler == {"type": "landmarks"} and classes.score(at, truth_labels(truth)) > 0.9


def truth_labels(y: FloatArray) -> FloatArray:
    """Three classes by the value of a cluster."""
    return np.digitize(y, [-0.5, 0.5])


def test_random_features_stay_where_landmarks_lose_or_have_no_rows_to_come_from() -> None:
    X, y = clusters(600)
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((600, 10))
    linear = ORFFRegressor(kernels.Matern(100.0, nu=0.5), 32).fit(wide, wide @ np.ones(10))
    assert linear.model_.sampler["type"] == "orthogonal"
    later = ORFFRegressor(kernels.Gaussian(0.5), 64, cv=None, ridge=RIDGE).partial_fit(X, y)
    assert later.model_.sampler["type"] == "orthogonal"  # rows to come may lie elsewhere
    field_of_two = ORFFRegressor(kernels.CurlFree(kernels.Gaussian(1.0)), 64).fit(*field(200))
    assert field_of_two.model_.sampler["type"] == "orthogonal"


def test_a_count_that_nobody_named_is_as_many_as_leave_out_little() -> None:
    X, Y = field(1100)
    chosen = ORFFRegressor(kernels.Matern(1.0, nu=1.5)).fit(X, Y)
    most = clone(chosen).set_params(n_features=900, sampler=Landmarks()).fit(X, Y)
    assert 30 <= chosen.model_.feature_map.m < 600 < most.model_.feature_map.m
    assert chosen.model_.feature_map.m % 16 == 0
    assert chosen.quality_.r2 > most.quality_.r2 - 0.002


def test_rows_that_are_no_more_than_features_are_all_landmarks() -> None:
    """So that the fit is exact kernel ridge regression."""
    X, Y = field(200)
    kernel = kernels.Matern(1.0, nu=1.5)
    chosen = ORFFRegressor(kernel, n_features=200, ridge=RIDGE, standardize=False).fit(X, Y)
    exact = ExactRidge.fit(kernels.Decomposable(kernel), X, Y, ridge=RIDGE)
    at, _ = field(100, seed=1)
    assert chosen.model_.feature_map.m == 200
    np.testing.assert_allclose(chosen.predict(at), exact.predict(at), atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_nothing_need_be_said_for_several_targets_and_tuned_lengthscales() -> None:
    X, Y = field(250)
    fitted = ORFFRegressor().fit(X, Y)
    at, truth = field(250, seed=1)
    assert fitted.model_.sampler == {"type": "landmarks"} and fitted.score(at, truth) > 0.95
    for output in ("covariance", "learned"):
        kernel = kernels.Decomposable(kernels.Gaussian(0.8), output)
        assert ORFFRegressor(kernel).fit(X, Y).score(at, truth) > 0.95


def test_weights_are_rows_given_as_often_and_their_order_is_none() -> None:
    X, Y = field(300)
    w = np.random.default_rng(4).integers(0, 3, 300)
    estimator = ORFFRegressor(kernels.Matern(1.0, nu=1.5), 40, sampler=Landmarks(), ridge=RIDGE, standardize=True)
    weighted = clone(estimator).fit(X, Y, sample_weight=w)
    order = np.random.default_rng(5).permutation(w.sum())
    often = clone(estimator).fit(np.repeat(X, w, axis=0)[order], np.repeat(Y, w, axis=0)[order])
    np.testing.assert_allclose(landmarks_of(weighted), landmarks_of(often), rtol=1e-12)
    np.testing.assert_allclose(weighted.predict(X), often.predict(X), rtol=1e-6)


def test_partial_fit_keeps_the_landmarks_of_the_first_call() -> None:
    X, Y = field(200)
    estimator = ORFFRegressor(ROUGH, 40, sampler=Landmarks(), ridge=RIDGE, cv=None)
    parts = clone(estimator).partial_fit(X[:120], Y[:120])
    first = landmarks_of(parts)
    parts.partial_fit(X[120:], Y[120:])
    np.testing.assert_array_equal(landmarks_of(parts), first)
    features = nystroem(ROUGH, first, X)
    F = np.hstack([features, np.ones((200, 1))])
    penalty = np.diag([200 * RIDGE] * 40 + [0.0])
    np.testing.assert_allclose(parts.predict(X), F @ np.linalg.solve(F.T @ F + penalty, F.T @ Y), rtol=1e-6)


def test_every_kind_of_input_gives_the_same_landmarks(tmp_path: object) -> None:
    X, Y = field(10_000)
    weights = np.random.default_rng(1).integers(0, 2, 10_000).astype(float)
    estimator = ORFFRegressor(kernels.Gaussian(0.8), 32, sampler=Landmarks(), ridge=RIDGE)
    expected = clone(estimator).fit(X, Y, sample_weight=weights)
    in_zarr = [
        zarr.create_array(f"{tmp_path}/{name}", data=rows, chunks=(900, 2)) for name, rows in {"x": X, "y": Y}.items()
    ]
    lazy = da.from_array(X, chunks=(3000, 1)), da.from_array(Y, chunks=(2500, 2))
    for x, y in (in_zarr, lazy):
        fitted = clone(estimator).fit(x, y, sample_weight=weights)
        np.testing.assert_array_equal(landmarks_of(fitted), landmarks_of(expected))
        np.testing.assert_allclose(np.asarray(fitted.predict(x)), expected.predict(X), rtol=1e-7)
    heavy = X[weights > 0]
    assert all(np.any(np.all(np.isclose(heavy, point), axis=1)) for point in landmarks_of(expected))


def test_parameters_are_the_sampler_and_nothing_else() -> None:
    X, Y = field(80)
    estimator = ORFFRegressor(ROUGH, 16, sampler=Landmarks(), ridge=RIDGE)
    assert not [name for name in estimator.get_params() if name.startswith("sampler__")]
    fitted = clone(estimator).fit(X, Y)
    assert fitted.sampler == Landmarks() == clone(fitted).sampler and repr(fitted.sampler) == "Landmarks()"
    values = fitted.predict(X)  # after which the model keeps what it made for it
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), values)
    np.testing.assert_array_equal(again.predict(X, return_std=True), fitted.predict(X, return_std=True))
    other = clone(estimator).set_params(random_state=1).fit(X, Y)
    assert not np.array_equal(landmarks_of(other), landmarks_of(fitted))


@pytest.mark.parametrize(
    "scalar",
    [
        kernels.Gaussian([0.7, 1.3]),
        kernels.Matern(0.9, nu=1.5),
        kernels.Matern([0.9, 0.4], nu=2.5),
        kernels.RationalQuadratic(0.8, alpha=1.2),
    ],
    ids=repr,
)
def test_a_model_is_saved_and_has_a_jacobian(tmp_path, scalar: ScalarKernel) -> None:
    X, Y = field(80)
    fitted = ORFFRegressor(kernels.Decomposable(scalar, MATRIX), 30, sampler=Landmarks(), ridge=RIDGE).fit(X, Y)
    save_model(fitted.posterior_model_, tmp_path)
    again, at = load_model(tmp_path), field(10, seed=1)[0]
    mean, std = fitted.predict(at, return_std=True)
    np.testing.assert_allclose(again.predict(at), mean, rtol=1e-12)
    np.testing.assert_allclose(again.std(at), std, rtol=1e-12)
    step, jacobian = 1e-6, again.jacobian(at)
    for axis in range(2):
        away = step * np.eye(2)[axis]
        slope = (again.predict(at + away) - again.predict(at - away)) / (2 * step)
        np.testing.assert_allclose(jacobian[:, :, axis], slope, rtol=1e-5, atol=1e-6)


def test_folds_and_leave_one_out_are_those_of_fits_by_hand() -> None:
    X, y = field(90)[0], field(90)[1][:, 0]
    every = ORFFRegressor(ROUGH, 500, sampler=Landmarks(), ridge=[1e-4, 1e-2])  # of all rows: the exact kernel
    splits = [
        (np.flatnonzero(np.arange(90) % 3 != fold), np.flatnonzero(np.arange(90) % 3 == fold)) for fold in range(3)
    ]
    by_folds = clone(every).set_params(cv=splits).fit(X, y)
    left_out = clone(every).set_params(cv=None, criterion="loo").fit(X, y)
    kernel = kernels.Decomposable(ROUGH).fix(2, 1)

    def errors(ridge: float, train: FloatArray, held: FloatArray) -> FloatArray:
        fit = ExactRidge.fit(kernel, X[train], y[train, None], ridge=ridge)
        return (fit.predict(X[held])[:, 0] - y[held]) ** 2

    for ridge, found in zip((1e-4, 1e-2), by_folds.cv_errors_, strict=True):
        assert found == pytest.approx(np.concatenate([errors(ridge, *split) for split in splits]).mean(), rel=1e-6)
    for ridge, found in zip((1e-4, 1e-2), left_out.cv_errors_, strict=True):
        # All constants, l ridge among them, are those of all rows.
        alone = [errors(ridge * 90 / 89, np.delete(np.arange(90), row), np.array([row])) for row in range(90)]
        assert found == pytest.approx(np.mean(alone), rel=1e-5)


def test_a_manifold_term_is_of_the_landmarks_functions() -> None:
    """Least of 1/l sum |y - f|^2 + ridge |f|^2 + weight f^T L f over all rows, L of a graph that is given."""
    X, Y = field(100)
    y, ridge, weight = Y[:, 0].copy(), 1e-3, 0.05
    y[20:] = np.nan
    near = np.exp(-4.0 * np.sum((X[:, None] - X[None]) ** 2, axis=2)) * (1.0 - np.eye(100))
    term = graphs.Manifold(graphs.Given(near), weight=weight, laplacian="unnormalised")
    fitted = ORFFRegressor(ROUGH, 500, sampler=Landmarks(), ridge=ridge, manifold=term, intercept=False).fit(X, y)
    assert fitted.model_.feature_map.m == 100  # chosen among the unlabelled rows too
    L, K, J = np.diag(near.sum(axis=1)) - near, ROUGH.gram(X, X), np.diag(np.isfinite(y).astype(float))
    a = np.linalg.solve(J @ K + 20 * ridge * np.eye(100) + 20 * weight * L @ K, np.nan_to_num(y))
    np.testing.assert_allclose(fitted.predict(X), K @ a, rtol=1e-6, atol=1e-8)


def test_the_transformer_gives_nystroem_features() -> None:
    X, _ = field(150)
    features = RandomFeatures(ROUGH, 40, sampler=Landmarks()).fit(X)
    F, points = features.transform(X), features.feature_map_.phi.arrays()["landmarks"] + features.feature_map_.center
    K = ROUGH.gram(X, points)
    np.testing.assert_allclose(F @ F.T, K @ np.linalg.solve(ROUGH.gram(points, points), K.T), atol=1e-9)
    assert len(features.get_feature_names_out()) == 40
    assert RandomFeatures(ROUGH, 4000, sampler=Landmarks()).fit(X).transform(X).shape == (150, 150)


def test_descents_on_one_set_of_features_have_landmarks_and_others_refuse_them() -> None:
    X, Y = field(400)
    fitted = StochasticORFFRegressor(kernels.Gaussian(0.8), 64, sampler=Landmarks()).fit(X, Y)
    assert fitted.model_.sampler == {"type": "landmarks"} and fitted.score(X, Y) > 0.9
    with pytest.raises(InputError, match="each step draws new features, and landmarks are chosen once"):
        DoublyStochasticRegressor(kernels.Gaussian(0.8), sampler=Landmarks()).fit(X, Y)


@pytest.mark.parametrize(
    "kernel", [kernels.CurlFree(kernels.Gaussian(1.0)), kernels.Polynomial(2), kernels.ArcCosine(1)], ids=repr
)
def test_kernels_without_landmarks_are_refused(kernel: OperatorKernel | ScalarKernel) -> None:
    with pytest.raises(InputError, match="landmarks need a decomposable kernel"):
        ORFFRegressor(kernel, 32, sampler=Landmarks()).fit(*field(50))


def test_deviations_have_what_features_leave_out_of_the_kernel() -> None:
    """Of a lattice a share of the prior everywhere, of random features how far f depends on the draw."""
    X, Y = field(200)
    y, at = Y[:, 0], field(50, seed=1)[0]
    for sampler, scalar, count in (
        (Lattice(0.1), kernels.Matern(0.5, nu=1.5), 256),
        (IID(), kernels.Gaussian(0.5), 32),
    ):
        fitted = ORFFRegressor(scalar, count, sampler=sampler, ridge=1e-3).fit(X, y)
        sure = fitted.posterior_model_.posterior
        assert sure.unexplained is not None and sure.unexplained[0, 0] > 0.0
        linear = replace(fitted.posterior_model_, posterior=replace(sure, unexplained=None)).std(at)[:, 0]
        wider = fitted.predict(at, return_std=True)[1]
        np.testing.assert_allclose(wider**2, linear**2 + sure.unexplained[0, 0], rtol=1e-9)
