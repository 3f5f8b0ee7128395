"""Losses other than the square on real data, and what they cost.

    python benchmarks/losses.py --data DIR [--only beijing,usps,digits,field,rows,kinks] [--rows 10000000]
                                [--out benchmarks/results]

Beijing: six stations, six pollutants by the hour, from the weather, the hour and the month; the first three
years (from March 2013) fit, the last year is scored. By `dorff ingest`, `fit` and `predict`: quantiles 0.1, 0.5, 0.9 of
all pollutants together. Beside them: bands of 80% of least squares (`posterior`, the noise's normal law), and the
quantiles of the training rows whatever the inputs. Pinball losses are over each pollutant's deviation. The picture is
of PM2.5 at one station in ten days of the last year.

USPS: 10 labels a class, all other training rows unlabelled; the multiclass SVM (`simplex`) against least squares, both
with the simplex code, with and without a manifold term (15 neighbours, the square of the normalised Laplacian, over
the number of edges). By `dorff ingest`, `fit`, `score`; the term's weight and, by each loss for itself, the ridge are
chosen by folds of the labelled rows. Splits draw which rows have labels.

Digits: MNIST, multinomial, simplex SVM, hinge and least squares on the same features, by `ORFFClassifier`, the ridge by
3 folds: accuracy on the test rows, seconds over those of least squares, passes.

Field: the curl-free field in five dimensions of `benchmarks/brault_curl5.py`: L-BFGS of the squared loss (Brault,
Heinonen & d'Alche-Buc 2016, section 5.1), in dorff's coordinates and in none, against the closed form.

Kinks: losses with a kink on data sets of scikit-learn and two made ones, at the estimators' defaults and at a small
ridge: passes, seconds of processors over those of least squares, and the duality gap over the objective.

Rows: peak memory of a fit of quantiles to so many rows against the plan's.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import yaml
import zarr
from brault_curl5 import field
from mnist import images, labels
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.kernels.scalar import FloatArray
from dorff.model.losses import Squared
from dorff.moments import pinned
from dorff.passes import Question
from dorff.solvers.by_loss import loss_problem
from dorff.solvers.minimise import lbfgs
from dorff.solvers.objective import Attempt, Evaluator

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TAKEN = ("month", "hour", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
POLLUTANTS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
LEVELS = (0.1, 0.5, 0.9)
WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1000.0)
TRIED = (  # what, its loss, and the terms' weights of each job: of the square a job chooses among several
    ("squared", "squared", (None,)), ("squared, manifold", "squared", (list(WEIGHTS),)),
    ("simplex", "simplex", (None,)), ("simplex, manifold", "simplex", WEIGHTS),
)  # fmt: skip
RIDGES = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4]
LAST_YEAR = 24 * 365 * 3  # the first hour of it


def dorff(*words: object) -> Any:
    """A command in a process of its own, and its JSON."""
    command = [str(Path(sys.executable).with_name("dorff")), *map(str, words), "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def job(path: Path, name: str, parts: dict[str, Any]) -> Path:
    folder = path / name
    folder.mkdir(exist_ok=True)
    places = {"state": str(path / parts.pop("state", name) / "state"), "model": str(folder / "model")}
    (folder / "job.yaml").write_text(yaml.safe_dump({**parts, **places}))
    return folder / "job.yaml"


def stations(data: Path, path: Path) -> None:
    """Two CSV files of all stations: the first three years, and the last."""
    files = {name: (path / f"{name}.csv").open("w", newline="") for name in ("train", "test")}
    writers = {name: csv.writer(file) for name, file in files.items()}
    for writer in writers.values():
        writer.writerow([*TAKEN, *POLLUTANTS, "station"])
    for table in sorted((data / "beijing_air").glob("*.csv.gz")):
        with gzip.open(table, "rt", newline="") as file:
            for number, row in enumerate(csv.DictReader(file)):
                name = "test" if number >= LAST_YEAR else "train"
                writers[name].writerow([*(row[key] for key in (*TAKEN, *POLLUTANTS)), row["station"]])
    for file in files.values():
        file.close()


def pinball(y: FloatArray, f: FloatArray) -> FloatArray:
    """(levels, q): mean pinball losses of targets y (n, q), NaN where missing, by quantiles f (n, q, levels)."""
    r = y[:, :, None] - f
    tau = np.array(LEVELS)
    return np.asarray(np.nanmean(np.maximum(tau * r, (tau - 1.0) * r), axis=0).T)


def beijing(data: Path, out: Path, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        stations(data, path)
        words = ["--inputs", ",".join(TAKEN), "--targets", ",".join(POLLUTANTS), "--groups", "none"]
        for part in ("train", "test"):
            dorff("ingest", path / f"{part}.csv", path / f"{part}.zarr", *words)
        common = {
            "data": {"store": str(path / "train.zarr"), "nan": "partial"}, "features": {"count": count},
            "cluster": {"type": "local", "workers": 2, "memory": "6GiB"},
        }  # fmt: skip
        made = {
            "quantiles": {"loss": {"quantiles": list(LEVELS)}, "ridge": [1e-8, 1e-6, 1e-4]},
            "squared": {"posterior": True},
        }
        models, reports = {}, {}
        for kind, solve in made.items():
            file = job(path, kind, {**common, "solve": solve, "state": "one"})
            planned = dorff("plan", file)
            reports[kind] = {**dorff("fit", file), "planned": planned}
            models[kind] = load_model(path / kind / "model")
        group = zarr.open_group(str(path / "test.zarr"), mode="r")
        X, Y = (np.asarray(group[key][:]) for key in ("x", "y"))
        good = np.isfinite(X).all(axis=1)
        X, Y = X[good], Y[good]
        past = np.asarray(zarr.open_group(str(path / "train.zarr"), mode="r")["y"][:])
        f = {kind: models[kind].predict(X).reshape(len(X), len(POLLUTANTS), 3) for kind in models if kind != "squared"}
        low, high = models["squared"].band(X, 0.8)
        f["squared"] = np.stack([low, models["squared"].predict(X), high], axis=2)
        f["whatever the inputs"] = np.broadcast_to(np.nanquantile(past, LEVELS, axis=0).T, f["squared"].shape)
        deviation = np.nanstd(Y, axis=0)
        there = np.isfinite(Y)[:, :, None]
        rows = {
            kind: {
                "pinball": (pinball(Y, one) / deviation).mean(axis=1).tolist(),
                "below": [
                    [float(np.mean(Y[there[:, q, 0], q] <= one[there[:, q, 0], q, k])) for k in range(3)]
                    for q in range(len(POLLUTANTS))
                ],
                "crossed": float(np.mean(np.any(np.diff(one, axis=2) < 0, axis=2))),
            }
            for kind, one in f.items()
        }
        picture(out / "beijing_quantiles.png", models["quantiles"], path / "test.zarr")
        report = reports["quantiles"]
        told = {key: report[key] for key in ("passes", "peak_bytes", "plan_peak_bytes", "m", "ridge", "rows_used")}
        told |= {"planned_passes": report["planned"]["passes"], "held_out": report["loss"]["below"]}
        told["seconds_over_squares"] = report["seconds"] / reports["squared"]["seconds"]
        return {"rows": rows, "fit": told, "scored": len(X)}


def picture(path: Path, model: Any, store: Path) -> None:
    """PM2.5 of ten days and its bands, at the third station."""
    group = zarr.open_group(str(store), mode="r")
    each = group["x"].shape[0] // 6
    at = slice(2 * each + 24 * 240, 2 * each + 24 * 250)
    X, y = np.asarray(group["x"][at]), np.asarray(group["y"][at])[:, 0]
    f = model.predict(np.nan_to_num(X)).reshape(len(X), len(POLLUTANTS), 3)[:, 0]
    figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
    days = np.arange(len(X)) / 24
    axes.fill_between(days, f[:, 0], f[:, 2], color="tab:blue", alpha=0.25, label="quantiles 0.1 to 0.9", lw=0)
    axes.plot(days, f[:, 1], color="tab:blue", label="median")
    axes.plot(days, y, ".", color="black", ms=3, label="measured")
    axes.set(xlabel="days", ylabel="PM2.5, µg/m³", title="Dongsi, ten days of the last year, from the weather alone")
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=120)


def usps(data: Path, splits: int) -> dict[str, Any]:
    with np.load(data / "usps" / "usps.npz") as file:
        X, y, Z, t = (file[part] for part in ("xtrain", "ytrain", "xtest", "ytest"))
    width = 0.5 * kernels.median_lengthscale(X[np.random.default_rng(0).permutation(len(X))])
    term = {
        "graph": {"type": "knn", "neighbours": 15}, "laplacian": "normalised", "power": 2, "scale": "mean",
    }  # fmt: skip
    of_classes = {"targets": {"classes": "classes"}, "labelled": "known"}
    found: dict[str, list[float]] = {}
    for split in range(splits):
        rng, known = np.random.default_rng([7, split]), np.zeros(len(X))
        for label in range(10):
            known[rng.choice(np.flatnonzero(y == label), 10, replace=False)] = 1
        with tempfile.TemporaryDirectory() as name:
            path = Path(name)
            np.savez(path / "train.npz", x=X, c=y, k=known)
            np.savez(path / "test.npz", x=Z, c=t)
            dorff(
                "ingest",
                path / "train.npz",
                path / "train.zarr",
                "--inputs",
                "x",
                "--classes",
                "c",
                "--also",
                "known=k",
            )
            dorff("ingest", path / "test.npz", path / "test.zarr", "--inputs", "x", "--classes", "c")
            base = {
                "data": {**of_classes, "store": str(path / "train.zarr")}, "features": {"count": 2048},
                "kernel": {
                    "type": "decomposable", "output": "simplex",
                    "scalar": {"type": "gaussian", "lengthscale": float(width)},
                },
                "cluster": {"type": "serial"}, "state": "one",
            }  # fmt: skip
            for kind, loss, weights in TRIED:
                solve = {"loss": loss, "ridge": RIDGES, "select": "kfold", "calibrate": False}
                solve["folds"] = {"count": 3, "by": "rows"}
                solve |= {} if loss == "squared" else {"tolerance": 1e-3}
                held = []
                for number, weight in enumerate(weights):
                    more = {} if weight is None else {"manifold": {**term, "weight": weight}}
                    folder = f"{kind.replace(', ', '_')}{number}"
                    report = dorff("fit", job(path, folder, {**base, "solve": solve, **more}))
                    told = dorff("score", path / folder / "model", path / "test.zarr")
                    of_loss = report["loss"]["held_out_loss"] if report["loss"] else 0.0
                    held.append((of_loss, told["accuracy"], weight, report["status"]))
                best = min(held, key=lambda one: one[0])
                found.setdefault(kind, []).append(best[1])
                print(split, kind, held, flush=True)
    return {
        "accuracy": found, "mean": {kind: statistics.mean(each) for kind, each in found.items()},
        "margin": [a - b for a, b in zip(found["simplex, manifold"], found["squared, manifold"], strict=True)],
    }  # fmt: skip


def digits(data: Path, count: int) -> dict[str, Any]:
    X, y, Z, t = (read(data / "mnist", part) for part in ("train", "t10k") for read in (images, labels))
    rows = []
    base = 0.0
    for loss in ("squared", "multinomial", "simplex", "logistic", "hinge", "squared_hinge"):
        model = ORFFClassifier(
            kernels.Gaussian(6.5), count, loss=loss, ridge=[1e-7, 1e-6, 1e-5, 1e-4], cv=3, calibrate=False, tol=1e-3,
            coding="simplex" if loss in ("simplex", "squared") else "one_vs_all", n_jobs=2,
        )  # fmt: skip
        began = time.perf_counter()
        model.fit(X, y)
        took = time.perf_counter() - began
        base = base or took
        row = {"loss": loss, "accuracy": model.score(Z, t), "times": took / base, "ridge": model.ridge_,
               "passes": 1 + getattr(model, "n_passes_", 0)}  # fmt: skip
        rows.append(row)
        print(row, flush=True)
    return {"m": count, "rows": rows}


def curl(count: int, rows: int) -> dict[str, Any]:
    """L-BFGS for the squared loss from zero, and the closed form."""
    X, Y = field(0, rows + 2000)
    Z, T, X, Y = X[:2000], Y[:2000], X[2000:], Y[2000:]
    kernel = kernels.CurlFree(kernels.Gaussian(kernels.median_lengthscale(X)))
    told = []
    for ridge in (1e-5, 1e-8):
        model = ORFFRegressor(kernel, count, ridge=ridge, intercept=False).fit(X, Y)
        fitted, drawing = model._fitted, model._stream.drawing
        setting = drawing.setting
        problem = loss_problem(setting, fitted.sums, fitted.fit, Squared())
        nothing = np.zeros_like(problem.start[0]), np.zeros_like(problem.start[1])

        def ask(V: FloatArray, width: float, drawing: Any = drawing) -> dict[int, FloatArray]:
            sums = Question(V, Squared(), (1.0,) * 5, width).sums(drawing.features, 512, None)
            sums.add(X, Y)
            return {fold: adder.moments().values for (fold, _), adder in sums.sums.items()}

        with pinned():
            evaluator = Evaluator(problem, ask)
            (state,) = lbfgs(evaluator, [Attempt(ridge)], [nothing], 1e-13)
            plain, passes = plainly(problem, ask, ridge, nothing)
        exact = fitted.fit.solution.h
        F = drawing.features.transform(Z)
        f, g = F @ fitted.fit.W, F @ problem.weights.combined(state.h)
        far = float(np.linalg.norm(g - f) / np.linalg.norm(f))
        least = float(evaluator([(Attempt(ridge), exact, problem.start[1])], 0.0)[0].value)
        told.append({
            "ridge": ridge, "passes": evaluator.count - 1, "objective": state.value / least - 1.0, "values": far,
            "plain_passes": passes, "plain_objective": plain / least - 1.0,
            "r2": float(1.0 - np.sum((T - g) ** 2) / np.sum((T - T.mean(axis=0)) ** 2)),
        })  # fmt: skip
        print(told[-1], flush=True)
    return {"m": count, "rows": told}


def plainly(problem: Any, ask: Any, ridge: float, start: Any) -> tuple[float, int]:
    """SciPy's L-BFGS on the coefficients as they are: the objective after 500 passes, or at its end, and the passes."""
    from scipy.optimize import minimize

    evaluator = Evaluator(problem, ask)
    shape = start[0].shape

    def value(h: FloatArray) -> tuple[float, FloatArray]:
        (state,) = evaluator([(Attempt(ridge), h.reshape(shape), start[1])], 0.0)
        return state.value, state.gh.ravel()

    options = {"maxcor": 30, "maxfun": 500, "maxiter": 500, "ftol": 1e-15, "gtol": 1e-12}
    done = minimize(value, start[0].ravel(), jac=True, method="L-BFGS-B", options=options)
    return float(done.fun), evaluator.count


def many(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        path, rng = Path(name), np.random.default_rng(0)
        group = zarr.open_group(str(path / "rows.zarr"), mode="w")
        chunk = 2**17
        arrays = {
            key: group.create_array(key, shape=(rows, k), chunks=(chunk, k), dtype="f8")
            for key, k in (("x", 4), ("y", 2))
        }
        for start in range(0, rows, chunk):
            X = rng.standard_normal((min(chunk, rows - start), 4))
            Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 1])]) + 0.3 * rng.standard_normal((len(X), 2))
            arrays["x"][start : start + len(X)], arrays["y"][start : start + len(X)] = X, Y
        parts = {
            "data": {"store": str(path / "rows.zarr")}, "features": {"count": 256},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 2.0}},
            "solve": {"loss": {"quantiles": list(LEVELS)}, "ridge": 1e-6, "tolerance": 1e-3},
            "cluster": {"type": "local", "workers": 2, "memory": "2GiB"},
        }  # fmt: skip
        file = job(path, "many", parts)
        planned = dorff("plan", file)
        report = dorff("fit", file)
        told = {"rows": rows, "planned_peak": planned["peak_bytes"], "peak": report["peak_bytes"],
                "planned_passes": planned["passes"], "passes": report["passes"]}  # fmt: skip
        print(told, flush=True)
        return told


def kinks() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3))
    label = (np.sin(2 * X[:, 0]) + X[:, 1] > 0).astype(int)
    label = np.where(rng.random(len(X)) < 0.15, 1 - label, label)
    rng = np.random.default_rng(2)
    Z = rng.uniform(-2, 2, (4000, 2))
    mean, width = np.sin(2 * Z[:, 0]) + np.cos(Z[:, 1]), 0.2 + 0.3 * np.abs(Z[:, 0])
    noisy = mean + width * rng.standard_t(3, len(Z))
    cancer = load_breast_cancer()
    data = {
        "digits": load_digits(return_X_y=True),
        "cancer": ((cancer.data - cancer.data.mean(0)) / cancer.data.std(0), cancer.target),
        "labels of which 15% are wrong": (X, label),
        "diabetes": load_diabetes(return_X_y=True),
        "noise that varies": (Z, noisy),
    }
    tried: list[tuple[str, Any, Any]] = [
        (name, loss, "auto") for name in list(data)[:3] for loss in ("hinge", "simplex")
    ]
    tried += [(name, {"quantiles": list(LEVELS)}, "auto") for name in list(data)[3:]]
    tried += [("digits", loss, 1e-6) for loss in ("hinge", "simplex")]
    rows = []
    for name, loss, ridge in tried:
        seconds = []
        for own in ("squared", loss):
            more = {"loss": own, "ridge": ridge}
            made = ORFFRegressor(None, 512, **more)
            if isinstance(loss, str):
                made = ORFFClassifier(None, 512, calibrate=False, **more)
            began = time.process_time()
            made.fit(*data[name])
            seconds.append(time.process_time() - began)
        gap = made.duality_gap_ / made.objective_
        row = {"data": name, "loss": loss, "ridge": ridge, "passes": made.n_passes_, "gap": gap}
        rows.append({**row, "times": seconds[1] / seconds[0], "objective": made.objective_, "chosen": made.ridge_})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--only", default="beijing,usps,digits,field,rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    args_out: Path = given.out
    args_out.mkdir(parents=True, exist_ok=True)
    file = args_out / "losses.json"
    told = json.loads(file.read_text()) if file.exists() else {}
    makers = {
        "beijing": lambda: beijing(given.data, args_out, given.count), "usps": lambda: usps(given.data, given.splits),
        "digits": lambda: digits(given.data, 2 * given.count), "field": lambda: curl(500, 4000),
        "rows": lambda: many(given.rows), "kinks": kinks,
    }  # fmt: skip
    for name in given.only.split(","):
        told[name] = makers[name]()
        file.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
