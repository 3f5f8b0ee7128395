"""T = [F | 1]^T L [F | 1] of a graph's rows: blocks of differences along its edges, added like rows."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from dorff.engine.base import leave_spare, spare_square
from dorff.features import FeatureMap
from dorff.graphs import KNN, Graph, Manifold, degrees, inverse_roots, local_graph
from dorff.loops import differences
from dorff.moments import UNIT, Accumulator, BoolArray, FloatArray, IntArray, Moments, Part, probe
from dorff.passes import BlockSums, RowSums, block_rows
from dorff.plan.graph_sizes import GROUP_ROWS, Form, Places, TermRecipe, difference_shift, tile_rows


def entries(W: csr_array, rows: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(i, j, weight) of the entries in these rows of W, each (edges,): row by row, as they lie."""
    some = W[rows] if len(rows) < W.shape[0] else W
    return np.repeat(rows, np.diff(some.indptr)), some.indices.astype(np.int64), some.data


def edge_runs(i: IntArray, j: IntArray, limit: int) -> Iterator[tuple[slice, IntArray]]:
    """Runs of edges (i, j), in order, and the rows (k,) that each touches, ascending: at most `limit`, at least 2. A
    run with more is halved: runs depend on the edges and the limit alone."""
    waiting = [slice(0, len(i))]
    while waiting:
        run = waiting.pop()
        touched = np.unique(np.concatenate([i[run], j[run]]))
        if len(touched) > max(limit, 2):
            middle = (run.start + run.stop) // 2
            waiting += [slice(middle, run.stop), slice(run.start, middle)]
        elif len(touched):
            yield run, touched


def row_runs(W: csr_array, rows: IntArray, hops: int, limit: int) -> Iterator[list[IntArray]]:
    """Runs of `rows`, ascending, each with all rows within 1, 2, .. `hops` edges: `limit` at most, or of one row."""
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


_T: Final[Part] = (0, "")
#: How large the products are that cancel in the difference form: moments without features, whose one entry it is.
_SIZE: Final[Part] = (1, "")
_NONE: Final = np.zeros(0)
Scale: TypeAlias = FloatArray | None
_CACHED: Final = 2**16  # numbers of a block that are made before they are looked at again


class GraphSums(RowSums):
    """Adds groups of rows, each a graph of its own, to T; or the rows of one graph, a part at a time (`add_local`).
    With G the rows of [F | 1], each over the root of its degree where L is normalised, T is a sum over edges of w_ij
    (g_i - g_j)(g_i - g_j)^T (`Form.EDGES`), or over rows of g_i times sum_j w_ij (g_i - g_j) (`DIFFERENCE`); L^j of
    the rows is had by j such sums, and L^2j of them by its product with itself (`POWER`). The column of ones is left
    at zero where L is not normalised: L 1 = 0. `n` of the sums counts undirected edges, each once. Edges and rows come
    in the order of the graph's rows, so that bits depend on the rows, the features and the recipe alone."""

    def __init__(self, features: FeatureMap, recipe: TermRecipe, *, tile: int | None = None) -> None:
        super().__init__(GROUP_ROWS)
        self._features, self.recipe = features, recipe
        self._width = recipe.width(features)
        self._tile = tile_rows(self._width) if tile is None else tile
        self._columns = None if recipe.columns is None else np.array(recipe.columns, dtype=np.int64)
        self._inputs = slice(None) if recipe.inputs is None else np.array(recipe.inputs, dtype=np.int64)
        self._work = features.workspace(features.phi.tile_rows)
        self._whole = None if self._columns is None else np.empty((features.phi.tile_rows, features.m))
        self._line = -(-self._width // 8) * 8  # BLAS is faster on whole cache lines
        self._probe = np.zeros(self._line)
        self._probe[: self._width] = probe(self._width)
        self._block = block_rows(self._width)
        self._tiles = [np.zeros((0, self._line)), np.zeros((0, self._line))]
        self._Z = np.zeros((self._block, self._line))
        self._along = np.empty(self._block)

    def of(self, part: Part) -> Accumulator:
        """The sums of T, or of what cancels in it; empty ones where there are none yet."""
        sums = super().of(part)
        assert isinstance(sums, Accumulator)
        return sums

    def empty(self, part: Part) -> Accumulator:
        if part != _T:
            return Accumulator(0, 0, _NONE)
        paired = self.recipe.form is Form.DIFFERENCE
        return Accumulator(self._width - 1, 0, _NONE, square=spare_square(self._width), paired=paired)

    def keep_spare(self) -> None:
        leave_spare([self.sums[_T].square] if _T in self.sums else [])

    def add(
        self, X: FloatArray, Y: FloatArray, fold: int = 0, *, partial: bool = False, weights: FloatArray | None = None
    ) -> None:
        """Add a group of rows X (n, d), a graph of its own. A row counts once: T has no targets, folds or weights."""
        graph = self.recipe.graph
        assert isinstance(graph, KNN)
        if len(X):
            self.add_whole(X, local_graph(self.scaled(X), graph))

    def scaled(self, X: FloatArray) -> FloatArray:
        """The inputs (n, k) that distances are of, scaled as the features see them."""
        return np.ascontiguousarray(((X - self._features.center) / self._features.scale)[:, self._inputs])

    def add_whole(self, X: FloatArray, W: csr_array) -> None:
        """Add all rows X (n, d) of a graph of weights W (n, n)."""
        self.add_local(X, W, np.ones(len(X), dtype=np.bool_), np.arange(len(X)), degrees(W))

    def add_local(self, X: FloatArray, W: csr_array, own: BoolArray, numbers: IntArray, degree: FloatArray) -> None:
        """Add the part of T that rows `own` (n,) of X (n, d) stand for; the parts of disjoint rows add up to T. W (n,
        n) holds all edges of these rows, and where L is taken several times those of all rows less edges away than
        times. `numbers` (n,), ascending, are the rows' names in the whole graph, where an edge belongs to the later of
        its rows; `degree` (n,) are theirs there."""
        scale = inverse_roots(degree) if self.recipe.normalised else None
        rows = np.flatnonzero(own)
        i, j, weights = entries(W, rows)
        later = numbers[j] < numbers[i]
        if self.recipe.form is Form.EDGES:
            self._add_edges(X, scale, i[later], j[later], np.sqrt(weights[later]))
        elif self.recipe.form is Form.DIFFERENCE:
            self._add_pairs(X, scale, i, j, weights)
        else:
            self._add_powers(X, scale, W, rows[np.diff(W.indptr)[rows] > 0])
        if later.any():
            self.of(_T).n += int(later.sum())

    def _add_edges(self, X: FloatArray, scale: Scale, i: IntArray, j: IntArray, roots: FloatArray) -> None:
        for run, touched in edge_runs(i, j, self._tile):
            G = self._rows_of(X, touched, scale)
            a, b = np.searchsorted(touched, i[run]), np.searchsorted(touched, j[run])
            starts = np.arange(len(a) + 1)
            for block in _cuts(len(a), self._block):
                Z = self._differences(G, a[block], starts[block.start : block.stop + 1], b, roots[run], self._Z)
                self._add_rows(Z)

    def _add_pairs(self, X: FloatArray, scale: Scale, i: IntArray, j: IntArray, w: FloatArray) -> None:
        for run, touched in edge_runs(i, j, self._tile):
            G = self._rows_of(X, touched, scale)
            rows, starts = np.unique(i[run], return_index=True)
            at, b = np.searchsorted(touched, rows), np.searchsorted(touched, j[run])
            with np.errstate(over="ignore", invalid="ignore"):
                v = np.dot(G, self._probe)
                apart = np.add.reduceat(w[run] * np.abs(v[np.searchsorted(touched, i[run])] - v[b]), starts)
            ends = np.append(starts, len(b))
            for block in _cuts(len(at), self._block):
                LZ = self._differences(G, at[block], ends[block.start : block.stop + 1], b, w[run], self._Z)
                self._add_pair(np.take(G, at[block], axis=0), LZ, v[at[block]], apart[block])

    def _add_powers(self, X: FloatArray, scale: Scale, W: csr_array, rows: IntArray) -> None:
        for levels in row_runs(W, rows, self.recipe.hops, self._tile):
            if len(levels[-1]) > self._tile:
                self._Z[:1] = self._far(X, scale, W, levels, scale)
                with np.errstate(over="ignore", invalid="ignore"):
                    np.dot(self._Z[:1], self._probe, out=self._along[:1])
                self._add_rows(self._Z[:1])
                continue
            G = self._raised(X, scale, W, levels[1:])
            at, starts, b, w = _joined(W, levels[0], levels[1], scale)
            for block in _cuts(len(at), self._block):
                self._add_rows(self._differences(G, at[block], starts[block.start : block.stop + 1], b, w, self._Z))

    def _raised(self, X: FloatArray, scale: Scale, W: csr_array, levels: list[IntArray]) -> FloatArray:
        """Rows levels[0] of [F | 1], scaled, L taken of them once for each further level (all within as many edges)."""
        squared = None if scale is None else scale**2
        if len(levels[-1]) > self._tile:
            return self._far(X, scale, W, levels, squared)
        G = self._rows_of(X, levels[-1], scale)
        for taken, (rows, around) in enumerate(reversed([*pairwise(levels)]), 1):
            at, starts, b, w = _joined(W, rows, around, squared)
            made = self._room(taken % 2, len(at))
            for block in _cuts(len(at), self._block):
                self._differences(G, at[block], starts[block.start : block.stop + 1], b, w, made[block])
            G = made
        return G

    def _far(self, X: FloatArray, scale: Scale, W: csr_array, levels: list[IntArray], last: Scale) -> FloatArray:
        """The same (1, line) of a single row that reaches more rows than a tile has, its last scale (n,) given: summed
        over runs of its neighbours that do not, or each of which is such a row itself: at powers above 2 the rows
        about a hub are then read again for each row that reaches them through it."""
        _, j, w = entries(W, levels[0])
        w = w if last is None else w * last[levels[0]]
        order = np.argsort(j)
        j, w = j[order], w[order]
        mine = self._raised(X, scale, W, levels[:-1]).copy()
        total = np.zeros_like(mine)
        for run in row_runs(W, j, len(levels) - 2, self._tile):
            G = self._raised(X, scale, W, run)
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(mine, G, out=G)  # equal rows differ by 0 to the bit
                total += w[np.searchsorted(j, run[0])] @ G
        return total

    def _rows_of(self, X: FloatArray, touched: IntArray, scale: Scale) -> FloatArray:
        """[F | 1] of these rows, each times its scale; [F | 0] where there is none."""
        G, features, m = self._room(0, len(touched)), self._features, self._width - 1
        step = features.phi.tile_rows
        for start in range(0, len(touched), step):
            rows, out = touched[start : start + step], G[start : start + step]
            if self._whole is None or self._columns is None:
                features(X[rows], out, self._work)
            else:
                features(X[rows], self._whole[: len(rows)], self._work)
                np.take(self._whole[: len(rows)], self._columns, axis=1, out=out[:, :m])
            out[:, m] = 0.0 if scale is None else 1.0
            if scale is not None:
                out *= scale[rows, None]
        return G

    def _room(self, which: int, rows: int) -> FloatArray:
        """One of two buffers of rows, the columns beyond T's left at zero. Memory is taken as it is written to."""
        if len(self._tiles[which]) < rows:
            self._tiles[which] = np.zeros((max(rows, self._tile), self._line))
        return self._tiles[which][:rows]

    def _differences(
        self, G: FloatArray, at: IntArray, starts: IntArray, others: IntArray, weights: FloatArray, out: FloatArray
    ) -> FloatArray:
        """The rows sum_e weights_e (G[at] - G[others_e]) in `out`, and their products with the probe, in cache."""
        step = max(1, _CACHED // self._line)
        for start in range(0, len(at), step):
            stop = min(start + step, len(at))
            rows = out[start:stop]
            differences(G, at[start:stop], starts[start : stop + 1], others, weights, rows)
            with np.errstate(over="ignore", invalid="ignore"):
                np.dot(rows, self._probe, out=self._along[start:stop])
        return out[: len(at)]

    def _add_rows(self, Z: FloatArray) -> None:
        sums, began = self.of(_T), time.perf_counter()
        sums.add(Z[:, : self._width], along=self._along[: len(Z)])
        sums.n -= len(Z)  # edges are counted, not rows
        self.syrk_seconds += time.perf_counter() - began

    def _add_pair(self, Z: FloatArray, LZ: FloatArray, v: FloatArray, apart: FloatArray) -> None:
        """Z and LZ; along the probe what both come to, and how far (n,) rows are from those joined: what cancelled."""
        sums = self.of(_T)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.sqrt(np.einsum("ij,ij->i", Z, Z)) * (np.sqrt(np.einsum("ij,ij->i", LZ, LZ)) + apart)
            self.of(_SIZE).add(np.sqrt(size).reshape(-1, 1))
        began, along = time.perf_counter(), (v, self._along[: len(Z)])
        sums.add_pair(Z[:, : self._width], LZ[:, : self._width], along=along, size=float(size.sum()))
        sums.n -= len(Z)
        self.syrk_seconds += time.perf_counter() - began


def _joined(
    W: csr_array, rows: IntArray, around: IntArray, scale: Scale
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """The edges of rows (k,): the places of the rows among `around`, where the edges of each begin and end (k + 1,),
    the places of their other ends, and their weights times the row's scale."""
    i, j, w = entries(W, rows)
    at, b = np.searchsorted(around, rows), np.searchsorted(around, j)
    return at, np.append(0, np.cumsum(np.diff(W.indptr)[rows])), b, w if scale is None else w * scale[i]


def _cuts(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def new_sums(features: FeatureMap, recipe: TermRecipe) -> GraphSums | BlockSums:
    """What rows are added to, for T of this recipe."""
    if recipe.form is Form.IDENTITY:
        return BlockSums(features, _NONE, block_rows=block_rows(recipe.width(features)))
    return GraphSums(features, recipe)


def finished(parts: Mapping[Part, Moments], features: FeatureMap, recipe: TermRecipe) -> Moments:
    """T over all m features from the sums of all its parts, zero where it is not of a feature; `unit` says what
    rounding may have cost, relative to the largest diagonal entry (`difference_shift`)."""
    width = recipe.width(features)
    if (T := parts.get(_T)) is None:  # not one edge
        T = Moments(width - 1, 0, 0, _NONE, np.zeros(width * (width + 1) // 2))
    if _SIZE in parts:
        T = _losing(T, UNIT * float(parts[_SIZE].packed[0]))
    return T if recipe.columns is None else _spread(T, recipe.columns, features.m)


def added(first: Moments, second: Moments) -> Moments:
    """T of two sources of rows, each with a graph of its own: what rounding may have cost is added too."""
    lost = sum(difference_shift(T) * _largest(T) for T in (first, second))
    return _losing(replace(first + second, unit=UNIT), lost)


def _losing(T: Moments, lost: float) -> Moments:
    """T with the `unit` of what rounding may have cost; where T = 0 nothing cancelled, so nothing was lost."""
    largest = _largest(T)
    return replace(T, unit=max(UNIT, min(1.0, lost / largest))) if largest > 0 else T


def _largest(T: Moments) -> float:
    return max(0.0, float(T.packed[np.cumsum(np.arange(1, T.m + 2)) - 1].max()))


def _spread(T: Moments, columns: tuple[int, ...], m: int) -> Moments:
    """The same sums among those of m features."""
    at = np.append(np.array(columns, dtype=np.int64), m)
    packed = np.zeros((m + 1) * (m + 2) // 2)
    for j, column in enumerate(at):
        low, high = np.minimum(at[: j + 1], column), np.maximum(at[: j + 1], column)
        packed[high * (high + 1) // 2 + low] = T.packed[j * (j + 1) // 2 : (j + 1) * (j + 2) // 2]
    return replace(T, m=m, values=packed)


def in_memory(
    features: FeatureMap,
    X: FloatArray,
    graph: csr_array | Graph,
    term: Manifold,
    *,
    inputs: Places = None,
    columns: Places = None,
) -> Moments:
    """T of rows X (n, d) in memory, finite, over all m features: of the weights W (n, n) that are given (`checked`),
    of their nearest neighbours among all rows, or within runs of `GROUP_ROWS`, or of L = I. `inputs` are the columns
    of X that distances are of, `columns` those of the features that T is of; None for all."""
    term = replace(term, graph=graph) if isinstance(graph, Graph) else term
    recipe = TermRecipe.of(term, inputs=inputs, columns=columns)
    sums = new_sums(features, recipe)
    X = np.ascontiguousarray(X, dtype=np.float64)
    if isinstance(sums, GraphSums) and (not isinstance(graph, KNN) or graph.within == "data"):
        sums.add_whole(X, local_graph(sums.scaled(X), graph) if isinstance(graph, KNN) else graph)
    else:
        for rows in _cuts(len(X), GROUP_ROWS):
            sums.add(X[rows], np.zeros((len(X[rows]), 0)))
    return finished(sums.total(Moments), features, recipe)
