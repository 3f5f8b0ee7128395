"""What `cluster: {type: slurm}` may say, and what the plan makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import write_job

from dorff.errors import InputError
from dorff.spec.cluster import SlurmCluster
from dorff.spec.reader import load_job


def read(folder: Path, **cluster: Any) -> SlurmCluster:
    job = load_job(write_job(folder / "job.yaml", cluster={"type": "slurm"} | cluster))
    assert isinstance(job.cluster, SlurmCluster)
    return job.cluster


@pytest.mark.parametrize(
    ("walltime", "lifetime"),
    [("00:01:00", 40), ("00:06:00", 300), ("01:00:00", 3480), ("24:00:00", 86280), ("2-00:00:00", 172680)],
)
def test_a_worker_ends_before_its_walltime(tmp_path: Path, walltime: str, lifetime: int) -> None:
    assert read(tmp_path, walltime=walltime).lifetime == lifetime


def test_what_is_left_out_is_beside_the_job(tmp_path: Path) -> None:
    cluster = read(tmp_path, directives="--qos=low")
    assert cluster.directives == ("--qos=low",) and cluster.folder == tmp_path / "slurm"
    assert not cluster.on_this_machine


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        (
            {"walltime": "00:00:59"},
            r"cluster.walltime must be .* a minute at least, came '00:00:59'; correct it",
        ),
        ({"walltime": 3600}, "cluster.walltime must be a time in quotes, .* came 3600; correct it"),
        ({"walltime": "90"}, "cluster.walltime must be a time in quotes"),
        ({"queue": "a\nb"}, "cluster.queue"),
        ({"directives": ["qos=low"]}, r"cluster.directives\[0\]"),
        ({"directives": ["--qos=low\nrm -r /"]}, r"cluster.directives\[0\]"),
        ({"workers": 0}, "cluster.workers"),
    ],
)
def test_what_sbatch_would_misread_is_refused(tmp_path: Path, cluster: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, **cluster)
