"""Choose a kernel, a number of features and a ridge from the folds' moments alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dorff.errors import InputError
from dorff.features import FeatureMap, modes_of
from dorff.frequencies import first_weights
from dorff.kernels import MultiView
from dorff.moments import FloatArray, IntArray, Moments, Solvable, pooled
from dorff.solvers.few_labels import Common, few_label_errors
from dorff.solvers.outputs import untouched
from dorff.solvers.ridge_path import path_errors
from dorff.solvers.scores import FitScore, Ridge, criterion_of, geometric_mean
from dorff.solvers.select import R2, FoldErrors, Spread, about_mean, squared_error, squared_size
from dorff.solvers.setting import Fit, Setting, learned_term
from dorff.solvers.stochastic import lattice_parts
from dorff.solvers.system import Penalty

Folds = Sequence[Sequence[Solvable]]  # of each fold the moments of each pattern of targets
Trial = tuple["Score", Fit | None]  # with the fit that it is of, where that is to all rows
LARGE: Final = 512  # unknowns from which folds are solved as neighbours of their sum
DIRECT: Final = "direct"
FIRST, LAST = (-8, 1), (-14, 5)  # powers of ten of ridges, times k(x, x): those tried at once, and all that may be
STEPS: Final = (1, 2, 3)  # beyond an end
PLATEAU: Final = 0.01  # relative difference of held-out errors that is not significant


@dataclass(frozen=True)
class Score:
    """One trial: number `candidate` in the list of settings, its ridge, m, and what was found. `value` is the GCV
    score, minus the log evidence, or by k-fold and leave-one-out the mean squared error of all held-out entries, in
    the targets' units squared; `r2` is then their R2, the mean of outputs' or pooled (`Setting.r2`), and the choice is
    by that: of outputs in different units `value` hears the largest numbers alone. `ridges` are those of the outputs
    where each has its own; `ridge` is then their geometric mean. `rung` says how the value was found: "direct", along
    a path "neighbours" or "factored" (`solvers.ridge_path`), or for folds of few rows "rows" (`solvers.few_labels`).
    `digits` are `Solution.digits`, of all folds the fewest, `error` the standard error of an evidence or a
    GCV score that was estimated."""

    candidate: int
    ridge: float
    value: float
    m: int = 0
    ridges: tuple[float, ...] | None = None
    rung: str = DIRECT
    digits: float | None = None
    r2: float | None = None
    error: float | None = None

    @property
    def least(self) -> float:
        """What the best has least of."""
        return least(self.value, self.r2)


def least(value: float, r2: float | None) -> float:
    """What the best of trials has least of: 1 - R2 on held-out rows where there is one, else the value."""
    return value if r2 is None else 1.0 - r2


@dataclass(frozen=True, eq=False)
class Choice:
    """The winner, solved on all rows, with its number of features; and everybody's score."""

    candidate: int
    fit: Fit
    table: tuple[Score, ...]
    m: int = 0

    @property
    def lost_digits(self) -> bool:
        """Whether the fit has too few digits, or a better ridge was discarded because it has."""
        solution = self.fit.solution
        if solution.ill_conditioned or not self.table:
            return solution.ill_conditioned

        best = min(self.table, key=lambda score: score.least)
        if best.ridge >= solution.ridge:
            return False
        chosen = (self.candidate, self.m, solution.ridge)
        errors = [score.least for score in self.table if (score.candidate, score.m, score.ridge) == chosen]
        return not errors or min(errors) > best.least * (1.0 + PLATEAU)


def choose(
    folds: Folds,
    candidates: Sequence[Setting],
    ridges: Sequence[float] | None,
    *,
    by: str | None = None,
    per_output: bool = False,
    counts: Sequence[int] = (),
) -> Choice:
    """Select a setting, a number of features and a ridge, and fit them to all rows.

    A single candidate with a single ridge is not scored, except by k-fold. The first of equal
    scores is selected.

    Parameters
    ----------
    folds : sequence of sequences of moments
        Moments of each fold, one for each pattern of missing targets.
    candidates : sequence of Setting
        Settings to select from. R2 is pooled over outputs for all if it is for one of them.
    ridges : sequence of float or None
        Ridges to select from; None searches them (`setting_scores`).
    by : {"kfold", "loo", "gcv", "evidence"}, optional
        The criterion (default: "kfold" if there are several folds, else "gcv").
    per_output : bool
        Whether each output has a ridge of its own.
    counts : sequence of int
        Numbers of features to select from (default: those of the settings). Features are pairs of
        cosine and sine of equal weight, of which the first are used (`of_first`).

    Raises
    ------
    InputError
        For k-fold with fewer than two folds; for "loo" without rows to leave out
        (`Setting.sample`) or with a ridge for each output; for a ridge for each output whose
        systems are not independent.
    """
    criterion = by or ("gcv" if len(folds) == 1 else "kfold")
    r2 = R2.POOLED if any(setting.r2 is R2.POOLED for setting in candidates) else R2.MEAN
    trial_count = 0
    if ridges is not None:
        trial_count = len(candidates) * len(ridges) * max(1, len(counts))

    table = list[Score]()
    best, fitted = None, None
    common = Common()
    first_ridges = dict[tuple[int, int], float]()  # least ridge of a search before it is extended
    for number, candidate in enumerate(candidates):
        for m in counts or (candidate.m,):
            parts, setting = of_first(folds, replace(candidate, r2_of=r2), m)
            if ridges is None:
                first_ridges[number, setting.m] = setting.level(parts[0]) * 10.0 ** FIRST[0]
            elif trial_count == 1 and criterion_of(criterion).of_fit is not None:
                (fit,) = setting.solve(pooled(parts), ridges)
                return Choice(candidate=0, fit=fit, table=(), m=setting.m)

            trials = _trials(
                parts,
                setting,
                ridges,
                criterion,
                per_output=per_output,
                common=common,
            )
            for score, trial_fit in trials:
                table.append(replace(score, candidate=number))
                if best is None or score.least < best.least:
                    best, fitted = table[-1], trial_fit
            del trials, trial_fit, parts  # free their memory before the next setting
    assert best is not None

    is_by_held_out_rows = ridges is None and criterion in ("kfold", "loo")
    if is_by_held_out_rows and best.ridge < first_ridges[best.candidate, best.m]:
        plateau_end = _end_of_plateau(best, table)
        if plateau_end is not best:
            best, fitted = plateau_end, None
    if fitted is None:
        parts, setting = of_first([pooled(folds)], candidates[best.candidate], best.m)
        ridge = best.ridge if best.ridges is None else np.array(best.ridges)
        (fitted,) = setting.solve(parts[0], [ridge])

    choice = Choice(candidate=best.candidate, fit=fitted, table=tuple(table), m=best.m)
    return choice if ridges is not None else _with_digits(choice, folds, candidates)


def _end_of_plateau(best: Score, table: Sequence[Score]) -> Score:
    """Return the score of the largest ridge on the plateau of held-out errors of the best ridge.

    The errors of the plateau are within `PLATEAU` of the least. If few rows are fitted exactly,
    the error hardly depends on a small ridge; the least of these ridges would make the noise and
    the prior's variance, noise / (n ridge), a matter of rounding.
    """
    if best.ridges is not None:
        return best

    place = best.candidate, best.m
    same_setting = [score for score in table if (score.candidate, score.m) == place]
    end = best
    for score in sorted(same_setting, key=lambda score: score.ridge):
        if score.ridge <= best.ridge:
            continue
        if not score.least <= best.least * (1.0 + PLATEAU):
            break
        end = score
    return end


def _with_digits(choice: Choice, folds: Folds, candidates: Sequence[Setting]) -> Choice:
    """The best of the trials whose fit to all rows keeps digits enough, where that of the best has too few; the best
    where none has. For ridges that nobody named: of few rows without noise the least is often best, and rounding."""
    if not choice.fit.solution.ill_conditioned:
        return choice
    for score in sorted(choice.table, key=lambda score: score.least):
        setting = candidates[score.candidate]
        if score.ridge > choice.fit.solution.ridge and score.ridges is None and score.m == setting.m:
            parts, setting = of_first([pooled(folds)], setting, score.m)
            (fit,) = setting.solve(parts[0], [score.ridge])
            if not fit.solution.ill_conditioned:
                return replace(choice, candidate=score.candidate, fit=fit)
    return choice


def setting_scores(
    folds: Folds,
    setting: Setting,
    ridges: Sequence[float] | None,
    *,
    by: str,
    per_output: bool = False,
) -> list[Score]:
    """Return the scores of a setting at every ridge, or at the best ridge of every output.

    Parameters
    ----------
    folds : sequence of sequences of moments
    setting : Setting
    ridges : sequence of float or None
        None searches powers of ten times the mean of k(x, x): those of `FIRST`; then more beyond
        an end as long as the best ridge is there, as far as `LAST`; then two between the best and
        its neighbours; then the vertex of the parabola through the best and its neighbours.
    by : str
        The criterion, as in `choose`.
    per_output : bool
        Whether each output has a ridge of its own.
    """
    trials = _trials(folds, setting, ridges, by, per_output=per_output, common=Common())
    return [score for score, _ in trials]


def _trials(
    folds: Folds, setting: Setting, ridges: Sequence[float] | None, by: str, *, per_output: bool, common: Common
) -> list[Trial]:
    if ridges is None:
        return _search_ridges(folds, setting, by, per_output=per_output, common=common)
    if by == "loo":  # each row of the setting's sample is predicted by the fit to all others
        if (sample := setting.sample) is None or not len(sample.X) or per_output:
            raise InputError("leave-one-out: needs rows of a sample, and one ridge for all outputs; choose by kfold")
        fits, errors = setting.left_out(parts := pooled(folds), ridges)
        return list(zip(_table(errors, setting, ridges, sample.spread, parts[0].unit), fits, strict=True))
    if (rule := criterion_of(by).of_fit) is None:
        return [(score, None) for score in fold_scores(folds, setting, ridges, per_output=per_output, common=common)]
    if per_output:
        fits = [setting.solve_each(pooled(folds), ridges, by)]
    else:
        fits = setting.solve(pooled(folds), ridges, scores=True, evidence=rule.noise)
    return [(_score(fit, setting.m, rule), fit) for fit in fits]


def _search_ridges(
    folds: Folds,
    setting: Setting,
    criterion: str,
    *,
    per_output: bool,
    common: Common,
) -> list[Trial]:
    """Return the trials of the ridges that `setting_scores` searches, in ascending order."""
    level = setting.level(folds[0])
    if per_output:  # each output has a best ridge of its own: all ridges are tried
        ridges = [level * 10.0**power for power in range(*LAST)]
        return _trials(folds, setting, ridges, criterion, per_output=True, common=common)

    trials = dict[float, Trial]()

    def try_powers(powers: Sequence[float]) -> None:
        ridges = [level * 10.0**power for power in powers]
        found = _trials(folds, setting, ridges, criterion, per_output=False, common=common)
        trials.update(zip(powers, found, strict=True))

    def find_best() -> float:
        return min(sorted(trials), key=lambda power: trials[power][0].least)

    next_powers = [float(power) for power in range(*FIRST)]
    while next_powers:
        try_powers(next_powers)
        best = find_best()
        if best == min(trials):
            next_powers = [best - step for step in STEPS if best - step >= LAST[0]]
        elif best == max(trials):
            next_powers = [best + step for step in STEPS if best + step < LAST[1]]
        else:
            next_powers = []

    try_powers([power for power in (best - 0.5, best + 0.5) if LAST[0] < power < LAST[1] - 1])
    vertex = _parabola_vertex({power: score.least for power, (score, _) in trials.items()})
    if vertex is not None:
        try_powers([vertex])
    return [trials[power] for power in sorted(trials)]


def _parabola_vertex(errors: Mapping[float, float]) -> float | None:
    """Return the power of ten at the vertex of the parabola through the best and its neighbours.

    Parameters
    ----------
    errors : mapping of float to float
        What the best ridge has least of, by its power of ten.

    Returns
    -------
    float or None
        A multiple of 1/16. None if the best is at an end, if there is no vertex, or if the vertex
        is among the powers.
    """
    powers = sorted(errors)
    position = powers.index(min(powers, key=errors.__getitem__))
    if position in (0, len(powers) - 1):
        return None

    low, best, high = powers[position - 1 : position + 2]
    left_rise = (errors[low] - errors[best]) / (best - low)
    right_rise = (errors[high] - errors[best]) / (high - best)
    if not np.isfinite(left_rise + right_rise) or left_rise + right_rise <= 0:
        return None

    shift = 0.5 * (left_rise * (high - best) - right_rise * (best - low))
    vertex = round((best + shift / (left_rise + right_rise)) * 16) / 16
    return None if vertex in errors else vertex


def _score(fit: Fit, m: int, rule: FitScore) -> Score:
    solution, value = fit.solution, rule.value(fit.solution)
    ridges = None if solution.ridges is None else tuple(float(ridge) for ridge in solution.ridges)
    value, error = float("inf") if value is None else value, rule.error(solution) or None
    return Score(0, solution.ridge, value, m, ridges, DIRECT, solution.digits, error=error)


def fold_scores(
    folds: Folds, setting: Setting, ridges: Sequence[float], *, per_output: bool = False, common: Common | None = None
) -> list[Score]:
    """Held-out mean squared errors, by the rows' weights, and R2: of each ridge, and of every target's best if asked.
    Each fold is predicted from the sum of the others (added, never subtracted), from which its target scale and its
    output matrix come too. Where f has a free scale, errors are those at the best one. `common` is what other settings
    with the same moments have found already. InputError for fewer than two folds."""
    if len(folds) < 2:
        remedy = "give more rows a target, and deal rows to the folds, not leaves or groups (folds.by: rows)"
        raise InputError(f"k-fold needs at least two folds with rows in them; got {len(folds)}; {remedy}")
    if per_output:
        _check_apart(folds, setting)
    held_out = _fold_errors(folds, setting, ridges, common or Common())
    errors, rungs, digits = held_out.squares, held_out.rungs, held_out.digits
    parts = [part for fold in folds for part in fold]
    spread, unit = Spread.of_moments(parts), max(part.unit for part in parts)
    table = _table(held_out, setting, ridges, spread, unit)
    if not per_output:
        return table
    best, left = np.argmin(errors, axis=0), errors.min(axis=0)
    each = np.asarray(ridges, dtype=np.float64)[best]
    value, last = float(left.sum() / spread.weight.sum()), float(setting.r2.score(left, spread))
    rung, kept = rungs[int(best[0])], float(digits[best].min())
    ridge_each, r2_each = tuple(each.tolist()), _or_none(last)
    return [*table, Score(0, geometric_mean(each), value, setting.m, ridge_each, rung, kept, r2_each)]


def _table(held: FoldErrors, setting: Setting, ridges: Sequence[float], spread: Spread, unit: float) -> list[Score]:
    """Of errors on rows of this spread, whose sums have the relative rounding error `unit`."""
    totals, r2 = held.squares.sum(axis=1), setting.r2.score(held.squares, spread)
    if setting.free_scale:  # targets are one-hot rows, whose squares are about the mean of their entries
        totals = held.of_best_scale(float(spread.weight[0]) * (1.0 - 1.0 / len(spread.weight)), unit)
        r2 = R2.POOLED.score(totals[:, None], spread)  # its squared errors are of all outputs of a row together
    each = zip(ridges, totals / spread.weight.sum(), held.rungs, held.digits, r2, strict=True)
    return [
        Score(0, ridge, float(value), setting.m, None, rung, float(left), _or_none(one))
        for ridge, value, rung, left, one in each
    ]


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def held_out_squares(folds: Folds, setting: Setting, ridge: Ridge, *, first: bool = False) -> FloatArray:
    """Summed squared errors (q,) on all folds' rows, or the `first`'s alone, at one ridge, or one a direction (p,)."""
    if first or np.ndim(ridge):
        errors = _one_by_one(folds, setting, [ridge], held=folds[:1] if first else folds)
    else:
        errors = _fold_errors(folds, setting, [float(ridge)], Common())
    return np.asarray(errors.squares[0])


def of_first(folds: Folds, setting: Setting, m: int) -> tuple[Folds, Setting]:
    """Return the folds' moments and the setting of the first m features.

    Features of frequencies are all cosines, then all sines; whole pairs are taken
    (`select_frequencies`). Sums over a lattice become moments of the features of the setting. They
    are written out, unless route cg multiplies by the sums themselves.

    Parameters
    ----------
    folds : sequence of sequences of moments
    setting : Setting
    m : int
        Number of features; even for features of frequencies.

    Raises
    ------
    InputError
        For a multi-view kernel with another number of features than its own, because its views
        have frequencies of their own.
    """
    if setting.features is not None:
        return _on_lattice_features(folds, setting, setting.features)
    if m == setting.m:
        return folds, setting
    if isinstance(setting.kernel, MultiView):
        problem = "several do not go with a multi-view kernel"
        raise InputError(f"features.count: {problem}; give one count")
    if setting.landmarks:
        return _select_features(folds, setting, np.arange(m), 1.0)
    return select_frequencies(folds, setting, 0, m // 2)


def _on_lattice_features(
    folds: Folds,
    setting: Setting,
    features: FeatureMap,
) -> tuple[Folds, Setting]:
    """Return moments of features on a lattice, and the setting with a sample of these features."""
    lattice = modes_of(features)
    lattice_folds = [lattice_parts(fold) for fold in folds]
    sums = [[part.on(lattice.modes, lattice.extents) for part in fold] for fold in lattice_folds]
    moments: Folds = sums
    if setting.method == DIRECT:
        moments = [[part.gram() for part in fold] for fold in sums]
    sample = setting.sample and replace(setting.sample, features=features)
    return moments, replace(setting, sample=sample)


def select_frequencies(
    folds: Folds,
    setting: Setting,
    start: int,
    stop: int,
) -> tuple[Folds, Setting]:
    """Return the folds' moments and the setting of frequencies that alone estimate the kernel.

    Features are all cosines, then all sines, of D frequencies that are one sample. The kernel's
    estimate is a mean over frequencies: features of D' of them are larger by sqrt(D / D'). Features
    of unequal weights become those of the first D' frequencies (`frequencies.first_weights`).

    Parameters
    ----------
    folds : sequence of sequences of moments
    setting : Setting
        Of 2 D features.
    start, stop : int
        The frequencies `start` to `stop` - 1; `start` is 0 for unequal weights.
    """
    D, count = setting.m // 2, stop - start
    factor = np.full(count, np.sqrt(setting.m / 2 / count))
    weights = setting.unequal_weights
    if weights is not None:
        assert start == 0, "only the first features of unequal weights are a sample"
        factor = first_weights(weights, stop) / weights[:stop]
        weights = factor * weights[:stop]

    density = setting.density
    if density is not None:
        omega, log_density, view_mask = density
        if view_mask is not None:
            view_mask = view_mask[:, start:stop]
        density = (omega[start:stop], log_density[start:stop], view_mask)

    columns = np.concatenate([np.arange(start, stop), np.arange(D + start, D + stop)])
    factors = np.concatenate([factor, factor])
    moments, selected = _select_features(folds, setting, columns, factors)
    return moments, replace(selected, density=density, unequal_weights=weights)


def _select_features(
    folds: Folds,
    setting: Setting,
    columns: IntArray,
    factor: float | FloatArray,
) -> tuple[Folds, Setting]:
    """Return the folds' moments and the setting of some features, times a factor.

    The setting's sample gets its first features, as many as there are columns.
    """
    moments = [[part.columns(columns, factor) for part in fold] for fold in folds]
    penalties = list[Penalty]()
    for penalty in setting.penalties:
        penalties.append(replace(penalty, sums=penalty.sums.columns(columns, factor)))
    sample = setting.sample and setting.sample.of_first(len(columns))
    return moments, replace(setting, m=len(columns), penalties=tuple(penalties), sample=sample)


def _fold_errors(folds: Folds, setting: Setting, ridges: Sequence[float], common: Common) -> FoldErrors:
    if (whole := _whole(folds)) is not None and setting.method == DIRECT:
        held_out = few_label_errors(whole, setting, ridges, common)
        if held_out is None and min(ridges) > 0 and _neighbours(whole, setting):
            held_out = path_errors(whole, setting, ridges)
        if held_out is not None:
            return held_out
    return _one_by_one(folds, setting, ridges, held=folds)


def _one_by_one(folds: Folds, setting: Setting, ridges: Sequence[Ridge], *, held: Folds) -> FoldErrors:
    errors, C, size = FoldErrors.none([DIRECT] * len(ridges), folds[0][0].q), setting.observe, 0.0
    for fold in held:
        training = pooled([other for other in folds if other is not fold])
        for position, fit in enumerate(setting.solve(training, ridges)):
            W, bias = (fit.W, fit.bias) if C is None else (fit.W @ C.T, C @ fit.bias)
            if setting.free_scale:
                W, bias = about_mean(W, bias)
                size = sum(squared_size(part, W, bias) for part in fold)
            squares = np.sum([squared_error(part, W, bias) for part in fold], axis=0)
            errors.add(position, squares, fit.solution.digits, size)
    return errors


def _whole(folds: Folds) -> list[Moments] | None:
    """The folds' moments, where all of their rows have all targets."""
    moments = [part for fold in folds for part in fold if isinstance(part, Moments) and part.mask.all()]
    return moments if len(moments) == len(folds) and all(len(fold) == 1 for fold in folds) else None


def _neighbours(folds: Sequence[Moments], setting: Setting) -> bool:
    """Whether the folds' systems are large and can be solved together (see `path_errors`)."""
    if setting.observe is not None or setting.penalties or learned_term(setting.kernel) is not None:
        return False
    weights = setting.weights(setting.fixed([folds[0]]))
    return (setting.m if weights.separable else int(np.prod(weights.shape[:2]))) >= LARGE


def _check_apart(folds: Folds, setting: Setting) -> None:
    """InputError unless each output is one target's, with a system of its own."""
    setting.check_scored()
    weights = setting.weights(setting.fixed(pooled(folds)))
    if not (weights.separable and setting.observe is None and untouched(weights.root[0])):
        kernel = "a kernel that is one scalar kernel times a diagonal matrix, such as identity"
        problem = f"by k-fold it needs outputs that do not share a system: {kernel}, and targets that are the outputs"
        raise InputError(f"ridge_per_output: {problem}; use gcv or evidence, or one ridge for all outputs")
