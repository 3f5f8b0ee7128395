"""The processes of one MPI job, by their rank: a scheduler, the driver, and workers."""

import atexit
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dorff.engine.base import Engine
from dorff.errors import DorffError, InputError
from dorff.spec import cluster as spec
from dorff.spec.job import Job

#: Where mpirun of Open MPI, of MPICH and srun tell a process its rank.
_RANKS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # where mpirun tells how many there are; srun also has scripts
_MPIS: Final = r"(?m)^[^#\n]*\btype\W+mpi\b"  # a job of this kind, though it may be wrong
_COMES: Final = 15.0  # seconds for the scheduler, and then the workers, to be there when the driver ends
_GONE: Final = 300.0  # seconds after which a worker that finds no scheduler ends all
_SPEAKS: Final = 5.0  # seconds for the first rank to speak: mpirun ends all when one has failed


def served(job: Path, read: Callable[[], Job]) -> bool:
    """Whether this process is a rank of a job `cluster: {type: mpi}` that is not the driver's: it has served it then.
    `read` gives the job, or refuses it.
    InputError where the job cannot be read or run so, which of several ranks the first alone says."""
    rank = next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), None)
    if rank is None:
        return False
    several = any(os.environ.get(name, "1") != "1" for name in _SIZES)
    try:
        cluster = read().cluster
        if several and not isinstance(cluster, spec.MPICluster):
            came = f"cluster.type is {cluster.type}, and mpirun has started several processes of it"
            raise InputError(f"{came}; set cluster.type: mpi, or leave mpirun out")
        return isinstance(cluster, spec.MPICluster) and not _started(cluster)
    except DorffError:
        if job.is_file() and (several or re.search(_MPIS, job.read_text(errors="replace"))):
            if rank:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            time.sleep(_SPEAKS if rank else _SPEAKS / 5)  # until all others are quiet
        raise


def _started(cluster: spec.MPICluster) -> bool:
    """True at once in the driver's rank, whose end is that of all; False in the others, after that."""
    try:
        from dask_mpi import initialize
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        problem = f"cluster.type mpi: dask-mpi, mpi4py or the MPI that it wants is missing ({error})"
        raise InputError(f"{problem}; pip install 'dorff[mpi]'") from error
    from dorff.engine.clusters import PAGES, no_interface

    world = MPI.COMM_WORLD
    if world.size < 3:
        came = f"cluster.type mpi: wanted a scheduler, the driver and a worker, came processes that see {world.size}"
        raise InputError(f"{came}; use mpirun -n 4 dorff fit JOB.yaml, or srun --mpi=KIND that its MPI knows")
    if problem := next(filter(None, world.allgather(no_interface(cluster.interface))), ""):
        raise InputError(problem)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is raised in the driver
    _share_credentials(world)
    if world.rank != 1:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until a worker has a leaf, which sees to it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker_options = {"dashboard_address": PAGES, "death_timeout": _GONE}
    options = {"protocol": "tls://", "dashboard": False, "worker_options": worker_options}
    options |= {"interface": cluster.interface or None, "memory_limit": cluster.memory, "dashboard_address": PAGES}
    driver: bool = initialize(**options, exit=False)
    if driver:
        atexit.register(_end, world.size - 2)
    return driver


def _share_credentials(world: Any) -> None:
    """Settings of Dask's, by which all ranks use the same new credentials, which no file has."""
    import dask
    from distributed.security import Security

    from dorff.engine.clusters import QUIET

    texts = world.bcast(Security.temporary().get_tls_config_for_role("client") if world.rank == 0 else None)
    tls = {f"{role}.{part}": texts[part] for role in ("scheduler", "worker", "client") for part in ("cert", "key")}
    settings = {f"comm.tls.{name}": text for name, text in tls.items()} | {"comm.tls.ca-file": texts["ca_file"]}
    settings |= {"comm.require-encryption": True, "scheduler.allowed-failures": 1}
    dask.config.set(QUIET | {f"distributed.{name}": value for name, value in settings.items()})


def _end(workers: int) -> None:
    """End the other ranks; a worker that came later would wait for a scheduler that is gone, and mpirun for it."""
    from distributed import Client

    with suppress(OSError, RuntimeError), Client(timeout=_COMES) as client:
        with suppress(TimeoutError):
            client.wait_for_workers(workers, timeout=_COMES)
        client.shutdown()


def start_mpi(cluster: spec.MPICluster, patience: float) -> Engine:
    """The engine of the workers among this MPI job's processes. InputError where this process is no rank of one."""
    import dask

    from dorff.engine.clusters import connect

    if (address := dask.config.get("scheduler_address", None)) is None:
        raise InputError("cluster.type mpi: no mpirun has started this; write mpirun -n 4 dorff fit JOB.yaml")
    return connect(spec.RemoteCluster(address=address), patience, ours=True)
