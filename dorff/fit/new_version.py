"""Why a fit publishes a new version of a model: what differs from the version before."""

from collections.abc import Iterator, Mapping
from typing import Any

from dorff.model import Model
from dorff.plan import Plan


def explain_new_version(plan: Plan, model: Model, current: Model | None, rewritten: list[int]) -> list[str]:
    """Return why a fit publishes a model although there is a current one.

    Parameters
    ----------
    plan : Plan
        The plan of the fit, which knows why sums in the state do not serve it.
    model : Model
        What the fit publishes.
    current : Model or None
        The version before, where there is one that can be read.
    rewritten : list of int
        Numbers of the leaves whose rows had other values in the version before.

    Returns
    -------
    list of str
        Empty for the first version of a model that no sums were there for.
    """
    reasons = list(plan.unlike)
    if current is not None:
        reasons += _differences(model.info, current.info, rewritten)
    return reasons


def _differences(info: Mapping[str, Any], before: Mapping[str, Any], rewritten: list[int]) -> Iterator[str]:
    """Name what a model depends on and what is not as it was in the version before."""
    store, old_store = (source.get("data", {}).get("store") for source in (info, before))
    if store != old_store:
        yield f"data.store: {store}, before {old_store}"
    rows, old_rows = (source.get("made", {}).get("rows") for source in (info, before))
    if rows != old_rows and rows and old_rows:
        now, then = (f"{first:,} to {stop:,}" for first, stop in (rows, old_rows))
        yield f"rows: {now}, before {then}"
    if rewritten:
        numbers = ", ".join(map(str, rewritten))
        yield f"rows of these leaves have other values: {numbers}"
    versions, old_versions = (source.get("versions", {}) for source in (info, before))
    for name, version in versions.items():
        if name in old_versions and old_versions[name] != version:
            yield f"version of {name}: {version}, before {old_versions[name]}"
    processors, old_processors = (source.get("processors", []) for source in (info, before))
    if old_processors and processors != old_processors:
        now, then = ("; ".join(kinds) for kinds in (processors, old_processors))
        yield f"kind of processor, by which results round otherwise: {now}, before {then}"
