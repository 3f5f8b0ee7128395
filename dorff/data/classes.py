"""Arrays of class labels, dorff's own codes or another's integers, booleans or text, read as one-hot targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.data.labels import MAX_LABELS, MISSING, Label, LabelTable, label_of, text_of
from dorff.errors import InputError

LARGEST = 2.0**53  # of the whole numbers that float64 tells apart
Codes = npt.NDArray[np.intp]


@final
@dataclass(frozen=True)
class Classes:
    """Targets that are class labels: the array `name`.

    `labels`, such as a model's, say which labels there are, and in which order; without them they are the
    array's own.
    """

    name: str
    labels: tuple[Label, ...] | None = None


@final
@dataclass(frozen=True)
class Coding:
    """What the stored values of an array of labels mean.

    `values`, sorted, are those that another's array holds; None where it holds codes 0, 1, ..., as dorff's do, and
    negative ones for none. `places` gives for each value (or code) its label's place in `labels`, -1 for none.
    """

    labels: tuple[Label, ...]
    places: tuple[int, ...]
    values: tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | None = None

    @classmethod
    def of_table(cls, table: LabelTable, classes: Classes, where: str) -> Coding:
        """Of an array that ingest wrote."""
        return cls(*_placed(table.labels, classes, where))

    @classmethod
    def of_values(cls, values: Sequence[Any], classes: Classes, where: str, *, boolean: bool) -> Coding:
        """Of another's array: `values` are all that it holds."""
        found = [label_of(bool(v) if boolean else v, where) for v in values]
        own = dict.fromkeys(label for label in found if label is not None)
        labels, places = _placed(tuple(own), classes, where)
        place = {None: MISSING} | dict(zip(own, places, strict=True))
        return cls(labels, tuple(place[label] for label in found), tuple(values))

    def codes(self, stored: npt.NDArray[Any], where: Callable[[int], str]) -> Codes:
        """Places in `labels` (n,) of stored values (n,); -1 where there is none.

        Raises InputError at a value that was not there when the data set was opened; `where` names its row.
        """
        places = np.array([*self.places, MISSING])
        if self.values is None:
            index = np.maximum(stored, MISSING).astype(np.intp)
            strange = index >= len(self.places)
        else:
            values = np.array(self.values, stored.dtype)
            index = np.searchsorted(values, stored)
            none = np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(len(stored), bool)
            strange = values[np.minimum(index, len(values) - 1)] != stored
            strange &= ~none
            index[none] = MISSING
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{where(row)}: holds the label {stored[row].item()!r}, which was not there when the data set was "
                "opened; open it again."
            )
        codes: Codes = places[index]
        return codes

    def one_hot(self, codes: Codes) -> npt.NDArray[np.float64]:
        """Rows (n, K) of zeros with a one at the label's place; of NaN where there is no label."""
        Y = np.zeros((len(codes), len(self.labels)))
        known = codes != MISSING
        Y[np.flatnonzero(known), codes[known]] = 1.0
        Y[~known] = np.nan
        return Y


def distinct(runs: Iterable[npt.NDArray[Any]], where: str) -> list[Any]:
    """The different values of runs (n,) of stored values, sorted, without NaN; InputError beyond 10,000."""
    seen: set[Any] = set()
    for run in runs:
        values = np.unique(run)
        seen.update((values[~np.isnan(values)] if values.dtype.kind == "f" else values).tolist())
        if len(seen) > MAX_LABELS:
            raise InputError(
                f"{where}: has more than {MAX_LABELS:,} different values, which are no classes; name it as a target, "
                "or name another array."
            )
        if any(isinstance(v, float) and abs(v) > LARGEST for v in values.tolist()):
            raise InputError(f"{where}: has labels beyond 2^53, which float64 cannot tell apart; renumber them.")
    return sorted(seen)


def _placed(own: tuple[Label, ...], classes: Classes, where: str) -> tuple[tuple[Label, ...], tuple[int, ...]]:
    """The labels to use, and the place there of each of the array's own."""
    if not own:
        raise InputError(f"{where}: holds no label in any row; fill some in, or name another array.")
    if classes.labels is None:
        return own, tuple(range(len(own)))
    place = {text_of(label): i for i, label in enumerate(classes.labels)}
    if unknown := [label for label in own if text_of(label) not in place]:
        raise InputError(
            f"{where}: holds labels other than the {len(place):,} wanted, such as {unknown[0]!r} ({len(unknown):,} in "
            "all); leave their rows out, or fit to them."
        )
    return tuple(classes.labels), tuple(place[text_of(label)] for label in own)
