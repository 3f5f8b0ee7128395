"""Dates and years by any calendar of the CF conventions, of seconds since 1970 there.

Years before 1 are counted as ISO 8601 does: the year before 1 is 0.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from dorff.data.array_files import FloatArray
from dorff.errors import InputError

SECONDS: Final = "seconds since 1970-01-01"
MOST_SECONDS: Final = 3e11  # 9,500 years: what is further from 1970 is no date


def date_text(seconds: float, calendar: str) -> str | None:
    """Return a time to the second, or the date where it is midnight; None if it is no date."""
    date = _date(seconds, calendar)
    return None if date is None else str(date.isoformat(" ")).removesuffix(" 00:00:00")


def year_of(seconds: float, calendar: str) -> int | None:
    """Return the year of a time; None if it is no date."""
    date = _date(seconds, calendar)
    return None if date is None else int(date.year)


def year_start(year: int, calendar: str) -> float:
    """Return the seconds since 1970 at which a year begins."""
    import cftime

    with _early_years():
        date = cftime.datetime(year, 1, 1, calendar=calendar, has_year_zero=True)
        return float(cftime.date2num(date, SECONDS, calendar=calendar, has_year_zero=True))


def year_spans(seconds: FloatArray, calendar: str, where: str) -> tuple[FloatArray, FloatArray]:
    """Return when the years of times (n,) begin and end; InputError, naming `where`, for no dates.

    Times that are not finite get any year.
    """
    finite = seconds[np.isfinite(seconds)]
    ends = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    first, last = (year_of(float(end), calendar) for end in ends)
    if first is None or last is None:
        problem = f"has times that are no dates of the calendar {calendar}"
        raise InputError(f"{where}: {problem}; correct their units.")
    starts = np.array([year_start(year, calendar) for year in range(first, last + 2)])
    places = np.searchsorted(starts, np.nan_to_num(seconds), side="right") - 1
    places = np.clip(places, 0, last - first)
    return starts[places], starts[places + 1]


def _date(seconds: float, calendar: str) -> Any:
    """Return the date of a time, to the second; None if it is no date."""
    import cftime

    if not abs(seconds) < MOST_SECONDS:
        return None
    with _early_years():
        return cftime.num2date(round(seconds), SECONDS, calendar=calendar, has_year_zero=True)


@contextmanager
def _early_years() -> Iterator[None]:
    """Have no warnings of years before 1 with a year 0."""
    import cftime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cftime.CFWarning)
        yield
