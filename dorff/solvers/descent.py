"""Descent by batches of rows on the objective of any loss: SGD with averages, Adam; and features drawn at each step.

    1/l sum w L(y, C f) + ridge |f|^2,      f = F W + b, W = psi^T h        (Brault 2016, section 5.1, eq. 11)

A step sees the features F (n, m) and the targets of one batch; who reads rows, and in which order (`shuffled`), is not
its business. Losses with a kink are followed by a subgradient. Departure from plain SGD (Oono, Alg. 3): rates differ by
direction (`Rates`). In doubly stochastic descent (Dai et al. 2014; Oono, section 7.4) f is a sum over steps, each of
which has features of its own: `Expansion`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dorff.errors import InputError
from dorff.features import Recipe, ScalarMap
from dorff.model.losses import Loss
from dorff.model.weights import OperatorWeights, operator_weights
from dorff.moments import FloatArray
from dorff.solvers.objective import LossProblem

IntArray = npt.NDArray[np.int64]
Arrays = Mapping[str, npt.NDArray[Any]]

BETA: Final = 0.9, 0.999  # of Adam's two averages (Kingma & Ba 2015, Alg. 1)
TINY: Final = 1e-8  # Adam's epsilon
STRIDE: Final = 2.0  # how far the values may move in Adam's first step, in the targets' deviations, at most
PROBE: Final = 3.0  # deviation of the values at which a loss's curvature is tried
MOST_ROWS: Final = 1024  # times values, that rates are made from
KEPT: Final = 2**25  # numbers of features' frequencies and weights that an `Expansion` holds, besides coefficients
FEW: Final = 8  # rows at least for each direction that is told steep


class Schedule(ABC):
    """What the rate is multiplied by at each step."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """At step number `step`, from 0."""


@dataclass(frozen=True)
class Constant(Schedule):
    """Always 1: with averages of the steps the rate need not fall (Bach & Moulines 2013)."""

    def __call__(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class InverseTime(Schedule):
    """1 / (1 + step / t0)^power (Robbins & Monro 1951 at power 1)."""

    t0: float = 100.0
    power: float = 1.0

    def __post_init__(self) -> None:
        if not (self.t0 > 0 and 0 <= self.power < np.inf):
            raise InputError(f"InverseTime: wanted t0 above 0 and power 0 or more, got {self.t0!r}, {self.power!r}")

    def __call__(self, step: int) -> float:
        return float((1.0 + step / self.t0) ** -self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Up in a line for `warmup` steps, then down as half a cosine to 0 at `steps` (Loshchilov & Hutter 2017)."""

    steps: int
    warmup: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.steps:
            raise InputError(f"Cosine: wanted more steps than warmup, 0 or more, got {self.steps!r}, {self.warmup!r}")

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        gone = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return 0.5 * (1.0 + float(np.cos(np.pi * gone)))


@dataclass(frozen=True)
class Average:
    """The mean of what the steps came to, from step number `first` on: 0 is Polyak & Juditsky's (1992), half of all
    steps the suffix of Rakhlin, Shamir & Sridharan (2012). With a `decay` later steps count more, the t-th as t^decay
    about, which needs no end to be known (Shamir & Zhang 2013, section 4)."""

    first: int = 0
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not (self.first >= 0 and 0 <= self.decay < np.inf):
            raise InputError(f"Average: wanted first and decay, 0 or more, got {self.first!r}, {self.decay!r}")

    def weight(self, step: int) -> float:
        """How much of the new mean is what step number `step` came to."""
        t = step + 1 - self.first
        return 1.0 if t <= 1 else (1.0 + self.decay) / (t + self.decay)


LATER: Final = Average(decay=8.0)


def generator(*counter: int) -> np.random.Generator:
    """Random numbers that depend on these whole numbers, 0 or more, alone (Salmon et al. 2011, Philox)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(counter)))


def shuffled(seed: int, epoch: int, shards: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, IntArray]]:
    """The order of a pass over runs (start, stop) of rows: of each, in random order, start, stop and a permutation
    (stop - start,) of its rows. That of a shard depends on (seed, epoch, its number) alone, so that a pass may go on
    in the middle without what was before."""
    for number in generator(seed, epoch, 0).permutation(len(shards)).tolist():
        start, stop = shards[number]
        yield start, stop, generator(seed, epoch, 1 + number).permutation(stop - start)


def steepest(loss: Loss, y: FloatArray) -> float:
    """How much the loss of a row of targets y (n, c) curves along its values: the mean over rows of the most, at values
    of 0 or at random ones. Of counts where the values are the largest target; a loss with a kink is taken for the
    smooth one of a deviation's width."""
    if loss.takes == "counts":
        return float(max(y.max(), 1.0))
    unit = float(y.std()) or 1.0 if loss.takes == "numbers" else 1.0
    width = unit if loss.kinked else 0.0
    each = (loss.terms(f, y, width).curvature for f in (0.0 * y, PROBE * unit * generator(0).standard_normal(y.shape)))
    return max(float(one.max(axis=1).mean()) for one in each) or 1.0


class Rates(NamedTuple):
    """How far a step goes against the slope: `step` times it for h, less the share `off` (k,) of it along `U`,
    orthonormal directions in which the objective is steep; the steepest that is left then allows a much longer step
    (Ma & Belkin 2017, EigenPro, section 4). U is (m, k), for each column of h alike, or (m r, k). `constant` is for b,
    of features about their mean; `adam` is a rate that suits Adam."""

    step: float
    constant: float
    adam: float
    U: FloatArray
    off: FloatArray

    @classmethod
    def of(cls, problem: LossProblem, F: FloatArray, y: FloatArray, *, ridge: float, batch: int) -> Self:
        """From features F (n, m) and targets y (n, q) of some rows, for batches of so many. The rate is one over the
        curvature times (beta + (batch - 1) lambda) / batch, beta the squared length of the longest row and lambda the
        largest eigenvalue, of what is left (Ma, Bassily & Belkin 2018, theorem 1). There are as many directions as
        rows in a batch, so that they cost no more than the slope, but one for FEW rows at most. Half of the rows tell
        the directions and the others the lengths: rows are shorter once their own directions are off."""
        targets = problem.loss.spread(y)
        rows, outer = _rows_of_h(problem, F)
        curve = steepest(problem.loss, targets)
        seen, held = rows[::2], rows[1::2] if len(rows) > 1 else rows
        U, values = _directions(seen, min(batch, len(seen) // FEW))
        least = 2.0 * ridge / (curve * outer)
        off = 1.0 - (values[-1] + least) / (values[:-1] + least)
        longest = float((np.sum(held**2, axis=(1, 2)) - np.einsum("nck,k->n", (held @ U) ** 2, off)).max())
        bound = curve * outer * max(longest + (batch - 1) * (float(values[-1]) + least), 1e-300) / batch
        about = 0.5 / (curve * max(float(np.linalg.norm(problem.C, 2)) ** 2, 1e-300))
        unit = float(targets.std()) or 1.0 if problem.loss.takes == "numbers" else 1.0
        length = float(np.abs(rows).sum(axis=2).mean()) * np.sqrt(outer)
        return cls(1.0 / bound, about, STRIDE * unit / max(length, 1e-300), U, off)

    def down(self, slope: FloatArray) -> FloatArray:
        """The slope by h (m, r) with what is taken off."""
        flat = slope.reshape(len(self.U), -1)
        return np.asarray((flat - self.U @ (self.off[:, None] * (self.U.T @ flat))).reshape(slope.shape))


def _rows_of_h(problem: LossProblem, F: FloatArray) -> tuple[FloatArray, float]:
    """What values are made of h by, of features F (n, m) about their mean: (k, c, m r), of so few rows that these are
    MOST_ROWS values, and 1; or, where every column of h has the same features, (n, 1, m), and how long h's columns
    make values at most, squared."""
    weights, C = problem.weights, problem.C
    centred = F[: max(4, MOST_ROWS // (1 if weights.separable else len(C)))] - problem.mean
    if weights.separable:
        outer = float(np.linalg.norm(weights.root[0] @ C.T, 2)) ** 2
        return (weights.gain * centred)[:, None, :], max(outer, 1e-300)
    rows = np.einsum("na,arp,cp->ncar", centred, weights.psi, C, optimize=True)
    return rows.reshape(len(centred), len(C), -1), 1.0


def _directions(rows: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """The steepest directions U (., k), `count` at most, and one more eigenvalue, (k + 1,), of rows (n, c, .)."""
    flat = rows.reshape(-1, rows.shape[2])
    values, V = scipy.linalg.eigh(flat @ flat.T / len(rows))
    values, V = np.maximum(values[::-1], 0.0), V[:, ::-1]
    k = min(count, max(int(np.count_nonzero(values > 1e-10 * values[0])) - 1, 0))
    return np.asarray(flat.T @ (V[:, :k] / np.sqrt(values[:k] * len(rows)))), values[: k + 1]


@dataclass(frozen=True, eq=False)
class Point:
    """Where a descent is after `step` steps: h and b + mean W in one row of numbers (m r + P,), `mean` of the same
    over steps, and Adam's two averages of slopes, empty for SGD. All that a later step depends on."""

    theta: FloatArray
    mean: FloatArray
    first: FloatArray
    second: FloatArray
    step: int = 0

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """As arrays, by name, with every bit."""
        return {**vars(self), "step": np.array(self.step)}

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        """From `arrays()`; InputError where they are not that."""
        names = ("theta", "mean", "first", "second")
        if set(arrays) != {*names, "step"} or any(len(arrays[name]) not in (0, len(arrays["theta"])) for name in names):
            raise InputError(f"state: wanted arrays {', '.join(names)} and step, of one length; got {sorted(arrays)}")
        theta, mean, first, second = (np.array(arrays[name], dtype=np.float64) for name in names)
        return cls(theta, mean, first, second, int(arrays["step"]))


@dataclass(frozen=True, eq=False)
class Descent:
    """What a step does. `size` is the weight of a batch that makes a whole step: of one of less weight, such as the
    last of a shard, the step is as much shorter, so that every row counts the same. `rate` takes the place of that of
    `rates`."""

    problem: LossProblem
    ridge: float
    rates: Rates
    size: float
    schedule: Schedule = Constant()
    average: Average = LATER
    adam: bool = False
    rate: float | None = None

    def start(self) -> Point:
        """At the problem's start."""
        theta = self._row(self.problem.start[0], self.problem.start[1] + self._about(self.problem.start[0]))
        none = np.zeros(len(theta) if self.adam else 0)
        return Point(theta, theta.copy(), none, none.copy())

    def coefficients(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """h (m, r) and b (P,)."""
        m, r, _ = self.problem.weights.shape
        h = theta[: m * r].reshape(m, r)
        return h, theta[m * r :] - self._about(h)

    def slope(self, theta: FloatArray, F: FloatArray, y: FloatArray, w: FloatArray) -> FloatArray:
        """That of sum w L / size + share ridge |h|^2 by theta, over features F (n, m), targets y (n, q), of which NaN
        count for nothing, and weights w (n,); `share` is that of the batch's weight in `size`."""
        return self._slope(theta, F, y, w)[0]

    def _slope(self, theta: FloatArray, F: FloatArray, y: FloatArray, w: FloatArray) -> tuple[FloatArray, float]:
        """With sum w L."""
        problem, targets = self.problem, self.problem.loss.spread(y)
        h, b = self.coefficients(theta)
        V, there = problem.columns(h, b), np.isfinite(targets)
        terms = problem.loss.terms(F @ V[:-1] + V[-1], np.where(there, targets, 0.0))
        S = terms.slope * (w / self.size)[:, None] * there
        gb = S.sum(axis=0)
        G = (F.T @ S - np.outer(problem.mean, gb)) @ problem.C
        gh = problem.pulled(G) + 2.0 * self.ridge * float(w.sum()) / self.size * h
        return self._row(gh, problem.free(gb @ problem.C)), float(w @ (terms.value * there).sum(axis=1))

    def step(self, point: Point, F: FloatArray, y: FloatArray, w: FloatArray) -> Point:
        """The next point, by a batch as of `slope`."""
        return self.stepped(point, F, y, w)[0]

    def stepped(self, point: Point, F: FloatArray, y: FloatArray, w: FloatArray) -> tuple[Point, float]:
        """The same, and the batch's loss, sum w L, before the step."""
        (slope, loss), factor, t = self._slope(point.theta, F, y, w), self.schedule(point.step), point.step + 1
        first, second = point.first, point.second
        m, r, _ = self.problem.weights.shape
        if self.adam:
            first, second = (
                b * old + (1.0 - b) * new for b, old, new in zip(BETA, (first, second), (slope, slope**2), strict=True)
            )
            rate = factor * (self.rates.adam if self.rate is None else self.rate)
            by = rate * first / (1.0 - BETA[0] ** t) / (np.sqrt(second / (1.0 - BETA[1] ** t)) + TINY)
            by[m * r :] = self.problem.free(by[m * r :])  # each over its own root, they no longer sum to 0
        else:
            rate = self.rates.step if self.rate is None else self.rate
            by = factor * np.concatenate(
                [rate * self.rates.down(slope[: m * r].reshape(m, r)).ravel(), self.rates.constant * slope[m * r :]]
            )
        theta = point.theta - by
        mean = point.mean + self.average.weight(point.step) * (theta - point.mean)
        return Point(theta, mean, first, second, t), loss

    def _about(self, h: FloatArray) -> FloatArray:
        return self.problem.mean @ self.problem.weights.combined(h)

    @staticmethod
    def _row(h: FloatArray, b: FloatArray) -> FloatArray:
        return np.concatenate([h.ravel(), b])


@dataclass(frozen=True, eq=False)
class Expansion:
    """f(x) = b + sum over steps t of F_t(x) psi_t^T alpha_t, of coefficients `alpha` (T, m, r) and `b` (P,) and a seed:
    the features F_t and weights psi_t of a step are drawn from (seed, t), again whenever they are not `kept`: the first
    ones are, of KEPT numbers at most, but not in a file. `recipe` is of the m features of one step."""

    recipe: Recipe
    seed: int
    alpha: FloatArray
    b: FloatArray
    kept: dict[int, tuple[ScalarMap, OperatorWeights]] = field(default_factory=dict)

    @classmethod
    def empty(cls, recipe: Recipe, seed: int, b: FloatArray) -> Self:
        """f = b. InputError where every step would have the same features."""
        if not recipe.seeded:
            problem = f"sampler: {type(recipe.sampler).__name__} gives every step the same features"
            raise InputError(f"{problem}; use iid or orthogonal, and a kernel with frequencies")
        r = cls(recipe, seed, np.empty((0, recipe.m, 1)), b).block(0)[1].shape[1]
        return cls(recipe, seed, np.empty((0, recipe.m, r)), b)

    def block(self, t: int) -> tuple[ScalarMap, OperatorWeights]:
        """The features and weights of step t."""
        if t in self.kept:
            return self.kept[t]
        drawn = self.recipe.draw(int(generator(self.seed, t).integers(2**62)))
        block = drawn.phi, operator_weights(self.recipe.kernel, drawn.phi.m, drawn.density)
        if (len(self.kept) + 1) * (block[0].d * block[0].m + block[1].root.size) <= KEPT:
            self.kept[t] = block
        return block

    def values(self, x: FloatArray) -> FloatArray:
        """f (n, P) at scaled inputs x (n, d). One step's features after the other."""
        f = np.tile(self.b, (len(x), 1))
        for t, alpha in enumerate(self.alpha):
            phi, weights = self.block(t)
            f += phi.transform(x) @ weights.combined(alpha)
        return f

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kept": {}}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """As arrays, by name; with the recipe they are the whole function."""
        return {"alpha": self.alpha, "b": self.b, "seed": np.array(self.seed)}


@dataclass(frozen=True, eq=False)
class DoublyStochastic:
    """Descent in the space of functions: a batch of rows and the features drawn for the step estimate the slope of the
    objective by f (Dai et al. 2014, Alg. 1; Oono, Alg. 5, whose step and ridge are missing in print):

        alpha_t = -eta_t sum w F_t(x) psi_t C^T L'(y, C f) / size,      earlier alpha times 1 - 2 eta_t ridge

    A step evaluates all earlier features on its batch, so that T steps cost O(T^2); that is the price of keeping none.
    `size` is the weight of a whole batch, as of `Descent`; `constant` is the rate of b."""

    loss: Loss
    C: FloatArray
    ridge: float
    rate: float
    constant: float
    size: float
    schedule: Schedule = InverseTime()
    intercept: bool = True

    @staticmethod
    def rates(
        loss: Loss, C: FloatArray, recipe: Recipe, x: FloatArray, y: FloatArray, batch: int
    ) -> tuple[float, float]:
        """Those of f and of b, from scaled inputs x (n, d) and targets y (n, q) of some rows: one over the curvature
        times lambda + beta (1 / batch + 1 / D), lambda the largest eigenvalue of the kernel's matrix over the rows,
        over n, and beta its largest trace at a row. Rows and D frequencies are drawn at each step, and both add to the
        mean square of the slope."""
        targets = loss.spread(y)
        x = x[: max(4, MOST_ROWS // recipe.p)]
        K = recipe.kernel.gram(x, x).transpose(0, 2, 1, 3).reshape((len(x) * recipe.p,) * 2)
        level = float(scipy.linalg.eigvalsh(K, subset_by_index=[len(K) - 1] * 2)[0]) / len(x)
        longest = float(np.diag(K).reshape(len(x), -1).sum(axis=1).max())
        curve = steepest(loss, targets) * max(float(np.linalg.norm(C, 2)) ** 2, 1e-300)
        bound = max(level + longest * (1.0 / batch + 1.0 / recipe.frequencies), 1e-300)
        return 1.0 / (curve * bound), 0.5 / curve

    def step(self, at: Expansion, x: FloatArray, y: FloatArray, w: FloatArray) -> Expansion:
        """The next function, by scaled inputs x (n, d), targets y (n, q), weights w (n,)."""
        eta = self.rate * self.schedule(len(at.alpha))
        S = self.loss.terms(at.values(x) @ self.C.T, self.loss.spread(y)).slope * (w / self.size)[:, None]
        phi, weights = at.block(len(at.alpha))
        G = phi.transform(x).T @ (S @ self.C)
        kept = max(0.0, 1.0 - 2.0 * eta * self.ridge * float(w.sum()) / self.size)
        alpha = np.concatenate([kept * at.alpha, -eta * weights.pulled(G)[None]])
        down = S.sum(axis=0) @ self.C
        down -= down.mean() if self.loss.centred else 0.0
        b = at.b - self.intercept * self.constant * self.schedule(len(at.alpha)) * down
        return replace(at, alpha=alpha, b=b)
