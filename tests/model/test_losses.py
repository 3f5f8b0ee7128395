"""Losses against their formulas, written out number by number; slopes and curvatures against differences; words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import LAW
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from scipy.stats import norm

from dorff.errors import InputError
from dorff.model.losses import (
    EpsilonInsensitive,
    FloatArray,
    Hinge,
    Huber,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Quantiles,
    SimplexHinge,
    Squared,
    SquaredHinge,
    as_loss,
)
from dorff.spec.part import EpsilonSpec, HuberSpec, QuantilesSpec
from dorff.spec.registry import LOSSES

TAU = (0.1, 0.5, 0.8)


def poisson(y: list[float], f: list[float], j: int) -> float:
    past = max(f[j] - 30.0, 0.0)
    rate = math.exp(f[j]) if past == 0 else math.exp(30.0) * (1 + past + past * past / 2)
    return rate - y[j] * f[j] - y[j] + (y[j] * math.log(y[j]) if y[j] > 0 else 0.0)


def sign(y: float) -> float:
    return 1.0 if y == 1.0 else -1.0


#: Of each word a loss, and what the j-th of a row's values costs, from the row's targets and values.
FORMULAS: dict[str, tuple[Loss, Callable[[list[float], list[float], int], float]]] = {
    "squared": (Squared(), lambda y, f, j: (y[j] - f[j]) ** 2),
    "huber": (
        Huber(0.7),
        lambda y, f, j: (
            (y[j] - f[j]) ** 2 if abs(y[j] - f[j]) <= 0.7 else 2 * 0.7 * abs(y[j] - f[j]) - 0.7**2
        ),
    ),
    "epsilon_insensitive": (EpsilonInsensitive(0.3), lambda y, f, j: max(0.0, abs(y[j] - f[j]) - 0.3)),
    "quantiles": (
        Quantiles(TAU, 2.0),
        lambda y, f, j: (y[j] - f[j]) * (TAU[j % 3] if y[j] >= f[j] else TAU[j % 3] - 1.0),
    ),
    "poisson": (Poisson(), poisson),
    "logistic": (Logistic(), lambda y, f, j: math.log(1 + math.exp(-sign(y[j]) * f[j]))),
    "multinomial": (
        Multinomial(),
        lambda y, f, j: -math.log(math.exp(f[j]) / sum(math.exp(one) for one in f)) if y[j] == 1.0 else 0.0,
    ),
    "hinge": (Hinge(), lambda y, f, j: max(0.0, 1.0 - sign(y[j]) * f[j])),
    "squared_hinge": (SquaredHinge(), lambda y, f, j: max(0.0, 1.0 - sign(y[j]) * f[j]) ** 2),
    "simplex": (SimplexHinge(), lambda y, f, j: 0.0 if y[j] == 1.0 else max(0.0, 1.0 / (len(f) - 1) + f[j])),
}  # fmt: skip
KINKED = ("epsilon_insensitive", "quantiles", "hinge", "simplex")
every = pytest.mark.parametrize("name", FORMULAS)
kinked = pytest.mark.parametrize("name", KINKED)


def targets(loss: Loss, n: int, c: int, rng: np.random.Generator) -> FloatArray:
    """(n, c), as the loss takes them."""
    draws: dict[str, Callable[[], FloatArray]] = {
        "numbers": lambda: np.repeat(2.0 * rng.standard_normal((n, c // loss.levels)), loss.levels, axis=1),
        "counts": lambda: rng.poisson(2.0, (n, c)) + 0.5 * (rng.random((n, c)) < 0.2),
        "classes": lambda: np.eye(c)[rng.integers(0, c, n)],
        "labels": lambda: (rng.random((n, c)) < 0.5).astype(float),
    }
    return draws[loss.takes]()


def drawn(name: str, n: int = 60, seed: int = 0) -> tuple[Loss, FloatArray, FloatArray]:
    """A loss with values and targets (n, 6) or (n, 4), of rows near and far from each other."""
    loss, rng = FORMULAS[name][0], np.random.default_rng(seed)
    c = 6 if name == "quantiles" else 4
    f = rng.standard_normal((n, c)) * rng.choice([0.3, 1.0, 4.0], (n, 1))
    return loss, f, targets(loss, n, c, rng)


@every
def test_values_are_those_of_the_formula(name: str) -> None:
    loss, f, y = drawn(name)
    formula = FORMULAS[name][1]
    if name == "poisson":
        f[:3] = [[31.0, 35.0, 30.0, 29.9], [1e3, 1e5, 30.5, 40.0], [-50.0, -700.0, -5.0, 0.0]]
    if name == "huber":
        f[0, :2] = y[0, :2] + [0.7, -0.7]  # where the two sides meet
    wanted = [[formula(a, b, j) for j in range(len(b))] for a, b in zip(y.tolist(), f.tolist(), strict=True)]
    for width in (0.0, 0.3):
        np.testing.assert_allclose(loss.terms(f, y, width).value, wanted, rtol=1e-12, atol=1e-13)
    terms = loss.terms(f, y)
    np.testing.assert_array_equal(terms.smooth, terms.value)
    assert all(one.shape == f.shape for one in terms)


def near_a_kink(name: str, f: FloatArray, y: FloatArray, width: float) -> Any:
    """(n, c): where the slope of the smooth loss has a corner or a step within 1e-4."""
    r, s = y - f, 2.0 * y - 1.0
    t: Any = {
        "huber": np.abs(r) - 0.7, "epsilon_insensitive": np.abs(r) - 0.3, "quantiles": r, "hinge": 1.0 - s * f,
        "squared_hinge": 1.0 - s * f, "simplex": 1.0 / (f.shape[1] - 1) + f, "poisson": f - 30.0,
    }.get(name, np.ones_like(f))  # fmt: skip
    ends = [0.0, width]
    if name == "quantiles":
        tau = np.tile(TAU, f.shape[1] // 3)
        ends = [width * tau, width * (tau - 1.0), np.zeros(1)]
    return np.any([np.abs(t - end) < 1e-4 for end in ends], axis=0)


@every
@pytest.mark.parametrize("width", [0.0, 0.4])
def test_slopes_and_curvatures_are_differences(name: str, width: float) -> None:
    loss, f, y = drawn(name, 80)
    if name == "poisson":
        f[0] = [31.0, 33.0, 29.0, 30.5]
    step, n = 1e-6, len(f)
    far = ~near_a_kink(name, f, y, width)
    assert far.mean() > 0.95
    terms = loss.terms(f, y, width)
    size = 1.0 + np.abs(terms.value)
    V = np.random.default_rng(1).standard_normal(f.shape)
    seen = np.zeros((n, f.shape[1], f.shape[1]))
    for j in range(f.shape[1]):
        e = step * np.eye(f.shape[1])[j]
        up, down = loss.terms(f + e, y, width), loss.terms(f - e, y, width)
        by_value = (up.smooth - down.smooth).sum(axis=1) / (2 * step)
        error = np.abs(by_value - terms.slope[:, j]) / size.max(axis=1)
        assert np.all(error[far[:, j]] < 1e-7), j
        seen[:, :, j] = (up.slope - down.slope) / (2 * step)
        error = np.abs(seen[:, j, j] - terms.curvature[:, j]) / size.max(axis=1)
        assert np.all(error[far[:, j]] < 1e-7), j
        # Directions along one axis, each: the whole of the second derivative, that of a row's other values too.
        column = loss.product(f, y, np.tile(e / step, (n, 1)), width)
        error = np.abs(column - seen[:, :, j]).max(axis=1) / size.max(axis=1)
        assert np.all(error[far[:, j]] < 1e-7), j
    across = seen * (1.0 - np.eye(f.shape[1]))
    assert np.any(np.abs(across) > 1e-3) == loss.coupled
    rows = np.all(far, axis=1)
    wanted = np.einsum("nij,nj->ni", seen, V)
    assert np.all(np.abs(loss.product(f, y, V, width) - wanted)[rows] < 1e-6 * size.max(axis=1)[rows, None])


@kinked
@pytest.mark.parametrize("width", [0.05, 1.5])
def test_smooth_losses_are_the_least_of_loss_and_distance(name: str, width: float) -> None:
    """Moreau's envelope: the least over z of L(z) + (f - z)^2 / (2 width), whose slope is (f - z) / width."""
    loss, formula = FORMULAS[name]
    _, f, y = drawn(name, 8)
    terms = loss.terms(f, y, width)
    assert loss.kinked
    for i, j in np.ndindex(*f.shape):
        a, b = y[i].tolist(), f[i].tolist()

        def cost(z: float, a: list[float] = a, b: list[float] = b, j: int = j) -> float:
            return formula(a, [*b[:j], z, *b[j + 1 :]], j) + (b[j] - z) ** 2 / (2 * width)

        # Slopes are 1 at most: the least is within `width`.
        options = {"xatol": 1e-9}
        found = minimize_scalar(
            cost, bounds=(b[j] - 1.5 * width, b[j] + 1.5 * width), method="bounded", options=options
        )
        assert terms.smooth[i, j] == pytest.approx(found.fun, abs=1e-8), (i, j)
        assert terms.slope[i, j] == pytest.approx((b[j] - found.x) / width, abs=1e-4), (i, j)


@every
def test_losses_without_a_kink_are_their_own_smooth_ones(name: str) -> None:
    loss, f, y = drawn(name)
    terms, at_once = loss.terms(f, y, 0.8), loss.terms(f, y)
    assert loss.kinked == (name in KINKED) == bool(np.any(terms.smooth != terms.value))
    if loss.kinked:
        assert not np.any(at_once.curvature) and np.any(terms.curvature > 0)
    else:
        for one, other in zip(terms, at_once, strict=True):
            np.testing.assert_array_equal(one, other)


@every
@LAW
@given(seed=st.integers(0, 2**16), width=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 3.0]), size=st.floats(-2.0, 1.0))
def test_laws_of_convex_losses(name: str, seed: int, width: float, size: float) -> None:
    """Each lies above its tangents; the smooth one below the loss, by width / 2 of the loss's own squared slope at
    most; and Fenchel and Young: what the slope of the smooth one says of the loss is never more than there is."""
    rng = np.random.default_rng(seed)
    loss, f, y = drawn(name, 30, seed)
    other = f + 10.0**size * rng.standard_normal(f.shape)
    terms, there = loss.terms(f, y, width), loss.terms(other, y, width)
    tangent = np.sum(terms.smooth + terms.slope * (other - f), axis=1)
    rounding = 1e-12 * (1.0 + np.abs(terms.value).sum(axis=1) + np.abs(there.value).sum(axis=1) + np.abs(tangent))
    assert np.all(there.smooth.sum(axis=1) >= tangent - rounding)
    assert np.all(terms.curvature >= 0)
    below = terms.value - terms.smooth
    steep = loss.terms(f, y).slope ** 2
    assert np.all(below >= -1e-14) and np.all(below <= 0.5 * width * steep + 1e-14)
    assert np.all(below - 0.5 * width * terms.slope**2 >= -1e-14) or not loss.kinked
    # u f - L*(u), with L*(u) as the smooth loss has it, is below L wherever L is taken.
    least = terms.smooth + 0.5 * width * terms.slope**2 * loss.kinked + terms.slope * (other - f)
    assert np.all(there.value.sum(axis=1) >= least.sum(axis=1) - rounding)


@pytest.mark.parametrize("name", FORMULAS)
def test_second_derivatives_by_combinations_are_those_by_directions(name: str) -> None:
    """D^T diag(curvatures) D against `product`."""
    loss, rng = FORMULAS[name][0], np.random.default_rng(0)
    c = 4 * loss.levels
    f, v = rng.standard_normal((2, 9, c))
    y = np.eye(4)[rng.integers(0, 4, 9)] if loss.takes in ("classes", "labels") else rng.poisson(2.0, (9, 4)) * 1.0
    y, width = loss.spread(y), 0.5 if loss.kinked else 0.0
    D, curvatures = loss.combinations(c), loss.curvatures(f, y, width)
    assert curvatures.shape == (9, len(D)) and np.all(curvatures >= 0)
    np.testing.assert_allclose((curvatures * (v @ D.T)) @ D, loss.product(f, y, v, width), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["poisson", "logistic", "multinomial"])
def test_likelihoods_are_densities_of_the_targets(name: str) -> None:
    loss, f, _ = drawn(name, 5)
    assert loss.likelihood
    f = np.minimum(f, 3.0)
    K = f.shape[1]
    if name == "multinomial":
        total = sum(np.exp(-loss.terms(f, np.tile(one, (5, 1))).value.sum(axis=1)) for one in np.eye(K))
    elif name == "logistic":
        total = sum(np.exp(-loss.terms(f, np.full_like(f, one)).value) for one in (0.0, 1.0))
    else:  # up to what is of the counts alone: y^y e^-y / y!
        counts = np.arange(0.0, 150.0)
        alone = [one * np.log(max(one, 1.0)) - one - gammaln(one + 1.0) for one in counts]
        total = sum(
            np.exp(-loss.terms(f, np.full_like(f, one)).value + some) for one, some in zip(counts, alone, strict=True)
        )
    np.testing.assert_allclose(total, 1.0, rtol=1e-10)


def test_what_else_losses_say_of_themselves() -> None:
    said = {name: (loss.takes, loss.likelihood, loss.centred, loss.levels) for name, (loss, _) in FORMULAS.items()}
    assert said == {
        "squared": ("numbers", False, False, 1), "huber": ("numbers", False, False, 1),
        "epsilon_insensitive": ("numbers", False, False, 1), "quantiles": ("numbers", False, False, 3),
        "poisson": ("counts", True, False, 1), "logistic": ("labels", True, False, 1),
        "multinomial": ("classes", True, False, 1), "hinge": ("labels", False, False, 1),
        "squared_hinge": ("labels", False, False, 1), "simplex": ("classes", False, True, 1),
    }  # fmt: skip


def test_slopes_far_from_the_kink_are_the_ends() -> None:
    """At width 0 and, further off, at any: of pinball loss tau - 1 and tau, with the sign of the values."""
    y = np.zeros((2, 3))
    f = np.array([[9.0] * 3, [-9.0] * 3])
    for width in (0.0, 2.0):
        tau = np.array(TAU)
        np.testing.assert_allclose(Quantiles(TAU).terms(f, y, width).slope, [1.0 - tau, -tau], rtol=1e-15)
        np.testing.assert_array_equal(EpsilonInsensitive(0.1).terms(f, y, width).slope, np.sign(f))
        np.testing.assert_array_equal(Hinge().terms(f, y, width).slope, [[1.0] * 3, [0.0] * 3])
        one_hot = np.eye(3)[[0, 0]]
        np.testing.assert_array_equal(SimplexHinge().terms(f, one_hot, width).slope, [[0.0, 1.0, 1.0], [0.0] * 3])


def test_values_of_a_target_are_spread_side_by_side() -> None:
    y = np.array([[1.0, 2.0], [3.0, np.nan]])
    np.testing.assert_array_equal(Quantiles(TAU).spread(y), [[1, 1, 1, 2, 2, 2], [3, 3, 3, np.nan, np.nan, np.nan]])
    for name, (loss, _) in FORMULAS.items():
        assert name == "quantiles" or loss.spread(y) is y


@pytest.mark.parametrize("coupling", [0.0, 0.5, 3.0, 1e4])
@pytest.mark.parametrize("quantiles", [(0.5,), TAU, tuple(np.linspace(0.05, 0.95, 19).tolist())])
def test_the_root_is_of_the_coupling_of_quantiles(quantiles: tuple[float, ...], coupling: float) -> None:
    loss = Quantiles(quantiles, coupling)
    B = loss.root
    wanted = [[math.exp(-coupling * (a - b) ** 2) for b in quantiles] for a in quantiles]
    np.testing.assert_allclose(B.T @ B, wanted, atol=1e-13)
    assert len(B) <= loss.levels == len(quantiles) == B.shape[1]
    if coupling == 0:
        assert len(B) == 1 and np.all(np.abs(B) == pytest.approx(1.0))
    if coupling == 1e4:
        assert len(B) == len(quantiles)
    np.testing.assert_array_equal(Squared().root, [[1.0]])


def test_offsets_are_quantiles_of_normal_residuals() -> None:
    deviation = np.array([0.5, 2.0])
    wanted = [d * norm.ppf(tau) for d in deviation for tau in TAU]
    np.testing.assert_allclose(Quantiles(TAU).offsets(deviation), wanted, atol=1e-15)
    for name, (loss, _) in FORMULAS.items():
        if name != "quantiles":
            np.testing.assert_array_equal(loss.offsets(deviation), [0.0, 0.0])


@pytest.mark.parametrize("name", ["logistic", "multinomial", "hinge", "squared_hinge", "simplex"])
def test_starts_lower_the_loss_of_least_squares(name: str) -> None:
    """Least squares on ones and zeros have about 1 and 0: losses want them apart, about 0."""
    loss, rng = FORMULAS[name][0], np.random.default_rng(0)
    y = np.eye(4)[rng.integers(0, 4, 400)]
    f = 0.9 * y + 0.025 + 0.1 * rng.standard_normal(y.shape)
    first, before = loss.terms(loss.start(f), y), loss.terms(f, y)
    assert first.value.sum() < 0.8 * before.value.sum()
    a, b = rng.standard_normal((2, 3, 4))
    lines = loss.start(a) - loss.start(b), loss.start(a + 2.0) - loss.start(b + 2.0)
    np.testing.assert_allclose(*lines, rtol=1e-12, atol=1e-12)
    if loss.takes == "labels":  # the middle between the two is at 0
        np.testing.assert_array_equal(loss.start(np.full(3, 0.5)), np.zeros(3))
    else:
        np.testing.assert_allclose(loss.start(y).sum(axis=1), 0.0, atol=1e-12)
        np.testing.assert_array_equal(np.argmax(loss.start(f), axis=1), np.argmax(f, axis=1))
    if name in ("hinge", "squared_hinge", "simplex"):  # which ask for no more than these
        exact = loss.terms(loss.start(y), y)
        np.testing.assert_allclose(exact.value, 0.0, atol=1e-15)
        less = loss.terms(0.999 * loss.start(y), y)
        assert np.all(less.value.sum(axis=1) > 0)


def test_other_starts() -> None:
    f = np.array([[1.0, -2.0]])
    for name in ("squared", "huber", "epsilon_insensitive", "quantiles"):
        np.testing.assert_array_equal(FORMULAS[name][0].start(f), f)
    np.testing.assert_array_equal(Poisson().start(f), [[0.0, 0.0]])


def test_outcomes_are_what_targets_would_be() -> None:
    f = np.array([[0.5, -1.0, 2.0], [1e3, -1e3, 0.0]])
    np.testing.assert_allclose(Poisson().outcome(f[:1]), np.exp(f[:1]), rtol=1e-15)
    assert np.all(np.isfinite(Poisson().outcome(f)))
    np.testing.assert_allclose(Logistic().outcome(f), [[1 / (1 + math.exp(-t)) if t > -700 else 0.0 for t in row]
                                                       for row in f], rtol=1e-14)  # fmt: skip
    shares = np.exp(f[0]) / np.exp(f[0]).sum()
    np.testing.assert_allclose(Multinomial().outcome(f), [shares, [1.0, 0.0, 0.0]], rtol=1e-14)
    for name in ("squared", "huber", "epsilon_insensitive", "quantiles", "hinge", "squared_hinge", "simplex"):
        assert FORMULAS[name][0].outcome(f) is f


def test_large_values_stay_finite() -> None:
    f, ones = np.array([[800.0, -800.0]]), np.array([[0.0, 1.0]])
    for loss in (Logistic(), Multinomial(), Poisson()):
        assert all(np.all(np.isfinite(one)) for one in loss.terms(f, ones))
    np.testing.assert_allclose(Logistic().terms(f, ones).value, [[800.0, 800.0]])
    np.testing.assert_allclose(Multinomial().terms(f, ones).value, [[0.0, 1600.0]])


def test_every_word_of_the_package_is_tested_here() -> None:
    assert set(LOSSES.names) >= set(FORMULAS)
    for name in LOSSES.names:
        entry = LOSSES.own(name)
        assert entry is None or not entry.build.__module__.startswith("dorff") or name in FORMULAS
    assert all(FORMULAS[name][0].kind == name for name in FORMULAS)


@every
def test_losses_are_read_as_they_are_written(name: str) -> None:
    loss = FORMULAS[name][0]
    written = json.loads(json.dumps(loss.config()))
    assert as_loss(written) == loss and as_loss(loss) is loss
    entry = LOSSES.get(name)
    assert entry is not None
    if entry.alone:
        assert as_loss(name) == entry.build() and type(as_loss(name)) is type(loss)
    if isinstance(written, dict):
        assert {**entry.options.model_validate(written).model_dump(mode="json")} == written
        assert next(iter(written)) == name


def test_words_alone_have_defaults() -> None:
    assert as_loss("huber") == Huber(1.35) == as_loss({"huber": 1.35})
    assert as_loss("epsilon_insensitive") == EpsilonInsensitive(0.1)
    assert as_loss({"quantiles": [0.1, 0.9]}) == Quantiles((0.1, 0.9), 1.0)
    assert as_loss({"quantiles": np.array([0.1, 0.9]), "coupling": np.float64(0)}) == Quantiles((0.1, 0.9), 0.0)
    assert EpsilonSpec().epsilon_insensitive == 0.1 and HuberSpec().huber == 1.35
    assert QuantilesSpec(quantiles=(0.5,)).coupling == 1.0


BETWEEN = "wanted numbers between 0 and 1, in order, each once; got "
LIST = "wanted a list of numbers between 0 and 1, got "
ABOVE = "must be a number greater than 0, came "
ZERO = "coupling must be a number of at least 0, came "
REFUSED: list[tuple[Any, str]] = [
    ({"quantiles": [0.0, 0.5]}, LIST + "[0.0, 0.5]"), ({"quantiles": [0.5, 1.0]}, LIST + "[0.5, 1.0]"),
    ({"quantiles": [-0.5]}, LIST), ({"quantiles": [0.5, math.nan]}, LIST), ({"quantiles": ["0.5"]}, LIST),
    ({"quantiles": [True]}, LIST), ({"quantiles": 0.5}, LIST + "0.5"), ({"quantiles": "0.5"}, LIST),
    ({"quantiles": [[0.5]]}, LIST), ({"quantiles": None}, LIST + "None"), ({"quantiles": [10**400]}, LIST),
    ({"quantiles": [0.9, 0.1]}, BETWEEN + "[0.9, 0.1]"), ({"quantiles": [0.5, 0.5]}, BETWEEN + "[0.5, 0.5]"),
    ({"quantiles": []}, BETWEEN + "[]"),
    ({"quantiles": [0.5], "coupling": -0.1}, ZERO + "-0.1"), ({"quantiles": [0.5], "coupling": math.nan}, ZERO + "nan"),
    ({"quantiles": [0.5], "coupling": math.inf}, ZERO + "inf"), ({"quantiles": [0.5], "coupling": "x"}, ZERO + "'x'"),
    ({"quantiles": [0.5], "coupling": None}, ZERO + "None"), ({"quantiles": [0.5], "coupling": True}, ZERO + "True"),
    ({"quantiles": [0.5], "coupling": 10**400}, ZERO + "1000"),
    ({"huber": 0}, "huber " + ABOVE + "0"), ({"huber": -1.0}, ABOVE + "-1.0"),
    ({"huber": math.nan}, ABOVE + "nan"),
    ({"huber": math.inf}, ABOVE + "inf"), ({"huber": "1"}, ABOVE + "'1'"), ({"huber": None}, ABOVE + "None"),
    ({"huber": True}, ABOVE + "True"), ({"huber": [1.0]}, ABOVE + r"[1.0]"),
    ({"epsilon_insensitive": 0.0}, "epsilon_insensitive " + ABOVE + "0.0"),
    ({"epsilon_insensitive": "x"}, "epsilon_insensitive " + ABOVE + "'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "says"), REFUSED, ids=[str(value)[:40] for value, _ in REFUSED])
def test_options_that_are_wrong_are_refused(value: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        as_loss(value)
    assert says in str(caught.value)
    (name, *_), entry = value, LOSSES.get(next(iter(value)))
    assert entry is not None and entry.name == name
    with pytest.raises(ValidationError, match=r"wanted|must be|does not fit"):  # a job says so too
        entry.options.model_validate(value)


@pytest.mark.parametrize("quantiles", [(0.5, 1), (), (0.0,), (0.6, 0.5)])
def test_quantiles_are_checked_where_they_are_made(quantiles: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="in order, each once"):
        Quantiles(quantiles)


NO_LOSS: list[Any] = [
    "square", "", "quantiles", None, 5, 0.5, [], {}, ["squared"], {"squared": 1}, {"poisson": None},
    {"huber": 1.0, "epsilon_insensitive": 0.1}, {"huber": 1.0, "delta": 1.0}, {"quantiles": [0.5], "tau": 1},
    {"coupling": 1.0}, {"epsilon": 0.1}, {1: 2}, {"type": "huber"}, Squared,
]  # fmt: skip


@pytest.mark.parametrize("value", NO_LOSS, ids=str)
def test_what_is_no_loss_is_refused_with_all_words(value: Any) -> None:
    with pytest.raises(InputError, match="loss must be one of squared, huber") as caught:
        as_loss(value)
    said = str(caught.value)
    assert all(name in said for name in FORMULAS) and said.endswith(f"or a Loss; not {value!r}")
    assert "{quantiles: [0.1, 0.5, 0.9]}" in said


def test_a_list_of_quantiles_in_a_job() -> None:
    assert QuantilesSpec.model_validate({"quantiles": [0.1, 0.9]}).quantiles == (0.1, 0.9)
    levels = QuantilesSpec.model_json_schema()["properties"]["quantiles"]["items"]
    assert (levels["exclusiveMinimum"], levels["exclusiveMaximum"]) == (0, 1)


def test_a_word_of_another_package_builds_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    squared = LOSSES.get("squared")
    assert squared is not None
    monkeypatch.setitem(LOSSES._entries, "odd", type(squared)("odd", lambda: 3, squared.options))
    with pytest.raises(InputError, match="loss: odd of another package builds no Loss"):
        as_loss("odd")
