"""Direct solvers: one Cholesky factor after another, or every ridge from one diagonalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, final

import numpy as np
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem
from dorff.solvers.scores import BlockFactor, BlockSolution, DirectSolver, Ridge, RidgeScores, Solution
from dorff.solvers.system import EPS, Block, Size

MOST_FACTORS: Final = 8  # as many Cholesky factors take about as long as one `eigh`


@final
class CholeskySolver(DirectSolver):
    """A factor for each ridge; the condition number is LAPACK's 1-norm estimate. Needs equal output eigenvalues `a` in
    each block."""

    rung = "cholesky"

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        one = not any(np.ndim(ridge) for ridge in ridges) and all(block.plain for block in problem.blocks)
        return one and len(ridges) <= MOST_FACTORS

    def factor(self, block: Block, ridge: Ridge) -> CholeskyFactor | None:
        shifts = self.problem.shifts(block, ridge)
        if not block.plain or np.ptp(shifts) > 0:
            return None
        matrix, shift = block.G * float(block.a[0]), float(shifts[0])
        matrix[np.diag_indices(len(matrix))] += shift
        norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
        lower, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        reciprocal, _ = lapack.dpocon(lower, norm, uplo="L")
        return None if reciprocal < EPS else CholeskyFactor(block, shift, lower, norm, 1.0 / reciprocal)


@final
@dataclass(frozen=True, eq=False)
class CholeskyFactor(BlockFactor):
    """L (k, k), in the lower triangle, with L L^T = G a + shift I; the 1-norm and the condition number of that."""

    of: Block
    shift: float
    lower: FloatArray
    norm: float
    condition: float

    def solve(self, *, scores: bool = False) -> BlockSolution:
        block, shift = self.of, self.shift
        x, _ = lapack.dpotrs(self.lower, block.rhs, lower=1)
        squares, largest = np.sum(x**2, axis=0), self.norm + block.removed * float(block.a[0])
        log_det = 2.0 * float(np.log(np.diag(self.lower)).sum()) - len(x) * np.log(shift) if shift > 0 else np.inf
        lifted = self.condition * largest / self.norm
        sizes = np.sum(x * block.rhs, axis=0), shift * squares, largest * squares
        solved = BlockSolution(block, x, *sizes, self.condition, lifted, log_det=np.full(len(squares), log_det))
        if not scores:
            return solved
        return self._counted(solved, sum(float(column[j:] @ column[j:]) for j, column in enumerate(self._root().T)))

    def inverses(self) -> tuple[FloatArray, FloatArray]:
        root = self._root()
        return np.tril(root).T, np.ones((len(root), 1))

    def with_inverse(self) -> tuple[BlockSolution, FloatArray]:
        solved = self.solve()
        inverse, _ = lapack.dlauum(self._root(), lower=1, overwrite_c=1)
        return self._counted(solved, float(np.trace(inverse))), inverse

    def _counted(self, solved: BlockSolution, trace: float) -> BlockSolution:
        """With the degrees of freedom, for the trace of the inverse."""
        return replace(solved, freedom=np.full(len(solved.fitted), len(solved.x) - self.shift * trace))

    def _root(self) -> FloatArray:
        """L^-1 (k, k), in the lower triangle, written over the factor: L^-T L^-1 is the inverse."""
        return np.asarray(lapack.dtrtri(self.lower, lower=1, overwrite_c=1)[0])


@final
class SpectralSolver(DirectSolver):
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

    def factor(self, block: Block, ridge: Ridge) -> SpectralFactor:
        return SpectralFactor(block, self.problem.shifts(block, ridge))

    def scores(self, ridge: Ridge) -> RidgeScores:
        """The scores alone: k c flops for each block's k eigenvalues and c columns."""
        blocks = self.problem.blocks
        return RidgeScores(self.problem, [self.factor(block, ridge).in_eigenvectors() for block in blocks])

    def solve(self, ridge: Ridge, *, scores: bool = False) -> Solution:
        """With the scores, which come for nothing, but for penalties."""
        solved = [self.factor(block, ridge).solve() for block in self.problem.blocks]
        return Solution.of(self.problem, ridge, solved, self.rung, scores=not self.problem.pulls)


@final
@dataclass(frozen=True, eq=False)
class SpectralFactor(BlockFactor):
    """A block's spectrum at the `shift` (c,) of each column."""

    of: Block
    shift: FloatArray

    @property
    def _grid(self) -> FloatArray:
        """The eigenvalues (k, c) of each column's G a."""
        return self.of.spectrum[0][:, None] * self.of.a

    @property
    def _shifted(self) -> FloatArray:
        """The same plus the shift, inf where a column has none and they are below the rounding level."""
        grid, shift = self._grid, self.shift
        return np.where((shift > 0) | (grid > self.of.floor * float(grid.max(initial=0.0))), grid + shift, np.inf)

    def in_eigenvectors(self) -> BlockSolution:
        """The solution, its x (k, c) in the eigenvectors."""
        block, shift, grid, shifted, rotated = self.of, self.shift, self._grid, self._shifted, self.of.rotated
        x = rotated / shifted
        top, dropped = grid.max(axis=0, initial=0.0), 0.0 if block.squared else np.inf
        least = np.where(shifted < np.inf, grid, dropped).min(axis=0, initial=np.inf) + shift
        uncentred = top + block.removed * block.a
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_det = np.where(shift > 0, np.sum(np.log1p(grid / shift), axis=0), np.inf)
            conditions = np.where(least > 0, (top + shift) / least, np.inf)
            lifted = np.where(least > 0, (uncentred + shift) / least, np.inf)
        squares, freedom, fitted = np.sum(x**2, axis=0), np.sum(grid / shifted, axis=0), np.sum(rotated * x, axis=0)
        worst = float(conditions.max(initial=1.0)), float(lifted.max(initial=1.0))
        return BlockSolution(block, x, fitted, shift * squares, uncentred * squares, *worst, freedom, log_det)

    def solve(self, *, scores: bool = False) -> BlockSolution:
        solved = self.in_eigenvectors()
        return replace(solved, x=self.of.spectrum[1] @ solved.x)

    def inverses(self) -> tuple[FloatArray, FloatArray]:
        return self.of.spectrum[1], 1.0 / self._shifted

    def with_inverse(self) -> tuple[BlockSolution, FloatArray]:
        vectors = self.of.spectrum[1]
        return self.solve(), (vectors / self._shifted[:, 0]) @ vectors.T


SOLVERS: Final[tuple[type[DirectSolver], ...]] = (CholeskySolver, SpectralSolver)  # in the order they are tried


def solve(problem: Problem, ridges: Sequence[Ridge], *, scores: bool = False) -> list[Solution]:
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails.

    A ridge may be (p,), one for each of the problem's directions. `scores` asks for GCV scores and evidences, which
    the `eigh` always gives.
    """
    for solver in (kind(problem) for kind in SOLVERS if kind.suits(problem, ridges)):
        tried = (solver.solve(ridge, scores=scores) for ridge in ridges)
        solutions = [solution for solution in takewhile(lambda solution: solution is not None, tried) if solution]
        if len(solutions) == len(ridges):
            return solutions
    raise AssertionError("a spectrum solves every system")


def factor_of(problem: Problem, block: Block, ridge: Ridge) -> BlockFactor:
    """A block's factor by the first of the solvers that gives one."""
    factors = (kind(problem).factor(block, ridge) for kind in SOLVERS)
    return next(factor for factor in factors if factor is not None)


def solve_bytes(size: Size) -> int:
    """The most memory of making a problem and of `solve`, beside the packed sums: these as squares, and of every block
    G, of one of them two more while it is assembled; or every G and its eigenvectors, and while these are found a copy
    of G and LAPACK's workspace, which is twice as large (dsyevd)."""
    square = 8 * size.k**2
    return size.vectors + max(size.unpacked + (size.blocks + 2) * square, (2 * size.blocks + 2) * square)
