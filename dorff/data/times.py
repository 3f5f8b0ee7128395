"""Times of two columns that differ in their origin or unit, compared without losing a digit of whole numbers.

Each time is split into whole days since 1970 and nanoseconds of the day, which float64 holds exactly.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dorff.data.units import TimeUnits

FloatArray = npt.NDArray[np.float64]
DAY_NS: Final = 86_400 * 10**9
#: Units in the last place by which times that are fractions may differ, and are equal: each was rounded to its unit.
ROUNDING: Final = 4


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times (n,) as numbers in units; NaN is none."""

    numbers: FloatArray
    units: TimeUnits

    def is_comparable(self, other: "Times") -> bool:
        """Whether both have one calendar, or calendars that agree since 1582."""
        return self.units.calendar == other.units.calendar or (self.units.is_gregorian and other.units.is_gregorian)

    def minus(self, other: "Times", where: str) -> FloatArray:
        """Return the differences (n,) from other times, in nanoseconds.

        Their signs are exact where the times are whole numbers of their units, or both have the same units. Else a
        time is rounded: 0.1 days and 2.4 hours are equal. InputError, naming `where`, for times before 1582 in two
        calendars.
        """
        self.units.conversion_to(other.units, where).check(self.numbers, where)
        other.units.conversion_to(self.units, where).check(other.numbers, where)
        with np.errstate(invalid="ignore"):  # of infinite numbers, which are no times
            if self.units == other.units:
                return (self.numbers - other.numbers) * self.units.unit_ns

            time, other_time = self._split(), other._split()
            days = time.days - other_time.days
            differences = days * DAY_NS + (time.nanoseconds - other_time.nanoseconds)

            is_fraction = (self.numbers % 1 != 0) | (other.numbers % 1 != 0)
            rounding = ROUNDING * (self._spacing_ns() + other._spacing_ns())
            return np.where(is_fraction & (np.abs(differences) <= rounding), 0.0, differences)

    def _spacing_ns(self) -> FloatArray:
        """Return the distance of each number to the next one that float64 has, in nanoseconds."""
        spacing: FloatArray = np.abs(np.spacing(self.numbers)) * self.units.unit_ns
        return spacing

    def _split(self) -> "_SplitTimes":
        whole = np.floor(self.numbers)
        fraction_ns = (self.numbers - whole) * self.units.unit_ns
        origin_days, origin_ns = divmod(self.units.origin_ns, DAY_NS)
        if self.units.unit_ns < DAY_NS:  # a part of a day: nanoseconds to hours
            days, units_of_day = np.divmod(whole, DAY_NS // self.units.unit_ns)
            nanoseconds = units_of_day * self.units.unit_ns + fraction_ns + origin_ns
        else:  # whole days: days, weeks, and the months and years of some calendars
            days = whole * (self.units.unit_ns // DAY_NS)
            nanoseconds = fraction_ns + origin_ns
        further_days, nanoseconds = np.divmod(nanoseconds, DAY_NS)
        return _SplitTimes(days=days + origin_days + further_days, nanoseconds=nanoseconds)


@dataclass(frozen=True, kw_only=True)
class _SplitTimes:
    """Whole days since 1970, and nanoseconds of the day."""

    days: FloatArray
    nanoseconds: FloatArray
