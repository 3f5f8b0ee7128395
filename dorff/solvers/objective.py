"""The objective of a loss that is not the square, by passes over the rows; and coordinates that suit it.

    1/l sum w L(y, C f) + ridge |f|^2 + sum gI <f, M f>,      f = F W + b, W = psi^T h

Value and slopes at any h and b are sums over rows of [loss, [F | 1]^T slopes]: they see the columns of [W; b] C^T alone
and are blind to psi (Brault 2016, section 5.1). So one pass serves as many functions as are asked for together: fits
without each of the folds go in step. Coefficients are sought in the eigenvectors of the least squares' system, each
over the root of what the curvature is there, so that most of the Hessian is the identity (`Frame`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.model.losses import Loss
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Solvable
from dorff.solvers.problem import Parts
from dorff.solvers.system import BorderedSums, PenaltyTerm, assembled

#: At columns V (m + 1, c), at a width, or one for each function: of each fold the slopes' sums (m + 1 + BESIDE, c), see
#: `passes.slopes`.
Ask = Callable[[FloatArray, float | tuple[float, ...]], Mapping[int, FloatArray]]
LEAST_CURVATURE: Final = 1e-3
FLAT: Final = 1e-13  # of the steepest axis: at ridge 0 others are no steeper
MOST_PASSES: Final = 1000
#: Of a loss with a kink: a narrow one is where few rows are, and across them all that curves is the ridge.
MOST_OF_KINKS: Final = 0.5


@dataclass(frozen=True, eq=False)
class LossProblem:
    """What is minimised but for the ridge: `weights` psi, `C` (c, P) from outputs to values, `terms` the manifold terms
    in whole (of a mean loss, not times l). `mean` (m,) is the features' over the rows, of zeros without `intercept`.
    `S` (m, m) are their second moments about it, over the rows' weight; `sizes` the rows' weight in each fold, and
    `start` (h, b) where iterations begin, in scaled units."""

    loss: Loss
    weights: OperatorWeights
    C: FloatArray
    terms: tuple[PenaltyTerm, ...]
    intercept: bool
    mean: FloatArray
    S: FloatArray
    sizes: Mapping[int, float]
    start: tuple[FloatArray, FloatArray]

    def columns(self, h: FloatArray, b: FloatArray) -> FloatArray:
        """V (m + 1, c) of coefficients h (m, r) and constants b (P,)."""
        return np.asarray(self._absolute(h, b) @ self.C.T)

    def _absolute(self, h: FloatArray, b: FloatArray) -> FloatArray:
        return np.vstack([self.weights.combined(h), b])

    def pulled(self, G: FloatArray) -> FloatArray:
        """(m, r): what slopes G (m, P) by W are by h."""
        return self.weights.pulled(G)

    def quadratic(self, h: FloatArray, b: FloatArray, ridge: float) -> tuple[float, FloatArray, FloatArray]:
        """Ridge and manifold terms, and their slopes by h and b."""
        value, gh, gb = ridge * float(np.sum(h**2)), 2.0 * ridge * h, np.zeros_like(b)
        V = self._absolute(h, b) if self.terms else np.empty((0, 0))
        for term in self.terms:
            pulled = term.T @ V @ np.kron(term.views, term.outputs)
            value += float(np.sum(pulled * V))
            gh, gb = gh + 2.0 * self.pulled(pulled[:-1]), gb + 2.0 * pulled[-1]
        return value, gh, gb

    def held_loss(self, state: "State") -> float:
        """The mean loss of the rows that a state's trial leaves out; 0 where there are none."""
        fold = state.trial.without
        return 0.0 if fold is None or state.held is None else float(state.held[0]) / self.sizes[fold]

    def free(self, gb: FloatArray) -> FloatArray:
        """A slope by constants (P,), of those that may move."""
        if not self.intercept:
            return np.zeros_like(gb)
        return gb - gb.mean() if self.loss.centred else gb

    @cached_property
    def axes(self) -> "Axes":
        """Those of the least squares' system, with the manifold terms."""
        return Axes.of(self)


class Axes(NamedTuple):
    """Orthogonal axes of the coefficients: h = U x Q^T of x (m, r), of one system h = U x, both flattened. What rows
    curve along them, if each curves by 1, and what manifold terms do: as x."""

    U: FloatArray
    Q: FloatArray | None
    rows: FloatArray
    more: FloatArray

    @classmethod
    def of(cls, problem: LossProblem) -> "Axes":
        weights, terms, C, m = problem.weights, problem.terms, problem.C, len(problem.S)
        plain = all(np.array_equal(one.outputs, np.eye(len(one.outputs))) and len(one.views) == 1 for one in terms)
        if weights.separable and (not terms or (plain and np.array_equal(C, np.eye(len(C))))):
            load = weights.root[0] @ C.T
            a, Q = np.linalg.eigh(load @ load.T)
            S, T = problem.S, sum((centred(one.T, problem.mean) for one in terms), np.zeros((m, m)))
            gain = np.outer(weights.gain, weights.gain)
            values, U = scipy.linalg.eigh(gain * (S + 2.0 * T))
            of_terms = np.einsum("kj,kj->j", U, (gain * 2.0 * T) @ U) if terms else np.zeros(m)
            rows = np.maximum(values - of_terms, 0.0)
            a = np.maximum(a, 0.0)
            return cls(U, Q, np.outer(rows, a), np.outer(np.maximum(of_terms, 0.0), a))
        psi = np.ascontiguousarray(np.broadcast_to(weights.psi, (m, *weights.shape[1:]))).reshape(-1, C.shape[1])
        feature = np.repeat(np.arange(m), weights.shape[1])
        about = BorderedSums(problem.S, np.zeros(m), 0.0, C, np.zeros((m, len(C), 1)), np.zeros((len(C), 1)))
        G = assembled(psi, feature, [about], intercept=False)[0]
        values, U = scipy.linalg.eigh(G)
        more = np.zeros(len(values))
        if terms:
            moved = [replace_T(one, centred(one.T, problem.mean)) for one in terms]
            T = 2.0 * assembled(psi, feature, [one.sums() for one in moved], intercept=False)[0]
            values, U = scipy.linalg.eigh(G + T)
            more = np.maximum(np.einsum("kj,kj->j", U, T @ U), 0.0)
        return cls(U, None, np.maximum(values - more, 0.0), more)

    def into(self, h: FloatArray) -> FloatArray:
        """x of h (m, r)."""
        return self.U.T @ h.ravel() if self.Q is None else self.U.T @ h @ self.Q

    def out(self, x: FloatArray, shape: tuple[int, int]) -> FloatArray:
        """h (m, r) of x."""
        return (self.U @ x).reshape(shape) if self.Q is None else self.U @ x @ self.Q.T


def centred(T: FloatArray, mean: FloatArray) -> FloatArray:
    """(m, m): T (m + 1, m + 1) over features and ones, of features less `mean`."""
    m = len(mean)
    across = np.outer(mean, T[m, :m])
    return np.asarray(T[:m, :m] - across - across.T + T[m, m] * np.outer(mean, mean))


def replace_T(term: PenaltyTerm, T: FloatArray) -> PenaltyTerm:
    """The same with T (m, m) over features alone, as one with zeros for the ones."""
    whole = np.zeros((len(T) + 1, len(T) + 1))
    whole[:-1, :-1] = T
    return term._replace(T=whole)


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates z of (h, b) at a ridge: along the axes, over the root of the curvature there if each row curves by
    `curvature`; and b plus what W has at the features' mean, over its root."""

    problem: LossProblem
    ridge: float
    curvature: float

    @classmethod
    def at(cls, problem: LossProblem, state: "State") -> "Frame":
        """That of a state."""
        most = MOST_OF_KINKS if problem.loss.kinked else np.inf
        return cls(problem, state.trial.ridge, min(max(state.curvature, LEAST_CURVATURE), most))

    @cached_property
    def _roots(self) -> FloatArray:
        axes = self.problem.axes
        curves = self.curvature * axes.rows + axes.more + 2.0 * self.ridge
        return np.asarray(np.sqrt(np.maximum(curves, FLAT * max(float(curves.max()), 1e-300))))

    def point(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """h (m, r) and b (P,)."""
        problem, roots = self.problem, self._roots
        shape = problem.weights.shape[:2]
        h = problem.axes.out(z[: roots.size].reshape(roots.shape) / roots, shape)
        b = z[roots.size :] / np.sqrt(self.curvature) - problem.mean @ problem.weights.combined(h)
        return h, b

    def place(self, state: "State") -> FloatArray:
        """z of a state."""
        problem = self.problem
        x = problem.axes.into(state.h) * self._roots
        level = state.b + problem.mean @ problem.weights.combined(state.h)
        return np.concatenate([x.ravel(), level * np.sqrt(self.curvature)])

    def slope(self, state: "State") -> FloatArray:
        """That of the smooth objective by z."""
        gh = state.gh - self.problem.pulled(np.outer(self.problem.mean, state.gb))
        x = self.problem.axes.into(gh) / self._roots
        return np.concatenate([x.ravel(), state.gb / np.sqrt(self.curvature)])

    def left(self, state: "State") -> float:
        """Half the squared slope: about what the smooth objective is above its least."""
        slope = self.slope(state)
        return 0.5 * float(slope @ slope)


@dataclass(frozen=True)
class Attempt:
    """A fit to be found: at a ridge, to all rows or to those out of one fold."""

    ridge: float
    without: int | None = None


class State(NamedTuple):
    """The objective of a trial at (h, b): as it is (`value`) and with the smooth loss, whose slopes are gh and gb; the
    mean `loss` of the rows, and `curvature` of one. `excess` is what the width costs: with the slope by h, about the
    features' mean, it bounds how far the objective is above the least for this level of f, by `gap` (inf at ridge 0).
    `held` are the sums of the rows that the trial leaves out, (1 + c,): of the loss, and of its slope by each value.
    `planes` are of a loss with a kink: for each column what its mean loss is above (c,), at zero, and the slopes
    (m + 1, c) of that (`solvers.bundle`). `left` is what is left to gain, where others than its own slopes tell."""

    trial: Attempt
    h: FloatArray
    b: FloatArray
    value: float
    smooth: float
    gh: FloatArray
    gb: FloatArray
    loss: float
    excess: float
    curvature: float
    gap: float
    held: FloatArray | None = None
    planes: tuple[FloatArray, FloatArray] = (np.empty(0), np.empty((0, 0)))
    left: float | None = None


class Evaluator:
    """The objective of trials, all of them at once. `count` is how many passes there were, `most` may be."""

    def __init__(self, problem: LossProblem, ask: Ask, most: int = MOST_PASSES) -> None:
        self.problem, self._ask, self.count, self.most = problem, ask, 0, most
        self.bundles: dict[int | None, Any] = {}

    def __call__(
        self, at: Sequence[tuple[Attempt, FloatArray, FloatArray]], width: float | tuple[float, ...]
    ) -> list[State]:
        """For (trial, h, b) each its state; at a width, or one for each."""
        problem, c = self.problem, len(self.problem.C)
        V = np.hstack([problem.columns(h, b) for _, h, b in at])
        answers = self._ask(V, width)
        self.count += 1
        states = []
        for number, (trial, h, b) in enumerate(at):
            own = {fold: sums[:, number * c : (number + 1) * c] for fold, sums in answers.items()}
            states.append(self._state(trial, h, b, own, width[number] if isinstance(width, tuple) else width))
        return states

    def _state(
        self, trial: Attempt, h: FloatArray, b: FloatArray, own: Mapping[int, FloatArray], width: float
    ) -> State:
        problem, m = self.problem, len(h)
        sums = np.sum([one for fold, one in own.items() if fold != trial.without], axis=0)
        l = sum(size for fold, size in problem.sizes.items() if fold != trial.without)  # noqa: E741
        beside = sums[m + 1 :] / l
        loss, smooth, half, curvature = beside.sum(axis=1)
        quadratic, qh, qb = problem.quadratic(h, b, trial.ridge)
        slopes = sums[: m + 1] / l
        G = slopes @ problem.C
        gh, gb = problem.pulled(G[:m]) + qh, G[m] + qb
        excess = max(float(loss - smooth - width * half), 0.0)
        about = gh - problem.pulled(np.outer(problem.mean, gb))
        gap = excess + float(np.sum(about**2)) / (4.0 * trial.ridge) if trial.ridge > 0 else np.inf
        held = None if trial.without is None else own.get(trial.without)
        of_held = None if held is None else np.append(held[m + 1].sum(), held[m])
        value, curved = float(loss) + quadratic, float(curvature) / len(problem.C)
        objective = value, float(smooth) + quadratic, gh, problem.free(gb), float(loss)
        planes = (np.empty(0), np.empty((0, 0)))
        if problem.loss.kinked:
            touched = np.sum(slopes * problem.columns(h, b), axis=0)
            planes = beside[1] + width * beside[2] - touched, slopes
        return State(trial, h, b, *objective, excess, curved, gap, of_held, planes)


def feature_moments(parts: Parts) -> tuple[FloatArray, FloatArray]:
    """The features' mean (m,) and second moments about it (m, m), over the rows, whatever targets they have."""
    m = parts[0].m
    total = np.sum([part.full[: m + 1, : m + 1] for part in parts], axis=0)
    n = float(total[m, m])
    mean = total[:m, m] / n
    return mean, np.asarray(total[:m, :m] / n - np.outer(mean, mean))


def fold_sizes(folds: Mapping[Any, Solvable]) -> dict[int, float]:
    """The rows' weight in each fold, by the fold's number."""
    sizes: dict[int, float] = {}
    for (fold, _), sums in folds.items():
        if sums.n:
            sizes[fold] = sizes.get(fold, 0.0) + float(sums.corner[0, 0])
    return sizes


def without_mean(problem: LossProblem) -> LossProblem:
    """The same for a fit without an intercept: nothing is taken off the features."""
    S = problem.S + np.outer(problem.mean, problem.mean)
    return replace(problem, mean=np.zeros_like(problem.mean), S=S)
