"""Jobs whose loss is not the square: the least objective of the same features, whoever does the work and is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import call
from distributed import Client
from places import PATHS

from dorff.engine import SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.fit.fit_report import FitReport
from dorff.fit.tune import tune
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.losses import as_loss
from dorff.passes import blocks as leaf_sizes
from dorff.plan import make_plan
from dorff.predict import Uncertainty, predict, score
from dorff.predict.shared import expected
from dorff.report import write_report
from dorff.spec.job import Job
from dorff.store import load_model

ROWS, SHARD = 2_000, 512
GAUSSIAN = {"type": "gaussian", "lengthscale": 1.0}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}
QUANTILES = {"quantiles": [0.2, 0.5, 0.8]}
CLASSES = {"targets": {"classes": "classes"}}


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Leaves of one to two shards."""
    patch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    patch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets, some missing in `gaps`; counts; four classes; zeros and ones; weights; a second array of inputs."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((ROWS, 2))
    Y = np.column_stack([3.0 * np.sin(X[:, 0]), X[:, 1] ** 2 + 3.0]) + 0.3 * rng.standard_normal((ROWS, 2))
    gaps = Y.copy()
    gaps[100:2000:7, 1] = np.nan
    codes = np.argmax(np.column_stack([X, -X]) + 0.5 * rng.standard_normal((ROWS, 4)), axis=1)[:, None]
    counts = rng.poisson(np.exp(np.sin(X))).astype(np.float64)
    arrays = {
        "x": X, "v": rng.standard_normal((ROWS, 2)), "y": Y, "gaps": gaps, "counts": counts, "classes": codes,
        "noise": 3.0 * rng.standard_normal((ROWS, 2)),
        "ones": (X > 0.2).astype(np.float64), "weight": rng.uniform(0.0, 2.0, (ROWS, 1)),
    }  # fmt: skip
    path = tmp_path_factory.mktemp("data") / "rows.zarr"
    group = zarr.open_group(str(path), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(SHARD, values.shape[1]))
    return path


def job(store: Path, folder: Path, loss: Any, *, data: dict[str, Any] | None = None, **more: Any) -> Job:
    parts: dict[str, Any] = {
        "data": {"store": str(store), **(data or {})},
        "kernel": more.pop("kernel", PLAIN),
        "features": {"count": 48, "sampler": {"type": "orthogonal"}, **more.pop("features", {})},
        "solve": {"ridge": 1e-3, "loss": loss, "tolerance": 1e-7, "calibrate": False, **more.pop("solve", {})},
        "cluster": {"type": "serial"}, "state": str(folder / "state"), "model": str(folder / "model"), **more,
    }  # fmt: skip
    return Job.model_validate(parts)


def fitted(made: Job, **options: Any) -> tuple[FitReport, Model]:
    report = fit(made, **options)
    return report, load_model(Path(report.model))


def rows_of(store: Path, name: str) -> FloatArray:
    return np.asarray(zarr.open_group(str(store), mode="r")[name][:], dtype=np.float64)


def objective(model: Model, loss: Any, X: FloatArray, y: FloatArray, weights: FloatArray, ridge: float) -> float:
    """Of a model, written out: the mean loss of all rows and ridge |h|^2, in its scaled units."""
    scale = model.target_scale
    of = as_loss(loss)
    f = model.predict(X) / scale
    targets = of.spread(y / scale[:: of.levels])
    there = np.isfinite(targets)
    value = of.terms(f, np.where(there, targets, 0.0)).value * there
    mean = float(weights @ value.sum(axis=1) / weights.sum())
    return mean + ridge * float(np.sum(model.coefficients**2))


@pytest.mark.parametrize(
    ("loss", "data", "more"),
    [
        ("huber", {}, {}),
        (QUANTILES, {}, {"solve": {"standardize": True}}),
        ({"epsilon_insensitive": 0.2}, {"targets": "gaps", "nan": "partial"}, {}),
        ("poisson", {"targets": "counts", "weights": "weight"}, {}),
        ("logistic", {"targets": "ones"}, {"kernel": {**PLAIN, "output": {"matrix": [[1, 0.5], [0.5, 1]]}}}),
        ("multinomial", CLASSES, {}),
        ("hinge", CLASSES, {}),
        ("squared_hinge", CLASSES, {}),
        ("simplex", CLASSES, {"kernel": {**PLAIN, "output": "simplex"}}),
        ("huber", {}, {"kernel": {"type": "curl_free", "scalar": GAUSSIAN}}),
    ],
    ids=["huber", "quantiles", "gaps", "weights", "coupled", "multinomial", "hinge", "squared", "simplex", "curl"],
)
def test_the_objective_is_least(
    loss: Any, data: dict[str, Any], more: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    """The report's objective is the model's, written out, and no small step from its coefficients is better."""
    tolerance = 1e-5 if as_loss(loss).kinked else 1e-7
    solve = {"tolerance": tolerance, **more.get("solve", {})}
    report, model = fitted(job(store, tmp_path, loss, data=data, **{**more, "solve": solve}))
    X = rows_of(store, "x")
    y = rows_of(store, data.get("targets", "y") if isinstance(data.get("targets", "y"), str) else "classes")
    y = np.eye(4)[y[:, 0].astype(int)] if data == CLASSES else y
    weights = rows_of(store, "weight")[:, 0] if "weights" in data else np.ones(ROWS)
    value = objective(model, loss, X, y, weights, 1e-3)
    assert report.loss is not None and value == pytest.approx(report.loss["objective"], rel=1e-9)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(5):
            step = size * rng.standard_normal(model.coefficients.shape) / np.sqrt(model.coefficients.size)
            shift = size * rng.standard_normal(model.intercept.shape) * model.target_scale
            if as_loss(loss).centred:
                shift -= shift.mean()
            moved = replace(model, coefficients=model.coefficients + step, intercept=model.intercept + shift)
            assert objective(moved, loss, X, y, weights, 1e-3) > value - 10 * tolerance * value
    assert report.loss["left"] <= 2 * tolerance * value and report.status == "ok"


def test_quantiles_hold_their_share_and_do_not_cross(store: Path, tmp_path: Path) -> None:
    made = job(
        store,
        tmp_path,
        {**QUANTILES, "coupling": 0.0},
        solve={"ridge": [1e-3, 1e-1], "select": "kfold", "tolerance": 1e-5},
    )
    report, model = fitted(made)
    X, Y = rows_of(store, "x"), rows_of(store, "y")
    f = model.predict(X).reshape(ROWS, 2, 3)
    np.testing.assert_allclose((Y[:, :, None] <= f).mean(axis=0), [[0.2, 0.5, 0.8]] * 2, atol=0.01)
    assert np.all(np.diff(f, axis=2) > 0)  # at coupling 0 they are constants apart
    assert np.ptp(np.diff(f, axis=2), axis=0).max() < 1e-9
    assert model.info["data"]["targets"][:3] == ["y0 q0.2", "y0 q0.5", "y0 q0.8"]
    assert report.loss is not None and [row["ridge"] for row in report.loss["table"]] == [1e-3, 1e-1]
    for shares in report.loss["below"].values():  # of held-out rows: five standard errors
        for level, share in shares.items():
            tau = float(level)
            assert abs(share - tau) < 5.0 * np.sqrt(tau * (1 - tau) / ROWS)
    np.testing.assert_allclose(model.observed(model.predict(X)), f[:, :, 1])  # scored by the median
    told = score(Path(report.model), store, engine=SerialEngine())
    assert told.r2 > 0.8


def test_shares_below_are_of_targets_that_are_there(store: Path, tmp_path: Path) -> None:
    """Of a target with few values, and far from its level: beside one with the same in all rows. To few digits the
    slopes of a loss are those of a smoother one, but a share is not."""
    rng = np.random.default_rng(3)
    value = rng.exponential(size=ROWS)
    few = np.where(rng.uniform(size=ROWS) < 0.8, np.nan, value)
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    for name, values in {"x": rows_of(store, "x"), "y": np.column_stack([few, value])}.items():
        group.create_array(name, data=values, chunks=(SHARD, 2))
    solve = {"ridge": 100.0, "intercept": False, "select": "kfold", "folds": {"by": "rows", "count": 3}}
    made = job(tmp_path / "rows.zarr", tmp_path, {"quantiles": [0.9]}, data={"nan": "partial"}, solve=solve)
    report, model = fitted(made)
    assert report.loss is not None and np.abs(model.predict(rows_of(store, "x"))).max() < 0.05
    for shares in report.loss["below"].values():
        assert 0.0 <= shares["0.9"] < 0.05
    rough = job(
        store, tmp_path / "rough", QUANTILES, solve={**solve, "tolerance": 1e-2, "ridge": 1e-3, "intercept": True}
    )
    report, model = fitted(rough)
    X, Y, rule = rows_of(store, "x"), rows_of(store, "y"), make_plan(rough).frozen().folds
    assert report.loss is not None
    held = rule.of_rows(np.arange(ROWS)) == 0
    near = np.mean(Y[held, :, None] <= model.predict(X[held]).reshape(-1, 2, 3), axis=0)  # of a fit to all rows
    told = [list(shares.values()) for shares in report.loss["below"].values()]
    np.testing.assert_allclose(told, near, atol=0.02)
    of_rows = np.array(told) * held.sum()
    np.testing.assert_allclose(of_rows, np.round(of_rows), atol=1e-6)  # whole numbers of rows


def test_the_ridge_is_the_best_by_the_loss_of_rows_held_out(store: Path, tmp_path: Path) -> None:
    """Each fold's loss is that of a fit to the other rows alone, found by itself."""
    ridges = [1e-4, 1e-2, 1.0]
    made = job(
        store, tmp_path, "huber", solve={"ridge": ridges, "select": "kfold", "folds": {"by": "rows", "count": 3}}
    )
    report, _ = fitted(made)
    assert report.loss is not None
    losses = [row["loss"] for row in report.loss["table"]]
    assert report.ridge == ridges[int(np.argmin(losses))]
    rule, X, Y = make_plan(made).frozen().folds, rows_of(store, "x"), rows_of(store, "y")
    fold_of, total = rule.of_rows(np.arange(ROWS)), 0.0
    for fold in range(3):
        weight = (fold_of != fold).astype(np.float64)
        path = tmp_path / f"fold{fold}.zarr"
        group = zarr.open_group(str(path), mode="w")
        for name, values in {"x": X, "y": Y, "w": weight[:, None]}.items():
            group.create_array(name, data=values, chunks=(SHARD, values.shape[1]))
        _, other = fitted(
            job(path, tmp_path / f"of{fold}", "huber", data={"weights": "w"}, solve={"ridge": report.ridge})
        )
        held = fold_of == fold
        total += float(as_loss("huber").terms(other.predict(X[held]), Y[held]).value.sum())
    assert min(losses) == pytest.approx(total / ROWS, rel=1e-4)


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


def stopping(passes: float) -> Callable[[int, int], None]:
    def stop(done: int, _total: int) -> None:
        if done > passes * ROWS:
            raise Interrupted

    return stop


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "quantiles": (QUANTILES, {"solve": {"tolerance": 1e-4}}),
    "folds": ("huber", {"solve": {"ridge": [1e-3, 1e-1], "select": "kfold", "folds": {"by": "rows", "count": 3}}}),
    "newton": ("logistic", {"data": {"targets": "ones"}, "solve": {"solver": "newton"}}),
}


def bits(model: Model) -> list[bytes]:
    return [model.coefficients.tobytes(), model.intercept.tobytes()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passes", [0.5, 1.5, 4.5, 7.2])
def test_a_stopped_fit_goes_on_on_the_same_way(kind: str, passes: float, store: Path, tmp_path: Path) -> None:
    """Bitwise the same model, in as many passes, of which none that was done is done again."""
    loss, more = KINDS[kind]
    whole, model = fitted(job(store, tmp_path / "whole", loss, **dict(more)))
    with pytest.raises(Interrupted):
        fit(job(store, tmp_path, loss, **dict(more)), progress=stopping(passes))
    again, other = fitted(job(store, tmp_path, loss, **dict(more)))
    assert bits(model) == bits(other) and again.passes == whole.passes
    assert again.loss == whole.loss
    assert again.leaves_computed < whole.leaves_computed and again.leaves_reused > whole.leaves_reused
    assert not list(tmp_path.glob("state/*/sweeps/*"))  # nothing is left
    assert fit(job(store, tmp_path, loss, **dict(more))).outcome == "unchanged"


@pytest.mark.parametrize("kind", KINDS)
def test_neither_order_nor_workers_change_a_bit(kind: str, store: Path, tmp_path: Path) -> None:
    loss, more = KINDS[kind]
    _, model = fitted(job(store, tmp_path / "one", loss, **dict(more)))
    _, other = fitted(job(store, tmp_path / "two", loss, **dict(more)), engine=SerialEngine(shuffle=3))
    assert bits(model) == bits(other)


DRIVER = """
import sys
from pathlib import Path
import pytest
sys.path[:0] = sys.argv[4:]
from test_minimised import KINDS, fit, job, shrink
shrink(pytest.MonkeyPatch())
loss, more = KINDS[sys.argv[3]]
fit(job(Path(sys.argv[1]), Path(sys.argv[2]), loss, **dict(more)))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_driver_goes_on_where_it_was(kind: str, store: Path, tmp_path: Path) -> None:
    """Killed twice, mid-optimisation: the same bits as at once, and as on workers of Dask."""
    loss, more = KINDS[kind]
    whole, model = fitted(job(store, tmp_path / "whole", loss, **dict(more)))
    for done in (3, 6):
        command = [sys.executable, "-c", DRIVER, str(store), str(tmp_path), kind, *PATHS]
        driver = subprocess.Popen(command)
        deadline = time.monotonic() + 600
        while len(list(tmp_path.glob("state/*/sweeps/*/*.moments"))) < done:
            assert time.monotonic() < deadline and driver.poll() is None
            time.sleep(0.002)
        driver.kill()
        driver.wait()
    again, other = fitted(job(store, tmp_path, loss, **dict(more)))
    assert bits(model) == bits(other) and again.loss == whole.loss
    assert again.leaves_computed < whole.leaves_computed


@pytest.mark.process
def test_dask_gives_the_serial_engines_bits(store: Path, tmp_path: Path) -> None:
    _, model = fitted(job(store, tmp_path / "one", QUANTILES))
    with local_cluster(2) as cluster, Client(cluster) as client:
        _, other = fitted(job(store, tmp_path / "two", QUANTILES), engine=DaskEngine(client))
    assert bits(model) == bits(other)


def test_the_first_features_of_several_counts(store: Path, tmp_path: Path) -> None:
    """Where a smaller count wins, the loss is minimised over its features, the first of the pass's."""
    solve = {"ridge": [1e-3], "select": "kfold"}
    made = job(store, tmp_path, "huber", features={"count": [96, 8]}, solve=solve)
    report, model = fitted(made)
    X, Y = rows_of(store, "x"), rows_of(store, "y")
    assert report.loss is not None and model.feature_map.m == report.m
    assert objective(model, "huber", X, Y, np.ones(ROWS), 1e-3) == pytest.approx(report.loss["objective"], rel=1e-9)
    for solver in ("lbfgs", "newton"):  # of targets that are noise the least count wins
        noise = job(store, tmp_path / solver, {"huber": 0.5}, data={"targets": "noise"}, features={"count": [96, 8]},
                    solve={**solve, "solver": solver})  # fmt: skip
        few, model = fitted(noise)
        assert few.loss is not None and few.m == model.feature_map.m == 8
        value = objective(model, {"huber": 0.5}, X, rows_of(store, "noise"), np.ones(ROWS), 1e-3)
        assert value == pytest.approx(few.loss["objective"], rel=1e-9) and few.loss["left"] < 1e-6 * value


def test_views_and_manifold_terms_go_with_a_loss(store: Path, tmp_path: Path) -> None:
    """A term makes f smoother along its graph; the mean of views is what the targets see."""
    kernel = {"type": "multi_view", "views": [{"inputs": "x", "kernel": PLAIN}, {"inputs": "v", "kernel": PLAIN}]}
    between = {"weight": 1.0, "between": True}
    apart = []
    for name, term in (("without", []), ("with", [between])):
        _, model = fitted(
            job(store, tmp_path / name, "huber", data={"inputs": ["x", "v"]}, kernel=kernel, manifold=term)
        )
        X = np.hstack([rows_of(store, "x"), rows_of(store, "v")])
        views = model.predict_views(X)
        apart.append(float(np.mean((views[:, 0] - views[:, 1]) ** 2)))
    assert apart[1] < 0.2 * apart[0]


def test_values_of_classes_sum_to_nothing_under_a_manifold_term(store: Path, tmp_path: Path) -> None:
    """Where the term sees constants: those of least squares do not, and values below 0 throughout cost nothing."""
    term = {"graph": {"type": "knn", "neighbours": 5}, "laplacian": "normalised", "scale": "mean", "weight": 100.0}
    kernel = {**PLAIN, "output": "simplex"}
    made = job(store, tmp_path, "simplex", data=CLASSES, kernel=kernel, manifold=term, solve={"tolerance": 1e-3})
    _, model = fitted(made)
    f = model.predict(rows_of(store, "x"))
    assert np.abs(f).max() > 1e-3 and np.abs(f.sum(axis=1)).max() < 1e-9 * np.abs(f).max()


def test_a_laplace_posterior_is_the_inverse_of_the_hessian(store: Path, tmp_path: Path) -> None:
    made = job(store, tmp_path, "poisson", data={"targets": "counts"}, solve={"posterior": True})
    _, model = fitted(made)
    X = rows_of(store, "x")
    F = np.hstack([model.feature_map.transform(X), np.ones((ROWS, 1))])
    for output in range(2):
        rate = np.exp(model.predict(X)[:, output])
        H = (F * rate[:, None]).T @ F + np.diag([2.0 * ROWS * 1e-3] * (F.shape[1] - 1) + [0.0])
        exact = np.sqrt(np.einsum("nk,kj,nj->n", F[:50], np.linalg.inv(H), F[:50]))
        np.testing.assert_allclose(model.std(X[:50])[:, output], exact, rtol=1e-6)
    told = score(Path(made.model), store, engine=SerialEngine(), targets="counts")
    assert told.r2 > 0.1  # of rates, not of their logarithms
    out = tmp_path / "predicted.zarr"
    predict(Path(made.model), store, out, engine=SerialEngine(), uncertainty=Uncertainty(std=True))
    np.testing.assert_allclose(rows_of(out, "y"), np.exp(model.predict(X)), rtol=1e-12)
    variance = model.std(X) ** 2
    of_rates = np.exp(model.predict(X) + variance / 2.0) * np.sqrt(np.exp(variance) - 1.0)
    np.testing.assert_allclose(rows_of(out, "std"), of_rates, rtol=1e-9)
    for wanted, option in ((Uncertainty(std=True, noise=True), "--noise"), (Uncertainty(bands=(0.9,)), "--bands")):
        with pytest.raises(InputError, match=f"{option}: .* was fitted by loss poisson, with no noise of targets; ask"):
            predict(Path(made.model), store, tmp_path / "no.zarr", engine=SerialEngine(), uncertainty=wanted)


@pytest.mark.parametrize("loss", ["multinomial", "logistic"])
def test_deviations_of_the_probabilities_of_classes(loss: str, store: Path, tmp_path: Path) -> None:
    """Calibrated as the probabilities are, from a data set to another, and in the report."""
    solve = {"posterior": True, "calibrate": True, "folds": {"by": "rows"}, "tolerance": 1e-5}
    made = job(store, tmp_path, loss, data=CLASSES, solve=solve)
    report, model = fitted(made)
    assert model.posterior is not None
    inputs = rows_of(store, "x")
    out = tmp_path / "predicted.zarr"
    predict(Path(made.model), store, out, engine=SerialEngine(), uncertainty=Uncertainty(std=True))
    np.testing.assert_allclose(rows_of(out, "std"), model.outcome_std(inputs), rtol=1e-9, atol=1e-12)
    names = zarr.open_group(str(out), mode="r").attrs["columns"]
    assert names["std"] == ["0_std", "1_std", "2_std", "3_std"]
    drawn = np.array([one.outcome(one.predict(inputs[:30])) for one in model.sample(1500, seed=3)])
    np.testing.assert_allclose(drawn.std(axis=0), rows_of(out, "std")[:30], atol=0.01, rtol=0.1)
    with pytest.raises(InputError, match=r"--bands: .* is a classifier, whose probabilities say how sure it is"):
        wanted = Uncertainty(bands=(0.9,))
        predict(Path(made.model), store, tmp_path / "no.zarr", engine=SerialEngine(), uncertainty=wanted)
    assert "<h2>Loss</h2>" in write_report(Path(report.model), tmp_path / "page.html").read_text(encoding="utf-8")


def test_deviations_that_were_not_kept_are_refused(store: Path, tmp_path: Path) -> None:
    made = job(store, tmp_path, "multinomial", data=CLASSES, solve={"tolerance": 1e-2})
    fitted(made)
    wanted = Uncertainty(std=True)
    with pytest.raises(InputError, match=r"--std: .* keeps no posterior; set solve.posterior: true in its job"):
        predict(Path(made.model), store, tmp_path / "no.zarr", engine=SerialEngine(), uncertainty=wanted)


def test_classes_are_calibrated_and_scored(store: Path, tmp_path: Path) -> None:
    solve = {"calibrate": True, "folds": {"by": "rows"}, "tolerance": 1e-4}
    for loss in ("multinomial", "hinge"):
        report, model = fitted(job(store, tmp_path / loss, loss, data=CLASSES, solve=solve))
        assert report.quality is not None and report.quality["accuracy"] > 0.6
        assert model.info["calibration"]["rows"] > 100
        told = score(Path(report.model), store, engine=SerialEngine())
        assert told.accuracy is not None and told.accuracy > 0.65 and told.log_loss is not None
        slope = model.info["calibration"]["slope"]
        assert 0.8 < slope < 1.3 if loss == "multinomial" else slope > 1.0  # its own probabilities are nearly right


def test_the_report_says_what_proves_the_end(store: Path, tmp_path: Path) -> None:
    """A duality gap within the tolerance for losses with a kink, an estimate by the slope for others."""
    for loss in ({"epsilon_insensitive": 0.1}, QUANTILES, "huber"):
        folder = tmp_path / str(loss)[:6]
        report = fit(job(store, folder, loss, data={"targets": "noise"}, solve={"tolerance": 1e-4}))
        told = report.loss
        assert told is not None
        assert told["ended_by"] == ("slope" if loss == "huber" else "gap")
        assert loss == "huber" or 0 <= told["left"] <= told["gap"] <= 1e-4 * told["objective"]


@pytest.mark.parametrize(("loss", "tolerance"), [("huber", 1e-4), (QUANTILES, 1e-7)], ids=["few", "many"])
def test_the_plan_tells_passes_and_what_goes_on_says_so(
    loss: Any, tolerance: float, store: Path, tmp_path: Path
) -> None:
    """Also where they are more than was told."""
    made = job(store, tmp_path, loss, solve={"tolerance": tolerance})
    costs = make_plan(made).costs
    seen: list[tuple[int, int]] = []
    report = fit(made, progress=lambda done, total: seen.append((done, total)))
    assert costs.route == report.route == "direct"
    assert report.passes / 3 < costs.passes < 3 * report.passes
    assert (report.passes > costs.passes) == (loss == QUANTILES)
    done = [rows for rows, _ in seen]
    assert done == sorted(done) and all(rows <= total for rows, total in seen)


@pytest.mark.parametrize(
    ("loss", "data", "more", "sentence"),
    [
        ("poisson", {}, {}, "solve.loss: poisson is for counts from 0 to 1e.13, but .*row 0, column y0 has -"),
        ("logistic", {"targets": "counts"}, {}, "solve.loss: logistic is for classes, or targets of 0 and 1, but"),
        ("multinomial", {}, {}, "solve.loss: multinomial is for classes, but the targets are numbers; give"),
        ("huber", CLASSES, {}, "solve.loss: huber is for numbers, but data.targets are classes; take"),
        (
            "simplex",
            CLASSES,
            {},
            "loss: simplex needs values along the codes of the classes: output simplex of the kernel",
        ),
        ("hinge", CLASSES, {"solve": {"solver": "newton"}}, "solver: newton does not go with loss hinge, which curves"),
        (
            "multinomial",
            CLASSES,
            {"solve": {"solver": "newton"}},
            "newton does not go with loss multinomial, which ties",
        ),
        ("huber", {}, {"solve": {"posterior": True}}, "solve.posterior: a fit by loss huber has no posterior"),
        (QUANTILES, {}, {"kernel": {"type": "curl_free", "scalar": GAUSSIAN}}, "loss: several quantiles are for"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_the_pass(
    loss: Any, data: dict[str, Any], more: dict[str, Any], sentence: str, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        fit(job(store, tmp_path, loss, data=data, **more))
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "state").exists() and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("solve", "sentence"),
    [
        ({"loss": {"quantiles": [0.1, 1.2]}}, "solve.loss.quantiles must be numbers between 0 and 1, in order"),
        ({"loss": {"quantiles": [0.9, 0.1]}}, "solve.loss.quantiles must be numbers between 0 and 1, in order"),
        ({"loss": {"quantiles": []}}, "solve.loss.quantiles must be numbers between 0 and 1, in order"),
        ({"loss": {"huber": -1}}, "solve.loss.huber must be a number greater than 0, came -1; correct it"),
        ({"loss": "hubert"}, "solve.loss must be one of: squared, huber.*did you mean 'huber'"),
        ({"loss": {"quantile": [0.5]}}, "solve.loss.quantile is not a known key; did you mean 'quantiles'"),
        ({"loss": "huber", "route": "cg"}, "solve.route is cg, which keeps no sums to begin with; set it to auto"),
        (
            {"loss": "huber", "select": "gcv", "ridge": [1, 2]},
            "solve.select scores squares; set kfold, or leave it out",
        ),
        ({"loss": "huber", "conformal": True}, "solve.conformal goes with squares alone; take quantiles"),
        ({"loss": "huber", "ridge_per_output": True}, "solve.ridge_per_output goes with squares alone; leave it out"),
        ({"solver": "lbfgs"}, "solve.solver has no effect: loss is squared"),
    ],
)
def test_words_that_do_not_fit_are_refused(solve: dict[str, Any], sentence: str, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"data": {"store": str(store)}, "solve": solve, "state": "s", "model": "m"}))
    result = call("plan", str(path))
    assert re.search(sentence, result.stderr), result.stderr
    assert result.exit_code == (0 if "no effect" in sentence else 3)


def test_a_score_says_the_loss_and_the_shares_below_quantiles(store: Path, tmp_path: Path) -> None:
    """Of the rows of the fit it is what the fit says of them."""
    for kind, loss, data, more in (
        ("quantiles", QUANTILES, {}, {"solve": {"standardize": True}}),
        ("weighed quantiles", QUANTILES, {"targets": "gaps", "nan": "partial", "weights": "weight"}, {}),
        ("observed", {"huber": 0.5}, {}, {"solve": {"observe": [[1.0, 0.5, 0.0], [0.0, 1.0, 1.0]]}}),
        ("several", QUANTILES, {}, {"solve": {"observe": [[1.0, 0.5], [0.0, 1.0]]}}),
        ("gaps", "huber", {"targets": "gaps", "nan": "partial", "weights": "weight"}, {}),
        ("hinge", "hinge", CLASSES, {}),
    ):
        more = {"solve": {"tolerance": 1e-3, **more.get("solve", {})}}
        report, model = fitted(job(store, tmp_path / kind, loss, data=data, **more))
        targets = None if "targets" not in data or data == CLASSES else data["targets"]
        told = score(Path(report.model), store, engine=SerialEngine(), targets=targets)
        assert report.loss is not None and told.loss == pytest.approx(report.loss["mean_loss"], rel=1e-9)
        if kind.endswith("quantiles"):
            f, Y = model.predict(rows_of(store, "x")).reshape(ROWS, 2, 3), rows_of(store, targets or "y")
            w = rows_of(store, "weight") if "weights" in data else np.ones((ROWS, 1))
            below = np.sum(w[:, :, None] * (Y[:, :, None] <= f), axis=0)
            below /= np.sum(w * np.isfinite(Y), axis=0)[:, None]
            assert told.below is not None and sorted(told.below) == [f"{targets or 'y'}{q}" for q in (0, 1)]
            for name, shares in zip(sorted(told.below), below, strict=True):
                assert told.below[name] == pytest.approx(dict(zip(("0.2", "0.5", "0.8"), shares, strict=True)))
        else:
            assert (told.below is None) == (kind != "several")
    assert score(Path(report.model), store, engine=SerialEngine()).accuracy is not None


def test_rates_are_of_what_targets_see(store: Path, tmp_path: Path) -> None:
    """C mixes the logarithms of rates: exp(C f), not C exp(f)."""
    C = [[1.0, 0.5], [0.3, 1.0]]
    made = job(store, tmp_path, "poisson", data={"targets": "counts"}, solve={"observe": C, "tolerance": 1e-4})
    report, model = fitted(made)
    X, y = rows_of(store, "x"), rows_of(store, "counts")
    rates = np.exp(model.predict(X) @ np.array(C).T)
    r2 = float(np.mean(1.0 - np.sum((y - rates) ** 2, axis=0) / np.sum((y - y.mean(axis=0)) ** 2, axis=0)))
    told = score(Path(report.model), store, engine=SerialEngine(), targets="counts")
    assert told.r2 == pytest.approx(r2, abs=1e-9) and r2 > 0.2
    np.testing.assert_allclose(expected(model, X[:50]), rates[:50], rtol=1e-12)


def test_a_report_tells_of_the_loss(store: Path, tmp_path: Path) -> None:
    solve = {"ridge": [1e-3, 1e-1], "select": "kfold", "folds": {"by": "rows", "count": 3}, "tolerance": 1e-3}
    report, model = fitted(job(store, tmp_path, QUANTILES, solve=solve))
    page = write_report(Path(report.model), tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        "<h2>Loss</h2>" in page and "Quantiles of rows held out" in page and "Held-out y0 below its quantiles" in page
    )
    assert model.info["data"]["fitted"] == ["y0", "y1"]
    report, _ = fitted(
        job(store, tmp_path / "hinge", "hinge", data=CLASSES, solve={"calibrate": True, "tolerance": 1e-3})
    )
    page = write_report(Path(report.model), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "minimised by lbfgs" in page and "Quantiles of rows held out" not in page
    shown = call("fit", _written(tmp_path / "job", job(store, tmp_path / "again", "huber")))
    assert re.search(r"loss .* a row; \d+ passes \(lbfgs\), about .* of the objective left to gain", shown.stdout)


def _written(folder: Path, made: Job) -> Path:
    folder.mkdir()
    (folder / "job.yaml").write_text(json.dumps(made.model_dump(mode="json", exclude_unset=True)))
    return folder / "job.yaml"


def test_a_ridge_of_zero_comes_to_an_end_or_says_so(store: Path, tmp_path: Path) -> None:
    """Directions in which nothing curves are left alone; what is left to gain is a number, and told."""
    made = job(store, tmp_path, {"huber": 0.5}, features={"count": 512}, solve={"ridge": 0.0, "tolerance": 1e-4})
    report, model = fitted(made)
    assert report.loss is not None and report.loss["gap"] is None and np.isfinite(model.coefficients).all()
    other, _ = fitted(job(store, tmp_path / "some", {"huber": 0.5}, features={"count": 512}, solve={"ridge": 1e-12}))
    ended = report.status == "ok" and report.loss["objective"] < 1.01 * other.loss["objective"]  # type: ignore[index]
    assert ended or (report.status == "not_converged" and any("not within solve.tol" in one for one in report.warnings))


def test_targets_of_rows_that_are_not_used_are_not_looked_at(store: Path, tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    counts, weight, X = rows_of(store, "counts"), np.ones((ROWS, 1)), rows_of(store, "x")
    counts[5], weight[5] = -1.0, 0.0
    counts[7], X[7] = -1.0, np.nan
    for name, values in {"x": X, "y": counts, "w": weight}.items():
        group.create_array(name, data=values, chunks=(SHARD, values.shape[1]))
    data = {"weights": "w", "nan": "drop"}
    report, _ = fitted(job(tmp_path / "rows.zarr", tmp_path, "poisson", data=data, solve={"tolerance": 1e-3}))
    assert report.rows_used == ROWS - 2
    with pytest.raises(InputError, match="row 5, column y0 has -1"):
        fit(job(tmp_path / "rows.zarr", tmp_path / "all", "poisson", data={"nan": "drop"}))


@pytest.mark.parametrize(
    ("solve", "sentence"),
    [
        ({"loss": "poisson", "posterior": True, "ridge": 0.0}, "solve.posterior: at ridge 0 it has no bounds"),
        ({"loss": {**QUANTILES, "coupling": 0}, "intercept": False}, "quantiles of coupling 0 are constants apart"),
    ],
)
def test_what_can_be_told_from_words_is_refused_at_once(
    solve: dict[str, Any], sentence: str, store: Path, tmp_path: Path
) -> None:
    loss = solve.pop("loss")
    with pytest.raises(InputError, match=sentence):
        make_plan(job(store, tmp_path, loss, data={"targets": "counts"}, solve=solve))


def test_deviations_of_targets_are_refused_where_there_are_none(store: Path, tmp_path: Path) -> None:
    for name, loss, options in (("poisson", "poisson", {"posterior": True}), ("quantiles", QUANTILES, {})):
        made = job(store, tmp_path / name, loss, data={"targets": "counts"}, solve={"tolerance": 1e-2, **options})
        report, _ = fitted(made)
        with pytest.raises(
            InputError, match=r"--coverage: .* (has no deviations, but its quantiles|no noise of targets)"
        ):
            score(Path(report.model), store, engine=SerialEngine(), targets="counts", coverage=(0.9,))
    with pytest.raises(InputError, match=r"solve[.]loss: dorff tune compares by squares alone; fit the job"):
        tune(made)


def test_a_score_by_some_of_the_outputs(store: Path, tmp_path: Path) -> None:
    """C that is a part of the identity, of one scale for all targets."""
    C = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    for name, loss in (("huber", {"huber": 0.5}), ("quantiles", QUANTILES)):
        report, _ = fitted(
            job(store, tmp_path / name, loss, solve={"observe": C, "standardize": True, "tolerance": 1e-3})
        )
        told = score(Path(report.model), store, engine=SerialEngine())
        assert report.loss is not None and told.loss == pytest.approx(report.loss["mean_loss"], rel=1e-9)
