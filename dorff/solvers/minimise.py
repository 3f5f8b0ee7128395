"""Minimization of the objective of a loss.

L-BFGS minimizes the objectives of several trials in lockstep, by passes that they share. Newton's
method minimizes that of one trial, by moments that are weighted by the curvature.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.csgraph import connected_components

from dorff.errors import InputError
from dorff.moments import FloatArray, Moments
from dorff.solvers.bundle import MOST_PLANES, MOST_PLANES_OF_SEVERAL, Bundle, LowerBound
from dorff.solvers.objective import Attempt, Evaluator, Frame, LossProblem, State
from dorff.solvers.system import BorderedSums, IntArray, assembled
from dorff.spec.registry import lazily

minimize = lazily("scipy.optimize", "minimize")

#: At columns V (m + 1, c): of each the moments of [F | 1] weighed by its curvature; none where that is zero.
Curved = Callable[[FloatArray], Mapping[int, Moments]]
Start = tuple[FloatArray, FloatArray]
#: A trial, and coefficients h (m, r) and constants b (P,) at which a pass evaluates it.
EvaluationPoint = tuple[Attempt, FloatArray, FloatArray]
#: What is called after each pass, with the state of the first trial.
PassCallback = Callable[[State], None]

MEMORY: Final = 30  # steps that L-BFGS remembers
FIRST_WIDTH: Final = 2.0  # of a loss with a kink, in scaled units
NARROWER: Final = 4.0  # times, when a width is done
MOST_EVALUATIONS: Final = 500
LEAST_SHARE, MOST_SHARE = 0.02, 0.5  # limits of `_TrialProgress.share`
SHORTER, LONGER = 0.7, 2.0  # factors of the share after a pass
PROVING: Final = 60  # most passes after L-BFGS that only raise the lower bounds
FINEST: Final = 1e-8  # least tolerance with a lower bound: below it rounding decides
PLANES_CLOSE: Final = 1e-3  # distance of a bound from the best of its planes, as a share of the gap
HALVINGS: Final = 12  # of a Newton step
ROUNDING: Final = 1e-8  # of the objective: what rounding may hide of a step's gain
JITTER: Final = 1e-13  # of the largest diagonal entry of a Newton system


def _ignore(state: State) -> None:
    """Do nothing after a pass."""


def lbfgs(
    evaluator: Evaluator,
    trials: Sequence[Attempt],
    starts: Sequence[Start],
    tolerance: float,
    on_pass: PassCallback = _ignore,
    *,
    most_passes: int | None = None,
    selects_ridge: bool = False,
) -> list[State]:
    """Minimize the objectives of trials by SciPy's L-BFGS-B (Liu & Nocedal 1989), in lockstep.

    A pass evaluates every trial that has not ended. A trial ends if half its squared slope by z,
    an estimate of what is left to gain, is below `tolerance` times the objective.

    A loss with kinks is replaced by a smooth loss, whose width shrinks until it costs no more than
    that either. Its passes evaluate points of a bundle too (`solvers.bundle`), and a trial ends as
    soon as its objective is within the tolerance of a lower bound. If L-BFGS ends before that,
    `PROVING` more passes at most raise the bound.

    Parameters
    ----------
    evaluator : Evaluator
        Evaluates points by passes over the rows.
    trials : sequence of Attempt
        A ridge each, and the fold that is held out.
    starts : sequence of (h, b)
        First coefficients (m, r) and constants (P,) of each trial.
    tolerance : float
        Distance from the least objective, as a share of the objective.
    on_pass : callable
        Called after each pass with the state of the first trial.
    most_passes : int, optional
        Most passes of this call (default: those that the evaluator has left).
    selects_ridge : bool
        Whether a ridge is selected by the trials' held-out losses. For losses with kinks the
        tolerance is then a share of the least held-out loss, where that is more: at small ridges
        the objective is a small share of it. No passes only raise bounds.

    Returns
    -------
    list of State
        The best state of each trial.
    """
    problem = evaluator.problem
    width = FIRST_WIDTH if problem.loss.kinked else 0.0
    last_pass = evaluator.most
    if most_passes is not None:
        last_pass = min(last_pass, evaluator.count + most_passes)

    points = [(trial, h, b) for trial, (h, b) in zip(trials, starts, strict=True)]
    states = evaluator(points, width)
    on_pass(states[0])

    needs_held_loss = selects_ridge and problem.loss.kinked
    loss_floor = _least_held_loss(problem, states) if needs_held_loss else 0.0
    most_planes = MOST_PLANES if len(trials) == 1 else MOST_PLANES_OF_SEVERAL
    progress = [
        _TrialProgress.start(
            evaluator,
            state,
            tolerance=tolerance,
            loss_floor=loss_floor,
            most_planes=most_planes,
        )
        for state in states
    ]

    while True:
        descent = _JointDescent(
            evaluator=evaluator,
            progress=progress,
            states=states,
            width=width,
            last_pass=last_pass,
            on_pass=on_pass,
        )
        states = descent.run()
        remaining = list[int]()
        for number, state in enumerate(states):
            if progress[number].needs_narrower_width(state):
                remaining.append(number)
        if not remaining and not selects_ridge:
            _raise_bounds(evaluator, progress, min(last_pass, evaluator.count + PROVING), on_pass)
        if not remaining or evaluator.count >= last_pass:
            ends = zip(progress, states, strict=True)
            return [trial_progress.result(state) for trial_progress, state in ends]

        width /= NARROWER
        points = [(trials[number], states[number].h, states[number].b) for number in remaining]
        for number, state in zip(remaining, evaluator(points, width), strict=True):
            states[number] = state
        on_pass(states[0])


def _least_held_loss(problem: LossProblem, states: Sequence[State]) -> float:
    """Return the least mean loss of held-out rows; 0 if none are held out."""
    losses = [problem.held_loss(state) for state in states if state.held is not None]
    return min(losses, default=0.0)


def _raise_bounds(
    evaluator: Evaluator,
    progress: Sequence["_TrialProgress"],
    last_pass: int,
    on_pass: PassCallback,
) -> None:
    """Evaluate points of the bundles alone until all trials end, or until pass `last_pass`."""
    while evaluator.count < last_pass:
        active = [
            trial_progress
            for trial_progress in progress
            if trial_progress.bundle is not None and not trial_progress.has_ended
        ]
        if not active:
            return
        points = list[EvaluationPoint]()
        for trial_progress in active:
            trial = trial_progress.best.trial
            points += [(trial, h, b) for h, b in trial_progress.next_points]
        states = iter(evaluator(points, 0.0))
        for trial_progress in active:
            trial_progress.update([next(states) for _ in trial_progress.next_points])
        on_pass(progress[0].best)


@dataclass(eq=False, kw_only=True)
class _TrialProgress:
    """The best state of a trial and, for a loss with kinks, a lower bound and the next points.

    Attributes
    ----------
    best : State
        The state of the least objective.
    tolerance, loss_floor : float
        The objective may be above its least by `tolerance` times the larger of itself and
        `loss_floor`.
    bundle : Bundle or None
        The trial's planes; None if the loss has no lower bounds.
    most_planes : int
        Planes that the bundle keeps.
    lower_bound : float
        Lower bound of the objective.
    next_points : sequence of (h, b)
        Points that the next pass evaluates besides that of L-BFGS: the minimizer of the planes'
        objective, and a point between the best state and the minimizer.
    share : float
        Where the second point is, as a share of the way from the best state to the minimizer.
    """

    best: State
    tolerance: float
    loss_floor: float
    bundle: Bundle | None
    most_planes: int
    lower_bound: float = -np.inf
    next_points: Sequence[Start] = ()
    share: float = MOST_SHARE

    @classmethod
    def start(
        cls,
        evaluator: Evaluator,
        state: State,
        *,
        tolerance: float,
        loss_floor: float,
        most_planes: int,
    ) -> "_TrialProgress":
        """Return the progress of a trial at its first state.

        A bundle that the evaluator keeps from another ridge is used again.
        """
        bundle = None
        if tolerance >= FINEST and Bundle.supports(evaluator.problem, state.trial.ridge):
            new_bundle = Bundle(evaluator.problem)
            bundle = evaluator.bundles.setdefault(state.trial.without, new_bundle)
        progress = cls(
            best=state,
            tolerance=tolerance,
            loss_floor=loss_floor,
            bundle=bundle,
            most_planes=most_planes,
        )
        progress.update([state])
        return progress

    def allowed_gap(self, state: State) -> float:
        """Return how far the objective of a state may be above its least."""
        return self.tolerance * max(abs(state.value), self.loss_floor)

    @property
    def has_ended(self) -> bool:
        """Whether the lower bound shows that the best state is within the tolerance."""
        return self.best.value - self.lower_bound <= self.allowed_gap(self.best)

    def needs_narrower_width(self, state: State) -> bool:
        """Whether the width costs too much at the state where L-BFGS ended."""
        return not (self.has_ended or state.excess <= self.allowed_gap(state))

    def update(self, states: Sequence[State]) -> None:
        """Update the best state, the bound and the next points by the trial's states of a pass."""
        previous_best = self.best
        self.best = min(self.best, *states, key=lambda state: state.value)
        if self.bundle is None:
            return

        self.bundle.add(states)
        ridge = self.best.trial.ridge
        bound = self.bundle.bound(ridge, self._bound_tolerance(), self.most_planes)
        self.lower_bound = max(self.lower_bound, bound.value)

        # The last state is that of the point between, unless this is the first pass.
        if self.best is states[-1] and self.best is not previous_best:
            self.share = min(MOST_SHARE, LONGER * self.share)
        else:
            self.share = max(LEAST_SHARE, SHORTER * self.share)
        self.next_points = [
            self._point_toward(bound, share=1.0),
            self._point_toward(bound, share=self.share),
        ]

    def _bound_tolerance(self) -> float:
        """Return how far the bound may be from the best bound that the planes give."""
        value = abs(self.best.value)
        gap = self.best.value - self.lower_bound
        of_gap = max(PLANES_CLOSE * gap, PLANES_CLOSE * self.allowed_gap(self.best))
        return max(min(of_gap, PLANES_CLOSE * value), 0.1 * FINEST * value)

    def _point_toward(self, bound: LowerBound, share: float) -> Start:
        """Return the point at a share of the way from the best state to the planes' minimizer."""
        best = self.best
        return best.h + share * (bound.h - best.h), best.b + share * (bound.b - best.b)

    def result(self, state: State) -> State:
        """Return the best state of the trial, with its gap and an estimate of what is left to gain.

        `state` is where L-BFGS ended.
        """
        if self.bundle is None:
            return state
        best = self.best if self.best.value < state.value else state
        gap = max(best.value - self.lower_bound, 0.0)
        left = Frame.at(self.bundle.problem, state).left(state) + state.excess
        return best._replace(gap=gap, left=min(gap, left))


class _Request(NamedTuple):
    """What the loop of a trial asks for: its function at z, or nothing more.

    Attributes
    ----------
    number : int
        The trial's.
    z : ndarray or None
        Coordinates of a point; None if the loop has ended.
    error : BaseException or None
        What the loop ended by, if by an error.
    """

    number: int
    z: FloatArray | None = None
    error: BaseException | None = None


class _JointDescent:
    """L-BFGS of several trials at one width, each in the coordinates of its own frame.

    SciPy's loop of each trial runs in a thread of its own. A pass waits until every loop has asked
    for a point or has ended, so that its points do not depend on how fast the threads are.
    """

    def __init__(
        self,
        *,
        evaluator: Evaluator,
        progress: Sequence[_TrialProgress],
        states: Sequence[State],
        width: float,
        last_pass: int,
        on_pass: PassCallback,
    ) -> None:
        self._evaluator = evaluator
        self._progress = progress
        self._frames = [Frame.at(evaluator.problem, state) for state in states]
        self._width = width
        self._last_pass = last_pass
        self._on_pass = on_pass
        self._best = list(states)
        self._requests: queue.Queue[_Request] = queue.Queue()
        self._replies: list[queue.Queue[State | None]] = [queue.Queue() for _ in states]

    def run(self) -> list[State]:
        """Return the best state of each trial, by its smooth objective."""
        numbers = range(len(self._best))
        running = {number for number in numbers if not self._has_ended(number, self._best[number])}
        threads = list[threading.Thread]()
        for number in sorted(running):
            thread = threading.Thread(target=self._descend, args=(number,), daemon=True)
            threads.append(thread)
            thread.start()
        try:
            while running:
                self._pass(running)
        finally:
            for number in running:
                self._replies[number].put(None)
            for thread in threads:
                thread.join()
        return self._best

    def _pass(self, running: set[int]) -> None:
        """Wait for all trials that are running, evaluate what they request, and reply.

        Trials that end are removed from `running`.
        """
        requested = self._collect_requests(running)
        if not requested:
            return

        states = self._evaluate(requested)
        for number, trial_states in states.items():
            self._progress[number].update(trial_states)
            if self._progress[number].has_ended:
                running.discard(number)
                self._replies[number].put(None)
            else:
                self._replies[number].put(trial_states[0])

    def _collect_requests(self, running: set[int]) -> dict[int, FloatArray]:
        """Return z by trial once every trial that is running has requested one or has ended."""
        requested = dict[int, FloatArray]()
        while len(requested) < len(running):
            request = self._requests.get()
            if request.error is not None:
                raise request.error
            if request.z is None:
                running.discard(request.number)
            else:
                requested[request.number] = request.z
        return requested

    def _evaluate(self, requested: Mapping[int, FloatArray]) -> dict[int, list[State]]:
        """Return the states of a pass by trial: at the point requested, then at the bundle's."""
        points = list[EvaluationPoint]()
        widths, owners = list[float](), list[int]()
        for number in sorted(requested):
            trial = self._best[number].trial
            h, b = self._frames[number].point(requested[number])
            points.append((trial, h, b))
            widths.append(self._width)
            owners.append(number)
            for h, b in self._progress[number].next_points:
                points.append((trial, h, b))
                widths.append(0.0)
                owners.append(number)

        has_bundle_points = len(points) > len(requested)
        states = self._evaluator(points, tuple(widths) if has_bundle_points else self._width)
        self._on_pass(states[0])

        states_by_trial: dict[int, list[State]] = {number: [] for number in sorted(requested)}
        for number, state in zip(owners, states, strict=True):
            states_by_trial[number].append(state)
        return states_by_trial

    def _has_ended(self, number: int, state: State) -> bool:
        """Return whether a trial ends at a state of its loop."""
        progress = self._progress[number]
        if progress.has_ended or self._evaluator.count >= self._last_pass:
            return True
        allowed = progress.allowed_gap(state)
        if state.excess > allowed:  # another width follows: this one need not be minimized as far
            allowed = max(allowed, 0.1 * state.excess)
        return self._frames[number].left(state) <= allowed

    def _descend(self, number: int) -> None:
        """Run SciPy's loop of one trial."""
        frame = self._frames[number]
        state = self._best[number]
        position = frame.place(state)

        def smooth_objective(z: FloatArray) -> tuple[float, FloatArray]:
            nonlocal state, position
            if not np.array_equal(z, position):
                self._requests.put(_Request(number, z=z.copy()))
                reply = self._replies[number].get()
                if reply is None:
                    raise _StoppedError
                state, position = reply, z.copy()
            return state.smooth, frame.slope(state)

        # SciPy passes the iterate by the name of the parameter.
        def end_iteration(intermediate_result: Any) -> None:
            if state.smooth <= self._best[number].smooth:
                self._best[number] = state
            if self._has_ended(number, state):
                raise StopIteration

        options = {
            "maxcor": MEMORY,
            "maxiter": MOST_EVALUATIONS,
            "maxfun": MOST_EVALUATIONS,
            "ftol": 0,
            "gtol": 0,
        }
        try:
            minimize(
                smooth_objective,
                position,
                jac=True,
                method="L-BFGS-B",
                callback=end_iteration,
                options=options,
            )
        except _StoppedError:
            return
        except BaseException as error:  # raised again by the thread that waits
            self._requests.put(_Request(number, error=error))
        else:
            self._requests.put(_Request(number))


class _StoppedError(Exception):
    """The loop of a trial is stopped."""


def newton(
    evaluator: Evaluator,
    curved: Curved,
    trial: Attempt,
    start: Start,
    tolerance: float,
    on_pass: PassCallback = _ignore,
) -> State:
    """Minimize the objective of a trial by Newton's method.

    The system of a step is made of moments that are weighted by the curvature (iteratively
    reweighted least squares, Green 1984). A step takes two passes, or more if it is halved (Armijo
    1966). The loss must be curved everywhere, and separate in the values; where the objective
    hardly curves, L-BFGS continues.

    Parameters
    ----------
    evaluator : Evaluator
        Evaluates points by passes over the rows.
    curved : callable
        Sums the weighted moments, in a pass of its own.
    trial : Attempt
    start : (h, b)
        First coefficients (m, r) and constants (P,).
    tolerance : float
        Distance from the least objective, as a share of the objective.
    on_pass : callable
        Called with the state of each point.

    Returns
    -------
    State
        The state of the least objective.
    """
    problem = evaluator.problem
    (state,) = evaluator([(trial, *start)], 0.0)
    on_pass(state)
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
            on_pass(tried)
            if tried.value <= state.value - 1e-4 * share * gain:
                break
        else:
            # The objective hardly curves here, so that the step was too long, or what is left to
            # gain is rounding.
            if gain <= ROUNDING * abs(state.value):
                return state
            return lbfgs(evaluator, [trial], [(state.h, state.b)], tolerance, on_pass)[0]
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
