"""A fit whose sums are never held: conjugate gradients, each product of which is a pass over the data."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from dorff.data import RowBlock
from dorff.engine import Engine
from dorff.errors import InputError
from dorff.fit.choice import no_target, settings
from dorff.fit.passes import Told
from dorff.kernels import OperatorKernel
from dorff.model.weights import operator_weights
from dorff.moments import MOST_PATTERNS, FloatArray, Moments, patterns_of, pinned, unseen
from dorff.passes import Pass, Sweeper
from dorff.plan import Plan, constants_of, freeze_constants, make_plan
from dorff.plan.routes import EXPECTED_PASSES, MOST_PASSES, sample_rows
from dorff.solvers import Fit, Setting, targets_apart
from dorff.solvers.cg import Iterated, Sample, Sampled, iterate
from dorff.solvers.matrixfree import Border, Operator, System, make_system
from dorff.solvers.select import independent
from dorff.store import Receipt

TOLERANCE: Final = 1e-5
RUN_ROWS: Final = 64  # rows of the sample that lie together, so that few chunks of the store are read
MOST_FEATURES: Final = 2048  # of a trial in memory of how many passes it takes
TRIED: Final = 4  # rows for each feature
MOST_NUMBERS: Final = 2**25  # of these rows, their inputs and targets twice: 256 MiB
FEWER: Final = 8  # times as few tell the preconditioner: one that has seen most of the rows would be too good
TILE: Final = 512
MOST_READ: Final = 32  # times as many rows as are wanted, where few can be used


class Streamed(NamedTuple):
    """A fit by passes. `receipts` are those of the first pass, `fresh` of all leaves of all passes that this run made,
    `passes` how many there were in all, and `iterated` how the error fell."""

    fit: Fit
    receipts: list[Receipt]
    fresh: list[Receipt]
    passes: int
    iterated: Iterated
    seconds: float


def fit_streaming(
    plan: Plan,
    setting: Setting,
    engine: Engine,
    progress: Told = None,
    *,
    tolerance: float = TOLERANCE,
    most: int = MOST_PASSES,
) -> Streamed:
    """Fit the plan's one kernel at its one ridge; goes on from what an earlier, unfinished run left, and leaves none.
    Raises InputError (bad data, or data that change meanwhile), IncompleteError (run it again)."""
    began, n = time.perf_counter(), plan.dataset.rows
    frozen = freeze_constants(plan)
    (ridge,) = plan.job.solve.ridges
    pace = RowsDone(n, progress)
    words = plan.job.model_dump(mode="json", include={"kernel", "features", "solve"})
    solve = hashlib.sha256(json.dumps([frozen.hash, tolerance, words], sort_keys=True).encode()).hexdigest()[:16]
    sweeper = Sweeper(frozen, solve, plan.dataset, plan.leaves, engine, pace.rows)
    with pinned():
        borders = borders_of(sweeper, frozen, plan)
        corners = [border.corner for border in borders]
        kernel, system = system_of(frozen, setting, borders, sweeper)
        wanted = sample_rows(frozen.features.m, 1 if system.apart else plan.dataset.q, n)
        preconditioner = Sampled(system, sample_of(plan, frozen, wanted)[0], system.problem.l * ridge)
        besides = 1 + (not independent(system.problem))  # the borders' pass, and one for each target's residuals
        pace.passes(1, besides + min(EXPECTED_PASSES, most))

        def iterations(done: int, left: int) -> None:
            pace.passes(1 + done, besides + min(done + left, most))

        iterated = iterate(system, ridge, preconditioner, tolerance=tolerance, most=most, progress=iterations)
        fit = setting.fit_of(kernel, system.problem, iterated.solution)
        if fit.noise is None:
            fit = setting.noised(corners, fit, _squares(fit, setting, sweeper, corners))
    sweeper.tidy()
    return Streamed(fit, sweeper.receipts, sweeper.fresh, sweeper.count, iterated, time.perf_counter() - began)


def system_of(
    frozen: Pass, setting: Setting, borders: Sequence[Border], rows: Operator
) -> tuple[OperatorKernel, System]:
    """The fit's kernel, and its system."""
    corners = [border.corner for border in borders]
    kernel, scale = setting.fixed(corners), setting.scaling(corners)
    weights = operator_weights(kernel, frozen.features.m, frozen.constants.density, normalize=setting.normalize)
    free, C = setting.intercept, setting.observe
    return kernel, make_system(borders, rows, weights, intercept=free, scale=scale, observe=C)


def _squares(fit: Fit, setting: Setting, sweeper: Sweeper, corners: Sequence[Moments]) -> FloatArray:
    """The scaled targets' squares (q,) that are left: by a pass more where outputs hang together."""
    assert fit.solution.rss is not None
    if targets_apart(fit.weights, setting.observe):
        return fit.solution.rss
    q = corners[0].q
    C = np.eye(q) if setting.observe is None else setting.observe
    V = np.vstack([fit.W @ C.T, C @ fit.bias - corners[0].y0, -np.eye(q)])
    squares = sum(np.sum(V * product, axis=0) * one.mask for product, one in zip(sweeper(V), corners, strict=True))
    return np.asarray(squares / setting.scaling(corners) ** 2)


class RowsDone:
    """Tells how many rows are done, of as many as all passes together seem to need."""

    def __init__(self, n: int, progress: Told) -> None:
        self._n, self._progress, self._done, self._expected = n, progress, 0, 1

    def passes(self, done: int, expected: int) -> None:
        self._done, self._expected = done, max(expected, done)
        self.rows(0)

    def rows(self, count: int) -> None:
        if self._progress is not None:
            self._progress(self._done * self._n + count, max(self._expected, self._done + (count > 0)) * self._n)


def borders_of(sweeper: Sweeper, frozen: Pass, plan: Plan) -> list[Border]:
    """What the first pass gives: the sums' columns of ones and of targets. InputError (no rows, a target of none)."""
    m, q = frozen.features.m, len(frozen.constants.y0)
    V = np.zeros((m + 1 + q, 1 + q))
    V[m:] = np.eye(1 + q)
    borders = [Border(m, part.n, part.y0, part.values, part.observed) for part in sweeper.products(V)]
    if not borders:
        raise InputError(f"{plan.dataset.path}: no rows are left to fit; every row was dropped or there are none")
    for target in unseen([[border.corner for border in borders]]):
        raise InputError(no_target(plan, target))
    return borders


def sample_of(plan: Plan, frozen: Pass, wanted: int) -> tuple[Sample, FloatArray]:
    """At most `wanted` usable rows, in short runs spread evenly over all, their weights, and their targets (n, q).
    Where fewer than half of the rows are usable more runs are read, halfway between those before, until half of
    `wanted` rows are found, or `MOST_READ` times as many or most of all were read."""
    dataset, blocks, read = plan.dataset, list[RowBlock](), MOST_READ * max(wanted, RUN_ROWS)
    runs = max(1, min(wanted // RUN_ROWS, -(-dataset.rows // RUN_ROWS)))
    first, last, enough = dataset.first, max(dataset.n - RUN_ROWS, dataset.first), min(wanted, runs * RUN_ROWS) // 2
    starts = np.linspace(first, last, runs)
    while True:
        for start in np.unique(starts.astype(int)):
            rows = frozen.spec.kept(dataset.block(int(start), int(min(start + RUN_ROWS, dataset.n))))
            blocks.append(rows[rows.whole(partial=frozen.spec.partial)])
        rows = RowBlock.joined(blocks)
        rows = rows[np.isin(np.arange(len(rows)), np.linspace(0, len(rows) - 1, min(wanted, len(rows))).round())]
        blocks, runs = [rows], max(2, 2 * runs - 1)
        if len(rows) >= min(enough, dataset.rows) or runs * RUN_ROWS > min(read, dataset.rows):
            break
        starts = np.linspace(first, last, runs)[1::2]
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    if (of_class := frozen.constants.class_weight) is not None:
        weights = weights * (rows.Y @ of_class)
    return Sample(rows.X, weights, frozen.features.transform), rows.Y


def expected_passes(plan: Plan) -> int | None:
    """How many passes over the data a job solved by streaming may take: those that its iteration takes for some
    thousand rows, with at most `MOST_FEATURES` of its features and the linear part of phi, if it has one. None where so
    few of the rows that were looked at can be used that they do not tell. Length-scales that are to be found are found
    first; a descent takes as many as it says. Writes nothing. (Fits of 8,000 to 40,000 rows with 2 to 8192 features, 3
    to 353 passes, took .69 to 1.48 times as many as were expected, 200,000 rows with 32,768 features .71.)"""
    if plan.job.solve.descends:
        return plan.costs.passes
    job, linear = plan.job, 2 * plan.dataset.d if plan.recipe.linear else 0
    features = job.features.model_copy(update={"count": min(*job.features.counts, MOST_FEATURES + linear)})
    solve = job.solve.model_copy(update={"route": "streaming"})
    trial = make_plan(job.model_copy(update={"features": features, "solve": solve}))
    trial = replace(trial, constants=constants_of(trial))  # a state may be of other rows, or damaged
    (setting,) = settings(trial)
    with pinned():
        return _passes(trial, setting)


def _passes(plan: Plan, setting: Setting) -> int | None:
    frozen, n = plan.frozen(), plan.dataset.rows
    m, q, (ridge,) = frozen.features.m, plan.dataset.q, plan.job.solve.ridges
    most = MOST_NUMBERS // (m + 1 + q + 2 * (plan.dataset.d + q))
    tried = min(max(TRIED * m, FEWER * sample_rows(m, 1, n)), most)
    sample, Y = sample_of(plan, frozen, tried)
    sample, D, parts = _by_pattern(frozen, sample, Y)
    if not len(D) or (tried < n and len(D) < min(m, most // 2)):
        return None
    borders = [Border(m, len(D[rows]), frozen.constants.y0, D[rows].T @ D[rows, m:], name) for name, rows in parts]
    _, system = system_of(frozen, setting, borders, lambda V: [D[rows].T @ (D[rows] @ V) for _, rows in parts])
    wanted = min(sample_rows(m, 1 if system.apart else q, n), max(1, len(D) // FEWER) if tried < n else len(D))
    few = np.linspace(0, len(D) - 1, wanted).astype(int)
    some = replace(sample, X=sample.X[few], weights=sample.weights[few])
    preconditioner = Sampled(system, some, system.problem.l * ridge)
    iterated = iterate(system, ridge, preconditioner, tolerance=TOLERANCE, most=MOST_PASSES)
    return 1 + (not independent(system.problem)) + iterated.iterations


def _by_pattern(frozen: Pass, sample: Sample, Y: FloatArray) -> tuple[Sample, FloatArray, list[tuple[str, slice]]]:
    """The rows in order of the targets that they have, D = [F | 1 | Y - y0] (n, m + 1 + q) of them times the roots of
    their weights, 0 for no target; and each pattern of targets' rows. Of many the commonest count, as in a fit."""
    m, counted = frozen.features.m, frozen.constants.patterns
    there = np.isfinite(Y)
    each = [(name, np.flatnonzero(rows)) for name, rows in patterns_of(there) if counted is None or name in counted]
    each = sorted(each, key=lambda one: -len(one[1]))[:MOST_PATTERNS]
    ends = np.cumsum([0, *(len(rows) for _, rows in each)])
    order = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for _, rows in each)])
    sample = replace(sample, X=sample.X[order], weights=sample.weights[order])
    D = np.empty((len(order), m + 1 + Y.shape[1]))
    for start in range(0, len(D), TILE):
        tile = slice(start, start + TILE)
        D[tile, :m], rows = sample.features(sample.X[tile]), order[tile]
        D[tile, m + 1 :] = np.where(there[rows], Y[rows] - frozen.constants.y0, 0.0)
    D[:, m] = 1.0
    D *= np.sqrt(sample.weights)[:, None]
    return sample, D, [(name, slice(*ends[k : k + 2])) for k, (name, _) in enumerate(each)]
