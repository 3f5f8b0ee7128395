"""T over a data set: by leaves, where each is a graph of its own, or by shards of the edge store of a graph that is
across leaves. A shard is summed by parts whose inputs fit in memory, whatever the order of the graph's rows: in random
order a shard touches many times its own rows. Parts depend on edges and the inputs' width."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array

from dorff.data import Dataset
from dorff.engine import Engine
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN, Manifold
from dorff.manifold.build_edges import DEGREES, NODES, Edges, content_sum, load_edges
from dorff.manifold.build_spec import BuildTask, ChangedError, DamagedError, GraphSpec, Layout, load_layout, load_spec
from dorff.manifold.laplacian_sums import GraphSums, edge_runs, finished, new_sums, row_runs
from dorff.moments import BoolArray, FloatArray, IntArray, Moments
from dorff.passes import Config, FoldRule, Leaf, Pass, RowSums, Summand, Tree, load_pass, sum_leaf
from dorff.passes.leaf import LeafRun, fresh_checkpoint
from dorff.plan.graph_sizes import GROUP_ROWS, Form, Places, Sizes, TermRecipe
from dorff.storage.files import read_plain, read_record, seal, unseal, write_atomic, write_record
from dorff.storage.location import locate
from dorff.store import Lease, Receipt

DONE: Final = "done.json"


@dataclass(frozen=True)
class Shards:
    """A graph that is built: its edges in `count` shards of rows, and the inputs of its rows. Small, picklable. Every
    edge is in the shards of both its ends, but for `owned` (`of_owned`). Of a graph that was given, `alone` rows have
    no edge. A damaged file is given up, so that the next run of the task makes it again: IncompleteError."""

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
            tasks = [(BuildTask("collect", number, shard), int(crc[:8], 16)) for number, crc in self._written(shard)]
            parts = [load_edges(self._spec(), *task) for task in tasks]
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
                layout = self._layout()
                return layout.copies(layout.run_of(rows), layout.table(rows))
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


class ShardPart(NamedTuple):
    """Rows `numbers` (n,), ascending, X (n, d), weights W (n, n) and degrees (n,): see `GraphSums.add_local`."""

    X: FloatArray
    W: csr_array
    own: BoolArray
    numbers: IntArray
    degree: FloatArray

    @classmethod
    def cut(cls, store: Shards, shard: int, recipe: TermRecipe, limit: int) -> "Iterator[ShardPart]":
        """The parts of a shard, in the order of its rows: each of at most `limit` (at least 2) rows with those that
        they need, or, of a power of L, of a single row with those within as many edges as L is taken times. In edge
        form only the edges to earlier rows are there."""
        if recipe.form is Form.POWER:
            yield from cls._of_rows(store, shard, recipe, limit)
            return
        i, j, w = store.adjacency(shard)
        if recipe.form is Form.EDGES:
            earlier = j < i
            i, j, w = i[earlier], j[earlier], w[earlier]
        for run, touched in edge_runs(i, j, limit):
            yield cls._read(store, _matrix(touched, i[run], j[run], w[run]), np.isin(touched, i[run]), touched, recipe)

    @classmethod
    def _of_rows(cls, store: Shards, shard: int, recipe: TermRecipe, limit: int) -> "Iterator[ShardPart]":
        """Runs of whole rows. The edges are in memory for all of the shard: they are small beside inputs."""
        edges = [store.adjacency(shard)]
        own = np.unique(edges[0][0])
        reached = [own]
        for _ in range(recipe.hops - 1):
            beyond = np.setdiff1d(np.concatenate([j for _, j, _ in edges]), np.concatenate(reached))
            for other in np.unique(store.holding(beyond)).tolist():
                i, j, w = store.adjacency(other)
                reach = np.isin(i, beyond)
                edges.append((i[reach], j[reach], w[reach]))
            reached.append(beyond)
        i, j, w = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        numbers = np.unique(np.concatenate([*reached, j]))
        W = _matrix(numbers, i, j, w)
        for levels in row_runs(W, np.searchsorted(numbers, own), recipe.hops, limit):
            some = levels[-1]
            yield cls._read(store, W[some][:, some], np.isin(some, levels[0]), numbers[some], recipe)

    @classmethod
    def _read(cls, store: Shards, W: csr_array, own: BoolArray, numbers: IntArray, recipe: TermRecipe) -> Self:
        degree = store.degrees(numbers) if recipe.normalised else np.zeros(len(numbers))
        return cls(store.inputs(numbers), W, own, numbers, degree)

    def checksum(self, before: int) -> int:
        """CRC32 of all of it, continued."""
        W = self.W
        return content_sum((self.numbers, self.own, W.indptr, W.indices, W.data, self.degree, self.X), before)


def _matrix(numbers: IntArray, i: IntArray, j: IntArray, weights: FloatArray) -> csr_array:
    """The edges between rows `numbers` (n,), ascending, as W (n, n)."""
    place = np.searchsorted(numbers, i), np.searchsorted(numbers, j)
    W = csr_array((weights, place), shape=(len(numbers), len(numbers)))
    W.sort_indices()
    return W


class TermPlace(Summand):
    """A term's sums: the name of the place is of the pass, the recipe and the name of the rows."""

    @classmethod
    def of(cls, frozen: Pass, recipe: TermRecipe, rows: str) -> Self:
        """The place of a recipe's sums over the rows that are called `rows`; its description is written."""
        config = {"of": frozen.hash, "recipe": recipe.config(), "rows": rows, "group_rows": GROUP_ROWS}
        name = hashlib.sha256(seal(config)).hexdigest()[:16]
        place = cls(frozen.directory / "terms" / name, name)
        write_atomic(place.description, [seal(config)], sync=False)
        return place

    @property
    def description(self) -> Path:
        return self.directory / "term.json"

    def described(self) -> tuple[Pass, TermRecipe]:
        """The pass and the recipe. InputError where what says so is missing or damaged."""
        config = _config(self)
        return load_pass(self.directory.parents[1], config["of"]), TermRecipe.from_config(config["recipe"])


@lru_cache(maxsize=16)
def _config(place: TermPlace) -> Config:
    try:
        line = read_plain(place.description)
    except FileNotFoundError:
        line = b""
    if (config := unseal(line)) is None or hashlib.sha256(line).hexdigest()[:16] != place.hash:
        raise InputError(f"{place.description}: what a manifold term is, is missing or damaged; run the job again")
    return config


SHARDS: Final = 4  # a task


def group_reads(read_rows: int, unit_rows: int) -> int:
    """Rows read at a time: whole groups, and whole units where that is not much more than `read_rows`."""
    whole = math.lcm(GROUP_ROWS, unit_rows)
    if whole <= 2 * max(read_rows, GROUP_ROWS):
        return whole * max(1, read_rows // whole)
    return GROUP_ROWS * max(1, read_rows // GROUP_ROWS)


class LeafTerm(TermPlace):
    """T over rows whose graphs are within leaves: over a leaf's groups of `GROUP_ROWS`, cut from its first row on, or
    where L = I over its rows. The source is of inputs alone; rows that are not finite are refused where the pass says
    so, else dropped, and leave their group smaller."""

    def opened(self) -> tuple[Pass, RowSums]:
        frozen, recipe = self.described()
        nan = "refuse" if frozen.spec.nan == "refuse" else "drop"
        spec = replace(frozen.spec, folds=FoldRule(), nan=nan, precision="double")
        return replace(frozen, spec=spec), new_sums(frozen.features, recipe)

    def leaf(self, source: Dataset, leaf: Leaf) -> Receipt:
        frozen, sums = self.opened()
        read_rows = group_reads(frozen.spec.read_rows, source.unit_rows)
        return sum_leaf(self, replace(frozen, spec=replace(frozen.spec, read_rows=read_rows)), sums, source, leaf)


class ShardTerm(TermPlace):
    """T over a graph across leaves: a leaf is of shards start..stop-1, and its receipt counts shards for rows."""

    def opened(self) -> tuple[Pass, GraphSums]:
        frozen, recipe = self.described()
        return frozen, GraphSums(frozen.features, recipe)

    def leaf(self, source: Shards, leaf: Leaf) -> Receipt:
        """Goes on from a checkpoint of the same shards, to the bit. Raises StoppedError: it was asked to stop, and has
        left a checkpoint; CorruptError: a number in the sums changed in memory, or was computed wrongly;
        IncompleteError: the graph's files changed meanwhile."""
        stamp, what = source.stamp(leaf.start, leaf.stop), f"shards {leaf.start} to {leaf.stop - 1}"
        frozen, sums = self.opened()
        recipe, limit = sums.recipe, Sizes().rows(len(frozen.features.center))
        run = LeafRun(self, frozen, sums, replace(fresh_checkpoint(self, leaf, stamp, 0), checksums=(0,)))
        for shard in range(run.at.row, leaf.stop):
            for part in ShardPart.cut(source, shard, recipe, limit):
                sums.add_local(part.X, part.W, part.own, part.numbers, part.degree)
                checksums, read = (part.checksum(run.at.checksums[0]),), run.at.rows_read + len(part.X)
                run.at = replace(run.at, checksums=checksums, rows_read=read)
            run.at = replace(run.at, row=shard + 1, rows_used=shard + 1 - leaf.start)
            run.pause(what, f"shard {shard}")
        if source.stamp(leaf.start, leaf.stop) != stamp:
            raise IncompleteError(f"{what}: the graph changed while it was read; run the job again")
        large = f"{what}: the sums overflow float64; a feature or a weight is larger than 1e150: rescale it"
        return run.finish(what, large)


def sum_term(
    frozen: Pass, term: Manifold, rows: Dataset | Shards, leaves: Sequence[Leaf] | None, engine: Engine,
    told: Callable[[int], None], *, inputs: Places = None, columns: Places = None, name: str = "",
    lease: Lease | None = None,
) -> tuple[Moments, list[Receipt]]:  # fmt: skip
    """T of a term over the rows of `leaves`, or over the shards of a graph across leaves, and the receipts. Goes on
    where it was stopped; the same bits for any engine, as a term's bits depend on its rows, the pass and the recipe
    alone. `inputs` are the columns of X that distances are of, `columns` those of the features that T is of (a
    view's). `name` tells apart the rows of several stores that have the same term. `told` is called with the rows (or
    shards) done. What no later run needs is deleted, where a lease is given only while it is held. Raises InputError:
    rows are not as wanted; IncompleteError: rows changed, or sums were lost, again and again."""
    recipe = TermRecipe.of(term, inputs=inputs, columns=columns)
    kind: type[TermPlace] = LeafTerm
    if not isinstance(rows, Dataset):
        kind, cuts, n = ShardTerm, range(0, rows.count, SHARDS), rows.count
        # Appended shards change no task that was full.
        leaves = [Leaf(number, a, min(a + SHARDS, n), full=a + SHARDS <= n) for number, a in enumerate(cuts)]
        if recipe.normalised or recipe.hops > 1:  # degrees, or edges, of rows in other shards
            rows = rows.of_far()
        elif recipe.form is Form.EDGES:  # later rows are nothing to an earlier one's edges
            rows = rows.of_owned()
    assert leaves is not None
    tree = Tree(kind.of(frozen, recipe, name), rows, leaves)
    total = tree.collect(engine, Moments, told)
    with nullcontext() if lease is None else lease.fenced():
        tree.tidy()
    return finished(total, frozen.features, recipe), [tree.receipts[number] for number in sorted(tree.receipts)]
