"""Figure 3 of Brault, Heinonen & d'Alche-Buc (2016): a curl-free field in five dimensions, curl-free against not.

    python benchmarks/brault_curl5.py [--runs 3] [--out benchmarks/results] [--quick]

The field is the gradient of f(x) = phi(x)^T theta on [-1, 1]^5: phi are the random Fourier features of a Gaussian of
bandwidth 0.4 (1000 frequencies, a number the paper leaves out), theta is standard normal. No noise, as in the paper.
The kernel is Gaussian with the median of the training inputs' distances as its length-scale (about 1.8), so that
almost none of its frequencies are as high as the field's; curl-free, or the same for each output alone
(`independent`). No intercept. ORFF of D frequencies (dorff's defaults: orthogonal, of the trace measure for the
curl-free kernel) against the exact kernel. The ridge comes from RIDGES by 2-fold cross-validation of the training
rows, for every model. R2 is the mean over outputs on 2000 other points.

Every fit is done in a process whose address space is limited to 8 GiB (RLIMIT_AS): the exact curl-free model of N
points needs 8 (5 N)^2 bytes, more than that beyond N of about 6500, and at N = 8000 really ends in a MemoryError,
which is recorded. The exact independent model has N^2 numbers in each of two matrices and ends later.

`seconds` is a fit at one ridge; `seconds_with_choice` has the cross-validation in it: for ORFF it is the same one
pass, for the exact model a factor for each fold and ridge. One thread of BLAS for all.
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
from sklearn.metrics import r2_score
from tables import compute, interval, write

from dorff import ORFFRegressor, kernels
from dorff.exact import ExactRidge
from dorff.kernels.scalar import FloatArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

d, BANDWIDTH, WAVES, TEST = 5, 0.4, 1000, 2000
LIMIT = 8 << 30
RIDGES = tuple(float(ridge) for ridge in np.logspace(-11, -3, 8))
COUNTS = (50, 100, 200, 500, 1000, 2000)
AT = {"N": 2000, "D": 1000}  # of the panels over D, and over N
ORFF_SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 100_000)
EXACT_SIZES = {"curl-free": (250, 500, 1000, 2000, 4000, 8000), "independent": (250, 500, 1000, 2000, 4000, 32000)}


@dataclass(frozen=True)
class Task:
    """One fit; D = 0 is the exact model."""

    kernel: str
    N: int
    D: int
    run: int


@dataclass(frozen=True)
class Fit:
    r2: float
    ridge: float
    seconds: float
    seconds_with_choice: float
    error: str | None = None


def field(run: int, rows: int) -> tuple[FloatArray, FloatArray]:
    """Points (rows, 5) and the gradient there; the first rows are the same whatever their number."""
    rng = np.random.default_rng([5, run])
    omega, theta = rng.standard_normal((WAVES, d)) / BANDWIDTH, rng.standard_normal((2, WAVES)) / np.sqrt(WAVES)
    X = rng.uniform(-1, 1, (rows, d))
    Y = np.empty((rows, d))
    for start in range(0, rows, 1000):
        angles = X[start : start + 1000] @ omega.T
        Y[start : start + 1000] = (np.cos(angles) * theta[1] - np.sin(angles) * theta[0]) @ omega
    return X, Y


def kernel_of(name: str, lengthscale: float) -> kernels.OperatorKernel:
    scalar = kernels.Gaussian(lengthscale)
    return kernels.CurlFree(scalar) if name == "curl-free" else kernels.Decomposable(scalar)


def fit_features(task: Task, kernel: kernels.OperatorKernel, X: FloatArray, Y: FloatArray) -> tuple[Any, Any]:
    """The model, and (ridge, seconds, seconds with the choice of the ridge)."""
    settings: dict[str, Any] = {"n_features": 2 * task.D, "random_state": task.run, "intercept": False}
    ORFFRegressor(kernel, **settings).fit(X[:50], Y[:50])  # compiles
    began = time.perf_counter()
    chosen = ORFFRegressor(kernel, ridge=RIDGES, cv=2, **settings).fit(X, Y)
    middle = time.perf_counter()
    ORFFRegressor(kernel, ridge=chosen.ridge_, **settings).fit(X, Y)
    return chosen, (chosen.ridge_, time.perf_counter() - middle, middle - began)


def fit_exact(kernel: kernels.OperatorKernel, X: FloatArray, Y: FloatArray) -> tuple[Any, Any]:
    """As `fit_features`; what will not fit is tried first, so that it costs no cross-validation."""
    if exact_cost(kernel.fix(d, d), len(X), d).bytes > LIMIT:
        ExactRidge.fit(kernel, X, Y, ridge=RIDGES[-1], intercept=False)
    return exact_by_halves(kernel, X, Y, RIDGES, intercept=False)


def work(task: Task) -> tuple[Task, Fit]:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    X, Y = field(task.run, TEST + task.N)
    Z, T, X, Y = X[:TEST], Y[:TEST], X[TEST:], Y[TEST:]
    kernel = kernel_of(task.kernel, kernels.median_lengthscale(X))
    try:
        model, times = fit_features(task, kernel, X, Y) if task.D else fit_exact(kernel, X, Y)
        return task, Fit(float(r2_score(T, model.predict(Z))), *times)
    except MemoryError as error:
        return task, Fit(np.nan, np.nan, np.nan, np.nan, f"MemoryError: {error}")


@dataclass(frozen=True)
class Row:
    """Means over runs; `bytes` is what the exact fit was estimated to take."""

    model: str
    kernel: str
    N: int
    D: int | None
    r2: float
    half_width: float
    runs: int
    ridges: str
    seconds: float
    seconds_with_choice: float
    bytes: int | None
    error: str | None


def rows_of(found: dict[Task, Fit]) -> Iterator[Row]:
    for kernel, N, D in dict.fromkeys((task.kernel, task.N, task.D) for task in found):
        fits = [fit for task, fit in found.items() if (task.kernel, task.N, task.D) == (kernel, N, D)]
        seconds = [np.mean([getattr(fit, name) for fit in fits]) for name in ("seconds", "seconds_with_choice")]
        estimate = None if D else exact_cost(kernel_of(kernel, 1.0).fix(d, d), N, d).bytes
        yield Row(
            "ORFF" if D else "exact", kernel, N, D or None, *interval([fit.r2 for fit in fits]), len(fits),
            " ".join(f"{fit.ridge:g}" for fit in fits), float(seconds[0]), float(seconds[1]), estimate, fits[0].error,
        )  # fmt: skip


def tasks_of(runs: int, quick: bool) -> list[Task]:
    """The longest fits are done once."""
    counts, sizes, found = COUNTS, ORFF_SIZES, []
    for kernel in ("curl-free", "independent"):
        exact = EXACT_SIZES[kernel]
        if quick:
            counts, sizes, exact = (50, 200), (250, 500), (250, 500, exact[-1])
        at_n, at_d = (500, 200) if quick else (AT["N"], AT["D"])
        for run in range(runs):
            found += [Task(kernel, at_n, D, run) for D in counts]
            found += [Task(kernel, N, at_d, run) for N in sizes if run == 0 or N <= 16000]
            found += [Task(kernel, N, 0, run) for N in exact if run == 0 or N <= 2000]
    return list(dict.fromkeys(found))


def figure(path: Path, rows: Sequence[Row], at_n: int, at_d: int) -> None:
    """R2 and seconds, over D and over N."""
    fig, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for color, kernel in enumerate(("curl-free", "independent")):
        for model, marker, style in (("ORFF", "o", "-"), ("exact", "s", "--")):
            lines = [row for row in rows if (row.kernel, row.model) == (kernel, model) and row.error is None]
            drawn = {"label": f"{kernel}, {model}", "color": f"C{color}", "linestyle": style}
            over_n = sorted((row for row in lines if row.D in (None, at_d)), key=lambda row: row.N)
            _lines(axes[:, 1], [row.N for row in over_n], over_n, marker, drawn)
            if model == "ORFF":
                over_d = sorted((row for row in lines if at_n == row.N), key=lambda row: row.D or 0)
                _lines(axes[:, 0], [row.D or 0 for row in over_d], over_d, marker, drawn)
            else:
                (exact,) = (row for row in lines if at_n == row.N)
                axes[0, 0].axhline(exact.r2, **drawn)
                axes[1, 0].axhline(exact.seconds, **drawn)
    for row in rows:
        if row.error:
            number = ("curl-free", "independent").index(row.kernel)
            axes[1, 1].axvline(row.N, color=f"C{number}", linestyle=":", label=f"{row.kernel}, exact: beyond 8 GiB")
    for (i, j), axis in np.ndenumerate(axes):
        axis.set(xscale="log", xlabel="DN"[j], ylabel=("R2 on the test points", "seconds of a fit")[i],
                 title=(f"N = {at_n}", f"ORFF: D = {at_d}")[j])  # fmt: skip
        axis.grid(alpha=0.3)
        if i == 1:
            axis.set_yscale("log")
    axes[0, 0].set_ylim(bottom=max(axes[0, 0].get_ylim()[0], -0.1))
    axes[0, 1].set_ylim(bottom=max(axes[0, 1].get_ylim()[0], -0.1))
    axes[0, 0].legend(fontsize=8)
    axes[1, 1].legend(fontsize=8)
    fig.suptitle("Brault et al. 2016, Figure 3: a curl-free field in R^5")
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _lines(axes: Any, x: list[int], rows: Sequence[Row], marker: str, drawn: dict[str, Any]) -> None:
    axes[0].errorbar(x, [row.r2 for row in rows], [row.half_width for row in rows], marker=marker, **drawn)
    axes[1].plot(x, [row.seconds for row in rows], marker=marker, **drawn)


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small N and D, two runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    tasks, found = tasks_of(2 if given.quick else given.runs, given.quick), {}
    for task, fit in compute(work, tasks, 1):  # one at a time: they are timed
        found[task] = fit
        print(f"{task.kernel:<12} N = {task.N:<6} {f'D = {task.D}' if task.D else 'exact':<9} run {task.run}: "
              + (fit.error or f"R2 {fit.r2:.3f}, ridge {fit.ridge:g}, {fit.seconds:.2f} s, "
                 f"with the choice {fit.seconds_with_choice:.2f} s"), flush=True)  # fmt: skip
    rows = list(rows_of({task: found[task] for task in tasks}))
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "brault_curl5.csv", rows)
    at_n, at_d = (500, 200) if given.quick else (AT["N"], AT["D"])
    summary = {"bandwidth": BANDWIDTH, "waves": WAVES, "test_points": TEST, "limit_bytes": LIMIT, "ridges": RIDGES,
               "N_of_panels_over_D": at_n, "D_of_panels_over_N": at_d, "conclusions": conclusions(rows, at_n),
               "rows": [{k: (None if v != v else v) for k, v in asdict(row).items()} for row in rows]}  # fmt: skip
    (given.out / "brault_curl5.json").write_text(json.dumps(summary, indent=1) + "\n")
    figure(given.out / "brault_curl5.png", rows, at_n, at_d)


def conclusions(rows: Sequence[Row], at_n: int) -> dict[str, Any]:
    """Where curl-free is ahead, and where the exact model ended."""
    pairs = [(row, other) for row in rows for other in rows if row.kernel == "curl-free" and row.error is None
             and (other.kernel, other.N, other.D) == ("independent", row.N, row.D)]  # fmt: skip
    behind = [f"N = {row.N}, D = {row.D}" for row, other in pairs if not row.r2 > other.r2]
    exact = {row.N: row for row in rows if row.kernel == "curl-free" and row.model == "exact"}
    orff = [row for row in rows if row.kernel == "curl-free" and row.model == "ORFF"]
    best = max((row for row in orff if at_n == row.N), key=lambda row: row.r2)
    return {
        "curl_free_beats_independent": f"{len(pairs) - len(behind)} of {len(pairs)} pairs of models",
        "not_at": behind, "exact_ended": {f"{r.kernel} N = {r.N}": r.error for r in rows if r.error},
        "largest_exact_r2": max((r.r2, r.N) for r in exact.values() if r.error is None),
        "largest_orff_r2": max((r.r2, r.N, r.D) for r in orff),
        f"exact_and_best_orff_at_N_{at_n}": (exact[at_n].r2, best.r2, best.D),
    }  # fmt: skip


if __name__ == "__main__":
    main()
