"""What keeps the quick tests quick: marks of cases, and a guard against processes.

A plugin of pytest, which conftest.py loads: a test without the mark `process` or `slow` that starts a process or a
cluster fails.
"""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

MARKS: Final = ("process", "slow")
LOOKS: Final = ("lscpu", "sysctl", "uname", "ldconfig")  # how libraries look at the machine, once in each process
STARTS: Final = [
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (os, "fork"),
    (os, "posix_spawn"),
    (os, "system"),
]


def slow(*cases: Any) -> list[Any]:
    """Cases of a table, each with the mark `slow`; a tuple is one value a name."""
    return [pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow) for case in cases]


LONG: Final = ("test_bucket_faults.py", "test_slurm.py", "test_mpi.py", "test_fit_cli.py")  # these wait for minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: where each is done by one worker (`--dist loadfile`), others are left for the rest."""
    items.sort(key=lambda item: item.path.name not in LONG)


_running: list[pytest.Item] = []  # the test that runs, if any
_guarded: set[object] = set()


def guard(owner: Any, name: str) -> None:
    """Let `owner.name` fail while a test runs that has no mark for it."""
    start = getattr(owner, name)

    def guarded(*args: Any, **options: Any) -> Any:
        marked = not _running or any(_running[-1].get_closest_marker(mark) for mark in MARKS)
        if not marked and _command(args, options) not in LOOKS:
            shown = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
            pytest.fail(f"{_running[-1].nodeid} starts a process or cluster ({shown}): mark it `process`")
        return start(*args, **options)

    setattr(owner, name, guarded)
    _guarded.add(owner)


def _command(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The program that `subprocess.Popen.__init__` is called with; empty of other calls."""
    words = options.get("args", args[1] if len(args) > 1 else ())
    return os.path.basename(words[0]) if isinstance(words, list | tuple) and words else ""


for _owner, _name in STARTS:
    guard(_owner, _name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Know which test runs, its fixtures of any scope included."""
    clusters = sys.modules.get("distributed.deploy.local")  # imported when a test needs it: it takes half a second
    if clusters is not None and clusters.LocalCluster not in _guarded:
        guard(clusters.LocalCluster, "__init__")
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()
