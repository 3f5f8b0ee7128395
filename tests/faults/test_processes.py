"""Workers, drivers and schedulers that die, hang, come back and come and go: the same bits as one process."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest
from harness import (
    LEAF,
    ROWS,
    SHARD,
    Cluster,
    Faults,
    Found,
    current,
    files,
    found,
    leaf_count,
    leaves_of,
    one_process,
    receipts,
    run_fit,
    seeds,
    some_seeds,
    start,
    wait_until,
    write_job,
)

from dorff.engine import Engine, SerialEngine, Task, open_engine
from dorff.engine.base import Done
from dorff.errors import GateError
from dorff.fit import fit
from dorff.passes import PassSums
from dorff.plan import freeze_constants, make_plan
from dorff.spec.cluster import LocalCluster
from dorff.spec.reader import load_job

Record = Callable[..., None]
pytestmark = [
    pytest.mark.process,
    # Dask leaves the connection to a worker that was killed to the garbage collector.
    pytest.mark.filterwarnings(r"ignore:unclosed <ssl\.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:Exception ignored in. <ssl\.SSLSocket:pytest.PytestUnraisableExceptionWarning"),
]
SHARDS = -(-ROWS // SHARD)
READ = r"sea\.zarr/x/c/"
LOCAL = {"type": "local", "workers": 2}
FINE = 1024
BLOCK = 2048  # rows that are read at a time


@dataclass(frozen=True)
class Crew:
    """Two workers that several tests share, and the faults that they meet."""

    engine: Engine
    faults: Faults


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    faults = Faults(tmp_path_factory.mktemp("faults"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in faults.environment.items():
            patch.setenv(name, value)
        with open_engine(LocalCluster(workers=2)) as engine:
            yield Crew(engine, faults)


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


def redone(log: Faults, name: str = "log") -> float:
    """Rows read more often than once, in leaves' first sizes; `name` counts the openings of x's shards, one a read."""
    return round((log.logged(name) - SHARDS) * SHARD / LEAF, 2)


def at_percent(job: Path, percent: int) -> int:
    """That share of the fine leaves, but not none and not all."""
    count = leaf_count(job, FINE)
    return min(max(round(count * percent / 100), 1), count - 1)


@pytest.fixture(scope="module")
def fine_truth(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The truth of small leaves, of which there are many."""
    return one_process(tmp_path_factory.mktemp("fine"), store, leaf=FINE)


@pytest.mark.parametrize("seed", some_seeds(1, 4))
@pytest.mark.parametrize("do", ["SIGKILL", "segfault"])
@pytest.mark.usefixtures("small_leaves")
def test_a_worker_that_dies_in_mid_leaf_costs_that_leaf(
    do: str, seed: int, crew: Crew, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    name, shard = f"{do}-{seed}", np.random.default_rng(seed).integers(SHARDS)
    crew.faults.add(f"{name}-log", READ, "log")
    crew.faults.add(name, rf"{READ}{shard}/", do)
    job = write_job(tmp_path, store)
    report = fit(load_job(job), engine=crew.engine)
    assert len(crew.faults.hits(name)) >= 2, "the worker did not die in the leaf, or nobody read it again"
    again = redone(crew.faults, f"{name}-log")
    # The leaf itself; and, on a busy machine, leaves that the worker had done and not told of yet.
    assert report.rows_used == ROWS and 0 < again < 4
    record_fault(f"worker {do} in mid-leaf", 1, "same bits", *found(job).against(truth), f"{again} leaves")
    for each in (name, f"{name}-log"):
        crew.faults.remove(each)


class _Twice(Engine):
    """Runs every task in two processes at once, as a scheduler may that has lost sight of a worker."""

    threads = 2

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        waiting = list(tasks)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            while waiting:
                task = waiting.pop(0)
                first, second = (pool.submit(task.function, *task.arguments) for _ in range(2))
                result = first.result()
                second.result()
                waiting[:0] = done(task, result)


@pytest.mark.usefixtures("small_leaves")
def test_leaves_that_run_twice_count_once(store: Path, truth: Found, tmp_path: Path, record_fault: Record) -> None:
    job = write_job(tmp_path, store)
    fit(load_job(job), engine=_Twice())
    record_fault(
        "duplicate execution of a leaf", leaf_count(job), "same bits", *found(job).against(truth), "every leaf"
    )


LATE = """
import pickle, sys
sums, dataset, leaf = pickle.load(open(sys.argv[1], "rb"))
sums.leaf(dataset, leaf)
"""


@pytest.mark.parametrize("at", ["nodes", pytest.param("receipts", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_leaves")
def test_a_zombie_that_writes_after_its_leaf_was_redone_changes_nothing(
    at: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """It stops as it begins to write its partial, or its receipt, and goes on when all is over."""
    job = write_job(tmp_path, store)
    plan = make_plan(load_job(job))
    this = freeze_constants(plan)
    leaf = plan.leaves[3]
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((PassSums.at(this), plan.dataset, leaf)))
    faults.add("stop", f"/{at}/.*000003", "SIGSTOP", where="any")
    zombie = subprocess.Popen([sys.executable, "-c", LATE, str(task)], env={**os.environ, **faults.environment})
    try:
        faults.wait("stop")
        fit(load_job(job), engine=SerialEngine())
        before = {path: path.stat().st_mtime_ns for path in files(tmp_path, "runs/*/*/*")}
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(60) == 0
    finally:
        zombie.kill()
    after = {path: path.stat().st_mtime_ns for path in files(tmp_path, "runs/*/*/*")}
    assert before != after, "the zombie wrote nothing"
    lost, twice = found(job).against(truth)
    fit(load_job(job), engine=SerialEngine())
    assert found(job).against(truth) == (lost, twice) == (0, 0)
    record_fault(f"zombie worker that writes late ({at})", 1, "same bits", lost, twice, "1 leaf")


@pytest.mark.parametrize("percent", [50, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 99))])
def test_a_killed_driver_goes_on_from_its_receipts(
    percent: int, faults: Faults, store: Path, fine_truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """One process is driver and worker, killed as it begins to write a receipt; the same of a cluster below."""
    job = write_job(tmp_path, store)
    wanted = at_percent(job, percent)
    faults.add("kill", r"/receipts/\.", "SIGKILL", where="driver", skip=wanted)
    killed = run_fit(job, faults=faults, leaf=FINE)
    assert killed.code == -signal.SIGKILL and receipts(tmp_path) == wanted and not current(tmp_path)
    with leaves_of(FINE):
        report = fit(load_job(job), engine=SerialEngine())
    assert report.leaves_reused == wanted
    lost, twice = found(job, leaf=FINE).against(fine_truth)
    record_fault(f"driver SIGKILL at {percent}% (one process)", 1, "same bits", lost, twice, "1 leaf")


@pytest.mark.usefixtures("small_leaves")
def test_a_leaf_that_always_kills_its_worker_is_quarantined_and_named(
    crew: Crew, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job = write_job(tmp_path, store)
    crew.faults.add("poison", rf"{READ}20/", "SIGKILL", times=0)
    with pytest.raises(GateError) as caught:
        fit(load_job(job), engine=crew.engine)
    crew.faults.remove("poison")
    tries = len(set(crew.faults.hits("poison")))
    assert receipts(tmp_path) == leaf_count(job) - 1 and not current(tmp_path)
    assert "leaf 2" in str(caught.value), str(caught.value)
    result = caught.value.result
    assert (result["outcome"], result["model"]) == ("refused", None) and "leaf 2" in str(result["reasons"])
    assert tries == 3
    fit(load_job(job), engine=SerialEngine())
    record_fault(
        "leaf that always kills its worker", tries, "leaf named, others finished, not published; mended: same bits",
        *found(job).against(truth), f"{tries} tries of the leaf",
    )  # fmt: skip


@pytest.mark.parametrize("cluster", ["serial", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_leaves")
def test_sigterm_stops_at_a_block_and_resume_loses_at_most_one(
    cluster: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    where, workers = ("driver", 1) if cluster == "serial" else ("worker", 2)
    job = write_job(tmp_path, store, cluster={"type": cluster})
    faults.add("log", rf"{READ}(?![0-7]/)", "log", where=where)  # not the first leaf, which is read for the plan too
    faults.add("slow", READ, "sleep", amount=0.02, where=where)
    with start("fit", job, "--json", faults=faults) as running:
        wait_until(lambda: receipts(tmp_path) >= 4, what="the fourth receipt")
        # Each worker is halted where it opens a leaf's first file. The signal then has a block's 1.2 s to arrive in.
        firsts = "|".join(map(str, range(0, SHARDS, LEAF // SHARD)))
        faults.add("slow", READ, "sleep", amount=0.15, where=where)
        faults.add("stop", rf"{READ}({firsts})/", "SIGSTOP", where=where, times=workers)
        faults.wait("stop", workers)
        halted = [psutil.Process(pid) for pid in faults.hits("stop")[:workers]]
        wait_until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in halted), what="the halt")
        before = faults.logged("log")
        for process in halted:
            process.resume()
        running.signal(signal.SIGTERM)
        ended = running.end()
    assert ended.code == 5
    faults.remove("slow")
    # No more than the rest of a leaf's block and what is ahead.
    assert faults.logged("log") - before <= workers * 2 * LEAF // SHARD, "it went on to another leaf"
    assert files(tmp_path, "runs/*/checkpoints/*"), "nothing was saved of the leaf that was stopped"
    assert not current(tmp_path)
    assert run_fit(job, faults=faults).code == 0
    lost, twice = found(job).against(truth)
    read = faults.logged("log")
    shutil.rmtree(tmp_path / "models")
    assert run_fit(job, faults=faults).code == 0  # every sum is there: what is read now judges the fit
    again = (2 * read - faults.logged("log") - (SHARDS - 8)) * SHARD
    assert -BLOCK < again <= workers * BLOCK, "more than a block of each leaf that was stopped was read again"
    record_fault(
        f"SIGTERM with 20 s notice ({cluster})", 1, "exit 5, then same bits", lost, twice, f"{again} rows read"
    )


@pytest.mark.slow
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_killed_driver_of_a_local_cluster_goes_on_from_its_receipts(
    percent: int, faults: Faults, store: Path, fine_truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job = write_job(tmp_path, store, cluster=LOCAL)
    wanted = at_percent(job, percent)
    faults.add("log", READ, "log")
    faults.add("slow", READ, "sleep", amount=0.005)
    with start("fit", job, "--json", faults=faults, leaf=FINE) as running:
        wait_until(lambda: receipts(tmp_path) >= wanted, what=f"receipt {wanted}")
        workers = psutil.Process(running.process.pid).children(recursive=True)
        running.kill()
        psutil.wait_procs(workers, timeout=600)  # they find out by themselves, and finish what they are at
    kept = receipts(tmp_path)
    assert kept >= wanted and not current(tmp_path)
    report = run_fit(job, leaf=FINE, faults=faults).report
    assert report["leaves_reused"] >= kept
    lost, twice = found(job, leaf=FINE).against(fine_truth)
    again = redone(faults) * LEAF / FINE
    assert again <= 8, "more than the two tasks that each worker held, done by orphans and by the next run"
    record_fault(f"driver SIGKILL at {percent}% (two workers)", 1, "same bits", lost, twice, f"{again:g} leaves")


@pytest.mark.slow
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_killed_scheduler_is_started_again_and_the_fit_goes_on(
    percent: int, faults: Faults, store: Path, fine_truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    faults.add("log", READ, "log")
    faults.add("slow", READ, "sleep", amount=0.01)
    with Cluster(faults) as cluster:
        cluster.start_workers(2)
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        wanted = at_percent(job, percent)
        with start("fit", job, "--json", faults=faults, leaf=FINE) as running:
            wait_until(lambda: receipts(tmp_path) >= wanted, what=f"receipt {wanted}")
            cluster.kill_scheduler()
            ended = running.end(timeout=600)
        assert ended.code == 5, ended
        assert not current(tmp_path)
        cluster.start_scheduler()
        cluster.start_workers(2)
        report = run_fit(job, leaf=FINE, faults=faults).report
    assert report["leaves_reused"] >= wanted
    lost, twice = found(job, leaf=FINE).against(fine_truth)
    again = redone(faults) * LEAF / FINE
    record_fault(
        f"scheduler SIGKILL at {percent}%", 1, "exit 5, run again: same bits", lost, twice, f"{again:g} leaves"
    )


@pytest.mark.slow
@pytest.mark.parametrize("at", [rf"{READ}40/", r"/nodes/\.", r"/receipts/\."])
def test_a_stopped_worker_is_given_up_and_does_no_harm_when_it_goes_on(
    at: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """SIGSTOP in mid-leaf, or as it begins to write; its leaf is redone elsewhere, then SIGCONT: it writes late."""
    faults.add("log", READ, "log")
    with Cluster(faults, ttl=15) as cluster:
        cluster.start_workers(2)
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        skip = 0 if at.startswith(READ) else 1  # a leaf opens this shard once
        faults.add("stop", at, "SIGSTOP", skip=skip)
        ended = run_fit(job, faults=faults)
        assert ended.code == 0, ended.err
        zombie = psutil.Process(faults.wait("stop", skip + 1))
        assert zombie.status() == psutil.STATUS_STOPPED
        before = found(job).against(truth)
        written = {path: path.stat().st_mtime_ns for path in files(tmp_path, "runs/*/[nr]*/*")}
        zombie.resume()
        time.sleep(3)
        late = {path: path.stat().st_mtime_ns for path in files(tmp_path, "runs/*/[nr]*/*")} != written
        assert run_fit(job, faults=faults).code == 0
    assert found(job).against(truth) == before
    what = "mid-leaf" if at.startswith(READ) else at.split("/")[1]
    record_fault(
        f"worker SIGSTOP at {what}, SIGCONT after the fit", 1, f"same bits{', wrote late' if late else ''}", *before,
        f"{redone(faults)} leaves",
    )  # fmt: skip


@pytest.mark.slow
def test_workers_come_and_go_during_the_fit(
    faults: Faults, store: Path, fine_truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """1 -> 4 -> 2."""
    faults.add("log", READ, "log")
    faults.add("slow", READ, "sleep", amount=0.1)
    with Cluster(faults) as cluster:
        cluster.start_workers(1)
        cluster.wait_for_workers(1)
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        with start("fit", job, "--json", faults=faults, leaf=FINE) as running:
            wait_until(lambda: receipts(tmp_path) >= at_percent(job, 15), what="the first receipts")
            faults.add("slow", READ, "sleep", amount=5)  # until the others are there
            cluster.start_workers(3)
            cluster.wait_for_workers(4)
            wait_until(lambda: len(set(faults.logged_by("log"))) == 4, what="a part in it of the workers that came")
            faults.add("slow", READ, "sleep", amount=0.1)
            wait_until(lambda: receipts(tmp_path) >= at_percent(job, 70), what="most receipts")
            cluster.workers[0].terminate()
            cluster.workers[1].kill()
            ended = running.end()
        assert ended.code == 0, ended.err
    lost, twice = found(job, leaf=FINE).against(fine_truth)
    again = redone(faults) * LEAF / FINE
    record_fault("workers 1 -> 4 -> 2", 1, "same bits", lost, twice, f"{again:g} leaves")


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_workers_of_short_life_get_the_work_done(
    seed: int, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """Lives of 6 s in the mean, three of four ended by SIGTERM, of leaves that take about 3 s; a new one each time."""
    rng = np.random.default_rng(seed)
    faults.add("log", READ, "log")
    faults.add("slow", READ, "sleep", amount=0.3)
    ends = [0, 0]
    with Cluster(faults) as cluster:
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        until = dict.fromkeys(cluster.start_workers(2), time.monotonic() + 8.0)
        code, runs = 5, 0
        while code in (5, 6):  # 6: a leaf whose workers were killed again and again is taken for their killer
            runs += 1
            assert runs <= 10
            with start("fit", job, "--json", faults=faults) as running:
                while running.process.poll() is None:
                    time.sleep(0.05)
                    for worker, end in list(until.items()):
                        if time.monotonic() > end or worker.poll() is not None:
                            hard = rng.random() < 0.25
                            ends[hard] += 1
                            worker.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
                            del until[worker]
                            until[cluster.start_workers(1)[0]] = time.monotonic() + 3 + rng.exponential(6.0)
                ended = running.end()
            code = ended.code
        assert code == 0, ended.err
    assert sum(ends) >= 4
    lost, twice = found(job).against(truth)
    record_fault(
        f"workers of 6 s mean life (SIGTERM {ends[0]}, SIGKILL {ends[1]})", sum(ends), f"same bits, {runs} run(s)",
        lost, twice, f"{redone(faults)} leaves",
    )  # fmt: skip
