"""Log-determinants and degrees of freedom of systems that are known by their products, by random vectors.

For a preconditioner P = L L* of A = G a + shift,

    log det A = log det P + tr log(L^-1 A L^-*),     tr A^-1 = tr P^-1 + E (L^-* w)* (A^-1 - P^-1) L w,
    tr G_t A^-1 = E (L^-* w)* G_t A^-1 L w,     w of random signs

and w* log(B) w is a Gauss quadrature by the tridiagonal matrix of Lanczos' iteration for B begun at w (Ubaru, Chen &
Saad 2017, section 3), which is that of conjugate gradients for A x = L w preconditioned by P (Gardner et al. 2018,
section 4). The signs are the same for all ridges, kernels and runs. Where P is A there is no error."""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from dorff.moments import FloatArray
from dorff.solvers.cg import ConjugateGradients, dots, iterate, tridiagonal
from dorff.solvers.heavy import Heavy
from dorff.solvers.matrixfree import System
from dorff.solvers.scores import BlockSolution, RidgeScores, Solution
from dorff.solvers.system import IntArray, Size

PROBES: Final = 16
MOST_STEPS: Final = 1000
CLOSE: Final = 1e-3  # a residual, in the preconditioner's norm: the quadrature's error is about its square


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
    load = iterated.solved.block.load
    if load is not None:
        shares = (load**2 / np.where(system.a > 0, system.a, 1.0)) @ freedom
    ended, solved = bool(np.isfinite(logs).all()), replace(iterated.solved, log_det=log_det, freedom=freedom)
    error, counted = (float(each.std(ddof=1) / np.sqrt(PROBES)) if ended else np.inf for each in (logs, counts))
    scores = RidgeScores(system.problem, [solved])
    gcv, left = (scores.gcv if ended else np.inf), system.problem.totals.entries.sum() - scores.freedom.sum()
    gcv_error = 2.0 * gcv * counted / left if np.isfinite(gcv) else np.inf
    return Estimate(solved, shares, error, replace(iterated.solution, gcv=gcv, gcv_error=float(gcv_error)))


def _traced(of: Preconditioned, z: FloatArray, at: IntArray, shift: float) -> tuple[FloatArray, FloatArray]:
    """A^-1 z (k, n), and w* log(L^-1 A L^-*) w (n,) for z = L w of vectors of signs w; inf where that takes longer."""
    system, inverse = of
    a = system.a[at]
    columns = ConjugateGradients(
        lambda p, which: system.apply(p, at[which]) * a[which] + shift * p,
        lambda r, which: inverse.solve(r, a[which], shift),
        z,
    )
    steps, first, count = [list[tuple[float, float]]() for _ in at], columns.rho.copy(), 0
    while len(columns.at) and count < MOST_STEPS and columns.step():
        for column, alpha, beta in zip(columns.at, columns.alpha, columns.beta, strict=True):
            steps[column].append((alpha, beta))
        columns.finish(columns.rho <= CLOSE**2 * first[columns.at])
        count += 1
    logs = np.array([len(z) * _quadrature(np.array(one)) if one else np.inf for one in steps])
    logs[columns.at] = np.inf
    columns.finish(np.ones(len(columns.at), dtype=bool))
    return columns.solved, logs


def _quadrature(steps: FloatArray) -> float:
    """The mean of log(B) in a vector, by the steps of its iteration."""
    values, vectors = eigh_tridiagonal(*tridiagonal(steps))
    return float(vectors[0] ** 2 @ np.log(values))


def probe_bytes(size: Size) -> int:
    """The most memory of `estimated` beside what conjugate gradients take: vectors of k numbers, and their products."""
    return PROBES * (9 * 8 * size.k + System.column_bytes(size))
