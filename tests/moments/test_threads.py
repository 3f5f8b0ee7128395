"""One BLAS thread for each task, and the same bits, whatever the environment says about threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dorff.engine import Engine, SerialEngine, Task
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.moments.blas import pin
from dorff.store import load_model

pytestmark = pytest.mark.process

NAMES = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA")
WRONG = {f"{name}_NUM_THREADS": "7" for name in NAMES} | {"OMP_DYNAMIC": "TRUE", "OMP_WAIT_POLICY": "ACTIVE"}
NONSENSE = {f"{name}_NUM_THREADS": "many" for name in NAMES}
CLEAN = {name: value for name, value in os.environ.items() if name not in WRONG}


def threads() -> list[int]:
    from threadpoolctl import threadpool_info

    return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_a_task_sees_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def done(_task: Task, result: Any) -> Sequence[Task]:
        seen.append(result)
        return ()

    for name, value in WRONG.items():  # the worker's BLAS is loaded with these
        monkeypatch.setenv(name, value)
    with local_cluster(1) as cluster, Client(cluster) as client:
        engines: list[Engine] = [DaskEngine(client), SerialEngine()]
        for engine in engines:
            engine.run([Task(threads, ())], done)
        client.run(pin)
        seen.extend(client.run(threads).values())
    assert len(seen) == 3 and all(set(counts) == {1} for counts in seen)


@pytest.mark.slow
def test_a_fits_bits_do_not_depend_on_the_environments_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((6000, 5))
    np.savez(tmp_path / "rows.npz", x=X, y=np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]))
    dorff = str(Path(sys.executable).with_name("dorff"))
    ingest = [dorff, "ingest", "rows.npz", "rows.zarr", "--inputs", "x", "--targets", "y"]
    subprocess.run(ingest, cwd=tmp_path, env=CLEAN, check=True, timeout=200, capture_output=True)
    started = []
    for name, environment in {"clean": CLEAN, "wrong": CLEAN | WRONG, "nonsense": CLEAN | NONSENSE}.items():
        job = {
            "data": {"store": "rows.zarr", "inputs": "x", "targets": "y"},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "features": {"count": 512},
            "cluster": {"type": "serial"},
            "state": f"{name}/state",
            "model": f"{name}/model",
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(job))
        command = [dorff, "fit", f"{name}.yaml"]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))
    for process in started:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    clean, wrong, nonsense = (load_model(tmp_path / name / "model") for name in ("clean", "wrong", "nonsense"))
    for model in (wrong, nonsense):
        assert np.array_equal(model.coefficients, clean.coefficients)
        assert np.array_equal(model.predict(X[:100]), clean.predict(X[:100]))
