"""Kernels: the mathematical objects, with exact values and spectra."""

from dorff.kernels.explicit import Mercer, Polynomial
from dorff.kernels.grammar import from_config, scalar_from_config
from dorff.kernels.isotropic import Gaussian, Matern, RationalQuadratic
from dorff.kernels.multi_view import MultiView, View
from dorff.kernels.operator import BaseKernel, Decomposable, OperatorKernel, Sum, mixture
from dorff.kernels.output import Covariance, Factor, Graph, Identity, Learned, Matrix, Output, Simplex
from dorff.kernels.pointwise import ArcCosine, Pointwise
from dorff.kernels.scalar import (
    Activation,
    GaussianWeighted,
    Measure,
    ScalarKernel,
    Spectral,
    median_lengthscale,
)
from dorff.kernels.signature import FromSignature
from dorff.kernels.spectral import SpectralDensity
from dorff.kernels.stretched import Cauchy, Isotropic, Laplacian, Product
from dorff.kernels.tabulated import Tabulated
from dorff.kernels.vector_fields import CurlFree, DivergenceFree
