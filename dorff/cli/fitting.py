"""`dorff plan` and `dorff fit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dorff.cli.guard import rows_of, show, size
from dorff.cli.logs import say
from dorff.cli.metrics import of_fit, recorded
from dorff.cli.options import JobFile, Json, Metrics, Root
from dorff.cli.progress import meter
from dorff.cli.sentences import crowd_text, fit_text, patterns_text, term_text


def plan(job: JobFile, root: Root = None, as_json: Json = False) -> None:
    """What a fit will do and need, without a pass over the rows; exit code 4 if it would not fit."""
    from dorff.fit import expected_passes
    from dorff.plan import make_plan
    from dorff.spec import load_job

    planned = make_plan(load_job(job, root=root))
    costs, terms = planned.costs, [term.manifold.config() for term in planned.terms]
    if costs.route == "streaming" and (passes := expected_passes(planned)):
        costs = costs.of_passes(passes)
    elif costs.route == "streaming":
        few = "too few of the rows that were looked at can be used to tell how many passes a fit will take"
        say(f"plan: {few}; {costs.passes} are counted", "warning")
    more = planned.job.data.unlabelled
    keys = (
        "leaves", "peak_bytes", "disk_bytes", "flops", "seconds", "m", "rank", "worker_bytes", "exact_is_cheaper",
        "route", "reason", "passes",
    )  # fmt: skip
    text = {
        "leaves": f"{costs.leaves:,}",
        "memory": f"{size(costs.peak_bytes)} at the peak, {size(costs.worker_bytes)} of it a worker",
        "disk": size(costs.disk_bytes),
        "work": f"{costs.flops:.3g} flops, about {costs.seconds:.3g} s",
        "features": f"{costs.m:,}",
        "route": costs.reason,
        "passes": f"{costs.passes:,} over the rows",
        **{f"term {number}": term_text(term, more) for number, term in enumerate(terms, 1)},
    }
    result = {key: getattr(costs, key) for key in keys} | ({"manifold": terms} if terms else {})
    if planned.crowded:
        text["targets"], result["patterns"] = patterns_text(planned.patterns), planned.patterns
    if crowd := crowd_text(costs.m, planned.dataset.rows):
        say(f"plan: {crowd}", "warning")
    if costs.exact_is_cheaper:
        text["advice"] = (
            f"so few rows that an exact kernel model is the smaller system ({costs.m * costs.rank:,} unknowns here, "
            "no more there): see dorff.exact.ExactRidge, or lower features.count"
        )
    _warn(planned.warnings)
    show(result | {"warnings": planned.warnings}, rows_of(text), as_json=as_json)


def fit(job: JobFile, root: Root = None, metrics: Metrics = None, as_json: Json = False) -> None:
    """Fit, or go on with a fit, and publish the model; what earlier runs of the job did is used again."""
    from dorff.fit import fit as run
    from dorff.plan.lengthscale import lengthscale_words
    from dorff.spec import ClassTargets, load_job

    with recorded(metrics, "fit", job) as figures:
        described = load_job(job, root=root)
        words = lengthscale_words([kernel.model_dump() for kernel in described.kernels])
        if any(word.startswith("tune") for word in words):
            say("fit: length-scales are found first, on a sample of rows, unless they were before")
        for number, term in enumerate(described.manifold, 1):
            shown = term_text(term.model_dump(mode="json"), described.data.unlabelled)
            say(f"fit: manifold term {number}: {shown}")
        if any(one.type == "multi_view" for one in described.kernels) and not any(
            term.between for term in described.manifold
        ):
            say(
                "fit: the targets see the mean of the views alone, so that one view by itself may be anywhere; add "
                "manifold: {between: true, weight: ...} where views are to predict alone",
                level="warning",
            )
        with meter("fit") as progress:
            report = run(described, progress=progress)
        figures.update(of_fit(report))
        _warn(report.warnings)
    classes = isinstance(described.data.targets, ClassTargets)
    summary = fit_text(report, [term.weights for term in described.manifold], classes=classes)
    if as_json:
        say(summary)
    show(asdict(report), summary, as_json=as_json)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        say(f"dorff: {warning}", "warning")
