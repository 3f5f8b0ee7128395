"""Opens a source of rows: a file, by the end of its name; files side by side; columns that hold one number each."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dorff.data.readers import Reader, SourceBlock, reading
from dorff.errors import InputError
from dorff.spec.part import Part
from dorff.spec.registry import READERS, Entry, lazily


class ColumnNames(Part):
    """The options of a format whose columns depend on those that will be `asked` for."""

    asked: tuple[str, ...] = ()


def open_source(source: str | os.PathLike[str], asked: Collection[str] = ()) -> Reader:
    """The reader of a source: a file, or several side by side as `a.csv+b.csv`. `asked`: see CSVReader.

    Raises InputError: no such file, or none of a known format."""
    name = os.fspath(source)
    parts = [name] if "+" not in name or Path(name).exists() else name.split("+")
    readers = [_open_file(part, asked) for part in parts]
    return readers[0] if len(readers) == 1 else SideBySide(readers)


def ending(path: str) -> str:
    """`.csv`, or `.csv.gz`."""
    return Path(path.lower().removesuffix(".gz")).suffix + (".gz" if path.lower().endswith(".gz") else "")


def _open_file(path: str, asked: Collection[str]) -> Reader:
    """The reader that `READERS` has for the end of the name, `.csv` or `.csv.gz` say."""
    suffix = ending(path)
    if not Path(path).exists():
        raise InputError(f"{path}: there is no such file; check the path.")
    if not Path(path).is_file():
        raise InputError(f"{path}: wanted a file, got a folder; name the files in it.")
    entry = READERS.get(suffix)
    if entry is None:
        raise InputError(
            f"{path}: its format is not known from {suffix or 'its name'!r}; wanted one of {', '.join(READERS.names)}."
        )
    options = {"asked": asked} if "asked" in entry.options.model_fields else {}
    reader: Reader = entry.build(path, **options)
    return reader


def _netcdf(path: str, asked: Collection[str] = ()) -> Reader:
    """NetCDF of either kind, which its first bytes say."""
    import h5py

    from dorff.data.array_readers import VariablesReader

    with reading(path, "NetCDF"), open(path, "rb") as file:
        classic = file.read(3) == b"CDF"
    if not classic and not h5py.is_hdf5(path):
        raise InputError(f"{path}: is neither HDF5 nor NetCDF; check that the file is whole and of that format.")
    return VariablesReader(path, asked, classic=classic)


def _add(ends: str, build: Callable[..., Reader], options: type[Part] = Part) -> None:
    READERS.add(*(Entry(end, build, options) for end in ends.split()))


_CSV = lazily("dorff.data.arrow_readers", "CSVReader")  # Arrow and HDF5 take 40 MiB that fits need not hold
_add(".csv .tsv .txt .data .csv.gz .tsv.gz .txt.gz .data.gz", _CSV, ColumnNames)
_add(".parquet .pq", lazily("dorff.data.arrow_readers", "ParquetReader"))
_add(".npy", lazily("dorff.data.array_readers", "NPYReader"))
_add(".npz", lazily("dorff.data.array_readers", "NPZReader"))
_add(".nc .nc3 .nc4 .cdf .h5 .hdf5 .hdf", _netcdf, ColumnNames)


class SideBySide(Reader):
    """Sources with columns side by side: `a.csv+b.csv`. Columns without names are numbered on, c0, c1, ..."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = tuple(readers)
        self._place: dict[str, tuple[Reader, str]] = {}
        columns, number = [], 0
        for reader in readers:
            for column in reader.columns:
                columns.append(f"c{number}" if reader.numbered else column)
                number += reader.numbered
                self._place[columns[-1]] = (reader, column)
        numbered = all(reader.numbered for reader in readers)
        super().__init__("+".join(reader.path for reader in readers), columns, numbered=numbered)

    def expand(self, name: str) -> tuple[str, ...]:
        expanded = (reader.expand(name) for reader in self._readers if not reader.numbered)
        return next((e for e in expanded if e != (name,)), (name,))

    def dtype(self, column: str) -> np.dtype[Any]:
        reader, name = self._place[column]
        return reader.dtype(name)

    def is_text(self, column: str) -> bool:
        reader, name = self._place[column]
        return reader.is_text(name)

    def units(self, column: str) -> str:
        reader, name = self._place.get(column, (None, ""))
        return reader.units(name) if reader else ""

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Read in step the sources that hold these columns; InputError when they differ in length."""
        held = {self._place[name][0] for name in (*columns, *labels)}
        readers = [reader for reader in self._readers if reader in held]
        streams = [r.blocks(self._of(r, columns), self._of(r, labels)) for r in readers]
        pick, pick_runs = (
            np.argsort([i for r in readers for i, name in enumerate(names) if self._place[name][0] is r])
            for names in (columns, labels)
        )
        for parts in _in_step(readers, streams):
            label_runs = [run for part in parts for run in part.labels]
            together = np.concatenate([part.numbers for part in parts], axis=1)
            yield SourceBlock(together[:, pick], tuple(label_runs[place] for place in pick_runs))
        self.rows = readers[0].rows

    def _of(self, reader: Reader, names: Sequence[str]) -> list[str]:
        return [name for holder, name in map(self._place.__getitem__, names) if holder is reader]

    def content(self) -> str:
        """Of those that were read."""
        return "+".join(reader.content() for reader in self._readers if reader.rows)


def _in_step(readers: Sequence[Reader], streams: Sequence[Iterator[SourceBlock]]) -> Iterator[list[SourceBlock]]:
    """Cut streams of blocks at the same rows."""
    held = [next(stream, None) for stream in streams]
    counts = [0] * len(streams)
    while all(block is not None for block in held):
        blocks = [block for block in held if block is not None]
        rows = min(len(block) for block in blocks)
        yield [block[:rows] for block in blocks]
        for i, block in enumerate(blocks):
            counts[i] += rows
            held[i] = block[rows:] if len(block) > rows else next(streams[i], None)
    for i, rest in enumerate(held):
        counts[i] += (0 if rest is None else len(rest)) + sum(len(b) for b in streams[i])
        if counts[i] != counts[0]:
            raise InputError(
                f"{readers[0].path} has {counts[0]} rows but {readers[i].path} has {counts[i]}; files side by side "
                "need as many rows each."
            )
