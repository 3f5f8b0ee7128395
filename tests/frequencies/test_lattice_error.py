"""The error of a lattice as a law: no larger than what was asked for, nor than what is said; and its bodies."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dorff import frequencies, kernels
from dorff.features import Recipe
from dorff.frequencies.aliasing import LatticeBox, aliases
from dorff.kernels import Measure
from dorff.model.weights import operator_weights
from dorff.plan.choosing import kernel_error

MOST = 3000  # features
SCALARS: dict[str, Any] = {
    "gaussian": kernels.Gaussian,
    "matern 1/2": partial(kernels.Matern, nu=0.5),
    "matern 3/2": partial(kernels.Matern, nu=1.5),
    "matern 7": partial(kernels.Matern, nu=7.0),
    "rational quadratic 0.55": partial(kernels.RationalQuadratic, alpha=0.55),
    "rational quadratic 1": partial(kernels.RationalQuadratic, alpha=1.0),
    "rational quadratic 1.05": partial(kernels.RationalQuadratic, alpha=1.05),
    "rational quadratic 1.6": partial(kernels.RationalQuadratic, alpha=1.6),
    "rational quadratic 20": partial(kernels.RationalQuadratic, alpha=20.0),
    "cauchy": kernels.Cauchy,
    "laplacian": kernels.Laplacian,
}
PRODUCTS: dict[str, Any] = {"cauchy": kernels.Cauchy, "laplacian": kernels.Laplacian}
ROUGH = ("matern 1/2", "cauchy", "laplacian")  # no fields, here


def recipe_of(
    kernel: kernels.OperatorKernel, sides: np.ndarray, p: int, error: float, *, intercept: bool, count: int = MOST
) -> Recipe:
    fixed = kernel.fix(len(sides), p, np.eye(p))
    sampler = frequencies.Lattice(error).over(sides, constant=not intercept)
    return Recipe(fixed, sampler, len(sides), p, count, intercept)


def lags_of(sides: np.ndarray, lengthscale: float) -> np.ndarray:
    """0, the corners of the box of lags, lags along its edges, at random, and of about a length-scale."""
    rng, d = np.random.default_rng(1), len(sides)
    corners = np.stack([one.ravel() for one in np.meshgrid(*[[0.0, 1.0]] * d)], axis=1)
    edges = np.concatenate([np.linspace(0, 1, 60)[:, None] * corner for corner in corners])
    near = np.clip(lengthscale * rng.standard_normal((200, d)), 0, sides)
    return np.concatenate([corners * sides, edges * sides, rng.uniform(0, 1, (400, d)) * sides, near])


def true_error(recipe: Recipe, lags: np.ndarray) -> float:
    """The largest error of an entry of K over the largest at lag 0; with an intercept, but for a constant."""
    kernel, drawn, D = recipe.kernel, recipe.draw(0), recipe.m // 2
    psi = np.broadcast_to(operator_weights(kernel, recipe.m, drawn.density).psi, (recipe.m, *kernel_shape(recipe)))[:D]
    matrices = np.einsum("arp,arq->apq", psi, psi).reshape(D, -1)
    phi: Any = drawn.phi
    made = np.cos(lags @ phi.omega.T) @ matrices
    zero = np.zeros((1, recipe.d))
    wrong = made - kernel.gram(lags, zero)[:, 0].reshape(len(lags), -1)
    if recipe.intercept:
        wrong -= 0.5 * (wrong.max(axis=0) + wrong.min(axis=0))
    return float(np.abs(wrong).max() / np.abs(kernel.gram(zero, zero)).max())


def kernel_shape(recipe: Recipe) -> tuple[int, int]:
    _, r, p = operator_weights(recipe.kernel, recipe.m, recipe.draw(0).density).shape
    return r, p


def said(recipe: Recipe) -> float:
    density = recipe.draw(0).density
    assert density is not None
    return kernel_error(recipe.kernel, density, recipe)


@settings(max_examples=120)
@given(
    name=st.sampled_from(sorted(SCALARS)),
    sides=st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=1, max_size=3),
    lengthscale=st.floats(0.05, 5.0),
    error=st.sampled_from([0.3, 1e-1, 1e-2, 1e-3, 1e-5]),
    form=st.sampled_from(["scalar", "scalar", "curl-free", "divergence-free"]),
    intercept=st.booleans(),
)
def test_the_error_is_no_larger_than_asked_for_nor_than_is_said(
    name: str, sides: list[float], lengthscale: float, error: float, form: str, intercept: bool
) -> None:
    """What is said is no more than was asked for, or, of too few features, no more than a few times the error: where
    an intercept takes a part of what is left out, that is counted all the same."""
    d, scalar = len(sides), SCALARS[name](lengthscale)
    assume(not scalar.infinite_at_zero(d))
    assume(form == "scalar" or (name not in ROUGH and intercept and d > (form == "divergence-free")))
    kinds: dict[str, Any] = {"curl-free": kernels.CurlFree, "divergence-free": kernels.DivergenceFree}
    kernel = kernels.Decomposable(scalar) if form == "scalar" else kinds[form](scalar)
    recipe = recipe_of(kernel, np.array(sides), 1 if form == "scalar" else d, error, intercept=intercept)
    wrong, told = true_error(recipe, lags_of(np.array(sides), lengthscale)), said(recipe)
    assert wrong <= told * (1 + 1e-6) + 1e-11
    if not recipe.cut:
        assert told <= error * (1 + 1e-6)
    elif not intercept:
        assert told <= max(4.0 * wrong, error)


@pytest.mark.parametrize("kind", [kernels.CurlFree, kernels.DivergenceFree])
@pytest.mark.parametrize("short", [0.01, 0.1, 0.2, 0.3, 0.5])
def test_a_short_side_counts_by_the_change_of_the_field(kind: type, short: float) -> None:
    """Derivatives change faster than the kernel that they are of."""
    sides = np.array([short, 2.0, 2.0])
    recipe = recipe_of(kind(kernels.RationalQuadratic(4.0, alpha=1.6)), sides, 3, 0.1, intercept=True)
    assert not recipe.cut
    assert true_error(recipe, lags_of(sides, 4.0)) <= said(recipe) * (1 + 1e-6) <= 0.1 * (1 + 2e-6)


@pytest.mark.parametrize(("alpha", "d", "error"), [(0.55, 1, 1e-3), (1.0, 1, 1e-3), (1.05, 2, 1e-3), (1.6, 3, 1e-1)])
@pytest.mark.parametrize("intercept", [True, False])
def test_near_half_the_inputs_a_rational_quadratic_takes_no_more_features_than_elsewhere(
    alpha: float, d: int, error: float, intercept: bool
) -> None:
    """The sum of its copies nearly diverges there, but nearly all of that is a constant, which is taken out."""
    counts = []
    for one in (alpha, alpha + 1.0):
        kernel = kernels.Decomposable(kernels.RationalQuadratic(1.0, alpha=one))
        recipe = recipe_of(kernel, np.ones(d), 1, error, intercept=intercept, count=20_000)
        assert not recipe.cut
        assert true_error(recipe, lags_of(np.ones(d), 1.0)) <= said(recipe) * (1 + 1e-6)
        assert said(recipe) <= error
        counts.append(recipe.m)
    assert counts[0] < 4 * counts[1]


def test_two_kernels_without_an_intercept_have_no_room_for_a_constant() -> None:
    """The frequency 0 has one weight, which cannot be right for two: their copies count with all that they add."""
    terms = [kernels.Decomposable(kernels.Cauchy(0.3), [[1.0]]), kernels.Decomposable(kernels.Gaussian(0.5), [[2.0]])]
    kernel = kernels.Sum([(1.0, term) for term in terms])
    counts = []
    for intercept in (True, False):
        recipe = recipe_of(kernel, np.ones(1), 1, 1e-2, intercept=intercept)
        wrong = true_error(recipe, lags_of(np.ones(1), 0.3))
        assert wrong <= said(recipe) <= 1e-2
        counts.append(recipe.m)
    assert counts[0] < counts[1]


@pytest.mark.parametrize("name", [*PRODUCTS, "gaussian", "rational quadratic 1.6"])
@pytest.mark.parametrize("d", [2, 3])
def test_no_frequency_that_is_left_out_weighs_more_than_one_that_is_kept(name: str, d: int) -> None:
    """So that no other body has fewer frequencies for the same error."""
    scalar, error = SCALARS[name](np.linspace(0.5, 0.8, d)), 0.1 if name != "laplacian" or d < 3 else 0.3
    recipe = recipe_of(kernels.Decomposable(scalar), np.ones(d), 1, error, intercept=True)
    phi: Any = recipe.draw(0).phi
    omega = np.concatenate([phi.omega, -phi.omega])
    step = np.min(np.where(omega > 0, omega, np.inf), axis=0)
    kept = np.rint(omega / step).astype(int)
    most = kept.max(axis=0) + 3
    grid = np.meshgrid(*[np.arange(-end, end + 1) for end in most], indexing="ij")
    k = np.stack([axis.ravel() for axis in grid], axis=1)
    inside = (k[:, None] == kept[None]).all(axis=2).any(axis=1)
    density = scalar.log_density(k * step, Measure.UNBOUNDED)
    others = ~inside & np.any(k != 0, axis=1)
    assert not recipe.cut
    assert np.count_nonzero(inside) == recipe.m
    assert density[others].max() <= density[inside].min() + 1e-9


@pytest.mark.parametrize(
    ("name", "d", "share_of_ball", "share_of_cube"),
    [("cauchy", 2, 0.95, 0.85), ("cauchy", 3, 0.85, 0.55), ("laplacian", 2, 0.65, 0.5), ("laplacian", 3, 0.65, 0.5)],
)
def test_bodies_of_equal_density_have_the_fewest_features(
    name: str, d: int, share_of_ball: float, share_of_cube: float
) -> None:
    """On the same lattice and with the same weight left out, of balls of the 2-norm and of cubes."""
    scalar, error = SCALARS[name](0.5), 0.1 if name != "laplacian" or d < 3 else 0.3
    recipe = recipe_of(kernels.Decomposable(scalar), np.ones(d), 1, error, intercept=True)
    phi: Any = recipe.draw(0).phi
    step = np.min(np.where(phi.omega > 0, phi.omega, np.inf), axis=0)
    weights = np.exp(scalar.log_density(phi.omega, Measure.UNBOUNDED))
    far = 4 * int(np.rint(np.abs(phi.omega / step).max()))
    far = min(far, {2: 150, 3: 45}[d])
    grid = np.meshgrid(*[step[0] * np.arange(-far, far + 1)] * d, indexing="ij")
    omega = np.stack([axis.ravel() for axis in grid], axis=1)
    every = np.exp(scalar.log_density(omega, Measure.UNBOUNDED))
    for norm, share in ((2.0, share_of_ball), (np.inf, share_of_cube)):
        order = np.argsort(np.linalg.norm(omega, ord=norm, axis=1), kind="stable")
        needed = int(np.searchsorted(np.cumsum(every[order]) - every[order[0]], 2.0 * weights.sum()))
        assert recipe.m < share * needed, (recipe.m, needed)


COPIES: dict[str, tuple[kernels.ScalarKernel, int]] = {
    "gaussian": (kernels.Gaussian([0.3, 0.5]), 8),
    "matern 3/2": (kernels.Matern(0.4, nu=1.5), 30),
    "matern 30": (kernels.Matern(0.4, nu=30.0), 12),
    "rational quadratic 4": (kernels.RationalQuadratic(0.4, alpha=4.0), 60),
    "laplacian": (kernels.Laplacian([0.3, 0.2]), 30),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("derivatives", [False, True])
@pytest.mark.parametrize(
    ("sides", "periods", "wanted"),
    [((1.0, 1.0), (2.0, 1.8), (False, False)), ((1.0, 1.0), (1.0, 1.8), (True, False)),
     ((1.0, 0.0), (1.7, np.inf), (False, False)), ((1.0, 1.0), (1.0, 1.0), (True, True))],
)  # fmt: skip
def test_sums_of_copies_are_those_of_the_copies(
    name: str, derivatives: bool, sides: tuple[float, ...], periods: tuple[float, ...], wanted: tuple[bool, ...]
) -> None:
    scalar, far = COPIES[name]
    assert isinstance(scalar, kernels.Isotropic | kernels.Product)
    if derivatives and not isinstance(scalar, kernels.Isotropic):
        pytest.skip("not differentiable")
    box = LatticeBox(sides=np.array(sides), periods=np.array(periods), wanted=np.array(wanted))
    got = aliases(scalar, box, derivatives=derivatives)
    shifts = [np.arange(-far, far + 1) * one if np.isfinite(one) else np.zeros(1) for one in periods]
    copies = np.stack([axis.ravel() for axis in np.meshgrid(*shifts)], axis=1)
    own = np.all((copies == 0) | box.wanted, axis=1)
    zero = np.zeros((1, 2))

    def values(lag: np.ndarray) -> np.ndarray:
        if not derivatives:
            return scalar.gram(lag + copies, zero)
        return -scalar.hessian(lag + copies, zero)[:, 0][:, [0, 0, 1], [0, 1, 1]]

    size = np.abs(values(zero)[own].sum(axis=0)).max()
    np.testing.assert_allclose(got.at_zero, values(zero)[own].sum(axis=0), rtol=0, atol=1e-7 * size)
    corner = np.where(box.wanted, 0.5 * box.periods, box.sides)
    for at, lag in ((0, zero), (-1, corner)):
        found = got.varying[:, at] + got.constant
        np.testing.assert_allclose(found, values(lag)[~own].sum(axis=0), rtol=0, atol=1e-7 * size)


def test_copies_of_a_cauchy_kernel_and_of_a_rational_quadratic_are_the_same_in_one_input() -> None:
    """1 / (1 + r^2): two ways to sum what converges slowly, by a closed form and as a mixture of Gaussians."""
    for period in (1.1, 3.0, 400.0):
        box = LatticeBox(sides=np.ones(1), periods=np.array([period]), wanted=np.array([False]))
        closed = aliases(kernels.Cauchy(0.3), box, derivatives=False)
        mixture = aliases(kernels.RationalQuadratic(0.3 / np.sqrt(2.0), alpha=1.0), box, derivatives=False)
        np.testing.assert_allclose(closed.varying, mixture.varying, rtol=1e-8, atol=1e-13)
        np.testing.assert_allclose(closed.constant, mixture.constant, rtol=1e-12)
