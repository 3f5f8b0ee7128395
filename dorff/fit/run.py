"""A whole fit: plan, run or resume the pass, choose, solve, publish."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import numpy as np

from dorff.engine import Engine, PeakMemory, open_engine, peak_memory
from dorff.errors import GateError, IncompleteError, PatternsError, QuarantineError
from dorff.fit.choice import build_model, check_targets, posterior_of, r2_of, settings, solve_pass
from dorff.fit.fit_report import FitReport, current_model, made, nothing_new, rewritten_since, same_rows
from dorff.fit.held import calibrate, held_by, judged
from dorff.fit.minimised import Minimised, begin, minimise, of_loss, step
from dorff.fit.new_version import explain_new_version
from dorff.fit.passes import Fitted, PassResult, Progress, not_trimmed, nothing_left, run_pass, sum_terms
from dorff.fit.publish import history_of, judge, leased, publish, refuse_coverage, state_lease
from dorff.fit.quality import (
    FitQuality,
    better,
    given_distance,
    left_alone,
    looked,
    quality_of,
    warnings_of,
    warnings_of_groups,
    warnings_of_status,
    warnings_of_uncertainty,
    wider_bands,
)
from dorff.fit.streaming import fit_streaming
from dorff.model import Model
from dorff.moments.blas import pinned
from dorff.plan import Plan, freeze_constants, make_plan
from dorff.plan.landmark_choice import has_enough_landmarks
from dorff.plan.lattice import ANEW
from dorff.plan.lengthscale import lengthscales_in_units
from dorff.solvers import Choice, LeftOut, Score
from dorff.spec.checks import AUTO
from dorff.spec.cluster import ClusterSpec
from dorff.spec.job import Job
from dorff.storage.bucket import COUNTS, asked_since
from dorff.storage.location import locate
from dorff.store import LEASE, Lease, resolve_model

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
ROUNDS: Final = 3  # of passes in which what the terms are of changes
OUTGROWN: Final = 4  # times the rows that landmarks were chosen among
LONG: Final = 60.0  # planned seconds from which on a fit says what it is at


def fit(job: Job, *, engine: Engine | None = None, progress: Progress | None = None) -> FitReport:
    """Fit the job and publish its model; goes on from what an earlier, unfinished run left. Where there is nothing new
    nothing is touched. Raises InputError (bad data or job), DoesNotFitError, IncompleteError (run it again), LeaseError
    (another run is at it) and GateError: the new model is not good enough or rows cannot be read. The old one stays."""
    began, before = time.perf_counter(), COUNTS.copy()

    def spent(report: FitReport) -> FitReport:
        return replace(report, seconds=time.perf_counter() - began, buckets=asked_since(before))

    plan = make_plan(job)
    report = None if (current := nothing_new(plan)) is None else _unchanged(plan, current, None)
    if report is None:
        with leased(state_lease(plan), locate(job.model) / LEASE) as (state, root), peak_memory() as peak:
            again = make_plan(job)  # by what is there now that nobody else changes it
            if again.directory != plan.directory:
                raise IncompleteError(f"{plan.dataset.path}: changed while the job began; run it again")
            run = _FitRun(again, engine, progress, peak, state, again.cluster())
            try:
                solved = _solved(run)
            except QuarantineError as error:
                raise refuse_coverage(again, error) from error
            report = solved if isinstance(solved, FitReport) else _published(run, solved, root, spent)
    return spent(report)


@dataclass(frozen=True, eq=False)
class _FitRun:
    """A fit under way: its plan, who is told, its state's lease; it runs on the caller's `engine`, or on `cluster`."""

    plan: Plan
    engine: Engine | None
    progress: Progress | None
    peak: PeakMemory
    lease: Lease
    cluster: ClusterSpec


def _published(run: _FitRun, solved: "Solved", lease: Lease, spent: Callable[[FitReport], FitReport]) -> FitReport:
    job = run.plan.job
    if run.plan.dataset.labels is None and job.solve.by_squares:  # that of classes is told where it costs nothing
        with pinned():
            solved = replace(solved, fitted=solved.fitted.noised)
    alone = left_alone(solved.last[0], solved.fitted) if job.solve.by_squares else None
    model, quality = _model(solved, alone, run.peak)
    warnings = _warnings(solved, quality, model, alone)
    report = _report(solved, quality, warnings, run.peak.bytes if job.cluster.on_this_machine else None)
    report = replace(report, bands=None if model.conformal is None else model.conformal.summary)
    current = current_model(run.plan)
    since = rewritten_since(current, solved.last[1].receipts)
    rewritten = sorted(since.union(report.rewritten))
    made_model = replace(model, info={**model.info, "made": solved.made})
    reasons = explain_new_version(run.plan, made_model, current, rewritten)
    report = replace(
        report,
        rewritten=rewritten,
        in_driver=run.cluster.in_driver,
        version_reasons=reasons,
    )
    report = spent(report)
    info = {**made_model.info, "report": asdict(report)}
    model = replace(model, info=info, held=model.held if job.publish.sample else None)
    kept = ("rows_used", "rows_dropped", "leaves_computed", "leaves_reused", "rewritten")
    record = {key: getattr(report, key) for key in (*kept, "version_reasons")}
    record |= {key: getattr(report, key) for key in ("digits", "ridge", "m", "r2_of")}
    judging = partial(judge, job, report)
    by = report.score_by if job.publish.holdout is None else "holdout"
    try:
        path, verdict = publish(model, locate(job.model), lease=lease, rule=job.publish, record=record, judge=judging)
    except GateError as error:
        error.result = asdict(report) | {"score_by": by} | error.result
        raise
    return replace(report, score=verdict.score, score_by=by, model=str(path))


def _unchanged(plan: Plan, model: Model, passed: PassResult | None) -> FitReport | None:
    """The report of the current model, with what this run did; None where another dorff wrote it."""
    kept, fresh = model.info.get("report", {}), [] if passed is None else passed.fresh
    if set(kept) != {field.name for field in fields(FitReport)}:
        return None
    report, version = FitReport(**kept), resolve_model(locate(plan.job.model))
    score = history_of(version).get("score")
    if score is not None and score != report.score:  # judged after it was written
        report = replace(report, score=score, score_by="holdout")
    return replace(
        report, outcome="unchanged", leaves_computed=len(fresh), leaves_reused=len(plan.leaves) - len(fresh),
        reads=sum(receipt.rows_read for receipt in fresh) / plan.dataset.rows, syrk_share=None, rewritten=[],
        model=str(version), warnings=[one for one in report.warnings if ANEW not in one],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Solved:
    """Every plan and its pass, the last those chosen from; threads of the engine; what the model depends on."""

    passes: tuple[tuple[Plan, PassResult], ...]
    fitted: Fitted
    threads: int
    made: dict[str, Any]
    minimised: Minimised | None = None

    @property
    def last(self) -> tuple[Plan, PassResult]:
        return self.passes[-1]

    @cached_property
    def lattice_error(self) -> tuple[float | None, list[str]]:
        """How far the chosen kernel's features may be from it, where they lie on a lattice; what to say of it."""
        choice, plan = self.fitted.choice, self.last[0]
        error, text = plan.lattice_error(choice.fit.kernel, self.fitted.settings[choice.candidate].density)
        name = f"kernel[{choice.candidate // len(plan.weights)}]: " * (len(plan.kernel_configs) > 1)
        return error, [name + one for one in text]

    @property
    def score(self) -> float | None:
        """The R2 of the chosen model on rows held out; None unless such chose."""
        return max((row.r2 for row in self.fitted.choice.table if row.r2 is not None), default=None)


def _solved(run: _FitRun) -> Solved | FitReport:
    """Pass and solve, again by the features' QR where the Gram matrix lost digits; the report where nothing is new."""
    plan, peak = run.plan, run.peak
    if plan.job.solve.other_loss:
        check_targets(plan)
    if plan.costs.route == "streaming":
        return _stepped(run) if plan.job.solve.descends else _streamed(run)
    passed, threads = _pass(run)
    same = same_rows(plan, passed)
    if same is not None and (report := _unchanged(plan, same, passed)) is not None:
        return report
    of = made(plan)
    peak.sample()
    _say(plan, f"all rows are summed; solving for {plan.costs.m:,} features by route {plan.costs.route}")
    fitted = solve_pass(plan, passed)
    peak.sample()
    if plan.job.solve.other_loss:
        return _by_loss(run, fitted, passed, of)
    # Of rounded features more digits would be for nothing.
    worth = fitted.fit.solution.ill_conditioned and plan.job.features.precision == "double"
    worth = worth and plan.costs.route == "direct"
    if not worth or not plan.job.solve.qr or (again := plan.by_qr()) is None:
        return Solved(((plan, passed),), fitted, threads, of)
    passed.folds.clear()
    with leased(state_lease(again)) as (lease,):
        second, threads = _pass(replace(run, plan=again, lease=lease, cluster=again.cluster()))
    peak.sample()
    return Solved(((plan, passed), (again, second)), solve_pass(again, second), threads, of)


def _by_loss(run: _FitRun, fitted: Fitted, passed: PassResult, of: dict[str, Any]) -> Solved:
    """The fit by squares is where the loss's begins, on an engine that stays open throughout."""
    with not_trimmed(run.plan), _opened(run) as running:
        minimised = minimise(run.plan, fitted, passed, running, run.progress)
        threads = running.threads
    run.peak.sample()
    passes = ((run.plan, minimised.passed), (run.plan, passed))
    return Solved(passes, minimised.fitted, threads, of, minimised)


def _streamed(run: _FitRun) -> Solved:
    """Solved pass by pass, on an engine that stays open throughout."""
    plan = run.plan
    with nothing_left(plan), not_trimmed(plan), _opened(run) as running:
        freeze_constants(plan)
        plan.sharing()
        of = made(plan)
        (setting,) = settings(plan)
        streamed = _narrowed(plan, lambda: fit_streaming(plan, setting, running, run.progress))
        threads = running.threads
    passed = PassResult({}, streamed.receipts, streamed.fresh, streamed.seconds, streamed.passes)
    return Solved(((plan, passed),), Fitted((setting,), {}, Choice(0, streamed.fit, (), plan.costs.m)), threads, of)


def _stepped(run: _FitRun) -> Solved:
    """By steps in this process, after a first pass on an engine that is closed before them."""
    plan = run.plan
    with nothing_left(plan), not_trimmed(plan):
        freeze_constants(plan)
        plan.sharing()
        of = made(plan)
        (setting,) = settings(plan)
        with _opened(run) as running:
            begun = _narrowed(plan, lambda: begin(plan, setting, running, run.progress))
            threads = running.threads
        run.peak.sample()
        minimised = step(begun, run.progress)
    sweeps = begun.sweeper
    first = PassResult({}, sweeps.receipts, sweeps.fresh, begun.seconds)
    return Solved(((plan, minimised.passed), (plan, first)), minimised.fitted, threads, of, minimised)


def _pass(run: _FitRun) -> tuple[PassResult, int]:
    """A pass and its manifold terms', on an engine closed before anything is solved: its processes hold memory."""
    plan = run.plan
    with _opened(run) as running:
        for _ in range(ROUNDS):
            of = [term.stamp() for term in plan.terms]
            passed = _narrowed(plan, lambda: run_pass(plan, running, _share(run, 0), lease=run.lease))
            with nothing_left(plan):
                terms = sum_terms(plan, running, lambda number: _share(run, number + 1), lease=run.lease)
            if of == [term.stamp() for term in plan.terms]:
                return replace(passed, terms=terms), running.threads
    problem = f"{plan.dataset.path}: the rows or graphs of its manifold terms changed each time they had been read"
    raise IncompleteError(f"{problem}; run again when nobody writes to them")


def _narrowed(plan: Plan, work: Callable[[], T]) -> T:
    """What `work` gives; where rows miss targets in too many ways, with the sums of some of these alone."""
    try:
        return work()
    except PatternsError:
        freeze_constants(plan, narrow=True)
        return work()


def _say(plan: Plan, what: str) -> None:
    """What a fit that takes long is at, when no rows pass that would show it."""
    if plan.costs.seconds > LONG:
        _log.info("fit: %s", what)


def _share(run: _FitRun, number: int) -> Progress | None:
    """Progress of one pass of several: rows of all of them are counted."""
    if run.progress is None:
        return None
    progress = run.progress
    each = [run.plan.dataset.rows, *(source.rows for term in run.plan.terms for source in term.sources)]
    total, done = sum(each), sum(each[:number])
    return lambda rows, _: progress(done + rows, total)


def _opened(run: _FitRun) -> AbstractContextManager[Engine]:
    needs = run.plan.costs.worker_bytes
    return open_engine(run.cluster, needs=needs) if run.engine is None else nullcontext(run.engine)


def _model(solved: Solved, alone: LeftOut | None, peak: PeakMemory) -> tuple[Model, FitQuality | None]:
    """The model, with what it needs to say how sure it is; and how good it is on rows held out."""
    (plan, passed), fitted = solved.last, solved.fitted
    model, quality = build_model(plan, fitted, passed), None
    if plan.dataset.labels is None:
        if plan.job.posteriors:
            _say(plan, "solved; deviations are next")
        model = judged(model, plan, fitted, passed)  # whose posterior goes before that of all rows comes
        if solved.minimised is None:
            model = replace(model, posterior=posterior_of(plan, fitted))
            quality = quality_of(fitted, plan.dataset.target_columns, held_by(plan), looked(plan), model.held, alone)
    elif plan.job.solve.calibrate:
        calibration, quality = calibrate(plan, fitted, passed)
        model = replace(model, info={**model.info, "calibration": calibration.config()})
    if solved.minimised is not None:
        model = replace(model, posterior=solved.minimised.posterior)
    peak.sample()
    return model, quality


def _outgrew_landmarks(plan: Plan) -> bool:
    """Whether there are far more rows than when landmarks were chosen among them."""
    chosen = plan.frozen().constants.landmark_rows
    return chosen is not None and plan.dataset.rows >= OUTGROWN * (chosen.rows - chosen.first)


def _warnings_of_landmarks(plan: Plan) -> Iterator[str]:
    """Yield that landmarks may be too few for the rows that there are by now."""
    chosen = plan.frozen().constants.landmark_rows
    if chosen is not None and _outgrew_landmarks(plan):
        before = f"landmarks were chosen among {chosen.rows - chosen.first:,} rows, and there are {plan.dataset.rows:,}"
        yield f"{before}: they may be too few for these; begin anew, with another folder as state"


def _warnings(solved: Solved, quality: FitQuality | None, model: Model, alone: LeftOut | None) -> list[str]:
    plan, fitted = solved.last[0], solved.fitted
    solve = plan.job.solve
    auto, distance = solve.ridge == AUTO, given_distance(plan, fitted)
    count_is_chosen = plan.chose("features.count") and not _outgrew_landmarks(plan)
    weighed = solve.class_weight != "none"
    by_steps = solved.minimised is not None  # which says itself where it ended
    more = list(warnings_of_status(fitted.fit.solution, by_steps=by_steps))
    more += list(
        warnings_of(
            fitted,
            quality,
            auto=auto,
            distance=distance,
            held=model.held,
            weighed=weighed,
            conformal=model.conformal,
            enough_features=has_enough_landmarks(
                plan.recipe,
                plan.dataset.rows,
                count_is_chosen=count_is_chosen,
            ),
        )
    )
    more += solved.lattice_error[1]
    more += _warnings_of_landmarks(plan)
    if model.posterior is not None and solved.minimised is None:
        more += warnings_of_uncertainty(fitted)
        if model.held is not None and quality is not None:
            remedy = wider_bands(quality.by, model.conformal, beside=False)
            noise = np.diag(model.posterior.noise)
            more += warnings_of_groups(model.held, noise, remedy, plan.dataset.target_columns)
    if solved.minimised is not None:
        more += of_loss(solved.minimised, fitted, auto=auto)
    return [*plan.warnings, *([] if alone is None else better(fitted, alone, solve.select)), *more]


def _report(solved: Solved, quality: FitQuality | None, warnings: list[str], peak: int | None) -> FitReport:
    (plan, last), choice, passes = solved.last, solved.fitted.choice, [passed for _, passed in solved.passes]
    kernel, weights = divmod(choice.candidate, len(plan.weights))
    solution, noise = choice.fit.solution, choice.fit.noise
    fresh = [receipt for one in passes for receipt in one.fresh]
    seconds = sum(one.seconds for one in passes)
    counted = ("rows_used", "rows_dropped", "rows_unlabelled")
    used, dropped, unlabelled = (sum(getattr(one, key) for one in last.receipts) for key in counted)
    return FitReport(
        rows_used=used,
        rows_dropped=dropped,
        rows_unlabelled=unlabelled + max((one.rows for term in plan.terms for one in term.sources[1:]), default=0),
        leaves_computed=len(fresh),
        leaves_reused=sum(one.passes * len(one.receipts) for one in passes) - len(fresh),
        reads=sum(receipt.rows_read for receipt in fresh) / plan.dataset.rows,
        passes=sum(one.passes for one in passes) + sum(len(term.sources) for term in plan.terms),
        seconds=seconds,
        syrk_share=sum(receipt.syrk_seconds for receipt in fresh) / (solved.threads * seconds) if fresh else None,
        peak_bytes=peak or None,
        plan_peak_bytes=max(one.costs.peak_bytes for one, _ in solved.passes),
        route=plan.costs.route,
        select=plan.job.solve.select,
        condition=float(solution.condition),
        digits=float(solution.digits),
        rung=solution.rung,
        status=solution.status,
        ridge=solution.ridge,
        ridges=None if solution.ridges is None else solution.ridges.tolist(),
        log_evidence=solution.log_evidence,
        noise=None if noise is None else np.sqrt(np.diag(noise)).tolist(),
        m=choice.m,
        kernel=kernel,
        lengthscale=[term.scalar.config().get("lengthscale") for _, term in choice.fit.kernel.terms()],
        lengthscale_in_units=lengthscales_in_units(choice.fit.kernel, plan.frozen().features.scale, plan.dataset),
        tuned=plan.tuned()[kernel],
        manifold=list(plan.weights[weights]),
        graphs=[term.summary for one in passes for term in one.terms],
        folds=len({fold for fold, _ in last.folds}) or 1,
        held_by=held_by(plan),
        effective_sample_size=plan.sharing()[kernel],
        outcome="published",
        rewritten=sorted({number for one in passes for number in one.rewritten}),
        coverage=(used + dropped + unlabelled) / plan.dataset.rows,
        score=solved.score,
        r2_of=r2_of(plan),
        score_by=None if solved.score is None else plan.job.solve.select,
        model=str(plan.job.model),
        warnings=warnings,
        quality=None if quality is None else asdict(quality),
        choices=[asdict(one) for one in plan.choices],
        patterns=None if (kept := plan.frozen().constants.patterns) is None else list(kept),
        table=[_trial(score, plan) for score in choice.table],
        loss=None if solved.minimised is None else solved.minimised.summary,
        kernel_error=solved.lattice_error[0],
    )


def _trial(score: Score, plan: Plan) -> dict[str, Any]:
    """A trial as the report has it: `candidate` is the kernel's number, `manifold` the weights of terms, if any."""
    kernel, weights = divmod(score.candidate, len(plan.weights))
    trial = {**asdict(score), "candidate": kernel}
    return {**trial, "manifold": list(plan.weights[weights])} if plan.terms else trial
