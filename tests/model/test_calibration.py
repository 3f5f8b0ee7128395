"""Calibration: the likeliest temperature, its bounds, and the scores it is judged by."""

import json

import numpy as np
import pytest
from cases import LAW, calibration_error
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import log_loss as sklearns

from dorff.errors import InputError
from dorff.model.calibration import FLATTEST, Calibration, log_loss


def drawn(n: int, K: int, slope: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Decision values (n, K) and classes drawn from softmax(slope f)."""
    rng = np.random.default_rng(seed)
    f = rng.standard_normal((n, K))
    return f, (softmax(slope * f, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, K - 1)


@pytest.mark.parametrize("K", [2, 3, 26])
@pytest.mark.parametrize("weighted", [False, True])
def test_is_the_most_likely_slope(K, weighted):
    """A dense twin: the smoothed likelihood, minimised without derivatives."""
    f, codes = drawn(500, K, 2.0)
    w = np.random.default_rng(1).uniform(0.0, 3.0, 500) if weighted else np.ones(500)
    n = w.sum() ** 2 / (w @ w)
    targets = (n * np.eye(K)[codes] + 1.0 / K) / (n + 1.0)

    def loss(slope: float) -> float:
        return float(-(w / w.sum()) @ np.sum(targets * np.log(softmax(slope * f, axis=1)), axis=1))

    best = minimize_scalar(loss, bounds=(0.1, 10.0), method="bounded", options={"xatol": 1e-9}).x
    found = Calibration.fit(f, codes, w if weighted else None)
    assert found.slope == pytest.approx(best, rel=1e-5) and found.rows == 500


def test_finds_the_law_the_classes_were_drawn_from():
    """Within the slope's own standard error: 40 draws of 2000 rows, whose spread says what that is."""
    for slope in (0.3, 3.0):
        found = np.array([Calibration.fit(*drawn(2000, 4, slope, seed)).slope for seed in range(40)])
        assert abs(found.mean() - slope) < 4.0 * found.std(ddof=1) / np.sqrt(len(found))
        assert found.std() < 0.1 * slope


@given(
    st.integers(2, 5), st.integers(1, 30), st.floats(1e-9, 1e9), st.floats(-5.0, 5.0), st.integers(0, 10**6)
)  # fmt: skip
@LAW
def test_laws(K, n, scale, shift, seed):
    """The units and the offset of decision values do not matter; no class is ever overtaken; nothing overflows."""
    rng = np.random.default_rng(seed)
    f, codes = rng.standard_normal((n, K)), rng.integers(0, K, n)
    one, other = Calibration.fit(f, codes), Calibration.fit(scale * (f + shift), codes)
    assert other.slope * scale == pytest.approx(one.slope, rel=1e-5)
    p = one.probabilities(f)
    assert np.allclose(p.sum(axis=1), 1.0, atol=1e-14) and np.all(p > 0)
    assert np.array_equal(p.argmax(axis=1), f.argmax(axis=1))
    assert np.allclose(one.log_probabilities(f), np.log(p), rtol=1e-12)
    assert np.allclose(p, other.probabilities(scale * (f + shift)), atol=1e-6)


def test_weights_count_rows():
    f, codes = drawn(300, 3, 1.5)
    w = np.random.default_rng(2).integers(1, 4, 300)
    once = Calibration.fit(np.repeat(f, w, axis=0), np.repeat(codes, w)).slope
    assert Calibration.fit(f, codes, w).slope == pytest.approx(once, rel=1e-2)  # but for the doubtful row's share
    assert Calibration.fit(f, codes, 7.0 * w).slope == pytest.approx(Calibration.fit(f, codes, w).slope, rel=1e-8)
    assert Calibration.fit(f[:100], codes[:100]).slope == pytest.approx(
        Calibration.fit(f, codes, np.arange(300) < 100).slope, rel=1e-8
    )


def test_separable_rows_give_the_chance_of_a_row_never_seen():
    """All n right: the probability of the right class tends to n/(n + 1) and a share of the rest, not to 1."""
    for n, K in ((10, 2), (1000, 2), (1000, 5)):
        codes = np.arange(n) % K
        found = Calibration.fit(np.eye(K)[codes], codes)
        right = found.probabilities(np.eye(K)[codes])[np.arange(n), codes]
        assert np.allclose(right, (n + 1.0 / K) / (n + 1.0), rtol=1e-6)


def test_decisions_no_better_than_chance_keep_their_order():
    f, codes = drawn(200, 3, 4.0)
    wrong = Calibration.fit(-f, codes)
    p = wrong.probabilities(-f)
    assert wrong.slope == pytest.approx(FLATTEST / np.std(f - f.mean(axis=1, keepdims=True)), rel=1e-9)
    assert np.allclose(p, 1 / 3, atol=5e-3) and np.array_equal(p.argmax(axis=1), (-f).argmax(axis=1))


def test_what_tells_nothing_apart():
    codes = np.array([0, 1, 1, 0])
    assert Calibration.fit(np.full((4, 3), 7.0), codes).slope == 1.0
    assert Calibration.fit([[1.0, 1.0], [5.0, 0.0]], [0, 0], [1.0, 0.0]).slope == 1.0
    absent = Calibration.fit(drawn(100, 4, 2.0)[0], np.zeros(100, dtype=int))  # three classes are absent
    assert np.isfinite(absent.slope)
    # one row of tiny differences, right, beside one far wrong: steep for the one, flat for both
    assert 0 < Calibration.fit([[1e-12, 0.0], [0.0, 1e3]], [0, 0]).slope < 1.0
    assert np.isfinite(Calibration.fit([[1e-12, 0.0], [1e3, 0.0]], [0, 0]).slope)


def test_rows_of_other_sizes_do_not_matter():
    p = Calibration(1.0).probabilities([[1000.0, 999.0], [-1000.0, -1001.0]])
    np.testing.assert_allclose(p, np.tile(1.0 / (1.0 + np.exp([-1.0, 1.0])), (2, 1)), rtol=1e-12)


def test_large_values_do_not_overflow():
    calibration = Calibration(1e300)
    assert np.array_equal(calibration.probabilities([[1e5, 0.0, -1e5]]), [[1.0, 0.0, 0.0]])
    assert np.array_equal(Calibration(1e3).log_probabilities([[1.0, 0.0]]), [[0.0, -1e3]])


def test_scores():
    f, codes = drawn(400, 3, 1.0)
    w = np.random.default_rng(3).uniform(size=400)
    p = softmax(f, axis=1)
    assert log_loss(np.log(p), codes, w) == pytest.approx(sklearns(codes, p, sample_weight=w))
    # by hand: bins (0, 0.5], (0.5, 1]; confidences 0.4 (wrong); 0.6, 0.8 (right, wrong)
    three = [[0.4, 0.35, 0.25], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8]]
    assert calibration_error(three, [1, 0, 0], bins=2) == pytest.approx((abs(0 - 0.4) + abs(1 - 1.4)) / 3)
    assert calibration_error(three, [1, 0, 0], bins=2, weights=[1, 1, 0]) == pytest.approx((0.4 + 0.4) / 2)
    assert calibration_error([[1.0, 0.0]], [0]) == 0.0
    f, codes = drawn(20_000, 3, 1.0)
    assert (
        calibration_error(softmax(f, axis=1), codes) < 0.02 < 0.1 < calibration_error(softmax(3.0 * f, axis=1), codes)
    )


def test_goes_through_json():
    found = Calibration.fit(*drawn(50, 3, 1.0))
    assert Calibration.of(json.loads(json.dumps(found.config()))) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [0, 1]), r"must be finite, \(rows, classes\), got shape \(2,\)"),
        ((np.empty((0, 2)), []), r"got shape \(0, 2\)"),
        (([[1.0]], [0]), r"got shape \(1, 1\)"),
        (([[np.nan, 1.0]], [0]), "must be finite"),
        (([[0.0, 1.0]], [2]), "codes must be whole numbers from 0 to 1, one a row, for 1 rows"),
        (([[0.0, 1.0]], [0.0]), "codes must be whole numbers"),
        (([[0.0, 1.0]], [0, 1]), "codes must be whole numbers"),
        (([[0.0, 1.0]], [0], [-1.0]), "weights must be numbers of 0 or more, one a row, not all zero"),
        (([[0.0, 1.0]], [0], [0.0]), "weights must be numbers"),
        (([[0.0, 1.0]], [0], [1.0, 1.0]), "weights must be numbers"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Calibration.fit(*arguments)


@pytest.mark.parametrize("slope", [0.0, -1.0, np.nan, np.inf])
def test_slopes_that_turn_the_order_are_refused(slope):
    with pytest.raises(InputError, match="slope of a calibration must be a number above 0"):
        Calibration(slope)


@pytest.mark.parametrize("config", [{}, {"slope": 1.0}, {"slope": "steep", "rows": 3}, {"slope": -1.0, "rows": 3}])
def test_damaged_configs_are_refused(config):
    with pytest.raises(InputError, match="a calibration needs 'slope' and 'rows'"):
        Calibration.of(config)
