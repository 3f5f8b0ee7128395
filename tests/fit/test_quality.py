"""How good a fit is on held-out rows, as by hand; and each warning, by data that deserve it and by data that do
not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score

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
    "poor": "hardly better than the mean",
    "by heart": "learns rows by heart",
    "flat": "almost flat",
    "spike": "zero between most rows",
    "edge": "set solve.ridge: auto",
    "no noise": "set solve.folds.by: blocks",
    "bands": "set solve.conformal: true",
    "features": "raise features.count",
    "beside": "leave solve.folds.by out",
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
    base = {"kernel": kernel, "features": {"count": 64}, "cluster": {"type": "serial"}}
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


@pytest.mark.parametrize(
    "solve", [{}, {"ridge": [1e-5, 1e-2, 1.0], "ridge_per_output": True}, {"ridge": [1e-3, 1e-2]}]
)
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
    values, means = np.empty_like(Y), np.empty_like(Y)
    for fold in (0, 1):
        train, held = fold_of != fold, fold_of == fold
        means[held] = Y[train].mean(axis=0)
        for target, ridge in enumerate(ridges):
            W, bias = ridge_fit(F[train], Y[train, target : target + 1], ridge)
            values[held, target] = (F[held] @ W + bias)[:, 0]
    for target, one in enumerate(quality["outputs"]):
        assert one["target"] == f"y{target}"
        assert one["r2"] == pytest.approx(r2_score(Y[:, target], values[:, target]), abs=1e-6)
        assert one["rmse"] == pytest.approx(np.sqrt(np.mean((Y - values)[:, target] ** 2)), rel=1e-6)
        assert one["rmse_mean"] == pytest.approx(np.sqrt(np.mean((Y - means)[:, target] ** 2)), rel=1e-6)
        assert one["r2_train"] == pytest.approx(r2_score(Y[:, target], model.predict(X)[:, target]), abs=1e-6)
        assert one["r2_linear"] < one["r2"]
    assert quality["r2"] == pytest.approx(report.score)
    fitted = linear_r2((X - X.mean(axis=0)) / X.std(axis=0), Y, fold_of)
    assert [one["r2_linear"] for one in quality["outputs"]] == pytest.approx(list(fitted), abs=1e-9)


def test_there_is_none_where_no_row_was_held_out(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, *rows(), solve={"ridge": 1e-3}))
    assert report.quality is None and report.warnings == [] and report.folds == 1
    kept = report_of(job(tmp_path, *rows(), solve={"ridge": 1e-3}))
    assert kept.outcome == "unchanged" and kept.choices == report.choices


def test_good_data_are_not_warned_of(tmp_path: Path) -> None:
    for number in range(6):
        place = tmp_path / str(number)
        place.mkdir()
        X, Y = rows(n=400 + 100 * number, d=2 + number % 3, noise=0.1 + 0.1 * number, seed=number)
        report = report_of(job(place, X * 10.0**number, Y * 10.0 ** (3 - number), kernel={"type": "decomposable"}))
        assert warned(report) == set(), (number, report.warnings)


def test_targets_that_inputs_do_not_tell_are_named(tmp_path: Path) -> None:
    X, Y = rows()
    Y[:, 1] = np.random.default_rng(7).normal(size=N)
    report = report_of(job(tmp_path, X, Y))
    assert warned(report) == {"poor"} and "held-out R2 of y1 is" in report.warnings[0]


def test_rows_learned_by_heart_are(tmp_path: Path) -> None:
    X, Y = rows(n=80, d=12, noise=0.3)
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 3.0}}
    heart = job(tmp_path, X, Y, kernel=kernel, features={"count": 256}, solve={"ridge": [1e-7, 1e-6]})
    report = report_of(heart)
    assert {"by heart", "edge"} & warned(report), report.quality


@pytest.mark.parametrize(
    ("lengthscale", "name"), [(5000.0, "flat"), (1e-5, "spike"), (1.0, None), (20.0, None), (0.1, None)]
)
def test_lengthscales_far_from_the_rows_are(lengthscale: float, name: str | None, tmp_path: Path) -> None:
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": lengthscale}}
    report = report_of(job(tmp_path, *rows(), kernel=kernel, solve={"ridge": 1e-6}))
    assert warned(report) == ({name} if name else set())


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
    few = report_of(job(tmp_path, X, Y, kernel=kernel, features={"count": 256}))
    assert "features" in warned(few) and few.quality is not None
    half = report_of(job(tmp_path, X, Y, kernel=kernel, features={"count": [256, 128]}))
    assert half.m == 256
    alone = report_of(
        job(tmp_path, X, Y, kernel=kernel, features={"count": 128}, solve={"ridge": [few.ridge, few.ridge * 2]})
    )
    assert alone.quality is not None and few.quality["half"] < few.quality["r2"]
