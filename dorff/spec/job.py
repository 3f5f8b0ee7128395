"""The grammar of JOB.yaml as types. Omitted keys take the values written here."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    model_validator,
)

from dorff.spec import checks
from dorff.spec.checks import Choice
from dorff.spec.part import Part
from dorff.spec.sampler import Sampler, SamplerSpec
from dorff.spec.scalar import SCALARS, Scalar

_KERNELS = Choice(
    ("decomposable", "curl_free", "divergence_free", "sum"),
    ("spectral_density", "from_signature", "product"),
)


def _kernel(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in SCALARS.built:
        raise checks.Refusal(
            f"'{kind}' is a scalar kernel; write {{type: decomposable, scalar: {{type: {kind}, ...}}}}", key="type"
        )
    return _KERNELS.typed(value)


_CLUSTERS = Choice(("local", "serial"), ("slurm", "kubernetes"), default="local")
_SELECTS = Choice(("gcv", "kfold"), ("evidence",))
_NANS = Choice(("refuse", "drop"), ("unlabelled",))

FilePath = Annotated[Path, BeforeValidator(checks.path), PlainSerializer(str)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(checks.arrays)]
Bytes = Annotated[int, BeforeValidator(checks.memory)]
Measure = Literal["trace", "unbounded", "bounded"]


class Data(Part):
    """Where the rows are; several arrays are stacked. `nan`: what to do with rows of NaN or infinity."""

    store: FilePath
    inputs: Names = "x"
    targets: Names = "y"
    nan: Annotated[Literal["refuse", "drop"], BeforeValidator(_NANS.name)] = "refuse"


class MatrixOutput(Part):
    """A given output matrix (p, p): its rows, or the file that holds it."""

    matrix: Annotated[
        Path | tuple[tuple[float, ...], ...],
        BeforeValidator(checks.matrix),
        PlainSerializer(lambda matrix: str(matrix) if isinstance(matrix, Path) else matrix),
    ]


Output = Annotated[
    Annotated[Literal["identity", "covariance"], Tag("name")] | Annotated[MatrixOutput, Tag("matrix")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "matrix"),
    BeforeValidator(checks.output),
]


class DecomposableSpec(Part):
    """k0(x, z) A, with A the output matrix."""

    type: Literal["decomposable"] = "decomposable"
    scalar: Scalar
    output: Output = "identity"


class CurlFreeSpec(Part):
    """-grad grad^T k0."""

    type: Literal["curl_free"] = "curl_free"
    scalar: Scalar
    measure: Measure = "trace"


class DivergenceFreeSpec(Part):
    """(grad grad^T - Laplacian I) k0."""

    type: Literal["divergence_free"] = "divergence_free"
    scalar: Scalar
    measure: Measure = "trace"


class Term(Part):
    """A kernel times a positive weight."""

    weight: Annotated[float, BeforeValidator(checks.positive)]
    kernel: "Kernel"


class SumSpec(Part):
    """A positive combination of kernels."""

    type: Literal["sum"] = "sum"
    terms: Annotated[tuple[Term, ...], BeforeValidator(checks.terms)]


Kernel = Annotated[
    DecomposableSpec | CurlFreeSpec | DivergenceFreeSpec | SumSpec,
    Discriminator("type"),
    BeforeValidator(_kernel),
]


class Features(Part):
    """`count` is a ceiling on the columns of F, cosines and sines together: pairs use the even number below."""

    count: Annotated[int, Field(ge=2)] = 2048
    sampler: Sampler = SamplerSpec()
    seed: Annotated[int, Field(ge=0)] = 0


class Folds(Part):
    """Folds of leaves or of rows, assigned before the pass."""

    count: Annotated[int, Field(ge=2)] = 5
    by: Annotated[Literal["leaves", "rows"], BeforeValidator(checks.folds_by)] = "leaves"


class Solve(Part):
    """`folds` matters for `select: kfold` alone."""

    ridge: Annotated[float | tuple[float, ...], BeforeValidator(checks.ridge)] = 1e-6
    select: Annotated[Literal["gcv", "kfold"], BeforeValidator(_SELECTS.name)] = "gcv"
    folds: Folds = Folds()
    standardize: bool = False
    intercept: bool = True

    @property
    def ridges(self) -> tuple[float, ...]:
        """Every ridge asked for, in the order given."""
        return self.ridge if isinstance(self.ridge, tuple) else (self.ridge,)


class LocalCluster(Part):
    """Dask workers on this machine; `memory` is bytes a worker."""

    type: Literal["local"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2
    memory: Bytes = 4 * 2**30


class SerialCluster(Part):
    """One leaf after another in this process, without Dask; `memory` is bytes for the process."""

    type: Literal["serial"] = "serial"
    memory: Bytes = 4 * 2**30


class RemoteCluster(Part):
    """A Dask cluster that runs already; its workers say how much memory they have."""

    address: Annotated[str, BeforeValidator(checks.address)]


def _cluster(value: object) -> object:
    return value if isinstance(value, dict) and "address" in value else _CLUSTERS.typed(value)


def _cluster_tag(value: object) -> str:
    if isinstance(value, RemoteCluster) or (isinstance(value, dict) and "address" in value):
        return "remote"
    return str(value["type"] if isinstance(value, dict) else getattr(value, "type", "local"))


Cluster = Annotated[
    Annotated[LocalCluster, Tag("local")]
    | Annotated[SerialCluster, Tag("serial")]
    | Annotated[RemoteCluster, Tag("remote")],
    Discriminator(_cluster_tag),
    BeforeValidator(_cluster),
]


class Job(Part):
    """A whole job. `state` keeps durable moments and receipts, `model` the published versions."""

    data: Data
    kernel: Kernel
    features: Features = Features()
    solve: Solve = Solve()
    cluster: Cluster = LocalCluster()
    state: FilePath
    model: FilePath

    @model_validator(mode="after")
    def _three_places(self) -> Self:
        if len({self.data.store, self.state, self.model}) < 3:
            raise checks.Refusal("must give data.store, state and model a place each; two are the same, move one")
        return self
