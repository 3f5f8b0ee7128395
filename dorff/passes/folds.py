"""Which fold a row is in, decided before a pass by what a row is: its leaf, its number, or its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from dorff.data import RowBlock

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@final
@dataclass(frozen=True)
class FoldRule:
    """Which fold a row is in: one fold, whole leaves dealt in turn, or rows by a hash of a seed and of their number
    or, where they have groups, their group's key.

    With `held` there are two folds: 0 is one of `held` that leaves or rows are dealt to, 1 all the others. Of rows it
    is the one that `first` is dealt to, a row's number or a group's key: it always has a row.
    """

    count: int = 1
    by_rows: bool = False
    seed: int = 0
    held: int = 0
    first: int = 0

    @classmethod
    def one_held(cls, count: int, by_rows: bool, seed: int) -> FoldRule:
        """One fold of `count` held out, the others together."""
        return cls(2, by_rows, seed, count)

    def of_leaf(self, number: int) -> int:
        return int(number % self.held > 0) if self.held else number % self.count

    def of(self, rows: RowBlock) -> Rows:
        """Fold numbers (n,) of rows that are dealt: those of a group together."""
        return self.of_rows(rows.numbers if rows.groups is None else rows.groups)

    def of_rows(self, rows: Rows | Keys) -> Rows:
        """Fold numbers (n,): splitmix64 of the row's number or group's key (n,), so that appended rows move no others.

        So many groups are in a fold by chance: of few groups some folds may have none.
        """
        if not self.held:
            return self._dealt(rows, self.count)
        first = self._dealt(np.array([self.first], np.uint64), self.held)
        others: Rows = (self._dealt(rows, self.held) != first).astype(np.int64)
        return others

    def _dealt(self, rows: Rows | Keys, count: int) -> Rows:
        z = rows.astype(np.uint64) + np.uint64((self.seed * 0x9E3779B97F4A7C15) % 2**64)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(count)).astype(np.int64)
