"""Clusters in processes of their own: who is let in, which packages they have, and what their deaths lead to."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client
from distributed.security import Security

from dorff import spec
from dorff.engine import Engine, Task, credentials, local_cluster, open_engine
from dorff.engine.credentials import security_for
from dorff.errors import IncompleteError, InputError, StoppedError
from dorff.stopping import stop_requested

LOOPBACK = "127.0.0.1"
NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0")  # the HTTP server is there all the same
OUTSIDE = sorted(
    one.address
    for several in psutil.net_if_addrs().values()
    for one in several
    if one.family == socket.AF_INET and not one.address.startswith("127.")
)
needs_outside = pytest.mark.skipif(not OUTSIDE, reason="this host has only loopback")


def add(one: int, other: int) -> int:
    return one + other


def run(engine: Engine, *tasks: Task) -> list[Any]:
    found: list[Any] = []

    def done(_task: Task, result: Any) -> tuple[Task, ...]:
        found.append(result)
        return ()

    engine.run(tasks, done)
    return found


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process, killed at the end of the block if it still runs, and its children with it."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
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
    end = time.monotonic() + 100
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> spec.TLS:
    ca, cert, key = credentials(tmp_path_factory.mktemp("credentials"))
    return spec.TLS(ca=ca, cert=cert, key=key)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tls: spec.TLS) -> Iterator[str]:
    """The address of a scheduler with a worker, off loopback where there is such an address."""
    folder = tmp_path_factory.mktemp("secured")
    files = ["--tls-ca-file", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
    host = (OUTSIDE or [LOOPBACK])[0]
    with (
        scheduler(folder, "--protocol", "tls", *files, host=host) as (_, address),
        worker(address, folder, "--no-nanny", *files),
    ):
        yield address


def test_credentials_are_for_their_owner_alone(tls: spec.TLS) -> None:
    assert stat.S_IMODE(tls.key.stat().st_mode) == 0o600
    with pytest.raises(InputError, match=r"ca\.pem exists; remove it, or name another directory"):
        credentials(tls.key.parent)


def test_a_job_reaches_its_cluster_by_tls(secured: str, tls: spec.TLS) -> None:
    assert secured.startswith("tls://")
    with open_engine(spec.RemoteCluster(address=secured, tls=tls)) as engine:
        assert run(engine, Task(add, (1, 2))) == [3]


def test_tls_without_credentials_is_refused(secured: str) -> None:
    with pytest.raises(InputError, match=r"expected cluster\.tls \{ca, cert, key\}.*came neither"):
        security_for(spec.RemoteCluster(address=secured))


def test_credentials_that_do_not_belong_together_are_refused(secured: str, tls: spec.TLS, tmp_path: Path) -> None:
    _, _, other = credentials(tmp_path / "other")
    for key, said in ((other, "check that the key is the certificate's"), (tmp_path / "none", "No such file")):
        mixed = spec.TLS(ca=tls.ca, cert=tls.cert, key=key)
        with pytest.raises(InputError, match=rf"cluster\.tls: .*{said}"):
            security_for(spec.RemoteCluster(address=secured, tls=mixed))


def test_a_client_with_other_credentials_is_not_let_in(secured: str, tmp_path: Path) -> None:
    ca, cert, key = credentials(tmp_path)
    stranger = spec.RemoteCluster(address=secured, tls=spec.TLS(ca=ca, cert=cert, key=key))
    with pytest.raises(IncompleteError, match="no scheduler answers there"), open_engine(stranger, patience=2.0):
        pass


def test_a_client_of_plain_tcp_is_not_let_in(secured: str) -> None:
    plain = spec.RemoteCluster(address=secured.replace("tls://", "tcp://"), plain_tcp=True)
    with pytest.raises(IncompleteError, match="no scheduler answers there"), open_engine(plain, patience=2.0):
        pass


def answer(address: tuple[str, int], context: ssl.SSLContext | None) -> bytes:
    """What a listener tells a client that has no certificate: Dask's own greeting comes first, to those let in."""
    with suppress(OSError), socket.create_connection(address, timeout=2) as plain:
        talk = plain if context is None else context.wrap_socket(plain)
        with talk:
            talk.settimeout(2)
            with suppress(TimeoutError):
                return talk.recv(100)
            talk.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return talk.recv(100)
    return b""


def anybody() -> ssl.SSLContext:
    """A client that trusts everybody and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def stranger() -> ssl.SSLContext:
    """The same with a certificate of its own making."""
    context = Security.temporary().get_connection_args("client")["ssl_context"]
    context.verify_mode = ssl.CERT_NONE
    assert isinstance(context, ssl.SSLContext)
    return context


def test_nobody_without_our_certificate_is_answered(secured: str, tls: spec.TLS) -> None:
    host, port = secured.removeprefix("tls://").split(":")
    known = anybody()
    known.load_cert_chain(tls.cert, tls.key)
    assert b"compression" in answer((host, int(port)), known), "the greeting, to whom it is meant for"
    for context in (None, anybody(), stranger()):
        assert answer((host, int(port)), context) == b""


@pytest.mark.parametrize(
    "address", ["tcp://192.0.2.2:8786", "tcp://host:1", "tcp://[2001:db8::1]:8786", "ucx://host:1", "ws://host:1"]
)
def test_plain_tcp_off_loopback_is_refused_unless_asked_for(address: str) -> None:
    with (
        pytest.raises(InputError, match=r"is not encrypted and lets in everybody.*cluster\.plain_tcp: true"),
        open_engine(spec.RemoteCluster(address=address)),
    ):
        pass
    assert security_for(spec.RemoteCluster(address=address, plain_tcp=True)) is None


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786", "inproc://1"])
def test_plain_tcp_on_loopback_is_not_refused(address: str) -> None:
    assert security_for(spec.RemoteCluster(address=address)) is None


def listeners() -> set[tuple[str, int]]:
    """Addresses and ports at which this process and its children listen, as the system tells."""
    me = psutil.Process()
    return {
        (connection.laddr.ip, connection.laddr.port)
        for one in [me, *me.children(recursive=True)]
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def listening(before: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Where it listens off loopback that it did not before: by connecting to every port of this host's addresses.

    Ports of other programs on this host are left out, by whose they are.
    """
    mine = {port for _, port in listeners() - before}
    found = set()
    for host in OUTSIDE:
        for port in range(1, 65536):
            with socket.socket() as probe:
                if probe.connect_ex((host, port)) == 0 and port in mine:
                    found.add((host, port))
    return found


@needs_outside
def test_a_local_cluster_listens_on_loopback_alone() -> None:
    before = listeners()
    with open_engine(spec.LocalCluster(workers=1)) as engine:
        assert run(engine, Task(add, (1, 2))) == [3]
        assert listeners() - before, "a scheduler, a nanny, a worker, and two HTTP servers"
        assert not listening(before)


@needs_outside
def test_a_local_cluster_off_loopback_lets_nobody_in() -> None:
    before = listeners()
    with local_cluster(1, host=OUTSIDE[0]) as cluster, Client(cluster) as client:
        assert client.submit(add, 1, 2).result() == 3
        ports = {port for host, port in listening(before) if host == OUTSIDE[0]}
        assert {int(cluster.scheduler_address.rpartition(":")[2])} < ports, "scheduler, nanny, worker"
        for port in ports:
            for context in (None, anybody(), stranger()):
                assert answer((OUTSIDE[0], port), context) == b"", port


def without_dorff(folder: Path) -> dict[str, str]:
    """The environment of a Python that has all these packages but dorff."""
    for entry in Path(np.__file__).parents[1].iterdir():
        if "dorff" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    return {"PYTHONPATH": str(folder)}


def with_other_numpy(folder: Path) -> dict[str, str]:
    """The environment of a Python whose NumPy says that it is version 1.0."""
    (folder / "numpy-1.0.dist-info").mkdir()
    (folder / "numpy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    here = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(here)}


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler without workers, that forgives no death."""
    with scheduler(tmp_path, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as (_, address):
        yield address


def test_a_worker_with_other_packages_is_refused(plain: str, tmp_path: Path) -> None:
    """The one that is there, by name; and the one that comes later, at its first task."""
    (tmp_path / "packages").mkdir()
    other = with_other_numpy(tmp_path / "packages")
    message = rf"worker tcp://.*: numpy is 1\.0 there and {np.__version__} in the driver"
    remote = spec.RemoteCluster(address=plain)
    with worker(plain, tmp_path, "--no-nanny") as good, open_engine(remote) as engine:
        assert run(engine, Task(add, (1, 2))) == [3]
        with worker(plain, tmp_path, "--no-nanny", **other):
            with Client(plain) as client:
                client.wait_for_workers(2, timeout=100)
                good.kill()
                until(lambda: len(client.nthreads()) == 1)
            with pytest.raises(InputError, match=message):
                run(engine, Task(add, (1, 2)))
            with pytest.raises(InputError, match=message), open_engine(remote):
                pass


@pytest.mark.slow
def test_a_worker_without_dorff_is_refused(plain: str, tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    lacking = without_dorff(tmp_path / "packages")
    with (
        worker(plain, tmp_path, "--no-nanny", python=(sys.executable, "-S"), **lacking),
        pytest.raises(InputError, match=r"worker tcp://.*: has no dorff, the driver has"),
        open_engine(spec.RemoteCluster(address=plain)),
    ):
        pass


def test_a_cluster_without_workers_is_said_so(plain: str) -> None:
    with (
        pytest.raises(IncompleteError, match="no workers"),
        open_engine(spec.RemoteCluster(address=plain), patience=0.5),
    ):
        pass


@pytest.mark.slow
def test_a_scheduler_that_never_speaks_is_said_so(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (started, address):
        os.kill(started.pid, signal.SIGSTOP)
        with (
            pytest.raises(IncompleteError, match="its scheduler does not answer"),
            open_engine(spec.RemoteCluster(address=address), patience=1.0),
        ):
            pass


def wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


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
        assert time.monotonic() - began < 80  # a minute, and the time to close
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
            thread.join(timeout=100)
            assert results == ["again"]


def first_time(path: str) -> str:
    if Path(path).exists():
        return "again"
    wait(path)
    return "never"


def until_told(path: str) -> str:
    """Work for a minute or until told to stop: then save, which takes a second. The next one goes on from there."""
    if Path(path + ".saved").exists():
        return "went on"
    Path(path).write_text(str(os.getpid()))
    for _ in range(600):
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
        client.wait_for_workers(2, timeout=100)
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
