"""Conformal factors: order statistics, coverage within binomial error, and what too few rows can say."""

import json

import numpy as np
import pytest
from cases import LAW
from hypothesis import given
from hypothesis import strategies as st

from dorff.errors import InputError
from dorff.model.calibration import CALIBRATION_ROWS, LEVELS, MOST_NUMBERS, Conformal, most_rows, scores


@given(st.integers(1, 60), st.integers(1, 3), st.sampled_from(LEVELS), st.integers(0, 10**6))
@LAW
def test_is_the_order_statistic(n, q, level, seed):
    """The ceil((n + 1) level)-th smallest, each target for itself; refused where there are not as many."""
    scored = np.random.default_rng(seed).exponential(size=(n, q))
    rank = int(np.ceil(round((n + 1) * level, 9)))
    found = Conformal.fit(scored)
    assert found.rows == (n,) * q
    if rank > n:
        assert found.highest < level
        with pytest.raises(InputError, match=f"{n} held-out rows"):
            found.factor(level)
    else:
        np.testing.assert_array_equal(found.factor(level), np.sort(scored, axis=0)[rank - 1])


def test_covers_what_it_says_whatever_the_law():
    """Exchangeable scores of a heavy-tailed law: the mean over splits is the level, within five standard errors of
    them; n = 39, where without the (n + 1) rule it would fall short by 0.012 at 0.95."""
    rng, n, new, splits = np.random.default_rng(0), 39, 50, 4000
    for level in (0.5, 0.8, 0.95):
        drawn = rng.standard_cauchy((splits, n + new)) ** 2
        factors = np.array([Conformal.fit(row[:n, None]).factor(level)[0] for row in drawn[:400]])
        inside = np.mean(drawn[:400, n:] <= factors[:, None], axis=1)
        assert abs(inside.mean() - level) < 5 * inside.std() / np.sqrt(400) + 1e-12
        assert level * 40 == round(level * 40)  # so that the law is exact: rank / (n + 1)


def test_levels_between_those_kept_are_the_next_one_above():
    found = Conformal.fit(np.arange(1.0, 2000.0)[:, None])
    assert found.factor(0.95)[0] == 1900 and found.factor(0.9501)[0] == found.factor(0.955)[0] == 1910
    assert found.factor(0.683)[0] == 1370 and found.factor(0.999)[0] == 1998
    with pytest.raises(InputError, match=r"level 0.9999: .* ask for 0.999 or less"):
        found.factor(0.9999)
    with pytest.raises(InputError, match=r"level 0.99999: 1999 held-out rows"):
        found.factor(0.99999)


def test_missing_targets_do_not_count():
    scored = np.array([[1.0, 4.0], [np.nan, 2.0], [3.0, np.nan], [2.0, np.nan]])
    found = Conformal.fit(scored)
    assert found.rows == (3, 2)
    np.testing.assert_array_equal(found.factor(0.5), [2.0, 4.0])
    with pytest.raises(InputError, match=r"level 0.75: 2 held-out rows"):
        found.factor(0.75)  # the first target's rows would do, the second's would not
    nothing = Conformal.fit(np.empty((0, 2)))
    assert nothing.highest == 0.0 and nothing.rows == (0, 0)


def test_scores_are_errors_over_deviations():
    found = scores([[1.0, np.nan], [2.0, 5.0]], [[0.0, 1.0], [2.0, 1.0]], [[2.0, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(found, [[0.5, np.nan], [0.0, np.inf]])
    assert Conformal.fit(found).highest == 0.0  # the second target's only score is infinite


def test_held_rows_are_bounded():
    assert most_rows(1) == CALIBRATION_ROWS and most_rows(10**9) == 256
    assert most_rows(100) * 100 <= MOST_NUMBERS


def test_goes_through_json():
    found = Conformal.fit(np.random.default_rng(0).random((30, 2)))
    again = Conformal.of(json.loads(json.dumps(found.config(), allow_nan=False)))
    np.testing.assert_array_equal(again.factors, found.factors)
    assert again.rows == found.rows and again.highest == found.highest


def changed(**parts):
    return Conformal.fit(np.ones((30, 2))).config() | parts


@pytest.mark.parametrize(
    "config",
    [{}, changed(levels=[0.5]), changed(factors=[[1.0, 1.0]]), changed(rows=[30]), changed(factors="all"),
     changed(factors=[[-1.0, 1.0]] * len(LEVELS)), changed(rows=None)],
)  # fmt: skip
def test_damaged_configs_are_refused(config):
    with pytest.raises(InputError, match="conformal factors need levels, factors and rows"):
        Conformal.of(config)


@pytest.mark.parametrize("values", [np.ones(3), np.ones((3, 0)), [[-1.0]]])
def test_what_is_no_score_is_refused(values):
    with pytest.raises(InputError, match="scores must be numbers of 0 or more"):
        Conformal.fit(values)
