"""Times on the axes of plots as dates, though what is drawn are a model's numbers: seconds, hours, ... since a day."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, Locator, MaxNLocator

from dorff.data import calendars
from dorff.data.units import GREGORIAN_START_SECONDS, Conversion, TimeUnits

DAY: Final = 86_400.0
YEAR: Final = 366 * DAY
MOST_TICKS: Final = 6
LATEST: Final = 2.5e11  # seconds since 1970 that matplotlib has dates for: the year 9892
dates: Any = untyped_dates


def show_dates(axis: Axis, time: TimeUnits) -> None:
    """Label an axis of times in these units by dates."""
    locator = _DateLocator(time)
    axis.set_major_locator(locator)
    axis.set_major_formatter(_DateFormatter(locator))


def date_text(value: float, time: TimeUnits) -> str:
    """Return a time in UTC, to the second, or the date where it is midnight; the number if it is no date."""
    seconds = _to_seconds(time).convert(np.array(value), "a time")
    return calendars.date_text(float(seconds), time.calendar) or f"{value:.5g}"


def _to_seconds(time: TimeUnits) -> Conversion:
    """Return how times become seconds since 1970 by their own calendar."""
    return time.conversion_to(time.seconds, "a time")


class _DateLocator(Locator):
    """Ticks at whole hours, days, months or years; of calendars that matplotlib does not have, at days or years."""

    def __init__(self, time: TimeUnits) -> None:
        self.time, self.days = time, dates.AutoDateLocator(minticks=3, maxticks=MOST_TICKS)
        self._seconds = _to_seconds(time)

    def __call__(self) -> Any:
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = self.to_seconds([vmin, vmax])
        if self.has_timestamps([vmin, vmax]):
            ends = dates.num2date(np.array([low, high]) / DAY)
            return self.of_seconds(np.asarray(self.days.tick_values(*ends)) * DAY)
        return self.of_seconds(self._calendar_ticks(float(low), float(high)))

    def _calendar_ticks(self, low: float, high: float) -> Any:
        """Return seconds of round years, or of days where the years are few."""
        calendar, places = self.time.calendar, MaxNLocator(MOST_TICKS, integer=True)
        first, last = calendars.year_of(low, calendar), calendars.year_of(high, calendar)
        if first is None or last is None or high - low < MOST_TICKS * YEAR / 2:
            return np.asarray(places.tick_values(low / DAY, high / DAY)) * DAY
        years = places.tick_values(first, last)
        return np.array([calendars.year_start(int(year), calendar) for year in years])

    def has_timestamps(self, values: Any) -> bool:
        """Whether dates of these times are those of the proleptic Gregorian calendar, which matplotlib has."""
        proleptic = self.time.calendar == "proleptic_gregorian"
        earliest = calendars.year_start(1, self.time.calendar) if proleptic else GREGORIAN_START_SECONDS
        seconds = self.to_seconds(values)
        inside = earliest <= seconds[0] and seconds[-1] <= LATEST
        return self.time.is_gregorian and bool(inside)

    def to_seconds(self, values: Any) -> Any:
        """Return seconds since 1970, sorted."""
        return np.sort(self._seconds.convert(np.asarray(values, dtype=np.float64), "a time"))

    def of_seconds(self, seconds: Any) -> Any:
        return (seconds * self._seconds.divisor - self._seconds.shift) / self._seconds.factor


class _DateFormatter(Formatter):
    """The least of a date that tells ticks apart."""

    def __init__(self, locator: _DateLocator) -> None:
        self._locator, self._concise = locator, dates.ConciseDateFormatter(locator.days)
        self._has_offset = False

    def __call__(self, x: float, pos: int | None = None) -> str:
        return date_text(x, self._locator.time)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        if not len(values):
            return []
        if not self._locator.has_timestamps(values):
            self._has_offset = False
            return [date_text(value, self._locator.time) for value in values]
        self._has_offset = True
        return list(self._concise.format_ticks(self._locator.to_seconds(values) / DAY))

    def get_offset(self) -> str:
        return str(self._concise.get_offset()) if self._has_offset else ""
