"""Log-determinants and degrees of freedom of systems that are known by their products, by random vectors.

For a preconditioner P = L L* of A = G a + shift,

    log det A = log det P + tr log(L^-1 A L^-*),     tr A^-1 = tr P^-1 + E (L^-* w)* (A^-1 - P^-1) L w,
    tr G_t A^-1 = E (L^-* w)* G_t A^-1 L w,     w of random signs

and w* log(B) w is a Gauss quadrature by the tridiagonal matrix of Lanczos' iteration for B begun at w (Ubaru, Chen &
Saad 2017, section 3), which is that of conjugate gradients for A x = L w preconditioned by P (Gardner et al. 2018,
section 4). The signs are the same for all ridges, kernels and runs. Where P is A there is no error.

P has the block of the heaviest features, factored, and the diagonal beside it. Of a lattice's features that is nearly
A itself where rows are spread evenly: products of different features cancel then, but for those of the largest
weights, which are many times the ridge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg import eigh_tridiagonal, lapack

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import BoolArray, FloatArray, LatticeMoments, Solvable
from dorff.solvers.cg import MOST_ITERATIONS, ConjugateGradients, Preconditioner, dots, iterate, tridiagonal
from dorff.solvers.matrixfree import System
from dorff.solvers.problem import Problem, Units
from dorff.solvers.scores import BlockSolution, RidgeScores, Solution
from dorff.solvers.system import EPS, IntArray, Size

POWERS: Final = 12
HEAVY: Final = 3072  # unknowns of the block that is factored, at most
HALVES: Final = 12  # smaller blocks that are thought of, each 1 / sqrt(2) of the one before
PROBES: Final = 16
SAMPLES: Final = 64  # of a posterior: a standard deviation is known within a part of 1 / sqrt(2 SAMPLES)
MOST_STEPS: Final = 1000
CLOSE: Final = 1e-3  # a residual, in the preconditioner's norm: the quadrature's error is about its square
CLOSER: Final = 1e-5  # of samples, which are then within 1e-3 but for the worst systems


class Heavy(Preconditioner):
    """The inverse of a G_HH + shift for the unknowns H, and of a diag(G) + shift for the others; `largest` is about the
    largest eigenvalue of G."""

    def __init__(self, diagonal: FloatArray, at: IntArray, block: FloatArray, largest: float) -> None:
        self._diagonal, self._at, self._block, self._largest = diagonal, at, block, largest
        self._factors: dict[tuple[float, float], FloatArray] = {}
        self._top = max(float(np.abs(block).sum(axis=0).max(initial=0.0)), float(diagonal.max()))

    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        out = r / (np.multiply.outer(self._diagonal, a) + shift)
        for factor in dict.fromkeys(a.tolist()) if len(self._at) else ():
            chosen = np.ix_(self._at, np.flatnonzero(a == factor))
            out[chosen] = scipy.linalg.cho_solve((self._factor(factor, shift), True), r[chosen], check_finite=False)
        return np.asarray(out)

    def root(self, w: FloatArray, a: float, shift: float) -> tuple[FloatArray, float]:
        """L w (k, n) for w (k, n) and log det(L L* / shift), L L* being what this is the inverse of."""
        d = self._diagonal * a + shift
        out, log_det = np.sqrt(d)[:, None] * w, float(np.log(np.delete(d, self._at) / shift).sum())
        if len(self._at):
            factor = np.tril(self._factor(a, shift))
            out[self._at] = factor @ w[self._at]
            log_det += float(np.log(np.diag(factor) ** 2 / shift).sum())
        return out, log_det

    def trace(self, a: float, shift: float) -> float:
        """Of the inverse."""
        total = float((1.0 / (np.delete(self._diagonal, self._at) * a + shift)).sum())
        if len(self._at):
            root, _ = lapack.dtrtri(np.tril(self._factor(a, shift)), lower=1)
            total += float(np.einsum("ij,ij->", root, root))
        return total

    def _factor(self, a: float, shift: float) -> FloatArray:
        if (a, shift) not in self._factors:
            matrix = a * self._block
            matrix[np.diag_indices(len(matrix))] += max(shift, EPS * len(matrix) * a * self._top)
            kept = {key: factor for key, factor in self._factors.items() if key[1] == shift}
            factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
            self._factors = {**kept, (a, shift): factor}
        return self._factors[a, shift]

    def spread(self, a: FloatArray, shift: float) -> float:
        return float(np.max((a * self._top + shift) / shift)) if shift > 0 else np.inf

    def condition(self, a: FloatArray, shift: float, worst: float) -> float:
        return float(np.max(a * self._largest + shift) / shift) if shift > 0 else np.inf

    def slack(self, a: FloatArray, shift: float) -> float:
        light = np.delete(self._diagonal, self._at)
        return float(np.max(a * light.max(initial=0.0) + shift) / shift) if shift > 0 else np.inf


def heavy(system: System, parts: Sequence[LatticeMoments], ridges: Sequence[float] = ()) -> Heavy:
    """Of the features with the largest weights: as many as take the least time at these ridges, or as HEAVY allows."""
    problem, weights = system.problem, system.problem.weights
    D, diagonal = len(weights.gain) // 2, _diagonal(system, parts)
    order = np.argsort(-weights.sizes[:D], kind="stable")
    feature = np.arange(2 * D) if system.apart else problem.blocks[0].at[0]
    rank = np.argsort(order)[feature % D]
    few = np.sort(order[: _pairs(system, parts, diagonal, rank, ridges)])
    at = np.concatenate([few, D + few])
    sub = OperatorWeights(weights.gain[at], weights.root if len(weights.root) == 1 else weights.root[at])
    scale = problem.scale if problem.noise is None else Units(problem.scale, problem.noise)
    written = [part.columns(at, 1.0).gram() for part in parts]
    blocks = Problem.of(written, sub, intercept=problem.intercept, scale=scale, observe=problem.observe).blocks
    inside, block = np.flatnonzero(rank < len(few)), blocks[0].G
    if len(blocks) > 1:  # targets that other rows have: systems of their own
        inside, block = inside[:0], block[:0, :0]
    return Heavy(diagonal, inside, block, 2.0 * _largest(system, np.ones(system.size)))


def _pairs(
    system: System, parts: Sequence[LatticeMoments], diagonal: FloatArray, rank: IntArray, ridges: Sequence[float]
) -> int:
    """How many cosines, and as many sines, are factored. Steps were counted, and times measured, of Gaussian and Matern
    kernels with 500 to 90,000 features: steps grow with the root of what is not factored, over the ridge."""
    rows = 1 if system.apart else system.problem.weights.shape[1]
    sizes = [max(1, int(HEAVY / (2 * rows) / 2 ** (half / 2))) for half in range(HALVES)]
    if not ridges or system.size <= HEAVY / 3:
        return sizes[0]
    inverse = np.divide(1.0, np.sqrt(diagonal), out=np.zeros(len(diagonal)), where=diagonal > 0)
    strength = _largest(system, inverse) * float(system.a.max()) / (system.problem.l * np.maximum(ridges, EPS**2))
    L, factors = len(system.a), len(set(system.a.tolist()))
    product = L * sum(25.0 * system.size + 1.5 * part.points * log2(part.points) for part in parts)  # nanoseconds

    def steps(pairs: int) -> FloatArray:
        return np.asarray(5.0 + 10.0 * np.sqrt(strength * diagonal[rank >= pairs].max(initial=0.0)))

    def time(pairs: int) -> float:
        k = int(np.count_nonzero(rank < pairs))
        each = product + k**2 * (factors + 0.1 * L)
        return k**3 / 66 * factors * len(ridges) + 25 * k**2 + float(steps(pairs).sum()) * each

    return min([pairs for pairs in sizes if steps(pairs).max() <= MOST_ITERATIONS / 4] or sizes[:1], key=time)


def _largest(system: System, scale: FloatArray) -> float:
    """About the largest eigenvalue of scale G scale, by a few of its powers."""
    x, size = np.random.default_rng(0).standard_normal((system.size, 1)), 0.0
    for _ in range(POWERS):
        x = scale[:, None] * system.apply(scale[:, None] * (x / np.linalg.norm(x)), np.zeros(1, int))
        size = float(np.linalg.norm(x))
    return size


def _diagonal(system: System, parts: Sequence[LatticeMoments]) -> FloatArray:
    """That of G (k,), but for what centring takes of one pattern of targets and gives to another."""
    problem, weights = system.problem, system.problem.weights
    total = np.zeros(len(weights.gain))
    for part in parts:
        border = part.operator()[0][: part.m, 0]
        total += part.diagonal[: part.m] - problem.intercept * border**2 / part.corner[0, 0]
    total = np.maximum(total, 0.0)
    if system.apart:
        return np.asarray(weights.gain**2 * total)
    feature, row = problem.blocks[0].at
    seen = np.broadcast_to(weights.psi, weights.shape)[feature, row] @ problem.C.T
    return np.asarray(total[feature] * np.sum(seen**2, axis=1))


def lattice_parts(parts: Sequence[Solvable]) -> list[LatticeMoments]:
    """The sums, where they are a lattice's; none where they are not."""
    return [part for part in parts if isinstance(part, LatticeMoments)]


def heavy_bytes(size: Size) -> int:
    """The most memory of `heavy`, beside the sums: the block's moments, packed and as a square of each pattern, and its
    copies, or a factor of each of the systems, for k unknowns."""
    squares = max(5 + 1.5 * (size.patterns - 1), 3 + (1 if size.coupled else size.r))
    return int(8 * (squares * min(size.k, HEAVY) ** 2 + 16 * size.k * max(size.q, size.r)))


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
