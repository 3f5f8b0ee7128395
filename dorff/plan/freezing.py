"""The constants that a pass needs from data: computed by the first plan from a few rows, and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np

from dorff.data import Dataset, RowBlock, class_counts
from dorff.errors import InputError
from dorff.features import FeatureMap
from dorff.features.lengthscale_search import FEATURES, tune_lengthscales
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.moments import MOST_PATTERNS, patterns_of
from dorff.passes import Configs, FrozenConstants, Pass, RowsName, freeze, frozen_hash
from dorff.plan.costs import SAMPLE_BYTES
from dorff.plan.lengthscale import TuningRows, build_kernels, tuned_config, tuning_rows, with_medians
from dorff.plan.plan import Plan
from dorff.plan.sharing import make_recipe
from dorff.solvers import spread
from dorff.spec.job import Job

# Rows for centres, and for the median distance: few, so that a data set that grows had them from the start. Scales
# (`standardize`) take the first leaf, up to SAMPLE_BYTES.
SMALL_SAMPLE: Final = 256
MEDIAN_SAMPLE: Final = 1000


def freeze_constants(plan: Plan) -> Pass:
    """The plan's pass; its constants are frozen, unless they are and the rows they came from are unchanged."""
    if not _still_frozen(plan):
        freeze(plan.directory, plan.spec, constants_of(plan))
    return plan.frozen()


def narrow_constants(plan: Plan) -> None:
    """Freeze them anew, for rows that were seen to have more patterns of targets than there are sums for."""
    freeze(plan.directory, plan.spec, constants_of(plan, narrow=True))


def _still_frozen(plan: Plan) -> bool:
    """Whether there are constants, and the rows they came from are what they were, or are no longer used: constants
    that came from rows which have left the window stay."""
    if frozen_hash(plan.directory) is None:
        return False
    try:
        constants = plan.frozen().constants
    except InputError:  # damaged: the same rows give the same constants again
        return False
    dataset, sample, tuning = plan.dataset, constants.sample, constants.tuning_rows
    if sample.first >= dataset.first:
        stop = sample.first + sample.rows
        if stop > dataset.n or sample != _named(dataset.block(sample.first, stop)):
            return False
    if tuning is None or tuning.first < dataset.first:
        return True
    rows = dataset.window(tuning.first)
    return tuning.rows <= rows.n and tuning == tuning_rows(rows, tuning.rows).name


def _named(rows: RowBlock) -> RowsName:
    return RowsName(int(rows.numbers[0]), len(rows), rows.checksums())


def _sample(plan: Plan) -> tuple[RowBlock, RowsName]:
    """Of the first rows those that weigh anything and are whole, or have any target where some may be missing, or none
    where rows may be unlabelled; and the name of all of them.

    Where none of them has a target there are more, up to SAMPLE_BYTES: targets are shifted by the mean of those found.
    """
    dataset, rows = plan.dataset, SMALL_SAMPLE
    if plan.job.solve.standardize:
        rows = min(
            plan.leaves[0].stop - plan.leaves[0].start,
            max(SMALL_SAMPLE, SAMPLE_BYTES // (8 * (dataset.d + dataset.q))),
        )
    elif plan.spec.has_words:
        rows = MEDIAN_SAMPLE
    read = dataset.block(dataset.first, min(dataset.n, dataset.first + rows))
    unlabelled, most = plan.job.data.nan == "unlabelled", SAMPLE_BYTES // (8 * (dataset.d + dataset.q))
    while unlabelled and len(read) < min(most, dataset.rows) and not np.isfinite(read.Y).any():
        read = dataset.block(dataset.first, dataset.first + min(2 * len(read), most, dataset.rows))
    used = read.weighty()
    if unlabelled:
        finite = np.isfinite(used.X if used.weights is None else np.column_stack([used.X, used.weights]))
        used = used[np.all(finite, axis=1)]
    else:
        used = used[used.whole(partial=plan.job.data.nan == "partial")]
    if not len(used):
        more = "" if read.weights is None else " and weighs more than 0"
        raise InputError(
            f"{dataset.path}: none of the first {len(read)} rows is free of NaN and infinity{more}; mend the data"
        )
    return used, _named(read)


def _patterns(plan: Plan, *, narrow: bool) -> tuple[str, ...] | None:
    """The patterns of targets that rows may have, where they have more than there are sums for; None where all count.

    They are the commonest of the first leaf's rows (up to SAMPLE_BYTES); where these have no more than there are sums
    for but `narrow` says that all rows do, those that come first after them are taken too. So they depend on the first
    rows alone, and not on how many came later.
    """
    dataset, nan = plan.dataset, plan.job.data.nan
    if nan not in ("partial", "unlabelled") or dataset.labels is not None:
        return None
    sample = max(SMALL_SAMPLE, SAMPLE_BYTES // (8 * (dataset.d + dataset.q)))
    stop = min(plan.leaves[0].stop, dataset.first + sample)
    counts = _counted(dataset.block(dataset.first, stop))
    kept = sorted(counts, key=lambda name: (-counts[name], name))
    if len(kept) <= MOST_PATTERNS and not narrow:
        return None
    for start, end in dataset.runs():
        if len(kept) >= MOST_PATTERNS:
            break
        kept += [name for name in _counted(dataset.block(start, end)) if name not in kept]
    return tuple(kept[:MOST_PATTERNS])


def _counted(rows: RowBlock) -> Counter[str]:
    """How many rows have each pattern of targets, in order of the first that has it; rows without any are none."""
    rows = rows.weighty()
    rows = rows[rows.whole(partial=True)]
    each = sorted(patterns_of(np.isfinite(rows.Y)), key=lambda one: int(np.argmax(one[1])))
    return Counter({name: int(np.count_nonzero(here)) for name, here in each})


def constants_of(plan: Plan, *, narrow: bool = False) -> FrozenConstants:
    """The constants that the pass needs from data, from its first rows; `narrow`: rows have been seen to have more
    patterns of targets than there are sums for. Nothing is written."""
    dataset, spec = plan.dataset, plan.spec
    rows, sample = _sample(plan)
    center, scale = center_and_scale(
        rows.X, rows.weights, standardize=spec.standardize, tied=_tied(plan), shift_invariant=plan.shift_invariant
    )
    kernels = _numbers(plan, (rows.X - center) / scale, rows.weights) if spec.has_words else None
    if kernels is not None and spec.tuning:
        tuning = tuning_rows(dataset, dataset.n)
        kernels = _tuned(plan, kernels, tuning, (tuning.X - center) / scale)
    kernels = kernels or _Kernels(None, None)
    sources = build_kernels(kernels.drawn or plan.drawn_configs, dataset.d)
    draw = make_recipe(sources, dataset, plan.job, plan.observe).draw(spec.seed)
    return FrozenConstants(
        FeatureMap(draw.phi, center, scale),
        draw,
        y0=target_means(rows.Y, rows.weights),
        class_weight=_class_weight(plan.job, dataset),
        sample=sample,
        patterns=_patterns(plan, narrow=narrow),
        first=spec.folds.first if rows.groups is None else int(rows.groups[0]),
        drawn=kernels.drawn,
        fitted=kernels.fitted,
        tuning_rows=kernels.rows,
        tuned=kernels.status,
    )


def center_and_scale(
    X: FloatArray, weights: FloatArray | None, *, standardize: bool, tied: Sequence[IntArray], shift_invariant: bool
) -> tuple[FloatArray, FloatArray]:
    """What inputs are centred and divided by, (d,) each, as rows X (n, d) of `weights` (n,) tell; inputs that are
    `tied` have one scale. Features that see more of the inputs than their differences see them as they are, unless
    scaled."""
    d = X.shape[1]
    mean, scale = np.average(X, axis=0, weights=weights), np.ones(d)
    if standardize:
        variance = np.average((X - mean) ** 2, axis=0, weights=weights)
        scale = spread(variance, together=False)
        for columns in tied:
            scale[columns] = spread(variance[columns], together=True)
    return mean if shift_invariant or standardize else np.zeros(d), scale


def target_means(Y: FloatArray, weights: FloatArray | None) -> FloatArray:
    """The mean (q,) of targets Y (n, q) that are there, 0 where none is."""
    there = np.isfinite(Y) * (1.0 if weights is None else weights[:, None])
    total = there.sum(axis=0)
    return np.asarray((np.where(there > 0, Y, 0.0) * there).sum(axis=0) / np.where(total > 0, total, 1.0))


def _tied(plan: Plan) -> tuple[IntArray, ...]:
    """The inputs that may not be scaled apart, by their numbers."""
    d, kernel = plan.dataset.d, plan.candidates[0]
    if kernel.V > 1:
        return kernel.tied(d)
    return (np.arange(d),) if plan.spec.one_scale else ()


@final
@dataclass(frozen=True)
class _Kernels:
    """Those drawn for and those fitted (None: the same), with numbers for words; and of a search its rows and end."""

    drawn: Configs | None
    fitted: Configs | None
    rows: RowsName | None = None
    status: tuple[str | None, ...] | None = None


def _numbers(plan: Plan, scaled: FloatArray, weights: FloatArray | None) -> _Kernels:
    """The kernels, with the median of distances between scaled rows for the word."""
    fitted = None if plan.spec.words[1] is None else with_medians(plan.kernel_configs, scaled, weights)
    return _Kernels(with_medians(plan.drawn_configs, scaled, weights), fitted)


def _tuned(plan: Plan, kernels: _Kernels, rows: TuningRows, scaled: FloatArray) -> _Kernels:
    """The kernels with the length-scales of most evidence."""
    spec, drawn, fitted = plan.spec, kernels.drawn or (), kernels.fitted or ()
    tune = partial(
        tune_lengthscales, X=scaled, Y=rows.Y, n_features=min(FEATURES, spec.count), seed=spec.seed,
        intercept=plan.job.solve.intercept, observe=plan.observe, weights=rows.weights,
    )  # fmt: skip
    configs, searches = tuned_config([*drawn, *fitted], tune)
    status = [None if one is None else one.status for one in searches]
    split = len(drawn)
    return _Kernels(configs[:split], configs[split:] or None, rows.name, tuple(status[split:] or status))


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
