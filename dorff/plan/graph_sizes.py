"""How a graph across leaves is cut, and what building it takes: bytes of a task, bytes on disk, flops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

import numpy as np

from dorff.data import Dataset
from dorff.data.edges import EdgeSource, open_graph
from dorff.data.nodes import open_array
from dorff.errors import InputError
from dorff.graphs import KNN, Given, Graph
from dorff.plan.terms import GROUP_ROWS

MiB: Final = 2**20
#: Bytes of the records on disk: of a row's place, its membership in a partition, a neighbour that it lists, an edge
#: that was given, and an edge of the store, which every edge is twice.
ROW, MEMBER, LISTED, EDGE, STORED = 12, 16, 32, 24, 24
HELD: Final = 128  # of an edge in memory, in the arrays that a part of a shard is made of


@final
@dataclass(frozen=True)
class Sizes:
    """How a graph is cut. Rows: `partition_rows` a landmark, `sample_rows` to find one by, `shard_rows` of a given
    graph's shard; a row is a candidate in the partitions of its nearest `memberships` landmarks, of which there are
    `landmarks` at most. `edge_run` edges of a given graph are read at a time. `input_bytes` of inputs (float64) are in
    a run of rows, or are the candidates for a list; `most_rows` bounds both."""

    partition_rows: int = 1024
    memberships: int = 4
    landmarks: int = 8192
    sample_rows: int = 32
    shard_rows: int = 4096
    edge_run: int = 2**20
    input_bytes: int = 64 * 2**20
    most_rows: int = 2**15

    def rows(self, d: int) -> int:
        """Rows of d inputs that are held at a time."""
        return int(np.clip(self.input_bytes // (8 * d), 1, self.most_rows))

    def partitions(self, n: int, d: int) -> int:
        """The landmarks of n rows."""
        return max(1, min(-(-n // self.partition_rows), self.landmarks, self.rows(d)))


def copied_bytes(dataset: Dataset) -> int:
    """Bytes of a row's copy, at most: a copy is as narrow as its values allow."""
    size = 0
    for name in dataset.inputs:
        stored = open_array(Path(dataset.path), name)
        kind = np.dtype(stored.array.dtype) if stored.packing.plain else np.dtype("f8")
        size += stored.columns * (1 if kind in ("u1", "?") else 4 if kind.itemsize < 4 or kind == "f4" else 8)
    return size


def given_source(path: str, n: int) -> EdgeSource:
    """A graph that is given, opened. InputError where there is none, or it says itself that it is not of n rows."""
    source = open_graph(path)
    if source.n is not None and source.n != n:
        raise InputError(
            f"{source.path}: wanted one node a row, {n}, got a graph of {source.n}; give the graph of these rows, "
            "labelled and not, in their order."
        )
    return source


@final
@dataclass(frozen=True)
class GraphCosts:
    """Of a graph of some rows: bytes of the largest task that builds it, bytes on disk; and what a row costs: `flops`
    to find its neighbours, and how often its features are computed (`repeats`: once, and again where it is near rows
    of other parts). `piece_rows` are the rows whose sums are made at a time, their neighbours with them, and
    `edge_bytes` those of the edges that are in memory then."""

    task_bytes: int
    disk_bytes: int
    flops: float
    repeats: float
    piece_rows: int
    edge_bytes: int = 0

    @classmethod
    def of(cls, graph: Graph, rows: Dataset, *, hops: int = 1, sizes: Sizes | None = None) -> Self:
        """Of a graph over rows of inputs alone, of which L is taken `hops` times; no rows are read. InputError where a
        graph that is given is missing, damaged or of other rows."""
        sizes, n, d = sizes or Sizes(), rows.rows, rows.d
        if isinstance(graph, Given):
            return cls._of_given(graph, rows, hops, sizes)
        if not isinstance(graph, KNN):
            return cls(0, 0, 0.0, 1.0, GROUP_ROWS)
        k = min(graph.neighbours, max(n - 1, 1))  # a row cannot list more
        if graph.within == "leaf":
            return cls(GROUP_ROWS * (8 * 6 * d + 40 * k), 0, 2.0 * d * GROUP_ROWS, 1.0, GROUP_ROWS)
        held = min(n, sizes.rows(d))
        # Candidates, and what `neighbours` makes of them; of dealing rows to partitions four times as much.
        task = 5 * 8 * d * held + 4 * sizes.input_bytes + held * 4 * k * LISTED + 96 * MiB
        disk = n * (copied_bytes(rows) + ROW + sizes.memberships * MEMBER + k * (LISTED + 2 * STORED) + 32) + MiB
        seen = sizes.partitions(n, d) + sizes.memberships * sizes.partition_rows
        # Of 784 inputs (MNIST, shifted) a shard's rows and their neighbours are 2.7 times its rows.
        repeats = _reach(n, 3.0, hops)
        pieces = _pieces(n, d, hops, 2.0 * k, sizes.partition_rows, sizes)
        return cls(task, disk, 2.0 * d * seen, repeats, *pieces)

    @classmethod
    def _of_given(cls, graph: Given, rows: Dataset, hops: int, sizes: Sizes) -> Self:
        """By the number of its entries. `repeats` is the most: of rows in random order, where each is read by itself
        and once more for each row that it is joined to (measured: 8 to 10 of 11); in an order in which rows are near
        those that they are joined to, it is hardly more than 1."""
        assert graph.path is not None  # a job names a file
        n, source = rows.rows, given_source(graph.path, rows.n)
        # Of a list, each entry may be an edge, which the store has twice; that it has both directions is not known.
        stored = source.count if source.kind == "csr" else 2 * source.count
        degree, size = stored / max(n, 1), min(sizes.shard_rows, n)
        task = 16 * EDGE * max(sizes.edge_run, int(size * degree)) + 4 * 8 * rows.d * size
        disk = 2 * EDGE * source.count + STORED * stored + 32 * n + MiB
        alone = n <= min(sizes.shard_rows, sizes.rows(rows.d))
        repeats = 1.0 if alone else _reach(n, 1.0 + degree, hops)
        return cls(task, disk, 0.0, repeats, *_pieces(n, rows.d, hops, degree, sizes.shard_rows, sizes))


def _pieces(n: int, d: int, hops: int, degree: float, shard_rows: int, sizes: Sizes) -> tuple[int, int]:
    """The rows of a part of a shard, and the bytes of a shard's edges: those of rows within hops - 1 edges.

    A part is cut until it has few enough rows, and is one row with all within `hops` edges at the least.
    """
    within = min(n, max(sizes.rows(d), math.ceil(_reach(n, 1.0 + degree, hops))))
    rows = _reach(n, 1.0 + degree, hops - 1) * shard_rows
    return within, int(HELD * min(rows, float(n)) * degree)


def _reach(n: int, each: float, hops: int) -> float:
    """each^hops, `each` 1 at least, but n at most."""
    return float(n) if hops * math.log(each) > math.log(max(n, 1)) else each**hops
