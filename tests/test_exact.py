"""The exact model against scikit-learn, against the features' limit, and against the primal of a finite kernel."""

from dataclasses import dataclass

import numpy as np
import pytest
from cases import SAMPLERS, every_kernel, feature_matrix, moments_of, plain_map, rows
from sklearn.kernel_ridge import KernelRidge

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.exact import ExactRidge
from dorff.kernels import OperatorKernel
from dorff.solvers import Centred, Problem, solve
from dorff.weights import operator_weights

both = pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])


@pytest.mark.parametrize("p", [1, 3])
def test_independent_outputs_are_scikit_learns_kernel_ridge(p):
    """Minh's 1/l: scikit-learn's alpha is n times the ridge."""
    X, Y = rows(50, 2, p)
    Z, _ = rows(20, 2, p, seed=1)
    ridge, s = 1e-3, 0.8
    peer = KernelRidge(alpha=50 * ridge, kernel="rbf", gamma=1 / (2 * s**2)).fit(X, Y)
    ours = ExactRidge.fit(kernels.Decomposable(kernels.Gaussian(s)), X, Y, ridge=ridge, intercept=False)
    np.testing.assert_allclose(ours.predict(Z), peer.predict(Z).reshape(20, p), rtol=1e-9, atol=1e-11)
    assert not ours.intercept.any()


@pytest.mark.parametrize(("name", "kernel"), list(every_kernel(2, 2)), ids=[name for name, _ in every_kernel(2, 2)])
def test_intercept_is_least_squares_and_free(name, kernel):
    """It solves K a + b = y - n ridge a with sum a = 0: targets moved by a constant move b alone."""
    X, Y = rows(30, 2, 2)
    first = ExactRidge.fit(kernel, X, Y, ridge=1e-2)
    second = ExactRidge.fit(kernel, X, Y + np.array([5.0, -7.0]), ridge=1e-2)
    np.testing.assert_allclose(first.dual.sum(axis=0), 0.0, atol=1e-9 * np.abs(first.dual).max())
    np.testing.assert_allclose(second.dual, first.dual, atol=1e-9 * np.abs(first.dual).max())
    np.testing.assert_allclose(second.intercept - first.intercept, [5.0, -7.0], rtol=1e-9)
    np.testing.assert_allclose(first.predict(X) + 30 * 1e-2 * first.dual, Y, rtol=1e-8, atol=1e-9)


@dataclass(frozen=True)
class Finite(OperatorKernel):
    """The kernel of a finite set of features: Phi(x)* Phi(z)."""

    kernel: OperatorKernel
    found: frequencies.Frequencies

    def gram(self, X, Z):
        left, right = feature_matrix(self.kernel, self.found, X), feature_matrix(self.kernel, self.found, Z)
        return np.einsum("npa,kqa->nkpq", left, right)

    def terms(self):
        return self.kernel.terms()

    def config(self):
        return self.kernel.config()

    def fix(self, d, p, covariance=None):
        return Finite(self.kernel.fix(d, p, covariance), self.found)


def primal(kernel, found, X, Y, ridge, intercept):
    """The fitted function of the moments' way."""
    psi = operator_weights(kernel, found.omega, found.log_density)
    features = plain_map(found.omega)
    centred = Centred.of(moments_of(features, X, Y, y0=Y.mean(axis=0)), intercept=intercept)
    W = solve(Problem.of(centred, psi), [ridge])[0].combined(psi)
    return lambda Z: features.transform(Z) @ W + centred.bias(W)


@both
@pytest.mark.parametrize("d", [2, 3])
def test_primal_is_the_dual_of_its_own_finite_kernel(d, intercept):
    """Minh's eq. 74 against eq. 72, for every kernel and measure."""
    X, Y = rows(25, d, d)
    Z, _ = rows(10, d, d, seed=2)
    for name, kernel in every_kernel(d, d):
        fixed = kernel.fix(d, d)
        found = frequencies.Orthogonal().draw(fixed, d=d, p=d, count=20, seed=3)
        dual = ExactRidge.fit(Finite(fixed, found), X, Y, ridge=1e-3, intercept=intercept)
        function = primal(fixed, found, X, Y, 1e-3, intercept)
        np.testing.assert_allclose(function(Z), dual.predict(Z), rtol=1e-9, atol=1e-9, err_msg=name)


@both
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["iid", "orthogonal"])
@pytest.mark.parametrize("name", ["identity", "matrix", "helmholtz trace", "sum bounded"])
def test_many_features_tend_to_the_exact_model(name, sampler, intercept):
    """The mean over draws is within five standard errors, and sixteen times the features quarter the error."""
    kernel = dict(every_kernel(2, 2))[name].fix(2, 2)
    X, Y = rows(40, 2, 2)
    Z, _ = rows(15, 2, 2, seed=4)
    exact = ExactRidge.fit(kernel, X, Y, ridge=1e-2, intercept=intercept).predict(Z)

    def errors(count, draws):
        found = (sampler.draw(kernel, d=2, p=2, count=count, seed=seed) for seed in range(draws))
        return np.array([primal(kernel, this, X, Y, 1e-2, intercept)(Z) - exact for this in found])

    many, few = errors(256, 20), errors(16, 20)
    error = many.std(axis=0, ddof=1) / np.sqrt(len(many))
    bias = np.sqrt(np.mean(few**2)) * 16 / 256  # of order 1 / D
    np.testing.assert_array_less(np.abs(many.mean(axis=0)), 5 * error + bias)
    shrink = np.sqrt(np.mean(few**2) / np.mean(many**2))
    assert 2.5 < shrink < 6  # 4 = sqrt(256 / 16), but for the terms of order 1 / D


def test_covariance_is_that_of_the_targets():
    X, Y = rows(20, 2, 3)
    fitted = ExactRidge.fit(kernels.Decomposable(kernels.Gaussian(0.7), "covariance"), X, Y, ridge=1e-2)
    np.testing.assert_allclose(fitted.kernel.terms()[0][1].output, np.cov(Y.T, bias=True), rtol=1e-10)


def test_bad_input():
    X, Y = rows(10, 2, 3)
    with pytest.raises(InputError, match="10 rows but Y has 9"):
        ExactRidge.fit(kernels.Decomposable(kernels.Gaussian(1.0)), X, Y[:9], ridge=1e-2)
    with pytest.raises(InputError, match=r"d = 2 .*p = 3"):
        ExactRidge.fit(kernels.CurlFree(kernels.Gaussian(1.0)), X, Y, ridge=1e-2)
