"""Curl-free and divergence-free kernels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.operator import BaseKernel, OperatorKernel
from dorff.kernels.scalar import FloatArray, Measure, ScalarKernel, Spectral
from dorff.spec.registry import Config


class VectorField(BaseKernel):
    """What the curl-free and the divergence-free kernel share: d = p, and a scalar kernel with second derivatives.

    Any shift-invariant one whose frequencies have second moments (Minh 2016, lemma 7), with any length-scales: the
    Gaussian, say, or Matern with nu > 1. InputError for others, and for a measure that the scalar kernel does not
    have. Derivatives are by the inputs as given, which must be lengths of one unit along
    the targets' directions: of longitudes and latitudes, which are no lengths, divergence and curl are not those
    of the flow on the sphere. Project them to a plane, in km, first. Without a measure it is the trace measure, or
    the spectrum's own where the sampler has no rule for that."""

    kind: ClassVar[str]
    scalar: Spectral
    measures = (Measure.TRACE, Measure.UNBOUNDED)
    vector_field = True

    def __init__(self, scalar: ScalarKernel, measure: Measure | str | Mapping[str, Any] | None = None) -> None:
        if not isinstance(scalar, Spectral):
            raise InputError(
                f"{type(self).__name__} is made of derivatives of a shift-invariant kernel, which {scalar!r} is not; "
                "use a smooth one, such as the Gaussian or Matern (nu > 1), or a decomposable kernel"
            )
        scalar.check_derivatives()
        chosen = None if measure is None else Measure.of(measure)
        if chosen is not None:
            scalar.check_measure(chosen)
        vars(self).update(scalar=scalar, measure=chosen)

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        if d != p:
            raise InputError(
                f"{type(self).__name__} needs as many targets as inputs (d = p); the data have d = {d} inputs and "
                f"p = {p} targets: choose other columns, or a decomposable kernel"
            )
        self.scalar.check(d)
        return self

    def config(self) -> Config:
        measure = {} if self.measure is None else {"measure": self.measure.config()}
        return {"type": self.kind, "scalar": self.scalar.config(), **measure}


@final
@dataclass(frozen=True, init=False)
class CurlFree(VectorField):
    """-grad grad^T k0, unnormalised: k(0) is the diagonal of E omega_j^2, I / s^2 for the Gaussian (Minh 2016, eq. 32,
    and eq. 33 with sigma = sqrt(2) s). d = p."""

    scalar: Spectral
    measure: Measure | None
    kind = "curl_free"

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return -self.scalar.hessian(X, Z)

    def root(self, omega: FloatArray) -> FloatArray:
        return omega[:, None, :].copy()

    def trace(self, d: int, p: int) -> float:
        return float(self.scalar.second_moments(d).sum())


@final
@dataclass(frozen=True, init=False)
class DivergenceFree(VectorField):
    """(grad grad^T - Laplacian I) k0, unnormalised; rank p - 1. d = p >= 2.

    Minh (2016), eq. 32. For the Gaussian k(0) = (p - 1) I / s^2, and it is eq. 34 with its last bracket put right:
    a k0 {[(p - 1) - a |delta|^2] I + a delta delta^T}, a = 1 / s^2."""

    scalar: Spectral
    measure: Measure | None
    kind = "divergence_free"

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        values, d = self.scalar.hessian(X, Z), X.shape[1]
        values[..., range(d), range(d)] -= np.trace(values, axis1=-2, axis2=-1)[..., None]
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
        return np.asarray(norms[:, None, None] * reflection[:, 1:, :])

    def trace(self, d: int, p: int) -> float:
        return (d - 1) * float(self.scalar.second_moments(d).sum())
