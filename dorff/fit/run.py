"""A whole fit: plan, run or resume the pass, choose, solve, publish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff.engine import Engine, PeakMemory, open_engine, peak_memory
from dorff.fit.choice import build_model, posterior_of, settings, solve_pass
from dorff.fit.held import calibrate, conformalize
from dorff.fit.passes import PassResult, Progress, nothing_left, run_pass
from dorff.model import Model
from dorff.plan import Plan, make_plan
from dorff.solvers import Choice, Fit
from dorff.spec import Job
from dorff.store import save_model
from dorff.streaming import fit_streaming


@final
@dataclass(frozen=True)
class FitReport:
    """What a fit did. `status` is "ok", "ill_conditioned" where rounding leaves fewer than three of the fitted
    values' `digits`, or "not_converged" where an iteration ran out of steps.

    `reads` is how often the rows were read, `passes` over how many kinds of sums: a second one is the QR of the
    features. `syrk_share` is the share of the passes' core-seconds that was spent inside BLAS `syrk`, None where
    nothing was computed. `peak_bytes` is measured, None where the workers are not on this machine. `kernel` is the
    number of the chosen one in the job's list, 0 where it names one; `effective_sample_size` how many of the m / 2
    frequencies stand behind a kernel that they were not drawn for alone. `noise` is the standard deviation of each
    target's noise. `folds` counts those that have rows, `held_by` says what they are made of (None for a single one).
    `lengthscale` is that of each term of the chosen kernel, where it has one, and `tuned` what became of the search
    where the job asked for one.
    """

    rows_used: int
    rows_dropped: int
    leaves_computed: int
    leaves_reused: int
    reads: float
    passes: int
    seconds: float
    syrk_share: float | None
    peak_bytes: int | None
    plan_peak_bytes: int
    route: str
    select: str
    condition: float
    digits: float
    rung: str
    status: str
    ridge: float
    ridges: list[float] | None
    log_evidence: float | None
    noise: list[float] | None
    m: int
    kernel: int
    lengthscale: list[Any]
    tuned: str | None
    folds: int
    held_by: str | None
    effective_sample_size: float | None
    model: str
    table: list[dict[str, Any]] = field(default_factory=list)


def fit(job: Job, *, engine: Engine | None = None, progress: Progress | None = None) -> FitReport:
    """Fit the job and publish its model; goes on from what an earlier, unfinished run left.

    Raises InputError (bad data or job), DoesNotFitError, IncompleteError (run it again).
    """
    began = time.perf_counter()
    plan = make_plan(job)
    with peak_memory() as peak:
        found = _solved(plan, engine, progress, peak)
        model = _model(found, peak)
    report = _report(found, peak.bytes if not hasattr(job.cluster, "address") else None)
    report = replace(report, seconds=time.perf_counter() - began)
    model = replace(model, info={**model.info, "report": asdict(report)})
    path = save_model(model, Path(job.model))
    return replace(report, seconds=time.perf_counter() - began, model=str(path))


@final
@dataclass(frozen=True, eq=False)
class Solved:
    """Every plan and its pass, the last of them those that the choice was made from; the threads of the engine."""

    passes: tuple[tuple[Plan, PassResult], ...]
    choice: Choice
    threads: int

    @property
    def last(self) -> tuple[Plan, PassResult]:
        return self.passes[-1]


def _solved(plan: Plan, engine: Engine | None, progress: Progress | None, peak: PeakMemory) -> Solved:
    """Pass and solve; once more by the QR of the features where the Gram matrix has lost the digits."""
    if plan.costs.route == "streaming":
        return _streamed(plan, engine, progress)
    passed, threads = _pass(plan, engine, progress)
    peak.sample()
    choice = solve_pass(plan, passed.folds)
    peak.sample()
    # Of rounded features more digits would be for nothing.
    worth = choice.fit.solution.ill_conditioned and plan.job.features.precision == "double"
    worth = worth and plan.costs.route == "direct"
    if not worth or not plan.job.solve.qr or (again := plan.by_qr()) is None:
        return Solved(((plan, passed),), choice, threads)
    passed.folds.clear()
    second, threads = _pass(again, engine, progress)
    peak.sample()
    return Solved(((plan, passed), (again, second)), solve_pass(again, second.folds), threads)


def _streamed(plan: Plan, engine: Engine | None, progress: Progress | None) -> Solved:
    """Solved pass by pass, on an engine that stays open throughout."""
    with nothing_left(plan), _opened(plan.job, engine) as running:
        plan.freeze()
        plan.sharing()
        (setting,) = settings(plan)
        found, threads = fit_streaming(plan, setting, running, progress), running.threads
    passed = PassResult({}, found.receipts, found.fresh, found.seconds, found.passes)
    return Solved(((plan, passed),), Choice(0, found.fit, (), plan.costs.m), threads)


def _pass(plan: Plan, engine: Engine | None, progress: Progress | None) -> tuple[PassResult, int]:
    """A pass, on an engine that is closed before anything is solved: its processes hold memory."""
    with _opened(plan.job, engine) as running:
        return run_pass(plan, running, progress), running.threads


@contextmanager
def _opened(job: Job, engine: Engine | None) -> Iterator[Engine]:
    if engine is not None:
        yield engine
        return
    with open_engine(job.cluster) as opened:
        yield opened


def _model(found: Solved, peak: PeakMemory) -> Model:
    """The model, with what it needs to say how sure it is."""
    (plan, passed), choice = found.last, found.choice
    solving = plan.job.solve
    model = build_model(plan, choice.fit, choice.m, passed)
    if plan.dataset.labels is not None:
        if solving.calibrate:
            calibration = calibrate(plan, choice, passed)
            model = replace(model, info={**model.info, "calibration": calibration.config()})
    else:
        model = replace(model, posterior=posterior_of(plan, choice, passed.folds))
        if solving.conformal:
            conformal = conformalize(plan, choice, passed)
            model = replace(model, info={**model.info, "conformal": conformal.config()})
    peak.sample()
    return model


def _report(found: Solved, peak: int | None) -> FitReport:
    (plan, last), choice, passes = found.last, found.choice, [passed for _, passed in found.passes]
    solution, noise = choice.fit.solution, choice.fit.noise
    fresh = [receipt for one in passes for receipt in one.fresh]
    seconds = sum(one.seconds for one in passes)
    return FitReport(
        rows_used=sum(receipt.rows_used for receipt in last.receipts),
        rows_dropped=sum(receipt.rows_dropped for receipt in last.receipts),
        leaves_computed=len(fresh),
        leaves_reused=sum(one.passes * len(one.receipts) for one in passes) - len(fresh),
        reads=sum(receipt.rows_read for receipt in fresh) / plan.dataset.n,
        passes=sum(one.passes for one in passes),
        seconds=seconds,
        syrk_share=sum(receipt.syrk_seconds for receipt in fresh) / (found.threads * seconds) if fresh else None,
        peak_bytes=peak or None,
        plan_peak_bytes=max(one.costs.peak_bytes for one, _ in found.passes),
        route=plan.costs.route,
        select=plan.job.solve.select,
        condition=float(solution.condition),
        digits=float(solution.digits),
        rung=solution.rung,
        status=_status(choice.fit),
        ridge=solution.ridge,
        ridges=None if solution.ridges is None else solution.ridges.tolist(),
        log_evidence=solution.log_evidence,
        noise=None if noise is None else np.sqrt(np.diag(noise)).tolist(),
        m=choice.m,
        kernel=choice.candidate,
        lengthscale=[term.scalar.config().get("lengthscale") for _, term in choice.fit.kernel.terms()],
        tuned=plan.tuned()[choice.candidate],
        folds=len({fold for fold, _ in last.folds}) or 1,
        held_by=_held_by(plan),
        effective_sample_size=plan.sharing()[choice.candidate],
        model=str(plan.job.model),
        table=[asdict(score) for score in choice.table],
    )


def _held_by(plan: Plan) -> str | None:
    """What is dealt to folds: rows or groups where there were too few leaves, whatever the job says."""
    rule, by = plan.frozen()[0].folds, plan.job.solve.folds.by
    if rule.count == 1:
        return None
    return "leaves" if not rule.by_rows else "rows" if by == "leaves" else by


def _status(fit: Fit) -> str:
    if fit.solution.ill_conditioned:
        return "ill_conditioned"
    return "ok" if fit.converged else "not_converged"
