"""Whether a fit has anything new to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from dorff import __version__
from dorff.errors import InputError
from dorff.fit.passes import PassResult, fingerprint
from dorff.model import Model
from dorff.passes import PassSums, Tree, frozen_hash
from dorff.plan import Plan
from dorff.storage.location import locate
from dorff.store import Receipt, load_model


def made(plan: Plan) -> dict[str, Any]:
    """All that a model depends on but for its rows' values, as the model keeps it. These fingerprints name; where no
    receipts are kept that tell them, a stamp of the rows' files does. `terms` are stamps of the files that manifold
    terms are of."""
    wanted = [
        plan.spec.config(), plan.kernel_configs, plan.drawn_configs, plan.job.features.counts, plan.costs.route,
        None if plan.observe is None else plan.observe.tolist(),
        plan.job.solve.model_dump(mode="json", exclude={"observe"}), __version__,
    ]  # fmt: skip
    wanted += [term.asked() for term in plan.terms]
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
    """The published model, where a fit would give it again: the same job, rows whose files are what they were, and
    nothing missing in the state. Nothing is written."""
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
    return _of_these(model, [tree.receipts[number] for number in sorted(tree.receipts)])


def same_rows(plan: Plan, passed: PassResult) -> Model | None:
    """The published model, where it is of the same job and of the values that a pass has found: files were touched, or
    something of the state was lost and is there again."""
    model = current_model(plan)
    if model is None or {**model.info.get("made", {}), "terms": None} != {**made(plan), "terms": None}:
        return None
    return _of_these(model, passed.receipts) if model.info["data"].get("terms") == passed.fingerprints else None


def _of_these(model: Model, receipts: Sequence[Receipt]) -> Model | None:
    return model if model.info["data"]["fingerprint"] == fingerprint(receipts) else None


def rewritten_since(model: Model | None, receipts: Sequence[Receipt]) -> set[int]:
    """The leaves whose rows had other values when this model was made of them."""
    before = {} if model is None else {(number, start, stop): digest for number, start, stop, digest in _leaves(model)}
    return {one.number for one in receipts if before.get((one.number, one.start, one.stop), one.digest) != one.digest}


def _leaves(model: Model) -> list[tuple[int, int, int, str]]:
    leaves: list[tuple[int, int, int, str]] = model.info.get("data", {}).get("leaves", [])
    return leaves
