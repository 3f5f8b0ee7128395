"""Leases: of many one wins, a dead holder is followed at once, a late one is fenced. With real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from leasing import contend, hold, late
from test_store import small_model

from dorff.errors import InputError, LeaseError
from dorff.fit.publish import Verdict, publish
from dorff.spec.job import Publish
from dorff.storage.files import seal
from dorff.store import LEASE, Lease, current_version, forget, lease_state, load_model, read_history, versions
from dorff.store import lease as leases


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Processes that have imported dorff already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dorff.fit.publish"])
    return context


@pytest.fixture
def start(processes: ForkServerContext) -> Iterator[Callable[..., tuple[int, Connection]]]:
    """Starts a process with a pipe to it; returns its id and our end."""
    begun = []

    def begin(work: Callable[..., None], *arguments: Any) -> tuple[int, Connection]:
        ours, theirs = processes.Pipe()
        process = processes.Process(target=work, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        begun.append(process)
        assert process.pid is not None
        return process.pid, ours

    yield begin
    for process in begun:
        process.kill()
        process.join()


@pytest.mark.process
def test_of_many_processes_exactly_one_wins(start: Callable[..., tuple[int, Connection]], tmp_path: Path) -> None:
    rounds = 9
    pipes = [start(contend, rounds)[1] for _ in range(6)]
    for number in range(rounds):
        path = tmp_path / f"{number % 3}" / LEASE
        if number >= 3 and number % 2:  # a file whose holder never was, damaged
            files = sorted(path.parent.glob("lease.0*"))
            files[-1].write_bytes(b'{"crc32": "00000000", "record": {"host"')
        for pipe in pipes:
            pipe.send(path)
        answers = [pipe.recv() for pipe in pipes]
        won = [answer for answer in answers if isinstance(answer, int)]
        assert won == [number // 3 + 1]  # one, and its token is the next
        assert all("held by process" in answer for answer in answers if isinstance(answer, str))
        winner = pipes[answers.index(won[0])]
        winner.send("enough")
        assert winner.recv() == "released"


def test_of_many_threads_exactly_one_wins(tmp_path: Path) -> None:
    def take(_: int) -> Lease | None:
        try:
            return Lease.take(tmp_path / LEASE)
        except LeaseError:
            return None

    with ThreadPoolExecutor(16) as pool:
        (held,) = [lease for lease in pool.map(take, range(16)) if lease is not None]
    held.check()
    held.release()


@pytest.mark.process
def test_a_killed_holder_is_followed_at_once(start: Callable[..., tuple[int, Connection]], tmp_path: Path) -> None:
    pid, pipe = start(hold, tmp_path / LEASE, 3600.0)
    assert pipe.recv() == 1
    with pytest.raises(LeaseError, match=f"held by process {pid} on {socket.gethostname()} until 20"):
        Lease.take(tmp_path / LEASE)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 600
    while leases._birth(pid) is not None and time.monotonic() < end:
        time.sleep(0.005)
    with Lease.take(tmp_path / LEASE) as lease:
        assert lease.token == 2


def holder_of(pid: int) -> leases.Holder:
    """The holder that process would be."""
    birth = leases._birth(pid)
    assert birth is not None
    return replace(leases.Holder.this_process(3600.0), pid=pid, birth=birth)


@pytest.mark.process
def test_who_is_gone(tmp_path: Path) -> None:
    """A zombie has ended; a process id of another start, host or namespace tells nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    holder = holder_of(process.pid)
    assert not holder.gone
    assert replace(holder, birth="1").gone  # its number was given to another process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet reaped
    assert holder.gone
    for elsewhere in ({"host": "other"}, {"boot": "other"}, {"namespace": "pid:[1]"}):
        assert not replace(holder, **elsewhere).gone
    process.wait()
    assert holder.gone
    (tmp_path / "lease.000041").write_bytes(seal(asdict(replace(holder, host="other"))))
    with pytest.raises(LeaseError, match=f"held by process {process.pid} on other"):
        Lease.take(tmp_path / LEASE)
    (tmp_path / "lease.000042").write_bytes(seal(asdict(holder)))
    with Lease.take(tmp_path / LEASE) as lease:
        assert lease.token == 43


def taken(path: Path) -> Lease:
    """The lease, as soon as it can be had."""
    end = time.monotonic() + 600
    while True:
        try:
            return Lease.take(path)
        except LeaseError:
            assert time.monotonic() < end
            time.sleep(0.05)


def good(version: Path, current: Path | None) -> Verdict:
    return Verdict(1.0, None)


@pytest.mark.process
def test_a_paused_holder_is_overtaken_and_fenced(start: Callable[..., tuple[int, Connection]], tmp_path: Path) -> None:
    pid, pipe = start(late, tmp_path)
    assert pipe.recv().startswith(".new-")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LeaseError, match="held by"):
        Lease.take(tmp_path / LEASE)  # alive, as far as anybody can tell
    with taken(tmp_path / LEASE) as lease:
        version, _ = publish(small_model(), tmp_path, lease=lease, rule=Publish(), record={"who": "quick"}, judge=good)
        os.kill(pid, signal.SIGCONT)
        pipe.send("go on")
        assert "was taken over by process" in pipe.recv()
        lease.check()
    assert version.name == current_version(tmp_path) == "v000001" and load_model(tmp_path).p == 1
    assert not list(tmp_path.glob(".new-*")) and versions(tmp_path) == [version]
    assert [line["who"] for line in read_history(tmp_path)] == ["quick"]


@pytest.mark.slow
def test_a_lease_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    with Lease.take(tmp_path / LEASE, seconds=1.2) as lease:
        end = time.monotonic() + 1.8
        while time.monotonic() < end:
            with pytest.raises(LeaseError):
                Lease.take(tmp_path / LEASE)
            time.sleep(0.1)
        lease.check()
    with pytest.raises(LeaseError, match="no longer held"):
        lease.check()
    with pytest.raises(LeaseError, match="no longer held"), lease.fenced():
        pass
    with Lease.take(tmp_path / LEASE) as again:
        assert again.token == 2
        lease.release()  # long over: does nothing
        again.check()


def test_a_damaged_lease_is_free_and_yet_its_token_grows(tmp_path: Path) -> None:
    lease = Lease.take(tmp_path / LEASE)
    raw = (tmp_path / "lease.000001").read_bytes()
    damages = [raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :] for at in range(0, len(raw), 9)]
    damages += [raw[:cut] for cut in (0, 1, len(raw) // 2, len(raw) - 1)] + [raw + b" ", b"[" * 30000]
    damages += [b"null", seal({}), seal({"host": "x"})]
    for token, damaged in enumerate(damages, start=2):
        (tmp_path / f"lease.{token - 1:06d}").write_bytes(damaged)
        assert lease_state(tmp_path / LEASE) is None
        with pytest.raises(LeaseError):
            lease.check()
        with Lease.take(tmp_path / LEASE) as next_one:
            assert next_one.token == token
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"lease.{token:06d}", "lease.lock"]
    lease.release()


def test_of_a_lease_only_its_beginning_is_read(tmp_path: Path) -> None:
    """Whoever can write there cannot fill the memory of those who come."""
    Lease.take(tmp_path / LEASE).release()
    os.truncate(tmp_path / "lease.000001", 2**28)  # a hollow file
    tracemalloc.start()
    try:
        with Lease.take(tmp_path / LEASE) as lease:
            assert lease.token == 2 and tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_holder_whose_files_were_removed_notices(tmp_path: Path) -> None:
    """Somebody tidied by hand: the numbers begin again, and yet the old holder cannot be taken for the new one."""
    lease = Lease.take(tmp_path / "m" / LEASE)
    (tmp_path / "m" / "lease.000001").unlink()
    with pytest.raises(LeaseError, match="no longer held"):
        lease.check()
    with Lease.take(tmp_path / "m" / LEASE) as other:
        assert other.token == lease.token == 1
        with pytest.raises(LeaseError, match="taken over"):
            lease.check()
        lease.release()
        other.check()
    for path in (tmp_path / "m").iterdir():
        path.unlink()
    (tmp_path / "m").rmdir()
    other.release()  # nothing left to give back


@pytest.mark.parametrize(("shift", "free"), [(-99.0, False), (-101.0, True), (98.0, False), (102.0, True)])
def test_age_is_by_the_file_systems_clock(tmp_path: Path, shift: float, free: bool) -> None:
    """Renewed too long ago, or by a clock that was set back since: free. Whoever held it is fenced."""
    held = Lease.take(tmp_path / LEASE, seconds=100.0)
    now = os.stat(tmp_path / "lease.000001").st_mtime
    os.utime(tmp_path / "lease.000001", (now, now + shift))
    if free:
        Lease.take(tmp_path / LEASE).release()
        with pytest.raises(LeaseError):
            held.check()
    else:
        with pytest.raises(LeaseError, match="held by"):
            Lease.take(tmp_path / LEASE)
        held.check()
    held.release()


def test_nobody_takes_over_inside_the_fence(tmp_path: Path) -> None:
    path, order = tmp_path / LEASE, []
    held = Lease.take(path, seconds=100.0)

    def overtake() -> None:
        with Lease.take(path):
            order.append("taken over")

    thread = threading.Thread(target=overtake)
    with held.fenced():
        os.utime(tmp_path / "lease.000001", (1.0, 1.0))  # run out long ago
        thread.start()
        time.sleep(0.2)
        held.check()
        order.append("inside")
    thread.join()
    assert order == ["inside", "taken over"]
    with pytest.raises(LeaseError, match="no longer"), held.fenced():
        order.append("never")
    held.release()


def test_a_lock_that_is_never_given_back_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_PATIENCE", 0.1)
    with Lease.take(tmp_path / LEASE) as held, held.fenced():
        with pytest.raises(LeaseError, match=rf"locked for more than 0.1 s by process {os.getpid()} .*then run again"):
            Lease.take(tmp_path / LEASE)
        held.release()  # does not wait for what it holds itself


def test_the_state_of_a_lease(tmp_path: Path) -> None:
    assert lease_state(tmp_path / "nowhere" / LEASE) is None and lease_state(tmp_path / LEASE) is None
    with Lease.take(tmp_path / LEASE, seconds=30.0):
        state = lease_state(tmp_path / LEASE)
        assert state is not None and (state["pid"], state["token"]) == (os.getpid(), 1)
        assert abs(time.mktime(time.strptime(state["until"], "%Y-%m-%d %H:%M:%S")) - time.time() - 30.0) < 5.0
    assert lease_state(tmp_path / LEASE) is None


def test_a_free_lease_is_forgotten_and_a_held_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "m" / LEASE
    forget(path)  # no folder
    others = ["lease.notes", "lease2.000001", "lease2.lock", "other.lease.000001"]
    with Lease.take(path) as held:
        for name in others:
            (tmp_path / "m" / name).write_text("x")
        forget(path)
        held.check()
    assert {path.name for path in (tmp_path / "m").iterdir()} == {*others, "lease.000001", "lease.lock"}
    (tmp_path / "m" / "lease.000007").write_bytes(b"damaged")
    for _ in range(2):
        forget(path)
        assert {path.name for path in (tmp_path / "m").iterdir()} == set(others)
    with Lease.take(path) as again:
        assert again.token == held.token == 1
        with pytest.raises(LeaseError, match="taken over"):
            held.check()


def test_who_waited_for_a_lock_that_was_removed_waits_for_the_new_one(tmp_path: Path) -> None:
    path, order, inside, enough = tmp_path / LEASE, [], threading.Event(), threading.Event()

    def first() -> None:
        with leases.locked(path):
            order.append("first")

    def second() -> None:
        with leases.locked(path):
            inside.set()
            enough.wait(20.0)
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    with leases.locked(path):
        threads[0].start()
        time.sleep(0.2)
        (tmp_path / "lease.lock").unlink()
        threads[1].start()
        assert inside.wait(5.0)
    time.sleep(0.2)
    enough.set()
    for thread in threads:
        thread.join()
    assert order == ["second", "first"]


def test_a_lease_is_taken_where_its_folder_is_removed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "m" / LEASE
    path.parent.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with leases.locked(path):
            taking = pool.submit(Lease.take, path)
            time.sleep(0.2)
            (tmp_path / "m" / "lease.lock").unlink()
            path.parent.rmdir()
        with taking.result() as held:
            held.check()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lease.lock").symlink_to(tmp_path / "elsewhere" / "lock")
    with pytest.raises(InputError, match=r"lease\.lock: is a link, which does not belong there"):
        Lease.take(tmp_path / LEASE)


def test_what_cannot_be_a_lease_is_refused(tmp_path: Path) -> None:
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="seconds: a lease lasts for more than 0"):
            Lease.take(tmp_path / LEASE, seconds=seconds)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/lease: cannot be written"):
        Lease.take(tmp_path / "file" / LEASE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
