"""Trigonometric polynomials at many places, by one Fourier transform and a window: what features on a lattice are
for, where there are more of them than a window has points."""

from dataclasses import dataclass
from math import pi, prod
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dorff.frequencies.transforms import IntArray, Modes
from dorff.kernels.scalar import FloatArray
from dorff.loops.exponentials import gather
from dorff.loops.windows import fast_length, irfftn, pieces_of, transform_of, width_of

FAST_FROM: Final = 256  # modes: with fewer, features and a product are as fast
MOST_NUMBERS: Final = 2**26  # of a grid
TOLERANCE: Final = 1e-13


@dataclass(frozen=True, eq=False)
class Trigonometric:
    """sum_a cos(omega_a . x) V_a + sin(omega_a . x) V_(D + a) at x (n, d): (n, C), for the modes omega of a lattice.

    Its values are on a `grid` of period 2 pi / step along the `axes` that vary; the error is 1e-13 of the sum of all
    coefficients' sizes."""

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
        spectrum = np.zeros((*points[:-1], points[-1] // 2 + 1, C), complex)
        D, ends = len(k), np.array(points)
        c = 0.5 * (V[:D] - 1j * V[D:])
        for axis, (K, N) in enumerate(zip(reach, points, strict=True)):
            c /= transform_of(width, N, int(K))[np.abs(k[:, axis]), None]
        for sign, values in ((1, c), (-1, np.conj(c))):
            kept = sign * k[:, -1] >= 0
            np.add.at(spectrum, tuple((sign * k[kept] % ends).T), values[kept])
        values = irfftn(spectrum, points, range(len(axes))) * prod(points)
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


def fast(modes: Modes, channels: int) -> bool:
    """Whether a polynomial is worth its grid, for so many channels."""
    axes = np.any(modes.modes != 0, axis=0)
    if modes.D < FAST_FROM or np.count_nonzero(axes) > 3:
        return False
    reach = np.abs(modes.modes).max(axis=0) / modes.every
    numbers = float(channels) * float(np.prod(4.0 * reach[axes] + 32.0))
    return numbers <= MOST_NUMBERS
