"""Preconditioned conjugate gradients, by a random sketch or a sample of rows: for systems too large to be formed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg import eigh_tridiagonal, lapack

from dorff.moments import BoolArray, FloatArray
from dorff.solvers.matrixfree import System
from dorff.solvers.scores import BlockSolution, Solution, digits_left
from dorff.solvers.system import EPS, IntArray, Size

FIRST_RANK: Final = 32
MOST_RANK: Final = 1024
SIDE_BY_SIDE: Final = 128  # vectors of one product
ROWS: Final = 1024  # of a tall matrix that are worked on at a time
ENOUGH: Final = 10.0  # a smallest eigenvalue within so many times the shift needs no more rank


class Preconditioner(ABC):
    """An approximate inverse of the systems' G a + shift."""

    @abstractmethod
    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        """(k, L) for r (k, L), whose columns have the factors a (L,)."""

    @abstractmethod
    def spread(self, a: FloatArray, shift: float) -> float:
        """The condition number of what it is the inverse of, the largest over a (c,)."""

    def condition(self, a: FloatArray, shift: float, worst: float) -> float:
        """A bound of the systems' own, where that of the preconditioned ones is `worst`."""
        return worst * self.spread(a, shift)

    def slack(self, a: FloatArray, shift: float) -> float:
        """How much larger than the system what it inverts may be, unseen by iterations; 1 where that is not known."""
        return 1.0


@dataclass(frozen=True, eq=False)
class LowRank(Preconditioner):
    """The inverse of U diag(a g + shift) U* + (a t + shift)(I - U U*): `basis` U (k, rank) of orthonormal columns,
    `values` g (rank,) the eigenvalues of G that go with them, t the least of these for all others."""

    basis: FloatArray
    values: FloatArray

    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        rest = 1.0 / (a * self.values.min() + shift)
        inside = 1.0 / (np.multiply.outer(self.values, a) + shift) - rest
        return np.asarray(rest * r + self.basis @ (inside * (self.basis.T @ r)))

    def spread(self, a: FloatArray, shift: float) -> float:
        return float(np.max((a * self.values.max() + shift) / (a * self.values.min() + shift)))

    def slack(self, a: FloatArray, shift: float) -> float:
        return float(np.max(a * self.values.min() + shift) / shift) if shift > 0 else np.inf


def most_rank(k: int) -> int:
    """The largest rank of a preconditioner for k unknowns."""
    return max(1, min(k // 2, MOST_RANK))


def nystrom(system: System, shift: float) -> LowRank:
    """From products of G with Gaussian vectors: Frangella, Tropp & Udell (2023, algorithm 2.1 and equation 1.3). The
    rank is doubled until the smallest eigenvalue found is below 10 shift, or it is `most_rank`."""
    k, rng, largest = system.size, np.random.default_rng(0), float(system.a.max())
    most, s = most_rank(k), 0
    omega, product = (np.empty((k, most), order="F") for _ in range(2))  # pages that nobody writes to take no memory
    while True:
        wanted = min(most, max(FIRST_RANK, 2 * s))
        # Orthogonal to those before: a basis of one random subspace, which grows.
        more = np.asfortranarray(rng.standard_normal((k, wanted - s)))
        more -= omega[:, :s] @ (omega[:, :s].T @ more)
        omega[:, s:wanted] = scipy.linalg.qr(more, mode="economic", overwrite_a=True, check_finite=False)[0]
        del more
        for start in range(s, wanted, SIDE_BY_SIDE):
            some = slice(start, min(start + SIDE_BY_SIDE, wanted))
            product[:, some] = system.apply(omega[:, some], np.zeros(some.stop - start, int))
        s = wanted
        basis, turn, values = _approximation(omega[:, :s], product[:, :s])
        if s == most or largest * values[-1] <= ENOUGH * shift:
            del omega, product
            return LowRank(_turned(basis, turn), values)
        del basis


def nystrom_bytes(k: int, column_bytes: int) -> int:
    """The most memory of `nystrom` and of what it gives, for k unknowns whose product with one vector takes
    `column_bytes`: vectors, products; then more of these, or the basis and a small square's SVD; LAPACK's panels."""
    s = most_rank(k)
    return 8 * (2 * k * s + 64 * k) + max(min(s, SIDE_BY_SIDE) * column_bytes, 8 * (k * s + 8 * s * s))


def _approximation(omega: FloatArray, product: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Q (k, s), V (s, s) and eigenvalues (s,) of G omega (omega* G omega)^+ (G omega)* = QV diag (QV)*, by a shift.
    Where rounding leaves omega* G omega no positive matrix, its eigenvalues below the shift are left out."""
    nu = float(np.finfo(np.float64).eps * np.linalg.norm(product))
    shifted = nu * omega
    shifted += product
    inner = omega.T @ shifted
    eigenvalues, vectors = np.linalg.eigh((inner + inner.T) / 2)
    kept = eigenvalues > min(nu, eigenvalues[-1] / 2)
    square = _turned(shifted, vectors[:, kept] / np.sqrt(eigenvalues[kept]))
    Q, R = scipy.linalg.qr(square, mode="economic", overwrite_a=True, check_finite=False)
    del inner, vectors
    V, singular, _ = np.linalg.svd(R)
    return Q, V, np.maximum(singular**2 - nu, 0.0)


def _turned(columns: FloatArray, turn: FloatArray) -> FloatArray:
    """columns (k, s) times a matrix (s, s'), s' <= s, written over them."""
    for start in range(0, len(columns), ROWS):
        rows = slice(start, start + ROWS)
        columns[rows, : turn.shape[1]] = columns[rows] @ turn
    return columns[:, : turn.shape[1]]


TILE_ROWS: Final = 128


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows spread over the data: inputs X (n, d), their weights (n,), and what makes features F (b, m) of inputs."""

    X: FloatArray
    weights: FloatArray
    features: Callable[[FloatArray], FloatArray]

    def tiles(self, system: System, rows: int = TILE_ROWS) -> Iterator[FloatArray]:
        """Their features about the mean of all rows, times the roots of their weights; made anew each time."""
        for start in range(0, len(self.X), rows):
            F = self.features(self.X[start : start + rows])
            F -= system.centre
            F *= np.sqrt(self.weights[start : start + rows])[:, None]
            yield F

    def gram(self, system: System) -> FloatArray:
        """The design's rows by its rows (n t, n t): half of it, and its mirror image."""
        t = 1 if system.apart else len(system.problem.scale)
        K, at = np.empty((len(self.X) * t,) * 2), 0
        for F in self.tiles(system, 4 * TILE_ROWS):
            start, at, beside = at, at + len(F) * t, 0
            for other in self.tiles(system):
                if beside >= at:
                    break
                stop = beside + len(other) * t
                K[start:at, beside:stop] = system.gram(F, other)
                K[beside:stop, start:at] = K[start:at, beside:stop].T
                beside = stop
        return K


class Sampled(Preconditioner):
    """The inverse of Phi* Phi + level I, Phi (n, k) the sample's rows: by a Cholesky factor of rows by rows. What the
    sample's rows have in common they show as all rows do, in proportion. The rest of each, that the others do not
    foresee, looks too large along itself and is missed everywhere else; so `level`, which counts everywhere, is its
    size: the mean of the rows' leave-one-out variances, those of a Gaussian process with this ridge. (With the ridge
    in its place the iteration took up to twice as many steps; with half or twice the size, hardly more.) Each use
    makes the sample's features twice, in two tiles. Of a sample without rows it is the identity."""

    def __init__(self, system: System, sample: Sample, shift: float) -> None:
        self._system, self._sample = system, sample
        self._top, self.level = 0.0, 1.0
        self._factor: FloatArray | None = None
        if not len(sample.X):
            return
        K = sample.gram(system)
        self._top = float(np.abs(K).sum(axis=0).max())
        ridge = shift * float(sample.weights.sum()) / system.problem.l / float(system.a.max())
        inverse, _ = lapack.dpotri(_factored(K.copy(), ridge), lower=1, overwrite_c=1)
        self.level = float(np.mean(1.0 / np.diag(inverse)))
        del inverse
        self._factor = _factored(K, self.level)

    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        system, sample = self._system, self._sample
        if self._factor is None:
            return r.copy()
        y = np.concatenate([system.design(F, r) for F in sample.tiles(system)])
        u, _ = lapack.dpotrs(self._factor, y, lower=1)
        left, start = r.copy(), 0
        for F in sample.tiles(system):
            stop = start + len(F) * (len(y) // len(sample.X))
            left -= system.adjoint(F, u[start:stop])
            start = stop
        return left / self.level

    def spread(self, a: FloatArray, shift: float) -> float:
        return (self._top + self.level) / self.level


def sampled_bytes(rows: int, m: int, k: int) -> int:
    """The most memory of a `Sampled` whose sample has as many `rows`, a row for each target that is coupled to others,
    of m features for k unknowns: two matrices rows by rows, two tiles of features and the next of the larger ones."""
    return 8 * (2 * rows**2 + 9 * TILE_ROWS * m + 2 * k)


def _factored(matrix: FloatArray, level: float) -> FloatArray:
    """The lower Cholesky factor of matrix + level I (more where rounding wants it), written over it."""
    matrix[np.diag_indices(len(matrix))] += max(level, EPS * len(matrix) * float(np.trace(matrix)))
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    assert not failed
    return np.asarray(factor)


RUNG: Final = "cg"
TOLERANCE: Final = 1e-12  # a residual that is always small enough
FEWEST_DIGITS: Final = 5.0  # of the fitted values that an iteration goes for, however few rounding leaves
MOST_ITERATIONS: Final = 2000
#: (k, L) and the numbers (L,) of its columns -> (k, L)
Map = Callable[[FloatArray, IntArray], FloatArray]


class ConjugateGradients:
    """The one loop of conjugate gradients (Hestenes & Stiefel 1952), for many columns side by side: x (k, c) of A_j
    x_j = rhs_j, a positive matrix A_j for each column, from x = 0. `product` is A_j times the columns it is given,
    `precondition` about its inverse. Columns that are not done yet are held side by side: their numbers `at` (L,), `x`
    and the residuals `r` (k, L), and the squared norms `rho` (L,) of these in the preconditioner's norm. `steps`
    are the coefficients alpha and beta of each column's steps. Whoever iterates decides when a column is done, and
    calls `finish`; `solved` (k, c) holds those that are, zeros else."""

    def __init__(self, product: Map, precondition: Map, rhs: FloatArray) -> None:
        self._product, self._precondition = product, precondition
        self.at = np.arange(rhs.shape[1])
        z = precondition(rhs, self.at)
        self.rho, self.solved = dots(rhs, z), np.zeros(rhs.shape, order="F")
        self.steps = [list[tuple[float, float]]() for _ in self.at]
        self.x = np.zeros(rhs.shape, order="F")
        self.r, self._p = np.array(rhs, order="F"), np.array(z, order="F")

    def step(self) -> bool:
        """One step of all columns; False, with the old `rho`, where rounding has made something indefinite."""
        Ap = self._product(self._p, self.at)
        curvature = dots(self._p, Ap)
        if not np.all(curvature > 0):
            return False
        alpha = self.rho / curvature
        self.x += alpha * self._p
        self.r -= alpha * Ap
        del Ap
        z = self._precondition(self.r, self.at)
        rho = dots(self.r, z)
        if not np.all(rho >= 0):
            return False
        beta, self.rho = rho / self.rho, rho
        self._p *= beta
        self._p += z
        for column, step in zip(self.at, zip(alpha, beta, strict=True), strict=True):
            self.steps[column].append(step)
        return True

    def finish(self, done: BoolArray) -> None:
        """Let the columns that are `done` (L,) be."""
        if not done.any():
            return
        self.solved[:, self.at[done]] = self.x[:, done]
        go = ~done
        self.at, self.rho = self.at[go], self.rho[go]
        self.x, self.r, self._p = self.x[:, go], self.r[:, go], self._p[:, go]


def dots(a: FloatArray, b: FloatArray) -> FloatArray:
    """The products (c,) of columns (k, c) with columns."""
    return np.asarray(np.einsum("kc,kc->c", a, b))


class Iterated(NamedTuple):
    """A solution by iterations. `errors` holds the largest relative residual before each and after the last, in the
    preconditioner's norm: about the fitted values' relative error; `preconditioned` is the condition that was seen,
    and `solved` what the solution was made of."""

    solution: Solution
    errors: tuple[float, ...]
    preconditioned: float
    solved: BlockSolution

    @property
    def iterations(self) -> int:
        return len(self.errors) - 1


def iterate(
    system: System, ridge: float, preconditioner: Preconditioner, *, tolerance: float | None = None,
    most: int = MOST_ITERATIONS, progress: Callable[[int, int], None] = lambda _done, _left: None,
) -> Iterated:  # fmt: skip
    """Conjugate gradients for all columns side by side: one product serves all of them. A column is done when r* P^-1
    r is `tolerance`^2 of what it was at x = 0, `enough` if left out. Where rounding stops the fall, or `most` are
    done, it says that it did not converge. `progress` gets how many are done and how many it seems to take."""
    shift, a, rhs = system.problem.l * ridge, system.a, system.rhs
    tolerance = enough(system, preconditioner, shift) if tolerance is None else tolerance

    def product(p: FloatArray, at: IntArray) -> FloatArray:
        return system.apply(p, at) * a[at] + shift * p

    columns = ConjugateGradients(product, lambda r, at: preconditioner.solve(r, a[at], shift), rhs.copy())
    rho = columns.rho.copy()
    first = np.where(rho > 0, rho, 1.0)
    columns.finish(~(rho > 0))
    errors = [1.0 if len(columns.at) else 0.0]  # nothing to explain: 0 is the solution
    while len(columns.at) and len(errors) <= most and columns.step():
        rho[columns.at] = columns.rho
        errors.append(float(np.sqrt(np.max(rho / first))))
        columns.finish(columns.rho <= tolerance**2 * first[columns.at])
        progress(len(errors) - 1, _left(errors, tolerance))
        half = len(errors) // 2
        if half > 50 and min(errors[half:]) >= min(errors[:half]):  # rounding: it will not fall any more
            break
    converged = not len(columns.at)
    columns.finish(np.ones(len(columns.at), dtype=bool))
    x = columns.solved
    seen = max((_condition(np.array(one)) for one in columns.steps if one), default=1.0)
    # Small eigenvalues that the iteration did not meet count as well: the residual may lie there.
    worst = max(seen, preconditioner.slack(a, shift))
    condition = preconditioner.condition(a, shift, worst)
    squares = dots(x, x)
    sizes = dots(x, rhs), shift * squares, shift * condition * squares
    solved = BlockSolution(system.problem.blocks[0], x, *sizes, condition)
    # A residual that small in the preconditioner's norm is an error no larger than this in the system's.
    digits = min(digits_left(condition, system.problem.unit), -float(np.log10(max(errors[-1] * np.sqrt(worst), EPS))))
    solution = Solution.of(system.problem, ridge, [solved], RUNG, scores=False)
    solution = replace(solution, digits=max(0.0, digits), converged=converged)
    return Iterated(solution, tuple(errors), seen, solved)


def enough(system: System, preconditioner: Preconditioner, shift: float) -> float:
    """The residual at which the fitted values' error is a tenth of what rounding may have made of them already
    (`digits_left`), and at most 1e-6: more steps would show nowhere."""
    slack = preconditioner.slack(system.a, shift)
    digits = digits_left(preconditioner.condition(system.a, shift, slack), system.problem.unit)
    return float(max(TOLERANCE, 0.1 * 10.0 ** -max(digits, FEWEST_DIGITS) / np.sqrt(slack)))


def conjugate_gradients(system: System, ridge: float, known: Preconditioner | None = None) -> Solution:
    """Of a system that is known by its products with vectors; there are no scores, which need the spectrum."""
    return iterate(system, ridge, known or nystrom(system, system.problem.l * ridge)).solution


def cg_bytes(size: Size) -> int:
    """The most memory of `conjugate_gradients` by moments, beside the packed sums: these as squares, its
    preconditioner, and the vectors of `iterate`: a column for each row of psi, or one."""
    columns, column = 1 if size.coupled else size.r, System.column_bytes(size)
    return size.unpacked + nystrom_bytes(size.k, column) + columns * (10 * 8 * size.k + column)


def _left(errors: Sequence[float], tolerance: float) -> int:
    """Iterations that are left, if the error goes on falling as in the last few."""
    span = min(len(errors) - 1, 10)
    rate = np.log(errors[-1 - span] / max(errors[-1], 1e-300)) / span
    if errors[-1] <= tolerance:
        return 0
    return int(np.ceil(np.log(errors[-1] / tolerance) / rate)) if rate > 0 else MOST_ITERATIONS


def tridiagonal(steps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The diagonal (n,) and what is beside it (n - 1,) of the matrix that the steps' alpha, beta (n, 2) build: that of
    Lanczos for the preconditioned system, begun at the right-hand side."""
    alpha, beta = steps.T
    diagonal = 1.0 / alpha
    diagonal[1:] += beta[:-1] / alpha[:-1]
    return diagonal, np.sqrt(beta[:-1]) / alpha[:-1]


def _condition(steps: FloatArray) -> float:
    """Of the preconditioned system."""
    values = eigh_tridiagonal(*tridiagonal(steps), eigvals_only=True)
    return float(values[-1] / values[0]) if values[0] > 0 else np.inf
