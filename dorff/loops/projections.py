"""Structured projections of a block of rows: z = W x in O(d log d) a row, W never formed."""

import numpy as np

from dorff.errors import InputError
from dorff.loops.config import loop
from dorff.loops.rotations import project, rotate, simplex_entries, transform
from dorff.loops.rowwise import F64, Array, Ints, Strided, block, flat, output, parameter
from dorff.loops.tiles import LANES, copy_permuted, give_rows, new_tile, take_rows

Pair = tuple[F64, F64]
Inputs = tuple[Strided, F64]  # rows, and what each of their columns is multiplied by
Chosen = tuple[Array, F64, Strided]  # which rows of W there are, their gains, and where products go


def hadamard_chain(x: F64, stretch: F64, diagonals: F64, permutation: Ints, rows: Ints, gains: F64, out: F64) -> None:
    """Project each row of x by blocks of diagonals and Walsh-Hadamard matrices, on one thread.

    For block k: y = x * stretch, padded with zeros from d to n; for s = 0, ..., K - 1, y = H (diagonals[k, s] * y),
    H not normalised, where y[permutation[k]] takes y's place first if s = 1 and there is a permutation. Then
    out[:, j] = gains[j] * y[rows[j] - k n] for the j whose rows[j] lies in [k n, (k + 1) n).

    x (b, d) and out (b, >= D) are float64 with C-ordered rows, in wider buffers maybe, without overlap; further columns
    of out stay. stretch (d,), gains (D,). diagonals (B, K, n), K >= 1, n >= d a power of two: they carry the powers of
    n. permutation (B, n) int32 in [0, n), or (B, 0) for none. rows (D,) int64, ascending, in [0, B n).

    SORF and ROM have K = 3 and signs in the diagonals; Fastfood (Le, Sarlos & Smola 2013) has K = 2: signs, then the
    permutation, then Gaussians. Rows do not depend on each other, to the bit. InputError for what does not fit."""
    block("x", x)
    (b, d), shape = x.shape, diagonals.shape
    if len(shape) != 3 or not shape[1] or shape[2].bit_count() != 1 or shape[2] < d:
        wanted = f"of shape (blocks, 1 or more, a power of two from {d} on)"
        raise InputError(f"diagonals must be {wanted}, but are of shape {shape}; pad the inputs to a power of two.")
    B, K, n = shape
    inputs, chosen = _given(x, stretch, rows, gains, out, B * n)
    order_shape = (B, 0) if permutation.shape == (B, 0) else (B, n)
    order = _indices("permutation", permutation, order_shape, np.int32, n)
    factors = parameter("diagonals", diagonals, shape, np.float64)
    if b and len(rows):
        _chain_rows(inputs, factors, order, chosen, (b, K, n))


def butterfly_rules(
    x: F64, stretch: F64, permutations: Ints, cosines: F64, sines: F64, simplex: bool, rows: Ints, gains: F64, out: F64
) -> None:
    """Project each row of x by rules of permuted butterfly rotations and, if asked for, a simplex, on one thread.

    For rule k: y = x * stretch; for s = 0, ..., K - 1, y = B y[permutations[k, s]], B the rotation of `rotate` with
    cosines[k, s] and sines[k, s]; with `simplex`, y = V^T y, V of `simplex_vertices`. Then, the width being d,
    or d + 1 with `simplex`, out[:, j] = gains[j] * y[rows[j] - k width] for rows[j] in [k width, (k + 1) width).

    permutations (B, K, d) int32, K >= 1, d >= 1, entries in [0, d). cosines and sines (B, K, d - 1). rows in
    [0, B width). All else is as in `hadamard_chain`. The rules are those of Munkhoeva et al. (2018, section 2.4)."""
    block("x", x)
    (b, d), shape = x.shape, permutations.shape
    if len(shape) != 3 or d == 0 or not shape[1] or shape[2] != d:
        wanted = f"of shape (rules, 1 or more, {d}), with at least one column"
        raise InputError(f"permutations must be {wanted}, but are of shape {shape}; draw one for each factor.")
    B, K = shape[:2]
    inputs, chosen = _given(x, stretch, rows, gains, out, B * (d + simplex))
    order = _indices("permutations", permutations, shape, np.int32, d)
    c = parameter("cosines", cosines, (B, K, d - 1), np.float64)
    s = parameter("sines", sines, (B, K, d - 1), np.float64)
    on, before = simplex_entries(d)
    if b and len(rows):
        _rule_rows(inputs, (c, s), order, (on[: d * simplex], before), chosen, (b, K))


def _given(x: F64, stretch: F64, rows: Ints, gains: F64, out: F64, end: int) -> tuple[Inputs, Chosen]:
    """What every projection is given, checked, and flat for its loop; `rows` lie in [0, end)."""
    d, D = x.shape[1], len(rows)
    output(out, "x", x, D)
    chosen = _rows("rows", rows, end), parameter("gains", gains, (D,), np.float64), flat(out, D, writeable=True)
    return (flat(x, d), parameter("stretch", stretch, (d,), np.float64)), chosen


def _indices(name: str, a: Array, shape: tuple[int, ...], dtype: type, end: int) -> Array:
    """As `parameter`; refuse what points outside [0, end), since the loops do not look."""
    indices = parameter(name, a, shape, dtype)
    if indices.size and (indices.min() < 0 or indices.max() >= end):
        raise InputError(f"{name} must lie in [0, {end}), but some do not; draw them with rng.permutation({end}).")
    return indices


def _rows(name: str, a: Array, end: int) -> Array:
    """As `_indices`, for what must also ascend."""
    rows = parameter(name, a, (len(a),), np.int64)
    if rows.size and (rows[0] < 0 or rows[-1] >= end or np.any(rows[1:] < rows[:-1])):
        raise InputError(f"{name} must ascend within [0, {end}), but do not; sort them.")
    return rows


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
def _chain_rows(inputs: Inputs, diagonals: F64, order: Array, chosen: Chosen, shape: tuple[int, int, int]) -> None:
    ((x, x_step), stretch), (rows, gains, out), (b, K, n) = inputs, chosen, shape
    w, B = LANES, diagonals.size // (K * n)
    taken, tile = new_tile(n), new_tile(n)
    other = new_tile(n if order.size else 0)
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
                if s == 1 and order.size:
                    copy_permuted(last, order[k * n : (k + 1) * n], other)
                    last = other
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
    w, d = LANES, stretch.size
    width, B = d + (on.size > 0), permutations.size // (K * d)
    taken, here, there = new_tile(d + 1), new_tile(d + 1), new_tile(d + 1)
    total = new_tile(1)
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


def sparse_rows(x: F64, starts: Array, columns: Array, values: F64, out: F64) -> None:
    """Project each row of x by rows of W that have few entries: out[:, j] = sum of values[e] x[:, columns[e]] over e in
    starts[j]..starts[j + 1] - 1, in this order. x and out as in `hadamard_chain`; starts (D + 1,) int64, ascending
    from 0; columns (entries,) int32 in [0, d), values (entries,)."""
    block("x", x)
    entries = len(values)
    ends = _rows("starts", starts, entries + 1)
    output(out, "x", x, len(starts) - 1)
    indices = _indices("columns", columns, (entries,), np.int32, max(1, x.shape[1]))
    weights = parameter("values", values, (entries,), np.float64)
    if len(x) and len(starts) > 1:
        chosen = ends, indices, weights
        _sparse_rows(flat(x, x.shape[1]), chosen, flat(out, len(starts) - 1, writeable=True), len(x))


@loop
def _sparse_rows(inputs: Strided, chosen: tuple[Array, Array, F64], outputs: Strided, b: int) -> None:
    (x, x_step), (starts, columns, values), (out, step) = inputs, chosen, outputs
    for i in range(b):
        row, target = x[i * x_step :], out[i * step :]
        for j in range(len(starts) - 1):
            total = 0.0
            for e in range(starts[j], starts[j + 1]):
                total += values[e] * row[columns[e]]
            target[j] = total
