"""One ridge after another: Cholesky."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem
from dorff.solvers.scores import BlockSolution, Ridge, Solver
from dorff.solvers.system import EPS, Block

MOST_FACTORS: Final = 8  # as many Cholesky factors take about as long as one `eigh`


@final
class Cholesky(Solver):
    """A factor for each ridge; the condition number is LAPACK's 1-norm estimate. Needs equal output eigenvalues `a` in
    each block."""

    rung = "cholesky"

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        one = not any(np.ndim(ridge) for ridge in ridges) and all(block.plain for block in problem.blocks)
        return one and len(ridges) <= MOST_FACTORS

    def block(self, block: Block, ridge: Ridge, *, scores: bool) -> BlockSolution | None:
        factor = factored(block, self.problem.l * float(ridge))
        if factor is None:
            return None
        solved = factor.solve()
        if not scores:
            return solved
        inverse = factor.root()
        return factor.counted(solved, sum(float(column[j:] @ column[j:]) for j, column in enumerate(inverse.T)))


@final
@dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """L (k, k), in the lower triangle, with L L^T = G a + shift I; the 1-norm and the condition number of that."""

    of: Block
    shift: float
    lower: FloatArray
    norm: float
    condition: float

    def solve(self) -> BlockSolution:
        """All but the degrees of freedom."""
        block, shift = self.of, self.shift
        x, _ = lapack.dpotrs(self.lower, block.rhs, lower=1)
        squares, largest = np.sum(x**2, axis=0), self.norm + block.removed * float(block.a[0])
        whole = 2.0 * float(np.log(np.diag(self.lower)).sum()) - len(x) * np.log(shift) if shift > 0 else np.inf
        return BlockSolution(
            block, x, np.sum(x * block.rhs, axis=0), shift * squares, largest * squares, self.condition,
            self.condition * largest / self.norm, log_det=np.full(len(squares), whole),
        )  # fmt: skip

    def counted(self, solved: BlockSolution, trace: float) -> BlockSolution:
        """With the degrees of freedom, for the trace of the inverse: the squared norm of `root`."""
        return replace(solved, freedom=np.full(len(solved.fitted), len(solved.x) - self.shift * trace))

    def root(self) -> FloatArray:
        """L^-1 (k, k), in the lower triangle, written over the factor: L^-T L^-1 is the inverse."""
        return np.asarray(lapack.dtrtri(self.lower, lower=1, overwrite_c=1)[0])


def factored(block: Block, shift: float) -> CholeskyFactor | None:
    """The factor of a block whose columns have one `a`; None where no digits are left."""
    matrix = block.G * float(block.a[0])
    matrix[np.diag_indices(len(matrix))] += shift
    norm = float(np.abs(matrix).sum(axis=0).max(initial=0.0))
    lower, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(lower, norm, uplo="L")
    return None if reciprocal < EPS else CholeskyFactor(block, shift, lower, norm, 1.0 / reciprocal)
