"""The isotropic kernels: Gaussian, Matern and rational quadratic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import gammaincinv, gammaln, ndtri, xlogy

from dorff.errors import InputError
from dorff.kernels.bessel import log_kve, log_matern
from dorff.kernels.scalar import FloatArray, Isotropic, Lengthscale, Measure

# Keeps the frequencies of a Matern with nu near zero finite.
_TINY = 1e-280


@final
@dataclass(frozen=True)
class Gaussian(Isotropic):
    """exp(-|x - z|^2 / (2 s^2)), s = `lengthscale` in the inputs' own units: one number, or one per input.

    Its spectrum is N(0, I / s^2) (Rahimi & Recht 2007). Minh's sigma is sqrt(2) s.
    """

    lengthscale: float | tuple[float, ...]

    def __init__(self, lengthscale: Lengthscale) -> None:
        self._set_lengthscale(lengthscale)

    def _values(self, squared: FloatArray) -> FloatArray:
        values: FloatArray = np.exp(-0.5 * squared)
        return values

    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        # |omega|^2 rho_0 has radius chi(d + 2); the half split doubles the variance.
        freedom = d + 2 if measure is Measure.TRACE else d
        widening = math.sqrt(2.0) if measure is Measure.BOUNDED else 1.0
        return widening * np.sqrt(rng.chisquare(freedom, count))

    def second_moment(self, d: int) -> float:
        return float(d)

    def typical_radius(self, d: int) -> float | None:
        return math.sqrt(d)

    def dims(self, d: int) -> int:
        return d

    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        omega: FloatArray = ndtri(uniforms) * self.stretch(uniforms.shape[1])
        return omega

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        d = omega.shape[1]
        scale = self.stretch(d)
        squared = np.sum((omega / scale) ** 2, axis=1)
        constant = -0.5 * d * math.log(2 * math.pi) - float(np.sum(np.log(scale)))
        density: FloatArray
        if measure is Measure.BOUNDED:
            density = constant - 0.5 * d * math.log(2.0) - 0.25 * squared
            return density
        density = constant - 0.5 * squared
        if measure is Measure.TRACE:
            with np.errstate(divide="ignore"):
                density = density + np.log(squared / d)
        return density

    def config(self) -> dict[str, Any]:
        return self._config("gaussian")


@final
@dataclass(frozen=True)
class Matern(Isotropic):
    """2^(1 - nu) / Gamma(nu) t^nu K_nu(t), t = sqrt(2 nu) |x - z| / s, s = `lengthscale` (Rasmussen & Williams 4.14).

    nu = 1/2 is exp(-|x - z| / s); nu to infinity is the Gaussian. Its spectrum is the multivariate t with 2 nu
    degrees of freedom: radius^2 = 2 nu chi2_d / chi2_2nu in units of 1 / s, a Gaussian scale mixture. The trace
    measure has radius^2 = 2 nu chi2_(d+2) / chi2_(2nu-2) and needs nu > 1: below, E |omega|^2 is infinite.
    """

    lengthscale: float | tuple[float, ...]
    nu: float

    def __init__(self, lengthscale: Lengthscale, *, nu: float = 1.5) -> None:
        self._set_lengthscale(lengthscale)
        object.__setattr__(self, "nu", positive_number("nu", nu))

    def _values(self, squared: FloatArray) -> FloatArray:
        t = np.sqrt(2 * self.nu * squared)
        polynomials = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1 / 3)}
        if self.nu in polynomials:
            return np.asarray(np.polynomial.polynomial.polyval(t, polynomials[self.nu]) * np.exp(-t), dtype=np.float64)
        values: FloatArray = np.exp(log_matern(self.nu, t))
        return values

    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        _not_bounded(self, measure)
        extra = 2 if measure is Measure.TRACE else 0
        if extra:
            self.second_moment(d)
        above, below = rng.chisquare(d + extra, count), rng.chisquare(2 * self.nu - extra, count)
        return np.sqrt(2 * self.nu * above / np.maximum(below, _TINY))

    def second_moment(self, d: int) -> float:
        if self.nu <= 1:
            raise InputError(
                f"Matern with nu = {self.nu:g} has no trace measure: its frequencies have an infinite second moment; "
                "use nu > 1 or the unbounded measure"
            )
        return d * self.nu / (self.nu - 1)

    def dims(self, d: int) -> int:
        return d + 1

    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        """The first uniform is the mixture's, where a quasi-random point set is at its best; the rest are normal."""
        mixing = self.nu / np.maximum(gammaincinv(self.nu, uniforms[:, :1]), _TINY)
        omega: FloatArray = ndtri(uniforms[:, 1:]) * np.sqrt(mixing) * self.stretch(uniforms.shape[1] - 1)
        return omega

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        _not_bounded(self, measure)
        d, nu = omega.shape[1], self.nu
        scale = self.stretch(d)
        squared = np.sum((omega / scale) ** 2, axis=1)
        constant = float(gammaln(nu + d / 2) - gammaln(nu)) - 0.5 * d * math.log(2 * math.pi * nu)
        density: FloatArray = constant - np.sum(np.log(scale)) - (nu + d / 2) * np.log1p(squared / (2 * nu))
        if measure is Measure.TRACE:
            with np.errstate(divide="ignore"):
                density = density + np.log(squared / self.second_moment(d))
        return density

    def config(self) -> dict[str, Any]:
        return self._config("matern", nu=self.nu)


@final
@dataclass(frozen=True)
class RationalQuadratic(Isotropic):
    """(1 + |x - z|^2 / (2 alpha s^2))^-alpha, s = `lengthscale` (Rasmussen & Williams 4.19).

    A Gaussian scale mixture: omega given t is N(0, t I / s^2), t ~ Gamma(alpha, scale 1 / alpha), so that
    E radius^2 = d in units of 1 / s. |omega|^2 brings a factor t d with it: the trace measure is
    chi2_(d+2) * t, t ~ Gamma(alpha + 1, scale 1 / alpha).
    """

    lengthscale: float | tuple[float, ...]
    alpha: float

    def __init__(self, lengthscale: Lengthscale, *, alpha: float = 1.0) -> None:
        self._set_lengthscale(lengthscale)
        object.__setattr__(self, "alpha", positive_number("alpha", alpha))

    def _values(self, squared: FloatArray) -> FloatArray:
        values: FloatArray = np.exp(-self.alpha * np.log1p(squared / (2 * self.alpha)))
        return values

    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        _not_bounded(self, measure)
        extra = 1 if measure is Measure.TRACE else 0
        mixing = rng.gamma(self.alpha + extra, 1 / self.alpha, count)
        return np.sqrt(mixing * rng.chisquare(d + 2 * extra, count))

    def second_moment(self, d: int) -> float:
        return float(d)

    def dims(self, d: int) -> int:
        return d + 1

    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        """The first uniform is the mixture's, where a quasi-random point set is at its best; the rest are normal."""
        mixing = gammaincinv(self.alpha, uniforms[:, :1]) / self.alpha
        omega: FloatArray = ndtri(uniforms[:, 1:]) * np.sqrt(mixing) * self.stretch(uniforms.shape[1] - 1)
        return omega

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """As `Spectral.log_density`: 2 alpha^alpha / ((2 pi)^(d/2) Gamma(alpha)) (z / 2 alpha)^v K_v(z).

        z = sqrt(2 alpha) |s omega| and v = alpha - d/2, from the mixture's integral over t. At omega = 0 the
        density is infinite for alpha <= d/2, and so is the log; under TRACE it is 0, finite or infinite there.
        """
        _not_bounded(self, measure)
        d, alpha = omega.shape[1], self.alpha
        scale, v = self.stretch(d), self.alpha - d / 2
        z = np.sqrt(2 * alpha * np.sum((omega / scale) ** 2, axis=1))
        constant = alpha * math.log(alpha) - float(gammaln(alpha)) - 0.5 * d * math.log(2 * math.pi)
        constant -= float(np.sum(np.log(scale))) + v * math.log(2 * alpha)
        power = v - abs(v)  # of z, beside z^|v| K_|v|
        if measure is Measure.TRACE:
            power, constant = power + 2, constant - math.log(2 * alpha * d)
        with np.errstate(divide="ignore", invalid="ignore"):
            if v == 0:  # z^power K_0(z), and K_0 grows like a log
                density = constant + math.log(2.0) + log_kve(0.0, z) - z + xlogy(power, z)
                return np.where(z > 0, density, -math.inf if power else math.inf)
            constant += abs(v) * math.log(2.0) + float(gammaln(abs(v)))
            return np.asarray(constant + log_matern(abs(v), z) + xlogy(power, z))

    def config(self) -> dict[str, Any]:
        return self._config("rational_quadratic", alpha=self.alpha)


def positive_number(name: str, value: float) -> float:
    """`value` as a float, or an InputError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise InputError(f"{name} must be a positive finite number, not {value!r}")
    return float(value)


def _not_bounded(kernel: Isotropic, measure: Measure) -> None:
    if measure is Measure.BOUNDED:
        raise InputError(
            f"{type(kernel).__name__} has no bounded measure, which is the Gaussian's alone; use unbounded or trace"
        )
