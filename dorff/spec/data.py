"""The data of a job: the store and the arrays its rows are read from."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dorff.spec import checks
from dorff.spec.part import ArrayName, FilePath, Idle, Names, OneOf, Part


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
    """Where the rows are; several arrays are stacked. Without an array `y`, and no `targets` named, these are the
    classes of the array `classes`.

    `weights` names an array of row weights. `nan`: what to do with rows of NaN or infinity; `partial` uses the
    outputs that are there, and so does `unlabelled`, which keeps the rows without any for the manifold terms (and
    leaves them out where the job has none). `labelled` names a column of 0 and 1: a row of 0 is unlabelled, whatever
    its targets say. `unlabelled` is a second data set, of rows with the same inputs, that the manifold terms see too.

    `window` is for data that grow: only about that many of the last rows are used, at least so
    many where there are, up to the start of their first leaf."""

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
                f"must be unlabelled where labelled names the column that tells such rows, came {self.nan}; drop it",
                key="nan",
            )
        return self
