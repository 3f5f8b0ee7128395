"""The constants that a pass needs from data: computed by the first plan from a few rows, and kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dorff.data import Dataset, RowBlock, class_counts
from dorff.errors import InputError
from dorff.features import FeatureMap
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.leaf import freeze, frozen_hash, load_pass
from dorff.moments import MOST_PATTERNS, patterns_of
from dorff.plan.costs import SAMPLE_BYTES
from dorff.plan.drawing import make_recipe
from dorff.plan.kernels import build_kernels, with_medians
from dorff.plan.lengthscale import tuned_config, tuning_rows
from dorff.solvers import spread
from dorff.spec import Job

if TYPE_CHECKING:
    from dorff.plan.plan import Plan

# Rows for centres, and for the median distance: few, so that a data set that grows had them from the start. Scales
# (`standardize`) take the first leaf, up to SAMPLE_BYTES.
SMALL_SAMPLE: Final = 256
MEDIAN_SAMPLE: Final = 1000


def still_frozen(plan: Plan) -> bool:
    """Whether there are constants, and the rows they came from are what they were, or are no longer used: constants
    that came from rows which have left the window stay."""
    dataset, name = plan.dataset, frozen_hash(plan.directory)
    if name is None:
        return False
    try:
        question = load_pass(plan.directory, name).question
    except InputError:  # damaged: the same rows give the same constants again
        return False
    sample, tuning = question["sample"], question["tuning_rows"]
    if sample["first"] >= dataset.first:
        stop = sample["first"] + sample["rows"]
        if stop > dataset.n or sample != _named(dataset.block(sample["first"], stop)):
            return False
    if tuning is None or tuning["first"] < dataset.first:
        return True
    rows = dataset.window(tuning["first"])
    return bool(tuning["rows"] <= rows.n) and tuning == tuning_rows(rows, tuning["rows"]).name


def _named(rows: RowBlock) -> dict[str, Any]:
    """What the frozen constants were computed from: how many rows from which on, and checksums of their values."""
    return {"first": int(rows.numbers[0]), "rows": len(rows), "crc": rows.checksums()}


def _sample(plan: Plan) -> tuple[RowBlock, dict[str, Any]]:
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
    elif any(plan.question["words"]):
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


def _patterns(plan: Plan, *, narrow: bool) -> list[str] | None:
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
    return kept[:MOST_PATTERNS]


def _counted(rows: RowBlock) -> Counter[str]:
    """How many rows have each pattern of targets, in order of the first that has it; rows without any are none."""
    rows = rows.weighty()
    rows = rows[rows.whole(partial=True)]
    each = sorted(patterns_of(np.isfinite(rows.Y)), key=lambda one: int(np.argmax(one[1])))
    return Counter({name: int(np.count_nonzero(here)) for name, here in each})


def freeze_constants(plan: Plan, *, narrow: bool = False) -> None:
    """Compute and write the constants that the pass needs from data, from its first rows; `narrow`: rows have been
    seen to have more patterns of targets than there are sums for."""
    dataset, question, job = plan.dataset, dict(plan.question), plan.job
    question["patterns"] = _patterns(plan, narrow=narrow)
    rows, question["sample"] = _sample(plan)
    X, Y, weights = rows.X, rows.Y, rows.weights
    if rows.groups is not None:
        question["folds"] = {**question["folds"], "first": int(rows.groups[0])}
    scale = np.ones(dataset.d)
    # Features that see more of the inputs than their differences see them as they are, unless scaled.
    mean = np.average(X, axis=0, weights=weights)
    center = mean if plan.shift_invariant or job.solve.standardize else np.zeros(dataset.d)
    if job.solve.standardize:
        variance = np.average((X - mean) ** 2, axis=0, weights=weights)
        scale = spread(variance, together=False)
        for tied in _tied(plan):
            scale[tied] = spread(variance[tied], together=True)
    question |= {"resolved": None, "tuning_rows": None, "tuned": None}
    if any(question["words"]):
        scaled = (X - center) / scale
        given = [with_medians(configs, scaled, weights) for configs in (plan.drawn_configs, plan.kernel_configs)]
        if question["words"][1] is None:
            given.pop()  # the kernels are those drawn for, or have no words
        if question["tuning"]:
            given = _tuned(plan, given, question, center, scale)
        question["resolved"] = dict(zip(("drawn", "kernel"), given, strict=False))
    sources = build_kernels(question["resolved"]["drawn"] if question["resolved"] else plan.drawn_configs, dataset.d)
    drawn = make_recipe(sources, dataset, job, plan.observe).draw(question["seed"])
    there = np.isfinite(Y) * (1.0 if weights is None else weights[:, None])
    total = there.sum(axis=0)
    y0 = (np.where(there > 0, Y, 0.0) * there).sum(axis=0) / np.where(total > 0, total, 1.0)
    weight = _class_weight(job, dataset)
    freeze(plan.directory, question, FeatureMap(drawn.phi, center, scale), drawn, y0=y0, class_weight=weight)


def _tied(plan: Plan) -> tuple[IntArray, ...]:
    """The inputs that may not be scaled apart, by their numbers."""
    d, kernel = plan.dataset.d, plan.candidates[0]
    if kernel.V > 1:
        return kernel.tied(d)
    return (np.arange(d),) if plan.question["one_scale"] else ()


def _tuned(
    plan: Plan, given: list[list[dict[str, Any]]], question: dict[str, Any], center: FloatArray, scale: FloatArray
) -> list[list[dict[str, Any]]]:
    """The kernels drawn for and those fitted, with the length-scales of most evidence."""
    rows, split = tuning_rows(plan.dataset, plan.dataset.n), len(given[0])
    question["tuning_rows"] = rows.name
    every = [config for configs in given for config in configs]
    told, tuned = tuned_config(
        every, (rows.X - center) / scale, rows.Y, seed=question["seed"], count=question["count"],
        intercept=plan.job.solve.intercept, observe=plan.observe, weights=rows.weights,
    )  # fmt: skip
    status = [None if one is None else one.status for one in tuned]
    question["tuned"] = status[-len(given[-1]) :]  # of the kernels that are fitted
    return [told[:split], told[split:]][: len(given)]


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
