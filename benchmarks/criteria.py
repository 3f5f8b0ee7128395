"""Which criterion chooses well, of the same length-scales and ridges, on held-out folds of many tables: GCV, evidence,
exact leave-one-out, or k-fold by rows, by blocks of rows or by groups.

    python benchmarks/criteria.py --data DIR [--only NAME ...] [--rows 600] [--splits 3] [--out benchmarks/results]

Tables are those of defaults.py, at most `--rows` rows of each, evenly spread; classes are one-hot rows. On each
training part a regressor is fitted at every length-scale (in standard deviations of the inputs, times the root of
their number) and ridge, each criterion takes its best, and the score is R2 of that fit on the held-out part: the mean
of outputs, pooled for fields. The outer folds are of the table's own kind: rows, blocks of rows in order, or groups;
criteria by groups are there where the table has some. `mean` is over the `--splits` outer folds, `worst` of one.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from defaults import FloatArray, arguments, folds_of, made, score, shipped

from dorff import ORFFRegressor, kernels

LENGTHS = (0.2, 0.4, 0.8, 1.6, 3.2)
RIDGES = [10.0**power for power in range(-12, 3)]
FOLDS = 5
FEATURES, FIELD_FEATURES = 512, 256  # of fields each of two outputs has as many unknowns
CLOSE = 0.02  # R2 below the best of the criteria that is as good


def regressor(length: float, d: int, how: Any, ridge: Any, **options: Any) -> ORFFRegressor:
    scalar = kernels.Gaussian(length * np.sqrt(d))
    field = isinstance(how, str) and how == "field"
    kernel = kernels.CurlFree(scalar) + kernels.DivergenceFree(scalar) if field else scalar
    return ORFFRegressor(
        kernel, FIELD_FEATURES if field else FEATURES, ridge=ridge, standardize=True, posterior=False, **options
    )


def values_of(name: str, length: float, X: FloatArray, Y: FloatArray, how: Any) -> npt.NDArray[np.float64]:
    """What the criterion `name` makes of every ridge at a length-scale: the best has most."""
    if name in ("gcv", "evidence", "loo"):
        model = regressor(length, X.shape[1], how, RIDGES, cv=None, criterion=name).fit(X, Y)
        values = {"gcv": "gcv_", "evidence": "log_evidences_", "loo": "cv_scores_"}[name]
        return np.asarray(getattr(model, values)) * (-1.0 if name == "gcv" else 1.0)
    folds = folds_of(how if name == "groups" else name, len(X), FOLDS)
    return np.asarray(regressor(length, X.shape[1], how, RIDGES, cv=folds).fit(X, Y).cv_scores_)


def chosen(name: str, X: FloatArray, Y: FloatArray, how: Any) -> tuple[float, float]:
    """The best length-scale and ridge."""
    table = np.array([values_of(name, length, X, Y, how) for length in LENGTHS])
    at = np.unravel_index(np.argmax(np.where(np.isfinite(table), table, -np.inf)), table.shape)
    return LENGTHS[at[0]], RIDGES[at[1]]


def compared(X: FloatArray, Y: FloatArray, how: Any, splits: int) -> dict[str, dict[str, Any]]:
    names = ["gcv", "evidence", "loo", "rows", "blocks", *(["groups"] if isinstance(how, np.ndarray) else [])]
    results: dict[str, dict[str, Any]] = {name: {"each": [], "chosen": []} for name in names}
    for train, test in folds_of(how, len(X), splits):
        within = how[train] if isinstance(how, np.ndarray) else how
        for name, one in results.items():
            length, ridge = chosen(name, X[train], Y[train], within)
            model = regressor(length, X.shape[1], how, ridge, cv=None).fit(X[train], Y[train])
            one["each"].append(score(Y[test], np.reshape(model.predict(X[test]), Y[test].shape), how))
            one["chosen"].append([length, ridge])
    for one in results.values():
        one |= {"mean": float(np.mean(one["each"])), "worst": float(np.min(one["each"]))}
    return results


def summary(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each criterion over the tables that have it: the share where its mean R2 is close to the best, and how far
    it is below that on average (at most 1 a table) and at most."""
    below: dict[str, list[float]] = {}
    for one in results.values():
        best = max(each["mean"] for each in one.values())
        for name, each in one.items():
            below.setdefault(name, []).append(best - each["mean"])
    return {
        name: {
            "tables": len(away), "close": float(np.mean(np.array(away) <= CLOSE)),
            "below": float(np.mean(np.minimum(away, 1.0))), "furthest": float(np.max(away)),
        }
        for name, away in below.items()
    }  # fmt: skip


def main() -> None:
    options = arguments(__doc__, 600)
    every = made() | (shipped(options.data) if options.data else {})
    warnings.simplefilter("ignore")  # of ridges that leave few digits
    path = options.out / "criteria.json"
    results = json.loads(path.read_text())["tables"] if options.only and path.exists() else {}
    for table in options.only or every:
        X, Y, how = every[table]()
        some = np.linspace(0, len(X) - 1, min(len(X), options.rows)).astype(int)
        X, Y, how = X[some], Y[some], how[some] if isinstance(how, np.ndarray) else how
        Y = Y if Y.ndim == 2 else (Y[:, None] == np.unique(Y)).astype(np.float64)
        results[table] = one = compared(np.asarray(X, np.float64), Y, how, options.splits)
        kind = "groups" if isinstance(how, np.ndarray) else how
        print(f"{table:20s} {len(X):5d} x {X.shape[1]:4d} by {kind:6s}  " + "  ".join(
            f"{name} {each['mean']:.3f} ({each['worst']:.3f})" for name, each in one.items()
        ), flush=True)  # fmt: skip
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tables": results, "criteria": summary(results)}, indent=1))
    for name, numbers in summary(results).items():
        print(f"{name:10s} " + "  ".join(f"{key} {value:.3g}" for key, value in numbers.items()))


if __name__ == "__main__":
    main()
