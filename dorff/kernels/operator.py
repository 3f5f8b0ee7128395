"""Operator-valued kernels: values, and roots that psi is made of; decomposable, curl-free, divergence-free ones."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.output import Output, as_output
from dorff.kernels.scalar import FloatArray, IntArray, Measure, ScalarKernel, Spectral
from dorff.spec.registry import Config


class OperatorKernel(ABC):
    """A p x p matrix-valued positive definite kernel. Positive multiples and sums are kernels again."""

    concatenated: bool = False  #: whether each term has frequencies of its own; see `Sum`
    #: How many views the outputs are of: 1 but for `MultiView`, of whose outputs the targets are the mean.
    V: int = 1

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """Exact values, (n, k, p, p), for X (n, d) and Z (k, d)."""
        (weight, base), *others = self.terms()
        total = weight * base.gram(X, Z)
        for weight, base in others:
            total += weight * base.gram(X, Z)
        return total

    @abstractmethod
    def terms(self) -> "tuple[tuple[float, BaseKernel], ...]":
        """The kernel as a sum: (weight, kernel) pairs of kernels that are not sums."""

    @abstractmethod
    def config(self) -> Config:
        """The kernel in the grammar of JOB.yaml."""

    @abstractmethod
    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> "OperatorKernel":
        """The kernel for d inputs and p outputs, every output matrix written out; InputError if impossible."""

    @property
    def vector_field(self) -> bool:
        """Whether some term ties outputs to input directions, so that columns may not be scaled apart."""
        return any(kernel.vector_field for _, kernel in self.terms())

    def tied(self, d: int) -> tuple[IntArray, ...]:
        """Of d inputs the groups of columns, by number, not to be scaled apart: all of a `vector_field`, else none."""
        return (np.arange(d),) if self.vector_field else ()

    def trace(self, d: int, p: int) -> float:
        """tr k(0), the share in the mixture that frequencies are drawn from (Minh 2016, eq. 58-59)."""
        return sum(weight * kernel.trace(d, p) for weight, kernel in self.terms())

    def __mul__(self, factor: float) -> "OperatorKernel":
        return Sum([(factor, self)])

    __rmul__ = __mul__

    def __add__(self, other: "OperatorKernel") -> "OperatorKernel":
        if not isinstance(other, OperatorKernel):
            return NotImplemented
        return Sum([(1.0, self), (1.0, other)])


class BaseKernel(OperatorKernel):
    """A kernel with density mu(omega) = M(omega) rho_0(omega): a scalar kernel's spectrum times a matrix. A scalar
    kernel without a spectrum (arc-cosine, polynomial) has features in place of frequencies and M constant. Frequencies
    are drawn from `measure`; None is the first of `measures` that the sampler has a rule for."""

    #: Measures in order of preference.
    measures: ClassVar[tuple[Measure, ...]] = (Measure.UNBOUNDED,)
    scalar: ScalarKernel

    def check_rows(self, X: FloatArray, *, scaled: bool) -> None:
        """As `ScalarKernel.check_rows`."""
        self.scalar.check_rows(X, scaled=scaled)

    measure: Measure | None
    vector_field = False

    def terms(self) -> "tuple[tuple[float, BaseKernel], ...]":
        return ((1.0, self),)

    @abstractmethod
    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """As `OperatorKernel.gram`."""

    @abstractmethod
    def root(self, omega: FloatArray) -> FloatArray:
        """U (D, r, p) with U^T U = M(omega), for frequencies omega (D, d)."""

    @abstractmethod
    def trace(self, d: int, p: int) -> float:
        """tr k(0) for d inputs and p outputs."""


@dataclass(frozen=True, eq=False)
class Sum(OperatorKernel):
    """A positive combination of kernels. Its terms share one set of frequencies, drawn from the mixture of their
    measures (Minh 2016, eq. 58-59). With `concatenate` each has frequencies of its own, so that the features are those
    of the terms, one after another (eq. 60): the two estimate the same kernel. A sum with a concatenated sum in it is
    concatenated. A weight may be zero, so that `a * curl + (1 - a) * div` holds from a = 0 to 1; `fix` refuses all of
    them zero. Without a spectrum there are no frequencies to share: `fix` takes an arc-cosine, a polynomial and the
    like only where all terms are decomposable with the same scalar kernel, whose features they then share."""

    parts: tuple[tuple[float, BaseKernel], ...]
    concatenate: bool

    def __init__(self, parts: Sequence[tuple[float, OperatorKernel]], *, concatenate: bool = False) -> None:
        flat: list[tuple[float, BaseKernel]] = []
        if not isinstance(concatenate, bool):
            raise InputError(f"concatenate must be True or False, not {concatenate!r}")
        for weight, kernel in parts:
            if not np.isfinite(weight) or weight < 0:
                raise InputError(f"the weight of a kernel must be zero or a positive number, not {weight!r}")
            if kernel.V > 1:
                raise InputError("a multi-view kernel has no multiples and no sums; weigh or add its views' kernels")
            flat += [(float(weight) * inner, base) for inner, base in kernel.terms()]
        concatenate = concatenate or any(kernel.concatenated for _, kernel in parts)
        vars(self).update(parts=tuple(flat), concatenate=concatenate, concatenated=concatenate)

    def terms(self) -> tuple[tuple[float, BaseKernel], ...]:
        return self.parts

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        if not any(weight > 0 for weight, _ in self.parts):
            raise InputError("a sum of kernels needs at least one positive weight")
        odd, alone = _not_shift_invariant(self.parts)
        named = f"a sum of kernels with {type(odd).__name__}, which is not shift-invariant,"
        if odd is not None and not alone:
            problem = f"{named} needs this one scalar kernel in all of its terms"
            raise InputError(f"{problem}; add output matrices instead, or use shift-invariant kernels")
        if odd is not None and self.concatenate:
            raise InputError(f"{named} cannot be concatenated; leave concatenate out, or add output matrices instead")
        fixed = [(weight, kernel.fix(d, p, covariance)) for weight, kernel in self.parts]
        return Sum(fixed, concatenate=self.concatenate)

    def config(self) -> Config:
        terms = [{"weight": weight, "kernel": kernel.config()} for weight, kernel in self.parts]
        return {"type": "sum", "terms": terms, **({"concatenate": True} if self.concatenate else {})}


def mixture(candidates: Sequence[OperatorKernel], d: int, p: int) -> OperatorKernel:
    """The kernel that frequencies serving several candidates are drawn from: each has an equal share. The one
    candidate itself, or the sum of k_i / tr k_i(0), whose trace measure covers them all. Each candidate's weights psi
    then follow from the density of what was drawn. InputError for a list whose kernels cannot share features: a scalar
    kernel without a spectrum beside others, or a concatenated sum."""
    if len(candidates) == 1:
        return candidates[0]
    if any(kernel.V > 1 for kernel in candidates):
        raise InputError("a list of kernels is fitted on features that all of them share; fit a multi-view one alone")
    if any(kernel.concatenated for kernel in candidates):
        problem = "a list of kernels is fitted on features that all of them share, which a concatenated sum does not"
        raise InputError(f"{problem}; leave concatenate out, or fit it alone")
    shares = [(kernel.trace(d, p), kernel.terms()) for kernel in candidates]
    parts = [(weight / share, base) for share, terms in shares for weight, base in terms if weight > 0]
    odd, alone = _not_shift_invariant(parts)
    if odd is not None and not alone:
        problem = f"but {type(odd).__name__}, which is not shift-invariant, has features of its own"
        shared = "a list of kernels is fitted on features that all of them share"
        raise InputError(f"{shared}, {problem}; fit it in a job of its own")
    return Sum(parts)


def _not_shift_invariant(parts: Sequence[tuple[float, BaseKernel]]) -> tuple[ScalarKernel | None, bool]:
    """The first scalar kernel that is not shift-invariant, if any, and whether it is the only scalar kernel."""
    scalars = [kernel.scalar for _, kernel in parts]
    odd = next((scalar for scalar in scalars if not scalar.shift_invariant), None)
    return odd, all(scalar == odd for scalar in scalars)


@dataclass(frozen=True, eq=False)
class Decomposable(BaseKernel):
    """k0(x, z) A (Brault 2016, definition 7). `output` says what A is: an `Output`, one of the names "identity",
    "covariance", "simplex" and "learned", or a symmetric positive semi-definite matrix (p, p). Its rank is its cost."""

    scalar: ScalarKernel
    output: Output
    measure = Measure.UNBOUNDED

    def __init__(
        self, scalar: ScalarKernel, output: Output | str | Mapping[str, Any] | npt.ArrayLike = "identity"
    ) -> None:
        vars(self).update(scalar=scalar, output=as_output(output))

    @property
    def matrix(self) -> FloatArray:
        """A (p, p); InputError before `fix` where it takes its size or its numbers from the data."""
        return self.output.matrix(self._p)

    @property
    def _p(self) -> int:
        p = self.output.p
        if p is None:
            waiting = f"the output matrix '{self.output.config()}' is known only with the targets"
            raise InputError(f"{waiting}; use kernel.fix(d, p) first")
        return p

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> "Decomposable":
        self.scalar.check(d)
        return Decomposable(self.scalar, self.output.fixed(p, covariance))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return self.scalar.gram(X, Z)[:, :, None, None] * self.matrix

    def root(self, omega: FloatArray) -> FloatArray:
        root = self.output.root(self._p)
        return np.broadcast_to(root, (len(omega), *root.shape)).copy()

    def trace(self, d: int, p: int) -> float:
        return self.output.trace(p)

    def config(self) -> Config:
        return {"type": "decomposable", "scalar": self.scalar.config(), "output": self.output.config()}


@dataclass(frozen=True, init=False)
class VectorField(BaseKernel):
    """What the curl-free and the divergence-free kernel share: d = p, and a scalar kernel with second derivatives. Any
    shift-invariant one whose frequencies have second moments (Minh 2016, lemma 7), with any length-scales: the
    Gaussian, say, or Matern with nu > 1. InputError for others, and for a measure that the scalar kernel does not
    have. Derivatives are by the inputs as given, which must be lengths of one unit along the targets' directions: of
    longitudes and latitudes, which are no lengths, divergence and curl are not those of the flow; project them to a
    plane, in km. No measure: trace, or unbounded where the sampler has no rule."""

    kind: ClassVar[str]
    scalar: Spectral
    measure: Measure | None
    measures = (Measure.TRACE, Measure.UNBOUNDED)
    vector_field = True

    def __init__(self, scalar: ScalarKernel, measure: Measure | str | Mapping[str, Any] | None = None) -> None:
        if not isinstance(scalar, Spectral):
            made = f"{type(self).__name__} is made of derivatives of a shift-invariant kernel"
            remedy = "use a smooth one, such as the Gaussian or Matern (nu > 1), or a decomposable kernel"
            raise InputError(f"{made}, which {scalar!r} is not; {remedy}")
        scalar.check_derivatives()
        chosen = None if measure is None else Measure.of(measure)
        if chosen is not None:
            scalar.check_measure(chosen)
        vars(self).update(scalar=scalar, measure=chosen)

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> OperatorKernel:
        if d != p:
            remedy = f"the data have d = {d} inputs and p = {p} targets: choose other columns, or a decomposable kernel"
            raise InputError(f"{type(self).__name__} needs as many targets as inputs (d = p); {remedy}")
        self.scalar.check(d)
        return self

    def config(self) -> Config:
        measure = {} if self.measure is None else {"measure": self.measure.config()}
        return {"type": self.kind, "scalar": self.scalar.config(), **measure}


class CurlFree(VectorField):
    """-grad grad^T k0, unnormalised: k(0) is the diagonal of E omega_j^2, I / s^2 for the Gaussian (Minh 2016, eq. 32,
    and eq. 33 with sigma = sqrt(2) s). d = p."""

    kind = "curl_free"

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return -self.scalar.hessian(X, Z)

    def root(self, omega: FloatArray) -> FloatArray:
        return omega[:, None, :].copy()

    def trace(self, d: int, p: int) -> float:
        return float(self.scalar.second_moments(d).sum())


class DivergenceFree(VectorField):
    """(grad grad^T - Laplacian I) k0, unnormalised; rank p - 1. d = p >= 2. Minh (2016), eq. 32. For the Gaussian k(0)
    = (p - 1) I / s^2, and it is eq. 34 with its last bracket put right: a k0 {[(p - 1) - a |delta|^2] I + a delta
    delta^T}, a = 1 / s^2."""

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
        reflection = np.eye(omega.shape[1]) - 2.0 * v[:, :, None] * v[:, None, :] / safe[:, None, None]
        return np.asarray(norms[:, None, None] * reflection[:, 1:, :])

    def trace(self, d: int, p: int) -> float:
        return (d - 1) * float(self.scalar.second_moments(d).sum())
