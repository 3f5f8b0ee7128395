"""Kinds of arrays, each held against its NumPy twin: names, units, times, missing values, lengths, text.

The table `KINDS` x `CHECKS` is the one place for what holds of every kind. A cell is either right,
which is the same numbers as NumPy's, or refused, by a sentence with the words of `REFUSED`.
"""

import datetime
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cftime
import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import netCDF4
import numpy as np
import pandas as pd
import pint
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import xarray as xr
import zarr
from command_line import call

from dorff import (
    DoublyStochasticRegressor,
    ORFFClassifier,
    ORFFRegressor,
    RandomFeatures,
    StochasticORFFClassifier,
    StochasticORFFRegressor,
)
from dorff.errors import InputError
from dorff.estimators.adapter import refuse_null_labels
from dorff.kernels import Gaussian

ROWS = 60
NAMES = ["lon", "lat"]
UNITS = ("s", "ms", "us", "ns")
HOURS = np.datetime64("2024-01-01", "s") + np.arange(ROWS) * np.timedelta64(3600, "s")
WAVE = np.sin(np.arange(ROWS) / 6)


def regressor(**options):
    # A length-scale that is given takes no time to find.
    return ORFFRegressor(Gaussian(2.0), 32, ridge=1e-6, cv=None, standardize=True, **options)


def rows():
    return np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))


# --- the table: how columns become each kind -------------------------------------------------------------------------


def side_by_side(columns, names, attributes):
    return np.column_stack(columns)


def data_frame(columns, names, attributes):
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = names
    return frame


def nullable_frame(columns, names, attributes):
    # Each column alone, as two may have the same name.
    frame = pd.concat([pd.Series(column).astype("Float64") for column in columns], axis=1)
    return frame.set_axis(names, axis=1)


def dataset(columns, names, attributes):
    return xr.Dataset({name: ("obs", column, attributes) for name, column in zip(names, columns, strict=True)})


def data_array(columns, names, attributes):
    values = np.column_stack(columns)
    return xr.DataArray(values, dims=("obs", "column"), coords={"column": names}, attrs=attributes)


def quantity(columns, names, attributes):
    return pint.get_application_registry().Quantity(np.column_stack(columns), attributes.get("units", ""))


def stored_array(columns, names, attributes, folder):
    values = np.column_stack(columns)
    path = folder / f"{len(list(folder.iterdir()))}.zarr"
    return zarr.create_array(path, data=values, chunks=(20, len(columns)), attributes=attributes)


def netcdf_variable(columns, names, attributes, folder):
    file = netCDF4.Dataset(folder / f"{len(list(folder.iterdir()))}.nc", "w")
    file.createDimension("obs", len(columns[0]))
    file.createDimension("column", len(columns))
    variable = file.createVariable("x", "f8", ("obs", "column"))
    variable[:] = np.column_stack(columns)
    variable.setncatts(attributes)
    return variable


def hdf5_dataset(columns, names, attributes, folder):
    file = h5py.File(folder / f"{len(list(folder.iterdir()))}.h5", "w")
    stored = file.create_dataset("x", data=np.column_stack(columns))
    stored.attrs.update(attributes)
    return stored


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How columns become a kind of array, and what it can say or hold beside numbers."""

    build: Callable
    says: str = ""
    in_folder: bool = False


XARRAY = "names units calendars times"
KINDS = {
    "numpy": Kind(build=side_by_side, says="times"),
    "list": Kind(build=lambda *given: side_by_side(*given).tolist()),
    "object": Kind(build=lambda *given: side_by_side(*given).astype(object)),
    "masked-without-mask": Kind(build=lambda *given: np.ma.masked_array(side_by_side(*given)), says="times"),
    "sparse": Kind(build=lambda *given: scipy.sparse.csr_array(side_by_side(*given)), says="inputs only"),
    "pandas": Kind(build=data_frame, says="names duplicates times"),
    "pandas-object": Kind(build=lambda *given: data_frame(*given).astype(object), says="names duplicates"),
    "pandas-nullable": Kind(build=nullable_frame, says="names duplicates"),
    "pandas-arrow": Kind(
        build=lambda *given: nullable_frame(*given).astype("float64[pyarrow]"), says="names duplicates"
    ),
    "polars": Kind(
        build=lambda columns, names, _: pl.DataFrame(dict(zip(names, columns, strict=True))), says="names times"
    ),
    "pyarrow": Kind(
        build=lambda columns, names, _: pa.Table.from_arrays([pa.array(column) for column in columns], names=names),
        says="names duplicates times",
    ),
    "dataset": Kind(build=dataset, says=XARRAY),
    "dataset-dask": Kind(build=lambda *given: dataset(*given).chunk({"obs": 20}), says=XARRAY),
    "data-array": Kind(build=data_array, says=f"{XARRAY} duplicates"),
    "data-array-dask": Kind(
        build=lambda *given: data_array(*given).chunk({"obs": 20}), says=f"{XARRAY} duplicates"
    ),
    "dask": Kind(build=lambda *given: da.from_array(side_by_side(*given), chunks=(20, 1)), says="times"),
    "dask-frame": Kind(build=lambda *given: dd.from_pandas(data_frame(*given), npartitions=3), says="names times"),
    "zarr": Kind(build=stored_array, says="units calendars", in_folder=True),
    "zarr-in-memory": Kind(
        build=lambda columns, _, attributes: zarr.create_array(
            {}, data=np.column_stack(columns), attributes=attributes
        ),
        says="units calendars",
    ),
    "netcdf": Kind(build=netcdf_variable, says="units calendars", in_folder=True),
    "hdf5": Kind(build=hdf5_dataset, says="units calendars", in_folder=True),
    "pint": Kind(build=quantity, says="units"),
    "pint-in-xarray": Kind(
        build=lambda *given: xr.DataArray(quantity(*given), dims=("obs", "column")), says="units"
    ),
}  # fmt: skip


# --- the table: checks, whose result is what came and what NumPy's twin says -----------------------------------------


@dataclass(frozen=True, kw_only=True)
class Make:
    """Makes arrays of a kind from columns."""

    kind: Kind
    folder: Path

    def __call__(self, *columns, names=NAMES, units="", calendar=""):
        attributes = {name: text for name, text in (("units", units), ("calendar", calendar)) if text}
        folder = (self.folder,) if self.kind.in_folder else ()
        names = [*names, *(f"more{number}" for number in range(len(columns)))][: len(columns)]
        return self.kind.build(list(columns), names, attributes, *folder)

    def says_names(self):
        return "names" in self.kind.says.split()


def numbers():
    return rows()[:, 0], rows()[:, 1]


def same_numbers(make):
    x, y = numbers()
    model = regressor().fit(make(x, y), x)
    assert ("feature_names_in_" in vars(model)) == make.says_names()
    return model.predict(make(x, y)), regressor().fit(rows(), x).predict(rows())


def predict_with_names(make, names):
    x, y = numbers()
    regressor().fit(make(x, y), x).predict(make(x, y, names=names))


def predict_wrong_width(make):
    x, y = numbers()
    np.asarray(regressor().fit(make(x, y), x).predict(make(x, y, x)))


def fit_other_rows(make):
    x, y = numbers()
    regressor().fit(make(x, y), x[:-1])


def fit_value(make, value):
    x, y = numbers()
    y[3] = value
    regressor().fit(make(x, y), x)


def convert_inputs(make, units):
    x, y = (280 + column for column in numbers())
    model = regressor().fit(make(x, y, units="K"), x)
    others = make(x - 273.15, y - 273.15, units=units)
    return model.predict(others), regressor().fit(np.column_stack([x, y]), x).predict(np.column_stack([x, y]))


def convert_targets(make, units):
    x, y = (280 + column for column in numbers())
    model = regressor().fit(rows(), make(x, y, units="K"))
    twin = regressor().fit(rows(), np.column_stack([x, y]))
    scores = [
        model.score(rows(), make(x - 273.15, y - 273.15, units=units)),
        model.score(rows(), make(x, y, units="K")),
        model.score(rows(), np.column_stack([x, y])),
    ]
    return scores, [twin.score(rows(), np.column_stack([x, y]))] * 3


def add_targets_in_other_units(make):
    x, y = (280 + column for column in numbers())
    model = regressor().partial_fit(rows(), make(x, y, units="K"))
    model.partial_fit(rows(), make(x - 273.15, y - 273.15, units="degC"))
    twin = regressor().partial_fit(rows(), np.column_stack([x, y])).partial_fit(rows(), np.column_stack([x, y]))
    return model.predict(rows()), twin.predict(rows())


def add_inputs_in_other_units(make):
    x, y = (280 + column for column in numbers())
    model = regressor().partial_fit(make(x, y, units="K"), x)
    model.partial_fit(make(x - 273.15, y - 273.15, units="degC"), x)
    inputs = np.column_stack([x, y])
    twin = regressor().partial_fit(inputs, x).partial_fit(inputs, x)
    return model.predict(make(x, y, units="K")), twin.predict(inputs)


def score_targets_in_another_order(make):
    x, y = numbers()
    model = regressor().fit(rows(), make(x, y))
    model.score(rows(), make(y, x, names=NAMES[::-1]))


def score_as_twin(make):
    x, y = numbers()
    model, twin = regressor().fit(rows(), make(x, y)), regressor().fit(rows(), rows())
    scores = model.score(rows(), make(x, y)), twin.score(rows(), rows())
    return np.append(model.predict(rows()), scores[0]), np.append(twin.predict(rows()), scores[1])


def fit_targets_with_gaps(make, **options):
    x, y = numbers()
    y[3] = np.nan
    twin = regressor(missing="partial").fit(rows(), np.column_stack([x, y]))
    return regressor(**options).fit(rows(), make(x, y)).predict(rows()), twin.predict(rows())


def predict_times(make, unit):
    later = HOURS + np.timedelta64(1800, "s")
    model = regressor().fit(make(HOURS.astype("M8[ms]"), later.astype("M8[ms]")), WAVE)
    inputs = np.column_stack([HOURS, later]).astype(float)
    twin = regressor().fit(inputs, WAVE)
    return model.predict(make(HOURS.astype(f"M8[{unit}]"), later.astype(f"M8[{unit}]"))), twin.predict(inputs)


def predict_numbers_for_times(make):
    model = regressor().fit(make(HOURS.astype("M8[ms]"), HOURS.astype("M8[ms]")), WAVE)
    model.predict(make(HOURS.astype(float), HOURS.astype(float)))


def predict_times_for_numbers(make):
    model = regressor().fit(make(*numbers()), WAVE)
    model.predict(make(HOURS.astype("M8[ms]"), HOURS.astype("M8[ms]")))


def fit_no_time(make):
    times = HOURS.astype("M8[ms]")
    times[3] = np.datetime64("NaT")
    regressor().fit(make(times, times), WAVE)


def convert_origin(make, units, **attributes):
    hours = np.arange(ROWS, dtype=float)
    model = regressor().fit(make(hours, hours, units="hours since 2024-01-01", calendar="standard"), WAVE)
    twin = regressor().fit(np.column_stack([hours, hours]), WAVE)
    got = model.predict(make(hours / 24 + 1, hours / 24 + 1, units=units, **attributes))
    return got, twin.predict(np.column_stack([hours, hours]))


def convert_decoded_times(make):
    hours = np.arange(ROWS, dtype=float)
    model = regressor().fit(HOURS[:, None] + np.zeros((1, 2), "m8[s]"), WAVE)
    got = model.predict(make(hours, hours, units="hours since 2024-01-01"))
    return got, model.predict(HOURS[:, None] + np.zeros((1, 2), "m8[s]"))


# What a kind must say or hold for a check, and the check.
CHECKS = {
    "the same numbers": ("", same_numbers),
    "the same targets": ("targets", score_as_twin),
    "names in another order": ("names", lambda make: predict_with_names(make, NAMES[::-1])),
    "other names": ("names", lambda make: predict_with_names(make, ["lon", "depth"])),
    "duplicate names": ("duplicates", lambda make: predict_with_names(make, ["lon", "lon"])),
    "targets in another order": ("names", score_targets_in_another_order),
    "more columns": ("", predict_wrong_width),
    "another number of rows": ("", fit_other_rows),
    "NaN": ("", lambda make: fit_value(make, np.nan)),
    "infinity": ("", lambda make: fit_value(make, np.inf)),
    "targets with NaN": ("targets", fit_targets_with_gaps),
    "targets with gaps": ("targets", lambda make: fit_targets_with_gaps(make, missing="partial")),
    "inputs in other units": ("units", lambda make: convert_inputs(make, "degC")),
    "inputs in units of something else": ("units", lambda make: convert_inputs(make, "m")),
    "inputs of partial_fit in other units": ("units", add_inputs_in_other_units),
    "targets in other units": ("units", lambda make: convert_targets(make, "degC")),
    "targets in units of something else": ("units", lambda make: convert_targets(make, "m")),
    "targets of partial_fit in other units": ("units", add_targets_in_other_units),
    "times in microseconds": ("times", lambda make: predict_times(make, "us")),
    "times in nanoseconds": ("times", lambda make: predict_times(make, "ns")),
    "numbers for times": ("times", predict_numbers_for_times),
    "times for numbers": ("times", predict_times_for_numbers),
    "NaT": ("times", fit_no_time),
    "another origin": ("calendars", lambda make: convert_origin(make, "days since 2023-12-31")),
    "another calendar": ("calendars", lambda make: convert_origin(make, "days since 2023-12-31", calendar="noleap")),
    "a time that is none": ("calendars", lambda make: convert_origin(make, "days since then")),
    "units that are no time": ("calendars", lambda make: convert_origin(make, "m")),
    "times that are decoded in the fit": ("calendars", convert_decoded_times),
}
REFUSED = {
    "names in another order": "feature names",
    "other names": "feature names",
    "duplicate names": r"'lon' 2 times|more than one column is named 'lon'",
    "targets in another order": r"y: column 0 is 'lat', but was 'lon' in the fit",
    "more columns": "features|feature names|columns",
    "another number of rows": "rows|inconsistent",
    "NaN": "NaN|finite",
    "infinity": "infinity|finite",
    "targets with NaN": "NaN|finite",
    "inputs in units of something else": r"X, column .*'(K|kelvin)' was wanted: they measure different things",
    "targets in units of something else": r"y, column .*'(K|kelvin)' was wanted: they measure different things",
    "numbers for times": r"X, column .*: expected time values, as in the fit, got number values",
    "times for numbers": r"X, column .*: expected number values, as in the fit, got time values",
    "NaT": "missing value",
    "another calendar": r"X, column .*calendar noleap, but standard was wanted",
    "a time that is none": r"X, column .*'days since then'.*cannot be understood.*attribute units",
    "units that are no time": r"X, column .*only one of them is a time.*attribute units",
}


def cells():
    for name, kind in KINDS.items():
        able = {*kind.says.split(), *(() if "inputs only" in kind.says else ("targets",)), ""}
        for check, (needed, _) in CHECKS.items():
            if needed in able:
                yield pytest.param(name, check, id=f"{name}-{check}")


@pytest.mark.filterwarnings("ignore:X has feature names", "ignore:X does not have valid feature names")
@pytest.mark.parametrize(("kind", "check"), list(cells()))
def test_every_kind_is_as_its_numpy_twin_or_refused(kind, check, tmp_path: Path):
    make = Make(kind=KINDS[kind], folder=tmp_path)
    _, run = CHECKS[check]
    if check in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[check]):
            np.asarray(run(make))
        return
    got, wanted = run(make)
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=0, atol=1e-6)
    if check == "the same numbers" and "dask" not in kind:
        np.testing.assert_array_equal(np.asarray(got), wanted)


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


@pytest.mark.parametrize("kind", ["masked", "pandas", "pandas-arrow", "pandas-object", "polars", "pyarrow", "xarray"])
@pytest.mark.parametrize("method", ["fit", "score"])
def test_masked_targets_are_refused_by_what_takes_them(kind, method):
    """The message says that they are missing, where, and how to have them left out."""
    X = rows()
    values, _, kinds = targets_with_gaps()
    model = regressor().fit(X, values)
    with pytest.raises(InputError, match=r"y contains NaN.*masked.*row 0; .*missing='partial'"):
        getattr(model, method)(X, kinds[kind])


@pytest.mark.parametrize("estimator", [StochasticORFFRegressor, DoublyStochasticRegressor])
def test_estimators_without_partial_targets_do_not_name_them(estimator):
    with pytest.raises(InputError, match=r"y contains NaN.*row 3; leave these rows out") as refused:
        estimator().fit(rows(), masked(WAVE, np.arange(ROWS) == 3))
    assert "partial" not in str(refused.value)


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
    with pytest.raises(InputError, match="expected number"):
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
    with pytest.raises(InputError, match=r"column (0|.sst.).*'m'"):
        model.predict(inputs(kelvin, "m"))


def test_columns_in_another_order_are_refused_by_their_names_whatever_their_units():
    depth, sst = ("obs", rows()[:, 0], {"units": "m"}), ("obs", rows()[:, 1], {"units": "K"})
    model = regressor().fit(xr.Dataset({"depth": depth, "sst": sst}), WAVE)
    for other in (xr.Dataset({"sst": sst, "depth": depth}), xr.Dataset({"depth": depth, "air": depth})):
        with pytest.raises(ValueError, match="feature names"):
            model.predict(other)


@pytest.mark.filterwarnings("ignore:X has feature names", "ignore:X does not have valid feature names")
def test_units_of_decoded_times_are_not_those_of_an_attribute():
    times = xr.DataArray(HOURS.astype("M8[ns]")[:, None], dims=("obs", "column"))
    stale = times.assign_attrs(units="days since 1900-01-01")
    model = regressor().fit(times, WAVE)
    columns = xr.Dataset({"t": stale[:, 0]})
    np.testing.assert_array_equal(model.predict(stale), model.predict(times))
    np.testing.assert_array_equal(regressor().fit(columns, WAVE).predict(columns), model.predict(times))
    hours = xr.DataArray(np.arange(ROWS)[:, None], dims=("obs", "column"), attrs={"units": "hours since 2024-01-01"})
    for fitted in (regressor().fit(stale, WAVE), regressor().fit(columns.to_array().T, WAVE)):
        np.testing.assert_allclose(fitted.predict(hours), model.predict(times), atol=1e-6)
    in_data_set = xr.Dataset({"t": ("obs", np.arange(ROWS), {"units": "hours since 2024-01-01"})})
    got = regressor().fit(columns, WAVE).predict(in_data_set)
    np.testing.assert_allclose(got, model.predict(times), atol=1e-6)


def test_parts_of_a_dask_data_frame_may_be_empty():
    frame = dd.from_pandas(pd.DataFrame({"row": np.arange(60.0)}), npartitions=3)
    some = frame[frame["row"] < 10]
    model = regressor().fit(some, some["row"])
    twin = regressor().fit(np.arange(10.0)[:, None], np.arange(10.0))
    np.testing.assert_allclose(np.asarray(model.predict(some)), twin.predict(np.arange(10.0)[:, None]), atol=1e-9)


def test_units_of_times_that_cannot_be_understood_are_refused_by_fit():
    unclear = xr.DataArray(rows(), dims=("obs", "column"), attrs={"units": "days since then"})
    for X, y, name in ((unclear, WAVE, "X"), (rows(), unclear, "y")):
        with pytest.raises(InputError, match=f"{name}, column 0: .*cannot be understood"):
            regressor().fit(X, y)


def test_targets_of_one_variable_are_predicted_as_one_column():
    model = regressor().fit(rows(), xr.Dataset({"u": ("obs", WAVE)}))
    assert model.predict(rows()).shape == (ROWS,)


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


@pytest.mark.parametrize("estimator", [ORFFRegressor, StochasticORFFRegressor, DoublyStochasticRegressor])
def test_units_of_targets_are_kept_by_every_regressor(estimator):
    def targets(values, units):
        return xr.DataArray(values, dims="obs", attrs={"units": units})

    celsius = 20 + WAVE
    model = estimator(kernel=Gaussian(1.0), n_features=32).partial_fit(rows(), targets(celsius, "degC"))
    twin = estimator(kernel=Gaussian(1.0), n_features=32).partial_fit(rows(), celsius)
    assert model.score(rows(), targets(celsius + 273.15, "K")) == pytest.approx(twin.score(rows(), celsius))
    model.partial_fit(rows(), targets(celsius + 273.15, "K"))
    np.testing.assert_allclose(model.predict(rows()), twin.partial_fit(rows(), celsius).predict(rows()), atol=1e-6)
    for use in (model.score, model.partial_fit):
        with pytest.raises(InputError, match=r"y, column 0: is in 'm', but 'degC' was wanted"):
            use(rows(), targets(celsius, "m"))
    model.fit(rows(), targets(celsius, "m"))
    with pytest.raises(InputError, match=r"'degC', but 'm' was wanted"):
        model.score(rows(), targets(celsius, "degC"))


@pytest.mark.parametrize("estimator", [ORFFClassifier, StochasticORFFClassifier])
def test_units_of_inputs_are_converted_by_classifiers(estimator):
    def inputs(values, units):
        return xr.DataArray(values, dims=("obs", "column"), attrs={"units": units})

    X, labels = 10 * rows(), rows()[:, 0] > 0
    model = estimator(kernel=Gaussian(1.0), n_features=32).fit(inputs(X, "m"), labels)
    np.testing.assert_array_equal(model.predict(inputs(X / 1000, "km")), model.predict(inputs(X, "m")))
    assert model.score(inputs(X * 100, "cm"), labels) == model.score(X, labels)
    with pytest.raises(InputError, match="'K', but 'm' was wanted"):
        model.predict(inputs(X, "K"))


def test_units_of_each_column_come_from_a_data_set_of_dorff(tmp_path: Path):
    columns = {"depth": rows()[:, 0], "sst": 280 + rows()[:, 1], "u": WAVE}
    units = {"depth": "m", "sst": "K", "u": "m/s"}
    source = xr.Dataset({name: ("obs", values, {"units": units[name]}) for name, values in columns.items()})
    source.to_netcdf(tmp_path / "rows.nc")
    target = tmp_path / "rows.zarr"
    assert call("ingest", tmp_path / "rows.nc", target, "--inputs", "depth,sst", "--targets", "u").exit_code == 0
    model = regressor().fit(zarr.open(target)["x"], zarr.open(target)["y"])
    others = {"depth": columns["depth"] / 1000, "sst": columns["sst"] - 273.15}
    asked = xr.Dataset(
        {"depth": ("obs", others["depth"], {"units": "km"}), "sst": ("obs", others["sst"], {"units": "degC"})}
    )
    with pytest.warns(UserWarning, match="has feature names"):
        got = model.predict(asked)
    np.testing.assert_allclose(got.ravel(), np.ravel(model.predict(zarr.open(target)["x"])), atol=1e-6)
    speeds = xr.DataArray(100 * WAVE, dims="obs", attrs={"units": "cm/s"})
    assert model.score(zarr.open(target)["x"], speeds) > 0


# --- calendars ----------------------------------------------------------------------------------------------


def months(calendar, first=2000):
    """Return one time (60, 1) for each month, by a calendar."""
    times = [cftime.datetime(first + row // 12, 1 + row % 12, 15, calendar=calendar) for row in range(ROWS)]
    return np.array(times, dtype=object)[:, None]


@pytest.mark.parametrize("calendar", ["noleap", "all_leap", "360_day", "julian", "standard", "proleptic_gregorian"])
def test_decoded_and_undecoded_times_of_a_calendar_are_the_same(calendar):
    decoded = months(calendar)
    days = cftime.date2num(decoded, "days since 2000-01-01", calendar=calendar).astype(float)
    attributes = {"units": "days since 2000-01-01", "calendar": calendar}
    undecoded = xr.DataArray(days, dims=("obs", "column"), attrs=attributes)
    model = regressor().fit(decoded, WAVE)
    np.testing.assert_allclose(model.predict(undecoded), model.predict(decoded), atol=1e-6)
    model = regressor().fit(undecoded, WAVE)
    np.testing.assert_allclose(model.predict(decoded), model.predict(undecoded), atol=1e-6)
    other = "360_day" if calendar == "noleap" else "noleap"
    for times in (months(other), undecoded.assign_attrs(calendar=other)):
        with pytest.raises(InputError, match=f"calendar {other}, but {calendar} was wanted"):
            model.predict(times)


@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian"])
def test_times_before_the_gregorian_calendar_are_not_mixed(calendar):
    other = {"standard": "proleptic_gregorian", "proleptic_gregorian": "standard"}[calendar]
    model = regressor().fit(months(calendar, first=1500), WAVE)
    assert np.isfinite(model.predict(months(calendar, first=1500))).all()
    assert np.isfinite(model.predict(months(other, first=1600))).all()
    with pytest.raises(InputError, match="before October 15, 1582"):
        model.predict(months(other, first=1500))


def test_times_by_two_calendars_in_one_column_are_refused():
    mixed = np.concatenate([months("standard")[:30], months("proleptic_gregorian")[30:]])
    with pytest.raises(InputError, match="calendars proleptic_gregorian and standard; give one"):
        regressor().fit(mixed, WAVE)


# --- containers that cannot be taken, and labels ------------------------------------------------------------


class Quantity(np.ndarray):
    """An array with units as astropy has it, which NumPy takes for a plain one."""


class Angle(Quantity):
    """A quantity of its own kind."""


class unyt_array(np.ndarray):
    """An array with units as unyt has it."""


class BaseColumn(np.ndarray):
    """A column of a table of astropy, which may have a unit."""


class Table:
    """A table of astropy, which is no array."""


class QTable(Table):
    """One whose columns are quantities."""


class Time:
    """Times of astropy, which are no array."""


for packaged in (Quantity, Angle, BaseColumn, Table, QTable, Time):
    packaged.__module__ = "astropy.core"
unyt_array.__module__ = "unyt.array"


def dask_objects(values):
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(pd.DataFrame({"a": values}, dtype=object), npartitions=3)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (pl.LazyFrame({"a": WAVE}), r"give its .collect\(\)"),
        (xr.Variable(("obs", "column"), rows()), "X is an xarray Variable; give a DataArray or a Dataset"),
        (xr.Dataset(coords={"time": WAVE, "lat": WAVE}), "without variables, with the coordinates time, lat alone"),
        (xr.Dataset({"a": ("t", WAVE), "b": ("z", WAVE)}), r"not all along one dimension: a \(t\), b \(z\); stack"),
        (xr.Dataset({"a": (("t", "z"), rows())}), r"not all along one dimension: a \(t, z\); stack"),
        (xr.DataTree(xr.Dataset({"a": ("obs", WAVE)})), "X is an xarray DataTree"),
        (np.rec.fromarrays([WAVE, WAVE], names="a,b"), "structured array; give a data frame"),
        (rows().view(Quantity), "X is a quantity of astropy; give its numbers"),
        (rows().view(Angle), "X is a quantity of astropy; give its numbers"),
        (rows().view(unyt_array), "X is a quantity of unyt; give its numbers"),
        (rows().view(BaseColumn), r"X is a column of a Table of astropy; give its numbers, its \.data"),
        (Table(), r"X is a Table of astropy; give a data frame, its \.to_pandas\(\)"),
        (QTable(), r"X is a Table of astropy"),
        (Time(), r"X is a Time of astropy; give its \.datetime64"),
        (np.array([[pint.Quantity(value, "m")] for value in WAVE], dtype=object), "holds quantities of pint"),
        ([[pint.Quantity(value, "m")] for value in WAVE], "holds quantities of pint"),
        (pd.DataFrame({"when": pd.period_range("2024-01", periods=ROWS, freq="M")}), "'when': holds periods of pandas"),
        (pd.DataFrame({"z": pd.interval_range(0, ROWS)}), "'z': holds intervals of pandas"),
        (dask_objects(HOURS.astype("M8[us]").tolist()), "columns of dtype object hold times"),
        (dd.from_pandas(pd.DataFrame({"a": ["x", "y"] * 30}), npartitions=3), "expected numbers or times"),
    ],
    ids=[
        *(
            "lazy-frame",
            "variable",
            "coordinates",
            "two-dimensions",
            "grid",
            "tree",
            "structured",
            "astropy",
            "angle",
            "unyt",
            "column",
            "table",
            "qtable",
        ),
        *("time", "pint-objects", "pint-list", "periods", "intervals", "dask-objects", "dask-text"),
    ],
)
def test_containers_that_cannot_be_taken_are_refused(inputs, words):
    with pytest.raises(InputError, match=words):
        regressor().fit(inputs, WAVE)


LABELS = np.where(WAVE > 0, "up", "down")


# --- rows of xarray that are named by a coordinate -------------------------------------------------------------------

COORDINATES = {
    "numbers": np.arange(ROWS),
    "times": HOURS.astype("M8[ns]"),
    "text": np.array([f"p{place}" for place in range(ROWS)]),
    "two levels": pd.MultiIndex.from_product([range(ROWS // 6), list("abcdef")], names=["day", "place"]),
}


def along(values, kind, *, shift=0, dimension="obs"):
    """Values along a coordinate, which begins at another of its rows with `shift`, or turned round with -1."""
    index = pd.Index(COORDINATES[kind])
    index = index[::-1] if shift == -1 else index.take(np.roll(np.arange(ROWS), shift))
    if isinstance(index, pd.MultiIndex):
        coordinates = xr.Coordinates.from_pandas_multiindex(index, dimension)
    else:
        coordinates = {dimension: index}
    dimensions = (dimension, "column")[: np.ndim(values)]
    return xr.DataArray(values, dims=dimensions, coords=coordinates)


def inputs_along(kind, *, dataset):
    """Inputs along a coordinate, as a Dataset or a DataArray."""
    array = along(rows(), kind)
    return xr.Dataset({name: array[:, place] for place, name in enumerate(NAMES)}) if dataset else array


@pytest.mark.parametrize("dataset", [False, True], ids=["array", "dataset"])
@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("shift", [-1, 1])
def test_rows_of_other_coordinates_are_refused(kind, dataset, shift):
    X = inputs_along(kind, dataset=dataset)
    words = r"'obs' are not those of X, in the same order; align them with xarray.align, or .*drop_vars\('obs'\)"
    with pytest.raises(InputError, match=r"y: .*" + words):
        regressor().fit(X, along(WAVE, kind, shift=shift))
    with pytest.raises(InputError, match=r"sample_weight: .*" + words):
        regressor().fit(X, WAVE, sample_weight=along(np.ones(ROWS), kind, shift=shift))


@pytest.mark.filterwarnings("ignore:X has feature names", "ignore:X does not have valid feature names")
@pytest.mark.parametrize("dataset", [False, True], ids=["array", "dataset"])
@pytest.mark.parametrize("kind", COORDINATES)
def test_rows_of_the_same_coordinates_or_none_go_by_position(kind, dataset):
    X, wanted = inputs_along(kind, dataset=dataset), regressor().fit(rows(), WAVE).predict(rows())
    dropped = along(WAVE, "numbers", shift=-1).drop_vars("obs")
    others = [along(WAVE, kind), dropped, along(WAVE, kind, shift=1, dimension="row"), WAVE, pd.Series(WAVE)[::-1]]
    for y in others[:-1]:
        np.testing.assert_allclose(regressor().fit(X, y).predict(rows()), wanted, atol=1e-9)
    assert np.isfinite(regressor().fit(X, others[-1]).predict(rows())).all()


@pytest.mark.parametrize("estimator", [ORFFRegressor, StochasticORFFRegressor, DoublyStochasticRegressor])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_every_regressor_refuses_rows_of_other_coordinates(estimator, method):
    X, model = inputs_along("times", dataset=False), estimator(kernel=Gaussian(2.0))
    with pytest.raises(InputError, match=r"y: .*align"):
        getattr(model, method)(X, along(WAVE, "times", shift=1))
    model.fit(X, along(WAVE, "times"))
    with pytest.raises(InputError, match=r"y: .*align"):
        model.score(X, along(WAVE, "times", shift=1))


@pytest.mark.parametrize("estimator", [ORFFClassifier, StochasticORFFClassifier])
def test_every_classifier_refuses_rows_of_other_coordinates(estimator):
    X, weights = inputs_along("numbers", dataset=True), along(np.ones(ROWS), "numbers", shift=-1)
    model = estimator(Gaussian(2.0), 32)
    with pytest.raises(InputError, match=r"y: .*align"):
        model.fit(X, along(LABELS, "numbers", shift=1))
    with pytest.raises(InputError, match=r"sample_weight: .*align"):
        model.fit(X, LABELS, sample_weight=weights)
    model.fit(X, along(LABELS, "numbers"))
    with pytest.raises(InputError, match=r"sample_weight: .*align"):
        model.score(X, LABELS, sample_weight=weights)


def test_groups_of_other_coordinates_are_refused():
    X, groups = inputs_along("numbers", dataset=False), along(np.arange(ROWS) // 6, "numbers", shift=1)
    with pytest.raises(InputError, match=r"groups: .*align"):
        ORFFRegressor(Gaussian(2.0), 32, ridge=1e-6, cv=3).fit(X, WAVE, groups=groups)


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(LABELS).astype("category"),
        pl.Series(LABELS).cast(pl.Categorical),
        pa.chunked_array([pa.array(LABELS.tolist())]),
        xr.Dataset({"label": ("obs", LABELS)}),
        xr.DataArray(LABELS, dims="obs"),
        dd.from_pandas(pd.Series(LABELS), npartitions=3),
        dd.from_pandas(pd.DataFrame({"label": LABELS}), npartitions=3)["label"],
        da.from_array(LABELS, chunks=20),
    ],
    ids=["pandas", "polars", "pyarrow", "dataset", "data-array", "dask-series", "dask-column", "dask"],
)
def test_labels_of_every_kind_are_those_of_numpy(labels):
    twin = ORFFClassifier(Gaussian(1.0), 32, calibrate=False).fit(rows(), LABELS)
    model = ORFFClassifier(Gaussian(1.0), 32, calibrate=False).fit(rows(), labels)
    assert model.classes_.tolist() == ["down", "up"]
    assert model.score(rows(), labels) == twin.score(rows(), LABELS)
    np.testing.assert_allclose(model.decision_function(rows()), twin.decision_function(rows()), atol=1e-9)


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series([None, *LABELS[1:]], dtype="string"),
        pd.Series([np.nan, *LABELS[1:]], dtype=object),
        pl.Series([None, *LABELS[1:].tolist()]),
        pa.chunked_array([pa.array([None, *LABELS[1:].tolist()])]),
        np.array([None, *LABELS[1:]], dtype=object),
        xr.DataArray(np.array([np.nan, *LABELS[1:]], dtype=object), dims="obs"),
    ],
    ids=["pandas-NA", "pandas-NaN", "polars", "pyarrow", "object", "xarray"],
)
def test_labels_and_groups_that_are_null_are_refused_of_every_kind(labels):
    model = ORFFClassifier(Gaussian(1.0), 32, calibrate=False)
    with pytest.raises(InputError, match="y, row 0 is"):
        model.fit(rows(), labels)
    with pytest.raises(InputError, match="y, row 0 is"):
        model.fit(rows(), LABELS).score(rows(), labels)
    for estimator, targets in ((ORFFRegressor, WAVE), (ORFFClassifier, LABELS)):
        with pytest.raises(InputError, match="groups, row 0 is"):
            estimator(Gaussian(1.0), 32, cv=2).fit(rows(), targets, groups=labels)


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[us]", "M8[D]", "m8[ns]", "m8[s]"])
def test_groups_that_are_no_time_are_refused(dtype):
    groups = np.arange(ROWS).astype(dtype)
    groups[3] = "NaT"
    with pytest.raises(InputError, match="groups, row 3 is NaT"):
        ORFFRegressor(Gaussian(1.0), 32, cv=2).fit(rows(), WAVE, groups=groups)


@pytest.mark.parametrize("labels", [np.arange(10**5), np.ones(10**5, bool), np.full(10**5, "up"), np.ones(10**5)])
def test_labels_are_not_made_objects_to_find_null_ones(labels):
    """Every object would take dozens of bytes."""
    tracemalloc.start()
    refuse_null_labels(labels, "y", "give it a label")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(labels)


def test_labels_of_lists_are_null_beside_text():
    with pytest.raises(InputError, match="y, row 1 is nan"):
        refuse_null_labels(["a", np.nan], "y", "give it a label")


def test_labels_that_are_not_decoded_are_refused():
    labels = xr.DataArray(np.where(WAVE > 0, 1, -99), dims="obs", attrs={"_FillValue": -99})
    with pytest.raises(InputError, match="_FillValue is not applied yet"):
        ORFFClassifier(Gaussian(1.0), 32).fit(rows(), labels)


@pytest.mark.parametrize(("estimator", "targets"), [(ORFFRegressor, WAVE), (ORFFClassifier, LABELS)])
def test_weights_of_a_score_are_checked_as_those_of_a_fit(estimator, targets):
    model = estimator(kernel=Gaussian(1.0), n_features=32).fit(rows(), targets)
    weights = masked(np.ones(ROWS), np.arange(ROWS) == 3)
    for kind in (weights, pd.Series(np.ma.filled(weights, np.nan)), -np.ones(ROWS)):
        with pytest.raises(InputError, match="sample_weight must be finite and not negative"):
            model.score(rows(), targets, kind)
    with pytest.raises(InputError, match="so that no row counts"):
        model.score(rows(), targets, np.zeros(ROWS))


@pytest.mark.parametrize("estimator", [ORFFRegressor, ORFFClassifier, StochasticORFFRegressor])
def test_weights_may_be_a_column(estimator):
    targets = LABELS if estimator is ORFFClassifier else WAVE
    weights = 1 + np.arange(ROWS) % 3.0
    kinds = (
        weights[:, None],
        pd.DataFrame({"w": weights}),
        pl.DataFrame({"w": weights}),
        da.from_array(weights[:, None], chunks=(20, 1)),
        zarr.array(weights[:, None]),
    )

    def score_weighted(given):
        model = estimator(kernel=Gaussian(1.0), n_features=32).fit(rows(), targets, given)
        return model.score(rows(), targets, given)

    expected = score_weighted(weights)
    for column in kinds:
        assert score_weighted(column) == pytest.approx(expected, rel=1e-9)


def test_names_of_targets_are_those_of_every_kind_of_table():
    Y = np.column_stack([rows()[:, 0], rows()[:, 1]])
    tables = (pd.DataFrame(Y, columns=["u", "v"]), pa.table({"u": Y[:, 0], "v": Y[:, 1]}), dataset(Y.T, ["u", "v"], {}))
    for table in tables:
        model = ORFFRegressor(Gaussian(1.0), 32, cv=3).fit(rows(), table)
        assert [output.target for output in model.quality_.outputs] == ["u", "v"]


# --- pickles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [ORFFRegressor, ORFFClassifier, StochasticORFFRegressor, DoublyStochasticRegressor, RandomFeatures]
)
def test_pickles_of_an_earlier_version_take_numbers_and_refuse_times(estimator):
    targets = LABELS if estimator is ORFFClassifier else WAVE
    model = estimator(kernel=Gaussian(1.0), n_features=32).fit(rows(), targets)
    state = {name: value for name, value in model.__getstate__().items() if not name.endswith("_columns_")}
    earlier = estimator.__new__(estimator)
    earlier.__setstate__(state)
    answer = earlier.transform if estimator is RandomFeatures else earlier.predict
    expected = model.transform(rows()) if estimator is RandomFeatures else model.predict(rows())
    np.testing.assert_array_equal(answer(rows()), expected)
    if estimator is not RandomFeatures:
        assert earlier.score(rows(), targets) == model.score(rows(), targets)
    with pytest.raises(InputError, match="fit again"):
        answer(np.column_stack([HOURS, HOURS]))
    restored = pickle.loads(pickle.dumps(model))
    assert restored.input_kinds_ == model.input_kinds_


NAMED_TARGETS = {
    "dataset": lambda name, values, units: xr.Dataset({name: ("row", values, {"units": units})}),
    "lazy dataset": lambda name, values, units: xr.Dataset({name: ("row", values, {"units": units})}).chunk(row=40),
    "data array": lambda name, values, units: xr.DataArray(
        values[:, None], dims=("row", "variable"), coords={"variable": [name]}, attrs={"units": units}
    ),
}


@pytest.mark.parametrize("kind", NAMED_TARGETS)
def test_targets_of_another_name_are_converted_too(kind):
    X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    t = 280 + 5 * np.sin(X[:, 0])
    make = NAMED_TARGETS[kind]
    model = ORFFRegressor(n_features=32, ridge=1e-6, random_state=0).fit(X, make("sst", t, "K"))
    assert model.score(X, make("analysed_sst", t - 273.15, "degC")) > 0.99
    model.partial_fit(X, make("sst_skin", t - 273.15, "degC"))
    assert model.score(X, t) > 0.99
    with pytest.raises(InputError, match="'m s-1'"):
        model.score(X, make("speed", t, "m s-1"))


COMPLEX = {
    "pandas": lambda X: pd.DataFrame({"a": X[:, 0] + 1j, "b": X[:, 1]}),
    "dataset": lambda X: xr.Dataset({"a": ("row", X[:, 0] + 1j), "b": ("row", X[:, 1])}),
    "dask frame": lambda X: dd.from_pandas(pd.DataFrame({"a": X[:, 0] + 1j, "b": X[:, 1]}), npartitions=2),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", COMPLEX)
def test_complex_numbers_lose_no_part(kind):
    X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    model = ORFFRegressor(n_features=8, ridge=1e-3)
    with pytest.raises(InputError, match="complex"):
        model.fit(COMPLEX[kind](X), X[:, 0])
    with pytest.raises(InputError, match="complex"):
        model.fit(X, COMPLEX[kind](X))


@pytest.mark.parametrize("method", ["set_auto_mask", "set_auto_scale", "set_auto_maskandscale"])
def test_packed_numbers_that_netcdf4_leaves_so_are_refused(method, tmp_path: Path):
    X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("row", 50)
        for name, attributes in (("t", {"scale_factor": 0.01, "add_offset": 280.0}), ("plain", {})):
            variable = file.createVariable(name, "i2", ("row",), fill_value=-999 if attributes else None)
            variable.setncatts(attributes)
            variable[:] = 280.0 + X[:, 0]
    model = ORFFRegressor(n_features=8, ridge=1e-3, missing="partial")
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        model.fit(X, file["t"])
        getattr(file, method)(False)
        with pytest.raises(InputError, match="set_auto_maskandscale"):
            model.fit(X, file["t"])
        model.fit(X, file["plain"])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "h"])
@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_of_another_byte_order_are_the_same_times(kind: str, unit: str) -> None:
    """As FITS, classic NetCDF and instruments write them."""
    times = (HOURS if kind == "M8" else HOURS - HOURS[0]).astype(f"{kind}[{unit}]")[:, None]
    model = regressor().fit(times, WAVE)
    swapped = times.astype(times.dtype.newbyteorder())
    np.testing.assert_array_equal(model.predict(swapped), model.predict(times))
    np.testing.assert_array_equal(regressor().fit(swapped, WAVE).predict(times), model.predict(times))


def test_lists_of_quantities_are_no_targets() -> None:
    with pytest.raises(InputError, match="y: holds quantities of pint; give one Quantity of an array"):
        regressor().fit(rows(), [pint.Quantity(value, "m") for value in WAVE])
