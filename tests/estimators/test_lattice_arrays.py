"""Estimators on a lattice: by sums of exponentials as by Gram matrices of the same features."""

import pickle
import warnings
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.linalg import LinAlgWarning
from sklearn.base import clone
from sklearn.model_selection import ShuffleSplit

from dorff import ORFFClassifier, ORFFRegressor, RandomFeatures, frequencies, kernels
from dorff.errors import InputError, QualityWarning
from dorff.estimators import array_sums
from dorff.moments import LatticeMoments

N = 900
GAUSS = kernels.Gaussian(0.4)
FIELD = kernels.DivergenceFree(GAUSS)
LATTICE = frequencies.Lattice(1e-3)


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of all sums of exponentials that were written out; small parts and blocks."""
    rows, on = list[int](), LatticeMoments.on
    monkeypatch.setattr(LatticeMoments, "on", lambda sums, *modes: rows.append(sums.n) or on(sums, *modes))
    for name, value in {"FEW_ROWS": 20, "PART_ROWS": 100, "LATTICE_ROWS": 300, "LATTICE_NUMBERS": 64}.items():
        monkeypatch.setattr(array_sums, name, value)
    return rows


def flow(n: int = N, seed: int = 0, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, [1.0, 2.0], (n, 2))
    X[:2] = [[0, 0], [1, 2]]
    a, b = 3 * X[:, 0], 2 * X[:, 1]
    Y = np.column_stack([2 * np.cos(a) * np.cos(b), 3 * np.sin(a) * np.sin(b)])
    return X, Y + noise * rng.standard_normal((n, 2))


@pytest.mark.parametrize("lengthscale", [100.0, 8.0])
def test_a_length_scale_beyond_the_period_is_not_said_to_be_too_short(lengthscale: float) -> None:
    X = np.random.default_rng(0).uniform(0, 10, (400, 2))
    sampler = frequencies.Lattice(1e-3, periods=(6.3, 6.3))
    fitted = ORFFRegressor(kernels.Gaussian(lengthscale), n_features=50, sampler=sampler, ridge=[1e-6, 1e-3, 1.0])
    with pytest.warns(
        QualityWarning, match="hardly varies from row to row, or within a period.* list kernels of short"
    ):
        fitted.fit(X, np.sin(X[:, :1]))


@pytest.mark.parametrize("periods", [(3.0,), (3.0, None, None), ()])
@pytest.mark.parametrize("kind", ["regressor", "views", "features"])
def test_periods_of_another_number_of_inputs_are_refused(kind: str, periods: tuple[float | None, ...]) -> None:
    X, Y = flow(50)
    sampler, each = frequencies.Lattice(1e-3, periods=periods), kernels.Decomposable(GAUSS)
    made: Any = RandomFeatures(GAUSS, 50, sampler=sampler)
    if kind != "features":
        kernel = kernels.MultiView([((0,), each), ((1,), each)]) if kind == "views" else GAUSS
        made = ORFFRegressor(kernel, n_features=50, sampler=sampler)
    with pytest.raises(InputError, match=f"periods: wanted .* for each of the 2 inputs, got {len(periods)}; correct"):
        made.fit(X, Y)


def test_rows_of_any_period_are_inside() -> None:
    """Of estimators too, with a name for a kernel, whose length-scale is found in one period; deviations as well."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 2400, N), rng.uniform(0, 1, N)])
    Y = np.sin(2 * np.pi * X[:, 0] / 24) * (1 + X[:, 1]) + 0.05 * rng.standard_normal(N)
    sampler = frequencies.Lattice(1e-3, periods=[24, None])
    for kernel in ("gaussian", kernels.Gaussian([6.0, 0.8])):
        fitted = ORFFRegressor(kernel, n_features=400, sampler=sampler, ridge=1e-4).fit(X, Y)
        assert fitted.score(X, Y) > 0.99, kernel
        at = np.column_stack([np.linspace(-30, 60, 50), np.full(50, 0.5)])
        values = [fitted.predict(at + np.array([turns, 0.0]), return_std=True) for turns in (0.0, 24.0, -2400.0)]
        for each in values[1:]:
            np.testing.assert_allclose(each[0], values[0][0], rtol=0, atol=1e-8)
            np.testing.assert_allclose(each[1], values[0][1], rtol=1e-4)
    assert fitted.partial_fit(X - [5000.0, 0.0], Y) is fitted
    with pytest.raises(InputError, match="outside of the box"):
        fitted.partial_fit(X + np.array([0.0, 9.0]), Y)
    features = RandomFeatures(GAUSS, n_features=60, sampler=sampler).fit(X)
    np.testing.assert_allclose(features.transform(X + np.array([24.0, 0.0])), features.transform(X), rtol=0, atol=1e-9)
    maps = (
        RandomFeatures("gaussian", n_features=60, sampler=sampler, standardize=True).fit(X).feature_map_,
        ORFFRegressor(GAUSS, n_features=60, sampler=sampler, standardize=True).fit(X, Y).model_.feature_map,
    )
    assert all(6.0 < each.scale[0] < 8.0 for each in maps)  # 24 / sqrt(12)


def by_gram(estimator: Any, *rows: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(array_sums, "tight", lambda features: None)
        return clone(estimator).fit(*rows, **options)


def same(one: Any, twin: Any) -> None:
    X, _ = flow(200, seed=9)
    X = np.column_stack([X, np.full((len(X), one.n_features_in_ - 2), 7.0)])
    values = [each.decision_function(X) if hasattr(each, "classes_") else each.predict(X) for each in (one, twin)]
    np.testing.assert_allclose(*values, atol=1e-6 * np.abs(values[1]).max())
    assert one.ridge_ == twin.ridge_ and one.model_.feature_map.m == twin.model_.feature_map.m
    for name in ("gcv_", "log_evidences_", "cv_errors_", "cv_scores_", "manifold_"):
        assert hasattr(one, name) == hasattr(twin, name)
        if hasattr(one, name):
            np.testing.assert_allclose(getattr(one, name), getattr(twin, name), rtol=1e-6)


TRIALS = {"ridge": [1e-6, 1e-4, 1e-2]}
WAYS: dict[str, dict[str, Any]] = {
    "curl-free": {"kernel": kernels.CurlFree(kernels.Matern(1.0, nu=3.5))},
    "gcv": {**TRIALS, "cv": None, "criterion": "gcv"},
    "evidence": {**TRIALS, "criterion": "evidence"},
    "folds": {**TRIALS, "cv": 3},
    "leave one out": {**TRIALS, "criterion": "loo"},
    "splits": {**TRIALS, "cv": ShuffleSplit(2, random_state=0)},
    "auto": {"ridge": "auto"},
    "one length-scale each": {"kernel": kernels.Gaussian([0.3, 0.9])},
    "matrix": {"kernel": kernels.Decomposable(GAUSS, [[2.0, 1.0], [1.0, 2.0]])},
    "no intercept": {"kernel": GAUSS, "intercept": False},
    "standardised": {"standardize": True},
    "missing targets": {"kernel": GAUSS, "missing": "partial", **TRIALS, "cv": 3},
    "observations": {"observe": [[1.0, 1.0], [0.0, 1.0]]},
    "manifold": {"kernel": GAUSS, "manifold": [1e-4, 1e-2], "cv": 3},
    "threads": {"n_jobs": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_is_that_of_gram_sums(way: str, written: list[int]) -> None:
    X, Y = flow()
    w = np.random.default_rng(1).integers(0, 3, N).astype(float)
    if way == "missing targets":
        Y[np.random.default_rng(2).random(Y.shape) < 0.2] = np.nan
    elif way == "manifold":
        Y[60:] = np.nan
    options = {"kernel": FIELD, "n_features": 600, "sampler": LATTICE, "ridge": 1e-5, **WAYS[way]}
    estimator = ORFFRegressor(**options)
    twin = by_gram(estimator, X, Y, w)
    assert not written
    one = clone(estimator).fit(X, Y, w)
    assert sum(written) == np.count_nonzero(np.isfinite(Y).any(axis=1) & (w > 0))
    same(one, twin)
    deviations = [each.predict(X[:50], return_std=True, noise=True)[1] for each in (one, twin)]
    np.testing.assert_allclose(*deviations, rtol=1e-5)


def test_a_constant_input_and_one_of_three_targets() -> None:
    X, Y = flow()
    rows = np.column_stack([X, np.full(N, 7.0)]), np.column_stack([Y, np.sin(X[:, 0])])
    estimator = ORFFRegressor(kernels.CurlFree(GAUSS), 600, sampler=LATTICE, ridge=1e-5)
    same(clone(estimator).fit(*rows), by_gram(estimator, *rows))


@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced"}, {"class_weight": {2: 3.0}, "calibrate": False}])
def test_classes_are_those_of_gram_sums(options: dict[str, Any], written: list[int]) -> None:
    X, Y = flow()
    codes, w = (Y[:, 0] > 0).astype(int) + (Y[:, 1] > 1), np.random.default_rng(1).uniform(0.2, 2.0, N)
    estimator = ORFFClassifier(GAUSS, 600, sampler=LATTICE, ridge=[1e-5, 1e-3], **options)
    one, twin = clone(estimator).fit(X, codes, w), by_gram(estimator, X, codes, w)
    assert sum(written) == N
    same(one, twin)
    if estimator.calibrate:
        np.testing.assert_allclose(one.predict_proba(X), twin.predict_proba(X), atol=1e-6)
    lazy = clone(estimator).fit(da.from_array(X, chunks=(400, 2)), da.from_array(codes, chunks=400), w)
    same(lazy, twin)


def test_every_kind_of_rows_and_any_threads(tmp_path: Any, written: list[int]) -> None:
    X, Y = flow()
    estimator = ORFFRegressor(FIELD, 600, sampler=LATTICE, **TRIALS, cv=3)
    twin = by_gram(estimator, X, Y)
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    stored = [group.create_array(name, data=of, chunks=(70, 2)) for name, of in (("x", X), ("y", Y))]
    bits = []
    for rows in ((X, Y), stored, [da.from_array(of, chunks=(350, 2)) for of in (X, Y)]):
        for jobs in (1, 3):
            one = clone(estimator).set_params(n_jobs=jobs).fit(*rows)
            assert sum(written) == N
            written.clear()
            same(one, twin)
            bits.append(one.model_.coefficients)
    assert all(np.array_equal(*bits[at : at + 2]) for at in (0, 2, 4))


def test_rows_in_parts_and_pickles_go_on(written: list[int]) -> None:
    """From partial_fit, and from fit; of a box that is that of the first rows."""
    X, Y = flow()
    estimator = ORFFRegressor(FIELD, 600, sampler=LATTICE, ridge=1e-5)
    twin = by_gram(estimator, X, Y)
    for first in ("fit", "partial_fit"):
        stream = getattr(clone(estimator), first)(X[:500], Y[:500])
        stream = pickle.loads(pickle.dumps(stream)).partial_fit(X[500:507], Y[500:507])  # too few
        stream.partial_fit(X[507:], Y[507:])
        assert written == [500, N - 507]
        written.clear()
        same(stream, twin)
        assert clone(stream).get_params()["sampler"] == LATTICE
    with pytest.raises(InputError, match="outside of the box"):
        stream.partial_fit(X + 3.0, Y)


@pytest.mark.parametrize("given", [False, True])
def test_rows_that_come_later_lie_in_the_box_that_is_given(given: bool, written: list[int]) -> None:
    """In the inputs' own units; of rows of which the first ones have another box than all."""
    X, Y = flow()
    X = X * [100.0, 1.0] + [50.0, 0.0]
    first = X[:, 0] < 110.0
    sampler = replace(LATTICE, box=((50, 150), (0, 2)) if given else None)
    estimator = ORFFRegressor(kernels.Gaussian([40.0, 0.4]), 600, sampler=sampler, ridge=1e-5)
    stream = clone(estimator).fit(X[first], Y[first])
    if not given:
        with pytest.raises(InputError, match=r"outside of the box .*\[\[50\.0, 1\d\d\..*give a Lattice\(box="):
            stream.partial_fit(X[~first], Y[~first])
        return
    stream.partial_fit(X[~first], Y[~first])
    assert written == [first.sum(), (~first).sum()]
    own = clone(estimator).fit(X, Y)
    np.testing.assert_allclose(stream.predict(X), own.predict(X), rtol=0, atol=1e-6)
    assert (
        own.model_.feature_map.m == ORFFRegressor(estimator.kernel, 600, sampler=LATTICE).fit(X, Y).model_.feature_map.m
    )
    with pytest.raises(InputError, match="outside of the box"):
        stream.partial_fit(X + np.array([0.1, 0.0]), Y)
    features = RandomFeatures(kernels.Gaussian([40.0, 0.4]), 600, sampler=sampler).fit(X[first])
    F = features.transform(X[:200])
    np.testing.assert_allclose(F @ F.T, kernels.Gaussian([40.0, 0.4]).gram(X[:200], X[:200]), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "box", [(), ((0, 1),), ((1, 0), (0, 1)), ((0, np.nan), (0, 1)), ((0, 1, 2), (0, 1, 2)), 3, "box"]
)
def test_a_box_that_is_none_is_refused(box: Any) -> None:
    with pytest.raises(InputError, match=r"box( must be|: wanted)"):
        ORFFRegressor(FIELD, 600, sampler=frequencies.Lattice(1e-3, box=box)).fit(*flow(50))


@pytest.mark.parametrize("enough", [True, False])
@pytest.mark.parametrize("kind", ["named", "scaled", "features"])
def test_fewer_features_are_told_of_scaled_inputs_with_a_period(kind: str, *, enough: bool) -> None:
    X = np.random.default_rng(0).uniform(0, [1.0, 300.0], (N, 2))
    y = np.sin(2 * np.pi * X[:, 0]) + np.cos(X[:, 1] / 50.0) + 0.05 * np.random.default_rng(1).standard_normal(N)
    sampler, count = frequencies.Lattice(1e-3, periods=(1.0, None)), 800 if enough else 12
    scaled: Any = ORFFRegressor(GAUSS, count, sampler=sampler, ridge=1e-4, standardize=True)
    made = {
        "named": ORFFRegressor(None, count, sampler=sampler, ridge=1e-4),
        "scaled": scaled,
        "features": RandomFeatures(GAUSS, count, sampler=sampler, standardize=True),
    }[kind]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", QualityWarning)
        made.fit(X, y)
    few = [str(one.message) for one in caught if "features may be off" in str(one.message)]
    assert len(few) == (not enough) and all("lattice's 12 features" in one for one in few), few


def test_features_of_rows_outside_of_a_box_are_refused() -> None:
    X, _ = flow()
    narrow = RandomFeatures(GAUSS, 600, sampler=replace(LATTICE, box=((0, 1), (0, 0.1))))
    with pytest.raises(InputError, match=r"outside of the box .*\[0\.0, 0\.1\]\]; give a Lattice\(box="):
        narrow.fit(X)
    turning = replace(LATTICE, box=((0, 1), (0, 0.1)), periods=(None, 0.1))
    RandomFeatures(GAUSS, 600, sampler=turning).fit(X)
    constant = replace(LATTICE, box=((0, 1), (0, 2), (7, 7)))
    assert RandomFeatures(GAUSS, 600, sampler=constant).fit(np.column_stack([X, np.full(N, 7.0)])).feature_map_.d == 3


def test_rows_without_targets_lie_in_the_box_too() -> None:
    X, Y = flow()
    X[0], Y[60:] = [-1.0, 3.0], np.nan
    Y[0] = np.nan
    fitted = ORFFRegressor(GAUSS, 600, sampler=LATTICE, ridge=1e-4, manifold=1e-4, missing="partial").fit(X, Y)
    assert fitted.model_.info["data"] == {"low": X.min(axis=0).tolist(), "high": X.max(axis=0).tolist()}


@pytest.mark.parametrize("kind", ["regressor", "classifier", "features"])
def test_fewer_features_than_the_error_needs_are_warned_of(kind: str) -> None:
    X, Y = flow()
    made: dict[str, Any] = {
        "regressor": ORFFRegressor(FIELD, sampler=LATTICE, ridge=1e-5),
        "classifier": ORFFClassifier(GAUSS, sampler=LATTICE, ridge=1e-5),
        "features": RandomFeatures(GAUSS, sampler=LATTICE),
    }
    rows = (X, Y if kind == "regressor" else Y[:, 0] > 0)
    few = made[kind].set_params(n_features=40)
    with pytest.warns(QualityWarning, match=r"40 features may be off .* takes about \d+; raise n_features") as caught:
        few.fit(*rows)
    assert [one.filename for one in caught if "features may" in str(one.message)] == [__file__]
    clone(few).set_params(n_features=400).fit(*rows)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("ridge", [1e-15, [1e-15, 1e-13], "auto"])
def test_where_digits_are_lost_rows_are_summed_as_before(ridge: Any, written: list[int]) -> None:
    """To the bit; but rows of earlier calls are gone, and that is warned of. About as many rows as features."""
    X, Y = flow(n := 150, noise=0.0)
    rough = kernels.DivergenceFree(kernels.Gaussian(0.15))
    estimator = ORFFRegressor(rough, 600, sampler=LATTICE, ridge=ridge, cv=3 if ridge == "auto" else None)
    one, twin = clone(estimator).fit(X, Y), by_gram(estimator, X, Y)
    assert sum(written) == n and one.ridge_ == twin.ridge_ and one.digits_ == twin.digits_
    assert np.array_equal(one.model_.coefficients, twin.model_.coefficients)
    if ridge == 1e-15:
        written.clear()
        stream = clone(estimator).set_params(ridge=1e-6).partial_fit(X[:100], Y[:100])
        with pytest.warns(LinAlgWarning, match="digits of the fitted values"):
            stream.set_params(ridge=1e-15).partial_fit(X[100:], Y[100:])
        assert stream.model_.info["report"]["rows_used"] == n
        assert written == [100, 50]


def test_what_exponentials_are_not_for_goes_by_gram_sums(written: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Single precision, views, few rows, and lattices of more numbers than a Gram matrix."""
    X, Y = flow()
    ORFFRegressor(GAUSS, 600, sampler=LATTICE, ridge=1e-4, precision="mixed").fit(X, Y)
    views = kernels.MultiView([(1, GAUSS), (1, GAUSS)])
    ORFFRegressor(views, 600, sampler=LATTICE, ridge=1e-4).fit(X, Y)
    of, summed = array_sums.Stream.added, list[int]()
    monkeypatch.setattr(array_sums.Stream, "added", lambda self, X, *more: summed.append(len(X)) or of(self, X, *more))
    with pytest.warns(LinAlgWarning, match="digits of the fitted values"):
        ORFFRegressor(GAUSS, 600, sampler=LATTICE, ridge=1e-15).fit(X[:20], Y[:20])
    assert summed == [20]  # once
    rough = kernels.Gaussian(0.15)
    ORFFRegressor(rough, 600, sampler=LATTICE, ridge=1e-4).fit(X, np.tile(Y, (1, 200)))
    assert not written
    ORFFRegressor(rough, 600, sampler=LATTICE, ridge=1e-4).fit(X, Y)
    assert written == [N]


def test_targets_that_overflow_are_refused() -> None:
    X, Y = flow()
    with pytest.raises(InputError, match="so large that their squares overflow"):
        ORFFRegressor(FIELD, 600, sampler=LATTICE, ridge=1e-5).fit(X, 1e200 * Y)


@pytest.mark.parametrize("standardize", [False, True])
def test_rows_where_the_function_repeats_itself_are_counted(standardize: bool, tmp_path: Any) -> None:
    """A period further on values are the same; off an input that was constant they are those of its value. What lies
    nearer to the rows than to their copies, or off by next to nothing, is not counted."""
    X, Y = flow()
    X = np.column_stack([X, np.full(N, 7.0)])
    estimator = ORFFRegressor(GAUSS, 600, sampler=LATTICE, ridge=1e-5, standardize=standardize).fit(X, Y)
    ends = estimator.model_.ends
    assert ends is not None
    period = np.array([ends[1][0] - ends[0][0], 0.0, 0.0])
    assert period[0] < 5.0 and np.isclose(ends[0][0] + ends[1][0], X[:, 0].min() + X[:, 0].max())
    beside = X[:1] * [0.0, 1.0, 1.0] + [ends[1][0] - 1e-6, 0.0, 0.0]
    assert ends[1][0] > X[:, 0].max() + 0.1 and np.isfinite(estimator.predict(np.vstack([X, beside]))).all()
    far = X.copy()
    far[:540:180] = X[:540:180] + period
    far[540::180, 2] = [8.0, 6.0]
    far[1:3, 2] += [1e-3, -1e-3]
    message = f"^5 of {N} rows lie outside of input 0 from {ends[0][0]:.6g} to .*, input 2 from 6.9.* to 7.0"
    with pytest.warns(UserWarning, match=message) as seen:
        again = estimator.predict(far)
    np.testing.assert_allclose(again[::180], estimator.predict(X[::180]), atol=1e-9)
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    stored = group.create_array("x", data=far, chunks=(70, 3))
    with pytest.warns(UserWarning, match=message):
        assert len(seen) == 1 and np.array_equal(estimator.predict(stored), again)
    with pytest.warns(UserWarning, match=message):  # of each chunk
        estimator.predict(da.from_array(far, chunks=(N, 3))).compute()


def test_a_chunk_may_be_empty() -> None:
    X, Y = flow()
    keep = X[:, 0] < 0.5
    whole = da.from_array(np.vstack([X[keep], X[~keep]]), chunks=((keep.sum(), 100, N - keep.sum() - 100), 2))
    some = whole[whole[:, 0] < 0.5]
    some.compute_chunk_sizes()
    assert some.chunks[0][1:] == (0, 0)
    y = da.from_array(Y[keep], chunks=(some.chunks[0], 2))
    one = ORFFRegressor(FIELD, 600, sampler=LATTICE, ridge=1e-5).fit(some, y)
    np.testing.assert_allclose(one.predict(X[:9]), clone(one).fit(X[keep], Y[keep]).predict(X[:9]), rtol=0, atol=1e-9)
    F, twin = (RandomFeatures(GAUSS, 600, sampler=LATTICE).fit(rows).transform(X[:9]) for rows in (some, X[keep]))
    assert np.array_equal(F, twin)


@pytest.mark.parametrize("standardize", [False, True])
def test_features_of_rows_far_off_are_counted_too(*, standardize: bool) -> None:
    X, Y = flow()
    sampler = replace(LATTICE, box=((0, 2), (0, 2)))
    features = RandomFeatures(GAUSS, 600, sampler=sampler, standardize=standardize).fit(X)
    ends = ORFFRegressor(GAUSS, 600, sampler=sampler, standardize=standardize, ridge=1e-5).fit(X, Y).model_.ends
    assert ends is not None and ends[1][0] > 2.1
    at = np.array([[ends[1][0] - 1e-6, 1.0], [ends[1][0] + 1e-6, 1.0], [1.0, ends[0][1] - 1e-6]])
    with pytest.warns(UserWarning, match=r"^2 of 3 rows lie outside of input 0 from .*give Lattice a box") as seen:
        F = pickle.loads(pickle.dumps(features)).transform(at)
    assert np.array_equal(F, features.feature_map_.transform(at))
    assert [one.filename for one in seen] == [__file__]
    turning = replace(LATTICE, periods=(2.0, 2.0))
    plain = RandomFeatures(GAUSS, 600, sampler=turning).fit(X)
    np.testing.assert_allclose(plain.transform(X + 2.0), plain.transform(X), atol=1e-9)


def test_models_without_lattice_or_range_repeat_nowhere() -> None:
    X, Y = flow()
    on = ORFFRegressor(FIELD, 600, sampler=LATTICE, ridge=1e-5).fit(X, Y).model_
    off = ORFFRegressor(FIELD, 60, ridge=1e-5).fit(X, Y).model_
    assert on.repeating(X + 100.0) == N and on.repeating(X - 100.0) == N
    for model in (replace(on, info={}), replace(on, info={"data": {"low": "ab", "high": [1.0]}}), off):
        assert model.ends is None and model.repeating(X + 100.0) == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_rows_that_weigh_nothing_do_not_widen_the_box(*, chunked: bool) -> None:
    """Whatever they hold: the lattice is that of the others."""
    rng = np.random.default_rng(4)
    X, w = rng.uniform(0, 1, (N, 2)), np.ones(N)
    X[7], w[7] = 1000.0, 0.0
    Y = np.sin(3 * X[:, :1])
    rows = (da.from_array(X, chunks=(300, 2)), da.from_array(Y, chunks=(300, 1))) if chunked else (X, Y)
    options: dict[str, Any] = {"n_features": 300, "sampler": LATTICE, "ridge": 1e-6}
    model = ORFFRegressor(GAUSS, **options).fit(*rows, sample_weight=w).model_
    few = ORFFRegressor(GAUSS, **options).fit(X[w > 0], Y[w > 0]).model_
    assert model.feature_map.m == few.feature_map.m < 100
    np.testing.assert_allclose(model.predict(X[:5]), few.predict(X[:5]), atol=1e-6)
