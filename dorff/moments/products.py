"""Products: Z^T Z times a few given columns, for systems whose matrix is too large to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np

from dorff.errors import InputError
from dorff.moments.base import SHOWN, UNIT, Adder, Kind, Sums
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
    def fits(cls, width: int, length: int) -> bool:
        return length % width == 0

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
    The witness is of |Z u|^2, (Z u)^T Z V and the squared norms of Z V, u the probe.
    """

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
        """u^T M V is (Z u)^T Z V, wrong by unit (n + w) |Z| |Z V| at most; |Z u| stands for |Z|, which is not known,
        and SHOWN is squared for where it is much smaller."""
        c = len(self._sums)
        size = np.sqrt(self.witness[0]) * np.sqrt(self.witness[1 + c :])
        slack = self.unit * SHOWN**2 * (self.n + self.width) * size
        return np.dot(self._sums, self.probe), self.witness[1 : 1 + c], slack

    def pieces(self) -> Iterator[FloatArray]:
        yield self.values.reshape(-1)

    def moments(self) -> Products:
        return Products(self.m, self.q, self.n, self.y0, self.values, self.observed)
