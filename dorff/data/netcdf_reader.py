"""HDF5, NetCDF4 (which is HDF5) and classic NetCDF3 files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import h5py
import numpy as np
from scipy.io import netcdf_file

from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.data.readers import ArrayInfo, ArraysReader, Numbers, reading


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
