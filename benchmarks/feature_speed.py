"""Speed of the loops and feature maps in one process and one thread; ratios of things measured in turn.

    python benchmarks/feature_speed.py [--repeats 7] [--out benchmarks/results]

Hadamard: rows in, rows out, against NumPy's product with the dense matrix. Pairs: cosines and sines of 2^17 phases
against `np.cos` and `np.sin`. Maps: m = 8192 columns of whole feature maps (centring, scaling, projection, sin/cos,
weights; the output's memory is there), against scikit-learn's RBFSampler of 8192 components, which makes its output
anew at each call, as its interface has it. Growth: time of a row for m = 2 d against d, as the paper's Figure 3; the
data sets' own d are marked. Numbers: what each map stores, against m d / 2 of a dense one. All in float64.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from scipy.linalg import hadamard as hadamard_matrix
from sklearn.kernel_approximation import RBFSampler

from dorff import frequencies, kernels
from dorff.features import FeatureMap, Recipe
from dorff.loops import hadamard_chain, trig_pairs

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MAPS = {
    "rom": frequencies.ROM(),
    "sorf": frequencies.SORF(),
    "fastfood": frequencies.Fastfood(),
    "quadrature": frequencies.Quadrature(),
}
DATASETS = {"LETTER": 16, "USPS": 256, "MNIST": 784, "CIFAR": 3072, "LEUKEMIA": 7129}
GROWTH = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def seconds(call: Callable[[], object], *, least: float = 0.02) -> float:
    """Of one call, the mean of as many as take `least` seconds."""
    count, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < least or not count:
        call()
        count += 1
    return taken / count


def against(slow: Callable[[], object], fast: Callable[[], object], repeats: int) -> dict[str, float]:
    """slow / fast: the median of ratios measured one after the other, and their extremes."""
    slow()
    fast()
    ratios = [seconds(slow) / seconds(fast) for _ in range(repeats)]
    return {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def feature_map(sampler: frequencies.Sampler, d: int, m: int) -> FeatureMap:
    recipe = Recipe.of(kernels.Gaussian(math.sqrt(d / 2)), sampler, d=d, n_features=m, intercept=True)
    return FeatureMap(recipe.draw(0).phi, np.zeros(d), np.ones(d))


def of_hadamard(repeats: int) -> list[dict[str, Any]]:
    found = []
    for n in (1024, 4096):
        x = np.random.default_rng(0).standard_normal((256, n))
        H, out = hadamard_matrix(n).astype(np.float64), np.empty_like(x)
        none, rows, ones = np.empty((1, 0), np.int32), np.arange(n), np.ones(n)
        loop = partial(hadamard_chain, x, ones, ones.reshape(1, 1, n), none, rows, ones, out)
        figures = against(partial(np.matmul, x, H, out=out), loop, repeats)
        found.append({"n": n, **figures})
    return found


def of_pairs(repeats: int) -> dict[str, float]:
    z = np.random.default_rng(0).normal(0, 5, (32, 4096))
    out, weights = np.empty((32, 8192)), np.ones(4096)
    return against(lambda: (np.cos(z), np.sin(z)), lambda: trig_pairs(z, out, weights), repeats)


def of_maps(repeats: int) -> list[dict[str, Any]]:
    found = []
    for d in (784, 3072):
        X = np.random.default_rng(0).standard_normal((512, d))
        peer = RBFSampler(gamma=1 / d, n_components=8192, random_state=0).fit(X[:2])
        for name, sampler in MAPS.items():
            features, out = feature_map(sampler, d, 8192), np.empty((512, 8192))
            work = features.workspace(512)
            figures = against(partial(peer.transform, X), partial(features, X, out, work), repeats)
            stored = sum(array.size for array in features.phi.projection.arrays().values()) + len(features.phi.weights)
            found.append({"map": name, "d": d, "m": features.m, **figures, "numbers": stored, "dense": 4096 * d})
            print(found[-1], flush=True)
    return found


def of_growth(repeats: int) -> list[dict[str, Any]]:
    """Microseconds a row of each map with m = 2 d; of the dense one, too, where it does not take minutes."""
    found = []
    for d in sorted({*GROWTH, *DATASETS.values()}):
        X, out = np.random.default_rng(0).standard_normal((256, d)), np.empty((256, 2 * d))
        maps = {"dense": frequencies.IID(), **MAPS}
        calls = {}
        for name, sampler in maps.items():
            features = feature_map(sampler, d, 2 * d)
            calls[name] = partial(features, X, out, features.workspace(len(X)))
            calls[name]()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                times[name].append(seconds(call, least=0.0))
        for name, values in times.items():
            found.append({"d": d, "map": name, "us_per_row": 1e6 * statistics.median(values) / len(X)})
        print(
            d, {name: round(1e6 * statistics.median(values) / len(X), 2) for name, values in times.items()}, flush=True
        )
    return found


def slope(rows: list[dict[str, Any]], name: str, least: int = 1024) -> float:
    """The exponent of d in a map's time, from `least` on: 1 and a little for d log d, 2 for a dense map."""
    line = [(row["d"], row["us_per_row"]) for row in rows if row["map"] == name and row["d"] in GROWTH]
    d, us = np.log(np.array([point for point in line if point[0] >= least]).T)
    return float(np.polyfit(d, us, 1)[0])


def figure(path: Path, rows: list[dict[str, Any]]) -> None:
    """Times against d, with d log2 d and d^2 drawn through the ROM's and the dense map's last points."""
    fig, axis = plt.subplots(figsize=(7, 5), layout="constrained")
    for number, name in enumerate(("dense", *MAPS)):
        d, us = np.array([(row["d"], row["us_per_row"]) for row in rows if row["map"] == name and row["d"] in GROWTH]).T
        axis.plot(d, us, "os^vD"[number] + "-", color=f"C{number}", label=name, markersize=5)
        marked = [(row["d"], row["us_per_row"]) for row in rows if row["map"] == name and row["d"] in DATASETS.values()]
        axis.plot(*np.array(marked).T, "os^vD"[number], color=f"C{number}", markerfacecolor="none", markersize=7)
    grid = np.array(GROWTH, dtype=float)
    last = {
        name: next(row["us_per_row"] for row in rows if row["map"] == name and row["d"] == 8192)
        for name in ("rom", "dense")
    }
    shape = grid * np.log2(grid)
    axis.plot(grid, last["rom"] * shape / shape[-1], "k:", label="d log d")
    axis.plot(grid, last["dense"] * (grid / grid[-1]) ** 2, "k--", label="d squared")
    for name, d in DATASETS.items():
        axis.text(
            d, 0.02, name, transform=axis.get_xaxis_transform(), rotation=90, fontsize=8, color="gray", ha="center"
        )
    axis.set(xscale="log", yscale="log", xlabel="d (m = 2 d)", ylabel="microseconds a row, one thread")
    axis.set_xticks(GROWTH, [str(d) for d in GROWTH])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend()
    fig.savefig(path, dpi=120)
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"hadamard": of_hadamard(given.repeats), "pairs": of_pairs(given.repeats)}
    print(found, flush=True)
    found["maps"] = of_maps(given.repeats)
    found["growth"] = of_growth(given.repeats)
    found["exponents"] = {name: slope(found["growth"], name) for name in ("dense", *MAPS)}
    print(found["exponents"], flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "feature_speed.json").write_text(json.dumps(found, indent=1) + "\n")
        figure(given.out / "feature_speed.png", found["growth"])


if __name__ == "__main__":
    main()
