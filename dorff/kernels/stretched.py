"""Shift-invariant kernels of inputs in length-scales, products (Laplacian, Cauchy), and their measures."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.scalar import BoolArray, FloatArray, Lengthscale, Measure, Spectral
from dorff.spec.registry import Config, lazily

cdist = lazily("scipy.spatial.distance", "cdist")
gammainccinv = lazily("scipy.special", "gammainccinv")
ndtri = lazily("scipy.special", "ndtri")


@dataclass(frozen=True, init=False)
class Stretched(Spectral):
    """A kernel of inputs in length-scales: omega = stretch * sqrt(mixing) * unit. The unit coordinates are
    independent, of one symmetric law. Tilted measures need finite second moments."""

    lengthscale: float | tuple[float, ...]
    kind: ClassVar[str]  #: its word in JOB.yaml
    mixed: ClassVar[bool] = False  #: whether `mixing` is random
    heavy_tailed: ClassVar[bool] = False  #: whether the kernel decays like a power of the distance

    def __init__(self, lengthscale: Lengthscale) -> None:
        object.__setattr__(self, "lengthscale", lengthscales(lengthscale))

    def config(self) -> Config:
        value = self.lengthscale if isinstance(self.lengthscale, float) else list(self.lengthscale)
        return {"type": self.kind, **vars(self), "lengthscale": value}

    @property
    @abstractmethod
    def variance(self) -> float:
        """E omega_j^2 under rho_0 where the length-scale is 1; InputError that says why where it is infinite."""

    @abstractmethod
    def _log_density(self, unit: FloatArray) -> FloatArray:
        """Log (D,) of rho_0 at omega (D, d), where the length-scale is 1."""

    @abstractmethod
    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        """Quantiles of a unit coordinate, of any shape; where `biased`, of its density times its square."""

    def _mixing(self, uniforms: FloatArray, biased: BoolArray) -> FloatArray:
        """Quantiles (D,) of the mixing variable; where `biased` (D,), of its density times itself."""
        return np.ones_like(uniforms)

    @abstractmethod
    def density_radius(self, unit: FloatArray) -> FloatArray:
        """Return the distances from 0 along an axis at which the density is what it is at given frequencies.

        The density of rho_0 decreases with this radius, so that of all sets of frequencies of the same weight
        {omega: density_radius(omega) <= R} has the least volume.

        Parameters
        ----------
        unit : array of shape (n, d)
            Frequencies in units of 1 / length-scale.

        Returns
        -------
        array of shape (n,)
        """

    def check_derivatives(self) -> None:
        _ = self.variance

    def infinite_at_zero(self, d: int) -> bool:
        """Whether the density in R^d is infinite at omega = 0: the kernel is not integrable."""
        return False

    def check_measure(self, measure: Measure) -> None:
        if measure.split is not None:
            raise InputError(f"{type(self).__name__} has no bounded measure, the Gaussian's alone; use unbounded")
        if measure.tilted:
            _ = self.variance

    @final
    def second_moments(self, d: int) -> FloatArray:
        return self.variance * self.stretch(d) ** 2

    @final
    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """As `Spectral.log_density`; a trace measure's density is zero at omega = 0."""
        self.check_measure(measure)
        d = omega.shape[1]
        scale = self.stretch(d) * measure.widening
        density = self._log_density(omega / scale) - float(np.sum(np.log(scale)))
        if measure.tilted:
            constant, factors = self._tilt(measure, d)
            weight = constant + omega**2 @ factors
            with np.errstate(divide="ignore"):
                density = np.where(weight > 0, density, 0.0) + np.log(weight)
        return density

    @final
    def dims(self, d: int, measure: Measure) -> int:
        return d + (self.mixed or measure.tilted)

    @final
    def quantiles(self, uniforms: FloatArray, d: int, measure: Measure) -> FloatArray:
        """As `Spectral.quantiles`. Of d + 1 uniforms the first, best of quasi-random points, is the mixtures'."""
        self.check_measure(measure)
        first, rest, rows = uniforms[:, 0], uniforms[:, -d:], np.arange(len(uniforms))
        unit, biased = self._coordinates(rest, biased=False), np.zeros(len(uniforms), dtype=np.bool_)
        if measure.tilted:
            # A mixture over j of omega_j^2 rho_0 and, last, rho_0; the rest of the uniform that chooses is one again.
            constant, factors = self._tilt(measure, d)
            edges = np.cumsum([0.0, *(factors * self.second_moments(d)), constant])
            edges /= edges[-1]
            along = np.searchsorted(edges[1:-1], first, side="right")
            first = np.clip((first - edges[along]) / (edges[along + 1] - edges[along]), 2.0**-53, 1 - 2.0**-53)
            biased = along < d
            rows, along = rows[biased], along[biased]
            unit[rows, along] = self._coordinates(rest[rows, along], biased=True)
        unit *= np.sqrt(self._mixing(first, biased))[:, None]
        return unit * (self.stretch(d) * measure.widening)

    def _tilt(self, measure: Measure, d: int) -> tuple[float, FloatArray]:
        """c, and f (d,), such that the tilted measure is (c + sum_j f_j omega_j^2) rho_0."""
        if measure == Measure.TRACE:
            return 0.0, np.full(d, 1.0 / self.second_moments(d).sum())
        total = 1.0 + d * self.variance
        return 1.0 / total, self.stretch(d) ** -2 / total


def lengthscales(value: Lengthscale) -> float | tuple[float, ...]:
    """A positive number, or one for each input; InputError for anything else."""
    try:
        values = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim > 1 or values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 1e-300):
        raise InputError(f"lengthscale must be a positive number or a list, one per input, not {value!r}")
    return float(values) if values.ndim == 0 else tuple(float(v) for v in values)


class GaussianMixture(NamedTuple):
    """A quadrature of an isotropic kernel: k(r) is about the sum over i of weights_i exp(-precisions_i r^2 / 2)."""

    precisions: FloatArray
    weights: FloatArray


class Isotropic(Stretched):
    """A kernel of the distance alone (in length-scales), and a mixture of Gaussians: unit coordinates are normal.
    omega = radius * uniform direction * stretch for a rotation-invariant measure: not TRACE of many length-scales."""

    def gaussian_mixture(self, power: float = 0.0) -> GaussianMixture:
        """Return the kernel as a mixture of Gaussians, for a length-scale of 1.

        Parameters
        ----------
        power : float
            The power of the precision whose mean the quadrature must be accurate for, besides the power 0.
        """
        return GaussianMixture(np.ones(1), np.ones(1))

    @final
    def density_radius(self, unit: FloatArray) -> FloatArray:
        return np.asarray(np.linalg.norm(unit, axis=1))

    def rotation_invariant(self, measure: Measure) -> bool:
        return measure != Measure.TRACE or len(set(np.ravel(self.lengthscale))) == 1

    @final
    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        """Radii (count,) of frequencies under a measure, in length-scales: before `stretch` turns them into omega.
        |omega|^2 rho_0 makes chi(d) of a normal vector's length chi(d + 2)."""
        self.check_measure(measure)
        biased = np.full(count, measure == Measure.TRACE)
        if measure == Measure.DEFENSIVE:
            biased = rng.random(count) > self._tilt(measure, d)[0]
        squared = rng.chisquare(d + 2 * biased)
        if self.mixed:
            squared *= self._mixing(rng.random(count), biased)
        return measure.widening * np.sqrt(squared)

    def typical_radius(self, d: int) -> float | None:
        """The one radius that SORF and ROM may use for all rows; None where radii must stay random."""
        return None

    @abstractmethod
    def _values(self, squared: FloatArray) -> FloatArray:
        """The kernel g(q) at squared distances q in length-scales."""

    @abstractmethod
    def _slopes(self, squared: FloatArray) -> tuple[FloatArray, FloatArray]:
        """g'(q) and q g''(q), which is 0 at q = 0, at squared distances q in length-scales."""

    @final
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        # Differences, not |x|^2 + |z|^2 - 2 x.z: near zero a Matern sees the root of the distance's rounding.
        scale = self.stretch(X.shape[1])
        return self._values(cdist(X * scale, Z * scale, "sqeuclidean"))

    @final
    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """As `Spectral.hessian`: 2 g' S^2 + 4 g'' (S^2 delta) (S^2 delta)^T, S the diagonal of `stretch`."""
        _ = self.variance
        d = X.shape[1]
        scale = self.stretch(d)
        delta = (X[:, None, :] - Z[None, :, :]) * scale
        squared = np.sum(delta**2, axis=-1)
        slope, bend = self._slopes(squared)
        delta *= scale / np.sqrt(np.where(squared > 0, squared, 1.0))[..., None]
        values = (4 * bend)[..., None, None] * delta[..., :, None] * delta[..., None, :]
        values[..., range(d), range(d)] += 2 * slope[..., None] * scale**2
        return values

    @property
    def differentiable(self) -> bool:
        """Whether the kernel has second derivatives, and so `gradient`."""
        try:
            self.check_derivatives()
        except InputError:
            return False
        return True

    @final
    def gradient(self, X: FloatArray, Z: FloatArray, W: FloatArray) -> FloatArray:
        """Return the gradients (n, p, d) at X (n, d) of sum_a k0(x, z_a) W_a, for Z (m, d) and W (m, p).

        With q the squared distance in length-scales, dk0/dx = 2 g'(q) S^2 (x - z), S the diagonal of `stretch`.
        """
        scale = self.stretch(X.shape[1])
        slope, _ = self._slopes(cdist(X * scale, Z * scale, "sqeuclidean"))
        gradients = (slope @ W)[:, :, None] * X[:, None, :]
        for axis, column in enumerate(Z.T):
            gradients[:, :, axis] -= slope @ (column[:, None] * W)
        return np.asarray(2.0 * scale**2 * gradients)

    @final
    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        if not biased:
            return np.asarray(ndtri(uniforms))
        tail = 2 * np.minimum(uniforms, 1 - uniforms)  # chi(3), with a sign
        return np.asarray(np.sign(uniforms - 0.5) * np.sqrt(2 * gammainccinv(1.5, tail)))

    @final
    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        if not self.rotation_invariant(measure):
            return super().draw(rng, count, d, measure)
        radii = self.radii(rng, count, d, measure)
        omega = rng.standard_normal((count, d))
        omega *= (radii / np.linalg.norm(omega, axis=1))[:, None]
        omega *= self.stretch(d)
        return omega


class Product(Stretched):
    """A product over the inputs of one-dimensional kernels: the coordinates of omega are independent under rho_0."""

    @abstractmethod
    def periodic_factor(self, lags: FloatArray, period: float) -> FloatArray:
        """Return sum_n k_1(lag + n period) of the one-dimensional kernel k_1, for a length-scale of 1.

        Parameters
        ----------
        lags : array of shape (n,)
            Differences of inputs, no larger than the period.
        period : float
            Positive; infinite for k_1 itself.
        """


_BLOCK = 2**15  # numbers at a time, so that they stay in cache
_ROUGH = (
    "a Laplacian kernel is not differentiable at zero: its frequencies have an infinite second moment, so there is no "
    "trace or defensive measure and no curl-free or divergence-free kernel; use a Matern kernel with nu > 1, or a "
    "decomposable kernel and the unbounded measure"
)


class Laplacian(Product):
    """exp(-|x - z|_1 / s), s = `lengthscale`; scikit-learn's gamma is 1 / s. Its frequencies are independent Cauchy
    variables of scale 1 / s (Rahimi & Recht 2007): no moments at all."""

    kind = "laplacian"

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        scale = self.stretch(X.shape[1])
        return np.asarray(np.exp(-cdist(X * scale, Z * scale, "cityblock")))

    @property
    def variance(self) -> float:
        raise InputError(_ROUGH)

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        raise InputError(_ROUGH)

    def periodic_factor(self, lags: FloatArray, period: float) -> FloatArray:
        """As `Product.periodic_factor`: two geometric series."""
        distance = np.abs(lags)
        return np.asarray((np.exp(-distance) + np.exp(distance - period)) / -np.expm1(-period))

    def density_radius(self, unit: FloatArray) -> FloatArray:
        """As `Stretched.density_radius`: the density is 1 / (pi^d prod_j (1 + omega_j^2))."""
        return np.asarray(np.sqrt(np.expm1(np.log1p(unit**2).sum(axis=1))))

    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        # -cot(pi u) is tan(pi (u - 1/2)) with the digits of a small u kept.
        return np.asarray(-1 / np.tan(math.pi * uniforms))

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-np.sum(math.log(math.pi) + np.log1p(unit**2), axis=1))


class Cauchy(Product):
    """prod_i 1 / (1 + ((x_i - z_i) / s)^2), s = `lengthscale`. Its frequencies are independent Laplace variables of
    scale 1 / s (Rahimi & Recht 2007)."""

    kind = "cauchy"
    variance = 2.0
    heavy_tailed = True

    def periodic_factor(self, lags: FloatArray, period: float) -> FloatArray:
        """As `Product.periodic_factor`: (pi / P) sinh(2 a) / (cosh(2 a) - cos(2 b)), a = pi / P and b = pi lag / P.

        This is Poisson's sum of the spectrum exp(-|omega|) / 2 over the multiples of 2 pi / P, a geometric series.
        """
        if math.isinf(period):
            return np.asarray(1.0 / (1.0 + lags**2))
        a, b = math.pi / period, math.pi * lags / period
        # Divided by exp(2 a), which a short period would overflow.
        small = -math.expm1(-2 * a)
        denominator = 0.5 * small**2 + 2 * math.exp(-2 * a) * np.sin(b) ** 2
        return np.asarray(math.pi / period * 0.5 * -math.expm1(-4 * a) / denominator)

    def density_radius(self, unit: FloatArray) -> FloatArray:
        """As `Stretched.density_radius`: the density is exp(-|omega|_1) / 2^d."""
        return np.asarray(np.abs(unit).sum(axis=1))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        scale = self.stretch(X.shape[1])
        x, inverse = X * scale, np.ones((len(X), len(Z)))
        columns = np.ascontiguousarray((Z * scale).T)
        step = max(1, _BLOCK // max(1, len(Z)))
        with np.errstate(over="ignore"):  # 1 / inf is the value: less than 1e-308
            for start in range(0, len(X), step):
                for left, right in zip(x[start : start + step].T, columns, strict=True):
                    factor = left[:, None] - right
                    factor *= factor
                    factor += 1.0
                    inverse[start : start + step] *= factor
        return np.asarray(np.reciprocal(inverse, out=inverse))

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        d = X.shape[1]
        scale = self.stretch(d)
        delta = (X[:, None, :] - Z[None, :, :]) * scale
        with np.errstate(over="ignore"):
            inverse = 1 / (1 + delta**2)  # of each factor: f, f' = -2 delta f^2, f'' = 2 f^2 - 8 delta^2 f^3 below
            first, second = -2 * delta * inverse * scale, (6 - 8 * inverse) * inverse * scale**2
        values = first[..., :, None] * first[..., None, :]
        values[..., range(d), range(d)] = second
        return np.asarray(values * np.prod(inverse, axis=-1)[..., None, None])

    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        tail = 2 * np.minimum(uniforms, 1 - uniforms)
        size = gammainccinv(3.0, tail) if biased else -np.log(tail)
        return np.asarray(np.where(uniforms < 0.5, -size, size))

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-np.sum(math.log(2.0) + np.abs(unit), axis=1))
