"""How many features are enough: error bounds of random features, corrected where the papers' print is false."""

from dorff.bounds.constants import Constants, features_needed, gamma_orlicz, orlicz_norm, variance, variance_bound
from dorff.bounds.operators import (
    brault_uniform,
    daniely_function,
    daniely_pointwise,
    daniely_risk,
    least_norm,
    minh_pointwise,
    minh_uniform,
    quadrature_uniform,
    rahimi_recht,
    ridge_deviation,
    ridge_epsilon,
    sriperumbudur_szabo,
    sutherland_schneider,
)
