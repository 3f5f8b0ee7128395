"""Frequencies from products of diagonal and Walsh-Hadamard matrices: SORF, ROM, Fastfood.

Inputs are padded with zeros to n, the next power of two: the kernel on R^d is the one on R^n, restricted. A block
gives n frequencies and holds O(n) numbers; a row costs O(n log n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.base import Frequencies, RuleSampler, uniform
from dorff.frequencies.transforms import HADAMARD_FROM, HadamardChain, IntArray, settled
from dorff.kernels import Isotropic, Measure
from dorff.kernels.scalar import FloatArray


def padded(d: int) -> int:
    """The power of two that d inputs are padded to."""
    return 1 << max(d - 1, 0).bit_length()


class _HadamardSampler(RuleSampler):
    """What the three share: blocks of n rows, all of every block but the last one's remainder."""

    def factors(self) -> int:
        """Diagonal and Hadamard matrices in a block; a permutation counts as one more."""
        return 3

    def numbers(self, d: int, count: int) -> int:
        n = padded(d)
        return (self.factors() + 2) * -(-count // n) * n + d if d >= HADAMARD_FROM else 2 * count * d

    def flops(self, d: int, count: int) -> float:
        n = padded(d)
        if d < HADAMARD_FROM:
            return 2.0 * count * d
        return self.factors() * -(-count // n) * n * (2 + math.log2(n))


def _signs(rng: np.random.Generator, *shape: int) -> FloatArray:
    return np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def _fixed_or_drawn(rng: np.random.Generator, law: Isotropic, count: int, n: int) -> FloatArray:
    """The law's one typical radius where it has one (sqrt(n) for the Gaussian), else radii drawn from the law."""
    typical = law.typical_radius(n)
    return law.radii(rng, count, n, Measure.UNBOUNDED) if typical is None else np.full(count, typical)


def _signed_chain(
    rng: np.random.Generator, law: Isotropic, blocks: int, rows: IntArray, d: int
) -> Frequencies:  # H D_k ... H D_1
    n, count = padded(d), len(rows)
    diagonals = _signs(rng, -(-count // n), blocks, n)
    gains = _fixed_or_drawn(rng, law, count, n) * n ** (-blocks / 2)
    none = np.empty((len(diagonals), 0), dtype=np.int32)
    chain = HadamardChain(law.stretch(d), diagonals, none, rows, gains)
    return Frequencies(settled(chain, HADAMARD_FROM), uniform(count))


@final
@dataclass(frozen=True)
class SORF(_HadamardSampler):
    """sqrt(n) (H D3)(H D2)(H D1), H the orthonormal Hadamard matrix, D random signs (Yu et al. 2016, section 5).

    Always three factors, and the first rows of the last block. Biased, most at small d: directions are not uniform,
    and the Gaussian's radius is fixed at sqrt(n). Kernels with another radial law keep their random radii.
    """

    def rule(self, rng: np.random.Generator, law: Isotropic, count: int, d: int) -> Frequencies:
        return _signed_chain(rng, law, 3, np.arange(count), d)

    def config(self) -> dict[str, Any]:
        return {"type": "sorf"}


@final
@dataclass(frozen=True)
class ROM(_HadamardSampler):
    """Random orthogonal matrices sqrt(n) prod_{i <= blocks} H D_i: the S-Rademacher ones of Choromanski, Rowland &
    Weller (2017).

    Differs from SORF in two ways: `blocks` is free, and a part of a block takes random rows, without replacement,
    rather than the first ones. With three blocks and a whole number of n rows the two have the same law. Biased in
    the same way; the bias falls with `blocks` only at first, since the radius stays fixed.
    """

    blocks: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, int) or isinstance(self.blocks, bool) or not 1 <= self.blocks <= 16:
            raise InputError(f"blocks must be a whole number from 1 to 16, not {self.blocks!r}")

    def rule(self, rng: np.random.Generator, law: Isotropic, count: int, d: int) -> Frequencies:
        return _signed_chain(rng, law, self.blocks, some_rows(rng, padded(d), count), d)

    def factors(self) -> int:
        return self.blocks

    def config(self) -> dict[str, Any]:
        return {"type": "rom", "blocks": self.blocks}


@final
@dataclass(frozen=True)
class Fastfood(_HadamardSampler):
    """S H G P H B / sqrt(n) (Le, Sarlos & Smola 2013; Oono's note, eq. 6.17).

    B random signs, P a random permutation, G standard normals, and S the radii chi(n) divided by |G|_F (the note
    prints |G|_F^(-1/2), and n as S). Unbiased: given B and P, a row of H G P H B is normal, so its direction is
    uniform; rows of one block are correlated.
    """

    def rule(self, rng: np.random.Generator, law: Isotropic, count: int, d: int) -> Frequencies:
        n = padded(d)
        B = -(-count // n)
        diagonals = np.stack([_signs(rng, B, n), rng.standard_normal((B, n))], axis=1)
        permutation = np.array([rng.permutation(n) for _ in range(B)], dtype=np.int32)
        rows = np.arange(count)
        lengths = np.linalg.norm(diagonals[:, 1], axis=1)[rows // n] * math.sqrt(n)
        gains = law.radii(rng, count, n, Measure.UNBOUNDED) / lengths
        chain = HadamardChain(law.stretch(d), diagonals, permutation, rows, gains)
        return Frequencies(settled(chain, HADAMARD_FROM), uniform(count))

    def config(self) -> dict[str, Any]:
        return {"type": "fastfood"}


def some_rows(rng: np.random.Generator, width: int, count: int) -> IntArray:
    """`count` rows of stacked blocks of `width`: whole blocks, then a random part of one more, in order."""
    whole = count // width * width
    part = np.sort(rng.permutation(width)[: count - whole])
    return np.concatenate([np.arange(whole), whole + part])
