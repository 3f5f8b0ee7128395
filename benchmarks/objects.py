"""A leaf whose rows, state and sums are in a bucket, against the same leaf in local folders.

    python benchmarks/objects.py [--repeats 9] [--leaf 2] [--out results/objects.json]

The gateway is Ceph's, started for this and ended after it, on loopback: the same two cores serve it, so that what it
takes of them counts against the bucket. The leaf is one of the planner's (m = 1024, d = 8), on one thread, as an
engine runs it; the two kinds take turns, and the share is the median of the turns' ratios. Requests are of one leaf.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dorff.cli.bench import write_random
from dorff.engine.base import forget_spare
from dorff.passes import PassSums
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.storage.bucket import COUNTS
from dorff.storage.location import locate

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from gateway import Gateway, credentials, make_bucket, missing  # noqa: E402

D, M, ROWS = 8, 1024, 2**19


def leaf_of(home: str, number: int) -> Any:
    """A function that sums the leaf of this number, and how many rows it has."""
    write_random(locate(f"{home}/rows.zarr"), ROWS, D)
    plan = make_plan(Job.model_validate({
        "data": {"store": f"{home}/rows.zarr"},
        "features": {"count": M, "sampler": {"type": "orthogonal"}, "seed": 0}, "solve": {"ridge": 1e-6},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
        "cluster": {"type": "serial"}, "state": f"{home}/state", "model": f"{home}/model",
    }))  # fmt: skip
    stage, leaf = PassSums.at(freeze_constants(plan)), plan.leaves[number]
    return lambda: stage.leaf(plan.dataset, leaf), leaf.stop - leaf.start


def timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--leaf", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "objects.json")
    options = parser.parse_args()
    if package := missing():
        sys.exit(f"needs the Debian package {package}")
    with tempfile.TemporaryDirectory(prefix="rgw-") as folder:
        gateway = Gateway(Path(folder) / "rgw")
        gateway.home.mkdir()
        try:
            gateway.start()
            make_bucket(gateway, "bench")
            os.environ.update(credentials(gateway.endpoint))
            (local, rows), (remote, _) = leaf_of(f"{folder}/here", options.leaf), leaf_of("s3://bench/a", options.leaf)
            for call in (local, remote):
                call()
            COUNTS.clear()
            pairs = [(timed(local), timed(remote)) for _ in range(options.repeats)]
            asked = {kind: count / options.repeats for kind, count in sorted(COUNTS.items())}
        finally:
            forget_spare()
            gateway.stop()
    shares = [here / there for here, there in pairs]
    result = {
        "d": D, "m": M, "rows": rows, "repeats": options.repeats,
        "local_rows_per_s": rows / statistics.median(here for here, _ in pairs),
        "bucket_rows_per_s": rows / statistics.median(there for _, there in pairs),
        "share": statistics.median(shares), "worst": min(shares), "shares": shares,
        "asked_of_a_leaf": asked, "cpus": os.cpu_count(), "machine": platform.machine(),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['share']:.3f} of the leaf's speed in local folders (worst {result['worst']:.3f}); {asked}")


if __name__ == "__main__":
    main()
