"""Seconds that a fit takes by Slurm's jobs, by MPI and in containers, over one with local workers on the same cores.

    python benchmarks/clusters.py [--repeats 3] [--rows 65536 262144] [--without containers] [--out benchmarks/results]

Each fit has two workers and COUNT features, with which leaves have 16,384 rows or a little more; the four take turns,
each once before it counts. Slurm is that of tests/slurm, three nodes on this machine: its daemons share the cores;
containers are those of deploy/image (scheduler, two workers, driver), each of which compiles its loops anew. Wall
seconds of whole commands, from nothing running to the end. `ratio` is the median over that of local, `worst_ratio` the
worst over the median of local. What differs is mostly the start: a queue, jobs
or containers that import dorff.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / name) for name in (".", "slurm", "kubernetes")]

from command_line import CURL, DORFF, field, write_job  # noqa: E402
from everywhere import Fleet, as_in_containers, fleet  # noqa: E402
from slurm_nodes import slurm_nodes  # noqa: E402

from dorff import load_model  # noqa: E402
from dorff.data import ingest  # noqa: E402

COUNT: Final = 2000
CLUSTERS: Final[dict[str, dict[str, Any]]] = {
    "local": {"type": "local", "workers": 2, "memory": "1GiB", "small_jobs": "workers"},
    "slurm": {"type": "slurm", "workers": 2, "memory": "1GiB", "interface": "lo"},
    "mpi": {"type": "mpi", "memory": "1GiB", "interface": "lo"},
}
MPIRUN: Final = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4")


def fit(folder: Path, rows: int, name: str, environment: dict[str, str], containers: Fleet | None) -> float:
    """Wall seconds of one fit, from nothing."""
    place = folder / f"{name}-{rows}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    here = "/srv/dorff" if name == "containers" else str(folder)
    cluster = containers.cluster if containers and name == "containers" else CLUSTERS[name]
    paths = {"state": f"{here}/{place.name}/state", "model": f"{here}/{place.name}/model"}
    data = {"store": f"{here}/sea-{rows}.zarr"}
    write_job(place / "job.yaml", data=data, kernel=CURL, features={"count": COUNT}, cluster=cluster, **paths)
    if containers and name == "containers":
        return containers.fit(place)
    words = [*(MPIRUN if name == "mpi" else ()), DORFF, "fit", "job.yaml"]
    began = time.perf_counter()
    subprocess.run(words, cwd=place, env=environment, capture_output=True, check=True)
    return time.perf_counter() - began


def measure(repeats: int, sizes: list[int], without: list[str]) -> dict[str, Any]:
    names = [name for name in [*CLUSTERS, "containers"] if name not in without]
    seconds: dict[int, dict[str, list[float]]] = {rows: {name: [] for name in names} for rows in sizes}
    with tempfile.TemporaryDirectory() as at, slurm_nodes() as slurm, ExitStack() as stack:
        folder = Path(at)
        folder.chmod(0o755)  # containers are another user
        for rows in sizes:
            np.save(folder / "rows.npy", field(rows))
            ingest([folder / "rows.npy"], folder / f"sea-{rows}.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
        containers = stack.enter_context(fleet(folder)) if "containers" in names else None
        environment = os.environ | slurm.environment
        for turn in range(repeats + 1):
            for rows in sizes:
                for name in names:
                    took = fit(folder, rows, name, environment, containers)
                    print(f"{turn} {name} {rows} rows {took:.1f} s", flush=True)
                    seconds[rows][name] += [took] if turn else []
        reports = {rows: load_model(folder / f"local-{rows}" / "model").info["report"] for rows in sizes}
    usual = {rows: {name: statistics.median(taken) for name, taken in seconds[rows].items()} for rows in sizes}
    fits = [
        {
            "rows": rows, "leaves": reports[rows]["leaves_computed"],
            "clusters": {
                name: {
                    "seconds": taken, "ratio": usual[rows][name] / usual[rows]["local"],
                    "worst_ratio": max(taken) / usual[rows]["local"],
                }
                for name, taken in seconds[rows].items()
            },
        }
        for rows in sizes
    ]  # fmt: skip
    return {"features": COUNT, "workers": 2, "load": os.getloadavg()[0], "fits": fits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[65_536, 262_144])
    parser.add_argument("--without", action="append", default=[], choices=["containers"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    as_in_containers()
    result = measure(arguments.repeats, arguments.rows, arguments.without)
    (arguments.out / "clusters.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
