"""StochasticORFFRegressor, DoublyStochasticRegressor, and their classifiers: fits by descent, with any loss."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.estimators.array_sums import Drawing
from dorff.estimators.descents import Course, OfClasses, OfNumbers, Stochastic
from dorff.estimators.parameters import is_auto
from dorff.frequencies import Landmarks
from dorff.kernels import FloatArray, MultiView, OperatorKernel
from dorff.model import Model, Views, operator_weights
from dorff.solvers.descent import (
    LATER,
    Average,
    Constant,
    Descent,
    DoublyStochastic,
    Expansion,
    InverseTime,
    Point,
    Rates,
)
from dorff.solvers.objective import LossProblem


@dataclass(eq=False, repr=False, kw_only=True)
class Descending(Stochastic, ABC):
    """One set of features, and SGD or Adam on their coefficients."""

    solver: str = "sgd"
    average: bool | Average = True

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.solver not in ("sgd", "adam"):
            raise InputError(f"solver must be 'sgd' or 'adam', not {self.solver!r}; leave it at its default")
        if not isinstance(self.average, bool | Average):
            remedy = "give dorff.solvers.descent.Average(first=...), say"
            raise InputError(f"average must be True, False or an Average, not {self.average!r}; {remedy}")

    def _begin(
        self, drawing: Drawing, kernel: OperatorKernel, X: FloatArray, y: FloatArray, size: float
    ) -> tuple[Descent, Point]:
        loss, F = self._loss, drawing.features.transform(X)
        weights = operator_weights(kernel, F.shape[1], drawing.setting.density)
        m, r, p = weights.shape
        C = np.eye(p) if drawing.setting.observe is None else drawing.setting.observe
        mean = F.mean(axis=0) if self.intercept else np.zeros(m)
        start = np.zeros((m, r)), self._offset(y, p)
        problem = LossProblem(loss, weights, C, (), bool(self.intercept), mean, np.empty((0, 0)), {}, start)
        rates = Rates.of(problem, F, y, ridge=self.ridge, batch=self.batch_size)
        how = Descent(
            problem,
            self.ridge,
            rates,
            size,
            self.schedule or (InverseTime(30.0, 0.5) if loss.kinked else Constant()),
            self.average if isinstance(self.average, Average) else LATER,
            self.solver == "adam",
            None if is_auto(self.rate) else float(self.rate),
        )
        return how, how.start()

    def _made(self, course: Course) -> Model:
        assert isinstance(course.how, Descent) and isinstance(course.at, Point)
        drawing, problem, at = course.drawing, course.how.problem, course.at
        h, b = course.how.coefficients(at.theta if self.average is False else at.mean)
        scale = np.full(len(b), course.scale[0]) if drawing.setting.observe is not None else course.scale
        return Model(
            drawing.features,
            problem.weights,
            h,
            b * scale + np.linalg.pinv(problem.C) @ course.shift,
            scale,
            course.kernel,
            drawing.recipe.sampler.config(),
            drawing.seed,
            self._info(course),
            drawing.setting.observe,
        )


@dataclass(frozen=True, eq=False)
class SeededModel:
    """f of a doubly stochastic fit, in the targets' units: coefficients and a seed, from which `predict` draws the
    frequencies again, those of one step after the other. A prediction costs as much as all of the steps' features."""

    expansion: Expansion
    center: FloatArray
    scale: FloatArray
    intercept: FloatArray
    target_scale: FloatArray
    kernel: OperatorKernel
    info: Mapping[str, Any]
    observe: ClassVar[None] = None

    @property
    def d(self) -> int:
        return len(self.center)

    @property
    def p(self) -> int:
        return len(self.intercept)

    def predict(self, X: npt.ArrayLike, *, views: Views = None) -> FloatArray:
        """f (n, p) at X (n, d). InputError when X has other columns, and for views, which there are none of."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise InputError(f"X must be (rows, {self.d}), as the model was fitted to; got shape {rows.shape}")
        if views is not None:
            raise InputError(f"views: the kernel has none to choose from, got {views!r}; leave views out")
        return self.expansion.values((rows - self.center) / self.scale) * self.target_scale + self.intercept


@dataclass(eq=False, repr=False, kw_only=True)
class Doubly(Stochastic, ABC):
    """New features at every step."""

    n_features: int | str = 64
    solver: ClassVar[str] = "auto"  # type: ignore[misc]
    least: ClassVar[tuple[int, int]] = (1, 200)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if isinstance(self.sampler, Landmarks):
            problem = "each step draws new features, and landmarks are chosen once"
            raise InputError(f"sampler: {problem}; leave the sampler out, or use StochasticORFFRegressor")

    def _begin(
        self, drawing: Drawing, kernel: OperatorKernel, X: FloatArray, y: FloatArray, size: float
    ) -> tuple[DoublyStochastic, Expansion]:
        if isinstance(kernel, MultiView):
            raise InputError("kernel: doubly stochastic descent has no views; use StochasticORFFRegressor")
        recipe, loss = replace(drawing.recipe, kernel=kernel), self._loss
        start = Expansion.empty(recipe, drawing.seed, self._offset(y, recipe.p))
        x, C = (X - drawing.features.center) / drawing.features.scale, np.eye(recipe.p)
        rate, constant = DoublyStochastic.rates(loss, C, recipe, x, y, self.batch_size)
        rate = rate if is_auto(self.rate) else float(self.rate)
        schedule = self.schedule or InverseTime(1000.0)
        how = DoublyStochastic(loss, C, self.ridge, rate, constant, size, schedule, bool(self.intercept))
        return how, start

    def _made(self, course: Course) -> SeededModel:
        assert isinstance(course.at, Expansion)
        features = course.drawing.features
        return SeededModel(
            course.at, features.center, features.scale, course.shift, course.scale, course.kernel, self._info(course)
        )


@dataclass(eq=False, repr=False, kw_only=True)
class StochasticORFFRegressor(Descending, OfNumbers):  # type: ignore[misc]
    """Vector-valued regression with any loss by SGD or Adam, in a few passes over the rows.

    f minimises 1/l sum L(y, f(x)) + ridge |f|^2, as of `ORFFRegressor` where the loss is the square, up to what is left
    of the descent: its error falls with the steps, along directions that the kernel weighs little hardly at all.

    Parameters
    ----------
    kernel, n_features, sampler, intercept, standardize
        As of `ORFFRegressor`; without a sampler features are random.
    loss : Loss, word or mapping
        "squared", "poisson" (of counts, whose log mean f is), {"huber": 1.35}, {"epsilon_insensitive": 0.1},
        {"quantiles": [0.9]}; residuals are in the scaled targets' units.
    ridge : float
        One; compare several by GridSearchCV.
    solver : "sgd" or "adam"
        SGD with longer steps where the objective is flat (`solvers.descent.Rates`), or Adam (Kingma & Ba 2015).
    epochs : int or "auto"
        Passes of `fit`; "auto": 10, or as many as make 1000 steps.
    batch_size : int
        Rows a step.
    rate : float or "auto"
        Of the first step, in h's units; "auto" is what the features' second moments on a sample of rows allow.
    schedule : Schedule or None
        How the rate falls: of `solvers.descent`. None: not at all, or with the root of time where the loss has a kink.
    average : bool or Average
        Whether the model is a mean of steps: True weighs the t-th by t^8 about, False takes the last one alone.
    random_state : int, RandomState or None
        Of the frequencies and the order of rows.

    Attributes
    ----------
    model_ : Model
        What `dorff.store.save_model` publishes: f, of counts the log mean.
    steps_ : int
        Steps so far.

    Notes
    -----
    X and y are as `ORFFRegressor` takes them. Rows are shuffled at each pass: in memory all of them; of Zarr runs of
    chunks and of Dask the chunks, one at a time in memory, and the rows in each. So rows that lie in order, such as
    all of one class together, should be shuffled before they are stored. `partial_fit` makes one pass over the rows
    given, and goes on with steps, averages and constants from earlier calls, `fit` among them."""


@dataclass(eq=False, repr=False, kw_only=True)
class StochasticORFFClassifier(Descending, OfClasses):  # type: ignore[misc]
    """Classes by SGD or Adam on a loss of labels, in a few passes over the rows.

    `loss` is "multinomial", "logistic" (each class against all others), "hinge", "squared_hinge" or "simplex", the
    simplex-cone SVM, whose scalar kernels stand for `Decomposable(k0, "simplex")`, those of others for
    `Decomposable(k0, "identity")`. `class_weight` is as of `ORFFClassifier`, all else as of `StochasticORFFRegressor`.
    Probabilities are those of the loss itself, not calibrated on rows held out."""

    loss: Any = "multinomial"


@dataclass(eq=False, repr=False, kw_only=True)
class DoublyStochasticRegressor(Doubly, OfNumbers):  # type: ignore[misc]
    """Regression by doubly stochastic descent (Dai et al. 2014): each step draws a batch of rows and `n_features` new
    features. T steps have T n_features of these and cost O(T^2), a prediction O(T); only coefficients and the seed are
    kept. The kernel needs a spectrum, and no views. `schedule` None is `InverseTime(1000)`; `epochs` "auto" is one
    pass, or as many as make 200 steps. `model_` is a `SeededModel`; all else is as of `StochasticORFFRegressor`."""


@dataclass(eq=False, repr=False, kw_only=True)
class DoublyStochasticClassifier(Doubly, OfClasses):  # type: ignore[misc]
    """Classes by doubly stochastic descent: as `DoublyStochasticRegressor`, losses as of `StochasticORFFClassifier`."""

    loss: Any = "multinomial"
