"""What a job makes of a pass: its settings, its choice, and what the model says of where it comes from."""

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from typing import Any, Final

import numpy as np

from dorff.data import Dataset, RowBlock
from dorff.data.labels import CLASSES
from dorff.data.layout import columns_of
from dorff.data.nodes import group_attributes
from dorff.fit.passes import Fitted, PassResult, fingerprint, folds_with_rows
from dorff.kernels import MultiView
from dorff.model import Model, Posterior
from dorff.model.losses import Quantiles
from dorff.moments import Kind, Moments, Part, Solvable, pinned, processor_kind
from dorff.passes import usable
from dorff.plan import Plan, array_columns, keeps_posterior, left_out_runs, most_left_out, penalty
from dorff.plan.choosing import with_feature_error
from dorff.plan.sharing import loss_of
from dorff.solvers import R2, LeftOut, Penalty, Setting, choose, targets_apart
from dorff.spec.checks import AUTO
from dorff.spec.kernel import MultiViewSpec
from dorff.storage.location import locate

LONGEST_NAME: Final = 80


def settings(plan: Plan, terms: Sequence[Moments] = (), *, only: int | None = None) -> list[Setting]:
    """What each kernel of the job makes of moments, with each combination of the manifold terms' weights, kernel by
    kernel; or that of one number alone. `terms` are the sums of the plan's terms."""
    solving, each = plan.job.solve, list(product(enumerate(plan.fitted()), plan.weights))
    on_lattice, recipe = plan.spec.sums is Kind.TOEPLITZ, plan.scaled_recipe()
    # Targets that are classes stay zeros and ones: other units would undo the simplex code.
    standardize = solving.standardize and plan.dataset.labels is None and loss_of(plan.job).takes == "numbers"
    own = [kernel.config() for kernel in plan.sources()]
    sample = left_out_rows(plan) if solving.select == "loo" else None
    found = list[Setting]()
    for (number, kernel), weights in each if only is None else each[only : only + 1]:
        frozen = plan.alone(number)
        setting = Setting(
            kernel,
            frozen.features.d,
            frozen.features.m,
            frozen.constants.density,
            standardize,
            solving.intercept,
            plan.observe,
            one_scale=plan.spec.one_scale,
            method="cg" if plan.costs.route == "cg" else "direct",
            normalize=kernel.config() not in own and plan.recipe.sampler.sampled,
            penalties=penalties(plan, terms, weights),
            sample=sample,
            free_scale=plan.dataset.labels is not None and not solving.ridge_per_output,
            r2_of=r2_of(plan),
            sampled=plan.job.posteriors > 0,
            features=frozen.features if on_lattice else None,
        )
        found.append(with_feature_error(setting, recipe, frozen.features))
    return found


def r2_of(plan: Plan) -> R2:
    """What R2 is of for all kernels of the job, and for the models that come of it."""
    return R2.of([*plan.candidates, *plan.sources()], plan.observe, classes=plan.dataset.labels is not None)


def penalties(plan: Plan, terms: Sequence[Moments], weights: Sequence[float]) -> tuple[Penalty, ...]:
    """The manifold terms of a system, for these weights; a weight of 0 is no term."""
    each = zip(plan.terms, terms, weights, strict=True)
    return tuple(penalty(term.manifold, sums, term.views, weight) for term, sums, weight in each if weight > 0)


def solve_pass(plan: Plan, passed: PassResult) -> Fitted:
    """Choose among the job's kernels, manifold weights and ridges, and solve."""
    solving, each = plan.job.solve, settings(plan, passed.manifold)
    per_output, by = solving.ridge_per_output, solving.select
    folds, ridges = filled(plan, passed.folds), None if solving.ridge == AUTO else solving.ridges
    with pinned():
        choice = choose(folds, each, ridges, by=by, per_output=per_output, counts=plan.counts)
    return Fitted(each, passed.folds, choice, plan.frozen().folds.held > 0)


def check_targets(plan: Plan) -> None:
    """InputError where the loss is not one of the data's targets; where it is of counts, or of 0 and 1, these are read
    once before any pass: of rows that a fit uses."""
    loss, dataset = loss_of(plan.job), plan.dataset
    if not loss.wants or dataset.labels is not None:
        return
    for start in range(dataset.first, dataset.n, step := max(dataset.unit_rows, 2**14)):
        rows = plan.spec.kept(dataset.block(start, min(start + step, dataset.n)))
        rows = rows[rows.whole(partial=True)]
        y = np.where(np.isfinite(rows.Y), rows.Y, 0.0)
        loss.check(y, "solve.loss", f"{dataset.path}: ", rows.numbers, dataset.target_columns)


def left_out_rows(plan: Plan) -> LeftOut:
    """Rows of the pass that are left out one at a time: all, or runs spread evenly; fewer where they choose nothing."""
    dataset, frozen = plan.dataset, plan.frozen()
    runs = left_out_runs(dataset.first, dataset.n, dataset.d + dataset.q, most_left_out(plan.job))
    rows = RowBlock.joined([usable(dataset, frozen, dataset.block(*run))[0] for run in runs])
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    if (of_class := frozen.constants.class_weight) is not None:
        weights = weights * of_class[np.argmax(rows.Y, axis=1)]
    return LeftOut(frozen.features, rows.X, np.where(np.isfinite(rows.Y), rows.Y, np.nan), weights)


def filled(plan: Plan, folds: Mapping[Part, Solvable]) -> list[list[Solvable]]:
    """The sums of each fold that has rows; InputError where none has, and for a target that no row has."""
    why = "every row was dropped or there are none"
    if plan.job.data.nan == "unlabelled":
        why = "no row has a target and finite inputs: all are unlabelled; give some rows their targets"
        if (column := plan.job.data.labelled) is not None:
            why += f", and a 1 in {column}, the column of data.labelled"
    if plan.job.data.outside == "drop":
        why += "; data.outside: drop leaves out those beyond data.box: name the box that the rows lie in"
    no_rows = f"{plan.dataset.path}: no rows are left to fit; {why}"
    return folds_with_rows(folds, no_rows, lambda target: no_target(plan, target))


def no_target(plan: Plan, target: int) -> str:
    """What to say of a target that no row has."""
    name = plan.dataset.target_columns[target]
    return f"{plan.dataset.path}: no row has the target {name}; leave it out of the targets"


def keeps_sure(plan: Plan, fitted: Fitted) -> bool:
    """Whether the posterior of the chosen fit is kept: the job wants it and, unless it insists, there is one."""
    weights, (m, r, _) = fitted.fit.weights, fitted.fit.weights.shape
    unknowns = m if weights.separable and plan.observe is None else m * r
    if weights.views is not None and len(weights.root) == 1:  # of m for each target
        unknowns = math.isqrt(m * m * plan.dataset.q)
    elif weights.separable and not targets_apart(weights, plan.observe):  # with covariances of columns
        unknowns = math.isqrt(unknowns**2 + m * r**2)
    if plan.costs.route != "direct":
        return plan.job.posteriors > 0
    if not keeps_posterior(plan.job, unknowns):
        return False
    return plan.job.posteriors > 0 or fitted.fit.solution.ridge != 0  # it is unbounded


def posterior_of(plan: Plan, fitted: Fitted) -> Posterior | None:
    """The posterior of the chosen fit, where it is kept."""
    with pinned():
        return fitted.posterior if keeps_sure(plan, fitted) else None


def build_model(plan: Plan, fitted: Fitted, passed: PassResult) -> Model:
    """The model of a fit, with what a reader of it will want to know."""
    frozen = plan.frozen()
    receipts, dataset = passed.receipts, plan.dataset
    names = list(dataset.target_columns)
    if plan.job.solve.observe is not None and plan.observe is not None:
        names = [f"f{number}" for number in range(plan.observe.shape[1])]
    loss = loss_of(plan.job)
    if isinstance(loss, Quantiles):
        names = [f"{name} q{quantile:g}" for name in names for quantile in loss.quantiles]
    info: dict[str, Any] = {
        "data": {
            "store": plan.spec.store,
            "rows": dataset.rows,
            "fingerprint": fingerprint(receipts),
            "terms": passed.fingerprints,
            "leaves": [[one.number, one.start, one.stop, one.digest] for one in receipts],
            "inputs": list(dataset.input_columns),
            "targets": names,
            "nan": plan.job.data.nan,
            "weights": plan.job.data.weights,
            "labelled": plan.job.data.labelled,
            **plan.spec.reach,
            "low": np.min([receipt.low for receipt in receipts], axis=0).tolist(),
            "high": np.max([receipt.high for receipt in receipts], axis=0).tolist(),
        },
        "plan": frozen.hash,
        "r2_of": r2_of(plan),
        "versions": {name: version(name) for name in ("dorff", "numpy", "scipy", "zarr", "numba", "dask")}
        | {"python": platform.python_version()},
        "processors": sorted({processor_kind(), *(receipt.processor for receipt in receipts)} - {""}),
    }
    if plan.job.solve.other_loss:
        info["loss"] = loss.config()
    if names != list(dataset.target_columns):
        info["data"]["fitted"] = list(dataset.target_columns)
    if columns := source_columns(dataset):
        info["data"]["columns"] = columns
    if dataset.encoding:
        info["data"]["encoding"] = dataset.encoding
    if dataset.column_attributes:
        info["data"]["column_attributes"] = dataset.column_attributes
    if dataset.missing:
        info["data"]["missing"] = list(dataset.missing)
    if len(plan.job.kernels) > 1:
        info["kernels"] = kernel_names([kernel.model_dump(mode="json") for kernel in plan.job.kernels])
    if dataset.labels is not None:
        info["labels"] = list(dataset.labels)
    if isinstance(fitted.fit.kernel, MultiView):
        info["data"]["views"] = views_of(plan, fitted.fit.kernel)
    return fitted.model(frozen.features, plan.own.sampler, plan.spec.seed, info)


def source_columns(dataset: Dataset) -> dict[str, str]:
    """Return what the files that were ingested call the columns of labels, of weights, and of what is labelled."""
    attributes, columns = group_attributes(locate(dataset.path)), dict[str, str]()
    named = {"weights": dataset.weights, "labelled": dataset.labelled}
    places = {key: (column.array, column.place) for key, column in named.items() if column is not None}
    if dataset.coding is not None:
        places[CLASSES] = dataset.targets[0], 0
    for key, (array, place) in places.items():
        names = columns_of(attributes).get(array, [])
        if place < len(names):
            columns[key] = names[place]
    return columns


def views_of(plan: Plan, kernel: MultiView) -> list[dict[str, Any]]:
    """The name of each view, the arrays that it was made of, and the first of the inputs' columns that each is."""
    (spec, *_), columns = plan.job.kernels, array_columns(plan.dataset)
    assert isinstance(spec, MultiViewSpec)
    return [
        {"name": view.name, "inputs": list(given.arrays), "columns": [columns[name].start for name in given.arrays]}
        for view, given in zip(kernel.views, spec.views, strict=True)
    ]


def kernel_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells each kernel of a list from the others: `0.3 curl_free + 0.7 divergence_free`, `lengthscale 0.2`;
    its number where that would be long, or nothing does."""
    formulas, details = [_short_formula(config) for config in configs], [_details(config) for config in configs]
    keys = dict.fromkeys(key for one in details for key in one)
    telling = [key for key in keys if len({one[key] for one in details if key in one}) > 1]
    names = []
    for formula, one in zip(formulas, details, strict=True):
        words = [f"{key} {one[key]}" for key in telling if key in one]
        names.append(", ".join([formula, *words] if len(set(formulas)) > 1 else words))
    return [
        name if name and names.count(name) == 1 and len(name) <= LONGEST_NAME else f"kernel {number}"
        for number, name in enumerate(names)
    ]


def _short_formula(config: Mapping[str, Any]) -> str:
    if config["type"] != "sum":
        return str(config["type"])
    return " + ".join(f"{term['weight']:.3g} {_short_formula(term['kernel'])}" for term in config["terms"])


def _details(config: Mapping[str, Any]) -> dict[str, str]:
    """What a formula does not tell, by name; of several terms all values, or the one that all have."""
    versions: dict[str, list[str]] = {}
    for name, value in _values(config):
        versions.setdefault(name, []).append(value)
    return {name: values[0] if len(set(values)) == 1 else "/".join(values) for name, values in versions.items()}


def _values(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in ("weight", "type") or key == "scalar":
                yield from _values(item, name)
    elif key in ("terms", "views"):
        for part in value:
            yield from _values(part)
    else:
        yield key, f"{value:.4g}" if isinstance(value, float) else str(value)
