"""What `data` of a job may say, and `manifold`: weight <f, (L (x) Q) f>, f smooth along a graph of all rows."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from dorff.errors.shown import show
from dorff.spec import checks
from dorff.spec.checks import KnownNames
from dorff.spec.part import ArrayName, Box, FilePath, Idle, Names, OneOf, OneOrMore, Part, Penalties, Positive, ViewName
from dorff.spec.registry import GRAPHS, OUTPUTS, Keyed, Word

_WEIGHTS = KnownNames(("heat", "binary"))
_LAPLACIANS = KnownNames(("unnormalised", "normalised"))
_POWERS: Final = WithJsonSchema({"anyOf": [{"const": 1}, {"type": "integer", "minimum": 2, "multipleOf": 2}]})
Graph = Annotated[Part, Word(GRAPHS, default="knn")]
Coupling = Annotated[str | Part, Keyed(OUTPUTS, only=("identity", "matrix", "graph"))]
_APART: Final = Idle(
    lambda graph, _: "inside a leaf new rows never change old edges" if graph.within == "leaf" else "", refused=True
)


class ClassTargets(Part):
    """An array of class codes, which becomes one target a class."""

    classes: ArrayName


Targets = Annotated[
    Annotated[Names, Tag("<arrays>")] | Annotated[ClassTargets, Tag("<classes>")],
    Discriminator(lambda value: "<arrays>" if isinstance(value, str | tuple) else "<classes>"),
    BeforeValidator(lambda value: value if isinstance(value, dict | Part) else checks.arrays(value)),
]


def _unseen(_: "Data", job: Any) -> str:
    given = bool(job.manifold) and "each term's graph is given, of the rows of data.store"
    seen = any(term.graph.type != "given" for term in job.manifold)
    return "" if seen else given or "only manifold terms see its rows, and the job has none"


def _boundless(_: "Data", job: Any) -> str:
    return "" if job.features.kind in ("lattice", checks.AUTO) else "features.sampler is no lattice, and sees no box"


class Data(Part):
    """Where the rows are; several arrays are stacked. Without an array `y`, and no `targets` named, these are the
    classes of the array `classes`.

    `weights` names an array of row weights. `nan`: what to do with rows of NaN or infinity; `partial` uses the
    outputs that are there, and so does `unlabelled`, which keeps the rows without any for the manifold terms (and
    leaves them out where the job has none). `labelled` names a column of 0 and 1: a row of 0 is unlabelled, whatever
    its targets say. `unlabelled` is a second data set, of rows with the same inputs, that the manifold terms see too.

    `box` is for features on a lattice: the least and the largest value of each input, now and in rows to come; left
    out, those of the rows of the first plan. `outside`: what to do with rows beyond it.

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
    box: Annotated[Box | None, Idle(_boundless, refused=True)] = None
    outside: Annotated[str, OneOf("refuse", "drop"), Idle(_boundless, refused=True)] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _unlabelled_stay(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("labelled") is not None:
            return {"nan": "unlabelled", **value}
        return value

    @model_validator(mode="after")
    def _labelled_says_which(self) -> Self:
        if self.labelled is not None and self.nan != "unlabelled":
            problem = f"must be unlabelled where labelled names the column that tells such rows, came {self.nan}"
            raise checks.Refusal(f"{problem}; drop it", key="nan")
        return self


def _edge_weights(value: object) -> object:
    return checks.positive(value) if isinstance(value, int | float) else _WEIGHTS.name(value)


def _laplacian(value: object) -> object:
    if isinstance(value, str) and value.replace("-", "_").replace(" ", "_") in ("random_walk", "rw"):
        problem = f"must not be {value}, whose matrix is neither symmetric nor positive, and so no penalty"
        raise checks.Refusal(f"{problem}; use one of: {', '.join(_LAPLACIANS.built)}")
    return _LAPLACIANS.name(value)


def _power(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and (value == 1 or (value > 1 and value % 2 == 0)):
        return value
    wanted = "1, or even (L^2, L^4 ... are sums of squares)"
    raise checks.Refusal(f"must be {wanted}, came {show(value)}; correct it")


class KnnSpec(Part):
    """Each row's `neighbours` nearest others. Edge weights: `heat` (self-tuned), `binary`, or a width t of
    exp(-|x - z|^2 / (2 t^2)), in the scaled inputs' units.

    `within: leaf` looks for neighbours among runs of rows inside a leaf, and keeps no graph on disk. Where rows were
    appended to the data the graph is made anew (`append: rebuild`), or they are linked to it, and old edges stay."""

    type: Literal["knn"] = "knn"
    neighbours: Annotated[int, Field(ge=1)] = 10
    weights: Annotated[Literal["heat", "binary"] | Positive, BeforeValidator(_edge_weights)] = "heat"
    within: Annotated[str, OneOf("data", "leaf")] = "data"
    append: Annotated[str, OneOf("rebuild", "link"), _APART] = "rebuild"


class GivenSpec(Part):
    """A graph in a Zarr group or a Parquet file: edges between rows' numbers, or a sparse matrix."""

    type: Literal["given"]
    path: FilePath


class IdentitySpec(Part):
    """No graph: L is the identity, over all rows."""

    type: Literal["identity"]


def _graphless(term: "ManifoldSpec", _: Any) -> str:
    return "graph is the identity" if isinstance(term.graph, IdentitySpec) else ""


def _one_way(term: "ManifoldSpec", job: Any) -> str:
    return _graphless(term, job) or ("power is more than 1" if term.power > 1 else "")


def _viewless(term: "ManifoldSpec", job: Any) -> str:
    return "" if job.kernels[0].type == "multi_view" else "the kernel has no views (its type is not multi_view)"


def _of_all(term: "ManifoldSpec", job: Any) -> str:
    return _viewless(term, job) or ("between is true, and penalises all views" if term.between else "")


class ManifoldSpec(Part):
    """weight <f, (L (x) Q) f>, L a graph's Laplacian (to the `power`) over all rows, labelled or not.

    Of several weights the best is chosen, on held-out labelled rows. `outputs` is Q (p, p), the identity where it is
    left out; of a graph of outputs it is that graph's Laplacian plus `offset` I, the penalty that belongs to the
    kernel's output of the same words. `view` names the view of a kernel of views that the graph is made of, and that
    alone is penalised; `between` asks all views to agree, row by row, and its graph is the identity.

    `form` is how the sums are made, which changes their last digits; `scale: mean` divides the term by the number of
    edges (of rows, where the graph is the identity)."""

    graph: Graph = KnnSpec()
    weight: Penalties
    laplacian: Annotated[
        Literal["unnormalised", "normalised"], BeforeValidator(_laplacian), Idle(_graphless, refused=True)
    ] = "unnormalised"
    power: Annotated[int, BeforeValidator(_power), _POWERS, Idle(_graphless, refused=True)] = 1
    outputs: Coupling | None = None
    view: Annotated[ViewName | None, Idle(_of_all, refused=True)] = None
    between: Annotated[bool, Idle(_viewless, refused=True)] = False
    form: Annotated[str, OneOf("auto", "edges", "difference"), Idle(_one_way, refused=True)] = "auto"
    scale: Annotated[str, OneOf("sum", "mean")] = "sum"

    @property
    def weights(self) -> tuple[float, ...]:
        """Every weight asked for, in the order given."""
        return self.weight if isinstance(self.weight, tuple) else (self.weight,)

    @model_validator(mode="before")
    @classmethod
    def _graph_between(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("between") is True:
            return {"graph": {"type": "identity"}, **value}
        return value

    @model_validator(mode="after")
    def _graph_or_between(self) -> Self:
        if self.between and not isinstance(self.graph, IdentitySpec):
            problem = "compares the views of each row with one another, and has no graph"
            raise checks.Refusal(f"{problem}; leave graph out, or between", key="between")
        return self


Manifold = Annotated[tuple[ManifoldSpec, ...], OneOrMore()]
