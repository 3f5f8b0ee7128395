"""Frequencies: where the random features come from."""

from collections.abc import Mapping
from typing import Any

from dorff.errors import InputError
from dorff.frequencies.base import Frequencies, Sampler
from dorff.frequencies.samplers import IID, Orthogonal

__all__ = ["IID", "Frequencies", "Orthogonal", "Sampler", "from_config"]


def from_config(config: Mapping[str, Any]) -> Sampler:
    """The sampler that `Sampler.config` (or `features.sampler` of a job) describes, or InputError."""
    samplers = {"iid": IID, "orthogonal": Orthogonal}
    kind = config.get("type")
    if kind not in samplers:
        raise InputError(f"features.sampler.type: {kind!r} is not built; use iid or orthogonal")
    return samplers[kind]()
