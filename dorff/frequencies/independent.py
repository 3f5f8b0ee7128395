"""Frequencies drawn one by one or row by row: IID, orthogonal, quasi-Monte Carlo, sub-sampled Gauss-Hermite grids."""

from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from dorff.errors import InputError
from dorff.frequencies.base import DenseSampler, Law, Sampler, isotropic, unbounded
from dorff.frequencies.transforms import Dense, Frequencies, uniform
from dorff.kernels import FloatArray, Gaussian, Measure, Spectral, whole
from dorff.spec.part import OneOf, Typed, within


def directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Independent unit vectors (count, d), uniform on the sphere."""
    normals = rng.standard_normal((count, d))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return normals


def frame(rng: np.random.Generator, rows: int, d: int) -> FloatArray:
    """The first `rows` of a Haar-distributed orthogonal matrix, (rows, d), rows at most d."""
    factor, upper = np.linalg.qr(rng.standard_normal((d, rows)))
    # QR alone is not Haar: the signs of R's diagonal must be undone (Mezzadri 2007).
    factor *= np.sign(np.diag(upper))
    return np.asarray(factor.T)


def orthogonal_directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Unit vectors (count, d) in Haar-orthogonal blocks of d, the last one cut."""
    found = np.empty((count, d))
    for start in range(0, count, d):
        found[start : start + d] = frame(rng, min(d, count - start), d)
    return found


def frame_numbers(count: int, d: int) -> int:
    """Numbers that drawing `count` rows of frames takes beside what comes out: the normals, their factors, a copy."""
    return 4 * d * min(d, count)


@dataclass(frozen=True)
class IID(DenseSampler):
    """Independent frequencies (Rahimi & Recht 2007); the G of Munkhoeva et al. (2018). Unbiased."""

    kind = "iid"

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        return law.draw(rng, count, d, measure)


@dataclass(frozen=True)
class Orthogonal(DenseSampler):
    """Haar-orthogonal blocks of d directions, a radius of its own for each row (Yu et al. 2016; the Gort of
    Munkhoeva et al. 2018). Unbiased; for laws that no rotation changes."""

    kind = "orthogonal"

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        isotropic(law, measure, "orthogonal")

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        law = isotropic(law, measure, "orthogonal")
        radii = law.radii(rng, count, d, measure)
        return orthogonal_directions(rng, count, d) * radii[:, None] * law.stretch(d)

    def numbers(self, d: int, count: int) -> int:
        return super().numbers(d, count) + frame_numbers(count, d)


class QMCSpec(Typed):
    """A low-discrepancy sequence. Without scrambling the kernel's estimate is biased."""

    sequence: Annotated[str, OneOf("sobol", "halton")] = "sobol"
    scramble: bool = True


@dataclass(frozen=True)
class QMC(DenseSampler):
    """A low-discrepancy sequence sent through the inverse of the law's distribution function (Yang, Sindhwani,
    Avron & Mahoney 2014), for every kernel and measure.

    `sequence` "sobol" or "halton". Scrambled, it is random and unbiased (Owen 1997); else the same, and biased."""

    sequence: str = "sobol"
    scramble: bool = True
    kind = "qmc"

    def __post_init__(self) -> None:
        if self.sequence not in ("sobol", "halton"):
            raise InputError(f"sequence must be 'sobol' or 'halton', not {self.sequence!r}")
        if not isinstance(self.scramble, bool):
            raise InputError(f"scramble must be True or False, not {self.scramble!r}")

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        from scipy.stats import qmc  # large, and only this sampler needs it

        if self.sequence == "sobol" and law.dims(d, measure) > qmc.Sobol.MAXDIM:
            raise InputError(
                f"sampler: qmc: Sobol's sequence ends at {qmc.Sobol.MAXDIM} dimensions, this needs "
                f"{law.dims(d, measure)}; set sequence: halton, or use orthogonal"
            )

    def seeded(self, d: int, count: int) -> bool:
        return self.scramble

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        from scipy.stats import qmc

        kind = qmc.Sobol if self.sequence == "sobol" else qmc.Halton
        points = kind(law.dims(d, measure), scramble=self.scramble, rng=rng)
        if not self.scramble:
            points.fast_forward(1)  # past the origin, which is no frequency
        if self.sequence == "sobol" and self.scramble:
            # Whole powers of two are balanced; of fewer the first ones are taken.
            u = points.random_base2(max(count - 1, 0).bit_length())[:count]
        else:
            u = points.random(count)
        return law.quantiles(np.clip(u, 2.0**-53, 1 - 2.0**-53), d, measure)


class GaussQuadratureSpec(Typed):
    """A sub-sampled Gauss-Hermite grid of `points` nodes an axis."""

    points: Annotated[int, within(2, 64)] = 8


@dataclass(frozen=True)
class GaussQuadrature(Sampler):
    """Nodes of the product Gauss-Hermite grid, drawn with its weights as probabilities (Dao, De Sa & Re 2017).

    `points` nodes an axis. A grid of no more nodes than asked for is taken whole, with its weights. Biased as the
    grid is: exact for polynomials up to degree 2 points - 1 in each input, good for distances up to about
    2 sqrt(points) length-scales an input. For Gaussian kernels and expectations over N(0, I)."""

    points: int = 8
    kind = "gauss_quadrature"

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", whole("points", self.points, 2, 64))

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
