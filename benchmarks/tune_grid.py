"""A grid of kernels, feature counts, ridges and folds from one pass: what it takes, and whether it is right.

    python benchmarks/tune_grid.py [--rows 1000000] [--m 2048] [--workers 2] [--out benchmarks/results]

`dorff tune` as a user types it, on a synthetic field of the plane (the gradient of one sum of waves and the rotated
gradient of another, with noise): 20 ridges x 5 Helmholtz weights x 4 numbers of features x 5 folds of leaves. Pass and
grid are timed within the same run; `ratio` is the grid's time over that of two more passes. At a smaller size every
score is then compared with the errors of dense solves of the stacked rows, for which no moments are used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import tables

from dorff.data import open_dataset
from dorff.features import cut
from dorff.model.weights import operator_weights
from dorff.plan import freeze_constants, make_plan
from dorff.spec.reader import load_job

FloatArray = npt.NDArray[np.float64]
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
LENGTHSCALE, NOISE, FOLDS, RIDGES = 0.15, 0.3, 5, 20
CHECK_ROWS, CHECK_M = 8_000, 256


@dataclass(frozen=True)
class Run:
    """One `dorff tune`. Seconds are wall; `ratio` is grid_seconds over 2 pass_seconds; `error` is the largest
    relative difference of a score from the dense one's, None where that was not computed."""

    rows: int
    m: int
    trials: int
    folds: int
    workers: int
    reads: float
    pass_seconds: float
    grid_seconds: float
    ratio: float
    command_seconds: float
    neighbours: int
    direct: int
    best_share: float
    best_m: int
    best_ridge: float
    best_rmse: float
    error: float | None = None


def dorff(*words: object) -> Any:
    """What a command answers, in JSON."""
    command = [str(Path(sys.executable).with_name("dorff")), *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def field(rows: int) -> dict[str, FloatArray]:
    """Places in the square [-1, 1]^2 and noisy velocities: 0.6 a gradient, 0.8 a rotated gradient, of unit size."""
    rng = np.random.default_rng(0)
    waves = rng.standard_normal((2, 30, 2)) / 0.25
    phases = rng.uniform(0, 2 * np.pi, (2, 30))
    X = rng.uniform(-1, 1, (rows, 2))
    Y = NOISE * rng.standard_normal((rows, 2))
    for part, size in enumerate((0.6, 0.8)):
        w, b = waves[part], phases[part]
        slopes = w if part == 0 else np.column_stack([-w[:, 1], w[:, 0]])
        scale = size / np.sqrt(np.mean(np.sum(slopes**2, axis=1)) / 2 * len(w) / 2)
        for start in range(0, rows, 100_000):
            block = slice(start, start + 100_000)
            Y[block] += scale * (np.cos(X[block] @ w.T + b) @ slopes)
    return {"a": X[:, 0], "b": X[:, 1], "u": Y[:, 0], "v": Y[:, 1]}


def kernel(share: float) -> dict[str, Any]:
    """A Helmholtz kernel of unit size at 0."""
    scalar = {"type": "gaussian", "lengthscale": LENGTHSCALE}
    parts = {"curl_free": share, "divergence_free": round(1 - share, 6)}
    terms = [{"weight": w * LENGTHSCALE**2, "kernel": {"type": kind, "scalar": scalar}} for kind, w in parts.items()]
    return {"type": "sum", "terms": terms}


def tune(work: Path, rows: int, m: int, workers: int) -> tuple[Run, list[dict[str, Any]], Path]:
    """Data, job and command; the job's file too."""
    work.mkdir(parents=True)
    np.savez(work / "field.npz", **field(rows))
    dorff("ingest", work / "field.npz", work / "field.zarr", "--inputs", "a,b", "--targets", "u,v")
    job = {
        "data": {"store": "field.zarr"}, "kernel": [kernel(share) for share in SHARES],
        "features": {"count": [m, m // 2, m // 4, m // 8]},
        "solve": {
            "ridge": {"from": 1e-9, "to": 1e-2, "count": RIDGES}, "select": "kfold",
            "folds": {"count": FOLDS, "by": "leaves" if rows > 200_000 else "rows"},
        },
        "cluster": {"type": "local", "workers": workers}, "state": "state", "model": "model",
    }  # fmt: skip
    (work / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    began = time.perf_counter()
    found = dorff("tune", work / "job.yaml")
    seconds, best = time.perf_counter() - began, found["best"]
    rungs = [row["rung"] for row in found["table"]]
    run = Run(
        rows, m, len(rungs), FOLDS, workers, found["reads"], found["pass_seconds"], found["grid_seconds"],
        found["grid_seconds"] / (2 * found["pass_seconds"]), seconds, rungs.count("neighbours"),
        rungs.count("direct"), SHARES[best["kernel"]], best["m"], best["ridge"], best["value"] ** 0.5,
    )  # fmt: skip
    return run, found["table"], work / "job.yaml"


def worst(path: Path, table: list[dict[str, Any]]) -> float:
    """The largest relative difference of the scores from those of dense solves of the job's rows."""
    plan = make_plan(load_job(path))
    this, kernels = freeze_constants(plan), plan.fitted()
    dataset = open_dataset(path.parent / "field.zarr")
    X, Y = dataset.read(0, dataset.n)
    fold = np.repeat(this.folds.of_rows(np.arange(len(X))), 2)
    error = 0.0
    for number, m in sorted({(row["kernel"], row["m"]) for row in table}):
        rows = [row for row in table if (row["kernel"], row["m"]) == (number, m)]
        features, density = cut(this.features, this.constants.density, m // 2)
        psi = operator_weights(kernels[number].fix(2, 2, np.eye(2)), m, density).psi
        Phi = np.einsum("na,arp->npar", features.transform(X), psi).reshape(2 * len(X), -1)
        values = dense_errors(Phi, Y, fold, [row["ridge"] for row in rows])
        error = max(error, float(np.max(np.abs([row["value"] for row in rows] / values - 1))))
    return error


def dense_errors(Phi: FloatArray, Y: FloatArray, fold: npt.NDArray[np.int64], ridges: list[float]) -> FloatArray:
    """Held-out mean squared errors by the singular values of the training rows, an intercept taken out."""
    squares, y = np.zeros(len(ridges)), Y.ravel()
    for held in range(FOLDS):
        A, b = Phi[fold != held], y[fold != held]
        of_output = [np.arange(len(b)) % 2 == output for output in range(2)]
        means = [(A[rows].mean(axis=0), b[rows].mean()) for rows in of_output]
        A, b = A.copy(), b.copy()
        for rows, (row, mean) in zip(of_output, means, strict=True):
            A[rows] -= row
            b[rows] -= mean
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        left, out = U.T @ b, Phi[fold == held]
        for at, ridge in enumerate(ridges):
            w = Vt.T @ (s * left / (s**2 + ridge * len(b) / 2))
            residual = y[fold == held] - out @ w
            for output, (row, mean) in enumerate(means):
                residual[output::2] -= mean - row @ w
            squares[at] += residual @ residual
    return squares / len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--m", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check-rows", type=int, default=CHECK_ROWS)
    parser.add_argument("--check-m", type=int, default=CHECK_M)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dorff-tune-") as folder:
        check, table, job = tune(Path(folder) / "check", arguments.check_rows, arguments.check_m, arguments.workers)
        check = Run(**asdict(check) | {"error": worst(job, table)})
        print(json.dumps(asdict(check)), flush=True)
        run, table, _ = tune(Path(folder) / "large", arguments.rows, arguments.m, arguments.workers)
    print(json.dumps(asdict(run)), flush=True)
    print(f"the grid took {run.ratio:.3f} of the time of two more passes; the data were read {run.reads:g} times")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        machine = {"cores": psutil.cpu_count(logical=False), "memory": psutil.virtual_memory().total}
        found = {"machine": machine, "runs": [asdict(check), asdict(run)], "table": table}
        (arguments.out / "tune_grid.json").write_text(json.dumps(found, indent=1) + "\n")
        tables.write(arguments.out / "tune_grid.csv", [check, run])


if __name__ == "__main__":
    main()
