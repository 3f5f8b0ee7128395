"""What a new model must be before it takes the place of the current one; who may publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dorff.engine import SerialEngine
from dorff.errors import GateError, InputError, QuarantineError
from dorff.fit.fit_report import FitReport
from dorff.fit.publish import Verdict
from dorff.model import Model
from dorff.plan import Plan
from dorff.predict import score
from dorff.solvers import R2, Choice
from dorff.spec import ClassTargets, Job
from dorff.store import Lease, append_history, forget, lease_beside, load_model, read_history


def state_lease(plan: Plan) -> Path:
    """Whoever changes what the plan keeps holds this lease."""
    return lease_beside(plan.directory)


@contextmanager
def leased(*wanted: Path) -> Iterator[list[Lease]]:
    """Leases on these, each taken once; LeaseError where another run holds one. Folders that were made for them alone
    are removed again."""
    above = {folder for path in wanted for folder in path.parents if not folder.exists()}
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(Lease.take(path)) for path in dict.fromkeys(wanted)]
    finally:
        for path in wanted:
            if path.parent in above and path.parent.exists():
                forget(path)
        for folder in sorted(above, reverse=True):  # the deepest first
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def not_covered(plan: Plan, error: QuarantineError) -> GateError:
    """What to say of rows that cannot be summed because whoever tries is killed."""
    numbers = sorted(tag[1] for tag in error.tags if isinstance(tag, tuple) and tag[0] == 0)
    leaves = [leaf for leaf in plan.leaves if leaf.number in numbers]
    rows, of = sum(leaf.stop - leaf.start for leaf in leaves), plan.dataset.rows
    shard = plan.dataset.shard_rows
    named = "; ".join(
        f"leaf {leaf.number} (rows {leaf.start} to {leaf.stop - 1}, shards {leaf.start // shard} to "
        f"{(leaf.stop - 1) // shard})"
        for leaf in leaves[:8]
    )
    what = f"coverage {1 - rows / of:.4%}: {named} of {plan.dataset.path}" if leaves else str(error)
    return GateError(
        f"{what} killed its worker each time it was tried, alone too; all other leaves are done, and nothing is "
        "published: look at the workers' memory and logs and at these rows, then run again"
    )


def refuse_coverage(root: Path, error: GateError) -> GateError:
    """The same, once the history of a model that is there tells it."""
    if root.exists() and (current := read_history(root)):
        time = datetime.now(UTC).isoformat(timespec="seconds")
        append_history(root, {"time": time, "outcome": "refused", "reasons": [str(error)]})
        name = next((line["version"] for line in reversed(current) if line["outcome"] == "published"), None)
        return GateError(f"{error}; {name} stays current" if name else str(error))
    return error


def held_out_score(choice: Choice) -> float | None:
    """The R2 of the chosen model on rows held out; None unless k-fold chose."""
    return max((row.r2 for row in choice.table if row.r2 is not None), default=None)


def judge(job: Job, report: FitReport, new: Path, old: Path | None) -> Verdict:
    """Why a new version, with the current one beside it, may not be published."""
    reasons, rule = [], job.publish
    if report.digits < rule.digits:
        terms = "; of manifold terms set form: edges, or lower weight or power" if report.manifold else ""
        reasons.append(
            f"only {report.digits:.1f} digits of its fitted values are right (publish.digits: {rule.digits:g}; "
            f"condition {report.condition:.2g}): raise the ridge, or see that features.precision is double, "
            f"solve.route auto and solve.qr true{terms}"
        )
    r2_of = R2(report.r2_of)
    mine = report.score if rule.holdout is None else held_out(job, new, r2_of)
    if rule.margin is None or old is None:
        return Verdict(mine, None, tuple(reasons))
    other = None
    try:
        if not _whole(old):
            other = _told_score(old, r2_of, new)
        else:
            other = _kept_score(old, r2_of) if rule.holdout is None else held_out(job, old, r2_of)
    except InputError as error:
        reasons.append(
            f"the current model cannot be compared with it ({error}): publish to another place, or once without "
            "publish.margin"
        )
    if mine is not None and other is not None and not mine >= other - rule.margin:
        reasons.append(
            f"its held-out score {mine:.5g} is more than publish.margin {rule.margin:g} below the current model's "
            f"{other:.5g}: look at what is new in the data"
        )
    return Verdict(mine, other, tuple(reasons))


def _told_score(version: Path, r2_of: R2, new: Path) -> float | None:
    """What history says of a version: of a damaged one, which must not let a worse one in, nor keep all others out."""
    lines = [line for line in read_history(version.parent) if line.get("version") == version.name]
    score = lines[-1].get("score") if lines else None
    if not isinstance(score, float | int):
        return None
    check_same_r2(lines[-1], r2_of, load_model(new, posterior=False))
    return float(score)


def check_same_r2(told: Mapping[str, Any], r2_of: R2, model: Model) -> None:
    """InputError where a score of another fit is another R2 than this one's; those of a single target are the same.
    What does not say is of an older dorff, whose R2 was pooled."""
    other = told.get("r2_of", R2.POOLED)
    if other != r2_of and (model.p if model.observe is None else len(model.observe)) > 1:
        raise InputError(f"its score is an R2 {other}, this one's is {r2_of}")


def _whole(version: Path) -> bool:
    """Whether a model can be read."""
    try:
        load_model(version, posterior=False)
    except InputError:
        return False
    return True


def held_out(job: Job, version: Path, r2_of: R2) -> float:
    """The score of a version on the job's holdout: accuracy for classes, else R2; the same for all versions."""
    targets = job.data.targets
    names = targets.classes if isinstance(targets, ClassTargets) else targets
    holdout, inputs, weights = job.publish.holdout, job.data.inputs, job.data.weights or ""
    assert holdout is not None
    scores = score(version, holdout, engine=SerialEngine(), inputs=inputs, targets=names, r2_of=r2_of, weights=weights)
    return scores.r2 if scores.accuracy is None else scores.accuracy


def _kept_score(version: Path, r2_of: R2) -> float | None:
    """What a version's own folds said of it, where it was chosen by them."""
    model = load_model(version, posterior=False)
    report = model.info.get("report", {})
    if report.get("score_by") != "kfold":
        return None
    check_same_r2(report, r2_of, model)
    kept: float | None = report.get("score")
    return kept
