"""What starts jobs is optional: a job that wants it is refused in one sentence, and leaves nothing behind."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from command_line import write_job

from dorff.engine import mpi, open_engine
from dorff.engine.mpi import served
from dorff.errors import InputError
from dorff.spec.cluster import SlurmCluster
from dorff.spec.reader import load_job


def test_slurm_needs_dask_jobqueue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlurmCluster(type="slurm", folder=tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no sbatch here"), open_engine(cluster):
        pass
    for name in ("sbatch", "squeue", "scancel"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with (
        pytest.raises(InputError, match=r"dask-jobqueue is missing; pip install 'dorff\[slurm\]'"),
        open_engine(cluster),
    ):
        pass
    assert list((tmp_path / "slurm").iterdir()) == []


def test_slurm_needs_a_folder_that_can_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue", "scancel"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").touch()
    cluster = SlurmCluster(type="slurm", folder=tmp_path / "file")
    with pytest.raises(InputError, match="name one that the nodes see too"), open_engine(cluster):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_mpi_needs_its_libraries(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first rank says so; others end as quietly as they came."""
    monkeypatch.setattr(mpi, "_SPEAKS", 0.1)
    job = write_job(tmp_path / "job.yaml", cluster={"type": "mpi"})
    assert not served(job, partial(load_job, job)), "no mpirun has started this"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InputError, match=r"pip install 'dorff\[mpi\]'"):
        served(job, partial(load_job, job))
    print("heard", file=sys.__stderr__, flush=True)
    assert ("heard" in capfd.readouterr().err) == (rank == 0)


def test_a_job_of_another_kind_is_no_business_of_mpis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a driver that is a job of Slurm's: it has a rank."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    job = tmp_path / "job.yaml"
    assert not served(job, partial(load_job, write_job(job, cluster={"type": "local"})))


@pytest.mark.parametrize(
    "wrong", [{"cluster": {"type": "local", "worker": 2}}, {"cluster": "local"}, {"cluster": None}]
)
def test_a_wrong_job_of_another_kind_is_said_by_every_rank(
    wrong: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    job = tmp_path / "job.yaml"
    with pytest.raises(InputError, match="cluster"):
        served(job, partial(load_job, write_job(job, **wrong)))
    (tmp_path / "job.yaml").write_text("cluster: {type: [")
    with pytest.raises(InputError, match="correct the YAML"):
        served(job, partial(load_job, job))
    print("heard", file=sys.__stderr__, flush=True)
    assert "heard" in capfd.readouterr().err
