"""Isotropic scalar kernels: Gaussian, Matern, rational quadratic; and Bessel's K, safe at zero and any order."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.polynomial import Polynomial

from dorff.errors import InputError
from dorff.kernels.scalar import BoolArray, FloatArray, Lengthscale, Measure, positive_number
from dorff.kernels.stretched import GaussianMixture, Isotropic
from dorff.spec.part import LengthscaleSpec, Positive
from dorff.spec.registry import lazily

gammaincinv = lazily("scipy.special", "gammaincinv")
gammaln = lazily("scipy.special", "gammaln")
kve = lazily("scipy.special", "kve")

# From this order on the uniform expansion has all the digits, and the scaled K begins to overflow.
UNIFORM_FROM = 50.0


def log_matern(order: float, z: FloatArray) -> FloatArray:
    """log of 2^(1 - v) / Gamma(v) z^v K_v(z) for an order v > 0 and z >= 0: zero at z = 0, and falling. About 13
    digits of exp(result). Up to order 50 from scipy's scaled K; above it from the uniform expansion for large orders
    (NIST DLMF 10.41.4), divided by its value at zero so that no large terms cancel."""
    if order >= UNIFORM_FROM:
        return _uniform(order, z)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log = (1 - order) * np.log(2.0) - gammaln(order) + order * np.log(z) + log_kve(order, z) - z
        # K overflows near zero where the order is large: two terms of its series (DLMF 10.31.1) are exact there.
        start = -(z**2) / (4 * (order - 1)) if order > 1 else 0.0 * z
    return np.asarray(np.minimum(np.where(np.isfinite(log), log, start), 0.0))


def log_kve(order: float, z: FloatArray) -> FloatArray:
    """log(K_v(z) e^z); +inf where K overflows. Beyond z = 1e8, where scipy soon gives up, DLMF 10.40.2."""
    with np.errstate(divide="ignore"):
        far = 0.5 * np.log(np.pi / 2) - 0.5 * np.log(z) + (4 * order**2 - 1) / (8 * np.maximum(z, 1.0))
        log: FloatArray = np.where(z > 1e8, far, np.log(kve(order, np.minimum(z, 1e8))))
    return log


def _uniform(order: float, z: FloatArray) -> FloatArray:
    root = np.hypot(1.0, z / order)
    excess = (z / order) ** 2 / (1 + root)  # root - 1, without cancellation
    series = sum([u * (-1.0 / order) ** k for k, u in enumerate(_debye_polynomials())], Polynomial([0.0]))
    ratio = np.log(series(1 / root)) - np.log(series(1.0))
    return np.asarray(-order * (excess - np.log1p(excess / 2)) - 0.5 * np.log(root) + ratio)


@cache
def _debye_polynomials() -> tuple[Polynomial, ...]:
    """U_0 to U_8 (DLMF 10.41.9)."""
    p, found = Polynomial([0.0, 1.0]), [Polynomial([1.0])]
    for _ in range(8):
        u = found[-1]
        found.append(0.5 * p**2 * (1 - p**2) * u.deriv() + 0.125 * ((1 - 5 * p**2) * u).integ())
    return tuple(found)


# Keeps the frequencies of a Matern with nu near zero finite, and the densities of a rational quadratic.
_TINY = 1e-280


_NEGLIGIBLE = 45.0  # minus the log of a share that no sum shows
_FURTHEST = 300.0  # of logs of nodes


def _gamma_nodes(shape: float, power: float) -> GaussianMixture:
    """Return a quadrature of G / shape, G ~ Gamma(shape, 1), also accurate for the mean of its power.

    The trapezoidal rule in log G, whose density has Gamma(shape + i y) for a Fourier transform: with the step
    delta its error is about exp(-pi^2 / delta).
    """
    step = min(0.25, 0.5 / math.sqrt(shape))
    width = math.sqrt(2 * _NEGLIGIBLE / shape)
    least = max(-_NEGLIGIBLE / max(shape + min(power, 0.0), 1e-3) - width, -_FURTHEST)
    most = math.log1p((_NEGLIGIBLE + max(power, 0.0)) / shape) + min(width, 1.0)
    u = np.arange(math.floor(least / step), math.ceil(most / step) + 1) * step
    weights = np.exp(shape * (u - np.expm1(u)) - np.max(shape * (u - np.expm1(u))))
    return GaussianMixture(np.exp(u), weights / weights.sum())


class Gaussian(Isotropic):
    """exp(-|x - z|^2 / (2 s^2)), s = `lengthscale` in the inputs' own units: one number, or one per input. Its
    spectrum is N(0, I / s^2) (Rahimi & Recht 2007). Minh's sigma is sqrt(2) s."""

    kind = "gaussian"
    variance = 1.0

    def check_measure(self, measure: Measure) -> None:
        return

    def _values(self, squared: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * squared))

    def _slopes(self, squared: FloatArray) -> tuple[FloatArray, FloatArray]:
        values = self._values(squared)
        return -0.5 * values, 0.25 * squared * values

    def typical_radius(self, d: int) -> float | None:
        return math.sqrt(d)

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-0.5 * (unit.shape[1] * math.log(2 * math.pi) + np.sum(unit**2, axis=1)))


class MaternSpec(LengthscaleSpec):
    """The Matern kernel of smoothness nu."""

    nu: Positive = 1.5


@dataclass(frozen=True, init=False)
class Matern(Isotropic):
    """2^(1 - nu) / Gamma(nu) t^nu K_nu(t), t = sqrt(2 nu) |x - z| / s, s = `lengthscale` (Rasmussen & Williams 4.14).
    nu = 1/2 is exp(-|x - z| / s); nu to infinity is the Gaussian. Its spectrum is the multivariate t with 2 nu degrees
    of freedom: a Gaussian scale mixture of mixing variable nu / Gamma(nu), so that radius^2 = 2 nu chi2_d / chi2_2nu
    in units of 1 / s. The trace measure has radius^2 = 2 nu chi2_(d+2) / chi2_(2nu-2) and needs nu > 1: below, E
    |omega|^2 is infinite."""

    kind = "matern"
    nu: float
    mixed = True

    def __init__(self, lengthscale: Lengthscale, *, nu: float = 1.5) -> None:
        super().__init__(lengthscale)
        object.__setattr__(self, "nu", positive_number("nu", nu))

    @property
    def variance(self) -> float:
        if self.nu <= 1:
            problem = f"a Matern kernel with nu = {self.nu:g} is not twice differentiable"
            moment = "its frequencies have an infinite second moment"
            effect = "there is no trace or defensive measure and no curl-free or divergence-free kernel"
            remedy = "use nu > 1, or a decomposable kernel and the unbounded measure"
            raise InputError(f"{problem}: {moment}, so {effect}; {remedy}")
        return self.nu / (self.nu - 1)

    def _values(self, squared: FloatArray) -> FloatArray:
        t = np.sqrt(2 * self.nu * squared)
        polynomials = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1 / 3)}
        if self.nu in polynomials:
            return np.asarray(np.polynomial.polynomial.polyval(t, polynomials[self.nu]) * np.exp(-t), dtype=np.float64)
        return np.asarray(np.exp(log_matern(self.nu, t)))

    def _slopes(self, squared: FloatArray) -> tuple[FloatArray, FloatArray]:
        """With M_v the kernel's formula at order v: dM_v/dt = -t M_(v-1) / (2 (v - 1)) (DLMF 10.29.4) once, and again.
        The second time the order is v - 2, of either sign: K_(v-2) = K_(2-v)."""
        nu, t = self.nu, np.sqrt(2 * self.nu * squared)
        slope = -nu / (2 * (nu - 1)) * np.exp(log_matern(nu - 1, t))
        with np.errstate(divide="ignore", invalid="ignore"):
            if nu > 2:
                return slope, nu / (8 * (nu - 1) * (nu - 2)) * np.exp(log_matern(nu - 2, t) + 2 * np.log(t))
            log = nu * np.log(t) + log_kve(2 - nu, t) - t - float(gammaln(nu - 1)) + (2 - nu) * math.log(2.0)
        return slope, nu / (4 * (nu - 1)) * np.where(t > 0, np.exp(log), 0.0)

    def gaussian_mixture(self, power: float = 0.0) -> GaussianMixture:
        """As `Isotropic.gaussian_mixture`: the precision is nu / Gamma(nu)."""
        gamma = _gamma_nodes(self.nu, -power)
        return GaussianMixture(1.0 / gamma.precisions, gamma.weights)

    def _mixing(self, uniforms: FloatArray, biased: BoolArray) -> FloatArray:
        return np.asarray(self.nu / np.maximum(gammaincinv(self.nu - biased, uniforms), _TINY))

    def _log_density(self, unit: FloatArray) -> FloatArray:
        d, nu = unit.shape[1], self.nu
        constant = float(gammaln(nu + d / 2) - gammaln(nu)) - 0.5 * d * math.log(2 * math.pi * nu)
        return np.asarray(constant - (nu + d / 2) * np.log1p(np.sum(unit**2, axis=1) / (2 * nu)))


class RationalQuadraticSpec(LengthscaleSpec):
    """(1 + |x - z|^2 / (2 alpha lengthscale^2))^-alpha."""

    alpha: Positive = 1.0


@dataclass(frozen=True, init=False)
class RationalQuadratic(Isotropic):
    """(1 + |x - z|^2 / (2 alpha s^2))^-alpha, s = `lengthscale` (Rasmussen & Williams 4.19). A Gaussian scale mixture:
    omega given t is N(0, t I / s^2), t ~ Gamma(alpha, scale 1 / alpha), so that E radius^2 = d in units of 1 / s. The
    trace measure is chi2_(d+2) * t, t ~ Gamma(alpha + 1, scale 1 / alpha)."""

    kind = "rational_quadratic"
    alpha: float
    mixed = True
    heavy_tailed = True
    variance = 1.0

    def __init__(self, lengthscale: Lengthscale, *, alpha: float = 1.0) -> None:
        super().__init__(lengthscale)
        object.__setattr__(self, "alpha", positive_number("alpha", alpha))

    def gaussian_mixture(self, power: float = 0.0) -> GaussianMixture:
        """As `Isotropic.gaussian_mixture`: the precision is Gamma(alpha) / alpha."""
        return _gamma_nodes(self.alpha, power)

    def infinite_at_zero(self, d: int) -> bool:
        return self.alpha <= d / 2

    def _values(self, squared: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-self.alpha * np.log1p(squared / (2 * self.alpha))))

    def _slopes(self, squared: FloatArray) -> tuple[FloatArray, FloatArray]:
        base = 1 + squared / (2 * self.alpha)
        slope = -0.5 * self._values(squared) / base
        return slope, -0.5 * (1 + 1 / self.alpha) * slope * squared / base

    def _mixing(self, uniforms: FloatArray, biased: BoolArray) -> FloatArray:
        return np.asarray(gammaincinv(self.alpha + biased, uniforms) / self.alpha)

    def _log_density(self, unit: FloatArray) -> FloatArray:
        """As `Spectral._log_density`: 2 alpha^alpha / ((2 pi)^(d/2) Gamma(alpha)) (z / 2 alpha)^v K_v(z). z = sqrt(2
        alpha) |omega| and v = alpha - d/2, from the mixture's integral over t. At omega = 0, where it is infinite for
        alpha <= d/2, it is that of a frequency next to it: a rule may have omega = 0 among its points."""
        d, alpha = unit.shape[1], self.alpha
        v = alpha - d / 2
        z = np.maximum(np.sqrt(2 * alpha * np.sum(unit**2, axis=1)), _TINY)
        constant = alpha * math.log(alpha) - float(gammaln(alpha)) - 0.5 * d * math.log(2 * math.pi)
        constant -= v * math.log(2 * alpha)
        if v == 0:  # K_0 grows like a log
            return np.asarray(constant + math.log(2.0) + log_kve(0.0, z) - z)
        constant += abs(v) * math.log(2.0) + float(gammaln(abs(v)))
        return np.asarray(constant + log_matern(abs(v), z) + (v - abs(v)) * np.log(z))
