"""What `features.sampler` of a job may say."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from dorff.spec import checks
from dorff.spec.checks import KnownNames
from dorff.spec.part import Part

_SAMPLERS = KnownNames(
    ("orthogonal", "iid", "sorf", "rom", "fastfood", "qmc", "gauss_quadrature", "quadrature"), default="orthogonal"
)
_SEQUENCES = KnownNames(("sobol", "halton"))
_MIXINGS = KnownNames(("butterfly", "haar"))
_RADII = KnownNames(("own", "shared"))
_CENTRES = KnownNames(("signed", "redraw", "drop"))


class SamplerSpec(Part):
    """A sampler without options."""

    type: Literal["orthogonal", "iid", "sorf", "fastfood"] = "orthogonal"


class ROMSpec(Part):
    """Products of `blocks` sign-diagonal and Hadamard matrices."""

    type: Literal["rom"] = "rom"
    blocks: Annotated[int, Field(ge=1, le=16)] = 3


class QMCSpec(Part):
    """A low-discrepancy sequence. Without scrambling the kernel's estimate is biased."""

    type: Literal["qmc"] = "qmc"
    sequence: Annotated[str, BeforeValidator(_SEQUENCES.name)] = "sobol"
    scramble: bool = True


class GaussQuadratureSpec(Part):
    """A sub-sampled Gauss-Hermite grid of `points` nodes an axis."""

    type: Literal["gauss_quadrature"] = "gauss_quadrature"
    points: Annotated[int, Field(ge=2, le=64)] = 8


class QuadratureSpec(Part):
    """Spherical-radial rules: degree (radial, spherical), how they are rotated, their radii and their centre."""

    type: Literal["quadrature"] = "quadrature"
    degree: Annotated[tuple[int, int], BeforeValidator(checks.degree)] = (3, 3)
    mixing: Annotated[str, BeforeValidator(_MIXINGS.name)] = "butterfly"
    radii: Annotated[str, BeforeValidator(_RADII.name)] = "own"
    centre: Annotated[str, BeforeValidator(_CENTRES.name)] = "signed"


Sampler = Annotated[
    SamplerSpec | ROMSpec | QMCSpec | GaussQuadratureSpec | QuadratureSpec,
    Discriminator("type"),
    BeforeValidator(_SAMPLERS.typed),
]
