"""Log-determinants and degrees of freedom of systems that are known by their products, by random vectors.

For a preconditioner P = L L* of A = G a + shift,

    log det A = log det P + tr log(L^-1 A L^-*),     tr A^-1 = tr P^-1 + E (L^-* w)* (A^-1 - P^-1) L w,
    tr G_t A^-1 = E (L^-* w)* G_t A^-1 L w,     w of random signs

and w* log(B) w is a Gauss quadrature by the tridiagonal matrix of Lanczos' iteration for B begun at w (Ubaru, Chen &
Saad 2017, section 3), which is that of conjugate gradients for A x = L w preconditioned by P (Gardner et al. 2018,
section 4). The signs are the same for all ridges, kernels and runs. Where P is A there is no error."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from dorff.errors import InputError
from dorff.moments import BoolArray, FloatArray
from dorff.solvers.cg import ConjugateGradients, dots, iterate, tridiagonal
from dorff.solvers.heavy import Heavy, heavy_bytes
from dorff.solvers.matrixfree import System
from dorff.solvers.scores import BlockSolution, RidgeScores, Solution
from dorff.solvers.system import IntArray, Size

PROBES: Final = 16
SAMPLES: Final = 64  # of a posterior: a standard deviation is known within a part of 1 / sqrt(2 SAMPLES)
MOST_STEPS: Final = 1000
CLOSE: Final = 1e-3  # a residual, in the preconditioner's norm: the quadrature's error is about its square
CLOSER: Final = 1e-5  # of samples, which are then within 1e-3 but for the worst systems


class Preconditioned(NamedTuple):
    """Systems, and what preconditions them."""

    system: System
    inverse: Heavy


class Estimate(NamedTuple):
    """The solution with its `log_det` and `freedom`; of each target the degrees of freedom (q,) that it takes; the
    standard error of all columns' `log_det` together, inf where an iteration did not end; and the same solution with
    its GCV score and the standard error of that, which are inf there."""

    solved: BlockSolution
    freedom: FloatArray
    error: float
    solution: Solution


def estimated(of: Preconditioned, ridge: float) -> Estimate:
    """By PROBES vectors of random signs for each matrix of the systems."""
    system, inverse = of
    iterated, shift = iterate(system, ridge, inverse), system.problem.l * ridge
    log_det, freedom = np.zeros((2, len(system.a)))
    logs, counts = np.zeros((2, PROBES))
    w = np.random.default_rng(0).choice([-1.0, 1.0], (system.size, PROBES))
    shares = np.zeros(len(system.problem.scale))
    for columns in system.alike():
        a, at = system.a[columns[0]], np.full(PROBES, columns[0])
        z, of_inverse = inverse.root(w, a, shift)
        x, each = _traced(of, z, at, shift)
        log_det[columns], logs = of_inverse + each.mean(), logs + len(columns) * each
        u = inverse.solve(z, system.a[at], shift)
        each = system.size - shift * (inverse.trace(a, shift) + dots(u, x - u))
        freedom[columns], counts = each.mean(), counts + len(columns) * each
        if not system.apart:
            shares = system.shares(u, x, at).mean(axis=1)
    if (load := iterated.solved.block.load) is not None:
        shares = (load**2 / np.where(system.a > 0, system.a, 1.0)) @ freedom
    ended, solved = bool(np.isfinite(logs).all()), replace(iterated.solved, log_det=log_det, freedom=freedom)
    error, counted = (float(each.std(ddof=1) / np.sqrt(PROBES)) if ended else np.inf for each in (logs, counts))
    scores = RidgeScores(system.problem, [solved])
    gcv, left = (scores.gcv if ended else np.inf), system.problem.totals.entries.sum() - scores.freedom.sum()
    gcv_error = 2.0 * gcv * counted / left if np.isfinite(gcv) else np.inf
    solution = replace(iterated.solution, gcv=gcv, gcv_error=float(gcv_error), freedom=scores.freedom)
    return Estimate(solved, shares, error, solution)


def _traced(of: Preconditioned, z: FloatArray, at: IntArray, shift: float) -> tuple[FloatArray, FloatArray]:
    """A^-1 z (k, n), and w* log(L^-1 A L^-*) w (n,) for z = L w of vectors of signs w; inf where that takes longer."""
    walk = _Iteration(of, at, shift, CLOSE).run(z)
    logs = np.array([len(z) * _quadrature(np.array(one)) if one else np.inf for one in walk.steps])
    return walk.x, np.where(walk.ended, logs, np.inf)


class _Walk(NamedTuple):
    """x (k, n) of A x = z, the alpha and beta of each column's steps, and whether it came `close` (n,)."""

    x: FloatArray
    steps: list[list[tuple[float, float]]]
    ended: BoolArray


@dataclass(frozen=True)
class _Iteration:
    """Conjugate gradients for the systems `at` (n,), or A with each target's part of G times its `noise`; until the
    residual in the preconditioner's norm is `close` of what it was."""

    of: Preconditioned
    at: IntArray
    shift: float
    close: float
    noise: FloatArray | None = None

    def run(self, z: FloatArray, visit: Callable[[int, ConjugateGradients], None] = lambda *_: None) -> _Walk:
        """For z (k, n); `visit` sees each step before it is done."""
        (system, inverse), shift, at = self.of, self.shift, self.at
        a = system.a[at]
        columns = ConjugateGradients(
            lambda p, which: system.apply(p, at[which], self.noise) * a[which] + shift * p,
            lambda r, which: inverse.solve(r, a[which], shift),
            z,
        )
        first, count = columns.rho.copy(), 0
        while len(columns.at) and count < MOST_STEPS:
            visit(count, columns)
            if not columns.step():
                break
            columns.finish(columns.rho <= self.close**2 * first[columns.at])
            count += 1
        ended = np.ones(len(at), dtype=bool)
        ended[columns.at] = False
        columns.finish(~ended[columns.at])
        return _Walk(columns.solved, columns.steps, ended)


def samples(of: Preconditioned, ridge: float, column: int, noise: FloatArray | None = None) -> FloatArray:
    """X (k, SAMPLES), independent Gaussian vectors of the covariance A^-1 (G_D + shift) A^-1, for a column's system;
    G_D is G with each target's part times its `noise` (t,), else G. InputError where an iteration does not end. X =
    A^-1 L sqrt(L^-1 (G_D + shift) L^-*) w for normal w: the root by Lanczos' iteration, as above, whose vectors are the
    residuals of conjugate gradients. These run twice, so that no more than one of them is held."""
    (system, inverse), shift = of, of.system.problem.l * ridge
    rng, X = np.random.default_rng(0), np.empty((system.size, SAMPLES))
    for start in range(0, SAMPLES, PROBES):
        some = slice(start, min(start + PROBES, SAMPLES))
        z, _ = inverse.root(rng.standard_normal(X[:, some].shape), system.a[column], shift)
        y, root = np.zeros_like(z), _Iteration(of, np.full(z.shape[1], column), shift, CLOSER, noise)
        weights = [_of_root(np.array(steps)) for steps in _ended(root.run(z), ridge).steps]

        def add(step: int, columns: ConjugateGradients, y: FloatArray = y, weights: list[FloatArray] = weights) -> None:
            y[:, columns.at] += columns.r * [weights[one][step] for one in columns.at]

        root.run(z, add)
        X[:, some] = _ended(replace(root, noise=None).run(y), ridge).x
    return X


def _ended(walk: _Walk, ridge: float) -> _Walk:
    if not walk.ended.all():  # or rounding has made something indefinite
        problem = f"deviations need more than {MOST_STEPS} steps of conjugate gradients at the ridge {ridge:g}"
        remedy = "raise the ridge, set route: direct, or leave out posterior: true and conformal: true"
        raise InputError(f"solve.posterior: {problem}; {remedy}")
    return walk


def _of_root(steps: FloatArray) -> FloatArray:
    """What the residuals of the steps are multiplied by to give L sqrt(L^-1 A L^-*) w, for z = L w."""
    values, vectors = eigh_tridiagonal(*tridiagonal(steps))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors[0]
    sizes = np.sqrt(np.concatenate([[1.0], np.cumprod(steps[:-1, 1])]))  # of residuals, over the first
    return np.asarray(root * (-1.0) ** np.arange(len(steps)) / sizes)


def _quadrature(steps: FloatArray) -> float:
    """The mean of log(B) in a vector, by the steps of its iteration."""
    values, vectors = eigh_tridiagonal(*tridiagonal(steps))
    return float(vectors[0] ** 2 @ np.log(values))


def sample_bytes(size: Size) -> int:
    """The most memory of a posterior by `samples`, beside the same: itself, once more as it is written, and of a system
    of all columns its weights, its vectors, and what more its preconditioner takes."""
    whole = replace(size, coupled=True)
    more = max(0, heavy_bytes(whole) - heavy_bytes(size))
    return 3 * 8 * whole.k * (SAMPLES + size.q) + probe_bytes(whole) + more


def probe_bytes(size: Size) -> int:
    """The most memory of `estimated` beside what conjugate gradients take: vectors of k numbers, and their products."""
    return PROBES * (9 * 8 * size.k + System.column_bytes(size))
