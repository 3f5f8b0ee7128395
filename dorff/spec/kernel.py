"""What `kernel` of a job may say, operator kernels and their output matrices; and `features`, which stand for them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.functional_serializers import SerializerFunctionWrapHandler, model_serializer

from dorff.errors.shown import show
from dorff.spec import checks
from dorff.spec.part import (
    GAUSSIAN,
    Counts,
    Idle,
    Names,
    NotNegative,
    OneOf,
    Part,
    Positive,
    Rows,
    Share,
    Square,
    Typed,
    ViewName,
)
from dorff.spec.registry import KERNELS, OUTPUTS, SAMPLERS, SCALARS, Keyed, Word, kind_of

Scalar = Annotated[Typed, Word(SCALARS, default="gaussian")]
ScalarOrAuto = Annotated[Typed | str, Word(SCALARS, default="gaussian", alone=checks.AUTO)]
Output = Annotated[str | Part, Keyed(OUTPUTS)]
Sampler = Annotated[Typed | str, Word(SAMPLERS, default="orthogonal", alone=checks.AUTO)]
MOST_FEATURES: Final = 4096  # of `auto`


class MatrixOutput(Part):
    """A given output matrix (p, p)."""

    matrix: Square


class FactorOutput(Part):
    """B (p, r) of the output matrix B B^T."""

    factor: Rows


class GraphOutput(Part):
    """A graph's weights (p, p); the output matrix is the pseudo-inverse of its Laplacian plus `offset` I."""

    graph: Square
    offset: NotNegative = 0.0


class LearnedOutputSpec(Part):
    """An output matrix learned from the moments, with a trace or a Frobenius penalty."""

    learned: Literal["trace", "frobenius"] = "trace"


class DecomposableSpec(Typed):
    """k0(x, z) A, with A the output matrix.

    `scalar: auto` is a Gaussian or a Matern-5/2 kernel, whichever has the higher evidence on a sample of rows. It is a
    Gaussian in lists and sums of kernels, where folds are of groups, and with samplers that serve no Matern kernel.
    """

    scalar: ScalarOrAuto = checks.AUTO
    output: Output = "identity"


class BoundedSpec(Typed):
    """The bounded measure with `split`, between 0 and 1, of the Gaussian's exponent moved to the weight."""

    type: Literal["bounded"]
    split: Share = 0.5


Measure = Annotated[
    Annotated[Literal["trace", "unbounded", "defensive", "bounded"], Tag("<name>")]
    | Annotated[BoundedSpec, Tag("<bounded>")],
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<bounded>"),
    BeforeValidator(checks.measure),
]


class VectorFieldSpec(Typed):
    """Of derivatives of k0. `measure` is the law that frequencies are drawn from; left out, the best that the sampler
    has."""

    scalar: Scalar = GAUSSIAN
    measure: Measure | None = None

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class TermSpec(Part):
    """A kernel times a positive weight."""

    weight: Positive
    kernel: "Single"


def _count(kernel: Typed) -> int:
    """The terms of a kernel, those of sums in it counted one by one."""
    return sum(_count(term.kernel) for term in kernel.terms) if isinstance(kernel, SumSpec) else 1


def _alone(one: "SumSpec", _: Any) -> str:
    return "there is one term, whose frequencies are its own anyway" if _count(one) == 1 else ""


class SumSpec(Typed):
    """A positive combination of kernels, on one set of frequencies or, concatenated, each on one of its own."""

    terms: Annotated[tuple[TermSpec, ...], Field(json_schema_extra={"minItems": 1}), BeforeValidator(checks.terms)]
    concatenate: Annotated[bool, Idle(_alone, refused=True)] = False


class ViewSpec(Part):
    """A view: the arrays that it sees, and its kernel. Without a `name` it goes by its arrays'."""

    inputs: Names
    name: ViewName = ""
    kernel: "Single"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("name") is not None:
            return value
        given = value.get("inputs")
        return {**value, "name": "+".join(map(str, given if isinstance(given, list | tuple) else (given,)))}

    @property
    def arrays(self) -> tuple[str, ...]:
        return self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)


class MultiViewSpec(Typed):
    """A function for each view of the same rows, their mean observed (Minh 2016, section 4)."""

    views: Annotated[tuple[ViewSpec, ...], Field(json_schema_extra={"minItems": 2}), BeforeValidator(checks.views)]

    @model_validator(mode="after")
    def _names_apart(self) -> Self:
        names = [view.name for view in self.views]
        for number, name in enumerate(names):
            if name in names[:number]:
                remedy = "give each a name of its own"
                raise checks.Refusal(f"has two views that are called {show(name)}; {remedy}", key="views")
        return self

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that the views see, each once, in the views' order."""
        return tuple(dict.fromkeys(array for view in self.views for array in view.arrays))


def _kernel(value: object) -> object:
    """Refuses words that are kernels elsewhere with the place where they belong."""
    kind = kind_of(value)
    if isinstance(kind, str) and kind in SCALARS.names and kind not in KERNELS.names:
        remedy = f"write {{type: decomposable, scalar: {{type: {kind}, ...}}}}"
        raise checks.Refusal(f"'{kind}' is a scalar kernel; {remedy}", key="type")
    if kind in ("spectral_density", "from_signature"):
        problem = f"asks for '{kind}', which is made of a Python function, and a job file cannot hold one"
        raise checks.Refusal(f"{problem}; use dorff.ORFFRegressor(kernel=...)", key="type")
    return value


def _single(value: object) -> object:
    if isinstance(value, dict) and kind_of(value) == "multi_view":
        raise checks.Refusal("asks for 'multi_view' inside another kernel; views are of the whole kernel", key="type")
    return _kernel(value)


#: A kernel without views: what a term of a sum, and a view, may have.
Single = Annotated[Typed, Word(KERNELS, later=("product",), without=("multi_view",)), BeforeValidator(_single)]
Kernel = Annotated[Typed, Word(KERNELS, later=("product",)), BeforeValidator(_kernel)]
Kernels = Annotated[
    Annotated[Kernel, Tag("<one>")]
    | Annotated[tuple[Kernel, ...], Field(json_schema_extra={"minItems": 1}), Tag("<several>")],
    Discriminator(lambda value: "<several>" if isinstance(value, tuple) else "<one>"),
    BeforeValidator(checks.kernels),
]


class Features(Part):
    """`count` is a ceiling on the columns of F, cosines and sines together: pairs use the even number below. Of
    several the best is chosen: the moments are those of the largest, the others parts of them. `auto` is as many as
    the rows of the first plan and the workers' memory are for.

    `sampler: auto` is a lattice or landmarks where their features are the better ones, which the plan tells;
    else `orthogonal`, or `iid` for a spectrum that rotations change, such as the Laplacian's.
    `drawn_for` names other kernels whose spectra the frequencies are drawn from; they are then weighed for `kernel`.
    `precision: mixed` rounds features and the products of blocks to float32."""

    count: Counts = "auto"
    sampler: Sampler = checks.AUTO
    seed: Annotated[int, Field(ge=0)] = 0
    drawn_for: Kernels | None = None
    precision: Annotated[str, OneOf("double", "mixed")] = "double"

    @property
    def counts(self) -> tuple[int, ...]:
        """Every count asked for, in the order given; of `auto` the most that it may be."""
        if self.count == "auto":
            return (MOST_FEATURES,)
        return self.count if isinstance(self.count, tuple) else (self.count,)

    @property
    def kind(self) -> str:
        """The sampler's word."""
        return self.sampler if isinstance(self.sampler, str) else self.sampler.type

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        given = self.drawn_for
        return given if isinstance(given, tuple) else () if given is None else (given,)


def check_views(kernels: Sequence[Kernel], inputs: str | tuple[str, ...]) -> None:
    """Refuses kernels of other views, and arrays that are not the views'."""
    if not (viewed := [kernel for kernel in kernels if isinstance(kernel, MultiViewSpec)]):
        return
    seen = {tuple((view.name, view.arrays) for view in kernel.views) for kernel in viewed}
    if len(viewed) < len(kernels) or len(seen) > 1:
        problem = "has kernels of other views, or of none, beside one of views, and one pass cannot serve them"
        remedy = "give all kernels (those of features.drawn_for too) the same views, or write a job for each"
        raise checks.Refusal(f"{problem}; {remedy}", key="kernel")
    given = (inputs,) if isinstance(inputs, str) else inputs
    if sorted(given) != sorted(viewed[0].arrays):
        wanted = f"the arrays of the kernel's views, {', '.join(viewed[0].arrays)}, each once"
        problem = f"must be {wanted}, came {', '.join(given)}"
        raise checks.Refusal(f"{problem}; leave it out, and they are", key="data.inputs")
