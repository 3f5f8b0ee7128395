"""Moments as checksummed files: a file a tree node, a section a fold and pattern; written and merged by pieces."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from dorff.errors import InputError
from dorff.moments import MOST_PATTERNS, FloatArray, Moments, Part
from dorff.store.atomic import write_atomic

_MAGIC: Final = b"dorffM03"
_PIECE: Final = 2**17  # numbers of a file that a merge holds at a time
Folds = dict[Part, Moments]
_Section = dict[str, Any]  # fold, observed, m, q, n and y0


class Sums(Protocol):
    """`Moments`, or an accumulator of them."""

    @property
    def m(self) -> int: ...
    @property
    def q(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def y0(self) -> FloatArray: ...
    @property
    def observed(self) -> str: ...
    def pieces(self) -> Iterator[FloatArray]:
        """The packed upper triangle, in order, in contiguous pieces."""
        ...


class _DamagedError(Exception):
    """A file ends early, or its checksum is another."""


def save_moments(path: Path, folds: Mapping[Part, Sums]) -> None:
    """Write the moments of each fold that has rows, and of each pattern of targets.

    Layout: magic, the JSON header's length and checksum, the header, and a fold's packed array and its checksum in
    turn. Nothing is copied: what is still in an accumulator is written from there.
    """
    sections = [
        (
            {"fold": fold, "observed": observed, "m": sums.m, "q": sums.q, "n": sums.n, "y0": sums.y0.tolist()},
            sums.pieces(),
        )
        for (fold, observed), sums in sorted(folds.items())
    ]
    write_atomic(path, _encoded(sections), sync=False)


def load_moments(path: Path) -> Folds | None:
    """The moments in a file, or None where the file is absent, torn or damaged: its leaves are to be done again."""
    try:
        with path.open("rb") as file:
            folds: Folds = {}
            for section in _header(file):
                packed = np.empty(_length(section))
                for _ in _decoded(file, section, packed):
                    pass  # one piece, the whole array
                y0 = np.array(section["y0"], dtype=np.float64)
                moments = Moments(section["m"], section["q"], section["n"], y0, packed, section["observed"])
                folds[_part(section)] = moments
            return folds if not file.read(1) else None
    except (FileNotFoundError, _DamagedError):
        return None


def merge_moments(left: Path, right: Path, into: Path) -> bool:
    """Add two files, part by part, into a third; False, and no file, where one of them is absent, torn or damaged."""
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(path.open("rb")) for path in (left, right)]
            write_atomic(into, _added(*files), sync=False)
        except (FileNotFoundError, _DamagedError):
            return False
    return True


def merge_folds(left: Folds, right: Folds) -> Folds:
    """Sums fold by fold and pattern by pattern; overwrites `left`'s arrays, which the caller owns."""
    check_patterns(left.keys() | right.keys())
    merged = dict(left)
    for part, moments in right.items():
        if part in merged:
            moments = merged[part].absorb(moments)
        merged[part] = moments
    return merged


def check_patterns(parts: Iterable[Part]) -> None:
    """InputError where there are more patterns of targets than `MOST_PATTERNS`."""
    patterns = {observed for _, observed in parts}
    if len(patterns) > MOST_PATTERNS:
        raise InputError(
            "rows that miss targets have sums of their own for each pattern of what is there, at most "
            f"{MOST_PATTERNS} patterns, but there are more ({', '.join(sorted(patterns)[:3])}, ...; 1 is there, "
            "0 is missing); leave "
            "such rows out (in a job, data.nan: drop), or fit fewer targets"
        )


def _part(section: _Section) -> Part:
    return section["fold"], section["observed"]


def _added(left: BinaryIO, right: BinaryIO) -> Iterator[bytes | memoryview]:
    """The bytes of the sum of two files; each is read once, in order."""
    of_left, of_right = ({_part(section): section for section in _header(file)} for file in (left, right))
    check_patterns(of_left.keys() | of_right.keys())
    sections: list[tuple[_Section, Iterator[FloatArray]]] = []
    buffers = np.empty((2, _PIECE))  # sections are read one after another
    for part in sorted(of_left.keys() | of_right.keys()):
        parts = [
            (found[part], _decoded(file, found[part], buffer))
            for found, file, buffer in ((of_left, left, buffers[0]), (of_right, right, buffers[1]))
            if part in found
        ]
        sections.append(parts[0] if len(parts) == 1 else _sum(*parts))
    yield from _encoded(sections)
    if left.read(1) or right.read(1):
        raise _DamagedError


def _sum(
    left: tuple[_Section, Iterator[FloatArray]], right: tuple[_Section, Iterator[FloatArray]]
) -> tuple[_Section, Iterator[FloatArray]]:
    (first, a), (second, b) = left, right
    if any(first[name] != second[name] for name in ("m", "q", "y0")):
        raise InputError("moments of different plans cannot be added: m, q and y0 must be the same")
    pieces = (np.add(x, y, out=x) for x, y in zip(a, b, strict=True))
    return {**first, "n": first["n"] + second["n"]}, pieces


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


def _length(section: _Section) -> int:
    width: int = section["m"] + 1 + section["q"]
    return width * (width + 1) // 2


def _decoded(file: BinaryIO, section: _Section, buffer: FloatArray) -> Iterator[FloatArray]:
    """The section's numbers, a buffer's worth at a time, each in the same memory; its checksum is looked at last."""
    checksum, left = 0, _length(section)
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
