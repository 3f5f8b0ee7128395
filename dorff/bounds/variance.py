"""The variance of one random feature's kernel, cos<omega, delta> mu~(omega), as a matrix."""

from __future__ import annotations

import math

import numpy as np

from dorff.errors import InputError
from dorff.kernels import BaseKernel, CurlFree, Decomposable, DivergenceFree, Gaussian, Measure
from dorff.kernels.scalar import FloatArray


def variance(kernel: BaseKernel, delta: FloatArray) -> FloatArray:
    """D V[K~_0(delta)], (p, p), for D independent frequencies of the kernel's measure, at delta = x - z (d,).

    V[X] = E (X - E X)^2, in the kernel's units squared (Brault et al. 2016, section 4). With S(eta) =
    E cos<omega, eta> mu~(omega)^2 it is (S(0) + S(2 delta)) / 2 - K_0(delta)^2, exactly:

    - decomposable: A^2 ((1 + k0(2 delta)) / 2 - k0(delta)^2). The paper prints |A| for |A|^2 and + k0^2;
    - curl-free, divergence-free, isotropic Gaussian: S is a fourth derivative of k0 under UNBOUNDED and bounded
      measures (at delta = 0, V = (d + 1) / s^4 and 3 (d - 1) / s^4; the paper prints d (4 d - 3) / s^4 for the
      latter), and (d / s^2) K_0 under TRACE, where mu~ is a multiple of a projection.

    Under DEFENSIVE, S = ((d + 1) / s^2) K_0 is put in, which makes the result an upper bound. `kernel` must have its
    output matrix fixed. InputError for another kernel.
    """
    delta = np.asarray(delta, dtype=np.float64)
    origin = np.zeros_like(delta)
    exact = _signature(kernel, delta)
    return 0.5 * (_squared(kernel, origin) + _squared(kernel, 2 * delta)) - exact @ exact


def variance_printed(
    zero: FloatArray, at: FloatArray, twice: FloatArray, mean: FloatArray, spread: FloatArray
) -> float:
    """Prop. 12 of Brault et al. (2016) for D = 1, as printed: false in general, see `variance_bound`.

    (|(K_0(2 delta) + K_0(0)) E A - 2 K_0(delta)^2| + 2 |V A|) / 2, spectral norms, of `zero` K_0(0), `at`
    K_0(delta), `twice` K_0(2 delta), `mean` E A(omega) and `spread` V A(omega), all (p, p). It leaves the covariance
    of cos^2 and A out, which for the curl-free and divergence-free Gaussian happens to help.
    """
    return 0.5 * _norm((twice + zero) @ mean - 2 * at @ at) + _norm(spread)


def variance_bound(
    zero: FloatArray, at: FloatArray, twice: FloatArray, mean: FloatArray, spread: FloatArray, cosine: float
) -> float:
    """A bound on D |V[K~_0(delta)]|_2 that always holds, from what Prop. 12 of Brault et al. (2016) uses.

    With c = cos^2<omega, delta>, E c A^2 = E c (A - E A)^2 + E c (A E A + E A A) - E c (E A)^2, and the first term is
    at most V A. Arguments as in `variance_printed`, and `cosine` = E cos<omega, 2 delta> under the law of omega.
    """
    squared = 0.5 * (zero + twice)
    cross = squared @ mean + mean @ squared
    return _norm(cross - 0.5 * (1 + cosine) * mean @ mean - at @ at) + _norm(spread)


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2))


def _signature(kernel: BaseKernel, delta: FloatArray) -> FloatArray:
    """K_0(delta), (p, p)."""
    values: FloatArray = kernel.gram(delta[None, :], np.zeros((1, len(delta))))[0, 0]
    return values


def _squared(kernel: BaseKernel, eta: FloatArray) -> FloatArray:
    """S(eta) = E cos<omega, eta> mu~(omega)^2, (p, p)."""
    if isinstance(kernel, Decomposable):
        root = kernel.root(np.ones((1, len(eta))))[0]
        squared: FloatArray = _signature(kernel, eta) @ root.T @ root
        return squared
    d, a = len(eta), inverse_square(kernel)
    split = split_of(kernel)
    if split is None:
        # mu~^2 is a multiple of mu~ (TRACE), or below it (DEFENSIVE).
        return a * (d if measure_of(kernel) == Measure.TRACE else d + 1) * _signature(kernel, eta)
    a /= 1 + split
    u = a * eta
    square = float(u @ u)
    # E cos<omega, eta> |omega|^2 omega omega^T for omega ~ N(0, a I), by omega -> omega + i u.
    fourth = a * (a * (d + 2) - square) * np.eye(d) + (square - a * (d + 4)) * np.outer(u, u)
    fourth *= math.exp(-0.5 * float(u @ eta)) * (1 - split**2) ** (-d / 2)
    return fourth if isinstance(kernel, CurlFree) else np.trace(fourth) * np.eye(d) - fourth


def inverse_square(kernel: BaseKernel) -> float:
    """1 / lengthscale^2 of a curl-free or divergence-free kernel of an isotropic Gaussian, else InputError."""
    scalar = kernel.scalar
    fields = CurlFree | DivergenceFree
    if isinstance(kernel, fields) and isinstance(scalar, Gaussian) and isinstance(scalar.lengthscale, float):
        return scalar.lengthscale**-2
    raise InputError(
        f"kernel: moments are known for decomposable kernels, and for curl-free and divergence-free ones of a "
        f"Gaussian with one lengthscale, not for {kernel!r}; give Constants your own numbers"
    )


def measure_of(kernel: BaseKernel) -> Measure:
    """The measure of a curl-free or divergence-free kernel, TRACE where it leaves it open."""
    return Measure.TRACE if kernel.measure is None else kernel.measure


def split_of(kernel: BaseKernel) -> float | None:
    """The share of the Gaussian's exponent that is in the weight: 0 for UNBOUNDED; None for the tilted measures."""
    measure = measure_of(kernel)
    return 0.0 if measure == Measure.UNBOUNDED else measure.split
