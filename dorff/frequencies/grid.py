"""Sub-sampled dense grids of Gauss-Hermite nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, final

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from dorff.errors import InputError
from dorff.frequencies.base import Law, RuleSampler, isotropic, unbounded
from dorff.frequencies.found import Frequencies, uniform
from dorff.frequencies.transforms import Dense
from dorff.kernels import Gaussian, Measure, Spectral
from dorff.spec.part import Typed, within


class GaussQuadratureSpec(Typed):
    """A sub-sampled Gauss-Hermite grid of `points` nodes an axis."""

    points: Annotated[int, within(2, 64)] = 8


@final
@dataclass(frozen=True)
class GaussQuadrature(RuleSampler):
    """Nodes of the product Gauss-Hermite grid, drawn with its weights as probabilities (Dao, De Sa & Re 2017).

    `points` nodes an axis. A grid of no more nodes than asked for is taken whole, with its weights. Biased as the
    grid is: exact for polynomials up to degree 2 points - 1 in each input, good for distances up to about
    2 sqrt(points) length-scales an input. For Gaussian kernels and expectations over N(0, I).
    """

    points: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.points, int) or isinstance(self.points, bool) or not 2 <= self.points <= 64:
            raise InputError(f"points must be a whole number from 2 to 64, not {self.points!r}")

    def size(self, d: int, count: int) -> int:
        return count if self.seeded(d, count) else self.points**d

    def seeded(self, d: int, count: int) -> bool:
        return d > 64 or self.points**d > count

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        if not isinstance(isotropic(law, measure, "gauss_quadrature"), Gaussian):
            raise InputError(
                f"sampler: gauss_quadrature has nodes for normal frequencies only, not for those of "
                f"{type(law).__name__}; use quadrature or orthogonal"
            )
        unbounded(measure, "gauss_quadrature")

    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        nodes, mass = hermegauss(self.points)
        mass = mass / mass.sum()
        D = self.size(d, count)
        if not self.seeded(d, D):
            omega = np.array(list(product(nodes, repeat=d)))
            weights = np.sqrt(np.prod(np.array(list(product(mass, repeat=d))), axis=1))
        else:
            omega, weights = rng.choice(nodes, size=(D, d), p=mass), uniform(D)
        return Frequencies(Dense(omega * law.spectrum.stretch(d)), weights)

    def config(self) -> dict[str, Any]:
        return {"type": "gauss_quadrature", "points": self.points}

    def numbers(self, d: int, count: int) -> int:
        return 2 * self.size(d, count) * d

    def flops(self, d: int, count: int) -> float:
        return 2.0 * self.size(d, count) * d
