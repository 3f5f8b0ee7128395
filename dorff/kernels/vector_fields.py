"""Curl-free and divergence-free kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.isotropic import Gaussian
from dorff.kernels.operator import BaseKernel, OperatorKernel
from dorff.kernels.scalar import FloatArray, Measure, ScalarKernel


class VectorField(BaseKernel):
    """What the curl-free and the divergence-free kernel share: d = p, and an isotropic scalar kernel."""

    def __init__(self, scalar: ScalarKernel, measure: Measure | str = Measure.TRACE) -> None:
        if not isinstance(scalar, Gaussian) or not scalar.isotropic:
            raise InputError(
                f"{type(self).__name__} needs a Gaussian with one lengthscale for all inputs, not {scalar!r}"
            )
        try:
            chosen = Measure(measure)
        except ValueError:
            raise InputError(f"measure must be trace, unbounded or bounded, not {measure!r}") from None
        object.__setattr__(self, "scalar", scalar)
        object.__setattr__(self, "measure", chosen)

    @property
    def vector_field(self) -> bool:
        return True

    @property
    def _inverse_square(self) -> float:
        assert isinstance(self.scalar, Gaussian) and isinstance(self.scalar.lengthscale, float)
        return self.scalar.lengthscale**-2

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        if d != p:
            raise InputError(
                f"{type(self).__name__} needs as many targets as inputs (d = p); the data have d = {d} inputs and "
                f"p = {p} targets: choose other columns, or a decomposable kernel"
            )
        return self

    def config(self) -> dict[str, Any]:
        kind = {"CurlFree": "curl_free", "DivergenceFree": "divergence_free"}[type(self).__name__]
        return {"type": kind, "scalar": self.scalar.config(), "measure": str(self.measure)}


@final
@dataclass(frozen=True, init=False)
class CurlFree(VectorField):
    """-grad grad^T k0, unnormalised: k(0) = I / s^2 (Minh 2016, eq. 33 with sigma = sqrt(2) s). d = p."""

    scalar: ScalarKernel
    measure: Measure

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        delta, a = X[:, None, :] - Z[None, :, :], self._inverse_square
        outer = delta[..., :, None] * delta[..., None, :]
        values: FloatArray = self.scalar.gram(X, Z)[:, :, None, None] * a * (np.eye(X.shape[1]) - a * outer)
        return values

    def root(self, omega: FloatArray) -> FloatArray:
        return omega[:, None, :].copy()

    def trace(self, d: int, p: int) -> float:
        return d * self._inverse_square


@final
@dataclass(frozen=True, init=False)
class DivergenceFree(VectorField):
    """(grad grad^T - Laplacian I) k0, unnormalised: k(0) = (p - 1) I / s^2; rank p - 1. d = p >= 2.

    Minh (2016), eq. 34, with its last bracket put right:
    a k0 {[(p - 1) - a |delta|^2] I + a delta delta^T}, a = 1 / s^2.
    """

    scalar: ScalarKernel
    measure: Measure

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        p = X.shape[1]
        delta, a = X[:, None, :] - Z[None, :, :], self._inverse_square
        squared = np.sum(delta**2, axis=-1)[..., None, None]
        outer = delta[..., :, None] * delta[..., None, :]
        bracket = (p - 1 - a * squared) * np.eye(p) + a * outer
        values: FloatArray = self.scalar.gram(X, Z)[:, :, None, None] * a * bracket
        return values

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        fixed = super().fix(d, p, covariance)
        if p < 2:
            raise InputError("a divergence-free field needs at least two inputs and as many targets; got one")
        return fixed

    def root(self, omega: FloatArray) -> FloatArray:
        """|omega| Q^T, Q (p, p-1) an orthonormal basis of omega's complement; Minh's eq. 41 has p rows."""
        norms = np.linalg.norm(omega, axis=1)
        # A Householder reflection carries omega to a multiple of e_1; its other columns span the complement.
        sign = np.where(omega[:, 0] >= 0, 1.0, -1.0)
        v = omega.copy()
        v[:, 0] += sign * norms
        scale = np.sum(v**2, axis=1)
        safe = np.where(scale > 0, scale, 1.0)
        p = omega.shape[1]
        reflection = np.eye(p) - 2.0 * v[:, :, None] * v[:, None, :] / safe[:, None, None]
        root: FloatArray = norms[:, None, None] * reflection[:, 1:, :]
        return root

    def trace(self, d: int, p: int) -> float:
        return d * (d - 1) * self._inverse_square
