"""Frequencies drawn one by one or row by row: IID, orthogonal, quasi-Monte Carlo, sub-sampled Gauss-Hermite grids; and
from products of diagonal and Walsh-Hadamard matrices: SORF, ROM, Fastfood.

The latter pad inputs with zeros to n, the next power of two: the kernel on R^d is the one on R^n, restricted. A block
gives n frequencies and holds O(n) numbers; a row costs O(n log n)."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Final, final

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from dorff.errors import InputError
from dorff.frequencies.base import DenseSampler, Frequencies, Law, Sampler, isotropic, unbounded, uniform
from dorff.frequencies.landmarks import Landmarks, LandmarksSpec
from dorff.frequencies.lattice import Lattice, LatticeSpec
from dorff.frequencies.paths import Paths, PathsSpec
from dorff.frequencies.transforms import HADAMARD_FROM, Dense, HadamardChain, settled
from dorff.kernels import FloatArray, Gaussian, Isotropic, Measure, Spectral
from dorff.kernels.scalar import IntArray, whole
from dorff.spec.part import OneOf, Typed, within
from dorff.spec.registry import SAMPLERS, Entry

TOGETHER: Final = 2**12  # numbers of small frames that are drawn at once


def directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Independent unit vectors (count, d), uniform on the sphere."""
    normals = rng.standard_normal((count, d))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return normals


def frame(rng: np.random.Generator, rows: int, d: int, *several: int) -> FloatArray:
    """The first `rows` of Haar-distributed orthogonal matrices, (*several, rows, d), rows at most d."""
    factor, upper = np.linalg.qr(rng.standard_normal((*several, d, rows)))
    # QR alone is not Haar: the signs of R's diagonal must be undone (Mezzadri 2007).
    factor *= np.sign(np.diagonal(upper, axis1=-2, axis2=-1))[..., None, :]
    return np.asarray(np.swapaxes(factor, -1, -2))


def orthogonal_directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Unit vectors (count, d) in Haar-orthogonal blocks of d, the last one cut."""
    found, (blocks, rest), several = np.empty((count, d)), divmod(count, d), max(1, TOGETHER // d**2)
    for start in range(0, blocks, several):
        some = min(several, blocks - start)
        found[start * d : (start + some) * d] = frame(rng, d, d, some).reshape(-1, d)
    found[count - rest :] = frame(rng, rest, d)
    return found


def frame_numbers(count: int, d: int) -> int:
    """Numbers that drawing `count` rows of frames takes beside what comes out: the normals, their factors, a copy."""
    return 4 * max(TOGETHER, d * min(d, count))


class IID(DenseSampler):
    """Independent frequencies (Rahimi & Recht 2007); the G of Munkhoeva et al. (2018). Unbiased."""

    kind = "iid"

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        return law.draw(rng, count, d, measure)


class Orthogonal(DenseSampler):
    """Haar-orthogonal blocks of d directions, radii by row (Yu et al. 2016). Unbiased; for laws no rotation alters."""

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
    """A low-discrepancy sequence through the law's quantiles (Yang et al. 2014), for every kernel and measure.
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
            problem = f"qmc: Sobol's sequence ends at {qmc.Sobol.MAXDIM} dimensions, this needs {law.dims(d, measure)}"
            raise InputError(f"sampler: {problem}; set sequence: halton, or use orthogonal")

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
    `points` nodes an axis. A grid of no more nodes than asked for is taken whole, with its weights. Biased as the grid
    is: exact for polynomials up to degree 2 points - 1 in each input, good for distances up to about 2 sqrt(points)
    length-scales an input. For Gaussian kernels and expectations over N(0, I)."""

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
            problem = f"gauss_quadrature has nodes for normal frequencies only, not for those of {type(law).__name__}"
            raise InputError(f"sampler: {problem}; use quadrature or orthogonal")
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


def padded(d: int) -> int:
    """The power of two that d inputs are padded to."""
    return 1 << max(d - 1, 0).bit_length()


class _HadamardSampler(Sampler):
    """What the three share: blocks of n rows, all of every block but the last one's remainder. Where psi depends on
    the frequency a row's first d entries are made a direction in R^d, for a radius of the measure: no other law has
    the measure's density, which psi is weighed by. Rows without any entry are left out."""

    blocks: int = 3  #: diagonal and Hadamard matrices in a block; a permutation counts as one more

    @abstractmethod
    def directions(self, rng: np.random.Generator, count: int, d: int) -> HadamardChain:
        """The first `count` rows of blocks, unit vectors in R^n, not stretched."""

    def radii(self, rng: np.random.Generator, law: Isotropic, count: int, n: int) -> FloatArray:
        """What the rows are multiplied by where psi is the same for all."""
        return law.radii(rng, count, n, Measure.UNBOUNDED)

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        isotropic(law, measure, self.kind)

    @final
    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        spectrum, n = isotropic(law.spectrum, law.measure, self.kind), padded(d)
        if law.weighed:
            chain = with_an_entry(self.directions(rng, count if n == d else -(-count // d) * n, d), count)
            radii = spectrum.radii(rng, count, d, law.measure)
        else:
            chain = self.directions(rng, count, d)
            radii = self.radii(rng, spectrum, count, n)
        chain = replace(chain, stretch=spectrum.stretch(d), gains=chain.gains * radii)
        return Frequencies(settled(chain, HADAMARD_FROM), uniform(count))

    def numbers(self, d: int, count: int) -> int:
        n = padded(d)
        return (self.blocks + 2) * -(-count // n) * n + d if d >= HADAMARD_FROM else super().numbers(d, count)

    def flops(self, d: int, count: int) -> float:
        n = padded(d)
        return self.blocks * -(-count // n) * n * (2 + math.log2(n)) if d >= HADAMARD_FROM else super().flops(d, count)


class _Rademacher(_HadamardSampler):
    """H D_k ... H D_1 / n^(k/2). The radius is fixed where the law has a typical one, sqrt(n) for the Gaussian, and
    psi is the same for all frequencies: weights that depend on the radius have the wrong mean on a sphere."""

    def radii(self, rng: np.random.Generator, law: Isotropic, count: int, n: int) -> FloatArray:
        typical = law.typical_radius(n)
        return super().radii(rng, law, count, n) if typical is None else np.full(count, typical)

    @final
    def _chain(self, rng: np.random.Generator, rows: IntArray, d: int) -> HadamardChain:
        n = padded(d)
        diagonals = _signs(rng, -(-len(rows) // n), self.blocks, n)
        none = np.empty((len(diagonals), 0), dtype=np.int32)
        return HadamardChain(np.ones(d), diagonals, none, rows, np.full(len(rows), n ** (-self.blocks / 2)))


def _signs(rng: np.random.Generator, *shape: int) -> FloatArray:
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def with_an_entry(chain: HadamardChain, count: int) -> HadamardChain:
    """The first `count` rows that have an entry within the d inputs, made unit vectors in R^d. At least d of a block's
    n rows have one, since its first d columns are independent."""
    squared, step = np.zeros(chain.D), 16
    out = np.empty((step, chain.D))
    for start in range(0, chain.d, step):
        axes = np.eye(min(step, chain.d - start), chain.d, start)
        chain.project(axes, out[: len(axes)])
        squared += np.sum(out[: len(axes)] ** 2, axis=0)
    kept = np.flatnonzero(squared > 1e-20)[:count]  # the entries are sums of signs: zero, or not small at all
    rows, gains = chain.rows[kept], chain.gains[kept] / np.sqrt(squared[kept])
    blocks = slice(int(rows[-1]) // chain.diagonals.shape[2] + 1)
    diagonals, permutation = chain.diagonals[blocks], chain.permutation[blocks]
    return replace(chain, diagonals=diagonals, permutation=permutation, rows=rows, gains=gains)


class SORF(_Rademacher):
    """sqrt(n) (H D3)(H D2)(H D1), H the orthonormal Hadamard matrix, D random signs (Yu et al. 2016, section 5).
    Always three factors, and the first rows of the last block. Biased, most at small d: directions are not uniform,
    and the Gaussian's radius is fixed at sqrt(n). Kernels with another radial law, and all whose weights depend on the
    frequency (vector fields under every measure, spectral densities), have random radii. At d = 3, over distances up
    to a length-scale, the mean of a Gaussian's gram is 2% off, curl-free 12%, Matern curl-free (nu = 3.5) 21%."""

    kind = "sorf"

    def directions(self, rng: np.random.Generator, count: int, d: int) -> HadamardChain:
        return self._chain(rng, np.arange(count), d)


class ROMSpec(Typed):
    """Products of `blocks` sign-diagonal and Hadamard matrices."""

    blocks: Annotated[int, within(1, 16)] = 3


@dataclass(frozen=True)
class ROM(_Rademacher):
    """sqrt(n) prod_{i <= blocks} H D_i: the S-Rademacher matrices of Choromanski, Rowland & Weller (2017). Differs
    from SORF in two ways: `blocks` is free, and a part of a block takes random rows, without replacement, rather than
    the first ones. With three blocks and a whole number of n rows the two have the same law. Biased in the same way;
    where the radius is fixed the bias falls with `blocks` only at first."""

    blocks: int = 3
    kind = "rom"

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", whole("blocks", self.blocks, 1, 16))

    def directions(self, rng: np.random.Generator, count: int, d: int) -> HadamardChain:
        return self._chain(rng, some_rows(rng, padded(d), count), d)


class Fastfood(_HadamardSampler):
    """S H G P H B / sqrt(n) (Le, Sarlos & Smola 2013; Oono's note, eq. 6.17). B random signs, P a random permutation,
    G standard normals, and S the radii chi(n) divided by |G|_F (the note prints |G|_F^(-1/2), and n as S). Unbiased:
    given B and P, a row is normal; rows of one block are correlated."""

    kind = "fastfood"

    def directions(self, rng: np.random.Generator, count: int, d: int) -> HadamardChain:
        n = padded(d)
        B = -(-count // n)
        diagonals = np.stack([_signs(rng, B, n), rng.standard_normal((B, n))], axis=1)
        permutation = np.array([rng.permutation(n) for _ in range(B)], dtype=np.int32)
        rows = np.arange(count)
        lengths = np.linalg.norm(diagonals[:, 1], axis=1)[rows // n] * math.sqrt(n)
        return HadamardChain(np.ones(d), diagonals, permutation, rows, 1 / lengths)


def some_rows(rng: np.random.Generator, width: int, count: int) -> IntArray:
    """`count` rows of stacked blocks of `width`: whole blocks, then a random part of one more, in order."""
    whole = count // width * width
    part = np.sort(rng.permutation(width)[: count - whole])
    return np.concatenate([np.arange(whole), whole + part])


SAMPLERS.add(
    Entry("orthogonal", Orthogonal, source="Yu et al. 2016"),
    Entry("iid", IID, source="Rahimi & Recht 2007"),
    Entry("sorf", SORF, source="Yu et al. 2016"),
    Entry("rom", ROM, ROMSpec, source="Choromanski, Rowland & Weller 2017"),
    Entry("fastfood", Fastfood, source="Le, Sarlos & Smola 2013"),
    Entry("qmc", QMC, QMCSpec, source="Yang, Sindhwani, Avron & Mahoney 2014"),
    Entry("gauss_quadrature", GaussQuadrature, GaussQuadratureSpec, source="Dao, De Sa & Re 2017"),
    Entry("paths", Paths, PathsSpec, source="Daniely, Frostig, Gupta & Singer 2017"),
    Entry("lattice", Lattice, LatticeSpec, source="Greengard, Rachh & Barnett 2025"),
    Entry("landmarks", Landmarks, LandmarksSpec, source="Williams & Seeger 2001"),
)
