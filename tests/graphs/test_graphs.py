"""Neighbours, weights and Laplacians against plain NumPy, and the laws that hold whatever the rows are."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases import LAW, laplacian
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csgraph
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from dorff import graphs
from dorff.errors import InputError
from dorff.graphs import KNN, Given, Graph, Identity, Manifold, neighbourhood
from dorff.graphs.neighbourhood import FloatArray, IntArray

RNG = np.random.default_rng(7)


def twin(X: FloatArray, k: int, order: IntArray | None = None) -> tuple[IntArray, FloatArray]:
    """All distances, sorted by (distance, number)."""
    D = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.fill_diagonal(D, np.inf)
    ties = np.broadcast_to(np.arange(len(X)) if order is None else order, D.shape)
    found = np.lexsort((ties, D))[:, : min(k, len(X) - 1)]
    index, distance = np.full((len(X), k), -1), np.full((len(X), k), np.inf)
    index[:, : found.shape[1]] = found
    distance[:, : found.shape[1]] = np.sqrt(np.take_along_axis(D, found, axis=1))
    return index, distance


def twin_graph(X: FloatArray, knn: KNN) -> FloatArray:
    """W, one pair at a time."""
    index, distance = twin(X, knn.neighbours)
    lists = [
        [(int(j), float(d)) for j, d in zip(*row, strict=True) if j >= 0] for row in zip(index, distance, strict=True)
    ]
    own = [max((d for _, d in row), default=0.0) for row in lists]
    A = np.zeros((len(X), len(X)))
    for i, row in enumerate(lists):
        for j, d in row:
            if knn.weights == "binary" or d == 0.0:
                A[i, j] = 1.0
            elif knn.weights == "heat":
                A[i, j] = np.exp(-(d**2) / (own[i] * own[j])) if own[i] * own[j] > 0 else 0.0
            else:
                A[i, j] = np.exp(-(d**2) / (2.0 * float(knn.weights) ** 2))
    return (A + A.T) / 2.0


@st.composite
def rows(draw: st.DrawFn) -> FloatArray:
    """Few rows, on both sides of where the tree gives way to products: smooth, tied, doubled, or far away."""
    n, d, seed = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 5, 6, 9, 17])), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["smooth", "grid", "doubled", "equal", "far", "uneven"]))
    X = rng.standard_normal((n, d))
    return {
        "smooth": X,
        "grid": rng.integers(0, 3, (n, d)).astype(np.float64),
        "doubled": X[rng.integers(0, max(1, n // 3), n)],
        "equal": np.full((n, d), -0.0) * rng.choice([1.0, -1.0], (n, d)),
        "far": X + 1e7,
        "uneven": X * 10.0 ** rng.integers(-12, 12, (n, 1)),
    }[kind]


def weighted(n: int = 30, seed: int = 3) -> sp.csr_array:
    """Symmetric weights; the last three rows have no edge."""
    A = sp.random_array((n, n), density=0.15, rng=np.random.default_rng(seed), format="lil")
    A.setdiag(0)
    A[-3:] = 0
    A[:, -3:] = 0
    return sp.csr_array(A + A.T)


# --- neighbours


@LAW
@given(rows(), st.integers(1, 12))
def test_neighbours_are_those_of_all_distances(X: FloatArray, k: int) -> None:
    index, distance = graphs.neighbours(X, k)
    wanted, lengths = twin(X, k)
    assert (index == wanted).all() and (distance == lengths).all()


@LAW
@given(rows(), st.integers(1, 5), st.integers(0, 99))
def test_any_part_of_the_queries_and_candidates_gives_the_same_bits(X: FloatArray, k: int, seed: int) -> None:
    index, distance = graphs.neighbours(X, k)
    rng = np.random.default_rng(seed)
    asked = rng.integers(0, len(X), 1 + seed % 4)
    some, lengths = graphs.neighbours(X, k, queries=asked)
    assert (some == index[asked]).all() and (lengths == distance[asked]).all()
    held = np.unique(np.concatenate([asked, index[asked][index[asked] >= 0], rng.integers(0, len(X), 3)]))
    some, lengths = graphs.neighbours(X[held], k, queries=np.searchsorted(held, asked))
    assert (np.where(some >= 0, held[some], -1) == index[asked]).all() and (lengths == distance[asked]).all()


@LAW
@given(rows(), st.integers(1, 5), st.integers(0, 99))
def test_a_permutation_of_the_rows_permutes_the_graph(X: FloatArray, k: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(X))
    W = graphs.local_graph(X, KNN(k)).toarray()
    assert (graphs.local_graph(X[order], KNN(k), numbers=order).toarray() == W[np.ix_(order, order)]).all()


@pytest.mark.parametrize("d", [2, 5, 6, 12])
def test_tree_and_product_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, d: int) -> None:
    X = np.concatenate([RNG.standard_normal((300, d)), RNG.integers(0, 3, (300, d))])
    found = []
    for dimensions in (0, 99):
        monkeypatch.setattr("dorff.graphs.neighbourhood.TREE_DIMENSIONS", dimensions)
        found.append(graphs.neighbours(X, 7))
    assert all((a == b).all() for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("d", [3, 20])
def test_neither_threads_nor_blocks_change_a_bit(monkeypatch: pytest.MonkeyPatch, d: int) -> None:
    X = RNG.standard_normal((700, d))
    index, distance = graphs.neighbours(X, 6)
    monkeypatch.setattr("dorff.graphs.neighbourhood._BLOCK", 5000)
    monkeypatch.setattr("dorff.graphs.neighbourhood._TREE_BLOCK", 33)
    monkeypatch.setattr("dorff.graphs.neighbourhood._PAIR_BYTES", 999)
    monkeypatch.setattr("dorff.graphs.neighbourhood._PAIRS", 50)
    with threadpool_limits(2):
        again, lengths = graphs.neighbours(X, 6)
    assert (index == again).all() and (distance == lengths).all()
    theirs, found = NearestNeighbors(n_neighbors=6).fit(X).kneighbors()[::-1]
    assert (index == theirs).all() and np.allclose(distance, found, rtol=1e-12)


@pytest.mark.parametrize(
    "X",
    [
        # Rows of a cluster differ by less than float32 shows: all would be candidates, if not for float64.
        RNG.standard_normal((400, 8)) + 1e5 * np.repeat([[-1.0], [1.0]], 200, axis=0),
        RNG.standard_normal((400, 8)) + 1e9,
        RNG.choice([0.0, -0.0], (400, 8)),
        RNG.choice([0.0, -0.0], (400, 2)),
    ],
    ids=["clusters", "far", "copies", "copies in a tree"],
)
def test_few_candidates_are_looked_at(monkeypatch: pytest.MonkeyPatch, X: FloatArray) -> None:
    pairs: list[int] = []
    squares = neighbourhood._squares
    monkeypatch.setattr(neighbourhood, "_squares", lambda X, i, j: pairs.append(len(i)) or squares(X, i, j))
    index, distance = graphs.neighbours(X, 5)
    wanted, lengths = twin(X, 5)
    assert (index == wanted).all() and (distance == lengths).all()
    assert sum(pairs) < 1.25 * 400 * 5


@pytest.mark.parametrize(("n", "d"), [(3000, 40), (4000, 4)])
def test_memory_is_what_the_formula_says(n: int, d: int) -> None:
    """Of rows on a coarse grid, where ties are many."""
    X = RNG.integers(0, 4, (n, d)).astype(np.float64)
    tracemalloc.start()
    try:
        answer = graphs.neighbours(X, 10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - sum(part.nbytes for part in answer) < 28 * n * d + 70 * neighbourhood._BLOCK + 100 * (
        neighbourhood._PAIRS + n
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e160])
def test_inputs_that_have_no_distances_are_refused(bad: float) -> None:
    X = RNG.standard_normal((10, 3))
    X[4, 1] = bad
    with pytest.raises(InputError, match=r"X: neighbours need finite inputs.* in row 4, column 1"):
        graphs.neighbours(X, 2)


@pytest.mark.parametrize("X", [np.zeros(5), np.zeros((5, 0)), np.zeros((2, 2, 2))])
def test_only_a_matrix_has_neighbours(X: FloatArray) -> None:
    with pytest.raises(InputError, match="X: wanted a matrix"):
        graphs.neighbours(X, 2)


def test_no_neighbours_are_refused() -> None:
    with pytest.raises(InputError, match="k: wanted at least 1 neighbour, got 0"):
        graphs.neighbours(np.zeros((5, 2)), 0)


def test_no_rows_have_no_neighbours() -> None:
    assert [part.shape for part in graphs.neighbours(np.empty((0, 3)), 2)] == [(0, 2), (0, 2)]
    assert graphs.local_graph(np.empty((0, 3)), KNN(2)).shape == (0, 0)


# --- weights


@LAW
@given(rows(), st.integers(1, 8), st.sampled_from(["heat", "binary", 0.7, 3.0]))
def test_the_graph_is_symmetric_and_the_plain_one(X: FloatArray, k: int, weights: str | float) -> None:
    knn = KNN(k, weights=weights)
    W = graphs.local_graph(X, knn)
    dense = W.toarray()
    assert W.shape == (len(X), len(X)) and W.has_sorted_indices and (W.data > 0).all()
    assert (dense == dense.T).all() and (np.diag(dense) == 0).all() and (dense <= 1).all()
    assert np.allclose(dense, twin_graph(X, knn), rtol=1e-9, atol=1e-300)
    assert (graphs.checked(W, len(X)).toarray() == dense).all()


def test_weights_are_the_same_from_either_end() -> None:
    d, s, t = RNG.uniform(0, 2, (3, 500))
    assert (neighbourhood.edge_weights(d, s, t) == neighbourhood.edge_weights(d, t, s)).all()


def test_rows_of_no_extent_weigh_one_together_and_nothing_apart() -> None:
    d, s, t = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.5])
    assert neighbourhood.edge_weights(d, s, t).tolist() == [1.0, 1.0, 0.0, np.exp(-2.0)]


def test_a_graph_in_parts_is_the_whole_one() -> None:
    """What a build out of core does: lists of some rows, scales of the others from theirs, entries in any order."""
    X, knn = RNG.integers(0, 4, (90, 3)) + 0.1 * RNG.integers(0, 2, (90, 3)), KNN(5)
    lists = [graphs.neighbours(X, 5, queries=part) for part in np.array_split(np.arange(90), 4)]
    own = np.concatenate([graphs.own_scale(*part) for part in lists])
    index, distance = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    i, j = np.repeat(np.arange(90), 5), index.ravel()
    i, j, w = neighbourhood.both_ways(
        i, j, 0.5 * neighbourhood.edge_weights(distance.ravel(), own[i], own[j], knn.weights)
    )
    order = RNG.permutation(len(i))
    W = neighbourhood.adjacency(i[order], j[order], w[order], (90, 90))
    whole = graphs.local_graph(X, knn)
    assert all((getattr(W, part) == getattr(whole, part)).all() for part in ("indptr", "indices", "data"))


# --- Laplacians


@LAW
@given(rows(), st.integers(1, 6), st.booleans())
def test_laplacians_are_symmetric_and_positive(X: FloatArray, k: int, normalised: bool) -> None:
    W = graphs.local_graph(X, KNN(k))
    L = laplacian(W, normalised=normalised).toarray()
    degree = graphs.degrees(W)
    assert (L == L.T).all()
    assert np.linalg.eigvalsh(L)[0] > -1e-12 * (1.0 + degree.max(initial=0.0))
    assert np.allclose(L @ (np.sqrt(degree) if normalised else np.ones(len(X))), 0.0, atol=1e-12)
    assert np.allclose(L, csgraph.laplacian(W.toarray(), normed=normalised), atol=1e-14)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_laplacian_sums_squared_differences_along_edges(normalised: bool) -> None:
    W = weighted()
    f = RNG.standard_normal(30)
    scaled = f * graphs.inverse_roots(graphs.degrees(W)) if normalised else f
    edges = sp.triu(W).tocoo()
    energy = (edges.data * (scaled[edges.row] - scaled[edges.col]) ** 2).sum()
    L = laplacian(W, normalised=normalised)
    assert np.isclose(f @ (L @ f), energy, rtol=1e-13)
    assert (L[-3:].toarray() == 0).all() and graphs.degrees(W)[-3:].tolist() == [0.0, 0.0, 0.0]


def test_a_graph_without_edges() -> None:
    W = sp.csr_array((4, 4))
    assert graphs.degrees(W).tolist() == [0.0] * 4
    assert laplacian(W).nnz == laplacian(W, normalised=True).nnz == 0


# --- graphs that are given


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dense", "bool", "matrix"])
def test_every_symmetric_matrix_is_taken(form: str) -> None:
    W = weighted()
    given: Any = {
        "dense": W.toarray(),
        "bool": W.astype(bool),
        "matrix": sp.csr_matrix(W),
    }.get(form) if form in ("dense", "bool", "matrix") else W.asformat(form)  # fmt: skip
    found = graphs.checked(given, 30)
    assert isinstance(found, sp.csr_array) and found.dtype == np.float64 and found.has_sorted_indices
    assert (found.toarray() == (W.toarray() > 0 if form == "bool" else W.toarray())).all()


def test_loops_are_dropped_and_rounding_is_evened_out() -> None:
    W = weighted().toarray()
    skewed = W + np.eye(30)
    skewed[np.triu_indices(30)] *= 1.0 + 1e-14
    found = graphs.checked(skewed, 30).toarray()
    assert (found == found.T).all() and (np.diag(found) == 0).all() and np.allclose(found, W, rtol=1e-13)


def broken(**changes: Any) -> sp.csr_array:
    """A CSR array whose own arrays were changed behind scipy's back."""
    W = weighted()
    for name, values in changes.items():
        setattr(W, name, np.asarray(values(getattr(W, name))))
    return W


def entry(i: int, j: int, value: float) -> FloatArray:
    W = weighted().toarray()
    W[i, j] = value
    return W


@pytest.mark.parametrize(
    ("W", "sentence"),
    [
        (np.zeros((3, 3)), r"wanted one node a row, a matrix 30 x 30, got shape \(3, 3\)"),
        (np.zeros((30, 30), complex), "wanted real weights, got type complex128"),
        (np.full((30, 30), "a"), "wanted real weights"),
        (entry(2, 5, -0.5), "wanted finite weights of at least 0, got -0.5 between 2 and 5"),
        (entry(7, 1, np.nan), "got nan between 7 and 1"),
        (entry(7, 1, np.inf), "got inf between 7 and 1"),
        (entry(28, 4, 0.25), "wanted symmetric weights, got 0.0 from 4 to 28 and 0.25 from 28 to 4"),
        (entry(4, 28, 0.25), "got 0.25 from 4 to 28 and 0.0 from 28 to 4"),
        (broken(indices=lambda a: np.where(np.arange(len(a)) == 3, 30, a)), "wanted nodes from 0 to 29, got 30"),
        (broken(indices=lambda a: np.where(np.arange(len(a)) == 3, -1, a)), "wanted nodes from 0 to 29, got -1"),
        (broken(indptr=lambda a: a + 1), "its index pointer does not ascend"),
        (broken(indptr=lambda a: np.where(np.arange(len(a)) == 3, 99, a)), "its index pointer does not ascend"),
    ],
)  # fmt: skip
def test_a_matrix_that_is_no_graph_is_refused(W: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"graph: {sentence}|graph: .*{sentence}"):
        graphs.checked(W, 30)


def test_weights_that_differ_are_named() -> None:
    W = weighted()
    i, j = (int(v[0]) for v in W.nonzero())
    w = W[j, i]
    with pytest.raises(InputError, match=f"got {w + 1.0} from {i} to {j} and {w} from {j} to {i}; make it symmetric"):
        graphs.checked(entry(i, j, w + 1.0), 30)


def test_a_list_names_each_edge_once_or_twice() -> None:
    i, j, w = np.array([3, 0, 1, 2, 2]), np.array([1, 2, 3, 2, 0]), np.array([0.5, 2.0, 0.5, 9.0, 2.0])
    for count in (2, 5):
        found = neighbourhood.undirected(i[:count], j[:count], w[:count], both=False)
        assert [part.tolist() for part in found] == [[0, 1], [2, 3], [2.0, 0.5]]
    with pytest.raises(InputError, match=r"got 0.5 from 1 to 3 and 0.7 from 3 to 1; give the edge once"):
        neighbourhood.undirected([3, 1], [1, 3], [0.7, 0.5], both=False)
    with pytest.raises(InputError, match=r"got 0.5 from 1 to 3 and 0.7 from 3 to 1; give the edge once"):
        neighbourhood.undirected([1, 1], [3, 3], [0.7, 0.5], both=False)
    with pytest.raises(InputError, match=r"got 0.5 from 1 to 3 and 0.0 from 3 to 1; make it symmetric"):
        neighbourhood.undirected([1, 1], [3, 3], [0.5, 0.5], both=True)
    with pytest.raises(InputError, match="wanted an entry once, got several between 1 and 3"):
        neighbourhood.undirected([1, 1, 3], [3, 3, 1], [0.5, 0.5, 0.5], both=True)
    assert [len(part) for part in neighbourhood.undirected([], [], [], both=True)] == [0, 0, 0]


def test_entries_at_one_place_are_added_whatever_their_type() -> None:
    i, j, w = [0, 0, 1, 1], [1, 1, 0, 0], np.full(4, 200, np.uint8)
    assert graphs.checked(sp.coo_array((w, (i, j)), shape=(2, 2)), 2)[0, 1] == 400.0


@pytest.mark.parametrize(("i", "j"), [(0, 4), (4, 0), (-1, 0), (0, -1)])
def test_a_node_out_of_range_is_named(i: int, j: int) -> None:
    with pytest.raises(InputError, match=f"P: wanted nodes from 0 to 3, one a row, got an edge from {i} to {j}"):
        neighbourhood.check_edges([0, i], [1, j], [1.0, 1.0], n=4, what="P")


# --- what a job says

EVERY: list[Graph] = [
    KNN(),
    KNN(3, 0.5, "leaf"),
    KNN(3, append="link"),
    KNN(np.int64(4), "binary"),
    Given("a/b.zarr"),
    Identity(),
]
TERMS = [
    *(Manifold(graph, 0.1) for graph in EVERY),
    Manifold(KNN(), (0.0, 1.0), "normalised", 4, [[2.0, 1.0], [1.0, 2.0]], view="pixels"),
    Manifold(KNN(), form="edges", scale="mean", view=1),
    Manifold(Identity(), between=True),
]


@pytest.mark.parametrize("graph", EVERY)
def test_graphs_are_what_their_words_say(graph: Graph) -> None:
    config = json.loads(json.dumps(graph.config()))
    again = Graph.from_config(config)
    assert type(again) is type(graph) and again.config() == config == graph.config()


@pytest.mark.parametrize("term", TERMS)
def test_terms_are_what_their_words_say(term: Manifold) -> None:
    config = json.loads(json.dumps(term.config()))
    again = Manifold.from_config(config)
    assert again.config() == config and set(config) == set(Manifold.__dataclass_fields__)
    assert again.weights == term.weights and again.normalised == term.normalised
    assert json.dumps(again.config(), sort_keys=True) == json.dumps(term.config(), sort_keys=True)


def test_a_matrix_in_memory_is_named_by_its_entries() -> None:
    W = weighted()
    config = Given(W).config()
    assert config == Given(W.tocoo()).config() == Given(W.toarray()).config() and Given(W).path is None
    assert config != Given(W * 2).config() and config["entries"] == W.nnz


def test_a_path_may_be_a_path() -> None:
    assert Given(Path("a") / "b").path == "a/b"


def test_outputs_may_be_a_graph() -> None:
    W = [[0.0, 2.0], [2.0, 0.0]]
    base = {"graph": {"type": "knn"}}
    found = Manifold.from_config({**base, "outputs": {"graph": W, "offset": 0.5}}).outputs
    assert found is not None and found.tolist() == [[2.5, -2.0], [-2.0, 2.5]]
    assert Manifold.from_config({**base, "outputs": "identity"}).outputs is None
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: KNN(0), "graph.neighbours: wanted a whole number of at least 1, got 0"),
        (lambda: KNN(2.5), "graph.neighbours: wanted a whole number"),
        (lambda: KNN(True), "graph.neighbours: wanted a whole number"),
        (lambda: KNN(weights="warm"), 'graph.weights: wanted "heat", "binary" or a length'),
        (lambda: KNN(weights=0.0), "graph.weights: wanted a finite length above 0, got 0.0"),
        (lambda: KNN(weights=np.nan), "graph.weights: wanted a finite length above 0, got nan"),
        (lambda: KNN(weights=True), "graph.weights: wanted"),
        (lambda: KNN(within="block"), "graph.within: wanted one of data, leaf, got 'block'"),
        (lambda: KNN(append="keep"), "graph.append: wanted one of rebuild, link, got 'keep'"),
        (lambda: KNN(within="leaf", append="link"), "graph.append: link is for a graph across leaves"),
        (lambda: Given(np.zeros(3)), r"graph: wanted a square matrix of weights .* shape \(3,\)"),
        (lambda: Given(None), "graph: wanted a square matrix of weights"),
        (lambda: Manifold("knn"), "manifold.graph: wanted a graph, got 'knn'"),
        (lambda: Manifold(KNN(), -1.0), "manifold.weight: wanted finite numbers of at least 0, got -1.0"),
        (lambda: Manifold(KNN(), (1.0, np.inf)), "manifold.weight: .* got inf"),
        (lambda: Manifold(KNN(), "big"), "manifold.weight: .* got 'big'"),
        (lambda: Manifold(KNN(), ()), "manifold.weight: wanted a number, or several .* got none"),
        (lambda: Manifold(KNN(), laplacian="random_walk"), "random-walk Laplacian .* neither symmetric nor positive"),
        (lambda: Manifold(KNN(), laplacian="random-walk"), "random-walk Laplacian .* neither symmetric nor positive"),
        (lambda: Given([[1.0, 2.0], [3.0]]), "graph: wanted a square matrix of weights .*got list"),
        (lambda: Manifold(KNN(), laplacian="l"), "manifold.laplacian: wanted one of .* got 'l'"),
        (lambda: Manifold(KNN(), power=3), "manifold.power: wanted 1 or an even number, got 3"),
        (lambda: Manifold(KNN(), power=0), "manifold.power: wanted 1 or an even number, got 0"),
        (lambda: Manifold(KNN(), power=2.0), "manifold.power: wanted 1 or an even number, got 2.0"),
        (lambda: Manifold(KNN(), power=2, form="edges"), "manifold.form: 'edges' is for power 1"),
        (lambda: Manifold(KNN(), form="dense"), "manifold.form: wanted one of auto, edges, difference"),
        (lambda: Manifold(KNN(), scale="max"), "manifold.scale: wanted one of sum, mean"),
        (lambda: Manifold(KNN(), view=1.5), "manifold.view: wanted a view's name or number, got 1.5"),
        (lambda: Manifold(KNN(), between=True), "manifold.between: the term between views is over all rows"),
        (lambda: Manifold(Identity(), between=True, view=0), "manifold.between: the term between views"),
        (lambda: Manifold(KNN(), between=1), "manifold.between: wanted true or false, got 1"),
        (lambda: Manifold(Identity(), power=2), "manifold.graph: identity means L = I"),
        (lambda: Manifold(Identity(), laplacian="normalised"), "manifold.graph: identity means L = I"),
        (lambda: Manifold(KNN(), outputs=[[1.0, 0.5], [0.2, 1.0]]), r"symmetric matrix, got 0.5 at \(0, 1\) and 0.2"),
        (lambda: Manifold(KNN(), outputs=[[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite.* least eigenvalue is -1"),
        (lambda: Manifold(KNN(), outputs=[[1.0, np.nan], [2.0, 1.0]]), "a square matrix of finite numbers"),
        (lambda: Manifold(KNN(), outputs=[1.0]), "a square matrix of finite numbers"),
        (lambda: Manifold(KNN(), outputs="full"), "manifold.outputs: wanted a matrix of numbers"),
        (lambda: Graph.from_config({"type": "knnn"}), "graph.type: wanted one of knn, given, identity, got 'knnn'"),
        (lambda: Graph.from_config({}), "graph.type: wanted one of .* got None"),
        (lambda: Graph.from_config({"type": "knn", "k": 3}), "k: is not known to a graph of type knn; use type"),
        (lambda: Graph.from_config({"type": "identity", "path": "a"}), "path: is not known to a graph of type ident"),
        (lambda: Graph.from_config({"type": "given"}), "graph.path: a graph of type given needs the path"),
        (lambda: Manifold.from_config({"weight": 1.0}), "manifold.graph: is missing"),
        (lambda: Manifold.from_config({"graph": {"type": "knn"}, "wieght": 1}), "wieght: is not known.*weight"),
        (lambda: from_outputs({"matrix": [[1.0]], "graph": [[0.0]]}), "wanted a matrix, or a graph"),
        (lambda: from_outputs({"matrix": [[1.0]], "offset": 1.0}), "wanted a matrix, or a graph"),
        (lambda: from_outputs({"matrx": [[1.0]]}), "matrx: is not known to a mapping of outputs"),
        (lambda: from_outputs({"matrix": None}), "a square matrix of finite numbers"),
        (lambda: from_outputs({"matrix": "identity"}), "wanted a matrix of numbers"),
        (lambda: from_outputs({"graph": [[0.0]], "offset": -1.0}), "least eigenvalue is -1"),
        (lambda: from_outputs([[1.0, 2.0]]), "a square matrix of finite numbers"),
        (lambda: from_outputs({}), "wanted a matrix, or a graph"),
        (lambda: from_outputs({"graph": [[-1.0]]}), "manifold.outputs.graph: wanted a square matrix"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def from_outputs(outputs: Any) -> Manifold:
    return Manifold.from_config({"graph": {"type": "identity"}, "outputs": outputs})
