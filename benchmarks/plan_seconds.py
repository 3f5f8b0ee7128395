"""Seconds that `dorff plan` says, against those that `dorff fit` takes: a job of every way to solve and to choose.

    python benchmarks/plan_seconds.py [--only WORD ...] [--scale 1] [--out benchmarks/results]

Taken is the processor time of all processes of the fit, its start among it, over the workers: what else the machine
does counts little in it. The ratio of wall seconds is beside it. What cannot be known before rows are read is how many
steps the noise of coupled targets takes, and whether the Gram matrix loses so many digits that a second pass, by a QR
of the features, is made ("qr").
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff.data import ingest

DORFF: Final = str(Path(sys.executable).with_name("dorff"))
GAUSSIAN: Final = {"type": "gaussian", "lengthscale": 0.6}
PLAIN: Final = {"type": "decomposable", "scalar": GAUSSIAN}
CURL: Final = {"type": "curl_free", "scalar": GAUSSIAN}
DIV: Final = {"type": "divergence_free", "scalar": GAUSSIAN}
HELMHOLTZ: Final = {"type": "sum", "terms": [{"weight": 0.5, "kernel": one} for one in (CURL, DIV)]}
COUPLED: Final = PLAIN | {"output": {"matrix": [[2.0, 0.7], [0.7, 1.0]]}}
NINE: Final = [10.0**-power for power in range(1, 10)]
TUNED: Final = PLAIN | {"scalar": GAUSSIAN | {"lengthscale": "tune"}}
TUNED_EACH: Final = PLAIN | {"scalar": GAUSSIAN | {"lengthscale": "tune each"}}
BY_ROWS: Final = {"select": "kfold", "folds": {"by": "rows"}}
LOCAL: Final = {"cluster": {"type": "local", "workers": 2, "memory": "4GiB"}}
GRAPH: Final = {"graph": {"type": "knn", "neighbours": 6}, "weight": 1e-3}

#: Rows in thousands, features, and how the job departs from one ridge, direct, of independent outputs, serial.
JOBS: Final[dict[str, tuple[float, int, dict[str, Any]]]] = {
    "direct, m = 512": (1500, 512, {}),
    "direct, m = 1024": (500, 1024, {}),
    "direct, m = 2048": (120, 2048, {}),
    "direct, m = 4096": (20, 4096, {}),
    "direct, two workers": (800, 1024, LOCAL),
    "no posterior": (60, 3072, {"solve": {"posterior": False}}),
    "posterior": (60, 3072, {"solve": {"posterior": True}}),
    "many features of 400 rows": (0.4, 4096, {}),
    "mixed precision": (150, 2048, {"features": {"precision": "mixed"}}),
    "gcv, 9 ridges": (60, 2048, {"solve": {"ridge": NINE}}),
    "evidence, 9 ridges": (60, 2048, {"solve": {"ridge": NINE, "select": "evidence"}}),
    "evidence, coupled": (60, 1536, {"kernel": COUPLED, "solve": {"ridge": NINE, "select": "evidence"}}),
    "evidence, curl-free": (60, 1536, {"kernel": CURL, "solve": {"ridge": NINE, "select": "evidence"}}),
    "evidence, helmholtz": (30, 768, {"kernel": HELMHOLTZ, "solve": {"ridge": NINE[::4], "select": "evidence"}}),
    "k-fold by leaves": (200, 1536, {"solve": {"ridge": NINE, "select": "kfold"}}),
    "k-fold by rows, two kernels": (
        60, 1024,
        {
            "kernel": [PLAIN, PLAIN | {"scalar": GAUSSIAN | {"lengthscale": 0.9}}],
            "solve": {"ridge": NINE, **BY_ROWS},
        },
    ),
    "helmholtz, gcv": (60, 1024, {"kernel": HELMHOLTZ, "solve": {"ridge": NINE[::4]}}),
    "conformal": (60, 1536, {"solve": {"conformal": True}}),
    "gaps": (200, 1024, {"data": {"nan": "partial"}}),
    "gaps, curl-free": (60, 1024, {"kernel": CURL, "data": {"nan": "partial"}}),
    "classes": (60, 2048, {"data": {"targets": {"classes": "classes"}}}),
    "tuned": (60, 512, {"kernel": TUNED}),
    "tuned, each input": (60, 512, {"kernel": TUNED_EACH}),
    "sorf": (1000, 1024, {"features": {"sampler": {"type": "sorf"}}}),
    "iid, many inputs": (60, 1024, {"inputs": 64}),
    "qr": (60, 1024, {"kernel": PLAIN | {"scalar": GAUSSIAN | {"lengthscale": 4.0}}, "solve": {"ridge": 1e-15},
                      "publish": {"digits": 0}}),
    "cg": (60, 3072, {"solve": {"route": "cg", "ridge": 1e-6}}),
    "cg, curl-free": (60, 2048, {"kernel": CURL, "solve": {"route": "cg", "ridge": 1e-6}}),
    "cg, helmholtz": (30, 2048, {"kernel": HELMHOLTZ, "solve": {"route": "cg", "ridge": 1e-6}}),
    "cg, k-fold": (60, 2048, {"solve": {"route": "cg", "ridge": NINE[3::3], **BY_ROWS}}),
    "streaming, 1e-2": (200, 2048, {"solve": {"route": "streaming", "ridge": 1e-2}}),
    "streaming, 1e-6": (60, 2048, {"solve": {"route": "streaming", "ridge": 1e-6}}),
    "streaming, 1e-9": (40, 2048, {"solve": {"route": "streaming", "ridge": 1e-9}}),
    "streaming, curl-free": (60, 2048, {"kernel": CURL, "solve": {"route": "streaming", "ridge": 1e-4}}),
    "streaming, workers": (200, 2048, {"solve": {"route": "streaming", "ridge": 1e-4}, **LOCAL}),
    "manifold": (60, 1024, {"manifold": GRAPH}),
    "manifold, many inputs": (30, 1024, {"manifold": GRAPH, "inputs": 64}),
    "manifold within leaves": (
        60, 1024, {"manifold": GRAPH | {"graph": {"type": "knn", "neighbours": 6, "within": "leaf"}}}
    ),
    "manifold, weights, k-fold": (
        40, 1024, {"manifold": GRAPH | {"weight": [1e-4, 1e-2]}, "solve": {"ridge": NINE[::3], **BY_ROWS}}
    ),
    "manifold, differences": (60, 1024, {"manifold": GRAPH | {"form": "difference"}}),
    "manifold, curl-free": (40, 768, {"kernel": CURL, "manifold": GRAPH}),
}  # fmt: skip


def make(store: Path, rows: int, d: int, *, gaps: bool) -> None:
    """Places in a cube, and two targets or one of three classes."""
    rng = np.random.default_rng(rows)
    X = rng.uniform(-1, 1, (rows, d))
    y = np.column_stack([np.sin(3 * X[:, 0]) * np.cos(3 * X[:, 1]), np.cos(2 * X[:, 0] - X[:, 1])])
    y += 0.05 * rng.standard_normal(y.shape)
    codes = np.digitize(y[:, 0], [-0.3, 0.3])
    if gaps:
        y[::7, 0] = y[3::7, 1] = np.nan
    np.savez(store.with_suffix(".npz"), x=X, y=y, c=codes)
    ingest([store.with_suffix(".npz")], store, inputs=["x"], targets=["y"], classes="c")
    store.with_suffix(".npz").unlink()


def compare(folder: Path, rows: int, m: int, more: dict[str, Any]) -> dict[str, Any]:
    """What was planned and what was taken, of one job: processor seconds over the workers, and wall seconds."""
    changes = dict(more)
    folder.mkdir()
    d = changes.pop("inputs", 2)
    make(folder / "data.zarr", rows, d, gaps="nan" in changes.get("data", {}))
    plain = PLAIN if d == 2 else PLAIN | {"scalar": {"type": "gaussian", "lengthscale": d**0.5}}
    job = {
        "data": {"store": "data.zarr", **changes.pop("data", {})}, "kernel": changes.pop("kernel", plain),
        "features": {"count": m, "sampler": {"type": "orthogonal"}, **changes.pop("features", {})},
        "solve": {"ridge": 1e-6, **changes.pop("solve", {})},
        "cluster": {"type": "serial", "memory": "8GiB"}, "state": "state", "model": "model",
        "publish": {"digits": 0}, **changes,
    }  # fmt: skip
    (folder / "job.yaml").write_text(json.dumps(job))
    plan = run("plan", folder / "job.yaml")[0]
    fitted, busy, wall = run("fit", folder / "job.yaml")
    workers = job["cluster"].get("workers", 1)
    return {
        "rows": rows, "features": m, "route": fitted["route"], "workers": workers,
        "planned": plan["seconds"], "busy": busy / workers, "wall": wall,
        "passes_planned": plan["passes"], "passes": fitted["passes"],
    }  # fmt: skip


def run(command: str, job: Path) -> tuple[dict[str, Any], float, float]:
    """A command's answer, and its seconds: of the processors, its children's too, and wall."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([DORFF, command, str(job), "--json"], capture_output=True, check=False, cwd=job.parent)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{job}: {done.stderr.decode()}")
    return json.loads(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="jobs whose names have one of these")
    parser.add_argument("--scale", type=float, default=1.0, help="times the rows")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(words)
    chosen = {name: job for name, job in JOBS.items() if not options.only or any(one in name for one in options.only)}
    file = options.out / "plan_seconds.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="dorff-seconds-") as folder:
        for number, (name, (thousands, m, more)) in enumerate(chosen.items()):
            one = compare(Path(folder) / str(number), int(1000 * thousands * options.scale), m, more)
            one |= {"ratio": one["busy"] / one["planned"], "wall_ratio": one["wall"] / one["planned"]}
            kept[name] = one
            print(
                f"{name:30} planned {one['planned']:7.1f}  busy {one['busy']:7.1f}  wall {one['wall']:7.1f}  "
                f"ratio {one['ratio']:5.2f}  of wall {one['wall_ratio']:5.2f}  passes {one['passes_planned']} "
                f"{one['passes']}", flush=True,
            )  # fmt: skip
            shutil.rmtree(Path(folder) / str(number))
    if options.scale == 1.0:
        file.write_text(json.dumps({name: kept[name] for name in JOBS if name in kept}, indent=1) + "\n")
    ratios = {name: kept[name]["ratio"] for name in chosen}
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    print(f"least {ratios[low]:.2f} ({low}), most {ratios[high]:.2f} ({high})")


if __name__ == "__main__":
    main()
