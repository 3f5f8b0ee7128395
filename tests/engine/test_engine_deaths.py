"""Workers that die, hang, or are told to end; storage that fails; and drivers that are stopped: nothing hangs."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dask import config as dask_config
from distributed import Client, Worker
from processes import until

from dorff.engine import Engine, SerialEngine, Task, dask, stopping_on_signals
from dorff.engine.base import Stop
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.engine.worker import Leaving
from dorff.errors import CorruptError, DorffError, IncompleteError, InputError, QuarantineError, StoppedError
from dorff.errors.stopping import clear_stop, stop_requested


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(params=["serial", "dask"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return SerialEngine() if request.param == "serial" else DaskEngine(request.getfixturevalue("client"))


def run(engine: Engine, *tasks: Task, then: Callable[[Task], list[Task]] = lambda _: []) -> dict[Any, Any]:
    """Run tasks; their results by tag, each told once."""
    results: dict[Any, Any] = {}

    def done(task: Task, result: Any) -> list[Task]:
        assert task.tag not in results
        results[task.tag] = result
        return then(task)

    try:
        engine.run(tasks, done)
    except QuarantineError as error:
        error.add_note(repr(results))
        raise
    return results


def mark(path: str) -> int:
    """Leave a mark in a file; how many there are."""
    with Path(path).open("a") as file:
        file.write("x")
    return len(Path(path).read_text())


def calmly(path: str) -> int:
    time.sleep(0.05)
    return mark(path)


def die(path: str) -> None:
    mark(path)
    os.kill(os.getpid(), signal.SIGKILL)


def crash(path: str) -> None:
    mark(path)
    ctypes.string_at(0)


@pytest.mark.process
def test_a_task_that_always_kills_its_worker_is_left_out_and_named(client: Client, tmp_path: Path) -> None:
    tasks = [Task(calmly, (str(tmp_path / f"{number}"),), number) for number in range(12)]
    tasks.insert(3, Task(die, (str(tmp_path / "killer"),), "killer", "leaf 7, rows 0..9"))
    after = Task(calmly, (str(tmp_path / "after"),), "after")
    seen: list[Any] = []

    def then(task: Task) -> list[Task]:
        seen.append(task.tag)
        return [after] if task.tag in (0, "killer") else []

    with pytest.raises(QuarantineError, match=r"tasks killed their worker.*: leaf 7, rows 0\.\.9;") as caught:
        run(DaskEngine(client), *tasks, then=then)
    assert caught.value.tags == ("killer",)
    assert sorted(map(str, seen)) == sorted([*map(str, range(12)), "after"])
    assert (tmp_path / "killer").read_text() == "xxx"  # once in the crowd, twice alone


def die_twice(path: str) -> str:
    if mark(path) <= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_long_in_coming_back_is_waited_for(workers: int, tmp_path: Path) -> None:
    """As on a busy machine, longer than Dask waits: here it would wait for next to nothing."""
    tasks = [Task(die_once, (str(tmp_path / str(number)),), number) for number in range(2 * workers)]
    with dask_config.set({"distributed.deploy.lost-worker-timeout": "1ms"}), local_cluster(workers) as cluster:
        with Client(cluster, set_as_default=False) as client:
            assert run(DaskEngine(client, patience=300.0), *tasks) == {task.tag: "done" for task in tasks}
        assert len(cluster.workers) == workers


def die_once(path: str) -> str:
    if mark(path) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@pytest.mark.slow
def test_a_task_whose_worker_dies_twice_is_not_left_out(client: Client, tmp_path: Path) -> None:
    assert run(DaskEngine(client), Task(die_twice, (str(tmp_path / "task"),), "task")) == {"task": "done"}


@pytest.mark.slow
def test_deaths_that_dask_forgives_count(tmp_path: Path) -> None:
    """Of a cluster of the user's own: Dask reports after four deaths, and again after four alone."""
    with local_cluster(1) as cluster, Client(cluster) as client, pytest.raises(QuarantineError) as caught:
        cluster.scheduler.allowed_failures = 3
        tasks = [Task(calmly, (str(tmp_path / f"{number}"),), number) for number in range(3)]
        run(DaskEngine(client), Task(die, (str(tmp_path / "killer"),), "killer"), *tasks)
    assert caught.value.tags == ("killer",)
    assert (tmp_path / "killer").read_text() == "x" * 8
    # A worker that dies with a task's answer has that task run again: each of eight deaths can lose no more than one.
    again = [len((tmp_path / f"{number}").read_text()) - 1 for number in range(3)]
    assert min(again) >= 0 and sum(again) <= 8


def die_later(path: str) -> None:
    time.sleep(16)  # three deaths take longer than the engine's patience, each less than half of it
    die(path)


@pytest.mark.slow
def test_workers_that_die_before_anybody_looks_are_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killer's workers may live for less than the time between two looks; the run is not without workers then."""
    monkeypatch.setattr(dask, "count_threads", lambda client: 0)
    with local_cluster(1) as cluster, Client(cluster) as client, pytest.raises(QuarantineError) as caught:
        run(DaskEngine(client, patience=45.0), Task(die_later, (str(tmp_path / "killer"),), "killer"))
    assert caught.value.tags == ("killer",)


@pytest.mark.slow
def test_several_killers_among_many_are_found_and_nobody_else(tmp_path: Path) -> None:
    tasks = [Task(calmly, (str(tmp_path / f"{number}"),), number) for number in range(60)]
    tasks.insert(10, Task(die, (str(tmp_path / "killed"),), "killed"))
    tasks.insert(30, Task(crash, (str(tmp_path / "crashed"),), "crashed"))
    with local_cluster(3) as cluster, Client(cluster) as client, pytest.raises(QuarantineError) as caught:
        run(DaskEngine(client), *tasks)
    assert sorted(caught.value.tags) == ["crashed", "killed"]
    assert all((tmp_path / f"{number}").exists() for number in range(60))
    assert {(tmp_path / name).read_text() for name in caught.value.tags} == {"xxx"}


def fail(path: str, times: int, error: Exception) -> str:
    if mark(path) <= times:
        raise error
    return "done"


def storage(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path / "shard"))


@pytest.mark.process
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOENT])
def test_storage_that_fails_twice_is_tried_again(engine: Engine, number: int, tmp_path: Path) -> None:
    flaky = Task(fail, (str(tmp_path / "tries"), 2, storage(number, tmp_path)), "flaky")
    others = [Task(mark, (str(tmp_path / name),), name) for name in "ab"]
    assert run(engine, flaky, *others) == {"flaky": "done", "a": 1, "b": 1}


@pytest.mark.process
@pytest.mark.parametrize(
    "error, expected, message, tries",
    [
        (errno.EIO, IncompleteError, r"shard: .*3 times over.*run the same command again", 3),
        (errno.ENOSPC, IncompleteError, "shard: no space left on the disk", 1),
        (errno.EDQUOT, IncompleteError, "shard: no space left on the disk", 1),
        (errno.EACCES, InputError, "shard: Permission denied; check", 1),
        (CorruptError("leaf 3: memory or processor faulty"), CorruptError, "leaf 3", 3),
        (InputError("row 7 is bad"), InputError, "row 7", 1),
    ],
)
def test_what_goes_on_failing_ends_the_run(
    engine: Engine, error: int | DorffError, expected: type[Exception], message: str, tries: int, tmp_path: Path
) -> None:
    raised = storage(error, tmp_path) if isinstance(error, int) else error
    with pytest.raises(expected, match=message) as caught:
        run(engine, Task(fail, (str(tmp_path / "tries"), 99, raised)))
    assert type(caught.value) is expected
    assert (tmp_path / "tries").read_text() == "x" * tries


def until_told(path: str) -> str:
    """Work for ten minutes, or until told to stop: then save. A second run goes on from there."""
    mark(path)
    if Path(path + ".saved").exists():
        return "went on"
    for _ in range(6000):
        time.sleep(0.1)
        if stop_requested():
            mark(path + ".saved")
            raise StoppedError("told to")
    return "never told"


def once(path: Path, action: Callable[[], object]) -> threading.Thread:
    """Do something as soon as a file is there."""

    def watch() -> None:
        until = time.monotonic() + 600
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.process
@pytest.mark.parametrize("number, expected", [(signal.SIGTERM, StoppedError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_stops_a_run_when_its_tasks_have_saved(
    engine: Engine, number: int, expected: type[BaseException], tmp_path: Path
) -> None:
    tasks = [Task(until_told, (str(tmp_path / f"{one}"),), one) for one in range(4)]
    before = signal.getsignal(number)
    thread = once(tmp_path / "0", lambda: os.kill(os.getpid(), number))
    began = time.monotonic()
    with pytest.raises(expected):
        run(engine, *tasks)
    assert time.monotonic() - began < 300 and signal.getsignal(number) is before and not stop_requested()
    assert (tmp_path / "0.saved").read_text() == "x"
    thread.join()
    assert run(engine, tasks[0]) == {0: "went on"}, "workers that outlive a stopped run work for the next one"


@pytest.mark.process
@pytest.mark.parametrize("number, expected", [(signal.SIGTERM, StoppedError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_during_the_last_task_is_not_swallowed(
    engine: Engine, number: int, expected: type[BaseException], tmp_path: Path
) -> None:
    def end(_: Task) -> list[Task]:
        os.kill(os.getpid(), number)
        return []

    before = signal.getsignal(number)
    with pytest.raises(expected):
        run(engine, Task(mark, (str(tmp_path / "task"),)), then=end)
    assert signal.getsignal(number) is before and not stop_requested()


def deaf(path: str) -> None:
    mark(path)
    time.sleep(600)


@pytest.mark.process
def test_a_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

    thread = once(tmp_path / "task", twice)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(SerialEngine(), Task(deaf, (str(tmp_path / "task"),)))
    assert time.monotonic() - began < 300
    thread.join()


def test_an_error_does_not_swallow_a_signal() -> None:
    """The error may be what the signal did to others; whoever tries again after one must not go on."""
    with pytest.raises(StoppedError), stopping_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("a worker is gone")
    with pytest.raises(RuntimeError), stopping_on_signals():
        raise RuntimeError("a worker is gone")


def test_two_signals_at_once_are_one() -> None:
    """`timeout` sends its own to the process, and then to the group that it is in."""
    with pytest.raises(StoppedError), stopping_on_signals():
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert stop_requested()


def test_signals_are_one_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, now, interrupted = Stop(), [0.0], []
    monkeypatch.setattr("dorff.engine.base.time", SimpleNamespace(monotonic=lambda: now[0]))
    for now[0] in (10.0, 10.0, 10.05, 10.25):
        try:
            stop.handle(signal.SIGTERM, None)
        except KeyboardInterrupt:
            interrupted.append(now[0])
    assert interrupted == [10.25] and stop_requested()
    clear_stop()


def test_a_local_worker_stays_for_a_while_after_it_was_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nanny would start another before the driver, told too, has ended them; a driver elsewhere is not."""
    lingered: list[float] = []

    async def end(_: object, linger: float, *, nanny: bool) -> None:
        lingered.extend([] if nanny else [linger])  # a nanny that stays starts another

    async def told(local: bool) -> None:
        Leaving(local=local).setup(cast(Worker, None))
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)

    monkeypatch.setattr("dorff.engine.worker._end", end)
    monkeypatch.setattr("dorff.engine.worker._here", SimpleNamespace())
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for local in (True, False):
            asyncio.run(told(local))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        clear_stop()
    assert lingered[1:] == [0.0] and 3 <= lingered[0] < 8  # a nanny that was told to end waits for 8 s


@pytest.mark.process
def test_a_busy_machine_adds_nothing_to_what_a_worker_says(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its thread of Zarr's does not stop at once when the worker ends."""
    ended = tmp_path / "ended"

    def keep_busy_at_exit() -> None:
        from zarr.core import sync

        atexit.register(ended.touch)
        atexit.register(lambda: sync._get_loop().call_soon_threadsafe(time.sleep, 3))

    with local_cluster(1) as cluster, Client(cluster) as client:
        client.run(keep_busy_at_exit)
    until(ended.exists)
    said = capfd.readouterr().err
    assert "Traceback" not in said and "Thread" not in said, said


@pytest.mark.slow
def test_a_worker_told_to_end_saves_and_another_goes_on(tmp_path: Path) -> None:
    """However often: none of these is counted as a death."""

    def saved(path: str) -> str:
        count = mark(path)
        Path(path + ".pid").write_text(str(os.getpid()))
        while count < 4:
            time.sleep(0.05)
            if stop_requested():
                time.sleep(0.5)  # saving takes a moment
                mark(path + ".saved")
                raise StoppedError("told to")
        return "done"

    pid = tmp_path / "task.pid"

    def end() -> None:
        for _ in range(3):
            while not pid.exists() or not (told := pid.read_text()):
                time.sleep(0.02)
            pid.unlink()
            os.kill(int(told), signal.SIGTERM)

    thread = once(pid, end)
    with local_cluster(2) as cluster, Client(cluster) as client:
        workers = set(client.run(os.getpid).values())
        assert run(DaskEngine(client), Task(saved, (str(tmp_path / "task"),), "task")) == {"task": "done"}
        assert (tmp_path / "task.saved").read_text() == "xxx"
        client.wait_for_workers(2, timeout=600)
        assert not workers & set(client.run(os.getpid).values()), "others took their places"
    thread.join()


def stop_at_first(path: str) -> str:
    if mark(path) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return "done"


def lock_at_first(path: str) -> str:
    if mark(path) == 1:
        ctypes.PyDLL(None).sleep(100)  # a deadlock: it keeps Python's lock
    return "done"


def compute_with_the_lock(path: str) -> str:
    """As a factorization by LAPACK does, for about five seconds."""
    mark(path)
    number, until = 3**400_000, time.monotonic() + 4
    while time.monotonic() < until:
        number = 3 ** (2 * number.bit_length())
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize("task", [stop_at_first, lock_at_first])
def test_a_hung_worker_is_replaced(task: Callable[[str], str], tmp_path: Path) -> None:
    with local_cluster(1) as cluster, Client(cluster) as client:
        assert run(DaskEngine(client, silence=2.0), Task(task, (str(tmp_path / "t"),), "t")) == {"t": "done"}
    assert (tmp_path / "t").read_text() == "xx"


@pytest.mark.slow
def test_a_worker_that_computes_in_silence_is_left_alone(tmp_path: Path) -> None:
    with local_cluster(1) as cluster, Client(cluster) as client:
        engine = DaskEngine(client, silence=0.6)
        assert run(engine, Task(compute_with_the_lock, (str(tmp_path / "t"),), "t")) == {"t": "done"}
    assert (tmp_path / "t").read_text() == "x"


@pytest.mark.process
def test_a_run_whose_workers_are_all_gone_ends(tmp_path: Path) -> None:
    with local_cluster(1) as cluster, Client(cluster) as client:
        thread = once(tmp_path / "task", lambda: cluster.scale(0))
        with pytest.raises(IncompleteError, match=r"no workers for .* s; what is done is kept"):
            run(DaskEngine(client, patience=1.0), Task(until_told, (str(tmp_path / "task"),)))
        thread.join()


@pytest.mark.slow
def test_workers_that_come_and_go_change_nothing(tmp_path: Path) -> None:
    with local_cluster(1) as cluster, Client(cluster) as client:
        tasks = [Task(calmly, (str(tmp_path / f"{number}"),), number) for number in range(40)]
        sizes = iter((3, 2))

        def then(task: Task) -> list[Task]:
            if task.tag in (5, 25):
                cluster.scale(next(sizes))
            return []

        assert run(DaskEngine(client), *tasks, then=then).keys() == set(range(40))
