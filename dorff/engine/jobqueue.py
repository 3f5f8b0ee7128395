"""Workers that are jobs of Slurm's: asked for, replaced where they are lost, and cancelled when the fit ends."""

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import dask
from distributed import Client
from distributed.security import Security

from dorff.engine.base import TRIES, stopping_on_signals
from dorff.engine.clusters import MALLOC, PAGES, QUIET, check_versions, credentials, no_interface
from dorff.engine.dask import DaskEngine, count_threads
from dorff.engine.worker import UNTIL
from dorff.errors import DorffError, IncompleteError, InputError
from dorff.errors.stopping import stop_requested
from dorff.spec import cluster as spec

_LOOK: Final = 2.0  # seconds between looks at the queue
_YOUNG: Final = 90.0  # seconds: a job of a long walltime that is gone sooner does not count as one that worked
_PAUSE: Final = 30.0  # seconds at most before what went at once is asked for again
_END: Final = 6.0  # seconds for each answer when jobs are cancelled: after a signal there are not many
_NANNY: Final = 128 * 2**20  # bytes of a job beside its worker, which ends at 95% of the job's `memory`
#: Of what quiets a local cluster; elsewhere Dask itself looks for workers that are silent.
_SETTINGS: Final = {name: value for name, value in QUIET.items() if name != "distributed.scheduler.worker-ttl"}
#: Slurm's variables that would change what its commands do, but those that say which Slurm this is and where jobs go.
_SLURMS: Final = re.compile("(?!(SLURM_(CONF|CLUSTERS)|SBATCH_(ACCOUNT|PARTITION))$)S(LURM|BATCH|QUEUE|CANCEL)_")
_NEVER_RUNS: Final = re.compile(r"PartitionTimeLimit|BadConstraints|(QOS|Assoc)MaxWallDurationPerJobLimit")
_log: Final = logging.getLogger(__name__)


def start_slurm(cluster: spec.SlurmCluster, patience: float) -> DaskEngine:
    """The scheduler in this process, and jobs; returns when the first worker is there. InputError where Slurm is
    missing or refuses the job; IncompleteError where no worker comes in `wait` seconds, or jobs end at once."""
    for command in ("sbatch", "squeue", "scancel"):
        if shutil.which(command) is None:
            raise InputError(f"cluster.type slurm: there is no {command} here; run dorff where Slurm's commands are")
    if problem := no_interface(cluster.interface):
        raise InputError(problem)
    with ExitStack() as undo:
        with stopping_on_signals() as stop:
            folder = undo.enter_context(_folder(cluster.folder))
            queue = undo.enter_context(_queue(cluster, folder))
            client = undo.enter_context(Client(queue, set_as_default=False))
            jobs = Jobs(queue.job_script(), folder, cluster)
            undo.callback(jobs.cancel)
            jobs.submit(cluster.workers)
            until = time.monotonic() + cluster.wait + _YOUNG
            while not count_threads(client):
                if stop_requested():
                    raise stop.error()
                jobs.look()
                if time.monotonic() > until:
                    raise IncompleteError(f"cluster.type slurm: jobs have run, no worker has come; {jobs.advice}")
                time.sleep(0.2)
            check_versions(client, patience)
        later = undo.pop_all()
    return DaskEngine(client, patience=cluster.wait + 2 * _YOUNG, on_close=later.close, watch=jobs.look)


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """A new folder for credentials and what jobs print, its owner's alone. After an error what they printed stays."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="dorff-", dir=parent))
    except OSError as error:
        raise InputError(f"cluster.folder {parent}: {error.strerror}; name one that the nodes see too") from error
    try:
        yield folder
    finally:
        for file in folder.glob("*" if sys.exception() is None else "*.pem"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # something was printed
            folder.rmdir()


@contextmanager
def _queue(cluster: spec.SlurmCluster, folder: Path) -> Iterator[Any]:
    """A scheduler that lets in who has the new credentials, and what knows the script of its workers' jobs."""
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError("cluster.type slurm: dask-jobqueue is missing; pip install 'dorff[slurm]'") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupted)  # which dask-jobqueue has taken for itself
    memory = max(cluster.memory, cluster.memory * 95 // 100 + _NANNY)
    names = {name.upper().replace(".", "__").replace("-", "_"): value for name, value in _SETTINGS.items()}
    life = f"$(date +%s) + {cluster.lifetime} - RANDOM % {1 + cluster.lifetime // 10}"  # not all workers at once
    exported = {f"DASK_{name}": value for name, value in names.items()}
    exported |= {name: f"${{{name}:-{value}}}" for name, value in MALLOC.items()} | {UNTIL: f"$(({life}))"}
    prologue = [f"export {name}={value}" for name, value in exported.items()]
    job: dict[str, Any] = {name: getattr(cluster, name) or None for name in ("queue", "account", "interface")}
    job |= {"cores": 1, "processes": 1, "memory": cluster.memory, "job_mem": f"{-(-memory // 2**20)}M"}
    job |= {"walltime": cluster.walltime, "job_name": folder.name, "log_directory": str(folder), "death_timeout": 60}
    job |= {"job_extra_directives": list(cluster.directives), "job_script_prologue": prologue}
    job["python"] = f"exec {shlex.quote(sys.executable)}"  # in the shell's place, which would not tell a signal on
    job["worker_extra_args"] = ["--name", "$SLURM_JOB_ID", "--dashboard-address", PAGES]
    ca, cert, key = map(str, credentials(folder))
    roles = ("scheduler", "worker", "client")
    tls = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
    security = Security(require_encryption=True, tls_ca_file=ca, **tls)
    job |= {"security": security, "protocol": "tls://", "silence_logs": "critical"}
    job["scheduler_options"] = {"dashboard_address": PAGES, "port": 0}
    with dask.config.set(_SETTINGS | {"distributed.scheduler.allowed-failures": 1}), SLURMCluster(**job) as queue:
        yield queue


class Jobs:
    """The jobs of one fit, which all have its folder's name."""

    def __init__(self, script: str, folder: Path, cluster: spec.SlurmCluster) -> None:
        self._script, self._folder, self._cluster = script, folder, cluster
        header = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
        own = " ".join(line for line in header if line not in cluster.directives)
        # Sbatch takes its own command line first. A job that went with its node would come back beside its successor.
        self._options = [*shlex.split(own), "--no-requeue"]
        self._began = dict[str, float | None]()  # when each job that is in the queue was first seen to run
        self._early = 0  # jobs in a row that were gone too soon
        self._next = self._running = time.monotonic()  # the next look; when a job was last seen to run
        self._reason, self._reasons, self._young = "none", {"None"}, min(_YOUNG, cluster.lifetime / 2)

    @property
    def advice(self) -> str:
        """Where to look, and what was printed last."""
        printed = [line for file in self._folder.glob("*.err") for line in file.read_text(errors="replace").split("\n")]
        last = next((f" (the last line: {line})" for line in reversed(printed) if line.strip()), "")
        kept = f"what is done is kept: see what the jobs printed in {self._folder}{last}"
        return f"{kept}, and run the same command again"

    def submit(self, count: int) -> None:
        """Ask for jobs, until told to stop. InputError, in Slurm's words, where it refuses; IncompleteError if away."""
        for _ in range(count):
            if stop_requested():
                return
            done = _call("sbatch", "--parsable", *self._options, script=self._script)
            if done.returncode:
                words = " ".join(done.stderr.removeprefix("sbatch: error: ").split())
                if re.search("contact|timed out|does not answer", words):
                    raise IncompleteError(f"cluster.type slurm: sbatch cannot reach Slurm ({words}); run again later")
                remedy = "correct the job's cluster, or Slurm's settings"
                raise InputError(f"cluster.type slurm: sbatch refuses the job: {words}; {remedy}")
            self._began[done.stdout.split(";")[0].strip()] = None

    def look(self) -> None:
        """Replace jobs that are gone. IncompleteError where those that replace others are gone as soon, or none has
        run for `wait` seconds; a Slurm that does not answer is asked again later."""
        if (now := time.monotonic()) < self._next:
            return
        if now - self._next > _YOUNG:  # nobody has looked: there was nothing to run
            self._running = now
        self._next = now + _LOOK
        listed = _call("squeue", "--all", "--noheader", f"--name={self._folder.name}", "--format=%A|%T|%r")
        if listed.returncode:
            return
        rows = (line.strip().partition("|") for line in listed.stdout.splitlines())
        self._take_note({job: state for job, _, state in rows}, now)
        if self._early > self._cluster.workers + TRIES:
            raise IncompleteError(f"{self._early} jobs of Slurm's in a row ended soon after they began; {self.advice}")
        if now - self._running > self._cluster.wait:
            why = f"none of Slurm's jobs has run for {self._cluster.wait:g} s, and its reason is {self._reason}"
            raise IncompleteError(f"{why}; what is done is kept: see squeue, and run the same command again")
        try:
            self.submit(self._cluster.workers - len(self._began))
        except DorffError as error:  # its controller may be away for a while
            self._reason, self._next = str(error), now + _PAUSE / 3

    def _take_note(self, queued: dict[str, str], now: float) -> None:
        for job, began in list(self._began.items()):
            state, _, reason = queued.get(job, "").partition("|")
            if state in ("", "COMPLETING"):
                del self._began[job]
                self._early = self._early + 1 if began is None or now - began < self._young else 0
                self._next = now + min(_PAUSE, 2.0**self._early / 2)
            elif state == "RUNNING":
                self._began[job], self._running = began or now, now
            else:
                self._reason = reason
                if reason not in self._reasons and not any(one.startswith("RUNNING") for one in queued.values()):
                    self._reasons.add(reason)
                    if _NEVER_RUNS.fullmatch(reason):
                        remedy = "lower cluster.walltime, or correct its memory, queue, account or directives"
                        raise InputError(f"cluster.type slurm: its jobs can never run here ({reason}); {remedy}")
                    _log.info("cluster: Slurm's jobs wait (%s)", reason)

    def cancel(self) -> None:
        """End all jobs, those too whose number did not come back, and whoever insists meanwhile."""
        try:
            self._cancel()
        except KeyboardInterrupt:
            self._cancel()
            raise

    def _cancel(self) -> None:
        ids, name = list(self._began), f"--name={self._folder.name}"
        for which in (ids, [name]) if ids else ([name],):
            done = _call("scancel", "--quiet", *which, seconds=_END)
            if ids and done.returncode:
                return _log.warning("jobs may be left: scancel %s (%s)", " ".join(ids), done.stderr.strip())


def _call(*words: str, script: str = "", seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands, which Ctrl-C does not reach."""
    env = {name: value for name, value in os.environ.items() if not _SLURMS.match(name)}
    pipes: dict[str, Any] = {"input": script, "capture_output": True, "text": True, "start_new_session": True}
    try:
        return subprocess.run(words, env=env, timeout=seconds, check=False, **pipes)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} does not answer")
