"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dorff.data.readers import BLOCK_BYTES, Block, Reader, common_dtype, reading
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
        if pa.types.is_float16(kind) or pa.types.is_float32(kind):
            return np.dtype(np.float32)
        if (
            pa.types.is_floating(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_boolean(kind)
        ):
            return np.dtype(np.float64)
        raise InputError(
            f"{self.path}: column {column!r} holds {kind}, wanted real numbers; convert it or leave it out."
        )

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """Read batches of rows."""
        dtype = common_dtype([self.dtype(column) for column in columns])
        rows = max(1, BLOCK_BYTES // (8 * len(columns)))
        # Without a buffer of its own, or with pre_buffer, Arrow holds whole row groups.
        with (
            reading(self.path, "Parquet"),
            pq.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20) as file,
        ):
            for batch in file.iter_batches(rows, columns=list(columns), use_threads=False):
                yield np.column_stack([self._numbers(batch.column(column), dtype) for column in columns])

    def _numbers(self, column: Any, dtype: np.dtype[Any]) -> Block:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        values: Block = column.to_numpy(zero_copy_only=False)
        return values.astype(dtype, copy=False)
