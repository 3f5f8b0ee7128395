"""Records as they lie in files, which anybody may have written: whether each value is of its type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _bound(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


#: By a field's annotation. Seconds are finite; bounds of no rows are infinite.
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "int": _count,
    "str": lambda value: isinstance(value, str),
    "float": lambda value: _bound(value) and 0 <= value < math.inf,
    "tuple[int, ...]": lambda value: all(map(_count, value)),
    "tuple[float, ...]": lambda value: all(map(_bound, value)),
}


def plausible(record: Any) -> bool:
    """Whether each field of a dataclass is of its type: counts and seconds from 0 on, text, numbers for bounds."""
    return all(_TYPES[str(field.type)](getattr(record, field.name)) for field in fields(record))
