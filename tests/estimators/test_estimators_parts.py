"""Rows that come in parts, by weight, in threads and in xarray Datasets; and what memory does not suffice for."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from sklearn.base import clone

from dorff import ORFFClassifier, ORFFRegressor, kernels
from dorff.errors import DoesNotFitError, InputError
from dorff.estimators.array_sums import FOLDS
from dorff.estimators.arrays import enough_memory
from dorff.frequencies import Orthogonal
from dorff.model.calibration import Calibration
from dorff.passes import FoldRule

GAUSSIAN = kernels.Gaussian(1.5)
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSSIAN) + 0.7 * kernels.DivergenceFree(GAUSSIAN)


def field(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1) + 0.1 * rng.standard_normal((n, 2))


def parted(estimator, parts, **options):
    estimator = clone(estimator)
    for part in parts:
        estimator.partial_fit(*part, **options)
    return estimator


# --- partial_fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"ridge": [1e-6, 1e-2], "cv": 3},
        {"kernel": HELMHOLTZ, "intercept": False, "ridge": 1e-3},
        {"missing": "partial", "posterior": False},
    ],
)
def test_rows_in_parts_are_one_fit_of_all_rows(options):
    """Constants move no fit of a given kernel whose centre features do not see; folds go by the number of the row."""
    X, Y = field(300)
    w = np.random.default_rng(1).integers(0, 3, 300)
    if "missing" in options:
        Y[250:, 1] = np.nan
    estimator = ORFFRegressor(**{"kernel": GAUSSIAN, "n_features": 48, **options}, sampler=Orthogonal())
    whole = clone(estimator).fit(X, Y, w)
    cuts = [(0, 100), (100, 107), (107, 300)]
    online = parted(estimator, [(X[a:b], Y[a:b], w[a:b]) for a, b in cuts])
    assert np.allclose(online.predict(X), whole.predict(X), atol=1e-7) and online.ridge_ == whole.ridge_
    if "cv" in options:
        np.testing.assert_allclose(online.cv_errors_, whole.cv_errors_, rtol=1e-6)
    chunks = [(da.from_array(X[a:b], chunks=(40, 2)), da.from_array(Y[a:b], chunks=(40, 2)), w[a:b]) for a, b in cuts]
    lazy = parted(estimator, chunks)
    assert np.allclose(lazy.predict(X), whole.predict(X), atol=1e-7)
    if "cv" in options:
        np.testing.assert_allclose(lazy.cv_errors_, whole.cv_errors_, rtol=1e-6)


def test_constants_are_those_of_the_first_part():
    X, Y = field(200)
    estimator = ORFFRegressor(n_features=32, ridge=1e-6, sampler=Orthogonal())
    first, online = clone(estimator).fit(X[:50], Y[:50]), parted(estimator, [(X[:50], Y[:50]), (5 + X[50:], Y[50:])])
    assert np.array_equal(online.model_.feature_map.scale, first.model_.feature_map.scale)
    lengthscales = [one.model_.kernel.scalar.lengthscale for one in (online, first)]
    assert np.array_equal(*lengthscales) and np.ptp(lengthscales[0]) > 0
    assert online.model_.info["report"]["rows_used"] == 200
    again = first.partial_fit(5 + X[50:], Y[50:])  # goes on from fit
    assert np.array_equal(again.predict(X), online.predict(X))
    assert again.fit(X, Y).model_.info["report"]["rows_used"] == 200  # begins anew
    with pytest.warns(UserWarning, match="partial_fit begins anew"):
        folded = ORFFRegressor(GAUSSIAN, 32, cv=3, sampler=Orthogonal()).fit(X, Y).partial_fit(X, Y)
    assert folded.model_.info["report"]["rows_used"] == 200


def test_classes_in_parts():
    X, Y = field(300)
    y = np.array(["low", "mid", "top"])[np.digitize(Y[:, 0], [-1.0, 1.0])]
    order = np.argsort(y)  # so that the first part has one class alone
    X, y, w = X[order], y[order], np.random.default_rng(1).integers(0, 3, 300)
    estimator = ORFFClassifier(GAUSSIAN, 48, calibrate=False, class_weight={"low": 2.0}, ridge=[1e-6, 1e-2])
    whole = clone(estimator).fit(X, y, w)
    online = parted(estimator, [(X[:50], y[:50], ["low", "mid", "top"], w[:50]), (X[50:], y[50:], None, w[50:])])
    assert np.allclose(online.decision_function(X), whole.decision_function(X), atol=1e-7)
    assert online.classes_.tolist() == ["low", "mid", "top"] and online.ridge_ == whole.ridge_
    lazy = [(da.from_array(X[a:b], chunks=(40, 2)), da.from_array(y[a:b], chunks=40)) for a, b in ((0, 50), (50, 300))]
    assert parted(estimator, lazy, classes=["low", "mid", "top"]).score(X, y) > 0.8
    with pytest.raises(InputError, match="y has other labels"):
        online.partial_fit(X[:2], ["low", "new"])
    assert online.partial_fit(X[:2], y[:2]).model_.info["report"]["rows_used"] == (w > 0).sum() + 2


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (ORFFRegressor(cv=[([0], [1])]), "partial_fit: splits are of all rows together"),
        (ORFFClassifier(calibrate=False), "classes must be passed on the first call"),
        (ORFFClassifier(calibrate=False, class_weight="balanced"), "'balanced' weighs classes by all rows together"),
    ],
)
def test_what_cannot_come_in_parts_is_refused(estimator, message):
    X, Y = field(40)
    with pytest.raises(ValueError, match=message):
        estimator.partial_fit(X, Y if isinstance(estimator, ORFFRegressor) else Y[:, 0] > 0)
    with pytest.raises(AttributeError, match="partial_fit") as refusal:
        ORFFClassifier().partial_fit(X, Y[:, 0] > 0)
    assert "set calibrate=False" in str(refusal.value.__cause__)
    assert not hasattr(ORFFRegressor(manifold=1e-3), "partial_fit")
    online = ORFFRegressor(n_features=8).partial_fit(X, Y)
    with pytest.raises(InputError, match="y has 1 targets, but partial_fit began with 2"):
        online.partial_fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="X has 1 features, but ORFFRegressor is expecting 2"):
        online.partial_fit(X[:, :1], Y)


# --- weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced", "coding": "one_vs_all", "standardize": True}])
def test_whole_weights_of_a_classifier_are_repeated_rows(tmp_path, options):
    X, Y = field(200)
    y, w = np.digitize(Y[:, 0], [-1.0, 1.0]), np.random.default_rng(0).integers(0, 4, 200)
    estimator = ORFFClassifier(GAUSSIAN, 32, calibrate=False, ridge=1e-3, **options, sampler=Orthogonal())
    often = clone(estimator).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    zarr.create_array(tmp_path / "y", data=y, chunks=(64,), config={"write_empty_chunks": True})
    for labels in (y, da.from_array(y, chunks=70), zarr.open_array(tmp_path / "y", mode="r")):
        weighed = clone(estimator).fit(X, labels, w)
        assert np.allclose(weighed.decision_function(X), often.decision_function(X), atol=1e-8)
        assert np.allclose(weighed.class_weight_, often.class_weight_)
    rate = np.average(often.predict(X) == y, weights=w)
    assert often.score(X, y, sample_weight=w) == pytest.approx(rate)


def test_calibration_counts_rows_by_their_weights():
    X, Y = field(400)
    y = np.where(np.random.default_rng(0).random(400) < 0.3, 1 - (Y[:, 0] > 0), Y[:, 0] > 0)  # three in ten are wrong
    w = np.where(y == (Y[:, 0] > 0), 1.0, 0.01)
    fitted = ORFFClassifier(GAUSSIAN, 32, ridge=1e-6, sampler=Orthogonal()).fit(X, y, w)
    held = FoldRule.one_held(FOLDS, by_rows=True, seed=0).of_rows(np.arange(400)) == 0
    others = ORFFClassifier(GAUSSIAN, 32, ridge=1e-6, calibrate=False, sampler=Orthogonal()).fit(
        X[~held], y[~held], w[~held]
    )
    wanted = Calibration.fit(others.model_.predict(X[held]), y[held], w[held])
    assert fitted.calibration_.slope == pytest.approx(wanted.slope, rel=1e-4)
    with pytest.raises(InputError, match="sample_weight must be finite and not negative"):
        ORFFClassifier(sampler=Orthogonal()).fit(X, y, -np.ones(400))


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits(tmp_path):
    X, Y = field(70_000)
    zarr.create_array(tmp_path / "x", data=X, chunks=(3000, 2), config={"write_empty_chunks": True})
    stored = zarr.open_array(tmp_path / "x", mode="r")
    estimator = ORFFRegressor(GAUSSIAN, 16, ridge=[1e-6, 1e-3], cv=3)
    for x in (X, stored):
        one = clone(estimator).fit(x, Y).model_
        for jobs in (2, 5, -1):
            other = clone(estimator).set_params(n_jobs=jobs).fit(x, Y).model_
            assert other.coefficients.tobytes() == one.coefficients.tobytes(), jobs
    classes = [ORFFClassifier(GAUSSIAN, 16, n_jobs=jobs).fit(X, Y[:, 0] > 0).model_.coefficients for jobs in (None, 2)]
    assert np.array_equal(*classes)
    for wrong in (0, 1.5, "all"):
        with pytest.raises(InputError, match="n_jobs must be None or a whole number, -1 for all cores, not"):
            ORFFRegressor(n_jobs=wrong).fit(X[:50], Y[:50])


# --- Datasets -----------------------------------------------------------------------------------------------


def test_variables_of_a_dataset_are_columns():
    X, Y = field(100)
    expected = ORFFRegressor(n_features=16).fit(X, Y)
    inputs = xr.Dataset({"lon": ("row", X[:, 0]), "data": ("row", X[:, 1])}, coords={"time": ("row", np.arange(100))})
    targets = xr.Dataset({"u": ("row", Y[:, 0]), "v": ("row", Y[:, 1])})
    fitted = ORFFRegressor(n_features=16).fit(inputs, targets)
    assert np.array_equal(fitted.predict(inputs), expected.predict(X))
    assert fitted.feature_names_in_.tolist() == ["lon", "data"] and fitted.score(inputs, targets) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(pd.DataFrame(X, columns=["lon", "lat"]))
    lazy = ORFFRegressor(n_features=16).fit(inputs.chunk(row=30), targets.chunk(row=30))
    assert isinstance(lazy.predict(inputs.chunk(row=30)), da.Array)
    assert np.allclose(lazy.predict(inputs), expected.predict(X))
    assert ORFFRegressor(n_features=16).fit(inputs, targets[["u"]]).predict(inputs).shape == (100,)
    labels = xr.Dataset({"wet": ("row", Y[:, 0] > 0)})
    assert ORFFClassifier(n_features=16).fit(inputs, labels).predict(inputs).dtype == bool
    grid = xr.Dataset({"a": (("lat", "lon"), np.ones((2, 3))), "b": ("lat", np.ones(2))})
    for wrong in (grid, grid[["a"]]):
        with pytest.raises(InputError, match="X is a Dataset whose variables are not all along one dimension"):
            fitted.predict(wrong)
    with pytest.raises(InputError, match="X is a Dataset without variables; give some along one dimension"):
        fitted.predict(xr.Dataset())


# --- memory -------------------------------------------------------------------------------------------------


def test_more_memory_than_there_is_is_asked_for_in_a_sentence(tmp_path):
    X, Y = field(50)
    for estimator in (
        ORFFRegressor(n_features=4_000_000, sampler=Orthogonal()),
        ORFFClassifier(n_features=4_000_000, sampler=Orthogonal()),
    ):
        with pytest.raises(
            DoesNotFitError, match=r"n_features = 4000000 needs 23\d+\.\d GiB .* GiB of memory are free; low"
        ):
            estimator.fit(X, Y if isinstance(estimator, ORFFRegressor) else Y[:, 0] > 0)
    endless = zarr.create_array(tmp_path / "x", shape=(2**50, 2), chunks=(1000, 2), dtype="f8")
    with pytest.raises(DoesNotFitError, match=r"allocate .* shape .*; .* GiB of memory are free; predict fewer rows"):
        ORFFRegressor(n_features=8, sampler=Orthogonal()).fit(X, Y).predict(endless)
    with pytest.raises(DoesNotFitError, match=r"out of memory; .* are free; lower it"), enough_memory("lower it"):
        raise MemoryError
