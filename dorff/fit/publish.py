"""Publishing: a new version becomes current when it is good enough, in one step, by the run that holds the lease."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dorff.engine import SerialEngine
from dorff.errors import DorffError, GateError, InputError, QuarantineError
from dorff.fit.fit_report import FitReport
from dorff.model import Model
from dorff.plan import Plan
from dorff.predict import score
from dorff.solvers import R2
from dorff.spec.data import ClassTargets
from dorff.spec.job import Job, Publish
from dorff.storage.files import remove_tree
from dorff.storage.location import locate
from dorff.store import Lease, append_history, forget, lease_beside, load_model, models, prune_versions, read_history


@dataclass(frozen=True)
class Verdict:
    """What a gate found: the held-out scores of the new model and the current one, and why not to publish the new.
    Without `reasons` it may be. None where there is no such score."""

    score: float | None
    old_score: float | None
    reasons: tuple[str, ...] = ()


Judge = Callable[[Path, Path | None], Verdict]  # of the new version and the current one


def publish(
    model: Model, root: Path, *, lease: Lease, rule: Publish, record: Mapping[str, Any], judge: Judge
) -> tuple[Path, Verdict]:
    """Write a version of the model, have it judged, and switch to it; returns its directory and the verdict. `record`
    goes to the history with the outcome, published or refused; of several versions `rule.keep` are kept. Whatever
    happens, and wherever this is killed, `current` names a whole version: the old one or the new one. Raises GateError
    where the judge refuses, LeaseError where the lease is lost, IncompleteError where the disk fails: then the new
    version is removed. `lease` is that of `root`: what publishes that were killed left there is removed."""
    models.discard_unnumbered(root, lease)
    version = models.write_version(model, root)
    try:
        old = _current(root)
        try:
            verdict = judge(version, old)
        except (InputError, OSError):  # maybe because the next holder of the lease removed the version
            lease.check()
            raise
        line = {"time": _now(), "token": lease.token, "score": verdict.score, "old_score": verdict.old_score}
        if verdict.reasons:
            raise _refused(root, verdict.reasons, {**record, **line}, old, lease)
        with lease.fenced():
            _mend_history(root)
            version = models.number_version(version)
            models.switch_current(root, version.name)
            append_history(root, {**record, **line, "outcome": "published", "version": version.name})
    except BaseException:
        with suppress(DorffError, OSError):  # what went wrong before is said, not what goes wrong here
            if models.current_version(root) != version.name:
                remove_tree(version)
        raise
    if rule.keep is not None:
        prune_versions(root, rule.keep)
    return version, verdict


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _refused(root: Path, reasons: Sequence[str], line: Mapping[str, Any], old: Path | None, lease: Lease) -> GateError:
    """What to say of a refusal, once the history tells it."""
    with lease.fenced():
        append_history(root, {**line, "outcome": "refused", "reasons": list(reasons)})
    now = f"{old.name} stays current" if old else "There is no model yet"
    result = _refusal(reasons, old) | {"score": line["score"], "old_score": line["old_score"]}
    return GateError(f"{root}: the new model is not published: {'; '.join(reasons)}. {now}", result)


def _refusal(reasons: Sequence[str], current: Path | None) -> dict[str, Any]:
    """Return what `GateError.result` says of every refusal."""
    model = None if current is None else str(current)
    return {"outcome": "refused", "reasons": list(reasons), "model": model}


def _current(root: Path) -> Path | None:
    """The current version; where `current` is damaged or its version gone, the one published last that is there."""
    named = [line["version"] for line in read_history(root) if line["outcome"] == "published"]
    with suppress(InputError):
        named.append(models.current_version(root))
    return next((root / name for name in reversed(named) if name and (root / name).is_dir()), None)


def _mend_history(root: Path) -> None:
    """Add the line of a version that became current just before its run was killed."""
    current = _current(root)
    versions = {line["version"] for line in read_history(root) if line["outcome"] == "published"}
    if current is not None and current.name not in versions:
        append_history(root, {"outcome": "published", "version": current.name, "mended": True})


def state_lease(plan: Plan) -> Path:
    """Whoever changes what the plan keeps holds this lease."""
    return lease_beside(plan.directory)


@contextmanager
def leased(*wanted: Path) -> Iterator[list[Lease]]:
    """Leases on these, each taken once; LeaseError where another run holds one. Folders made for them are removed."""
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


def refuse_coverage(plan: Plan, error: QuarantineError) -> GateError:
    """What to say of rows that kill whoever sums them, once the history of a model that is there tells it."""
    numbers = sorted(tag[1] for tag in error.tags if isinstance(tag, tuple) and tag[0] == 0)
    leaves = [leaf for leaf in plan.leaves if leaf.number in numbers]
    rows, of = sum(leaf.stop - leaf.start for leaf in leaves), plan.dataset.rows
    shard = plan.dataset.shard_rows
    spans = [(leaf.number, leaf.start, leaf.stop - 1) for leaf in leaves[:8]]
    each = [f"leaf {n} (rows {at} to {end}, shards {at // shard} to {end // shard})" for n, at, end in spans]
    what = f"coverage {1 - rows / of:.4%}: {'; '.join(each)} of {plan.dataset.path}" if leaves else str(error)
    killed = "killed its worker each time it was tried, alone too; all other leaves are done, and nothing is published"
    why = f"{what} {killed}: look at the workers' memory and logs and at these rows, then run again"
    root, name = locate(plan.job.model), None
    if root.exists() and (current := read_history(root)):
        append_history(root, {"time": _now(), "outcome": "refused", "reasons": [why]})
        name = next((line["version"] for line in reversed(current) if line["outcome"] == "published"), None)
    sentence = f"{why}; {name} stays current" if name else why
    return GateError(sentence, _refusal([why], root / name if name else None))


def judge(job: Job, report: FitReport, new: Path, old: Path | None) -> Verdict:
    """Why a new version, with the current one beside it, may not be published."""
    reasons, rule = [], job.publish
    if report.digits < rule.digits:
        terms = "; of manifold terms set form: edges, or lower weight or power" if report.manifold else ""
        wanted = f"publish.digits: {rule.digits:g}; condition {report.condition:.2g}"
        remedy = "raise the ridge, or see that features.precision is double, solve.route auto and solve.qr true"
        problem = f"only {report.digits:.1f} digits of its fitted values are right"
        reasons.append(f"{problem} ({wanted}): {remedy}{terms}")
    r2_of = R2(report.r2_of)
    mine = report.score if rule.holdout is None else held_out(job, new, r2_of)
    if rule.margin is None or old is None:
        return Verdict(mine, None, tuple(reasons))
    other = None
    try:
        other = _old_score(job, old, new, r2_of)
    except InputError as error:
        remedy = "publish to another place, or once without publish.margin"
        reasons.append(f"the current model cannot be compared with it ({error}): {remedy}")
    if mine is not None and other is not None and not mine >= other - rule.margin:
        problem = f"its held-out score {mine:.5g} is more than publish.margin {rule.margin:g} below the current model's"
        reasons.append(f"{problem} {other:.5g}: look at what is new in the data")
    return Verdict(mine, other, tuple(reasons))


def _old_score(job: Job, old: Path, new: Path, r2_of: R2) -> float | None:
    """The held-out score of the current version; None where there is none."""
    try:
        model = load_model(old, posterior=False)
    except InputError:  # what history says of it: a damaged one must not let a worse one in, nor keep all others out
        line = history_of(old)
        if not isinstance(score := line.get("score"), float | int):
            return None
        check_same_r2(line, r2_of, load_model(new, posterior=False))
        return float(score)
    if job.publish.holdout is not None:
        return held_out(job, old, r2_of)
    report = model.info.get("report", {})
    if report.get("score_by") != job.criterion:  # of its own held-out rows, where it was chosen by them
        return None
    if (same := same_r2(report, r2_of)) is not None:
        return same
    check_same_r2(report, r2_of, model)
    kept: float | None = report.get("score")
    return kept


def history_of(version: Path) -> Mapping[str, Any]:
    """The last line of history on a version; empty where there is none."""
    lines = [line for line in read_history(version.parent) if line.get("version") == version.name]
    return lines[-1] if lines else {}


def same_r2(report: Mapping[str, Any], r2_of: R2) -> float | None:
    """The held-out R2 that a report has by this definition beside that of its score; None where it has none."""
    if report.get("r2_of", R2.POOLED) == r2_of:
        return None
    found = (report.get("quality") or {}).get("r2_by_definition", {}).get(r2_of)
    return float(found) if isinstance(found, float | int) else None


def check_same_r2(told: Mapping[str, Any], r2_of: R2, model: Model) -> None:
    """InputError where a score of another fit is another R2 than this one's; those of a single target are the same.
    What does not say is of an older dorff, whose R2 was pooled."""
    other = told.get("r2_of", R2.POOLED)
    if other != r2_of and (model.p if model.observe is None else len(model.observe)) > 1:
        raise InputError(f"its score is an R2 {other}, this one's is {r2_of}")


def held_out(job: Job, version: Path, r2_of: R2) -> float:
    """The score of a version on the job's holdout: accuracy for classes, else R2; the same for all versions."""
    targets = job.data.targets
    names = targets.classes if isinstance(targets, ClassTargets) else targets
    holdout, inputs, weights = job.publish.holdout, job.data.inputs, job.data.weights or ""
    assert holdout is not None
    scores = score(version, holdout, engine=SerialEngine(), inputs=inputs, targets=names, r2_of=r2_of, weights=weights)
    return scores.r2 if scores.accuracy is None else scores.accuracy
