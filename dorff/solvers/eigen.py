"""Every ridge from one diagonalisation."""

from __future__ import annotations

from typing import final

import numpy as np
import scipy.linalg

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem, Solution


@final
class Spectral:
    """G diagonalised once; each ridge is then a division by G's eigenvalues times a's, plus l ridge.

    Eigenvalues that rounding made negative count as zero. At ridge 0 those below the rounding level are left
    out (the least-norm solution).
    """

    def __init__(self, problem: Problem) -> None:
        values, self._vectors = scipy.linalg.eigh(problem.G, driver="evd")
        self._problem = problem
        self._grid = np.maximum(values, 0.0)[:, None] * problem.a
        self._rotated = self._vectors.T @ problem.rhs

    def _denominator(self, ridge: float) -> FloatArray:
        shifted = self._grid + self._problem.centred.l * ridge
        floor = np.finfo(np.float64).eps * len(shifted) * float(self._grid.max(initial=0.0))
        return shifted if ridge > 0 else np.where(shifted > floor, shifted, np.inf)

    def solve(self, ridge: float) -> Solution:
        """The solution, its condition number and its GCV score."""
        denominator = self._denominator(ridge)
        x = self._vectors @ (self._rotated / denominator)
        shifted = self._grid + self._problem.centred.l * ridge
        smallest = float(shifted.min())
        condition = float(shifted.max()) / smallest if smallest > 0 else np.inf
        return Solution(self._problem.coefficients(x), ridge, condition, "eigh", self._gcv(denominator))

    def _gcv(self, denominator: FloatArray) -> float:
        explained = self._rotated**2 / denominator * (2.0 - self._grid / denominator)
        return self._problem.centred.gcv(float(explained.sum()), float(np.sum(self._grid / denominator)))
