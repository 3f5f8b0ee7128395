"""How rows are cut into leaves, the units of work, and into blocks, which are featurized at a time and added to sums:
of the features' products, or of exponentials where frequencies lie on a lattice."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np

from dorff import moments
from dorff.engine.base import leave_spare, spare_square
from dorff.errors import InputError
from dorff.features import FeatureMap, Projected, modes_of
from dorff.frequencies import Modes
from dorff.loops.exponentials import angles
from dorff.moments import FloatArray, ToeplitzAdder
from dorff.moments.exponentials import Extents, GridExponentials

S = TypeVar("S", bound=moments.Sums)
PRECISIONS: Final = ("double", "mixed")
LATTICE_ROWS: Final = 2**16  # that are added to sums of exponentials at a time


class RowSums(ABC):
    """What a leaf adds its rows to, at most `block_rows` consecutive ones at a time: `sums` of each fold and pattern
    of targets. `syrk_seconds` counts the time in BLAS."""

    def __init__(self, block_rows: int) -> None:
        self.block_rows = block_rows
        self.sums: dict[moments.Part, moments.Adder] = {}
        self.syrk_seconds = 0.0

    @abstractmethod
    def add(
        self, X: FloatArray, Y: FloatArray, fold: int = 0, *, partial: bool = False, weights: FloatArray | None = None
    ) -> None:
        """Add rows X (n, d), Y (n, q), in order; `partial` looks for targets that are missing. `weights` (n,) >= 0
        weigh the rows; rows of weight zero are not counted."""

    @abstractmethod
    def empty(self, part: moments.Part) -> moments.Adder:
        """Empty sums for a fold and pattern."""

    def of(self, part: moments.Part) -> moments.Adder:
        """The sums of a fold and pattern; empty ones where it has none yet."""
        if part not in self.sums:
            self.sums[part] = self.empty(part)
        return self.sums[part]

    def total(self, of: type[S]) -> dict[moments.Part, S]:
        """Copies of what has been added so far, fold by fold."""
        copies: dict[moments.Part, S] = {}
        for part, adder in self.sums.items():
            sums = adder.moments()
            assert isinstance(sums, of)
            copies[part] = sums
        return copies

    def clear(self) -> None:
        """Forget what has been added; the memory is used again."""
        if self.sums:
            self.keep_spare()
            self.sums, self.syrk_seconds = {}, 0.0

    def keep_spare(self) -> None:
        """Leave the squares to this process's next sums; these are not to be used any more."""
        leave_spare(adder.square for adder in self.sums.values())


class TargetSums(RowSums):
    """Of rows with targets, less y0 (q,). Rows that miss some (NaN) go to sums of their own, one for each pattern, the
    missing ones as zeros. `class_weight` (q,) is for targets that are one-hot rows: they weigh so much more."""

    def __init__(self, block_rows: int, y0: FloatArray, class_weight: FloatArray | None) -> None:
        super().__init__(block_rows)
        self._y0, self._class_weight = y0, class_weight

    def add(
        self, X: FloatArray, Y: FloatArray, fold: int = 0, *, partial: bool = False, weights: FloatArray | None = None
    ) -> None:
        if weights is not None and not np.all(weights > 0):
            some = weights > 0
            X, Y, weights = X[some], Y[some], weights[some]
        if not partial:
            return self._add(X, Y, (fold, ""), weights)
        there = np.isfinite(Y)
        for observed, rows in moments.patterns_of(there):
            some_weights = None if weights is None else weights[rows]
            self._add(X[rows], np.where(there[rows], Y[rows], self._y0), (fold, observed), some_weights)
            moments.check_patterns(self.sums)
        return None

    def _add(self, X: FloatArray, Y: FloatArray, part: moments.Part, weights: FloatArray | None) -> None:
        if not len(X):
            return
        sums = self.of(part)
        for start in range(0, len(X), self.block_rows):
            y, at = Y[start : start + self.block_rows], slice(start, start + self.block_rows)
            weight = None if weights is None else weights[at]
            if self._class_weight is not None:
                of_class = y @ self._class_weight
                weight = of_class if weight is None else weight * of_class
            self._add_block(sums, X[at], y, weight)

    @abstractmethod
    def _add_block(self, sums: moments.Adder, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> None:
        """Add at most `block_rows` rows, of these weights, to sums of their fold and pattern."""


class BlockSums(TargetSums):
    """Featurizes blocks of rows into one reused buffer Z = [F | 1 | Y - y0] and adds each to its fold's sums; each row
    of Z is times the root of its weight. `kind` says which sums; products need V (m + 1 + q, c). `precision` "mixed"
    is for the gram kind: Z is rounded to float32, a block's products are summed in float32 and blocks in float64."""

    def __init__(
        self, features: FeatureMap, y0: FloatArray, *, block_rows: int, class_weight: FloatArray | None = None,
        kind: moments.Kind = moments.Kind.GRAM, V: FloatArray | None = None, precision: str = "double",
    ) -> None:  # fmt: skip
        if precision not in PRECISIONS or (precision == "mixed" and kind is not moments.Kind.GRAM):
            raise InputError(f"precision: wanted double, or mixed for sums of kind gram, got {precision} ({kind})")
        if (V is None) == (kind is moments.Kind.PRODUCT):
            raise InputError(f"V: wanted for sums of kind product, and no others; got {V} ({kind})")
        super().__init__(block_rows, y0, class_weight)
        self._features = features
        self._kind, self._V = kind, V
        width = features.m + 1 + len(y0)
        # Rows start on cache lines; the syrk is told the padded row length.
        self._padded = np.zeros((block_rows, -(-width // 8) * 8))
        self._Z = self._padded[:, :width]
        self._reflected = np.empty((block_rows, width), order="F") if kind is moments.Kind.TRIANGLE else None
        mixed = precision == "mixed"
        self._rounded = np.empty((block_rows, -(-width // 16) * 16), np.float32)[:, :width] if mixed else None
        self._single = np.empty((width, width), np.float32, order="F") if mixed else None
        self._work = features.workspace(block_rows)
        self._probe = np.zeros(self._padded.shape[1])  # with the padding: BLAS is three times as fast on whole lines
        self._probe[:width] = moments.probe(width)
        self._along = np.empty(block_rows)
        # Loops and BLAS are loaded before the squares are made: where memory is too little, it then runs out in numpy,
        # which raises, and not in a loader of native code, which may end the process or never come back.
        few = min(2, block_rows)  # a lone row has another layout, and loops of its own
        self._featurize(np.zeros((few, features.d)), np.zeros((few, len(y0))), None)
        moments.syrk(np.zeros((2, 8)), np.zeros((8, 8), order="F"))

    def _add_block(self, sums: moments.Adder, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> None:
        Z, along = self._featurize(x, y, weight)
        began = time.perf_counter()
        if self._rounded is not None and self._single is not None and isinstance(sums, moments.Accumulator):
            with np.errstate(over="ignore"):  # the sums tell
                self._rounded[: len(y)] = Z
            sums.add_rounded(self._rounded[: len(y)], self._single, along=along)
        else:
            sums.add(Z, along=along)
        self.syrk_seconds += time.perf_counter() - began

    def _featurize(self, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Z (n, w), and Z times the probe (n,): a tile of rows at a time, while it is in cache."""
        m, n, tile = self._features.m, len(x), len(self._work[0])
        Z, along = self._Z[:n], self._along[:n]
        np.subtract(y, self._y0, out=Z[:, m + 1 :])
        Z[:, m] = 1.0
        for start in range(0, n, tile):
            rows = slice(start, min(start + tile, n))
            self._features(x[rows], Z[rows], self._work)
            with np.errstate(over="ignore", invalid="ignore"):
                np.dot(self._padded[rows], self._probe, out=along[rows])
        if weight is not None:
            root = np.sqrt(weight)
            Z *= root[:, None]
            along *= root
        return Z, along

    def empty(self, part: moments.Part) -> moments.Adder:
        m, y0, observed = self._features.m, self._y0, part[1]
        if self._V is not None:
            return moments.ProductAccumulator(m, len(y0), y0, V=self._V, observed=observed)
        square = spare_square(self._Z.shape[1])
        if self._kind is moments.Kind.TRIANGLE:
            return moments.TriangleAccumulator(m, len(y0), y0, square=square, block=self._reflected, observed=observed)
        return moments.Accumulator(m, len(y0), y0, square=square, observed=observed)

    def moments(self) -> moments.Folds:
        """`total`, of the gram kind."""
        return self.total(moments.Moments)


class LatticeSums(TargetSums):
    """Sums of the rows' angles h (x - x0) and targets; features of `syrk_seconds`, here of all sums' time."""

    def __init__(
        self,
        features: FeatureMap,
        y0: FloatArray,
        *,
        block_rows: int,
        tolerance: float,
        class_weight: FloatArray | None = None,
    ) -> None:
        super().__init__(block_rows, y0, class_weight)
        self._tolerance = tolerance
        modes = modes_of(features)
        self._axes, self.extents = axes_of(modes), extents_of(modes)
        self._center = features.center[self._axes]
        self._step = (modes.step / features.scale)[self._axes]
        # Kept, as an allocator may give memory back each time.
        self._Z, self._ordered = np.empty((2, block_rows, len(self._axes) + 1 + len(y0)))
        self._ones = np.ones(block_rows)
        _load(len(self._axes))  # while there is memory for it

    def _add_block(self, sums: moments.Adder, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> None:
        began, Z = time.perf_counter(), self._Z[: len(x)]
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        weights = self._ones[: len(x)] if weight is None else np.ascontiguousarray(weight)
        angles(x, self._axes, self._center, self._step, y, self._y0, weights, Z)
        sums.add(Z)
        self.syrk_seconds += time.perf_counter() - began

    def empty(self, part: moments.Part) -> ToeplitzAdder:
        made = ToeplitzAdder(self.extents, len(self._y0), self._y0, tolerance=self._tolerance, observed=part[1])
        made.rows = self._ordered
        return made


@lru_cache
def _load(v: int) -> None:
    """Load the loops and BLAS that sums over v inputs need."""
    few = ToeplitzAdder((1,) * v, 1, np.zeros(1), tolerance=1e-2)
    few.add(np.zeros((2, v + 2)))
    few.compared()
    if v <= 3:
        GridExponentials((1,) * v, 1, 1e-2).add(np.zeros((2, v + 2)))


def alone_of(features: FeatureMap) -> Modes | None:
    """The lattice that these features alone need; None of those that have none."""
    modes = features.phi.projection if isinstance(features.phi, Projected) else None
    if not isinstance(modes, Modes):
        return None
    k = modes.modes // modes.every
    return Modes(modes.step * modes.every, k, np.abs(k).max(axis=0), modes.beside)


def tight(features: FeatureMap) -> FeatureMap | None:
    """The same features on that lattice, whose sums serve no other kernels."""
    alone, phi = alone_of(features), features.phi
    return replace(features, phi=replace(phi, projection=alone)) if alone and isinstance(phi, Projected) else None


def axes_of(modes: Modes) -> moments.IntArray:
    """The inputs that vary."""
    return np.flatnonzero(modes.extents)


def extents_of(modes: Modes) -> Extents:
    """The largest whole number along each of them, of the lattice that sums are made of."""
    return tuple(int(M) for M in modes.extents[axes_of(modes)])


# A leaf's rows: about 0.8 s of `syrk` for the first, within bounds; overheads are a few hundredths of that.
LEAF_FLOPS: Final = 4e10
SMALLEST_LEAF, LARGE_FIRST_LEAF, LARGEST_LEAF = 2**14, 2**17, 2**18
LIGHT_LEAF, LARGEST_LIGHT = 2**20, 2**23  # where a row costs the same whatever the features
GROW_AGAIN: Final = 4096  # from this number on, so that 10^12 rows are some 2 10^5 leaves


@dataclass(frozen=True)
class Leaf:
    """Rows start..stop-1: a run of whole shards, the unit of work. One that is not `full` is cut short by the first
    row of the data or by the last."""

    number: int
    start: int
    stop: int
    full: bool = True


def leaf_bounds(n: int, shard_rows: int, width: int, first: int = 0) -> tuple[Leaf, ...]:
    """Cut rows first..n-1 into leaves of whole shards. A leaf's bounds depend on its number, the shard size and the
    width alone: small first, so that small data spread over workers, then growing with the number. Leaves that end
    before row `first` are left out, the others keep their numbers."""
    return tuple(
        Leaf(number, max(start, first), min(stop, n), full=first <= start and stop <= n)
        for number, (start, stop) in enumerate(_spans(n, shard_rows, width))
        if stop > first
    )


def window_start(n: int, wanted: int, shard_rows: int, width: int) -> int:
    """The row that a window of the last `wanted` of n rows begins with: the first of a leaf, so that the window slides
    by whole leaves; it holds `wanted` rows at least, or all there are."""
    return max((start for start, _ in _spans(n, shard_rows, width) if start <= n - wanted), default=0)


def _spans(n: int, shard_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """The first row of each leaf and that of the next, up to row n."""
    base = min(max(LEAF_FLOPS / width**2, SMALLEST_LEAF), LARGE_FIRST_LEAF) if width else LIGHT_LEAF
    start, number, largest = 0, 0, largest_leaf(width)
    while start < n:
        rows = min(base * (1 + number / 16), largest) * max(1.0, number / GROW_AGAIN)
        stop = start + max(1, round(rows / shard_rows)) * shard_rows
        yield start, stop
        start, number = stop, number + 1


def largest_leaf(width: int) -> int:
    """The most rows of a leaf until leaves are many; of a width of 0 rows cost little, whatever the features."""
    return LARGEST_LEAF if width else LARGEST_LIGHT


def block_rows(width: int) -> int:
    """Rows featurized at a time: a buffer of about 16 MiB, within 256..2048 rows."""
    return int(np.clip(2**21 // width // 256 * 256, 256, 2048))


def product_rows(width: int) -> int:
    """Rows featurized at a time for products: a buffer of 16 MiB that stays in the last cache, within 8..2048 rows."""
    return int(np.clip(2**21 // width // 8 * 8, 8, 2048))


def most_sums(leaves: int, workers: int) -> int:
    """The most sums that are on the disk while those of so many leaves are added up, besides the level that is kept:
    each of two tasks a worker that are under way, however late, keeps those beside its path up the tree waiting, and
    the two that it adds; each worker writes one."""
    tasks, levels = min(2 * workers, leaves), leaves.bit_length()
    return min(2 * leaves, levels + tasks * (levels - tasks.bit_length() + 2)) + workers
