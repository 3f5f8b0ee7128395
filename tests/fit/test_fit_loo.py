"""Jobs that choose by leave-one-out: as refits without each row, on every engine, of a sample, and what it is not for;
the quality of fits without folds; and other criteria checked by it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.metrics import r2_score

from dorff import ORFFRegressor, kernels
from dorff.engine import SerialEngine, open_engine
from dorff.errors import GateError, InputError
from dorff.fit import FitReport, fit
from dorff.fit.tune import tune
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model

N = 200
RIDGES = [1e-5, 1e-3, 1e-1]
GAUSS = {"type": "gaussian", "lengthscale": 0.8}
KNN = {"type": "knn", "neighbours": 4}
CURL = {"type": "curl_free", "scalar": GAUSS}


def rows(n: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.sin(2 * X @ rng.normal(size=(2, 2))) + 0.3 * rng.normal(size=(n, 2))
    return {"x": X, "y": Y, "w": rng.uniform(0.2, 3.0, (n, 1)), "labels": (Y[:, 0] > 0.2).astype(np.int64)}


def job(folder: Path, arrays: dict[str, np.ndarray], *, data: Any = None, solve: Any = None, **more: Any) -> Job:
    store = folder / "rows.zarr"
    if not store.exists():
        group = zarr.open_group(store, mode="w")
        for name, values in arrays.items():
            group.create_array(name, data=values, chunks=(64, *values.shape[1:]))
    described = {
        "data": {"store": str(store), **(data or {})}, "kernel": {"type": "decomposable", "scalar": GAUSS},
        "features": {"count": 32, "sampler": {"type": "orthogonal"}},
        "solve": {"select": "loo", "ridge": RIDGES, **(solve or {})},
        "cluster": {"type": "serial"}, "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    return Job.model_validate(described | more)


def report_of(described: Job) -> FitReport:
    return fit(described, engine=SerialEngine())


def without_each(described: Job, arrays: dict[str, np.ndarray], ridge: float, w: np.ndarray) -> np.ndarray:
    """Predictions (n, q) of each row, by kernel ridge regression on the features of all other rows."""
    F, Y = make_plan(described).frozen().features.transform(arrays["x"]), arrays["y"]
    A, values = np.column_stack([F, np.ones(len(F))]), np.empty(Y.shape)
    penalty = np.diag([w[np.isfinite(Y).any(axis=1)].sum() * ridge] * F.shape[1] + [0.0])
    for i in range(len(Y)):
        for target in range(Y.shape[1]):
            rest = np.isfinite(Y[:, target]) & (np.arange(len(Y)) != i)
            B, y, u = A[rest], Y[rest, target], w[rest]
            values[i, target] = A[i] @ np.linalg.solve(B.T @ (B * u[:, None]) + penalty, B.T @ (y * u))
    return values


@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("partial", [True, False])
def test_the_table_is_of_refits_without_each_row(weighed: bool, partial: bool, tmp_path: Path) -> None:
    arrays = rows()
    if partial:
        arrays["y"][::7, 0] = arrays["y"][3::11, 1] = np.nan
    data = ({"weights": "w"} if weighed else {}) | ({"nan": "partial"} if partial else {})
    described = job(tmp_path, arrays, data=data)
    report, w, there = report_of(described), arrays["w"][:, 0] if weighed else np.ones(N), np.isfinite(arrays["y"])
    for row, ridge in zip(report.table, RIDGES, strict=True):
        values = without_each(described, arrays, ridge, w)
        errors = np.where(there, arrays["y"] - values, 0.0) ** 2 * w[:, None]
        assert row["value"] == pytest.approx(errors.sum() / (w @ there).sum(), rel=1e-8)
        r2 = [
            r2_score(y[seen], f[seen], sample_weight=w[seen])
            for y, f, seen in zip(arrays["y"].T, values.T, there.T, strict=True)
        ]
        assert 1 - row["r2"] == pytest.approx(1 - np.mean(r2), rel=1e-8)
    best = max(report.table, key=lambda row: row["r2"])
    assert (report.ridge, report.score, report.score_by, report.select) == (best["ridge"], best["r2"], "loo", "loo")
    assert report.quality is not None and report.quality["by"] == "leave-one-out"
    assert report.quality["r2"] == pytest.approx(best["r2"], rel=1e-9)


def test_a_job_of_a_vector_field_is_as_the_estimator(tmp_path: Path) -> None:
    arrays = rows()
    report = report_of(job(tmp_path, arrays, kernel=CURL))
    model = ORFFRegressor(
        kernels.CurlFree(kernels.Gaussian(0.8)), 32, ridge=RIDGES, criterion="loo", standardize=False
    ).fit(arrays["x"], arrays["y"])
    np.testing.assert_allclose([row["value"] for row in report.table], model.cv_errors_, rtol=1e-8)
    np.testing.assert_allclose([row["r2"] for row in report.table], model.cv_scores_, rtol=1e-8)
    assert report.r2_of == "pooled"


@pytest.mark.parametrize(
    "more",
    [
        {"kernel": [{"type": "decomposable", "scalar": GAUSS}, CURL], "features": {"count": [32, 16]}},
        {"solve": {"ridge": "auto"}},
        {"kernel": {"type": "decomposable", "scalar": GAUSS, "output": "learned"}},
        {"solve": {"observe": [[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]]}},
        {"data": {"targets": {"classes": "labels"}}, "solve": {"class_weight": "balanced"}},
        {"data": {"nan": "unlabelled"}, "manifold": {"weight": [0.0, 1e-3], "graph": KNN}},
        {"solve": {"ridge": 1e-3}},
    ],
    ids=["several", "auto", "learned", "observe", "classes", "manifold", "one ridge"],
)  # fmt: skip
def test_the_best_of_all_trials_is_taken_by_a_fit_and_by_tune(more: dict[str, Any], tmp_path: Path) -> None:
    arrays = rows()
    if "manifold" in more:
        arrays["y"][::3] = np.nan
    described = job(tmp_path, arrays, **more)
    report = report_of(described)
    best = max(report.table, key=lambda row: row["r2"])
    assert (report.ridge, report.m, report.kernel) == (best["ridge"], best["m"], best["candidate"])
    assert len(report.table) == make_plan(described).job.trials or described.solve.ridge == "auto"
    assert 0.0 < best["r2"] < 1.0
    tuned = tune(described, engine=SerialEngine())
    assert sorted(trial.r2 for trial in tuned.table) == pytest.approx(sorted(row["r2"] for row in report.table))
    assert tuned.trial.r2 == pytest.approx(best["r2"])


@pytest.mark.process
def test_workers_and_a_sample_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = rows(1200)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    every = report_of(job(tmp_path / "a", arrays))
    with open_engine(job(tmp_path / "b", arrays, cluster={"type": "local", "workers": 2}).cluster) as engine:
        again = fit(job(tmp_path / "b", arrays), engine=engine)
    assert [row["r2"] for row in again.table] == [row["r2"] for row in every.table]
    monkeypatch.setattr("dorff.plan.sampled.LEFT_OUT", 256)
    some = report_of(job(tmp_path / "c", arrays))
    assert some.quality is not None and some.quality["rows"] == 256
    differs = [abs(mine["r2"] - its["r2"]) for mine, its in zip(some.table, every.table, strict=True)]
    assert 1e-6 < max(differs) < 0.1


@pytest.mark.parametrize(
    ("solve", "says"),
    [
        ({"route": "cg"}, "the job asks for .*select: loo"),
        ({"route": "streaming", "ridge": 1e-3}, "the job asks for .*select: loo"),
        ({"ridge_per_output": True}, "scores one ridge for all outputs"),
    ],
)
def test_what_cannot_be_scored_so_is_refused_before_a_row_is_read(
    solve: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises((InputError, ValueError), match=says):
        make_plan(job(tmp_path, rows(), solve=solve))


def test_a_fit_without_folds_is_judged_by_rows_left_out(tmp_path: Path) -> None:
    arrays = rows()
    described = job(tmp_path, arrays, solve={"select": "auto", "ridge": 1e-3})
    report = report_of(described)
    quality, values = report.quality, without_each(described, arrays, 1e-3, np.ones(N))
    assert quality is not None and (quality["by"], quality["folds"], quality["rows"]) == ("leave-one-out", 0, N)
    fitted = load_model(tmp_path / "model").predict(arrays["x"])
    for at, one in enumerate(quality["outputs"]):
        y = arrays["y"][:, at]
        assert one["r2"] == pytest.approx(r2_score(y, values[:, at]), abs=1e-8)
        assert one["rmse"] == pytest.approx(np.sqrt(np.mean((y - values[:, at]) ** 2)), rel=1e-8)
        assert one["rmse_mean"] == pytest.approx(y.std(), rel=1e-8)
        assert one["r2_train"] == pytest.approx(r2_score(y, fitted[:, at]), abs=1e-8)
        assert -0.2 < one["r2_linear"] < one["r2"] < one["r2_train"]
    assert quality["linear_rows"] == N and report.score is None
    assert quality["r2"] == pytest.approx(np.mean([one["r2"] for one in quality["outputs"]]))


def repeated(n: int = 600, seed: int = 1) -> dict[str, np.ndarray]:
    """Rows that are there four times, with the same error, and some of large leverage, which GCV averages away."""
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.normal(size=(n // 4, 3)), 4, axis=0)
    X[:60] = rng.normal(size=(60, 3)) * 2.0
    error = 0.2 * rng.normal(size=(n // 4, 1)).repeat(4, axis=0) + 0.05 * rng.normal(size=(n, 1))
    return {"x": X, "y": np.sin(X[:, :1]) * np.cos(X[:, 1:2]) + error}


@pytest.mark.parametrize("conformal", [True, False])
@pytest.mark.parametrize("select", ["gcv", "evidence", "loo"])
def test_another_criterion_that_is_wrong_is_told(select: str, conformal: bool, tmp_path: Path) -> None:
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}
    solve = {"select": select, "ridge": [10.0**power for power in range(-12, 1)], "conformal": conformal}
    features = {"count": 128, "sampler": {"type": "orthogonal"}}
    report = report_of(job(tmp_path, repeated(), solve=solve, kernel=kernel, features=features))
    told = [one for one in report.warnings if "set solve.select: auto" in one]
    assert len(told) == (select == "gcv")
    assert report.quality is not None and report.quality["by"] == ("blocks" if conformal else "leave-one-out")
    if told:
        chosen, r2, better, best = re.findall(r"-?[0-9][0-9.e-]*[0-9]", told[0])
        assert float(chosen) == pytest.approx(report.ridge, rel=1e-2) and float(better) > 1e6 * float(chosen)
        assert float(best) > float(r2) + 0.02 and float(best) > 0.7


def test_a_criterion_that_is_right_is_not_called_wrong(tmp_path: Path) -> None:
    for select in ("gcv", "evidence"):
        report = report_of(job(tmp_path, rows(), solve={"select": select, "ridge": [1e-12, *RIDGES, 10.0]}))
        assert not [one for one in report.warnings if "set solve.select: auto" in one]


def test_a_gate_compares_what_rows_left_out_say(tmp_path: Path) -> None:
    good, worse = rows(), rows()
    worse["y"] = worse["y"] + 2.0 * np.random.default_rng(5).normal(size=worse["y"].shape)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    gate = {"model": str(tmp_path / "model"), "publish": {"margin": 0.01}}
    assert report_of(job(tmp_path / "a", good, **gate)).score_by == "loo"
    with pytest.raises(GateError, match=r"more than publish\.margin 0\.01 below the current model's"):
        report_of(job(tmp_path / "b", worse, **gate))


def test_classes_count_by_their_weights(tmp_path: Path) -> None:
    arrays = rows()
    arrays["labels"] = (arrays["y"][:, 0] > 0.6).astype(np.int64)
    classes = {"targets": {"classes": "labels"}}
    described = job(tmp_path, arrays, data=classes, solve={"class_weight": {"0": 1.0, "1": 5.0}})
    report, one_hot = report_of(described), np.eye(2)[arrays["labels"]]
    w = np.where(arrays["labels"] == 1, 5.0, 1.0)
    for row, ridge in zip(report.table, RIDGES, strict=True):
        f, y = without_each(described, {**arrays, "y": one_hot}, ridge, w), one_hot - 0.5
        f = f - f.mean(axis=1, keepdims=True)
        s = max(0.0, w @ np.sum(f * y, axis=1)) / (w @ np.sum(f**2, axis=1))
        assert row["value"] == pytest.approx(w @ np.sum((s * f - y) ** 2, axis=1) / w.sum() / 2, rel=1e-8)
