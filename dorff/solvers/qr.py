"""Problems from triangles: singular values of the features in place of eigenvalues of their products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Solvable, Triangle, tpqrt
from dorff.solvers.penalty import Penalty
from dorff.solvers.problem import Problem, Units
from dorff.solvers.system import Block, Size

# LAPACK counts in 32 bits, and dgesdd's workspace is 4 k^2 + 7 k numbers.
LARGEST_SVD: Final = 23_168


def problem_of(
    parts: Sequence[Solvable], weights: OperatorWeights, *, intercept: bool = True,
    scale: FloatArray | Units | None = None, observe: FloatArray | None = None, penalties: Sequence[Penalty] = (),
) -> Problem:  # fmt: skip
    """`Problem.of` moments; of triangles the same problem, each block's spectrum from an SVD of its own rows.

    The rows of a block are those of the triangles, the intercept's columns first: a QR takes these out by leaving out
    as many rows of its R (centring). What is left is B (k, k), B^T B = G, and the targets' T (k, c). Nothing is
    squared before B's singular values are, so eigenvalues of G are right down to (1e-16)^2 of the largest where a
    Gram matrix keeps 1e-16, and a condition number costs half its exponent in digits (Golub & Van Loan 2013, ch. 5.3).
    InputError for a block wider than LAPACK can count, and for triangles with penalties, which are sums of products
    (Gram), or with several views.
    """
    if (penalties or weights.views is not None) and any(isinstance(part, Triangle) for part in parts):
        raise InputError(
            "solve.qr: triangles go neither with a manifold term, whose sums are products, nor with multi-view "
            "kernels; set solve.qr: false"
        )
    grams = [part.gram() if isinstance(part, Triangle) else part for part in parts]
    problem = Problem.of(grams, weights, intercept=intercept, scale=scale, observe=observe, penalties=penalties)
    rows = [_Rows(part, problem) for part in parts if isinstance(part, Triangle)]
    if not rows:
        return problem
    problem = replace(problem, unit=max(part.unit for part in parts))
    return replace(problem, blocks=tuple(_sharpened(problem, block, rows) for block in problem.blocks))


def triangle_bytes(size: Size) -> int:
    """The most memory of solving by `problem_of` triangles, beside these: moments and rows of each; of every block G
    and V, and while this is found U and LAPACK's workspace, four times as large (dgesdd)."""
    return size.packed + size.unpacked + size.vectors + (2 * size.blocks + 5) * 8 * size.k**2


@final
class _Rows:
    """A triangle as rows of a problem: features F (k, m), the column of ones (k,), scaled targets Y (k, q)."""

    def __init__(self, part: Triangle, problem: Problem) -> None:
        m, R = part.m, part.square[: part.m + 1]  # what is below is about targets alone
        self.F, self.ones, self.mask = R[:, :m], R[:, m], part.mask
        Y = R[:, m + 1 :] if problem.intercept else R[:, m + 1 :] + np.outer(self.ones, part.y0)
        self.Y: FloatArray = np.where(self.mask, Y / problem.units, 0.0)


def _sharpened(problem: Problem, block: Block, rows: Sequence[_Rows]) -> Block:
    k, c = block.rhs.shape
    if k > LARGEST_SVD:
        raise InputError(
            f"features.count: the QR of the features has {k} columns, LAPACK's 32-bit numbers reach {LARGEST_SVD} for "
            "its singular values; lower the count, or set solve.qr: false"
        )
    if block.rotation is None:
        basis = _free_basis(problem)
        free, stack = basis.shape[1], _coupled(problem, block, rows, basis)
    else:
        free, stack = int(problem.intercept), _separate(problem, block, rows)
    B, T = _reflected(stack, free, k, c)
    U, s, Vt = scipy.linalg.svd(B, overwrite_a=True, check_finite=False)
    return replace(block, given=(s**2, Vt.T), turned=s[:, None] * (U.T @ T), squared=False)


def _reflected(stack: Iterable[FloatArray], free: int, k: int, c: int) -> tuple[FloatArray, FloatArray]:
    """B (k, k) and T (k, c): what a QR of the rows leaves of their columns free + k + c below the first `free`."""
    R = np.zeros((free + k + c,) * 2, order="F")
    for some in stack:
        tpqrt(R, np.asfortranarray(some))
    below = R[free : free + k]
    return np.asfortranarray(np.triu(below[:, free : free + k])), below[:, free + k :].copy()


def _separate(problem: Problem, block: Block, rows: Sequence[_Rows]) -> Iterator[FloatArray]:
    """Rows of [1 | features | targets] of a block for all targets, or for those that the same rows have."""
    assert block.columns is not None and block.load is not None
    for one in rows:
        if one.mask[block.columns[0]]:
            ones = one.ones[:, None] if problem.intercept else np.empty((len(one.ones), 0))
            yield np.hstack([ones, one.F * problem.weights.gain, one.Y @ block.load])


def _coupled(problem: Problem, block: Block, rows: Sequence[_Rows], basis: FloatArray) -> Iterable[FloatArray]:
    """Rows of [intercept | features | target] of one system for everything, target by target."""
    at = block.at
    written = np.broadcast_to(problem.weights.root, problem.weights.shape)
    seen = (problem.weights.gain[at[0], None] * written[at]) @ problem.C.T
    for one in rows:
        for target in np.flatnonzero(one.mask):
            free = np.outer(one.ones, problem.C[target] @ basis)
            yield np.hstack([free, one.F[:, at[0]] * seen[:, target], one.Y[:, target, None]])


def _free_basis(problem: Problem) -> FloatArray:
    """(p, p'): orthonormal columns that span what C sees of the intercept; none where there is no intercept."""
    values, vectors = np.linalg.eigh(problem.free[0])
    some = values > 1e-12 * values[-1] if problem.intercept else np.zeros(len(values), dtype=bool)
    return np.asarray(vectors[:, some])
