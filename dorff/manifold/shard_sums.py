"""Parts of a graph across leaves: some of a shard's rows with all that they need, added to a term's sums.

A part has few enough rows that their inputs are in memory, whatever the order of the graph's rows: of a graph in
random order the rows that a shard touches are many times its own. Parts depend on the edges and the inputs' width.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self, final

import numpy as np
from scipy import sparse

from dorff.manifold.edge_store import Adjacency
from dorff.manifold.laplacian_sums import edge_runs, row_runs
from dorff.moments import BoolArray, FloatArray, IntArray
from dorff.plan.term_costs import Form, TermRecipe


class Store(Protocol):
    """A graph across leaves, cut into shards; small, picklable."""

    @property
    def path(self) -> str: ...
    @property
    def count(self) -> int: ...
    def stamp(self, start: int, stop: int) -> str: ...
    def adjacency(self, shard: int) -> Adjacency: ...
    def degrees(self, rows: IntArray) -> FloatArray: ...
    def inputs(self, rows: IntArray) -> FloatArray: ...
    def holding(self, rows: IntArray) -> IntArray:
        """The shard (k,) of each row."""
        ...

    def of_owned(self) -> Self:
        """The same, its stamps of the edges to earlier rows alone."""
        ...

    def of_far(self) -> Self:
        """The same, its stamps of all edges and rows, whatever their shard."""
        ...


@final
@dataclass(frozen=True, eq=False)
class ShardPart:
    """Rows `numbers` (n,), ascending, X (n, d), weights W (n, n) and degrees (n,): see `GraphSums.add_local`."""

    X: FloatArray
    W: sparse.csr_array
    own: BoolArray
    numbers: IntArray
    degree: FloatArray

    @classmethod
    def cut(cls, store: Store, shard: int, recipe: TermRecipe, limit: int) -> Iterator[ShardPart]:
        """The parts of a shard, in the order of its rows: each of at most `limit` (at least 2) rows with those that
        they need, or, of a power of L, of a single row with those within as many edges as L is taken times.

        In edge form only the edges to earlier rows are there.
        """
        if recipe.form is Form.POWER:
            yield from cls._of_rows(store, shard, recipe, limit)
            return
        i, j, w = _entries(store.adjacency(shard), None)
        if recipe.form is Form.EDGES:
            earlier = j < i
            i, j, w = i[earlier], j[earlier], w[earlier]
        for run, touched in edge_runs(i, j, limit):
            W = _matrix(touched, i[run], j[run], w[run])
            yield cls._read(store, W, np.isin(touched, i[run]), touched, recipe)

    @classmethod
    def _of_rows(cls, store: Store, shard: int, recipe: TermRecipe, limit: int) -> Iterator[ShardPart]:
        """Runs of whole rows. The edges are in memory for all of the shard: they are small beside inputs."""
        adjacency = store.adjacency(shard)
        reached, edges = [adjacency.rows], [_entries(adjacency, None)]
        for _ in range(recipe.hops - 1):
            beyond = np.setdiff1d(np.concatenate([j for _, j, _ in edges]), np.concatenate(reached))
            holding = store.holding(beyond)
            for other in np.unique(holding):
                edges.append(_entries(store.adjacency(int(other)), beyond[holding == other]))
            reached.append(beyond)
        i, j, w = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        numbers = np.unique(np.concatenate([*reached, j]))
        W = _matrix(numbers, i, j, w)
        for levels in row_runs(W, np.searchsorted(numbers, adjacency.rows), recipe.hops, limit):
            some = levels[-1]
            yield cls._read(store, W[some][:, some], np.isin(some, levels[0]), numbers[some], recipe)

    @classmethod
    def _read(
        cls, store: Store, W: sparse.csr_array, own: BoolArray, numbers: IntArray, recipe: TermRecipe
    ) -> ShardPart:
        degree = store.degrees(numbers) if recipe.normalised else np.zeros(len(numbers))
        return cls(store.inputs(numbers), W, own, numbers, degree)

    def checksum(self, before: int) -> int:
        """CRC32 of all of it, continued."""
        for array in (self.numbers, self.own, self.W.indptr, self.W.indices, self.W.data, self.degree, self.X):
            before = zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", before)
        return before


def _entries(adjacency: Adjacency, some: IntArray | None) -> tuple[IntArray, IntArray, FloatArray]:
    """(i, j, weight) of a shard's edges, or of those of some of its rows."""
    i = np.repeat(adjacency.rows, np.diff(adjacency.indptr))
    keep = slice(None) if some is None else np.isin(i, some)
    return i[keep], adjacency.indices[keep], adjacency.weights[keep]


def _matrix(numbers: IntArray, i: IntArray, j: IntArray, weights: FloatArray) -> sparse.csr_array:
    """The edges between rows `numbers` (n,), ascending, as W (n, n)."""
    place = np.searchsorted(numbers, i), np.searchsorted(numbers, j)
    W = sparse.csr_array((weights, place), shape=(len(numbers), len(numbers)))
    W.sort_indices()
    return W
