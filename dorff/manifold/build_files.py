"""Files of many parts, each read alone and with a checksum of its own; and rows of inputs, each with one."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from dorff.spec.registry import Config
from dorff.store import identity, open_plain, read_plain, seal, unseal, write_atomic

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
#: Where a part begins, its bytes, its CRC32, and the CRC32 of these three, the part's number and the file's identity.
_ENTRY: Final = np.dtype([("begin", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("own", "<u4")])
_KINDS: Final = ("|u1", "<f4", "<f8")  # that rows are kept as: the first that loses nothing


def write_record(path: Path, record: Mapping[str, Any], *, sync: bool) -> None:
    """A record of a build, sealed as what it is."""
    write_atomic(path, [seal(record, identity(path))], sync=sync)


def read_record(path: Path) -> Config | None:
    """Such a record; None where it is damaged, or was written in another's place. FileNotFoundError."""
    return unseal(read_plain(path), identity(path))


def write_parts(path: Path, parts: Sequence[npt.NDArray[Any]]) -> str:
    """Write arrays, one a part, atomically; returns a digest of all."""
    table, begin = np.zeros(len(parts), _ENTRY), len(parts) * _ENTRY.itemsize
    contents = [np.ascontiguousarray(part).tobytes() for part in parts]
    for number, content in enumerate(contents):
        entry = table[number]
        entry["begin"], entry["size"], entry["crc"] = begin, len(content), zlib.crc32(content)
        begin += len(content)
    digest = hashlib.blake2b(table.tobytes(), digest_size=8).hexdigest()  # the same in every build
    table["own"] = [_own(path, entry, number) for number, entry in enumerate(table)]
    write_atomic(path, [table.tobytes(), *contents], sync=False)
    return digest


def read_parts(path: Path, numbers: Sequence[int]) -> list[bytes]:
    """Some parts of such a file. ValueError where one of them is not what was written, FileNotFoundError."""
    with open_plain(path, buffering=0) as file:
        return [_part(path, file, number) for number in numbers]


def _part(path: Path, file: BinaryIO, number: int) -> bytes:
    file.seek(number * _ENTRY.itemsize)
    head = file.read(_ENTRY.itemsize)
    if len(head) != _ENTRY.itemsize:
        raise ValueError("too short")
    entry = np.frombuffer(head, _ENTRY)[0]
    if entry["own"] != _own(path, entry, number):
        raise ValueError("its table's checksum is wrong, or it is another file's")
    file.seek(int(entry["begin"]))
    content = file.read(int(entry["size"]))
    if len(content) != entry["size"] or zlib.crc32(content) != entry["crc"]:
        raise ValueError("its checksum is wrong")
    return content


def _own(path: Path, entry: Any, number: int) -> int:
    name = f"{number} {identity(path)}".encode()
    return zlib.crc32(entry.tobytes()[: _ENTRY.fields["own"][1]], zlib.crc32(name))  # type: ignore[index]


def packed(X: FloatArray) -> npt.NDArray[Any]:
    """The same rows as bytes or float32, where every bit comes back."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for kind in _KINDS:
            small = X.astype(kind)
            if np.array_equal(small.astype("<f8").view("<i8"), X.view("<i8")):
                break
    return small


def row_sums(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """CRC32 (n,) of each row (n, d), C-contiguous."""
    width, raw = rows.shape[1] * rows.itemsize, rows.reshape(-1).view("u1").data
    sums = (zlib.crc32(raw[at : at + width]) for at in range(0, len(rows) * width, width))
    return np.fromiter(sums, np.uint32, len(rows))


def read_rows(path: Path, kind: str, d: int, places: IntArray, sums: npt.NDArray[np.uint32]) -> FloatArray:
    """Rows (k, d) at these places (k,) of a file of rows, whose CRC32 are `sums` (k,), as float64.

    ValueError where one of them is another, FileNotFoundError.
    """
    width = d * np.dtype(kind).itemsize
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    rows = np.empty((len(places), d), kind)
    raw, at = rows.reshape(-1).view("u1").data, 0
    with open_plain(path, buffering=0) as file:
        for run in np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1) if len(places) else ():
            size = len(run) * width
            file.seek(int(run[0]) * width)
            content = file.read(size)
            if len(content) != size:
                raise ValueError("too short")
            raw[at : at + size] = content
            at += size
    if not np.array_equal(row_sums(rows), sums[order]):
        raise ValueError("a row's checksum is wrong")
    out = np.empty((len(places), d))
    out[order] = rows
    return out
