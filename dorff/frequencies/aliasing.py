"""Copies of a kernel that the equispaced frequencies of a lattice add to it.

Sums over a lattice of steps h_j are the kernel's periodic continuation, of periods P_j = 2 pi / h_j (Poisson):

    sum_k v_k cos(h k . x) = sum_n k0(x + n P),    v_k = prod(h) rho(h k)

What they add to the kernel is C(x), the sum over n other than 0. Here it is summed exactly, however slowly it
converges: an isotropic kernel is a mixture of Gaussians, so that C is a mixture of products of theta functions
(a one-dimensional sum each, by whichever side of Poisson's formula converges at once); the factors of a product
kernel have closed forms.

Of a kernel that decays slowly nearly all of C is the constant v_0: of a rational quadratic near alpha = d / 2 the
sum nearly diverges, and C - v_0 does not. A free intercept has the place of the frequency 0, and any constant with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dorff.kernels import Isotropic, Measure, scalar_from_config
from dorff.kernels.scalar import BoolArray, FloatArray
from dorff.kernels.stretched import Product, Stretched

LAGS: Final = (33, 17, 9, 5, 5)  # along each of so many inputs, at which copies are summed
_TERMS: Final = 5  # of a theta function on either side of 0: the next is below 1e-30


@dataclass(frozen=True, kw_only=True)
class LatticeBox:
    """The box of the inputs and how a lattice continues it, in the inputs' scaled units.

    Parameters
    ----------
    sides : array of shape (d,)
        0 along an input that is constant.
    periods : array of shape (d,)
        After which sums over the lattice repeat; infinite along an input that is constant.
    wanted : array of bool of shape (d,)
        Inputs with a period of their own, along which the copies belong to the kernel.
    """

    sides: FloatArray
    periods: FloatArray
    wanted: BoolArray


@dataclass(frozen=True, kw_only=True)
class Aliases:
    """What a lattice adds to a scalar kernel k0, or to the second derivatives -d_i d_j k0, at lags of a box.

    Parameters
    ----------
    varying : array of shape (entries, lags)
        C - v_0 of k0 (one entry), or of the derivatives i <= j in the order of `numpy.triu_indices`.
    constant : array of shape (entries,)
        v_0, the weight of the frequency 0, of each entry.
    at_zero : array of shape (entries,)
        The kernel's own values at lag 0, with the copies that belong to it.
    """

    varying: FloatArray
    constant: FloatArray
    at_zero: FloatArray

    @property
    def added_at_zero(self) -> FloatArray:
        """C - v_0 (entries,) at lag 0, the first of the lags."""
        return np.asarray(self.varying[:, 0])

    def centre(self) -> FloatArray:
        """Return the constants (entries,) that are nearest to C."""
        return np.asarray(self.constant + 0.5 * (self.varying.max(axis=1) + self.varying.min(axis=1)))

    def largest(self, taken: FloatArray) -> float:
        """Return the largest |C - taken| over the kernel at lag 0, for constants (entries,) that are taken out."""
        rest = self.varying + (self.constant - taken)[:, None]
        return relative_size(np.abs(rest).max(axis=1), rest, self.at_zero)


def relative_size(entries: FloatArray, values: FloatArray, at_zero: FloatArray) -> float:
    """Return the largest entry over the largest at lag 0: of k0, or of both the curl-free and the divergence-free
    kernel that -d_i d_j k0 make."""
    if len(entries) == 1:
        return float(entries[0] / at_zero[0])
    d = round((math.sqrt(8 * len(entries) + 1) - 1) / 2)
    diagonal = np.equal(*np.triu_indices(d))
    curl_free = float(np.max(entries) / np.max(at_zero[diagonal]))
    traces = values[diagonal].sum(axis=0) - values[diagonal]
    trace_at_zero = at_zero[diagonal].sum() - at_zero[diagonal]
    divergence_free = max(np.abs(traces).max(), np.max(entries[~diagonal])) / trace_at_zero.max()
    return max(curl_free, float(divergence_free))


def aliases(scalar: Stretched, box: LatticeBox, *, derivatives: bool) -> Aliases:
    """Sum the copies of a kernel that a lattice adds, at lags of a box.

    Parameters
    ----------
    scalar : Stretched
        k0, with its length-scales. Isotropic for derivatives.
    box : LatticeBox
        Where.
    derivatives : bool
        Whether of -d_i d_j k0, of which curl-free and divergence-free kernels are made.
    """
    stretch = scalar.stretch(len(box.sides))
    varied = np.isfinite(box.periods)
    count = LAGS[min(int(varied.sum()), len(LAGS)) - 1]
    # Copies are symmetric about 0 and, where wanted, about half a period.
    ends = np.where(box.wanted, 0.5 * box.periods, box.sides) * stretch
    lags = [np.linspace(0.0, end, count) if axis else np.zeros(1) for end, axis in zip(ends, varied, strict=True)]
    periods = box.periods * stretch
    if isinstance(scalar, Isotropic):
        return _of_isotropic(scalar, lags, periods, box.wanted, stretch if derivatives else None)
    assert isinstance(scalar, Product)
    assert not derivatives
    return _of_product(scalar, lags, periods, box.wanted)


def _of_product(scalar: Product, lags: Sequence[FloatArray], periods: FloatArray, wanted: BoolArray) -> Aliases:
    """Sum the copies of a product kernel; lags and periods in length-scales."""
    continued, own, constant = np.ones(1), np.ones(1), 1.0
    for x, period, own_period in zip(lags, periods, np.where(wanted, periods, np.inf), strict=True):
        continued = np.multiply.outer(continued, scalar.periodic_factor(x, period)).ravel()
        own = np.multiply.outer(own, scalar.periodic_factor(x, own_period)).ravel()
        if np.isfinite(period):
            constant *= _mean_of_copies(scalar, np.array([period]))
    return Aliases(varying=(continued - own - constant)[None], constant=np.array([constant]), at_zero=own[:1])


def _of_isotropic(
    scalar: Isotropic, lags: Sequence[FloatArray], periods: FloatArray, wanted: BoolArray, stretch: FloatArray | None
) -> Aliases:
    """Sum the copies of an isotropic kernel; lags and periods in length-scales; of derivatives with a `stretch`."""
    finite = np.isfinite(periods)
    # Means over the precision t of t^(-n / 2): n inputs along which copies of an ever wider Gaussian add up.
    power = 1.0 if stretch is not None else -0.5 * float(np.count_nonzero(wanted & finite))
    t, weights = scalar.gaussian_mixture(power)
    own_periods = np.where(wanted, periods, np.inf)
    continued = [_theta(x, period, t) for x, period in zip(lags, periods, strict=True)]
    own = [_theta(x, period, t) for x, period in zip(lags, own_periods, strict=True)]
    mean = np.prod([_theta_mean(period, t) for period in periods[finite]], axis=0)
    if stretch is None:
        v_0 = _mean_of_copies(scalar, periods[finite])
        own_at_zero = _product([factor[:, :, :1] for factor in own], ())
        if wanted[finite].all():  # the mean over t of `mean` alone may converge slowly
            size = weights @ (own_at_zero - mean[:, None]) + v_0
            return Aliases(varying=np.array([[-v_0]]), constant=np.array([v_0]), at_zero=size)
        added = weights @ (_product(continued, ()) - _product(own, ()) - mean[:, None])
        return Aliases(varying=added[None], constant=np.array([v_0]), at_zero=weights @ own_at_zero)
    d = len(periods)
    entries = [(i, j) for i in range(d) for j in range(i, d)]  # as of `numpy.triu_indices`
    varying = np.empty((len(entries), math.prod(map(len, lags))))
    constant, at_zero = np.zeros(len(entries)), np.empty(len(entries))
    for at, (i, j) in enumerate(entries):
        scale = -stretch[i] * stretch[j]
        added = _product(continued, (i, j)) - _product(own, (i, j))
        beside = -t * mean if i == j and not finite[i] else np.zeros_like(t)  # along a constant input
        varying[at] = scale * (weights @ (added - beside[:, None]))
        constant[at] = scale * float(weights @ beside)
        at_zero[at] = scale * float(weights @ _product([factor[:, :, :1] for factor in own], (i, j))[:, 0])
    return Aliases(varying=varying, constant=constant, at_zero=at_zero)


def unit_kernel(scalar: Stretched) -> Stretched:
    """Return a kernel with a length-scale of 1 in its place."""
    unit = scalar_from_config({**scalar.config(), "lengthscale": 1.0})
    assert isinstance(unit, Stretched)
    return unit


def _mean_of_copies(scalar: Stretched, periods: FloatArray) -> float:
    """Return v_0, the mean over a period of sum_n k0(x + n P): the spectrum at 0 times the steps."""
    log_density = float(unit_kernel(scalar).log_density(np.zeros((1, len(periods))), Measure.UNBOUNDED)[0])
    return math.exp(log_density + float(np.sum(np.log(2 * np.pi / periods))))


def _theta(x: FloatArray, period: float, t: FloatArray) -> FloatArray:
    """Return sum_n g(x + n P) of g(x) = exp(-t x^2 / 2), and its first two derivatives: (3, T, n).

    For precisions t (T,) with t P^2 >= 2 pi the sum itself, which then converges at once; else its Fourier series
    (Poisson). With an infinite period g alone.
    """
    out = np.zeros((3, len(t), len(x)))
    near = np.ones(len(t), dtype=bool) if math.isinf(period) else t >= 2 * np.pi / period**2
    copies = [0] if math.isinf(period) else range(-_TERMS - 1, _TERMS + 2)
    precision = t[near, None]
    for n in copies:
        at = x + n * period if n else x
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            value = np.exp(-0.5 * precision * at**2)
            slope, bend = -precision * at, precision * (precision * at**2 - 1.0)
            out[0, near] += value
            out[1, near] += np.where(value > 0, slope * value, 0.0)
            out[2, near] += np.where(value > 0, bend * value, 0.0)
    if near.all():
        return out
    precision = t[~near, None]
    mean = _theta_mean(period, t[~near])[:, None]
    out[0, ~near] = mean
    for k in range(1, _TERMS + 1):
        omega = 2 * np.pi * k / period
        with np.errstate(under="ignore", over="ignore"):
            wave = 2 * mean * np.exp(-0.5 * omega**2 / precision)
        out[0, ~near] += wave * np.cos(omega * x)
        out[1, ~near] -= omega * wave * np.sin(omega * x)
        out[2, ~near] -= omega**2 * wave * np.cos(omega * x)
    return out


def _theta_mean(period: float, t: FloatArray) -> FloatArray:
    """Return the means (T,) of `_theta` over a period."""
    return np.asarray(np.sqrt(2 * np.pi / t) / period)


def _product(factors: Sequence[FloatArray], derivatives: Sequence[int]) -> FloatArray:
    """Return products (T, lags) of one-dimensional sums, differentiated along the inputs that are named."""
    out = np.ones((factors[0].shape[1], 1))
    for axis, factor in enumerate(factors):
        order = sum(axis == derivative for derivative in derivatives)
        out = (out[:, :, None] * factor[order][:, None, :]).reshape(len(out), -1)
    return out
