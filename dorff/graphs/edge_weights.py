"""From lists of neighbours to the symmetric weights W of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.graphs.graph import KNN
from dorff.graphs.nearest import FloatArray, IntArray, neighbours


def local_graph(X: npt.ArrayLike, knn: KNN, *, numbers: npt.ArrayLike | None = None) -> sp.csr_array:
    """W (n, n) of the nearest-neighbour graph of the rows X (n, d): symmetric, not negative, nothing on its diagonal.

    Row i lists its `knn.neighbours` nearest others (`neighbours`); A_ij is the weight of j in i's list, and
    W = (A + A^T) / 2: two rows that list each other share the full weight, a row that is listed without listing back
    shares half of it. Edges of weight 0 (underflow) are left out. InputError as `neighbours`.
    """
    index, distance = neighbours(X, knn.neighbours, numbers=numbers)
    n = len(index)
    listed = index >= 0
    i, j = np.nonzero(listed)[0], index[listed]
    own = own_scale(index, distance)
    return adjacency(*both_ways(i, j, 0.5 * edge_weights(distance[listed], own[i], own[j], knn.weights)), (n, n))


def own_scale(index: IntArray, distance: FloatArray) -> FloatArray:
    """The distance (nq,) of each row to the last in its own list, as `neighbours` gives them; 0 for an empty list."""
    own: FloatArray = np.where(index >= 0, distance, 0.0).max(axis=1, initial=0.0)
    return own


def edge_weights(
    distance: FloatArray, scale_i: FloatArray, scale_j: FloatArray, weights: str | float = "heat"
) -> FloatArray:
    """The weights (edges,) of edges of these lengths; 1 at distance 0, and never above.

    "binary": 1. "heat": exp(-|x - z|^2 / (s_i s_j)), s each end's own scale, the distance to the last row that it
    lists (Zelnik-Manor & Perona 2004, eq. 2; there the 7th neighbour's). A number t: exp(-|x - z|^2 / (2 t^2)),
    which is the Gaussian of length-scale t (Belkin & Niyogi's heat kernel at time t^2 / 2). The same bits from either
    end.
    """
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

    At most two entries may share a place for the sum to be the same in any order of them.
    """
    W: Any = sp.coo_array((w, (i, j)), shape=shape).tocsr()
    W.sum_duplicates()
    W.eliminate_zeros()
    return W
