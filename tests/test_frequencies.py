"""Frequencies: the laws of radii and directions, determinism, and the density of a mixture."""

import numpy as np
import pytest
from cases import MEASURES, SAMPLERS, every_kernel
from scipy import stats

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.frequencies.independent import directions, orthogonal_directions

S = 0.4  # lengthscale
samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=["iid", "orthogonal"])


def radius_law(measure, d):
    """The laws of |omega| s for the isotropic Gaussian: Minh's eq. 37, 39 and 54."""
    return {"unbounded": stats.chi(d), "trace": stats.chi(d + 2), "bounded": stats.chi(d, scale=np.sqrt(2))}[measure]


def within(values, expected, sigmas=5.0):
    """Whether the mean over the first axis is the expected one, by its own standard error."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - expected), sigmas * error + 1e-12)


@samplers
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("d", [2, 3, 7])
def test_radii_follow_their_law(sampler, measure, d):
    kernel = kernels.CurlFree(kernels.Gaussian(S), measure)
    found = sampler.draw(kernel, d=d, p=d, count=4000, seed=d)
    radii = np.linalg.norm(found.omega, axis=1) * S
    assert stats.kstest(radii, radius_law(measure, d).cdf).pvalue > 1e-3
    for other in MEASURES:  # the test tells the laws apart
        if other != measure:
            assert stats.kstest(radii, radius_law(other, d).cdf).pvalue < 1e-6


@samplers
def test_anisotropic_frequencies_are_normal_with_a_scale_per_input(sampler):
    scales = np.array([0.1, 1.0, 10.0])
    kernel = kernels.Decomposable(kernels.Gaussian(scales))
    omega = sampler.draw(kernel, d=3, p=2, count=4000, seed=0).omega * scales
    for column in omega.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert stats.kstest(np.linalg.norm(omega, axis=1), stats.chi(3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("draw", [directions, orthogonal_directions])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_directions_are_uniform_on_the_sphere(draw, d):
    rng = np.random.default_rng(d)
    blocks = np.array([draw(rng, d, d) for _ in range(3000)])
    np.testing.assert_allclose(np.linalg.norm(blocks, axis=2), 1.0, rtol=1e-12)
    # Each place in a block by itself: QR without its signs undone is uniform only on the whole.
    within(blocks, 0.0)
    within(np.einsum("bki,bkj->bkij", blocks, blocks), np.eye(d) / d)
    within(blocks**4, 3.0 / (d * (d + 2)))
    within(blocks**3, 0.0)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_orthogonal_blocks_are_haar(d):
    rng = np.random.default_rng(d)
    omega = orthogonal_directions(rng, 2 * d + 1, d)
    assert omega.shape == (2 * d + 1, d)
    for start in (0, d):
        block = omega[start : start + d]
        np.testing.assert_allclose(block @ block.T, np.eye(d), atol=1e-12)
    assert np.linalg.norm(omega[0] @ omega[d : 2 * d].T) == pytest.approx(1.0)  # but blocks are independent
    assert np.abs(omega[0] @ omega[d : 2 * d].T).max() < 1 - 1e-3
    blocks = np.array([orthogonal_directions(rng, d, d).ravel() for _ in range(4000)])
    within(np.einsum("bi,bj->bij", blocks, blocks), np.eye(d * d) / d)


@samplers
def test_frequencies_depend_on_the_seed_and_the_kernel_alone(sampler):
    g = kernels.Gaussian(S)
    curl, div = kernels.CurlFree(g), kernels.DivergenceFree(g)

    def draw(kernel, seed=3, count=50):
        return sampler.draw(kernel, d=2, p=2, count=count, seed=seed)

    first = draw(curl)
    np.random.default_rng(0).standard_normal(10)
    again = draw(kernels.from_config(curl.config()))
    np.testing.assert_array_equal(first.omega, again.omega)
    np.testing.assert_array_equal(first.log_density, again.log_density)
    assert not np.any(first.omega == draw(curl, seed=4).omega)
    # Helmholtz weights are a matter of psi: the same frequencies and density for all of them.
    for a in (0.0, 0.1, 0.5, 1.0):
        helmholtz = draw(a * curl + (1 - a) * div)
        np.testing.assert_array_equal(first.omega, helmholtz.omega)
        np.testing.assert_array_equal(first.log_density, helmholtz.log_density)
    assert first.omega.flags.c_contiguous and first.omega.dtype == np.float64


def density(measure, s, omega):
    """The measures of Minh's section 3.3-3.4 for the Gaussian, from SciPy's normal density."""
    d = omega.shape[1]
    if measure == "bounded":
        return stats.multivariate_normal(np.zeros(d), 2 / s**2 * np.eye(d)).pdf(omega)
    plain = stats.multivariate_normal(np.zeros(d), np.eye(d) / s**2).pdf(omega)
    return plain * (np.sum(omega**2, axis=1) * s**2 / d if measure == "trace" else 1.0)


@samplers
@pytest.mark.parametrize("measure", MEASURES)
def test_density_of_one_measure(sampler, measure):
    kernel = kernels.DivergenceFree(kernels.Gaussian(S), measure)
    found = sampler.draw(kernel, d=3, p=3, count=20, seed=0)
    np.testing.assert_allclose(np.exp(found.log_density), density(measure, S, found.omega), rtol=1e-10)
    grid = np.stack(np.meshgrid(*[np.linspace(-25, 25, 301)] * 2), axis=-1).reshape(-1, 2)
    volume = np.exp(kernel.scalar.log_density(grid, kernel.measure)).sum() * (50 / 300) ** 2
    assert volume == pytest.approx(1.0, abs=1e-10)


def mixture():
    """Shares tr k(0): curl 2 / 0.4^2 = 12.5; divergence-free 0.5 * 2 / 0.8^2 = 1.5625; decomposable 3 * 2 = 6."""
    return (kernels.CurlFree(kernels.Gaussian(0.4)) + 0.5 * kernels.DivergenceFree(kernels.Gaussian(0.8), "bounded")
            + 3.0 * kernels.Decomposable(kernels.Gaussian(0.4)))  # fmt: skip


@samplers
def test_density_of_a_mixture_is_that_of_the_shares_used(sampler):
    count = 23
    found = sampler.draw(mixture(), d=2, p=2, count=count, seed=1)
    shares = np.array([12.5, 1.5625, 6.0])
    exact = shares / shares.sum() * (count - 3)
    used = np.floor(exact).astype(int)
    used[np.argsort(exact - used)[::-1][: count - 3 - used.sum()]] += 1
    used += 1
    assert used.sum() == count
    parts = [density("trace", 0.4, found.omega), density("bounded", 0.8, found.omega),
             density("unbounded", 0.4, found.omega)]  # fmt: skip
    np.testing.assert_allclose(np.exp(found.log_density), used / count @ np.array(parts), rtol=1e-10)


@samplers
def test_mixture_is_drawn_from_the_density_it_states(sampler):
    """E[g / rho] = 1 for a test density g that rho covers."""
    target = stats.multivariate_normal([1.0, -1.0], np.eye(2))
    means = []
    for seed in range(400):
        found = sampler.draw(mixture(), d=2, p=2, count=23, seed=seed)
        means.append(np.mean(target.pdf(found.omega) / np.exp(found.log_density)))
    within(np.array(means), 1.0)


@samplers
def test_places_of_a_mixture_are_exchangeable(sampler):
    """Leaving out the last pairs must not leave out one of the spectra."""
    radii = [np.linalg.norm(sampler.draw(mixture(), d=2, p=2, count=12, seed=s).omega, axis=1) for s in range(400)]
    late = np.array(radii)[:, 6:].mean(axis=1) - np.array(radii)[:, :6].mean(axis=1)
    within(late, 0.0)


@samplers
def test_every_spectrum_gets_a_frequency_or_an_error_says_how_many_are_needed(sampler):
    found = sampler.draw(mixture(), d=2, p=2, count=3, seed=0)
    assert np.all(np.isfinite(found.log_density)) and found.omega.shape == (3, 2)
    with pytest.raises(InputError, match="n_features to 6 or more"):
        sampler.draw(mixture(), d=2, p=2, count=2, seed=0)


@samplers
def test_every_kernel_has_a_finite_density_at_its_frequencies(sampler):
    for name, kernel in every_kernel(3, 3):
        found = sampler.draw(kernel, d=3, p=3, count=16, seed=0)
        assert found.omega.shape == (16, 3) and np.all(np.isfinite(found.log_density)), name


def test_config_of_samplers():
    more = (frequencies.SORF(), frequencies.ROM(blocks=2), frequencies.Fastfood(), frequencies.QMC("halton", False),
            frequencies.GaussQuadrature(points=5), frequencies.Quadrature((1, 3), mixing="haar", radii="shared"),
            frequencies.Quadrature(centre="redraw"))  # fmt: skip
    for sampler in (*SAMPLERS, *more):
        assert frequencies.from_config(sampler.config()) == sampler
    with pytest.raises(InputError, match="'laguerre' is not known; use one of: iid, orthogonal"):
        frequencies.from_config({"type": "laguerre"})
    with pytest.raises(InputError, match="blocs"):
        frequencies.from_config({"type": "rom", "blocs": 2})


@samplers
def test_kernels_of_one_recipe_have_the_same_frequencies(sampler):
    """The recipe is what a plan is named by: it must hold all that the frequencies depend on."""
    g = kernels.Gaussian(S)
    curl, div = kernels.CurlFree(g), kernels.DivergenceFree(g)
    others = [0.2 * curl + 0.8 * div, kernels.CurlFree(g, "unbounded"), kernels.CurlFree(kernels.Gaussian(2 * S)), div]
    for other in others:
        alike = sampler.recipe(curl, d=2, p=2, count=8) == sampler.recipe(other, d=2, p=2, count=8)
        first, second = (sampler.draw(k, d=2, p=2, count=8, seed=0).omega for k in (curl, other))
        assert alike == np.array_equal(first, second)
    counts = [law["count"] for law in sampler.recipe(mixture(), d=2, p=2, count=23)]
    assert sum(counts) == 23 and min(counts) >= 1
