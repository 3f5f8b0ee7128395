"""Bounds as the papers print them, where the print is false or does not follow from its proof: see what
`dorff.bounds` has in their place. `frequencies` and probabilities are those of its functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dorff.bounds import Constants
from dorff.bounds.constants import positive, total
from dorff.kernels.scalar import FloatArray


def printed_spread(constants: Constants) -> float:
    """u of theorem 10 as printed, 2 m log(2^1.5 (m / b)^2): the logarithm of a number with a unit."""
    m = _orlicz(constants)
    return 2 * m * math.log(2**1.5 * (m / constants.variance) ** 2)


def corrected_spread(constants: Constants) -> float:
    """u of theorem 10 with m^2 / b, 2 m log(2^1.5 m^2 / b). More than the proof needs (see `derived_spread`)."""
    m = _orlicz(constants)
    return 2 * m * math.log(2**1.5 * m**2 / constants.variance)


def brault_printed(
    constants: Constants, epsilon: float, frequencies: int, *, spread: Callable[[Constants], float] = corrected_spread
) -> float:
    """Theorem 10 of Brault et al. (2016) with its printed constants, u corrected, cut off at 1.

    spread=printed_spread is the print to the letter; where its u is not positive there is no bound, and the result
    is 1. For what does not follow from the proof see `brault_uniform`.
    """
    positive(epsilon=epsilon, frequencies=frequencies)
    D, d, b, u = frequencies, constants.d, constants.variance, spread(constants)
    if u <= 0:
        return 1.0
    if epsilon * u <= 2 * (math.e - 1) * b:
        exponent = epsilon**2 * D / (8 * (d + 2) * (b + epsilon * u / 6))
    else:
        exponent = epsilon * D / ((d + 2) * (math.e - 1) * u)
    factor = math.log(constants.p) + math.log((d / 2) ** (-d / (d + 2)) + (d / 2) ** (2 / (d + 2)))
    factor += (6 * d + 2) / (d + 2) * math.log(2)
    ratio = math.sqrt(constants.slope_squared) * constants.diameter / epsilon
    return total(factor + 2 * d / (d + 2) * math.log(ratio) - exponent)


def _orlicz(constants: Constants) -> float:
    """m = 4 (psi_1 norm of |A(omega)| + |K|_inf)."""
    return 4 * (constants.orlicz + constants.top)


def variance_printed(
    zero: FloatArray, at: FloatArray, twice: FloatArray, mean: FloatArray, spread: FloatArray
) -> float:
    """Prop. 12 of Brault et al. (2016) for D = 1, as printed: false in general, see `variance_bound`.

    (|(K_0(2 delta) + K_0(0)) E A - 2 K_0(delta)^2| + 2 |V A|) / 2, spectral norms, of `zero` K_0(0), `at`
    K_0(delta), `twice` K_0(2 delta), `mean` E A(omega) and `spread` V A(omega), all (p, p). It leaves the covariance
    of cos^2 and A out, which for the curl-free and divergence-free Gaussian happens to help.
    """
    return float(0.5 * np.linalg.norm((twice + zero) @ mean - 2 * at @ at, 2) + np.linalg.norm(spread, 2))


def munkhoeva_printed(d: int, ratio: float, epsilon: float, columns: int, *, bound: float | None = None) -> float:
    """Proposition 3.1 of Munkhoeva et al. (2018) for the Gaussian: beta_d (l / (s eps))^(2d/(d+1))
    exp(-D eps^2 / (8 M^2 (d + 1))), beta_d = (d^(-d/(d+1)) + d^(1/(d+1))) 2^((6d+1)/(d+1)) (d/(d+1))^(d/(d+1)).

    `ratio` is the inputs' diameter l over the length-scale s; `columns` is their D, 2 (d + 1) for each of n rules.
    `bound` is M, the sup of |1 - f(rho z)| / rho^2: ratio^2 / 2, which the paper takes for 1/2. Even so it does not
    follow from the proof at hand: the d + 1 points of a rule share a rotation, so that D points are n independent
    terms, of range M. See `quadrature_uniform`.
    """
    positive(d=d, ratio=ratio, epsilon=epsilon, columns=columns)
    M = 0.5 * ratio**2 if bound is None else bound
    return total(
        _log_beta(d) + 2 * d / (d + 1) * math.log(ratio / epsilon) - columns * epsilon**2 / (8 * M**2 * (d + 1))
    )


def munkhoeva_rff_printed(d: int, ratio: float, epsilon: float, columns: int) -> float:
    """What Munkhoeva et al. (2018) set beside it: independent frequencies, exp(-D eps^2 / (8 (d + 1))), the factor
    that of Sutherland & Schneider (2015), proposition 2, for features with a random phase.

    That proposition has 32 (d + 1) for 8 (d + 1): the summands 2 cos cos have range 4. Cosine and sine pairs,
    which are what both compare with, have 8 (d + 2) and another factor: see `sutherland_schneider`.
    """
    positive(d=d, ratio=ratio, epsilon=epsilon, columns=columns)
    factor = _log_beta(d) + d / (d + 1) * math.log((3 * d + 3) / (2 * d))
    return total(factor + 2 * d / (d + 1) * math.log(ratio / epsilon) - columns * epsilon**2 / (8 * (d + 1)))


def _log_beta(d: int) -> float:
    factor = math.log(d ** (-d / (d + 1)) + d ** (1 / (d + 1)))
    return factor + (6 * d + 1) / (d + 1) * math.log(2) + d / (d + 1) * math.log(d / (d + 1))
