"""IID and orthogonal frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff.frequencies.base import Sampler
from dorff.kernels.scalar import FloatArray


@final
@dataclass(frozen=True)
class IID(Sampler):
    """Independent frequencies (Rahimi & Recht 2007)."""

    def directions(self, rng: np.random.Generator, count: int, d: int) -> FloatArray:
        normals = rng.standard_normal((count, d))
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        return normals

    def config(self) -> dict[str, Any]:
        return {"type": "iid"}


@final
@dataclass(frozen=True)
class Orthogonal(Sampler):
    """Haar-orthogonal blocks of d directions, a radius of its own for each row (Yu et al. 2016; unbiased)."""

    def directions(self, rng: np.random.Generator, count: int, d: int) -> FloatArray:
        blocks = []
        for start in range(0, count, d):
            factor, upper = np.linalg.qr(rng.standard_normal((d, d)))
            # QR alone is not Haar: the signs of R's diagonal must be undone (Mezzadri 2007).
            blocks.append((factor * np.sign(np.diag(upper))).T[: count - start])
        return np.concatenate(blocks) if blocks else np.empty((0, d))

    def config(self) -> dict[str, Any]:
        return {"type": "orthogonal"}
