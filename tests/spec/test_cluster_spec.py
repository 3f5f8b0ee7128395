"""What `cluster: {type: slurm}` may say, and what the plan makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, field, write_job

from dorff.data import ingest
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


def test_workers_elsewhere_need_no_memory_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", field(200))
    ingest(["rows.npy"], "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    peaks = set()
    for workers in (1, 10_000):
        write_job(tmp_path / "job.yaml", cluster={"type": "slurm", "workers": workers})
        planned = call("plan", "job.yaml", "--json")
        assert planned.exit_code == 0, planned.stderr
        peaks.add(json.loads(planned.stdout)["peak_bytes"])
    assert len(peaks) == 1
