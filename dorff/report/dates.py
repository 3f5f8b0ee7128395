"""Times on the axes of plots as dates, though what is drawn are a model's numbers: seconds, hours, ... since a day."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, Locator

from dorff.data.units import Conversion

DAY: Final = 86_400.0
dates: Any = untyped_dates


def show_dates(axis: Axis, seconds: Conversion) -> None:
    """Label an axis of times by dates; `seconds` makes seconds since 1970 of its numbers."""
    locator = _DateLocator(seconds)
    axis.set_major_locator(locator)
    axis.set_major_formatter(_DateFormatter(locator))


def date_text(value: float, seconds: Conversion) -> str:
    """Return a time in UTC, to the second, or the date where it is midnight."""
    whole = np.round(seconds.convert(np.array(value), "a time"))
    text = str(np.datetime64(int(whole), "s"))
    return text.removesuffix("T00:00:00").replace("T", " ")


class _DateLocator(Locator):
    """Ticks at whole hours, days, months or years."""

    def __init__(self, seconds: Conversion) -> None:
        self.seconds, self.days = seconds, dates.AutoDateLocator(minticks=3, maxticks=6)

    def __call__(self) -> Any:
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = dates.num2date(self.to_days(np.sort([vmin, vmax])))
        return self.of_days(np.asarray(self.days.tick_values(low, high)))

    def to_days(self, values: Any) -> Any:
        return self.seconds.convert(np.asarray(values, dtype=np.float64), "a time") / DAY

    def of_days(self, days: Any) -> Any:
        return (days * DAY * self.seconds.divisor - self.seconds.shift) / self.seconds.factor


class _DateFormatter(Formatter):
    """The least of a date that tells ticks apart."""

    def __init__(self, locator: _DateLocator) -> None:
        self._locator, self._concise = locator, dates.ConciseDateFormatter(locator.days)

    def __call__(self, x: float, pos: int | None = None) -> str:
        return date_text(x, self._locator.seconds)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return list(self._concise.format_ticks(self._locator.to_days(values)))

    def get_offset(self) -> str:
        return str(self._concise.get_offset())
