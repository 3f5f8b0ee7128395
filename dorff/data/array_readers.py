"""Files of arrays: NPY and NPZ (NumPy's format 1 and 2), HDF5, NetCDF4 (which is HDF5) and classic NetCDF3."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import h5py
import numpy as np
from scipy.io import netcdf_file

from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.data.readers import ArrayInfo, ArraysReader, Numbers, reading
from dorff.errors import InputError


@final
class NPYReader(ArraysReader):
    """One array without a name: its columns are c0, c1, ..."""

    format_name = "NPY"

    def __init__(self, path: str) -> None:
        with reading(path, self.format_name):
            if Path(path).stat().st_size == 0:
                raise InputError(f"{path}: is empty; wanted an array of numbers.")
            with open(path, "rb") as file:
                shape, _, dtype = _header(file, path, os.fstat(file.fileno()).st_size)
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


@final
@dataclass(frozen=True)
class _Member:
    """An array in an archive: where its header ends, and whether its columns lie one after another."""

    info: ArrayInfo
    header: int
    by_column: bool


@final
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
                count = min(rows, n - start)
                parts = [self._take(file, dtype, count, width) for file in files]
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

    InputError where there are more bytes than that takes.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    shape, _, dtype = header
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize < size:
        raise InputError(f"{path}: has more bytes than its shape {shape} takes; fetch or write it again.")
    return header


@final
class HDF5Reader(ArraysReader):
    """Variables by name ("group/variable" below a group); fill values, scale and offset are unpacked."""

    format_name = "HDF5"

    def __init__(self, path: str) -> None:
        infos: dict[str, ArrayInfo] = {}
        self._packing: dict[str, Packing] = {}

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.shape is not None:
                self._packing[name] = Packing.of(item.attrs)
                text = item.dtype.kind == "O" and h5py.check_string_dtype(item.dtype) is not None
                infos[name] = _info(item.shape, np.dtype(str) if text else item.dtype, self._packing[name])

        with reading(path, self.format_name), h5py.File(path, "r") as file:
            file.visititems(visit)
        super().__init__(path, infos)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Read slabs of rows."""
        with h5py.File(self.path, "r") as file:
            variable = file[name]
            if self.arrays[name].dtype == np.dtype(str):
                variable = variable.asstr("utf-8")
            for start in range(0, self.arrays[name].shape[0], rows):
                yield _slab(variable, start, rows, columns, self._packing[name])


@final
class NetCDF3Reader(ArraysReader):
    """Variables of a classic NetCDF file, by name."""

    format_name = "NetCDF"

    def __init__(self, path: str) -> None:
        infos: dict[str, ArrayInfo] = {}
        self._packing: dict[str, Packing] = {}
        with reading(path, self.format_name), netcdf_file(path, mmap=True) as file:
            for name in file.variables:
                self._packing[name] = Packing.of(file.variables[name]._attributes)
                stored = np.dtype(file.variables[name].data.dtype)
                infos[name] = _info(file.variables[name].shape, stored, self._packing[name])
        super().__init__(path, infos)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Read slabs of rows through a memory map."""
        for start in range(0, self.arrays[name].shape[0], rows):
            # A map of its own for each slab: the pages of one kept open would count as this process's memory.
            with netcdf_file(self.path, mmap=True) as file:
                slab = _slab(file.variables[name], start, rows, columns, self._packing[name])
            yield slab


def _info(shape: tuple[int, ...], stored: np.dtype[Any], packing: Packing) -> ArrayInfo:
    """A variable's shape and its values' type. Single characters (rows, length) are text (CF conventions, 2.2)."""
    if stored == np.dtype("S1") and len(shape) == 2:
        return ArrayInfo(shape[:1], np.dtype(f"S{shape[1]}"))
    return ArrayInfo(shape, packing.dtype(stored))


def _slab(variable: Any, start: int, rows: int, columns: Sequence[int], packing: Packing) -> Numbers:
    """Some columns of a run of rows of a variable, unpacked; a copy that does not refer to the file."""
    values = np.array(variable[start : start + rows])
    if values.dtype == np.dtype("S1") and values.ndim == 2:
        values = values.view(f"S{values.shape[1]}")
    if values.dtype.kind not in NUMBER_KINDS:
        return values.reshape(len(values), -1)[:, columns]
    return packing.decode(values.reshape(len(values), -1)[:, columns])
