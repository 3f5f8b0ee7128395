"""Step and ramp features (Heaviside, ReLU) of the arc-cosine kernels of order 0 and 1 (Cho & Saul 2009), and
their odd and even parts: sign and absolute value."""

from __future__ import annotations

from collections.abc import Callable

from dorff.loops.config import loop
from dorff.loops.rowwise import Floats, Strided, block, flat, output, parameter


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
