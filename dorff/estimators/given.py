"""What a caller says of each row: its weight, and the fold it is in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, final

import dask.array as da
import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.estimators.arrays import StoredRows, unwrap
from dorff.kernels.scalar import FloatArray

Numbers = npt.NDArray[np.int64]


class Deal(Protocol):
    """Which of `count` folds a row is in."""

    @property
    def count(self) -> int: ...

    def of_rows(self, rows: Numbers) -> Numbers:
        """Fold numbers (k,) of rows with these numbers (k,)."""


@final
@dataclass(frozen=True, eq=False)
class GivenFolds:
    """Folds row by row, `of` (n,)."""

    of: Numbers

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def of_rows(self, rows: Numbers) -> Numbers:
        return self.of[rows]

    @classmethod
    def balanced(cls, codes: Numbers, count: int, seed: int) -> GivenFolds:
        """As even as can be, over all rows and over those of each code (n,): of few rows that a hash deals some folds
        have none."""
        n = len(codes)
        order = np.lexsort((np.random.default_rng(seed).permutation(n), codes))
        fold_of = np.empty(n, dtype=np.int64)
        fold_of[order] = np.arange(n) % count
        return cls(fold_of)

    @classmethod
    def from_splits(cls, splits: Iterable[Any], n: int) -> GivenFolds:
        """Of (training rows, held-out rows) pairs of n rows, such as scikit-learn's splitters make. InputError unless
        every row is held out once and trained on otherwise: the folds' sums then make every training set."""
        fold_of = np.full(n, -1, dtype=np.int64)
        try:
            pairs = [[np.arange(n)[np.asarray(part)] for part in (train, test)] for train, test in splits]
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"cv must be None, a number of folds or splits of the {n} rows ({error})") from None
        for number, (train, test) in enumerate(pairs):
            whole = np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
            if not whole or np.any(fold_of[test] >= 0):
                raise InputError(
                    f"cv: split {number} is none of a partition; hold every row out once and train on all others, as "
                    "KFold, GroupKFold and LeaveOneGroupOut do (not TimeSeriesSplit or ShuffleSplit)"
                )
            fold_of[test] = number
        if len(pairs) < 2 or np.any(fold_of < 0):
            raise InputError("cv: the splits must be two or more and hold every row out once")
        return cls(fold_of)


def row_weights(weights: Any, n: int) -> FloatArray | None:
    """Weights (n,) in memory from anything that X may be; None where there are none.

    InputError unless they are finite, not negative, not all zero, one a row.
    """
    if weights is None:
        return None
    try:
        values = unwrap(weights, "y") if not isinstance(weights, da.Array) else weights
        numbers = np.asarray(values[:] if isinstance(values, StoredRows) else values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers, one a row ({error})") from None
    if isinstance(values, StoredRows):
        numbers = numbers[:, 0] if values.ndim == 1 else numbers
    if numbers.shape != (n,):
        raise InputError(f"sample_weight must have one number for each of the {n} rows; got shape {numbers.shape}")
    if not (np.isfinite(numbers).all() and np.all(numbers >= 0) and numbers.any()):
        raise InputError(
            "sample_weight must be finite and not negative, and no fit is left where all weights are zero"
        )
    return numbers
