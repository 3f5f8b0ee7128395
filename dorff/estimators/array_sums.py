"""Moments of rows in memory, Zarr or Dask, without durable state; what is known before; a second read of one fold."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar, cast

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from distributed import get_worker

from dorff import __version__
from dorff.data import RowBlock
from dorff.errors import InputError
from dorff.estimators.arrays import Deal, Rows, StoredRows, check_inside, chunks, finite, matrix, runs_of
from dorff.estimators.class_labels import OneHot, StoredLabels, one_hot
from dorff.features import FeatureMap, Recipe, endless, modes_of, periods_of
from dorff.features.recipe import period_box
from dorff.fit import Fitted
from dorff.frequencies import Lattice
from dorff.model import Model
from dorff.moments import (
    FloatArray,
    Folds,
    LatticeMoments,
    Moments,
    Part,
    Products,
    Sums,
    Toeplitz,
    check_patterns,
    merge_folds,
)
from dorff.moments.blas import pin, pinned
from dorff.passes import BlockSums, Question, RowSums, block_rows
from dorff.passes.blocks import LATTICE_ROWS, LatticeSums, product_rows, tight
from dorff.plan.sampled import FirstLook, linear_r2, sample_runs
from dorff.solvers import Setting

SAMPLE_RUNS, RUN_ROWS = 16, 64
FOLDS: Final = 5  # of which one is held out, where no `cv` says otherwise
PART_ROWS = 2**14  # that one thread sums, of arrays in memory and in Zarr
FEW_ROWS: Final = 2**11  # for which a Gram matrix takes hardly longer than exponentials, and has more digits
BLOCK_NUMBERS: Final = 2**21  # of features that are made at a time for Gram matrices
LATTICE_NUMBERS: Final = 2**17  # strengths of rows that are added to sums of exponentials at a time
MOST_ONES = 2**22  # numbers of one-hot rows made at a time

Run: TypeAlias = tuple[int, int]  # its first row, and the one after its last
S = TypeVar("S", bound=Sums)
Parts: TypeAlias = dict[Part, Sums]
Look: TypeAlias = tuple[FirstLook, RowBlock]  # with the rows, their inputs scaled

_pinning = threading.Lock()
Targets: TypeAlias = "Rows | OneHot"


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block, as before outside of it; nothing where another thread has seen to it. The
    setting is the process's, and only the thread that made it can take it back (threadpoolctl 3.8). So of fits at the
    same time in threads those that outlast the first may end with more BLAS threads: their last bits are not fixed."""
    if not _pinning.acquire(blocking=False):
        yield
        return
    try:
        with pinned():
            yield
    finally:
        _pinning.release()


@dataclass(frozen=True, eq=False)
class Drawing:
    """What is known before the pass: features, targets' shift y0 (q,), how to solve, folds, what a sample told; `box`
    (2, d) is that of a lattice's inputs."""

    features: FeatureMap
    y0: FloatArray
    setting: Setting
    recipe: Recipe
    seed: int
    deal: Deal
    looked: Look | None = None
    box: FloatArray | None = None

    def summing(self, precision: str, **options: Any) -> "ArraySums":
        """What sums the rows: exponentials, where they take no more memory than Gram matrices and a block of rows."""
        sampler, on = self.recipe.sampler, tight(self.features)
        box = None if self.box is None else endless(self.box, periods_of(sampler.config(), self.recipe.d))
        own = ArraySums(self.features, self.y0, self.deal, precision=precision, box=box, **options)
        if on is None or precision != "double" or not isinstance(sampler, Lattice):
            return own
        fast = replace(own, features=on, tolerance=sampler.tolerance)
        held = sum(piece.size for piece in fast.empty(1).empty((0, "")).held())
        return fast if held <= (on.m + 1 + len(self.y0)) ** 2 + BLOCK_NUMBERS // self.deal.count else own

    @property
    def sampled(self) -> FirstLook | None:
        """What a sample of the rows told, and a linear model of the folds of it."""
        if self.looked is None:
            return None
        looked, rows = self.looked
        return replace(looked, linear=linear_r2(rows.X, rows.Y, self.deal.of_rows(rows.numbers)))

    def model(self, fitted: Fitted, report: Mapping[str, Any] | None = None) -> Model:
        """The model of a fit; `report` is what else its own says."""
        solution, n = fitted.fit.solution, sum(sums.n for sums in fitted.sums.values())
        own = {"rows_used": n, "ridge": solution.ridge, "condition": solution.condition, "rung": solution.rung}
        info = {"report": own | dict(report or {}), "versions": {"dorff": __version__, "numpy": np.__version__}}
        if self.box is not None:
            info["data"] = dict(zip(("low", "high"), self.box.tolist(), strict=True))
        return fitted.model(self.features, self.recipe.sampler.config(), self.seed, info)


@dataclass(frozen=True, eq=False)
class ArraySums:
    """All that a pass over rows needs: the features, the targets' shift y0 (q,), and which fold a row is in.
    `class_weight` (q,) weighs one-hot rows; `partial` takes NaN for targets not observed, and leaves rows out that have
    none. `precision` is that of `BlockSums`; of a `tolerance` exponentials are summed, and written out as moments. A
    `question` is answered in the place of moments."""

    features: FeatureMap
    y0: FloatArray
    folds: Deal
    class_weight: FloatArray | None = None
    partial: bool = False
    precision: str = "double"
    box: FloatArray | None = None
    tolerance: float | None = None
    question: Question | None = None

    def of(self, X: Rows, Y: Targets, weights: FloatArray | None = None, *, first: int = 0, jobs: int = 1) -> Folds:
        """Moments of each fold and pattern of X (n, d) and Y (n, q): both Dask arrays of the same row chunks, or
        neither. `weights` (n,) are the rows', all 1 if None; the first row is number `first`. Parts of other arrays
        are summed in so many threads as `jobs`, and added in order: the bits do not depend on their number."""
        if self.tolerance is not None and X.shape[0] <= FEW_ROWS:
            return replace(self, tolerance=None).of(X, Y, weights, first=first, jobs=jobs)
        if isinstance(X, da.Array):
            return self._of_chunks(X, Y, weights, first)
        assert not isinstance(Y, da.Array)
        read = list(runs(X, Y))
        rows = PART_ROWS if self.tolerance is None else LATTICE_ROWS
        step = max(1, rows // max(read[0][1] - read[0][0], 1))
        parts = [read[start : start + step] for start in range(0, len(read), step)]

        def opened() -> tuple[ArrayReader, ArrayReader]:
            return ArrayReader(X, "X"), ArrayReader(Y, "y", partial=self.partial)

        readers = opened() if jobs == 1 else None

        def of_part(part_runs: list[tuple[int, int]]) -> Parts:
            sums = self.empty(part_runs[-1][1] - part_runs[0][0])
            inputs, targets = readers or opened()
            for start, stop in part_runs:
                rows = inputs.read(start, stop), targets.read(start, stop), weights_of(weights, [(start, stop)])
                self._add(sums, first + start, *rows)
            return self._total(sums)

        total: Parts = {}
        with ThreadPoolExecutor(jobs) as pool:
            for start in range(0, len(parts), jobs):  # no more at a time, as each holds its sums
                for sums in (pool.map if jobs > 1 else map)(of_part, parts[start : start + jobs]):
                    total = merge_folds(total, sums)
        return self._written(total)

    def empty(self, rows: int) -> RowSums:
        """Empty sums, for so many rows."""
        weight = self.class_weight
        if self.question is not None:
            return self.question.sums(self.features, min(product_rows(self.features.m + 1), max(rows, 1)), weight)
        if self.tolerance is not None:
            few = max(1, LATTICE_NUMBERS // (1 + len(self.y0)))
            return LatticeSums(self.features, self.y0, block_rows=few, tolerance=self.tolerance, class_weight=weight)
        block = min(block_rows(self.features.m + 1 + len(self.y0)), max(rows, 1))
        return BlockSums(self.features, self.y0, block_rows=block, class_weight=weight, precision=self.precision)

    def _total(self, sums: RowSums) -> Parts:
        slopes = self.question is not None and not self.question.curved
        return dict(sums.total(Products if slopes else Moments if self.tolerance is None else Toeplitz))

    def _written(self, total: Parts) -> Folds:
        """The moments of sums; of exponentials, one after the other in their place."""
        if self.tolerance is None:
            return cast(Folds, total)
        modes = modes_of(self.features)
        of = {part: LatticeMoments.of(cast(Toeplitz, total.pop(part))) for part in list(total)}
        return {part: sums.on(modes.modes, modes.extents).gram() for part, sums in of.items()}

    def _add(self, sums: RowSums, first: int, X: FloatArray, Y: FloatArray, weights: FloatArray | None) -> None:
        rows = RowBlock(np.arange(first, first + len(X)), X, Y, weights)
        if self.partial and not (some := np.asarray(~np.isnan(Y).all(axis=1))).all():
            rows = rows[some]
        if self.box is not None:
            check_inside(self.box, (rows := rows.weighty()).X)
        fold_of = None if self.folds.count == 1 else self.folds.of_rows(rows.numbers)
        for fold in range(self.folds.count):
            dealt = rows if fold_of is None else rows[fold_of == fold]
            if len(dealt):
                sums.add(dealt.X, dealt.Y, fold, partial=self.partial, weights=dealt.weights)

    def of_chunk(self, first: int, X: FloatArray, Y: FloatArray, weights: FloatArray | None = None) -> Parts:
        """Sums of the chunk whose first row is number `first`; a Dask task."""
        pin_worker()
        sums = self.empty(len(X))
        if len(X):
            self._add(sums, first, matrix(X, "X", first), matrix(Y, "y", first, partial=self.partial), weights)
        return self._total(sums)

    def _of_chunks(self, X: da.Array, Y: Any, weights: FloatArray | None, before: int) -> Folds:
        """A task a chunk, merged by a tree over chunk numbers: the bits depend on the chunks, not on who ran them."""
        shared, task, merge = delayed(self), delayed(ArraySums.of_chunk), delayed(_merged)
        nodes = [
            task(shared, before + first, x, y, weights_of(weights, [(first, first + count)]))
            for first, count, x, y in chunks(X, Y)
        ]
        while len(nodes) > 1:
            pairs = zip(nodes[::2], nodes[1::2], strict=False)
            nodes = [merge(left, right) for left, right in pairs] + nodes[len(nodes) // 2 * 2 :]
        return self._written(nodes[0].compute())


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows that have come so far: what was known before the first, their sums, and how many there were."""

    drawing: Drawing
    summing: ArraySums
    sums: Folds = field(default_factory=dict)
    rows: int = 0

    def added(self, X: Rows, Y: Targets, weights: FloatArray | None, jobs: int) -> "Stream":
        """With rows as of `ArraySums.of`. InputError for another number of targets."""
        if Y.shape[1] != len(self.drawing.y0):
            raise InputError(f"y has {Y.shape[1]} targets, but partial_fit began with {len(self.drawing.y0)}")
        sums = self.summing.of(X, Y, weights, first=self.rows, jobs=jobs)
        return replace(self, sums=_merged(self.sums, sums) if self.sums else sums, rows=self.rows + X.shape[0])

    def by_gram(self, X: Rows, Y: Targets, weights: FloatArray | None, jobs: int) -> "Stream | None":
        """The same rows by a Gram matrix, which has more digits; None where it is, or earlier rows are gone."""
        if self.summing.tolerance is None or self.rows > X.shape[0] or self.rows <= FEW_ROWS:
            return None
        return replace(self, summing=replace(self.summing, tolerance=None), sums={}, rows=0).added(X, Y, weights, jobs)


def pin_worker() -> None:
    """One BLAS thread where this is a cluster's worker; a fit's own process is inside its `one_thread`."""
    try:
        get_worker()
    except ValueError:  # how distributed says that it is none
        return
    pin()


def _merged(left: dict[Part, S], right: dict[Part, S]) -> dict[Part, S]:
    """Fold by fold sums, in new memory: a Dask task may not write over what another may ask for again."""
    check_patterns(left.keys() | right.keys())
    return left | right | {fold: left[fold] + right[fold] for fold in left.keys() & right.keys()}


def sampled_runs(n: int) -> list[tuple[int, int]]:
    """(start, stop) of the rows that scales, means and the median distance come from: all where there are few, else
    runs spread evenly. They depend on n alone, so that every kind of array gives the same constants."""
    return sample_runs(0, n, SAMPLE_RUNS, RUN_ROWS)


@dataclass(frozen=True, eq=False)
class RowsRead:
    """Runs of rows that were read together: a chunk that several of them are cut from is read, or made, once."""

    rows: Mapping[Run, tuple[FloatArray, FloatArray]]

    @classmethod
    def of(cls, X: Rows, Y: Targets, runs: Iterable[Run], *, partial: bool = False) -> "RowsRead":
        some = sorted(set(runs))
        if isinstance(X, da.Array):
            assert isinstance(Y, da.Array)
            chunks_x, chunks_y = compute([X[a:b] for a, b in some], [Y[a:b] for a, b in some])
            xs = [matrix(values, "X", a) for values, (a, _) in zip(chunks_x, some, strict=True)]
            ys = [matrix(values, "y", a, partial=partial) for values, (a, _) in zip(chunks_y, some, strict=True)]
        else:
            assert not isinstance(Y, da.Array)
            readers = ArrayReader(X, "X"), ArrayReader(Y, "y", partial=partial)
            xs, ys = ([reader.read(a, b) for a, b in some] for reader in readers)
        return cls(dict(zip(some, zip(xs, ys, strict=True), strict=True)))

    def __getitem__(self, runs: Sequence[Run]) -> tuple[FloatArray, FloatArray]:
        """The rows X (k, d), Y (k, q) of these runs."""
        xs, ys = zip(*(self.rows[run] for run in runs), strict=True)
        return np.concatenate(xs), np.concatenate(ys)


def sample(X: Rows, Y: Targets) -> tuple[FloatArray, FloatArray]:
    some = sampled_runs(int(X.shape[0]))
    return RowsRead.of(X, Y, some)[some]


def weights_of(weights: FloatArray | None, runs: Sequence[Run]) -> FloatArray | None:
    """Of weights (n,) those of the rows of these runs; None where there are none."""
    return None if weights is None else np.concatenate([weights[start:stop] for start, stop in runs])


class ArrayReader:
    """Finite rows of an array in memory or in Zarr. Keeps the chunks of the last read, so that targets whose chunks
    are longer than the inputs' are not decoded again for every run."""

    def __init__(self, rows: FloatArray | StoredRows | OneHot, name: str, *, partial: bool = False) -> None:
        self._classes = rows.classes if isinstance(rows, OneHot) else None
        self._rows = rows.labels if isinstance(rows, OneHot) else rows
        self._name, self._partial = name, partial
        # What is in memory has been checked by scikit-learn.
        self._start, self._kept = 0, self._rows if isinstance(self._rows, np.ndarray) else self._rows[:0]

    def read(self, start: int, stop: int) -> FloatArray:
        kept = self._start <= start <= stop <= self._start + len(self._kept)
        if not isinstance(self._rows, np.ndarray) and not kept:
            unit = self._rows.unit_rows
            self._start = start // unit * unit
            self._kept = self._rows[self._start : -(-stop // unit) * unit]
            if not isinstance(self._rows, StoredLabels):
                finite(self._kept, self._name, self._start, partial=self._partial)
        values: Any = self._kept[start - self._start : stop - self._start]
        return values if self._classes is None else one_hot(values, self._classes)


def runs(X: FloatArray | StoredRows, Y: FloatArray | StoredRows | OneHot) -> Iterator[tuple[int, int]]:
    """Runs of rows by which to read: whole chunks of the inputs, or of the targets where only they are stored."""
    for rows in (X, Y.labels if isinstance(Y, OneHot) else Y):
        if isinstance(rows, StoredRows | StoredLabels):
            return runs_of(len(rows), rows.unit_rows)
    # One-hot rows are made anew, a number for each class.
    step = max(1, min(PART_ROWS, MOST_ONES // Y.shape[1])) if isinstance(Y, OneHot) else PART_ROWS
    return ((start, min(start + step, len(X))) for start in range(0, len(X), step))


def ends_of(X: Rows, weights: FloatArray | None = None) -> FloatArray:
    """The least and the largest of each input (2, d) of rows X (n, d), those of weight (n,) 0 left out."""
    used = np.ones(len(X), bool) if weights is None else weights > 0
    if isinstance(X, da.Array):
        rows = X.rechunk({0: tuple(one for one in X.chunks[0] if one)})  # no chunk is empty
        some = da.from_array(used, chunks=(rows.chunks[0],))[:, None]
        return np.asarray(compute(da.where(some, rows, np.inf).min(axis=0), da.where(some, rows, -np.inf).max(axis=0)))
    reader, low, high = ArrayReader(X, "X"), np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for start, stop in runs(X, X):
        part = reader.read(start, stop)[used[start:stop]]
        low, high = np.vstack([low, part]).min(axis=0), np.vstack([high, part]).max(axis=0)
    return np.array([low, high])


def lattice_box(sampler: Lattice, X: Rows, weights: FloatArray | None = None) -> FloatArray:
    """The box (2, d) of a lattice for rows X (n, d) of `weights` (n,): as it is given, or as the rows are."""
    d = int(X.shape[1])
    if sampler.box is not None and len(sampler.box) != d:
        raise InputError(f"sampler: lattice: box: wanted the ends of {d} inputs, not of {len(sampler.box)}; correct it")
    box = ends_of(X, weights) if sampler.box is None else np.array(sampler.box).T
    return period_box(box, periods_of(sampler.config(), d))
