"""Deviations of features on a lattice, by a trigonometric polynomial, against those that are made of the features."""

import numpy as np
import pytest
from cases import traced

from dorff import ORFFRegressor, frequencies, kernels
from dorff.features import Recipe
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model import model as models

SCALAR = kernels.Gaussian(0.3)
KERNELS: dict[str, OperatorKernel] = {
    "identity": kernels.Decomposable(SCALAR),
    "matrix": kernels.Decomposable(SCALAR, np.array([[1.0, 0.4], [0.4, 2.0]])),
    "one length-scale each": kernels.Decomposable(kernels.Gaussian([0.15, 0.6])),
    "curl-free": kernels.CurlFree(SCALAR),
    "divergence-free": kernels.DivergenceFree(SCALAR),
    "helmholtz": kernels.CurlFree(SCALAR) * 0.4 + kernels.DivergenceFree(SCALAR) * 0.6,
    "origin": kernels.DivergenceFree(SCALAR),
    "line": kernels.Decomposable(kernels.Gaussian(0.004)),
    "constant input": kernels.CurlFree(kernels.Gaussian(0.4)),
}


def model(name: str, ridge: float) -> tuple[Model, FloatArray]:
    """A model with a posterior, and places to look at it."""
    rng, d = np.random.default_rng(0), 1 if name == "line" else 2
    X, Z = rng.uniform(0, 1, (800, d)), rng.uniform(0, 1, (1500, d))
    Y = np.column_stack([np.sin(5 * X[:, 0]) * X[:, -1], 3 * np.cos(4 * X[:, -1])]) + rng.standard_normal((800, 2)) / 5
    if name == "constant input":
        X, Z, Y = (np.column_stack([one, np.full(len(one), 7.0)]) for one in (X, Z, Y))
    options = {
        "n_features": 1200,
        "sampler": frequencies.Lattice(1e-3),
        "ridge": ridge,
        "intercept": name != "origin",
    }
    made = ORFFRegressor(KERNELS[name], **options).fit(X, Y).posterior_model_
    assert made.feature_map.m < len(Z)
    return made, Z


def by_features(made: Model, Z: FloatArray, *, noise: bool = False) -> FloatArray:
    """Of so few rows at a time that nothing else is worth it."""
    return np.concatenate([made.std(Z[start : start + 20], noise=noise) for start in range(0, len(Z), 20)])


@pytest.mark.parametrize("name", KERNELS)
def test_they_are_those_of_the_features(name: str) -> None:
    made, Z = model(name, 1e-2)
    assert made._variances is not None and made.feature_map.m > 20
    for noise in (False, True):
        found, wanted = made.std(Z, noise=noise), by_features(made, Z, noise=noise)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        assert found.std() > 0


@pytest.mark.parametrize("name", ["identity", "divergence-free"])
def test_small_ones_are_made_of_the_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the polynomial's error, of the prior's size, is more than a millionth of what it gives."""
    made, Z = model(name, 1e-9)
    assert made._variances is not None
    product, error = made._variances
    raw, wanted = product(made._scaled(Z)), by_features(made, Z)
    assert made.posterior is not None and made.posterior.unexplained is not None
    left_out = np.diag(made.posterior.unexplained)
    assert np.all(left_out <= np.diag(made.posterior.noise) * (1 + 1e-12))
    assert np.all(np.abs(raw + left_out - wanted**2) < error) and np.any(raw < 1e6 * error)
    np.testing.assert_allclose(made.std(Z), wanted, rtol=5e-7)
    monkeypatch.setattr(models, "SURE", np.inf)
    np.testing.assert_allclose(made.std(Z), wanted, rtol=1e-11)


def test_the_grid_of_squares_holds_what_is_said() -> None:
    kernel = kernels.Decomposable(kernels.Gaussian(0.2)).fix(3, 3, np.eye(3))
    recipe = Recipe(kernel, frequencies.Lattice(1e-4).over(np.ones(3), constant=False), 3, 3, 9000, True)
    phi, T = recipe.draw(0).phi, np.random.default_rng(0).standard_normal((recipe.m + 1, 16))
    numbers = phi.square_numbers(3)
    held = traced(lambda: phi.squares(lambda _output, most: (T[:, at : at + most] for at in range(0, 16, most)), 3))
    assert 8 * numbers < held < 16 * numbers and recipe.m > 1000


def test_a_row_that_is_nowhere_has_none() -> None:
    made, Z = model("identity", 1e-2)
    Z[7, 0] = np.nan
    found = made.std(Z)
    assert np.isnan(found[7]).all() and np.isfinite(np.delete(found, 7, axis=0)).all()
