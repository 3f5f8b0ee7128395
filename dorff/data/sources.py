"""Opens a source by the name of its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import h5py

from dorff.data.csv_reader import CSVReader
from dorff.data.netcdf_reader import HDF5Reader, NetCDF3Reader
from dorff.data.numpy_reader import NPYReader, NPZReader
from dorff.data.parquet_reader import ParquetReader
from dorff.data.readers import Reader, SideBySide, reading
from dorff.errors import InputError


def open_source(source: str | os.PathLike[str], asked: Collection[str] = ()) -> Reader:
    """The reader of a source: a file, or several side by side as `a.csv+b.csv`. `asked`: see CSVReader.

    Raises:
        InputError: no such file, or none of a known format.
    """
    name = os.fspath(source)
    parts = [name] if "+" not in name or Path(name).exists() else name.split("+")
    readers = [_open_file(part, asked) for part in parts]
    return readers[0] if len(readers) == 1 else SideBySide(readers)


def _netcdf(path: str) -> Reader:
    """NetCDF of either kind, told by its first bytes."""
    with reading(path, "NetCDF"), open(path, "rb") as file:
        classic = file.read(3) == b"CDF"
    if not classic and not h5py.is_hdf5(path):
        raise InputError(f"{path}: is neither HDF5 nor NetCDF; check that the file is whole and of that format.")
    return NetCDF3Reader(path) if classic else HDF5Reader(path)


_FORMATS: Final[dict[str, Callable[[str], Reader]]] = (
    dict.fromkeys((".parquet", ".pq"), ParquetReader)
    | {".npy": NPYReader, ".npz": NPZReader}
    | dict.fromkeys((".nc", ".nc3", ".nc4", ".cdf", ".h5", ".hdf5", ".hdf"), _netcdf)
)
_TEXT: Final = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz", ".txt.gz", ".data.gz")


def _open_file(path: str, asked: Collection[str]) -> Reader:
    suffix = Path(path.lower().removesuffix(".gz")).suffix + (".gz" if path.lower().endswith(".gz") else "")
    if not Path(path).exists():
        raise InputError(f"{path}: there is no such file; check the path.")
    if not Path(path).is_file():
        raise InputError(f"{path}: wanted a file, got a folder; name the files in it.")
    if suffix in _TEXT:
        return CSVReader(path, asked)
    if suffix not in _FORMATS:
        raise InputError(
            f"{path}: its format is not known from {suffix or 'its name'!r}; wanted one of "
            f"{', '.join((*_TEXT, *_FORMATS))}."
        )
    return _FORMATS[suffix](path)
