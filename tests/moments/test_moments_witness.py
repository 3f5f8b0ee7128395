"""The witness of sums: quiet whatever the rows, loud when a number was changed."""

from __future__ import annotations

import numpy as np
import pytest
from cases import LAW, plain_map
from hypothesis import given
from hypothesis import strategies as st

from dorff.moments import (
    Accumulator,
    Adder,
    FloatArray,
    Kind,
    ProductAccumulator,
    TriangleAccumulator,
    probe,
)
from dorff.passes import BlockSums

KINDS = ("gram", "triangle", "product", "mixed")
Y0 = np.zeros(1)


def adder(kind: str, width: int) -> Adder:
    if kind == "triangle":
        return TriangleAccumulator(width - 2, 1, Y0)
    if kind == "product":
        V = np.random.default_rng(width).standard_normal((width, 3))
        return ProductAccumulator(width - 2, 1, Y0, V=V)
    return Accumulator(width - 2, 1, Y0)


def add(sums: Adder, Z: FloatArray, kind: str, *, as_if: FloatArray | None = None) -> None:
    """Add rows (n, w), with the witness of the rows `as_if`."""
    along = (Z if as_if is None else as_if) @ sums.probe
    if kind == "mixed":
        assert isinstance(sums, Accumulator)
        width = Z.shape[1]
        sums.add_rounded(Z.astype(np.float32), np.empty((width, width), np.float32, order="F"), along=along)
    else:
        sums.add(Z, along=along)


@st.composite
def many_rows(draw: st.DrawFn, *, scales: float) -> FloatArray:
    """Rows as features may be and worse: equal, constant, of sizes that differ by row or column, many of them zero."""
    width, n = draw(st.integers(2, 70)), draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    Z = rng.standard_normal((n, width))
    if draw(st.booleans()) and n:
        Z[:] = Z[0]
    if draw(st.booleans()):
        Z[:, : width // 2] = rng.uniform(0.1, 1.0)
    by = draw(st.sampled_from(["nothing", "rows", "columns", "all"]))
    shape = {"nothing": (0, 0), "rows": (n, 1), "columns": (1, width), "all": (1, 1)}[by]
    if by != "nothing":
        Z *= 10.0 ** rng.uniform(-scales, scales, shape)
    Z[rng.random(n) < draw(st.sampled_from([0.0, 0.9]))] = 0.0
    return Z


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data())
def test_rounding_is_never_taken_for_a_fault(kind: str, data: st.DataObject) -> None:
    Z = data.draw(many_rows(scales=150.0))
    sums = adder(kind, Z.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for block in np.array_split(Z, 3):
            add(sums, block, kind)
        assert sums.intact()


@pytest.mark.parametrize("kind", KINDS)
@LAW
@given(data=st.data(), seed=st.integers(0, 2**16), scale=st.floats(-150, 150))
def test_nor_by_blocks_with_weights_and_missing_targets(
    kind: str, data: st.DataObject, seed: int, scale: float
) -> None:
    rng, D, n = np.random.default_rng(seed), data.draw(st.integers(1, 20)), data.draw(st.integers(0, 90))
    X, Y = rng.standard_normal((n, 2)), rng.standard_normal((n, 2)) * 10.0 ** data.draw(st.floats(-150, 150))
    Y[rng.random((n, 2)) < 0.2] = np.nan
    weights = 10.0 ** rng.uniform(min(scale, 0.0), max(scale, 0.0), n) * (rng.random(n) < 0.9)
    way = {"product": {"V": np.ones((2 * D + 3, 2))}, "mixed": {"precision": "mixed"}}.get(kind, {})
    sums = BlockSums(
        plain_map(rng.standard_normal((D, 2))), np.zeros(2), block_rows=32,
        kind=Kind.GRAM if kind == "mixed" else Kind(kind), **way,
    )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        sums.add(X, Y, partial=True, weights=weights)
        assert all(adder.intact() for adder in sums.sums.values())


def trig_rows(n: int, D: int) -> FloatArray:
    rng = np.random.default_rng(7)
    angles = rng.standard_normal((n, 3)) @ rng.standard_normal((3, D))
    F = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(D)
    return np.column_stack([F, np.ones(n), rng.standard_normal(n)])


#: By how much of a usual number of the sums one must change to be seen for certain.
SEEN = {"gram": 1e-6, "triangle": 1e-5, "product": 1e-5, "mixed": 0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_number_is_seen_wherever_it_is(kind: str) -> None:
    Z = trig_rows(600, 30)
    sums = adder(kind, Z.shape[1])
    add(sums, Z[:300], kind)
    *numbers, _ = sums.held()
    usual = np.sqrt(np.mean(np.concatenate(numbers) ** 2))
    rng = np.random.default_rng(0)
    for piece in numbers:
        at = rng.integers(len(piece))
        before = piece[at]
        for wrong in (before + SEEN[kind] * usual, before - SEEN[kind] * usual, 1e200, -1e200, np.nan, np.inf):
            piece[at] = wrong
            assert not sums.intact(), f"{before} is now {wrong}"
        piece[at] = before
    add(sums, Z[300:], kind)
    assert sums.intact() and not sums.overflowed()


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_that_changes_before_it_is_added_is_seen(kind: str) -> None:
    Z = trig_rows(600, 30)
    for row, column in [(0, 0), (77, 59), (599, 61)]:
        sums, wrong = adder(kind, Z.shape[1]), Z.copy()
        wrong[row, column] += 30.0 if kind == "mixed" else 1e-3
        add(sums, wrong, kind, as_if=Z)
        assert not sums.intact()


def test_sums_that_overflow_are_told_from_damaged_ones() -> None:
    sums = Accumulator(1, 2, np.zeros(2))
    sums.add(np.array([[0.5, 1.0, 1e160, 1e160]]))
    assert sums.intact() and sums.overflowed()
    sums = Accumulator(1, 2, np.zeros(2))
    sums.add(np.array([[0.5, 1.0, 1e140, 1e140]]))
    assert sums.intact() and not sums.overflowed()
    sums.square[0, 0] = np.inf
    assert not sums.intact()


def test_the_probe_is_fixed_and_of_numbers_of_size_one_to_two() -> None:
    u = probe(1000)
    assert np.all((np.abs(u) >= 1) & (np.abs(u) < 2)) and 400 < np.sum(u > 0) < 600
    assert np.array_equal(probe(10), u[:10]) and not u.flags.writeable
    # Checkpoints hold sums along it: another NumPy must give the same.
    assert [number.hex() for number in u[:2].tolist()] == ["0x1.89c5239171ee8p+0", "-0x1.57e09987848c1p+0"]


def test_pairs_of_rows_say_how_large_their_products_were_before_they_cancelled():
    """The second number of the witness: it sets how far the first may be from the sums."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((5, 4))
    LZ = Z + 1e-3 * rng.standard_normal((5, 4))
    sums = Accumulator(3, 0, np.zeros(0), paired=True)
    v, Lv = Z @ sums.probe, LZ @ sums.probe
    sums.add_pair(Z, LZ, along=(v, Lv), size=7.0)
    np.testing.assert_allclose(sums.witness, [v @ Lv, 7.0 + np.abs(v) @ np.abs(Lv)], rtol=1e-12)
    assert sums.intact() and sums.moments().n == 5
    np.testing.assert_allclose(sums.moments().full, (Z.T @ LZ + LZ.T @ Z) / 2, rtol=1e-12, atol=1e-12)
