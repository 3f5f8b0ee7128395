"""A preconditioner from a sample of rows, for systems whose own products are passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from scipy.linalg import lapack

from dorff.moments import FloatArray
from dorff.solvers.matrixfree import System
from dorff.solvers.nystrom import Preconditioner
from dorff.solvers.system import EPS

TILE_ROWS: Final = 128


@final
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


@final
class Sampled(Preconditioner):
    """The inverse of Phi* Phi + level I, Phi (n, k) the sample's rows: by a Cholesky factor of rows by rows.

    What the sample's rows have in common they show as all rows do, in proportion. The rest of each, that the others
    do not foresee, looks too large along itself and is missed everywhere else; so `level`, which counts everywhere,
    is its size: the mean of the rows' leave-one-out variances, those of a Gaussian process with this ridge. (With the
    ridge in its place the iteration took up to twice as many steps; with half or twice the size, hardly more.)

    Each application makes the sample's features twice. Memory is two tiles of them, and two matrices rows by rows.
    Of a sample without rows it is the identity.
    """

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
        found, start = r.copy(), 0
        for F in sample.tiles(system):
            stop = start + len(F) * (len(y) // len(sample.X))
            found -= system.adjoint(F, u[start:stop])
            start = stop
        return found / self.level

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
