"""What the bounds need to know of a kernel, of its frequencies' law and of the inputs, the variance of one random
feature's kernel among it; and what the proofs are made of: tails of a mean of matrices, nets, Orlicz norms."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammaln

from dorff.errors import InputError
from dorff.kernels import BaseKernel, Decomposable, FloatArray, Gaussian, Measure, OperatorKernel, Spectral
from dorff.kernels.operator import CurlFree, DivergenceFree


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
    within r of all, where r <= 2 l; the papers' closed forms are without that condition. `log_anchor` is log P."""
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
            problem = f"no D up to {most:g} brings the bound to {delta:g} at epsilon = {epsilon:g}"
            remedy = "choose trace or bounded, a larger epsilon or another bound"
            raise InputError(f"{problem}; a constant of the kernel may be infinite under its measure: {remedy}")
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
    if generating(low) > 2 or generating(high) <= 2:
        return math.inf if generating(low) > 2 else 0.0
    while high / low > 1 + 1e-14:
        middle = math.sqrt(low) * math.sqrt(high)  # in logarithms, as nothing is known of the units
        low, high = (middle, high) if generating(middle) <= 2 else (low, middle)
    return 1.0 / low


def gamma_orlicz(shape: float, scale: float) -> float:
    """The psi_1 norm of a Gamma variable, (1 - scale t)^-shape = 2 at t = 1 / C: scale / (1 - 2^(-1 / shape)).

    |omega|^2 of the Gaussian kernel has shape d / 2 and scale 2 / lengthscale^2: C^-1 = lengthscale^2 / 2
    (1 - 4^(-1/d)), as Brault et al. (2016), section 4.3, have it for the curl-free and divergence-free kernels."""
    positive(shape=shape, scale=scale)
    return scale / -math.expm1(-math.log(2) / shape)


_POSITIVE = ("diameter", "top", "variance", "orlicz", "slope", "slope_squared", "hs_squared", "hs_slope")
_SQUARED = ("variance", "slope_squared", "hs_squared")


@dataclass(frozen=True)
class Constants:
    """The moments of K~_0(delta) = mean of cos<omega_j, delta> mu~(omega_j), omega_j independent of law rho.

    mu~(omega) is the matrix psi^T psi of one frequency (Minh 2016, eq. 21; A(omega) in Brault et al. 2016). Norms are
    spectral but for the last three, which are Hilbert-Schmidt (Frobenius). Bounds from above do for any."""

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
    def of(cls, kernel: OperatorKernel, *, d: int, p: int, diameter: float) -> "Constants":
        """The constants in closed form, `variance` by a search over |delta| <= diameter.

        For a decomposable kernel of any scalar kernel with second moments; for the curl-free and divergence-free ones
        of a Gaussian with one length-scale, under each measure; and for sums of these under their trace measure
        (Minh 2016, eq. 58-59). The output matrix must be fixed or the identity. Values are exact, but for bounds from
        above: `slope` by the root of the second moment where the scalar kernel is no isotropic Gaussian, `variance`
        by 9/16 |A|^2 where it is no Gaussian (k0(2 delta) <= k0(delta) is all that is used), `orlicz` of bounded
        measures by sup / log 2, all moments under DEFENSIVE, and all of a sum. InputError where one is unknown."""
        if not isinstance(kernel, OperatorKernel):
            raise InputError(f"kernel must be an operator kernel, such as Decomposable({kernel!r}), not {kernel!r}")
        positive(diameter=diameter)
        fixed = kernel.fix(d, p)
        terms = [(weight, base) for weight, base in fixed.terms() if weight > 0]
        parts = [_sizes(base, weight, d, diameter) for weight, base in terms]
        sizes = parts[0] if len(parts) == 1 else _sum(fixed, parts, d, p)
        simple = len(parts) == 1 and isinstance(terms[0][1], Decomposable)
        return cls(d=d, p=p, diameter=diameter, decomposable=simple, **sizes)


def _sizes(kernel: BaseKernel, weight: float, d: int, diameter: float) -> dict[str, float]:
    sizes = _decomposable(kernel, d, diameter) if isinstance(kernel, Decomposable) else _field(kernel, d, diameter)
    return {name: value * weight ** (2 if name in _SQUARED else 1) for name, value in sizes.items()}


def _sum(kernel: OperatorKernel, parts: list[dict[str, float]], d: int, p: int) -> dict[str, float]:
    """|mu~| <= tr mu~ = tr k(0) under the trace measure (Minh 2016, eq. 51), where each term's norm is constant."""
    trace = sum(weight * base.trace(d, p) for weight, base in kernel.terms())
    tilted = all(isinstance(base, Decomposable) or measure_of(base) == Measure.TRACE for _, base in kernel.terms())
    if not tilted or kernel.concatenated:
        problem = "use measure trace in its curl-free and divergence-free terms, and no concatenation"
        remedy = "or give Constants your own numbers"
        raise InputError(f"kernel: a sum has constants under its trace measure alone: {problem}; {remedy}")
    top = _norm(_signature(kernel, np.zeros(d)))
    slope, hs_slope, hs = (sum(part[name] for part in parts) for name in ("slope", "hs_slope", "hs_largest"))
    squared = trace * sum(part["slope_squared"] / part["largest"] for part in parts)
    # E cos^2 mu~^2 <= tr k(0) E cos^2 mu~
    spectral = {"top": top, "variance": trace * top, "largest": trace, "orlicz": trace / math.log(2)}
    spectral |= {"slope": slope, "slope_squared": squared}
    return spectral | {"hs_largest": trace, "hs_squared": trace * hs, "hs_slope": hs_slope}


def _decomposable(kernel: Decomposable, d: int, diameter: float) -> dict[str, float]:
    """k0 A: mu~ = A whatever omega."""
    scalar = kernel.scalar
    if not isinstance(scalar, Spectral) or not scalar.shift_invariant:
        raise InputError(f"kernel: {type(scalar).__name__} is not shift-invariant, which all of the bounds need")
    try:
        second = float(np.sum(scalar.second_moments(d)))
    except InputError as error:
        raise InputError(f"kernel: the bounds need second moments of frequencies ({error})") from None
    root = kernel.root(np.ones((1, d)))[0]
    A = root.T @ root
    top, hs = float(np.linalg.norm(A, 2)), float(np.linalg.norm(A))
    first, spread = math.sqrt(second), 9 / 16
    if isinstance(scalar, Gaussian):
        narrowest = 1 / scalar.stretch(d).max()
        spread = 0.5 * math.expm1(-((diameter / narrowest) ** 2)) ** 2
        if isinstance(scalar.lengthscale, float):
            first = _chi(d, 1) / scalar.lengthscale
    spectral = {"top": top, "variance": top**2 * spread, "largest": top, "orlicz": top / math.log(2)}
    spectral |= {"slope": top * first, "slope_squared": top**2 * second}
    return spectral | {"hs_largest": hs, "hs_squared": hs**2, "hs_slope": hs * first}


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
    varied = _highest(lambda r: float(np.linalg.norm(variance(kernel, r * np.eye(d)[0]), 2)), diameter, a)
    spectral = {"top": a if curl else (d - 1) * a, "variance": varied, "largest": largest, "orlicz": orlicz}
    spectral |= {"slope": cubed, "slope_squared": steep}
    hs = math.sqrt(rank)
    return spectral | {"hs_largest": hs * largest, "hs_squared": rank * squared, "hs_slope": hs * cubed}


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


def variance(kernel: BaseKernel, delta: FloatArray) -> FloatArray:
    """D V[K~_0(delta)], (p, p), for D independent frequencies of the kernel's measure, at delta = x - z (d,).

    V[X] = E (X - E X)^2, in the kernel's units squared (Brault et al. 2016, section 4). With S(eta) =
    E cos<omega, eta> mu~(omega)^2 it is (S(0) + S(2 delta)) / 2 - K_0(delta)^2, exactly:

    - decomposable: A^2 ((1 + k0(2 delta)) / 2 - k0(delta)^2). The paper prints |A| for |A|^2 and + k0^2;
    - curl-free, divergence-free, isotropic Gaussian: S is a fourth derivative of k0 under UNBOUNDED and bounded
      measures (at delta = 0, V = (d + 1) / s^4 and 3 (d - 1) / s^4; the paper prints d (4 d - 3) / s^4 for the
      latter), and (d / s^2) K_0 under TRACE, where mu~ is a multiple of a projection.

    Under DEFENSIVE, S = ((d + 1) / s^2) K_0 makes it an upper bound. The kernel's output matrix must be fixed."""
    delta = np.asarray(delta, dtype=np.float64)
    exact = _signature(kernel, delta)
    return 0.5 * (_squared(kernel, np.zeros_like(delta)) + _squared(kernel, 2 * delta)) - exact @ exact


def variance_bound(
    zero: FloatArray, at: FloatArray, twice: FloatArray, mean: FloatArray, spread: FloatArray, cosine: float
) -> float:
    """A bound on D |V[K~_0(delta)]|_2 that always holds, from what Prop. 12 of Brault et al. (2016) uses.

    With c = cos^2<omega, delta>, E c A^2 = E c (A - E A)^2 + E c (A E A + E A A) - E c (E A)^2, and the first term is
    at most V A. Of `zero` K_0(0), `at` K_0(delta), `twice` K_0(2 delta), `mean` E A(omega), `spread` V A(omega), all
    (p, p), and `cosine` = E cos<omega, 2 delta>. The print leaves the covariance of cos^2 and A out, and is false."""
    squared = 0.5 * (zero + twice)
    cross = squared @ mean + mean @ squared
    return _norm(cross - 0.5 * (1 + cosine) * mean @ mean - at @ at) + _norm(spread)


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2))


def _signature(kernel: OperatorKernel, delta: FloatArray) -> FloatArray:
    """K_0(delta), (p, p)."""
    return np.asarray(kernel.gram(delta[None, :], np.zeros((1, len(delta))))[0, 0])


def _squared(kernel: BaseKernel, eta: FloatArray) -> FloatArray:
    """S(eta) = E cos<omega, eta> mu~(omega)^2, (p, p)."""
    if isinstance(kernel, Decomposable):
        root = kernel.root(np.ones((1, len(eta))))[0]
        return np.asarray(_signature(kernel, eta) @ root.T @ root)
    d, a = len(eta), inverse_square(kernel)
    if (split := split_of(kernel)) is None:
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
    of = "decomposable kernels, and for curl-free and divergence-free ones of a Gaussian with one lengthscale"
    raise InputError(f"kernel: moments are known for {of}, not for {kernel!r}; give Constants your own numbers")


def measure_of(kernel: BaseKernel) -> Measure:
    """The measure of a curl-free or divergence-free kernel, TRACE where it leaves it open."""
    return Measure.TRACE if kernel.measure is None else kernel.measure


def split_of(kernel: BaseKernel) -> float | None:
    """The share of the Gaussian's exponent that is in the weight: 0 for UNBOUNDED; None for the tilted measures."""
    measure = measure_of(kernel)
    return 0.0 if measure == Measure.UNBOUNDED else measure.split
