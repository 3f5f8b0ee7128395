"""A direct solver in one file, as somebody would add one: the inverse written out. `direct.SOLVERS` is all it needs
besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dorff.moments import FloatArray
from dorff.solvers.problem import Problem
from dorff.solvers.scores import BlockFactor, BlockSolution, DirectSolver, Ridge
from dorff.solvers.system import Block


@dataclass(frozen=True)
class WrittenOut(BlockFactor):
    block: Block
    shift: float

    @property
    def matrix(self) -> FloatArray:
        return self.block.G * self.block.a[0] + self.shift * np.eye(len(self.block.G))

    def solve(self, *, scores: bool = False) -> BlockSolution:
        block, inverse = self.block, np.linalg.inv(self.matrix)
        x = inverse @ block.rhs
        squares, largest = np.sum(x**2, axis=0), np.linalg.norm(self.matrix, 2)
        solved = BlockSolution(block, x, np.sum(x * block.rhs, axis=0), self.shift * squares, largest * squares,
                               np.linalg.cond(self.matrix), np.linalg.cond(self.matrix))  # fmt: skip
        one = np.ones(len(squares))
        return replace(
            solved,
            freedom=one * (len(x) - self.shift * np.trace(inverse)),
            log_det=one * (np.linalg.slogdet(self.matrix)[1] - len(x) * np.log(self.shift)),
        )

    def inverses(self) -> tuple[FloatArray, FloatArray]:
        root = np.linalg.cholesky(np.linalg.inv(self.matrix))
        return root, np.ones((len(root), 1))

    def with_inverse(self) -> tuple[BlockSolution, FloatArray]:
        return self.solve(), np.linalg.inv(self.matrix)


class Inverse(DirectSolver):
    rung = "inverse"

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        return all(block.plain for block in problem.blocks)

    def factor(self, block: Block, ridge: Ridge) -> WrittenOut | None:
        return WrittenOut(block, float(self.problem.shifts(block, ridge)[0])) if block.plain else None
