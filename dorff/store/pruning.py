"""Old versions of models and old moments, removed when asked."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dorff.errors import InputError, LeaseError
from dorff.storage.files import hide, remove_torn, remove_tree, rmtree, space_on
from dorff.store.lease import LEASE, Lease, forget, lease_beside, lease_state, locked
from dorff.store.models import older_versions

GIVEN_UP: Final = 30 * 86_400.0  # seconds that what belongs to no job any more is kept for


def remove_given_up(folder: Path) -> None:
    """Remove what nobody has written to in a folder for a month."""
    for path in folder.glob("*"):
        with suppress(OSError):  # another run tidies too
            if time.time() - path.stat().st_mtime > GIVEN_UP:
                rmtree(path) if path.is_dir() else path.unlink()


def prune_versions(root: Path, keep: int, *, dry_run: bool = False) -> list[Path]:
    """Remove all versions of a model but the last `keep` up to the current one; returns what is (or would be) gone.

    Never the current one, nor a newer one: that may be waiting to become current. A reader that had opened a version
    is promised nothing more.
    """
    _at_least_one(keep)
    with space_on(root):
        with locked(root / LEASE):
            older = older_versions(root)
            old = older[: max(0, len(older) + 1 - keep)]  # the current one is kept too
            hidden = [] if dry_run else [hide(version) for version in old]
        for path in hidden:  # after the lock is given back: this can take long
            rmtree(path, ignore_errors=True)
        if not dry_run:
            remove_torn(root, older=86400.0)  # not what is being written or judged
    return old


def prune_state(state: Path, keep: int, *, dry_run: bool = False) -> list[Path]:
    """Remove all plans of a state directory but the `keep` used last; returns the directories gone (or that would be).

    What is removed can be made again, by reading the rows again. A plan that a run holds the lease of stays.
    """
    _at_least_one(keep)
    plans = sorted({file.parent for file in state.glob("*/plan.json")}, key=last_used, reverse=True)
    if not plans:
        raise InputError(f"{state}: no plans here; give the state directory of a job")
    old = [plan for plan in plans[keep:] if lease_state(lease_beside(plan)) is None]
    if dry_run:
        return old
    with space_on(state):
        gone = [plan for plan in old if _removed(plan)]
        remove_torn(state)
    return gone


def _removed(plan: Path) -> bool:
    """Remove a plan, unless a run took its lease meanwhile."""
    lease = lease_beside(plan)
    try:
        with Lease.take(lease):
            remove_tree(plan)
    except LeaseError:
        return False
    forget(lease)
    return True


def last_used(plan: Path) -> float:
    """When something was last written to a plan's directory (s since 1970): files come there by renaming."""
    return max(path.stat().st_mtime for path in (plan, *(below for below in plan.glob("*") if below.is_dir())))


def _at_least_one(keep: int) -> None:
    if keep < 1:
        raise InputError(f"keep: wanted 1 or more, got {keep}; to remove everything, remove the directory")
