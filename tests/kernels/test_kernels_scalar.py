"""Scalar kernels: values against independent formulas, spectra against their kernels, and what is refused."""

import json
import math
import pickle
import re
import tracemalloc

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import erf, gammaln
from sklearn.gaussian_process import kernels as twins
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel

from dorff import kernels
from dorff.errors import InputError
from dorff.kernels import Measure
from dorff.kernels.isotropic import log_matern

SCALES = (0.6, 0.8, 1.0, 1.3, 2.0)  # d = 5
SPECTRAL = (
    kernels.Gaussian(0.7),
    kernels.Gaussian(SCALES),
    kernels.Matern(1.1, nu=0.5),
    kernels.Matern(SCALES, nu=2.2),
    kernels.Matern(0.9, nu=1.6),
    kernels.Matern(0.9, nu=60.0),
    kernels.RationalQuadratic(0.8, alpha=0.6),
    kernels.RationalQuadratic(SCALES, alpha=2.5),
    kernels.Laplacian(1.5),
    kernels.Laplacian(SCALES),
    kernels.Cauchy(0.9),
    kernels.Cauchy(SCALES),
)
POINTWISE = tuple(
    kernels.Pointwise(name) for name in ("step", "relu", "erf", "tanh", "sigmoid", "softplus", "sin", "cos")
)
WEIGHTED = (kernels.ArcCosine(0), kernels.ArcCosine(1), *POINTWISE)
EXPLICIT = (kernels.Polynomial(3), kernels.Polynomial(2, offset=0.0, scale=0.5))
STORED = (*SPECTRAL, *WEIGHTED, *EXPLICIT, kernels.Mercer.named("brownian", 40), kernels.Mercer.named("bridge", 3))


#: What cannot be derived twice.
ROUGH = (kernels.Laplacian(1.5), kernels.Laplacian(SCALES), kernels.Matern(1.1, nu=0.5), kernels.Matern(0.7, nu=1.0))
SMOOTH = tuple(kernel for kernel in SPECTRAL if kernel not in ROUGH)


def measures(kernel):
    """The measures that a spectral kernel has."""
    if isinstance(kernel, kernels.Laplacian) or (isinstance(kernel, kernels.Matern) and kernel.nu <= 1):
        return (Measure.UNBOUNDED,)
    bounded = (Measure.bounded(), Measure.bounded(0.2)) if isinstance(kernel, kernels.Gaussian) else ()
    return (Measure.UNBOUNDED, Measure.TRACE, Measure.DEFENSIVE, *bounded)


def inputs(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((2, n, d))


def name(value):
    """An id that is the same in every process: no addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    ("kernel", "twin"),
    [
        *((kernels.Matern(0.7, nu=nu), twins.Matern(0.7, nu=nu)) for nu in (0.2, 0.5, 0.8, 1.5, 2.5, 3.7, 12.0)),
        (kernels.Matern(SCALES, nu=1.5), twins.Matern(SCALES, nu=1.5)),
        (kernels.Matern(SCALES, nu=0.9), twins.Matern(SCALES, nu=0.9)),
        (kernels.RationalQuadratic(0.7, alpha=0.4), twins.RationalQuadratic(0.7, 0.4)),
        (kernels.RationalQuadratic(1.7, alpha=5.0), twins.RationalQuadratic(1.7, 5.0)),
        (kernels.Gaussian(SCALES), twins.RBF(SCALES)),
        (kernels.Laplacian(0.8), lambda X, Z: laplacian_kernel(X, Z, gamma=1 / 0.8)),
        (kernels.Laplacian(SCALES), lambda X, Z: laplacian_kernel(X / SCALES, Z / SCALES, gamma=1)),
        (kernels.Cauchy(SCALES), lambda X, Z: np.prod(1 / (1 + ((X[:, None] - Z) / SCALES) ** 2), axis=2)),
        (kernels.Polynomial(3), lambda X, Z: polynomial_kernel(X, Z, degree=3, gamma=1, coef0=1)),
        (
            kernels.Polynomial(4, offset=0.5, scale=0.3),
            lambda X, Z: polynomial_kernel(X, Z, degree=4, gamma=0.3, coef0=0.5),
        ),
    ],
    ids=name,
)
def test_values_against_scikit_learn_and_formulas(kernel, twin):
    X, Z = inputs(12, 5)
    np.testing.assert_allclose(kernel.gram(X, Z), twin(X, Z), rtol=1e-10, atol=1e-12)
    assert kernel.gram(X, Z[:0]).shape == (12, 0)


@pytest.mark.parametrize("nu", [1.3, 2.5, 7.0, 30.2, 48.6, 49.5, 50.4, 51.2, 300.0, 1e5])
def test_matern_obeys_the_recurrence_of_bessel_functions(nu):
    """M_(v+1) = M_v + z^2 / (4 v (v - 1)) M_(v-1), from K_(v+1) = K_(v-1) + 2 v / z K_v."""
    z = np.concatenate([[0.0, 1e-200, 1e-9], np.geomspace(1e-4, 600, 60)])
    below, at, above = (np.exp(log_matern(order, z)) for order in (nu - 1, nu, nu + 1))
    np.testing.assert_allclose(above, at + z**2 / (4 * nu * (nu - 1)) * below, rtol=1e-12, atol=1e-13)
    assert at[0] == 1.0 and np.all(np.diff(at) <= 1e-12)


@pytest.mark.parametrize("nu", [1e-3, 0.5, 0.7, 2.5, 40.0, 49.9, 1e3, 1e9])
def test_matern_is_safe_at_no_distance_and_at_any(nu):
    kernel, zero = kernels.Matern(1.0, nu=nu), np.zeros((1, 1))
    far = np.array([[0.0], [1e-300], [1e-160], [1e-30], [1e-3], [1.0], [1e3], [1e100]])
    values = kernel.gram(far, zero)[:, 0]
    assert values[0] == 1.0 and np.all(np.diff(values) <= 1e-12) and np.all(values >= 0) and values[-1] < 1e-8
    if nu == 1e9:  # the Gaussian is the limit
        np.testing.assert_allclose(values, kernels.Gaussian(1.0).gram(far, zero)[:, 0], atol=1e-9)


def test_products_vanish_quietly_where_they_are_small():
    zero = np.zeros((1, 600))
    for kernel in (kernels.Cauchy(1.0), kernels.Laplacian(1.0), kernels.Gaussian(1.0)):
        np.testing.assert_array_equal(kernel.gram(np.full((2, 600), 9.0), zero), 0.0)


def test_close_points_far_from_the_origin_keep_their_digits():
    X = 4096.0 + inputs(6, 5)[0]
    shift = 2.0**-30
    for kernel, slope in ((kernels.Matern(1.0, nu=0.5), math.sqrt(5)), (kernels.Laplacian(1.0), 5.0)):
        values = np.diag(kernel.gram(X, X + shift))
        np.testing.assert_allclose(1 - values, slope * shift, rtol=1e-4)
        np.testing.assert_array_equal(np.diag(kernel.gram(X, X)), 1.0)


@pytest.mark.parametrize("kernel", [*SPECTRAL[::2], *WEIGHTED, *EXPLICIT], ids=name)
def test_gram_matrices_never_hold_all_differences(kernel):
    d = 5 if not isinstance(getattr(kernel, "lengthscale", 1.0), float) else 300
    X, Z = inputs(300, d)
    kernel.gram(X[:2], Z[:2])
    tracemalloc.start()
    kernel.gram(X, Z)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * X.shape[0] ** 2 * 8 + 3 * 1024 * 2001 * 8  # with d columns of them: 300 times 720 kB


@pytest.mark.parametrize("kernel", [*SPECTRAL, *WEIGHTED, *EXPLICIT], ids=name)
def test_every_kernel_is_positive_semi_definite(kernel):
    X = 1.5 * inputs(20, 5)[0]
    X[10:] = X[:10]
    X[3], X[4] = -X[2], 0.0
    K = kernel.gram(X, X)
    np.testing.assert_allclose(K, K.T, atol=1e-13 * np.abs(K).max())
    values = np.linalg.eigvalsh(K)
    assert values[0] > -1e-12 * values[-1]
    if isinstance(kernel, kernels.Spectral):
        assert kernel.shift_invariant and np.all(np.diag(K) == 1.0)
    else:
        assert not kernel.shift_invariant


def scores(kernel, measure, omega, delta):
    """How many standard errors the mean of cos(omega . delta) rho_0 / rho is away from the kernel."""
    weight = np.exp(kernel.log_density(omega, Measure.UNBOUNDED) - kernel.log_density(omega, measure))
    samples = np.cos(delta @ omega.T) * weight
    error = samples.std(axis=1) / math.sqrt(len(omega))
    return np.abs(samples.mean(axis=1) - kernel.gram(delta, np.zeros((1, delta.shape[1])))[:, 0]) / error


@pytest.mark.parametrize(
    ("kernel", "measure"), [(kernel, measure) for kernel in SPECTRAL for measure in measures(kernel)], ids=name
)
def test_frequencies_have_the_spectrum_of_the_kernel(kernel, measure):
    rng, count, d = np.random.default_rng(4), 15_000, 5
    delta = inputs(8, d)[0] * np.geomspace(0.1, 1.0, 8)[:, None]
    assert np.max(scores(kernel, measure, kernel.draw(rng, count, d, measure), delta)) < 4.5
    if isinstance(kernel, kernels.Isotropic) and kernel.rotation_invariant(measure):
        directions = rng.standard_normal((count, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        omega = kernel.radii(rng, count, d, measure)[:, None] * directions * kernel.stretch(d)
        assert np.max(scores(kernel, measure, omega, delta)) < 4.5
    omega = kernel.quantiles(rng.random((count, kernel.dims(d, measure))), d, measure)
    assert omega.shape == (count, d)
    assert np.max(scores(kernel, measure, omega, delta)) < 4.5


def mean_and_error(values):
    return values.mean(axis=0), values.std(axis=0) / math.sqrt(len(values))


@pytest.mark.parametrize(
    ("kernel", "measure"),
    [(kernel, m) for kernel in SMOOTH for m in (Measure.TRACE, Measure.DEFENSIVE)],
    ids=name,
)
def test_tilted_measures_are_what_minh_writes(kernel, measure):
    """|omega|^2 rho_0 (eq. 53) and (1 + |s omega|^2) rho_0 (eq. 57), normalised: draws, quantiles and the density."""
    rng, count, d = np.random.default_rng(7), 20_000, 5
    scales = np.broadcast_to(kernel.lengthscale, d)
    plain = kernel.draw(rng, count, d, Measure.UNBOUNDED)
    weight = np.sum(plain**2, axis=1) if measure == Measure.TRACE else 1 + np.sum((scales * plain) ** 2, axis=1)
    moments = kernel.second_moments(d)
    total = moments.sum() if measure == Measure.TRACE else 1 + np.sum(moments * scales**2)
    ratio = np.exp(kernel.log_density(plain, measure) - kernel.log_density(plain, Measure.UNBOUNDED))
    np.testing.assert_allclose(ratio, weight / total, rtol=1e-9)

    def seen(omega):  # falls faster than the heaviest tail, and tells the coordinates apart
        return np.exp(-np.abs(omega * scales)) / (1 + np.sum((scales * omega) ** 2, axis=1))[:, None]

    expected, error = mean_and_error(seen(plain) * (weight / total)[:, None])
    quantiles = kernel.quantiles(rng.random((count, kernel.dims(d, measure))), d, measure)
    for omega in (kernel.draw(rng, count, d, measure), quantiles):
        found, own = mean_and_error(seen(omega))
        assert np.all(np.abs(found - expected) < 5 * np.hypot(error, own))
        # Were it rho_0 itself, it would show.
        assert np.all(np.abs(mean_and_error(seen(plain))[0] - expected) > 5 * np.hypot(error, own))


@pytest.mark.parametrize("split", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("kernel", [kernels.Gaussian(0.7), kernels.Gaussian(SCALES)], ids=name)
def test_the_bounded_measure_is_what_minh_writes(kernel, split):
    """Eq. 39 with any share of the exponent: N(0, 1 / ((1 - split) s^2)), whose weight is bounded."""
    rng, count, d, measure = np.random.default_rng(8), 4000, 5, Measure.bounded(split)
    scales = np.broadcast_to(kernel.lengthscale, d)
    law = stats.multivariate_normal(np.zeros(d), np.diag(scales**-2.0) / (1 - split))
    omega = 2 * inputs(30, d)[0]
    np.testing.assert_allclose(kernel.log_density(omega, measure), law.logpdf(omega), rtol=1e-12)
    weight = (1 - split) ** (-d / 2) * np.exp(-split * np.sum((scales * omega) ** 2, axis=1) / 2)
    ratio = np.exp(kernel.log_density(omega, Measure.UNBOUNDED) - kernel.log_density(omega, measure))
    np.testing.assert_allclose(ratio, weight, rtol=1e-10)
    assert measure.widening == pytest.approx(1 / math.sqrt(1 - split)) and not measure.tilted
    directions = np.full((count, d), d**-0.5)
    drawn = kernel.draw(rng, count, d, measure), kernel.quantiles(rng.random((count, d)), d, measure)
    for points in drawn:
        for column in (points * scales * math.sqrt(1 - split)).T:
            assert stats.kstest(column, "norm").pvalue > 1e-3
    radii = np.linalg.norm(kernel.radii(rng, count, d, measure)[:, None] * directions, axis=1)
    assert stats.kstest(radii * math.sqrt(1 - split), stats.chi(d).cdf).pvalue > 1e-3
    # The quantiles themselves, not their law alone.
    uniforms = rng.random((9, d))
    expected = stats.norm.ppf(uniforms) / scales / math.sqrt(1 - split)
    np.testing.assert_allclose(kernel.quantiles(uniforms, d, measure), expected, rtol=1e-9)


def test_second_moments_and_what_has_none():
    np.testing.assert_allclose(kernels.Gaussian(SCALES).second_moments(5), np.power(SCALES, -2.0))
    np.testing.assert_allclose(kernels.Matern(0.5, nu=3.0).second_moments(2), [6.0, 6.0])
    np.testing.assert_allclose(kernels.RationalQuadratic(0.5, alpha=0.2).second_moments(1), [4.0])
    np.testing.assert_allclose(kernels.Cauchy([1.0, 2.0]).second_moments(2), [2.0, 0.5])
    for kernel in ROUGH:
        for ask in (lambda k: k.second_moments(5), lambda k: k.hessian(*inputs(2, 5))):
            with pytest.raises(InputError, match=r"infinite second moment.*use"):
                ask(kernel)


def hessian(function, x, step):
    """Second central differences of a function of (n, d) rows at one point."""
    d = len(x)
    moves = step * np.eye(d)
    corners = np.array([[x + a * moves[i] + b * moves[j] for a in (1, -1) for b in (1, -1)]
                        for i in range(d) for j in range(d)])  # fmt: skip
    values = function(corners.reshape(-1, d)).reshape(d, d, 4)
    return values @ np.array([1, -1, -1, 1]) / (4 * step**2)


@pytest.mark.parametrize(
    "kernel",
    [*SMOOTH, *(kernels.Matern(SCALES, nu=nu) for nu in (1.1, 2.0, 2.0 + 1e-9, 2.5, 51.0))],
    ids=name,
)
def test_hessians_against_differences(kernel):
    d, zero = 5, np.zeros((1, 5))
    X, Z = inputs(4, d)
    found = kernel.hessian(X, Z)
    assert found.shape == (4, 4, d, d)
    for i, j in ((0, 0), (1, 3), (3, 2)):
        expected = hessian(lambda x: kernel.gram(x, zero)[:, 0], X[i] - Z[j], 5e-4)
        np.testing.assert_allclose(found[i, j], expected, atol=2e-5)
    at = kernel.hessian(X, X)[range(4), range(4)]
    np.testing.assert_allclose(at, np.broadcast_to(-np.diag(kernel.second_moments(d)), at.shape), atol=1e-12)
    # Nothing breaks near zero, and the limit is reached from it, however slowly.
    size = np.array([1e-200, 1e-160, 1e-60, 1e-12])
    near = kernel.hessian(np.outer(size, np.linspace(-1, 1, d)), zero)[:, 0]
    np.testing.assert_allclose(near, np.broadcast_to(at[0], near.shape), atol=0.3 * np.abs(at[0]).max())
    np.testing.assert_allclose(near[:3], np.broadcast_to(at[0], near[:3].shape), atol=1e-4 * np.abs(at[0]).max())
    assert np.all(np.isfinite(kernel.hessian(1e150 * X, Z)))


def test_measures_are_values():
    known = [Measure.UNBOUNDED, Measure.TRACE, Measure.DEFENSIVE, Measure.bounded(), Measure.bounded(0.2)]
    for measure in known:
        again = Measure.of(json.loads(json.dumps(measure.config())))
        assert again == measure and hash(again) == hash(measure) and pickle.loads(pickle.dumps(measure)) == measure
        assert Measure.of(measure) is measure and sum(measure == other for other in known) == 1
        assert measure.tilted == (measure in (Measure.TRACE, Measure.DEFENSIVE))
        assert measure.widening == pytest.approx(1.0 if measure.split is None else (1 - measure.split) ** -0.5)
    assert Measure.of("bounded") == Measure.bounded(0.5) == Measure.of({"type": "bounded"})
    assert Measure.bounded(0.2).config() == {"type": "bounded", "split": 0.2}
    assert [str(measure) for measure in known[1:]] == ["trace", "defensive", "bounded", "bounded (split 0.2)"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Measure.of("tarce"), "measure must be one of unbounded, trace, defensive, bounded, not 'tarce'"),
        (lambda: Measure.of(3), "measure must be .*not 3"),
        (lambda: Measure.of({"type": "bounded", "splits": 0.3}), "measure must be .*splits"),
        (lambda: Measure.of({"type": "trace", "split": 0.3}), "measure trace has no split"),
        (lambda: Measure.bounded(1.0), "split.* between 0 and 1, not 1.0"),
        (lambda: Measure.bounded(0), "split.* between 0 and 1, not 0"),
        (lambda: Measure.bounded("0.5"), "split.* not '0.5'"),
    ],
)
def test_bad_measures(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("kernel", "law"),
    [
        (kernels.Gaussian(SCALES), stats.multivariate_normal(np.zeros(5), np.diag(np.power(SCALES, -2.0)))),
        (kernels.Matern(SCALES, nu=0.8), stats.multivariate_t(np.zeros(5), np.diag(np.power(SCALES, -2.0)), df=1.6)),
    ],
    ids=name,
)
def test_densities_against_scipy(kernel, law):
    omega = 2 * inputs(30, 5)[0]
    np.testing.assert_allclose(kernel.log_density(omega, Measure.UNBOUNDED), law.logpdf(omega), rtol=1e-12)


def test_densities_of_products_against_scipy():
    omega, scale = 2 * inputs(30, 5)[0], 1 / np.array(SCALES)
    for kernel, law in ((kernels.Laplacian(SCALES), stats.cauchy), (kernels.Cauchy(SCALES), stats.laplace)):
        expected = law.logpdf(omega, scale=scale).sum(axis=1)
        np.testing.assert_allclose(kernel.log_density(omega, Measure.UNBOUNDED), expected, rtol=1e-12)


@pytest.mark.parametrize(("d", "alpha"), [(1, 0.5), (1, 2.0), (2, 0.3), (2, 1.0), (3, 4.5), (5, 1.0), (150, 2.0)])
def test_rational_quadratic_density_is_the_mixture_of_gaussians(d, alpha):
    kernel, radii = kernels.RationalQuadratic(0.5, alpha=alpha), np.array([0.01, 0.7, 3.0]) * math.sqrt(d)
    omega = radii[:, None] * np.full(d, 1 / math.sqrt(d))

    def mixture(r, s):  # over s = log t
        t = np.exp(s)
        log = (
            -0.5 * d * np.log(2 * np.pi * t / 0.25)
            - 0.25 * r**2 / (2 * t)
            + stats.gamma.logpdf(t, alpha, scale=1 / alpha)
        )
        return log + s

    found = kernel.log_density(omega, Measure.UNBOUNDED)
    for r, log in zip(radii, found, strict=True):
        grid = np.linspace(-60, 12, 40_001)
        peak = grid[np.argmax(mixture(r, grid))]
        top = mixture(r, peak)
        value = quad(lambda s, r=r, top=top: np.exp(mixture(r, s) - top), -200, 12, points=[peak - 2, peak, peak + 2],
                     limit=400)[0]  # fmt: skip
        assert log == pytest.approx(top + math.log(value), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("kernel", "measure"),
    [
        (kernel, measure)
        for kernel in (
            kernels.Gaussian(1.0),
            kernels.Matern(1.0, nu=0.6),
            kernels.Matern(1.0, nu=2.5),
            kernels.RationalQuadratic(1.0, alpha=0.6),
            kernels.RationalQuadratic(1.0, alpha=1.0),
            kernels.RationalQuadratic(1.0, alpha=3.0),
        )
        for measure in measures(kernel)
    ],
    ids=name,
)
def test_isotropic_densities_integrate_to_one(kernel, measure):
    log_r = np.linspace(-70, 70, 20_001)
    for d in (1, 2, 3, 6, 40):
        omega = np.exp(log_r)[:, None] * np.eye(d)[0]
        sphere = math.log(2) + 0.5 * d * math.log(math.pi) - gammaln(d / 2)
        mass = np.exp(sphere + d * log_r + kernel.log_density(omega, measure)) * (log_r[1] - log_r[0])
        assert mass.sum() == pytest.approx(1.0, rel=1e-9)
        if measure == Measure.TRACE:
            plain = np.exp(sphere + d * log_r + kernel.log_density(omega, Measure.UNBOUNDED)) * (log_r[1] - log_r[0])
            assert np.sum(plain * np.exp(2 * log_r)) == pytest.approx(kernel.second_moments(d).sum(), rel=1e-9)


@pytest.mark.parametrize(("d", "alpha"), [(1, 0.25), (1, 0.5), (2, 2.5), (3, 0.5), (3, 0.7), (3, 1.5), (6, 1.0)])
def test_rational_quadratic_density_at_zero_is_its_limit(d, alpha):
    """Finite, or as large as it gets next to zero: a rule may have omega = 0. The trace measure's is zero."""
    kernel = kernels.RationalQuadratic(2.0, alpha=alpha)
    omega = np.array([0.0, 1e-60, 1e-30])[:, None] * np.eye(d)[0]
    at, nearer, near = kernel.log_density(omega, Measure.UNBOUNDED)
    assert np.isfinite(at) and (at == pytest.approx(near, abs=1e-9) or at > nearer > near)
    assert kernel.log_density(omega, Measure.TRACE)[0] == -math.inf


def test_typical_radii():
    assert kernels.Gaussian(0.3).typical_radius(16) == 4.0
    assert kernels.Matern(0.3).typical_radius(16) is None and kernels.RationalQuadratic(1.0).typical_radius(3) is None


@pytest.mark.parametrize("kernel", WEIGHTED, ids=name)
def test_weighted_kernels_are_their_expectations(kernel):
    X, Z = inputs(7, 3, seed=3)
    X[0], X[1], X[2], Z[0] = 0.0, Z[1], -2 * Z[2], 0.0
    w = np.random.default_rng(6).standard_normal((60_000, 3))
    left, right = (kernel.scale * kernel.activation.function(points @ w.T) for points in (X, Z))
    samples = left[:, None] * right
    error = samples.std(axis=2) / math.sqrt(len(w)) + 1e-12
    assert np.max(np.abs(samples.mean(axis=2) - kernel.gram(X, Z)) / error) < 4.5
    assert kernel.centre == kernel.activation.function(np.zeros(1))[0]


@pytest.mark.parametrize("kernel", WEIGHTED, ids=name)
def test_splits_are_even_and_odd_parts(kernel):
    """phi again from its parts; with its reflection no product of unlike parts is left."""
    phi, split = kernel.activation.function, kernel.activation.split
    t = np.concatenate([[0.0, 800.0], np.random.default_rng(0).normal(0, 4, 50)])
    if split is None:
        assert callable(kernel.phi)
        return
    whole = split.constant + split.slope * t + split.gain * split.rest(t)
    np.testing.assert_allclose(whole, phi(t), rtol=1e-13, atol=1e-15)
    both = np.multiply.outer(whole, whole) + np.multiply.outer(phi(-t), phi(-t))
    parts = np.multiply.outer(split.rest(t), split.rest(t))
    parts = split.constant**2 + split.slope**2 * np.multiply.outer(t, t) + split.gain**2 * parts
    np.testing.assert_allclose(both / 2, parts, rtol=1e-12, atol=1e-12)


def test_arc_cosine_kernels_follow_cho_and_saul():
    X = np.array([[2.0, 0.0], [0.0, 0.0]])
    Z = np.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 5.0], [1.0, math.sqrt(3)], [0.0, 0.0]])
    np.testing.assert_allclose(kernels.ArcCosine(0).gram(X, Z), [[1, 0, 0.5, 2 / 3, 0.5], [0.5] * 5], atol=1e-15)
    slanted = 4 / math.pi * (math.sqrt(3) / 2 + (2 * math.pi / 3) / 2)
    np.testing.assert_allclose(kernels.ArcCosine(1).gram(X, Z), [[6, 0, 10 / math.pi, slanted, 0], [0] * 5], atol=1e-14)
    for order, phi in ((0, "step"), (1, "relu")):
        arc, half = kernels.ArcCosine(order), kernels.Pointwise(phi)
        np.testing.assert_array_equal(arc.gram(X, Z), 2 * half.gram(X, Z))
        assert arc.activation is half.activation and arc.scale**2 == pytest.approx(2 * half.scale**2)


def test_small_angles_keep_their_digits():
    angle = 1e-9  # an arccos would see zero
    x, z = np.array([[3.0, 0.0]]), np.array([[math.cos(angle), math.sin(angle)]])
    assert (1 - kernels.ArcCosine(0).gram(x, z)[0, 0]) * math.pi == pytest.approx(angle, rel=1e-6)
    assert kernels.ArcCosine(0).gram(x, -z)[0, 0] * math.pi == pytest.approx(angle, rel=1e-6)
    far = 1e9 * x
    assert 1 - kernels.Pointwise("erf").gram(far, far)[0, 0] == pytest.approx(0.0, abs=1e-9)


def test_the_hermite_series_gives_the_closed_forms():
    X, Z = inputs(12, 4)
    X[:4], X[4] = Z[:4], -Z[4]
    for size, smooth, kink, jump in ((0.2, 1e-13, 1e-4, 2e-3), (2.0, 1e-12, 1e-4, 2e-3), (5.0, 1e-6, 1e-4, 2e-3)):
        for closed, phi, wanted in (("erf", erf, smooth), ("cos", np.cos, smooth), ("sin", np.sin, smooth),
                                    ("relu", lambda t: np.maximum(t, 0), kink * (4 * size) ** 2),
                                    ("step", lambda t: np.heaviside(t, 0.5), jump)):  # fmt: skip
            exact, series = (kernels.Pointwise(p).gram(size * X, size * Z) for p in (closed, phi))
            np.testing.assert_allclose(series, exact, atol=wanted, err_msg=f"{closed} {size}")


@pytest.mark.parametrize("correlation", [0.3, 0.99, 0.9995, -0.998])
@pytest.mark.parametrize(("size", "wanted"), [(1.0, 1e-12), (4.0, 1e-12), (10.0, 1e-6), (30.0, 1e-3)])
def test_the_hermite_series_of_tanh_against_a_two_dimensional_rule(size, wanted, correlation):
    u, step = np.linspace(-9, 9, 2401, retstep=True)
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi) * step
    inner = np.tanh(size * (correlation * u[:, None] + math.sqrt(1 - correlation**2) * u)) @ density
    exact = np.sum(density * np.tanh(size * u) * inner)
    x, z = size * np.array([[1.0, 0.0]]), size * np.array([[correlation, math.sqrt(1 - correlation**2)]])
    assert kernels.Pointwise(np.tanh).gram(x, z)[0, 0] == pytest.approx(exact, abs=wanted)


def test_named_mercer_systems_tend_to_their_kernels():
    x, z = np.random.default_rng(0).random((2, 30, 1))
    for system, exact in (("brownian", np.minimum(x, z.T)), ("bridge", np.minimum(x, z.T) - x * z.T)):
        for count in (3, 300, 3000):
            kernel = kernels.Mercer.named(system, count)
            gap = np.abs(kernel.gram(x, z) - exact).max()
            assert gap < 2 / (math.pi**2 * (count - 0.5))  # the sum of 2 lambda_j from count on
            assert count == 3000 or gap > 1e-5
        grid = (np.arange(4000)[:, None] + 0.5) / 4000
        values = kernel.functions(grid, np.array([0, 1, 7, 99]))
        np.testing.assert_allclose(values.T @ values / 4000, np.eye(4), atol=1e-9)  # orthonormal on [0, 1]


def test_mercer_kernels_of_functions():
    def monomials(X, indices):
        return X ** (indices + 1)

    kernel = kernels.Mercer([2.0, 1.0], monomials)
    x, z = inputs(5, 1)
    np.testing.assert_allclose(kernel.gram(x, z), 2 * x * z.T + (x * z.T) ** 2)
    np.testing.assert_array_equal(kernel.functions(x, np.array([1, 1, 0])), np.hstack([x**2, x**2, x]))
    with pytest.raises(InputError, match=r"one column an index, \(5, 1\); got shape \(5,\)"):
        kernels.Mercer([1.0], lambda X, indices: X[:, 0]).gram(x, z)


@pytest.mark.parametrize("kernel", STORED, ids=name)
def test_kernels_are_stored_compared_and_hashed(kernel):
    again = kernels.scalar_from_config(json.loads(json.dumps(kernel.config())))
    assert again == kernel and hash(again) == hash(kernel) and again is not kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert sum(kernel == other for other in STORED) == 1


def test_an_omitted_option_takes_its_default():
    for config, wanted in (
        ({"type": "matern", "lengthscale": 2}, kernels.Matern(2.0, nu=1.5)),
        ({"type": "rational_quadratic", "lengthscale": 2}, kernels.RationalQuadratic(2.0, alpha=1.0)),
        ({"type": "arc_cosine"}, kernels.ArcCosine(1)),
        ({"type": "polynomial", "degree": 2}, kernels.Polynomial(2, offset=1.0, scale=1.0)),
    ):
        assert kernels.scalar_from_config(config) == wanted


def test_what_lives_in_memory_only_says_so():
    with pytest.raises(InputError, match="cannot be stored; name one of step, relu"):
        kernels.Pointwise(np.tanh).config()
    with pytest.raises(InputError, match=r"cannot be stored; use Mercer\.named with brownian or bridge"):
        kernels.Mercer([1.0], lambda X, indices: X).config()
    with pytest.raises(InputError, match="cannot be stored"):
        kernels.Mercer([1.0, 0.5], "brownian").config()


OTHERS = [kernels.Laplacian, kernels.Matern, kernels.Cauchy, kernels.RationalQuadratic]


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("lengthscale", [0.0, np.nan, [1.0, -1.0], [], [[1.0]]])
def test_bad_lengthscales(kind, lengthscale):
    with pytest.raises(InputError, match="lengthscale must be a positive number"):
        kind(lengthscale)


@pytest.mark.parametrize("kind", OTHERS)
def test_lengthscales_are_as_many_as_inputs(kind):
    with pytest.raises(InputError, match="2 numbers but the inputs have 3 columns"):
        kind([1.0, 2.0]).gram(*inputs(2, 3))
    with pytest.raises(InputError, match="2 numbers but the inputs have 3 columns"):
        kind([1.0, 2.0]).check(3)


@pytest.mark.parametrize(
    ("kernel", "measure", "words"),
    [
        (kernels.Laplacian(1.0), Measure.TRACE, "Laplacian .*infinite second moment.* use a Matern"),
        (kernels.Laplacian(1.0), Measure.DEFENSIVE, "Laplacian .*infinite second moment.* use a Matern"),
        (kernels.Laplacian(1.0), Measure.bounded(), "Laplacian has no bounded measure, .*the Gaussian's alone"),
        (kernels.Cauchy(1.0), Measure.bounded(), "Cauchy has no bounded measure"),
        (kernels.Matern(1.0, nu=1.0), Measure.TRACE, r"nu = 1 .*infinite second moment.*use nu > 1"),
        (kernels.Matern(1.0), Measure.bounded(0.1), "Matern has no bounded measure"),
        (kernels.RationalQuadratic(1.0), Measure.bounded(), "RationalQuadratic has no bounded measure"),
    ],
)
def test_measures_a_kernel_does_not_have(kernel, measure, words):
    with pytest.raises(InputError, match=words):
        kernel.draw(np.random.default_rng(0), 3, 2, measure)
    with pytest.raises(InputError, match=words):
        kernel.log_density(np.ones((1, 2)), measure)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kernels.Matern(1.0, nu=0.0), "nu must be a positive finite number, not 0.0"),
        (lambda: kernels.Matern(1.0, nu=math.inf), "nu must be .* not inf"),
        (lambda: kernels.Matern(1.0, nu=True), "nu must be .* not True"),
        (lambda: kernels.Matern(1.0, nu="1"), "nu must be .* not '1'"),
        (lambda: kernels.RationalQuadratic(1.0, alpha=-1), "alpha must be a positive finite number, not -1"),
        (lambda: kernels.ArcCosine(2), "order must be 0 or 1, not 2"),
        (lambda: kernels.ArcCosine(True), "order must be 0 or 1, not True"),
        (lambda: kernels.Pointwise("rleu"), "phi must be a function or one of step, .*'rleu'"),
        (lambda: kernels.Pointwise(np.log).gram(*inputs(2, 2)), "phi must give finite numbers"),
        (lambda: kernels.Pointwise(np.sum).gram(*inputs(2, 2)), r"phi must give .* gave shape \(\)"),
        (lambda: kernels.Polynomial(0), "degree must be a whole number of at least 1, not 0"),
        (lambda: kernels.Polynomial(1.5), "degree must be a whole number of at least 1, not 1.5"),
        (lambda: kernels.Polynomial(2, offset=-1.0), "offset must be zero or a positive finite number, not -1.0"),
        (lambda: kernels.Polynomial(2, scale=0.0), "scale must be a positive finite number, not 0.0"),
        (lambda: kernels.Mercer([], np.outer), "eigenvalues must be a list of positive"),
        (lambda: kernels.Mercer([1.0, 0.0], np.outer), "eigenvalues must be a list of positive"),
        (lambda: kernels.Mercer([1.0], "brown"), "'brown' is not known; use brownian or bridge"),
        (lambda: kernels.Mercer.named("brown", 3), "'brown' is not known; use brownian or bridge"),
        (lambda: kernels.Mercer.named("bridge", 0), "count must be a whole number from 1 to 1000000, not 0"),
        (lambda: kernels.Polynomial(65), "degree 65, offset 1.0 and scale 1.0 make numbers beyond float64"),
        (lambda: kernels.Polynomial(3, offset=1e150), "offset 1e[+]150 .* make numbers beyond float64"),
        (lambda: kernels.Gaussian(1e-320), "lengthscale must be"),
        (lambda: kernels.Mercer.named("bridge", 3).gram(*inputs(9, 1)), r"lie in \[0, 1\], but run from -"),
        (lambda: kernels.Mercer.named("bridge", 3).gram(*inputs(2, 2)), r"one input column in \[0, 1\], not 2"),
        (lambda: kernels.scalar_from_config({"type": "wavelet"}), "'wavelet' is not built; use one of gaussian"),
        (lambda: kernels.scalar_from_config({"type": "matern"}), "kernel.scalar.lengthscale is missing"),
        (lambda: kernels.scalar_from_config({"type": "arc_cosine", "nu": 1}), "kernel.scalar.nu is not known"),
    ],
)  # fmt: skip
def test_what_is_refused(make, words):
    with pytest.raises(InputError, match=words), np.errstate(all="ignore"):
        make()
