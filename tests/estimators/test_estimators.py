"""ORFFRegressor: scikit-learn's own checks, dense twins, and every kind of input giving what NumPy gives."""

import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from quick import slow
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info

from dorff import ORFFRegressor, frequencies, kernels, load_model
from dorff.errors import InputError
from dorff.estimators.array_sums import one_thread, sample
from dorff.exact import ExactRidge
from dorff.features.lengthscale_search import QUICK, QUICK_ROWS, tune_lengthscales
from dorff.frequencies import Orthogonal
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(1.5)
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSSIAN) + 0.7 * kernels.DivergenceFree(GAUSSIAN)
COUPLED = kernels.Decomposable(GAUSSIAN, [[2.0, 0.5], [0.5, 1.0]])
KERNELS = [COUPLED, kernels.Decomposable(GAUSSIAN, "covariance"), kernels.CurlFree(GAUSSIAN), HELMHOLTZ]


def field(n: int, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy smooth targets (n, 2), far from zero, at inputs (n, d)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, d))
    Y = np.stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, 2))


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-8 * np.abs(b).max())


def in_zarr(path: Path, values: np.ndarray, rows: int, **options: object) -> zarr.Array:
    """A real store on disk, sharded or not, read through a fresh handle."""
    chunks = (rows, *values.shape[1:])
    config = {"write_empty_chunks": True}
    zarr.create_array(path, data=values, chunks=chunks, config=config, **options)
    return zarr.open_array(path, mode="r")


@parametrize_with_checks([ORFFRegressor(kernels.Gaussian(3.0), 64, ridge=1e-6)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ORFFRegressor()])
def test_scikit_learns_checks_of_the_defaults(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ORFFRegressor(kernels.Gaussian(3.0), 64, ridge=[1e-4, 1e-2], cv=3)])
def test_scikit_learns_checks_with_folds(estimator, check):
    check(estimator)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.config()["type"])
def test_is_the_minimum_of_the_objective(kernel, intercept, standardize):
    """A dense twin: the features of every output stacked, normal equations, Minh's objective (1/l)."""
    X, Y = field(90)
    ridge = 1e-3
    fitted = ORFFRegressor(kernel, 40, ridge=ridge, intercept=intercept, standardize=standardize).fit(X, Y)
    model = fitted.model_
    F, scale = model.feature_map.transform(X), model.target_scale
    Phi = np.einsum("na,arp->npar", F, model.weights).reshape(len(X) * 2, -1)
    ones = np.tile(np.eye(2), (len(X), 1)) if intercept else np.empty((len(X) * 2, 0))
    full, penalty = np.hstack([Phi, ones]), np.zeros(Phi.shape[1] + ones.shape[1])
    penalty[: Phi.shape[1]] = len(X) * ridge
    h = np.linalg.solve(full.T @ full + np.diag(penalty), full.T @ (Y / scale).ravel())
    assert near(fitted.predict(X), (full @ h).reshape(-1, 2) * scale)
    if standardize:
        assert (np.ptp(scale) == 0) == kernel.vector_field
        assert (np.ptp(model.feature_map.scale) == 0) == kernel.vector_field
        assert near(np.sqrt(np.mean(scale**2)), np.sqrt(np.mean(Y.var(axis=0))))
    else:
        assert np.all(scale == 1) and np.all(model.feature_map.scale == 1)


@pytest.mark.parametrize("kernel", [COUPLED, HELMHOLTZ], ids=["decomposable", "helmholtz"])
def test_tends_to_exact_kernel_ridge(kernel):
    """The mean over seeds is within its own standard errors, and the spread falls as 1/sqrt(D)."""
    X, Y = field(60)
    at, ridge = field(20, seed=1)[0], 1e-2
    exact = ExactRidge.fit(kernel, X, Y, ridge=ridge).predict(at)
    sizes = {}
    for m in (64, 512):
        errors = [
            ORFFRegressor(kernel, m, ridge=ridge, random_state=s, sampler=Orthogonal()).fit(X, Y).predict(at) - exact
            for s in range(8)
        ]
        sizes[m] = np.sqrt(np.mean(np.square(errors)))
    assert sizes[512] < 0.1 and sizes[512] < sizes[64] / 1.7  # sqrt(8) = 2.8, less what 8 seeds leave open


def test_ridge_is_that_of_kernel_ridge_over_rows():
    """lambda = l ridge: every row given twice is the same fit, at the same ridge."""
    X, Y = field(50)
    once, twice = (
        ORFFRegressor(COUPLED, 64, ridge=1e-3, sampler=Orthogonal()).fit(np.tile(X, (k, 1)), np.tile(Y, (k, 1)))
        for k in (1, 2)
    )
    twice_center = ORFFRegressor(COUPLED, 64, ridge=1e-3, sampler=Orthogonal()).fit(
        np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0)
    )
    assert near(once.predict(X), twice.predict(X)) and near(once.predict(X), twice_center.predict(X))


def test_default_kernel_is_gaussian_of_most_evidence_and_of_the_median_distance_where_targets_say_nothing():
    X, Y = field(300)
    estimator = ORFFRegressor(n_features=64, ridge=1e-6, sampler=Orthogonal())
    model, nothing = estimator.fit(X + 1e6, Y).model_, clone(estimator).fit(X + 1e6, np.ones(300)).model_
    scaled = X / X.std(axis=0)
    distances = np.linalg.norm(scaled[:, None] - scaled[None], axis=-1)[np.triu_indices(300, 1)]
    np.testing.assert_allclose(nothing.kernel.scalar.lengthscale, np.median(distances), rtol=1e-6)
    tuned = tune_lengthscales(
        kernels.Decomposable(kernels.Gaussian(1.0)), scaled, Y, each=True, rows=QUICK_ROWS, n_features=QUICK
    )
    np.testing.assert_allclose(model.kernel.scalar.lengthscale, tuned.lengthscale, rtol=1e-3)
    assert np.array_equal(model.kernel.matrix, np.eye(2))
    assert model.sampler == frequencies.Orthogonal().config()
    scalar = ORFFRegressor(GAUSSIAN, 64, sampler=Orthogonal()).fit(X, Y)
    assert near(
        scalar.predict(X), ORFFRegressor(kernels.Decomposable(GAUSSIAN), 64, sampler=Orthogonal()).fit(X, Y).predict(X)
    )


def test_a_list_of_ridges_is_the_best_of_single_fits():
    X, Y = field(200)
    ridges = [1e-8, 1e-3, 1e-1, 10.0]
    listed = ORFFRegressor(COUPLED, 64, ridge=ridges, cv=None, sampler=Orthogonal()).fit(X, Y)
    assert listed.gcv_.shape == (4,) and listed.ridge_ == ridges[int(np.argmin(listed.gcv_))]
    assert near(
        listed.predict(X), ORFFRegressor(COUPLED, 64, ridge=listed.ridge_, sampler=Orthogonal()).fit(X, Y).predict(X)
    )

    folded = clone(listed).set_params(cv=4).fit(X, Y)
    fold_of = dealt(200, 4)
    errors = []
    for ridge in ridges:
        held = [
            ORFFRegressor(COUPLED, 64, ridge=ridge, sampler=Orthogonal()).fit(X[fold_of != k], Y[fold_of != k])
            for k in range(4)
        ]
        squares = [(fit.predict(X[fold_of == k]) - Y[fold_of == k]) ** 2 for k, fit in enumerate(held)]
        errors.append(np.concatenate(squares).mean())
    assert np.allclose(folded.cv_errors_, errors, rtol=1e-6)
    assert folded.ridge_ == ridges[int(np.argmin(errors))] and not hasattr(folded, "gcv_")
    assert near(
        folded.predict(X), ORFFRegressor(COUPLED, 64, ridge=folded.ridge_, sampler=Orthogonal()).fit(X, Y).predict(X)
    )
    refit = folded.set_params(cv=None, ridge=1e-3).fit(X, Y)
    assert not hasattr(refit, "gcv_") and not hasattr(refit, "cv_errors_") and refit.ridge_ == 1e-3


def dealt(n: int, count: int) -> np.ndarray:
    from dorff.passes import FoldRule

    return FoldRule(count, by_rows=True, seed=0).of_rows(np.arange(n))


def test_the_sample_depends_on_the_number_of_rows_alone():
    X, Y = np.arange(6000.0).reshape(3000, 2), np.arange(3000.0)[:, None]
    expected = sample(X, Y)
    assert expected[0].shape == (1024, 2) and expected[0][-1, 1] == 5999.0
    assert np.array_equal(expected[0][:, 0], 2 * expected[1][:, 0])
    assert len(np.unique(expected[1])) == 1024
    for found, wanted in zip(sample(da.from_array(X, (700, 1)), da.from_array(Y, (700, 1))), expected, strict=True):
        assert np.array_equal(found, wanted)
    assert len(sample(X[:1024], Y[:1024])[0]) == 1024


# --- kinds of input ---------------------------------------------------------------------------------------


def kinds(X: np.ndarray, Y: np.ndarray, folder: Path) -> dict[str, tuple[object, object]]:
    """The same rows as every kind of array; chunks of X and Y differ along rows, X's also along columns."""
    stored = in_zarr(folder / "x", X, 256), in_zarr(folder / "y", Y, 1500)
    sharded = in_zarr(folder / "group" / "xs", X, 64, shards=(640, X.shape[1])), in_zarr(folder / "ys", Y, 100)
    lazy = da.from_array(X, chunks=(700, 1)), da.from_array(Y, chunks=(451, 1))
    return {
        "lists": (X.tolist(), Y.tolist()),
        "fortran": (np.asfortranarray(X), np.asfortranarray(Y)),
        "pandas": (pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y)),
        "zarr": stored,
        "zarr shards": sharded,
        "zarr v2": (in_zarr(folder / "x2", X, 333, zarr_format=2), stored[1]),
        "zarr in memory": (zarr.array(X), zarr.array(Y)),
        "zarr and numpy": (stored[0], Y),
        "numpy and zarr": (X, stored[1]),
        "dask": lazy,
        "dask and numpy": (lazy[0], Y),
        "numpy and dask": (X, lazy[1]),
        "dask and zarr": (lazy[0], stored[1]),
        "zarr and dask": (stored[0], lazy[1]),
        "xarray": (xr.DataArray(X, dims=["time", "in"]), xr.DataArray(Y, dims=["time", "out"])),
        "xarray of dask": (xr.DataArray(lazy[0], dims=["time", "in"]), xr.DataArray(lazy[1], dims=["time", "out"])),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": GAUSSIAN, "standardize": True},
        *slow({}, {"kernel": GAUSSIAN, "ridge": [1e-4, 1e-2], "cv": 3}, {"kernel": HELMHOLTZ}),
    ],
)
def test_every_kind_of_input_agrees_with_numpy(tmp_path, options):
    X, Y = field(3000)
    estimator = ORFFRegressor(n_features=32, **{"ridge": 1e-4, **options})
    expected = estimator.fit(X, Y)
    predicted, score = expected.predict(X), expected.score(X, Y)
    for name, (x, y) in kinds(X, Y, tmp_path).items():
        fitted = clone(estimator).fit(x, y)
        assert fitted.n_features_in_ == 2 and hasattr(fitted, "feature_names_in_") == (name == "pandas"), name
        assert near(fitted.model_.coefficients, expected.model_.coefficients), name
        found = fitted.predict(x)
        is_dask = isinstance(x, da.Array) or name == "xarray of dask"
        assert isinstance(found, da.Array if is_dask else np.ndarray), name
        assert found.shape == (3000, 2) and near(np.asarray(found), predicted), name
        assert fitted.score(x, y) == pytest.approx(score, abs=1e-9), name


def test_one_target_is_one_dimensional(tmp_path):
    X, Y = field(1100)
    y = Y[:, 0]
    expected = ORFFRegressor(GAUSSIAN, 32).fit(X, y).predict(X)
    assert expected.shape == (1100,)
    for x, t in (
        (in_zarr(tmp_path / "x", X, 256), in_zarr(tmp_path / "y", y, 300)),
        (da.from_array(X, chunks=(500, 2)), da.from_array(y, chunks=400)),
        (xr.DataArray(X), xr.DataArray(y)),
        (pd.DataFrame(X), pd.Series(y)),
    ):
        fitted = ORFFRegressor(GAUSSIAN, 32).fit(x, t)
        found = fitted.predict(x)
        assert found.shape == (1100,) and near(np.asarray(found), expected)
        assert fitted.score(x, t) == pytest.approx(fitted.score(X, y), abs=1e-9)
        assert fitted.predict(X[:3]).shape == (3,)
    assert ORFFRegressor(GAUSSIAN, 32).fit(X, Y[:, :1]).predict(X).shape == (1100, 1)


def test_packed_values_are_unpacked(tmp_path):
    """CF's scale and offset count, as in `dorff fit`."""
    X, Y = field(200)
    packed = zarr.create_array(tmp_path / "y", data=np.round(Y * 1000).astype("i4"), chunks=(64, 2))
    packed.attrs["scale_factor"] = 0.001
    a = ORFFRegressor(GAUSSIAN, 16).fit(in_zarr(tmp_path / "x", X, 64), zarr.open_array(tmp_path / "y"))
    assert near(a.predict(X), ORFFRegressor(GAUSSIAN, 16).fit(X, np.round(Y * 1000) * 0.001).predict(X))


@pytest.mark.parametrize("shards", [None, (400, 2)])
def test_a_missing_chunk_is_refused(tmp_path, shards):
    X, Y = field(1000)
    whole = in_zarr(tmp_path / "x", X, 100, shards=shards)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(whole, Y)
    (tmp_path / "x" / "c" / "2" / "0").unlink()
    row = 250 if shards is None else 850
    assert np.all(whole[row] == 0) and not np.all(X[row] == 0)  # Zarr's own answer
    for wrong in (lambda: ORFFRegressor(GAUSSIAN, 16).fit(whole, Y), lambda: fitted.predict(whole)):
        with pytest.raises(InputError, match=r"array x, chunk c/2/0 is missing"):
            wrong()
    with pytest.raises(InputError, match="is missing"):
        ORFFRegressor(GAUSSIAN, 16).fit(X, whole)
    with pytest.raises(InputError, match="is missing"):
        ORFFRegressor(GAUSSIAN, 16).fit(Y, Y).score(Y, whole)


def test_a_missing_inner_chunk_is_refused(tmp_path):
    """A shard that is there, without one of its chunks: zeros, which Zarr leaves out unless told not to."""
    X, Y = field(1000)
    X[200:300] = 0.0
    zarr.create_array(tmp_path / "x", data=X, chunks=(100, 2), shards=(500, 2))
    with pytest.raises(InputError, match=r"chunk c/0/0\[2,0\] is missing"):
        ORFFRegressor(GAUSSIAN, 16).fit(zarr.open_array(tmp_path / "x"), Y)


def test_other_zarr_stores_are_refused(tmp_path):
    X, Y = field(50)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        array = zarr.create_array(store, data=X)
        with pytest.raises(InputError, match=r"X is a Zarr array in a ZipStore.*copy it to a local folder"):
            ORFFRegressor(GAUSSIAN, 16).fit(array, Y)


def test_zarr_is_read_in_blocks(tmp_path):
    """Peak memory of NumPy's own allocations stays far below the array, the targets being one chunk."""
    import tracemalloc

    rng = np.random.default_rng(0)
    X = in_zarr(tmp_path / "x", rng.standard_normal((60_000, 32)), 1024)
    y = in_zarr(tmp_path / "y", rng.standard_normal(60_000), 60_000)
    ORFFRegressor(GAUSSIAN, 8, cv=None, sampler=Orthogonal()).fit(X, y)
    tracemalloc.start()
    ORFFRegressor(GAUSSIAN, 8, cv=None, sampler=Orthogonal()).fit(X, y).predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * X.nbytes


# --- Dask ---------------------------------------------------------------------------------------------------


def bits(estimator: ORFFRegressor) -> bytes:
    return estimator.model_.coefficients.tobytes() + estimator.model_.intercept.tobytes()


@pytest.mark.process
def test_dask_bits_depend_on_the_chunks_alone():
    X, Y = field(5000)
    x, y = da.from_array(X, chunks=(700, 2)), da.from_array(Y, chunks=(451, 2))
    estimator = ORFFRegressor(COUPLED, 128, ridge=[1e-6, 1e-4], cv=3)
    threads = blas_threads()
    found = {}
    for scheduler, workers in (("synchronous", 1), ("threads", 1), ("threads", 4)):
        with dask.config.set(scheduler=scheduler, num_workers=workers):
            fitted = clone(estimator).fit(x, y)
            found[scheduler, workers] = bits(fitted)
    pages = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}  # no port of others'
    quiet = {"processes": False, **pages}
    with Client(n_workers=1, threads_per_worker=3, **quiet):
        found["worker's threads", 3] = bits(clone(estimator).fit(x, y))
    assert blas_threads() == threads
    options = {"n_workers": 2, "threads_per_worker": 1, **pages}
    with LocalCluster(**options) as cluster, Client(cluster):
        fitted = clone(estimator).fit(x, y)
        found["processes", 2] = bits(fitted)
        assert near(fitted.predict(x).compute(), fitted.predict(X))
    assert len(set(found.values())) == 1
    assert near(fitted.predict(X), clone(estimator).fit(X, Y).predict(X))


def blas_threads() -> list[int]:
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def test_fits_in_threads_leave_blas_as_it_was():
    X, Y = field(300)
    before, alone = blas_threads(), ORFFRegressor(COUPLED, 64, ridge=1e-6).fit(X, Y).predict(X)
    with ThreadPoolExecutor(max_workers=4) as pool:
        for found in pool.map(lambda _: ORFFRegressor(COUPLED, 64, ridge=1e-6).fit(X, Y).predict(X), range(60)):
            assert near(found, alone)
    assert blas_threads() == before
    with one_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_dask_predictions_are_lazy():
    X, Y = field(400)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(X, Y)
    ran = []

    def seen(block: np.ndarray) -> np.ndarray:
        ran.append(len(block))
        return block

    x = da.from_array(X, chunks=(100, 1)).map_blocks(seen, meta=np.empty((0, 0)))
    lazy = fitted.predict(x)
    assert ran == [] and lazy.chunks == ((100,) * 4, (2,)) and lazy.dtype == np.float64
    assert near(lazy.compute(scheduler="synchronous"), fitted.predict(X)) and len(ran) == 8
    some = fitted.predict(da.from_array(X, chunks=(100, 2))[da.from_array(X[:, 0] > 0, chunks=100)])
    assert np.isnan(some.shape[0]) and near(some.compute(), fitted.predict(X[X[:, 0] > 0]))


def test_empty_chunks_count_for_nothing():
    X, Y = field(300)
    x, y = da.from_array(X, chunks=((0, 100, 0, 0, 200), 2)), da.from_array(Y, chunks=((300,), 2))
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-6, cv=2).fit(x, y)
    assert near(fitted.predict(X), ORFFRegressor(GAUSSIAN, 16, ridge=1e-6, cv=2).fit(X, Y).predict(X))


@pytest.mark.parametrize(("n", "kernel"), [(400, None), (6000, GAUSSIAN)])
def test_a_chunk_shared_by_inputs_and_targets_is_made_once(n, kernel):
    X, Y = field(n)
    rows, made = n // 4, []

    def make(block_id: tuple[int, ...] | None = None) -> np.ndarray:
        made.append(block_id)
        return np.hstack([X, Y])[rows * block_id[0] : rows * (block_id[0] + 1)]

    Z = da.map_blocks(make, chunks=((rows,) * 4, (4,)), dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="synchronous"):
        fitted = ORFFRegressor(kernel, 16).fit(Z[:, :2], Z[:, 2:])
    assert sorted(made) == sorted([(i, 0) for i in range(4)] * 2)  # once for all samples, once for the pass
    # An optimiser's steps carry rounding on.
    np.testing.assert_allclose(fitted.predict(X), ORFFRegressor(kernel, 16).fit(X, Y).predict(X), atol=1e-5)


# --- targets observed through C, or in part --------------------------------------------------------------------


def dense(fitted: ORFFRegressor, X: np.ndarray, Y: np.ndarray, C: np.ndarray, at: np.ndarray) -> np.ndarray:
    """f (k, p) at `at`: the least of 1/l sum over what was observed of |y - C f|^2 + ridge |f|^2, all written out."""
    model, (n, q) = fitted.model_, Y.shape
    scale = model.target_scale[0]

    def columns(points: np.ndarray) -> np.ndarray:
        Phi = np.einsum("na,arp->npar", model.feature_map.transform(points), model.weights)
        ones = np.broadcast_to(np.eye(C.shape[1]), (len(points), C.shape[1], C.shape[1]))
        parts = (Phi.reshape(len(points), C.shape[1], -1), *((ones,) if fitted.intercept else ()))
        return np.concatenate(parts, axis=2)

    there = ~np.isnan(Y).ravel()
    A = np.einsum("qp,npk->nqk", C, columns(X)).reshape(n * q, -1)[there]
    k = model.coefficients.size
    penalty = np.zeros((k, A.shape[1]))
    penalty[:, :k] = np.sqrt((~np.isnan(Y).all(axis=1)).sum() * fitted.ridge_) * np.eye(k)
    h = np.linalg.lstsq(np.vstack([A, penalty]), np.concatenate([Y.ravel()[there] / scale, np.zeros(k)]), rcond=None)[0]
    return columns(at) @ h * scale


SUMS = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]])
OBSERVED = {"all": None, "two sums": SUMS[1:], "three sums of two": SUMS, "one sum of two": SUMS[2:]}


@pytest.mark.parametrize(
    "kernel", [COUPLED, kernels.Decomposable(GAUSSIAN), HELMHOLTZ], ids=["matrix", "identity", "field"]
)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("observe", OBSERVED.values(), ids=OBSERVED)
def test_targets_observed_through_a_matrix_and_in_part(kernel, partial, observe):
    X, F = field(90)
    C = np.eye(2) if observe is None else observe
    Y = F @ C.T
    if partial:
        Y = np.where(np.random.default_rng(1).random(Y.shape) < 0.3, np.nan, Y)
    estimator = ORFFRegressor(kernel, 32, ridge=1e-3, observe=observe, missing="partial" if partial else "refuse")
    estimator.set_params(intercept=len(C) > 1)  # of one sum of two outputs the intercept is open
    if partial and len(C) > 2:
        with pytest.raises(InputError, match="linearly independent"):
            estimator.fit(X, Y)
        return
    fitted = estimator.fit(X, Y)
    assert np.allclose(fitted.predict(X[:20]), dense(fitted, X, Y, C, X[:20]), atol=1e-6)
    assert fitted.model_.info["report"]["rows_used"] == (~np.isnan(Y).all(axis=1)).sum()
    if partial:
        with pytest.raises(ValueError, match="NaN"):
            clone(fitted).set_params(missing="refuse").fit(X, Y)


def test_what_is_observed_is_scored():
    X, F = field(300)
    Y = F @ SUMS.T
    fitted = ORFFRegressor(COUPLED, 64, observe=SUMS, standardize=True, ridge=1e-6).fit(X, Y)
    assert near(fitted.predict(X), F) is False and np.abs(fitted.predict(X) - F).mean() < 0.1
    assert fitted.score(X, Y) == pytest.approx(r2_score(Y, fitted.predict(X) @ SUMS.T)) and fitted.score(X, Y) > 0.98
    one = ORFFRegressor(GAUSSIAN, 64, observe=[[2.0]], ridge=1e-6).fit(X, 2.0 * F[:, 0])
    assert near(one.predict(X), ORFFRegressor(GAUSSIAN, 64, ridge=1e-6 / 4).fit(X, F[:, 0]).predict(X))
    gaps = F.copy()
    gaps[::3, 0], gaps[::7, 1] = np.nan, np.nan
    part = ORFFRegressor(COUPLED, 64, missing="partial", cv=2, ridge=[1e-6, 1e-2]).fit(X, gaps)
    there, found = ~np.isnan(gaps), part.predict(X)
    separate = [r2_score(gaps[there[:, j], j], found[there[:, j], j]) for j in range(2)]
    assert part.score(X, gaps) == pytest.approx(np.mean(separate)) and min(separate) > 0.95
    with pytest.raises(InputError, match="no target that was observed in two rows"):
        part.score(X[:2], gaps[:2] * [[np.nan], [np.nan]])


def test_every_kind_of_input_may_miss_targets(tmp_path):
    X, Y = field(1500)
    Y[::5, 0], Y[100:130] = np.nan, np.nan
    estimator = ORFFRegressor(COUPLED, 24, ridge=[1e-4, 1e-2], cv=2, missing="partial")
    expected = estimator.fit(X, Y)
    assert expected.model_.info["report"]["rows_used"] == 1470
    lazy = da.from_array(X, chunks=(400, 2)), da.from_array(Y, chunks=(300, 2))
    stored = in_zarr(tmp_path / "x", X, 256), in_zarr(tmp_path / "y", Y, 700)
    for x, y in (lazy, stored, (pd.DataFrame(X), pd.DataFrame(Y)), (X, stored[1])):
        fitted = clone(estimator).fit(x, y)
        assert near(np.asarray(fitted.predict(X)), expected.predict(X))
        assert fitted.score(x, y) == pytest.approx(expected.score(X, Y), abs=1e-9)
    Y[7, 1] = np.inf
    for x, y in ((X, Y), (lazy[0], da.from_array(Y, chunks=300)), (X, in_zarr(tmp_path / "inf", Y, 700))):
        with pytest.raises(
            ValueError, match=r"y, row 7, column 1: expected a finite number, got inf|contains infinity"
        ):
            clone(estimator).fit(x, y)
    with pytest.raises(InputError, match="no row with a target that was observed"):
        clone(estimator).fit(X, np.full_like(Y, np.nan))
    many = np.where(np.random.default_rng(0).random((1500, 5)) < 0.5, np.nan, 1.0)
    with pytest.raises(InputError, match="at most 8"):
        ORFFRegressor(GAUSSIAN, 8, missing="partial").fit(X, many)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_features": 1}, "n_features must be a whole number of 2 or more, or 'auto', got 1"),
        ({"n_features": 0}, "n_features must be a whole number of 2 or more, or 'auto', got 0"),
        ({"n_features": 8.0}, "n_features must be a whole number of 2 or more, or 'auto', got 8.0"),
        ({"ridge": -1.0}, "ridge must be a number >= 0, a list of them, or 'auto', not -1.0"),
        ({"ridge": []}, "ridge must be a number"),
        ({"ridge": [1.0, np.nan]}, "ridge must be a number"),
        ({"ridge": "gcv"}, "ridge must be a number.*not 'gcv'"),
        ({"cv": 1}, "cv must be 'auto', None or a number of folds of 2 or more, not 1"),
        ({"cv": 2.5}, "cv must be 'auto', None or a number of folds of 2 or more, not 2.5"),
        ({"kernel": "rbf"}, "kernel must be one of dorff.kernels, not 'rbf'"),
        ({"sampler": "orthogonal"}, "sampler must be one of dorff.frequencies, such as .*, not 'orthogonal'"),
        ({"random_state": -3}, "random_state must be 0 or more, not -3"),
        ({"missing": "drop"}, "missing must be 'refuse' or 'partial', not 'drop'"),
        ({"observe": "all"}, "observe must be a matrix of numbers, not 'all'"),
        ({"observe": np.eye(3)}, r"a row for each of the 2 targets; got shape \(3, 3\)"),
        ({"observe": np.zeros((2, 2))}, "observe must be finite, not all zero"),
        ({"observe": [[1.0, np.nan], [0.0, 1.0]]}, "observe must be finite"),
        ({"observe": np.eye(2), "kernel": KERNELS[1]}, "covariance"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_fit(options, message):
    estimator = ORFFRegressor(**options)
    with pytest.raises(InputError, match=message):
        estimator.fit(*field(20))


def test_a_vector_field_needs_as_many_targets_as_inputs(tmp_path):
    X, Y = field(40, d=3)
    for x in (X, in_zarr(tmp_path / "x", X, 10), da.from_array(X, chunks=10)):
        with pytest.raises(InputError, match="d = 3 inputs and p = 2 targets"):
            ORFFRegressor(kernels.CurlFree(GAUSSIAN), 16).fit(x, Y)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    X, Y = field(500)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(X, Y)
    bad = X.copy()
    bad[321, 1] = np.nan
    stored, lazy = in_zarr(tmp_path / "x", bad, 100), da.from_array(bad, chunks=100)
    for x in (stored, lazy):
        with pytest.raises(InputError, match="X, row 321, column 1: expected a finite number, got nan"):
            ORFFRegressor(GAUSSIAN, 16).fit(x, Y)
    with pytest.raises(InputError, match="y, row 321, column 1"):
        ORFFRegressor(GAUSSIAN, 16).fit(X, lazy)
    with pytest.raises(InputError, match="X, row 321, column 1"):
        fitted.predict(stored)
    with pytest.raises(InputError, match="X, chunk 3, row 21, column 1"):
        fitted.predict(lazy).compute()
    with pytest.raises(InputError, match="y, row 321"):
        fitted.score(X, lazy)
    for x in (bad, bad.tolist()):
        with pytest.raises(ValueError, match="contains NaN"):
            fitted.predict(x)


def test_shapes_that_do_not_fit_are_refused(tmp_path):
    X, Y = field(60)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(X, Y)
    lazy, stored = da.from_array(X, chunks=20), in_zarr(tmp_path / "x", X, 20)
    for x in (lazy, stored, xr.DataArray(lazy)):
        with pytest.raises(InputError, match="X has 60 rows and y has 59"):
            ORFFRegressor(GAUSSIAN, 16).fit(x, Y[:59])
        with pytest.raises(ValueError, match="requires y to be passed"):
            ORFFRegressor(GAUSSIAN, 16).fit(x, None)
    for x in (
        np.hstack([X, X]),
        da.from_array(np.hstack([X, X]), chunks=20),
        in_zarr(tmp_path / "x4", np.ones((9, 4)), 3),
    ):
        with pytest.raises(ValueError, match="X has 4 features, but ORFFRegressor is expecting 2 features"):
            fitted.predict(x)
    for x in (lazy[:, 0], in_zarr(tmp_path / "flat", X[:, 0], 20)):
        with pytest.raises(InputError, match=r"X must be .rows, columns., but has 1 dimensions"):
            fitted.predict(x)
    with pytest.raises(InputError, match=r"y must be .* but has 3 dimensions"):
        fitted.fit(X, da.ones((60, 2, 2)))
    with pytest.raises(InputError, match="X must hold real numbers, not complex128"):
        fitted.fit(lazy.astype(complex), Y)
    with pytest.raises(InputError, match=r"chunks of unknown length; call X.compute_chunk_sizes"):
        fitted.fit(lazy[lazy[:, 0] > 0], lazy)
    with pytest.raises(InputError, match="y is a sparse matrix"):
        fitted.fit(X, scipy.sparse.csr_array(Y))
    with pytest.raises(InputError, match=r"has no array|wanted 1 or 2 dimensions"):
        fitted.fit(in_zarr(tmp_path / "cube", np.ones((4, 4, 4)), 2), Y)


def test_other_containers_and_huge_targets_are_refused(tmp_path):
    X, Y = field(40)
    group = zarr.open_group(tmp_path / "g")
    group.create_array("x", data=X)
    with pytest.raises(InputError, match="X is a Zarr group; give one of its arrays"):
        ORFFRegressor(GAUSSIAN, 16).fit(group, Y)
    with pytest.raises(InputError, match=r"X is a lazy data frame; give its .collect\(\)"):
        ORFFRegressor(GAUSSIAN, 16).fit(pl.LazyFrame(X), Y)
    with pytest.raises(InputError, match="overflow float64; rescale the targets"), np.errstate(over="ignore"):
        ORFFRegressor(GAUSSIAN, 16).fit(X, Y * 1e200)


def test_what_is_not_fitted_is_refused():
    X, _ = field(30)
    with pytest.raises(NotFittedError):
        ORFFRegressor().predict(X)


# --- life among other estimators ------------------------------------------------------------------------------


def test_clone_pickle_and_publish(tmp_path):
    X, Y = field(100)
    estimator = ORFFRegressor(HELMHOLTZ, 32, sampler=frequencies.IID(), ridge=[1e-3, 1e-2], random_state=3)
    before = estimator.get_params()
    fitted = estimator.fit(X, Y)
    assert all(estimator.get_params()[name] is value for name, value in before.items())
    assert bits(clone(fitted).fit(X, Y)) == bits(fitted)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    save_model(fitted.model_, tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict(X), fitted.predict(X))
    assert fitted.model_.seed == 3 and fitted.model_.info["report"]["rows_used"] == 100
    assert fitted.condition_ > 1 and fitted.rung_ == "cholesky"


def test_random_state():
    X, Y = field(50)
    omega = [
        ORFFRegressor(n_features=16, random_state=s, sampler=Orthogonal()).fit(X, Y).model_.frequencies
        for s in (0, 0, 1, None, None)
    ]
    assert np.array_equal(omega[0], omega[1])
    assert not any(np.array_equal(a, b) for i, a in enumerate(omega[1:]) for b in omega[i + 2 :])
    states = [
        ORFFRegressor(n_features=16, random_state=np.random.RandomState(5), sampler=Orthogonal()).fit(X, Y)
        for _ in range(2)
    ]
    assert bits(states[0]) == bits(states[1])


def test_grid_search_and_pipeline():
    X, Y = field(200)
    grid = {"orffregressor__ridge": [1e-4, 1e2], "orffregressor__kernel": [GAUSSIAN, HELMHOLTZ]}
    search = GridSearchCV(make_pipeline(StandardScaler(), ORFFRegressor(n_features=64)), grid, cv=3).fit(X, Y)
    assert search.best_params_["orffregressor__ridge"] == 1e-4 and search.best_score_ > 0.95
    assert search.predict(X).shape == (200, 2)


def test_a_small_fit_is_quick():
    """Under 100 ms at n = 1000, m = 512 once compiled; the best of a few, with room for a busy machine."""
    X, Y = field(1000)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        ORFFRegressor(GAUSSIAN, 512, ridge=1e-6, sampler=Orthogonal()).fit(X, Y)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.3


def test_refit_after_the_store_is_gone(tmp_path):
    """A fitted estimator holds nothing of its data."""
    X, Y = field(100)
    fitted = ORFFRegressor(GAUSSIAN, 16).fit(in_zarr(tmp_path / "x", X, 50), Y)
    shutil.rmtree(tmp_path / "x")
    assert fitted.predict(X).shape == (100, 2)
    assert fitted.fit(X[:, :1], Y).n_features_in_ == 1
