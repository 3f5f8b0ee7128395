"""What estimators are given: arrays of any kind as rows of float64, and of each row its weight and its fold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

import dask.array as da
import numpy as np
import numpy.typing as npt
import zarr
from sklearn.model_selection import check_cv
from zarr.storage import LocalStore, MemoryStore

from dorff.data import Dataset
from dorff.data.nodes import open_array
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray

READ_ROWS = 2048  # rows read at a time from a stored array, or one run of its chunks where those hold more


@final
@dataclass(frozen=True)
class StoredRows:
    """A Zarr array in a local folder as rows (n, columns) of float64. Small, may be pickled, and read by slices.

    The presence of every chunk is checked before it is read, so that none is ever taken for zeros; values packed
    by the CF conventions are unpacked, as everywhere in dorff.
    """

    name: str
    dataset: Dataset
    ndim: int

    @classmethod
    def of(cls, array: zarr.Array[Any], name: str) -> StoredRows:
        """`name` is the argument's, for messages. InputError where the array is not one of 1 or 2 dimensions."""
        assert isinstance(array.store, LocalStore)
        directory = (Path(array.store.root) / array.path).absolute()
        stored = open_array(directory.parent, directory.name)
        n, d = stored.rows, stored.columns
        outer, inner = max(1, stored.files.outer[0]), max(1, stored.files.inner[0])
        columns = tuple(f"{name}{column}" for column in range(d))
        rows = Dataset(str(directory.parent), (directory.name,), (), n, d, 0, outer, inner, columns, ())
        return cls(name, rows, array.ndim)

    @property
    def shape(self) -> tuple[int, int]:
        return self.dataset.n, self.dataset.d

    @property
    def dtype(self) -> np.dtype[np.float64]:
        return np.dtype(np.float64)

    @property
    def unit_rows(self) -> int:
        """Rows of a chunk: reading multiples of it decodes none twice."""
        return self.dataset.unit_rows

    def __len__(self) -> int:
        return self.dataset.n

    def __getitem__(self, key: slice | tuple[slice, ...]) -> FloatArray:
        """Rows of a slice without step; of a tuple of slices the second picks columns, as Dask asks."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        start, stop, _ = rows.indices(self.dataset.n)
        values, _ = self.dataset.read(start, max(start, stop))
        return np.ascontiguousarray(values[:, columns[0]]) if columns else values


Rows: TypeAlias = "FloatArray | StoredRows | da.Array"
Deferred = StoredRows | da.Array  # whose values are read when they are needed


def runs_of(rows: int, unit: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of whole units, of READ_ROWS rows where units are smaller."""
    step = unit * max(1, READ_ROWS // unit)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def unwrap(values: Any, name: str) -> Any:
    """xarray's data, a Zarr array's rows (in a local folder) or values (in memory), a Dask array of numbers; anything
    else as it is, for scikit-learn to check. `name` is the argument's, for messages."""
    values = opened(values, name, StoredRows.of)
    if isinstance(values, StoredRows | da.Array):
        _check(values, name)
    return values


def opened(values: Any, name: str, of_store: Callable[[zarr.Array[Any], str], Any]) -> Any:
    """What `unwrap` gives, unchecked; a Zarr array in a local folder is what `of_store` makes of it."""
    if type(values).__module__.partition(".")[0] == "xarray" and hasattr(values, "data"):
        values = values.data
    if isinstance(values, zarr.Group):
        raise InputError(f"{name} is a Zarr group; give one of its arrays, such as group['x']")
    if hasattr(values, "to_dask_array"):
        raise InputError(f"{name} is a Dask data frame; give its .to_dask_array(lengths=True)")
    if not isinstance(values, zarr.Array):
        return values
    if isinstance(values.store, LocalStore):
        return of_store(values, name)
    if isinstance(values.store, MemoryStore):
        return np.asarray(values[...])
    raise InputError(
        f"{name} is a Zarr array in a {type(values.store).__name__}, where lost chunks cannot be told from zeros; "
        "copy it to a local folder first, or give a NumPy array"
    )


def _check(values: StoredRows | da.Array, name: str) -> None:
    wanted = "(rows, columns)" if name == "X" else "(rows, columns) or (rows,)"
    if values.ndim != 2 and (name, values.ndim) != ("y", 1):
        raise InputError(f"{name} must be {wanted}, but has {values.ndim} dimensions; reshape it first")
    if values.dtype.kind not in "buif":
        raise InputError(f"{name} must hold real numbers, not {values.dtype}; convert it first")


def finite(values: FloatArray, name: str, first: int, *, partial: bool = False) -> FloatArray:
    """`values` (n, columns), whose first row is number `first`; InputError at a number that is not finite. `partial`
    lets NaN pass, for a number that was not observed."""
    wrong = np.isinf(values) if partial else ~np.isfinite(values)
    if wrong.any():
        row, column = (int(at) for at in np.argwhere(wrong)[0])
        raise InputError(
            f"{name}, row {first + row}, column {column}: expected a finite number, got {values[row, column]} "
            "(NaN or infinity); mend the data or drop the row"
        )
    return values


def finite_in(values: FloatArray, read: npt.NDArray[np.bool_] | None, name: str, first: int) -> FloatArray:
    """As `finite` of the columns `read` (columns,) alone, with zeros for the others; of all where it is None."""
    return finite(values if read is None else np.where(read, values, 0.0), name, first)


def known(values: da.Array, name: str) -> da.Array:
    """A Dask array whose chunks' lengths are known; InputError for others."""
    if any(np.isnan(size) for size in values.chunks[0]):
        raise InputError(f"{name} has chunks of unknown length; call {name}.compute_chunk_sizes() first")
    return values


def with_rows(values: Any, name: str) -> Rows:
    """Targets or inputs as a matrix (n, columns): a column where they are 1-d."""
    if isinstance(values, StoredRows):
        return values
    if values.ndim == 1:
        values = values[:, None]
    if isinstance(values, da.Array):
        wide: da.Array = known(values, name).rechunk({1: -1})
        return wide
    return np.ascontiguousarray(values, dtype=np.float64)


def together(X: Rows, Y: Any) -> tuple[Rows, Any]:
    """Inputs (n, d) and targets (n, q), as Dask arrays of the same row chunks (X's) where one of them is Dask's."""
    (n, _), (rows, _) = X.shape, Y.shape
    if n != rows or n == 0:
        raise InputError(f"X has {n} rows and y has {rows}; give one target row per input row, and at least one")
    if isinstance(Y, da.Array):
        X = X if isinstance(X, da.Array) else da.from_array(X, chunks=(Y.chunks[0], -1))
    if isinstance(X, da.Array):
        Y = Y.rechunk({0: X.chunks[0]}) if isinstance(Y, da.Array) else da.from_array(Y, chunks=(X.chunks[0], -1))
    return X, Y


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
    def from_splits(cls, cv: Any, n: int) -> GivenFolds:
        """Of a splitter of scikit-learn, or its (training rows, held-out rows) pairs, of n rows. InputError unless
        every row is held out once and trained on otherwise: the folds' sums then make every training set."""
        fold_of = np.full(n, -1, dtype=np.int64)
        try:
            splits = check_cv(cv).split(np.empty((n, 1)))
            pairs = [[np.arange(n)[np.asarray(part)] for part in (train, test)] for train, test in splits]
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"cv must be None, a number of folds, or splits of the {n} rows ({error})") from None
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
