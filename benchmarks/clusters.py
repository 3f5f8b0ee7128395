"""Seconds that a fit takes by Slurm's jobs and by MPI, over one with local workers on as many cores of one machine.

    python benchmarks/clusters.py [--repeats 5] [--leaves 16] [--out benchmarks/results]

Each fit has two workers, COUNT features and that many leaves of 16,384 rows; the three take turns, each once before it
counts. Slurm is that of tests/slurm, three nodes on this machine: its daemons share the cores. Wall seconds of whole
commands, medians and worst; `ratio` is over local. What differs is the start: a queue, jobs that import dorff.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "slurm")]

from command_line import CURL, DORFF, field, write_job  # noqa: E402
from slurm_nodes import slurm_nodes  # noqa: E402

from dorff.data import ingest  # noqa: E402

COUNT: Final = 1400
CLUSTERS: Final[dict[str, dict[str, Any]]] = {
    "local": {"type": "local", "workers": 2, "memory": "1GiB", "small_jobs": "workers"},
    "slurm": {"type": "slurm", "workers": 2, "memory": "1GiB", "interface": "lo"},
    "mpi": {"type": "mpi", "memory": "1GiB", "interface": "lo"},
}
MPIRUN: Final = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4")


def fit(folder: Path, name: str, environment: dict[str, str]) -> float:
    """Wall seconds of one fit, from nothing."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    store = str(folder / "sea.zarr")
    write_job(place / "job.yaml", data={"store": store}, kernel=CURL, features={"count": COUNT}, cluster=CLUSTERS[name])
    words = [*(MPIRUN if name == "mpi" else ()), DORFF, "fit", "job.yaml"]
    began = time.perf_counter()
    subprocess.run(words, cwd=place, env=environment, capture_output=True, check=True)
    return time.perf_counter() - began


def measure(repeats: int, leaves: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in CLUSTERS}
    with tempfile.TemporaryDirectory() as name, slurm_nodes() as slurm:
        folder = Path(name)
        np.save(folder / "rows.npy", field(16_384 * leaves))
        ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
        environment = os.environ | slurm.environment
        for turn in range(repeats + 1):
            for cluster in CLUSTERS:
                took = fit(folder, cluster, environment)
                print(f"{turn} {cluster} {took:.1f} s", flush=True)
                seconds[cluster] += [took] if turn else []
    usual = statistics.median(seconds["local"])
    figures: dict[str, Any] = {
        cluster: {
            "median": statistics.median(all_of), "worst": max(all_of), "seconds": all_of,
            "ratio": statistics.median(all_of) / usual,
        }
        for cluster, all_of in seconds.items()
    }  # fmt: skip
    return {"rows": 16_384 * leaves, "features": COUNT, "workers": 2, "load": os.getloadavg()[0], **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    result = measure(arguments.repeats, arguments.leaves)
    (arguments.out / "clusters.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
