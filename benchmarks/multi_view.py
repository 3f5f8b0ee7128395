"""Several views of the same rows and few labels: all views, each alone, and views that are missing at prediction.

    python benchmarks/multi_view.py --data DIR [--splits 10] [--workers 1] [--out benchmarks/results]

- USPS: the pixels, and the histograms of gradients of 4 x 4 cells (8 directions, the root of each one's share); 4000
  training rows, of which 20 or 100 have labels, as many of each class; accuracy on the 2007 test rows.
- Beijing: PM2.5 (log, standardised) of the station Aotizhongxin from what three other stations measured in the same
  hour, a view each; 4000 hours before March 2016, of which 20 or 100 have labels, R2 on 2000 hours after it.

Each view has a Gaussian of its own length-scale, a fraction of its median distance (1/2 for USPS, 1 for Beijing), and
features of its own (1024 and 512). The ridge, and the weights of terms, are those of RIDGES, BETWEEN and WITHIN with
the least squared error of 3-fold cross-validation of the labelled rows (of classes at the best scale of f), for every
model alike. Models:

- `view`: of one view alone. `views side by side`: one Gaussian of all columns, each view divided by its length-scale,
  with as many features as the views have together; of the root of their number.
- `mean`: MultiView without a term: the views' mean is fitted, a view alone may be anywhere.
- `between`: and all rows, labelled or not, should have views agree (over the rows' number).
- `within`: and each view is smooth along its own graph (10 nearest neighbours, the square of the normalised Laplacian,
  over the edges' number), each with a weight of its own. `between + within`: both.
- `view + graph` and `side by side + graph` have that term too.

A MultiView model is asked with all views, and with one alone, the others' columns NaN. The lists of weights were
looked for on training rows of USPS (other splits, held-out training rows). On Beijing one split was seen with a ridge
of 1e-5 for all, far too small for the single views; hence its list of ridges.
Intervals are of Student over splits of labels; `gain` is over the better of the single views of the same split.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import tables
from datasets import FloatArray

from dorff import ORFFClassifier, ORFFRegressor, graphs, kernels
from dorff.kernels import median_lengthscale

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FEATURES, ROWS, FOLDS, NEIGHBOURS = {"USPS": 1024, "Beijing": 512}, 4000, 3, 10
RIDGES = {"USPS": (1e-5,), "Beijing": (1e-5, 1e-3, 1e-2)}
BETWEEN, WITHIN = (0.01, 0.1, 1.0), (1.0, 100.0)
TARGET, STATIONS = "Aotizhongxin", ("Guanyuan", "Dongsi", "Tiantan")
MEASURED = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM")
SIDE = "side by side"
COUNTS = {"USPS": (20, 100), "Beijing": (20, 100)}


@dataclass(frozen=True, eq=False)
class Data:
    """Training rows X and test rows Z of each view, divided by the view's length-scale; targets y and t."""

    X: Mapping[str, FloatArray]
    y: npt.NDArray[Any]
    Z: Mapping[str, FloatArray]
    t: npt.NDArray[Any]
    classes: bool

    @classmethod
    def of(cls, views: Mapping[str, FloatArray], y: Any, training: Any, test: Any, fraction: float) -> Data:
        X, Z = {}, {}
        for name, values in views.items():
            s = fraction * median_lengthscale(values[training])
            X[name], Z[name] = values[training] / s, values[test] / s
        return cls(X, y[training], Z, y[test], y.dtype.kind == "i")


def gradients(X: FloatArray) -> FloatArray:
    """Of images X (n, 256): for each of 16 cells the share of each of 8 directions, by the gradients' size; roots."""
    across, along = np.gradient(X.reshape(-1, 16, 16), axis=(1, 2))
    direction, size = np.arctan2(across, along) % (2 * np.pi) / (2 * np.pi) * 8, np.hypot(across, along)
    low = np.floor(direction)
    bins = np.zeros((*direction.shape, 8))
    for step, share in ((0, 1 - (direction - low)), (1, direction - low)):
        at = ((low.astype(int) + step) % 8)[..., None]
        np.put_along_axis(bins, at, np.take_along_axis(bins, at, -1) + (size * share)[..., None], -1)
    cells = bins.reshape(-1, 4, 4, 4, 4, 8).sum(axis=(2, 4)).reshape(len(X), -1)
    shares: FloatArray = np.sqrt(cells / np.maximum(cells.sum(axis=1, keepdims=True), 1e-12))
    return shares


def usps(folder: Path) -> Data:
    with np.load(folder / "usps" / "usps.npz") as file:
        rows = np.random.default_rng(321).permutation(len(file["xtrain"]))[:ROWS]
        X = np.concatenate([file["xtrain"][rows], file["xtest"]])
        y = np.concatenate([file["ytrain"][rows], file["ytest"]]).astype(np.int64)
    return Data.of({"pixels": X, "gradients": gradients(X)}, y, slice(None, ROWS), slice(ROWS, None), 0.5)


def beijing(folder: Path) -> Data:
    def hours(station: str) -> Iterator[list[float]]:
        path = folder / "beijing_air" / f"PRSA_Data_{station}_20130301-20170228.csv.gz"
        with gzip.open(path, "rt", newline="") as file:
            for line in csv.DictReader(file):
                yield [np.nan if line[name] == "NA" else float(line[name]) for name in MEASURED]

    tables_of = {station: np.array(list(hours(station))) for station in (*STATIONS, TARGET)}
    y = np.log1p(tables_of.pop(TARGET)[:, 0])
    whole = np.flatnonzero(np.isfinite(np.column_stack([*tables_of.values(), y])).all(axis=1))
    order = np.random.default_rng(321).permutation(whole)
    split = 24 * 365 * 3  # hours from March 2013 to the end of February 2016, less one day
    training, test = order[order < split][:ROWS], order[order >= split][:2000]
    scaled = {name: (v - v[training].mean(axis=0)) / v[training].std(axis=0) for name, v in tables_of.items()}
    y = (y - y[training].mean()) / y[training].std()
    return Data.of(scaled, y, training, test, 1.0)


@cache
def data(folder: Path, name: str) -> Data:
    return {"USPS": usps, "Beijing": beijing}[name](folder)


def drawn(given: Data, count: int, split: int) -> npt.NDArray[np.int64]:
    """Which rows have labels: as many of each class."""
    order = np.random.default_rng([17, split, count]).permutation(len(given.y))
    if not given.classes:
        return np.sort(order[:count])
    classes = np.unique(given.y)
    return np.sort(np.concatenate([order[given.y[order] == k][: count // len(classes)] for k in classes]))


def within(view: str | None) -> graphs.Manifold:
    return graphs.Manifold(graphs.KNN(NEIGHBOURS), WITHIN, "normalised", 2, view=view, scale="mean")


def models(given: Data) -> Iterator[tuple[str, list[str], Any, list[graphs.Manifold]]]:
    """The name of each model, the views that it has, its kernel and its terms."""
    names = list(given.X)
    for view in names:
        yield view, [view], kernels.Gaussian(1.0), []
        yield f"{view} + graph", [view], kernels.Gaussian(1.0), [within(None)]
    beside = kernels.Gaussian(len(names) ** 0.5)
    yield SIDE, names, beside, []
    yield f"{SIDE} + graph", names, beside, [within(None)]
    views = kernels.MultiView([(given.X[view].shape[1], kernels.Gaussian(1.0)) for view in names], names)
    between = [graphs.Manifold(graphs.Identity(), BETWEEN, between=True, scale="mean")]
    each = [within(view) for view in names]
    for name, terms in (("mean", []), ("between", between), ("within", each), ("between + within", between + each)):
        yield name, names, views, terms


@dataclass(frozen=True)
class Score:
    """Accuracy or R2 on test rows; `asked` is what the model was given: "all", or a view."""

    data: str
    labels: int
    split: int
    model: str
    asked: str
    score: float


@dataclass(frozen=True)
class Task:
    folder: Path
    data: str
    count: int
    split: int


def score(given: Data, found: npt.NDArray[Any]) -> float:
    if given.classes:
        return float(np.mean(found == given.t))
    return float(1 - np.sum((found - given.t) ** 2) / np.sum((given.t - given.t.mean()) ** 2))


def work(task: Task) -> list[Score]:
    given = data(task.folder, task.data)
    rows = drawn(given, task.count, task.split)
    y = np.full(len(given.y), -1 if given.classes else np.nan)
    y[rows] = given.y[rows]
    found = []
    for name, views, kernel, terms in models(given):
        X, Z = (np.hstack([part[view] for view in views]) for part in (given.X, given.Z))
        settings: dict[str, Any] = {
            "ridge": RIDGES[task.data],
            "cv": FOLDS,
            "random_state": task.split,
            "manifold": terms or None,
        }
        count = FEATURES[task.data] * len(views)
        if given.classes:
            model = ORFFClassifier(kernel, count, calibrate=False, **settings)
        else:
            model = ORFFRegressor(kernel, count, **settings)
        model.fit(X if terms else X[rows], (y if terms else y[rows]).astype(np.int64 if given.classes else float))
        asked: dict[str, Any] = {"all": None}
        if isinstance(kernel, kernels.MultiView):
            asked |= {view: [view] for view in views}
        for key, seen in asked.items():
            some = Z
            if seen is not None:
                ends = np.cumsum([given.Z[view].shape[1] for view in views])
                number = views.index(key)
                some = np.full(Z.shape, np.nan)
                own = slice(ends[number] - given.Z[key].shape[1], ends[number])
                some[:, own] = Z[:, own]
            guess = model.predict(some) if seen is None else model.predict(some, views=seen)
            found.append(Score(task.data, task.count, task.split, name, key, score(given, guess)))
    return found


def summary(found: Sequence[Score]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for key in dict.fromkeys((s.data, s.labels, s.model, s.asked) for s in found):
        here = [s for s in found if (s.data, s.labels) == key[:2]]
        mine = [s for s in here if (s.model, s.asked) == key[2:]]
        single = {s.split: max(o.score for o in here if o.split == s.split and o.model in views_of(here))
                  for s in mine}  # fmt: skip
        mean, half = tables.interval([s.score for s in mine])
        gain, around = tables.interval([s.score - single[s.split] for s in mine])
        lines.append({"data": key[0], "labels": key[1], "model": key[2], "asked": key[3], "splits": len(mine),
                      "score": mean, "interval": half, "gain": gain, "gain_interval": around})  # fmt: skip
    return lines


def views_of(found: Sequence[Score]) -> list[str]:
    """The names of views: what MultiView models were asked with."""
    return [name for name in dict.fromkeys(s.asked for s in found) if name != "all"]


def figure(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """A column a data set and number of labels: a row a model; its score with all views, and with each alone."""
    cases = list(dict.fromkeys((line["data"], line["labels"]) for line in lines))
    fig, axes = plt.subplots(1, len(cases), figsize=(4.6 * len(cases), 5.4), layout="constrained", squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        here = [line for line in lines if (line["data"], line["labels"]) == case]
        names = list(dict.fromkeys(line["model"] for line in here))
        asked = list(dict.fromkeys(line["asked"] for line in here))
        for number, key in enumerate(asked):
            mine = [line for line in here if line["asked"] == key]
            at = np.array([names.index(line["model"]) for line in mine]) + 0.12 * number
            axis.errorbar([line["score"] for line in mine], at, xerr=[line["interval"] for line in mine], fmt="o",
                          ms=4, capsize=3, color=f"C{number}", label=key.replace("all", "all it has"))  # fmt: skip
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
        axis.set(title=f"{case[0]}, {case[1]} labels", xlabel="R2" if case[0] == "Beijing" else "accuracy")
        best = max(line["score"] for line in here)
        least = min(line["score"] for line in here)
        axis.set_xlim(max(least, best - 0.6) - 0.03, best + 0.05)
        axis.legend(
            fontsize=7, title="given", title_fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4
        )
    fig.savefig(path, dpi=110)
    plt.close(fig)


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds usps and beijing_air")
    parser.add_argument("--sets", nargs="+", choices=list(COUNTS), default=list(COUNTS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "multi_view.csv"
    found: list[Score] = tables.read(table, Score)
    done = {(s.data, s.labels, s.split) for s in found}
    tasks = [Task(options.data, name, count, split) for name in options.sets for split in range(options.splits)
             for count in COUNTS[name] if (name, count, split) not in done]  # fmt: skip
    for scores in tables.compute(work, tasks, options.workers):
        found += scores
        tables.write(table, found)
        print(f"{scores[0].data}, {scores[0].labels} labels, split {scores[0].split}: " + ", ".join(
            f"{s.model} of {s.asked} {s.score:.3f}" for s in scores), flush=True)  # fmt: skip
    order = {name: number for number, name in enumerate(COUNTS)}
    found.sort(key=lambda s: (order[s.data], s.labels, s.split))
    tables.write(table, found)
    lines = summary(found)
    for line in lines:
        print("{data:<8} {labels:>3} labels  {model:<22} given {asked:<10} {score:.3f} +- {interval:.3f}   over the "
              "better single view {gain:+.3f} +- {gain_interval:.3f}".format(**line))  # fmt: skip
    body = {"features_a_view": FEATURES, "ridges": RIDGES, "between": BETWEEN, "within": WITHIN,
            "neighbours": NEIGHBOURS, "summary": lines, "splits": [asdict(s) for s in found]}  # fmt: skip
    (options.out / "multi_view.json").write_text(json.dumps(body, indent=1) + "\n")
    figure(lines, options.out / "multi_view.png")


if __name__ == "__main__":
    main()
