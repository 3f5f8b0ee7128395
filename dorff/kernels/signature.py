"""Operator kernels given by their signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.sampled import matrices, refuse_negative, sampled
from dorff.kernels.scalar import FloatArray, Measure
from dorff.kernels.spectral import MatrixFunction, OfFunction, evaluated, scaled_root, whole
from dorff.kernels.tabulated import Tabulated, fold, folded_nodes, fourier_sum, plane_waves


@final
@dataclass(frozen=True, eq=False)
class FromSignature(OfFunction):
    """K(x, z) = K0(x - z), K0 a function of delta (..., d) that gives real symmetric matrices (..., p, p); d <= 3.

    `box` holds half-widths in input units, a number (with `d`) or one for each input: beyond |delta_j| <= box_j K0
    counts as zero, and has to be below 1e-6 of K0(0) on the faces. K0 is sampled on a grid of `points` along each
    input (made odd); by default it grows until the spectrum at its edge is below 1e-6 of its peak and the spectrum
    gives back K0 between the grid's points to 1e-2 of K0(0), up to 2^24 numbers (128 MiB). The density is

        mu(omega) = (2 pi)^-d int K0(delta) cos(omega . delta) d delta

    (Brault 2016, eq. 5, which leaves out (2 pi)^-d; Minh 2016, eq. 48), the integral a sum over the grid. Frequencies
    are drawn from its trace law (Minh's Corollary 10), `scalar`, which is constant over each cell of the FFT's grid;
    at those drawn mu is that sum itself, not interpolated, so that the estimate stays unbiased.

    InputError, with the place, where K0 has not decayed, is not symmetric or even, or its spectrum is not positive
    semi-definite (to 1e-5 of its largest eigenvalue).
    """

    signature: MatrixFunction
    box: tuple[float, ...]
    p: int
    scalar: Tabulated
    measure = Measure.UNBOUNDED
    samples: FloatArray  # of K0, folded (see `tabulated.fold`): the upper triangles, in the last axis
    peak: float  # the largest eigenvalue of mu on the FFT's grid
    floor: float  # eigenvalues of mu up to this cannot be told from zero

    def __init__(
        self,
        signature: MatrixFunction,
        box: float | Sequence[float],
        *,
        d: int | None = None,
        points: int | Sequence[int] | None = None,
    ) -> None:
        if not callable(signature):
            raise InputError(f"signature must be a function of differences delta (..., d), not {signature!r}")
        sides = _half_widths(box, d)
        p = _outputs(signature, len(sides))
        grid, lowest, peak = sampled(signature, sides, p, points)
        vars(self).update(signature=signature, box=sides, p=p, scalar=grid.law(), peak=peak)
        object.__setattr__(self, "samples", fold(grid.table * grid.volume))
        object.__setattr__(self, "floor", max(-4 * lowest, 32 * p * np.finfo(np.float64).eps * peak))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return evaluated(self.signature, X[:, None, :] - Z[None, :, :], self.p, "signature")

    def density(self, omega: FloatArray) -> FloatArray:
        """mu (D, p, p) at omega (D, d) within the grid's edges; it is periodic beyond, where `root` takes zero."""
        counts = np.asarray([2 * len(self.samples) - 1, *self.samples.shape[1:-1]])
        at = folded_nodes(self.samples, 2 * np.asarray(self.box) / (counts - 1))
        return matrices(fourier_sum(self.samples, omega, lambda t, axis: plane_waves(t, at[axis])), self.p)

    def root(self, omega: FloatArray) -> FloatArray:
        """U (D, r, p), r the largest rank of mu at these frequencies, in units of the density of `scalar`.

        InputError where mu is not positive between the FFT's frequencies.
        """
        log_density = self.scalar.log_density(omega, Measure.UNBOUNDED)
        values, vectors = np.linalg.eigh(self.density(omega))
        worst = int(np.argmin(values[:, 0]))
        refuse_negative(float(values[worst, 0]), self.peak, omega[worst])
        return scaled_root(values, vectors, np.where(log_density > -np.inf, self.floor, np.inf), log_density)

    def trace(self, d: int, p: int) -> float:
        return float(np.trace(self.gram(np.zeros((1, d)), np.zeros((1, d)))[0, 0]))


def _outputs(signature: MatrixFunction, d: int) -> int:
    """p, from the signature at zero."""
    shape = np.shape(signature(np.zeros((1, d))))
    if len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2] or shape[1] < 1:
        raise InputError(f"signature must give (n, p, p) for delta of shape (n, {d}); for (1, {d}) it gives {shape}")
    return int(shape[1])


def _half_widths(box: float | Sequence[float], d: int | None) -> tuple[float, ...]:
    try:
        values = np.asarray(box, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim == 0 and d is not None:
        values = np.full(whole("d", d), float(values))
    if values.ndim != 1 or not 1 <= values.size <= 3 or d not in (None, values.size):
        raise InputError(f"box must be a number with d, or one for each of 1 to 3 inputs; got {box!r} and d = {d!r}")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError(f"box must hold positive numbers, the half-widths in input units, not {box!r}")
    return tuple(float(value) for value in values)
