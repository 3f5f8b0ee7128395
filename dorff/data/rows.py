"""A run of rows as a pass takes them: inputs, targets, and each row's number, weight and group."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.metadata import Attributes
from dorff.data.nodes import node, open_array, stored_columns
from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
EXACT: Final = 2**53  # whole numbers up to here are the same as float64


@dataclass(frozen=True)
class Column:
    """One column of a store: number `place` of `array`. `name` is what it was asked for by."""

    name: str
    array: str
    place: int

    @classmethod
    def find(cls, group: Path, attributes: Attributes, name: str, arrays: Sequence[str]) -> Column:
        """An array of one column by its name, else a column by its own: one that ingest named, or of `arrays`.
        InputError where there is none, or where an array of that name has several columns."""
        held = attributes.get("columns")
        names = dict(held) if isinstance(held, dict) else {}
        names |= {one: stored_columns(attributes, one, open_array(group, one, text=True).columns) for one in arrays}
        if node(group / name).is_array:
            if (width := open_array(group, name).columns) != 1:
                raise InputError(
                    f"{group}: wanted one column, but array {name!r} has {width}; name one of them: "
                    f"{', '.join(stored_columns(attributes, name, width))}."
                )
            return cls(name, name, 0)
        for array, columns in names.items():
            if name in columns:
                return cls(name, array, list(columns).index(name))
        open_array(group, name)  # says what arrays there are
        raise AssertionError


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows `numbers` (n,) of a data set: X (n, d), Y (n, q), and their weights and groups' keys, (n,) both. `weights`
    is None where all weigh 1, `groups` where rows are not grouped."""

    numbers: npt.NDArray[np.int64]
    X: FloatArray
    Y: FloatArray
    weights: FloatArray | None = None
    groups: Keys | None = None

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, keep: npt.NDArray[np.bool_ | np.intp] | slice) -> RowBlock:
        """The rows that `keep` marks (n,) or numbers; a run of them is in the same memory."""
        weights = None if self.weights is None else self.weights[keep]
        groups = None if self.groups is None else self.groups[keep]
        return RowBlock(self.numbers[keep], self.X[keep], self.Y[keep], weights, groups)

    @classmethod
    def joined(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """The rows of all blocks; of several without their groups."""
        if len(blocks) == 1:
            return blocks[0]
        numbers, X, Y = (np.concatenate([getattr(one, name) for one in blocks]) for name in ("numbers", "X", "Y"))
        weights = [one.weights for one in blocks if one.weights is not None]
        return cls(numbers, X, Y, np.concatenate(weights) if weights else None)

    def weighty(self) -> RowBlock:
        """Without the rows of weight 0, which count for nothing, whatever they hold."""
        return self if self.weights is None or self.weights.all() else self[self.weights != 0]

    def whole(self, *, partial: bool = False) -> npt.NDArray[np.bool_]:
        """(n,): which rows have finite inputs, targets (any of them with `partial`, if they have some) and weight."""
        enough = np.any if partial and self.Y.shape[1] else np.all
        good: npt.NDArray[np.bool_] = np.isfinite(self.X).all(axis=1) & enough(np.isfinite(self.Y), axis=1)
        return good if self.weights is None else good & np.isfinite(self.weights)

    def unlabelled(self) -> int:
        """How many rows weigh anything, and have finite inputs and no target."""
        rows = self.weighty()
        return int(np.count_nonzero(np.isfinite(rows.X).all(axis=1) & ~np.isfinite(rows.Y).any(axis=1)))

    def checksums(self, before: Sequence[int] = ()) -> list[int]:
        """CRC32 of the values that there are of X, Y, weights and groups, each continued from `before`."""
        arrays = [array.data for array in (self.X, self.Y, self.weights, self.groups) if array is not None]
        return [zlib.crc32(values, crc) for values, crc in zip(arrays, before or [0] * len(arrays), strict=True)]


class Reads:
    """Counts the rows that have been read."""

    def __init__(self) -> None:
        self.rows = 0


def group_keys(values: npt.NDArray[Any]) -> Keys:
    """A key (n,) for each value (n,), the same for equal ones: whole numbers, or float64. Up to 2^53 in size a
    number's key does not depend on its type; 0 and -0 are one, and all NaN: rows without a group are a group."""
    real = values.astype(np.float64) + 0.0  # -0 + 0 is 0
    if values.dtype.kind != "f":
        return np.where((values >= -EXACT) & (values <= EXACT), real.view(np.uint64), values.view(np.uint64))
    real[np.isnan(real)] = np.nan
    return real.view(np.uint64)
