"""Choose a kernel and a ridge from the folds' moments alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import numpy as np

from dorff.moments import FloatArray, Moments
from dorff.solvers.problem import Centred, Problem, Solution
from dorff.solvers.select import kfold_errors, solve

Weigh = Callable[[Moments], FloatArray]


@final
@dataclass(frozen=True)
class Score:
    """One candidate: number `candidate` in the list of kernels, its ridge, and its GCV score or k-fold error."""

    candidate: int
    ridge: float
    value: float


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """The winner, solved on all rows: psi (m, r, q), the centred moments, the solution; and everybody's score."""

    candidate: int
    psi: FloatArray
    centred: Centred
    solution: Solution
    table: tuple[Score, ...]

    @property
    def W(self) -> FloatArray:
        """(m, q), in the scaled targets' units."""
        return self.solution.combined(self.psi)


def choose(
    folds: Sequence[Moments],
    candidates: Sequence[Weigh],
    ridges: Sequence[float],
    *,
    intercept: bool = True,
    scaling: Callable[[Moments], FloatArray | None] = lambda _: None,
) -> Choice:
    """Least k-fold error where there are folds, least GCV score otherwise; the first of equals.

    Each of `candidates` gives a kernel's psi (m, r, q) from training moments (a covariance output needs them);
    `scaling` likewise the target scale. A single candidate with a single ridge is solved without a score.
    """
    total = reduce(add, folds) if len(folds) > 1 else folds[0]
    centred = Centred.of(total, intercept=intercept, scale=scaling(total))
    if len(folds) > 1:
        table = [
            Score(number, ridge, float(error))
            for number, weigh in enumerate(candidates)
            for ridge, error in zip(
                ridges, kfold_errors(folds, weigh, ridges, intercept=intercept, scaling=scaling), strict=True
            )
        ]
        best = min(table, key=lambda score: score.value)
        psi = candidates[best.candidate](total)
        (solution,) = solve(Problem.of(centred, psi), [best.ridge])
        return Choice(best.candidate, psi, centred, solution, tuple(table))
    if len(candidates) == len(ridges) == 1:
        psi = candidates[0](total)
        (solution,) = solve(Problem.of(centred, psi), ridges)
        return Choice(0, psi, centred, solution, ())
    return _least_gcv(total, centred, candidates, ridges)


def _least_gcv(total: Moments, centred: Centred, candidates: Sequence[Weigh], ridges: Sequence[float]) -> Choice:
    table, best, least = [], None, np.inf
    for number, weigh in enumerate(candidates):
        psi = weigh(total)
        for solution in solve(Problem.of(centred, psi), ridges, gcv=True):
            value = float("inf") if solution.gcv is None else solution.gcv
            table.append(Score(number, solution.ridge, value))
            if best is None or value < least:
                best, least = (number, psi, solution), value
    assert best is not None
    return Choice(best[0], best[1], centred, best[2], tuple(table))
