"""Step and ramp features (Heaviside, ReLU): phi of the arc-cosine kernels of order 0 and 1 (Cho & Saul 2009)."""

from __future__ import annotations

from dorff.loops.checks import Floats, block, flat, output, parameter
from dorff.loops.config import loop


def steps(z: Floats, out: Floats, weights: Floats, reflect: bool) -> None:
    """Write `weights * H(z)`, and with `reflect` `weights * H(-z)` beside it, H the Heaviside function.

    H is 0 below zero, 1/2 at zero and 1 above; NaN stays NaN.

    z        (b, D) float64 or float32, C-ordered rows (they may lie in a wider buffer).
    out      (b, >= D, or >= 2D with reflect) of z's type, rows likewise; further columns are left as they are.
    weights  (D,) of z's type, one for each column of z, contiguous.

    Raises InputError where shape, type or memory layout does not fit, or where out overlaps z.
    """
    _run(z, out, weights, reflect, False)


def ramps(z: Floats, out: Floats, weights: Floats, reflect: bool) -> None:
    """Write `weights * max(z, 0)`, and with `reflect` `weights * max(-z, 0)` beside it; NaN stays NaN.

    Arguments and errors are those of `steps`.
    """
    _run(z, out, weights, reflect, True)


def _run(z: Floats, out: Floats, weights: Floats, reflect: bool, ramp: bool) -> None:
    block("z", z)
    b, D = z.shape
    columns = 2 * D if reflect else D
    output(out, "z", z, columns)
    flat_weights = parameter("weights", weights, (D,), z.dtype)
    if z.size == 0:
        return
    flat_z, z_step = flat(z, D)
    flat_out, out_step = flat(out, columns, writeable=True)
    rows = _ramp_rows if ramp else _step_rows
    rows(flat_z, z_step, flat_out, out_step, b, D, flat_weights, reflect)


@loop
def _step_rows(
    z: Floats, z_step: int, out: Floats, out_step: int, b: int, D: int, weights: Floats, reflect: bool
) -> None:
    for i in range(b):
        x, at = z[i * z_step : i * z_step + D], i * out_step
        _steps(x, out[at : at + D], weights, 1)
        if reflect:
            _steps(x, out[at + D : at + 2 * D], weights, -1)


@loop
def _ramp_rows(
    z: Floats, z_step: int, out: Floats, out_step: int, b: int, D: int, weights: Floats, reflect: bool
) -> None:
    for i in range(b):
        x, at = z[i * z_step : i * z_step + D], i * out_step
        _ramps(x, out[at : at + D], weights, 1)
        if reflect:
            _ramps(x, out[at + D : at + 2 * D], weights, -1)


@loop
def _steps(x: Floats, out: Floats, w: Floats, sign: int) -> None:
    above, below, half = x.dtype.type(sign > 0), x.dtype.type(sign < 0), x.dtype.type(0.5)
    for j in range(x.size):
        at_zero = half if x[j] == 0 else x[j]  # NaN, where neither above nor below
        out[j] = w[j] * (above if x[j] > 0 else (below if x[j] < 0 else at_zero))


@loop
def _ramps(x: Floats, out: Floats, w: Floats, sign: int) -> None:
    s, zero = x.dtype.type(sign), x.dtype.type(0)
    for j in range(x.size):
        value = s * x[j]
        out[j] = w[j] * (zero if value <= 0 else value)
