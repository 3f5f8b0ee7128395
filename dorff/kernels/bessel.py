"""The modified Bessel function K in the form that Matern kernels have, safe at zero and at any order."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.polynomial import Polynomial
from scipy.special import gammaln, kve

from dorff.kernels.scalar import FloatArray

# From this order on the uniform expansion has all the digits, and the scaled K begins to overflow.
UNIFORM_FROM = 50.0


def log_matern(order: float, z: FloatArray) -> FloatArray:
    """log of 2^(1 - v) / Gamma(v) z^v K_v(z) for an order v > 0 and z >= 0: zero at z = 0, and falling.

    About 13 digits of exp(result). Up to order 50 from scipy's scaled K; above it from the uniform expansion
    for large orders (NIST DLMF 10.41.4), divided by its value at zero so that no large terms cancel.
    """
    if order >= UNIFORM_FROM:
        return _uniform(order, z)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log = (1 - order) * np.log(2.0) - gammaln(order) + order * np.log(z) + log_kve(order, z) - z
        # K overflows near zero where the order is large: two terms of its series (DLMF 10.31.1) are exact there.
        start = -(z**2) / (4 * (order - 1)) if order > 1 else 0.0 * z
    found: FloatArray = np.minimum(np.where(np.isfinite(log), log, start), 0.0)
    return found


def log_kve(order: float, z: FloatArray) -> FloatArray:
    """log(K_v(z) e^z); +inf where K overflows. Beyond z = 1e8, where scipy soon gives up, DLMF 10.40.2."""
    with np.errstate(divide="ignore"):
        far = 0.5 * np.log(np.pi / 2) - 0.5 * np.log(z) + (4 * order**2 - 1) / (8 * np.maximum(z, 1.0))
        log: FloatArray = np.where(z > 1e8, far, np.log(kve(order, np.minimum(z, 1e8))))
    return log


def _uniform(order: float, z: FloatArray) -> FloatArray:
    root = np.hypot(1.0, z / order)
    excess = (z / order) ** 2 / (1 + root)  # root - 1, without cancellation
    scaled = [u * (-1.0 / order) ** k for k, u in enumerate(_debye_polynomials())]
    series = sum(scaled, Polynomial([0.0]))
    ratio = np.log(series(1 / root)) - np.log(series(1.0))
    log: FloatArray = -order * (excess - np.log1p(excess / 2)) - 0.5 * np.log(root) + ratio
    return log


@cache
def _debye_polynomials() -> tuple[Polynomial, ...]:
    """U_0 to U_8 (DLMF 10.41.9)."""
    p, found = Polynomial([0.0, 1.0]), [Polynomial([1.0])]
    for _ in range(8):
        u = found[-1]
        found.append(0.5 * p**2 * (1 - p**2) * u.deriv() + 0.125 * ((1 - 5 * p**2) * u).integ())
    return tuple(found)
