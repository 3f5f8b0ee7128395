"""Sums as checksummed files: a file a tree node, a section a fold and pattern; written and merged by pieces."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np

from dorff.errors import InputError
from dorff.moments import Described, FloatArray, Folds, Kind, Moments, Part, Sums, Triangle, check_patterns
from dorff.store.atomic import write_atomic

_MAGIC: Final = b"dorffM04"
_PIECE: Final = 2**17  # numbers of a file that a merge holds at a time
S = TypeVar("S", bound=Sums)
_Section = dict[str, Any]  # kind, length, fold, observed, m, q, n, y0 and unit


class _DamagedError(Exception):
    """A file ends early, or its checksum is another."""


def save_moments(path: Path, folds: Mapping[Part, Described]) -> None:
    """Write the sums of each fold that has rows, and of each pattern of targets, whatever their kind.

    Layout: magic, the JSON header's length and checksum, the header, and a fold's numbers and their checksum in
    turn. Nothing is copied: what is still in an accumulator is written from there.
    """
    sections = [
        (
            {
                "kind": sums.kind, "length": sums.length, "fold": fold, "observed": observed, "m": sums.m, "q": sums.q,
                "n": sums.n, "y0": sums.y0.tolist(), "unit": sums.unit,
            },
            sums.pieces(),
        )
        for (fold, observed), sums in sorted(folds.items(), key=lambda item: item[0])
    ]  # fmt: skip
    write_atomic(path, _encoded(sections), sync=False)


def load_moments(path: Path) -> Folds | None:
    """The moments in a file, or None where the file is absent, torn or damaged: its leaves are to be done again."""
    return load_sums(path, Moments)


def load_sums(path: Path, of: type[S]) -> dict[Part, S] | None:
    """The sums in a file of this kind, or None as above; InputError where they are of another kind."""
    try:
        with path.open("rb") as file:
            folds = {_part(section): _whole(file, section, of) for section in _header(file)}
            return folds if not file.read(1) else None
    except (FileNotFoundError, _DamagedError):
        return None


def _whole(file: BinaryIO, section: _Section, of: type[S]) -> S:
    """A section's sums."""
    if section["kind"] != of.kind:
        raise InputError(f"a file holds sums of kind {section['kind']}, wanted {of.kind}; run the job again")
    values = np.empty(section["length"])
    for _ in _decoded(file, section, values):
        pass  # one piece, the whole array
    y0 = np.array(section["y0"], dtype=np.float64)
    return of.read(section["m"], section["q"], section["n"], y0, values, section["observed"], section["unit"])


def undamaged(path: Path) -> bool:
    """Whether a file is there, whole and with the right checksums; read by pieces, whatever the kind."""
    buffer = np.empty(_PIECE)
    try:
        with path.open("rb") as file:
            for section in _header(file):
                for _ in _decoded(file, section, buffer):
                    pass
            return not file.read(1)
    except (FileNotFoundError, _DamagedError):
        return False


def merge_moments(left: Path, right: Path, into: Path) -> bool:
    """Merge two files, part by part, into a third; False, and no file, where one is absent, torn or damaged."""
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(path.open("rb")) for path in (left, right)]
            write_atomic(into, _added(*files), sync=False)
        except (FileNotFoundError, _DamagedError):
            return False
    return True


def _part(section: _Section) -> Part:
    return section["fold"], section["observed"]


def _added(left: BinaryIO, right: BinaryIO) -> Iterator[bytes | memoryview]:
    """The bytes of the sum of two files; each is read once, in order."""
    of_left, of_right = ({_part(section): section for section in _header(file)} for file in (left, right))
    check_patterns(of_left.keys() | of_right.keys())
    sections: list[tuple[_Section, Iterator[FloatArray]]] = []
    buffers = np.empty((2, _PIECE))  # sections are read one after another
    for part in sorted(of_left.keys() | of_right.keys()):
        first, second = of_left.get(part), of_right.get(part)
        if first is None or second is None:
            (file, alone) = (left, of_left[part]) if second is None else (right, of_right[part])
            sections.append((alone, _decoded(file, alone, buffers[0])))
            continue
        if any(first[name] != second[name] for name in ("kind", "length", "m", "q", "y0")):
            raise InputError("moments of different plans cannot be added: kind, m, q and y0 must be the same")
        merged = {**first, "n": first["n"] + second["n"], "unit": max(first["unit"], second["unit"])}
        if first["kind"] == Kind.TRIANGLE:
            sections.append((merged, _stacked(left, first, right, second)))
        else:
            read = zip(_decoded(left, first, buffers[0]), _decoded(right, second, buffers[1]), strict=True)
            sections.append((merged, (np.add(x, y, out=x) for x, y in read)))
    yield from _encoded(sections)
    if left.read(1) or right.read(1):
        raise _DamagedError


def _stacked(left: BinaryIO, first: _Section, right: BinaryIO, second: _Section) -> Iterator[FloatArray]:
    """The triangle of two triangles, which cannot be had by pieces."""
    yield from _whole(left, first, Triangle).absorb(_whole(right, second, Triangle)).pieces()


def _encoded(sections: Iterable[tuple[_Section, Iterator[FloatArray]]]) -> Iterator[bytes | memoryview]:
    sections = list(sections)
    header = json.dumps([section for section, _ in sections]).encode()
    yield _MAGIC + struct.pack("<II", len(header), zlib.crc32(header)) + header
    for _, pieces in sections:
        checksum = 0
        for piece in pieces:
            raw = piece.data.cast("B")
            checksum = zlib.crc32(raw, checksum)
            yield raw
        yield struct.pack("<I", checksum)


def _header(file: BinaryIO) -> list[_Section]:
    prefix = file.read(16)
    if len(prefix) < 16 or prefix[:8] != _MAGIC:
        raise _DamagedError
    length, checksum = struct.unpack("<II", prefix[8:])
    header = file.read(length)
    if len(header) != length or zlib.crc32(header) != checksum:
        raise _DamagedError
    found: list[_Section] = json.loads(header)
    return found


def _decoded(file: BinaryIO, section: _Section, buffer: FloatArray) -> Iterator[FloatArray]:
    """The section's numbers, a buffer's worth at a time, each in the same memory; its checksum is looked at last."""
    checksum, left = 0, int(section["length"])
    while left:
        piece = buffer[: min(len(buffer), left)]
        raw = piece.data.cast("B")
        if file.readinto(raw) != len(raw):  # type: ignore[attr-defined]  # typeshed's BinaryIO has no readinto
            raise _DamagedError
        checksum = zlib.crc32(raw, checksum)
        left -= len(piece)
        yield piece
    if file.read(4) != struct.pack("<I", checksum):
        raise _DamagedError
