"""One pass over the data, run or gone on with, and what comes of it, the same for jobs, streaming and estimators."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, Final, TypeVar

import numpy as np

from dorff.data import Dataset
from dorff.data.nodes import committed, group_attributes
from dorff.engine import Engine
from dorff.errors import IncompleteError, InputError
from dorff.features import FeatureMap, cut
from dorff.graphs import KNN, Given, Identity
from dorff.manifold import Shards, added, build, sum_term
from dorff.model import Model, Posterior
from dorff.moments import Kind, LatticeMoments, Moments, Part, Solvable, Toeplitz, Triangle, by_fold, pooled, unseen
from dorff.passes import Leaf, PassSums, Tree, leaf_bounds
from dorff.plan import ManifoldTerm, Plan, features_of, freeze_constants
from dorff.solvers import Choice, Fit, Setting, carried_ridges, feature_variance, learned_term, of_first
from dorff.solvers.choose import DIRECT
from dorff.solvers.few_rows import FEW_ROWS, MOST_UNKNOWNS, noise_freedom
from dorff.storage.files import rmtree
from dorff.storage.location import locate
from dorff.store import Lease, Receipt
from dorff.store.receipts import remove_given_up

S = TypeVar("S", bound=Solvable)


def folds_with_rows(sums: Mapping[Part, S], no_rows: str, no_target: Callable[[int], str]) -> list[list[S]]:
    """The sums of each fold that has rows, as `by_fold`; InputError, in these words, if none has, or not a target."""
    if not (folds := by_fold(sums)):
        raise InputError(no_rows)
    for target in unseen(folds):
        raise InputError(no_target(target))
    return folds


@dataclass(frozen=True, eq=False)
class Fitted:
    """A choice among `settings`, and the `sums` of each fold and pattern of targets that it was made from: none where
    an iteration read the rows themselves. `one_held`: fold 0 alone is held out, the other is all else. `others` are the
    fits without a fold that were made with it. Noise, posterior and evidence are computed when first asked for, and
    kept."""

    settings: Sequence[Setting]
    sums: Mapping[Part, Solvable]
    choice: Choice
    one_held: bool = False
    others: Mapping[int, Fit] = field(default_factory=dict)

    @property
    def fit(self) -> Fit:
        return self.choice.fit

    def total(self) -> tuple[list[Solvable], Setting]:
        """The sums of all rows, one for each pattern of targets, and the setting, both of the chosen features."""
        (parts,), setting = of_first([pooled(by_fold(self.sums))], self.settings[self.choice.candidate], self.choice.m)
        return list(parts), setting

    def pooled(self) -> "Fitted":
        """The same without folds: their sums are added, and take less memory."""
        return replace(self, sums={(0, one.observed): one for one in pooled(by_fold(self.sums))})

    def without(self, fold: int) -> "Fitted":
        """The same choice, solved for all rows but those of one fold; some must be left."""
        if fold in self.others:
            return replace(self, choice=replace(self.choice, fit=self.others[fold]))
        rest = replace(self, sums={part: one for part, one in self.sums.items() if part[0] != fold})
        parts, setting = rest.total()
        (fit,) = setting.solve(parts, [carried_ridges(setting, parts, self.fit)])
        return replace(rest, choice=replace(self.choice, fit=fit))

    @property
    def noised(self) -> "Fitted":
        """The same with the noise of each target."""
        # Not kept where it is this one: a cycle would keep its posterior until garbage is collected.
        return self if self.fit.noise is not None else self._noised

    @cached_property
    def _noised(self) -> "Fitted":
        """With a noise that is computed."""
        parts, setting = self.total()
        return replace(self, choice=replace(self.choice, fit=setting.noised(parts, self.fit)))

    @cached_property
    def posterior(self) -> Posterior:
        """Of the coefficients, of a fit whose system was formed; by route cg samples of them.

        Its variances are those of a noise that is estimated, and of few rows of a ridge that was chosen
        (`solvers.few_rows`).
        """
        fit = self.noised.fit  # before the sums are added again: they are held once at a time
        parts, setting = self.total()
        ridges = self._open_ridges(parts, setting)
        found = setting.averaged_posterior(parts, fit, ridges) if ridges else setting.posterior(parts, fit)
        found = found.inflated(noise_freedom(parts, intercept=setting.intercept))
        if setting.halves and setting.m >= LEAST_HALVED:
            found = replace(found, unexplained=np.diag(feature_variance(parts, setting, fit)))
        return found

    def _open_ridges(self, parts: Sequence[Solvable], setting: Setting) -> list[float]:
        """Return the ridges among which few rows cannot tell for sure; none where the posterior is of one ridge."""
        choice, weights = self.choice, self.fit.weights
        unknowns = setting.m if weights.separable and setting.observe is None else setting.m * weights.shape[1]
        few = sum(part.n for part in parts) < FEW_ROWS and unknowns <= MOST_UNKNOWNS
        if not few or setting.penalties or setting.method != DIRECT or learned_term(setting.kernel) is not None:
            return []
        rows = [row for row in choice.table if (row.candidate, row.m) == (choice.candidate, choice.m)]
        ridges = sorted({row.ridge for row in rows if row.ridge > 0 and row.ridges is None})
        return ridges if self.fit.solution.ridges is None and len(ridges) > 1 else []

    @cached_property
    def freedom_left(self) -> float | None:
        """Return the rows of a target less the degrees of freedom of its fit, as a mean over targets.

        None where these are not counted: manifold terms, iterations.
        """
        parts, setting = self.total()
        if setting.penalties or setting.method != DIRECT:
            return None
        solution = self.fit.solution
        if solution.freedom is None:
            ridge = solution.ridge if solution.ridges is None else solution.ridges
            (again,) = setting.solve(parts, [ridge], scores=True, evidence=False)
            solution = again.solution
        if solution.freedom is None:
            return None
        entries = sum(part.n * int(np.sum(part.mask)) for part in parts)
        return float(entries - solution.freedom.sum()) / parts[0].q

    @cached_property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets at the fit's ridge. InputError where there are manifold terms."""
        fit = self.noised.fit
        parts, setting = self.total()
        setting.check_scored()
        value = setting.judged(parts, [fit])[0].log_evidence
        assert value is not None  # of a system that was formed: route cg is for jobs alone, which do not ask
        return value

    def model(self, features: FeatureMap, sampler: dict[str, Any], seed: int, info: dict[str, Any]) -> Model:
        """The model on the chosen number of the features, which the sampler drew with the seed, or on those of the
        chosen setting alone; `info` is what a reader of it will want to know."""
        fit, m, setting = self.fit, self.choice.m, self.settings[self.choice.candidate]
        kept = setting.features or (features if m == features.m else cut(features, None, m)[0])
        h, observe = fit.solution.h, setting.observe
        return Model(kept, fit.weights, h, fit.bias, fit.scale, fit.kernel, sampler, seed, info, observe)


Progress = Callable[[int, int], None]  # rows done, rows in all
Told = Progress | None
LEAST_HALVED: Final = 8  # features, of which either half is fitted
GRAPHS, TERMS = "graphs", "terms"  # folders of built graphs and of sums, in that of the pass
STAGES: Final = 7  # of building a graph, at most: half of what a term's pass is told to be


@dataclass(frozen=True, eq=False)
class TermSums:
    """T of one term, the receipts it stands on, and what is to be summary of it."""

    sums: Moments
    receipts: list[Receipt]
    summary: dict[str, Any]


def sum_terms(
    plan: Plan, engine: Engine, told: Callable[[int], Told], *, lease: Lease | None = None
) -> tuple[TermSums, ...]:
    """T of each term of the plan, added over its sources: computed, or read where it is there already. `told` gives
    for the number of a pass, from 0, who is told its rows. InputError for a T of zeros."""
    if not plan.terms:
        return ()
    sums, numbers = list[TermSums](), count()
    for term in plan.terms:
        total, *rest = [_sum(plan, term, source, engine, told(next(numbers)), lease) for source in term.sources]
        for part in rest:
            summary = {key: of if key == "type" else of + part.summary[key] for key, of in total.summary.items()}
            total = TermSums(added(total.sums, part.sums), [*total.receipts, *part.receipts], summary)
        if not total.sums.packed.any() and any(term.manifold.weights):
            problem = "its sums are zero: its graph has no edge with a weight above 0, or all of them join equal rows"
            remedy = "mend the graph (graph.weights, if it is a width), or leave the term out"
            raise InputError(f"manifold, term {len(sums) + 1}: {problem}; {remedy}")
        sums.append(total)
    with nullcontext() if lease is None else lease.fenced():
        for folder in (GRAPHS, TERMS):  # of other terms
            remove_given_up(plan.directory / folder)
    return tuple(sums)


def _sum(plan: Plan, term: ManifoldTerm, source: Dataset, engine: Engine, told: Told, lease: Lease | None) -> TermSums:
    """T of a term over one source's rows."""
    frozen, (kernel, *_) = plan.frozen(), plan.fitted()
    graph, began = term.manifold.graph, time.perf_counter()
    rows: Dataset | Shards = source
    leaves: Sequence[Leaf] | None = None
    shards, of, alone = 0, source.rows, 0

    def rows_done(done: float, of: int) -> None:
        if told is not None:
            told(round(source.rows * done / of), source.rows)

    if isinstance(graph, Identity) or (isinstance(graph, KNN) and graph.within == "leaf"):
        leaves = leaf_bounds(source.n, source.shard_rows, frozen.features.m + 1, first=source.first)
    else:
        stages = dict[str, int]()

        def built_so_far(stage: str, done: int, of: int) -> None:
            stages.setdefault(stage, len(stages))
            rows_done(min(stages[stage] + done / max(of, 1), STAGES), 2 * STAGES)

        rows = build(graph, source, frozen, term.columns, engine, frozen.directory / GRAPHS, built_so_far, lease=lease)
        shards, of, alone = rows.count, 2 * rows.count, rows.alone
        locate(rows.path).renew()
    sums, receipts = sum_term(
        frozen, term.manifold, rows, leaves, engine, lambda done: rows_done(shards + done, of), inputs=term.columns,
        columns=features_of(kernel, term.views, frozen.constants.density), name=source.path, lease=lease,
    )  # fmt: skip
    edges = 0 if isinstance(graph, Identity) else sums.n
    summary = {"type": graph.config()["type"], "rows": source.rows, "edges": edges, "shards": shards}
    summary["seconds"] = time.perf_counter() - began
    if isinstance(graph, Given):
        summary["rows_without_edges"] = alone
    return TermSums(sums, receipts, summary)


@dataclass(frozen=True, eq=False)
class PassResult:
    """The sums of each fold that has rows, and the receipts they stand on. `rewritten` are the leaves whose rows had
    other values when they were summed before. `terms` are the sums of the manifold terms."""

    folds: dict[Part, Solvable]
    receipts: list[Receipt]
    fresh: list[Receipt]
    seconds: float
    passes: int = 1
    rewritten: tuple[int, ...] = ()
    terms: tuple[TermSums, ...] = ()

    @property
    def manifold(self) -> list[Moments]:
        """T of each manifold term."""
        return [term.sums for term in self.terms]

    @property
    def fingerprints(self) -> list[str]:
        """Names the values of the rows and graphs that each manifold term is of."""
        return [fingerprint(term.receipts) for term in self.terms]


def run_pass(plan: Plan, engine: Engine, progress: Told = None, *, lease: Lease | None = None) -> PassResult:
    """Collect the moments: compute what is missing, merge the fixed tree; what nobody needs any more is deleted, where
    a lease on the state is given only while it is held (LeaseError)."""
    with nothing_left(plan), not_trimmed(plan):
        frozen = freeze_constants(plan)
        plan.sharing()
        for m in plan.counts:
            cut(frozen.features, frozen.constants.density, m)  # refused before the pass
        began = time.perf_counter()
        tree = Tree(PassSums.at(frozen), plan.dataset, plan.leaves, kept=plan.costs.kept_level)
        counted = None if progress is None else lambda rows: progress(rows, plan.dataset.rows)
        if plan.spec.sums is Kind.TOEPLITZ:  # they are of the features of whichever kernel
            sums = tree.collect(engine, Toeplitz, counted)
            folds: dict[Part, Solvable] = {part: LatticeMoments.of(one) for part, one in sums.items()}
        else:
            folds = dict(tree.collect(engine, Triangle if plan.spec.sums is Kind.TRIANGLE else Moments, counted))
        with nullcontext() if lease is None else lease.fenced():
            tree.tidy()
    receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
    fresh = [receipt for receipt in receipts if receipt.number in tree.computed]
    return PassResult(folds, receipts, fresh, time.perf_counter() - began, rewritten=tuple(sorted(tree.rewritten)))


@contextmanager
def not_trimmed(plan: Plan) -> Iterator[None]:
    """Rows that are gone because they were trimmed meanwhile are no fault of theirs."""
    try:
        yield
    except InputError as error:
        path = locate(plan.dataset.path)
        with suppress(InputError):
            rows = committed(path, group_attributes(path))
            if rows is not None and rows.start > plan.dataset.first:
                raise IncompleteError(f"{path}: rows were trimmed while the job ran; run it again") from error
        raise


@contextmanager
def nothing_left(plan: Plan) -> Iterator[None]:
    """What is refused before its first leaf is done leaves nothing behind. Receipts stay: they are used again."""
    absent = [path for path in (plan.directory, *plan.directory.parents) if not path.exists()]
    try:
        yield
    except InputError:
        if absent and not any(plan.directory.rglob("receipts/*.json")):
            rmtree(plan.directory, ignore_errors=True)
            for path in absent[1:]:
                with suppress(OSError):  # never made, or something else is in it
                    path.rmdir()
        raise


def fingerprint(receipts: Sequence[Receipt]) -> str:
    """Names the values of all rows that were used."""
    text = " ".join(f"{receipt.start} {receipt.stop} {receipt.digest}" for receipt in receipts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
