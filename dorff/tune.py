"""Choose among jobs from the moments alone: one pass over the data for all that share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dorff.engine import Engine, SerialEngine, Task
from dorff.errors import InputError
from dorff.fit import Progress, run_pass, solve_pass
from dorff.plan import Plan, make_plan
from dorff.solvers import Score
from dorff.spec import Job, RemoteCluster


@final
@dataclass(frozen=True)
class Trial:
    """Job number `job` of those tried at one ridge, and its score: a mean squared error (GCV's, or held-out).

    `kernel` is the number of the kernel in the job's list, 0 where it names one.
    """

    job: int
    ridge: float
    value: float
    kernel: int = 0


@final
@dataclass(frozen=True)
class Tuned:
    """The best of the jobs with its best kernel and ridge alone, every trial, and how often the data were read."""

    best: Job
    trial: Trial
    table: tuple[Trial, ...]
    reads: int


def tune(jobs: Sequence[Job], *, engine: Engine, progress: Progress | None = None) -> Tuned:
    """Score every job at each of its ridges; the least score wins, the first of equals.

    Jobs whose moments are the same (they differ in weights, output matrices and ridges only) share one pass.
    Passes are durable: a run that was cut goes on, and a fit of the best job reuses its pass. Scores are
    comparable only for the same rows and the same rule, so InputError where jobs differ in `data` or in how
    `solve` chooses, or where GCV is given a single ridge.
    """
    _comparable(jobs)
    plans = [make_plan(job) for job in jobs]
    _same_units(plans)
    passes = {plan.directory: plan for plan in plans}
    for plan in passes.values():
        run_pass(plan, engine, progress)
    tasks = [Task(score_plan, (plan,), number) for number, plan in enumerate(plans)]
    found: list[Trial] = []

    def done(task: Task, scores: Sequence[Score]) -> Sequence[Task]:
        found.extend(Trial(task.tag, score.ridge, score.value, score.candidate) for score in scores)
        return ()

    solver = engine if all(_fits_a_worker(plan) for plan in plans) else SerialEngine()
    solver.run(tasks, done)
    order = [ridge for job in jobs for ridge in job.solve.ridges]
    table = sorted(found, key=lambda trial: (trial.job, trial.kernel, order.index(trial.ridge)))
    winner = min(table, key=lambda trial: trial.value)
    job = jobs[winner.job]
    solve = job.solve.model_copy(update={"ridge": winner.ridge})
    best = job.model_copy(update={"solve": solve, "kernel": job.kernels[winner.kernel]})
    return Tuned(best, winner, tuple(table), len(passes))


def score_plan(plan: Plan) -> Sequence[Score]:
    """The score of each kernel and ridge of a plan whose pass is done; only a damaged file is computed again."""
    return solve_pass(plan, run_pass(plan, SerialEngine()).folds).table


def _fits_a_worker(plan: Plan) -> bool:
    """Whether a worker could hold what the driver's solve may take: the peak of all processes covers it."""
    cluster = plan.job.cluster
    return not isinstance(cluster, RemoteCluster) and plan.costs.peak_bytes <= cluster.memory


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
    for number, job in enumerate(jobs):
        if job.solve.select == "gcv" and len(job.solve.ridges) == len(job.kernels) == 1:
            raise InputError(f"jobs: number {number} has a single ridge, which GCV does not score; list several")


def _same_units(plans: Sequence[Plan]) -> None:
    """GCV scores are in the scaled targets' units: refuse to compare them across scalings."""
    scalings = {(plan.question["standardize"], plan.question["one_scale"]) for plan in plans}
    if plans[0].job.solve.select == "gcv" and len(scalings) > 1 and any(scaled for scaled, _ in scalings):
        raise InputError("jobs: their GCV scores are in different units; standardize none of them, or select kfold")
