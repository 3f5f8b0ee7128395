"""Whether another version of dorff predicts the same to the last bit: twelve jobs over all routes, a hash for each.

    python benchmarks/bits.py                       # prints the hashes of this version, one job a line
    python benchmarks/bits.py --json > before.json  # of the old version, then in the new one:
    python benchmarks/bits.py --against before.json

Everything goes through the command line (ingest, fit, predict) in a temporary directory, on synthetic rows, so that
the script runs with any version that has these commands. A hash is of all arrays that `predict` writes. Where a job's
hash differs from the one of `--against`, the largest difference (of 64 values, in units of the largest) is printed
too, and the exit code is 1. The libraries (BLAS, Numba's compiler) and the processor must be the same in both runs.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
import zarr

GAUSSIAN = {"type": "gaussian", "lengthscale": 0.7}
DECOMPOSABLE = {"type": "decomposable", "scalar": GAUSSIAN, "output": "identity"}
CURL = {"type": "curl_free", "scalar": GAUSSIAN}
DIVERGENCE = {"type": "divergence_free", "scalar": GAUSSIAN}
HELMHOLTZ = {"type": "sum", "terms": [{"weight": 0.3, "kernel": CURL}, {"weight": 0.7, "kernel": DIVERGENCE}]}
VIEWS = {
    "type": "multi_view",
    "views": [{"inputs": "left", "kernel": DECOMPOSABLE}, {"inputs": "right", "kernel": DECOMPOSABLE}],
}
CLASSES = {"store": "classes.zarr", "targets": {"classes": "classes"}}
SIMPLEX = {**DECOMPOSABLE, "output": "simplex"}
LEARNED = {**DECOMPOSABLE, "output": "learned"}
PATH = {"from": 1e-8, "to": 1e-2, "count": 7}

# name: (data, kernel, features, the rest of the job, options of `predict`)
JOBS: dict[str, tuple[dict, object, dict, dict, list[str]]] = {
    "gram": ({}, DECOMPOSABLE, {}, {"solve": {"ridge": PATH, "select": "gcv"}}, ["--std"]),
    "qr": ({}, {**DECOMPOSABLE, "scalar": {**GAUSSIAN, "lengthscale": 3.0}}, {}, {"solve": {"ridge": 1e-15}}, []),
    "cg": ({}, HELMHOLTZ, {}, {"solve": {"ridge": 1e-6, "route": "cg"}}, []),
    "streaming": ({}, DIVERGENCE, {}, {"solve": {"ridge": 1e-5, "route": "streaming"}}, []),
    "kfold": ({}, [CURL, DIVERGENCE, HELMHOLTZ], {"count": [96, 192]},
              {"solve": {"ridge": PATH, "select": "kfold", "folds": {"count": 2, "by": "leaves"}}}, []),
    "evidence": ({}, HELMHOLTZ, {}, {"solve": {"ridge": PATH, "select": "evidence"}}, ["--bands", "0.9"]),
    "learned": ({}, LEARNED, {}, {"solve": {"ridge": 1e-5}}, []),
    "partial": ({"store": "holes.zarr", "nan": "partial"}, DECOMPOSABLE, {"sampler": {"type": "quadrature"}},
                {"solve": {"ridge": 1e-5, "standardize": True}}, []),
    "manifold": ({**CLASSES, "nan": "unlabelled"}, SIMPLEX, {},
                 {"manifold": {"graph": {"type": "knn", "neighbours": 6}, "weight": [1e-4, 1e-2]},
                  "solve": {"ridge": [1e-6, 1e-4], "select": "kfold", "folds": {"count": 3, "by": "rows"}}}, []),
    "views": ({}, VIEWS, {}, {"manifold": {"between": True, "weight": 1e-3}, "solve": {"ridge": 1e-5}}, []),
    "classes": ({**CLASSES, "nan": "drop"}, SIMPLEX, {"sampler": {"type": "rom"}},
                {"solve": {"ridge": PATH, "select": "gcv", "folds": {"by": "leaves"}, "class_weight": "balanced"}},
                []),
    "conformal": ({}, DECOMPOSABLE, {}, {"solve": {"ridge": 1e-5, "folds": {"by": "leaves"}, "conformal": True}},
                  ["--bands", "0.5,0.9"]),
}  # fmt: skip


def dorff(*arguments: str, folder: Path) -> None:
    command = [sys.executable, "-c", "from dorff.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dorff {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def write_rows(folder: Path, rows: int = 300_000, labelled_rows: int = 24_000) -> None:
    """A vortex with noise in the plane (some leaves), its rows with holes, rows of three classes of which one in
    twenty has its label, and the points to predict."""
    rng = np.random.default_rng(18)
    x = rng.uniform(-1, 1, (rows, 2))
    y = np.column_stack([-x[:, 1], x[:, 0]]) * np.exp(-(x**2).sum(1, keepdims=True)) + rng.normal(0, 0.05, (rows, 2))
    holes = np.where(rng.random((rows, 2)) < 0.2, np.nan, y)
    classes = (np.hypot(*x.T) * 3).astype(int).clip(0, 2)[:labelled_rows]
    labels = np.where(np.arange(labelled_rows) % 20 == 0, classes.astype(float), np.nan)
    for name, columns, options in (
        ("rows", [*x.T, *y.T], ["--targets", "u,v"]),
        ("holes", [*x.T, *holes.T], ["--targets", "u,v"]),
        ("classes", [*x[:labelled_rows].T, labels], ["--classes", "u"]),
        ("points", [*x[:5000].T], []),
    ):
        np.savez(folder / f"{name}.npz", **dict(zip("abuv", columns, strict=False)))
        inputs = ["--inputs", "a,b", "--also", "left=a", "--also", "right=b"]
        dorff("ingest", f"{name}.npz", f"{name}.zarr", *inputs, *options, "--shard-rows", "4096", folder=folder)


def predictions(name: str, folder: Path) -> dict[str, np.ndarray]:
    data, kernel, features, rest, options = JOBS[name]
    job = {
        "data": {"store": "rows.zarr", **data},
        "kernel": kernel,
        "features": {"count": 192, "sampler": {"type": "orthogonal"}, **features},
        "cluster": {"type": "serial", "memory": "4GiB"},
        "state": f"runs/{name}",
        "model": f"models/{name}",
        **rest,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    dorff("fit", f"{name}.yaml", folder=folder)
    dorff("predict", f"models/{name}", "points.zarr", f"{name}.out.zarr", *options, folder=folder)
    group = zarr.open_group(str(folder / f"{name}.out.zarr"), mode="r")
    return {key: np.ascontiguousarray(array[:]) for key, array in sorted(group.arrays())}


def summary(arrays: dict[str, np.ndarray]) -> dict[str, object]:
    """The hash of all arrays, and 64 numbers of the first, by which a difference is measured."""
    digest = hashlib.sha256()
    for key, array in arrays.items():
        digest.update(f"{key} {array.dtype} {array.shape}".encode() + array.tobytes())
    some = arrays["y"].ravel()[:: max(1, arrays["y"].size // 64)].astype(float)
    return {"sha256": digest.hexdigest(), "some": base64.b64encode(some.tobytes()).decode()}


def difference(one: str, other: str) -> float:
    a, b = (np.frombuffer(base64.b64decode(text)) for text in (one, other))
    return float(np.abs(a - b).max() / np.abs(a).max()) if a.shape == b.shape else np.inf


def main() -> None:
    parser = argparse.ArgumentParser(description="Hashes of the predictions of twelve jobs.")
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="all of them if left out")
    parser.add_argument("--against", type=Path, help="the --json output of another version")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    before = json.loads(options.against.read_text()) if options.against else {}
    summaries, changed = {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        write_rows(Path(scratch))
        for name in options.jobs or JOBS:
            summaries[name] = summary(predictions(name, Path(scratch)))
            line = f"{name:10} {summaries[name]['sha256'][:16]}"
            if name in before:
                same = before[name]["sha256"] == summaries[name]["sha256"]
                changed += not same
                apart = difference(before[name]["some"], summaries[name]["some"])
                line += "  same" if same else f"  CHANGED by {apart:.1e}"
            if not options.json:
                print(line, flush=True)
    if options.json:
        print(json.dumps(summaries, indent=1))
    sys.exit(changed > 0)


if __name__ == "__main__":
    main()
