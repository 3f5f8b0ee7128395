"""Feature maps as plain JSON and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features.base import FeatureMap, ScalarMap
from dorff.features.explicit import Eigenfunctions, Maclaurin, Monomials
from dorff.features.projected import Projected
from dorff.frequencies import transform_from
from dorff.frequencies.transforms import Arrays
from dorff.kernels import GaussianWeighted, Mercer, scalar_from_config


def feature_arrays(features: FeatureMap) -> Arrays:
    """Every array of a feature map, by name."""
    return {**features.phi.arrays(), "center": features.center, "scale": features.scale}


def features_from(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> FeatureMap:
    """The map whose `phi.config()` and `feature_arrays` these are; InputError where they do not fit each other."""
    try:
        features = FeatureMap(_scalar_map(config, arrays), arrays["center"], arrays["scale"])
        known = features.center.shape == features.scale.shape == (features.d,)
        fit = known and bool(np.all(features.scale > 0)) and features.phi.fits()
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"the feature map's arrays do not fit each other ({error})") from error
    if not fit:
        raise InputError("the feature map's arrays do not fit each other")
    return features


def _scalar_map(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ScalarMap:
    kind = config["type"]
    if kind == "projected":
        phi = scalar_from_config(config["phi"]) if config["phi"] else None
        if phi is not None and not isinstance(phi, GaussianWeighted):
            raise InputError(f"{config['phi']} has no activation")
        return Projected(
            transform_from(config["transform"], arrays), arrays["feature_weights"], phi,
            bool(config["reflected"]), float(config["centre"]), bool(config["centre_column"]),
        )  # fmt: skip
    if kind == "monomials":
        return Monomials(int(config["d"]), arrays["factors"], arrays["feature_weights"])
    if kind == "maclaurin":
        return Maclaurin(arrays["signs"], arrays["degrees"], arrays["feature_weights"])
    if kind == "eigenfunctions":
        kernel = scalar_from_config(config["kernel"])
        if not isinstance(kernel, Mercer):
            raise InputError(f"{config['kernel']} has no eigenfunctions")
        return Eigenfunctions(kernel, int(config["d"]), arrays["indices"], arrays["feature_weights"])
    raise InputError(f"feature map {kind!r} is not known; it is of a newer version of dorff")
