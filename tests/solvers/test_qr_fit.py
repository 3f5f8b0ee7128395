"""The QR of the features as a second pass of a whole fit: taken where the digits ask for it, and to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_qr import exact

from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.fit import fit, run_pass
from dorff.kernels.scalar import FloatArray
from dorff.moments import Triangle
from dorff.passes import blocks as leaf_sizes
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model

ROWS, SHARD = 3000, 256


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


@pytest.fixture(scope="module")
def rows() -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (ROWS, 2))
    return X, np.column_stack([np.sin(3.0 * X[:, 0]) * X[:, 1], rng.standard_normal(ROWS)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, rows: tuple[FloatArray, FloatArray]) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "rows.npz", x=rows[0], y=rows[1])
    ingest([folder / "rows.npz"], folder / "rows.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    return folder / "rows.zarr"


def job(store: Path, folder: Path, *, precision: str = "double", **solve: Any) -> Job:
    return Job.model_validate(
        {
            "data": {"store": str(store)},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "features": {"count": 40, "sampler": {"type": "orthogonal"}, "precision": precision},
            "solve": {"ridge": 1e-16, **solve},
            "publish": {"digits": 0},
            "cluster": {"type": "serial"},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
        }
    )


def test_a_fit_that_loses_its_digits_is_made_again_by_qr(
    store: Path, tmp_path: Path, rows: tuple[FloatArray, FloatArray]
) -> None:
    lossy = fit(job(store, tmp_path / "lossy", qr=False))
    assert (lossy.status, lossy.passes) == ("ill_conditioned", 1)
    report = fit(job(store, tmp_path))
    assert (report.rung, report.status, report.passes, report.reads) == ("qr", "ok", 2, 2.0)
    assert report.rows_used == ROWS and report.digits > 5
    X, Y = rows
    careful, careless = (load_model(folder / "model") for folder in (tmp_path, tmp_path / "lossy"))
    right = exact(careful.feature_map.transform(X), Y, 1e-16)
    errors = [np.linalg.norm(model.predict(X) - right) / np.linalg.norm(Y) for model in (careful, careless)]
    assert errors[0] < 10.0**-report.digits and errors[0] < 1e-3 * errors[1]
    again = fit(job(store, tmp_path))
    assert (again.rung, again.leaves_computed, again.reads) == ("qr", 0, 0.0)


def test_a_well_conditioned_fit_is_not(store: Path, tmp_path: Path) -> None:
    report = fit(job(store, tmp_path, ridge=1e-8))
    assert (report.rung, report.status, report.passes, report.reads) == ("cholesky", "ok", 1, 1.0)


@pytest.mark.parametrize("select", ["gcv", "evidence", "kfold"])
def test_ridges_are_chosen_again_by_qr(select: str, store: Path, tmp_path: Path) -> None:
    folds = {"folds": {"count": 3, "by": "leaves"}} if select == "kfold" else {}
    report = fit(job(store, tmp_path, ridge=[1e-17, 1e-16], select=select, **folds))
    assert (report.rung, report.status, report.passes, len(report.table)) == ("qr", "ok", 2, 2)


def test_triangles_have_the_same_bits_in_any_order_and_after_a_stop(store: Path, tmp_path: Path) -> None:
    def triangle(folder: Path, engine: SerialEngine) -> Triangle:
        plan = make_plan(job(store, folder)).by_qr()
        assert plan is not None
        (found,) = run_pass(plan, engine).folds.values()
        assert isinstance(found, Triangle) and found.n == ROWS
        return found

    expected = triangle(tmp_path / "one", SerialEngine())
    shuffled = triangle(tmp_path / "two", SerialEngine(shuffle=3))
    assert np.array_equal(shuffled.packed, expected.packed)
    (node,) = sorted((tmp_path / "two" / "state").rglob("03-*.moments"))
    raw = bytearray(node.read_bytes())
    raw[-9] ^= 1
    node.write_bytes(raw)  # damaged: its leaves are done again
    again = triangle(tmp_path / "two", SerialEngine())
    assert np.array_equal(again.packed, expected.packed)


def test_mixed_precision_says_what_it_costs(store: Path, tmp_path: Path) -> None:
    double = fit(job(store, tmp_path / "double", ridge=1e-3))
    mixed = fit(job(store, tmp_path / "mixed", ridge=1e-3, precision="mixed"))
    assert mixed.status == double.status == "ok" and 3.0 <= mixed.digits < double.digits
    models = [load_model(tmp_path / name / "model") for name in ("double", "mixed")]
    X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    one, other = (model.predict(X) for model in models)
    assert 0.0 < np.abs(one - other).max() < 10.0**-mixed.digits
    lost = fit(job(store, tmp_path / "lost", ridge=1e-9, precision="mixed", qr=False))
    assert lost.status == "ill_conditioned"
