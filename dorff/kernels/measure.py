"""The probability laws that frequencies may be drawn from, given a scalar kernel's spectrum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from dorff.errors import InputError
from dorff.spec.registry import Config

_NAMES = ("unbounded", "trace", "defensive", "bounded")


@final
@dataclass(frozen=True)
class Measure:
    """The probability law rho of the frequencies, given a scalar kernel's spectral density rho_0.

    Minh (2016), sections 3.3-3.4; normalised each:

    - UNBOUNDED: rho_0 itself (eq. 37, 41);
    - TRACE: |omega|^2 rho_0 (eq. 54, 56), the trace measure of the curl-free and divergence-free kernels, where it
      has the least variance of all;
    - DEFENSIVE: (1 + |s omega|^2) rho_0, s the length-scale of each input (eq. 57, which has s = 1, whatever the
      inputs' unit): a mixture of the two others, whose weights are bounded both for kernels that grow like |omega|^2
      and for those that do not (the defensive importance sampling of Hesterberg 1995);
    - bounded(split): the Gaussian's exponent shared between law and weight (eq. 39 is the half split).

    Measures compare and hash by value.
    """

    name: str
    split: float | None = None

    UNBOUNDED: ClassVar[Measure]
    TRACE: ClassVar[Measure]
    DEFENSIVE: ClassVar[Measure]

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise InputError(f"measure must be one of {', '.join(_NAMES)}, not {self.name!r}")
        if self.name != "bounded":
            if self.split is not None:
                raise InputError(f"measure {self.name} has no split, which is bounded's alone; leave it out")
            return
        split = 0.5 if self.split is None else self.split
        if not isinstance(split, int | float) or not 0 < split < 1:
            raise InputError(
                f"split, the share of the exponent that moves to the weight, must lie between 0 and 1, not {split!r}"
            )
        object.__setattr__(self, "split", float(split))

    @classmethod
    def bounded(cls, split: float = 0.5) -> Measure:
        """The law with 1 - `split` of a Gaussian's exponent; the weight has the rest, and is bounded."""
        return cls("bounded", split)

    @classmethod
    def of(cls, value: Measure | str | Mapping[str, Any]) -> Measure:
        """The measure that `value` is, names or describes as `config` does; InputError for anything else."""
        if isinstance(value, Measure):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and "type" in value and set(value) <= {"type", "split"}:
            return cls(**{"name" if key == "type" else key: part for key, part in value.items()})
        raise InputError(f"measure must be {', '.join(_NAMES)} or {{type: bounded, split: 0.5}}, not {value!r}")

    def config(self) -> str | Config:
        """The measure in the grammar of JOB.yaml: its name, or a mapping where there is more to say."""
        return self.name if self.split in (None, 0.5) else {"type": self.name, "split": self.split}

    @property
    def tilted(self) -> bool:
        """Whether it asks for second moments of rho_0."""
        return self.name in ("trace", "defensive")

    @property
    def widening(self) -> float:
        """How much wider than rho_0 the law is, before any |omega|^2."""
        return 1.0 if self.split is None else 1.0 / math.sqrt(1.0 - self.split)

    def __str__(self) -> str:
        return self.name if self.split in (None, 0.5) else f"{self.name} (split {self.split:g})"


Measure.UNBOUNDED = Measure("unbounded")
Measure.TRACE = Measure("trace")
Measure.DEFENSIVE = Measure("defensive")
