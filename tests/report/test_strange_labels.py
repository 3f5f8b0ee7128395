"""Labels with characters that move a cursor, hide or turn text: in no name, terminal or page they are as they came."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import INDEPENDENT, call, write_job

LABELS = ["red\x1b[31m", "blu\u202ee", "gr\x9ben"]
STRANGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of such labels, one of whose inputs has such categories."""
    folder, rng = tmp_path_factory.mktemp("strange"), np.random.default_rng(0)
    x = rng.uniform(-1, 1, 300)
    rows = [f"{value:.4f},{LABELS[i % 3]},{LABELS[int((value + 1) * 1.49)]}" for i, value in enumerate(x)]
    (folder / "a.csv").write_text("\n".join(["x,k,c", *rows]) + "\n")
    done = call("ingest", folder / "a.csv", folder / "a.zarr", "--inputs", "x,k", "--classes", "c")
    assert done.exit_code == 0 and not STRANGE.search(done.output)
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": 0.5}}
    job = write_job(folder / "j.yaml", data={"store": "a.zarr"}, kernel=kernel, state="st", model="m")
    done = call("fit", job)
    assert done.exit_code == 0 and not STRANGE.search(done.output)
    return folder


def test_terminal_and_page_have_escapes(place: Path, tmp_path: Path) -> None:
    for words in (("plan", place / "j.yaml"), ("inspect", place / "m"), ("score", place / "m", place / "a.csv")):
        done = call(*words)
        assert done.exit_code == 0 and not STRANGE.search(done.output), done.output
    assert call("report", place / "m", "-o", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not STRANGE.search(page) and "red\\x1b[31m" in page


def test_names_of_predictions_have_escapes(place: Path, tmp_path: Path) -> None:
    """Values are those of the data."""
    for name in ("out.csv", "out.nc", "out.zarr"):
        done = call("predict", place / "m", place / "a.csv", tmp_path / name)
        assert done.exit_code == 0 and not STRANGE.search(done.output), done.output
    lines = (tmp_path / "out.csv").read_text(encoding="utf-8").split("\n")
    assert not STRANGE.search(lines[0]) and "red\\x1b[31m_" in lines[0]
    assert LABELS[0] in lines[1]
    with h5py.File(tmp_path / "out.nc") as file:
        names = [*file, *(str(value) for variable in file.values() for value in variable.attrs.values())]
    assert not any(map(STRANGE.search, names))
    metadata = (tmp_path / "out.zarr" / "zarr.json").read_text()
    assert not STRANGE.search(metadata)
