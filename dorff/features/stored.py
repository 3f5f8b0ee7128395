"""Feature maps as plain JSON and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features.base import FeatureMap, ScalarMap, numbers
from dorff.features.expansions import Eigenfunctions, Maclaurin, Monomials
from dorff.features.projected import Projected
from dorff.frequencies import transform_from
from dorff.frequencies.transforms import Arrays
from dorff.kernels import GaussianWeighted, Mercer, scalar_from_config


def feature_arrays(features: FeatureMap) -> Arrays:
    """Every array of a feature map, by name."""
    return {**features.phi.arrays(), "center": features.center, "scale": features.scale}


def features_from(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> FeatureMap:
    """The map whose `phi.config()` and `feature_arrays` these are; InputError where they do not fit each other, or
    hold what is not finite. Either may come from anybody; no memory is taken but for what the arrays are read with."""
    try:
        features = FeatureMap(_scalar_map(config, arrays), arrays["center"], arrays["scale"])
        fit = features.phi.fits() and numbers((features.d,), features.center, features.scale)
        fit = fit and bool(np.all(features.scale > 0)) and features.m > 0
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"the feature map's arrays do not fit each other ({error})") from error
    if not fit:
        raise InputError("the feature map's arrays do not fit each other, or hold numbers that are not finite")
    return features


def _scalar_map(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ScalarMap:
    kind = config["type"]
    if kind == "projected":
        phi = None if config["phi"] is None else scalar_from_config(config["phi"])
        if phi is not None and not isinstance(phi, GaussianWeighted):
            raise InputError(f"{config['phi']} has no activation")
        return Projected(
            transform_from(config["transform"], arrays), arrays["feature_weights"], phi,
            config["reflected"] is True, float(config["centre"]), config["centre_column"] is True,
        )  # fmt: skip
    if kind == "monomials":
        return Monomials(_inputs(config), arrays["factors"], arrays["feature_weights"])
    if kind == "maclaurin":
        return Maclaurin(arrays["signs"], arrays["degrees"], arrays["feature_weights"])
    if kind == "eigenfunctions":
        kernel = scalar_from_config(config["kernel"])
        if not isinstance(kernel, Mercer):
            raise InputError(f"{config['kernel']} has no eigenfunctions")
        return Eigenfunctions(kernel, _inputs(config), arrays["indices"], arrays["feature_weights"])
    raise InputError(f"feature map {kind!r} is not known; it is of a newer version of dorff")


def _inputs(config: Mapping[str, Any]) -> int:
    d = config["d"]
    if type(d) is not int or d < 1:
        raise InputError(f"d of a feature map must be a whole number of 1 or more, not {d!r}")
    return d
