"""Peak memory of fits of data many times larger than the workers' memory, against the plan's.

Sums PSS over the fit's process and all below it from outside, ten times a second; fits N and 2N rows.

    python benchmarks/memory.py [--times 8] [--out benchmarks/results/memory.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from dorff.cli.bench import write_random

MiB = 2**20
WORKERS, LIMIT = 2, 448 * MiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=8.0, help="data bytes over the workers' summed limit")
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = int(arguments.times * WORKERS * LIMIT / (8 * (arguments.d + 1)))
    found = []
    with tempfile.TemporaryDirectory(prefix="dorff-memory-") as folder:
        for n in (rows, 2 * rows):
            home = Path(folder) / str(n)
            write_random(home / "data.zarr", n, arguments.d)
            found.append(measured_fit(home, n, arguments.count))
            print(json.dumps(found[-1]), flush=True)
    growth = found[1]["peak_bytes"] / found[0]["peak_bytes"] - 1
    result = {"fits": found, "growth_when_doubled": growth, "within_plan": all(f["share"] <= 1 for f in found)}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def measured_fit(home: Path, n: int, count: int) -> dict[str, Any]:
    """Run `dorff fit` on the rows in `home` and watch it."""
    job = {
        "data": {"store": "data.zarr"},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 8.0}},
        "features": {"count": count, "sampler": {"type": "orthogonal"}},
        "cluster": {"type": "local", "workers": WORKERS, "memory": f"{LIMIT // MiB}MiB"},
        "state": "state",
        "model": "model",
    }
    (home / "job.yaml").write_text(json.dumps(job))
    command = [str(Path(sys.executable).with_name("dorff")), "fit", str(home / "job.yaml"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, proportional(process.pid))
        time.sleep(0.1)
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    data = sum(file.stat().st_size for file in (home / "data.zarr").rglob("*") if file.is_file())
    return {
        "rows": n,
        "data_bytes": data,
        "data_over_worker_limit": data / (WORKERS * LIMIT),
        "peak_bytes": peak,
        "plan_peak_bytes": report["plan_peak_bytes"],
        "share": peak / report["plan_peak_bytes"],
        "peak_bytes_reported": report["peak_bytes"],
        "rows_used": report["rows_used"],
    }


def proportional(pid: int) -> int:
    """PSS of the process and all below it."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += 1024 * int(rollup.split("Pss:")[1].split()[0])
    except (psutil.Error, OSError, IndexError):
        return total  # something ended while we looked
    return total


if __name__ == "__main__":
    main()
