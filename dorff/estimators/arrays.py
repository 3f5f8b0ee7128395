"""What estimators are given: arrays of any kind as rows of float64, and of each row its weight and its fold."""

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, cast

import dask.array as da
import numpy as np
import numpy.typing as npt
import psutil
import scipy.sparse
from sklearn.model_selection import GroupKFold, check_cv

from dorff.data.nodes import StoredArray
from dorff.data.units import Conversion
from dorff.errors import DoesNotFitError, InputError
from dorff.moments import FloatArray, Folds, Moments, pooled
from dorff.passes import FoldRule
from dorff.solvers import Choice, Score, Setting, Spread, squared_errors

Flags: TypeAlias = npt.NDArray[np.bool_]
MOST_PARTS = 64  # of rows, by splits that are no partition
READ_ROWS = 2048  # rows read at a time from a stored array, or one run of its chunks where those hold more
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StoredRows:
    """A Zarr array in a local folder, or a sparse matrix, as rows (n, columns) of float64. Read by slices. Chunks are
    checked to be there, so that none is taken for zeros; values packed by the CF conventions are unpacked.
    `conversions` are those of columns, by their places, to other units."""

    name: str
    source: StoredArray | scipy.sparse.csr_array
    conversions: Mapping[int, Conversion] = field(default_factory=dict)
    dtype: ClassVar = np.dtype(np.float64)

    @property
    def ndim(self) -> int:
        return len(self.source.files.shape) if isinstance(self.source, StoredArray) else 2

    @property
    def shape(self) -> tuple[int, int]:
        if isinstance(self.source, StoredArray):
            return self.source.rows, self.source.columns
        return self.source.shape[0], self.source.shape[1]

    @property
    def unit_rows(self) -> int:
        """Rows of a chunk: reading multiples of it decodes none twice."""
        return max(1, self.source.files.inner[0]) if isinstance(self.source, StoredArray) else 1

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | tuple[slice, ...]) -> FloatArray:
        """Rows of a slice without step; of a tuple of slices the second picks columns, as Dask asks."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        start, stop, _ = rows.indices(len(self))
        if isinstance(self.source, StoredArray):
            values = self.source.values(start, max(start, stop), np.float64, " or write it again")
        else:
            values = self.source[start:stop].toarray()
        for place, conversion in self.conversions.items():
            values[:, place] = conversion.convert(values[:, place], f"{self.name}, column {place}")
        return np.ascontiguousarray(values[:, columns[0]]) if columns else values


Rows: TypeAlias = "FloatArray | StoredRows | da.Array"
Deferred = StoredRows | da.Array  # whose values are read when they are needed


def runs_of(rows: int, unit: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of whole units, of READ_ROWS rows where units are smaller."""
    step = unit * max(1, READ_ROWS // unit)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def finite(values: FloatArray, name: str, first: int, *, partial: bool = False) -> FloatArray:
    """`values` (n, columns), the first row is number `first`; InputError if one is not finite (`partial`: or NaN)."""
    wrong = np.isinf(values) if partial else ~np.isfinite(values)
    if wrong.any():
        row, column = (int(at) for at in np.argwhere(wrong)[0])
        problem = f"{name}, row {first + row}, column {column}: expected a finite number"
        raise InputError(f"{problem}, got {values[row, column]} (NaN or infinity); mend the data or drop the row")
    return values


def matrix(values: Any, name: str, first: int, *, partial: bool = False) -> FloatArray:
    """One chunk's or slice's values as `finite` float64, C-contiguous."""
    return finite(np.ascontiguousarray(values, dtype=np.float64), name, first, partial=partial)


def finite_in(values: FloatArray, read: Flags | None, name: str, first: int) -> FloatArray:
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
        return cast(da.Array, known(values, name).rechunk({1: -1}))
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


def chunks(X: da.Array, Y: da.Array) -> Iterator[tuple[int, int, Any, Any]]:
    """(first row, rows, X's chunk, Y's) of two Dask arrays of the same row chunks, the chunks to be computed."""
    sizes = X.chunks[0]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
    # Optimised apart, a chunk that X and Y are both cut from would be made twice.
    parts = (part.to_delayed(optimize_graph=False).ravel() for part in (X, Y))
    return zip(starts, sizes, *parts, strict=True)


@dataclass(frozen=True, eq=False)
class GivenFolds:
    """Folds row by row, `of` (n,); and, where the splits are no partition, what each `uses` them for, (splits, folds):
    0 nothing, 1 to train on, 2 to hold out. They are dealt `by` groups where some were given."""

    of: Numbers
    uses: Numbers | None = None
    by: str = "splits"

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def of_rows(self, rows: Numbers) -> Numbers:
        return self.of[rows]

    @classmethod
    def balanced(cls, codes: Numbers, count: int, seed: int) -> "GivenFolds":
        """As even as can be, over all rows and those of each code (n,): a hash leaves folds of few rows empty."""
        n = len(codes)
        order = np.lexsort((np.random.default_rng(seed).permutation(n), codes))
        fold_of = np.empty(n, dtype=np.int64)
        fold_of[order] = np.arange(n) % count
        return cls(fold_of)

    @classmethod
    def from_splits(cls, cv: Any, n: int, y: Any = None, groups: Any = None) -> "GivenFolds":
        """Of a splitter of scikit-learn, or its (training rows, held-out rows) pairs, of n rows. Where these are no
        partition folds are the parts that all of them cut the rows into, of whose sums each training set's is made.
        InputError for splits that are none, and that cut the rows into more than MOST_PARTS."""
        try:
            splits = check_cv(cv, y).split(np.empty((n, 1)), y, groups)
            pairs = [[np.arange(n)[np.asarray(part)] for part in (train, test)] for train, test in splits]
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"cv must be None, a number of folds, or splits of the {n} rows ({error})") from None
        uses = np.zeros((n, len(pairs)), dtype=np.int8)  # of a row in a split: 1 to train on, 2 held out
        for number, pair in enumerate(pairs):
            for use, rows in enumerate(pair, 1):
                if not len(rows) or len(np.unique(rows)) < len(rows) or uses[rows, number].any():
                    raise InputError(f"cv: split {number} has no rows to train on or to hold out, or names one twice")
                uses[rows, number] = use
        held = uses == 2
        if len(pairs) > 1 and np.all(held.sum(axis=1) == 1) and np.all(uses > 0):
            return cls(held.argmax(axis=1))
        kinds, fold_of = np.unique(uses, axis=0, return_inverse=True)
        if not pairs or len(kinds) > MOST_PARTS:
            wanted = f"cut the rows into {MOST_PARTS} parts at most, each of which needs sums of its own"
            came = f"{len(pairs)} cut them into {len(kinds)}"
            raise InputError(f"cv: the splits must be one or more, and {wanted}; {came}; use fewer")
        return cls(fold_of.ravel(), kinds.T.astype(np.int64))


Deal: TypeAlias = FoldRule | GivenFolds  # which of `count` folds a row is in


def dealt(cv: Any, n: int, rule: FoldRule, *, seen: Flags | None = None, y: Any = None, groups: Any = None) -> Deal:
    """Which folds the n rows are in, which of all rows are those that are `seen`, where given; by the `rule`, but for
    the number of folds. `y` and `groups`, a label a row, are for a splitter; rows of a group are in one fold,
    and there are no more folds than groups. InputError for groups without folds."""
    if groups is not None:
        if cv is None:
            raise InputError("groups: folds alone look at them; give cv too, such as cv=5")
        groups = np.asarray(groups)
        if (count := len(np.unique(groups))) < 2:
            remedy = "give two or more, or leave them out"
            raise InputError(f"groups: all rows are in one, and none can be held out; {remedy}")
        cv = GroupKFold(min(int(cv), count)) if isinstance(cv, numbers.Integral) else cv
    if seen is not None and isinstance(cv, numbers.Integral):
        return GivenFolds.balanced(np.zeros(n, np.int64), int(cv), rule.seed)
    if cv is None or isinstance(cv, numbers.Integral):
        return replace(rule, count=int(cv or 1))
    y = y if isinstance(y, np.ndarray) else None
    folds = GivenFolds.from_splits(cv, n if seen is None else len(seen), y, groups)
    folds = folds if groups is None else replace(folds, by="groups")
    return folds if seen is None else replace(folds, of=folds.of[seen])


def dealt_by(deal: Deal) -> str | None:
    """What is dealt to folds; None of one fold, and of splits that are no partition."""
    if isinstance(deal, GivenFolds):
        return deal.by if deal.uses is None else None
    return None if deal.count == 1 else "rows" if deal.run == 1 else "blocks"


def choose_by_splits(uses: Numbers, sums: Folds, settings: Sequence[Setting], ridges: Sequence[float]) -> Choice:
    """As `solvers.choose` by k-fold, of splits that are no partition: `uses` (splits, folds) as of `GivenFolds`."""
    squares: list[list[FloatArray]] = [[] for _ in range(len(settings) * len(ridges))]
    heldout: list[Moments] = []
    for number, use in enumerate(uses):
        train, held = ([one for (fold, _), one in sums.items() if use[fold] == kind and one.n] for kind in (1, 2))
        if not train or not held:
            raise InputError(f"cv: split {number} has no rows with targets to train on or to hold out")
        fits = [(setting, fit) for setting in settings for fit in setting.solve(pooled([train]), ridges)]
        for errors, (setting, fit) in zip(squares, fits, strict=True):
            errors.append(squared_errors(held, fit.W, fit.bias, setting.observe))
        heldout += held
    errors, spread = np.sum(squares, axis=1).reshape(len(settings), len(ridges), -1), Spread.of_moments(heldout)
    entries = float(sum(one.corner[0, 0] * np.count_nonzero(one.mask) for one in heldout))
    r2 = [setting.r2.score(own, spread) for setting, own in zip(settings, errors, strict=True)]
    table = tuple(
        Score(at, ridge, float(left.sum() / entries), setting.m, r2=None if np.isnan(one) else float(one))
        for at, setting in enumerate(settings)
        for ridge, left, one in zip(ridges, errors[at], r2[at], strict=True)
    )
    best = min(table, key=lambda score: score.least)
    (fit,) = settings[best.candidate].solve(pooled([list(sums.values())]), [best.ridge])
    return Choice(best.candidate, fit, table, best.m)


def check_memory(m: int, q: int) -> None:
    """DoesNotFitError where the sums of m features and q targets, and a system made of them, are beyond all memory."""
    wanted, free = 16 * (m + q + 1) ** 2, psutil.virtual_memory().available
    if wanted > free:
        problem = f"n_features = {m} needs {wanted / 2**30:.1f} GiB for sums and a system of (m + q + 1)^2 numbers each"
        raise DoesNotFitError(f"{problem}; {free / 2**30:.1f} GiB of memory are free; lower n_features")


@contextmanager
def enough_memory(remedy: str) -> Iterator[None]:
    """What memory did not suffice for is a DoesNotFitError: what was asked for, what there is, and the `remedy`."""
    try:
        yield
    except MemoryError as error:
        free = psutil.virtual_memory().available / 2**30
        problem = f"{str(error) or 'out of memory'}; {free:.1f} GiB of memory are free"
        raise DoesNotFitError(f"{problem}; {remedy}") from error


def check_inside(box: FloatArray, X: FloatArray) -> None:
    """InputError for rows X (n, d) outside of a lattice's box (2, d)."""
    if np.any(box[0] > X) or np.any(box[1] < X):
        problem = f"X: rows lie outside of the box of the sampler's lattice, {box.T.tolist()}"
        raise InputError(f"{problem}; give a Lattice(box=...) that holds all rows, and fit these anew")
