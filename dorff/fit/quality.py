"""How good a fit is on unseen rows, against the mean and a linear model; and warnings, each with a remedy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dorff.fit.choice import left_out_rows
from dorff.fit.passes import Fitted
from dorff.kernels import MultiView, ScalarKernel, Spectral
from dorff.model.calibration import Codes, Conformal, HeldSample
from dorff.moments import FloatArray, Solvable, by_fold, pinned, pooled
from dorff.plan import RUN_ROWS, RUNS, FirstLook, Plan, alike, leaves_out, linear_r2
from dorff.solvers import R2, LeftOut, Ridge, Solution, Spread, held_out_squares, of_first, squared_errors
from dorff.solvers.cg import RUNG
from dorff.solvers.choose import DIRECT
from dorff.solvers.few_rows import FEW_ROWS
from dorff.solvers.stochastic import MOST_STEPS
from dorff.spec.registry import HELD_OUT

Each = tuple[float | None, ...]
Seen = tuple[int, float | None, float | None]  # rows, dependence, correlation
ONE_BY_ONE: Final = "leave-one-out"
OTHERS: Final = 8  # ridges that are compared with the chosen one
WORSE: Final = 0.02  # of R2, than another ridge
NO_BETTER: Final = 0.05  # R2 that is as good as none
OVER: Final = 0.4  # R2 of the rows that were fitted above that of others
GAIN: Final = 0.1  # of the error, by twice the features: after less the next doubling gains a twentieth or nothing
NOTHING: Final = 0.005  # of the variance: an error that need not fall
BAND: Final = 1.959964  # deviations of a band of 95%
COVERS: Final = 0.9  # of rows held out: three standard errors below it is too little
FAR: Final = (1e-2, 30.0)  # the median distance over the length-scale: outside it the kernel is flat, or a spike
LONG: Final = 0.5  # the same: below it a fit that does worse than a linear one wants a shorter length-scale
LEVEL: Final = 0.95  # of the bands that warnings speak of
LEAST_COLUMNS: Final = 64
LEAST_FREEDOM: Final = 5.0  # degrees of freedom, with fewer of which a noise variance may be wrong by any factor
LEAST_ROWS: Final = 20  # held out, of which anything is said
LEAST_SHARED_GROUPS: Final = 5  # held out, of which shared errors are told
LEAST_SHARED_ROWS: Final = 4  # of a group whose mean error is looked at
SHARED: Final = 2.0  # times what standard deviations allow: a group's mean error that is warned of
_INPUTS: Final = (
    "look whether the inputs can tell it (dorff report); give more of them, more rows, or shorter length-scales"
)


@dataclass(frozen=True)
class OutputQuality:
    """Of a target: R2 (None where fewer than two held-out rows have it), root mean squared error on held-out rows and
    that of their mean (R2 is 1 - (rmse / rmse_mean)^2), R2 of a linear model on them, and R2 on the rows of the fit.
    `inside` is the share that bands of 95% hold of the held-out rows that the model keeps; None of none or no bands."""

    target: str
    r2: float | None
    rmse: float | None
    rmse_mean: float | None
    r2_linear: float | None
    r2_train: float | None
    inside: float | None


@dataclass(frozen=True)
class ClassQuality:
    """Of a class: how many held-out rows are of it, and the share of them that is predicted so, None of none."""

    label: str
    rows: int
    recall: float | None


@dataclass(frozen=True)
class FitQuality:
    """How good a fit is on held-out rows.

    Attributes
    ----------
    by : str
        What is held out: rows, blocks, groups or leaves; or `ONE_BY_ONE`, if each row of a sample
        is predicted by the fit to all others.
    folds : int
        The number of folds; 0 for `ONE_BY_ONE`, 1 for classes, whose fold calibrates them too.
    rows : int
        The number of rows that are held out.
    r2 : float, optional
        The R2 of all targets, by the definition that kernels and ridges are chosen by.
    half : float, optional
        The same with the first half of the features.
    linear_rows : int
        The rows that the linear model is fitted to and scored on; 0 without a sample of them.
    dependence, correlation : float, optional
        As of `FirstLook`; None without a sample.
    outputs : tuple of OutputQuality
        The quality of each target.
    accuracy, accuracy_frequent : float, optional
        The accuracy, and that of always predicting the most frequent class. Rows count by their
        weights.
    classes : tuple of ClassQuality
        The quality of each class.
    r2_by_definition : dict
        The R2 by each definition (`solvers.R2`), for comparisons with fits of other kernels.
    """

    by: str
    folds: int
    rows: int
    r2: float | None
    half: float | None
    linear_rows: int
    dependence: float | None
    correlation: float | None
    outputs: tuple[OutputQuality, ...]
    accuracy: float | None = None
    accuracy_frequent: float | None = None
    classes: tuple[ClassQuality, ...] = ()
    r2_by_definition: dict[str, float | None] = field(default_factory=dict)


def left_alone(plan: Plan, fitted: Fitted) -> LeftOut | None:
    """Rows that are left out one at a time to judge a fit that k-fold did not choose, where that takes little."""
    (m, r, _), suits = fitted.fit.weights.shape, plan.dataset.labels is None and plan.costs.route == "direct"
    if not suits or not leaves_out(plan.job, m if fitted.fit.weights.separable and plan.observe is None else m * r):
        return None
    if fitted.fit.solution.ill_conditioned:  # whose values are rounding
        return None
    sample = fitted.settings[0].sample or left_out_rows(plan)
    return sample if len(sample.X) else None


def _without(fitted: Fitted, ridges: Sequence[Ridge], sample: LeftOut) -> FloatArray:
    """Summed squared errors (ridges, q) on the rows of the sample, each left out."""
    parts, setting = replace(fitted, settings=[replace(one, sample=sample) for one in fitted.settings]).total()
    with pinned():
        return setting.left_out(parts, ridges)[1].squares


def quality_of(
    fitted: Fitted,
    targets: Sequence[str],
    by: str | None,
    looked: FirstLook | None,
    held: HeldSample | None = None,
    sample: LeftOut | None = None,
) -> FitQuality | None:
    """What the folds' sums tell of the fit to `targets`, and rows of one fold of its bands; `by` is what was dealt to
    them. Where nothing was, what those of the sample tell; None without any."""
    folds, choice = by_fold(fitted.sums), fitted.choice
    sample = None if len(folds) > 1 and by is not None else sample
    if sample is None and (len(folds) < 2 or by is None):
        return None
    parts, setting = of_first(folds, fitted.settings[choice.candidate], choice.m)
    solution = choice.fit.solution
    ridge = solution.ridge if solution.ridges is None else solution.ridges
    with pinned():
        total, half = pooled(parts), None
        spread = every = Spread.of_moments(total)
        train = squared_errors(total, choice.fit.W, choice.fit.bias, setting.observe)
        if sample is None:
            squares, half = held_out_squares(parts, setting, ridge, first=fitted.one_held), _half(fitted, ridge)
            spread = _of_held(fitted, parts)
        else:
            (squares,), spread = _without(fitted, [ridge], sample), sample.spread
    linear, seen = (looked.linear, _seen(looked)) if looked else _linear(sample, len(squares))
    each, trained, counts = spread.each(squares), every.each(train), np.where(spread.weight > 0, spread.weight, np.nan)
    rmse, of_mean = np.sqrt(squares / counts), np.sqrt(spread.squares / counts)
    inside = None if held is None or held.std is None else held.coverage(BAND)
    outputs = [
        OutputQuality(
            target=target,
            r2=_number(each[number]),
            rmse=_number(rmse[number]),
            rmse_mean=_number(of_mean[number]),
            r2_linear=linear[number],
            r2_train=_number(trained[number]),
            inside=None if inside is None else _number(inside[number]),
        )
        for number, target in enumerate(targets)
    ]
    r2_by_definition = dict[str, float | None]()
    for definition in R2:
        r2_by_definition[str(definition)] = _number(definition.score(squares, spread))
    rows = sum(part.n for fold in parts[: 1 if fitted.one_held else None] for part in fold)
    if sample is not None or by is None:
        by, folds, rows = ONE_BY_ONE, [], 0 if sample is None else len(sample.X)
    linear_rows, dependence, correlation = seen
    return FitQuality(
        by=by,
        folds=len(folds),
        rows=rows,
        r2=r2_by_definition[setting.r2],
        half=half,
        linear_rows=linear_rows,
        dependence=dependence,
        correlation=correlation,
        outputs=tuple(outputs),
        r2_by_definition=r2_by_definition,
    )


def _linear(sample: LeftOut | None, q: int) -> tuple[Each, Seen]:
    """R2 of a linear model of each target, from the sample's rows that have all targets, and how many these are."""
    if sample is None:
        return (None,) * q, (0, None, None)
    some = np.flatnonzero(np.isfinite(sample.Y).all(axis=1))[:: math.ceil(len(sample.X) / (RUNS * RUN_ROWS))]
    return linear_r2(sample.X[some], sample.Y[some], np.arange(len(some)) % 5), (len(some), None, None)


def looked(plan: Plan) -> FirstLook | None:
    """What a sample of the plan's rows told."""
    sampled = plan.frozen().constants.sampled
    return None if sampled is None else FirstLook(**sampled)


def _seen(looked: FirstLook | None) -> Seen:
    return (0, None, None) if looked is None else (looked.rows, looked.dependence, looked.correlation)


def quality_of_classes(
    decisions: FloatArray, codes: Codes, weights: FloatArray, labels: Sequence[str], by: str, looked: FirstLook | None
) -> FitQuality:
    """What decision values (n, K) tell of held-out rows of classes `codes` (n,) and `weights` (n,)."""
    hits = weights * (decisions.argmax(axis=1) == codes)
    rows, total, right = (np.bincount(codes, of, len(labels)) for of in (None, weights, hits))
    recalls = [_number(one) for one in right / np.where(total > 0, total, math.nan)]
    each = map(ClassQuality, labels, rows.tolist(), recalls)
    of = max(float(total.sum()), 1e-300)
    shares = float(right.sum()) / of, float(total.max()) / of
    return FitQuality(by, 1, len(codes), None, None, *_seen(looked), (), *shares, tuple(each))


def _half(fitted: Fitted, ridge: float | FloatArray) -> float | None:
    """Return the held-out R2 with the first half of the features; None if halves are not alike."""
    choice = fitted.choice
    if not _has_like_halves(fitted) or choice.m < LEAST_COLUMNS or choice.m % 4:
        return None
    if fitted.settings[0].method != DIRECT:
        return None
    candidate = fitted.settings[choice.candidate]
    parts, setting = of_first(by_fold(fitted.sums), candidate, choice.m // 2)
    squares = held_out_squares(parts, setting, ridge, first=fitted.one_held)
    return _number(setting.r2.score(squares, _of_held(fitted, parts)))


def _has_like_halves(fitted: Fitted) -> bool:
    """Return whether either half of the features is a draw from the same law."""
    kernel = fitted.fit.kernel
    if isinstance(kernel, MultiView):
        return False
    scalars = [base.scalar for _, base in kernel.terms()]
    if not scalars or not all(_has_frequencies(scalar) for scalar in scalars):
        return False
    if fitted.settings[0].features is not None:
        return False  # half of a lattice has another error, and another mean
    density = fitted.settings[fitted.choice.candidate].density
    return density is None or density[2] is None  # half of a mixture has other shares of each law


def _has_frequencies(scalar: ScalarKernel) -> bool:
    """Return whether features of a scalar kernel are cosines and sines of drawn frequencies."""
    return isinstance(scalar, Spectral) and not scalar.sampler


def _of_held(fitted: Fitted, folds: Sequence[Sequence[Solvable]]) -> Spread:
    """How the rows that are held out spread."""
    return Spread.of_moments([part for fold in folds[: 1 if fitted.one_held else None] for part in fold])


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def warnings_of_status(solution: Solution, *, by_steps: bool = False) -> Iterator[str]:
    """Yield the problems of a solution that did not converge or is ill-conditioned.

    Parameters
    ----------
    solution : Solution
        The solution for the chosen kernel and ridge.
    by_steps : bool
        Whether a loss other than the squared one was minimized, which has warnings of its own.
    """
    digits = f"{solution.digits:.1f} digits of the fitted values are right"
    is_iterative = solution.rung == RUNG
    if not solution.converged and is_iterative:
        ending = "the iterations ended before the solution was as close as rounding allows"
        remedy = "set solve.route: direct, with fewer features if that does not fit"
        yield f"{ending}: {digits}; raise solve.ridge, or {remedy}"
    elif not solution.converged and not by_steps:
        problem = "the iterations for the output matrix 'learned' ended before it was found"
        yield f"{problem}; raise solve.ridge, or give the matrix"
    if solution.ill_conditioned and (solution.converged or not is_iterative):
        condition = f"condition {solution.condition:.1e}"
        problem = f"rounding leaves few digits: {digits}, {condition}"
        conditions = "features.precision is double, solve.route auto and solve.qr true"
        yield f"{problem}; raise solve.ridge, or see that {conditions}"


def warnings_of(
    fitted: Fitted,
    quality: FitQuality | None,
    *,
    auto: bool,
    distance: float | None = None,
    held: HeldSample | None = None,
    weighed: bool = False,
    conformal: Conformal | None = None,
    enough_features: bool = False,
) -> Iterator[str]:
    """Yield the problems of a fit, each with a remedy.

    Parameters
    ----------
    fitted : Fitted
        The fit.
    quality : FitQuality, optional
        How good it is on held-out rows.
    auto : bool
        Whether the ridges are chosen automatically.
    distance : float, optional
        The median distance between rows over a length-scale that the job names.
    held : HeldSample, optional
        Held-out rows, for the coverage of bands by standard deviations.
    weighed : bool
        Whether classes have weights.
    conformal : Conformal, optional
        The factors of conformal bands; None if the job asks for none.
    enough_features : bool
        Whether the features leave out little of the kernel, although there might be more of them.
    """
    trials = [(trial.least, trial.error) for trial in fitted.choice.table]
    yield from not_told_apart(trials)
    has_quality = quality is not None and quality.rows >= LEAST_ROWS
    far = list(_far(distance, quality.r2 if quality is not None and has_quality else None))
    yield from far
    # Classes may be separated without any ridge.
    by = None if quality is None or quality.classes else quality.by
    yield from _edges(fitted, by, auto=auto)
    yield from _warn_of_few_units(fitted, conformal)
    if quality is None or not has_quality:
        return

    yield from _warn_of_low_r2(fitted, quality, distance=distance, is_far=bool(far))
    if quality.accuracy is not None and quality.accuracy_frequent is not None:
        yield from _of_classes(
            quality,
            quality.accuracy,
            quality.accuracy_frequent,
            weighed=weighed,
        )
    yield from _warn_of_correlation(quality)
    yield from _warn_of_narrow_bands(quality, held, conformal)
    if not enough_features and not _low_scores(quality):
        yield from _warn_of_few_features(quality, fitted.choice.m)


def _low_scores(quality: FitQuality) -> dict[str, float]:
    """Return the R2 of each target that is predicted hardly better than by its mean."""
    scores = {output.target: output.r2 for output in quality.outputs if output.r2 is not None}
    return {target: r2 for target, r2 in scores.items() if r2 < NO_BETTER}


def _warn_of_low_r2(
    fitted: Fitted,
    quality: FitQuality,
    *,
    distance: float | None,
    is_far: bool,
) -> Iterator[str]:
    """Yield that the linear model, the mean, or the fit to its own rows has a larger R2.

    The first is not compared if the length-scale `is_far` from the distances between rows.
    """
    below_linear = [output for output in quality.outputs if _is_below_linear(output)]
    low_scores = _low_scores(quality)
    overfitted = [output for output in quality.outputs if _is_overfitted(output)]
    if below_linear and not is_far:
        yield _linear_is_better(fitted, below_linear, distance)
    elif low_scores:
        lowest = min(low_scores.values())
        comparison = "worse" if lowest < -NO_BETTER else "hardly better"
        score = f"held-out R2 of {_names([*low_scores])} is {lowest:.2f}"
        yield f"{score}: {comparison} than the mean; {_INPUTS}"
    elif overfitted:
        reason, remedy = "rows: it learns rows by heart", "give more rows"
        if fitted.settings[0].d > 1:
            remedy += ", or fewer inputs"
        if quality.by not in ("rows", "blocks", "leaves", "splits", ONE_BY_ONE):  # groups
            reason = "groups: each has errors of its own"
            remedy = "give more groups, rather than more rows of these"
        first = overfitted[0]
        names = _names([output.target for output in overfitted])
        fall = f"R2 of {names} falls from {first.r2_train:.2f} on the fit's own rows"
        yield f"{fall} to {first.r2:.2f} on held-out {reason}; {remedy}"


def _is_below_linear(output: OutputQuality) -> bool:
    """Return whether a linear model predicts held-out rows of a target better."""
    return (output.r2_linear or 0.0) - max(output.r2 or 0.0, 0.0) > NO_BETTER


def _is_overfitted(output: OutputQuality) -> bool:
    """Return whether a target is predicted much better on the rows of the fit."""
    return output.r2 is not None and (output.r2_train or 0.0) - output.r2 > OVER


def _linear_is_better(
    fitted: Fitted,
    outputs: Sequence[OutputQuality],
    distance: float | None,
) -> str:
    """Return the warning for targets that a linear model predicts better."""
    first = outputs[0]
    rows = f"held-out rows of {_names([output.target for output in outputs])}"
    linear = f"a linear model has R2 {first.r2_linear:.2f} on {rows}"
    problem = f"{linear}, and this fit {first.r2 or 0.0:.2f}"
    scalars = [base.scalar for _, base in fitted.fit.kernel.terms()]
    if any(isinstance(scalar, Spectral) and scalar.sampler for scalar in scalars):
        return f"{problem}: the kernel does not suit them; try another one"

    reason = "new rows are further from others than its length-scale reaches"
    lengthscales = "longer ones (2, 4 and 8 times)"
    if distance is not None and distance < LONG:
        flat = "the kernel hardly varies from row to row, or within a period"
        reason = f"{flat}, as its length-scale is longer than that"
        lengthscales = "shorter ones (1/2, 1/4 and 1/8)"
    remedy = f"list kernels of {lengthscales}, of which the best on held-out rows is taken"
    return f"{problem}: {reason}; {remedy}"


def _has_correlated_rows(quality: FitQuality) -> bool:
    """Return whether rows are held out one by one although neighbouring rows have like errors."""
    dependence, correlation = quality.dependence or 0.0, quality.correlation or 0.0
    return quality.by == "rows" and alike(dependence, correlation)


def _warn_of_correlation(quality: FitQuality) -> Iterator[str]:
    """Yield that scores on rows that are held out one by one are too good."""
    if not _has_correlated_rows(quality):
        return
    share = f"rows beside a row tell {quality.dependence or 0.0:.0%} of its error"
    problem = f"{share}, and rows are held out one by one: new ones will do worse than those did"
    yield f"{problem}; leave solve.folds.by out, or set it to blocks"


def _warn_of_narrow_bands(
    quality: FitQuality,
    held: HeldSample | None,
    conformal: Conformal | None,
) -> Iterator[str]:
    """Yield that bands of 95% by standard deviations hold too few of the held-out rows."""
    margins = [0.0] * len(quality.outputs) if held is None else _coverage_margins(held)
    narrow = {
        output.target: output.inside
        for output, margin in zip(quality.outputs, margins, strict=True)
        if output.inside is not None and output.inside < COVERS - margin
    }
    if not narrow:
        return
    share = f"bands of 95% hold {min(narrow.values()):.0%} of held-out rows of {_names([*narrow])}"
    problem = "errors hang together, and deviations of f (--std) are too small too"
    remedy = wider_bands(quality.by, conformal, beside=_has_correlated_rows(quality))
    yield f"{share}: {problem}; {remedy}"


def _warn_of_few_features(quality: FitQuality, m: int) -> Iterator[str]:
    """Yield that more than the m features would lower the held-out error."""
    if quality.half is None or quality.r2 is None:
        return
    error = 1.0 - quality.r2
    gain = 1.0 - error / max(1.0 - quality.half, 1e-300)
    if gain > GAIN and error > NOTHING:
        problem = "more features would do better"
        fall = f"with twice as many the held-out error fell by {gain:.0%}"
        result = f"to {error:.3g} of the variance at {m:,}"
        yield f"{problem}: {fall}, {result}; raise features.count"


def _coverage_margins(held: HeldSample) -> list[float]:
    """Return by how much chance may lower the share of rows in bands of 95%, for each target.

    That is three standard errors of independent rows, or two between groups, if these are larger.
    """
    margin = 3.0 * math.sqrt(COVERS * (1.0 - COVERS) / len(held.Y))
    if held.groups is None or held.std is None:
        return [margin] * held.Y.shape[1]
    _, group_of = np.unique(held.groups.view(np.uint64), return_inverse=True)
    known = np.isfinite(held.Y)
    counts = np.maximum(known.sum(axis=0), 1)
    inside = known & (np.abs(held.residuals) <= BAND * held.std)
    share = inside.sum(axis=0) / counts
    excess = np.zeros((group_of.max() + 1, held.Y.shape[1]))
    np.add.at(excess, group_of, inside - share * known)
    errors = np.sqrt(np.sum(excess**2, axis=0)) / counts
    return [max(margin, 2.0 * float(error)) for error in errors]


def wider_bands(by: str, conformal: Conformal | None, *, beside: bool) -> str:
    """Return the remedy for bands by standard deviations that are too narrow.

    Parameters
    ----------
    by : str
        What is held out, as of `FitQuality`.
    conformal : Conformal, optional
        The factors of conformal bands; None if the job asks for none.
    beside : bool
        Whether rows are held out one by one although neighbouring rows have like errors.
    """
    if beside:
        remedy = "leave solve.folds.by out, or set it to blocks"
        if conformal is None:
            return f"{remedy}, and set solve.conformal: true"
        return f"conformal ones too; {remedy}"
    if conformal is None:
        scope = ""
        if by not in ("rows", "blocks", "leaves"):
            scope = " of rows of new groups, on average over groups (19 or more)"
        return f"set solve.conformal: true, for bands that hold{scope}"
    if conformal.highest < LEVEL:
        units = f"{min(conformal.units)} held-out {conformal.unit}"
        return f"nor can conformal bands promise them, of {units}"
    return f"conformal bands hold what they say of {conformal.scope}"


def _warn_of_few_units(fitted: Fitted, conformal: Conformal | None) -> Iterator[str]:
    """Yield that too few units are held out for conformal bands of the usual level."""
    if conformal is None or conformal.highest >= LEVEL:
        return
    needed = math.ceil(LEVEL / (1.0 - LEVEL) - 1e-9)
    highest = "there are none"
    if conformal.highest:
        highest = f"conformal bands are for levels up to {conformal.highest:.0%}"
    units = f"{min(conformal.units)} held-out {conformal.unit}"
    problem = f"{units} promise no bands of {LEVEL:.0%}: {highest}"
    remedy = f"give more {'rows' if conformal.unit == 'blocks' else conformal.unit}"
    if conformal.unit != "rows" and fitted.one_held:
        all_units = f"all {conformal.unit} are held out in turn"
        remedy = f"set solve.select: kfold, by which {all_units}, or {remedy}"
    yield f"{problem}; {needed} are needed: {remedy}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _of_classes(quality: FitQuality, accuracy: float, frequent: float, *, weighed: bool) -> Iterator[str]:
    """Classes that are hardly told apart: of weighed ones by the mean of their recalls, which weights are for."""
    what, than = "held-out accuracy", "that of always saying the most frequent class"
    if weighed:
        recalls = [one.recall for one in quality.classes if one.recall is not None]
        accuracy, frequent = sum(recalls) / len(recalls), 1.0 / len(recalls)
        what, than = "the mean of classes' held-out recalls", "by chance"
    if accuracy - frequent < NO_BETTER * (1.0 - frequent):
        rare = "" if weighed else "; if rare classes matter, set solve.class_weight: balanced"
        yield f"{what} is {accuracy:.3f}, hardly better than {than} ({frequent:.3f}); {_INPUTS}{rare}"


def _edges(fitted: Fitted, by: str | None, *, auto: bool) -> Iterator[str]:
    """A ridge at the end of what was tried, or can be."""
    tried, best = {row.ridge for row in fitted.choice.table}, fitted.fit.solution.ridge
    if len(tried) < 2 or min(tried) < best < max(tried):
        return
    smallest = best == min(tried)
    if not auto:
        yield f"the ridge is the {'smallest' if smallest else 'largest'} tried, {best:.3g}; set solve.ridge: auto"
    elif smallest and by in ("rows", ONE_BY_ONE):
        problem = "the targets have no noise, or rows are alike that are in several folds"
        remedy = "set solve.folds.by: blocks, or name groups, if rows belong together"
        yield f"the best ridge is the smallest that can be, {best:.3g}: {problem}; {remedy}"
    elif not smallest:
        yield f"the best ridge is the largest that was compared, {best:.3g}: the inputs tell nothing here"


def better(fitted: Fitted, sample: LeftOut, select: str) -> Iterator[str]:
    """A ridge that was tried and does better on rows left out than what `select`, which holds none out, chose."""
    if select in HELD_OUT or {row.ridges for row in fitted.choice.table} != {None}:
        return
    choice, chosen = fitted.choice, fitted.fit.solution.ridge
    tried = {one.ridge for one in choice.table if (one.candidate, one.m) == (choice.candidate, choice.m)} - {chosen}
    ridges = [chosen, *sorted(tried)[:: math.ceil(len(tried) / OTHERS) or 1]]
    r2 = fitted.settings[choice.candidate].r2.score(_without(fitted, ridges, sample), sample.spread)
    if r2.max() - r2[0] > WORSE:
        problem = f"{select} chose ridge {chosen:.3g}, whose R2 is {r2[0]:.3f} on rows that are left out one at a time"
        yield f"{problem}; that of ridge {ridges[int(np.argmax(r2))]:.3g} is {r2.max():.3f}: set solve.select: auto"


def warnings_of_uncertainty(fitted: Fitted) -> Iterator[str]:
    """Yield why the standard deviations of a fit to few rows are unreliable."""
    rows = sum(sums.n for sums in fitted.sums.values())
    if rows >= FEW_ROWS:
        return
    freedom = fitted.freedom_left
    if freedom is None or freedom >= LEAST_FREEDOM:
        return
    problem = f"the fit uses up all but {max(freedom, 0.0):.1f} degrees of freedom of {rows} rows"
    noise = "the noise can hardly be estimated"
    result = f"{noise}, so that standard deviations and bands may be wrong by a factor"
    yield f"{problem}: {result}; give more rows, or raise solve.ridge"


def warnings_of_groups(
    held: HeldSample,
    noise: FloatArray,
    remedy: str,
    names: Sequence[str],
) -> Iterator[str]:
    """Yield by how much standard deviations of f are too small, if rows of a group share errors.

    The mean error of a group's n rows has a variance of at most that of f plus noise / n. Any
    excess is an error that the rows share, which the fit takes for noise: the variance of f falls
    with the number of rows, that of the shared error with the number of groups.

    Parameters
    ----------
    held : HeldSample
        Rows that the fit has not seen, with their groups and standard deviations.
    noise : (q,)
        The noise variance of each target.
    remedy : str
        The remedy that the warning names.
    names : sequence of q str
        The names of the targets. Of several the worst is named.
    """
    if held.groups is None or held.std is None:
        return
    _, group_of = np.unique(held.groups.view(np.uint64), return_inverse=True)
    shape = int(group_of.max()) + 1, held.Y.shape[1]
    known = np.isfinite(held.Y)
    rows, errors, variances = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.add.at(rows, group_of, known)
    np.add.at(errors, group_of, np.where(known, held.residuals, 0.0))
    np.add.at(variances, group_of, known * np.maximum(held.std**2 - noise, 0.0))

    ratios = dict[str, float]()
    for target, name in enumerate(names):
        is_large = rows[:, target] >= LEAST_SHARED_ROWS
        groups = int(is_large.sum())
        counts = rows[is_large, target]
        squares = (errors[is_large, target] / counts) ** 2
        allowed = (variances[is_large, target] + noise[target]) / counts
        if groups < LEAST_SHARED_GROUPS or not allowed.any():  # as of a target that does not vary
            continue
        ratio = float(np.mean(squares) / np.mean(allowed))
        if ratio > max(SHARED**2, 1.0 + 4.0 * math.sqrt(2.0 / groups)):
            ratios[f"{groups} held-out groups" + (f" of target {name}" if len(names) > 1 else "")] = ratio
    if not ratios:
        return
    subject = max(ratios, key=ratios.__getitem__)
    excess = f"{math.sqrt(ratios[subject]):.1f} times as far off as deviations of f (--std) allow"
    problem = f"{subject} are {excess}: rows of a group share errors"
    yield f"{problem}, and deviations of f are too small by that factor, by which to multiply them; {remedy}"


def not_told_apart(trials: Sequence[tuple[float, float | None]]) -> Iterator[str]:
    """Where the best of trials, each minus its log evidence or its GCV score and the standard error of that, is ahead
    of others by less than the standard error of the difference."""
    (least, own), *others = sorted(trials, key=lambda one: one[0]) or [(0.0, None)]
    errors = [(value - least, math.hypot(error or 0.0, own or 0.0)) for value, error in others if value < math.inf]
    if lost := sum(error == math.inf for _, error in trials):
        problem = f"the scores of {lost} trials were not found in {MOST_STEPS} steps, and count as none"
        yield f"{problem}; leave the smallest ridges out, or set solve.select: kfold"
    if near := [error for ahead, error in errors if ahead < error]:
        problem = f"{len(near)} of the other trials have scores within a standard error ({max(near):.2g})"
        yield f"{problem} of the best: any of them may be it; take one, or set solve.select: kfold"


def given_distance(plan: Plan, fitted: Fitted) -> float | None:
    """The distance of rows over the chosen kernel's length-scale, if given: a search may have reason to go far."""
    distances, kernel = plan.frozen().constants.distances, fitted.choice.candidate // len(plan.weights)
    given = distances is not None and kernel < len(distances) and plan.tuned()[kernel] is None
    return distances[kernel] if distances is not None and given else None


def _far(distance: float | None, r2: float | None) -> Iterator[str]:
    """Of a length-scale far from rows' distances; of a short one that predicts rows nothing."""
    off = None
    if distance is not None and distance <= FAR[0]:
        off, kernel = f"{1 / distance:,.0f} times longer", "almost flat"
    elif distance is not None and distance >= FAR[1] and (r2 or 0.0) < NO_BETTER:
        off, kernel = f"{distance:,.0f} times shorter", "zero between most rows"
    if off is not None:
        problem = f"the length-scale is {off} than the median distance of two rows, in the units that the fit sees"
        yield f"{problem}: the kernel is {kernel}; leave lengthscale out, and it is found"
