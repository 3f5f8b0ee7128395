"""Checkpoints: leaves that were stopped at a block's end, and what had been summed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, final

from dorff.moments import Adder, Part
from dorff.storage.files import identity, read_plain, seal, unseal, write_atomic
from dorff.store.moments import load_held, save_held
from dorff.store.receipts import Receipt, plausible


@final
@dataclass(frozen=True)
class Checkpoint:
    """A leaf whose rows start..row-1 are summed, of start..stop-1. All else as in `Receipt`: `checksums` go on to its
    digest. It counts for the same plan, rows and stamp alone.

    Two files: the sums, named by what they are of; and a text that names them, written last.
    """

    plan: str
    number: int
    start: int
    stop: int
    row: int
    stamp: str
    checksums: tuple[int, ...]
    rows_used: int
    rows_read: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    seconds: float
    syrk_seconds: float
    rows_unlabelled: int = 0

    def save(self, directory: Path, sums: Mapping[Part, Adder]) -> None:
        """Keep these sums, instead of what was kept of this leaf before; once it returns they outlive a power cut."""
        save_held(self._sums(directory), sums)
        text = _text(directory, self.number)
        write_atomic(text, [seal(asdict(self), identity(text))], sync=True)
        for path in directory.glob(f"{self.number:06d}-*"):
            if path != self._sums(directory):
                path.unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path, number: int) -> Self | None:
        """The checkpoint of a leaf; None where there is none, or it is damaged."""
        try:
            body = unseal(read_plain(_text(directory, number)), identity(_text(directory, number)))
            tuples = ("checksums", "low", "high")
            if body is None:
                return None
            found = cls(**{**body, **{name: tuple(body[name]) for name in tuples}})
            return found if plausible(found) and found.start <= found.row <= found.stop else None
        except (FileNotFoundError, KeyError, TypeError):  # the last two: another version's
            return None

    def restore(self, directory: Path, of: Callable[[Part], Adder]) -> bool:
        """Read the sums into the empty adders that `of` gives, to the bit. False where they are absent, damaged or
        of another shape: the adders then hold rubbish."""
        return load_held(self._sums(directory), of)

    def receipt(self) -> Receipt:
        """What is left of the task once all of it is summed."""
        return Receipt(
            plan=self.plan, number=self.number, start=self.start, stop=self.stop,
            digest="".join(f"{crc:08x}" for crc in self.checksums), stamp=self.stamp, rows_used=self.rows_used,
            rows_dropped=self.stop - self.start - self.rows_used - self.rows_unlabelled, rows_read=self.rows_read,
            low=self.low, high=self.high, seconds=self.seconds, syrk_seconds=self.syrk_seconds,
            rows_unlabelled=self.rows_unlabelled,
        )  # fmt: skip

    @staticmethod
    def remove(directory: Path, number: int) -> None:
        """Delete what was kept of a leaf, if anything was."""
        _text(directory, number).unlink(missing_ok=True)
        for path in directory.glob(f"{number:06d}-*"):
            path.unlink(missing_ok=True)

    def _sums(self, directory: Path) -> Path:
        # The same rows have the same sums to the bit, whoever wrote them.
        what = [self.plan, self.start, self.stop, self.row, self.stamp, self.checksums]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        return directory / f"{self.number:06d}-{name}.sums"


def _text(directory: Path, number: int) -> Path:
    return directory / f"{number:06d}.json"
