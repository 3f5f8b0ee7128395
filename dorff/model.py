"""Model: a fitted function, what it predicts for a block of inputs, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dorff.conformal import Conformal, check_level
from dorff.errors import InputError
from dorff.features import FeatureMap, Projected
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.posterior import Posterior
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
    one for each output, and `calibration`; `conformal` where bands were corrected on held-out rows.
    `posterior` is what standard deviations, bands and samples are made of, None where it was not kept; f itself and
    its derivatives are the posterior's mean.
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
    posterior: Posterior | None = None

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
        return self._by_blocks(X, (self.p,), lambda F: F @ self._combined + self.intercept)

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

    def std(self, X: npt.ArrayLike, *, noise: bool = False) -> FloatArray:
        """Posterior standard deviations at X (n, d), in the targets' units: of f (n, p), without noise; with `noise`
        those of a new target C f plus its noise (n, q), for a row of mean weight.

        That of the Bayesian linear model whose mean is the model (Rasmussen & Williams 2006, eq. 2.9), given the
        features, kernel, ridge and noise variance; it does not see what a wrong choice of those adds, nor what m
        features cannot express. Memory: see `Posterior`. InputError where there is no posterior.
        """
        posterior = self._known()
        if noise:
            return np.sqrt(self._by_blocks(X, posterior.noise.shape[:1], self._target_variance))
        return np.sqrt(self._by_blocks(X, (self.p,), posterior.variance))

    def covariance(self, X: npt.ArrayLike, *, noise: bool = False) -> FloatArray:
        """Posterior covariances across outputs at X (n, d), in the targets' units squared: of f (n, p, p), without
        noise; with `noise` those of a new target C f plus its noise (n, q, q), for a row of mean weight."""
        posterior = self._known()
        if noise:
            q = len(posterior.noise)
            return self._by_blocks(X, (q, q), lambda F: self._through(posterior.covariance(F)) + posterior.noise)
        return self._by_blocks(X, (self.p, self.p), posterior.covariance)

    def sample(self, count: int, *, seed: int = 0) -> tuple[Model, ...]:
        """`count` whole functions drawn from the posterior, each a model without one; no noise is in them. At all
        inputs together they have the posterior's joint law. 8 m (r + p) bytes a draw; the same for the same seed."""
        if count < 1:
            raise InputError(f"count must be 1 or more, not {count}")
        h, b = self._known().draw(np.random.default_rng(seed), count, self.coefficients.shape)
        return tuple(
            replace(self, coefficients=self.coefficients + dh, intercept=self.intercept + db, posterior=None)
            for dh, db in zip(h, b, strict=True)
        )

    def band(
        self, X: npt.ArrayLike, level: float, *, conformal: bool | None = None, noise: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """(low, high), (n, q) each, that a new target C f with its noise should lie between in a share `level` of
        rows, for each target apart; without `noise` (n, p), for f itself.

        Plain bands are normal: mean -+ z(level) std. Conformal ones are mean -+ factor std(noise=True), the factors
        quantiles of the same ratio on held-out rows, so that they hold what they say on average over rows like those,
        whatever the noise's law. `conformal` left out takes them where the model has them and noise is asked for.

        Raises:
            InputError: no posterior; a level not between 0 and 1; conformal bands that were not fitted, that too few
                held-out rows stand behind at this level, or that are asked for without noise.
        """
        if conformal and not noise:
            raise InputError("conformal bands are of targets, whose noise is in them; ask for noise=True")
        mean = self.observed(self.predict(X)) if noise else self.predict(X)
        half = self.factor(level, conformal=conformal if noise else False) * self.std(X, noise=noise)
        return mean - half, mean + half

    @cached_property
    def conformal(self) -> Conformal | None:
        """The factors from held-out rows, None where none were fitted."""
        config = self.info.get("conformal")
        return None if config is None else Conformal.of(config)

    def factor(self, level: float, *, conformal: bool | None = None) -> FloatArray | float:
        """What `band` multiplies standard deviations by: the normal law's, or of each target the conformal one."""
        check_level(level)
        if conformal and self.conformal is None:
            raise InputError("the model has no conformal factors: fit with solve.conformal: true, or conformal=False")
        if self.conformal is None or conformal is False:
            return float(ndtri(0.5 + 0.5 * level))
        return self.conformal.factor(level)

    def _known(self) -> Posterior:
        if self.posterior is None:
            raise InputError(
                "the model keeps no posterior, which standard deviations, bands and samples need: fit with "
                "solve.posterior: true (an estimator: see posterior_model_); a streaming fit cannot give one, and a "
                "sample has none"
            )
        return self.posterior

    def _through(self, covariance: FloatArray) -> FloatArray:
        """C covariance C* (n, q, q) for covariances (n, p, p)."""
        return covariance if self.observe is None else self.observe @ covariance @ self.observe.T

    def _target_variance(self, F: FloatArray) -> FloatArray:
        """(n, q): of C f plus noise."""
        posterior = self._known()
        if self.observe is None:
            return posterior.variance(F) + np.diag(posterior.noise)
        covariance = self._through(posterior.covariance(F)) + posterior.noise
        return np.asarray(np.diagonal(covariance, axis1=1, axis2=2))

    def _by_blocks(
        self, X: npt.ArrayLike, shape: tuple[int, ...], of_features: Callable[[FloatArray], FloatArray]
    ) -> FloatArray:
        """What `of_features` makes (rows, *shape) of each block's features F (rows, m), for X (n, d)."""
        inputs = self._checked(X)
        out = np.empty((len(inputs), *shape))
        for start in range(0, len(inputs), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            out[rows] = of_features(self.feature_map.transform(inputs[rows]))
        return out

    def _checked(self, X: npt.ArrayLike) -> FloatArray:
        inputs = np.ascontiguousarray(X, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != self.d:
            raise InputError(f"X must be (rows, {self.d}) as the model was fitted; got shape {inputs.shape}")
        return inputs
