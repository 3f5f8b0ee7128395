"""The kernels that are products over the inputs: Laplacian and Cauchy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import gammainccinv

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray, Lengthscale
from dorff.kernels.stretched import Product
from dorff.spec.registry import Config

_BLOCK = 2**15  # numbers at a time, so that they stay in cache
_ROUGH = (
    "a Laplacian kernel is not differentiable at zero: its frequencies have an infinite second moment, so there is no "
    "trace or defensive measure and no curl-free or divergence-free kernel; use a Matern kernel with nu > 1, or a "
    "decomposable kernel and the unbounded measure"
)


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

    @property
    def variance(self) -> float:
        raise InputError(_ROUGH)

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        raise InputError(_ROUGH)

    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        # -cot(pi u) is tan(pi (u - 1/2)) with the digits of a small u kept.
        values: FloatArray = -1 / np.tan(math.pi * uniforms)
        return values

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-np.sum(math.log(math.pi) + np.log1p(unit**2), axis=1))

    def config(self) -> Config:
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

    @property
    def variance(self) -> float:
        return 2.0

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        d = X.shape[1]
        scale = self.stretch(d)
        delta = (X[:, None, :] - Z[None, :, :]) * scale
        with np.errstate(over="ignore"):
            inverse = 1 / (1 + delta**2)  # of each factor: f, f' = -2 delta f^2, f'' = 2 f^2 - 8 delta^2 f^3 below
            first, second = -2 * delta * inverse * scale, (6 - 8 * inverse) * inverse * scale**2
        values = first[..., :, None] * first[..., None, :]
        values[..., range(d), range(d)] = second
        return np.asarray(values * np.prod(inverse, axis=-1)[..., None, None])

    def _coordinates(self, uniforms: FloatArray, *, biased: bool) -> FloatArray:
        tail = 2 * np.minimum(uniforms, 1 - uniforms)
        size = gammainccinv(3.0, tail) if biased else -np.log(tail)
        values: FloatArray = np.where(uniforms < 0.5, -size, size)
        return values

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-np.sum(math.log(2.0) + np.abs(unit), axis=1))

    def config(self) -> Config:
        return self._config("cauchy")
