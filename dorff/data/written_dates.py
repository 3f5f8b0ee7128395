"""Recognises columns of whole numbers that are dates, such as 20240131, or dates with times.

Their differences are no durations: from 20240131 to 20240201 is 70, and one day.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

#: By the number of digits: the layout as people write it, and as datetime does.
_LAYOUTS: Final = {
    8: ("YYYYMMDD", "%Y%m%d"),
    10: ("YYYYMMDDhh", "%Y%m%d%H"),
    12: ("YYYYMMDDhhmm", "%Y%m%d%H%M"),
    14: ("YYYYMMDDhhmmss", "%Y%m%d%H%M%S"),
}
_YEARS: Final = range(1800, 2101)


def describe_written_dates(ends: Mapping[str, tuple[float, float]]) -> list[str]:
    """Say which columns seem to hold dates, by the least and largest value of each."""
    remarks = []
    for name, (least, largest) in ends.items():
        layout = _find_layout(least)
        if layout and least < largest and layout == _find_layout(largest):
            problem = f"column {name!r} has {least:.0f} to {largest:.0f}, like dates as {layout}"
            effect = "they are taken as numbers, whose differences are no times"
            remarks.append(f"{problem}: {effect}; write dates as 2024-01-31 if they are meant")
    return remarks


def _find_layout(value: float) -> str:
    """Return in which layout a number is a date; "" if in none."""
    if not value.is_integer():  # nor are NaN and infinities
        return ""
    digits = f"{value:.0f}"
    layout, pattern = _LAYOUTS.get(len(digits), ("", ""))
    if not layout:
        return ""
    try:
        moment = datetime.strptime(digits, pattern)
    except ValueError:
        return ""
    return layout if moment.year in _YEARS else ""
