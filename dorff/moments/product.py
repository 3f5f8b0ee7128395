"""Products: Z^T Z times a few given columns, for systems whose matrix is too large to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np

from dorff.errors import InputError
from dorff.moments.base import UNIT, Adder, Kind, Sums
from dorff.moments.blas import FloatArray


@final
@dataclass(frozen=True, eq=False)
class Products(Sums):
    """`values` (w, c) = M V over the rows, M = Z^T Z, for the V (w, c) that the pass was given."""

    kind: ClassVar[Kind] = Kind.PRODUCT
    m: int
    q: int
    n: int
    y0: FloatArray
    values: FloatArray
    observed: str = ""
    unit: float = UNIT

    @property
    def length(self) -> int:
        return self.values.size

    def pieces(self) -> Iterator[FloatArray]:
        """`values`, row by row, as one piece."""
        yield self.values.reshape(-1)

    @classmethod
    def read(cls, m: int, q: int, n: int, y0: FloatArray, values: FloatArray, observed: str, unit: float) -> Self:
        return cls(m, q, n, y0, values.reshape(m + 1 + q, -1), observed, unit)

    def __add__(self, other: Products) -> Products:
        return replace(self, values=self.values.copy()).absorb(other)

    def absorb(self, other: Products) -> Products:
        self.check_same(other)
        np.add(self.values, other.values, out=self.values)
        return replace(self, n=self.n + other.n, unit=max(self.unit, other.unit))


@final
class ProductAccumulator(Adder):
    """Adds Z^T (Z V), V (w, c): 4 w c flops a row.

    Columns are held as rows: BLAS goes through Z twice as it lies, which is up to three times as fast for a few.
    """

    kind: ClassVar[Kind] = Kind.PRODUCT

    def __init__(self, m: int, q: int, y0: FloatArray, *, V: FloatArray, observed: str = "") -> None:
        super().__init__(m, q, y0, observed=observed)
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

    def add(self, Z: FloatArray) -> None:
        if len(Z):
            self._sums += (self._rows @ Z.T) @ Z
            self.n += len(Z)

    def pieces(self) -> Iterator[FloatArray]:
        yield self.values.reshape(-1)

    def moments(self) -> Products:
        return Products(self.m, self.q, self.n, self.y0, self.values, self.observed)
