"""Numbers as people write them in text: 1,000.5 and 1.000,5, 50.3%, a Unicode minus, 1.5D+03."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

#: Words that Arrow takes for no value, and further ones that stand in columns of numbers alone: dashes, the stars of a
#: Fortran field that was too narrow, a point.
DASHES: Final = ("-", "--", "---", "----", ".", "NAN", "none", "None", "NONE")
NO_NUMBER: Final = (*DASHES, *("*" * width for width in range(1, 21)))
MARKS: Final = (".", ",")
MINUS: Final = "\u2212"
GROUPS: Final = " \u00a0\u2009\u202f'"  # between groups of three digits, beside a point or a comma
EXPONENT: Final = rf"(?:[eEdD][+{MINUS}-]?\d+)?"
SPECIAL: Final = r"(?i:[+-]?(?:inf|infinity|nan))"


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written: their decimal mark, and whether a percent sign follows."""

    decimal: str = "."
    percent: bool = False

    @property
    def pattern(self) -> str:
        """Return the regular expression of a number, for Python's `re` and for RE2."""
        other = MARKS[self.decimal == "."]
        mark, groups = re.escape(self.decimal), re.escape(GROUPS + other)
        whole = rf"(?:[1-9]\d{{0,2}}(?:[{groups}]\d{{3}})+|\d+)"
        digits = rf"(?:{whole}(?:{mark}\d*)?|{mark}\d+)"
        return rf"[+{MINUS}-]?{digits}{EXPONENT}" + (r"\s*%" if self.percent else f"|{SPECIAL}")

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """Return the pattern, compiled."""
        return re.compile(self.pattern)

    def fits(self, text: str) -> bool:
        """Whether a text is a number that is written so."""
        return self.compiled.fullmatch(text) is not None

    def parse(self, texts: Any) -> Any:
        """Return Arrow's float64 of its strings, each of which has to fit, or to be null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        other = MARKS[self.decimal == "."]
        plain = pc.replace_substring_regex(texts, rf"[{re.escape(GROUPS + other)}%]", "")
        plain = pc.replace_substring(plain, self.decimal, ".")
        plain = pc.replace_substring(plain, MINUS, "-")
        return pc.replace_substring_regex(plain, "[dD]", "e").cast(pa.float64())


#: With a decimal point and with a decimal comma.
NOTATIONS: Final = tuple(map(Notation, MARKS))


@cache
def _plain_number(decimal: str) -> re.Pattern[str]:
    """Return the pattern of what Arrow reads as a number where decimals have this mark."""
    mark = re.escape(decimal)
    return re.compile(rf"[+-]?(?:\d+(?:{mark}\d*)?|{mark}\d+)(?:[eE][+-]?\d+)?|{SPECIAL}")


def is_plain(text: str, decimal: str) -> bool:
    """Whether Arrow reads a text as a number where decimals have this mark."""
    return _plain_number(decimal).fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether a text is a number in some notation."""
    number = text.removesuffix("%").rstrip()
    return any(notation.fits(number) for notation in NOTATIONS)


def sure_decimals(texts: Collection[str]) -> set[str]:
    """Return the decimal marks of those numbers that can be read with one mark only."""
    sure = set()
    for text in texts:
        number = text.removesuffix("%").rstrip()
        marks = [notation.decimal for notation in NOTATIONS if notation.fits(number)]
        if len(marks) == 1:
            sure.add(marks[0])
    return sure


def file_decimal(texts: Collection[str]) -> str:
    """Return the decimal mark of a file with these fields: a point, unless only a comma fits some.

    Fields such as 1,000 say nothing: a comma before three digits may also part thousands.
    """
    return "," if sure_decimals(texts) == {","} else "."


class AmbiguousError(Exception):
    """A number of a column that may be read with either decimal mark."""


def column_notation(texts: Sequence[str], decimal: str, *, said: bool) -> Notation | None:
    """Return how the numbers of a column are written, None where Arrow reads them as they are.

    `decimal` is the file's mark; where it was `said` it holds, whatever the values look like. Raises `AmbiguousError`
    at a number such as 1,000 which is one or a thousand, unless another number of the column decides.
    """
    if all(is_plain(text, decimal) for text in texts) and not said:
        return None
    notation = Notation(decimal, percent=bool(texts) and all(text.endswith("%") for text in texts))
    if not all(map(notation.fits, texts)):
        return None  # Arrow names the value that is no number
    other = MARKS[decimal == "."]
    unsure = [text for text in texts if other in text]
    if unsure and not said and decimal not in sure_decimals(texts):
        raise AmbiguousError(unsure[0])
    return notation
