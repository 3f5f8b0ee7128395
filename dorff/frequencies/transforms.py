"""Transforms x -> omega x of blocks, by `matmul` or in O(d log d); frequencies as samplers find them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels import FloatArray, MultiView
from dorff.kernels.scalar import BoolArray, IntArray
from dorff.loops import butterfly_rules, hadamard_chain, sparse_rows

Arrays = dict[str, npt.NDArray[Any]]

# A product with omega itself is faster below these d (measured for 256 and 2048 frequencies); decided by d alone, so
# that the bits of a fit cannot depend on who applies the transform.
HADAMARD_FROM: Final = 48
BUTTERFLY_FROM: Final = 112


@dataclass(frozen=True, eq=False)
class Transform(ABC):
    """omega (D, d) as a linear map. `tile_rows` is the block of rows it works best on."""

    kind: ClassVar[str]
    tile_rows: ClassVar[int]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(D, d)."""

    @property
    def d(self) -> int:
        return self.shape[1]

    @property
    def D(self) -> int:
        return self.shape[0]

    @abstractmethod
    def project(self, x: FloatArray, out: FloatArray) -> None:
        """Write x omega^T, x (b, d), into out (b, D)."""

    def arrays(self) -> Arrays:
        """All that the transform holds, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def dense(self) -> FloatArray:
        """omega (D, d), by sending the unit vectors through."""
        out = np.empty((self.d, self.D))
        self.project(np.eye(self.d), out)
        return np.ascontiguousarray(out.T)

    @abstractmethod
    def fits(self) -> bool:
        """Whether the arrays' types, shapes and indices fit each other: they may come from a file."""


@dataclass(frozen=True, eq=False)
class Dense(Transform):
    """omega (D, d) itself."""

    omega: FloatArray
    kind = "dense"
    tile_rows = 256

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.omega), int(self.omega.shape[1])

    @cached_property
    def _transposed(self) -> FloatArray:
        return np.ascontiguousarray(self.omega.T)

    def project(self, x: FloatArray, out: FloatArray) -> None:
        np.matmul(x, self._transposed, out=out)

    def dense(self) -> FloatArray:
        return self.omega

    def fits(self) -> bool:
        return self.omega.ndim == 2 and 0 not in self.omega.shape and finite(self.omega)


@dataclass(frozen=True, eq=False)
class Modes(Transform):
    """omega_j = step * modes_j on a lattice: `step` (d,), `modes` (D, d) whole numbers, within the `extents` (d,) of
    the lattice whose sums are made, that serve more kernels than these frequencies do; 0 along constant inputs.
    `beside` (n, d) are frequencies along inputs that are constant, whose modes are 0: the law is that of all omega_j +
    beside_i, which no feature tells from omega_j. One row of zeros where no input is constant."""

    step: FloatArray
    modes: IntArray
    extents: IntArray
    beside: FloatArray
    kind = "lattice"
    tile_rows = 256

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.modes), len(self.step)

    @property
    def every(self) -> IntArray:
        """Of how many of the lattice's points along each input (d,) one is taken."""
        return np.asarray(np.maximum(np.gcd.reduce(self.modes, axis=0), 1))

    @cached_property
    def _dense(self) -> Dense:
        return Dense(self.modes * self.step)

    def project(self, x: FloatArray, out: FloatArray) -> None:
        with np.errstate(invalid="ignore"):  # an input that is infinite times a frequency that is 0
            self._dense.project(x, out)

    def dense(self) -> FloatArray:
        return self._dense.omega

    def fits(self) -> bool:
        fit = self.modes.dtype == np.int64 and self.step.ndim == 1 and self.modes.ndim == self.beside.ndim == 2
        fit = fit and self.modes.shape[1:] == self.beside.shape[1:] == self.step.shape == self.extents.shape
        fit = fit and 0 not in self.modes.shape and len(self.beside) > 0 and self.extents.dtype == np.int64
        fit = fit and finite(self.step, self.beside) and bool(np.all(self.step > 0))
        return fit and bool(np.all(np.abs(self.modes) <= self.extents) and np.any(self.extents > 0))


@dataclass(frozen=True, eq=False)
class Sparse(Transform):
    """omega (D, d) with few entries that are not 0, in compressed rows: those of frequency j are `values` (entries,)
    along `columns` (entries,) from starts[j] to starts[j + 1] - 1. `inputs` (1,) is d."""

    starts: IntArray
    columns: IntArray
    values: FloatArray
    inputs: IntArray
    kind = "sparse"
    tile_rows = 64

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, int(self.inputs[0])

    def project(self, x: FloatArray, out: FloatArray) -> None:
        sparse_rows(x, self.starts, self.columns, self.values, out)

    def dense(self) -> FloatArray:
        out = np.zeros(self.shape)
        out[np.repeat(np.arange(self.D), np.diff(self.starts)), self.columns] = self.values
        return out

    def fits(self) -> bool:
        fit = self.inputs.shape == (1,) and self.inputs.dtype == self.starts.dtype == np.int64
        fit = fit and self.starts.ndim == self.columns.ndim == 1 and self.columns.dtype == np.int32
        fit = fit and len(self.starts) > 1 and self.starts[0] == 0 and self.starts[-1] == len(self.values)
        fit = fit and bool(np.all(np.diff(self.starts) >= 0)) and self.columns.shape == self.values.shape
        fit = fit and finite(self.values) and int(self.inputs[0]) > 0 and _below(self.columns, self.d)
        return fit and bool(
            np.all(np.diff(np.repeat(np.arange(self.D), np.diff(self.starts)) * self.d + self.columns) > 0)
        )


class _Blocks(Transform):
    """Some `rows` of structured blocks, of inputs that are stretched."""

    stretch: FloatArray
    rows: IntArray
    tile_rows = 64

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.stretch)


@dataclass(frozen=True, eq=False)
class HadamardChain(_Blocks):
    """Rows of blocks H G_K ... P H G_1, the inputs stretched and padded with zeros to n, a power of two. stretch (d,);
    diagonals (B, K, n); permutation (B, n) before the second diagonal, or (B, 0); frequency j is row `rows[j]` of the
    stacked blocks times `gains[j]`. H is the unnormalised Walsh-Hadamard matrix."""

    stretch: FloatArray
    diagonals: FloatArray
    permutation: IntArray
    rows: IntArray
    gains: FloatArray
    kind = "hadamard"

    def project(self, x: FloatArray, out: FloatArray) -> None:
        hadamard_chain(x, self.stretch, self.diagonals, self.permutation, self.rows, self.gains, out)

    def fits(self) -> bool:
        if self.diagonals.ndim != 3 or self.stretch.ndim != 1:
            return False
        B, K, n = self.diagonals.shape
        fit = self.permutation.shape in ((B, n), (B, 0)) and self.permutation.dtype == np.int32
        fit = fit and K > 0 and n & (n - 1) == 0 and n >= self.d > 0 and _ascend(self.rows, self.gains)
        fit = fit and finite(self.stretch, self.diagonals, self.gains)
        return fit and _below(self.rows, B * n) and _below(self.permutation, n)


@dataclass(frozen=True, eq=False)
class ButterflyRules(_Blocks):
    """Points of rotated rules: the axes (`vertices` false) or a regular simplex's vertices (true), times `gains`. The
    rotation of each of B rules is a product of K butterflies and permutations: permutations (B, K, d), cosines and
    sines (B, K, d - 1). Frequency j is point `rows[j]` of the stacked rules times `gains[j]`."""

    stretch: FloatArray
    permutations: IntArray
    cosines: FloatArray
    sines: FloatArray
    vertices: BoolArray
    rows: IntArray
    gains: FloatArray
    kind = "butterfly"

    def project(self, x: FloatArray, out: FloatArray) -> None:
        rules = self.permutations, self.cosines, self.sines, bool(self.vertices[0])
        butterfly_rules(x, self.stretch, *rules, self.rows, self.gains, out)

    def fits(self) -> bool:
        if self.permutations.ndim != 3 or self.vertices.shape != (1,) or self.vertices.dtype != np.bool_:
            return False
        B, K, d = self.permutations.shape
        fit = self.stretch.shape == (d,) and self.cosines.shape == self.sines.shape == (B, K, d - 1)
        fit = fit and K > 0 and d > 0 and self.permutations.dtype == np.int32 and _ascend(self.rows, self.gains)
        fit = fit and finite(self.stretch, self.cosines, self.sines, self.gains)
        return fit and _below(self.rows, B * (d + int(self.vertices[0]))) and _below(self.permutations, d)


def finite(*arrays: npt.NDArray[Any]) -> bool:
    """Whether arrays are float64 and finite."""
    return all(array.dtype == np.float64 and bool(np.isfinite(array).all()) for array in arrays)


def _ascend(rows: IntArray, gains: FloatArray) -> bool:
    """Whether there are rows, (D,) int64, each further than the one before it, and a gain for each."""
    fit = rows.ndim == 1 and rows.dtype == np.int64 and rows.shape == gains.shape and len(rows) > 0
    return fit and bool(np.all(rows[1:] > rows[:-1]))


def _below(indices: IntArray, stop: int) -> bool:
    whole = np.issubdtype(indices.dtype, np.integer)
    return whole and (not indices.size or bool(indices.min() >= 0 and indices.max() < stop))


def settled(transform: Transform, worth_from: int) -> Transform:
    """The faster form of the same frequencies: written out below `worth_from` inputs."""
    return transform if transform.d >= worth_from else Dense(transform.dense())


def transform_from(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Transform:
    """The transform that `kind` and `arrays()` describe; InputError, or KeyError, where they do not fit each other."""
    form = {form.kind: form for form in (Dense, Modes, Sparse, HadamardChain, ButterflyRules)}.get(kind)
    if form is None:
        raise InputError(f"transform {kind!r} is not known; it is of a newer version of dorff")
    transform = form(**{field.name: arrays[field.name] for field in fields(form)})
    if not transform.fits():
        raise InputError(f"the {kind} transform's arrays do not fit each other")
    return transform


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies and weights such that `sum_j weights_j^2 g(omega_j) + centre g(0)` estimates E g(omega).

    `transform` is omega (D, d), in 1 / input units; `weights` (D,); `centre` may be negative (see `Quadrature`).
    `reflected`: each frequency stands for itself and its negative, with half the squared weight each; the same
    thing where g is even. `log_density` (D,) is that of the law they come from, None where nobody asks for it: where
    the kernel is decomposable of one scalar kernel and the sampler a rule.

    `serves` (T, D) says which of `kernel.terms()` a frequency is for; None is all. Where it is given, the sum above
    over the frequencies of one term estimates that term's expectation, `centres` (T,) are the terms' centres, and
    `centre` is zero. So the kernel's estimate, whatever the sampler, is

        sum_j weights_j^2 cos(omega_j . delta) sum_{t served} w_t (rho_0,t / rho)(omega_j) M_t(omega_j)  (+ centres).

    Of a multi-view kernel omega is zero outside the columns that its view sees, and the law is the view's own."""

    transform: Transform
    weights: FloatArray
    centre: float = 0.0
    reflected: bool = False
    log_density: FloatArray | None = None
    serves: BoolArray | None = None
    centres: FloatArray | None = None

    @property
    def omega(self) -> FloatArray:
        """omega (D, d) written out, whatever the transform."""
        return self.transform.dense()


class Cost(NamedTuple):
    """What drawn frequencies take: how many come, numbers of 8 bytes held, floating-point operations for a row."""

    frequencies: int
    numbers: int
    flops: float


def uniform(D: int) -> FloatArray:
    """Weights of a plain mean over D frequencies."""
    return np.full(D, 1.0 / np.sqrt(D))


def dealt(kernel: MultiView, count: int) -> list[int]:
    """`count` frequencies dealt out to the views: as many to each, the first ones get what is left over."""
    V = kernel.V
    if count < V:
        problem = f"n_features gives {count} frequencies, but the kernel's {V} views need at least one each"
        raise InputError(f"{problem}; raise n_features to {2 * V} or more")
    return [count // V + (number < count % V) for number in range(V)]


def of_views(kernel: MultiView, parts: Sequence[Frequencies], d: int) -> Frequencies:
    """The views' frequencies one after another. Each serves terms of its view alone."""
    terms = [len(view.kernel.terms()) for view in kernel.views]
    D, T = sum(len(part.weights) for part in parts), sum(terms)
    omega, serves, log_density, row, term = np.zeros((D, d)), np.zeros((T, D), dtype=bool), np.empty(D), 0, 0
    for view, part, size in zip(kernel.views, parts, terms, strict=True):
        rows = slice(row, row + len(part.weights))
        omega[rows, view.columns] = part.omega
        serves[term : term + size, rows] = True if part.serves is None else part.serves
        log_density[rows] = 0.0 if part.log_density is None else part.log_density  # of a skeleton, by its own law
        row, term = rows.stop, term + size
    weights = np.concatenate([part.weights for part in parts])
    return Frequencies(Dense(omega), weights, log_density=log_density, serves=serves, centres=np.zeros(T))
