"""Every ridge from one diagonalisation."""

from __future__ import annotations

from typing import final

import numpy as np

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.scores import RidgeScores, Tally
from dorff.solvers.system import Block

Ridge = float | FloatArray  # one for all, or (p,) with one for each of the problem's directions


@final
class SpectralFactor:
    """Each block's G diagonalised once; a ridge is then a division by G's eigenvalues times a's, plus l ridge.

    At ridge 0 those below the rounding level are left out (the least-norm solution). Those of a Gram matrix may be
    rounding or not: none of the digits is vouched for then. Of the features' own singular values they are rounding;
    the condition number is that of the others.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def scores(self, ridge: Ridge) -> RidgeScores:
        """The scores alone: k c flops for each block's k eigenvalues and c columns."""
        return RidgeScores(self._problem, [divided(self._problem, block, ridge)[1] for block in self._problem.blocks])

    def solve(self, ridge: Ridge) -> Solution:
        """The solution, its condition number and, without penalties, its scores. InputError for ridges of outputs that
        do not part."""
        problem = self._problem
        each = [divided(problem, block, ridge) for block in problem.blocks]
        solved = [block.spectrum[1] @ x for block, (x, _, _) in zip(problem.blocks, each, strict=True)]
        scores = RidgeScores(problem, [tally for _, tally, _ in each])
        condition = max([1.0, *(condition for _, _, condition in each)])
        ridges = None if np.ndim(ridge) == 0 else np.asarray(ridge, dtype=np.float64)
        gcv, log_evidence = (None, None) if problem.pulls else (scores.gcv, scores.log_evidence)
        return Solution(
            problem.coefficients(solved), float(ridge) if ridges is None else _mean(ridges), condition,
            "eigh" if scores.squared else "qr", gcv, log_evidence, ridges, scores.variance, scores.digits,
            scores.rss, scores.freedom,
        )  # fmt: skip


def divided(problem: Problem, block: Block, ridge: Ridge) -> tuple[FloatArray, Tally, float]:
    """A block's solution (k, c) in its eigenvectors, its tally, and the worst column's condition number."""
    shift = problem.shifts(block, ridge)
    grid, rotated = block.spectrum[0][:, None] * block.a, block.rotated
    kept = (shift > 0) | (grid > block.floor * float(grid.max(initial=0.0)))
    denominator = np.where(kept, grid + shift, np.inf)
    x = rotated / denominator
    top, dropped = grid.max(axis=0, initial=0.0), 0.0 if block.squared else np.inf
    least = np.where(kept, grid, dropped).min(axis=0, initial=np.inf) + shift
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_det = np.where(shift > 0, np.sum(np.log1p(grid / shift), axis=0), np.inf)
        conditions = np.where(least > 0, (top + shift) / least, np.inf)
        lifted = np.where(least > 0, (top + block.removed * block.a + shift) / least, np.inf)
    squares = np.sum(x**2, axis=0)
    tally = Tally(
        block, np.sum(rotated * x, axis=0), shift * squares, (top + block.removed * block.a) * squares,
        float(lifted.max(initial=1.0)), np.sum(grid / denominator, axis=0), log_det,
    )  # fmt: skip
    return x, tally, float(conditions.max(initial=1.0))


def _mean(ridges: FloatArray) -> float:
    """The geometric mean, 0 if one is 0."""
    return float(np.exp(np.mean(np.log(ridges)))) if np.all(ridges > 0) else 0.0
