"""Cosine and sine of every entry, at the speed of the vector unit; step and ramp features (Heaviside, ReLU) of the
arc-cosine kernels of order 0 and 1 (Cho & Saul 2009), and their odd and even parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dorff.loops.config import loop
from dorff.loops.rowwise import F32, F64, Floats, Strided, block, flat, output, parameter

# pi/2 in three parts (Cody & Waite 1980; the values of fdlibm, Sun Microsystems 1993). The first two have 33
# bits, so their product with a quadrant number below 2^20 is exact, with fused multiply-add or without.
_PIO2_1, _PIO2_2, _PIO2_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
_TWO_OVER_PI = 0.63661977236758134308
_LIMIT = 1.5e6  # |z| up to which the quadrant number stays below 2^20
_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer, which is then the low bits of the sum

# Minimax polynomials on [-pi/4, pi/4]: fdlibm's (k_sin.c, k_cos.c), and Cephes' (Moshier 1989) in float32.
_S1, _S2, _S3 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
_S4, _S5, _S6 = 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10
_C1, _C2, _C3 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
_C4, _C5, _C6 = -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11
_s1, _s2, _s3 = np.float32(-1.6666654611e-1), np.float32(8.3321608736e-3), np.float32(-1.9515295891e-4)
_c1, _c2, _c3 = np.float32(4.1666645683e-2), np.float32(-1.3887316255e-3), np.float32(2.4433157118e-5)
_half, _one = np.float32(0.5), np.float32(1.0)


def trig_pairs(z: Floats, out: Floats, weights: Floats) -> None:
    """Write `weights * cos(z)` and `weights * sin(z)` side by side, in one pass and on one thread.

    z        (b, D) phases in radians, float64 or float32, C-ordered rows (they may lie in a wider buffer).
    out      (b, >= 2D) of z's type, rows likewise: `out[:, :D]` becomes the cosines, `out[:, D:2D]` the sines;
             columns from 2D on are left as they are. May not overlap z.
    weights  (D,) of z's type, one for each column of z, contiguous.

    For |z| <= 1.5e6 the absolute error before weighting is at most 3e-16 in float64 and 1.2e-7 in float32;
    larger finite entries take libm, one by one, and are as accurate. NaN and Inf give NaN. An entry's result
    does not depend on its place or neighbours. Raises InputError where shape, type or memory layout does not fit.
    """
    block("z", z)
    b, D = z.shape
    output(out, "z", z, 2 * D)
    flat_weights = parameter("weights", weights, (D,), z.dtype)
    if z.size == 0:
        return
    rows: Callable[..., None] = _rows64 if z.dtype == np.float64 else _rows32
    rows(flat(z, D), flat(out, 2 * D, writeable=True), b, flat_weights)


@loop
def _rows64(rows: Strided, into: Strided, b: int, weights: F64) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        x, at = z[i * z_step : i * z_step + D], i * out_step
        c, s = out[at : at + D], out[at + D : at + 2 * D]
        if _row64(x, c, s, weights):
            _mend(x, c, s, weights)


@loop
def _row64(x: F64, c: F64, s: F64, w: F64) -> int:
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
def _rows32(rows: Strided, into: Strided, b: int, weights: F32) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        x, at = z[i * z_step : i * z_step + D], i * out_step
        c, s = out[at : at + D], out[at + D : at + 2 * D]
        if _row32(x, c, s, weights):
            _mend(x, c, s, weights)


@loop
def _row32(x: F32, c: F32, s: F32, w: F32) -> int:
    """As `_row64`; reduced in float64, since a float32 pi/2 runs out of bits at |z| of some thousands."""
    far = 0
    for j in range(x.size):
        wide = np.float64(x[j])
        shifted = wide * _TWO_OVER_PI + _ROUND
        n = shifted - _ROUND
        quadrant = np.int32(np.float64(shifted).view(np.int64))
        r = np.float32((wide - n * _PIO2_1) - n * _PIO2_2)
        u = r * r
        sine = r + r * u * (_s1 + u * (_s2 + u * _s3))
        cosine = _one - u * (_half - u * (_c1 + u * (_c2 + u * _c3)))
        odd = (quadrant & 1) != 0
        c[j] = (sine if odd else cosine) * (-w[j] if ((quadrant + 1) & 2) != 0 else w[j])
        s[j] = (cosine if odd else sine) * (-w[j] if (quadrant & 2) != 0 else w[j])
        far += not (abs(wide) <= _LIMIT)
    return far


@loop
def _mend(x: Floats, c: Floats, s: Floats, w: Floats) -> None:
    """Redo by libm the entries too large for the three-part reduction, and those not finite."""
    for j in range(x.size):
        wide = np.float64(x[j])
        if not (abs(wide) <= _LIMIT):
            c[j] = w[j] * math.cos(wide)
            s[j] = w[j] * math.sin(wide)


def steps(z: Floats, out: Floats, weights: Floats) -> None:
    """Write `weights * H(z)`: H is 0 below zero, 1/2 at zero and 1 above; NaN stays NaN.

    z        (b, D) float64 or float32, C-ordered rows (they may lie in a wider buffer).
    out      (b, >= D) of z's type, rows likewise; further columns are left as they are.
    weights  (D,) of z's type, one for each column of z, contiguous.

    Raises InputError where shape, type or memory layout does not fit, or where out overlaps z.
    """
    _run(_level_rows, z, out, weights, 0.0, 0.5)


def signs(z: Floats, out: Floats, weights: Floats) -> None:
    """Write `weights * sign(z)`, the sign of zero 0; NaN stays NaN. Arguments and errors are those of `steps`."""
    _run(_level_rows, z, out, weights, -1.0, 0.0)


def ramps(z: Floats, out: Floats, weights: Floats) -> None:
    """Write `weights * max(z, 0)`; NaN stays NaN. Arguments and errors are those of `steps`."""
    _run(_ramp_rows, z, out, weights)


def absolutes(z: Floats, out: Floats, weights: Floats) -> None:
    """Write `weights * |z|`; NaN stays NaN. Arguments and errors are those of `steps`."""
    _run(_absolute_rows, z, out, weights)


def _run(rows: Callable[..., None], z: Floats, out: Floats, weights: Floats, *levels: float) -> None:
    block("z", z)
    b, D = z.shape
    output(out, "z", z, D)
    flat_weights = parameter("weights", weights, (D,), z.dtype)
    if z.size == 0:
        return
    rows(flat(z, D), flat(out, D, writeable=True), b, flat_weights, *levels)


@loop
def _level_rows(rows: Strided, into: Strided, b: int, weights: Floats, below: float, zero: float) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        _levels(z[i * z_step : i * z_step + D], out[i * out_step : i * out_step + D], weights, below, zero)


@loop
def _levels(x: Floats, out: Floats, w: Floats, below: float, zero: float) -> None:
    one, low, middle = x.dtype.type(1), x.dtype.type(below), x.dtype.type(zero)
    for j in range(x.size):
        at_zero = middle if x[j] == 0 else x[j]  # NaN, where neither above nor below
        out[j] = w[j] * (one if x[j] > 0 else (low if x[j] < 0 else at_zero))


@loop
def _ramp_rows(rows: Strided, into: Strided, b: int, weights: Floats) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        _ramps(z[i * z_step : i * z_step + D], out[i * out_step : i * out_step + D], weights)


@loop
def _ramps(x: Floats, out: Floats, w: Floats) -> None:
    zero = x.dtype.type(0)
    for j in range(x.size):
        out[j] = w[j] * (zero if x[j] <= 0 else x[j])


@loop
def _absolute_rows(rows: Strided, into: Strided, b: int, weights: Floats) -> None:
    (z, z_step), (out, out_step), D = rows, into, weights.size
    for i in range(b):
        _absolutes(z[i * z_step : i * z_step + D], out[i * out_step : i * out_step + D], weights)


@loop
def _absolutes(x: Floats, out: Floats, w: Floats) -> None:
    for j in range(x.size):
        out[j] = w[j] * abs(x[j])
