"""Predictions as a NetCDF file by the CF conventions: on the grid of the inputs' file, or along rows."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dorff import __version__
from dorff.data.grids import Grid
from dorff.data.readers import Reader
from dorff.data.variables import GriddedReader
from dorff.errors import InputError
from dorff.predict.columns import OutputColumn, duplicates
from dorff.store import resolve_model

if TYPE_CHECKING:
    from dorff.predict.tables import Values

ROWS: Final = 65536  # written at a time
CONVENTIONS: Final = "CF-1.11"
NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable.%10d"  # as NetCDF4 calls such a scale
COORDINATE_ATTRIBUTES: Final = ("axis", "positive")  # of a dimension's variable, beside `units.ATTRIBUTES`
EPOCH: Final = "SOURCE_DATE_EPOCH"


def write_netcdf(path: Path, values: "Values", source: Reader | None, model: Path) -> None:
    """Write inputs and predictions, on the grid of their `source` where it has one.

    Inputs, targets and what is said of these keep their attributes. The attributes of
    the file say which model, and which dorff, wrote it; the time in `history` is that
    of the environment variable SOURCE_DATE_EPOCH where it is set.
    """
    import h5py  # large

    start = values.dataset.first
    inputs, outputs = values.read(start, start + 1)
    gridded = source.grid if isinstance(source, GriddedReader) else None
    along = source.coordinates() if isinstance(source, GriddedReader) else {}
    grid = Grid(("row",), (values.dataset.rows,)) if gridded is None else gridded
    own = {name: column for name, column in inputs.items() if name not in along}
    names = _variable_names([*along, *own, *outputs])
    dims = {dim: names[dim] if dim in along else _free_name(dim, names.values()) for dim in grid.dims}

    with h5py.File(path, "w") as file:
        file.attrs.update(_file_attributes(model, values.outputs))
        for dim, length in zip(grid.dims, grid.shape, strict=True):
            column = along[dim][0] if dim in along else np.zeros(length)
            scale = file.create_dataset(dims[dim], data=column)
            scale.make_scale(dims[dim] if dim in along else NO_VARIABLE % length)
            if dim in along and isinstance(source, GriddedReader):
                scale.attrs.update(_named(dim, names[dim], _coordinate_attributes(source, dim)))
        for name, column in (own | outputs).items():
            text = column.dtype == object
            stored = file.create_dataset(names[name], grid.shape, h5py.string_dtype() if text else "f8")
            stored.attrs.update({} if text else {"_FillValue": np.array([np.nan])})
            stored.attrs.update(_named(name, names[name], values.attributes(name)))
            if name in outputs:
                stored.attrs.update(_links(name, values.outputs, [names[one] for one in own], names))
            for axis, dim in enumerate(grid.dims):
                stored.dims[axis].attach_scale(file[dims[dim]])
        for slab in grid.slabs(ROWS):
            shape = [part.stop - part.start for part in slab]
            start, before = start + math.prod(shape), start
            inputs, outputs = values.read(before, start)
            for name, column in (inputs | outputs).items():
                if name not in along:
                    file[names[name]][slab] = column.reshape(shape)


def _variable_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the name of each column as CF has names: letters, digits and underscores (2.3)."""
    names = {column: re.sub(r"^(?=[^A-Za-z])", "v", re.sub(r"[^A-Za-z0-9]+", "_", column)) for column in columns}
    if twice := duplicates(list(names.values())):
        same = " and ".join(repr(column) for column, name in names.items() if name == twice[0])
        problem = f"columns {same} would both be the variable {twice[0]!r} of NetCDF, which has letters, digits and _"
        raise InputError(f"{problem}; rename one, or have the predictions as CSV")
    return names


def _free_name(dim: str, taken: Any) -> str:
    """Return the name of a dimension that has no variable."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", dim)
    while name in taken:
        name += "_dim"
    return name


def _named(column: str, name: str, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return a variable's attributes; where its name is not the column's, its long name is, if it has none."""
    return dict(attributes) if name == column else {"long_name": column, **attributes}


def _coordinate_attributes(source: GriddedReader, dim: str) -> dict[str, str]:
    variable = source.variables[dim]
    more = {key: text for key in COORDINATE_ATTRIBUTES if (text := variable.text(key))}
    return {**source.attributes(dim), **more}


def _links(
    name: str, outputs: Sequence[OutputColumn], coordinates: Sequence[str], names: Mapping[str, str]
) -> dict[str, str]:
    """Return what refers to other variables: coordinates, and what says how sure a prediction is (CF 3.4)."""
    column = next(one for one in outputs if one.name == name)
    links = {"coordinates": " ".join(coordinates)} if coordinates else {}
    if column.target and name == f"{column.target}_predicted":
        beside = [names[one.name] for one in outputs if one.target == column.target and one.name != name]
        links |= {"ancillary_variables": " ".join(beside)} if beside else {}
    return links


def _file_attributes(model: Path, outputs: Sequence[OutputColumn]) -> dict[str, str]:
    version = resolve_model(model)
    called = f"model {version.parent.name}, version {version.name}"
    targets = ", ".join(dict.fromkeys(one.target for one in outputs if one.target)) or "classes"
    return {
        "Conventions": CONVENTIONS,
        "title": f"{targets} predicted by {called}",
        "source": f"dorff {__version__}, {called}",
        "history": f"{_timestamp()} dorff {__version__} predict: {called}",
    }


def _timestamp() -> str:
    """Return the time now, or that of SOURCE_DATE_EPOCH, as ISO 8601 in UTC."""
    given = os.environ.get(EPOCH, "")
    try:
        time = datetime.fromtimestamp(int(given), UTC) if given else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{EPOCH}: wanted seconds since 1970, a whole number, got {given!r}; unset it") from None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
