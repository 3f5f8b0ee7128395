"""Inputs, targets and weights of every kind of array as numbers that scikit-learn can check.

`adapt_inputs` and `adapt_targets` are the one entrance for all estimators. Masked and null
values become NaN, times become seconds, and what Dask and Zarr hold stays unread.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import dask.array as da
import narwhals as nw
import numpy as np
import numpy.typing as npt
import scipy.sparse
import zarr
from zarr.storage import LocalStore, MemoryStore

from dorff.data.nodes import StoredArray, open_array
from dorff.data.packing import NUMBER_KEYS, NUMBER_KINDS, Packing
from dorff.data.units import units_conversion
from dorff.errors import InputError
from dorff.estimators.arrays import Deferred, StoredRows
from dorff.moments import FloatArray

NUMBER: Final = "number"
TIME: Final = "time"
DURATION: Final = "duration"
#: The origin of times: they are float64 seconds since then, in UTC.
TIME_ORIGIN: Final = np.datetime64("1970-01-01T00:00:00", "s")
_UNIT_PICOSECONDS: Final = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9}
_UNIX: Final = "microseconds since 1970-01-01"


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedInputs:
    """Inputs (n, d): `values` that scikit-learn checks, or `Deferred`, and what is known of their columns.

    `kinds` are "number", "time", "duration" or "time (calendar)" of a calendar of climate
    models; `units` are those of the columns' attributes, "" where there are none. Both
    are None where nothing is known, and all values are numbers then.
    `names` are those of `Deferred` values; others carry their own.
    """

    values: Any
    names: tuple[Any, ...] | None = None
    kinds: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None

    def convert_units(self, fitted: tuple[str, ...]) -> Any:
        """Return the values in the units of the fit; InputError where a column cannot be converted."""
        values = self.values
        for place, (given, wanted) in enumerate(zip(self.units or (), fitted, strict=False)):
            conversion = units_conversion({"units": given}, {"units": wanted}, f"X, column {place}")
            if conversion is None or conversion.is_identity:
                continue
            if isinstance(values, StoredRows):
                problem = f"X, column {place}: is in {given!r}, but was fitted in {wanted!r}"
                raise InputError(f"{problem}; write the array in the units of the fit")
            # A Dask array stays lazy; what is in memory is copied, as it is the caller's.
            columns = np.arange(values.shape[1]) == place
            if isinstance(values, da.Array):
                scaled = (values * conversion.factor + conversion.shift) / conversion.divisor
                values = da.where(columns, scaled, values)
            else:
                frame = values.copy()
                numbers = np.asarray(values)[:, place]
                if isinstance(frame, np.ndarray):
                    frame = frame.astype(np.float64)
                    frame[:, place] = conversion.convert(numbers, f"X, column {place}")
                else:
                    frame.isetitem(place, conversion.convert(numbers, f"X, column {place}"))
                values = frame
        return values


@dataclass(frozen=True, kw_only=True, eq=False)
class _Column:
    """Numbers (n,), or values that scikit-learn will judge, and their kind."""

    values: Any
    kind: str = NUMBER


def adapt_inputs(X: Any) -> AdaptedInputs:
    """Return inputs of any kind as numbers, with what their columns are.

    Raises
    ------
    InputError
        A value is masked, a time is NaT, or a column holds neither numbers nor times.
    """
    if scipy.sparse.issparse(X):
        _check_numbers(X, "X", dimensions=(2,))
        return AdaptedInputs(values=StoredRows("X", X.tocsr().astype(np.float64)))
    if _is_xarray(X):
        return _dataset_inputs(X) if type(X).__name__ == "Dataset" else _data_array_inputs(X)
    units = _file_units(X)
    X = open_stored(X, "X", _stored_rows)
    if isinstance(X, StoredRows):
        units = units or _stored_units(X)
    adapted = _plain_inputs(X)
    width = _width(adapted.values) if units else 0
    return replace(adapted, units=(units,) * width) if width else adapted


def adapt_targets(y: Any, name: str = "y") -> Any:
    """Return targets, or weights, of any kind as numbers; NaN where one is masked or null.

    Raises
    ------
    InputError
        They are times, or text.
    """
    if _is_xarray(y):
        if type(y).__name__ == "Dataset":
            y = _dataset_targets(y, name)
        else:
            _refuse_packed(y.attrs, name)
            y = y.data
    y = open_stored(y, name, _stored_rows)
    if isinstance(y, Deferred):
        _check_numbers(y, name, dimensions=(1, 2))
        return unmask_chunks(y) if isinstance(y, da.Array) else y
    frame = nw.from_native(y, allow_series=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = [_series_column(series, name) for series in frame.iter_columns()]
        _refuse_times(columns, name)
        return np.column_stack([column.values for column in columns]) if columns else y
    if isinstance(frame, nw.Series):
        column = _series_column(frame, name)
        _refuse_times([column], name)
        return column.values
    array = _as_array(y)
    if isinstance(array, np.ma.MaskedArray):
        return _unmasked(array, name)
    if isinstance(array, np.ndarray) and array.dtype.kind in "mMO":
        flat = _column(array.reshape(-1), name)
        _refuse_times([flat], name)
        return np.asarray(flat.values).reshape(array.shape)
    return y


def adapt_weights(weights: Any, n: int) -> FloatArray | None:
    """Return weights (n,) in memory from any kind; InputError unless finite, not negative, not all zero."""
    if weights is None:
        return None
    try:
        values = adapt_targets(weights, "sample_weight")
        numbers = np.asarray(values[:] if isinstance(values, StoredRows) else values, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers, one a row ({error})") from None
    if isinstance(values, StoredRows) and values.ndim == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (n,):
        raise InputError(f"sample_weight must have one number for each of the {n} rows; got shape {numbers.shape}")
    if not (np.isfinite(numbers).all() and np.all(numbers >= 0) and numbers.any()):
        problem = "sample_weight must be finite and not negative, without masked or null values"
        raise InputError(f"{problem}, and no fit is left where all weights are zero")
    return numbers


def adapt_labels(values: Any, name: str) -> Any:
    """Return labels or groups that are masked arrays or data frames' columns as NumPy's; InputError at masked ones."""
    if _is_netcdf(values):
        values = values[...]
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        if mask.any():
            row = int(np.argwhere(mask)[0][0])
            raise InputError(f"{name}, row {row} is masked: expected a label; leave the row out, or give it one")
        return values.data
    series = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(series, nw.Series) and not series.implementation.is_pandas():
        return series.to_numpy()
    return values


def open_stored(values: Any, name: str, of_store: Callable[[Path, str], Any]) -> Any:
    """Return a Zarr array in a local folder as `of_store` makes it, one in memory unpacked, xarray's data as it is.

    InputError for groups, Dask data frames and Zarr arrays elsewhere.
    """
    if _is_xarray(values):
        values = _dataset_targets(values, name) if type(values).__name__ == "Dataset" else values.data
    if isinstance(values, zarr.Group):
        raise InputError(f"{name} is a Zarr group; give one of its arrays, such as group['x']")
    if _module(values) in ("dask", "dask_expr") and not isinstance(values, da.Array) and _is_dask_frame(values):
        raise InputError(f"{name} is a Dask data frame; give its .to_dask_array(lengths=True)")
    if _is_netcdf(values):
        return values[...]
    if _module(values) == "h5py":
        return Packing.of(dict(values.attrs), values.dtype, name).decode(values[...])
    if not isinstance(values, zarr.Array):
        return values
    if isinstance(values.store, LocalStore):
        return of_store((Path(values.store.root) / values.path).absolute(), name)
    if isinstance(values.store, MemoryStore):
        stored = np.asarray(values[...])
        is_number = stored.dtype.kind in NUMBER_KINDS
        return Packing.of(dict(values.attrs), stored.dtype, name).decode(stored) if is_number else stored
    problem = f"{name} is a Zarr array in a {type(values.store).__name__}, where lost chunks cannot be told from zeros"
    raise InputError(f"{problem}; copy it to a local folder first, or give a NumPy array")


def unmask_chunks(values: da.Array) -> da.Array:
    """Return a Dask array whose masked values are NaN, lazily."""
    chunks: da.Array = da.map_blocks(_unmask_chunk, values, dtype=values.dtype, meta=np.empty((0,) * values.ndim))
    return chunks


def _unmask_chunk(chunk: Any) -> Any:
    return _masked_to_nan(chunk) if isinstance(chunk, np.ma.MaskedArray) else chunk


def _masked_to_nan(values: Any) -> FloatArray:
    filled: FloatArray = values.astype(np.float64).filled(np.nan)
    return filled


def _module(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _is_xarray(values: Any) -> bool:
    return _module(values) == "xarray"


def _is_netcdf(values: Any) -> bool:
    return _module(values) == "netCDF4"


def _is_dask_frame(values: Any) -> bool:
    return nw.dependencies.is_dask_dataframe(values) or type(values).__name__ in ("Series", "DataFrame", "Index")


def _stored_rows(path: Path, name: str) -> StoredRows:
    return StoredRows(name, open_array(path.parent, path.name))


def _stored_units(rows: StoredRows) -> str:
    assert isinstance(rows.source, StoredArray)
    return str(dict(rows.source.array.attrs).get("units", ""))


def _file_units(values: Any) -> str:
    """Return the attribute `units` of a variable of an open file, or of a Zarr array in memory."""
    if _is_netcdf(values):
        return str(values.__dict__.get("units", ""))
    if _module(values) == "h5py":
        return str(values.attrs.get("units", ""))
    if isinstance(values, zarr.Array) and isinstance(values.store, MemoryStore):
        return str(values.attrs.get("units", ""))
    return ""


def _check_numbers(values: Any, name: str, *, dimensions: Sequence[int]) -> None:
    """Check what is not read now: its dimensions, and that it holds numbers."""
    if values.ndim not in dimensions:
        wanted = "(rows, columns) or (rows,)" if 1 in dimensions else "(rows, columns)"
        raise InputError(f"{name} must be {wanted}, but has {values.ndim} dimensions; reshape it first")
    if values.dtype.kind not in NUMBER_KINDS:
        raise InputError(f"{name} must hold real numbers, not {values.dtype}; convert it first")


def _width(values: Any) -> int:
    shape = np.shape(values)
    return int(shape[1]) if len(shape) == 2 else 0


def _plain_inputs(X: Any) -> AdaptedInputs:
    """Inputs that are no xarray object, Zarr array or file."""
    if isinstance(X, da.Array):
        return _dask_inputs(X)
    if isinstance(X, StoredRows):
        _check_numbers(X, "X", dimensions=(2,))
        return AdaptedInputs(values=X)
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = [
            _series_column(series, f"X, column {series.name!r}", refuse_null=True) for series in frame.iter_columns()
        ]
        return _table_inputs(list(frame.columns), columns) if columns else AdaptedInputs(values=X)
    array = _as_array(X)
    if isinstance(array, np.ma.MaskedArray):
        array = X = _unmasked(array, "X", refuse=True)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "mMO":
        return AdaptedInputs(values=X)
    columns = [
        _column(array[:, place], f"X, column {place}", refuse_null=array.dtype.kind in "mM")
        for place in range(array.shape[1])
    ]
    if all(column.kind == NUMBER for column in columns):
        return AdaptedInputs(values=X)
    values = np.column_stack([np.asarray(column.values) for column in columns])
    return AdaptedInputs(values=values, kinds=tuple(column.kind for column in columns))


def _dask_inputs(X: da.Array) -> AdaptedInputs:
    """Return a Dask array of numbers or times, still lazy."""
    if X.dtype.kind not in "mM":
        _check_numbers(X, "X", dimensions=(2,))
        return AdaptedInputs(values=unmask_chunks(X))
    if X.ndim != 2:
        raise InputError(f"X must be (rows, columns), but has {X.ndim} dimensions; reshape it first")
    kind = TIME if X.dtype.kind == "M" else DURATION
    return AdaptedInputs(values=_lazy_seconds(X, "X"), kinds=(kind,) * X.shape[1])


def _lazy_seconds(values: da.Array, where: str) -> da.Array:
    seconds: da.Array = da.map_blocks(
        _seconds, values, where=where, refuse_null=True, dtype=np.float64, meta=np.empty((0,) * values.ndim)
    )
    return seconds


def _data_array_inputs(X: Any) -> AdaptedInputs:
    """Inputs of an xarray DataArray (n, d); a text coordinate of its second dimension has the columns' names."""
    _refuse_packed(X.attrs, "X")
    adapted = _plain_inputs(X.data)
    units = _text_attribute(X.attrs, "units")
    if X.ndim == 2 and units:
        adapted = replace(adapted, units=(units,) * X.shape[1])
    labels = X.coords[X.dims[1]].values if X.ndim == 2 and X.dims[1] in X.coords else None
    if labels is None or labels.ndim != 1 or not all(isinstance(label, str) for label in labels.tolist()):
        return adapted
    return _with_names(adapted, labels.tolist())


def _dataset_inputs(X: Any) -> AdaptedInputs:
    """Inputs of the variables (n,) of an xarray Dataset along one dimension."""
    variables = _dataset_variables(X, "X")
    names = [variable.name for variable in variables]
    if any(isinstance(variable.data, da.Array) for variable in variables):
        columns = []
        for variable in variables:
            where, values = f"X, variable {variable.name!r}", da.asarray(variable.data)
            if values.dtype.kind == "O":
                raise InputError(f"{where}: expected numbers or datetime64, got objects in Dask; convert them first")
            if values.dtype.kind in "mM":
                kind = TIME if values.dtype.kind == "M" else DURATION
                columns.append(_Column(values=_lazy_seconds(values, where), kind=kind))
            else:
                _check_numbers(values, where, dimensions=(1,))
                columns.append(_Column(values=unmask_chunks(values)))
        stacked = da.stack([column.values for column in columns], axis=1)
        adapted = AdaptedInputs(values=stacked, names=tuple(names), kinds=tuple(column.kind for column in columns))
    else:
        adapted = _table_inputs(
            names,
            [
                _column(np.asarray(variable.data), f"X, variable {variable.name!r}", refuse_null=True)
                for variable in variables
            ],
        )
    return replace(adapted, units=tuple(_text_attribute(variable.attrs, "units") for variable in variables))


def _dataset_targets(y: Any, name: str) -> Any:
    """Return the variables (n,) of a Dataset as columns; those of one variable (n,)."""
    variables = _dataset_variables(y, name)
    if len(variables) == 1:
        return variables[0].data
    if any(isinstance(variable.data, da.Array) for variable in variables):
        return da.stack([da.asarray(variable.data) for variable in variables], axis=1)
    return np.column_stack([np.asarray(variable.data) for variable in variables])


def _dataset_variables(dataset: Any, name: str) -> list[Any]:
    variables = list(dataset.data_vars.values())
    dims = {str(variable.name): variable.dims for variable in variables}
    if len(set(dims.values())) != 1 or variables[0].ndim != 1:
        raise InputError(f"{name} is a Dataset whose variables are not all along one dimension ({dims}); stack() it")
    for variable in variables:
        _refuse_packed(variable.attrs, f"{name}, variable {variable.name!r}")
    return variables


def _refuse_packed(attributes: Any, where: str) -> None:
    """InputError where xarray has not applied the attributes that say how numbers are packed."""
    packed = [key for key in NUMBER_KEYS if key in attributes and not key.startswith("valid")]
    if packed:
        raise InputError(f"{where}: its attribute {packed[0]} is not applied yet; decode it first (xarray.decode_cf)")


def _text_attribute(attributes: Any, name: str) -> str:
    value = attributes.get(name, "")
    return value if isinstance(value, str) else ""


def _table_inputs(names: Sequence[Any], columns: Sequence[_Column]) -> AdaptedInputs:
    values = np.empty((len(columns[0].values), len(columns)))
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        try:
            values[:, place] = column.values
        except (TypeError, ValueError) as error:
            remedy = "convert it, or give categories a column of 0 and 1 each"
            raise InputError(f"X, column {name!r}: expected numbers or times ({error}); {remedy}") from None
    adapted = AdaptedInputs(values=values, kinds=tuple(column.kind for column in columns))
    return _with_names(adapted, names)


def _with_names(adapted: AdaptedInputs, names: Sequence[Any]) -> AdaptedInputs:
    """Give columns their names: a data frame around what is in memory, which scikit-learn reads them from."""
    if isinstance(adapted.values, Deferred):
        return replace(adapted, names=tuple(names))
    import pandas as pd

    values = adapted.values
    if isinstance(values, np.ndarray) and values.dtype.kind in NUMBER_KINDS:
        values = pd.DataFrame(values, columns=list(names), copy=False)
    return replace(adapted, values=values)


def _series_column(series: "nw.Series[Any]", where: str, *, refuse_null: bool = False) -> _Column:
    """Return a column of a data frame of any library as NumPy's."""
    dtype = series.dtype
    if isinstance(dtype, nw.Datetime) and dtype.time_zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    nullable_number = dtype.is_numeric() and not dtype.is_decimal()
    if nullable_number and series.null_count():
        series = series.cast(nw.Float64)
    return _column(np.asarray(series.to_numpy()), where, refuse_null=refuse_null)


def _as_array(values: Any) -> Any:
    """Return NumPy's array of lists, without losing masks within; anything else as it is."""
    if not isinstance(values, list | tuple):
        return values
    if any(isinstance(row, np.ma.MaskedArray) for row in values):
        return np.ma.stack([np.ma.asarray(row) for row in values])
    try:
        return np.asarray(values)
    except (TypeError, ValueError):  # scikit-learn says what is wrong with ragged rows
        return values


def _unmasked(values: Any, name: str, *, refuse: bool = False) -> Any:
    """Return a masked array as a plain one, NaN where it is masked; InputError there with `refuse`."""
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values.data
    if refuse:
        place = [int(index) for index in np.argwhere(mask)[0]]
        column = f", column {place[1]}" if len(place) > 1 else ""
        problem = f"{name}, row {place[0]}{column}: expected a finite number, got a masked value"
        raise InputError(f"{problem}; leave the row out or fill it in")
    if values.dtype.kind not in NUMBER_KINDS:
        raise InputError(f"{name} must hold real numbers, not {values.dtype}; convert it first")
    return _masked_to_nan(values)


def _column(values: npt.NDArray[Any], where: str, *, refuse_null: bool = False) -> _Column:
    """Return values (n,) with times as seconds, and nulls as NaN or refused."""
    if values.dtype.kind in "mM":
        kind = TIME if values.dtype.kind == "M" else DURATION
        return _Column(values=_seconds(values, where=where, refuse_null=refuse_null), kind=kind)
    if values.dtype.kind != "O":
        return _Column(values=values)
    return _object_column(values, where, refuse_null=refuse_null)


def _object_column(values: npt.NDArray[Any], where: str, *, refuse_null: bool) -> _Column:
    """Return objects (n,) as numbers or seconds where all that are not null are; else as they are."""
    nulls = np.fromiter((_is_null(value) for value in values), bool, len(values))
    present = values[~nulls]
    kinds = {_object_kind(value) for value in present}
    if kinds <= {NUMBER}:
        if not nulls.any():
            return _Column(values=values)
        if refuse_null:
            _refuse_null(nulls, where)
        filled = values.copy()
        filled[nulls] = np.nan
        return _Column(values=filled)
    if len(kinds) > 1:
        raise InputError(f"{where}: holds {' and '.join(sorted(kinds))} values; give one kind, or two columns")
    if refuse_null or nulls.any():
        _refuse_null(nulls, where)
    kind = kinds.pop()
    seconds = np.array([_object_seconds(value) for value in present], dtype=np.float64)
    return _Column(values=seconds, kind=kind)


def _refuse_null(nulls: npt.NDArray[np.bool_], where: str) -> None:
    if nulls.any():
        row = int(np.argmax(nulls))
        problem = f"{where}, row {row}: expected a finite number or a time, got a missing value (NaN, NaT or NA)"
        raise InputError(f"{problem}; leave the row out or fill it in")


def _is_null(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, NumPy's masked or pandas' NA, which is neither equal to itself nor not."""
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, str | dict | list):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return _module(value) == "pandas"


def _object_kind(value: Any) -> str:
    if _module(value) == "cftime":
        gregorian = value.calendar in ("standard", "gregorian", "proleptic_gregorian")
        return TIME if gregorian else f"{TIME} ({value.calendar})"
    if isinstance(value, datetime.date | np.datetime64):
        return TIME
    return DURATION if isinstance(value, datetime.timedelta | np.timedelta64) else NUMBER


def _object_seconds(value: Any) -> float:
    """Return the seconds of one time or duration; times without a zone are UTC."""
    if _module(value) == "cftime":
        import cftime

        ticks = np.array([cftime.date2num(value, _UNIX, calendar=value.calendar)])
        return float(_exact_seconds(ticks, "us")[0])
    if _module(value) == "pandas":
        zone = isinstance(value, datetime.datetime) and value.tzinfo is not None
        value = (value.tz_convert(None) if zone else value).to_numpy()
    elif isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    is_duration = isinstance(value, datetime.timedelta | np.timedelta64)
    if not isinstance(value, np.datetime64 | np.timedelta64):
        value = np.timedelta64(value, "us") if is_duration else np.datetime64(value)
    return float(_seconds(np.array([value]), where="", refuse_null=False)[0])


def _seconds(values: npt.NDArray[Any], *, where: str, refuse_null: bool) -> FloatArray:
    """Return times as seconds since TIME_ORIGIN, durations as seconds: the same bits of every unit."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.where(np.ma.getmaskarray(values), np.array("NaT", values.dtype), values.data)
    nulls = np.isnat(values)
    if refuse_null:
        _refuse_null(nulls if nulls.ndim == 1 else nulls.any(axis=1), where)
    unit, count = np.datetime_data(values.dtype)
    symbol = values.dtype.kind
    if unit == "generic" or (symbol == "m" and unit in ("Y", "M")):
        raise InputError(f"{where}: {values.dtype} has no fixed length; give days or seconds")
    if unit not in _UNIT_PICOSECONDS:
        fine, count, unit = values.astype(f"{symbol}8[s]"), 1, "s"
        if not np.array_equal(fine.astype(values.dtype), values, equal_nan=True):
            raise InputError(f"{where}: times are too far from 1970, or too fine, for seconds in 64 bits")
        values = fine
    seconds = _exact_seconds(values.view(np.int64) * count, unit)
    seconds[nulls] = np.nan
    return seconds


def _exact_seconds(ticks: npt.NDArray[np.int64], unit: str) -> FloatArray:
    """Split into whole seconds and the rest, so that the result does not depend on the unit."""
    if unit == "s":
        return ticks.astype(np.float64)
    in_second = 10**12 // _UNIT_PICOSECONDS[unit]
    whole, rest = np.divmod(ticks, in_second)
    seconds: FloatArray = whole + rest / in_second
    return seconds


def _refuse_times(columns: Iterable[_Column], name: str) -> None:
    if any(column.kind != NUMBER for column in columns):
        remedy = "give numbers, such as seconds since an origin of your own"
        raise InputError(f"{name} must hold real numbers, not times or durations; {remedy}")
