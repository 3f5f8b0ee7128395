"""The memory of predictions, term by term: what is planned against the arrays that loading and evaluating make.

Each case is of a shape in which one of the terms is most of what is held, so that the plan is too little without it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from cases import plain_map, traced

from dorff import frequencies, kernels
from dorff.data import ArrayLayout, open_dataset
from dorff.model import Model
from dorff.model.posterior import CoupledBlock, Posterior
from dorff.model.weights import OperatorWeights
from dorff.plan.costs import DRIVER_BYTES
from dorff.predict import Uncertainty
from dorff.predict.shared import ModelInputs, cached_model, planned_workers
from dorff.predict.writing import Writing, predict_shard
from dorff.store import content, load_model, save_model


def saved(folder: Path, d: int, m: int, p: int, k: int) -> Path:
    """A model of m features and p outputs that are one and the same; its posterior has a square basis of k, if any."""
    rng = np.random.default_rng(0)
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(d, 1)
    omega = frequencies.IID().draw(kernel, d=d, p=1, count=m // 2, seed=0).omega
    block = CoupledBlock(
        rng.standard_normal((k, k)), np.ones((k, 1)), np.ones(1), rng.integers(0, m, k), np.zeros(k, np.int64),
        rng.standard_normal((k, p)), np.zeros((k, p)),
    )  # fmt: skip
    weights = OperatorWeights(np.ones(m), np.ones((1, 1, p)))
    return save_model(Model(
        plain_map(omega), weights, rng.standard_normal((m, 1)), np.zeros(p), np.ones(p), kernel, {"type": "iid"}, 0,
        posterior=Posterior((block,), np.eye(p), np.eye(p)) if k else None,
    ), folder / "m")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "d", "m", "p", "k", "asked"),
    [
        (2048, 2, 4096, 1, 1024, Uncertainty(std=True)),
        (2048, 2, 2048, 1, 2048, Uncertainty(std=True)),
        (8, 2, 64, 1, 3000, Uncertainty(std=True)),
        (8, 2, 512, 8000, 0, Uncertainty()),
        (8192, 2, 64, 200, 1, Uncertainty(bands=(0.5, 0.9))),
        (8192, 400, 64, 1, 0, Uncertainty()),
    ],
    ids=["features", "arrays", "loading", "weights", "values", "inputs"],
)
def test_predictions_hold_what_is_said(
    rows: int, d: int, m: int, p: int, k: int, asked: Uncertainty, tmp_path: Path
) -> None:
    version = saved(tmp_path, d, m, p, k)
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    group.create_array("x", data=np.random.default_rng(1).standard_normal((rows, d)), chunks=(rows, d))
    dataset = open_dataset(str(tmp_path / "x.zarr"), targets=None)
    model = load_model(version, posterior=bool(asked))
    numbers = 1 + asked.std + 2 * len(asked.bands)
    workers, worker, peak = planned_workers(model, dataset, numbers, rows=dataset.unit_rows, most=1)
    assert workers == 1 and worker == peak
    said = worker - DRIVER_BYTES
    arrays = {"y": model.p, **asked.widths(model)}
    layouts = {name: ArrayLayout(columns, rows, rows) for name, columns in arrays.items()}
    writing = Writing(str(version), content(version), dataset, layouts, asked, ModelInputs(("x",)))
    staging = writing.staging(tmp_path / "o.zarr")

    def work() -> Path:
        predict_shard(writing, str(staging), 0)
        return staging

    cached_model.cache_clear()  # its model is what is traced
    held = traced(work)
    cached_model.cache_clear()
    assert held <= said
