"""10^5 rows from R^20 to R^4, after Brault, Heinonen & d'Alche-Buc (2016), section 5.2: features against exact.

    python benchmarks/brault_many_rows.py [--runs 3] [--out benchmarks/results] [--quick]

The paper takes the data from Audiffren & Kadri (2013) and prints no generator; we have neither that paper nor the
supplement, so these data are only of that kind and size: x ~ N(0, I_20), y = sum_j k0(x, c_j) A^(1/2) u_j + noise, a
function of the space of the kernel k0 A: 200 centres c_j and u_j standard normal, k0 Gaussian of length-scale 2.5, A
(4, 4) of unit diagonal and correlations 0.8^|i - j|, f scaled to unit variance, noise of deviation 0.3. The models do
not know k0 or A: theirs is a Gaussian of the median distance (about 6.2) times the covariance of the training targets,
the ridge one of RIDGES by 2-fold cross-validation, a free intercept. `error` is the mean squared error on 5000 other
points against f without noise, which has variance 1.

Each fit is in a process whose address space is limited to 8 GiB. The exact model has the structure of k0 A to help it:
a factor of N x N for each of the four eigenvalues of A, and two N x N matrices of memory. It is fitted up to N = 10^4
and tried at 3 x 10^4, where it ends in a MemoryError; 10^5 rows would need 160 GB. One BLAS thread for all.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from exact_cost import exact_cost
from halves import exact_by_halves
from tables import compute, interval, write

from dorff import ORFFRegressor, kernels
from dorff.exact import ExactRidge
from dorff.kernels.scalar import FloatArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

d, p, CENTRES, NOISE, TEST = 20, 4, 200, 0.3, 5000
TRUE = kernels.Gaussian(2.5)
LIMIT = 8 << 30
RIDGES = tuple(float(ridge) for ridge in 10.0 ** np.arange(-7, 0))
COUNTS = (100, 300, 1000)
SIZES = (1000, 3000, 10_000, 30_000, 100_000)
EXACT_SIZES = (1000, 3000, 10_000, 30_000)


@dataclass(frozen=True)
class Task:
    """One fit; D = 0 is the exact model."""

    N: int
    D: int
    run: int


@dataclass(frozen=True)
class Fit:
    error: float
    ridge: float
    seconds: float
    seconds_with_choice: float
    failed: str | None = None


def data(run: int, rows: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """X (rows, 20), f there (rows, 4) and y; the first rows are the same whatever their number."""
    rng = np.random.default_rng([6, run])
    A = 0.8 ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    values, vectors = np.linalg.eigh(A)
    centres, u = rng.standard_normal((CENTRES, d)), rng.standard_normal((CENTRES, p))
    weights = u @ (vectors * np.sqrt(values)) @ vectors.T
    probe = TRUE.gram(rng.standard_normal((5000, d)), centres) @ weights
    mean, scale = probe.mean(axis=0), probe.std()
    drawn = rng.standard_normal((rows, d + p))
    X = np.ascontiguousarray(drawn[:, :d])
    f = np.concatenate([TRUE.gram(block, centres) @ weights for block in np.array_split(X, 1 + rows // 5000)])
    f = (f - mean) / scale
    return X, f, f + NOISE * drawn[:, d:]


def fit_features(task: Task, kernel: kernels.OperatorKernel, X: FloatArray, Y: FloatArray) -> tuple[Any, Any]:
    """The model, and (ridge, seconds, seconds with the choice of the ridge)."""
    settings: dict[str, Any] = {"n_features": 2 * task.D, "random_state": task.run}
    ORFFRegressor(kernel, **settings).fit(X[:50], Y[:50])  # compiles
    began = time.perf_counter()
    model = ORFFRegressor(kernel, ridge=RIDGES, cv=2, **settings).fit(X, Y)
    middle = time.perf_counter()
    ORFFRegressor(kernel, ridge=model.ridge_, **settings).fit(X, Y)
    return model, (model.ridge_, time.perf_counter() - middle, middle - began)


def fit_exact(kernel: kernels.OperatorKernel, X: FloatArray, Y: FloatArray) -> tuple[Any, Any]:
    """As `fit_features`; what will not fit is tried first, so that it costs no cross-validation."""
    if exact_cost(kernel.fix(d, p, np.eye(p)), len(X), p).bytes > LIMIT:
        ExactRidge.fit(kernel, X, Y, ridge=RIDGES[-1])
    return exact_by_halves(kernel, X, Y, RIDGES, intercept=True)


def work(task: Task) -> tuple[Task, Fit]:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    X, f, Y = data(task.run, TEST + task.N)
    Z, T, X, Y = X[:TEST], f[:TEST], X[TEST:], Y[TEST:]
    kernel = kernels.Decomposable(kernels.Gaussian(kernels.median_lengthscale(X)), "covariance")
    try:
        model, times = fit_features(task, kernel, X, Y) if task.D else fit_exact(kernel, X, Y)
        return task, Fit(float(np.mean((model.predict(Z) - T) ** 2)), *times)
    except MemoryError as error:
        return task, Fit(np.nan, np.nan, np.nan, np.nan, f"MemoryError: {error}")


@dataclass(frozen=True)
class Row:
    """Means over runs, `seconds` the least of the runs; `bytes` is what the exact fit was estimated to take."""

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
    failed: str | None


def rows_of(found: dict[Task, Fit]) -> Iterator[Row]:
    fixed = kernels.Decomposable(TRUE).fix(d, p)
    for N, D in dict.fromkeys((task.N, task.D) for task in found):
        fits = [fit for task, fit in found.items() if (task.N, task.D) == (N, D)]
        yield Row(
            "ORFF" if D else "exact", N, D or None, *interval([fit.error for fit in fits]), len(fits),
            " ".join(f"{fit.ridge:g}" for fit in fits), min(fit.seconds for fit in fits),
            min(fit.seconds_with_choice for fit in fits), None if D else exact_cost(fixed, N, p).bytes, fits[0].failed,
        )  # fmt: skip


def tasks_of(runs: int, quick: bool) -> list[Task]:
    """The exact model is fitted once where it takes minutes."""
    counts, sizes, exact = ((30, 100), (300, 1000), (300, 30_000)) if quick else (COUNTS, SIZES, EXACT_SIZES)
    found = []
    for run in range(runs):
        found += [Task(N, D, run) for N in sizes for D in counts]
        found += [Task(N, 0, run) for N in exact if run == 0 or N <= 3000]
    return found


def figure(path: Path, rows: Sequence[Row]) -> None:
    fig, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    groups = [("ORFF", D) for D in sorted({row.D for row in rows if row.D})] + [("exact", None)]
    for number, (model, D) in enumerate(groups):
        line = sorted((r for r in rows if (r.model, r.D) == (model, D) and not r.failed), key=lambda row: row.N)
        N, drawn = [row.N for row in line], {"color": f"C{number}", "label": f"ORFF, D = {D}" if D else "exact"}
        axes[0].errorbar(N, [row.error for row in line], [row.half_width for row in line], marker="o", **drawn)
        axes[1].plot(N, [row.seconds for row in line], "o-", **drawn)
        axes[1].plot(N, [row.seconds_with_choice for row in line], "o:", color=f"C{number}")
        for row in rows:
            if row.failed and row.model == model:
                axes[1].axvline(row.N, color=f"C{number}", linestyle="--", label="exact: beyond 8 GiB")
    axes[0].set(xscale="log", yscale="log", xlabel="N", ylabel="mean squared error (f has variance 1)")
    axes[1].set(
        xscale="log", yscale="log", xlabel="N", ylabel="seconds of a fit", title="dotted: with cross-validation"
    )
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    fig.suptitle("R^20 to R^4: features against the exact kernel")
    fig.savefig(path, dpi=110)
    plt.close(fig)


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two runs of at most 1000 rows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    tasks, found = tasks_of(2 if given.quick else given.runs, given.quick), {}
    for task, fit in compute(work, tasks, 1):  # one at a time: they are timed
        found[task] = fit
        print(f"N = {task.N:<6} {f'D = {task.D}' if task.D else 'exact':<9} run {task.run}: "
              + (fit.failed or f"error {fit.error:.4f}, ridge {fit.ridge:g}, {fit.seconds:.2f} s, with the choice "
                 f"{fit.seconds_with_choice:.2f} s"), flush=True)  # fmt: skip
    rows = list(rows_of({task: found[task] for task in tasks}))
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "brault_many_rows.csv", rows)
    summary = {"d": d, "p": p, "centres": CENTRES, "lengthscale": TRUE.lengthscale, "noise": NOISE,
               "limit_bytes": LIMIT, "ridges": RIDGES, "test_points": TEST,
               "rows": [{k: (None if v != v else v) for k, v in asdict(row).items()} for row in rows]}  # fmt: skip
    (given.out / "brault_many_rows.json").write_text(json.dumps(summary, indent=1) + "\n")
    figure(given.out / "brault_many_rows.png", rows)


if __name__ == "__main__":
    main()
