"""Kernels: the mathematical objects, with exact values and spectra; and from the words of JOB.yaml to kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dorff.errors import InputError
from dorff.kernels.isotropic import Gaussian, Matern, MaternSpec, RationalQuadratic, RationalQuadraticSpec
from dorff.kernels.multi_view import MultiView, View, input_lengthscales, mean_of
from dorff.kernels.nonstationary import ENTRIES, ArcCosine, Mercer, Pointwise, Polynomial
from dorff.kernels.operator import BaseKernel, CurlFree, Decomposable, DivergenceFree, OperatorKernel, Sum, mixture
from dorff.kernels.output import Covariance, Factor, Graph, Identity, Learned, Matrix, Output, Simplex
from dorff.kernels.scalar import FloatArray, GaussianWeighted, Measure, ScalarKernel, Spectral, median_lengthscale
from dorff.kernels.scalar import scalar_from_config as scalar_from_config
from dorff.kernels.signature import FromSignature
from dorff.kernels.skeleton import (
    AngleSpec,
    BlockSpec,
    CategorySpec,
    Layer,
    Skeleton,
    SkeletonNode,
    SkeletonSpec,
    SpaceSpec,
    SphereSpec,
)
from dorff.kernels.spaces import Angle, Category, ColumnBlock, Sign, Sphere
from dorff.kernels.spectral import SpectralDensity, Tabulated
from dorff.kernels.stretched import Cauchy, Isotropic, Laplacian, Product
from dorff.spec.kernel import DecomposableSpec, MultiViewSpec, SumSpec, VectorFieldSpec
from dorff.spec.part import LengthscaleSpec
from dorff.spec.registry import KERNELS, SCALARS, SPACES, Entry, kind_of

_BOOK = "Rasmussen & Williams 2006"
_MIXTURE = "(1 + |x − z|² / 2αs²)^−α"

SCALARS.add(
    Entry("gaussian", Gaussian, LengthscaleSpec, "exp(−|x − z|² / 2s²)", "Rahimi & Recht 2007"),
    Entry("laplacian", Laplacian, LengthscaleSpec, "exp(−|x − z|₁ / s)", "Rahimi & Recht 2007"),
    Entry("matern", Matern, MaternSpec, "Matérn of |x − z| / s", f"{_BOOK}, eq. 4.14"),
    Entry("cauchy", Cauchy, LengthscaleSpec, "∏ 1 / (1 + (xᵢ − zᵢ)² / s²)", "Rahimi & Recht 2007"),
    Entry("rational_quadratic", RationalQuadratic, RationalQuadraticSpec, _MIXTURE, f"{_BOOK}, eq. 4.19"),
    *ENTRIES,
    Entry(
        "skeleton",
        Skeleton,
        SkeletonSpec,
        "σ̂ᵥ(meanᵤ kᵤ), v a skeleton's output",
        "Daniely, Frostig, Gupta & Singer 2017",
    ),
)


_PAPER = "Daniely, Frostig, Gupta & Singer 2017"
SPACES.add(
    Entry("angle", Angle, AngleSpec, "cos((x − z) / s)", f"{_PAPER}, example 2"),
    Entry("sign", Sign, SpaceSpec, "x z, of −1 and 1", f"{_PAPER}, example 1"),
    Entry("category", Category, CategorySpec, "1 where x = z, else 0", f"{_PAPER}, example 4"),
    Entry("sphere", Sphere, SphereSpec, "x · z / (|x| |z|)", f"{_PAPER}, examples 5, 6"),
    Entry("block", ColumnBlock, BlockSpec, "k(x, z)", f"{_PAPER}, example 3"),
)


def from_config(config: Mapping[str, Any]) -> OperatorKernel:
    """The operator kernel that `OperatorKernel.config` (or a job's `kernel:`) describes. InputError: unknown type."""
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
