"""Transforms x -> omega x of blocks, by `matmul`, over entries that are not 0, or in O(d log d)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels import FloatArray
from dorff.kernels.scalar import BoolArray, IntArray
from dorff.loops import butterfly_rules, hadamard_chain, sparse_rows, trig_pairs

Arrays = dict[str, npt.NDArray[Any]]

# A product with omega itself is faster below these d (measured for 256 and 2048 frequencies); decided by d alone, so
# that the bits of a fit cannot depend on who applies the transform.
HADAMARD_FROM: Final = 48
BUTTERFLY_FROM: Final = 112


@dataclass(frozen=True, eq=False)
class Transform(ABC):
    """omega (D, d) as a linear map. `tile_rows` is the block of rows it works best on."""

    linear: ClassVar[bool] = True
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

    def pairs(self, x: FloatArray, work: FloatArray, out: FloatArray, weights: FloatArray) -> None:
        """Write weights cos(x omega^T) and weights sin(x omega^T), side by side, into out (b, >= 2 D); work (b, D)."""
        self.project(x, work)
        trig_pairs(work, out, weights)

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

    @property
    def width(self) -> int:
        """What columns are below."""
        return self.d

    def first(self, count: int) -> Self:
        """Return the first `count` frequencies."""
        end = int(self.starts[count])
        return replace(self, starts=self.starts[: count + 1], columns=self.columns[:end], values=self.values[:end])

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
        fit = fit and finite(self.values) and int(self.inputs[0]) > 0 and _below(self.columns, self.width)
        return fit and bool(
            np.all(np.diff(np.repeat(np.arange(self.D), np.diff(self.starts)) * self.width + self.columns) > 0)
        )


@dataclass(frozen=True, eq=False)
class FormProducts(Sparse):
    """Products of powers of linear forms z of x, which are complex, and of a wave: not linear in x. The phase of
    feature j is the sum of `values` times [x | arg z], the logarithm of its size that of `powers` times [0 | log |z|],
    over the same `columns`. Real parts of the E forms, then imaginary ones, are 2 E rows in compressed form. Forms from
    spheres[s] to spheres[s + 1] - 1 are divided by the root of their mean square: by the length of a sphere's
    columns."""

    powers: FloatArray
    form_starts: IntArray
    form_columns: IntArray
    form_values: FloatArray
    spheres: IntArray
    linear = False
    kind = "products"

    @classmethod
    def of(cls, both: Sparse, forms: Sparse, spheres: IntArray) -> "FormProducts":
        """Of the rows of `both`, whose values (entries, 2) are values and powers."""
        values, powers = (np.ascontiguousarray(one) for one in both.values.T)
        held = forms.starts, forms.columns, forms.values
        return cls(both.starts, both.columns, values, forms.inputs, powers, *held, spheres)

    def first(self, count: int) -> Self:
        return replace(super().first(count), powers=self.powers[: int(self.starts[count])])

    @property
    def width(self) -> int:
        return self.d + (len(self.form_starts) - 1) // 2

    @property
    def _forms(self) -> Sparse:
        return Sparse(self.form_starts, self.form_columns, self.form_values, self.inputs)

    def _polar(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """[0 | log |z|] and [x | arg z], both (b, width)."""
        both = np.empty((len(x), 2 * (E := self.width - self.d)))
        self._forms.project(x, both)
        real, imaginary = both[:, :E], both[:, E:]
        starts, sizes = self.spheres[:-1], np.diff(self.spheres)
        reach = np.repeat(np.maximum.reduceat(np.hypot(real, imaginary), starts, axis=1), sizes, axis=1)
        reach[reach == 0] = 1.0
        squares = (real / reach) ** 2 + (imaginary / reach) ** 2  # of the forms themselves they may overflow
        mean = np.repeat(np.add.reduceat(squares, starts, axis=1) / sizes, sizes, axis=1)
        with np.errstate(divide="ignore"):  # the logarithm of 0
            logs = 0.5 * np.log(np.divide(squares, mean, out=np.zeros_like(squares), where=mean != 0))
        return np.hstack([np.zeros_like(x), logs]), np.hstack([x, np.arctan2(imaginary, real)])

    def project(self, x: FloatArray, out: FloatArray) -> None:
        """Write the phases."""
        sparse_rows(self._polar(x)[1], self.starts, self.columns, self.values, out)

    def pairs(self, x: FloatArray, work: FloatArray, out: FloatArray, weights: FloatArray) -> None:
        logs, turned = self._polar(x)
        sparse_rows(turned, self.starts, self.columns, self.values, work)
        trig_pairs(work, out, weights)
        sparse_rows(logs, self.starts, self.columns, self.powers, work)
        np.exp(work, out=work)
        for start in (0, self.D):
            out[:, start : start + self.D] *= work

    def dense(self) -> FloatArray:
        problem = "features over spheres are products of linear forms: they have no frequencies, which this needs"
        raise InputError(f"{problem}; use angles, or a block of a gaussian")

    def fits(self) -> bool:
        forms, ends = self._forms, self.spheres
        fit = forms.fits() and forms.D % 2 == 0 and ends.dtype == np.int64 and ends.ndim == 1 and len(ends) > 1
        fit = fit and ends[0] == 0 and ends[-1] == forms.D // 2 and bool(np.all(np.diff(ends) > 0))
        fit = fit and super().fits() and self.powers.shape == self.values.shape and finite(self.powers)
        return fit and bool(np.all((self.powers > 0) == (self.columns >= self.d)) and np.all(self.powers >= 0))


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
    form = {form.kind: form for form in (Dense, Modes, Sparse, FormProducts, HadamardChain, ButterflyRules)}.get(kind)
    if form is None:
        raise InputError(f"transform {kind!r} is not known; it is of a newer version of dorff")
    transform = form(**{field.name: arrays[field.name] for field in fields(form)})
    if not transform.fits():
        raise InputError(f"the {kind} transform's arrays do not fit each other")
    return transform
