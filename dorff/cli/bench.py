"""`dorff bench`: how near a fit from Zarr comes to this machine's bare `syrk`, measured in one run."""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from dorff import frequencies
from dorff.data import ArrayLayout, ShardWriter, shard_and_unit_rows, write_metadata
from dorff.errors import InputError
from dorff.fit import fit
from dorff.moments import syrk
from dorff.moments.blas import pin
from dorff.passes import SMALLEST_LEAF, block_rows, leaf_bounds
from dorff.plan import make_plan
from dorff.plan.seconds import Pace
from dorff.spec.job import Job
from dorff.spec.registry import Config


@dataclass(frozen=True)
class Share:
    """Rows a second of a fit, between its end effects, over those of as many bare `syrk` processes; medians of
    `repeats`, measured in turn. Each repeat's share uses its own `syrk` figures, taken before and after; `worst` is
    the least of them. Of the workers' time `inside_syrk` is spent there and `in_features` on features, as one process
    makes them alone; the rest goes to reading, checks, files, and workers that wait for the last leaf."""

    d: int
    m: int
    sampler: str
    rows: int
    workers: int
    repeats: int
    rows_per_s: float
    syrk_rows_per_s: float
    share: float
    worst: float
    shares: list[float]
    inside_syrk: float
    in_features: float


def bench(
    *, d: int = 16, m: int = 1024, sampler: str = "orthogonal", workers: int = 2, rows: int | None = None,
    repeats: int = 3, scalar: Config | None = None, echo: Callable[[str], None] = lambda _: None,
) -> Share:  # fmt: skip
    """Fit `rows` or more and one leaf a worker from Zarr; rate = (n2 - n1) / (t2 - t1): start and solve cancel out.
    Both fits have as many leaves as all workers can share evenly: one leaf on two workers would be timed at half their
    speed, and what it takes too long be counted for the larger fit. The rows are random, the default takes about half a
    minute a repeat on two cores, and there is one ridge: the time of a long solve is not the same twice. `scalar` is a
    kernel as in JOB.yaml. InputError for a shape no fit could have."""
    if m < 2 or m % 2 or d < 1 or workers < 1 or repeats < 1:
        raise InputError(f"bench wants d >= 1, an even m >= 2, workers and repeats >= 1; got {d}, {m}, {workers}")
    frequencies.from_config({"type": sampler})  # refused before data are written
    least = rows or int(max(10 * SMALLEST_LEAF, 3e12 * workers / 2 / (m + 2) ** 2))
    n1 = even_rows(1, d, m, workers)
    n2 = even_rows(max(least, n1 + 1), d, m, workers)
    with tempfile.TemporaryDirectory(prefix="dorff-bench-") as folder:
        home = Path(folder)
        for n in (n1, n2):
            write_random(home / f"{n}.zarr", n, d)
        limits, rates, shares, inside = [bare_syrk(m, workers)], [], [], []
        shape: Config = {
            "kernel": {"type": "decomposable", "scalar": scalar or {"type": "gaussian", "lengthscale": d**0.5}},
            "features": {"count": m, "sampler": {"type": sampler}},
            "solve": {"ridge": 1e-3},
            "cluster": {"type": "local", "workers": workers, "memory": "8GiB", "small_jobs": "workers"},
        }
        jobs = {n: partial(_job, home, n, shape) for n in (n1, n2)}
        features = m * Pace.of(make_plan(jobs[n1](0)).recipe, m + 2).number
        for repeat in range(repeats):
            (t1, _), (t2, busy) = (_timed_fit(jobs[n](repeat)) for n in (n1, n2))
            limits.append(bare_syrk(m, workers))
            rates.append((n2 - n1) / (t2 - t1))
            shares.append(rates[-1] / statistics.mean(limits[-2:]))
            inside.append(busy)
            echo(f"repeat {repeat + 1} of {repeats}: {rates[-1]:,.0f} rows/s, share of syrk {shares[-1]:.3f}")
    middle = statistics.median
    return Share(
        d, m, sampler, n2, workers, repeats, middle(rates), middle(limits), middle(shares), min(shares), shares,
        middle(inside), features * middle(rates) / workers,
    )  # fmt: skip


def even_rows(least: int, d: int, m: int, workers: int) -> int:
    """The fewest rows, `least` or more, that are whole leaves in a number that `workers` share evenly."""
    shard, _ = shard_and_unit_rows(d, 1)
    rows = -(-least // shard) * shard
    while not (leaves := leaf_bounds(rows, shard, m + 2))[-1].full or len(leaves) % workers:
        rows += shard
    return rows


def bare_syrk(m: int, processes: int, *, seconds: float = 4.0) -> float:
    """Rows a second, summed, of single-threaded `syrk` loops on ready (block, m) features, run side by side."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.SimpleQueue()
    runs = [context.Process(target=_syrk_loop, args=(ready, rates, m, seconds), daemon=True) for _ in range(processes)]
    for loop in runs:
        loop.start()
    total = sum(float(rates.get()) for _ in runs)
    for loop in runs:
        loop.join()  # they hold their memory, and use a core, until they have ended
    return total


def _syrk_loop(ready: Barrier, rates: SimpleQueue[float], m: int, seconds: float) -> None:
    pin()
    block = block_rows(m + 2)
    Z = np.random.default_rng(os.getpid()).standard_normal((block, m))
    square = np.zeros((m, m), order="F")
    syrk(Z, square)
    ready.wait()
    began, rows = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        syrk(Z, square)
        rows += block
    rates.put(rows / (time.perf_counter() - began))


def write_random(path: Path, n: int, d: int, *, seed: int = 0) -> None:
    """A data set of n rows: standard normal inputs x (n, d), and y (n, 1), their sum's sine."""
    shard, unit = shard_and_unit_rows(d, 1)
    layouts = {"x": ArrayLayout(d, shard, unit), "y": ArrayLayout(1, shard, unit)}
    rng = np.random.default_rng(seed)
    with ShardWriter(path / "x", layouts["x"]) as xs, ShardWriter(path / "y", layouts["y"]) as ys:
        for start in range(0, n, shard):
            X = rng.standard_normal((min(shard, n - start), d))
            xs.write(X)
            ys.write(np.sin(X.sum(axis=1, keepdims=True)))
    write_metadata(path, layouts, rows=n, columns={"x": tuple(f"x{i}" for i in range(d)), "y": ("y",)})


def _job(home: Path, n: int, shape: Config, repeat: int) -> Job:
    places = {"state": str(home / f"state-{n}-{repeat}"), "model": str(home / "model")}
    return Job.model_validate({"data": {"store": str(home / f"{n}.zarr")}, **shape, **places})


def _timed_fit(job: Job) -> tuple[float, float]:
    began = time.perf_counter()
    report = fit(job)
    return time.perf_counter() - began, report.syrk_share or 0.0
