"""The arrays that dorff writes: shards and inner chunks (Zarr v3, sharding codec 1.0), metadata, a writer that
streams. Zarr's own writer holds a shard in memory several times, pads the last one to its full size and rewrites a
shard for each part of it that arrives; what it writes and what this writes are read alike."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from dorff.data.metadata import read_json, rewrite, sealed, write_json
from dorff.errors import InputError
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

SHARD: Final = "0"  # a shard's file, in a folder of its number
ABSENT: Final = 2**64 - 1  # both fields of the index entry of a chunk that was not written
MAX_SHARD_BYTES: Final = 64 * 2**20
CHUNK_BYTES: Final = 2 * 2**20
MIN_SHARD_ROWS: Final = 1024
# Whole shards are the unit of work, so this is also how finely a small data set spreads over workers.
MAX_SHARD_ROWS: Final = 16384
MOST_SHARD_ROWS: Final = 2**24  # of those asked for: a shard and its index are in memory


@dataclass(frozen=True)
class ArrayLayout:
    """One array (rows, columns) of floats, or of codes (integers, -1 for none), in files of `shard_rows` rows, in inner
    chunks of `unit_rows`. Chunks are not compressed: the mantissas of measured float64 hardly shrink, decoding is then
    a copy, a chunk's bytes never depend on a library's version, and every inner chunk lies at a place known beforehand.
    Each chunk and each shard's index carry a CRC32C."""

    columns: int
    shard_rows: int
    unit_rows: int
    dtype: str = "float64"

    @property
    def stored(self) -> np.dtype[Any]:
        """The type on disk."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def fill(self) -> float:
        """What Zarr takes the place of rows that are not there."""
        return 0.0 if self.stored.kind == "f" else -1

    @property
    def units(self) -> int:
        return self.shard_rows // self.unit_rows

    def metadata(self, rows: int) -> dict[str, Any]:
        checked = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        unit, grid = ({"chunk_shape": [rows_of, self.columns]} for rows_of in (self.unit_rows, self.shard_rows))
        sharding = {**unit, "codecs": checked, "index_codecs": checked, "index_location": "end"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, self.columns],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
            "storage_transformers": [],
        }


def shard_and_unit_rows(d: int, q: int, shard_rows: int | None = None) -> tuple[int, int]:
    """Rows of a shard and of an inner chunk for d inputs and q targets, whatever the number of rows. A shard is a
    power of two of rows, at most 64 MiB for inputs and targets together but at least 1024 and at most 16384 rows;
    `shard_rows` overrides it. A chunk has the divisor of the shard's rows nearest to 2 MiB."""
    row_bytes = 8 * (d + q)
    if shard_rows is None:
        fitting = 2 ** int(math.log2(max(1, MAX_SHARD_BYTES // row_bytes)))
        shard_rows = min(MAX_SHARD_ROWS, max(MIN_SHARD_ROWS, fitting))
    if not 1 <= shard_rows <= MOST_SHARD_ROWS:
        raise InputError(f"--shard-rows: wanted from 1 to {MOST_SHARD_ROWS:,} rows, got {shard_rows:,}; correct it.")
    wanted = max(1.0, CHUNK_BYTES / row_bytes)
    small = [k for k in range(1, math.isqrt(shard_rows) + 1) if shard_rows % k == 0]
    divisors = small + [shard_rows // k for k in small]
    return shard_rows, min(divisors, key=lambda k: (abs(math.log(k / wanted)), k))


def write_metadata(
    group: Path,
    arrays: Mapping[str, ArrayLayout],
    *,
    rows: int,
    first: int = 0,
    columns: Mapping[str, tuple[str, ...]],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Commit the rows first..rows-1: write each array's metadata and, last, the group's; each atomically. Readers
    trust the group's `dorff.rows` over the arrays' shapes; `more` goes into its attribute `dorff` too."""
    for name, layout in arrays.items():
        if locate(group).folders:
            (group / name).mkdir(parents=True, exist_ok=True)
        # The dimensions' names are what xarray needs to open a store.
        named = {**layout.metadata(rows), "dimension_names": ["row", f"{name}_column"]}
        write_json(group / name / "zarr.json", sealed(named))
    names = {array: list(of_array) for array, of_array in columns.items()}
    attributes = {"columns": names, "dorff": {"first": first, "rows": rows, **(more or {})}}
    write_json(group / "zarr.json", sealed({"zarr_format": 3, "node_type": "group", "attributes": attributes}))


def commit(group: Path, changes: Mapping[str, Any]) -> None:
    """Change what the group's attribute `dorff` says, in one step; what others added to its metadata stays."""
    content = read_json(group / "zarr.json")
    content["attributes"]["dorff"] |= changes
    content.pop("consolidated_metadata", None)  # a copy of what changes
    rewrite(group / "zarr.json", content)


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Writes rows in order into the shards of one array, starting with row number `start`. Where that is inside a
    shard, the shard is new: its rows before are not there. Nothing is at its name, `SHARD`, until it is whole. A
    context manager: left without an error it writes the last, partly filled shard; with one it removes the shard that
    was being written. Batches of any size give the same files."""

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

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is not None:
            self._writing.__exit__(*failure)
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
            if locate(self._path).folders:
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
    return file.write(content.data) + file.write(int(google_crc32c.value(content)).to_bytes(4, "little"))
