"""The spread and median of columns, which show a change of units that no file declares.

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

MAX_MEDIAN_MOVE: Final = 20.0
"""Move of a median that is warned of, in the median absolute deviations of before."""

TURN: Final = 360.0
"""Degrees between two ways of counting longitudes: -180 to 180 and 0 to 360."""

MAX_TURN_MISMATCH: Final = 90.0
"""How far two medians may be from a whole turn apart to be taken for such ways."""

SAMPLE_ROWS: Final = 2**15
"""Rows of which a spread is estimated, at most."""


@dataclass(frozen=True, kw_only=True)
class ColumnSpread:
    """The median of a column's finite values, and their median absolute deviation."""

    median: float
    deviation: float


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
            if sample.digests:
                merged.add(np.concatenate(sample.digests), np.concatenate(sample.values))
        return merged

    def spreads(self, columns: int) -> list[ColumnSpread | None]:
        """Return each column's spread; None of too few values."""
        values = np.vstack([np.empty((0, columns)), *self.values])
        return [spread_of(column) for column in values.T]


def spread_of(values: FloatArray) -> ColumnSpread | None:
    """Return the spread of the finite values; None of too few."""
    finite = values[np.isfinite(values)]
    if len(finite) < MIN_SPREAD_ROWS:
        return None
    median = float(np.median(finite))
    return ColumnSpread(
        median=median,
        deviation=float(np.median(np.abs(finite - median))),
    )


def describe_change(
    before: ColumnSpread | None,
    after: ColumnSpread | None,
    *,
    is_target: bool,
) -> str | None:
    """Say how the values of a column changed, as they do in another unit.

    Their spread grew by `MAX_SPREAD_RATIO`, that of a target grew or shrank so, or the
    median of a target moved by more than `MAX_MEDIAN_MOVE`. Inputs, such as times, may
    move on with each delivery, and one may lie at one place. Returns None if nothing
    changed so far, or a spread is unknown or zero.
    """
    if before is None or after is None or not before.deviation or not after.deviation:
        return None
    has_grown = after.deviation / before.deviation >= MAX_SPREAD_RATIO
    has_shrunk = before.deviation / after.deviation >= MAX_SPREAD_RATIO
    if has_grown or (is_target and has_shrunk):
        spreads = f"{after.deviation:.3g}, but {before.deviation:.3g} before"
        return f"its median absolute deviation is {spreads}"
    moved = abs(after.median - before.median) / before.deviation
    if is_target and moved > MAX_MEDIAN_MOVE:
        medians = f"{after.median:.3g}, but {before.median:.3g} before"
        deviations = f"{moved:,.0f} median absolute deviations away"
        return f"its median is {medians}, {deviations}"
    return None


def describe_turn(before: ColumnSpread | None, after: ColumnSpread | None) -> str | None:
    """Say that longitudes lie a whole turn from those before, or None if they do not."""
    if before is None or after is None:
        return None
    moved = abs(after.median - before.median)
    if abs(moved - TURN) > MAX_TURN_MISMATCH:
        return None
    return f"its median is {after.median:.4g}, but {before.median:.4g} before, about {TURN:g} degrees away"
