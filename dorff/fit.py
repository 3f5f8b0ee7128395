"""A whole fit: plan, run or resume the pass, choose, solve, publish."""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from importlib.metadata import version
from operator import add
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff import kernels
from dorff.engine import Engine, Task, Tree, open_engine, peak_memory
from dorff.errors import IncompleteError, InputError
from dorff.model import Model
from dorff.plan import Plan, make_plan
from dorff.solvers import Choice, Setting, choose
from dorff.spec import Job
from dorff.store import Folds, Receipt, save_model
from dorff.threads import pinned

Progress = Callable[[int, int], None]  # rows done, rows in all


@final
@dataclass(frozen=True)
class FitReport:
    """What a fit did. `status` is "ok", or "ill_conditioned" where the condition number leaves few digits.

    `syrk_share` is the share of the pass's core-seconds that was spent inside BLAS `syrk`, None where nothing was
    computed. `peak_bytes` is measured, None where the workers are not on this machine.
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
        choice, kernel = solve_pass(plan, passed.folds)
        local = not hasattr(job.cluster, "address")
        peak.sample()
    model = build_model(plan, choice, kernel, passed)
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


def solve_pass(plan: Plan, folds: Folds) -> tuple[Choice, kernels.OperatorKernel]:
    """Choose among the job's ridges and solve; gives the kernel with its output matrices written out, too."""
    this, kernel = plan.frozen()
    solving = plan.job.solve
    setting = Setting(kernel, this.features.d, this.features.m, this.density, solving.standardize, solving.intercept)
    parts = [moments for _, moments in sorted(folds.items()) if moments.n]
    if not parts:
        raise InputError(f"{plan.dataset.path}: no rows are left to fit; every row was dropped or there are none")
    with pinned():
        choice = choose(parts, [setting.weigh], solving.ridges, intercept=setting.intercept, scaling=setting.scaling)
    return choice, setting.fixed(reduce(add, parts))


def build_model(plan: Plan, choice: Choice, kernel: kernels.OperatorKernel, passed: PassResult) -> Model:
    """The model of a choice, with what a reader of it will want to know."""
    this, _ = plan.frozen()
    receipts = passed.receipts
    info = {
        "data": {
            "store": plan.question["store"], "rows": plan.dataset.n, "fingerprint": fingerprint(receipts),
            "inputs": list(plan.dataset.input_columns), "targets": list(plan.dataset.target_columns),
            "low": np.min([receipt.low for receipt in receipts], axis=0).tolist(),
            "high": np.max([receipt.high for receipt in receipts], axis=0).tolist(),
        },
        "plan": this.hash,
        "versions": {name: version(name) for name in ("dorff", "numpy", "scipy", "zarr", "numba", "dask")}
        | {"python": platform.python_version()},
    }  # fmt: skip
    return Model(
        feature_map=this.features, weights=choice.psi, coefficients=choice.solution.h,
        intercept=choice.centred.bias(choice.W), target_scale=choice.centred.scale,
        kernel=kernel, sampler=plan.question["sampler"], seed=plan.question["seed"], info=info,
    )  # fmt: skip


def fingerprint(receipts: Sequence[Receipt]) -> str:
    """Names the values of all rows that were used."""
    text = " ".join(f"{receipt.start} {receipt.stop} {receipt.digest}" for receipt in receipts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _report(plan: Plan, passed: PassResult, choice: Choice, threads: int, peak: int | None) -> FitReport:
    fresh = [receipt for receipt in passed.receipts if receipt.number in passed.computed]
    busy = sum(receipt.syrk_seconds for receipt in fresh)
    solution = choice.solution
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
        status="ill_conditioned" if solution.ill_conditioned else "ok",
        ridge=solution.ridge,
        m=plan.costs.m,
        model=str(plan.job.model),
        table=[asdict(score) for score in choice.table],
    )
