"""The pieces of a problem: linear systems, sums about its rows, and penalties <f, M f>, of graphs or views."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import BoolArray, FloatArray, IntArray, Moments

Spectrum = tuple[FloatArray, FloatArray]  # eigenvalues (k,) and vectors (k, k)
EPS: Final = float(np.finfo(np.float64).eps)
# LAPACK counts in 32 bits: a matrix of k columns has k^2 numbers, and dsyevd's workspace 1 + 6 k + 2 k^2.
LARGEST_DIRECT: Final = 46_340
LARGEST_EVD: Final = 32_766
OPEN: Final = 1e-12  # of the largest eigenvalue of the intercept's system: directions below it are left as they are


@dataclass(frozen=True)
class Size:
    """What solves' memory depends on: m features, q targets, r rows of psi (one system if `coupled`), patterns ..."""

    m: int
    q: int
    r: int
    coupled: bool
    patterns: int = 1
    folds: int = 1
    ridges: int = 1

    @property
    def width(self) -> int:
        return self.m + 1 + self.q

    @property
    def k(self) -> int:
        """Unknowns of a system."""
        return self.m * self.r if self.coupled else self.m

    @property
    def blocks(self) -> int:
        """Systems with a matrix of their own, at most: targets that other rows have are in others."""
        return 1 if self.coupled else min(self.r, 2**self.patterns - 1)

    @property
    def vectors(self) -> int:
        """Bytes of right-hand sides, solutions at each ridge, and what else is of k numbers, or more."""
        return 8 * self.k * (32 + (8 + self.ridges) * max(self.q, self.r))

    @property
    def packed(self) -> int:
        """Bytes of a fold's sums."""
        return self.patterns * 4 * self.width * (self.width + 1)

    @property
    def unpacked(self) -> int:
        """Bytes of the sums of all rows, as squares, and of copies of the targets' own; and of output matrices."""
        return 8 * (self.patterns * (self.width**2 + 9 * self.q**2) + 5 * max(self.q, self.r) ** 2)

    @property
    def held(self) -> int:
        """Bytes of all folds' sums, and of what adds some of them up."""
        return self.packed * (self.folds + min(self.folds - 1, 2))


@dataclass(frozen=True, eq=False)
class Block:
    """(G (x) diag(a) + l ridge I) x = rhs with G (k, k), a (c,), rhs (k, c): a system that touches no other one. `at`
    says where x goes in h (m, r): the indices of the rows of a general system (c = 1), or the columns that x
    rotation^T fills. `columns` (c,) says which of the problem's `directions` each column of x is about, and `load` (q,
    c) along what it adds to the targets, where they see a feature as it is; |load_j|^2 = a_j. `given` and `turned` are
    the spectrum and V^T rhs where they come from elsewhere; `squared` is False where that was the features' own
    singular values, so that nothing lost digits by being squared. `removed` bounds the largest eigenvalue of what
    centring took off G: sums were rounded with that still in them. `unit` is the rounding error of what penalties add
    to G, relative to its largest diagonal entry of the same row of the weights."""

    G: FloatArray
    a: FloatArray
    rhs: FloatArray
    at: Any
    rotation: FloatArray | None = None
    columns: IntArray | None = None
    load: FloatArray | None = None
    given: Spectrum | None = None
    turned: FloatArray | None = None
    squared: bool = True
    removed: float = 0.0
    unit: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether one Cholesky factor serves all columns at one ridge, and nothing better is known already."""
        return self.given is None and bool(np.ptp(self.a) <= 1e-14 * float(np.max(self.a)))

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigenvalues (k,) and vectors (k, k) of G, or `given`; those that rounding made negative count as zero."""
        if self.given is not None:
            return self.given
        values, vectors = scipy.linalg.eigh(self.G, driver="evd" if len(self.G) <= LARGEST_EVD else "evr")
        return np.maximum(values, 0.0), vectors

    @cached_property
    def rotated(self) -> FloatArray:
        """V^T rhs (k, c), V the eigenvectors of G."""
        return self.spectrum[1].T @ self.rhs if self.turned is None else self.turned


@dataclass(frozen=True, eq=False)
class Rows:
    """Sums over the rows that have the same targets: features s (m,), scaled targets y (q,) and products of these
    (q, q), about `y0`; the rows' summed weight n and their number; which targets they have."""

    s: FloatArray
    y: FloatArray
    squares: FloatArray
    n: float
    count: int
    y0: FloatArray
    mask: BoolArray


class Totals(NamedTuple):
    """Of each direction of the scaled targets (J,), or of all together (J = 1): their squares about what the
    intercept alone takes (`energy`), and as they were summed, or more (`squares`); the entries observed, their summed
    weight, the intercept's degrees of freedom, and the log determinant of its own system."""

    energy: FloatArray
    squares: FloatArray
    entries: FloatArray
    weight: FloatArray
    spent: FloatArray
    log_free: FloatArray


@dataclass(frozen=True, eq=False)
class BorderedSums:
    """Sums over rows that see f through an operator C (t, P): S (m, m) and s (m,) of the features, n of ones, and of
    c right-hand sides R (m, t, c), y (t, c). `unit` is a penalty's relative rounding error."""

    S: FloatArray
    s: FloatArray
    n: float
    C: FloatArray
    R: FloatArray
    y: FloatArray
    unit: float = 0.0

    @property
    def border(self) -> "BorderedSums":
        """Without what is of pairs of features, or of features and right-hand sides."""
        return replace(self, S=np.empty((0, 0)), s=self.s.copy(), R=np.empty((0, 0, 0)))


def assembled(
    psi: FloatArray, feature: IntArray, sums: Sequence[BorderedSums], *, intercept: bool, row: IntArray | None = None
) -> tuple[FloatArray, FloatArray, float, float]:
    """G (k, k), rhs (k, c), `Block.removed`, `unit` of f = sum_k F_feature[k] psi_k x_k + b, psi (k, P) of `row` (k,).
    G[k, j] is the sum over all sums of S_kj psi_k C*C psi_j^T (Minh 2016, eq. 74); b is eliminated, exactly."""
    k, P = psi.shape
    G, rhs, across = np.zeros((k, k)), np.zeros((k, sums[0].y.shape[1])), np.zeros((k, P))
    all_of_them = np.array_equal(feature, np.arange(len(sums[0].S)))
    row = np.zeros(k, np.int64) if row is None else row
    lost, size = np.zeros((2, row.max() + 1))
    for one in sums:
        seen = psi @ one.C.T
        part = seen @ seen.T
        part *= one.S if all_of_them else one.S[np.ix_(feature, feature)]
        G += part
        if one.unit > 0:
            np.maximum.at(size, row, one.unit * np.diag(part))
            lost, size = lost + size, np.zeros_like(size)
        del part
        rhs += np.einsum("kt,ktc->kc", seen, one.R[feature])
        across += one.s[feature, None] * (seen @ one.C)
    np.maximum.at(size, row, np.diag(G))
    unit = float(np.max(lost / np.maximum(size, np.finfo(np.float64).tiny)))
    if not intercept:
        return G, rhs, 0.0, unit
    inverse, y = free_system(sums)
    G -= across @ inverse @ across.T
    rhs -= across @ (inverse @ y)
    return G, rhs, float(np.sum((across.T @ across) * inverse)), unit


def free_system(sums: Sequence[BorderedSums]) -> tuple[FloatArray, FloatArray]:
    """Of the intercept's own system: the inverse of sum n C*C (P, P), and sum C* y (P, c). What sums show by less than
    `OPEN` of the most is left open: where L 1 is 0 a penalty's sums are rounding."""
    square = sum(one.n * one.C.T @ one.C for one in sums)
    inverse = np.asarray(np.linalg.pinv(square, rcond=OPEN, hermitian=True))
    return inverse, np.asarray(sum(one.C.T @ one.y for one in sums))


@dataclass(frozen=True, eq=False)
class Penalty:
    """weight <f, M f>, M = L (x) Q (Minh 2016, eq. 67 with gI): L any positive matrix over all rows, labelled or not.
    `sums` are T = [F | 1]^T L [F | 1], (m + 1, m + 1), as moments without targets. Q = views (x) outputs, (V p, V p):
    `outputs` (p, p) couples the outputs and `views` (V, V) the views of a multi-view kernel, both symmetric and
    positive; None for the identity. M acts on f in the scaled targets' units, with all of its constants: y0 and the
    intercept. `shift` is what rounding costs where T was found as a difference and may have negative eigenvalues: that
    many times T's largest diagonal entry is added to its diagonal. The column of ones is left out if its entry is no
    larger."""

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
        return PenaltyTerm(T, views, np.eye(p) if self.outputs is None else self.outputs, f0, self.sums.unit)


class PenaltyTerm(NamedTuple):
    """A penalty of g = f - f0 in the scaled targets' units: T (m + 1, m + 1) times l gI, Q = views (x) outputs, and
    the constant f0 (V p,): as rows of targets 0, seen through a root of Q. `unit` is T's relative rounding error."""

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
