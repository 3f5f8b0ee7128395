"""What `features.sampler` of a job may say."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from dorff.spec import checks
from dorff.spec.checks import Choice
from dorff.spec.part import Idle, Part

_SAMPLERS = Choice(
    ("orthogonal", "iid", "sorf", "rom", "fastfood", "qmc", "gauss_quadrature", "quadrature"),
    default="orthogonal",
)
_SEQUENCES = Choice(("sobol", "halton"))
_MIXINGS = Choice(("butterfly", "haar"))
_RADII = Choice(("own", "shared"))
_CENTRES = Choice(("signed", "redraw", "drop"))


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


def _spherical(rule: "QuadratureSpec", _: Any) -> str:
    return "a rule of degree [1, 1] is one direction, with a radius of its own" if rule.degree == (1, 1) else ""


def _central(rule: "QuadratureSpec", _: Any) -> str:
    return "only a rule of degree [3, 3] has a centre" if rule.degree != (3, 3) else ""


class QuadratureSpec(Part):
    """Spherical-radial rules: degree (radial, spherical), how they are rotated, their radii and their centre."""

    type: Literal["quadrature"] = "quadrature"
    degree: Annotated[tuple[int, int], BeforeValidator(checks.degree)] = (3, 3)
    mixing: Annotated[str, BeforeValidator(_MIXINGS.name), Idle(_spherical, refused=True)] = "butterfly"
    radii: Annotated[str, BeforeValidator(_RADII.name), Idle(_spherical, refused=True)] = "own"
    centre: Annotated[str, BeforeValidator(_CENTRES.name), Idle(_central, refused=True)] = "signed"


Sampler = Annotated[
    SamplerSpec | ROMSpec | QMCSpec | GaussQuadratureSpec | QuadratureSpec,
    Discriminator("type"),
    BeforeValidator(_SAMPLERS.typed),
]
