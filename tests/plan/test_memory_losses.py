"""Memory of fits by other losses than the square: what is planned against the arrays that a whole fit really makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import traced

from dorff.engine import SerialEngine
from dorff.fit import fit
from dorff.plan import make_plan
from dorff.plan.costs import DRIVER_BYTES
from dorff.spec.job import Job

GAUSSIAN = {"type": "gaussian", "lengthscale": 2.0}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}
KFOLD = {"ridge": [1e-2, 1e-1], "select": "kfold", "folds": {"count": 3, "by": "rows"}}
LEVELS = {"quantiles": [0.1, 0.5, 0.9]}
CASES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "many features": (4096, 1, 1024, {"solve": {"loss": "huber"}}),
    "many targets": (4096, 24, 64, {"solve": {"loss": LEVELS}}),
    "folds": (4096, 4, 1024, {"solve": {"loss": LEVELS, **KFOLD}}),
    "coupled": (4096, 3, 256, {"kernel": {"type": "divergence_free", "scalar": GAUSSIAN}, "solve": {"loss": "huber"}}),
    "newton": (4096, 4, 512, {"solve": {"loss": {"huber": 0.5}, "solver": "newton"}}),
    "newton, coupled": (
        4096, 3, 256,
        {"kernel": {**PLAIN, "output": {"matrix": [[2, 1, 0], [1, 2, 1], [0, 1, 2]]}},
         "solve": {"loss": {"huber": 0.5}, "solver": "newton"}},
    ),
    "laplace": (4096, 2, 512, {"solve": {"loss": "poisson", "posterior": True}}),
    "classes": (4096, 8, 256, {"data": {"targets": {"classes": "classes"}}, "solve": {"loss": "multinomial"}}),
    "gaps": (4096, 3, 512, {"data": {"nan": "partial"}, "solve": {"loss": LEVELS}}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What libraries hold when they are first used is no job's own."""
    for number, name in enumerate(("folds", "laplace")):
        fit(made_job(name, tmp_path_factory.mktemp(str(number))), engine=SerialEngine())


def made_job(name: str, tmp_path: Path) -> Job:
    n, q, m, parts = CASES[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    y = rng.poisson(np.exp(np.sin(X[:, :1] + np.arange(q)))).astype(np.float64)
    if name == "gaps":
        y[::5, 0] = np.nan
        y[1::7, 1] = np.nan
    codes = np.argmax(X @ rng.standard_normal((3, q)), axis=1)[:, None]
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    for key, values in {"x": X, "y": y, "classes": codes}.items():
        group.create_array(key, data=values, chunks=(1024, values.shape[1]))
    return Job.model_validate(
        {
            "data": {"store": str(tmp_path / "data.zarr"), **parts.get("data", {})},
            "kernel": parts.get("kernel", PLAIN), "features": {"count": m, "sampler": {"type": "iid"}},
            "solve": {"ridge": 1e-2, "standardize": False, "tolerance": 1e-2, **parts["solve"]},
            "cluster": {"type": "serial"}, "state": str(tmp_path / "state"), "model": str(tmp_path / "model"),
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fit_by_a_loss_holds_what_is_said(name: str, tmp_path: Path) -> None:
    made = made_job(name, tmp_path)
    plan = make_plan(made)
    held = traced(lambda: fit(made, engine=SerialEngine()))
    planned = plan.costs.peak_bytes - DRIVER_BYTES
    assert 0.1 * planned < held <= planned, (held / 2**20, planned / 2**20)
