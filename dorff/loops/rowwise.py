"""Loops over whole rows: the bounds of a block's columns, and sums of weighted differences of rows, which are what a
graph's Laplacian does to the features of its nodes. And what all loops ask of their arguments, checked in a few
microseconds."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dorff.errors import InputError
from dorff.loops.config import loop

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@loop
def scan(block: F64, low: F64, high: F64) -> bool:
    """Lower `low` and raise `high` (d,) to the columns' bounds; False, with the bounds spoilt, unless all is finite.

    `block` (n, d) float64, C-contiguous. One pass over memory, where NumPy would take four."""
    rows, columns = block.shape
    wrong = np.zeros(columns)
    for i in range(rows):
        row = block[i]
        for j in range(columns):
            value = row[j]
            wrong[j] += value - value  # 0 for finite numbers, NaN for the others
            low[j] = min(low[j], value)
            high[j] = max(high[j], value)
    total = 0.0  # `any` would load what else Numba knows of arrays, at each start
    for j in range(columns):
        total += wrong[j]
    return total == 0.0


@loop
def differences(G: F64, at: I64, starts: I64, others: I64, weights: F64, out: F64) -> None:
    """out[k] = sum of weights[e] (G[at[k]] - G[others[e]]) over e in starts[k]..starts[k + 1] - 1.

    G (n, w) and `out` (b, w) float64 with contiguous rows; at (b,), starts (b + 1,), others and weights (edges,). Four
    rows are taken at a time; the order of the sum depends on their number alone. Equal rows differ by 0 to the bit."""
    for k in range(len(at)):
        row, mine, e, end = out[k], G[at[k]], starts[k], starts[k + 1]
        for c in range(len(row)):
            row[c] = 0.0
        while e + 4 <= end:
            z0, z1, z2, z3 = G[others[e]], G[others[e + 1]], G[others[e + 2]], G[others[e + 3]]
            w0, w1, w2, w3 = weights[e], weights[e + 1], weights[e + 2], weights[e + 3]
            for c in range(len(row)):
                near = w0 * (mine[c] - z0[c]) + w1 * (mine[c] - z1[c])
                row[c] += near + (w2 * (mine[c] - z2[c]) + w3 * (mine[c] - z3[c]))
            e += 4
        while e < end:
            z0, w0 = G[others[e]], weights[e]
            for c in range(len(row)):
                row[c] += w0 * (mine[c] - z0[c])
            e += 1


Array = NDArray[Any]
Strided = tuple[Array, int]  # rows in a flat array, and the entries from row to row


def block(name: str, a: Array) -> None:
    """Refuse what is no float64 matrix with contiguous rows; the rows may lie in a wider buffer."""
    if a.ndim != 2 or a.dtype != np.float64:
        was = f"{a.dtype} of shape {a.shape}"
        raise InputError(f"{name} must be a float64 matrix, but is {was}; convert it.")
    if a.flags.c_contiguous:
        return
    tight = a.shape[1] <= 1 or a.strides[1] == a.itemsize
    step, odd_bytes = divmod(a.strides[0], a.itemsize)
    if a.size and not (tight and (a.shape[0] == 1 or (odd_bytes == 0 and step >= a.shape[1]))):
        raise InputError(f"{name} must have C-ordered rows, but has strides {a.strides} bytes; copy it.")


def output(out: Array, source: str, a: Array, columns: int) -> None:
    """Refuse an `out` that cannot hold `columns` results for each row of the block `a`, called `source`."""
    block("out", out)
    if out.shape[0] != a.shape[0] or out.shape[1] < columns:
        wanted = f"float64 of shape ({a.shape[0]}, {columns} or more)"
        raise InputError(f"out must be {wanted} for this {source}, but is {out.dtype} of shape {out.shape}.")
    if not out.flags.writeable:
        raise InputError("out must be writeable, but is read-only; pass a copy.")
    if np.may_share_memory(a, out):
        raise InputError(f"out must not overlap {source} in memory; give {source} a buffer of its own.")


def parameter(name: str, a: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """`a`, which must have this shape and type and be C-contiguous, flat and read-only (one signature for all)."""
    if a.shape != shape or a.dtype != dtype or not a.flags.c_contiguous:
        kind = "C-contiguous" if a.flags.c_contiguous else "not C-contiguous"
        wanted = f"C-contiguous {np.dtype(dtype)} of shape {shape}"
        raise InputError(f"{name} must be {wanted}, but is {kind} {a.dtype} of shape {a.shape}; convert it.")
    flat: Array = a.reshape(-1)
    flat.setflags(write=False)  # this view, not `a`
    return flat


def flat(a: Array, used: int, *, writeable: bool = False) -> Strided:
    """The first `used` columns of the rows of `a` as one flat array, and the entries from row to row.

    Numba knows that rows are contiguous, as a vector loop needs, only when they are cut from a flat array.
    Inputs are read-only so that there is one signature, and one compilation, for all of them."""
    if a.flags.c_contiguous:
        view, step = a.reshape(-1), a.shape[1]
        view.setflags(write=writeable)
        return view, step
    step = a.strides[0] // a.itemsize if a.shape[0] > 1 else used  # a lone row may carry any stride
    length = (a.shape[0] - 1) * step + used
    return as_strided(a, (length,), (a.itemsize,), writeable=writeable), step
