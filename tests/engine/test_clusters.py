"""Clusters: who is let in, which packages their workers have, and a start that is interrupted."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import field, write_job
from command_line import run as run_command
from distributed import Client
from distributed.security import Security
from places import PYTHONPATH
from processes import LOOPBACK, scheduler, until, worker

from dorff.data import ingest
from dorff.engine import Engine, Task, open_engine
from dorff.engine.base import _bytes
from dorff.engine.clusters import credentials, local_cluster, security_for
from dorff.engine.worker import own_versions, refuse_others
from dorff.errors import DoesNotFitError, DorffError, IncompleteError, InputError
from dorff.spec import cluster as spec

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


@pytest.mark.process
def test_a_job_reaches_its_cluster_by_tls(secured: str, tls: spec.TLS, caplog: pytest.LogCaptureFixture) -> None:
    """And where the cluster's pages are is said."""
    assert secured.startswith("tls://")
    with caplog.at_level("INFO", "dorff"), open_engine(spec.RemoteCluster(address=secured, tls=tls)) as engine:
        assert run(engine, Task(add, (1, 2))) == [3]
    host = secured.removeprefix("tls://").rpartition(":")[0]
    assert re.fullmatch(
        rf"cluster: its dashboard, if it has one, is http://{re.escape(host)}:\d+/status", caplog.messages[0]
    )


@pytest.mark.process
def test_tls_without_credentials_is_refused(secured: str) -> None:
    with pytest.raises(InputError, match=r"expected cluster\.tls \{ca, cert, key\}.*came neither"):
        security_for(spec.RemoteCluster(address=secured))


@pytest.mark.process
def test_credentials_that_do_not_belong_together_are_refused(secured: str, tls: spec.TLS, tmp_path: Path) -> None:
    _, _, other = credentials(tmp_path / "other")
    for key, said in (
        (other, rf" {tls.ca}, {tls.cert}, {other} cannot .*that the key is the certificate's"),
        (tmp_path / "none", rf" {tmp_path}/none cannot be used .*No such file.*check that it exists"),
    ):
        mixed = spec.TLS(ca=tls.ca, cert=tls.cert, key=key)
        with pytest.raises(InputError, match=rf"cluster\.tls:{said}"):
            security_for(spec.RemoteCluster(address=secured, tls=mixed))


@pytest.mark.process
def test_a_client_with_other_credentials_is_not_let_in(secured: str, tmp_path: Path) -> None:
    ca, cert, key = credentials(tmp_path)
    stranger = spec.RemoteCluster(address=secured, tls=spec.TLS(ca=ca, cert=cert, key=key))
    with pytest.raises(IncompleteError, match="no scheduler answers there"), open_engine(stranger, patience=2.0):
        pass


@pytest.mark.process
def test_a_client_of_plain_tcp_is_not_let_in(secured: str) -> None:
    plain = spec.RemoteCluster(address=secured.replace("tls://", "tcp://"), plain_tcp=True)
    with pytest.raises(IncompleteError, match="no scheduler answers there"), open_engine(plain, patience=2.0):
        pass


@pytest.mark.process
def test_a_client_of_tls_to_plain_tcp_is_told_so(plain: str, tls: spec.TLS) -> None:
    other = spec.RemoteCluster(address=plain.replace("tcp://", "tls://"), tls=tls)
    with (
        pytest.raises(DorffError, match=r"^cluster tls://.*(as here|such as)") as caught,
        open_engine(other, patience=2.0),
    ):
        pass
    assert caught.value.exit_code in (3, 5)  # Dask has an OSError for it, or a ValueError, as the connection is cut


@contextmanager
def another_service() -> Iterator[spec.RemoteCluster]:
    with socket.create_server((LOOPBACK, 0)) as server:

        def speak() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as one:
                        one.recv(65536)
                        one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=speak, daemon=True).start()
        yield spec.RemoteCluster(address=f"tcp://{LOOPBACK}:{server.getsockname()[1]}")


@pytest.mark.process
def test_another_service_at_the_address_is_no_bug() -> None:
    """What it says is taken for the length of a message: of this one more bytes than there are anywhere."""
    with (
        another_service() as other,
        pytest.raises(InputError, match="answers there is no such scheduler"),
        open_engine(other, patience=2.0),
    ):
        pass


class CollectingLoops(asyncio.DefaultEventLoopPolicy):
    """Event loops whose threads collect garbage as they start, as any thread may that makes objects."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a client left open
            gc.collect()
        return super().new_event_loop()


@pytest.mark.process
def test_a_start_after_one_that_failed_does_not_wait_for_itself() -> None:
    """To be collected a client takes a lock, which the start of another holds until its thread runs. What it left open
    is no matter of the start's."""
    lost: list[Any] = [socket.socket()]
    lost.append(lost)
    del lost
    asyncio.set_event_loop_policy(CollectingLoops())
    try:
        for _ in range(2):
            test_another_service_at_the_address_is_no_bug()
    finally:
        asyncio.set_event_loop_policy(None)


class LateLoops(asyncio.DefaultEventLoopPolicy):
    """Event loops that start late, as on a machine that has much else to do."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        time.sleep(11)
        return super().new_event_loop()


@pytest.mark.slow
def test_a_thread_that_does_not_start_is_no_bug() -> None:
    """Dask waits 10 s for it."""
    cluster = spec.RemoteCluster(address=f"tcp://{LOOPBACK}:1")
    asyncio.set_event_loop_policy(LateLoops())
    try:
        with pytest.raises(IncompleteError, match=r"no thread could be started .* run again"), open_engine(cluster):
            pass
    finally:
        asyncio.set_event_loop_policy(None)


@pytest.mark.process
def test_a_fit_whose_workers_are_too_small_is_refused(plain: str, tmp_path: Path) -> None:
    """Of several the largest counts, and one without a limit may be as large as it likes."""
    cluster = spec.RemoteCluster(address=plain)
    with worker(plain, tmp_path, "--no-nanny", "--memory-limit", "200MiB"):
        with (
            pytest.raises(DoesNotFitError, match="a worker needs 316 MiB, and the largest has 200 MiB; start larger"),
            open_engine(cluster, needs=300 * 2**20),
        ):
            pass
        np.save(tmp_path / "rows.npy", field(500))
        ingest([tmp_path / "rows.npy"], tmp_path / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
        write_job(tmp_path / "job.yaml", cluster={"address": plain})
        for command in ("fit", "tune"):
            done = run_command(command, "job.yaml", cwd=tmp_path)
            assert done.returncode == 4 and "and the largest has 200 MiB; start larger" in done.stderr
        assert not list(tmp_path.glob("runs/*/*/receipts/*"))
        with (
            pytest.raises(DoesNotFitError, match="needs 211 MiB, and the largest has 200 MiB"),  # killed at 95% of it
            open_engine(cluster, needs=200 * 2**20),
        ):
            pass
        for limit in ("400MiB", "0"):
            with worker(plain, tmp_path, "--no-nanny", "--memory-limit", limit), Client(plain) as client:
                until(lambda client=client: len(client.scheduler_info()["workers"]) == 2)
                with open_engine(cluster, needs=300 * 2**20) as engine:
                    assert engine.memory == (400 * 2**20 if limit != "0" else float("inf"))
            with Client(plain) as client:
                until(lambda client=client: len(client.scheduler_info()["workers"]) == 1)


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


@pytest.mark.process
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
    """Where it listens off loopback that it did not before: by connecting to its ports at this host's addresses."""
    found = set()
    for host in OUTSIDE:
        for port in {port for _, port in listeners() - before}:
            with socket.socket() as probe:
                if probe.connect_ex((host, port)) == 0:
                    found.add((host, port))
    return found


@pytest.mark.process
@needs_outside
def test_a_local_cluster_listens_on_loopback_alone() -> None:
    before = listeners()
    with open_engine(spec.LocalCluster(workers=1)) as engine:
        assert run(engine, Task(add, (1, 2))) == [3]
        assert listeners() - before, "a scheduler, a nanny, a worker, and two HTTP servers"
        assert not listening(before)


@pytest.mark.process
def test_what_its_user_computes_by_dask_stays_where_it_was(plain: str, tmp_path: Path) -> None:
    with worker(plain, tmp_path, "--no-nanny"):
        for cluster in (spec.RemoteCluster(address=plain), spec.LocalCluster(workers=1)):
            with open_engine(cluster), pytest.raises(ValueError):
                Client.current()
            with Client(plain) as client, open_engine(cluster) as engine:
                assert run(engine, Task(add, (1, 2))) == [3]
                assert Client.current() is client


def faults(blocks: int) -> float:
    """Pages that the system gave this process for each block of rows, as a leaf makes and drops them."""
    np.ones(2**17).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(blocks):
        np.ones(2**17).sum()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / blocks


@pytest.mark.process
def test_workers_keep_the_memory_of_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 1 MiB has 256 pages, and each costs time; what the user's own environment says prevails."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    with local_cluster(1) as cluster, Client(cluster) as client:
        assert client.submit(faults, 50).result() < 10
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    with local_cluster(1) as cluster, Client(cluster) as client:
        assert client.submit(faults, 50).result() > 200


@pytest.mark.process
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
    here = [str(folder), PYTHONPATH, os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(here)}


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler without workers, that forgives no death."""
    with scheduler(tmp_path, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as (_, address):
        yield address


def test_other_packages_are_named() -> None:
    mine = own_versions()
    refuse_others("worker 1", mine, dict(mine))
    with pytest.raises(InputError, match=rf"worker 1: numpy is 1\.0 there and {np.__version__} in the driver"):
        refuse_others("worker 1", mine, mine | {"numpy": "1.0"})
    with pytest.raises(InputError, match=rf"worker 1: has no numpy, the driver has {np.__version__}; start both"):
        refuse_others("worker 1", mine, mine | {"numpy": None})


def test_of_the_memory_that_processes_share_each_has_its_part() -> None:
    here = psutil.Process()
    assert 0 < _bytes(here, shared=False) < _bytes(here, shared=True)


@pytest.mark.slow
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
                client.wait_for_workers(2, timeout=600)
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


@pytest.mark.process
def test_a_cluster_without_workers_is_said_so(plain: str) -> None:
    with (
        pytest.raises(IncompleteError, match="no workers"),
        open_engine(spec.RemoteCluster(address=plain), patience=0.5),
    ):
        pass


STARTING = """
from dorff.spec import cluster as spec
from dorff.engine import open_engine

try:
    with open_engine(spec.LocalCluster(workers=1)):
        print("never")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.process
def test_an_interrupted_start_leaves_nothing_behind() -> None:
    """Ctrl-C goes to every process of the terminal's, as the first worker starts: not a word, and nobody stays."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        me = psutil.Process(started.pid)
        until(lambda: len(me.children(recursive=True)) >= 2)  # the first one tracks resources
        children = me.children(recursive=True)
        os.killpg(started.pid, signal.SIGINT)
        assert started.communicate(timeout=600) == ("stopped\n", "")
    assert psutil.wait_procs(children, timeout=600)[1] == []
