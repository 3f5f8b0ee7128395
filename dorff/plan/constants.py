"""The constants that a pass needs from data, computed from a few rows."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final, Self, TypeVar

import numpy as np

from dorff.data import Dataset, RowBlock, class_counts
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Recipe, folded, periods_of
from dorff.features.lengthscale_search import Tuned, search_size, tune_lengthscales
from dorff.features.smoothness import tune_smoothness
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.moments import MOST_PATTERNS, patterns_of, pinned
from dorff.passes import Configs, FoldRule, FrozenConstants, RowsName
from dorff.passes.frozen import AS_SAMPLED, GROUPED, IN_BLOCKS, Rows
from dorff.plan.costs import SAMPLE_BYTES
from dorff.plan.draft import Draft
from dorff.plan.lattice import box_of, named
from dorff.plan.lengthscale import build_kernels, check_all_finite, multiplied, spread_rows, tuned_config, with_medians
from dorff.plan.sampled import CHECKED as MOST_CHECKED
from dorff.plan.sampled import FirstLook, distance, held_out_multiple, linear_r2, look, run_length, sample_runs
from dorff.plan.sharing import make_recipe
from dorff.solvers import Setting, spread
from dorff.spec.job import Job

K = TypeVar("K")
Scaled = Callable[[FloatArray], FloatArray]  # inputs (n, d), centred and divided by their scales
Described = Callable[[Scaled], tuple[K, Recipe]]
Tied = Sequence[IntArray] | None  # inputs that have one scale; None: none is scaled
# Rows for centres, and for the median distance: few, so that a data set that grows had them from the start. Scales
# (`standardize`) take the first leaf, up to SAMPLE_BYTES.
SMALL_SAMPLE: Final = 256
MEDIAN_SAMPLE: Final = 1000


@dataclass(frozen=True)
class _Kernels:
    """Those drawn for and those fitted (None: the same), with numbers for words; and of a search its rows and end."""

    drawn: Configs | None
    fitted: Configs | None
    rows: RowsName | None = None
    status: tuple[str | None, ...] | None = None
    smoothness: str | None = None


_Looked = tuple[_Kernels, FoldRule | None, FirstLook | None]  # with how rows are dealt


def _sample(draft: Draft) -> tuple[RowBlock, RowsName]:
    """Of the first rows those that the pass keeps and that are whole, or have any target where some may be missing, or
    none where rows may be unlabelled; and the name of all of them. Where none of them is kept or has a target there are
    more, up to SAMPLE_BYTES: targets are shifted by the mean of those found."""
    dataset, most = draft.dataset, _most_rows(draft)
    rows = MEDIAN_SAMPLE if any(draft.spec.words) else SMALL_SAMPLE
    if draft.job.solve.standardize:
        rows = min(draft.leaves[0].stop - draft.leaves[0].start, max(SMALL_SAMPLE, most))
    read = dataset.block(dataset.first, min(dataset.n, dataset.first + rows))
    unlabelled = draft.job.data.nan == "unlabelled"
    used = draft.spec.kept(read)
    while len(read) < min(most, dataset.rows) and not (len(used) and (np.isfinite(used.Y).any() or not unlabelled)):
        read = dataset.block(dataset.first, dataset.first + min(2 * len(read), most, dataset.rows))
        used = draft.spec.kept(read)
    if unlabelled:
        finite = np.isfinite(used.X if used.weights is None else np.column_stack([used.X, used.weights]))
        used = used[np.all(finite, axis=1)]
    else:
        used = used[used.whole(partial=draft.job.data.nan == "partial")]
    if not len(used):
        more = "" if read.weights is None else " and weighs more than 0"
        problem = f"{dataset.path}: none of the first {len(read)} rows is free of NaN and infinity{more}"
        if draft.job.data.outside == "drop" and draft.spec.box is not None:
            raise InputError(f"{problem} and lies in data.box; name the box that the rows lie in, or mend the data")
        raise InputError(f"{problem}; mend the data")
    return replace(used, X=_inputs(draft, used)), named(read)


def _inputs(draft: Draft, rows: RowBlock) -> FloatArray:
    """The inputs (n, d) of rows, those with a period within one: distances are told by them."""
    return folded(rows.X, periods_of(draft.spec.sampler, draft.dataset.d))


def _most_rows(draft: Draft) -> int:
    return SAMPLE_BYTES // (8 * (draft.dataset.d + draft.dataset.q))


def _patterns(draft: Draft, *, narrow: bool) -> tuple[str, ...] | None:
    """The patterns of targets that rows may have, where they have more than there are sums for; None where all count.
    They are the commonest of the first leaf's rows (up to SAMPLE_BYTES); where these have no more than there are sums
    for but `narrow` says that all rows do, those that come first after them are taken. Later rows change nothing."""
    dataset, nan = draft.dataset, draft.job.data.nan
    if nan not in ("partial", "unlabelled") or dataset.labels is not None:
        return None
    stop = min(draft.leaves[0].stop, dataset.first + max(SMALL_SAMPLE, _most_rows(draft)))
    counts = _counted(draft.spec.kept(dataset.block(dataset.first, stop)))
    kept = sorted(counts, key=lambda name: (-counts[name], name))
    if len(kept) <= MOST_PATTERNS and not narrow:
        return None
    for start, end in dataset.runs():
        if len(kept) >= MOST_PATTERNS:
            break
        kept += [name for name in _counted(draft.spec.kept(dataset.block(start, end))) if name not in kept]
    return tuple(kept[:MOST_PATTERNS])


def _counted(rows: RowBlock) -> Counter[str]:
    """How many rows have each pattern of targets, in order of the first that has it; rows without any are none."""
    rows = rows[rows.whole(partial=True)]
    each = sorted(patterns_of(np.isfinite(rows.Y)), key=lambda one: int(np.argmax(one[1])))
    return Counter({name: int(np.count_nonzero(here)) for name, here in each})


@dataclass(frozen=True, eq=False)
class Scaling:
    """What inputs are centred and divided by: `center` and `scale` (d,), in the inputs' units."""

    center: FloatArray
    scale: FloatArray

    @classmethod
    def of(cls, X: FloatArray, weights: FloatArray | None, *, tied: Tied, shift_invariant: bool) -> Self:
        """Return the scaling of rows X (n, d) of `weights` (n,), where `tied` columns have one scale, if any.

        Features that see more of the inputs than their differences see them as they are, unless scaled.
        """
        center, scale = np.average(X, axis=0, weights=weights), np.ones(X.shape[1])
        if tied is not None:
            variance = np.average((X - center) ** 2, axis=0, weights=weights)
            scale = spread(variance, together=False)
            for columns in tied:
                scale[columns] = spread(variance[columns], together=True)
        elif not shift_invariant:
            center = np.zeros(X.shape[1])
        return cls(center, scale)

    def __call__(self, X: FloatArray) -> FloatArray:
        """Scale rows X (n, d)."""
        return np.asarray((X - self.center) / self.scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class Survey:
    """What the first rows and a sample of all rows told, before any feature is drawn.

    `rows` are the first rows that count, named by `sample`; inputs are centred and divided by `scaling`. `folds` is
    how rows are dealt, and `first_look` what the sample told for that; None without folds.
    """

    rows: RowBlock
    sample: RowsName
    scaling: Scaling
    kernels: _Kernels
    folds: FoldRule | None
    first_look: FirstLook | None


def survey_rows(draft: Draft) -> Survey:
    """Read the rows that constants come from, and find the length-scales; nothing is written.

    Drafts of the same rows and kernels with other samplers and numbers of features have the same survey, which is kept
    while the process runs.
    """
    return _surveyed(_SurveyKey(_survey_key(draft), draft))


@dataclass(frozen=True)
class _SurveyKey:
    """A draft, known by what its survey depends on."""

    name: str
    draft: Draft = field(compare=False)


def _survey_key(draft: Draft) -> str:
    """Return text that names all that a survey depends on."""
    spec, dataset = draft.spec, draft.dataset
    own = ("recipe", "sampler", "count", "precision", "sums", "block_rows", "read_rows")
    words = {name: value for name, value in spec.config().items() if name not in own}
    more = {
        "searched": min(search_size(dataset.n)[1], spec.count),
        "checked": min(MOST_CHECKED, spec.count),
        "box": spec.recipe.get("box") if spec.recipe.get("outside") == "drop" else None,
        "periods": periods_of(spec.sampler, dataset.d).tolist(),
        "kernels": [draft.kernel_configs, draft.drawn_configs],
        "leaves": None if spec.folds.by_rows or spec.folds.count == 1 else [leaf.start for leaf in draft.leaves],
        "first leaf": draft.leaves[0].stop if spec.standardize else None,
        "intercept": draft.job.solve.intercept,
        "stamp": dataset.stamp(dataset.first, dataset.n),
        "chosen folds": draft.chose("solve.folds.by"),
        "fold count": draft.job.solve.folds.count,
    }
    return json.dumps([words, more], sort_keys=True)


@lru_cache(maxsize=4)
def _surveyed(key: _SurveyKey) -> Survey:
    draft = key.draft
    dataset, spec = draft.dataset, draft.spec
    rows, sample = _sample(draft)
    tied: Tied = None
    if spec.standardize:
        kernel, together = draft.candidates[0], (np.arange(dataset.d),) if spec.one_scale else ()
        tied = kernel.tied(dataset.d) if kernel.V > 1 else together
    drawn = build_kernels(draft.drawn_configs, dataset.d)
    invariant = all(base.scalar.shift_invariant for kernel in drawn for _, base in kernel.terms())
    scaling = Scaling.of(rows.X, rows.weights, tied=tied, shift_invariant=invariant)
    kernels, folds, first_look = _looked(draft, _numbers(draft, rows, scaling), scaling)
    return Survey(rows=rows, sample=sample, scaling=scaling, kernels=kernels, folds=folds, first_look=first_look)


def constants_of(draft: Draft, *, narrow: bool = False) -> FrozenConstants:
    """The constants that the pass needs of its first rows; `narrow` as in `freeze_constants`. Nothing is written."""
    dataset, spec, survey = draft.dataset, draft.spec, survey_rows(draft)
    rows, kernels, rule, scaling = survey.rows, survey.kernels, survey.folds, survey.scaling
    landmark_rows: RowsName | None = None
    recipe = surveyed_recipe(draft, survey)
    if recipe.landmarks is not None:
        _, landmark_rows = spread_rows(spec, dataset, dataset.n, targets=False)
        recipe = recipe.among(scaled_rows(draft, survey, targets=False).X, spec.seed)
    for _, base in recipe.kernel.terms():
        base.check_rows(rows.X, scaled=spec.standardize)
    drawn = recipe.draw(spec.seed)
    features = FeatureMap(drawn.phi, scaling.center, scaling.scale)
    x = scaling(rows.X)
    run = None if rule is None or spec.folds.run not in (AS_SAMPLED, IN_BLOCKS) else rule.run
    return FrozenConstants(
        features,
        drawn,
        y0=target_means(rows.Y, rows.weights),
        class_weight=_class_weight(draft.job, dataset),
        sample=survey.sample,
        patterns=_patterns(draft, narrow=narrow),
        first=spec.folds.first if rows.groups is None or run is not None else int(rows.groups[0]),
        fold_seed=None if rule is None or rule.seed == spec.folds.seed else rule.seed,
        drawn=kernels.drawn,
        fitted=kernels.fitted,
        tuning_rows=kernels.rows,
        tuned=kernels.status,
        run=run,
        sampled=None if survey.first_look is None else asdict(survey.first_look),
        distances=[distance(one, x) for one in _chosen(draft, kernels)] if np.isfinite(x).all() else None,
        landmark_rows=landmark_rows,
        smoothness=kernels.smoothness,
    )


def scaled_rows(draft: Draft, survey: Survey, *, targets: bool) -> RowBlock:
    """Return the rows of `spread_rows`, their inputs scaled."""
    rows, _ = spread_rows(draft.spec, draft.dataset, draft.dataset.n, targets=targets)
    return replace(rows, X=survey.scaling(_inputs(draft, rows)))


def surveyed_kernels(draft: Draft, survey: Survey) -> Sequence[OperatorKernel]:
    """Return the kernels that are fitted, with the length-scales of a survey."""
    return _chosen(draft, survey.kernels)


def surveyed_recipe(draft: Draft, survey: Survey) -> Recipe:
    """Return a draft's recipe with the length-scales of a survey, over the scaled box of its inputs."""
    configs = draft.drawn_configs if survey.kernels.drawn is None else survey.kernels.drawn
    box = survey.scaling(box_of(draft.spec)) if draft.recipe.on_lattice else None
    return make_recipe(build_kernels(configs, draft.dataset.d), draft.dataset, draft.job, draft.observe, box)


def _looked(draft: Draft, kernels: _Kernels, scaled: Scaled) -> _Looked:
    """What a sample of rows told, where folds are dealt; and how they are, where the spec leaves that to it, or groups
    are few. The linear model has the folds of the pass, each of them held out; and so have kernels that were tuned,
    longer than found where that tells other groups better."""
    dataset, spec, leaves = draft.dataset, draft.spec, draft.leaves
    if spec.folds.count == 1:
        return kernels, None, None
    read = [spec.kept(dataset.block(start, stop)) for start, stop in sample_runs(dataset.first, dataset.n)]
    blocks = [block[block.whole()] for block in read]
    rows, rule = RowBlock.joined(blocks), replace(spec.folds, count=draft.job.solve.folds.count, held=0)
    x = scaled(_inputs(draft, rows))
    sampled = look(_chosen(draft, kernels)[0], x, rows.Y, rows.numbers, spec.seed)
    if spec.folds.run in (AS_SAMPLED, IN_BLOCKS):
        rule = replace(rule, run=run_length(sampled, dataset.rows, rule.count, always=spec.folds.run == IN_BLOCKS))
    elif rule.run == GROUPED and draft.chose("solve.folds.by"):
        # Groups that the job names are dealt by their keys alone, whatever rows are there.
        rule = rule.even(np.concatenate([block.groups for block in blocks if block.groups is not None]))
    if rule.by_rows:
        fold_of = np.concatenate([rule.of(block) for block in blocks])
    else:
        at = np.searchsorted([leaf.start for leaf in leaves], rows.numbers, side="right") - 1
        fold_of = np.array([leaf.number for leaf in leaves])[at] % rule.count
    with pinned():
        if spec.tuning and rule.run == GROUPED and kernels.drawn is not None and kernels.fitted is None:
            kernels = _multiplied(draft, kernels, kernels.drawn, replace(rows, X=x), fold_of)
        return kernels, rule, replace(sampled, linear=linear_r2(x, rows.Y, fold_of))


def _multiplied(draft: Draft, kernels: _Kernels, drawn: Configs, rows: RowBlock, fold_of: Rows) -> _Kernels:
    """Tuned kernels, their length-scales longer where that tells other folds best; not where others are drawn for."""
    spec, classes = draft.spec, draft.dataset.labels is not None
    given = (
        min(search_size(draft.dataset.n)[1], spec.count),
        None,
        not classes,
        draft.job.solve.intercept,
        draft.observe,
    )

    def multiple(kernel: OperatorKernel) -> float:
        setting = Setting(kernel, draft.dataset.d, *given, one_scale=spec.one_scale, free_scale=classes)
        return held_out_multiple(setting, rows, fold_of, spec.seed, spec.count)

    configs, factors = multiplied(draft.drawn_configs, drawn, multiple)
    status = [
        one if one is None or factor == 1 else f"{one}; times {factor:g}, by groups that were held out"
        for one, factor in zip(kernels.status or (), factors, strict=True)
    ]
    return replace(kernels, drawn=configs, status=tuple(status))


def _chosen(draft: Draft, kernels: _Kernels) -> Sequence[OperatorKernel]:
    """Return the kernels that are fitted, with numbers for their length-scales."""
    return build_kernels(kernels.fitted or kernels.drawn or draft.kernel_configs, draft.dataset.d)


def draw_features(
    X: FloatArray, weights: FloatArray | None, described: Described[K], seed: int, *, tied: Tied, shift_invariant: bool
) -> tuple[K, Recipe, Drawn, FeatureMap]:
    """Features of an estimator, as rows X (n, d) of `weights` (n,) tell: what these are centred and divided by, then
    kernels and a recipe as `described` by what so scales inputs, then the recipe's draw of the seed."""
    scaling = Scaling.of(X, weights, tied=tied, shift_invariant=shift_invariant)
    kernels, recipe = described(scaling)
    for _, base in recipe.kernel.terms():
        base.check_rows(X, scaled=tied is not None)
    drawn = recipe.draw(seed)
    return kernels, recipe, drawn, FeatureMap(drawn.phi, scaling.center, scaling.scale)


def target_means(Y: FloatArray, weights: FloatArray | None) -> FloatArray:
    """The mean (q,) of targets Y (n, q) that are there, 0 where none is."""
    there = np.isfinite(Y) * (1.0 if weights is None else weights[:, None])
    total = there.sum(axis=0)
    return np.asarray((np.where(there > 0, Y, 0.0) * there).sum(axis=0) / np.where(total > 0, total, 1.0))


def _numbers(draft: Draft, sample: RowBlock, scaled: Scaled) -> _Kernels:
    """The kernels: medians of the sample's distances for their word, then length-scales of most evidence for theirs."""
    spec = draft.spec
    if not any(spec.words):
        return _Kernels(None, None)
    x = scaled(sample.X)
    drawn = with_medians(draft.drawn_configs, x, sample.weights)
    fitted = [] if spec.words[1] is None else with_medians(draft.kernel_configs, x, sample.weights)
    if not spec.tuning:
        return _Kernels(drawn, fitted or None)
    check_all_finite(spec, draft.dataset)
    rows, name = spread_rows(spec, draft.dataset, draft.dataset.n)
    most, m = search_size(draft.dataset.n)
    how: dict[str, Any] = {
        "X": scaled(_inputs(draft, rows)),
        "Y": rows.Y,
        "n_features": min(m, spec.count),
        "seed": spec.seed,
        "rows": most,
        "intercept": draft.job.solve.intercept,
        "observe": draft.observe,
        "weights": rows.weights,
        "classes": draft.dataset.labels is not None,
    }
    smoothness: Callable[..., Tuned] = partial(tune_smoothness, **how)
    if spec.folds.run == GROUPED:  # errors that rows of a group share look like a rough function
        smoothness = partial(tune_lengthscales, each=True, **how)
    searches_of = partial(tune_lengthscales, **how), smoothness
    configs, searches = tuned_config([*drawn, *fitted], *searches_of)
    status, split = [None if one is None else one.status for one in searches], len(drawn)
    compared = next((search.smoothness for search in searches if search and search.smoothness), None)
    return _Kernels(configs[:split], configs[split:] or None, name, tuple(status[split:] or status), compared)


def _class_weight(job: Job, dataset: Dataset) -> FloatArray | None:
    """The weight (q,) of each class's rows, frozen with the first plan; "balanced" is n / (K n_k) as in scikit-learn,
    of the counts (summed weights) at that time: rows appended later do not change it."""
    wanted = job.solve.class_weight
    if wanted == "none":
        return None
    if wanted == "balanced":
        counts = np.array(class_counts(dataset), dtype=np.float64)
        return np.where(counts > 0, counts.sum() / (len(counts) * np.where(counts > 0, counts, 1.0)), 1.0)
    given = dict(wanted)
    return np.array([given.get(label, 1.0) for label in dataset.target_columns])
