"""Tiles: as many rows as a vector has lanes, side by side, so that one instruction works on all of them.

Entry i of a tile is one line: a vector, and one cache line, with entry i of each row. What works on lines is
written in LLVM's terms, so that nothing hangs on a loop vectoriser finding the vectors; where the hardware's are
shorter, LLVM splits them. There is no Python twin for NUMBA_DISABLE_JIT. Nothing here checks its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from dorff.loops.config import loop
from dorff.loops.rowwise import Array, Floats, Strided

LINE = 64  # bytes of a cache line and of the widest vector
_CONTRACT = ("contract",)  # as in `loop`: fused multiply-add, and no other liberty
_INT = ir.IntType(64)
_MASK = ir.IntType(32)


def lanes_of(kind: Any) -> int:
    """Numbers of this Numba array type in a line: 8 in float64, 16 in float32."""
    return LINE * 8 // int(kind.dtype.bitwidth)


@final
class Lines:
    """A piece of code being built that works on whole lines. Arrays are addresses, integers LLVM values."""

    def __init__(self, builder: Any, number: Any, lanes: int) -> None:
        self.b, self.lanes = builder, lanes
        self.vector = ir.VectorType(number, lanes)
        self.first = _INT(0)
        self.none = ir.Constant(self.vector, ir.Undefined)

    def after(self, index: Any, k: int) -> Any:
        """index + k"""
        return self.b.add(index, _INT(k))

    def at(self, start: Any, step: Any, k: int) -> Any:
        """start + k step"""
        return self.b.add(start, self.b.mul(step, _INT(k)))

    def entry(self, array: Any, index: Any) -> Any:
        """One integer of an index array."""
        number = self.b.load(self.b.gep(array, [index]))
        return number if number.type == _INT else self.b.zext(number, _INT)

    def load(self, array: Any, index: Any) -> Any:
        """A line's worth of numbers, from anywhere."""
        address = self.b.bitcast(self.b.gep(array, [index]), self.vector.as_pointer())
        return self.b.load(address, align=LINE // self.lanes)

    def store(self, value: Any, array: Any, index: Any) -> None:
        address = self.b.bitcast(self.b.gep(array, [index]), self.vector.as_pointer())
        self.b.store(value, address, align=LINE // self.lanes)

    def line(self, tile: Any, entry: Any) -> Any:
        return self.b.gep(self.b.bitcast(tile, self.vector.as_pointer()), [entry])

    def load_line(self, tile: Any, entry: Any) -> Any:
        return self.b.load(self.line(tile, entry), align=LINE)

    def store_line(self, value: Any, tile: Any, entry: Any) -> None:
        self.b.store(value, self.line(tile, entry), align=LINE)

    def spread(self, array: Any, index: Any) -> Any:
        """One number in all lanes."""
        one = self.b.insert_element(self.none, self.b.load(self.b.gep(array, [index])), _MASK(0))
        return self._pick(one, self.none, [0] * self.lanes)

    def times(self, x: Any, y: Any) -> Any:
        return self.b.fmul(x, y, flags=_CONTRACT)

    def plus(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y, flags=_CONTRACT)

    def minus(self, x: Any, y: Any) -> Any:
        return self.b.fsub(x, y, flags=_CONTRACT)

    def transposed(self, rows: list[Any]) -> list[Any]:
        """lanes vectors of lanes numbers, transposed in registers: blocks of 1, 2, 4, ... change places."""
        step = 1
        while step < self.lanes:
            low = [i if not i & step else self.lanes + i - step for i in range(self.lanes)]
            high = [i + step if not i & step else self.lanes + i for i in range(self.lanes)]
            pairs = [(rows[i & ~step], rows[i | step]) for i in range(self.lanes)]
            rows = [self._pick(*pair, high if i & step else low) for i, pair in enumerate(pairs)]
            step *= 2
        return rows

    def _pick(self, x: Any, y: Any, mask: list[int]) -> Any:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_MASK, self.lanes), mask))


def line_code(emit: Callable[..., None]) -> Any:
    """An intrinsic that takes what `emit` takes after its `Lines`; the first argument is an array of the numbers."""

    def typer(_: Any, *kinds: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(kinds, arguments, strict=True)
            ]
            emit(Lines(builder, context.get_data_type(kinds[0].dtype), lanes_of(kinds[0])), *values)
            return context.get_dummy_value()

        return types.void(*(kind if isinstance(kind, types.Array) else types.intp for kind in kinds)), build

    # Numba reads the arguments' names, but no stars.
    named: Any = typer
    named.__name__ = emit.__name__
    named.__signature__ = inspect.signature(emit)
    return intrinsic(named)


def _lanes(_: Any, a: Any) -> Any:
    """Numbers of the array `a` in a line, known when the caller is compiled."""
    return types.intp(a), lambda context, *_: context.get_constant(types.intp, lanes_of(a))


lanes: Callable[[Array], int] = intrinsic(_lanes)  # type: ignore[assignment] # typed as the compiler calls it


@line_code
def _copy_line(v: Lines, source: Any, order: Any, tile: Any, entry: Any) -> None:
    v.store_line(v.load_line(source, v.entry(order, entry)), tile, entry)


@line_code
def _square_in(v: Lines, x: Any, at: Any, step: Any, factors: Any, tile: Any, entry: Any) -> None:
    """Entries `entry` and on of the tile: a square of x, times its columns' factors."""
    factor = v.load(factors, entry)
    rows = [v.times(v.load(x, v.at(at, step, k)), factor) for k in range(v.lanes)]
    for k, line in enumerate(v.transposed(rows)):
        v.store_line(line, tile, v.after(entry, k))


def _squares_out(count: int) -> Any:
    """So many squares of out side by side: the lines that entries[j] - offset and the next name, times their gains."""

    @line_code
    def squares(
        v: Lines, tile: Any, entries: Any, j: Any, offset: Any, gains: Any, out: Any, at: Any, step: Any
    ) -> None:
        rows = []
        for c in range(0, count * v.lanes, v.lanes):
            named = [v.b.sub(v.entry(entries, v.after(j, c + k)), offset) for k in range(v.lanes)]
            gain = v.load(gains, v.after(j, c))
            lines = v.transposed([v.load_line(tile, entry) for entry in named])
            rows.append([v.times(row, gain) for row in lines])
        for k in range(v.lanes):
            for c in range(count):
                v.store(rows[c][k], out, v.after(v.at(at, step, k), c * v.lanes))

    return squares


_square_out, _squares_out2 = _squares_out(1), _squares_out(2)


@loop
def new_tile(entries: int, like: Floats) -> Floats:
    """A tile of so many entries, not initialised, that starts on a cache line."""
    w = lanes(like)
    room = np.empty((entries + 1) * w, like.dtype)
    start = (-room.ctypes.data % LINE) // (LINE // w)
    return room[start : start + entries * w]


@loop
def copy_permuted(source: Floats, order: Array, tile: Floats) -> None:
    """tile = source[order]"""
    for i in range(order.size):
        _copy_line(source, order, tile, i)


@loop
def take_rows(x: Floats, x_step: int, first: int, valid: int, factors: Floats, tile: Floats) -> None:
    """tile[i, lane] = factors[i] * x[first + lane, i]; lanes from `valid` on become zero."""
    w, d, at = lanes(x), factors.size, first * x_step
    if valid == w and w <= d:
        for i in range(0, d - w, w):
            _square_in(x, at + i, x_step, factors, tile, i)
        _square_in(x, at + d - w, x_step, factors, tile, d - w)  # may overlap the one before
        return
    tile[: d * w] = 0
    for lane in range(valid):
        for i in range(d):
            tile[i * w + lane] = factors[i] * x[at + lane * x_step + i]


@loop
def give_rows(tile: Floats, chosen: Strided, gains: Floats, into: Strided, at: int, valid: int) -> None:
    """out[at + lane * out_step + j] = gains[j] * tile[entries[j] - offset, lane] for the valid lanes; `chosen` are the
    entries and their offset, `into` is out with its step."""
    (entries, offset), (out, out_step) = chosen, into
    w, D = lanes(tile), gains.size
    if valid == w and w <= D:
        for j in range(0, D - 2 * w, 2 * w):
            _squares_out2(tile, entries, j, offset, gains, out, at + j, out_step)
        for j in range(max((D - 1) // (2 * w) * 2 * w, 0), D - w, w):
            _square_out(tile, entries, j, offset, gains, out, at + j, out_step)
        _square_out(tile, entries, D - w, offset, gains, out, at + D - w, out_step)
        return
    for lane in range(valid):
        for j in range(D):
            out[at + lane * out_step + j] = gains[j] * tile[(entries[j] - offset) * w + lane]
