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


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 10**6))
@LAW
def test_groups_of_one_row_are_rows(n, q, seed):
    scored = np.random.default_rng(seed).exponential(size=(n, q))
    found, rows = Conformal.fit_units(scored, np.arange(n), "groups"), Conformal.fit(scored)
    np.testing.assert_array_equal(found.factors, rows.factors)
    assert found.units == rows.units == rows.rows == (n,) * q


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.sampled_from(LEVELS), st.integers(0, 10**6))
@LAW
def test_groups_are_a_weighted_quantile(sizes, level, seed):
    """The least score below which the groups' mean share, of G + 1 groups one of which is infinite, is the level."""
    rng = np.random.default_rng(seed)
    members = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    scored = rng.exponential(size=len(members))
    found = Conformal.fit_units(scored[:, None], members, "groups")
    shares = [
        sum(np.mean(scored[members == group] <= one) for group in range(len(sizes))) / (len(sizes) + 1)
        for one in np.sort(scored)
    ]
    enough = [one for one, share in zip(np.sort(scored), shares, strict=True) if share >= level - 1e-9]
    assert found.units == (len(sizes),) and found.rows == (len(members),)
    if enough:
        assert found.factor(level)[0] == enough[0]
    else:
        with pytest.raises(InputError, match=f"{len(sizes)} held-out groups"):
            found.factor(level)


@pytest.mark.parametrize("groups", [5, 19, 40])
def test_groups_that_share_errors_are_held_on_average(groups):
    """Rows counted alone hold too few of a new group's; groups hold the level at least, within five standard errors,
    and where they are too few for a level there is no band."""
    rng, rows, trials = np.random.default_rng(groups), 20, 400
    for level in (0.8, 0.95):
        alone, together = [], []
        for _ in range(trials):
            size = np.exp(rng.normal(size=(groups + 1, 1)))
            drawn = np.abs(size * (rng.normal(size=(groups + 1, 1)) + 0.3 * rng.normal(size=(groups + 1, rows))))
            known, members = drawn[:groups].reshape(-1, 1), np.repeat(np.arange(groups), rows)
            alone.append(np.mean(drawn[groups] <= Conformal.fit(known).factor(level)))
            found = Conformal.fit_units(known, members, "groups")
            together.append(np.mean(drawn[groups] <= found.factor(level)) if level <= found.highest else np.nan)
        error = np.std(alone) / np.sqrt(trials)
        if level > groups / (groups + 1):
            assert np.isnan(together).all()
        else:
            assert np.mean(together) > level - 5 * error
            assert np.mean(together) > np.mean(alone)
        if groups == 5 and level == 0.95:
            assert np.mean(alone) < level - 3 * error


def test_what_holds_is_said_of_rows_groups_and_blocks():
    scored, members = np.ones((60, 1)), np.repeat(np.arange(30), 2)
    assert "rows like the 60 held out" in Conformal.fit(scored).scope
    groups = Conformal.fit_units(scored, members, "groups").scope
    assert "on average over groups (30 were held out, enough for levels up to 96.5%)" in groups
    blocks = Conformal.fit_units(scored, members, "blocks", block_rows=2).scope
    assert "30 of 2 rows" in blocks and "nothing is promised of rows after them" in blocks


def test_levels_between_those_kept_are_the_next_one_above():
    found = Conformal.fit(np.arange(1.0, 2000.0)[:, None])
    assert found.factor(0.95)[0] == 1900 and found.factor(0.9501)[0] == found.factor(0.955)[0] == 1910
    assert found.factor(0.683)[0] == 1370 and found.factor(0.999)[0] == 1998
    with pytest.raises(InputError, match=r"level 0.9999: .* ask for 0.999 or less"):
        found.factor(0.9999)
    with pytest.raises(InputError, match=r"level 0.99999: levels of conformal bands end at 0.9999"):
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
    assert set(found.config()) == {"levels", "factors", "rows"}  # as models had them before there were units
    blocks = Conformal.fit_units(np.ones((30, 2)), np.arange(30) // 3, "blocks", block_rows=3)
    for one in (found, blocks):
        again = Conformal.of(json.loads(json.dumps(one.config(), allow_nan=False)))
        np.testing.assert_array_equal(again.factors, one.factors)
        assert again.rows == one.rows and again.highest == one.highest and again.scope == one.scope
        assert (again.unit, again.units, again.block_rows) == (one.unit, one.units, one.block_rows)


def changed(**parts):
    return Conformal.fit(np.ones((30, 2))).config() | parts


@pytest.mark.parametrize(
    "config",
    [{}, changed(levels=[0.5]), changed(factors=[[1.0, 1.0]]), changed(rows=[30]), changed(factors="all"),
     changed(factors=[[-1.0, 1.0]] * len(LEVELS)), changed(rows=None),
     changed(unit="walks"), changed(unit="groups", units=[1]), changed(unit="groups", units=[-1, 3]),
     changed(unit="blocks", units=[3, 3], block_rows=0)],
)  # fmt: skip
def test_damaged_configs_are_refused(config):
    with pytest.raises(InputError, match="conformal factors need levels, factors and rows"):
        Conformal.of(config)


@pytest.mark.parametrize("values", [np.ones(3), np.ones((3, 0)), [[-1.0]]])
def test_what_is_no_score_is_refused(values):
    with pytest.raises(InputError, match="scores must be numbers of 0 or more"):
        Conformal.fit(values)
