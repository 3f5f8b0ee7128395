"""Direct solvers: a Cholesky factor a ridge, or every ridge from one diagonalisation; of moments, or of a QR."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Solvable, Triangle, tpqrt
from dorff.solvers.problem import Problem, Units
from dorff.solvers.scores import BlockFactor, BlockSolution, DirectSolver, Ridge, RidgeScores, Solution
from dorff.solvers.system import EPS, Block, Penalty, Size

MOST_FACTORS: Final = 8  # as many Cholesky factors take about as long as one `eigh`


class CholeskySolver(DirectSolver):
    """A factor for each ridge; the condition number is LAPACK's 1-norm estimate. Needs equal `a` in each block."""

    rung = "cholesky"

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        one = not any(np.ndim(ridge) for ridge in ridges) and all(block.plain for block in problem.blocks)
        return one and len(ridges) <= MOST_FACTORS

    def factor(self, block: Block, ridge: Ridge) -> "CholeskyFactor | None":
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


class SpectralSolver(DirectSolver):
    """Each block's G diagonalised once; a ridge is then a division by G's eigenvalues times a's, plus l ridge. At
    ridge 0 those below the rounding level are left out (the least-norm solution). Those of a Gram matrix may be
    rounding or not: no digit is vouched for then. Of the features' own singular values they are, and do not count."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.rung = "eigh" if all(block.squared for block in problem.blocks) else "qr"

    def factor(self, block: Block, ridge: Ridge) -> "SpectralFactor":
        return SpectralFactor(block, self.problem.shifts(block, ridge))

    def scores(self, ridge: Ridge) -> RidgeScores:
        """The scores alone: k c flops for each block's k eigenvalues and c columns."""
        return RidgeScores(self.problem, [self.factor(block, ridge).in_eigenvectors() for block in self.problem.blocks])

    def solve(self, ridge: Ridge, *, scores: bool = False) -> Solution:
        """With the scores, which come for nothing, but for penalties."""
        solved = [self.factor(block, ridge).solve() for block in self.problem.blocks]
        return Solution.of(self.problem, ridge, solved, self.rung, scores=not self.problem.penalty_borders)


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
        grid, shift, rounding = self._grid, self.shift, EPS * len(self.of.rhs)
        least = (rounding if self.of.squared else rounding**2) * float(grid.max(initial=0.0))
        return np.where((shift > 0) | (grid > least), grid + shift, np.inf)

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
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails. A ridge
    may be (p,), one a direction. `scores` asks for GCV scores and evidences, which the `eigh` always gives."""
    for solver in (kind(problem) for kind in SOLVERS if kind.suits(problem, ridges)):
        tried = (solver.solve(ridge, scores=scores) for ridge in ridges)
        solutions = [solution for solution in takewhile(lambda solution: solution is not None, tried) if solution]
        if len(solutions) == len(ridges):
            return solutions
    raise AssertionError("a spectrum solves every system")


def factor_of(problem: Problem, block: Block, ridge: Ridge) -> BlockFactor:
    """A block's factor by the first of the solvers that gives one."""
    return next(factor for factor in (kind(problem).factor(block, ridge) for kind in SOLVERS) if factor is not None)


def solve_bytes(size: Size) -> int:
    """The most memory of making a problem and of `solve`, beside the packed sums: these as squares, and of every block
    G, of one two more while it is assembled; or every G and its eigenvectors, a copy and dsyevd's workspace, two G."""
    square = 8 * size.k**2
    return size.vectors + max(size.unpacked + (size.blocks + 2) * square, (2 * size.blocks + 2) * square)


# LAPACK counts in 32 bits, and dgesdd's workspace is 4 k^2 + 7 k numbers.
LARGEST_SVD: Final = 23_168


def problem_of(
    parts: Sequence[Solvable], weights: OperatorWeights, *, intercept: bool = True,
    scale: FloatArray | Units | None = None, observe: FloatArray | None = None, penalties: Sequence[Penalty] = (),
) -> Problem:  # fmt: skip
    """`Problem.of` moments; of triangles the same problem, each block's spectrum from an SVD of its own rows. The rows
    of a block are those of the triangles, the intercept's columns first: a QR takes these out by leaving out as many
    rows of its R (centring). What is left is B (k, k), B^T B = G, and the targets' T (k, c). Nothing is squared before
    B's singular values are, so eigenvalues of G are right down to (1e-16)^2 of the largest where a Gram matrix keeps
    1e-16, and a condition number costs half its exponent in digits (Golub & Van Loan 2013, ch. 5.3). Triangles go
    neither with penalties nor with several views. InputError for a block wider than LAPACK can count."""
    grams = [part.gram() if isinstance(part, Triangle) else part for part in parts]
    problem = Problem.of(grams, weights, intercept=intercept, scale=scale, observe=observe, penalties=penalties)
    if not (rows := [_Rows(part, problem) for part in parts if isinstance(part, Triangle)]):
        return problem
    problem = replace(problem, unit=max(part.unit for part in parts))
    return replace(problem, blocks=tuple(_sharpened(problem, block, rows) for block in problem.blocks))


def triangle_bytes(size: Size) -> int:
    """The most memory of solving by `problem_of` triangles, beside these: moments and rows of each; of every block G
    and V, and while this is found U and LAPACK's workspace, four times as large (dgesdd)."""
    return size.packed + size.unpacked + size.vectors + (2 * size.blocks + 5) * 8 * size.k**2


class _Rows:
    """A triangle as rows of a problem: features F (k, m), the column of ones (k,), scaled targets Y (k, q)."""

    def __init__(self, part: Triangle, problem: Problem) -> None:
        m, R = part.m, part.square[: part.m + 1]  # what is below is about targets alone
        self.F, self.ones, self.mask = R[:, :m], R[:, m], part.mask
        Y = R[:, m + 1 :] if problem.intercept else R[:, m + 1 :] + np.outer(self.ones, part.y0)
        self.Y: FloatArray = np.where(self.mask, Y / problem.units, 0.0)


def _sharpened(problem: Problem, block: Block, rows: Sequence[_Rows]) -> Block:
    k, c = block.rhs.shape
    if k > LARGEST_SVD:
        limit = f"LAPACK's 32-bit numbers reach {LARGEST_SVD} for its singular values"
        remedy = "lower the count, or set solve.qr: false"
        raise InputError(f"features.count: the QR of the features has {k} columns, {limit}; {remedy}")
    if block.rotation is None:
        values, vectors = np.linalg.eigh(problem.free[0])
        some = values > 1e-12 * values[-1] if problem.intercept else np.zeros(len(values), dtype=bool)
        basis = vectors[:, some]  # (p, p'), orthonormal, of what C sees of the intercept
        free, stack = basis.shape[1], _coupled(problem, block, rows, basis)
    else:
        free, stack = int(problem.intercept), _separate(problem, block, rows)
    B, T = _reflected(stack, free, k, c)
    U, s, Vt = scipy.linalg.svd(B, overwrite_a=True, check_finite=False)
    return replace(block, given=(s**2, Vt.T), turned=s[:, None] * (U.T @ T), squared=False)


def _reflected(stack: Iterable[FloatArray], free: int, k: int, c: int) -> tuple[FloatArray, FloatArray]:
    """B (k, k) and T (k, c): what a QR of the rows leaves of their columns free + k + c below the first `free`."""
    R = np.zeros((free + k + c,) * 2, order="F")
    for some in stack:
        tpqrt(R, np.asfortranarray(some))
    below = R[free : free + k]
    return np.asfortranarray(np.triu(below[:, free : free + k])), below[:, free + k :].copy()


def _separate(problem: Problem, block: Block, rows: Sequence[_Rows]) -> Iterator[FloatArray]:
    """Rows of [1 | features | targets] of a block for all targets, or for those that the same rows have."""
    assert block.columns is not None and block.load is not None
    for one in rows:
        if one.mask[block.columns[0]]:
            ones = one.ones[:, None] if problem.intercept else np.empty((len(one.ones), 0))
            yield np.hstack([ones, one.F * problem.weights.gain, one.Y @ block.load])


def _coupled(problem: Problem, block: Block, rows: Sequence[_Rows], basis: FloatArray) -> Iterable[FloatArray]:
    """Rows of [intercept | features | target] of one system for everything, target by target."""
    at = block.at
    written = np.broadcast_to(problem.weights.root, problem.weights.shape)
    seen = (problem.weights.gain[at[0], None] * written[at]) @ problem.C.T
    for one in rows:
        for target in np.flatnonzero(one.mask):
            free = np.outer(one.ones, problem.C[target] @ basis)
            yield np.hstack([free, one.F[:, at[0]] * seen[:, target], one.Y[:, target, None]])
