"""Fits by passes: the same function as a direct solve of the same features, whoever does the work and is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client
from places import PATHS
from quick import slow

from dorff.cli.fitting import plan
from dorff.engine import Engine, SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import IncompleteError, InputError
from dorff.fit import expected_passes, fit, run_pass, settings, streaming
from dorff.fit.streaming import TOLERANCE, Streamed, fit_streaming, sample_of
from dorff.kernels.scalar import FloatArray
from dorff.moments import MOST_PATTERNS, by_fold, pooled
from dorff.passes import blocks as leaf_sizes
from dorff.plan import constants_of, freeze_constants, make_plan, routes
from dorff.plan.seconds import START
from dorff.solvers import Fit
from dorff.spec.job import Job
from dorff.store import load_model

ROWS, SHARD, TIGHT = 2_500, 512, 1e-10


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Leaves of one to two shards, and samples that are smaller than the data."""
    patch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    patch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)
    patch.setattr(routes, "LEAST_DUAL", 128)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def rows() -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((ROWS, 2))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2 + 3.0]) + 0.1 * rng.standard_normal((ROWS, 2))
    X.flags.writeable = Y.flags.writeable = False  # all tests of this file share them
    return X, Y


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, rows: tuple[FloatArray, FloatArray]) -> Path:
    X, Y = rows
    Y = Y.copy()
    Y[100:2000:7, 1] = np.nan
    path = tmp_path_factory.mktemp("data") / "whole.zarr"
    weight = np.random.default_rng(1).uniform(0.0, 2.0, (ROWS, 1))
    return write(path, {"x": X, "y": rows[1], "gaps": Y, "weight": weight})


def write(path: Path, arrays: dict[str, FloatArray]) -> Path:
    group = zarr.open_group(str(path), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(SHARD, values.shape[1]), config={"write_empty_chunks": True})
    return path


GAUSSIAN = {"type": "gaussian", "lengthscale": 1.0}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}
CURL = {"type": "curl_free", "scalar": GAUSSIAN}


def job(store: Path, folder: Path, *, kernel: dict[str, Any] = CURL, data: dict[str, Any] | None = None,
        features: int = 96, **solve: Any) -> Job:  # fmt: skip
    return Job.model_validate(
        {
            "data": {"store": str(store), **(data or {})},
            "kernel": kernel,
            "features": {"count": features, "sampler": {"type": "orthogonal"}},
            "solve": {"ridge": 1e-2, **solve},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
        }
    )


def streamed(made: Job, engine: Engine | None = None, **options: Any) -> Streamed:
    plan = make_plan(made)
    freeze_constants(plan)
    return fit_streaming(plan, settings(plan)[0], engine or SerialEngine(), **options)


def direct(made: Job) -> tuple[Fit, FloatArray | None]:
    """The direct fit, and its noise by the residuals alone."""
    plan = make_plan(made)
    folds = by_fold(run_pass(plan, SerialEngine()).folds)
    setting, parts = settings(plan)[0], pooled(folds)
    (found,) = setting.solve(parts, plan.job.solve.ridges)
    return setting.noised(parts, found), replace(setting, method="cg").noised(
        parts, replace(found, noise_variance=None)
    ).noise


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (PLAIN, {}),
        ({**PLAIN, "output": "covariance"}, {"standardize": True}),
        (CURL, {"intercept": False}),
        (CURL, {"standardize": True}),
        (CURL, {"observe": [[1.0, 0.5], [0.0, 1.0]]}),
    ],
    ids=["identity", "covariance", "origin", "curl", "observed"],
)
def test_streaming_equals_the_direct_solve(
    kernel: dict[str, Any], options: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    made = job(store, tmp_path, kernel=kernel, **options)
    found, (wanted, noise) = streamed(made, tolerance=TIGHT), direct(made)
    np.testing.assert_allclose(found.fit.W, wanted.W, rtol=0, atol=1e-8 * np.abs(wanted.W).max())
    np.testing.assert_allclose(found.fit.bias, wanted.bias, rtol=1e-8, atol=1e-8)
    assert wanted.noise is not None and found.fit.noise is not None and noise is not None
    np.testing.assert_allclose(found.fit.noise, noise, rtol=1e-8, atol=1e-12)
    if kernel is PLAIN:
        np.testing.assert_allclose(found.fit.noise, wanted.noise, rtol=0.05, atol=1e-12)
    assert found.fit.solution.rung == "cg" and found.fit.solution.converged
    apart = kernel is PLAIN
    assert found.passes == found.iterated.iterations + (1 if apart else 2)  # one for the residuals of each target


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"targets": "gaps", "nan": "partial"}, {}),
        ({"targets": "gaps", "nan": "partial", "weights": "weight"}, {"standardize": True}),
        ({"targets": "gaps", "nan": "drop", "weights": "weight"}, {"intercept": False}),
    ],
    ids=["partial", "weighted", "dropped"],
)
@pytest.mark.parametrize("kernel", [PLAIN, CURL], ids=["separable", "coupled"])
def test_gaps_and_weights(
    kernel: dict[str, Any], data: dict[str, Any], options: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    made = job(store, tmp_path, kernel=kernel, data=data, **options)
    found, (wanted, noise) = streamed(made, tolerance=TIGHT), direct(made)
    np.testing.assert_allclose(found.fit.W, wanted.W, rtol=0, atol=1e-8 * np.abs(wanted.W).max())
    np.testing.assert_allclose(found.fit.bias, wanted.bias, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.fit.noise, noise, rtol=1e-7, atol=1e-12)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, store: Path) -> FloatArray:
    """Coefficients by the serial engine: the oracle."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        return streamed(job(store, tmp_path_factory.mktemp("oracle"))).fit.solution.h


@pytest.fixture(scope="module", params=[1, 2])
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    with local_cluster(request.param) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.process
def test_dask_gives_the_serial_engines_bits(workers: Client, store: Path, tmp_path: Path, expected: FloatArray) -> None:
    found = streamed(job(store, tmp_path), DaskEngine(workers))
    assert np.array_equal(found.fit.solution.h, expected)
    assert len(found.fresh) == found.passes * len(found.receipts) and len(found.receipts) > 4


def test_order_does_not_matter(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    found = streamed(job(store, tmp_path), SerialEngine(shuffle=3))
    assert np.array_equal(found.fit.solution.h, expected)


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


def interrupted(made: Job, passes: float = 3.5) -> None:
    """A fit that is stopped when so many passes are done."""

    def stop(done: int, _total: int) -> None:
        if done > passes * ROWS:
            raise Interrupted

    with pytest.raises(Interrupted):
        streamed(made, progress=stop)


def test_a_stopped_fit_goes_on_within_its_pass(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    interrupted(job(store, tmp_path))
    found = streamed(job(store, tmp_path))
    leaves = len(found.receipts)
    assert np.array_equal(found.fit.solution.h, expected)
    assert (found.passes - 4) * leaves < len(found.fresh) < (found.passes - 3) * leaves
    assert not list(tmp_path.glob("state/*/sweeps/*"))  # nothing is left


def test_solves_of_one_pass_do_not_meet(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    """A fit with another ridge takes nothing from one that runs meanwhile, nor from one that was stopped."""
    others: list[Streamed] = []

    def another(done: int, _total: int) -> None:
        if done > 3.5 * ROWS and not others:
            others.append(streamed(job(store, tmp_path, ridge=1.0)))

    interrupted(job(store, tmp_path, ridge=1e-1))
    (stopped,) = tmp_path.glob("state/*/sweeps/*")
    found = streamed(job(store, tmp_path), progress=another)
    assert np.array_equal(found.fit.solution.h, expected)
    assert len(found.fresh) == found.passes * len(found.receipts)  # all of them done once
    alone = streamed(job(store, tmp_path / "alone", ridge=1.0))
    assert np.array_equal(others[0].fit.solution.h, alone.fit.solution.h)
    assert list(tmp_path.glob("state/*/sweeps/*")) == [stopped] and len(list(stopped.glob("*.moments"))) == 3
    os.utime(stopped, (0, 0))  # given up long ago
    streamed(job(store, tmp_path))
    assert not list(tmp_path.glob("state/*/sweeps/*"))


def tell(asked: Job) -> int:
    told = expected_passes(make_plan(asked))
    assert told is not None
    return told


@pytest.mark.parametrize("ridge", [1.0, 1e-3, *slow(1e-8)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": PLAIN, "data": {"weights": "weight"}},
        {"kernel": PLAIN, "data": {"targets": "gaps", "nan": "partial"}},
    ],
    ids=["curl", "weights", "gaps"],
)
def test_passes_are_told_from_some_rows(store: Path, tmp_path: Path, options: dict[str, Any], ridge: float) -> None:
    asked = job(store, tmp_path, ridge=ridge, **options)
    told = tell(asked)
    assert not (tmp_path / "state").exists()
    taken = streamed(asked).passes
    assert taken / 1.6 <= told <= 1.6 * taken


@pytest.mark.slow
@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-5])
def test_passes_are_told_from_some_of_the_features(
    store: Path, tmp_path: Path, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a job has more of them than are tried."""
    monkeypatch.setattr(routes, "LEAST_DUAL", 16)
    monkeypatch.setattr(streaming, "MOST_FEATURES", 128)
    narrow = {"type": "decomposable", "scalar": {**GAUSSIAN, "lengthscale": 0.3}}
    asked = job(store, tmp_path, kernel=narrow, features=256, ridge=ridge)
    taken = streamed(asked).passes
    assert taken / 1.4 <= tell(asked) <= 1.4 * taken


def test_a_linear_part_has_its_columns_where_few_features_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arc-cosine features of a quadrature rule have the inputs among them: no fewer can be drawn. Others have not."""
    counts, planned = list[int](), streaming.make_plan
    monkeypatch.setattr(streaming, "make_plan", lambda tried: (counts.append(tried.features.count), planned(tried))[1])
    monkeypatch.setattr(streaming, "MOST_FEATURES", 16)
    rng = np.random.default_rng(3)
    write(tmp_path / "wide.zarr", {"x": rng.standard_normal((600, 24)), "y": rng.standard_normal((600, 1))})
    arc = {"type": "decomposable", "scalar": {"type": "arc_cosine", "order": 1}}
    asked = job(tmp_path / "wide.zarr", tmp_path, kernel=arc, ridge=1e-3)
    quadrature = {**asked.model_dump(mode="json", exclude_unset=True)}
    quadrature["features"]["sampler"] = {"type": "quadrature"}
    assert tell(Job.model_validate(quadrature)) > 1
    assert tell(job(tmp_path / "wide.zarr", tmp_path, kernel=PLAIN)) > 1
    assert counts == [64, 16]


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": PLAIN, "data": {"weights": "w"}},
        {"kernel": CURL, "data": {"weights": "w"}},
        {"kernel": {**PLAIN, "output": "covariance"}, "data": {"targets": "gaps", "nan": "partial"}},
    ],
    ids=["weights", "curl", "gaps"],
)
def test_all_rows_tell_the_passes_exactly(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of so few rows that the preconditioner, too, is of all of them; of those of `w` most weigh next to nothing."""
    monkeypatch.setattr(routes, "LEAST_DUAL", 256)
    rng = np.random.default_rng(2)
    Y, weight = rng.standard_normal((128, 2)), 10.0 ** rng.uniform(-6.0, 0.0, (128, 1))
    gaps = np.where(rng.random(Y.shape) < 0.4, np.nan, Y)
    write(tmp_path / "few.zarr", {"x": rng.standard_normal((128, 2)), "y": Y, "w": weight, "gaps": gaps})
    asked = job(tmp_path / "few.zarr", tmp_path, ridge=1e-4, **options)
    assert tell(asked) == streamed(asked).passes


def test_rows_that_can_be_used_are_looked_for(tmp_path: Path, rows: tuple[FloatArray, FloatArray]) -> None:
    """Labels often stand together: they are in the fit's sample, and tell its passes."""
    X, Y = rows
    labels = np.where((np.arange(ROWS) >= 200) & (np.arange(ROWS) < 600), Y.T, np.nan).T
    write(tmp_path / "few.zarr", {"x": X, "y": labels})
    asked = job(tmp_path / "few.zarr", tmp_path, kernel=PLAIN, data={"nan": "unlabelled"}, ridge=1e-4)
    planned = make_plan(asked)
    sample, targets = sample_of(planned, freeze_constants(planned), 256)
    assert 128 <= len(sample.X) == len(sample.weights) == len(targets) <= 256 and np.isfinite(targets).all()
    assert len(np.unique(sample.X[:, 0])) == len(sample.X)  # each row once
    assert np.ptp(np.searchsorted(np.sort(X[200:600, 0]), np.sort(sample.X[:, 0]))) > 300  # of all over those
    taken = streamed(asked).passes
    assert taken / 1.6 <= tell(asked) <= 3 * taken


def test_too_few_rows_tell_nothing(
    tmp_path: Path, rows: tuple[FloatArray, FloatArray], capsys: pytest.CaptureFixture[str]
) -> None:
    X, Y = rows
    write(tmp_path / "few.zarr", {"x": X, "y": np.where(np.arange(ROWS) // 10 == 70, Y.T, np.nan).T})
    asked = job(tmp_path / "few.zarr", tmp_path, data={"nan": "unlabelled"}, route="streaming")
    assert expected_passes(make_plan(asked)) is None
    (tmp_path / "job.yaml").write_text(asked.model_dump_json(exclude_unset=True))
    plan(tmp_path / "job.yaml", as_json=True)
    told = capsys.readouterr()
    assert json.loads(told.out)["passes"] == routes.EXPECTED_PASSES
    assert "too few of the rows that were looked at can be used" in " ".join(told.err.split())


def test_all_rows_tell_however_few_can_be_used(tmp_path: Path, rows: tuple[FloatArray, FloatArray]) -> None:
    X, Y = (values[:600] for values in rows)
    write(tmp_path / "few.zarr", {"x": X, "y": np.where(np.arange(600) % 10 == 0, Y.T, np.nan).T})
    asked = job(tmp_path / "few.zarr", tmp_path, kernel=PLAIN, data={"nan": "unlabelled"}, ridge=1e-2)
    assert streamed(asked).passes / 2 <= tell(asked) <= 2 * streamed(asked).passes


def test_what_lies_in_the_state_tells_nothing(store: Path, tmp_path: Path) -> None:
    """It may be of rows that were there before, or damaged: a fit mends it."""
    asked = job(store, tmp_path)
    told, planned = tell(asked), make_plan(asked)
    (freeze_constants(planned).directory / "plan.json").write_text("{}")
    assert tell(asked) == told


def test_the_commonest_patterns_are_tried(tmp_path: Path) -> None:
    """As many as there are sums for, whatever many others there are."""
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((600, 6))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    write(tmp_path / "gaps.zarr", {"x": rng.standard_normal((600, 2)), "y": Y})
    planned = make_plan(job(tmp_path / "gaps.zarr", tmp_path, kernel=PLAIN, data={"nan": "partial"}))
    planned = replace(planned, constants=replace(constants_of(planned), patterns=None))  # not seen in the first leaf
    sample, targets = sample_of(planned, planned.frozen(), 600)
    _, D, parts = streaming._by_pattern(planned.frozen(), sample, targets)
    counts = sorted((np.isfinite(targets) @ 2 ** np.arange(6)).tolist())
    most = sorted((counts.count(one) for one in set(counts)), reverse=True)[:MOST_PATTERNS]
    assert [part.stop - part.start for _, part in parts] == most and len(D) == sum(most)
    assert tell(job(tmp_path / "gaps.zarr", tmp_path, kernel=PLAIN, data={"nan": "partial"})) > 1
    assert planned.constants is not None
    whole = replace(planned, constants=replace(planned.constants, patterns=("",)))
    assert [name for name, _ in streaming._by_pattern(whole.frozen(), sample, targets)[2]] == [""]


def test_infinite_targets_are_missing_ones(tmp_path: Path, rows: tuple[FloatArray, FloatArray]) -> None:
    X, Y = rows[0], rows[1].copy()
    told = []
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        Y[::50, 1] = value
        write(tmp_path / f"{name}.zarr", {"x": X, "y": Y})
        told.append(tell(job(tmp_path / f"{name}.zarr", tmp_path, kernel=PLAIN, data={"nan": "partial"}, ridge=1e-4)))
    assert told[0] == told[1] > 2


def test_a_trial_of_few_rows_is_not_solved_by_its_preconditioner(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(store, tmp_path, kernel=PLAIN, ridge=1e-6)
    taken = streamed(asked).passes
    wanted, sampled = list[int](), streaming.sample_of
    monkeypatch.setattr(streaming, "sample_of", lambda *of: (wanted.append(of[2]), sampled(*of))[1])
    monkeypatch.setattr(streaming, "MOST_NUMBERS", (99 + 2 * 4) * 160)
    assert taken / 2 <= tell(asked) <= 4 * taken and wanted == [160]


def test_plan_tells_the_passes_of_these_data_and_their_seconds(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {}
    for ridge in (1.0, 1e-8):
        asked = job(store, tmp_path, ridge=ridge, route="streaming")
        (tmp_path / "job.yaml").write_text(asked.model_dump_json(exclude_unset=True))
        plan(tmp_path / "job.yaml", as_json=True)
        figures[ridge] = json.loads(capsys.readouterr().out)
        assert figures[ridge]["passes"] == expected_passes(make_plan(asked)) and "missing_rows" not in figures[ridge]
        planned = make_plan(asked).costs
        times = figures[ridge]["passes"] / planned.passes
        assert figures[ridge]["flops"] == pytest.approx(times * planned.flops)
    more = figures[1e-8]["passes"] - figures[1.0]["passes"]
    assert more > figures[1.0]["passes"]
    seconds = figures[1e-8]["seconds"] - figures[1.0]["seconds"]
    assert seconds == pytest.approx(more * planned.pass_seconds) and planned.pass_seconds > 0
    assert figures[1.0]["seconds"] > START  # it starts once


def test_no_more_passes_are_expected_than_there_may_be(store: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    found = streamed(job(store, tmp_path), most=2, progress=lambda _done, total: seen.append(total))
    assert found.passes == 4 and not found.fit.solution.converged  # the borders, two, and the residuals
    assert max(seen) == 4 * ROWS


def test_progress_counts_rows_of_all_passes(store: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = streamed(job(store, tmp_path), progress=lambda done, total: seen.append((done, total)))
    done = [rows for rows, _ in seen]
    assert done == sorted(done) and all(rows <= total for rows, total in seen)
    assert seen[-1] == (found.passes * ROWS, found.passes * ROWS)
    assert found.iterated.errors[0] == 1.0 and found.iterated.errors[-1] <= TOLERANCE


DRIVER = """
import sys
from pathlib import Path
import pytest
sys.path[:0] = sys.argv[3:]
from test_streaming import job, shrink, streamed
shrink(pytest.MonkeyPatch())
streamed(job(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.process
def test_a_killed_driver_goes_on_where_it_was(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    command = [sys.executable, "-c", DRIVER, str(store), str(tmp_path), *PATHS]
    driver = subprocess.Popen(command)
    deadline = time.monotonic() + 600
    while len(list(tmp_path.glob("state/*/sweeps/*/*.moments"))) < 3:
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.002)
    driver.kill()
    driver.wait()
    found = streamed(job(store, tmp_path))
    assert 0 < len(found.fresh) <= (found.passes - 3) * len(found.receipts)
    assert np.array_equal(found.fit.solution.h, expected)


def test_damage_is_done_again(store: Path, tmp_path: Path, expected: FloatArray) -> None:
    interrupted(job(store, tmp_path), 6.5)
    totals = sorted(tmp_path.glob("state/*/sweeps/*/*.moments"))
    assert len(totals) == 6
    for number, total in enumerate(totals[::3]):
        raw = bytearray(total.read_bytes())
        raw[len(raw) // 2 if number % 2 else 20] ^= 1
        total.write_bytes(raw)
    found = streamed(job(store, tmp_path))
    leaves, done = len(found.receipts), len(totals) - len(totals[::3])
    assert (found.passes - len(totals) - 1) * leaves < len(found.fresh) <= (found.passes - done) * leaves
    assert np.array_equal(found.fit.solution.h, expected)


def test_rows_that_change_are_noticed(store: Path, tmp_path: Path) -> None:
    """Between runs nothing of before is used; between passes the run ends."""
    path = tmp_path / "changed.zarr"
    shutil.copytree(store, path)
    interrupted(job(path, tmp_path))
    before = streamed(job(store, tmp_path / "before"))
    shutil.copy(path / "y" / "c" / "2" / "0", path / "y" / "c" / "3" / "0")
    after = streamed(job(path, tmp_path))
    assert len(after.fresh) == after.passes * len(after.receipts)
    assert not np.array_equal(before.fit.solution.h, after.fit.solution.h)
    assert not list(tmp_path.glob("state/*/sweeps/*"))  # of before nothing is left

    changes = count()

    def change(done: int, _total: int, *, times: int) -> None:
        if done > 2.5 * ROWS and next(changes) < times:
            shutil.copy(path / "y" / "c" / "4" / "0", path / "y" / "c" / "0" / "0")

    shutil.rmtree(tmp_path / "state")
    with pytest.raises(InputError, match="changed while"):
        streamed(job(path, tmp_path), progress=partial(change, times=1))
    with pytest.raises(IncompleteError, match=r"changed\.zarr: what leaf 0 is of changed each time"):
        streamed(job(path, tmp_path), progress=partial(change, times=1000))


def test_a_target_without_rows_is_refused(tmp_path: Path) -> None:
    X, Y = np.random.default_rng(0).standard_normal((2, 300, 2))
    Y[:, 1] = np.nan
    write(tmp_path / "one.zarr", {"x": X, "y": Y})
    with pytest.raises(InputError, match="no row has the target y1"):
        streamed(job(tmp_path / "one.zarr", tmp_path, kernel=PLAIN, data={"nan": "partial"}))


@pytest.mark.process
def test_a_fit_by_passes_is_a_fit(store: Path, tmp_path: Path) -> None:
    """Through the whole of it: plan, passes, report, model."""
    found = {}
    for route in ("direct", "cg", "streaming"):
        made = job(store, tmp_path / route, route=route)
        plan = make_plan(made)
        report = fit(made, engine=SerialEngine())
        assert plan.costs.route == report.route == route and report.status == "ok" and route in plan.costs.reason
        assert report.rung == ("cholesky" if route == "direct" else "cg")
        found[route] = load_model(report.model)
        if route == "streaming":
            assert report.passes == report.reads > 3 and report.leaves_reused == 0
            assert plan.costs.passes > 1 and report.noise is not None
    X = np.random.default_rng(3).standard_normal((20, 2))
    for route, close in (("cg", 1e-8), ("streaming", 1e-3)):
        np.testing.assert_allclose(found[route].predict(X), found["direct"].predict(X), atol=close)
    assert found["direct"].posterior is not None and found["streaming"].posterior is None
