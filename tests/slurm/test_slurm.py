"""Fits whose workers are jobs of a real Slurm: the same bits as a local fit's, whatever becomes of the jobs; what is
refused; and no job that stays."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CURL, DORFF, field, run, write_job
from slurm_nodes import Slurm, slurm_nodes, until

from dorff.data import ingest

pytestmark = [pytest.mark.process, pytest.mark.timeout(200), pytest.mark.xdist_group("slurm")]
LEAVES = 4
ROWS = LEAVES * 16384


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of four leaves."""
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "rows.npy", field(ROWS))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    return folder


class Place:
    """A folder with a job of Slurm's, and one beside it that is the same but runs here."""

    def __init__(self, folder: Path, data: Path, slurm: Slurm) -> None:
        self.folder, self.data, self.slurm = folder, data, slurm
        self.environment = os.environ | slurm.environment

    def job(self, count: int, **cluster: Any) -> None:
        here = {"data": {"store": str(self.data / "sea.zarr")}, "kernel": CURL, "features": {"count": count}}
        there = {"type": "slurm", "workers": 2, "memory": "600MiB", "interface": "lo", "wait": 60.0} | cluster
        write_job(self.folder / "job.yaml", **here, cluster=there)
        write_job(self.folder / "here.yaml", **here, state="runs/here", model="models/here")

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [DORFF, "fit", "job.yaml", "--json"], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def fit(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return run("fit", "job.yaml", "--json", cwd=self.folder, env=self.environment | environment)

    def receipts(self) -> list[Path]:
        return list(self.folder.glob("runs/sea/*/receipts/*.json"))

    def empty(self) -> None:
        """No job stays, nor credentials."""
        until(lambda: not self.slurm.jobs(), 30)
        assert not list(self.folder.glob("slurm/*/*.pem"))

    def check(self, fitted: subprocess.Popen[str]) -> dict[str, Any]:
        """That the fit is that of all rows, its model is that of a fit here to the last bit, and no job stays."""
        out, err = fitted.communicate(timeout=150)
        assert fitted.returncode == 0, err
        report: dict[str, Any] = json.loads(out)
        assert report["rows_used"] == ROWS and report["rows_dropped"] == 0 and report["coverage"] == 1
        assert report["leaves_computed"] + report["leaves_reused"] == LEAVES
        self.same()
        assert list(self.folder.glob("slurm/*")) == []
        return report

    def same(self) -> None:
        here = run("fit", "here.yaml", cwd=self.folder)
        assert here.returncode == 0, here.stderr
        first, second = (self.folder / "models" / name / "v000001" for name in ("sea", "here"))
        arrays = {file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.suffix == ".npy"}
        assert arrays == {file: (second / file).read_bytes() for file in arrays} and arrays
        self.empty()


@pytest.fixture
def place(tmp_path: Path, data: Path, slurm: Slurm) -> Place:
    return Place(tmp_path, data, slurm)


def test_the_model_is_that_of_a_local_fit_to_the_last_bit(place: Place) -> None:
    place.job(200)
    fitted = place.start()
    until(place.slurm.jobs)
    keys = list(place.folder.glob("slurm/*/key.pem"))
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600]
    assert [key.parent.stat().st_mode & 0o777 for key in keys] == [0o700]
    report = place.check(fitted)
    assert report["leaves_computed"] == LEAVES and not report["in_driver"]
