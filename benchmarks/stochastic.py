"""Descent by batches against L-BFGS, and doubly stochastic descent against descent on features drawn once.

    python benchmarks/stochastic.py [--data DIR] [--rows 10000] [--runs 3] [--out benchmarks/results]

MNIST (multinomial, length-scale 7, 1024 features) and Powerplant (square, standardised, length-scale 1, 512 features),
ridge 1e-6, batches of 64, one BLAS thread. `curves` have, pass by pass, seconds since the start, evaluation left out;
the objective above the least that any method of the run came to; and the test error: the share of wrong classes, or
the mean square over the targets' variance. Descent makes features anew in each pass; L-BFGS has them all in memory, and
their making is in its seconds. `sgd_flat` is SGD whose rates do not differ by direction. `equal_time`: the test error
of doubly stochastic descent after one pass, 128 features a step, and of SGD as soon as it has taken as long. `growth`
is e where the seconds of step t go as t^e: a line through medians of windows, from step 50 on; and, as `net`, of the
seconds less those of the first steps, which are the step's own rows and features. Seconds are of one
machine: read ratios within a run. Of several runs, each with its own seed, medians and the worst.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import powerplant
from mnist import images, labels

from dorff import (
    DoublyStochasticClassifier,
    DoublyStochasticRegressor,
    StochasticORFFClassifier,
    StochasticORFFRegressor,
    kernels,
)
from dorff.estimators.array_sums import one_thread
from dorff.solvers.descent import Cosine, steepest
from dorff.solvers.minimise import lbfgs
from dorff.solvers.objective import Attempt, Evaluator

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
RIDGE, PASSES, DRAWN, BATCH, LONG = 1e-6, 10, 128, 64, 300


class Task(NamedTuple):
    """One data set: rows, test rows, features, and which estimators."""

    X: Any
    y: Any
    Z: Any
    t: Any
    m: int
    kernel: Any
    of: Any
    double: Any
    more: dict[str, Any]


def tasks(folder: Path, rows: int) -> dict[str, Task]:
    plant = powerplant(folder)
    order = np.random.default_rng(0).permutation(len(plant.y))
    V, u = plant.other[order], plant.y[order].astype(float)
    u, digits = (u - u.mean()) / u.std(), folder / "mnist"
    return {
        "mnist": Task(
            images(digits, "train")[:rows],
            labels(digits, "train")[:rows].astype(int),
            images(digits, "t10k")[:5000],
            labels(digits, "t10k")[:5000].astype(int),
            1024,
            kernels.Gaussian(7.0),
            StochasticORFFClassifier,
            DoublyStochasticClassifier,
            {"classes": list(range(10))},
        ),
        "powerplant": Task(
            V[:7500],
            u[:7500],
            V[7500:],
            u[7500:],
            512,
            kernels.Gaussian(1.0),
            StochasticORFFRegressor,
            DoublyStochasticRegressor,
            {},
        ),
    }


def targets(task: Task) -> Any:
    return np.eye(10)[task.y] if task.more else task.y[:, None]


def test_error(task: Task, f: Any) -> float:
    if task.more:
        return float(np.mean(f.argmax(axis=1) != task.t))
    return float(np.mean((f[:, 0] - task.t) ** 2) / task.t.var())


def by_passes(task: Task, estimator: Any, count: int, until: float = np.inf) -> list[list[float]]:
    """[seconds, objective, test error] pass by pass."""
    curve, seconds, F = list[list[float]](), 0.0, None
    while len(curve) < count and seconds < until:
        began = time.perf_counter()
        estimator.partial_fit(task.X, task.y, **task.more)
        seconds += time.perf_counter() - began
        model, course = estimator.model_, estimator._stream
        F = model.feature_map.transform(task.X) if F is None else F
        f = F @ model._combined + model.intercept
        loss = course.how.problem.loss.terms(f, targets(task)).value.sum() / len(F)
        curve.append(
            [seconds, loss + RIDGE * float(np.sum(model.coefficients**2)), test_error(task, model.predict(task.Z))]
        )
    return curve


def by_lbfgs(task: Task, problem: Any, features: Any, shift: Any) -> list[list[float]]:
    """The same, a pass each evaluation."""
    began = time.perf_counter()
    F, y, seconds, curve = features.transform(task.X), targets(task) - shift, 0.0, list[list[float]]()
    Z, G = np.hstack([F, np.ones((len(F), 1))]), features.transform(task.Z)
    centred = F - problem.mean
    whole = problem.__class__(**{**vars(problem), "S": centred.T @ centred / len(F), "sizes": {0: float(len(F))}})

    def ask(V: Any, width: float) -> dict[int, Any]:
        terms = problem.loss.terms(Z @ V, y, width)
        beside = terms.value, terms.smooth, terms.slope**2 / 2, terms.curvature
        return {0: np.vstack([Z.T @ terms.slope, *(one.sum(axis=0) for one in beside)])}

    def seen(state: Any) -> None:
        nonlocal seconds, began
        seconds += time.perf_counter() - began
        f = G @ problem.weights.combined(state.h) + state.b + shift
        curve.append([seconds, state.value, test_error(task, f)])
        began = time.perf_counter()

    lbfgs(Evaluator(whole, ask), [Attempt(RIDGE)], [whole.start], 1e-5, seen)
    return curve


def flat(estimator: Any) -> Any:
    """The same with one rate for all directions."""
    begin = estimator._begin

    def same(drawing: Any, kernel: Any, X: Any, y: Any, size: float) -> Any:
        how, at = begin(drawing, kernel, X, y, size)
        F = drawing.features.transform(X) - how.problem.mean
        level, longest = np.linalg.eigvalsh(F.T @ F / len(F))[-1], np.sum(F**2, axis=1).max()
        rate = BATCH / (steepest(how.problem.loss, y) * (longest + (BATCH - 1) * level))
        rates = how.rates._replace(step=rate, U=how.rates.U[:, :0], off=how.rates.off[:0])
        return how.__class__(**{**vars(how), "rates": rates}), at

    estimator._begin = same
    return estimator


def methods(task: Task, seed: int) -> dict[str, Callable[[], Any]]:
    def made(**options: Any) -> Any:
        return task.of(task.kernel, task.m, ridge=RIDGE, random_state=seed, batch_size=BATCH, **options)

    steps = PASSES * -(-len(task.X) // BATCH)
    return {
        "sgd": made,
        "sgd_last_step": lambda: made(average=False),
        "sgd_flat": lambda: flat(made()),
        "adam": lambda: made(solver="adam"),
        "adam_cosine": lambda: made(solver="adam", schedule=Cosine(steps), average=False),
    }


def run(task: Task, seed: int) -> dict[str, Any]:
    task.of(task.kernel, task.m, epochs=1).fit(task.X[:200], task.y[:200])  # compiles
    curves = dict[str, list[list[float]]]()
    for name, make in methods(task, seed).items():
        curves[name] = by_passes(task, make(), PASSES)
        print(name, curves[name][-1], flush=True)
    one = methods(task, seed)["sgd"]().partial_fit(task.X[:2000], task.y[:2000], **task.more)
    curves["lbfgs"] = by_lbfgs(task, one._stream.how.problem, one.model_.feature_map, one._stream.shift)
    print("lbfgs", curves["lbfgs"][-1], flush=True)
    best = min(point[1] for curve in curves.values() for point in curve)
    for curve in curves.values():
        for point in curve:
            point[1] -= best
    double = task.double(task.kernel, n_features=DRAWN, ridge=RIDGE, random_state=seed, batch_size=BATCH)
    began = time.perf_counter()
    double.partial_fit(task.X, task.y, **task.more)
    seconds = time.perf_counter() - began
    equal = by_passes(task, methods(task, seed)["sgd"](), 1000, seconds)
    mine = test_error(task, double.decision_function(task.Z) if task.more else double.predict(task.Z)[:, None])
    return {
        "curves": curves,
        "best": best,
        "growth": growth(task, double),
        "equal_time": {
            "doubly": mine,
            "doubly_steps": double.steps_,
            "sgd": equal[-1][2],
            "sgd_passes": len(equal),
            "sgd_first_pass": equal[0][2],
            "sgd_first_pass_share_of_time": equal[0][0] / seconds,
        },
    }


def growth(task: Task, estimator: Any) -> dict[str, float]:
    """Steps go on from one pass to LONG of them."""
    course, rng, seconds = estimator._stream, np.random.default_rng(0), list[float]()
    y = targets(task) - course.shift
    at, x = course.at, (task.X - course.drawing.features.center) / course.drawing.features.scale
    at = at.__class__(at.recipe, at.seed, at.alpha[:0], at.b)
    for _ in range(LONG):
        i = rng.integers(0, len(x), BATCH)
        began = time.perf_counter()
        at = course.how.step(at, x[i], y[i], np.ones(BATCH))
        seconds.append(time.perf_counter() - began)
    windows = np.arange(50, LONG, 50)
    medians = [float(np.median(seconds[a : a + 50])) for a in windows]
    own, at_step = float(np.median(seconds[1:8])), np.log(windows + 25.0)
    e, net = (float(np.polyfit(at_step, np.log(each), 1)[0]) for each in (medians, np.array(medians) - own))
    return {"exponent": e, "net": net, "last_over_first": medians[-1] / medians[0], "steps": LONG}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs, and the worst."""
    out: dict[str, Any] = {}
    for name in runs[0]["curves"]:
        ends = np.array([one["curves"][name][-1] for one in runs])
        share = [one["curves"][name][-1][0] / one["curves"]["lbfgs"][-1][0] for one in runs]
        out[name] = {
            "excess": float(np.median(ends[:, 1])),
            "worst_excess": float(ends[:, 1].max()),
            "error": float(np.median(ends[:, 2])),
            "worst_error": float(ends[:, 2].max()),
            "first_pass_error": float(np.median([one["curves"][name][0][2] for one in runs])),
            "passes": int(np.median([len(one["curves"][name]) for one in runs])),
            "seconds_over_lbfgs": float(np.median(share)),
        }
    for key in ("equal_time", "growth"):
        out[key] = {name: float(np.median([one[key][name] for one in runs])) for name in runs[0][key]}
        out[key] |= {f"{name}_worst": max(one[key][name] for one in runs) for name in runs[0][key]}
    return out


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=10_000, help="of MNIST")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    results: dict[str, Any] = {"ridge": RIDGE, "batch": BATCH, "drawn": DRAWN, "rows": given.rows, "runs": given.runs}
    with one_thread():
        for name, task in tasks(given.data, given.rows).items():
            runs = [run(task, seed) for seed in range(given.runs)]
            results[name] = {"summary": summary(runs), "first_run": runs[0]}
            print(json.dumps({name: results[name]["summary"]}, indent=1), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "stochastic.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
