"""Jobs of three lines and bare estimators against the best of a wide grid and against other models, on held-out folds
of many tables.

    python benchmarks/defaults.py --data DIR [--only NAME ...] [--rows 2000] [--splits 3] [--out DIR] [--ours]

With `--ours` only `bare` and `job` are fitted again, and the file keeps what other models reached before.

`bare` is `ORFFRegressor()` or `ORFFClassifier()`, `job` a job of `data`, `state` and `model` alone. `grid` is the best
of length-scales (isotropic, in standard deviations of the inputs) times ridges by k-fold inside each training part: of
the same folds as the test, rows, blocks of rows in order or groups. `exact` is scikit-learn's KernelRidge (SVC for
classes) with the best of 6 x 5 by the same folds. Others have their usual settings, the ridge of `nystroem` and of
`linear` chosen by scikit-learn. At most `--rows` rows of each table, evenly spread. The score is of all held-out rows
of the `--splits` test folds together: R2, the mean of outputs (pooled for fields), or accuracy; beside it that of the
worst fold alone. Tables from blocks of a walk have folds that lie where no other rows do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasets import load
from sklearn import datasets as tables
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.data import ingest
from dorff.fit import fit
from dorff.spec.reader import load_job

FloatArray = npt.NDArray[np.float64]
#: X (n, d), Y (n, q) or classes (n,), and how rows are held out: "rows", of a "field", "blocks" or their groups (n,).
Table = tuple[FloatArray, npt.NDArray[Any], Any]
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

    def classes(name: str) -> Table:
        return *getattr(tables, f"load_{name}")(return_X_y=True), "rows"

    def linear() -> Table:
        X, y = tables.make_regression(800, 50, n_informative=10, noise=20.0, random_state=0)
        return X, y[:, None], "rows"

    def roll() -> Table:
        X, t = tables.make_swiss_roll(1500, noise=0.3, random_state=0)
        return X, t[:, None], "rows"

    return {
        "linear": linear, "swiss roll": roll,
        "moons": lambda: (*tables.make_moons(1500, noise=0.3, random_state=0), "rows"),
        **{name: lambda name=name: classes(name) for name in ("iris", "wine", "breast_cancer", "digits")},
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

        parts = [(read(f"{k}-loc")[:, :2], read(f"{k}-mag")) for k in range(1, 6)]
        groups = np.concatenate([np.full(len(X), k) for k, (X, _) in enumerate(parts)])
        X, Y = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        return X, Y, groups

    def beijing() -> Table:
        """Every fifth hour of a station: what the weather and the hour tell of six pollutants."""
        path = data / "beijing_air/PRSA_Data_Dongsi_20130301-20170228.csv.gz"
        values = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(2, 4, 11, 12, 13, 14, 16, *range(5, 11)))
        values = values[np.isfinite(values).all(axis=1)][::5]
        return values[:, :7], values[:, 7:], "blocks"

    def labelled(name: str) -> Table:
        one = load(name, data)
        return one.X, one.y, "rows"

    return {
        "powerplant": powerplant, "enb": lambda: arff("enb.arff", 2), "atp1d": lambda: arff("atp1d.arff", 6),
        **{name: lambda name=name: ocean(name) for name in ("gladfull", "gladsparse", "laserfull", "lasersparse")},
        "magnetic": magnetic, "beijing": beijing,
        **{name: lambda name=name: labelled(name) for name in ("LETTER", "USPS", "MNIST", "CIFAR-10", "LEUKEMIA")},
    }  # fmt: skip


def others(q: int) -> dict[str, Callable[[], Any]]:
    def each(model: Any) -> Any:
        return MultiOutputRegressor(model) if q > 1 else model

    rbf = ConstantKernel() * RBF(1.0) + WhiteKernel(0.1)
    return {
        "linear": lambda: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-6, 6, 13))),
        "boosting": lambda: each(HistGradientBoostingRegressor(random_state=0)),
        "svr": lambda: make_pipeline(StandardScaler(), each(SVR())),
        "nystroem": lambda: make_pipeline(
            StandardScaler(), Nystroem(n_components=300, gamma=0.1, random_state=0), RidgeCV(np.logspace(-8, 4, 13))
        ),
        "gp": lambda: make_pipeline(StandardScaler(), GaussianProcessRegressor(rbf, normalize_y=True)),
    }


def classifiers() -> dict[str, Callable[[], Any]]:
    return {
        "linear": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        "boosting": lambda: HistGradientBoostingClassifier(random_state=0),
        "nystroem": lambda: make_pipeline(
            StandardScaler(), Nystroem(n_components=300, random_state=0), RidgeClassifierCV(np.logspace(-8, 4, 13))
        ),
    }


def folds_of(how: Any, n: int, count: int) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    if isinstance(how, np.ndarray):
        return list(GroupKFold(min(count, len(np.unique(how)))).split(np.empty((n, 1)), groups=how))
    return list(KFold(count, shuffle=how != "blocks", random_state=None if how == "blocks" else 0).split(np.empty(n)))


def grid(X: FloatArray, Y: npt.NDArray[Any], how: Any) -> Any:
    """The best of the grid by the test's kind of folds."""
    size = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    cv, model = folds_of(how, len(X), 4), ORFFRegressor if Y.ndim == 2 else ORFFClassifier
    fits = []
    for length in LENGTHS:
        scalar = kernels.Gaussian(tuple(length * size * np.sqrt(X.shape[1])))
        field = isinstance(how, str) and how == "field"
        kernel = kernels.CurlFree(scalar) + kernels.DivergenceFree(scalar) if field else scalar
        fits.append(model(kernel, n_features=1024, ridge=RIDGES, cv=cv, standardize=False).fit(X, Y))
    return max(fits, key=lambda fit: np.nanmax(fit.cv_scores_))


def exact(X: FloatArray, Y: npt.NDArray[Any], how: Any) -> Any:
    gammas = [1.0 / (2 * (length**2) * X.shape[1]) for length in LENGTHS[1:7]]
    cv = folds_of(how, len(X), 4)
    if Y.ndim == 1:
        options = {"svc__gamma": gammas, "svc__C": [0.1, 1.0, 10.0, 100.0, 1000.0]}
        return GridSearchCV(make_pipeline(StandardScaler(), SVC()), options, cv=cv).fit(X, Y)
    options = {"kernelridge__gamma": gammas, "kernelridge__alpha": [1e-6, 1e-4, 1e-2, 1.0, 100.0]}
    return GridSearchCV(make_pipeline(StandardScaler(), KernelRidge(kernel="rbf")), options, cv=cv).fit(X, Y)


def three_lines(X: FloatArray, Y: npt.NDArray[Any], how: Any) -> Any:
    """The model of a job that names its data, its state and its model."""
    with tempfile.TemporaryDirectory() as name:
        folder, groups = Path(name), {"groups": "g"} if isinstance(how, np.ndarray) else {}
        arrays = {"x": X, "y": Y} | ({"g": how} if groups else {})
        np.savez(folder / "rows.npz", **arrays)
        target = {"targets": ["y"]} if Y.ndim == 2 else {"classes": "y"}
        ingest([folder / "rows.npz"], folder / "data.zarr", inputs=["x"], **target, **groups)
        (folder / "job.yaml").write_text("data: {store: data.zarr}\nstate: state\nmodel: model\n")
        fit(load_job(folder / "job.yaml"))
        return load_model(folder / "model")


def fitted(name: str, X: FloatArray, Y: npt.NDArray[Any], how: Any) -> Callable[[FloatArray], npt.NDArray[Any]]:
    """What predicts."""
    single = Y[:, 0] if Y.ndim == 2 and Y.shape[1] == 1 else Y
    if name == "mean":
        kinds, counts = np.unique(Y, return_counts=True) if Y.ndim == 1 else (Y.mean(axis=0)[None], np.ones(1))
        return lambda rows: np.repeat(kinds[[np.argmax(counts)]], len(rows), axis=0)
    if name == "job":
        model = three_lines(X, Y, how)
        if Y.ndim == 2:
            return lambda rows: np.asarray(model.predict(rows))
        labels = np.array(model.info["labels"]).astype(Y.dtype)
        return lambda rows: labels[np.argmax(model.predict(rows), axis=1)]
    if name == "bare":
        bare = ORFFRegressor() if Y.ndim == 2 else ORFFClassifier()
        return bare.fit(X, Y, groups=how if isinstance(how, np.ndarray) else None).predict  # type: ignore[no-any-return]
    if name in ("grid", "exact"):
        return (grid if name == "grid" else exact)(X, Y, how).predict  # type: ignore[no-any-return]
    model = others(Y.shape[1])[name]() if Y.ndim == 2 else classifiers()[name]()
    return model.fit(X, single).predict  # type: ignore[no-any-return]


def score(Y: npt.NDArray[Any], values: npt.NDArray[Any], how: Any) -> float:
    if Y.ndim == 1:
        return float(np.mean(values == Y))
    if isinstance(how, str) and how == "field":
        return float(1 - np.sum((Y - values) ** 2) / np.sum((Y - Y.mean(0)) ** 2))
    return float(r2_score(Y, values))


def compared(table: Table, splits: int, kept: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What each model reaches; what is `kept` of others is not found again."""
    X, Y, how = table
    rest = others(Y.shape[1]) if Y.ndim == 2 else classifiers()
    folds, results = folds_of(how, len(X), splits), dict[str, dict[str, float]]()
    for name in ("bare", "job", "grid", "exact", "mean", *rest):
        if name in kept:
            results[name] = kept[name]
            continue
        values, each, began = np.empty_like(Y), list[float](), time.process_time()
        for train, test in folds:
            predict = fitted(name, X[train], Y[train], how[train] if isinstance(how, np.ndarray) else how)
            values[test] = np.reshape(predict(X[test]), Y[test].shape)
            each.append(score(Y[test], values[test], how))
        seconds = time.process_time() - began
        results[name] = {"score": score(Y, values, how), "worst": min(each), "cpu": seconds}
    return results


def arguments(text: str | None, rows: int) -> argparse.Namespace:
    """What a benchmark of these tables is asked for."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def main() -> None:
    options = arguments(__doc__, 2000)
    every = made() | (shipped(options.data) if options.data else {})
    warnings.simplefilter("ignore")  # of models that are not converged, and of features more than rows
    path = options.out / "defaults.json"
    results = json.loads(path.read_text()) if (options.only or options.ours) and path.exists() else {}
    for name in options.only or every:
        kept = {model: one for model, one in results.get(name, {}).items() if model not in ("bare", "job")}
        X, Y, how = every[name]()
        some = np.linspace(0, len(X) - 1, min(len(X), options.rows)).astype(int)
        table = (X[some], Y[some], how[some] if isinstance(how, np.ndarray) else how)
        results[name] = one = compared(table, options.splits, kept if options.ours else {})
        loss = one["grid"]["score"] - min(one["bare"]["score"], one["job"]["score"])
        print(f"{name:20s} {len(some):5d} x {X.shape[1]:3d}  loss {loss:6.3f}  " + "  ".join(
            f"{model} {each['score']:.3f} ({each['worst']:.3f}, {each['cpu']:.0f} s)" for model, each in one.items()
        ), flush=True)  # fmt: skip
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
