"""Kernels given by their spectrum: an operator kernel by its density, a scalar one by masses on a grid's cells."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.operator import BaseKernel
from dorff.kernels.scalar import BoolArray, FloatArray, Measure, Spectral, whole
from dorff.spec.registry import Config, lazily

spherical_jn = lazily("scipy.special", "spherical_jn")

ComplexArray = npt.NDArray[np.complex128]
#: Of many points (..., d), a matrix (..., p, p) for each.
MatrixFunction = Callable[[FloatArray], npt.NDArray[Any]]

_SAMPLE = 2**13  # frequencies that the proposal is judged by
_LEAST, _HEAVIEST = 0.01, 0.6  # of their weights: effective share, tail index (1/2 and what its estimate is off by)
_EQUAL = 1e-10  # symmetry and positivity, relative to the matrix
_TINY = np.finfo(np.float64).tiny  # what is less has lost its digits
_BLOCK = 2**21  # numbers at a time
_FLOOR = 1e-3


class OfFunction(BaseKernel):
    """A kernel of Python functions with real symmetric matrices (p, p), which lives in memory only."""

    p: int
    signature: MatrixFunction | None
    vector_field = True  # nobody knows what its matrices say about directions

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> Self:
        if self.p != p:
            problem = f"{type(self).__name__} has matrices of {self.p} x {self.p}, but there are {p} targets"
            raise InputError(f"{problem}; give a function whose matrices have one row per target")
        self.scalar.check(d)
        return self

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        if self.signature is None:
            problem = f"signature: a {type(self).__name__} has exact values only where its signature is given"
            raise InputError(f"{problem}; give it, or use random features")
        return evaluated(self.signature, X[:, None, :] - Z[None, :, :], self.p, "signature")

    def config(self) -> Config:
        remedy = "use curl_free, divergence_free or decomposable kernels and their sums where one will do"
        raise InputError(f"a {type(self).__name__} kernel of a Python function cannot be stored; {remedy}")


@dataclass(frozen=True)
class SpectralDensity(OfFunction):
    """K(x, z) = int cos(omega . (x - z)) mu(omega) d omega, mu any real symmetric positive semi-definite density. `mu`
    takes frequencies omega (D, d), in 1 / input units, and gives (D, p, p), the density with respect to d omega (Minh
    2016, eq. 19-21; with (2 pi)^-d, which Brault 2016, eq. 5 leaves out). Frequencies are drawn from the spectrum of
    the scalar kernel `proposal`, which must cover mu: what is drawn too often or too seldom is weighed. `signature`,
    if known, takes delta (..., d) and gives K(x, z), delta = x - z, (..., p, p): it is only for `gram`. Both functions
    must be importable where Dask workers are to use them. Lives in memory only."""

    mu: MatrixFunction
    proposal: Spectral
    p: int
    signature: MatrixFunction | None
    _traces: dict[int, float] = field(compare=False, repr=False)  # by d, once they are known
    measure = Measure.UNBOUNDED

    def __init__(
        self, mu: MatrixFunction, proposal: Spectral, *, p: int, signature: MatrixFunction | None = None
    ) -> None:
        if not callable(mu) or not (signature is None or callable(signature)):
            raise InputError("mu and signature must be functions of an array of frequencies or differences")
        if not isinstance(proposal, Spectral):
            raise InputError(f"proposal must be a kernel with a spectrum, such as Gaussian(0.5), not {proposal!r}")
        vars(self).update(mu=mu, proposal=proposal, p=whole("p", p), signature=signature, _traces={}, scalar=proposal)

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> Self:
        super().fix(d, p)
        self.trace(d, p)
        return self

    def density(self, omega: FloatArray) -> FloatArray:
        """mu (D, p, p) at omega (D, d), checked."""
        values = evaluated(self.mu, omega, self.p, "mu")
        apart, size = (np.abs(part).max(axis=(1, 2)) for part in (values - np.swapaxes(values, 1, 2), values))
        refuse_asymmetric("mu", omega, apart > _EQUAL * size + _TINY)
        return (values + np.swapaxes(values, 1, 2)) / 2

    def root(self, omega: FloatArray) -> FloatArray:
        """U (D, r, p), r the largest rank of mu at these frequencies, in units of the proposal's density."""
        values, vectors = np.linalg.eigh(self.density(omega))
        largest = np.abs(values).max(axis=1)
        negative = np.flatnonzero(values[:, 0] < -_EQUAL * largest - _TINY)
        if negative.size:
            worst = negative[np.argmin(values[negative, 0])]
            problem = f"an eigenvalue of {values[worst, 0]:.3g}, where its largest is {values[worst, -1]:.3g}"
            where = f"at omega = {place(omega[worst])}"
            raise InputError(f"mu must be positive semi-definite, but {where} it has {problem}")
        floor = 4 * self.p * np.finfo(np.float64).eps * largest + _TINY
        log_proposal = self.proposal.log_density(omega, Measure.UNBOUNDED)
        bare = np.flatnonzero((log_proposal == -np.inf) & (largest > _TINY))
        if bare.size:
            problem = f"{type(self.proposal).__name__} has no frequencies near omega = {place(omega[bare[0]])}"
            raise InputError(f"proposal: {problem}, where mu is not zero; use one whose spectrum covers mu")
        return scaled_root(values, vectors, floor, log_proposal)

    def trace(self, d: int, p: int) -> float:
        """tr K(0) = int tr mu: from the signature, else from a fixed sample of the proposal's frequencies. InputError
        where the sample shows that the proposal does not serve mu, or mu not fit the signature."""
        if d not in self._traces:
            self._traces[d] = _trace(self, d)
        return self._traces[d]


def _trace(kernel: SpectralDensity, d: int) -> float:
    omega = kernel.proposal.draw(np.random.default_rng(0), _SAMPLE, d, Measure.UNBOUNDED)
    u = np.sum(kernel.root(omega) ** 2, axis=(1, 2))
    if not np.all(np.isfinite(u)) or not np.any(u):
        remedy = "check mu's units (1 / input units), or use a proposal with a length-scale near that of mu"
        raise InputError(f"mu / proposal is zero, or not finite, at the proposal's frequencies; {remedy}")
    effective, tail = float(u.sum() ** 2 / np.sum(u**2)), _tail_index(u)
    if effective < _LEAST * _SAMPLE or tail > _HEAVIEST:
        count = f"of {_SAMPLE} frequencies of {kernel.proposal!r} only {effective:.0f} count for mu"
        problem = f"{count}, and the tail index of their weights is {tail:.2f} ({_HEAVIEST} is the most that serves)"
        remedy = "of heavier tails or a shorter lengthscale where mu reaches further, such as a Matern"
        raise InputError(f"proposal: {problem}; use a proposal nearer to mu, {remedy}")
    estimate, error = float(u.mean()), float(u.std()) / np.sqrt(_SAMPLE)
    if kernel.signature is None:
        return estimate
    exact = float(np.trace(kernel.gram(np.zeros((1, d)), np.zeros((1, d)))[0, 0]))
    if not abs(exact - estimate) <= 6 * error + 1e-9 * abs(exact):
        problem = f"signature: its trace at 0 is {exact:.6g}, but mu integrates to {estimate:.6g} +- {error:.2g}"
        raise InputError(f"{problem}; a density with respect to d omega has the factor (2 pi)^-d")
    return exact


def _tail_index(u: FloatArray) -> float:
    """How heavy the tail of positive weights is: above 1/2 their variance is infinite. The moment estimator of
    Dekkers, Einmahl & de Haan (1989), on as many as Vehtari et al. (2024) take."""
    top = np.sort(u)[-3 * int(np.sqrt(len(u))) - 1 :]
    if top[0] <= 0:
        return 0.0  # fewer positive weights than this: the effective sample size says so
    logs = np.log(top[1:] / top[0])
    first, second = float(logs.mean()), float(np.mean(logs**2))
    return first + 1 - 0.5 / (1 - first**2 / second) if second > first**2 * (1 + 1e-12) else 0.0


def place(point: FloatArray) -> str:
    """A point, for a message."""
    return "(" + ", ".join(f"{number:.6g}" for number in point) + ")"


def evaluated(function: MatrixFunction, points: FloatArray, p: int, name: str) -> FloatArray:
    """The function's real matrices (..., p, p) at points (..., d), or an InputError that names the first bad point."""
    values, where = np.asarray(function(points)), "delta" if name != "mu" else "omega"
    if values.shape != (*points.shape[:-1], p, p) or values.dtype.kind not in "fciu":
        problem = f"{name} must give numbers of shape {(*points.shape[:-1], p, p)} for {where} of shape {points.shape}"
        raise InputError(f"{problem}, not {values.dtype} of shape {values.shape}")
    flat, at = values.reshape(-1, p * p), points.reshape(-1, points.shape[-1])
    infinite = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if infinite.size:
        raise InputError(f"{name} must be finite, but is not at {where} = {place(at[infinite[0]])}")
    if values.dtype.kind == "c":
        refuse_asymmetric(name, at, np.abs(flat.imag).max(axis=1) > _EQUAL * np.abs(flat).max(axis=1))
        values = values.real
    return np.asarray(values, dtype=np.float64)


def refuse_asymmetric(name: str, points: FloatArray, bad: BoolArray) -> None:
    """InputError for matrices, at points (D, d), that are complex or not symmetric where `bad` (D,) says so."""
    if bad.any():
        where = f"{'omega' if name == 'mu' else 'delta'} = {place(points[np.argmax(bad)])}"
        problem = "a spectrum that is complex Hermitian (k0(delta) not symmetric: delays) is not supported"
        raise InputError(f"{name} is complex or not symmetric at {where}; {problem}: give real symmetric matrices")


def scaled_root(values: FloatArray, vectors: FloatArray, floor: FloatArray, log_density: FloatArray) -> FloatArray:
    """U (D, r, p) with U^T U = A / density, from the eigenvalues (D, p), ascending, and eigenvectors of each A.
    Eigenvalues up to `floor` (D,) count as zero; r is the largest rank. Where A is zero, so is U at any density."""
    kept = values > floor[:, None]
    r = max(1, int(kept.sum(axis=1).max(initial=0)))
    with np.errstate(divide="ignore", invalid="ignore"):  # in logs, for a density may be less than any float64
        logs = np.where(kept, 0.5 * (np.log(values) - log_density[:, None]), -np.inf)[:, -r:]
    return np.asarray(np.exp(logs)[:, :, None] * np.swapaxes(vectors, 1, 2)[:, -r:])


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
