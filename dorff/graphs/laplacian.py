"""From lists of neighbours to symmetric weights W, to degrees and Laplacians; and what a user's graph must be."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.errors import InputError
from dorff.graphs.graph import KNN
from dorff.graphs.nearest import FloatArray, IntArray, neighbours


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

    Row i lists its `knn.neighbours` nearest others (`neighbours`); A_ij is the weight of j in i's list, and
    W = (A + A^T) / 2: two rows that list each other share the full weight, a row that is listed without listing back
    shares half of it. Edges of weight 0 (underflow) are left out. InputError as `neighbours`."""
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
    """The weights (edges,) of edges of these lengths; 1 at distance 0, and never above.

    "binary": 1. "heat": exp(-|x - z|^2 / (s_i s_j)), s each end's own scale, the distance to the last row that it
    lists (Zelnik-Manor & Perona 2004, eq. 2; there the 7th neighbour's). A number t: exp(-|x - z|^2 / (2 t^2)), which
    is the Gaussian of length-scale t (Belkin & Niyogi's heat kernel at time t^2 / 2). The same bits either way."""
    lengths = np.ascontiguousarray(distance, np.float64)
    if weights == "binary":
        return np.ones_like(lengths)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        if weights == "heat":
            exponent = (lengths / scale_i) * (lengths / scale_j)
        else:
            exponent = 0.5 * (lengths / float(weights)) ** 2
        return np.where(lengths == 0.0, 1.0, np.exp(-exponent))


def both_ways(i: IntArray, j: IntArray, w: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """The entries of A + A^T, those at the same place not yet added up, of the entries of A."""
    return np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([w, w])


def adjacency(i: IntArray, j: IntArray, w: FloatArray, shape: tuple[int, int]) -> sp.csr_array:
    """A matrix of these entries, columns ascending in each row, entries at the same place added, zeros left out.

    At most two entries may share a place for the sum to be the same in any order of them."""
    W: Any = sp.coo_array((w, (i, j)), shape=shape).tocsr()
    W.sum_duplicates()
    W.eliminate_zeros()
    return W


#: Two weights of one edge are equal when they differ by no more than this part of the larger: a computed matrix may be
#: symmetric only to rounding.
EQUAL: Final = 1e-10


def checked(W: Any, n: int, *, what: str = "graph") -> sp.csr_array:
    """W (n, n), a scipy sparse or a dense matrix, as float64 CSR: exactly symmetric, without a diagonal or zeros.

    Both directions of an edge must be there with the same weight (to a relative 1e-10; their mean is taken); entries
    at the same place are added, as scipy does. Self loops are dropped: they change no Laplacian D - W.

    InputError: W is no symmetric n x n matrix of finite numbers of 0 or more, or an index lies outside of it."""
    if not sp.issparse(W):
        W = np.asarray(W)
    if W.dtype.kind not in "biuf":
        raise InputError(f"{what}: wanted real weights, got type {W.dtype}; convert them to float64.")
    if W.shape != (n, n):
        raise InputError(
            f"{what}: wanted one node a row, a matrix {n} x {n}, got shape {W.shape}; give the graph of these rows, "
            "labelled and not, in their order."
        )
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
    used = indices[: indptr[-1]]
    if len(used) and (used.min() < 0 or used.max() >= n):
        bad = int(used[(used < 0) | (used >= n)][0])
        raise InputError(f"{what}: wanted nodes from 0 to {n - 1}, got {bad}; mend the graph's indices.")


def check_edges(i: npt.ArrayLike, j: npt.ArrayLike, w: npt.ArrayLike, *, n: int, what: str = "graph") -> None:
    """InputError, naming the first edge at fault, unless all nodes are in 0..n-1 and all weights finite and >= 0."""
    tail, head, weight = np.asarray(i), np.asarray(j), np.asarray(w)
    outside = (tail < 0) | (tail >= n) | (head < 0) | (head >= n)
    if outside.any():
        at = int(np.argmax(outside))
        raise InputError(
            f"{what}: wanted nodes from 0 to {n - 1}, one a row, got an edge from {tail[at]} to {head[at]}; "
            "mend the graph, or give the rows that it is of."
        )
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(
            f"{what}: wanted finite weights of at least 0, got {weight[at]} between {tail[at]} and {head[at]}; "
            "mend it, or leave that edge out."
        )


def undirected(
    i: npt.ArrayLike, j: npt.ArrayLike, w: npt.ArrayLike, *, both: bool, what: str = "graph"
) -> tuple[IntArray, IntArray, FloatArray]:
    """Each edge once, (i, j, w) with i < j, in ascending order; self loops and weights of 0 are dropped.

    With `both` an edge must come once in each direction (a matrix), otherwise in one or in both (a list of edges); all
    weights that come for it must be equal to a relative 1e-10, and the mean of the least and the largest is taken.

    InputError, with ends and values: an edge's weights differ, or with `both` one direction is missing or twice."""
    tail, head = np.asarray(i, np.int64), np.asarray(j, np.int64)
    weight = np.asarray(w, np.float64)
    real = (tail != head) & (weight != 0)
    tail, head, weight = tail[real], head[real], weight[real]
    low, high, down = np.minimum(tail, head), np.maximum(tail, head), tail > head
    order = np.lexsort((weight, high, low))
    low, high, weight, down = low[order], high[order], weight[order], down[order]
    new = np.ones(len(low), bool)
    new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first = np.flatnonzero(new)
    if not len(first):
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


def _asymmetric(
    a: int, b: int, weights: FloatArray, down: npt.NDArray[np.bool_], *, both: bool, what: str
) -> InputError:
    """What an edge between a < b that has these weights, some of them from b to a, is refused with."""
    up_value = weights[~down][0] if (~down).any() else (0.0 if both else weights[0])
    down_value = weights[down][-1] if down.any() else (0.0 if both else weights[-1])
    remedy = "make it symmetric, (W + W.T) / 2 say" if both else "give the edge once, or with one weight"
    return InputError(
        f"{what}: wanted symmetric weights, got {up_value} from {a} to {b} and {down_value} from {b} to {a}; {remedy}."
    )
