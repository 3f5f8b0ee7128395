"""Files that Arrow reads beside CSV: Parquet, of rows and of edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dorff.data import readers
from dorff.data.edges import EDGES, RUN, Edges, EdgeSource
from dorff.data.labels import Run
from dorff.data.readers import BLOCK_BYTES, Numbers, Reader, SourceBlock, common_dtype, reading, side_by_side
from dorff.errors import InputError


class ParquetReader(Reader):
    """Columns of a Parquet file; nulls are NaN."""

    def __init__(self, path: str) -> None:
        with reading(path, "Parquet"):
            self._schema = pq.read_schema(path)
        super().__init__(path, self._schema.names)

    def dtype(self, column: str) -> np.dtype[Any]:
        """The column's type; integers, decimals and booleans come as float64."""
        kind = self._schema.field(column).type
        if types.is_float16(kind) or types.is_float32(kind):
            return np.dtype(np.float32)
        if any(is_of(kind) for is_of in (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean)):
            return np.dtype(np.float64)
        raise readers.unwanted(self.path, column, kind, readers.NUMBERS)

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

    def _labels(self, column: Any, name: str) -> Run:
        if types.is_dictionary(column.type):  # its own dictionary may hold more, in another order
            column = column.dictionary_decode()
        kind = column.type
        if types.is_temporal(kind):
            column = column.cast(pa.string())
        elif types.is_nested(kind):
            raise readers.unwanted(self.path, name, kind, readers.LABELS)
        elif types.is_float16(kind) or types.is_null(kind):
            column = column.cast(pa.float32())
        return Run.of(column)

    def _numbers(self, column: Any, dtype: np.dtype[Any]) -> Numbers:
        if types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values.astype(dtype, copy=False)


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
