"""Streaming's memory and disk, term by term: what is planned against the arrays and files that it really makes.

Each case is of a shape in which one of the terms is most of the plan, so that half of it would be too little.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import traced
from distributed import Client

from dorff.engine import SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.fit import settings
from dorff.fit.streaming import fit_streaming, sample_of
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.passes import Leaf, load_pass, sweep
from dorff.passes import blocks as leaf_sizes
from dorff.passes.leaf import _read_ahead
from dorff.passes.sweep import Sweep
from dorff.plan import Plan, freeze_constants, make_plan, routes
from dorff.plan.costs import _beside_bytes, _leaf_bytes
from dorff.plan.routes import Means, Shape, Way, choose_route
from dorff.plan.seconds import Pace
from dorff.solvers import Size
from dorff.solvers.cg import Sample, Sampled, iterate
from dorff.solvers.matrixfree import Border, System, make_system
from dorff.spec.job import Job

GAUSSIAN = {"type": "gaussian", "lengthscale": 1.0}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}


def job(folder: Path, m: int, nan: str = "refuse", kernel: dict[str, Any] = PLAIN) -> Job:
    return Job.model_validate(
        {
            "data": {"store": str(folder / "data.zarr"), "nan": nan}, "kernel": kernel,
            "features": {"count": m, "sampler": {"type": "iid"}}, "solve": {"ridge": 1e-3, "route": "streaming"},
            "state": str(folder / "state"), "model": str(folder / "model"),
        }
    )  # fmt: skip


def way(size: Size, **more: int) -> Way:
    """How streaming is planned for a system of this size, of which nothing is read and no map is held if not given."""
    given: dict[str, Any] = {
        "n": 10_000, "leaves": 1, "map_numbers": 0, "map_flops": 1.0, "leaf_bytes": 0, "solve_bytes": 0,
        "disk_bytes": 0, "read_bytes": 0,
    }  # fmt: skip
    means = Means(workers=1, worker_memory=1e12, pace=Pace.nominal(size.m, 1.0))
    return choose_route(job(Path(), 64), Shape(**{**given, **more}, size=size), means).way


def written(folder: Path, X: FloatArray, Y: FloatArray, chunk: int) -> None:
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    for name, values in {"x": X, "y": Y}.items():
        group.create_array(name, data=values, chunks=(chunk, values.shape[1]))


def swept(plan: Plan, columns: int) -> int:
    """The most bytes of arrays of a leaf's sweep with so many columns, in a worker that has loaded nothing."""
    this = freeze_constants(plan)
    place = Sweep(this.directory / "sweeps" / "solve" / "one", "one")
    place.write(this, np.random.default_rng(0).standard_normal((plan.costs.m + 1 + plan.dataset.q, columns)))
    load_pass.cache_clear()
    sweep._columns.cache_clear()
    return traced(lambda: place.leaf(plan.dataset, Leaf(0, 0, plan.dataset.n)))


@pytest.mark.parametrize(
    ("rows", "n", "d", "m", "q", "patterns"),
    [(8, 32, 2, 1024, 500, 1), (8, 32, 2, 1024, 200, 8), (256, 512, 512, 2048, 1, 1), (0, 32, 2, 2048, 1, 1)],
    ids=["columns", "patterns", "map", "block"],
)
def test_a_sweep_holds_what_is_said(
    rows: int, n: int, d: int, m: int, q: int, patterns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows:  # of a block, which takes 16 MiB otherwise, whatever else there is
        for module in (sweep, routes):
            monkeypatch.setattr(module, "product_rows", lambda _width: rows)
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((n, q))
    for number in range(1, patterns):
        Y[number::patterns, number] = np.nan
    written(tmp_path, rng.standard_normal((n, d)), Y, 32)
    plan = make_plan(job(tmp_path, m, "refuse" if patterns == 1 else "partial"))
    reading = 3 * plan.dataset.unit_bytes()
    size = Size(m, q, 1, False, patterns)  # the first sweep is of the ones and the targets, whatever comes later
    said = way(size, read_bytes=reading, map_numbers=plan.recipe.numbers).worker_bytes
    held = swept(plan, 1 + q)
    assert 0.6 * said < held <= said


def test_reading_ahead_holds_what_is_said(tmp_path: Path) -> None:
    """One run of rows being read, one waiting, one in use."""
    rng, n = np.random.default_rng(0), 2**14
    written(tmp_path, rng.standard_normal((n, 62)), rng.standard_normal((n, 2)), 4096)
    plan = make_plan(job(tmp_path, 64))
    _, said = _leaf_bytes(plan.dataset, plan.recipe, plan.spec, 1)

    def read() -> int:
        return sum(len(rows) for rows in _read_ahead(plan.dataset, (0, 0, n), plan.spec.read_rows))

    held = traced(read)
    assert said / 3 < held <= said


def still(size: Size, rows: int) -> tuple[System, Sample]:
    """A system of targets apart whose products cost nothing, and a sample of its rows."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((rows, size.m))
    columns = np.vstack([rng.standard_normal((size.m, 1 + size.q)), np.eye(1 + size.q)])
    diagonal = np.linspace(1.0, 2.0, size.width)[:, None]
    weights = OperatorWeights(np.ones(size.m), np.eye(size.q)[None])
    system = make_system([Border(size.m, size.m, np.zeros(size.q), columns)], lambda V: [diagonal * V], weights)
    return system, Sample(np.arange(float(rows))[:, None], np.ones(rows), lambda x: F[x[:, 0].astype(int)])


@pytest.mark.parametrize(
    ("m", "q", "rows"), [(4096, 1, 819), (2048, 256, 512), (256, 1, 1500)], ids=["tiles", "vectors", "rows"]
)
def test_a_driver_holds_what_is_said(m: int, q: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LEAST_DUAL", rows)  # the sample's rows
    size = Size(m, q, q, False)
    system, sample = still(size, rows)
    held = traced(lambda: iterate(system, 1e-3, Sampled(system, sample, 1e-3), most=3))
    said = way(size, n=10**6).driver_bytes
    assert 0.45 * said < held <= said


def test_a_driver_holds_the_map_that_it_draws(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written(tmp_path, rng.standard_normal((32, 512)), rng.standard_normal((32, 1)), 32)
    plan = make_plan(job(tmp_path, 4096))
    load_pass.cache_clear()

    def drawn() -> object:
        return freeze_constants(plan)

    held, beside, size = traced(drawn), _beside_bytes(plan.job, plan.dataset, plan.recipe), Size(4096, 1, 1, False)
    assert beside / 2 < held <= beside
    assert way(size, beside_bytes=beside).driver_bytes == way(size).driver_bytes + beside


def test_the_files_of_sweeps_are_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fit of as many passes as there may be: the most that is there at a time."""
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", 256)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", 256)
    monkeypatch.setattr(routes, "MOST_PASSES", 5)
    rng, most = np.random.default_rng(0), 0
    written(tmp_path, rng.standard_normal((512, 2)), rng.standard_normal((512, 30)), 256)
    plan = make_plan(job(tmp_path, 512))

    def look(_done: int, _total: int) -> None:
        nonlocal most
        most = max(most, sum(path.stat().st_size for path in tmp_path.glob("state/*/sweeps/**/*") if path.is_file()))

    freeze_constants(plan)
    found = fit_streaming(plan, settings(plan)[0], SerialEngine(), look, tolerance=1e-300, most=5)
    assert found.passes == 6
    assert 0.6 * plan.costs.disk_bytes < most <= plan.costs.disk_bytes


def test_a_worker_loads_a_map_in_the_room_that_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written(tmp_path, rng.standard_normal((32, 512)), rng.standard_normal((32, 1)), 32)
    plan = make_plan(job(tmp_path, 4096))
    freeze_constants(plan)
    load_pass.cache_clear()
    held = traced(plan.frozen)
    assert 8 * plan.recipe.numbers / 2 < held <= 8 * plan.recipe.numbers


def test_a_fit_of_many_coupled_targets_holds_what_is_said(tmp_path: Path) -> None:
    """A row of its sample is as many rows of the preconditioner as there are targets: few rows, then."""
    rng, n, m, q = np.random.default_rng(0), 300, 128, 48
    written(tmp_path, rng.standard_normal((n, q)), rng.standard_normal((n, q)), n)
    plan = make_plan(job(tmp_path, m, kernel={"type": "curl_free", "scalar": GAUSSIAN}))
    freeze_constants(plan)
    reading, beside = 3 * plan.dataset.unit_bytes(), _beside_bytes(plan.job, plan.dataset, plan.recipe)
    size = Size(m, q, 1, True)
    said = way(size, n=n, read_bytes=reading, map_numbers=plan.recipe.numbers, beside_bytes=beside)
    held = traced(lambda: fit_streaming(plan, settings(plan)[0], SerialEngine(), most=3))
    assert 0.4 * (said.driver_bytes + said.worker_bytes) < held <= said.driver_bytes + said.worker_bytes
    assert len(sample_of(plan, plan.frozen(), 10)[0].X) == 10


@pytest.mark.process
def test_a_fit_holds_what_is_said_of_all_patterns(tmp_path: Path) -> None:
    """Targets that are missing in eight ways: in one process, a driver and a worker, and in two."""
    rng, n, m, q = np.random.default_rng(0), 300, 1024, 300
    Y = rng.standard_normal((n, q))
    for number in range(1, 8):
        Y[number::8, number] = np.nan
    written(tmp_path, rng.standard_normal((n, 2)), Y, n)
    plan = make_plan(job(tmp_path, m, "partial"))
    freeze_constants(plan)
    reading, beside = 3 * plan.dataset.unit_bytes(), _beside_bytes(plan.job, plan.dataset, plan.recipe)
    said = way(Size(m, q, q, False, 8), n=n, read_bytes=reading, map_numbers=plan.recipe.numbers, beside_bytes=beside)
    held = traced(lambda: fit_streaming(plan, settings(plan)[0], SerialEngine(), most=3))
    assert 0.6 * (said.driver_bytes + said.worker_bytes) < held <= said.driver_bytes + said.worker_bytes
    with local_cluster(1) as cluster, Client(cluster) as client:
        held = traced(lambda: fit_streaming(plan, settings(plan)[0], DaskEngine(client), most=4))
    assert 0.6 * said.driver_bytes < held <= said.driver_bytes
