"""Loops of sums of exponentials over rows: powers of a row's cosine and sine, and strengths spread on a grid, whose
Fourier transform is that of the rows. They are spread by a window exp(beta (sqrt(1 - z^2) - 1)), its width and beta
those of Barnett, Magland & af Klinteberg (2019) for grids of twice as many points as frequencies."""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numba.core import cgutils
from numpy.typing import NDArray

from dorff.loops.config import loop
from dorff.loops.rowwise import F64, I64
from dorff.loops.tiles import LANES, Lines, line_code

U16 = NDArray[np.uint16]
C128 = NDArray[np.complex128]
_TURN = 2.0 * math.pi


@loop
def angles(X: F64, at: I64, center: F64, step: F64, Y: F64, y0: F64, weights: F64, Z: F64) -> None:
    """Rows Z (n, v + 1 + q) = [theta | w | y - y0]: the angles, from -pi to pi, are (x - center) step of the columns
    `at` (v,) of X (n, d); weights (n,), targets Y (n, q). All C-contiguous."""
    v, q = at.size, y0.size
    for i in range(len(X)):
        x, y, z = X[i], Y[i], Z[i]
        for j in range(v):
            theta = (x[at[j]] - center[j]) * step[j]
            z[j] = theta - _TURN * np.rint(theta / _TURN)
        z[v] = weights[i]
        for k in range(q):
            z[v + 1 + k] = y[k] - y0[k]


@loop
def halves(Z: F64, phi: F64, most: F64, out: F64) -> None:
    """Of such rows half the angles to phi (v,), and these times the numbers `most` (2, v): out (3 v, b), b >= n."""
    v = phi.size
    for j in range(v):
        for i in range(len(Z)):
            half = 0.5 * (Z[i, j] - phi[j])
            out[j, i], out[v + j, i], out[2 * v + j, i] = half, most[0, j] * half, most[1, j] * half


@loop
def witness(trig: F64, most: F64, Z: F64, probe: F64, sums: F64, sizes: F64, total: F64) -> None:
    """Add to `sums` (2 + q,) the rows' strengths (the weight, and it times each target) times products of Dirichlet
    kernels, the first of the wide ones, the others of the narrow ones, and the weights times squares of the targets
    along `probe` (q,); to `sizes` the sizes of all of these; to `total` (1 + q,) those of the strengths.

    trig (3 v, 2 b) are cosines and sines of what `halves` makes of rows Z (n, .), n <= b, with 2 K + 1 for `most`: a
    kernel, the sum of exp(i k x) over |k| <= K, is the sines' quotient."""
    v, b, q = most.shape[1], trig.shape[1] // 2, probe.size
    for i in range(len(Z)):
        wide, narrow, z = 1.0, 1.0, Z[i]
        for j in range(v):
            below = trig[j, b + i]
            small = abs(below) < 1e-12
            wide *= most[0, j] if small else trig[v + j, b + i] / below
            narrow *= most[1, j] if small else trig[2 * v + j, b + i] / below
        w, along, size = z[v], 0.0, 0.0
        sums[0] += w * wide
        sizes[0] += abs(w * wide)
        total[0] += abs(w)
        for k in range(q):
            y = z[v + 1 + k]
            added = w * y * narrow
            sums[k + 1] += added
            sizes[k + 1] += abs(added)
            total[k + 1] += abs(w * y)
            along += y * probe[k]
            size += abs(y)
        sums[q + 1] += w * along * along
        sizes[q + 1] += w * size * size


@loop
def squares(Z: F64, v: int, out: F64) -> None:
    """Add to `out` (q, q) the weights times products of two targets."""
    q = len(out)
    for i in range(len(Z)):
        z = Z[i]
        for k in range(q):
            strength = z[v] * z[v + 1 + k]
            for other in range(q):
                out[k, other] += strength * z[v + 1 + other]


@loop
def _place(theta: float, points: int) -> float:
    """Where an angle is on a circle of so many points."""
    share = theta / _TURN
    return (share - math.floor(share)) * points


@loop
def tiles(Z: F64, points: I64, sides: I64, tile: U16) -> None:
    """The tiles (n,), of these sides, that such rows are in, of a grid of `points` (d,)."""
    for i in range(len(Z)):
        number = 0
        for j in range(points.size):
            number = number * (points[j] // sides[j] + 1) + int(_place(Z[i, j], points[j])) // sides[j]
        tile[i] = number


@loop
def _rotated(c: F64, s: F64, c1: F64, s1: F64, cosine: F64, sine: F64) -> None:
    for j in range(c.size):
        cosine[j] = c[j] * c1[j] - s[j] * s1[j]
        sine[j] = s[j] * c1[j] + c[j] * s1[j]


@loop
def powers(E: F64) -> None:
    """From rows 1 and K + 1 of E (2 K + 1, b), C-contiguous, cosines and sines of b angles, all of its rows: ones, the
    cosines of 1 to K times the angles, then the sines. Errors grow as log K: each power is of two half as large."""
    K = (E.shape[0] - 1) // 2
    ones = E[0]
    for j in range(ones.size):
        ones[j] = 1.0
    for k in range(2, K + 1):
        h = k // 2
        _rotated(E[h], E[K + h], E[k - h], E[K + k - h], E[k], E[K + k])


@line_code
def _horner(v: Lines, coefficients: Any, length: Any, width: Any, values: Any, at: Any) -> None:
    """A line of values, from `at` on: of polynomials in columns of coefficients (length, width) at the number there."""
    x, begin = v.spread(values, at), v.load(coefficients, at)
    value = cgutils.alloca_once_value(v.b, begin)  # type: ignore[no-untyped-call]
    with cgutils.for_range_slice(v.b, v.b.add(at, width), v.b.mul(length, width), width) as (index, _):
        v.b.store(v.plus(v.times(v.b.load(value), x), v.load(coefficients, index)), value)
    v.store(v.b.load(value), values, at)


@line_code
def _add_lines(v: Lines, row: Any, length: Any, by: Any, number: Any, grid: Any, at: Any) -> None:
    """Add a row of so many numbers, whole lines, to a grid from `at` on, times by[number]."""
    factor = v.spread(by, number)
    with cgutils.for_range_slice(v.b, v.first, length, v.after(v.first, LANES)) as (j, _):
        into = v.b.add(at, j)
        v.store(v.plus(v.load(grid, into), v.times(factor, v.load(row, j))), grid, into)


@loop
def _window(u: float, coefficients: F64, values: F64) -> int:
    """The window's values (W,) at the grid's points around u, the first of which is at the index that is returned."""
    at = math.floor(u)
    for j in range(0, values.size, LANES):
        values[j] = 2.0 * (u - at) - 1.0
        _horner(coefficients, coefficients.shape[0], values.size, values, j)
    return int(at)


@loop
def spread(Z: F64, coefficients: F64, used: int, points: I64, grid: F64, sides: I64) -> None:
    """Add each row's strengths, w and w times each target, to a grid, times a window around where the row is.

    Z (n, d + 1 + q) as above, d = 1, 2 or 3; `coefficients` (degree + 1, W) of the window's pieces as polynomials,
    those from `used` on zero. `grid` is flat, of `points` (d,): `sides` (2,) numbers from one index of the first axis,
    and of the second, to the next (of three); as many are behind the last index as a window has. All C-contiguous.
    Numbers are added in the order of the rows."""
    n, d = len(Z), points.size
    W, C = coefficients.shape[1], Z.shape[1] - d
    length = -(-used * C // 8) * 8
    first, second, last = np.ones(W), np.ones(W), np.empty(W)
    row, s = np.zeros(max(W * C, length)), np.empty(C)
    part = np.zeros(row.size) if d == 3 else row
    rows, columns = used if d == 3 else 1, used if d >= 2 else 1
    for i in range(n):
        z, at = Z[i], 0
        if d == 3:
            at += _window(_place(z[0], points[0]), coefficients, first) * sides[0]
        if d >= 2:
            at += _window(_place(z[d - 2], points[d - 2]), coefficients, second) * sides[1]
        at += _window(_place(z[d - 1], points[d - 1]), coefficients, last) * C
        s[0] = z[d]
        for k in range(1, C):
            s[k] = z[d] * z[d + k]
        for j in range(used):
            for k in range(C):
                row[j * C + k] = last[j] * s[k]
        for p in range(rows):
            if d == 3:
                for j in range(length):
                    part[j] = first[p] * row[j]
            for q in range(columns):
                _add_lines(part, length, second, q, grid, at + p * sides[0] + q * sides[1])


@loop
def gather(U: F64, coefficients: F64, used: int, grid: F64, sides: I64, out: F64) -> None:
    """The adjoint of `spread`: out (n, C) are the sums of the grid's values around each row, times the window's.

    Arguments as there; `grid` has values of C channels, those at its start again at the end of each axis."""
    n, d = U.shape
    W, C = coefficients.shape[1], out.shape[1]
    length = used * C
    first, second, last, row = np.ones(W), np.ones(W), np.empty(W), np.empty(length)
    rows, columns = used if d == 3 else 1, used if d >= 2 else 1
    for i in range(n):
        u, values, at = U[i], out[i], 0
        if d == 3:
            at += _window(u[0], coefficients, first) * sides[0]
        if d >= 2:
            at += _window(u[d - 2], coefficients, second) * sides[1]
        at += _window(u[d - 1], coefficients, last) * C
        for j in range(length):
            row[j] = 0.0
        for p in range(rows):
            for q in range(columns):
                by = first[p] * second[q]
                begin = at + p * sides[0] + q * sides[1]
                part = grid[begin : begin + length]
                for j in range(length):
                    row[j] += by * part[j]
        for k in range(C):
            values[k] = 0.0
        for j in range(used):
            for k in range(C):
                values[k] += last[j] * row[j * C + k]


def rfftn(values: F64, axes: Iterable[int] | None = None) -> C128:
    """The Fourier transform of real values, the half of it that says all."""
    from scipy.fft import rfftn as transform  # much to load at each start, and only lattices need it

    return np.asarray(transform(values, axes=axes, workers=1))


def irfftn(spectrum: C128, points: tuple[int, ...], axes: Iterable[int] | None = None) -> F64:
    """Its inverse, on a grid of so many points."""
    from scipy.fft import irfftn as transform

    return np.asarray(transform(spectrum, s=points, axes=axes, workers=1))


def fast_length(least: int) -> int:
    """A number of points, `least` or little more, that transforms are fast for."""
    from scipy.fft import next_fast_len

    return int(next_fast_len(least, real=True))


def width_of(tolerance: float) -> int:
    """The grid points that a window for this relative error covers: an even number."""
    return 2 * math.ceil((math.ceil(-math.log10(tolerance)) + 1) / 2)


def _bump(z: F64, width: int) -> F64:
    return np.asarray(np.exp(2.30 * width * (np.sqrt(np.maximum(0.0, 1.0 - z * z)) - 1.0)))


@lru_cache
def pieces_of(width: int) -> F64:
    """The window's pieces (degree + 1, W) between grid points, of t from -1 to 1, the highest power first; W is a whole
    number of lanes of the vector unit, and pieces beyond the width are zero."""
    degree, t = width + 4, np.cos(math.pi * (np.arange(64) + 0.5) / 64)
    out = np.zeros((degree + 1, -(-width // 8) * 8))
    for j in range(width):
        away = (j - (width / 2 - 1) - (t + 1) / 2) / (width / 2)
        powers_of_t = np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(t, _bump(away, width), degree))
        out[len(out) - len(powers_of_t) :, j] = powers_of_t[::-1]
    return out


def transform_of(width: int, points: int, K: int) -> F64:
    """The window's Fourier transform at k = 0 to K, on a grid of so many points."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    angles = np.outer(nodes * width / 2 * (_TURN / points), np.arange(K + 1))
    return np.asarray((weights * _bump(nodes, width)) @ np.cos(angles) * (width / 2))
