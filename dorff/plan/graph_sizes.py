"""How a graph across leaves is cut, and what building it and a manifold term's sums take."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset
from dorff.data.edges import EdgeSource, open_graph
from dorff.data.nodes import open_array
from dorff.errors import InputError
from dorff.features import FeatureMap
from dorff.graphs import KNN, Given, Graph, Identity, Manifold
from dorff.moments import UNIT, Moments
from dorff.passes.blocks import block_rows
from dorff.spec.registry import Config
from dorff.storage.location import locate

Places = tuple[int, ...] | None
MiB: Final = 2**20
GiB: Final = 2**30
GROUP_ROWS: Final = 4096  # of a leaf, that are one graph where graphs are within leaves
TILE_BYTES: Final = 128 * MiB  # of features in memory at a time
_BESIDE: Final = 12 * MiB  # what the edges of a piece and the work space of the features take, beside them
#: Edges a row from which the difference form is cheaper: it costs two products a row, and a look at each neighbour.
CHEAPER_FROM: Final = 2.5
#: Undirected edges a row of the graph of k nearest neighbours, as a part of k: between 1/2 (all are mutual) and 1.
MUTUAL: Final = 0.7


class Form(StrEnum):
    """How T is summed: rows as they are; differences along edges; rows times what L makes of them; L^j of rows."""

    IDENTITY = "identity"
    EDGES = "edges"
    DIFFERENCE = "difference"
    POWER = "power"


@dataclass(frozen=True)
class TermRecipe:
    """All that T depends on besides features and rows: neither weight nor outputs, so that terms which differ in these
    alone share sums. Distances are of the columns `inputs` of X, T of the `columns` of F; None for all."""

    graph: Graph
    normalised: bool
    power: int
    form: Form
    inputs: Places = None
    columns: Places = None

    @classmethod
    def of(cls, term: Manifold, *, inputs: Places = None, columns: Places = None) -> Self:
        """The recipe of a term, its form chosen where it is "auto": the cheaper one, by the graph's words alone."""
        if isinstance(term.graph, Identity):
            return cls(term.graph, False, 1, Form.IDENTITY)  # every column has its own outputs to go by
        if term.power > 1:
            return cls(term.graph, term.normalised, term.power, Form.POWER, inputs, columns)
        few = isinstance(term.graph, KNN) and MUTUAL * term.graph.neighbours < CHEAPER_FROM
        auto = Form.EDGES if few else Form.DIFFERENCE
        return cls(term.graph, term.normalised, 1, auto if term.form == "auto" else Form(term.form), inputs, columns)

    @property
    def hops(self) -> int:
        """How often L is taken of the features: so far away are the rows that a row's part of T needs."""
        return 0 if self.form is Form.IDENTITY else max(1, self.power // 2)

    def width(self, features: FeatureMap) -> int:
        """Columns of [F | 1] that T is of."""
        return (features.m if self.columns is None else len(self.columns)) + 1

    def config(self) -> Config:
        """The recipe as JSON."""
        return {**vars(self), "graph": self.graph.config(), "form": str(self.form)}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        places = {key: None if config[key] is None else tuple(config[key]) for key in ("inputs", "columns")}
        return cls(**{**config, **places, "graph": Graph.from_config(config["graph"]), "form": Form(config["form"])})


def term_flops(recipe: TermRecipe, m: int, edges: float | None = None, *, look: float = 3.0) -> float:
    """Flops a row of T's sums over m features, without those of the features and of the graph; `edges` are the
    undirected ones a row (default: what a graph of nearest neighbours may be expected to have, else 10), and `look`
    the flops for a number of a neighbour's features."""
    w = float(m + 1)
    if edges is None:
        edges = MUTUAL * recipe.graph.neighbours if isinstance(recipe.graph, KNN) else 10.0
    look *= 2.0 * edges * w * recipe.hops  # each edge is seen from both ends
    match recipe.form:
        case Form.EDGES:
            return edges * w * (w + 2.0)
        case Form.DIFFERENCE:
            return 2.0 * w * w + look
        case Form.POWER:
            return w * w + look
    return w * w


def tile_rows(width: int) -> int:
    """Rows whose features are in memory at a time."""
    return max(2, TILE_BYTES // (8 * _padded(width)))


def term_bytes(recipe: TermRecipe, m: int, rows: int) -> int:
    """Bytes of T's sums and features in a task whose pieces (a group, a shard with its halo) have so many rows."""
    width = m + 1
    line, block = 8 * _padded(width), block_rows(width)
    square = 8 * width * width + _BESIDE
    if recipe.form is Form.IDENTITY:
        return square + block * line
    tiles = 2 if recipe.hops > 1 else 1
    blocks = 2 if recipe.form is Form.DIFFERENCE else 1
    return square + (tiles * min(rows, tile_rows(width)) + blocks * block) * line


def difference_shift(sums: Moments) -> float:
    """What makes T positive to rounding, relative to its largest diagonal entry: 0 but for the difference form. The
    products of that form cancel, so that rounding is of the size of what cancelled: `unit` of such sums is 2^-52 times
    the summed |g_i| sum_j w_ij |g_i - g_j|, and |g_i| |sum_j w_ij (g_i - g_j)|, over T's largest diagonal entry. The
    norm of all rounding errors is at most the sum of their norms; measured it is 0.0004 to 0.1 of it."""
    return sums.unit if sums.unit > UNIT else 0.0


def _padded(width: int) -> int:
    return -(-width // 8) * 8


IntArray = npt.NDArray[np.int64]
#: Bytes on disk of a row's place, its membership in a partition, a neighbour that it lists, an edge given, one kept.
ROW, MEMBER, LISTED, EDGE, STORED = 12, 16, 32, 24, 24
HELD: Final = 128  # of an edge in memory, in the arrays that a part of a shard is made of
COUNTED: Final = 4096  # shards whose rows' degrees are counted at a time: 128 MiB


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
        stored = open_array(locate(dataset.path), name)
        kind = np.dtype(stored.array.dtype) if stored.packing.plain else np.dtype("f8")
        size += stored.columns * (1 if kind in ("u1", "?") else 4 if kind.itemsize < 4 or kind == "f4" else 8)
    return size


def given_source(path: str, n: int) -> EdgeSource:
    """A graph that is given, opened. InputError where there is none, or it says itself that it is not of n rows."""
    source = open_graph(path)
    if source.n is not None and source.n != n:
        remedy = "give the graph of these rows, labelled and not, in their order."
        raise InputError(f"{source.path}: wanted one node a row, {n}, got a graph of {source.n}; {remedy}")
    return source


@dataclass(frozen=True, eq=False)
class Degrees:
    """The degrees of a given graph's rows, as its file counts them: `counts[k]` rows have `degrees[k]`, descending.
    `shard` is the most that the rows of a shard have together, with what is dealt to them of rows left behind."""

    degrees: IntArray
    counts: IntArray
    shard: int

    @classmethod
    def of(cls, source: EdgeSource, rows: Dataset, shard_rows: int) -> "Degrees":
        """Read from a graph once in a process, while its files stay as they are. InputError where it is damaged."""
        return _degrees(source, source.stamp(), rows.first, rows.n, shard_rows)

    @property
    def total(self) -> int:
        return int(self.degrees @ self.counts)

    def most(self, rows: int) -> int:
        """The most edges that so many rows have."""
        return int(np.clip(rows - (np.cumsum(self.counts) - self.counts), 0, self.counts) @ self.degrees)

    def reached(self, first: int, hops: int, all_of_them: int) -> int:
        """The most of `all_of_them` that `hops` steps reach from `first`: again and again as many as the rows that came
        last have edges. From one row that is rows, from a shard's edges it is edges."""
        total = last = first
        for _ in range(hops):
            last = self.most(last)
            total += last
            if total >= all_of_them or not last:
                break
        return min(all_of_them, total)

    def repeats(self, n: int, hops: int) -> float:
        """Rows within `hops` edges of a row, on average: beyond the first rows are met as often as they have edges."""
        each = self.total / n
        met = float(self.degrees.astype(np.float64) ** 2 @ self.counts) / max(self.total, 1)
        return min(float(n), (1.0 + each) * _reach(n, 1.0 + met, hops - 1))


@lru_cache(maxsize=16)
def _degrees(source: EdgeSource, stamp: str, first: int, n: int, shard_rows: int) -> Degrees:
    """Of nodes first..n-1, a bounded number of them at a time. `stamp` is the source's."""
    counted, shards = [], []
    for start in range(first - first % shard_rows, n, COUNTED * shard_rows):
        here = source.degrees(start, min(start + COUNTED * shard_rows, n))
        shards += np.add.reduceat(here, range(0, len(here), shard_rows)).tolist()
        counted.append(np.unique(here[max(first - start, 0) :], return_counts=True))
    degrees, place = np.unique(np.concatenate([one[0] for one in counted]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([one[1] for one in counted])).astype(np.int64)
    shards[0] += _stored(source) - sum(shards)  # it is dealt the ends at rows left behind
    return Degrees(degrees[::-1], counts[::-1], max(shards))


def _stored(source: EdgeSource) -> int:
    """The edges that the store may have, each twice: a list may not have both directions."""
    return source.count if source.kind == "csr" else 2 * source.count


class GraphCosts(NamedTuple):
    """Of a graph of some rows: bytes of the largest task that builds it, bytes on disk; and what a row costs: `flops`
    to find its neighbours, and how often its features are computed (`repeats`: once, and again where it is near rows
    of other parts). `piece_rows` are the rows whose sums are made at a time, their neighbours with them, and
    `edge_bytes` those of the edges that are in memory then. `most` are the edges of the row that has most, of a graph
    that is given and that takes more memory than one of few edges, else 0."""

    task_bytes: int
    disk_bytes: int
    flops: float
    repeats: float
    piece_rows: int
    edge_bytes: int = 0
    most: int = 0

    @classmethod
    def of(cls, graph: Graph, rows: Dataset, *, hops: int = 1, whole: bool = True, sizes: Sizes | None = None) -> Self:
        """Of a graph over rows of inputs alone, of which L is taken `hops` times, `whole`: of a row with all that are
        within so many edges of it, or of any run of its edges. No rows are read, but the edges of a graph that is
        given are counted; InputError where it is missing, damaged or of other rows."""
        sizes, n, d = sizes or Sizes(), rows.rows, rows.d
        if isinstance(graph, Given):
            return cls._of_given(graph, rows, hops, sizes, whole=whole)
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
        within = min(n, max(sizes.rows(d), math.ceil(_reach(n, 1.0 + 2.0 * k, hops))))
        around = min(_reach(n, 1.0 + 2.0 * k, hops - 1) * sizes.partition_rows, float(n))
        return cls(task, disk, 2.0 * d * seen, repeats, within, int(HELD * around * 2.0 * k))

    @classmethod
    def _of_given(cls, graph: Given, rows: Dataset, hops: int, sizes: Sizes, *, whole: bool) -> Self:
        """By the degrees of its rows. `repeats` is the most: of rows in random order, where each is read by itself and
        once more for each row that it is joined to (measured: 8 to 10 of 11); in an order in which rows are near those
        that they are joined to, it is hardly more than 1."""
        assert graph.path is not None  # a job names a file
        n, d, source = rows.rows, rows.d, given_source(graph.path, rows.n)
        degrees, size = Degrees.of(source, rows, sizes.shard_rows), min(sizes.shard_rows, n)
        task = 16 * EDGE * max(sizes.edge_run, degrees.shard) + 4 * 8 * d * size
        disk = 2 * EDGE * source.count + STORED * _stored(source) + 32 * n + MiB
        repeats = 1.0 if n <= min(sizes.shard_rows, sizes.rows(d)) else degrees.repeats(n, hops)
        pieces = min(n, max(sizes.rows(d), degrees.reached(1, hops, n) if whole else 2))
        many = degrees.shard > sizes.edge_run or pieces > sizes.rows(d)
        held = HELD * degrees.reached(degrees.shard, hops - 1, degrees.total)
        return cls(task, disk, 0.0, repeats, pieces, held, degrees.most(1) if many else 0)


def _reach(n: int, each: float, hops: int) -> float:
    """each^hops, `each` 1 at least, but n at most."""
    return float(n) if hops * math.log(each) > math.log(max(n, 1)) else each**hops
