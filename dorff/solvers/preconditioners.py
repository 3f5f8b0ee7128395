"""Preconditioners: low rank plus a multiple of the identity, from a random sketch of the system; and from a sample of
rows, for systems whose own products are passes over the data."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.matrixfree import System
from dorff.solvers.system import EPS

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

    def slack(self, a: FloatArray, shift: float) -> float:
        """How much larger what it is the inverse of may be than the system somewhere, that no iteration has to see;
        1 where that is not known."""
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
    """From products of G with Gaussian vectors: Frangella, Tropp & Udell (2023, Randomized Nystrom preconditioning,
    algorithm 2.1 and equation 1.3).

    The rank is doubled until the smallest eigenvalue found is below 10 shift, or it is `most_rank`. For its memory see
    `nystrom_bytes`."""
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
    `column_bytes`: vectors and their products; then some more of these, or the basis and the SVD of a small square
    (dgesdd); LAPACK's panels."""
    s = most_rank(k)
    return 8 * (2 * k * s + 64 * k) + max(min(s, SIDE_BY_SIDE) * column_bytes, 8 * (k * s + 8 * s * s))


def _approximation(omega: FloatArray, product: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The eigenvectors U = Q V, as Q (k, s) and V (s, s), and the eigenvalues (s,) of G omega (omega* G omega)^+
    (G omega)*, by a small shift that is undone.

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
    """The inverse of Phi* Phi + level I, Phi (n, k) the sample's rows: by a Cholesky factor of rows by rows.

    What the sample's rows have in common they show as all rows do, in proportion. The rest of each, that the others
    do not foresee, looks too large along itself and is missed everywhere else; so `level`, which counts everywhere,
    is its size: the mean of the rows' leave-one-out variances, those of a Gaussian process with this ridge. (With the
    ridge in its place the iteration took up to twice as many steps; with half or twice the size, hardly more.)

    Each application makes the sample's features twice. Memory is two tiles of them, and two matrices rows by rows.
    Of a sample without rows it is the identity."""

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
    """The lower Cholesky factor of matrix + level I, written over it; with a little more where rounding has made it
    indefinite."""
    diagonal = np.diag_indices(len(matrix))
    least = EPS * len(matrix) * float(np.trace(matrix))
    matrix[diagonal] += max(level, least)
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    assert not failed
    return np.asarray(factor)
