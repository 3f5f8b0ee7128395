"""A job before its costs are known: the data, the kernels, the leaves, and what a pass over the rows would sum."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import dorff.plan.lattice as lattice
import dorff.plan.resolving as resolving
from dorff import kernels
from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.moments import FloatArray, Kind
from dorff.passes import Configs, FoldRule, PassSpec, frozen_hash
from dorff.passes.blocks import Leaf, block_rows, largest_leaf, leaf_bounds, window_start
from dorff.passes.frozen import Words
from dorff.plan.lengthscale import (
    build_kernels,
    concrete,
    leaves_smoothness,
    lengthscale_words,
    tunes,
    with_gaussian,
    with_matern,
)
from dorff.plan.sharing import check_kernels, check_sharing, make_recipe, observation
from dorff.spec.job import Job
from dorff.storage.location import locate


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan before its costs: `spec` is of the pass made, `own` of Gram sums.

    `unlike` says why earlier sums do not serve it; `outgrown` that those of its lattice would, but for new rows outside
    of their box.
    """

    job: Job
    dataset: Dataset
    kernel_configs: Configs
    drawn_configs: Configs
    observe: FloatArray | None
    leaves: tuple[Leaf, ...]
    candidates: tuple[kernels.OperatorKernel, ...]
    recipe: Recipe
    spec: PassSpec
    own: PassSpec
    resolved: tuple[resolving.Chosen, ...]
    unlike: tuple[str, ...]
    outgrown: bool

    @property
    def directory(self) -> Path:
        """Where the sums of this spec are kept; another spec has another directory."""
        return locate(self.job.state) / self.spec.name

    def with_choice(self, key: str, value: Any, why: str) -> Self:
        """The same, with a key that the job leaves to dorff."""
        return replace(self, resolved=(*self.resolved, resolving.Chosen(key, value, why)))

    def made(self, box: FloatArray, drawn: Configs | None = None) -> Recipe:
        """The recipe for inputs in a box (2, d), as they are scaled, of the kernels that frequencies are drawn for."""
        sources = build_kernels(drawn or self.drawn_configs, self.dataset.d)
        return make_recipe(sources, self.dataset, self.job, self.observe, box)

    def chose(self, key: str) -> bool:
        """Whether the job leaves this key to dorff."""
        return any(one.key == key for one in self.resolved)


def draft_of(resolved: resolving.Resolved) -> Draft:
    """Return the draft of a job whose keys are filled in, its sampler among them, or the default one.

    InputError for a job that cannot be done.
    """
    job = resolved.job
    dataset = resolving.open_data(job)
    alone = len(job.kernels) == 1 and not job.features.kernels
    configs = tuple(concrete(kernel.model_dump(mode="python"), dataset, alone=alone) for kernel in job.kernels)
    others = tuple(concrete(kernel.model_dump(mode="python"), dataset, alone=False) for kernel in job.features.kernels)
    for config in (*configs, *others):
        tunes(config)  # refuses a sum that is tuned in part
    if any(map(leaves_smoothness, configs)) and not _serves_matern(job, dataset, configs):
        configs = tuple(map(with_gaussian, configs))
    drawn = others or configs
    observe = observation(job, dataset, configs)
    candidates, sources = build_kernels(configs, dataset.d), build_kernels(drawn, dataset.d)
    check_kernels(job, dataset, candidates, observe)
    recipe = make_recipe(sources, dataset, job, observe)
    if drawn is not configs:
        check_sharing(candidates, sources, recipe)
    of_drawn, of_own = (one if lengthscale_words(one) else None for one in (drawn, configs))
    words = of_drawn, of_own if drawn is not configs else None
    together = job.solve.observe is not None or any(kernel.vector_field for kernel in candidates + sources)
    width = 0 if lattice.summable(job, recipe) else recipe.m + 1 + dataset.q
    if job.data.window is not None:
        start = window_start(dataset.n, job.data.window, dataset.shard_rows, width)
        dataset = dataset.window(max(dataset.first, start))
    leaves = leaf_bounds(dataset.n, dataset.shard_rows, width, first=dataset.first)
    spec = _spec(job, dataset, recipe, resolving.fold_rule(job, dataset, leaves, largest_leaf(width)), words, observe)
    spec = _begun(job, replace(spec, one_scale=spec.standardize and together))
    draft = Draft(
        job, dataset, configs, drawn, observe, leaves, candidates, recipe, spec, spec, resolved.chosen, (), False
    )
    if not recipe.on_lattice:
        return draft
    one = lattice.settled(job, dataset, spec, recipe, draft.made, leaves)
    draft = replace(draft, own=one.own, spec=one.spec, recipe=one.recipe, unlike=one.unlike, outgrown=one.outgrown)
    return draft.with_choice("data.box", one.ends(dataset.input_columns), one.why) if one.why else draft


def _serves_matern(job: Job, dataset: Dataset, configs: Configs) -> bool:
    """Return whether the job's sampler has features of a Matern kernel too."""
    observe = observation(job, dataset, configs)
    with suppress(InputError):
        make_recipe(build_kernels(tuple(map(with_matern, configs)), dataset.d), dataset, job, observe)
        return True
    return False


def _begun(job: Job, spec: PassSpec) -> PassSpec:
    """The same spec with one fold of rows held out, where it was begun so: more leaves are no reason to begin anew."""
    if job.solve.select == "kfold" or job.solve.folds.by != "leaves" or not job.holds_out:
        return spec
    by_rows = replace(spec, folds=replace(spec.folds, by_rows=True))
    return spec if frozen_hash(locate(job.state) / by_rows.name) is None else by_rows


def _spec(
    job: Job, dataset: Dataset, recipe: Recipe, folds: FoldRule, words: Words, observe: FloatArray | None
) -> PassSpec:
    """What the sums of the job depend on; as if inputs had scales of their own."""
    block = block_rows(recipe.m + 1 + dataset.q)
    tuned = any(word.startswith("tune") for word in lengthscale_words(words))
    return PassSpec(
        store=str(locate(dataset.path).resolve()),
        rows=dataset.rows_spec(),
        recipe=recipe.question(),
        sampler=recipe.sampler.config(),
        count=recipe.n_features,
        precision=job.features.precision,
        sums=Kind.GRAM,
        seed=job.features.seed,
        standardize=job.solve.standardize is True,
        nan=job.data.nan,
        class_weight=job.solve.class_weight,
        folds=folds,
        block_rows=block,
        read_rows=max(dataset.unit_rows, block // dataset.unit_rows * dataset.unit_rows),
        words=words,
        tuning=(job.solve.intercept, None if observe is None else observe.tolist()) if tuned else None,
        one_scale=False,
    )
