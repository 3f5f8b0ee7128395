"""What `dorff.exact.ExactRidge.fit` holds and does, for the tables that set it beside random features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dorff import exact
from dorff.kernels import OperatorKernel


@final
@dataclass(frozen=True)
class ExactCost:
    """What an exact fit holds at its peak, in bytes, and does, in floating-point operations."""

    bytes: int
    flops: float


def exact_cost(kernel: OperatorKernel, n: int, p: int, observed: int | None = None) -> ExactCost:
    """Of n rows, p outputs and as many observed values of a row, or `observed`, none missing.

    In general one matrix of (n q)^2 numbers, factored in place: (n q)^3 / 3 flops. One scalar kernel times a matrix
    A takes two of n^2 and a factor for each distinct eigenvalue of C A C^T: those of A are counted, or all q if
    `observed` is given. `kernel` must have its output matrices fixed.
    """
    q, right = observed or p, p + 1
    separable = exact._separable(kernel)
    if separable is None:
        rows, matrices, factors = n * q, 1, 1
    else:
        rows, matrices, right = n, 2, q * right
        factors = q if observed else len(exact._clusters(np.linalg.eigh(separable[1])[0]))
    flops = factors * rows**3 / 3 + 2.0 * rows**2 * right
    return ExactCost(8 * (matrices * rows**2 + 6 * n * q * (p + 1)) + 2 * exact.BLOCK_BYTES, flops)
