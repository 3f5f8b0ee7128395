"""Reads shards of uncompressed chunks, such as dorff writes, straight from their files.

Zarr's own reading of them goes through an event loop and two more copies, some ten times the time of the read itself:
beside a fast feature map that would show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import FileIO
from typing import Any, Final, final

import google_crc32c
import numpy as np
import numpy.typing as npt
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from dorff.data.files import ArrayFiles, Fault, ShardIndex
from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.data.shards import ABSENT

FloatArray = npt.NDArray[np.float64]
_CRC_BYTES: Final = 4


@final
@dataclass(frozen=True)
class PlainShards:
    """The shards of one array (rows,) or (rows, columns) whose chunks are whole rows, not compressed."""

    files: ArrayFiles
    index: ShardIndex
    stored: np.dtype[np.generic]
    checked: bool

    @classmethod
    def of(cls, files: ArrayFiles) -> PlainShards | None:
        """None for an array that lies otherwise."""
        codecs: tuple[Any, ...] = getattr(files.array.metadata, "codecs", ())
        if files.index is None or len(codecs) != 1 or not isinstance(codecs[0], ShardingCodec):
            return None
        first, *rest = codecs[0].codecs
        if not isinstance(first, BytesCodec) or len(rest) > 1 or not all(isinstance(c, Crc32cCodec) for c in rest):
            return None
        if len(files.shape) > 2 or files.inner[1:] != files.shape[1:] != (0,):
            return None
        stored = np.dtype(files.array.dtype)
        if stored.kind not in NUMBER_KINDS or stored.itemsize * math.prod(files.inner) >= 2**30:  # one read's limit
            return None
        big = first.endian is not None and first.endian.value == "big"
        return cls(files, files.index, stored.newbyteorder(">" if big else "<"), bool(rest))

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
            found = self.index.read(path)
            if found is None:
                return Fault(self.files.name, key, "damaged")
            entries = found[0].reshape(-1, 2)
            length = unit * out[:1].size * self.stored.itemsize + _CRC_BYTES * self.checked
            raw = np.empty(length, np.uint8)
            with path.open("rb", buffering=0) as file:
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
        if not self.checked:
            return True
        body, checksum = raw[:-_CRC_BYTES], int.from_bytes(raw[-_CRC_BYTES:].tobytes(), "little")
        return bool(google_crc32c.value(body) == checksum)
