"""Losses other than the square: the objective by passes over the rows, L-BFGS and Newton's method on it.

    1/l sum w L(y, C f) + ridge |f|^2 + sum gI <f, M f>,      f = F W + b, W = psi^T h

Value and slopes at any h and b are sums over rows of [loss, [F | 1]^T slopes]: they see the columns of [W; b] C^T alone
and are blind to psi (Brault 2016, section 5.1). So one pass serves as many functions as are asked for together: fits
without each of the folds go in step. Coefficients are sought in the eigenvectors of the least squares' system, each
over the root of what the curvature is there, so that most of the Hessian is the identity (`Frame`)."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.csgraph import connected_components

from dorff.errors import InputError
from dorff.model.losses import Loss
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Moments, Solvable
from dorff.solvers.problem import Parts
from dorff.solvers.system import BorderedSums, IntArray, PenaltyTerm, assembled
from dorff.spec.registry import lazily

minimize = lazily("scipy.optimize", "minimize")

#: At columns V (m + 1, c), at a width: of each fold the slopes' sums (m + 1 + BESIDE, c), see `passes.slopes`.
Ask = Callable[[FloatArray, float], Mapping[int, FloatArray]]
#: The same: of each column the moments of [F | 1] weighed by its curvature; none where that is zero.
Curved = Callable[[FloatArray, float], Mapping[int, Moments]]

MEMORY: Final = 30  # steps that L-BFGS remembers
FIRST_WIDTH: Final = 2.0  # of a loss with a kink, in scaled units
NARROWER: Final = 4.0  # times, when a width is done
MOST_EVALUATIONS: Final = 500
HALVINGS: Final = 12  # of a Newton step
LEAST_CURVATURE: Final = 1e-3
JITTER: Final = 1e-13  # of the largest diagonal entry of a Newton system


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
        psi = np.broadcast_to(self.weights.psi, (len(G), *self.weights.shape[1:]))
        return np.asarray(np.einsum("arp,ap->ar", psi, G))

    def quadratic(self, h: FloatArray, b: FloatArray, ridge: float) -> tuple[float, FloatArray, FloatArray]:
        """Ridge and manifold terms, and their slopes by h and b."""
        value, gh, gb = ridge * float(np.sum(h**2)), 2.0 * ridge * h, np.zeros_like(b)
        V = self._absolute(h, b) if self.terms else np.empty((0, 0))
        for term in self.terms:
            pulled = term.T @ V @ np.kron(term.views, term.outputs)
            value += float(np.sum(pulled * V))
            gh, gb = gh + 2.0 * self.pulled(pulled[:-1]), gb + 2.0 * pulled[-1]
        return value, gh, gb

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

    @cached_property
    def _roots(self) -> FloatArray:
        axes = self.problem.axes
        return np.sqrt(np.maximum(self.curvature * axes.rows + axes.more + 2.0 * self.ridge, 1e-300))

    def point(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """h (m, r) and b (P,)."""
        problem, roots = self.problem, self._roots
        shape = problem.weights.shape[:2]
        h = problem.axes.out(z[: roots.size].reshape(roots.shape) / roots, shape)
        b = z[roots.size :] / np.sqrt(self.curvature) - problem.mean @ problem.weights.combined(h)
        return h, b

    def place(self, h: FloatArray, b: FloatArray) -> FloatArray:
        """z of h and b."""
        problem = self.problem
        x = problem.axes.into(h) * self._roots
        level = b + problem.mean @ problem.weights.combined(h)
        return np.concatenate([x.ravel(), level * np.sqrt(self.curvature)])

    def slope(self, gh: FloatArray, gb: FloatArray) -> FloatArray:
        """The slope by z, of those by h (with b held, not its level) and b."""
        problem = self.problem
        gh = gh - problem.pulled(np.outer(problem.mean, gb))
        x = problem.axes.into(gh) / self._roots
        return np.concatenate([x.ravel(), problem.free(gb) / np.sqrt(self.curvature)])


class State(NamedTuple):
    """The objective at (h, b): as it is (`value`) and with the smooth loss, whose slopes are gh and gb; the mean `loss`
    of the rows, and `curvature` of one. `excess` is what the width costs: with the slope by h, about the features'
    mean, it bounds how far the objective is above the least for this level of f, by `gap` (inf at ridge 0)."""

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
    held: float | None = None


@dataclass(frozen=True)
class Trial:
    """A fit to be found: at a ridge, to all rows or to those out of one fold."""

    ridge: float
    without: int | None = None


class Evaluator:
    """The objective of trials, all of them at once. `count` is how many passes there were."""

    def __init__(self, problem: LossProblem, ask: Ask) -> None:
        self.problem, self._ask, self.count = problem, ask, 0

    def __call__(
        self, at: Sequence[tuple[Trial, FloatArray, FloatArray]], width: float, *, alone: bool = False
    ) -> list[State]:
        """For (trial, h, b) each its state; `alone`: of rows that its fold holds out only the loss."""
        problem, c = self.problem, len(self.problem.C)
        V = np.hstack([problem.columns(h, b) for _, h, b in at])
        answers = self._ask(V, width)
        self.count += 1
        states = []
        for number, (trial, h, b) in enumerate(at):
            own = {fold: sums[:, number * c : (number + 1) * c] for fold, sums in answers.items()}
            states.append(self._state(trial, h, b, own, width))
        return states

    def _state(self, trial: Trial, h: FloatArray, b: FloatArray, own: Mapping[int, FloatArray], width: float) -> State:
        problem, m = self.problem, len(h)
        sums = sum(one for fold, one in own.items() if fold != trial.without)
        l = sum(size for fold, size in problem.sizes.items() if fold != trial.without)  # noqa: E741
        assert not isinstance(sums, int)
        loss, smooth, half, curvature = sums[m + 1 :].sum(axis=1) / l
        quadratic, qh, qb = problem.quadratic(h, b, trial.ridge)
        G = sums[: m + 1] / l @ problem.C
        gh, gb = problem.pulled(G[:m]) + qh, G[m] + qb
        excess = max(float(loss - smooth - width * half), 0.0)
        about = gh - problem.pulled(np.outer(problem.mean, gb))
        gap = excess + float(np.sum(about**2)) / (4.0 * trial.ridge) if trial.ridge > 0 else np.inf
        held = own.get(trial.without) if trial.without is not None else None
        of_held = None if held is None or trial.without is None else float(held[m + 1].sum())
        value, curved = float(loss) + quadratic, float(curvature) / len(problem.C)
        return State(
            h, b, value, float(smooth) + quadratic, gh, problem.free(gb), float(loss), excess, curved, gap, of_held
        )


Seen = Callable[[State], None]


def lbfgs(
    evaluator: Evaluator, trials: Sequence[Trial], starts: Sequence[tuple[FloatArray, FloatArray]],
    tolerance: float, seen: Seen = lambda _: None,
) -> list[State]:  # fmt: skip
    """Each trial's least objective, by SciPy's L-BFGS-B (Liu & Nocedal 1989), all of them in step: a pass evaluates
    every trial that is not over. It is over where half the squared slope by z, which is about what is left to gain, is
    below `tolerance` of the objective; losses with a kink go on with a narrower width until that costs no more
    either. `seen` is shown the first trial's state of each pass."""
    problem, width = evaluator.problem, FIRST_WIDTH if evaluator.problem.loss.kinked else 0.0
    states = evaluator([(trial, *at) for trial, at in zip(trials, starts, strict=True)], width)
    seen(states[0])
    while True:
        frames = [
            Frame(problem, trial.ridge, max(state.curvature, LEAST_CURVATURE))
            for trial, state in zip(trials, states, strict=True)
        ]
        states = _in_step(evaluator, trials, frames, (states, width, tolerance), seen)
        if all(state.excess <= tolerance * abs(state.value) for state in states):
            return states
        if evaluator.count >= MOST_EVALUATIONS:
            return states
        width /= NARROWER
        states = evaluator([(trial, state.h, state.b) for trial, state in zip(trials, states, strict=True)], width)
        seen(states[0])


def _in_step(
    evaluator: Evaluator, trials: Sequence[Trial], frames: Sequence[Frame],
    begun: tuple[Sequence[State], float, float], seen: Seen,
) -> list[State]:  # fmt: skip
    """The states that L-BFGS comes to from those it begins with, at one width. Each trial has a thread for SciPy's
    loop; all of them wait until every one asks or ends, so that what a pass evaluates does not depend on their pace."""
    states, width, tolerance = begun
    asked: queue.Queue[tuple[int, FloatArray | None, BaseException | None]] = queue.Queue()
    replies: list[queue.Queue[State | None]] = [queue.Queue() for _ in trials]
    best = list(states)

    def over(number: int, state: State) -> bool:
        slope = frames[number].slope(state.gh, state.gb)
        goal = max(tolerance * abs(state.value), 0.1 * state.excess * (state.excess > tolerance * abs(state.value)))
        return 0.5 * float(slope @ slope) <= goal

    def run(number: int) -> None:
        frame, last = frames[number], {"state": states[number], "z": frames[number].place(*states[number][:2])}

        def value(z: FloatArray) -> tuple[float, FloatArray]:
            if not np.array_equal(z, last["z"]):
                asked.put((number, z, None))
                if (state := replies[number].get()) is None:
                    raise _StoppedError
                last.update(state=state, z=z.copy())
            state = last["state"]
            return state.smooth, frame.slope(state.gh, state.gb)

        def accepted(intermediate_result: Any) -> None:
            state = last["state"]
            if state.smooth <= best[number].smooth:
                best[number] = state
            if over(number, state):
                raise StopIteration

        try:
            options = {"maxcor": MEMORY, "maxiter": MOST_EVALUATIONS, "maxfun": MOST_EVALUATIONS, "ftol": 0, "gtol": 0}
            minimize(value, last["z"], jac=True, method="L-BFGS-B", callback=accepted, options=options)
            asked.put((number, None, None))
        except _StoppedError:
            asked.put((number, None, None))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            asked.put((number, None, error))

    going = {number for number in range(len(trials)) if not over(number, states[number])}
    threads = {number: threading.Thread(target=run, args=(number,), daemon=True) for number in sorted(going)}
    for thread in threads.values():
        thread.start()
    try:
        while going:
            wanted = {}
            while len(wanted) < len(going):
                number, z, error = asked.get()
                if error is not None:
                    raise error
                if z is None:
                    going.discard(number)
                else:
                    wanted[number] = z
            if wanted:
                order = sorted(wanted)
                points = [(trials[number], *frames[number].point(wanted[number])) for number in order]
                answered = evaluator(points, width)
                seen(answered[0])
                for number, state in zip(order, answered, strict=True):
                    replies[number].put(state)
    finally:
        for number in going:
            replies[number].put(None)
        for thread in threads.values():
            thread.join()
    return best


class _StoppedError(Exception):
    """A trial's loop is given up."""


def newton(
    evaluator: Evaluator, curved: Curved, trial: Trial, start: tuple[FloatArray, FloatArray], tolerance: float,
    seen: Seen = lambda _: None,
) -> State:  # fmt: skip
    """The least objective by Newton's method, whose system is made of moments weighed by the curvature (iteratively
    reweighted least squares, Green 1984): two passes a step. Losses with a kink become narrower when a step gains
    less than their width costs."""
    problem = evaluator.problem
    width = FIRST_WIDTH if problem.loss.kinked else 0.0
    (state,) = evaluator([(trial, *start)], width)
    seen(state)
    while evaluator.count < MOST_EVALUATIONS:
        weighed = curved(problem.columns(state.h, state.b), width)
        evaluator.count += 1
        dh, db = newton_step(problem, state, trial.ridge, weighed)
        gain = -float(np.sum(state.gh * dh) + np.sum(state.gb * db))
        enough = max(tolerance * abs(state.value), 0.1 * state.excess)
        if 0.5 * gain > enough or state.excess <= tolerance * abs(state.value):
            if 0.5 * gain <= tolerance * abs(state.value):
                return state
            if (better := _searched(evaluator, trial, state, (dh, db), (gain, width), seen)) is None:
                return state
            state = better
        if 0.5 * gain <= 4.0 * enough and state.excess > tolerance * abs(state.value):
            width /= NARROWER
            (state,) = evaluator([(trial, state.h, state.b)], width)
            seen(state)
    return state


def _searched(
    evaluator: Evaluator, trial: Trial, state: State, step: tuple[FloatArray, FloatArray],
    of: tuple[float, float], seen: Seen,
) -> State | None:  # fmt: skip
    """The first of the step and its halves that gains enough (Armijo 1966); None where rounding leaves none."""
    (dh, db), (gain, width) = step, of
    for halving in range(HALVINGS):
        share = 0.5**halving
        (tried,) = evaluator([(trial, state.h + share * dh, state.b + share * db)], width)
        seen(tried)
        if tried.smooth <= state.smooth - 1e-4 * share * gain:
            return tried
    return None


def newton_step(
    problem: LossProblem, state: State, ridge: float, weighed: Mapping[int, Moments]
) -> tuple[FloatArray, FloatArray]:
    """By h and b: what takes the quadratic that fits the objective here to its least. Outputs that do not hang together
    are solved for one after the other."""
    l = sum(problem.sizes.values())  # noqa: E741
    m, r, P = problem.weights.shape
    dh, db = np.zeros((m, r)), np.zeros(P)
    squares = {column: one.full / l for column, one in weighed.items()}
    for rows, columns, outputs in _apart(problem):
        psi = np.broadcast_to(problem.weights.psi, (m, r, P))[:, rows].reshape(m * len(rows), P)
        feature, k = np.repeat(np.arange(m), len(rows)), m * len(rows)
        sums = [_seen(squares[column], problem.C[column][None]) for column in columns if column in squares]
        for term in problem.terms:
            whole = term._replace(T=2.0 * term.T).sums()
            sums.append(whole)
        H = np.zeros((k + len(outputs),) * 2)
        if sums:
            H[:k, :k] = assembled(psi, feature, sums, intercept=False)[0]
            across = sum(one.s[feature, None] * ((psi @ one.C.T) @ one.C) for one in sums)
            N = sum(one.n * one.C.T @ one.C for one in sums)
            H[:k, k:], H[k:, k:] = across[:, outputs], N[np.ix_(outputs, outputs)]
        H[k:, :k] = H[:k, k:].T
        H[np.arange(k), np.arange(k)] += 2.0 * ridge
        largest = float(np.diag(H).max())
        if not problem.intercept:
            H[k:], H[:, k:] = 0.0, 0.0
            H[k:, k:] = largest * np.eye(len(outputs))
        elif problem.loss.centred:
            H[k:, k:] += largest
        H[np.diag_indices(len(H))] += JITTER * largest
        right = -np.concatenate([state.gh[:, rows].ravel(), state.gb[outputs]])
        try:
            solved = scipy.linalg.solve(H, right, assume_a="pos", overwrite_a=True, check_finite=False)
        except scipy.linalg.LinAlgError as error:
            remedy = "raise the ridge, or set solve.solver: lbfgs"
            raise InputError(f"solve.solver: newton: its system is singular ({error}); {remedy}") from error
        dh[:, rows], db[outputs] = solved[:k].reshape(m, -1), problem.free(solved[k:])
    return dh, db


def _seen(square: FloatArray, C: FloatArray) -> BorderedSums:
    m = len(square) - 1
    return BorderedSums(
        square[:m, :m], square[:m, m].copy(), float(square[m, m]), C, np.zeros((m, len(C), 1)), np.zeros((len(C), 1))
    )


def _apart(problem: LossProblem) -> list[tuple[IntArray, IntArray, IntArray]]:
    """Rows of psi, columns of values and outputs that hang together, in groups that do not."""
    weights, C = problem.weights, problem.C
    m, r, P = weights.shape
    psi = np.any(np.broadcast_to(weights.psi, (m, r, P)) != 0, axis=0)
    pairs = np.zeros((r + P + len(C),) * 2, dtype=bool)
    pairs[:r, r : r + P] = psi
    pairs[r + P :, r : r + P] = C != 0
    for term in problem.terms:
        pairs[r : r + P, r : r + P] |= np.kron(term.views, term.outputs) != 0
    if problem.loss.centred:
        pairs[r : r + P, r : r + P] = True
    count, of = connected_components(pairs, directed=False)
    groups = [np.flatnonzero(of == number) for number in range(count)]
    each = [(one[one < r], one[one >= r + P] - r - P, one[(one >= r) & (one < r + P)] - r) for one in groups]
    return [(rows, columns, outputs) for rows, columns, outputs in each if len(outputs)]


def feature_moments(parts: Parts) -> tuple[FloatArray, FloatArray]:
    """The features' mean (m,) and second moments about it (m, m), over the rows, whatever targets they have."""
    m = parts[0].m
    total = sum(part.full[: m + 1, : m + 1] for part in parts)
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
