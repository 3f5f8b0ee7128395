"""Jobs solved by steps: near the least of the same features, whoever does the first pass, however often it is cut."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import traced
from command_line import call
from places import PATHS
from test_minimised import (
    CLASSES,
    GAUSSIAN,
    PLAIN,
    QUANTILES,
    ROWS,
    SHARD,
    Interrupted,
    bits,
    fitted,
    job,
    objective,
    rows_of,
    shrink,
    stopping,
    store,
)

from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import expected_passes, fit, minimised, settings
from dorff.fit.minimised import begin, step
from dorff.fit.tune import tune
from dorff.plan import freeze_constants, make_plan, routes
from dorff.predict import score
from dorff.solvers.descent import Descent, Point
from dorff.spec.job import Job

__all__ = ["store"]  # a fixture
CURL = {"type": "curl_free", "scalar": GAUSSIAN}
STEPS = {"solver": "sgd", "epochs": 6, "batch": 32}


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Leaves of one to two units, shards of one."""
    shrink(patch)
    patch.setattr(routes, "MOST_RUN", SHARD)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def stepped(store: Path, folder: Path, loss: Any = "squared", **more: Any) -> Job:
    solve = {**STEPS, "tolerance": 1e-3, **more.pop("solve", {})}
    return job(store, folder, loss, solve=solve, **more)


def targets_of(store: Path, data: dict[str, Any]) -> Any:
    return np.eye(4)[rows_of(store, "classes")[:, 0].astype(int)] if data == CLASSES else rows_of(store, "y")


@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("loss", "data", "bound"),
    [("squared", {}, 0.01), ("huber", {}, 0.01), ("multinomial", CLASSES, 0.01), (QUANTILES, {}, 0.01)],
    ids=["squared", "huber", "multinomial", "quantiles"],
)
def test_the_objective_comes_near_the_least(
    loss: Any, data: dict[str, Any], bound: float, solver: str, store: Path, tmp_path: Path
) -> None:
    options = {"tolerance": 1e-3 if loss == "squared" else 1e-4}
    _, least = fitted(job(store, tmp_path / "least", loss, data=data, solve=options))
    report, model = fitted(stepped(store, tmp_path, loss, data=data, solve={"solver": solver, "epochs": 15}))
    X, y, ones = rows_of(store, "x"), targets_of(store, data), np.ones(ROWS)
    value, wanted = (objective(one, loss, X, y, ones, 1e-3) for one in (model, least))
    assert wanted * (1.0 - 2e-4) <= value <= wanted * (1.0 + bound)
    assert report.loss is not None and report.loss["solver"] == solver == report.rung and report.passes == 16
    assert report.loss["passes"] == 16 and report.loss["objective"] is None
    plain = objective(model, loss, X, y, ones, 0.0)  # of the last pass, before each step
    assert 0.9 * plain < report.loss["mean_loss"] < (1.5 if solver == "sgd" else 3.0) * plain  # Adam's last are rough
    assert report.route == "streaming" and report.leaves_reused == 0 and report.rows_used == ROWS
    assert model.info["data"] | {"leaves": 0} == least.info["data"] | {"leaves": 0}
    if data != CLASSES:
        assert score(Path(report.model), store, engine=SerialEngine()).r2 > 0.8


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_values_of_a_simplex_sum_to_nothing(solver: str, store: Path, tmp_path: Path) -> None:
    """Though Adam divides the slope of each class's constant by a number of its own."""
    more: dict[str, Any] = {"data": CLASSES, "kernel": {**PLAIN, "output": "simplex"}}
    report, model = fitted(stepped(store, tmp_path, "simplex", solve={"solver": solver, "epochs": 15}, **more))
    X, y = rows_of(store, "x"), targets_of(store, CLASSES)
    f = model.predict(X)
    assert np.abs(f.sum(axis=1)).max() < 1e-9 * np.abs(f).max()
    _, least = fitted(job(store, tmp_path / "least", "simplex", solve={"tolerance": 1e-4}, **more))
    value, wanted = (objective(one, "simplex", X, y, np.ones(ROWS), 1e-3) for one in (model, least))
    assert wanted * (1.0 - 2e-4) <= value <= 1.02 * wanted and report.status == "ok"


def test_weights_missing_targets_and_outputs_that_hang_together(store: Path, tmp_path: Path) -> None:
    """As near the least as without them; constants and scales are those of the rows that count."""
    kernel = {**PLAIN, "output": {"matrix": [[1, 0.5], [0.5, 1]]}}
    data = {"targets": "gaps", "nan": "partial", "weights": "weight"}
    solve = {"standardize": True, "epochs": 15}
    more = {"data": data, "kernel": kernel}
    _, least = fitted(job(store, tmp_path / "least", "huber", solve={"standardize": True}, **more))
    _, model = fitted(stepped(store, tmp_path, "huber", solve=solve, **more))
    np.testing.assert_allclose(model.target_scale, least.target_scale, rtol=1e-12)
    X, y, w = rows_of(store, "x"), rows_of(store, "gaps"), rows_of(store, "weight")[:, 0]
    value, wanted = (objective(one, "huber", X, y, w, 1e-3) for one in (model, least))
    assert wanted * (1.0 - 1e-6) <= value <= 1.02 * wanted


@pytest.mark.parametrize(
    "more",
    [
        {"kernel": CURL},
        {"solve": {"observe": [[1.0, 0.5], [0.0, 1.0]]}},
        {"solve": {"intercept": False}},
        {"data": CLASSES, "solve": {"class_weight": {"0": 30, "1": 1, "2": 1, "3": 1}}},
    ],
    ids=["curl", "observed", "origin", "weighed"],
)
def test_squares_come_near_the_direct_solve(more: dict[str, Any], store: Path, tmp_path: Path) -> None:
    solve = more.pop("solve", {})
    _, least = fitted(job(store, tmp_path / "least", "squared", solve={**solve, "tolerance": 1e-3}, **more))
    _, model = fitted(stepped(store, tmp_path, solve={**solve, "epochs": 15}, **more))
    X = rows_of(store, "x")
    gap = model.observed(model.predict(X)) - least.observed(least.predict(X))
    y = targets_of(store, more.get("data", {}))
    assert np.mean(gap**2) < 0.01 * np.mean((y - y.mean(axis=0)) ** 2)


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (QUANTILES, {}),
    "adam": ("multinomial", {"data": CLASSES, "solve": {"solver": "adam"}}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passes", [0.5, 1.2, 3.6, 6.9])
def test_a_stopped_fit_goes_on_on_the_same_way(kind: str, passes: float, store: Path, tmp_path: Path) -> None:
    """Bitwise the same model, and what is said of it; nothing is left."""
    loss, more = KINDS[kind]
    whole, model = fitted(stepped(store, tmp_path / "whole", loss, **dict(more)))
    with pytest.raises(Interrupted):
        fit(stepped(store, tmp_path, loss, **dict(more)), progress=stopping(passes))
    assert len(list(tmp_path.glob("state/*/sweeps/*/*.steps"))) == (passes > 1)
    rows = []
    again, other = fitted(stepped(store, tmp_path, loss, **dict(more)), progress=lambda *done: rows.append(done))
    assert bits(model) == bits(other) and again.passes == whole.passes == 7 and again.loss == whole.loss
    assert not list(tmp_path.glob("state/*/sweeps/*"))
    assert rows[-1] == (7 * ROWS, 7 * ROWS) and (passes < 1 or min(rows)[0] >= 0)
    assert min(done for done, _ in rows if done >= ROWS) >= (passes > 1) * int(passes) * ROWS
    assert fit(stepped(store, tmp_path, loss, **dict(more))).outcome == "unchanged"


def test_each_pass_sees_every_row_once_in_an_order_of_its_own(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards in random order, and the rows in each; the mean loss is that of the last pass, before each step."""
    real, seen = Descent.stepped, list[tuple[Any, float]]()

    def stepped_and_seen(self: Descent, point: Point, F: Any, y: Any, w: Any) -> tuple[Point, float]:
        after, loss = real(self, point, F, y, w)
        seen.append((y, loss))
        return after, loss

    monkeypatch.setattr(Descent, "stepped", stepped_and_seen)
    report, _ = fitted(stepped(store, tmp_path, solve={"epochs": 3}))
    batches = len(seen) // 3
    passes = [np.vstack([y for y, _ in seen[at : at + batches]]) for at in (0, batches, 2 * batches)]
    Y = rows_of(store, "y")
    for one in passes:
        np.testing.assert_allclose(np.sort(one, axis=0), np.sort(Y, axis=0) - Y.mean(axis=0), atol=1e-12)
        assert abs(np.corrcoef(one[:, 0], Y[:, 0])[0, 1]) < 0.2
        shards = [set(np.round(Y[at : at + SHARD, 0] - Y[:, 0].mean(), 9)) for at in range(0, ROWS, SHARD)]
        first = set(np.round(one[:32, 0], 9))
        assert sum(first <= shard for shard in shards) == 1  # a batch is of one shard, not its first rows
        assert not any(np.allclose(one[:32], Y[at : at + 32] - Y.mean(axis=0)) for at in range(0, ROWS, SHARD))
    assert len({one.tobytes() for one in passes}) == 3
    assert report.loss is not None
    assert report.loss["mean_loss"] == pytest.approx(sum(loss for _, loss in seen[-batches:]) / ROWS, rel=1e-12)


def test_neither_order_nor_workers_change_a_bit(store: Path, tmp_path: Path) -> None:
    _, model = fitted(stepped(store, tmp_path / "one", "huber"))
    _, other = fitted(stepped(store, tmp_path / "two", "huber"), engine=SerialEngine(shuffle=3))
    assert bits(model) == bits(other)
    _, other = fitted(stepped(store, tmp_path / "three", "huber", features={"seed": 1}))
    assert bits(model) != bits(other)


DRIVER = """
import sys
from pathlib import Path
import pytest
sys.path[:0] = sys.argv[4:]
from test_stochastic_jobs import ROWS, fit, minimised, shorten, stepped
shorten(pytest.MonkeyPatch())
minimised.SAVED = float(sys.argv[3])
begun = Path(sys.argv[2]) / "begun"


def progress(done, total):
    if done > 2 * ROWS:  # the first passes are of least squares
        begun.touch()


fit(stepped(Path(sys.argv[1]), Path(sys.argv[2]), "huber", solve={"epochs": 60}), progress=progress)
"""


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_goes_on_where_it_was(how: int, store: Path, tmp_path: Path) -> None:
    """Killed in the middle of a pass, from what was saved before; or asked to stop, from there."""
    whole, model = fitted(stepped(store, tmp_path / "whole", "huber", solve={"epochs": 60}))
    saved = "0" if how == signal.SIGKILL else "1000"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(store), str(tmp_path), saved, *PATHS])
    deadline = time.monotonic() + 600
    wanted = "state/*/sweeps/*/*.steps" if how == signal.SIGKILL else "begun"
    while not list(tmp_path.glob(wanted)):
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.002)
    driver.send_signal(how)
    assert driver.wait() != 0
    (left,) = tmp_path.glob("state/*/sweeps/*/*.steps")
    at = json.loads(left.read_bytes().partition(b"\n")[0])["record"]
    assert (at["epoch"], at["shards"]) > (0, 0)
    again, other = fitted(stepped(store, tmp_path, "huber", solve={"epochs": 60}))
    assert bits(model) == bits(other) and again.loss == whole.loss
    assert not list(tmp_path.glob("state/*/sweeps/*"))


def test_what_was_saved_is_not_used_where_it_is_damaged_or_of_other_rows(store: Path, tmp_path: Path) -> None:
    _, model = fitted(stepped(store, tmp_path / "whole", "huber"))
    with pytest.raises(Interrupted):
        fit(stepped(store, tmp_path, "huber"), progress=stopping(3.6))
    (path,) = tmp_path.glob("state/*/sweeps/*/*.steps")
    raw = bytearray(path.read_bytes())
    raw[-30] ^= 1
    path.write_bytes(raw)
    steps = []
    _, other = fitted(stepped(store, tmp_path, "huber"), progress=lambda done, _: steps.append(done))
    assert bits(model) == bits(other) and min(one for one in steps if one > ROWS) < 2 * ROWS


MATRIX = {**PLAIN, "output": {"matrix": [[2, 1], [1, 1]]}}
WIDE = {**PLAIN, "scalar": {"type": "gaussian", "lengthscale": 3.0}}
MIXED = {"type": "sum", "terms": [{"weight": 1.0, "kernel": MATRIX}, {"weight": 1.0, "kernel": WIDE}]}


@pytest.mark.parametrize(
    ("inputs", "m", "batch", "run", "kernel", "least"),
    [
        ("x", 2048, 8, 500, PLAIN, 0.6),
        ("x", 64, 4096, 4000, PLAIN, 0.5),
        ("many", 64, 64, 1000, PLAIN, 0.5),
        ("x", 512, 64, 500, MIXED, 0.3),
    ],
    ids=["rates", "batch", "rows", "coupled"],
)
def test_a_plan_tells_passes_and_what_the_driver_holds(
    inputs: str,
    m: int,
    batch: int,
    run: int,
    kernel: Any,
    least: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of shapes in which features of the sample, those of a batch, or rows that are read are most of it."""
    monkeypatch.setattr(routes, "MOST_RUN", run)
    rng, n = np.random.default_rng(0), 4_000
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    for name, columns in {"x": 4, "y": 2, "many": 100}.items():
        group.create_array(name, data=rng.standard_normal((n, columns)), chunks=(500, columns))
    made = job(
        tmp_path / "data.zarr",
        tmp_path,
        "huber",
        data={"inputs": inputs},
        kernel=kernel,
        features={"count": m},
        solve={"solver": "adam", "epochs": 2, "batch": batch},
    )
    plan = make_plan(made)
    assert plan.costs.passes == 3 == expected_passes(plan) and plan.costs.route == "streaming"
    freeze_constants(plan)
    begun = begin(plan, settings(plan)[0], SerialEngine())
    held, said = traced(lambda: step(begun)), driver_bytes(made)
    assert least * said < held <= said
    assert plan.costs.peak_bytes >= said


def driver_bytes(made: Job) -> int:
    """What the plan's way says of the driver."""
    ways = []
    with pytest.MonkeyPatch.context() as patch:
        real = routes._stepping
        patch.setattr(routes, "_stepping", lambda *given: ways.append(real(*given)) or ways[-1])
        make_plan(made)
    return int(ways[-1].driver_bytes)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"solve": {"ridge": [1e-3, 1e-2]}}, "solve.ridge is a list of several, and sgd compares none; give one"),
        ({"solve": {"select": "kfold"}}, "solve.select is kfold, which holds rows out; leave it out"),
        ({"solve": {"select": "loo"}}, "solve.select is loo, which holds rows out; leave it out"),
        ({"solve": {"route": "direct"}}, "solve.route keeps sums, which sgd has none of; leave it out"),
        ({"solve": {"ridge_per_output": True}}, "solve.ridge_per_output chooses by sums of rows; leave it out"),
        ({"solve": {"posterior": True}}, "solve.posterior needs a Gram matrix; leave it out"),
        ({"solve": {"conformal": True}}, "solve.conformal needs rows held out; take quantiles for bands"),
        ({"data": CLASSES, "solve": {"calibrate": True}}, "solve.calibrate needs rows held out; set it to false"),
        ({"kernel": [PLAIN, CURL]}, "kernel is a list of several"),
        ({"features": {"count": [8, 16]}}, "features.count is a list of several"),
        ({"features": {"precision": "mixed"}}, "features.precision rounds sums; leave it out"),
        ({"features": {"sampler": {"type": "lattice"}}}, "features.sampler is for sums of rows; use orthogonal"),
        ({"manifold": {"weight": 1.0}}, "manifold is sums over graphs; leave it out, or use another solver"),
        ({"solve": {"epochs": 0}}, "solve.epochs must be"),
        ({"solve": {"batch": 2.5}}, "solve.batch must be"),
        ({"kernel": {**PLAIN, "output": "learned"}}, "kernel: output 'learned' is learned from sums of rows, which"),
    ],
    ids=lambda part: part.partition(" ")[0] if isinstance(part, str) else "",
)
def test_what_steps_do_not_go_with_is_refused(
    parts: dict[str, Any], sentence: str, store: Path, tmp_path: Path
) -> None:
    solve = {"solver": "sgd", **parts.get("solve", {})}
    data = {"store": str(store), **parts.get("data", {})}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**parts, "data": data, "solve": solve, "state": "s", "model": "m"}))
    result = call("plan", str(path))
    assert result.exit_code == 3 and sentence in result.stderr, result.stderr


def test_what_rows_or_kernels_say_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"solve.loss: poisson is for counts.*has -"):
        fit(stepped(store, tmp_path, "poisson"))
    with pytest.raises(InputError, match=r"solve.solver: sgd keeps no sums"):
        tune(stepped(store, tmp_path))
    with pytest.raises(InputError, match=r"expected a finite number, got nan"):
        fit(stepped(store, tmp_path, data={"targets": "gaps"}))
    assert not (tmp_path / "state").exists()


def test_steps_that_run_away_are_refused(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Descent, point: Point, *_: Any) -> tuple[Point, float]:
        return Point(point.theta, point.mean * np.inf, point.first, point.second), np.inf

    monkeypatch.setattr(Descent, "stepped", away)
    with pytest.raises(InputError, match=r"solve.solver: the steps of sgd did not stay finite with solve.batch 32"):
        fit(stepped(store, tmp_path))
    assert not list(tmp_path.glob("state/*/sweeps/*/*.steps"))


def test_ridge_auto_is_that_of_streaming(store: Path, tmp_path: Path) -> None:
    report, _ = fitted(stepped(store, tmp_path, solve={"ridge": "auto", "epochs": 1}))
    assert report.ridge == 1e-6 and report.status == "ok" and report.noise is None
    assert minimised.SAVED == 60.0
