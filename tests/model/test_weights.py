"""Operator weights: psi^T psi is the importance ratio, and the features' gram is the kernel on average."""

import numpy as np
import pytest
from cases import MEASURES, SAMPLERS, assert_mean, every_kernel, feature_matrix, positive, weights_of
from scipy import stats

from dorff import frequencies, kernels
from dorff.model.weights import effective_sample_size

samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=["iid", "orthogonal"])


def spectrum(kernel, omega, p):
    """mu(omega) (D, p, p), each term from its formula: Minh's eq. 35 and 36, and rho_0 A."""
    D, d = omega.shape
    total = np.zeros((D, p, p))
    for weight, term in kernel.terms():
        scales = np.broadcast_to(term.scalar.lengthscale, (d,)).astype(float)
        rho_0 = stats.multivariate_normal(np.zeros(d), np.diag(scales**-2)).pdf(omega)
        outer = omega[:, :, None] * omega[:, None, :]
        if isinstance(term, kernels.CurlFree):
            M = outer
        elif isinstance(term, kernels.DivergenceFree):
            M = np.sum(omega**2, axis=1)[:, None, None] * np.eye(d) - outer
        else:
            M = np.broadcast_to(term.output.matrix(p), (D, p, p))
        total += weight * rho_0[:, None, None] * M
    return total


CASES = [(f"{name} {d}->{p}", kernel, d, p) for d, p in [(2, 2), (3, 3), (2, 4), (3, 1)]
         for name, kernel in every_kernel(d, p)]  # fmt: skip
cases = pytest.mark.parametrize(("kernel", "d", "p"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])


@cases
def test_psi_is_a_root_of_the_importance_ratio(kernel, d, p):
    kernel = kernel.fix(d, p)
    found = frequencies.Orthogonal().draw(kernel, d=d, p=p, count=11, seed=0)
    psi = weights_of(kernel, found).psi
    assert psi.shape[0] == 22 and psi.shape[2] == p and psi.shape[1] <= p
    np.testing.assert_array_equal(psi[:11], psi[11:])  # cosines and sines of one frequency share it
    ratio = spectrum(kernel, found.omega, p) / np.exp(found.log_density)[:, None, None]
    size = np.abs(ratio).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(np.einsum("arp,arq->apq", psi[:11], psi[:11]) / size, ratio / size, atol=1e-12)


def test_terms_of_one_scalar_kernel_keep_their_weights():
    g, A, B = kernels.Gaussian(0.5), positive(3, 3), positive(3, 1)
    kernel = (4.0 * kernels.Decomposable(g, A) + 0.25 * kernels.Decomposable(g, B)).fix(2, 3)
    drawn = frequencies.Orthogonal().draw(kernel, d=2, p=3, count=5, seed=0)
    psi = np.broadcast_to(weights_of(kernel, drawn).psi, (10, 3, 3))[:5]
    ratio = spectrum(kernel, drawn.omega, 3) / np.exp(drawn.log_density)[:, None, None]
    np.testing.assert_allclose(np.einsum("arp,arq->apq", psi, psi), ratio, rtol=1e-10, atol=1e-12 * ratio.max())


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("measure", MEASURES)
def test_ranks_are_those_of_the_design(p, measure):
    g = kernels.Gaussian(0.5)
    curl, div = kernels.CurlFree(g, measure), kernels.DivergenceFree(g, measure)
    three = curl + div * 2.0 + kernels.Decomposable(kernels.Gaussian(1.0))
    expected = {curl: 1, div: p - 1, 0.2 * curl + 0.8 * div: p, 0.0 * curl + div: p - 1, three: p,
                kernels.Decomposable(g): p, kernels.Decomposable(g, positive(p, 1)): 1,
                kernels.Decomposable(g, positive(p, p - 1)): p - 1}  # fmt: skip
    for kernel, rank in expected.items():
        fixed = kernel.fix(p, p)
        found = frequencies.IID().draw(fixed, d=p, p=p, count=9, seed=0)
        assert weights_of(fixed, found).shape == (18, rank, p)


def test_divergence_free_roots_are_orthonormal_and_hold_at_every_frequency():
    kernel = kernels.DivergenceFree(kernels.Gaussian(1.0))
    along = np.concatenate(
        [np.eye(3), -np.eye(3), 1e-9 * np.eye(3), [[-1e-12, 1.0, 0.0], [1.0, 1e-9, -2e-9]], np.zeros((1, 3))]
    )
    root = kernel.root(along)
    squared = np.sum(along**2, axis=1)[:, None, None]
    np.testing.assert_allclose(root @ root.transpose(0, 2, 1), squared * np.eye(2), atol=1e-15)
    np.testing.assert_allclose(np.einsum("arp,ap->ar", root, along), 0.0, atol=1e-15)


@pytest.mark.statistical
@samplers
@cases
def test_mean_gram_is_the_kernel(sampler, kernel, d, p):
    """Unbiased: the mean over draws of Phi(x)* Phi(z) is K(x, z) within five of its standard errors."""
    kernel = kernel.fix(d, p)
    X = np.array([np.zeros(d), 0.4 * np.arange(1, d + 1), -0.7 * np.ones(d)])
    grams = []
    for seed in range(150):
        found = sampler.draw(kernel, d=d, p=p, count=4 * d + 1, seed=seed)
        Phi = feature_matrix(kernel, found, X)
        grams.append(np.einsum("npa,kqa->nkpq", Phi, Phi))
    assert_mean(grams, kernel.gram(X, X))


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("field", [kernels.CurlFree, kernels.DivergenceFree])
def test_trace_measure_has_the_least_variance(field, d):
    """At points one by one, and in Minh's Frobenius norm over pairs of a sample."""
    g, rng, D = kernels.Gaussian(1.0), np.random.default_rng(0), 20000
    deltas = np.concatenate([np.zeros((1, d)), 0.5 * rng.standard_normal((20, d))])
    variance = {}
    for measure in MEASURES:
        kernel = field(g, measure)
        found = frequencies.IID().draw(kernel, d=d, p=d, count=D, seed=1)
        psi = weights_of(kernel, found).psi[:D]
        size = np.sum(np.einsum("arp,arq->apq", psi, psi) ** 2, axis=(1, 2))
        second = np.cos(deltas @ found.omega.T) ** 2 @ size / D
        exact = kernel.gram(deltas, np.zeros((1, d)))[:, 0]
        variance[measure] = second - np.sum(exact**2, axis=(1, 2))
    assert np.all(variance["trace"] <= variance["unbounded"])
    assert variance["trace"].mean() < variance["bounded"].mean()
    if d == 6:  # DESIGN 8: the half split has more variance than rho_0 itself from d = 6
        assert variance["bounded"][0] > variance["unbounded"][0]


def test_effective_sample_size():
    D, d = 40000, 2
    g = kernels.Gaussian(1.0)
    found = frequencies.IID().draw(kernels.Decomposable(g), d=d, p=1, count=D, seed=0)

    def size(kernel):
        return effective_sample_size(kernel.fix(d, kernel_outputs(kernel)), (found.omega, found.log_density, None))

    def kernel_outputs(kernel):
        return d if kernel.vector_field else 1

    assert size(kernels.Decomposable(g)) == pytest.approx(D)
    for ratio in (0.9, 1.2, 1.5):  # DESIGN 1, consequence 3
        expected = (2 * ratio**2 - 1) ** (d / 2) / ratio ** (2 * d) * D
        assert size(kernels.Decomposable(kernels.Gaussian(ratio))) == pytest.approx(expected, rel=0.03)
    # Curl-free from rho_0: u = |omega|^2 / d, E u^2 = (d + 2) / d.
    assert size(kernels.CurlFree(g)) == pytest.approx(D * d / (d + 2), rel=0.03)
    trace = frequencies.IID().draw(kernels.CurlFree(g), d=d, p=d, count=100, seed=0)
    assert effective_sample_size(kernels.CurlFree(g), (trace.omega, trace.log_density, None)) == pytest.approx(100)
