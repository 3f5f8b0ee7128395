"""Tiles: as many rows as a vector has lanes, side by side, so that one instruction works on all of them. Entry i of a
tile is one line: a vector, and one cache line, with entry i of each row. What works on lines is written in LLVM's
terms, so that nothing hangs on a loop vectoriser finding the vectors; where the hardware's are shorter, LLVM splits
them. There is no Python twin for NUMBA_DISABLE_JIT. Nothing here checks its arguments."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from dorff.loops.config import loop
from dorff.loops.rowwise import F64, Array, Strided

LINE = 64  # bytes of a cache line and of the widest vector
LANES = 8  # float64 numbers in a line
_CONTRACT = ("contract",)  # as in `loop`: fused multiply-add, and no other liberty
_INT = ir.IntType(64)
_MASK = ir.IntType(32)


class Lines:
    """A piece of code being built that works on whole lines. Arrays are addresses, integers LLVM values."""

    first = _INT(0)
    vector = ir.VectorType(ir.DoubleType(), LANES)
    none = ir.Constant(vector, ir.Undefined)

    def __init__(self, builder: Any) -> None:
        self.b = builder

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
        """LANES numbers, from anywhere."""
        return self.b.load(self.b.bitcast(self.b.gep(array, [index]), self.vector.as_pointer()), align=LINE // LANES)

    def store(self, value: Any, array: Any, index: Any) -> None:
        self.b.store(value, self.b.bitcast(self.b.gep(array, [index]), self.vector.as_pointer()), align=LINE // LANES)

    def line(self, tile: Any, entry: Any) -> Any:
        return self.b.gep(self.b.bitcast(tile, self.vector.as_pointer()), [entry])

    def load_line(self, tile: Any, entry: Any) -> Any:
        return self.b.load(self.line(tile, entry), align=LINE)

    def store_line(self, value: Any, tile: Any, entry: Any) -> None:
        self.b.store(value, self.line(tile, entry), align=LINE)

    def spread(self, array: Any, index: Any) -> Any:
        """One number in all lanes."""
        one = self.b.insert_element(self.none, self.b.load(self.b.gep(array, [index])), _MASK(0))
        return self._pick(one, self.none, [0] * LANES)

    def times(self, x: Any, y: Any) -> Any:
        return self.b.fmul(x, y, flags=_CONTRACT)

    def plus(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y, flags=_CONTRACT)

    def minus(self, x: Any, y: Any) -> Any:
        return self.b.fsub(x, y, flags=_CONTRACT)

    def transposed(self, rows: list[Any]) -> list[Any]:
        """lanes vectors of lanes numbers, transposed in registers: blocks of 1, 2, 4, ... change places."""
        step = 1
        while step < LANES:
            low = [i if not i & step else LANES + i - step for i in range(LANES)]
            high = [i + step if not i & step else LANES + i for i in range(LANES)]
            pairs = [(rows[i & ~step], rows[i | step]) for i in range(LANES)]
            rows = [self._pick(*pair, high if i & step else low) for i, pair in enumerate(pairs)]
            step *= 2
        return rows

    def _pick(self, x: Any, y: Any, mask: list[int]) -> Any:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_MASK, LANES), mask))


def line_code(emit: Callable[..., None]) -> Any:
    """An intrinsic that takes what `emit` takes after its `Lines`."""

    def typer(_: Any, *kinds: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(kinds, arguments, strict=True)
            ]
            emit(Lines(builder), *values)
            return context.get_dummy_value()

        return types.void(*(kind if isinstance(kind, types.Array) else types.intp for kind in kinds)), build

    # Numba reads the arguments' names, but no stars.
    named: Any = typer
    named.__name__ = emit.__name__
    named.__signature__ = inspect.signature(emit)
    return intrinsic(named)


@line_code
def _copy_line(v: Lines, source: Any, order: Any, tile: Any, entry: Any) -> None:
    v.store_line(v.load_line(source, v.entry(order, entry)), tile, entry)


@line_code
def _square_in(v: Lines, x: Any, at: Any, step: Any, factors: Any, tile: Any, entry: Any) -> None:
    """Entries `entry` and on of the tile: a square of x, times its columns' factors."""
    factor = v.load(factors, entry)
    rows = [v.times(v.load(x, v.at(at, step, k)), factor) for k in range(LANES)]
    for k, line in enumerate(v.transposed(rows)):
        v.store_line(line, tile, v.after(entry, k))


def _squares_out(count: int) -> Any:
    """So many squares of out side by side: the lines that entries[j] - offset and the next name, times their gains."""

    @line_code
    def squares(
        v: Lines, tile: Any, entries: Any, j: Any, offset: Any, gains: Any, out: Any, at: Any, step: Any
    ) -> None:
        rows = []
        for c in range(0, count * LANES, LANES):
            named = [v.b.sub(v.entry(entries, v.after(j, c + k)), offset) for k in range(LANES)]
            gain = v.load(gains, v.after(j, c))
            lines = v.transposed([v.load_line(tile, entry) for entry in named])
            rows.append([v.times(row, gain) for row in lines])
        for k in range(LANES):
            for c in range(count):
                v.store(rows[c][k], out, v.after(v.at(at, step, k), c * LANES))

    return squares


_square_out, _squares_out2 = _squares_out(1), _squares_out(2)


@loop
def new_tile(entries: int) -> F64:
    """A tile of so many entries, not initialised, that starts on a cache line."""
    room = np.empty((entries + 1) * LANES)
    start = (-room.ctypes.data % LINE) // (LINE // LANES)
    return room[start : start + entries * LANES]


@loop
def copy_permuted(source: F64, order: Array, tile: F64) -> None:
    """tile = source[order]"""
    for i in range(order.size):
        _copy_line(source, order, tile, i)


@loop
def take_rows(x: F64, x_step: int, first: int, valid: int, factors: F64, tile: F64) -> None:
    """tile[i, lane] = factors[i] * x[first + lane, i]; lanes from `valid` on become zero."""
    w, d, at = LANES, factors.size, first * x_step
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
def give_rows(tile: F64, chosen: Strided, gains: F64, into: Strided, at: int, valid: int) -> None:
    """out[at + lane * out_step + j] = gains[j] * tile[entries[j] - offset, lane] for the valid lanes."""
    (entries, offset), (out, out_step) = chosen, into
    w, D = LANES, gains.size
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
