"""Bare estimators against the best of a wide grid and against other models, on held-out folds of many tables.

    python benchmarks/defaults.py --data DIR [--only NAME ...] [--rows 2000] [--splits 3] [--out benchmarks/results]

`bare` is `ORFFRegressor()`, with `cv=5` where there are groups. `grid` is the best of
length-scales (isotropic, in standard deviations of the inputs) times ridges by k-fold inside each training part: of
the same folds as the test, rows, blocks of rows in order or groups. Others have their usual settings, the ridge of
`nystroem` and of `linear` chosen by scikit-learn. At most `--rows` rows of each table, evenly spread; the score is R2,
the mean of outputs (pooled for fields) over `--splits` test folds, beside it the worst of these folds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import datasets as tables
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from dorff import ORFFRegressor, kernels

FloatArray = npt.NDArray[np.float64]
Table = tuple[FloatArray, FloatArray, Any]  # X, Y and how rows are held out: "rows", "blocks" or their groups
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
RIDGES = [10.0**power for power in range(-12, 3)]


def wandering(seed: int, *, noise: float, n: int = 2000) -> Table:
    rng = np.random.default_rng(seed)
    X, kept = np.cumsum(0.1 * rng.normal(size=(n, 3)), axis=0), np.zeros(n)
    for row in range(1, n):
        kept[row] = 0.97 * kept[row - 1] + 0.24 * rng.normal()
    return X, (np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1]) + noise * kept)[:, None], "blocks"


def made() -> dict[str, Callable[[], Table]]:
    """Tables that scikit-learn ships or makes, and some that are hard."""
    rng = np.random.default_rng(0)

    def smooth(X: FloatArray, noise: float = 0.3) -> FloatArray:
        return (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=len(X)))[:, None]

    def clustered() -> Table:
        X = rng.normal(size=(20, 3))[rng.integers(0, 20, 2000)] + 0.05 * rng.normal(size=(2000, 3))
        return X, smooth(X), "rows"

    def outliers() -> Table:
        X = rng.normal(size=(2000, 3))
        Y = smooth(X)
        X[::50] *= 30
        return X, Y, "rows"

    def repeated() -> Table:
        X = rng.normal(size=(400, 3))[rng.permutation(np.repeat(np.arange(400), 5))]
        return X, smooth(X), "rows"

    def series() -> Table:
        t = np.arange(2000.0)
        X = np.column_stack([np.sin(t / 24 * 2 * np.pi), np.cos(t / 24 * 2 * np.pi), t / 2000])
        return X, (X[:, 0] * X[:, 1] + X[:, 2] + 0.2 * rng.normal(size=2000))[:, None], "blocks"

    def scales() -> Table:
        X = rng.normal(size=(2000, 4))
        return X * [1.0, 100.0, 0.01, 10.0], smooth(X), "rows"

    def constant() -> Table:
        X = rng.normal(size=(1500, 3))
        return np.column_stack([X, np.full(1500, 7.0)]), smooth(X), "rows"

    def friedman(number: int) -> Table:
        X, y = getattr(tables, f"make_friedman{number}")(2000, noise=0.5 if number == 1 else 0.05, random_state=0)
        return X, y[:, None], "rows"

    def diabetes() -> Table:
        X, y = tables.load_diabetes(return_X_y=True)
        return X, y[:, None], "rows"

    def linnerud() -> Table:
        X, Y = tables.load_linnerud(return_X_y=True)
        return X, Y, "rows"

    return {
        "diabetes": diabetes, "linnerud": linnerud, **{f"friedman{k}": lambda k=k: friedman(k) for k in (1, 2, 3)},
        "clustered": clustered, "outliers": outliers, "repeated": repeated, "series": series, "scales": scales,
        "constant": constant, "walk": lambda: wandering(1, noise=1.0),
        "walk, little noise": lambda: wandering(2, noise=0.1),
    }  # fmt: skip


def shipped(data: Path) -> dict[str, Callable[[], Table]]:
    """The tables of the data folder."""

    def arff(name: str, targets: int) -> Table:
        lines = (data / "multioutput" / name).read_text().splitlines()
        lines = [line for line in lines if line[:1] not in ("@", "%", "")]
        values = np.array([[float(word) for word in line.split(",")] for line in lines])
        return values[:, :-targets], values[:, -targets:], "rows"

    def powerplant() -> Table:
        values = np.genfromtxt(data / "powerplant/ccpp.csv", delimiter=",", skip_header=1)
        return values[:, :4], values[:, 4:], "rows"

    def ocean(name: str) -> Table:
        X, Y = (np.loadtxt(data / f"ocean/{kind}_train_{name}.csv", delimiter=",") for kind in ("XY", "UV"))
        return X[:, -2:], Y[:, -2:], "field"

    def magnetic() -> Table:
        def read(name: str) -> FloatArray:
            return np.asarray(np.loadtxt(data / f"magnetic/invensense/{name}.csv", delimiter=",")[::20])

        parts = [(read(f"{k}-loc"), read(f"{k}-mag")) for k in range(1, 6)]
        groups = np.concatenate([np.full(len(X), k) for k, (X, _) in enumerate(parts)])
        X, Y = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        return X, Y, groups

    return {
        "powerplant": powerplant, "enb": lambda: arff("enb.arff", 2), "atp1d": lambda: arff("atp1d.arff", 6),
        "glad": lambda: ocean("gladfull"), "laser": lambda: ocean("laserfull"), "magnetic": magnetic,
    }  # fmt: skip


def others(q: int) -> dict[str, Callable[[], Any]]:
    def each(model: Any) -> Any:
        return MultiOutputRegressor(model) if q > 1 else model

    rbf = ConstantKernel() * RBF(1.0) + WhiteKernel(0.1)
    return {
        "mean": lambda: None,
        "linear": lambda: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-6, 6, 13))),
        "boosting": lambda: each(HistGradientBoostingRegressor(random_state=0)),
        "svr": lambda: make_pipeline(StandardScaler(), each(SVR())),
        "nystroem": lambda: make_pipeline(
            StandardScaler(), Nystroem(n_components=300, gamma=0.1, random_state=0), RidgeCV(np.logspace(-8, 4, 13))
        ),
        "gp": lambda: make_pipeline(StandardScaler(), GaussianProcessRegressor(rbf, normalize_y=True)),
    }


def folds_of(how: Any, n: int, count: int) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    if isinstance(how, np.ndarray):
        return list(GroupKFold(min(count, len(np.unique(how)))).split(np.empty((n, 1)), groups=how))
    return list(KFold(count, shuffle=how != "blocks", random_state=None if how == "blocks" else 0).split(np.empty(n)))


def grid(X: FloatArray, Y: FloatArray, how: Any) -> Any:
    """The best of the grid by the test's kind of folds."""
    size = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    cv = folds_of(how, len(X), 4)
    fits = []
    for length in LENGTHS:
        scalar = kernels.Gaussian(tuple(length * size * np.sqrt(X.shape[1])))
        field = isinstance(how, str) and how == "field"
        kernel = kernels.CurlFree(scalar) + kernels.DivergenceFree(scalar) if field else scalar
        fits.append(ORFFRegressor(kernel, n_features=1024, ridge=RIDGES, cv=cv, standardize=False).fit(X, Y))
    return max(fits, key=lambda fit: np.nanmax(fit.cv_scores_))


def score(Y: FloatArray, values: FloatArray, how: Any) -> float:
    if isinstance(how, str) and how == "field":
        return float(1 - np.sum((Y - values) ** 2) / np.sum((Y - Y.mean(0)) ** 2))
    return float(r2_score(Y, values))


def compared(table: Table, splits: int) -> dict[str, dict[str, float]]:
    X, Y, how = table
    models: dict[str, Callable[[], Any]] = {"bare": lambda: None, "grid": lambda: None, **others(Y.shape[1])}
    scores: dict[str, list[float]] = {name: [] for name in models}
    seconds = dict.fromkeys(models, 0.0)
    for train, test in folds_of(how, len(X), splits):
        inner = how[train] if isinstance(how, np.ndarray) else how
        for name, model in models.items():
            began = time.process_time()
            if name == "bare":
                groups = inner if isinstance(inner, np.ndarray) else None
                fitted = ORFFRegressor(cv=5 if groups is not None else "auto").fit(X[train], Y[train], groups=groups)
            elif name == "grid":
                fitted = grid(X[train], Y[train], inner)
            elif name == "mean":
                fitted = None
            else:
                fitted = model().fit(X[train], Y[train] if Y.shape[1] > 1 else Y[train][:, 0])
            values = np.broadcast_to(Y[train].mean(0), Y[test].shape) if fitted is None else fitted.predict(X[test])
            scores[name].append(score(Y[test], np.reshape(values, Y[test].shape), how))
            seconds[name] += time.process_time() - began
    return {
        name: {"r2": float(np.mean(each)), "worst": min(each), "cpu": seconds[name]} for name, each in scores.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    every = made() | (shipped(options.data) if options.data else {})
    results = {}
    for name in options.only or every:
        X, Y, how = every[name]()
        some = np.linspace(0, len(X) - 1, min(len(X), options.rows)).astype(int)
        table = (X[some], Y[some], how[some] if isinstance(how, np.ndarray) else how)
        results[name] = one = compared(table, options.splits)
        loss = one["grid"]["r2"] - one["bare"]["r2"]
        print(f"{name:20s} {len(some):5d} x {X.shape[1]:3d}  loss {loss:6.3f}  " + "  ".join(
            f"{model} {each['r2']:.3f} ({each['worst']:.3f}, {each['cpu']:.0f} s)" for model, each in one.items()
        ), flush=True)  # fmt: skip
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "defaults.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
