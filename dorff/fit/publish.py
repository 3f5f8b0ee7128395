"""Publishing: a new version becomes current when it is good enough, in one step, by the run that holds the lease."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from dorff import store
from dorff.errors import DorffError, GateError, InputError
from dorff.model import Model
from dorff.spec import Publish


@final
@dataclass(frozen=True)
class Verdict:
    """What a gate found: the held-out scores of the new model and the current one, and why not to publish the new.

    Without `reasons` it may be. None where there is no such score.
    """

    score: float | None
    old_score: float | None
    reasons: tuple[str, ...] = ()


def publish(
    model: Model,
    root: Path,
    *,
    lease: store.Lease,
    rule: Publish,
    record: Mapping[str, Any],
    judge: Callable[[Path, Path | None], Verdict],
) -> Path:
    """Write a version of the model, have it judged beside the current one, and switch to it; returns its directory.

    `record` goes to the history with the outcome, published or refused; of several versions `rule.keep` are kept.
    Whatever happens, and wherever this is killed, `current` names a whole version: the old one or the new one.
    Raises GateError where the judge refuses, LeaseError where the lease is lost, IncompleteError where the disk fails:
    then the new version is removed. `lease` is that of `root`: what publishes that were killed left there is removed.
    """
    store.discard_unnumbered(root, lease)
    version = store.write_version(model, root)
    try:
        old = _current(root)
        verdict = _judged(judge, version, old, lease)
        line = {
            **record, "time": datetime.now(UTC).isoformat(timespec="seconds"), "token": lease.token,
            "score": verdict.score, "old_score": verdict.old_score,
        }  # fmt: skip
        if verdict.reasons:
            raise _refused(root, verdict.reasons, line, old, lease)
        with lease.fenced():
            _mend_history(root)
            version = store.number_version(version)
            store.switch_current(root, version.name)
            store.append_history(root, {**line, "outcome": "published", "version": version.name})
    except BaseException:
        _withdraw(version)
        raise
    if rule.keep is not None:
        store.prune_versions(root, rule.keep)
    return version


def _judged(
    judge: Callable[[Path, Path | None], Verdict], version: Path, old: Path | None, lease: store.Lease
) -> Verdict:
    """The verdict; a judge that fails because the next holder of the lease removed the version is told so."""
    try:
        return judge(version, old)
    except (InputError, OSError):
        lease.check()
        raise


def _refused(
    root: Path, reasons: Sequence[str], line: Mapping[str, Any], old: Path | None, lease: store.Lease
) -> GateError:
    """What to say of a refusal, once the history tells it."""
    with lease.fenced():
        store.append_history(root, {**line, "outcome": "refused", "reasons": list(reasons)})
    return GateError(
        f"{root}: the new model is not published: {'; '.join(reasons)}. "
        + (f"{old.name} stays current" if old else "There is no model yet")
    )


def _current(root: Path) -> Path | None:
    """The current version; where `current` is damaged or its version gone, the one published last that is there."""
    named = [line["version"] for line in store.read_history(root) if line["outcome"] == "published"]
    with suppress(InputError):
        named.append(store.current_version(root))
    return next((root / name for name in reversed(named) if name and (root / name).is_dir()), None)


def _mend_history(root: Path) -> None:
    """Add the line of a version that became current just before its run was killed."""
    current = _current(root)
    versions = {line["version"] for line in store.read_history(root) if line["outcome"] == "published"}
    if current is not None and current.name not in versions:
        store.append_history(root, {"outcome": "published", "version": current.name, "mended": True})


def _withdraw(version: Path) -> None:
    """Remove a version unless it became current; what went wrong before is said, not what goes wrong here."""
    with suppress(DorffError, OSError):
        if store.current_version(version.parent) != version.name:
            store.discard_version(version)
