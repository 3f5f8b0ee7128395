"""What the parts of a job must agree on: that every key has an effect, views, manifold terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dorff.spec.checks import KnownNames, Refusal
from dorff.spec.kernel import DecomposableSpec, LearnedOutputSpec, MultiViewSpec
from dorff.spec.part import Idle, Part
from dorff.spec.registry import kind_of

if TYPE_CHECKING:
    from dorff.spec.job import Job


def with_inputs(job: dict[str, Any]) -> dict[str, Any]:
    """A job as it was written, with its views' arrays as `data.inputs` where it names none."""
    kernel, data = job.get("kernel"), job.get("data")
    first = kernel[0] if isinstance(kernel, list | tuple) and kernel else kernel
    if isinstance(data, dict):
        silent = data.get("inputs") is None
    else:
        silent = "inputs" not in getattr(data, "model_fields_set", ("inputs",))
    if data is None or not silent or (arrays := _arrays(first)) is None:
        return job
    copied = {**data, "inputs": arrays} if isinstance(data, dict) else data.model_copy(update={"inputs": arrays})
    return {**job, "data": copied}


def _arrays(kernel: Any) -> tuple[str, ...] | None:
    """The arrays of a kernel's views; None where it has none, or they are not as they should be."""
    if isinstance(kernel, MultiViewSpec):
        return kernel.arrays
    if not isinstance(kernel, dict) or kind_of(kernel) != "multi_view":
        return None
    views = kernel.get("views")
    given = [_value(view, "inputs") for view in views] if isinstance(views, list | tuple) else []
    several = [list(names) if isinstance(names, list | tuple) else [names] for names in given]
    names = [name for one in several for name in one]
    return tuple(dict.fromkeys(names)) if names and all(isinstance(name, str) for name in names) else None


def _value(view: Any, key: str) -> Any:
    return view.get(key) if isinstance(view, dict) else getattr(view, key, None)


def idle_keys(job: Job, *, refused: bool) -> Iterator[tuple[str, str]]:
    """The keys that were set to what they would not be anyway and have no effect on this job, and what is wrong: those
    that it is refused for, or those that it warns of (`Idle`)."""
    for place, part in _parts(job, ""):
        for key in sorted(part.model_fields_set):
            field, value = type(part).model_fields[key], getattr(part, key)
            rules = [rule for rule in field.metadata if isinstance(rule, Idle) and rule.refused == refused]
            if rules and value != field.get_default() and (why := rules[0].why(part, job)):
                yield f"{place}{key}", f"has no effect: {why}; leave it out"


def _parts(value: Any, place: str) -> Iterator[tuple[str, Part]]:
    """Every mapping of a job, with its dotted place before its keys."""
    if isinstance(value, Part):
        yield place, value
        for key in type(value).model_fields:
            yield from _parts(getattr(value, key), f"{place}{key}.")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            alone = place == "manifold." and len(value) == 1  # written without a list, as a rule
            yield from _parts(item, place if alone else f"{place.removesuffix('.')}[{number}].")


def check_views(job: Job) -> None:
    """Refuses kernels of other views, and arrays that are not the views'."""
    kernels = (*job.kernels, *job.features.kernels)
    viewed = [kernel for kernel in kernels if isinstance(kernel, MultiViewSpec)]
    if not viewed:
        return
    seen = {tuple((view.name, view.arrays) for view in kernel.views) for kernel in viewed}
    if len(viewed) < len(kernels) or len(seen) > 1:
        raise Refusal(
            "has kernels of other views, or of none, beside one of views, and one pass cannot serve them; give all "
            "kernels (those of features.drawn_for too) the same views, or write a job for each",
            key="kernel",
        )
    given = (job.data.inputs,) if isinstance(job.data.inputs, str) else job.data.inputs
    if sorted(given) != sorted(viewed[0].arrays):
        raise Refusal(
            f"must be the arrays of the kernel's views, {', '.join(viewed[0].arrays)}, each once, came "
            f"{', '.join(given)}; leave it out, and they are",
            key="data.inputs",
        )


def check_manifold(job: Job) -> None:
    """Refuses manifold terms of unknown views, and ways of solving or choosing that such terms have not."""
    if not job.manifold:
        return
    _check_terms(job)
    solve = job.solve
    if solve.route in ("cg", "streaming"):
        raise Refusal(
            f"is {solve.route}, which has no manifold terms; set it to auto, or leave manifold out", key="solve.route"
        )
    if solve.ridge_per_output:
        raise Refusal(
            "solves for each output alone, which manifold terms do not allow; leave it out, or manifold",
            key="solve.ridge_per_output",
        )
    if any(isinstance(one, DecomposableSpec) and _is_learned(one.output) for one in job.kernels):
        raise Refusal(
            "is learned, which manifold terms do not allow; give a matrix, or covariance, or leave manifold out",
            key="kernel.output",
        )
    if job.trials > 1 and solve.select != "kfold":
        raise Refusal(
            f"is {solve.select}, which cannot choose among {job.trials} trials with manifold terms (it knows nothing "
            "of unlabelled rows); set solve.select: kfold, or ask for one ridge, weight, kernel and count",
            key="solve.select",
        )


def _is_learned(output: object) -> bool:
    return output == "learned" or isinstance(output, LearnedOutputSpec)


def _check_terms(job: Job) -> None:
    kernel = job.kernels[0]
    names = tuple(view.name for view in kernel.views) if isinstance(kernel, MultiViewSpec) else ()
    for number, term in enumerate(job.manifold):
        if names and term.view is not None:
            key = f"manifold[{number}].view" if len(job.manifold) > 1 else "manifold.view"
            KnownNames(names).name(term.view, key=key)
