"""The exact model against scikit-learn, against the features' limit, and against the primal of a finite kernel."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from cases import SAMPLERS, every_kernel, feature_matrix, moments_of, plain_map, rows, weights_of
from places import benchmark
from sklearn.kernel_ridge import KernelRidge

from dorff import exact, frequencies, kernels
from dorff.errors import InputError
from dorff.exact import BLOCK_BYTES, ExactRidge
from dorff.kernels import OperatorKernel
from dorff.solvers import Problem, solve

exact_cost = benchmark("exact_cost").exact_cost
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
        return ((1.0, self),)

    def config(self):
        return self.kernel.config()

    def fix(self, d, p, covariance=None):
        return Finite(self.kernel.fix(d, p, covariance), self.found)


def primal(kernel, found, X, Y, ridge, intercept):
    """The fitted function of the moments' way."""
    features, weights = plain_map(found.omega), weights_of(kernel, found)
    problem = Problem.of(moments_of(features, X, Y, y0=Y.mean(axis=0)), weights, intercept=intercept)
    W = weights.combined(solve(problem, [ridge])[0].h)
    return lambda Z: features.transform(Z) @ W + problem.bias(W)


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


@pytest.mark.statistical
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


def fitted_kernel():
    return kernels.Decomposable(kernels.Gaussian(0.7), "covariance")


def test_covariance_is_that_of_the_targets():
    X, Y = rows(20, 2, 3)
    fitted = ExactRidge.fit(fitted_kernel(), X, Y, ridge=1e-2)
    np.testing.assert_allclose(fitted.kernel.gram(X[:1], X[:1])[0, 0], np.cov(Y.T, bias=True), rtol=1e-10)
    w, Z = np.arange(20.0), Y.copy()
    Z[3, 1] = np.nan
    weighted = ExactRidge.fit(fitted_kernel(), X, Z, ridge=1e-2, weights=w)
    expected = np.cov(np.delete(Y, 3, axis=0).T, bias=True, aweights=np.delete(w, 3))
    np.testing.assert_allclose(weighted.kernel.gram(X[:1], X[:1])[0, 0], expected, rtol=1e-10)


def missing(Y, seed=0):
    """Some entries NaN, among them a whole row and a whole row but one."""
    Y = Y.copy()
    Y[np.random.default_rng(seed).random(Y.shape) < 0.2] = np.nan
    Y[2], Y[5, 1:] = np.nan, np.nan
    return Y


def observation(q, p, seed=0):
    return np.random.default_rng(seed).standard_normal((q, p))


SHAPES = [(1, 3), (3, 3), (5, 3)]
KERNELS = ["matrix", "deficient", "two scalars", "curl trace", "div unbounded", "helmholtz trace"]
some_kernels = pytest.mark.parametrize("name", KERNELS)


@some_kernels
@pytest.mark.parametrize(("q", "p"), SHAPES)
def test_equation_72_as_printed(name, q, p):
    """Its system is not symmetric, has a row for each unlabelled point and C*C in place of C: f is the same."""
    kernel = dict(every_kernel(p, p))[name].fix(p, p)
    l, u, ridge, C = 20, 6, 1e-3, observation(q, p)  # noqa: E741 - the paper's symbol
    X, Y = rows(l + u, p, q)
    K = kernel.gram(X, X).transpose(0, 2, 1, 3).reshape((l + u) * p, -1)
    J = np.diag(np.arange(l + u) < l).astype(float)
    left = np.kron(J, C.T @ C) @ K + l * ridge * np.eye(len(K))
    a = np.linalg.solve(left, np.kron(np.eye(l + u, l), C.T) @ Y[:l].ravel())
    Y[l:] = np.nan
    ours = ExactRidge.fit(kernel, X, Y, ridge=ridge, intercept=False, observe=C)
    Z, _ = rows(12, p, q, seed=3)
    printed = np.einsum("nkpq,kq->np", kernel.gram(Z, X), a.reshape(-1, p))
    np.testing.assert_allclose(ours.predict(Z), printed, atol=1e-10 * np.abs(printed).max())
    assert not ours.dual[l:].any()


@both
@some_kernels
@pytest.mark.parametrize(("q", "p"), SHAPES)
def test_least_among_the_functions_of_finite_features(name, q, p, intercept):
    """Dense least squares over h and b, the norm of h as rows of its own; some entries missing, rows weighted."""
    kernel = dict(every_kernel(p, p))[name].fix(p, p)
    found = frequencies.IID().draw(kernel, d=p, p=p, count=15, seed=1)
    X, Y = rows(30, p, q)
    Y, w, C, ridge = missing(Y), np.random.default_rng(1).uniform(0.0, 2.0, 30), observation(q, p), 1e-3
    w[7] = 0.0
    ours = ExactRidge.fit(Finite(kernel, found), X, Y, ridge=ridge, intercept=intercept, observe=C, weights=w)
    Phi = feature_matrix(kernel, found, X)
    Phi = np.concatenate([Phi, np.broadcast_to(np.eye(p) * intercept, (30, p, p))], axis=2)
    seen = ~np.isnan(Y)
    l = w[seen.any(axis=1)].sum()  # noqa: E741 - the paper's symbol
    root = np.sqrt(np.broadcast_to(w[:, None], Y.shape)[seen])
    data = (C @ Phi)[seen] * root[:, None]
    norm = np.sqrt(l * ridge) * np.eye(Phi.shape[2])[:-p]
    h, *_ = np.linalg.lstsq(np.vstack([data, norm]), np.append(Y[seen] * root, np.zeros(len(norm))), rcond=1e-12)
    Z, _ = rows(12, p, q, seed=3)
    values = feature_matrix(kernel, found, Z) @ h[:-p] + h[-p:] * intercept
    np.testing.assert_allclose(ours.predict(Z), values, atol=1e-7 * np.abs(values).max())
    np.testing.assert_allclose(ours.intercept, h[-p:] * intercept, atol=1e-7 * np.abs(values).max())


@both
@pytest.mark.parametrize("name", ["identity", "matrix", "deficient"])
@pytest.mark.parametrize(("q", "p"), SHAPES)
def test_one_scalar_kernel_is_solved_eigenvalue_by_eigenvalue(name, q, p, intercept):
    """The same as the dense system's, weighted and observed through C; a sum of two of them is one as well."""
    single = dict(every_kernel(2, p))[name]
    kernel = (single + kernels.Decomposable(single.scalar) * 0.3).fix(2, p)
    X, Y = rows(25, 2, q)
    w, C = np.random.default_rng(1).uniform(0.5, 2.0, 25), observation(q, p)
    fits = [
        ExactRidge.fit(this, X, Y, ridge=1e-3, intercept=intercept, observe=C, weights=w)
        for this in (kernel, Plain(kernel))
    ]
    np.testing.assert_allclose(fits[0].dual, fits[1].dual, atol=1e-9 * np.abs(fits[1].dual).max())
    np.testing.assert_allclose(fits[0].predict(X[:9] + 0.1), fits[1].predict(X[:9] + 0.1), rtol=1e-9, atol=1e-10)


@dataclass(frozen=True)
class Plain(OperatorKernel):
    """A kernel that does not tell what it is made of."""

    kernel: OperatorKernel

    def gram(self, X, Z):
        return self.kernel.gram(X, Z)

    def terms(self):
        return ((1.0, self),)

    def config(self):
        return self.kernel.config()

    def fix(self, d, p, covariance=None):
        return Plain(self.kernel.fix(d, p, covariance))


@some_kernels
def test_whole_weights_are_repeated_rows(name):
    X, Y = rows(16, 3, 3)
    Y = missing(Y)
    times = np.arange(16) % 4
    kernel = dict(every_kernel(3, 3))[name]
    weighted = ExactRidge.fit(kernel, X, Y, ridge=1e-2, weights=times)
    repeated = ExactRidge.fit(kernel, X.repeat(times, axis=0), Y.repeat(times, axis=0), ridge=1e-2)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-8, atol=1e-9)


def test_stein_equation_of_brault_takes_n_times_lambda():
    """Eq. 12's condition phi phi* Theta B*B - phi Y* B + lambda Theta = 0, with N lambda of eq. 11 for its lambda."""
    rng = np.random.default_rng(0)
    X, Y = rows(30, 2, 3)
    B, scalar, ridge = rng.standard_normal((3, 2)), kernels.Gaussian(0.8), 1e-2
    kernel = kernels.Decomposable(scalar, B @ B.T).fix(2, 3)
    found = frequencies.IID().draw(kernel, d=2, p=3, count=20, seed=0)
    F = plain_map(found.omega).transform(X)
    exact = ExactRidge.fit(Finite(kernel, found), X, Y, ridge=ridge, intercept=False).predict(X)

    def stein(multiple):
        left = np.kron(F.T @ F, B.T @ B) + multiple * np.eye(F.shape[1] * 2)
        return F @ np.linalg.solve(left, (F.T @ Y @ B).ravel()).reshape(-1, 2) @ B.T

    np.testing.assert_allclose(stein(30 * ridge), exact, rtol=1e-9, atol=1e-10)
    assert np.abs(stein(ridge) - exact).max() > 0.05


@pytest.mark.parametrize(("name", "n"), [("curl trace", 700), ("matrix", 1500), ("identity", 1500)])
def test_peak_memory_is_within_the_estimate(name, n):
    """Of a fit of some megabytes: more than half of the estimate, less the blocks, is the matrices themselves."""
    kernel = dict(every_kernel(2, 2))[name].fix(2, 2)
    X, Y = rows(n, 2, 2)
    tracemalloc.start()
    try:
        ExactRidge.fit(kernel, X, Y, ridge=1e-2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = exact_cost(kernel, n, 2).bytes
    assert estimate - 2 * BLOCK_BYTES < peak + 8 * 20 * n < estimate


def test_numbers_that_nobody_wrote_are_not_computed_with(monkeypatch):
    """Rows in several blocks, and new memory full of NaN that signal: arithmetic with one is a warning."""
    X, Y = rows(40, 2, 2)
    plain = ExactRidge.fit(kernels.Decomposable(kernels.Gaussian(1.0)), X, Y, ridge=1e-2)
    new = np.empty

    def dirty(*args, **options):
        out = new(*args, **options)
        if out.dtype == np.float64:
            np.copyto(out, np.array(0x7FF0000000000001).view(np.float64))
        return out

    monkeypatch.setattr(exact, "BLOCK_BYTES", 64 * 40 * 10)
    monkeypatch.setattr(np, "empty", dirty)
    fitted = ExactRidge.fit(kernels.Decomposable(kernels.Gaussian(1.0)), X, Y, ridge=1e-2)
    np.testing.assert_allclose(fitted.dual, plain.dual, rtol=1e-12, atol=1e-12)


def test_flops_are_those_that_a_plain_cholesky_counts():
    """Operations of the textbook loops: of a factor, and for each target of triangular solves for it and the ones."""
    n, p, factor = 600, 3, 0
    for j in range(n):  # the entries of column j: j products taken off each, then the root or a division
        factor += (2 * j + 1) * (n - j)
    solves = p * (1 + p) * 2 * sum(2 * i + 1 for i in range(n))
    cost = exact_cost(kernels.Decomposable(kernels.Gaussian(1.0)).fix(2, p), n, p).flops
    assert cost == pytest.approx(factor + solves, rel=5e-3)


def test_flops_are_those_of_the_factors():
    """A block system costs p^3 times the scalar one; k0 A a factor for each of A's distinct eigenvalues."""
    n, p, k0 = 10**5, 3, kernels.Gaussian(1.0)
    scalar, curl, distinct = (
        exact_cost(kernel.fix(p, p), n, p).flops
        for kernel in (kernels.Decomposable(k0), kernels.CurlFree(k0), kernels.Decomposable(k0, np.diag([1, 2, 3])))
    )
    assert curl / scalar == pytest.approx(p**3, rel=1e-2)
    assert distinct / scalar == pytest.approx(p, rel=1e-2)
    assert exact_cost(kernels.CurlFree(k0), n, p, observed=1).flops / scalar == pytest.approx(1, rel=1e-2)


def test_bad_input():
    X, Y = rows(10, 2, 3)
    kernel = kernels.Decomposable(kernels.Gaussian(1.0))
    with pytest.raises(InputError, match="10 rows but Y has 9"):
        ExactRidge.fit(kernel, X, Y[:9], ridge=1e-2)
    with pytest.raises(InputError, match=r"d = 2 .*p = 3"):
        ExactRidge.fit(kernels.CurlFree(kernels.Gaussian(1.0)), X, Y, ridge=1e-2)
    for observe in (np.ones((2, 3)), np.zeros((3, 3)), np.ones(3), np.full((3, 2), np.inf)):
        with pytest.raises(InputError, match=r"observe must be a finite matrix.*Y's 3 columns"):
            ExactRidge.fit(kernel, X, Y, ridge=1e-2, observe=observe)
    for weights in (np.ones(9), -np.ones(10), np.full(10, np.nan)):
        with pytest.raises(InputError, match="weights must be 10 numbers of 0 or more"):
            ExactRidge.fit(kernel, X, Y, ridge=1e-2, weights=weights)
    for bad in ((X * np.inf, Y), (X, Y * np.inf)):
        with pytest.raises(InputError, match="X must be finite, and Y finite or NaN"):
            ExactRidge.fit(kernel, *bad, ridge=1e-2)
    for nothing in ({"Y": Y * np.nan}, {"Y": Y, "weights": np.zeros(10)}):
        with pytest.raises(InputError, match="no observed value"):
            ExactRidge.fit(kernel, X, ridge=1e-2, **nothing)
    with pytest.raises(InputError, match="ridge must be a number of 0 or more"):
        ExactRidge.fit(kernel, X, Y, ridge=-1.0)
    for singular in (kernel, kernels.Decomposable(kernels.Gaussian(1.0)) + kernels.Decomposable(kernels.Gaussian(2))):
        with pytest.raises(InputError, match=r"singular to rounding.*larger ridge"):
            ExactRidge.fit(singular, np.zeros((10, 2)), Y, ridge=0.0)
    with pytest.raises(InputError, match="covariance"):
        ExactRidge.fit(fitted_kernel(), X, Y, ridge=1e-2, observe=np.ones((3, 2)))
