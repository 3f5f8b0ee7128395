"""The sums T of a job's manifold terms: a graph, where one is to be built, and a pass over its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, final

from dorff.data import Dataset
from dorff.engine import Engine
from dorff.errors import InputError
from dorff.graphs import KNN, Given, Identity
from dorff.manifold import Shards, added, build, sum_term
from dorff.moments import Moments
from dorff.passes import Leaf, leaf_bounds
from dorff.plan import Plan
from dorff.plan.manifold_terms import ManifoldTerm, features_of
from dorff.storage.location import locate
from dorff.store import Lease, Receipt, remove_given_up

Told = Callable[[int, int], None]  # rows done, rows in all
GRAPHS, TERMS = "graphs", "terms"  # folders of built graphs and of sums, in that of the pass
STAGES: Final = 7  # of building a graph, at most: half of what a term's pass is told to be


@final
@dataclass(frozen=True, eq=False)
class TermSums:
    """T of one term, the receipts it stands on, and what is to be said of it."""

    sums: Moments
    receipts: list[Receipt]
    said: dict[str, Any]


def sum_terms(
    plan: Plan, engine: Engine, told: Callable[[int], Told | None], *, lease: Lease | None = None
) -> tuple[TermSums, ...]:
    """T of each term of the plan, added over its sources: computed, or read where it is there already.

    `told` gives for the number of a pass, from 0, who is told its rows. InputError for a T of zeros.
    """
    if not plan.terms:
        return ()
    sums, number = list[TermSums](), 0
    for term in plan.terms:
        parts = []
        for source in term.sources:
            parts.append(_sum(plan, term, source, engine, told(number), lease))
            number += 1
        total = parts[0]
        for part in parts[1:]:
            said = {key: value if key == "type" else value + part.said[key] for key, value in total.said.items()}
            total = TermSums(added(total.sums, part.sums), [*total.receipts, *part.receipts], said)
        if not total.sums.packed.any() and any(term.manifold.weights):
            raise InputError(
                f"manifold, term {len(sums) + 1}: its sums are zero: its graph has no edge with a weight above 0, or "
                "all of them join equal rows; mend the graph (graph.weights, if it is a width), or leave the term out"
            )
        sums.append(total)
    with nullcontext() if lease is None else lease.fenced():
        for folder in (GRAPHS, TERMS):  # of other terms
            remove_given_up(plan.directory / folder)
    return tuple(sums)


def _sum(
    plan: Plan, term: ManifoldTerm, source: Dataset, engine: Engine, told: Told | None, lease: Lease | None
) -> TermSums:
    """T of a term over one source's rows."""
    frozen, (kernel, *_) = plan.frozen(), plan.fitted()
    graph, began = term.manifold.graph, time.perf_counter()
    rows: Dataset | Shards = source
    leaves: Sequence[Leaf] | None = None
    shards, of, alone = 0, source.rows, 0

    def rows_done(done: float, of: int) -> None:
        if told is not None:
            told(round(source.rows * done / of), source.rows)

    if isinstance(graph, Identity) or (isinstance(graph, KNN) and graph.within == "leaf"):
        leaves = leaf_bounds(source.n, source.shard_rows, frozen.features.m + 1, first=source.first)
    else:
        stages = dict[str, int]()

        def built_so_far(stage: str, done: int, of: int) -> None:
            stages.setdefault(stage, len(stages))
            rows_done(min(stages[stage] + done / max(of, 1), STAGES), 2 * STAGES)

        rows = build(graph, source, frozen, term.columns, engine, frozen.directory / GRAPHS, built_so_far, lease=lease)
        shards, of, alone = rows.count, 2 * rows.count, rows.alone
        locate(rows.path).renew()
    sums, receipts = sum_term(
        frozen, term.manifold, rows, leaves, engine, lambda done: rows_done(shards + done, of), inputs=term.columns,
        columns=features_of(kernel, term.views, frozen.constants.density), name=source.path, lease=lease,
    )  # fmt: skip
    said = {
        "type": graph.config()["type"], "rows": source.rows, "edges": 0 if isinstance(graph, Identity) else sums.n,
        "shards": shards, "seconds": time.perf_counter() - began,
        **({"rows_without_edges": alone} if isinstance(graph, Given) else {}),
    }  # fmt: skip
    return TermSums(sums, receipts, said)
