"""A preconditioner of low rank plus a multiple of the identity; from a random sketch of the system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from dorff.moments import FloatArray
from dorff.solvers.matrixfree import System

FIRST_RANK: Final = 32
MOST_RANK: Final = 1024
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


@final
class Plain(Preconditioner):
    """The identity."""

    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        return r

    def spread(self, a: FloatArray, shift: float) -> float:
        return 1.0


@final
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


def nystrom(system: System, shift: float, *, rank: int | None = None, seed: int = 0) -> LowRank:
    """From products of G with Gaussian vectors: Frangella, Tropp & Udell (2023, Randomized Nystrom preconditioning,
    algorithm 2.1 and equation 1.3).

    The rank is doubled until the smallest eigenvalue found is below 10 shift, or it is `rank`: k / 2, or 1024.
    """
    k, rng, largest = system.size, np.random.default_rng(seed), float(system.a.max())
    most = min(k, max(1, min(k // 2, MOST_RANK) if rank is None else rank))
    omega, product = np.empty((k, 0)), np.empty((k, 0))
    while True:
        wanted = min(most, max(FIRST_RANK, 2 * omega.shape[1]))
        # Orthogonal to those before: a basis of one random subspace, which grows.
        more = rng.standard_normal((k, wanted - omega.shape[1]))
        more -= omega @ (omega.T @ more)
        more = np.linalg.qr(more)[0]
        omega = np.column_stack([omega, more])
        product = np.column_stack([product, system.apply(more, np.zeros(more.shape[1], int))])
        U, values = _approximation(omega, product)
        if wanted == most or largest * values[-1] <= ENOUGH * shift:
            return LowRank(U, values)


def _approximation(omega: FloatArray, product: FloatArray) -> tuple[FloatArray, FloatArray]:
    """U (k, rank) and the eigenvalues of G omega (omega* G omega)^+ (G omega)*, by a small shift that is undone.

    Where rounding leaves omega* G omega no positive matrix, its eigenvalues below the shift are left out.
    """
    nu = float(np.finfo(np.float64).eps * np.linalg.norm(product))
    shifted = product + nu * omega
    inner = omega.T @ shifted
    found, vectors = np.linalg.eigh((inner + inner.T) / 2)
    kept = found > min(nu, found[-1] / 2)
    U, singular, _ = np.linalg.svd(shifted @ (vectors[:, kept] / np.sqrt(found[kept])), full_matrices=False)
    return U, np.maximum(singular**2 - nu, 0.0)
