"""What a leaf costs besides its sums: stamps, digest, witness, checks, partial, receipt; as shares of the leaf.

    python benchmarks/leaf_overhead.py [--repeats 5] [--out FILE.json] [--shapes 16x1024 ...]

The leaf is the planner's first, of random rows in Zarr, run as an engine does, on one thread. Each part
is timed where it is called, within the same leaf, so that a share compares what ran at the same time; medians over the
leaves. `share` is of wall time. `cpu_share` is of the thread's own time, which what else runs on the machine disturbs
less, but which does not see it wait for a disk. `reference` is the leaf's `syrk` calls alone.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dorff.cli.bench import write_random
from dorff.data import Dataset, RowBlock
from dorff.engine.base import forget_spare
from dorff.moments import Kind
from dorff.passes import frozen, leaf
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.store import Receipt
from dorff.store.receipts import Checkpoint

SHAPES = ((16, 1024), (64, 2048), (64, 4096), (16, 8192))
#: What is timed, and where it is called from. `np.dot` is called in a leaf for its witness alone.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "stamp": [(Dataset, "stamp")],
    "digest": [(RowBlock, "checksums")],
    "witness": [(np, "dot")],
    "check": [(leaf.LeafRun, "_check")],
    "partial": [(leaf, "save_moments")],
    "receipt": [(Receipt, "save"), (Checkpoint, "load"), (Checkpoint, "remove"), (frozen, "frozen_hash")],
}


class Clock:
    """Wall and thread seconds in each part; calls inside a part are that part's."""

    def __init__(self) -> None:
        self.wall = dict.fromkeys(PARTS, 0.0)
        self.cpu = dict.fromkeys(PARTS, 0.0)
        self._inside = False

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            if self._inside:
                return call(*args, **more)
            self._inside = True
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **more)
            finally:
                self.cpu[part] += time.thread_time() - cpu
                self.wall[part] += time.perf_counter() - wall
                self._inside = False

        return wrapper


def timed_leaf(run: Callable[[], Receipt]) -> tuple[Clock, float, float, Receipt]:
    """A leaf with its parts timed; its wall and thread seconds."""
    clock, before = Clock(), []
    for part, places in PARTS.items():
        for owner, name in places:
            found = vars(owner)[name]
            before.append((owner, name, found))
            inner = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            timed: Any = clock.timed(part, inner)
            setattr(owner, name, type(found)(timed) if inner is not found else timed)
    try:
        wall, cpu = time.perf_counter(), time.thread_time()
        receipt = run()
        return clock, time.perf_counter() - wall, time.thread_time() - cpu, receipt
    finally:
        for owner, name, found in before:
            setattr(owner, name, found)


def measure(home: Path, d: int, m: int, repeats: int, *, nan: str = "refuse") -> dict[str, Any]:
    """The shares of one shape."""
    job = Job.model_validate(
        {
            "data": {"store": str(home / f"{d}.zarr"), "nan": nan},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": d**0.5}},
            "features": {"count": m, "sampler": {"type": "orthogonal"}},
            "cluster": {"type": "serial", "memory": "16GiB"},
            "state": str(home / f"state-{d}-{m}"),
            "model": str(home / "model"),
        }
    )
    plan = make_plan(job)
    this = freeze_constants(plan)
    first = plan.leaves[0]

    def run() -> Receipt:
        # A fit writes each partial once; ext4 flushes a file that is moved over another one to the disk at once.
        shutil.rmtree(this.directory / "nodes", ignore_errors=True)
        return leaf.PassSums.at(this).leaf(plan.dataset, first)

    run()  # loops compiled, pages there
    runs = [timed_leaf(run) for _ in range(repeats)]
    forget_spare()
    shutil.rmtree(this.directory)
    middle = statistics.median
    parts = {part: middle(clock.wall[part] / wall for clock, wall, _, _ in runs) for part in PARTS}
    cpu_parts = {part: middle(clock.cpu[part] / cpu for clock, _, cpu, _ in runs) for part in PARTS}
    return {
        "d": d, "m": m, "kind": Kind.GRAM.value, "rows": first.stop - first.start, "repeats": repeats,
        "seconds": middle(wall for _, wall, _, _ in runs),
        "share": middle(sum(clock.wall.values()) / wall for clock, wall, _, _ in runs),
        "cpu_share": middle(sum(clock.cpu.values()) / cpu for clock, _, cpu, _ in runs),
        "in_syrk": middle(receipt.syrk_seconds / wall for _, wall, _, receipt in runs),
        "parts": parts, "cpu_parts": cpu_parts,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/leaf_overhead.json"))
    parser.add_argument("--shapes", nargs="*", default=[f"{d}x{m}" for d, m in SHAPES])
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="dorff-leaf-") as folder:
        for d, m in (map(int, shape.split("x")) for shape in options.shapes):
            if not (Path(folder) / f"{d}.zarr").exists():
                write_random(Path(folder) / f"{d}.zarr", 2**17, d)
            found.append(measure(Path(folder), d, m, options.repeats))
            print(json.dumps(found[-1]), flush=True)
    body = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg()[1], "leaves": found}
    options.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
