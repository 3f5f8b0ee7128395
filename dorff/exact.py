"""Exact kernel ridge regression for small N: the oracle of the tests, and the better tool when N is small."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dorff.errors import InputError
from dorff.kernels import Decomposable, FloatArray, OperatorKernel, ScalarKernel
from dorff.kernels.scalar import BoolArray

#: What a block of the kernel's values and their temporaries may take (about eight arrays of its size).
BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class ExactRidge:
    """f(x) = sum_i K(x, x_i) a_i + b in R^p, observed as C f in R^q, C = `observe` or the identity; least

        1/l sum_i w_i |P_i (y_i - C f(x_i))|^2 + ridge |f|^2          (Minh 2016, eq. 67 with gI = 0)

    P_i keeps the entries of y_i that are numbers (NaN: not observed); l is the summed weight of the rows with at
    least one; b is free, and of the b with the same C b the shortest. With B the row blocks P_i C, the values
    observed are solved for: (B K B^T + l ridge / w) z + B b = y, B^T z summed over rows 0, a = B^T z. This is Minh's
    eq. 72, whose system (C*C J K + l gA) a = C* y is p n wide and not symmetric, and has the same f. Brault's (2016)
    lambda of eq. 11 is `ridge`; the one of eq. 12 is N times it.

    `dual` a (n, p) is 0 for rows of no observed value; `observe` (q, p)."""

    kernel: OperatorKernel
    X: FloatArray
    dual: FloatArray
    intercept: FloatArray
    observe: FloatArray

    @classmethod
    def fit(
        cls,
        kernel: OperatorKernel,
        X: FloatArray,
        Y: FloatArray,
        *,
        ridge: float,
        intercept: bool = True,
        observe: FloatArray | None = None,
        weights: FloatArray | None = None,
    ) -> "ExactRidge":
        """Fit to inputs X (n, d) and targets Y (n, q), with row weights (n,), 1 unless given. A "covariance" in the
        kernel is that of the rows with no NaN, weighted, and needs `observe` to be None. Raises InputError for shapes
        that do not go together, numbers that are not finite, a negative weight or ridge, targets of which none is
        observed, and a system that is singular to rounding."""
        if not isinstance(kernel, OperatorKernel):
            raise InputError(f"kernel must be an operator kernel, such as Decomposable({kernel!r}), not {kernel!r}")
        X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
        if X.ndim != 2 or Y.ndim != 2:
            raise InputError(f"X and Y must be (n, d) and (n, q), got shapes {X.shape} and {Y.shape}; reshape them")
        n, q = Y.shape
        C = np.eye(q) if observe is None else np.asarray(observe, dtype=np.float64)
        w = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
        _check(X, Y, C, w, ridge)
        p, seen = C.shape[1], ~np.isnan(Y) & (w > 0)[:, None]
        whole = ~np.isnan(Y).any(axis=1) & (w > 0)
        counts = observe is None and whole.any()
        covariance = np.atleast_2d(np.cov(Y[whole].T, bias=True, aweights=w[whole])) if counts else None
        kernel = kernel.fix(X.shape[1], p, covariance)
        used = seen.any(axis=1)
        if not used.any():
            raise InputError("Y has no observed value in a row of positive weight; give at least one")
        some = seen[used]
        noise = np.repeat((ridge * w[used].sum() / w[used])[:, None], q, axis=1)[some]
        basis = scipy.linalg.orth(C[some.any(axis=0)].T)  # of the b that are observed
        ones = np.broadcast_to(C @ basis, (len(some), q, basis.shape[1]))[some]
        right = np.column_stack([Y[used][some], ones])
        separable = _separable(kernel) if some.all() else None
        if separable is None:
            solved = _solved(kernel, X[used], C, some, noise, right)
        else:
            solved = _solved_apart(*separable, X[used], C, noise, right)
        z, b = solved[:, 0], np.zeros(p)
        if intercept:
            along = np.linalg.solve(ones.T @ solved[:, 1:], ones.T @ z)
            z, b = z - solved[:, 1:] @ along, basis @ along
        full = np.zeros((n, q))
        full[seen] = z
        return cls(kernel, X, full @ C, b, C)

    def predict(self, X: FloatArray) -> FloatArray:
        """f at X (n, d): (n, p). What would be observed there is `predict(X) @ observe.T`."""
        values = np.empty((len(X), len(self.intercept)))
        if (separable := _separable(self.kernel)) is not None:
            scalar, A = separable
            right = self.dual @ A
            for start, stop in _blocks(len(X), len(self.X)):
                values[start:stop] = scalar.gram(X[start:stop], self.X) @ right
        else:
            for start, stop in _blocks(len(X), len(self.X) * self.dual.shape[1] ** 2):
                values[start:stop] = np.einsum("nkpq,kq->np", self.kernel.gram(X[start:stop], self.X), self.dual)
        values += self.intercept
        return values


def _solved(
    kernel: OperatorKernel, X: FloatArray, C: FloatArray, some: BoolArray, noise: FloatArray, right: FloatArray
) -> FloatArray:
    """z of (B K B^T + diag(noise)) z = right over the N observed values, right and z (N, c): any pattern."""
    ends = np.concatenate([[0], np.cumsum(some.sum(axis=1))])
    K = np.empty((ends[-1], ends[-1]))  # only the lower triangle of row blocks is written and read
    for start, stop in _blocks(len(X), len(X) * C.shape[1] ** 2):
        gram = kernel.gram(X[start:stop], X[:stop])
        if not np.array_equal(C, np.eye(len(C))):
            gram = C @ gram @ C.T
        shape = ((stop - start) * len(C), stop * len(C))
        rows, columns = some[start:stop].ravel(), some[:stop].ravel()
        K[ends[start] : ends[stop], : ends[stop]] = gram.transpose(0, 2, 1, 3).reshape(shape)[rows][:, columns]
    K[np.diag_indices(len(K))] += noise
    return np.asarray(scipy.linalg.cho_solve((_cholesky(K), False), right, check_finite=False))


def _solved_apart(
    scalar: ScalarKernel, A: FloatArray, X: FloatArray, C: FloatArray, noise: FloatArray, right: FloatArray
) -> FloatArray:
    """The same of k0 A observed through C with nothing missing: k0 a + noise for each eigenvalue a of C A C^T."""
    n, q = len(X), len(C)
    values, vectors = np.linalg.eigh(C @ A @ C.T)
    k0 = np.zeros((n, n))  # all of it is multiplied below, and its lower triangle read
    for start, stop in _blocks(n, n):
        k0[start:stop, :stop] = scalar.gram(X[start:stop], X[:stop])
    turned = np.einsum("njc,jk->knc", right.reshape(n, q, -1), vectors)
    for cluster in _clusters(values):
        K = max(float(values[cluster].mean()), 0.0) * k0
        K[np.diag_indices(n)] += noise.reshape(n, q)[:, 0]
        rights = turned[cluster].transpose(1, 0, 2).reshape(n, -1)
        z = scipy.linalg.cho_solve((_cholesky(K), False), rights, check_finite=False)
        turned[cluster] = z.reshape(n, -1, turned.shape[2]).transpose(1, 0, 2)
    return np.asarray(np.einsum("knc,jk->njc", turned, vectors).reshape(right.shape))


def _separable(kernel: OperatorKernel) -> tuple[ScalarKernel, FloatArray] | None:
    """k0 and A (p, p) of a kernel k0 A, its output matrices fixed; None where it is not one scalar kernel's."""
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    if not all(isinstance(base, Decomposable) for _, base in terms) or len({base.scalar for _, base in terms}) > 1:
        return None
    roots = [np.sqrt(weight) * base.root(np.ones((1, 1)))[0] for weight, base in terms]
    return terms[0][1].scalar, np.asarray(sum(root.T @ root for root in roots))


def _clusters(values: npt.NDArray[np.floating[Any]]) -> list[npt.NDArray[np.intp]]:
    """Places of eigenvalues, in order of size, that are equal to rounding."""
    return np.split(np.arange(len(values)), np.flatnonzero(np.diff(values) > 1e-13 * np.abs(values).max()) + 1)


def _cholesky(K: FloatArray) -> FloatArray:
    """The upper factor of K^T, in place: K (N, N) in C order, of which the lower triangle is read."""
    try:
        factor, _ = scipy.linalg.cho_factor(K.T, lower=False, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        raise InputError("the kernel's matrix is singular to rounding at this ridge; give a larger ridge") from None
    return np.asarray(factor)


def _blocks(n: int, numbers: int) -> Iterator[tuple[int, int]]:
    """Runs of n rows, each of which takes `numbers` numbers, and eight times so for temporaries."""
    size = max(1, BLOCK_BYTES // (64 * numbers))
    for start in range(0, n, size):
        yield start, min(n, start + size)


def _check(X: FloatArray, Y: FloatArray, C: FloatArray, w: FloatArray, ridge: float) -> None:
    if len(X) != len(Y):
        raise InputError(f"X has {len(X)} rows but Y has {len(Y)}; give one target row per input row")
    if C.ndim != 2 or len(C) != Y.shape[1] or not np.isfinite(C).all() or not C.any():
        wanted = f"not zero, with a row for each of Y's {Y.shape[1]} columns and a column for each output"
        raise InputError(f"observe must be a finite matrix, {wanted}; got shape {C.shape}")
    if w.shape != (len(X),) or not np.isfinite(w).all() or (w < 0).any():
        raise InputError(f"weights must be {len(X)} numbers of 0 or more, one per row; got shape {w.shape}")
    if not np.isfinite(X).all() or np.isinf(Y).any():
        raise InputError("X must be finite, and Y finite or NaN (not observed); remove the rows with other values")
    if not np.isfinite(ridge) or ridge < 0:
        raise InputError(f"ridge must be a number of 0 or more, not {ridge!r}")
