"""What the estimators share: parameters checked, features drawn, a solve, predictions for every kind of array."""

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial as bound
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from dask.system import CPU_COUNT
from scipy.linalg import LinAlgWarning
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

import dorff.estimators.array_sums as array_sums
import dorff.estimators.parameters as parameters
from dorff.errors import InputError, QualityWarning
from dorff.estimators.array_sums import FOLDS, Drawing, Look, RowsRead, Stream, Targets, sample, sampled_runs
from dorff.estimators.arrays import Deal, GivenFolds, Rows, check_memory, choose_by_splits, dealt_by, enough_memory
from dorff.estimators.descended import Summed, descended, loss_of
from dorff.estimators.landmarks import SampledRows, candidate_runs, choose_features
from dorff.estimators.parameters import (
    TOO_LARGE,
    Nested,
    in_python,
    is_auto,
    named_kernel,
    runs_read,
    seed_of,
    serves_matern,
    tuned,
)
from dorff.estimators.random_features import Answer, answered
from dorff.estimators.semi import ManifoldLike, Penalties, columns_read, terms_of
from dorff.features import Recipe, folded, periods_of
from dorff.features.lengthscale_search import search_size
from dorff.fit import Fitted, folds_with_rows
from dorff.fit.quality import FitQuality, warnings_of, warnings_of_status
from dorff.frequencies import Landmarks, Lattice, Sampler, default_sampler
from dorff.graphs import Manifold
from dorff.kernels import (
    FloatArray,
    Gaussian,
    MultiView,
    OperatorKernel,
    ScalarKernel,
    input_lengthscales,
    mean_of,
    median_lengthscale,
)
from dorff.model import Model, Posterior, Views
from dorff.model.losses import Loss
from dorff.moments import pooled
from dorff.passes import FoldRule
from dorff.plan import Scaling, draw_features, features_for, target_means
from dorff.plan.choosing import with_feature_error
from dorff.plan.constants import TiedColumns
from dorff.plan.landmark_choice import has_enough_landmarks
from dorff.plan.sampled import distance, run_length
from dorff.solvers import Choice, LeftOut, Setting, choose
from dorff.solvers.by_loss import Minimisation
from dorff.solvers.few_rows import FEW_ROWS
from dorff.spec.checks import AUTO
from dorff.spec.job import FIRST_RIDGES
from dorff.spec.registry import HELD_OUT

Finish = Callable[[FloatArray], npt.NDArray[Any]]  # from f (k, p) to what is asked for; may be pickled
Dealing = Callable[[FoldRule], Deal]
_TABLES = {"gcv": "gcv_", "evidence": "log_evidences_", "kfold": "cv_errors_", "loo": "cv_errors_"}
_OTHER_TABLE = "scores_"  # of a criterion of another package


@dataclass(frozen=True, eq=False, kw_only=True)
class _ScaledSample:
    """Rows of an estimator that were read, and the scaling that some of them determine.

    Attributes
    ----------
    rows : SampledRows
        All rows that were read.
    X : (k, d)
        Inputs that the scaling and median distances come from, folded into their periods.
    weights : (k,), optional
        The weights of X (None: 1).
    periods : (d,)
        The periods of the inputs; infinite if there is none.
    scaling : Scaling
        The affine map of the inputs.
    """

    rows: SampledRows
    X: FloatArray
    weights: FloatArray | None
    periods: FloatArray
    scaling: Scaling

    def scale(self, X: FloatArray) -> FloatArray:
        """Scale inputs X (n, d), folded into their periods."""
        return self.scaling(folded(X, self.periods))


@dataclass(frozen=True, eq=False, kw_only=True)
class _KernelChoice:
    """A kernel with its length-scales, statistics of sampled rows, and the assignment to folds."""

    kernel: OperatorKernel
    looked: Look | None
    deal: Deal


class AbsentError(InputError, AttributeError):
    """An attribute that this fit has not: `hasattr` and `dir` go past it."""


@contextmanager
def absent() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise AbsentError(str(error)) from error


def reads_once(estimator: Any) -> bool:
    """Whether rows may come in parts; AttributeError, which hides `partial_fit`, that says why not."""
    if estimator.of_sums and estimator._loss.kind != "squared":
        raise AttributeError("partial_fit reads rows once, and another loss than the square many times; use fit")
    if estimator.manifold is not None:
        raise AttributeError("partial_fit: a manifold is of all rows together; leave it out, or use fit")
    if getattr(estimator, "calibrate", False):
        raise AttributeError("partial_fit reads rows once, and calibrate=True some of them twice; set calibrate=False")
    return True


@dataclass(eq=False, repr=False)
class ORFFEstimator(Nested, ABC):
    """A scikit-learn estimator whose model is one `Model`, `model_`."""

    kernel: OperatorKernel | ScalarKernel | str | None = None
    n_features: int | str = AUTO
    _: KW_ONLY
    sampler: Sampler | None = None
    ridge: float | Sequence[float] | str = AUTO
    cv: Any = AUTO
    random_state: int | np.random.RandomState | None = 0
    intercept: bool = True
    standardize: bool | str = AUTO
    manifold: ManifoldLike = None
    graph: Any = None
    n_jobs: int | None = None
    loss: Any = "squared"
    solver: str = "auto"
    tol: float = 1e-4
    of_sums: ClassVar[bool] = True  # whether it is fitted to sums of rows
    _loo_below: ClassVar[int] = FEW_ROWS  # rows, of which leave-one-out compares ridges where nobody says what does

    @property
    def lengthscales_(self) -> list[FloatArray | None]:
        """The kernel's length-scales in the inputs' own units, for each term (d,); None of a term that has none."""
        check_is_fitted(self)
        model, found = self.model_, list[FloatArray | None]()
        for lengths in input_lengthscales(model.kernel, model.feature_map.scale):
            numbers = np.full(model.d, np.nan)
            numbers[list(lengths or ())] = list((lengths or {}).values())
            found.append(None if lengths is None else numbers)
        return found

    @abstractmethod
    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        """The kernel that a scalar one stands for."""

    def _check_arguments(self) -> None:
        if vars(self).get("_stream") is None:
            self.__dict__.pop("_rows", None)  # of an earlier fit
        count = self.n_features
        if not is_auto(count) and (not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 2):
            raise InputError(f"n_features must be a whole number of 2 or more, or 'auto', got {count!r}")
        if not isinstance(self._given(), OperatorKernel | ScalarKernel):
            raise InputError(f"kernel must be one of dorff.kernels, not {self.kernel!r}")
        if self.sampler is not None and not isinstance(self.sampler, Sampler):
            raise InputError(f"sampler must be one of dorff.frequencies, such as Lattice(1e-3), not {self.sampler!r}")
        number = isinstance(self.cv, numbers.Number | str) and not is_auto(self.cv)
        if number and (not isinstance(self.cv, numbers.Integral) or self.cv < 2):
            raise InputError(f"cv must be 'auto', None or a number of folds of 2 or more, not {self.cv!r}")
        self._ridges()  # which refuses what is none
        if self.of_sums:
            Minimisation(self._loss, self.solver)
        if isinstance(self.tol, bool) or not isinstance(self.tol, numbers.Real) or not 0 < self.tol < 1:
            raise InputError(f"tol must be a number between 0 and 1, not {self.tol!r}")

    def _ignored(self, idle: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Parameters that are not left at their defaults and change nothing, and why; `idle` says so of the draw's."""
        if self.of_sums and self._loss.kind == "squared":
            changed = [name for name, usual in (("solver", "auto"), ("tol", 1e-4)) if getattr(self, name) != usual]
            yield from ((name, "loss is squared, whose least comes from one pass") for name in changed)
        if self.sampler is not None and "sampler" in idle:
            yield "sampler", idle["sampler"]
        deals = self._cv is not None or getattr(self, "calibrate", False)
        if self.random_state != 0 and "seed" in idle and not deals and self.manifold is None:
            yield "random_state", idle["seed"]

    def _manifold_terms(self) -> tuple[Manifold, ...]:
        """Those asked for; InputError where they or their number cannot be."""
        terms = terms_of(self.manifold, self.graph)
        trials = len(self._ridges()) * math.prod(len(term.weights) for term in terms)
        if terms and trials > 1 and self._by not in HELD_OUT:
            problem = f"{trials} combinations of ridge and weights can only be compared by k-fold of the labelled rows"
            raise InputError(f"manifold: {problem}; give cv=5, say, criterion='loo', or one ridge and one weight")
        return terms

    @property
    def _cv(self) -> Any:
        """`cv`; of "auto" the folds that there are: FOLDS where something is to be chosen and `criterion` does not."""
        if not is_auto(self.cv):
            return self.cv
        terms = terms_of(self.manifold, self.graph)
        several = is_auto(self.ridge) or len(self._ridges()) * math.prod(len(term.weights) for term in terms) > 1
        few = vars(self).get("_rows", FOLDS) < FOLDS and not terms
        return FOLDS if several and is_auto(getattr(self, "criterion", AUTO)) and not few else None

    @property
    def _by(self) -> str:
        if self._cv is not None:
            return "kfold"
        criterion: str = getattr(self, "criterion", AUTO)
        if criterion != AUTO:
            return criterion
        return "loo" if vars(self).get("_few_rows", False) else "gcv"

    def _has_few_rows(self, n: int) -> bool:
        """Whether n rows are so few that leave-one-out compares ridges where nobody says what does."""
        several = is_auto(self.ridge) or len(self._ridges()) > 1
        return several and FOLDS <= n < self._loo_below

    @property
    def _unsaid(self) -> bool:
        return self.kernel is None or isinstance(self.kernel, str)

    @property
    def _scales(self) -> bool:
        """`standardize`; of "auto", where the length-scale is left to the rows too."""
        return self._unsaid if is_auto(self.standardize) else bool(self.standardize)

    def _ridges(self) -> list[float]:
        if is_auto(self.ridge):
            return list(FIRST_RIDGES)
        with suppress(TypeError, ValueError):
            ridges = [float(ridge) for ridge in np.atleast_1d(np.asarray(self.ridge, dtype=np.float64))]
            if ridges and all(np.isfinite(ridge) and ridge >= 0 for ridge in ridges):
                return ridges
        raise InputError(f"ridge must be a number >= 0, a list of them, or 'auto', not {self.ridge!r}")

    def _average(self, q: int) -> FloatArray | None:
        """C (q, V q) of a kernel of V views: the targets are their mean; None for other kernels."""
        return mean_of(self.kernel.V, range(self.kernel.V), q) if isinstance(self.kernel, MultiView) else None

    def _draw(
        self,
        X: Rows,
        Y: Targets,
        dealing: Dealing,
        *,
        scale_targets: bool = False,
        observe: FloatArray | None = None,
        partial: bool = False,
        weights: FloatArray | None = None,
        inputs: FloatArray | None = None,
        free_scale: bool = False,
        all_rows: bool = False,
    ) -> Drawing:
        """Draw the features, by constants from a sample of the rows.

        Parameters
        ----------
        X : (n, d)
            The inputs of the rows that have targets.
        Y : (n, q)
            Their targets.
        dealing : callable
            Returns the assignment of rows to folds by a fold rule.
        scale_targets : bool
            Whether targets are divided by their standard deviations.
        observe : (q, p), optional
            The matrix C that maps outputs to targets (default: the identity).
        partial : bool
            Whether rows may miss some of their targets.
        weights : (n,), optional
            The weights of the rows (default: 1).
        inputs : (k, d), optional
            The inputs of all rows, if some have no targets (default: X). Scales, median distances
            and the box of a lattice come from them.
        free_scale : bool
            Whether targets are classes, so that only the order of outputs counts.
        all_rows : bool
            Whether no rows come later, so that the default sampler may be landmarks.
        """
        seed, d = seed_of(self.random_state), X.shape[1]
        p = Y.shape[1] if observe is None else observe.shape[1]
        covariance = np.eye(p) if observe is None else None
        given = self._given()
        if isinstance(given, OperatorKernel):
            given.fix(d, p, covariance)  # what cannot be is refused before a row is read
        self._rows = n = int(X.shape[0])
        self._check_fold_count(n, noun="rows" if inputs is None else "labelled rows")

        # Read all rows that are needed before the pass at once.
        looks = self._cv is not None and inputs is None and (is_auto(self.cv) or not free_scale)
        may_choose_landmarks = self.sampler is None and all_rows
        needs_candidates = self._uses_landmarks(given, d) or may_choose_landmarks
        runs = runs_read(n, tunes=self._unsaid, looks=looks)
        if needs_candidates:
            runs += candidate_runs(n)
        read = RowsRead.of(X, Y, runs, partial=partial)
        rows = SampledRows(read=read, n=n, weights=weights, inputs=inputs)

        X_sample, Y_sample = read[sampled_runs(n)]
        w = array_sums.weights_of(weights, sampled_runs(n))
        if w is not None and w.any():  # rows that all weigh nothing count like those of weight 1
            is_weighty = w > 0
            X_sample, Y_sample, w = X_sample[is_weighty], Y_sample[is_weighty], w[is_weighty]
        else:
            w = None
        y0 = target_means(Y_sample, w)

        if inputs is not None:
            X_sample, _ = sample(inputs, inputs[:, :0])
            w = None
        periods, box = np.full(d, np.inf), None
        if isinstance(self.sampler, Lattice):
            periods = periods_of(self.sampler.config(), d)
            if inputs is None:
                box = array_sums.lattice_box(self.sampler, X, weights)
            else:
                box = array_sums.lattice_box(self.sampler, inputs, None)
        X_sample = folded(X_sample, periods)
        tied = self._tied_columns(given, d)
        is_invariant = all(scalar.shift_invariant for scalar in _scalar_kernels(given))
        scaling = Scaling.from_rows(X_sample, w, tied=tied, shift_invariant=is_invariant)

        scaled_sample = _ScaledSample(
            rows=rows,
            X=X_sample,
            weights=w,
            periods=periods,
            scaling=scaling,
        )
        count = features_for(n) if is_auto(self.n_features) else int(self.n_features)
        make_setting = bound(
            Setting,
            d=d,
            density=None,
            standardize=scale_targets,
            intercept=bool(self.intercept),
            observe=observe,
            free_scale=free_scale,
        )
        choice = self._select_kernel(
            scaled_sample,
            dealing,
            make_setting,
            looks=looks,
            observe=observe,
            free_scale=free_scale,
            count=count,
            seed=seed,
        )
        kernel = choice.kernel

        sampler = default_sampler(kernel, d) if self.sampler is None else self.sampler
        if box is not None:
            sampler = sampler.over(np.ptp(scaling(box), axis=0), constant=not self.intercept)
        fixed = kernel.fix(d, p, covariance)
        recipe = Recipe(fixed, sampler, d, p, count, bool(self.intercept))
        if may_choose_landmarks:
            recipe = choose_features(
                recipe,
                make_setting(kernel, m=recipe.m),
                rows,
                scaling,
                choice.deal,
                count_free=is_auto(self.n_features),
                seed=seed,
            )
        elif recipe.landmarks is not None:
            recipe = recipe.among(rows.candidates(scaling), seed)
        self._check_memory(recipe.m, Y.shape[1])

        is_scaled = tied is not None
        drawn_features = draw_features(recipe, X_sample, scaling, seed, standardized=is_scaled)
        for name, why in self._ignored(recipe.idle):
            problem = f"{name}={getattr(self, name)!r} has no effect: {why}"
            warnings.warn(problem, UserWarning, stacklevel=3)
        features = drawn_features.feature_map
        setting = make_setting(kernel, m=features.m, density=drawn_features.drawn.density)
        return Drawing(
            features=features,
            y0=y0,
            setting=with_feature_error(setting, recipe, features),
            recipe=recipe,
            seed=seed,
            deal=choice.deal,
            looked=choice.looked,
            box=box,
        )

    def _check_fold_count(self, n: int, *, noun: str) -> None:
        """Raise InputError if there are fewer of the n rows, which `noun` names, than folds."""
        if isinstance(self._cv, numbers.Integral) and int(self._cv) > n:
            problem = f"cv = {self._cv} folds need as many {noun}, but n_samples = {n}"
            raise InputError(f"{problem}; use fewer folds")

    def _uses_landmarks(self, given: OperatorKernel | ScalarKernel, d: int) -> bool:
        """Return whether the sampler is landmarks, or those are the only features of the kernel."""
        kernel = given if isinstance(given, OperatorKernel) else self._of_scalar(given)
        sampler = default_sampler(kernel, d) if self.sampler is None else self.sampler
        return isinstance(sampler, Landmarks)

    def _tied_columns(
        self,
        given: OperatorKernel | ScalarKernel,
        d: int,
    ) -> TiedColumns:
        """Return the groups of columns that share a scale; None if inputs are not scaled."""
        if not self._scales:
            return None
        return given.tied(d) if isinstance(given, OperatorKernel) else ()

    def _select_kernel(
        self,
        sample: _ScaledSample,
        dealing: Dealing,
        make_setting: Callable[..., Setting],
        *,
        looks: bool,
        observe: FloatArray | None,
        free_scale: bool,
        count: int,
        seed: int,
    ) -> _KernelChoice:
        """Return the kernel with its length-scales, and the assignment of rows to folds.

        A kernel that is a name, or left out, is tuned on sampled rows. If folds are groups of rows,
        its length-scales are those multiples that predict other groups best.

        Parameters
        ----------
        sample : _ScaledSample
            The rows that were read.
        dealing : callable
            Returns the assignment of rows to folds by a fold rule.
        make_setting : callable
            Returns the setting of a kernel and m features.
        looks : bool
            Whether the statistics of a sample are needed, for the folds and for warnings.
        observe, free_scale
            As of `_draw`.
        count : int
            The number of features of the fit.
        seed : int
            The seed of folds and features.
        """
        rows = sample.rows
        given = self._given(sample.scaling(sample.X), sample.weights)
        kernel = given if isinstance(given, OperatorKernel) else self._of_scalar(given)
        rule = FoldRule(by_rows=True, seed=seed, run=1)
        # Errors that rows of a group share look like a rough function.
        is_grouped = dealt_by(dealing(rule)) == "groups"
        if self._unsaid:
            options: dict[str, Any] = {}
            if sample.rows.inputs is not None:  # of all rows, few of which may have targets
                options["spread"] = sample.scaling(sample.X).std(axis=0)
            kernel = tuned(
                kernel,
                rows.read,
                sample.scale,
                n=rows.n,
                seed=seed,
                observe=observe,
                weights=rows.weights,
                classes=free_scale,
                smoothness=self.kernel is None and not is_grouped and serves_matern(self.sampler),
                **options,
            )

        looked = None
        if looks:
            looked = parameters.looked_at(
                kernel,
                rows.read,
                sample.scale,
                rows.weights,
                n=rows.n,
                seed=seed,
            )
            if is_auto(self.cv):
                rule = replace(rule, run=run_length(looked[0], rows.n, FOLDS))
        deal = dealing(rule)
        if self._unsaid and looked is not None:
            setting = make_setting(kernel, m=search_size(rows.n)[1])
            kernel = parameters.told_by_folds(setting, looked, deal, seed, count)
        return _KernelChoice(kernel=kernel, looked=looked, deal=deal)

    def _check_memory(self, m: int, q: int) -> None:
        """DoesNotFitError where the sums of m features and q targets are beyond all memory."""
        check_memory(m, q)

    def _given(self, X: FloatArray | None = None, weights: FloatArray | None = None) -> OperatorKernel | ScalarKernel:
        """The kernel; of a name the one for scaled inputs X (n, d) and their weights, of length-scale 1 without X."""
        if self.kernel is None:
            return Gaussian(1.0 if X is None else median_lengthscale(X, weights=weights))
        return named_kernel(self.kernel, X, weights) if isinstance(self.kernel, str) else self.kernel

    def _begun(self) -> Stream | None:
        """The rows of earlier calls. InputError where those of `partial_fit` cannot be added to them."""
        stream: Stream | None = vars(self).get("_stream")
        if stream is None and "model_" in vars(self):
            warnings.warn("partial_fit begins anew: this fit kept no sums to add to", stacklevel=3)
        if not (self._cv is None or isinstance(self._cv, numbers.Integral)):
            raise InputError("partial_fit: splits are of all rows together; use fit, or cv=5, say")
        if self._by == "loo":
            raise InputError("partial_fit: leave-one-out reads rows once more, and earlier ones are gone; use fit")
        return stream

    @property
    def _remedy(self) -> str:
        folds = "" if self._cv is None else ", or the number of folds (cv)"
        return f"lower n_features, now {self.n_features}{folds}, or give Zarr or Dask arrays for X and y"

    def _jobs(self) -> int:
        if self.n_jobs is not None and (not isinstance(self.n_jobs, numbers.Integral) or not self.n_jobs):
            raise InputError(f"n_jobs must be None or a whole number, -1 for all cores, not {self.n_jobs!r}")
        jobs = int(self.n_jobs or 1)
        return jobs if jobs > 0 else max(1, int(CPU_COUNT) + 1 + jobs)

    def _solve(
        self, stream: Stream, rows: Summed, penalties: Penalties | None = None, sample: LeftOut | None = None
    ) -> tuple[Stream, Fitted, Model]:
        """The fit and the model of the ridge and the penalties' weights, or of the best of the lists; `sample` are rows
        that are left out one at a time. Where exponentials leave too few digits the last `rows` are summed again."""
        setting = replace(stream.drawing.setting, sample=sample)
        settings = [setting] if penalties is None else penalties.settings(setting)
        choice = self._chosen(stream, settings)
        if choice.lost_digits and (again := stream.by_gram(*rows)) is not None:
            stream, choice = again, self._chosen(again, settings)
        self._keep(choice, penalties)
        fitted, report = Fitted([replace(one, sample=None) for one in settings], stream.sums, choice), {}
        fitted = self._by_loss(stream, rows, fitted)
        if penalties is not None:
            report = {"manifold": list(self.manifold_), "rows_unlabelled": penalties.unlabelled}
        model = stream.drawing.model(fitted, report)
        kept = {} if self._loss.kind == "squared" else {"loss": self._loss.config()}
        return stream, fitted, replace(model, info={**model.info, **kept})

    @property
    def _loss(self) -> Loss:
        return loss_of(self.loss, classes=is_classifier(self))

    def _by_loss(self, stream: Stream, rows: Summed, fitted: Fitted) -> Fitted:
        """The fit by the loss asked for, from that by squares on, and the attributes that tell of it."""
        for name in ("objective_", "gradient_norm_", "duality_gap_", "n_passes_", "cv_losses_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self._sure: Posterior | None = None
        if self._loss.kind == "squared":
            return fitted
        folds = sorted({fold for (fold, _), sums in fitted.sums.items() if sums.n})
        held = tuple(folds) if len(folds) > 1 else ()
        ridges = None if is_auto(self.ridge) else tuple(self._ridges())
        how = Minimisation(self._loss, self.solver, float(self.tol), ridges, held)
        fitted, done, self._sure = descended(
            stream, rows, fitted, how, deviations=bool(getattr(self, "posterior", False))
        )
        state = done.state
        self.ridge_, self.rung_, self.n_passes_ = state.trial.ridge, fitted.fit.solution.rung, done.passes
        self.objective_, self.duality_gap_ = state.value, state.gap
        self.gradient_norm_ = float(np.sqrt(np.sum(state.gh**2) + np.sum(state.gb**2)))
        if len(done.table) > 1:
            self.cv_losses_ = np.array([[one.ridge, one.loss] for one in done.table])
        if not done.converged:
            problem = f"{done.passes} passes were not enough to come within tol={self.tol:g} of the least objective"
            if np.isfinite(state.gap):
                problem += f" (duality gap {state.gap / max(abs(state.value), 1e-300):.1e} of it)"
            warnings.warn(f"loss: {problem}; raise tol or ridge", ConvergenceWarning, stacklevel=5)
        return fitted

    def _chosen(self, stream: Stream, settings: Sequence[Setting]) -> Choice:
        no_rows, no_target = "y has no row with a target that was observed; give some", "no row has this target"
        folds = folds_with_rows(stream.sums, no_rows, lambda at: f"y, column {at}: {no_target}; leave the column out")
        if not all(np.isfinite(part.packed).all() for part in pooled(folds)):
            raise InputError(TOO_LARGE)
        if self._cv is not None and len(folds) < 2:
            raise InputError(f"cv = {self.cv}: rows fell into one fold; give more rows, or leave cv out")
        deal = stream.summing.folds
        if isinstance(deal, GivenFolds) and deal.uses is not None:
            return choose_by_splits(deal.uses, stream.sums, settings, self._ridges())
        return choose(folds, settings, None if is_auto(self.ridge) else self._ridges(), by=self._by)

    def _judge(self, fitted: Fitted, quality: FitQuality | None, drawing: Drawing, level: int) -> None:
        """Keep what rows held out say of the fit, and warn of what is wrong with it, `level` calls from here."""
        self.quality_ = quality
        density = drawing.setting.density
        parameters.warn_of_few_features(fitted.fit.kernel, density, drawing.recipe, stacklevel=level + 1)
        if quality is None:
            return
        far = None if self._unsaid or drawing.looked is None else distance(fitted.fit.kernel, drawing.looked[1].X)
        weighed = getattr(self, "class_weight", None) is not None
        sentences = warnings_of(
            fitted,
            quality,
            auto=is_auto(self.ridge),
            distance=far,
            weighed=weighed,
            enough_features=has_enough_landmarks(
                drawing.recipe,
                self._rows,
                count_is_chosen=self.sampler is None and is_auto(self.n_features),
            ),
        )
        for sentence in sentences:
            warnings.warn(in_python(sentence), QualityWarning, stacklevel=level)

    def _keep(self, choice: Choice, penalties: Penalties | None) -> None:
        """The attributes that say what was chosen, and by which scores; a warning where it has few digits."""
        for name in (*_TABLES.values(), _OTHER_TABLE, "cv_scores_", "trials_", "manifold_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if choice.table:
            scores = np.array([score.value for score in choice.table])
            setattr(self, _TABLES.get(self._by, _OTHER_TABLE), -scores if self._by == "evidence" else scores)
            if self._by in HELD_OUT:
                self.cv_scores_ = np.array([np.nan if score.r2 is None else score.r2 for score in choice.table])
        if penalties is not None:
            weights = penalties.combinations
            self.manifold_ = weights[choice.candidate]
            if choice.table:
                self.trials_ = np.array([[score.ridge, *weights[score.candidate]] for score in choice.table])
        solution = choice.fit.solution
        self.ridge_, self.condition_ = solution.ridge, solution.condition
        self.rung_, self.digits_ = solution.rung, solution.digits
        if solution.ill_conditioned:
            problem = f"{solution.digits:.1f} digits of the fitted values, condition {solution.condition:.1e}"
            remedy = f"raise ridge{', or lower manifold' * (penalties is not None)}"
            warnings.warn(f"rounding leaves {problem}; {remedy}", LinAlgWarning, stacklevel=4)
        elif not solution.converged:
            for sentence in warnings_of_status(solution):
                warnings.warn(in_python(sentence), ConvergenceWarning, stacklevel=4)

    def _mapped(
        self, X: Any, finish: Finish, columns: tuple[int, ...], dtype: Any = np.float64, *, views: Views = None
    ) -> Any:
        """What `finish` makes of f, or of the mean of `views`, at X (n, d): (n, *columns), lazy of Dask, else NumPy."""
        return self._answered(X, self.model_, bound(_finished, finish=finish, views=views), columns, dtype, views=views)

    def _answered(
        self, X: Any, model: Model, answer: Answer[Model], columns: tuple[int, ...], dtype: Any = np.float64,
        *, views: Views = None,
    ) -> Any:  # fmt: skip
        """What `answer` makes of a model and X (n, d), (n, *columns): a lazy Dask array for Dask input, else NumPy."""
        read = None if views is None else columns_read(model.kernel, views, model.d)
        X = self._inputs(self._adapt_inputs(X, reset=False), reset=False, read=read)
        with enough_memory("predict fewer rows at a time, or give a Zarr or Dask array"):
            return answered(X, model, answer, columns, dtype, read)


def _scalar_kernels(kernel: OperatorKernel | ScalarKernel) -> list[ScalarKernel]:
    """Return the scalar kernel of each term."""
    if isinstance(kernel, OperatorKernel):
        return [base.scalar for _, base in kernel.terms()]
    return [kernel]


def _finished(model: Model, X: FloatArray, finish: Finish, views: Views) -> npt.NDArray[Any]:
    return finish(model.predict(X, views=views))
