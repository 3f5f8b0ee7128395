"""What a graph that a user gives must be, or one sentence."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.errors import InputError
from dorff.graphs.edge_weights import adjacency, both_ways
from dorff.graphs.nearest import FloatArray, IntArray

#: Two weights of one edge are equal when they differ by no more than this part of the larger: a computed matrix may be
#: symmetric only to rounding.
EQUAL: Final = 1e-10


def checked(W: Any, n: int, *, what: str = "graph") -> sp.csr_array:
    """W (n, n), a scipy sparse or a dense matrix, as float64 CSR: exactly symmetric, without a diagonal or zeros.

    Both directions of an edge must be there with the same weight (to a relative 1e-10; their mean is taken); entries
    at the same place are added, as scipy does. Self loops are dropped: they change no Laplacian D - W, and the graphs
    here have none.

    Raises:
        InputError: W is no n x n matrix of real numbers, an index lies outside of it, a weight is negative, NaN or
            infinite, or W is not symmetric.
    """
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

    Raises:
        InputError: the weights of an edge differ, or with `both` one direction is missing or comes twice; names both
            ends and values.
    """
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
        raise InputError(
            f"{what}: wanted an entry once, got several between {low[at]} and {high[at]}; add them up "
            "(W.sum_duplicates())."
        )
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
