"""Moments of features on a lattice that are never written out: products with them by Fourier transforms."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dorff.loops.exponentials import fast_length, irfftn, rfftn
from dorff.moments.base import IntArray, Solvable
from dorff.moments.blas import FloatArray
from dorff.moments.exponentials import ComplexArray, Extents
from dorff.moments.gram import Moments
from dorff.moments.toeplitz import Toeplitz, at


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
