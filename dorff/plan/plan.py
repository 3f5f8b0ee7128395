"""A job made concrete, before the pass; and the constants that it freezes from its first rows."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Final

import dorff.plan.choosing as choosing
import dorff.plan.lattice as lattice
import dorff.plan.resolving as resolving
from dorff import kernels
from dorff.errors import DoesNotFitError, IncompleteError, InputError
from dorff.features import Recipe
from dorff.model.weights import Density
from dorff.moments import MOST_PATTERNS, Kind
from dorff.passes import Configs, FrozenConstants, Pass, PassSums, Tree, frozen_hash, load_pass
from dorff.plan.costs import Costs, estimate, refuse_small_machine, refuse_small_workers
from dorff.plan.draft import Draft, draft_of
from dorff.plan.earlier import explain_unused_sums
from dorff.plan.lengthscale import build_kernels, lengthscale_words
from dorff.plan.manifold_terms import ManifoldTerm, make_terms, weight_grid
from dorff.plan.seconds import NOMINAL
from dorff.plan.sharing import check_targets, make_recipe
from dorff.spec.checks import AUTO
from dorff.spec.cluster import ClusterSpec
from dorff.spec.job import Job
from dorff.storage.location import locate

REGROWN: Final = 2  # times the rows that landmarks were chosen among: they are chosen again, if those were few


@dataclass(frozen=True, eq=False)
class Plan(Draft):
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
        return lattice.own_features(frozen, self.build_recipe, [self.configs()[number]], words=any(self.own.words))

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
                lattice.check_covered(self.frozen(), self.configs(), self.build_recipe)
            return [None] * len(targets)
        sources, density = self.sources(), self.frozen().constants.density
        recipe = make_recipe(sources, self.dataset, self.job, self.observe)
        return check_targets(targets, sources, recipe=recipe, density=density, seed=self.spec.seed)

    def scaled_recipe(self) -> Recipe:
        """Return the recipe for the scaled inputs of the frozen pass: of a lattice, whose box is then known."""
        recipe = make_recipe(self.sources(), self.dataset, self.job, self.observe)
        return lattice.scaled_recipe(self.frozen(), self.own.sampler, recipe) if recipe.on_lattice else recipe

    def lattice_error(self, kernel: kernels.OperatorKernel, density: Density | None) -> tuple[float | None, list[str]]:
        """How far features of a lattice may be from a kernel, None of others; and what there is to say of it."""
        if not self.recipe.on_lattice or density is None or density[2] is not None:
            return None, []
        found = choosing.measure_lattice(
            kernel,
            density,
            self.scaled_recipe(),
            sums=self.spec.sums,
            auto=self.chose("features.sampler"),
        )
        return found.error, [] if found.warning is None else [found.warning]

    def foreseen(self) -> list[str]:
        """The same for the kernel that it is worst for, where no row is needed to tell."""
        if not self.recipe.on_lattice or self.candidates[0].V > 1 or self.own.standardize or any(self.own.words):
            return []
        return choosing.warn_of_lattice(
            self.recipe,
            self.candidates,
            sums=self.spec.sums,
            auto=self.chose("features.sampler"),
        )

    def tuned(self) -> list[str | None]:
        """What became of the search for each kernel's length-scale; None where the job did not ask for one."""
        if (status := self.frozen().constants.tuned) is None or not lengthscale_words(self.kernel_configs):
            return [None] * len(self.kernel_configs)
        return list(status)


def make_plan(job: Job, *, anywhere: bool = False) -> Plan:
    """Plan a job before its pass.

    Keys that the job leaves out are filled in (`resolving`). If its state has sums, the choices that these were made
    with are kept, so that appended rows change nothing; only landmarks of few rows are chosen again, once the rows have
    doubled. Otherwise the first choice that fits the memory is taken. If the job names no sampler, a sample of some
    thousand rows is read for that.

    Parameters
    ----------
    job : Job
        The job.
    anywhere : bool
        Whether a job that is too big for this machine or its workers is planned all the same.

    Raises
    ------
    InputError
        If the job cannot be done.
    DoesNotFitError
        If the job is too big.
    """
    first, begun = resolving.told_by_arrays(job), locate(job.state).exists()
    dataset = resolving.open_data(first.job)
    refused: DoesNotFitError | None = None
    is_auto = first.job.features.sampler == AUTO and first.job.features.count == AUTO
    has_regrown = False
    tries = [_drafts(one, begun=True) for one in resolving.every_count(first, dataset)] if begun else []
    for draft in chain(map(next, tries), *tries):  # those that look at no row first
        own = first.job.features.count != AUTO or draft.spec.count == draft.own.count
        if is_auto and _has_landmarks_of_few_rows(draft):
            has_regrown = True
            continue
        if own and (draft.outgrown or frozen_hash(draft.directory) is not None):
            return _priced(draft, anywhere=anywhere)
    for resolved in resolving.resolutions(first, dataset):
        try:
            for draft in _drafts(resolved):
                try:
                    plan = _priced(draft, anywhere=anywhere)
                    return plan if has_regrown else _with_unused_sums(plan)
                except DoesNotFitError as error:
                    refused = refused or error
        except InputError:  # what needs less cannot be done: that the first does not fit says more
            if refused is None:
                raise
    assert refused is not None
    raise refused


def _has_landmarks_of_few_rows(draft: Draft) -> bool:
    """Return whether a state's landmarks were chosen among few rows, of which there are twice as many by now.

    Few rows are those of which each may be a landmark. To sum them again takes little.
    """
    name = frozen_hash(draft.directory)
    sample = None if name is None else load_pass(draft.directory, name).constants.landmark_rows
    if sample is None:
        return False
    rows = sample.rows - sample.first
    return rows <= resolving.features_for(rows) and draft.dataset.rows >= REGROWN * rows


def _priced(draft: Draft, *, anywhere: bool) -> Plan:
    """Return the plan of a draft; DoesNotFitError where its costs are too many, unless it may be run `anywhere`."""
    terms = make_terms(draft.job, draft.dataset, draft.candidates[0])
    costs = estimate(draft.job, draft.dataset, draft.leaves, draft.recipe, draft.candidates, draft.spec, terms)
    if not anywhere:
        refuse_small_workers(draft.job, costs)
        refuse_small_machine(draft.job, costs, draft.directory)
    return Plan(**vars(draft), costs=costs, terms=terms)


def _with_unused_sums(plan: Plan) -> Plan:
    """Note in a plan why sums in its state do not serve it, unless that is known from its lattice."""
    why = None if plan.unlike else explain_unused_sums(plan.job, plan.dataset, plan.spec)
    return plan if why is None else replace(plan, unlike=(why,))


def _drafts(resolved: resolving.Resolved, *, begun: bool = False) -> Iterator[Draft]:
    """Yield the job's drafts, the best first, of which several where it leaves the sampler to dorff.

    Of a state that was `begun` these are all that it may have been begun with.
    """
    plain, job = draft_of(resolved), resolved.job
    if job.features.sampler != AUTO or "sampler" in plain.recipe.idle:  # a kernel with features of its own
        yield plain
    elif begun:
        yield from choosing.begun_drafts(resolved, plain)
    else:
        yield from choosing.suitable_drafts(resolved, plain)


@lru_cache(maxsize=4)
def _own_pass(plan: Plan, name: str) -> Pass:
    frozen, words = load_pass(plan.directory, name), any(plan.own.words)
    return lattice.own_features(frozen, plan.build_recipe, frozen.constants.drawn if words else None, words=words)
