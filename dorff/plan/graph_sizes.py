"""How a graph across leaves is cut, and what building it takes: bytes of a task, bytes on disk, flops."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

import numpy as np

from dorff.data import Dataset
from dorff.data.nodes import open_array
from dorff.graphs import KNN, Graph, Identity
from dorff.plan.terms import GROUP_ROWS

MiB: Final = 2**20
#: Bytes of the records on disk: of a row's place, its membership in a partition, a neighbour that it lists, an edge
#: that was given, and an edge of the store, which every edge is twice.
ROW, MEMBER, LISTED, EDGE, STORED = 12, 16, 32, 24, 24
GIVEN_EDGES: Final = 32  # a row, in a plan that does not know


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


@final
@dataclass(frozen=True)
class GraphCosts:
    """Of a graph of some rows: bytes of the largest task that builds it, bytes on disk; and what a row costs: `flops`
    to find its neighbours, and how often its features are computed (`repeats`: once, and again where it is a neighbour
    of rows of other shards). `piece_rows` are the rows whose sums are made at a time, their neighbours with them."""

    task_bytes: int
    disk_bytes: int
    flops: float
    repeats: float
    piece_rows: int

    @classmethod
    def of(cls, graph: Graph, rows: Dataset, sizes: Sizes | None = None) -> Self:
        """Of a graph over rows of inputs alone; nothing is read."""
        sizes, n, d = sizes or Sizes(), rows.rows, rows.d
        if isinstance(graph, Identity):
            return cls(0, 0, 0.0, 1.0, GROUP_ROWS)
        if not isinstance(graph, KNN):
            disk = n * (GIVEN_EDGES * 2 * (EDGE + STORED) + 32)
            return cls(16 * sizes.edge_run * EDGE, disk, 0.0, 3.0, 2 * sizes.shard_rows)
        k = graph.neighbours
        if graph.within == "leaf":
            return cls(GROUP_ROWS * (8 * 6 * d + 40 * k), 0, 2.0 * d * GROUP_ROWS, 1.0, GROUP_ROWS)
        held = sizes.rows(d)
        # Candidates, and what `neighbours` makes of them; of dealing rows to partitions four times as much.
        task = 5 * 8 * d * held + 4 * sizes.input_bytes + held * 4 * k * LISTED + 96 * MiB
        disk = n * (copied_bytes(rows) + ROW + sizes.memberships * MEMBER + k * (LISTED + 2 * STORED) + 32) + MiB
        seen = sizes.partitions(n, d) + sizes.memberships * sizes.partition_rows
        # Of 784 inputs (MNIST, shifted) a shard's rows and their neighbours are 2.7 times its rows.
        return cls(task, disk, 2.0 * d * seen, 3.0, 4 * sizes.partition_rows)
