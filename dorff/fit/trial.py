"""How many passes a fit by streaming may take: the iteration, tried in memory on some rows and features."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from dorff.fit.choice import settings
from dorff.fit.streaming import TOLERANCE, sample_of, system_of
from dorff.moments import MOST_PATTERNS, FloatArray, patterns_of
from dorff.moments.blas import pinned
from dorff.passes import Pass
from dorff.plan import Plan, constants_of, make_plan
from dorff.plan.routes import MOST_PASSES, sample_rows
from dorff.solvers import Setting
from dorff.solvers.cg import iterate
from dorff.solvers.matrixfree import Border
from dorff.solvers.preconditioners import Sample, Sampled
from dorff.solvers.select import independent

MOST_FEATURES: Final = 2048
ROWS: Final = 4  # for each feature
MOST_NUMBERS: Final = 2**25  # of these rows, their inputs and targets twice: 256 MiB
FEWER: Final = 8  # times as few tell the preconditioner: one that has seen most of the rows would be too good
TILE: Final = 512


def expected_passes(plan: Plan) -> int | None:
    """How many passes over the data a job solved by streaming may take: those that its iteration takes for some
    thousand rows, with at most `MOST_FEATURES` of its features and the linear part of phi, if it has one. None where
    so few of the rows that were looked at can be used that they do not tell. Length-scales that are to be found are
    found first. Writes nothing.

    (Fits of 8,000 to 40,000 rows with 2 to 8192 features, 3 to 353 passes, took .69 to 1.48 times as many as were
    expected, 200,000 rows with 32,768 features .71.)
    """
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
    tried = min(max(ROWS * m, FEWER * sample_rows(m, 1, n)), most)
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
    their weights, 0 where there is no target; and which of them each pattern of targets has. Of many patterns the
    commonest count, as in a fit."""
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
