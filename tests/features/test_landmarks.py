"""Landmarks: features of kernel values at rows of the data, their choice, and what they leave out of the kernel."""

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff import kernels
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.features import FeatureMap, Recipe, feature_arrays, features_from
from dorff.fit import fit
from dorff.frequencies import Landmarks
from dorff.frequencies.landmarks import pivoted_cholesky
from dorff.kernels import FloatArray
from dorff.spec.job import Job
from dorff.store import load_model

ROWS = np.random.default_rng(0).standard_normal((90, 3))
SCALARS = (
    kernels.Gaussian((0.7, 1.5, 2.0)),
    kernels.Matern(1.0, nu=1.5),
    kernels.Matern(0.8, nu=2.5),
    kernels.RationalQuadratic(1.2, alpha=0.7),
)
ROUGH = (kernels.Matern(1.0, nu=0.5), kernels.Laplacian(1.0), kernels.Cauchy(1.0))


def landmarks(scalar: kernels.ScalarKernel, X: FloatArray, m: int, seed: int = 0) -> Any:
    recipe = Recipe.of(scalar, Landmarks(), d=X.shape[1], n_features=m)
    return recipe.among(X, seed).draw(seed).phi


@pytest.mark.parametrize("scalar", [*SCALARS, *ROUGH], ids=repr)
def test_products_of_features_are_the_nystroem_approximation(scalar: kernels.ScalarKernel) -> None:
    phi = landmarks(scalar, ROWS, 25)
    Z = phi.points
    assert phi.m == 25 and all(any(np.array_equal(z, x) for x in ROWS) for z in Z)
    dense = scalar.gram(ROWS, Z) @ np.linalg.solve(scalar.gram(Z, Z), scalar.gram(Z, ROWS))
    np.testing.assert_allclose(phi.gram(ROWS, ROWS), dense, atol=1e-9)
    np.testing.assert_allclose(phi.gram(Z, ROWS), scalar.gram(Z, ROWS), atol=1e-9)


def test_the_first_features_are_those_of_the_first_landmarks() -> None:
    phi, fewer = landmarks(SCALARS[0], ROWS, 30), landmarks(SCALARS[0], ROWS, 12)
    np.testing.assert_array_equal(phi.points[:12], fewer.points)
    np.testing.assert_allclose(phi.transform(ROWS)[:, :12], fewer.transform(ROWS), atol=1e-10)
    np.testing.assert_allclose(phi.first(12).transform(ROWS), fewer.transform(ROWS), atol=1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 60), st.sampled_from(SCALARS + ROUGH))
@settings(deadline=None, max_examples=40)
def test_pivots_leave_what_is_left(seed: int, n: int, count: int, scalar: kernels.ScalarKernel) -> None:
    """The factor is that of the chosen rows; none is chosen twice, whatever rows are equal."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))[rng.integers(0, n, n)]  # with rows that are equal
    pivots = pivoted_cholesky(scalar, X, count, rng)
    chosen = X[pivots.rows]
    assert len(np.unique(chosen, axis=0)) == len(chosen) == min(count, len(np.unique(X, axis=0)))
    K = scalar.gram(X, X)
    left = K - scalar.gram(X, chosen) @ np.linalg.solve(scalar.gram(chosen, chosen), scalar.gram(chosen, X))
    np.testing.assert_allclose(K - pivots.factor @ pivots.factor.T, left, atol=1e-6)
    missing = pivots.missing(np.ones(n))
    assert missing[0] == 1.0 and np.all(np.diff(missing) <= 0)
    np.testing.assert_allclose(missing[-1], max(np.trace(left) / n, 0.0), atol=1e-6)


def test_they_end_where_little_is_left() -> None:
    X = np.random.default_rng(1).uniform(-1, 1, (400, 2))
    pivots = pivoted_cholesky(kernels.Gaussian(1.0), X, 300, np.random.default_rng(0), enough=1e-4)
    missing = pivots.missing(np.ones(400))
    assert missing[-1] <= 1e-4 and len(pivots.rows) < 100
    every = pivoted_cholesky(kernels.Gaussian(3.0), X, 400, np.random.default_rng(0))
    assert len(every.rows) < 200, "rows that are combinations of others but for rounding are none"
    assert np.linalg.eigvalsh(kernels.Gaussian(3.0).gram(X[every.rows], X[every.rows])).min() > 0


@pytest.mark.timeout(60)
def test_rows_that_rounding_sets_apart_do_not_keep_the_choice_from_ending() -> None:
    """k(x, x) is 1, and arccos of 1 less a rounding makes 1 - 1e-8 of it: nothing is left of equal rows, or 1e-8."""
    config = {
        "type": "skeleton",
        "inputs": [{"type": "sphere", "columns": [0, 1, 2]}],
        "layers": [{"activation": "step"}],
    }
    scalar, X = kernels.scalar_from_config(config), np.repeat(ROWS[:20], 20, axis=0)
    for seed in range(4):
        pivots = pivoted_cholesky(scalar, X, len(X), np.random.default_rng(seed))
        assert len(np.unique(X[pivots.rows], axis=0)) == 20
        assert pivots.missing(scalar.diagonal(X))[-1] < 1e-7


@pytest.mark.statistical
def test_the_law_of_the_pivots_is_that_of_one_draw_at_a_time() -> None:
    """P(i, j) = k(i, i) / tr K times what i leaves of k(j, j), over the sum of that."""
    scalar, X = kernels.Gaussian(1.0), np.array([[0.0], [0.1], [0.9], [1.5], [4.0]])
    K = scalar.gram(X, X)
    wanted = {}
    for i, j in permutations(range(5), 2):
        left = np.maximum(np.diag(K) - K[:, i] ** 2 / K[i, i], 0.0)
        wanted[i, j] = K[i, i] / np.trace(K) * left[j] / left.sum()
    draws = 4000
    rng = np.random.default_rng(5)
    drawn = Counter(tuple(pivoted_cholesky(scalar, X, 2, rng).rows.tolist()) for _ in range(draws))
    for pair, share in wanted.items():
        error = np.sqrt(share * (1 - share) / draws)
        assert abs(drawn[pair] / draws - share) < 4.5 * error + 1e-4, (pair, drawn[pair] / draws, share)


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_gradients_are_differences(scalar: kernels.ScalarKernel) -> None:
    phi, W, step = landmarks(scalar, ROWS, 20), np.random.default_rng(2).standard_normal((20, 2)), 1e-5
    x = np.random.default_rng(3).standard_normal((7, 3))
    found = phi.jacobian(x, W)
    for axis in range(3):
        away = step * np.eye(3)[axis]
        differences = (phi.transform(x + away) - phi.transform(x - away)) @ W / (2 * step)
        np.testing.assert_allclose(found[:, :, axis], differences, rtol=1e-5, atol=1e-6 * np.abs(W).max() * 100)


@pytest.mark.parametrize("scalar", ROUGH, ids=repr)
def test_kernels_without_a_known_gradient_say_so(scalar: kernels.ScalarKernel) -> None:
    phi = landmarks(scalar, ROWS, 5)
    assert not phi.differentiable
    with pytest.raises(InputError, match="jacobian"):
        phi.jacobian(ROWS, np.ones((5, 1)))


def test_a_map_is_kept_as_json_and_arrays() -> None:
    features = FeatureMap(landmarks(SCALARS[1], ROWS, 9), np.full(3, 0.5), np.full(3, 2.0))
    config = json.loads(json.dumps(features.phi.config()))
    again = features_from(config, feature_arrays(features))
    np.testing.assert_array_equal(again.transform(ROWS), features.transform(ROWS))
    for name in ("landmarks", "whitening"):
        damaged = {**feature_arrays(features), name: feature_arrays(features)[name][:-1]}
        with pytest.raises(InputError, match="do not fit"):
            features_from(config, damaged)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (kernels.CurlFree(kernels.Gaussian(1.0)), "decomposable"),
        (kernels.Decomposable(kernels.Polynomial(2)), "depends on x - z"),
        (
            kernels.Decomposable(kernels.Gaussian(1.0)) + kernels.Decomposable(kernels.Gaussian(2.0)),
            "this sum has several",
        ),
    ],
)
def test_kernels_without_landmarks_are_refused(kernel: kernels.OperatorKernel, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Recipe(kernel.fix(2, 2, np.eye(2)), Landmarks(), 2, 2, 16)


def stored(folder: Path, n: int, *, p: int = 1, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.column_stack([np.sin((1 + k) * X[:, 0]) + X[:, 1] ** 2 for k in range(p)]) + 0.1 * rng.normal(size=(n, p))
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    for name, values in (("x", X), ("y", Y)):
        group.create_array(name, data=values, chunks=(64, values.shape[1]))
    return X, Y


def fitted(folder: Path, count: int, *, sampler: Any = "landmarks", kernel: Any = None, **solve: Any) -> Any:
    scalar = {"type": "gaussian", "lengthscale": 0.8}
    body = {
        "data": {"store": str(folder / "data.zarr")},
        "kernel": {"type": "decomposable", "scalar": scalar} if kernel is None else kernel,
        "features": {"count": count, "sampler": {"type": sampler} if isinstance(sampler, str) else sampler},
        "solve": {"ridge": 1e-3, "select": "gcv", "intercept": False, "standardize": False, "posterior": True, **solve},
        "cluster": {"type": "serial"},
        "state": str(folder / "state"),
        "model": str(folder / "model"),
    }
    fit(Job.model_validate(body), engine=SerialEngine())
    return load_model(folder / "model")


def test_landmarks_at_all_rows_are_the_exact_process(tmp_path: Path) -> None:
    X, Y = stored(tmp_path, 150)
    model = fitted(tmp_path, 200)
    scalar, x = kernels.Gaussian(0.8), np.random.default_rng(4).uniform(-3, 3, (40, 2))
    K = scalar.gram(X, X) + 150 * 1e-3 * np.eye(150)
    k = scalar.gram(x, X)
    np.testing.assert_allclose(model.predict(x), k @ np.linalg.solve(K, Y), atol=1e-5)
    prior = model.posterior.noise[0, 0] / (150 * 1e-3)
    variance = prior * (1.0 - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T)))
    np.testing.assert_allclose(model.std(x)[:, 0], np.sqrt(variance), rtol=1e-4)


def test_deviations_hold_what_landmarks_leave_out(tmp_path: Path) -> None:
    """The dense twin: t2 (k - k^) + noise F (F^T F + l ridge)^-1 F^T, for outputs that are coupled too."""
    X, _ = stored(tmp_path, 300, p=2)
    A = np.array([[1.0, 0.6], [0.6, 2.0]])
    kernel = {
        "type": "decomposable",
        "scalar": {"type": "gaussian", "lengthscale": 0.8},
        "output": {"matrix": A.tolist()},
    }
    model = fitted(tmp_path, 20, kernel=kernel)
    x = np.random.default_rng(4).uniform(-4, 4, (30, 2))
    F, G = model.feature_map.transform(X), model.feature_map.transform(x)
    noise, l_ridge = model.posterior.noise, 300 * 1e-3
    level = float(np.diag(noise).mean())
    K = np.kron(F @ F.T, A) + l_ridge * np.kron(np.eye(300), noise / level)
    k = np.kron(G @ F.T, A)
    dense = level / l_ridge * (np.tile(np.diag(A), 30) - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T)))
    np.testing.assert_allclose(model.std(x) ** 2, dense.reshape(30, 2), rtol=0.02)
    full = model.covariance(x)
    np.testing.assert_allclose(np.einsum("npp->np", full), model.std(x) ** 2, rtol=1e-10)


@pytest.mark.parametrize("count", [64, 256])
def test_far_from_the_rows_deviations_are_those_of_the_prior(count: int, tmp_path: Path) -> None:
    stored(tmp_path, 400)
    model = fitted(tmp_path, count)
    prior = model.posterior.noise[0, 0] / (400 * 1e-3)
    np.testing.assert_allclose(model.std(np.array([[30.0, -20.0]]))[0, 0] ** 2, prior, rtol=1e-6)


def test_at_ridge_0_landmarks_have_no_bounds_and_a_lattice_those_of_the_noise(tmp_path: Path) -> None:
    stored(tmp_path, 400)
    with pytest.raises(InputError, match="ridge 0"):
        fitted(tmp_path, 20, ridge=0.0)
    model = fitted(tmp_path, 64, sampler={"type": "lattice", "error": 0.1}, ridge=0.0, intercept=True)
    assert 0 < model.posterior.unexplained[0, 0] <= model.posterior.noise[0, 0] * (1 + 1e-12)


def test_counts_are_chosen_from_and_a_state_is_gone_on_with(tmp_path: Path) -> None:
    X, Y = stored(tmp_path, 400)
    body = {
        "data": {"store": str(tmp_path / "data.zarr")},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.8}},
        "features": {"count": [8, 120], "sampler": {"type": "landmarks"}},
        "cluster": {"type": "serial"},
        "state": str(tmp_path / "state"),
        "model": str(tmp_path / "model"),
    }
    report = fit(Job.model_validate(body), engine=SerialEngine())
    assert report.m == 120 and report.score > 0.9
    assert fit(Job.model_validate(body), engine=SerialEngine()).outcome == "unchanged"
    more = np.random.default_rng(7).uniform(-2, 2, (50, 2))
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="a")
    for name, values in (("x", more), ("y", np.sin(more[:, :1]) + more[:, 1:] ** 2)):
        array = group[name]
        array.resize((450, array.shape[1]))
        array[400:] = values
    again = fit(Job.model_validate(body), engine=SerialEngine())
    assert again.outcome != "unchanged" and again.m == 120 and len(list((tmp_path / "state").glob("*/plan.json"))) == 1
    assert Y.shape == (400, 1) and X.shape == (400, 2)


def test_a_state_that_outgrew_its_landmarks_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    X = rng.uniform(-1, 1, (2400, 2))
    Y = np.sin(9 * X[:, :1]) * np.cos(7 * X[:, 1:]) + 0.1 * rng.standard_normal((2400, 1))
    for name, values in (("x", X), ("y", Y)):
        group.create_array(name, data=values[:40], chunks=(64, values.shape[1]))
    body = {
        "data": {"store": str(tmp_path / "data.zarr")},
        "cluster": {"type": "serial"},
        "features": {"count": 64},  # a count that dorff chose would be chosen again with twice the rows
        "state": str(tmp_path / "state"),
        "model": str(tmp_path / "model"),
    }
    fit(Job.model_validate(body), engine=SerialEngine())
    assert load_model(tmp_path / "model").sampler == {"type": "landmarks"}
    for rows, outgrown in ((100, False), (2400, True)):
        for name, values in (("x", X), ("y", Y)):
            array = group[name]
            array.resize((rows, values.shape[1]))
            array[:] = values[:rows]
        report = fit(Job.model_validate(body), engine=SerialEngine())
        assert report.m <= 48
        assert any("begin anew, with another folder as state" in text for text in report.warnings) == outgrown


def test_deviations_by_random_features_count_how_far_f_depends_on_their_draw(tmp_path: Path) -> None:
    """Half the mean squared difference, over the rows, of fits by either half of the frequencies."""
    X, Y = stored(tmp_path, 300)
    model = fitted(tmp_path, 64, sampler="orthogonal")
    F, l_ridge = model.feature_map.transform(X), 300 * 1e-3
    values = []
    for first in (0, 16):
        columns = np.concatenate([np.arange(first, first + 16), 32 + np.arange(first, first + 16)])
        half = np.sqrt(2.0) * F[:, columns]
        values.append(half @ np.linalg.solve(half.T @ half + l_ridge * np.eye(32), half.T @ Y))
    wanted = 0.5 * np.mean((values[0] - values[1]) ** 2)
    np.testing.assert_allclose(model.posterior.unexplained, [[wanted]], rtol=1e-6)
    features_alone = model.posterior.variance(F) - wanted
    system = F.T @ F + l_ridge * np.eye(64)
    dense = model.posterior.noise[0, 0] * np.einsum("ij,ji->i", F, np.linalg.solve(system, F.T))
    np.testing.assert_allclose(features_alone[:, 0], dense, rtol=1e-6)
