"""Moments: explicit sums, and the laws of addition."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from cases import LAW, every_kernel, moments_of, plain_map, rows, weights_of
from hypothesis import given
from hypothesis import strategies as st

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments, syrk
from dorff.solvers import Problem, solve, target_covariance

D = 6
OMEGA = frequencies.IID().draw(kernels.Decomposable(kernels.Gaussian(0.7)), d=2, p=2, count=D, seed=0)
FEATURES = plain_map(OMEGA.omega)


def test_moments_are_the_explicit_sums():
    X, Y = rows(40, 2, 3)
    y0 = np.array([1.0, -2.0, 3.0])
    found = moments_of(FEATURES, X, Y, y0=y0)
    angles = X @ OMEGA.omega.T
    F1 = np.column_stack([np.cos(angles), np.sin(angles), np.sqrt(D) * np.ones(40)]) / np.sqrt(D)
    m = found.m
    assert (m, found.q, found.n, found.width) == (2 * D, 3, 40, 2 * D + 4)
    np.testing.assert_allclose(found.full[: m + 1, : m + 1], F1.T @ F1, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.full[: m + 1, m + 1 :], F1.T @ (Y - y0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.full[m + 1 :, m + 1 :], (Y - y0).T @ (Y - y0), rtol=1e-12)
    np.testing.assert_array_equal(found.full, found.full.T)
    assert found.full[m, m] == 40
    np.testing.assert_allclose(target_covariance(found), np.cov(Y.T, bias=True), rtol=1e-10)


def test_packed_is_the_upper_triangle_by_columns():
    found = moments_of(FEATURES, *rows(30, 2, 2))
    upper = [found.full[i, j] for j in range(found.width) for i in range(j + 1)]
    np.testing.assert_array_equal(found.packed, upper)
    again = Moments(found.m, found.q, found.n, found.y0, np.array(upper))
    np.testing.assert_array_equal(again.full, found.full)


@LAW
@given(data=st.data(), n=st.integers(1, 60), seed=st.integers(0, 2**16))
def test_any_partition_in_any_order_gives_the_same_sums(data, n, seed):
    X, Y = rows(n, 2, 2, seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6), label="cuts"))
    pieces = [moments_of(FEATURES, X[a:b], Y[a:b], y0=np.ones(2)) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    while len(pieces) > 1:  # any tree
        right = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        left = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
        pieces.append(left + right)
    whole = moments_of(FEATURES, X, Y, y0=np.ones(2))
    assert pieces[0].n == n
    np.testing.assert_allclose(pieces[0].packed, whole.packed, rtol=0, atol=1e-12 * np.abs(whole.packed).max())


@LAW
@given(n=st.integers(0, 30), k=st.integers(0, 30), seed=st.integers(0, 2**16))
def test_merge_is_commutative_to_the_bit_and_overwrites_nothing(n, k, seed):
    X, Y = rows(n + k, 2, 2, seed)
    left, right = moments_of(FEATURES, X[:n], Y[:n]), moments_of(FEATURES, X[n:], Y[n:])
    before = left.packed.copy(), right.packed.copy()
    one, other = left + right, right + left
    np.testing.assert_array_equal(one.packed, other.packed)
    assert one.n == other.n == n + k
    np.testing.assert_array_equal(left.packed, before[0])
    np.testing.assert_array_equal(right.packed, before[1])
    written = left.absorb(right)
    np.testing.assert_array_equal(written.packed, one.packed)
    assert written.packed is left.packed


def test_blocks_of_an_accumulator_add_up():
    X, Y = rows(50, 2, 2)
    Z = np.column_stack([FEATURES.transform(X), np.ones(50), Y])
    sums = Accumulator(2 * D, 2, np.zeros(2))
    for start, stop in [(0, 20), (20, 20), (20, 21), (21, 50)]:
        sums.add(Z[start:stop])
    whole = moments_of(FEATURES, X, Y)
    np.testing.assert_allclose(sums.moments().packed, whole.packed, rtol=0, atol=1e-12 * 200)
    assert sums.n == 50
    empty = Accumulator(2 * D, 2, np.zeros(2)).moments()
    assert empty.n == 0 and not empty.packed.any()
    again = Accumulator(2 * D, 2, np.zeros(2), square=np.full_like(sums.square, 7.0))  # whatever was in it
    again.add(Z)
    np.testing.assert_array_equal(again.moments().packed, whole.packed)


def test_moments_of_different_plans_do_not_add():
    X, Y = rows(10, 2, 2)
    one = moments_of(FEATURES, X, Y)
    for other in (moments_of(FEATURES, X, Y, y0=np.ones(2)), moments_of(FEATURES, X, Y[:, :1])):
        with pytest.raises(InputError, match="different plans"):
            one + other


def test_syrk_adds_to_the_upper_triangle_also_from_a_wider_buffer():
    buffer = np.random.default_rng(0).standard_normal((9, 8))
    for Z in (buffer, buffer[:, :5], buffer[2:7, 1:6], buffer[:1, :5], buffer[0][None, :3]):
        width = Z.shape[1]
        square = np.ones((width, width), order="F")
        syrk(Z, square)
        np.testing.assert_allclose(np.triu(square), np.triu(1 + Z.T @ Z), rtol=1e-12)
        np.testing.assert_array_equal(np.tril(square, -1), np.tril(np.ones((width, width)), -1))


@pytest.mark.parametrize(
    ("Z", "square"),
    [
        (np.ones((4, 3), order="F"), np.zeros((3, 3), order="F")),
        (np.ones((4, 6))[:, ::2], np.zeros((3, 3), order="F")),
        (np.ones((4, 3)), np.zeros((3, 3))),
        (np.ones((4, 3), dtype=np.float32), np.zeros((3, 3), order="F")),
        (np.ones((4, 3)), np.zeros((3, 3), dtype=np.int64, order="F")),
        (np.ones((4, 3)), np.zeros((2, 2), order="F")),
        (np.ones((4, 3)), np.zeros((3, 4), order="F")),
        (np.broadcast_to(np.ones(3), (4, 3)), np.zeros((3, 3), order="F")),
        (np.ones((4, 3))[::-1], np.zeros((3, 3), order="F")),
    ],
    ids=["columns", "stride", "row-major", "single", "int", "small", "oblong", "broadcast", "backwards"],
)
def test_syrk_refuses_what_blas_would_misread(Z, square):
    with pytest.raises(InputError, match="syrk"):
        syrk(Z, square)
    assert not square.any()


@LAW
@given(data=st.data(), shift=st.lists(st.floats(-5, 5), min_size=2, max_size=2), intercept=st.booleans())
def test_solution_does_not_depend_on_y0(data, shift, intercept):
    _, kernel = data.draw(st.sampled_from(list(every_kernel(2, 2))), label="kernel")
    kernel = kernel.fix(2, 2)
    found = frequencies.IID().draw(kernel, d=2, p=2, count=D, seed=1)
    weights = weights_of(kernel, found)
    X, Y = rows(40, 2, 2)
    answers = []
    for y0 in (np.zeros(2), np.array(shift)):
        moments = moments_of(plain_map(found.omega), X, Y, y0=y0)
        problem = Problem.of(moments, weights, intercept=intercept, scale=np.array([0.5, 2.0]))
        W = weights.combined(solve(problem, [1e-3])[0].h)
        answers.append(np.concatenate([W.ravel(), problem.bias(W), [problem.totals.energy.sum()]]))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9, atol=1e-9)


def test_y0_keeps_the_digits_of_targets_far_from_zero():
    X, Y = rows(200, 2, 2)
    weights = OperatorWeights(np.ones(2 * D), np.eye(2)[None])

    def found(offset, y0):
        parts = [moments_of(FEATURES, X[i::4], Y[i::4] + offset, y0=y0) for i in range(4)]
        solution = solve(Problem.of(reduce(add, parts), weights), [1e-3])[0]
        return np.concatenate([solution.h.ravel(), target_covariance(reduce(add, parts)).ravel()])

    plain, offset = found(0.0, np.zeros(2)), 1e9
    shifted, careless = found(offset, np.full(2, offset)), found(offset, np.zeros(2))
    np.testing.assert_allclose(shifted, plain, rtol=1e-5, atol=1e-6)  # 1e9 itself costs 1e-7 of each target
    assert np.abs(careless - plain).max() > 1e-3
