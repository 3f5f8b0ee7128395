"""Bounds on the error of an operator-valued kernel: Brault et al. (2016), theorem 10; Minh (2016), theorems 11, 12;
those of Munkhoeva et al. (2018): spherical-radial rules of degree (3,3), and kernel ridge regression; and those of
Daniely et al. (2017) for any random feature scheme.

`frequencies` is D, drawn independently; the error is that of K~_0(delta) = mean of cos<omega_j, delta> mu~(omega_j),
or of a decomposable kernel |A|_2 |k~ - k|: a bound for the scalar kernel holds with epsilon / |A|_2 (Brault et al.
2016, corollary 2). Features come in cosine and sine pairs. Each is a probability: 1 where it says nothing."""

import math

from scipy.optimize import minimize_scalar

from dorff.bounds.constants import Constants, bennett, bennett_orlicz, derived_spread, over_net, positive, total
from dorff.errors import InputError


def brault_uniform(constants: Constants, epsilon: float, frequencies: int) -> float:
    """A bound on P(sup over x, z of |K~(x, z) - K(x, z)|_2 >= epsilon), epsilon in the kernel's units.

    Theorem 10 of Brault et al. (2016), derived anew along its own proof, and always true. What changed:

    - the spread u is the least that its proof needs, see `derived_spread` (the print's is negative for small m / b);
    - the tail's bend is at epsilon u = 4 (e - 1) b, as epsilon / 2 goes into eq. 10, and epsilon u / 12 stands for
      epsilon u / 6;
    - bounded weights take the matrix Bennett inequality instead, where that is smaller;
    - p^(2 / (d + 2)) in place of p, and 1 for decomposable kernels;
    - E L^2 <= sigma_p^2 for the Lipschitz constant L of the error does not hold: where the slope is steepest depends
      on the frequencies. In its place E L^2 <= 4 m^2 + (sigma_p^2 - m^2) / D <= 4 sigma_p^2, m = E |omega| |mu~|;
    - the net's radius stays below 2 l, where its covering number is one."""
    positive(epsilon=epsilon, frequencies=frequencies)
    D = frequencies
    spread = derived_spread(constants.variance, constants.orlicz + constants.top / math.log(2))
    bounded = bennett(constants.variance, constants.largest + constants.top, epsilon / 2)
    rate = max(bounded, bennett_orlicz(constants.variance, spread, epsilon / 2))
    steep = 4 * constants.slope**2 + max(constants.slope_squared - constants.slope**2, 0.0) / D
    anchor = math.log(2 * constants.rows) - D * rate
    return over_net(constants.d, constants.diameter, anchor, steep * (2 / epsilon) ** 2, 2)


def minh_pointwise(constants: Constants, epsilon: float, frequencies: int) -> float:
    """A bound on P(|K~_0(delta) - K_0(delta)|_HS >= epsilon) for any one delta: Minh (2016), theorem 11, eq. 62.

    2 exp(-D epsilon / (2 M) log(1 + M epsilon / sigma^2)), as printed. Its lemma 15 asks for |xi| <= M where the
    inequality behind it (Pinelis 1994) is one for |xi - E xi|, which is 2 M at most; this gives the exponent
    D sigma^2 / (4 M^2) h(2 M epsilon / sigma^2), h of `bennett`, at least 0.91 of the print's. 1 for infinite M."""
    positive(epsilon=epsilon, frequencies=frequencies)
    return total(math.log(2) - frequencies * _rate(constants, epsilon))


def minh_uniform(constants: Constants, epsilon: float, frequencies: int) -> float:
    """A bound on P(sup over x, z of |K~(x, z) - K(x, z)|_HS >= epsilon): Minh (2016), theorem 12, eq. 64.

    The theorem's Omega is the set of differences x - z, so that its diam is 2 l. Otherwise as printed, where its net
    is one (see `over_net`). 1 where M is infinite. Decomposable kernels need E |omega| < inf (not in example 6)."""
    positive(epsilon=epsilon, frequencies=frequencies)
    anchor = math.log(2) - frequencies * _rate(constants, epsilon / 2)
    return over_net(constants.d, constants.diameter, anchor, 4 * constants.hs_slope / epsilon, 1)


def _rate(constants: Constants, epsilon: float) -> float:
    M = constants.hs_largest
    return 0.0 if math.isinf(M) else epsilon / (2 * M) * math.log1p(M * epsilon / constants.hs_squared)


def rahimi_recht(constants: Constants, epsilon: float, frequencies: int) -> float:
    """2^8 (sigma_p l / epsilon)^2 exp(-D epsilon^2 / (4 (d + 2))): Rahimi & Recht (2007), claim 1.

    sigma_p^2 = E |omega|^2, l the inputs' diameter. Weakened from `sutherland_schneider` with alpha = 1, and with the
    same gap in the proof; it asks for epsilon <= sigma_p l, and is 1 elsewhere."""
    sigma, epsilon = _scalar(constants, epsilon, frequencies)
    ratio = sigma * constants.diameter / epsilon
    if ratio < 1:
        return 1.0
    return total(8 * math.log(2) + 2 * math.log(ratio) - frequencies * epsilon**2 / (4 * (constants.d + 2)))


def sutherland_schneider(constants: Constants, epsilon: float, frequencies: int) -> float:
    """beta_d (sigma_p l / epsilon)^(2d / (d+2)) exp(-D epsilon^2 / (4 (d + 2) alpha)): Sutherland & Schneider (2015),
    proposition 1, beta_d = ((d/2)^(-d/(d+2)) + (d/2)^(2/(d+2))) 2^((6d+2)/(d+2)).

    alpha = min(1, v + epsilon / 3), v the sup of the variance of cos<omega, delta>. They count the columns, 2 D. Their
    closed form where its net is one (see `over_net`). E L^2 <= sigma_p^2 holds with 4 (`brault_uniform`)."""
    sigma, epsilon = _scalar(constants, epsilon, frequencies)
    alpha = min(1.0, constants.variance / constants.top**2 + epsilon / 3)
    anchor = math.log(2) - frequencies * epsilon**2 / (8 * alpha)
    return over_net(constants.d, constants.diameter, anchor, (2 * sigma / epsilon) ** 2, 2)


def sriperumbudur_szabo(constants: Constants, epsilon: float, frequencies: int) -> float:
    """exp(-(epsilon sqrt(D) - h)^2 / 2) where epsilon sqrt(D) > h: Sriperumbudur & Szabo (2015), theorem 1,

    h = 32 sqrt(2 d log(2 l + 1)) + 32 sqrt(2 d log(sigma + 1)) + 16 sqrt(2 d / log(2 l + 1)).

    The best rate in l, log l under the root, with the largest constants. The least over the inputs' units is taken."""
    sigma, epsilon = _scalar(constants, epsilon, frequencies)
    ratio = sigma * constants.diameter

    def height(log_unit: float) -> float:
        wide = math.log1p(2 * math.exp(log_unit))
        steep = math.log1p(ratio * math.exp(-log_unit))
        return 32 * (math.sqrt(wide) + math.sqrt(steep)) + 16 / math.sqrt(wide)

    minimum = minimize_scalar(height, bounds=(-20.0, 20.0 + max(math.log(ratio), 0.0)), method="bounded")
    beyond = epsilon * math.sqrt(frequencies) - math.sqrt(2 * constants.d) * float(minimum.fun)
    return math.exp(-0.5 * beyond**2) if beyond > 0 else 1.0


def _scalar(constants: Constants, epsilon: float, frequencies: int) -> tuple[float, float]:
    """sigma_p of the scalar kernel, and epsilon in its units."""
    positive(epsilon=epsilon, frequencies=frequencies)
    if not constants.decomposable:
        raise InputError("constants: this bound is one of decomposable kernels; use brault_uniform or minh_uniform")
    return math.sqrt(constants.slope_squared) / constants.top, epsilon / constants.top


def quadrature_uniform(d: int, ratio: float, epsilon: float, frequencies: int) -> float:
    """A bound on P(sup over x, z of |k~(x, z) - k(x, z)| >= epsilon) for the Gaussian and whole rules of degree (3,3).

    `ratio` is the inputs' diameter l over the length-scale s; `frequencies` D = n (d + 1), n rules, rounded down. It
    holds for `Quadrature(mixing="haar")`, centre signed. Changed from Munkhoeva et al. (2018), proposition 3.1:

    - the vertices of a simplex are a tight frame, sum_j (v_j . u)^2 = (d + 1) / d |u|^2, so that one rule's value is
      between 1 - M and 1, M = (l / s)^2 / 2. With its mean k this bounds its variance by (k - 1 + M) (1 - k), k =
      e^-M; then Hoeffding's or Bennett's inequality for n rules, whichever gives less;
    - for the same reason its slope is at most l / s^2, whatever was drawn: no moment, and no loss of an exponent."""
    positive(d=d, ratio=ratio, epsilon=epsilon, frequencies=frequencies)
    M, n = 0.5 * ratio**2, frequencies // (d + 1)
    variance = (math.expm1(-M) + M) * -math.expm1(-M)
    steepest = ratio + min(ratio, math.exp(-0.5))

    def log_bound(share: float) -> float:
        # A net of radius r = share * epsilon / steepest, and (1 - share) epsilon at its points.
        cover = d * math.log1p(2 * ratio * steepest / (share * epsilon))
        left = (1 - share) * epsilon
        return cover + math.log(2) - n * max(2 * (left / M) ** 2, bennett(variance, M, left))

    return total(float(minimize_scalar(log_bound, bounds=(1e-3, 0.999), method="bounded").fun))


def ridge_deviation(gram: float, cross: float, *, ridge: float, rows: int, rms: float, kernel: float = 1.0) -> float:
    """Munkhoeva et al. (2018), proposition 3.2 (Sutherland & Schneider 2015): what an approximate kernel costs.

    |h~(x) - h(x)| <= rms sqrt(n) / lambda |k~_x - k_x| + kernel rms n / lambda^2 |K~ - K|, for n = `rows`, lambda = n
    `ridge` (`ridge` is DESIGN's, the one of the mean loss), `gram` = |K~ - K|_2, `cross` = |k~_x - k_x|_2, `rms` the
    root of the mean squared target and `kernel` the sup of |K(x, z)|_2. It holds for operator-valued kernels too, with
    spectral norms. K~ must be positive semi-definite: with Quadrature's centre below zero, which it is for half of the
    draws, it is not, and the first term is then over lambda - n |a_0^2|."""
    positive(ridge=ridge, rows=rows, rms=rms, kernel=kernel)
    strength = rows * ridge
    return rms * math.sqrt(rows) / strength * cross + kernel * rms * rows / strength**2 * gram


def ridge_epsilon(epsilon: float, *, ridge: float, rms: float, kernel: float = 1.0) -> float:
    """The sup error of the kernel that keeps a ridge regression's error within `epsilon` (targets' units).

    ridge^2 epsilon / (rms (ridge + kernel)), from `ridge_deviation` with |k~_x - k_x| <= sqrt(n) e and
    |K~ - K| <= n e; the paper has kernel = 1. To be given to `features_needed` as its epsilon."""
    positive(epsilon=epsilon, ridge=ridge, rms=rms, kernel=kernel)
    return ridge**2 * epsilon / (rms * (ridge + kernel))


def daniely_pointwise(norm: float, epsilon: float, frequencies: int) -> float:
    """A bound on P(|k~(x, z) - k(x, z)| >= epsilon) for any one pair of a random feature scheme with |feature| <= norm.

    Daniely et al. (2017), theorem 3: 2 exp(-D epsilon^2 / (2 norm^4)), Hoeffding's inequality. Of a skeleton over
    circles, signs, categories and shift-invariant kernels the norm is 1. For frequencies that are drawn independently:
    of `Paths` with draws = 1; `frequencies` D."""
    positive(norm=norm, epsilon=epsilon, frequencies=frequencies)
    return total(math.log(2) - frequencies * epsilon**2 / (2 * norm**4))


def daniely_function(norm: float, size: float, frequencies: int) -> float:
    """A bound on E |f(x) - f~(x)|, and on the root of its mean square, at any x: norm size / sqrt(D).

    Daniely et al. (2017), corollary 4, for f of norm `size` in the kernel's space and the f~ in the space of D random
    features that has f's own coefficients at their frequencies."""
    positive(norm=norm, size=size, frequencies=frequencies)
    return norm * size / math.sqrt(frequencies)


def daniely_risk(
    *, norm: float, lipschitz: float, size: float, rows: int, frequencies: int, ridge: float = 0.0
) -> float:
    """A bound on E L(f~) - L(f*), L the expected loss, for the f~ that `rows` independent rows and D random features
    give with a convex loss of slope `lipschitz` at most, and any f* of norm up to `size` in the kernel's space.

    Daniely et al. (2017), theorem 5, eq. 7: ridge size^2 + 2 lipschitz^2 norm^2 / (ridge rows) + lipschitz size norm /
    sqrt(D); without a ridge the best one's, eq. 8: sqrt(8) lipschitz size norm / sqrt(rows) in place of the first two.
    `ridge` is that of the mean loss. The square loss has no such slope where targets are not bounded."""
    positive(norm=norm, lipschitz=lipschitz, size=size, rows=rows, frequencies=frequencies)
    best = math.sqrt(2.0 / rows) * lipschitz * norm / size
    positive(ridge=ridge or best)
    chosen = ridge or best
    fitted = chosen * size**2 + 2 * (lipschitz * norm) ** 2 / (chosen * rows)
    return fitted + lipschitz * daniely_function(norm, size, frequencies)


def least_norm(d: int) -> float:
    """The least norm of a random feature scheme for x . z on the unit sphere of R^d, sqrt(d / 2), or 1 where d = 1.

    Daniely et al. (2017), theorem 6, and example 5, which has it; its sqrt(1/2) at d = 1 is below what k(x, x) = 1
    allows. A product of t such features has its t-th power, as a skeleton over spheres needs."""
    positive(d=d)
    return max(1.0, math.sqrt(d / 2))
