"""What a solve needs besides moments, and what it makes of the moments of any rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dorff.kernels import OperatorKernel
from dorff.moments import FloatArray, Moments
from dorff.solvers.problem import Centred, Problem, target_covariance
from dorff.weights import constant_weights, operator_weights


@final
@dataclass(frozen=True, eq=False)
class Setting:
    """A kernel on m features of d inputs, and how targets are treated.

    `density` holds the features' frequencies omega (D, d) and the log density (D,) they were drawn from; None where
    they have none, and then the kernel must be one scalar kernel times a matrix. Used for all rows, and for each
    fold's training rows, from which alone the target scale and a covariance come.
    """

    kernel: OperatorKernel
    d: int
    m: int
    density: tuple[FloatArray, FloatArray] | None
    standardize: bool
    intercept: bool

    def scaling(self, moments: Moments) -> FloatArray | None:
        """The targets' scale (q,): one for all where the kernel ties outputs to directions; None if not asked for."""
        if not self.standardize:
            return None
        return spread(np.diag(target_covariance(moments)), together=self.kernel.vector_field)

    def fixed(self, moments: Moments) -> OperatorKernel:
        """The kernel with its output matrices written out; a covariance is that of the scaled targets."""
        scale, covariance = self.scaling(moments), target_covariance(moments)
        covariance = covariance if scale is None else covariance / np.outer(scale, scale)
        return self.kernel.fix(self.d, moments.q, covariance)

    def weigh(self, moments: Moments) -> FloatArray:
        """psi (m, r, q)."""
        kernel = self.fixed(moments)
        psi = constant_weights(kernel, self.m)
        if psi is None:
            assert self.density is not None  # a sampler without densities draws for no other kernel
            psi = operator_weights(kernel, *self.density)
        return psi

    def problem(self, moments: Moments) -> Problem:
        """The linear system of these rows."""
        centred = Centred.of(moments, intercept=self.intercept, scale=self.scaling(moments))
        return Problem.of(centred, self.weigh(moments))


def spread(variances: FloatArray, *, together: bool) -> FloatArray:
    """Standard deviations, or one for all of them; 1 where a column does not vary."""
    if together:
        variances = np.full(len(variances), variances.mean())
    return np.sqrt(np.where(variances > 0, variances, 1.0))
