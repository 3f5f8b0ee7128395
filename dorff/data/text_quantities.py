"""Recognises text that stands for numbers, dates or times, though not in a way that can be read.

Such text is no set of categories, however often each value is repeated: the latitudes "43.5N" of a grid,
prices, depths "10 m", dates "01-Mar-2024". It is described here so that it can be refused.
"""

import re
from collections.abc import Collection
from typing import Final

MOST_LENGTH: Final = 40  # of a text that can be a number or a time

_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH: Final = rf"({'|'.join([*_MONTHS, *(month[:3] for month in _MONTHS), 'sept'])})\.?"
_CLOCK: Final = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[ap]\.?m\.?)?"
_TIMES: Final = re.compile(
    rf"{_CLOCK}"
    rf"|([+-]\d{{4}}|[+-]?\d{{5,6}})-(0\d|1[0-2])-[0-3]\d([T ]+{_CLOCK}Z?)?"  # years beyond 1 to 9999
    rf"|\d{{1,2}}[-/ .]?{_MONTH}[-/ .,]*\d{{2,4}}([ T:,]+{_CLOCK})?"  # 01-Mar-2024 12:00
    rf"|{_MONTH}[-/ ]\d{{1,2}}[-/ ,]+\d{{4}}([ T:,]+{_CLOCK})?"  # Mar 1, 2024
    rf"|\d{{4}}[-/ .]{_MONTH}[-/ .]\d{{1,2}}([ T:,]+{_CLOCK})?"  # 2024-Mar-01
    r"|[+-]?P(\d+[YMWD])*T(\d+([.,]\d+)?[HMS])+",  # durations of ISO 8601; P1D alone may be a name
    re.IGNORECASE,
)

# Possessive: what follows a number is never tried at its other places.
_NUMBER: Final = r"\d[\d.,'\u2019\s]*+"
_DEGREES: Final = rf"[+-]?{_NUMBER}([°º]|d(?=\s*\d))\s*"
_ANGLES: Final = re.compile(
    rf"{_DEGREES}({_NUMBER}['′m]\s*)?({_NUMBER}[\"″s]?\s*)?[NSEW]?",
    re.IGNORECASE,
)
#: 43.5N, 43 n, N 43.5; but 2N and N43 are rather names.
_HEMISPHERES: Final = re.compile(r"(\d+[.,]\d+ ?|\d{2,3} ?|\d )[NSEW]|[NSEW] ?\d+[.,]\d+", re.IGNORECASE)
_COMPOUNDS: Final = (
    re.compile(rf"[+-]?{_NUMBER}(±|\+/-|\+-)\s*{_NUMBER}"),  # with an uncertainty
    re.compile(rf"[+-]?{_NUMBER}[x×*·]\s*10\s*(\^|\*\*)?\s*[+-]?\d+"),  # with a power of ten
    re.compile(r"[+-]?\d+\s*/\s*\d+"),  # fractions
    re.compile(r"[+-]?0x[0-9a-f]+", re.IGNORECASE),
    re.compile(r"[+-]?(\d+\.\d*|\.\d+)[+-]\d{2,3}"),  # Fortran's exponent, 1.5+103
)
_UNDERSCORED: Final = re.compile(r"[+-]?\d{1,3}(_\d{3})+(\.\d*)?")
_SURELY_UNDERSCORED: Final = re.compile(r"[+-].*|.*\..*|.*_.*_.*")  # but 12_101 may be a name
#: A number and what is written before and after it; letters before it make a name of it (station 12).
_DECORATED: Final = re.compile(
    rf"(?P<before>[^\w]*)(?P<number>{_NUMBER}([eEdD][+-]?\d+)?)(?P<after>[^\d]{{0,12}}|(?<=\s)[^\W\d].{{0,20}})"
)


def describe_quantities(texts: Collection[str]) -> str:
    """Return what texts are, all of them, if they stand for numbers or times; "" for any others.

    Numbers count as decorated if the same signs, or the same unit, stand beside each of them.
    """
    stripped = [text.strip() for text in texts]
    if not stripped or max(map(len, stripped)) > MOST_LENGTH:
        return ""
    if all(map(_TIMES.fullmatch, stripped)):
        return "dates or times in a form that is not read"
    if all(map(_HEMISPHERES.fullmatch, stripped)) or all(map(_ANGLES.fullmatch, stripped)):
        return "angles with a hemisphere, or in degrees and minutes"
    if any(all(map(pattern.fullmatch, stripped)) for pattern in _COMPOUNDS):
        return "numbers that are not written in decimals"
    if _have_underscored_thousands(stripped):
        return "numbers with underscores"
    decorated = [match for match in map(_DECORATED.fullmatch, stripped) if match is not None]
    signs = {(match["before"], match["after"].strip()) for match in decorated}
    if len(decorated) < len(stripped) or len(signs) > 1:
        return ""
    # 2D is rather a name, as letters follow a whole number at once; 2.5m is a number.
    has_mark = any(set(".,") & set(match["number"]) for match in decorated)
    is_at_once = decorated[0]["after"][:1].isalpha() and not decorated[0]["number"][-1].isspace()
    return "" if is_at_once and not has_mark else "numbers with something beside them"


def _have_underscored_thousands(texts: Collection[str]) -> bool:
    """Whether all texts are numbers such as 1_000, and rather no names: signed, long, with decimals, or round."""
    if not all(map(_UNDERSCORED.fullmatch, texts)):
        return False
    return any(map(_SURELY_UNDERSCORED.fullmatch, texts)) or all(text.endswith("00") for text in texts)
