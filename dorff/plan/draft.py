"""The draft of a job: its data, kernels, leaves and pass, before the costs are known.

`draft_of` makes the draft of a job whose keys are filled in; a plan (`dorff.plan.plan`) is a
draft with its costs.
"""

from collections.abc import Sequence
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
from dorff.passes import Config, Configs, FoldRule, PassSpec, frozen_hash
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
from dorff.spec.part import Part
from dorff.storage.location import locate


@dataclass(frozen=True, eq=False, kw_only=True)
class Draft:
    """A plan before its costs.

    Attributes
    ----------
    job : Job
        The job, with every key filled in.
    dataset : Dataset
        The rows of the job, from the start of its window on.
    kernel_configs : Configs
        The kernels that are fitted. Length-scales may still be words.
    drawn_configs : Configs
        The kernels that frequencies are drawn for: the same object where these are the fitted ones.
    observe : FloatArray or None
        The matrix C (q, p) that maps outputs to targets; None for the identity.
    leaves : tuple of Leaf
        The runs of rows that one task sums.
    candidates : tuple of OperatorKernel
        The kernels that are fitted. Length-scales that the data determine are about 1.
    recipe : Recipe
        What features are made by. Length-scales that the data determine are about 1.
    spec : PassSpec
        The pass that is made.
    own : PassSpec
        The job's own pass. It differs from `spec` where a lattice pass in the state serves the job.
    resolved : tuple of Chosen
        The keys that the job leaves to dorff, with their values and reasons.
    unlike : tuple of str
        Why sums in the state do not serve the job; empty if there are none, or if they do.
    outgrown : bool
        Whether lattice sums in the state would serve the job, but for new rows outside of their
        box.
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
        """The folder of the sums of this spec; another spec has another folder."""
        return locate(self.job.state) / self.spec.name

    def with_choice(self, key: str, value: Any, why: str) -> Self:
        """Return the same draft with one more key that the job leaves to dorff."""
        return replace(self, resolved=(*self.resolved, resolving.Chosen(key, value, why)))

    def build_recipe(self, box: FloatArray, drawn_configs: Configs | None = None) -> Recipe:
        """Return the recipe for inputs in a known box.

        Parameters
        ----------
        box : (2, d)
            The least and the largest value of each scaled input.
        drawn_configs : Configs, optional
            The kernels that frequencies are drawn for (default: those of the draft).
        """
        sources = build_kernels(drawn_configs or self.drawn_configs, self.dataset.d)
        return make_recipe(sources, self.dataset, self.job, self.observe, box)

    def chose(self, key: str) -> bool:
        """Return whether the job leaves this dotted key to dorff."""
        return any(choice.key == key for choice in self.resolved)


def draft_of(resolved: resolving.Resolved) -> Draft:
    """Return the draft of a job whose keys are filled in.

    The features are of the job's sampler, or of the default one where it names none.

    Raises
    ------
    InputError
        If the job cannot be done.
    """
    job = resolved.job
    dataset = resolving.open_data(job)

    has_one_kernel = len(job.kernels) == 1 and not job.features.kernels
    kernel_configs = _concrete_configs(job.kernels, dataset, alone=has_one_kernel)
    source_configs = _concrete_configs(job.features.kernels, dataset, alone=False)
    for config in (*kernel_configs, *source_configs):
        tunes(config)  # refuses a sum that is tuned in part
    may_tune_smoothness = any(leaves_smoothness(config) for config in kernel_configs)
    if may_tune_smoothness and not _serves_matern(job, dataset, kernel_configs):
        kernel_configs = tuple(with_gaussian(config) for config in kernel_configs)
    drawn_configs = source_configs or kernel_configs

    observe = observation(job, dataset, kernel_configs)
    candidates = build_kernels(kernel_configs, dataset.d)
    sources = build_kernels(drawn_configs, dataset.d)
    check_kernels(job, dataset, candidates, observe)
    recipe = make_recipe(sources, dataset, job, observe)
    if drawn_configs is not kernel_configs:
        check_sharing(candidates, sources, recipe)

    # Sums of exponentials take no memory that grows with the features.
    width = 0 if lattice.summable(job, recipe) else recipe.m + 1 + dataset.q
    if job.data.window is not None:
        start = window_start(dataset.n, job.data.window, dataset.shard_rows, width)
        dataset = dataset.window(max(dataset.first, start))
    leaves = leaf_bounds(dataset.n, dataset.shard_rows, width, first=dataset.first)

    folds = resolving.fold_rule(job, dataset, leaves, largest_leaf(width))
    words = _frozen_words(kernel_configs, drawn_configs)
    spec = _gram_spec(job, dataset, recipe, folds, words, observe)
    has_vector_field = any(kernel.vector_field for kernel in candidates + sources)
    mixes_inputs = job.solve.observe is not None or has_vector_field
    spec = replace(spec, one_scale=spec.standardize and mixes_inputs)
    spec = _keep_folds_of_rows(job, spec)

    draft = Draft(
        job=job,
        dataset=dataset,
        kernel_configs=kernel_configs,
        drawn_configs=drawn_configs,
        observe=observe,
        leaves=leaves,
        candidates=candidates,
        recipe=recipe,
        spec=spec,
        own=spec,
        resolved=resolved.chosen,
        unlike=(),
        outgrown=False,
    )
    return _settle_box(draft) if recipe.on_lattice else draft


def _concrete_configs(
    parts: Sequence[Part],
    dataset: Dataset,
    *,
    alone: bool,
) -> tuple[Config, ...]:
    """Return the configurations of kernels of a job, with what the data say filled in."""
    configs = [part.model_dump(mode="python") for part in parts]
    return tuple(concrete(config, dataset, alone=alone) for config in configs)


def _serves_matern(job: Job, dataset: Dataset, configs: Configs) -> bool:
    """Return whether the job's sampler has features of Matern kernels too."""
    observe = observation(job, dataset, configs)
    with suppress(InputError):
        sources = build_kernels(tuple(with_matern(config) for config in configs), dataset.d)
        make_recipe(sources, dataset, job, observe)
        return True
    return False


def _frozen_words(kernel_configs: Configs, drawn_configs: Configs) -> Words:
    """Return the kernels whose length-scales the frozen constants fill in: drawn, then fitted.

    Either is None if it has no words; the fitted ones are None too if they are the drawn ones.
    """
    drawn = drawn_configs if lengthscale_words(drawn_configs) else None
    if drawn_configs is kernel_configs:
        return drawn, None
    return drawn, kernel_configs if lengthscale_words(kernel_configs) else None


def _settle_box(draft: Draft) -> Draft:
    """Return the draft of features on a lattice, now with the box that its inputs lie in."""
    settled = lattice.settled(
        draft.job,
        draft.dataset,
        draft.spec,
        draft.recipe,
        draft.build_recipe,
        draft.leaves,
    )
    draft = replace(
        draft,
        own=settled.own,
        spec=settled.spec,
        recipe=settled.recipe,
        unlike=settled.unlike,
        outgrown=settled.outgrown,
    )
    if not settled.why:
        return draft
    return draft.with_choice("data.box", settled.ends(draft.dataset.input_columns), settled.why)


def _keep_folds_of_rows(job: Job, spec: PassSpec) -> PassSpec:
    """Return the spec with one fold of rows held out, if the state was begun with that.

    A job that has grown to more leaves would hold out leaves, which is no reason to begin anew.
    """
    if job.solve.select == "kfold" or job.solve.folds.by != "leaves" or not job.holds_out:
        return spec
    by_rows = replace(spec, folds=replace(spec.folds, by_rows=True))
    return spec if frozen_hash(locate(job.state) / by_rows.name) is None else by_rows


def _gram_spec(
    job: Job,
    dataset: Dataset,
    recipe: Recipe,
    folds: FoldRule,
    words: Words,
    observe: FloatArray | None,
) -> PassSpec:
    """Return the spec of a pass that sums Gram matrices, with a scale for each input."""
    block = block_rows(recipe.m + 1 + dataset.q)
    tuning = None
    if any(word.startswith("tune") for word in lengthscale_words(words)):
        tuning = (job.solve.intercept, None if observe is None else observe.tolist())
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
        tuning=tuning,
        one_scale=False,
    )
