"""Sums of exponentials against sums over dense features; what they say of their own errors; their witness."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import slow

from dorff import frequencies, kernels, moments
from dorff.errors import InputError
from dorff.features import FeatureMap, Recipe
from dorff.moments import LatticeMoments, Toeplitz, ToeplitzAdder
from dorff.moments.exponentials import GridExponentials, TensorExponentials, half_shape
from dorff.passes.blocks import LATTICE_ROWS, LatticeSums
from dorff.plan.lattice import lattice_costs
from dorff.store.moments import load_sums, merge_moments, save_moments

Extents = tuple[int, ...]


def rows(extents: Extents, q: int, n: int, seed: int = 0) -> np.ndarray:
    """Z (n, v + 1 + q): angles, weights, targets."""
    rng = np.random.default_rng(seed)
    theta, weights = rng.uniform(-np.pi, np.pi, (n, len(extents))), rng.uniform(0.5, 2.0, n)
    return np.column_stack([theta, weights, rng.standard_normal((n, q))])


def dense(theta: np.ndarray, strengths: np.ndarray, extents: Extents) -> np.ndarray:
    """The sums as they are defined, of |k_j| <= K_j and the last k >= 0; angles of many turns to more digits."""
    k = np.stack(
        np.meshgrid(*[np.arange(-K, K + 1) for K in extents[:-1]], np.arange(extents[-1] + 1), indexing="ij"), -1
    )
    turns = theta.astype(np.longdouble) @ k.reshape(-1, len(extents)).T.astype(np.longdouble)
    values = strengths @ np.exp(1j * turns).astype(complex)
    return np.asarray(values.reshape(half_shape(extents)))


def strengths_of(Z: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    theta, w, y = np.split(Z, [d, d + 1], axis=1)
    return theta, np.hstack([w, w * y])


@settings(max_examples=40, deadline=None)
@given(
    extents=st.one_of(*(st.tuples(*[st.integers(0 if d > 1 else 1, 9 - 2 * d)] * d) for d in (1, 2, 3))),
    q=st.integers(0, 3), n=st.integers(1, 400), cut=st.integers(0, 400), grid=st.booleans(),
)  # fmt: skip
def test_sums_are_what_they_are_defined_as(extents: Extents, q: int, n: int, cut: int, grid: bool) -> None:
    """However rows are cut into blocks; by products of powers exact to rounding, by a grid to its tolerance."""
    Z = rows(extents, q, n)
    theta, strengths = strengths_of(Z, len(extents))
    sums = GridExponentials(extents, q, 1e-12) if grid else TensorExponentials(extents, q)
    for part in (slice(0, cut), slice(cut, None)):
        sums.add(Z[part])
    for number, found in enumerate(sums.sums()):
        wanted = dense(theta, strengths[:, number], extents if number else sums.twice)
        assert np.abs(found - wanted).max() <= sums.unit * np.abs(strengths[:, number]).sum()


@pytest.mark.parametrize("tolerance", [1e-4, 1e-12, *slow(1e-6, 1e-9, 1e-13)])
@pytest.mark.parametrize("extents", [(40,), (12, 9), (5, 4, 6)])
@pytest.mark.parametrize("apart", [True, False])
def test_sums_by_a_grid_are_as_good_as_their_tolerance(extents: Extents, tolerance: float, apart: bool) -> None:
    """The worst is that all rows lie in one place: then nothing cancels."""
    Z = rows(extents, 1, 3000)
    if not apart:
        Z[:, : len(extents)] = Z[0, : len(extents)]
    theta, strengths = strengths_of(Z, len(extents))
    sums = GridExponentials(extents, 1, tolerance)
    sums.add(Z)
    error = np.abs(sums.sums()[0] - dense(theta, strengths[:, 0], sums.twice)).max() / strengths[:, 0].sum()
    assert error <= (tolerance if apart else sums.unit)
    assert error > 1e-7 * tolerance  # no more digits than were paid for
    assert sums.unit <= 20.001 * tolerance and (not apart or error < 0.05 * sums.unit)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("extents", [(6,), (200,), (20, 17), (9, 8, 7)])
def test_of_rows_in_one_place_moments_are_as_good_as_they_say(extents: Extents, tolerance: float) -> None:
    """Where the largest eigenvalue of Z^T Z is that of all features together, over which their error counts; it is not
    far below what is said either."""
    v, n, worst = len(extents), 300, []
    axes = [np.linspace(-M, M, 7).astype(np.int64) for M in extents]
    k = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, v)
    for place in (np.full(v, 0.7), np.linspace(-3.0, 2.0, v), np.full(v, 1.234)):
        Z = np.column_stack([np.tile(place, (n, 1)), np.ones(n), np.zeros(n)])
        made = ToeplitzAdder(extents, 1, np.zeros(1), tolerance=tolerance)
        made.add(Z)
        full = made.moments().gram(k, extents).full[: 2 * len(k), : 2 * len(k)]
        F = np.hstack([np.cos(Z[:, :v] @ k.T), np.sin(Z[:, :v] @ k.T)])
        worst.append(np.linalg.norm(full - F.T @ F, 2) / np.linalg.norm(F, 2) ** 2 / made.moments().unit)
    assert 0.02 < max(worst) < 1.0


def adder(extents: Extents, Z: np.ndarray, q: int, **options: str) -> ToeplitzAdder:
    made = ToeplitzAdder(extents, q, np.zeros(q), tolerance=1e-12, **options)
    made.add(Z)
    return made


LATTICES: tuple[Extents, ...] = ((6,), (200,), (3, 4), (20, 17), (2, 3, 2), (9, 8, 7), (30, 1), (3, 0))


@pytest.mark.parametrize("extents", LATTICES)
def test_moments_of_any_modes_are_those_of_their_features(extents: Extents) -> None:
    """Zero among them, whose sine is nothing, and twice the same."""
    q, Z = 2, rows(extents, 2, 700)
    rng = np.random.default_rng(1)
    modes = np.stack([rng.integers(-M, M + 1, 40) for M in extents], axis=1)
    modes[0] = 0
    modes[1] = modes[2]
    found = adder(extents, Z, q).moments().gram(modes, extents)
    v = len(extents)
    phase = Z[:, :v] @ modes.T
    F = np.hstack([np.cos(phase), np.sin(phase), np.ones((len(Z), 1)), Z[:, v + 1 :]]) * np.sqrt(Z[:, v, None])
    assert np.abs(found.full - F.T @ F).max() < 1e-11 * Z[:, v].sum()
    assert (found.m, found.q, found.n) == (80, 2, 700) and found.unit <= 2.1e-11
    assert np.array_equal(found.full, found.full.T)


@pytest.mark.parametrize("extents", LATTICES)
def test_a_number_that_memory_changed_is_seen(extents: Extents) -> None:
    q, Z = 2, rows(extents, 2, 900)
    count = sum(len(piece) for piece in adder(extents, Z, q).held()) - (2 + q)  # but for the sizes that slack is of
    rng = np.random.default_rng(2)
    assert adder(extents, Z, q).intact()
    for place in [0, count - 1, *rng.integers(0, count, 12)]:
        made, at = adder(extents, Z, q), int(place)
        for piece in made.held():
            if at < len(piece):
                seen = abs(piece[at]) > 1e-4 * Z[:, len(extents)].sum()
                piece[at] *= 3.0
                break
            at -= len(piece)
        assert not (seen and made.intact()), place
    # Rows in one place, where Dirichlet's kernels are largest, and none: no false alarm.
    Z[:, : len(extents)] = 0.7 + 0.45 * np.arange(len(extents))
    assert adder(extents, Z, q).intact() and adder(extents, Z[:0], q).intact()
    for factor in (1e200, 1e307):  # warnings are errors here
        huge = Z.copy()
        huge[:, -q:] *= factor
        overflowing = adder(extents, huge, q)
        assert overflowing.intact() and overflowing.overflowed()


@pytest.mark.parametrize(
    ("extents", "every"), [((12,), 2), ((8, 12), 4), ((8, 8), 1), ((4, 6, 4), 2), ((9, 3), 3), ((30, 2), 1)]
)
def test_moments_that_are_not_written_out_are_the_same(extents: Extents, every: int) -> None:
    """Of every second point of a lattice, or third; with zero among them, whose sine is nothing."""
    v, q = len(extents), 2
    Z = rows(extents, q, 500)
    axes = [np.arange(-(M // every), M // every + 1) for M in extents]
    k = every * np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, v)
    modes = np.vstack([np.zeros((1, v), np.int64), k[len(k) // 2 + 1 :][::-1]])
    found = LatticeMoments.of(adder(extents, Z, q).moments()).on(modes, np.array(extents))
    wanted = adder(extents, Z, q).moments().gram(modes, extents)
    scale, full, D = Z[:, v].sum(), wanted.full, len(modes)
    V = np.random.default_rng(3).standard_normal((len(full), 3))
    border, product = found.operator()
    level = 1e-13 * np.abs(full).sum(axis=1).max() * np.abs(V).max()
    assert np.abs(product(V) - full @ V).max() < level
    assert np.abs(border - full[:, 2 * D :]).max() < 1e-13 * scale
    assert np.array_equal(found.full, full)
    np.testing.assert_allclose(found.diagonal, np.diag(full), atol=1e-13 * scale)
    np.testing.assert_allclose(found.corner, wanted.corner, atol=1e-13 * scale)
    np.testing.assert_allclose(found.squares(V), wanted.squares(V), rtol=1e-10)
    top = float(np.linalg.eigvalsh(full[: 2 * D + 1, : 2 * D + 1])[-1])
    assert top <= found.largest * (1 + 1e-12) and found.largest < 40 * top
    assert top <= wanted.largest * (1 + 1e-12)
    at = np.array([1, D - 1, D + 1, 2 * D - 1])
    kept = [*at, *range(2 * D, 2 * D + 1 + q)]
    assert np.array_equal(found.columns(at, 1.0).full, full[np.ix_(kept, kept)])
    both = found + LatticeMoments.of(adder(extents, Z[:100], q).moments()).on(modes, np.array(extents))
    assert both.n == 600 and np.abs(both.full - found.full).max() > 1.0


def test_sums_that_were_looked_at_go_on() -> None:
    """As of a checkpoint: what was finished once is not the sums of later rows."""
    extents, q = (5, 3), 1
    Z = rows(extents, q, 300)
    made = adder(extents, Z[:100], q)
    before = made.moments()
    assert made.intact()
    made.add(Z[100:])
    assert made.intact() and made.moments().n == 300
    np.testing.assert_allclose(made.moments().values, adder(extents, Z, q).moments().values, atol=1e-10)
    assert before.n == 100 and np.array_equal(before.values, adder(extents, Z[:100], q).moments().values)


def test_sums_add_and_are_written_by_numbers(tmp_path: Path) -> None:
    extents, q = (5, 3), 2
    Z = rows(extents, q, 500)
    parts = [adder(extents, some, q).moments() for some in (Z[:200], Z[200:])]
    together = adder(extents, Z, q).moments()
    total = parts[0] + parts[1]
    np.testing.assert_allclose(total.values, together.values, atol=1e-11 * len(Z))
    assert total.n == 500
    for number, part in enumerate(parts):
        save_moments(tmp_path / f"{number}.moments", {(0, ""): part})
    assert merge_moments(tmp_path / "0.moments", tmp_path / "1.moments", tmp_path / "2.moments")
    read = load_sums(tmp_path / "2.moments", Toeplitz)
    assert read is not None and np.array_equal(read[0, ""].values, total.values) and read[0, ""].n == 500
    with pytest.raises(InputError, match="of another lattice"):
        read[0, ""].gram(np.ones((1, 2), np.int64), (3, 5))
    other = ToeplitzAdder((4, 3), q, np.zeros(q), tolerance=1e-12).moments()
    with pytest.raises(InputError, match="different plans"):
        total + other
    with pytest.raises(InputError, match="sums of kind toeplitz"):
        load_sums(tmp_path / "2.moments", moments.Moments)


@pytest.mark.slow
@pytest.mark.parametrize(("q", "d", "s", "patterns", "folds"), [(30, 1, 0.01, 4, 1), (2, 2, 0.1, 2, 10)])
def test_sums_of_many_parts_take_no_more_than_is_planned(q: int, d: int, s: float, patterns: int, folds: int) -> None:
    """Patterns of missing targets one after the other, as of instruments in turn: each has whole blocks of rows."""
    kernel, sampler = (
        kernels.Decomposable(kernels.Gaussian(s)),
        frequencies.Lattice(1e-3).over(np.ones(d), constant=False),
    )
    recipe = Recipe(kernel.fix(d, q, np.eye(q)), sampler, d, q, 4000, intercept=True)
    of_targets: Any = SimpleNamespace(rows={"q": q})  # all that is asked of the pass where the lattice is known
    costs, rng = lattice_costs([recipe], of_targets), np.random.default_rng(0)
    planned = patterns * folds * costs.each + costs.once
    X, Y = rng.uniform(0, 1, (LATTICE_ROWS, d)), rng.standard_normal((LATTICE_ROWS, q))
    fold_of, features = rng.integers(0, folds, LATTICE_ROWS), FeatureMap(recipe.draw(0).phi, np.zeros(d), np.ones(d))
    tracemalloc.start()
    try:
        sums = LatticeSums(features, np.zeros(q), block_rows=LATTICE_ROWS, tolerance=1e-12)
        for pattern in range(patterns):
            Y[:, :patterns], Y[:, pattern] = 0.0, np.nan
            for fold in range(folds):
                sums.add(X[fold_of == fold], Y[fold_of == fold], fold, partial=True)
        assert all(adder.intact() and not adder.overflowed() for adder in sums.sums.values())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sums.sums) == patterns * folds and 0.4 * planned < peak < planned
