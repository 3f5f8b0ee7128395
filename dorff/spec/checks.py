"""What pydantic's own types do not say about a value of the job file: names to come, numbers or lists, bytes.

Each check is handed the raw value before its type is looked at, and either gives it back, put in order, or
refuses. A problem's text reads on from the dotted place of the value: "must be ..., came ...; correct it"."""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationInfo

from dorff.errors import InputError
from dorff.errors.secrets import carries_secret
from dorff.errors.shown import show
from dorff.spec.trust import check_scheme
from dorff.storage.location import is_remote, locate

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
RANGE = ("from", "to", "count")  # of a list of numbers
AUTO = "auto"  # dorff chooses, and says what and why
WORDS = ("median", "tune", "tune each", AUTO)  # for a length-scale
N = TypeVar("N", int, float)
ADDRESS = r"(?!https?:)[a-z]+://\S+:\d+(/\S*)?|inproc://\S+"


class Refusal(ValueError):
    """What is wrong with a value, or with `key` inside it. pydantic collects it with the place where it was."""

    def __init__(self, problem: str, *, key: str | None = None) -> None:
        super().__init__(problem)
        self.key = key


def nearest(name: object, known: Iterable[str]) -> str:
    """A half sentence with the known name that `name` looks like, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean '{close[0]}'? " if close else ""


@dataclass(frozen=True)
class KnownNames:
    """Names that are `built`, and those known for `later`. A mapping carries its name as `type`."""

    built: tuple[str, ...]
    later: tuple[str, ...] = ()
    default: str | None = None

    def name(self, value: object, *, key: str | None = None) -> object:
        built = ", ".join(self.built)
        if value in self.later:
            raise Refusal(f"asks for '{value}', which is known but not built yet; use one of: {built}", key=key)
        if value not in self.built:
            hint = nearest(value, self.built)
            raise Refusal(f"must be one of: {built}; came {show(value)}; {hint or 'correct it'}".strip(), key=key)
        return value

    def typed(self, value: object) -> object:
        """A mapping with its type checked and filled in; anything else is its class's to refuse."""
        if not isinstance(value, dict):
            return value
        if "type" not in value and self.default is None:
            raise Refusal(f"is missing; add it, one of: {', '.join(self.built)}", key="type")
        return {**value, "type": self.name(value.get("type", self.default), key="type")}


def path(value: object, info: ValidationInfo) -> Path:
    """Return a path, from the context's `folder` if it has one; that it stays below a root `spec.trust` checks."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise Refusal(f"must be a path, came {show(value)}; write one (in quotes where it looks like a number)")
    _no_secret(str(value))
    try:
        check_scheme(value)
        place = locate(value)
    except InputError as error:  # a broken package, or one that is not allowed
        raise Refusal(str(error)) from None
    if is_remote(place):
        return place
    try:
        return Path((info.context or {}).get("folder", ""), Path(value).expanduser())
    except (OSError, RuntimeError) as error:  # no such user
        raise Refusal(f"must be a path, came {show(value)}, which cannot be followed ({error}); correct it") from None


def _no_secret(text: str) -> None:
    if carries_secret(text):
        remedy = "take it out (credentials belong in files or in the environment)"
        raise Refusal(f"holds a password or a signed query, which plans, logs and models would keep; {remedy}")


def _real(value: object) -> float:
    """A number; NaN for what is none."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond any
        return math.inf


def number(value: object, *, above: float | None = None, least: float = -math.inf) -> float:
    """A finite number greater than `above`, or at least `least`."""
    low = least if above is None else above
    wanted = f"a number of at least {least:g}" if above is None else f"a number greater than {above:g}"
    found = _real(value)
    if not math.isfinite(found) or found < low or found == above:
        raise Refusal(f"must be {'a number' if low == -math.inf else wanted}, came {show(value)}; correct it")
    return found


positive = partial(number, above=0.0)
not_negative = partial(number, least=0.0)


def option(name: str, value: object, *, zero: bool = False) -> None:
    """InputError, of an option in Python, for what is no number above 0, or 0 itself where that may be."""
    try:
        number(value, above=None if zero else 0.0, least=0.0)
    except Refusal as refusal:
        raise InputError(f"{name} {refusal}") from None


def share(value: object) -> float:
    if not 0.0 < _real(value) < 1.0:
        raise Refusal(f"must be a number between 0 and 1, came {show(value)}; correct it")
    return _real(value)


def levels(value: object) -> tuple[float, ...]:
    """Numbers between 0 and 1, in order, each once."""
    given = tuple(map(_real, value)) if isinstance(value, list | tuple) else ()
    if not given or not all(0.0 < one < 1.0 for one in given) or list(given) != sorted(set(given)):
        remedy = "write such as [0.1, 0.5, 0.9]"
        raise Refusal(f"must be numbers between 0 and 1, in order, each once, came {show(value)}; {remedy}")
    return given


def _one_or_more(value: object, check: Callable[[object], N]) -> N | tuple[N, ...]:
    if not isinstance(value, list | tuple):
        return check(value)
    if not value:
        raise Refusal("must be a number or a list of numbers, came an empty list; add a number")
    return tuple(map(check, value))


def positives(value: object) -> float | tuple[float, ...]:
    """A positive number, or a list of them."""
    return _one_or_more(value, positive)


def penalties(value: object) -> float | tuple[float, ...]:
    """One number or several, none negative; {from, to, count} are as many numbers of equal ratios."""
    if not isinstance(value, dict):
        return _one_or_more(value, not_negative)
    for key in value:
        if key not in RANGE:
            raise Refusal(f"is not a known key; {nearest(key, RANGE)}use: {', '.join(RANGE)}", key=str(key))
    low, high, count = (_of_range(value, key) for key in RANGE)
    if not low < high:
        raise Refusal(f"must begin below its end, came from {low:g} to {high:g}; swap them")
    return tuple(low * (high / low) ** (step / (count - 1)) for step in range(int(count)))


def _of_range(value: dict[str, object], key: str) -> float:
    try:
        return counted(value.get(key)) if key == "count" else positive(value.get(key))
    except Refusal as refusal:
        raise Refusal(str(refusal), key=key) from None


def counted(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise Refusal(f"must be a whole number of 2 or more, came {show(value)}; correct it")
    return value


def counts(value: object) -> str | int | tuple[int, ...]:
    if value == AUTO:
        return AUTO
    numbers = _one_or_more(value, counted)
    if isinstance(numbers, tuple) and len(set(numbers)) < len(numbers):
        raise Refusal(f"must have each count once, came {show(value)}; take out what is twice")
    return numbers


def lengthscale(value: object) -> str | float | tuple[float, ...]:
    """A positive number, a list with one an input, or a word; {tune: each} is the word `tune each`."""
    if value == {"tune": "each"}:
        return "tune each"
    if not isinstance(value, str | dict):
        return positives(value)
    if value in WORDS:
        return str(value)
    wanted = "a number, a list of numbers (one an input), median, tune or {tune: each}"
    raise Refusal(f"must be {wanted}, came {show(value)}; {nearest(value, WORDS) or 'correct it'}".strip())


def text(wanted: str, value: object) -> str:
    """A text that is not empty: `wanted`."""
    if not isinstance(value, str) or not value:
        raise Refusal(f"must be {wanted}, came {show(value)}; correct it")
    return value


def arrays(value: object) -> str | tuple[str, ...]:
    """The name of an array or a list of names; a list becomes a tuple."""
    if isinstance(value, str) and value:
        return value
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise Refusal(f"must be the name of an array or a list of names, came {show(value)}; correct it")
    if len(set(names)) < len(names):
        raise Refusal(f"must name each array once, came {show(value)}; take out what is twice")
    return names


def _listed(least: int, wanted: str, remedy: str, value: object) -> tuple[object, ...]:
    """A list of at least so many, `wanted`, which becomes a tuple."""
    if not isinstance(value, list | tuple) or len(value) < least:
        raise Refusal(f"must be a list of {wanted}, came {show(value)}; {remedy}")
    return tuple(value)


terms = partial(_listed, 1, "{weight, kernel}, at least one", "add a term")
views = partial(_listed, 2, "{inputs, kernel}, two at least", "add a view, or write the kernel of the only one itself")


def class_weight(value: object) -> str | tuple[tuple[str, float], ...]:
    """`none`, `balanced`, or a weight for each label, as pairs; a label is text, a number as it is written."""
    if not isinstance(value, dict | tuple):
        return str(KnownNames(("none", "balanced", "{LABEL: WEIGHT, ...}")).name(value))
    pairs = tuple(value.items() if isinstance(value, dict) else value)
    for label, _ in pairs:
        if not isinstance(label, str | int | float) or isinstance(label, bool):
            raise Refusal(f"has the label {show(label)}, which is neither text nor a number; write it in quotes")
    return tuple((str(label), positive(weight)) for label, weight in pairs)


def kernels(value: object) -> object:
    if not isinstance(value, list | tuple):
        return value
    if not value:
        raise Refusal("must be a kernel or a list of kernels, came an empty list; add a kernel")
    return tuple(value)


def rows(value: object, info: ValidationInfo, *, square: bool = False) -> Path | tuple[tuple[float, ...], ...]:
    """A file's path, or the rows of a matrix; what else a matrix must be is for those who use it to check."""
    if isinstance(value, str | Path):
        return path(value, info)
    given = value if isinstance(value, list | tuple) else ()
    width = len(given) if square else len(given[0]) if given and isinstance(given[0], list | tuple) else 0
    if not width or not all(isinstance(row, list | tuple) and len(row) == width for row in given):
        wanted = "p rows of p numbers" if square else "rows of numbers, all as long"
        raise Refusal(f"must be a file or {wanted}, came {show(value)}; correct it")
    return tuple(tuple(number(item) for item in row) for row in given)


def box(value: object) -> tuple[tuple[float, float], ...] | None:
    """Pairs of a least and a largest number, one for each input."""
    if value is None:
        return None
    pairs = value if isinstance(value, list | tuple) else ()
    if not pairs or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        remedy = "write such as [[-180, 180], [-90, 90]]"
        raise Refusal(f"must be [least, largest] for each input, came {show(value)}; {remedy}")
    return tuple((number(low), number(high)) for low, high in pairs)


def periods(value: object) -> tuple[float | None, ...] | None:
    """A positive number or none for each input."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise Refusal(f"must be a number or null for each input, came {show(value)}; write such as [360, null]")
    return tuple(None if one is None else positive(one) for one in value)


square = partial(rows, square=True)
_MEASURES = KnownNames(("trace", "unbounded", "defensive", "bounded", "{type: bounded, split: 0.3}"))


def measure(value: object) -> object:
    """A name, or a mapping for `BoundedSpec` to read."""
    if isinstance(value, dict) and (name := value.get("type", "bounded")) != "bounded" and name in _MEASURES.built:
        raise Refusal(f"takes keys for bounded alone; write measure: {name}")
    return KnownNames(("bounded",)).typed(value) if isinstance(value, dict | BaseModel) else _MEASURES.name(value)


def switch(value: object) -> object:
    return value if isinstance(value, bool) else KnownNames((AUTO, "true", "false")).name(value)


def degree(value: object) -> tuple[int, int]:
    for known in ((1, 1), (1, 3), (3, 3)):
        if isinstance(value, list | tuple) and tuple(value) == known and not any(isinstance(v, bool) for v in value):
            return known
    raise Refusal(f"must be [1, 1], [1, 3] or [3, 3], came {show(value)}; correct it")


def memory(value: object) -> int:
    """Bytes, of a whole number or of text such as 4GiB or 512 MB."""
    if isinstance(value, str):
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]+)", value.strip().upper())
        if parts and parts[2] in _UNITS and len(parts[1]) < 20:
            value = int(float(parts[1]) * _UNITS[parts[2]])
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise Refusal(f"must be an amount of memory such as 4GiB or 512MB, came {show(value)}; correct it")
    return value


def address(value: object) -> str:
    if isinstance(value, str):
        _no_secret(value)
    if not isinstance(value, str) or not re.fullmatch(ADDRESS, value):
        wanted = "tcp://HOST:PORT or tls://HOST:PORT; not its dashboard's"
        raise Refusal(f"must be a Dask scheduler's address, came {show(value)}; write it as {wanted}")
    return value
