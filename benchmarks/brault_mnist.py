"""Figure 2 of Brault, Heinonen & d'Alche-Buc (2016): MNIST by simplex coding, features against the exact kernel.

    python benchmarks/brault_mnist.py [--data DIR] [--runs 3] [--out benchmarks/results] [--quick]

12000 training images (the first ones) and the 10000 test images, pixels scaled to [-1, 1]; a run with fewer takes
another random part of the 12000. The paper's Gaussian is exp(-|x - z|^2 / sigma^2), sigma = 20 (its square is missing
in print), which is a length-scale of 20 / sqrt(2). Simplex coding (Mroueh et al. 2012): class c becomes the c-th
column of B (9, 10), of unit length and with inner products -1/9, by the corrected recursion with u = -1/p in R^p.

`ORFF` is the decomposable kernel k0 B^T B on one-hot targets, classes by the largest output; the coupling of rank 9
on one-hot targets is B^T B, not the paper's B B^T, a multiple of I. `exact` is the paper's OVK: the codes as targets,
k0 I_9, and the class whose code has the largest inner product with f. The two are one model: B^T B has the one
eigenvalue 10/9 beside 0, so that k0 B^T B at the ridge 10/9 g predicts B^T f of k0 I_9 at g. `check` fits ORFF both
ways. No intercept, as in the paper. The ridge is one of RIDGES, by 2-fold cross-validation of squared errors.

Left: seconds of a fit against N, D = 1000. `seconds_with_choice` includes the cross-validation: for ORFF the same one
pass, for the exact model a factor for each fold and ridge. Both with one BLAS thread. The exact model makes use of
the structure of k0 I, one factor for all nine codes; the 9 N x 9 N system would take 729 times as long.
Middle: test error against D at N = 1000, the exact model's as a line. Right: against N.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from exact_cost import exact_cost
from halves import Times, exact_by_halves
from mnist import DATA, images, labels
from tables import compute, interval, write

from dorff import ORFFRegressor, kernels
from dorff.kernels.scalar import FloatArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CLASSES, TRAIN, SIGMA = 10, 12_000, 20.0
SCALAR = kernels.Gaussian(SIGMA / np.sqrt(2))
RIDGES = tuple(float(ridge) for ridge in 10.0 ** np.arange(-8, 0))
COUNTS = (10, 30, 100, 300, 1000, 2000)
SIZES = (100, 300, 1000, 3000, 6000, 12_000)
AT_N, AT_D = 1000, 1000

Labels = npt.NDArray[np.uint8]


B = kernels.Simplex().root(CLASSES)  # (9, 10): the codes are its columns


@dataclass(frozen=True)
class Task:
    """One fit; D = 0 is the exact model; `coded` fits ORFF to the codes, as the exact model is."""

    folder: Path
    N: int
    D: int
    run: int
    coded: bool = False


@dataclass(frozen=True)
class Fit:
    error: float
    ridge: float
    seconds: float
    seconds_with_choice: float
    predicted: npt.NDArray[np.intp]


@cache
def data(folder: Path) -> tuple[FloatArray, Labels, FloatArray, Labels]:
    X, y = (2 * images(folder, "train")[:TRAIN] - 1), labels(folder, "train")[:TRAIN]
    return X, y, 2 * images(folder, "t10k") - 1, labels(folder, "t10k")


def fit_features(task: Task, X: FloatArray, y: Labels) -> tuple[Any, tuple[float, float, float]]:
    """What predicts scores (n, 10), and (ridge, seconds, seconds with the choice of the ridge)."""
    factor = 1.0 if task.coded else CLASSES / (CLASSES - 1)
    Y = B.T[y] if task.coded else np.eye(CLASSES)[y]
    kernel = kernels.Decomposable(SCALAR) if task.coded else kernels.Decomposable(SCALAR, B.T @ B)
    settings: dict[str, Any] = {"n_features": 2 * task.D, "random_state": task.run, "intercept": False}
    ridges = [factor * ridge for ridge in RIDGES]
    ORFFRegressor(kernel, **settings).fit(X[:50], Y[:50])  # compiles
    began = time.perf_counter()
    model = ORFFRegressor(kernel, ridge=ridges, cv=2, **settings).fit(X, Y)
    middle = time.perf_counter()
    ORFFRegressor(kernel, ridge=model.ridge_, **settings).fit(X, Y)
    times = (model.ridge_, time.perf_counter() - middle, middle - began)
    return (lambda Z: model.predict(Z) @ B) if task.coded else model.predict, times


def fit_exact(X: FloatArray, y: Labels) -> tuple[Any, Times]:
    model, times = exact_by_halves(kernels.Decomposable(SCALAR), X, B.T[y], RIDGES, intercept=False)
    return lambda Z: model.predict(Z) @ B, times


def work(task: Task) -> tuple[Task, Fit]:
    X, y, Z, t = data(task.folder)
    rows = np.random.default_rng([3, task.run]).permutation(TRAIN)[: task.N]
    predict, times = fit_features(task, X[rows], y[rows]) if task.D else fit_exact(X[rows], y[rows])
    predicted = predict(Z).argmax(axis=1)
    return task, Fit(float(np.mean(predicted != t)), *times, predicted)


@dataclass(frozen=True)
class Row:
    """Means over runs; error is the share of test images with a wrong class, seconds the least of the runs."""

    model: str
    N: int
    D: int | None
    error: float
    half_width: float
    runs: int
    ridges: str
    seconds: float
    seconds_with_choice: float
    bytes: int | None


def rows_of(found: dict[Task, Fit]) -> Iterator[Row]:
    for N, D in dict.fromkeys((task.N, task.D) for task in found if not task.coded):
        fits = [fit for task, fit in found.items() if (task.N, task.D) == (N, D) and not task.coded]
        cost = None if D else exact_cost(kernels.Decomposable(SCALAR).fix(784, CLASSES - 1), N, CLASSES - 1).bytes
        yield Row(
            "ORFF" if D else "exact", N, D or None, *interval([fit.error for fit in fits]), len(fits),
            " ".join(f"{fit.ridge:.2g}" for fit in fits), min(fit.seconds for fit in fits),
            min(fit.seconds_with_choice for fit in fits), cost,
        )  # fmt: skip


def tasks_of(folder: Path, runs: int, quick: bool) -> list[Task]:
    counts, sizes, at_n, at_d = ((30, 100), (100, 300), 300, 100) if quick else (COUNTS, SIZES, AT_N, AT_D)
    found = [Task(folder, at_n, at_d, 0, coded=True)]
    for run in range(runs):
        found += [Task(folder, at_n, D, run) for D in counts]
        found += [Task(folder, N, at_d, run) for N in sizes]
        found += [Task(folder, N, 0, run) for N in sizes if run == 0 or N <= 3000]
    return list(dict.fromkeys(found))


def figure(path: Path, rows: Sequence[Row], at_n: int, at_d: int) -> None:
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    for color, model, label in (("C0", "ORFF", f"ORFF, D = {at_d}"), ("C1", "exact", "exact OVK")):
        line = sorted((r for r in rows if r.model == model and r.D in (None, at_d)), key=lambda row: row.N)
        N = [row.N for row in line]
        left.plot(N, [row.seconds for row in line], "o-", color=color, label=label)
        left.plot(
            N, [row.seconds_with_choice for row in line], "o:", color=color, label=f"{label}, with cross-validation"
        )
        right.errorbar(N, [r.error for r in line], [r.half_width for r in line], fmt="o-", color=color, label=label)
    line = sorted((row for row in rows if row.D and at_n == row.N), key=lambda row: row.D or 0)
    middle.errorbar([row.D or 0 for row in line], [r.error for r in line], [r.half_width for r in line], fmt="o-",
                    color="C0", label="ORFF")  # fmt: skip
    (exact,) = (row for row in rows if row.model == "exact" and at_n == row.N)
    middle.axhline(exact.error, color="C1", label="exact OVK")
    middle.axhspan(exact.error - exact.half_width, exact.error + exact.half_width, color="C1", alpha=0.2)
    left.set(xscale="log", yscale="log", xlabel="N", ylabel="seconds of a fit")
    middle.set(xscale="log", yscale="log", xlabel="D", ylabel="test error", title=f"N = {at_n}")
    right.set(xscale="log", yscale="log", xlabel="N", ylabel="test error")
    for axis in (left, middle, right):
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    fig.suptitle("Brault et al. 2016, Figure 2: MNIST, simplex coding, Gaussian of sigma = 20")
    fig.savefig(path, dpi=110)
    plt.close(fig)


def check(found: dict[Task, Fit]) -> dict[str, Any]:
    """Whether one-hot targets with B^T B and codes with I give the same classes from the same features."""
    (coded,) = (task for task in found if task.coded)
    other = found[Task(coded.folder, coded.N, coded.D, coded.run)]
    same = float(np.mean(found[coded].predicted == other.predicted))
    return {"N": coded.N, "D": coded.D, "same_classes": same, "errors": [found[coded].error, other.error]}


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two runs, at most 300 rows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    tasks, found = tasks_of(given.data, 2 if given.quick else given.runs, given.quick), {}
    for task, fit in compute(work, tasks, 1):  # one at a time: they are timed
        found[task] = fit
        print(f"N = {task.N:<6} {f'D = {task.D}' if task.D else 'exact':<9} run {task.run}{' codes' * task.coded}: "
              f"error {fit.error:.4f}, ridge {fit.ridge:.2g}, {fit.seconds:.2f} s, with the choice "
              f"{fit.seconds_with_choice:.2f} s", flush=True)  # fmt: skip
    rows = list(rows_of({task: found[task] for task in tasks}))
    at_n, at_d = (300, 100) if given.quick else (AT_N, AT_D)
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "brault_mnist.csv", rows)
    summary = {"lengthscale": SIGMA / np.sqrt(2), "ridges": RIDGES, "train": TRAIN, "test": 10_000,
               "N_of_panel_over_D": at_n, "D_of_panels_over_N": at_d, "check": check(found),
               "rows": [asdict(row) for row in rows]}  # fmt: skip
    print(json.dumps(summary["check"]))
    (given.out / "brault_mnist.json").write_text(json.dumps(summary, indent=1) + "\n")
    figure(given.out / "brault_mnist.png", rows, at_n, at_d)


if __name__ == "__main__":
    main()
