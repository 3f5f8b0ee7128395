"""One ridge after another: Cholesky."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from dorff.solvers.problem import Problem, Solution


def solve_cholesky(problem: Problem, ridge: float, *, gcv: bool = False) -> Solution | None:
    """The solution by Cholesky, or None where the matrix is not numerically positive definite.

    Needs equal output eigenvalues `problem.a`; the condition number is LAPACK's 1-norm estimate. The GCV score
    needs the trace of the inverse, which is the squared norm of the factor's inverse.
    """
    shift = problem.centred.l * ridge
    matrix = problem.G * float(problem.a[0])
    matrix[np.diag_indices(len(matrix))] += shift
    norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
    if reciprocal < np.finfo(np.float64).eps:
        return None
    x, _ = lapack.dpotrs(factor, problem.rhs, lower=1)
    score = None
    if gcv:
        inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
        trace = sum(float(column[j:] @ column[j:]) for j, column in enumerate(inverse.T))
        freedom = x.shape[1] * (len(x) - shift * trace)
        score = problem.centred.gcv(float(np.sum(x * problem.rhs) + shift * np.sum(x**2)), freedom)
    return Solution(problem.coefficients(x), ridge, 1.0 / reciprocal, "cholesky", score)
