"""Penalties <f, M f>: what a graph, or views that should agree, say of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Kind, Moments
from dorff.solvers.system import EPS, BorderedSums

_SLACK: Final = 1e-10  # of the largest entry: asymmetry and negative eigenvalues below it are rounding


@final
@dataclass(frozen=True, eq=False)
class Penalty:
    """weight <f, M f>, M = L (x) Q (Minh 2016, eq. 67 with gI): L any positive matrix over all rows, labelled or not.

    `sums` are T = [F | 1]^T L [F | 1], (m + 1, m + 1), as moments without targets. Q = views (x) outputs, (V p, V p):
    `outputs` (p, p) couples the outputs and `views` (V, V) the views of a multi-view kernel, both symmetric and
    positive; None for the identity. M acts on f in the scaled targets' units, with all of its constants: y0 and the
    intercept.

    `shift` is what rounding costs where T was found as a difference and may have negative eigenvalues: that many times
    T's largest diagonal entry is added to its diagonal. The column of ones is then left out where its own entry is no
    larger than that: L 1 is 0, as far as T can tell. InputError for anything that is no such penalty.
    """

    sums: Moments
    weight: float
    outputs: FloatArray | None = None
    views: FloatArray | None = None
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.sums.q or self.sums.kind is not Kind.GRAM:
            raise InputError(f"penalty: T is moments without targets, got {self.sums.q} targets; sum inputs alone")
        for name in ("weight", "shift"):
            value = getattr(self, name)
            if not 0 <= value < np.inf:
                raise InputError(f"penalty: {name} must be a number of at least 0, got {value}; correct it")
        for name in ("outputs", "views"):
            _check_positive(name, getattr(self, name))

    def check(self, weights: OperatorWeights) -> None:
        """InputError for T or Q of another size than functions with these weights have."""
        m, p = len(weights.gain), weights.root.shape[2]
        if self.sums.m != m:
            raise InputError(f"penalty: T is of {self.sums.m} features, the kernel has {m}; sum it over the same ones")
        for name, size in (("views", weights.count), ("outputs", p)):
            matrix = getattr(self, name)
            if matrix is not None and len(matrix) != size:
                raise InputError(f"penalty: {name} must be ({size}, {size}) here, got {matrix.shape}; correct it")

    def term(self, weights: OperatorWeights, weight: float, f0: FloatArray) -> PenaltyTerm:
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


@final
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

    def sight(self) -> BorderedSums:
        """For all outputs together."""
        return self._sight(np.asarray(np.kron(_root(self.views), _root(self.outputs))), self.f0[:, None])

    def along(self, share: float, load: FloatArray) -> BorderedSums:
        """For combinations of the outputs that it does not couple: `load` (p, c), each with `share` of Q."""
        return self._sight(np.sqrt(share) * _root(self.views), self.f0.reshape(len(self.views), -1) @ load)

    def _sight(self, B: FloatArray, f0: FloatArray) -> BorderedSums:
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


def _check_positive(name: str, matrix: FloatArray | None) -> None:
    if matrix is None:
        return
    if matrix.ndim != 2 or len(matrix) != matrix.shape[1] or not len(matrix) or not np.isfinite(matrix).all():
        raise InputError(f"penalty: {name} must be a square matrix of finite numbers, got shape {matrix.shape}")
    size = float(np.abs(matrix).max())
    if np.abs(matrix - matrix.T).max() > _SLACK * size:
        raise InputError(f"penalty: {name} must be symmetric; give (Q + Q^T) / 2 if that is what was meant")
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < -_SLACK * size:
        raise InputError(f"penalty: {name} must be positive, its least eigenvalue is {least:.3g}; give B^T B")
