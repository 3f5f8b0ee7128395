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


def rotations(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Independent Haar-distributed orthogonal matrices (count, d, d)."""
    factors, uppers = np.linalg.qr(rng.standard_normal((count, d, d)))
    # QR alone is not Haar: the signs of R's diagonal must be undone (Mezzadri 2007).
    haar: FloatArray = (factors * np.sign(np.diagonal(uppers, axis1=1, axis2=2))[:, None, :]).transpose(0, 2, 1)
    return haar


def orthogonal_directions(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """Unit vectors (count, d) in Haar-orthogonal blocks of d, the last one cut."""
    return rotations(rng, -(-count // d), d).reshape(-1, d)[:count]


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
    Munkhoeva et al. 2018). Unbiased; for kernels whose spectrum no rotation changes.
    """

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        super().accept(isotropic(law, "orthogonal"), measure, d)

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        law = isotropic(law, "orthogonal")
        radii = law.radii(rng, count, d, measure)
        return orthogonal_directions(rng, count, d) * radii[:, None] * law.stretch(d)

    def config(self) -> dict[str, Any]:
        return {"type": "orthogonal"}
