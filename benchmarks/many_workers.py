"""The engine with up to 1000 workers, without their machines: workers inside this process, leaves that only wait.

    OMP_NUM_THREADS=1 python benchmarks/many_workers.py [--workers 1 10 100 1000] [--seconds 10] [--rounds 4]
                                                        [--churn 0.1] [--folder DIR] [--out benchmarks/results]

Scheduler, driver and workers are one process with one Python lock, so what is said of overhead is more than it is on
machines of their own. A leaf waits for `--seconds`, then writes a true partial of a tiny shape and a true receipt;
plan, tree, merges, Dask's scheduler and its messages are the real ones (`scale.py` has them with 10^9 rows).
Every worker has `--rounds` leaves. For each number of workers:

- `efficiency`: the seconds of waiting that the workers had to do, over the seconds that the run took times workers.
- `overhead_s`: seconds of this process's processor time, a task (leaves and merges).
- `tasks_per_s`: what that processor time allows one scheduler and driver to hand out; a leaf shorter than workers over
  this rate keeps workers waiting. `shortest_leaf_s` is that: with more workers, take longer leaves.
- `messages_bytes`: all tasks of the run, pickled as they are sent. `peak_bytes`: the process's memory, workers too;
  `worker_bytes` is what it grew by for each worker before the run.

With `--churn 0.1` one more run, with the most workers, loses a tenth of them a minute: every six seconds a hundredth,
without a word, and as many new ones come. `again` are leaves that began more than once; every row is counted exactly
once all the same, which the total shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import dask
import numpy as np
import psutil
from distributed import Client, LocalCluster, Worker
from scale import FakeSums, expected, hollow, plan_of

from dorff.data import Dataset
from dorff.engine.clusters import QUIET
from dorff.engine.dask import DaskEngine
from dorff.engine.worker import Leaving
from dorff.moments import Moments
from dorff.passes import Leaf, Tree
from dorff.passes import blocks as leaf_sizes
from dorff.passes.leaf import Stage
from dorff.plan import freeze_constants
from dorff.store import Receipt

ROWS_A_LEAF = 1000
BEGUN: Counter[int] = Counter()
WAIT = 0.0


@final
class WaitingSums(Stage):
    """Fake leaves that take a while and no processor."""

    def leaf(self, source: Dataset, leaf: Leaf) -> Receipt:
        BEGUN[leaf.number] += 1
        time.sleep(WAIT)
        return FakeSums.at(self).leaf(source, leaf)


class Churn(threading.Thread):
    """Takes workers away without a word, and puts new ones in their place."""

    def __init__(self, cluster: LocalCluster, share: float, every: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._each, self._every = cluster, share * every / 60, every
        self._over, self.lost = threading.Event(), 0
        self._random = random.Random(0)

    def run(self) -> None:
        while not self._over.wait(self._every):
            self._cluster.sync(self._replace)

    async def _replace(self) -> None:
        scheduler = self._cluster.scheduler
        workers = sorted(scheduler.workers)
        count = max(1, round(self._each * len(workers)))
        for address in self._random.sample(workers, min(count, len(workers) - 1)):
            await scheduler.remove_worker(address, stimulus_id="churn", close=True)
            self.lost += 1
        new = [Worker(scheduler.address, nthreads=1, dashboard=False, heartbeat_interval="10s") for _ in range(count)]
        await asyncio.gather(*new)

    def stop(self) -> None:
        self._over.set()
        self.join()


async def _stay(_plugin: Leaving, worker: Worker) -> None:
    """A worker that ends says so to its whole process, in which there are others here."""


def measure(folder: Path, workers: int, rounds: int, wait: float, churn: float) -> dict[str, Any]:
    """One run with so many workers."""
    global WAIT
    WAIT = wait
    Leaving.teardown = _stay  # type: ignore[method-assign]
    process = psutil.Process()
    leaves = workers * rounds
    leaf_sizes.SMALLEST_LEAF = leaf_sizes.LARGEST_LEAF = ROWS_A_LEAF
    home = folder / f"{workers}-{churn:g}"
    hollow(home / "rows.zarr", leaves * ROWS_A_LEAF, ROWS_A_LEAF)
    plan = plan_of(home, "rows.zarr", "state", 64, 1)  # the plan counts workers to this machine
    BEGUN.clear()
    before = process.memory_info().rss
    total = None
    settings = QUIET | {"distributed.scheduler.allowed-failures": 3, "distributed.comm.timeouts.connect": "600s"}
    settings |= {f"distributed.admin.{name}.interval": "600s" for name in ("tick", "system-monitor")}  # of one process
    with (
        suppress(TimeoutError),  # of the end: threads of workers that were lost still wait, and end with this process
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit=None
        ) as cluster,
        Client(cluster.scheduler_address) as client,  # not the cluster: its nannies would be asked
    ):
        client.wait_for_workers(workers, timeout=300)
        grown = process.memory_info().rss - before
        tree = Tree(WaitingSums.at(freeze_constants(plan)), plan.dataset, plan.leaves, kept=plan.costs.kept_level)
        tasks, sizes = tree.start(), [0, 0]
        leaves = len(plan.leaves)

        def counted(some: Sequence[Any]) -> Sequence[Any]:
            sizes[0] += len(some)
            sizes[1] += sum(len(pickle.dumps((task.function, task.arguments))) for task in some)
            return some

        thread = Churn(cluster, churn, 6.0) if churn else None
        began, cpu = time.perf_counter(), process.cpu_times()
        if thread is not None:
            thread.start()
        DaskEngine(client, patience=120).run(counted(tasks), lambda task, done: counted(tree.done(task, done)))
        seconds, used = time.perf_counter() - began, process.cpu_times()
        if thread is not None:
            thread.stop()
        total = tree.total(Moments)
    assert total is not None, "the run was not done in time"
    spent = used.user + used.system - cpu.user - cpu.system
    return {
        "workers": workers, "churn": churn, "leaves": leaves, "tasks": sizes[0], "run_s": seconds,
        "efficiency": leaves * WAIT / workers / seconds, "overhead_s": spent / sizes[0],
        "tasks_per_s": sizes[0] / spent, "shortest_leaf_s": workers * spent / leaves,
        "messages_bytes": sizes[1], "worker_bytes": grown / workers,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "lost_workers": 0 if thread is None else thread.lost,
        "again": sum(BEGUN.values()) - len(BEGUN), "missing": len(tree.missing()),
        "right_total": bool(np.array_equal(total[0, ""].full, expected(leaves))),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    """Run each number of workers without losses, the largest with them too; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--churn", type=float, default=0.1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for workers, churn in [*((one, 0.0) for one in options.workers), (max(options.workers), options.churn)]:
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # memory and time of this run alone
                work = (Path(folder), workers, options.rounds, options.seconds, churn)
                table.append(alone.submit(measure, *work).result())
            print(json.dumps(table[-1]), flush=True)
    results = {"leaf_s": options.seconds, "rounds": options.rounds, "cores": os.cpu_count(), "runs": table}
    (options.out / "many_workers.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
