"""Choose a kernel and a ridge from the folds' moments alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from dorff.errors import InputError
from dorff.moments import FloatArray, Moments, pooled
from dorff.solvers.select import squared_error
from dorff.solvers.setting import Fit, Setting

Folds = Sequence[list[Moments]]  # of each fold the moments of each pattern of targets


@final
@dataclass(frozen=True)
class Score:
    """One candidate: number `candidate` in the list of settings, its ridge, and its GCV score or k-fold error."""

    candidate: int
    ridge: float
    value: float


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """The winner, solved on all rows; and everybody's score."""

    candidate: int
    fit: Fit
    table: tuple[Score, ...]


def choose(folds: Folds, candidates: Sequence[Setting], ridges: Sequence[float], *, gcv: bool = False) -> Choice:
    """Least k-fold error where there are folds, least GCV score otherwise; the first of equals.

    `gcv` looks at GCV though there are folds; a single candidate with a single ridge then needs no score.
    """
    total = pooled(folds)
    if len(folds) == 1 or gcv:
        if len(candidates) == len(ridges) == 1:
            (fit,) = candidates[0].solve(total, ridges)
            return Choice(0, fit, ())
        return _least_gcv(total, candidates, ridges)
    table = tuple(
        Score(number, ridge, float(error))
        for number, setting in enumerate(candidates)
        for ridge, error in zip(ridges, kfold_errors(folds, setting, ridges), strict=True)
    )
    best = min(table, key=lambda score: score.value)
    (fit,) = candidates[best.candidate].solve(total, [best.ridge])
    return Choice(best.candidate, fit, table)


def _least_gcv(total: Sequence[Moments], candidates: Sequence[Setting], ridges: Sequence[float]) -> Choice:
    table, best, least = [], None, np.inf
    for number, setting in enumerate(candidates):
        for fit in setting.solve(total, ridges, gcv=True):
            value = float("inf") if fit.solution.gcv is None else fit.solution.gcv
            table.append(Score(number, fit.solution.ridge, value))
            if best is None or value < least:
                best, least = (number, fit), value
    assert best is not None
    return Choice(*best, tuple(table))


def kfold_errors(folds: Folds, setting: Setting, ridges: Sequence[float]) -> FloatArray:
    """Held-out mean squared error (len(ridges),), over all rows by their weight and all targets they have.

    Each fold is predicted from the sum of the others (added, never subtracted), from which its target scale and its
    output matrix come too.
    """
    if len(folds) < 2:
        raise InputError(f"k-fold needs at least two folds with rows in them; got {len(folds)}")
    errors, C = np.zeros(len(ridges)), setting.observe
    for held, fold in enumerate(folds):
        training = pooled([other for number, other in enumerate(folds) if number != held])
        for position, fit in enumerate(setting.solve(training, ridges)):
            W, bias = (fit.W, fit.bias) if C is None else (fit.W @ C.T, C @ fit.bias)
            errors[position] += sum(float(squared_error(part, W, bias).sum()) for part in fold)
    entries = sum(part.corner[0, 0] * np.count_nonzero(part.mask) for fold in folds for part in fold)
    return np.asarray(errors / entries)
