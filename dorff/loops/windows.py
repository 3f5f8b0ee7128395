"""The window by which rows are spread on a grid, and a grid's values taken to rows: exp(beta (sqrt(1 - z^2) - 1)).
Width and beta are those of Barnett, Magland & af Klinteberg (2019) for grids of twice as many points as frequencies."""

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, log10, pi

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
C128 = NDArray[np.complex128]


def rfftn(values: F64, axes: Iterable[int] | None = None) -> C128:
    """The Fourier transform of real values, the half of it that says all."""
    from scipy.fft import rfftn as transform  # much to load at each start, and only lattices need it

    return np.asarray(transform(values, axes=axes, workers=1))


def irfftn(spectrum: C128, points: tuple[int, ...], axes: Iterable[int] | None = None) -> F64:
    """Its inverse, on a grid of so many points."""
    from scipy.fft import irfftn as transform

    return np.asarray(transform(spectrum, s=points, axes=axes, workers=1))


def fast_length(least: int) -> int:
    """A number of points, `least` or little more, that transforms are fast for."""
    from scipy.fft import next_fast_len

    return int(next_fast_len(least, real=True))


def width_of(tolerance: float) -> int:
    """The grid points that a window for this relative error covers: an even number."""
    return 2 * ceil((ceil(-log10(tolerance)) + 1) / 2)


def _bump(z: F64, width: int) -> F64:
    return np.asarray(np.exp(2.30 * width * (np.sqrt(np.maximum(0.0, 1.0 - z * z)) - 1.0)))


@lru_cache
def pieces_of(width: int) -> F64:
    """The window's pieces (degree + 1, W) between grid points, of t from -1 to 1, the highest power first; W is a whole
    number of lanes of the vector unit, and pieces beyond the width are zero."""
    degree, t = width + 4, np.cos(pi * (np.arange(64) + 0.5) / 64)
    out = np.zeros((degree + 1, -(-width // 8) * 8))
    for j in range(width):
        away = (j - (width / 2 - 1) - (t + 1) / 2) / (width / 2)
        powers_of_t = np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(t, _bump(away, width), degree))
        out[len(out) - len(powers_of_t) :, j] = powers_of_t[::-1]
    return out


def transform_of(width: int, points: int, K: int) -> F64:
    """The window's Fourier transform at k = 0 to K, on a grid of so many points."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    angles = np.outer(nodes * width / 2 * (2.0 * pi / points), np.arange(K + 1))
    return np.asarray((weights * _bump(nodes, width)) @ np.cos(angles) * (width / 2))
