"""Weights of rows: a job's fit against weighted least squares by hand, and what a weight means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

from dorff.data import Classes, class_counts, ingest, open_dataset, verify
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import FitReport, fit
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.spec import Job
from dorff.store import load_model

N, D, RIDGE = 150, 2, 1e-3
GAUSSIAN = {"type": "gaussian", "lengthscale": 1.2}
KERNELS: dict[str, dict[str, Any]] = {
    "identity": {"type": "decomposable", "scalar": GAUSSIAN},
    "curl_free": {"type": "curl_free", "scalar": GAUSSIAN},
}
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, D)) * [1.0, 3.0] + 2.0
Y = np.column_stack([np.sin(X[:, 0]) + 4.0, np.cos(X[:, 1]) * 3.0 - 1.0]) + 0.1 * RNG.standard_normal((N, 2))
WEIGHTS = {"none": None, "real": RNG.uniform(0.1, 3.0, N), "whole": RNG.integers(0, 4, N).astype(np.float64)}


def store(path: Path, X: FloatArray, Y: FloatArray, **more: npt.NDArray[Any] | None) -> Path:
    group = zarr.open_group(path, mode="w")
    for name, values in {"x": X, "y": Y, **more}.items():
        if values is not None:
            group.create_array(name, data=values, config={"write_empty_chunks": True})
    return path


def job(store: Path, *, kernel: str = "identity", data: dict[str, Any] | None = None, **solve: Any) -> Job:
    folder = store.with_suffix("")
    described = {
        "data": {"store": str(store), **(data or {})}, "kernel": KERNELS[kernel], "features": {"count": 32},
        "solve": {"ridge": RIDGE, "posterior": False, **solve}, "cluster": {"type": "serial"}, 
        "state": f"{folder}/state", "model": f"{folder}/model",
    }  # fmt: skip
    return Job.model_validate(described)


def fitted(described: Job) -> tuple[Model, FitReport]:
    report = fit(described, engine=SerialEngine())
    return load_model(Path(described.model)), report


def by_hand(
    model: Model, w: FloatArray, *, standardize: bool, intercept: bool, together: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Predictions at X, and the inputs' centre and scale: every mean written out, least squares by `lstsq`.

    Only the frequencies and psi are the model's.
    """
    l = w.sum()
    centre = (w[:, None] * X).sum(axis=0) / l
    variances = [(w[:, None] * (A - (w[:, None] * A).sum(axis=0) / l) ** 2).sum(axis=0) / l for A in (X, Y)]
    variances = [np.full(2, v.mean()) if together else v for v in variances]
    scale, unit = (np.sqrt(v) if standardize else np.ones(2) for v in variances)
    waves = (X - centre) / scale @ model.frequencies.T
    F = np.hstack([np.cos(waves), np.sin(waves)]) / np.sqrt(len(model.frequencies))
    psi = model.operator_weights.psi
    design = np.einsum("na,arp->npar", F, psi).reshape(2 * N, -1)
    ones = np.tile(np.eye(2), (N, 1)) * intercept
    root = np.sqrt(np.repeat(w, 2) / l)[:, None]
    penalty = np.sqrt(RIDGE) * np.eye(design.shape[1])
    A = np.vstack([root * np.hstack([design, ones]), np.hstack([penalty, np.zeros((len(penalty), 2))])])
    b = np.concatenate([root[:, 0] * (Y / unit).ravel(), np.zeros(len(penalty))])
    h = np.linalg.lstsq(A, b, rcond=None)[0]
    return (np.hstack([design, ones]) @ h).reshape(N, 2) * unit, centre, scale


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("weighing", WEIGHTS)
def test_a_job_is_weighted_least_squares(
    tmp_path: Path, weighing: str, standardize: bool, intercept: bool, kernel: str
) -> None:  # fmt: skip
    w = WEIGHTS[weighing]
    data = {} if w is None else {"weights": "w"}
    made = store(tmp_path / "s.zarr", X, Y, w=w)
    model, report = fitted(job(made, kernel=kernel, data=data, standardize=standardize, intercept=intercept))
    w = np.ones(N) if w is None else w
    wanted, centre, scale = by_hand(
        model, w, standardize=standardize, intercept=intercept, together=kernel == "curl_free"
    )
    np.testing.assert_allclose(model.feature_map.center, centre, rtol=1e-12)
    np.testing.assert_allclose(model.feature_map.scale, scale, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X), wanted, rtol=0, atol=1e-8)
    assert report.rows_used == np.count_nonzero(w) and report.rows_dropped == np.sum(w == 0)
