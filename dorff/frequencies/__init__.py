"""Frequencies: where the random features come from."""

from collections.abc import Mapping
from typing import Any

from dorff.errors import InputError
from dorff.frequencies.base import DenseSampler, Law, RuleSampler, Sampler
from dorff.frequencies.found import Cost, Frequencies
from dorff.frequencies.grid import GaussQuadrature
from dorff.frequencies.independent import IID, Orthogonal
from dorff.frequencies.quadrature import Quadrature
from dorff.frequencies.quasi import QMC
from dorff.frequencies.structured import ROM, SORF, Fastfood
from dorff.frequencies.transforms import Dense, Transform, transform_from
from dorff.kernels import OperatorKernel, Spectral

__all__ = [
    "IID",
    "QMC",
    "ROM",
    "SORF",
    "Cost",
    "Dense",
    "DenseSampler",
    "Fastfood",
    "Frequencies",
    "GaussQuadrature",
    "Law",
    "Orthogonal",
    "Quadrature",
    "RuleSampler",
    "Sampler",
    "Transform",
    "default_sampler",
    "from_config",
    "transform_from",
]

_SAMPLERS: dict[str, type[Sampler]] = {
    "iid": IID,
    "orthogonal": Orthogonal,
    "sorf": SORF,
    "rom": ROM,
    "fastfood": Fastfood,
    "qmc": QMC,
    "gauss_quadrature": GaussQuadrature,
    "quadrature": Quadrature,
}


def default_sampler(kernel: OperatorKernel) -> Sampler:
    """Orthogonal, or IID for kernels with a law that rotations change, under the measure they prefer: Laplacian,
    Cauchy, and vector fields with unequal length-scales.
    """
    laws = [(base.scalar, base.measures[0] if base.measure is None else base.measure) for _, base in kernel.terms()]
    turned = any(isinstance(scalar, Spectral) and not scalar.rotation_invariant(measure) for scalar, measure in laws)
    return IID() if turned else Orthogonal()


def from_config(config: Mapping[str, Any]) -> Sampler:
    """The sampler that `Sampler.config` (or `features.sampler` of a job) describes, or InputError."""
    kind = config.get("type")
    if kind not in _SAMPLERS:
        raise InputError(f"features.sampler.type: {kind!r} is not known; use one of: {', '.join(_SAMPLERS)}")
    try:
        return _SAMPLERS[kind](**{name: value for name, value in config.items() if name != "type"})
    except TypeError as error:
        raise InputError(f"features.sampler: {error}") from error
