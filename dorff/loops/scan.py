"""One look at a block of numbers: its bounds, and whether all are finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dorff.loops.config import loop

F64 = NDArray[np.float64]


def scan(block: F64, low: F64, high: F64) -> bool:
    """Lower `low` and raise `high` (d,) to the columns' bounds; False, with the bounds spoilt, unless all is finite.

    `block` (n, d) float64, C-contiguous. One pass over memory, where NumPy would take four.
    """
    wrong = np.zeros(block.shape[1])
    _scan(block, low, high, wrong)
    return not wrong.any()


@loop
def _scan(block: F64, low: F64, high: F64, wrong: F64) -> None:
    rows, columns = block.shape
    for i in range(rows):
        row = block[i]
        for j in range(columns):
            value = row[j]
            wrong[j] += value - value  # 0 for finite numbers, NaN for the others
            low[j] = min(low[j], value)
            high[j] = max(high[j], value)
