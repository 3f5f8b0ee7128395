"""Solve a list of ridges; and the error of a solution on the rows of other moments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from dorff.moments import FloatArray, Solvable
from dorff.solvers.dense import solve_cholesky
from dorff.solvers.eigen import Ridge, Spectral
from dorff.solvers.problem import Problem, Solution

MOST_FACTORS = 8  # as many Cholesky factors take about as long as one `eigh`


def solve(problem: Problem, ridges: Sequence[Ridge], *, scores: bool = False) -> list[Solution]:
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails.

    A ridge may be (p,), one for each of the problem's directions. `scores` asks for GCV scores and evidences, which
    the `eigh` always gives.
    """
    apart = any(np.ndim(ridge) > 0 for ridge in ridges)
    if len(ridges) <= MOST_FACTORS and not apart and all(block.plain for block in problem.blocks):
        tried = (solve_cholesky(problem, float(ridge), scores=scores) for ridge in ridges)
        found = list(takewhile(lambda solution: solution is not None, tried))
        if len(found) == len(ridges):
            return [solution for solution in found if solution is not None]
    spectral = Spectral(problem)
    return [spectral.solve(ridge) for ridge in ridges]


def squared_error(moments: Solvable, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Summed squared error (q,) of f = F W + bias over the rows the moments were taken of; 0 for what they miss.

    W (m, q) and bias (q,) in the targets' units.
    """
    V = np.vstack([W, bias - moments.y0, -np.eye(moments.q)])
    error: FloatArray = np.where(moments.mask, moments.squares(V), 0.0)
    return error
