"""A second read, of one fold's rows alone: decision values that a calibration is fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import compute
from dask.delayed import delayed

from dorff.estimators.array_sums import ArrayReader, Targets, chunks, matrix, pin_worker, runs, spread_runs
from dorff.estimators.arrays import Rows
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.passes import FoldRule

FOLDS: Final = 5  # of which one is held out, where no `cv` says otherwise
WINDOWS: Final = 256  # runs of rows looked through where there are more than enough
Codes = npt.NDArray[np.int64]


def held_fold(deal: FoldRule) -> int:
    """The fold that row 0 is in: it always has a row."""
    return int(deal.of_rows(np.zeros(1, dtype=np.int64))[0])


@final
@dataclass(frozen=True, eq=False)
class HeldRows:
    """Decision values by `model` of held-out rows, which it was not fitted to. Small fits see all of them, others
    those of WINDOWS runs of rows spread evenly: `most` at most."""

    model: Model
    deal: FoldRule
    n: int
    most: int

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(start, stop) of the rows looked through."""
        return spread_runs(self.n, WINDOWS, -(-self.most * (self.deal.held or self.deal.count) // WINDOWS))

    def read(self, X: Rows, Y: Targets) -> tuple[FloatArray, Codes]:
        """f (k, K) and the classes (k,) of the held-out rows, of inputs X (n, d) and one-hot rows Y (n, K)."""
        if isinstance(X, da.Array):
            assert isinstance(Y, da.Array)
            shared, task = delayed(self), delayed(HeldRows.of_chunk)
            windows = self.windows
            parts = compute(
                *(
                    task(shared, first, x, y)
                    for first, rows, x, y in chunks(X, Y)
                    if any(a < first + rows and b > first for a, b in windows)
                )
            )
        else:
            assert not isinstance(Y, da.Array)
            inputs, targets = ArrayReader(X, "X"), ArrayReader(Y, "y")
            parts = [
                self.of_run(start, inputs.read(start, stop), targets.read(start, stop))
                for start, stop in (runs(X, Y) if len(self.windows) == 1 else self.windows)
            ]
        f, codes = (np.concatenate(each)[: self.most] for each in zip(*parts, strict=True))
        return f, codes

    def of_run(self, first: int, X: FloatArray, Y: FloatArray) -> tuple[FloatArray, Codes]:
        """Of the run of rows whose first is number `first`."""
        rows = np.arange(first, first + len(X))
        starts, stops = np.array(self.windows).T
        inside = rows < stops[np.searchsorted(starts, rows, side="right") - 1]  # the first window starts at row 0
        kept = inside & (self.deal.of_rows(rows) == held_fold(self.deal))
        return self.model.predict(X[kept]), Y[kept].argmax(axis=1)

    def of_chunk(self, first: int, X: FloatArray, Y: FloatArray) -> tuple[FloatArray, Codes]:
        """Of the chunk whose first row is number `first`; a Dask task."""
        pin_worker()
        return self.of_run(first, matrix(X, "X", first), matrix(Y, "y", first))
