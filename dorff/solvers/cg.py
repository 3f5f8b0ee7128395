"""Preconditioned conjugate gradients: systems too large to be formed, or to be held."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from dorff.moments import BoolArray, FloatArray
from dorff.solvers.matrixfree import System
from dorff.solvers.preconditioners import Preconditioner, nystrom, nystrom_bytes
from dorff.solvers.scores import BlockSolution, Solution, digits_left
from dorff.solvers.system import EPS, IntArray, Size

RUNG: Final = "cg"
TOLERANCE: Final = 1e-12
MOST_ITERATIONS: Final = 2000
#: (k, L) and the numbers (L,) of its columns -> (k, L)
Map = Callable[[FloatArray, IntArray], FloatArray]


class ConjugateGradients:
    """The one loop of conjugate gradients (Hestenes & Stiefel 1952), for many columns side by side: x (k, c) of
    A_j x_j = rhs_j, a positive matrix A_j for each column, from x = 0.

    `product` is A_j times the columns it is given, `precondition` about its inverse. Columns that are not done yet are
    held side by side: their numbers `at` (L,), `x` and the residuals `r` (k, L), and the squared norms `rho` (L,) of
    these in the preconditioner's norm; `alpha` and `beta` (L,) are the last step's coefficients. Whoever iterates
    decides when a column is done, and calls `finish`; `solved` (k, c) holds those that are, zeros else."""

    def __init__(self, product: Map, precondition: Map, rhs: FloatArray) -> None:
        self._product, self._precondition = product, precondition
        self.at = np.arange(rhs.shape[1])
        z = precondition(rhs, self.at)
        self.rho, self.solved = dots(rhs, z), np.zeros(rhs.shape, order="F")
        self.alpha = self.beta = np.zeros(len(self.at))
        self.x = np.zeros(rhs.shape, order="F")
        self.r, self._p = np.array(rhs, order="F"), np.array(z, order="F")

    def step(self) -> bool:
        """One step of all columns. False where rounding has made a matrix or the preconditioner indefinite; `rho` is
        then as before."""
        Ap = self._product(self._p, self.at)
        curvature = dots(self._p, Ap)
        if not np.all(curvature > 0):
            return False
        self.alpha = self.rho / curvature
        self.x += self.alpha * self._p
        self.r -= self.alpha * Ap
        del Ap
        z = self._precondition(self.r, self.at)
        rho = dots(self.r, z)
        if not np.all(rho >= 0):
            return False
        self.beta, self.rho = rho / self.rho, rho
        self._p *= self.beta
        self._p += z
        return True

    def finish(self, done: BoolArray) -> None:
        """Let the columns that are `done` (L,) be."""
        if not done.any():
            return
        self.solved[:, self.at[done]] = self.x[:, done]
        go = ~done
        self.at, self.rho, self.alpha, self.beta = self.at[go], self.rho[go], self.alpha[go], self.beta[go]
        self.x, self.r, self._p = self.x[:, go], self.r[:, go], self._p[:, go]


def dots(a: FloatArray, b: FloatArray) -> FloatArray:
    """The products (c,) of columns (k, c) with columns."""
    return np.asarray(np.einsum("kc,kc->c", a, b))


class Iterated(NamedTuple):
    """A solution by iterations. `errors` holds the largest relative residual before each and after the last, in the
    preconditioner's norm: about the error of the fitted values in the norm of the system, relative to theirs.
    `preconditioned` is the condition number that the iterations saw."""

    solution: Solution
    errors: tuple[float, ...]
    preconditioned: float

    @property
    def iterations(self) -> int:
        return len(self.errors) - 1


def iterate(
    system: System, ridge: float, preconditioner: Preconditioner, *, tolerance: float = TOLERANCE,
    most: int = MOST_ITERATIONS, progress: Callable[[int, int], None] = lambda _done, _left: None,
) -> Iterated:  # fmt: skip
    """Conjugate gradients for all columns side by side: one product serves all of them.

    A column is done when r* P^-1 r is `tolerance`^2 of what it was at x = 0. Where rounding stops the fall, or `most`
    iterations are done, the solution says that it did not converge. `progress` is called after each iteration, with
    how many are done and how many more it seems to take."""
    shift, a, rhs = system.problem.l * ridge, system.a, system.rhs

    def product(p: FloatArray, at: IntArray) -> FloatArray:
        return system.apply(p, at) * a[at] + shift * p

    columns = ConjugateGradients(product, lambda r, at: preconditioner.solve(r, a[at], shift), rhs.copy())
    rho, steps = columns.rho.copy(), [list[tuple[float, float]]() for _ in a]
    first = np.where(rho > 0, rho, 1.0)
    columns.finish(~(rho > 0))
    errors = [1.0 if len(columns.at) else 0.0]  # nothing to explain: 0 is the solution
    while len(columns.at) and len(errors) <= most and columns.step():
        rho[columns.at] = columns.rho
        for column, alpha, beta in zip(columns.at, columns.alpha, columns.beta, strict=True):
            steps[column].append((alpha, beta))
        errors.append(float(np.sqrt(np.max(rho / first))))
        columns.finish(columns.rho <= tolerance**2 * first[columns.at])
        progress(len(errors) - 1, _left(errors, tolerance))
        if len(errors) > 100 and min(errors[-50:]) >= min(errors[:-50]):  # rounding: it will not fall any more
            break
    converged = not len(columns.at)
    columns.finish(np.ones(len(columns.at), dtype=bool))
    x = columns.solved
    seen = max((_condition(np.array(one)) for one in steps if one), default=1.0)
    # Small eigenvalues that the iteration did not meet count as well: the residual may lie there.
    worst = max(seen, preconditioner.slack(a, shift))
    condition = worst * preconditioner.spread(a, shift)
    # A residual that small in the preconditioner's norm is an error no larger than this in the system's.
    solution = _solution(system, x, rhs, ridge, condition, errors[-1] * np.sqrt(worst))
    return Iterated(replace(solution, converged=converged), tuple(errors), seen)


def conjugate_gradients(system: System, ridge: float) -> Solution:
    """Of a system that is known by its products with vectors; there are no scores, which need the spectrum."""
    return iterate(system, ridge, nystrom(system, system.problem.l * ridge)).solution


def cg_bytes(size: Size) -> int:
    """The most memory of `conjugate_gradients` by moments, beside the packed sums: these as squares, its
    preconditioner, and the vectors of `iterate`: a column for each row of psi, or one."""
    columns, column = 1 if size.coupled else size.r, System.column_bytes(size)
    return size.unpacked + nystrom_bytes(size.k, column) + columns * (10 * 8 * size.k + column)


def _solution(
    system: System, x: FloatArray, rhs: FloatArray, ridge: float, condition: float, error: float
) -> Solution:
    """With the noise variance, which needs no more than x; scores need the system's spectrum. Its digits are those
    that rounding leaves, or the iteration has reached: an `error` in the system's norm, relative to what x has."""
    problem, (block,), shift = system.problem, system.problem.blocks, system.problem.l * ridge
    squares = dots(x, x)
    solved = BlockSolution(block, x, dots(x, rhs), shift * squares, shift * condition * squares, condition)
    digits = max(0.0, min(digits_left(condition, problem.unit), -float(np.log10(max(error, EPS)))))
    return replace(Solution.of(problem, ridge, [solved], RUNG, scores=False), digits=digits)


def _left(errors: Sequence[float], tolerance: float) -> int:
    """Iterations that are left, if the error goes on falling as in the last few."""
    span = min(len(errors) - 1, 10)
    rate = np.log(errors[-1 - span] / max(errors[-1], 1e-300)) / span
    if errors[-1] <= tolerance:
        return 0
    return int(np.ceil(np.log(errors[-1] / tolerance) / rate)) if rate > 0 else MOST_ITERATIONS


def _condition(steps: FloatArray) -> float:
    """Of the preconditioned system: its eigenvalues are about those of the tridiagonal matrix that the steps'
    coefficients alpha and beta, (n, 2), have built (Lanczos)."""
    alpha, beta = steps.T
    diagonal = 1.0 / alpha
    diagonal[1:] += beta[:-1] / alpha[:-1]
    values = eigh_tridiagonal(diagonal, np.sqrt(beta[:-1]) / alpha[:-1], eigvals_only=True)
    return float(values[-1] / values[0]) if values[0] > 0 else np.inf
