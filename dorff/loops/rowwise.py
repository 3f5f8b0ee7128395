"""Loops over rows: the bounds of a block's columns; sums of weighted differences of rows, which are what a graph's
Laplacian does to the features of its nodes; cosine and sine of every entry, at the speed of the vector unit; step and
ramp features (Heaviside, ReLU) of the arc-cosine kernels of order 0 and 1 (Cho & Saul 2009), and their odd and even
parts. And what all loops ask of their arguments, checked in a few microseconds."""

import math
from collections.abc import Callable
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
Ints = NDArray[np.integer[Any]]
Strided = tuple[Array, int]  # rows in a flat array, and the entries from row to row


def block(name: str, a: Array) -> None:
    """Refuse what is no float64 matrix with contiguous rows; the rows may lie in a wider buffer."""
    if a.ndim != 2 or a.dtype != np.float64:
        raise InputError(f"{name} must be a float64 matrix, but is {a.dtype} of shape {a.shape}; convert it.")
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
    """The first `used` columns of the rows of `a` as one flat array, and the entries from row to row. Numba knows
    that rows are contiguous, as a vector loop needs, only when they are cut from a flat array. Inputs are read-only
    so that there is one signature, and one compilation, for all of them."""
    if a.flags.c_contiguous:
        view, step = a.reshape(-1), a.shape[1]
        view.setflags(write=writeable)
        return view, step
    step = a.strides[0] // a.itemsize if a.shape[0] > 1 else used  # a lone row may carry any stride
    return as_strided(a, ((a.shape[0] - 1) * step + used,), (a.itemsize,), writeable=writeable), step


# pi/2 in three parts (Cody & Waite 1980; the values of fdlibm, Sun Microsystems 1993). The first two have 33
# bits, so their product with a quadrant number below 2^20 is exact, with fused multiply-add or without.
_PIO2_1, _PIO2_2, _PIO2_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
_TWO_OVER_PI = 0.63661977236758134308
_LIMIT = 1.5e6  # |z| up to which the quadrant number stays below 2^20
_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer, which is then the low bits of the sum

# fdlibm's minimax polynomials on [-pi/4, pi/4] (k_sin.c, k_cos.c).
_S1, _S2, _S3 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
_S4, _S5, _S6 = 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10
_C1, _C2, _C3 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
_C4, _C5, _C6 = -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11


def trig_pairs(z: F64, out: F64, weights: F64) -> None:
    """Write `weights * cos(z)` and `weights * sin(z)` side by side, in one pass and on one thread.

    z        (b, D) phases in radians, float64, C-ordered rows (they may lie in a wider buffer).
    out      (b, >= 2D), rows likewise: `out[:, :D]` becomes the cosines, `out[:, D:2D]` the sines; columns from 2D on
             are left as they are. May not overlap z.
    weights  (D,), one for each column of z, contiguous.

    For |z| <= 1.5e6 the absolute error before weighting is at most 3e-16; larger finite entries take libm, one by one,
    and are as accurate. NaN and Inf give NaN. Entries do not hang on each other. InputError for what does not fit."""
    _run(_trig_rows, z, out, weights, halves=2)


@loop
def _trig_rows(rows: Strided, into: Strided, b: int, weights: F64) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        x, at = z[i * z_step : i * z_step + D], i * out_step
        c, s = out[at : at + D], out[at + D : at + 2 * D]
        if _trig_row(x, c, s, weights):
            _mend(x, c, s, weights)


@loop
def _trig_row(x: F64, c: F64, s: F64, w: F64) -> int:
    """One row; returns how many entries need `_mend`. Selects, not branches: else it is not vectorised."""
    far = 0
    for j in range(x.size):
        shifted = x[j] * _TWO_OVER_PI + _ROUND
        n = shifted - _ROUND
        quadrant = np.float64(shifted).view(np.int64)
        r = ((x[j] - n * _PIO2_1) - n * _PIO2_2) - n * _PIO2_3
        u = r * r
        sine = r + r * u * (_S1 + u * (_S2 + u * (_S3 + u * (_S4 + u * (_S5 + u * _S6)))))
        cosine = 1.0 - u * (0.5 - u * (_C1 + u * (_C2 + u * (_C3 + u * (_C4 + u * (_C5 + u * _C6))))))
        odd = (quadrant & 1) != 0
        c[j] = (sine if odd else cosine) * (-w[j] if ((quadrant + 1) & 2) != 0 else w[j])
        s[j] = (cosine if odd else sine) * (-w[j] if (quadrant & 2) != 0 else w[j])
        far += not (abs(x[j]) <= _LIMIT)
    return far


@loop
def _mend(x: F64, c: F64, s: F64, w: F64) -> None:
    """Redo by libm the entries too large for the three-part reduction, and those not finite."""
    for j in range(x.size):
        if not (abs(x[j]) <= _LIMIT):
            c[j] = w[j] * math.cos(x[j])
            s[j] = w[j] * math.sin(x[j])


STEP, SIGN, RAMP, ABSOLUTE = range(4)


def pieces(z: F64, out: F64, weights: F64, piece: int) -> None:
    """Write `weights * phi(z)`; NaN stays NaN.

    phi is the `piece`: STEP, 0 below zero, 1/2 at zero and 1 above; SIGN, 0 at zero; RAMP, max(z, 0); or ABSOLUTE.
    Arguments are as in `trig_pairs`, but `out` is (b, >= D)."""
    _run(_piece_rows, z, out, weights, piece)


def _run(rows: Callable[..., None], z: F64, out: F64, weights: F64, *piece: int, halves: int = 1) -> None:
    block("z", z)
    b, D = z.shape
    output(out, "z", z, halves * D)
    flat_weights = parameter("weights", weights, (D,), np.float64)
    if z.size:
        rows(flat(z, D), flat(out, halves * D, writeable=True), b, flat_weights, *piece)


@loop
def _piece_rows(rows: Strided, into: Strided, b: int, weights: F64, piece: int) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        x, y = z[i * z_step : i * z_step + D], out[i * out_step : i * out_step + D]
        if piece == STEP:
            _levels(x, y, weights, 0.0, 0.5)
        elif piece == SIGN:
            _levels(x, y, weights, -1.0, 0.0)
        elif piece == RAMP:
            for j in range(D):
                y[j] = weights[j] * (0.0 if x[j] <= 0 else x[j])
        else:
            for j in range(D):
                y[j] = weights[j] * abs(x[j])


@loop
def _levels(x: F64, out: F64, w: F64, below: float, zero: float) -> None:
    for j in range(x.size):
        at_zero = zero if x[j] == 0 else x[j]  # NaN, where neither above nor below
        out[j] = w[j] * (1.0 if x[j] > 0 else (below if x[j] < 0 else at_zero))
