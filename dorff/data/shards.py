"""Writes shards, streaming: one inner chunk in memory at a time, and every file appears whole or not at all.

Zarr's own writer holds a shard in memory several times, pads the last one to its full size and rewrites a
shard for each part of it that arrives; what it writes and what this writes are read alike (Zarr v3
specification, sharding codec 1.0).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, final

import google_crc32c
import numpy as np
import numpy.typing as npt

from dorff.data.layout import ArrayLayout
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

SHARD: Final = "0"  # a shard's file, in a folder of its number
ABSENT: Final = 2**64 - 1  # both fields of the index entry of a chunk that was not written


@final
class ShardWriter:
    """Writes rows in order into the shards of one array, starting with row number `start`.

    Where that is inside a shard, the shard is new: its rows before are not there. Nothing is at its
    name, `SHARD`, until it is whole.

    Use as a context manager: leaving it without an error writes the last, partly filled shard; leaving it
    with one removes the shard that was being written. Batches of any size give the same files.
    """

    def __init__(self, array: Path, layout: ArrayLayout, *, start: int = 0) -> None:
        self.layout = layout
        self._array, self._shard = array, start // layout.shard_rows
        self._unit = np.full((layout.unit_rows, layout.columns), layout.fill, layout.stored)
        self._filled = start % layout.unit_rows
        self._index = np.full((layout.units, 2), ABSENT, "<u8")
        self._chunk = start % layout.shard_rows // layout.unit_rows
        self._file: BinaryIO | None = None
        self._writing = ExitStack()  # of the shard's file, which is then whole or not there

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Add rows (k, columns)."""
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + self.layout.unit_rows - self._filled)
            self._unit[self._filled : self._filled + stop - start] = rows[start:stop]
            self._filled += stop - start
            start = stop
            if self._filled == self.layout.unit_rows:
                self._write_chunk()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._writing.__exit__(kind, error, trace)
            return
        if self._filled:
            self._write_chunk()
        if self._file is not None:
            self._finish_shard()
        if self._path.parent.parent.is_dir():
            sync_directory(self._path.parent.parent)

    @property
    def _path(self) -> Path:
        return self._array / "c" / str(self._shard) / SHARD

    def _write_chunk(self) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._writing.enter_context(locate(self._path).writing(sync=True))
        self._unit[self._filled :] = self.layout.fill  # past the end: so that bytes depend on rows alone
        size = _write_checked(self._file, self._unit)
        self._index[self._chunk] = (self._file.tell() - size, size)
        self._chunk += 1
        self._filled = 0
        if self._chunk == self.layout.units:
            self._finish_shard()

    def _finish_shard(self) -> None:
        assert self._file is not None
        _write_checked(self._file, self._index)
        self._file = None
        self._writing.close()
        self._shard, self._chunk = self._shard + 1, 0
        self._index[:] = ABSENT


def _write_checked(file: BinaryIO, array: npt.NDArray[Any]) -> int:
    content = array.view(np.uint8).reshape(-1)
    checksum = int(google_crc32c.value(content)).to_bytes(4, "little")
    return file.write(content.data) + file.write(checksum)
