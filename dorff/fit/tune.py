"""Choose among kernels, numbers of features and ridges from the moments alone: one pass over the data serves all."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from dorff.engine import Engine, SerialEngine, Task, open_engine
from dorff.errors import IncompleteError, InputError
from dorff.fit import PassResult, filled, leased, r2_of, run_pass, settings, state_lease, sum_terms
from dorff.fit.passes import Told
from dorff.moments import Folds, Moments, Part, Solvable
from dorff.plan import Plan, make_plan
from dorff.plan.costs import WORKER_BYTES
from dorff.solvers import R2, Score, least, of_first, path_bytes, setting_scores
from dorff.spec.checks import AUTO
from dorff.spec.job import Job
from dorff.spec.registry import HELD_OUT
from dorff.store import load_moments, save_moments

Plans = Sequence[Plan]


@dataclass(frozen=True)
class Trial:
    """Job number `job` of those tried with one of its kernels, numbers of features and ridges, and its score.

    `manifold` are the weights of its manifold terms. `value` and, by k-fold, `r2` are as in `Score`, and the best has
    least of the same. `kernel` is the number of the kernel in the job's list, 0 where it names one; `ridges`, `rung`
    and `digits` as in `Score`."""

    job: int
    ridge: float
    value: float
    kernel: int = 0
    m: int = 0
    ridges: tuple[float, ...] | None = None
    rung: str = ""
    digits: float | None = None
    manifold: tuple[float, ...] = ()
    r2: float | None = None

    @property
    def least(self) -> float:
        """What the best has least of."""
        return least(self.value, self.r2)


@dataclass(frozen=True)
class TuneResult:
    """The best of the jobs with its best kernel, features and ridge alone, and every trial.

    `passes` are those that the jobs share; `reads` says how often this run read the rows for them: less where moments
    of earlier runs were used. Seconds are those of the passes and of the trials. `r2_of` says what held-out R2 is of:
    for all jobs, pooled where it is for one of them; `warnings` are those of all plans."""

    best: Job
    trial: Trial
    table: tuple[Trial, ...]
    passes: int
    reads: float
    pass_seconds: float
    grid_seconds: float
    r2_of: R2
    warnings: list[str]


def tune(jobs: Sequence[Job], *, engine: Engine | None = None, progress: Told = None, told: Told = None) -> TuneResult:
    """Score every job with each of its kernels, numbers of features and ridges; the least wins, the first of equals.

    Jobs whose moments are the same (they differ in weights, output matrices and ridges only) share one pass. Passes
    are durable: a run that was cut goes on, and a fit of the best job reuses its pass. Scores are comparable only for
    the same rows and the same rule, so InputError where jobs differ in `data` or in how `solve` chooses. Runs on the
    first job's cluster where no engine is given. `progress` is told the rows of each pass, `told` the trials."""
    _comparable(jobs)
    plans = [make_plan(job) for job in jobs]
    _same_units(plans)
    _with_scores(plans)
    running = open_engine(jobs[0].cluster) if engine is None else nullcontext(engine)
    with leased(*map(state_lease, plans)), running as opened:
        return _tuned(plans, opened, progress, told)


def _with_scores(plans: Plans) -> None:
    for plan in plans:
        if plan.costs.route == "streaming":
            raise InputError(
                "solve.route: streaming keeps no sums to choose from; tune with fewer features (features.count), or "
                "set solve.route: direct or cg"
            )
        if plan.costs.route == "cg" and plan.job.solve.select != "kfold":
            raise InputError(
                f"solve.select: {plan.job.solve.select} needs a system that is factored, and route cg has none; set "
                "solve.select: kfold, or solve.route: direct"
            )
        if plan.job.solve.select not in HELD_OUT and any(map(any, plan.weights)):
            raise InputError(
                f"solve.select: {plan.job.solve.select} knows nothing of unlabelled rows, and cannot score a job with "
                "manifold terms; set solve.select: kfold, or fit the job"
            )


def _tuned(plans: Plans, engine: Engine, progress: Told, told: Told) -> TuneResult:
    began = time.perf_counter()
    passed = {plan.directory: run_pass(plan, engine, progress) for plan in {p.directory: p for p in plans}.values()}
    apart = {_terms_of(plan): plan for plan in plans}
    terms = {name: [one.sums for one in sum_terms(plan, engine, lambda _: None)] for name, plan in apart.items()}
    middle = time.perf_counter()
    table = _grid(plans, passed, terms, engine, told)
    winner = min(table, key=lambda trial: trial.least)
    reads = sum(one.rows_read for result in passed.values() for one in result.fresh) / plans[0].dataset.rows
    return TuneResult(
        best_job(plans[winner.job], winner), winner, tuple(table), len(passed), reads, middle - began,
        time.perf_counter() - middle, _r2_of(plans), [*dict.fromkeys(one for plan in plans for one in plan.warnings)],
    )  # fmt: skip


def _r2_of(plans: Plans) -> R2:
    return R2.POOLED if any(r2_of(plan) is R2.POOLED for plan in plans) else R2.MEAN


def _terms_of(plan: Plan) -> str:
    """What the sums of a plan's terms depend on: plans with the same share them."""
    return json.dumps([str(plan.directory), [term.sums_name() for term in plan.terms]], sort_keys=True)


def _grid(
    plans: Plans, passed: dict[Path, PassResult], terms: Mapping[str, Sequence[Moments]], engine: Engine, told: Told
) -> list[Trial]:
    """Every trial, in order; a task scores one setting (a kernel with weights of the manifold terms) at one m, the
    largest first, from files of the pass's folds and of the terms' sums."""
    grid = [
        (m, number, setting, at)
        for number, plan in enumerate(plans)
        for setting in range(len(plan.kernel_configs) * len(plan.weights))
        for at, m in enumerate(plan.counts or (plan.costs.m,))
    ]
    grid.sort(key=lambda one: -one[0])
    tried: dict[tuple[int, int, int], list[Trial]] = {}
    each, of = [len(plan.job.solve.ridges) for plan in plans], _r2_of(plans)
    tell = told or (lambda _done, _all: None)
    total = sum(each[number] for _, number, _, _ in grid)

    def done(task: Task, result: Sequence[Score]) -> Sequence[Task]:
        number, setting, _ = task.tag
        weights = plans[number].weights
        kernel, manifold = setting // len(weights), weights[setting % len(weights)]
        tried[task.tag] = [
            Trial(number, s.ridge, s.value, kernel, s.m, s.ridges, s.rung, s.digits, manifold, s.r2) for s in result
        ]
        tell(sum(each[tag[0]] for tag in tried), total)
        return ()

    tell(0, total)
    with ExitStack() as stack:
        files = {directory: stack.enter_context(_shared(directory, one.folds)) for directory, one in passed.items()}
        where = {_terms_of(plan): plan.directory for plan in plans}
        sums = {
            name: [
                stack.enter_context(_shared(where[name], {(0, ""): T}, f"term-{number}-{at}"))
                for at, T in enumerate(several)
            ]
            for number, (name, several) in enumerate(terms.items())
        }
        solver = engine if all(_fits_a_worker(plan) for plan in plans) else SerialEngine()
        tasks = []
        for m, number, setting, at in grid:
            plan = plans[number]
            what = (plan, files[plan.directory], sums[_terms_of(plan)], setting, m, of)
            tasks.append(Task(score_setting, what, (number, setting, at)))
        solver.run(tasks, done)
    return [trial for tag in sorted(tried) for trial in tried[tag]]


@contextmanager
def _shared(directory: Path, folds: Mapping[Part, Solvable], name: str = "folds") -> Iterator[Path]:
    """A file of a pass's folds beside its plan, for the trials of this run: it holds the lease, so what a run that was
    killed left there is written over."""
    path = directory / f"{name}.moments"
    try:
        save_moments(path, folds)
        yield path
    finally:
        path.unlink(missing_ok=True)


def score_setting(plan: Plan, path: Path, terms: Sequence[Path], number: int, m: int, of: R2) -> list[Score]:
    """The scores of one setting of a plan with the first m features, at each ridge, from the folds in a file, and each
    manifold term's sums in another; `of` is what held-out R2 is of."""
    folds, solve = _read(path), plan.job.solve
    sums = [_read(one)[0, ""] for one in terms]
    parts, setting = of_first(filled(plan, folds), replace(settings(plan, sums)[number], r2_of=of), m)
    ridges = None if solve.ridge == AUTO else solve.ridges
    return [
        replace(score, candidate=number)
        for score in setting_scores(parts, setting, ridges, by=solve.select, per_output=solve.ridge_per_output)
    ]


def _read(path: Path) -> Folds:
    folds = load_moments(path)
    if folds is None:
        raise IncompleteError(
            f"{path}: the folds' moments are gone or damaged; see that every worker sees this folder, then run again"
        )
    return folds


def best_job(plan: Plan, trial: Trial) -> Job:
    """The job with the trial's kernel, features and ridge alone, whose moments are those of the whole job. Of a list
    of kernels it says what the frequencies were drawn for, where that is not the winner's own; a smaller number of
    features stays beside the largest, of which the moments are, and wins against it again."""
    job, frozen = plan.job, plan.frozen()
    text = job.model_dump(mode="json", exclude_unset=True)
    features, solve = text.setdefault("features", {}), text.setdefault("solve", {})
    kernels = [kernel.model_dump(mode="json") for kernel in job.kernels]
    if len(kernels) > 1:
        config = plan.configs()[trial.kernel]
        text["kernel"] = kernels[trial.kernel] if config is plan.kernel_configs[trial.kernel] else config
    for term, weight in zip(text.get("manifold", ()), trial.manifold, strict=True):
        term["weight"] = weight
    largest = max(job.features.counts)
    features["count"] = largest if trial.m == frozen.features.m else [largest, trial.m]
    each = sorted(set(trial.ridges or ()))
    solve["ridge"] = trial.ridge if not each else each if len(each) > 1 else each[0]
    if len(each) == 1 and job.solve.select != "kfold":  # all outputs want the same: nothing is left to choose
        del solve["ridge_per_output"]
    best = Job.model_validate(text)
    if len(kernels) > 1:
        again = make_plan(best)
        if again.directory != plan.directory or r2_of(again) is not r2_of(plan):
            features.setdefault("drawn_for", kernels)
            best = Job.model_validate(text)
    return best


def _fits_a_worker(plan: Plan) -> bool:
    """Whether a worker could hold what a task may take: a direct solve, which the peak of all processes covers, or a
    path of ridges."""
    cluster, costs, q = plan.job.cluster, plan.costs, plan.dataset.q
    if not cluster.on_this_machine:
        return False
    folds, ridges = plan.spec.folds.count, len(plan.job.solve.ridges)
    path = path_bytes(costs.m, q, unknowns=costs.m * costs.rank, folds=folds, ridges=ridges)
    return max(costs.peak_bytes, WORKER_BYTES + path) <= 0.95 * cluster.memory


def _comparable(jobs: Sequence[Job]) -> None:
    if not jobs:
        raise InputError("jobs: wanted at least one to choose from, got none")
    for number, job in enumerate(jobs[1:], start=1):
        for name, mine, first in (
            ("data", job.data, jobs[0].data),
            ("solve.select", job.solve.select, jobs[0].solve.select),
            ("solve.folds", job.solve.folds, jobs[0].solve.folds),
        ):
            if mine != first:
                raise InputError(
                    f"jobs: number {number} has another `{name}` than the first; their scores cannot be compared"
                )


def _same_units(plans: Plans) -> None:
    """GCV scores are in the scaled targets' units: refuse to compare them across scalings. Held-out errors of classes
    are those of the best scale of f, but where every output has a ridge of its own: refuse to compare these too."""
    select = plans[0].job.solve.select
    apart = {plan.job.solve.ridge_per_output for plan in plans}
    if select == "kfold" and plans[0].dataset.labels is not None and len(apart) > 1:
        raise InputError(
            "jobs: held-out errors of classes with solve.ridge_per_output and without cannot be compared; set it in "
            "all or none"
        )
    scalings = {(plan.spec.standardize, plan.spec.one_scale) for plan in plans}
    if select == "gcv" and len(scalings) > 1 and any(scaled for scaled, _ in scalings):
        raise InputError("jobs: their GCV scores are in different units; standardize none of them, or select kfold")
