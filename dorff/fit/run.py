"""A whole fit: plan, run or resume the pass, choose, solve, publish."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from dorff.engine import Engine, open_engine, peak_memory
from dorff.fit.choice import build_model, solve_pass
from dorff.fit.held import calibrate
from dorff.fit.passes import PassResult, Progress, run_pass
from dorff.plan import Plan, make_plan
from dorff.solvers import Choice, Fit
from dorff.spec import Job
from dorff.store import save_model


@final
@dataclass(frozen=True)
class FitReport:
    """What a fit did. `status` is "ok", "ill_conditioned" where the condition number leaves few digits, or
    "not_converged" where an output matrix was still being learned when the iterations ran out.

    `syrk_share` is the share of the pass's core-seconds that was spent inside BLAS `syrk`, None where nothing was
    computed. `peak_bytes` is measured, None where the workers are not on this machine. `kernel` is the number of the
    chosen one in the job's list, 0 where it names one.
    """

    rows_used: int
    rows_dropped: int
    leaves_computed: int
    leaves_reused: int
    seconds: float
    syrk_share: float | None
    peak_bytes: int | None
    plan_peak_bytes: int
    condition: float
    rung: str
    status: str
    ridge: float
    m: int
    kernel: int
    model: str
    table: list[dict[str, Any]] = field(default_factory=list)


def fit(job: Job, *, engine: Engine | None = None, progress: Progress | None = None) -> FitReport:
    """Fit the job and publish its model; goes on from what an earlier, unfinished run left.

    Raises InputError (bad data or job), DoesNotFitError, IncompleteError (run it again).
    """
    began = time.perf_counter()
    plan = make_plan(job)
    with peak_memory() as peak:
        if engine is not None:
            passed = run_pass(plan, engine, progress)
            threads = engine.threads
        else:
            with open_engine(job.cluster) as opened:
                passed = run_pass(plan, opened, progress)
                threads = opened.threads
        peak.sample()
        choice = solve_pass(plan, passed.folds)
        local = not hasattr(job.cluster, "address")
        peak.sample()
        model = build_model(plan, choice.fit, passed)
        if plan.dataset.labels is not None and job.solve.calibrate:
            calibration = calibrate(plan, choice, passed)
            model = replace(model, info={**model.info, "calibration": calibration.config()})
            peak.sample()
    report = _report(plan, passed, choice, threads, peak.bytes if local else None)
    report = replace(report, seconds=time.perf_counter() - began)
    model = replace(model, info={**model.info, "report": asdict(report)})
    path = save_model(model, Path(job.model))
    return replace(report, seconds=time.perf_counter() - began, model=str(path))


def _report(plan: Plan, passed: PassResult, choice: Choice, threads: int, peak: int | None) -> FitReport:
    fresh = [receipt for receipt in passed.receipts if receipt.number in passed.computed]
    busy = sum(receipt.syrk_seconds for receipt in fresh)
    solution = choice.fit.solution
    return FitReport(
        rows_used=sum(receipt.rows_used for receipt in passed.receipts),
        rows_dropped=sum(receipt.rows_dropped for receipt in passed.receipts),
        leaves_computed=len(fresh),
        leaves_reused=len(passed.receipts) - len(fresh),
        seconds=passed.seconds,
        syrk_share=busy / (threads * passed.seconds) if fresh else None,
        peak_bytes=peak or None,
        plan_peak_bytes=plan.costs.peak_bytes,
        condition=float(solution.condition),
        rung=solution.rung,
        status=_status(choice.fit),
        ridge=solution.ridge,
        m=plan.costs.m,
        kernel=choice.candidate,
        model=str(plan.job.model),
        table=[asdict(score) for score in choice.table],
    )


def _status(fit: Fit) -> str:
    if fit.solution.ill_conditioned:
        return "ill_conditioned"
    return "ok" if fit.converged else "not_converged"
