"""Text from files and jobs (paths, column names, values) in a form that is safe to print.

Characters that could move a terminal's cursor, hide the text that follows or reverse its
direction are replaced by escapes.
"""

import re
from typing import Final

from dorff.errors.secrets import redact

MAX_LENGTH: Final = 60  # characters of a value in a message
#: Control characters, line separators, direction marks and overrides, invisible
#: characters, and surrogates.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNPRINTABLE_BUT_LINES: Final = re.compile(f"(?![\n\t]){UNPRINTABLE.pattern}")


def printable(text: str, *, lines: bool = False) -> str:
    """Replace unprintable characters by escapes such as `\\x1b`.

    Line ends and tabs are kept if `lines` is set.
    """
    pattern = _UNPRINTABLE_BUT_LINES if lines else UNPRINTABLE
    return pattern.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()


def show(value: object) -> str:
    """Return the `repr` of a value for a message: printable, without secrets, shortened."""
    text = printable(redact(repr(value)))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 3]}..."
