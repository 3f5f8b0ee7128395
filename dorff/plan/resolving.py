"""The data of a job, and what the job leaves to them: each key is chosen by their sizes alone, with the reason."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from dorff import kernels
from dorff.data import Classes, Dataset, open_dataset
from dorff.data.nodes import has_array
from dorff.data.stores import check_disjoint
from dorff.errors import InputError
from dorff.passes import Config, Configs, FoldRule, FrozenConstants, Leaf, PassSpec, frozen_hash, load_pass
from dorff.passes.blocks import alone_of
from dorff.passes.frozen import AS_SAMPLED, GROUPED, IN_BLOCKS
from dorff.plan.lengthscale import (
    all_lengthscales,
    leaves_smoothness,
    lengths_text,
    lengthscales,
    lengthscales_in_units,
    with_gaussian,
)
from dorff.spec.checks import AUTO
from dorff.spec.data import ClassTargets
from dorff.spec.job import STREAMING_RIDGE, Job
from dorff.spec.kernel import MOST_FEATURES
from dorff.spec.part import Part
from dorff.spec.registry import SPACES
from dorff.storage.location import locate

COUNTS: Final = (MOST_FEATURES, 2048, 1024, 512, 256)  # of features, of which one is chosen
LEAST_ROWS: Final = (100_000, 20_000, 0)  # that have the first of these; fewer are done in seconds with the third
GROUPS: Final = "groups"  # the array of them that is used without being named
_RUNS: Final = {"rows": 1, "leaves": 1, "blocks": IN_BLOCKS, AUTO: AS_SAMPLED}
CLASSES: Final = "classes"  # and that of targets where there is no y


@dataclass(frozen=True)
class Chosen:
    """A key that the job leaves to dorff, what it came to, and why."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class Resolved:
    """A job with every such key filled in that sizes tell."""

    job: Job
    chosen: tuple[Chosen, ...] = ()

    def filled(self, key: str, value: Any, why: str) -> "Resolved":
        """The same with this dotted key too."""

        def put(part: Part, name: str, *rest: str) -> Any:
            return part.model_copy(update={name: put(getattr(part, name), *rest) if rest else value})

        plain = value.model_dump() if isinstance(value, Part) else value
        kept = (choice for choice in self.chosen if choice.key != key)
        return Resolved(put(self.job, *key.split(".")), (*kept, Chosen(key, plain, why)))


def told_by_arrays(job: Job) -> Resolved:
    """The job with its targets: where it names none, and the data have classes but no array y, these."""
    store, one = locate(str(job.data.store)), Resolved(job)
    if "targets" in job.data.model_fields_set:
        return one
    if has_array(store, CLASSES) and not has_array(store, "y"):
        one = one.filled("data.targets", ClassTargets(classes=CLASSES), "the data have no array y, but classes")
    else:
        one = Resolved(one.filled("data.targets", job.data.targets, "").job)
    for refusal in one.job.refusals:
        raise InputError(refusal)
    return one


def resolutions(first: Resolved, dataset: Dataset) -> Iterator[Resolved]:
    """The job filled in, the best first, then such that need less: for who has not the memory."""
    job, base = first.job, _of_choice(first, dataset)
    most = features_for(dataset.rows)
    counts = tuple(count for count in COUNTS if count <= most) if job.features.count == AUTO else (0,)
    for count in counts:
        one = base
        if count:
            why = f"for {dataset.rows:,} rows" if count == counts[0] else "as many as fit the memory"
            steps = f"{COUNTS[1]:,} from {LEAST_ROWS[1]:,} rows, {COUNTS[0]:,} from {LEAST_ROWS[0]:,}"
            one = base.filled("features.count", count, f"{why} ({steps})")
        yield one
        if one.job.deals and one.job.solve.folds.by == AUTO:
            why = "sums of leaves take less memory than sums of rows of every fold"
            yield one.filled("solve.folds.by", "leaves", why)
    if job.solve.select == AUTO and job.solve.ridge == AUTO and job.solve.route == AUTO:
        solve = job.solve.model_copy(update={"route": "streaming"})
        one = _of_choice(replace(first, job=job.model_copy(update={"solve": solve})), dataset)
        one = one.filled("features.count", counts[0], f"for {dataset.rows:,} rows") if counts[0] else one
        yield one.filled("solve.route", "streaming", "no sums fit the memory, so that there is nothing to choose by")


def every_count(first: Resolved, dataset: Dataset) -> Iterator[Resolved]:
    """The job with each number of features that `auto` may stand for: a state that was begun with one keeps it."""
    base = _of_choice(first, dataset)
    if first.job.features.count != AUTO:
        yield base
        return
    own = sorted(spec.count for spec in begun_specs(first.job) if spec.sampler.get("type") == "landmarks")
    for count in dict.fromkeys([*COUNTS, *own]):
        yield base.filled("features.count", count, "as the sums in the state have")


def begun_specs(job: Job) -> list[PassSpec]:
    """Return the specs of the passes in a job's state, in the order of their names."""
    state, specs = locate(job.state), list[PassSpec]()
    for place in sorted(path.parent for path in state.glob("*/plan.json")) if state.exists() else ():
        with suppress(InputError, OSError):  # it is damaged, or of another version
            specs.append(load_pass(place, frozen_hash(place) or "").spec)
    return specs


def features_for(rows: int) -> int:
    """How many features suit so many rows."""
    return next(count for count, least in zip(COUNTS, LEAST_ROWS, strict=False) if rows >= least)


def _of_choice(one: Resolved, dataset: Dataset) -> Resolved:
    """What does not depend on memory."""
    job, solve = one.job, one.job.solve
    if solve.standardize == AUTO:
        words = all_lengthscales([kernel.model_dump() for kernel in (*job.kernels, *job.features.kernels)])
        scaled = set(words) == {AUTO}
        why = "the length-scale is found too" if scaled else "the length-scale is in the inputs' own units"
        if scaled and any(_has_coded_inputs(kernel.model_dump()) for kernel in (*job.kernels, *job.features.kernels)):
            scaled, why = False, "signs, categories and spheres must stay as they are"
        one = one.filled("solve.standardize", scaled, why)
    if solve.select == AUTO:
        rule = job.criterion
        why = "by errors on rows that were held out" if rule == "kfold" else "nothing is chosen by held-out rows"
        one = one.filled("solve.select", rule, why)
    if solve.ridge == AUTO and solve.route == "streaming":
        one = one.filled("solve.ridge", STREAMING_RIDGE, "streaming keeps no sums to choose from")
    if one.job.deals and solve.folds.by == AUTO and has_array(locate(str(job.data.store)), GROUPS):
        one = one.filled("solve.folds.by", GROUPS, "the data have groups: a column, or source files")
    return one


def _has_coded_inputs(value: Any) -> bool:
    """Return whether a kernel's configuration has inputs of a skeleton that must not be scaled."""
    if isinstance(value, Mapping):
        entry = SPACES.get(value["type"]) if isinstance(value.get("type"), str) else None
        coded = entry is not None and bool(getattr(entry.build, "coded", False))
        return coded or any(_has_coded_inputs(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_has_coded_inputs(item) for item in value)


def fold_rule(job: Job, dataset: Dataset, leaves: Sequence[Leaf], largest: int) -> FoldRule:
    """Folds where they choose; or one against all others, held out for something else. Leaves have `largest` rows."""
    folds, few = job.solve.folds, len(leaves) < job.solve.folds.count
    by_rows, run = folds.by != "leaves", _RUNS.get(folds.by, GROUPED)
    if job.solve.select == "kfold":
        if few and not by_rows:
            problem = f"{dataset.path} has only {len(leaves)} (a leaf is a run of whole shards)"
            remedy = "use by: rows, or fewer folds"
            raise InputError(f"solve.folds: {folds.count} folds of leaves asked for, but {problem}; {remedy}")
        if not by_rows and (job.data.window or math.inf) < folds.count * largest:
            problem = f"leaves grow to {largest} rows as data do, and {folds.count} folds of leaves are asked for"
            remedy = f"a window has to be of {folds.count * largest} rows at least; use folds.by: rows"
            raise InputError(f"data.window: {problem}: {remedy}")
        return FoldRule(folds.count, by_rows, job.features.seed, run=run)
    if not job.holds_out:
        return FoldRule()
    return FoldRule.one_held(folds.count, by_rows or few, job.features.seed, run)


def told_by_rows(
    job: Job, constants: FrozenConstants, words: Configs, configs: Configs, dataset: Dataset
) -> Iterator[Chosen]:
    """What the rows told: how folds are dealt, and length-scales for the job's `words`, of each input by its column."""
    columns = dataset.input_columns
    looked, run, lattice = constants.sampled, constants.run, alone_of(constants.features)
    if looked is not None and run is not None and job.solve.folds.by == AUTO:
        by = "rows" if run == 1 else f"blocks of {run:,} rows"
        why = f"rows beside a row tell {looked['dependence']:.0%} of its error, errors of rows in order correlate by"
        yield Chosen("solve.folds.by", by, f"{why} {looked['correlation']:.2f}, of {looked['rows']:,} rows")
    for number, (kernel, word, config) in enumerate(zip(job.kernels, words, configs, strict=True)):
        if leaves_smoothness(word):
            why = constants.smoothness or "not compared with others: rows are of groups, too few, or tell nothing"
            yield Chosen("kernel.scalar", config["scalar"]["type"], why)
        if AUTO in all_lengthscales(kernel.model_dump()):
            key = f"kernel[{number}].lengthscale" if len(configs) > 1 else "kernel.lengthscale"
            came = next(iter(lengthscales(config)))
            if isinstance(came, list) and len({*columns}) == len(came):
                sees = [True] * len(came) if lattice is None else lattice.extents > 0  # not what is constant
                came = {name: one for name, one, varies in zip(columns, came, sees, strict=True) if varies}
            status = None if constants.tuned is None else constants.tuned[number]
            status = "" if status is None else f"; {status}"
            unit = _unit_of_lengthscales(job, config, constants, dataset)
            searched = next(iter(all_lengthscales(with_gaussian(word))))
            why = f"{searched}: of most evidence on a sample of rows, in {unit}{status}"
            yield Chosen(key, came, why)


def _unit_of_lengthscales(job: Job, config: Config, constants: FrozenConstants, dataset: Dataset) -> str:
    """Return what the numbers of a kernel's length-scales are in, and what they are in the inputs' own units."""
    kernel = kernels.from_config(config)
    lengths, *_ = lengthscales_in_units(kernel, constants.features.scale, dataset)
    if not job.solve.standardize:
        known = any(length["units"] for length in lengths.values())
        return "the inputs' units" + (f": {lengths_text(lengths)}" if known else "")
    return f"standard deviations; in the inputs' units {lengths_text(lengths)}"


def open_data(job: Job) -> Dataset:
    """The data set of a job; InputError where it cannot be fitted, or what a new model is scored on is another."""
    by = job.solve.folds.by
    groups = by if by not in (AUTO, "leaves", "rows", "blocks") and job.deals else None
    columns = {"weights": job.data.weights, "groups": groups, "labelled": job.data.labelled}
    dataset = open_dataset(str(job.data.store), inputs=job.data.inputs, targets=_targets(job), **columns)
    if not dataset.rows:
        raise InputError(f"{dataset.path}: has no rows to fit")
    if dataset.labels is not None and dataset.q < 2:
        problem = f"data.targets: {dataset.path} has one class only, {', '.join(dataset.target_columns)}"
        raise InputError(f"{problem}; a classifier needs rows of two or more")
    check_disjoint(dataset.inputs, dataset.targets, f"data: {dataset.path}: array")
    if dataset.labels is None:
        check_disjoint(dataset.input_columns, dataset.target_columns, f"data: {dataset.path}: column")
    for key, path in (("state", locate(job.state)), ("model", locate(job.model))):
        if path.exists() and not path.is_dir():
            raise InputError(f"{key}: {path} is a file; name a folder, which need not exist yet")
    _check_holdout(job, dataset)
    if isinstance(job.solve.class_weight, tuple):
        for label, _ in job.solve.class_weight:
            if label not in dataset.target_columns:
                remedy = f"it has {', '.join(dataset.target_columns[:8])}"
                raise InputError(f"solve.class_weight: {dataset.path} has no class {label!r}; {remedy}")
    return dataset


def _check_holdout(job: Job, dataset: Dataset) -> None:
    if job.publish.holdout is None:
        return
    try:
        held = open_dataset(str(job.publish.holdout), inputs=job.data.inputs, targets=_targets(job))
    except InputError as error:
        raise InputError(f"publish.holdout: {error}") from error
    if held.d != dataset.d or (dataset.labels is None and held.q != dataset.q) or not held.rows:
        problem = f"publish.holdout: {held.path} has {held.rows} rows of {held.d} inputs and {held.q} targets"
        raise InputError(f"{problem}, but the data have {dataset.d} and {dataset.q}; name rows of the same arrays")


def _targets(job: Job) -> str | Sequence[str] | Classes:
    targets = job.data.targets
    return Classes(targets.classes) if isinstance(targets, ClassTargets) else targets
