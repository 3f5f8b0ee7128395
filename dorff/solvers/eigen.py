"""Every ridge from one diagonalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from dorff.solvers.problem import Problem
from dorff.solvers.scores import BlockSolution, Ridge, RidgeScores, Solution, Solver
from dorff.solvers.system import Block


@final
class SpectralFactor(Solver):
    """Each block's G diagonalised once; a ridge is then a division by G's eigenvalues times a's, plus l ridge.

    At ridge 0 those below the rounding level are left out (the least-norm solution). Those of a Gram matrix may be
    rounding or not: none of the digits is vouched for then. Of the features' own singular values they are rounding;
    the condition number is that of the others.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.rung = "eigh" if all(block.squared for block in problem.blocks) else "qr"

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        return True

    def block(self, block: Block, ridge: Ridge, *, scores: bool) -> BlockSolution:
        solved = divided(self.problem, block, ridge)
        return replace(solved, x=block.spectrum[1] @ solved.x)

    def scores(self, ridge: Ridge) -> RidgeScores:
        """The scores alone: k c flops for each block's k eigenvalues and c columns."""
        return RidgeScores(self.problem, [divided(self.problem, block, ridge) for block in self.problem.blocks])

    def solve(self, ridge: Ridge, *, scores: bool = False) -> Solution:
        """The solution, its condition number and, without penalties, its scores, which come for nothing. InputError
        for ridges of outputs that do not part."""
        solved = [self.block(block, ridge, scores=True) for block in self.problem.blocks]
        return Solution.of(self.problem, ridge, solved, self.rung, scores=not self.problem.pulls)


def divided(problem: Problem, block: Block, ridge: Ridge) -> BlockSolution:
    """A block's solution, its x (k, c) in the eigenvectors."""
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
    return BlockSolution(
        block, x, np.sum(rotated * x, axis=0), shift * squares, (top + block.removed * block.a) * squares,
        float(conditions.max(initial=1.0)), float(lifted.max(initial=1.0)),
        np.sum(grid / denominator, axis=0), log_det,
    )  # fmt: skip
