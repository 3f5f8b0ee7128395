"""Processes of their own: Dask's schedulers and workers, and commands whose memory is watched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import psutil
from places import PYTHONPATH

LOOPBACK = "127.0.0.1"
NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0")  # the HTTP server is there all the same


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process, killed at the end of the block if it still runs, and its children with it."""
    paths = os.pathsep.join([PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])])
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
    end = time.monotonic() + 600
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@final
class Watched:
    """Peak memory of a process and all below it, in bytes: what each holds by itself and its share of what they share
    (PSS of pages that are no file's), and each file that is mapped once, as if nobody else on this machine had it. The
    kernel keeps what the first process alone held at most: no peak of it falls between two looks."""

    def __init__(self, pid: int) -> None:
        self._pid, self._files, self._own, self._looks, self._first = pid, dict[str, int](), 0, 0, 0

    @property
    def peak(self) -> int:
        return max(self._first, self._own + sum(self._files.values()))

    def look(self) -> None:
        own, pids = 0, []
        with suppress(OSError):
            most = _kilobytes(Path(f"/proc/{self._pid}/status"), "VmHWM:").get("VmHWM:", 0)
            self._first = max(self._first, 1024 * most)
        with suppress(psutil.Error):
            pids = [self._pid, *(child.pid for child in psutil.Process(self._pid).children(recursive=True))]
        for pid in pids:
            with suppress(OSError):
                own += sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:").values())
                if self._looks % 16 == 0:  # these change rarely, and there are many
                    self._look_at_files(pid)
        self._own, self._looks = max(self._own, 1024 * own), self._looks + 1

    def _look_at_files(self, pid: int) -> None:
        found: dict[str, int] = {}
        for block in filter(None, re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text())):
            head, *lines = block.splitlines()
            if len(head.split(None, 5)) == 6 and head.split()[4] != "0":
                sizes = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith(("Rss:", "Anon"))}
                name = head.split(None, 5)[5]
                found[name] = found.get(name, 0) + 1024 * (sizes["Rss:"] - sizes["Anonymous:"])
        for name, size in found.items():
            self._files[name] = max(self._files.get(name, 0), size)


def _kilobytes(path: Path, *names: str) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if line and line[0] in names}


def watched(*command: str, every: float = 0.02) -> tuple[int, str, str, int]:
    """Run a command: its exit code, what it printed on stdout and stderr, and its peak memory in bytes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        watch = Watched(started.pid)
        while started.poll() is None:
            watch.look()
            time.sleep(every)
        said, complained = started.communicate()
    return started.returncode, said, complained, watch.peak
