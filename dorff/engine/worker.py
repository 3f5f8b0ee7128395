"""What runs on a worker: a task, with the driver's versions, and its orderly end; whether it hangs, silent and idle."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any, Final

import psutil
from distributed import LocalCluster, Status, Worker, WorkerPlugin, get_worker
from distributed.versions import get_package_info

from dorff.errors import InputError, StoppedError
from dorff.errors.stopping import clear_stop, request_stop, skip_cleaning_at_exit
from dorff.moments.blas import pin
from dorff.storage.bucket import take_counts

PACKAGES: Final = ("dorff", "numpy", "scipy", "zarr", "numba", "numcodecs", "dask", "distributed")
Versions = Mapping[str, str | None]
NOTICE: Final = 15.0  # seconds that a leaf has to save what it has
_LINGER: Final = 5.0  # seconds for the driver, told too, to end its workers: nannies would start others meanwhile
_FAREWELL: Final = 2.0  # seconds for the scheduler to take note that a worker leaves
_NAME: Final = "dorff-leaving"
UNTIL: Final = "DORFF_UNTIL"  # seconds since 1970: the end of a worker, by a variable of its environment
HUNG: Final = 30.0  # seconds of silence


@lru_cache(maxsize=1)
def own_versions() -> Versions:
    return get_package_info(PACKAGES)


def refuse_others(worker: str, ours: Versions, theirs: Versions) -> None:
    """InputError where a worker's versions are not the driver's; of Python major and minor count."""
    for package in ("python", *PACKAGES):
        digits = 2 if package == "python" else None
        here, there = (".".join((one.get(package) or "").split(".")[:digits]) for one in (ours, theirs))
        if here != there:
            without = f"has no {package}, the driver has {here}"
            other = f"{package} is {there} there and {here or 'missing'} in the driver"
            raise InputError(f"worker {worker}: {other if there else without}; start both from the same environment")


@dataclass(frozen=True)
class Call:
    """A task as it travels: of which run it is, and what its driver's packages are."""

    run: str
    versions: Versions
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class _Here:
    """What this worker process does: tasks that run, runs that are over, and whether it leaves."""

    def __init__(self) -> None:
        self.busy, self.over, self.leaving = 0, set[str](), False
        self.lock = threading.Lock()


_here: Final = _Here()


def run_call(call: Call) -> tuple[Any, dict[str, int]]:
    """Do a task; what it returns, and what this process asked of buckets since it last said so. InputError where this
    worker's packages are others, StoppedError where it or the run is to stop."""
    worker = get_worker()
    refuse_others(worker.address, call.versions, own_versions())
    if _NAME not in worker.plugins:
        worker.loop.add_callback(worker.plugin_add, plugin=Leaving(), name=_NAME)
    with _here.lock:
        if _here.leaving or call.run in _here.over:
            raise StoppedError(f"worker {worker.address} was asked to stop")
        clear_stop()  # another run may have been stopped here
        _here.busy += 1
    try:
        pin()
        return call.function(*call.arguments), take_counts()
    finally:
        with _here.lock:
            _here.busy -= 1


def stop_run(run: str) -> int:
    """End the tasks of one run, by its name, at their next block; those that still come do not begin. How many run."""
    with _here.lock:
        _here.over.add(run)
        request_stop()
        return _here.busy


class Leaving(WorkerPlugin):
    """A worker that is told to end lets its leaf save what it has first, and tells the scheduler that it leaves. So its
    tasks go to other workers without being suspected of killing it. SIGTERM gives a leaf `NOTICE` seconds; a nanny that
    was itself told to end kills its worker after 8. Signals to a `local` cluster's worker mostly go to the whole group,
    and its driver answers them: the worker ignores Ctrl-C, and stays for a while after SIGTERM."""

    name = _NAME

    def __init__(self, *, local: bool = False) -> None:
        self._local = local

    def setup(self, worker: Worker) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a worker inside another process, whose signals are not ours
        loop = asyncio.get_running_loop()

        def end(linger: float, nanny: bool) -> None:
            _leave()
            leaving.append(loop.create_task(_end(worker, linger, nanny=nanny)))

        def told(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_IGN if self._local else signal.SIG_DFL)  # a second one ends it at once
            _leave()
            loop.call_soon_threadsafe(end, _LINGER * self._local, False)

        if until := os.environ.get(UNTIL):
            loop.call_later(float(until) - time.time(), end, 0.0, True)
        leaving: list[asyncio.Task[None]] = []  # a loop keeps weak references only
        signal.signal(signal.SIGTERM, told)
        if self._local:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def teardown(self, worker: Worker) -> None:
        if worker.status == Status.running:
            return  # the plugin is replaced
        if threading.current_thread() is threading.main_thread():  # this process is the worker's own
            skip_cleaning_at_exit()
        _leave()
        await _saved()
        if worker.state.tasks:  # "expected" is what keeps them from being suspected
            with suppress(OSError, asyncio.TimeoutError):
                why: Any = {"expected": True, "close": False, "stimulus_id": f"dorff-leaves-{time.time()}"}
                await asyncio.wait_for(worker.scheduler.unregister(address=worker.address, **why), _FAREWELL)


def _leave() -> None:
    _here.leaving = True
    request_stop()


async def _saved() -> None:
    """Wait until the tasks that run have ended, `NOTICE` seconds at most."""
    until = time.monotonic() + NOTICE
    while _here.busy and time.monotonic() < until:
        await asyncio.sleep(0.02)


async def _end(worker: Worker, linger: float, *, nanny: bool) -> None:
    worker.status = Status.closing_gracefully  # no new tasks
    await _saved()
    await asyncio.sleep(linger)
    await worker.close(nanny=nanny, executor_wait=False, reason="told to end")


class HungWorkers:
    """Kills local workers that neither speak nor compute, so that their nannies start others. Dask's own `worker-ttl`
    counts silence alone, and one that factorizes a large matrix holds Python's lock, silent, for minutes."""

    def __init__(self, cluster: LocalCluster, *, after: float) -> None:
        self._cluster, self._after = cluster, after
        self._looked = time.monotonic()
        self._used = dict[int, float]()

    def look(self) -> None:
        """Look at the workers, not more often than is useful."""
        if time.monotonic() - self._looked < self._after / 3:
            return
        self._looked = time.monotonic()
        used = dict[int, float]()
        for pid in self._silent():
            with suppress(psutil.Error, OSError):
                used[pid] = sum(psutil.Process(pid).cpu_times()[:2])
                if used[pid] == self._used.get(pid):
                    os.kill(pid, signal.SIGKILL)
        self._used = used

    def _silent(self) -> list[int]:
        scheduler: Any = self._cluster.scheduler  # in this process
        workers, now = dict(scheduler.workers), time.time()
        states = [(nanny.pid, workers.get(nanny.worker_address)) for nanny in list(self._cluster.workers.values())]
        return [pid for pid, state in states if pid and state and now - state.last_seen > self._after]
