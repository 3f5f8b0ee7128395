"""Frequencies: the laws of radii and directions, determinism, and the density of a mixture."""

import numpy as np
import pytest
from cases import MEASURES, SAMPLERS, assert_mean, estimated_gram, every_kernel, feature_matrix, positive
from scipy import stats

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.frequencies import IID, QMC, ROM, SORF, Fastfood, GaussQuadrature, Orthogonal, Quadrature
from dorff.frequencies.samplers import directions, frame, orthogonal_directions, padded
from dorff.kernels import Measure

S = 0.4  # lengthscale
samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=["iid", "orthogonal"])


def radius_law(measure, d):
    """The laws of |omega| s for the isotropic Gaussian: Minh's eq. 37, 39 and 54."""
    return {"unbounded": stats.chi(d), "trace": stats.chi(d + 2), "bounded": stats.chi(d, scale=np.sqrt(2))}[measure]


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


def defensive(r, d):
    """P(|omega| s <= r) under (1 + |s omega|^2) rho_0: a mixture of chi(d) and chi(d + 2), 1 to d."""
    return (stats.chi(d).cdf(r) + d * stats.chi(d + 2).cdf(r)) / (1 + d)


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", [Orthogonal(), SORF(), ROM(), Fastfood()], ids=repr)
@pytest.mark.parametrize("measure", ["trace", "defensive", "unbounded", "bounded"])
@pytest.mark.parametrize("d", [1, 3, 4, 5, 50, 64])
def test_rotations_have_the_radii_of_the_measure_in_the_space_of_the_inputs(sampler, measure, d):
    """Padding to a power of two must not show: |omega| has the law of R^d, whatever n is, and is never zero."""
    kernel = kernels.CurlFree(kernels.Gaussian(S), measure)
    count = 1000
    found = sampler.draw(kernel, d=d, p=d, count=count, seed=d)
    radii = np.linalg.norm(found.omega, axis=1) * S
    law = (lambda r: defensive(r, d)) if measure == "defensive" else radius_law(measure, d).cdf
    assert radii.min() > 0 and stats.kstest(radii, law).pvalue > 1e-3
    if measure != "unbounded":
        assert stats.kstest(radii, stats.chi(d).cdf).pvalue < 0.01  # the test tells it from rho_0's
    assert np.all(np.isfinite(found.log_density)) and len(found.weights) == count
    if d >= 48 and not isinstance(sampler, Orthogonal):
        assert found.transform.kind == "hadamard"
        assert len(found.transform.diagonals) <= -(-count // d) and padded(d) == 64


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
    assert_mean(blocks, 0.0)
    assert_mean(np.einsum("bki,bkj->bkij", blocks, blocks), np.eye(d) / d)
    assert_mean(blocks**4, 3.0 / (d * (d + 2)))
    assert_mean(blocks**3, 0.0)


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
    assert_mean(np.einsum("bi,bj->bij", blocks, blocks), np.eye(d * d) / d)


@pytest.mark.parametrize(("d", "count"), [(1, 9), (3, 3001), (70, 150)])
def test_blocks_that_are_drawn_together_are_those_drawn_one_by_one(d, count):
    rng = np.random.default_rng(0)
    each = [frame(rng, min(d, count - start), d) for start in range(0, count, d)]
    np.testing.assert_array_equal(orthogonal_directions(np.random.default_rng(0), count, d), np.concatenate(each))


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
    assert_mean(np.array(means), 1.0)


@samplers
def test_places_of_a_mixture_are_exchangeable(sampler):
    """Leaving out the last pairs must not leave out one of the spectra."""
    radii = [np.linalg.norm(sampler.draw(mixture(), d=2, p=2, count=12, seed=s).omega, axis=1) for s in range(400)]
    late = np.array(radii)[:, 6:].mean(axis=1) - np.array(radii)[:, :6].mean(axis=1)
    assert_mean(late, 0.0)


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
    with pytest.raises(InputError, match="'laguerre' is not known; use one of: orthogonal, iid"):
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


@pytest.mark.parametrize("sampler", [SORF(), ROM(), Fastfood()], ids=repr)
def test_the_recipe_of_a_rule_says_whether_weights_depend_on_the_frequency(sampler):
    """Frequencies depend on it: fixed radii where psi is one matrix, else the measure's own."""
    g, plain = kernels.Gaussian(S), kernels.Decomposable(kernels.Gaussian(S)).fix(3, 3)
    weighed, wide = kernels.CurlFree(g, "unbounded"), kernels.Decomposable(kernels.Gaussian(2 * S)).fix(3, 3)
    first = [sampler.draw(kernel, d=3, p=3, count=8, seed=0).omega for kernel in (plain, weighed)]
    assert not np.array_equal(*first)
    assert [sampler.recipe(kernel, d=3, p=3, count=8)[0]["weighed"] for kernel in (plain, weighed)] == [False, True]
    flags = [law["weighed"] for law in sampler.recipe(plain + wide + weighed * 0.5, d=3, p=3, count=20)]
    assert flags == [True, False]  # of the law of the first and the last term, and of the second's
    assert [law["weighed"] for law in sampler.recipe(weighed + plain, d=3, p=3, count=20)] == [True]
    radii = np.linalg.norm(SORF().draw(plain + wide, d=4, p=3, count=16, seed=0).omega, axis=1) * S
    np.testing.assert_allclose(np.unique(np.round(radii, 12)), [1.0, 2.0])


GAUSSIAN, WIDE, MATERN = kernels.Gaussian(0.8), kernels.Gaussian(1.5), kernels.Matern(1.0, nu=3.5)
A = positive(3, 2)


def apart(*terms):
    return kernels.Sum(terms, concatenate=True)


#: Kernels of several laws, for rules and for dense samplers alike.
SEVERAL = {
    "two scalars": kernels.Sum([(1.0, kernels.Decomposable(GAUSSIAN, A)), (0.5, kernels.CurlFree(WIDE))]),
    "concatenated": apart((1.0, kernels.Decomposable(GAUSSIAN, A)), (0.5, kernels.CurlFree(WIDE))),
    "one law twice": apart((0.3, kernels.CurlFree(GAUSSIAN)), (0.2, kernels.DivergenceFree(GAUSSIAN))),
    "one scalar twice": apart((1.0, kernels.Decomposable(WIDE, A)), (2.0, kernels.Decomposable(WIDE))),
    "with a zero": apart(
        (0.0, kernels.DivergenceFree(GAUSSIAN)), (0.4, kernels.CurlFree(GAUSSIAN)), (1.0, kernels.CurlFree(WIDE))
    ),
}
UNBIASED = (IID(), Orthogonal(), QMC(), Fastfood(), Quadrature(mixing="haar"), Quadrature((1, 3), mixing="haar"))


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", UNBIASED, ids=repr)
@pytest.mark.parametrize("name", SEVERAL)
def test_kernels_of_several_laws_are_estimated_without_bias(name, sampler):
    kernel = SEVERAL[name].fix(3, 3)
    X, Z = np.random.default_rng(0).uniform(0, 1, (2, 2, 3))
    found = [sampler.draw(kernel, d=3, p=3, count=30, seed=seed) for seed in range(150)]
    grams = np.array([estimated_gram(kernel, one, X, Z, 3) for one in found])
    assert_mean(grams, kernel.gram(X, Z))
    one = found[0]
    if not np.any(one.centres):  # the features of a fit are that estimate
        Phi, Psi = (feature_matrix(kernel, one, points) for points in (X, Z))
        np.testing.assert_allclose(np.einsum("nps,kqs->nkpq", Phi, Psi), grams[0], atol=1e-12 * np.abs(grams[0]).max())


@pytest.mark.parametrize("sampler", [*UNBIASED, SORF(), GaussQuadrature()], ids=repr)
def test_each_term_of_a_concatenated_sum_has_its_own_frequencies(sampler):
    for name in ("concatenated", "one law twice", "one scalar twice", "with a zero"):
        kernel = SEVERAL[name].fix(3, 3)
        found = sampler.draw(kernel, d=3, p=3, count=40, seed=1)
        terms = kernel.terms()
        assert found.serves.shape == (len(terms), len(found.weights)) and np.all(found.serves.sum(axis=0) == 1)
        laws = {law.terms[0]: law for law in sampler.laws(kernel, 3, 3)}
        shares = np.array([weight * base.trace(3, 3) for weight, base in terms])
        counts = found.serves.sum(axis=1)
        assert np.all((counts > 0) == (shares > 0)) and np.all(np.abs(counts - 40 * shares / shares.sum()) <= 2)
        for number, law in laws.items():
            served = found.serves[number]
            own = law.log_density(found.omega[served])
            np.testing.assert_allclose(found.log_density[served], own, rtol=1e-9, atol=1e-9)
            # Normalised within the term: the weights and the centre of one rule add to one.
            assert np.sum(found.weights[served] ** 2) + found.centres[number] == pytest.approx(1.0)
        # In random order: the last ones are not of one term alone.
        assert all(0 < np.sum(row[:20]) < row.sum() for row in found.serves if row.sum() > 9)


@pytest.mark.parametrize("sampler", [SORF(), Quadrature(), GaussQuadrature(), Fastfood()], ids=repr)
def test_rules_take_law_by_law_what_they_cannot_mix(sampler):
    curl, div = kernels.CurlFree(GAUSSIAN), kernels.DivergenceFree(GAUSSIAN)
    one = sampler.draw(0.3 * curl + 0.7 * div, d=2, p=2, count=24, seed=0)
    assert one.serves is None and one.log_density is not None  # one law: the same frequencies for both
    np.testing.assert_array_equal(one.omega, sampler.draw(curl, d=2, p=2, count=24, seed=0).omega)
    (law,) = sampler.laws(curl, 2, 2)
    np.testing.assert_allclose(one.log_density, law.log_density(one.omega), rtol=1e-12)
    plain = sampler.draw(kernels.Decomposable(GAUSSIAN).fix(2, 2), d=2, p=2, count=24, seed=0)
    assert plain.log_density is None and plain.serves is None  # nobody needs omega written out
    three = sampler.draw((curl + div + kernels.DivergenceFree(WIDE)).fix(2, 2), d=2, p=2, count=24, seed=0)
    np.testing.assert_array_equal(three.serves[0], three.serves[1])
    np.testing.assert_array_equal(three.serves[2], ~three.serves[0])


FIELDS = {
    "one law": kernels.CurlFree(GAUSSIAN),
    "two laws": kernels.CurlFree(GAUSSIAN) + kernels.DivergenceFree(WIDE),
    "concatenated": apart((1.0, kernels.CurlFree(GAUSSIAN)), (1.0, kernels.Decomposable(GAUSSIAN))),
    "decomposable": kernels.Decomposable(GAUSSIAN),
    "arc-cosine": kernels.Decomposable(kernels.ArcCosine(1)),
}


@pytest.mark.parametrize(
    "sampler", [*UNBIASED, SORF(), ROM(blocks=2), Quadrature(), GaussQuadrature(), GaussQuadrature(points=3)], ids=repr
)
@pytest.mark.parametrize("name", FIELDS)
def test_the_cost_is_that_of_what_is_drawn(sampler, name):
    for d, count in ((2, 20), (3, 700), (60, 200)):
        fixed = FIELDS[name].fix(d, d)
        found = sampler.draw(fixed, d=d, p=d, count=count, seed=0)
        cost = sampler.cost(fixed, d=d, p=d, count=count)
        assert cost.frequencies == len(found.weights) <= count
        assert sum(array.nbytes for array in found.transform.arrays().values()) <= 8 * cost.numbers
        assert 0 < cost.flops <= 2 * d * count


@pytest.mark.parametrize(
    ("sampler", "scalar", "name"),
    [
        *((sampler, GAUSSIAN, "trace") for sampler in (IID(), QMC(), Orthogonal(), SORF(), ROM(), Fastfood())),
        *((sampler, GAUSSIAN, "unbounded") for sampler in (Quadrature(), GaussQuadrature())),
        *((sampler, kernels.Gaussian([0.5, 0.7, 2.0]), "trace") for sampler in (IID(), QMC())),
        *((sampler, kernels.Gaussian([0.5, 0.7, 2.0]), "unbounded") for sampler in (Orthogonal(), SORF(), Fastfood())),
        (IID(), kernels.Cauchy(1.0), "trace"),
    ],
    ids=str,
)
def test_a_measure_left_out_is_the_best_that_the_sampler_has(sampler, scalar, name):
    (law,) = sampler.laws(kernels.CurlFree(scalar), 3, 3)
    assert law.measure == Measure.of(name)
    (law,) = sampler.laws(kernels.CurlFree(scalar, "unbounded"), 3, 3)
    assert law.measure == Measure.UNBOUNDED
    (law,) = sampler.laws(kernels.Decomposable(scalar), 3, 3)
    assert law.measure == Measure.UNBOUNDED


def test_the_default_sampler_is_orthogonal_where_no_rotation_shows():
    several, even = kernels.Gaussian([0.5, 0.7]), kernels.Gaussian([0.5, 0.5])
    fields = (kernels.CurlFree(GAUSSIAN), kernels.CurlFree(even), kernels.CurlFree(several, "unbounded"),
              kernels.CurlFree(several, "defensive"))  # fmt: skip
    scalars = (several, kernels.ArcCosine(1), kernels.Polynomial(2))
    for kernel in (*fields, *(kernels.Decomposable(scalar) for scalar in scalars)):
        assert frequencies.default_sampler(kernel) == Orthogonal()
        assert frequencies.default_sampler(kernel + kernels.Decomposable(kernels.Cauchy(1.0))) == IID()
    for kernel in (kernels.CurlFree(several), kernels.DivergenceFree(kernels.Cauchy(1.0))):
        assert frequencies.default_sampler(kernel) == IID()


@pytest.mark.parametrize("sampler", [IID(), SORF(), Quadrature()], ids=repr)
def test_recipes_tell_apart_what_is_drawn_apart(sampler):
    """Two kernels of one recipe have one set of frequencies, and what a fit needs to know of them."""
    curl, wide = kernels.CurlFree(GAUSSIAN), kernels.CurlFree(WIDE)
    own, split = kernels.CurlFree(GAUSSIAN, "unbounded"), [Measure.bounded(share) for share in (0.3, 0.4)]
    family = (curl, own, kernels.Decomposable(GAUSSIAN), curl + wide, wide + curl, apart((1.0, curl), (1.0, wide)),
              apart((1.0, wide), (1.0, curl)), apart((1.0, curl), (1.0, curl)), 2.0 * curl, curl + 3.0 * wide,
              *(kernels.CurlFree(GAUSSIAN, measure) for measure in split))  # fmt: skip
    drawn = []
    for kernel in family:
        fixed = kernel.fix(2, 2)
        try:
            found = sampler.draw(fixed, d=2, p=2, count=12, seed=0)
        except InputError:
            assert isinstance(sampler, Quadrature)  # which has no bounded measures
            continue
        drawn.append((sampler.recipe(fixed, d=2, p=2, count=12), found))
    for first, one in drawn:
        for second, other in drawn:
            same = (
                np.array_equal(one.omega, other.omega)
                and (one.log_density is None) == (other.log_density is None)
                and (one.log_density is None or np.array_equal(one.log_density, other.log_density))
                and (one.serves is None) == (other.serves is None)
                and (one.serves is None or np.array_equal(one.serves, other.serves))
            )
            assert (first == second) == same


@pytest.mark.parametrize("measure", (*MEASURES, "defensive"))
@pytest.mark.parametrize("scalar", [kernels.Gaussian(0.8), kernels.Gaussian([0.7, 1.0, 1.5])], ids=str)
def test_qmc_serves_every_measure_and_beats_iid(scalar, measure):
    X, Z = np.random.default_rng(0).uniform(0, 1, (2, 3, 3))
    kernel = kernels.CurlFree(scalar, measure)
    exact = kernel.gram(X, Z)

    def grams(sampler):
        drawn = (sampler.draw(kernel, d=3, p=3, count=128, seed=seed) for seed in range(40))
        return np.array([estimated_gram(kernel, found, X, Z, 3) for found in drawn])

    quasi, plain = grams(QMC()), grams(IID())
    assert_mean(quasi, exact)
    assert np.linalg.norm(quasi - exact) < 0.7 * np.linalg.norm(plain - exact)
