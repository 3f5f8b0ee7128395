"""Scalar shift-invariant kernels: exact values, and the spectra their frequencies come from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]


class Measure(StrEnum):
    """The probability law rho of the frequencies, given a scalar kernel's spectral density rho_0.

    Minh (2016), section 3.3-3.4. UNBOUNDED is rho_0 itself; BOUNDED moves half of a Gaussian's exponent into
    the weight (eq. 39); TRACE is |omega|^2 rho_0, normalised (eq. 54, 56): the least variance for the
    curl-free and divergence-free kernels.
    """

    UNBOUNDED = "unbounded"
    BOUNDED = "bounded"
    TRACE = "trace"


class ScalarKernel(ABC):
    """A real shift-invariant kernel k0 on R^d with k0(0) = 1."""

    @abstractmethod
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """Exact values k0(x, z), (n, k), for X (n, d) and Z (k, d)."""

    @abstractmethod
    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        """Radii (count,) of frequencies under the measure, before `stretch` is applied to the directions."""

    @abstractmethod
    def stretch(self, d: int) -> FloatArray:
        """Factor (d,) that turns (unit direction x radius) into a frequency, in 1 / input units."""

    @abstractmethod
    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """Log of the measure's density (D,) at the frequencies omega (D, d)."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The kernel in the grammar of JOB.yaml."""


@final
@dataclass(frozen=True)
class Gaussian(ScalarKernel):
    """exp(-|x - z|^2 / (2 s^2)), s = `lengthscale` in the inputs' own units: one number, or one per input.

    Its spectrum is N(0, I / s^2) (Rahimi & Recht 2007). Minh's sigma is sqrt(2) s.
    """

    lengthscale: float | tuple[float, ...]

    def __init__(self, lengthscale: float | Sequence[float] | FloatArray) -> None:
        values = np.asarray(lengthscale, dtype=np.float64)
        if values.ndim > 1 or values.size == 0 or not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise InputError(
                f"lengthscale must be a positive number or a list of them, one per input, not {lengthscale!r}"
            )
        plain = float(values) if values.ndim == 0 else tuple(float(v) for v in values)
        object.__setattr__(self, "lengthscale", plain)

    @property
    def isotropic(self) -> bool:
        return isinstance(self.lengthscale, float)

    def stretch(self, d: int) -> FloatArray:
        if isinstance(self.lengthscale, tuple) and len(self.lengthscale) != d:
            raise InputError(
                f"lengthscale has {len(self.lengthscale)} numbers but the inputs have {d} columns; "
                "give one number, or one per column"
            )
        return np.broadcast_to(1.0 / np.asarray(self.lengthscale, dtype=np.float64), (d,)).copy()

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        scale = self.stretch(X.shape[1])
        difference = (X[:, None, :] - Z[None, :, :]) * scale
        values: FloatArray = np.exp(-0.5 * np.einsum("nkd,nkd->nk", difference, difference))
        return values

    def radii(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        # |omega|^2 rho_0 has radius chi(d + 2); the half split doubles the variance.
        freedom = d + 2 if measure is Measure.TRACE else d
        widening = math.sqrt(2.0) if measure is Measure.BOUNDED else 1.0
        return widening * np.sqrt(rng.chisquare(freedom, count))

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        d = omega.shape[1]
        scale = self.stretch(d)
        squared = np.sum((omega / scale) ** 2, axis=1)
        constant = -0.5 * d * math.log(2 * math.pi) - float(np.sum(np.log(scale)))
        density: FloatArray
        if measure is Measure.BOUNDED:
            density = constant - 0.5 * d * math.log(2.0) - 0.25 * squared
            return density
        density = constant - 0.5 * squared
        if measure is Measure.TRACE:
            with np.errstate(divide="ignore"):
                density = density + np.log(squared / d)
        return density

    def config(self) -> dict[str, Any]:
        value = self.lengthscale if isinstance(self.lengthscale, float) else list(self.lengthscale)
        return {"type": "gaussian", "lengthscale": value}


def scalar_from_config(config: Mapping[str, Any]) -> ScalarKernel:
    """The scalar kernel that `ScalarKernel.config` (or a job's `scalar:`) describes."""
    if config.get("type") != "gaussian":
        raise InputError(f"kernel.scalar.type: {config.get('type')!r} is not built; use gaussian")
    return Gaussian(config["lengthscale"])


def median_lengthscale(X: FloatArray) -> float:
    """Median distance between two distinct rows of a sample X (n, d); 1.0 when all rows are equal."""
    rows = X[: min(len(X), 1000)]
    rows = rows - rows.mean(axis=0)  # squares of numbers far from zero would swallow the distances
    squared = np.sum(rows**2, axis=1)
    distances = np.maximum(squared[:, None] + squared[None, :] - 2 * rows @ rows.T, 0.0)
    upper = distances[np.triu_indices(len(rows), 1)]
    positive = upper[upper > 1e-12 * max(float(squared.max(initial=0.0)), 1e-300)]
    return float(np.sqrt(np.median(positive))) if positive.size else 1.0
