"""The variance of one random feature's kernel, cos<omega, delta> mu~(omega), as a matrix; and bounds of Munkhoeva et
al. (2018): spherical-radial rules of degree (3,3), and kernel ridge regression."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from dorff.bounds.concentration import bennett, positive, total
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


def variance_bound(
    zero: FloatArray, at: FloatArray, twice: FloatArray, mean: FloatArray, spread: FloatArray, cosine: float
) -> float:
    """A bound on D |V[K~_0(delta)]|_2 that always holds, from what Prop. 12 of Brault et al. (2016) uses.

    With c = cos^2<omega, delta>, E c A^2 = E c (A - E A)^2 + E c (A E A + E A A) - E c (E A)^2, and the first term is
    at most V A. Of `zero` K_0(0), `at` K_0(delta), `twice` K_0(2 delta), `mean` E A(omega), `spread` V A(omega), all
    (p, p), and `cosine` = E cos<omega, 2 delta> under the law of omega. What the paper prints leaves the covariance of
    cos^2 and A out, and is false in general.
    """
    squared = 0.5 * (zero + twice)
    cross = squared @ mean + mean @ squared
    return _norm(cross - 0.5 * (1 + cosine) * mean @ mean - at @ at) + _norm(spread)


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2))


def _signature(kernel: BaseKernel, delta: FloatArray) -> FloatArray:
    """K_0(delta), (p, p)."""
    return np.asarray(kernel.gram(delta[None, :], np.zeros((1, len(delta))))[0, 0])


def _squared(kernel: BaseKernel, eta: FloatArray) -> FloatArray:
    """S(eta) = E cos<omega, eta> mu~(omega)^2, (p, p)."""
    if isinstance(kernel, Decomposable):
        root = kernel.root(np.ones((1, len(eta))))[0]
        return np.asarray(_signature(kernel, eta) @ root.T @ root)
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


def quadrature_uniform(d: int, ratio: float, epsilon: float, frequencies: int) -> float:
    """A bound on P(sup over x, z of |k~(x, z) - k(x, z)| >= epsilon) for the Gaussian and whole rules of degree (3,3).

    `ratio` is the inputs' diameter l over the length-scale s; `frequencies` D = n (d + 1), n rules, rounded
    down. It holds for `Quadrature(mixing="haar")`, centre signed. It differs from Munkhoeva et al. (2018), proposition
    3.1, because

    - the vertices of a simplex are a tight frame, sum_j (v_j . u)^2 = (d + 1) / d |u|^2, so that one rule's value is
      between 1 - M and 1, M = (l / s)^2 / 2. With its mean k this bounds its variance by (k - 1 + M) (1 - k), k =
      e^-M; then Hoeffding's or Bennett's inequality for n rules, whichever gives less;
    - for the same reason its slope is at most l / s^2, whatever was drawn: no moment, and no loss of an exponent.
    """
    positive(d=d, ratio=ratio, epsilon=epsilon, frequencies=frequencies)
    M, n = 0.5 * ratio**2, frequencies // (d + 1)
    variance = (math.expm1(-M) + M) * -math.expm1(-M)
    steepest = ratio + min(ratio, math.exp(-0.5))

    def log_bound(share: float) -> float:
        # A net of radius r = share * epsilon / steepest, and (1 - share) epsilon at its points.
        cover = d * math.log1p(2 * ratio * steepest / (share * epsilon))
        left = (1 - share) * epsilon
        return cover + math.log(2) - n * max(2 * (left / M) ** 2, bennett(variance, M, left))

    minimum = minimize_scalar(log_bound, bounds=(1e-3, 0.999), method="bounded")
    return total(float(minimum.fun))


def ridge_deviation(gram: float, cross: float, *, ridge: float, rows: int, rms: float, kernel: float = 1.0) -> float:
    """Munkhoeva et al. (2018), proposition 3.2 (Sutherland & Schneider 2015): what an approximate kernel costs.

    |h~(x) - h(x)| <= rms sqrt(n) / lambda |k~_x - k_x| + kernel rms n / lambda^2 |K~ - K|, for n = `rows`, lambda = n
    `ridge` (`ridge` is DESIGN's, the one of the mean loss), `gram` = |K~ - K|_2, `cross` = |k~_x - k_x|_2, `rms` the
    root of the mean squared target and `kernel` the sup of |K(x, z)|_2. It holds for operator-valued kernels too, with
    spectral norms. K~ must be positive semi-definite: with Quadrature's centre below zero, which it is for half of the
    draws, it is not, and the first term is then over lambda - n |a_0^2|.
    """
    positive(ridge=ridge, rows=rows, rms=rms, kernel=kernel)
    strength = rows * ridge
    return rms * math.sqrt(rows) / strength * cross + kernel * rms * rows / strength**2 * gram


def ridge_epsilon(epsilon: float, *, ridge: float, rms: float, kernel: float = 1.0) -> float:
    """The sup error of the kernel that keeps a ridge regression's error within `epsilon` (targets' units).

    ridge^2 epsilon / (rms (ridge + kernel)), from `ridge_deviation` with |k~_x - k_x| <= sqrt(n) e and
    |K~ - K| <= n e; the paper has kernel = 1. To be given to `features_needed` as its epsilon.
    """
    positive(epsilon=epsilon, ridge=ridge, rms=rms, kernel=kernel)
    return ridge**2 * epsilon / (rms * (ridge + kernel))
