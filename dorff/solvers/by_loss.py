"""A fit by a loss that is not the square: begun at least squares' fit, its ridge chosen by held-out loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from dorff.errors import InputError
from dorff.kernels import Decomposable, Factor, OperatorKernel, Simplex, Sum
from dorff.model.losses import Loss, Poisson, Quantiles
from dorff.model.posterior import Posterior
from dorff.moments import FloatArray, Moments, Part, Solvable, by_fold, pooled
from dorff.solvers.minimise import Curved, Start, lbfgs, newton
from dorff.solvers.objective import (
    Attempt,
    Evaluator,
    Frame,
    LossProblem,
    State,
    feature_moments,
    fold_sizes,
    without_mean,
)
from dorff.solvers.problem import Problem
from dorff.solvers.scores import Solution
from dorff.solvers.select import squared_errors
from dorff.solvers.setting import Fit, Setting, carried_ridges, within_noise
from dorff.solvers.system import Penalty, Size
from dorff.solvers.uncertainty import posterior, posterior_bytes, prior_covariance

STEP: Final = 10.0  # from ridge to ridge, where they are left to the rows
MOST_RIDGES: Final = 7  # of these
MOST_OF_A_RIDGE: Final = 150  # passes at one ridge, of fits that only choose
LAST_PASSES: Final = 400  # of all that there may be, which the fit at the ridge that was chosen has at least
ROUGH: Final = 10.0  # times the tolerance, of fits that only choose
LEFT: Final = 4.0  # times the tolerance: what may be left to gain where an iteration has ended well
SOLVERS: Final = ("auto", "lbfgs", "newton")


@dataclass(frozen=True)
class Minimisation:
    """How a loss is minimised: by `solver` "lbfgs" or "newton", until the objective is within about `tolerance` of its
    least, as a share of it. Of `ridges` the best on held-out rows is taken; None tries powers of ten about least
    squares' own. `held` are folds that fits without are wanted of, besides."""

    loss: Loss
    solver: str = "auto"
    tolerance: float = 1e-4
    ridges: tuple[float, ...] | None = None
    held: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise InputError(f"solver: wanted one of {', '.join(SOLVERS)}, got {self.solver!r}; correct it")
        if self.solver == "newton" and (self.loss.kinked or self.loss.coupled):
            why = "curves at its kinks alone" if self.loss.kinked else "ties the values of a row together"
            raise InputError(f"solver: newton does not go with loss {self.loss.kind}, which {why}; use lbfgs")


@dataclass(frozen=True)
class LossScore:
    """The mean loss of held-out rows at a ridge; None where none were held out."""

    ridge: float
    loss: float | None


@dataclass(frozen=True, eq=False)
class Descended:
    """What came of it: the `fit`, those without each fold that was held out, the ridges tried, where the iteration
    ended, and how many passes it took, all trials together. `slopes` (c,) are of quantiles: the mean slopes of held-out
    targets by each value, None where none were."""

    fit: Fit
    others: Mapping[int, Fit]
    table: tuple[LossScore, ...]
    state: State
    passes: int
    converged: bool
    problem: LossProblem
    slopes: FloatArray | None = None
    tolerance: float = 1e-4

    @property
    def ended_by(self) -> str:
        """Why the iteration ended: "gap" if the duality gap is within the tolerance, which proves it; "slope" if the
        estimate of what is left to gain is; "passes" if neither is, and there were too many."""
        if self.state.gap <= self.tolerance * abs(self.state.value):
            return "gap"
        return "slope" if self.converged else "passes"

    @property
    def left(self) -> float:
        """What is left to gain, about."""
        return left_to_gain(self.problem, self.state)

    @property
    def below(self) -> FloatArray | None:
        """(c,): of quantiles, the share of held-out targets below each; None where no rows were held out."""
        loss = self.problem.loss
        if self.slopes is None or not isinstance(loss, Quantiles):
            return None
        return np.asarray(np.clip(self.slopes + np.tile(loss.quantiles, len(self.slopes) // loss.levels), 0.0, 1.0))


Seen = Callable[[State, int], None]


class Evaluated(Protocol):
    """Rows, by what is summed over them: `objective.Ask`, and `minimise.Curved`."""

    def __call__(self, V: FloatArray, width: float | tuple[float, ...]) -> Mapping[int, FloatArray]: ...

    def curved(self, V: FloatArray) -> Mapping[int, Moments]: ...


def _unseen(state: State, passes: int) -> None:
    """Nobody is told."""


def check_loss(loss: Loss, kernel: OperatorKernel, *, intercept: bool) -> None:
    """InputError for a kernel whose outputs do not go with the loss, and for quantiles that cannot differ."""
    if isinstance(loss, Quantiles) and loss.levels > 1 and loss.coupling == 0 and not intercept:
        problem = "quantiles of coupling 0 are constants apart, which intercept: false does not allow"
        raise InputError(f"loss: {problem}; give a coupling above 0, or an intercept")
    outputs = [base.output for _, base in kernel.terms() if isinstance(base, Decomposable)]
    if loss.centred and not all(isinstance(one, Simplex) for one in outputs):
        problem = "needs values along the codes of the classes: output simplex of the kernel (coding, of an estimator)"
        raise InputError(f"loss: {loss.kind} {problem}; set it, or take hinge or multinomial")
    if loss.levels > 1 and (len(outputs) < len(kernel.terms()) or kernel.V > 1):
        problem = "are for kernels that are a scalar kernel times a matrix"
        raise InputError(f"loss: several quantiles {problem}; use a decomposable kernel, or one quantile a job")


def levelled(kernel: OperatorKernel, loss: Loss) -> OperatorKernel:
    """The kernel, whose output matrices are written out, with `loss.levels` outputs for each: A (x) B^T B."""
    if loss.levels == 1:
        return kernel
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    root = loss.root
    wide = [
        (weight, Decomposable(base.scalar, Factor(np.kron(base.root(np.ones((1, 1)))[0], root).T)))
        for weight, base in terms
    ]
    return Sum(wide) if len(wide) > 1 or wide[0][0] != 1.0 else wide[0][1]


def descend(
    setting: Setting, sums: Mapping[Part, Solvable], fit: Fit, rows: Evaluated, how: Minimisation, seen: Seen = _unseen
) -> Descended:
    """Minimise the loss from least squares' `fit` to the same rows, whose moments are `sums`. InputError where the
    loss and the targets, or the kernel's outputs, do not go together."""
    several, sizes = how.ridges is None or len(how.ridges) > 1, fold_sizes(sums)
    folds = sorted(sizes) if several else [fold for fold in how.held if fold in sizes]
    if several and len(folds) < 2:
        remedy = "give one ridge, or more rows than one sample, dealt to folds (select: kfold, cv=5)"
        raise InputError(f"loss: several ridges are compared by the loss of rows held out, and none are; {remedy}")
    of_folds = [_start_without(setting, sums, fit, how.loss, fold) for fold in folds]
    problem = loss_problem(setting, sums, fit, how.loss)
    evaluator, starts = Evaluator(problem, rows), [problem.start, *of_folds]
    shown = _Shown(evaluator, seen)
    rough = replace(how, tolerance=ROUGH * how.tolerance)
    if not several:
        ridge = fit.solution.ridge if how.ridges is None else how.ridges[0]
        states = _solved(evaluator, rough, ridge, folds, starts, shown)
        table = [LossScore(ridge, _held(problem, states) if folds else None)]
    else:
        table, states = _path(evaluator, rough, fit.solution.ridge, folds, starts, shown)
    state, *left = states
    slopes = _mean_slopes(evaluator, sums, left) if folds and isinstance(how.loss, Quantiles) else None
    state = _polished(evaluator, rows.curved, how, state, shown)
    enough = LEFT * how.tolerance * abs(state.value)
    certain = how.loss.kinked and state.gap <= how.tolerance * abs(state.value)
    converged = certain or (evaluator.count < evaluator.most and left_to_gain(problem, state) <= enough)
    others = {fold: _fit(setting, problem, one, how, fit) for fold, one in zip(folds, left, strict=True)}
    final = _fit(setting, problem, state, how, fit, converged=converged)
    return Descended(final, others, tuple(table), state, evaluator.count, converged, problem, slopes, how.tolerance)


def left_to_gain(problem: LossProblem, state: State) -> float:
    """Half the squared slope in coordinates in which the Hessian is about 1, and what the width of a kink costs; the
    distance from a lower bound where that is less."""
    return Frame.at(problem, state).left(state) + state.excess if state.left is None else state.left


class _Shown:
    """Tells `seen` of each state, with the passes so far."""

    def __init__(self, evaluator: Evaluator, seen: Seen) -> None:
        self._evaluator, self._seen = evaluator, seen

    def __call__(self, state: State) -> None:
        self._seen(state, self._evaluator.count)


def _solved(
    evaluator: Evaluator, how: Minimisation, ridge: float, folds: Sequence[int], starts: Sequence[Start], shown: _Shown
) -> list[State]:
    """At one ridge, of all rows and without each of the folds, whose held-out losses choose."""
    trials = [Attempt(ridge), *(Attempt(ridge, fold) for fold in folds)]
    most = min(MOST_OF_A_RIDGE, max(evaluator.most - LAST_PASSES - evaluator.count, 1)) if folds else None
    return lbfgs(evaluator, trials, starts, how.tolerance, shown, most_passes=most, selects_ridge=True)


def _path(
    evaluator: Evaluator, how: Minimisation, first: float, folds: Sequence[int], starts: Sequence[Start], shown: _Shown
) -> tuple[list[LossScore], list[State]]:
    """Ridge by ridge, from the largest, each from the one before: the table, and the states of the best, with all
    rows and without each fold. Ridges that are left to the rows go on from `first`, least squares' own, to either side
    until the loss is less at none that is next."""
    problem, trials = evaluator.problem, dict[float, tuple[float, list[State]]]()

    def tried(ridge: float, starts: Sequence[Start]) -> float:
        states = _solved(evaluator, how, ridge, folds, starts, shown)
        trials[ridge] = _held(problem, states), states
        return trials[ridge][0]

    if how.ridges is not None:
        for ridge in sorted(how.ridges, reverse=True):
            tried(ridge, starts)
            starts = _ends(trials[ridge][1])
    else:
        tried(first, starts)
        for step in (STEP, 1.0 / STEP):
            ridge = first
            while len(trials) < MOST_RIDGES:
                before = trials[ridge]
                if tried(ridge * step, _ends(before[1])) >= before[0]:
                    break
                ridge *= step
            if ridge != first:  # the other side is no better
                break
    best = min(trials, key=lambda ridge: trials[ridge][0])
    return [LossScore(ridge, trials[ridge][0]) for ridge in sorted(trials)], trials[best][1]


def _ends(states: Sequence[State]) -> list[Start]:
    return [(state.h, state.b) for state in states]


def _held(problem: LossProblem, states: Sequence[State]) -> float:
    """The mean loss of rows held out, over the folds."""
    held = [(state.held, problem.sizes[state.trial.without]) for state in states if state.trial.without is not None]
    return float(sum(sums[0] for sums, _ in held if sums is not None) / sum(size for _, size in held))


def _mean_slopes(evaluator: Evaluator, sums: Mapping[Part, Solvable], states: Sequence[State]) -> FloatArray:
    """(c,): over the targets that the states' folds have, those of the loss as it is: another pass."""
    exact = evaluator([(state.trial, state.h, state.b) for state in states], 0.0)
    folds = {state.trial.without for state in states}
    there = np.sum([one.corner[0, 0] * one.mask for (fold, _), one in sums.items() if fold in folds], axis=0)
    total = np.sum([state.held[1:] for state in exact if state.held is not None], axis=0)
    return np.asarray(total / np.repeat(np.maximum(there, 1e-300), evaluator.problem.loss.levels))


def _polished(evaluator: Evaluator, curved: Curved, how: Minimisation, state: State, shown: _Shown) -> State:
    start = state.h, state.b
    if how.solver == "newton":
        return newton(evaluator, curved, state.trial, start, how.tolerance, shown)
    return lbfgs(evaluator, [state.trial], [start], how.tolerance, shown)[0]


def loss_problem(setting: Setting, sums: Mapping[Part, Solvable], fit: Fit, loss: Loss) -> LossProblem:
    """What is minimised, from the moments of all rows and least squares' fit to them."""
    parts, sizes = pooled(by_fold(sums)), fold_sizes(sums)
    q, J = parts[0].q, loss.levels
    kernel = levelled(fit.kernel, loss)
    weights = setting.weights(kernel)
    C = np.asarray(np.kron(np.eye(q) if setting.observe is None else setting.observe, np.eye(J)))
    terms = tuple(
        _widened(penalty, J).term(weights, penalty.weight, np.zeros(weights.shape[2])) for penalty in setting.penalties
    )
    mean, S = feature_moments(parts)
    start = _start(setting, parts, fit, loss)
    problem = LossProblem(loss, weights, C, terms, setting.intercept, mean, S, sizes, start)
    return problem if setting.intercept else without_mean(problem)


def _widened(penalty: Penalty, levels: int) -> Penalty:
    if levels == 1 or penalty.outputs is None:
        return penalty
    return replace(penalty, outputs=np.asarray(np.kron(penalty.outputs, np.eye(levels))))


def _start_without(setting: Setting, sums: Mapping[Part, Solvable], fit: Fit, loss: Loss, fold: int) -> Start:
    """That of a fit without a fold, of which it must know nothing: an iteration ends before it has forgotten where it
    began."""
    parts = pooled(by_fold({part: one for part, one in sums.items() if part[0] != fold}))
    fixed = replace(setting, kernel=fit.kernel)
    (without,) = fixed.solve(parts, [carried_ridges(fixed, parts, fit)])
    return _start(setting, parts, without, loss)


def _start(setting: Setting, parts: Sequence[Solvable], fit: Fit, loss: Loss) -> Start:
    """h and b, in scaled units, of which the loss is low: least squares' fit by the loss's affine map."""
    J, p = loss.levels, len(fit.bias)
    h, b = fit.solution.h, fit.bias / fit.scale
    at_zero, at_one = loss.start(np.zeros(p)), loss.start(np.ones(p))
    h, b = h * (at_one - at_zero)[0], b * (at_one - at_zero) + at_zero
    if isinstance(loss, Poisson) and setting.intercept:
        n = np.sum([part.corner[0, 0] * part.mask for part in parts], axis=0)
        mean = parts[0].y0 + np.sum([part.corner[0, 1:] for part in parts], axis=0) / np.maximum(n, 1e-300)
        b = np.log(np.maximum(mean, 1e-6))
        b = b if setting.observe is None else np.linalg.pinv(setting.observe) @ b
    if not setting.intercept:
        b = np.zeros(p)
    if loss.centred:  # where manifold terms see constants, those of least squares are not
        b = b - b.mean()
    if J == 1:
        return h, b
    share = np.linalg.lstsq(loss.root.T, np.ones(J), rcond=None)[0]
    wide = np.einsum("ar,j->arj", h, share).reshape(len(h), -1)
    offsets = np.zeros(p * J)
    if setting.observe is None and setting.intercept:
        counts = np.maximum(np.sum([part.n * part.mask for part in parts], axis=0), 1.0)
        squares = squared_errors(parts, fit.W, fit.bias, None) / setting.scaling(parts) ** 2
        offsets = loss.offsets(np.sqrt(squares / counts))
    return wide, np.repeat(b, J) + offsets


def _fit(
    setting: Setting, problem: LossProblem, state: State, how: Minimisation, first: Fit, *, converged: bool = True
) -> Fit:
    """The fit of a state, in the targets' units."""
    scale = np.repeat(first.scale, how.loss.levels)
    solver = "newton" if how.solver == "newton" else "lbfgs"
    solution = Solution(state.h, state.trial.ridge, first.solution.condition, solver, converged=converged)
    return Fit(levelled(first.kernel, how.loss), problem.weights, solution, scale, state.b * scale)


def seen_as(setting: Setting, fit: Fit, loss: Loss, q: int) -> Setting:
    """The setting that a model of the fit is of: of several quantiles the one nearest to the median is what targets
    are compared with."""
    if loss.levels == 1:
        return replace(setting, kernel=fit.kernel)
    quantiles = np.array(getattr(loss, "quantiles", [0.5]))
    middle = np.eye(loss.levels)[np.argmin(np.abs(quantiles - 0.5))]
    C = np.eye(q) if setting.observe is None else setting.observe
    return replace(setting, kernel=fit.kernel, observe=np.kron(C, middle))


def laplace(setting: Setting, done: Descended, weighed: Mapping[int, Moments]) -> Posterior:
    """How far coefficients may lie from the fit, by Laplace's approximation (MacKay 1992; Rasmussen & Williams 2006,
    sections 3.4 and 3.5): Gaussian, of the inverse of l times the objective's Hessian, for a loss that is minus a log
    density. `weighed` are the moments at the fit, of each of the loss's `combinations` weighed by the curvature along
    it: these are what a system of as many targets sees of f. Of f, in the loss's own units: no noise is in it.

    The objective times l is minus the log density, so that the prior of h is N(0, I / (2 l ridge)). What features leave
    out of it is counted as for least squares (`Setting.posterior`): by landmarks at each x, by a lattice everywhere."""
    problem, state = done.problem, done.state
    c, l = len(problem.C), sum(problem.sizes.values())  # noqa: E741
    D, observe = problem.loss.combinations(c), setting.observe
    if problem.loss.coupled:
        observe = D @ problem.C
    parts = [_padded(part, number, len(D)) for number, part in weighed.items()]
    penalties = [replace(one, weight=one.weight * 2.0 * l / _total(parts)) for one in setting.penalties]
    system = Problem.of(parts, problem.weights, intercept=setting.intercept, observe=observe, penalties=penalties)
    ridge = 2.0 * l * state.trial.ridge / system.l
    if not ridge > 0:
        raise InputError("solve.posterior: at ridge 0 what the data do not see has no bounds; give a ridge above 0")
    solution = replace(done.fit.solution, ridge=ridge)
    made = replace(posterior(system, solution, None, parts), noise=np.zeros((c, c)))
    if setting.landmarks:
        return replace(made, prior=prior_covariance(system, solution, None))
    if setting.missing > 0:
        left_out = setting.missing * prior_covariance(system, solution, None)
        noise = np.array([l / max(rows.n, 1e-300) for rows in system.rows])  # of the working response, in Newton's step
        seen = np.eye(c) if observe is None else observe
        seen = seen[[int(np.argmax(rows.mask)) for rows in system.rows]]
        return replace(made, unexplained=within_noise(left_out, np.diag(noise), seen))
    return made


def laplace_bytes(loss: Loss, m: int, r: int, c: int) -> int:
    """Return the peak memory of `laplace`, in bytes, for c values a row that are coupled, and h of shape (m, r)."""
    e = len(loss.combinations(c))
    size = Size(m, e, r, coupled=True, patterns=e)
    return posterior_bytes(size) + size.packed


def _total(parts: Sequence[Moments]) -> float:
    return sum(float(part.full[part.m, part.m]) for part in parts)


def _padded(moments: Moments, column: int, c: int) -> Moments:
    """Moments of [F | 1] as those of a pattern of c targets of which `column` is there, all of them zeros."""
    m = moments.m
    more = np.zeros(sum(m + 1 + target + 1 for target in range(c)))
    observed = "" if c == 1 else "".join("1" if target == column else "0" for target in range(c))
    return Moments(m, c, moments.n, np.zeros(c), np.concatenate([moments.packed, more]), observed)
