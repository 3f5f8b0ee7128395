"""The sampler `lattice`: its error, fits of real data, digits, limits, the speed of its pass, and of its solve.

    python benchmarks/lattice.py [--only rule,real,digits,limits,pass,solve,fewer_rows] [--data DIR] [--rows N]

Each part is written to results/lattice.json as soon as it is done; `python benchmarks/readme.py` then writes the tables
of docs/lattice.md. DIR (for `real`) holds ocean/*_train_gladfull.csv and magnetic/invensense/{1..5}-{loc,mag}.csv.
Times are ratios of runs that took turns, each the median with the worst beside it. All is done on one thread a process.

- rule: the largest error of the kernel over pairs of points of a box, over the error that was asked for.
- real: errors on held-out rows over those of the exact kernel; the time of a search over that of random features.
- digits: what a fit says of its digits, against a QR of the features of the same rows, in float64.
- limits: errors of kernels that a lattice is no tool for, against those of random features of the same number.
- pass: rows a second of fits from Zarr, memory, and bits after kills. Where finufft is installed, the time of sums.
- solve: a system of 88,612 features by conjugate gradients, and what they are good for; fewer_rows: random ones beside.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import hashlib
import importlib.util
import json
import math
import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

from dorff import frequencies, kernels
from dorff.data import ArrayLayout, ShardWriter, open_dataset, shard_and_unit_rows, write_metadata
from dorff.engine import SerialEngine, open_engine
from dorff.errors import DorffError
from dorff.features import FeatureMap, Projected, Recipe, modes_of
from dorff.fit import fit, run_pass
from dorff.fit.choice import filled, settings
from dorff.fit.tune import tune
from dorff.frequencies.bodies import Body, ConstantSink
from dorff.kernels import FloatArray, OperatorKernel
from dorff.model.weights import operator_weights
from dorff.moments import LatticeMoments, Solvable
from dorff.moments.exponentials import GridExponentials, exponentials
from dorff.passes import BlockSums
from dorff.passes.blocks import LATTICE_ROWS, LatticeSums, extents_of
from dorff.plan import make_plan
from dorff.solvers import Problem, solve, squared_error
from dorff.solvers.cg import iterate
from dorff.solvers.matrixfree import make_system, of_moments
from dorff.solvers.stochastic import Heavy, heavy
from dorff.spec.job import Job
from dorff.store import load_model

HERE = Path(__file__).parent
OUT = HERE / "results" / "lattice.json"
MOST = 60_000  # features
Config = dict[str, Any]


def kept() -> Config:
    return json.loads(OUT.read_text()) if OUT.exists() else {}


def keep(part: str, value: Any) -> None:
    """Write a part's results beside those of the others."""
    every = kept() | {part: value}
    OUT.write_text(json.dumps(dict(sorted(every.items())), indent=1) + "\n")


def spread(values: Sequence[float]) -> Config:
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "each": list(values)}


def in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, which take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return seconds


# ---- rule


def lattice_of(
    kernel: OperatorKernel, sides: Any, p: int, error: float, *, count: int = MOST, intercept: bool = False
) -> Recipe:
    sampler = frequencies.Lattice(error).over(np.asarray(sides, dtype=np.float64), constant=not intercept)
    return Recipe(kernel, sampler, len(sides), p, count, intercept)


def pairs(sides: FloatArray, number: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Opposite corners, along each side, at random, and near each other."""
    rng, d = np.random.default_rng(seed), len(sides)
    X, Z = rng.uniform(0, 1, (2, number, d)) * sides
    X[0], Z[0] = 0.0, sides
    X[1 : d + 1], Z[1 : d + 1] = 0.0, np.diag(sides)
    near = number // 3
    Z[-near:] = X[-near:] + 0.03 * rng.standard_normal((near, d)) * sides
    return X, np.clip(Z, 0, sides)


def deviations(kernel: OperatorKernel, recipe: Recipe, X: FloatArray, Z: FloatArray, *, seed: int = 0) -> FloatArray:
    """The errors (n, p, p) of K(x, z), over the largest entry of K(x, x)."""
    drawn, p = recipe.draw(seed), recipe.p
    weights = operator_weights(kernel, recipe.m, drawn.density)
    psi = np.broadcast_to(weights.psi, (recipe.m, *weights.psi.shape[1:]))
    matrices = np.einsum("arp,arq->apq", psi, psi).reshape(recipe.m, -1)
    made = np.concatenate([
        (drawn.phi.transform(X[at : at + 50]) * drawn.phi.transform(Z[at : at + 50])) @ matrices
        for at in range(0, len(X), 50)
    ]).reshape(-1, p, p)  # fmt: skip
    exact = np.stack([kernel.gram(x[None], z[None])[0, 0] for x, z in zip(X, Z, strict=True)])
    return np.asarray((made - exact) / np.abs(kernel.gram(X[:1], X[:1])).max())


SCALARS: dict[str, Callable[[Any], kernels.ScalarKernel]] = {
    "Gaussian": kernels.Gaussian,
    "Matern 3/2": partial(kernels.Matern, nu=1.5),
    "Matern 5/2": partial(kernels.Matern, nu=2.5),
    "rational quadratic, alpha 3": partial(kernels.RationalQuadratic, alpha=3.0),
}
FORMS: dict[str, Any] = {
    "scalar": kernels.Decomposable,
    "curl-free": kernels.CurlFree,
    "divergence-free": kernels.DivergenceFree,
}
ERRORS = tuple(10.0**-power for power in range(1, 7))


def rule(_: argparse.Namespace) -> list[Config]:
    rows = []
    for name, make in SCALARS.items():
        scale = 0.3 if name == "Gaussian" else 0.4
        for d in (1, 2, 3):
            for form, wrap in FORMS.items():
                if d == 1 and form == "divergence-free":
                    continue  # there is none
                for each in (False, True):
                    if each and d == 1:
                        continue
                    lengths = [scale * by for by in (1.0, 1.6, 0.7)[:d]] if each else scale
                    p = 1 if form == "scalar" else d
                    rows += ratios(wrap(make(lengths)).fix(d, p, np.eye(p)), d, p, {
                        "scalar": name, "d": d, "form": form, "length_scale_each": each,
                    })  # fmt: skip
        mine = [row["ratio"] for row in rows if row["scalar"] == name and row["ratio"] is not None]
        print(f"{name}: {min(mine):.2f} to {max(mine):.2f} of the error asked for", flush=True)
    return rows


def ratios(kernel: OperatorKernel, d: int, p: int, words: Config) -> Iterator[Config]:
    """For each error as far as the features are fewer than MOST."""
    X, Z = pairs(np.ones(d), 400, seed=d)
    for error in ERRORS:
        recipe = lattice_of(kernel, np.ones(d), p, error)
        if recipe.m >= MOST - 2 * d:
            yield {**words, "error": error, "m": None, "ratio": None}
            return
        worst = float(np.abs(deviations(kernel, recipe, X, Z)).max())
        yield {**words, "error": error, "m": recipe.m, "ratio": worst / error}


# ---- real

HELMHOLTZ = 0.1  # of a Helmholtz kernel, the weight of what is curl-free


def kernel_of(form: str, scalar: kernels.Gaussian, size: float) -> OperatorKernel:
    """Of this form, with k(x, x) = I for fields as for independent outputs."""
    if form == "decomposable":
        return kernels.Decomposable(scalar)
    curl, div = size**2 * kernels.CurlFree(scalar), size**2 * kernels.DivergenceFree(scalar)
    return {"curl-free": curl, "divergence-free": div}.get(form, HELMHOLTZ * curl + (1 - HELMHOLTZ) * div)


REAL_ERRORS = (1e-4, 1e-5)
REAL_FORMS = ("decomposable", "curl-free", "divergence-free", "Helmholtz")


def by_features(
    kernel: OperatorKernel, of: float | int, X: FloatArray, Y: FloatArray, folds: Sequence[Any], seed: int = 0
) -> tuple[int, OperatorKernel, Any, list[Solvable], FeatureMap]:
    """The moments of each fold, of features on a lattice of this error by sums of exponentials, or of m random ones."""
    d, p, on_lattice = X.shape[1], Y.shape[1], isinstance(of, float)
    if on_lattice:
        recipe = lattice_of(kernel, np.ptp(X, axis=0), p, of)
        drawn = recipe.draw(0)
        features = FeatureMap(drawn.phi, X.mean(axis=0), np.ones(d))
        sums: Any = LatticeSums(features, np.zeros(p), block_rows=2**14, tolerance=1e-12)
        density = drawn.density
    else:
        law = frequencies.Orthogonal().draw(kernel, d=d, p=p, count=int(of) // 2, seed=seed)
        features = FeatureMap(Projected.of(law, None, centre_column=False), X.mean(axis=0), np.ones(d))
        sums, density = BlockSums(features, np.zeros(p), block_rows=512), (law.omega, law.log_density, None)
    for fold, rows in enumerate(folds):
        sums.add(X[rows], Y[rows], fold)
    parts = list(sums.moments().values()) if hasattr(sums, "moments") else []
    if on_lattice:
        modes = modes_of(features)
        on = modes.modes, modes.extents
        parts = [LatticeMoments.of(adder.moments()).on(*on).gram() for adder in sums.sums.values()]
    return features.m, kernel, density, parts, features


def rmse_of_folds(made: tuple[int, OperatorKernel, Any, list[Solvable], FeatureMap], lam: float) -> float:
    m, kernel, density, parts, _ = made
    weights, squares, count = operator_weights(kernel, m, density), 0.0, 0
    for number, held in enumerate(parts):
        training = reduce(add, [part for other, part in enumerate(parts) if other != number])
        (solution,) = solve(Problem.of(training, weights, intercept=False), [lam / training.n])
        squares += float(squared_error(held, weights.combined(solution.h), np.zeros(held.q)).sum())
        count += held.n * held.q
    return math.sqrt(squares / count)


def exact_rmse(
    kernel: OperatorKernel, X: FloatArray, Y: FloatArray, splits: Sequence[tuple[Any, Any]], lam: float
) -> float:
    p, squares, count = Y.shape[1], 0.0, 0
    for train, test in splits:
        K = kernel.gram(X[train], X[train]).transpose(0, 2, 1, 3).reshape(p * len(train), -1)
        K = np.ascontiguousarray(K)
        K[np.diag_indices(len(K))] += lam
        dual = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(K, lower=True, overwrite_a=True, check_finite=False), Y[train].ravel()
        )
        cross = kernel.gram(X[test], X[train]).transpose(0, 2, 1, 3).reshape(p * len(test), -1)
        squares += float(np.sum((cross @ dual - Y[test].ravel()) ** 2))
        count += p * len(test)
    return math.sqrt(squares / count)


def glad(data: Path) -> tuple[FloatArray, FloatArray]:
    X, Y = (np.loadtxt(data / "ocean" / f"{name}_train_gladfull.csv", delimiter=",") for name in ("XY", "UV"))
    return X, Y


def walks(data: Path, trials: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Positions with z = 0 (m), and the field (uT) less its mean."""
    folder = data / "magnetic" / "invensense"
    X, Y = (np.vstack([np.loadtxt(folder / f"{one}-{what}.csv", delimiter=",") for one in trials])
            for what in ("loc", "mag"))  # fmt: skip
    return np.column_stack([X, np.zeros(len(X))]), Y


def real(options: argparse.Namespace) -> Config:
    rows = []
    X, Y = glad(options.data)
    order = np.random.default_rng(0).permutation(len(X))
    folds = [np.sort(order[start::5]) for start in range(5)]
    splits = [(np.setdiff1d(order, fold), fold) for fold in folds]
    for length in (15.0, 30.0):
        for form in REAL_FORMS:
            kernel = kernel_of(form, kernels.Gaussian(length), length).fix(2, 2, np.eye(2))
            lattice, finer = (by_features(kernel, error, X, Y, folds) for error in REAL_ERRORS)
            random = [by_features(kernel, lattice[0], X, Y, folds, seed) for seed in (0, 1)]
            for lam in (1e-2, 1e-1):
                exact = exact_rmse(kernel, X, Y, splits, lam)
                rows.append({"data": "GLAD", "form": form, "length_scale": length, "lambda": lam, "m": lattice[0],
                             "exact": exact, "lattice": rmse_of_folds(lattice, lam) / exact,
                             "finer_m": finer[0], "finer": rmse_of_folds(finer, lam) / exact,
                             "orthogonal": [rmse_of_folds(one, lam) / exact for one in random]})  # fmt: skip
                print(rows[-1], flush=True)
    result: Config = {"rows": rows + magnetic(options), "nearly_constant": nearly_constant(options), "tune": []}
    for name in ("GLAD", "magnetic"):
        result["tune"].append(search(options, name))
        keep("real", result)
    result["job_of_a_constant_input"] = of_a_constant_input(options)
    return result


def of_a_constant_input(options: argparse.Namespace) -> str:
    """What a job says of the walks as they are, with z = 0 in all rows."""
    X, Y = walks(options.data, (1, 2, 3))
    with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
        folder = Path(place)
        written(folder, X, Y)
        kernel = {"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 0.4}}
        features = {"count": 4096, "sampler": {"type": "lattice", "error": 1e-4}}
        try:
            report = fit(job(folder, kernel=kernel, features=features, solve={"ridge": 1e-6}), engine=SerialEngine())
        except DorffError as error:
            return str(error).replace(place, "")
        return f"fitted with {report.m} features"


def magnetic(options: argparse.Namespace) -> list[Config]:
    """Every `thin`-th row of trials 1 to 3 predicts those of 4 and 5: so many the exact kernel can do."""
    X, Y = walks(options.data, (1, 2, 3, 4, 5))
    many = sum(len(walks(options.data, (trial,))[0]) for trial in (1, 2, 3))
    Y = Y - Y[:many].mean(axis=0)
    train, test = np.arange(0, many, options.thin), np.arange(many, len(X), options.thin)
    rows, length = [], 0.4
    for form in REAL_FORMS:
        kernel = kernel_of(form, kernels.Gaussian(length), length).fix(3, 3, np.eye(3))
        lattice, finer = (by_features(kernel, error, X, Y, [train, test]) for error in REAL_ERRORS)
        random = [by_features(kernel, lattice[0], X, Y, [train, test], seed) for seed in (0, 1)]
        for lam in (1e-2, 1.0):
            exact = exact_rmse(kernel, X, Y, [(train, test)], lam)
            rows.append({"data": "magnetic", "form": form, "length_scale": length, "lambda": lam, "m": lattice[0],
                         "exact": exact, "lattice": of_split(lattice, Y, X, test, lam) / exact,
                         "finer_m": finer[0], "finer": of_split(finer, Y, X, test, lam) / exact,
                         "orthogonal": [of_split(one, Y, X, test, lam) / exact for one in random]})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def of_split(made: tuple[int, OperatorKernel, Any, list[Solvable], FeatureMap], Y: FloatArray, X: FloatArray,
             test: Any, lam: float) -> float:  # fmt: skip
    m, kernel, density, parts, features = made
    weights = operator_weights(kernel, m, density)
    (solution,) = solve(Problem.of(parts[0], weights, intercept=False), [lam / parts[0].n])
    rest = Y[test] - features.transform(X[test]) @ weights.combined(solution.h)
    return float(np.sqrt(np.mean(rest**2)))


def nearly_constant(options: argparse.Namespace) -> list[Config]:
    """What a height that varies by so many metres does: it is an input like others, and has frequencies of its own."""
    X, _ = walks(options.data, (1, 2, 3, 4, 5))
    rows = []
    for height in (0.0, 1e-12, 1e-3, 0.1):
        sides = np.array([*np.ptp(X[:, :2], axis=0), height])
        for form in ("decomposable", "curl-free"):
            kernel = kernel_of(form, kernels.Gaussian(0.4), 0.4).fix(3, 3, np.eye(3))
            for error in (1e-2, 1e-4):
                recipe = lattice_of(kernel, sides, 3, error)
                reached = np.abs(deviations(kernel, recipe, *pairs(sides, 100))).max()
                rows.append({"height": height, "form": form, "error": error, "m": recipe.m,
                             "ceiling": recipe.m >= MOST - 6, "ratio": float(reached / error)})  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def written(folder: Path, X: FloatArray, Y: FloatArray, name: str = "data") -> None:
    d, q = X.shape[1], Y.shape[1]
    shard, unit = shard_and_unit_rows(d, q)
    layouts = {"x": ArrayLayout(d, shard, unit), "y": ArrayLayout(q, shard, unit)}
    for array, values in (("x", X), ("y", Y)):
        with ShardWriter(folder / f"{name}.zarr" / array, layouts[array]) as writer:
            writer.write(values)
    columns = {"x": tuple(f"x{i}" for i in range(d)), "y": tuple(f"y{i}" for i in range(q))}
    write_metadata(folder / f"{name}.zarr", layouts, rows=len(X), columns=columns)


def job(folder: Path, **parts: Any) -> Job:
    body: Config = {"data": {"store": "data.zarr"}, "cluster": {"type": "serial"}, "state": "state", "model": "model",
                    "features": {}, "solve": {"ridge": 1e-6}, **parts}  # fmt: skip
    return Job.model_validate(body, context={"folder": folder})


def search(options: argparse.Namespace, name: str) -> Config:
    """A whole `tune`: kernels x length-scales x ridges, by five folds of rows."""
    X, Y = glad(options.data) if name == "GLAD" else walks(options.data, (1, 2, 3, 4, 5))
    X = X[:, :2]  # the walks without their height: three targets of two inputs, which no field has
    kinds = ("decomposable", "curl_free", "divergence_free") if name == "GLAD" else ("decomposable",)
    lengths = (15.0, 20.0, 30.0) if name == "GLAD" else (0.4, 0.5, 0.6)
    each = [
        {"type": kind, "scalar": {"type": "gaussian", "lengthscale": length}} for kind in kinds for length in lengths
    ]
    ridges = [10.0**-power for power in range(1, 9)]
    with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
        folder = Path(place)
        written(folder, X, Y)
        turn = iter(range(99))

        def run(sampler: Config, count: int) -> Any:
            return tune(job(folder, kernel=each, features={"count": count, "sampler": sampler},
                            solve={"ridge": ridges, "select": "kfold", "folds": {"count": 5, "by": "rows"}},
                            state=f"state{next(turn)}"), engine=SerialEngine())  # fmt: skip

        lattice = {"type": "lattice", "error": 1e-3}
        first = run(lattice, 4096)
        m = max(trial.m for trial in first.table)
        results: dict[str, list[Any]] = {"lattice": [], "orthogonal": []}
        calls = {"lattice": lambda: results["lattice"].append(run(lattice, 4096)),
                 "orthogonal": lambda: results["orthogonal"].append(run({"type": "orthogonal"}, m))}  # fmt: skip
        seconds = in_turn(calls, options.repeats)
    shares = [a / b for a, b in zip(seconds["lattice"], seconds["orthogonal"], strict=True)]
    passes = [a.pass_seconds / b.pass_seconds for a, b in zip(*results.values(), strict=True)]
    line = {"data": name, "rows": len(X), "m": m, "trials": len(first.table), "time_over_orthogonal": spread(shares),
            "pass_over_orthogonal": spread(passes),
            "score": {key: value[0].trial.value for key, value in results.items()}}  # fmt: skip
    print(line, flush=True)
    return line


# ---- digits


def flow(n: int, seed: int, *, crowded: bool) -> tuple[FloatArray, FloatArray]:
    """Places in [0, 1] x [0, 2] and a divergence-free flow there with noise; crowded: nearly all in one corner."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 2)) * [1.0, 2.0]
    if crowded:
        X[: int(0.98 * n)] *= 0.05
    X[0], X[1] = 0.0, [1.0, 2.0]
    a, b = 3 * X[:, 0], 2 * X[:, 1]
    Y = np.column_stack([2 * np.cos(a) * np.cos(b), 3 * np.sin(a) * np.sin(b)])
    return X, Y + 0.05 * rng.standard_normal((n, 2))


def by_qr(model: Any, X: FloatArray, Y: FloatArray, ridge: float) -> FloatArray:
    """The fitted values of the same problem, by a QR of the features of the rows and of the ridge."""
    F, n, p = model.feature_map.transform(X), len(X), Y.shape[1]
    psi = np.broadcast_to(model.weights, (F.shape[1], *model.weights.shape[1:]))
    Phi = np.einsum("na,arp->npar", F, psi).reshape(n, p, -1)
    centred = (Phi - Phi.mean(axis=0)).reshape(n * p, -1)
    mean = Y.mean(axis=0)
    tall = np.vstack([centred, math.sqrt(n * ridge) * np.eye(centred.shape[1])])
    right = np.concatenate([(Y - mean).ravel(), np.zeros(centred.shape[1])])
    Q, R = scipy.linalg.qr(tall, mode="economic", overwrite_a=True)
    w = scipy.linalg.solve_triangular(R, Q.T @ right)
    return np.asarray((centred @ w).reshape(n, p) + mean)


def digits(_: argparse.Namespace) -> list[Config]:
    fields = {
        "divergence-free": {"type": "divergence_free", "scalar": {"type": "gaussian", "lengthscale": 0.4}},
        "independent": {"type": "decomposable", "scalar": {"type": "matern", "nu": 2.5, "lengthscale": 1.0}},
    }
    rows = []
    for crowded in (False, True):
        X, Y = flow(3000, 0, crowded=crowded)
        with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
            folder = Path(place)
            written(folder, X, Y)
            for name, kernel in fields.items():
                for tolerance in (1e-6, 1e-8, 1e-10, 1e-12):
                    sampler = {"type": "lattice", "error": 1e-3, "tolerance": tolerance}
                    for ridge in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12):
                        for route in ("direct", "cg"):
                            made = job(
                                folder, kernel=kernel, features={"count": 600, "sampler": sampler},
                                solve={"ridge": ridge, "route": route}, state=f"{name} {tolerance:g}",
                                model=f"{name} {tolerance:g} {ridge:g} {route}", publish={"digits": 0},
                            )  # fmt: skip
                            report = fit(made, engine=SerialEngine())
                            model = load_model(Path(str(made.model)))
                            wanted = by_qr(model, X, Y, ridge)
                            away = np.linalg.norm(model.predict(X) - wanted) / np.linalg.norm(wanted - wanted.mean(0))
                            rows.append({
                                "kernel": name, "crowded": crowded, "tolerance": tolerance, "ridge": ridge,
                                "route": route, "m": report.m, "says": report.digits, "status": report.status,
                                "rung": report.rung, "reads": report.passes, "condition": report.condition,
                                "right": float(-np.log10(max(away, 1e-17))),
                            })  # fmt: skip
        worst = min(rows, key=lambda row: row["right"] - row["says"])
        print(f"crowded {crowded}: worst says {worst['says']:.1f}, right {worst['right']:.1f}: {worst}", flush=True)
    return rows


# ---- limits

#: Scalar kernel, its length-scale in sides of the box, d.
CASES = (
    ("Gaussian", 0.2, 2), ("Matern 5/2", 0.2, 2), ("Gaussian", 0.1, 3), ("Matern 5/2", 0.2, 3), ("Matern 3/2", 0.2, 3),
    ("Matern 3/2", 0.5, 3), ("Gaussian", 0.04, 3), ("Gaussian", 0.02, 3), ("Matern 5/2", 0.04, 3), ("Gaussian", 0.5, 4),
    ("Gaussian", 0.2, 4), ("Matern 5/2", 0.5, 4), ("Gaussian", 1.0, 5), ("Gaussian", 0.5, 5), ("Matern 5/2", 1.0, 5),
)  # fmt: skip


def wanted_features(scalar: Any, length: float, d: int, error: float) -> float:
    """About how many features a lattice of that error has: points of an ellipsoid, half of them, twice."""
    body = Body(
        scalar=scalar,
        field=False,
        error=error,
        sides=np.ones(d),
        wanted=np.zeros(d, dtype=bool),
        sink=ConstantSink.INTERCEPT,
    )
    radius = float(body.end[0] / body.step[0])
    return float(math.pi ** (d / 2) / scipy.special.gamma(d / 2 + 1) * radius**d)


def limits(_: argparse.Namespace) -> list[Config]:
    rows = []
    for name, length, d in CASES:
        scalar = SCALARS[name](length)
        kernel = kernels.Decomposable(scalar).fix(d, 1)
        rng = np.random.default_rng(d)
        X, Z = rng.uniform(0, 1, (2, 400, d))
        Z[:200] = X[:200] + length * rng.standard_normal((200, d)) * 0.5  # a length-scale apart: where k is not 0
        Z = np.clip(Z, 0, 1)
        line: Config = {"scalar": name, "length_scale": length, "d": d,
                        "m_for": {f"{error:g}": wanted_features(scalar, length, d, error)
                                  for error in (1e-2, 1e-3, 1e-4)}, "at": []}  # fmt: skip
        for m in (1024, 4096, 16384):
            lattice: dict[str, float] | None = None
            for error in ERRORS[:4]:
                recipe = lattice_of(kernel, np.ones(d), 1, error, count=m)
                away = deviations(kernel, recipe, X, Z)
                one = {"rmse": float(np.sqrt(np.mean(away**2))), "sup": float(np.abs(away).max()), "m": recipe.m,
                       "error": error}  # fmt: skip
                if lattice is None or one["rmse"] < lattice["rmse"]:
                    lattice = one
                if recipe.m >= m - 2:
                    break
            recipe = Recipe(kernel, frequencies.Orthogonal(), d, 1, m, False)
            random = [deviations(kernel, recipe, X, Z, seed=seed) for seed in range(3)]
            line["at"].append({"m": m, "lattice": lattice,
                               "orthogonal": {"rmse": float(np.sqrt(np.mean(np.square(random)))),
                                              "sup": float(np.abs(random).max())}})  # fmt: skip
        rows.append(line)
        print(json.dumps(line), flush=True)
    return rows


# ---- pass

FIELD_SCALE, NOISE, WAVES = 0.05, 0.3, 400
PASS_KERNEL: Config = {"type": "divergence_free", "scalar": {"type": "gaussian", "lengthscale": 0.1}}


def waves() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Frequencies, phases and slopes of waves as strong as each other, of a divergence-free field of size 1: drawn from
    the trace of the spectrum of a Matern 5/2 kernel, so that waves of high frequency are among them."""
    rng = np.random.default_rng(0)
    radius = np.sqrt(5.0 * rng.chisquare(4.0, WAVES) / rng.chisquare(3.0, WAVES)) / FIELD_SCALE
    angle = rng.uniform(0, 2 * np.pi, WAVES)
    along, across = np.column_stack([np.cos(angle), np.sin(angle)]), np.column_stack([-np.sin(angle), np.cos(angle)])
    return radius[:, None] * along, rng.uniform(0, 2 * np.pi, WAVES), across * 2.0 / math.sqrt(WAVES)


def flow_at(X: FloatArray) -> FloatArray:
    w, phases, slopes = waves()
    return np.concatenate([
        np.cos(X[at : at + 10_000] @ w.T + phases) @ slopes for at in range(0, len(X), 10_000)
    ])  # fmt: skip


def write_field(path: Path, rows: int, *, quick: bool) -> None:
    """Places in the unit square and a flow there with noise, a shard at a time; quick: of few waves."""
    shard, unit = shard_and_unit_rows(2, 2)
    layouts = {"x": ArrayLayout(2, shard, unit), "y": ArrayLayout(2, shard, unit)}
    rng = np.random.default_rng(1)
    with ShardWriter(path / "x", layouts["x"]) as xs, ShardWriter(path / "y", layouts["y"]) as ys:
        for start in range(0, rows, shard):
            X = rng.uniform(0, 1, (min(shard, rows - start), 2))
            a, b = 9 * X[:, 0], 7 * X[:, 1]
            Y = np.column_stack([7 * np.cos(a) * np.cos(b), 9 * np.sin(a) * np.sin(b)]) / 6 if quick else flow_at(X)
            xs.write(X)
            ys.write(Y + NOISE * rng.standard_normal(Y.shape))
    write_metadata(path, layouts, rows=rows, columns={"x": ("a", "b"), "y": ("u", "v")})


def pass_body(folder: Path, name: str, tolerance: float, workers: int, state: str) -> Config:
    return {
        "data": {"store": f"{name}.zarr", "box": [[0, 1], [0, 1]]}, "kernel": PASS_KERNEL,
        "features": {"count": 2000, "sampler": {"type": "lattice", "error": 1e-3, "tolerance": tolerance}},
        "solve": {"ridge": 1e-6}, "state": state, "model": f"model-{state}",
        "cluster": {"type": "local", "workers": workers, "memory": "2GiB", "small_jobs": "workers"},
    }  # fmt: skip


def at_once(processes: int, work: Callable[..., float], *arguments: Any) -> float:
    """Rows a second, summed, of `work` in so many processes."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.SimpleQueue()
    each = [
        context.Process(target=_rate, args=(ready, rates, work, number, processes, *arguments))
        for number in range(processes)
    ]
    for one in each:
        one.start()
    total = sum(float(rates.get()) for _ in each)
    for one in each:
        one.join()
    return total


def _rate(ready: Any, rates: Any, work: Callable[..., float], *arguments: Any) -> None:
    rates.put(work(ready, *arguments))


def bare_reading(ready: Any, number: int, of: int, store: Path) -> float:
    """Of this process's part of the rows, in blocks as the pass reads them."""
    dataset = open_dataset(store)
    step = max(dataset.unit_rows, LATTICE_ROWS // dataset.unit_rows * dataset.unit_rows)
    starts = range(number * step, dataset.n, of * step)
    dataset.block(0, step)
    ready.wait()
    began, rows = time.perf_counter(), 0
    for start in starts:
        rows += len(dataset.block(start, min(start + step, dataset.n)))
    return rows / (time.perf_counter() - began)


def bare_sums(ready: Any, number: int, _: int, extents: tuple[int, ...], tolerance: float, rows: int) -> float:
    """Of rows that are there already: the sums of exponentials that the pass makes, and no more."""
    rng, adder = np.random.default_rng(number), exponentials(extents, 2, tolerance)
    v = len(extents)
    blocks = [rng.uniform(-np.pi, np.pi, (LATTICE_ROWS, v + 3)) for _ in range(8)]
    adder.add(blocks[0])
    ready.wait()
    began, done = time.perf_counter(), 0
    while done < rows:
        adder.add(blocks[(done // LATTICE_ROWS) % len(blocks)])
        done += LATTICE_ROWS
    return done / (time.perf_counter() - began)


def bare_finufft(ready: Any, number: int, _: int, extents: tuple[int, ...], tolerance: float, rows: int) -> float:
    """The same sums by finufft, a quarter of a million rows at a time."""
    rng = np.random.default_rng(number)
    theta, strengths = rng.uniform(-np.pi, np.pi, (2**18, len(extents))), rng.standard_normal((2**18, 3))
    their_sums(extents, tolerance, theta, strengths)
    ready.wait()
    began, turns = time.perf_counter(), max(1, rows // 2**18)
    for _turn in range(turns):
        their_sums(extents, tolerance, theta, strengths)
    return turns * 2**18 / (time.perf_counter() - began)


def passed(folder: Path, tolerance: float, workers: int, state: str) -> float:
    """Rows a second of a pass over all rows, on workers that are there: they have done a small pass."""
    with open_engine(job(folder, **pass_body(folder, "small", tolerance, workers, state)).cluster) as engine:
        run_pass(make_plan(job(folder, **pass_body(folder, "small", tolerance, workers, f"{state}-small"))), engine)
        plan = make_plan(job(folder, **pass_body(folder, "large", tolerance, workers, state)))
        began = time.perf_counter()
        run_pass(plan, engine)
        return plan.dataset.rows / (time.perf_counter() - began)


def speed(options: argparse.Namespace, folder: Path) -> list[Config]:
    lines = []
    for tolerance in (1e-6, 1e-12):
        plan = make_plan(job(folder, **pass_body(folder, "small", tolerance, 1, "look")))
        assert plan.recipe.lattice is not None
        extents = extents_of(plan.recipe.lattice)
        assert isinstance(exponentials(extents, 2, tolerance), GridExponentials)
        for workers in map(int, options.workers.split(",")):
            of = ("of_reading", "of_sums", "of_finufft", "of_the_slower", "of_one_after_other")
            shares: dict[str, list[float]] = {name: [] for name in of}
            rates = []
            for turn in range(options.repeats):
                reading = at_once(workers, bare_reading, folder / "large.zarr")
                rows = min(options.rows // 4, 10_000_000)
                sums, theirs = (at_once(workers, one, extents, tolerance, rows) for one in (bare_sums, bare_finufft))
                rate = passed(folder, tolerance, workers, f"speed {tolerance:g} {workers} {turn}")
                both = 1 / (1 / reading + 1 / sums)
                limits = (reading, sums, theirs, min(reading, sums, theirs), both)
                for name, limit in zip(shares, limits, strict=True):
                    shares[name].append(rate / limit)
                rates.append({"pass": rate, "reading": reading, "sums": sums, "finufft": theirs})
            lines.append({"tolerance": tolerance, "workers": workers, "m": plan.costs.m, "extents": extents,
                          "rows": options.rows, **{name: spread(values) for name, values in shares.items()},
                          "rows_per_s": rates})  # fmt: skip
            print(json.dumps(lines[-1]), flush=True)
    return lines


def command(folder: Path, body: Config) -> list[str]:
    path = folder / f"{body['state']}.yaml"
    path.write_text(json.dumps(body))  # JSON is YAML
    run = "from dorff.cli import main; main()"
    return [sys.executable, "-c", run, "fit", str(path), "--json"]


def digest(folder: Path, body: Config) -> str:
    return hashlib.sha256(load_model(folder / body["model"]).coefficients.tobytes()).hexdigest()


def same_bits(folder: Path) -> Config:
    """Fits by one and two workers, whole and killed with all their processes once leaves were done; their memory."""
    from memory import proportional

    lines = []
    for workers, kills in ((1, 0), (2, 0), (1, 2), (2, 2)):
        body = pass_body(folder, "large", 1e-12, workers, f"bits-{workers}-{kills}")
        killed = 0
        while killed < kills:
            process = subprocess.Popen(command(folder, body), stdout=subprocess.DEVNULL, start_new_session=True)
            before = receipts(folder, body)
            while process.poll() is None and receipts(folder, body) < before + 2:
                time.sleep(0.05)
            if process.poll() is None:
                killed += 1
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.returncode == 0:
                break
        process = subprocess.Popen(command(folder, body), stdout=subprocess.PIPE, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, proportional(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        lines.append({"workers": workers, "killed": killed, "sha256": digest(folder, body), "peak_bytes": peak,
                      "plan_peak_bytes": report["plan_peak_bytes"], "share": peak / report["plan_peak_bytes"],
                      "leaves_reused": report["leaves_reused"], "leaves": report["leaves_computed"]})  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    return {"fits": lines, "same": len({line["sha256"] for line in lines}) == 1}


def receipts(folder: Path, body: Config) -> int:
    return len(list((folder / body["state"]).glob("*/receipts/*.json")))


def our_sums(extents: tuple[int, ...], tolerance: float, theta: FloatArray, strengths: FloatArray) -> Any:
    adder, Z = exponentials(extents, 2, tolerance), np.hstack([theta, strengths])
    for start in range(0, len(theta), LATTICE_ROWS):
        adder.add(Z[start : start + LATTICE_ROWS])
    return adder.sums()[0]


def their_sums(extents: tuple[int, ...], tolerance: float, theta: FloatArray, strengths: FloatArray) -> Any:
    """By finufft: T of the weights on twice the extents, R of two targets as one complex column."""
    import finufft

    transform = {2: finufft.nufft2d1, 3: finufft.nufft3d1}[len(extents)]
    columns, how = list(np.ascontiguousarray(theta.T)), {"eps": tolerance, "isign": 1, "nthreads": 1}
    T = transform(*columns, strengths[:, 0].astype(complex), tuple(4 * M + 1 for M in extents), **how)
    transform(*columns, strengths[:, 1] + 1j * strengths[:, 2], tuple(2 * M + 1 for M in extents), **how)
    return T


def against_finufft(repeats: int) -> list[Config]:
    """Seconds of our sums over those of finufft's; and the largest error of both, over the strengths' summed sizes, of
    some of the sums."""
    if importlib.util.find_spec("finufft") is None:
        print("finufft is not installed: no comparison", flush=True)
        return []
    lines, rows = [], 2**20
    for extents in ((16, 16), (60, 60), (150, 150), (10, 10, 10)):
        rng, d = np.random.default_rng(0), len(extents)
        theta = rng.uniform(-np.pi, np.pi, (rows, d))
        strengths = np.column_stack([np.ones(rows), rng.standard_normal((rows, 2))])
        most = 2 * np.array(extents)
        at = rng.integers(-most, most + 1, (20, d))
        at = np.where(at[:, -1:] < 0, -at, at)
        exact = np.array([np.sum(np.exp(1j * (theta @ k))) for k in at])
        middle = np.append(most[:-1], 0)
        for tolerance in (1e-9, 1e-12):
            given = (extents, tolerance, theta, strengths)
            errors = [
                float(np.abs(T[tuple((at + shift).T)] - exact).max() / rows)
                for T, shift in ((our_sums(*given), middle), (their_sums(*given), most))
            ]
            seconds = in_turn({"ours": partial(our_sums, *given), "theirs": partial(their_sums, *given)}, repeats)
            lines.append({
                "extents": extents, "tolerance": tolerance, "kind": type(exponentials(extents, 2, tolerance)).__name__,
                "over_finufft": spread([a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]),
                "error": errors[0], "error_finufft": errors[1],
            })  # fmt: skip
            print(json.dumps(lines[-1]), flush=True)
    return lines


def the_pass(options: argparse.Namespace) -> Config:
    """The steps that are asked for; the data are kept where `--place` says."""
    result: Config = kept().get("pass", {}) | {"where": options.where}
    with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
        folder = options.place or Path(place)
        if "sums" in options.steps:
            result["sums"] = against_finufft(2 * options.repeats - 1)
            keep("pass", result)
        for name, rows in (("small", 2**18), ("large", options.rows)):
            if not (folder / f"{name}.zarr" / "zarr.json").exists():
                write_field(folder / f"{name}.zarr", rows, quick=True)
            if (there := open_dataset(folder / f"{name}.zarr").n) != rows:
                raise SystemExit(f"{folder / name}.zarr has {there} rows and not {rows}; remove it, or ask for as many")
        if "speed" in options.steps:
            result["speed"] = speed(options, folder)
            keep("pass", result)
        if "bits" in options.steps:
            result["bits"] = same_bits(folder)
    return result


# ---- solve


SOLVE_KERNEL: Config = {
    "type": "divergence_free",
    "scalar": {"type": "matern", "nu": 2.5, "lengthscale": FIELD_SCALE},
}
SOLVE_SAMPLER: Config = {"type": "lattice", "error": 1e-4, "tolerance": 1e-12}


def ridge_of(rows: int) -> float:
    """The noise's variance over the rows, in units in which the kernel is as large as the field."""
    kernel = kernels.DivergenceFree(kernels.Matern(FIELD_SCALE, nu=2.5)).fix(2, 2, np.eye(2))
    return float(kernel.gram(np.zeros((1, 2)), np.zeros((1, 2)))[0, 0, 0, 0]) * NOISE**2 / rows


def apart(model: Path) -> float:
    """The error of a model on places without noise."""
    X = np.random.default_rng(5).uniform(0, 1, (4000, 2))
    return float(np.sqrt(np.mean((load_model(model).predict(X) - flow_at(X)) ** 2)))


def the_solve(options: argparse.Namespace) -> Config:
    """One pass, and systems of ever fewer features from its sums."""
    rows, lines = options.solve_rows, list[Config]()
    result: Config = {"rows": rows, "ridge": ridge_of(rows), "noise": NOISE, "fits": lines}
    with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
        folder = Path(place)
        write_field(folder / "data.zarr", rows, quick=False)
        for m in (88_612, 33_000, 16_384, 8192, 4096):
            made = job(
                folder, kernel=SOLVE_KERNEL, data={"store": "data.zarr", "box": [[0, 1], [0, 1]]}, model=f"model{m}",
                solve={"ridge": ridge_of(rows), "route": "cg"}, features={"count": m, "sampler": SOLVE_SAMPLER},
                publish={"digits": 0},
            )  # fmt: skip
            report = fit(made, engine=SerialEngine())
            lines.append({"m": report.m, "rmse": apart(folder / f"model{m}"), "status": report.status,
                          "digits": report.digits, "reads": report.reads})  # fmt: skip
            print(json.dumps(lines[-1]), flush=True)
            if m == 88_612:
                result["iterations"] = iterations(made, options.repeats)
                print(json.dumps(result["iterations"]), flush=True)
            keep("solve", result)
    return result


def fewer_rows(options: argparse.Namespace) -> Config:
    """Of fewer rows a random map and a lattice, each of 4096 features: with all of them random ones take long."""
    rows, errors = options.random_rows, dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="dorff-lattice-") as place:
        folder = Path(place)
        write_field(folder / "data.zarr", rows, quick=False)
        for sampler in (SOLVE_SAMPLER, {"type": "orthogonal"}):
            name = sampler["type"]
            made = job(folder, kernel=SOLVE_KERNEL, solve={"ridge": ridge_of(rows)}, publish={"digits": 0},
                       features={"count": 4096, "sampler": sampler}, state=f"{name}-state", model=name,
                       cluster={"type": "local", "workers": 2, "memory": "4GiB"})  # fmt: skip
            fit(made)
            errors[name] = apart(folder / name)
            print(name, errors[name], flush=True)
    return {"rows": rows, "m": 4096, "errors": errors}


def iterations(made: Job, repeats: int) -> Config:
    """Steps to a residual of 1e-3 and to the end, by both preconditioners; a product's seconds over a dense one's."""
    plan = make_plan(made)
    setting, parts = settings(plan)[0], filled(plan, run_pass(plan, SerialEngine()).folds)[0]
    assert setting.features is not None
    modes = modes_of(setting.features)
    parts = [part.on(modes.modes, modes.extents) for part in parts if isinstance(part, LatticeMoments)]
    weights = setting.weights(setting.fixed(parts))
    how: Config = {"intercept": setting.intercept, "scale": setting.scaling(parts), "observe": None}
    system = make_system(*of_moments(parts), weights, **how)
    ridge = float(made.solve.ridges[0])
    block = heavy(system, parts, [ridge])
    jacobi = Heavy(block._diagonal, block._at[:0], block._block[:0, :0], block._largest)
    result: Config = {"unknowns": system.size, "factored": len(block._at)}
    for name, preconditioner in (("block", block), ("diagonal", jacobi)):
        began = time.perf_counter()
        done = iterate(system, ridge, preconditioner, tolerance=1e-10)
        seconds = time.perf_counter() - began
        result[name] = {
            "to_1e-3": next((at for at, error in enumerate(done.errors) if error <= 1e-3), None),
            "all": done.iterations, "converged": done.solution.converged, "least_error": min(done.errors),
        }  # fmt: skip
        print(name, result[name], f"{seconds:.0f} s", flush=True)
    x, rng = np.ones((system.size, 1)), np.random.default_rng(0)
    dense = rng.standard_normal((4096, 4096))
    v = np.ones(4096)
    seconds_of = in_turn({"lattice": lambda: system.apply(x, np.zeros(1, int)), "dense": lambda: dense @ v},
                         10 * repeats)  # fmt: skip
    result["product_over_dense"] = spread(
        [a / b for a, b in zip(seconds_of["lattice"], seconds_of["dense"], strict=True)]
    )
    return result


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "rule": rule, "real": real, "digits": digits, "limits": limits, "pass": the_pass, "solve": the_solve,
    "fewer_rows": fewer_rows,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them (all)")
    parser.add_argument("--data", type=Path, help="the folder of real data")
    parser.add_argument("--rows", type=int, default=20_000_000, help="rows of the pass")
    parser.add_argument("--steps", default="sums,speed,bits", help="of the pass")
    parser.add_argument("--workers", default="1,2", help="numbers of them that the pass is timed with")
    parser.add_argument("--where", default="", help="what to say of the machine of the pass")
    parser.add_argument("--place", type=Path, help="a folder for the pass's data, which stay there")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of results")
    parser.add_argument("--solve-rows", type=int, default=10_000_000, help="rows of the large solve")
    parser.add_argument("--random-rows", type=int, default=400_000, help="rows of the solve by random features")
    parser.add_argument("--thin", type=int, default=10, help="of the magnetic walks every so many rows")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    globals()["OUT"] = options.out
    for part in options.only.split(","):
        keep(part, PARTS[part](options))


if __name__ == "__main__":
    main()
