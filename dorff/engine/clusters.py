"""From a job's `cluster:` to an engine."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import dask
from distributed import Client, LocalCluster, Worker, WorkerPlugin

from dorff import spec
from dorff.engine.base import Engine
from dorff.engine.dask import DaskEngine
from dorff.engine.serial import SerialEngine
from dorff.errors import IncompleteError

# Leaves hold what the plan says and give it all back: pausing a worker over it would only stop the fit. What Dask
# does many times a second to watch itself would take its share of the cores that the leaves fill.
_QUIET = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")} | {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": 2,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
}


@contextmanager
def open_engine(
    cluster: spec.LocalCluster | spec.SerialCluster | spec.RemoteCluster, *, patience: float = 30.0
) -> Iterator[Engine]:
    """The engine for a job's cluster, closed at the end of the block.

    A cluster that should be running has `patience` seconds to answer and to have a worker.

    A local cluster's scheduler listens on loopback alone and has no dashboard. Raises IncompleteError where a
    cluster that should be running does not answer.
    """
    if isinstance(cluster, spec.SerialCluster):
        yield SerialEngine()
        return
    engine = _remote(cluster, patience) if isinstance(cluster, spec.RemoteCluster) else _local(cluster)
    try:
        yield engine
    finally:
        engine.close()


def local_cluster(workers: int, *, memory: int | None = None) -> LocalCluster:
    """Dask workers of one thread each on this machine, reached through loopback alone; `memory` bytes a worker."""
    # Dask starts its HTTP server even without a dashboard; port 0 keeps it from clashing with another's.
    quiet_server = {"dashboard_address": "127.0.0.1:0"}
    with dask.config.set(_QUIET):
        return LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=memory, processes=True, host="127.0.0.1",
            dashboard_address=None, scheduler_kwargs=quiet_server,
            silence_logs=logging.CRITICAL,  # what a task raises is raised in the driver; not its traceback as well
        )  # fmt: skip


@final
class _StoppedByTheDriver(WorkerPlugin):
    """Ctrl-C goes to the terminal's every process; the driver alone answers it, and ends its workers."""

    name = "dorff-interrupts"

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _local(cluster: spec.LocalCluster) -> DaskEngine:
    local = local_cluster(cluster.workers, memory=cluster.memory)
    client = Client(local)
    client.register_plugin(_StoppedByTheDriver())
    return DaskEngine(client, on_close=lambda: local.close())


def _remote(cluster: spec.RemoteCluster, patience: float) -> DaskEngine:
    try:
        client = Client(cluster.address, timeout=patience)
    except (OSError, TimeoutError) as error:
        raise IncompleteError(f"cluster.address {cluster.address}: no scheduler answers there ({error})") from error
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        client.close()
        raise IncompleteError(
            f"cluster.address {cluster.address}: no workers after {patience:g} s; start some, then run again"
        ) from error
    return DaskEngine(client)
