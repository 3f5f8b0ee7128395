"""What `kernel.scalar` of a job may say."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from dorff.spec import checks
from dorff.spec.checks import KnownNames
from dorff.spec.part import Part

SCALARS = KnownNames(
    (
        *("gaussian", "laplacian", "matern", "cauchy", "rational_quadratic"),
        *("arc_cosine", "polynomial", "pointwise", "mercer"),
    ),
    ("skeleton",),
    default="gaussian",
)
_FUNCTIONS = KnownNames(("step", "relu", "erf", "tanh", "sigmoid", "softplus", "sin", "cos"))
_SYSTEMS = KnownNames(("brownian", "bridge"))

Positive = Annotated[float, BeforeValidator(checks.positive)]
Lengthscale = Annotated[
    float | tuple[float, ...] | Literal["median", "tune", "tune each"], BeforeValidator(checks.lengthscale)
]


class GaussianSpec(Part):
    """exp(-|x - z|^2 / (2 lengthscale^2)); a list holds one length-scale an input, here and below.

    `median` is a sample's median distance; `tune` and `tune each` (one an input) maximise the evidence of a sample.
    """

    type: Literal["gaussian"] = "gaussian"
    lengthscale: Lengthscale


class LaplacianSpec(Part):
    """exp(-|x - z|_1 / lengthscale)."""

    type: Literal["laplacian"] = "laplacian"
    lengthscale: Lengthscale


class MaternSpec(Part):
    """The Matern kernel of smoothness nu."""

    type: Literal["matern"] = "matern"
    lengthscale: Lengthscale
    nu: Positive = 1.5


class CauchySpec(Part):
    """prod_i 1 / (1 + ((x_i - z_i) / lengthscale)^2)."""

    type: Literal["cauchy"] = "cauchy"
    lengthscale: Lengthscale


class RationalQuadraticSpec(Part):
    """(1 + |x - z|^2 / (2 alpha lengthscale^2))^-alpha."""

    type: Literal["rational_quadratic"] = "rational_quadratic"
    lengthscale: Lengthscale
    alpha: Positive = 1.0


class ArcCosineSpec(Part):
    """Cho & Saul's kernel: a step (order 0) or a ramp (order 1) of Gaussian projections."""

    type: Literal["arc_cosine"] = "arc_cosine"
    order: Annotated[int, Field(ge=0, le=1)] = 1


class PolynomialSpec(Part):
    """(scale x.z + offset)^degree."""

    type: Literal["polynomial"] = "polynomial"
    degree: Annotated[int, Field(ge=1)]
    offset: Annotated[float, BeforeValidator(checks.not_negative)] = 1.0
    scale: Positive = 1.0


class PointwiseSpec(Part):
    """E phi(w . x) phi(w . z) over Gaussian w, phi a function with a name."""

    type: Literal["pointwise"] = "pointwise"
    function: Annotated[str, BeforeValidator(_FUNCTIONS.name)]


class MercerSpec(Part):
    """The first `count` eigenpairs of a system with a name; one input in [0, 1]."""

    type: Literal["mercer"] = "mercer"
    system: Annotated[str, BeforeValidator(_SYSTEMS.name)]
    count: Annotated[int, Field(ge=1)] = 1000


Scalar = Annotated[
    GaussianSpec
    | LaplacianSpec
    | MaternSpec
    | CauchySpec
    | RationalQuadraticSpec
    | ArcCosineSpec
    | PolynomialSpec
    | PointwiseSpec
    | MercerSpec,
    Discriminator("type"),
    BeforeValidator(SCALARS.typed),
]
