"""Samplers: a kernel, d, a count and a seed in, frequencies and the log density they were drawn from out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels import BaseKernel, Measure, OperatorKernel, ScalarKernel
from dorff.kernels.scalar import FloatArray


@final
@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies omega (D, d), in 1 / input units, and the log (D,) of the density they come from."""

    omega: FloatArray
    log_density: FloatArray


class Sampler(ABC):
    """Draws frequencies whose directions follow a rule; radii always follow the kernel's own law."""

    @abstractmethod
    def directions(self, rng: np.random.Generator, count: int, d: int) -> FloatArray:
        """Unit vectors (count, d), each uniform on the sphere."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The sampler in the grammar of JOB.yaml."""

    @final
    def recipe(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> list[dict[str, Any]]:
        """All of the kernel that the frequencies depend on: scalar kernels, measures and counts."""
        laws = _laws(kernel, d, p)
        counts = _apportion([share for _, _, share in laws], count)
        return [
            {"scalar": scalar.config(), "measure": str(measure), "count": size}
            for (scalar, measure, _), size in zip(laws, counts, strict=True)
        ]

    @final
    def draw(self, kernel: OperatorKernel, *, d: int, p: int, count: int, seed: int) -> Frequencies:
        """`count` frequencies for the kernel; they depend on the arguments alone.

        A sum draws from the mixture of its terms' measures, in shares tr k_i(0) rounded to whole frequencies
        (Minh 2016, eq. 58-59), and the density is that of the shares actually used, so that the estimate of
        the kernel stays unbiased whatever the rounding.
        """
        rng = np.random.default_rng(seed)
        laws = _laws(kernel, d, p)
        counts = _apportion([share for _, _, share in laws], count)
        parts, log_densities = [], []
        for (scalar, measure, _), size in zip(laws, counts, strict=True):
            radii = scalar.radii(rng, size, d, measure)
            parts.append(self.directions(rng, size, d) * radii[:, None] * scalar.stretch(d))
        omega = np.concatenate(parts)
        if len(laws) > 1:
            omega = omega[rng.permutation(count)]
        for (scalar, measure, _), size in zip(laws, counts, strict=True):
            if size:
                log_densities.append(np.log(size / count) + scalar.log_density(omega, measure))
        return Frequencies(np.ascontiguousarray(omega), np.logaddexp.reduce(log_densities, axis=0))


def _laws(kernel: OperatorKernel, d: int, p: int) -> list[tuple[ScalarKernel, Measure, float]]:
    """The distinct (scalar kernel, measure) pairs of the kernel's terms, in order, with their shares."""
    shares: dict[tuple[ScalarKernel, Measure], float] = {}
    for weight, term in kernel.terms():
        base: BaseKernel = term
        key = (base.scalar, base.measure)
        shares[key] = shares.get(key, 0.0) + weight * base.trace(d, p)
    return [(scalar, measure, share) for (scalar, measure), share in shares.items() if share > 0]


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
