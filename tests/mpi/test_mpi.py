"""One job under mpirun: a rank schedules, one is the driver, others are workers; the bits are those of a fit here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from command_line import CURL, DORFF, field, run, write_job
from processes import until
from table import Trial

from dorff.data import ingest
from dorff.store import load_model

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI: apt-get install openmpi-bin libopenmpi-dev"),
]
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LEAVES = 4
ROWS = LEAVES * 16384


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of four leaves, and a fit of it here."""
    folder = tmp_path_factory.mktemp("here")
    np.save(folder / "rows.npy", field(ROWS))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    write_job(folder / "job.yaml", kernel=CURL, features={"count": 1400})
    fitted = run("fit", "job.yaml", cwd=folder)
    assert fitted.returncode == 0, fitted.stderr
    return folder


@pytest.fixture
def place(here: Path, tmp_path: Path) -> Path:
    """A job of the same data under mpirun."""
    mpi = {"type": "mpi", "memory": "1GiB", "interface": "lo"}
    data = {"store": str(here / "sea.zarr")}
    write_job(tmp_path / "job.yaml", data=data, kernel=CURL, features={"count": 1400}, cluster=mpi)
    return tmp_path


def start(place: Path, ranks: int, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["mpirun", "-n", str(ranks), "--oversubscribe", *(words or (DORFF, "fit", "job.yaml", "--json"))], cwd=place,
        env=os.environ | ROOT_MAY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def sentences(errors: str) -> list[str]:
    """What dorff said; mpirun's own words on exit codes are between lines. It tells the other ranks to stop when one
    has ended, and on a busy machine one of them may still be where it says that it was."""
    lines = [line for line in errors.splitlines() if line.startswith("dorff: ") or "Traceback" in line]
    return [line for line in lines if not line.startswith("dorff: stopped")]


def same(place: Path, here: Path) -> bool:
    """Whether the model is that of a fit here."""
    first, second = (folder / "models" / "sea" / "v000001" for folder in (here, place))
    chunks = [file.relative_to(first) for file in first.rglob("*") if file.is_file() and "c" in file.parts]
    assert len(chunks) > 3
    return all((first / chunk).read_bytes() == (second / chunk).read_bytes() for chunk in chunks)


def test_the_model_is_that_of_a_fit_here_to_the_last_bit(place: Path, here: Path) -> None:
    out, err = (fitted := start(place, 4)).communicate(timeout=600)
    assert fitted.returncode == 0, err
    report = json.loads(out)
    assert report["rows_used"] == ROWS and report["leaves_computed"] == LEAVES and not report["in_driver"]
    assert not [line for line in err.splitlines() if "fit: " not in line], err
    assert same(place, here)


def test_ranks_that_are_too_few_are_said_once(place: Path) -> None:
    for ranks in (1, 2):
        _, err = (fitted := start(place, ranks)).communicate(timeout=600)
        (sentence,) = sentences(err)
        assert fitted.returncode == 3 and f"came processes that see {ranks}; use mpirun -n 4 dorff fit" in sentence


def test_a_job_that_is_wrong_is_said_once(place: Path) -> None:
    write_job(place / "job.yaml", cluster={"type": "mpi", "workers": 2})
    _, err = (fitted := start(place, 3)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and "workers is not a known key" in sentence


def test_a_job_of_another_kind_is_not_fitted_by_each_rank(place: Path) -> None:
    write_job(place / "job.yaml", cluster={"type": "local"})
    _, err = (fitted := start(place, 3)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and "set cluster.type: mpi, or leave mpirun out" in sentence
    assert not (place / "runs").exists()


def test_the_drivers_exit_code_is_that_of_all(place: Path) -> None:
    write_job(place / "job.yaml", cluster={"type": "mpi"})
    _, err = (fitted := start(place, 3)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and "sea.zarr" in sentence


def test_an_interface_that_a_rank_lacks_is_named_once(place: Path) -> None:
    write_job(place / "job.yaml", cluster={"type": "mpi", "interface": "nope0"})
    _, err = (fitted := start(place, 3)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and "cluster.interface nope0: " in sentence and "name one of lo" in sentence


#: A driver that waits two seconds for its cluster, of which one rank does not come up.
LAME = """
import os, signal, sys, asyncio, psutil, distributed
from dorff.engine import mpi, open_engine
from dorff.errors import IncompleteError
from dorff.spec.reader import load_job
from pathlib import Path


class Never(distributed.Worker):
    async def start_unsafe(self):
        await asyncio.sleep(60)


def ranks():
    for one in psutil.Process().parent().children(recursive=True):
        yield one, one.environ().get("OMPI_COMM_WORLD_RANK")


if sys.argv[1] == "worker":
    distributed.Worker = Never
if not mpi.served(Path("job.yaml"), lambda: load_job(Path("job.yaml"))):
    if sys.argv[1] == "scheduler":
        [one.suspend() for one, rank in ranks() if rank == "0"]
    try:
        with open_engine(load_job(Path("job.yaml")).cluster, patience=2.0):
            pass
    except IncompleteError as error:
        print(error, flush=True)
    finally:
        [one.kill() for one, rank in ranks() if rank != "1"]
"""


@pytest.mark.parametrize(("whom", "problem"), [("scheduler", "scheduler"), ("worker", "no workers after 2 s")])
def test_a_rank_that_does_not_come_up_is_said(place: Path, whom: str, problem: str) -> None:
    out, err = start(place, 3, sys.executable, "-c", LAME, whom).communicate(timeout=600)
    assert out.startswith("cluster tls://127.0.0.1:") and problem in out and out.count("\n") == 1, out + err


#: A worker that comes up when the driver has failed already, as on a busy machine.
LATE = """
import asyncio, sys, distributed
from dorff.cli import main


class Late(distributed.Worker):
    async def start_unsafe(self):
        await asyncio.sleep(4)
        return await super().start_unsafe()


distributed.Worker = Late
sys.argv = ["dorff", "fit", "job.yaml"]
main()
"""


def test_a_driver_that_fails_before_a_worker_is_there_ends_all(place: Path) -> None:
    write_job(place / "job.yaml", cluster={"type": "mpi"})
    _, err = (fitted := start(place, 3, sys.executable, "-c", LATE)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and "sea.zarr" in sentence


def test_a_worker_with_other_packages_is_refused(place: Path, tmp_path: Path) -> None:
    """In its environment NumPy says that it is version 1.0."""
    (tmp_path / "packages" / "numpy-1.0.dist-info").mkdir(parents=True)
    about = "Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n"
    (tmp_path / "packages" / "numpy-1.0.dist-info" / "METADATA").write_text(about)
    paths = f"{tmp_path / 'packages'}:{os.environ.get('PYTHONPATH', '')}"
    other = [":", "-n", "1", "--oversubscribe", "env", f"PYTHONPATH={paths}", DORFF, "fit", "job.yaml"]
    _, err = (fitted := start(place, 2, DORFF, "fit", "job.yaml", *other)).communicate(timeout=600)
    (sentence,) = sentences(err)
    assert fitted.returncode == 3 and f"numpy is 1.0 there and {np.__version__} in the driver" in sentence


def test_without_mpirun_there_is_no_fit(place: Path) -> None:
    done = run("fit", "job.yaml", cwd=place)
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 3 and sentence.endswith(
        "no mpirun has started this; write mpirun -n 4 dorff fit JOB.yaml"
    )


WORKER = """
from distributed import Client
from dorff.engine import mpi, open_engine
from dorff.spec.reader import load_job
from pathlib import Path

job = Path("job.yaml")
if not mpi.served(job, lambda: load_job(job)):
    with open_engine(load_job(job).cluster), Client() as client:
        info = client.scheduler_info()["workers"]
        print([(one["memory_limit"], one["nthreads"], one["host"]) for one in info.values()])
"""


def test_ranks_have_the_memory_and_the_interface_of_the_job(place: Path) -> None:
    out, err = (asked := start(place, 3, sys.executable, "-c", WORKER)).communicate(timeout=600)
    assert asked.returncode == 0, err
    assert out.strip() == str([(2**30, 1, "127.0.0.1")])


def test_nobody_without_the_jobs_credentials_is_let_in(place: Path) -> None:
    """A client of plain TCP gets no answer from any port of the ranks."""
    fitted = start(place, 3)
    until(lambda: list(place.glob("runs/sea/*/receipts/*.json")))
    ranks = [one for one in psutil.Process(fitted.pid).children(recursive=True) if "dorff" in " ".join(one.cmdline())]
    ports = [one.laddr.port for rank in ranks for one in rank.net_connections("tcp") if one.status == "LISTEN"]
    code = "import sys; from distributed import Client; Client(sys.argv[1], timeout=2)"
    for port in ports:
        done = subprocess.run([sys.executable, "-c", code, f"tcp://127.0.0.1:{port}"], capture_output=True, check=False)
        assert done.returncode
    assert ports
    fitted.communicate(timeout=600)
    assert fitted.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["worker", "mpirun"])
def test_a_rank_that_is_killed_ends_all_and_the_same_command_goes_on(
    place: Path, here: Path, whom: str, trial: Trial
) -> None:
    fitted = start(place, 4)
    until(lambda: list(place.glob("runs/sea/*/receipts/*.json")))
    ranks = [one for one in psutil.Process(fitted.pid).children(recursive=True) if "dorff" in " ".join(one.cmdline())]
    if whom == "mpirun":
        fitted.send_signal(signal.SIGTERM)
    else:
        next(one for one in ranks if one.environ()["OMPI_COMM_WORLD_RANK"] == "2").kill()
    _, err = fitted.communicate(timeout=600)
    assert fitted.returncode != 0 and "Traceback" not in err
    assert psutil.wait_procs(ranks, timeout=600)[1] == []
    before = len(list(place.glob("runs/sea/*/receipts/*.json")))
    out, err = (fitted := start(place, 4)).communicate(timeout=600)
    assert fitted.returncode == 0, err
    report = json.loads(out)
    trial.settle(
        f"{whom} killed, run again" if whom == "worker" else "mpirun ended by SIGTERM, run again",
        rows=(ROWS, load_model(place / "models" / "sea").info["report"]["rows_used"]),
        same=same(place, here),
        redone=f"{before - report['leaves_reused']} leaves that were done",
    )
    assert report["rows_used"] == ROWS and report["leaves_reused"] >= 1
