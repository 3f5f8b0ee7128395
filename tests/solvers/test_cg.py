"""Conjugate gradients against Cholesky on the same moments; preconditioners; what an iteration says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import every_kernel, moments_of, plain_map, rows, weights_of

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments
from dorff.solvers import Fit, Problem, Setting, cg, solve
from dorff.solvers.cg import Iterated, Preconditioner, Sample, Sampled, iterate, nystrom
from dorff.solvers.matrixfree import System, make_system, of_moments

N, D, RIDGE = 150, 32, 1e-4
Case = tuple[list[Moments], OperatorWeights, FloatArray]
CASES = [(name, d) for d in (2, 3) for name, _ in every_kernel(d, d)]
PATTERNS = {"all": slice(0, 80), "no second": slice(80, 120), "no first": slice(120, N)}
C = np.array([[1.0, 0.0, 0.5], [0.0, 2.0, 1.0]])


class Plain(Preconditioner):
    """The identity. What the iteration has seen of the largest eigenvalue is all there is above the shift."""

    def solve(self, r: FloatArray, a: FloatArray, shift: float) -> FloatArray:
        return r

    def spread(self, a: FloatArray, shift: float) -> float:
        return 1.0


def case(kernel: OperatorKernel, d: int, *, observe: FloatArray | None = None, partial: bool = False) -> Case:
    """Moments, weights, and the features of the rows."""
    X, Y = rows(N, d, d)
    found = frequencies.Orthogonal().draw(kernel, d=d, p=d, count=D, seed=5)
    weights = weights_of(kernel.fix(d, d, np.eye(d)), found)
    Y = Y if observe is None else Y @ observe.T
    features, q = plain_map(found.omega), Y.shape[1]
    y0, parts = np.full(q, 0.3), []
    for name, chosen in PATTERNS.items() if partial else [("all", slice(None))]:
        mask = np.array([name not in ("no first",), name not in ("no second",), *[True] * (q - 2)])
        one = moments_of(features, X[chosen], np.where(mask, Y[chosen], y0), y0=y0)
        parts.append(replace(one, observed="" if mask.all() else "".join("01"[int(there)] for there in mask)))
    return parts, weights, features.transform(X)


def by_products(parts: list[Moments], weights: OperatorWeights, **options: Any) -> Iterated:
    system = make_system(*of_moments(parts), weights, **options)
    return iterate(system, RIDGE, nystrom(system, system.problem.l * RIDGE))


def compared(parts: list[Moments], weights: OperatorWeights, **options: Any) -> Iterated:
    """The iteration's h and all that comes of it are Cholesky's or eigh's."""
    problem = Problem.of(parts, weights, **options)
    (wanted,) = solve(problem, [RIDGE])
    found = by_products(parts, weights, **options)
    solution = found.solution
    assert found.solution.converged and solution.rung == "cg"
    np.testing.assert_allclose(solution.h, wanted.h, rtol=0, atol=1e-8 * np.abs(wanted.h).max())
    np.testing.assert_allclose(solution.variance, wanted.variance, rtol=1e-8)
    assert 0.05 < solution.condition / wanted.condition < 50
    return found


@pytest.mark.parametrize(("name", "d"), CASES, ids=[f"{name} {d}" for name, d in CASES])
def test_every_kernel(name: str, d: int) -> None:
    parts, weights, _ = case(dict(every_kernel(d, d))[name], d)
    compared(parts, weights)


@pytest.mark.parametrize("name", ["identity", "matrix", "curl trace", "helmholtz bounded"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_every_treatment_of_targets(name: str, intercept: bool, partial: bool) -> None:
    kernel = dict(every_kernel(3, 3))[name]
    parts, weights, _ = case(kernel, 3, partial=partial)
    compared(parts, weights, intercept=intercept, scale=np.array([0.5, 1.0, 2.0]))
    parts, weights, _ = case(kernel, 3, partial=partial, observe=C)
    compared(parts, weights, intercept=intercept, observe=C)


def test_an_observation_that_cannot_be_taken_apart_is_refused() -> None:
    parts, weights, _ = case(kernels.Decomposable(kernels.Gaussian(0.7)), 3, partial=True, observe=C)
    with pytest.raises(InputError, match="linearly independent"):
        by_products(parts, weights, observe=np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))


def test_a_target_that_no_row_has_stays_at_zero() -> None:
    (one,), weights, _ = case(kernels.Decomposable(kernels.Gaussian(0.7)), 2)
    full = one.full
    full[:, -1] = full[-1] = 0.0
    packed = np.concatenate([full[: column + 1, column] for column in range(one.width)])
    found = by_products([replace(one, values=packed, observed="10")], weights)
    assert found.solution.converged and not found.solution.h[:, 1].any() and found.solution.h[:, 0].any()


def system(kernel: OperatorKernel, d: int) -> tuple[System, FloatArray]:
    parts, weights, F = case(kernel, d)
    borders, operator = of_moments(parts)
    return make_system(borders, operator, weights), F


@pytest.mark.parametrize("name", ["identity", "deficient", "helmholtz trace"])
def test_preconditioners_save_iterations(name: str) -> None:
    made, F = system(dict(every_kernel(3, 3))[name], 3)
    shift = made.problem.l * RIDGE
    # "Inputs" of the sample are row numbers: its features are looked up.
    sample = Sample(np.arange(0, N, 2.0)[:, None], np.ones(N // 2), lambda x: F[x[:, 0].astype(int)].copy())
    chosen = Sampled(made, sample, shift)
    counts = [
        iterate(made, RIDGE, preconditioner, tolerance=1e-8).iterations
        for preconditioner in (Plain(), nystrom(made, shift), chosen)
    ]
    assert counts[1] < 0.5 * counts[0] and counts[2] < 0.5 * counts[0]


def test_a_preconditioner_is_symmetric_and_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cg, "most_rank", lambda _: 20)
    made, F = system(dict(every_kernel(2, 2))["helmholtz trace"], 2)
    shift, rng = made.problem.l * RIDGE, np.random.default_rng(0)
    sample = Sample(np.arange(40.0)[:, None], rng.uniform(0.5, 2.0, 40), lambda x: F[x[:, 0].astype(int)].copy())
    for preconditioner in (nystrom(made, shift), Sampled(made, sample, shift)):
        inverse = preconditioner.solve(np.eye(made.size), np.ones(made.size), shift)
        np.testing.assert_allclose(inverse, inverse.T, atol=1e-10 * np.abs(inverse).max())
        assert np.linalg.eigvalsh((inverse + inverse.T) / 2).min() > 0


def test_nystrom_of_full_rank_is_the_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cg, "most_rank", lambda k: k)
    made, _ = system(kernels.Decomposable(kernels.Gaussian(0.7)), 2)
    shift = made.problem.l * RIDGE
    G = made.apply(np.eye(made.size), np.zeros(made.size, int))
    inverse = nystrom(made, 0.0).solve(np.eye(made.size), np.ones(made.size), shift)
    np.testing.assert_allclose(inverse, np.linalg.inv(G + shift * np.eye(len(G))), rtol=0, atol=1e-6 / shift)


def test_an_iteration_says_how_far_it_is_and_when_it_did_not_get_there() -> None:
    made, _ = system(dict(every_kernel(2, 2))["curl trace"], 2)
    seen: list[tuple[int, int]] = []
    found = iterate(made, RIDGE, Plain(), tolerance=1e-8, progress=lambda *steps: seen.append(steps))
    assert [done for done, _ in seen] == list(range(1, found.iterations + 1)) and found.solution.converged
    assert seen[-1][1] == 0 and found.errors[-1] <= 1e-8 < found.errors[-2]
    told = [(done + left) / found.iterations for done, left in seen[len(seen) // 2 :]]
    assert 0.5 < np.median(told) < 2  # each is of the last few errors, which do not fall evenly
    short = iterate(made, RIDGE, Plain(), tolerance=1e-8, most=5)
    assert not short.solution.converged and short.iterations == 5 and short.solution.digits < 3


def test_too_much_to_ask_ends_and_says_so() -> None:
    made, _ = system(dict(every_kernel(2, 2))["identity"], 2)
    found = iterate(made, 1e-14, Plain(), tolerance=1e-16, most=3000)
    assert not found.solution.converged and found.iterations < 3000


def test_a_long_plateau_is_not_given_up() -> None:
    """G = L L^T of a bidiagonal L: each step's residual is 1.02 times the one before it, and the last one's is nothing.
    What no step has made smaller for as long as it took to get there is given up, but for the first hundred steps."""
    n = 2 * D
    L = np.eye(n) + 1.02 * np.eye(n, k=-1)
    y = np.linalg.solve(L, np.eye(n)[0])
    _, weights, _ = case(kernels.Decomposable(kernels.Gaussian(0.7)), 2)
    sums = Accumulator(n, 2, np.zeros(2))
    sums.add(np.ascontiguousarray(np.column_stack([L.T, np.ones(n), y, y])))
    found = iterate(make_system(*of_moments([sums.moments()]), weights, intercept=False), 1e-14, Plain())
    assert found.solution.converged and found.iterations >= n and min(found.errors[:n]) == 1.0


def test_at_rounding_it_stops_after_as_many_steps_as_it_took_to_get_there() -> None:
    made, _ = system(dict(every_kernel(2, 2))["identity"], 2)
    found = iterate(made, 1e-14, Plain(), tolerance=1e-16)
    best = int(np.argmin(found.errors))
    assert not found.solution.converged and best > 50 and found.iterations <= 2 * best + 2


@pytest.mark.parametrize("name", ["matrix", "curl trace"])
def test_a_setting_solves_by_conjugate_gradients(name: str) -> None:
    """`Setting.method` changes how, not what."""
    kernel = dict(every_kernel(2, 2))[name]
    parts, _, _ = case(kernel, 2)
    found = frequencies.Orthogonal().draw(kernel, d=2, p=2, count=D, seed=5)
    assert found.log_density is not None
    setting = Setting(kernel, 2, 2 * D, (found.omega, found.log_density, found.serves), True, True)
    fits: list[Fit] = []
    for method in ("direct", "cg"):
        fits += replace(setting, method=method).solve(parts, [RIDGE])
    assert [fit.solution.rung for fit in fits] == ["cholesky" if name != "matrix" else "eigh", "cg"]
    np.testing.assert_allclose(fits[1].W, fits[0].W, rtol=0, atol=1e-8 * np.abs(fits[0].W).max())


def test_nothing_to_explain_is_explained_at_once() -> None:
    parts, weights, features = case(kernels.Decomposable(kernels.Gaussian(0.7)), 2)
    sums = Accumulator(features.shape[1], 2, np.full(2, 3.0))
    sums.add(np.column_stack([features, np.ones(N), np.zeros((N, 2))]))
    found = by_products([sums.moments()], weights)
    assert found.solution.converged and found.errors == (0.0,) and not found.solution.ill_conditioned
    assert not found.solution.h.any() and parts[0].n == N


@pytest.mark.parametrize("ridge", [1e-7, 1e-5])
def test_stated_digits_hold_where_an_iteration_is_cut_short(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the system's norm, relative to the solution's: a residual alone can be far smaller than the error.

    At a ridge of 1e-7 rounding decides how many digits can be stated: between none and a half by the kernels of five
    processors. At 1e-5 these state 3.3 to 3.9 after 120 steps, of the 4.9 that are right.
    """
    monkeypatch.setattr(cg, "most_rank", lambda _: 1)
    made, _ = system(dict(every_kernel(2, 2))["curl trace"], 2)
    shift = made.problem.l * ridge
    G = made.apply(np.eye(made.size), np.zeros(made.size, int)) + shift * np.eye(made.size)
    x = np.linalg.solve(G, made.rhs)[:, 0]
    stated = []
    for most in (5, 20, 60, 120):
        found = iterate(made, ridge, nystrom(made, shift), most=most)
        off = found.solution.h[made.problem.blocks[0].at] - x
        error = np.sqrt((off @ G @ off) / (x @ G @ x))
        assert not found.solution.converged and found.solution.digits <= max(0.0, -np.log10(error) + 0.3)
        stated.append(found.solution.digits)
    if ridge == 1e-5:
        assert max(stated) > 1


def test_a_sample_without_rows_is_no_preconditioner() -> None:
    made, _ = system(dict(every_kernel(2, 2))["helmholtz trace"], 2)
    chosen = Sampled(made, Sample(np.empty((0, 2)), np.empty(0), np.cos), made.problem.l * RIDGE)
    found, plain = iterate(made, RIDGE, chosen), iterate(made, RIDGE, Plain())
    np.testing.assert_array_equal(found.solution.h, plain.solution.h)
    assert found.preconditioned == plain.preconditioned
