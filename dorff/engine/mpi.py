"""The processes of one MPI job, by their rank: a scheduler, the driver, and workers."""

import atexit
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dorff.errors import DorffError, InputError
from dorff.spec import cluster as spec
from dorff.spec.reader import load_job

if TYPE_CHECKING:
    from dorff.engine.dask import DaskEngine

#: Where mpirun of Open MPI, of MPICH and srun tell a process its rank.
_RANKS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_PAGES: Final = "127.0.0.1:0"  # Dask's pages are not under TLS


def served(job: Path, root: Path | None = None) -> bool:
    """Whether this process is a rank of a job `cluster: {type: mpi}` that is not the driver's: it has served it then.

    InputError where the job cannot be read or run so, which the first rank alone says."""
    rank = next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), None)
    if rank is None:
        return False
    try:
        cluster = load_job(job, root=root).cluster
        return isinstance(cluster, spec.MPICluster) and not _started(cluster)
    except DorffError:
        if rank:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        raise


def _started(cluster: spec.MPICluster) -> bool:
    """True at once in the driver's rank, whose end is that of all; False in the others, after that."""
    try:
        from dask_mpi import initialize
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        problem = f"cluster.type mpi: dask-mpi or mpi4py is missing or finds no MPI ({error})"
        raise InputError(f"{problem}; pip install 'dorff[mpi]'") from error
    import dask

    from dorff.engine.clusters import QUIET

    world = MPI.COMM_WORLD
    if world.size < 3:
        raise InputError(
            f"cluster.type mpi: {world.size} processes came, wanted 3 at least, a scheduler, the driver and a worker; "
            "start it as mpirun -n 4 dorff fit JOB.yaml, or by srun --mpi= of a kind that its MPI understands"
        )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is raised in the driver
    dask.config.set(QUIET | _encryption(world.bcast(_credentials() if world.rank == 0 else None)))
    if world.rank != 1:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker's leaf sees to it, once there is one
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver: bool = initialize(
        interface=cluster.interface or None,
        protocol="tls://",
        memory_limit=cluster.memory,
        dashboard=False,
        dashboard_address=_PAGES,
        worker_options={"dashboard_address": _PAGES},
        exit=False,
    )
    if driver:
        atexit.register(_end)
    return driver


def _credentials() -> dict[str, str]:
    from distributed.security import Security

    texts: dict[str, str] = Security.temporary().get_tls_config_for_role("client")
    return {part: text for part, text in texts.items() if text}


def _encryption(texts: dict[str, str]) -> dict[str, object]:
    """Settings of Dask's, by which all ranks use the same credentials, which no file has."""
    tls = {f"{role}.{part}": texts[part] for role in ("scheduler", "worker", "client") for part in ("cert", "key")}
    settings: dict[str, object] = {f"distributed.comm.tls.{name}": text for name, text in tls.items()}
    settings["distributed.comm.tls.ca-file"] = texts["ca_file"]
    return settings | {"distributed.comm.require-encryption": True, "distributed.scheduler.allowed-failures": 1}


def _end() -> None:
    """Have scheduler and workers end: their processes have done with it."""
    from distributed import Client

    with suppress(OSError, RuntimeError), Client(timeout=5) as client:
        client.shutdown()


def start_mpi(cluster: spec.MPICluster, patience: float) -> "DaskEngine":
    """The engine of the workers among this MPI job's processes. InputError where this process is no rank of one."""
    import dask
    from distributed import Client

    from dorff.engine.clusters import check_versions
    from dorff.engine.dask import DaskEngine

    if dask.config.get("scheduler_address", None) is None:
        raise InputError("cluster.type mpi: no mpirun has started this; write mpirun -n 4 dorff fit JOB.yaml")
    client = Client(timeout=patience)
    client.wait_for_workers(1, timeout=patience)
    check_versions(client, patience)
    return DaskEngine(client, patience=patience)
