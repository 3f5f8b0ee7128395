"""What the pass costs: p = 3 divergence-free against p = 1 scalar at equal m and n; and the textbook's stacked ORFF.

    python benchmarks/cost.py [--m 1024] [--rows 65536] [--repeats 5] [--out benchmarks/results]

The first two are dorff's own passes over Zarr (plan, leaves, moments on disk; serial engine), three inputs each, with
one and with three targets; their leaves, blocks and frequencies are alike. The third is what Brault (2016) and Minh
(2016, eq. 71-74) write down: Phi (m r, p n) built block by block (r = p = 3 for the printed root of the
divergence-free spectrum, |w| I - w w^T / |w|) and Phi Phi^T by the same BLAS `syrk`, on `--textbook` of the rows:
it is in memory, has no files to read, and its time is scaled to all rows. Measured in turn, medians and ranges of
ratios of the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dorff import frequencies, kernels
from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.features import FeatureMap, Recipe
from dorff.fit import run_pass
from dorff.moments import syrk
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job

GAUSSIAN = {"type": "gaussian", "lengthscale": 1.0}
KERNELS = {
    1: {"type": "decomposable", "scalar": GAUSSIAN},
    3: {"type": "divergence_free", "scalar": GAUSSIAN, "measure": "unbounded"},
}
NAMES = {1: "scalar, p = 1", 3: "divergence-free, p = 3"}


def one_pass(folder: Path, p: int, m: int) -> float:
    """Seconds of a pass from nothing, between the plan and the merged moments, with p targets."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        plan = make_plan(Job.model_validate({
            "data": {"store": str(folder / f"{p}.zarr")}, "kernel": KERNELS[p],
            "features": {"count": m, "sampler": {"type": "orthogonal"}}, "cluster": {"type": "serial"},
            "state": f"{place}/state", "model": f"{place}/model",
        }))  # fmt: skip
        freeze_constants(plan)
        began = time.perf_counter()
        run_pass(plan, SerialEngine())
        return time.perf_counter() - began


def textbook(m: int, rows: int, block: int) -> float:
    """Seconds of Phi Phi^T for `rows` rows, p = r = 3."""
    p, rng = 3, np.random.default_rng(0)
    kernel = kernels.DivergenceFree(kernels.Gaussian(1.0), "unbounded").fix(p, p)
    drawn = Recipe(kernel, frequencies.Orthogonal(), p, p, m).draw(0)
    assert drawn.density is not None
    omega = drawn.density[0]
    norm = np.linalg.norm(omega, axis=1)[:, None, None]
    root = norm * np.eye(p) - omega[:, :, None] * omega[:, None, :] / norm  # (D, r, p), Minh's eq. 41
    psi = np.concatenate([root, root])
    features, X = FeatureMap(drawn.phi, np.zeros(p), np.ones(p)), rng.standard_normal((block, p))
    square = np.zeros((p * m, p * m), order="F")
    began = time.perf_counter()
    for _ in range(rows // block):
        F = features.transform(X)
        Phi = np.einsum("na,arp->npar", F, psi).reshape(block * p, m * p)
        syrk(np.ascontiguousarray(Phi), square)
    return time.perf_counter() - began


def main() -> None:
    """Measure in turn, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=2**17, help="rows of the passes (131072, 128 m)")
    parser.add_argument("--textbook", type=int, default=2**13, help="rows of the stacked features (8192)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, threadpool_limits(1):
        folder = Path(place)
        rng = np.random.default_rng(0)
        for p in KERNELS:
            np.savez(
                folder / "rows.npz", x=rng.standard_normal((options.rows, 3)), y=rng.standard_normal((options.rows, p))
            )
            ingest([folder / "rows.npz"], folder / f"{p}.zarr", inputs=["x"], targets=["y"])
        rounds = []
        for number in range(options.repeats + 1):
            found = {NAMES[p]: one_pass(folder, p, options.m) for p in KERNELS}
            found["textbook"] = textbook(options.m, options.textbook, 512) * options.rows / options.textbook
            if number:  # the first is to warm up
                rounds.append(found)
                print({name: round(seconds, 3) for name, seconds in found.items()}, flush=True)
    plain = [found[NAMES[1]] for found in rounds]
    ratios = {
        name: [found[name] / base for found, base in zip(rounds, plain, strict=True)] for name in (NAMES[3], "textbook")
    }
    body = {
        "m": options.m, "rows": options.rows,
        **{name: {"median": statistics.median(r), "least": min(r), "most": max(r)} for name, r in ratios.items()},
    }  # fmt: skip
    print(json.dumps(body, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cost.json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
