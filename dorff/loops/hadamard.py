"""The Walsh-Hadamard transform of tiles, in O(n log n) a row; H is that of scipy.linalg.hadamard: H H = n I."""

from typing import Any

from dorff.loops.config import loop
from dorff.loops.rowwise import F64
from dorff.loops.tiles import Lines, line_code

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
