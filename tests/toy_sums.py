"""Sums of another kind than the package has, in one file: of |y| for each target, and of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

import numpy as np

from dorff.moments import UNIT, Adder, FloatArray, Part, Sums
from dorff.passes import Pass, RowSums, Summand, load_pass


@final
@dataclass(frozen=True, eq=False)
class Sizes(Sums):
    """`values` (q,): sums of |y|."""

    kind: ClassVar[str] = "sizes"
    m: int
    q: int
    n: int
    y0: FloatArray
    values: FloatArray
    observed: str = ""
    unit: float = UNIT

    @property
    def length(self) -> int:
        return self.q

    def pieces(self) -> Iterator[FloatArray]:
        yield self.values

    @classmethod
    def fits(cls, width: int, length: int) -> bool:
        return length == width - 1  # of no features

    @classmethod
    def read(cls, header: Mapping[str, Any], y0: FloatArray, values: FloatArray) -> Self:
        return cls(0, header["q"], header["n"], y0, values, unit=header["unit"])

    def absorb(self, other: Sizes) -> Sizes:
        self.check_same(other)
        return replace(self, n=self.n + other.n, values=self.values + other.values)


@final
class SizeAdder(Adder):
    """Adds rows Y (n, q); its witness is the sum of all their sizes."""

    kind: ClassVar[str] = "sizes"

    def __init__(self, q: int) -> None:
        super().__init__(0, q, np.zeros(q))
        self._values = np.zeros(q)

    @property
    def length(self) -> int:
        return self.q

    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        self._values += np.abs(Z).sum(axis=0)
        self.witness += np.abs(Z).sum()
        self.n += len(Z)

    def held(self) -> Iterator[FloatArray]:
        yield self._values
        yield self.witness

    def pieces(self) -> Iterator[FloatArray]:
        yield self._values

    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self._values.sum(keepdims=True), self.witness, self.unit * self.n * self.witness

    def moments(self) -> Sizes:
        return Sizes(0, self.q, self.n, self.y0, self._values.copy())


@final
class SizeRows(RowSums):
    """A block of rows to the sums of its fold."""

    def __init__(self, q: int, block_rows: int) -> None:
        super().__init__(block_rows)
        self._q = q

    def add(
        self, X: FloatArray, Y: FloatArray, fold: int = 0, *, partial: bool = False, weights: FloatArray | None = None
    ) -> None:
        self.of((fold, "")).add(Y)

    def empty(self, part: Part) -> SizeAdder:
        return SizeAdder(self._q)


@final
class SizeSums(Summand):
    """Sums of |y| over a pass's rows, in a folder in the pass's."""

    @classmethod
    def of(cls, frozen: Pass) -> Self:
        return cls(frozen.directory / "sizes", frozen.hash)

    def opened(self) -> tuple[Pass, RowSums]:
        frozen = load_pass(self.directory.parent, self.hash)
        return frozen, SizeRows(len(frozen.constants.y0), frozen.spec.block_rows)
