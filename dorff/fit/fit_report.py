"""What a fit says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True)
class FitReport:
    """What a fit did. `status` is "ok", "ill_conditioned" where rounding leaves fewer than three of the fitted
    values' `digits`, or "not_converged" where an iteration ran out of steps.

    `reads` is how often the labelled sums read the rows, `passes` over how many kinds of sums: a second one is the QR
    of the features, others are those of manifold terms. `syrk_share` is the share of the passes' core-seconds that was
    spent inside BLAS `syrk`, None where nothing was computed. `peak_bytes` is measured, None where the workers are not
    on this machine. `kernel` is the number of the chosen one in the job's list, 0 where it names one;
    `effective_sample_size` how many of the m / 2 frequencies stand behind a kernel that they were not drawn for alone.
    `noise` is the standard deviation of each target's noise, None for classes where it takes more than the fit.
    `folds` counts those that have rows, `held_by` says what they are made of (None for a single one). `lengthscale`
    is that of each term of the chosen kernel, where it has
    one, and `tuned` what became of the search where the job asked for one. `rows_unlabelled` are those that only
    manifold terms see: of finite inputs and without a target (`nan: unlabelled`), and all of `data.unlabelled`.
    `patterns` are those of targets (1 is there, 0 missing, "" all there) that rows were used of, where they had more
    than there are sums for; rows of others are dropped.
    `manifold` is the chosen weight of each manifold term, and `graphs` what its sums are of: the graph, its rows,
    edges and shards, of a given one the rows without an edge, and the seconds they took.

    `outcome` is "published", or "unchanged" where the current model is what the fit would give again; the rest is then
    that model's, but for what this run did. `rewritten` are the leaves whose rows had other values when they were
    summed before, `coverage` is the share of rows that were summed or dropped by the job's rule. `score` is that of
    held-out rows, `score_by` says which: on "holdout" R2, or accuracy of classes; by "kfold" R2, of classes that
    of their one-hot rows at the best scale of f. `r2_of` says what an R2 is of (`solvers.R2`). `warnings` say what
    the job asks for in vain.
    """

    rows_used: int
    rows_dropped: int
    rows_unlabelled: int
    leaves_computed: int
    leaves_reused: int
    reads: float
    passes: int
    seconds: float
    syrk_share: float | None
    peak_bytes: int | None
    plan_peak_bytes: int
    route: str
    select: str
    condition: float
    digits: float
    rung: str
    status: str
    ridge: float
    ridges: list[float] | None
    log_evidence: float | None
    noise: list[float] | None
    m: int
    kernel: int
    lengthscale: list[Any]
    tuned: str | None
    manifold: list[float]
    graphs: list[dict[str, Any]]
    folds: int
    held_by: str | None
    effective_sample_size: float | None
    outcome: str
    rewritten: list[int]
    coverage: float
    score: float | None
    r2_of: str
    score_by: str | None
    model: str
    warnings: list[str]
    patterns: list[str] | None = None
    table: list[dict[str, Any]] = field(default_factory=list)
