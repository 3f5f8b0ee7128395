"""Text of others (paths, names of columns, values) as it may be printed: no character of it moves a terminal's cursor,
hides what follows or turns it around."""

import re
from typing import Final

from dorff.errors.secrets import redact

MOST: Final = 60  # characters of a value in a sentence
#: Control characters, separators of lines, marks and overrides of direction, what is invisible, and half characters.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BETWEEN: Final = re.compile(f"(?![\n\t]){UNPRINTABLE.pattern}")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text with unprintable characters as escapes such as `\\x1b`; `lines` keeps its line ends and tabs."""
    return (_BETWEEN if lines else UNPRINTABLE).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()


def show(value: object) -> str:
    """Return a value as it came, but without secrets, cut to a length that a sentence bears."""
    text = printable(redact(repr(value)))
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."
