"""What every scalar kernel offers, the families of them, and the laws that frequencies may be drawn from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.spec.checks import AUTO
from dorff.spec.registry import SCALARS, Config, kind_of, lazily

pdist = lazily("scipy.spatial.distance", "pdist")

_NAMES = ("unbounded", "trace", "defensive", "bounded")


@dataclass(frozen=True)
class Measure:
    """The probability law rho of the frequencies, given a scalar kernel's spectral density rho_0.

    Minh (2016), sections 3.3-3.4; normalised each:

    - UNBOUNDED: rho_0 itself (eq. 37, 41);
    - TRACE: |omega|^2 rho_0 (eq. 54, 56), the trace measure of the curl-free and divergence-free kernels, where it
      has the least variance of all;
    - DEFENSIVE: (1 + |s omega|^2) rho_0, s the length-scale of each input (eq. 57, which has s = 1, whatever the
      inputs' unit): a mixture of the two others, whose weights are bounded both for kernels that grow like |omega|^2
      and for those that do not (the defensive importance sampling of Hesterberg 1995);
    - bounded(split): the Gaussian's exponent shared between law and weight (eq. 39 is the half split).

    Measures compare and hash by value."""

    name: str
    split: float | None = None

    UNBOUNDED: ClassVar["Measure"]
    TRACE: ClassVar["Measure"]
    DEFENSIVE: ClassVar["Measure"]

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise InputError(f"measure must be one of {', '.join(_NAMES)}, not {self.name!r}")
        if self.name != "bounded":
            if self.split is not None:
                raise InputError(f"measure {self.name} has no split, which is bounded's alone; leave it out")
            return
        split = 0.5 if self.split is None else self.split
        if not isinstance(split, int | float) or not 0 < split < 1:
            raise InputError(f"split, the weight's share of the exponent, must lie between 0 and 1, not {split!r}")
        object.__setattr__(self, "split", float(split))

    @classmethod
    def bounded(cls, split: float = 0.5) -> "Measure":
        """The law with 1 - `split` of a Gaussian's exponent; the weight has the rest, and is bounded."""
        return cls("bounded", split)

    @classmethod
    def of(cls, value: "Measure | str | Mapping[str, Any]") -> "Measure":
        """The measure that `value` is, names or describes as `config` does; InputError for anything else."""
        if isinstance(value, Measure):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and "type" in value and set(value) <= {"type", "split"}:
            return cls(value["type"], value.get("split"))
        raise InputError(f"measure must be {', '.join(_NAMES)} or {{type: bounded, split: 0.5}}, not {value!r}")

    def config(self) -> str | Config:
        """The measure in the grammar of JOB.yaml: its name, or a mapping where there is more to say."""
        return self.name if self.split in (None, 0.5) else {"type": self.name, "split": self.split}

    @property
    def tilted(self) -> bool:
        """Whether it asks for second moments of rho_0."""
        return self.name in ("trace", "defensive")

    @property
    def widening(self) -> float:
        """How much wider than rho_0 the law is, before any |omega|^2."""
        return 1.0 if self.split is None else 1.0 / math.sqrt(1.0 - self.split)

    def __str__(self) -> str:
        return self.name if self.split in (None, 0.5) else f"{self.name} (split {self.split:g})"


Measure.UNBOUNDED = Measure("unbounded")
Measure.TRACE = Measure("trace")
Measure.DEFENSIVE = Measure("defensive")


FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.integer[Any]]
Lengthscale = float | Sequence[float] | FloatArray
Function = Callable[[FloatArray], FloatArray]


class ScalarKernel(ABC):
    """A real positive definite kernel k0 on R^d. Equal kernels compare equal and hash alike."""

    @property
    def shift_invariant(self) -> bool:
        """Whether it is a function of x - z."""
        return False

    @abstractmethod
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """Exact values k0(x, z), (n, k), for X (n, d) and Z (k, d)."""

    @abstractmethod
    def config(self) -> Config:
        """The kernel in the grammar of JOB.yaml; InputError for one that lives in memory only."""

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k0(x, x) (n,) for X (n, d)."""
        return np.array([self.gram(x[None], x[None])[0, 0] for x in X])

    def check(self, d: int) -> None:
        """Does nothing if the kernel takes d inputs, else raises the InputError that says why not."""
        return

    def check_rows(self, X: FloatArray, *, scaled: bool) -> None:
        """Does nothing if the kernel is for inputs such as X (n, d), and for them divided by their spread where they
        are to be `scaled`; else raises the InputError that says why not."""
        return


class Spectral(ScalarKernel):
    """A shift-invariant kernel with k0(0) = 1: k0(delta) = E cos(omega . delta), omega ~ rho_0 (Bochner).
    `lengthscale` is in the inputs' units, one number or one per input. `check_measure` says which measures it has."""

    sampler: ClassVar[str] = ""  #: the word of the only sampler that draws its frequencies, where there is one
    lengthscale: float | tuple[float, ...]

    @property
    def shift_invariant(self) -> bool:
        return True

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k0(x, x) (n,) for X (n, d): ones."""
        return np.ones(len(X))

    @abstractmethod
    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """d^2 k0 / d delta d delta^T at delta = x - z, (n, k, d, d); InputError where there is none."""

    @abstractmethod
    def second_moments(self, d: int) -> FloatArray:
        """E omega_j^2 under rho_0, (d,); InputError that says why where they are infinite."""

    def rotation_invariant(self, measure: Measure) -> bool:
        """Whether rotations leave the law of s * omega as it is, s the length-scales."""
        return False

    @abstractmethod
    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """Log (D,) of the law's density in R^d at omega (D, d); InputError for a measure the kernel does not have."""

    @abstractmethod
    def dims(self, d: int, measure: Measure) -> int:
        """How many uniforms `quantiles` takes for one frequency in R^d."""

    @abstractmethod
    def quantiles(self, uniforms: FloatArray, d: int, measure: Measure) -> FloatArray:
        """Frequencies (D, d) of the measure's law out of uniforms (D, dims(d, measure)) in the open interval (0, 1).
        InputError for a measure the kernel does not have."""

    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        """Independent frequencies (count, d) of the measure's law; InputError for a measure it does not have."""
        return self.quantiles(np.maximum(rng.random((count, self.dims(d, measure))), 2.0**-54), d, measure)

    def check_measure(self, measure: Measure) -> None:
        """Does nothing if the kernel has the measure, else raises the InputError that says why not."""
        if measure != Measure.UNBOUNDED:
            raise InputError(f"{type(self).__name__} has no {measure} measure; use unbounded")

    def check_derivatives(self) -> None:
        """Does nothing if the kernel has second derivatives, else raises the InputError that says why not."""
        return

    @final
    def stretch(self, d: int) -> FloatArray:
        """1 / lengthscale for each input, (d,): what turns a frequency of the unit kernel into one of this."""
        if isinstance(self.lengthscale, tuple) and len(self.lengthscale) != d:
            problem = f"lengthscale has {len(self.lengthscale)} numbers but the inputs have {d} columns"
            raise InputError(f"{problem}; give one number, or one per column (to try several, list kernels)")
        return np.broadcast_to(1.0 / np.asarray(self.lengthscale, dtype=np.float64), (d,)).copy()

    def check(self, d: int) -> None:
        self.stretch(d)


@dataclass(frozen=True)
class Split:
    """phi(t) = constant + slope t + gain rest(t): rest is odd beside a constant, even beside a slope, else either.
    [phi(t) phi(s) + phi(-t) phi(-s)] / 2 = constant^2 + slope^2 t s + gain^2 rest(t) rest(s): rest(t) does for -t."""

    rest: Function
    gain: float = 1.0
    constant: float = 0.0
    slope: float = 0.0


@dataclass(frozen=True, eq=False)
class Activation:
    """phi on arrays of any shape, its derivative, and its even and odd parts; None where there is none, or unknown."""

    function: Function
    derivative: Function | None = None
    split: Split | None = None


class GaussianWeighted(ScalarKernel):
    """k(x, z) = E [scale phi(w . x)] [scale phi(w . z)], w ~ N(0, I). Not shift-invariant."""

    scale: ClassVar[float] = 1.0

    @property
    @abstractmethod
    def activation(self) -> Activation:
        """phi, without `scale`."""

    @property
    def centre(self) -> float:
        """phi(0), without `scale`."""
        return float(np.asarray(self.activation.function(np.zeros((1, 1)))).ravel()[0])


def scalar_from_config(config: Mapping[str, Any]) -> ScalarKernel:
    """The scalar kernel that `ScalarKernel.config` (or a job's `scalar:`) describes, or InputError."""
    kind = kind_of(config)
    entry = SCALARS.get(kind)
    if entry is None:
        raise InputError(f"kernel.scalar.type: {kind!r} is not built; use one of {', '.join(SCALARS.names)}")
    options = {name: field for name, field in entry.options.model_fields.items() if name != "type"}
    for key, field in options.items():
        if (field.is_required() or field.default == AUTO) and key not in config:
            raise InputError(f"kernel.scalar.{key} is missing from a {kind} kernel; add it")
    for key in config:
        if key not in ("type", *options):
            raise InputError(f"kernel.scalar.{key} is not known to a {kind} kernel; use {', '.join(options)}")
    kernel = entry.build(**{key: value for key, value in config.items() if key != "type"})
    if not isinstance(kernel, ScalarKernel):
        raise InputError(f"kernel.scalar.type: {kind} of another package builds no ScalarKernel")
    return kernel


def positive_number(name: str, value: float, *, or_zero: bool = False) -> float:
    """`value` as a float, or an InputError naming the argument."""
    good = isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 <= value < math.inf
    if not good or (value == 0 and not or_zero):
        raise InputError(f"{name} must be {'zero or ' if or_zero else ''}a positive finite number, not {value!r}")
    return float(value)


def whole(name: str, value: object, least: int = 1, most: float = math.inf) -> int:
    """A whole number from `least` to `most`, or an InputError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        wanted = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {wanted}, not {value!r}")
    return int(value)


def median_lengthscale(X: FloatArray, *, absolute: bool = False, weights: FloatArray | None = None) -> float:
    """Median distance between two distinct rows of a sample X (n, d); 1.0 when all rows are equal. `absolute`
    distances sum |x_i - z_i|, as the Laplacian does. By `weights` (n,) pairs count by their product."""
    rows = X[: min(len(X), 1000)]
    across = None if weights is None else np.outer(*[weights[: len(rows)]] * 2)[np.triu_indices(len(rows), 1)]
    if absolute:
        apart = pdist(rows, "cityblock")
        return _median(apart, apart > 0, across)
    rows = rows - rows.mean(axis=0)  # squares of numbers far from zero would swallow the distances
    squared = np.sum(rows**2, axis=1)
    distances = np.maximum(squared[:, None] + squared[None, :] - 2 * rows @ rows.T, 0.0)
    upper = distances[np.triu_indices(len(rows), 1)]
    return float(np.sqrt(_median(upper, upper > 1e-12 * max(float(squared.max(initial=0.0)), 1e-300), across)))


def _median(values: FloatArray, counted: BoolArray, weights: FloatArray | None) -> float:
    """Median of the values that are `counted`, by their weights; 1.0 where there is none."""
    kept = values[counted]
    if weights is None:
        return float(np.median(kept)) if kept.size else 1.0
    order = np.argsort(kept)
    total = np.cumsum(weights[counted][order])
    if not total.size or total[-1] <= 0:
        return 1.0
    middle = [np.searchsorted(total, 0.5 * total[-1], side=side) for side in ("left", "right")]
    return float(np.mean(kept[order][middle]))
