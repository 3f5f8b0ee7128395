"""Receipts: the only truth about which leaves are done."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, final

from dorff.storage.files import identity, read_plain, seal, unseal, write_atomic


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


@final
@dataclass(frozen=True)
class Receipt:
    """A finished leaf: which rows, what was in them, what became of them.

    `digest` is of the rows' values as read, `stamp` of the files that held them (size and time; cheap to ask
    again). `key` names the leaf's moments by all that determines them: plan, rows and digest. `low` and `high`
    (d,) bound the inputs of the rows used; `rows_unlabelled` have no target, `rows_dropped` are all others, those of
    weight 0 too, `rows_read` those read from the store. Seconds are wall time in the leaf, and in its BLAS `syrk`
    calls. `facts` are whole numbers that a leaf which is no sum hands on.
    """

    plan: str
    number: int
    start: int
    stop: int
    digest: str
    stamp: str
    rows_used: int
    rows_dropped: int
    rows_read: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    seconds: float
    syrk_seconds: float
    rows_unlabelled: int = 0
    facts: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        text = f"{self.plan} {self.number} {self.start} {self.stop} {self.digest}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def _adds_up(self) -> bool:
        rows = self.stop - self.start
        told = self.rows_used + self.rows_dropped + self.rows_unlabelled
        return 0 < rows == told and len(self.low) == len(self.high)

    def timed(self, seconds: float) -> Receipt:
        return replace(self, seconds=seconds)

    def save(self, directory: Path) -> None:
        path = _path(directory, self.number)
        write_atomic(path, [seal(asdict(self), identity(path))], sync=False)

    @classmethod
    def load(cls, directory: Path, number: int) -> Receipt | None:
        """The receipt of a leaf, or None where there is none, a byte of it changed, or it is another leaf's or plan's:
        the leaf is to be done again."""
        path = _path(directory, number)
        try:
            body = unseal(read_plain(path), identity(path))
            if body is None:
                return None
            lists = {name: tuple(body.get(name, ())) for name in ("low", "high", "facts")}
            receipt = cls(**{**body, **lists})
            return receipt if plausible(receipt) and receipt.number == number and receipt._adds_up else None
        except (FileNotFoundError, KeyError, TypeError):  # the last two: another version's
            return None


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:06d}.json"
