"""Scale by simulation: 10^9 rows in 10^6 chunks through the real planner, tree and engines, with fake leaves.

    python benchmarks/scale.py [--rows 1000000000] [--shard-rows 1000] [--m 8192] [--workers 2]
                               [--folder DIR] [--out benchmarks/results]

The store is hollow: its metadata and its first shards are what `dorff ingest` writes, every other shard of x (n, 16)
and y (n, 1) is a file of its own of the right size without a byte in it (sparse). So every `stat` is one of a real
file. A fake leaf asks for the stamp of its files as a real one does, writes a true partial of a tiny shape, exact in
float64, and a true receipt; merges are the real ones. Each stage is a process of its own, whose peak resident memory
is the driver's (Dask's scheduler included, workers not).

- `planning`: from the job to the first task: plan, frozen constants, receipts looked for, the first tasks.
- `task_bytes`: all tasks of the run, leaves and merges, pickled as the engine sends them. There is no graph of all
  tasks anywhere: 2 a worker are with the scheduler at a time, the others are made when they can run.
- `kept disk`: the plan's `disk_bytes` is so many nodes of 4 w (w + 1) bytes, w = m + 1 + q, and a square for the
  solve. Fake nodes are smaller, so nodes are counted: the most files there are after any task against that number.
- `resume`: 10^4 leaves (the largest leaf made smaller for this stage alone), all done but for one in ten; a new
  driver reads the receipts that there are and asks for the stamp of every file of theirs.
- `trillion`: planning alone, 10^12 rows, for which there are no files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff.data import ArrayLayout, Dataset, ShardWriter, shard_and_unit_rows, write_metadata
from dorff.engine import Engine, SerialEngine, Task, open_engine
from dorff.engine.dask import DaskEngine
from dorff.moments import Accumulator, Moments
from dorff.passes import Leaf, Summand, Tree, load_pass
from dorff.passes import blocks as leaf_sizes
from dorff.plan import Plan, freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.store import Receipt, save_moments

D, WRITTEN = 16, 4  # inputs, shards with rows in them


def hollow(store: Path, rows: int, shard_rows: int, *, files: bool = True, d: int = D, q: int = 1) -> None:
    """A store of `rows` rows of which the first few shards alone are written."""
    shard, unit = shard_and_unit_rows(d, q, shard_rows)
    layouts = {"x": ArrayLayout(d, shard, unit), "y": ArrayLayout(q, shard, unit)}
    rng = np.random.default_rng(0)
    for name, layout in layouts.items():
        with ShardWriter(store / name, layout) as writer:
            writer.write(rng.standard_normal((WRITTEN * shard, layout.columns)))
        size = (store / name / "c" / "0" / "0").stat().st_size
        for number in range(WRITTEN, -(-rows // shard) if files else WRITTEN):
            folder = f"{store}/{name}/c/{number}"
            os.mkdir(folder)
            handle = os.open(f"{folder}/0", os.O_CREAT | os.O_WRONLY)
            os.ftruncate(handle, size)
            os.close(handle)
    columns = {"x": tuple(f"x{i}" for i in range(d)), "y": tuple(f"y{i}" for i in range(q))}
    write_metadata(store, layouts, rows=rows, columns=columns)


@final
class FakeSums(Summand):
    """Leaves that read no rows: real stamps, true partials of whole numbers, true receipts."""

    def opened(self) -> Any:
        return load_pass(self.directory, self.hash)

    def leaf(self, source: Dataset, leaf: Leaf) -> Receipt:
        began = time.perf_counter()
        self.opened()
        number, stamp = leaf.number, source.stamp(leaf.start, leaf.stop)
        sums = Accumulator(2, 1, np.zeros(1))
        sums.add(np.array([[number % 97, number % 89, 1.0, number % 83]]))
        receipt = Receipt(
            plan=self.hash, number=number, start=leaf.start, stop=leaf.stop, stamp=stamp,
            digest=hashlib.sha256(f"{number}".encode()).hexdigest()[:32], rows_used=leaf.stop - leaf.start,
            rows_dropped=0, rows_read=0, low=(0.0,) * D, high=(1.0,) * D, seconds=time.perf_counter() - began,
            syrk_seconds=0.0,
        )  # fmt: skip
        save_moments(self.node(0, number, receipt.key), {(0, ""): sums})
        receipt.save(self.receipts)
        return receipt


def expected(leaves: int) -> np.ndarray[Any, Any]:
    """What the fake leaves sum to; whole numbers, so in any order."""
    at = np.arange(leaves)
    Z = np.column_stack([at % 97, at % 89, np.ones(leaves), at % 83]).astype(float)
    return Z.T @ Z


def plan_of(folder: Path, store: str, state: str, m: int, workers: int) -> Plan:
    return make_plan(Job.model_validate({
        "data": {"store": str(folder / store)}, "features": {"count": m, "sampler": {"type": "orthogonal"}},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 4.0}},
        "solve": {"ridge": 1e-6, "route": "direct"}, "cluster": {"workers": workers, "memory": "16GiB"},
        "state": str(folder / state), "model": str(folder / "model"),
    }))  # fmt: skip


def tree_of(plan: Plan) -> Tree:
    this = freeze_constants(plan)
    return Tree(FakeSums.at(this), plan.dataset, plan.leaves, kept=plan.costs.kept_level)


class Watch:
    """Takes in what tasks give, and counts tasks, their bytes, and nodes on the disk."""

    def __init__(self, plan: Plan, tree: Tree) -> None:
        self._tree, self._nodes = tree, plan.directory / "nodes"
        self.tasks = self.bytes = self.most_nodes = self.node_bytes = 0

    def count(self, tasks: Iterable[Task]) -> list[Task]:
        tasks = list(tasks)
        self.tasks += len(tasks)
        self.bytes += sum(len(pickle.dumps((task.function, task.arguments))) for task in tasks)
        return tasks

    def done(self, task: Task, result: Receipt | bool) -> Sequence[Task]:
        following = self.count(self._tree.done(task, result))
        there = [entry for entry in os.scandir(self._nodes) if entry.name.endswith(".moments")]
        self.most_nodes = max(self.most_nodes, len(there))
        return following


def run(plan: Plan, engine: Engine | None) -> dict[str, Any]:
    """All leaves and merges of a plan."""
    began = time.perf_counter()
    tree = tree_of(plan)
    watch = Watch(plan, tree)
    tasks = watch.count(tree.start())
    looked = time.perf_counter() - began
    if engine is None:
        with open_engine(plan.job.cluster) as opened:
            assert isinstance(opened, DaskEngine)
            opened.run(tasks, watch.done)
    else:
        engine.run(tasks, watch.done)
    ran = time.perf_counter() - began - looked
    total = tree.total(Moments)
    assert total is not None and not tree.missing()
    right = bool(np.array_equal(total[0, ""].full, expected(len(plan.leaves))))
    tree.tidy()
    kept = list((plan.directory / "nodes").glob("*"))
    width, costs = plan.costs.m + 2, plan.costs
    planned = (costs.disk_bytes - 16 * width**2) // (4 * width * (width + 1))
    return {
        "leaves": len(plan.leaves), "tasks": watch.tasks, "task_bytes": watch.bytes, "first_tasks_s": looked,
        "run_s": ran, "right_total": right, "kept_level": costs.kept_level, "plan_disk_bytes": costs.disk_bytes,
        "plan_nodes": planned, "most_nodes": watch.most_nodes, "kept_nodes": len(kept),
        "most_disk_bytes_if_real": watch.most_nodes * 4 * width * (width + 1) + 16 * width**2,
    }  # fmt: skip


def stage(options: argparse.Namespace) -> dict[str, Any]:
    """One stage, in this process."""
    began, folder, name = time.perf_counter(), options.folder, options.stage
    if name == "store":
        hollow(folder / "rows.zarr", options.rows, options.shard_rows)
        return {"seconds": time.perf_counter() - began, "chunk_files": 2 * -(-options.rows // options.shard_rows)}
    if name == "trillion":
        hollow(folder / "trillion.zarr", 10**12, 16384, files=False)
        began = time.perf_counter()
    if name in ("fill", "resume"):
        leaf_sizes.LARGEST_LEAF, leaf_sizes.GROW_AGAIN = options.rows // 10**4, 10**9
    store = "trillion.zarr" if name == "trillion" else "rows.zarr"
    plan = plan_of(
        folder, store, "many" if name == "fill" else name.replace("resume", "many"), options.m, options.workers
    )
    freeze_constants(plan)
    planning = time.perf_counter() - began
    if name in ("resume", "trillion"):
        tree = tree_of(plan)
        tasks = Watch(plan, tree).count(tree.start())
        found = {"leaves": len(plan.leaves), "receipts": len(tree.receipts), "first_tasks": len(tasks)}
        return {**found, "planning_s": time.perf_counter() - began}
    result = run(plan, SerialEngine() if name in ("serial", "fill") else None)
    if name == "fill":
        for number in range(0, len(plan.leaves), 10):
            (plan.directory / "receipts" / f"{number:06d}.json").unlink()
    return {**result, "planning_s": planning + result["first_tasks_s"]}


def main() -> None:
    """Run the stages, each in a process of its own; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--shard-rows", type=int, default=1000)
    parser.add_argument("--m", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the store is, or is made (a new temporary folder)")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.stage:
        import scale  # by name: what is sent to workers is found there by name, not sent as code

        found = scale.stage(options)
        found["driver_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found["driver_cpu_s"], found["load"] = time.process_time(), os.getloadavg()[0]
        print(json.dumps(found))
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dorff-scale-"))
    body: dict[str, Any] = {"rows": options.rows, "shard_rows": options.shard_rows, "m": options.m, "d": D}
    body["cores"], body["workers"] = os.cpu_count(), options.workers
    names = ["serial", "dask", "fill", "resume", "trillion"]
    for name in names if (folder / "rows.zarr" / "zarr.json").exists() else ["store", *names]:
        shutil.rmtree(folder / name, ignore_errors=True)
        command = [sys.executable, __file__, "--stage", name, "--folder", str(folder), "--rows", str(options.rows)]
        command += ["--shard-rows", str(options.shard_rows), "--m", str(options.m), "--workers", str(options.workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr}")
        body[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, body[name], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scale.json").write_text(json.dumps(body, indent=1) + "\n")
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
