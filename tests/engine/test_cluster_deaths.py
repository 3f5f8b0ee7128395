"""Schedulers that die, hang and come back, and workers that are told to end, in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster
from processes import LOOPBACK, scheduler, until, worker

from dorff.engine import Engine, Task, open_engine
from dorff.engine.dask import DaskEngine
from dorff.errors import IncompleteError, StoppedError
from dorff.errors.stopping import stop_requested
from dorff.spec import cluster as spec

pytestmark = pytest.mark.process


def run(engine: Engine, *tasks: Task) -> list[Any]:
    found: list[Any] = []

    def done(_task: Task, result: Any) -> tuple[Task, ...]:
        found.append(result)
        return ()

    engine.run(tasks, done)
    return found


@pytest.mark.slow
def test_a_scheduler_that_never_speaks_is_said_so(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (started, address):
        os.kill(started.pid, signal.SIGSTOP)
        with (
            pytest.raises(IncompleteError, match="its scheduler does not answer"),
            open_engine(spec.RemoteCluster(address=address), patience=1.0),
        ):
            pass


def test_an_engine_is_closed_whatever_its_client_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be done at the end is done in the few seconds that a signal leaves, though the scheduler hangs; and
    where the client fails or is interrupted."""
    closed = list[float]()
    with scheduler(tmp_path) as (started, address):
        os.kill(started.pid, signal.SIGCONT)
        engine = DaskEngine(Client(address), on_close=lambda: closed.append(time.monotonic()))
        os.kill(started.pid, signal.SIGSTOP)
        began = time.monotonic()
        engine.close()
        assert closed[0] - began < 5
        os.kill(started.pid, signal.SIGCONT)
        with Client(address) as client:
            engine = DaskEngine(client, on_close=lambda: closed.append(time.monotonic()))

            def interrupted(timeout: float) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(client, "close", interrupted)
                engine.close()
            assert len(closed) == 2


def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.slow
def test_workers_of_an_adaptive_cluster_come_and_go_in_a_run() -> None:
    """None at first, nor between two runs; more while there is much to do, and not all tasks are one worker's."""
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None) as cluster:
        cluster.adapt(minimum=0, maximum=3, interval="200ms", wait_count=2, target_duration="1s")
        counts = set[int]()
        with open_engine(spec.RemoteCluster(address=cluster.scheduler_address)) as engine:
            thread = threading.Thread(
                target=lambda: [counts.add(engine.threads) or time.sleep(0.2) for _ in range(100)]
            )
            thread.start()
            pids = run(engine, *(Task(slow, (1.0,)) for _ in range(24)))
            assert len(pids) == 24 and len(set(pids)) > 1
            thread.join()
            until(lambda: not cluster.scheduler_info["workers"])
            assert run(engine, Task(slow, (0.0,)))
        assert max(counts) > 1


def test_a_cluster_that_is_busy_with_others_is_waited_for(tmp_path: Path) -> None:
    """Longer than one without workers is."""
    with scheduler(tmp_path) as (_, address), worker(address, tmp_path, "--no-nanny"), Client(address) as other:
        theirs = other.submit(slow, 6.0)
        with open_engine(spec.RemoteCluster(address=address), patience=2.0) as engine:
            assert run(engine, Task(slow, (0.0,))) and theirs.done()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler without workers, that forgives no death."""
    with scheduler(tmp_path, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as (_, address):
        yield address


def wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_scheduler_ends_a_run(number: int, tmp_path: Path) -> None:
    with scheduler(tmp_path) as (started, address), worker(address, tmp_path, "--no-nanny"):
        with open_engine(spec.RemoteCluster(address=address)) as engine:  # as patient as a job is
            thread = threading.Thread(target=lambda: (until((tmp_path / "task").exists), os.kill(started.pid, number)))
            thread.start()
            began = time.monotonic()
            with pytest.raises(IncompleteError, match="the cluster's scheduler did not answer for"):
                run(engine, Task(wait, (str(tmp_path / "task"),)))
        assert time.monotonic() - began < 400  # a minute, and the time to close; the task takes ten
        thread.join()


@pytest.mark.slow
def test_a_scheduler_that_comes_back_goes_on(tmp_path: Path) -> None:
    """As a service that its supervisor starts again, with other workers: what was lost is sent again."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = str(probe.getsockname()[1])
    with (
        scheduler(tmp_path, "--port", port) as (first, address),
        worker(address, tmp_path, "--no-nanny"),
        open_engine(spec.RemoteCluster(address=address)) as engine,
    ):
        results: list[Any] = []
        task = Task(first_time, (str(tmp_path / "task"),))
        thread = threading.Thread(target=lambda: results.extend(run(engine, task)))
        thread.start()
        until((tmp_path / "task").exists)
        first.kill()
        with scheduler(tmp_path, "--port", port), worker(address, tmp_path, "--no-nanny"):
            thread.join(timeout=600)
            assert results == ["again"]


def first_time(path: str) -> str:
    if Path(path).exists():
        return "again"
    wait(path)
    return "never"


def until_told(path: str) -> str:
    """Work for ten minutes or until told to stop: then save, which takes a second. The next one goes on from there."""
    if Path(path + ".saved").exists():
        return "went on"
    Path(path).write_text(str(os.getpid()))
    for _ in range(6000):
        time.sleep(0.1)
        if stop_requested():
            time.sleep(1)
            Path(path + ".saved").touch()
            raise StoppedError("told to")
    return "never told"


@pytest.mark.slow
@pytest.mark.parametrize("nanny", ["--nanny", "--no-nanny"])
@pytest.mark.parametrize("whom", ["service", "task"])
def test_sigterm_to_a_clusters_worker_lets_its_leaf_save(nanny: str, whom: str, plain: str, tmp_path: Path) -> None:
    """To the process that was started, as Kubernetes does, or to that of the task, as Slurm does too."""
    path = tmp_path / "task"
    with (
        worker(plain, tmp_path, nanny) as first,
        open_engine(spec.RemoteCluster(address=plain)) as engine,
        worker(plain, tmp_path, nanny),
        Client(plain) as client,
    ):
        client.wait_for_workers(2, timeout=600)
        told = list[int]()

        def end() -> None:
            until(lambda: path.exists() and path.read_text())
            task = psutil.Process(int(path.read_text()))
            service = task.parent() if nanny == "--nanny" else task
            told.append(task.pid)
            os.kill((service or task).pid if whom == "service" else task.pid, signal.SIGTERM)

        thread = threading.Thread(target=end)
        thread.start()
        assert run(engine, Task(until_told, (str(path),))) == ["went on"]
        thread.join()
        until(lambda: not psutil.pid_exists(told[0]) or psutil.Process(told[0]).status() == psutil.STATUS_ZOMBIE)
    assert first.poll() is not None
