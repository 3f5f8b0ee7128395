"""The least objective of a loss: L-BFGS for all trials in step, and Newton's method on weighted moments."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.linalg
from scipy.sparse.csgraph import connected_components

from dorff.errors import InputError
from dorff.moments import FloatArray, Moments
from dorff.solvers.bundle import MOST_PLANES, MOST_PLANES_OF_SEVERAL, Bundle
from dorff.solvers.objective import Attempt, Evaluator, Frame, LossProblem, State
from dorff.solvers.system import BorderedSums, IntArray, assembled
from dorff.spec.registry import lazily

minimize = lazily("scipy.optimize", "minimize")

#: At columns V (m + 1, c): of each the moments of [F | 1] weighed by its curvature; none where that is zero.
Curved = Callable[[FloatArray], Mapping[int, Moments]]
Start = tuple[FloatArray, FloatArray]

MEMORY: Final = 30  # steps that L-BFGS remembers
FIRST_WIDTH: Final = 2.0  # of a loss with a kink, in scaled units
NARROWER: Final = 4.0  # times, when a width is done
MOST_EVALUATIONS: Final = 500
#: How far from the best point to where planes are the lowest the second point of a bundle is, and how that changes.
LEAST_SHARE, MOST_SHARE = 0.02, 0.5
SHORTER, LONGER = 0.7, 2.0
PROVING: Final = 60  # passes at most, after L-BFGS, that only raise the lower bound
FINEST: Final = 1e-8  # tolerance that a bundle's bound can be within, for rounding
PLANES_CLOSE: Final = 1e-3  # of what is left: how far the bound may be from the best that planes give
HALVINGS: Final = 12  # of a Newton step
ROUNDING: Final = 1e-8  # of the objective: what rounding may hide of a step's gain
JITTER: Final = 1e-13  # of the largest diagonal entry of a Newton system


Seen = Callable[[State], None]


def lbfgs(
    evaluator: Evaluator,
    trials: Sequence[Attempt],
    starts: Sequence[Start],
    tolerance: float,
    seen: Seen = lambda _: None,
    *,
    most_passes: int | None = None,
    chooses: bool = False,
) -> list[State]:
    """Minimise each trial's objective by SciPy's L-BFGS-B (Liu & Nocedal 1989), all of them in step.

    A pass evaluates every trial that is not over. A trial is over if half the squared slope by z, an estimate of what
    is left to gain, is below `tolerance` of the objective. A loss with kinks is replaced by a smooth one, whose width
    shrinks until it costs no more than that either; its passes evaluate points of a bundle too (`solvers.bundle`), and
    a trial is over as soon as the objective is within `tolerance` of a lower bound. Trials whose held-out loss
    `chooses` a ridge come within `tolerance` of that loss, of which the objective is a small share at small ridges.
    Where L-BFGS ends first, PROVING more passes at most raise the bound, but not for trials that choose.
    No more than `most_passes` are made, nor more than the evaluator has. `seen` gets the first trial's state of each
    pass."""
    problem, width = evaluator.problem, FIRST_WIDTH if evaluator.problem.loss.kinked else 0.0
    last = evaluator.most if most_passes is None else min(evaluator.most, evaluator.count + most_passes)
    states = evaluator([(trial, *at) for trial, at in zip(trials, starts, strict=True)], width)
    seen(states[0])
    floor = min(map(problem.held_loss, (state for state in states if state.held is not None)), default=0.0)
    floor = floor if chooses and problem.loss.kinked else 0.0
    most = MOST_PLANES if len(trials) == 1 else MOST_PLANES_OF_SEVERAL
    bounded = [_Bounded.of(evaluator, state, tolerance, floor, most) for state in states]
    while True:
        frames = [Frame.at(problem, state) for state in states]
        states = _Together(evaluator, frames, bounded, width, last, seen).run(states)
        over = [one.over or state.excess <= one.enough(state) for one, state in zip(bounded, states, strict=True)]
        if all(over) and not chooses:
            _prove(evaluator, bounded, min(last, evaluator.count + PROVING), seen)
        if all(over) or evaluator.count >= last:
            return [one.ended(state) for one, state in zip(bounded, states, strict=True)]
        width /= NARROWER
        going = [number for number, done in enumerate(over) if not done]
        again = evaluator([(trials[number], states[number].h, states[number].b) for number in going], width)
        for number, state in zip(going, again, strict=True):
            states[number] = state
        seen(states[0])


def _prove(evaluator: Evaluator, bounded: Sequence["_Bounded"], last: int, seen: Seen) -> None:
    """Go on with the bundles' points alone, until their bounds are within the tolerance or pass number `last`."""
    while evaluator.count < last:
        going = [one for one in bounded if one.bundle is not None and not one.over]
        if not going:
            return
        states = evaluator([(one.best.trial, *point) for one in going for point in one.points], 0.0)
        for one in going:
            one.learn([states.pop(0) for _ in one.points])
        seen(bounded[0].best)


@dataclass(eq=False)
class _Bounded:
    """The best state of a trial; of a loss with kinks also a lower bound of its objective, and the next points.

    The next pass evaluates the minimiser of the planes' objective, and a point between it and the best state, at
    `share` of the way."""

    best: State
    tolerance: float
    floor: float
    bundle: Bundle | None
    most: int = MOST_PLANES
    lower: float = -np.inf
    points: Sequence[Start] = ()
    share: float = MOST_SHARE

    @classmethod
    def of(cls, evaluator: Evaluator, state: State, tolerance: float, floor: float, most: int) -> "_Bounded":
        """Return that of a first state."""
        trial = state.trial
        if tolerance < FINEST or not Bundle.supports(evaluator.problem, trial.ridge):
            return cls(state, tolerance, floor, None)
        bundle = evaluator.bundles.setdefault(trial.without, Bundle(evaluator.problem))
        bounded = cls(state, tolerance, floor, bundle, most)
        bounded.learn([state])
        return bounded

    def enough(self, state: State) -> float:
        """Return what may be left to gain."""
        return self.tolerance * max(abs(state.value), self.floor)

    @property
    def over(self) -> bool:
        """Whether the lower bound shows that the best state is within the tolerance."""
        return self.best.value - self.lower <= self.enough(self.best)

    def learn(self, states: Sequence[State]) -> None:
        """Update with the trial's states of a pass."""
        before = self.best
        self.best = min(self.best, *states, key=lambda state: state.value)
        if self.bundle is None:
            return
        self.bundle.add(states)
        close = max(PLANES_CLOSE * (self.best.value - self.lower), PLANES_CLOSE * self.enough(self.best))
        close = max(min(close, PLANES_CLOSE * abs(self.best.value)), 0.1 * FINEST * abs(self.best.value))
        bound = self.bundle.bound(self.best.trial.ridge, close, self.most)
        self.lower = max(self.lower, bound.value)
        h, b = bound.h, bound.b
        best = self.best
        if best is states[-1] and best is not before:  # the shorter step was a good one
            self.share = min(MOST_SHARE, LONGER * self.share)
        else:
            self.share = max(LEAST_SHARE, SHORTER * self.share)
        self.points = [(best.h + share * (h - best.h), best.b + share * (b - best.b)) for share in (1.0, self.share)]

    def ended(self, state: State) -> State:
        """Return the best of `state`, where L-BFGS ended, and all others, with its gap."""
        if self.bundle is None:
            return state
        best = self.best if self.best.value < state.value else state
        gap = max(best.value - self.lower, 0.0)
        left = Frame.at(self.bundle.problem, state).left(state) + state.excess
        return best._replace(gap=gap, left=min(gap, left))


class _Together:
    """L-BFGS of several trials at one width, in the coordinates of its frame each. SciPy's loop runs in a thread for
    each; all wait until every one asks or ends, so that what a pass evaluates does not depend on their pace."""

    def __init__(
        self,
        evaluator: Evaluator,
        frames: Sequence[Frame],
        bounded: Sequence[_Bounded],
        width: float,
        last: int,
        seen: Seen,
    ) -> None:
        self._evaluator, self._frames, self._bounded, self._width = evaluator, frames, bounded, width
        self._last, self._seen = last, seen
        self._asked: queue.Queue[tuple[int, FloatArray | BaseException | None]] = queue.Queue()
        self._replies: list[queue.Queue[State | None]] = [queue.Queue() for _ in frames]
        self._best: list[State] = []

    def run(self, states: Sequence[State]) -> list[State]:
        """The best of what each comes to from its state."""
        self._best = list(states)
        going = {number for number, state in enumerate(states) if not self._over(number, state)}
        threads = [threading.Thread(target=self._descend, args=(number,), daemon=True) for number in sorted(going)]
        for thread in threads:
            thread.start()
        try:
            while going:
                self._pass(going)
        finally:
            for number in going:
                self._replies[number].put(None)
            for thread in threads:
                thread.join()
        return self._best

    def _pass(self, going: set[int]) -> None:
        """Wait for all, and answer those that ask; those that the bound says are over ask in vain."""
        wanted = dict[int, FloatArray]()
        while len(wanted) < len(going):
            number, z = self._asked.get()
            if isinstance(z, BaseException):
                raise z
            if z is None:
                going.discard(number)
            else:
                wanted[number] = z
        if not wanted:
            return
        order = sorted(wanted)
        points, widths, owners = list[tuple[Attempt, FloatArray, FloatArray]](), list[float](), list[int]()
        for number in order:
            trial, own = self._best[number].trial, self._bounded[number].points
            points += [(trial, *self._frames[number].point(wanted[number])), *((trial, *at) for at in own)]
            widths += [self._width, *(0.0 for _ in own)]
            owners += [number] * (1 + len(own))
        states = self._evaluator(points, tuple(widths) if len(points) > len(order) else self._width)
        self._seen(states[0])
        for number in order:
            own_states = [state for owner, state in zip(owners, states, strict=True) if owner == number]
            self._bounded[number].learn(own_states)
            if self._bounded[number].over:
                going.discard(number)
                self._replies[number].put(None)
            else:
                self._replies[number].put(own_states[0])

    def _over(self, number: int, state: State) -> bool:
        bounded = self._bounded[number]
        if bounded.over or self._evaluator.count >= self._last:
            return True
        enough = bounded.enough(state)
        if state.excess > enough:  # a width that is not the last
            enough = max(enough, 0.1 * state.excess)
        return self._frames[number].left(state) <= enough

    def _descend(self, number: int) -> None:
        """One trial's loop."""
        frame = self._frames[number]
        last, at = self._best[number], frame.place(self._best[number])

        def value(z: FloatArray) -> tuple[float, FloatArray]:
            nonlocal last, at
            if not np.array_equal(z, at):
                self._asked.put((number, z.copy()))
                state = self._replies[number].get()
                if state is None:
                    raise _StoppedError
                last, at = state, z.copy()
            return last.smooth, frame.slope(last)

        def accepted(intermediate_result: Any) -> None:
            if last.smooth <= self._best[number].smooth:
                self._best[number] = last
            if self._over(number, last):
                raise StopIteration

        try:
            options = {"maxcor": MEMORY, "maxiter": MOST_EVALUATIONS, "maxfun": MOST_EVALUATIONS, "ftol": 0, "gtol": 0}
            minimize(value, at, jac=True, method="L-BFGS-B", callback=accepted, options=options)
            self._asked.put((number, None))
        except _StoppedError:
            return
        except BaseException as error:  # raised again by who waits
            self._asked.put((number, error))


class _StoppedError(Exception):
    """A trial's loop is given up."""


def newton(
    evaluator: Evaluator, curved: Curved, trial: Attempt, start: Start, tolerance: float, seen: Seen = lambda _: None
) -> State:
    """The least objective by Newton's method, whose system is made of moments weighed by the curvature (iteratively
    reweighted least squares, Green 1984): two passes a step, or more where a step is halved (Armijo 1966). Of losses
    that curve throughout, each value for itself: where one does not, L-BFGS goes on."""
    problem = evaluator.problem
    (state,) = evaluator([(trial, *start)], 0.0)
    seen(state)
    while evaluator.count < evaluator.most:
        weighed = curved(problem.columns(state.h, state.b))
        evaluator.count += 1
        dh, db = newton_step(problem, state, weighed)
        gain = -float(np.sum(state.gh * dh) + np.sum(state.gb * db))
        if 0.5 * gain <= tolerance * abs(state.value):
            return state
        for halving in range(HALVINGS):
            share = 0.5**halving
            (tried,) = evaluator([(trial, state.h + share * dh, state.b + share * db)], 0.0)
            seen(tried)
            if tried.value <= state.value - 1e-4 * share * gain:
                break
        else:  # it hardly curves here, and the step was too long; or rounding leaves nothing to gain
            if gain <= ROUNDING * abs(state.value):
                return state
            return lbfgs(evaluator, [trial], [(state.h, state.b)], tolerance, seen)[0]
        state = tried
    return state


def newton_step(problem: LossProblem, state: State, weighed: Mapping[int, Moments]) -> tuple[FloatArray, FloatArray]:
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
            across = np.sum([one.s[feature, None] * ((psi @ one.C.T) @ one.C) for one in sums], axis=0)
            N = np.sum([one.n * one.C.T @ one.C for one in sums], axis=0)
            H[:k, k:], H[k:, k:] = across[:, outputs], N[np.ix_(outputs, outputs)]
        H[k:, :k] = H[:k, k:].T
        H[np.arange(k), np.arange(k)] += 2.0 * state.trial.ridge
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
