"""The features that serve every kernel of a job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dorff import frequencies, kernels
from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.kernels.scalar import FloatArray
from dorff.spec import Job


def make_recipe(
    candidates: Sequence[kernels.OperatorKernel], dataset: Dataset, job: Job, observe: FloatArray | None
) -> Recipe:  # fmt: skip
    """The features that serve every kernel: of the one, or of the mixture of all."""
    d, p = dataset.d, dataset.q if observe is None else observe.shape[1]
    if dataset.labels is not None and job.solve.observe is not None:
        raise InputError("solve.observe: goes with targets of numbers, not with classes; leave it out")
    fixed = [kernel.fix(d, p, np.eye(p)) for kernel in candidates]
    kernel = kernels.mixture(fixed, d, p)
    chosen = job.features.sampler.model_dump() if "sampler" in job.features.model_fields_set else None
    sampler = frequencies.from_config(chosen) if chosen else frequencies.default_sampler(kernel)
    if len(fixed) > 1 and not sampler.mixes and len(sampler.laws(kernel, d, p)) > 1:
        raise InputError(
            "kernel: a list of kernels of several spectra is served by a mixture of them, which sampler "
            f"{sampler.config()['type']} cannot draw; use iid, orthogonal or qmc"
        )
    return Recipe(kernel, sampler, d, p, max(job.features.counts), job.solve.intercept)
