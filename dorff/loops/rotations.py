"""Structured products of tiles: the Walsh-Hadamard transform in O(n log n) a row, H that of scipy.linalg.hadamard:
H H = n I; butterfly rotations and regular simplices, in O(d log d) and O(d) a row, for any d."""

from functools import lru_cache
from typing import Any

import numpy as np

from dorff.errors import InputError
from dorff.loops.config import loop
from dorff.loops.rowwise import F64
from dorff.loops.tiles import LANES, Lines, line_code

# A transform of 2^k entries is one pass of radix 2, 4, 8 or 16, which also multiplies, and then passes of radix 4 and
# 16: 16 lines, and what is made of them, just stay in the 32 registers of AVX-512.


def _network(v: Lines, x: list[Any]) -> list[Any]:
    half = 1
    while half < len(x):
        pairs = [(x[i & ~half], x[i | half]) for i in range(len(x))]
        x = [v.minus(*pair) if i & half else v.plus(*pair) for i, pair in enumerate(pairs)]
        half *= 2
    return x


def _first(radix: int) -> Any:
    """Take lines, times their factors, to the tile: lines `start`, `start + step`, ... of the source."""

    @line_code
    def first(v: Lines, source: Any, factors: Any, tile: Any, start: Any, step: Any) -> None:
        places = [v.at(start, step, k) for k in range(radix)]
        x = [v.times(v.load_line(source, at), v.spread(factors, at)) for at in places]
        for at, line in zip(places, _network(v, x), strict=True):
            v.store_line(line, tile, at)

    return first


_first1, _first2, _first4, _first8, _first16 = (_first(radix) for radix in (1, 2, 4, 8, 16))


def _next(radix: int) -> Any:
    """As `_first`, in place and without factors."""

    @line_code
    def next_(v: Lines, tile: Any, start: Any, step: Any) -> None:
        places = [v.at(start, step, k) for k in range(radix)]
        for at, line in zip(places, _network(v, [v.load_line(tile, at) for at in places]), strict=True):
            v.store_line(line, tile, at)

    return next_


_next4, _next16 = _next(4), _next(16)


@loop
def transform(source: F64, factors: F64, tile: F64) -> None:
    """tile = H (factors * source); factors (n,). The tile may be the source itself.

    After the first pass it is by radix 4 down to 256 lines, 16 KiB, then in the first-level cache: wide strides are
    powers of two, so that the lines compete for one set of that cache: 4 fit, 16 do not."""
    n, size = factors.size, 1  # the distance of the lines that the first pass combines: passes of 16 and 4 do the rest
    while size < 256 and 16 * size < n:
        size *= 16
    while 4 * size < n and size >= 256:
        size *= 4
    for j in range(size):
        if n == size:
            _first1(source, factors, tile, j, size)
        elif n == 2 * size:
            _first2(source, factors, tile, j, size)
        elif n == 4 * size:
            _first4(source, factors, tile, j, size)
        elif n == 8 * size:
            _first8(source, factors, tile, j, size)
        else:
            _first16(source, factors, tile, j, size)
    while size > 256:
        size //= 4
        for low in range(0, n, 4 * size):
            for j in range(size):
                _next4(tile, low + j, size)
    for low in range(0, n, size):
        step = size
        while step > 1:
            step //= 16
            for start in range(low, low + size, 16 * step):
                for j in range(step):
                    _next16(tile, start + j, step)


def simplex_vertices(d: int) -> F64:
    """The vertices (d + 1, d) of a regular simplex of unit radius about zero (Genz & Monahan 1998).

    Vertex j has, times sqrt((d + 1) / d), the entries -1 / sqrt((d - i + 2)(d - i + 1)) for i < j, sqrt((d - i + 1) /
    (d - i + 2)) for i = j and 0 for i > j, i = 1..d. They sum to zero, and any two have the inner product -1 / d."""
    if d < 1:
        raise InputError(f"d must be 1 or more, but is {d}; a simplex needs a dimension.")
    on, before = simplex_entries(d)
    rest: F64 = np.tril(np.broadcast_to(before, (d + 1, d)), -1)
    rest[range(d), range(d)] = on
    return rest


@lru_cache(maxsize=8)
def simplex_entries(d: int) -> tuple[F64, F64]:
    """The vertices' own entries (i = j) and those of all later vertices (i < j), (d,) each, read-only."""
    left = d + 1.0 - np.arange(d)  # d - i + 2
    scale = (d + 1) / d
    on, before = np.sqrt(scale * (left - 1) / left), -np.sqrt(scale / (left * (left - 1)))
    on.flags.writeable = before.flags.writeable = False
    return on, before


# The stages of d = 2^k entries are passes of radix 2, 4 or 8, three stages at a time: so many lines, and their
# angles, stay in the 32 registers of AVX-512. Another d is cut into powers of two, each complete once the entries that
# have partners in the rest have met them. Of the angles, (d - 1) - (d - 1) // h belong to strides below h.


def _turns(radix: int) -> Any:
    """The stages that combine lines `start`, `start + step`, ...; a1, a2, a4: the first angle at 1, 2, 4 steps."""

    @line_code
    def turns(v: Lines, tile: Any, cosines: Any, sines: Any, start: Any, step: Any, a1: Any, a2: Any, a4: Any) -> None:
        x, half = [v.load_line(tile, v.at(start, step, k)) for k in range(radix)], radix // 2
        while half:
            first = {1: a1, 2: a2, 4: a4}[half]
            for group in range(radix // (2 * half)):
                at = v.after(first, group)
                c, s = v.spread(cosines, at), v.spread(sines, at)
                for i in range(2 * half * group, 2 * half * group + half):
                    p, q = x[i], x[i + half]
                    x[i] = v.minus(v.times(c, p), v.times(s, q))
                    x[i + half] = v.plus(v.times(s, p), v.times(c, q))
            half //= 2
        for k in range(radix):
            v.store_line(x[k], tile, v.at(start, step, k))

    return turns


_turns2, _turns4, _turns8 = (_turns(radix) for radix in (2, 4, 8))


@loop
def rotate(tile: F64, cosines: F64, sines: F64) -> None:
    """tile = B tile, in place, B the butterfly rotation with these angles' cosines and sines (d - 1,).

    B (Genz 1998; Munkhoeva et al. 2018, section 2.4, prints d = 4) is the product of factors of stride 1, 2, 4,
    ... < d, from left to right. In the factor of stride h, entries i and i + h of a group of 2h turn by one angle,
    (a, b) -> (c a - s b, s a + c b), where both exist. Angles are counted from stride 1 on, group by group."""
    n = cosines.size
    rest = n + 1
    while rest > 0:
        low, size = n + 1 - rest, 1
        while 2 * size <= rest:
            size *= 2
        angle = n - n // size + low // (2 * size)
        for i in range(low, low + rest - size):
            _turns2(tile, cosines, sines, i, size, angle, 0, 0)
        wide, step = size, 1  # all stages within `size` entries from `low` on, a power of two that divides `low`
        while 8 * step < size:
            step *= 8
        _pass(tile, cosines, sines, low, size, wide, step)
        while step > 64:
            wide, step = step, step // 8
            _pass(tile, cosines, sines, low, size, wide, step)
        for start in range(low, low + size, step):  # in the first-level cache
            inner = step
            while inner > 1:
                wide, inner = inner, inner // 8
                _pass(tile, cosines, sines, start, step, wide, inner)
        rest -= size


@loop
def _pass(tile: F64, cosines: F64, sines: F64, low: int, size: int, wide: int, step: int) -> None:
    """The stages of stride wide / 2 to step of `size` entries from `low` on; wide / step is 1, 2, 4 or 8."""
    n, radix = cosines.size, wide // step
    o1, o2, o4 = n - n // step, n - n // (2 * step), n - n // (4 * step)
    for g in range(low // wide, (low + size) // wide):
        for start in range(g * wide, g * wide + step):
            if radix == 8:
                _turns8(tile, cosines, sines, start, step, o1 + 4 * g, o2 + 2 * g, o4 + g)
            elif radix == 4:
                _turns4(tile, cosines, sines, start, step, o1 + 2 * g, o2 + g, 0)
            elif radix == 2:
                _turns2(tile, cosines, sines, start, step, o1 + g, 0, 0)


def _sums(count: int) -> Any:
    """The simplex product of `count` entries; `total` is the sum of the entries before them, times `before`."""

    @line_code
    def sums(v: Lines, tile: Any, on: Any, before: Any, start: Any, total: Any) -> None:
        sum_before: Any = None
        carried = v.load_line(total, v.first)
        for k in range(count):
            at = v.after(start, k)
            y = v.load_line(tile, at)
            summed = carried if sum_before is None else v.plus(carried, sum_before)
            v.store_line(v.plus(summed, v.times(v.spread(on, at), y)), tile, at)
            step = v.times(v.spread(before, at), y)
            sum_before = step if sum_before is None else v.plus(sum_before, step)
        v.store_line(v.plus(carried, sum_before), total, v.first)

    return sums


_sums1, _sums8 = _sums(1), _sums(8)


@loop
def project(tile: F64, on: F64, before: F64, total: F64) -> None:
    """tile = V^T tile, V of `simplex_vertices`, d entries to d + 1, in place; on, before (d,); `total` a tile of 1."""
    d = on.size
    total[:] = 0
    for i in range(0, d - 7, 8):
        _sums8(tile, on, before, i, total)
    for i in range(d // 8 * 8, d):
        _sums1(tile, on, before, i, total)
    for lane in range(LANES):  # Numba takes seconds to compile the assignment of one slice to another
        tile[d * LANES + lane] = total[lane]
