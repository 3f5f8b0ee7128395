"""Recognises text that stands for numbers, dates or times, though not in a way that can be read.

Such text is no set of categories, however often each value is repeated: the latitudes "43.5N" of a grid,
prices, depths "10 m", dates "01-Mar-2024". It is described here so that it can be refused.
"""

import re
from collections.abc import Collection
from typing import Final

_MONTH: Final = r"(jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]*\.?"
_CLOCK: Final = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?(\s*[ap]\.?m\.?)?"
_TIMES: Final = re.compile(
    rf"{_CLOCK}"
    rf"|\d{{1,2}}[-/ .]*{_MONTH}[-/ .,]*\d{{2,4}}([ T:,]*{_CLOCK})?"  # 01-Mar-2024 12:00
    rf"|({_MONTH}[-/ .]*\d{{1,2}}|\d{{4}}[-/ .]*{_MONTH}[-/ .]*\d{{1,2}})([-/ ,]+\d{{4}})?([ T:,]*{_CLOCK})?"
    r"|[+-]?P(?=.)(\d+[YMWD])*(T(\d+([.,]\d+)?[HMS])+)?",  # durations of ISO 8601
    re.IGNORECASE,
)

_NUMBER: Final = r"\d[\d.,'\u2019\s]*"
_ANGLES: Final = re.compile(
    rf"[+-]?{_NUMBER}\s*[°ºd]\s*({_NUMBER}\s*['′m]\s*)?({_NUMBER}\s*[\"″s]?\s*)?[NSEW]?", re.IGNORECASE
)
#: 43.5N, 43 n, N 43.5; but N43 is rather a name.
_HEMISPHERES: Final = re.compile(rf"{_NUMBER}\s*[NSEW]|[NSEW]\s*\d+[.,]\d+", re.IGNORECASE)
_COMPOUNDS: Final = (
    re.compile(rf"[+-]?{_NUMBER}\s*(±|\+/-|\+-)\s*{_NUMBER}"),  # with an uncertainty
    re.compile(rf"[+-]?{_NUMBER}\s*[x×*·]\s*10\s*(\^|\*\*)?\s*[+-]?\d+"),  # with a power of ten
    re.compile(r"[+-]?\d+\s*/\s*\d+"),  # fractions
    re.compile(r"[+-]?0x[0-9a-f]+", re.IGNORECASE),
)
#: A number and what is written before and after it; letters before it make a name of it (station 12).
_DECORATED: Final = re.compile(
    rf"(?P<before>[^\w]*)(?P<number>{_NUMBER}([eEdD][+-]?\d+)?)(?P<after>[^\d]{{0,12}}|\s[^\W\d].{{0,20}})"
)


def describe_quantities(texts: Collection[str]) -> str:
    """Return what texts are, all of them, if they stand for numbers or times; "" for any others.

    Numbers count as decorated if the same signs, or the same unit, stand beside each of them.
    """
    stripped = [text.strip() for text in texts]
    if not stripped:
        return ""
    if all(map(_TIMES.fullmatch, stripped)):
        return "dates or times that are not written as in ISO 8601"
    if all(map(_HEMISPHERES.fullmatch, stripped)) or all(map(_ANGLES.fullmatch, stripped)):
        return "angles with a hemisphere, or in degrees and minutes"
    if any(all(map(pattern.fullmatch, stripped)) for pattern in _COMPOUNDS):
        return "numbers that are not written in decimals"
    decorated = [_DECORATED.fullmatch(text) for text in stripped]
    beside = {(match["before"], match["after"].strip()) if match else None for match in decorated}
    if len(beside) == 1 and None not in beside:
        return "numbers with something beside them"
    return ""
