"""Penalties <f, M f>: what a graph, or views that should agree, say of a function."""

from dataclasses import dataclass

import numpy as np

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Moments
from dorff.solvers.system import EPS, BorderedSums


@dataclass(frozen=True, eq=False)
class Penalty:
    """weight <f, M f>, M = L (x) Q (Minh 2016, eq. 67 with gI): L any positive matrix over all rows, labelled or not.

    `sums` are T = [F | 1]^T L [F | 1], (m + 1, m + 1), as moments without targets. Q = views (x) outputs, (V p, V p):
    `outputs` (p, p) couples the outputs and `views` (V, V) the views of a multi-view kernel, both symmetric and
    positive; None for the identity. M acts on f in the scaled targets' units, with all of its constants: y0 and the
    intercept.

    `shift` is what rounding costs where T was found as a difference and may have negative eigenvalues: that many times
    T's largest diagonal entry is added to its diagonal. The column of ones is then left out where its own entry is no
    larger than that: L 1 is 0, as far as T can tell."""

    sums: Moments
    weight: float
    outputs: FloatArray | None = None
    views: FloatArray | None = None
    shift: float = 0.0

    def check(self, weights: OperatorWeights) -> None:
        """InputError for outputs of another number than functions with these weights have."""
        p = weights.root.shape[2]
        if self.outputs is not None and len(self.outputs) != p:
            raise InputError(f"penalty: outputs must be ({p}, {p}) here, got {self.outputs.shape}; correct it")

    def term(self, weights: OperatorWeights, weight: float, f0: FloatArray) -> "PenaltyTerm":
        """Of functions with these weights, about the constant f0 (V p,): all of it times `weight` (l gI)."""
        m, p = len(weights.gain), weights.root.shape[2]
        T = self.sums.full
        T *= weight
        lift = self.shift * float(np.max(np.diag(T), initial=0.0))
        T[np.diag_indices(m + 1)] += lift
        if self.shift > 0 and T[m, m] <= 2.0 * lift:
            T[m] = T[:, m] = 0.0
        views = np.eye(weights.count) if self.views is None else self.views
        outputs = np.eye(p) if self.outputs is None else self.outputs
        return PenaltyTerm(T, views, outputs, f0, self.sums.unit)


@dataclass(frozen=True, eq=False)
class PenaltyTerm:
    """A penalty of g = f - f0 in the scaled targets' units: T (m + 1, m + 1) times l gI, Q = views (x) outputs, and
    the constant f0 (V p,). It is as rows that have 0 for their targets, seen through a root of Q. `unit` is T's
    relative rounding error."""

    T: FloatArray
    views: FloatArray
    outputs: FloatArray
    f0: FloatArray
    unit: float

    def sums(self) -> BorderedSums:
        """For all outputs together."""
        return self._sums(np.asarray(np.kron(_root(self.views), _root(self.outputs))), self.f0[:, None])

    def along(self, share: float, load: FloatArray) -> BorderedSums:
        """For combinations of the outputs that it does not couple: `load` (p, c), each with `share` of Q."""
        return self._sums(np.sqrt(share) * _root(self.views), self.f0.reshape(len(self.views), -1) @ load)

    def _sums(self, B: FloatArray, f0: FloatArray) -> BorderedSums:
        m, target = len(self.T) - 1, -B @ f0
        s, n = self.T[:m, m], float(self.T[m, m])
        return BorderedSums(self.T[:m, :m], s, n, B, np.multiply.outer(s, target), n * target, self.unit)


def _root(matrix: FloatArray) -> FloatArray:
    """B (rank, p) with B^T B the matrix."""
    if np.array_equal(matrix, np.eye(len(matrix))):
        return matrix
    values, vectors = np.linalg.eigh(matrix)
    some = values > len(values) * EPS * values[-1]
    return np.asarray((vectors[:, some] * np.sqrt(values[some])).T)
