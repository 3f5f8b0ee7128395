"""The data of a job: the store and the arrays its rows are read from."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dorff.spec import checks
from dorff.spec.kernel import MultiViewSpec
from dorff.spec.part import ArrayName, FilePath, Idle, Names, OneOf, Part
from dorff.spec.registry import kind_of


class ClassTargets(Part):
    """An array of class codes, which becomes one target a class."""

    classes: ArrayName


Targets = Annotated[
    Annotated[Names, Tag("<arrays>")] | Annotated[ClassTargets, Tag("<classes>")],
    Discriminator(lambda value: "<arrays>" if isinstance(value, str | tuple) else "<classes>"),
    BeforeValidator(checks.targets),
]


def _unseen(_: "Data", job: Any) -> str:
    given = bool(job.manifold) and "each term's graph is given, of the rows of data.store"
    seen = any(term.graph.type != "given" for term in job.manifold)
    return "" if seen else given or "only manifold terms see its rows, and the job has none"


class Data(Part):
    """Where the rows are; several arrays are stacked.

    `weights` names an array of row weights. `nan`: what to do with rows of NaN or infinity; `partial` uses the
    outputs that are there, and so does `unlabelled`, which keeps the rows without any for the manifold terms (and
    leaves them out where the job has none). `labelled` names a column of 0 and 1: a row of 0 is unlabelled, whatever
    its targets say. `unlabelled` is a second data set, of rows with the same inputs, that the manifold terms see too.

    `window` is for data that grow: only about that many of the last rows are used, at least so
    many where there are, up to the start of their first leaf.
    """

    store: FilePath
    inputs: Names = "x"
    targets: Targets = "y"
    weights: ArrayName | None = None
    nan: Annotated[str, OneOf("refuse", "drop", "partial", "unlabelled")] = "refuse"
    labelled: ArrayName | None = None
    unlabelled: Annotated[FilePath | None, Idle(_unseen, refused=True)] = None
    window: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _unlabelled_stay(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("labelled") is not None:
            return {"nan": "unlabelled", **value}
        return value

    @model_validator(mode="after")
    def _labelled_says_which(self) -> Self:
        if self.labelled is not None and self.nan != "unlabelled":
            raise checks.Refusal(
                f"must be unlabelled where labelled names the column that tells such rows, came {self.nan}; leave it "
                "out",
                key="nan",
            )
        return self


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
