"""Inputs, targets and weights of every kind of array as numbers that scikit-learn can check.

`adapt_inputs` and `adapt_targets` are the one entrance for all estimators. Masked and null
values become NaN, times become seconds, and what Dask and Zarr hold stays unread. What is
known of the columns comes with the numbers: names, kinds, units (`dorff.estimators.columns`).
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import dask.array as da
import narwhals as nw
import numpy as np
import numpy.typing as npt
import scipy.sparse
import zarr
from dask.delayed import delayed
from zarr.storage import LocalStore, MemoryStore

from dorff.data.nodes import StoredArray, column_attributes, group_attributes, node, open_array, stored_columns
from dorff.data.packing import NUMBER_KEYS, NUMBER_KINDS, Packing
from dorff.data.units import text_attributes
from dorff.errors import InputError
from dorff.estimators.arrays import Deferred, StoredRows
from dorff.estimators.columns import (
    DATETIME_CALENDAR,
    DURATION,
    NUMBER,
    TIME,
    Adapted,
    Columns,
    convert_numbers,
    seconds_attributes,
    unique_names,
)
from dorff.moments import FloatArray

#: The origin of times: they are float64 seconds since then, in UTC.
TIME_ORIGIN: Final = np.datetime64("1970-01-01T00:00:00", "s")
_UNIT_PICOSECONDS: Final = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9}
_UNIX: Final = "microseconds since 1970-01-01"
_REMEDIES: Final = {  # of containers by other packages, by their class or one above it
    ("astropy", "Quantity"): "a quantity of astropy; give its numbers, or one of pint",
    ("unyt", "unyt_array"): "a quantity of unyt; give its numbers, or one of pint",
    ("astropy", "BaseColumn"): "a column of a Table of astropy; give its numbers, its .data",
    ("astropy", "Table"): "a Table of astropy; give a data frame, its .to_pandas()",
    ("astropy", "Time"): "a Time of astropy; give its .datetime64",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Column:
    """Numbers (n,), or values that scikit-learn will judge, their kind and attributes."""

    values: Any
    kind: str = NUMBER
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Opened:
    """Values taken out of a container, such as a DataArray or a file, and the container's attributes."""

    values: Any
    attributes: dict[str, str] = field(default_factory=dict)


def adapt_inputs(X: Any) -> Adapted:
    """Return inputs (n, d) of any kind as numbers, with what is known of their columns.

    Raises
    ------
    InputError
        A value is masked, a time is NaT, a column holds neither numbers nor times, two
        columns have the same name, or units of a time cannot be understood.
    """
    if scipy.sparse.issparse(X):
        _check_numbers(X, "X", dimensions=(2,))
        return Adapted(values=StoredRows("X", X.tocsr().astype(np.float64)))
    if is_dask_frame(X):
        adapted = _frame_of_parts(X, "X", adapt_inputs)
    elif _is_dataset(X):
        adapted = _stack_columns(_dataset_columns(X, "X", refuse_null=True), "X")
    else:
        opened = _open(X, "X", _stored_rows)
        adapted = _with_attributes(_plain_inputs(opened.values), opened)
        if _module(X) == "xarray" and (names := _coordinate_names(X)):
            adapted = _with_names(adapted, names, "X")
    adapted.columns.check_units("X")
    return adapted


def adapt_targets(y: Any, name: str = "y") -> Adapted:
    """Return targets (n,) or (n, q), or weights, of any kind as numbers, with what is known of their columns.

    NaN stands where one is masked or null.

    Raises
    ------
    InputError
        They are times, or text, two columns have the same name, or units of a time cannot
        be understood.
    """
    if is_dask_frame(y):
        adapted = _frame_of_parts(y, name, partial(adapt_targets, name=name))
    elif _is_dataset(y):
        adapted = _dataset_targets(y, name)
    else:
        opened = _open(y, name, _stored_rows)
        adapted = _with_attributes(_plain_targets(opened.values, name), opened)
        if _module(y) == "xarray" and (names := _coordinate_names(y)):
            adapted = replace(adapted, columns=replace(adapted.columns, names=unique_names(names, name)))
    adapted.columns.check_units(name)
    return adapted


def adapt_weights(weights: Any, n: int) -> FloatArray | None:
    """Return weights (n,) in memory from any kind, a column (n, 1) too.

    Raises
    ------
    InputError
        They are not one for each row, not finite, negative, or all zero.
    """
    if weights is None:
        return None
    try:
        values = adapt_targets(weights, "sample_weight").values
        numbers = np.asarray(values[:] if isinstance(values, StoredRows) else values, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers, one a row ({error})") from None
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (n,):
        raise InputError(f"sample_weight must have one number for each of the {n} rows; got shape {numbers.shape}")
    if not (np.isfinite(numbers).all() and np.all(numbers >= 0)):
        raise InputError("sample_weight must be finite and not negative, without masked or null values")
    if not numbers.any():
        problem = "all weights of rows that have a target are zero, so that no row counts"
        raise InputError(f"sample_weight: {problem}; give some a positive one")
    return numbers


def adapt_labels(values: Any, name: str, of_store: Callable[[Path, str], Any] | None = None) -> Any:
    """Return labels or groups of any kind as arrays, or as series of pandas.

    `of_store` opens a Zarr array in a local folder; without it that is read. InputError at
    labels that are masked.
    """
    if is_dask_frame(values):
        return _array_of_parts(values, partial(_labels_of_part, name=name), np.shape(values._meta)[1:], object)
    if _is_dataset(values):
        variables = _dataset_variables(values, name)
        values = variables[0] if len(variables) == 1 else values.to_dataframe()
    values = _open(values, name, of_store or _read_stored).values
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        if mask.any():
            row = int(np.argwhere(mask)[0][0])
            raise InputError(f"{name}, row {row} is masked: expected a label; leave the row out, or give it one")
        return values.data
    series = _narwhals(values, name)
    is_foreign = isinstance(series, nw.Series) and not series.implementation.is_pandas()
    return series.to_numpy() if is_foreign else values


def adapt_groups(groups: Any) -> Any:
    """Return a group for each row, of any kind; InputError where one is masked or null."""
    if groups is None:
        return None
    values = np.asarray(adapt_labels(groups, "groups"))
    refuse_null_labels(values, "groups", "leave the row out, or give it one")
    return values


def check_alignment(**arrays: Any) -> None:
    """Check that rows of xarray's objects are the same ones, in the same order, by their index coordinates.

    `arrays` are inputs, targets, weights and groups by their names, of any kind. Rows along
    dimensions of other names, without a coordinate, and of other kinds of arrays go by position.

    Raises
    ------
    InputError
        Two have different coordinates along the dimension of their rows.
    """
    first_by_dimension: dict[Any, tuple[str, Any]] = {}
    for name, values in arrays.items():
        dimension = _row_dimension(values)
        if dimension is None or dimension not in values.indexes:
            continue
        index = values.indexes[dimension]
        first_name, first = first_by_dimension.setdefault(dimension, (name, index))
        if len(index) != len(first) or index.equals(first):
            continue  # scikit-learn refuses other lengths
        problem = f"the values of its coordinate {str(dimension)!r} are not those of {first_name}, in the same order"
        remedy = f"align them with xarray.align, or leave it out to go by position, .drop_vars({str(dimension)!r})"
        raise InputError(f"{name}: {problem}; {remedy}")


def _row_dimension(values: Any) -> Any:
    """Return the dimension of the rows of a DataArray, or of a Dataset along one; None of anything else."""
    if _is_dataset(values):
        return next(iter(values.dims)) if len(values.dims) == 1 else None
    is_array = _module(values) == "xarray" and type(values).__name__ == "DataArray"
    return values.dims[0] if is_array and values.dims else None


def refuse_null_labels(labels: Any, name: str, remedy: str) -> None:
    """InputError at the first label in memory (n,) that is None, NaN, NaT or pandas' NA."""
    of_lists = isinstance(labels, list | tuple)  # which would be text as soon as one label is
    values = np.asarray(labels, dtype=object if of_lists else None)
    kind = values.dtype.kind
    if kind in "biuSU" or not values.ndim:
        return
    values = values.ravel()
    nulls = np.isnan(values) if kind in "fc" else np.fromiter(map(_is_null, values), bool)
    if nulls.any():
        row = int(np.argmax(nulls))
        raise InputError(f"{name}, row {row} is {values[row]}; {remedy}")


def is_dask_frame(values: Any) -> bool:
    """Whether values are a Dask data frame, or one of its columns."""
    return _module(values) in ("dask", "dask_expr") and (
        nw.dependencies.is_dask_dataframe(values) or type(values).__name__ in ("Series", "DataFrame", "Index")
    )


def _open(values: Any, name: str, of_store: Callable[[Path, str], Any]) -> _Opened:
    """Take values out of xarray's objects, quantities, files and Zarr arrays.

    A Zarr array in a local folder is as `of_store` makes it, one in memory is unpacked. InputError
    for containers of several arrays, and for those that cannot be read safely.
    """
    if _module(values) == "xarray":
        if type(values).__name__ != "DataArray":
            raise InputError(f"{name} is an xarray {type(values).__name__}; give a DataArray or a Dataset")
        _refuse_packed(values.attrs, name)
        opened = _open(values.data, name, of_store)
        return replace(opened, attributes=text_attributes(values.attrs) | opened.attributes)
    if _module(values) == "pint":
        opened = _open(values.magnitude, name, of_store)
        return replace(opened, attributes={"units": str(values.units)})
    for base in type(values).__mro__:
        if remedy := _REMEDIES.get((_package(base), base.__name__)):
            raise InputError(f"{name} is {remedy}")
    if _module(values) == "netCDF4":
        if not (values.mask and values.scale):
            _refuse_packed(values.__dict__, name, "set_auto_maskandscale(True)")
        return _Opened(values=values[...], attributes=text_attributes(values.__dict__))
    if _module(values) == "h5py":
        attributes = dict(values.attrs)
        stored = Packing.of(attributes, values.dtype, name).decode(values[...])
        return _Opened(values=stored, attributes=text_attributes(attributes))
    if isinstance(values, zarr.Group):
        raise InputError(f"{name} is a Zarr group; give one of its arrays, such as group['x']")
    if isinstance(values, zarr.Array):
        return _open_zarr(values, name, of_store)
    if isinstance(_narwhals(values, name), nw.LazyFrame):
        raise InputError(f"{name} is a lazy data frame; give its .collect()")
    if isinstance(values, np.ndarray) and values.dtype.names:
        raise InputError(f"{name} is a structured array; give a data frame of it, pandas.DataFrame({name})")
    return _Opened(values=values)


def _open_zarr(array: Any, name: str, of_store: Callable[[Path, str], Any]) -> _Opened:
    attributes = text_attributes(dict(array.attrs))
    if isinstance(array.store, LocalStore):
        path = (Path(array.store.root) / array.path).absolute()
        return _Opened(values=of_store(path, name), attributes=attributes)
    if isinstance(array.store, MemoryStore):
        stored = np.asarray(array[...])
        if stored.dtype.kind in NUMBER_KINDS:
            stored = Packing.of(dict(array.attrs), stored.dtype, name).decode(stored)
        return _Opened(values=stored, attributes=attributes)
    problem = f"{name} is a Zarr array in a {type(array.store).__name__}, where lost chunks cannot be told from zeros"
    raise InputError(f"{problem}; copy it to a local folder first, or give a NumPy array")


def _narwhals(values: Any, name: str) -> Any:
    """Return narwhals' view of a data frame or a column of any library; anything else as it is."""
    try:
        return nw.from_native(values, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        repeated = " ".join(str(error).split())
        raise InputError(f"{name}: {repeated}; rename the columns, or leave one out") from None


def _labels_of_part(labels: Any, name: str) -> npt.NDArray[Any]:
    """Return the labels of one part of a Dask data frame, which may be pandas' own array."""
    return np.asarray(adapt_labels(labels, name))


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
    return _package(type(values))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_dataset(values: Any) -> bool:
    return _module(values) == "xarray" and type(values).__name__ == "Dataset"


def _stored_rows(path: Path, name: str) -> StoredRows:
    return StoredRows(name, open_array(path.parent, path.name))


def _read_stored(path: Path, name: str) -> npt.NDArray[Any]:
    """Return a stored array of numbers as a whole; of one column (n,)."""
    rows = _stored_rows(path, name)
    return rows[:][:, 0] if rows.ndim == 1 else rows[:]


def _check_numbers(values: Any, name: str, *, dimensions: Sequence[int]) -> None:
    """Check what is not read now: its dimensions, and that it holds numbers."""
    if values.ndim not in dimensions:
        wanted = "(rows, columns) or (rows,)" if 1 in dimensions else "(rows, columns)"
        raise InputError(f"{name} must be {wanted}, but has {values.ndim} dimensions; reshape it first")
    if values.dtype.kind not in NUMBER_KINDS:
        raise InputError(f"{name} must hold real numbers, not {values.dtype}; convert it first")


def _with_attributes(adapted: Adapted, opened: _Opened) -> Adapted:
    """Give columns of numbers the attributes of what they were taken out of."""
    is_stored = isinstance(opened.values, StoredRows) and isinstance(opened.values.source, StoredArray)
    given = _stored_attributes(opened.values.source) if is_stored else _of_all_columns(opened.attributes, adapted)
    if not any(given):
        return adapted
    width, columns = len(given), adapted.columns
    kinds = columns.kinds or (NUMBER,) * width
    own = columns.attributes or ({},) * width
    attributes = tuple({**new, **old} for new, old in zip(given, own, strict=True))
    return replace(adapted, columns=replace(columns, kinds=kinds, attributes=attributes))


def _of_all_columns(attributes: dict[str, str], adapted: Adapted) -> tuple[dict[str, str], ...]:
    """Return attributes that all columns share, once for each."""
    if not attributes:
        return ()
    shape = np.shape(adapted.values)
    return (attributes,) * (int(shape[1]) if len(shape) == 2 else 1)


def _stored_attributes(stored: StoredArray) -> tuple[dict[str, str], ...]:
    """Return the attributes of the columns of a Zarr array, which may be one of a data set that dorff made."""
    path = stored.files.directory
    parent = node(path.parent)
    attributes = group_attributes(path.parent) if not (parent.problem or parent.is_array) else {}
    by_column = column_attributes(attributes, path.name, stored)
    return tuple(by_column.get(name, {}) for name in stored_columns(attributes, path.name, stored.columns))


def _plain_inputs(X: Any) -> Adapted:
    """Inputs that are taken out of what they lay in."""
    if isinstance(X, da.Array):
        return _dask_inputs(X)
    if isinstance(X, StoredRows):
        _check_numbers(X, "X", dimensions=(2,))
        return Adapted(values=X)
    frame = _narwhals(X, "X")
    if isinstance(frame, nw.DataFrame):
        columns = {
            series.name: _series_column(series, f"X, column {series.name!r}", refuse_null=True)
            for series in frame.iter_columns()
        }
        return _stack_columns(columns, "X") if columns else Adapted(values=X)
    array = _as_array(X, "X")
    if isinstance(array, np.ma.MaskedArray):
        array = X = _unmasked(array, "X", refuse=True)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "mMO":
        return Adapted(values=X)
    listed = [
        _column(array[:, place], f"X, column {place}", refuse_null=array.dtype.kind in "mM")
        for place in range(array.shape[1])
    ]
    if all(column.kind == NUMBER for column in listed):
        return Adapted(values=X)
    values = np.column_stack([np.asarray(column.values) for column in listed])
    return Adapted(values=values, columns=_known_columns(listed))


def _plain_targets(y: Any, name: str) -> Adapted:
    """Targets that are taken out of what they lay in."""
    if isinstance(y, Deferred):
        _check_numbers(y, name, dimensions=(1, 2))
        return Adapted(values=unmask_chunks(y) if isinstance(y, da.Array) else y)
    frame = _narwhals(y, name)
    if isinstance(frame, nw.DataFrame):
        columns = {series.name: _series_column(series, name) for series in frame.iter_columns()}
        _refuse_times(columns.values(), name)
        if not columns:
            return Adapted(values=y)
        values = np.column_stack([column.values for column in columns.values()])
        return Adapted(values=values, columns=Columns(names=unique_names([str(column) for column in columns], name)))
    if isinstance(frame, nw.Series):
        column = _series_column(frame, name)
        _refuse_times([column], name)
        return Adapted(values=column.values)
    array = _as_array(y, name)
    if isinstance(array, np.ma.MaskedArray):
        return Adapted(values=_unmasked(array, name))
    if isinstance(array, np.ndarray) and array.dtype.kind in "mMO":
        flat = _column(array.reshape(-1), name)
        _refuse_times([flat], name)
        return Adapted(values=np.asarray(flat.values).reshape(array.shape))
    return Adapted(values=y)


def _known_columns(columns: Sequence[_Column], names: tuple[str, ...] | None = None) -> Columns:
    kinds = tuple(column.kind for column in columns)
    return Columns(names=names, kinds=kinds, attributes=tuple(column.attributes for column in columns))


def _stack_columns(columns: dict[Any, _Column], where: str) -> Adapted:
    """Return named columns side by side: a Dask array where one is lazy, else a pandas data frame."""
    names = unique_names(list(columns), where)
    known_columns = _known_columns(list(columns.values()), names)
    if any(isinstance(column.values, da.Array) for column in columns.values()):
        stacked = da.stack([da.asarray(column.values) for column in columns.values()], axis=1)
        return Adapted(values=stacked, columns=known_columns)

    import pandas as pd

    values = np.empty((len(next(iter(columns.values())).values), len(columns)))
    for place, (name, column) in enumerate(columns.items()):
        try:
            values[:, place] = column.values
        except (TypeError, ValueError) as error:
            remedy = "convert it, or give categories a column of 0 and 1 each"
            raise InputError(f"{where}, column {name!r}: expected numbers or times ({error}); {remedy}") from None
    frame = pd.DataFrame(values, columns=list(columns), copy=False)
    return Adapted(values=frame, columns=known_columns)


def _with_names(adapted: Adapted, given: Sequence[str], where: str) -> Adapted:
    """Give inputs the names of their columns: a data frame around what is in memory, which scikit-learn reads."""
    names = unique_names(given, where)
    columns = replace(adapted.columns, names=names)
    values = adapted.values
    if isinstance(values, np.ndarray) and values.dtype.kind in NUMBER_KINDS:
        import pandas as pd

        values = pd.DataFrame(values, columns=list(given), copy=False)
    return Adapted(values=values, columns=columns)


def _frame_of_parts(frame: Any, name: str, adapt: Callable[[Any], Adapted]) -> Adapted:
    """Return a Dask data frame, or a column of one, as a Dask array; its rows are counted, by a pass over it.

    Its empty sample says what the columns are, and each part is held against that.
    """
    adapted = adapt(frame._meta)
    convert = partial(_numbers_of_part, name=name, adapt=adapt, columns=adapted.columns)
    values = _array_of_parts(frame, convert, np.shape(adapted.values)[1:], np.float64)
    return Adapted(values=values, columns=adapted.columns)


def _array_of_parts(
    frame: Any, convert: Callable[[Any], npt.NDArray[Any]], shape: tuple[int, ...], dtype: npt.DTypeLike
) -> da.Array:
    """Return what `convert` makes of each part of a Dask data frame, (rows, *shape), one below the other."""
    lengths = frame.map_partitions(len).compute()
    chunks = [
        da.from_delayed(
            delayed(convert)(part), shape=(int(length), *shape), dtype=dtype, meta=np.empty((0, *shape), dtype)
        )
        for part, length in zip(frame.to_delayed(), lengths, strict=True)
    ]
    array: da.Array = da.concatenate(chunks)
    return array


def _numbers_of_part(part: Any, name: str, adapt: Callable[[Any], Adapted], columns: Columns) -> FloatArray:
    adapted = adapt(part)
    if adapted.columns != columns:
        problem = "columns of dtype object hold times or durations"
        raise InputError(f"{name}: {problem}; convert them to datetime64 or timedelta64 first")
    return convert_numbers(adapted.values, {}, name)


def _dask_inputs(X: da.Array) -> Adapted:
    """Return a Dask array of numbers or times, still lazy."""
    if X.dtype.kind not in "mM":
        _check_numbers(X, "X", dimensions=(2,))
        return Adapted(values=unmask_chunks(X))
    if X.ndim != 2:
        raise InputError(f"X must be (rows, columns), but has {X.ndim} dimensions; reshape it first")
    column = _lazy_column(X, "X")
    columns = _known_columns([column] * X.shape[1])
    return Adapted(values=column.values, columns=columns)


def _lazy_column(values: da.Array, where: str) -> _Column:
    """Return Dask's numbers unmasked, or its times as seconds."""
    if values.dtype.kind not in "mM":
        return _Column(values=unmask_chunks(values))
    kind = TIME if values.dtype.kind == "M" else DURATION
    seconds = da.map_blocks(
        _seconds, values, where=where, refuse_null=True, dtype=np.float64, meta=np.empty((0,) * values.ndim)
    )
    return _Column(values=seconds, kind=kind, attributes=seconds_attributes(kind, DATETIME_CALENDAR))


def _coordinate_names(array: Any) -> list[str]:
    """Return the columns' names of a DataArray, (rows, columns): a coordinate of text of its second dimension."""
    if array.ndim != 2 or array.dims[1] not in array.coords:
        return []
    labels = array.coords[array.dims[1]].values
    is_text = labels.ndim == 1 and all(isinstance(label, str) for label in labels.tolist())
    return [str(label) for label in labels.tolist()] if is_text else []


def _dataset_columns(dataset: Any, name: str, *, refuse_null: bool = False) -> dict[Any, _Column]:
    """Return the variables (n,) of an xarray Dataset along one dimension, by their names."""
    columns = {}
    for variable in _dataset_variables(dataset, name):
        where = f"{name}, variable {variable.name!r}"
        opened = _open(variable, where, _stored_rows)
        if isinstance(opened.values, da.Array):
            if opened.values.dtype.kind not in "mM":
                _check_numbers(opened.values, where, dimensions=(1,))
            column = _lazy_column(opened.values, where)
        else:
            column = _column(np.asarray(opened.values), where, refuse_null=refuse_null)
        columns[variable.name] = replace(column, attributes=opened.attributes | column.attributes)
    return columns


def _dataset_targets(dataset: Any, name: str) -> Adapted:
    """Return the variables (n,) of a Dataset as columns; those of one variable (n,)."""
    columns = _dataset_columns(dataset, name)
    _refuse_times(columns.values(), name)
    adapted = _stack_columns(columns, name)
    values = adapted.values if isinstance(adapted.values, da.Array) else adapted.values.to_numpy()
    return replace(adapted, values=values[:, 0] if len(columns) == 1 else values)


def _dataset_variables(dataset: Any, name: str) -> list[Any]:
    variables = list(dataset.data_vars.values())
    if not variables:
        problem = f"{name} is a Dataset without variables"
        if dataset.coords:
            problem += f", with the coordinates {', '.join(map(str, dataset.coords))} alone"
        raise InputError(f"{problem}; give some along one dimension, such as .to_dataframe().reset_index()")
    if len({variable.dims for variable in variables}) != 1 or variables[0].ndim != 1:
        dims = ", ".join(f"{variable.name} ({', '.join(map(str, variable.dims))})" for variable in variables)
        raise InputError(f"{name} is a Dataset whose variables are not all along one dimension: {dims}; stack() it")
    return variables


def _refuse_packed(attributes: Any, where: str, remedy: str = "xarray.decode_cf") -> None:
    """InputError where attributes that say how numbers are packed are not applied by the library that read them."""
    packed = [key for key in NUMBER_KEYS if key in attributes and not key.startswith("valid")]
    if packed:
        raise InputError(f"{where}: its attribute {packed[0]} is not applied yet; decode it first ({remedy})")


def _series_column(series: "nw.Series[Any]", where: str, *, refuse_null: bool = False) -> _Column:
    """Return a column of a data frame of any library as NumPy's."""
    dtype = series.dtype
    if isinstance(dtype, nw.Datetime) and dtype.time_zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    nullable_number = dtype.is_numeric() and not dtype.is_decimal()
    if nullable_number and series.null_count():
        series = series.cast(nw.Float64)
    return _column(np.asarray(series.to_numpy()), where, refuse_null=refuse_null)


def _as_array(values: Any, name: str) -> Any:
    """Return NumPy's array of lists, without losing masks within; anything else as it is."""
    if not isinstance(values, list | tuple):
        return values
    nested = (row if isinstance(row, list | tuple) else [row] for row in values)
    _refuse_objects_of_libraries(chain.from_iterable(nested), name)
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
        seconds = _seconds(values, where=where, refuse_null=refuse_null)
        return _Column(values=seconds, kind=kind, attributes=seconds_attributes(kind, DATETIME_CALENDAR))
    if values.dtype.kind == "c":
        raise InputError(f"{where}: holds complex numbers; give their real and imaginary parts a column each")
    if values.dtype.kind != "O":
        return _Column(values=values)
    return _object_column(values, where, refuse_null=refuse_null)


def _object_column(values: npt.NDArray[Any], where: str, *, refuse_null: bool) -> _Column:
    """Return objects (n,) as numbers or seconds where all that are not null are; else as they are."""
    nulls = np.fromiter((_is_null(value) for value in values), bool, len(values))
    present = values[~nulls]
    _refuse_objects_of_libraries(present, where)
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
    calendars = {_object_calendar(value) for value in present}
    if len(calendars) > 1:
        raise InputError(f"{where}: holds times by the calendars {' and '.join(sorted(calendars))}; give one")
    seconds = np.array([_object_seconds(value) for value in present], dtype=np.float64)
    return _Column(values=seconds, kind=kind, attributes=seconds_attributes(kind, calendars.pop()))


def _refuse_objects_of_libraries(values: Iterable[Any], where: str) -> None:
    """Raise InputError for single values that their library can put into an array."""
    for value in values:
        if _module(value) == "pint":
            raise InputError(f"{where}: holds quantities of pint; give one Quantity of an array, or plain numbers")
        if _module(value) == "pandas" and type(value).__name__ in ("Period", "Interval"):
            remedy = "give times (dt.to_timestamp()), or their ends as two columns"
            raise InputError(f"{where}: holds {type(value).__name__.lower()}s of pandas; {remedy}")


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


def _object_calendar(value: Any) -> str:
    return str(value.calendar) if _module(value) == "cftime" else DATETIME_CALENDAR


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
    seconds = _exact_seconds(values.astype(np.int64) * count, unit)  # of any byte order
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
