"""What a fit says of itself, and whether it has anything new to do."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dorff import __version__
from dorff.errors import InputError
from dorff.fit.passes import PassResult, fingerprint
from dorff.model import Model
from dorff.passes import PassSums, Tree, frozen_hash
from dorff.plan import Plan
from dorff.storage.location import locate
from dorff.store import Receipt, load_model


@dataclass(frozen=True)
class FitReport:
    """What a fit did. `status` is "ok", "ill_conditioned" where rounding leaves fewer than three of the fitted
    values' `digits`, or "not_converged" where an iteration ran out of steps.

    `reads` is how often the labelled sums read the rows, `passes` over how many kinds of sums: a second one is the QR
    of the features, others are those of manifold terms. `syrk_share` is the share of the passes' core-seconds that was
    spent inside BLAS `syrk`, or summing exponentials, None where nothing was computed. `peak_bytes` is measured, None
    where the workers are not on this machine. `kernel` is the number of the chosen one in the job's list, 0 where it
    names one; `effective_sample_size` how many of the m / 2 frequencies stand behind a kernel that they were not drawn
    for alone; `kernel_error` how far the features of a lattice may be from the kernel, over k(x, x).
    `noise` is the standard deviation of each target's noise, None for classes where it takes more than the fit.
    `folds` counts those that have rows, `held_by` says what they are made of (None for a single one). `lengthscale` is
    that of each term of the chosen kernel, where it has one, in standard deviations of inputs that are standardized;
    `lengthscale_in_units` has them in the inputs' own units, by the inputs' names, with the name of the unit where the
    data have one ("all inputs" where these are the same). `tuned` says what became of the search where the job asked
    for one. `rows_unlabelled` are those that only manifold terms see: of finite inputs and without a target (`nan:
    unlabelled`), and all of `data.unlabelled`. `patterns` are those of targets (1 is there, 0 missing, "" all there)
    that rows were used of, where they had more than there are sums for; rows of others are dropped. `manifold` is the
    chosen weight of each manifold term, and `graphs` what its sums are of: the graph, its rows, edges and shards, of a
    given one the rows without an edge, and the seconds they took.

    `outcome` is "published", or "unchanged" where the current model is what the fit would give again; the rest is then
    that model's, but for what this run did; of a refused model `GateError.result` has the report. `rewritten` are
    the leaves whose rows had other values when they were summed before, `coverage` is the share of rows that were
    summed or dropped by the job's rule. `score` is that of
    held-out rows, `score_by` says which: on "holdout" R2, or accuracy of classes; by "kfold", "loo" R2, of classes
    that of their one-hot rows at the best scale of f. `r2_of` says what an R2 is of (`solvers.R2`). `warnings` say
    what the job asks for in vain, and what is wrong with the fit. `quality` is that of held-out rows (`fit.quality`),
    None where none were, and of classes that are not calibrated; `choices` are the keys that the job left out, what
    they came to and why. `in_driver` says that the fit had no workers: its job has none, or little was to do.
    `loss` is of a loss that is not the square: what it is, the objective and the rows' mean loss, the norm of its
    slope by h and b, what is `left` to gain, about, and `gap`, by which it may be above its least at most (a duality
    gap, None at ridge 0; of losses without a kink it is for the level of f, and far too careful where the ridge is
    small); `ended_by` is "gap" where that is within the tolerance, "slope" where the estimate `left` is, "passes" where
    there were too many; the mean loss of held-out rows
    at each ridge, and of quantiles the share of held-out targets `below` each. Of sgd and adam, squares too, it is the
    mean loss of the last pass's rows, each before its step; of the objective nothing is known (None).
    `bands` say of conformal bands what was held out (`unit`, `units`), the highest level that these are enough for, and
    of which new rows the bands hold (`scope`); None where the job asks for none.
    `buckets` are the requests that this run made (of workers shared with others theirs too), and bytes.
    `version_reasons` say why there is a new version: sums that could not be used, and what differs from the version
    before (rows, store, versions of libraries)."""

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
    quality: dict[str, Any] | None = None
    choices: list[dict[str, Any]] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    in_driver: bool = False
    buckets: dict[str, int] = field(default_factory=dict)
    lengthscale_in_units: list[dict[str, Any]] = field(default_factory=list)
    kernel_error: float | None = None
    loss: dict[str, Any] | None = None
    version_reasons: list[str] = field(default_factory=list)
    bands: dict[str, Any] | None = None


def made(plan: Plan) -> dict[str, Any]:
    """All that a model depends on but for its rows' values, as the model keeps it. These fingerprints name; where no
    receipts are kept that tell them, a stamp of the rows' files does. `terms` are stamps of manifold terms' files."""
    observe = None if plan.observe is None else plan.observe.tolist()
    solve = plan.job.solve.model_dump(mode="json", exclude={"observe"})
    wanted: list[Any] = [plan.own.config(), plan.kernel_configs, plan.drawn_configs, plan.job.features.counts]
    wanted += [plan.costs.route, observe, solve, __version__]
    wanted += [*(term.asked() for term in plan.terms), *(() if plan.job.publish.sample else ("no sample",))]
    job = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]
    first, stop = plan.dataset.first, plan.dataset.n
    stamp = plan.dataset.stamp(first, stop) if plan.costs.route == "streaming" else None
    terms = [term.stamp() for term in plan.terms]
    return {"job": job, "frozen": frozen_hash(plan.directory), "rows": [first, stop], "stamp": stamp, "terms": terms}


def current_model(plan: Plan) -> Model | None:
    """The published model, or None where there is none or it is damaged: it is to be published again."""
    try:
        return load_model(locate(plan.job.model))
    except InputError:
        return None


def nothing_new(plan: Plan) -> Model | None:
    """The published model, where a fit would give it again: the same job, files and whole state. Writes nothing."""
    if frozen_hash(plan.directory) is None or (model := current_model(plan)) is None:
        return None
    if model.info.get("made") != made(plan):
        return None
    if plan.costs.route == "streaming":
        return model
    try:
        frozen = plan.frozen()
    except InputError:  # damaged
        return None
    tree = Tree(PassSums.at(frozen), plan.dataset, plan.leaves, kept=plan.costs.kept_level)
    if tree.missing() or tree.start():  # receipts or sums are to be made again, though the model may be right
        return None
    receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
    return model if model.info["data"]["fingerprint"] == fingerprint(receipts) else None


def same_rows(plan: Plan, passed: PassResult) -> Model | None:
    """The published model, where it is of the same job and of the values that a pass has found, in whatever files."""
    model = current_model(plan)
    if model is None or {**model.info.get("made", {}), "terms": None} != {**made(plan), "terms": None}:
        return None
    data = model.info["data"]
    same = data.get("terms") == passed.fingerprints and data["fingerprint"] == fingerprint(passed.receipts)
    return model if same else None


def rewritten_since(model: Model | None, receipts: Sequence[Receipt]) -> set[int]:
    """The leaves whose rows had other values when this model was made of them."""
    leaves: list[tuple[int, int, int, str]] = [] if model is None else model.info.get("data", {}).get("leaves", [])
    before = {(number, start, stop): digest for number, start, stop, digest in leaves}
    return {one.number for one in receipts if before.get((one.number, one.start, one.stop), one.digest) != one.digest}
