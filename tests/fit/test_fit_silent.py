"""What a fit, a score or a prediction would pass over: rows of too many patterns, of NaN, columns in two places."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, field, write_csv, write_job
from dask.distributed import Client

from dorff.data import ingest, open_dataset
from dorff.engine import SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.kernels.scalar import FloatArray
from dorff.plan import make_plan
from dorff.predict import predict, score
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.store import load_model

Q, SHARD, N = 5, 128, 1500
RNG = np.random.default_rng(8)
X = RNG.uniform(-1, 1, (N, 2))
Y = np.column_stack([np.sin(3 * X[:, 0] + k) * np.cos(2 * X[:, 1]) for k in range(Q)]) + 0.05 * RNG.standard_normal(
    (N, Q)
)
PATTERNS = [f"{code:05b}" for code in range(31, 0, -1)]  # all there first


def missing(numbers: FloatArray) -> FloatArray:
    """Y with the pattern of each row that has such a number."""
    there = np.array([[letter == "1" for letter in PATTERNS[int(number)]] for number in numbers])
    return np.where(there, Y[: len(there)], np.nan)


#: Twelve patterns, one rarer than the next; three in the first half, twelve after it; six, the last at the end.
CROWDED = (-2.5 * np.log(RNG.uniform(0, 1, N))).astype(int) % 12
LATE = np.where(np.arange(N) < N // 2, CROWDED % 3, CROWDED)
FEW = np.r_[CROWDED[:-1] % 5, 5]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 384 rows and more, so that few rows have several."""
    for name in ("SMALLEST_LEAF", "LARGE_FIRST_LEAF"):
        monkeypatch.setattr(f"dorff.passes.blocks.{name}", 3 * SHARD)


def stored(folder: Path, numbers: FloatArray, rows: int = N, *, start: int = 0) -> Path:
    """Rows start..rows-1 of these patterns as a data set, or appended to it."""
    source = folder / f"{start}-{rows}.npz"
    np.savez(source, x=X[start:rows], y=missing(numbers)[start:rows])
    more: dict[str, Any] = {"append": True} if start else {"shard_rows": SHARD}
    ingest([source], folder / "a.zarr", inputs=["x"], targets=["y"], **more)
    return folder / "a.zarr"


def job(store: Path, folder: Path, **changes: Any) -> Job:
    body: dict[str, Any] = {
        "data": {"store": str(store), "nan": "partial"},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.6}},
        "features": {"count": 40, "sampler": {"type": "orthogonal"}, "seed": 1},
        "solve": {"ridge": 1e-4}, "cluster": {"type": "serial"},
        "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    return Job.model_validate(
        {key: {**body[key], **changes.get(key, {})} if key in changes else body[key] for key in body}
    )


def names(numbers: FloatArray) -> list[str]:
    return ["" if PATTERNS[int(n)] == "11111" else PATTERNS[int(n)] for n in numbers]


def first_leaf(planned: Job) -> int:
    return make_plan(planned).leaves[0].stop


def test_of_too_many_patterns_the_commonest_of_the_first_leaf_are_kept(tmp_path: Path) -> None:
    """The fit is that of data which never had the other rows; `plan` says which they are."""
    made = job(stored(tmp_path, CROWDED), tmp_path)
    seen = names(CROWDED[: first_leaf(made)])
    kept = sorted(set(seen), key=lambda name: (-seen.count(name), name))[:8]
    assert len(set(seen)) > 8 and first_leaf(made) < N and make_plan(made).patterns is None
    report = fit(made)
    used = np.array([name in kept for name in names(CROWDED)])
    assert (report.rows_used, report.rows_dropped) == (used.sum(), N - used.sum()) and 0 < used.sum() < N
    assert report.patterns == kept == list(make_plan(made).patterns or ()) and report.coverage == 1.0
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b.npz", x=X, y=np.where(used[:, None], missing(CROWDED), np.nan))
    ingest([tmp_path / "b.npz"], tmp_path / "b.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    twin = fit(job(tmp_path / "b.zarr", tmp_path / "b"))
    assert twin.patterns is None and twin.rows_used == report.rows_used
    np.testing.assert_allclose(load_model(report.model).predict(X), load_model(twin.model).predict(X), atol=1e-9)


def test_no_row_is_dropped_where_there_are_sums_enough(tmp_path: Path) -> None:
    """Also of a pattern that comes last of all."""
    report = fit(job(stored(tmp_path, FEW), tmp_path))
    assert (report.rows_used, report.rows_dropped, report.patterns) == (N, 0, None)


@pytest.mark.process
def test_patterns_that_come_late_are_chosen_in_order_of_rows(tmp_path: Path) -> None:
    """The pass finds out that there are too many; it is made again, of the same patterns on any engine, and the same,
    to the bit, where rows were appended."""
    made = job(stored(tmp_path, LATE), tmp_path)
    seen = names(LATE[: first_leaf(made)])
    kept = sorted(set(seen), key=lambda name: (-seen.count(name), name))
    assert len(kept) < 8
    kept += [name for name in dict.fromkeys(names(LATE)) if name not in kept]
    report = fit(made)
    used = np.array([name in kept[:8] for name in names(LATE)])
    assert report.patterns == kept[:8] and report.rows_used == used.sum() < N
    h = load_model(report.model).coefficients.tobytes()
    with local_cluster(2) as cluster, Client(cluster) as client:
        (tmp_path / "dask").mkdir()
        other = fit(job(tmp_path / "a.zarr", tmp_path / "dask"), engine=DaskEngine(client))
    assert other.patterns == report.patterns and load_model(other.model).coefficients.tobytes() == h
    grown = tmp_path / "grown"
    grown.mkdir()
    first = fit(job(stored(grown, LATE, 700), grown))
    assert first.patterns is None and first.rows_dropped == 0
    stored(grown, LATE, start=700)
    assert fit(job(grown / "a.zarr", grown)).patterns == report.patterns
    again = fit(job(grown / "a.zarr", grown))
    assert again.outcome == "unchanged" and again.rows_used == used.sum()
    assert load_model(again.model).coefficients.tobytes() == h


def test_rows_that_miss_nothing_are_a_pattern_like_others(tmp_path: Path) -> None:
    """They are dropped too where the first leaf has none: whole blocks of them."""
    numbers = np.where(np.arange(N) < 3 * SHARD, 1 + CROWDED, 0)
    report = fit(job(stored(tmp_path, numbers), tmp_path))
    assert len(report.patterns or ()) == 8 and "" not in (report.patterns or ())
    assert report.rows_used == sum(name in (report.patterns or ()) for name in names(numbers)) <= 3 * SHARD


def test_rows_appended_later_change_no_choice(tmp_path: Path) -> None:
    """Of patterns that were chosen once; only the new leaves are summed."""
    grown = tmp_path / "grown"
    grown.mkdir()
    first = fit(job(stored(grown, CROWDED, 1100), grown))
    stored(grown, CROWDED, start=1100)
    second = fit(job(grown / "a.zarr", grown))
    whole = fit(job(stored(tmp_path, CROWDED), tmp_path))
    assert first.patterns == second.patterns == whole.patterns and second.leaves_reused > 0
    assert load_model(second.model).coefficients.tobytes() == load_model(whole.model).coefficients.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"solve": {"route": "streaming"}}, {"solve": {"route": "cg"}}, {"data": {"nan": "unlabelled"}},
        {"solve": {"select": "kfold", "folds": {"count": 3, "by": "rows"}}},
        {"solve": {"ridge": 1e-16}, "kernel": {"scalar": {"type": "gaussian", "lengthscale": 3}}},  # by QR
    ],
    ids=["streaming", "cg", "unlabelled", "kfold", "qr"],
)  # fmt: skip
@pytest.mark.parametrize("numbers", [CROWDED, LATE], ids=["crowded", "late"])
def test_every_route_drops_the_same_rows(tmp_path: Path, numbers: FloatArray, changes: dict[str, Any]) -> None:
    store = stored(tmp_path, numbers)
    report = fit(job(store, tmp_path, **changes))
    (tmp_path / "plain").mkdir()
    plain = fit(job(store, tmp_path / "plain"))
    assert report.patterns == plain.patterns and len(plain.patterns or ()) == 8
    assert (report.rows_used, report.rows_dropped) == (plain.rows_used, plain.rows_dropped)


def test_the_command_line_says_which_rows_are_dropped(tmp_path: Path) -> None:
    store = stored(tmp_path, CROWDED)
    (tmp_path / "job.yaml").write_text(job(store, tmp_path).model_dump_json(exclude_none=True))
    result = call("plan", tmp_path / "job.yaml")
    assert "8 patterns of what is there have sums" in result.stdout and "dropped and counted" in result.stdout
    assert json.loads(call("plan", tmp_path / "job.yaml", "--json").stdout)["patterns"] is None
    result = call("fit", tmp_path / "job.yaml", "--json")
    report = json.loads(result.stdout)
    assert f"{report['rows_dropped']} dropped, those among them that miss targets in other ways" in result.stderr
    planned = json.loads(call("plan", tmp_path / "job.yaml", "--json").stdout)
    assert planned["patterns"] == report["patterns"] and len(report["patterns"]) == 8
    assert ", ".join(name or "all" for name in report["patterns"]) in call("plan", tmp_path / "job.yaml").stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of which 7 rows lack an input, 5 others a target, and 2 of these both targets."""
    monkeypatch.chdir(tmp_path)
    rows = field(600)
    rows[10:80:10, 0], rows[100:105, 2], rows[100:102, 3] = np.nan, np.nan, np.nan
    write_csv(tmp_path / "sea.csv", rows)
    call("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v", "--shard-rows", 100)
    return tmp_path


@pytest.mark.parametrize(("rule", "dropped"), [("drop", 12), ("partial", 9), ("unlabelled", 9)])
def test_score_leaves_out_what_the_fit_left_out(place: Path, rule: str, dropped: int) -> None:
    write_job(place / "job.yaml", data={"store": "sea.zarr", "nan": rule})
    report = fit(load_job(place / "job.yaml"))
    assert report.rows_used == 600 - dropped
    result = call("score", "models/sea", "sea.zarr", "--json", "--workers", 1)
    scores = json.loads(result.stdout)
    assert (scores["rows"], scores["rows_dropped"]) == (600 - dropped, dropped)
    assert (
        f"({600 - dropped} rows, {dropped} left out" in call("score", "models/sea", "sea.zarr", "--workers", 1).stdout
    )
    block = open_dataset("sea.zarr").block(0, 600)
    good = block.whole(partial=rule != "drop")
    error = np.where(np.isfinite(block.Y), block.Y - load_model(Path(report.model)).predict(block.X), np.nan)[good]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.nanmean(error**2)))


def test_score_refuses_what_the_fit_would_have_refused(place: Path) -> None:
    rows = field(300, seed=2)
    write_csv(place / "whole.csv", rows)
    call("ingest", "whole.csv", "whole.zarr", "--inputs", "a,b", "--targets", "u,v")
    write_job(place / "job.yaml", data={"store": "whole.zarr"})
    fit(load_job(place / "job.yaml"))
    assert score(Path("models/sea"), Path("whole.zarr"), engine=SerialEngine()).rows_dropped == 0
    result = call("score", "models/sea", "sea.zarr", "--workers", 1)
    assert result.exit_code == 3 and "row 10, column a: expected a finite number" in result.stderr


def test_predict_says_how_many_rows_it_cannot_predict(place: Path) -> None:
    write_job(place / "job.yaml", data={"store": "sea.zarr", "nan": "drop"})
    fit(load_job(place / "job.yaml"))
    result = call("predict", "models/sea", "sea.zarr", "out.zarr", "--json", "--workers", 1)
    said = json.loads(result.stdout)
    assert said.pop("plan_peak_bytes") > 0 and said == {"rows": 600, "nan_rows": 7, "store": "out.zarr"}
    assert "7 of 600 rows are NaN, as their inputs hold NaN or infinity" in result.stderr
    found = open_dataset("out.zarr", inputs="y", targets=None).read(0, 600)[0]
    assert int(np.isnan(found).any(axis=1).sum()) == 7
    rows = field(50, seed=3)
    write_csv(place / "whole.csv", rows)
    call("ingest", "whole.csv", "whole.zarr", "--inputs", "a,b", "--targets", "u,v")
    result = call("predict", "models/sea", "whole.zarr", "whole-out.zarr", "--json", "--workers", 1)
    assert json.loads(result.stdout)["nan_rows"] == 0 and "NaN" not in result.stderr


def test_predict_and_score_say_where_a_function_on_a_lattice_repeats_itself(place: Path) -> None:
    sampler, gauss = {"type": "lattice", "error": 1e-2}, {"type": "gaussian", "lengthscale": 1.0}
    features, kernel = {"count": 400, "sampler": sampler}, {"type": "decomposable", "scalar": gauss}
    write_job(place / "job.yaml", data={"store": "sea.zarr", "nan": "drop"}, features=features, kernel=kernel)
    fit(load_job(place / "job.yaml"))
    ends = load_model(place / "models" / "sea").ends
    assert ends is not None
    rows = field(50, seed=3)
    for row in range(4):
        rows[row, 0] = ends[1][0] + 0.1 + row
    rows[4, 1] = ends[0][1] - 0.1
    rows[5, :2] = ends[1] - 0.1
    write_csv(place / "far.csv", rows)
    call("ingest", "far.csv", "far.zarr", "--inputs", "a,b", "--targets", "u,v")
    far = f"far.zarr: 5 of 50 rows lie outside of a from {ends[0][0]:.6g} to {ends[1][0]:.6g}, b from "
    for store, out, count in (("far.zarr", "far-out.zarr", 5), ("sea.zarr", "out.zarr", None)):
        result = call("predict", "models/sea", store, out, "--json", "--workers", 1)
        assert result.exit_code == 0, result.output
        assert (far in result.stderr) == (count is not None)
        kept = json.loads(Path(out, "zarr.json").read_text())["attributes"]["dorff"]
        assert kept.get("repeating_rows") == count
        result = call("score", "models/sea", store, "--json", "--workers", 1)
        assert (far in result.stderr) == (count is not None)
        assert json.loads(result.stdout)["rows_repeating"] == (count or 0)


def test_plan_says_how_many_rows_are_in_the_state(place: Path) -> None:
    """Of a fit that was cut off: all leaves but one."""
    write_csv(place / "long.csv", field(2000))
    call("ingest", "long.csv", "long.zarr", "--inputs", "a,b", "--targets", "u,v", "--shard-rows", SHARD)
    write_job(place / "job.yaml", data={"store": "long.zarr"})
    assert "1 over the rows" in call("plan", "job.yaml").stdout
    fit(load_job(place / "job.yaml"))
    costs, plan = make_plan(load_job(place / "job.yaml")).costs, json.loads(call("plan", "job.yaml", "--json").stdout)
    assert (plan["missing_rows"], plan["passes"], plan["flops"]) == (0, 0, 0)
    assert 0 < costs.pass_seconds == pytest.approx(costs.seconds - plan["seconds"])
    (*before, last) = make_plan(load_job(place / "job.yaml")).leaves
    (receipt,) = place.glob(f"runs/sea/*/receipts/{len(before):06}.json")
    receipt.unlink()
    missing = last.stop - last.start
    plan = json.loads(call("plan", "job.yaml", "--json").stdout)
    assert (plan["missing_rows"], plan["passes"], plan["flops"]) == (missing, 1, missing / 2000 * costs.flops)
    assert f"1; the sums of {2000 - missing:,} of 2,000 rows are in the state" in call("plan", "job.yaml").stdout


def test_shards_of_an_earlier_run_are_counted_too(place: Path) -> None:
    """The prediction is cut in its second shard, and goes on."""
    rows = field(9000)
    rows[[5, 4999, 8999], 1] = np.inf
    write_csv(place / "long.csv", rows)
    call("ingest", "long.csv", "long.zarr", "--inputs", "a,b", "--targets", "u,v", "--shard-rows", 1024)
    write_job(place / "job.yaml", data={"store": "long.zarr", "nan": "drop"})
    fit(load_job(place / "job.yaml"))

    class Stopped(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if done >= 4096:
            raise Stopped

    with pytest.raises(Stopped):
        predict(Path("models/sea"), Path("long.zarr"), Path("out.zarr"), engine=SerialEngine(), progress=progress)
    assert not Path("out.zarr").exists()
    told = list[int]()  # first what was there: of that nothing is read again
    paths = Path("models/sea"), Path("long.zarr"), Path("out.zarr")
    assert predict(*paths, engine=SerialEngine(), progress=lambda done, _: told.append(done)) == 9000
    assert told == [4096, 8192, 9000]
    assert json.loads(Path("out.zarr/zarr.json").read_text())["attributes"]["dorff"]["nan_rows"] == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"inputs": ["x", "y"]}, "array 'y' is among both inputs and targets"),
        ({"inputs": ["x", "view"]}, "column 'u' is among both inputs and targets"),
        ({"inputs": ["x", "x"]}, "data.inputs must name each array once"),
        ({"targets": ["y", "y"]}, "data.targets must name each array once"),
    ],
)
def test_a_job_has_each_column_in_one_place(place: Path, data: dict[str, Any], words: str) -> None:
    columns = ("--inputs", "a,b", "--targets", "u,v", "--also", "view=b,u", "--also", "twice=a")
    assert call("ingest", "sea.csv", "more.zarr", *columns).exit_code == 0
    scalar = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1}}
    write_job(place / "job.yaml", data={"store": "more.zarr", **data}, kernel=scalar)
    with pytest.raises(InputError, match=words):
        make_plan(load_job(place / "job.yaml"))
    assert call("plan", "job.yaml").exit_code == 3
    write_job(place / "job.yaml", data={"store": "more.zarr", "inputs": ["x", "twice"]}, kernel=scalar)
    make_plan(load_job(place / "job.yaml"))


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "sea.csv", "new.zarr", "--inputs", "a", "--inputs", "b"),
        ("ingest", "sea.csv", "new.zarr", "--inputs", "a", "--targets=u", "--targets", "v"),
        ("predict", "models/sea", "sea.zarr", "out.zarr", "--workers", "1", "--workers=2"),
        ("report", "models/sea", "-o", "a.html", "--out", "b.html"),
    ],
)
def test_an_option_is_given_once(place: Path, words: tuple[str, ...]) -> None:
    before = sorted(path.name for path in place.iterdir())
    result = call(*words)
    assert result.exit_code == 2 and "is given 2 times" in result.stderr
    assert sorted(path.name for path in place.iterdir()) == before
    assert call("ingest", "sea.csv", "new.zarr", "--inputs", "a", "--also", "k=b", "--also", "l=b").exit_code == 0


@pytest.mark.slow
def test_far_more_features_than_rows_are_warned_of(place: Path) -> None:
    write_job(place / "job.yaml", data={"store": "sea.zarr", "nan": "drop"}, features={"count": 2402})
    result = call("plan", "job.yaml", "--json")
    warning = "2,402 features for 600 rows: an exact kernel model of so few rows is smaller"
    assert f"plan: {warning}" in result.stderr and json.loads(result.stdout)["exact_is_cheaper"]
    assert "; 2,402 features for 588 rows: an exact kernel model" in call("fit", "job.yaml", "--json").stderr
    write_job(place / "job.yaml", data={"store": "sea.zarr", "nan": "drop"}, features={"count": 2400})
    assert "features for" not in call("plan", "job.yaml").stderr
