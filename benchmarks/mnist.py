"""MNIST by one-hot least squares on structured features: accuracy, seconds and peak memory of a whole `dorff fit`.

python benchmarks/mnist.py [--data FOLDER] [--count 8192] [--samplers rom quadrature]
                           [--out benchmarks/results/mnist.json]

The 60000 training images are fitted by `dorff fit` from Zarr with two workers; ridge and length-scale are chosen
without the test images: the ridge by GCV within the fit, the length-scale as the one of the fewest errors on 10000
training images held out of smaller fits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dorff import ORFFRegressor, frequencies, kernels, load_model
from dorff.data import ingest
from dorff.fit import fit
from dorff.spec.job import Job

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "mnist"
LENGTHSCALES = (6.0, 7.0, 8.5, 10.0)
RIDGES = tuple(10.0 ** np.arange(-8.0, -4.0, 0.5))


def images(folder: Path, name: str) -> np.ndarray:
    """Pixels (n, 784) in 0..1."""
    raw = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784) / 255.0


def labels(folder: Path, name: str) -> np.ndarray:
    """Classes (n,)."""
    return np.frombuffer(gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)


def choose_lengthscale(X: np.ndarray, y: np.ndarray, sampler: frequencies.Sampler, count: int) -> dict[str, Any]:
    """Accuracy of each length-scale on 10000 training rows, fitted to 30000 others with fewer features."""
    order = np.random.default_rng(0).permutation(len(X))
    held, used = order[:10000], order[10000:40000]
    found = {}
    for lengthscale in LENGTHSCALES:
        model = ORFFRegressor(
            kernels.Gaussian(lengthscale), count, sampler=sampler, ridge=list(RIDGES), random_state=1
        ).fit(X[used], np.eye(10)[y[used]])
        found[lengthscale] = float(np.mean(model.predict(X[held]).argmax(axis=1) == y[held]))
        print(f"length-scale {lengthscale}: held-out accuracy {found[lengthscale]:.4f}", flush=True)
    return {"best": max(found, key=lambda s: found[s]), "accuracy": found, "features": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--count", type=int, default=8192)
    parser.add_argument("--samplers", nargs="+", default=["rom", "quadrature"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    X, y = images(arguments.data, "train"), labels(arguments.data, "train")
    Z, t = images(arguments.data, "t10k"), labels(arguments.data, "t10k")
    chosen = choose_lengthscale(X, y, frequencies.Quadrature(), arguments.count // 2)
    rows = []
    with tempfile.TemporaryDirectory(prefix="mnist-") as folder:
        home = Path(folder)
        np.savez(home / "train.npz", pixels=X.astype(np.float32), digits=np.eye(10, dtype=np.float32)[y])
        ingest([home / "train.npz"], home / "train.zarr", inputs=["pixels"], targets=["digits"])
        for sampler in arguments.samplers:
            for seed in range(arguments.seeds):
                job = Job.model_validate(
                    {
                        "data": {"store": str(home / "train.zarr")},
                        "kernel": {
                            "type": "decomposable",
                            "scalar": {"type": "gaussian", "lengthscale": chosen["best"]},
                        },
                        "features": {"count": arguments.count, "sampler": {"type": sampler}, "seed": seed},
                        "solve": {"ridge": list(RIDGES)},
                        "cluster": {"type": "local", "workers": 2, "memory": "6GiB"},
                        "state": str(home / f"state-{sampler}-{seed}"),
                        "model": str(home / f"model-{sampler}-{seed}"),
                    }
                )
                report = fit(job)
                accuracy = float(np.mean(load_model(str(job.model)).predict(Z).argmax(axis=1) == t))
                rows.append(
                    {
                        "sampler": sampler, "seed": seed, "m": report.m, "test_accuracy": accuracy,
                        "fit_seconds": report.seconds, "peak_bytes": report.peak_bytes,
                        "plan_peak_bytes": report.plan_peak_bytes, "ridge": report.ridge,
                        "syrk_share": report.syrk_share,
                    }
                )  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"lengthscale": chosen, "fits": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
