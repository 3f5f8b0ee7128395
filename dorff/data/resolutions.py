"""How closely values of a column are compared once some of them were converted from another unit.

A value that was converted differs from the same value in the column's own unit by the
rounding of both. Such values are rounded, to many more digits than anybody measures,
before rows are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dorff.data.array_files import FloatArray

DIGITS: Final = 10
"""Significant digits of converted numbers."""

SHORT_DIGITS: Final = 6
"""Significant digits of numbers that were float32 before they were converted."""

TIME_DIGITS: Final = 13
"""Significant digits of times, by the longer of their spans since the two origins."""

SMALLEST_SPAN: Final = 1e-280
"""Smaller numbers count as 0."""

TIE_SHIFT: Final = 0.05
"""Shift of the ties between two rounded values, in steps.

A value that was converted may lie on the other side of a tie. Ties are so where short
decimal numbers and binary fractions are not: at 0.45 steps rather than at half of one.
"""

CONVERSION_ERROR: Final = 1 / 8
"""Most steps between a value and itself after it was converted."""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The digits that count of a column's values.

    Parameters
    ----------
    digits : int
        Significant digits.
    zero : float
        Where the other unit has its zero; digits are counted from the value's distance
        to zero, here or there, whichever is longer.
    unit : float
        What values are multiplied by before: the seconds of a unit of time, so that
        whole seconds remain whole.
    """

    digits: int
    zero: float = 0.0
    unit: float = 1.0

    def round(self, values: FloatArray) -> FloatArray:
        """Return values in multiples of `unit`, rounded; NaN and infinities stay."""
        scaled = values * self.unit
        is_rounded, exponents = self._exponents(scaled)
        powers = 10.0 ** np.abs(exponents)
        # Whole numbers over, or times, a power of ten: values on both sides of
        # such a power become the same number.
        fine = np.rint(scaled * powers + TIE_SHIFT) / powers
        coarse = np.rint(scaled / powers + TIE_SHIFT) * powers
        rounded = np.where(exponents < 0, fine, coarse)
        return np.where(is_rounded, rounded, np.where(np.isfinite(scaled), 0.0, scaled))

    def step(self, values: FloatArray) -> FloatArray:
        """Return between which differences values are rounded; 0 for NaN and infinities."""
        is_rounded, exponents = self._exponents(values * self.unit)
        return np.where(is_rounded, 10.0**exponents / self.unit, 0.0)

    def _exponents(self, scaled: FloatArray) -> tuple[npt.NDArray[np.bool_], FloatArray]:
        """Return which values are rounded, and to what powers of ten."""
        span = np.maximum(np.abs(scaled), np.abs(scaled - self.zero * self.unit))
        is_rounded = np.isfinite(span) & (span > SMALLEST_SPAN)
        exponents = np.zeros(scaled.shape)
        exponents[is_rounded] = np.floor(np.log10(span[is_rounded])) - self.digits + 1
        return is_rounded, exponents

    def union(self, other: "Resolution") -> "Resolution":
        """Return the resolution of a column that was converted from two other units."""
        return Resolution(
            digits=min(self.digits, other.digits),
            zero=max(self.zero, other.zero, key=abs),
            unit=self.unit,
        )


CYCLE_RESOLUTION: Final = Resolution(digits=7, zero=1.0)
"""Of sines and cosines of times, which may have been converted."""


def join_resolutions(
    first: Mapping[str, Resolution],
    second: Mapping[str, Resolution],
) -> dict[str, Resolution]:
    """Return the resolutions of the columns of both."""
    joined = {**first, **second}
    for column in first.keys() & second.keys():
        joined[column] = first[column].union(second[column])
    return joined
