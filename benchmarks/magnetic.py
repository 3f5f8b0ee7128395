"""The magnetic field of a room, through the command line: curl-free against independent outputs.

    python benchmarks/magnetic.py --data DIR [--out benchmarks/results]

DIR holds {1..5}-loc.csv (m) and {1..5}-mag.csv (uT) of Solin et al. 2018. A model of trials 1-3 predicts trials 4-5;
every position gets z = 0, D = 512 frequencies, length-scale 0.2 m. Each kernel's ridge is chosen by leaving out one of
trials 1-3 at a time (seed 0): rows of one walk lie so close that leaving out single rows (GCV) says little about
another walk. The models of all three trials are then fitted with several seeds; what GCV would have chosen is kept
beside them. Only `dorff` commands do the work.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
SMALL_RIDGES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # for GCV alone
SEEDS = (0, 1, 2, 3, 4)
SCALAR = {"type": "gaussian", "lengthscale": 0.2}
KERNELS: dict[str, dict[str, Any]] = {
    "curl_free": {"type": "curl_free", "scalar": SCALAR, "measure": "unbounded"},
    "curl_free_trace": {"type": "curl_free", "scalar": SCALAR, "measure": "trace"},
    "independent": {"type": "decomposable", "scalar": SCALAR},
}


def dorff(*words: object) -> Any:
    """What a command answers, in JSON."""
    command = [str(Path(sys.executable).with_name("dorff")), *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def ingest(data: Path, store: Path, *trials: int) -> None:
    """Trials one below the other, positions beside fields."""
    sources = [f"{data / f'{i}-loc.csv'}+{data / f'{i}-mag.csv'}" for i in trials]
    dorff("ingest", *sources, store, "--inputs", "c0,c1,=0", "--targets", "c2,c3,c4")


def fit(work: Path, store: str, kernel: dict[str, Any], *, ridge: object, seed: int) -> Any:
    """The report of a fit; its moments are kept, so that another ridge needs no other pass."""
    job = {
        "data": {"store": store}, "kernel": kernel,
        "features": {"count": 1024, "sampler": {"type": "orthogonal"}, "seed": seed},
        "solve": {"ridge": ridge, "select": "gcv"}, "cluster": {"type": "serial"}, "state": "state", "model": "model",
    }  # fmt: skip
    (work / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    return dorff("fit", work / "job.yaml")


def score(work: Path, report: Any, store: str) -> Any:
    """The scores of the model of that report, whatever its kernel over all components, which are of one unit."""
    return dorff("score", report["model"], work / store, "--workers", 1, "--pooled")


def error_left_out(work: Path, kernel: dict[str, Any], ridge: float) -> float:
    """RMSE (uT) over trials 1-3, each predicted by the two others."""
    squares = rows = 0.0
    for trial in (1, 2, 3):
        found = score(work, fit(work, f"not{trial}.zarr", kernel, ridge=ridge, seed=0), f"{trial}.zarr")
        squares, rows = squares + found["rows"] * found["rmse"] ** 2, rows + found["rows"]
    return math.sqrt(squares / rows)


def compare(work: Path, kernel: dict[str, Any]) -> dict[str, Any]:
    """Choose the ridge on trials 1-3, then predict trials 4-5."""
    left_out = {ridge: error_left_out(work, kernel, ridge) for ridge in RIDGES}
    ridge = min(left_out, key=lambda ridge: left_out[ridge])
    reports = [fit(work, "train.zarr", kernel, ridge=ridge, seed=seed) for seed in SEEDS]
    scores = [score(work, report, "test.zarr")["r2"] for report in reports]
    by_gcv = fit(work, "train.zarr", kernel, ridge=SMALL_RIDGES, seed=0)
    return {
        "kernel": kernel, "ridge": ridge, "rmse_left_out": {str(at): rmse for at, rmse in left_out.items()},
        "seeds": SEEDS, "r2": scores, "r2_mean": statistics.mean(scores), "condition": reports[0]["condition"],
        "gcv": {"ridge": by_gcv["ridge"], "r2": score(work, by_gcv, "test.zarr")["r2"]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dorff-magnetic-") as folder:
        work = Path(folder)
        for trial in (1, 2, 3):
            ingest(given.data, work / f"{trial}.zarr", trial)
            ingest(given.data, work / f"not{trial}.zarr", *({1, 2, 3} - {trial}))
        ingest(given.data, work / "train.zarr", 1, 2, 3)
        ingest(given.data, work / "test.zarr", 4, 5)
        found: dict[str, Any] = {name: compare(work, kernel) for name, kernel in KERNELS.items()}
    for name, result in found.items():
        print(f"{name:16} R2 {result['r2_mean']:.3f} (mean of {len(SEEDS)} seeds, ridge {result['ridge']:g})")
    given.out.mkdir(parents=True, exist_ok=True)
    found["seconds"] = time.perf_counter() - began
    (given.out / "magnetic.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
