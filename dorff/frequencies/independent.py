"""IID and orthogonal frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.frequencies.base import DenseSampler, isotropic
from dorff.kernels import Measure, Spectral
from dorff.kernels.scalar import FloatArray


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
    rotated: FloatArray = factor.T
    return rotated


def orthogonal_directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Unit vectors (count, d) in Haar-orthogonal blocks of d, the last one cut."""
    found = np.empty((count, d))
    for start in range(0, count, d):
        found[start : start + d] = frame(rng, min(d, count - start), d)
    return found


def frame_numbers(count: int, d: int) -> int:
    """Numbers that drawing `count` rows of frames takes beside what comes out: the normals, their factors, a copy."""
    return 4 * d * min(d, count)


@final
@dataclass(frozen=True)
class IID(DenseSampler):
    """Independent frequencies (Rahimi & Recht 2007); the G of Munkhoeva et al. (2018). Unbiased."""

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        return law.draw(rng, count, d, measure)

    def config(self) -> dict[str, Any]:
        return {"type": "iid"}


@final
@dataclass(frozen=True)
class Orthogonal(DenseSampler):
    """Haar-orthogonal blocks of d directions, a radius of its own for each row (Yu et al. 2016; the Gort of
    Munkhoeva et al. 2018). Unbiased; for laws that no rotation changes.
    """

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        isotropic(law, measure, "orthogonal")

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        law = isotropic(law, measure, "orthogonal")
        radii = law.radii(rng, count, d, measure)
        return orthogonal_directions(rng, count, d) * radii[:, None] * law.stretch(d)

    def numbers(self, d: int, count: int) -> int:
        return super().numbers(d, count) + frame_numbers(count, d)

    def config(self) -> dict[str, Any]:
        return {"type": "orthogonal"}
