"""Passwords and keys, kept out of what dorff says and of what it writes."""

import os
import re
from collections.abc import Iterator
from typing import Final

HIDDEN: Final = "***"
SHORTEST: Final = 8  # of a value worth hiding: shorter ones are words that stand everywhere

# All bounded: what a file of others says in a megabyte is searched in a time that grows with its length.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:/{1,3}")  # one slash is what a path leaves of two
_WORD: Final = re.compile(r"[^\s'\"]+")
_NAME: Final = r"[\w.%-]{0,64}"  # around what makes a query's key one of a secret
_QUERY: Final = re.compile(
    rf"([?&;]{_NAME}(?:sig|token|secret|passw|credential|key){_NAME}=)[^&;\s'\"#]+", re.IGNORECASE
)
_BEGIN: Final = r"['\"]?\s*[:=]\s*['\"]?"  # between a name and its value: in a header, a setting or JSON
_VALUE: Final = re.compile(
    rf"(\b(?:AccountKey|SharedAccessKey|SharedAccessSignature){_BEGIN}"
    rf"|\bAuthorization{_BEGIN}(?:Bearer|Basic|SharedKey|Token)\s+"
    r"|\bBearer\s+(?!(?:tokens?|auth\w*|realm=\S*)(?:[\s,.:;)]|$)))[^;,\s'\"]+",
    re.IGNORECASE,
)
_NAMES: Final = re.compile(r"SECRET|TOKEN|PASSWORD|_KEY|CREDENTIAL", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` without user names and passwords of URLs, values of signed or keyed queries, keys of storage accounts
    (`AccountKey=`, `SharedAccessSignature=`), what `Authorization:` and `Bearer` say, and the values of environment
    variables named *SECRET*, *TOKEN*, *PASSWORD*, *_KEY* or *CREDENTIAL*."""
    for value in sorted(_values(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _hide(text)


def carries_secret(text: str) -> bool:
    """Whether `text` has such a URL, query, key or header in it, which may not be kept in plans and models."""
    return _hide(text) != text


def _hide(text: str) -> str:
    return _QUERY.sub(rf"\1{HIDDEN}", _VALUE.sub(rf"\1{HIDDEN}", _WORD.sub(_hide_user, text)))


def _hide_user(match: re.Match[str]) -> str:
    """A word without what stands between a URL's scheme and its last @."""
    word = match[0]
    end = word.rfind("@")
    scheme = _URL.search(word, 0, end) if end >= 0 else None
    return word if scheme is None else f"{word[: scheme.end()]}{HIDDEN}{word[end:]}"


def _values() -> Iterator[str]:
    """What the environment keeps secret. The path of a file with a secret in it is not one."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and _NAMES.search(name) and not os.path.exists(value):
            yield value
