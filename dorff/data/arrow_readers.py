"""Files that Arrow reads beside CSV: Parquet, of rows and of edges, and Arrow's own (Feather)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
from pyarrow import types

from dorff.data import readers
from dorff.data.edges import EDGES, RUN, Edges, EdgeSource
from dorff.data.labels import Run
from dorff.data.readers import BLOCK_BYTES, Numbers, Reader, SourceBlock, common_dtype, reading, side_by_side
from dorff.errors import InputError

UNITS_PER_SECOND: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class ArrowTableReader(Reader):
    """Columns of a table that Arrow reads; nulls are NaN, times of day and durations are seconds."""

    def __init__(self, path: str, schema: Any) -> None:
        self._schema = schema
        super().__init__(path, schema.names)

    def dtype(self, column: str) -> np.dtype[Any]:
        """The column's type; integers, decimals, booleans, times of day and durations come as float64."""
        kind = self._schema.field(column).type
        if types.is_run_end_encoded(kind):
            kind = kind.value_type
        if types.is_float16(kind):
            return np.dtype(np.float16)
        if types.is_float32(kind):
            return np.dtype(np.float32)
        numbers = (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean, types.is_time)
        if any(is_of(kind) for is_of in (*numbers, types.is_duration)):
            return np.dtype(np.float64)
        raise readers.unwanted(self.path, column, kind, readers.NUMBERS)

    def attributes(self, column: str) -> Mapping[str, str]:
        """Return the unit of times of day and durations."""
        index = self._schema.get_field_index(column)
        kind = self._schema.field(index).type if index >= 0 else pa.null()
        return {"units": "s"} if types.is_time(kind) or types.is_duration(kind) else {}

    def _labels(self, column: Any, name: str) -> Run:
        column = _plain(column)
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType) or types.is_interval(kind):  # periods of pandas, tensors
            raise readers.unwanted(self.path, name, kind, readers.LABELS)
        if types.is_temporal(kind):
            column = column.cast(pa.string())
        elif types.is_nested(kind):
            raise readers.unwanted(self.path, name, kind, readers.LABELS)
        elif types.is_float16(kind) or types.is_null(kind):
            column = column.cast(pa.float32())
        return Run.of(column)

    def _numbers(self, column: Any, dtype: np.dtype[Any]) -> Numbers:
        if types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        if types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if types.is_time(column.type) or types.is_duration(column.type):
            per_second = UNITS_PER_SECOND[column.type.unit]
            whole = pa.int32() if types.is_time32(column.type) else pa.int64()
            column = pc.divide(column.cast(whole).cast(pa.float64()), per_second)
        if not types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values.astype(dtype, copy=False)


def _plain(column: Any) -> Any:
    """Return an array without dictionary or runs, whose text is of a type that Arrow can compute with."""
    if types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if types.is_dictionary(column.type):  # its own dictionary may hold more, in another order
        values = _plain(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    if types.is_string_view(column.type):  # as polars writes text
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if types.is_binary_view(column.type) else column


class ParquetReader(ArrowTableReader):
    """Columns of a Parquet file."""

    def __init__(self, path: str) -> None:
        with reading(path, "Parquet"):
            schema = pq.read_schema(path)
        super().__init__(path, schema)

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        dtype = common_dtype([self.dtype(column) for column in columns])
        wanted = [*columns, *labels]
        rows = max(1, BLOCK_BYTES // (8 * len(wanted)))
        # Without a buffer of its own, or with pre_buffer, Arrow holds whole row groups.
        with reading(self.path, "Parquet"), pq.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20) as file:
            self.rows, count = file.metadata.num_rows, 0
            for batch in file.iter_batches(rows, columns=wanted, use_threads=False):
                count += len(batch)
                self._digest.follow(self.path, count, self.rows)
                numbers = [self._numbers(batch.column(column), dtype) for column in columns]
                runs = tuple(self._labels(batch.column(label), label) for label in labels)
                yield SourceBlock(side_by_side(numbers, len(batch)), runs)


class ArrowReader(ArrowTableReader):
    """Columns of a file of Arrow's, also called Feather (version 2): a record batch is in memory at a time."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            begin = file.read(6)
        if begin[:4] == b"FEA1":
            raise InputError(f"{path}: is Feather of version 1; write it as version 2 or Parquet.")
        self.path, self._stream = path, begin != b"ARROW1"
        with reading(path, "Arrow"), self._opened([]) as file:
            schema = file.schema
        super().__init__(path, schema)

    def _opened(self, columns: Sequence[int]) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=list(columns), use_threads=False)
        opened = pa.ipc.open_stream if self._stream else pa.ipc.open_file
        return opened(pa.memory_map(self.path), options=options)

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        dtype = common_dtype([self.dtype(column) for column in columns])
        wanted = sorted(self.columns.index(name) for name in {*columns, *labels})
        rows = max(1, BLOCK_BYTES // (8 * len(wanted)))
        count = 0
        with reading(self.path, "Arrow"), self._opened(wanted) as file:
            batches = file if self._stream else map(file.get_batch, range(file.num_record_batches))
            for batch in batches:
                for start in range(0, len(batch), rows):
                    part = batch.slice(start, rows)
                    count += len(part)
                    numbers = [self._numbers(part.column(column), dtype) for column in columns]
                    runs = tuple(self._labels(part.column(label), label) for label in labels)
                    yield SourceBlock(side_by_side(numbers, len(part)), runs)
            self.rows = count
            self._digest.follow(self.path, 1, 1)


@dataclass(frozen=True)
class ParquetEdges(EdgeSource):
    """The columns i, j and perhaps w of Parquet files: `files` are their names, `starts` the entries before each."""

    files: tuple[str, ...]
    starts: tuple[int, ...]

    def _read(self, start: int, stop: int) -> Edges:
        names = EDGES if self.weighted else EDGES[:2]
        out = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64), np.ones(stop - start)
        for file, (first, end) in zip(self.files, pairwise((*self.starts, self.count)), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                parts = tuple(part[low - start : high - start] for part in out)
                _read_parquet(file, names, low - first, parts[: len(names)])
        return out


def open_parquet_graph(root: Path, files: tuple[str, ...]) -> ParquetEdges:
    """The edges in these files; InputError as `open_graph`."""
    starts, count, nodes, weighted = [], 0, None, set()
    for file in files:
        with reading(file, "Parquet"), pq.ParquetFile(file) as opened:
            schema, rows = opened.schema_arrow, opened.metadata.num_rows
        _check_columns(file, schema)
        weighted.add("w" in schema.names)
        stated = (schema.metadata or {}).get(b"nodes", b"").decode("ascii", "replace")
        nodes = int(stated) if stated.isdigit() else nodes
        starts.append(count)
        count += rows
    if len(weighted) > 1:
        raise InputError(f"{root}: wanted the column w in all of its files or in none; write them alike.")
    return ParquetEdges(str(root), nodes, count, weighted.pop(), files, tuple(starts))


def _check_columns(file: str, schema: Any) -> None:
    others = [name for name in schema.names if name not in EDGES and not name.startswith("__")]  # but pandas' index
    remedy = "name the weights w, drop the rest" if "w" not in schema.names and others else "rename them"
    if remedy != "rename them" or not {*EDGES[:2]}.issubset(schema.names):
        raise InputError(f"{file}: wanted the columns i, j and perhaps w, got {schema.names}; {remedy}.")
    for name in EDGES[: 2 + ("w" in schema.names)]:
        kind, what = schema.field(name).type, "numbers" if name == "w" else "whole numbers of nodes"
        weight = name == "w" and (types.is_floating(kind) or types.is_boolean(kind))
        if not types.is_integer(kind) and not weight:
            raise InputError(f"{file}: column {name}: wanted {what}, got {kind}; convert it.")


def _read_parquet(file: str, names: tuple[str, ...], skip: int, out: tuple[npt.NDArray[Any], ...]) -> None:
    """Fill `out`, an array for each name, with the rows from `skip` on."""
    stop = skip + len(out[0])
    with (
        reading(file, "Parquet"),
        pq.ParquetFile(file, pre_buffer=False, buffer_size=2**20, page_checksum_verification=True) as opened,
    ):
        sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if starts[-1] < stop:
            raise InputError(f"{file}: has {starts[-1]} rows now, fewer than {stop}; open the graph again.")
        groups = [g for g in range(len(sizes)) if starts[g] < stop and starts[g + 1] > skip]
        at = int(starts[groups[0]])
        for batch in opened.iter_batches(RUN, row_groups=groups, columns=list(names), use_threads=False):
            low, high = max(skip, at), min(stop, at + len(batch))
            if low < high:
                for name, values in zip(names, out, strict=True):
                    values[low - skip : high - skip] = _column(file, batch.column(name), name)[low - at : high - at]
            at += len(batch)


def _column(file: str, column: Any, name: str) -> npt.NDArray[Any]:
    if name != "w" and column.null_count:
        raise InputError(f"{file}: column {name} has {column.null_count} gaps; leave those edges out.")
    try:
        converted = column.cast(pa.float64() if name == "w" else pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}: column {name} has a number out of range ({error}); mend the graph.") from error
    return np.asarray(converted.to_numpy(zero_copy_only=False))
