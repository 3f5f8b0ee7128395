"""A spectrum that is known on a grid: constant over each of its cells."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray, Measure, Spectral
from dorff.spec.registry import Config, lazily

spherical_jn = lazily("scipy.special", "spherical_jn")

ComplexArray = npt.NDArray[np.complex128]

_BLOCK = 2**21  # numbers at a time
_FLOOR = 1e-3


@dataclass(frozen=True)
class Tabulated(Spectral):
    """The kernel whose spectrum is constant over each cell of a grid about zero, and nothing outside of it. `masses`
    (N_1, ..., N_d) are those of the cells, all N_j odd, the middle cell about omega = 0, and the same at omega and
    -omega; they need not sum to one. `widths` (d,) are the cells' sides in 1 / input units. `floor` is the share of
    the law that is spread evenly over all cells, so that every one is drawn from. Lives in memory only. k0(delta) =
    sum_c mass_c cos(omega_c . delta) prod_j sinc(widths_j delta_j / 2)."""

    widths: tuple[float, ...]
    digest: str  # of the masses: equal ones make equal kernels
    masses: FloatArray = field(compare=False, repr=False)
    lengthscale: float | tuple[float, ...] = field(compare=False, repr=False)

    def __init__(self, masses: npt.ArrayLike, widths: Sequence[float], *, floor: float = _FLOOR) -> None:
        table = np.asarray(masses, dtype=np.float64)
        sides = tuple(float(width) for width in widths)
        if table.ndim == 0 or not all(side % 2 for side in table.shape) or len(sides) != table.ndim:
            problem = "masses must be a grid with an odd number of cells along each input and one width for each"
            raise InputError(f"{problem}; got shape {table.shape} and {len(sides)} widths")
        if not np.all(np.isfinite(table)) or np.any(table < 0) or not np.any(table):
            raise InputError("masses must be finite, zero or positive, and not all zero")
        if not np.allclose(table, np.flip(table), rtol=1e-6, atol=1e-9 * float(table.max())):
            raise InputError("masses must be the same at omega and -omega; use (masses + numpy.flip(masses)) / 2")
        if not all(0 < side < np.inf for side in sides) or not 0 < floor < 1:
            raise InputError(f"widths must be positive numbers and floor between 0 and 1; got {sides} and {floor!r}")
        table = (table + np.flip(table)) / (2 * table.sum())
        table = (1 - floor) * table + floor / table.size
        digest = hashlib.sha256(table.tobytes() + repr(table.shape).encode()).hexdigest()
        vars(self).update(masses=table, widths=sides, digest=digest, lengthscale=1.0)

    def check(self, d: int) -> None:
        if d != len(self.widths):
            raise InputError(f"this spectrum is a grid over {len(self.widths)} inputs, but the data have {d}")

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return self._derivative(X, Z, (0,) * X.shape[1])

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        d = X.shape[1]
        found = np.empty((len(X), len(Z), d, d))
        for i in range(d):
            for j in range(i, d):
                orders = tuple((axis == i) + (axis == j) for axis in range(d))
                found[:, :, i, j] = found[:, :, j, i] = self._derivative(X, Z, orders)
        return found

    def _derivative(self, X: FloatArray, Z: FloatArray, orders: tuple[int, ...]) -> FloatArray:
        """k0 (n, k), differentiated by each delta_j as often as `orders` says."""
        self.check(X.shape[1])
        delta = (X[:, None, :] - Z[None, :, :]).reshape(-1, X.shape[1])
        folded = fold(self.masses[..., None])
        centres = folded_nodes(folded, self.widths)

        def waves(t: FloatArray, axis: int) -> ComplexArray:
            return _cell_waves(t, centres[axis], self.widths[axis], orders[axis])

        return fourier_sum(folded, delta, waves).reshape(len(X), len(Z))

    def second_moments(self, d: int) -> FloatArray:
        """E omega_j^2, (d,): of the cells' centres, and within a cell."""
        self.check(d)
        moments = np.empty(d)
        for axis, width in enumerate(self.widths):
            along = self.masses.sum(axis=tuple(other for other in range(d) if other != axis))
            moments[axis] = along @ nodes(len(along), width) ** 2 + width**2 / 12
        return moments

    def dims(self, d: int, measure: Measure) -> int:
        self.check(d)
        self.check_measure(measure)
        return d

    def quantiles(self, uniforms: FloatArray, d: int, measure: Measure) -> FloatArray:
        """Coordinate after coordinate, each by the inverse of its distribution given those before it."""
        self.check(d)
        self.check_measure(measure)
        omega, row = np.empty((len(uniforms), d)), np.zeros(len(uniforms), dtype=np.intp)
        for axis, width in enumerate(self.widths):
            cells = self.masses.shape[axis]
            each = self.masses.sum(axis=tuple(range(axis + 1, d))).ravel()
            sums = np.concatenate([[0.0], np.cumsum(each)])
            first = row * cells
            target = sums[first] + uniforms[:, axis] * (sums[first + cells] - sums[first])
            found = np.clip(np.searchsorted(sums, target, "right") - 1, first, first + cells - 1)
            inside = np.clip((target - sums[found]) / each[found], 0.0, 1.0)
            omega[:, axis] = (found - first - cells // 2 - 0.5 + inside) * width
            row = found
        return omega

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        self.check(omega.shape[1])
        self.check_measure(measure)
        half = np.asarray(self.masses.shape) // 2
        nearest = np.rint(omega / np.asarray(self.widths))
        inside = np.all(np.abs(nearest) <= half, axis=1)
        cells = np.where(inside[:, None], nearest + half, 0).astype(np.intp)
        return np.where(inside, np.log(self.masses[tuple(cells.T)]) - np.sum(np.log(self.widths)), -np.inf)

    def config(self) -> Config:
        raise InputError("a spectrum on a grid cannot be stored; it lives in memory only")


def fold(table: FloatArray) -> FloatArray:
    """Half of a table (N_1, ..., N_d, P), odd sides and even about its middle: the part from the middle of axis 0 on.
    All but the middle layer counts twice, so that sums over the folded table are those over the whole."""
    folded = table[len(table) // 2 :].copy()
    folded[1:] *= 2
    return folded


def folded_nodes(folded: FloatArray, steps: Sequence[float] | FloatArray) -> list[FloatArray]:
    """The nodes of a folded table along each axis, `steps` (d,) apart."""
    whole = [nodes(count, step) for count, step in zip(folded.shape[1:-1], steps[1:], strict=True)]
    return [np.arange(len(folded)) * steps[0], *whole]


def fourier_sum(folded: FloatArray, points: FloatArray, waves: Callable[[FloatArray, int], ComplexArray]) -> FloatArray:
    """Re sum_j table_j prod_i waves_i(points_i)_(j_i) for points (D, d): (D, P). `waves(t, axis)` are functions of t
    (B,) at the folded table's nodes, such as exp(i t node_j), conjugate to each other at mirrored nodes. One axis is
    summed after another, by matrix products: no sines for each cell."""
    total, flat = np.empty((len(points), folded.shape[-1])), folded.reshape(len(folded), -1)
    step = max(1, _BLOCK // (2 * flat.shape[1] + sum(folded.shape[:-1])))
    for start in range(0, len(points), step):
        some = points[start : start + step]
        first = waves(some[:, 0], 0)
        both = np.concatenate([first.real, first.imag]) @ flat
        partial = both[: len(some)] + 1j * both[len(some) :]
        for axis in range(1, points.shape[1]):
            wave = waves(some[:, axis], axis)
            partial = (wave[:, None, :] @ partial.reshape(len(some), wave.shape[1], -1))[:, 0]
        total[start : start + step] = partial.real
    return total


def nodes(count: int, width: float) -> FloatArray:
    """An odd number of points (count,) about zero, `width` apart."""
    return np.asarray((np.arange(count) - count // 2) * width, dtype=np.float64)


def plane_waves(t: FloatArray, points: FloatArray) -> ComplexArray:
    """exp(i t point), (B, N), for t (B,) and points (N,)."""
    return np.asarray(np.exp(1j * np.outer(t, points)))


def _cell_waves(t: FloatArray, centres: FloatArray, width: float, order: int) -> ComplexArray:
    """The mean of exp(i omega t) over omega in each cell, or its first or second derivative by t: (B, N)."""
    a = width / 2
    u = a * t[:, None]
    wave = plane_waves(t, centres)
    mean, slope = spherical_jn(0, u), -a * spherical_jn(1, u)  # sinc and its derivatives
    if order == 0:
        return np.asarray(wave * mean)
    if order == 1:
        return np.asarray(wave * (1j * centres * mean + slope))
    bend = a**2 * (2 * spherical_jn(2, u) - mean) / 3
    return np.asarray(wave * (-(centres**2) * mean + 2j * centres * slope + bend))
