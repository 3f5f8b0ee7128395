"""How good a fit is on held-out rows, as by hand; and each warning, by data that deserve it and by data that do
not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import slow
from sklearn import datasets
from sklearn.metrics import r2_score

from dorff.cli.sentences import quality_text
from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.fit import FitReport, fit
from dorff.kernels.scalar import FloatArray
from dorff.plan import make_plan
from dorff.plan.sampled import linear_r2
from dorff.spec.job import Job
from dorff.store import load_model

N = 600
REMEDIES = {
    "poor": "better than the mean",
    "worse": "worse than the mean",
    "by heart": "learns rows by heart",
    "flat": "almost flat",
    "spike": "zero between most rows",
    "edge": "set solve.ridge: auto",
    "no noise": "set solve.folds.by: blocks",
    "bands": "set solve.conformal: true",
    "features": "raise features.count",
    "beside": "leave solve.folds.by out",
    "linear": "list kernels of longer ones",
    "shared": "rows of a group share errors",
}


def rows(n: int = N, d: int = 2, noise: float = 0.3, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2]) + noise * rng.normal(size=(n, 2))


def job(folder: Path, X: FloatArray, Y: FloatArray, **more: Any) -> Job:
    source, store = folder / "rows.npz", folder / "rows.zarr"
    if not store.exists():
        np.savez(source, x=X, y=Y)
        ingest([source], store, inputs=["x"], targets=["y"])
    paths = {"data": {"store": str(store)}, "state": str(folder / "state"), "model": str(folder / "model")}
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}
    base = {
        "kernel": kernel,
        "features": {"count": 64, "sampler": {"type": "orthogonal"}},
        "cluster": {"type": "serial"},
    }
    return Job.model_validate({**paths, **base, **more})


def report_of(described: Job) -> FitReport:
    return fit(described, engine=SerialEngine())


def warned(report: FitReport) -> set[str]:
    return {name for name, words in REMEDIES.items() if any(words in one for one in report.warnings)}


def ridge_fit(F: FloatArray, Y: FloatArray, ridge: float) -> tuple[FloatArray, FloatArray]:
    centre, mean = F.mean(axis=0), Y.mean(axis=0)
    A = (F - centre).T @ (F - centre) + len(F) * ridge * np.eye(F.shape[1])
    W = np.linalg.solve(A, (F - centre).T @ (Y - mean))
    return W, mean - centre @ W


@pytest.mark.parametrize("solve", [{}, {"ridge": [1e-5, 1e-2, 1.0], "ridge_per_output": True}, {"ridge": [1e-3, 1e-2]}])
@pytest.mark.parametrize("by", ["rows", "blocks", "auto"])
def test_the_table_is_k_fold_by_hand(solve: dict[str, Any], by: str, tmp_path: Path) -> None:
    X, Y = rows()
    described = job(tmp_path, X, Y, solve={**solve, "folds": {"by": by, "count": 2}})
    report = report_of(described)
    quality = report.quality
    assert (
        quality is not None
        and quality["by"] == ("rows" if by == "auto" else by)
        and quality["rows"] == len(X)
        and quality["folds"] == 2
    )
    plan, model = make_plan(described), load_model(tmp_path / "model")
    F = plan.frozen().features.transform(X)
    fold_of = plan.frozen().folds.of_rows(np.arange(len(X)))
    ridges = [report.ridge] * 2 if report.ridges is None else report.ridges
    values = np.empty_like(Y)
    for fold in (0, 1):
        train, held = fold_of != fold, fold_of == fold
        for target, ridge in enumerate(ridges):
            W, bias = ridge_fit(F[train], Y[train, target : target + 1], ridge)
            values[held, target] = (F[held] @ W + bias)[:, 0]
    for target, one in enumerate(quality["outputs"]):
        assert one["target"] == f"y{target}"
        assert one["r2"] == pytest.approx(r2_score(Y[:, target], values[:, target]), abs=1e-6)
        assert one["rmse"] == pytest.approx(np.sqrt(np.mean((Y - values)[:, target] ** 2)), rel=1e-6)
        assert one["rmse_mean"] == pytest.approx(Y[:, target].std(), rel=1e-6)
        assert one["r2_train"] == pytest.approx(r2_score(Y[:, target], model.predict(X)[:, target]), abs=1e-6)
        assert one["r2_linear"] < one["r2"]
    held = load_model(tmp_path / "model", held=True).held
    assert held is not None
    assert [one["inside"] for one in quality["outputs"]] == pytest.approx(held.coverage(1.959964))
    assert quality["r2"] == pytest.approx(report.score)
    fitted = linear_r2((X - X.mean(axis=0)) / X.std(axis=0), Y, fold_of)
    assert [one["r2_linear"] for one in quality["outputs"]] == pytest.approx(list(fitted), abs=1e-9)


def test_classes_have_accuracy_and_recalls(tmp_path: Path) -> None:
    """As of a fit to the other folds by hand, in `Held`, of rows that count by their weights."""
    X, y = datasets.make_blobs(600, centers=[[0, 0], [2, 0], [0, 2]], cluster_std=0.8, random_state=0)
    names, w = np.array(["ash", "elm", "oak"])[y], np.random.default_rng(0).uniform(0.5, 2.0, 600)
    np.savez(tmp_path / "rows.npz", x=X, c=names, w=w)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], classes="c", weights="w")
    data = {"store": str(tmp_path / "rows.zarr"), "targets": {"classes": "classes"}, "weights": "weights"}
    solve = {"ridge": 1e-3, "folds": {"by": "rows", "count": 3}}
    described = job(tmp_path, X, X, data=data, solve=solve)
    report, plan = report_of(described), make_plan(described)
    quality, frozen = report.quality, plan.frozen()
    assert quality is not None and quality["by"] == "rows" and quality["outputs"] == () and quality["r2"] is None
    held = frozen.folds.of_rows(np.arange(600)) == 0
    order = [list(names).index(name) for name in dict.fromkeys(names)]
    F, Y = frozen.features.transform(X), (names[:, None] == names[order]) * 1.0
    root = np.sqrt(w[~held] / w[~held].mean())[:, None]
    A = np.column_stack([F, np.ones(600)])
    penalty = 1e-3 * np.sum(~held) * np.diag([1.0] * F.shape[1] + [0.0])
    W = np.linalg.solve((root * A[~held]).T @ (root * A[~held]) + penalty, (root * A[~held]).T @ (root * Y[~held]))
    right = (A[held] @ W).argmax(axis=1) == Y[held].argmax(axis=1)
    assert quality["rows"] == held.sum() and 0.6 < right.mean() < 0.95
    assert quality["accuracy"] == pytest.approx(np.average(right, weights=w[held]))
    shares = [w[held][Y[held][:, k] == 1].sum() for k in range(3)]
    assert quality["accuracy_frequent"] == pytest.approx(max(shares) / sum(shares))
    for k, one in enumerate(quality["classes"]):
        of = Y[held][:, k] == 1
        assert (one["label"], one["rows"]) == (names[order[k]], of.sum())
        assert one["recall"] == pytest.approx(np.average(right[of], weights=w[held][of]))
        assert quality_text(quality)[f"held-out {one['label']}"] == f"recall {one['recall']:.4f} of {of.sum()} rows"
    assert f"most frequent class {quality['accuracy_frequent']:.4f}" in quality_text(quality)["held-out accuracy"]
    assert report_of(job(tmp_path, X, X, data=data, solve={"ridge": 1e-3, "calibrate": False})).quality is None


@pytest.mark.parametrize(("weigh", "words"), [(False, "most frequent class"), (True, "by chance")])
def test_classes_that_inputs_do_not_tell_are_named(weigh: bool, words: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, told = rng.normal(size=(4000, 2)), rng.integers(0, 5, 4000)
    for name, labels in (("chance", told == 0), ("rare", (X[:, 0] > 1.2) & (told > 0))):
        place = tmp_path / name
        place.mkdir()
        np.savez(place / "rows.npz", x=X, c=labels)
        ingest([place / "rows.npz"], place / "rows.zarr", inputs=["x"], classes="c")
        data = {"store": str(place / "rows.zarr"), "targets": {"classes": "classes"}}
        solve = {"class_weight": "balanced"} if weigh else {}
        report = report_of(job(place, X, X, data=data, solve=solve))
        assert ("hardly better than" in " ".join(report.warnings)) == (name == "chance"), report.quality
        assert name != "chance" or words in " ".join(report.warnings)


def test_rows_are_left_out_alone_where_none_was_held_out(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, *rows(), solve={"ridge": 1e-3}))
    assert report.quality is not None and report.quality["by"] == "leave-one-out"
    assert report.warnings == [] and report.folds == 1
    kept = report_of(job(tmp_path, *rows(), solve={"ridge": 1e-3}))
    assert kept.outcome == "unchanged" and kept.choices == report.choices


Table = tuple[Any, Any, Any]  # inputs (n, d), targets (n, q) or (n,), and groups (n,), None or "classes"


def honest_tables() -> Iterator[tuple[str, Table]]:
    """Tables that a fit does well on, as anybody may have them: nothing is wrong with any of them."""
    rng = np.random.default_rng(0)

    def noise(n: int, q: int = 1) -> FloatArray:
        return rng.normal(size=(n, q))

    def walk(n: int, step: float) -> FloatArray:
        return 2 * np.sin(rng.uniform(0, 6, 2) + np.cumsum(step * rng.normal(size=(n, 2)), axis=0))

    X = rng.uniform(-2, 2, (300, 3))
    bend = np.sin(2 * X[:, :1]) + X[:, 1:2] ** 2
    yield "friedman 1", (*datasets.make_friedman1(300, noise=1.0, random_state=0), None)
    yield "friedman 2", (*datasets.make_friedman2(300, noise=60.0, random_state=0), None)
    yield "friedman 3", (*datasets.make_friedman3(300, noise=0.1, random_state=0), None)
    yield "a linear model is right", (*datasets.make_regression(250, 6, noise=20.0, random_state=0), None)
    yield "twenty outputs", (*datasets.make_regression(300, 10, n_targets=20, noise=30.0, random_state=1), None)
    yield "s curve", (*datasets.make_s_curve(300, noise=0.1, random_state=0), None)
    yield "swiss roll", (*datasets.make_swiss_roll(350, noise=0.3, random_state=0), None)
    yield "diabetes", (*datasets.load_diabetes(return_X_y=True), None)
    for load, target in ((datasets.load_iris, 3), (datasets.load_wine, 6)):
        data = load().data
        yield f"{load.__name__}, a column", (np.delete(data, target, axis=1), data[:, target], None)
    cancer = datasets.load_breast_cancer().data
    yield "sizes of cells", (cancer[:350, [0, 1, 4, 5, 6, 7]], cancer[:350, 3], None)
    yield "outliers", (X, bend + 0.2 * rng.standard_t(3, size=(300, 1)), None)
    scaled = np.hstack([1e5 * bend, 1e-5 * bend]) + noise(300, 2) * [1e4, 1e-6]
    yield "scales from 1e-6 to 1e6", (X * [1e-6, 1.0, 1e6] + [0, 100, 0], scaled, None)
    yield "a constant column", (np.hstack([X, np.ones((300, 1))]), bend + 0.3 * noise(300), None)
    yield "repeated rows", (np.repeat(X[:150], 3, axis=0), np.repeat(bend[:150], 3, axis=0) + 0.3 * noise(450), None)
    yield "sixty rows", (X[:60, :1], np.sin(2 * X[:60, :1]) + 0.3 * noise(60), None)
    yield "steps", (X, np.floor(X[:, :1]) + (X[:, 1:2] > 0) + 0.3 * noise(300), None)
    yield "zeros and ones", ((X > 0) * 1.0, (X > 0) @ [[1.0], [2.0], [-1.0]] + 0.5 * noise(300), None)
    yield "noise that grows", (X, bend + 0.1 * (1 + abs(X[:, :1])) * noise(300), None)
    yield "a skewed target", (X, np.exp(0.5 * bend + 0.2 * noise(300)), None)
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 18)] * 2), -1).reshape(-1, 2)
    yield "a grid", (grid, np.sin(6 * grid[:, :1]) * np.cos(4 * grid[:, 1:]) + 0.2 * noise(324), None)
    at = X[:, :2]
    field = np.cos(at) * np.sin(at[:, ::-1])
    yield "a field", (at, field + 0.1 * noise(300, 2), None)
    hours = 2 * np.pi * np.arange(350.0)[:, None] / 24
    yield "a season", (np.hstack([np.sin(hours), np.cos(hours)]), np.sin(hours) ** 3 + 0.2 * noise(350), None)
    drivers, stays = np.zeros((300, 2)), np.zeros((400, 1))
    for row in range(1, 400):
        stays[row] = 0.9 * stays[row - 1] + 0.05 * rng.normal()
    for row in range(1, 300):
        drivers[row] = 0.9 * drivers[row - 1] + rng.normal(size=2)
    yield "a series and what drives it", (drivers, np.tanh(drivers[:, :1]) + 0.2 * noise(300), None)
    inputs = rng.uniform(-2, 2, (400, 2))
    yield "a series whose noise stays", (inputs, np.sin(2 * inputs[:, :1]) + stays, None)
    track = walk(350, 0.1)
    yield "a walk", (track, np.sin(track[:, :1]) + track[:, 1:] ** 2 / 4 + 0.1 * noise(350), None)
    tracks = np.concatenate([walk(30, 0.2) for _ in range(12)])
    value = np.sin(tracks[:, :1]) * np.cos(tracks[:, 1:])
    yield "walks", (tracks, value + 0.1 * noise(360), np.repeat(np.arange(12), 30))
    levels = np.repeat(0.2 * noise(25), 12, axis=0)
    yield "groups with levels", (X, np.sin(2 * X[:, :1]) + levels + 0.2 * noise(300), np.repeat(np.arange(25), 12))
    for load in (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer):
        bunch, order = load(), np.random.default_rng(1).permutation(len(load().data))
        yield f"classes of {load.__name__}", (bunch.data[order[:350]], bunch.target[order[:350]], "classes")
    yield "moons", (*datasets.make_moons(300, noise=0.2, random_state=0), "classes")
    yield "circles", (*datasets.make_circles(300, noise=0.1, factor=0.4, random_state=0), "classes")
    yield "blobs", (*datasets.make_blobs(300, centers=4, cluster_std=2.0, random_state=0), "classes")
    rare = datasets.make_classification(350, 6, weights=[0.9], class_sep=2.0, flip_y=0, random_state=0)
    yield "a rare class", (*rare, "classes")


HONEST = dict(honest_tables())


@pytest.mark.statistical
@pytest.mark.parametrize("name", [*list(HONEST)[::4], *slow(*(name for at, name in enumerate(HONEST) if at % 4))])
def test_good_data_are_not_warned_of(name: str, tmp_path: Path) -> None:
    """A job of three lines."""
    X, Y, more = HONEST[name]
    arrays, options = {"x": X, "y": np.asarray(Y, float).reshape(len(X), -1)}, {"targets": ["y"]}
    if isinstance(more, str):
        arrays, options = {"x": X, "c": Y}, {"classes": "c"}
    elif more is not None:
        arrays, options = {**arrays, "of": more}, {**options, "groups": "of"}
    np.savez(tmp_path / "rows.npz", **arrays)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], **options)
    targets = {"targets": {"classes": "classes"}} if isinstance(more, str) else {}
    places = {"state": str(tmp_path / "state"), "model": str(tmp_path / "model"), "cluster": {"type": "serial"}}
    report = report_of(Job.model_validate({"data": {"store": str(tmp_path / "rows.zarr"), **targets}, **places}))
    assert report.warnings == [], report.quality
    assert isinstance(more, str) or (report.quality is not None and report.quality["r2"] > 0.4)


def test_targets_that_inputs_do_not_tell_are_named(tmp_path: Path) -> None:
    X, Y = rows()
    Y[:, 1] = np.random.default_rng(7).normal(size=N)
    report = report_of(job(tmp_path, X, Y))
    assert warned(report) == {"poor"} and "held-out R2 of y1 is" in report.warnings[0]


def test_targets_of_which_the_mean_tells_more_are_named(tmp_path: Path) -> None:
    X, Y = rows()
    noise = job(tmp_path, X, np.random.default_rng(8).normal(size=Y.shape), solve={"ridge": 1e-12})
    assert "worse" in warned(report_of(noise))


def test_rows_learned_by_heart_are(tmp_path: Path) -> None:
    X, Y = rows(n=80, d=12, noise=0.3)
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 3.0}}
    heart = job(tmp_path, X, Y, kernel=kernel, features={"count": 256}, solve={"ridge": [1e-7, 1e-6]})
    report = report_of(heart)
    assert {"by heart", "edge"} & warned(report), report.quality


@pytest.mark.parametrize(
    ("lengthscale", "names"),
    [(5000.0, {"flat", "poor"}), (1e-5, {"spike", "worse"}), (1.0, set()), (20.0, set()), (0.1, set())],
)
def test_lengthscales_far_from_the_rows_are(lengthscale: float, names: set[str], tmp_path: Path) -> None:
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": lengthscale}}
    report = report_of(job(tmp_path, *rows(), kernel=kernel, solve={"ridge": 1e-6}))
    assert warned(report) == names  # and such a fit is no better than the mean


def test_a_short_lengthscale_that_predicts_is_not(tmp_path: Path) -> None:
    """Waves of which two rows are mostly many apart."""
    X = np.random.default_rng(1).uniform(0, 1000, (4 * N, 1))
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 8.0}}
    waves = job(tmp_path, X, np.sin(X / 8.0), kernel=kernel, features={"count": 768}, solve={"ridge": 1e-6})
    report = report_of(waves)
    assert report.warnings == [] and report.quality is not None and report.quality["r2"] > 0.9
    long = {**kernel, "scalar": {"type": "gaussian", "lengthscale": 4e4}}
    (tmp_path / "line").mkdir()
    flat = job(tmp_path / "line", X, X, kernel=long, solve={"ridge": 1e-12})
    report = report_of(flat)
    assert "flat" in warned(report) and report.quality is not None and report.quality["r2"] > 0.9
    short = job(tmp_path, X, X, kernel={**kernel, "scalar": {"type": "gaussian", "lengthscale": 1e-3}})
    assert "spike" in warned(report_of(short))


def test_a_ridge_at_the_end_of_a_list_is(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, *rows(), solve={"ridge": [10.0, 100.0], "folds": {"by": "rows"}}))
    assert "edge" in warned(report) and "smallest tried, 10;" in " ".join(report.warnings)
    inside = job(tmp_path, *rows(), solve={"ridge": [1e-12, report.ridge / 1e4, 1e3], "folds": {"by": "rows"}})
    assert "edge" not in warned(report_of(inside))


def test_targets_without_noise_are(tmp_path: Path) -> None:
    X, _ = rows()
    F = np.column_stack([np.sin(X @ [1.0, 0.3]), np.cos(X @ [0.2, 1.0])])
    report = report_of(job(tmp_path, X, F, features={"count": 256}, solve={"folds": {"by": "rows"}}))
    assert warned(report) <= {"no noise"}
    assert report.score is not None and report.score > 0.999999


def test_rows_held_out_one_by_one_that_their_neighbours_tell_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X, noise = np.cumsum(0.1 * rng.normal(size=(N, 2)), axis=0), np.zeros((N, 1))
    for row in range(1, N):
        noise[row] = 0.97 * noise[row - 1] + 0.25 * rng.normal()
    by_row = report_of(job(tmp_path, X, noise + np.sin(X[:, :1]), solve={"folds": {"by": "rows"}}))
    assert "beside" in warned(by_row)
    left_out = report_of(job(tmp_path, X, noise + np.sin(X[:, :1])))
    assert "beside" not in warned(left_out) and left_out.held_by == "blocks"


@pytest.mark.parametrize(("lengthscale", "names"), [(1.0, {"linear"}), (8.0, set())])
def test_groups_further_apart_than_the_lengthscale_are(lengthscale: float, names: set[str], tmp_path: Path) -> None:
    X, g = np.linspace(0, 40, 240)[:, None], np.repeat(np.arange(8), 30)
    np.savez(tmp_path / "rows.npz", x=X, y=X + np.random.default_rng(0).normal(size=X.shape), g=g)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], targets=["y"], groups="g")
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": lengthscale}}
    report = report_of(job(tmp_path, X, X, kernel=kernel, solve={"posterior": False}))
    assert report.held_by == "groups" and warned(report) == names, report.quality


@pytest.mark.parametrize("beside", [[], [0.0], [0.3]], ids=["alone", "beside a constant", "beside noise"])
@pytest.mark.parametrize(("shared", "names"), [(0.0, set()), (0.6, {"shared"})])
def test_groups_whose_rows_share_errors_are(
    shared: float, names: set[str], beside: list[float], tmp_path: Path
) -> None:
    """A level for each group, about everywhere: bands of targets hold, as it is in the noise, and those of f do not."""
    rng, g = np.random.default_rng(1), np.repeat(np.arange(60), 20)
    X = rng.uniform(-2, 2, (1200, 2))
    level = shared * rng.normal(size=(60, 1))[g]
    y = 2 * np.sin(X[:, :1]) + level + 0.3 * rng.normal(size=(1200, 1))
    more = [(noise > 0) * X[:, 1:] + noise * rng.normal(size=(1200, 1)) for noise in beside]
    np.savez(tmp_path / "rows.npz", x=X, y=np.hstack([y, *more]), g=g)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], targets=["y"], groups="g")
    report = report_of(job(tmp_path, X, X))
    found = warned(report) & {"shared"}
    assert report.held_by == "groups" and found == names, (report.quality, report.warnings)


def test_bands_that_hold_too_few_rows_are(tmp_path: Path) -> None:
    """Groups with a level each that inputs of the group tell: rows of a new group are missed."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-2, 2, (40, 2)), 16, axis=0) + 0.02 * rng.normal(size=(640, 2))
    Y = np.repeat(rng.normal(size=(40, 1)), 16, axis=0) + 0.05 * rng.normal(size=(640, 1))
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.3}}
    options = {"kernel": kernel, "features": {"count": 256}}
    blocks = {"ridge": [1e-4, 1e-3], "folds": {"by": "blocks"}}
    report = report_of(job(tmp_path, X, Y + np.sin(X[:, :1]) * 3, **options, solve=blocks))
    assert "bands" in warned(report), (report.quality, report.warnings)
    held = report_of(job(tmp_path, X, Y + np.sin(X[:, :1]) * 3, **options, solve={**blocks, "conformal": True}))
    assert "bands" not in warned(held)


def test_too_few_features_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (3000, 2))
    Y = np.sin(9 * X[:, :1]) * np.cos(7 * X[:, 1:])
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.15}}
    random = {"sampler": {"type": "orthogonal"}}
    few = report_of(job(tmp_path, X, Y, kernel=kernel, features={"count": 128, **random}))
    assert "features" in warned(few) and few.quality is not None
    half = report_of(job(tmp_path, X, Y, kernel=kernel, features={"count": [128, 64], **random}))
    assert half.m == 128
    alone = report_of(
        job(
            tmp_path, X, Y, kernel=kernel, features={"count": 64, **random}, solve={"ridge": [few.ridge, few.ridge * 2]}
        )
    )
    assert alone.quality is not None and few.quality["half"] < few.quality["r2"]


@pytest.mark.parametrize(
    ("lengthscale", "words"), [(0.02, ": worse than the mean; "), (0.1, "it learns rows by heart; give more rows$")]
)
def test_one_input_is_not_too_many(lengthscale: float, words: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(-2, 2, (100, 1)), rng.normal(size=(100, 1))
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": lengthscale}}
    solve = {"ridge": 1e-8, "folds": {"by": "rows"}}
    report = report_of(job(tmp_path, X, np.sin(3 * X) + 0.6 * noise, kernel=kernel, solve=solve))
    assert any(re.search(words, one) for one in report.warnings), report.warnings
