"""The kernels that are products over the inputs: Laplacian and Cauchy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.spatial.distance import cdist

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray, Lengthscale, Measure, Product

_BLOCK = 2**15  # numbers at a time, so that they stay in cache


@final
@dataclass(frozen=True)
class Laplacian(Product):
    """exp(-|x - z|_1 / s), s = `lengthscale`; scikit-learn's gamma is 1 / s.

    Its frequencies are independent Cauchy variables of scale 1 / s (Rahimi & Recht 2007): no moments at all.
    """

    lengthscale: float | tuple[float, ...]

    def __init__(self, lengthscale: Lengthscale) -> None:
        self._set_lengthscale(lengthscale)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        scale = self.stretch(X.shape[1])
        values: FloatArray = np.exp(-cdist(X * scale, Z * scale, "cityblock"))
        return values

    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        # -cot(pi u) is tan(pi (u - 1/2)) with the digits of a small u kept.
        omega: FloatArray = -self.stretch(uniforms.shape[1]) / np.tan(math.pi * uniforms)
        return omega

    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        _check(self, measure)
        return rng.standard_cauchy((count, d)) * self.stretch(d)

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        _check(self, measure)
        scale = self.stretch(omega.shape[1])
        each = -math.log(math.pi) - np.log(scale) - np.log1p((omega / scale) ** 2)
        return np.asarray(np.sum(each, axis=1))

    def config(self) -> dict[str, Any]:
        return self._config("laplacian")


@final
@dataclass(frozen=True)
class Cauchy(Product):
    """prod_i 1 / (1 + ((x_i - z_i) / s)^2), s = `lengthscale`.

    Its frequencies are independent Laplace variables of scale 1 / s (Rahimi & Recht 2007).
    """

    lengthscale: float | tuple[float, ...]

    def __init__(self, lengthscale: Lengthscale) -> None:
        self._set_lengthscale(lengthscale)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        scale = self.stretch(X.shape[1])
        x, inverse = X * scale, np.ones((len(X), len(Z)))
        columns = np.ascontiguousarray((Z * scale).T)
        step = max(1, _BLOCK // max(1, len(Z)))
        with np.errstate(over="ignore"):  # 1 / inf is the value: less than 1e-308
            for start in range(0, len(X), step):
                for left, right in zip(x[start : start + step].T, columns, strict=True):
                    factor = left[:, None] - right
                    factor *= factor
                    factor += 1.0
                    inverse[start : start + step] *= factor
        values: FloatArray = np.reciprocal(inverse, out=inverse)
        return values

    def quantiles(self, uniforms: FloatArray) -> FloatArray:
        low = np.log(2 * np.minimum(uniforms, 1 - uniforms))
        omega: FloatArray = np.where(uniforms < 0.5, low, -low) * self.stretch(uniforms.shape[1])
        return omega

    def draw(self, rng: np.random.Generator, count: int, d: int, measure: Measure) -> FloatArray:
        _check(self, measure)
        return rng.laplace(size=(count, d)) * self.stretch(d)

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        _check(self, measure)
        scale = self.stretch(omega.shape[1])
        return np.asarray(np.sum(-np.log(2 * scale) - np.abs(omega) / scale, axis=1))

    def config(self) -> dict[str, Any]:
        return self._config("cauchy")


def _check(kernel: Laplacian | Cauchy, measure: Measure) -> None:
    if measure is Measure.UNBOUNDED:
        return
    reasons = {
        Measure.BOUNDED: "which is the Gaussian's alone",
        Measure.TRACE: "for the second moment of its frequencies is infinite"
        if isinstance(kernel, Laplacian)
        else "which is a mixture over the inputs and is not built",
    }
    raise InputError(f"{type(kernel).__name__} has no {measure} measure, {reasons[measure]}; use unbounded")
