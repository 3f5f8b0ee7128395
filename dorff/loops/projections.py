"""Structured projections of a block of rows: z = W x in O(d log d) a row, W never formed."""

from __future__ import annotations

import numpy as np

from dorff.errors import InputError
from dorff.loops.butterfly import project, rotate, simplex_entries
from dorff.loops.config import loop
from dorff.loops.hadamard import is_power_of_two, transform, transform_permuted
from dorff.loops.rowwise import Array, Floats, Strided, block, flat, output, parameter
from dorff.loops.tiles import copy_permuted, give_rows, lanes, new_tile, take_rows

Pair = tuple[Floats, Floats]
Inputs = tuple[Strided, Floats]  # rows, and what each of their columns is multiplied by
Chosen = tuple[Array, Floats, Strided]  # which rows of W there are, their gains, and where products go


def hadamard_chain(
    x: Floats, stretch: Floats, diagonals: Floats, permutation: Array, rows: Array, gains: Floats, out: Floats
) -> None:
    """Project each row of x by blocks of diagonals and Walsh-Hadamard matrices, on one thread.

    For block k: y = x * stretch, padded with zeros from d to n; for s = 0, ..., K - 1, y = H (diagonals[k, s] * y),
    H not normalised, where y[permutation[k]] takes y's place first if s = 1 and there is a permutation. Then
    out[:, j] = gains[j] * y[rows[j] - k n] for the j whose rows[j] lies in [k n, (k + 1) n).

    x            (b, d) float64 or float32, C-ordered rows (they may lie in a wider buffer).
    stretch      (d,) of x's type.
    diagonals    (B, K, n) of x's type, K >= 1, n >= d a power of two. They carry the powers of n.
    permutation  (B, n) int32, entries in [0, n), or (B, 0) for none.
    rows         (D,) int64, ascending, in [0, B n).
    gains        (D,) of x's type.
    out          (b, >= D) of x's type, rows likewise; further columns are left as they are. May not overlap x.

    SORF and ROM have K = 3 and signs in the diagonals; Fastfood (Le, Sarlos & Smola 2013) has K = 2: signs, then the
    permutation, then Gaussians. A row's result does not depend on the other rows, to the bit. Raises InputError
    where shape, type, memory layout or an index does not fit.
    """
    block("x", x)
    (b, d), shape = x.shape, diagonals.shape
    if len(shape) != 3 or not shape[1] or not is_power_of_two(shape[2]) or shape[2] < d:
        wanted = f"of shape (blocks, 1 or more, a power of two from {d} on)"
        raise InputError(f"diagonals must be {wanted}, but are of shape {shape}; pad the inputs to a power of two.")
    B, K, n = shape
    D = len(rows)
    output(out, "x", x, D)
    order_shape = (B, 0) if permutation.shape == (B, 0) else (B, n)
    order = _indices("permutation", permutation, order_shape, np.int32, n)
    taken = _rows("rows", rows, B * n)
    by = parameter("stretch", stretch, (d,), x.dtype)
    factors = parameter("diagonals", diagonals, shape, x.dtype)
    last = parameter("gains", gains, (D,), x.dtype)
    if b == 0 or D == 0:
        return
    chosen = taken, last, flat(out, D, writeable=True)
    _chain_rows((flat(x, d), by), factors, order, chosen, (b, K, n))


def butterfly_rules(
    x: Floats,
    stretch: Floats,
    permutations: Array,
    cosines: Floats,
    sines: Floats,
    simplex: bool,
    rows: Array,
    gains: Floats,
    out: Floats,
) -> None:
    """Project each row of x by rules of permuted butterfly rotations and, if asked for, a simplex, on one thread.

    For rule k: y = x * stretch; for s = 0, ..., K - 1, y = B y[permutations[k, s]], B the rotation of `butterfly` with
    cosines[k, s] and sines[k, s]; with `simplex`, y = V^T y, V as in `simplex_product`. Then, the width being d,
    or d + 1 with `simplex`, out[:, j] = gains[j] * y[rows[j] - k width] for rows[j] in [k width, (k + 1) width).

    x               (b, d) float64 or float32, any d >= 1, C-ordered rows (they may lie in a wider buffer).
    stretch         (d,) of x's type.
    permutations    (B, K, d) int32, K >= 1, entries in [0, d).
    cosines, sines  (B, K, d - 1) of x's type.
    rows            (D,) int64, ascending, in [0, B width).
    gains           (D,) of x's type.
    out             (b, >= D) of x's type, rows likewise; further columns are left as they are. May not overlap x.

    The rules are those of Munkhoeva et al. (2018, section 2.4). A row's result does not depend on the other rows, to
    the bit. Raises InputError where shape, type, memory layout or an index does not fit.
    """
    block("x", x)
    (b, d), shape = x.shape, permutations.shape
    if len(shape) != 3 or d == 0 or not shape[1] or shape[2] != d:
        wanted = f"of shape (rules, 1 or more, {d}), with at least one column"
        raise InputError(f"permutations must be {wanted}, but are of shape {shape}; draw one for each factor.")
    B, K = shape[:2]
    D, width = len(rows), d + simplex
    output(out, "x", x, D)
    order = _indices("permutations", permutations, shape, np.int32, d)
    taken = _rows("rows", rows, B * width)
    by = parameter("stretch", stretch, (d,), x.dtype)
    c = parameter("cosines", cosines, (B, K, d - 1), x.dtype)
    s = parameter("sines", sines, (B, K, d - 1), x.dtype)
    last = parameter("gains", gains, (D,), x.dtype)
    if b == 0 or D == 0:
        return
    on, before = simplex_entries(d, x.dtype.char)
    chosen = taken, last, flat(out, D, writeable=True)
    _rule_rows((flat(x, d), by), (c, s), order, (on[: d * simplex], before), chosen, (b, K))


def _indices(name: str, a: Array, shape: tuple[int, ...], dtype: type, end: int) -> Array:
    """As `parameter`; refuse what points outside [0, end), since the loops do not look."""
    indices = parameter(name, a, shape, dtype)
    if _misplaced(indices, end):
        raise InputError(f"{name} must lie in [0, {end}), but some do not; draw them with rng.permutation({end}).")
    return indices


def _rows(name: str, a: Array, end: int) -> Array:
    """As `_indices`, for what must also ascend."""
    rows = parameter(name, a, (len(a),), np.int64)
    if _disordered(rows, end):
        raise InputError(f"{name} must ascend within [0, {end}), but do not; sort them.")
    return rows


@loop
def _misplaced(indices: Array, end: int) -> bool:
    wrong = 0
    for i in range(indices.size):
        wrong |= (indices[i] < 0) | (indices[i] >= end)
    return wrong != 0


@loop
def _disordered(rows: Array, end: int) -> bool:
    wrong = 0
    for j in range(1, rows.size):
        wrong |= rows[j] < rows[j - 1]
    return wrong != 0 or (rows.size > 0 and (rows[0] < 0 or rows[-1] >= end))


@loop
def _ends(rows: Array, blocks: int, width: int) -> Array:
    """Where the rows of each block begin and end: those of block k are rows[ends[k] : ends[k + 1]]."""
    ends = np.zeros(blocks + 1, np.int64)
    at = 0
    for k in range(blocks):
        while at < rows.size and rows[at] < (k + 1) * width:
            at += 1
        ends[k + 1] = at
    return ends


@loop
def _chain_rows(
    inputs: Inputs, diagonals: Floats, permutation: Array, chosen: Chosen, shape: tuple[int, int, int]
) -> None:
    ((x, x_step), stretch), (rows, gains, out), (b, K, n) = inputs, chosen, shape
    w, B = lanes(x), diagonals.size // (K * n)
    taken, tile = new_tile(n, x), new_tile(n, x)
    other = new_tile(n if permutation.size else 0, x)
    taken[stretch.size * w :] = 0
    ends = _ends(rows, B, n)
    for first in range(0, b, w):
        valid = min(w, b - first)
        take_rows(x, x_step, first, valid, stretch, taken)
        for k in range(B):
            low, high = ends[k], ends[k + 1]
            if low == high:
                continue
            last = taken
            for s in range(K):
                factors = diagonals[(k * K + s) * n : (k * K + s + 1) * n]
                if s == 1 and permutation.size:
                    transform_permuted(last, permutation[k * n : (k + 1) * n], factors, other)
                    last = other
                else:
                    target = tile if s == 0 else last
                    transform(last, factors, target)
                    last = target
            give_rows(last, (rows[low:high], k * n), gains[low:high], out, first * out[1] + low, valid)


@loop
def _rule_rows(
    inputs: Inputs, angles: Pair, permutations: Array, simplex: Pair, chosen: Chosen, shape: tuple[int, int]
) -> None:
    ((x, x_step), stretch), (rows, gains, out), (b, K) = inputs, chosen, shape
    (cosines, sines), (on, before) = angles, simplex
    w, d = lanes(x), stretch.size
    width, B = d + (on.size > 0), permutations.size // (K * d)
    taken, here, there = new_tile(d + 1, x), new_tile(d + 1, x), new_tile(d + 1, x)
    total = new_tile(1, x)
    ends = _ends(rows, B, width)
    for first in range(0, b, w):
        valid = min(w, b - first)
        take_rows(x, x_step, first, valid, stretch, taken)
        for k in range(B):
            low, high = ends[k], ends[k + 1]
            if low == high:
                continue
            last = taken
            for s in range(K):
                f = k * K + s
                copy_permuted(last, permutations[f * d : (f + 1) * d], here)
                rotate(here, cosines[f * (d - 1) : (f + 1) * (d - 1)], sines[f * (d - 1) : (f + 1) * (d - 1)])
                last, here, there = here, there, here
            if on.size > 0:
                project(last, on, before, total)
            give_rows(last, (rows[low:high], k * width), gains[low:high], out, first * out[1] + low, valid)
