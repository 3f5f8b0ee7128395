"""Fits that are not least squares' own: by a loss that is not the square, from the fit by squares on, in passes that
make the loss least; and by steps, by any loss, each of a batch of rows, after a pass that tells means and scales.

Steps are made in the driver: one needs what the one before it came to. What a later one depends on is in one file of
the pass's folder, written every minute or so and where the process is asked to stop, always between two shards: a fit
that was cut goes on from it, and comes to the same bits."""

import hashlib
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from dorff.data import RowBlock
from dorff.engine import Engine
from dorff.engine.base import stopping_on_signals
from dorff.errors import IncompleteError, InputError, StoppedError
from dorff.errors.stopping import stop_requested
from dorff.fit.passes import Fitted, PassResult, Told
from dorff.fit.streaming import RowsDone, borders_of, sample_of
from dorff.kernels import OperatorKernel
from dorff.model import Posterior
from dorff.model.losses import Loss, Poisson, Quantiles
from dorff.moments import FloatArray, IntArray, Moments, by_fold, pinned, pooled
from dorff.passes import Pass, Question, Sweeper, read_ahead, usable
from dorff.plan import Plan
from dorff.plan.routes import loss_passes, run_rows
from dorff.plan.sharing import loss_of
from dorff.solvers import Choice, Fit, descent, of_first
from dorff.solvers.by_loss import Descended, Minimisation, descend, laplace, levelled, seen_as
from dorff.solvers.matrixfree import Border
from dorff.solvers.objective import LossProblem
from dorff.solvers.scores import Solution
from dorff.solvers.setting import Setting
from dorff.spec.checks import AUTO
from dorff.spec.registry import Config
from dorff.storage.files import identity, read_plain, seal, unseal, write_atomic
from dorff.store.models import UNREADABLE
from dorff.store.moments import read_npz

SAVED: Final = 60.0  # seconds from one saving of where the steps are to the next


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

    def __call__(self, V: FloatArray, width: float | tuple[float, ...]) -> dict[int, FloatArray]:
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
        "gap": state.gap if np.isfinite(state.gap) else None, "ended_by": done.ended_by,
        "held_out_loss": best, "table": [{"ridge": one.ridge, "loss": one.loss} for one in done.table],
    }  # fmt: skip
    if isinstance(loss, Quantiles) and done.below is not None:
        shares = done.below.reshape(-1, loss.levels)
        names = plan.dataset.target_columns
        each = [dict(zip(map(str, loss.quantiles), row.tolist(), strict=True)) for row in shares]
        summary["below"] = dict(zip(names, each, strict=False)) if len(each) == len(names) else each
    return summary


def of_loss(minimised: Minimised, fitted: Fitted, *, auto: bool) -> list[str]:
    """What is to be said of a fit by a loss: that it did not come to its end, or a ridge at the end of those given."""
    sentences, tried = list[str](), [row["ridge"] for row in minimised.summary.get("table") or ()]
    solution = fitted.fit.solution
    if not solution.converged:
        problem = f"the objective is not within solve.tolerance of its least after {minimised.passed.passes:,} passes"
        gap, objective = minimised.summary["gap"], minimised.summary["objective"]
        if gap is not None:
            problem += f" (a duality gap of {gap / max(abs(objective), 1e-300):.1e} of it)"
        sentences.append(f"{problem}; raise the tolerance, or the ridge")
    if not auto and len(tried) > 1 and solution.ridge in (min(tried), max(tried)):
        end = "smallest" if solution.ridge == min(tried) else "largest"
        sentences.append(f"the ridge is the {end} tried, {solution.ridge:.3g}; set solve.ridge: auto")
    return sentences


@dataclass(frozen=True, eq=False)
class Begun:
    """What a first pass tells of a fit by steps, before one is made: the loss of targets (y - shift) / scale is made
    least. `size` is the mean weight of a row, `state` the file that says where the steps are, `stamp` names the rows'
    files."""

    plan: Plan
    setting: Setting
    frozen: Pass
    kernel: OperatorKernel
    problem: LossProblem
    shift: FloatArray
    scale: FloatArray
    size: float
    state: Path
    stamp: str
    sweeper: Sweeper
    seconds: float


def begin(plan: Plan, setting: Setting, engine: Engine, progress: Told = None) -> Begun:
    """The first pass of a fit by steps: the sums' columns of ones and of targets. InputError (no rows, a target that
    none has), IncompleteError (run it again)."""
    began, frozen, pace = time.perf_counter(), plan.frozen(), RowsDone(plan.dataset.rows, progress)
    words = plan.job.model_dump(mode="json", include={"kernel", "features", "solve"})
    solve = hashlib.sha256(json.dumps([frozen.hash, "steps", words], sort_keys=True).encode()).hexdigest()[:16]
    sweeper = Sweeper(frozen, solve, plan.dataset, plan.leaves, engine, pace.rows)
    pace.passes(0, 1 + plan.job.solve.epochs)
    stamp = plan.dataset.stamp(plan.dataset.first, plan.dataset.n)
    with pinned():
        borders = borders_of(sweeper, frozen, plan)
        corners = [border.corner for border in borders]
        scale, loss = setting.scaling(corners), loss_of(plan.job)
        kernel = levelled(setting.fixed(corners), loss)
        problem, shift = _problem(setting, borders, kernel, loss)
    rows, weight = sum(one.n for one in corners), sum(float(one.corner[0, 0]) for one in corners)
    state = frozen.directory / "sweeps" / solve / f"{stamp}.steps"
    seconds = time.perf_counter() - began
    return Begun(plan, setting, frozen, kernel, problem, shift, scale, weight / rows, state, stamp, sweeper, seconds)


def _problem(
    setting: Setting, borders: list[Border], kernel: OperatorKernel, loss: Loss
) -> tuple[LossProblem, FloatArray]:
    """What is made least of which h and b on, and what targets are less by, (q,)."""
    corners, m = [border.corner for border in borders], borders[0].m
    weights, scale, q, J = setting.weights(kernel), setting.scaling(corners), corners[0].q, loss.levels
    P, ones = weights.shape[2], np.sum([border.columns[: m + 1, 0] for border in borders], axis=0)
    observe = np.eye(q) if setting.observe is None else setting.observe
    n = np.maximum(sum(one.corner[0, 0] * one.mask for one in corners), 1e-300)
    mean = corners[0].y0 + sum(one.corner[0, 1:] * one.mask for one in corners) / n
    squares = sum(np.diag(one.corner)[1:] * one.mask for one in corners) / n - (mean - corners[0].y0) ** 2
    shift, b = np.zeros(q), np.zeros(P)
    if setting.intercept and loss.takes == "numbers":
        shift = observe @ np.linalg.pinv(observe) @ mean
        b = loss.offsets(np.sqrt(np.maximum(squares, 0.0)) / scale) if setting.observe is None else b
    elif setting.intercept and isinstance(loss, Poisson):
        b = np.linalg.pinv(observe) @ np.log(np.maximum(mean, 1e-6))
    about = ones[:m] / ones[m] if setting.intercept else np.zeros(m)
    start, C = (np.zeros(weights.shape[:2]), b), np.asarray(np.kron(observe, np.eye(J)))
    return LossProblem(loss, weights, C, (), setting.intercept, about, np.empty((0, 0)), {}, start), shift


class _At(NamedTuple):
    """How far steps are: between two shards, of which `shards` of the pass `epoch` are done, with the sums of their
    rows' losses and weights."""

    point: descent.Point
    epoch: int = 0
    shards: int = 0
    loss: float = 0.0
    weight: float = 0.0

    def save(self, path: Path) -> None:
        """As a line with checksums, and the arrays."""
        buffer = io.BytesIO()
        np.savez(buffer, **self.point.arrays())  # type: ignore[arg-type]  # mypy takes every name for allow_pickle
        words = dict(zip(self._fields[1:], self[1:], strict=True))
        line = seal(words | {"sha256": hashlib.sha256(buffer.getbuffer()).hexdigest()}, identity(path))
        write_atomic(path, [line, b"\n", buffer.getbuffer()], sync=True)

    @classmethod
    def load(cls, path: Path, size: int) -> "_At | None":
        """What was saved, of so many coefficients; None where nothing was, or it is damaged."""
        try:
            line, _, raw = read_plain(path).partition(b"\n")
            words = unseal(line, identity(path))
            if words is None or hashlib.sha256(raw).hexdigest() != words.pop("sha256"):
                return None
            at = cls(descent.Point.of(read_npz(raw)), **words)
            return at if len(at.point.theta) == size else None
        except (FileNotFoundError, *UNREADABLE, InputError):
            return None


def step(begun: Begun, progress: Told = None) -> Minimised:
    """A fit by steps, gone on with where an earlier, unfinished run left it; leaves nothing. InputError (rows that
    changed, steps that went too far), StoppedError where it was asked to stop."""
    began, job = time.perf_counter(), begun.plan.job
    pace, epochs = RowsDone(begun.plan.dataset.rows, progress), job.solve.epochs
    with pinned(), np.errstate(over="ignore", invalid="ignore"):
        run = _Steps(begun, pace)
        with stopping_on_signals():
            at = run.all(epochs)
        fit = _stepped_fit(begun, at.point, job.solve.solver)
    begun.sweeper.tidy()
    loss, passes = loss_of(job), 1 + epochs
    summary = {
        "loss": loss.config(),
        "solver": job.solve.solver,
        "passes": passes,
        "mean_loss": at.loss / at.weight,
        **dict.fromkeys(("objective", "gradient_norm", "left", "gap", "ended_by", "held_out_loss")),
        "table": [],
    }
    seen = seen_as(begun.setting, fit, loss, len(begun.shift))
    fitted = Fitted((seen,), {}, Choice(0, fit, (), begun.plan.costs.m))
    return Minimised(fitted, summary, None, PassResult({}, [], [], time.perf_counter() - began, epochs))


def _stepped_fit(begun: Begun, point: descent.Point, solver: str) -> Fit:
    """The fit of the steps' mean, in the targets' units."""
    problem, how = begun.problem, begun.setting
    levels = problem.loss.levels
    scale = np.repeat(begun.scale, levels) if how.observe is None else np.full(problem.C.shape[1], begun.scale[0])
    h = point.mean[: problem.start[0].size].reshape(problem.start[0].shape)
    b = point.mean[h.size :] - problem.mean @ problem.weights.combined(h)
    bias = b * scale + np.linalg.pinv(problem.C) @ np.repeat(begun.shift, levels)
    (ridge,) = begun.plan.job.solve.ridges
    return Fit(begun.kernel, problem.weights, Solution(h, ridge, 1.0, solver), scale, bias)


class _Steps:
    """Steps by the shards of a data set."""

    def __init__(self, begun: Begun, pace: RowsDone) -> None:
        self._begun, self._pace, solve = begun, pace, begun.plan.job.solve
        self._seed, self._batch = begun.plan.job.features.seed, solve.batch
        (ridge,), loss = solve.ridges, begun.problem.loss
        schedule = descent.InverseTime(30.0, 0.5) if loss.kinked else descent.Constant()
        size = solve.batch * begun.size
        self._how = descent.Descent(
            begun.problem, ridge, self._rates(ridge), size, schedule, adam=solve.solver == "adam"
        )
        self._shards = list(begun.plan.dataset.cuts(run_rows(begun.plan.dataset)))

    def _rates(self, ridge: float) -> descent.Rates:
        begun, wanted = self._begun, descent.MOST_ROWS
        sample, Y = sample_of(begun.plan, begun.frozen, wanted)
        order = descent.generator(self._seed, 1).permutation(len(Y))
        order = order[sample.weights[order] > 0]
        if not len(order):
            problem = f"{begun.plan.dataset.path}: none of the rows that were looked at can be used"
            raise InputError(f"{problem}, and solve.solver: {begun.plan.job.solve.solver} needs some to tell its rates")
        y = np.nan_to_num((Y[order] - begun.shift) / begun.scale, nan=0.0)
        F = sample.features(sample.X[order])
        return descent.Rates.of(begun.problem, F, y, ridge=ridge, batch=self._batch)

    def all(self, epochs: int) -> _At:
        """Where the steps are when all passes are made; saved now and then, and where something ends this."""
        path, start = self._begun.state, self._how.start()
        at, saved = _At.load(path, len(start.theta)) or _At(start), time.monotonic()
        try:
            while at.epoch < epochs:
                self._pace.passes(1 + at.epoch, 1 + epochs)
                at = at if at.shards else at._replace(loss=0.0, weight=0.0)
                for after in self._shards_of(at):
                    at = after
                    if time.monotonic() - saved > SAVED:
                        at.save(path)
                        saved = time.monotonic()
                at = at._replace(epoch=at.epoch + 1, shards=0)
        except BaseException as error:
            if not isinstance(error, InputError):
                at.save(path)
            raise
        return at

    def _shards_of(self, at: _At) -> Iterator[_At]:
        """Where the steps are after each shard of a pass that is left."""
        begun, dataset = self._begun, self._begun.plan.dataset
        order = descent.shuffled(self._seed, at.epoch, self._shards)
        done = sum(stop - start for start, stop, _ in islice(order, at.shards))
        self._pace.rows(done)
        order, runs = tee(order)
        blocks = read_ahead(dataset, ((start, stop) for start, stop, _ in runs))
        for (start, stop, rows), block in zip(order, blocks, strict=True):
            at = self._after(at, usable(dataset, begun.frozen, block[rows])[0])
            del block
            yield at
            done += stop - start
            self._pace.rows(done)
        if dataset.stamp(dataset.first, dataset.n) != begun.stamp:
            raise IncompleteError(f"{dataset.path}: rows changed while they were read pass by pass; run the job again")

    def _after(self, at: _At, rows: RowBlock) -> _At:
        """A step for each batch of a shard's rows, in their order."""
        begun, point, loss, weight = self._begun, at.point, at.loss, at.weight
        of_class = begun.frozen.constants.class_weight
        for first in range(0, len(rows), self._batch):
            if stop_requested():
                raise StoppedError("asked to stop; steps are kept up to the last shard's end, run the job again")
            some = rows[first : first + self._batch]
            w = np.ones(len(some)) if some.weights is None else some.weights
            w = w if of_class is None else w * (some.Y @ of_class)
            F = begun.frozen.features.transform(some.X)
            point, lost = self._how.stepped(point, F, (some.Y - begun.shift) / begun.scale, w)
            loss, weight = loss + lost, weight + float(w.sum())
        if not np.isfinite(point.mean).all():
            solve = begun.plan.job.solve
            problem = f"solve.solver: the steps of {solve.solver} did not stay finite with solve.batch {solve.batch}"
            raise InputError(f"{problem}; raise the ridge, standardize, or use another solver")
        return _At(point, at.epoch, at.shards + 1, loss, weight)
