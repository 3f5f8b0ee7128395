"""What estimators fitted by descent share: parameters, passes over shuffled rows, targets of numbers and of classes."""

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
import numpy.typing as npt
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dorff import __version__
from dorff.errors import InputError
from dorff.estimators.adapter import adapt_weights, check_alignment
from dorff.estimators.array_sums import Drawing, RowsRead, Targets, one_thread, runs, sample, sampled_runs, weights_of
from dorff.estimators.arrays import Rows, StoredRows, enough_memory, together, with_rows
from dorff.estimators.base import ORFFEstimator
from dorff.estimators.class_labels import OneHot, StoredLabels, one_hot
from dorff.estimators.classifier import ORFFClassifier, plain
from dorff.estimators.descended import loss_fitted
from dorff.estimators.parameters import is_auto
from dorff.estimators.regressor import ORFFRegressor
from dorff.fit import Fitted
from dorff.frequencies import Lattice
from dorff.kernels import Decomposable, FloatArray, OperatorKernel, ScalarKernel
from dorff.model import Calibration, Model, Views
from dorff.model.losses import Loss, Multinomial, as_loss
from dorff.solvers.descent import (
    Descent,
    DoublyStochastic,
    Expansion,
    Point,
    Schedule,
    shuffled,
)
from dorff.solvers.setting import learned_term, spread
from dorff.spec.checks import AUTO
from dorff.spec.registry import Config

IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)
class Course:
    """A descent under way: what was known before its first step, the `kernel` with its output matrices written out, how
    far it is, and how many passes there were over how many rows. Targets are (y - shift) / scale, both (q,)."""

    drawing: Drawing
    how: Descent | DoublyStochastic
    at: Point | Expansion
    kernel: OperatorKernel
    shift: FloatArray
    scale: FloatArray
    passes: int = 0
    rows: int = 0

    @property
    def steps(self) -> int:
        """So far."""
        return self.at.step if isinstance(self.at, Point) else len(self.at.alpha)

    def add(self, X: FloatArray, Y: FloatArray, w: FloatArray) -> None:
        """A step by rows X (n, d), Y (n, q) of weights w (n,)."""
        y, features = (Y - self.shift) / self.scale, self.drawing.features
        if isinstance(self.how, Descent):
            assert isinstance(self.at, Point)
            self.at = self.how.step(self.at, features.transform(X), y, w)
        else:
            assert isinstance(self.at, Expansion)
            self.at = self.how.step(self.at, (X - features.center) / features.scale, y, w)


@dataclass(eq=False, repr=False, kw_only=True)
class Stochastic(ORFFEstimator, ABC):
    """What the four estimators share: parameters, passes over shuffled rows; a step, and a model, are the subclass's.
    What `ORFFEstimator` chooses by its sums of rows is fixed here."""

    loss: Any = "squared"
    ridge: float = 1e-6
    epochs: int | str = AUTO
    batch_size: int = 64
    rate: float | str = AUTO
    schedule: Schedule | None = None
    cv: ClassVar[Any] = None  # type: ignore[misc]
    manifold: ClassVar[Any] = None  # type: ignore[misc]
    graph: ClassVar[Any] = None  # type: ignore[misc]
    n_jobs: ClassVar[Any] = None  # type: ignore[misc]
    tol: ClassVar[float] = 1e-4  # type: ignore[misc]
    of_sums: ClassVar[bool] = False
    takes: ClassVar[tuple[str, ...]]
    least: ClassVar[tuple[int, int]] = (10, 1000)  # passes and steps that `epochs` "auto" makes

    @abstractmethod
    def _begin(self, drawing: Drawing, kernel: OperatorKernel, X: FloatArray, y: FloatArray, size: float) -> Any:
        """How to step, and the start: from rows X (n, d), scaled targets y (n, q), and the weight of a batch."""

    @abstractmethod
    def _made(self, course: Course) -> Any:
        """`model_`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to inputs and targets, or labels, by `epochs` passes.

        Parameters
        ----------
        X, y
            As of `ORFFRegressor.fit` or `ORFFClassifier.fit`, whose units the estimator keeps.
        sample_weight : (n,), of any kind, or None
            How much a row counts, 0 or more; held in memory.

        Returns
        -------
        The estimator.

        Raises
        ------
        InputError
            As of these; the descent did not stay finite at its `rate`.
        """
        self._whole = True
        try:
            super().fit(X, y, sample_weight)
        finally:
            self._whole = False
        self._stream: Any = self._course
        return self

    @property
    def _loss(self) -> Loss:
        return as_loss(self.loss)

    def _check_memory(self, m: int, q: int) -> None:
        """Nothing is as large as sums of rows."""

    def _check_arguments(self) -> None:
        super()._check_arguments()
        loss, wanted = self._loss, "numbers or counts" if "numbers" in self.takes else "labels"
        if loss.takes not in self.takes or loss.levels > 1:
            problem = f"loss: wanted one of {wanted}, a value for each target; got {self.loss!r}"
            raise InputError(f"{problem}; use another loss, or the other kind of estimator")
        if len(self._ridges()) > 1 or is_auto(self.ridge):
            raise InputError(f"ridge must be one number >= 0, not {self.ridge!r}; compare several by GridSearchCV")
        whole = {"batch_size": self.batch_size} | ({} if is_auto(self.epochs) else {"epochs": self.epochs})
        for name, value in whole.items():
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of 1 or more, not {value!r}; leave it at its default")
        if not is_auto(self.rate) and not (isinstance(self.rate, numbers.Real) and 0 < self.rate < np.inf):
            raise InputError(f"rate must be a number above 0, or 'auto', not {self.rate!r}; leave it at its default")
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            remedy = "give one of dorff.solvers.descent, such as InverseTime()"
            raise InputError(f"schedule must be a Schedule or None, not {self.schedule!r}; {remedy}")
        if isinstance(self.sampler, Lattice):
            raise InputError(f"sampler: a lattice is for sums of rows, not {self.sampler!r}; leave the sampler out")

    def _descend(self, X: Rows, Y: Targets, weights: FloatArray | None, class_weight: FloatArray | None = None) -> None:
        """As many passes over X (n, d) and Y (n, q) as are due, from where earlier calls came to."""
        n, whole, loss = int(X.shape[0]), vars(self).get("_whole", False), self._loss
        course: Course | None = self._stream
        with one_thread(), np.errstate(over="ignore", invalid="ignore"):
            course = self._first(X, Y, weights, class_weight) if course is None else course
            if Y.shape[1] != len(course.shift):
                raise InputError(f"y has {Y.shape[1]} targets, but partial_fit began with {len(course.shift)}")
            began = course.how.problem.loss if isinstance(course.how, Descent) else course.how.loss
            if (began.config(), course.how.ridge) != (loss.config(), self.ridge):
                given = f"loss {loss.config()!r} and ridge {self.ridge:g}"
                problem = f"partial_fit began with loss {began.config()!r} and ridge {course.how.ridge:g}"
                raise InputError(f"{problem}, and goes on with these, not with {given}; call fit to begin again")
            epochs = self._passes(n) if whole else 1
            for _ in range(epochs):
                for x, y, rows in batches(X, Y, (course.drawing.seed, course.passes), self.batch_size):
                    w = np.ones(len(rows)) if weights is None else weights[rows]
                    loss.check(np.where(w[:, None] > 0, y, np.nan), "loss", "y, ", rows, range(y.shape[1]))
                    course.add(x, y, w if class_weight is None else w * (y @ class_weight))
                course.passes, course.rows = course.passes + 1, course.rows + n
        self._stream = self._course = course
        self.steps_, self.model_ = course.steps, self._made(course)
        if not np.isfinite(self.model_.intercept).all():
            self._stream = None
            raise InputError(
                f"rate: the descent did not stay finite at rate {self.rate!r}; lower it, or leave it 'auto'"
            )

    def _passes(self, n: int) -> int:
        """Of `fit`, over n rows."""
        passes, steps = self.least
        return (
            max(passes, math.ceil(steps / math.ceil(n / self.batch_size))) if is_auto(self.epochs) else int(self.epochs)
        )

    def _first(self, X: Rows, Y: Targets, weights: FloatArray | None, class_weight: FloatArray | None) -> Course:
        """What a sample of rows tells: features, the targets' shift and scale, rates."""
        numeric, dealing = self._loss.takes == "numbers", lambda rule: rule
        drawing = self._draw(X, Y, dealing, observe=self._average(Y.shape[1]), weights=weights, free_scale=not numeric)
        some_x, some_y, w = _sampled(X, Y, weights, class_weight)
        kernel, observe, d = drawing.setting.kernel, drawing.setting.observe, int(X.shape[1])
        if learned_term(kernel) is not None:
            raise InputError("kernel: output 'learned' is learned from sums of rows; give a matrix, or covariance")
        shift, scale = drawing.y0 if numeric and self.intercept else np.zeros(Y.shape[1]), np.ones(Y.shape[1])
        if numeric and self._scales:
            variance = np.average((some_y - drawing.y0) ** 2, axis=0, weights=w)
            scale = spread(variance, together=kernel.vector_field or observe is not None)
        y = (some_y - shift) / scale
        about = y - np.average(y, axis=0, weights=w)
        kernel = kernel.fix(d, drawing.recipe.p, about.T @ (w[:, None] * about) / w.sum() if observe is None else None)
        how, at = self._begin(drawing, kernel, some_x, y, self.batch_size * float(w.mean()))
        return Course(drawing, how, at, kernel, shift, scale)

    def _info(self, course: Course) -> Config:
        """What the model says of its fit."""
        report = {"rows_used": course.rows, "ridge": float(self.ridge), "steps": course.steps}
        info: Config = {"report": report, "versions": {"dorff": __version__, "numpy": np.__version__}}
        if self._loss.kind != "squared":
            info["loss"] = self._loss.config()
        if "classes_" in vars(self):
            info["labels"] = [plain(label) for label in self.classes_]
            if isinstance(self._loss, Multinomial):
                info["calibration"] = Calibration(1.0).config()
        return info

    def _offset(self, y: FloatArray, p: int) -> FloatArray:
        """b (p,) to begin with, for scaled targets y (n, q)."""
        counts = self._loss.takes == "counts" and self.intercept
        return np.full(p, np.log(max(float(y.mean()), 1e-3))) if counts else np.zeros(p)


def _sampled(
    X: Rows, Y: Targets, weights: FloatArray | None, class_weight: FloatArray | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rows X (k, d), Y (k, q) and their weights (k,), of which some are above 0; and no others, where some are."""
    (x, y), w = sample(X, Y), weights_of(weights, sampled_runs(int(X.shape[0])))
    w = np.ones(len(x)) if w is None else w
    w = w if class_weight is None else w * (y @ class_weight)
    return (x[w > 0], y[w > 0], w[w > 0]) if w.any() else (x, y, np.ones(len(x)))


def batches(
    X: Rows, Y: Targets, order: tuple[int, int], size: int
) -> Iterator[tuple[FloatArray, FloatArray, IntArray]]:
    """A pass in batches of `size` rows, fewer at the end of a shard: X (k, d), Y (k, q) and the rows' numbers (k,).
    Shards are Dask's chunks, or runs of whole chunks of what is stored; rows in memory are one. They and the rows in
    each come in the order of (seed, pass), `shuffled`."""
    n = int(X.shape[0])
    labels: Any = Y.labels if isinstance(Y, OneHot) else Y
    if isinstance(X, da.Array):
        ends = np.cumsum(X.chunks[0]).tolist()
        shards = [(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True) if a < b]
    elif isinstance(X, StoredRows) or isinstance(labels, StoredRows | StoredLabels):
        assert not isinstance(Y, da.Array)
        shards = list(runs(X, Y))
    else:
        for _, _, rows in shuffled(*order, [(0, n)]):
            for at in range(0, n, size):
                i = rows[at : at + size]
                y = labels[i]
                yield X[i], one_hot(y, Y.classes) if isinstance(Y, OneHot) else y, i
        return
    for start, stop, rows in shuffled(*order, shards):
        x, y = RowsRead.of(X, Y, [(start, stop)])[[(start, stop)]]
        for at in range(0, len(rows), size):
            i = rows[at : at + size]
            yield x[i], y[i], start + i


def _has_probabilities(estimator: Any) -> bool:
    if not as_loss(estimator.loss).likelihood:
        raise AttributeError(f"loss {estimator.loss!r} has no probabilities; use 'multinomial' or 'logistic'")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class OfNumbers(ORFFRegressor):
    """Targets that are numbers."""

    observe: ClassVar[Any] = None  # type: ignore[misc]
    missing: ClassVar[str] = "refuse"  # type: ignore[misc]
    criterion: ClassVar[str] = AUTO  # type: ignore[misc]
    precision: ClassVar[str] = "double"  # type: ignore[misc]
    posterior: ClassVar[bool] = False  # type: ignore[misc]
    takes: ClassVar[tuple[str, ...]] = ("numbers", "counts")

    @property
    def _gaps_remedy(self) -> str:
        return "leave these rows out"

    def _add(self, X: Any, y: Any, sample_weight: Any, groups: Any, *, all_rows: bool) -> None:
        self._check_arguments()
        check_alignment(X=X, y=y, sample_weight=sample_weight, groups=groups)
        X = self._adapt_inputs(X, reset=self._stream is None)
        y = self._adapt_targets(y, reset=self._stream is None)
        X, y = self._validated(X, y, reset=self._stream is None)
        self._one_output = y.ndim == 1
        X, Y = together(with_rows(X, "X"), with_rows(y, "y"))
        with enough_memory("lower n_features, or give Zarr or Dask arrays"):
            self._descend(X, Y, adapt_weights(sample_weight, X.shape[0]))

    def predict(self, X: Any, *, views: Views = None) -> Any:  # type: ignore[override]
        """Predict what the loss takes f for: f itself; of counts their mean, exp f.

        Parameters
        ----------
        X, views
            As of `ORFFRegressor.predict`.

        Returns
        -------
        (n, p), or (n,) where y was 1-d
            In the units that the targets had in the fit. A lazy Dask array for Dask input, else NumPy.

        Raises
        ------
        InputError
            As of `ORFFRegressor.predict`.
        """
        check_is_fitted(self)
        finish = partial(_outcome, loss=loss_fitted(self), flat=self._one_output)
        return self._mapped(X, finish, () if self._one_output else (self.model_.p,), views=views)

    @property
    def _kept(self) -> Fitted:
        check_is_fitted(self)
        raise InputError("a descent keeps no sums to say how sure the fit is; use ORFFRegressor")


@dataclass(eq=False, repr=False, kw_only=True)
class OfClasses(ORFFClassifier):
    """Labels."""

    coding: ClassVar[str] = "one_vs_all"  # type: ignore[misc]
    calibrate: ClassVar[bool] = False  # type: ignore[misc]
    posterior: ClassVar[bool] = False  # type: ignore[misc]
    takes: ClassVar[tuple[str, ...]] = ("classes", "labels")

    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        return Decomposable(scalar, "simplex" if self._loss.centred else "identity")

    def _fit(
        self,
        X: Any,
        Y: Any,
        terms: Any,
        inputs: Any,
        weights: FloatArray | None,
        groups: Any,
        *,
        all_rows: bool,
    ) -> None:
        self._descend(X, Y, weights, self.class_weight_)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, *, views: Views = None) -> Any:
        """Probabilities (n, K) of the classes at X (n, d): softmax(f), or of each class against the others, over their
        sum. Of losses that are likelihoods."""
        check_is_fitted(self)
        return self._mapped(X, loss_fitted(self).probabilities, (len(self.classes_),), views=views)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, *, views: Views = None) -> Any:
        """Logarithms (n, K) of the probabilities."""
        check_is_fitted(self)
        return self._mapped(X, loss_fitted(self).log_probabilities, (len(self.classes_),), views=views)

    def _uncertain_model(self) -> Model:
        raise InputError("posterior: a descent keeps none; use ORFFClassifier")


def _outcome(f: FloatArray, loss: Loss, flat: bool) -> FloatArray:
    values = loss.outcome(f)
    return values[:, 0] if flat else values
