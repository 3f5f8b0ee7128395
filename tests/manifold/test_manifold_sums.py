"""T of a graph: the dense product in every form, whatever the parts, tiles, engines, and stops on the way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import zarr
from cases import LAW, laplacian, trig_map
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from pass_specs import constants_of, spec_of
from quick import slow
from scipy import sparse

from dorff.data import Dataset, ingest, open_dataset
from dorff.data.edges import open_graph, write_graph
from dorff.engine import Engine, SerialEngine
from dorff.engine.base import forget_spare
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import IncompleteError, InputError, StoppedError
from dorff.errors.stopping import clear_stop, request_stop
from dorff.features import FeatureMap
from dorff.graphs import KNN, Given, Graph, Identity, Manifold, degrees, local_graph
from dorff.loops import differences
from dorff.manifold import GraphSums, LeafTerm, ShardTerm, added, build, in_memory, sum_term
from dorff.manifold import leaves as term_leaves
from dorff.manifold.laplacian_sums import finished
from dorff.manifold.leaves import ShardPart, group_reads
from dorff.manifold.leaves import Shards as BuiltShards
from dorff.moments import UNIT, Accumulator, FloatArray, IntArray, Moments, syr2k
from dorff.passes import BlockSums, FoldRule, Leaf, Pass, frozen_hash, load_pass, sum_leaf
from dorff.passes.frozen import freeze
from dorff.plan import graph_sizes
from dorff.plan.graph_sizes import (
    GROUP_ROWS,
    Degrees,
    Form,
    GraphCosts,
    Sizes,
    TermRecipe,
    difference_shift,
    term_bytes,
    term_flops,
)

D, M = 3, 12
SIZES = Sizes(partition_rows=400)
SHORT = Sizes(shard_rows=300, input_bytes=256 * 8 * D)  # parts of 256 rows
RNG = np.random.default_rng(4)
FEATURES = trig_map(RNG.standard_normal((M // 2, D)), RNG.standard_normal(D), np.array([0.5, 1.0, 2.0]))
WAYS: dict[str, dict[str, Any]] = {
    "edges": {"form": "edges"},
    "difference": {"form": "difference"},
    "square": {"power": 2},
    "fourth": {"power": 4},
}


@pytest.fixture(autouse=True)
def nobody_stops() -> Iterator[None]:
    clear_stop()
    forget_spare()
    yield
    clear_stop()


def inputs(n: int, seed: int = 0) -> FloatArray:
    """Rows some of which are copies."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D))[rng.integers(0, n, n)]


def some_graph(n: int, edges: int, seed: int = 0) -> sparse.csr_array:
    """Weights (n, n) of a random graph, with rows that have no edge."""
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, max(1, n - 2), (2, edges))
    W = np.zeros((n, n))
    W[i, j] = rng.uniform(0.1, 2.0, edges)
    return sparse.csr_array(np.triu(W, 1) + np.triu(W, 1).T)


def star(n: int, hub: int) -> sparse.csr_array:
    """Weights (n, n) of a graph in which each row is joined to one, the hub."""
    W = sparse.lil_array((n, n))
    W[hub] = np.random.default_rng(n).uniform(0.5, 1.0, n)
    W[hub, hub] = 0.0
    return sparse.csr_array(W + W.T)


def dense(X: FloatArray, W: sparse.csr_array, term: Manifold, columns: slice | list[int] = slice(None)) -> FloatArray:
    """[F | 1]^T L^power [F | 1]."""
    return between(np.column_stack([FEATURES.transform(X)[:, columns], np.ones(len(X))]), W, term)


def between(Z: FloatArray, W: sparse.csr_array, term: Manifold) -> FloatArray:
    """Z^T L^power Z."""
    LZ, L = Z, laplacian(W, normalised=term.normalised)
    for _ in range(term.power):
        LZ = L @ LZ
    return np.asarray(Z.T @ LZ)


def close(found: Moments, wanted: FloatArray) -> None:
    np.testing.assert_allclose(found.full, wanted, rtol=0, atol=1e-12 * max(1.0, np.abs(wanted).max()))


def terms() -> Iterator[Any]:
    for way, options in WAYS.items():
        for laplace in ("unnormalised", "normalised"):
            yield pytest.param(Manifold(KNN(4), laplacian=laplace, **options), id=f"{way}, {laplace}")


TERMS = list(terms())


@pytest.mark.parametrize("term", TERMS)
@LAW
@given(n=st.integers(1, 30), edges=st.integers(0, 90), seed=st.integers(0, 999), tile=st.integers(2, 40))
def test_every_form_is_the_dense_product_whatever_the_tiles(
    term: Manifold, n: int, edges: int, seed: int, tile: int
) -> None:
    X, W = inputs(n, seed), some_graph(n, edges, seed)
    found = in_memory(FEATURES, X, W, term)
    close(found, dense(X, W, term))
    assert (found.m, found.q, found.n, found.kind) == (M, 0, W.nnz // 2, "gram")
    sums = GraphSums(FEATURES, TermRecipe.of(term), tile=tile)
    sums.add_whole(X, W)
    assert all(adder.intact() for adder in sums.sums.values())
    if W.nnz:
        whole = sums.of((0, "")).moments()
        close(whole, found.full)
        assert whole.n == found.n


@pytest.mark.parametrize(("power", "n", "tile"), [(2, 3000, 300), (4, 150, 30)])
def test_a_row_that_all_others_are_joined_to_takes_no_more_memory_than_tiles(power: int, n: int, tile: int) -> None:
    rng, term = np.random.default_rng(0), Manifold(KNN(4), laplacian="normalised", power=power)
    features, X = trig_map(rng.standard_normal((256, D)), np.zeros(D), np.ones(D)), rng.standard_normal((n, D))
    W = star(n, n // 2)
    in_memory(features, X[:5], star(5, 2), term)  # loops are compiled
    sums = GraphSums(features, TermRecipe.of(term), tile=tile)
    sums.of((0, ""))
    tracemalloc.start()
    try:
        sums.add_whole(X, W)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 513 * n  # less than the features of all rows
    wanted = between(np.column_stack([features.transform(X), np.ones(n)]), W, term)
    np.testing.assert_allclose(sums.of((0, "")).moments().full, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    assert sums.of((0, "")).intact()


@pytest.mark.parametrize("term", TERMS)
def test_the_column_of_ones_is_nothing_where_the_laplacian_takes_it_to_nothing(term: Manifold) -> None:
    X, W = inputs(60), some_graph(60, 150)
    last = in_memory(FEATURES, X, W, term).full[-1]
    assert np.any(last) == term.normalised


@pytest.mark.parametrize("way", WAYS)
def test_within_leaves_each_group_is_a_graph(way: str) -> None:
    X = inputs(2 * GROUP_ROWS + 5)[: GROUP_ROWS + 40]
    knn = KNN(3, within="leaf")
    term = Manifold(knn, **WAYS[way])
    x = (X - FEATURES.center) / FEATURES.scale
    wanted = sum(
        dense(X[at : at + GROUP_ROWS], local_graph(x[at : at + GROUP_ROWS], knn), term) for at in (0, GROUP_ROWS)
    )
    close(in_memory(FEATURES, X, knn, term), np.asarray(wanted))


def test_over_all_rows_the_graph_is_one() -> None:
    X, knn = inputs(150), KNN(5)
    term = Manifold(knn, laplacian="normalised")
    x = (X - FEATURES.center) / FEATURES.scale
    close(in_memory(FEATURES, X, knn, term), dense(X, local_graph(x, knn), term))
    near = local_graph(np.ascontiguousarray(x[:, [2, 0]]), knn)
    columns = [1, 2, 7, 8]
    part = in_memory(FEATURES, X, knn, term, inputs=(2, 0), columns=tuple(columns))
    assert part.m == M
    wanted = np.zeros((M + 1, M + 1))
    wanted[np.ix_([*columns, M], [*columns, M])] = dense(X, near, term, columns)
    close(part, wanted)


def test_identity_is_the_rows_products() -> None:
    X = inputs(GROUP_ROWS + 30)
    Z = np.column_stack([FEATURES.transform(X), np.ones(len(X))])
    found = in_memory(FEATURES, X, Identity(), Manifold(Identity()))
    close(found, Z.T @ Z)
    assert (found.n, found.q, difference_shift(found)) == (len(X), 0, 0.0)


def test_sums_without_targets_are_cut_like_any() -> None:
    X, W, at = inputs(40), some_graph(40, 100), np.array([3, 0, 9])
    whole = in_memory(FEATURES, X, W, Manifold(KNN(4)))
    keep = np.append(at, M)
    close(whole.columns(at, 2.0), whole.full[np.ix_(keep, keep)] * np.outer([2, 2, 2, 1], [2, 2, 2, 1]))


@pytest.mark.parametrize("near", [1.0, 1e-3, 1e-6, 1e-9])
def test_rounding_is_what_the_shift_says(near: float) -> None:
    """Rows of a curve, closer and closer: what the difference form loses, against the edge form."""
    t = np.linspace(0.0, near, 400)
    X = np.column_stack([np.sin(t), np.cos(3 * t), t])
    W = local_graph(X, KNN(8))
    edges, pairs = (in_memory(FEATURES, X, W, Manifold(KNN(8), form=form)) for form in ("edges", "difference"))
    shift, largest = difference_shift(pairs), np.diag(edges.full).max()
    assert difference_shift(edges) == 0.0 and shift > UNIT
    assert np.linalg.norm(pairs.full - edges.full, 2) < 0.3 * shift * largest
    assert np.linalg.eigvalsh(edges.full)[0] >= -50 * UNIT * largest
    assert np.linalg.eigvalsh(pairs.full + shift * largest * np.eye(M + 1))[0] > 0


def test_a_graph_of_copies_has_no_differences() -> None:
    X, W = np.ones((20, D)), some_graph(20, 60)
    for options in WAYS.values():
        found = in_memory(FEATURES, X, W, Manifold(KNN(4), **options))
        assert not found.packed.any() and difference_shift(found) == 0.0
    assert in_memory(FEATURES, X, sparse.csr_array((20, 20)), Manifold(KNN(4))).unit == UNIT


def test_sources_add_what_each_lost_not_the_share_of_it() -> None:
    """Near-copies lose much of their own small sums, and next to nothing of those of two sources."""
    W = some_graph(60, 200)
    pair, edge = (Manifold(KNN(4), form=form) for form in ("difference", "edges"))
    X, near = inputs(60), 1.0 + 1e-8 * inputs(60, 1)
    much, little = (in_memory(FEATURES, x, W, pair) for x in (X, near))
    both = added(much, little)
    assert np.array_equal(both.packed, (much + little).packed) and both.n == 2 * much.n
    assert little.unit > 1e6 * much.unit and both.unit < 1.01 * much.unit
    lost = sum(one.unit * np.diag(one.full).max() for one in (much, little))
    np.testing.assert_allclose(both.unit * np.diag(both.full).max(), lost, rtol=1e-12)
    none = in_memory(FEATURES, np.ones((60, D)), W, pair)
    assert added(none, none).unit == UNIT
    np.testing.assert_allclose(added(none, much).unit, much.unit, rtol=1e-12)
    exact = in_memory(FEATURES, X, W, edge), in_memory(FEATURES, inputs(60, 2), W, edge)
    assert difference_shift(added(*exact)) == 0.0


# Across leaves: shards with their halo.


@final
@dataclass(frozen=True, eq=False)
class Shards:
    """A graph of rows in memory, its rows dealt to shards."""

    X: FloatArray
    W: sparse.csr_array
    shard: IntArray
    stamps: tuple[str, ...] = ("",)

    @property
    def count(self) -> int:
        return int(self.shard.max()) + 1

    def stamp(self, start: int, stop: int) -> str:
        return f"{start} {stop} {self.stamps[0]}"

    def adjacency(self, shard: int) -> tuple[IntArray, IntArray, FloatArray]:
        rows = np.flatnonzero(self.shard == shard)
        some = self.W[rows]
        return np.repeat(rows, np.diff(some.indptr)), some.indices.astype(np.int64), some.data

    def degrees(self, rows: IntArray) -> FloatArray:
        return degrees(self.W)[rows]

    def inputs(self, rows: IntArray) -> FloatArray:
        return self.X[rows]

    def holding(self, rows: IntArray) -> IntArray:
        return self.shard[rows]

    def of_owned(self) -> Shards:
        return replace(self, stamps=("owned",))

    def of_far(self) -> Shards:
        return replace(self, stamps=("far",))


def shards() -> Shards:
    """Seven, of which one has no rows."""
    shard = np.random.default_rng(1).integers(0, 7, 90)
    return Shards(inputs(90), some_graph(90, 270), np.where(shard == 3, 5, shard))


def make_pass(folder: Path, features: FeatureMap = FEATURES, *, read_rows: int = 128, nan: str = "refuse") -> Pass:
    spec = spec_of(read_rows=read_rows, nan=nan, precision="mixed", folds=FoldRule(3, True, 1), seed=2)
    freeze(folder, spec, constants_of(features, np.array([0.5])))
    name = frozen_hash(folder)
    assert name is not None
    return load_pass(folder, name)


def quiet(_: int) -> None:
    pass


@pytest.mark.parametrize("term", TERMS)
def test_shards_with_their_halo_are_the_whole_graph(term: Manifold, tmp_path: Path) -> None:
    store, this = shards(), make_pass(tmp_path)
    found, receipts = sum_term(this, term, store, None, SerialEngine(), quiet)
    close(found, dense(store.X, store.W, term))
    assert found.n == store.W.nnz // 2 and [one.rows_used for one in receipts] == [4, 3]


@pytest.mark.parametrize("way", ["edges", "difference", *slow("square", "fourth")])
@LAW
@given(edges=st.integers(0, 270), seed=st.integers(0, 999), limit=st.integers(2, 60))
def test_parts_of_few_rows_are_the_whole_graph(way: str, edges: int, seed: int, limit: int) -> None:
    """A part of more rows than the limit is of one row and its neighbours: only a power of L needs all of these."""
    term = Manifold(KNN(4), laplacian="normalised", **WAYS[way])
    X, W, recipe = inputs(90, seed), some_graph(90, edges, seed), TermRecipe.of(term)
    store = Shards(X, W, np.random.default_rng(seed).permutation(90) // 30)
    sums, owned = GraphSums(FEATURES, recipe), list[int]()
    for shard in range(store.count):
        for part in ShardPart.cut(store, shard, recipe, limit):
            assert len(part.X) <= limit or (recipe.form is Form.POWER and part.own.sum() == 1)
            sums.add_local(part.X, part.W, part.own, part.numbers, part.degree)
            owned += part.numbers[part.own].tolist()
    found = {part: adder.moments() for part, adder in sums.sums.items() if isinstance(adder, Accumulator)}
    close(finished(found, FEATURES, recipe), dense(X, W, term))
    if recipe.form is Form.POWER:
        assert sorted(owned) == np.flatnonzero(np.diff(W.indptr)).tolist()  # L is 0 at a row without edges


@final
@dataclass(frozen=True, eq=False)
class Wide:
    """Rows of so many inputs, all but three 0, made when they are asked for; it counts how many these are."""

    inner: Shards
    d: int
    asked: list[int]

    @property
    def count(self) -> int:
        return self.inner.count

    def inputs(self, rows: IntArray) -> FloatArray:
        self.asked.append(len(rows))
        X = np.zeros((len(rows), self.d))
        X[:, :D] = self.inner.X[rows]
        return X

    def of_owned(self) -> Wide:
        return self

    def of_far(self) -> Wide:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_in_random_order_is_read_a_part_at_a_time(way: str, tmp_path: Path) -> None:
    """Each shard touches nearly all rows, but no more of them are read at a time than 64 MiB hold."""
    n, d = 1200, 2**14
    limit, rng = Sizes().rows(d), np.random.default_rng(0)
    assert limit == 512
    features = trig_map(np.eye(M // 2, d), np.zeros(d), np.ones(d))
    i, j = rng.integers(0, n, (2, 3 * n if way != "fourth" else n // 2))
    W = sparse.coo_array((np.ones(len(i)), (i, j)), (n, n)).tocsr()
    W = sparse.csr_array(sparse.triu(W, 1) + sparse.triu(W, 1).T)
    store = Wide(Shards(rng.standard_normal((n, D)), W, rng.permutation(n) // 600), d, [])
    this, term = make_pass(tmp_path, features), Manifold(KNN(4), **WAYS[way])
    found, receipts = sum_term(this, term, store, None, SerialEngine(), quiet)
    assert max(store.asked) <= limit and [one.rows_read for one in receipts] == [sum(store.asked)]
    small = trig_map(np.eye(M // 2, D), np.zeros(D), np.ones(D))
    wanted = between(np.column_stack([small.transform(store.inner.X), np.ones(n)]), W, term)
    np.testing.assert_allclose(found.full, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("way", WAYS)
def test_stopped_shards_go_on_to_the_same_bits(way: str, tmp_path: Path) -> None:
    store, term = shards(), Manifold(KNN(4), laplacian="normalised", **WAYS[way])
    nodes = []
    for folder, stops in (("a", False), ("b", True)):
        place = ShardTerm.of(make_pass(tmp_path / folder / "state"), TermRecipe.of(term), "")
        times = 0
        while True:
            if stops:
                request_stop()
            try:
                receipt = place.leaf(store, Leaf(0, 1, 5))
                break
            except StoppedError:
                times += 1
        assert times == (3 if stops else 0) and not list(place.checkpoints.glob("*"))
        nodes.append(place.node(0, 0, receipt.key).read_bytes())
        clear_stop()
    assert nodes[0] == nodes[1]


@final
@dataclass(frozen=True, eq=False)
class Restless:
    """Shards whose files are others each time that they are asked for."""

    inner: Shards
    asked: Iterator[int]

    @property
    def count(self) -> int:
        return self.inner.count

    def stamp(self, start: int, stop: int) -> str:
        return str(next(self.asked))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_graph_that_changes_while_it_is_read_is_not_summed(tmp_path: Path) -> None:
    place = ShardTerm.of(make_pass(tmp_path), TermRecipe.of(Manifold(KNN(4))), "")
    with pytest.raises(IncompleteError, match=r"shards 0 to 2: the graph changed.*run the job again"):
        place.leaf(Restless(shards(), count()), Leaf(0, 0, 3))
    assert not list(place.directory.glob("nodes/*")) and not list(place.directory.glob("receipts/*"))


def test_weights_that_overflow_are_refused(tmp_path: Path) -> None:
    store = replace(shards(), W=shards().W * 8e307)
    for way in ("edges", "difference", "square"):
        term = Manifold(KNN(4), **WAYS[way])
        with pytest.raises(InputError, match=r"the sums overflow float64.*rescale"):
            sum_term(make_pass(tmp_path / way), term, store, None, SerialEngine(), quiet)


def test_appended_rows_change_no_earlier_ones_edges(tmp_path: Path) -> None:
    """In edge form an edge is its later row's, so that the sums of earlier shards stay."""
    X, W, shard = inputs(80), some_graph(80, 240), np.repeat(np.arange(8), 10)
    before = Shards(X[:40], W[:40, :40].tocsr(), shard[:40])
    this, term = make_pass(tmp_path), Manifold(KNN(4), form="edges")
    sum_term(this, term, before, None, SerialEngine(), quiet)
    done = list[int]()
    found, _ = sum_term(this, term, Shards(X, W, shard), None, SerialEngine(), done.append)
    close(found, dense(X, W, term))
    assert done == [4, 8]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows for six leaves of one group each."""
    folder = tmp_path_factory.mktemp("many")
    np.savez(folder / "rows.npz", x=inputs(6 * 600, 7))
    ingest([folder / "rows.npz"], folder / "rows.zarr", inputs=["x"], targets=[], shard_rows=600)
    return open_dataset(folder / "rows.zarr", targets=None)


def edges_of(graph: BuiltShards, n: int) -> sparse.csr_array:
    """W (n, n)."""
    W = sparse.lil_array((n, n))
    for shard in range(graph.count):
        i, j, w = graph.adjacency(shard)
        W[i, j] = w
    return sparse.csr_array(W)


@pytest.mark.parametrize("way", WAYS)
def test_of_a_graph_that_is_built_over_the_data(way: str, many: Dataset, tmp_path: Path) -> None:
    """Sums over an edge store of several shards, as over the same edges in memory."""
    this, knn = make_pass(tmp_path / "state"), KNN(4)
    graph = build(knn, many, this, None, SerialEngine(), tmp_path / "graphs", lambda *_: None, sizes=SIZES)
    term, X = Manifold(knn, laplacian="normalised", **WAYS[way]), many.read(0, many.n)[0]
    found, _ = sum_term(this, term, graph, None, SerialEngine(), quiet)
    close(found, in_memory(FEATURES, X, edges_of(graph, many.n), term).full)
    assert graph.count > 4 and graph.edges == found.n


FAR = {
    "normalised": {"laplacian": "normalised"},
    "fourth power": {"power": 4},
    "difference": {"form": "difference"},
}


@pytest.mark.parametrize("way", FAR)
@pytest.mark.parametrize("of_file", [True, False], ids=["given", "linked"])
def test_a_shard_whose_neighbours_change_is_summed_anew(
    of_file: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows on a line; what is appended, or rewritten, touches one side of the border between two roots of the tree."""
    monkeypatch.setattr(term_leaves, "SHARDS", 1)
    n, sizes = 900, Sizes(partition_rows=150, shard_rows=180)
    x = np.arange(n) + 0.1 * np.random.default_rng(0).uniform(size=n)
    store, file = tmp_path / "rows.zarr", tmp_path / "graph.parquet"
    path = sparse.coo_array((np.ones(n - 1), (np.arange(n - 1), np.arange(1, n))), shape=(n, n)).tocsr()
    graph: Given | KNN = Given(str(file)) if of_file else KNN(4, append="link")
    this, term, reused = make_pass(tmp_path / "state"), Manifold(graph, **FAR[way]), []

    def summed(more: FloatArray, W: sparse.csr_array) -> BuiltShards:
        if len(more):
            np.savez(tmp_path / "part.npz", x=np.column_stack([0.02 * more, np.zeros((len(more), D - 1))]))
            options = {"append": True} if store.exists() else {"shard_rows": 300}
            ingest([tmp_path / "part.npz"], store, inputs=["x"], targets=[], **options)
        if of_file:
            file.unlink(missing_ok=True)
            write_graph(file, W + W.T)
        rows, done = open_dataset(store, targets=None), list[int]()
        built = build(graph, rows, this, None, SerialEngine(), tmp_path / "graphs", lambda *_: None, sizes=sizes)
        found, _ = sum_term(this, term, built, None, SerialEngine(), done.append)
        close(found, dense(rows.read(0, rows.n)[0], edges_of(built, rows.n), term))
        reused.append(done[0])
        return built

    holding = summed(x, path).holding(np.arange(n))
    last = int(np.flatnonzero((holding[:-1] == 3) & (holding[1:] == 4))[0])  # of shards 0 to 3, which are one root
    path[last - 1, last] = 9.0  # at one more step from the border than a row's own edges are
    summed(np.array([x[last - 2] + 0.5])[: 0 if of_file else 1], path)
    assert reused[0] == 0 and (reused[1] == 0) == (way != "difference")


def test_linked_rows_leave_the_edges_of_older_ones_as_they_are(many: Dataset, tmp_path: Path) -> None:
    knn = KNN(3, append="link")
    this, term = make_pass(tmp_path / "state"), Manifold(knn, form="edges")
    store = tmp_path / "rows.zarr"
    X, done, counts = many.read(0, many.n)[0], list[int](), list[int]()
    for part in (X[:3000], X[3000:]):
        np.savez(tmp_path / "part.npz", x=part)
        # Some of the later rows equal earlier ones.
        more = {"append": True, "again": True} if store.exists() else {"shard_rows": 600}
        ingest([tmp_path / "part.npz"], store, inputs=["x"], targets=[], **more)
        rows = open_dataset(store, targets=None)
        graph = build(knn, rows, this, None, SerialEngine(), tmp_path / "graphs", lambda *_: None, sizes=SIZES)
        found, _ = sum_term(this, term, graph, None, SerialEngine(), done.append)
        counts.append(graph.count)
    assert counts[1] > counts[0] > 4 and done.count(0) == 1 and found.n == graph.edges
    close(found, in_memory(FEATURES, X, edges_of(graph, rows.n), term).full)


# Within leaves: through files, engines, stops and NaN.


ROWS = 3 * GROUP_ROWS + 300


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("rows")
    X = inputs(ROWS, 5)
    X[[3, GROUP_ROWS + 1, ROWS - 1], [0, 1, 2]] = np.nan
    np.savez(folder / "rows.npz", x=X)
    path = folder / "rows.zarr"
    ingest([folder / "rows.npz"], path, inputs=["x"], targets=[], shard_rows=1000)
    return open_dataset(path, targets=None)


LEAVES = [Leaf(0, 0, GROUP_ROWS + 900), Leaf(1, GROUP_ROWS + 900, ROWS, full=False)]


def groups() -> Iterator[slice]:
    for leaf in LEAVES:
        for start in range(leaf.start, leaf.stop, GROUP_ROWS):
            yield slice(start, min(start + GROUP_ROWS, leaf.stop))


@pytest.mark.parametrize("way", [*WAYS, "identity"])
def test_a_data_set_is_summed_group_by_group_without_its_nan(way: str, dataset: Dataset, tmp_path: Path) -> None:
    knn = KNN(2, within="leaf")
    term = Manifold(Identity()) if way == "identity" else Manifold(knn, laplacian="normalised", **WAYS[way])
    this, done = make_pass(tmp_path, nan="unlabelled"), list[int]()
    found, receipts = sum_term(this, term, dataset, LEAVES, SerialEngine(), done.append)
    X, _ = dataset.read(0, ROWS)
    wanted = np.zeros((M + 1, M + 1))
    for group in groups():
        some = X[group][np.isfinite(X[group]).all(axis=1)]
        W = sparse.eye_array(len(some), format="csr")
        if way == "identity":
            Z = np.column_stack([FEATURES.transform(some), np.ones(len(some))])
            wanted += Z.T @ Z
        else:
            W = local_graph((some - FEATURES.center) / FEATURES.scale, knn)
            wanted += dense(some, W, term)
    close(found, wanted)
    assert [one.rows_dropped for one in receipts] == [2, 1] and done[-1] == ROWS
    again, _ = sum_term(this, replace(term, weight=3.0), dataset, LEAVES, SerialEngine(), done.append)
    assert len(done) == 4 and done[::3] == [0, ROWS] and np.array_equal(again.packed, found.packed)


@pytest.mark.parametrize("graph", [KNN(2, within="leaf"), Identity()])
def test_rows_that_are_not_finite_are_refused_where_the_job_says_so(
    graph: Graph, dataset: Dataset, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=r"row 3 \(shard 0\), column x0: .*got nan.*set data\.nan: drop$"):
        sum_term(make_pass(tmp_path), Manifold(graph), dataset, LEAVES[:1], SerialEngine(), quiet)
    for nan in ("drop", "partial", "unlabelled"):
        this = make_pass(tmp_path / nan, nan=nan)
        _, receipts = sum_term(this, Manifold(graph), dataset, LEAVES, SerialEngine(), quiet)
        assert [one.rows_dropped for one in receipts] == [2, 1]


def summed(folder: Path, rows: Dataset | Shards, engine: Engine) -> FloatArray:
    leaves = [Leaf(number, 600 * number, 600 * (number + 1)) for number in range(6)]
    term = Manifold(KNN(3, within="leaf"), laplacian="normalised")
    return sum_term(make_pass(folder), term, rows, leaves, engine, quiet)[0].packed


@pytest.mark.process
def test_any_order_and_any_engine_give_the_same_bits(many: Dataset, tmp_path: Path) -> None:
    for rows in (many, shards()):
        names = [f"{type(rows).__name__} {seed}" for seed in range(3)]
        found = [summed(tmp_path / name, rows, SerialEngine(shuffle=seed)) for seed, name in enumerate(names)]
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
        if rows is many:
            with local_cluster(2) as cluster, Client(cluster) as client:
                assert np.array_equal(summed(tmp_path / "dask", rows, DaskEngine(client)), found[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_leaf_goes_on_to_the_same_bits(way: str, dataset: Dataset, tmp_path: Path) -> None:
    term, nodes = Manifold(KNN(2, within="leaf"), **WAYS[way]), []
    for folder, stops in (("a", False), ("b", True)):
        place = LeafTerm.of(make_pass(tmp_path / folder / "state", nan="drop"), TermRecipe.of(term), "")
        times = 0
        while True:
            if stops:
                request_stop()
            try:
                receipt = place.leaf(dataset, Leaf(1, 100, ROWS - 100))
                break
            except StoppedError:
                times += 1
        assert times == (3 if stops else 0)
        nodes.append(place.node(0, 1, receipt.key).read_bytes())
        clear_stop()
    assert nodes[0] == nodes[1]


def test_sums_that_are_lost_again_and_again_are_given_up(many: Dataset, tmp_path: Path) -> None:
    this, told = make_pass(tmp_path), list[int]()

    def lose(done: int) -> None:
        told.append(done)
        for node in tmp_path.glob("terms/*/nodes/*"):
            node.unlink()

    with pytest.raises(IncompleteError, match=r"terms.*missing or damaged, again and again.*then run again"):
        sum_term(this, Manifold(Identity()), many, [Leaf(0, 0, many.n)], SerialEngine(), lose)
    assert told == [0, *[many.n] * 3]
    with pytest.raises(InputError, match="the frozen plan is gone"):
        place = ShardTerm.of(this, TermRecipe.of(Manifold(KNN(4))), "")
        (tmp_path / "plan.json").unlink()
        place.leaf(shards(), Leaf(0, 0, 2))


def test_how_much_is_read_at_a_time_changes_no_bit(dataset: Dataset, tmp_path: Path) -> None:
    found = []
    for read_rows in (128, 3 * GROUP_ROWS):
        this = make_pass(tmp_path / str(read_rows), read_rows=read_rows, nan="drop")
        found.append(sum_term(this, Manifold(KNN(2, within="leaf")), dataset, LEAVES, SerialEngine(), quiet)[0])
    assert np.array_equal(found[0].packed, found[1].packed)
    assert group_reads(128, 1000) == GROUP_ROWS and group_reads(128, 2 * GROUP_ROWS) == 2 * GROUP_ROWS
    assert group_reads(5 * GROUP_ROWS, 1000) == 5 * GROUP_ROWS and group_reads(40_000, 512) == 9 * GROUP_ROWS


def test_terms_of_several_stores_and_recipes_do_not_meet(tmp_path: Path) -> None:
    this, term = make_pass(tmp_path), Manifold(KNN(4))
    places = [LeafTerm.of(this, TermRecipe.of(term), name).hash for name in ("", "unlabelled")]
    places += [LeafTerm.of(this, TermRecipe.of(replace(term, power=2)), "").hash]
    assert len(set(places)) == 3
    same = replace(term, weight=(1.0, 2.0), outputs=np.eye(2), scale="mean")
    assert LeafTerm.of(this, TermRecipe.of(same), "").hash == places[0]


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    place = LeafTerm.of(make_pass(tmp_path), TermRecipe.of(Manifold(KNN(4))), "")
    raw = place.description.read_bytes()
    for wrong in (b"", raw[:-1], raw.replace(b"4096", b"4095")):
        place.description.write_bytes(wrong)
        with pytest.raises(InputError, match=r"term\.json.*missing or damaged.*run the job again"):
            LeafTerm(place.directory, place.hash).opened()
    place.description.unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        place.opened()


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_number_is_seen(way: str) -> None:
    sums = GraphSums(FEATURES, TermRecipe.of(Manifold(KNN(4), laplacian="normalised", **WAYS[way])))
    sums.add_whole(inputs(200), some_graph(200, 600))
    total = sums.of((0, ""))
    assert total.intact()
    for i, j in ((0, 0), (3, 7), (M, M), (2, M)):
        before = total.square[i, j]
        total.square[i, j] += 1e-4 * np.abs(total.square).max()
        assert not total.intact()
        total.square[i, j] = before
    assert total.intact()


def test_the_recipe_is_what_the_words_say() -> None:
    forms = {k: TermRecipe.of(Manifold(KNN(k))).form for k in (1, 3, 4, 10)}
    assert forms == {1: Form.EDGES, 3: Form.EDGES, 4: Form.DIFFERENCE, 10: Form.DIFFERENCE}
    for term in (Manifold(KNN(4), power=4), Manifold(Identity()), Manifold(KNN(2, weights=0.5), form="edges")):
        recipe = TermRecipe.of(term, inputs=(1, 2))
        assert TermRecipe.from_config(recipe.config()) == recipe


def test_costs_grow_with_edges_and_memory_does_not() -> None:
    edges, pairs, square = (TermRecipe.of(Manifold(KNN(10), **WAYS[way])) for way in ("edges", "difference", "square"))
    w = 1025.0
    assert 10 * w**2 < term_flops(edges, 1024, 10.0) < 11 * w**2 < 11 * term_flops(square, 1024, 10.0)
    assert 2 * w**2 < term_flops(pairs, 1024, 10.0) < 3 * w**2
    few, many = (term_bytes(pairs, 1024, rows) for rows in (GROUP_ROWS, 10**7))
    assert 8 * w**2 + 8 * w * GROUP_ROWS < few < many < 8 * w**2 + 200 * 2**20


def test_a_given_graph_is_planned_by_its_edges(many: Dataset, tmp_path: Path) -> None:
    n, rng, costs = many.n, np.random.default_rng(0), []
    for degree in (4, 40):
        i = np.repeat(np.arange(n), degree // 2)
        W = sparse.coo_array((np.ones(len(i)), (i, (i + 1 + rng.integers(0, n - 1, len(i))) % n)), (n, n)).tocsr()
        W = sparse.csr_array(W + W.T)
        graph = Given(str(tmp_path / f"{degree}.zarr"))
        write_graph(graph.source, W)
        costs.append(GraphCosts.of(graph, many, sizes=SHORT))
        assert 1.0 + degree < 1.1 * costs[-1].repeats < 2.2 * (1.0 + degree)
        state = tmp_path / f"state {degree}"
        built = build(
            graph, many, make_pass(state), None, SerialEngine(), state / "graphs", lambda *_: None, sizes=SHORT
        )  # fmt: skip
        assert sum(file.stat().st_size for file in state.rglob("graphs/**/*")) < costs[-1].disk_bytes
        recipe = TermRecipe.of(Manifold(graph, power=4))
        twice = GraphCosts.of(graph, many, hops=2, sizes=SHORT)
        parts = [len(part.X) for part in ShardPart.cut(built, 0, recipe, SHORT.rows(many.d))]
        assert max(parts) <= twice.piece_rows <= n
        assert twice.edge_bytes > costs[-1].edge_bytes and twice.repeats > costs[-1].repeats
    few, more = costs
    assert more.disk_bytes > 5 * few.disk_bytes and more.edge_bytes > 5 * few.edge_bytes
    assert (few.piece_rows, few.task_bytes) == (256, more.task_bytes)
    far = GraphCosts.of(graph, many, hops=5000, sizes=SHORT)
    assert (far.piece_rows, far.repeats) == (n, float(n))


@LAW
@given(n=st.integers(1, 30), edges=st.integers(0, 60), seed=st.integers(0, 999), hops=st.integers(1, 4))
def test_no_row_reaches_more_rows_than_the_degrees_allow(n: int, edges: int, seed: int, hops: int) -> None:
    W, shard = some_graph(n, edges, seed).toarray() > 0, slice(n // 3, n // 2 + 1)
    found, counts = np.unique(W.sum(axis=1), return_counts=True)
    degrees = Degrees(found[::-1], counts[::-1], int(W[shard].sum()))
    near = np.linalg.matrix_power(W + np.eye(n), hops) > 0
    assert near.sum(axis=1).max() <= degrees.reached(1, hops, n) <= n
    assert (
        W[near[shard].any(axis=0)].sum()
        <= degrees.reached(degrees.shard, hops, degrees.total)
        <= degrees.total
        == W.sum()
    )
    assert degrees.reached(1, 1, n) == 1 + W.sum(axis=1).max() and degrees.shard == W[shard].sum()
    assert 1.0 <= degrees.repeats(n, hops) <= n


@pytest.mark.parametrize(("kind", "often"), [("csr", 1), ("edges", 2), ("parquet", 2)])
def test_degrees_are_counted_of_what_is_in_range(
    kind: str, often: int, many: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is an edge of both its ends; a matrix has two entries for that. What is out of range is another's."""
    n, path = many.n, tmp_path / ("g.parquet" if kind == "parquet" else "g.zarr")
    W = some_graph(n, 9000)
    if kind == "csr":
        group = zarr.open_group(path, mode="w")
        for name in ("indptr", "indices"):
            group.create_array(name, data=getattr(W, name), config={"write_empty_chunks": True})
    else:
        write_graph(path, W)
    monkeypatch.setattr(graph_sizes, "COUNTED", 2)  # shards
    degree = often * np.diff(W.indptr)
    for rows in (many, replace(many, first=700)):
        found = Degrees.of(open_graph(path), rows, 300)
        here = degree[rows.first :]
        assert found.total == here.sum() and found.most(1) == here.max() and found.most(5) == np.sort(here)[-5:].sum()
        shards = np.add.reduceat(degree, np.append(0, np.arange(rows.first - rows.first % 300 + 300, n, 300)))
        assert found.shard == shards.max()


def test_a_graph_that_is_missing_damaged_or_of_other_rows_has_no_plan(many: Dataset, tmp_path: Path) -> None:
    write_graph(tmp_path / "few.zarr", some_graph(many.n - 1, 40))
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and so on")
    wrong = {
        "few.zarr": "wanted one node a row, 3600, got a graph of 3599",
        "damaged.parquet": "cannot be read",
        "none": "there is none",
    }
    for name, words in wrong.items():
        with pytest.raises(InputError, match=rf"{name}.*{words}"):
            GraphCosts.of(Given(str(tmp_path / name)), many)


def test_rows_without_any_target_are_left_out_of_the_labelled_sums(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((60, 2)), rng.standard_normal((60, 2))
    Y[:40], Y[45, 0], X[50, 1] = np.nan, np.nan, np.inf
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], targets=["y"])
    rows = open_dataset(tmp_path / "rows.zarr")
    this = make_pass(tmp_path / "state")
    this = replace(this, spec=replace(this.spec, nan="unlabelled", folds=FoldRule()))
    features = trig_map(np.eye(2), np.zeros(2), np.ones(2))
    sums = BlockSums(features, np.zeros(2), block_rows=16)
    receipt = sum_leaf(this, this, sums, rows, Leaf(0, 0, 60))
    found = {part: adder.n for part, adder in sums.sums.items()}
    assert (receipt.rows_used, receipt.rows_dropped, receipt.rows_unlabelled) == (19, 1, 40)
    assert found == {(0, ""): 18, (0, "01"): 1}


@LAW
@given(n=st.integers(1, 9), width=st.integers(1, 20), seed=st.integers(0, 99))
def test_the_loop_and_the_product_are_their_dense_twins(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    G, held = rng.standard_normal((12, width)), rng.integers(0, 11, n)
    starts, others = np.append(0, np.cumsum(held)), rng.integers(0, 12, held.sum())
    at, weights, out = rng.integers(0, 12, n), rng.uniform(0, 2, held.sum()), np.full((n, width), np.nan)
    differences(G, at, starts, others, weights, out)
    wanted = [weights[a:b] @ (G[k] - G[others[a:b]]) for k, a, b in zip(at, starts, starts[1:], strict=False)]
    np.testing.assert_allclose(out, np.reshape(wanted, (n, width)), rtol=0, atol=1e-12)
    square = np.zeros((width, width), order="F")
    syr2k(G[at], out, square)
    product = G[at].T @ out
    np.testing.assert_allclose(np.triu(square), np.triu(product + product.T) / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("Z", "LZ", "square"),
    [
        (np.ones((4, 3)), np.ones((4, 3), np.float32), np.zeros((3, 3), order="F")),
        (np.ones((4, 3)), np.ones((5, 3)), np.zeros((3, 3), order="F")),
        (np.ones((4, 3)), np.ones((4, 8))[:, :3], np.zeros((3, 3), order="F")),
        (np.ones((4, 3)), np.ones((4, 3)), np.zeros((4, 4), order="F")),
    ],
)
def test_arrays_that_blas_would_misread_are_refused(Z: FloatArray, LZ: FloatArray, square: FloatArray) -> None:
    with pytest.raises(InputError, match="syr2k needs"):
        syr2k(Z, LZ, square)
