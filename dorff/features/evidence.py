"""The evidence of length-scales: that of a Bayesian linear model on random features, with its gradient."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.features.projected import UnitFeatures
from dorff.kernels.scalar import FloatArray

_BLOCK: Final = 512  # rows whose features are in memory at a time


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence of rows X (n, d), Y (n, P, c) as a function of length-scales and of a noise ratio.

    y = sum_a F_a psi_a^T h_a + b + noise, h ~ N(0, (s2 / ratio) I), noise of variance s2 / w in a row of weight w,
    and b free, of a flat prior (the restricted likelihood of Patterson & Thompson 1971; as `Solution.log_evidence`).
    Each of the c columns of Y is a problem of its own with the same features and s2 of its own, which is put at its
    best value; the P targets of one column share s2. psi is scaled such that the kernel's mean variance at zero is 1:
    `ratio` is noise variance over signal variance. (One s2 for a field, unlike `select.noise_models`: what is compared
    here are length-scales of one kernel, and one noise for all favours none of them; it costs precision.)

    `weights` (n,) are positive. No column of Y may be constant. X is best centred: its phases keep more digits."""

    features: UnitFeatures
    X: FloatArray
    Y: FloatArray
    intercept: bool = True
    weights: FloatArray | None = None

    @property
    def freedom(self) -> int:
        """Contrasts for each column of Y."""
        n, P, _ = self.Y.shape
        return int(n - self.intercept) * int(P)

    @property
    def null(self) -> float:
        """The log evidence of noise alone: what an infinite ratio gives."""
        return self._likelihood(np.sum(self._targets**2, axis=(0, 1)), 0.0)

    def scale(self, lengthscale: FloatArray) -> float:
        """tr k(0) / P of the kernel as drawn, before psi is scaled: ratio * scale is the kernel's own l ridge."""
        return _EvidenceSystem.scale(self.features.psi(lengthscale))

    def __call__(self, lengthscale: FloatArray, ratio: float) -> tuple[float, FloatArray]:
        """The log evidence, and its gradient by (log lengthscale, log ratio); lengthscale (1,) or (d,).

        3 n m^2 for F^T F and the gradient, (m r)^3 for the factor and the inverse; each column adds n m. The gradient
        is the formulas run backwards (reverse mode), so that d adds next to nothing. At the best h the squares change
        with F and psi alone (the envelope theorem): by -2 <residual, dF W + F dW>."""
        psi = self.features.psi(lengthscale)
        mean = self._mean(lengthscale)
        m, (n, P, c) = len(mean), self.Y.shape
        S, seen, left = np.zeros((m, m)), np.zeros((m, P, c)), np.empty((n, P, c))
        for rows, _, centred in self._blocks(lengthscale, mean):
            S += centred.T @ centred
            seen += np.tensordot(centred, self._targets[rows], (0, 0))
        system = _EvidenceSystem.of(psi, S, seen, ratio)
        for rows, _, centred in self._blocks(lengthscale, mean):
            left[rows] = self._targets[rows] - np.tensordot(centred, system.W, (1, 0))
        sizes = np.sum(system.h**2, axis=(0, 1))
        squares = np.sum(left**2, axis=(0, 1)) + ratio * sizes
        left *= self.freedom / squares
        by_S, by_omega, across = c * system.by_S, np.zeros(self.features.units.shape), np.zeros((m, P, c))
        for rows, F, centred in self._blocks(lengthscale, mean):
            by_F = np.tensordot(left[rows], system.W, ((1, 2), (1, 2))) - centred @ by_S
            by_F *= self._roots[rows, None]  # centring it is not needed: its columns are centred already
            across += np.tensordot(centred, left[rows], (0, 0))
            D = m // 2
            by_omega += (by_F[:, D:] * F[:, :D] - by_F[:, :D] * F[:, D:]).T @ self.X[rows]
        by_omega += self.features.omega_gradient(system.by_psi(across, c))
        by_log = -np.sum(by_omega * (self.features.units / lengthscale), axis=0)
        by_ratio = 0.5 * (c * system.freedom - ratio * float(np.sum(self.freedom / squares * sizes)))
        gradient = np.append(by_log if len(lengthscale) > 1 else by_log.sum(), by_ratio)
        return self._likelihood(squares, system.log_det), gradient

    @cached_property
    def _roots(self) -> FloatArray:
        return np.ones(len(self.X)) if self.weights is None else np.sqrt(self.weights)

    @cached_property
    def _targets(self) -> FloatArray:
        """Y times the roots of the weights, less what an intercept explains."""
        mean = np.average(self.Y, axis=0, weights=self.weights) if self.intercept else 0.0
        return np.asarray(self._roots[:, None, None] * (self.Y - mean))

    def _mean(self, lengthscale: FloatArray) -> FloatArray:
        """What an intercept takes from each column of F, (m,)."""
        mean, total = np.zeros(2 * len(self.features.units)), float(np.sum(self._roots**2))
        if self.intercept:
            for rows, F, _ in self._blocks(lengthscale, mean):
                mean += self._roots[rows] ** 2 @ F / total
        return mean

    def _blocks(self, lengthscale: FloatArray, mean: FloatArray) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
        """Runs of rows, their F, and sqrt(w) (F - mean)."""
        for start in range(0, len(self.X), _BLOCK):
            rows = slice(start, start + _BLOCK)
            F = self.features.columns(self.X[rows], lengthscale)
            centred = F - mean
            centred *= self._roots[rows, None]
            yield rows, F, centred

    def _likelihood(self, squares: FloatArray, log_det: float) -> float:
        """Of squares (c,) = y^T V^-1 y and log det V of one column's covariance s2 V, at the best s2 each."""
        freedom, c = self.freedom, len(squares)
        logs = np.sum(np.log(2 * math.pi * squares / freedom) + 1.0)
        free = self.Y.shape[1] * math.log(float(np.sum(self._roots**2))) if self.intercept else 0.0
        return float(-0.5 * (freedom * logs + c * (log_det + free)))


@dataclass(frozen=True, eq=False)
class _EvidenceSystem:
    """(G + ratio I) h = psi (F^T Y), G[ar, bs] = S_ab (psi_a psi_b^T)_rs: h (m, r, c), W (m, P, c) rows psi_a^T h_a.

    `drawn` (D, R, P) is psi before it is scaled and turned, by `turn` (D, R, r) where R > P, into psi (m, r, P).
    `lower` is the Cholesky factor of G + ratio I; half (m, r, m, P) is its inverse K times psi."""

    drawn: FloatArray
    turn: FloatArray | None
    psi: FloatArray
    S: FloatArray
    ratio: float
    lower: FloatArray
    h: FloatArray
    W: FloatArray

    @classmethod
    def of(cls, drawn: FloatArray, S: FloatArray, seen: FloatArray, ratio: float) -> "_EvidenceSystem":
        """With seen (m, P, c) = F^T Y."""
        half, turn = drawn / math.sqrt(cls.scale(drawn)), None
        if half.shape[1] > half.shape[2]:  # an equivalent root of P rows: the evidence sees psi^T psi alone
            turn, half = np.linalg.qr(half)
        psi = np.concatenate([half, half])
        m, r, P = psi.shape
        flat = psi.reshape(m * r, P)
        G = ((flat @ flat.T).reshape(m, r, m, r) * S[:, None, :, None]).reshape(m * r, m * r)
        G[np.diag_indices(m * r)] += ratio
        lower = scipy.linalg.cholesky(G, lower=True, overwrite_a=True, check_finite=False)
        rhs = np.einsum("arp,apc->arc", psi, seen).reshape(m * r, -1)
        h = scipy.linalg.cho_solve((lower, True), rhs, check_finite=False).reshape(m, r, -1)
        return cls(drawn, turn, psi, S, ratio, lower, h, np.einsum("arp,arc->apc", psi, h))

    @staticmethod
    def scale(drawn: FloatArray) -> float:
        """What psi^T psi is divided by: its mean trace over P."""
        return float(np.sum(drawn**2)) / (len(drawn) * int(drawn.shape[2]))

    @property
    def log_det(self) -> float:
        """log det(I + G / ratio)."""
        return float(2 * np.sum(np.log(np.diag(self.lower))) - len(self.lower) * math.log(self.ratio))

    @cached_property
    def _inverse(self) -> FloatArray:
        inverse, _ = lapack.dpotri(self.lower, lower=1)
        return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T)

    @cached_property
    def _half(self) -> FloatArray:
        m, r, _ = self.psi.shape
        return np.asarray(np.einsum("arbs,bsp->arbp", self._inverse.reshape(m, r, m, r), self.psi))

    @property
    def freedom(self) -> float:
        """tr G K."""
        return float(len(self.lower) - self.ratio * np.trace(self._inverse))

    @property
    def by_S(self) -> FloatArray:
        """d log_det = 2 <by_S, F^T dF>, (m, m): K dG with dG = d(S * psi psi^T)."""
        return np.asarray(np.einsum("arbp,arp->ab", self._half, self.psi))

    def by_psi(self, across: FloatArray, c: int) -> FloatArray:
        """The gradient of the log evidence by `drawn`, (D, R, P); across (m, P, c) = F^T residual / s2."""
        D, _, P = self.drawn.shape
        by_psi = np.einsum("arc,apc->arp", self.h, across) - c * np.einsum("arbp,ab->arp", self._half, self.S)
        both = by_psi[:D] + by_psi[D:]
        by_scaled = both if self.turn is None else self.turn @ both
        scale = self.scale(self.drawn)
        along = float(np.sum(by_scaled * self.drawn)) / (scale * D * P)
        return np.asarray((by_scaled - along * self.drawn) / math.sqrt(scale))
