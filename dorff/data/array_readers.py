"""Files of arrays: NPY and NPZ (NumPy's format 1 and 2), HDF5, NetCDF4 (which is HDF5) and classic NetCDF3."""

import math
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import h5py
import numpy as np
from scipy.io import netcdf_file, netcdf_variable

from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.data.readers import ArrayInfo, ArraysReader, Numbers, reading
from dorff.data.units import text_attributes
from dorff.errors import InputError


class NPYReader(ArraysReader):
    """One array without a name: its columns are c0, c1, ..."""

    format_name = "NPY"

    def __init__(self, path: str) -> None:
        with reading(path, self.format_name), open(path, "rb") as file:
            if not (size := os.fstat(file.fileno()).st_size):
                raise InputError(f"{path}: is empty; wanted an array of numbers.")
            shape, _, dtype = _header(file, path, size)
        shape = (*shape, 1) if len(shape) == 1 else shape
        super().__init__(path, {"c": ArrayInfo(shape, dtype)}, numbered=True)
        self.expand("c")  # refuses any shape but (rows, columns)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Read through a memory map, in either order of axes."""
        n, width = self.arrays[name].shape
        for start in range(0, n, rows):
            # A map of its own for each block: pages of one kept open would count as this process's memory.
            array = np.load(self.path, mmap_mode="r", allow_pickle=False).reshape(n, width)
            yield np.array(array[start : start + rows, columns])


class _Member(NamedTuple):
    """An array in an archive: where its header ends, and whether its columns lie one after another."""

    info: ArrayInfo
    header: int
    by_column: bool


class NPZReader(ArraysReader):
    """Named arrays in an archive, streamed without holding one whole."""

    format_name = "NPZ"

    def __init__(self, path: str) -> None:
        with reading(path, self.format_name), zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            self._members = {name.removesuffix(".npy"): _member(archive, path, name) for name in names}
        super().__init__(path, {name: member.info for name, member in self._members.items()})

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Read the member in order; one whose columns lie one after another, with a reader on each column."""
        member = self._members[name]
        dtype, n = member.info.dtype, member.info.shape[0]
        width = 1 if member.by_column else int(np.prod(member.info.shape[1:]))
        skips = [j * n for j in columns] if member.by_column else [0]
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            files = [stack.enter_context(archive.open(f"{name}.npy")) for _ in skips]
            for file, skip in zip(files, skips, strict=True):
                file.seek(member.header + skip * dtype.itemsize)
            for start in range(0, n, rows):
                parts = [self._take(file, dtype, min(rows, n - start), width) for file in files]
                yield np.concatenate(parts, axis=1) if member.by_column else parts[0][:, columns]

    def _take(self, file: IO[bytes], dtype: np.dtype[Any], rows: int, width: int) -> Numbers:
        content = file.read(rows * width * dtype.itemsize)
        if len(content) < rows * width * dtype.itemsize:
            raise InputError(f"{self.path}: is cut short; fetch or write it again.")
        return np.frombuffer(content, dtype).reshape(rows, width)


def _member(archive: zipfile.ZipFile, path: str, name: str) -> _Member:
    with archive.open(name) as file:
        shape, fortran, dtype = _header(file, path, archive.getinfo(name).file_size)
        return _Member(ArrayInfo(shape, dtype), file.tell(), fortran and len(shape) == 2)


def _header(file: IO[bytes], path: str, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns lie one after another, and type: what an array in a file of `size` bytes begins with.
    InputError where there are more bytes than that takes."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    shape, _, dtype = header
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize < size:
        raise InputError(f"{path}: has more bytes than its shape {shape} takes; fetch or write it again.")
    return header


@dataclass(frozen=True)
class Variable:
    """A variable of a file: its values' shape and type as stored, its attributes and dimensions, "" if nameless."""

    shape: tuple[int, ...]
    stored: np.dtype[Any]
    attributes: Mapping[str, Any]
    dims: tuple[str, ...]

    @classmethod
    def of(cls, name: str, one: Any) -> "Variable":
        """Of a variable of SciPy's or a data set of h5py's, whose dimensions are those of its scales."""
        if isinstance(one, netcdf_variable):
            return cls(one.shape, np.dtype(one.data.dtype), dict(one._attributes), one.dimensions)
        text = one.dtype.kind == "O" and h5py.check_string_dtype(one.dtype) is not None
        dims = tuple(dim[0].name.lstrip("/") if len(dim) else "" for dim in one.dims)
        dims = (name,) if one.is_scale and one.ndim == 1 else dims
        return cls(one.shape, np.dtype(str) if text else one.dtype, dict(one.attrs), dims)

    def text(self, key: str) -> str:
        """An attribute that is text; "" where there is none."""
        value = self.attributes.get(key, "")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class Grid:
    """The cells of a grid, a row each, in C order."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]

    def slabs(self, rows: int) -> Iterator[tuple[slice, ...]]:
        """Cut into runs of cells that follow each other, of `rows` at most."""
        axis, inner = len(self.shape) - 1, 1
        while axis and inner * self.shape[axis] <= rows:
            axis, inner = axis - 1, inner * self.shape[axis]
        step, rest = max(1, rows // inner), tuple(slice(0, n) for n in self.shape[axis + 1 :])
        for outer in np.ndindex(*self.shape[:axis]):
            for start in range(0, self.shape[axis], step):
                yield (*(slice(i, i + 1) for i in outer), slice(start, min(start + step, self.shape[axis])), *rest)

    @classmethod
    def of(cls, path: str, variables: Mapping[str, Variable], asked: Collection[str]) -> "Grid | None":
        """That of the variables `asked` for; None where they are columns of a table. They are a grid's where one has
        three dimensions; where one has two, and another is along its second or among its `coordinates` (CF
        conventions, 5); or where all are the coordinates of their dimensions. InputError where none has them all."""
        along = {name: variables[name].dims for name in asked if name in variables and variables[name].dims}
        along = {name: dims for name, dims in along.items() if all(dims)}
        apart = len(along) > 1 and all(dims == (name,) for name, dims in along.items())
        near = {other for name in along for other in variables[name].text("coordinates").split()}
        if not apart and not any(
            len(dims) > 2 or (len(dims) == 2 and ((dims[1],) in along.values() or name in near))
            for name, dims in along.items()
        ):
            return None
        every = dict.fromkeys(dim for dims in along.values() for dim in dims)
        dims = max(along.values(), key=len)
        if apart:  # in the order of a variable that has them all, if there is one
            dims = next((v.dims for v in variables.values() if set(v.dims) == set(every)), tuple(every))
        if len(set(dims)) < len(dims) or set(dims) != set(every):
            shown = ", ".join(f"{name} ({', '.join(of)})" for name, of in along.items())
            raise InputError(f"{path}: {shown} are on no grid in common; name variables of one grid.")
        lengths = {dim: n for one in variables.values() for dim, n in zip(one.dims, one.shape, strict=True)}
        return cls(dims, tuple(lengths[dim] for dim in dims))


class VariablesReader(ArraysReader):
    """HDF5, NetCDF4 and NetCDF3, as the first bytes say: variables by name ("group/variable" below a group). Fill
    values, scale and offset are unpacked. Those of a `grid` are columns of its cells."""

    def __init__(self, path: str, asked: Collection[str] = ()) -> None:
        with reading(path, "NetCDF"), open(path, "rb") as opened:
            self._classic = opened.read(3) == b"CDF"
        if not self._classic and not h5py.is_hdf5(path):
            raise InputError(f"{path}: is neither HDF5 nor NetCDF; check that the file is whole and of that format.")
        self.path, self.format_name = path, "NetCDF" if self._classic else "HDF5"
        with reading(path, self.format_name), self._opened() as file:
            self.variables = {name: Variable.of(name, self._of(file, name)) for name in self._names(file)}
        self._packing = {name: Packing.of(one.attributes) for name, one in self.variables.items()}
        infos = {name: _info(one.shape, one.stored, self._packing[name]) for name, one in self.variables.items()}
        self.grid = Grid.of(path, self.variables, asked)
        if self.grid is not None:
            cells, dims = (math.prod(self.grid.shape),), {"", *self.grid.dims}
            inside = [name for name, one in self.variables.items() if dims.issuperset(one.dims) and all(one.dims)]
            infos = {name: ArrayInfo(cells, infos[name].dtype) for name in inside}
        super().__init__(path, infos)

    def _opened(self) -> Any:
        return netcdf_file(self.path, mmap=True) if self._classic else h5py.File(self.path, "r")

    def _of(self, file: Any, name: str) -> Any:
        """A variable, not to be kept: a memory map closes when nothing refers to it."""
        return file.variables[name] if self._classic else file[name]

    def _names(self, file: Any) -> list[str]:
        if self._classic:
            return list(file.variables)
        names: list[str] = []
        file.visit(names.append)
        return [name for name in names if isinstance(file[name], h5py.Dataset) and file[name].shape is not None]

    def coordinates(self) -> dict[str, tuple[Numbers, dict[str, str]]]:
        """The values along the grid's dimensions, where there are any, with their units and calendar."""
        assert self.grid is not None
        dims = [dim for dim in self.grid.dims if dim in self.variables and self.variables[dim].dims == (dim,)]
        with self._opened() as file:
            values = {dim: self._packing[dim].decode(np.array(self._of(file, dim)[:])) for dim in dims}
        words = {dim: {key: self.variables[dim].text(key) for key in ("units", "calendar")} for dim in dims}
        return {dim: (values[dim], {key: text for key, text in words[dim].items() if text}) for dim in dims}

    def attributes(self, column: str) -> Mapping[str, str]:
        if column not in self._place:
            return {}
        name, _ = self._place[column]
        return text_attributes(self.variables[name].attributes)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        grid = self.grid or Grid(("",), self.variables[name].shape[:1])
        along = self.variables[name].dims if self.grid else ("",)
        for slab in grid.slabs(rows):
            index = tuple(slab[grid.dims.index(dim)] for dim in along)
            # Opened for each slab: the pages of a map kept open would count as this process's memory.
            with self._opened() as file:
                text = self.variables[name].stored.kind == "U"
                values = np.array((file[name].asstr("utf-8") if text else self._of(file, name))[index])
            if values.dtype == np.dtype("S1") and values.ndim == 2 and self.grid is None:
                values = values.view(f"S{values.shape[1]}")
            if self.grid is not None:
                order = sorted(range(len(along)), key=lambda axis: grid.dims.index(along[axis]))
                lengths = [part.stop - part.start for part in slab]
                wide = [n if dim in along else 1 for dim, n in zip(grid.dims, lengths, strict=True)]
                values = np.broadcast_to(values.transpose(order).reshape(wide), lengths).reshape(-1)
            values = values.reshape(len(values), -1)[:, columns]
            yield self._packing[name].decode(values) if values.dtype.kind in NUMBER_KINDS else values


def _info(shape: tuple[int, ...], stored: np.dtype[Any], packing: Packing) -> ArrayInfo:
    """A variable's shape and its values' type. Single characters (rows, length) are text (CF conventions, 2.2)."""
    if stored == np.dtype("S1") and len(shape) == 2:
        return ArrayInfo(shape[:1], np.dtype(f"S{shape[1]}"))
    return ArrayInfo(shape, packing.dtype(stored))
