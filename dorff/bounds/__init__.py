"""How many features are enough: error bounds of random features, corrected where the papers' print is false."""

from dorff.bounds.concentration import features_needed, gamma_orlicz, orlicz_norm
from dorff.bounds.constants import (
    Constants,
    quadrature_uniform,
    ridge_deviation,
    ridge_epsilon,
    variance,
    variance_bound,
)
from dorff.bounds.operators import (
    brault_uniform,
    minh_pointwise,
    minh_uniform,
    rahimi_recht,
    sriperumbudur_szabo,
    sutherland_schneider,
)
