"""What a fit does beside its work: what is imported, and whether workers are started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, run

from dorff.data import ingest
from dorff.engine import Engine, SerialEngine
from dorff.fit import fit
from dorff.passes import blocks as leaf_sizes
from dorff.plan import make_plan
from dorff.spec.cluster import LocalCluster, RemoteCluster, SerialCluster
from dorff.spec.job import Job
from dorff.store import load_model

SLOW = ("dask", "distributed", "numba", "numpy", "pandas", "scipy", "sklearn", "xarray", "zarr")
LOCAL = {"type": "local", "workers": 2}
Write = Callable[..., Path]


def loaded(code: str, *arguments: object) -> set[str]:
    """The modules that a new process has at the end of this code."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def rows(folder: Path, n: int, *, append: bool = False) -> None:
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, 2))
    np.savez(folder / "rows.npz", x=X, y=np.sin(X))
    more = {"append": append, "shard_rows": None if append else 512}
    ingest([folder / "rows.npz"], folder / "sea.zarr", inputs=["x"], targets=["y"], **more)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a job on a data set of 3,000 rows, with a state and a model of its own."""
    rows(tmp_path, 3000)

    def write(name: str, cluster: dict[str, Any], **changes: Any) -> Path:
        body = {
            "data": {"store": "sea.zarr"},
            "features": {"count": 32, "sampler": {"type": "orthogonal"}}, "solve": {"ridge": 1e-6}, "cluster": cluster,
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "state": f"states/{name}", "model": f"models/{name}",
        }  # fmt: skip
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(body | changes))
        return path

    return write


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """The local clusters that were asked for; their tasks run here."""
    asked = list[LocalCluster]()

    def start(cluster: LocalCluster, patience: float) -> Engine:
        asked.append(cluster)
        return SerialEngine()

    monkeypatch.setattr("dorff.engine.clusters.start_local", start)
    return asked


def read(path: Path) -> Job:
    return Job.model_validate(json.loads(path.read_text()), context={"folder": path.parent})


# --- What is imported ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_importing_dorff_loads_nothing_that_is_slow() -> None:
    assert not loaded("import dorff; dir(dorff)").intersection(SLOW)


@pytest.mark.process
def test_a_job_is_run_without_dask_and_scipys_rarer_parts() -> None:
    """Nor is anything of scikit-learn: all of them are imported where they are used."""
    unused = {
        "dask",
        "distributed",
        "sklearn",
        "pandas",
        "scipy.optimize",
        "scipy.spatial",
        "scipy.special",
        "scipy.fft",
    }
    assert not loaded("import dorff.fit, dorff.predict, dorff.cli.commands").intersection(unused)


@pytest.mark.process
def test_a_small_fit_never_loads_dask(write: Write) -> None:
    """Nor, where its loops are kept, the tables that Numba compiles by."""
    code = "from dorff.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    call("fit", write("first", LOCAL))  # its loops are kept from here on
    modules = loaded(code, "fit", write("job", LOCAL))
    assert not modules.intersection(("dask", "distributed", "numba.np.linalg")) and "numba" in modules


@pytest.mark.process
def test_a_command_ends_without_a_search_of_its_memory() -> None:
    """What is frozen Python's last collection leaves alone."""
    code = "import atexit, gc\natexit.register(lambda: print('frozen', gc.get_freeze_count()))\n"
    code += "from dorff.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert int(done.stdout.rpartition("frozen ")[2]) > 1000


# --- Where it runs ---------------------------------------------------------------------------------------------------


def test_small_work_of_a_local_cluster_is_the_drivers() -> None:
    local, remote = LocalCluster(memory=2**30), RemoteCluster(address="tcp://127.0.0.1:1")
    assert local.of_work(LocalCluster.START) == SerialCluster(memory=2**30)
    assert local.of_work(LocalCluster.START + 0.1) is local
    always = LocalCluster(small_jobs="workers")
    assert always.of_work(0.0) is always and remote.of_work(0.0) is remote


def test_a_small_job_runs_in_the_driver_and_says_so(write: Write, started: list[LocalCluster]) -> None:
    job = write("local", LOCAL)
    planned = call("plan", job)
    assert re.search("workers +none: one process has done it", planned.stdout)
    done = call("fit", job, "--json")
    assert done.exit_code == 0 and not started
    assert json.loads(done.stdout)["in_driver"] is True and "fit: it ran in this process" in done.stderr
    alone = call("fit", write("serial", {"type": "serial"}), "--json")
    assert json.loads(alone.stdout)["in_driver"] is True and "in this process" not in alone.stderr
    one, other = (load_model(job.parent / "models" / name) for name in ("local", "serial"))
    assert one.coefficients.tobytes() == other.coefficients.tobytes()


def test_a_job_that_wants_workers_has_them_however_small(write: Write, started: list[LocalCluster]) -> None:
    job = write("local", LOCAL | {"small_jobs": "workers"})
    assert json.loads(call("plan", job, "--json").stdout)["in_driver"] is False
    done = call("fit", job, "--json")
    assert [cluster.workers for cluster in started] == [2]
    assert json.loads(done.stdout)["in_driver"] is False and "in this process" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("route", ["direct", "streaming"])
def test_few_appended_rows_need_no_workers(
    route: str, write: Write, started: list[LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of moments only what is missing is work; a streaming fit reads all rows again."""
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", 512)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", 512)
    job = write("local", LOCAL, solve={"ridge": 1e-6, "route": route, "posterior": False})
    monkeypatch.setattr(LocalCluster, "START", make_plan(read(job)).costs.flops / 5e10 / 2)
    assert not fit(read(job)).in_driver and len(started) == 1
    rows(job.parent, 144, append=True)
    assert fit(read(job)).in_driver is (route == "direct")
    assert len(started) == (1 if route == "direct" else 2)


def test_the_plan_counts_no_start_of_workers_that_there_are_not(write: Write) -> None:
    jobs = {"small": LOCAL, "always": LOCAL | {"small_jobs": "workers"}}
    seconds = {name: make_plan(read(write(name, cluster))).costs.seconds for name, cluster in jobs.items()}
    assert seconds["always"] - seconds["small"] == pytest.approx(4.0, abs=0.5)


@pytest.mark.process
def test_a_small_fit_is_over_before_workers_have_done_it(write: Write) -> None:
    """Far sooner: the bar is generous, as machines are busy."""
    took: dict[str, list[float]] = {"driver": [], "workers": []}
    for repeat in range(2):
        for where, seconds in took.items():
            job = write(f"{where}{repeat}", LOCAL | {"small_jobs": where})
            began = time.perf_counter()
            assert run("fit", job).returncode == 0
            seconds.append(time.perf_counter() - began)
    assert min(took["driver"]) < 0.75 * min(took["workers"])


def test_a_job_with_manifold_terms_keeps_its_workers(write: Write) -> None:
    """What a graph takes to build is not among the work that counts."""
    term = {"graph": {"type": "knn", "neighbours": 4}, "weight": 1e-3}
    assert make_plan(read(write("local", LOCAL, manifold=term))).cluster() == LocalCluster(workers=2)
