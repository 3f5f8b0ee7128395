"""Features of computation skeletons: the figures of Daniely et al. (2017), section 6, and their speed.

    python benchmarks/skeletons.py --data DIR [--only error,pairs,speed] [--draws 10] [--out benchmarks/results]

Error (figure 3): 24 x 24 middles of 128 images of CIFAR-10, pixels from 0 to 255 as half a turn. Kernels: shallow,
one node of exp((rho - 1) / 4) over all pixels; deep, 5 x 5 windows of that at stride 2, 4 x 4 windows of relu at
stride 2, and one relu. The kernel's estimate against the kernel, on all pairs, by the columns m of F: paths (draws
16, merged; and 1, not merged) against random Fourier features of the Gaussian of chords that the first layer is: of
all pixels in the shallow kernel (RR), of each window in the deep one, whose nodes above draw paths (RFS + RR). Mean
of absolute errors, root mean square, largest; correlation; of all batches together.

Pairs (figure 4): how often pixels are in one feature together: correlation, over 500,000 features, of the occurrence of
four pixels with that of all others, for no, one, two and three layers of windows below a full one, all of relu.

Speed: one thread, in turn: features of paths against those of dense frequencies, d = 3072, m = 8192; a feature's time
for d = 768 to 12288; numbers that the transform holds for a frequency.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from dorff.features import FeatureMap, Recipe
from dorff.frequencies import IID, Paths, Sampler
from dorff.frequencies.paths import calls_of
from dorff.kernels import ColumnBlock, FloatArray, Gaussian, Layer, ScalarKernel, Skeleton

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIDE, CHANNELS, BATCH = 24, 3, 128
RATE = 0.25
COUNTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PIXELS = ((5, 5), (5, 18), (14, 9), (19, 19))


def images(data: Path) -> FloatArray:
    """The middles (n, 24, 24, 3) of all images, as angles."""
    with np.load(data / "cifar10" / "cifar10_train_first4000.npz") as file:
        x = np.asarray(file["x"], dtype=np.float64)
    x = x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) if x.shape[-1] != 3 else x
    return x[:, 4:28, 4:28] * (math.pi / 255)


def chords(x: FloatArray) -> FloatArray:
    """Points on circles (n, 24, 24, 6) of angles."""
    return np.concatenate([np.cos(x), np.sin(x)], axis=-1)


def schemes() -> dict[str, dict[str, tuple[ScalarKernel, Sampler, bool]]]:
    """Of each kernel the kernel itself, and how features are drawn: of what, by what, on chords or not."""
    rate = {"exponential": RATE}
    shallow = Skeleton([Layer(activation=rate)])
    deep = Skeleton([Layer(5, 2, rate), Layer(4, 2), Layer()], shape=(SIDE, SIDE, CHANNELS))
    pixels = np.arange(SIDE * SIDE * 2 * CHANNELS).reshape(SIDE, SIDE, 2 * CHANNELS)
    windows = [pixels[i : i + 5, j : j + 5].ravel() for i in range(0, SIDE - 4, 2) for j in range(0, SIDE - 4, 2)]
    every = SIDE * SIDE * CHANNELS
    blocks = [ColumnBlock(chord_gaussian(25 * CHANNELS), columns=window.tolist()) for window in windows]
    hybrid = Skeleton([Layer(4, 2), Layer()], inputs=blocks, shape=(10, 10, 1))
    plain, merged = Paths(1), Paths()
    return {
        "shallow": {
            "RFS, merged": (shallow, merged, False),
            "RFS": (shallow, plain, False),
            "RR": (chord_gaussian(every), IID(), True),
        },
        "deep": {
            "RFS, merged": (deep, merged, False),
            "RFS": (deep, plain, False),
            "RFS + RR": (hybrid, plain, True),
        },
    }


def chord_gaussian(circles: int) -> Gaussian:
    """exp(rate (rho - 1)), rho the mean of so many cosines, is exp(-|x - z|^2 rate / (2 circles)) of points on them."""
    return Gaussian(math.sqrt(circles / RATE))


def of_error(data: Path, draws: int) -> list[dict[str, Any]]:
    x, rng = images(data), np.random.default_rng(0)
    batches = [x[rng.choice(len(x), BATCH, replace=False)] for _ in range(draws)]
    rows = []
    for name, ways in schemes().items():
        kernel = ways["RFS"][0]
        exact = [kernel.gram(*[one.reshape(BATCH, -1)] * 2) for one in batches]
        for way, (scalar, sampler, on_chords) in ways.items():
            inputs = [(chords(one) if on_chords else one).reshape(BATCH, -1) for one in batches]
            assert np.abs(scalar.gram(inputs[0], inputs[0]) - exact[0]).max() < 1e-7
            for m in COUNTS:
                recipe = Recipe.of(scalar, sampler, d=inputs[0].shape[1], n_features=m)
                made = [recipe.draw(seed).phi.gram(one, one) for seed, one in enumerate(inputs)]
                rows.append({"kernel": name, "scheme": way, "m": m, **errors(np.array(made), np.array(exact))})
                print(rows[-1], flush=True)
    return rows


def errors(made: FloatArray, exact: FloatArray) -> dict[str, float]:
    away = np.abs(made - exact)
    return {
        "mean": float(away.mean()),
        "rms": float(np.sqrt(np.mean(away**2))),
        "largest": float(away.max()),
        "correlation": float(np.corrcoef(made.ravel(), exact.ravel())[0, 1]),
    }


def draw_errors(rows: list[dict[str, Any]], path: Path) -> None:
    measures = ("mean", "rms", "largest", "correlation")
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), layout="constrained")
    for line, kernel in zip(axes, ("shallow", "deep"), strict=True):
        for axis, measure in zip(line, measures, strict=True):
            for way in dict.fromkeys(row["scheme"] for row in rows if row["kernel"] == kernel):
                some = [row for row in rows if row["kernel"] == kernel and row["scheme"] == way]
                axis.plot([row["m"] for row in some], [row[measure] for row in some], marker="o", ms=3, label=way)
            axis.set(xscale="log", title=f"{kernel}: {measure}", xlabel="columns of F")
            if measure != "correlation":
                axis.set_yscale("log")
        line[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def of_pairs(count: int) -> tuple[list[dict[str, Any]], dict[str, FloatArray]]:
    """Of each skeleton the correlations (4, 24, 24) of pixels, and those with a pixel beside and with one far away."""
    below = {"flat": [], "1 layer": [(5, 2)], "2 layers": [(5, 2), (4, 2)], "3 layers": [(5, 2), (4, 2), (2, 1)]}
    rows, maps = [], {}
    for name, windows in below.items():
        skeleton = Skeleton([*(Layer(*window) for window in windows), Layer()], shape=(SIDE, SIDE, 1))
        began = time.process_time()
        features, pixels, _ = calls_of(skeleton.graph(SIDE**2), np.random.default_rng(0), count)
        taken = time.process_time() - began
        share = np.bincount(pixels, minlength=SIDE**2) / count
        table = []
        for i, j in PIXELS:
            mine = np.zeros(count, dtype=bool)
            mine[features[pixels == SIDE * i + j]] = True
            both = np.bincount(pixels[mine[features]], minlength=SIDE**2) / count
            own = share[SIDE * i + j]
            spread = np.sqrt(own * (1 - own) * share * (1 - share))
            with np.errstate(invalid="ignore"):  # the last pixels, which no window sees
                table.append(((both - own * share) / spread).reshape(SIDE, SIDE))
        maps[name] = np.array(table)
        placed = list(zip(table, PIXELS, strict=True))
        beside = float(np.mean([one[i, j + 1] for one, (i, j) in placed]))
        far = float(np.mean([one[(i + 12) % (SIDE - 1), (j + 12) % (SIDE - 1)] for one, (i, j) in placed]))
        rows.append({"skeleton": name, "features": count, "beside": beside, "far": far, "error": 1 / math.sqrt(count),
                     "inputs": len(pixels) / count, "seconds": taken})  # fmt: skip
        print(rows[-1], flush=True)
    return rows, maps


def draw_pairs(maps: dict[str, FloatArray], path: Path) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
    for axis, (name, table) in zip(axes, maps.items(), strict=True):
        total = table.max(axis=0)
        for i, j in PIXELS:
            total[i, j] = np.nan
        shown = axis.imshow(np.cbrt(np.maximum(total, 0.0)), cmap="magma", vmin=0.0, vmax=float(np.cbrt(0.2)))
        axis.scatter(*np.array(PIXELS).T[::-1], color="deepskyblue", s=18, marker="s")
        axis.set(title=name, xticks=[], yticks=[])
    bar = figure.colorbar(shown, ax=axes, label="correlation")
    bar.set_ticks(
        [float(np.cbrt(one)) for one in (0.0, 1e-3, 1e-2, 0.05, 0.2)], labels=["0", "0.001", "0.01", "0.05", "0.2"]
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def of_speed(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for side, m in ((32, 8192), (16, 8192), (64, 8192)):
        d = side * side * CHANNELS
        skeleton = Skeleton([Layer(5, 2), Layer(4, 2), Layer()], shape=(side, side, CHANNELS))
        x = np.random.default_rng(0).uniform(0, math.pi, (512, d))
        sparse = feature_map(skeleton, Paths(), d, m)
        dense = feature_map(Gaussian(math.sqrt(d)), IID(), d, m)
        out, ratios, taken = np.empty((len(x), m)), list[float](), list[float]()
        for _ in range(repeats):
            slow, fast = (seconds(one, x, out) for one in (dense, sparse))
            ratios.append(slow / fast)
            taken.append(fast / len(x) / m)
        held = sum(array.nbytes for array in sparse.phi.arrays().values()) / 8
        rows.append({"d": d, "m": m, "of_dense": spread(ratios), "ns_a_feature": 1e9 * statistics.median(taken),
                     "numbers_a_frequency": held / (m // 2), "complexity": skeleton.complexity(d)})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def feature_map(scalar: ScalarKernel, sampler: Sampler, d: int, m: int) -> FeatureMap:
    return FeatureMap(Recipe.of(scalar, sampler, d=d, n_features=m).draw(0).phi, np.zeros(d), np.ones(d))


def seconds(features: FeatureMap, x: FloatArray, out: FloatArray) -> float:
    work = features.workspace(len(x))
    features(x[:1], out[:1], work)
    began = time.perf_counter()
    features(x, out, work)
    return time.perf_counter() - began


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with cifar10")
    parser.add_argument("--only", default="error,pairs,speed")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--features", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    steps, found = options.only.split(","), dict[str, Any]()
    options.out.mkdir(parents=True, exist_ok=True)
    if "error" in steps:
        found["error"] = of_error(options.data, options.draws)
        draw_errors(found["error"], options.out / "skeleton_error.png")
    if "pairs" in steps:
        found["pairs"], maps = of_pairs(options.features)
        draw_pairs(maps, options.out / "skeleton_pairs.png")
    if "speed" in steps:
        found["speed"] = of_speed(options.repeats)
    path = options.out / "skeletons.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
