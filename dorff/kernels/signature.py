"""Operator kernels given by their signature: sampled on a grid, and its spectrum by the fast Fourier transform."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dorff.errors import InputError
from dorff.kernels.scalar import BoolArray, FloatArray, Measure, whole
from dorff.kernels.spectral import (
    MatrixFunction,
    OfFunction,
    Tabulated,
    evaluated,
    fold,
    folded_nodes,
    fourier_sum,
    nodes,
    place,
    plane_waves,
    refuse_asymmetric,
    scaled_root,
)
from dorff.spec.registry import lazily

fftn = lazily("scipy.fft", "fftn")
fftshift = lazily("scipy.fft", "fftshift")
ifftshift = lazily("scipy.fft", "ifftshift")

_SMALL = 1e-6  # of K0(0) on the faces of the box; of the spectrum's peak at the edge of the grid
_NEGATIVE = 1e-5  # of the largest eigenvalue: less is what a K0 cut off at _SMALL may show
_SYMMETRIC = 1e-9
_BETWEEN = 1e-2  # of K0(0): how well K0 between the grid's points must come back
_MOST, _LONGEST = 2**24, 2**16  # numbers on the grid (128 MiB); points on each side of zero
_BLOCK = 2**20  # numbers at a time
_FIRST = 8  # points on each side of zero
Points = int | Sequence[int] | None


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

    InputError, with the place, where K0 has not decayed, is not symmetric or even, or its spectrum not positive."""

    signature: MatrixFunction
    box: tuple[float, ...]
    p: int
    scalar: Tabulated
    measure = Measure.UNBOUNDED
    steps: FloatArray  # distances of the grid's nodes, (d,)
    samples: FloatArray  # of K0, folded (see `tabulated.fold`): the upper triangles, in the last axis
    peak: float  # the largest eigenvalue of mu on the FFT's grid
    floor: float  # eigenvalues of mu up to this cannot be told from zero

    def __init__(
        self, signature: MatrixFunction, box: float | Sequence[float], *, d: int | None = None, points: Points = None
    ) -> None:
        if not callable(signature):
            raise InputError(f"signature must be a function of differences delta (..., d), not {signature!r}")
        sides = _half_widths(box, d)
        d = len(sides)
        shape = np.shape(signature(np.zeros((1, d))))
        if len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2] or shape[1] < 1:
            wanted = f"signature must give (n, p, p) for delta of shape (n, {d})"
            raise InputError(f"{wanted}; for (1, {d}) it gives {shape}")
        p = int(shape[1])
        grid, lowest, peak = sampled(signature, sides, p, points)
        vars(self).update(signature=signature, box=sides, p=p, scalar=grid.law(), peak=peak)
        floor = max(-4 * lowest, 32 * p * np.finfo(np.float64).eps * peak)
        vars(self).update(samples=fold(grid.table * grid.volume), steps=grid.steps, floor=floor)

    def density(self, omega: FloatArray) -> FloatArray:
        """mu (D, p, p) at omega (D, d) within the grid's edges; it is periodic beyond, where `root` takes zero."""
        at = folded_nodes(self.samples, self.steps)
        return matrices(fourier_sum(self.samples, omega, lambda t, axis: plane_waves(t, at[axis])), self.p)

    def root(self, omega: FloatArray) -> FloatArray:
        """U (D, r, p), r the largest rank of mu at these frequencies, in units of the density of `scalar`. InputError
        where mu is not positive between the FFT's frequencies."""
        log_density = self.scalar.log_density(omega, Measure.UNBOUNDED)
        values, vectors = np.linalg.eigh(self.density(omega))
        worst = int(np.argmin(values[:, 0]))
        refuse_negative(float(values[worst, 0]), self.peak, omega[worst])
        return scaled_root(values, vectors, np.where(log_density > -np.inf, self.floor, np.inf), log_density)

    def trace(self, d: int, p: int) -> float:
        return float(np.trace(self.gram(np.zeros((1, d)), np.zeros((1, d)))[0, 0]))


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


@dataclass(frozen=True, eq=False)
class SampledSignature:
    """K0 at nodes -box ... box, 2 n_j + 1 along each input: both ends, so that the grid is even, as K0 is."""

    signature: MatrixFunction
    box: tuple[float, ...]
    p: int
    table: FloatArray  # (N_1, ..., N_d, p (p + 1) / 2), the upper triangles

    @classmethod
    def of(cls, signature: MatrixFunction, box: tuple[float, ...], halves: Sequence[int], p: int) -> Self:
        """Samples K0 and checks that it is symmetric, even and zero on the faces of the box."""
        shape, upper = tuple(2 * n + 1 for n in halves), np.triu_indices(p)
        along = [nodes(count, side / (count // 2)) for count, side in zip(shape, box, strict=True)]
        size, table = int(np.prod(shape)), np.empty((int(np.prod(shape)), len(upper[0])))
        scale = float(np.abs(evaluated(signature, np.zeros((1, len(box))), p, "signature")).max())
        if scale == 0:
            raise InputError("signature is zero at delta = 0, where no other value of a positive kernel is larger")
        step = max(1, _BLOCK // p**2)
        for start in range(0, size, step):
            cells = np.unravel_index(np.arange(start, min(start + step, size)), shape)
            delta = np.stack([values[cell] for values, cell in zip(along, cells, strict=True)], axis=1)
            values = evaluated(signature, delta, p, "signature")
            apart = np.abs(values - np.swapaxes(values, 1, 2)).max(axis=(1, 2))
            refuse_asymmetric("signature", delta, apart > _SYMMETRIC * scale)
            table[start : start + len(delta)] = values[:, *upper]
        grid = cls(signature, box, p, table.reshape(*shape, -1))
        grid._check(scale)
        return grid

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table.shape[:-1]

    @property
    def steps(self) -> FloatArray:
        """Distances of the nodes, (d,)."""
        return np.asarray(2 * np.asarray(self.box) / (np.asarray(self.shape) - 1))

    @property
    def widths(self) -> FloatArray:
        """Sides of the FFT's cells, (d,)."""
        return np.asarray(2 * np.pi / (np.asarray(self.shape) * self.steps))

    @property
    def volume(self) -> float:
        """What turns a sum over the nodes into mu."""
        return float(np.prod(self.steps / (2 * np.pi)))

    def _at(self, cell: int, sides: FloatArray) -> FloatArray:
        index = np.asarray(np.unravel_index(cell, self.shape)) - np.asarray(self.shape) // 2
        return np.asarray(index * sides, dtype=np.float64)

    def _check(self, scale: float) -> None:
        """InputError unless the table is even, and zero on the faces, to rounding of `scale`."""
        apart = np.abs(self.table - np.flip(self.table, axis=tuple(range(len(self.shape))))).max(axis=-1)
        if apart.max() > _SYMMETRIC * scale:
            where = place(self._at(int(np.argmax(apart)), self.steps))
            problem = f"signature must be the same at delta and -delta, but differs at delta = {where}"
            raise InputError(f"{problem}; of a kernel K0(-delta) is K0(delta) transposed")
        sizes = np.abs(self.table).max(axis=-1)
        sizes[tuple(slice(1, -1) for _ in self.shape)] = 0.0
        if sizes.max() > _SMALL * scale:
            where = place(self._at(int(np.argmax(sizes)), self.steps))
            problem = f"at delta = {where} it is {sizes.max():.3g}, and {scale:.3g} at zero"
            remedy = f"it has to fall to {_SMALL:g} of that within the box: make the box wider"
            raise InputError(f"box: beyond it the signature counts as zero, but {problem}; {remedy}")

    def extremes(self, spectrum: FloatArray) -> tuple[float, float]:
        """The lowest eigenvalue of mu at the centres of the FFT's cells, upper triangles, in the table's shape, and the
        largest in size; InputError where the first is clearly negative."""
        half = self.shape[0] // 2
        values = np.linalg.eigvalsh(matrices(spectrum[half:].reshape(-1, spectrum.shape[-1]), self.p))
        lowest, peak = float(values[:, 0].min()), float(np.abs(values).max())
        cell = half * int(np.prod(self.shape[1:])) + int(np.argmin(values[:, 0]))
        refuse_negative(lowest, peak, self._at(cell, self.widths))
        return lowest, peak

    def rough(self, spectrum: FloatArray) -> BoolArray:
        """The inputs (d,) along which the grid is too coarse."""
        sizes = np.abs(spectrum).max(axis=-1)
        edges = [float(np.take(sizes, 0, axis=axis).max()) for axis in range(sizes.ndim)]
        rough: BoolArray = np.asarray(edges) > _SMALL * sizes.max()
        if rough.any():
            return rough
        # A spectrum far beyond the grid's edge is folded into it, and may look well within.
        delta = np.asarray(self.box) * np.random.default_rng(0).uniform(-1, 1, (64, sizes.ndim)) ** 3
        folded = fold(spectrum * np.prod(self.widths))
        at = folded_nodes(folded, self.widths)
        back = matrices(fourier_sum(folded, delta, lambda t, axis: plane_waves(t, at[axis])), self.p)
        exact = evaluated(self.signature, delta, self.p, "signature")
        return np.full(sizes.ndim, np.abs(back - exact).max() > _BETWEEN * np.abs(exact).max())

    def law(self) -> Tabulated:
        """The law of density tr mu, averaged over each cell: that of K0's trace times a sinc for each input."""
        diagonal = np.flatnonzero(np.equal(*np.triu_indices(self.p)))
        masses = self.table[..., diagonal].sum(axis=-1, keepdims=True)
        for axis, (count, step, width) in enumerate(zip(self.shape, self.steps, self.widths, strict=True)):
            mean = np.sinc(nodes(count, step) * width / (2 * np.pi))
            masses = masses * np.expand_dims(mean, tuple(other for other in range(masses.ndim) if other != axis))
        return Tabulated(np.maximum(_transformed(masses)[..., 0], 0.0), tuple(self.widths))


def sampled(
    signature: MatrixFunction, box: tuple[float, ...], p: int, points: Points
) -> tuple[SampledSignature, float, float]:
    """K0 on a grid that is fine enough, or of the points given, and the `extremes` of its spectrum. The grid of a
    positive K0 has a positive spectrum however coarse it is: what lies beyond its edges is added."""
    halves = _halves(points, len(box))
    while True:
        grid = SampledSignature.of(signature, box, halves, p)
        spectrum = grid.volume * _transformed(grid.table)
        lowest, peak = grid.extremes(spectrum)
        if points is not None or not (rough := grid.rough(spectrum)).any():
            return grid, lowest, peak
        growth = 2.0 ** (1 / np.count_nonzero(rough))  # twice as many points
        halves = [int(np.ceil(n * growth)) if more else n for n, more in zip(halves, rough, strict=True)]
        if max(halves) > _LONGEST or np.prod([2.0 * n + 1 for n in halves]) * grid.table.shape[-1] > _MOST:
            problem = f"on a grid of {grid.shape} points its spectrum still reaches the edge"
            remedy = "use a smaller box, a smoother signature, or give the grid's `points` and bear with the error"
            raise InputError(f"signature is too rough for its box: {problem}; {remedy}")


def _halves(points: Points, d: int) -> list[int]:
    """How many nodes lie on each side of zero, for each input."""
    if points is None:
        return [_FIRST] * d
    counts = [whole("points", count) for count in np.atleast_1d(np.asarray(points, dtype=object))]
    if len(counts) not in (1, d) or min(counts) < 2:
        raise InputError(f"points must be 2 or more, one number or one for each of {d} inputs, not {points!r}")
    return [count // 2 for count in (counts * d if len(counts) == 1 else counts)]


def _transformed(table: FloatArray) -> FloatArray:
    """sum_j table_j exp(i omega_c . node_j), real as the table is even, over all axes but the last."""
    values = np.empty_like(table)
    for part in range(table.shape[-1]):  # the complex numbers of one at a time
        values[..., part] = fftshift(fftn(ifftshift(table[..., part])).real)
    return values


def refuse_negative(lowest: float, peak: float, omega: FloatArray) -> None:
    """InputError where an eigenvalue, at omega (d,), is more negative than cutting off K0 makes it."""
    if lowest < -_NEGATIVE * peak:
        problem = f"its spectrum has an eigenvalue of {lowest / peak:.3g} times the largest in size"
        wanted = "every eigenvalue of int K0(delta) cos(omega . delta) d delta must be zero or more"
        raise InputError(f"signature is not that of a positive kernel: at omega = {place(omega)} {problem}; {wanted}")


def matrices(packed: FloatArray, p: int) -> FloatArray:
    """Symmetric matrices (D, p, p) of their upper triangles (D, p (p + 1) / 2)."""
    full, (i, j) = np.empty((len(packed), p, p)), np.triu_indices(p)
    full[:, i, j] = packed
    full[:, j, i] = packed
    return full
