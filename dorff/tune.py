"""Choose among jobs from the moments alone: one pass over the data for all that share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dorff.engine import Engine
from dorff.errors import InputError
from dorff.fit import Progress, run_pass, solve_pass
from dorff.plan import Plan, make_plan
from dorff.spec import Job


@final
@dataclass(frozen=True)
class Trial:
    """Job number `job` of those tried at one ridge, and its score: a mean squared error (GCV's, or held-out)."""

    job: int
    ridge: float
    value: float


@final
@dataclass(frozen=True)
class Tuned:
    """The best of the jobs with its best ridge alone, every trial, and how often the data were read."""

    best: Job
    trial: Trial
    table: tuple[Trial, ...]
    reads: int


def tune(jobs: Sequence[Job], *, engine: Engine, progress: Progress | None = None) -> Tuned:
    """Score every job at each of its ridges; the least score wins, the first of equals.

    Jobs whose moments are the same (they differ in weights, output matrices and ridges only) share one pass.
    Passes are durable: a run that was cut goes on, and a fit of the best job reuses its pass. Scores are
    comparable only for the same rows and the same rule, so InputError where jobs differ in `data` or in how
    `solve` chooses, or where there is nothing to choose from.
    """
    _comparable(jobs)
    plans = [make_plan(job) for job in jobs]
    groups: dict[object, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault((plan.directory, plan.job.solve), []).append(number)
    table: list[Trial] = []
    for numbers in groups.values():
        table += _scores(plans, numbers, engine, progress)
    if not table:
        raise InputError("solve: a single kernel and a single ridge leave nothing to choose; list several ridges")
    winner = min(table, key=lambda trial: trial.value)
    job = jobs[winner.job]
    best = job.model_copy(update={"solve": job.solve.model_copy(update={"ridge": winner.ridge})})
    return Tuned(best, winner, tuple(table), len({plan.directory for plan in plans}))


def _scores(plans: Sequence[Plan], numbers: Sequence[int], engine: Engine, progress: Progress | None) -> list[Trial]:
    """The trials of plans that share their moments and their ridges."""
    first = plans[numbers[0]]
    passed = run_pass(first, engine, progress)
    kernels = [plans[number].frozen()[2] for number in numbers]
    choice, _ = solve_pass(first, passed.folds, kernels)
    return [Trial(numbers[score.candidate], score.ridge, score.value) for score in choice.table]


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
