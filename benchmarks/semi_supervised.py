"""Few labels and many rows without: accuracy with and without the manifold term, on USPS and MNIST.

    python benchmarks/semi_supervised.py --data DIR [--sets USPS MNIST] [--splits 10] [--methods ridge manifold]
    python benchmarks/semi_supervised.py --data DIR --settle          # how the settings below were found

A split draws which training rows have labels: "in all", so many of all rows but one of each class at least; or "a
class", so many of each. All other training rows are unlabelled. Two accuracies: on the unlabelled rows, which the
graph has seen, and on the test rows, which no method has. USPS: 7291 and 2007 rows, pixels as they come. MNIST: the
first 10000 training rows and the 10000 of the test, pixels from 0 to 1. "MNIST, 60000": all training rows.

Methods, of the same splits:

- `ridge`: the labelled rows alone; orthogonal features, m = 8192, a Gaussian of half the median distance (of all
  training rows), balanced class weights. Its ridge is one of RIDGES by stratified 3-fold cross-validation.
- `manifold`: the same with the term: 15 nearest neighbours, self-tuned heat weights, the square of the normalised
  Laplacian, over the number of edges. Ridge 1e-5, as all that counts is how much more the term weighs; that weight is
  one of WEIGHTS by the same folds.
- With 10 labels, one of each class, there are no folds to choose by: the ridge is 1e-5, the weight 1000 (`SETTLED`).
- `label spreading`: scikit-learn's, kernel="knn", 7 neighbours, alpha = 0.8, its neighbours found once for all splits.
- `self-training`: scikit-learn's, of `ORFFClassifier` with m = 1024, ridge 1e-4 and calibrated probabilities,
  threshold 0.75, 10 rounds.

T, its eigenvectors and the rows' features do not depend on which rows have labels: here they are found once for all
splits, from the same functions as an estimator's fit. `--check` compares the two.

All settings were chosen on training rows: of USPS (5500 as the training set, 1791 as the test set), and for m and the
weights also of MNIST (rows 10000 to 19999 likewise, and 20000 to 41999 once). `--settle` runs such trials again, those
of the first two. The term had several times as many trials as the other methods, whose settings were chosen on USPS
alone. So the unlabelled rows of USPS, and half of those of "MNIST, 60000", are among those that settings were chosen
on; those of MNIST and all test rows are not.

Intervals are of Student over splits; "with less without" is of pairs of the same split. Splits share rows, so that the
intervals say how much hangs on which rows have labels, not on which rows there are.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import tables
from datasets import FloatArray
from mnist import images, labels
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from dorff import ORFFClassifier, graphs, kernels
from dorff.estimators.array_sums import ArraySums
from dorff.estimators.arrays import GivenFolds
from dorff.features import FeatureMap, Recipe
from dorff.frequencies import default_sampler
from dorff.kernels import median_lengthscale
from dorff.manifold import in_memory
from dorff.moments import by_fold, pooled
from dorff.plan.manifold_terms import penalty
from dorff.solvers import Penalty, Setting
from dorff.solvers.choose import fold_scores
from dorff.solvers.few_labels import Common

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Ints = npt.NDArray[np.int64]
COUNTS = ((10, "in all"), (50, "in all"), (100, "in all"), (10, "a class"), (50, "a class"), (100, "a class"))
SETS = ("USPS", "MNIST", "MNIST, 60000")
METHODS = ("ridge", "manifold", "label spreading", "self-training")
FEATURES, FRACTION, NEIGHBOURS, CLASSES, FOLDS = 8192, 0.5, 15, 10, 3
RIDGES, WEIGHTS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2), (1.0, 10.0, 100.0, 1000.0)
SETTLED = (1e-5, 1000.0)  # the ridge and the weight where there is nothing to choose by


@dataclass(frozen=True, eq=False)
class Pool:
    """Training rows, of which some will be labelled, and test rows."""

    X: FloatArray
    y: Ints
    Z: FloatArray
    t: Ints

    @cached_property
    def median(self) -> float:
        return median_lengthscale(self.X[np.random.default_rng(0).permutation(len(self.X))])

    @cached_property
    def near(self) -> tuple[Any, Any]:
        """The 7 nearest training rows of each training row, itself among them, and of each test row, as 0 and 1."""
        found = NearestNeighbors(n_neighbors=7).fit(self.X)
        return found.kneighbors_graph(self.X), found.kneighbors_graph(self.Z)

    @cached_property
    def shared(self) -> Shared:
        return Shared(self)


@cache
def pool(folder: Path, name: str) -> Pool:
    """`USPS, settings` and `MNIST, settings` are made of training rows alone."""
    if name.startswith("USPS"):
        with np.load(folder / "usps" / "usps.npz") as file:
            X, y, Z, t = (file[part] for part in ("xtrain", "ytrain", "xtest", "ytest"))
        if name == "USPS, settings":
            order = np.random.default_rng(123).permutation(len(X))
            X, y, Z, t = X[order[:5500]], y[order[:5500]], X[order[5500:]], y[order[5500:]]
    else:
        home = folder / "mnist"
        X, y, Z, t = (read(home, part) for part in ("train", "t10k") for read in (images, labels))
        if name == "MNIST, settings":
            X, y, Z, t = X[10_000:18_000], y[10_000:18_000], X[18_000:20_000], y[18_000:20_000]
        elif name == "MNIST":
            X, y = X[:10_000], y[:10_000]
    return Pool(X, y.astype(np.int64), Z, t.astype(np.int64))


class Shared:
    """What all splits of a pool have in common: features and T, and what is made of these once."""

    def __init__(
        self, given: Pool, *, features: int = FEATURES, fraction: float = FRACTION, graph: graphs.KNN | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        """`settings` are of the term, which is the square of the normalised Laplacian."""
        d, self.given = given.X.shape[1], given
        kernel = kernels.Decomposable(kernels.Gaussian(fraction * given.median), "simplex")
        drawn = Recipe(kernel.fix(d, CLASSES), default_sampler(kernel), d, CLASSES, features, True).draw(0)
        self.features = FeatureMap(drawn.phi, given.X.mean(axis=0), np.ones(d))
        self.setting = Setting(kernel, d, self.features.m, drawn.density, standardize=False, intercept=True,
                               free_scale=True)  # fmt: skip
        self.graph, self.settings, self.common = graph or graphs.KNN(NEIGHBOURS), settings, Common()

    @cached_property
    def penalty(self) -> Penalty:
        """The term at weight 1."""
        X = self.given.X
        W = graphs.local_graph(X, self.graph)
        one = term(W, 1.0, **self.settings)
        return penalty(one, in_memory(self.features, X, graphs.checked(W, len(X)), one), None)

    @cached_property
    def rows(self) -> npt.NDArray[np.float32]:
        """The features (n + k, m) of training and test rows, to predict by."""
        all_rows = np.concatenate([self.given.X, self.given.Z])
        found = np.empty((len(all_rows), self.features.m), np.float32)
        for start in range(0, len(all_rows), 1000):
            found[start : start + 1000] = self.features.transform(all_rows[start : start + 1000])
        return found

    def accuracies(
        self, rows: Ints, weights: Sequence[float], ridges: Sequence[float], folds: int
    ) -> tuple[float, float, float, float]:
        """On the unlabelled rows and on the test rows; and the ridge and the weight, the best of these by the folds. A
        weight of 0 is none."""
        y = self.given.y[rows]
        deal = GivenFolds.balanced(y, folds, 0)
        balanced = len(y) / (CLASSES * np.bincount(y, minlength=CLASSES))
        sums = ArraySums(self.features, np.full(CLASSES, 1.0 / CLASSES), deal, balanced)
        parts = by_fold(sums.of(self.given.X[rows], np.eye(CLASSES)[y]))
        trials = [(0.0, ridge, weight) for ridge in ridges for weight in weights]
        if len(trials) > 1:
            trials = [
                (score.value, score.ridge, weight)
                for weight in weights
                for score in fold_scores(parts, self._weighted(weight), ridges, common=self.common)
            ]
        _, ridge, weight = min(trials)
        (fit,) = self._weighted(weight).solve(pooled(parts), [ridge])
        found = (self.rows @ fit.W.astype(np.float32) + fit.bias).argmax(axis=1)
        n = len(self.given.X)
        right = np.delete(found[:n] == self.given.y, rows)
        return float(right.mean()), float(np.mean(found[n:] == self.given.t)), ridge, weight

    def _weighted(self, weight: float) -> Setting:
        if weight == 0:
            return self.setting
        return replace(self.setting, penalties=(replace(self.penalty, weight=weight * self.penalty.weight),))


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
    return ORFFClassifier(kernels.Gaussian(FRACTION * given.median), **{**usual, **settings})


def term(W: Any, weight: float | Sequence[float], **settings: Any) -> graphs.Manifold:
    usual = {"laplacian": "normalised", "power": 2, "scale": "mean"}
    return graphs.Manifold(graphs.Given(W), tuple(np.atleast_1d(weight)), **{**usual, **settings})


def spreading(given: Pool, alpha: float = 0.8) -> LabelSpreading:
    """Its kernel="knn", whose neighbours are found already: asked for the training rows' own, or the test rows'."""
    return LabelSpreading(kernel=lambda X, Y: given.near[0] if X is Y else given.near[1].T, alpha=alpha, max_iter=100)


def training(given: Pool, threshold: float = 0.75, **settings: Any) -> SelfTrainingClassifier:
    base = ridge(given, n_features=1024, calibrate=True, ridge=1e-4, **settings)
    return SelfTrainingClassifier(base, threshold=threshold, max_iter=10)


def accuracies(given: Pool, rows: Ints, model: Any) -> tuple[float, float]:
    """On the unlabelled rows and on the test rows, of a model that takes -1 for rows without a label."""
    y = np.full(len(given.y), -1)
    y[rows] = given.y[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "invalid value encountered", RuntimeWarning)  # rows that no label reaches
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
    methods: tuple[str, ...]


def work(task: Task) -> list[Score]:
    given, found = pool(task.folder, task.data), []
    rows = labelled(given.y, task.count, task.of, [task.split, task.count])
    folds = FOLDS if (task.count, task.of) != (10, "in all") else 1
    for method in task.methods:
        chosen: tuple[float | None, float | None] = (None, None)
        if method == "ridge":
            ridges = RIDGES if folds > 1 else SETTLED[:1]
            unlabelled, test, *chosen = given.shared.accuracies(rows, [0.0], ridges, folds)
        elif method == "manifold":
            weights = WEIGHTS if folds > 1 else SETTLED[1:]
            unlabelled, test, *chosen = given.shared.accuracies(rows, weights, SETTLED[:1], folds)
        else:
            model = spreading(given) if method == "label spreading" else training(given)
            unlabelled, test = accuracies(given, rows, model)
        found.append(Score(task.data, f"{task.count} {task.of}", task.split, method, unlabelled, test, *chosen))
    return found


def check(folder: Path) -> str:
    """What an estimator's fit gives, and what is given here, of one split of USPS with fewer features."""
    given = pool(folder, "USPS")
    rows = labelled(given.y, 10, "a class", [0, 10])
    W = graphs.local_graph(given.X, graphs.KNN(NEIGHBOURS))
    model = ridge(given, n_features=1024, manifold=term(W, WEIGHTS), cv=FOLDS)
    theirs = (*accuracies(given, rows, model), model.ridge_, *model.manifold_)
    ours = Shared(given, features=1024).accuracies(rows, WEIGHTS, SETTLED[:1], FOLDS)
    return f"accuracies, ridge and weight of an estimator {theirs}, and here {ours}"


def summary(found: Sequence[Score]) -> list[dict[str, Any]]:
    """Of each data set, number of labels, method and kind of rows: mean, interval, and less that of `ridge`; of the
    splits that `ridge` was run on."""
    lines: list[dict[str, Any]] = []
    for data, count in dict.fromkeys((score.data, score.labels) for score in found):
        here = [score for score in found if (score.data, score.labels) == (data, count)]
        for rows in ("unlabelled", "test"):
            plain = {score.split: getattr(score, rows) for score in here if score.method == "ridge"}
            for method in METHODS:
                mine = [score for score in here if score.method == method and score.split in plain]
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
    """The trials that the settings come from: on training rows, 10 and 50 labels in all and 10 a class."""
    yield "unlabelled and held-out accuracy of 10 in all, 50 in all, 10 a class"
    for name in ("USPS, settings", "MNIST, settings"):
        yield from settle_on(pool(folder, name), name, splits)


def settle_on(given: Pool, name: str, splits: int) -> Iterator[str]:
    draws = [[labelled(given.y, count, of, [7, split, count]) for split in range(splits)]
             for count, of in COUNTS[:2] + COUNTS[3:4]]  # fmt: skip

    def line(what: str, pairs: Sequence[Any]) -> str:
        return f"{name.split(',')[0]}, {what:<50}" + "".join(
            "   {:.3f} {:.3f}".format(*np.mean([pair[:2] for pair in some], axis=0)) for some in pairs)  # fmt: skip

    def terms(what: str, weights: Sequence[float] = WEIGHTS, **settings: Any) -> Iterator[str]:
        shared = Shared(given, **settings)
        for weight in weights:
            yield line(f"{what}, weight {weight:g}", [
                [shared.accuracies(rows, [weight], SETTLED[:1], 1) for rows in some] for some in draws])  # fmt: skip

    for m in (2048, 4096, FEATURES):
        yield from terms(f"m {m}", (0.0, *WEIGHTS), features=m)
    for fraction in (0.35, 0.7, 1.0):
        yield from terms(f"m 4096, {fraction} of the median", features=4096, fraction=fraction)
    for graph in (graphs.KNN(6), graphs.KNN(10), graphs.KNN(NEIGHBOURS, weights="binary")):
        yield from terms(f"m 4096, {graph.config()}", features=4096, graph=graph)
    for laplacian in ("normalised", "unnormalised"):
        for power in (1, 2, 4):
            yield from terms(f"m 4096, {laplacian}, power {power}", features=4096, laplacian=laplacian, power=power)
    for k in (5, 7, 10, 15):
        found = NearestNeighbors(n_neighbors=k).fit(given.X)
        near = found.kneighbors_graph(given.X), found.kneighbors_graph(given.Z)
        one = replace(given)
        one.__dict__["near"] = near
        for alpha in (0.2, 0.5, 0.8, 0.9):
            yield line(f"label spreading, {k} neighbours, alpha {alpha}", [
                [accuracies(one, rows, spreading(one, alpha)) for rows in some] for some in draws])  # fmt: skip
    for threshold in (0.5, 0.75, 0.9):
        yield line(f"self-training, threshold {threshold}", [
            [accuracies(given, rows, training(given, threshold)) for rows in some] for some in draws])  # fmt: skip


def main() -> None:
    """Compute what is not in the CSV yet; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds usps and mnist")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["USPS", "MNIST"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--settle", action="store_true", help="print the trials of settings; writes nothing")
    parser.add_argument("--check", action="store_true", help="compare with an estimator's fit; writes nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.settle or options.check:
        for line in settle(options.data, options.splits) if options.settle else [check(options.data)]:
            print(line, flush=True)
        sys.exit()
    options.out.mkdir(parents=True, exist_ok=True)
    table, told_of = options.out / "semi_supervised.csv", options.out / "semi_supervised.json"
    of = {"features": FEATURES, "fraction_of_median": FRACTION, "neighbours": NEIGHBOURS, "ridges": list(RIDGES),
          "weights": list(WEIGHTS), "settled": list(SETTLED)}  # fmt: skip
    if told_of.exists() and any(json.loads(told_of.read_text())[key] != value for key, value in of.items()):
        sys.exit(f"{told_of} is of other settings: remove it and {table}, or write to another place with --out")
    found: list[Score] = tables.read(table, Score)
    done = {(score.data, score.labels, score.split, score.method) for score in found}
    tasks = [Task(options.data, name, count, of, split, left) for name in options.sets
             for split in range(options.splits) for count, of in COUNTS
             if (left := tuple(one for one in METHODS if one in options.methods
                               and (name, f"{count} {of}", split, one) not in done))]  # fmt: skip
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
    body = {**of, "summary": lines, "told": told(lines), "splits": [asdict(score) for score in found]}
    told_of.write_text(json.dumps(body, indent=1) + "\n")
    figure(lines, options.out / "semi_supervised.png")


if __name__ == "__main__":
    main()
