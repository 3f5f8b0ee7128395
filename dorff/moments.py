"""Moments: the sums of one pass over the data, which add."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
#: Which fold, and which targets its rows have: "" for all of them, else a 1 or a 0 for each.
Part = tuple[int, str]
MOST_PATTERNS = 8  # of targets that are there and missing; each costs moments of its own


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over rows of Z^T Z, Z = [F | 1 | Y - y0], w = m + 1 + q columns.

    `packed` is the upper triangle, column by column, (w (w + 1) / 2,). `n` counts the rows, `y0` (q,) is the
    constant the targets were shifted by before summing (DESIGN 1: sums of uncentred targets lose digits). `observed`
    is "" where the rows have all targets, else a 1 for each that they have and a 0 for each that they miss, whose sums
    are zero.
    """

    m: int
    q: int
    n: int
    y0: FloatArray
    packed: FloatArray
    observed: str = ""

    @property
    def mask(self) -> BoolArray:
        """(q,): which targets the rows have."""
        return np.array([letter == "1" for letter in self.observed or "1" * self.q])

    @property
    def width(self) -> int:
        return self.m + 1 + self.q

    @property
    def full(self) -> FloatArray:
        """The symmetric matrix (w, w), unpacked anew at each call: ask once and slice."""
        square = np.empty((self.width, self.width))
        for column in range(self.width):
            values = self.packed[column * (column + 1) // 2 : (column + 1) * (column + 2) // 2]
            square[: column + 1, column] = values
            square[column, : column + 1] = values
        return square

    def pieces(self) -> Iterator[FloatArray]:
        """`packed`, as one piece: what a file is written from."""
        yield self.packed

    @property
    def corner(self) -> FloatArray:
        """(1 + q, 1 + q): the sums over the column of ones and the shifted targets alone."""
        square = np.empty((1 + self.q, 1 + self.q))
        for j in range(1 + self.q):
            column = self.m + j
            start = column * (column + 1) // 2 + self.m
            square[: j + 1, j] = square[j, : j + 1] = self.packed[start : start + j + 1]
        return square

    @property
    def S(self) -> FloatArray:
        """(m + 1, m + 1): sums of products of the features and the column of ones."""
        return self.full[: self.m + 1, : self.m + 1]

    @property
    def R(self) -> FloatArray:
        """(m + 1, q): sums of features times shifted targets."""
        return self.full[: self.m + 1, self.m + 1 :]

    @property
    def E(self) -> FloatArray:
        """(q, q): sums of products of shifted targets."""
        return self.full[self.m + 1 :, self.m + 1 :]

    def __add__(self, other: Moments) -> Moments:
        """Merge two disjoint sets of rows; exact but for rounding, and commutative to the bit."""
        return replace(self, packed=self.packed.copy()).absorb(other)

    def absorb(self, other: Moments) -> Moments:
        """The same sum, written over this one's array: no third array is in memory."""
        same = (self.m, self.q, self.observed) == (other.m, other.q, other.observed)
        if not same or not np.array_equal(self.y0, other.y0):
            raise InputError("moments of different plans cannot be added: m, q, y0 and targets must be the same")
        np.add(self.packed, other.packed, out=self.packed)
        return replace(self, n=self.n + other.n)


def by_fold(parts: Mapping[Part, Moments]) -> list[list[Moments]]:
    """The moments of each fold that has rows, one for each pattern of targets; folds and patterns in order."""
    folds: dict[int, list[Moments]] = {}
    for (fold, _), moments in sorted(parts.items()):
        if moments.n:
            folds.setdefault(fold, []).append(moments)
    return [folds[fold] for fold in sorted(folds)]


def pooled(folds: Iterable[list[Moments]]) -> list[Moments]:
    """The sums over all folds, pattern by pattern."""
    total: dict[str, Moments] = {}
    for moments in (moments for fold in folds for moments in fold):
        known = total.get(moments.observed)
        total[moments.observed] = moments if known is None else known + moments
    return [total[pattern] for pattern in sorted(total)]


def unseen(folds: Iterable[list[Moments]]) -> list[int]:
    """The targets that no row has."""
    masks = [moments.mask for fold in folds for moments in fold]
    return [int(target) for target in np.flatnonzero(~np.any(masks, axis=0))] if masks else []


def syrk(Z: FloatArray, square: FloatArray) -> None:
    """Add Z^T Z to the upper triangle of `square` (w, w), column-major, for Z (n, w) with contiguous rows.

    SciPy's own wrapper of this BLAS routine holds the interpreter's lock; a call of half a second would stop
    the worker's heartbeat and its read-ahead. Calling the same function through ctypes releases it.
    """
    rows, width = Z.shape
    # A lone row may carry any stride; BLAS wants its length.
    steps = Z.strides[0] // 8 if rows > 1 else width, square.strides[1] // 8
    if Z.strides[1] != 8 or square.strides[0] != 8 or Z.dtype != square.dtype or Z.dtype != np.float64:
        raise InputError("syrk needs float64, rows of Z contiguous and columns of the square contiguous")
    if square.shape != (width, width) or min(steps) < width:  # BLAS would write elsewhere, or print and return
        raise InputError(f"syrk needs a ({width}, {width}) square and rows that do not overlap, not {square.shape}")
    one = ctypes.byref(ctypes.c_double(1.0))

    def integer(value: int) -> Any:
        return ctypes.byref(ctypes.c_int(value))

    _dsyrk()(
        b"U", b"N", integer(width), integer(rows), one, Z.ctypes.data, integer(steps[0]), one,
        square.ctypes.data, integer(steps[1]),
    )  # fmt: skip


@cache
def _dsyrk() -> Any:
    """BLAS dsyrk as SciPy's documented C interface `scipy.linalg.cython_blas` exports it."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["dsyrk"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    text, address = ctypes.c_char_p, ctypes.c_void_p
    prototype = ctypes.CFUNCTYPE(
        None, text, text, address, address, address, address, address, address, address, address
    )
    return prototype(pointer(capsule, name(capsule)))


@final
class Accumulator:
    """Adds blocks of rows into a float64 upper triangle, one BLAS `syrk` a block, in the order they come.

    `square` (w, w), column-major, is memory to use again, whatever is in it: new memory costs the kernel a page fault
    for every 4096 bytes. None for new memory. `y0` (q,) is what the targets are shifted by; `observed` as in
    `Moments`.
    """

    def __init__(
        self, m: int, q: int, y0: FloatArray, *, square: FloatArray | None = None, observed: str = ""
    ) -> None:  # fmt: skip
        self.m, self.q, self.n, self.y0, self.observed = m, q, 0, y0, observed
        width = m + 1 + q
        self.square = np.zeros((width, width), order="F") if square is None else square
        if square is not None:
            for piece in self.pieces():
                piece[:] = 0.0

    def add(self, Z: FloatArray) -> None:
        """Add rows Z (n, w) = [F | 1 | Y - y0], C-contiguous."""
        if len(Z):
            syrk(Z, self.square)
            self.n += len(Z)

    def pieces(self) -> Iterator[FloatArray]:
        """The upper triangle, column by column."""
        for column in range(len(self.square)):
            yield self.square[: column + 1, column]

    def moments(self) -> Moments:
        """What has been added so far."""
        packed = np.concatenate(list(self.pieces()))
        return Moments(m=self.m, q=self.q, n=self.n, y0=self.y0, packed=packed, observed=self.observed)
