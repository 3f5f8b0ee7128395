"""Feature maps: what their columns are, that their products are the kernel, and that they can be kept."""

import json
import math

import numpy as np
import pytest
from cases import LAW, assert_mean, trig_map
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import PolynomialFeatures

from dorff import kernels
from dorff.errors import InputError
from dorff.features import FeatureMap, Recipe, feature_arrays, features_from
from dorff.features.expansions import Maclaurin, Monomials, monomial_count
from dorff.frequencies import IID, QMC, ROM, Fastfood, GaussQuadrature, Orthogonal, Quadrature
from dorff.kernels.nonstationary import FUNCTIONS

GAUSSIAN = kernels.Gaussian(1.5)
SCALARS = (GAUSSIAN, kernels.Matern(1.0, nu=2.5), kernels.ArcCosine(0), kernels.ArcCosine(1),
           kernels.Pointwise("tanh"))  # fmt: skip
ROWS = np.random.default_rng(0).standard_normal((70, 3))


def draw(kernel, sampler=Orthogonal(), *, d=3, m=64, seed=0, intercept=True):  # noqa: B008 - frozen
    return Recipe.of(kernel, sampler, d=d, n_features=m, intercept=intercept).draw(seed).phi


def test_trig_features_are_weighted_cosines_and_sines():
    phi = draw(GAUSSIAN, Quadrature())
    angles = ROWS @ phi.omega.T
    expected = np.column_stack([phi.weights * np.cos(angles), phi.weights * np.sin(angles)])
    np.testing.assert_allclose(phi.transform(ROWS), expected, atol=1e-14)


def found(kernel, sampler, *, count, d=3, seed=0):
    return sampler.draw(kernels.Decomposable(kernel).fix(d, 1), d=d, p=1, count=count, seed=seed)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("sampler", [IID(), Quadrature()], ids=repr)
def test_step_and_ramp_features(order, sampler):
    """sqrt(2) of Cho & Saul's convention in front; a rule with negatives has signs, or absolutes and the inputs."""
    phi = draw(kernels.ArcCosine(order), sampler)
    z = ROWS @ phi.omega.T
    weights = math.sqrt(2) * found(kernels.ArcCosine(order), sampler, count=z.shape[1]).weights
    if sampler.reflected:
        values = weights / 2 * (np.abs(z) if order else np.sign(z))
        values = np.column_stack([values, ROWS / math.sqrt(2)]) if order else values
    else:
        values = weights * (np.maximum(z, 0) if order else np.heaviside(z, 0.5))
    np.testing.assert_allclose(phi.transform(ROWS), values, rtol=1e-12, atol=1e-14)
    assert phi.m == 64 == z.shape[1] + (3 if order and sampler.reflected else 0)


def pair_form(kernel, drawn, X):
    """The dense twin of reflected features: both signs of every point, two columns each, and the centre."""
    a, t = kernel.scale * drawn.weights / math.sqrt(2), X @ drawn.omega.T
    F = np.concatenate([a * kernel.activation.function(t), a * kernel.activation.function(-t)], axis=1)
    return F @ F.T + drawn.centre * (kernel.scale * kernel.centre) ** 2


NAMED = [kernels.ArcCosine(0), kernels.ArcCosine(1), *map(kernels.Pointwise, FUNCTIONS)]


@pytest.mark.parametrize(
    "kernel", [*NAMED, kernels.Pointwise(lambda t: np.tanh(t + 1))], ids=[*map(repr, NAMED), "tanh"]
)
@pytest.mark.parametrize(
    "sampler", [Quadrature(), Quadrature(mixing="haar", centre="drop"), Quadrature((1, 3), radii="shared")], ids=repr
)
def test_reflected_features_are_the_pair_form(kernel, sampler):
    """The same estimate from the same frequencies in half the columns; a linear part is exact, as in whole rules."""
    slope = kernel.activation.split.slope * kernel.scale if kernel.activation.split else 0.0
    for count, whole in ((22, False), (24, sampler.degree == (3, 3))):  # rules of 4 or 3 points
        each = 1 if kernel.activation.split else 2
        phi, drawn = draw(kernel, sampler, m=each * count + 3 * (slope > 0)), found(kernel, sampler, count=count)
        assert count == phi.projection.D
        rows = np.concatenate([ROWS[:20], np.zeros((1, 3))])
        t = drawn.weights * (rows @ drawn.omega.T)
        replaced = slope**2 * (rows @ rows.T - t @ t.T)
        if whole:
            np.testing.assert_allclose(replaced, 0.0, atol=1e-13)
        np.testing.assert_allclose(
            phi.gram(rows, rows), pair_form(kernel, drawn, rows) + replaced, rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("kernel", [kernels.ArcCosine(0), kernels.ArcCosine(1), kernels.Pointwise("tanh")], ids=repr)
def test_reflected_features_beat_the_pair_form_of_as_many_columns(kernel):
    """At d = 16 and 170 columns, 0.70 to 0.77 of its error: twice the points, less the inputs' columns."""
    X = np.random.default_rng(0).standard_normal((100, 16))
    exact = kernel.gram(X, X)
    ours = theirs = 0.0
    for seed in range(10):
        pairs = found(kernel, Quadrature(), count=85, d=16, seed=seed)
        ours += np.linalg.norm(draw(kernel, Quadrature(), d=16, m=170, seed=seed).gram(X, X) - exact)
        theirs += np.linalg.norm(pair_form(kernel, pairs, X) - exact)
    assert ours < 0.85 * theirs


@pytest.mark.parametrize("kernel", NAMED, ids=repr)
def test_reflected_features_without_intercept(kernel):
    """phi's constant and the centre are one more column, never negative for step and sigmoid; else it is refused."""
    constant, slope = bool(kernel.activation.split.constant), bool(kernel.activation.split.slope)
    m = 16 + 3 * slope + bool(kernel.centre)
    refused = 0
    for seed in range(20):
        try:
            kept = draw(kernel, Quadrature(mixing="haar"), m=m, seed=seed, intercept=False)
        except InputError as error:
            assert "no place for a negative one" in str(error)
            refused += 1
            continue
        left = draw(kernel, Quadrature(mixing="haar"), m=m - bool(kernel.centre), seed=seed)
        assert kept.m == m and left.m == m - bool(kernel.centre)
        np.testing.assert_allclose(kept.gram(ROWS, ROWS), left.gram(ROWS, ROWS), rtol=1e-12, atol=1e-14)
        if constant:
            assert kept.transform(ROWS)[:, -1] == pytest.approx(kernel.scale / 2, rel=1e-12)
    assert (refused > 0) == (kernel.centre != 0 and not constant)
    if constant:  # also where the rule has no centre
        assert draw(kernel, Quadrature((1, 3)), m=17, intercept=False).centre_column


@pytest.mark.parametrize("kernel", [kernels.ArcCosine(1), kernels.Pointwise("softplus")], ids=repr)
def test_linear_parts_need_a_column_for_each_input(kernel):
    least = 60 + 1 + (kernel.centre != 0)
    assert draw(kernel, Quadrature(centre="redraw"), d=60, m=least, intercept=False).m == least
    words = (
        f"n_features is {least - 1}, .* need {least} or more, 60 of them .* raise it, or use sampler iid or orthogonal"
    )
    with pytest.raises(InputError, match=words):
        draw(kernel, Quadrature(centre="redraw"), d=60, m=least - 1, intercept=False)
    assert draw(kernel, Orthogonal(), d=60, m=least - 1, intercept=False).m == least - 1


@pytest.mark.parametrize("kernel", SCALARS, ids=repr)
@pytest.mark.parametrize("sampler", [IID(), Orthogonal(), Fastfood(), QMC(), Quadrature()], ids=repr)
def test_products_of_features_near_the_kernel_as_m_grows(kernel, sampler):
    exact = kernel.gram(ROWS, ROWS)

    def error(m):
        return np.mean([np.linalg.norm(draw(kernel, sampler, m=m, seed=s).gram(ROWS, ROWS) - exact) for s in range(4)])

    assert error(4096) < 0.5 * error(128) and error(4096) < 0.15 * np.linalg.norm(exact)


def test_the_ceiling_holds_and_the_columns_used_are_told():
    """n_features is a ceiling: pairs take the even number below, explicit features as many as there are."""
    for kernel, sampler, wanted, used in (
        (GAUSSIAN, IID(), 65, 64),
        (kernels.ArcCosine(1), IID(), 65, 65),
        (kernels.ArcCosine(0), Quadrature(), 65, 65),
        (kernels.ArcCosine(1), Quadrature(), 65, 65),
        (kernels.Pointwise(np.expm1), Quadrature(), 65, 64),
        (GAUSSIAN, GaussQuadrature(points=2), 65, 16),  # 2^3 nodes
        (kernels.Polynomial(2), Orthogonal(), 65, 10),
        (kernels.Polynomial(9), Orthogonal(), 65, 65),
    ):
        recipe = Recipe.of(kernel, sampler, d=3, n_features=wanted)
        phi = recipe.draw(0).phi
        assert recipe.m == phi.m == used
        assert phi.transform(ROWS).shape == (len(ROWS), used)
    with pytest.raises(InputError, match="n_features is 1"):
        Recipe.of(GAUSSIAN, IID(), d=3, n_features=1)


@pytest.mark.parametrize("kernel", [GAUSSIAN, kernels.Pointwise("cos")], ids=repr)
def test_the_centre_is_a_column_or_left_to_the_intercept(kernel):
    """Without intercept a rule's centre is one more column; with one it counts in `gram` alone."""
    signed, redraw = Quadrature(mixing="haar"), Quadrature(mixing="haar", centre="redraw")
    zero = np.zeros((1, 3))
    for seed in range(12):
        kept = draw(kernel, redraw, m=17, seed=seed, intercept=False)
        left = draw(kernel, redraw, m=16, seed=seed)
        assert kept.m == 17 and np.ptp(kept.transform(ROWS)[:, -1]) == 0
        np.testing.assert_allclose(kept.gram(ROWS, ROWS), left.gram(ROWS, ROWS), rtol=1e-12)
    if kernel == GAUSSIAN:
        assert draw(kernel, signed, m=16).gram(zero, zero)[0, 0] == pytest.approx(1.0)
        with pytest.raises(InputError, match="no place for a negative one; fit an intercept, set centre: redraw"):
            [draw(kernel, signed, m=17, seed=seed, intercept=False) for seed in range(20)]


@pytest.mark.parametrize("offset", [0.0, 1.5])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_monomials_are_the_polynomial_kernel(degree, offset):
    kernel = kernels.Polynomial(degree, offset=offset, scale=0.7)
    phi = draw(kernel, m=200)
    assert isinstance(phi, Monomials)
    wanted = PolynomialFeatures(degree, include_bias=True).fit(ROWS).n_output_features_
    assert phi.m == monomial_count(kernel, 3) == (wanted if offset else math.comb(2 + degree, degree))
    np.testing.assert_allclose(phi.gram(ROWS, ROWS), kernel.gram(ROWS, ROWS), rtol=1e-11, atol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_maclaurin_features_are_unbiased(offset):
    kernel = kernels.Polynomial(3, offset=offset, scale=0.5)
    X = ROWS[:4]
    recipe = Recipe.of(kernel, Orthogonal(), d=3, n_features=9)
    assert isinstance(recipe.draw(0).phi, Maclaurin)
    found = np.array([recipe.draw(seed).phi.gram(X, X) for seed in range(4000)])
    assert_mean(found, kernel.gram(X, X))
    assert found[0].std() > 0
    with pytest.raises(InputError, match="needs a column for each of its 7 degrees"):
        draw(kernels.Polynomial(6), m=6)


def test_maclaurin_features_leave_columns_for_every_degree():
    """The inputs take d columns at most: without that a small scale would give nearly all columns to degree 1."""
    phi = draw(kernels.Polynomial(3, scale=1e-4), Orthogonal(), d=20, m=200)
    sizes = np.bincount(phi.degrees)
    assert sizes[0] == 1 and sizes[1] == 20 and sizes[2] > 100 and sizes[3] > 30
    X = np.random.default_rng(0).standard_normal((30, 20))
    np.testing.assert_allclose(phi.transform(X)[:, 1:21], math.sqrt(3e-4) * X, rtol=1e-12)


def test_what_is_no_kernel_sampler_or_block_is_refused():
    for make, words in (
        (lambda: Recipe.of(GAUSSIAN, "rom", d=3, n_features=8), "sampler must be one of dorff.frequencies"),
        (lambda: Recipe.of(kernels.CurlFree(GAUSSIAN), IID(), d=3, n_features=8), "kernel must be a scalar one"),
        (lambda: Recipe.of(GAUSSIAN, IID(), d=0, n_features=8), "d, the number of inputs, must be"),
        (lambda: Recipe.of(kernels.Laplacian(1.0), Quadrature(), d=3, n_features=8), "use iid or qmc"),
        (lambda: Recipe.of(GAUSSIAN, IID(), d=3, n_features=41.5), "n_features must be a whole number, not 41.5"),
        (lambda: Recipe.of(GAUSSIAN, IID(), d=3, n_features=8).draw(-1), "seed must be a whole number of 0 or more"),
        (lambda: draw(GAUSSIAN).transform(np.zeros((2, 4))), r"X must be \(rows, 3\).*got shape \(2, 4\)"),
        (lambda: draw(GAUSSIAN).transform(np.zeros(3)), r"X must be \(rows, 3\)"),
        (lambda: kernels.Gaussian([8, "x"]), "lengthscale must be a positive number or a list"),
    ):
        with pytest.raises(InputError, match=words):
            make()


@pytest.mark.statistical
def test_mercer_features_are_unbiased_and_exact_when_all_fit():
    kernel = kernels.Mercer.named("brownian", 12)
    x = np.linspace(0, 1, 5)[:, None]
    exact = kernel.gram(x, x)
    np.testing.assert_allclose(draw(kernel, d=1, m=12).gram(x, x), exact, atol=1e-12)
    found = np.array([draw(kernel, d=1, m=4, seed=seed).gram(x, x) for seed in range(3000)])
    assert_mean(found, exact)


def test_explicit_kernels_refuse_a_sampler_they_have_no_use_for():
    with pytest.raises(InputError, match="a Polynomial kernel brings features of its own"):
        draw(kernels.Polynomial(2), ROM())


EVERY = [(GAUSSIAN, Orthogonal()), (GAUSSIAN, Fastfood()), (GAUSSIAN, Quadrature()), (kernels.ArcCosine(1), ROM()),
         (kernels.ArcCosine(0), Quadrature(mixing="haar")), (kernels.Pointwise("tanh"), Quadrature()),
         (kernels.ArcCosine(1), Quadrature()), (kernels.Pointwise("sigmoid"), Quadrature()),
         (kernels.Polynomial(2), IID()), (kernels.Polynomial(8), IID()),
         (kernels.Mercer.named("brownian", 100), IID())]  # fmt: skip


@pytest.mark.parametrize(("kernel", "sampler"), EVERY, ids=repr)
@pytest.mark.parametrize("d", [3, 120])
def test_a_map_survives_json_and_arrays(kernel, sampler, d):
    if isinstance(kernel, kernels.Mercer):
        d = 1
    X = np.random.default_rng(1).uniform(0, 1, (40, d))
    features = FeatureMap(draw(kernel, sampler, d=d, m=160), np.full(d, 0.0), np.full(d, 2.0))
    again = features_from(json.loads(json.dumps(features.phi.config())), feature_arrays(features))
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    assert type(again.phi) is type(features.phi) and again.m == features.m


def test_damaged_maps_are_refused():
    features = FeatureMap(draw(GAUSSIAN, Fastfood(), d=60, m=70), np.zeros(60), np.ones(60))
    config, arrays = features.phi.config(), feature_arrays(features)
    for name, value in (
        ("rows", arrays["rows"][::-1].copy()), ("rows", arrays["rows"].astype(np.int32)), ("scale", np.zeros(60)),
        ("diagonals", arrays["diagonals"][:, :0]), ("rows", arrays["rows"] + 64),
        ("permutation", arrays["permutation"] - 1), ("gains", arrays["gains"][1:]),
        ("center", np.zeros(59)), ("feature_weights", arrays["feature_weights"][1:]), ("stretch", np.ones(65)),
    ):  # fmt: skip
        with pytest.raises(InputError):
            features_from(config, {**arrays, name: value})
    with pytest.raises(InputError, match="do not fit each other"):
        features_from(config, {name: value for name, value in arrays.items() if name != "diagonals"})
    for wrong in ({"type": "wavelets"}, {**config, "transform": "fft"}):
        with pytest.raises(InputError, match="not known; it is of a newer version"):
            features_from(wrong, arrays)


def test_kernels_of_python_functions_work_in_memory_only():
    phi = draw(kernels.Pointwise(np.tanh), IID(), m=4096)
    exact = kernels.Pointwise("tanh").gram(ROWS, ROWS)
    assert np.linalg.norm(phi.gram(ROWS, ROWS) - exact) < 0.1 * np.linalg.norm(exact)
    with pytest.raises(InputError, match="stored"):
        phi.config()


@given(start=st.integers(0, 60), rows=st.integers(1, 70))
@LAW
def test_rows_do_not_depend_on_their_block(start, rows):
    """Structured maps give a row the same bits alone or in any block; dense ones to rounding (BLAS)."""
    X = np.random.default_rng(3).standard_normal((130, 120))
    for sampler, exact in ((Fastfood(), True), (Quadrature(), True), (IID(), False)):
        phi = draw(GAUSSIAN, sampler, d=120, m=90)
        whole, part = phi.transform(X)[start : start + rows], phi.transform(X[start : start + rows])
        np.testing.assert_allclose(part, whole, atol=0.0 if exact else 1e-14)


def test_a_map_writes_only_its_columns_and_centres_and_scales():
    features = trig_map(np.random.default_rng(0).standard_normal((10, 3)), np.arange(3.0), np.array([1.0, 2.0, 4.0]))
    out = np.full((70, 23), -7.0)
    features(ROWS, out, features.workspace(8))
    np.testing.assert_array_equal(out[:, 20:], -7.0)
    angles = (ROWS - features.center) / features.scale @ features.phi.omega.T
    np.testing.assert_allclose(out[:, :10], np.cos(angles) / math.sqrt(10), atol=1e-14)
    np.testing.assert_allclose(out[:, :20], features.transform(ROWS), atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "sampler"),
    [(GAUSSIAN, Orthogonal()), (GAUSSIAN, Quadrature()), (kernels.ArcCosine(1), IID()),
     (kernels.ArcCosine(1), Quadrature()), (kernels.Polynomial(3), IID()),
     *((kernels.Pointwise(name), sampler) for name in FUNCTIONS if name != "step"
       for sampler in (IID(), Quadrature()))],
    ids=repr,
)  # fmt: skip
def test_jacobian_against_central_differences(kernel, sampler):
    phi = draw(kernel, sampler, m=100)
    W = np.random.default_rng(1).standard_normal((phi.m, 2))
    step = 1e-6
    for j in range(3):
        shift = step * np.eye(3)[j]
        slope = (phi.transform(ROWS + shift) - phi.transform(ROWS - shift)) @ W / (2 * step)
        np.testing.assert_allclose(phi.jacobian(ROWS, W)[:, :, j], slope, rtol=2e-6, atol=2e-6)


def test_features_without_a_derivative_say_so():
    for kernel in (kernels.ArcCosine(0), kernels.Mercer.named("brownian", 5)):
        phi = draw(kernel, d=1, m=4)
        with pytest.raises(InputError, match="jacobian"):
            phi.jacobian(np.zeros((1, 1)), np.ones((phi.m, 1)))


def test_a_python_function_that_is_no_phi_is_refused():
    with np.errstate(all="ignore"), pytest.raises(InputError, match="phi must give a finite number"):
        draw(kernels.Pointwise(np.log), IID()).transform(ROWS)
    with pytest.raises(InputError, match=r"gave shape \(70, 1\) for \(70, 64\)"):
        draw(kernels.Pointwise(lambda t: t[:, :1]), IID()).transform(ROWS)
