"""Archives of arrays, read without trust: what one claims is compared with its bytes before memory is taken."""

from __future__ import annotations

import io
import math
import zipfile
from tokenize import TokenError
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_PIECE: Final = 2**20  # bytes
_KINDS: Final = "fiub"  # numbers and booleans: no objects, which would be pickled


def read_npz(raw: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays in the bytes of an archive as `np.savez` writes it, by name.

    ValueError for any other archive: members that are packed, named twice, or not plain arrays of numbers whose
    header, shape and size agree. Nothing larger than `raw` is allocated, and nothing is unpickled.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names) or sum(member.file_size for member in members) > len(raw):
                raise ValueError("two arrays of one name, or more in it than its bytes hold")
            return {_name(member): _array(archive, _plain(member)) for member in members}
    except (zipfile.BadZipFile, RuntimeError, EOFError, OverflowError, SyntaxError, TokenError) as error:
        raise ValueError(f"not an archive of arrays: {error}") from error


def _name(member: zipfile.ZipInfo) -> str:
    name = member.filename.removesuffix(".npy")
    if not name.isidentifier() or name == member.filename:
        raise ValueError(f"{member.filename!r} is no array's name")
    return name


def _plain(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A member that is stored as it is, neither packed nor encrypted."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size or member.flag_bits & 1:
        raise ValueError(f"{member.filename!r} is packed")
    return member


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """The array in a NPY file, read piece by piece, so that it is in memory once beside the archive."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"an array's format is {version}, wanted 1.0 or 2.0")
        shape, fortran, dtype = _HEADERS[version](file)
        if dtype.kind not in _KINDS or any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of {dtype} {shape}, wanted numbers")
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"an array claims to be {dtype} {shape}, which is not what it holds")
        values = np.empty(shape[::-1] if fortran else shape, dtype)
        content = values.reshape(-1).view(np.uint8)
        for at in range(0, len(content), _PIECE):
            content[at : at + _PIECE] = np.frombuffer(file.read(_PIECE), np.uint8)
    return values.T.copy() if fortran else values
