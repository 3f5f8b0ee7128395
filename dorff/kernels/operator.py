"""Operator-valued kernels: exact values and the spectral roots that psi is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.isotropic import Gaussian
from dorff.kernels.scalar import FloatArray, Measure, ScalarKernel, Spectral


class OperatorKernel(ABC):
    """A p x p matrix-valued positive definite kernel. Positive multiples and sums are kernels again."""

    @abstractmethod
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """Exact values, (n, k, p, p), for X (n, d) and Z (k, d)."""

    @abstractmethod
    def terms(self) -> tuple[tuple[float, BaseKernel], ...]:
        """The kernel as a sum: (weight, kernel) pairs of kernels that are not sums."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The kernel in the grammar of JOB.yaml."""

    @abstractmethod
    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        """The kernel for d inputs and p outputs, every output matrix written out; InputError if impossible."""

    @property
    def vector_field(self) -> bool:
        """Whether some term ties outputs to input directions, so that columns may not be scaled apart."""
        return any(isinstance(kernel, _VectorField) for _, kernel in self.terms())

    def __mul__(self, factor: float) -> OperatorKernel:
        return Sum(tuple((weight * factor, kernel) for weight, kernel in self.terms()))

    __rmul__ = __mul__

    def __add__(self, other: OperatorKernel) -> OperatorKernel:
        if not isinstance(other, OperatorKernel):
            return NotImplemented
        return Sum(self.terms() + other.terms())


class BaseKernel(OperatorKernel):
    """A kernel with density mu(omega) = M(omega) rho_0(omega): a scalar kernel's spectrum times a matrix.

    A scalar kernel without a spectrum (arc-cosine, polynomial) has features in place of frequencies and M constant.
    """

    scalar: ScalarKernel
    measure: Measure

    def terms(self) -> tuple[tuple[float, BaseKernel], ...]:
        return ((1.0, self),)

    @abstractmethod
    def root(self, omega: FloatArray) -> FloatArray:
        """U (D, r, p) with U^T U = M(omega), for frequencies omega (D, d)."""

    @abstractmethod
    def trace(self, d: int, p: int) -> float:
        """tr k(0), this term's share in the mixture frequencies are drawn from (Minh 2016, eq. 58-59)."""


@final
@dataclass(frozen=True, eq=False)
class Decomposable(BaseKernel):
    """k0(x, z) A.

    `output` is "identity", "covariance" (of the targets, known once the moments are), or a symmetric positive
    semi-definite matrix (p, p); its rank is what it costs.
    """

    scalar: ScalarKernel
    output: str | FloatArray

    def __init__(self, scalar: ScalarKernel, output: str | npt.ArrayLike = "identity") -> None:
        object.__setattr__(self, "scalar", scalar)
        object.__setattr__(self, "output", output if isinstance(output, str) else _positive(output))
        object.__setattr__(self, "measure", Measure.UNBOUNDED)
        if isinstance(self.output, str) and self.output not in ("identity", "covariance"):
            raise InputError(f"output must be 'identity', 'covariance' or a matrix, not {self.output!r}")

    def _matrix(self) -> FloatArray:
        if isinstance(self.output, str):
            raise InputError(
                f"the output matrix '{self.output}' is known only with the targets; use kernel.fix(d, p) first"
            )
        return self.output

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> Decomposable:
        self.scalar.check(d)
        if isinstance(self.output, str):
            if self.output == "identity":
                return Decomposable(self.scalar, np.eye(p))
            if covariance is None:
                raise InputError("output 'covariance' needs the targets' covariance, which only a fit knows")
            if not np.any(covariance):
                raise InputError("output 'covariance': the targets do not vary, so their covariance is zero")
            return Decomposable(self.scalar, covariance)
        if len(self.output) != p:
            raise InputError(
                f"the output matrix is {len(self.output)} x {len(self.output)} but there are {p} targets; "
                "give a matrix with one row per target"
            )
        return self

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return self.scalar.gram(X, Z)[:, :, None, None] * self._matrix()

    def root(self, omega: FloatArray) -> FloatArray:
        values, vectors = np.linalg.eigh(self._matrix())
        keep = values > max(float(values[-1]), 0.0) * len(values) * np.finfo(np.float64).eps
        root = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
        return np.broadcast_to(root, (len(omega), *root.shape)).copy()

    def trace(self, d: int, p: int) -> float:
        # A covariance is not known before the pass; any positive share covers, so it counts as the identity.
        return float(p) if isinstance(self.output, str) else float(np.trace(self.output))

    def config(self) -> dict[str, Any]:
        output: Any = self.output if isinstance(self.output, str) else {"matrix": self.output.tolist()}
        return {"type": "decomposable", "scalar": self.scalar.config(), "output": output}


class _VectorField(BaseKernel):
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
class CurlFree(_VectorField):
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
class DivergenceFree(_VectorField):
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


@final
@dataclass(frozen=True, eq=False)
class Sum(OperatorKernel):
    """A positive combination of kernels, which share one set of frequencies.

    A weight may be zero, so that `a * curl + (1 - a) * div` holds from a = 0 to 1; `fix` refuses all of them zero.
    Without a spectrum there are no frequencies to share: `fix` takes an arc-cosine, a polynomial and the like only
    where all terms are decomposable with the same scalar kernel, whose features they then share.
    """

    parts: tuple[tuple[float, BaseKernel], ...]

    def __init__(self, parts: Sequence[tuple[float, OperatorKernel]]) -> None:
        flat: list[tuple[float, BaseKernel]] = []
        for weight, kernel in parts:
            if not np.isfinite(weight) or weight < 0:
                raise InputError(f"the weight of a kernel must be zero or a positive number, not {weight!r}")
            flat += [(float(weight) * inner, base) for inner, base in kernel.terms()]
        object.__setattr__(self, "parts", tuple(flat))

    def terms(self) -> tuple[tuple[float, BaseKernel], ...]:
        return self.parts

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        if not any(weight > 0 for weight, _ in self.parts):
            raise InputError("a sum of kernels needs at least one positive weight")
        self._check_shared()
        return Sum([(weight, kernel.fix(d, p, covariance)) for weight, kernel in self.parts])

    def _check_shared(self) -> None:
        scalars = [kernel.scalar for _, kernel in self.parts]
        odd = next((scalar for scalar in scalars if not isinstance(scalar, Spectral)), None)
        if odd is not None and any(scalar != odd for scalar in scalars):
            raise InputError(
                f"a sum of kernels with {type(odd).__name__}, which is not shift-invariant, needs this one scalar "
                "kernel in all of its terms; add output matrices instead, or use shift-invariant kernels"
            )

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        total = self.parts[0][0] * self.parts[0][1].gram(X, Z)
        for weight, kernel in self.parts[1:]:
            total = total + weight * kernel.gram(X, Z)
        return total

    def config(self) -> dict[str, Any]:
        return {"type": "sum", "terms": [{"weight": w, "kernel": k.config()} for w, k in self.parts]}


def _positive(output: npt.ArrayLike) -> FloatArray:
    """A symmetric positive semi-definite matrix, or an InputError that says what is wrong with it."""
    matrix = np.asarray(output, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
        raise InputError(f"the output matrix must be square and finite; got shape {matrix.shape}")
    scale = float(np.abs(matrix).max(initial=0.0))
    if np.abs(matrix - matrix.T).max(initial=0.0) > 1e-10 * scale:
        raise InputError("the output matrix must be symmetric; use (A + A.T) / 2 if it should be")
    smallest = float(np.linalg.eigvalsh(matrix)[0]) if scale > 0 else 0.0
    if smallest < -1e-10 * scale or scale == 0:
        raise InputError(
            f"the output matrix must be positive semi-definite and not zero; its smallest eigenvalue is {smallest:.3g}"
        )
    return (matrix + matrix.T) / 2
