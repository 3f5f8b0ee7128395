"""The demo, end to end: what it finds, what it leaves, and where it refuses to work."""

from __future__ import annotations

import hashlib
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import zarr

from dorff.cli.demo import DemoResult, Search, run_demo
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.spec.reader import load_job
from dorff.store import load_model

pytestmark = pytest.mark.process  # the demo starts a cluster of its own

DATA = files("dorff") / "demo_data"


def test_the_data_are_what_they_were() -> None:
    raw = (DATA / "glad.csv").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == "ec99b07abcc9985eaa229a39b4fe808ad05f01ab0c2852db26e4764785d24a6b"
    assert "Renato Berlinghieri" in (DATA / "LICENSE").read_text(encoding="utf-8")
    assert "10.7266/N7VD6WC8" in (DATA / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, list[str]]:
    said: list[str] = []
    return run_demo(tmp_path_factory.mktemp("demo"), echo=said.append), said


def test_it_finds_what_it_should(demo: tuple[DemoResult, list[str]]) -> None:
    result, said = demo
    assert result.rows == 1183 and result.tracks == 37
    assert result.curl_share == 0.0 and result.lengthscale == 60.0
    assert 0.148 < result.kfold_rmse < 0.157  # of whole tracks; single rows of known tracks were 0.130
    assert result.rmse < result.kfold_rmse and result.r2 > 0.6
    text = "\n".join(said)
    rmse = f"{result.kfold_rmse:.4f}"
    sentences = ("from one pass", "curl-free alone", "tracks not seen", "ridge 0.0003")
    for words in ("1,183", *sentences, rmse, str(result.page)):
        assert words in text, words
    shares = {"divergence-free alone": 0.157, "curl-free alone": 0.24}
    for name, most in shares.items():
        (line,) = [line for line in said if line.startswith("           ") and name in line]
        assert float(line.split(name)[1].split()[0]) < most


def test_it_leaves_a_page_predictions_and_a_job(demo: tuple[DemoResult, list[str]]) -> None:
    result, _ = demo
    page = result.page.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 6
    name = "divergence_free, lengthscale 60"
    for words in ("Divergence and vorticity", name, "1,183", "observations"):
        assert words in page, words
    values = np.asarray(zarr.open_group(str(result.predictions), mode="r")["y"])
    points = np.loadtxt(result.directory / "grid.csv", delimiter=",", skiprows=1)
    assert values.shape == points.shape == (1600, 2)
    np.testing.assert_allclose(values, load_model(result.model).predict(points), rtol=1e-12)


def test_whole_tracks_are_held_out(demo: tuple[DemoResult, list[str]]) -> None:
    """And the fit's warnings are printed: of this search there are none, of one with too large ridges there are."""
    result, said = demo
    report = load_model(result.model).info["report"]
    assert report["held_by"] == "groups" and report["folds"] == 5 and report["warnings"] == list(result.warnings)
    rows = np.loadtxt(result.directory / "drifters.csv", delimiter=",", skiprows=1)
    _, counts = np.unique(rows[:, 4], return_counts=True)
    assert sorted(counts.tolist()) == [31, *[32] * 36]
    steps = np.hypot(*np.diff(rows[:, :2], axis=0).T)
    assert steps[np.diff(rows[:, 4]) == 0].max() < 12 and steps[np.diff(rows[:, 4]) != 0].min() > 24
    assert [line for line in said if line.startswith("warning")] == [f"warning  {one}" for one in result.warnings]


def test_warnings_of_the_fit_are_printed(tmp_path: Path) -> None:
    search = Search(lengthscales=(60.0,), shares=(0.0,), ridges=(1e-2, 1e-1), features=128)
    said: list[str] = []
    result = run_demo(tmp_path / "new", echo=said.append, search=search)
    assert any("set solve.ridge: auto" in one for one in result.warnings)
    assert [line for line in said if line.startswith("warning")] == [f"warning  {one}" for one in result.warnings]


def test_its_job_fits_the_same_model_again(demo: tuple[DemoResult, list[str]]) -> None:
    result, _ = demo
    job = load_job(result.job)
    report = fit(job, engine=SerialEngine())
    assert (report.leaves_computed, report.leaves_reused) == (0, 1)
    again, first = load_model(report.model), load_model(result.model)
    assert again.coefficients.tobytes() == first.coefficients.tobytes()


def test_a_second_demo_in_its_place_says_the_same(tmp_path: Path) -> None:
    search = Search(lengthscales=(20.0,), shares=(0.0, 0.1), ridges=(1e-4,), features=128)
    first = run_demo(tmp_path / "new", echo=lambda _: None, search=search)
    shutil.rmtree(first.directory / "drifters.zarr" / "x")
    (first.directory / "JOB.yaml").write_text("broken: [")
    shutil.rmtree(first.predictions)
    counted: list[tuple[int, int]] = []
    second = run_demo(
        first.directory, echo=lambda _: None, progress=lambda rows, total: counted.append((rows, total)), search=search
    )
    assert (second.kfold_rmse, second.rmse, second.ridge) == (first.kfold_rmse, first.rmse, first.ridge)
    assert second.model == first.model and first.model.exists() and second.predictions.exists()  # nothing is new
    assert counted[-1] == (1183, 1183)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="holds something else than an earlier demo"):
        run_demo(tmp_path)
    with pytest.raises(InputError, match="holds something else than an earlier demo"):
        run_demo(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
