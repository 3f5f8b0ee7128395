"""Does a structured output matrix help? Identity, covariance, graph and learned A on two real sets, 5-fold R2.

    python benchmarks/structure.py --data DIR [--repeats 4] [--out benchmarks/results]

`atp1d` (337 rows, 411 inputs, 6 prices of flights; folds of rows, dealt `--repeats` times) and six pollutants of six
Beijing stations (12 inputs: weather, wind, hour and season; rows with all six measured; folds of whole weeks), the
latter with all rows and with 600 of them. Inputs and targets are standardised column by column. Gaussian kernel, its
length-scale the median distance; orthogonal features, m = 1024. Each fold is scored by a fit whose ridge (and
learned matrix) come from 4-fold cross-validation within the other folds: all of it from one pass's moments.

The graph's weights are the squares of the targets' correlations in the training folds, and A = pinv(L + 0.1 I) scaled
to trace p, so that the ridges mean the same for all (a covariance of standardised targets has that trace already).

R2 is the mean over targets of 1 - squared error / squares about the mean, on the held-out fold. Intervals are of
Student over folds; the difference to identity is of pairs of the same fold. With folds that overlap in training rows
such intervals are a little narrow.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tables
from datasets import FloatArray, standardised
from matplotlib import pyplot as plt

from dorff import frequencies, kernels
from dorff.features import FeatureMap, Recipe
from dorff.moments import Moments, by_fold, pooled
from dorff.passes import BlockSums
from dorff.solvers import Setting, choose, squared_error, target_covariance

COUNT, FOLDS = 1024, 5
RIDGES = [float(ridge) for ridge in np.logspace(-7, 0, 15)]
POLLUTANTS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
WINDS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
OUTPUTS = ("identity", "covariance", "graph", "learned, trace", "learned, frobenius")


@dataclass(frozen=True)
class Score:
    """One fold of one dealing."""

    data: str
    output: str
    repeat: int
    fold: int
    rows: int
    r2: float
    ridge: float
    rank: int


def atp1d(folder: Path) -> tuple[FloatArray, FloatArray]:
    lines = (folder / "multioutput" / "atp1d.arff").read_text(encoding="ascii").splitlines()
    body = lines[[line.lower() for line in lines].index("@data") + 1 :]
    table = np.array([[float(value) for value in line.split(",")] for line in body if line.strip()])
    return table[:, :-6], table[:, -6:]


def beijing(folder: Path) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Inputs, targets and the number of each row's week, of the rows that have everything."""
    rows = []
    for path in sorted((folder / "beijing_air").glob("*.csv.gz")):
        with gzip.open(path, "rt", newline="") as file:
            for line in csv.DictReader(file):
                values = [line[name] for name in (*POLLUTANTS, "TEMP", "PRES", "DEWP", "RAIN", "WSPM")]
                if "NA" in values or line["wd"] not in WINDS:
                    continue
                angles = (
                    WINDS.index(line["wd"]) / 16, int(line["hour"]) / 24,
                    (int(line["month"]) - 1 + int(line["day"]) / 31) / 12,
                )  # fmt: skip
                turns = [f(2 * np.pi * angle) for angle in angles for f in (np.sin, np.cos)]
                year = float(line["year"]) + angles[2]
                rows.append([*map(float, values), *turns, year, (int(line["No"]) - 1) // 168])
    table = np.array(rows)
    return table[:, 6:18], table[:, :6], table[:, 18]


def kernel(output: str, scalar: kernels.Gaussian, training: Sequence[Moments], p: int) -> kernels.OperatorKernel:
    if output == "graph":
        covariance = target_covariance(training)
        correlation = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        A = kernels.Graph(correlation**2 - np.eye(p) * np.diag(correlation) ** 2, offset=0.1).matrix(p)
        return kernels.Decomposable(scalar, A * p / np.trace(A))
    if output.startswith("learned"):
        return kernels.Decomposable(scalar, kernels.Learned(output.split(", ")[1]))
    return kernels.Decomposable(scalar, output)


def r2(fold: Sequence[Moments], W: FloatArray, bias: FloatArray) -> float:
    (moments,) = fold
    corner = moments.corner
    about_mean = np.diag(corner)[1:] - corner[0, 1:] ** 2 / corner[0, 0]
    return float(np.mean(1 - squared_error(moments, W, bias) / about_mean))


def scores(name: str, X: FloatArray, Y: FloatArray, fold_of: FloatArray, repeat: int) -> Iterator[Score]:
    """Every output on every fold, from one pass."""
    scalar = kernels.Gaussian(kernels.median_lengthscale(X[np.random.default_rng(0).permutation(len(X))]))
    d, p = X.shape[1], Y.shape[1]
    identity = kernels.Decomposable(scalar).fix(d, p)
    drawn = Recipe(identity, frequencies.Orthogonal(), d, p, COUNT).draw(seed=repeat)
    sums = BlockSums(FeatureMap(drawn.phi, np.zeros(d), np.ones(d)), Y.mean(axis=0), block_rows=1024)
    for fold in range(FOLDS):
        sums.add(X[fold_of == fold], Y[fold_of == fold], fold)
    folds = by_fold(sums.moments())
    for held, fold in enumerate(folds):
        training = [other for number, other in enumerate(folds) if number != held]
        for output in OUTPUTS:
            chosen = kernel(output, scalar, pooled(training), p)
            setting = Setting(chosen, d, COUNT, drawn.density, standardize=False, intercept=True)
            fit = choose(training, [setting], RIDGES).fit
            rows = sum(part.n for part in fold)
            yield Score(name, output, repeat, held, rows, r2(fold, fit.W, fit.bias), fit.solution.ridge,
                        fit.weights.shape[1])  # fmt: skip


def dealt(rng: np.random.Generator, n: int) -> FloatArray:
    return rng.permutation(np.arange(n) % FOLDS)


def every(folder: Path, repeats: int) -> Iterator[Score]:
    X, Y = (standardised(part) for part in atp1d(folder))
    for repeat in range(repeats):
        yield from scores("atp1d", X, Y, dealt(np.random.default_rng(repeat), len(X)), repeat)
    X, Y, week = beijing(folder)
    X, Y = standardised(X), standardised(Y)
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        of_week = dealt(rng, int(week.max()) + 1)
        some = rng.choice(len(X), 600, replace=False)
        yield from scores("Beijing, 600 rows", X[some], Y[some], of_week[week[some].astype(int)], repeat)
        if repeat == 0:
            yield from scores("Beijing", X, Y, of_week[week.astype(int)], repeat)


def summary(found: Sequence[Score]) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    for data in dict.fromkeys(score.data for score in found):
        plain = {(s.repeat, s.fold): s.r2 for s in found if (s.data, s.output) == (data, "identity")}
        for output in OUTPUTS:
            mine = [s for s in found if (s.data, s.output) == (data, output)]
            mean, half = tables.interval([s.r2 for s in mine])
            gain, within = tables.interval([s.r2 - plain[s.repeat, s.fold] for s in mine])
            lines.append({
                "data": data, "output": output, "folds": len(mine), "r2": mean, "interval": half,
                "difference": gain, "difference_interval": within, "helps": bool(gain > within > 0),
                "harms": bool(gain < -within < 0), "rank": float(np.mean([s.rank for s in mine])),
            })  # fmt: skip
    return lines


def picture(lines: Sequence[dict[str, object]], path: Path) -> None:
    names = list(dict.fromkeys(line["data"] for line in lines))
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.4), constrained_layout=True)
    for axis, name in zip(axes, names, strict=True):
        mine = [line for line in lines if line["data"] == name and line["output"] != "identity"]
        axis.errorbar([line["difference"] for line in mine], range(len(mine)), fmt="o", capsize=4,
                      xerr=[line["difference_interval"] for line in mine])  # fmt: skip
        axis.axvline(0.0, color="0.6", lw=1)
        axis.set_yticks(range(len(mine)), [str(line["output"]) for line in mine])
        axis.set_ylim(len(mine) - 0.5, -0.5)
        plain = next(line for line in lines if line["data"] == name and line["output"] == "identity")
        axis.set_title(f"{name}: identity has R2 = {plain['r2']:.3f}", fontsize=10)
        axis.set_xlabel("R2 less that of identity (95% interval)")
        axis.locator_params(axis="x", nbins=4)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Compute, print and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds multioutput and beijing_air")
    parser.add_argument("--repeats", type=int, default=4, help="dealings of rows to folds (4)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    found = []
    for score in every(options.data, options.repeats):
        found.append(score)
        print(f"{score.data:<18} {score.output:<19} repeat {score.repeat} fold {score.fold}: r2 {score.r2:.4f}  "
              f"ridge {score.ridge:.1e}  rank {score.rank}", flush=True)  # fmt: skip
    lines = summary(found)
    for line in lines:
        print(f"{line['data']:<18} {line['output']:<19} r2 {line['r2']:.4f} +- {line['interval']:.4f}   against "
              f"identity {line['difference']:+.4f} +- {line['difference_interval']:.4f}")  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    tables.write(options.out / "structure.csv", found)
    body = {"features": COUNT, "ridges": RIDGES, "summary": lines, "folds": [asdict(score) for score in found]}
    (options.out / "structure.json").write_text(json.dumps(body, indent=1) + "\n")
    picture(lines, options.out / "structure.png")


if __name__ == "__main__":
    main()
