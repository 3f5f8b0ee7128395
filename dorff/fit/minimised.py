"""A fit by a loss that is not the square: least squares' fit, then passes over the rows that make the loss least."""

import hashlib
import json
import time
from dataclasses import dataclass, replace

import numpy as np

from dorff.data import open_dataset
from dorff.engine import Engine
from dorff.errors import InputError
from dorff.fit.passes import Fitted, PassResult, Told
from dorff.fit.streaming import RowsDone
from dorff.model import Posterior
from dorff.model.losses import Loss, Quantiles
from dorff.moments import FloatArray, IntArray, Moments, by_fold, pinned, pooled
from dorff.passes import Question, Sweeper
from dorff.plan import Plan
from dorff.plan.routes import loss_passes
from dorff.plan.sharing import loss_of
from dorff.solvers import of_first
from dorff.solvers.by_loss import Descended, Minimisation, descend, laplace, seen_as
from dorff.solvers.setting import Setting
from dorff.spec.checks import AUTO
from dorff.spec.registry import Config


@dataclass(frozen=True, eq=False)
class Minimised:
    """The fit by the loss, what is said of it, its posterior where it was asked for, and its passes."""

    fitted: Fitted
    summary: Config
    posterior: Posterior | None
    passed: PassResult


class _OfSweeps:
    """What `descend` asks of the rows, by sweeps: with the first `at` of the pass's features, each times `factor`."""

    def __init__(self, sweeper: Sweeper, loss: Loss, scale: FloatArray, at: IntArray, factor: float, m: int) -> None:
        self._sweeper, self._loss, self._scale = sweeper, loss, tuple(scale.tolist())
        self._at, self._factor, self._m = at, factor, m

    def __call__(self, V: FloatArray, width: float) -> dict[int, FloatArray]:
        answer = self._sweeper.answer(Question(self._lifted(V), self._loss, self._scale, width))
        own = np.concatenate([self._at, np.arange(self._m, self._m + 1 + len(next(iter(answer.values())).y0))])
        sums: dict[int, FloatArray] = {}
        for (fold, _), one in answer.items():
            values = one.values.reshape(-1, V.shape[1])[own]
            values[: len(self._at)] *= self._factor
            sums[fold] = values
        return sums

    def curved(self, V: FloatArray) -> dict[int, Moments]:
        """Of each column the moments weighed by curvature."""
        answer = self._sweeper.answer(Question(self._lifted(V), self._loss, self._scale, curved=True))
        moments = {column: one for (column, _), one in answer.items() if isinstance(one, Moments)}
        if len(self._at) == self._m:
            return moments
        return {column: one.columns(self._at, self._factor) for column, one in moments.items()}

    def _lifted(self, V: FloatArray) -> FloatArray:
        lifted = np.zeros((self._m + 1, V.shape[1]))
        lifted[self._at], lifted[-1] = V[:-1] * self._factor, V[-1]
        return lifted


def minimise(plan: Plan, fitted: Fitted, passed: PassResult, engine: Engine, progress: Told = None) -> Minimised:
    """The plan's loss at its least, from the fit by squares on; goes on from what an earlier, unfinished run left, and
    leaves none. InputError (a loss that does not go with the fit, rows that changed), IncompleteError (run it
    again)."""
    began, loss, frozen = time.perf_counter(), loss_of(plan.job), plan.frozen()
    choice, m = fitted.choice, frozen.features.m
    keys = list(fitted.sums)
    (each,), setting = of_first([list(fitted.sums.values())], fitted.settings[choice.candidate], choice.m)
    sums = dict(zip(keys, each, strict=True))
    parts = pooled(by_fold(sums))
    how = _how(plan, loss, fitted)
    pace = RowsDone(plan.dataset.rows, progress)
    expected = loss_passes(plan.job, kinked=loss.kinked)
    pace.passes(1, 1 + expected)
    words = plan.job.model_dump(mode="json", include={"kernel", "features", "solve", "manifold"})
    name = json.dumps([frozen.hash, words, passed.fingerprints, choice.candidate, choice.m], sort_keys=True)
    solve = hashlib.sha256(name.encode()).hexdigest()[:16]
    sweeper = Sweeper(frozen, solve, plan.dataset, plan.leaves, engine, pace.rows)
    first, D = choice.m // 2, m // 2
    at = np.arange(m) if choice.m == m else np.concatenate([np.arange(first), np.arange(D, D + first)])
    rows = _OfSweeps(sweeper, loss, setting.scaling(parts), at, float(np.sqrt(m / len(at))), m)

    def seen(_: object, count: int) -> None:
        pace.passes(1 + count, 1 + max(expected, count + 1))

    with pinned():
        done = descend(setting, sums, choice.fit, rows, how, seen)
        sure = _posterior(plan, setting, done, rows)
    sweeper.tidy()
    seconds, q = time.perf_counter() - began, parts[0].q
    settings, of_model = list(fitted.settings), seen_as(setting, done.fit, loss, q)
    settings[choice.candidate] = replace(settings[choice.candidate], kernel=of_model.kernel, observe=of_model.observe)
    of_loss = replace(
        fitted, settings=settings, choice=replace(choice, fit=done.fit, table=()), others=dict(done.others)
    )
    result = PassResult({}, sweeper.receipts, sweeper.fresh, seconds, sweeper.count)
    return Minimised(of_loss, _summary(plan, loss, done, sweeper.count), sure, result)


def _how(plan: Plan, loss: Loss, fitted: Fitted) -> Minimisation:
    solve = plan.job.solve
    ridges = None if solve.ridge == AUTO else tuple(solve.ridges)
    folds = sorted({fold for (fold, _), sums in fitted.sums.items() if sums.n})
    held = tuple(folds[:1]) if len(folds) > 1 else ()
    return Minimisation(loss, solve.solver, solve.tolerance, ridges, held)


def _posterior(plan: Plan, setting: Setting, done: Descended, rows: _OfSweeps) -> Posterior | None:
    if plan.job.solve.posterior is not True:
        return None
    return laplace(setting, done, rows.curved(done.problem.columns(done.state.h, done.state.b)))


def _summary(plan: Plan, loss: Loss, done: Descended, passes: int) -> Config:
    """What a report says of the loss: see `FitReport`."""
    state = done.state
    slope = float(np.sqrt(np.sum(state.gh**2) + np.sum(state.gb**2)))
    best = next((one.loss for one in done.table if one.ridge == state.trial.ridge), None)
    summary = {
        "loss": loss.config(), "solver": done.fit.solution.rung, "passes": passes, "objective": state.value,
        "mean_loss": state.loss, "gradient_norm": slope, "left": done.left,
        "gap": state.gap if np.isfinite(state.gap) else None,
        "held_out_loss": best, "table": [{"ridge": one.ridge, "loss": one.loss} for one in done.table],
    }  # fmt: skip
    if isinstance(loss, Quantiles) and done.below is not None:
        shares = done.below.reshape(-1, loss.levels)
        names = plan.dataset.target_columns
        each = [dict(zip(map(str, loss.quantiles), row.tolist(), strict=True)) for row in shares]
        summary["below"] = dict(zip(names, each, strict=False)) if len(each) == len(names) else each
    return summary


def check_targets(plan: Plan) -> None:
    """InputError where the loss is not one of the data's targets; where it is of counts, or of 0 and 1, these are read
    once, and nothing else, before any pass."""
    loss, dataset = loss_of(plan.job), plan.dataset
    wanted = {"counts": "counts of 0 or more", "labels": "targets of 0 and 1, or classes"}.get(loss.takes)
    if wanted is None or dataset.labels is not None:
        return
    targets = open_dataset(str(dataset.path), inputs=dataset.targets, targets=None)
    for start, stop in targets.cuts(max(targets.unit_rows, 2**16)):
        if stop <= dataset.first:
            continue
        block = targets.block(start, stop)
        bad = (block.X < 0) if loss.takes == "counts" else ~np.isin(block.X, (0.0, 1.0)) & ~np.isnan(block.X)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            came = f"row {block.numbers[row]}, column {dataset.target_columns[column]} has {block.X[row, column]:g}"
            problem = f"solve.loss: {loss.kind} is for {wanted}, but {dataset.path}: {came}"
            raise InputError(f"{problem}; mend it, or take another loss")
