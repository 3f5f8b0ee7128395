"""Loops over whole rows: the bounds of a block's columns; and sums of weighted differences of rows, which are what a
graph's Laplacian does to the features of its nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dorff.loops.config import loop

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


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


@loop
def differences(G: F64, at: I64, starts: I64, others: I64, weights: F64, out: F64) -> None:
    """out[k] = sum of weights[e] (G[at[k]] - G[others[e]]) over e in starts[k]..starts[k + 1] - 1.

    G (n, w) and `out` (b, w) float64 with contiguous rows; at (b,), starts (b + 1,), others and weights (edges,).
    Four rows are taken at a time; the order of the sum depends on their number alone. Equal rows differ by 0 to the
    bit.
    """
    for k in range(len(at)):
        row, mine, e, end = out[k], G[at[k]], starts[k], starts[k + 1]
        for c in range(len(row)):
            row[c] = 0.0
        while e + 4 <= end:
            z0, z1, z2, z3 = G[others[e]], G[others[e + 1]], G[others[e + 2]], G[others[e + 3]]
            _add_four(mine, z0, z1, z2, z3, weights[e], weights[e + 1], weights[e + 2], weights[e + 3], row)
            e += 4
        while e < end:
            _add(mine, G[others[e]], weights[e], row)
            e += 1


@loop
def _add(x: F64, z: F64, weight: float, out: F64) -> None:
    for c in range(len(out)):
        out[c] += weight * (x[c] - z[c])


@loop
def _add_four(
    x: F64, z0: F64, z1: F64, z2: F64, z3: F64, w0: float, w1: float, w2: float, w3: float, out: F64
) -> None:
    for c in range(len(out)):
        near = w0 * (x[c] - z0[c]) + w1 * (x[c] - z1[c])
        out[c] += near + (w2 * (x[c] - z2[c]) + w3 * (x[c] - z3[c]))
