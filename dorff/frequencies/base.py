"""Samplers: a kernel, d, a count and a seed in, frequencies and their weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.transforms import Dense, Transform
from dorff.kernels import (
    Decomposable,
    Gaussian,
    GaussianWeighted,
    Isotropic,
    Measure,
    OperatorKernel,
    ScalarKernel,
    Spectral,
)
from dorff.kernels.scalar import FloatArray


@final
@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies and weights such that `sum_j weights_j^2 g(omega_j) + centre g(0)` estimates E g(omega).

    `transform` is omega (D, d), in 1 / input units; `weights` (D,); `centre` may be negative (see `Quadrature`).
    `reflected`: each frequency stands for itself and its negative, with half the squared weight each; the same
    thing where g is even. `log_density` (D,) is that of the law they come from, None where there is no density.
    """

    transform: Transform
    weights: FloatArray
    centre: float = 0.0
    reflected: bool = False
    log_density: FloatArray | None = None

    @property
    def omega(self) -> FloatArray:
        """omega (D, d) written out, whatever the transform."""
        return self.transform.dense()


def uniform(D: int) -> FloatArray:
    """Weights of a plain mean over D frequencies."""
    return np.full(D, 1.0 / np.sqrt(D))


class Sampler(ABC):
    """Draws the frequencies of an operator kernel. They depend on the arguments of `draw` alone."""

    @property
    def reflected(self) -> bool:
        """Whether each frequency is used together with its negative (see `features.projected` for the columns)."""
        return False

    @property
    def centred(self) -> bool:
        """Whether the rule has a weight for omega = 0."""
        return False

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The sampler in the grammar of JOB.yaml."""

    @abstractmethod
    def draw(self, kernel: OperatorKernel, *, d: int, p: int, count: int, seed: int) -> Frequencies:
        """`size(d, count)` frequencies. Raises InputError for a kernel that this sampler has no rule for."""

    @abstractmethod
    def check(self, kernel: OperatorKernel, d: int, p: int) -> None:
        """Does nothing if `draw` has a rule for the kernel, else raises the InputError that says why not."""

    def size(self, d: int, count: int) -> int:
        """How many frequencies come for a ceiling of `count`."""
        return count

    @abstractmethod
    def numbers(self, d: int, count: int) -> int:
        """How many numbers (of 8 bytes) the transform of `count` frequencies holds."""

    @abstractmethod
    def flops(self, d: int, count: int) -> float:
        """Floating-point operations of the transform of one row."""

    @final
    def recipe(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> list[dict[str, Any]]:
        """All of the kernel that the frequencies depend on: scalar kernels, measures and counts."""
        laws = laws_of(kernel, d, p)
        counts = _apportion([share for _, _, share in laws], count)
        return [
            {"scalar": scalar.config(), "measure": str(measure), "count": size}
            for (scalar, measure, _), size in zip(laws, counts, strict=True)
        ]


class DenseSampler(Sampler):
    """Frequencies with a density, written out: any sum of kernels, any measure that the kernels have."""

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        """`check` of one law."""
        law.draw(np.random.default_rng(0), 1, d, measure)  # the measure exists

    @final
    def check(self, kernel: OperatorKernel, d: int, p: int) -> None:
        for scalar, measure, _ in laws_of(kernel, d, p):
            self.accept(spectrum(scalar), measure, d)

    @abstractmethod
    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        """`count` frequencies (count, d) of one law."""

    def numbers(self, d: int, count: int) -> int:
        return 2 * count * d

    def flops(self, d: int, count: int) -> float:
        return 2.0 * count * d

    @final
    def draw(self, kernel: OperatorKernel, *, d: int, p: int, count: int, seed: int) -> Frequencies:
        """A sum draws from the mixture of its terms' measures, in shares tr k_i(0) rounded to whole frequencies
        (Minh 2016, eq. 58-59), and the density is that of the shares actually used, so that the estimate of
        the kernel stays unbiased whatever the rounding.
        """
        self.check(kernel, d, p)
        rng = np.random.default_rng(seed)
        laws = laws_of(kernel, d, p)
        counts = _apportion([share for _, _, share in laws], count)
        parts, log_densities = [], []
        for (scalar, measure, _), size in zip(laws, counts, strict=True):
            parts.append(self.omega(rng, spectrum(scalar), measure, size, d))
        omega = np.concatenate(parts)
        if len(laws) > 1:
            omega = omega[rng.permutation(count)]
        for (scalar, measure, _), size in zip(laws, counts, strict=True):
            log_densities.append(np.log(size / count) + spectrum(scalar).log_density(omega, measure))
        transform = Dense(np.ascontiguousarray(omega))
        return Frequencies(transform, uniform(count), log_density=np.logaddexp.reduce(log_densities, axis=0))


class RuleSampler(Sampler):
    """A rule for one rotation-invariant law, which needs no density; decomposable kernels of one scalar kernel."""

    @abstractmethod
    def rule(self, rng: np.random.Generator, law: Isotropic, count: int, d: int) -> Frequencies:
        """The frequencies of one law, `size(d, count)` of them."""

    def accept(self, law: Isotropic, d: int) -> None:
        """`check` of the law."""

    @final
    def check(self, kernel: OperatorKernel, d: int, p: int) -> None:
        self._law(kernel, d, p)

    @final
    def draw(self, kernel: OperatorKernel, *, d: int, p: int, count: int, seed: int) -> Frequencies:
        return self.rule(np.random.default_rng(seed), self._law(kernel, d, p), count, d)

    def _law(self, kernel: OperatorKernel, d: int, p: int) -> Isotropic:
        laws, name = laws_of(kernel, d, p), self.config()["type"]
        if len(laws) > 1 or not all(isinstance(base, Decomposable) for _, base in kernel.terms()):
            raise InputError(
                f"sampler: {name} draws for decomposable kernels of one scalar kernel, not for sums of several or "
                "vector-field kernels; use iid, orthogonal or qmc"
            )
        law = isotropic(laws[0][0], name)
        self.accept(law, d)
        return law


def laws_of(kernel: OperatorKernel, d: int, p: int) -> list[tuple[ScalarKernel, Measure, float]]:
    """The distinct (scalar kernel, measure) pairs of the kernel's terms, in order, with their shares."""
    shares: dict[tuple[ScalarKernel, Measure], float] = {}
    for weight, base in kernel.terms():
        key = (base.scalar, base.measure)
        shares[key] = shares.get(key, 0.0) + weight * base.trace(d, p)
    return [(scalar, measure, share) for (scalar, measure), share in shares.items() if share > 0]


def spectrum(scalar: ScalarKernel) -> Spectral:
    """The law that frequencies of a scalar kernel have: its own, or N(0, I) for an expectation over N(0, I)."""
    if isinstance(scalar, GaussianWeighted):
        return Gaussian(1.0)
    if isinstance(scalar, Spectral):
        return scalar
    raise InputError(f"{type(scalar).__name__} has no frequencies to draw; it brings features of its own")


def isotropic(scalar: ScalarKernel, sampler: str) -> Isotropic:
    """The law of a scalar kernel where it is rotation-invariant, else InputError."""
    law = spectrum(scalar)
    if not isinstance(law, Isotropic):
        raise InputError(
            f"sampler: {sampler} needs a spectrum that no rotation changes; that of {type(scalar).__name__} is not "
            "such a one: use iid or qmc"
        )
    return law


def _apportion(shares: list[float], count: int) -> list[int]:
    """Whole counts that sum to `count`, nearest to the shares (largest remainders), at least one each."""
    if count < len(shares):
        raise InputError(
            f"n_features gives {count} frequencies, but the kernel's sum needs at least one for each of its "
            f"{len(shares)} spectra; raise n_features to {2 * len(shares)} or more"
        )
    exact = np.asarray(shares) / np.sum(shares) * (count - len(shares))
    whole = np.floor(exact).astype(int)
    rest = count - len(shares) - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return [int(size) + 1 for size in whole]
