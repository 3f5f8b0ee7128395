"""Landmarks: rows of the data whose kernel values are the features (the Nystroem approximation).

    k(x, z) ~ k(x, Z) K_ZZ^-1 k(Z, z),   Z (m, d) the landmarks, K_ZZ their Gram matrix

(Williams & Seeger 2001). Where the eigenvalues of the data's Gram matrix fall fast this is much closer to the kernel
than as many random features are (Yang, Li, Mahdavi, Jin & Zhou 2012), and k(x, x) less its estimate says at every x
what is missing. Landmarks are chosen by a randomly pivoted Cholesky factorization of the Gram matrix of a sample
(Chen, Epperly, Tropp & Webber 2025): each is drawn with a probability in proportion to what the earlier ones leave of
k(x, x)."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.frequencies.base import Frequencies, Law, Sampler
from dorff.kernels import Measure, ScalarKernel, Spectral
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.spec.part import Typed

PROPOSALS: Final = 64  # pivots proposed at a time, of which some are accepted
LEAST_PIVOT: Final = 1e-9  # of k(x, x): a row with less left is a combination of the landmarks, but for rounding
MAX_ROWS: Final = 8192  # of the sample that landmarks are chosen from


class LandmarksSpec(Typed):
    """Rows of the data, whose kernel values are the features.

    For a decomposable kernel that depends on x - z, or of a skeleton.
    """


@dataclass(frozen=True)
class Landmarks(Sampler):
    """Features k(x, Z) L^-T of landmarks Z, rows of the data, with L L^T = K_ZZ.

    The first m' features are those of the first m' landmarks.
    """

    kind = "landmarks"
    sampled = False
    draws_frequencies = False

    def config(self) -> dict[str, str]:
        return {"type": self.kind}

    def choose(self, scalar: ScalarKernel, X: FloatArray, count: int, seed: int) -> FloatArray:
        """Return at most `count` landmarks (m, d) among scaled rows X (n, d)."""
        pivots = pivoted_cholesky(scalar, X, count, np.random.default_rng(seed))
        return np.asarray(X[pivots.rows])

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        if measure != Measure.UNBOUNDED:
            problem = f"sampler: landmarks are no frequencies, and the {measure} measure is of those"
            raise InputError(f"{problem}; leave the measure out")

    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        raise AssertionError("landmarks are no frequencies: `Recipe.draw` makes their features")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pivots:
    """Chosen rows (m,), in order, and the columns (n, m) of the factor L: k(x_i, x_j) ~ sum_a L_ia L_ja."""

    rows: IntArray
    factor: FloatArray

    def missing(self, diagonal: FloatArray) -> FloatArray:
        """Return the mean over the rows of k(x, x) less its estimate, by none, one, ... all landmarks (m + 1,)."""
        explained = np.concatenate(
            [[0.0], np.cumsum(np.einsum("ij,ij->j", self.factor, self.factor)) / len(self.factor)]
        )
        return np.asarray(np.maximum(np.mean(diagonal) - explained, 0.0))


def pivoted_cholesky(
    scalar: ScalarKernel, X: FloatArray, count: int, rng: np.random.Generator, *, enough: float = 0.0
) -> Pivots:
    """Choose at most `count` rows of X (n, d) by a randomly pivoted Cholesky factorization of their Gram matrix.

    A row's probability is in proportion to what earlier pivots leave of k(x, x) (Chen, Epperly, Tropp & Webber 2025,
    algorithm 1). `PROPOSALS` rows are drawn at a time, and each is accepted with the share of its probability that
    those accepted before it leave (Epperly, Tropp & Webber 2024, "Embrace rejection"): the law of the pivots is the
    same, and nearly all of the work is products of matrices. Ends where no row has more than `LEAST_PIVOT` left, or
    the mean over the rows is `enough` or less. Fewer pivots are the first of more. Takes n m^2 operations and 8 n m
    bytes.
    """
    left = scalar.diagonal(X)
    least = LEAST_PIVOT * float(left.max(initial=0.0))
    factor = np.empty((len(X), min(count, len(X))), order="F")
    rows = np.empty(0, dtype=np.int64)
    while len(rows) < factor.shape[1] and (left > least).any() and np.mean(left) > enough:
        known = factor[:, : len(rows)]
        weights = np.where(left > least, left, 0.0)
        proposed = rng.choice(len(X), PROPOSALS, p=weights / weights.sum())
        block = scalar.gram(X[proposed], X[proposed]) - known[proposed] @ known[proposed].T
        accepted = _accepted(block, left[proposed], least, rng)[: factor.shape[1] - len(rows)]
        if not len(accepted):
            # Rounding may leave a row more in `left` than in its own entry, by which all would be refused for ever.
            left[proposed] = np.minimum(left[proposed], np.maximum(np.diag(block), 0.0))
            continue
        chosen = proposed[accepted]
        lower = np.linalg.cholesky(block[np.ix_(accepted, accepted)])
        columns = scalar.gram(X, X[chosen]) - known @ known[chosen].T
        columns = scipy.linalg.solve_triangular(lower, columns.T, lower=True, check_finite=False).T
        factor[:, len(rows) : len(rows) + len(chosen)] = columns
        rows = np.concatenate([rows, chosen])
        left = np.maximum(left - np.sum(columns**2, axis=1), 0.0)
        left[chosen] = 0.0
    return Pivots(rows=rows, factor=factor[:, : len(rows)])


def _accepted(block: FloatArray, proposed: FloatArray, least: float, rng: np.random.Generator) -> IntArray:
    """Return which of the proposals become pivots, in order.

    `block` is what is left of their Gram matrix, `proposed` of k(x, x) when they were drawn.
    """
    rest, accepted = block.copy(), list[int]()
    chances = rng.random(len(rest))
    for at, chance in enumerate(chances):
        if rest[at, at] > least and chance * proposed[at] <= rest[at, at]:
            column = rest[:, at] / np.sqrt(rest[at, at])
            rest -= np.outer(column, column)
            accepted.append(at)
    return np.array(accepted, dtype=np.int64)
