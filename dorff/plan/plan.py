"""A job made concrete, before a row is read; and the constants that it freezes from its first rows."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Self

import dorff.plan.choosing as choosing
import dorff.plan.lattice as lattice
import dorff.plan.resolving as resolving
from dorff import kernels
from dorff.data import Dataset
from dorff.errors import DoesNotFitError, IncompleteError, InputError
from dorff.features import Recipe
from dorff.model.weights import Density
from dorff.moments import MOST_PATTERNS, FloatArray, Kind
from dorff.passes import Configs, FoldRule, FrozenConstants, Pass, PassSpec, PassSums, Tree, frozen_hash, load_pass
from dorff.passes.blocks import Leaf, block_rows, largest_leaf, leaf_bounds, window_start
from dorff.passes.frozen import Words
from dorff.plan.costs import Costs, estimate, refuse_small_machine, refuse_small_workers
from dorff.plan.earlier import explain_unused_sums
from dorff.plan.lattice import box_of
from dorff.plan.lengthscale import build_kernels, concrete, lengthscale_words, tunes
from dorff.plan.manifold_terms import ManifoldTerm, make_terms, weight_grid
from dorff.plan.seconds import NOMINAL
from dorff.plan.sharing import check_kernels, check_sharing, check_targets, make_recipe, observation
from dorff.spec.checks import AUTO
from dorff.spec.cluster import ClusterSpec
from dorff.spec.job import Job
from dorff.storage.location import locate


@dataclass(frozen=True, eq=False)
class _Draft:
    """A plan before its costs: `spec` is of the pass made, `own` of Gram sums; `unlike`: why earlier ones serve not."""

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

    def priced(self, *, anywhere: bool = False) -> "Plan":
        """With its costs; DoesNotFitError where they are too many, unless it may be run `anywhere`."""
        terms = make_terms(self.job, self.dataset, self.candidates[0])
        costs = estimate(self.job, self.dataset, self.leaves, self.recipe, self.candidates, self.spec, terms)
        if not anywhere:
            refuse_small_workers(self.job, costs)
            refuse_small_machine(self.job, costs, self.directory)
        return Plan(**vars(self), costs=costs, terms=terms)


@dataclass(frozen=True, eq=False)
class Plan(_Draft):
    """A job made concrete: data, the kernels to choose from, leaves, costs and the spec of its pass. Frequencies are
    drawn for `drawn_configs`, which are `kernel_configs` unless the job says otherwise. `observe` is C (q, p) where
    targets are values of C f, the mean of the views for a multi-view kernel, else None. In `candidates` and `recipe`
    length-scales that rows must tell are about 1. `terms` are the manifold terms. `constants` are those of a plan that
    is tried in memory, else read from where they were frozen; `resolved` keys that the job left out and `job` has."""

    costs: Costs
    terms: tuple[ManifoldTerm, ...] = ()
    constants: FrozenConstants | None = None

    @property
    def choices(self) -> tuple[resolving.Chosen, ...]:
        """What the job left out, as far as it is known: once constants are frozen, what rows told too."""
        if frozen_hash(self.directory) is None and self.constants is None:
            return self.resolved
        constants, configs = self.frozen().constants, self.configs()
        more = resolving.told_by_rows(self.job, constants, self.kernel_configs, configs, self.dataset)
        return (*self.resolved, *more)

    def chose(self, key: str) -> bool:
        """Whether the job leaves this key to dorff."""
        return any(one.key == key for one in self.resolved)

    @property
    def weights(self) -> list[tuple[float, ...]]:
        """Every combination of the manifold terms' weights; an empty one where there are no terms."""
        return weight_grid(self.terms)

    def cluster(self) -> ClusterSpec:
        """Where its pass runs: as the job says, or in the driver where little is missing; streaming has all to do."""
        missing = math.inf if self.terms else self.costs.flops * self.missing_rows() / self.dataset.rows
        return self.job.cluster.of_work(missing / NOMINAL)

    def missing_rows(self) -> int:
        """How many rows are of leaves whose sums are not in the state."""
        if frozen_hash(self.directory) is not None:
            with suppress(InputError):  # it is damaged, and made anew
                missing = Tree(PassSums.at(self.frozen()), self.dataset, self.leaves).missing()
                return sum(leaf.stop - leaf.start for leaf in missing)
        return self.dataset.rows

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of features to choose from, in the job's order; empty where it names one."""
        given = self.job.features.counts
        even = [self.costs.m if count >= self.costs.m else count // 2 * 2 for count in given]
        return tuple(dict.fromkeys(even)) if len(given) > 1 else ()

    @property
    def warnings(self) -> list[str]:
        """What the job asks for in vain, as it says itself and as these data tell."""
        job, sentences, idle = self.job, list[str](), self.recipe.idle
        if "sampler" in idle and job.features.kind not in ("orthogonal", AUTO):
            sentences.append(f"features.sampler has no effect: {idle['sampler']}")
        if job.features.seed and "seed" in idle and not (job.deals or job.manifold or self.spec.tuning):
            sentences.append(f"features.seed has no effect: {idle['seed']}")
        if job.solve.ridge_per_output and len(job.solve.ridges) > 1 and self.recipe.p == 1:
            sentences.append("solve.ridge_per_output: there is one output; its ridge is that of all")
        for number, term in enumerate(self.terms, 1):
            if not any(term.manifold.weights):
                sentences.append(f"manifold.weight: it is 0, and term {number} costs a pass for nothing")
        if (job.data.box or job.data.outside == "drop") and not self.recipe.on_lattice:
            sentences.append("data.box and data.outside have no effect: features.sampler is no lattice")
        listed = [*self.unlike, *job.warnings, *(f"{one}; leave it out" for one in sentences)]
        nan, instead = job.data.nan, "drop" if self.dataset.q == 1 or self.dataset.labels is not None else "partial"
        needed = nan == "unlabelled" and (job.manifold or job.data.labelled is not None)
        if nan in ("partial", "unlabelled") and nan != instead and not needed:
            listed.append(f"data.nan: {nan} keeps the rows that {instead} does, and no others; write {instead}")
        return listed

    def by_qr(self) -> "Plan | None":
        """The same job, its rows summed as the triangle of a QR; None where that would not fit its workers.
        DoesNotFitError where it would not fit this machine: what a result is may not depend on that."""
        if self.terms or self.candidates[0].V > 1:  # sums of terms are Gram matrices, whose digits are lost already
            return None
        spec = replace(self.own, sums=Kind.TRIANGLE, precision="double")
        costs = estimate(self.job, self.dataset, self.leaves, self.recipe, self.candidates, spec)
        plan = replace(self, spec=spec, own=spec, costs=costs)
        try:
            refuse_small_workers(self.job, costs)
        except DoesNotFitError:
            return None
        try:
            refuse_small_machine(self.job, costs, plan.directory)
        except DoesNotFitError as error:
            problem = f"the Gram matrix lost the digits, and a QR of the features does not fit: {error}"
            remedy = "or set solve.qr: false, for the fit that there is (the rows' sums are kept)"
            raise DoesNotFitError(f"{problem}; {remedy}") from error
        return plan

    @property
    def crowded(self) -> bool:
        """Whether rows may miss targets in more ways than there are sums for."""
        some = self.job.data.nan in ("partial", "unlabelled") and self.dataset.labels is None
        return some and 2**self.dataset.q - 1 > MOST_PATTERNS

    @property
    def patterns(self) -> Sequence[str] | None:
        """The patterns of targets that count, where rows have more than there are sums for; None before a first fit."""
        return None if frozen_hash(self.directory) is None else self.frozen().constants.patterns

    def frozen(self) -> Pass:
        """The pass; IncompleteError where none is frozen yet (`freeze_constants`), InputError where it is damaged."""
        if self.constants is not None:
            return Pass(self.directory, "", self.spec, self.constants)
        if (name := frozen_hash(self.directory)) is None:
            raise IncompleteError(f"{self.directory}: its constants are gone; run the job again")
        return _own_pass(self, name) if self.spec.sums is Kind.TOEPLITZ else load_pass(self.directory, name)

    def alone(self, number: int) -> Pass:
        """The pass as it is for one kernel of the job: of a lattice's sums with features of its own."""
        frozen = self.frozen()
        if self.spec.sums is not Kind.TOEPLITZ:
            return frozen
        return lattice.own_features(frozen, self.made, [self.configs()[number]], words=any(self.own.words))

    def fitted(self) -> tuple[kernels.OperatorKernel, ...]:
        """The kernels to choose from, with the length-scales that the rows told."""
        return build_kernels(self.configs(), self.dataset.d)

    def sources(self) -> tuple[kernels.OperatorKernel, ...]:
        """The kernels that the frequencies were drawn for."""
        return build_kernels(self.frozen().constants.drawn or self.drawn_configs, self.dataset.d)

    def configs(self) -> Configs:
        """The kernels of the job, with numbers where it has words for length-scales."""
        if not lengthscale_words(self.kernel_configs):
            return self.kernel_configs
        # Another job may have frozen the pass that they share: only kernels that its name tells are known there.
        constants = self.frozen().constants
        configs = constants.drawn if self.spec.words[1] is None else constants.fitted
        assert configs is not None
        return configs

    def sharing(self) -> list[float | None]:
        """The effective sample size of each kernel, in frequencies; None if drawn for it alone. See `check_targets`."""
        targets = self.fitted()
        if self.drawn_configs is self.kernel_configs and len(targets) == 1:
            return [None]
        if self.recipe.on_lattice:
            if self.drawn_configs is not self.kernel_configs:
                lattice.check_covered(self.frozen(), self.configs(), self.made)
            return [None] * len(targets)
        sources, density = self.sources(), self.frozen().constants.density
        recipe = make_recipe(sources, self.dataset, self.job, self.observe)
        return check_targets(targets, sources, recipe=recipe, density=density, seed=self.spec.seed)

    def lattice_error(self, kernel: kernels.OperatorKernel, density: Density | None) -> tuple[float | None, list[str]]:
        """How far features of a lattice may be from a kernel, None of others; and what there is to say of it."""
        if not self.recipe.on_lattice or density is None or density[2] is not None:
            return None, []
        recipe = make_recipe(self.sources(), self.dataset, self.job, self.observe)
        of = lattice.scaled_recipe(self.frozen(), self.own.sampler, recipe)
        return choosing.shortfall(kernel, density, of, sums=self.spec.sums, auto=self.chose("features.sampler"))

    def foreseen(self) -> list[str]:
        """The same for the kernel that it is worst for, where no row is needed to tell."""
        if not self.recipe.on_lattice or self.candidates[0].V > 1 or self.own.standardize or any(self.own.words):
            return []
        return choosing.worst(self.recipe, self.candidates, sums=self.spec.sums, auto=self.chose("features.sampler"))

    def tuned(self) -> list[str | None]:
        """What became of the search for each kernel's length-scale; None where the job did not ask for one."""
        if (status := self.frozen().constants.tuned) is None or not lengthscale_words(self.kernel_configs):
            return [None] * len(self.kernel_configs)
        return list(status)


def make_plan(job: Job, *, anywhere: bool = False) -> Plan:
    """Plan a job without reading a row. Keys that the job leaves out are filled in (`resolving`): what was begun with
    is kept, so that appended rows change nothing; of what was not, the first that fits. Raises InputError for a job
    that cannot be done, DoesNotFitError for one that is too big, unless it may be run `anywhere`."""
    first, begun = resolving.told_by_arrays(job), locate(job.state).exists()
    dataset = resolving.open_data(first.job)
    refused: DoesNotFitError | None = None
    tries = [_drafts(one, begun=True) for one in resolving.every_count(first, dataset)] if begun else []
    for draft in chain(map(next, tries), *tries):  # those that look at no row first
        own = first.job.features.count != AUTO or draft.spec.count == draft.own.count
        if own and frozen_hash(draft.directory) is not None:
            return draft.priced(anywhere=anywhere)
    for resolved in resolving.resolutions(first, dataset):
        try:
            for draft in _drafts(resolved):
                try:
                    return _with_unused_sums(draft.priced(anywhere=anywhere))
                except DoesNotFitError as error:
                    refused = refused or error
        except InputError:  # what needs less cannot be done: that the first does not fit says more
            if refused is None:
                raise
    assert refused is not None
    raise refused


def _with_unused_sums(plan: Plan) -> Plan:
    """Note in a plan why sums in its state do not serve it, unless that is known from its lattice."""
    why = None if plan.unlike else explain_unused_sums(plan.job, plan.dataset, plan.spec)
    return plan if why is None else replace(plan, unlike=(why,))


def _drafted(resolved: resolving.Resolved) -> _Draft:
    job = resolved.job
    dataset = resolving.open_data(job)
    each = job.kernels, job.features.kernels
    configs, others = (tuple(concrete(one.model_dump(mode="python"), dataset) for one in several) for several in each)
    drawn = others or configs
    for config in (*configs, *drawn):
        tunes(config)  # refuses a sum that is tuned in part
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
    draft = _Draft(job, dataset, configs, drawn, observe, leaves, candidates, recipe, spec, spec, resolved.chosen, ())
    if not recipe.on_lattice:
        return draft
    one = lattice.settled(job, dataset, spec, recipe, draft.made, leaves)
    draft = replace(draft, own=one.own, spec=one.spec, recipe=one.recipe, unlike=one.unlike)
    return draft.with_choice("data.box", one.ends(dataset.input_columns), one.why) if one.why else draft


def _drafts(resolved: resolving.Resolved, *, begun: bool = False) -> Iterator[_Draft]:
    """The job's. Of one that leaves the sampler to dorff, that with a lattice where it is the better one, then another
    one, for who has not the memory; of a state that is `begun` the other first: it looks at no row."""
    plain, job = _drafted(resolved), resolved.job
    if job.features.sampler != AUTO or "sampler" in plain.recipe.idle:  # a kernel with features of its own
        yield plain
        return
    other, why = plain.recipe.sampler.config(), "a lattice does not fit the memory"
    if begun:
        yield plain.with_choice("features.sampler", other, "as the sums in the state are")
    try:
        yield _with_lattice(resolved, plain)
    except InputError as refused:
        if not isinstance(refused, choosing.NotBetter) and not str(refused).startswith(choosing.OF_LATTICES):
            raise
        why = str(refused).partition(";")[0].removeprefix("sampler: ")
    if not begun:
        yield plain.with_choice("features.sampler", other, why)


def _with_lattice(resolved: resolving.Resolved, plain: _Draft) -> _Draft:
    """The draft with features on the lattice that is closest to the kernel; InputError where the `plain` ones are."""
    choosing.check_suited(resolved.job, plain.recipe, plain.dataset)
    drafts = list[tuple[_Draft, list[Recipe]]]()
    for options in choosing.samplers():
        draft = _drafted(resolved.filled("features.sampler", options, ""))
        each = lattice.own_recipes(draft.recipe, draft.candidates)
        if draft.own.sampler["error"] == choosing.ERRORS[0] and not choosing.few(each):
            continue
        drafts.append((draft, each))
        if not any(one.cut for one in each):
            break
    box = box_of(drafts[0][0].own)
    best, each = drafts[0] if len(drafts) == 1 else min(drafts, key=lambda one: choosing.kernel_distance(one[1], box))
    why = choosing.check_better(each, plain.dataset, box, plain.recipe)
    chosen = (replace(one, why=why) if one.key == "features.sampler" else one for one in best.resolved)
    return replace(best, resolved=tuple(chosen))


@lru_cache(maxsize=4)
def _own_pass(plan: Plan, name: str) -> Pass:
    frozen, words = load_pass(plan.directory, name), any(plan.own.words)
    return lattice.own_features(frozen, plan.made, frozen.constants.drawn if words else None, words=words)


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
