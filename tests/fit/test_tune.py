"""`dorff tune`, as a user types it: what it prints, what it writes, and what `dorff fit` makes of that."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CURL, call, field, run, write_csv, write_job
from quick import slow

from dorff.cli.tuning import _warnings
from dorff.data import open_dataset
from dorff.engine import SerialEngine
from dorff.errors import InputError, LeaseError
from dorff.fit.choice import kernel_names
from dorff.fit.tune import tune
from dorff.plan import freeze_constants, make_plan
from dorff.report import trial_plot
from dorff.report.figures import from_info
from dorff.solvers import criterion_of
from dorff.spec.reader import load_job
from dorff.store import load_model

SCALAR = {"type": "gaussian", "lengthscale": 0.5}
RIDGES = {"from": 1e-8, "to": 1e-4, "count": 3}
BY_ROWS = {"count": 4, "by": "rows"}


def helmholtz(curl: float, lengthscale: float = 0.5) -> dict[str, Any]:
    scalar = {"type": "gaussian", "lengthscale": lengthscale}
    parts = {"curl_free": curl, "divergence_free": round(1 - curl, 6)}
    return {
        "type": "sum",
        "terms": [{"weight": w, "kernel": {"type": kind, "scalar": scalar}} for kind, w in parts.items()],
    }


@pytest.fixture(scope="module")
def sea(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sea")
    write_csv(folder / "sea.csv", field(400))
    store = folder / "sea.zarr"
    done = call("ingest", folder / "sea.csv", store, "--inputs", "a,b", "--targets", "u,v", "--shard-rows", 100)
    assert done.exit_code == 0, done.output
    return folder


def a_job(sea: Path, tmp_path: Path, **changes: object) -> Path:
    job: dict[str, Any] = {
        "data": {"store": str(sea / "sea.zarr")}, "kernel": [helmholtz(0.2), helmholtz(0.9, 0.4)],
        "features": {"count": [64, 33]}, "solve": {"ridge": RIDGES, "select": "kfold", "folds": BY_ROWS},
    }  # fmt: skip
    return write_job(tmp_path / "job.yaml", **(job | changes))


def told(*words: object) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("select", ["kfold", *slow("gcv", "evidence")])
def test_it_chooses_writes_and_a_fit_takes_the_winner(sea: Path, tmp_path: Path, select: str) -> None:
    job = a_job(sea, tmp_path, solve={"ridge": RIDGES, "select": select, "folds": BY_ROWS})
    found = told("tune", job)
    assert found["reads"] == 1.0 and found["best"]["select"] == select
    idle = [] if select == "kfold" else [f"solve.folds has no effect: select is {select}"]
    assert [warning.partition(", and no rows")[0] for warning in found["warnings"]] == idle
    assert [(row["kernel"], row["m"]) for row in found["table"][::3]] == [(0, 64), (0, 32), (1, 64), (1, 32)]
    best = min(found["table"], key=lambda row: row["value"])
    assert {name: found["best"][name] for name in best} == best
    assert found["files"] == {
        "best": str(tmp_path / "job-tune/best.yaml"), "path_csv": str(tmp_path / "job-tune/path.csv"),
        "path_png": str(tmp_path / "job-tune/path.png"),
    }  # fmt: skip
    with open(found["files"]["path_csv"], newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(int(line["kernel"]), int(line["m"]), float(line["ridge"]), float(line["value"])) for line in lines] == [
        (row["kernel"], row["m"], row["ridge"], row["value"]) for row in found["table"]
    ]
    assert lines[0]["name"] == "0.2 curl_free + 0.8 divergence_free, lengthscale 0.5"
    assert Path(found["files"]["path_png"]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # The winner's file, and the whole job, give the same model from the moments that are there.
    fits = [told("fit", one) for one in (found["files"]["best"], job)]
    for fit in fits:
        assert (fit["leaves_computed"], fit["ridge"], fit["m"]) == (0, best["ridge"], best["m"])
    assert fits[1]["kernel"] == best["kernel"]
    if select == "kfold":
        values = [min(row["value"] for row in fit["table"]) for fit in fits]
        np.testing.assert_allclose(values, best["value"], rtol=1e-12)
    one, other = (load_model(fit["model"]) for fit in fits)
    points = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    np.testing.assert_allclose(one.predict(points), other.predict(points), rtol=1e-6, atol=1e-9)
    assert told("tune", job)["reads"] == 0.0


def test_it_says_who_won_and_where_the_grid_ends(sea: Path, tmp_path: Path) -> None:
    job = a_job(sea, tmp_path, kernel=[CURL, helmholtz(0.5)], solve={"ridge": [1.0, 10.0], "select": "gcv"})
    done = call("tune", job, "-o", tmp_path / "here")
    assert done.exit_code == 0
    for words in (
        "the best of 8 trials by GCV is kernel[", "] of 2 (", "ridge 1, ", " features: root of the GCV score ",
        "read 1 times", f"dorff fit {tmp_path / 'here' / 'best.yaml'}",
    ):  # fmt: skip
        assert words in done.stdout, words
    assert "the best ridge, 1, is the smallest tried; list smaller ones" in done.stderr
    assert load_job(tmp_path / "here" / "best.yaml").solve.ridges == (1.0,)
    again = call("tune", job, "-o", tmp_path / "here")
    assert "data not read, its moments were there" in again.stdout


def test_nobody_is_told_to_list_ridges_that_dorff_chooses(sea: Path, tmp_path: Path) -> None:
    tuned = tune(load_job(a_job(sea, tmp_path, solve={"ridge": [1e-4, 1.0], "select": "gcv"})))
    for end, words in ((1e-4, "list smaller ones"), (1.0, "list larger ones")):
        at_end = replace(tuned, trial=replace(tuned.trial, ridge=end))
        assert any(words in one for one in _warnings(at_end, auto=False))
        assert not any("list" in one for one in _warnings(at_end, auto=True))


def test_it_says_where_rounding_chose(sea: Path, tmp_path: Path) -> None:
    """Ridges that no Gram matrix of such smooth features can carry."""
    smooth = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 20.0}}
    solve = {"ridge": [1e-18, 1e-17], "select": "kfold", "folds": BY_ROWS}
    done = call("tune", a_job(sea, tmp_path, kernel=smooth, solve=solve), "--json")
    found = json.loads(done.stdout)
    assert found["best"]["digits"] < 3 and found["best"]["value"] > 0
    assert "its score may be rounding rather than the data; `dorff fit` of best.yaml takes the QR" in done.stderr
    with open(found["files"]["path_csv"], newline="") as file:
        shown = [line["digits"] for line in csv.DictReader(file)]
    assert shown == [f"{row['digits']:.1f}" for row in found["table"]]


def test_each_output_gets_its_ridge(sea: Path, tmp_path: Path) -> None:
    solve = {"ridge": RIDGES, "select": "kfold", "folds": BY_ROWS, "ridge_per_output": True}
    job = a_job(sea, tmp_path, kernel={"type": "decomposable", "scalar": SCALAR}, solve=solve)
    found = told("tune", job)
    each = [row for row in found["table"] if row["ridges"]]
    assert [row["m"] for row in each] == [64, 32] and all(len(row["ridges"]) == 2 for row in each)
    assert found["best"]["value"] == min(row["value"] for row in found["table"])
    fits = [told("fit", one) for one in (found["files"]["best"], job)]
    for fit in fits:
        assert fit["ridges"] == found["best"]["ridges"] and fit["leaves_computed"] == 0


def test_a_winner_that_needs_one_ridge_asks_for_no_more(sea: Path, tmp_path: Path) -> None:
    """Its file would warn of `ridge_per_output` otherwise."""
    solve = {"ridge": [1e-3, 1e6], "select": "gcv", "ridge_per_output": True}
    job = a_job(sea, tmp_path, kernel={"type": "decomposable", "scalar": SCALAR}, solve=solve)
    found = told("tune", job)
    assert found["best"]["ridges"] == [1e-3, 1e-3] and found["warnings"] == []
    fits = [told("fit", one) for one in (found["files"]["best"], job)]
    assert [fit["warnings"] for fit in fits] == [[], []] and [fit["ridge"] for fit in fits] == pytest.approx([1e-3] * 2)


@pytest.mark.process
def test_workers_and_this_process_find_the_same(sea: Path, tmp_path: Path) -> None:
    job = a_job(sea, tmp_path, cluster={"type": "local", "workers": 2})
    done = run("tune", job, "--json")
    assert done.returncode == 0, done.stderr
    assert "tune: pass: 400 of 400 rows" in done.stderr and "tune: grid: 12 of 12 trials" in done.stderr
    found = json.loads(done.stdout)
    here = tune(load_job(job), engine=SerialEngine())
    assert (found["reads"], here.reads) == (1.0, 0.0)
    assert [row["value"] for row in found["table"]] == [trial.value for trial in here.table]
    assert not list((tmp_path / "runs").rglob("folds*"))


def test_one_tune_at_a_time(sea: Path, tmp_path: Path) -> None:
    """The second is told who holds the lease; what a run that was killed left is written over."""
    job = load_job(a_job(sea, tmp_path))
    folder, refused = make_plan(job).directory, []

    def another(done: int, _total: int) -> None:
        if done and not refused:
            with pytest.raises(LeaseError, match=r"held by process \d+") as error:
                tune(job, engine=SerialEngine())
            refused.append(error)

    found = tune(job, engine=SerialEngine(), told=another)
    assert refused and not list(folder.glob("folds*"))
    (folder / "folds.moments").write_bytes(b"left")
    assert tune(job, engine=SerialEngine()).table == found.table and not list(folder.glob("folds*"))


def test_counts_need_plain_pairs(sea: Path, tmp_path: Path) -> None:
    job = a_job(sea, tmp_path, kernel=CURL, features={"count": [64, 32], "sampler": {"type": "quadrature"}})
    done = call("tune", job)
    assert done.exit_code == 3 and "features.count: several need" in done.stderr, done.output


def test_terms_are_scored_by_folds_alone(sea: Path, tmp_path: Path) -> None:
    one = {"kernel": helmholtz(0.2), "features": {"count": 32}, "manifold": {"weight": 1e-3}}
    done = call("tune", a_job(sea, tmp_path, **one, solve={"ridge": 1e-6}))
    assert done.exit_code == 3 and "solve.select: gcv knows nothing of unlabelled rows" in done.stderr
    assert not list(tmp_path.glob("**/receipts"))  # before any pass


def test_a_file_where_the_results_would_go(sea: Path, tmp_path: Path) -> None:
    (tmp_path / "job-tune").write_text("mine")
    done = call("tune", a_job(sea, tmp_path))
    assert done.exit_code == 3 and "is a file; name a folder" in done.stderr
    assert (tmp_path / "job-tune").read_text() == "mine" and not (tmp_path / "runs").exists()


def test_scores_are_those_of_the_dense_errors(sea: Path, tmp_path: Path) -> None:
    """Folds by rows, by hand from the rows."""
    job = a_job(sea, tmp_path, kernel=CURL, features={"count": 64})
    tuned = tune(load_job(job), engine=SerialEngine())
    dataset = open_dataset(sea / "sea.zarr")
    X, Y = dataset.read(0, dataset.n)
    report = told("fit", job)
    model = load_model(report["model"])
    F, psi = model.feature_map.transform(X), model.operator_weights.psi
    Phi = (F[:, None, :, None] * psi.transpose(2, 0, 1)[None]).reshape(2 * len(X), -1)
    fold = freeze_constants(make_plan(load_job(job))).folds.of_rows(np.arange(len(X)))
    for trial in tuned.table:
        squares = 0.0
        for k in range(4):
            train, held = np.repeat(fold != k, 2), np.repeat(fold == k, 2)
            ones = np.tile(np.eye(2), (len(X), 1))
            A = np.column_stack([Phi, ones])
            penalty = np.append(np.full(Phi.shape[1], trial.ridge * train.sum() / 2), np.zeros(2))
            w = np.linalg.solve(A[train].T @ A[train] + np.diag(penalty), A[train].T @ Y.ravel()[train])
            squares += np.sum((A[held] @ w - Y.ravel()[held]) ** 2)
        assert trial.value == pytest.approx(squares / Y.size, rel=1e-8 if trial.ridge > 1e-7 else 1e-6)


def test_a_page_tells_kernels_and_counts_apart() -> None:
    rows = [
        {"candidate": k, "m": m, "ridge": r, "value": 1.0, "ridges": each}
        for k in (0, 1) for m in (64, 32) for r, each in ((0.1, None), (1.0, None), (0.3, [0.1, 1.0]))
    ]  # fmt: skip
    found = from_info({"report": {"table": rows}})
    assert [one.label for one in found] == [
        "kernel 1, 32 features", "kernel 1, 64 features", "kernel 2, 32 features", "kernel 2, 64 features",
    ]  # fmt: skip
    assert {one.scores for one in found} == {((0.1, 1.0), (1.0, 1.0))}
    assert from_info({"report": {"table": rows, "select": "evidence"}}) == []


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ([CURL], ["kernel 0"]),
        ([CURL, helmholtz(0.25)], ["curl_free", "0.25 curl_free + 0.75 divergence_free"]),
        ([helmholtz(0.25), helmholtz(0.25)], ["kernel 0", "kernel 1"]),
        ([{**CURL, "scalar": {"type": "matern", "nu": 2.5, "lengthscale": s}} for s in (0.1, 2.0)],
         ["lengthscale 0.1", "lengthscale 2"]),
        ([CURL, {**CURL, "scalar": {"type": "laplacian", "lengthscale": 0.5}}], ["type gaussian", "type laplacian"]),
    ],
)  # fmt: skip
def test_kernels_are_called_by_what_tells_them_apart(configs: list[dict[str, Any]], names: list[str]) -> None:
    assert kernel_names(configs) == names


@pytest.mark.parametrize(("route", "select"), [("cg", "gcv"), ("cg", "evidence"), ("streaming", "gcv")])
def test_a_route_without_scores_is_refused_before_its_pass(sea: Path, tmp_path: Path, route: str, select: str) -> None:
    solve = {"ridge": 1e-3, "select": select, "route": route}
    done = call("tune", a_job(sea, tmp_path, kernel=CURL, features={"count": 64}, solve=solve))
    why = "keeps no sums to choose from" if route == "streaming" else f"{select} needs a system that is factored"
    assert done.exit_code == 3 and why in done.stderr and not (tmp_path / "runs").exists()


def test_cg_is_told_what_it_can_choose_by(sea: Path, tmp_path: Path) -> None:
    job = a_job(
        sea, tmp_path, kernel=CURL, features={"count": 64}, solve={"ridge": RIDGES, "select": "gcv", "route": "cg"}
    )
    done = call("tune", job)
    assert done.exit_code == 3 and "3 ridges to choose from by gcv (by kfold it can)" in done.stderr


def test_a_plot_needs_a_number() -> None:
    with pytest.raises(InputError, match="none of the trials has a score that is a number"):
        trial_plot([("k", 2, 0.0, float("inf"))], criterion_of("gcv"), (0.0, float("inf")))
    assert trial_plot([("k", 2, 0.0, 1.0), ("k", 2, 1.0, 2.0)], criterion_of("evidence"), (0.0, 1.0))[:4] == b"\x89PNG"


def test_length_scales_that_rows_tell_are_each_jobs_own(sea: Path, tmp_path: Path) -> None:
    """The job of the winner may freeze the pass first: the list's kernels are the same after it."""
    words = [
        {"type": "decomposable", "scalar": {"type": kind, "lengthscale": "median"}} for kind in ("gaussian", "matern")
    ]
    job = a_job(sea, tmp_path, kernel=words, features={"count": 32, "sampler": {"type": "orthogonal"}})
    first = told("tune", job)
    assert first["reads"] == 1.0
    shutil.rmtree(load_job(job).state)
    fitted = told("fit", first["files"]["best"])
    assert fitted["lengthscale"] == [pytest.approx(load_job(first["files"]["best"]).kernels[0].scalar.lengthscale)]
    again = told("tune", job)
    assert again["reads"] == 0.0 and again["table"] == first["table"]
