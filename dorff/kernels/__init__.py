"""Kernels: the mathematical objects, with exact values and spectra."""

from collections.abc import Mapping
from typing import Any

from dorff.errors import InputError
from dorff.kernels.decomposable import Decomposable
from dorff.kernels.explicit import Mercer, Polynomial
from dorff.kernels.grammar import scalar_from_config
from dorff.kernels.isotropic import Gaussian, Matern, RationalQuadratic
from dorff.kernels.measure import Measure
from dorff.kernels.multi_view import MultiView, View
from dorff.kernels.operator import BaseKernel, OperatorKernel, Sum, mixture
from dorff.kernels.output import Covariance, Factor, Graph, Identity, Learned, Matrix, Output, Simplex
from dorff.kernels.pointwise import ArcCosine, Pointwise
from dorff.kernels.product import Cauchy, Laplacian
from dorff.kernels.scalar import Activation, Explicit, GaussianWeighted, ScalarKernel, Spectral, median_lengthscale
from dorff.kernels.signature import FromSignature
from dorff.kernels.spectral import SpectralDensity
from dorff.kernels.stretched import Isotropic, Product
from dorff.kernels.tabulated import Tabulated
from dorff.kernels.vector_fields import CurlFree, DivergenceFree

__all__ = [
    "Activation",
    "ArcCosine",
    "BaseKernel",
    "Cauchy",
    "Covariance",
    "CurlFree",
    "Decomposable",
    "DivergenceFree",
    "Explicit",
    "Factor",
    "FromSignature",
    "Gaussian",
    "GaussianWeighted",
    "Graph",
    "Identity",
    "Isotropic",
    "Laplacian",
    "Learned",
    "Matern",
    "Matrix",
    "Measure",
    "Mercer",
    "MultiView",
    "OperatorKernel",
    "Output",
    "Pointwise",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "ScalarKernel",
    "Simplex",
    "Spectral",
    "SpectralDensity",
    "Sum",
    "Tabulated",
    "View",
    "from_config",
    "median_lengthscale",
    "mixture",
    "scalar_from_config",
]


def from_config(config: Mapping[str, Any]) -> OperatorKernel:
    """The operator kernel that `OperatorKernel.config` (or a job's `kernel:`) describes.

    Raises InputError for a type that is not known.
    """
    kind = config.get("type")
    if kind == "sum":
        terms = [(term["weight"], from_config(term["kernel"])) for term in config["terms"]]
        return Sum(terms, concatenate=config.get("concatenate", False))
    if kind == "multi_view":
        views = config["views"]
        if any(not isinstance(view["columns"], list | tuple) for view in views):
            raise InputError("kernel.views: columns must be a list of whole numbers")
        pairs = [(view["columns"], from_config(view["kernel"])) for view in views]
        return MultiView(pairs, [view.get("name") for view in views])
    if kind == "decomposable":
        return Decomposable(scalar_from_config(config["scalar"]), config["output"])
    fields = {"curl_free": CurlFree, "divergence_free": DivergenceFree}
    if kind not in fields:
        known = "decomposable, curl_free, divergence_free, sum or multi_view"
        raise InputError(f"kernel.type: {kind!r} is not known; use {known}")
    return fields[kind](scalar_from_config(config["scalar"]), config.get("measure"))
