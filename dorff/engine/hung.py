"""Workers of a local cluster that hang: silent, and without using the processor."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any, Final, final

import psutil
from distributed import LocalCluster

HUNG: Final = 30.0  # seconds of silence


@final
class HungWorkers:
    """Kills local workers that neither speak nor compute, so that their nannies start others.

    Dask's own `worker-ttl` counts silence alone, and a factorization of a large matrix holds Python's lock for
    minutes: that worker is silent, but computes.
    """

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
        nannies = list(self._cluster.workers.values())
        states = [(nanny.pid, workers.get(nanny.worker_address)) for nanny in nannies]
        return [pid for pid, state in states if pid and state and now - state.last_seen > self._after]
