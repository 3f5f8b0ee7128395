"""Features of landmarks: kernel values at them, made orthonormal."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from scipy.linalg import blas

from dorff.features.base import Product, ScalarMap, numbers
from dorff.frequencies.transforms import Arrays
from dorff.kernels import FloatArray, ScalarKernel
from dorff.kernels.stretched import Isotropic
from dorff.spec.registry import Config

_LARGEST_JITTER = 1e-6  # of k(x, x), where rounding left the landmarks' Gram matrix indefinite


@dataclass(frozen=True, eq=False)
class _KernelSum:
    """The functions sum_a k(x, z_a) W_a of points z_a (m, d) and coefficients W (m, p); may be pickled."""

    kernel: ScalarKernel
    points: FloatArray
    coefficients: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.kernel.gram(x, self.points) @ self.coefficients)


@dataclass(frozen=True, eq=False)
class LandmarkFeatures(ScalarMap):
    """F(x) = k(x, Z) L^-T, so that F(x) . F(z) = k(x, Z) K_ZZ^-1 k(Z, z) (Williams & Seeger 2001).

    `points` Z (m, d) are scaled inputs, `whitening` L^-T (m, m), upper triangular, L the Cholesky factor of K_ZZ. The
    first m' columns are the features of the first m' landmarks.
    """

    kernel: ScalarKernel
    points: FloatArray
    whitening: FloatArray
    kind = "landmarks"

    @classmethod
    def of(cls, kernel: ScalarKernel, points: FloatArray) -> "LandmarkFeatures":
        """Factorize the landmarks' Gram matrix."""
        gram = kernel.gram(points, points)
        jitter = 0.0
        while True:
            try:
                lower = np.linalg.cholesky(gram + jitter * np.eye(len(gram)))
                break
            except np.linalg.LinAlgError:
                jitter = max(10.0 * jitter, 1e-14)
                if jitter > _LARGEST_JITTER:
                    raise
        inverse = scipy.linalg.solve_triangular(lower, np.eye(len(gram)), lower=True, check_finite=False)
        return cls(kernel, np.ascontiguousarray(points), np.ascontiguousarray(inverse.T))

    @property
    def d(self) -> int:
        return int(self.points.shape[1])

    @property
    def m(self) -> int:
        return len(self.points)

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        values = self.kernel.gram(x, self.points)
        out[:, : self.m] = blas.dtrmm(1.0, self._upper, values.T, side=0, lower=0, trans_a=1, overwrite_b=1).T

    @cached_property
    def _upper(self) -> FloatArray:
        return np.asfortranarray(self.whitening)

    def product(self, W: FloatArray) -> Product:
        return _KernelSum(self.kernel, self.points, self.whitening @ W)

    @property
    def differentiable(self) -> bool:
        return isinstance(self.kernel, Isotropic) and self.kernel.differentiable

    def jacobian(self, x: FloatArray, W: FloatArray) -> FloatArray:
        if not isinstance(self.kernel, Isotropic) or not self.kernel.differentiable:
            return super().jacobian(x, W)
        return self.kernel.gradient(x, self.points, self.whitening @ W)

    def first(self, count: int) -> "LandmarkFeatures":
        """Return the features of the first `count` landmarks."""
        whitening = np.ascontiguousarray(self.whitening[:count, :count])
        return LandmarkFeatures(self.kernel, self.points[:count], whitening)

    def config(self) -> Config:
        return {"type": self.kind, "kernel": self.kernel.config()}

    def arrays(self) -> Arrays:
        return {"landmarks": self.points, "whitening": self.whitening}

    def fits(self) -> bool:
        if self.points.ndim != 2 or not len(self.points):
            return False
        return numbers(self.points.shape, self.points) and numbers((self.m, self.m), self.whitening)
