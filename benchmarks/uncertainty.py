"""Powerplant and Beijing with tuned length-scales: R2 and RMSE, and what the bands of 50, 80 and 95% cover.

    python benchmarks/uncertainty.py --data DIR [--counts 2048 8192] [--splits 5] [--out benchmarks/results]

`DIR/powerplant/ccpp.csv` (4 inputs, 1 target) and `DIR/beijing_air/*.csv.gz` (12 inputs, six pollutants of six
stations; hours with everything measured). A random fifth of the rows is the test set. All of dorff is its commands:
`ingest`, `fit` (`lengthscale: {tune: each}`, inputs and targets standardised, ridge by evidence, `conformal: true`
with a fifth of the training rows held out) and `score --coverage`. Beside it, on the same split: scikit-learn's
gradient boosting (its defaults; the histogram one for Beijing), and its exact Gaussian process with a length-scale
for each input on `--subset` training rows.

Coverage is of single test values by bands with noise in them: as the Gaussian posterior has it, and after the
conformal correction. `error` is two standard errors of a share of so many test rows (of all entries, six to a row,
whose errors go together: rows are counted, not entries).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from matplotlib import pyplot as plt
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from structure import beijing
from tables import read, write

FloatArray = npt.NDArray[np.float64]
LEVELS = (0.5, 0.8, 0.95)
BOOSTING, EXACT = 0, -1  # in place of a number of features
Key = tuple[str, int, int]  # data, split, features


@dataclass(frozen=True)
class Row:
    """One model on one split; `plain` and `conformal` (three levels) are shares of test values inside the bands."""

    data: str
    split: int
    model: str
    m: int
    train: int
    test: int
    r2: float
    rmse: float
    seconds: float
    plain_50: float | None = None
    plain_80: float | None = None
    plain_95: float | None = None
    conformal_50: float | None = None
    conformal_80: float | None = None
    conformal_95: float | None = None


def powerplant(folder: Path) -> tuple[FloatArray, FloatArray]:
    table = np.loadtxt(folder / "powerplant" / "ccpp.csv", delimiter=",", skiprows=1)
    return table[:, :4], table[:, 4:]


def dorff(*arguments: object) -> Any:
    """What a command says as JSON; its messages go to the terminal."""
    command = [str(Path(sys.executable).with_name("dorff")), *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def r2_of(Y: FloatArray, values: FloatArray) -> tuple[float, float]:
    """R2, the mean over targets, and RMSE of all entries after dividing targets by their deviation."""
    error, spread = np.mean((Y - values) ** 2, axis=0), Y.var(axis=0)
    return float(np.mean(1 - error / spread)), float(np.sqrt(np.mean(error / spread)))


def by_dorff(home: Path, name: str, split: int, count: int, Y: FloatArray, train: int) -> Row:
    job = {
        "data": {"store": "train.zarr"},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": {"tune": "each"}}},
        "features": {"count": count, "sampler": {"type": "orthogonal"}, "seed": split},
        "solve": {
            "standardize": True, "ridge": {"from": 1e-7, "to": 1e-2, "count": 8}, "select": "evidence",
            "conformal": True, "folds": {"count": 5, "by": "rows"},
        },
        "state": f"state-{count}", "model": f"model-{count}",
    }  # fmt: skip
    path = home / f"job-{count}.yaml"
    path.write_text(yaml.safe_dump(job))
    began = time.perf_counter()
    dorff("fit", path)
    seconds = time.perf_counter() - began
    found = dorff("score", home / f"model-{count}", home / "test.zarr", "--coverage")
    each = list(found["per_output"].values())
    spread = Y.std(axis=0)
    scaled = float(np.sqrt(np.mean([(one["rmse"] / s) ** 2 for one, s in zip(each, spread, strict=True)])))
    shares = {
        f"{kind}_{round(100 * level)}": found["coverage"][f"{level:g}"][kind]
        for kind in ("plain", "conformal") for level in LEVELS
    }  # fmt: skip
    r2 = float(np.mean([one["r2"] for one in each]))
    return Row(name, split, "dorff", count, train, len(Y), r2, scaled, seconds, **shares)


def by_boosting(name: str, split: int, X: FloatArray, Y: FloatArray, Xt: FloatArray, Yt: FloatArray) -> Row:
    began = time.perf_counter()
    kind = GradientBoostingRegressor if len(X) < 20000 else HistGradientBoostingRegressor
    values = np.column_stack([kind(random_state=split).fit(X, y).predict(Xt) for y in Y.T])
    return Row(name, split, kind.__name__, BOOSTING, len(X), len(Xt), *r2_of(Yt, values), time.perf_counter() - began)


def by_exact(
    name: str, split: int, X: FloatArray, Y: FloatArray, Xt: FloatArray, Yt: FloatArray, subset: int
) -> Row:  # fmt: skip
    """Exact Gaussian processes, one a target, on the first rows; inputs and targets standardised."""
    X, Y = X[:subset], Y[:subset]
    mean, scale = X.mean(axis=0), X.std(axis=0)
    began = time.perf_counter()
    values, inside = [], []
    for y, yt in zip(Y.T, Yt.T, strict=True):
        kernel = ConstantKernel(1.0) * RBF(np.ones(X.shape[1]), (1e-2, 1e3)) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=split).fit((X - mean) / scale, y)
        found, std = model.predict((Xt - mean) / scale, return_std=True)
        values.append(found)
        inside.append([np.mean(np.abs(yt - found) <= normal(level) * std) for level in LEVELS])
    plain = dict(zip(("plain_50", "plain_80", "plain_95"), np.mean(inside, axis=0).tolist(), strict=True))
    seconds = time.perf_counter() - began
    scores = r2_of(Yt, np.column_stack(values))
    return Row(name, split, "exact GP", EXACT, subset, len(Xt), *scores, seconds, **plain)


def normal(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(0.5 + level / 2))


def split_rows(
    name: str, X: FloatArray, Y: FloatArray, split: int, options: argparse.Namespace, done: set[Key]
) -> Iterator[Row]:  # fmt: skip
    """Every model on one split, but for those that are done."""
    order = np.random.default_rng(split).permutation(len(X))
    test, train = order[: len(X) // 5], order[len(X) // 5 :]
    counts = [m for m in options.counts if (name, split, m) not in done]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for part, chosen in (("train", train), ("test", test)) if counts else ():
            np.savez(home / f"{part}.npz", x=X[chosen], y=Y[chosen])
            dorff("ingest", home / f"{part}.npz", home / f"{part}.zarr", "--inputs", "x", "--targets", "y")
        for m in counts:
            yield by_dorff(home, name, split, m, Y[test], len(train))
    if (name, split, BOOSTING) not in done:
        yield by_boosting(name, split, X[train], Y[train], X[test], Y[test])
    if (name, split, EXACT) not in done:
        yield by_exact(name, split, X[train], Y[train], X[test], Y[test], options.subset)


def write_all(out: Path, rows: list[Row]) -> None:
    """What there is so far: a run that is stopped goes on from here."""
    out.mkdir(parents=True, exist_ok=True)
    write(out / "uncertainty.csv", rows)
    errors = {
        row.data: {f"{level:g}": 2 * float(np.sqrt(level * (1 - level) / row.test)) for level in LEVELS} for row in rows
    }
    text = json.dumps({"levels": LEVELS, "error": errors, "rows": [asdict(row) for row in rows]}, indent=1)
    (out / "uncertainty.json").write_text(text + "\n")
    figure(out / "uncertainty.png", rows)


def figure(path: Path, rows: list[Row]) -> None:
    """Coverage asked for and found, as it comes and corrected."""
    names = list(dict.fromkeys(row.data for row in rows))
    drawn, axes = plt.subplots(1, len(names), figsize=(5 * len(names), 4.5), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        mine = [row for row in rows if row.data == name and row.model == "dorff"]
        for kind, marker in (("plain", "o"), ("conformal", "s")):
            for m in sorted({row.m for row in mine}):
                shares = [
                    np.mean([getattr(row, f"{kind}_{round(100 * level)}") for row in mine if row.m == m])
                    for level in LEVELS
                ]
                axis.plot(LEVELS, shares, marker, fillstyle="none", label=f"{kind}, m = {m}")
        axis.plot([0.4, 1], [0.4, 1], color="grey", lw=0.8)
        axis.set(title=name, xlabel="level of the band", ylabel="share of test values inside")
        axis.legend()
    drawn.tight_layout()
    drawn.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--counts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--splits", type=int, default=5, help="of Powerplant; Beijing has --beijing")
    parser.add_argument("--beijing", type=int, default=1)
    parser.add_argument("--subset", type=int, default=1500)
    options = parser.parse_args()
    rows: list[Row] = read(options.out / "uncertainty.csv", Row)
    X, Y, _ = beijing(options.data)
    runs = [("Powerplant", *powerplant(options.data), split) for split in range(options.splits)]
    runs += [("Beijing", X, Y, split) for split in range(options.beijing)]
    for name, X, Y, split in runs:
        done = {(row.data, row.split, row.m) for row in rows}
        for row in split_rows(name, X, Y, split, options, done):
            print(row, flush=True)
            rows.append(row)
            write_all(options.out, rows)


if __name__ == "__main__":
    main()
