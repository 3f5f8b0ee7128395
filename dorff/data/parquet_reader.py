"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dorff.data.labels import Run
from dorff.data.readers import BLOCK_BYTES, Numbers, Reader, SourceBlock, common_dtype, reading, side_by_side
from dorff.errors import InputError


@final
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
        raise InputError(
            f"{self.path}: column {column!r} holds {kind}, wanted real numbers; convert it or leave it out."
        )

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Read batches of rows."""
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
            raise InputError(
                f"{self.path}: column {name!r} holds {kind}, wanted labels: text, whole numbers or booleans; "
                "convert it."
            )
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
