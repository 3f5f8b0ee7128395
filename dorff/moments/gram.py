"""The kinds of moments: Z^T Z, half a product a row; the R of a QR of the rows, in which no condition number is
squared; Z^T Z times a few given columns, for systems whose matrix is too large to keep."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from scipy.linalg import blas

import dorff.moments.base as base
from dorff.errors import InputError
from dorff.moments.base import Adder, IntArray, Kind, PackedAdder, Part, Solvable, packed_columns
from dorff.moments.blas import FloatArray, SingleArray, syr2k, syrk, tpqrt

# Of mixed sums: u = 2^-24, float32's own. A product of two rounded numbers is wrong by 2 u, a float32 sum of at most
# SINGLE_ROWS of them by about as much where their errors are independent, by more the less the rows differ. Measured
# against float64 by the largest singular value: 0.1 to 1.3 u for trig features whose length-scale is at most 5 times
# the data's range, 4 u at 50 times, 7.8 u where all rows are the same: within the 10 that whoever states digits keeps.
MIXED_UNIT: Final = 2.0**-24
SINGLE_ROWS: Final = 2048
#: Of mixed sums: by how many units of the sums' size they may differ from their witness, which is of rows that were
#: not rounded. At least SHOWN times what was measured, and twice SINGLE_ROWS.
MIXED_SLACK: Final = 4096.0


@dataclass(frozen=True, eq=False)
class Moments(Solvable):
    """Sums over rows of Z^T Z; `packed` is its upper triangle."""

    kind: ClassVar[Kind] = Kind.GRAM

    @property
    def full(self) -> FloatArray:
        square = np.empty((self.width, self.width))
        base.unpack(self.packed, square)
        base.unpack(self.packed, square.T)
        return square

    @property
    def corner(self) -> FloatArray:
        return self.columns(np.empty(0, np.int64), 1.0).full

    def squares(self, V: FloatArray) -> FloatArray:
        return np.asarray(np.sum(V * (self.full @ V), axis=0))

    def columns(self, at: IntArray, factor: float | FloatArray) -> Self:
        keep = np.concatenate([at, np.arange(self.m, self.width)])
        times = np.ones(len(keep))
        times[: len(at)] = factor
        pieces = []
        for j, column in enumerate(keep):
            low, high = np.minimum(keep[: j + 1], column), np.maximum(keep[: j + 1], column)
            pieces.append(self.packed[high * (high + 1) // 2 + low] * (times[: j + 1] * times[j]))
        return replace(self, m=len(at), values=np.concatenate(pieces))


class Accumulator(PackedAdder):
    """Adds blocks of rows into a float64 upper triangle, one BLAS `syrk` a block, in the order they come. `paired`:
    rows come with others (`add_pair`); the witness' second number is the size of what may have cancelled."""

    kind: ClassVar[Kind] = Kind.GRAM

    def __init__(
        self, m: int, q: int, y0: FloatArray, *, square: FloatArray | None = None, observed: str = "",
        paired: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(m, q, y0, observed=observed, witnesses=2 if paired else 1)
        self.square = base.zeroed(self.width, square)

    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        """Add rows Z (n, w) = [F | 1 | Y - y0], C-contiguous."""
        if len(Z):
            self._seen(Z, along)
            syrk(Z, self.square)
            self.n += len(Z)

    def add_pair(self, Z: FloatArray, LZ: FloatArray, *, along: tuple[FloatArray, FloatArray], size: float) -> None:
        """Add (Z^T LZ + LZ^T Z) / 2 of rows Z and LZ (n, w), one BLAS `syr2k`, to sums that are `paired`. `along` are
        both times `probe`, (n,) each; `size` is the summed product of their rows' norms."""
        v, Lv = along
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
            self.witness += np.dot(v, Lv), size + np.dot(np.abs(v), np.abs(Lv))
        syr2k(Z, LZ, self.square)
        self.n += len(Z)

    def add_rounded(self, Z: SingleArray, square: SingleArray, *, along: FloatArray | None = None) -> None:
        """Add rows that were rounded to float32: the products of `SINGLE_ROWS` at a time are summed in `square`
        (w, w), column-major memory of the caller's, and these sums are added in float64; `along` of either rows."""
        self._seen(Z, along)
        for start in range(0, len(Z), SINGLE_ROWS):
            for piece in packed_columns(square):
                piece[:] = 0.0
            syrk(Z[start : start + SINGLE_ROWS], square)
            for total, piece in zip(packed_columns(self.square), packed_columns(square), strict=True):
                total += piece
        self.n, self.unit = self.n + len(Z), MIXED_UNIT

    @property
    def _mixed(self) -> bool:
        return self.unit == MIXED_UNIT

    @property
    def bounds(self) -> tuple[float, float]:
        return (1e-20, 1e30) if self._mixed else super().bounds  # float32's own are 1e-38 and 3e38

    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Entry (i, j) of the sums may be wrong by unit (n + w) sqrt(G_ii G_jj), by the order they were added in."""
        size = np.abs(np.diag(self.square)).sum() + np.abs(self.witness).sum()
        slack = MIXED_SLACK if self._mixed else base.SHOWN * (self.n + self.width)
        squares = np.dot(self.probe, blas.dsymv(1.0, self.square, self.probe))
        return np.array([squares]), self.witness[:1], np.array([self.unit * slack * size])

    def pieces(self) -> Iterator[FloatArray]:
        return packed_columns(self.square)

    def moments(self) -> Moments:
        return Moments(self.m, self.q, self.n, self.y0, np.concatenate(list(self.pieces())), self.observed, self.unit)


Folds = dict[Part, Moments]


@dataclass(frozen=True, eq=False)
class Triangle(Solvable):
    """The upper triangular R (w, w) of a QR of the rows Z = sqrt(weight) [F | 1 | Y - y0], its diagonal >= 0. R^T R =
    Z^T Z, but R keeps the digits that the product loses: its condition number is the root of the Gram matrix's.
    Triangles merge by the QR of the two stacked (TSQR: Demmel, Grigori, Hoemmen & Langou 2012)."""

    kind: ClassVar[Kind] = Kind.TRIANGLE
    by_numbers: ClassVar[bool] = False

    @property
    def square(self) -> FloatArray:
        """R (w, w), column-major, unpacked anew at each call."""
        square = np.zeros((self.width, self.width), order="F")
        base.unpack(self.packed, square)
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

    def columns(self, at: IntArray, factor: float | FloatArray) -> "Triangle":
        R = self.square
        Z = np.hstack([R[:, at] * factor, R[:, self.m :]])
        sums = TriangleAccumulator(len(at), self.q, self.y0, observed=self.observed)
        sums.add(Z)
        return replace(sums.moments(), n=self.n)

    def absorb(self, other: Self) -> Self:
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


class TriangleAccumulator(PackedAdder):
    """Reflects blocks of rows into an upper triangle, one LAPACK `tpqrt` a block: two to three times a `syrk`.
    `block` (as many rows as come at a time, or more, w), column-major, is memory to use again, as `square` is."""

    kind: ClassVar[Kind] = Kind.TRIANGLE

    def __init__(
        self, m: int, q: int, y0: FloatArray, *, square: FloatArray | None = None, block: FloatArray | None = None,
        observed: str = "",
    ) -> None:  # fmt: skip
        super().__init__(m, q, y0, observed=observed)
        self.square, self._block = base.zeroed(self.width, square), block

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
        Ru = blas.dtrmv(self.square, self.probe)
        size = sum(float(np.dot(piece, piece)) for piece in packed_columns(self.square)) + self.witness
        return np.array([np.dot(Ru, Ru)]), self.witness, self.unit * base.SHOWN * (self.n + self.width) * size

    def moments(self) -> Triangle:
        return Triangle(self.m, self.q, self.n, self.y0, np.concatenate(list(self.pieces())), self.observed)


@dataclass(frozen=True, eq=False)
class Products(base.Valued):
    """`values` (w, c) = M V over the rows, M = Z^T Z, for the V (w, c) that the pass was given."""

    kind: ClassVar[Kind] = Kind.PRODUCT

    @classmethod
    def fits(cls, width: int, length: int) -> bool:
        return length % width == 0

    @classmethod
    def read(cls, header: Mapping[str, Any], y0: FloatArray, values: FloatArray) -> Self:
        return super().read(header, y0, values.reshape(header["m"] + 1 + header["q"], -1))


class ProductAccumulator(Adder):
    """Adds Z^T (Z V), V (w, c): 4 w c flops a row. Columns are held as rows: BLAS goes through Z twice as it lies,
    which is up to three times as fast for a few. The witness is of |Z u|^2, (Z u)^T Z V and the squared norms of Z V, u
    the probe."""

    kind: ClassVar[Kind] = Kind.PRODUCT

    def __init__(self, m: int, q: int, y0: FloatArray, *, V: FloatArray, observed: str = "") -> None:
        super().__init__(m, q, y0, observed=observed, witnesses=1 + 2 * V.shape[-1])
        if V.ndim != 2 or len(V) != self.width:
            raise InputError(f"V: products need columns of {self.width} numbers, (m + 1 + q, c), not {V.shape}")
        self._rows, self._sums = np.ascontiguousarray(V.T), np.zeros(V.shape[::-1])

    @property
    def values(self) -> FloatArray:
        """(w, c): what has been added so far."""
        return np.ascontiguousarray(self._sums.T)

    @property
    def length(self) -> int:
        return self._sums.size

    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        if len(Z):
            v = self._seen(Z, along)
            with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
                ZV = self._rows @ Z.T
                self.witness[1:] += np.concatenate([np.dot(ZV, v), np.einsum("cn,cn->c", ZV, ZV)])
                self._sums += ZV @ Z
            self.n += len(Z)

    def held(self) -> Iterator[FloatArray]:
        yield self._sums.reshape(-1)
        yield self.witness

    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """u^T M V is (Z u)^T Z V, wrong by unit (n + w) |Z| |Z V|; |Z u| stands for |Z|: so SHOWN is squared."""
        c = len(self._sums)
        size = np.sqrt(self.witness[0]) * np.sqrt(self.witness[1 + c :])
        slack = self.unit * base.SHOWN**2 * (self.n + self.width) * size
        return np.dot(self._sums, self.probe), self.witness[1 : 1 + c], slack

    def pieces(self) -> Iterator[FloatArray]:
        yield self.values.reshape(-1)

    def moments(self) -> Products:
        return Products(self.m, self.q, self.n, self.y0, self.values, self.observed)
