"""One ridge after another: Cholesky."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.problem import Block, Problem, Solution


def solve_cholesky(problem: Problem, ridge: float, *, gcv: bool = False) -> Solution | None:
    """The solution by Cholesky, or None where a matrix is not numerically positive definite.

    Needs equal output eigenvalues `a` in each block; the condition number is LAPACK's 1-norm estimate.
    """
    solved, explained, freedom, condition = [], 0.0, 0.0, 1.0
    for block in problem.blocks:
        found = _factored(block, problem.l * ridge, gcv=gcv)
        if found is None:
            return None
        x, block_condition, block_explained, block_freedom = found
        solved.append(x)
        condition, explained = max(condition, block_condition), explained + block_explained
        freedom += block_freedom
    score = problem.gcv(explained, freedom) if gcv else None
    return Solution(problem.coefficients(solved), ridge, condition, "cholesky", score)


def _factored(block: Block, shift: float, *, gcv: bool) -> tuple[FloatArray, float, float, float] | None:
    """x, the condition number, the squares explained and the degrees of freedom (0 unless `gcv`).

    The freedom needs the trace of the inverse, which is the squared norm of the factor's inverse.
    """
    matrix = block.G * float(block.a[0])
    matrix[np.diag_indices(len(matrix))] += shift
    norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
    if reciprocal < np.finfo(np.float64).eps:
        return None
    x, _ = lapack.dpotrs(factor, block.rhs, lower=1)
    explained = float(np.sum(x * block.rhs) + shift * np.sum(x**2))
    freedom = 0.0
    if gcv:
        inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
        trace = sum(float(column[j:] @ column[j:]) for j, column in enumerate(inverse.T))
        freedom = x.shape[1] * (len(x) - shift * trace)
    return x, 1.0 / reciprocal, explained, freedom
