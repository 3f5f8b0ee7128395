"""What the proofs are made of: tails of a mean of matrices, a net over the differences of inputs, the number of
frequencies that a bound asks for; and the psi_1 Orlicz norm, which says how heavy an exponential tail is."""

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dorff.errors import InputError


def positive(**values: float) -> None:
    """InputError that names the first argument that is not a positive number."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, not {value!r}")


def bennett(variance: float, largest: float, epsilon: float) -> float:
    """r such that P(|mean of D| >= epsilon) <= 2 p exp(-D r), for independent symmetric (p, p) of mean zero.

    Matrix Bennett (Tropp 2012, theorem 6.1): r = (v / B^2) h(B epsilon / v), h(x) = (1 + x) log(1 + x) - x, for
    |E X^2| <= v = `variance` and |X| <= B = `largest`."""
    if math.isinf(largest):
        return 0.0
    x = largest * epsilon / variance
    return variance / largest**2 * ((1 + x) * math.log1p(x) - x)


def bennett_orlicz(variance: float, spread: float, epsilon: float) -> float:
    """r such that P(|mean of D| >= epsilon) <= 2 p exp(-D r), for |X| with exponential tails.

    Koltchinskii (2013), theorem 4, and eq. 10 of Brault et al. (2016) before its last step: E exp(t X) is that of
    variance 2 v and range u = `spread` for t u <= 1, where E |X|^2 e^(|X|/u - 1) 1{|X| >= u} <= v. Eq. 10 follows
    by h(x) >= (x^2 / 2) / (1 + x / 3), and by 2 v / u <= epsilon / (e - 1) past the bend."""
    v = 2 * variance
    x = spread * epsilon / v
    if x <= math.e - 1:
        return v / spread**2 * ((1 + x) * math.log1p(x) - x)
    return epsilon / spread - v / spread**2 * (math.e - 2)


def derived_spread(variance: float, orlicz: float) -> float:
    """The least u >= 3 M for which `bennett_orlicz` is proved, M the psi_1 norm of |X|: 2 u^2 e^(-u / M) <= v.

    For u >= 3 M the function x^2 e^(x/u - 1 - x/M) falls beyond x = u, and E e^(|X| / M) <= 2."""
    wanted = math.log(2 * orlicz**2 / variance)

    def excess(ratio: float) -> float:
        return ratio - 2 * math.log(ratio) - wanted

    return orlicz * (3.0 if excess(3.0) >= 0 else float(brentq(excess, 3.0, 10 + 2 * wanted)))


def over_net(d: int, diameter: float, log_anchor: float, slope: float, power: int) -> float:
    """The least over 0 < r <= 2 l of (4 l / r)^d P + slope r^power, never above 1.

    The differences of a set of diameter l lie in a ball of radius l: (1 + 2 l / r)^d <= (4 l / r)^d of them are
    within r of all, where r <= 2 l. The closed forms of the papers are this minimum without that condition; it fails
    where epsilon is larger than the error could be. `log_anchor` is log P."""
    log_first = log_anchor + d * math.log(4 * diameter)
    log_r = min((log_first + math.log(d / (power * slope))) / (d + power), math.log(2 * diameter))
    return total(log_first - d * log_r, math.log(slope) + power * log_r)


def total(*logs: float) -> float:
    """The sum of numbers given by their logarithms, never above 1."""
    return 1.0 if max(logs) >= 0 else min(1.0, sum(math.exp(log) for log in logs))


def features_needed(bound: Callable[[float, int], float], epsilon: float, delta: float, *, most: int = 10**15) -> int:
    """The smallest D with bound(epsilon, D) <= delta; a feature map then has n_features = 2 D columns.

    `bound`: any bound of this package with its first arguments given, as in `partial(minh_uniform, constants)`: a
    probability that never rises with D. InputError where even D = `most` is not enough (an infinite constant)."""
    if not callable(bound):
        raise InputError(f"bound must be a function of epsilon and D, a partial of minh_uniform say, not {bound!r}")
    if not epsilon > 0 or not 0 < delta < 1:
        raise InputError(f"epsilon must be above 0 and delta between 0 and 1, not {epsilon!r} and {delta!r}")
    high = 1
    while bound(epsilon, high) > delta:
        if high >= most:
            raise InputError(
                f"no D up to {most:g} brings the bound to {delta:g} at epsilon = {epsilon:g}; a constant of the "
                "kernel may be infinite under its measure: choose trace or bounded, a larger epsilon or another bound"
            )
        high = min(2 * high, most)
    return bisect_left(range(high), True, high // 2 + 1, key=lambda D: bound(epsilon, D) <= delta)


def orlicz_norm(variable: Callable[[float], float] | npt.ArrayLike) -> float:
    """The psi_1 norm inf {C > 0: E exp(|X| / C) <= 2}, in the units of X (Brault et al. 2016, definition 9).

    `variable`: the moment generating function t -> E exp(t |X|), inf where it diverges; or a sample of X, whose own
    mean then stands for E (it misses tails that the sample misses, and so tends to be low). 1 / C is where the
    function reaches 2 (their lemma 7). Zero for X = 0; inf where the function is above 2 for every t > 0."""
    if callable(variable):
        generating = variable
    else:
        sample = np.abs(np.asarray(variable, dtype=np.float64)).ravel()
        if sample.size == 0 or not np.all(np.isfinite(sample)):
            raise InputError("variable: a sample must be finite numbers, one at least; or give a function t -> E e^tX")
        unit = float(sample.max())

        def generating(t: float) -> float:
            return float(np.mean(np.exp(sample * t))) if unit * t < 700 else math.inf

    low, high = 1e-200, 1e200
    if generating(low) > 2:
        return math.inf
    if generating(high) <= 2:
        return 0.0
    while high / low > 1 + 1e-14:
        # In logarithms, as nothing is known of the units.
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if generating(middle) <= 2 else (low, middle)
    return 1.0 / low


def gamma_orlicz(shape: float, scale: float) -> float:
    """The psi_1 norm of a Gamma variable, (1 - scale t)^-shape = 2 at t = 1 / C: scale / (1 - 2^(-1 / shape)).

    |omega|^2 of the Gaussian kernel has shape d / 2 and scale 2 / lengthscale^2: C^-1 = lengthscale^2 / 2
    (1 - 4^(-1/d)), as Brault et al. (2016), section 4.3, have it for the curl-free and divergence-free kernels."""
    positive(shape=shape, scale=scale)
    return scale / -math.expm1(-math.log(2) / shape)
