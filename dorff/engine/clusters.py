"""From a job's `cluster:` to an engine; the TLS credentials of a job, and new ones."""

import ipaddress
import logging
import os
import queue
import socket
import ssl
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any, Final

import dask
import psutil
from distributed import Client, LocalCluster
from distributed.security import Security
from distributed.versions import VersionMismatchWarning

from dorff.engine.base import TRIES, repeating, starting_without_interrupts, stopping_on_signals
from dorff.engine.dask import Act, DaskEngine
from dorff.engine.failed_start import copied_stderr, explain_failed_start
from dorff.engine.worker import PACKAGES, Leaving, own_versions, refuse_others
from dorff.errors import DorffError, IncompleteError, InputError
from dorff.errors.stopping import stop_requested
from dorff.spec import cluster as spec

_log: Final = logging.getLogger(__name__)
# Leaves hold what the plan says and give it all back: pausing a worker over it would only stop the fit. What Dask
# does many times a second to watch itself would take its share of the cores that the leaves fill.
QUIET: Final = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")} | {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.worker-ttl": None,  # `HungWorkers` finds those that hang
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.diagnostics.nvml": False,  # loads the libraries of graphics cards, where there are any
}
#: With Dask's own, glibc gives back, and gets again with zeros in it, the memory of each block of rows.
MALLOC: Final = {"MALLOC_MMAP_THRESHOLD_": 4 * 2**20, "MALLOC_TRIM_THRESHOLD_": 16 * 2**20}
#: Dask starts its HTTP servers even without a dashboard, and not under TLS; port 0 keeps them from clashing.
PAGES: Final = "127.0.0.1:0"


def credentials(directory: Path) -> tuple[Path, Path, Path]:
    """Write new credentials that a scheduler, its workers and its clients share: ca.pem, cert.pem, key.pem. They are
    Dask's own temporary ones: the certificate signs itself, and is good for a year. Whoever has the key is let in, so
    only its owner may read it. InputError where one of the files exists."""
    texts = Security.temporary().get_tls_config_for_role("client")
    ca, cert, key = paths = tuple(directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists; remove it, or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for path, part, mode in ((ca, "ca_file", 0o644), (cert, "cert", 0o644), (key, "key", 0o600)):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(texts[part])
    return ca, cert, key


def security_for(cluster: spec.RemoteCluster) -> Security | None:
    """What a client needs for a cluster that runs already; None for plain TCP. InputError where plain TCP would leave
    this machine without `plain_tcp`, and tls:// has no usable credentials."""
    protocol, _, rest = cluster.address.partition("://")
    if not cluster.encrypted:
        host = rest.partition("]")[0].removeprefix("[") if rest.startswith("[") else rest.rpartition(":")[0] or rest
        if not (on_loopback(host) or cluster.plain_tcp):
            problem = f"cluster.address {cluster.address} is not encrypted and lets in everybody who can reach it"
            tls = "start the cluster with TLS (dorff credentials DIR) and write tls://HOST:PORT and cluster.tls"
            raise InputError(f"{problem}; {tls}, or set cluster.plain_tcp: true")
        return None
    if protocol == "inproc":
        return None
    names = {"ca": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}
    security = Security(require_encryption=True, **{names[key]: str(path) for key, path in cluster.tls or ()})
    ours = security.get_tls_config_for_role("client")
    if not (ours["ca_file"] and ours["cert"]):
        wanted = "cluster.tls {ca, cert, key}, or the same in Dask's own configuration (distributed.comm.tls)"
        raise InputError(f"cluster.address {cluster.address}: expected {wanted}, came neither")
    try:
        security.get_connection_args("client")
    except (OSError, ssl.SSLError) as error:
        named = [ours[part] for part in ("ca_file", "cert", "key") if ours[part]]
        problem = f"cluster.tls: {', '.join([one for one in named if not os.path.exists(one)] or named)} cannot be used"
        raise InputError(f"{problem} ({error}); check that it exists, and that the key is the certificate's") from error
    return security


def on_loopback(host: str) -> bool:
    """Whether a host is this machine's own loopback, by its name or its address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def no_interface(name: str) -> str:
    """What is wrong where this machine has no such network interface with an IPv4 address; an empty name is any."""
    every = psutil.net_if_addrs().items()
    there = [one for one, addresses in every if socket.AF_INET in {each.family for each in addresses}]
    problem = f"cluster.interface {name}: {socket.gethostname()} has none of that name with an IPv4 address"
    return f"{problem}; name one of {', '.join(there)}, or leave it out" if name and name not in there else ""


class _Patient(LocalCluster):
    """Dask gives up a worker that is not back 15 s after it died; on a busy machine its nanny takes longer."""

    def _update_worker_status(self, op: str, msg: Any) -> None:
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}):
            super()._update_worker_status(op, msg)  # type: ignore[no-untyped-call]


def local_cluster(workers: int, *, memory: int | None = None, host: str = "127.0.0.1") -> LocalCluster:
    """Dask workers of one thread each on this machine; `memory` bytes a worker. Scheduler, nannies and workers listen
    on `host` and let in TLS clients with this cluster's own temporary certificate alone; their HTTP servers listen on
    loopback. Each death of a worker is told to the driver."""
    kept = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in MALLOC.items()}
    with dask.config.set(QUIET | kept | {"distributed.scheduler.allowed-failures": 0}):
        return _Patient(  # type: ignore[no-untyped-call]
            n_workers=workers, threads_per_worker=1, memory_limit=memory, processes=True, host=host,
            security=Security.temporary(), protocol="tls://",
            dashboard_address=None, scheduler_kwargs={"dashboard_address": PAGES},
            plugins=(Leaving(local=True),),
            worker_dashboard_address=None if on_loopback(host) else PAGES,
            silence_logs=logging.CRITICAL,  # what a task raises is raised in the driver; not its traceback as well
        )  # fmt: skip


def start_local(cluster: spec.LocalCluster, patience: float) -> DaskEngine:
    """Start a cluster on this machine; try again where workers die as they start.

    A signal ends the start: half a cluster cannot be closed. Raises DoesNotFitError or
    InputError where the machine or the job has to be changed first, IncompleteError
    where workers are killed each time.
    """
    failed: BaseException = RuntimeError()
    output: Sequence[str] = ()
    for attempt in range(1, TRIES + 1):
        copying = copied_stderr() if attempt == TRIES else nullcontext(deque[str]())
        try:
            with copying as output:
                return _started(cluster, patience)
        except DorffError:
            raise
        except (OSError, RuntimeError) as error:  # Dask's own, where a worker is gone
            failed = error
    raise explain_failed_start(failed, output) from failed


def _started(cluster: spec.LocalCluster, patience: float) -> DaskEngine:
    with ExitStack() as undo:
        with stopping_on_signals(), _killing_when_stopped(), starting_without_interrupts():
            local = undo.enter_context(local_cluster(cluster.workers, memory=cluster.memory, host=cluster.host))
            client = undo.enter_context(Client(local, set_as_default=False))
        undo.pop_all()
    return DaskEngine(client, patience=patience, on_close=local.close)


def _killing_when_stopped() -> AbstractContextManager[None]:
    """A process that starts inside listens to nobody yet: once a stop is asked for it is killed, and Dask gives up."""
    before = active_children()

    def kill() -> None:
        for process in active_children() if stop_requested() else ():
            if process not in before:
                with suppress(OSError, ValueError):  # it has ended meanwhile
                    process.kill()

    return repeating(kill, 0.1, "dorff-starting")


def connect(
    cluster: spec.RemoteCluster, patience: float, *, ours: bool = False, wait: float = 0.0, on_close: Act = lambda: None
) -> DaskEngine:
    """In a thread of its own: a scheduler that takes the connection and never speaks would keep Dask waiting. Later it
    may be without a worker for `wait` seconds more than at the start. One that is not `ours` has pages to look at."""
    security = security_for(cluster)
    connected = queue.SimpleQueue[Client | Exception]()

    def put() -> None:
        try:
            connected.put(_connected(cluster.address, security, patience, ours))
        except Exception as error:
            connected.put(error)

    threading.Thread(target=put, name="dorff-connect", daemon=True).start()
    try:
        client = connected.get(timeout=3 * patience + 5)
    except queue.Empty as error:
        raise IncompleteError(f"cluster {cluster.address}: its scheduler does not answer; run again") from error
    if isinstance(client, Exception):
        raise client
    return DaskEngine(client, patience=wait + patience, on_close=on_close)


def _connected(address: str, security: Security | None, patience: float, ours: bool) -> Client:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # it is an error, below
            client = Client(address, timeout=patience, security=security, set_as_default=False)
    except OSError as error:
        why = f"no scheduler answers there ({str(error) or type(error).__name__})"
        remedy = "" if ours else "check that it runs, that it uses tcp:// or tls:// as here, and cluster.tls; then "
        raise IncompleteError(f"cluster {address}: {why}; {remedy}run again") from error
    except (ValueError, MemoryError) as error:  # Dask's own, of TLS to plain TCP and of answers in another protocol
        remedy = "give the address that the scheduler prints when it starts, such as tcp://HOST:PORT or tls://HOST:PORT"
        raise InputError(f"cluster {address}: what answers there is no such scheduler ({error}); {remedy}") from error
    try:
        _wanted = client.submit(int, pure=False)  # an adaptive cluster starts a worker only for a task
        client.wait_for_workers(1, timeout=patience)
        check_versions(client, patience)
        if not ours:
            _log.info("cluster: its dashboard, if it has one, is %s", client.dashboard_link)
    except BaseException as error:
        client.close()
        if isinstance(error, TimeoutError):
            raise IncompleteError(f"cluster {address}: no workers after {patience:g} s; start some") from error
        raise
    return client


def check_versions(client: Client, patience: float) -> None:
    """InputError where a worker has other versions than the driver. One that does not answer is asked task by task."""
    request = {"op": "versions", "packages": list(PACKAGES)}
    scheduler: Any = client.scheduler
    with suppress(TimeoutError):
        answers = client.sync(scheduler.broadcast, msg=request, on_error="ignore", callback_timeout=patience)
        for worker, versions in answers.items():
            refuse_others(worker, own_versions(), versions["packages"])
