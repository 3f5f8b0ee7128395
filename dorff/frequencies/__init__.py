"""Frequencies: where the random features come from."""

from collections.abc import Mapping
from typing import Any

from dorff.errors import InputError
from dorff.frequencies.base import Cost, DenseSampler, Frequencies, Law, Sampler, first_weights
from dorff.frequencies.landmarks import Landmarks
from dorff.frequencies.lattice import Lattice
from dorff.frequencies.paths import Paths
from dorff.frequencies.quadrature import Quadrature
from dorff.frequencies.samplers import IID, QMC, ROM, SORF, Fastfood, GaussQuadrature, Orthogonal
from dorff.frequencies.transforms import Arrays, Dense, Modes, Sparse, Transform, transform_from
from dorff.kernels import OperatorKernel, Skeleton, Spectral
from dorff.spec.registry import SAMPLERS, kind_of


def default_sampler(kernel: OperatorKernel, d: int | None = None) -> Sampler:
    """Return the sampler of a kernel for which none is named.

    Orthogonal, or IID where rotations change a law: products over inputs, fields with unequal length-scales. Paths
    where there is a skeleton, but landmarks where `d`, the number of inputs, is given and the skeleton's random
    features would have an infinite variance or too many factors, as those of relu over spheres.
    """
    skeletons = [base.scalar for _, base in kernel.terms() if isinstance(base.scalar, Skeleton)]
    if skeletons:
        return (
            Landmarks()
            if d is not None and not all(_has_random_features(skeleton, d) for skeleton in skeletons)
            else Paths()
        )
    laws = [(base.scalar, base.measures[0] if base.measure is None else base.measure) for _, base in kernel.terms()]
    turned = any(isinstance(scalar, Spectral) and not scalar.rotation_invariant(measure) for scalar, measure in laws)
    return IID() if turned else Orthogonal()


def _has_random_features(skeleton: Skeleton, d: int) -> bool:
    skeleton.check(d)
    try:
        skeleton.check_random_features(d)
    except InputError:
        return False
    return True


def from_config(config: Mapping[str, Any]) -> Sampler:
    """The sampler that `Sampler.config` (or `features.sampler` of a job) describes, or InputError."""
    kind = kind_of(config)
    entry = SAMPLERS.get(kind)
    if entry is None:
        raise InputError(f"features.sampler.type: {kind!r} is not known; use one of: {', '.join(SAMPLERS.names)}")
    try:
        sampler = entry.build(**{name: value for name, value in config.items() if name != "type"})
    except TypeError as error:
        raise InputError(f"features.sampler: {error}") from error
    if not isinstance(sampler, Sampler):
        raise InputError(f"features.sampler.type: {kind} of another package builds no Sampler")
    return sampler
