"""ORFFClassifier: scikit-learn's own checks, dense twins, labels of any type in any array, held-out calibration."""

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from cases import calibration_error
from places import ROOT
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.errors import InputError
from dorff.estimators.array_sums import FOLDS
from dorff.estimators.class_labels import MOST_CLASSES, OneHot, _counted, find_classes, one_hot
from dorff.estimators.classifier import HeldRows
from dorff.frequencies import Orthogonal
from dorff.model.calibration import Calibration, log_loss
from dorff.passes import FoldRule
from dorff.store import save_model

DATA = Path(os.environ.get("DORFF_DATA", ROOT.parent / "shared" / "data"))
GAUSSIAN = kernels.Gaussian(1.5)
WORDS = np.array(["ash", "oak", "elm"])


def groups(n: int, K: int = 3, seed: int = 0, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping groups: inputs (n, d) and classes 0..K-1 of unequal sizes."""
    sizes = np.linspace(1.0, 2.0, K)
    sizes = np.diff(np.round(np.cumsum([0.0, *sizes]) * n / sizes.sum())).astype(int)
    return make_blobs(sizes, d, centers=None, cluster_std=3.0, random_state=seed)


def in_zarr(path: Path, values: np.ndarray, rows: int, **options: object) -> zarr.Array:
    zarr.create_array(
        path, data=values, chunks=(rows, *values.shape[1:]), config={"write_empty_chunks": True}, **options
    )
    return zarr.open_array(path, mode="r")


# Rows of weight 2 are not the same row twice in a calibration, which counts rows that are independent, as Kish does.
EQUIVALENCE = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
CALIBRATED = dict.fromkeys(EQUIVALENCE, "probabilities come from held-out rows")


FIXED = {"kernel": kernels.Gaussian(3.0), "n_features": 64, "ridge": 1e-6}


@parametrize_with_checks(
    [ORFFClassifier(**FIXED), ORFFClassifier(**FIXED, calibrate=False)],
    expected_failed_checks=lambda estimator: CALIBRATED if estimator.calibrate else {},
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ORFFClassifier()], expected_failed_checks=lambda estimator: CALIBRATED)
def test_scikit_learns_checks_of_the_defaults(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ORFFClassifier(kernels.Gaussian(3.0), 64, coding="one_vs_all", ridge=[1e-4, 1e-2], cv=3)],
    expected_failed_checks=lambda estimator: CALIBRATED,
)
def test_scikit_learns_checks_with_folds(estimator, check):
    check(estimator)


# --- what is fitted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["simplex", "one_vs_all"])
@pytest.mark.parametrize("options", [{}, {"class_weight": {0: 2.0, 2: 0.3}}, {"intercept": False, "standardize": True}])
def test_is_the_minimum_of_the_objective(coding, options):
    """A dense twin: features of every class stacked, weighted normal equations, one-hot targets as they are."""
    X, y = groups(120)
    X = X * [1.0, 20.0]
    fitted = ORFFClassifier(GAUSSIAN, 24, coding=coding, ridge=1e-3, calibrate=False, **options).fit(X, y)
    model, w = fitted.model_, fitted.class_weight_[y]
    F = model.feature_map.transform(X)
    Phi = np.einsum("na,arp->npar", F, model.weights).reshape(len(X) * 3, -1)
    ones = np.tile(np.eye(3), (len(X), 1)) if options.get("intercept", True) else np.empty((len(X) * 3, 0))
    full, W = np.hstack([Phi, ones]), np.repeat(w, 3)
    penalty = np.r_[np.full(Phi.shape[1], w.sum() * 1e-3), np.zeros(ones.shape[1])]
    h = np.linalg.solve(full.T @ (W[:, None] * full) + np.diag(penalty), full.T @ (W * np.eye(3)[y].ravel()))
    assert np.allclose(fitted.decision_function(X), (full @ h).reshape(-1, 3), atol=1e-8)
    assert np.array_equal(fitted.predict(X), (full @ h).reshape(-1, 3).argmax(axis=1))
    assert np.all(model.target_scale == 1.0)
    if options.get("standardize"):
        assert np.allclose(model.feature_map.scale, X.std(axis=0))


@pytest.mark.parametrize("K", [2, 3, 7])
def test_simplex_coding_is_one_vs_all_at_another_ridge(K):
    """B^T B = K/(K-1) (I - 11^T/K), and centred one-hot targets sum to zero."""
    X, y = groups(300, K)
    simplex = ORFFClassifier(GAUSSIAN, 64, ridge=1e-3, calibrate=False).fit(X, y)
    plain = ORFFClassifier(GAUSSIAN, 64, coding="one_vs_all", ridge=1e-3 * (K - 1) / K, calibrate=False).fit(X, y)
    assert simplex.model_.weights.shape[1:] == (K - 1, K) and plain.model_.weights.shape[1:] == (K, K)
    assert np.allclose(simplex.model_.predict(X), plain.model_.predict(X), atol=1e-10)
    assert np.allclose(simplex.model_.predict(X).sum(axis=1), 1.0)


def test_is_the_regressor_on_one_hot_targets():
    X, y = groups(1100)
    kernel = kernels.Decomposable(GAUSSIAN, "covariance")
    for options in ({"ridge": [1e-6, 1e-2], "cv": None}, {"ridge": [1e-6, 1e-2], "cv": 3}):
        classes = ORFFClassifier(kernel, 48, **options, sampler=Orthogonal()).fit(X, WORDS[y])
        values = ORFFRegressor(kernel, 48, **options, sampler=Orthogonal()).fit(X, np.eye(3)[np.array([0, 2, 1])[y]])
        assert np.array_equal(classes.classes_, ["ash", "elm", "oak"]) and classes.ridge_ == values.ridge_
        assert np.allclose(classes.decision_function(X), values.predict(X), atol=1e-7)
        if options["cv"]:  # of f times the best number, as that changes no class
            assert np.all(classes.cv_errors_ < values.cv_errors_)
            assert np.all(classes.cv_errors_ > 0.9 * values.cv_errors_)
        else:
            assert np.allclose(classes.gcv_, values.gcv_)


def test_two_classes_have_one_decision_value():
    X, y = groups(200, 2)
    fitted = ORFFClassifier(GAUSSIAN, 32).fit(X, np.array(["no", "yes"])[y])
    f = fitted.model_.predict(X)
    assert np.array_equal(fitted.decision_function(X), f[:, 1] - f[:, 0])
    assert np.array_equal(fitted.predict(X) == "yes", fitted.decision_function(X) > 0)
    assert fitted.predict_proba(X).shape == (200, 2)


def test_class_weights_are_repeated_rows():
    X, y = groups(150)
    times = np.array([1, 3, 2])
    many = ORFFClassifier(GAUSSIAN, 32, ridge=1e-6, calibrate=False, intercept=True, sampler=Orthogonal()).fit(
        np.repeat(X, times[y], axis=0), np.repeat(y, times[y])
    )
    few = ORFFClassifier(
        GAUSSIAN, 32, ridge=1e-6, calibrate=False, class_weight={1: 3, 2: 2}, sampler=Orthogonal()
    ).fit(X, y)
    assert np.allclose(few.decision_function(X), many.decision_function(X), atol=1e-9)
    balanced = ORFFClassifier(GAUSSIAN, 32, class_weight="balanced", sampler=Orthogonal()).fit(X, y)
    counts = np.bincount(y)
    assert np.allclose(balanced.class_weight_, 150 / (3 * counts)) and len(set(counts)) == 3
    named = ORFFClassifier(GAUSSIAN, 32, class_weight=dict(enumerate(150 / (3 * counts))), sampler=Orthogonal()).fit(
        X, y
    )
    assert np.array_equal(named.predict_proba(X), balanced.predict_proba(X))


# --- probabilities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"cv": 3}, {"class_weight": "balanced", "ridge": [1e-5, 1e-1]}])
def test_calibrates_on_held_out_rows(options):
    """A dense twin: fit to the other folds at the ridge chosen, decide on the rows left out."""
    X, y = groups(500)
    fitted = ORFFClassifier(GAUSSIAN, 48, **options, sampler=Orthogonal()).fit(X, y)
    fold = FoldRule(options.get("cv", FOLDS), by_rows=True, seed=0).of_rows(np.arange(500))
    held = fold == fold[0]
    weights = dict(enumerate(fitted.class_weight_))
    part = ORFFClassifier(
        GAUSSIAN, 48, ridge=fitted.ridge_, calibrate=False, class_weight=weights, sampler=Orthogonal()
    ).fit(X[~held], y[~held])
    expected = Calibration.fit(part.decision_function(X[held]), y[held], fitted.class_weight_[y[held]])
    assert fitted.calibration_.slope == pytest.approx(expected.slope, rel=1e-5)
    assert fitted.calibration_.rows == held.sum()
    p = fitted.predict_proba(X)
    assert np.allclose(p, fitted.calibration_.probabilities(fitted.decision_function(X)))
    assert np.allclose(p.sum(axis=1), 1.0) and np.array_equal(fitted.classes_[p.argmax(axis=1)], fitted.predict(X))
    assert np.allclose(np.exp(fitted.predict_log_proba(X)), p)


def test_a_class_with_one_row_and_a_class_not_held_out():
    X, y = groups(60)
    y[0] = 3  # row 0 is held out, so the part fitted to the others has never seen its class
    fitted = ORFFClassifier(GAUSSIAN, 32).fit(X, y)
    assert np.array_equal(fitted.classes_, [0, 1, 2, 3]) and np.isfinite(fitted.predict_log_proba(X)).all()
    y = np.zeros(60, dtype=int)
    y[[4, 9]] = 1, 2
    assert np.isfinite(ORFFClassifier(GAUSSIAN, 32).fit(X, y).predict_proba(X)).all()


def test_without_calibration_there_are_no_probabilities():
    X, y = groups(60)
    fitted = ORFFClassifier(GAUSSIAN, 16).fit(X, y)
    assert fitted.predict_proba(X).shape == (60, 3)
    fitted.set_params(calibrate=False).fit(X, y)
    assert not hasattr(fitted, "predict_proba") and not hasattr(fitted, "predict_log_proba")
    assert not hasattr(fitted, "calibration_") and "calibration" not in fitted.model_.info


def test_many_rows_are_sampled_evenly():
    """Of more rows than wanted, runs from all over; the same ones in a Dask array, whose other chunks are not made."""
    X, y = groups(20_000)
    Y, rule = OneHot(y, np.arange(3)), FoldRule.one_held(FOLDS, by_rows=True, seed=0)
    model = ORFFClassifier(GAUSSIAN, 16, calibrate=False).fit(X[:500], y[:500]).model_
    held = HeldRows(model, rule, 20_000, 512)
    assert len(held.windows) == 256 and held.windows[0] == (0, 10) and held.windows[-1] == (19_990, 20_000)
    f, codes, numbers = held.read(X, Y)
    rows = np.concatenate([np.arange(a, b) for a, b in held.windows])
    rows = rows[rule.of_rows(rows) == 0]
    assert len(rows) > 400 and len(f) == min(len(rows), 512)
    assert (
        np.array_equal(codes, y[rows][:512])
        and np.array_equal(numbers, rows[:512])
        and np.allclose(f, model.predict(X[rows])[:512])
    )
    made = []

    def seen(block: np.ndarray) -> np.ndarray:
        made.append(len(block))
        return block

    lazy = da.from_array(X, chunks=(50, 2)).map_blocks(seen, meta=np.empty((0, 0)))
    again, same, _ = held.read(lazy, da.from_array(np.eye(3)[y], chunks=(50, 3)))
    assert np.array_equal(same, codes) and np.allclose(again, f) and len(made) < 400
    whole = HeldRows(model, rule, 20_000, 10**6)
    assert whole.windows == [(0, 20_000)] and len(whole.read(X, Y)[1]) == (rule.of_rows(np.arange(20_000)) == 0).sum()


# --- labels -------------------------------------------------------------------------------------------------

KINDS = {
    "text": WORDS,
    "objects": WORDS.astype(object),
    "any length": WORDS.astype(np.dtypes.StringDType()),
    "integers": np.array([-7, 2**60 + 1, 2**60]),
    "bytes": np.array([200, 3, 7], dtype=np.uint8),
    "whole floats": np.array([2.0, -1.0, 5.0]),
    "booleans": np.array([True, False, True]),
    "dates": np.array(["2001-02-03", "1999-01-01", "2020-05-06"], dtype="M8[D]"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_any_type(kind, tmp_path):
    X, codes = groups(90)
    names = KINDS[kind]
    y = names[codes]
    plain = y.astype(object).astype(str) if kind == "any length" else y
    arrays = {"numpy": y, "xarray": xr.DataArray(plain), "dask": da.from_array(plain, chunks=40)}
    if kind not in ("dates", "objects", "text"):
        arrays["zarr"] = in_zarr(tmp_path / "y", y, 25)
    if kind not in ("any length", "dates"):
        arrays |= {"list": y.tolist(), "pandas": pd.Series(y)}
    expected = ORFFClassifier(GAUSSIAN, 32).fit(X, codes)
    for name, labels in arrays.items():
        fitted = ORFFClassifier(GAUSSIAN, 32).fit(X, labels)
        assert np.array_equal(fitted.classes_, np.unique(plain)), name
        found = fitted.predict(X)
        assert found.dtype == fitted.classes_.dtype and fitted.score(X, labels) == np.mean(found == plain), name
        first = json.loads(json.dumps(fitted.model_.info))["labels"][0]
        assert first == fitted.classes_[0] or (kind == "dates" and first.startswith("1999-01-01")), name
        if len(fitted.classes_) == 3:
            assert np.array_equal(found, names[expected.predict(X)]), name
    if kind == "integers":
        assert fitted.classes_.dtype == np.int64
    categories = ORFFClassifier(GAUSSIAN, 32).fit(X, pd.Series(WORDS[codes], dtype="category"))
    assert np.array_equal(categories.predict(X), WORDS[expected.predict(X)])


def kinds(X: np.ndarray, y: np.ndarray, folder: Path) -> dict[str, tuple[object, object]]:
    """The same rows as every kind of array; chunks of X and y differ."""
    text = y.astype(np.dtypes.StringDType())  # what Zarr keeps text as
    stored, labels = in_zarr(folder / "x", X, 256), in_zarr(folder / "y", text, 700)
    sharded = in_zarr(folder / "ys", text, 100, shards=(500,))
    lazy = da.from_array(X, chunks=(600, 1)), da.from_array(y, chunks=451)
    return {
        "pandas": (pd.DataFrame(X, columns=["a", "b"]), pd.Series(y)),
        "zarr": (stored, labels),
        "zarr column": (stored, in_zarr(folder / "y2", text[:, None], 333, zarr_format=2)),
        "numpy and zarr": (X, sharded),
        "zarr in memory": (zarr.array(X), zarr.array(text)),
        "zarr and numpy": (stored, y),
        "dask": lazy,
        "dask column": (lazy[0], lazy[1][:, None]),
        "dask and numpy": (lazy[0], y),
        "numpy and dask": (X, lazy[1]),
        "dask and zarr": (lazy[0], sharded),
        "zarr and dask": (stored, lazy[1]),
        "xarray of dask": (xr.DataArray(lazy[0]), xr.DataArray(lazy[1])),
    }


@pytest.mark.slow
def test_every_kind_of_input_agrees_with_numpy(tmp_path):
    X, codes = groups(2000)
    y = WORDS[codes]
    estimator = ORFFClassifier(GAUSSIAN, 24, class_weight="balanced", standardize=True, ridge=[1e-4, 1e-2])
    expected = estimator.fit(X, y)
    p, labels, decisions = expected.predict_proba(X), expected.predict(X), expected.decision_function(X)
    for name, (x, t) in kinds(X, y, tmp_path).items():
        fitted = clone(estimator).fit(x, t)
        is_dask = isinstance(x, da.Array) or name == "xarray of dask"
        asked = (fitted.predict(x), fitted.predict_proba(x), fitted.predict_log_proba(x), fitted.decision_function(x))
        assert all(isinstance(found, da.Array if is_dask else np.ndarray) for found in asked), name
        found, *numbers = (np.asarray(one) for one in asked)
        assert np.array_equal(found, labels) and found.shape == (2000,), name
        for one, wanted in zip(numbers, (p, np.log(p), decisions), strict=True):
            assert one.shape == (2000, 3) and np.allclose(one, wanted, atol=1e-7), name
        assert fitted.score(x, t) == expected.score(X, y), name


def test_dask_bits_depend_on_the_chunks_alone():
    X, y = groups(3000)
    x, t = da.from_array(X, chunks=(700, 2)), da.from_array(y, chunks=(451,))
    found = []
    for scheduler, workers in (("synchronous", 1), ("threads", 4)):
        with dask.config.set(scheduler=scheduler, num_workers=workers):
            fitted = ORFFClassifier(GAUSSIAN, 64, class_weight="balanced").fit(x, t)
            found.append((fitted.model_.coefficients.tobytes(), fitted.calibration_))
    assert found[0] == found[1]


def test_classes_are_found_by_a_pass_over_labels_alone():
    X, y = groups(400)
    made = {"X": 0, "y": 0}

    def seen(block: np.ndarray, what: str) -> np.ndarray:
        made[what] += 1
        return block

    lazy = da.from_array(y, chunks=100).map_blocks(seen, what="y", meta=np.empty(0, dtype=y.dtype))
    with dask.config.set(scheduler="synchronous"):
        classes, counts = find_classes(lazy)
        assert made == {"X": 0, "y": 4}
        x = da.from_array(X, chunks=(100, 2)).map_blocks(seen, what="X", meta=np.empty((0, 0)))
        ORFFClassifier(GAUSSIAN, 16, calibrate=False).fit(x, lazy)
    assert made == {"X": 8, "y": 16}  # of X the sample and the pass; of y those and, twice, the classes
    assert np.array_equal(classes, [0, 1, 2]) and np.array_equal(counts, np.bincount(y))


def test_ones_and_zeros_are_made_chunk_by_chunk(tmp_path):
    """Peak memory of NumPy's own allocations stays far below that of all one-hot rows."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40_000, 2)), rng.integers(0, 200, 40_000)
    stored = in_zarr(tmp_path / "x", X, 4000), in_zarr(tmp_path / "y", y.astype(np.int16), 40_000)
    estimator = ORFFClassifier(GAUSSIAN, 8, coding="one_vs_all", calibrate=False, cv=None, sampler=Orthogonal())
    for x, t in ((X, y), stored):
        estimator.fit(x, t)
        tracemalloc.start()
        estimator.fit(x, t)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.7 * 8 * 200 * 40_000


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coding": "one_vs_one"}, "coding must be 'simplex' or 'one_vs_all', not 'one_vs_one'"),
        ({"class_weight": "even"}, "class_weight must be 'balanced', a dict of labels to weights, or None"),
        ({"class_weight": [1.0, 2.0]}, "class_weight must be 'balanced', a dict"),
        ({"class_weight": {7: 1.0}}, r"class_weight names 7, but the labels are \[0, 1, 2\]"),
        ({"class_weight": {1: -1.0}}, "class_weight must be numbers above 0"),
        ({"class_weight": {1: np.nan}}, "class_weight must be numbers above 0"),
        ({"n_features": 1}, "n_features must be a whole number of 2 or more, or 'auto', got 1"),
        ({"ridge": "gcv"}, "ridge must be a number"),
        ({"cv": 61}, "cv = 61 folds need as many rows, but n_samples = 60"),
        ({"kernel": kernels.Decomposable(GAUSSIAN, np.eye(4))}, "4 x 4 but there are 3 outputs"),
    ],
)
def test_wrong_arguments_are_refused_in_fit(options, message):
    with pytest.raises(InputError, match=message):
        ORFFClassifier(**options).fit(*groups(60))


def test_labels_that_are_none_are_refused(tmp_path):
    X, codes = groups(60)
    fit = ORFFClassifier(GAUSSIAN, 16).fit
    gap = np.where(np.arange(60) == 33, np.nan, codes)
    for y in (da.from_array(gap, chunks=25), in_zarr(tmp_path / "gap", gap, 25)):
        with pytest.raises(InputError, match="y, row 33: Unknown label type: continuous or missing, got nan"):
            fit(X, y)
    with pytest.raises(InputError, match="y, row 33 is nan; leave the row out"):
        fit(X, gap)
    packed = in_zarr(tmp_path / "packed", codes.astype(np.int8), 60)
    zarr.open_array(tmp_path / "packed").attrs["_FillValue"] = int(codes[7])
    with pytest.raises(InputError, match="continuous or missing, got nan"):
        fit(X, zarr.open_array(packed.store, mode="r"))
    mixed = np.array([7 if i == 3 else w for i, w in enumerate(WORDS[codes])], dtype=object)
    for y in (mixed, da.from_array(mixed, chunks=60)):
        with pytest.raises(InputError, match="mixed types"):
            fit(X, y)
    for y in (np.zeros(60), da.zeros(60, chunks=20)):
        with pytest.raises(InputError, match=r"y has one class only, 0.0; a classifier needs two or more"):
            fit(X, y)
    for y in (da.ones((60, 2)), in_zarr(tmp_path / "wide", np.ones((60, 2)), 20)):
        with pytest.raises(InputError, match=r"y must be labels, \(rows,\), but has shape \(60, 2\)"):
            fit(X, y)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        fit(X, X[:, 0])
    many = np.arange(2 * MOST_CLASSES)
    for y in (da.from_array(many, chunks=-1), da.from_array(many, chunks=MOST_CLASSES)):
        with pytest.raises(InputError, match="y has more than 16384 different labels"):
            find_classes(y)
    with pytest.raises(InputError, match="y has more than 16384 different labels"):
        _counted(many, 0)  # where the chunk is, not only where the chunks' classes come together
    with pytest.raises(InputError, match="y has no labels"):
        find_classes(da.from_array(many[:0], chunks=1))
    with pytest.raises(InputError, match="y has other labels now"):
        one_hot(np.array(["ash", "fir"]), np.array(["ash", "elm"]))


def test_shapes_that_do_not_fit_are_refused(tmp_path):
    X, y = groups(60)
    lazy = da.from_array(X, chunks=20)
    for x, t in ((lazy, y[:50]), (X, da.from_array(y[:50], chunks=20)), (lazy, in_zarr(tmp_path / "y", y[:50], 20))):
        with pytest.raises(InputError, match="X has 60 rows and y has 50"):
            ORFFClassifier(GAUSSIAN, 16).fit(x, t)
    for x in (X, lazy):
        with pytest.raises(ValueError, match="requires y to be passed"):
            ORFFClassifier(GAUSSIAN, 16).fit(x, None)
    with pytest.raises(InputError, match=r"chunks of unknown length; call y.compute_chunk_sizes"):
        t = da.from_array(y, chunks=20)
        ORFFClassifier(GAUSSIAN, 16).fit(X, t[t > 0])
    with pytest.raises(InputError, match=r"chunks of unknown length; call X.compute_chunk_sizes"):
        ORFFClassifier(GAUSSIAN, 16).fit(lazy[lazy[:, 0] > 0], y)
    for unfitted in (ORFFClassifier(), ORFFClassifier(calibrate=False).fit(X, y).set_params(calibrate=True)):
        with pytest.raises(NotFittedError):
            unfitted.predict_proba(X)
    with pytest.raises(InputError, match="too few rows to hold some out for probabilities; use calibrate=False"):
        ORFFClassifier(GAUSSIAN, 16, random_state=_alike()).fit(X[:2], [0, 1])


def _alike() -> int:
    """A seed that deals rows 0 and 1 to one fold."""
    pairs = ((seed, FoldRule(FOLDS, by_rows=True, seed=seed).of_rows(np.arange(2))) for seed in range(100))
    return next(seed for seed, fold in pairs if fold[0] == fold[1])


@pytest.mark.parametrize("values", [np.arange(60) % 3, (np.arange(60) % 3).astype(str).astype(np.dtypes.StringDType())])
def test_a_missing_chunk_of_labels_is_refused(tmp_path, values):
    X, _ = groups(60)
    y = in_zarr(tmp_path / "y", values, 20)
    fitted = ORFFClassifier(GAUSSIAN, 16).fit(X, y)
    (tmp_path / "y" / "c" / "1").unlink()
    for wrong in (lambda: ORFFClassifier(GAUSSIAN, 16).fit(X, y), lambda: fitted.score(X, y)):
        with pytest.raises(InputError, match=r"array y, chunk c/1 is missing"):
            wrong()
    (tmp_path / "y" / "c" / "1").write_bytes(b"not what was written")
    with pytest.raises(InputError, match=r"array y, chunk c/1 is damaged"):
        ORFFClassifier(GAUSSIAN, 16).fit(X, y)


# --- life among other estimators ----------------------------------------------------------------------------


def test_clone_pickle_search_and_publish(tmp_path):
    X, y = groups(150)
    estimator = ORFFClassifier(GAUSSIAN, 32, class_weight={"oak": 2.0}, random_state=3)
    fitted = estimator.fit(X, WORDS[y])
    assert np.array_equal(clone(fitted).fit(X, WORDS[y]).predict_proba(X), fitted.predict_proba(X))
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    save_model(fitted.model_, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    labels, calibration = np.array(loaded.info["labels"]), Calibration.of(loaded.info["calibration"])
    assert np.array_equal(labels[loaded.predict(X).argmax(axis=1)], fitted.predict(X))
    assert np.array_equal(calibration.probabilities(loaded.predict(X)), fitted.predict_proba(X))
    search = GridSearchCV(ORFFClassifier(GAUSSIAN, 32), {"ridge": [1e-6, 10.0]}, cv=3, scoring="neg_log_loss")
    assert search.fit(X, WORDS[y]).best_params_ == {"ridge": 1e-6}


# --- real data ----------------------------------------------------------------------------------------------


def letters() -> tuple[np.ndarray, np.ndarray]:
    """LETTER: (20000, 16) and letters."""
    path = DATA / "letter" / "letter-recognition.data"
    if not path.exists():
        pytest.skip(f"no {path}")
    rows = [line.split(",") for line in path.read_text().split()]
    return np.array([row[1:] for row in rows], dtype=float), np.array([row[0] for row in rows])


@pytest.mark.slow
def test_letters():
    """Calibration lowers log loss and calibration error on rows of neither the fit nor the calibration; balanced
    weights raise the balanced accuracy where half of the alphabet is rare."""
    X, y = letters()
    test = slice(16_000, None)
    fitted = ORFFClassifier(kernels.Gaussian(4.0), 256).fit(X[:6000], y[:6000])
    f, codes = fitted.decision_function(X[test]), np.searchsorted(fitted.classes_, y[test])
    plain, found = Calibration(1.0), fitted.calibration_
    assert fitted.score(X[test], y[test]) > 0.75
    assert log_loss(found.log_probabilities(f), codes) < 0.4 * log_loss(plain.log_probabilities(f), codes)
    assert calibration_error(found.probabilities(f), codes) < 0.04 < calibration_error(plain.probabilities(f), codes)

    rare = np.flatnonzero((y[:16_000] < "N") | (np.random.default_rng(0).random(16_000) < 0.05))[:6000]
    balance = [
        balanced_accuracy_score(
            y[test], clone(fitted).set_params(class_weight=w).fit(X[rare], y[rare]).predict(X[test])
        )
        for w in (None, "balanced")
    ]
    assert balance[1] > balance[0] + 0.1
