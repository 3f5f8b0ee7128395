"""Files of arrays: NPY and NPZ (NumPy's format 1 and 2), HDF5, NetCDF4 (which is HDF5) and classic NetCDF3."""

import itertools
import math
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final, NamedTuple

import h5py
import numpy as np
from scipy.io import netcdf_file

from dorff.data.grids import Variable
from dorff.data.packing import Array
from dorff.data.readers import ArrayInfo, ArraysReader, Numbers, reading
from dorff.data.variables import Bounds, GriddedReader
from dorff.errors import InputError

#: Bytes that a file may claim for what has to be in memory as a whole: a chunk that is
#: decompressed, and the text that describes an array.
MOST_CHUNK: Final = 2**29
MOST_HEADER: Final = 2**16
COMPRESSION_OVERHEAD: Final = 2**12  # bytes that compression may add to a chunk, at most


class NPYReader(ArraysReader):
    """One array without a name: its columns are c0, c1, ...; those of a structured array (rows,) are its fields."""

    format_name = "NPY"

    def __init__(self, path: str) -> None:
        with reading(path, self.format_name), open(path, "rb") as file:
            if not (size := os.fstat(file.fileno()).st_size):
                raise InputError(f"{path}: is empty; wanted an array of numbers.")
            shape, _, dtype = _header(file, path, size)
        self._structured = dtype.fields is not None
        if self._structured:
            super().__init__(path, _fields(path, shape, dtype))
            return
        shape = (*shape, 1) if len(shape) == 1 else shape
        super().__init__(path, {"c": ArrayInfo(shape, dtype)}, numbered=True)
        self.expand("c")  # refuses any shape but (rows, columns)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Read through a memory map, in either order of axes."""
        shape = self.arrays[name].shape
        for start in range(0, shape[0], rows):
            # A map of its own for each block: pages of one kept open would count as this process's memory.
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
            if self._structured:
                values = array[start : start + rows][name]
                yield np.array(values.reshape(len(values), -1)[:, columns])
            else:
                yield np.array(array.reshape(shape)[start : start + rows, columns])


def _fields(path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, ArrayInfo]:
    """Describe the fields of a structured array as arrays; InputError unless it has one dimension."""
    if len(shape) != 1:
        problem = f"is a structured array of shape {shape}, wanted one of records (rows,)"
        raise InputError(f"{path}: {problem}; reshape it.")
    parts = {name: dtype[name] for name in dtype.names or ()}
    return {name: ArrayInfo((*shape, *part.shape), part.base) for name, part in parts.items()}


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
    place, width = file.tell(), 2 if version == (1, 0) else 4
    if (length := int.from_bytes(file.read(width), "little")) > MOST_HEADER:
        problem = f"its header claims {length:,} bytes, more than {MOST_HEADER:,}"
        raise InputError(f"{path}: {problem}; fetch or write it again.")
    file.seek(place)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    shape, _, dtype = header
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize < size:
        raise InputError(f"{path}: has more bytes than its shape {shape} takes; fetch or write it again.")
    return header


# How NetCDF4 names the scale of a dimension that no variable describes.
NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable"
# And how the name of a variable begins that is named like a dimension it does not lie along.
NO_COORDINATE: Final = "_nc4_non_coord_"


class VariablesReader(GriddedReader):
    """HDF5, NetCDF4 and NetCDF3, as the first bytes say; below a group "group/variable"."""

    def __init__(self, path: str, asked: Collection[str] = ()) -> None:
        with reading(path, "NetCDF"), open(path, "rb") as opened:
            self._classic = opened.read(3) == b"CDF"
        if not self._classic and not h5py.is_hdf5(path):
            raise InputError(f"{path}: is neither HDF5 nor NetCDF; check that the file is whole and of that format.")
        self.path = path
        format_name = "NetCDF" if self._classic else "HDF5"
        with reading(path, format_name), self._opened() as file:
            held = _classic_variables(file) if self._classic else _hdf5_variables(file)
        self._stored_names = {name.replace(NO_COORDINATE, ""): name for name in held}
        variables = {name: held[stored] for name, stored in self._stored_names.items()}
        super().__init__(path, format_name, variables, asked)

    def _opened(self) -> Any:
        return netcdf_file(self.path, mmap=True) if self._classic else h5py.File(self.path, "r")

    def load(self, name: str, bounds: Bounds) -> Array:
        # Opened for each part: the pages of a map kept open would count as this process's memory.
        with self._opened() as file:
            if self._classic:
                return np.array(file.variables[name][bounds])
            stored = file[self._stored_names[name]]
            _check_chunks(self.path, name, stored, bounds)
            text = self.variables[name].stored.kind == "U"
            return np.asarray(stored.asstr("utf-8")[bounds] if text else stored[bounds])


def _check_chunks(path: str, name: str, stored: Any, bounds: Bounds) -> None:
    """Raise InputError where compressed chunks of a part take much memory, or more than they claim.

    HDF5 decompresses a chunk whatever comes out of it. Deflate makes at most 1,032 bytes
    of one, so what can come out is bounded by holding the stored size against the claimed.
    """
    if not stored.chunks or not stored.id.get_create_plist().get_nfilters():
        return
    claimed = math.prod(stored.chunks) * stored.dtype.itemsize
    if claimed > MOST_CHUNK:
        problem = f"variable {name!r} has compressed chunks of {claimed:,} bytes, more than {MOST_CHUNK:,}"
        remedy = "write it with smaller chunks (nccopy -c, h5repack -l)"
        raise InputError(f"{path}: {problem}, and each has to be in memory as a whole; {remedy}.")

    starts = (range(b.start // c * c, b.stop, c) for b, c in zip(bounds, stored.chunks, strict=True))
    for start in itertools.product(*starts):
        size = stored.id.get_chunk_info_by_coord(start).size
        if size > claimed + claimed // 8 + COMPRESSION_OVERHEAD:
            problem = f"a chunk of variable {name!r} has {size:,} bytes compressed, but claims {claimed:,}"
            raise InputError(f"{path}: {problem}; it is damaged, fetch or write it again.")


def _classic_variables(file: Any) -> dict[str, Variable]:
    """Describe SciPy's variables."""
    return {
        name: Variable(
            shape=stored.shape,
            stored=np.dtype(stored.data.dtype),
            attributes=dict(stored._attributes),
            dims=stored.dimensions,
        )
        for name, stored in file.variables.items()
    }


def _hdf5_variables(file: Any) -> dict[str, Variable]:
    """Describe h5py's data sets, whose dimensions are those of their scales."""
    names: list[str] = []
    file.visit(names.append)
    held = {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
    variables = {}
    for name, stored in held.items():
        attributes = dict(stored.attrs)
        if stored.shape is None or _text(attributes.get("NAME")).startswith(NO_VARIABLE):
            continue
        text = stored.dtype.kind == "O" and h5py.check_string_dtype(stored.dtype) is not None
        variables[name] = Variable(
            shape=stored.shape,
            stored=np.dtype(str) if text else stored.dtype,
            attributes=attributes,
            dims=_hdf5_dims(name, stored, held),
            # Without filters any part of a chunk is read by itself.
            chunks=stored.chunks if stored.id.get_create_plist().get_nfilters() else None,
        )
    return variables


def _hdf5_dims(name: str, stored: Any, held: Mapping[str, Any]) -> tuple[str, ...]:
    if not stored.is_scale:
        return tuple(dim[0].name.lstrip("/") if len(dim) else "" for dim in stored.dims)
    if stored.ndim == 1:
        return (name,)
    # A variable of several dimensions that is named like one of them says the others by number.
    numbers = {one.attrs["_Netcdf4Dimid"]: other for other, one in held.items() if "_Netcdf4Dimid" in one.attrs}
    dims = stored.attrs.get("_Netcdf4Coordinates", ())
    return tuple(numbers.get(number, "") for number in dims) if len(dims) == stored.ndim else ("",) * stored.ndim


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
