"""Sums of exponentials over rows, sum of strength exp(i k . theta), for whole numbers |k_j| <= K_j: exact, by products
of one-dimensional powers, for few; by a grid and its Fourier transform for many."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.loops.exponentials import fast_length, pieces_of, powers, rfftn, spread, tiles, transform_of, width_of
from dorff.loops.rowwise import trig_pairs
from dorff.moments.blas import FloatArray

ComplexArray = npt.NDArray[np.complex128]
Extents = tuple[int, ...]  # K_j of each angle
#: Of 1, 2 or 3 angles the most numbers for which products are faster than a grid at 1e-12, as measured with three
#: strengths; a grid for fewer digits is faster by its window's points.
MOST_TENSOR: Final = (0, 0, 1500, 8000)
TENSOR_ROWS: Final = 1024
SORTED_FROM: Final = 2**17  # numbers of a grid, from which on rows are put in its order: it is larger than a cache


def half_shape(extents: Extents) -> tuple[int, ...]:
    """The shape of sums that are kept: k and -k are conjugate, so that of the last angle k >= 0 does."""
    return (*(2 * K + 1 for K in extents[:-1]), extents[-1] + 1)


def half_size(extents: Extents) -> int:
    """How many complex numbers these are."""
    return prod(half_shape(extents))


def doubled(extents: Extents) -> Extents:
    """Those of products of two features."""
    return tuple(2 * M for M in extents)


class Exponentials(ABC):
    """Sums for one column of `weights`, of |k_j| <= 2 M_j, and for q columns of `targets`, of |k_j| <= M_j."""

    def __init__(self, extents: Extents, q: int) -> None:
        self.extents, self.q = extents, q

    #: The largest error of a sum, relative to that of the strengths' sizes.
    unit: float

    @property
    def twice(self) -> Extents:
        return doubled(self.extents)

    @abstractmethod
    def add(self, Z: FloatArray, into: FloatArray | None = None) -> None:
        """Add rows [theta | w | y] (n, d + 1 + q), C-contiguous: the strengths are w, and w times each target. They may
        be put in another order in `into` (n or more, d + 1 + q), C-contiguous."""

    @abstractmethod
    def held(self) -> Iterator[FloatArray]:
        """All numbers, contiguous, in its own memory."""

    @abstractmethod
    def sums(self) -> list[ComplexArray]:
        """What was added: T of `half_shape` of twice the extents, then R of each target."""


class TensorExponentials(Exponentials):
    """Products of matrices: exp(i k . theta) is a product over the angles. Exact to rounding."""

    unit = 2.0**-48

    def __init__(self, extents: Extents, q: int) -> None:
        super().__init__(extents, q)
        wide, narrow = ([2 * K + 1 for K in Ks] for Ks in (self.twice, extents))
        # Of cosines, then sines of twice as many.
        self._few = [np.r_[0 : M + 1, 2 * M + 1 : 3 * M + 1] for M in extents]
        self._T = np.zeros((wide[0], prod(wide[1:])))
        self._R = np.zeros((q * narrow[0], prod(narrow[1:])))

    def add(self, Z: FloatArray, into: FloatArray | None = None) -> None:
        for start in range(0, len(Z), TENSOR_ROWS):
            columns, v = np.ascontiguousarray(Z[start : start + TENSOR_ROWS].T), len(self.extents)
            self._add(columns[:v], columns[v], columns[v + 1 :])

    def _add(self, theta: FloatArray, w: FloatArray, y: FloatArray) -> None:
        b, trig = theta.shape[1], np.empty((len(theta), 2 * theta.shape[1]))
        trig_pairs(theta, trig, np.ones(b))
        each = []
        for K, row in zip(self.twice, trig, strict=True):
            E = np.empty((2 * K + 1, b))
            if K:
                E[1], E[K + 1] = row[:b], row[b:]
            powers(E)
            each.append(E)
        few = [E[at] for E, at in zip(each, self._few, strict=True)]
        self._T += (each[0] * w) @ _across(each[1:], b).T
        if self.q:
            self._R += (few[0] * (w * y)[:, None]).reshape(-1, b) @ _across(few[1:], b).T

    def held(self) -> Iterator[FloatArray]:
        yield self._T.reshape(-1)
        yield self._R.reshape(-1)

    def sums(self) -> list[ComplexArray]:
        T = self._T.reshape([2 * K + 1 for K in self.twice])
        R = self._R.reshape([self.q, *(2 * M + 1 for M in self.extents)])
        return [_of_tensor(T, self.twice), *(_of_tensor(one, self.extents) for one in R)]


def _across(each: Sequence[FloatArray], b: int) -> FloatArray:
    """All products of a row of each, (prod, b)."""
    out = np.ones((1, b))
    for E in each:
        out = (out[:, None] * E).reshape(-1, b)
    return out


def _of_tensor(tensor: FloatArray, extents: Extents) -> ComplexArray:
    """From sums of products of cosines (0 to K) and sines (1 to K) to those of exponentials, half of them."""
    out: npt.NDArray[Any] = tensor
    for axis, K in enumerate(extents):
        cosines, sines = np.split(out, [K + 1], axis=axis)
        up = cosines.astype(complex)
        positive = [slice(None)] * out.ndim
        positive[axis] = slice(1, None)
        up[tuple(positive)] += 1j * sines
        if axis == len(extents) - 1:
            return up
        out = np.concatenate([np.flip(cosines[tuple(positive)] - 1j * sines, axis=axis), up], axis=axis)
    raise AssertionError("no angle")


class GridExponentials(Exponentials):
    """Strengths spread by a window on a grid of twice as many points; one Fourier transform at the end."""

    def __init__(self, extents: Extents, q: int, tolerance: float) -> None:
        super().__init__(extents, q)
        self._width = width_of(tolerance)
        self.unit = 20.0 * 10.0 ** (1 - self._width)  # of rows in one place; 100 times less where they are spread
        self._coefficients = pieces_of(self._width)
        W = self._coefficients.shape[1]
        self._points = tuple(fast_length(int(N)) for N in (max(2 * (2 * K + 1), 2 * self._width) for K in self.twice))
        self._shape = (*(N + W for N in self._points), 1 + q)
        steps = [1, 1, 1, *(prod(self._shape[axis + 1 :]) for axis in range(len(extents)))]
        self._sides = np.array(steps[-3:-1], np.int64)
        self._tiles = np.array([max(8, ceil(N / (2**16) ** (1 / len(extents)))) for N in self._points])
        self._grid = np.zeros(prod(self._shape) + 8 * W * (1 + q))  # windows may reach behind the last index

    def add(self, Z: FloatArray, into: FloatArray | None = None) -> None:
        points = np.array(self._points)
        if self._grid.size > SORTED_FROM:  # rows by the tile of the grid that they are in
            tile, rows = np.empty(len(Z), np.uint16), np.empty_like(Z) if into is None else into[: len(Z)]
            tiles(Z, points, self._tiles, tile)
            Z = np.take(Z, np.argsort(tile, kind="stable"), axis=0, out=rows, mode="clip")  # "raise" would copy
        spread(Z, self._coefficients, self._width, points, self._grid, self._sides)

    def held(self) -> Iterator[FloatArray]:
        yield self._grid

    def sums(self) -> list[ComplexArray]:
        W, left = self._coefficients.shape[1], self._width // 2 - 1
        grid = self._grid[: prod(self._shape)].reshape(self._shape)
        for axis, N in enumerate(self._points):  # the grid is a torus, from `left` on
            first, rest, behind = np.split(grid, [left, N], axis=axis)
            grid = np.concatenate([rest, first], axis=axis)
            ends, more = np.moveaxis(grid, axis, 0), np.moveaxis(behind, axis, 0)
            ends[N - left :] += more[:left]
            ends[: W - left] += more[left:]
        transformed = rfftn(grid, range(len(self.extents)))
        corrections = [transform_of(self._width, N, K) for N, K in zip(self._points, self.twice, strict=True)]
        each = enumerate([self.twice, *[self.extents] * self.q])
        return [self._kept(transformed[..., channel], corrections, extents) for channel, extents in each]

    def _kept(self, values: ComplexArray, corrections: Sequence[FloatArray], extents: Extents) -> ComplexArray:
        for axis, (K, N, correction) in enumerate(zip(extents, self._points, corrections, strict=True)):
            k = np.arange(0 if axis == len(extents) - 1 else -K, K + 1)
            shape = [-1 if number == axis else 1 for number in range(len(extents))]
            values = np.take(values, k % N, axis=axis) / correction[np.abs(k)].reshape(shape)
        return np.conj(values)


def exponentials(extents: Extents, q: int, tolerance: float) -> Exponentials:
    """Empty sums, made the faster way, which depends on the arguments alone; `tolerance` is relative to the strengths'
    sizes, down to 1e-13."""
    numbers = prod(4 * M + 1 for M in extents) + q * prod(2 * M + 1 for M in extents)
    d, share = len(extents), width_of(tolerance) / width_of(1e-12)
    tensor = d > 3 or numbers <= MOST_TENSOR[d] * share**d
    return TensorExponentials(extents, q) if tensor else GridExponentials(extents, q, tolerance)
