"""Cosine and sine of every entry, at the speed of the vector unit; step and ramp features (Heaviside, ReLU) of the
arc-cosine kernels of order 0 and 1 (Cho & Saul 2009), and their odd and even parts."""

import math
from collections.abc import Callable

import numpy as np

from dorff.loops.config import loop
from dorff.loops.rowwise import F64, Strided, block, flat, output, parameter

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
    and are as accurate. NaN and Inf give NaN. An entry's result does not depend on its place or neighbours. Raises
    InputError where shape, type or memory layout does not fit."""
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

    z        (b, D) float64, C-ordered rows (they may lie in a wider buffer).
    out      (b, >= D), rows likewise; further columns are left as they are.
    weights  (D,), one for each column of z, contiguous.

    Raises InputError where shape, type or memory layout does not fit, or where out overlaps z."""
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
