"""HDF5, NetCDF4 (which is HDF5) and classic NetCDF3 files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import h5py
import numpy as np
from scipy.io import netcdf_file

from dorff.data.packing import Packing
from dorff.data.readers import ArrayInfo, ArraysReader, Block, reading


@final
class HDF5Reader(ArraysReader):
    """Variables by name ("group/variable" below a group); fill values, scale and offset are unpacked."""

    format_name = "HDF5"

    def __init__(self, path: str) -> None:
        found: dict[str, ArrayInfo] = {}
        self._packing: dict[str, Packing] = {}

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.shape is not None:
                self._packing[name] = Packing.of(item.attrs)
                found[name] = ArrayInfo(item.shape, self._packing[name].dtype(item.dtype))

        with reading(path, self.format_name), h5py.File(path, "r") as file:
            file.visititems(visit)
        super().__init__(path, found)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Block]:
        """Read slabs of rows."""
        with h5py.File(self.path, "r") as file:
            variable = file[name]
            for start in range(0, variable.shape[0], rows):
                yield _slab(variable, start, rows, columns, self._packing[name])


@final
class NetCDF3Reader(ArraysReader):
    """Variables of a classic NetCDF file, by name."""

    format_name = "NetCDF"

    def __init__(self, path: str) -> None:
        found: dict[str, ArrayInfo] = {}
        self._packing: dict[str, Packing] = {}
        with reading(path, self.format_name), netcdf_file(path, mmap=True) as file:
            for name in file.variables:
                self._packing[name] = Packing.of(file.variables[name]._attributes)
                stored = np.dtype(file.variables[name].data.dtype)
                found[name] = ArrayInfo(file.variables[name].shape, self._packing[name].dtype(stored))
        super().__init__(path, found)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Block]:
        """Read slabs of rows through a memory map."""
        for start in range(0, self.arrays[name].shape[0], rows):
            # A map of its own for each slab: the pages of one kept open would count as this process's memory.
            with netcdf_file(self.path, mmap=True) as file:
                slab = _slab(file.variables[name], start, rows, columns, self._packing[name])
            yield slab


def _slab(variable: Any, start: int, rows: int, columns: Sequence[int], packing: Packing) -> Block:
    """Some columns of a run of rows of a variable, unpacked; a copy that does not refer to the file."""
    values = np.array(variable[start : start + rows])
    return packing.decode(values.reshape(len(values), -1)[:, columns])
