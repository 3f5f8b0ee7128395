"""Feature maps: a block of inputs in, a block of scalar features out."""

from dorff.features.base import FeatureMap, Product, ScalarMap
from dorff.features.projected import Projected, cut, estimates_in_parts, modes_of, with_lengthscale
from dorff.features.recipe import Drawn, endless, feature_arrays, features_from, folded, outside, periods_of, sampler_of
from dorff.features.recipe import Recipe as Recipe  # README's
