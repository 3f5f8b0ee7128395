"""A publish that is killed, or whose disk is full or failing, at every step: old or new, never a mixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from failing_files import Step

pytestmark = pytest.mark.process

TESTS = Path(__file__).parent.parent
OLD, NEW = "v000002", "v000003"
FAULTS = {
    "kill": "driver SIGKILLed at a step of a publish",
    "full": "disk full (ENOSPC) from a step of a publish on",
    "bad": "disk error (EIO) at a step of a publish",
}
VALUES = {"v000001": 1.0, OLD: 2.0, NEW: 3.0}


def published(directory: Path, *faults: str) -> Iterator[dict[str, Any]]:
    """What publishing.py reports, a publish at a time."""
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    command = [sys.executable, str(TESTS / "faults" / "publishing.py"), str(directory), *faults]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        yield json.loads(line)


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that can be: nothing here needs a disk that is slow."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if usable else None) as name:
        yield Path(name)


def check(one: dict[str, Any], steps: list[Step]) -> None:
    """Old or new, all of it; who comes later can publish."""
    fault, ended, later = one["fault"], one["ended"], one["later"]
    what = f"{fault} at step {one['at']}, {steps[one['at']]}: {ended.get('says')}; {later}"
    assert later["exit"] == 0, what
    assert ended["exit"] == (-9 if fault == "kill" else 5) or (ended["exit"] == 0 and fault != "kill"), what
    after = later["after"]
    assert after["current"] in (OLD, NEW), what
    if ended["exit"] == 0:
        assert after["current"] == NEW, what
    assert all(VALUES[name] == value for name, value in after["values"].items()), what  # each is whole
    assert {OLD, after["current"]} <= set(after["values"]), what
    assert set(after["torn"]) <= {".new", ".gone", ".current", ".lease"}, what
    if fault == "bad" and after["current"] == OLD:  # nothing of the new one is left
        assert not after["torn"] and NEW not in after["values"], what
    assert after["history"] in (["v000001", OLD], ["v000001", OLD, NEW]), what
    if after["current"] == OLD:
        assert NEW not in after["history"], what
    assert later["value"] == 4.0 and later["token"] in (3, 4), what
    assert later["history"][:2] == ["v000001", OLD] and len(later["history"]) == 3 + (after["current"] == NEW), what


def check_order(steps: list[Step]) -> None:
    """After a power cut, too: a file's bytes and its directory are waited for before what names them is written."""
    numbered = steps.index(Step("os.rename", NEW))
    switched = steps.index(Step("os.rename", "current"))
    new = next(step.path for step in steps if step.what == "os.mkdir" and step.path.startswith(".new-"))
    written = {step.path for step in steps[:numbered] if step.what == "os.rename" and step.path.startswith(new)}
    directories = {str(parent) for path in written for parent in Path(path).parents} - {"."}
    synced = {step.path for step in steps[:numbered] if step.what == "fsync"}
    assert len(written) > 15 and written | directories | {""} <= synced
    last_write = max(at for at, step in enumerate(steps[:numbered]) if step.what == "write")
    assert min(at for at, step in enumerate(steps) if step.what == "fsync" and step.path.startswith(new)) > last_write
    told = steps.index(Step("open to write", "history.jsonl"), switched)
    assert Step("fsync", "") in steps[numbered:switched] and Step("fsync", "") in steps[switched:told]
    assert any(step.what == "fsync" and step.path.startswith(".current") for step in steps[numbered:switched])
    assert Step("fsync", "history.jsonl") in steps[told:]


def test_a_publish_that_fails_leaves_the_old_or_the_new(directory: Path, record_fault: Callable[..., None]) -> None:
    check_all(directory, record_fault, "kill,40,4", "full,80,6", "bad,160,9")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["kill,1,1", "full,1,1", "bad,3,1"])
def test_a_publish_that_fails_at_any_step_leaves_the_old_or_the_new(
    directory: Path, fault: str, record_fault: Callable[..., None]
) -> None:
    """Of an error of the disk, which reads meet too, before the switch in every third of them."""
    check_all(directory, record_fault, fault)


def check_all(directory: Path, record_fault: Callable[..., None], *faults: str) -> None:
    clean, *failed = published(directory, *faults)
    steps = [Step(**step) for step in clean["ended"]["steps"]]
    assert clean["ended"]["exit"] == 0 and clean["later"]["after"]["current"] == NEW
    check_order(steps)
    for one in failed:
        check(one, steps)
    for fault, words in FAULTS.items():
        found = [one["later"]["after"]["current"] for one in failed if one["fault"] == fault]
        assert set(found) <= {OLD, NEW} and len(set(found)) in (0, 2)
        if found:
            outcome = f"{found.count(OLD)} times the old model, {found.count(NEW)} times the new one, never a mixture"
            record_fault(words, len(found), outcome, 0, 0, "the publish")
