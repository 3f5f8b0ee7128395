"""Exact kernel ridge regression for small N: the oracle of the tests, and the better tool when N is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray


@final
@dataclass(frozen=True, eq=False)
class ExactRidge:
    """f(x) = sum_i K(x, x_i) a_i + b, least
    1/l sum |y - f|^2 + ridge |f|^2 (Minh 2016, eq. 72, gI = 0).

    Costs (n p)^3 flops and (n p)^2 numbers.
    """

    kernel: OperatorKernel
    X: FloatArray
    dual: FloatArray
    intercept: FloatArray

    @classmethod
    def fit(
        cls, kernel: OperatorKernel, X: FloatArray, Y: FloatArray, *, ridge: float, intercept: bool = True
    ) -> ExactRidge:
        """Fit to inputs X (n, d) and targets Y (n, p); raises InputError when their lengths differ."""
        if len(X) != len(Y):
            raise InputError(f"X has {len(X)} rows but Y has {len(Y)}; give one target row per input row")
        n, p = Y.shape
        covariance = np.atleast_2d(np.cov(Y.T, bias=True))
        kernel = kernel.fix(X.shape[1], p, covariance)
        K = kernel.gram(X, X).transpose(0, 2, 1, 3).reshape(n * p, n * p)
        K[np.diag_indices(n * p)] += n * ridge
        ones = np.tile(np.eye(p), (n, 1))
        solved = scipy.linalg.solve(K, np.column_stack([Y.reshape(-1), ones]), assume_a="pos")
        b = np.zeros(p)
        dual = solved[:, 0]
        if intercept:
            b = np.linalg.solve(ones.T @ solved[:, 1:], ones.T @ dual)
            dual = dual - solved[:, 1:] @ b
        return cls(kernel, X, dual.reshape(n, p), b)

    def predict(self, X: FloatArray) -> FloatArray:
        """f at X (n, d): (n, p)."""
        values: FloatArray = np.einsum("nkpq,kq->np", self.kernel.gram(X, self.X), self.dual) + self.intercept
        return values
