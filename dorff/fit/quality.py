"""How good a fit is on unseen rows, against the mean and a linear model; and warnings, each with a remedy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dorff.fit.choice import left_out_rows
from dorff.fit.passes import Fitted
from dorff.kernels import MultiView, Spectral
from dorff.model.calibration import Codes, Conformal, HeldSample
from dorff.moments import FloatArray, Solvable, by_fold, pinned, pooled
from dorff.plan import RUN_ROWS, RUNS, FirstLook, Plan, alike, leaves_out, linear_r2
from dorff.solvers import R2, LeftOut, Ridge, Solution, Spread, held_out_squares, of_first, squared_errors
from dorff.solvers.cg import RUNG
from dorff.solvers.choose import DIRECT, LAST
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
    """What `folds` folds of `by` (rows, blocks, groups, leaves) tell, over `rows` rows; or, by `ONE_BY_ONE`, rows of a
    sample that are left out alone, each predicted by the fit to all others. The linear model is of `linear_rows` of
    them, and so are `dependence` and `correlation` (`plan.sampled`); 0 and None where no sample was looked at. `half`
    is R2 with the first half of the features, `outputs` those of each target. `r2_by_definition` has R2 as the mean of
    outputs' and pooled, whichever `r2` is, to be compared with fits of other kernels (`solvers.R2`). Of classes it is
    the one fold that calibrates: `accuracy`, and that of always saying the most frequent class; rows count by their
    weights."""

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
    fitted: Fitted, targets: Sequence[str], by: str | None, looked: FirstLook | None, held: HeldSample | None = None,
    sample: LeftOut | None = None,
) -> FitQuality | None:  # fmt: skip
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
            name, _number(each[at]), _number(rmse[at]), _number(of_mean[at]), linear[at], _number(trained[at]),
            None if inside is None else _number(inside[at]),
        )
        for at, name in enumerate(targets)
    ]  # fmt: skip
    by_definition = {str(one): _number(one.score(squares, spread)) for one in R2}
    r2 = by_definition[setting.r2]
    rows = sum(part.n for fold in parts[: 1 if fitted.one_held else None] for part in fold)
    if sample is not None or by is None:
        by, folds, rows = ONE_BY_ONE, [], 0 if sample is None else len(sample.X)
    return FitQuality(by, len(folds), rows, r2, half, *seen, tuple(outputs), r2_by_definition=by_definition)


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
    """Held-out R2 with the first half of the features, None where features are not alike."""
    choice, kernel = fitted.choice, fitted.fit.kernel
    scalars = [] if isinstance(kernel, MultiView) else [one.scalar for _, one in kernel.terms()]
    alike = bool(scalars) and all(isinstance(one, Spectral) and not one.sampler for one in scalars)
    alike = alike and fitted.settings[0].features is None  # of a lattice half has another error, and another mean
    density = fitted.settings[choice.candidate].density
    alike = alike and (density is None or density[2] is None)  # of several laws half has other shares of each
    if not alike or choice.m < LEAST_COLUMNS or choice.m % 4 or fitted.settings[0].method != DIRECT:
        return None
    parts, setting = of_first(by_fold(fitted.sums), fitted.settings[choice.candidate], choice.m // 2)
    squares = held_out_squares(parts, setting, ridge, first=fitted.one_held)
    return _number(setting.r2.score(squares, _of_held(fitted, parts)))


def _of_held(fitted: Fitted, folds: Sequence[Sequence[Solvable]]) -> Spread:
    """How the rows that are held out spread."""
    return Spread.of_moments([part for fold in folds[: 1 if fitted.one_held else None] for part in fold])


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def warnings_of_status(solution: Solution, *, by_steps: bool = False) -> Iterator[str]:
    """Yield what is wrong with a solution that did not end well, and what to do.

    Parameters
    ----------
    solution : Solution
        Of the chosen kernel and ridge.
    by_steps : bool
        Whether another loss than the square was minimised, which warns of its own end.
    """
    right = f"{solution.digits:.1f} digits of the fitted values are right"
    if not solution.converged and solution.rung == RUNG:
        problem = f"the iterations ended before the solution was as close as rounding allows: {right}"
        yield f"{problem}; raise solve.ridge, or set solve.route: direct, with fewer features if that does not fit"
    elif not solution.converged and not by_steps:
        problem = "the iterations for the output matrix 'learned' ended before it was found"
        yield f"{problem}; raise solve.ridge, or give the matrix"
    if solution.ill_conditioned and (solution.converged or solution.rung != RUNG):
        problem = f"rounding leaves few digits: {right}, condition {solution.condition:.1e}"
        where = "features.precision is double, solve.route auto and solve.qr true"
        yield f"{problem}; raise solve.ridge, or see that {where}"


def warnings_of(
    fitted: Fitted, quality: FitQuality | None, *, auto: bool, distance: float | None = None,
    held: HeldSample | None = None, weighed: bool = False, conformal: Conformal | None = None,
    enough_features: bool = False,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with the fit, and what to do. Ridges are dorff's own (`auto`), classes `weighed`; `conformal` are
    the factors of conformal bands, None where the job asks for none. `distance` is rows' over a length-scale that was
    given, `held` are rows for plain bands. `enough_features`: there are as many as leave out little of the kernel, and
    might have been more."""
    yield from not_told_apart([(one.least, one.error) for one in fitted.choice.table])
    r2 = None if quality is None or quality.rows < LEAST_ROWS else quality.r2
    yield from (far := list(_far(distance, r2)))
    by = None if quality is None or quality.classes else quality.by  # classes may be told apart without any ridge
    yield from _edges(fitted, by, auto=auto)
    yield from _too_few_units(fitted, conformal)
    if quality is None or quality.rows < LEAST_ROWS:
        return
    poor = {one.target: one.r2 for one in quality.outputs if one.r2 is not None and one.r2 < NO_BETTER}
    over = [one for one in quality.outputs if one.r2 is not None and (one.r2_train or 0.0) - one.r2 > OVER]
    lost = [one for one in quality.outputs if (one.r2_linear or 0.0) - max(one.r2 or 0.0, 0.0) > NO_BETTER]
    drawn = any(isinstance(one.scalar, Spectral) and one.scalar.sampler for _, one in fitted.fit.kernel.terms())
    if lost and not far:
        rows = f"held-out rows of {_names([one.target for one in lost])}"
        problem = f"a linear model has R2 {lost[0].r2_linear:.2f} on {rows}, and this fit {lost[0].r2 or 0.0:.2f}"
        why, other = "new rows are further from others than its length-scale reaches", "longer ones (2, 4 and 8 times)"
        if distance is not None and distance < LONG:
            flat = "the kernel hardly varies from row to row, or within a period"
            why = f"{flat}, as its length-scale is longer than that"
            other = "shorter ones (1/2, 1/4 and 1/8)"
        remedy = f"{why}; list kernels of {other}, of which the best on held-out rows is taken"
        yield f"{problem}: {'the kernel does not suit them; try another one' if drawn else remedy}"
    elif poor:
        lowest = min(poor.values())
        worth = "worse" if lowest < -NO_BETTER else "hardly better"
        yield f"held-out R2 of {_names([*poor])} is {lowest:.2f}: {worth} than the mean; {_INPUTS}"
    elif over:
        why, more = "rows: it learns rows by heart", "rows" + ", or fewer inputs" * (fitted.settings[0].d > 1)
        if quality.by not in ("rows", "blocks", "leaves", "splits", ONE_BY_ONE):  # groups, or their column
            why, more = "groups: each has errors of its own", "groups, rather than more rows of these"
        falls = f"R2 of {_names([one.target for one in over])} falls from {over[0].r2_train:.2f}"
        yield f"{falls} on the fit's own rows to {over[0].r2:.2f} on held-out {why}; give more {more}"
    if quality.accuracy is not None and quality.accuracy_frequent is not None:
        yield from _of_classes(quality, quality.accuracy, quality.accuracy_frequent, weighed=weighed)
    told = quality.dependence or 0.0
    beside = quality.by == "rows" and alike(told, quality.correlation or 0.0)
    if beside:
        problem = "new ones will do worse than those did; leave solve.folds.by out, or set it to blocks"
        yield f"rows beside a row tell {told:.0%} of its error, and rows are held out one by one: {problem}"
    chance = [0.0] * len(quality.outputs) if held is None else _chance(held)
    narrow = {
        one.target: one.inside
        for one, error in zip(quality.outputs, chance, strict=True)
        if one.inside is not None and one.inside < COVERS - error
    }
    if narrow:
        remedy = wider_bands(quality.by, conformal, beside=beside)
        problem = f"errors hang together, and deviations of f (--std) are too small too; {remedy}"
        yield f"bands of 95% hold {min(narrow.values()):.0%} of held-out rows of {_names([*narrow])}: {problem}"
    if quality.half is not None and quality.r2 is not None and not poor and not enough_features:
        fell = 1.0 - (1.0 - quality.r2) / max(1.0 - quality.half, 1e-300)
        if fell > GAIN and 1.0 - quality.r2 > NOTHING:
            problem = f"more features would do better: with twice as many the held-out error fell by {fell:.0%}"
            yield f"{problem}, to {1 - quality.r2:.3g} of the variance at {fitted.choice.m:,}; raise features.count"


def _chance(held: HeldSample) -> list[float]:
    """By how much chance may lower the shares of held-out rows within bands of 95%, one for each target: three standard
    errors of independent rows, or two between groups, where these are larger."""
    alone = 3.0 * math.sqrt(COVERS * (1.0 - COVERS) / len(held.Y))
    if held.groups is None or held.std is None:
        return [alone] * held.Y.shape[1]
    _, place = np.unique(held.groups.view(np.uint64), return_inverse=True)
    known = np.isfinite(held.Y)
    inside = known & (np.abs(held.residuals) <= BAND * held.std)
    share = inside.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    excess = np.zeros((place.max() + 1, held.Y.shape[1]))
    np.add.at(excess, place, inside - share * known)
    between = np.sqrt(np.sum(excess**2, axis=0)) / np.maximum(known.sum(axis=0), 1)
    return [max(alone, 2.0 * float(error)) for error in between]


def wider_bands(by: str, conformal: Conformal | None, *, beside: bool) -> str:
    """What to do where plain bands are too narrow, and of which rows conformal bands hold what they say."""
    if beside:
        remedy = "leave solve.folds.by out, or set it to blocks"
        return f"{remedy}, and set solve.conformal: true" if conformal is None else f"conformal ones too; {remedy}"
    if conformal is None:
        apart = by not in ("rows", "blocks", "leaves")
        which = " of rows of new groups, on average over groups (19 or more)" if apart else ""
        return f"set solve.conformal: true, for bands that hold{which}"
    if conformal.highest < LEVEL:
        return f"nor can conformal bands promise them, of {min(conformal.units)} held-out {conformal.unit}"
    return f"conformal bands hold what they say of {conformal.scope}"


def _too_few_units(fitted: Fitted, conformal: Conformal | None) -> Iterator[str]:
    """Of conformal bands that cannot be had at the usual level."""
    if conformal is None or conformal.highest >= LEVEL:
        return
    needed = math.ceil(LEVEL / (1.0 - LEVEL) - 1e-9)
    highest = f"conformal bands are for levels up to {conformal.highest:.0%}" if conformal.highest else "there are none"
    problem = f"{min(conformal.units)} held-out {conformal.unit} promise no bands of {LEVEL:.0%}: {highest}"
    more = f"give more {'rows' if conformal.unit == 'blocks' else conformal.unit}"
    if conformal.unit != "rows" and fitted.one_held:
        more = f"set solve.select: kfold, by which all {conformal.unit} are held out in turn, or {more}"
    yield f"{problem}; {needed} are needed: {more}"


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
        yield f"the best ridge is the largest that can be, 1e{LAST[1] - 1:+d} of k(x, x): the inputs tell nothing here"


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
    """Yield why the standard deviations of a fit to few rows cannot be relied on."""
    rows = sum(sums.n for sums in fitted.sums.values())
    if rows >= FEW_ROWS:
        return
    left = fitted.freedom_left
    if left is not None and left < LEAST_FREEDOM:
        problem = f"the fit uses up all but {max(left, 0.0):.1f} degrees of freedom of {rows} rows"
        result = "the noise can hardly be estimated, so that standard deviations and bands may be wrong by a factor"
        yield f"{problem}: {result}; give more rows, or raise solve.ridge"


def warnings_of_groups(held: HeldSample, noise: FloatArray, remedy: str) -> Iterator[str]:
    """Yield by how much standard deviations of f are too small for held-out groups, if rows of a group share errors.

    The mean error of a group's n rows has a variance of at most that of f plus noise / n. What is more are errors that
    the fit took for noise, of which the variance of f falls with the number of rows, not of groups.

    Parameters
    ----------
    held : HeldSample
        Rows that the fit has not seen, with their groups and standard deviations.
    noise : (q,)
        The noise variance of each target.
    remedy : str
        What to do.
    """
    if held.groups is None or held.std is None:
        return
    _, place = np.unique(held.groups.view(np.uint64), return_inverse=True)
    count = int(place.max()) + 1
    known = np.isfinite(held.Y)
    rows, errors, variances = (np.zeros((count, held.Y.shape[1])) for _ in range(3))
    np.add.at(rows, place, known)
    np.add.at(errors, place, np.where(known, held.residuals, 0.0))
    np.add.at(variances, place, known * np.maximum(held.std**2 - noise, 0.0))
    there = (rows >= LEAST_SHARED_ROWS).all(axis=1)
    groups = int(there.sum())
    if groups < LEAST_SHARED_GROUPS:
        return
    means, variances = errors[there] / rows[there], variances[there] / rows[there] + noise / rows[there]
    ratio = float(np.mean(np.mean(means**2, axis=0) / np.mean(variances, axis=0)))
    if ratio > max(SHARED**2, 1.0 + 4.0 * math.sqrt(2.0 / groups)):
        factor = math.sqrt(ratio)
        problem = f"{groups} held-out groups are {factor:.1f} times as far off as deviations of f (--std) allow"
        yield f"{problem}: rows of a group share errors, and deviations of f are too small by that factor; {remedy}"


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
