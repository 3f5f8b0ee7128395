"""Preconditioned conjugate gradients: systems too large to be formed, or to be held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from scipy.linalg import eigh_tridiagonal

from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Solvable
from dorff.solvers.matrixfree import System, make_system, of_moments
from dorff.solvers.nystrom import Plain, Preconditioner, nystrom, nystrom_bytes
from dorff.solvers.problem import Problem, Solution, digits_left
from dorff.solvers.scores import RidgeScores, Tally
from dorff.solvers.system import EPS, Size

TOLERANCE: Final = 1e-12
MOST_ITERATIONS: Final = 2000


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """Where an iteration is: how many are done, the largest relative error bound of a column, and how many more it
    seems to take."""

    iterations: int
    error: float
    left: int


@final
@dataclass(frozen=True, eq=False)
class Iterated:
    """A solution by iterations. `errors` holds the largest relative residual before each and after the last, in the
    preconditioner's norm: about the error of the fitted values in the norm of the system, relative to theirs.
    `preconditioned` is the condition number that the iterations saw."""

    problem: Problem
    solution: Solution
    errors: tuple[float, ...]
    preconditioned: float
    converged: bool

    @property
    def iterations(self) -> int:
        return len(self.errors) - 1


def iterate(
    system: System, ridge: float, preconditioner: Preconditioner, *, tolerance: float = TOLERANCE,
    most: int = MOST_ITERATIONS, told: Callable[[Steps], None] = lambda _: None,
) -> Iterated:  # fmt: skip
    """Conjugate gradients (Hestenes & Stiefel 1952) for all columns side by side: one product serves all of them.

    A column is done when r* P^-1 r is `tolerance`^2 of what it was at x = 0. Where rounding stops the fall, or `most`
    iterations are done, the solution says that it did not converge.
    """
    shift, a, rhs = system.problem.l * ridge, system.a, system.rhs
    x, r = np.zeros_like(rhs), rhs.copy()
    z = preconditioner.solve(r, a, shift)
    p, rho = z.copy(), _dots(r, z)
    first, steps = np.where(rho > 0, rho, 1.0), [_Lanczos() for _ in a]
    on = np.flatnonzero(rho > 0)
    errors = [1.0 if len(on) else 0.0]  # nothing to explain: 0 is the solution
    while len(on) and len(errors) <= most:
        Ap = system.apply(p[:, on], on) * a[on] + shift * p[:, on]
        curvature = _dots(p[:, on], Ap)
        if not np.all(curvature > 0):
            break
        alpha = rho[on] / curvature
        x[:, on] += alpha * p[:, on]
        r[:, on] -= alpha * Ap
        z = preconditioner.solve(r[:, on], a[on], shift)
        new = _dots(r[:, on], z)
        if not np.all(new >= 0):  # rounding has made the preconditioner indefinite
            break
        beta = new / rho[on]
        p[:, on] = z + beta * p[:, on]
        for column, one, two in zip(on, alpha, beta, strict=True):
            steps[column].add(one, two)
        rho[on] = new
        errors.append(float(np.sqrt(np.max(rho / first))))
        on = on[rho[on] > tolerance**2 * first[on]]
        told(Steps(len(errors) - 1, errors[-1], _left(errors, tolerance)))
        if len(errors) > 100 and min(errors[-50:]) >= min(errors[:-50]):  # rounding: it will not fall any more
            break
    seen = max((one.condition() for one in steps), default=1.0)
    # Small eigenvalues that the iteration did not meet count as well: the residual may lie there.
    worst = max(seen, preconditioner.slack(a, shift))
    if isinstance(preconditioner, Plain):
        worst = max((one.largest() for one in steps), default=0.0) / shift if shift > 0 else np.inf
        worst = max(seen, worst)
    condition = worst * preconditioner.spread(a, shift)
    # A residual that small in the preconditioner's norm is an error no larger than this in the system's.
    solution = _solution(system, x, rhs, ridge, condition, errors[-1] * np.sqrt(worst))
    return Iterated(system.problem, solution, tuple(errors), seen, not len(on))


def solve_cg(
    parts: Sequence[Solvable], weights: OperatorWeights, ridge: float, *, intercept: bool = True,
    scale: FloatArray | None = None, observe: FloatArray | None = None, tolerance: float = TOLERANCE,
    most: int = MOST_ITERATIONS, rank: int | None = None,
) -> Iterated:  # fmt: skip
    """The solution of `Problem.of` the same arguments, by products with the moments: G is not formed, so that r > 1
    costs no (m r)^2 memory. `rank` is the most that the preconditioner may have; 0 for none."""
    borders, operator = of_moments(parts)
    system = make_system(borders, operator, weights, intercept=intercept, scale=scale, observe=observe)
    shift = system.problem.l * ridge
    preconditioner = Plain() if rank == 0 else nystrom(system, shift, rank=rank)
    return iterate(system, ridge, preconditioner, tolerance=tolerance, most=most)


def cg_bytes(size: Size) -> int:
    """The most memory of `solve_cg`, beside the packed sums: these as squares, its preconditioner, and the vectors of
    `iterate`: a column for each row of psi, or one."""
    columns, column = 1 if size.coupled else size.r, System.column_bytes(size)
    return size.unpacked + nystrom_bytes(size.k, column) + columns * (12 * 8 * size.k + column)


def _solution(
    system: System, x: FloatArray, rhs: FloatArray, ridge: float, condition: float, error: float
) -> Solution:
    """With the noise variance, which needs no more than x; scores need the system's spectrum. Its digits are those
    that rounding leaves, or the iteration has reached: an `error` in the system's norm, relative to what x has."""
    problem, (block,), shift = system.problem, system.problem.blocks, system.problem.l * ridge
    squares = _dots(x, x)
    tally = Tally(block, _dots(x, rhs), shift * squares, shift * condition * squares)
    digits = max(0.0, min(digits_left(condition, problem.unit), -float(np.log10(max(error, EPS)))))
    h, judged = problem.coefficients([x]), RidgeScores(problem, [tally])
    return Solution(h, ridge, condition, "cg", variance=judged.variance, digits=digits, rss=judged.rss)


def _dots(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("kc,kc->c", a, b))


def _left(errors: Sequence[float], tolerance: float) -> int:
    """Iterations that are left, if the error goes on falling as in the last few."""
    span = min(len(errors) - 1, 10)
    rate = np.log(errors[-1 - span] / max(errors[-1], 1e-300)) / span
    if errors[-1] <= tolerance:
        return 0
    return int(np.ceil(np.log(errors[-1] / tolerance) / rate)) if rate > 0 else MOST_ITERATIONS


@final
class _Lanczos:
    """The tridiagonal matrix that an iteration has built: its eigenvalues are those of the preconditioned system."""

    def __init__(self) -> None:
        self._diagonal: list[float] = []
        self._beside: list[float] = []
        self._carried = 0.0

    def add(self, alpha: float, beta: float) -> None:
        self._diagonal.append(1.0 / alpha + self._carried)
        self._beside.append(np.sqrt(beta) / alpha)
        self._carried = beta / alpha

    def largest(self) -> float:
        return max(self._values(), default=0.0)

    def condition(self) -> float:
        values = self._values()
        if not values:
            return 1.0
        return values[-1] / values[0] if values[0] > 0 else np.inf

    def _values(self) -> list[float]:
        if not self._diagonal:
            return []
        found = eigh_tridiagonal(np.array(self._diagonal), np.array(self._beside[:-1]), eigvals_only=True)
        values: list[float] = found.tolist()
        return values
