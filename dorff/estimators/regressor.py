"""ORFFRegressor: the scikit-learn face of operator-valued random Fourier features."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dorff.errors import InputError, QualityWarning
from dorff.estimators.adapter import adapt_groups, adapt_targets, adapt_weights, check_alignment
from dorff.estimators.array_sums import Stream, one_thread
from dorff.estimators.arrays import Deferred, dealt, dealt_by, enough_memory, finite, together, with_rows
from dorff.estimators.base import ORFFEstimator, absent, reads_once
from dorff.estimators.descended import check_values, loss_fitted
from dorff.estimators.parameters import in_python, left_out_rows
from dorff.estimators.semi import Penalties, in_memory_where, with_targets
from dorff.fit import Fitted
from dorff.fit.quality import better, quality_of, warnings_of_uncertainty
from dorff.kernels import Decomposable, FloatArray, MultiView, OperatorKernel, ScalarKernel
from dorff.model.losses import Loss
from dorff.model.model import Model, Views
from dorff.passes import PRECISIONS
from dorff.solvers import R2, Spread, row_sums
from dorff.spec.checks import AUTO
from dorff.spec.registry import CRITERIA


@dataclass(eq=False, repr=False, kw_only=True)
class ORFFRegressor(MultiOutputMixin, RegressorMixin, ORFFEstimator):  # type: ignore[misc]
    """Vector-valued kernel ridge regression by operator-valued random Fourier features, in one pass over the rows.

    f(x) = Phi(x)* h + b minimises (Minh 2016, eq. 72-74 with gI = 0; Brault, Heinonen & d'Alche-Buc 2016)

        1/l sum_i |y_i - f(x_i)|^2 + ridge |f|^2        over the l rows, the intercept b free

    so that `ridge` does not change its meaning with the number of rows; the usual (K + lambda I) a = y of kernel
    ridge regression has lambda = l * ridge.

    Parameters
    ----------
    kernel : OperatorKernel, ScalarKernel, name or None
        A scalar kernel k0 stands for `Decomposable(k0, "identity")`; None for that of a
        Gaussian or a Matern-5/2 kernel, whichever has the higher evidence on a sample of rows (a Gaussian where folds
        are of groups). "matern",
        "curl_free" (over a Gaussian) and the other words of JOB.yaml name kernels. Without a kernel's numbers its
        length-scales are those of most evidence on a sample of rows (`tune_lengthscales`): one for each input, but
        one for all of a vector field. Parameters are `kernel__lengthscale` and so on.
    n_features : int or "auto"
        The most columns of the feature matrix, cosines and sines together. A rule that needs another number, such as
        pairs, uses fewer: `model_.feature_map.m`. "auto": 1024, 2048 from 20,000 rows, 4096 from 100,000; of landmarks
        that `fit` chose itself, as many as leave out little of the kernel, or all rows where these are no more.
    sampler : Sampler or None
        What the features are. None: in `fit` `frequencies.Landmarks()`, kernel values at rows of X, where these predict
        rows of a sample that are held out as well as random features do; else, and in `partial_fit`, random features,
        `frequencies.Orthogonal()`, or `frequencies.IID()` for a kernel whose spectrum rotations change (a product over
        inputs, such as the Laplacian). Landmarks are chosen among 8192 rows at most, those of the first call.
    ridge : float, list of floats or "auto"
        Of a list the best by held-out R2 (of `score`), or by `criterion`; "auto" tries powers of ten, more at an end.
    cv : "auto", int, splitter, iterable of splits, or None
        Number of folds: rows are dealt to them by a hash of their number and the seed, during the one pass, or by
        `groups`. Or a splitter of scikit-learn, or its splits; those that are no partition (TimeSeriesSplit) may cut
        the rows into 64 parts, each of which has sums. "auto": 5 where something is to be chosen and no `criterion`
        given, of blocks of rows where a sample says that rows in order tell each other's errors.
    criterion : "gcv", "evidence", "loo" or "auto"
        What a list of ridges is compared by without `cv`: generalised cross-validation, the log marginal likelihood of
        the targets (`log_evidence_`), or exact leave-one-out: held-out R2, each row predicted by the fit to all others,
        which its leverage tells; of 2^15 rows at most, which are read once more. "auto": generalised
        cross-validation, but in `fit` to fewer than 128 rows leave-one-out, as the former often takes the smallest
        ridge of all where a fit may have as many degrees of freedom as rows.
    random_state : int, RandomState or None
        An int is the seed of frequencies (and folds) itself, the `seed` of a job file.
    intercept : bool
        Whether b is fitted, without ridge.
    standardize : bool or "auto"
        Divide inputs and targets by their standard deviations: column by column, but by one number for all inputs
        and one for all targets when the kernel is a vector-field one, which other scaling would break.
        Length-scales are then in scaled units. "auto": where they are not given.
    observe : array (q, p) or None
        C where the targets are values of C f, f in R^p (Minh 2016, eq. 67); the identity if None. `predict` gives f.
        With `standardize` one scale then serves all targets.
    missing : "refuse" or "partial"
        Of NaN in y: "partial" takes it for a target that was not observed, and leaves rows out that have none. Each
        pattern of what is there has moments of its own; more than 8 are refused.
    precision : "double" or "mixed"
        "mixed" rounds features and products to float32: 0.6 to 0.7 of a block's time, some seven digits in the sums.
    loss : word, mapping or Loss
        What is made least in the place of the square: "huber", {"huber": 1.35}, {"epsilon_insensitive": 0.1},
        {"quantiles": [0.1, 0.9], "coupling": 1.0}, "poisson", or "logistic", "hinge", "squared_hinge" of targets 0 and
        1. The rows are then read again for every step, from the fit by squares on; `predict` gives a column for each
        quantile, rates of counts, probabilities of `logistic`. `cv_losses_` are the ridges and the loss of rows held
        out; `objective_`, `gradient_norm_`, `duality_gap_` and `n_passes_` tell how it went.
    solver : "auto", "lbfgs" or "newton"
        How; Newton's method for smooth losses alone.
    tol : float
        How far the objective may be from its least, about, as a share of it.
    posterior : bool
        Keep the sums, about 4 (m + q + 1)^2 bytes (and as much for each manifold term), which `posterior_model_`,
        `predict(return_std=True)` and `log_evidence_` need. The posterior itself costs another factorisation and 8 m^2
        bytes (8 (m r)^2 where outputs are coupled), when it is first asked for.
    manifold : float, list of floats, graphs.Manifold, list of those, or None
        Weights gI of manifold terms: the objective gains sum_k gI_k <f, (L_k (x) Q_k) f> over the values f of all rows
        (Minh 2016, eq. 67), which pulls f together where the rows' graph has edges. Rows whose targets are all NaN
        then are unlabelled: they count in the graph alone, and in the scales and the median distance of the inputs.
        A number is a `Manifold` of that weight on `graph`; of a list, or of terms with several weights, every
        combination with every ridge is tried, which needs `cv`.
    graph : graphs.Graph, sparse or dense matrix (n, n), path, or None
        What a number's term is of: `graphs.KNN()` of all rows in scaled inputs if None; a matrix of edges' weights.
    n_jobs : int or None
        Threads that sum rows of NumPy and Zarr (-1: one a core), with about 8 (m + q + 1)^2 bytes each; any number of
        them gives the same bits. Dask has a scheduler of its own; what is solved has one thread.

    Attributes
    ----------
    model_ : Model
        What `dorff.store.save_model` publishes; predicts, and has an analytic `jacobian`.
    ridge_ : float
        The ridge of the fit: of "auto" the best of those that leave digits enough.
    cv_errors_, cv_scores_ : ndarray (number of ridges,)
        Mean squared errors over all rows and outputs that were held out, by folds or one row at a time, and their R2,
        as of `score`, by which the ridge is chosen: of labelled rows, the graph being of all rows always.
    quality_ : FitQuality or None
        How good the fit is on held-out rows: its `r2`, and of each of its `outputs` the target's `r2`, `rmse`,
        `rmse_mean` (of their mean), `r2_linear` (of a linear model), `r2_train`. What is wrong is warned of
        (QualityWarning). None without `cv` and leave-one-out, and of splits that are no partition.
    gcv_, log_evidences_, scores_ : ndarray (number of ridges,)
        GCV scores, log marginal likelihoods or the scores of another package's criterion, where that chose.
    manifold_ : tuple of floats (terms,)
        The weights of the fit, where there is a manifold; `cv_errors_` then are (trials,), and `trials_`
        (trials, 1 + terms) the ridge and the weights that each is of.
    log_evidence_ : float
        Log marginal likelihood of the targets at `ridge_`, each target's noise variance at its best: that of Bayesian
        linear regression on the features, h ~ N(0, s2 / (l ridge) I), s2 the mean of these, flat in the intercept.
    lengthscales_ : list of ndarray (d,) or None
        The length-scales of each term of the kernel in the inputs' own units, also where inputs were standardized
        (those of `model_.kernel` are then in standard deviations); NaN of inputs that a view does not see. None for a
        term that has none. Of times they are seconds.
    noise_ : ndarray (q, q)
        Variances of the targets' noise, on the diagonal, in the squares of the targets' units; zeros elsewhere, as
        noise is independent across targets. `np.sqrt(np.diag(noise_))` are its standard deviations. They are of a row
        of mean weight: one of k times that weight has `noise_ / k`. Those of the most evidence; but with manifold
        terms, and for several independent outputs that share one ridge, the mean squared residuals, divided by the
        degrees of freedom left in place of the rows.
    posterior_model_ : Model
        `model_` with its posterior: `std`, `covariance`, `sample`, `band`; published for `dorff predict --std`. As the
        noise is an estimate, variances are `posterior_model_.posterior.factor` times those of a given noise; of fewer
        than 128 rows they are averaged over the ridges that were compared, by their evidence. Warns (QualityWarning)
        where fewer than 5 degrees of freedom are left to estimate the noise.
    condition_, rung_, digits_ : float, str, float
        Condition number of the system solved, the method that solved it, and how many decimal digits of the fitted
        values rounding leaves. Fewer than three warn (`scipy.linalg.LinAlgWarning`); `dorff fit` goes on to a QR.
    input_columns_, target_columns_ : Columns
        What is known of the columns in the fit: `names`, `kinds` and `attributes` (units, calendar), or None.
    input_kinds_ : tuple of str (d,) or None
        "number", "time", "duration" or "time (calendar)"; None where all are numbers.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    X is (n, d), y (n, q) or (n,). Besides what scikit-learn takes (NumPy, lists, pandas), either may be

    - a masked array, a data frame or column of polars or pyarrow, or pandas' nullable types. A masked or null target
      is NaN, and other masked or null values are refused;
    - a Zarr array in a local folder: read in runs of its chunks, never as a whole; a missing or damaged chunk is
      refused, not read as zeros. `predict` returns NumPy. One in memory is taken as NumPy;
    - a Dask array: a task a row chunk on the current scheduler, merged in an order fixed by the chunks alone, so that
      neither the scheduler nor the number of workers changes a bit of the fit. `predict` returns a lazy Dask array.
      Dask reads a lost Zarr chunk as zeros, so give a Zarr array itself rather than `dask.array.from_zarr` of it;
    - a Dask data frame: its rows are counted by a pass over it, and it is then a Dask array;
    - an xarray DataArray, or a Dataset whose variables (n,) are the columns: its data, NumPy's or Dask's. (One opened
      lazily without `chunks` is loaded as a whole.) What xarray has not decoded (`_FillValue`) is refused;
    - a variable of an open NetCDF or HDF5 file, read as a whole, or a Quantity of pint. Those of astropy and unyt are
      refused, as NumPy would drop their units.

    Columns keep what is known of them in the fit, `input_columns_` and `target_columns_`. Names are compared: of
    inputs by scikit-learn's rules; targets with a name that was another column's in the fit are refused. Units, of
    attributes `units` and `calendar` and of pint, are those of the fit in `partial_fit`, `predict` and `score`: numbers
    in other units are converted (K beside degC, times since another origin), lazily where they are lazy, and refused
    where they cannot be. Where one side has no units, numbers are taken as they are. Predictions, their standard
    deviations and `noise_` are plain numbers in the units that the targets had in the fit. Times of inputs are seconds
    since `time_origin_`, whatever their resolution; times of two calendars are refused, but for standard and
    proleptic_gregorian since October 15, 1582, where these are the same.

    All kinds agree to rounding: scales, means and the median distance come from at most 1024 rows, in 16 runs spread
    evenly, whatever the kind. Needs about five times 8 (m + q + 1)^2 bytes, and as much again for each fold and each
    manifold term, whatever n. Data larger than memory with durable state, resumption and appending are the work of
    `dorff fit`, and so are manifold terms over them: here X is then in memory. Of few labelled rows folds are dealt
    evenly instead of by a hash. `sample_weight` weighs errors of labelled rows; the graph has every row once.

    With a `kernels.MultiView` kernel of V views f has V outputs for each target, and the targets are compared with
    the views' mean (C of Minh's section 4): `predict` gives that, or the mean of the views named; `observe` cannot
    be given. Terms of one view, and between views, are `graphs.Manifold(view=...)` and `Manifold(between=True)`.
    Every refusal is a `dorff.errors.InputError` or scikit-learn's own; both are ValueErrors."""

    observe: npt.ArrayLike | None = None
    missing: str = "refuse"
    criterion: str = AUTO
    precision: str = "double"
    posterior: bool = True

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fit to inputs and targets, whose units the estimator keeps.

        Parameters
        ----------
        X : (n, d), of any kind in the Notes
            Numbers, datetime64 of any unit, timedelta64, or times of cftime.
        y : (n, q) or (n,), of any kind in the Notes
            Numbers; NaN, masked or null ones as `missing` says.
        sample_weight : (n,), of any kind, or None
            How much a row counts, 0 or more; held in memory. A row of weight 2 is that row given twice, but for its
            noise: a row's noise variance is `noise_` over its weight, in mean weights.
        groups : (n,), of any kind, or None
            For `cv`: rows of a group are held out together.

        Returns
        -------
        ORFFRegressor

        Raises
        ------
        InputError
            An input, weight or group is missing, not finite or not a number; times are among the targets; two columns
            have one name; units of a time cannot be understood; a parameter is not what it must be.
        DoesNotFitError
            The memory does not suffice for the sums.
        """
        self._stream: Stream | None = None
        self._few_rows = False
        self._add(X, y, sample_weight, groups, all_rows=True)
        if self._cv is not None or not self.posterior:  # whose sums take memory of their own
            self._stream = None
        return self

    @available_if(reads_once)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows to those of earlier calls, and fit to all of them.

        As `fit` of all at once, but scales, means and the length-scale are those of the first call's rows. It goes on
        from `fit` with `posterior` and no `cv`.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`. Inputs and targets are converted to the units of the first call.

        Returns
        -------
        ORFFRegressor

        Raises
        ------
        InputError
            As of `fit`; columns are not those of the first call, or their units cannot be converted; splits, or
            leave-one-out, are asked for, which need all rows together.
        """
        self._few_rows = False
        self._stream = self._begun()
        self._add(X, y, sample_weight, None, all_rows=False)
        return self

    def _add(self, X: Any, y: Any, sample_weight: Any, groups: Any, *, all_rows: bool) -> None:
        self._check_arguments()
        check_alignment(X=X, y=y, sample_weight=sample_weight, groups=groups)
        terms, stream, jobs = self._manifold_terms(), self._stream, self._jobs()
        X = self._adapt_inputs(X, reset=stream is None)
        y = self._adapt_targets(y, reset=stream is None)
        X, y = self._validated(*in_memory_where(terms, X, y), reset=stream is None)
        observe = self._observation(1 if y.ndim == 1 else y.shape[1])
        self._one_target = y.ndim == 1
        groups = adapt_groups(groups)
        views = isinstance(self.kernel, MultiView)
        self._one_output = (
            y.ndim == 1 and self._loss.levels == 1 and (views or observe is None or observe.shape[1] == 1)
        )
        X, Y = together(with_rows(X, "X"), with_rows(y, "y"))
        self._few_rows = all_rows and not terms and self._has_few_rows(X.shape[0])
        weights, inputs, seen = adapt_weights(sample_weight, X.shape[0]), None, None
        if terms:
            inputs, seen = X, with_targets(Y, partial=self._partial)
            X, Y = X[seen], Y[seen]
            weights = None if weights is None else adapt_weights(weights[seen], len(X))
        check_values(self._loss, Y, weights)
        with enough_memory(self._remedy), one_thread():
            if stream is None:
                scales = self._scales and self._loss.takes == "numbers"
                drawing = self._draw(
                    X, Y, lambda rule: dealt(self._cv, X.shape[0], rule, seen=seen, y=y, groups=groups),
                    scale_targets=scales, observe=observe, partial=self._partial, weights=weights, inputs=inputs,
                    all_rows=all_rows,
                )  # fmt: skip
                stream = Stream(drawing, drawing.summing(self.precision, partial=self._partial))
            stream, drawing = stream.added(X, Y, weights, jobs), stream.drawing
            penalties, sample = None if inputs is None else Penalties.of(terms, drawing, inputs, len(X)), None
            if self._by == "loo" or (self._cv is None and self._few_rows):
                sample = left_out_rows(drawing.features, X, Y, weights, partial=self._partial)
            chosen_by = sample if self._by == "loo" else None
            stream, fitted, self.model_ = self._solve(stream, (X, Y, weights, jobs), penalties, chosen_by)
            names = ["y"] if self._one_target else [f"y{at}" for at in range(Y.shape[1])]
            names = names if self.target_columns_.names is None else list(self.target_columns_.names)
            if self._loss.kind != "squared":
                return self._keep_loss(stream)
            if sample is not None:
                for sentence in better(fitted, sample, self._by):
                    warnings.warn(in_python(sentence), QualityWarning, stacklevel=3)
            quality = quality_of(fitted, names, dealt_by(drawing.deal), drawing.sampled, sample=chosen_by)
            self._stream = stream
            self._fitted = fitted.pooled() if self.posterior else None
            self._posterior_model: Model | None = None  # made when it is first asked for
            self._noise = None if self.posterior else fitted.noised.fit.noise
            self._judge(fitted, quality, drawing, 4)

    def _adapt_targets(self, y: Any, *, reset: bool) -> Any:
        """Return targets of any kind as numbers, in the units of the fit; with `reset` those are kept from them."""
        adapted = adapt_targets(y)
        if not self._with_gaps:
            _refuse_gaps(adapted.values, self._gaps_remedy)
        if reset:
            self.target_columns_ = adapted.columns
            return adapted.values
        adapted.columns.check_order(self.target_columns_, "y")
        return adapted.converted_to(self.target_columns_, "y", any_names=True)

    def _keep_loss(self, stream: Stream) -> None:
        """What is kept of a fit by another loss than the square."""
        self._stream, self._fitted, self._noise, self.quality_ = stream, None, None, None
        sure = self._sure if self.posterior else None
        self._posterior_model = None if sure is None else replace(self.model_, posterior=sure)

    @property
    def noise_(self) -> FloatArray:
        """Variances of the targets' noise in the squares of their units, as a diagonal matrix (q, q)."""
        with one_thread(), absent():
            noise = self._kept.noised.fit.noise if self._noise is None else self._noise
        assert noise is not None
        return noise

    @property
    def posterior_model_(self) -> Model:
        """`model_` with its posterior."""
        kept: Model | None = vars(self).get("_posterior_model")
        if kept is not None:
            return kept
        with one_thread(), absent():
            fitted = self._kept
            if self._posterior_model is None:
                self._posterior_model = replace(self.model_, posterior=fitted.posterior)
                for sentence in warnings_of_uncertainty(fitted):
                    warnings.warn(in_python(sentence), QualityWarning, stacklevel=2)
            return self._posterior_model

    @property
    def log_evidence_(self) -> float:
        """Log marginal likelihood of the targets."""
        with one_thread(), absent():
            return self._kept.log_evidence

    @property
    def _kept(self) -> Fitted:
        check_is_fitted(self)
        if loss_fitted(self).kind != "squared":
            problem = f"a fit by loss {loss_fitted(self).kind} has no noise, evidence or posterior of its own"
            raise InputError(f"{problem} (a Laplace posterior: loss='poisson' or 'logistic', with posterior=True)")
        if self._fitted is None:
            raise InputError("posterior=False keeps no sums to say how sure the fit is; fit with posterior=True")
        return self._fitted

    def predict(self, X: Any, *, return_std: bool = False, noise: bool = False, views: Views = None) -> Any:
        """Predict f, in the units that the targets had in the fit.

        Parameters
        ----------
        X : (n, d), of any kind in the Notes
            Converted to the units of the fit.
        return_std : bool
            Return the posterior standard deviations too: of f itself, without noise; by loss "poisson" or "logistic" of
            the rates or probabilities that are predicted (`Model.outcome_std`).
        noise : bool
            With `return_std` those of a new target C f plus its noise, (n, q), for a row of mean weight.
        views : names or numbers, or None
            Of a `MultiView` kernel: f is the mean of these, or of all. The columns of others are not looked at and may
            be NaN.

        Returns
        -------
        f : (n, p), or (n,) where y was 1-d
            A lazy Dask array for a Dask array, data frame or xarray object of Dask, else NumPy.
        std : as `f`
            Only with `return_std`.

        Raises
        ------
        InputError
            Names, kinds or units of columns are not those of the fit and cannot be converted; a value is missing or
            not finite (of lazy input when it is computed); the fit keeps no posterior.
        """
        check_is_fitted(self)
        loss = loss_fitted(self)
        if return_std and loss.kind != "squared" and (noise or not loss.likelihood):
            remedy = "leave it out; quantiles are bands of targets"
            if loss.likelihood:
                remedy = "leave noise out, for those of what is predicted"
            raise InputError(f"return_std: a fit by loss {loss.kind} has no deviations of targets; {remedy}")
        if noise and not return_std:
            raise InputError("noise=True says what standard deviations hold; ask for return_std=True too")
        if not return_std and self._one_output:
            return self._mapped(X, partial(_first_outcome, loss=loss_fitted(self)), (), views=views)
        p, q = self.model_.p, self.model_.p if self.model_.observe is None else len(self.model_.observe)
        if not return_std:
            return self._mapped(X, loss_fitted(self).outcome, (p,), views=views)
        answer = partial(_outcome_and_std, views=views)
        if loss.kind == "squared":
            answer = partial(_mean_and_std, noise=noise, views=views)
        both = self._answered(X, self.posterior_model_, answer, (p + (q if noise else p),), views=views)
        mean, std = both[:, :p], both[:, p:]
        flat = self._one_target if noise else self._one_output
        return mean[:, 0] if self._one_output else mean, std[:, 0] if flat else std

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, *, views: Views = None) -> float:
        """Return R2, as `dorff score` says it.

        It is scikit-learn's, the mean over targets of each one's, over the rows that have it, where these are two or
        more; with a kernel of vector fields pooled over the targets, which are then of one unit (to compare it with
        other kernels give `scoring="r2"`). Holds y and the predictions in memory.

        Parameters
        ----------
        X : (n, d), of any kind in the Notes
        y : (n, q) or (n,), of any kind in the Notes
            Converted to the units of the fit.
        sample_weight : (n,), of any kind, or None
            As of `fit`.
        views
            As of `predict`.

        Returns
        -------
        float

        Raises
        ------
        InputError
            As of `predict`; units of targets cannot be converted, or their columns are in another order; no target was
            observed in two rows.
        """
        check_is_fitted(self)
        check_alignment(X=X, y=y, sample_weight=sample_weight)
        y = self._adapt_targets(y, reset=False)
        if isinstance(y, Deferred):
            rows = finite(np.asarray(with_rows(y, "y")[:], dtype=np.float64), "y", 0, partial=self._with_gaps)
            y = rows[:, 0] if y.ndim == 1 else rows
        if self.model_.observe is None:
            values = np.asarray(self.predict(X, views=views))
        else:  # C mixes f, not what the loss makes of it
            f = np.asarray(self._mapped(X, np.asarray, (self.model_.p,), views=views))
            values = loss_fitted(self).outcome(self.model_.observed(f))
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", ensure_all_finite=self._finite)
        check_consistent_length(y, values)
        if np.size(y) != values.size:
            raise InputError(f"y must have as many columns as the {values.size // len(values)} targets, got {y.shape}")
        weights = adapt_weights(sample_weight, len(values))
        w = np.ones(len(values)) if weights is None else weights
        sums = row_sums(y.reshape(len(values), -1), values.reshape(len(values), -1), w)
        r2 = float(R2.of([self.model_.kernel], self.model_.observe).score(sums[4], Spread.of(*sums[:4])))
        if np.isnan(r2):
            raise InputError("y has no target that was observed in two rows or more; give more rows to score")
        return r2

    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        return Decomposable(scalar)

    @property
    def _partial(self) -> bool:
        return self.missing == "partial"

    @property
    def _gaps_remedy(self) -> str:
        return "give missing='partial' to use the targets that are there, or leave these rows out"

    @property
    def _with_gaps(self) -> bool:
        return self._partial or self.manifold is not None

    @property
    def _finite(self) -> bool | str:
        return "allow-nan" if self._with_gaps else True

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.missing not in ("refuse", "partial"):
            raise InputError(f"missing must be 'refuse' or 'partial', not {self.missing!r}")
        of_fits = [AUTO, *(name for name in CRITERIA.names if name != "kfold")]
        if self.criterion not in of_fits:
            names = " or ".join(map(repr, of_fits))
            raise InputError(f"criterion must be {names} (or give cv), not {self.criterion!r}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision must be 'double' or 'mixed', not {self.precision!r}")

    def _ignored(self, idle: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super()._ignored(idle)
        if self.criterion not in (AUTO, "gcv") and self._cv is not None:
            yield "criterion", "with cv trials are compared by their held-out errors"
        elif self.criterion not in (AUTO, "gcv", "loo") and len(self._ridges()) == 1:
            yield "criterion", "there is one ridge, and nothing to choose"

    def _observation(self, q: int) -> FloatArray | None:
        """C (q, p), of which the q targets are values; None where they are those of f."""
        if isinstance(self.kernel, MultiView):
            if self.observe is not None:
                raise InputError("observe: with a MultiView kernel it is the mean of the views; leave observe out")
            return self._average(q)
        if self.observe is None:
            return None
        try:
            C = np.asarray(self.observe, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"observe must be a matrix of numbers, not {self.observe!r}") from None
        if C.ndim != 2 or len(C) != q or C.shape[1] < 1 or not np.isfinite(C).all() or not C.any():
            wanted = f"finite, not all zero, with a row for each of the {q} targets"
            raise InputError(f"observe must be {wanted}; got shape {C.shape}")
        return C

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """What scikit-learn demands of X and y, without reading what lies in Zarr or Dask."""
        lazy = tuple(isinstance(values, Deferred) for values in (X, y))
        if scipy.sparse.issparse(y):
            raise InputError("y is a sparse matrix; give a dense one, y.toarray()")
        if not any(lazy) and not self._with_gaps:
            X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=reset)
            return X, y
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        if not lazy[1]:
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", ensure_all_finite=self._finite)
        return self._inputs(X, reset=reset), y


def _refuse_gaps(y: Any, remedy: str) -> None:
    """Raise InputError where adapted targets (n,) or (n, q) in memory have NaN, as masked and null ones are."""
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "fO":
        return
    if y.dtype.kind == "f":
        gaps = np.isnan(y)
    else:
        is_gap = [isinstance(value, float) and np.isnan(value) for value in y.flat]
        gaps = np.reshape(is_gap, y.shape)
    if gaps.any():
        row = int(np.argwhere(gaps)[0][0])
        problem = f"y contains NaN, which masked and null targets are too, first in row {row}"
        raise InputError(f"{problem}; {remedy}")


def _first_outcome(f: FloatArray, loss: Loss) -> FloatArray:
    return loss.outcome(f)[:, 0]


def _mean_and_std(model: Model, X: FloatArray, *, noise: bool, views: Views) -> FloatArray:
    return np.hstack([model.predict(X, views=views), model.std(X, noise=noise, views=views)])


def _outcome_and_std(model: Model, X: FloatArray, *, views: Views) -> FloatArray:
    return np.hstack([model.outcome(model.predict(X, views=views)), model.outcome_std(X, views=views)])
