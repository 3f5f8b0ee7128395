"""Choose among kernels, numbers of features and ridges from the moments alone: one pass over the data serves all."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from dorff.engine import Engine, SerialEngine, Task, open_engine
from dorff.errors import IncompleteError, InputError
from dorff.fit import filled, leased, r2_of, run_pass, settings, state_lease, sum_terms
from dorff.fit.passes import Told
from dorff.fit.quality import not_told_apart
from dorff.moments import Kind, LatticeMoments, Moments, Part, Solvable
from dorff.plan import Plan, make_plan
from dorff.plan.costs import WORKER_BYTES
from dorff.plan.routes import ESTIMATES
from dorff.solvers import R2, Score, least, of_first, path_bytes, setting_scores
from dorff.spec.checks import AUTO
from dorff.spec.job import Job
from dorff.spec.registry import HELD_OUT
from dorff.store import save_moments
from dorff.store.moments import S, load_sums


@dataclass(frozen=True)
class Trial:
    """A job with one of its kernels, numbers of features and ridges, and its score. `manifold` are the weights of its
    manifold terms. `value` and, by k-fold, `r2` are as in `Score`, and the best has least of the same. `kernel` is the
    number of the kernel in the job's list, 0 where it names one; `ridges`, `rung`, `digits`, `error` as in `Score`."""

    ridge: float
    value: float
    kernel: int = 0
    m: int = 0
    ridges: tuple[float, ...] | None = None
    rung: str = ""
    digits: float | None = None
    manifold: tuple[float, ...] = ()
    r2: float | None = None
    error: float | None = None

    @property
    def least(self) -> float:
        """What the best has least of."""
        return least(self.value, self.r2)


@dataclass(frozen=True)
class TuneResult:
    """The job with its best kernel, features and ridge alone, and every trial. `reads` says how often this run read
    the rows: less than once where moments of earlier runs were used. Seconds are those of the pass and of the trials.
    `r2_of` says what held-out R2 is of; `warnings` are the plan's, and where trials can hardly be told apart."""

    best: Job
    trial: Trial
    table: tuple[Trial, ...]
    reads: float
    pass_seconds: float
    grid_seconds: float
    r2_of: R2
    warnings: list[str]


def tune(job: Job, *, engine: Engine | None = None, progress: Told = None, told: Told = None) -> TuneResult:
    """Score a job with each of its kernels, numbers of features and ridges; the least wins, the first of equals. The
    pass is durable: a run that was cut goes on, and a fit of the best job reuses it. Runs on the job's cluster where
    no engine is given. `progress` is told the rows of the pass, `told` the trials."""
    plan = make_plan(job)
    _with_scores(plan)
    running = open_engine(job.cluster, needs=plan.costs.worker_bytes) if engine is None else nullcontext(engine)
    with leased(state_lease(plan)), running as opened:
        return _tuned(plan, opened, progress, told)


def _with_scores(plan: Plan) -> None:
    if plan.job.solve.descends:
        raise InputError(f"solve.solver: {plan.job.solve.solver} keeps no sums to choose from; tune with auto")
    if plan.job.solve.other_loss:
        remedy = "fit the job, whose ridge is the best by the loss, or leave loss out"
        raise InputError(f"solve.loss: dorff tune compares by squares alone; {remedy}")
    if plan.costs.route == "streaming":
        remedy = "tune with fewer features (features.count), or set solve.route: direct or cg"
        raise InputError(f"solve.route: streaming keeps no sums to choose from; {remedy}")
    by = ESTIMATES if plan.spec.sums is Kind.TOEPLITZ else ("kfold",)
    if plan.costs.route == "cg" and plan.job.solve.select not in by:
        problem = f"solve.select: {plan.job.solve.select} needs a system that is factored, and route cg has none"
        raise InputError(f"{problem}; set solve.select: {' or '.join(by)}, or solve.route: direct")
    if plan.job.solve.select not in HELD_OUT and any(map(any, plan.weights)):
        problem = "knows nothing of unlabelled rows, and cannot score a job with manifold terms"
        remedy = "set solve.select: kfold, or fit the job"
        raise InputError(f"solve.select: {plan.job.solve.select} {problem}; {remedy}")


def _tuned(plan: Plan, engine: Engine, progress: Told, told: Told) -> TuneResult:
    began = time.perf_counter()
    passed = run_pass(plan, engine, progress)
    terms = [one.sums for one in sum_terms(plan, engine, lambda _: None)]
    middle = time.perf_counter()
    table = _grid(plan, passed.folds, terms, engine, told)
    winner = min(table, key=lambda trial: trial.least)
    reads = sum(one.rows_read for one in passed.fresh) / plan.dataset.rows
    warnings = [*plan.warnings, *plan.foreseen(), *not_told_apart([(one.least, one.error) for one in table])]
    seconds = middle - began, time.perf_counter() - middle
    return TuneResult(best_job(plan, winner), winner, tuple(table), reads, *seconds, r2_of(plan), warnings)


def _grid(
    plan: Plan, folds: Mapping[Part, Solvable], terms: Sequence[Moments], engine: Engine, told: Told
) -> list[Trial]:
    """Every trial, in order; a task scores one setting at one m, the largest first, from files of the sums."""
    settings_ = range(len(plan.kernel_configs) * len(plan.weights))
    grid = [(m, setting, at) for setting in settings_ for at, m in enumerate(plan.counts or (plan.costs.m,))]
    grid.sort(key=lambda one: -one[0])
    tried: dict[tuple[int, int], list[Trial]] = {}
    each, tell = len(plan.job.solve.ridges), told or (lambda _done, _all: None)

    def done(task: Task, result: Sequence[Score]) -> Sequence[Task]:
        kernel, number = divmod(task.tag[0], len(plan.weights))
        manifold = plan.weights[number]
        tried[task.tag] = [
            Trial(s.ridge, s.value, kernel, s.m, s.ridges, s.rung, s.digits, manifold, s.r2, s.error) for s in result
        ]
        tell(each * len(tried), each * len(grid))
        return ()

    tell(0, each * len(grid))
    with ExitStack() as stack:
        file = stack.enter_context(_shared(plan.directory, folds))
        sums = [stack.enter_context(_shared(plan.directory, {(0, ""): T}, f"term-{at}")) for at, T in enumerate(terms)]
        solver = engine if _fits_a_worker(plan) else SerialEngine()
        tasks = [Task(score_setting, (plan, file, sums, setting, m), (setting, at)) for m, setting, at in grid]
        solver.run(tasks, done)
    return [trial for tag in sorted(tried) for trial in tried[tag]]


@contextmanager
def _shared(directory: Path, folds: Mapping[Part, Solvable], name: str = "folds") -> Iterator[Path]:
    """A file of a pass's folds for this run's trials: under the lease, what a killed run left is written over."""
    path = directory / f"{name}.moments"
    try:
        save_moments(path, folds)
        yield path
    finally:
        path.unlink(missing_ok=True)


def score_setting(plan: Plan, path: Path, terms: Sequence[Path], number: int, m: int) -> list[Score]:
    """The scores of one setting with the first m features, at each ridge, from files of folds and of terms' sums."""
    folds, solve = _read(path, LatticeMoments if plan.spec.sums is Kind.TOEPLITZ else Moments), plan.job.solve
    (setting,) = settings(plan, [_read(one, Moments)[0, ""] for one in terms], only=number)
    parts, setting = of_first(filled(plan, folds), setting, m)
    ridges = None if solve.ridge == AUTO else solve.ridges
    scores = setting_scores(parts, setting, ridges, by=solve.select, per_output=solve.ridge_per_output)
    return [replace(score, candidate=number) for score in scores]


def _read(path: Path, of: type[S]) -> dict[Part, S]:
    if (folds := load_sums(path, of)) is None:
        remedy = "see that every worker sees this folder, then run again"
        raise IncompleteError(f"{path}: the folds' moments are gone or damaged; {remedy}")
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
    features["count"] = largest if not plan.counts or trial.m == frozen.features.m else [largest, trial.m]
    each = sorted(set(trial.ridges or ()))
    solve["ridge"] = trial.ridge if not each else each if len(each) > 1 else each[0]
    if len(each) == 1 and job.solve.select != "kfold":  # all outputs want the same: nothing is left to choose
        del solve["ridge_per_output"]
    best = Job.model_validate(text)
    if len(kernels) > 1:
        again = make_plan(best)
        other = again.directory != plan.directory or r2_of(again) is not r2_of(plan)
        recipe = plan.recipe
        apart = not recipe.sampler.mixes and len(recipe.sampler.laws(recipe.kernel, recipe.d, recipe.p)) > 1
        if other and not apart:  # frequencies that were drawn law by law serve no other kernel
            features.setdefault("drawn_for", kernels)
            best = Job.model_validate(text)
    return best


def _fits_a_worker(plan: Plan) -> bool:
    """Whether a worker could hold a task's direct solve, which the peak of all processes covers, or path of ridges."""
    cluster, costs, q = plan.job.cluster, plan.costs, plan.dataset.q
    if not cluster.on_this_machine:
        return False
    folds, ridges = plan.spec.folds.count, len(plan.job.solve.ridges)
    path = path_bytes(costs.m, q, unknowns=costs.m * costs.rank, folds=folds, ridges=ridges)
    return max(costs.peak_bytes, WORKER_BYTES + path) <= 0.95 * cluster.memory
