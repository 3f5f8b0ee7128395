"""The whole job through the installed command, worker processes included; stopped and run again; on real data."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CURL, DORFF, INDEPENDENT, answer, call, field, run, write_csv, write_job
from places import ROOT

from dorff import load_model
from dorff.data import ingest, open_dataset

FIT_KEYS = [
    "rows_used", "rows_dropped", "rows_unlabelled", "leaves_computed", "leaves_reused", "reads", "passes", "seconds",
    "syrk_share", "peak_bytes", "plan_peak_bytes", "route", "select", "condition", "digits", "rung", "status",
    "ridge", "ridges", "log_evidence", "noise", "m", "kernel", "lengthscale", "tuned", "manifold", "graphs", "folds",
    "held_by", "effective_sample_size", "outcome", "rewritten", "coverage", "score", "r2_of", "score_by", "model",
    "warnings", "patterns", "quality", "choices", "table", "in_driver", "buckets", "lengthscale_in_units",
    "kernel_error", "loss", "version_reasons", "bands",
]  # fmt: skip
DATA = Path(os.environ.get("DORFF_DATA", ROOT.parent / "shared" / "data"))
MAGNETIC = DATA / "magnetic" / "invensense"
needs_magnetic = pytest.mark.skipif(not MAGNETIC.is_dir(), reason=f"no magnetic data in {MAGNETIC}; set DORFF_DATA")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize(
    "cluster", [{"type": "serial"}, {"type": "local", "workers": 2, "small_jobs": "workers"}], ids=lambda c: c["type"]
)
def test_the_whole_job(place: Path, cluster: dict[str, Any]) -> None:
    columns = ("--inputs", "a,b", "--targets", "u,v", "--shard-rows", 2048)
    write_csv(place / "sea.csv", field(6000))
    write_csv(place / "later.csv", field(5000, seed=1))
    write_job(place / "job.yaml", cluster=cluster, solve={"ridge": [1e-6, 1e-4]}, features={"count": 128})
    ingested = answer("ingest", "sea.csv", "sea.zarr", *columns)
    assert (ingested["rows"], ingested["store"]) == (6000, "sea.zarr")
    assert call("ingest", "later.csv", "later.zarr", *columns).exit_code == 0
    plan = json.loads(call("plan", "job.yaml", "--json").stdout)
    figures = {"leaves", "peak_bytes", "disk_bytes", "flops", "seconds", "m", "rank", "worker_bytes"}
    more = {"exact_is_cheaper", "route", "reason", "passes", "in_driver", "missing_rows", "choices", "warnings"}
    assert set(plan) == figures | more

    fitted = run("fit", "job.yaml", "--json")
    assert fitted.returncode == 0, fitted.stderr
    report = json.loads(fitted.stdout)
    assert list(report) == FIT_KEYS
    assert (report["rows_used"], report["rows_dropped"], report["leaves_computed"]) == (6000, 0, plan["leaves"])
    assert report["status"] == "ok" and report["m"] == plan["m"] == 128 and len(report["table"]) == 2
    assert 0 < report["peak_bytes"] <= report["plan_peak_bytes"] == plan["peak_bytes"]
    *lines, summary = fitted.stderr.splitlines()
    assert [one for one in lines if one.startswith("dorff: ")] == [f"dorff: {one}" for one in report["warnings"]]
    *earlier, line = [one for one in lines if not one.startswith("dorff: ")]
    assert re.fullmatch(r"\d\d:\d\d:\d\d fit: 6,000 of 6,000 rows, [\d,]+ rows/s", line)
    assert all(re.match(r"\d\d:\d\d:\d\d fit: [\d,]+ of 6,000 rows", one) for one in earlier)  # on a busy machine
    assert re.search(r"6,000 rows used, 0 dropped; .* s, \d+% of the syrk limit; peak memory .* of .* planned", summary)
    assert "condition" in summary and summary.endswith(report["model"])
    again = run("fit", "job.yaml")
    assert again.returncode == 0 and "nothing new" in again.stdout and again.stdout.count("\n") == 1

    made = answer("predict", "models/sea", "later.zarr", "out.zarr")
    assert list(made) == ["rows", "nan_rows", "store", "plan_peak_bytes"] and list(made.values())[1:3] == [
        0,
        "out.zarr",
    ]
    assert made["rows"] == 5000 and made["plan_peak_bytes"] > 2**27
    rows = field(5000, seed=1)
    predicted, _ = open_dataset("out.zarr", inputs="y", targets=None).read(0, 5000)
    np.testing.assert_array_equal(predicted, load_model("models/sea").predict(rows[:, :2]))
    scores = answer("score", "models/sea/v000001", "later.zarr", "--workers", 1)
    residual, spread = rows[:, 2:] - predicted, rows[:, 2:] - rows[:, 2:].mean(axis=0)
    assert list(scores) == [
        "rows",
        "r2",
        "rmse",
        "per_output",
        "r2_of",
        "weights",
        "rows_dropped",
        "rows_repeating",
        "r2_by_definition",
    ]
    assert list(scores["per_output"]) == ["u", "v"] and scores["rows_dropped"] == 0
    assert scores["r2_of"] == "pooled" and scores["r2"] > 0.95  # a field of one unit
    assert scores["r2"] == pytest.approx(1 - np.sum(residual**2) / np.sum(spread**2))
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(residual**2)))
    page = json.loads(call("report", "models/sea", "-o", "page.html", "--json").stdout)["report"]
    assert Path(page).resolve() == place / "page.html" and "<html" in Path(page).read_text()


def test_score_takes_arrays_by_name(place: Path) -> None:
    rows = field(500)
    np.savez("rows.npz", x=rows[:, :2], y=rows[:, 2:])
    ingest(["rows.npz"], "sea.zarr", inputs=["x"], targets=["y"])
    write_job(place / "job.yaml")
    assert call("fit", "job.yaml").exit_code == 0
    import zarr

    group = zarr.open_group("other.zarr", mode="w")
    for name, column in zip(("east", "north", "u", "v"), rows.T, strict=True):
        group.create_array(name, data=column)
    result = call("score", "models/sea", "other.zarr", "--inputs", "east,north", "--targets", "u,v", "--json")
    scores = json.loads(result.stdout)
    assert scores["rows"] == 500 and set(scores["per_output"]) == {"u", "v"}
    assert scores["rmse"] == json.loads(call("score", "models/sea", "sea.zarr", "--json").stdout)["rmse"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of four leaves, about a second's work each."""
    folder = tmp_path_factory.mktemp("large")
    np.save(folder / "rows.npy", field(4 * 16384))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    return folder


def start(words: list[str], receipts: Path) -> subprocess.Popen[str]:
    """A command in a process group of its own, once it has left a receipt."""
    child = subprocess.Popen(
        [DORFF, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 600
    while not any(receipts.glob("*/receipts/*.json")):
        assert child.poll() is None and time.monotonic() < until, child.communicate()
        time.sleep(0.02)
    return child


@pytest.mark.process
@pytest.mark.parametrize(
    ("cluster", "end"),
    [
        ({"type": "serial"}, "SIGKILL"),
        ({"type": "serial"}, "SIGTERM"),
        ({"type": "local", "workers": 2, "small_jobs": "workers"}, "SIGKILL"),
        ({"type": "local", "workers": 2, "small_jobs": "workers"}, "SIGINT"),
        ({"type": "local", "workers": 2, "small_jobs": "workers"}, "SIGTERM"),
    ],
    ids=str,
)
def test_a_stopped_fit_goes_on(large: Path, place: Path, cluster: dict[str, Any], end: str) -> None:
    """SIGKILL takes the driver alone, SIGINT comes to the whole group as from a keyboard, SIGTERM from cron or, to
    the group, from Slurm."""
    write_job(
        place / "job.yaml", data={"store": str(large / "sea.zarr")}, kernel=CURL, features={"count": 1400},
        cluster=cluster,
    )  # fmt: skip
    assert answer("plan", "job.yaml")["leaves"] == 4
    child = start(["fit", "job.yaml", "--json"], place / "runs" / "sea")
    if end != "SIGKILL" and cluster["type"] == "local":
        os.killpg(child.pid, signal.Signals[end])
    else:
        child.send_signal(signal.Signals[end])
    out, err = child.communicate(timeout=600)
    assert not out and not (place / "models" / "sea" / "current").exists()
    if end == "SIGKILL":
        assert child.returncode == -signal.SIGKILL
    else:
        assert child.returncode == 5, err
        assert err.splitlines()[-1] == (
            "dorff: stopped; what is done is kept, and the same command goes on from there"
        ), err
        assert "Traceback" not in err
    report = answer("fit", "job.yaml")
    assert report["leaves_reused"] > 0 and report["leaves_reused"] + report["leaves_computed"] == 4
    assert report["rows_used"] == 4 * 16384


def test_appended_rows_are_all_that_is_read(place: Path) -> None:
    """A nightly append: new rows are fitted and old leaves used again where they are whole."""
    write_csv(place / "a.csv", field(3000))
    write_csv(place / "b.csv", field(1000, seed=1))
    write_job(place / "job.yaml")
    columns = ("sea.zarr", "--inputs", "a,b", "--targets", "u,v", "--shard-rows", 500)
    assert call("ingest", "a.csv", *columns).exit_code == 0 and call("fit", "job.yaml").exit_code == 0
    assert call("ingest", "b.csv", *columns, "--append").exit_code == 0
    assert json.loads(call("fit", "job.yaml", "--json").stdout)["rows_used"] == 4000
    assert Path("models/sea/current").read_text().split()[0] == "v000002"


@pytest.mark.process
@needs_magnetic
def test_the_magnetic_field(place: Path) -> None:
    """Trials 1-3 predict trials 4-5, better by a curl-free field than by independent outputs (D = 512)."""

    def trials(*numbers: int) -> list[str]:
        return [f"{MAGNETIC / f'{i}-loc.csv'}+{MAGNETIC / f'{i}-mag.csv'}" for i in numbers]

    columns = ("--inputs", "c0,c1,=0", "--targets", "c2,c3,c4")
    assert answer("ingest", *trials(1, 2, 3), "sea.zarr", *columns)["rows"] == 27384
    assert answer("ingest", *trials(4, 5), "test.zarr", *columns)["rows"] == 15645
    r2 = {}
    for kernel in ({**CURL, "measure": "unbounded"}, INDEPENDENT):
        kernel = {**kernel, "scalar": {"type": "gaussian", "lengthscale": 0.2}}
        # No ridge below 1e-4: generalised cross-validation takes the dense rows of one walk for independent, and
        # would always choose the smallest.
        solve = {"ridge": [1e-4, 1e-3, 1e-2], "select": "gcv"}
        name = str(kernel["type"])
        write_job(place / "job.yaml", kernel=kernel, features={"count": 1024}, solve=solve, model=name)
        report = answer("fit", "job.yaml")
        assert report["rows_used"] == 27384 and report["m"] == 1024 and report["status"] == "ok"
        r2[name] = answer("score", name, "test.zarr", "--workers", 1, "--pooled")["r2"]
    assert r2["curl_free"] > r2["decomposable"] + 0.03 > 0.8


@pytest.mark.slow
@needs_magnetic
def test_the_magnetic_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "magnetic.py", "--data", MAGNETIC, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "magnetic.json").read_text())
    assert found["curl_free"]["r2_mean"] > found["independent"]["r2_mean"]
