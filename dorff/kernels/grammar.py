"""From the words of JOB.yaml to scalar kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dorff.errors import InputError
from dorff.kernels.explicit import Mercer, Polynomial
from dorff.kernels.isotropic import Gaussian, Matern, RationalQuadratic
from dorff.kernels.pointwise import ArcCosine, Pointwise
from dorff.kernels.product import Cauchy, Laplacian
from dorff.kernels.scalar import ScalarKernel

# type: (what builds it, the keys it needs, the keys it may have)
_TYPES: dict[str, tuple[Callable[..., ScalarKernel], tuple[str, ...], tuple[str, ...]]] = {
    "gaussian": (Gaussian, ("lengthscale",), ()),
    "laplacian": (Laplacian, ("lengthscale",), ()),
    "matern": (Matern, ("lengthscale",), ("nu",)),
    "cauchy": (Cauchy, ("lengthscale",), ()),
    "rational_quadratic": (RationalQuadratic, ("lengthscale",), ("alpha",)),
    "arc_cosine": (ArcCosine, (), ("order",)),
    "polynomial": (Polynomial, ("degree",), ("offset", "scale")),
    "pointwise": (lambda *, function: Pointwise(function), ("function",), ()),
    "mercer": (Mercer.named, ("system",), ("count",)),
}


def scalar_from_config(config: Mapping[str, Any]) -> ScalarKernel:
    """The scalar kernel that `ScalarKernel.config` (or a job's `scalar:`) describes, or InputError."""
    kind = config.get("type")
    if kind not in _TYPES:
        raise InputError(f"kernel.scalar.type: {kind!r} is not built; use one of {', '.join(_TYPES)}")
    build, needed, optional = _TYPES[kind]
    for key in needed:
        if key not in config:
            raise InputError(f"kernel.scalar.{key} is missing from a {kind} kernel; add it")
    for key in config:
        if key not in ("type", *needed, *optional):
            known = ", ".join((*needed, *optional))
            raise InputError(f"kernel.scalar.{key} is not known to a {kind} kernel; use {known}")
    return build(**{key: value for key, value in config.items() if key != "type"})
