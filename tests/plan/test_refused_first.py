"""Rows of NaN that a fit will refuse are refused before length-scales are searched."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import call, write_job

from dorff.data import ingest
from dorff.kernels.scalar import FloatArray

TUNED = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "tune"}}
GAP = 2629  # in a run of 64 rows that the sample of the search does not have


class Searched(Exception):
    """Stands for minutes."""


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object, **__: object) -> None:
        raise Searched

    monkeypatch.setattr("dorff.plan.constants.tune_lengthscales", search)


def rows(n: int = 5000) -> dict[str, FloatArray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(n, 2))
    return {"x": x, "y": x.sum(axis=1), "w": np.ones(n), "spare": np.ones(n)}


def job(folder: Path, columns: dict[str, FloatArray], **data: Any) -> Path:
    np.savez(folder / "a.npz", **columns)
    options: dict[str, Any] = {"weights": "w", "also": {"spare": "spare"}, "shard_rows": 64}
    ingest([folder / "a.npz"], folder / "s.zarr", inputs=["x"], targets=["y"], **options)
    return write_job(folder / "j.yaml", data={"store": "s.zarr", **data}, kernel=TUNED, model="m", state="st")


@pytest.mark.parametrize("command", ["fit", "tune"])
@pytest.mark.parametrize(("column", "data"), [("x", {}), ("y", {}), ("w", {"weights": "weights"})])
@pytest.mark.usefixtures("no_search")
def test_before_the_search(tmp_path: Path, command: str, column: str, data: dict[str, str]) -> None:
    columns = rows()
    columns[column][GAP] = np.nan
    done = call(command, job(tmp_path, columns, **data))
    assert done.exit_code == 3 and f"row {GAP}" in done.stderr and "data.nan" in done.stderr


@pytest.mark.usefixtures("no_search")
def test_in_a_store_by_others_where_the_sample_has_such_a_row(tmp_path: Path) -> None:
    columns, group = rows(), zarr.open_group(tmp_path / "s.zarr", mode="w")
    columns["x"][::10] = np.inf
    for name in ("x", "y"):
        group.create_array(name, data=columns[name], chunks=(64, *columns[name].shape[1:]))
    columns["x"][0] = 0.0
    path = write_job(tmp_path / "j.yaml", kernel=TUNED, data={"store": "s.zarr"}, model="m", state="st")
    done = call("fit", path)
    assert done.exit_code == 3 and "data.nan" in done.stderr


@pytest.mark.parametrize(
    ("column", "data"),
    [("x", {"nan": "drop"}), ("y", {"nan": "partial"}), ("y", {"nan": "unlabelled"}), ("spare", {}), ("gone", {})],
)
@pytest.mark.usefixtures("no_search")
def test_other_rows_are_no_reason_to_refuse(tmp_path: Path, column: str, data: dict[str, str]) -> None:
    """The search begins: rows may be left out, NaN is in a column that the job does not read, or weighs nothing."""
    columns = rows()
    if column == "gone":
        columns["w"][GAP], data, column = 0.0, {"weights": "weights"}, "y"
    columns[column][GAP] = np.nan
    done = call("fit", job(tmp_path, columns, **data))
    assert isinstance(done.exception, SystemExit) and done.exit_code == 1 and "Searched" in done.stderr
