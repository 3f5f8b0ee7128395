"""The grammar of JOB.yaml as types. Omitted keys take the values written here."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    model_validator,
)

from dorff.spec import checks
from dorff.spec.checks import Choice

_KERNELS = Choice(
    ("decomposable", "curl_free", "divergence_free", "sum"),
    ("spectral_density", "from_signature", "product"),
)
_SCALARS = Choice(
    ("gaussian",),
    ("laplacian", "matern", "cauchy", "rational_quadratic", "arc_cosine", "polynomial", "skeleton"),
    default="gaussian",
)
_SAMPLERS = Choice(
    ("orthogonal", "iid"),
    ("sorf", "rom", "fastfood", "qmc", "gauss_quadrature", "quadrature"),
    default="orthogonal",
)
_CLUSTERS = Choice(("local", "serial"), ("slurm", "kubernetes"), default="local")
_SELECTS = Choice(("gcv", "kfold"), ("evidence",))
_NANS = Choice(("refuse", "drop"), ("unlabelled",))

FilePath = Annotated[Path, BeforeValidator(checks.path), PlainSerializer(str)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(checks.arrays)]
Bytes = Annotated[int, BeforeValidator(checks.memory)]
Measure = Literal["trace", "unbounded", "bounded"]


class _Part(BaseModel):
    """A mapping of the job: fixed once read, no key that it does not know, no value quietly converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        known = cls.model_fields
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                hint = checks.nearest(key, known)
                raise checks.Refusal(f"is not a known key; {hint}use one of: {', '.join(known)}", key=str(key))
        return value


class Data(_Part):
    """Where the rows are; several arrays are stacked. `nan`: what to do with rows of NaN or infinity."""

    store: FilePath
    inputs: Names = "x"
    targets: Names = "y"
    nan: Annotated[Literal["refuse", "drop"], BeforeValidator(_NANS.name)] = "refuse"


class GaussianSpec(_Part):
    """exp(-|x - z|^2 / (2 lengthscale^2)); a list holds one length-scale an input."""

    type: Literal["gaussian"] = "gaussian"
    lengthscale: Annotated[float | tuple[float, ...] | Literal["median"], BeforeValidator(checks.lengthscale)]


Scalar = Annotated[GaussianSpec, BeforeValidator(_SCALARS.typed)]


class MatrixOutput(_Part):
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


class DecomposableSpec(_Part):
    """k0(x, z) A, with A the output matrix."""

    type: Literal["decomposable"] = "decomposable"
    scalar: Scalar
    output: Output = "identity"


class CurlFreeSpec(_Part):
    """-grad grad^T k0."""

    type: Literal["curl_free"] = "curl_free"
    scalar: Scalar
    measure: Measure = "trace"


class DivergenceFreeSpec(_Part):
    """(grad grad^T - Laplacian I) k0."""

    type: Literal["divergence_free"] = "divergence_free"
    scalar: Scalar
    measure: Measure = "trace"


class Term(_Part):
    """A kernel times a positive weight."""

    weight: Annotated[float, BeforeValidator(checks.weight)]
    kernel: "Kernel"


class SumSpec(_Part):
    """A positive combination of kernels."""

    type: Literal["sum"] = "sum"
    terms: Annotated[tuple[Term, ...], BeforeValidator(checks.terms)]


Kernel = Annotated[
    DecomposableSpec | CurlFreeSpec | DivergenceFreeSpec | SumSpec,
    Discriminator("type"),
    BeforeValidator(_KERNELS.typed),
]


class SamplerSpec(_Part):
    """How frequencies are drawn."""

    type: Literal["orthogonal", "iid"] = "orthogonal"


class Features(_Part):
    """`count` is the columns of F, cosines and sines together."""

    count: Annotated[int, Field(ge=2), BeforeValidator(checks.even)] = 2048
    sampler: Annotated[SamplerSpec, BeforeValidator(_SAMPLERS.typed)] = SamplerSpec()
    seed: Annotated[int, Field(ge=0)] = 0


class Folds(_Part):
    """Folds of leaves or of rows, assigned before the pass."""

    count: Annotated[int, Field(ge=2)] = 5
    by: Annotated[Literal["leaves", "rows"], BeforeValidator(checks.folds_by)] = "leaves"


class Solve(_Part):
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


class LocalCluster(_Part):
    """Dask workers on this machine; `memory` is bytes a worker."""

    type: Literal["local"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2
    memory: Bytes = 4 * 2**30


class SerialCluster(_Part):
    """One leaf after another in this process, without Dask; `memory` is bytes for the process."""

    type: Literal["serial"] = "serial"
    memory: Bytes = 4 * 2**30


class RemoteCluster(_Part):
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


class Job(_Part):
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
