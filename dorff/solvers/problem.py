"""From moments and operator weights to one linear system, the same for every kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dorff.moments import FloatArray, Moments


@final
@dataclass(frozen=True, eq=False)
class Centred:
    """Moments with the free intercept eliminated, exactly, and the targets divided by `scale`.

    S (m, m), R (m, q), E (q, q) are sums about the means; l the rows' summed weight. The column of ones has
    psi = I and no ridge, so its block elimination is a rank-one correction of S whatever the other psi are.
    Without intercept the sums are taken back to y itself (y0 undone).
    """

    S: FloatArray
    R: FloatArray
    E: FloatArray
    l: float  # noqa: E741 - Minh's and DESIGN's symbol
    feature_mean: FloatArray
    target_mean: FloatArray
    scale: FloatArray
    intercept: bool

    @classmethod
    def of(cls, moments: Moments, *, intercept: bool = True, scale: FloatArray | None = None) -> Centred:
        """`scale` (q,) divides the targets; None leaves them as they are."""
        m, y0, full = moments.m, moments.y0, moments.full
        rows = float(full[m, m])
        s, y = full[:m, m], full[m, m + 1 :]
        ts = np.ones(moments.q) if scale is None else scale
        if intercept:
            S = full[:m, :m] - np.outer(s, s / rows)
            R = full[:m, m + 1 :] - np.outer(s, y / rows)
            E = full[m + 1 :, m + 1 :] - np.outer(y, y / rows)
            means = s / rows, y0 + y / rows
        else:
            S = full[:m, :m].copy()
            R = full[:m, m + 1 :] + np.outer(s, y0)
            E = full[m + 1 :, m + 1 :] + np.outer(y0, y) + np.outer(y, y0) + rows * np.outer(y0, y0)
            means = np.zeros(m), np.zeros(moments.q)
        return cls(S, R / ts, E / np.outer(ts, ts), rows, *means, ts, intercept)

    def gcv(self, explained: float, freedom: float) -> float:
        """(RSS / N) / (1 - df / N)^2 with N = l q observations (Golub, Heath & Wahba 1979), inf where df >= N.

        RSS is what `explained` leaves of the centred squares; the intercept's q degrees are added to `freedom`.
        """
        observations, q = self.l * len(self.E), len(self.E)
        residual = max(float(np.trace(self.E)) - explained, 0.0)
        left = 1.0 - (freedom + (q if self.intercept else 0)) / observations
        return residual / observations / left**2 if left > 0 else np.inf

    def bias(self, W: FloatArray) -> FloatArray:
        """The intercept (q,), in the targets' units, that goes with weights W (m, q) in the scaled targets'."""
        return self.target_mean - self.scale * (self.feature_mean @ W)


def target_covariance(moments: Moments) -> FloatArray:
    """Covariance (q, q) of the targets about their mean, in their own units."""
    corner = moments.corner
    mean = corner[0, 1:] / moments.n
    return corner[1:, 1:] / moments.n - np.outer(mean, mean)


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """(G (x) diag(a) + l ridge I) x = rhs, with G (k, k), a (c,), rhs (k, c); `rotation` turns x into h.

    Decomposable kernels (psi the same for every feature) give G = S and a the eigenvalues of psi psi^T: the
    Stein equation of Brault (2016) 5.1, with N ridge for the paper's lambda. Others give the block system
    G[(a,i),(b,j)] = S_ab psi_a psi_b^T (Minh 2016, eq. 74), a = [1].
    """

    G: FloatArray
    a: FloatArray
    rhs: FloatArray
    rotation: FloatArray | None
    psi: FloatArray
    centred: Centred

    @classmethod
    def of(cls, centred: Centred, psi: FloatArray) -> Problem:
        """For operator weights psi (m, r, q)."""
        m, r, _ = psi.shape
        if np.all(psi == psi[0]):
            a, rotation = np.linalg.eigh(psi[0] @ psi[0].T)
            return cls(centred.S, a, centred.R @ psi[0].T @ rotation, rotation, psi, centred)
        G = np.empty((m, r, m, r))
        for i in range(r):
            for j in range(r):
                np.multiply(centred.S, psi[:, i] @ psi[:, j].T, out=G[:, i, :, j])
        rhs = np.einsum("arp,ap->ar", psi, centred.R).reshape(m * r, 1)
        return cls(G.reshape(m * r, m * r), np.ones(1), rhs, None, psi, centred)

    def coefficients(self, x: FloatArray) -> FloatArray:
        """h (m, r) from the solution x (k, c)."""
        return x @ self.rotation.T if self.rotation is not None else x.reshape(self.psi.shape[:2])


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients h (m, r) for one ridge, and how they were found.

    `condition` is the (estimated) condition number of the system solved, `rung` the method that solved it,
    `gcv` the generalised cross-validation score where the method gives it. `ill_conditioned` says that the
    condition number leaves fewer than three digits.
    """

    h: FloatArray
    ridge: float
    condition: float
    rung: str
    gcv: float | None = None

    @property
    def ill_conditioned(self) -> bool:
        return not self.condition < 1e13

    def combined(self, psi: FloatArray) -> FloatArray:
        """W (m, q) with f(x) = F(x) W + b, in the scaled targets' units: rows psi_a^T h_a."""
        weights: FloatArray = np.einsum("arp,ar->ap", psi, self.h)
        return weights
