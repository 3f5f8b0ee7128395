"""Model: a fitted function, and what it predicts for a block of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features import FeatureMap, Projected
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.weights import OperatorWeights

BLOCK_ROWS = 2048


@final
@dataclass(frozen=True, eq=False)
class Model:
    """f(x) = intercept + target_scale * sum_a phi_a(x) psi_a^T h_a.

    `weights` is psi (m, r, p), `coefficients` h (m, r), `intercept` and `target_scale` (p,). `kernel`, `sampler`
    and `seed` say where the features came from; the features themselves are in `feature_map`.
    `observe` is C (q, p) where the targets were values of C f (Minh 2016, eq. 67), None for the identity.
    `info` is plain JSON: the fit's report, the data's fingerprint, versions, column names; of a classifier `labels`,
    one for each output, and `calibration`.
    """

    feature_map: FeatureMap
    operator_weights: OperatorWeights
    coefficients: FloatArray
    intercept: FloatArray
    target_scale: FloatArray
    kernel: OperatorKernel
    sampler: Mapping[str, Any]
    seed: int
    info: Mapping[str, Any] = field(default_factory=dict)
    observe: FloatArray | None = None

    @property
    def weights(self) -> FloatArray:
        """psi (m, r, p)."""
        return self.operator_weights.psi

    @property
    def frequencies(self) -> FloatArray:
        """omega (D, d), in 1 / scaled input units; InputError for features that have none (a polynomial's)."""
        phi = self.feature_map.phi
        if not isinstance(phi, Projected):
            raise InputError(f"the model's {phi.kind} features have no frequencies")
        return phi.omega

    @property
    def d(self) -> int:
        return self.feature_map.d

    @property
    def p(self) -> int:
        return len(self.intercept)

    @cached_property
    def _combined(self) -> FloatArray:
        """W (m, p): all that prediction needs of psi and h."""
        return self.operator_weights.combined(self.coefficients) * self.target_scale

    def predict(self, X: npt.ArrayLike) -> FloatArray:
        """f (n, p) at X (n, d), in the targets' units. InputError when X has another number of columns."""
        inputs = self._checked(X)
        out = np.empty((len(inputs), self.p))
        for start in range(0, len(inputs), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            out[rows] = self.feature_map.transform(inputs[rows]) @ self._combined + self.intercept
        return out

    def observed(self, values: FloatArray) -> FloatArray:
        """C f (n, q) of predictions f (n, p): what the targets are compared with."""
        return values if self.observe is None else values @ self.observe.T

    def jacobian(self, X: npt.ArrayLike) -> FloatArray:
        """df_i/dx_j (n, p, d) at X (n, d), analytic, in targets' units per input unit.

        InputError for features without a derivative (Heaviside's).
        """
        inputs, features = self._checked(X), self.feature_map
        out = np.empty((len(inputs), self.p, self.d))
        for start in range(0, len(inputs), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            scaled = (inputs[rows] - features.center) / features.scale
            out[rows] = features.phi.jacobian(scaled, self._combined) / features.scale
        return out

    def _checked(self, X: npt.ArrayLike) -> FloatArray:
        inputs = np.ascontiguousarray(X, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != self.d:
            raise InputError(f"X must be (rows, {self.d}) as the model was fitted; got shape {inputs.shape}")
        return inputs
