"""Exact nearest neighbours, whatever the threads or chunks; weights W, degrees, Laplacians; checks of users' graphs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.errors import InputError
from dorff.graphs.graph import KNN, FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Edges = tuple[IntArray, IntArray, FloatArray]
Pairs = tuple[IntArray, IntArray]  # places among the queries, and rows
_Points = tuple[npt.NDArray[Any], FloatArray]  # (n, d) of some type, and their squares before they were rounded to it

TREE_DIMENSIONS: Final = 5  # a k-d tree looks at ever more of the rows as the inputs grow in number
LARGEST: Final = 1e150  # the squares of larger differences overflow
_BLOCK: Final = 2**20  # distances held at a time
_TREE_BLOCK: Final = 256  # queries to the tree at a time
_PAIRS: Final = 2**17  # candidates sorted at a time
_PAIR_BYTES: Final = 2**18  # differences held at a time: they stay in the processor's cache
_SET: Final = 16  # rows whose least distance stands for them
_CROWDED: Final = 64  # candidates a query, above which the finer numbers are worth their time


def neighbours(
    X: npt.ArrayLike, k: int, *, queries: npt.ArrayLike | None = None, numbers: npt.ArrayLike | None = None
) -> tuple[IntArray, FloatArray]:
    """The k rows of X (n, d) nearest to each row that `queries` (nq,) names (all, without), itself left out. Returns
    their places in X, (nq, k), nearest first, and the Euclidean distances, (nq, k). Where a row has fewer than k
    others, the last places are -1 and their distances infinite. Of rows at equal distance the one with the lower number
    comes first: `numbers` (n,), whole and all different, are the rows' places without.

    The answer is a function of the two rows and the numbers alone, so that any part of the queries gives the same bits.
    A distance is the root of the summed squares of the rows' own differences; candidates are found by a k-d tree for
    few inputs, else by one matrix product of the centred rows (in float32, and in float64 where that cannot tell them
    apart), and every row is one that the bound on rounding (Higham 2002, 3.1 and 3.5) cannot exclude. So rows far from
    the origin keep their digits, and all of a tie is seen. Of equal rows only the first k + 1 are candidates: no other
    can be chosen. Time is n^2 d multiplications, or about n log n for d <= 5; rows of many inputs that all lie at one
    distance of each other (one-hot codes) take n^2 d slow operations more. Raises InputError: X is not a matrix of
    finite numbers below 1e150 in size, or k below 1."""
    rows, count = _checked_rows(X), int(k)
    if k < 1:
        raise InputError(f"k: wanted at least 1 neighbour, got {k}; give a whole number such as 10.")
    n = len(rows)
    wanted = np.arange(n) if queries is None else np.asarray(queries, np.int64)
    order = np.arange(n) if numbers is None else np.asarray(numbers, np.int64)
    listed = min(count, n - 1)
    index, distance = np.full((len(wanted), count), -1), np.full((len(wanted), count), np.inf)
    if listed < 1 or not len(wanted):
        return index, distance
    kept = _without_copies(rows, order, listed + 1)
    search = _tree_pairs if rows.shape[1] <= TREE_DIMENSIONS else _product_pairs
    for places, row in search(rows, wanted, kept, listed):
        for part in _parts(places):
            place, near = places[part], row[part]
            squares = _squares(rows, wanted[place], near)
            best = _first(place, squares, order[near], listed)
            own = slice(place[0], place[-1] + 1)
            index[own, :listed] = near[best].reshape(-1, listed)
            distance[own, :listed] = np.sqrt(squares[best]).reshape(-1, listed)
    return index, distance


def _checked_rows(X: npt.ArrayLike) -> FloatArray:
    rows = np.ascontiguousarray(X, np.float64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise InputError(f"X: wanted a matrix (rows, inputs), got shape {rows.shape}; reshape it first.")
    if not (rows.max(initial=0.0) < LARGEST and rows.min(initial=0.0) > -LARGEST):
        i, j = np.argwhere(~(np.abs(rows) < LARGEST))[0]
        problem = f"X: neighbours need finite inputs below {LARGEST:g} in size, got {rows[i, j]} in row {i}, column {j}"
        raise InputError(f"{problem}; drop such rows, or mend or scale them.")
    return rows + 0.0  # of -0 and 0, one: copies are found by their bytes


def _without_copies(rows: FloatArray, order: IntArray, most: int) -> IntArray:
    """The rows without those that have `most` equal ones of lower number, ascending."""
    seen: Counter[bytes] = Counter()
    kept = np.zeros(len(rows), bool)
    for row in np.argsort(order):
        key = rows[row].tobytes()
        seen[key] += 1
        kept[row] = seen[key] <= most
    return np.flatnonzero(kept)


def _tree_pairs(rows: FloatArray, asked: IntArray, kept: IntArray, k: int) -> Iterator[Pairs]:
    """For run after run of queries the pairs that can be among the nearest k, and perhaps a few more."""
    from sklearn.neighbors import KDTree  # large, and only few inputs need it

    tree = KDTree(rows[kept])
    for start in range(0, len(asked), _TREE_BLOCK):
        points = asked[start : start + _TREE_BLOCK]
        near, _ = tree.query(rows[points], min(k + 1, len(kept)))  # itself is one of them, or as near as one
        # Far more than two ways of adding up at most five squares differ by, and than squares lose that underflow.
        hits = tree.query_radius(rows[points], near[:, -1] * (1.0 + 1e-12) + 1e-150)
        place = np.repeat(np.arange(len(points)), [len(hit) for hit in hits])
        row = kept[np.concatenate(hits)]
        other = row != points[place]
        yield start + place[other], row[other]


def _product_pairs(rows: FloatArray, asked: IntArray, kept: IntArray, k: int) -> Iterator[Pairs]:
    """As `_tree_pairs`, by |z|^2 - 2 <x, z> of the centred rows, |x|^2 + which is their squared distance."""
    centred = rows - rows.mean(axis=0)
    centred /= 2.0 ** np.ceil(np.log2(max(centred.max(), -centred.min(), np.finfo(np.float64).tiny)))  # within -1..1
    squares, coarse = np.einsum("ij,ij->i", centred, centred), centred[kept].astype(np.float32)
    own = np.full(len(rows), -1)
    own[kept] = np.arange(len(kept))
    step = max(1, _BLOCK // len(kept))
    held = np.empty(len(kept) * min(step, len(asked)), np.float32)
    for start in range(0, len(asked), step):
        points = asked[start : start + step]
        x2, z2 = squares[points], squares[kept]
        out = held[: len(kept) * len(points)].reshape(len(kept), -1)
        place, column = _near((centred[points].astype(np.float32), x2), (coarse, z2), own[points], k, out)
        if len(place) > (k + _CROWDED) * len(points):
            fine = np.empty((len(kept), len(points)))
            place, column = _near((centred[points], x2), (centred[kept], z2), own[points], k, fine)
        yield start + place, kept[column]


def _near(queries: _Points, candidates: _Points, own: IntArray, k: int, out: npt.NDArray[Any]) -> Pairs:
    """Pairs (row X of `queries`, row Z of `candidates`) that rounding lets be among the k nearest; `own` is where a
    row of X is in Z, or -1. `out` (rows of Z, rows of X), of their type, is for the distances. With x2 and z2 the
    squares, and u the unit roundoff of the type: a squared distance is off by less than (4 d + 32) u (|x|^2 + |z|^2):
    d u of the product, 4 u each of centring and of rounding to the type, the rest of adding up; and as much again for
    the d u of the sum of squares that it is compared with. A length that k rows of Z keep below is the k-th least of
    the minima of sets of them, found in one pass."""
    (X, x2), (Z, z2) = queries, candidates
    info, n = np.finfo(X.dtype), len(Z)
    c = (2 * X.shape[1] + 16) * float(info.eps)
    B = np.matmul(Z, (-2.0 * X).astype(X.dtype).T, out=out)
    B += z2.astype(B.dtype)[:, None]
    itself = np.flatnonzero(own >= 0)
    B[own[itself], itself] = np.inf
    several = max(1, min(_SET, n // (8 * k)))  # rows in a set; a few may be in none
    least = B[: n - n % several].reshape(several, -1, len(X)).min(axis=0)
    most = np.partition(np.ascontiguousarray(least.T), k - 1, axis=1)[:, k - 1]
    limit = most + (2.0 * c * (x2 + z2.max()) + 1e3 * float(info.tiny)).astype(B.dtype)  # and what underflows
    row, place = np.divmod(np.flatnonzero(limit >= B), len(X))
    by_place = np.argsort(place, kind="stable")
    return place[by_place], row[by_place]


def _parts(place: IntArray) -> Iterator[slice]:
    """All pairs in order, cut between places, about `_PAIRS` at a time."""
    start = 0
    while start < len(place):
        stop = int(np.searchsorted(place, place[min(start + _PAIRS, len(place)) - 1], side="right"))
        yield slice(start, stop)
        start = stop


def _squares(rows: FloatArray, i: IntArray, j: IntArray) -> FloatArray:
    """|x_i - x_j|^2 of pairs of rows, each a sum of its own, in an order that d alone decides."""
    out = np.empty(len(i))
    step = max(1, _PAIR_BYTES // (8 * rows.shape[1]))
    for start in range(0, len(i), step):
        part = slice(start, start + step)
        difference = rows[i[part]]
        difference -= rows[j[part]]
        difference *= difference
        difference.sum(axis=1, out=out[part])
    return out


def _first(place: IntArray, squares: FloatArray, order: IntArray, k: int) -> IntArray:
    """The first k pairs of each place, by distance and then by number, place by place."""
    ranked = np.lexsort((order, squares, place))
    start = np.searchsorted(place[ranked], place[ranked])  # of each pair's own place
    return ranked[np.arange(len(ranked)) - start < k]


def degrees(W: sp.csr_array) -> FloatArray:
    """d_i = sum_j W_ij (n,), each added up from its first entry to its last."""
    n = W.shape[0]
    sums = np.bincount(np.repeat(np.arange(n), np.diff(W.indptr)), weights=W.data, minlength=n)
    return sums.astype(np.float64)  # whole numbers where there is no entry


def inverse_roots(degree: FloatArray) -> FloatArray:
    """d^-1/2, and 0 for a row without edges: it has no part in a normalised Laplacian."""
    return np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)


def local_graph(X: npt.ArrayLike, knn: KNN, *, numbers: npt.ArrayLike | None = None) -> sp.csr_array:
    """W (n, n) of the nearest-neighbour graph of the rows X (n, d): symmetric, not negative, nothing on its diagonal.
    A_ij is the weight of j in i's list, and W = (A + A^T) / 2 (see `KNN`). Edges of weight 0 (underflow) are left out.
    InputError as `neighbours`."""
    index, distance = neighbours(X, knn.neighbours, numbers=numbers)
    n = len(index)
    listed = index >= 0
    i, j = np.nonzero(listed)[0], index[listed]
    own = own_scale(index, distance)
    return adjacency(*both_ways(i, j, 0.5 * edge_weights(distance[listed], own[i], own[j], knn.weights)), (n, n))


def own_scale(index: IntArray, distance: FloatArray) -> FloatArray:
    """The distance (nq,) of each row to the last in its own list, as `neighbours` gives them; 0 for an empty list."""
    return np.asarray(np.where(index >= 0, distance, 0.0).max(axis=1, initial=0.0))


def edge_weights(
    distance: FloatArray, scale_i: FloatArray, scale_j: FloatArray, weights: str | float = "heat"
) -> FloatArray:
    """The weights (edges,) of edges of these lengths; 1 at distance 0, and never above. "binary": 1. "heat": exp(-|x -
    z|^2 / (s_i s_j)), s each end's own scale, the distance to the last row that it lists (Zelnik-Manor & Perona 2004,
    eq. 2; there the 7th neighbour's). A number t: exp(-|x - z|^2 / (2 t^2)), which is the Gaussian of length-scale t
    (Belkin & Niyogi's heat kernel at time t^2 / 2). The same bits either way."""
    lengths = np.ascontiguousarray(distance, np.float64)
    if weights == "binary":
        return np.ones_like(lengths)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        heat = weights == "heat"
        exponent = (lengths / scale_i) * (lengths / scale_j) if heat else 0.5 * (lengths / float(weights)) ** 2
        return np.where(lengths == 0.0, 1.0, np.exp(-exponent))


def both_ways(i: IntArray, j: IntArray, w: FloatArray) -> Edges:
    """The entries of A + A^T, those at the same place not yet added up, of the entries of A."""
    return np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([w, w])


def adjacency(i: IntArray, j: IntArray, w: FloatArray, shape: tuple[int, int]) -> sp.csr_array:
    """A matrix of these entries, columns ascending in each row, entries at the same place added, zeros left out. At
    most two entries may share a place for the sum to be the same in any order of them."""
    W: Any = sp.coo_array((w, (i, j)), shape=shape).tocsr()
    W.sum_duplicates()
    W.eliminate_zeros()
    return W


#: Weights of one edge that differ by at most this part of the larger are equal: matrices may be symmetric to rounding.
EQUAL: Final = 1e-10


def checked(W: Any, n: int, *, what: str = "graph") -> sp.csr_array:
    """W (n, n), a scipy sparse or a dense matrix, as float64 CSR: exactly symmetric, without a diagonal or zeros. Both
    directions of an edge must be there with the same weight (to a relative 1e-10; their mean is taken); entries at the
    same place are added, as scipy does. Self loops are dropped: they change no Laplacian D - W. InputError: W is no
    symmetric n x n matrix of finite numbers of 0 or more, or an index lies outside of it."""
    if not sp.issparse(W):
        W = np.asarray(W)
    if W.dtype.kind not in "biuf":
        raise InputError(f"{what}: wanted real weights, got type {W.dtype}; convert them to float64.")
    if W.shape != (n, n):
        remedy = "give the graph of these rows, labelled and not, in their order."
        raise InputError(f"{what}: wanted one node a row, a matrix {n} x {n}, got shape {W.shape}; {remedy}")
    _check_structure(W, what)
    entries = sp.coo_array(W).astype(np.float64)  # narrow whole numbers would overflow where entries are added
    check_edges(entries.row, entries.col, entries.data, n=n, what=what)  # before sums make NaN of infinities
    entries = sp.coo_array(sp.csr_array(entries))
    return adjacency(*both_ways(*undirected(entries.row, entries.col, entries.data, both=True, what=what)), (n, n))


def _check_structure(W: Any, what: str) -> None:
    """scipy trusts the indices of a compressed matrix, and reads past its ends where they are wrong."""
    if getattr(W, "format", "") not in ("csr", "csc"):
        return
    indices, indptr, n = np.asarray(W.indices), np.asarray(W.indptr), W.shape[0]
    if len(indptr) != n + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] > len(indices):
        raise InputError(f"{what}: its index pointer does not ascend from 0 to the number of entries; build it anew.")
    if len(used := indices[: indptr[-1]]) and (used.min() < 0 or used.max() >= n):
        bad = int(used[(used < 0) | (used >= n)][0])
        raise InputError(f"{what}: wanted nodes from 0 to {n - 1}, got {bad}; mend the graph's indices.")


def check_edges(i: npt.ArrayLike, j: npt.ArrayLike, w: npt.ArrayLike, *, n: int, what: str = "graph") -> None:
    """InputError, naming the first edge at fault, unless all nodes are in 0..n-1 and all weights finite and >= 0."""
    tail, head, weight = np.asarray(i), np.asarray(j), np.asarray(w)
    if (outside := (tail < 0) | (tail >= n) | (head < 0) | (head >= n)).any():
        at = int(np.argmax(outside))
        problem = f"{what}: wanted nodes from 0 to {n - 1}, one a row, got an edge from {tail[at]} to {head[at]}"
        raise InputError(f"{problem}; mend the graph, or give the rows that it is of.")
    if (wrong := ~(np.isfinite(weight) & (weight >= 0))).any():
        at = int(np.argmax(wrong))
        problem = f"{what}: wanted finite weights of at least 0, got {weight[at]} between {tail[at]} and {head[at]}"
        raise InputError(f"{problem}; mend it, or leave that edge out.")


def undirected(i: npt.ArrayLike, j: npt.ArrayLike, w: npt.ArrayLike, *, both: bool, what: str = "graph") -> Edges:
    """Each edge once, (i, j, w) with i < j, in ascending order; self loops and weights of 0 are dropped. With `both`
    an edge must come once in each direction (a matrix), otherwise in one or in both (a list of edges); all weights
    that come for it must be equal to a relative 1e-10, and the mean of the least and the largest is taken. InputError,
    with ends and values: an edge's weights differ, or with `both` one direction is missing or twice."""
    tail, head = np.asarray(i, np.int64), np.asarray(j, np.int64)
    weight = np.asarray(w, np.float64)
    real = (tail != head) & (weight != 0)
    tail, head, weight = tail[real], head[real], weight[real]
    low, high, down = np.minimum(tail, head), np.maximum(tail, head), tail > head
    order = np.lexsort((weight, high, low))
    low, high, weight, down = low[order], high[order], weight[order], down[order]
    new = np.ones(len(low), bool)
    new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    if not len(first := np.flatnonzero(new)):
        return low, high, weight
    least, most = np.minimum.reduceat(weight, first), np.maximum.reduceat(weight, first)
    differ = least < most * (1.0 - EQUAL)
    turned, counts = np.add.reduceat(down.astype(np.int64), first), np.diff(np.append(first, len(low)))
    lone = (turned == 0) | (turned == counts) if both else np.zeros(len(first), bool)
    if both and (counts > 2).any():
        at = first[int(np.argmax(counts > 2))]
        raise InputError(f"{what}: wanted an entry once, got several between {low[at]} and {high[at]}; add them up.")
    if (differ | lone).any():
        at = int(np.argmax(differ | lone))
        a, b = low[first[at]], high[first[at]]
        run = slice(first[at], first[at] + int(counts[at]))
        raise _asymmetric(int(a), int(b), weight[run], down[run], both=both, what=what)
    return low[first], high[first], least + 0.5 * (most - least)


def _asymmetric(a: int, b: int, weights: FloatArray, down: BoolArray, *, both: bool, what: str) -> InputError:
    """What an edge between a < b that has these weights, some of them from b to a, is refused with."""
    up_value = weights[~down][0] if (~down).any() else (0.0 if both else weights[0])
    down_value = weights[down][-1] if down.any() else (0.0 if both else weights[-1])
    remedy = "make it symmetric, (W + W.T) / 2 say" if both else "give the edge once, or with one weight"
    problem = f"{what}: wanted symmetric weights, got {up_value} from {a} to {b} and {down_value} from {b} to {a}"
    return InputError(f"{problem}; {remedy}.")
