"""Streaming against a direct solve of a quarter of the features, 64 inputs: passes, memory of a worker, error, time.

    python benchmarks/streaming.py [--rows 200000] [--m 32768] [--direct 8192] [--ridge 1e-6] [--memory 2GiB]
                                   [--folder DIR] [--out benchmarks/results]

Inputs are standard normal; the target is a smooth field that is known, a sum of 512 random waves (nearly a draw of
the Gaussian process of the kernel that is fitted), plus noise of `--noise` times its standard deviation. The error is
that against the field itself, at 10,000 other inputs, relative to its standard deviation. Both fits have two Dask
workers of one thread each, and the streaming ones the memory named; their peak resident sizes are asked for when all
is done. Time a row and pass is wall time of a pass over its rows. The Gram route's at m = 32768, whose matrix no such
worker could hold, is that of the direct pass times the ratio of the squared widths.

In a `--folder` that is kept, a run that was killed goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from distributed import Client

from dorff.data import ArrayLayout, ShardWriter, shard_and_unit_rows, write_metadata
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.fit import Fitted, PassResult, build_model, expected_passes, run_pass, settings, solve_pass
from dorff.fit.streaming import fit_streaming
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.plan import freeze_constants, make_plan
from dorff.solvers import Choice
from dorff.spec.job import Job

D, LENGTHSCALE, WAVES, TEST_ROWS, WORKERS = 64, 8.0, 512, 10_000, 2


def field(X: FloatArray) -> FloatArray:
    """The function to be learned (n,), of variance about 1."""
    rng = np.random.default_rng(1)
    omega, phase = rng.standard_normal((WAVES, D)) / LENGTHSCALE, rng.uniform(0.0, 2 * np.pi, WAVES)
    return np.asarray(np.cos(X @ omega.T + phase) @ rng.standard_normal(WAVES) * np.sqrt(2.0 / WAVES))


def write(path: Path, rows: int, noise: float) -> None:
    """A data set of so many rows, a shard at a time."""
    shard, unit = shard_and_unit_rows(D, 1)
    shard = min(shard, 8192)
    unit = min(unit, shard)
    layouts = {"x": ArrayLayout(D, shard, unit), "y": ArrayLayout(1, shard, unit)}
    rng = np.random.default_rng(0)
    with ShardWriter(path / "x", layouts["x"]) as xs, ShardWriter(path / "y", layouts["y"]) as ys:
        for start in range(0, rows, shard):
            X = rng.standard_normal((min(shard, rows - start), D))
            xs.write(X)
            ys.write((field(X) + noise * rng.standard_normal(len(X)))[:, None])
    write_metadata(path, layouts, rows=rows, columns={"x": tuple(f"x{i}" for i in range(D)), "y": ("y",)})


def job(folder: Path, m: int, ridge: float, route: str, memory: str) -> Job:
    return Job.model_validate(
        {
            "data": {"store": str(folder / "data.zarr")},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": LENGTHSCALE}},
            "features": {"count": m, "sampler": {"type": "orthogonal"}},
            "solve": {"ridge": ridge, "route": route, "posterior": False},
            "cluster": {"type": "local", "workers": WORKERS, "memory": memory},
            "state": str(folder / f"state-{m}"),
            "model": str(folder / f"model-{m}"),
        }
    )


def _peak() -> int:
    """The largest resident size of this process so far, in bytes; not by `getrusage`, which in a worker begins at the
    size of the process that spawned it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def error(model: Model) -> float:
    X = np.random.default_rng(2).standard_normal((TEST_ROWS, D))
    truth = field(X)
    return float(np.sqrt(np.mean((model.predict(X)[:, 0] - truth) ** 2)) / truth.std())


def direct(made: Job) -> dict[str, Any]:
    """A pass and a Cholesky factor."""
    plan = make_plan(made)
    with local_cluster(WORKERS, memory=plan.costs.worker_bytes * 2) as cluster, Client(cluster) as client:
        passed = run_pass(plan, DaskEngine(client))
    began = time.perf_counter()
    fitted = solve_pass(plan, passed)
    solve = time.perf_counter() - began
    model = build_model(plan, fitted, passed)
    return {
        "m": plan.costs.m, "error": error(model), "pass_s": passed.seconds, "solve_s": solve,
        "row_us": 1e6 * passed.seconds / plan.dataset.n, "condition": fitted.fit.solution.condition,
    }  # fmt: skip


def streaming(made: Job) -> dict[str, Any]:
    """Pass by pass; prints where it is."""
    plan = make_plan(made)
    expected = expected_passes(plan)
    assert expected is not None
    Path("/proc/self/clear_refs").write_text("5")  # the peak is of the fit alone
    memory = made.cluster.model_dump()["memory"]
    shown = [0.0]

    def told(done: int, total: int) -> None:
        if time.perf_counter() > shown[0] + 10:
            shown[0] = time.perf_counter()
            print(f"  {done / plan.dataset.n:.1f} of about {total // plan.dataset.n} passes", flush=True)

    freeze_constants(plan)
    with local_cluster(WORKERS, memory=memory) as cluster, Client(cluster) as client:
        setting = settings(plan)[0]
        found = fit_streaming(plan, setting, DaskEngine(client), told)
        peaks = list(client.run(_peak).values())
    passed = PassResult({}, found.receipts, found.fresh, found.seconds, found.passes)
    model = build_model(plan, Fitted((setting,), {}, Choice(0, found.fit, (), plan.costs.m)), passed)
    made_passes = len(found.fresh) / len(found.receipts)
    inside = sum(receipt.seconds for receipt in found.fresh) / WORKERS
    return {
        "m": plan.costs.m, "error": error(model), "passes": found.passes, "expected_passes": expected,
        "converged": found.fit.solution.converged, "seconds": found.seconds,
        "plan_seconds": plan.costs.of_passes(expected).seconds,
        "row_us": 1e6 * inside / max(made_passes, 1) / plan.dataset.n,
        "worker_peak_bytes": max(peaks), "plan_worker_bytes": plan.costs.worker_bytes, "worker_memory": memory,
        "driver_peak_bytes": _peak(), "condition": found.fit.solution.condition,
        "preconditioned": found.iterated.preconditioned, "errors": list(found.iterated.errors),
    }  # fmt: skip


def draw(path: Path, found: dict[str, Any], m: int) -> None:
    """The relative error in the preconditioner's norm, pass by pass."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    errors = found["errors"]
    axes.semilogy(range(1, len(errors) + 1), errors, color="black")
    axes.axvline(found["expected_passes"], color="grey", linestyle=":", label="expected by the plan")
    axes.set(xlabel="passes", ylabel="relative error", title=f"m = {m:,}, preconditioned from a sample")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--m", type=int, default=32_768)
    parser.add_argument("--direct", type=int, default=8192)
    parser.add_argument("--ridge", type=float, default=1e-6)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--folder", type=Path, help="where data and state are kept; left out: nowhere")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        if not (folder / "data.zarr" / "zarr.json").exists():
            write(folder / "data.zarr", options.rows, options.noise)
        streamed = streaming(job(folder, options.m, options.ridge, "streaming", options.memory))
        solved = direct(job(folder, options.direct, options.ridge, "direct", "8GiB"))
    gram = solved["row_us"] * ((streamed["m"] + 2) / (solved["m"] + 2)) ** 2
    body = {
        "rows": options.rows, "d": D, "ridge": options.ridge, "noise": options.noise, "cores": os.cpu_count(),
        "streaming": streamed, "direct": solved, "gram_row_us": gram, "gram_over_pass": gram / streamed["row_us"],
    }  # fmt: skip
    print(json.dumps({key: value for key, value in body.items() if key != "errors"}, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "streaming.json").write_text(json.dumps(body, indent=1) + "\n")
    draw(options.out / "streaming.png", streamed, streamed["m"])
    return body


if __name__ == "__main__":
    main()
