"""Pieces of a graph that touch so few rows that their features are in memory together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from dorff.moments import FloatArray, IntArray


def entries(W: sparse.csr_array, rows: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(i, j, weight) of the entries in these rows of W, each (edges,): row by row, as they lie."""
    some = W[rows] if len(rows) < W.shape[0] else W
    i = np.repeat(rows, np.diff(some.indptr))
    return i, some.indices.astype(np.int64), some.data


def edge_runs(i: IntArray, j: IntArray, limit: int) -> Iterator[tuple[slice, IntArray]]:
    """Runs of edges (i, j), in order, and the rows (k,) that each touches, ascending: at most `limit`, at least 2.

    A run with more is halved: runs depend on the edges and the limit alone.
    """
    waiting = [slice(0, len(i))]
    while waiting:
        run = waiting.pop()
        touched = np.unique(np.concatenate([i[run], j[run]]))
        if len(touched) > max(limit, 2):
            middle = (run.start + run.stop) // 2
            waiting += [slice(middle, run.stop), slice(run.start, middle)]
        elif len(touched):
            yield run, touched


def row_runs(W: sparse.csr_array, rows: IntArray, hops: int, limit: int) -> Iterator[list[IntArray]]:
    """Runs of `rows`, ascending, each with all rows within 1, 2, .. `hops` edges of it: at most `limit` of these, or
    those of a single row."""
    waiting = [rows]
    while waiting:
        levels = [waiting.pop()]
        for _ in range(hops):
            levels.append(np.union1d(levels[-1], W[levels[-1]].indices))
        if len(levels[-1]) > limit and len(levels[0]) > 1:
            middle = len(levels[0]) // 2
            waiting += [levels[0][middle:], levels[0][:middle]]
        elif len(levels[0]):
            yield levels
