"""Trigonometric polynomials at many places, by one Fourier transform and a window: what features on a lattice are
for, where there are more of them than a window has points."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import pi, prod
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dorff.frequencies.transforms import Modes
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.loops.exponentials import fast_length, gather, irfftn, pieces_of, transform_of, width_of

FAST_FROM: Final = (0, 16, 64, 512)  # modes, of 1, 2 or 3 inputs: with fewer, features and a product are as fast
MOST_NUMBERS: Final = 2**26  # of a grid
FEW_NUMBERS: Final = 2**18  # that are nothing beside a process
TOLERANCE: Final = 1e-13
SQUARES: Final = 2**20  # numbers on a grid that are squared at a time


@dataclass(frozen=True, eq=False)
class Trigonometric:
    """sum_a cos(omega_a . x) V_a + sin(omega_a . x) V_(D + a) at x (n, d): (n, C), for the modes omega of a lattice.
    Values are on a `grid` of period 2 pi / step along `axes` that vary, to 1e-13 of the coefficients' summed sizes."""

    axes: IntArray
    step: FloatArray
    points: tuple[int, ...]
    grid: FloatArray
    sides: npt.NDArray[np.int64]
    channels: int

    @classmethod
    def of(cls, modes: Modes, V: FloatArray) -> Self:
        """For coefficients V (2 D, C)."""
        axes = np.flatnonzero(np.any(modes.modes != 0, axis=0))
        every = modes.every[axes]
        k, width, C = modes.modes[:, axes] // every, width_of(TOLERANCE), V.shape[1]
        reach = np.abs(k).max(axis=0)
        points = tuple(fast_length(int(max(2 * (2 * K + 1), 2 * width))) for K in reach)
        c = 0.5 * (V[: len(k)] - 1j * V[len(k) :])
        for axis, (K, N) in enumerate(zip(reach, points, strict=True)):
            c /= transform_of(width, N, int(K))[np.abs(k[:, axis]), None]
        values = irfftn(_spectrum(k, c, points), points, range(len(axes))) * prod(points)
        W, left = pieces_of(width).shape[1], width // 2 - 1
        padded = np.pad(values, [(left, W - left)] * len(axes) + [(0, 0)], mode="wrap")
        steps = [1, 1, 1, *(prod(padded.shape[axis + 1 :]) for axis in range(len(axes)))]
        return cls(axes, modes.step[axes] * every, points, padded.reshape(-1), np.array(steps[-3:-1], np.int64), C)

    def __call__(self, x: FloatArray) -> FloatArray:
        turns = x[:, self.axes] * (self.step / (2.0 * pi))
        wrong = ~np.isfinite(turns).all(axis=1)
        turns[wrong] = 0.0
        turns -= np.floor(turns)
        turns *= self.points
        width, out = width_of(TOLERANCE), np.empty((len(x), self.channels))
        gather(np.ascontiguousarray(turns), pieces_of(width), width, self.grid, self.sides, out)
        out[wrong] = np.nan
        return out


def doubled(modes: Modes) -> Modes:
    """All sums and differences of modes."""
    reach = 2 * np.abs(modes.modes // modes.every).max(axis=0)
    ends = np.meshgrid(*[np.arange(-K, K + 1) for K in reach], indexing="ij")
    return Modes(modes.step * modes.every, np.stack(ends, axis=-1).reshape(-1, modes.d), reach, modes.beside)


def squares(modes: Modes, roots: Callable[[int], Iterable[FloatArray]]) -> FloatArray:
    """Coefficients (2 D',) of `doubled` modes for the sum of (g T_j)^2 over all columns of the T (2 D + 1, n) that
    `roots` gives, n at most as asked for; g = [cos k . x | sin k . x | 1] of modes k (D, d)."""
    k, D, axes = modes.modes // modes.every, modes.D, range(modes.d)
    points = tuple(fast_length(4 * int(K) + 1) for K in np.abs(k).max(axis=0))
    total, size = np.zeros(points), prod(points)
    for T in roots(max(1, SQUARES // size)):
        spectrum = _spectrum(k, 0.5 * (T[:D] - 1j * T[D : 2 * D]), points)
        spectrum[(0,) * modes.d] += T[2 * D]
        values = irfftn(spectrum, points, axes)
        total += np.einsum("...j,...j->...", values, values)
    c = (np.fft.fftn(total) * size)[tuple((doubled(modes).modes % np.array(points)).T)]
    return np.concatenate([c.real, -c.imag])


def _spectrum(k: IntArray, c: FloatArray, points: tuple[int, ...]) -> npt.NDArray[np.complex128]:
    """The half of the Fourier coefficients (..., C) that says all, of 2 Re sum_a c_a exp(i k_a . x), on a grid."""
    spectrum = np.zeros((*points[:-1], points[-1] // 2 + 1, c.shape[1]), complex)
    for sign, values in ((1, c), (-1, np.conj(c))):
        kept = sign * k[:, -1] >= 0
        spectrum[tuple((sign * k[kept] % np.array(points)).T)] += values[kept]
    return spectrum


def fast(modes: Modes, channels: int, *, most: int = MOST_NUMBERS) -> bool:
    """Whether a polynomial is worth its grid, for so many channels, and that has no more than `most` numbers."""
    v = int(np.count_nonzero(np.any(modes.modes != 0, axis=0)))
    return v <= 3 and FAST_FROM[v] <= modes.D and numbers_of(modes, channels) <= min(most, MOST_NUMBERS)


def numbers_of(modes: Modes, channels: int) -> float:
    """The numbers of a polynomial's grid, or a few more."""
    reach = np.abs(modes.modes).max(axis=0) / modes.every
    return float(channels) * float(np.prod(4.0 * reach[reach > 0] + 32.0))
