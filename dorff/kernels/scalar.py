"""What every scalar kernel offers, and the four families that feature maps tell apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist, pdist

from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer[Any]]
Lengthscale = float | Sequence[float] | FloatArray
Function = Callable[[FloatArray], FloatArray]


class Measure(StrEnum):
    """The probability law rho of the frequencies, given a scalar kernel's spectral density rho_0.

    Minh (2016), section 3.3-3.4. UNBOUNDED is rho_0 itself; BOUNDED moves half of a Gaussian's exponent into
    the weight (eq. 39); TRACE is |omega|^2 rho_0, normalised (eq. 54, 56): the least variance for the
    curl-free and divergence-free kernels. Where there is a length-scale for each input, TRACE is
    |lengthscale * omega|^2 rho_0, normalised.
    """

    UNBOUNDED = "unbounded"
    BOUNDED = "bounded"
    TRACE = "trace"


class Activation(StrEnum):
    """What a projection omega . x becomes: a cos/sin pair, the Heaviside step (1/2 at 0) or the ramp max(0, .)."""

    TRIG = "trig"
    STEP = "step"
    RAMP = "ramp"


class ScalarKernel(ABC):
    """A real positive definite kernel k0 on R^d. Equal kernels compare equal and hash alike."""

    shift_invariant: ClassVar[bool] = False

    @abstractmethod
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """Exact values k0(x, z), (n, k), for X (n, d) and Z (k, d)."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The kernel in the grammar of JOB.yaml; InputError for one that lives in memory only."""

    def check(self, d: int) -> None:
        """Does nothing if the kernel takes d inputs, else raises the InputError that says why not."""
        return


class Spectral(ScalarKernel):
    """A shift-invariant kernel with k0(0) = 1: k0(delta) = E cos(omega . delta), omega ~ rho_0 (Bochner).

    `lengthscale` is in the inputs' own units: one number, or one per input.
    """

    shift_invariant: ClassVar[bool] = True
    lengthscale: float | tuple[float, ...]

    @abstractmethod
    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """Log (D,) of the density in R^d of the measure's law at the frequencies omega (D, d).

        InputError for a measure the kernel does not have.
        """

    @abstractmethod
    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        """Frequencies (D, d) of law rho_0 (UNBOUNDED) out of uniforms (D, dims(d)) in the open interval (0, 1)."""

    @abstractmethod
    def dims(self, d: int) -> int:
        """How many uniforms `quantiles` takes for one frequency in R^d."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        """Independent frequencies (count, d) of the measure's law; InputError for a measure it does not have."""

    @final
    def stretch(self, d: int) -> FloatArray:
        """1 / lengthscale for each input, (d,): what turns a frequency of the unit kernel into one of this."""
        if isinstance(self.lengthscale, tuple) and len(self.lengthscale) != d:
            raise InputError(
                f"lengthscale has {len(self.lengthscale)} numbers but the inputs have {d} columns; "
                "give one number, or one per column"
            )
        return np.broadcast_to(1.0 / np.asarray(self.lengthscale, dtype=np.float64), (d,)).copy()

    def check(self, d: int) -> None:
        self.stretch(d)

    def _set_lengthscale(self, lengthscale: Lengthscale) -> None:
        """Checks a length-scale and keeps it as a float or a tuple of floats."""
        try:
            values = np.asarray(lengthscale, dtype=np.float64)
        except (TypeError, ValueError):
            values = np.empty(0)
        if values.ndim > 1 or values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 1e-300):
            raise InputError(
                f"lengthscale must be a positive number or a list of them, one per input, not {lengthscale!r}"
            )
        plain = float(values) if values.ndim == 0 else tuple(float(v) for v in values)
        object.__setattr__(self, "lengthscale", plain)

    def _config(self, kind: str, **more: float) -> dict[str, Any]:
        value = self.lengthscale if isinstance(self.lengthscale, float) else list(self.lengthscale)
        return {"type": kind, "lengthscale": value, **more}


class Isotropic(Spectral):
    """A kernel of the distance alone (in length-scales): omega = radius * uniform direction * stretch."""

    @property
    def isotropic(self) -> bool:
        """Whether one length-scale serves all inputs."""
        return isinstance(self.lengthscale, float)

    @abstractmethod
    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        """Radii (count,) of frequencies under the measure, before `stretch` is applied to the directions."""

    @abstractmethod
    def second_moment(self, d: int) -> float:
        """E radius^2 under UNBOUNDED, before `stretch`; InputError where it is infinite."""

    def typical_radius(self, d: int) -> float | None:
        """The one radius that SORF and ROM may use for all rows; None where radii must stay random."""
        return None

    @abstractmethod
    def _values(self, squared: FloatArray) -> FloatArray:
        """The kernel at squared distances r^2 in length-scales."""

    @final
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        # Differences, not |x|^2 + |z|^2 - 2 x.z: near zero a Matern sees the root of the distance's rounding.
        scale = self.stretch(X.shape[1])
        return self._values(cdist(X * scale, Z * scale, "sqeuclidean"))

    @final
    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        radii = self.radii(rng, count, d, measure)
        omega = rng.standard_normal((count, d))
        omega *= (radii / np.linalg.norm(omega, axis=1))[:, None]
        omega *= self.stretch(d)
        return omega


class Product(Spectral):
    """A product over the inputs of one-dimensional kernels: the coordinates of omega are independent.

    Only UNBOUNDED is built: `|omega|^2 rho_0` is not a product.
    """

    @final
    def dims(self, d: int) -> int:
        return d


@final
@dataclass(frozen=True)
class Split:
    """phi(t) = constant + slope t + gain rest(t): rest is odd beside a constant, even beside a slope, else either.

    Then [phi(t) phi(s) + phi(-t) phi(-s)] / 2 = constant^2 + slope^2 t s + gain^2 rest(t) rest(s): where t comes with
    -t, rest(t) does for both.
    """

    rest: Function
    gain: float = 1.0
    constant: float = 0.0
    slope: float = 0.0


class GaussianWeighted(ScalarKernel):
    """k(x, z) = E [scale phi(w . x)] [scale phi(w . z)], w ~ N(0, I). Not shift-invariant."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """The constant in front of phi."""

    @property
    @abstractmethod
    def activation(self) -> Activation | None:
        """phi where a jitted loop exists for it, else None."""

    @property
    @abstractmethod
    def function(self) -> Function:
        """phi on arrays of any shape, without `scale`."""

    @property
    @abstractmethod
    def derivative(self) -> Function | None:
        """d phi / dt on arrays, without `scale`; None where there is none (a step) or it is not known."""

    @property
    @abstractmethod
    def centre(self) -> float:
        """phi(0), without `scale`."""

    @property
    @abstractmethod
    def split(self) -> Split | None:
        """phi, without `scale`, in its even and odd parts; None where they are not known."""


class Explicit(ScalarKernel):
    """A kernel that brings features of its own, not projections onto random frequencies."""


def median_lengthscale(X: FloatArray, *, absolute: bool = False) -> float:
    """Median distance between two distinct rows of a sample X (n, d); 1.0 when all rows are equal.

    `absolute` distances sum |x_i - z_i|, as the Laplacian does.
    """
    rows = X[: min(len(X), 1000)]
    if absolute:
        apart = pdist(rows, "cityblock")
        apart = apart[apart > 0]
        return float(np.median(apart)) if apart.size else 1.0
    rows = rows - rows.mean(axis=0)  # squares of numbers far from zero would swallow the distances
    squared = np.sum(rows**2, axis=1)
    distances = np.maximum(squared[:, None] + squared[None, :] - 2 * rows @ rows.T, 0.0)
    upper = distances[np.triu_indices(len(rows), 1)]
    positive = upper[upper > 1e-12 * max(float(squared.max(initial=0.0)), 1e-300)]
    return float(np.sqrt(np.median(positive))) if positive.size else 1.0
