"""Solve a list of ridges; choose among them by GCV or by k-fold error from the folds' moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from dorff.errors import InputError
from dorff.moments import FloatArray, Moments
from dorff.solvers.dense import solve_cholesky
from dorff.solvers.eigen import Spectral
from dorff.solvers.problem import Centred, Problem, Solution

MOST_FACTORS = 8  # as many Cholesky factors take about as long as one `eigh`


def solve(problem: Problem, ridges: Sequence[float], *, gcv: bool = False) -> list[Solution]:
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails.

    `gcv=True` asks for GCV scores, which the `eigh` always gives.
    """
    equal = np.ptp(problem.a) <= 1e-14 * float(problem.a[-1])
    if len(ridges) <= MOST_FACTORS and equal:
        found = [solution for ridge in ridges if (solution := solve_cholesky(problem, ridge, gcv=gcv)) is not None]
        if len(found) == len(ridges):
            return found
    spectral = Spectral(problem)
    return [spectral.solve(ridge) for ridge in ridges]


def squared_error(moments: Moments, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Summed squared error (q,) of f = F W + bias over the rows the moments were taken of.

    W (m, q) and bias (q,) in the targets' units.
    """
    full, k = moments.full, moments.m + 1
    weights = np.vstack([W, bias - moments.y0])
    cross = np.einsum("aq,aq->q", weights, full[:k, :k] @ weights - 2.0 * full[:k, k:])
    error: FloatArray = np.diag(full[k:, k:]) + cross
    return error


def kfold_errors(
    folds: Sequence[Moments], weigh: Callable[[Moments], FloatArray], ridges: Sequence[float],
    *, intercept: bool = True, scaling: Callable[[Moments], FloatArray | None] = lambda _: None,
) -> FloatArray:  # fmt: skip
    """Held-out mean squared error (len(ridges),), pooled over rows and outputs.

    Each fold is predicted from the sum of the others (added, never subtracted). `weigh` gives psi (m, r, q)
    and `scaling` the target scale from the training moments, so that nothing of the held-out fold is used.
    """
    if len(folds) < 2:
        raise InputError(f"k-fold needs at least two folds with rows in them; got {len(folds)}")
    errors = np.zeros(len(ridges))
    for held, fold in enumerate(folds):
        training = reduce(add, [other for number, other in enumerate(folds) if number != held])
        psi = weigh(training)
        centred = Centred.of(training, intercept=intercept, scale=scaling(training))
        for position, solution in enumerate(solve(Problem.of(centred, psi), ridges)):
            W = solution.combined(psi)
            errors[position] += squared_error(fold, W * centred.scale, centred.bias(W)).sum()
    total = sum(fold.n for fold in folds) * folds[0].q
    return errors / total
