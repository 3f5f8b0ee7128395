"""The files of a Zarr array: which chunks are there, inner chunks of shards included, and the values of plain shards.
Zarr fills what is absent with the fill value: a lost file would be read as zeros, an absent inner chunk always is,
whatever the settings. So every read looks first, at exactly the chunks that it needs; one small read of the index for
a shard. Shards of uncompressed chunks, such as dorff writes, are read straight from their files: Zarr's own reading
goes through an event loop and two more copies, some ten times the time of the read itself."""

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from dorff.data.layout import ABSENT, transient
from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
Region = tuple[tuple[int, int], ...]  # for each dimension the first index and the one past the last
Coordinates = tuple[int, ...]
_CRC_BYTES: Final = 4
MOST_INNER: Final = 2**22  # chunks of a shard: its index is read as a whole


@dataclass(frozen=True)
class Fault:
    """One chunk that cannot be read: `kind` is "missing" or "damaged". `chunk` is the file's path inside the array,
    followed for an inner chunk of a shard by its place in brackets: "c/3/0[1,0]"."""

    array: str
    chunk: str
    kind: str

    def __str__(self) -> str:
        return f"array {self.array}, chunk {self.chunk} is {self.kind}"

    @property
    def hint(self) -> str:
        """What may be the reason in a store that others wrote, to be added to a remedy."""
        hint = "; other writers may leave out chunks that equal the fill value: have them write empty chunks"
        return hint if self.kind == "missing" else ""


@dataclass(frozen=True)
class ShardIndex:
    """Where a shard's file keeps its index, and how."""

    inner: tuple[int, ...]
    counts: tuple[int, ...]
    at_end: bool
    checked: bool
    dtype: str
    codecs: tuple[Any, ...]  # of its chunks

    def read(self, file: BinaryIO | FileIO) -> tuple[npt.NDArray[np.uint64], int] | None:
        """The index, (*counts, 2), and the file's size; None where it is cut short or its checksum wrong."""
        size = 16 * math.prod(self.counts) + 4 * self.checked
        if (total := file.seek(0, os.SEEK_END)) < size:
            return None
        file.seek(total - size if self.at_end else 0)
        content = file.read(size)
        if self.checked and int.from_bytes(content[-4:], "little") != google_crc32c.value(content[:-4]):
            return None
        entries = np.frombuffer(content, self.dtype, 2 * math.prod(self.counts))
        return entries.astype(np.uint64).reshape(*self.counts, 2), total


class ArrayFiles:
    """The files and chunks of one Zarr array, v2 or v3, sharded or not.

    With `fill_absent` a chunk that is not there holds the fill value, and is no fault.
    """

    def __init__(self, array: zarr.Array[Any], directory: Path, name: str, *, fill_absent: bool = False) -> None:
        self.array, self.directory, self.name, self.fill_absent = array, directory, name, fill_absent
        self.shape = tuple(array.shape)
        try:
            self.outer = tuple(array.shards or array.chunks)
        except NotImplementedError as error:
            remedy = "write chunks of one shape"
            raise InputError(f"array {name} of {directory.parent}: its chunk grid is not regular; {remedy}.") from error
        self.index = _shard_index(array, f"array {name} of {directory.parent}")
        self.inner = self.outer if self.index is None else self.index.inner

    def files(self, region: Region) -> Iterator[tuple[Coordinates, str]]:
        """Grid coordinates and relative path of every file that holds part of the region."""
        for at in _grid(region, self.outer):
            yield at, self.array.metadata.encode_chunk_key(at)

    def faults(self, region: Region, *, decode: bool) -> Iterator[Fault]:
        """Every missing or damaged chunk of the region; with `decode` each is decoded, else one small read a shard."""
        for label, state, extent in self._chunks(region):
            if decode and state == "present" and not self._decodes(extent):
                state = "damaged"
            if state == "damaged" or (state == "missing" and not self.fill_absent):
                yield Fault(self.name, label, state)

    def load(self, region: Region) -> npt.NDArray[Any] | Fault:
        """Read a region as stored; the first chunk that is missing or damaged where there is one."""
        if fault := next(self.faults(region, decode=False), None):
            return fault
        try:
            values = np.asarray(self.array[tuple(slice(*bounds) for bounds in region)])
        except Exception as error:
            if transient(error):
                raise
            where = " and ".join(f"{start} to {stop}" for start, stop in region)
            return next(self.faults(region, decode=True), Fault(self.name, f"of {where}", "damaged"))
        return values.astype(object) if values.dtype.kind == "T" else values  # text of any length

    def _chunks(self, region: Region) -> Iterator[tuple[str, str, Region]]:
        """Every chunk of the region as (label, state, extent in the array): present, missing or damaged."""
        for at, key in self.files(region):
            states, whole = self._states(key), self._extent(at, self.outer)
            if isinstance(states, str):
                yield key, states, whole
                continue
            part = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(region, whole, strict=True))
            for chunk in _grid(part, self.inner):
                place = tuple(i % (n // c) for i, n, c in zip(chunk, self.outer, self.inner, strict=True))
                yield f"{key}[{','.join(map(str, place))}]", str(states[place]), self._extent(chunk, self.inner)

    def _states(self, key: str) -> str | npt.NDArray[np.str_]:
        """The state of a whole file or, for a readable shard, of its chunks."""
        if not (path := self.directory / key).is_file():
            return "missing"
        if self.index is None:
            return "present" if path.stat().st_size else "damaged"
        with path.open("rb") as file:
            listing = self.index.read(file)
        if listing is None:
            return "damaged"
        (offset, length), size = np.moveaxis(listing[0], -1, 0), listing[1]
        absent = (offset == ABSENT) & (length == ABSENT)
        within = (length > 0) & (offset <= size) & (length <= size - np.minimum(offset, np.uint64(size)))
        return np.where(absent, "missing", np.where(within, "present", "damaged"))

    def _decodes(self, extent: Region) -> bool:
        try:
            self.array[tuple(slice(*bounds) for bounds in extent)]
        except MemoryError:
            raise
        except Exception:  # whatever a codec raises on bytes it cannot decode is the answer here
            return False
        return True

    def _extent(self, at: Coordinates, chunk: tuple[int, ...]) -> Region:
        return tuple((i * c, min(n, (i + 1) * c)) for i, c, n in zip(at, chunk, self.shape, strict=True))


def row_region(shape: tuple[int, ...], start: int, stop: int) -> Region:
    """Rows start..stop-1 of an array, in all its columns."""
    return ((start, stop), *((0, width) for width in shape[1:]))


def _grid(region: Region, chunk: tuple[int, ...]) -> Iterator[Coordinates]:
    spans = (range(start // rows, -(-stop // rows)) for (start, stop), rows in zip(region, chunk, strict=True))
    return itertools.product(*spans)


def _shard_index(array: zarr.Array[Any], what: str) -> ShardIndex | None:
    """How to read the array's shard indices; None for an array without shards."""
    codecs = getattr(array.metadata, "codecs", ())
    if (sharding := next((c for c in codecs if isinstance(c, ShardingCodec)), None)) is None:
        return None
    order, *checks = sharding.index_codecs
    plain = len(codecs) == 1 and not any(isinstance(c, ShardingCodec) for c in sharding.codecs)
    plain = plain and len(checks) < 2 and all(isinstance(c, Crc32cCodec) for c in checks)
    if not plain or not isinstance(order, BytesCodec):
        problem = "its shards are nested or wrapped in further codecs, so absent chunks cannot be told"
        raise InputError(f"{what}: {problem}; rewrite it with plain shards.")
    shape = tuple(s // c for s, c in zip(array.shards or array.chunks, sharding.chunk_shape, strict=True))
    if math.prod(shape) > MOST_INNER:
        problem = f"a shard has {math.prod(shape):,} chunks, and {MOST_INNER:,} at most can be looked up"
        raise InputError(f"{what}: {problem}; write it again, with larger chunks.")
    return ShardIndex(
        inner=tuple(sharding.chunk_shape),
        counts=shape,
        at_end=sharding.index_location.value == "end",
        checked=bool(checks),
        dtype=f"{_endian(order)}u8",
        codecs=tuple(sharding.codecs),
    )


def _endian(codec: BytesCodec) -> Literal["<", ">"]:
    return ">" if codec.endian is not None and codec.endian.value == "big" else "<"


@dataclass(frozen=True)
class PlainShards:
    """The shards of one array (rows,) or (rows, columns) whose chunks are whole rows, not compressed."""

    files: ArrayFiles
    index: ShardIndex
    stored: np.dtype[np.generic]
    checked: bool

    @classmethod
    def of(cls, files: ArrayFiles) -> "PlainShards | None":
        """None for an array that lies otherwise."""
        if files.index is None:
            return None
        first, *rest = files.index.codecs
        if not isinstance(first, BytesCodec) or len(rest) > 1 or not all(isinstance(c, Crc32cCodec) for c in rest):
            return None
        if len(files.shape) > 2 or files.inner[1:] != files.shape[1:] != (0,):
            return None
        stored = np.dtype(files.array.dtype)
        if stored.kind not in NUMBER_KINDS or stored.itemsize * math.prod(files.inner) >= 2**30:  # one read's limit
            return None
        return cls(files, files.index, stored.newbyteorder(_endian(first)), bool(rest))

    def read(self, start: int, stop: int, packing: Packing, out: FloatArray) -> Fault | None:
        """Write rows start..stop-1, decoded, into `out`; the first chunk that is missing or damaged, or None."""
        shard = self.files.outer[0]
        for number in range(start // shard, -(-stop // shard)):
            low, high = max(start, number * shard), min(stop, (number + 1) * shard)
            rows = out[low - start : high - start]
            if fault := self._read_shard(number, low - number * shard, high - number * shard, packing, rows):
                return fault
        return None

    def _read_shard(self, number: int, start: int, stop: int, packing: Packing, out: FloatArray) -> Fault | None:
        key = self.files.array.metadata.encode_chunk_key((number, 0)[: len(self.files.shape)])
        path, unit = self.files.directory / key, self.files.inner[0]
        try:
            length = unit * out[:1].size * self.stored.itemsize + _CRC_BYTES * self.checked
            raw = np.empty(length, np.uint8)
            with path.open("rb", buffering=0) as file:
                if (listing := self.index.read(file)) is None:
                    return Fault(self.files.name, key, "damaged")
                entries = listing[0].reshape(-1, 2)
                for chunk in range(start // unit, -(-stop // unit)):
                    label = f"{key}[{','.join([str(chunk), '0'][: len(self.files.shape)])}]"
                    if np.all(entries[chunk] == ABSENT):
                        return Fault(self.files.name, label, "missing")
                    if not self._fill(file, entries[chunk], raw):
                        return Fault(self.files.name, label, "damaged")
                    low, high = max(start, chunk * unit), min(stop, (chunk + 1) * unit)
                    values = raw[: length - _CRC_BYTES * self.checked].view(self.stored).reshape(unit, -1)
                    out[low - start : high - start] = packing.decode(values[low - chunk * unit : high - chunk * unit])
        except FileNotFoundError:
            return Fault(self.files.name, key, "missing")
        except OSError as error:
            error.filename = str(path)  # a read that fails does not say of which file
            raise
        return None

    def _fill(self, file: FileIO, entry: npt.NDArray[np.uint64], raw: npt.NDArray[np.uint8]) -> bool:
        """Read one chunk; False where it has another length, is cut short, or its checksum is wrong."""
        offset, length = (int(value) for value in entry)
        if length != len(raw) or offset >= 2**63:
            return False
        file.seek(offset)
        if file.readinto(raw.data) != length:
            return False
        checksum = int.from_bytes(raw[-_CRC_BYTES:].tobytes(), "little")
        return not self.checked or bool(google_crc32c.value(raw[:-_CRC_BYTES]) == checksum)
