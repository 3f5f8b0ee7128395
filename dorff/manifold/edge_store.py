"""The edge store of a graph, shard by shard: what the tasks that sum its Laplacian read."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dorff.data import Dataset
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN
from dorff.manifold.build_edges import DEGREES, NODES, Edges, load_edges
from dorff.manifold.build_spec import BuildTask, ChangedError, DamagedError, GraphSpec, Layout, load_layout, load_spec
from dorff.moments import FloatArray, IntArray
from dorff.passes import Config
from dorff.storage.files import read_record, write_record
from dorff.storage.location import locate
from dorff.store import Receipt

DONE: Final = "done.json"


@dataclass(frozen=True)
class Shards:
    """A graph that is built: its edges in `count` shards of rows, and the inputs of its rows. Small, picklable.

    Every edge is in the shards of both its ends, but for `owned` (`of_owned`). Of a graph that was given, `alone` rows
    have no edge. A damaged file is given up, so that the next run of the task makes it again: IncompleteError."""

    path: str
    generation: int
    count: int
    dataset: Dataset
    owned: bool = False
    far: bool = False
    alone: int = 0

    @property
    def edges(self) -> int:
        """The edges, each once."""
        with self._mending():
            return sum(owned for done in self._done() for _, owned in done["shards"].values())

    def of_owned(self) -> "Shards":
        """The same shards with each edge once: with its later row, in the shard of that. Rows that are linked later
        change neither a shard nor its stamp. Degrees stay those of all edges."""
        return replace(self, owned=True)

    def of_far(self) -> "Shards":
        """The same shards for sums that reach beyond a shard's own edges, to the degrees of rows in others or to these
        rows' edges: any edge or row that changes changes every stamp."""
        return replace(self, far=True)

    def stamp(self, start: int, stop: int) -> str:
        """Names the edges of shards start..stop-1, and inputs that they touch; see `of_owned` and `of_far`."""
        with self._mending():
            done, lines, last = self._done(), [self._spec().config["name"]], 0
            if self.far:
                lines.append(json.dumps(done, sort_keys=True))
            for shard in range(start, stop):
                for generation, digest in self._written(shard):
                    lines.append(f"{generation} {shard} {digest}")
                    last = max(last, generation)
            lines += [done[one]["rows"] for one in range(last + 1)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def adjacency(self, shard: int) -> Edges:
        """(i, j, weights) of the edges of a shard's rows i, each (edges,), in the order of i and then of j."""
        with self._mending():
            parts = [
                load_edges(self._spec(), BuildTask("collect", generation, shard), int(digest[:8], 16))
                for generation, digest in self._written(shard)
            ]
        i, j, w = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        some = np.flatnonzero(j < i) if self.owned else np.lexsort((j, i))
        return i[some], j[some], w[some]

    def _written(self, shard: int) -> list[tuple[int, str]]:
        """The generations that wrote edges of a shard, with a digest of these; where each is once, the first alone."""
        records = enumerate(record["shards"] for record in self._done())
        written = [(generation, shards[str(shard)][0]) for generation, shards in records if str(shard) in shards]
        return written[:1] if self.owned else written

    def holding(self, rows: IntArray) -> IntArray:
        """The shard (k,) of each row; -1 for a row that was left out."""
        with self._mending():
            return self._layout().shard_of(np.asarray(rows, np.int64))

    def degrees(self, rows: IntArray) -> FloatArray:
        """The degrees (k,) of rows of the graph."""
        rows = np.asarray(rows, np.int64)
        shards, total = self.holding(rows), np.zeros(len(rows))
        with self._mending():
            for shard in np.unique(shards[shards >= 0]):
                here = shards == shard
                nodes, degrees = _degrees(self.path, self.generation, int(shard))
                total[here] = degrees[np.searchsorted(nodes, rows[here])]
        return total

    def inputs(self, rows: IntArray) -> FloatArray:
        """X (k, d) of rows of the graph, to the bit as the data set has them, in the order asked for."""
        rows = np.asarray(rows, np.int64)
        with self._mending():
            if isinstance(self._spec().graph, KNN):
                return self._layout().inputs(rows)
        return _gathered(self.dataset, rows)

    def _spec(self) -> GraphSpec:
        return load_spec(locate(self.path))

    def _layout(self) -> Layout:
        return load_layout(locate(self.path), self.generation)

    def _done(self) -> list[Mapping[str, Any]]:
        return [_record(self.path, generation) for generation in range(self.generation + 1)]

    @contextmanager
    def _mending(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            for task in error.tasks:
                self._spec().void(task)
            where = self._spec().path(error.tasks[0])
            what = "a file of the graph is missing or damaged; run the job again, and it is made again"
            raise IncompleteError(f"{where}: {what}") from error
        except ChangedError as error:
            raise IncompleteError(f"{self.path}: the graph is gone or damaged; run the job again") from error


def write_done(spec: GraphSpec, generation: int, rows: Sequence[Receipt], shards: Sequence[Receipt]) -> None:
    """Write that a generation is finished: a digest of its rows' copies, and of each shard a digest of its edges and
    how many it owns, as the receipts say."""
    digest = hashlib.sha256(" ".join(receipt.digest for receipt in rows).encode()).hexdigest()[:32]
    owned = {str(receipt.number): [receipt.digest, receipt.facts[0]] for receipt in shards}
    body, path = {"rows": digest, "shards": owned}, spec.folder(generation) / DONE
    if not path.exists() or read_record(path) != body:
        write_record(path, body, sync=True)


@lru_cache(maxsize=64)
def _record(directory: str, generation: int) -> Config:
    with suppress(FileNotFoundError):
        if (record := read_record(load_spec(locate(directory)).folder(generation) / DONE)) is not None:
            return record
    raise ChangedError


@lru_cache(maxsize=256)
def _degrees(directory: str, generation: int, shard: int) -> tuple[IntArray, FloatArray]:
    """All rows (s,) of a shard and their degrees (s,): what it began with, and what was linked to it since."""
    spec, nodes, total = load_spec(locate(directory)), np.empty(0, np.int64), np.empty(0)
    for one in range(generation + 1):
        if str(shard) not in _record(directory, one)["shards"]:
            continue
        rows, degrees = spec.read(BuildTask("collect", one, shard), (NODES, DEGREES))
        added = np.frombuffer(degrees)
        nodes, total = np.frombuffer(rows, np.int64), total + added if len(total) else added
    return nodes, total


def _gathered(dataset: Dataset, rows: IntArray) -> FloatArray:
    """Inputs (k, d) of rows anywhere in the data, read in the units that hold them, one at a time."""
    for row in rows[(rows < dataset.first) | (rows >= dataset.n)][:1]:
        raise InputError(f"{dataset.path}: wanted rows from {dataset.first} to {dataset.n - 1}, got {row}")
    X = np.empty((len(rows), dataset.d))
    order = np.argsort(rows, kind="stable")
    units = rows[order] // dataset.unit_rows
    for here in np.split(order, np.flatnonzero(np.diff(units)) + 1) if len(rows) else ():
        start, stop = int(rows[here[0]]), int(rows[here[-1]]) + 1
        X[here] = dataset.read(start, stop)[0][rows[here] - start]
    return X
