"""The sums T of a job's manifold terms: a graph, where one is to be built, and a pass over its rows."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from dorff.data import Dataset
from dorff.engine import Engine
from dorff.graphs import KNN, Given, Identity
from dorff.moments import Moments
from dorff.plan import Plan, leaf_bounds
from dorff.plan.manifold import Term
from dorff.plan.terms import Recipe
from dorff.store import Lease, Receipt
from dorff.weights import operator_weights

Told = Callable[[int, int], None]  # rows done, rows in all
GRAPHS, TERMS = "graphs", "terms"  # folders of built graphs and of sums, in that of the pass
STAGES: Final = 7  # of building a graph, at most: half of what a term's pass is told to be
GIVEN_UP: Final = 30 * 86_400.0  # seconds that a graph, or sums, of other terms are kept for


@final
@dataclass(frozen=True, eq=False)
class TermSums:
    """T of one term, the receipts it stands on, and what is to be said of it."""

    sums: Moments
    receipts: list[Receipt]
    said: dict[str, Any]


def sum_terms(
    plan: Plan, engine: Engine, told: Callable[[int], Told | None], *, lease: Lease | None = None
) -> tuple[TermSums, ...]:  # fmt: skip
    """T of each term of the plan, added over its sources: computed, or read where it is there already.

    `told` gives for the number of a pass, from 0, who is told its rows.
    """
    if not plan.terms:
        return ()
    from dorff.manifold import added  # what reads and writes graphs is large, and most jobs have none

    found, number = [], 0
    for term in plan.terms:
        parts = []
        for source in term.sources:
            parts.append(_sum(plan, term, source, engine, told(number), lease))
            number += 1
        total = parts[0]
        for part in parts[1:]:
            said = {key: value if key == "type" else value + part.said[key] for key, value in total.said.items()}
            total = TermSums(added(total.sums, part.sums), [*total.receipts, *part.receipts], said)
        found.append(total)
    with nullcontext() if lease is None else lease.fenced():
        _tidy(plan)
    return tuple(found)


def _tidy(plan: Plan) -> None:
    """Delete graphs and sums that no job has used for a month."""
    for folder in (GRAPHS, TERMS):
        for path in (plan.directory / folder).glob("*"):
            with suppress(OSError):  # another run tidies too
                if time.time() - path.stat().st_mtime > GIVEN_UP:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sum(
    plan: Plan, term: Term, source: Dataset, engine: Engine, told: Told | None, lease: Lease | None
) -> TermSums:  # fmt: skip
    """T of a term over one source's rows."""
    from dorff.manifold import TermPlace, sum_term
    from dorff.manifold.building import build

    (this, _), graph, began = plan.frozen(), term.manifold.graph, time.perf_counter()
    columns, shards, alone = _features(plan, term), 0, 0

    def rows_done(done: float, of: int) -> None:
        if told is not None:
            told(round(source.rows * done / of), source.rows)

    options: dict[str, Any] = {"inputs": term.columns, "columns": columns, "name": source.path, "lease": lease}
    if isinstance(graph, Identity) or (isinstance(graph, KNN) and graph.within == "leaf"):
        leaves = leaf_bounds(source.n, source.shard_rows, this.features.m + 1, first=source.first)
        sums, receipts = sum_term(
            this, term.manifold, source, leaves, engine, lambda done: rows_done(done, source.rows), **options
        )
    else:
        stages = dict[str, int]()

        def built_so_far(stage: str, done: int, of: int) -> None:
            stages.setdefault(stage, len(stages))
            rows_done(min(stages[stage] + done / max(of, 1), STAGES), 2 * STAGES)

        built = build(graph, source, this, term.columns, engine, this.directory / GRAPHS, built_so_far, lease=lease)
        shards, alone = built.count, built.alone
        os.utime(built.path)
        sums, receipts = sum_term(
            this, term.manifold, built, None, engine, lambda done: rows_done(shards + done, 2 * shards), **options
        )
    os.utime(TermPlace.of(this, Recipe.of(term.manifold, inputs=term.columns, columns=columns), source.path).directory)
    said = {
        "type": graph.config()["type"], "rows": source.rows, "edges": 0 if isinstance(graph, Identity) else sums.n,
        "shards": shards, "seconds": time.perf_counter() - began,
        **({"rows_without_edges": alone} if isinstance(graph, Given) else {}),
    }  # fmt: skip
    return TermSums(sums, receipts, said)


def _features(plan: Plan, term: Term) -> tuple[int, ...] | None:
    """The features that a term is of: those of its view; None for all."""
    if term.columns is None:
        return None
    this, (kernel, *_) = plan.frozen()
    fixed = kernel.fix(plan.dataset.d, plan.recipe.p, np.eye(plan.recipe.p))
    views = operator_weights(fixed, this.features.m, this.density).views
    assert views is not None and term.views is not None
    return tuple(np.flatnonzero(views == int(np.argmax(np.diag(term.views)))).tolist())
