"""Solve a list of ridges; and the error of a solution on the rows of other moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dorff.moments import FloatArray, Moments
from dorff.solvers.dense import solve_cholesky
from dorff.solvers.eigen import Spectral
from dorff.solvers.problem import Problem, Solution

MOST_FACTORS = 8  # as many Cholesky factors take about as long as one `eigh`


def solve(problem: Problem, ridges: Sequence[float], *, gcv: bool = False) -> list[Solution]:
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails.

    `gcv=True` asks for GCV scores, which the `eigh` always gives.
    """
    equal = all(np.ptp(block.a) <= 1e-14 * float(np.max(block.a)) for block in problem.blocks)
    if len(ridges) <= MOST_FACTORS and equal:
        found = [solution for ridge in ridges if (solution := solve_cholesky(problem, ridge, gcv=gcv)) is not None]
        if len(found) == len(ridges):
            return found
    spectral = Spectral(problem)
    return [spectral.solve(ridge) for ridge in ridges]


def squared_error(moments: Moments, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Summed squared error (q,) of f = F W + bias over the rows the moments were taken of; 0 for what they miss.

    W (m, q) and bias (q,) in the targets' units.
    """
    full, k = moments.full, moments.m + 1
    weights = np.vstack([W, bias - moments.y0])
    cross = np.einsum("aq,aq->q", weights, full[:k, :k] @ weights - 2.0 * full[:k, k:])
    error: FloatArray = np.where(moments.mask, np.diag(full[k:, k:]) + cross, 0.0)
    return error
