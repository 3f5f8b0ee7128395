"""A cluster's shared file system: hosts that see each other's files late, have locks of their own or none, and stale
handles. Each host here is a mount namespace with a FUSE mount of its own over the same folder (`network_fs.py`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from harness import Found, current, found, receipts, run_fit, sea, start, wait_until, write_job, write_store
from processes import LOOPBACK, NO_DASHBOARD, until
from table import Trial

from dorff.storage.location import locate
from dorff.store import load_model, read_history

Hosts = tuple[tuple[str, ...], tuple[str, ...]]
Settle = Callable[..., None]
LATE = 3.0  # seconds that a host goes on seeing the old

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None,
        reason="needs root, /dev/fuse and the Debian package fuse3",
    ),
]


class Shared:
    """A folder, and the hosts that have mounted it at one place."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.folder, self.mount, self._stack = home / "folder", home / "mount", stack
        self.folder.mkdir()
        self.mount.mkdir()

    def host(self, *, late: float = LATE, locks: str = "own") -> tuple[str, ...]:
        """The beginning of a command that runs on one more host."""
        return self._stack.enter_context(self._mounted(late, locks))

    @contextmanager
    def _mounted(self, late: float, locks: str) -> Iterator[tuple[str, ...]]:
        script = str(Path(__file__).with_name("network_fs.py"))
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, script]
        process = subprocess.Popen([*command, str(self.folder), str(self.mount), str(late), locks])
        try:
            mounts = Path(f"/proc/{process.pid}/mounts")
            wait_until(lambda: f" {self.mount} fuse" in mounts.read_text(), what="the mount")
            yield ("nsenter", f"--mount=/proc/{process.pid}/ns/mnt")
        finally:
            process.kill()
            process.wait()

    def job(self, name: str, **changes: object) -> Path:
        """A job of its own state and model, as hosts name it. The rows are there once for all."""
        here = write_job(self.folder / name, self.mount / "sea.zarr", **changes)
        return self.mount / here.relative_to(self.folder)

    def result(self, name: str) -> Found:
        """What the job of that name left, read where the files really are, under the names that hosts know."""
        job = self.mount / name / "job.yaml"
        subprocess.run(["mount", "--bind", str(self.folder), str(self.mount)], check=True)
        try:
            return found(job)
        finally:
            subprocess.run(["umount", str(self.mount)], check=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with ExitStack() as stack:
        shared = Shared(tmp_path_factory.mktemp("shared"), stack)
        write_store(shared.folder / "sea.zarr", *sea())
        yield shared


@pytest.fixture(scope="module")
def hosts(shared: Shared) -> Hosts:
    """Two hosts that have locks of their own only."""
    return shared.host(), shared.host()


@pytest.fixture(scope="module")
def truth(shared: Shared, hosts: Hosts) -> Found:
    """What one process on one host comes to."""
    assert run_fit(shared.job("truth"), by=hosts[0]).report["rows_used"] == 60_000
    return shared.result("truth")


@pytest.fixture
def settle(shared: Shared, truth: Found, trial: Trial) -> Settle:
    """Writes what a fault came to of which the job of that name left the model."""

    def settle(name: str, fault: str, redone: str = "not counted") -> None:
        made = shared.result(name)
        trial.settle(fault, rows=(truth.rows, made.rows), same=not made.differing(truth), redone=redone)

    return settle


def test_hosts_see_each_other_late(shared: Shared, hosts: Hosts) -> None:
    """The file system is what it should be for these tests."""
    one, other = hosts
    path = str(shared.mount / "news")
    assert subprocess.run([*other, "test", "-e", path], check=False).returncode == 1
    subprocess.run([*one, "touch", path], check=True)
    assert subprocess.run([*other, "test", "-e", path], check=False).returncode == 1
    wait_until(lambda: subprocess.run([*other, "test", "-e", path], check=False).returncode == 0)
    lock = str(shared.mount / "sea.zarr" / "zarr.json")
    with subprocess.Popen([*one, "flock", lock, "sleep", "30"]) as holder:
        try:
            for host, code in ((one, 1), (other, 0)):
                until(lambda h=host, c=code: subprocess.run([*h, "flock", "-n", lock, "true"]).returncode == c)
        finally:
            holder.kill()


def test_workers_on_another_host_than_the_driver(shared: Shared, hosts: Hosts, tmp_path: Path, settle: Settle) -> None:
    """The driver has looked for sums before a worker elsewhere writes them, and goes on believing that they are not
    there for a while."""
    one, other = hosts
    with ExitStack() as stack:
        file = tmp_path / "scheduler.json"
        dask = [sys.executable, "-m"]
        command = [*dask, "distributed.cli.dask_scheduler", "--host", LOOPBACK, "--port", "0", *NO_DASHBOARD]
        commands = [[*command, "--scheduler-file", str(file)]]
        worker = [*dask, "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"]
        third = shared.host()
        for host in (other, third):
            commands.append([*host, *worker, *NO_DASHBOARD, "--local-directory", str(tmp_path)])
        for each in commands:
            stack.callback(_end, subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            until(file.exists)
        address = json.loads(file.read_text())["address"]
        ended = run_fit(shared.job("remote", cluster={"address": address}), by=one)
    settle("remote", f"attributes and names seen {LATE:g} s late, by driver and workers")
    assert ended.report["rows_used"] == 60_000


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def test_a_killed_driver_is_taken_over_on_another_host(shared: Shared, hosts: Hosts, settle: Settle) -> None:
    one, other = hosts
    job = shared.job("killed")
    with start("fit", job, by=one) as running:
        wait_until(lambda: receipts(shared.folder / "killed") > 3)
        running.kill()
    before = receipts(shared.folder / "killed")
    ended = run_fit(job, by=other)
    redone = f"{before - ended.report['leaves_reused']} leaves that were done"
    settle("killed", "driver killed, taken over on a host that sees late", redone)
    assert ended.report["rows_used"] == 60_000 and ended.report["leaves_reused"] > 0


@pytest.mark.parametrize("round_", range(3))
def test_drivers_on_two_hosts_without_common_locks(shared: Shared, hosts: Hosts, settle: Settle, round_: int) -> None:
    """One is told that the other holds the lease, before or when it publishes; never two versions of one lease, never
    a torn one."""
    name = f"race{round_}"
    job = shared.job(name)
    with start("fit", job, "--json", by=hosts[0]) as one, start("fit", job, "--json", by=hosts[1]) as other:
        ended = [one.end(), other.end()]
    codes = sorted(each.code for each in ended)
    assert codes in ([0, 0], [0, 7]), [each.err for each in ended]
    assert not any("Traceback" in each.err for each in ended)
    tokens = [line["token"] for line in read_history(locate(shared.folder / name / "models"))]
    assert len(set(tokens)) == len(tokens)
    assert current(shared.folder / name)
    settle(name, "drivers on two hosts without common locks, at once")


def test_readers_on_another_host_see_whole_models(shared: Shared, hosts: Hosts, trial: Trial) -> None:
    """While versions are published on one host, and older ones removed, each look on the other finds one, whole: no
    version is removed sooner than the other host sees the next one."""
    one, other = hosts
    job = shared.job("readers", publish={"keep": 2}, features={"count": 32})
    assert run_fit(job, by=one).code == 0
    script = (
        "import sys, time, numpy as np\nfrom dorff import load_model\nend, seen = time.monotonic() + 600, set()\n"
        "while len(seen) < 4 and time.monotonic() < end:\n"
        f"    m = load_model({str(shared.mount / 'readers' / 'models')!r})\n"
        "    seen.add(m.seed)\n    assert np.isfinite(m.predict(np.zeros((1, 2)))).all()\nprint(len(seen))\n"
    )
    with subprocess.Popen(
        [*other, sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        seed = 1
        while reader.poll() is None:
            shared.job("readers", publish={"keep": 2}, features={"count": 32, "seed": seed})
            assert run_fit(job, by=one).code == 0
            seed += 1
            time.sleep(LATE)
        out, err = reader.communicate()
    assert reader.returncode == 0, err
    assert int(out) == 4
    used = load_model(shared.folder / "readers" / "models").info["report"]["rows_used"]
    trial.settle("versions published while another host reads", "each read is of a whole version", rows=(60_000, used))


def test_a_stale_handle_is_tried_again(shared: Shared, settle: Settle) -> None:
    fresh = shared.host()  # which has read nothing yet
    (shared.folder / ".stale").write_text("x/c/40/0")
    ended = run_fit(shared.job("stale"), by=fresh)
    assert ended.code == 0, ended.err
    assert not (shared.folder / ".stale").exists()
    settle("stale", "stale handle of a shard, once")


def test_a_file_system_without_locks_is_refused(shared: Shared, trial: Trial) -> None:
    """Before a row is read; nothing is left there."""
    ended = run_fit(shared.job("unlocked"), by=shared.host(locks="none"))
    assert ended.code == 3 and "Traceback" not in ended.err
    assert "this file system cannot lock files" in ended.err and "keep it on one that can" in ended.err
    assert not list((shared.folder / "unlocked").glob("models/v*"))
    trial.settle("locks absent", "exit 3 before a row is read")


def test_a_file_system_without_hard_links_has_leases(shared: Shared, settle: Settle) -> None:
    host = shared.host(locks="linkless")
    job = shared.job("linkless")
    assert run_fit(job, by=host).report["rows_used"] == 60_000
    assert run_fit(job, by=host).report["outcome"] == "unchanged"
    settle("linkless", "hard links absent")


def test_a_model_of_the_truth_predicts(shared: Shared, truth: Found) -> None:
    assert np.isfinite(load_model(shared.folder / "truth" / "models").predict(np.zeros((1, 2)))).all()
