"""The trapezoidal rule on a box: its error against what was asked for, for every kernel that has a density."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.frequencies import lattice
from dorff.kernels import Measure
from dorff.model.weights import operator_weights
from dorff.plan.choosing import kernel_error

GAUSS, ROUGH, SMOOTH = kernels.Gaussian(0.3), kernels.Matern(0.4, nu=1.5), kernels.Matern(0.4, nu=2.5)
HEAVY = kernels.RationalQuadratic(0.4, alpha=3.0)
SCALARS = {"gaussian": GAUSS, "matern 3/2": ROUGH, "matern 5/2": SMOOTH, "rational quadratic": HEAVY}
A = [[2.0, 0.5], [0.5, 1.0]]
MANY = 60_000
FAR = 12  # copies on either side
Periods = tuple[float | None, ...]


def differences(d: int, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points of a box: opposite corners, along each side, at random, and near each other."""
    rng = np.random.default_rng(d)
    X, Z = rng.uniform(0, 1, (2, 60, d)) * sides
    X[0], Z[0] = 0.0, sides
    X[1 : d + 1], Z[1 : d + 1] = 0.0, np.diag(sides)
    Z[40:] = X[40:] + 0.02 * rng.standard_normal((20, d)) * sides
    return X, np.clip(Z, 0, sides)


def reached(recipe: Recipe, sampler: frequencies.Lattice | None = None) -> float:
    """What is said of the error of a recipe's features."""
    density, of = recipe.draw(0).density, recipe if sampler is None else replace(recipe, sampler=sampler)
    assert density is not None
    return kernel_error(recipe.kernel, density, of)


def copies(kernel: kernels.OperatorKernel, X: np.ndarray, Z: np.ndarray, periods: Periods) -> np.ndarray:
    """k(x, z) (n, p, p) of pairs of rows, of a kernel of these periods: the sum of its copies."""
    shifts = [np.zeros(1) if one is None else one * np.arange(-FAR, FAR + 1) for one in periods]
    lags = np.stack([axis.ravel() for axis in np.meshgrid(*shifts)], axis=1)
    return np.stack([kernel.gram(x + lags, z[None])[:, 0].sum(axis=0) for x, z in zip(X, Z, strict=True)])


def errors(
    kernel: kernels.OperatorKernel, d: int, p: int, error: float, sides: Any = None, *, count: int = MANY,
    intercept: bool = False, periods: Periods | None = None,
) -> tuple[float, Recipe]:  # fmt: skip
    """The largest error of k(x, z), over the largest entry of k(x, x), by the error that was asked for."""
    box = np.ones(d) if sides is None else np.asarray(sides, dtype=np.float64)
    fixed = kernel.fix(d, p, np.eye(p))
    sampler = frequencies.Lattice(error, periods=periods).over(box, constant=not intercept)
    recipe = Recipe(fixed, sampler, d, p, count, intercept)
    drawn = recipe.draw(0)
    weights = operator_weights(fixed, recipe.m, drawn.density)
    X, Z = differences(d, box)
    matrices = np.einsum("arp,arq->apq", weights.psi, weights.psi)
    F, G = drawn.phi.transform(X), drawn.phi.transform(Z)
    made = np.einsum("na,na,apq->npq", F, G, matrices)
    periods = periods or (None,) * d
    exact, at_zero = copies(fixed, X, Z, periods), copies(fixed, X[:1], X[:1], periods)
    return float(np.abs(made - exact).max() / np.abs(at_zero).max() / error), recipe


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize(("d", "error"), [(1, 1e-1), (1, 1e-3), (1, 1e-5), (2, 1e-1), (2, 1e-3), (3, 1e-1)])
def test_the_error_is_about_what_was_asked_for(scalar: str, d: int, error: float) -> None:
    got, recipe = errors(kernels.Decomposable(SCALARS[scalar]), d, 1, error)
    assert 0.2 < got < 2.0 and recipe.m < MANY


@pytest.mark.parametrize("kind", [kernels.CurlFree, kernels.DivergenceFree])
@pytest.mark.parametrize(
    ("scalar", "d", "error"),
    [(GAUSS, 2, 1e-3), (GAUSS, 3, 1e-2), (SMOOTH, 2, 1e-1), (SMOOTH, 2, 1e-2), (HEAVY, 2, 1e-2), (ROUGH, 2, 0.2)],
)
def test_so_is_that_of_fields(kind: Any, scalar: kernels.Gaussian, d: int, error: float) -> None:
    got, recipe = errors(kind(scalar), d, d, error)
    assert 0.1 < got < 2.0 and recipe.m < MANY


LENGTHS = kernels.Gaussian([0.2, 0.6])
OPERATORS: dict[str, tuple[kernels.OperatorKernel, int, int]] = {
    "one length-scale an input": (kernels.CurlFree(LENGTHS), 2, 2),
    "matrix": (kernels.Decomposable(LENGTHS, A), 2, 2),
    "helmholtz": (0.3 * kernels.CurlFree(GAUSS) + 0.7 * kernels.DivergenceFree(GAUSS), 2, 2),
    "other scalars": (0.3 * kernels.CurlFree(GAUSS) + kernels.Decomposable(kernels.Gaussian(0.6), A), 2, 2),
    "concatenated": (kernels.Sum([(1.0, kernels.Decomposable(GAUSS)), (1.0, kernels.CurlFree(HEAVY))],
                                 concatenate=True), 2, 2),
    "product": (kernels.Decomposable(kernels.Cauchy([0.3, 0.5])), 2, 1),
    "laplacian": (kernels.Decomposable(kernels.Laplacian(0.5)), 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_so_is_that_of_all_operator_kernels(name: str) -> None:
    kernel, d, p = OPERATORS[name]
    got, _ = errors(kernel, d, p, 1e-1 if name == "product" else 1e-2, np.array([1.0, 2.0])[:d])
    assert got < 2.2


@pytest.mark.parametrize("constant", [[2], [0], [1, 2]])
@pytest.mark.parametrize("kernel", [kernels.CurlFree(GAUSS), kernels.DivergenceFree(kernels.Gaussian([0.3, 0.4, 0.5])),
                                    kernels.CurlFree(SMOOTH), kernels.Decomposable(GAUSS)])  # fmt: skip
def test_an_input_that_is_constant_is_integrated_out(kernel: kernels.OperatorKernel, constant: list[int]) -> None:
    """As a walk at one height: no feature is spent on it, and outputs along it stay."""
    sides = np.where(np.isin(np.arange(3), constant), 0.0, 1.0)
    got, recipe = errors(kernel, 3, 3, 1e-2, sides)
    assert got < 2.0
    phi: Any = recipe.draw(0).phi
    assert not phi.omega[:, constant].any() and recipe.m < 2500


def test_an_input_that_hardly_varies_is_as_one_that_does_not() -> None:
    """By less than the kernel's error shows; a rough kernel sees more of it."""
    counts = {}
    for side in (0.0, 1e-12, 3e-3, 0.1):
        got, recipe = errors(kernels.CurlFree(GAUSS), 3, 3, 1e-2, np.array([1.0, 1.0, side]))
        counts[side] = recipe.m
        assert got < 2.0
    assert counts[0.0] == counts[1e-12] == counts[3e-3] < counts[0.1]
    rough, _ = errors(kernels.Decomposable(ROUGH), 2, 1, 1e-2, np.array([1.0, 3e-3]))
    assert rough < 2.0


def test_views_have_lattices_of_their_own() -> None:
    kernel = kernels.MultiView([((0, 1), kernels.Decomposable(GAUSS)), ((2,), kernels.Decomposable(ROUGH))])
    got, _ = errors(kernel, 3, 2, 1e-3, [1.0, 1.0, 2.0])
    assert got < 2.0


ROUND = {
    "short": (kernels.Decomposable(kernels.Gaussian(0.1)), (2.0,)),
    "half a period": (kernels.Decomposable(kernels.Gaussian(1.0)), (2.0,)),
    "two periods": (kernels.Decomposable(kernels.Matern(4.0, nu=2.5)), (2.0,)),
    "rough": (kernels.Decomposable(kernels.Matern(0.5, nu=1.5)), (2.0,)),
    "matrix on a torus": (kernels.Decomposable(kernels.Gaussian([0.3, 0.8]), A), (2.0, 1.0)),
    "one input": (kernels.Decomposable(kernels.Laplacian([0.4, 1.0])), (2.0, None)),
    "curl-free": (kernels.CurlFree(GAUSS), (2.0, None)),
    "divergence-free": (kernels.DivergenceFree(kernels.Gaussian([0.6, 0.3])), (None, 1.0)),
    "helmholtz": (0.3 * kernels.CurlFree(GAUSS) + 0.7 * kernels.DivergenceFree(kernels.Gaussian(0.5)), (None, 1.0)),
}


@pytest.mark.parametrize("name", ROUND)
def test_along_a_period_the_kernel_is_the_sum_of_its_copies(name: str) -> None:
    """On all of the period, across its seam too, whatever the length-scale beside it."""
    kernel, periods = ROUND[name]
    d, error = len(periods), 1e-1 if name == "one input" else 1e-2
    sides = np.array([2.0, 1.0])[:d]
    got, recipe = errors(kernel, d, d, error, sides, periods=periods)
    assert got < 1.1 and recipe.m < 3000
    phi: Any = recipe.draw(0).phi
    X = np.random.default_rng(0).uniform(0, 1, (20, d)) * sides
    for axis, period in enumerate(periods):
        moved = X + 3.0 * (period or 1.0) * np.eye(d)[axis]
        assert (np.abs(phi.transform(moved) - phi.transform(X)).max() < 1e-12) == (period is not None)
        k = phi.omega[:, axis] * (period or 1.0) / (2 * np.pi)
        assert period is None or np.abs(k - np.rint(k)).max() < 1e-12
    if d == 1:  # no finer than the period asks for
        assert recipe.lattice is not None and recipe.lattice.every == [1]


def test_a_period_needs_no_margin_and_no_varied_rows() -> None:
    kernel = kernels.Decomposable(kernels.Matern(0.3, nu=2.5))
    (_, bare), (_, turned) = (errors(kernel, 1, 1, 1e-3, periods=one) for one in (None, (1.0,)))
    assert turned.m < 0.6 * bare.m
    flat = kernels.Decomposable(kernels.Gaussian([2.5, 0.3]))  # constant along the period: a factor, and no error
    got, recipe = errors(flat, 2, 1, 1e-2, periods=(1.0, None))
    assert got < 1.1 and not recipe.draw(0).phi.omega[:, 0].any()  # type: ignore[attr-defined]
    # So long that no difference along the period is seen: the sum of copies is an integral over one of them.
    fixed = kernels.Decomposable(kernels.Gaussian([100.0, 0.3])).fix(2, 1)
    sampler = frequencies.Lattice(1e-2, periods=(1.0, None)).over(np.ones(2), constant=True)
    recipe = Recipe(fixed, sampler, 2, 1, MANY, intercept=False)
    sizes = operator_weights(fixed, recipe.m, recipe.draw(0).density).sizes[: recipe.m // 2]
    assert np.sum(sizes) == pytest.approx(100.0 * np.sqrt(2 * np.pi), rel=1e-2)


@pytest.mark.parametrize(("kernel", "error"), [
    (kernels.Decomposable(kernels.Gaussian(0.28)), 1e-3),
    (kernels.CurlFree(kernels.RationalQuadratic(0.49, alpha=3.0)), 1e-3),
])  # fmt: skip
def test_however_few_frequencies_a_period_has_the_error_is_what_was_asked_for(
    kernel: kernels.OperatorKernel, error: float
) -> None:
    """The weight of the first that is left out is no small part of what lies beyond it."""
    got, recipe = errors(kernel, 1, 1, error, periods=(1.0,))
    assert got < 1.1 and recipe.m < 12


def test_of_periods_the_error_that_is_said_counts_what_is_left_out() -> None:
    for scalar in (kernels.Gaussian(0.4), kernels.Matern(0.4, nu=2.5)):
        kernel, periods = kernels.Decomposable(scalar).fix(2, 1), (1.0, None)
        for count in (8, 20, 60):
            got, recipe = errors(kernel, 2, 1, 1e-2, count=count, periods=periods)
            counted = reached(recipe)
            assert 0.9e-2 * got < counted < 1e-2 * (got + 0.6)


SLOW = {
    "heavy tail": (kernels.RationalQuadratic(0.3, alpha=0.7), 1, 2),
    "short, of many frequencies": (kernels.Gaussian(0.015), 3, 20_000),
    "heavier": (kernels.RationalQuadratic(0.5, alpha=0.6), 1, 2),
    "three periods": (kernels.Matern(0.6, nu=1.5), 3, 10),
    "four": (kernels.Gaussian(0.45), 4, 20),
    "five": (kernels.Matern(0.7, nu=2.5), 5, 20),
}


@pytest.mark.parametrize("name", SLOW)
def test_however_slowly_copies_die_off_the_error_that_is_said_counts_what_is_left_out(name: str) -> None:
    """Against sums of the spectrum over as much of the lattice as counts, and what lies beyond the largest."""
    scalar, d, count = SLOW[name]
    fixed, law = kernels.Decomposable(scalar).fix(d, 1), Measure.UNBOUNDED
    sampler = frequencies.Lattice(1e-3, periods=(1.0,) * d).over(np.ones(d), constant=True)
    recipe = Recipe(fixed, sampler, d, 1, count, intercept=False)
    axes = [np.arange(-far, far + 1) for far in [{1: 10**5, 3: 50, 4: 8, 5: 6}[d]] * d]
    k = 2 * np.pi * np.stack([one.ravel() for one in np.meshgrid(*axes)], axis=1)
    every = np.exp(scalar.log_density(k, law)) * (2 * np.pi) ** d
    kept = operator_weights(fixed, recipe.m, recipe.draw(0).density).sizes[: recipe.m // 2].sum()
    left_out = 1.0 - kept / every.sum()
    assert recipe.m == count and left_out > 1e-3
    assert (1 - 1e-9) * left_out <= reached(recipe) <= 1.02 * left_out + 1e-9


def test_views_have_their_own_periods() -> None:
    kernel = kernels.MultiView([((0, 1), kernels.Decomposable(GAUSS)), ((2,), kernels.Decomposable(ROUGH))])
    sampler = frequencies.Lattice(1e-3, periods=(None, 1.0, 2.0)).over(np.array([1.0, 1.0, 2.0]), constant=False)
    phi: Any = Recipe(kernel.fix(3, 2, np.eye(2)), sampler, 3, 2, MANY).draw(0).phi
    X = np.random.default_rng(0).uniform(0, 1, (9, 3))
    np.testing.assert_allclose(phi.transform(X + np.array([0.0, 1.0, 2.0])), phi.transform(X), rtol=0, atol=1e-12)


def test_beside_a_free_intercept_there_is_no_frequency_of_zero() -> None:
    """What is missing is a constant: the intercept's."""
    fixed = kernels.Decomposable(GAUSS).fix(1, 1)
    with_zero, without = (
        Recipe(fixed, frequencies.Lattice(1e-4).over(np.ones(1), constant=constant), 1, 1, 999, not constant)
        for constant in (True, False)
    )
    assert with_zero.m == without.m + 2
    X = np.linspace(0, 1, 9)[:, None]
    grams = []
    for recipe in (with_zero, without):
        drawn = recipe.draw(0)
        F = drawn.phi.transform(X) * operator_weights(fixed, recipe.m, drawn.density).gain
        grams.append(F @ F.T)
    apart = grams[0] - grams[1]
    assert np.ptp(apart) < 1e-12 and apart[0, 0] > 0.1
    # Curl-free and divergence-free kernels have nothing there: psi is zero.
    got, _ = errors(kernels.CurlFree(GAUSS), 2, 2, 1e-3, intercept=True)
    assert got < 2.0


def test_n_features_is_a_ceiling_that_the_lightest_frequencies_give_way_to() -> None:
    kernel = kernels.Decomposable(GAUSS)
    full, recipe = errors(kernel, 2, 1, 1e-4)
    cut, fewer = errors(kernel, 2, 1, 1e-4, count=40)
    assert fewer.m <= 40 < recipe.m and full < 2.0 < cut
    sizes = [np.linalg.norm(one.draw(0).phi.omega, axis=1) for one in (fewer, recipe)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(sizes[0], sizes[1][: len(sizes[0])])
    assert np.all(np.diff(sizes[1]) > -1e-9)


@pytest.mark.parametrize("count", [2, 30, 400, 6000])
@pytest.mark.parametrize("least", [2**12, 2**22])
def test_a_lattice_of_several_kernels_serves_each_of_them_alone(
    count: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many frequencies as it asks for, whether or not there are enough for all, or room for other kernels."""
    monkeypatch.setattr(lattice, "MOST_GRID", least)
    lattice._modes_of.cache_clear()
    for d, sides in ((1, [1.0]), (2, [1.0, 0.4])):
        each = [kernels.Decomposable(kernels.Gaussian(s)) for s in (0.03, 0.31, 2.0)]
        each += [0.3 * kernels.CurlFree(GAUSS) + kernels.Decomposable(kernels.Gaussian(1.7)), kernels.CurlFree(SMOOTH)]
        fixed = [kernel.fix(d, d, np.eye(d)) for kernel in each]
        for intercept in (True, False):
            sampler = frequencies.Lattice(1e-2).over(np.array(sides), constant=not intercept)
            shared = Recipe(kernels.mixture(fixed, d, d), sampler, d, d, count, intercept).lattice
            assert shared is not None
            for number, kernel in enumerate(fixed):
                alone = Recipe(kernel, sampler, d, d, count, intercept)
                served = alone.on(shared)
                assert alone.m <= served.m or (number == 3 and served.m > 0.9 * alone.m)  # of two bodies
                assert served.m <= count and served.lattice is not None and served.lattice.fits()
                if alone.m < count - 2:
                    assert reached(served, sampler) < 1.2e-2
    lattice._modes_of.cache_clear()


def test_an_input_that_moves_no_kernel_by_a_tenth_of_the_error_has_no_frequencies() -> None:
    """The Gaussian falls by 5e-3 and by 5e-4; and kernels that weigh nothing are not looked at."""
    for side, varies in ((0.1, True), (0.0316, False)):
        kernel = 1.0 * kernels.Decomposable(GAUSS) + 0.0 * kernels.Decomposable(kernels.Gaussian(1e-3))
        sampler = frequencies.Lattice(1e-2).over(np.array([1.0, side * GAUSS.lengthscale]), constant=False)
        made = Recipe(kernel.fix(2, 1), sampler, 2, 1, 4000).lattice
        assert made is not None and made.modes.any(axis=0).tolist() == [True, varies] and made.D < 200


def test_a_lattice_is_made_larger_while_its_grid_is_small() -> None:
    """Of three inputs less than of two: the grid that sums are spread on has twice the points along each."""
    for sides, finer in (([1.0, 1.0], 4), ([1.0, 1.0, 1.0], 2)):
        d = len(sides)
        sampler = frequencies.Lattice(1e-3).over(np.array(sides), constant=False)
        made = Recipe(kernels.Decomposable(kernels.Gaussian(0.25)).fix(d, 1), sampler, d, 1, 8000).lattice
        assert made is not None and made.every.max() == finer
        assert np.prod(2 * (4.0 * made.extents + 1)) <= lattice.MOST_GRID


@pytest.mark.parametrize("intercept", [True, False])
def test_there_is_a_frequency_however_large_the_error_may_be(intercept: bool) -> None:
    for s in (1e-3, 1.0, 1e6):
        sampler = frequencies.Lattice(0.99).over(np.ones(2), constant=not intercept)
        recipe = Recipe(kernels.Decomposable(kernels.Gaussian(s)).fix(2, 1), sampler, 2, 1, 9, intercept)
        assert 2 <= recipe.m <= 9 and np.isfinite(recipe.draw(0).phi.transform(np.ones((3, 2)))).all()


def test_nothing_is_drawn_at_random() -> None:
    recipe = Recipe(kernels.Decomposable(GAUSS).fix(2, 1), frequencies.Lattice(1e-2, sides=(1.0, 1.0)), 2, 1, 99)
    first, second = (recipe.draw(seed).phi for seed in (0, 7))
    assert np.array_equal(first.omega, second.omega) and not recipe.seeded  # type: ignore[attr-defined]
    assert "seed" in recipe.idle


def test_a_lattice_that_is_given_serves_other_length_scales() -> None:
    """Of one lattice every second point, or third: as good as an own lattice, at hardly more frequencies."""

    def recipe(s: float) -> Recipe:
        kernel = kernels.DivergenceFree(kernels.Gaussian(s)).fix(2, 2)
        return Recipe(kernel, frequencies.Lattice(1e-3).over(np.ones(2), constant=False), 2, 2, MANY)

    lattice = recipe(0.2).lattice
    assert lattice is not None
    for s in (0.11, 0.2, 0.3, 0.5):
        own, given = recipe(s), recipe(s).on(lattice)
        drawn = given.draw(0)
        fixed = own.kernel
        weights = operator_weights(fixed, given.m, drawn.density)
        X, Z = differences(2, np.ones(2))
        made = np.einsum("na,na,arp,arq->npq", drawn.phi.transform(X), drawn.phi.transform(Z), weights.psi, weights.psi)
        exact = np.stack([fixed.gram(x[None], z[None])[0, 0] for x, z in zip(X, Z, strict=True)])
        assert np.abs(made - exact).max() * s * s < 2e-3
        assert own.m <= given.m <= 3 * own.m
    assert recipe(0.2).on(lattice).m == recipe(0.2).m
    for s in (0.05, 3.0):
        with pytest.raises(InputError, match="needs a finer or a wider lattice"):
            recipe(s).on(lattice).draw(0)


VIEWS = kernels.MultiView([((0,), kernels.Decomposable(GAUSS)), ((1,), kernels.Decomposable(GAUSS))])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: frequencies.Lattice(0.0), "error must"),
        (lambda: frequencies.Lattice(1.0), "lattice: error must lie between 0 and 1"),
        (lambda: frequencies.Lattice(1e-3, tolerance=1e-15), "lattice: tolerance must lie between 1e-13 and 0.001"),
        (lambda: frequencies.Lattice(periods=(360.0, -1.0)), "lattice: periods must be a positive finite number"),
        (lambda: errors(kernels.Decomposable(GAUSS), 2, 1, 1e-2, periods=(1.0,)),
         "periods: wanted a number or null for each of the 2 inputs, got 1; correct features.sampler.periods"),
        (lambda: frequencies.Lattice(periods=(1.0,), sides=(1.0, 1.0)).draw(VIEWS.fix(2, 2), d=2, p=2, count=9, seed=0),
         "periods: wanted a number or null for each of the 2 inputs, got 1; correct features.sampler.periods"),
        (lambda: errors(kernels.Decomposable(kernels.RationalQuadratic(1.0, alpha=1.0)), 2, 1, 1e-2),
         "the spectrum of .* is infinite at 0 in 2 dimensions"),
        (lambda: errors(kernels.CurlFree(kernels.Cauchy(0.5)), 2, 2, 1e-2), "derivatives of Cauchy.* die off too slow"),
        (lambda: errors(kernels.Decomposable(GAUSS), 6, 1, 1e-2), "for 1 to 5 inputs that vary, here are 6"),
        (lambda: errors(kernels.Decomposable(GAUSS), 2, 1, 1e-2, [0.0, 0.0]), "inputs that vary, here are 0"),
        (lambda: errors(kernels.Decomposable(GAUSS), 4, 1, 1e-2, [1.0, 0.0, 0.0, 0.0]), "3 inputs do not vary, and"),
        (lambda: frequencies.Lattice().draw(kernels.Decomposable(GAUSS).fix(2, 1), d=2, p=1, count=9, seed=0),
         "the box that the inputs lie in is not known"),
        (lambda: errors(kernels.Decomposable(kernels.Tabulated(np.ones((3, 3)), [1.0, 1.0])), 2, 1, 1e-2),
         "lattice needs a kernel with a length-scale, which Tabulated has not"),
        (lambda: errors(kernels.Decomposable(kernels.ArcCosine(1)), 2, 1, 1e-2),
         "lattice needs a shift-invariant kernel, which ArcCosine"),
    ],
)  # fmt: skip
def test_what_no_lattice_is_for_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize("periods", [360.0, "ab", {1: 2}, np.ones((1, 2))], ids=str)
def test_periods_are_a_number_or_none_for_each_input(periods: Any) -> None:
    with pytest.raises(InputError, match=f"lattice: periods must be a number, .* each input, not {repr(periods)[:3]}"):
        frequencies.Lattice(periods=periods)
    assert frequencies.Lattice(periods=np.array([3.0, 4.0])).periods == (3.0, 4.0)  # type: ignore[arg-type]
