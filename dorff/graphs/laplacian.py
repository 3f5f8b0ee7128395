"""Degrees and Laplacians of weights W, symmetric and not negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.graphs.nearest import FloatArray


def row_sums(indptr: npt.NDArray[Any], weights: FloatArray) -> FloatArray:
    """The degrees (rows,) of a CSR matrix's rows, each added up from its first entry to its last."""
    rows = len(indptr) - 1
    sums = np.bincount(np.repeat(np.arange(rows), np.diff(indptr)), weights=weights, minlength=rows)
    return sums.astype(np.float64)  # whole numbers where there is no entry


def degrees(W: sp.csr_array) -> FloatArray:
    """d_i = sum_j W_ij (n,)."""
    return row_sums(W.indptr, W.data)


def inverse_roots(degree: FloatArray) -> FloatArray:
    """d^-1/2, and 0 for a row without edges: it has no part in a normalised Laplacian."""
    return np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)


def laplacian(W: sp.csr_array, *, normalised: bool = False) -> sp.csr_array:
    """D - W, or the symmetric normalised I - D^-1/2 W D^-1/2 (n, n), without a diagonal entry for a row of degree 0.

    f^T L f is the sum over edges of w_ij (f_i - f_j)^2, or of w_ij (f_i / sqrt(d_i) - f_j / sqrt(d_j))^2
    (Chung 1997, 1.2).
    """
    d = degrees(W)
    if not normalised:
        return sp.csr_array(sp.diags_array(d) - W)
    r = inverse_roots(d)
    i = np.repeat(np.arange(len(d)), np.diff(W.indptr))
    scaled = sp.csr_array((W.data * (r[i] * r[W.indices]), W.indices, W.indptr), shape=W.shape)
    L = sp.csr_array(sp.diags_array((d > 0).astype(np.float64)) - scaled)
    L.eliminate_zeros()
    return L
