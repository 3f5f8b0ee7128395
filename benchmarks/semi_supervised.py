"""Few labels and many rows without: accuracy with and without the manifold term, on USPS and MNIST.

    python benchmarks/semi_supervised.py --data DIR [--sets USPS MNIST] [--splits 10] [--workers 1]
    python benchmarks/semi_supervised.py --data DIR --settle          # how the settings below were found

A split draws which training rows have labels: "in all", so many of all rows but one of each class at least; or "a
class", so many of each. All other training rows are unlabelled. Two accuracies: on the unlabelled rows, which the
graph has seen, and on the test rows, which no method has. USPS: 7291 and 2007 rows, pixels as they come. MNIST: the
first 10000 training rows and the 10000 of the test, pixels from 0 to 1. "MNIST, 60000": all training rows, ours alone.

Methods, of the same splits:

- `ridge`: `ORFFClassifier` of the labelled rows; orthogonal features, m = 4096, a Gaussian of half the median
  distance, balanced class weights. Its ridge is one of RIDGES by 3-fold cross-validation of the labelled rows.
- `manifold`: the same with the term: 15 nearest neighbours, self-tuned heat weights, the square of the normalised
  Laplacian, over the number of edges. Ridge 1e-5, as all that counts is how much more the term weighs; that weight is
  one of WEIGHTS by the same folds.
- With 10 labels, one of each class, there are no folds to choose by: the ridge is 1e-5, the weight 100 (`SETTLED`).
- `label spreading`: scikit-learn's, kernel="knn", 7 neighbours, alpha = 0.8.
- `self-training`: scikit-learn's, of `ridge` with m = 1024 and calibrated probabilities, threshold 0.75, 10 rounds.

All settings, those of scikit-learn's methods too, were chosen on training rows of USPS (5500 as the training set, 1791
as the test set) and serve MNIST as they are; its training rows were looked at twice, and changed nothing. `--settle`
runs such trials again, on its own draws of labels. The term had several times as many trials as the other methods.
The unlabelled rows of USPS are among those that the settings were chosen on; the test rows are not.

Intervals are of Student over splits; "with less without" is of pairs of the same split. Splits share rows, so that the
intervals say how much hangs on which rows have labels, not on which rows there are.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import tables
from datasets import FloatArray
from mnist import images, labels
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from dorff import ORFFClassifier, graphs, kernels
from dorff.kernels import median_lengthscale

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Ints = npt.NDArray[np.int64]
COUNTS = ((10, "in all"), (50, "in all"), (100, "in all"), (10, "a class"), (50, "a class"), (100, "a class"))
SETS = ("USPS", "MNIST", "MNIST, 60000")
METHODS = ("ridge", "manifold", "label spreading", "self-training")
FEATURES, FRACTION, NEIGHBOURS, CLASSES, FOLDS = 4096, 0.5, 15, 10, 3
RIDGES, WEIGHTS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2), (1.0, 10.0, 100.0)
SETTLED = (1e-5, 100.0)  # the ridge and the weight where there is nothing to choose by


@dataclass(frozen=True, eq=False)
class Pool:
    """Training rows, of which some will be labelled, test rows, and the graph of the former."""

    X: FloatArray
    y: Ints
    Z: FloatArray
    t: Ints
    lengthscale: float
    W: Any

    @classmethod
    def of(cls, X: FloatArray, y: Ints, Z: FloatArray, t: Ints) -> Pool:
        s = FRACTION * median_lengthscale(X[np.random.default_rng(0).permutation(len(X))])
        W = graphs.local_graph(X, graphs.KNN(NEIGHBOURS))
        return cls(X, y.astype(np.int64), Z, t.astype(np.int64), s, W)


@cache
def pool(folder: Path, name: str) -> Pool:
    """`USPS, settings` is made of training rows alone."""
    if name.startswith("USPS"):
        with np.load(folder / "usps" / "usps.npz") as file:
            X, y, Z, t = (file[part] for part in ("xtrain", "ytrain", "xtest", "ytest"))
        if name == "USPS, settings":
            order = np.random.default_rng(123).permutation(len(X))
            X, y, Z, t = X[order[:5500]], y[order[:5500]], X[order[5500:]], y[order[5500:]]
    else:
        rows, home = 60_000 if name == "MNIST, 60000" else 10_000, folder / "mnist"
        X, y = images(home, "train")[:rows], labels(home, "train")[:rows]
        Z, t = images(home, "t10k"), labels(home, "t10k")
    return Pool.of(X, y, Z, t)


def labelled(y: Ints, count: int, of: str, seed: Sequence[int]) -> Ints:
    """Which rows have labels."""
    rng = np.random.default_rng(list(seed))
    order = rng.permutation(len(y))
    each = [order[y[order] == k][: count if of == "a class" else 1] for k in range(CLASSES)]
    first = np.concatenate(each)
    more = () if of == "a class" else np.setdiff1d(order, first, assume_unique=True)[: count - CLASSES]
    return np.sort(np.concatenate([first, more]).astype(np.int64))


def ridge(given: Pool, **settings: Any) -> ORFFClassifier:
    """Of the labelled rows alone; `settings` may make it anything."""
    usual = {"n_features": FEATURES, "ridge": SETTLED[0], "class_weight": "balanced", "calibrate": False}
    return ORFFClassifier(kernels.Gaussian(given.lengthscale), **{**usual, **settings})


def term(W: Any, weight: float | Sequence[float], **settings: Any) -> graphs.Manifold:
    usual = {"laplacian": "normalised", "power": 2, "scale": "mean"}
    return graphs.Manifold(graphs.Given(W), tuple(np.atleast_1d(weight)), **{**usual, **settings})


def spreading(neighbours: int = 7, alpha: float = 0.8) -> LabelSpreading:
    return LabelSpreading(kernel="knn", n_neighbors=neighbours, alpha=alpha, max_iter=100)


def training(given: Pool, threshold: float = 0.75, **settings: Any) -> SelfTrainingClassifier:
    base = ridge(given, n_features=1024, calibrate=True, ridge=1e-4, **settings)
    return SelfTrainingClassifier(base, threshold=threshold, max_iter=10)


def accuracies(given: Pool, rows: Ints, model: Any) -> tuple[float, float]:
    """On the unlabelled rows and on the test rows; a model without unlabelled rows is fitted to the labelled alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "invalid value encountered", RuntimeWarning)  # rows that no label reaches
        return _accuracies(given, rows, model)


def _accuracies(given: Pool, rows: Ints, model: Any) -> tuple[float, float]:
    if isinstance(model, ORFFClassifier) and model.manifold is None:
        model.fit(given.X[rows], given.y[rows])
    else:
        y = np.full(len(given.y), -1)
        y[rows] = given.y[rows]
        model.fit(given.X, y)
    found = model.transduction_ if isinstance(model, LabelSpreading) else model.predict(given.X)
    right = np.delete(found == given.y, rows)
    return float(right.mean()), float(np.mean(model.predict(given.Z) == given.t))


@dataclass(frozen=True)
class Score:
    """One method on one split; the ridge and the weight are those chosen."""

    data: str
    labels: str
    split: int
    method: str
    unlabelled: float
    test: float
    ridge: float | None
    weight: float | None


@dataclass(frozen=True)
class Task:
    folder: Path
    data: str
    count: int
    of: str
    split: int


def models(task: Task, given: Pool) -> Iterator[tuple[str, Any]]:
    chosen = {"cv": FOLDS} if (task.count, task.of) != (10, "in all") else {}
    yield "ridge", ridge(given, **({**chosen, "ridge": RIDGES} if chosen else {}))
    yield "manifold", ridge(given, manifold=term(given.W, WEIGHTS if chosen else SETTLED[1]), **chosen)
    if task.data != "MNIST, 60000":
        yield "label spreading", spreading()
        yield "self-training", training(given)


def work(task: Task) -> list[Score]:
    given, found = pool(task.folder, task.data), []
    rows = labelled(given.y, task.count, task.of, [task.split, task.count])
    for method, model in models(task, given):
        unlabelled, test = accuracies(given, rows, model)
        (weight,) = getattr(model, "manifold_", (None,))
        found.append(Score(task.data, f"{task.count} {task.of}", task.split, method, unlabelled, test,
                           getattr(model, "ridge_", None), weight))  # fmt: skip
    return found


def summary(found: Sequence[Score]) -> list[dict[str, Any]]:
    """Of each data set, number of labels, method and kind of rows: mean, interval, and less that of `ridge`."""
    lines: list[dict[str, Any]] = []
    for data, count in dict.fromkeys((score.data, score.labels) for score in found):
        here = [score for score in found if (score.data, score.labels) == (data, count)]
        for rows in ("unlabelled", "test"):
            plain = {score.split: getattr(score, rows) for score in here if score.method == "ridge"}
            for method in METHODS:
                mine = [score for score in here if score.method == method]
                if not mine:
                    continue
                mean, half = tables.interval([getattr(score, rows) for score in mine])
                gain, within = tables.interval([getattr(score, rows) - plain[score.split] for score in mine])
                lines.append({
                    "data": data, "labels": count, "rows": rows, "method": method, "splits": len(mine),
                    "accuracy": mean, "interval": half, "gain": gain, "gain_interval": within,
                    "helps": bool(gain > within), "harms": bool(gain < -within),
                })  # fmt: skip
    return lines


def told(lines: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each data set, number of labels and kind of rows; and where the term does not help."""
    found = []
    for key in dict.fromkeys((line["data"], line["labels"], line["rows"]) for line in lines):
        here = [line for line in lines if (line["data"], line["labels"], line["rows"]) == key]
        found.append(f"{key[0]:<13} {key[1]:<12} {key[2]:<11}" + "".join(
            f"  {line['method']} {line['accuracy']:.3f} +- {line['interval']:.3f}" for line in here))  # fmt: skip
    for line in (line for line in lines if line["method"] == "manifold" and not line["helps"]):
        found.append(f"The term {'harms' if line['harms'] else 'shows no gain'}: {line['data']}, {line['labels']}, "
                     f"{line['rows']} rows: {line['gain']:+.4f} +- {line['gain_interval']:.4f}")  # fmt: skip
    return found


def figure(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """A column a data set; above the unlabelled rows, below the test rows."""
    names = list(dict.fromkeys(line["data"] for line in lines))
    fig, axes = plt.subplots(2, len(names), figsize=(5.2 * len(names), 7.2), layout="constrained", squeeze=False)
    counts = [f"{count} {of}" for count, of in COUNTS]
    for (i, j), axis in np.ndenumerate(axes):
        rows = ("unlabelled", "test")[i]
        for number, method in enumerate(METHODS):
            mine = {line["labels"]: line for line in lines
                    if (line["data"], line["rows"], line["method"]) == (names[j], rows, method)}  # fmt: skip
            at = [place for place, count in enumerate(counts) if count in mine]
            for part in ([p for p in at if p < 3], [p for p in at if p >= 3]):
                here = [mine[counts[place]] for place in part]
                axis.errorbar(np.array(part) + 0.06 * (number - 1.5), [line["accuracy"] for line in here],
                              [line["interval"] for line in here], fmt="o-", ms=4, capsize=3, color=f"C{number}",
                              label=method if part and part[0] == at[0] else None)  # fmt: skip
        axis.set_xticks(range(len(counts)), [count.replace(" ", "\n", 1) for count in counts])
        axis.axvline(2.5, color="0.8", lw=1)
        axis.grid(axis="y", alpha=0.3)
        least = min(line["accuracy"] for line in lines if (line["data"], line["rows"]) == (names[j], rows))
        axis.set_ylim(least - 0.1, 1.01)
        axis.set_title(f"{names[j]}: {rows} rows")
        axis.set_xlabel("labels")
        if j == 0:
            axis.set_ylabel("accuracy")
    axes[0, 0].legend(fontsize=8, loc="lower right")
    fig.suptitle("Mean over splits and its 95% interval", fontsize=10)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def settle(folder: Path, splits: int) -> Iterator[str]:
    """The trials that the settings come from: on training rows of USPS, 10 and 50 labels in all and 10 a class."""
    given = pool(folder, "USPS, settings")

    def tried(name: str, make: Callable[[], Any]) -> str:
        line = f"{name:<50}"
        for count, of in COUNTS[:2] + COUNTS[3:4]:
            pairs = [accuracies(given, labelled(given.y, count, of, [7, split, count]), make())
                     for split in range(splits)]  # fmt: skip
            line += "   {:.3f} {:.3f}".format(*np.mean(pairs, axis=0))
        return line

    yield "unlabelled and held-out accuracy of 10 in all, 50 in all, 10 a class"
    yield tried("ridge", lambda: ridge(given))
    for m in (2048, FEATURES):
        for fraction in (0.35, 0.5, 0.7):
            scalar = kernels.Gaussian(given.lengthscale * fraction / FRACTION)
            yield tried(f"manifold, m {m}, {fraction} of the median", lambda m=m, scalar=scalar: ridge(
                given, n_features=m, manifold=term(given.W, SETTLED[1])).set_params(kernel=scalar))  # fmt: skip
    for k in (6, 10):
        W = graphs.local_graph(given.X, graphs.KNN(k))
        yield tried(f"manifold, {k} neighbours", lambda W=W: ridge(given, manifold=term(W, SETTLED[1])))
    binary = graphs.local_graph(given.X, graphs.KNN(NEIGHBOURS, weights="binary"))
    yield tried("manifold, binary weights", lambda: ridge(given, manifold=term(binary, SETTLED[1])))
    for laplacian in ("normalised", "unnormalised"):
        for power in (1, 2, 4):
            for weight in (1.0, 10.0, 100.0, 1000.0):
                over = {"laplacian": laplacian, "power": power, "weight": weight}
                yield tried(f"manifold, {laplacian}, power {power}, weight {weight:g}",
                            lambda over=over: ridge(given, manifold=term(given.W, **over)))  # fmt: skip
    for k in (5, 7, 10, 15):
        for alpha in (0.2, 0.5, 0.8, 0.9):
            yield tried(f"label spreading, {k} neighbours, alpha {alpha}", lambda k=k, a=alpha: spreading(k, a))
    for threshold in (0.5, 0.75, 0.9):
        yield tried(f"self-training, threshold {threshold}", lambda t=threshold: training(given, t))


def main() -> None:
    """Compute what is not in the CSV yet; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds usps and mnist")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["USPS", "MNIST"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--settle", action="store_true", help="print the trials of settings; writes nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.settle:
        for line in settle(options.data, options.splits):
            print(line, flush=True)
        sys.exit()
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "semi_supervised.csv"
    found: list[Score] = tables.read(table, Score)
    done = {(score.data, score.labels, score.split) for score in found}
    tasks = [Task(options.data, name, count, of, split) for name in options.sets for split in range(options.splits)
             for count, of in COUNTS if (name, f"{count} {of}", split) not in done]  # fmt: skip
    for scores in tables.compute(work, tasks, options.workers):
        found += scores
        print(f"{scores[0].data}, {scores[0].labels}, split {scores[0].split}: " + ", ".join(
            f"{score.method} {score.unlabelled:.3f} {score.test:.3f}" for score in scores), flush=True)  # fmt: skip
        tables.write(table, found)
    counts = [f"{count} {of}" for count, of in COUNTS]
    order = {name: place for place, name in enumerate([*SETS, *counts, *METHODS])}
    found.sort(key=lambda score: (order[score.data], order[score.labels], score.split, order[score.method]))
    tables.write(table, found)
    lines = summary(found)
    print(*told(lines), sep="\n")
    body = {"features": FEATURES, "fraction_of_median": FRACTION, "neighbours": NEIGHBOURS, "ridges": RIDGES,
            "weights": WEIGHTS, "settled": SETTLED, "summary": lines, "told": told(lines),
            "splits": [asdict(score) for score in found]}  # fmt: skip
    (options.out / "semi_supervised.json").write_text(json.dumps(body, indent=1) + "\n")
    figure(lines, options.out / "semi_supervised.png")


if __name__ == "__main__":
    main()
