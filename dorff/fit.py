"""A whole fit: plan, run or resume the pass, choose, solve, publish."""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff.calibration import Calibration, most_rows
from dorff.engine import Engine, Task, Tree, open_engine, peak_memory
from dorff.errors import IncompleteError, InputError
from dorff.leaf import FoldRule
from dorff.model import Model
from dorff.moments import Moments, by_fold, pooled, unseen
from dorff.plan import Plan, make_plan
from dorff.solvers import Choice, Fit, Setting, choose
from dorff.spec import Job
from dorff.store import Folds, Receipt, save_model
from dorff.threads import pinned

Progress = Callable[[int, int], None]  # rows done, rows in all


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


@final
@dataclass(frozen=True, eq=False)
class PassResult:
    """The moments of each fold that has rows, and the receipts they stand on."""

    folds: Folds
    receipts: list[Receipt]
    computed: set[int]
    seconds: float


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


def run_pass(plan: Plan, engine: Engine, progress: Progress | None = None) -> PassResult:
    """Collect the moments: compute what is missing, merge the fixed tree.

    What is refused before its first leaf is done leaves nothing behind. Receipts of done leaves stay, whatever
    happens: they are used again.
    """
    absent = [path for path in (plan.directory, *plan.directory.parents) if not path.exists()]
    try:
        return _run_pass(plan, engine, progress)
    except InputError:
        if absent and not any((plan.directory / "receipts").glob("*.json")):
            shutil.rmtree(plan.directory, ignore_errors=True)
            for path in absent[1:]:
                with suppress(OSError):  # never made, or something else is in it
                    path.rmdir()
        raise


def _run_pass(plan: Plan, engine: Engine, progress: Progress | None) -> PassResult:
    plan.freeze()
    this, _ = plan.frozen()
    began = time.perf_counter()
    tree = Tree(this, plan.dataset, plan.leaves, kept=plan.costs.kept_level)
    rows = {leaf.number: leaf.stop - leaf.start for leaf in plan.leaves}

    def tell() -> None:
        if progress is not None:
            progress(sum(rows[number] for number in tree.receipts), plan.dataset.n)

    def done(task: Task, result: Receipt | bool) -> Sequence[Task]:
        following = list(tree.done(task, result))
        if isinstance(result, Receipt):
            tell()
        return following

    tell()  # what earlier runs did is not part of this run's pace
    for _ in range(3):
        engine.run(tree.start(), done)
        folds = tree.total()
        if folds is not None:
            tree.tidy()
            receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
            return PassResult(folds, receipts, tree.computed, time.perf_counter() - began)
    raise IncompleteError(
        f"{this.directory}: moments were missing or damaged again and again; check the disk, and that "
        "every worker sees this folder, then run again"
    )


def settings(plan: Plan) -> list[Setting]:
    """What each kernel of the job makes of moments."""
    this, candidates = plan.frozen()
    solving, features = plan.job.solve, this.features
    # Targets that are classes stay zeros and ones: other units would undo the simplex code.
    standardize = solving.standardize and plan.dataset.labels is None
    return [
        Setting(
            kernel, features.d, features.m, this.density, standardize, solving.intercept, plan.observe,
            one_scale=plan.question["one_scale"],
        )
        for kernel in candidates
    ]  # fmt: skip


def solve_pass(plan: Plan, folds: Folds) -> Choice:
    """Choose among the job's kernels and ridges, and solve."""
    parts = by_fold(folds)
    if not parts:
        raise InputError(f"{plan.dataset.path}: no rows are left to fit; every row was dropped or there are none")
    _refuse_unseen(plan, parts)
    solving = plan.job.solve
    with pinned():
        return choose(parts, settings(plan), solving.ridges, gcv=solving.select == "gcv")


def _refuse_unseen(plan: Plan, folds: Sequence[list[Moments]]) -> None:
    """InputError for a target that no row has."""
    for target in unseen(folds):
        name = plan.dataset.target_columns[target]
        raise InputError(f"{plan.dataset.path}: no row has the target {name}; leave it out of the targets")


def build_model(plan: Plan, fit: Fit, passed: PassResult) -> Model:
    """The model of a fit, with what a reader of it will want to know."""
    this, _ = plan.frozen()
    receipts, dataset = passed.receipts, plan.dataset
    names = list(dataset.target_columns)
    if plan.observe is not None:
        names = [f"f{number}" for number in range(plan.observe.shape[1])]
    info: dict[str, Any] = {
        "data": {
            "store": plan.question["store"], "rows": dataset.n, "fingerprint": fingerprint(receipts),
            "inputs": list(dataset.input_columns), "targets": names, "nan": plan.job.data.nan,
            "low": np.min([receipt.low for receipt in receipts], axis=0).tolist(),
            "high": np.max([receipt.high for receipt in receipts], axis=0).tolist(),
        },
        "plan": this.hash,
        "versions": {name: version(name) for name in ("dorff", "numpy", "scipy", "zarr", "numba", "dask")}
        | {"python": platform.python_version()},
    }  # fmt: skip
    if dataset.labels is not None:
        info["labels"] = list(dataset.labels)
    return Model(
        feature_map=this.features, operator_weights=fit.weights, coefficients=fit.solution.h, intercept=fit.bias,
        target_scale=fit.scale, kernel=fit.kernel, sampler=plan.question["sampler"], seed=plan.question["seed"],
        info=info, observe=plan.observe,
    )  # fmt: skip


def calibrate(plan: Plan, choice: Choice, passed: PassResult) -> Calibration:
    """Class probabilities from rows that the decision values they are judged by were not fitted to.

    A fit of all folds but fold 0, with the ridge and kernel chosen, decides for the rows of fold 0: of a bounded
    number of them, in runs spread evenly. Where it has no rows, or no other has, nothing can be held out: slope 1.
    """
    this, _ = plan.frozen()
    training = by_fold({part: moments for part, moments in passed.folds.items() if part[0] > 0})
    if not training or not any(moments.n for (fold, _), moments in passed.folds.items() if fold == 0):
        return Calibration(1.0)
    decisions, codes = [], []
    with pinned():
        (fit,) = settings(plan)[choice.candidate].solve(pooled(training), [choice.fit.solution.ridge])
        model = build_model(plan, fit, passed)
        for start, stop in _held_out(plan, this.folds):
            X, Y = plan.dataset.read(start, stop)
            keep = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
            if this.folds.by_rows:
                keep &= this.folds.of_rows(np.arange(start, stop)) == 0
            decisions.append(model.predict(X[keep]))
            codes.append(np.argmax(Y[keep], axis=1))
    labels = np.concatenate(codes)
    weights = np.ones(len(labels)) if this.class_weight is None else this.class_weight[labels]
    return Calibration.fit(np.concatenate(decisions), labels, weights)


def _held_out(plan: Plan, rule: FoldRule) -> list[tuple[int, int]]:
    """Runs of rows that hold those of fold 0, as many as are needed, spread evenly."""
    share = (rule.held or rule.count) if rule.by_rows else 1
    wanted = most_rows(plan.dataset.q) * share
    unit = min(plan.dataset.unit_rows, max(1, wanted // 8))
    runs = [
        (start, min(start + unit, leaf.stop))
        for leaf in plan.leaves
        if rule.by_rows or rule.of_leaf(leaf.number) == 0
        for start in range(leaf.start, leaf.stop, unit)
    ]
    most = wanted // unit
    return runs if len(runs) <= most else [runs[int(at)] for at in np.linspace(0, len(runs) - 1, most)]


def fingerprint(receipts: Sequence[Receipt]) -> str:
    """Names the values of all rows that were used."""
    text = " ".join(f"{receipt.start} {receipt.stop} {receipt.digest}" for receipt in receipts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
