"""Triangles: the R of a QR of the rows, in which no condition number is squared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from dorff.moments.base import SHOWN, IntArray, Kind, PackedAdder, Solvable, packed_columns, unpack, zeroed
from dorff.moments.blas import FloatArray, tpqrt, trmv
from dorff.moments.gram import Accumulator, Moments


@final
@dataclass(frozen=True, eq=False)
class Triangle(Solvable):
    """The upper triangular R (w, w) of a QR of the rows Z = sqrt(weight) [F | 1 | Y - y0], its diagonal >= 0.

    R^T R = Z^T Z, but R keeps the digits that the
    product loses: its condition number is the root of the Gram matrix's. Triangles merge by the QR of the two stacked
    (TSQR: Demmel, Grigori, Hoemmen & Langou 2012).
    """

    kind: ClassVar[Kind] = Kind.TRIANGLE
    by_numbers: ClassVar[bool] = False

    @property
    def square(self) -> FloatArray:
        """R (w, w), column-major, unpacked anew at each call."""
        square = np.zeros((self.width, self.width), order="F")
        unpack(self.packed, square)
        return square

    @property
    def corner(self) -> FloatArray:
        columns = self.square[:, self.m :]
        return np.asarray(columns.T @ columns)

    @property
    def full(self) -> FloatArray:
        return self.gram().full

    def gram(self) -> Moments:
        """The moments Z^T Z = R^T R."""
        sums = Accumulator(self.m, self.q, self.y0, observed=self.observed)
        sums.add(np.ascontiguousarray(self.square))
        return replace(sums.moments(), n=self.n)

    def squares(self, V: FloatArray) -> FloatArray:
        return np.asarray(np.sum((self.square @ V) ** 2, axis=0))

    def columns(self, at: IntArray, factor: float | FloatArray) -> Triangle:
        R = self.square
        Z = np.hstack([R[:, at] * factor, R[:, self.m :]])
        sums = TriangleAccumulator(len(at), self.q, self.y0, observed=self.observed)
        sums.add(Z)
        return replace(sums.moments(), n=self.n)

    def absorb(self, other: Triangle) -> Triangle:
        self.check_same(other)
        R = self.square
        tpqrt(R, other.square, triangular=True)
        start = 0
        for column in _positive(R):
            self.packed[start : start + len(column)] = column
            start += len(column)
        return replace(self, n=self.n + other.n, unit=max(self.unit, other.unit))


def _positive(R: FloatArray) -> Iterator[FloatArray]:
    """The upper triangle, column by column, rows turned so that the diagonal is not negative: R is then unique."""
    signs = np.where(np.diag(R) < 0, -1.0, 1.0)
    for column in packed_columns(R):
        yield column * signs[: len(column)]


@final
class TriangleAccumulator(PackedAdder):
    """Reflects blocks of rows into an upper triangle, one LAPACK `tpqrt` a block: two to three times a `syrk`.

    `block` (at least as many rows as come at a time, w), column-major, is memory to use again, as `square` is; what is
    `held` has the signs that it has.
    """

    kind: ClassVar[Kind] = Kind.TRIANGLE

    def __init__(
        self, m: int, q: int, y0: FloatArray, *, square: FloatArray | None = None, block: FloatArray | None = None,
        observed: str = "",
    ) -> None:  # fmt: skip
        super().__init__(m, q, y0, observed=observed)
        self.square, self._block = zeroed(self.width, square), block

    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        if not len(Z):
            return
        self._seen(Z, along)
        if self._block is None or len(self._block) < len(Z):
            self._block = np.empty((len(Z), self.width), order="F")
        block = self._block[: len(Z)]
        block[:] = Z  # by columns, and free to be destroyed
        tpqrt(self.square, block)
        self.n += len(Z)

    def pieces(self) -> Iterator[FloatArray]:
        return _positive(self.square)

    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """|R u|^2 is |Z u|^2: reflections move no length by more than unit (n + w) of all lengths together."""
        Ru = trmv(self.square, self.probe)
        size = sum(float(np.dot(piece, piece)) for piece in packed_columns(self.square)) + self.witness
        return np.array([np.dot(Ru, Ru)]), self.witness, self.unit * SHOWN * (self.n + self.width) * size

    def moments(self) -> Triangle:
        return Triangle(self.m, self.q, self.n, self.y0, np.concatenate(list(self.pieces())), self.observed)
