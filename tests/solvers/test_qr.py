"""Problems from triangles: the same answers as from moments where these are good, and good ones where they are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cases import every_kernel, plain_map, rows, weights_of

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Kind, Moments, Part, Triangle, TriangleAccumulator, by_fold, pooled
from dorff.moments.gram import MIXED_UNIT
from dorff.passes import BlockSums
from dorff.solvers import Problem, Solution, direct, solve
from dorff.solvers.direct import SpectralSolver, problem_of

OBSERVE: tuple[FloatArray | None, ...] = (
    None, np.array([[1.0, 0.5]]), np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 1.0]]),
)  # fmt: skip
CASES = [(name, kernel.fix(2, 2)) for name, kernel in every_kernel(2, 2)]


def triangles(omega: FloatArray, X: FloatArray, Y: FloatArray, *, folds: int = 1) -> dict[Part, Triangle]:
    sums = BlockSums(plain_map(omega), np.linspace(0.2, 0.9, Y.shape[1]), block_rows=16, kind=Kind.TRIANGLE)
    for fold in range(folds):
        weights = np.linspace(0.5, 2.0, len(X[fold::folds]))
        sums.add(X[fold::folds], Y[fold::folds], fold, partial=bool(np.isnan(Y).any()), weights=weights)
    return sums.total(Triangle)


def same(sharp: Problem, plain: Problem) -> None:
    """Solutions, intercepts, condition numbers and scores of the two agree."""
    weights = plain.weights
    for ridge in (1e-3, 1.0):
        found, wanted = SpectralSolver(sharp).solve(ridge), SpectralSolver(plain).solve(ridge)
        assert (found.rung, wanted.rung) == ("qr", "eigh")
        W, V = weights.combined(found.h), weights.combined(wanted.h)
        np.testing.assert_allclose(W, V, rtol=0, atol=1e-10 * max(1.0, np.abs(V).max()))
        np.testing.assert_allclose(sharp.bias(W), plain.bias(V), rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.condition, wanted.condition, rtol=1e-9)
        assert found.gcv == pytest.approx(wanted.gcv, rel=1e-8)
        assert found.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-8)


@pytest.mark.parametrize("observe", OBSERVE, ids=["identity", "deficient", "tall"])
@pytest.mark.parametrize(("name", "kernel"), CASES, ids=[name for name, _ in CASES])
def test_triangles_give_the_problem_of_their_moments(
    name: str, kernel: kernels.OperatorKernel, observe: FloatArray | None
) -> None:
    drawn = frequencies.IID().draw(kernel, d=2, p=2, count=6, seed=1)
    weights = weights_of(kernel, drawn)
    X, Y = rows(50, 2, 2)
    Y = Y if observe is None else Y @ observe.T
    (part,) = triangles(drawn.omega, X, Y).values()
    for intercept in (True, False):
        scale = np.full(Y.shape[1], 0.5)
        same(
            problem_of([part], weights, intercept=intercept, scale=scale, observe=observe),
            problem_of([part.gram()], weights, intercept=intercept, scale=scale, observe=observe),
        )


@pytest.mark.parametrize("which", ["identity", "matrix", "curl trace"])
def test_rows_that_miss_targets_and_folds(which: str) -> None:
    kernel = dict(CASES)[which]
    drawn = frequencies.IID().draw(kernel, d=2, p=2, count=6, seed=1)
    weights = weights_of(kernel, drawn)
    X, Y = rows(90, 2, 2)
    Y[:40:4, 0] = Y[1:40:5, 1] = np.nan
    Y[np.isnan(Y).all(axis=1)] = 1.0
    folds = by_fold(triangles(drawn.omega, X, Y, folds=3))
    parts = pooled(folds[1:])
    assert len(folds) == 3 and [part.observed for part in parts] == ["", "01", "10"]
    for intercept in (True, False):
        same(
            problem_of(parts, weights, intercept=intercept, scale=np.array([0.5, 2.0])),
            problem_of([part.gram() for part in parts], weights, intercept=intercept, scale=np.array([0.5, 2.0])),
        )
    # One pattern alone: a target that no row has.
    alone = [part for part in parts if part.observed == "01"]
    if which == "identity":
        same(problem_of(alone, weights), problem_of([part.gram() for part in alone], weights))


def test_a_system_wider_than_lapack_counts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = frequencies.IID().draw(CASES[0][1], d=2, p=2, count=6, seed=1)
    parts = list(triangles(drawn.omega, *rows(30, 2, 2)).values())
    monkeypatch.setattr(direct, "LARGEST_SVD", 11)
    with pytest.raises(InputError, match=r"features.count: the QR of the features has 12 columns.*solve.qr: false"):
        problem_of(parts, weights_of(CASES[0][1], drawn))


def exact(F: FloatArray, Y: FloatArray, ridge: float) -> FloatArray:
    """Fitted values (n, q) with a free intercept, by Householder QR in long double."""
    wide = np.longdouble
    n, m = F.shape
    centred = F.astype(wide) - F.astype(wide).mean(axis=0)
    targets = Y.astype(wide) - Y.astype(wide).mean(axis=0)
    A = np.vstack([np.hstack([centred, targets]), np.zeros((m, m + Y.shape[1]), dtype=wide)])
    A[n:, :m] = np.sqrt(wide(n) * wide(ridge)) * np.eye(m, dtype=wide)
    for j in range(m):
        v = A[j:, j].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        A[j:, j:] -= np.outer(v, (v @ A[j:, j:]) * (2 / (v @ v)))
    W = A[:m, m:].copy()
    for i in reversed(range(m)):
        W[i] = (W[i] - A[i, i + 1 : m] @ W[i + 1 :]) / A[i, i]
    return np.asarray(centred @ W + Y.astype(wide).mean(axis=0), dtype=np.float64)


def solved(parts: Sequence[Moments] | Sequence[Triangle], ridge: float) -> tuple[Solution, FloatArray, FloatArray]:
    weights = OperatorWeights(np.ones(parts[0].m), np.eye(2)[None])
    problem = problem_of(parts, weights)
    (solution,) = solve(problem, [ridge])
    W = weights.combined(solution.h)
    return solution, W, problem.bias(W)


@pytest.mark.parametrize("lengthscale", [0.5, 5.0, 100.0])
def test_no_digit_is_lost_silently(lengthscale: float) -> None:
    """A smooth target and noise alone, condition numbers from 1e4 to 1e18 by the ridge: the digits stated are right,
    or the status says ill-conditioned; and a triangle always keeps three."""
    rng = np.random.default_rng(0)
    features, X = plain_map(rng.standard_normal((24, 2)) / lengthscale), rng.uniform(-1, 1, (400, 2))
    Y = np.column_stack([np.sin(3.0 * X[:, 0]) * X[:, 1], rng.standard_normal(400)])
    F, lost = features.transform(X), 0
    found: dict[str, list[Moments] | list[Triangle]] = {}
    for name, kind, precision in (
        ("gram", Kind.GRAM, "double"), ("qr", Kind.TRIANGLE, "double"), ("mixed", Kind.GRAM, "mixed"),
    ):  # fmt: skip
        sums = BlockSums(features, Y.mean(axis=0), block_rows=64, kind=kind, precision=precision)
        sums.add(X, Y)
        found[name] = [sums.total(Triangle)[0, ""]] if name == "qr" else [sums.moments()[0, ""]]
    assert problem_of(found["mixed"], OperatorWeights(np.ones(48), np.eye(2)[None])).unit == MIXED_UNIT
    top = np.linalg.svd(F - F.mean(axis=0))[1][0] ** 2
    for condition in 10.0 ** np.arange(4, 19, 2):
        ridge = top / (400 * condition)
        right = exact(F, Y, ridge)
        for name, parts in found.items():
            solution, W, bias = solved(parts, ridge)
            error = np.sqrt(np.sum((F @ W + bias - right) ** 2) / np.sum((Y - Y.mean(axis=0)) ** 2))
            assert solution.ill_conditioned or solution.digits <= -np.log10(error), (name, condition)
            lost += name == "gram" and solution.ill_conditioned
            if name == "qr":
                assert solution.rung == "qr" and not solution.ill_conditioned and error < 1e-6
    assert lost > 0


def test_ridge_zero_is_least_squares_down_to_the_rounding_of_singular_values() -> None:
    """Singular values over ten powers of ten, and fewer rows than features: nothing above rounding is left out."""
    rng = np.random.default_rng(0)
    Q, V = np.linalg.qr(rng.standard_normal((200, 13)))[0], np.linalg.qr(rng.standard_normal((12, 12)))[0]
    Q = np.linalg.qr(np.column_stack([np.ones(200), Q]))[0][:, 1:13]
    Y = rng.standard_normal((200, 2))
    for exponents, digits in ((np.linspace(0, -10, 12), 4.0), (np.r_[np.linspace(0, -6, 8), [-np.inf] * 4], 8.0)):
        F = Q * 10.0**exponents @ V.T
        sums = TriangleAccumulator(12, 2, np.zeros(2))
        sums.add(np.column_stack([F, np.ones(200), Y]))
        solution, W, bias = solved([sums.moments()], 0.0)
        seen = Q[:, np.isfinite(exponents)]
        right = seen @ (seen.T @ Y) + Y.mean(axis=0)
        error = np.linalg.norm(F @ W + bias - right) / np.linalg.norm(Y)
        assert solution.rung == "qr" and digits < solution.digits <= -np.log10(error)
        (plain, _, _) = solved([sums.moments().gram()], 0.0)
        assert plain.ill_conditioned and plain.digits == 0.0
