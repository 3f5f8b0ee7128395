"""Landmarks and random paths of skeletons, and their length-scales, on the 8 x 8 images of digits of scikit-learn.

    python benchmarks/skeleton_digits.py [--only samplers,nested,tune] [--seeds 3]

Samplers: accuracy on 797 images of fits to 1,000, the worst seed; the root mean square error of the kernel on pairs of
300 of the others; rows a second of the feature map. Patches are of 4 x 4 pixels, at stride 2, each a sphere. Random
features of relu over spheres have an infinite variance, and paths refuse them.

Nested: the error of the kernel by the first m' of 1,024 features, over that of m' features drawn alone; mean of ten.

Tune: accuracy with length-scales that were tuned, and the worst and the best of seven, with 256 landmarks.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import time
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

from dorff import ORFFClassifier, tune_lengthscales
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.frequencies import Landmarks, Paths, Sampler
from dorff.kernels import Angle, ColumnBlock, Decomposable, FloatArray, Gaussian, Layer, Skeleton, Sphere

TRAIN, SIDE, STRIDE = 1000, 4, 2
SPHERES = [Sphere(columns=list(range(16 * at, 16 * at + 16))) for at in range(9)]
PIXELS = Angle(16 / np.pi)
KERNELS = {
    "relu, patches as spheres": Skeleton([Layer()], inputs=SPHERES),
    "exponential 1, patches as spheres": Skeleton([Layer(activation={"exponential": 1.0})], inputs=SPHERES),
    "relu over windows of pixels": Skeleton([Layer(4, 2), Layer()], inputs=PIXELS, shape=(8, 8, 1)),
    "exponential 4, pixels": Skeleton([Layer(activation={"exponential": 4.0})], inputs=PIXELS),
}
SCALES = (1.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0)


def patches(images: FloatArray) -> FloatArray:
    """Return the patches (n, 9 x 16) of images (n, 64), one after another."""
    squares, places = images.reshape(-1, 8, 8), range(0, 8 - SIDE + 1, STRIDE)
    parts = [squares[:, i : i + SIDE, j : j + SIDE].reshape(len(images), -1) for i in places for j in places]
    return np.concatenate(parts, axis=1)


def splits(seeds: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield seeds, and images and digits in a random order, of which the first `TRAIN` are fitted."""
    data = load_digits()
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(data.data))
        yield seed, data.data[order], data.target[order]


def accuracy(scalar: Skeleton, X: FloatArray, y: FloatArray, m: int, sampler: Sampler, seed: int = 0) -> float:
    """Return the share of right answers on the rows that are not fitted."""
    model = ORFFClassifier(Decomposable(scalar), m, sampler=sampler, random_state=seed)
    return float(model.fit(X[:TRAIN], y[:TRAIN]).score(X[TRAIN:], y[TRAIN:]))


def compare_samplers(seeds: int) -> None:
    for name, scalar in KERNELS.items():
        for m in (64, 256, 1024):
            for sampler in (Paths(), Landmarks()):
                scores, errors, rates = [], [], []
                try:
                    for seed, images, y in splits(seeds):
                        X = images if scalar.shift_invariant else patches(images)
                        scores.append(accuracy(scalar, X, y, m, sampler, seed))
                        recipe = Recipe.of(scalar, sampler, d=X.shape[1], n_features=m)
                        phi = recipe.among(X[:TRAIN], seed).draw(seed).phi
                        some = X[TRAIN : TRAIN + 300]
                        away = phi.gram(some, some) - scalar.gram(some, some)
                        errors.append(float(np.sqrt(np.mean(away**2))))
                        began = time.perf_counter()
                        phi.transform(X)
                        rates.append(len(X) / (time.perf_counter() - began))
                except InputError as refused:
                    print(f"{name}, {m} {sampler.kind}: {str(refused).partition(';')[0]}", flush=True)
                    continue
                text = f"accuracy {min(scores):.3f}, error of the kernel {max(errors):.2g}"
                print(f"{name}, {m} {sampler.kind}: {text}, {min(rates):,.0f} rows a second", flush=True)


def compare_nested() -> None:
    X = load_digits().data[:150]
    windows = KERNELS["relu over windows of pixels"]
    shallow = Skeleton([Layer(activation={"exponential": 0.25})], inputs=PIXELS)
    for name, scalar in (("relu over windows", windows), ("exponential 0.25", shallow)):
        exact = scalar.gram(X, X)
        for count in (64, 256, 512):
            errors = []
            for seed in range(10):
                many, few = (Recipe.of(scalar, Paths(), d=64, n_features=m).draw(seed).phi for m in (1024, count))
                both = many.first(count // 2), few
                errors.append([np.sqrt(np.mean((phi.gram(X, X) - exact) ** 2)) for phi in both])
            first, alone = np.mean(errors, axis=0)
            print(f"{name}: first {count} of 1,024 features {first:.4f}, drawn alone {alone:.4f}", flush=True)


def compare_tuned() -> None:
    ((_, images, y),) = splits(1)
    away = images - images[:TRAIN].mean(axis=0)
    components = away @ np.linalg.svd(away[:TRAIN], full_matrices=False)[2][:16].T
    blocks = [ColumnBlock(Gaussian(1.0), columns=list(range(at, at + 8))) for at in (0, 8)]
    cases = {
        "relu over windows, pixels": (Skeleton([Layer(4, 2), Layer()], shape=(8, 8, 1)), images),
        "exponential 2, pixels": (Skeleton([Layer(activation={"exponential": 2.0})]), images),
        "relu, 16 components": (Skeleton([Layer()]), components),
        "relu over two blocks": (Skeleton([Layer()], inputs=blocks), components),
    }
    for name, (scalar, X) in cases.items():
        grid = [accuracy(scalar.with_lengthscale(scale), X, y, 256, Landmarks()) for scale in SCALES]
        print(f"{name}: of {len(SCALES)} length-scales {min(grid):.3f} to {max(grid):.3f}", flush=True)
        for each in (False, True):
            kernel, Y = Decomposable(scalar), np.eye(10)[y[:TRAIN]]
            began = time.perf_counter()
            tuned = tune_lengthscales(kernel, X[:TRAIN], Y, classes=True, n_features=256, rows=2048, each=each)
            seconds = time.perf_counter() - began
            (found,) = (base.scalar for _, base in tuned.kernel.terms())
            assert isinstance(found, Skeleton)
            score = accuracy(found, X, y, 256, Landmarks())
            print(f"{name}, {'each' if each else 'one'} tuned: {score:.3f}, {seconds:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="samplers,nested,tune")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = options.only.split(",")
    if "samplers" in wanted:
        compare_samplers(options.seeds)
    if "nested" in wanted:
        compare_nested()
    if "tune" in wanted:
        compare_tuned()


if __name__ == "__main__":
    main()
