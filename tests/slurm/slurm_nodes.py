"""Slurm with three nodes on loopback, of Debian's packages munge, slurmctld, slurmd and slurm-client."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

import pytest

PROGRAMS: Final = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
NODES: Final = ("n1", "n2", "n3")
CONF: Final = """\
ClusterName=dorff
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ReturnToService=2
KillWait=60
MinJobAge=300
FirstJobId={first_job}
SlurmctldTimeout=30
SlurmdTimeout=30
PropagateResourceLimits=NONE
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=6000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=6000
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2 RealMemory=6000
PartitionName=batch Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=n[1-3] State=DOWN
PartitionName=short Nodes=n[1-3] MaxTime=2 State=UP
"""


def missing() -> str:
    """The Debian packages of what is not installed."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    return " ".join(package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None)


@final
class Slurm:
    """What a test does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True, timeout=600)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self, *options: str) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.call("squeue", "--noheader", "--format=%A", *options).split()

    def pid(self, daemon: str) -> int:
        return int((self.folder / f"{daemon}.pid").read_text())

    def start(self, daemon: str) -> None:
        name, _, node = daemon.partition(".")
        self.call(f"/usr/sbin/{name}", "-f", str(self.folder / "slurm.conf"), *(["-N", node] if node else []))

    def kill(self, daemon: str, number: int = signal.SIGKILL) -> None:
        pid = self.pid(daemon)
        os.kill(pid, number)
        until(lambda: not Path(f"/proc/{pid}").exists())

    def idle(self, state: str = "idle") -> bool:
        return self.call("sinfo", "-h", "-N", "-p", "batch", "-o", "%T").split() == [state] * len(NODES)

    def resume_nodes(self) -> None:
        """All nodes take jobs: one may be drained by Slurm itself, for how a job of an earlier test ended."""
        until(lambda: not self.jobs())
        for node in self.call("sinfo", "--noheader", "--list-reasons", "--format=%n").split():
            self.call("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        until(self.idle)

    def describe(self) -> str:
        """What a failed test is read with: nodes and why they take no jobs, the queue, the controller's last words."""
        nodes = self.call("sinfo", "--Node", "--long", check=False)
        queue = self.call("squeue", "--long", check=False)
        log = (self.folder / "slurmctld.log").read_text(errors="replace").splitlines()[-30:]
        return "\n".join([nodes, queue, *log])


def until(true: Callable[[], object], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def slurm_nodes() -> Iterator[Slurm]:
    """Three nodes of two cores and 6000 MB each; all daemons end with the block."""
    if packages := missing():
        pytest.skip(f"Slurm is not installed: apt-get install {packages}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path has to be short
    folder.chmod(0o755)
    slurm = Slurm(folder)
    names = ["munged", "slurmctld", *(f"slurmd.{node}" for node in NODES)]
    try:
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{name}={folder / file}" for name, file in {**files, "seed-file": "munged.seed"}.items()]
        slurm.call("/usr/sbin/munged", *options, "--num-threads=2", "--force")
        host = socket.gethostname().partition(".")[0]
        ports = free_ports(4)
        # Several Slurms run at a time, and MPI's shared memory, for one, is called by a job's number.
        first_job = 1000 * ports[0]
        conf = CONF.format(host=host, user=getpass.getuser(), folder=folder, ports=ports, first_job=first_job)
        (folder / "slurm.conf").write_text(conf)
        (folder / "state").mkdir()
        for node in NODES:
            (folder / f"spool.{node}").mkdir()
        for name in names[1:]:
            slurm.start(name)
        until(slurm.idle)
        yield slurm
    finally:
        with suppress(AssertionError, OSError, subprocess.TimeoutExpired):
            slurm.call("scancel", f"--user={getpass.getuser()}", check=False)
            until(lambda: not slurm.jobs(), 20)
        for name in reversed(names):
            with suppress(OSError, ValueError, AssertionError):
                slurm.kill(name, signal.SIGTERM)
        for name in names:
            with suppress(OSError, ValueError, AssertionError):
                slurm.kill(name)
        shutil.rmtree(folder, ignore_errors=True)
