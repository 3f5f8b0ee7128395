"""From the words of JOB.yaml to kernels; and the words of operator-valued kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dorff.errors import InputError
from dorff.kernels.multi_view import MultiView
from dorff.kernels.operator import Decomposable, OperatorKernel, Sum
from dorff.kernels.scalar import ScalarKernel
from dorff.kernels.vector_fields import CurlFree, DivergenceFree
from dorff.spec.checks import AUTO
from dorff.spec.kernel import DecomposableSpec, MultiViewSpec, SumSpec, VectorFieldSpec
from dorff.spec.registry import KERNELS, SCALARS, Entry, kind_of


def scalar_from_config(config: Mapping[str, Any]) -> ScalarKernel:
    """The scalar kernel that `ScalarKernel.config` (or a job's `scalar:`) describes, or InputError."""
    kind = kind_of(config)
    entry = SCALARS.get(kind)
    if entry is None:
        raise InputError(f"kernel.scalar.type: {kind!r} is not built; use one of {', '.join(SCALARS.names)}")
    options = {name: field for name, field in entry.options.model_fields.items() if name != "type"}
    for key, field in options.items():
        if (field.is_required() or field.default == AUTO) and key not in config:
            raise InputError(f"kernel.scalar.{key} is missing from a {kind} kernel; add it")
    for key in config:
        if key not in ("type", *options):
            raise InputError(f"kernel.scalar.{key} is not known to a {kind} kernel; use {', '.join(options)}")
    kernel = entry.build(**{key: value for key, value in config.items() if key != "type"})
    if not isinstance(kernel, ScalarKernel):
        raise InputError(f"kernel.scalar.type: {kind} of another package builds no ScalarKernel")
    return kernel


def from_config(config: Mapping[str, Any]) -> OperatorKernel:
    """The operator kernel that `OperatorKernel.config` (or a job's `kernel:`) describes.

    Raises InputError for a type that is not known."""
    kind = kind_of(config)
    entry = KERNELS.get(kind)
    if entry is None:
        known = f"{', '.join(KERNELS.names[:-1])} or {KERNELS.names[-1]}"
        raise InputError(f"kernel.type: {kind!r} is not known; use {known}")
    kernel = entry.build(**{key: value for key, value in config.items() if key != "type"})
    if not isinstance(kernel, OperatorKernel):
        raise InputError(f"kernel.type: {kind} of another package builds no OperatorKernel")
    return kernel


def _of(kind: Callable[..., OperatorKernel]) -> Callable[..., OperatorKernel]:
    """What builds a kernel of one scalar kernel, which is described."""
    return lambda scalar, **options: kind(scalar_from_config(scalar), **options)


def _sum(terms: Sequence[Mapping[str, Any]], concatenate: bool = False) -> Sum:
    return Sum([(term["weight"], from_config(term["kernel"])) for term in terms], concatenate=concatenate)


def _multi_view(views: Sequence[Mapping[str, Any]]) -> MultiView:
    if any(not isinstance(view["columns"], list | tuple) for view in views):
        raise InputError("kernel.views: columns must be a list of whole numbers")
    pairs = [(view["columns"], from_config(view["kernel"])) for view in views]
    return MultiView(pairs, [view.get("name") for view in views])


KERNELS.add(
    Entry("decomposable", _of(Decomposable), DecomposableSpec, "k₀ A", "Brault 2016, definition 7"),
    Entry("curl_free", _of(CurlFree), VectorFieldSpec, "(−∇∇ᵀ k₀)", "Minh 2016, eq. 32"),
    Entry("divergence_free", _of(DivergenceFree), VectorFieldSpec, "(∇∇ᵀ − ΔI) k₀", "Minh 2016, eq. 32"),
    Entry("sum", _sum, SumSpec, source="Minh 2016, eq. 58-60"),
    Entry("multi_view", _multi_view, MultiViewSpec, source="Minh 2016, section 4"),
)
