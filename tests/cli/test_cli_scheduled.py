"""What a schedule sees: the metrics file, what is kept and removed, what became of each fit."""

import errno
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import call, contents, field, write_csv, write_job
from prometheus_client.parser import text_string_to_metric_families

from dorff.cli import metrics
from dorff.cli.metrics import recorded
from dorff.data import ingest, open_dataset
from dorff.errors import GateError, IncompleteError, InputError
from dorff.spec.job import Job
from dorff.store import Lease, append_history


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set of six shards, and a job that two fits have published models of."""
    folder = tmp_path_factory.mktemp("whole")
    write_csv(folder / "sea.csv", field(3000))
    ingest([folder / "sea.csv"], folder / "sea.zarr", inputs=["a", "b"], targets=["u", "v"], shard_rows=512)
    for ridge in (1e-6, 1e-4):
        done = call("fit", write_job(folder / "job.yaml", solve={"ridge": ridge}))
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to change, which is also the current folder."""
    folder = tmp_path / "place"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


def answered(*words: object) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def read() -> Job:
    raise AssertionError("no rank of MPI has to read the job")


def samples(path: Path) -> dict[str, float]:
    """Names and values of a textfile, all with the same labels."""
    families = list(text_string_to_metric_families(path.read_text()))
    found = [sample for family in families for sample in family.samples]
    assert all(family.documentation for family in families)
    assert len({tuple(sample.labels.items()) for sample in found}) == 1 and len({s.name for s in found}) == len(found)
    return {sample.name: sample.value for sample in found}


def test_metrics_of_a_run_that_succeeds(tmp_path: Path) -> None:
    path, before = tmp_path / "sea.prom", time.time()
    with recorded(path, "fit", Path("job.yaml"), read) as figures:
        figures.update(rows_used=3000, score=None)
    found = samples(path)
    assert found["dorff_last_run_exit_code"] == 0 and found["dorff_rows_used"] == 3000
    assert before <= found["dorff_last_success_timestamp_seconds"] <= time.time()
    assert found["dorff_last_run_timestamp_seconds"] == found["dorff_last_success_timestamp_seconds"]
    assert 0 <= found["dorff_last_run_duration_seconds"] < 60 and "dorff_score" not in found
    assert f'command="fit",job_file="{Path("job.yaml").absolute()}"' in path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["sea.prom"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("x"), 3), (IncompleteError("x"), 5), (GateError("x"), 6), (KeyboardInterrupt(), 5), (TypeError(), 1)],
)
def test_a_run_that_fails_keeps_the_figures_of_the_last_that_did_not(
    tmp_path: Path, error: BaseException, code: int
) -> None:
    path, job = tmp_path / "sea.prom", tmp_path / "job.yaml"
    with recorded(path, "fit", job, read) as figures:
        figures.update(rows_used=3000, last_published_timestamp_seconds=12.0)
    first = samples(path)
    with pytest.raises(type(error)), recorded(path, "fit", job, read) as figures:
        figures.update(rows_used=4)
        raise error
    second = samples(path)
    assert second.pop("dorff_last_run_exit_code") == code
    assert {name: second[name] for name in first if "last_run" not in name} == {
        name: value for name, value in first.items() if "last_run" not in name
    }
    assert second["dorff_last_run_timestamp_seconds"] >= first["dorff_last_run_timestamp_seconds"]
    with recorded(path, "fit", job, read) as figures:
        figures.update(digits=9.0)
    third = samples(path)
    assert third["dorff_last_published_timestamp_seconds"] == 12.0 and "dorff_rows_used" not in third
    with recorded(path, "tune", job, read):
        pass
    assert "dorff_last_published_timestamp_seconds" not in samples(path)  # another command's file


@pytest.mark.parametrize("model", ["models/sea", "models/new"])
@pytest.mark.parametrize(
    ("publish", "solve", "reasons"),
    [
        ({"digits": 15.9}, {"ridge": 1e-3}, ["digits of its fitted values"]),
        ({"margin": 0.01, "holdout": "sea.zarr"}, {"ridge": 1e6}, ["held-out score"]),
        ({"margin": 0.01, "digits": 15.9, "holdout": "sea.zarr"}, {"ridge": 1e6}, ["digits", "held-out score"]),
    ],
)
def test_a_refused_fit_prints_its_report(
    place: Path, publish: dict[str, Any], solve: dict[str, Any], reasons: list[str], model: str
) -> None:
    if "holdout" in publish:
        shutil.copytree("sea.zarr", "held.zarr")
        publish = publish | {"holdout": "held.zarr"}
    is_new = model == "models/new"
    if is_new:
        reasons = reasons[:1]
    job = write_job(place / "job.yaml", solve=solve, publish=publish, model=model)
    done = call("fit", job, "--json")
    if is_new and "digits" not in publish:
        assert done.exit_code == 0 and json.loads(done.stdout)["outcome"] == "published", done.output
        return
    assert done.exit_code == 6, done.output
    report = json.loads(done.stdout)
    assert report["outcome"] == "refused" and report["rows_used"] == 3000
    assert report["model"] == (None if is_new else str(place / "models/sea/v000002"))
    assert len(report["reasons"]) == len(reasons)
    for reason, words in zip(report["reasons"], reasons, strict=True):
        assert words in reason and reason in done.stderr
    if "holdout" in publish:
        assert report["score_by"] == "holdout" and -1 < report["score"] < 0.5
        assert (report["old_score"] is None) is is_new
    published = call("fit", write_job(place / "job.yaml", solve=solve, publish={"digits": 0}, model=model), "--json")
    assert set(report) == {*json.loads(published.stdout), "reasons", "old_score"}


def test_a_textfile_that_is_not_ours_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "sea.prom"
    path.write_bytes(b"dorff_rows_used{ 1 2 3\n\xff")
    with pytest.raises(InputError), recorded(path, "fit", Path("job.yaml"), read):
        raise InputError("x")
    assert set(samples(path)) == {f"dorff_{name}" for name in metrics._RUN}


def test_metrics_need_a_prom_file_in_a_folder(place: Path) -> None:
    before = contents(place)
    for file in ("job.yaml", "none/sea.prom"):
        done = call("fit", "job.yaml", "--metrics", file)
        assert done.exit_code == 3 and f"--metrics {file}: wanted a file *.prom" in done.stderr
    assert contents(place) == before


def test_metrics_that_cannot_be_written_change_no_exit_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("prometheus_client.write_to_textfile", fails)
    done = call("fit", "job.yaml", "--metrics", "sea.prom")
    assert done.exit_code == 0 and "--metrics sea.prom: not written (No space left on device)" in done.stderr


def test_what_is_written_takes_no_others_place(place: Path) -> None:
    (place / "tuned").mkdir()
    for folder in (place, place / "tuned"):
        (folder / "path.csv").symlink_to("job.yaml")
    (place / "sea.prom").symlink_to("job.yaml")
    before = contents(place)
    for words in (("--metrics", "sea.prom"), ("--metrics", "sea.zarr/new.prom")):
        assert call("fit", "job.yaml", *words).exit_code == 3
    for out in ("tuned", ".", "sea.zarr"):
        done = call("tune", "job.yaml", "-o", out)
        assert done.exit_code == 3 and ("is a link" in done.stderr or "lies in" in done.stderr)
    assert contents(place) == before


def test_a_fit_and_a_tune_write_metrics(place: Path) -> None:
    write_job(place / "new.yaml", state="new/state", model="new/model", solve={"ridge": [1e-6, 1e-4]})
    assert call("fit", "new.yaml", "--metrics", "fit.prom").exit_code == 0
    found = samples(place / "fit.prom")
    assert (found["dorff_rows_used"], found["dorff_coverage"], found["dorff_leaves_computed"]) == (3000, 1, 1)
    published = found["dorff_last_published_timestamp_seconds"]
    assert time.time() - 600 < published <= time.time()
    assert call("fit", "new.yaml", "--metrics", "fit.prom").exit_code == 0
    again = samples(place / "fit.prom")
    assert (again["dorff_last_published_timestamp_seconds"], again["dorff_leaves_computed"]) == (published, 0)
    assert call("tune", "new.yaml", "--metrics", "tune.prom").exit_code == 0
    assert samples(place / "tune.prom")["dorff_trials"] == 2
    (place / "sea.zarr" / "zarr.json").unlink()
    assert call("fit", "new.yaml", "--metrics", "fit.prom").exit_code == 3
    failed = samples(place / "fit.prom")
    assert (failed["dorff_last_run_exit_code"], failed["dorff_rows_used"]) == (3, 3000)


def test_nothing_new_is_said_and_nothing_touched(place: Path) -> None:
    assert call("fit", "job.yaml").exit_code == 0
    before = contents(place)
    for words in ((), ("--json",)):
        done = call("fit", "job.yaml", *words)
        assert done.exit_code == 0
        assert "nothing new: the model of 3,000 rows stays" in (done.stderr if words else done.stdout)
        assert contents(place) == before


def test_rewritten_rows_are_named(place: Path) -> None:
    assert call("fit", "job.yaml").exit_code == 0
    rows = field(3000)
    rows[600, 2] += 1.0
    write_csv(place / "sea.csv", rows)
    shutil.rmtree(place / "sea.zarr")
    ingest([place / "sea.csv"], place / "sea.zarr", inputs=["a", "b"], targets=["u", "v"], shard_rows=512)
    done = call("fit", "job.yaml")
    assert done.exit_code == 0 and "0 dropped, those of leaf 0 rewritten since they were first used" in done.stdout


def test_held_out_scores_are_said(place: Path) -> None:
    shutil.copytree("sea.zarr", "held.zarr")
    write_job(place / "job.yaml", publish={"holdout": "held.zarr"}, solve={"ridge": 1e-3})
    done = call("fit", "job.yaml")
    assert done.exit_code == 0 and ", held-out R2 0.9" in done.stdout and "(holdout)" in done.stdout
    report = call("inspect", "models/sea").stdout
    assert "score: 0.9" in report


def test_a_refused_model_ends_with_6_and_says_why(place: Path) -> None:
    write_job(place / "job.yaml", publish={"digits": 15}, solve={"ridge": 1e-3})
    done = call("fit", "job.yaml", "--json", "--metrics", "sea.prom")
    assert done.exit_code == 6 and "publish.digits" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "refused"
    assert samples(place / "sea.prom")["dorff_last_run_exit_code"] == 6
    found = answered("inspect", "models/sea")
    assert found["version"] == "v000002" and found["history"][-1]["outcome"] == "refused" and found["fits"] == 3


def test_a_lease_that_is_held_ends_with_7(place: Path) -> None:
    write_job(place / "job.yaml", solve={"ridge": 1e-3})
    with Lease.take(place / "models/sea/lease"):
        done = call("fit", "job.yaml")
        held = answered("inspect", "models/sea")["lease"]
    assert done.exit_code == 7 and "held by process" in done.stderr
    assert set(held) == {"host", "pid", "token", "until"}
    assert answered("inspect", "models/sea")["lease"] is None


def test_inspect_shows_versions_and_history(place: Path) -> None:
    found = answered("inspect", "models/sea")
    assert [one["version"] for one in found["versions"]] == ["v000001", "v000002"]
    assert {one["rows"] for one in found["versions"]} == {3000} and found["version"] == "v000002"
    assert [line["outcome"] for line in found["history"]] == ["published", "published"]
    for _ in range(30):
        append_history(place / "models/sea", {"outcome": "refused"})
    found = answered("inspect", "models/sea")
    assert found["fits"] == 32 and len(found["history"]) == 20


def test_inspect_shows_a_model_whose_every_version_was_refused(place: Path) -> None:
    write_job(place / "job.yaml", publish={"digits": 15}, model="models/new")
    assert call("fit", "job.yaml").exit_code == 6
    found = answered("inspect", "models/new")
    assert (found["kind"], found["version"], found["versions"]) == ("model", None, [])
    assert found["history"][-1]["outcome"] == "refused"


def test_inspect_counts_receipts(place: Path) -> None:
    (plan,) = answered("inspect", "runs/sea")["plans"]
    counted = {name: plan[name] for name in ("leaves", "receipts", "missing", "damaged", "checkpoints", "lease")}
    assert counted == {"leaves": 1, "receipts": 1, "missing": 0, "damaged": 0, "checkpoints": 0, "lease": None}
    assert plan["last_used"].startswith("20")
    receipt = next((place / "runs/sea").rglob("receipts/*.json"))
    receipt.write_bytes(receipt.read_bytes()[:-9])
    (plan,) = answered("inspect", "runs/sea")["plans"]
    assert (plan["receipts"], plan["missing"], plan["damaged"]) == (0, 1, 1)


def test_prune_keeps_the_last_versions(place: Path) -> None:
    for ridge in (1e-3, 1e-2):
        assert call("fit", write_job(place / "job.yaml", solve={"ridge": ridge})).exit_code == 0
    before = contents(place)
    names = [f"models/sea/v00000{number}" for number in (1, 2)]
    assert answered("prune", "models/sea", "--keep", 2, "--dry-run") == {"removed": names, "dry_run": True}
    after = contents(place)
    assert {name: after[name] for name in before} == before
    assert call("prune", "models/sea", "--keep", 2).stdout == "".join(f"{name}  removed\n" for name in names)
    assert [one["version"] for one in answered("inspect", "models/sea")["versions"]] == ["v000003", "v000004"]
    assert call("prune", "models/sea", "--keep", 2).stdout == "models/sea: nothing to remove\n"
    assert call("score", "models/sea", "sea.zarr", "--workers", 1).exit_code == 0


def test_prune_keeps_the_plans_used_last(place: Path) -> None:
    (old,) = (path.parent for path in (place / "runs/sea").glob("*/plan.json"))
    time.sleep(0.02)
    assert call("fit", write_job(place / "job.yaml", features={"count": 32})).exit_code == 0
    assert answered("prune", "runs/sea", "--keep", 1)["removed"] == [f"runs/sea/{old.name}"]
    assert not old.exists() and len(answered("inspect", "runs/sea")["plans"]) == 1


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("models/sea", "--keep", 0), 2, "greater than or equal to 1"),
        (("models/sea",), 2, "--keep"),
        (("none", "--keep", 1), 3, "none: there is nothing"),
        (("sea.zarr", "--keep", 1), 3, "sea.zarr"),
    ],
)
def test_prune_refuses(place: Path, words: tuple[object, ...], code: int, why: str) -> None:
    before = contents(place)
    done = call("prune", *words)
    assert done.exit_code == code and why in done.stderr and contents(place) == before


def test_trim_removes_whole_shards(place: Path) -> None:
    assert answered("trim", "sea.zarr", "--keep", 1000) == {"rows": 1464, "removed": 1536, "store": "sea.zarr"}
    assert open_dataset("sea.zarr", inputs="x", targets="y").first == 3 * 512
    assert call("verify", "sea.zarr").exit_code == 0
    assert call("trim", "sea.zarr", "--keep", 1000).stdout == "sea.zarr: 1,464 rows, 0 removed\n"
    assert answered("inspect", "sea.zarr")["first"] == 1536
    assert call("trim", "none.zarr", "--keep", 1).exit_code == 3
    assert call("trim", "sea.zarr", "--keep", 0).exit_code == 2


def test_credentials_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = answered("credentials", tmp_path / "tls")
    assert files == {name: str(tmp_path / "tls" / f"{name}.pem") for name in ("ca", "cert", "key")}
    assert Path(files["key"]).stat().st_mode & 0o777 == 0o600
    scheduler, worker, cluster = call("credentials", tmp_path / "more").stdout.splitlines()
    ours = [f"{tmp_path}/more/{name}.pem" for name in ("ca", "cert", "key")]
    assert scheduler.startswith(
        "dask scheduler --protocol tls --host HOST --dashboard-address 127.0.0.1:0 --tls-ca-file "
    ) and worker.endswith("tls://HOST:8786")
    assert all(file in line for file in ours for line in (scheduler, worker, cluster))
    job = yaml.safe_load(cluster)["cluster"]
    assert job == {"address": "tls://HOST:8786", "tls": dict(zip(("ca", "cert", "key"), ours, strict=True))}
    assert call("credentials", tmp_path / "tls").exit_code == 3


def test_a_job_is_kept_to_its_root(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = contents(place)
    write_job(place / "out.yaml", state="../runs")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    for command in ("plan", "fit", "tune"):
        done = call(command, place / "out.yaml", "--root", place)
        assert done.exit_code == 3 and "state leads to" in done.stderr
        assert call(command, place / "job.yaml", "--root", "none").exit_code == 3
    monkeypatch.setenv("DORFF_ROOT", str(place))
    assert call("plan", place / "out.yaml").exit_code == 3 and call("plan", place / "job.yaml").exit_code == 0
    (place / "out.yaml").unlink()
    assert contents(place) == before


def test_sums_of_a_lattice_serve_a_later_job_and_what_is_shown_says_so(place: Path) -> None:
    """Its leaves are those of sums, however many features there may be."""
    rows = field(18_000)
    np.savez(place / "long.npz", x=rows[:, :2], y=rows[:, 2:3])
    ingest([place / "long.npz"], place / "long.zarr", inputs=["x"], targets=["y"], shard_rows=512)
    features = {"count": 6000, "sampler": {"type": "lattice", "error": 0.1}}
    shared: dict[str, Any] = {"data": {"store": "long.zarr"}, "features": features, "state": "runs/long"}

    def of(length: Any) -> Any:
        kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": length}}
        return write_job(place / f"{length}.yaml", **shared, kernel=kernel, model=f"models/{length}")

    planned = [call("plan", of(length)).stdout for length in (0.5, "median")]
    assert all("1 over the rows" in text for text in planned)
    assert ["at most 6,000\n" in text for text in planned] == ["at most" in text for text in planned] == [False, True]
    assert "the state" not in call("fit", of(0.5)).stdout
    assert "none: the sums of all rows are in the state" in call("plan", of(0.6)).stdout
    (plan,) = answered("inspect", "runs/long")["plans"]
    assert (plan["leaves"], plan["receipts"], plan["missing"]) == (1, 1, 0)
    assert "the sums of all rows were in the state; " in call("fit", of(0.6)).stdout
