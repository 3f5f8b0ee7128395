"""Features of projections: cosines and sines, or any phi(omega . x)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.features.base import ScalarMap
from dorff.frequencies import Frequencies, Transform
from dorff.frequencies.transforms import Arrays
from dorff.kernels import Activation, GaussianWeighted
from dorff.kernels.scalar import FloatArray
from dorff.loops import ramps, steps, trig_pairs


@final
@dataclass(frozen=True, eq=False)
class Projected(ScalarMap):
    """F = [a cos(x omega^T) | a sin(x omega^T)] where `phi` is None; else [a phi(x omega^T)], followed by
    [a phi(-x omega^T)] where `reflected`. a (D,) are the `weights`, all columns' factors in one.

    `centre` is the (signed) squared weight of omega = 0 times phi(0)^2. With `centre_column` F has one more column,
    its root; without, it counts in `gram` alone, and a free intercept takes its place.
    """

    projection: Transform
    weights: FloatArray
    phi: GaussianWeighted | None = None
    reflected: bool = False
    centre: float = 0.0
    centre_column: bool = False
    kind = "projected"

    @classmethod
    def of(cls, found: Frequencies, phi: GaussianWeighted | None, *, centre_column: bool) -> Projected:
        """The features of drawn frequencies."""
        weights, centre = found.weights, found.centre
        reflected = found.reflected and phi is not None
        if phi is not None:
            weights = weights * phi.scale / math.sqrt(2.0 if reflected else 1.0)
            centre *= (phi.scale * phi.centre) ** 2
        if centre_column and centre < 0:
            raise InputError(
                f"sampler: the centre's weight came out as {centre:.3g}, and a fit without intercept has no place for "
                "a negative one; fit an intercept, set centre: redraw, or take another seed"
            )
        return cls(found.transform, weights, phi, reflected, centre, centre_column)

    @property
    def d(self) -> int:
        return self.projection.d

    @property
    def m(self) -> int:
        each = 2 if self.phi is None or self.reflected else 1
        return each * self.projection.D + self.centre_column

    @property
    def tile_rows(self) -> int:
        return self.projection.tile_rows

    @property
    def work_columns(self) -> int:
        return self.projection.D

    @cached_property
    def omega(self) -> FloatArray:
        """omega (D, d), written out."""
        return self.projection.dense()

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        self.projection.project(x, work)
        D, phi = work.shape[1], self.phi
        if phi is None:
            trig_pairs(work, out, self.weights)
        elif phi.activation is Activation.STEP:
            steps(work, out, self.weights, self.reflected)
        elif phi.activation is Activation.RAMP:
            ramps(work, out, self.weights, self.reflected)
        else:
            out[:, :D] = phi.function(work) * self.weights
            if self.reflected:
                out[:, D : 2 * D] = phi.function(-work) * self.weights
        if self.centre_column:
            out[:, self.m - 1] = math.sqrt(self.centre)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return super().gram(X, Z) + (0.0 if self.centre_column else self.centre)

    def jacobian(self, x: FloatArray, W: FloatArray) -> FloatArray:
        D, omega = self.projection.D, self.omega
        out = np.empty((len(x), W.shape[1], self.d))
        for i in range(W.shape[1]):
            out[:, i] = self._slopes(x, W[:D, i], W[D : 2 * D, i]) @ omega
        return out

    def _slopes(self, x: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
        """d(F w)/d(omega . x), (b, D), for the coefficients of the first D columns and of the second."""
        if self.phi is None:
            F, D = self.transform(x), self.projection.D
            return F[:, :D] * second - F[:, D : 2 * D] * first
        if self.phi.activation is not Activation.RAMP:
            raise InputError("jacobian: the kernel's features are not differentiable; use a trigonometric or ReLU one")
        z = np.empty((len(x), self.projection.D))
        self.projection.project(x, z)
        slopes: FloatArray = np.heaviside(z, 0.5) * (self.weights * first)
        if self.reflected:
            slopes -= np.heaviside(-z, 0.5) * (self.weights * second)
        return slopes

    def config(self) -> dict[str, Any]:
        return {
            "type": self.kind, "transform": self.projection.kind, "phi": self.phi.config() if self.phi else None,
            "reflected": self.reflected, "centre": self.centre, "centre_column": self.centre_column,
        }  # fmt: skip

    def fits(self) -> bool:
        return self.projection.fits() and self.weights.shape == (self.projection.D,)

    def arrays(self) -> Arrays:
        return {**self.projection.arrays(), "feature_weights": self.weights}
