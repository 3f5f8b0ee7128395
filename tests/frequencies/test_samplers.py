"""Quadrature rules, structured and quasi-random frequencies: their points, weights, laws, biases and costs."""

import itertools

import numpy as np
import pytest
from cases import LAW, assert_mean
from dense_butterfly import butterfly_matrix
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.frequencies import IID, QMC, ROM, SORF, Fastfood, GaussQuadrature, Orthogonal, Quadrature
from dorff.frequencies.quadrature import butterfly_angles
from dorff.frequencies.samplers import padded, some_rows, with_an_entry
from dorff.loops import simplex_vertices

HAAR = Quadrature(mixing="haar")
STRUCTURED = (SORF(), ROM(), ROM(blocks=2), Fastfood(), Quadrature(), Quadrature((1, 3)))
EVERY = (IID(), Orthogonal(), *STRUCTURED, QMC(), QMC("halton"), QMC("halton", scramble=False), GaussQuadrature(),
         HAAR, Quadrature((1, 1)), Quadrature((1, 3), mixing="haar"), Quadrature(radii="shared"),
         Quadrature(centre="redraw"), Quadrature(centre="drop"))  # fmt: skip
#: Said to be unbiased, for kernels that are expectations over a law no rotation changes.
UNBIASED = (IID(), Orthogonal(), Fastfood(), QMC(), QMC("halton"), Quadrature((1, 1)), HAAR,
            *(Quadrature((1, 3), mixing="haar", radii=radii) for radii in ("own", "shared")),
            Quadrature(mixing="haar", radii="shared"))  # fmt: skip
GAUSSIAN = kernels.Gaussian(1.0)


def draw(sampler, kernel=GAUSSIAN, *, d, count, seed=0):
    return sampler.draw(kernels.Decomposable(kernel).fix(d, 1), d=d, p=1, count=count, seed=seed)


def estimates(sampler, kernel, X, Z, *, count, draws):
    """(draws, n, k): the kernel estimated by independent draws."""
    recipe = Recipe.of(kernel, sampler, d=X.shape[1], n_features=count, intercept=True)
    return np.array([recipe.draw(seed).phi.gram(X, Z) for seed in range(draws)])


def points(d):
    """Two pairs of rows: apart along an axis, and along a direction with all inputs in it; none at the origin."""
    X = np.zeros((2, d))
    X[:, 0] = 0.4
    Z = X + np.stack([np.eye(d)[0], np.full(d, 1 / np.sqrt(d))])
    return X, Z


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", UNBIASED, ids=repr)
@pytest.mark.parametrize("kernel", [GAUSSIAN, kernels.ArcCosine(0), kernels.ArcCosine(1)], ids=repr)
@pytest.mark.parametrize("d", [2, 5])
def test_unbiased_samplers_are(sampler, kernel, d):
    """The mean over independent draws is the exact kernel, by its own standard error; whole rules and a cut one."""
    X, Z = points(d)
    draws = 300 if isinstance(sampler, QMC) else 600
    found = estimates(sampler, kernel, X, Z, count=3 * d + 7, draws=draws)
    assert_mean(found, kernel.gram(X, Z))


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [kernels.Matern(0.8, nu=2.5), kernels.RationalQuadratic(0.9, alpha=1.5)], ids=repr)
@pytest.mark.parametrize("sampler", [s for s in UNBIASED if s != IID()], ids=repr)
def test_unbiased_for_other_radial_laws(sampler, kernel):
    X, Z = points(3)
    found = estimates(sampler, kernel, X, Z, count=16, draws=400)
    assert_mean(found, kernel.gram(X, Z))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("sampler", "d", "distance", "bias"),
    [
        # DESIGN's figures: HDHDHD on e_1 at distance 2.
        (SORF(), 2, 2.0, -0.55), (SORF(), 16, 2.0, -0.04), (ROM(), 2, 2.0, -0.55),
        # Redrawing rule by rule.
        (Quadrature(mixing="haar", centre="redraw"), 4, 2.0, +0.10),
    ],
    ids=repr,
)  # fmt: skip
def test_biased_samplers_have_the_bias_that_is_told(sampler, d, distance, bias):
    X, Z = np.zeros((1, d)), distance * np.eye(d)[:1]
    rule = d + 1 if isinstance(sampler, Quadrature) else d
    found = estimates(sampler, GAUSSIAN, X, Z, count=2 * rule, draws=2000)
    assert found.mean() - GAUSSIAN.gram(X, Z)[0, 0] == pytest.approx(bias, abs=0.03)


def test_degree_1_1_is_iid_and_degree_1_3_is_orthogonal():
    """Munkhoeva's propositions 2.1 and 2.2: the same frequencies from the same seed, for any count."""
    for d, count in itertools.product((1, 3, 8), (1, 7, 20)):
        for rule, twin in ((Quadrature((1, 1)), IID()), (Quadrature((1, 3), mixing="haar"), Orthogonal())):
            first, second = draw(rule, d=d, count=count), draw(twin, d=d, count=count)
            np.testing.assert_allclose(first.omega, second.omega, rtol=1e-12)
            np.testing.assert_array_equal(first.weights, second.weights)
            assert first.centre == second.centre == 0.0


def test_shared_radii_are_another_rule():
    """The paper's SR(1,3) has one radius a rotation: not Orthogonal, and it varies more."""
    found = draw(Quadrature((1, 3), mixing="haar", radii="shared"), d=4, count=8).omega
    radii = np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(radii, np.repeat(radii[[0, 4]], 4), rtol=1e-12)
    assert radii[0] != radii[4]


@pytest.mark.parametrize("mixing", ["haar", "butterfly"])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 12])
def test_degree_3_3_is_exact_for_polynomials_of_degree_3(mixing, d):
    """Every single rule, whatever its rotation: 1, w_i, w_i w_j and cubes have the moments of N(0, I)."""
    found = draw(Quadrature(mixing=mixing), d=d, count=d + 1)
    squared, omega = found.weights**2, found.omega
    assert squared.sum() + found.centre == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(omega.T @ (omega * squared[:, None]), np.eye(d), atol=1e-12)
    assert found.reflected  # so odd moments vanish


@pytest.mark.parametrize("d", [1, 2, 3, 7, 16, 33])
def test_weights_of_degree_3_3(d):
    """d / ((d + 1) rho^2) a vertex, averaged over n rules; the centre has the rest, with either sign."""
    n = 3
    found = draw(Quadrature(mixing="haar"), d=d, count=n * (d + 1), seed=2)
    radii = np.linalg.norm(found.omega, axis=1)
    np.testing.assert_allclose(found.weights**2, d / ((d + 1) * radii**2) / n, rtol=1e-10)
    centres = [draw(HAAR, d=d, count=d + 1, seed=seed).centre for seed in range(200)]
    assert min(centres) < 0 < max(centres)
    assert all(draw(Quadrature(centre="redraw"), d=d, count=2 * d + 2, seed=seed).centre >= 0 for seed in range(50))
    assert draw(Quadrature(centre="drop"), d=d, count=d + 1).centre == 0.0


@given(d=st.integers(2, 70), seed=st.integers(0, 99))
@LAW
def test_butterfly_angles_give_the_first_column(d, seed):
    u = np.random.default_rng(seed).standard_normal(d)
    u /= np.linalg.norm(u)
    np.testing.assert_allclose(butterfly_matrix(*butterfly_angles(u))[:, 0], u, atol=1e-14)


def test_butterfly_rotations_turn_the_simplex():
    """For any d the rows are vertices of one rotated simplex (or axes of a frame), times the radii."""
    for d in (1, 2, 3, 6, 12, 50, 64, 100, 128, 130):
        omega = draw(Quadrature(), d=d, count=d + 1).omega
        unit = omega / np.linalg.norm(omega, axis=1, keepdims=True)
        np.testing.assert_allclose(unit @ unit.T, simplex_vertices(d) @ simplex_vertices(d).T, atol=1e-12)
        axes = draw(Quadrature((1, 3)), d=d, count=d).omega
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
        np.testing.assert_allclose(axes @ axes.T, np.eye(d), atol=1e-12)


def hadamard_products(chain):
    """Dense twin of the stacked blocks (B n, n), from the diagonals alone."""
    n, blocks = chain.diagonals.shape[2], []
    for b, diagonals in enumerate(chain.diagonals):
        product = np.eye(n)
        for stage, diagonal in enumerate(diagonals):
            if stage == 1 and chain.permutation.size:
                product = product[chain.permutation[b]]
            product = hadamard(n) @ (diagonal[:, None] * product)
        blocks.append(product)
    return np.concatenate(blocks)


@pytest.mark.parametrize("d", [48, 64, 100])
def test_hadamard_products_are_what_their_formulas_say(d):
    """Dense twins from the diagonals: the rows of H D3 H D2 H D1 and S H G P H B, first d columns."""
    n = padded(d)
    for sampler in (SORF(), ROM(), ROM(blocks=1), Fastfood()):
        transform = draw(sampler, d=d, count=n + 9, seed=4).transform
        blocks = hadamard_products(transform)
        expected = blocks[transform.rows, :d] * transform.gains[:, None]
        np.testing.assert_allclose(transform.dense(), expected, atol=1e-10)
        whole = blocks[transform.rows] * transform.gains[:, None]
        radii = np.linalg.norm(whole, axis=1)
        if sampler == Fastfood():  # radii of their own
            assert radii.std() > 0.1
        else:
            np.testing.assert_allclose(radii, np.sqrt(n), rtol=1e-12)
            np.testing.assert_allclose(whole[:n] @ whole[:n].T, n * np.eye(n), atol=1e-9)


@pytest.mark.parametrize("sampler", [SORF(), ROM(blocks=1), Fastfood()], ids=repr)
@pytest.mark.parametrize("d", [3, 5, 9, 17, 33, 100])
def test_rows_with_an_entry_are_kept_however_short_they_are(sampler, d):
    """And made unit vectors: leaving out short ones would turn the rest."""
    chain = sampler.directions(np.random.default_rng(3), 4 * padded(d), d)
    shown = hadamard_products(chain)[chain.rows, :d] * chain.gains[:, None]
    expected = shown[np.abs(shown).max(axis=1) > 1e-9][: 2 * d]
    np.testing.assert_allclose(
        with_an_entry(chain, 2 * d).dense(), expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-12
    )


def test_rom_differs_from_sorf_in_blocks_and_in_the_rows_of_a_part():
    n = 64
    assert draw(ROM(blocks=5), d=n, count=n).transform.diagonals.shape == (1, 5, n)
    whole, cut = (draw(ROM(), d=n, count=c).transform.rows for c in (n, 20))
    np.testing.assert_array_equal(whole, np.arange(n))
    assert len(set(cut)) == 20 and cut.max() > 20  # not the first ones
    np.testing.assert_array_equal(draw(SORF(), d=n, count=20).transform.rows, np.arange(20))


@given(width=st.integers(1, 40), count=st.integers(1, 130))
@LAW
def test_some_rows_are_whole_blocks_and_a_part(width, count):
    rows = some_rows(np.random.default_rng(0), width, count)
    assert len(rows) == count and len(set(rows.tolist())) == count and np.all(np.diff(rows) > 0)
    np.testing.assert_array_equal(rows[: count // width * width], np.arange(count // width * width))
    assert rows.max() < -(-count // width) * width


@pytest.mark.parametrize("sampler", STRUCTURED, ids=repr)
def test_structured_maps_hold_numbers_in_proportion_to_m(sampler):
    """m numbers, not m d: at d = 512 under 14 a frequency, where omega has 512; the plan counts at least those."""
    d, count = 512, 2048
    found = draw(sampler, d=d, count=count)
    held = sum(value.size for value in found.transform.arrays().values()) + found.weights.size
    assert held < 14 * count
    assert sum(array.nbytes for array in found.transform.arrays().values()) <= 8 * sampler.numbers(d, count)
    assert sampler.flops(d, count) < 2 * d * count / 4


@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_any_d_and_count(sampler):
    for d, count in itertools.product((1, 2, 3, 17, 50, 65, 130), (1, 2, 33, 130)):
        found = draw(sampler, d=d, count=count)
        assert found.omega.shape == (sampler.size(d, count), d) == (found.transform.D, found.transform.d)
        assert found.weights.shape == (found.transform.D,) and np.all(found.weights > 0)
        assert np.all(np.isfinite(found.omega))
        again = draw(sampler, d=d, count=count)
        np.testing.assert_array_equal(found.omega, again.omega)
        x = np.random.default_rng(1).standard_normal((5, d))
        out = np.empty((5, found.transform.D))
        found.transform.project(x, out)
        np.testing.assert_allclose(out, x @ found.omega.T, atol=1e-10 * max(1, np.abs(out).max()))


@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_a_lengthscale_an_input(sampler):
    """Scaling the inputs or the kernel is the same thing."""
    d = 120
    scales = np.linspace(0.5, 3.0, d)
    first = draw(sampler, kernels.Gaussian(scales), d=d, count=70).omega
    np.testing.assert_allclose(first * scales, draw(sampler, d=d, count=70).omega, rtol=1e-12, atol=1e-12)


def test_gauss_quadrature_takes_a_small_grid_whole():
    """In one dimension 8 nodes integrate polynomials up to degree 15 exactly."""
    found = draw(GaussQuadrature(), d=1, count=100)
    assert found.transform.D == 8
    moments = [np.sum(found.weights**2 * found.omega[:, 0] ** k) for k in (0, 2, 4, 14, 15)]
    np.testing.assert_allclose(moments, [1, 1, 3, 135135, 0], atol=1e-7)
    assert draw(GaussQuadrature(points=3), d=4, count=81).transform.D == 81
    assert draw(GaussQuadrature(points=3), d=4, count=80).transform.D == 80
    assert set(np.round(np.abs(draw(GaussQuadrature(points=3), d=4, count=80).omega.ravel()), 9)) <= {0, 1.732050808}
    with pytest.raises(InputError, match="normal frequencies only, not for those of Matern"):
        draw(GaussQuadrature(), kernels.Matern(1.0, nu=2.5), d=2, count=8)


def test_qmc_beats_iid_in_few_dimensions_and_scrambling_uses_the_seed():
    X = np.random.default_rng(0).uniform(0, 2, (40, 2))
    exact = GAUSSIAN.gram(X, X)

    def error(sampler):
        return np.mean([np.linalg.norm(e - exact) for e in estimates(sampler, GAUSSIAN, X, X, count=512, draws=10)])

    for sampler in (QMC(), QMC("halton"), QMC("sobol", scramble=False), QMC("halton", scramble=False)):
        assert error(sampler) < error(IID()) / 3
    same = [np.array_equal(draw(QMC("halton", s), d=3, count=9, seed=0).omega,
                           draw(QMC("halton", s), d=3, count=9, seed=1).omega) for s in (False, True)]  # fmt: skip
    assert same == [True, False]


@pytest.mark.parametrize("kernel", [kernels.Laplacian(0.8), kernels.Cauchy([0.5, 1.0, 2.0])], ids=repr)
def test_kernels_whose_spectrum_turns_are_drawn_independently_or_quasi_randomly(kernel):
    X, Z = points(3)
    for sampler in (IID(), QMC(), QMC("halton")):
        found = estimates(sampler, kernel, X, Z, count=16, draws=400)
        assert_mean(found, kernel.gram(X, Z))
    for sampler in (Orthogonal(), SORF(), ROM(), Fastfood(), GaussQuadrature(), Quadrature()):
        with pytest.raises(InputError, match=r"no rotation changes.*use iid or qmc"):
            draw(sampler, kernel, d=3, count=8)


@pytest.mark.parametrize("sampler", [GaussQuadrature(), Quadrature(), Quadrature((1, 3))], ids=repr)
def test_rules_for_a_spectrum_refuse_other_measures(sampler):
    for measure in ("trace", "defensive", "bounded"):
        with pytest.raises(InputError, match=rf"its {measure} measure.*unbounded, or use iid, orthogonal or qmc"):
            sampler.draw(kernels.CurlFree(GAUSSIAN, measure), d=2, p=2, count=8, seed=0)
    (law,) = sampler.laws(kernels.CurlFree(GAUSSIAN), 2, 2)
    assert law.measure == kernels.Measure.UNBOUNDED  # what there is a rule for, where no measure is asked for


@pytest.mark.parametrize("sampler", [Orthogonal(), SORF(), ROM(), Fastfood()], ids=repr)
def test_rotations_refuse_laws_that_turn(sampler):
    several = kernels.Gaussian([0.5, 1.0])
    with pytest.raises(InputError, match=r"trace measure of unequal length-scales.*unbounded or the defensive"):
        sampler.draw(kernels.CurlFree(several, "trace"), d=2, p=2, count=8, seed=0)
    (law,) = sampler.laws(kernels.CurlFree(several), 2, 2)
    assert law.measure == kernels.Measure.UNBOUNDED
    for fine in (kernels.CurlFree(several, "defensive"), kernels.CurlFree(kernels.Gaussian([0.5, 0.5]), "trace")):
        (law,) = sampler.laws(fine, 2, 2)
        assert law.measure == fine.measure


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QMC("niederreiter"), "sequence must be 'sobol' or 'halton', not 'niederreiter'"),
        (lambda: ROM(blocks=0), "blocks must be a whole number from 1 to 16, not 0"),
        (lambda: ROM(blocks=17), "blocks must be a whole number from 1 to 16, not 17"),
        (lambda: ROM(blocks=True), "blocks must be a whole number from 1 to 16, not True"),
        (lambda: QMC(scramble="no"), "scramble must be True or False, not 'no'"),
        (lambda: Quadrature(degree=3), "degree must be one of"),
        (lambda: GaussQuadrature(points=1), "points must be a whole number from 2 to 64, not 1"),
        (lambda: Quadrature((5, 3)), r"degree must be one of \(1, 1\), \(1, 3\), \(3, 3\), not \(5, 3\)"),
        (lambda: Quadrature(mixing="fft"), "mixing must be one of butterfly, haar, not 'fft'"),
        (lambda: draw(Quadrature(), kernels.Matern(1.0, nu=0.5), d=2, count=8), r"second moment.*degree: \[1, 3\]"),
        (lambda: frequencies.from_config({}), "None is not known"),
    ],
)  # fmt: skip
def test_bad_samplers_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
