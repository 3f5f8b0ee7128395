"""Bounds for decomposable kernels: |A|_2 times a bound for the scalar kernel (Brault et al. 2016, corollary 2).

The error |K~ - K|_2 is |A|_2 |k~ - k|, so a scalar bound holds with epsilon / |A|_2. `frequencies` is D, drawn
independently; features come in cosine and sine pairs. Each function gives a probability, 1 where it says nothing.
"""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from dorff.bounds.concentration import over_net, positive, total
from dorff.bounds.constants import Constants
from dorff.errors import InputError


def rahimi_recht(constants: Constants, epsilon: float, frequencies: int) -> float:
    """2^8 (sigma_p l / epsilon)^2 exp(-D epsilon^2 / (4 (d + 2))): Rahimi & Recht (2007), claim 1.

    sigma_p^2 = E |omega|^2, l the inputs' diameter. Weakened from `sutherland_schneider` with alpha = 1, and with the
    same gap in the proof; it asks for epsilon <= sigma_p l, and is 1 elsewhere.
    """
    sigma, epsilon = _scalar(constants, epsilon, frequencies)
    ratio = sigma * constants.diameter / epsilon
    if ratio < 1:
        return 1.0
    return total(8 * math.log(2) + 2 * math.log(ratio) - frequencies * epsilon**2 / (4 * (constants.d + 2)))


def sutherland_schneider(constants: Constants, epsilon: float, frequencies: int) -> float:
    """beta_d (sigma_p l / epsilon)^(2d / (d+2)) exp(-D epsilon^2 / (4 (d + 2) alpha)): Sutherland & Schneider (2015),
    proposition 1, beta_d = ((d/2)^(-d/(d+2)) + (d/2)^(2/(d+2))) 2^((6d+2)/(d+2)).

    alpha = min(1, v + epsilon / 3), v the sup of the variance of cos<omega, delta>. They count the columns, 2 D. Their
    closed form where its net is one (see `over_net`). Like Rahimi & Recht they use E L^2 <= sigma_p^2, which holds
    with 4 sigma_p^2 (see `brault_uniform`, the bound that is proved).
    """
    sigma, epsilon = _scalar(constants, epsilon, frequencies)
    alpha = min(1.0, constants.variance / constants.top**2 + epsilon / 3)
    anchor = math.log(2) - frequencies * epsilon**2 / (8 * alpha)
    return over_net(constants.d, constants.diameter, anchor, (2 * sigma / epsilon) ** 2, 2)


def sriperumbudur_szabo(constants: Constants, epsilon: float, frequencies: int) -> float:
    """exp(-(epsilon sqrt(D) - h)^2 / 2) where epsilon sqrt(D) > h: Sriperumbudur & Szabo (2015), theorem 1,

    h = 32 sqrt(2 d log(2 l + 1)) + 32 sqrt(2 d log(sigma + 1)) + 16 sqrt(2 d / log(2 l + 1)).

    The best rate in l, log l under the root, with the largest constants. h depends on the unit of the inputs
    and the theorem holds in any: the least over units is taken.
    """
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
