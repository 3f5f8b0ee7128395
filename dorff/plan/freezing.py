"""The constants that a pass needs from data: computed by the first plan from a few rows, and kept."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from dorff.data import Dataset, RowBlock, class_counts
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Recipe, folded, periods_of
from dorff.features.lengthscale_search import search_size, tune_lengthscales
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.moments import MOST_PATTERNS, patterns_of, pinned
from dorff.passes import Configs, FoldRule, FrozenConstants, Pass, RowsName, frozen_hash
from dorff.passes.frozen import AS_SAMPLED, GROUPED, IN_BLOCKS, Rows, freeze
from dorff.plan.costs import SAMPLE_BYTES
from dorff.plan.lattice import box_of, named, same_sample
from dorff.plan.lengthscale import build_kernels, check_all_finite, multiplied, spread_rows, tuned_config, with_medians
from dorff.plan.plan import Plan
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


_Looked = tuple[_Kernels, FoldRule | None, FirstLook | None]  # with how rows are dealt


def freeze_constants(plan: Plan, *, narrow: bool = False) -> Pass:
    """The plan's pass; its constants are frozen, unless they are and the rows they came from are unchanged. Anew where
    `narrow` says that rows were seen to have more patterns of targets than there are sums for."""
    if narrow or not _still_frozen(plan):
        freeze(plan.directory, plan.spec, constants_of(plan, narrow=narrow))
    return plan.frozen()


def _still_frozen(plan: Plan) -> bool:
    """Whether there are constants, and the rows they came from are what they were, or have left the window."""
    if frozen_hash(plan.directory) is None:
        return False
    try:
        constants = plan.frozen().constants
    except InputError:  # damaged: the same rows give the same constants again
        return False
    if not same_sample(plan.frozen(), plan.dataset):
        return False
    searched = _still_there(plan, constants.tuning_rows, targets=True)
    return searched and _still_there(plan, constants.landmark_rows, targets=False)


def _still_there(plan: Plan, named_rows: RowsName | None, *, targets: bool) -> bool:
    """Whether rows that constants came from are what they were, or have left the window."""
    dataset = plan.dataset
    if named_rows is None or named_rows.first < dataset.first:
        return True
    rows = dataset.window(named_rows.first)
    return named_rows.rows <= rows.n and named_rows == spread_rows(plan.spec, rows, named_rows.rows, targets=targets)[1]


def _sample(plan: Plan) -> tuple[RowBlock, RowsName]:
    """Of the first rows those that the pass keeps and that are whole, or have any target where some may be missing, or
    none where rows may be unlabelled; and the name of all of them. Where none of them is kept or has a target there are
    more, up to SAMPLE_BYTES: targets are shifted by the mean of those found."""
    dataset, most = plan.dataset, _most_rows(plan)
    rows = MEDIAN_SAMPLE if any(plan.spec.words) else SMALL_SAMPLE
    if plan.job.solve.standardize:
        rows = min(plan.leaves[0].stop - plan.leaves[0].start, max(SMALL_SAMPLE, most))
    read = dataset.block(dataset.first, min(dataset.n, dataset.first + rows))
    unlabelled = plan.job.data.nan == "unlabelled"
    used = plan.spec.kept(read)
    while len(read) < min(most, dataset.rows) and not (len(used) and (np.isfinite(used.Y).any() or not unlabelled)):
        read = dataset.block(dataset.first, dataset.first + min(2 * len(read), most, dataset.rows))
        used = plan.spec.kept(read)
    if unlabelled:
        finite = np.isfinite(used.X if used.weights is None else np.column_stack([used.X, used.weights]))
        used = used[np.all(finite, axis=1)]
    else:
        used = used[used.whole(partial=plan.job.data.nan == "partial")]
    if not len(used):
        more = "" if read.weights is None else " and weighs more than 0"
        problem = f"{dataset.path}: none of the first {len(read)} rows is free of NaN and infinity{more}"
        if plan.job.data.outside == "drop" and plan.spec.box is not None:
            raise InputError(f"{problem} and lies in data.box; name the box that the rows lie in, or mend the data")
        raise InputError(f"{problem}; mend the data")
    return replace(used, X=_inputs(plan, used)), named(read)


def _inputs(plan: Plan, rows: RowBlock) -> FloatArray:
    """The inputs (n, d) of rows, those with a period within one: distances are told by them."""
    return folded(rows.X, periods_of(plan.spec.sampler, plan.dataset.d))


def _most_rows(plan: Plan) -> int:
    return SAMPLE_BYTES // (8 * (plan.dataset.d + plan.dataset.q))


def _patterns(plan: Plan, *, narrow: bool) -> tuple[str, ...] | None:
    """The patterns of targets that rows may have, where they have more than there are sums for; None where all count.
    They are the commonest of the first leaf's rows (up to SAMPLE_BYTES); where these have no more than there are sums
    for but `narrow` says that all rows do, those that come first after them are taken. Later rows change nothing."""
    dataset, nan = plan.dataset, plan.job.data.nan
    if nan not in ("partial", "unlabelled") or dataset.labels is not None:
        return None
    stop = min(plan.leaves[0].stop, dataset.first + max(SMALL_SAMPLE, _most_rows(plan)))
    counts = _counted(plan.spec.kept(dataset.block(dataset.first, stop)))
    kept = sorted(counts, key=lambda name: (-counts[name], name))
    if len(kept) <= MOST_PATTERNS and not narrow:
        return None
    for start, end in dataset.runs():
        if len(kept) >= MOST_PATTERNS:
            break
        kept += [name for name in _counted(plan.spec.kept(dataset.block(start, end))) if name not in kept]
    return tuple(kept[:MOST_PATTERNS])


def _counted(rows: RowBlock) -> Counter[str]:
    """How many rows have each pattern of targets, in order of the first that has it; rows without any are none."""
    rows = rows[rows.whole(partial=True)]
    each = sorted(patterns_of(np.isfinite(rows.Y)), key=lambda one: int(np.argmax(one[1])))
    return Counter({name: int(np.count_nonzero(here)) for name, here in each})


def constants_of(plan: Plan, *, narrow: bool = False) -> FrozenConstants:
    """The constants that the pass needs of its first rows; `narrow` as in `freeze_constants`. Nothing is written."""
    dataset, spec = plan.dataset, plan.spec
    rows, sample = _sample(plan)
    drawn = build_kernels(plan.drawn_configs, dataset.d)
    tied: Tied = None
    if spec.standardize:
        kernel, together = plan.candidates[0], (np.arange(dataset.d),) if spec.one_scale else ()
        tied = kernel.tied(dataset.d) if kernel.V > 1 else together

    landmarks = plan.recipe.landmarks is not None
    candidates, landmark_rows = spread_rows(spec, dataset, dataset.n, targets=False) if landmarks else (None, None)

    def described(scaled: Scaled) -> tuple[_Looked, Recipe]:
        looked = _looked(plan, _numbers(plan, rows, scaled), scaled)
        sources = drawn if looked[0].drawn is None else build_kernels(looked[0].drawn, dataset.d)
        box = scaled(box_of(spec)) if plan.recipe.on_lattice else None
        recipe = make_recipe(sources, dataset, plan.job, plan.observe, box)
        if candidates is not None:
            recipe = recipe.among(scaled(_inputs(plan, candidates)), spec.seed)
        return looked, recipe

    invariant = all(base.scalar.shift_invariant for kernel in drawn for _, base in kernel.terms())
    (kernels, rule, sampled), _, draw, features = draw_features(
        rows.X, rows.weights, described, spec.seed, tied=tied, shift_invariant=invariant
    )
    x = (rows.X - features.center) / features.scale
    run = None if rule is None or spec.folds.run not in (AS_SAMPLED, IN_BLOCKS) else rule.run
    return FrozenConstants(
        features,
        draw,
        y0=target_means(rows.Y, rows.weights),
        class_weight=_class_weight(plan.job, dataset),
        sample=sample,
        patterns=_patterns(plan, narrow=narrow),
        first=spec.folds.first if rows.groups is None or run is not None else int(rows.groups[0]),
        fold_seed=None if rule is None or rule.seed == spec.folds.seed else rule.seed,
        drawn=kernels.drawn,
        fitted=kernels.fitted,
        tuning_rows=kernels.rows,
        tuned=kernels.status,
        run=run,
        sampled=None if sampled is None else asdict(sampled),
        distances=[distance(one, x) for one in _chosen(plan, kernels)] if np.isfinite(x).all() else None,
        landmark_rows=landmark_rows,
    )


def _looked(plan: Plan, kernels: _Kernels, scaled: Scaled) -> _Looked:
    """What a sample of rows told, where folds are dealt; and how they are, where the spec leaves that to it, or groups
    are few. The linear model has the folds of the pass, each of them held out; and so have kernels that were tuned,
    longer than found where that tells other groups better."""
    dataset, spec, leaves = plan.dataset, plan.spec, plan.leaves
    if spec.folds.count == 1:
        return kernels, None, None
    read = [spec.kept(dataset.block(start, stop)) for start, stop in sample_runs(dataset.first, dataset.n)]
    blocks = [block[block.whole()] for block in read]
    rows, rule = RowBlock.joined(blocks), replace(spec.folds, count=plan.job.solve.folds.count, held=0)
    x = scaled(_inputs(plan, rows))
    sampled = look(_chosen(plan, kernels)[0], x, rows.Y, rows.numbers, spec.seed)
    if spec.folds.run in (AS_SAMPLED, IN_BLOCKS):
        rule = replace(rule, run=run_length(sampled, dataset.rows, rule.count, always=spec.folds.run == IN_BLOCKS))
    elif rule.run == GROUPED and plan.chose("solve.folds.by"):
        # Groups that the job names are dealt by their keys alone, whatever rows are there.
        rule = rule.even(np.concatenate([block.groups for block in blocks if block.groups is not None]))
    if rule.by_rows:
        fold_of = np.concatenate([rule.of(block) for block in blocks])
    else:
        at = np.searchsorted([leaf.start for leaf in leaves], rows.numbers, side="right") - 1
        fold_of = np.array([leaf.number for leaf in leaves])[at] % rule.count
    with pinned():
        if spec.tuning and rule.run == GROUPED and kernels.drawn is not None and kernels.fitted is None:
            kernels = _multiplied(plan, kernels, kernels.drawn, replace(rows, X=x), fold_of)
        return kernels, rule, replace(sampled, linear=linear_r2(x, rows.Y, fold_of))


def _multiplied(plan: Plan, kernels: _Kernels, drawn: Configs, rows: RowBlock, fold_of: Rows) -> _Kernels:
    """Tuned kernels, their length-scales longer where that tells other folds best; not where others are drawn for."""
    spec, classes = plan.spec, plan.dataset.labels is not None
    given = min(search_size(plan.dataset.n)[1], spec.count), None, not classes, plan.job.solve.intercept, plan.observe

    def multiple(kernel: OperatorKernel) -> float:
        setting = Setting(kernel, plan.dataset.d, *given, one_scale=spec.one_scale, free_scale=classes)
        return held_out_multiple(setting, rows, fold_of, spec.seed, spec.count)

    configs, factors = multiplied(plan.drawn_configs, drawn, multiple)
    status = [
        one if one is None or factor == 1 else f"{one}; times {factor:g}, by groups that were held out"
        for one, factor in zip(kernels.status or (), factors, strict=True)
    ]
    return replace(kernels, drawn=configs, status=tuple(status))


def _chosen(plan: Plan, kernels: _Kernels) -> Sequence[OperatorKernel]:
    return build_kernels(kernels.fitted or kernels.drawn or plan.kernel_configs, plan.dataset.d)


def draw_features(
    X: FloatArray, weights: FloatArray | None, described: Described[K], seed: int, *, tied: Tied, shift_invariant: bool
) -> tuple[K, Recipe, Drawn, FeatureMap]:
    """Features, of a job and of an estimator, as rows X (n, d) of `weights` (n,) tell: what these are centred and
    divided by, then kernels and a recipe as `described` by what so scales inputs, then the recipe's draw of the seed.
    Features that see more of the inputs than their differences see them as they are, unless scaled."""
    d = X.shape[1]
    center, scale = np.average(X, axis=0, weights=weights), np.ones(d)
    if tied is not None:
        variance = np.average((X - center) ** 2, axis=0, weights=weights)
        scale = spread(variance, together=False)
        for columns in tied:
            scale[columns] = spread(variance[columns], together=True)
    elif not shift_invariant:
        center = np.zeros(d)
    kernels, recipe = described(lambda rows: (rows - center) / scale)
    for _, base in recipe.kernel.terms():
        base.check_rows(X, scaled=tied is not None)
    drawn = recipe.draw(seed)
    return kernels, recipe, drawn, FeatureMap(drawn.phi, center, scale)


def target_means(Y: FloatArray, weights: FloatArray | None) -> FloatArray:
    """The mean (q,) of targets Y (n, q) that are there, 0 where none is."""
    there = np.isfinite(Y) * (1.0 if weights is None else weights[:, None])
    total = there.sum(axis=0)
    return np.asarray((np.where(there > 0, Y, 0.0) * there).sum(axis=0) / np.where(total > 0, total, 1.0))


def _numbers(plan: Plan, sample: RowBlock, scaled: Scaled) -> _Kernels:
    """The kernels: medians of the sample's distances for their word, then length-scales of most evidence for theirs."""
    spec = plan.spec
    if not any(spec.words):
        return _Kernels(None, None)
    x = scaled(sample.X)
    drawn = with_medians(plan.drawn_configs, x, sample.weights)
    fitted = [] if spec.words[1] is None else with_medians(plan.kernel_configs, x, sample.weights)
    if not spec.tuning:
        return _Kernels(drawn, fitted or None)
    check_all_finite(spec, plan.dataset)
    rows, name = spread_rows(spec, plan.dataset, plan.dataset.n)
    most, m = search_size(plan.dataset.n)
    tune = partial(
        tune_lengthscales, X=scaled(_inputs(plan, rows)), Y=rows.Y, n_features=min(m, spec.count), seed=spec.seed,
        rows=most, intercept=plan.job.solve.intercept, observe=plan.observe, weights=rows.weights,
    )  # fmt: skip
    configs, searches = tuned_config([*drawn, *fitted], tune)
    status, split = [None if one is None else one.status for one in searches], len(drawn)
    return _Kernels(configs[:split], configs[split:] or None, name, tuple(status[split:] or status))


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
