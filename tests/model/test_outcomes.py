"""Standard deviations of rates and probabilities: against quadrature by pieces, formulas and draws."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from scipy.special import expit, softmax

from dorff.kernels.scalar import FloatArray
from dorff.model.losses import Hinge, Logistic, Loss, Poisson, Squared
from dorff.model.outcomes import elementwise_std, joint_std


def quadrature(mean: float, std: float) -> float:
    """The standard deviation of a sigmoid of a normal value: Gauss-Legendre between points about its step."""
    places = np.concatenate([np.arange(-12, 13), -mean / std + np.linspace(-45, 45, 91) / std])
    ends = np.unique(np.clip(places, -12, 12))
    x, weights = leggauss(60)
    half = np.diff(ends)[:, None] / 2.0
    nodes = (half * (x + 1.0) + ends[:-1, None]).ravel()
    density = (half * weights).ravel() * np.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
    p = expit(mean + std * nodes)
    return float(np.sqrt(density @ (p - density @ p) ** 2))


@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 1.49, 1.51, 3.0, 20.0, 1000.0])
def test_probabilities_of_log_odds_that_are_normal(std: float) -> None:
    means = np.array([-20.0, -3.0, 0.0, 1.0, 8.0])
    found = Logistic().outcome_std(means[:, None], np.full((5, 1), std**2))[:, 0]
    exact = [quadrature(-abs(mean), std) for mean in means]
    np.testing.assert_allclose(found, exact, rtol=1e-7, atol=1e-15)
    assert np.all(found < 0.5)


def test_rates_are_log_normal() -> None:
    f, variance = np.array([[-2.0, 0.5, 3.0]]), np.array([[1e-12, 0.3, 2.0]])
    found = Poisson().outcome_std(f, variance)
    exact = np.exp(f + variance / 2.0) * np.sqrt(np.expm1(variance))
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    by_nodes = elementwise_std(np.exp, f, variance)
    np.testing.assert_allclose(by_nodes, exact, rtol=1e-6)
    assert np.all(np.isfinite(Poisson().outcome_std(np.array([[690.0]]), np.array([[1e4]]))))
    assert Poisson().outcome_std(f, np.zeros((1, 3))).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("loss", [Squared(), Hinge()])
def test_an_outcome_that_is_f_has_its_deviations(loss: Loss) -> None:
    f, variance = np.array([[-2.0, 30.0]]), np.array([[1e-6, 4.0]])
    np.testing.assert_allclose(loss.outcome_std(f, variance), np.sqrt(variance), rtol=1e-9)


@pytest.mark.parametrize(("spread", "most"), [(0.1, 3e-4), (1.0, 4e-3), (3.0, 1.2e-2)])
def test_probabilities_of_scores_that_depend_on_each_other(spread: float, most: float) -> None:
    """Against draws, whose own error is a part of what is allowed: twice what the docstring says."""

    def probabilities(f: FloatArray) -> FloatArray:
        return np.asarray(softmax(f, axis=-1))

    rng, n, K, draws = np.random.default_rng(0), 20, 10, 20_000
    mean, root = 2.0 * rng.standard_normal((n, K)), spread * rng.standard_normal((n, K, K)) / np.sqrt(K)
    found = joint_std(probabilities, mean, root @ root.transpose(0, 2, 1))
    normal = rng.standard_normal((draws, K))
    drawn = np.array([probabilities(f + normal @ own.T).std(axis=0) for f, own in zip(mean, root, strict=True)])
    assert np.sqrt(np.mean((found - drawn) ** 2)) < most
    np.testing.assert_array_equal(found, joint_std(probabilities, mean, root @ root.transpose(0, 2, 1)))
    none = joint_std(probabilities, mean, np.zeros((n, K, K)))
    assert np.all(none == 0.0)
