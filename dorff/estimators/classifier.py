"""ORFFClassifier: classes by least squares on one-hot targets, with calibrated probabilities."""

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Self

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import compute
from dask.delayed import delayed
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call
from sklearn.utils.validation import check_is_fitted, validate_data

import dorff.estimators.array_sums as array_sums
import dorff.estimators.arrays as arrays
import dorff.estimators.class_labels as class_labels
import dorff.estimators.parameters as parameters
from dorff.errors import InputError
from dorff.estimators.adapter import adapt_groups, adapt_weights, check_alignment
from dorff.estimators.arrays import Deal, GivenFolds, Rows, StoredRows, dealt, dealt_by, together, with_rows
from dorff.estimators.base import ORFFEstimator, absent, reads_once
from dorff.estimators.descended import loss_fitted
from dorff.estimators.semi import Penalties, in_memory_where
from dorff.fit import Fitted
from dorff.fit.quality import FitQuality, quality_of_classes
from dorff.graphs import Manifold
from dorff.kernels import Decomposable, FloatArray, OperatorKernel, ScalarKernel
from dorff.model import Calibration, Model, Views, most_rows
from dorff.model.losses import as_loss
from dorff.passes import FoldRule
from dorff.plan.sampled import sample_runs

#: Rows, below which leave-one-out compares ridges: with several classes GCV takes ridges that are too small. With 100,
#: 200, 400 and 800 rows of six data sets it lost up to 6 points of accuracy, and gained nowhere.
LOO_BELOW: Final = 1024
WINDOWS: Final = 256  # runs of rows looked through where there are more than enough
CODINGS = {"simplex": "simplex", "one_vs_all": "identity"}  # and their output matrices


def _calibrates(estimator: Any) -> bool:
    if not estimator.calibrate and not as_loss(estimator.loss).likelihood:
        raise AttributeError("probabilities need calibrate=True, or loss='multinomial' or 'logistic'")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class ORFFClassifier(ClassifierMixin, ORFFEstimator):  # type: ignore[misc]
    """Classes by vector-valued kernel ridge regression on operator-valued random Fourier features.

    Each class has an output, whose targets are 1 in its own rows and 0 in all others; f is `ORFFRegressor`'s fit to
    them, in the same single pass, and the class predicted that of the largest f (Brault, Heinonen & d'Alche-Buc 2016,
    section 5.2). Probabilities are softmax(slope f), `slope` being the likeliest on held-out rows (`Calibration`).

    Parameters
    ----------
    kernel, n_features, sampler, ridge, cv, random_state, intercept, n_jobs
        As of `ORFFRegressor`; ridges are compared by squared error on the one-hot targets, f times the number that
        serves best, as that changes no class (and a manifold makes f smaller the more it weighs). Without `cv` they
        are compared by generalised cross-validation, but in `fit` to fewer than 1,024 rows by leave-one-out. An
        OperatorKernel is taken as it is, with an output for each class.
    coding : "simplex" or "one_vs_all"
        What a scalar kernel k0 stands for: `Decomposable(k0, "simplex")` (Mroueh, Poggio, Rosasco & Slotine 2012), of
        rank K - 1 for K classes, or `Decomposable(k0, "identity")`. One-hot targets sum to 1, so with an intercept
        both give the same f, simplex coding's ridge counting (K - 1) / K of the other's.
    class_weight : "balanced", dict of label to weight, or None
        How much a row counts: "balanced" is n / (K n_k) for the n_k rows of class k. Labels that a dict leaves out
        count 1. Probabilities are then those of data in which the classes have that share.
    calibrate : bool
        Hold the rows of one fold out (of `cv`, or of 5), fit to the others, and find `slope` on its rows, which are
        read once more: all of them, or 2^17 from all over the data. The model is then fitted to all rows. Needs a
        second set of sums. Without it there is no `predict_proba`.
    posterior : bool
        Of loss "multinomial" or "logistic": keep Laplace's approximation of the posterior, which
        `predict_proba(return_std=True)` and `posterior_model_` need. By "multinomial" it is one system for all classes,
        of some 40 (m r)^2 bytes while it is made for m features and an output matrix of rank r (K, or K - 1 of simplex
        coding), and K (K - 1) / 2 Gram matrices.
    standardize : bool or "auto"
        Divide inputs by their standard deviations; targets stay ones and zeros.
    manifold, graph
        As of `ORFFRegressor`. Rows of label -1, as everywhere in scikit-learn, are then unlabelled; labels of text
        need an array of dtype object, in which -1 is the number. Folds of `cv` are stratified. To calibrate, each fold
        (of `cv`, or of 5) is held out in turn: a slope from few labelled rows is a rough one, and with one of a class,
        which is then never seen before it is predicted, probabilities are nearly equal.

    Attributes
    ----------
    classes_ : ndarray (K,)
        The labels, sorted.
    model_ : Model
        Gives f; `info` has the labels and the calibration.
    calibration_ : Calibration
        Where asked for.
    quality_ : FitQuality or None
        Of the rows that calibrate: `accuracy`, `accuracy_frequent` (always the most frequent class), and of each of
        `classes` its `recall`. `fit` warns (UserWarning) where that is no better than chance. None without them.
    class_weight_ : ndarray (K,)
    posterior_model_ : Model
        `model_` with its posterior, where `posterior` asked for it: `std` of f, `outcome_std` of probabilities.
    transduction_ : ndarray (n,)
        Where there is a manifold: the labels of the rows fitted to, predicted where they had none.
    lengthscales_, ridge_, gcv_, cv_errors_, manifold_, trials_, condition_, rung_, digits_, n_features_in_,
    feature_names_in_
        As of `ORFFRegressor`.

    Notes
    -----
    X is as `ORFFRegressor` takes it. y (n,) holds text, whole numbers, booleans or whatever else sorts: NumPy, a list,
    pandas, xarray, a Zarr array in a local folder, or a Dask array. Of the last two the classes are found by one pass
    over y alone; ones and zeros are made chunk by chunk. Labels predicted are a lazy Dask array for Dask input."""

    coding: str = "simplex"
    class_weight: str | Mapping[Any, float] | None = None
    calibrate: bool = True
    posterior: bool = False
    _loo_below: ClassVar[int] = LOO_BELOW

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fit to inputs and labels.

        Parameters
        ----------
        X : (n, d), of any kind that `ORFFRegressor` takes
            The estimator keeps the names, kinds and units of its columns.
        y : (n,), of any kind in the Notes
            Labels; they have no units.
        sample_weight : (n,), of any kind, or None
            How much a row counts beside its class's weight, 0 or more; held in memory.
        groups : (n,), of any kind, or None
            As of `ORFFRegressor.fit`.

        Returns
        -------
        ORFFClassifier

        Raises
        ------
        InputError
            As of `ORFFRegressor.fit`; a label is missing, or they are numbers that are not whole; there is one class.
        """
        self._stream: array_sums.Stream | None = None
        self._few_rows = False
        self._add(X, y, sample_weight, groups, None, all_rows=True)
        self._stream = None  # whose sums of folds are not kept
        return self

    @available_if(reads_once)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: npt.ArrayLike | None = None, sample_weight: Any = None) -> Self:
        """Add rows to those of earlier calls, and fit to all of them, as `ORFFRegressor.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`. Inputs are converted to the units of the first call.
        classes : (K,) or None
            All labels that there will be; the first call needs them.

        Returns
        -------
        ORFFClassifier

        Raises
        ------
        InputError
            As of `fit`; columns are not those of the first call, or their units cannot be converted.
        """
        self._few_rows = False
        self._stream = self._begun()
        if self.class_weight == "balanced":
            raise InputError("partial_fit: 'balanced' weighs classes by all rows together; give class_weight a dict")
        _check_partial_fit_first_call(self, classes)
        self._add(X, y, sample_weight, None, self.classes_, all_rows=False)
        return self

    def _add(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        classes: class_labels.Labels | None,
        *,
        all_rows: bool,
    ) -> None:
        self._check_arguments()
        check_alignment(X=X, y=y, sample_weight=sample_weight, groups=groups)
        terms = self._manifold_terms()
        X = self._adapt_inputs(X, reset=self._stream is None)
        X, y = in_memory_where(terms, X, class_labels.unwrap_labels(y))
        class_labels.refuse_gaps(y, semi=bool(terms))
        X, labels = self._validated(X, y, reset=self._stream is None)
        rows, seen, weights = X, None, adapt_weights(sample_weight, X.shape[0])
        if terms:
            assert isinstance(labels, np.ndarray)
            seen = class_labels.labelled(labels)
            X, labels = X[seen], class_labels.plain_type(labels[seen])
            weights = None if weights is None else adapt_weights(weights[seen], len(X))
        coded, classes = self._coded(labels, weights, classes)
        X = with_rows(X, "X")
        if isinstance(X, da.Array) and not isinstance(coded, da.Array):
            coded = da.from_array(coded, chunks=(X.chunks[0] if len(X) == len(coded) else -1,))
        X, Y = together(X, class_labels.target_rows(coded, classes))
        with arrays.enough_memory(self._remedy), array_sums.one_thread():
            self._fit(X, Y, terms, None if seen is None else rows, weights, groups, all_rows=all_rows)
        self.__dict__.pop("transduction_", None)  # of an earlier fit
        if seen is not None:
            self.transduction_ = np.empty(len(rows), self.classes_.dtype)
            self.transduction_[seen] = labels
            self.transduction_[~seen] = _likeliest(self.model_.predict(rows[~seen]), self.classes_)

    def _coded(
        self, labels: class_labels.AnyLabels, weights: FloatArray | None, classes: class_labels.Labels | None
    ) -> tuple[class_labels.AnyLabels, class_labels.Labels]:
        """Labels (n,), those in memory as numbers, and what stands for each class (K,): `classes`, where known."""
        if classes is not None:
            self.class_weight_ = self._weights(np.ones(len(classes)))
            return labels, classes
        coded: class_labels.AnyLabels = labels
        if isinstance(labels, class_labels.StoredLabels | da.Array):
            classes, counts = class_labels.find_classes(labels)
            codes = None if weights is None else np.searchsorted(classes, np.asarray(labels[:]))
            self.classes_ = classes
        else:
            self.classes_, codes, counts = class_labels.in_memory(labels)
            classes, coded = np.arange(len(self.classes_)), codes
        if len(classes) < 2:
            raise InputError(f"y has one class only, {self.classes_.tolist()[0]!r}; a classifier needs two or more")
        weighed = counts if weights is None or codes is None else np.bincount(codes, weights, len(classes))
        self.class_weight_ = self._weights(weighed)
        return coded, classes

    def predict(self, X: Any, *, views: Views = None) -> Any:
        """Predict labels.

        Parameters
        ----------
        X : (n, d), of any kind that `ORFFRegressor` takes
            Converted to the units of the fit.
        views
            As of `ORFFRegressor.predict`.

        Returns
        -------
        (n,) labels
            A lazy Dask array for Dask input, else NumPy.

        Raises
        ------
        InputError
            Names, kinds or units of columns are not those of the fit and cannot be converted; a value is missing or
            not finite (of lazy input when it is computed).
        """
        check_is_fitted(self)
        return self._mapped(X, partial(_likeliest, classes=self.classes_), (), self.classes_.dtype, views=views)

    def decision_function(self, X: Any, *, views: Views = None) -> Any:
        """f (n, K) at X (n, d); of two classes f_1 - f_0 (n,), above zero for the second."""
        check_is_fitted(self)
        K = len(self.classes_)
        return self._mapped(X, *((_difference, ()) if K == 2 else (np.asarray, (K,))), views=views)

    @available_if(_calibrates)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, *, return_std: bool = False, views: Views = None) -> Any:
        """Predict probabilities of the classes.

        Parameters
        ----------
        X : (n, d), of any kind that `ORFFRegressor` takes
            Converted to the units of the fit.
        return_std : bool
            Return the standard deviations of the probabilities too, by the posterior of f (`Model.outcome_std`). Needs
            `posterior=True`.
        views
            As of `ORFFRegressor.predict`. Probabilities are calibrated for all views together.

        Returns
        -------
        probabilities : (n, K)
            A lazy Dask array for Dask input, else NumPy.
        std : (n, K)
            Only with `return_std`.

        Raises
        ------
        InputError
            As of `predict`; the fit keeps no posterior.
        """
        check_is_fitted(self, "calibration_" if self.calibrate else None)
        probabilities = self.calibration_.probabilities if self.calibrate else loss_fitted(self).probabilities
        K = len(self.classes_)
        if not return_std:
            return self._mapped(X, probabilities, (K,), views=views)
        answer = partial(_probabilities_and_std, probabilities=probabilities, views=views)
        both = self._answered(X, self._uncertain_model(), answer, (2 * K,), views=views)
        return both[:, :K], both[:, K:]

    @property
    def posterior_model_(self) -> Model:
        """`model_` with its posterior."""
        check_is_fitted(self)
        with absent():
            return self._uncertain_model()

    def _uncertain_model(self) -> Model:
        if self._sure is None:
            remedy = "fit with posterior=True, loss='multinomial' or 'logistic' and a ridge above 0"
            raise InputError(f"posterior: the fit keeps none; {remedy}")
        return replace(self.model_, posterior=self._sure)

    @available_if(_calibrates)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, *, views: Views = None) -> Any:
        """Logarithms (n, K) of the probabilities, finite where those underflow."""
        check_is_fitted(self, "calibration_" if self.calibrate else None)
        logs = self.calibration_.log_probabilities if self.calibrate else loss_fitted(self).log_probabilities
        return self._mapped(X, logs, (len(self.classes_),), views=views)

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, *, views: Views = None) -> float:
        """Return the share of labels that are right. Holds y and the predictions in memory.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`. Inputs are converted to the units of the fit.
        views
            As of `predict`.

        Returns
        -------
        float

        Raises
        ------
        InputError
            As of `predict`; a label is missing, or a weight is not finite or negative.
        """
        check_alignment(X=X, y=y, sample_weight=sample_weight)
        y = class_labels.unwrap_labels(y)
        y = np.asarray(y[:]) if isinstance(y, class_labels.StoredLabels | da.Array) else y
        class_labels.refuse_gaps(y, semi=False)
        predicted = np.asarray(self.predict(X, views=views))
        weights = adapt_weights(sample_weight, len(predicted))
        return float(accuracy_score(y, predicted, sample_weight=weights))

    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        return Decomposable(scalar, CODINGS[self.coding])

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.coding not in CODINGS:
            raise InputError(f"coding must be 'simplex' or 'one_vs_all', not {self.coding!r}")
        if self.posterior and not self._loss.likelihood:
            remedy = "take multinomial or logistic, or leave posterior out"
            raise InputError(f"posterior: a fit by loss {self._loss.kind} has none; {remedy}")

    def _ignored(self, idle: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        yield from super()._ignored(idle)
        if self.coding != "simplex" and isinstance(self._given(), OperatorKernel):
            yield "coding", "it is what a scalar kernel stands for, and kernel is an operator kernel"

    def _weights(self, counts: npt.NDArray[Any]) -> FloatArray:
        """How much a row of each class (K,) counts."""
        chosen, K = self.class_weight, len(counts)
        if chosen is None:
            return np.ones(K)
        if isinstance(chosen, str) and chosen == "balanced":
            return np.asarray(counts.sum() / (K * np.where(counts > 0, counts, 1.0)))
        if not isinstance(chosen, Mapping):
            raise InputError(f"class_weight must be 'balanced', a dict of labels to weights, or None, not {chosen!r}")
        labels = self.classes_.tolist()
        if unknown := [label for label in chosen if label not in labels]:
            raise InputError(f"class_weight names {unknown[0]!r}, but the labels are {labels[:20]}")
        weights = np.array([float(chosen.get(label, 1.0)) for label in labels])
        if not np.isfinite(weights).all() or (weights <= 0).any():
            raise InputError(f"class_weight must be numbers above 0, not {dict(chosen)!r}; leave out a class's rows")
        return weights

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, class_labels.AnyLabels]:
        """What scikit-learn demands of X and y, without reading what lies in Zarr or Dask."""
        lazy = isinstance(y, class_labels.StoredLabels | da.Array)
        if not lazy and not isinstance(X, StoredRows | da.Array):
            X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
            return X, y
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        if not lazy:
            y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        return self._inputs(X, reset=reset), y

    def _fit(
        self, X: Rows, Y: array_sums.Targets, terms: Sequence[Manifold], inputs: FloatArray | None,
        weights: FloatArray | None, groups: Any, *, all_rows: bool,
    ) -> None:  # fmt: skip
        """To rows X (n, d) and Y (n, K) of `weights` (n,), and to the terms over `inputs` (k, d), all rows."""
        stream, jobs = self._stream, self._jobs()
        self._few_rows = all_rows and not terms and self._has_few_rows(X.shape[0])
        if stream is None:
            observe, deal = self._average(Y.shape[1]), partial(self._deal, Y, groups, semi=bool(terms))
            drawing = self._draw(
                X,
                Y,
                deal,
                observe=observe,
                weights=weights,
                inputs=inputs,
                free_scale=True,
                all_rows=all_rows,
            )
            stream = array_sums.Stream(drawing, drawing.summing("double", class_weight=self.class_weight_))
        stream = stream.added(X, Y, weights, jobs)
        penalties = None if inputs is None else Penalties.of(terms, stream.drawing, inputs, X.shape[0])
        sample = None
        if self._by == "loo":
            sample = parameters.left_out_rows(stream.drawing.features, X, Y, weights, partial=False)
            of_class = self.class_weight_[np.argmax(sample.Y, axis=1)]
            sample = replace(sample, weights=sample.weights * of_class)
        stream, fitted, model = self._solve(stream, (X, Y, weights, jobs), penalties, sample)
        info = {**model.info, "labels": [plain(label) for label in self.classes_]}
        self.__dict__.pop("calibration_", None)  # of an earlier fit
        quality = None
        if self.calibrate:
            self.calibration_, quality = self._calibration(stream, fitted, X, Y, weights)
            info["calibration"] = self.calibration_.config()
        self.model_, self._stream = replace(model, info=info), stream
        self._judge(fitted, quality, stream.drawing, 5)

    def _deal(self, Y: array_sums.Targets, groups: Any, rule: FoldRule, *, semi: bool) -> Deal:
        """Which folds rows are in; without `cv` those that a calibration needs, a fifth alone where it takes one."""
        groups = adapt_groups(groups)
        by_number = self._cv is None or isinstance(self._cv, numbers.Integral)
        if groups is not None or not by_number:
            if semi or (self.calibrate and not isinstance(Y, class_labels.OneHot)):
                raise InputError("cv: groups and splits need X and y in memory, or calibrate=False, and no manifold")
            codes = _codes(Y) if isinstance(Y, class_labels.OneHot) else None
            return dealt(self._cv, Y.shape[0], rule, y=codes, groups=groups)
        if semi:
            codes, folds = _codes(Y), array_sums.FOLDS if self.calibrate else 1
            return GivenFolds.balanced(codes, int(self._cv or min(folds, len(codes))), rule.seed)
        if self._cv is None and self.calibrate:
            return FoldRule.one_held(array_sums.FOLDS, by_rows=True, seed=rule.seed)
        return replace(rule, count=self._cv or 1)

    def _calibration(
        self, stream: array_sums.Stream, fitted: Fitted, X: Rows, Y: array_sums.Targets, weights: FloatArray | None
    ) -> tuple[Calibration, FitQuality]:
        """Of a fit to the other folds, at the same ridge and weights of penalties; the held-out rows had a part in
        choosing these alone. Folds in memory are held out in turn, others once. And how good it is on these rows."""
        deal, looked = stream.summing.folds, stream.drawing.looked
        if isinstance(deal, FoldRule):
            model = _without(held_fold(deal), stream.drawing, fitted)
            f, codes, rows = HeldRows(model, deal, X.shape[0], most_rows(model.p)).read(X, Y)
        else:
            assert isinstance(Y, class_labels.OneHot) and not isinstance(X, da.Array)
            f, codes, rows = np.empty(Y.shape), _codes(Y), np.arange(Y.shape[0])
            for fold in range(deal.count):
                model = _without(fold, stream.drawing, fitted)
                for start, stop in array_sums.runs(X, Y):
                    held = np.flatnonzero(deal.of[start:stop] == fold)
                    f[start + held] = model.predict(X[start:stop][held])
        counted, names = np.ones(len(rows)) if weights is None else weights[rows], [*map(str, self.classes_)]
        by = dealt_by(deal) or "splits"
        quality = quality_of_classes(f, codes, counted, names, by, None if looked is None else looked[0])
        folds = deal.count if isinstance(deal, GivenFolds) else 1
        return Calibration.fit(f, codes, self.class_weight_[codes] * counted), replace(quality, folds=folds)


def held_fold(deal: FoldRule) -> int:
    """The fold that row 0 is in: it always has a row."""
    return int(deal.of_rows(np.zeros(1, dtype=np.int64))[0])


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Decision values by `model` of held-out rows, which it was not fitted to. Small fits see all of them, others
    those of WINDOWS runs of rows spread evenly: `most` at most."""

    model: Model
    deal: FoldRule
    n: int
    most: int

    @property
    def windows(self) -> list[tuple[int, int]]:
        return sample_runs(0, self.n, WINDOWS, -(-self.most * (self.deal.held or self.deal.count) // WINDOWS))

    def read(self, X: Rows, Y: array_sums.Targets) -> tuple[FloatArray, arrays.Numbers, arrays.Numbers]:
        """f (k, K), classes (k,) and numbers (k,) of the held-out rows; X (n, d) are inputs, Y (n, K) one-hot rows."""
        if isinstance(X, da.Array):
            assert isinstance(Y, da.Array)
            shared, task, windows = delayed(self), delayed(HeldRows.of_chunk), self.windows
            seen = (one for one in arrays.chunks(X, Y) if any(a < one[0] + one[1] and b > one[0] for a, b in windows))
            parts = compute(*(task(shared, first, x, y) for first, _, x, y in seen))
        else:
            assert not isinstance(Y, da.Array)
            inputs, targets = array_sums.ArrayReader(X, "X"), array_sums.ArrayReader(Y, "y")
            read = array_sums.runs(X, Y) if len(self.windows) == 1 else self.windows
            parts = [self.of_run(start, inputs.read(start, stop), targets.read(start, stop)) for start, stop in read]
        f, codes, numbers = (np.concatenate(each)[: self.most] for each in zip(*parts, strict=True))
        return f, codes, numbers

    def of_run(self, first: int, X: FloatArray, Y: FloatArray) -> tuple[FloatArray, arrays.Numbers, arrays.Numbers]:
        rows = np.arange(first, first + len(X))
        starts, stops = np.array(self.windows).T
        inside = rows < stops[np.searchsorted(starts, rows, side="right") - 1]  # the first window starts at row 0
        kept = inside & (self.deal.of_rows(rows) == held_fold(self.deal))
        return self.model.predict(X[kept]), Y[kept].argmax(axis=1), rows[kept]

    def of_chunk(self, first: int, X: FloatArray, Y: FloatArray) -> tuple[FloatArray, arrays.Numbers, arrays.Numbers]:
        """Of the chunk whose first row is number `first`; a Dask task."""
        array_sums.pin_worker()
        return self.of_run(first, arrays.matrix(X, "X", first), arrays.matrix(Y, "y", first))


def _without(held: int, drawing: array_sums.Drawing, fitted: Fitted) -> Model:
    if not any(sums.n for (fold, _), sums in fitted.sums.items() if fold != held):
        raise InputError("y has too few rows to hold some out for probabilities; use calibrate=False")
    return drawing.model(fitted.without(held))


def _likeliest(values: FloatArray, classes: class_labels.Labels) -> class_labels.Labels:
    return np.asarray(classes[values.argmax(axis=1)])


def _probabilities_and_std(
    model: Model, X: FloatArray, *, probabilities: Callable[[FloatArray], FloatArray], views: Views
) -> FloatArray:
    std = model.outcome_std(X, views=views, outcome=probabilities)
    return np.hstack([probabilities(model.predict(X, views=views)), std])


def _codes(Y: array_sums.Targets) -> npt.NDArray[np.int64]:
    assert isinstance(Y, class_labels.OneHot)
    return np.asarray(Y.labels, dtype=np.int64)


def _difference(values: FloatArray) -> FloatArray:
    return values[:, 1] - values[:, 0]


def plain(label: Any) -> Any:
    """A label as JSON has it."""
    value = label.item() if isinstance(label, np.number | np.bool | np.str_) else label
    return value if isinstance(value, str | bool | int | float) else str(value)
