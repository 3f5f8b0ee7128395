"""The exact kernels against derivatives of the scalar one, and the algebra of kernels."""

import json

import numpy as np
import pytest
from cases import LAW, every_kernel, positive
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from dorff import kernels
from dorff.errors import InputError
from dorff.kernels import Measure

STEP = 2e-3


def derivative(function, at, axis):
    """Five-point central difference of `function` along one axis: error of order STEP^4."""
    step = np.zeros_like(at)
    step[axis] = STEP
    far, near = function(at - 2 * step) - function(at + 2 * step), function(at + step) - function(at - step)
    return (far + 8 * near) / (12 * STEP)


def hessian(at, lengthscale):
    """Second derivatives of exp(-|delta|^2 / 2s^2): complex step inside, central difference outside."""

    def gradient(delta):
        shifted = delta + 1e-30j * np.eye(len(delta))
        return np.exp(-np.sum(shifted**2, axis=1) / (2 * lengthscale**2)).imag / 1e-30

    return np.array([derivative(gradient, at, axis) for axis in range(len(at))])


def value(kernel, delta):
    return kernel.gram(delta[None], np.zeros((1, len(delta))))[0, 0]


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("lengthscale", [0.2, 1.0, 3.0])
def test_curl_and_divergence_free_are_derivatives_of_the_scalar_kernel(d, lengthscale):
    rng = np.random.default_rng(d)
    scalar = kernels.Gaussian(lengthscale)
    for _ in range(5):
        delta = lengthscale * rng.standard_normal(d)
        # Derivatives in units of the lengthscale, so that one step suits all.
        H = hessian(delta / lengthscale, 1.0) / lengthscale**2
        tolerance = 1e-9 * d / lengthscale**2
        np.testing.assert_allclose(value(kernels.CurlFree(scalar), delta), -H, atol=tolerance)
        np.testing.assert_allclose(value(kernels.DivergenceFree(scalar), delta), H - np.trace(H) * np.eye(d),
                                   atol=tolerance)  # fmt: skip


UNEQUAL = (0.6, 0.9, 1.5)
#: Every scalar kernel that a vector field may be made of.
SMOOTH = tuple(
    make(lengthscale)
    for make in (
        kernels.Gaussian,
        lambda s: kernels.Matern(s, nu=1.8),
        lambda s: kernels.Matern(s, nu=3.0),
        lambda s: kernels.RationalQuadratic(s, alpha=0.7),
        kernels.Cauchy,
    )
    for lengthscale in (0.8, UNEQUAL)
)
MEASURES = (Measure.UNBOUNDED, Measure.TRACE, Measure.DEFENSIVE, Measure.bounded(0.3))
smooth = pytest.mark.parametrize("scalar", SMOOTH, ids=str)


@smooth
def test_columns_are_curl_free_and_divergence_free_fields(scalar):
    d = 3
    at = np.random.default_rng(0).standard_normal(d)
    curl_free = np.array([derivative(lambda x: value(kernels.CurlFree(scalar), x), at, i) for i in range(d)])
    div_free = np.array([derivative(lambda x: value(kernels.DivergenceFree(scalar), x), at, i) for i in range(d)])
    for column in range(d):  # [i, j, column] = d f_j / d x_i
        field = curl_free[:, :, column]
        np.testing.assert_allclose(field, field.T, atol=1e-8)
        assert abs(np.trace(div_free[:, :, column])) < 1e-8
        # The other way round neither holds: the tests above can fail.
        assert abs(np.trace(field)) > 1e-3
        assert np.abs(div_free[:, :, column] - div_free[:, :, column].T).max() > 1e-3


@smooth
@pytest.mark.parametrize("field", [kernels.CurlFree, kernels.DivergenceFree])
def test_fields_are_the_mean_of_their_roots_under_every_measure(scalar, field):
    """E cos(omega . delta) M(omega) rho_0 / rho, M = U^T U (Minh 2016, eq. 21-24), by its own standard error."""
    rng, d = np.random.default_rng(3), 3
    delta = np.array([[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [0.9, 0.5, -1.2]])
    kernel = field(scalar)
    exact = kernel.gram(delta, np.zeros((1, d)))[:, 0]
    assert kernel.trace(d, d) == pytest.approx(np.trace(exact[0]))
    for measure in MEASURES if isinstance(scalar, kernels.Gaussian) else MEASURES[:3]:
        omega = scalar.draw(rng, 20_000, d, measure)
        ratio = np.exp(scalar.log_density(omega, Measure.UNBOUNDED) - scalar.log_density(omega, measure))
        root = field(scalar, measure).root(omega)
        M = np.einsum("arp,arq->apq", root, root) * ratio[:, None, None]
        samples = np.cos(delta @ omega.T)[:, :, None, None] * M
        error = samples.std(axis=1) / np.sqrt(len(omega))
        assert np.all(np.abs(samples.mean(axis=1) - exact) < 5 * error), measure


@smooth
def test_fields_of_every_scalar_kernel_are_positive_semi_definite(scalar):
    X = np.random.default_rng(1).uniform(-1, 1, (12, 3))
    X[8:] = X[:4]
    for kernel in (kernels.CurlFree(scalar), kernels.DivergenceFree(scalar)):
        K = kernel.gram(X, X)
        np.testing.assert_allclose(K, K.transpose(1, 0, 3, 2), atol=1e-12 * np.abs(K).max())
        values = np.linalg.eigvalsh(K.transpose(0, 2, 1, 3).reshape(36, 36))
        assert values[0] >= -1e-12 * values[-1]
        again = kernels.from_config(json.loads(json.dumps(kernel.config())))
        assert again == kernel and "measure" not in kernel.config()


def second_moments_of_weights(scalar, d):
    """E |mu~|_F^2 of the curl-free kernel, by measure: the variance of the estimate, but for what all share.

    |mu~|_F = |omega|^2 rho_0 / rho. From draws of rho_0: E_rho |mu~|^2 = E_rho_0 |omega|^4 rho_0 / rho.
    """
    omega = scalar.draw(np.random.default_rng(0), 400_000, d, Measure.UNBOUNDED)
    fourth = np.sum(omega**2, axis=1) ** 2
    plain = scalar.log_density(omega, Measure.UNBOUNDED)
    found = {}
    for measure in (*MEASURES[:3], *(m for m in (Measure.bounded(),) if isinstance(scalar, kernels.Gaussian))):
        terms = fourth * np.exp(plain - scalar.log_density(omega, measure))
        found[str(measure)] = float(terms.mean()), float(terms.std() / np.sqrt(len(terms)))
    return found


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("scalar", [kernels.Gaussian(1.0), kernels.Matern(1.0, nu=3.5)], ids=str)
def test_the_trace_measure_has_the_least_variance(scalar, d):
    found = second_moments_of_weights(scalar, d)
    trace = float(scalar.second_moments(d).sum())
    assert found["trace"][0] == pytest.approx(trace**2, rel=0.02)  # constant: |mu~| is tr k(0)
    least = min(mean - 4 * error for name, (mean, error) in found.items() if name != "trace")
    assert trace**2 < least
    assert found["defensive"][0] + 4 * found["defensive"][1] < found["unbounded"][0] - 4 * found["unbounded"][1]
    if isinstance(scalar, kernels.Gaussian):
        exact = {"unbounded": d * (d + 2), "bounded": (4 / 3) ** (d / 2) * d * (d + 2) / 1.5**2}
        for name, wanted in exact.items():
            assert abs(found[name][0] - wanted) < 5 * found[name][1]
        assert (exact["bounded"] > exact["unbounded"]) == (d == 6)  # DESIGN's fact


def test_values_at_zero():
    scalar, zero = kernels.Gaussian(0.5), np.zeros(3)
    np.testing.assert_allclose(value(kernels.CurlFree(scalar), zero), 4 * np.eye(3))
    np.testing.assert_allclose(value(kernels.DivergenceFree(scalar), zero), 2 * 4 * np.eye(3))
    for kernel, d in [(kernels.CurlFree(scalar), 3), (kernels.DivergenceFree(scalar), 3)]:
        assert kernel.trace(d, d) == pytest.approx(np.trace(value(kernel, zero)))
    A = positive(2, 2)
    np.testing.assert_allclose(value(kernels.Decomposable(scalar, A), zero), A)
    assert kernels.Decomposable(scalar, A).trace(3, 2) == pytest.approx(np.trace(A))


def test_gaussian_follows_the_convention_of_the_design():
    X, Z = np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]])
    assert kernels.Gaussian(2.0).gram(X, Z)[0, 0] == pytest.approx(np.exp(-25 / 8))
    assert kernels.Gaussian([1.0, 2.0]).gram(X, Z)[0, 0] == pytest.approx(np.exp(-(9 + 16 / 4) / 2))


@LAW
@given(data=st.data(), d=st.integers(2, 4), n=st.integers(1, 8), seed=st.integers(0, 2**16))
def test_every_kernel_is_symmetric_positive_semi_definite(data, d, n, seed):
    name, kernel = data.draw(st.sampled_from(list(every_kernel(d, d))), label="kernel")
    X = np.random.default_rng(seed).uniform(-2, 2, (n, d))
    X[n // 2 :] = X[: n - n // 2]  # equal points make it singular
    K = kernel.fix(d, d).gram(X, X)
    np.testing.assert_array_equal(K.shape, (n, n, d, d))
    np.testing.assert_allclose(K, K.transpose(1, 0, 3, 2), atol=1e-12 * np.abs(K).max(), err_msg=name)
    values = np.linalg.eigvalsh(K.transpose(0, 2, 1, 3).reshape(n * d, n * d))
    assert values[0] >= -1e-12 * values[-1], name


@LAW
@given(weights=st.lists(st.floats(0.01, 10), min_size=3, max_size=3), seed=st.integers(0, 2**16))
def test_sums_and_multiples(weights, seed):
    X, Z = np.random.default_rng(seed).standard_normal((2, 5, 3))
    parts = [kernels.CurlFree(kernels.Gaussian(0.7)), kernels.DivergenceFree(kernels.Gaussian(1.1)),
             kernels.Decomposable(kernels.Gaussian(2.0), positive(3, 2))]  # fmt: skip
    expected = sum(w * part.gram(X, Z) for w, part in zip(weights, parts, strict=True))
    left = weights[0] * parts[0] + (weights[1] * parts[1] + weights[2] * parts[2])
    right = (parts[0] * weights[0] + parts[1] * weights[1]) + parts[2] * weights[2]
    for total in (left, right, kernels.Sum(list(zip(weights, parts, strict=True)))):
        np.testing.assert_allclose(total.gram(X, Z), expected, rtol=1e-12, atol=1e-13)
        assert len(total.terms()) == 3  # flat, however it was put together
    np.testing.assert_allclose((2.0 * left).gram(X, Z), 2 * expected, rtol=1e-12, atol=1e-13)


def test_a_concatenated_sum_is_the_same_kernel():
    X, Z = np.random.default_rng(4).standard_normal((2, 4, 2))
    curl, div = kernels.CurlFree(kernels.Gaussian(0.7)), kernels.DivergenceFree(kernels.Matern(1.1, nu=2.5))
    plain, apart = kernels.Sum([(2.0, curl), (0.5, div)]), kernels.Sum([(2.0, curl), (0.5, div)], concatenate=True)
    np.testing.assert_array_equal(apart.gram(X, Z), plain.gram(X, Z))
    assert not plain.concatenated and "concatenate" not in plain.config()
    for kernel in (apart, 3.0 * apart, apart + curl, curl + apart, apart.fix(2, 2), kernels.Sum([(1.0, apart)])):
        assert kernel.concatenated and kernel.config()["concatenate"] is True
        again = kernels.from_config(json.loads(json.dumps(kernel.config())))
        assert again.concatenated and again.config() == kernel.config()
    np.testing.assert_allclose((3.0 * apart).gram(X, Z), 3 * plain.gram(X, Z), rtol=1e-12, atol=1e-12)
    arc = kernels.Decomposable(kernels.ArcCosine(1))
    with pytest.raises(InputError, match=r"ArcCosine.*cannot be concatenated; leave concatenate out"):
        kernels.Sum([(1.0, arc), (2.0, arc)], concatenate=True).fix(2, 2)
    with pytest.raises(InputError, match="concatenate must be True or False, not 'yes'"):
        kernels.Sum([(1.0, curl)], concatenate="yes")


def test_a_mixture_gives_every_candidate_an_equal_share():
    curl, div = kernels.CurlFree(kernels.Gaussian(0.5)), kernels.DivergenceFree(kernels.Gaussian(2.0))
    alone = kernels.Sum([(1.0, curl), (0.0, div)], concatenate=True)
    assert kernels.mixture([alone], 3, 3) is alone
    both = 0.2 * curl + 5.0 * kernels.Decomposable(kernels.Cauchy(1.0), positive(3, 2))
    with pytest.raises(InputError, match="concatenated sum does not"):
        kernels.mixture([both, alone], 3, 3)
    total = kernels.mixture([curl, both, 1.0 * curl + 0.0 * div], 3, 3)
    assert not total.concatenated and all(weight > 0 for weight, _ in total.terms())
    assert total.trace(3, 3) == pytest.approx(3.0)
    expected = curl.gram(*(X := np.random.default_rng(0).standard_normal((2, 2, 3)))) * 2 / curl.trace(3, 3)
    expected = expected + both.gram(*X) / both.trace(3, 3)
    np.testing.assert_allclose(total.gram(*X), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_config_says_all(d):
    X, Z = np.random.default_rng(1).standard_normal((2, 4, d))
    for name, kernel in every_kernel(d, d):
        written = json.loads(json.dumps(kernel.config()))
        again = kernels.from_config(written)
        assert again.config() == kernel.config(), name
        np.testing.assert_array_equal(again.fix(d, d).gram(X, Z), kernel.fix(d, d).gram(X, Z), err_msg=name)
        for (weight, term), (other, same) in zip(again.terms(), kernel.terms(), strict=True):
            assert (weight, type(term), term.measure) == (other, type(same), same.measure)


def test_output_identity_and_covariance_wait_for_the_targets():
    scalar, X = kernels.Gaussian(1.0), np.zeros((1, 2))
    np.testing.assert_array_equal(kernels.Decomposable(scalar).fix(2, 3).gram(X, X)[0, 0], np.eye(3))
    covariance = positive(3, 2)
    fixed = kernels.Decomposable(scalar, "covariance").fix(2, 3, covariance)
    np.testing.assert_allclose(fixed.gram(X, X)[0, 0], covariance)
    total = (kernels.Decomposable(scalar, "covariance") + kernels.CurlFree(scalar)).fix(3, 3, covariance)
    np.testing.assert_allclose(total.gram(np.zeros((1, 3)), np.zeros((1, 3)))[0, 0], covariance + np.eye(3))
    with pytest.raises(InputError, match="fix"):
        kernels.Decomposable(scalar).gram(X, X)
    with pytest.raises(InputError, match="covariance"):
        kernels.Decomposable(scalar, "covariance").fix(2, 3)


def test_vector_field_says_whether_columns_may_be_scaled_apart():
    scalar = kernels.Gaussian(1.0)
    assert kernels.CurlFree(scalar).vector_field
    assert (kernels.Decomposable(scalar) + kernels.DivergenceFree(scalar)).vector_field
    assert not (kernels.Decomposable(scalar) * 2.0).vector_field


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "semi-definite.*-1"),
        ([[1.0, 0.0]], r"square.*\(1, 2\)"),
        ([1.0, 2.0], r"square.*\(2,\)"),
        ([[np.nan]], "finite"),
        (np.zeros((2, 2)), "not zero"),
        ("simplix", "'simplix'"),
    ],
)
def test_bad_output_matrices(output, words):
    with pytest.raises(InputError, match=words):
        kernels.Decomposable(kernels.Gaussian(1.0), output)


@pytest.mark.parametrize("lengthscale", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0], [], [[1.0]]])
def test_bad_lengthscales(lengthscale):
    with pytest.raises(InputError, match="lengthscale"):
        kernels.Gaussian(lengthscale)


def test_impossible_kernels_say_so():
    scalar = kernels.Gaussian(1.0)
    with pytest.raises(InputError, match=r"2 numbers .* 3 columns"):
        kernels.Gaussian([1.0, 2.0]).gram(np.zeros((1, 3)), np.zeros((1, 3)))
    with pytest.raises(InputError, match=r"d = 2 .*p = 3"):
        kernels.CurlFree(scalar).fix(2, 3)
    with pytest.raises(InputError, match=r"d = 3 .*p = 1"):
        kernels.DivergenceFree(scalar).fix(3, 1)
    with pytest.raises(InputError, match=r"d = 2 .*p = 3"):
        (kernels.DivergenceFree(scalar) + kernels.Decomposable(scalar)).fix(2, 3)
    with pytest.raises(InputError, match="at least two"):
        kernels.DivergenceFree(scalar).fix(1, 1)
    with pytest.raises(InputError, match=r"2 x 2 .* 3 outputs"):
        kernels.Decomposable(scalar, np.eye(2)).fix(2, 3)
    with pytest.raises(InputError, match=r"2 numbers .* 3 columns"):
        kernels.CurlFree(kernels.Gaussian([1.0, 2.0])).fix(3, 3)
    with pytest.raises(InputError, match=r"measure.*'best'"):
        kernels.DivergenceFree(scalar, "best")
    with pytest.raises(InputError, match="weight"):
        kernels.CurlFree(scalar) * -1.0
    with pytest.raises(InputError, match="weight"):
        kernels.CurlFree(scalar) * np.nan
    with pytest.raises(InputError, match="positive weight"):
        (0.0 * kernels.CurlFree(scalar)).fix(2, 2)
    with pytest.raises(TypeError):
        kernels.CurlFree(scalar) + 1.0
    with pytest.raises(InputError, match="'wavelet'"):
        kernels.from_config({"type": "curl_free", "scalar": {"type": "wavelet"}})
    for field in (kernels.CurlFree, kernels.DivergenceFree):
        for rough in (kernels.Laplacian(1.0), kernels.Matern(1.0, nu=1.0), kernels.Matern([1.0, 2.0], nu=0.5)):
            with pytest.raises(InputError, match=r"not (twice )?differentiable.*infinite second moment.*use"):
                field(rough)
        for other in (kernels.ArcCosine(1), kernels.Polynomial(2), kernels.Mercer.named("brownian", 3)):
            with pytest.raises(InputError, match=f"{field.__name__} is made of derivatives of a shift-.*; use"):
                field(other)
        with pytest.raises(InputError, match="Matern has no bounded measure"):
            field(kernels.Matern(1.0), "bounded")
    with pytest.raises(InputError, match="'curl'"):
        kernels.from_config({"type": "curl"})


@pytest.mark.parametrize(
    "scalar", [kernels.ArcCosine(0), kernels.Polynomial(2), kernels.Mercer.named("brownian", 5), kernels.Matern(0.7)]
)
def test_every_scalar_kernel_may_be_decomposable_and_shared(scalar):
    X, Z = np.random.default_rng(2).uniform(0, 1, (2, 4, 1))
    A, B = positive(3, 2), positive(3, 3, 1)
    total = (kernels.Decomposable(scalar, A) + 2.0 * kernels.Decomposable(scalar, B)).fix(1, 3)
    expected = scalar.gram(X, Z)[:, :, None, None] * (A + 2 * B)
    np.testing.assert_allclose(total.gram(X, Z), expected, rtol=1e-12)
    again = kernels.from_config(json.loads(json.dumps(total.config())))
    np.testing.assert_array_equal(again.gram(X, Z), total.gram(X, Z))


def test_kernels_without_a_spectrum_are_not_mixed():
    arc, narrow, wide = kernels.ArcCosine(1), kernels.Gaussian(1.0), kernels.Matern(2.0)
    assert len((kernels.Decomposable(narrow) + kernels.Decomposable(wide)).fix(2, 2).terms()) == 2
    for other in (kernels.Decomposable(narrow), kernels.CurlFree(narrow), kernels.Decomposable(kernels.ArcCosine(0))):
        for total in (kernels.Decomposable(arc) + other, other + 0.0 * kernels.Decomposable(arc)):
            with pytest.raises(InputError, match="ArcCosine, which is not shift-invariant"):
                total.fix(2, 2)


def test_fix_asks_the_scalar_kernel_about_the_inputs():
    with pytest.raises(InputError, match=r"2 numbers .* 3 columns"):
        kernels.Decomposable(kernels.Laplacian([1.0, 2.0])).fix(3, 1)
    with pytest.raises(InputError, match=r"one input column in \[0, 1\], not 2"):
        kernels.Decomposable(kernels.Mercer.named("brownian", 5)).fix(2, 1)


def test_median_lengthscale_is_the_median_distance():
    X = np.random.default_rng(0).standard_normal((80, 3))
    assert kernels.median_lengthscale(X) == pytest.approx(np.median(pdist(X)))
    # Far from the origin (times in seconds, map coordinates) nothing changes.
    assert kernels.median_lengthscale(X + 1.7e9) == pytest.approx(np.median(pdist(X + 1.7e9)), rel=1e-6)
    twice = np.repeat(X, 2, axis=0)
    between = pdist(twice)
    assert kernels.median_lengthscale(twice) == pytest.approx(np.median(between[between > 0]))
    assert kernels.median_lengthscale(np.ones((5, 2))) == 1.0
