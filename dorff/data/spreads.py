"""The spread of columns, which shows a change of units that no file declares.

Spreads are median absolute deviations. `ColumnSample` estimates them from a sample of
rows, so that memory is bounded whatever their number.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dorff.data.array_files import FloatArray
from dorff.data.known_rows import Digests

MIN_SPREAD_ROWS: Final = 50
"""Finite values of a column, old and new, below which spreads are not compared."""

MAX_SPREAD_RATIO: Final = 10.0
"""Ratio of median absolute deviations that is warned of."""

SAMPLE_ROWS: Final = 2**15
"""Rows of which a spread is estimated, at most."""


@dataclass
class ColumnSample:
    """A sample of rows by their digests, of bounded size, whatever their order.

    A row is in the sample if its digest is below a limit, which is halved whenever
    more than `SAMPLE_ROWS` rows are below it.
    """

    limit: int = 2**64 - 1
    digests: list[Digests] = field(default_factory=list)
    values: list[FloatArray] = field(default_factory=list)

    def add(self, digests: Digests, values: FloatArray) -> None:
        """Consider further rows, values (n, columns)."""
        chosen = digests <= np.uint64(self.limit)
        self.digests.append(digests[chosen])
        self.values.append(np.asarray(values[chosen], dtype=np.float64))
        while sum(map(len, self.digests)) > SAMPLE_ROWS:
            self.limit //= 2
            digests = np.concatenate(self.digests)
            kept = digests <= np.uint64(self.limit)
            self.digests = [digests[kept]]
            self.values = [np.concatenate(self.values)[kept]]

    def merge(self, other: "ColumnSample") -> "ColumnSample":
        """Return the sample of the rows of both."""
        merged = ColumnSample(limit=min(self.limit, other.limit))
        for sample in (self, other):
            for digests, values in zip(sample.digests, sample.values, strict=True):
                merged.add(digests, values)
        return merged

    def spreads(self, columns: int) -> list[float | None]:
        """Return each column's median absolute deviation; None of too few values."""
        values = np.vstack([np.empty((0, columns)), *self.values])
        return [median_absolute_deviation(column) for column in values.T]


def median_absolute_deviation(values: FloatArray) -> float | None:
    """Return the median absolute deviation of the finite values; None of too few."""
    finite = values[np.isfinite(values)]
    if len(finite) < MIN_SPREAD_ROWS:
        return None
    return float(np.median(np.abs(finite - np.median(finite))))


def has_jumped(before: float | None, after: float | None, *, either: bool) -> bool:
    """Return whether a spread grew by `MAX_SPREAD_RATIO`, or shrank if `either`."""
    if not before or not after:
        return False
    grown = after / before >= MAX_SPREAD_RATIO
    return grown or (either and before / after >= MAX_SPREAD_RATIO)
