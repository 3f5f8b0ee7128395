"""One ridge after another: Cholesky."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.scores import RidgeScores, Tally
from dorff.solvers.system import EPS, Block


def solve_cholesky(problem: Problem, ridge: float, *, scores: bool = False) -> Solution | None:
    """The solution by Cholesky, or None where a matrix is not numerically positive definite.

    Needs equal output eigenvalues `a` in each block; the condition number is LAPACK's 1-norm estimate. `scores` asks
    for GCV and evidence.
    """
    solved, tallies, condition, shift = [], [], 1.0, problem.l * ridge
    for block in problem.blocks:
        factor = factored(block, shift)
        if factor is None:
            return None
        x, _ = lapack.dpotrs(factor.lower, block.rhs, lower=1)
        condition = max(condition, factor.condition)
        solved.append(x)
        tallies.append(_tally(block, factor, x, shift, scores=scores))
    judged = RidgeScores(problem, tallies)
    gcv, log_evidence = (judged.gcv, judged.log_evidence) if scores else (None, None)
    return Solution(
        problem.coefficients(solved), ridge, condition, "cholesky", gcv, log_evidence, None, judged.variance,
        judged.digits, judged.rss, judged.freedom if scores else None,
    )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """L (k, k), in the lower triangle, with L L^T = G a + shift I; the 1-norm and the condition number of that."""

    lower: FloatArray
    norm: float
    condition: float


def factored(block: Block, shift: float) -> CholeskyFactor | None:
    """The factor of a block whose columns have one `a`; None where no digits are left."""
    matrix = block.G * float(block.a[0])
    matrix[np.diag_indices(len(matrix))] += shift
    norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    lower, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(lower, norm, uplo="L")
    return None if reciprocal < EPS else CholeskyFactor(lower, norm, 1.0 / reciprocal)


def _tally(block: Block, factor: CholeskyFactor, x: FloatArray, shift: float, *, scores: bool) -> Tally:
    """What x says. The freedom needs the trace of the inverse, which is the squared norm of the factor's inverse; that
    is written over the factor."""
    (k, c), squares = x.shape, np.sum(x**2, axis=0)
    largest, log_det, freedom = factor.norm + block.removed * float(block.a[0]), None, None
    if scores:
        whole = 2.0 * float(np.log(np.diag(factor.lower)).sum()) - k * np.log(shift) if shift > 0 else np.inf
        inverse, _ = lapack.dtrtri(factor.lower, lower=1, overwrite_c=1)
        trace = sum(float(column[j:] @ column[j:]) for j, column in enumerate(inverse.T))
        log_det, freedom = np.full(c, whole), np.full(c, k - shift * trace)
    return Tally(
        block, np.sum(x * block.rhs, axis=0), shift * squares, largest * squares,
        factor.condition * largest / factor.norm, freedom, log_det,
    )  # fmt: skip
