"""Model: a fitted function, what it predicts for a block of inputs, and how sure it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features import FeatureMap, Product, Projected, endless, outside, periods_of
from dorff.frequencies import Modes
from dorff.kernels import FloatArray, MultiView, OperatorKernel, mean_of
from dorff.kernels.stretched import Stretched
from dorff.model.calibration import Calibration, Conformal, HeldSample, check_level
from dorff.model.losses import Loss, as_loss
from dorff.model.outcomes import joint_std
from dorff.model.posterior import STEP_BYTES, Posterior
from dorff.model.weights import OperatorWeights
from dorff.spec.registry import lazily

ndtri = lazily("scipy.special", "ndtri")

BLOCK_ROWS: Final = 2048
PRODUCT_ROWS: Final = 2**14  # where no features are made
SURE: Final = 1e6  # times the error of a fast way: variances below that are made of features
BLOCK_BYTES: Final = 2**26  # of the features of a block, where these are so many that it has fewer rows
Views = Sequence[str | int] | None
UNSEEN: Final = 0.1  # length-scales from the rows fitted, along an input that features on a lattice do not see


def block_rows(m: int) -> int:
    """Rows whose m features are made at a time."""
    return min(BLOCK_ROWS, max(1, BLOCK_BYTES // (8 * m)))


def evaluation_bytes(m: int, *, squares: int = 0) -> int:
    """The most memory of a prediction by m features, beside rows and results; with a grid of so many `squares`."""
    return 8 * block_rows(m) * m + STEP_BYTES + 32 * squares


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """f(x) = intercept + target_scale * sum_a phi_a(x) psi_a^T h_a.

    `weights` is psi (m, r, p), `coefficients` h (m, r), `intercept` and `target_scale` (p,). `kernel`, `sampler`
    and `seed` say where the features came from; the features themselves are in `feature_map`.
    `observe` is C (q, p) where the targets were values of C f (Minh 2016, eq. 67), None for the identity.
    `info` is plain JSON: the fit's report, the data's fingerprint, versions, column names; of a classifier `labels`,
    one for each output, and `calibration`; `conformal` where bands were corrected on held-out rows.
    `posterior` is what standard deviations, bands and samples are made of, None where it was not kept; f itself and
    its derivatives are the posterior's mean. `held` are rows to judge the model by, None where none were held out.

    Of a `MultiView` kernel of V views psi is (m, r, V p) and the intercept (V p,); predicted are p outputs: C f, the
    mean of the views, whether `observe` holds it or is None. `views` names or numbers some, whose mean is taken
    instead; columns of X that these do not see are not read, and may hold NaN. InputError for views there are not."""

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
    held: HeldSample | None = None

    def __repr__(self) -> str:
        return f"Model(d={self.d}, p={self.p}, m={self.feature_map.m}, kernel={type(self.kernel).__name__})"

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
        """Outputs that are predicted."""
        return len(self.intercept) // self.kernel.V

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views; none of a kernel without."""
        return self.kernel.names if isinstance(self.kernel, MultiView) else ()

    @cached_property
    def _combined(self) -> FloatArray:
        """W (m, V p): all that prediction needs of psi and h."""
        return self.operator_weights.combined(self.coefficients) * self.target_scale

    @cached_property
    def _product(self) -> Product | None:
        """A faster way to F(x) W than to make F, if there is one."""
        return self.feature_map.phi.product(self._combined)

    @cached_property
    def _variances(self) -> tuple[Product, FloatArray] | None:
        """A faster way to the variances of f, if there is one, and its error: worth its making for many rows."""
        posterior, m = self._kept_posterior(), self.feature_map.m
        return self.feature_map.phi.squares(lambda output, most: posterior.roots(output, m, most), self.p)

    def _scaled(self, rows: FloatArray) -> FloatArray:
        return np.asarray((rows - self.feature_map.center) / self.feature_map.scale)

    @cached_property
    def ends(self) -> tuple[FloatArray, FloatArray] | None:
        """Of a lattice the inputs (d,) half a period below and above the middle of its box, or of the rows fitted:
        beyond these the other end is nearer, as the function repeats itself. Infinite along an input whose period is
        its own; the box's own, with a share of a length-scale, along one that was constant. None of other models."""
        phi = self.feature_map.phi
        modes = phi.projection if isinstance(phi, Projected) else None
        low, high = self._range("box_low", "box_high")
        if low is None or high is None:
            low, high = self._range("low", "high")
        if not isinstance(modes, Modes) or low is None or high is None:
            return None
        scalars = [base.scalar for _, base in self.kernel.terms()]
        most = np.max([one.stretch(self.d) for one in scalars if isinstance(one, Stretched)], axis=0, initial=1e-300)
        turn = 2.0 * np.pi / (modes.step * modes.every)
        unseen = high - low + 2.0 * UNSEEN * self.feature_map.scale / most
        wide = np.where(modes.modes.any(axis=0), turn * self.feature_map.scale, unseen)
        half = np.where(np.isinf(periods_of(self.sampler, self.d)), wide, np.inf) / 2.0
        middle = (low + high) / 2.0
        return middle - half, middle + half

    def repeating(self, X: FloatArray) -> int:
        """How many rows of X (n, d) lie beyond the `ends`."""
        ends = self.ends
        return 0 if ends is None else int(np.count_nonzero(np.any((ends[0] > X) | (ends[1] < X), axis=1)))

    def kept(self, X: FloatArray) -> npt.NDArray[np.bool_]:
        """Which rows of X (n, d) the fit would have kept, (n,): those beyond its box it may have dropped."""
        low, high = self._range("box_low", "box_high")
        if low is None or high is None or self.info["data"].get("outside") != "drop":
            return np.ones(len(X), dtype=bool)
        return ~outside(endless(np.array([low, high]), periods_of(self.sampler, self.d)), X)

    def _range(self, *ends: str) -> Iterator[FloatArray | None]:
        return (bounds(self.info.get("data", {}).get(end), self.d) for end in ends)

    def beyond(self, far: int, rows: int) -> str:
        """What is to be said of so many rows that lie beyond the `ends`, and where these are."""
        assert self.ends is not None
        names = self.info["data"].get("inputs", [f"input {at}" for at in range(self.d)])
        each = zip(names, *self.ends, strict=True)
        ends = [f"{name} from {low:.6g} to {high:.6g}" for name, low, high in each if np.isfinite(high)]
        problem = "from there on a function on a lattice repeats itself, or does not see an input that was constant"
        remedy = "leave them out, or fit with rows (a job: data.box) that reach as far"
        return f"{far:,} of {rows:,} rows lie outside of {', '.join(ends)}: {problem}; {remedy}"

    def predict(self, X: npt.ArrayLike, *, views: Views = None) -> FloatArray:
        """f (n, p) at X (n, d), in the targets' units, or the mean of views. InputError when X has other columns."""
        M = self._mean(views)
        if M is None and (product := self._product) is not None:
            b = self.intercept
            return self._by_blocks(X, (self.p,), lambda rows: product(self._scaled(rows)) + b, step=PRODUCT_ROWS)
        W, b = (self._combined, self.intercept) if M is None else (self._combined @ M.T, M @ self.intercept)
        return self._by_blocks(X, (self.p,), lambda rows: self.feature_map.transform(rows) @ W + b, views)

    def predict_views(self, X: npt.ArrayLike) -> FloatArray:
        """What each view says, (n, V, p) at X (n, d), in the targets' units; InputError of a model without views."""
        self._multi_view()
        W, b, transform = self._combined, self.intercept, self.feature_map.transform
        flat = self._by_blocks(X, b.shape, lambda rows: transform(rows) @ W + b)
        return flat.reshape(len(flat), self.kernel.V, self.p)

    def observed(self, values: FloatArray) -> FloatArray:
        """C f (n, q) of predictions f (n, p): what the targets are compared with. A mean of views is C f itself."""
        return values if self.observe is None or self.views else values @ self.observe.T

    def jacobian(self, X: npt.ArrayLike, *, views: Views = None) -> FloatArray:
        """df_i/dx_j (n, p, d) at X (n, d), analytic, in targets' units per input unit, or that of the mean of views.
        InputError for features without a derivative (Heaviside's)."""
        features, M = self.feature_map, self._mean(views)
        W = self._combined if M is None else self._combined @ M.T
        slopes = features.phi.slopes(W)

        def of_rows(rows: FloatArray) -> FloatArray:
            x = self._scaled(rows)
            return (features.phi.jacobian(x, W) if slopes is None else slopes(x)) / features.scale

        return self._by_blocks(X, (self.p, self.d), of_rows, views, step=None if slopes is None else PRODUCT_ROWS)

    def std(self, X: npt.ArrayLike, *, noise: bool = False, views: Views = None) -> FloatArray:
        """Posterior standard deviations at X (n, d), in the targets' units: of f (n, p), without noise; with `noise`
        those of a new target C f plus its noise (n, q), for a row of mean weight. That of the Bayesian linear model
        whose mean is the model (Rasmussen & Williams 2006, eq. 2.9), given the features and the kernel, with an
        estimate of what the features leave out of it (`Posterior`). The noise counts as estimated, and of fewer than
        128 rows the ridge as chosen (`solvers.few_rows`); it does not see what a wrong choice of the kernel adds. Of a
        mean of views f is that mean, and the noise that of a target, as all views were fitted to it."""
        posterior, C, k = self._uncertain(noise, views)
        transform, added = self.feature_map.transform, np.diag(posterior.noise) if noise else 0.0
        worth = min(self.feature_map.m, 4 * max((block.basis.shape[1] for block in posterior.blocks), default=0))
        fast = self._variances if C is None and len(np.asarray(X)) >= worth else None

        def by_features(rows: FloatArray) -> FloatArray:
            return posterior.variance(transform(rows), C, self.feature_map.phi.diagonal(self._scaled(rows)))

        def of_rows(rows: FloatArray) -> FloatArray:
            if fast is None:
                return by_features(rows) + added
            product, error = fast
            values = product(self._scaled(rows))
            if posterior.unexplained is not None:
                values += np.diag(posterior.unexplained)
            lost = np.any(values < SURE * error, axis=1)
            values[lost] = self._by_blocks(rows[lost], (k,), by_features)
            return values + added

        return np.sqrt(self._by_blocks(X, (k,), of_rows, views, step=None if fast is None else PRODUCT_ROWS))

    def outcome(self, f: FloatArray) -> FloatArray:
        """Return what values f (n, p) predict: calibrated probabilities of classes, or what the loss makes of f."""
        calibration = self.info.get("calibration")
        return self.loss.outcome(f) if calibration is None else Calibration.of(calibration).probabilities(f)

    def outcome_std(
        self, X: npt.ArrayLike, *, views: Views = None, outcome: Callable[[FloatArray], FloatArray] | None = None
    ) -> FloatArray:
        """Return standard deviations of what is predicted at X, such as rates and probabilities, by that of f.

        Exact for a normal posterior of f but for rounding: log-normal rates, integrals for probabilities of outputs
        that are each for itself. Of probabilities that sum to 1 by quasi-Monte Carlo (`outcomes.joint_std`). What is
        predicted is the outcome at the posterior's mean of f, not the mean outcome. The slope of a calibration is taken
        as known.

        Parameters
        ----------
        X : array (n, d)
        views : names or numbers, or None
            As of `predict`.
        outcome : function of f (n, p), or None
            What is predicted, if not `Model.outcome`.

        Returns
        -------
        ndarray (n, p)

        Raises
        ------
        InputError
            The model keeps no posterior, or X has other columns.
        """
        if outcome is None and "labels" not in self.info and not self.loss.coupled:
            return self.loss.outcome_std(self.predict(X, views=views), self.std(X, views=views) ** 2)
        posterior, C, k = self._uncertain(noise=False, views=views)
        transform, made = self.feature_map.transform, outcome or self.outcome
        W, b = (self._combined, self.intercept) if C is None else (self._combined @ C.T, C @ self.intercept)

        def of_rows(rows: FloatArray) -> FloatArray:
            F, diagonal = transform(rows), self.feature_map.phi.diagonal(self._scaled(rows))
            return joint_std(made, F @ W + b, posterior.covariance(F, C, diagonal))

        step = min(
            block_rows(self.feature_map.m), max(1, BLOCK_BYTES // (32 * k * k))
        )  # for four matrices (k, k) a row
        return self._by_blocks(X, (k,), of_rows, views, step=step)

    def covariance(self, X: npt.ArrayLike, *, noise: bool = False, views: Views = None) -> FloatArray:
        """Posterior covariances across outputs at X (n, d), in the targets' units squared: of f (n, p, p), without
        noise; with `noise` those of a new target C f plus its noise (n, q, q), for a row of mean weight."""
        posterior, C, k = self._uncertain(noise, views)
        transform, added = self.feature_map.transform, posterior.noise if noise else 0.0

        def of_rows(rows: FloatArray) -> FloatArray:
            diagonal = self.feature_map.phi.diagonal(self._scaled(rows))
            return posterior.covariance(transform(rows), C, diagonal) + added

        return self._by_blocks(X, (k, k), of_rows, views)

    def sample(self, count: int, *, seed: int = 0) -> "tuple[Model, ...]":
        """`count` whole functions drawn from the posterior, each a model without one; no noise is in them. At all
        inputs together they have the posterior's joint law. 8 m (r + p) bytes a draw; the same for the same seed."""
        if count < 1:
            raise InputError(f"count must be 1 or more, not {count}")
        h, b = self._kept_posterior().draw(np.random.default_rng(seed), count, self.coefficients.shape)
        return tuple(
            replace(self, coefficients=self.coefficients + dh, intercept=self.intercept + db, posterior=None)
            for dh, db in zip(h, b, strict=True)
        )

    def band(
        self, X: npt.ArrayLike, level: float, *, conformal: bool | None = None, noise: bool = True, views: Views = None
    ) -> tuple[FloatArray, FloatArray]:
        """(low, high), (n, q) each, that hold a new target C f with its noise in a share `level` of rows; or f (n, p).
        Plain bands are normal: mean -+ z(level) std. Conformal ones are mean -+ factor std(noise=True), the factors
        quantiles of the same ratio on held-out rows, so that they hold what they say on average over rows like those,
        whatever the noise's law; where errors depend on each other, over groups or blocks of rows (`Conformal.scope`).
        `conformal` left out takes them where the model has them and noise is asked for; the factors are those of all
        views together, so that bands of some are plain. Raises InputError: no posterior; a level not between 0 and 1;
        conformal bands that were not fitted, that too few held-out rows, groups or blocks stand behind at this level,
        or that are asked for without noise or of some views."""
        if conformal and not noise:
            raise InputError("conformal bands are of targets, whose noise is in them; ask for noise=True")
        if conformal and views is not None:
            raise InputError("conformal bands are of all views together; ask for conformal=False, or leave views out")
        values = self.predict(X, views=views)
        mean = self.observed(values) if noise else values
        kind = conformal if noise and views is None else False
        half = self.factor(level, conformal=kind) * self.std(X, noise=noise, views=views)
        return mean - half, mean + half

    @cached_property
    def loss(self) -> Loss:
        """The loss that it was fitted by."""
        return as_loss(self.info.get("loss", "squared"))

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

    def _kept_posterior(self) -> Posterior:
        if self.posterior is None:
            problem = "the model keeps no posterior, which standard deviations, bands and samples need"
            remedy = "fit with solve.posterior: true (an estimator: see posterior_model_)"
            raise InputError(f"{problem}: {remedy}; a streaming fit cannot give one, and a sample has none")
        return self.posterior

    def _multi_view(self) -> MultiView:
        if not isinstance(self.kernel, MultiView):
            raise InputError("views: the model's kernel is not multi-view; leave views out")
        return self.kernel

    def _mean(self, views: Views) -> FloatArray | None:
        """M (p, V p), what makes predictions of f; None where these are f itself."""
        if views is None and not self.views:
            return None
        return mean_of(self.kernel.V, self._multi_view().chosen(views), self.p)

    def _uncertain(self, noise: bool, views: Views) -> tuple[Posterior, FloatArray | None, int]:
        """The posterior, and of what it is asked, with its size: f (None), a mean of views, or (noise) targets."""
        posterior, M = self._kept_posterior(), self._mean(views)
        C = self.observe if M is None and noise else M
        return posterior, C, self.p if C is None else len(C)

    def _by_blocks(
        self, X: npt.ArrayLike, shape: tuple[int, ...], of_rows: Callable[[FloatArray], FloatArray],
        views: Views = None, *, step: int | None = None,
    ) -> FloatArray:  # fmt: skip
        """What `of_rows` makes (rows, *shape) of each block (rows, d) of X (n, d)."""
        inputs = self._checked(X, views)
        out = np.empty((len(inputs), *shape))
        step = step or block_rows(self.feature_map.m)
        for start in range(0, len(inputs), step):
            rows = slice(start, start + step)
            out[rows] = of_rows(inputs[rows])
        return out

    def _checked(self, X: npt.ArrayLike, views: Views) -> FloatArray:
        """X (n, d); the columns that none of some views see are put where features have no part of them."""
        inputs = np.ascontiguousarray(X, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != self.d:
            raise InputError(f"X must be (rows, {self.d}) as the model was fitted; got shape {inputs.shape}")
        if views is None:
            return inputs
        seen = self._multi_view().seen(views)
        filled = np.tile(self.feature_map.center, (len(inputs), 1))
        filled[:, seen] = inputs[:, seen]
        return filled


def bounds(values: object, count: int) -> FloatArray | None:
    """So many finite numbers of a model's `info`, which may come from anybody; None where it holds others."""
    if not isinstance(values, Sequence) or len(values) != count:
        return None
    places = np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)
    return places if np.isfinite(places).all() else None
