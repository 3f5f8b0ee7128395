"""Dask's schedulers and workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0")  # the HTTP server is there all the same


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process, killed at the end of the block if it still runs, and its children with it."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths} | environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@contextmanager
def scheduler(
    folder: Path, *options: str, host: str = LOOPBACK, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A scheduler of its own, and its address."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", host, "--port", "0"]
    command += [*NO_DASHBOARD, "--scheduler-file", str(file), *options]
    with process(*command, **environment) as started:
        until(lambda: file.exists() and file.read_text().endswith("}"))
        yield started, json.loads(file.read_text())["address"]


def worker(
    address: str, folder: Path, *options: str, python: tuple[str, ...] = (sys.executable,), **environment: str
) -> Any:
    """A worker of one thread."""
    command = [*python, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
    command += [*NO_DASHBOARD, "--local-directory", str(folder), *options]
    return process(*command, **environment)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 100
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
