"""Polynomials on a lattice by a grid and a window, against the features that they are made of."""

from typing import Any

import numpy as np
import pytest

from dorff import ORFFRegressor, frequencies, kernels
from dorff.features import Recipe
from dorff.features.trigonometric import FAST_FROM

GAUSS = kernels.Gaussian(0.1)


def phi_of(d: int, sides: list[float], *, count: int = 9000, s: float = 0.1) -> Any:
    """Features of a lattice for a kernel of length-scale s, without an intercept: zero is among the frequencies."""
    sampler = frequencies.Lattice(1e-2).over(np.array(sides), constant=True)
    return Recipe(kernels.Decomposable(kernels.Gaussian(s)).fix(d, 1), sampler, d, 1, count, False).draw(0).phi


@pytest.mark.parametrize(
    ("d", "sides", "s"),
    [(1, [1.0], 0.001), (2, [1.0, 1.5], 0.04), (3, [1.0, 0.7, 1.0], 0.11), (3, [1.0, 0.0, 1.0], 0.04),
     (2, [0.0, 1.0], 0.001)],
)  # fmt: skip
def test_values_and_slopes_are_those_of_the_features(d: int, sides: list[float], s: float) -> None:
    """Inside of the box, beyond a period, and at inputs that are no numbers."""
    phi, rng = phi_of(d, sides, s=s), np.random.default_rng(d)
    assert FAST_FROM[np.count_nonzero(sides)] <= phi.projection.D
    W = rng.standard_normal((phi.m, 2))
    x = rng.uniform(-2, 3, (400, d))
    product, slopes = phi.product(W), phi.slopes(W)
    size = np.abs(W).sum(axis=0).max()
    assert np.abs(product(x) - phi.transform(x) @ W).max() < 1e-12 * size * (1 + np.abs(x * phi.omega.max()).max())
    steep = size * np.abs(phi.omega).max()
    assert np.abs(slopes(x) - phi.jacobian(x, W)).max() < 1e-12 * steep * (1 + np.abs(x * phi.omega.max()).max())
    x[3], x[5, 0] = np.nan, np.inf
    if sides[0] == 0:
        x[5, 1] = np.inf
    values = product(x)
    assert np.isnan(values[[3, 5]]).all() and np.isfinite(np.delete(values, [3, 5], axis=0)).all()


def test_few_frequencies_and_others_are_done_by_features() -> None:
    assert phi_of(2, [1.0, 1.0], s=1.0).product(np.ones((phi_of(2, [1.0, 1.0], s=1.0).m, 1))) is None
    drawn = Recipe(kernels.Decomposable(GAUSS).fix(2, 1), frequencies.IID(), 2, 1, 2048).draw(0).phi
    assert drawn.product(np.ones((2048, 1))) is None and drawn.slopes(np.ones((2048, 1))) is None
    four = phi_of(4, [1.0] * 4, s=0.5)
    assert four.product(np.ones((four.m, 1))) is None


def test_a_model_predicts_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the digits of its features, in blocks; a field's divergence stays nothing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 2))
    Y = np.column_stack([np.cos(9 * X[:, 0]) * np.cos(9 * X[:, 1]), np.sin(9 * X[:, 0]) * np.sin(9 * X[:, 1])])
    model = ORFFRegressor(
        kernels.DivergenceFree(kernels.Gaussian(0.07)), 2000, sampler=frequencies.Lattice(1e-3), ridge=1e-6
    ).fit(X, Y).model_  # fmt: skip
    at = rng.uniform(0, 1, (40_000, 2))
    monkeypatch.setattr("dorff.model.model.PRODUCT_ROWS", 4096)
    fast, slopes = model.predict(at), model.jacobian(at[:500])
    plain = model.feature_map.transform(at) @ model._combined + model.intercept
    assert np.abs(fast - plain).max() < 1e-9 * np.abs(plain).max()
    x = (at[:500] - model.feature_map.center) / model.feature_map.scale
    wanted = model.feature_map.phi.jacobian(x, model._combined) / model.feature_map.scale
    assert np.abs(slopes - wanted).max() < 1e-9 * np.abs(wanted).max()
    assert np.abs(slopes[:, 0, 0] + slopes[:, 1, 1]).max() < 1e-10 * np.abs(slopes).max()
