"""Moments of rows in memory, in Zarr or in Dask, without durable state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from distributed import get_worker

from dorff.estimators.rows import Rows, StoredRows, finite
from dorff.features import FeatureMap
from dorff.kernels.scalar import FloatArray
from dorff.leaf import BlockSums, FoldRule
from dorff.plan import block_rows
from dorff.store import Folds
from dorff.threads import pin, pinned

SAMPLE_RUNS, RUN_ROWS = 16, 64
MEMORY_ROWS = 2**16  # of arrays in memory, dealt to folds at a time

_pinning = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block, as before outside of it; nothing where another thread has seen to it.

    The setting is the process's, and only the thread that made it can take it back (threadpoolctl 3.8). So of fits
    at the same time in threads of one process those that outlast the first may end with more BLAS threads: then
    their last bits are not fixed.
    """
    if not _pinning.acquire(blocking=False):
        yield
        return
    try:
        with pinned():
            yield
    finally:
        _pinning.release()


@final
@dataclass(frozen=True, eq=False)
class RowSums:
    """All that a pass over rows needs: the features, the targets' shift y0 (q,), and which fold a row is in."""

    features: FeatureMap
    y0: FloatArray
    folds: FoldRule

    def of(self, X: Rows, Y: Rows) -> Folds:
        """Moments, one a fold, of X (n, d) and Y (n, q): both Dask arrays of the same row chunks, or neither."""
        if isinstance(X, da.Array):
            return self._of_chunks(X, Y)
        assert not isinstance(Y, da.Array)
        sums = self._sums(len(X))
        inputs, targets = _Reader(X, "X"), _Reader(Y, "y")
        for start, stop in _runs(X, Y):
            self._add(sums, start, inputs.read(start, stop), targets.read(start, stop))
        return sums.moments()

    def _sums(self, rows: int) -> BlockSums:
        block = block_rows(self.features.m + 1 + len(self.y0))
        return BlockSums(self.features, self.y0, block_rows=min(block, max(rows, 1)))

    def _add(self, sums: BlockSums, first: int, X: FloatArray, Y: FloatArray) -> None:
        if self.folds.count == 1:
            return sums.add(X, Y)
        fold_of = self.folds.of_rows(np.arange(first, first + len(X)))
        for fold in range(self.folds.count):
            if (fold_of == fold).any():
                sums.add(X[fold_of == fold], Y[fold_of == fold], fold)
        return None

    def of_chunk(self, first: int, X: FloatArray, Y: FloatArray) -> Folds:
        """Moments of the chunk whose first row is number `first`."""
        sums = self._sums(len(X))
        if len(X):
            self._add(sums, first, _matrix(X, "X", first), _matrix(Y, "y", first))
        return sums.moments()

    def _of_chunks(self, X: da.Array, Y: Any) -> Folds:
        """A task a chunk, merged by a tree over chunk numbers: the bits depend on the chunks, not on who ran them."""
        starts = np.concatenate([[0], np.cumsum(X.chunks[0])[:-1]])
        # Optimised apart, a chunk that X and Y are both cut from would be made twice.
        chunks = zip(*(part.to_delayed(optimize_graph=False).ravel() for part in (X, Y)), strict=True)
        shared = delayed(self)
        task, merge = delayed(_moments_of_chunk), delayed(_merged)
        nodes = [task(shared, int(first), x, y) for first, (x, y) in zip(starts, chunks, strict=True)]
        while len(nodes) > 1:
            pairs = zip(nodes[::2], nodes[1::2], strict=False)
            nodes = [merge(left, right) for left, right in pairs] + nodes[len(nodes) // 2 * 2 :]
        folds: Folds = nodes[0].compute()
        return folds


def _moments_of_chunk(sums: RowSums, first: int, X: FloatArray, Y: FloatArray) -> Folds:
    """A Dask task. The schedulers of the fit's own process are inside its `one_thread`; a cluster's worker is not."""
    if _on_worker():
        pin()
    return sums.of_chunk(first, X, Y)


def _on_worker() -> bool:
    try:
        get_worker()
    except ValueError:  # how distributed says no
        return False
    return True


def _merged(left: Folds, right: Folds) -> Folds:
    """Fold by fold sums, in new memory: a Dask task may not write over what another may ask for again."""
    both = {fold: left[fold] + right[fold] for fold in left.keys() & right.keys()}
    return left | right | both


def sample(X: Rows, Y: Rows) -> tuple[FloatArray, FloatArray]:
    """Rows for scales, means and the median distance: all where there are few, else runs spread evenly.

    Which rows depends on n alone, so that every kind of array gives the same constants.
    """
    n = int(X.shape[0])
    runs = [(0, n)]
    if n > SAMPLE_RUNS * RUN_ROWS:
        runs = [(int(start), int(start) + RUN_ROWS) for start in np.linspace(0, n - RUN_ROWS, SAMPLE_RUNS)]
    if isinstance(X, da.Array):
        parts = compute([X[a:b] for a, b in runs], [Y[a:b] for a, b in runs])
        xs, ys = (
            [_matrix(v, name, a) for v, (a, _) in zip(p, runs, strict=True)]
            for p, name in zip(parts, "Xy", strict=True)
        )
    else:
        assert not isinstance(Y, da.Array)
        xs, ys = ([reader.read(a, b) for a, b in runs] for reader in (_Reader(X, "X"), _Reader(Y, "y")))
    return np.concatenate(xs), np.concatenate(ys)


def _matrix(values: Any, name: str, first: int) -> FloatArray:
    """One chunk's or slice's values as finite float64, C-contiguous."""
    return finite(np.ascontiguousarray(values, dtype=np.float64), name, first)


@final
class _Reader:
    """Finite rows of an array in memory or in Zarr. Keeps the chunks of the last read, so that targets whose chunks
    are longer than the inputs' are not decoded again for every run."""

    def __init__(self, rows: FloatArray | StoredRows, name: str) -> None:
        self._rows, self._name = rows, name
        self._start, self._kept = 0, np.empty((0, rows.shape[1]))

    def read(self, start: int, stop: int) -> FloatArray:
        if not isinstance(self._rows, StoredRows):
            return self._rows[start:stop]  # checked by scikit-learn
        if not self._start <= start <= stop <= self._start + len(self._kept):
            unit = self._rows.dataset.unit_rows
            self._start = start // unit * unit
            self._kept = finite(self._rows[self._start : -(-stop // unit) * unit], self._name, self._start)
        return self._kept[start - self._start : stop - self._start]


def _runs(X: Rows, Y: Rows) -> Iterator[tuple[int, int]]:
    """Runs of rows by which to read: whole chunks of the inputs, or of the targets where only they are stored."""
    stored = next((rows for rows in (X, Y) if isinstance(rows, StoredRows)), None)
    if stored is not None:
        return stored.runs()
    return ((start, min(start + MEMORY_ROWS, len(X))) for start in range(0, len(X), MEMORY_ROWS))
