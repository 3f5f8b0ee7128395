"""One suite for every engine: the same bits whatever the order, the workers, the deaths and the restarts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client

from dorff.cli.bench import bench, even_rows, write_random
from dorff.data import ingest, open_dataset, shard_and_unit_rows
from dorff.engine import SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import InputError
from dorff.fit import fit, run_pass
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.passes import blocks as leaf_sizes
from dorff.passes import leaf_bounds
from dorff.plan import freeze_constants, make_plan
from dorff.plan.constants import MEDIAN_SAMPLE
from dorff.spec.job import Job
from dorff.store import load_model

ROWS, SHARD = 20_000, 1024


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of one to two shards, so that small data have many (only the planner, in the driver, decides)."""
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


@pytest.fixture(scope="module")
def rows() -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((ROWS, 2))
    return X, np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((ROWS, 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, rows: tuple[FloatArray, FloatArray]) -> Path:
    return write(tmp_path_factory.mktemp("data") / "whole.zarr", *rows)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, store: Path) -> FloatArray:
    """Coefficients by the serial engine: the oracle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
        patch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)
        folder = tmp_path_factory.mktemp("oracle")
        fit(job(store, folder), engine=SerialEngine())
    return load_model(folder / "model").coefficients


def write(path: Path, X: FloatArray, Y: FloatArray, *, append: bool = False) -> Path:
    source = path.with_suffix(".npz")
    np.savez(source, x=X, y=Y)
    ingest([source], path, inputs=["x"], targets=["y"], append=append, shard_rows=None if append else SHARD)
    return path


def job(store: Path, folder: Path, **solve: Any) -> Job:
    gaussian = {"type": "gaussian", "lengthscale": 1.0}
    terms = [
        {"weight": 0.3, "kernel": {"type": "curl_free", "scalar": gaussian}},
        {"weight": 0.7, "kernel": {"type": "divergence_free", "scalar": gaussian}},
    ]
    return Job.model_validate(
        {
            "data": {"store": str(store), "nan": solve.pop("nan", "refuse")},
            "kernel": {"type": "sum", "terms": terms},
            "features": {"count": 64, "sampler": {"type": "orthogonal"}},
            "solve": {"ridge": 1e-6, **solve},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
        }
    )


@pytest.fixture(scope="module", params=[1, 2, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    with (
        local_cluster(request.param) as cluster,
        Client(cluster) as client,
    ):
        yield client


def coefficients(folder: Path) -> FloatArray:
    return load_model(folder / "model").coefficients


@pytest.mark.process
def test_dask_gives_the_serial_engines_bits(workers: Client, store: Path, tmp_path: Path, expected: FloatArray) -> None:
    report = fit(job(store, tmp_path), engine=DaskEngine(workers))
    assert report.leaves_computed > 8 and report.rows_used == ROWS
    assert np.array_equal(coefficients(tmp_path), expected)


@pytest.mark.parametrize("seed", range(3))
def test_order_does_not_matter(seed: int, store: Path, tmp_path: Path, expected: FloatArray) -> None:
    fit(job(store, tmp_path), engine=SerialEngine(shuffle=seed))
    assert np.array_equal(coefficients(tmp_path), expected)


def test_the_moments_equal_numpys(store: Path, tmp_path: Path, rows: tuple[FloatArray, FloatArray]) -> None:
    """The tree's sum against one explicit product of all features."""
    made = make_plan(job(store, tmp_path))
    fit(job(store, tmp_path), engine=SerialEngine())
    this = freeze_constants(made)
    (moments,) = run_pass(made, SerialEngine()).folds.values()
    X, Y = rows
    Z = np.column_stack([this.features.transform(X), np.ones(ROWS), Y - this.constants.y0])
    scale = np.sqrt(np.outer(np.sum(Z**2, axis=0), np.sum(Z**2, axis=0)))
    assert np.abs(moments.full - Z.T @ Z).max() <= 1e-13 * scale.max()
    assert moments.n == ROWS


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


def test_a_stopped_fit_goes_on_from_its_receipts(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(job(store, tmp_path), engine=SerialEngine(), progress=stop)
    report = fit(job(store, tmp_path), engine=SerialEngine())
    assert report.leaves_reused > 0 and report.leaves_computed > 0
    assert np.array_equal(coefficients(tmp_path), expected)
    again = fit(job(store, tmp_path), engine=SerialEngine())
    assert again.leaves_computed == 0 and np.array_equal(coefficients(tmp_path), expected)


@pytest.mark.process
def test_a_killed_worker_costs_nothing(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    with (
        local_cluster(2) as cluster,
        Client(cluster) as client,
    ):
        victims = list(client.run(os.getpid).values())[:1]

        def kill(done: int, _total: int) -> None:
            while done and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        report = fit(job(store, tmp_path), engine=DaskEngine(client), progress=kill)
    assert not victims and report.rows_used == ROWS
    assert np.array_equal(coefficients(tmp_path), expected)


def test_a_store_without_rows_is_refused(rows: tuple[FloatArray, FloatArray], tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "empty.zarr"), mode="w")
    for name in "xy":
        group.create_array(name, shape=(0, 2), chunks=(10, 2), dtype="float64")
    with pytest.raises(InputError, match="has no rows"):
        fit(job(tmp_path / "empty.zarr", tmp_path), engine=SerialEngine())


DRIVER = """
import json, sys
from dorff.passes import blocks
from dorff.fit import fit
from dorff.spec.cluster import RemoteCluster
from dorff.spec.job import Job
if __name__ == "__main__":
    blocks.SMALLEST_LEAF = blocks.LARGE_FIRST_LEAF = int(sys.argv[2])
    report = fit(Job.model_validate(json.loads(sys.argv[1])))
    print(report.leaves_reused, report.leaves_computed)
"""


@pytest.mark.process
def test_a_killed_driver_goes_on_where_it_was(tmp_path: Path) -> None:
    big = tmp_path / "big.zarr"
    write_random(big, 400_000, 2)
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    body = json.loads(job(big, tmp_path).model_dump_json())
    body["kernel"] = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}
    body["features"]["count"] = 512
    command = [sys.executable, str(script), json.dumps(body), "8192"]
    first = subprocess.Popen(command)
    deadline = time.monotonic() + 600
    while len(list(tmp_path.glob("state/*/receipts/*.json"))) < 3:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    reused, computed = map(int, done.stdout.split())
    assert reused >= 3 and computed > 0
    found = coefficients(tmp_path)
    shutil.rmtree(tmp_path / "state")
    subprocess.run(command, capture_output=True, timeout=600, check=True)
    assert np.array_equal(coefficients(tmp_path), found)


@pytest.mark.parametrize("cut", [300, 5 * SHARD, 9 * SHARD + 17])
def test_append_and_refit_equals_one_fit_of_the_whole(
    cut: int, rows: tuple[FloatArray, FloatArray], tmp_path: Path, expected: FloatArray
) -> None:
    X, Y = rows
    path = write(tmp_path / "grown.zarr", X[:cut], Y[:cut])
    fit(job(path, tmp_path), engine=SerialEngine())
    assert not np.array_equal(coefficients(tmp_path), expected)
    write(path, X[cut:], Y[cut:], append=True)
    report = fit(job(path, tmp_path), engine=SerialEngine())
    assert report.leaves_reused == sum(leaf.stop <= cut for leaf in make_plan(job(path, tmp_path)).leaves)
    assert np.array_equal(coefficients(tmp_path), expected)


def test_a_rewritten_shard_is_noticed(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed.zarr"
    shutil.copytree(store, path)
    fit(job(path, tmp_path), engine=SerialEngine())
    before = coefficients(tmp_path)
    shard = path / "y" / "c" / "3" / "0"
    shutil.copy(path / "y" / "c" / "2" / "0", shard)
    report = fit(job(path, tmp_path), engine=SerialEngine())
    assert report.leaves_computed == 1
    assert not np.array_equal(coefficients(tmp_path), before)


def test_damaged_moments_are_done_again(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    fit(job(store, tmp_path), engine=SerialEngine())
    nodes = sorted(tmp_path.glob("state/*/nodes/*.moments"))
    for number, node in enumerate(nodes):
        raw = bytearray(node.read_bytes())
        raw[len(raw) // 2 if number % 2 else 20] ^= 1
        node.write_bytes(raw)
    fit(job(store, tmp_path), engine=SerialEngine())
    assert np.array_equal(coefficients(tmp_path), expected)


def test_a_damaged_or_missing_receipt_is_done_again(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    fit(job(store, tmp_path), engine=SerialEngine())
    first, second, *_ = sorted(tmp_path.glob("state/*/receipts/*.json"))
    first.unlink()
    second.write_text(second.read_text().replace('"rows_used": 1', '"rows_used": 2'))
    report = fit(job(store, tmp_path), engine=SerialEngine())
    assert report.leaves_computed == 2 and np.array_equal(coefficients(tmp_path), expected)


def test_the_moments_do_not_depend_on_ridge_or_weights(store: Path, tmp_path: Path) -> None:
    fit(job(store, tmp_path), engine=SerialEngine())
    report = fit(job(store, tmp_path, ridge=[1e-4, 1e-2], select="gcv"), engine=SerialEngine())
    assert report.leaves_computed == 0 and len(report.table) == 2


@pytest.mark.slow
@pytest.mark.parametrize("by", ["leaves", "rows"])
def test_folds_give_the_same_bits_and_a_sane_error(by: str, store: Path, tmp_path: Path) -> None:
    found = []
    for shuffle in (None, 1):
        folder = tmp_path / str(shuffle)
        choosing = {"ridge": [1e-8, 1e-4, 1.0], "select": "kfold", "folds": {"count": 5, "by": by}}
        report = fit(job(store, folder, **choosing), engine=SerialEngine(shuffle=shuffle))
        found.append((coefficients(folder), report.table))
    assert np.array_equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    errors = [row["value"] for row in report.table]
    assert 0.005 < min(errors) < 0.05 and errors[2] > 2 * min(errors)


def test_bad_numbers_are_refused_or_dropped(rows: tuple[FloatArray, FloatArray], tmp_path: Path) -> None:
    X, Y = rows[0].copy(), rows[1].copy()
    X[3000, 1], Y[7000, 0] = np.nan, np.inf
    path = write(tmp_path / "bad.zarr", X, Y)
    with pytest.raises(InputError, match=r"row (3000 \(shard 2\), column x1|7000 \(shard 6\), column y0)"):
        fit(job(path, tmp_path), engine=SerialEngine())
    assert not (tmp_path / "model").exists()
    report = fit(job(path, tmp_path, nan="drop"), engine=SerialEngine())
    assert (report.rows_used, report.rows_dropped) == (ROWS - 2, 2)
    good = np.ones(ROWS, bool)
    good[[3000, 7000]] = False
    clean = write(tmp_path / "clean.zarr", X[good], Y[good])
    fit(job(clean, tmp_path / "clean"), engine=SerialEngine())
    np.testing.assert_allclose(coefficients(tmp_path), coefficients(tmp_path / "clean"), rtol=1e-6)


@pytest.mark.process
def test_reports_are_honest(store: Path, tmp_path: Path) -> None:
    """In a process of its own, so that nothing else's memory is counted."""
    (tmp_path / "job.yaml").write_text(job(store, tmp_path).model_dump_json())
    command = [str(Path(sys.executable).with_name("dorff")), "fit", str(tmp_path / "job.yaml"), "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout)
    assert report["status"] == "ok" and report["rung"] == "cholesky" and report["condition"] > 1
    assert 0 < report["peak_bytes"] <= report["plan_peak_bytes"] and 0 < report["syrk_share"] < 1
    model: Model = load_model(report["model"])
    assert model.info["report"]["rows_used"] == ROWS and Path(report["model"]).name == "v000001"


def test_other_data_in_the_same_place_are_fitted_afresh(rows: tuple[FloatArray, FloatArray], tmp_path: Path) -> None:
    """What is frozen from the first rows is frozen anew when those rows are others."""
    X, Y = rows
    found = []
    for factor in (1.0, 1000.0):
        path = tmp_path / "same.zarr"
        shutil.rmtree(path, ignore_errors=True)
        write(path, factor * X, Y)
        body = job(path, tmp_path).model_dump()
        body["kernel"] = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "median"}}
        report = fit(Job.model_validate(body), engine=SerialEngine())
        assert report.leaves_reused == 0
        found.append(load_model(report.model).predict(factor * X[:50]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_a_damaged_frozen_plan_is_made_again(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    """Of the same rows, so that it is the same and all that was summed counts."""
    fit(job(store, tmp_path), engine=SerialEngine())
    (frozen,) = tmp_path.glob("state/*/plan.json")
    raw = frozen.read_bytes()
    arrays = frozen.with_name("arrays.npz")
    for path, damaged in (
        (frozen, raw.replace(b'"count": 1', b'"count": 3')), (frozen, raw[: len(raw) // 2]),
        (arrays, arrays.read_bytes()[:-9]),
    ):  # fmt: skip
        assert damaged != path.read_bytes()
        path.write_bytes(damaged)
        report = fit(job(store, tmp_path), engine=SerialEngine())
        assert frozen.read_bytes() == raw and report.leaves_computed == 0
        assert np.array_equal(coefficients(tmp_path), expected)


@pytest.mark.process
def test_a_refused_fit_leaves_no_state_behind_on_dask_either(
    rows: tuple[FloatArray, FloatArray], tmp_path: Path
) -> None:
    X, Y = rows[0].copy(), rows[1]
    X[200, 0] = np.nan  # in the smallest leaves, which run last; all receipts before it are kept on purpose
    X[-1, 0] = np.nan
    path = write(tmp_path / "bad.zarr", X, Y)
    with local_cluster(2) as cluster, Client(cluster) as client, pytest.raises(InputError):
        fit(job(path, tmp_path), engine=DaskEngine(client))
    nodes, receipts = list(tmp_path.glob("state/*/nodes/*")), list(tmp_path.glob("state/*/receipts/*"))
    assert not nodes or receipts, "moments without the receipts that make them count"
    assert not receipts or list(tmp_path.glob("state/*/plan.json")), "receipts without their plan"


def test_kfold_memory_and_scores_see_each_fold_once(store: Path, tmp_path: Path) -> None:
    made = make_plan(job(store, tmp_path))
    (moments,) = run_pass(made, SerialEngine()).folds.values()
    full = moments.full
    assert np.array_equal(moments.corner, full[moments.m :, moments.m :])
    assert moments.full is not full, "an unpacked square must not stay in memory with its moments"


@pytest.mark.parametrize("first", [300, 5000])
def test_append_with_median_equals_one_fit_where_the_sample_was_there(
    first: int, rows: tuple[FloatArray, FloatArray], tmp_path: Path
) -> None:
    X, Y = rows

    def fitted(path: Path, folder: Path) -> FloatArray:
        body = job(path, folder).model_dump()
        body["kernel"] = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "median"}}
        return load_model(fit(Job.model_validate(body), engine=SerialEngine()).model).coefficients

    path = write(tmp_path / "grown.zarr", X[:first], Y[:first])
    fitted(path, tmp_path)
    write(path, X[first:], Y[first:], append=True)
    grown = fitted(path, tmp_path)
    whole = fitted(write(tmp_path / "whole.zarr", X, Y), tmp_path / "whole")
    assert np.array_equal(grown, whole) == (first >= MEDIAN_SAMPLE)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("d", "m"), [(3, 64), (16, 1024), (3072, 8192)])
def test_fits_that_are_timed_have_whole_leaves_in_multiples_of_the_workers(d: int, m: int, workers: int) -> None:
    shard, _ = shard_and_unit_rows(d, 1)
    for least in (1, 10 * shard + 1, 33 * shard):
        rows = even_rows(least, d, m, workers)
        counts = {n: leaf_bounds(n, shard, m + 2) for n in range(shard, rows + 1, shard)}
        even = [n for n, leaves in counts.items() if n >= least and leaves[-1].full and len(leaves) % workers == 0]
        assert even == [rows]


@pytest.mark.process
def test_bench_tells_the_worst_beside_the_median_and_where_the_rest_goes() -> None:
    share = bench(d=3, m=32, rows=1, repeats=2, workers=1)
    shard, _ = shard_and_unit_rows(3, 1)
    assert len(leaf_bounds(share.rows, shard, 34)) == 2
    assert share.worst == min(share.shares) <= share.share == np.median(share.shares)
    assert 0 < share.inside_syrk < 1
    assert 1e-9 < share.in_features / share.rows_per_s < 1e-4  # seconds of a row: the rate's own sign is left out


@pytest.mark.process
def test_the_rate_of_bench_has_neither_start_nor_solve_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of a known speed, 50 s of start and solve each, in the place of timed ones."""

    def timed(job: Job) -> tuple[float, float]:
        return 50.0 + open_dataset(job.data.store).rows / 1e6, 0.8

    monkeypatch.setattr("dorff.cli.bench._timed_fit", timed)
    assert bench(d=3, m=32, rows=1, repeats=1, workers=1).rows_per_s == pytest.approx(1e6, rel=1e-9)
