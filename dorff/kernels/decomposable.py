"""Decomposable kernels: a scalar kernel times an output matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.measure import Measure
from dorff.kernels.operator import BaseKernel
from dorff.kernels.output import Output, as_output
from dorff.kernels.scalar import FloatArray, ScalarKernel


@final
@dataclass(frozen=True, eq=False)
class Decomposable(BaseKernel):
    """k0(x, z) A (Brault 2016, definition 7).

    `output` says what A is: an `Output`, one of the names "identity", "covariance", "simplex" and "learned", or a
    symmetric positive semi-definite matrix (p, p). Its rank is what it costs.
    """

    scalar: ScalarKernel
    output: Output

    def __init__(
        self, scalar: ScalarKernel, output: Output | str | Mapping[str, Any] | npt.ArrayLike = "identity"
    ) -> None:
        object.__setattr__(self, "scalar", scalar)
        object.__setattr__(self, "output", as_output(output))
        object.__setattr__(self, "measure", Measure.UNBOUNDED)

    @property
    def matrix(self) -> FloatArray:
        """A (p, p); InputError before `fix` where it takes its size or its numbers from the data."""
        return self.output.matrix(self._p)

    @property
    def _p(self) -> int:
        p = self.output.p
        if p is None:
            waiting = f"the output matrix '{self.output.config()}' is known only with the targets"
            raise InputError(f"{waiting}; use kernel.fix(d, p) first")
        return p

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> Decomposable:
        self.scalar.check(d)
        return Decomposable(self.scalar, self.output.fixed(p, covariance))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return self.scalar.gram(X, Z)[:, :, None, None] * self.matrix

    def root(self, omega: FloatArray) -> FloatArray:
        root = self.output.root(self._p)
        return np.broadcast_to(root, (len(omega), *root.shape)).copy()

    def trace(self, d: int, p: int) -> float:
        return self.output.trace(p)

    def config(self) -> dict[str, Any]:
        return {"type": "decomposable", "scalar": self.scalar.config(), "output": self.output.config()}
