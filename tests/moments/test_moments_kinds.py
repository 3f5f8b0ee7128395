"""Sums of other kinds than Gram: triangles, products, rounded blocks; all the same sums by other means."""

import threading
import time

import numpy as np
import pytest
from cases import LAW, plain_map, rows
from hypothesis import given
from hypothesis import strategies as st

from dorff.engine.base import forget_spare
from dorff.errors import InputError
from dorff.moments import (
    UNIT,
    Accumulator,
    FloatArray,
    Kind,
    Moments,
    ProductAccumulator,
    Products,
    Triangle,
    TriangleAccumulator,
    merge_folds,
    pooled,
    tpqrt,
)
from dorff.moments.gram import MIXED_UNIT
from dorff.passes import BlockSums

OMEGA = np.random.default_rng(5).standard_normal((6, 2))
FEATURES, M, Q = plain_map(OMEGA), 12, 2
Y0 = np.array([0.3, 1.0])


def matrix(n: int, seed: int = 0) -> FloatArray:
    """Rows Z (n, w)."""
    X, Y = rows(n, 2, Q, seed)
    return np.column_stack([FEATURES.transform(X), np.ones(n), Y - Y0])


def triangle(Z: FloatArray) -> Triangle:
    sums = TriangleAccumulator(M, Q, Y0)
    sums.add(Z)
    return sums.moments()


def test_the_triangle_is_the_r_of_a_qr() -> None:
    for n in (3, 15, 60):  # fewer rows than columns, as many, more
        Z = matrix(n)
        found = triangle(Z)
        R = np.linalg.qr(Z, mode="r")
        R *= np.where(np.diag(R) < 0, -1.0, 1.0)[:, None]
        np.testing.assert_allclose(found.square[: len(R)], R, atol=1e-12)
        assert not np.any(np.tril(found.square, -1)) and np.all(np.diag(found.square) >= 0)
        assert (found.m, found.q, found.n, found.length, found.kind) == (M, Q, n, 120, Kind.TRIANGLE)
        np.testing.assert_allclose(found.gram().full, Z.T @ Z, atol=1e-12)
        np.testing.assert_allclose(found.corner, (Z.T @ Z)[M:, M:], atol=1e-12)


@LAW
@given(data=st.data(), n=st.integers(1, 60), seed=st.integers(0, 2**16))
def test_any_partition_in_any_order_gives_the_same_triangle(data: st.DataObject, n: int, seed: int) -> None:
    Z = matrix(n, seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6), label="cuts"))
    pieces = [triangle(Z[a:b]) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    while len(pieces) > 1:  # any tree
        right = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        left = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        before = left.packed.copy(), right.packed.copy()
        pieces.append(left + right)
        assert np.array_equal(left.packed, before[0]) and np.array_equal(right.packed, before[1])
    assert pieces[0].n == n
    # Where columns depend on each other R itself is not unique: compare the lengths that it gives.
    np.testing.assert_allclose(pieces[0].gram().full, Z.T @ Z, atol=1e-12 * n)


def test_a_triangle_keeps_what_the_gram_matrix_loses() -> None:
    rng = np.random.default_rng(0)
    Q1, Q2 = np.linalg.qr(rng.standard_normal((200, 15)))[0], np.linalg.qr(rng.standard_normal((15, 15)))[0]
    values = np.logspace(0, -12, 15)
    Z = (Q1 * values) @ Q2
    whole = triangle(Z[:70]) + triangle(Z[70:])
    np.testing.assert_allclose(np.linalg.svd(whole.square)[1], values, rtol=1e-3)
    lost = np.linalg.eigvalsh(whole.gram().full)
    assert np.any(np.abs(lost[:5] - values[::-1][:5] ** 2) > values[::-1][:5] ** 2)


def test_products_are_the_moments_times_columns() -> None:
    Z, V = matrix(60), np.random.default_rng(1).standard_normal((15, 4))

    def of(Z: FloatArray) -> Products:
        sums = ProductAccumulator(M, Q, Y0, V=V)
        sums.add(Z)
        return sums.moments()

    whole = of(Z)
    np.testing.assert_allclose(whole.values, Z.T @ Z @ V, atol=1e-11)
    left, right = of(Z[:25]), of(Z[25:])
    one, other = left + right, right + left
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_allclose(one.values, whole.values, atol=1e-11)
    assert one.n == 60 and one.length == 60 and np.array_equal(left.values, of(Z[:25]).values)
    header = {"m": M, "q": Q, "n": 60, "observed": "", "unit": UNIT}
    again = Products.read(header, Y0, np.concatenate(list(whole.pieces())))
    np.testing.assert_array_equal(again.values, whole.values)
    with pytest.raises(InputError, match="columns of 15 numbers"):
        ProductAccumulator(M, Q, Y0, V=V[:-1])


def test_sums_of_two_kinds_do_not_add() -> None:
    with pytest.raises(InputError, match="different plans"):
        merge_folds({(0, ""): triangle(matrix(5))}, {(0, ""): triangle(matrix(5)).gram()})


def test_sub_blocks_are_those_of_their_columns() -> None:
    Z, at, factor = matrix(40), np.array([0, 2, 3, 6, 8, 9]), np.linspace(0.5, 2.0, 6)
    sums = Accumulator(M, Q, Y0)
    sums.add(Z)
    small = np.hstack([Z[:, at] * factor, Z[:, M:]])
    for whole in (sums.moments(), triangle(Z)):
        found = whole.columns(at, factor)
        assert isinstance(found, type(whole)) and (found.m, found.q, found.n) == (6, Q, 40)
        gram = found if isinstance(found, Moments) else found.gram()
        np.testing.assert_allclose(gram.full, small.T @ small, atol=1e-12)
    mixed_up, root = np.array([5, 1, 11]), np.sqrt(2.0)
    small = np.hstack([Z[:, mixed_up] * root, Z[:, M:]])
    np.testing.assert_allclose(sums.moments().columns(mixed_up, root).full, small.T @ small, atol=1e-12)


def test_squares_are_those_of_the_rows() -> None:
    Z, V = matrix(40), np.random.default_rng(1).standard_normal((15, 3))
    for sums in (triangle(Z), triangle(Z).gram()):
        np.testing.assert_allclose(sums.squares(V), np.sum((Z @ V) ** 2, axis=0), rtol=1e-12)


def test_block_sums_of_every_kind_are_of_the_same_rows() -> None:
    X, Y = rows(50, 2, Q)
    Y[3, 0] = Y[20, 1] = np.nan
    V, weights = np.random.default_rng(1).standard_normal((15, 2)), np.random.default_rng(2).uniform(0, 2, 50)
    weights[7] = 0.0
    forget_spare()
    found = []
    for kind in (Kind.GRAM, Kind.TRIANGLE, Kind.TRIANGLE, Kind.PRODUCT):
        sums = BlockSums(FEATURES, Y0, block_rows=16, kind=kind, V=V if kind is Kind.PRODUCT else None)
        for start, stop, fold in ((0, 30, 0), (30, 50, 1)):
            sums.add(X[start:stop], Y[start:stop], fold, partial=True, weights=weights[start:stop])
        found.append({part: adder.moments() for part, adder in sums.sums.items()})
        sums.keep_spare()  # the second triangles are summed in the first ones' memory
    grams, triangles, again, products = found
    assert grams.keys() == triangles.keys() == products.keys() == {(0, ""), (0, "01"), (0, "10"), (1, "")}
    for part, gram in grams.items():
        one, other, product = triangles[part], again[part], products[part]
        assert isinstance(gram, Moments) and isinstance(one, Triangle) and isinstance(product, Products)
        assert gram.n == one.n == product.n == {(0, ""): 27, (1, ""): 20}.get(part, 1)
        assert isinstance(other, Triangle) and np.array_equal(one.packed, other.packed)
        np.testing.assert_allclose(one.gram().full, gram.full, atol=1e-12)
        np.testing.assert_allclose(product.values, gram.full @ V, atol=1e-11)
    (total,) = (part for part in pooled([[grams[0, ""]], [grams[1, ""]]]) if isinstance(part, Moments))
    kept = np.ones(50, dtype=bool)
    kept[[3, 20]] = False
    Z = np.column_stack([FEATURES.transform(X), np.ones(50), Y - Y0])[kept]
    np.testing.assert_allclose(total.full, Z.T @ (Z * weights[kept, None]), atol=1e-11)


def test_weights_of_one_change_no_bit_and_do_not_linger() -> None:
    X, Y = rows(40, 2, Q)
    plain, weighted = (BlockSums(FEATURES, Y0, block_rows=16) for _ in range(2))
    plain.add(X, Y)
    weighted.add(X, Y, weights=np.ones(40))
    np.testing.assert_array_equal(weighted.moments()[0, ""].packed, plain.moments()[0, ""].packed)
    weighted.add(X, Y, 1, weights=np.full(40, 4.0))
    weighted.add(X, Y, 2)
    np.testing.assert_array_equal(weighted.moments()[1, ""].packed, 4.0 * plain.moments()[0, ""].packed)
    np.testing.assert_array_equal(weighted.moments()[2, ""].packed, plain.moments()[0, ""].packed)


def test_kinds_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InputError, match="precision"):
        BlockSums(FEATURES, Y0, block_rows=16, kind=Kind.TRIANGLE, precision="mixed")
    with pytest.raises(InputError, match="precision"):
        BlockSums(FEATURES, Y0, block_rows=16, precision="half")
    with pytest.raises(InputError, match="V: wanted"):
        BlockSums(FEATURES, Y0, block_rows=16, kind=Kind.PRODUCT)
    with pytest.raises(InputError, match="V: wanted"):
        BlockSums(FEATURES, Y0, block_rows=16, V=np.ones((15, 1)))


@pytest.mark.parametrize(
    ("R", "B", "triangular"),
    [
        (np.zeros((3, 3)), np.ones((4, 3), order="F"), False),
        (np.zeros((3, 3), order="F"), np.ones((4, 3)), False),
        (np.zeros((3, 3), order="F"), np.ones((4, 3), dtype=np.float32, order="F"), False),
        (np.zeros((4, 4), order="F"), np.ones((4, 3), order="F"), False),
        (np.zeros((3, 3), order="F"), np.ones((4, 3), order="F"), True),
    ],
    ids=["row-major triangle", "row-major rows", "float32", "width", "not a triangle"],
)
def test_tpqrt_refuses_what_lapack_would_misread(R: FloatArray, B: FloatArray, triangular: bool) -> None:
    with pytest.raises(InputError, match="tpqrt"):
        tpqrt(R, B, triangular=triangular)
    assert not R.any()


def test_other_threads_run_while_lapack_works() -> None:
    R, B = np.zeros((500, 500), order="F"), np.asfortranarray(np.random.default_rng(0).standard_normal((2000, 500)))
    seen, stop = [], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            seen.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    tpqrt(R, B)
    ended = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(began < moment < ended for moment in seen) >= 3


@pytest.mark.parametrize("block", [64, 300, 2048, 4096])
@pytest.mark.parametrize("lengthscale", [0.1, 1.0, 5.0, 50.0])
def test_mixed_sums_are_wrong_by_about_their_unit(lengthscale: float, block: int) -> None:
    rng = np.random.default_rng(0)
    features, X = plain_map(rng.standard_normal((32, 2)) / lengthscale), rng.uniform(-1, 1, (4096, 2))
    Y = np.sin(3.0 * X) + 0.1 * rng.standard_normal((4096, 2))
    double, mixed = (BlockSums(features, Y0, block_rows=block, precision=name) for name in ("double", "mixed"))
    for sums in (double, mixed):
        sums.add(X, Y)
    exact, rounded = double.moments()[0, ""], mixed.moments()[0, ""]
    assert rounded.n == exact.n and rounded.full[64, 64] == 4096.0
    assert exact.unit == UNIT and rounded.unit == (rounded + exact).unit == MIXED_UNIT
    error = np.linalg.norm(rounded.full - exact.full, 2) / np.linalg.norm(exact.full, 2)
    assert 0.01 * MIXED_UNIT < error < 5.0 * MIXED_UNIT


def test_mixed_sums_of_equal_rows_too_are_wrong_by_ten_units_at_most() -> None:
    rng, single = np.random.default_rng(0), np.empty((256, 256), np.float32, order="F")
    for n in (64, 500, 2048):
        Z = np.tile(rng.uniform(0.1, 1.0, 256), (n, 1))
        sums = Accumulator(255, 0, np.zeros(0))
        sums.add_rounded(Z.astype(np.float32), single)
        assert np.linalg.norm(sums.moments().full - Z.T @ Z, 2) < 10.0 * MIXED_UNIT * np.linalg.norm(Z.T @ Z, 2)
