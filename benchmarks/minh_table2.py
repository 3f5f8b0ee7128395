"""Minh (2016), Table 2: a curl-free field rebuilt from 5% of a grid, by the exact kernel and by features.

    python benchmarks/minh_table2.py [--sets 20] [--out benchmarks/results]

The field F(x, y) = (sin 4 pi x sin^2 2 pi y, sin^2 2 pi x sin 4 pi y) on 40 x 40 points of [-1, -0.4765]^2; 80 of
them, drawn anew in each run, are the training data. Curl-free Gaussian kernel with sigma = 0.2, which is a
lengthscale of 0.2 / sqrt(2), unnormalised as the paper's (k(0) = 2 / sigma^2 I); gamma_A = 1e-9 with the l of eq. 74;
no intercept.

The paper does not say what its RMSE is taken over. Here: `rmse`, over the entries (both components) of all 1600
points; `rmse_rest`, of the 1520 points that were not trained on; `rmse_vectors`, over vectors, about sqrt(2) times
the first; `relative`, |error| / |F| in Frobenius norm, as the paper's Table 1. The paper's Exact column, 0.0020 to
0.0024, is none of the first three under any reading of eq. 74 tried (with and without l,
kernel as it is or k(0) = I: `conventions_of_exact` in the JSON); the relative error comes nearest, so the fraction
of sets is given for it too.

Ten runs, as in the paper, are a toss of a coin in places: the table gives the mean over `--sets` sets of ten runs,
the standard deviation over runs (the paper's bracket), the range of the sets' means, and the fraction of sets whose
mean is at or below the paper's figure.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dorff import frequencies, kernels
from dorff.exact import ExactRidge
from dorff.features import FeatureMap, Projected
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import operator_weights
from dorff.passes import BlockSums
from dorff.solvers import Problem, solve

RUNS, TRAIN, GAMMA, SIGMA = 10, 80, 1e-9, 0.2
PAPER = {
    ("exact", 50): 0.0020, ("bounded", 50): 0.0079, ("unbounded", 50): 0.0254,
    ("exact", 100): 0.0024, ("bounded", 100): 0.0032, ("unbounded", 100): 0.0118,
}  # fmt: skip
SAMPLERS = {"iid": frequencies.IID(), "orthogonal": frequencies.Orthogonal()}
ERRORS = ("rmse", "rmse_rest", "rmse_vectors", "relative")


def field() -> tuple[FloatArray, FloatArray]:
    """The 1600 points and the field there."""
    axis = np.linspace(-1.0, -0.4765, 40)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    x, y = (2 * np.pi * points).T
    return points, np.column_stack([np.sin(2 * x) * np.sin(y) ** 2, np.sin(x) ** 2 * np.sin(2 * y)])


def kernel(measure: str) -> kernels.OperatorKernel:
    return kernels.CurlFree(kernels.Gaussian(SIGMA / np.sqrt(2)), measure)


def predict_exact(X: FloatArray, Y: FloatArray, Z: FloatArray) -> FloatArray:
    return ExactRidge.fit(kernel("trace"), X, Y, ridge=GAMMA, intercept=False).predict(Z)


def predict_features(
    X: FloatArray, Y: FloatArray, Z: FloatArray, *, measure: str, sampler: str, count: int, seed: int
) -> FloatArray:
    """By the moments, as every fit of dorff; D = `count` frequencies, m = 2D features."""
    found = SAMPLERS[sampler].draw(kernel(measure), d=2, p=2, count=count, seed=seed)
    weights = operator_weights(kernel(measure), 2 * count, (found.omega, found.log_density, None))
    features = FeatureMap(Projected.of(found, None, centre_column=False), np.zeros(2), np.ones(2))
    sums = BlockSums(features, np.zeros(2), block_rows=TRAIN)
    sums.add(X, Y)
    (solution,) = solve(Problem.of(sums.moments()[0, ""], weights, intercept=False), [GAMMA])
    return features.transform(Z) @ weights.combined(solution.h)


def errors(predicted: FloatArray, F: FloatArray, chosen: npt.NDArray[np.int64]) -> list[float]:
    """The four errors of ERRORS."""
    squared = (predicted - F) ** 2
    rest = np.delete(squared, chosen, axis=0)
    over_vectors = np.mean(np.sum(squared, axis=1))
    values = [np.mean(squared), np.mean(rest), over_vectors, np.sum(squared) / np.sum(F**2)]
    return [float(np.sqrt(value)) for value in values]


@dataclass(frozen=True)
class Row:
    """One line of the table: the means over all sets."""

    method: str
    sampler: str
    D: int
    rmse: float
    rmse_deviation: float
    rmse_rest: float
    rmse_vectors: float
    relative: float
    lowest_set: float
    highest_set: float
    paper: float | None
    sets_at_or_below: float | None
    mean_at_or_below: bool | None
    relative_sets_at_or_below: float | None


def row(method: str, sampler: str, count: int, found: FloatArray) -> Row:
    """`found` (sets, runs, 4): the errors of every run."""
    sets, relative = found[:, :, 0].mean(axis=1), found[:, :, 3].mean(axis=1)
    means = dict(zip(ERRORS, found.mean(axis=(0, 1)).tolist(), strict=True))
    paper = PAPER.get((method, count))
    return Row(
        method=method, sampler=sampler, D=count, rmse_deviation=float(found[:, :, 0].std(ddof=1)),
        lowest_set=float(sets.min()), highest_set=float(sets.max()), paper=paper,
        sets_at_or_below=None if paper is None else float(np.mean(sets <= paper)),
        mean_at_or_below=None if paper is None else means["rmse"] <= paper,
        relative_sets_at_or_below=None if paper is None else float(np.mean(relative <= paper)), **means,
    )  # fmt: skip


def table(sets: int) -> Iterator[Row]:
    points, F = field()
    for count in (50, 100):
        for method in ("exact", "bounded", "unbounded", "trace"):
            for sampler in ("",) if method == "exact" else SAMPLERS:
                found = np.empty((sets, RUNS, len(ERRORS)))
                for run in range(sets * RUNS):
                    # The same training points for every method; other ones for the other D, as in the paper.
                    chosen = np.random.default_rng([count, run]).choice(len(points), TRAIN, replace=False)
                    X, Y = points[chosen], F[chosen]
                    if method == "exact":
                        predicted = predict_exact(X, Y, points)
                    else:
                        predicted = predict_features(
                            X, Y, points, measure=method, sampler=sampler, count=count, seed=run
                        )
                    found[run // RUNS, run % RUNS] = errors(predicted, F, chosen)
                yield row(method, sampler, count, found)


def conventions(runs: int) -> dict[str, dict[str, float]]:
    """Mean errors of the exact kernel under other readings of the paper."""
    points, F = field()
    found = {}
    for name, l, factor in (  # noqa: E741 - the paper's symbol
        ("l gA", TRAIN, 1.0), ("gA", 1, 1.0), ("(u + l) gA", 1600, 1.0),
        ("l gA, k(0) = I", TRAIN, SIGMA**2 / 2), ("gA, k(0) = I", 1, SIGMA**2 / 2),
    ):  # fmt: skip
        values = []
        for run in range(runs):
            chosen = np.random.default_rng([50, run]).choice(len(points), TRAIN, replace=False)
            model = ExactRidge.fit(
                kernel("trace") * factor, points[chosen], F[chosen], ridge=GAMMA * l / TRAIN, intercept=False
            )
            values.append(errors(model.predict(points), F, chosen))
        found[name] = dict(zip(ERRORS, np.mean(values, axis=0).tolist(), strict=True))
    return found


def main() -> None:
    """Compute, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20, help="sets of ten runs (20)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    rows = []
    print(f"{'D':>4} {'method':<10} {'sampler':<11} {'rmse':>8} {'(sd)':>8} {'rest':>8} {'relative':>8} "
          f"{'sets from':>9} {'to':>8} {'paper':>7} {'sets at or below':>17} {'by relative':>12}")  # fmt: skip
    for line in table(options.sets):
        rows.append(asdict(line))
        paper = "" if line.paper is None else f"{line.paper:.4f}"
        share = "" if line.sets_at_or_below is None else f"{line.sets_at_or_below:.0%}"
        also = "" if line.relative_sets_at_or_below is None else f"{line.relative_sets_at_or_below:.0%}"
        print(f"{line.D:>4} {line.method:<10} {line.sampler:<11} {line.rmse:>8.5f} {line.rmse_deviation:>8.5f} "
              f"{line.rmse_rest:>8.5f} {line.relative:>8.5f} {line.lowest_set:>9.5f} {line.highest_set:>8.5f} "
              f"{paper:>7} {share:>17} {also:>12}", flush=True)  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    summary = {"sets": options.sets, "runs_per_set": RUNS, "train": TRAIN, "points": 1600, "gamma_A": GAMMA,
               "sigma": SIGMA, "rmse": "over the entries of all 1600 points", "rows": rows,
               "conventions_of_exact": conventions(100)}  # fmt: skip
    (options.out / "minh_table2.json").write_text(json.dumps(summary, indent=1) + "\n")
    with (options.out / "minh_table2.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
