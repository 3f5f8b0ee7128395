"""Receipts, the only truth about which leaves are done; checkpoints; a model's history; what is old, removed."""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from dorff.errors import InputError, LeaseError
from dorff.moments import Adder, Part
from dorff.storage import files
from dorff.storage.location import locate
from dorff.store.lease import LEASE, Lease, forget, lease_beside, lease_state, locked
from dorff.store.models import older_versions
from dorff.store.moments import load_held, save_held

HISTORY: Final = "history.jsonl"
GIVEN_UP: Final = 30 * 86_400.0  # seconds that what belongs to no job any more is kept for


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _bound(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


#: By a field's annotation. Seconds are finite; bounds of no rows are infinite.
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "int": _count,
    "str": lambda value: isinstance(value, str),
    "float": lambda value: _bound(value) and 0 <= value < math.inf,
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_count, value)),
    "tuple[float, ...]": lambda value: isinstance(value, tuple) and all(map(_bound, value)),
}


@dataclass(frozen=True)
class LeafRecord(ABC):
    """What is kept of a leaf: which rows, what was in them, what became of them. `stamp` is of the files that held the
    rows (size and time; cheap to ask again). `low` and `high` (d,) bound the inputs of the rows used; `rows_unlabelled`
    have no target, `rows_read` are those read. Seconds are wall time in the leaf, and in its BLAS `syrk` calls;
    `processor` is the kind that summed it (`moments/blas.py::processor_kind`)."""

    plan: str
    number: int
    start: int
    stop: int
    stamp: str
    _: KW_ONLY
    rows_used: int = 0
    rows_read: int = 0
    rows_unlabelled: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    seconds: float = 0.0
    syrk_seconds: float = 0.0
    processor: str = ""

    @classmethod
    def load(cls, directory: Path, number: int) -> Self | None:
        """What was kept of a leaf; None where it is to be done again: nothing was, a byte changed, it is another's."""
        try:
            if (body := files.read_record(_path(directory, number))) is None:
                return None
            words: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
            record = cls(**words)
        except (FileNotFoundError, TypeError):  # the latter: another version's
            return None
        typed = all(_TYPES[str(field.type)](getattr(record, field.name)) for field in fields(record))
        return record if typed and record.number == number and record._adds_up else None

    @property
    @abstractmethod
    def _adds_up(self) -> bool:
        """Whether its rows do."""


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:06d}.json"


@dataclass(frozen=True, kw_only=True)
class Receipt(LeafRecord):
    """A finished leaf. `digest` is of the rows' values as read; `key` names the leaf's moments by all that determines
    them: plan, rows and digest. `rows_dropped` are neither used nor unlabelled, those of weight 0 too. `facts` are
    whole numbers that a leaf which is no sum hands on."""

    digest: str
    rows_dropped: int = 0
    facts: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        text = f"{self.plan} {self.number} {self.start} {self.stop} {self.digest}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def _adds_up(self) -> bool:
        rows = self.rows_used + self.rows_dropped + self.rows_unlabelled
        return 0 < self.stop - self.start == rows and len(self.low) == len(self.high)

    def save(self, directory: Path) -> None:
        files.write_record(_path(directory, self.number), asdict(self), sync=False)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(LeafRecord):
    """A leaf of which start..row-1 are summed, for the same plan, rows and stamp; `checksums` become the digest. Two
    files: the sums, named by what they are of; and a text that names them, written last."""

    row: int
    checksums: tuple[int, ...] = ()

    @property
    def _adds_up(self) -> bool:
        return self.start <= self.row <= self.stop

    def save(self, directory: Path, sums: Mapping[Part, Adder]) -> None:
        """Keep these sums, instead of what was kept of this leaf before; once it returns they outlive a power cut."""
        save_held(self._sums(directory), sums)
        files.write_record(_path(directory, self.number), asdict(self), sync=True)
        for path in directory.glob(f"{self.number:06d}-*"):
            if path != self._sums(directory):
                path.unlink(missing_ok=True)

    def restore(self, directory: Path, of: Callable[[Part], Adder]) -> bool:
        """Read the sums into the empty adders of `of`, to the bit; False where that failed, and they hold rubbish."""
        return load_held(self._sums(directory), of)

    def receipt(self) -> Receipt:
        """What is left of the task once all of it is summed."""
        return Receipt(
            **{field.name: getattr(self, field.name) for field in fields(LeafRecord)},
            digest="".join(f"{crc:08x}" for crc in self.checksums),
            rows_dropped=self.stop - self.start - self.rows_used - self.rows_unlabelled,
        )

    @staticmethod
    def remove(directory: Path, number: int) -> None:
        """Delete what was kept of a leaf, if anything was."""
        for path in (_path(directory, number), *directory.glob(f"{number:06d}-*")):
            path.unlink(missing_ok=True)

    def _sums(self, directory: Path) -> Path:
        # The same rows have the same sums to the bit, whoever wrote them.
        what = [self.plan, self.start, self.stop, self.row, self.stamp, self.checksums]
        return directory / f"{self.number:06d}-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]}.sums"


def append_history(root: Path, record: Mapping[str, Any]) -> None:
    """Add a line to the history of the model at `root`, and wait for the disk."""
    path = root / HISTORY
    with files.space_on(path):
        files.make_directory(root, sync=True)
        locate(path).append(files.seal(record) + b"\n")


def read_history(root: Path) -> list[dict[str, Any]]:
    """Every line, oldest first; torn or damaged ones are left out."""
    path = root / HISTORY
    try:
        with files.reading(path):
            lines = files.read_plain(path).split(b"\n")
    except FileNotFoundError:
        return []
    return [record for line in lines if (record := files.unseal(line)) is not None]


def remove_given_up(folder: Path) -> None:
    """Remove what nobody has written to in a folder for a month."""
    for path in folder.glob("*"):
        with suppress(OSError):  # another run tidies too
            if time.time() - path.stat().st_mtime > GIVEN_UP:
                files.rmtree(path) if path.is_dir() else path.unlink()


def prune_versions(root: Path, keep: int, *, dry_run: bool = False) -> list[Path]:
    """Remove all versions of a model but the last `keep` up to the current one; returns what is (or would be) gone.
    Never the current one, nor a newer one, which may become current. A reader that opened one is promised no more."""
    _at_least_one(keep)
    with files.space_on(root):
        with locked(root / LEASE):
            older = older_versions(root)
            old = older[: max(0, len(older) + 1 - keep)]  # the current one is kept too
            hidden = [] if dry_run else [files.hide(version) for version in old]
        for path in hidden:  # after the lock is given back: this can take long
            files.rmtree(path, ignore_errors=True)
        if not dry_run:
            files.remove_torn(root, older=86400.0)  # not what is being written or judged
    return old


def prune_state(state: Path, keep: int, *, dry_run: bool = False) -> list[Path]:
    """Remove all plans of a state directory but the `keep` used last; returns the directories gone (or that would be).
    What is removed can be made again, by reading the rows again. A plan that a run holds the lease of stays."""
    _at_least_one(keep)
    plans = sorted({file.parent for file in state.glob("*/plan.json")}, key=last_used, reverse=True)
    if not plans:
        raise InputError(f"{state}: no plans here; give the state directory of a job")
    old = [plan for plan in plans[keep:] if lease_state(lease_beside(plan)) is None]
    if dry_run:
        return old
    gone = []
    with files.space_on(state):
        for plan in old:
            with suppress(LeaseError):  # of one whose lease a run took meanwhile
                with Lease.take(lease_beside(plan)):
                    files.remove_tree(plan)
                forget(lease_beside(plan))
                gone.append(plan)
        files.remove_torn(state)
    return gone


def last_used(plan: Path) -> float:
    """When something was last written to a plan's directory (s since 1970): files come there by renaming."""
    return max(path.stat().st_mtime for path in (plan, *(below for below in plan.glob("*") if below.is_dir())))


def _at_least_one(keep: int) -> None:
    if keep < 1:
        raise InputError(f"keep: wanted 1 or more, got {keep}; to remove everything, remove the directory")
