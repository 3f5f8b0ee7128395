"""From the moments of a pass to a choice, and from a choice to a model."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from dorff.errors import InputError
from dorff.features import cut
from dorff.fit.passes import PassResult, fingerprint
from dorff.model import Model
from dorff.moments import Part, Solvable, by_fold, pooled, unseen
from dorff.plan import Plan, keeps_posterior
from dorff.posterior import Posterior
from dorff.solvers import Choice, Criterion, Fit, Setting, choose, of_first
from dorff.threads import pinned


def settings(plan: Plan) -> list[Setting]:
    """What each kernel of the job makes of moments."""
    this, candidates = plan.frozen()
    solving, features = plan.job.solve, this.features
    # Targets that are classes stay zeros and ones: other units would undo the simplex code.
    standardize = solving.standardize and plan.dataset.labels is None
    own = [kernel.config() for kernel in plan.sources()]
    return [
        Setting(
            kernel, features.d, features.m, this.density, standardize, solving.intercept, plan.observe,
            one_scale=plan.question["one_scale"], method="cg" if plan.costs.route == "cg" else "direct",
            normalize=kernel.config() not in own,
        )
        for kernel in candidates
    ]  # fmt: skip


def solve_pass(plan: Plan, folds: Mapping[Part, Solvable]) -> Choice:
    """Choose among the job's kernels and ridges, and solve."""
    parts, solving = filled(plan, folds), plan.job.solve
    with pinned():
        return choose(
            parts, settings(plan), solving.ridges, by=Criterion(solving.select),
            per_output=solving.ridge_per_output, counts=plan.counts,
        )  # fmt: skip


def filled(plan: Plan, folds: Mapping[Part, Solvable]) -> list[list[Solvable]]:
    """The sums of each fold that has rows; InputError where none has, and for a target that no row has."""
    parts = by_fold(folds)
    if not parts:
        raise InputError(f"{plan.dataset.path}: no rows are left to fit; every row was dropped or there are none")
    for target in unseen(parts):
        name = plan.dataset.target_columns[target]
        raise InputError(f"{plan.dataset.path}: no row has the target {name}; leave it out of the targets")
    return parts


def posterior_of(plan: Plan, choice: Choice, folds: Mapping[Part, Solvable]) -> Posterior | None:
    """The posterior of the chosen fit, where the job wants it kept and, unless it insists, where there is one."""
    m, r, _ = choice.fit.weights.shape
    apart = choice.fit.weights.separable and plan.observe is None
    if plan.costs.route != "direct" or not keeps_posterior(plan.job, m if apart else m * r):
        return None
    parts, setting = of_first(by_fold(folds), settings(plan)[choice.candidate], choice.m)
    insists = plan.job.solve.posterior is True or plan.job.solve.conformal
    if choice.fit.solution.ridge == 0 and not insists:  # it is unbounded
        return None
    with pinned():
        return setting.posterior(pooled(parts), choice.fit)


def build_model(plan: Plan, fit: Fit, m: int, passed: PassResult) -> Model:
    """The model of a fit on the first m features, with what a reader of it will want to know."""
    this, _ = plan.frozen()
    receipts, dataset = passed.receipts, plan.dataset
    names = list(dataset.target_columns)
    if plan.observe is not None:
        names = [f"f{number}" for number in range(plan.observe.shape[1])]
    info: dict[str, Any] = {
        "data": {
            "store": plan.question["store"], "rows": dataset.rows, "fingerprint": fingerprint(receipts),
            "leaves": [[one.number, one.start, one.stop, one.digest] for one in receipts],
            "inputs": list(dataset.input_columns), "targets": names, "nan": plan.job.data.nan,
            "low": np.min([receipt.low for receipt in receipts], axis=0).tolist(),
            "high": np.max([receipt.high for receipt in receipts], axis=0).tolist(),
        },
        "plan": this.hash,
        "versions": {name: version(name) for name in ("dorff", "numpy", "scipy", "zarr", "numba", "dask")}
        | {"python": platform.python_version()},
    }  # fmt: skip
    if dataset.labels is not None:
        info["labels"] = list(dataset.labels)
    features = this.features if m == this.features.m else cut(this.features, None, m // 2)[0]
    return Model(
        feature_map=features, operator_weights=fit.weights, coefficients=fit.solution.h, intercept=fit.bias,
        target_scale=fit.scale, kernel=fit.kernel, sampler=plan.question["sampler"], seed=plan.question["seed"],
        info=info, observe=plan.observe,
    )  # fmt: skip
