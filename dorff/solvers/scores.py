"""What a solution says of the model it belongs to: noise variance, GCV score, evidence.

The model is that of Bayesian linear regression: coefficients h ~ N(0, s2 / (l ridge) I), noise of variance s2 / w for
a row of weight w, a flat prior on the intercept. Its mean is the ridge solution (Rasmussen & Williams 2006, ch. 2.1).
Directions that are problems of their own have an s2 each. Kernels are compared by the evidence of a model that is the
same for all (`select.noise_models`), which is this one for targets divided by their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem, digits_left
from dorff.solvers.system import Block

_TINY = float(np.finfo(np.float64).tiny)


@final
@dataclass(frozen=True, eq=False)
class Tally:
    """Of one block's columns, (c,) each: rhs . x, shift |x|^2, and |x|^2 times the largest eigenvalue of the column's
    matrix before it was centred; the degrees of freedom tr(G (G + shift)^-1) and log det(I + G / shift), where they
    are known. `condition` is the worst column's, taken with that eigenvalue."""

    block: Block
    fitted: FloatArray
    shrunk: FloatArray
    level: FloatArray
    condition: float = 1.0
    freedom: FloatArray | None = None
    log_det: FloatArray | None = None


@final
class RidgeScores:
    """Scores from the tallies of all blocks, in the scaled targets' units but for the evidence.

    Arrays are (J,): one for each of the problem's `directions`, or J = 1. Squares that are left are never taken to be
    less than what rounding leaves of them, unit (squares of the targets + |x|^2 times G's largest eigenvalue): a
    system without digits cannot score a residual of 0.
    """

    def __init__(self, problem: Problem, tallies: Sequence[Tally]) -> None:
        self._problem, self._totals, self._tallies = problem, problem.totals, tallies
        self.squared = all(tally.block.squared for tally in tallies)
        self._levels = self._summed([tally.level for tally in tallies])
        floor = problem.unit * (self._totals.squares + self.squared * self._levels) + _TINY
        kept = self._totals.energy - self._summed([tally.fitted for tally in tallies])
        self.rss: FloatArray = np.maximum(kept - self._summed([tally.shrunk for tally in tallies]), floor)
        self._penalised = np.maximum(kept, floor)

    def _summed(self, values: Sequence[FloatArray]) -> FloatArray:
        """(J,): each column's value added where it belongs."""
        out = np.zeros(len(self._totals.energy))
        for tally, value in zip(self._tallies, values, strict=True):
            if self._problem.directions is None:
                out += value.sum()
            else:
                out[tally.block.columns] += value
        return out

    @property
    def digits(self) -> float:
        """`digits_left` of all targets together, as they were summed: about y0, features not yet centred."""
        condition = max([1.0, *(tally.condition for tally in self._tallies)])
        size = float(np.sqrt(self._levels.sum() / max(self._totals.squares.sum(), _TINY)))
        return digits_left(condition, self._problem.unit, squared=self.squared, size=size)

    @property
    def _left(self) -> FloatArray:
        """Observed entries that the intercept leaves."""
        return np.maximum(self._totals.entries - self._totals.spent, 0.0)

    @property
    def variance(self) -> FloatArray:
        """The noise variances at which the evidence is greatest: (RSS + l ridge |h|^2) / (N - degrees of the
        intercept); 0 where no entry is left."""
        return np.where(self._left > 0, self._penalised / np.maximum(self._left, 1.0), 0.0)

    @cached_property
    def freedom(self) -> FloatArray:
        """Degrees of freedom, with the intercept's."""
        return self._totals.spent + self._summed([_known(tally.freedom) for tally in self._tallies])

    @property
    def gcv(self) -> float:
        """(RSS / N) / (1 - df / N)^2 with N entries observed (Golub, Heath & Wahba 1979), inf where df >= N.

        The intercept's degrees count too. Rows' weights count by their ratios alone: RSS / N is the weighted mean.
        """
        totals = self._totals
        left = 1.0 - self.freedom.sum() / totals.entries.sum()
        return float(self.rss.sum() / totals.weight.sum() / left**2) if left > 0 else np.inf

    @property
    def gcv_each(self) -> FloatArray:
        """The GCV score of each direction alone."""
        entries, weight = np.maximum(self._totals.entries, 1.0), np.maximum(self._totals.weight, _TINY)
        left = 1.0 - self.freedom / entries
        return np.where(left > 0, self.rss / weight / np.where(left > 0, left, 1.0) ** 2, np.inf)

    @property
    def evidence_each(self) -> FloatArray:
        """log p(scaled targets | ridge), the coefficients and a flat intercept integrated out, at its greatest over
        the noise variance (the restricted likelihood of Patterson & Thompson 1971, with log det n of the intercept's
        system, for a flat prior on it, in the targets' units). Of directions that add to the `log_evidence`.

        -inf at ridge 0. With row weights, a constant of the data, half the sum of log w over the entries, is left out.
        """
        log_det = self._summed([_known(tally.log_det) for tally in self._tallies])
        noise = np.log(2.0 * np.pi * np.where(self._left > 0, self.variance, 1.0)) + 1.0
        return np.asarray(-0.5 * (self._left * noise + self._totals.log_free + log_det))

    @property
    def log_evidence(self) -> float:
        """log p(targets | ridge) in the targets' own units: as `evidence_each`, of all."""
        return float(self.evidence_each.sum() - self._problem.log_units)


def _known(values: FloatArray | None) -> FloatArray:
    assert values is not None  # asked for with `scores`
    return values
