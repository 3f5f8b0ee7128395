"""Every ridge from one diagonalisation."""

from __future__ import annotations

from typing import final

import numpy as np

from dorff.solvers.problem import Problem, Solution


@final
class Spectral:
    """Each block's G diagonalised once; a ridge is then a division by G's eigenvalues times a's, plus l ridge.

    At ridge 0 those below the rounding level are left out (the least-norm solution).
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._parts = [
            (block.spectrum[0][:, None] * block.a, block.spectrum[1], block.spectrum[1].T @ block.rhs)
            for block in problem.blocks
        ]

    def solve(self, ridge: float) -> Solution:
        """The solution, its condition number and its GCV score."""
        shift = self._problem.l * ridge
        solved, explained, freedom, condition = [], 0.0, 0.0, 1.0
        for grid, vectors, rotated in self._parts:
            shifted = grid + shift
            floor = np.finfo(np.float64).eps * len(grid) * float(grid.max(initial=0.0))
            denominator = shifted if ridge > 0 else np.where(shifted > floor, shifted, np.inf)
            solved.append(vectors @ (rotated / denominator))
            explained += float(np.sum(rotated**2 / denominator * (2.0 - grid / denominator)))
            freedom += float(np.sum(grid / denominator))
            smallest = float(shifted.min())
            condition = max(condition, float(shifted.max()) / smallest if smallest > 0 else np.inf)
        score = self._problem.gcv(explained, freedom)
        return Solution(self._problem.coefficients(solved), ridge, condition, "eigh", score)
