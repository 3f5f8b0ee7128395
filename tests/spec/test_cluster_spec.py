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


def read(folder: Path, /, **cluster: Any) -> SlurmCluster:
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
        ({"directives": "--job-name=mine"}, r"cluster.directives.* has --job-name=mine, which dorff sets; take it out"),
        (
            {"directives": ["--qos=x", "--qos=y -t 5"]},
            r"directives\[1\] has -t, which dorff sets; use cluster.walltime",
        ),
        ({"directives": "-t5"}, "has -t5, which dorff sets; use cluster.walltime"),
        ({"directives": "--ti=5"}, "has --ti=5, which dorff sets; use cluster.walltime"),
        ({"directives": "--mem 5G"}, "has --mem, which dorff sets; use cluster.memory"),
        ({"directives": "--array=1-3"}, "use cluster.workers"),
        ({"directives": "--output=/x"}, "use cluster.folder"),
        ({"directives": "-pbig"}, "use cluster.queue"),
        ({"directives": "--requeue"}, "has --requeue, which dorff sets; take it out"),
        ({"interface": "`id`"}, "cluster.interface must match pattern"),
        ({"account": "-x"}, "cluster.account must match pattern"),
        ({"folder": "R&D_$x"}, r"cluster.folder must be a folder .*letters, digits and \./_.*came '.*R&D_\$x'; name"),
        ({"folder": "a folder"}, "cluster.folder must be a folder that the nodes see"),
        (
            {"folder": "s3://bucket/slurm"},
            r"cluster.folder must be a folder that the nodes see.*came 's3://bucket/slurm'",
        ),
    ],
)
def test_what_sbatch_would_misread_is_refused(tmp_path: Path, cluster: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, **cluster)


def test_other_options_of_sbatch_are_passed_on(tmp_path: Path) -> None:
    """Those whose names begin as one that dorff sets, too."""
    others = (
        "--time-min=10 --comment='-t'",
        "--exclude=n9",
        "-C fast",
        "--mem-bind=local",
        "--ntasks-per-core=1",
    )
    assert read(tmp_path, directives=list(others)).directives == others


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
