"""Sums as checksummed files: a file a tree node, a section a fold and pattern; merged by pieces, read without trust."""

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Final, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.moments import Adder, Described, FloatArray, Folds, Moments, Part, Sums, check_patterns
from dorff.storage.files import identity, open_plain, write_atomic

_MAGIC: Final = b"dorffM06"
_HELD: Final = "held "  # before the kind, of what an adder holds
_PIECE: Final = 2**17  # numbers of a file that are written, or held by a merge, at a time
_TYPES: Final = {
    "kind": str, "length": int, "fold": int, "observed": str, "m": int, "q": int, "n": int, "y0": list, "unit": float,
}  # fmt: skip
S = TypeVar("S", bound=Sums)
_Section = dict[str, Any]  # kind, length, fold, observed, m, q, n, y0 and unit
_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KINDS: Final = "fiub"  # numbers and booleans: no objects, which would be pickled


class _DamagedError(Exception):
    """A file ends early, its checksum is another, or it was written in another's place."""


_USELESS: Final = (FileNotFoundError, _DamagedError)


def save_moments(path: Path, folds: Mapping[Part, Described]) -> None:
    """Write the sums of each fold that has rows, and of each pattern of targets, whatever their kind. Layout: magic,
    the JSON header's length and checksum, the header (the file's `identity`, and what its sections are), and a fold's
    numbers and their checksum in turn. Nothing is copied out of accumulators."""
    parts = sorted(folds.items(), key=lambda item: item[0])
    sections = [(_section(part, sums, sums.kind, sums.length), sums.pieces()) for part, sums in parts]
    write_atomic(path, _encoded(path, sections), sync=False)


def _section(part: Part, sums: Described, kind: str, length: int) -> _Section:
    return {
        "kind": kind, "length": length, "fold": part[0], "observed": part[1], "m": sums.m, "q": sums.q, "n": sums.n,
        "y0": sums.y0.tolist(), "unit": sums.unit,
    }  # fmt: skip


def save_held(path: Path, adders: Mapping[Part, Adder]) -> None:
    """Write all that adders hold, as `save_moments` would their sums; on disk once it returns."""
    sections = [
        (_section(part, adder, _HELD + adder.kind, sum(len(piece) for piece in adder.held())), adder.held())
        for part, adder in adders.items()
    ]
    write_atomic(path, _encoded(path, sections), sync=True)


def load_held(path: Path, of: Callable[[Part], Adder]) -> bool:
    """Read them back into the empty adders that `of` gives: False where that failed, and the adders hold rubbish."""
    with suppress(*_USELESS), open_plain(path) as file:
        for section in _header(file):
            adder = of(_part(section))
            adder.n, adder.unit = section["n"], section["unit"]
            pieces = list(adder.held())
            length = sum(len(piece) for piece in pieces)
            if section != _section(_part(section), adder, _HELD + adder.kind, length):
                return False
            list(_decoded(file, pieces))
        return True
    return False


def load_moments(path: Path) -> Folds | None:
    """The moments in a file, or None where the file is absent, torn or damaged: its leaves are to be done again."""
    return load_sums(path, Moments)


def load_sums(path: Path, of: type[S]) -> dict[Part, S] | None:
    """The sums in a file of this kind, or None as above; InputError where they are of another kind."""
    with suppress(*_USELESS), open_plain(path) as file:
        return {_part(section): _whole(file, section, of) for section in _header(file)}
    return None


def _whole(file: BinaryIO, section: _Section, of: type[S]) -> S:
    if section["kind"] != of.kind:
        raise InputError(f"a file holds sums of kind {section['kind']}, wanted {of.kind}; run the job again")
    values = np.empty(section["length"])
    list(_decoded(file, _cut(section, values)))
    return of.read(section, np.array(section["y0"], dtype=np.float64), values)


def undamaged(path: Path) -> bool:
    """Whether a file is there, whole and with the right checksums; read by pieces, whatever the kind."""
    buffer = np.empty(_PIECE)
    with suppress(*_USELESS), open_plain(path) as file:
        for section in _header(file):
            list(_decoded(file, _cut(section, buffer)))
        return True
    return False


def merge_moments(left: Path, right: Path, into: Path) -> bool:
    """Merge two files, part by part, into a third; False, and no file, where one is absent, torn or damaged."""
    with suppress(*_USELESS), open_plain(left) as first, open_plain(right) as second:
        write_atomic(into, _encoded(into, _added(first, second)), sync=False)
        return True
    return False


def _part(section: _Section) -> Part:
    return section["fold"], section["observed"]


def _added(left: BinaryIO, right: BinaryIO) -> list[tuple[_Section, Iterator[FloatArray]]]:
    """The sections of the sum of two files; each is read once, in order."""
    of_left, of_right = ({_part(section): section for section in _header(file)} for file in (left, right))
    check_patterns(of_left.keys() | of_right.keys())
    sections: list[tuple[_Section, Iterator[FloatArray]]] = []
    buffers = np.empty((2, _PIECE))  # sections are read one after another
    for part in sorted(of_left.keys() | of_right.keys()):
        first, second = of_left.get(part), of_right.get(part)
        if first is None or second is None:
            (file, alone) = (left, of_left[part]) if second is None else (right, of_right[part])
            sections.append((alone, _decoded(file, _cut(alone, buffers[0]))))
            continue
        if any(first[name] != second[name] for name in ("kind", "length", "m", "q", "y0")):
            raise InputError("moments of different plans cannot be added: kind, m, q and y0 must be the same")
        merged = {**first, "n": first["n"] + second["n"], "unit": max(first["unit"], second["unit"])}
        if not Sums.kinds[first["kind"]].by_numbers:
            sections.append((merged, _absorbed(left, first, right, second)))
        else:
            read = (_decoded(file, _cut(first, buffer)) for file, buffer in zip((left, right), buffers, strict=True))
            sections.append((merged, (np.add(x, y, out=x) for x, y in zip(*read, strict=True))))
    return sections


def _absorbed(left: BinaryIO, first: _Section, right: BinaryIO, second: _Section) -> Iterator[FloatArray]:
    """The sum of two sections that cannot be added by pieces, as two triangles cannot."""
    kind = Sums.kinds[first["kind"]]
    yield from _whole(left, first, kind).absorb(_whole(right, second, kind)).pieces()


def _encoded(path: Path, sections: Sequence[tuple[_Section, Iterator[FloatArray]]]) -> Iterator[bytes | memoryview]:
    header = json.dumps({"of": identity(path), "sections": [section for section, _ in sections]}).encode()
    yield _MAGIC + struct.pack("<II", len(header), google_crc32c.value(header)) + header
    for _, pieces in sections:
        checksum = 0
        for piece in pieces:
            checksum = google_crc32c.extend(checksum, piece)
            yield piece.data.cast("B")
        yield struct.pack("<I", checksum)


def _header(file: BinaryIO) -> list[_Section]:
    """The sections of a file, which is as long as they say: what they say is not believed before memory is taken."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if len(prefix := file.read(16)) < 16 or prefix[:8] != _MAGIC:
        raise _DamagedError
    length, checksum = struct.unpack("<II", prefix[8:])
    header = file.read(min(length, size))
    if len(header) != length or google_crc32c.value(header) != checksum:
        raise _DamagedError
    try:
        body = json.loads(header)
        sections: list[_Section] = body["sections"]
        whole = 16 + length + sum(8 * _length(section) + 4 for section in sections) == size
        if not whole or body["of"] != identity(Path(file.name)):
            raise _DamagedError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _DamagedError from error
    return sections


def _length(section: _Section) -> int:
    """How many numbers it has; ValueError unless its words are of their types and fit each other."""
    if {name: type(value) for name, value in section.items()} != _TYPES:
        raise ValueError("other words")
    kind, length, m, q, observed, y0 = (section[name] for name in ("kind", "length", "m", "q", "observed", "y0"))
    if min(length, m, q, section["fold"], section["n"]) < 0 or {type(one) for one in y0} - {float} or len(y0) != q:
        raise ValueError("no such sums")
    if not all(map(math.isfinite, (*y0, section["unit"]))):
        raise ValueError("numbers that are not finite")
    if observed and (len(observed) != q or set(observed) - {"0", "1"}):
        raise ValueError("no such targets")
    if kind.startswith(_HELD):  # compared with its adder
        return int(length)
    if not Sums.kinds[kind].fits(m + 1 + q, length):
        raise ValueError("another length")
    return int(length)


def _cut(section: _Section, buffer: FloatArray) -> Iterator[FloatArray]:
    """Arrays for all of a section's numbers, one after another, each in the buffer's memory."""
    left = int(section["length"])
    while left:
        yield buffer[:left]
        left -= len(buffer[:left])


def _decoded(file: BinaryIO, pieces: Iterable[FloatArray]) -> Iterator[FloatArray]:
    """A section's numbers, read into these arrays one after another; its checksum is looked at last."""
    checksum = 0
    for piece in pieces:
        if file.readinto(piece.data.cast("B")) != piece.nbytes:  # type: ignore[attr-defined]  # not in typeshed's
            raise _DamagedError
        checksum = google_crc32c.extend(checksum, piece)
        yield piece
    if file.read(4) != struct.pack("<I", checksum):
        raise _DamagedError


def read_npz(raw: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays in the bytes of an archive as `np.savez` writes it, by name. ValueError for any other archive: members
    that are packed, named twice, or not plain arrays of numbers whose header, shape and size agree. Nothing larger than
    `raw` is allocated, and nothing is unpickled."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names) or sum(member.file_size for member in members) > len(raw):
                raise ValueError("two arrays of one name, or more in it than its bytes hold")
            return {_name(member): _array(archive, member) for member in members}
    except (zipfile.BadZipFile, RuntimeError, EOFError, OverflowError, SyntaxError, TokenError) as error:
        raise ValueError(f"not an archive of arrays: {error}") from error


def _name(member: zipfile.ZipInfo) -> str:
    name = member.filename.removesuffix(".npy")
    if not name.isidentifier() or name == member.filename:
        raise ValueError(f"{member.filename!r} is no array's name")
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size or member.flag_bits & 1:
        raise ValueError(f"{member.filename!r} is packed")
    return name


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """The array in a NPY file whose header is looked at first."""
    with archive.open(member) as file:
        if (version := np.lib.format.read_magic(file)) not in _HEADERS:
            raise ValueError(f"an array's format is {version}, wanted 1.0 or 2.0")
        shape, _, dtype = _HEADERS[version](file)
        if dtype.kind not in _KINDS or min(shape, default=0) < 0:
            raise ValueError(f"an array of {dtype} {shape}, wanted numbers")
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"an array claims to be {dtype} {shape}, which is not what it holds")
        file.seek(0)
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False), order="C")
