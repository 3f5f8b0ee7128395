"""Fold errors where rows with targets are fewer than features: T is diagonalised once, for all folds, ridges, weights.

In the eigenvectors of T the penalty and the ridge are a diagonal D together, and the labelled rows are a few, Z (n, m)
with n below m. So (D + Z^T Z)^-1 Z^T y = D^-1 Z^T (I + Z D^-1 Z^T)^-1 y (Woodbury): the system of S and T at any
ridge and weight takes n^2 m flops, in place of the 9 m^3 or so of an `eigh` for each weight and fold. Z is a pivoted
Cholesky factor of the moments (Higham 2002, ch. 10.3): as many rows as the fold has, or directions. T may be 0."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.model.weights import OperatorWeights
from dorff.moments import UNIT, FloatArray, Moments, pooled
from dorff.solvers.outputs import SplitProblem
from dorff.solvers.scores import digits_left
from dorff.solvers.select import FoldErrors
from dorff.solvers.setting import Setting, learned_term
from dorff.solvers.system import IntArray, Penalty

FEW: Final = 2  # times the labelled rows are no more than the features
RUNG: Final = "rows"
_DECIMALS: Final = 12  # of their largest that numbers have in common which are one but for rounding
_LEAST: Final = float(np.finfo(np.float64).tiny)


class Spectrum(NamedTuple):
    """T of the features with their `gain` (m,): eigenvalues (m,) and eigenvectors U (m, m), None for I; its column of
    ones, the features' part (m,) in the eigenvectors, and the entry at its end."""

    gain: FloatArray
    values: FloatArray
    vectors: FloatArray | None
    cross: FloatArray
    ones: float

    @classmethod
    def of(cls, penalty: Penalty, weights: OperatorWeights) -> "Spectrum":
        T = penalty.term(weights, 1.0, np.zeros(weights.shape[2])).T
        gain, m = weights.gain, len(weights.gain)
        values, vectors = scipy.linalg.eigh(T[:m, :m] * np.outer(gain, gain))
        return cls(gain, np.maximum(values, 0.0), vectors, (gain * T[:m, m]) @ vectors, float(T[m, m]))

    def turned(self, F: FloatArray) -> FloatArray:
        """Features (n, m) in the eigenvectors."""
        return F * self.gain if self.vectors is None else (F * self.gain) @ self.vectors

    def back(self, u: FloatArray) -> FloatArray:
        """The weights (m, c) of features that u (m, c) are in the eigenvectors."""
        return self.gain[:, None] * (u if self.vectors is None else self.vectors @ u)


class Common:
    """What settings that differ in their weights have in common, found once: of the last T and gain that were asked
    for, and of the very same moments while these are there. List the settings with the weights innermost."""

    def __init__(self) -> None:
        self._rows = WeakKeyDictionary[Moments, FloatArray]()
        self._turned = WeakKeyDictionary[Moments, FloatArray]()
        self._spectrum: tuple[Penalty, FloatArray, Spectrum] | None = None

    def rows(self, moments: Moments) -> FloatArray:
        """Z (n, w) with Z^T Z the moments."""
        if moments not in self._rows:
            self._rows[moments] = _factored(moments.full)
        return self._rows[moments]

    def turned(self, moments: Moments, spectrum: Spectrum) -> FloatArray:
        """The features (n, m) of `rows`, in T's eigenvectors: of the last T that was asked for, or of none."""
        if spectrum.vectors is None:
            return spectrum.turned(self.rows(moments)[:, : moments.m])
        if moments not in self._turned:
            self._turned[moments] = spectrum.turned(self.rows(moments)[:, : moments.m])
        return self._turned[moments]

    def spectrum(self, penalty: Penalty | None, weights: OperatorWeights) -> Spectrum:
        """Of T, whatever its weight."""
        if penalty is None:
            zeros = np.zeros(len(weights.gain))
            return Spectrum(weights.gain, zeros, None, zeros, 0.0)
        if self._spectrum is not None:
            last, gain, spectrum = self._spectrum
            if (last.sums, last.shift) == (penalty.sums, penalty.shift) and np.array_equal(gain, weights.gain):
                return spectrum
        self._rows.clear()
        self._turned.clear()
        self._spectrum = None  # nothing is kept twice
        self._spectrum = penalty, weights.gain, Spectrum.of(penalty, weights)
        return self._spectrum[2]


def few_label_errors(
    folds: Sequence[Moments], setting: Setting, ridges: Sequence[float], common: Common
) -> FoldErrors | None:
    """On each fold the errors of what the others give, added up. None where another way serves better or this one does
    not: for several penalties, many rows, ridge 0, a learned output, or where outputs do not fall apart. Rows have all
    targets, and these are values of f."""
    penalties = [penalty for penalty in setting.penalties if penalty.weight > 0]
    if learned_term(setting.kernel) is not None or len(penalties) > 1 or min(ridges) <= 0:
        return None
    if FEW * sum(fold.n for fold in folds) > setting.m or any(fold.unit > UNIT for fold in folds):
        return None  # the latter: float32's noise would be taken for rows
    errors = FoldErrors.none([RUNG] * len(ridges), folds[0].q)
    for held, fold in enumerate(folds):
        others = [other for number, other in enumerate(folds) if number != held]
        if (training := _Training.of(others, setting, penalties[0] if penalties else None, common)) is None:
            return None
        rows, seen = common.rows(fold), common.turned(fold, training.spectrum)
        for number, ridge in enumerate(ridges):
            u, b, digits = training.solved(ridge)
            squares, size = training.errors(fold, rows, seen, u, b, free_scale=setting.free_scale)
            errors.add(number, squares, digits, size)
    return errors


class _Training(NamedTuple):
    """Rows that all others of a fold are, in T's eigenvectors: Z (n, m), ones (n,) and targets Y (n, q) in the
    directions V (q, q), of which the kernel has `a` (q,) and the penalty `shares` (q,); of 0 are those that only an
    intercept serves. `constant` (q,) is f0 in these, `weight` l gI; `unit`, `penalty_unit` rounding of sums and T."""

    spectrum: Spectrum
    V: FloatArray
    a: FloatArray
    shares: FloatArray
    Z: FloatArray
    ones: FloatArray
    Y: FloatArray
    constant: FloatArray
    scale: FloatArray
    weight: float
    l: float  # noqa: E741 - Minh's and DESIGN's symbol
    intercept: bool
    unit: float
    penalty_unit: float

    @classmethod
    def of(cls, others: Sequence[Moments], setting: Setting, penalty: Penalty | None, common: Common) -> Self | None:
        parts = pooled([[one] for one in others])
        scale, weights = setting.scaling(parts), setting.weights(setting.fixed(parts))
        split = SplitProblem.of(weights, setting.observe, [] if penalty is None else [penalty.outputs], whole=True)
        if split is None or split.directions is None or weights.count > 1:
            return None
        if split.a.min() <= 1e-10 * split.a.max():
            return None  # some direction is almost the intercept's alone
        if penalty is not None:
            penalty.check(weights)
        spectrum, rows = common.spectrum(penalty, weights), np.vstack([common.rows(one) for one in others])
        left = np.setdiff1d(np.arange(len(scale)), split.columns)
        V, a = split.directions[:, [*split.columns, *left]], np.append(split.a, np.zeros(len(left)))
        m, y0, n = setting.m, others[0].y0, float(parts[0].corner[0, 0])
        Y = rows[:, m + 1 :] if setting.intercept else rows[:, m + 1 :] + np.outer(rows[:, m], y0)
        constant = (y0 / scale) @ V * setting.intercept
        Q = None if penalty is None else penalty.outputs
        shares = np.ones(len(a)) if Q is None else np.einsum("pj,pq,qj->j", V, Q, V)
        Z, unit = np.vstack([common.turned(one, spectrum) for one in others]), max(one.unit for one in others)
        weight, penalty_unit = (0.0, 0.0) if penalty is None else (n * penalty.weight, penalty.sums.unit)
        targets = (Y / scale) @ V, constant, scale, weight, n, setting.intercept
        return cls(spectrum, V, a, shares, Z, rows[:, m], *targets, unit, penalty_unit)

    def solved(self, ridge: float) -> tuple[FloatArray, FloatArray, float]:
        """u (m, q), b (q,) and digits: of each direction the function u . features + b."""
        u, b, left = np.zeros((self.Z.shape[1], len(self.a))), np.zeros(len(self.a)), np.inf
        pairs = np.column_stack([self.a / self.a.max(), self.shares / max(self.shares.max(), _LEAST)])
        _, first, group = np.unique(np.round(pairs, _DECIMALS), axis=0, return_index=True, return_inverse=True)
        for number, one in enumerate(first):
            (at,), a, share = np.nonzero(group == number), self.a[one], self.shares[one]
            if a == 0:
                if self.intercept:  # it is all there is
                    end = self.weight * share * self.spectrum.ones
                    b[at] = (self.ones @ self.Y[:, at] - end * self.constant[at]) / (self.ones @ self.ones + end)
                continue
            u[:, at], b[at], digits = self._column(self.l * ridge / a, self.weight * share, at)
            left = min(left, digits)
        return u, b, left

    def _column(self, shift: float, weight: float, at: IntArray) -> tuple[FloatArray, FloatArray, float]:
        """Of directions that have the same (l ridge / a) and l gI times the share of the penalty."""
        t, Z, Y, k = weight * self.spectrum.values, self.Z, self.Y[:, at], self.constant[at]
        D, cross, ones = (t + shift)[:, None], weight * self.spectrum.cross[:, None], self.ones[:, None]
        inside = scipy.linalg.cho_factor(np.eye(len(Z)) + (Z / D[:, 0]) @ Z.T)
        b = np.zeros(len(at))
        if self.intercept:
            # Of the border's row what the features take is subtracted on paper: in numbers almost all of it cancels.
            past = ones - Z @ (cross / D)
            seen = scipy.linalg.cho_solve(inside, past)
            end = weight * self.spectrum.ones - float(np.sum(cross**2 / D))
            b = ((seen.T @ (Y + (ones - past) * k))[0] - end * k) / (float(np.sum(past * seen)) + end)
        z, r = Y - ones * b, -cross * (k + b)
        u = (r + Z.T @ scipy.linalg.cho_solve(inside, z - Z @ (r / D))) / D  # (D + Z^T Z)^-1 (Z^T z + r)
        top = float(np.sum(Z**2)) + float(t.max())
        size = np.sqrt(top * np.sum(u**2, axis=0) / np.maximum(np.sum(Y**2, axis=0), np.finfo(np.float64).tiny))
        condition = (top + shift) / (float(t.min()) + shift)
        unit = max(self.unit, self.penalty_unit * float(t.max()) / max(top, _LEAST))
        return u, b, digits_left(condition, unit, size=float(size.max()))

    def errors(
        self, fold: Moments, rows: FloatArray, seen: FloatArray, u: FloatArray, b: FloatArray, *, free_scale: bool
    ) -> tuple[FloatArray, float]:
        """As in `FoldErrors`: squared errors (q,) on a fold's rows, in T's eigenvectors `seen` (k, m); f's squares."""
        m, y0 = fold.m, fold.y0
        Y = rows[:, m + 1 :] if self.intercept else rows[:, m + 1 :] + np.outer(rows[:, m], y0)
        f = ((seen @ u + np.outer(rows[:, m], b)) @ self.V.T) * self.scale
        left = f - Y
        if free_scale:
            left = left - left.mean(axis=1, keepdims=True)
            f = f + np.outer(rows[:, m], y0) * self.intercept
            f = f - f.mean(axis=1, keepdims=True)
        W = np.vstack([self.spectrum.back(u) @ self.V.T, self.V @ b]) * self.scale
        # `rounding_level` of the fold's moments, from their factor: its norm is that of rows by rows.
        largest = float(np.linalg.norm(rows[:, : m + 1] @ rows[:, : m + 1].T))
        least = fold.unit * (np.sum(rows[:, m + 1 :] ** 2, axis=0) + largest * np.sum(W**2, axis=0))
        return np.asarray(np.maximum(np.sum(left**2, axis=0), least)), float(np.sum(f**2))


def _factored(square: FloatArray) -> FloatArray:
    """Z (rank, w) with Z^T Z the positive matrix, rows of what is below its rounding left out: that of the matrix with
    a unit diagonal, as targets in large units must not hide the features. Writes over `square`."""
    size = np.sqrt(np.diag(square))
    size[size == 0] = 1.0
    square /= size
    square /= size[:, None]
    upper, order, rank, _ = lapack.dpstrf(square.T, lower=0, overwrite_a=1)  # symmetric, and so as LAPACK has it
    Z = np.empty((rank, len(square)))
    Z[:, order - 1] = np.triu(upper[:rank])
    return Z * size
