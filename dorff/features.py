"""FeatureMap: a block of inputs in, a block of scalar features out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from dorff.kernels.scalar import FloatArray
from dorff.loops import trig_pairs

TILE_ROWS = 256


@final
@dataclass(frozen=True, eq=False)
class FeatureMap:
    """F = [cos(Xs omega^T) | sin(Xs omega^T)] / sqrt(D), Xs = (X - center) / scale; m = 2D columns.

    Centring moves no kernel value; it keeps the projections small, so that their digits are good.
    omega (D, d); center and scale (d,), in the inputs' units.
    """

    omega: FloatArray
    center: FloatArray
    scale: FloatArray

    @property
    def m(self) -> int:
        return 2 * len(self.omega)

    @cached_property
    def _transposed(self) -> FloatArray:
        return np.ascontiguousarray(self.omega.T)

    def _scaled(self, X: FloatArray) -> FloatArray:
        scaled: FloatArray = X - self.center
        scaled /= self.scale
        return scaled

    def __call__(self, X: FloatArray, out: FloatArray, work: FloatArray) -> None:
        """Write F for X (n, d) into the first m columns of `out` (n, >= m).

        `work` (k, D) is overwritten, k rows at a time: with k = TILE_ROWS it stays in cache.
        """
        scaled, norm = self._scaled(X), 1.0 / math.sqrt(len(self.omega))
        for start in range(0, len(X), len(work)):
            x = scaled[start : start + len(work)]
            projected = np.matmul(x, self._transposed, out=work[: len(x)])
            trig_pairs(projected, out[start : start + len(x)], norm)

    def transform(self, X: FloatArray) -> FloatArray:
        """F (n, m) for X (n, d), in new memory."""
        out = np.empty((len(X), self.m))
        self(X, out, np.empty((min(len(X), TILE_ROWS) or 1, len(self.omega))))
        return out
