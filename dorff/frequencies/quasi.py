"""Quasi-Monte Carlo frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.base import DenseSampler
from dorff.kernels import Measure, Spectral
from dorff.kernels.scalar import FloatArray
from dorff.spec.part import OneOf, Typed


class QMCSpec(Typed):
    """A low-discrepancy sequence. Without scrambling the kernel's estimate is biased."""

    sequence: Annotated[str, OneOf("sobol", "halton")] = "sobol"
    scramble: bool = True


@final
@dataclass(frozen=True)
class QMC(DenseSampler):
    """A low-discrepancy sequence sent through the inverse of the law's distribution function (Yang, Sindhwani,
    Avron & Mahoney 2014), for every kernel and measure.

    `sequence` "sobol" or "halton". Scrambled, it is random and unbiased (Owen 1997); else every seed gives the same
    frequencies and a bias.
    """

    sequence: str = "sobol"
    scramble: bool = True

    def __post_init__(self) -> None:
        if self.sequence not in ("sobol", "halton"):
            raise InputError(f"sequence must be 'sobol' or 'halton', not {self.sequence!r}")
        if not isinstance(self.scramble, bool):
            raise InputError(f"scramble must be True or False, not {self.scramble!r}")

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        from scipy.stats import qmc  # large, and only this sampler needs it

        if self.sequence == "sobol" and law.dims(d, measure) > qmc.Sobol.MAXDIM:
            raise InputError(
                f"sampler: qmc: Sobol's sequence ends at {qmc.Sobol.MAXDIM} dimensions, this needs "
                f"{law.dims(d, measure)}; set sequence: halton, or use orthogonal"
            )

    def seeded(self, d: int, count: int) -> bool:
        return self.scramble

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        from scipy.stats import qmc

        kind = qmc.Sobol if self.sequence == "sobol" else qmc.Halton
        points = kind(law.dims(d, measure), scramble=self.scramble, rng=rng)
        if not self.scramble:
            points.fast_forward(1)  # past the origin, which is no frequency
        if self.sequence == "sobol" and self.scramble:
            # Whole powers of two are balanced; of fewer the first ones are taken.
            u = points.random_base2(max(count - 1, 0).bit_length())[:count]
        else:
            u = points.random(count)
        return law.quantiles(np.clip(u, 2.0**-53, 1 - 2.0**-53), d, measure)

    def config(self) -> dict[str, Any]:
        return {"type": "qmc", "sequence": self.sequence, "scramble": self.scramble}
