"""A preconditioner for systems of features whose heaviest are known: their block, factored, and the diagonal beside it.

Of a lattice's features that is nearly the system itself where rows are spread evenly: products of different features
cancel then, but for those of the largest weights, which are many times the ridge."""

from collections.abc import Sequence
from math import log2
from typing import Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, LatticeMoments, Solvable
from dorff.solvers.cg import MOST_ITERATIONS, Preconditioner
from dorff.solvers.matrixfree import System
from dorff.solvers.problem import Problem, Units
from dorff.solvers.system import EPS, IntArray, Size

POWERS: Final = 12
HEAVY: Final = 3072  # unknowns of the block that is factored, at most
HALVES: Final = 12  # smaller blocks that are thought of, each 1 / sqrt(2) of the one before


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
