"""Kernels: the mathematical objects, with exact values and spectra."""

from dorff.kernels.explicit import Mercer, MercerSpec, Polynomial, PolynomialSpec
from dorff.kernels.grammar import from_config, scalar_from_config
from dorff.kernels.isotropic import Gaussian, Matern, MaternSpec, RationalQuadratic, RationalQuadraticSpec
from dorff.kernels.multi_view import MultiView, View
from dorff.kernels.operator import BaseKernel, Decomposable, OperatorKernel, Sum, mixture
from dorff.kernels.output import Covariance, Factor, Graph, Identity, Learned, Matrix, Output, Simplex
from dorff.kernels.pointwise import ArcCosine, ArcCosineSpec, Pointwise, PointwiseSpec
from dorff.kernels.scalar import Activation, GaussianWeighted, Measure, ScalarKernel, Spectral, median_lengthscale
from dorff.kernels.signature import FromSignature
from dorff.kernels.spectral import SpectralDensity
from dorff.kernels.stretched import Cauchy, Isotropic, Laplacian, Product
from dorff.kernels.tabulated import Tabulated
from dorff.kernels.vector_fields import CurlFree, DivergenceFree
from dorff.spec.part import LengthscaleSpec
from dorff.spec.registry import SCALARS, Entry

_DOUBLE = "2 E φ(w·x) φ(w·z), φ a step (order 0) or a ramp (order 1)"

SCALARS.add(
    Entry("gaussian", Gaussian, LengthscaleSpec, "exp(−|x − z|² / 2s²)", "Rahimi & Recht 2007"),
    Entry("laplacian", Laplacian, LengthscaleSpec, "exp(−|x − z|₁ / s)", "Rahimi & Recht 2007"),
    Entry("matern", Matern, MaternSpec, "Matérn of |x − z| / s", "Rasmussen & Williams 2006, eq. 4.14"),
    Entry("cauchy", Cauchy, LengthscaleSpec, "∏ 1 / (1 + (xᵢ − zᵢ)² / s²)", "Rahimi & Recht 2007"),
    Entry(
        "rational_quadratic",
        RationalQuadratic,
        RationalQuadraticSpec,
        "(1 + |x − z|² / 2αs²)^−α",
        "Rasmussen & Williams 2006, eq. 4.19",
    ),
    Entry("arc_cosine", ArcCosine, ArcCosineSpec, _DOUBLE, "Cho & Saul 2009"),
    Entry("polynomial", Polynomial, PolynomialSpec, "(scale x·z + offset)^degree"),
    Entry("pointwise", lambda function: Pointwise(function), PointwiseSpec, "E φ(w·x) φ(w·z)", "Munkhoeva 2018"),
    Entry("mercer", Mercer.named, MercerSpec, "Σ λⱼ φⱼ(x) φⱼ(z)", "Mercer 1909"),
)
