"""Loops of sums of exponentials over rows: powers of a row's cosine and sine, and strengths spread on a grid, whose
Fourier transform is that of the rows (Barnett, Magland & af Klinteberg 2019)."""

import math

import numpy as np
from numpy.typing import NDArray

from dorff.loops.config import loop

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]
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
def weighed(Z: F64, v: int, strengths: F64) -> None:
    """Of such rows the strengths (n, 1 + q): the weights, then these times the targets."""
    for i in range(len(Z)):
        z, s = Z[i], strengths[i]
        s[0] = z[v]
        for k in range(1, s.size):
            s[k] = z[v] * z[v + k]


@loop
def witness(trig: F64, most: F64, Z: F64, strengths: F64, probe: F64, sums: F64, sizes: F64, total: F64) -> None:
    """Add to `sums` (2 + q,) the rows' strengths times products of Dirichlet kernels, the first of the wide ones, the
    others of the narrow ones, and the weights times squares of the targets along `probe` (q,); to `sizes` the sizes of
    all of these; to `total` (1 + q,) those of the strengths.

    trig (3 v, 2 n) are cosines and sines of half the angles x, and of these times the numbers `most` (2, v), 2 K + 1:
    a kernel, the sum of exp(i k x) over |k| <= K, is the sines' quotient. Rows Z and strengths as above."""
    v, n, C = most.shape[1], len(Z), strengths.shape[1]
    for i in range(n):
        wide, narrow, z, s = 1.0, 1.0, Z[i], strengths[i]
        for j in range(v):
            below = trig[j, n + i]
            small = abs(below) < 1e-12
            wide *= most[0, j] if small else trig[v + j, n + i] / below
            narrow *= most[1, j] if small else trig[2 * v + j, n + i] / below
        for k in range(C):
            added = s[k] * (wide if k == 0 else narrow)
            sums[k] += added
            sizes[k] += abs(added)
            total[k] += abs(s[k])
        along, size = 0.0, 0.0
        for k in range(C - 1):
            along += z[v + 1 + k] * probe[k]
            size += abs(z[v + 1 + k])
        sums[C] += s[0] * along * along
        sizes[C] += s[0] * size * size


@loop
def turned(theta: F64, points: I64, sides: I64, turns: F64, tile: U16) -> None:
    """Places `turns` (n, d) on a grid of `points` (d,), of angles theta; the tiles (n,) of these sides they are in."""
    for i in range(len(theta)):
        number = 0
        for j in range(points.size):
            share = theta[i, j] / _TURN
            turns[i, j] = (share - math.floor(share)) * points[j]
            number = number * (points[j] // sides[j] + 1) + int(turns[i, j]) // sides[j]
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


@loop
def _window(u: float, coefficients: F64, values: F64) -> int:
    """The window's values (W,) at the grid's points around u, the first of which is at the index that is returned."""
    at = math.floor(u)
    t = 2.0 * (u - at) - 1.0
    first = coefficients[0]
    for j in range(values.size):
        values[j] = first[j]
    for i in range(1, coefficients.shape[0]):
        row = coefficients[i]
        for j in range(values.size):
            values[j] = values[j] * t + row[j]
    return int(at)


@loop
def spread(U: F64, strengths: F64, coefficients: F64, used: int, grid: F64, sides: I64) -> None:
    """Add each row's strengths to a grid, times a window around where the row is.

    U (n, d), d = 1, 2 or 3: places in [0, N_j] grid points. `strengths` (n, C); `coefficients` (degree + 1, W) of the
    window's pieces as polynomials, those from `used` on zero. `grid` is flat: `sides` (2,) numbers from one index of
    the first axis, and of the second, to the next (of three); as many are behind the last index as a window has. All
    C-contiguous. Numbers are added in the order of the rows."""
    n, d = U.shape
    W, C = coefficients.shape[1], strengths.shape[1]
    length = -(-used * C // 8) * 8
    first, second, last, row = np.ones(W), np.ones(W), np.empty(W), np.zeros(max(W * C, length))
    rows, columns = used if d == 3 else 1, used if d >= 2 else 1
    for i in range(n):
        u, s, at = U[i], strengths[i], 0
        if d == 3:
            at += _window(u[0], coefficients, first) * sides[0]
        if d >= 2:
            at += _window(u[d - 2], coefficients, second) * sides[1]
        at += _window(u[d - 1], coefficients, last) * C
        for j in range(used):
            for k in range(C):
                row[j * C + k] = last[j] * s[k]
        for p in range(rows):
            for q in range(columns):
                by = first[p] * second[q]
                begin = at + p * sides[0] + q * sides[1]
                into = grid[begin : begin + length]
                for j in range(length):
                    into[j] += by * row[j]


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
