"""What the bounds need to know of a kernel, of the law of its frequencies and of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from dorff.bounds.concentration import gamma_orlicz, positive
from dorff.bounds.variance import inverse_square, measure_of, split_of, variance
from dorff.errors import InputError
from dorff.kernels import BaseKernel, CurlFree, Decomposable, Gaussian, Measure, OperatorKernel, Spectral

_POSITIVE = ("diameter", "top", "variance", "orlicz", "slope", "slope_squared", "hs_squared", "hs_slope")
_SQUARED = ("variance", "slope_squared", "hs_squared")


@final
@dataclass(frozen=True)
class Constants:
    """The moments of K~_0(delta) = mean of cos<omega_j, delta> mu~(omega_j), omega_j independent of law rho.

    mu~(omega) is the matrix psi^T psi of one frequency (Minh 2016, eq. 21; A(omega) in Brault et al. 2016). Norms are
    spectral but for the last three, which are Hilbert-Schmidt (Frobenius). Bounds from above will do for any of them.
    """

    d: int  #: inputs
    p: int  #: outputs
    diameter: float  #: of the set of inputs, l: |x - z| <= l; in the inputs' units
    decomposable: bool  #: mu~ is one matrix A
    top: float  #: sup |K_0(delta)| = |K_0(0)|
    variance: float  #: b, the sup over delta of D |V[K~_0(delta)]|
    largest: float  #: sup |mu~(omega)|, inf where unbounded
    orlicz: float  #: psi_1 norm of |mu~(omega)|
    slope: float  #: E |omega| |mu~(omega)|
    slope_squared: float  #: E |omega|^2 |mu~(omega)|^2: sigma_p^2 of Brault
    hs_largest: float  #: M of Minh's theorems, inf where unbounded
    hs_squared: float  #: E |mu~(omega)|_HS^2: sigma^2 of Minh's theorems
    hs_slope: float  #: E |omega| |mu~(omega)|_HS: m_1 of Minh's eq. 63

    def __post_init__(self) -> None:
        for name in ("d", "p"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, not {getattr(self, name)!r}")
        positive(**{name: getattr(self, name) for name in _POSITIVE})

    @property
    def rows(self) -> int:
        """The p of the matrix inequalities: 1 for a decomposable kernel, whose error is one number times A."""
        return 1 if self.decomposable else self.p

    @classmethod
    def of(cls, kernel: OperatorKernel, *, d: int, p: int, diameter: float) -> Constants:
        """The constants in closed form, `variance` by a search over |delta| <= diameter.

        For a decomposable kernel of any scalar kernel with second moments; for the curl-free and divergence-free ones
        of a Gaussian with one length-scale, under each measure; and for sums of these under their trace measure
        (Minh 2016, eq. 58-59). The output matrix must be fixed or the identity. Values are exact, but for bounds from
        above: `slope` by the root of the second moment where the scalar kernel is no isotropic Gaussian, `variance`
        by 9/16 |A|^2 where it is no Gaussian (k0(2 delta) <= k0(delta) is all that is used), `orlicz` of bounded
        measures by sup / log 2, all moments under DEFENSIVE, and all of a sum. InputError for other kernels, and
        where a moment is infinite.
        """
        if not isinstance(kernel, OperatorKernel):
            raise InputError(f"kernel must be an operator kernel, such as Decomposable({kernel!r}), not {kernel!r}")
        positive(diameter=diameter)
        fixed = kernel.fix(d, p)
        terms = [(weight, base) for weight, base in fixed.terms() if weight > 0]
        parts = [_scaled(_one(base, d, diameter), weight) for weight, base in terms]
        sizes = parts[0] if len(parts) == 1 else _sum(fixed, parts, d, p)
        simple = len(parts) == 1 and isinstance(terms[0][1], Decomposable)
        return cls(d=d, p=p, diameter=diameter, decomposable=simple, **sizes)


def _one(kernel: BaseKernel, d: int, diameter: float) -> dict[str, float]:
    return _decomposable(kernel, d, diameter) if isinstance(kernel, Decomposable) else _field(kernel, d, diameter)


def _scaled(sizes: dict[str, float], weight: float) -> dict[str, float]:
    """The constants of weight * K."""
    return {name: value * weight ** (2 if name in _SQUARED else 1) for name, value in sizes.items()}


def _sum(kernel: OperatorKernel, parts: list[dict[str, float]], d: int, p: int) -> dict[str, float]:
    """|mu~| <= tr mu~ = tr k(0) under the trace measure (Minh 2016, eq. 51), where each term's norm is constant."""
    trace = sum(weight * base.trace(d, p) for weight, base in kernel.terms())
    tilted = all(isinstance(base, Decomposable) or measure_of(base) == Measure.TRACE for _, base in kernel.terms())
    if not tilted or kernel.concatenated:
        raise InputError(
            "kernel: a sum has constants under its trace measure alone: use measure trace in its curl-free and "
            "divergence-free terms, and no concatenation; or give Constants your own numbers"
        )
    origin = np.zeros((1, d))
    top = float(np.linalg.norm(kernel.gram(origin, origin)[0, 0], 2))
    return {
        "top": top,
        "variance": trace * top,  # E cos^2 mu~^2 <= tr k(0) E cos^2 mu~
        "largest": trace,
        "orlicz": trace / math.log(2),
        "slope": sum(part["slope"] for part in parts),
        "slope_squared": trace * sum(part["slope_squared"] / part["largest"] for part in parts),
        "hs_largest": trace,
        "hs_squared": trace * sum(part["hs_largest"] for part in parts),
        "hs_slope": sum(part["hs_slope"] for part in parts),
    }


def _decomposable(kernel: Decomposable, d: int, diameter: float) -> dict[str, float]:
    """k0 A: mu~ = A whatever omega."""
    scalar = kernel.scalar
    if not isinstance(scalar, Spectral):
        raise InputError(f"kernel: {type(scalar).__name__} is not shift-invariant, which all of the bounds need")
    root = kernel.root(np.ones((1, d)))[0]
    A = root.T @ root
    top, hs = float(np.linalg.norm(A, 2)), float(np.linalg.norm(A))
    second = float(np.sum(scalar.second_moments(d)))
    first, spread = math.sqrt(second), 9 / 16
    if isinstance(scalar, Gaussian):
        narrowest = 1 / scalar.stretch(d).max()
        spread = 0.5 * math.expm1(-((diameter / narrowest) ** 2)) ** 2
        if isinstance(scalar.lengthscale, float):
            first = _chi(d, 1) / scalar.lengthscale
    return {
        "top": top,
        "variance": top**2 * spread,
        "largest": top,
        "orlicz": top / math.log(2),
        "slope": top * first,
        "slope_squared": top**2 * second,
        "hs_largest": hs,
        "hs_squared": hs**2,
        "hs_slope": hs * first,
    }


def _field(kernel: BaseKernel, d: int, diameter: float) -> dict[str, float]:
    """Curl-free and divergence-free Gaussian: |mu~| = |omega|^2 times the density's weight; HS sqrt(p - 1) more."""
    a, split = inverse_square(kernel), split_of(kernel)
    curl = isinstance(kernel, CurlFree)
    rank = 1 if curl else d - 1
    cubed = a**1.5 * _chi(d, 3)
    if split is None:
        # |mu~| is c under TRACE; at most c under DEFENSIVE, where (d + 1) |omega|^2 / (1 + |s omega|^2) is the weight.
        c = a * (d if measure_of(kernel) == Measure.TRACE else d + 1)
        largest, orlicz, squared, steep = c, c / math.log(2), c * a * d, c * a**2 * d * (d + 2)
    else:
        gain, b = (1 - split**2) ** (-d / 2), a / (1 + split)
        largest = 2 * a / (split * math.e) * (1 - split) ** (-d / 2) if split > 0 else math.inf
        orlicz = largest / math.log(2) if split > 0 else gamma_orlicz(d / 2, 2 * a)
        squared, steep = gain * b**2 * d * (d + 2), gain * b**3 * d * (d + 2) * (d + 4)
    return {
        "top": a if curl else (d - 1) * a,
        "variance": _highest(lambda r: float(np.linalg.norm(variance(kernel, r * np.eye(d)[0]), 2)), diameter, a),
        "largest": largest,
        "orlicz": orlicz,
        "slope": cubed,
        "slope_squared": steep,
        "hs_largest": math.sqrt(rank) * largest,
        "hs_squared": rank * squared,
        "hs_slope": math.sqrt(rank) * cubed,
    }


def _chi(d: int, power: int) -> float:
    """E |omega|^power for omega ~ N(0, I_d)."""
    return float(math.exp(power / 2 * math.log(2) + gammaln((d + power) / 2) - gammaln(d / 2)))


def _highest(function: Callable[[float], float], diameter: float, a: float) -> float:
    """The largest value on [0, diameter] of a smooth function of |delta| that has settled by 8 length-scales."""
    places = np.linspace(0.0, min(diameter, 8 / math.sqrt(a)), 161)
    values = np.array([function(r) for r in places])
    best = int(np.argmax(values))
    low, high = places[max(best - 1, 0)], places[min(best + 1, 160)]
    peak = minimize_scalar(lambda r: -function(r), bounds=(low, high), method="bounded")
    return float(max(values[best], -peak.fun))
