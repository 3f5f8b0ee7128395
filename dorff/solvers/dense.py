"""One ridge: Cholesky."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from dorff.solvers.problem import Problem, Solution


def solve_cholesky(problem: Problem, ridge: float) -> Solution | None:
    """The solution by Cholesky, or None where the matrix is not numerically positive definite.

    Needs equal output eigenvalues `problem.a`; the condition number is LAPACK's 1-norm estimate.
    """
    a = float(problem.a[0])
    matrix = problem.G * a
    matrix[np.diag_indices(len(matrix))] += problem.centred.l * ridge
    norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
    if reciprocal < np.finfo(np.float64).eps:
        return None
    x, _ = lapack.dpotrs(factor, problem.rhs, lower=1)
    return Solution(problem.coefficients(x), ridge, 1.0 / reciprocal, "cholesky")
