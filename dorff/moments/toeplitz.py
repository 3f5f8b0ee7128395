"""Sums of exponentials in the place of Gram matrices: features whose frequencies lie on a lattice have products that
are cosines and sines of sums and differences of frequencies, which lie on it too. Z^T Z has few different numbers:

    T_k = sum w exp(i k . theta), |k_j| <= 2 M_j,     R_k = sum w (y - y0) exp(i k . theta), |k_j| <= M_j

and the squares of the targets; theta = h (x - x0) are the rows' angles, which know of no kernel. Moments that
these sums make need not be written out: products with them come by Fourier transforms."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod, sqrt
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.loops.exponentials import fast_length, halves, irfftn, rfftn, squares, witness
from dorff.loops.rowwise import trig_pairs
from dorff.moments.base import UNIT, Adder, IntArray, Kind, Solvable, Valued
from dorff.moments.blas import FloatArray
from dorff.moments.exponentials import ComplexArray, Extents, doubled, exponentials, half_shape, half_size
from dorff.moments.gram import Moments

ROWS: Final = 64  # of a Gram matrix that are made at a time
WITNESSED: Final = 4096  # rows at a time, that stay in a cache


@dataclass(frozen=True, eq=False)
class Toeplitz(Valued):
    """T, then R of each target (halves, see `half_shape`), then the targets' squares (q, q), as `values`. `m` is that
    of the features of all k with |k_j| <= M_j but 0; the `extents` M are the lattice's, not known here."""

    kind: ClassVar[Kind] = Kind.TOEPLITZ

    @classmethod
    def fits(cls, width: int, length: int) -> bool:
        return length > width

    def absorb(self, other: Self) -> Self:
        with np.errstate(over="ignore", invalid="ignore"):
            return super().absorb(other)

    def split(self, extents: Extents) -> tuple[ComplexArray, list[ComplexArray], FloatArray]:
        """T, R of each target, and the squares, views; InputError for sums of another lattice."""
        wide, narrow = half_size(doubled(extents)), half_size(extents)
        if length_of(extents, self.q) != self.length:
            raise InputError("the sums in the state are of another lattice than its plan; remove the state")
        numbers = self.values[: 2 * (wide + self.q * narrow)].view(complex)
        T = numbers[:wide].reshape(half_shape(doubled(extents)))
        R = list(numbers[wide:].reshape(self.q, *half_shape(extents)))
        return T, R, self.values[-(self.q**2) :].reshape(self.q, self.q)

    def gram(self, modes: IntArray, extents: Extents) -> Moments:
        """The moments of the features [cos k . theta | sin k . theta] of the k that `modes` (D, v) are. cos a cos b is
        half of cos(a - b) + cos(a + b), and so on."""
        T, R, squares = self.split(extents)
        D, q = len(modes), self.q
        w = 2 * D + 1 + q
        Z = np.empty((w, w))
        every = np.maximum(np.gcd.reduce(modes, axis=0), 1)
        reach = np.abs(modes // every).max(axis=0, initial=0)
        ends = [np.arange(-2 * K, 2 * K + 1) for K in reach]
        near = at(T, np.stack(np.meshgrid(*ends, indexing="ij"), axis=-1) * every)
        strides = np.array(near.strides) // near.itemsize
        zero, flat, near = 2 * reach @ strides, modes // every @ strides, near.reshape(-1)
        for start in range(0, D, ROWS):
            rows = slice(start, min(start + ROWS, D))
            minus, plus = (near[zero + flat[rows, None] + sign * flat] for sign in (-1, 1))
            Z[rows, :D] = 0.5 * (minus.real + plus.real)
            Z[rows, D : 2 * D] = 0.5 * (plus.imag - minus.imag)
            Z[D + rows.start : D + rows.stop, D : 2 * D] = 0.5 * (minus.real - plus.real)
        for column, of in enumerate((T, *R), 2 * D):
            alone = at(of, modes)
            Z[:D, column], Z[D : 2 * D, column] = alone.real, alone.imag
            Z[2 * D, column] = at(of, np.zeros(modes.shape[1], np.int64)).real
        Z[2 * D + 1 :, 2 * D + 1 :] = squares
        packed = np.concatenate([Z[: column + 1, column] for column in range(w)])
        return Moments(2 * D, q, self.n, self.y0, packed, self.observed, self.unit)


def length_of(extents: Extents, q: int) -> int:
    """How many numbers the sums of such a lattice have, for q targets."""
    return 2 * (half_size(doubled(extents)) + q * half_size(extents)) + q * q


def features_of(extents: Extents) -> int:
    """m of all features of the lattice but those of k = 0."""
    return prod(2 * M + 1 for M in extents) - 1


def at(half: ComplexArray, k: IntArray) -> ComplexArray:
    """Sums at whole numbers k (..., v); at -k they are conjugate."""
    turned = k[..., -1] < 0
    k = np.where(turned[..., None], -k, k)
    middle = np.array([(size - 1) // 2 for size in half.shape[:-1]] + [0])
    values = half[tuple(np.moveaxis(k + middle, -1, 0))]
    return np.asarray(np.where(turned, np.conj(values), values))


class ToeplitzAdder(Adder):
    """Adds rows Z (n, v + 1 + q) = [theta | w | y - y0], theta from -pi to pi. Its witness is the sum over all k of the
    sums' values at one point phi, which is that of a product of Dirichlet kernels over the rows; of the targets'
    squares along a direction; and the sums of the sizes of both."""

    kind: ClassVar[Kind] = Kind.TOEPLITZ

    def __init__(self, extents: Extents, q: int, y0: FloatArray, *, tolerance: float, observed: str = "") -> None:
        super().__init__(features_of(extents), q, y0, observed=observed, witnesses=2 * (2 + q))
        self.probe = self.probe[: max(q, 1)]
        self._exponentials, self._squares = exponentials(extents, q, tolerance), np.zeros((q, q))
        # Of Z^T Z, whose largest eigenvalue is that of all features together where rows are in one place.
        self.unit = 0.1 * self._exponentials.unit
        self._phi: FloatArray = 0.7 + 0.45 * np.arange(len(extents), dtype=np.float64)
        self._finished: tuple[int, FloatArray] | None = None
        self.rows: FloatArray | None = None  # scratch, of a block's shape, that sums of several parts share

    @property
    def length(self) -> int:
        return length_of(self._exponentials.extents, self.q)

    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        if not len(Z):
            return
        v, Z = len(self._phi), np.ascontiguousarray(Z)
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
            self._exponentials.add(Z, self.rows)
        squares(Z, v, self._squares)
        self._witness(Z)
        self.n += len(Z)

    def _witness(self, Z: FloatArray) -> None:
        of, q, v, n = self._exponentials, self.q, len(self._phi), len(Z)
        most, total = 2.0 * np.array([of.twice, of.extents]) + 1.0, np.zeros(1 + q)
        b = min(n, WITNESSED)
        half, trig, ones = np.empty((3 * v, b)), np.empty((3 * v, 2 * b)), np.ones(b)
        for start in range(0, n, b):
            rows = Z[start : start + b]
            halves(rows, self._phi, most, half)
            trig_pairs(half, trig, ones)
            witness(trig, most, rows, self.probe[:q], self.witness[: 2 + q], self.witness[2 + q :], total)
        with np.errstate(over="ignore", invalid="ignore"):
            self.witness[2 + q : 3 + 2 * q] += self._sizes * total

    @property
    def _sizes(self) -> FloatArray:
        """What the errors of all k may come to, where each is that of one of the sums."""
        of = self._exponentials
        wide, narrow = (sqrt(prod(2 * K + 1 for K in Ks)) * (1 + sum(Ks)) for Ks in (of.twice, of.extents))
        return np.array([wide, *[narrow] * self.q])

    def held(self) -> Iterator[FloatArray]:
        yield from self._exponentials.held()
        yield self._squares.reshape(-1)
        yield self.witness

    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        sums, q = self.moments(), self.q
        T, R, squares = sums.split(self._exponentials.extents)
        probe = self.probe[:q]
        summed = [*(_value(one, self._phi) for one in (T, *R)), float(probe @ squares @ probe)]
        slack = (self._exponentials.unit + UNIT * self.n) * self.witness[2 + q :]
        return np.array(summed), self.witness[: 2 + q], slack * np.append(np.ones(1 + q), 4.0)

    def pieces(self) -> Iterator[FloatArray]:
        yield self.moments().values

    def moments(self) -> Toeplitz:
        if self._finished is None or self._finished[0] != self.n:
            with np.errstate(over="ignore", invalid="ignore"):
                parts = [one.reshape(-1).view(float) for one in self._exponentials.sums()]
            self._finished = self.n, np.concatenate([*parts, self._squares.reshape(-1)])
        return Toeplitz(self.m, self.q, self.n, self.y0, self._finished[1].copy(), self.observed, self.unit)


def _value(half: ComplexArray, phi: FloatArray) -> float:
    """The sum over all k, those that are kept and those that are not, of the values times exp(-i k . phi)."""
    value: Any = half
    for size, angle in zip(half.shape[:-1], phi, strict=False):
        value = np.tensordot(np.exp(-1j * angle * (np.arange(size) - (size - 1) // 2)), value, axes=1)
    turned = (value * np.exp(-1j * phi[-1] * np.arange(half.shape[-1]))).real
    return float(2.0 * turned.sum() - turned[0])


@dataclass(frozen=True, eq=False)
class LatticeMoments(Solvable):
    """The moments of the features [cos k . theta | sin k . theta] of `modes` k (D, v), by sums over a lattice of these
    `extents`: `packed` are the sums' values. Products cost O(N log N), N the points of a grid for the modes. The sums
    serve all modes of the lattice: `on` chooses those of a kernel, and before that there are none."""

    kind: ClassVar[str] = "lattice"
    modes: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    extents: Extents = ()

    @classmethod
    def of(cls, sums: Toeplitz) -> Self:
        return cls(0, sums.q, sums.n, sums.y0, sums.values, sums.observed, sums.unit)

    def on(self, modes: npt.NDArray[np.integer[Any]], extents: npt.NDArray[np.integer[Any]]) -> Self:
        """Of features with these modes (D, d), of sums with these extents (d,): 0 along inputs that are constant."""
        axes, m = np.flatnonzero(extents), 2 * len(modes)
        return replace(self, m=m, modes=modes[:, axes].astype(np.int64), extents=tuple(extents[axes].tolist()))

    @classmethod
    def fits(cls, width: int, length: int) -> bool:
        return Toeplitz.fits(width, length)

    @property
    def _toeplitz(self) -> Toeplitz:
        return Toeplitz(self.m, self.q, self.n, self.y0, self.packed, self.observed, self.unit)

    @property
    def full(self) -> FloatArray:
        return self.gram().full

    def gram(self) -> Moments:
        """The same, written out."""
        return self._toeplitz.gram(self.modes, self.extents)

    @property
    def corner(self) -> FloatArray:
        return self._toeplitz.gram(self.modes[:0], self.extents).full

    @property
    def diagonal(self) -> FloatArray:
        T, _, squares = self._toeplitz.split(self.extents)
        weight, twice = self.corner[0, 0], at(T, 2 * self.modes).real
        return np.concatenate([0.5 * (weight + twice), 0.5 * (weight - twice), [weight], np.diag(squares)])

    @property
    def largest(self) -> float:
        """What the rows' weights come to where they are densest, as the modes see it."""
        return self._fourier.densest

    @property
    def points(self) -> int:
        """Of the grid by which products are made."""
        return self._fourier.points

    @cached_property
    def _fourier(self) -> "_Fourier":
        return _Fourier(self._toeplitz.split(self.extents)[0], self.modes)

    def squares(self, V: FloatArray) -> FloatArray:
        return np.asarray(np.sum(V * self.operator()[1](V), axis=0))

    def columns(self, at: IntArray, factor: float | FloatArray) -> Self:
        """Of pairs of features: the cosines `at` (D',) come first, and their sines."""
        D = len(at) // 2
        assert np.array_equal(at[D:], at[:D] + len(self.modes)) and np.all(factor == 1.0)
        return replace(self, m=2 * D, modes=self.modes[at[:D]])

    def operator(self) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        T, R, squares = self._toeplitz.split(self.extents)
        zero, D = np.zeros((1, self.modes.shape[1]), np.int64), len(self.modes)
        alone = [(at(one, self.modes), at(one, zero).real) for one in (T, *R)]
        border = np.stack([np.concatenate([values.real, values.imag, one]) for values, one in alone], axis=1)
        border = np.vstack([border, np.column_stack([border[-1, 1:], squares])])
        fourier, m = self._fourier, 2 * D

        def product(V: FloatArray) -> FloatArray:
            out = np.empty_like(V)
            for column in range(V.shape[1]):
                out[: m + 1, column] = fourier.product(V[: m + 1, column])
            out[: m + 1] += border[: m + 1, 1:] @ V[m + 1 :]
            out[m + 1 :] = border[:, 1:].T @ V
            return out

        return border, product


class _Fourier:
    """Products of [cos | sin | 1]^T w [cos | sin | 1] with vectors, of modes k (D, v)."""

    def __init__(self, T: ComplexArray, modes: IntArray) -> None:
        every = np.maximum(np.gcd.reduce(modes, axis=0), 1)
        k = modes // every
        reach = np.abs(k).max(axis=0)
        self._n = grid_of(tuple(int(K) for K in reach))
        self.points, self._half = prod(self._n), (*self._n[:-1], self._n[-1] // 2 + 1)
        ends = [np.arange(-2 * K, 2 * K + 1) for K in reach[:-1]]
        inside = np.stack(np.meshgrid(*ends, np.arange(2 * reach[-1] + 1), indexing="ij"), axis=-1)
        spectrum = np.zeros(self._half, complex)
        spectrum[self._at(inside)] = at(T, inside * every)
        #: The rows' weights as a trigonometric polynomial, on the grid.
        self._density = irfftn(np.conj(spectrum), self._n)
        self._down = k[:, -1] < 0
        up = np.where(self._down[:, None], -k, k)
        self._index, flat = self._at(up), np.flatnonzero(up[:, -1] == 0)
        self._flat, self._mirrored = flat, self._at(-up[flat])  # of those both k and -k are in the half

    @property
    def densest(self) -> float:
        """No product of a vector with itself is more than this times its squared length: a polynomial's squares on the
        grid are as its coefficients', twice as much where the constant is there as a mode too."""
        return float(2.0 * self.points * np.abs(self._density).max())

    def _at(self, k: IntArray) -> tuple[Any, ...]:
        return tuple(np.moveaxis(k % np.array(self._n), -1, 0))

    def product(self, x: FloatArray) -> FloatArray:
        D, zero = len(self._down), (0,) * len(self._n)
        c = 0.5 * (x[:D] - 1j * np.where(self._down, -x[D : 2 * D], x[D : 2 * D]))
        spectrum = np.zeros(self._half, complex)
        np.add.at(spectrum, self._index, c)
        np.add.at(spectrum, self._mirrored, np.conj(c[self._flat]))
        spectrum[zero] += x[2 * D]
        g = irfftn(spectrum, self._n)
        g *= self._density
        g *= float(self.points)
        seen = rfftn(g)
        values = seen[self._index]
        sines = np.where(self._down, values.imag, -values.imag)
        return np.concatenate([values.real, sines, [seen[zero].real]])


def grid_of(reach: Extents) -> tuple[int, ...]:
    """The points of a grid on which products of two polynomials of these degrees are not confused with others."""
    return tuple(fast_length(4 * K + 1) for K in reach)
