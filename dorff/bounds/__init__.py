"""How many features are enough: error bounds of random features, corrected where the papers' print is false."""

from dorff.bounds.concentration import features_needed, gamma_orlicz, orlicz_norm
from dorff.bounds.constants import Constants
from dorff.bounds.operators import (
    brault_printed,
    brault_uniform,
    corrected_spread,
    minh_pointwise,
    minh_uniform,
    printed_spread,
    rahimi_recht,
    sriperumbudur_szabo,
    sutherland_schneider,
)
from dorff.bounds.variance import (
    munkhoeva_printed,
    munkhoeva_rff_printed,
    quadrature_uniform,
    ridge_deviation,
    ridge_epsilon,
    variance,
    variance_bound,
    variance_printed,
)

__all__ = [
    "Constants",
    "brault_printed",
    "brault_uniform",
    "corrected_spread",
    "features_needed",
    "gamma_orlicz",
    "minh_pointwise",
    "minh_uniform",
    "munkhoeva_printed",
    "munkhoeva_rff_printed",
    "orlicz_norm",
    "printed_spread",
    "quadrature_uniform",
    "rahimi_recht",
    "ridge_deviation",
    "ridge_epsilon",
    "sriperumbudur_szabo",
    "sutherland_schneider",
    "variance",
    "variance_bound",
    "variance_printed",
]
