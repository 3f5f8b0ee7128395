"""Kinds of arrays, each held against its NumPy twin: masks, names, times, missing values, lengths, text."""

import datetime
from pathlib import Path

import cftime
import dask.array as da
import netCDF4
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import xarray as xr
import zarr

from dorff import DoublyStochasticRegressor, ORFFClassifier, ORFFRegressor, RandomFeatures, StochasticORFFRegressor
from dorff.errors import InputError

ROWS = 60
NAMES = ["lon", "lat"]
UNITS = ("s", "ms", "us", "ns")
HOURS = np.datetime64("2024-01-01", "s") + np.arange(ROWS) * np.timedelta64(3600, "s")
WAVE = np.sin(np.arange(ROWS) / 6)


def regressor(**options):
    return ORFFRegressor(n_features=32, ridge=1e-6, cv=None, **options)


def rows():
    return np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))


def dataset(X, names=NAMES):
    return xr.Dataset({name: ("obs", X[:, place]) for place, name in enumerate(names)})


def named_array(X, names=NAMES):
    return xr.DataArray(X, dims=("obs", "column"), coords={"column": list(names)})


def arrow(X, names=NAMES):
    return pa.table({name: X[:, place] for place, name in enumerate(names)})


# How rows (n, 2) become each kind that has names, in the order of the names.
NAMED = {
    "pandas": lambda X, names=NAMES: pd.DataFrame(X, columns=names),
    "pandas-nullable": lambda X, names=NAMES: pd.DataFrame(X, columns=names).astype("Float64"),
    "pandas-arrow": lambda X, names=NAMES: pd.DataFrame(X, columns=names).astype("float64[pyarrow]"),
    "polars": lambda X, names=NAMES: pl.DataFrame(X, schema=names),
    "pyarrow": arrow,
    "dataset": dataset,
    "dataset-dask": lambda X, names=NAMES: dataset(X, names).chunk({"obs": ROWS}),
    "data-array": named_array,
    "data-array-dask": lambda X, names=NAMES: named_array(X, names).chunk({"obs": ROWS}),
}
UNNAMED = {
    "list": lambda X: X.tolist(),
    "masked-without-mask": np.ma.masked_array,
    "object": lambda X: X.astype(object),
    "dask": lambda X: da.from_array(X, chunks=(ROWS, 2)),
    "zarr-in-memory": lambda X: zarr.create_array({}, data=X),
    "sparse": scipy.sparse.csr_array,
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", [*NAMED, *UNNAMED])
def test_every_kind_predicts_as_its_numpy_twin(kind):
    X = rows()
    given = (NAMED | UNNAMED)[kind](X)
    twin = regressor().fit(X, X[:, 0])
    model = regressor().fit(given, X[:, 0])
    np.testing.assert_allclose(np.asarray(model.predict(given)), twin.predict(X), rtol=0, atol=1e-9)
    if "dask" not in kind:
        np.testing.assert_array_equal(np.asarray(model.predict(given)), twin.predict(X))
    assert ("feature_names_in_" in vars(model)) == (kind in NAMED)


@pytest.mark.parametrize("kind", NAMED)
def test_names_and_their_order_are_checked_of_every_kind(kind):
    X = rows()
    model = regressor().fit(NAMED[kind](X), X[:, 0])
    assert list(model.feature_names_in_) == NAMES
    for names in (NAMES[::-1], ["lon", "depth"]):
        with pytest.raises(ValueError, match="feature names"):
            model.predict(NAMED[kind](X, names))


@pytest.mark.parametrize("kind", [*NAMED, "list", "object", "dask", "zarr-in-memory"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused_of_every_kind(kind, value):
    X = rows()
    X[3, 1] = value
    with pytest.raises(ValueError, match=r"NaN|infinity|finite"):
        regressor().fit((NAMED | UNNAMED)[kind](X), X[:, 0])


@pytest.mark.parametrize("kind", [*NAMED, *UNNAMED])
def test_other_numbers_of_rows_are_refused_of_every_kind(kind):
    X = rows()
    with pytest.raises(ValueError, match=r"rows|samples|inconsistent"):
        regressor().fit((NAMED | UNNAMED)[kind](X), X[:-1, 0])


@pytest.mark.parametrize(
    "inputs",
    [
        pd.DataFrame({"a": ["x", "y"] * 30}),
        pd.DataFrame({"a": pd.Categorical(["x", "y"] * 30)}),
        pl.DataFrame({"a": ["x", "y"] * 30}),
        pa.table({"a": ["x", "y"] * 30}),
        xr.Dataset({"a": ("obs", np.array(["x", "y"] * 30, dtype=object))}),
        np.array([["x"], ["y"]] * 30, dtype=object),
    ],
    ids=["pandas", "categorical", "polars", "pyarrow", "xarray", "object"],
)
def test_text_is_refused_of_every_kind(inputs):
    with pytest.raises(ValueError, match="x"):
        regressor().fit(inputs, WAVE)


# --- masks --------------------------------------------------------------------------------------------------


def masked(values, mask):
    return np.ma.masked_array(np.where(mask, -999.0, values), mask=mask)


def targets_with_gaps():
    """Return targets, their mask and every kind of array that leaves those out."""
    values, mask = rows()[:, 0], np.arange(ROWS) % 10 == 0
    gaps = np.where(mask, np.nan, values)
    objects = [None if gap else value for value, gap in zip(values, mask, strict=True)]
    return values, mask, {
        "masked": masked(values, mask),
        "pandas": pd.Series(objects, dtype="Float64"),
        "pandas-arrow": pd.Series(objects, dtype="float64[pyarrow]"),
        "pandas-object": pd.Series([pd.NA if gap else value for value, gap in zip(values, mask, strict=True)]),
        "polars": pl.Series("y", objects),
        "pyarrow": pa.chunked_array([pa.array(objects, type=pa.float64())]),
        "xarray": xr.DataArray(gaps, dims="obs"),
        "dask-masked": da.from_array(masked(values, mask), chunks=20),
        "list-of-masked": list(masked(values, mask)[:, None]),
        "zarr": zarr.create_array({}, data=np.where(mask, -999.0, values), attributes={"_FillValue": -999.0}),
    }  # fmt: skip


@pytest.mark.parametrize("kind", targets_with_gaps()[2])
def test_masked_targets_are_missing_or_refused_of_every_kind(kind):
    X = rows()
    values, mask, kinds = targets_with_gaps()
    with pytest.raises(ValueError, match=r"NaN|finite|masked"):
        regressor().fit(X, kinds[kind])
    twin = regressor(missing="partial").fit(X, np.where(mask, np.nan, values))
    model = regressor(missing="partial").fit(X, kinds[kind])
    got = np.asarray(model.predict(X)).reshape(-1)
    np.testing.assert_allclose(got, twin.predict(X), rtol=0, atol=1e-9)
    assert model.score(X, kinds[kind]) > 0.9


@pytest.mark.parametrize("estimator", [ORFFRegressor, StochasticORFFRegressor, DoublyStochasticRegressor])
def test_masked_targets_are_refused_by_every_regressor(estimator):
    with pytest.raises(ValueError, match="NaN"):
        estimator().fit(rows(), masked(WAVE, np.arange(ROWS) == 3))


def masked_inputs(tmp_path):
    mask = np.zeros((ROWS, 2), dtype=bool)
    mask[3, 1] = True
    X = masked(rows(), mask)
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("obs", ROWS)
        file.createDimension("column", 2)
        file.createVariable("x", "f8", ("obs", "column"), fill_value=-999.0)[:] = X
    undecoded = xr.DataArray(X.data, dims=("obs", "column"), attrs={"_FillValue": -999.0})
    frame = pd.DataFrame(rows(), columns=NAMES).astype("Float64")
    frame.iloc[3, 1] = pd.NA
    return {
        "masked": X,
        "list-of-masked": list(X),
        "dask-masked": da.from_array(X, chunks=(20, 2)),
        "netcdf-variable": netCDF4.Dataset(tmp_path / "x.nc")["x"],
        "xarray-not-decoded": undecoded,
        "dataset-not-decoded": xr.Dataset({"a": ("obs", X.data[:, 1], {"missing_value": -999.0})}),
        "pandas": frame,
        "polars": pl.DataFrame({"a": [None, *([1.0] * (ROWS - 1))]}),
        "pyarrow": pa.table({"a": [None, *([1.0] * (ROWS - 1))]}),
        "zarr": zarr.create_array({}, data=X.data, attributes={"_FillValue": -999.0}),
    }


KINDS_OF_MASKED_INPUTS = "masked list-of-masked dask-masked netcdf-variable xarray-not-decoded dataset-not-decoded pandas polars pyarrow zarr"  # noqa: E501


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("kind", KINDS_OF_MASKED_INPUTS.split())
def test_masked_inputs_are_refused_of_every_kind(kind, tmp_path: Path):
    X = masked_inputs(tmp_path)[kind]
    with pytest.raises(ValueError, match=r"masked|NaN|finite|decode"):
        regressor().fit(X, WAVE)
    model = regressor().fit(rows()[:, : 1 if kind in ("dataset-not-decoded", "polars", "pyarrow") else 2], WAVE)
    with pytest.raises(ValueError, match=r"masked|NaN|finite|decode"):
        np.asarray(model.predict(X))


def test_masked_weights_labels_and_groups_are_refused():
    X, mask = rows(), np.arange(ROWS) == 3
    with pytest.raises(InputError, match=r"sample_weight.*masked"):
        regressor().fit(X, X[:, 0], masked(np.ones(ROWS), mask))
    with pytest.raises(InputError, match=r"sample_weight.*masked"):
        regressor().fit(X, X[:, 0], da.from_array(masked(np.ones(ROWS), mask)))
    labels = np.ma.masked_array(np.arange(ROWS) % 2, mask=mask)
    with pytest.raises(InputError, match="y, row 3 is masked"):
        ORFFClassifier(n_features=32).fit(X, labels)
    with pytest.raises(InputError, match="groups, row 3 is masked"):
        ORFFRegressor(n_features=32, cv=2).fit(X, X[:, 0], groups=labels)


# --- times --------------------------------------------------------------------------------------------------


def kinds_of_times():
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    datetimes = HOURS.astype("M8[us]").tolist()
    aware = [time.replace(tzinfo=datetime.UTC).astimezone(zone) for time in datetimes]
    stamps = pd.DatetimeIndex(HOURS)
    kinds = {f"numpy-{unit}": HOURS.astype(f"M8[{unit}]")[:, None] for unit in (*UNITS, "m")}
    kinds |= {f"pandas-{unit}": pd.DataFrame({"t": HOURS.astype(f"M8[{unit}]")}) for unit in UNITS}
    kinds |= {f"xarray-{unit}": xr.Dataset({"t": ("obs", HOURS.astype(f"M8[{unit}]"))}) for unit in UNITS[1:]}
    return kinds | {
        "pandas-zone": pd.DataFrame({"t": stamps.tz_localize("UTC").tz_convert("Asia/Tokyo")}),
        "pandas-objects": pd.DataFrame({"t": pd.Series(list(stamps), dtype=object)}),
        "pandas-arrow": pd.DataFrame({"t": pd.Series(stamps).astype("timestamp[us][pyarrow]")}),
        "polars": pl.DataFrame({"t": datetimes}),
        "polars-zone": pl.DataFrame({"t": aware}, schema={"t": pl.Datetime("ms", "Asia/Kolkata")}),
        "pyarrow": pa.table({"t": pa.array(datetimes, type=pa.timestamp("ns"))}),
        "pyarrow-zone": pa.table({"t": pa.array(aware, type=pa.timestamp("us", tz="Asia/Kolkata"))}),
        "list": [[time] for time in datetimes],
        "list-zone": [[time] for time in aware],
        "cftime": np.array([[cftime.DatetimeGregorian(*time.timetuple()[:6])] for time in datetimes], dtype=object),
        "dask": da.from_array(HOURS.astype("M8[ns]")[:, None], chunks=(ROWS, 1)),
        "dataset-dask": xr.Dataset({"t": ("obs", HOURS.astype("M8[ns]"))}).chunk({"obs": 20}),
    }


@pytest.mark.filterwarnings("ignore:X has feature names", "ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", kinds_of_times())
def test_times_are_the_same_instants_of_every_kind_and_unit(kind):
    twin = regressor().fit(HOURS.astype(np.int64).astype(np.float64)[:, None], WAVE)
    model = regressor().fit(kinds_of_times()["numpy-s"], WAVE)
    want = twin.predict(HOURS.astype(np.int64).astype(np.float64)[:, None])
    np.testing.assert_array_equal(np.asarray(model.predict(kinds_of_times()[kind])), want)
    fitted = regressor().fit(kinds_of_times()[kind], WAVE)
    np.testing.assert_allclose(fitted.predict(kinds_of_times()["pandas-ns"]), want, rtol=0, atol=1e-9)
    assert fitted.input_kinds_ == ("time",)
    with pytest.raises(InputError, match="column 0: expected time"):
        fitted.predict(HOURS.astype(np.float64)[:, None])
    with pytest.raises(InputError, match="column 0: expected number"):
        twin.predict(kinds_of_times()[kind])


def test_fractions_of_a_second_are_the_same_bits_of_every_unit():
    times = HOURS.astype("M8[ms]") + np.arange(ROWS) * np.timedelta64(7, "ms")
    models = [regressor().fit(times.astype(f"M8[{unit}]")[:, None], WAVE) for unit in UNITS[1:]]
    for model in models[1:]:
        np.testing.assert_array_equal(model.predict(times[:, None]), models[0].predict(times[:, None]))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def test_frames_of_times_durations_and_numbers_are_converted_column_by_column(frame):
    columns = {"t": HOURS.astype("M8[ms]"), "age": (HOURS - HOURS[0]).astype("m8[us]"), "x": rows()[:, 0]}
    model = regressor().fit(frame(columns), WAVE)
    assert model.input_kinds_ == ("time", "duration", "number")
    numbers = np.column_stack([HOURS.astype(float), np.arange(ROWS) * 3600.0, rows()[:, 0]])
    np.testing.assert_array_equal(model.predict(frame(columns)), regressor().fit(numbers, WAVE).predict(numbers))


@pytest.mark.parametrize(
    "kind",
    ["numpy-ns", "pandas-us", "xarray-ns", "pandas-zone", "pandas-objects", "pandas-arrow", "dask", "dataset-dask"],
)
def test_times_that_are_none_are_refused_of_every_kind(kind):
    X = kinds_of_times()[kind]
    if kind.startswith("pandas"):
        X.iloc[3, 0] = pd.NaT
    elif kind in ("xarray-ns", "dataset-dask"):
        times = HOURS.astype("M8[ns]")
        times[3] = "NaT"
        X = xr.Dataset({"t": ("obs", times)})
        X = X.chunk({"obs": 20}) if kind == "dataset-dask" else X
    else:
        X[3] = np.datetime64("NaT", "ns")
    with pytest.raises(InputError, match=r"row 3|missing"):
        regressor().fit(X, WAVE)


def test_calendars_of_climate_models_are_not_mixed_with_others():
    months = [[cftime.Datetime360Day(2000 + row // 12, 1 + row % 12, 30)] for row in range(ROWS)]
    model = regressor().fit(np.array(months, dtype=object), WAVE)
    assert model.input_kinds_ == ("time (360_day)",)
    with pytest.raises(InputError, match="360_day"):
        model.predict(HOURS[:, None])


def test_targets_and_weights_that_are_times_are_refused():
    for times in (HOURS, pd.Series(HOURS), pl.Series(HOURS.astype("M8[ms]")), list(HOURS.astype("M8[us]").tolist())):
        with pytest.raises(InputError, match="y must hold real numbers"):
            regressor().fit(rows(), times)
    with pytest.raises(InputError, match="sample_weight must hold real numbers"):
        regressor().fit(rows(), WAVE, HOURS - HOURS[0])


# --- units --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, 20], ids=["numpy", "dask"])
@pytest.mark.parametrize("kind", ["dataset", "data-array"])
def test_units_of_xarray_are_converted_to_those_of_the_fit_or_refused(kind, chunks):
    kelvin = 280 + rows()[:, :1]

    def inputs(values, units):
        if kind == "dataset":
            made = xr.Dataset({"sst": ("obs", values[:, 0], {"units": units})})
        else:
            made = xr.DataArray(values, dims=("obs", "column"), attrs={"units": units})
        return made if chunks is None else made.chunk({"obs": chunks})

    model = regressor().fit(inputs(kelvin, "K"), kelvin[:, 0])
    got = np.asarray(model.predict(inputs(kelvin - 273.15, "degC")))
    np.testing.assert_allclose(got, np.asarray(model.predict(inputs(kelvin, "K"))), atol=1e-6)
    with pytest.raises(InputError, match=r"column 0.*'m'"):
        model.predict(inputs(kelvin, "m"))


def test_undecoded_times_of_xarray_are_converted_between_origins():
    hours = np.arange(ROWS, dtype=float)
    fitted = xr.Dataset({"t": ("obs", hours, {"units": "hours since 2024-01-01"})})
    shifted = xr.Dataset({"t": ("obs", hours / 24 + 1, {"units": "days since 2023-12-31"})})
    model = regressor().fit(fitted, WAVE)
    np.testing.assert_allclose(model.predict(shifted), model.predict(fitted), atol=1e-6)


def test_features_of_times_do_not_depend_on_the_unit():
    features = RandomFeatures(n_features=8).fit(HOURS.astype("M8[ns]")[:, None])
    np.testing.assert_array_equal(
        features.transform(HOURS[:, None]), features.transform(HOURS.astype("M8[us]")[:, None])
    )
    with pytest.raises(InputError, match="expected time"):
        features.transform(np.arange(3.0)[:, None])
