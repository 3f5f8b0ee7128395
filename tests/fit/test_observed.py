"""The observation operator and rows that miss targets, against least squares with every row written out."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from cases import every_kernel, kfold_errors, plain_map, rows, weights_of

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.moments import MOST_PATTERNS, by_fold, merge_folds, pooled
from dorff.passes import BlockSums
from dorff.solvers import Problem, Setting, choose, solve, squared_error, target_covariance
from dorff.solvers.direct import SpectralSolver
from dorff.store import load_moments, merge_moments, save_moments

N, D = 40, 12
RNG = np.random.default_rng(3)
OBSERVE = {
    "identity": None,
    "one component": np.array([[0.0, 1.0, 0.0]]),
    "two mixed": np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.5]]),
    "more than outputs": RNG.standard_normal((4, 3)),
    "rank one": np.outer([1.0, 2.0], [1.0, -1.0, 0.5]),
}
PATTERNS = ("111", "110", "001")
KERNELS = ("identity", "matrix", "deficient", "two scalars", "curl trace", "div unbounded", "helmholtz bounded")
both = pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])


def draw(name):
    kernel = dict(every_kernel(3, 3))[name].fix(3, 3)
    return kernel, frequencies.IID().draw(kernel, d=3, p=3, count=D, seed=2)


def parts_of(found, X, Y, chosen=slice(None)):
    """The moments of rows as leaves collect them, a pattern each."""
    sums = BlockSums(plain_map(found.omega), np.linspace(0.2, 0.9, Y.shape[1]), block_rows=16)
    sums.add(X[chosen], Y[chosen], partial=True)
    return sums.moments()


def naive(found, psi, X, Y, C, ridge, intercept):
    """W (m, p) and bias (p,) by lstsq: a row for each entry observed, and rows for the ridge."""
    F = plain_map(found.omega).transform(X)
    lines, values = [], []
    for f, y in zip(F, Y, strict=True):
        phi = (f[:, None, None] * psi).reshape(-1, psi.shape[2])  # (m r, p)
        for target in np.flatnonzero(np.isfinite(y)):
            lines.append(np.append(phi @ C[target], C[target] if intercept else []))
            values.append(y[target])
    k, seen = psi.shape[0] * psi.shape[1], np.isfinite(Y).any(axis=1).sum()
    penalty = np.zeros((k, len(lines[0])))
    penalty[:, :k] = np.sqrt(seen * ridge) * np.eye(k)
    solution, *_ = np.linalg.lstsq(np.vstack([lines, penalty]), np.append(values, np.zeros(k)), rcond=1e-13)
    W = np.einsum("arp,ar->ap", psi, solution[:k].reshape(psi.shape[:2]))
    return W, solution[k:] if intercept else np.zeros(psi.shape[2])


def missing(Y, patterns=PATTERNS):
    """Targets with what the patterns say NaN, dealt to rows in turn."""
    found = Y.copy()
    for number, pattern in enumerate(patterns):
        for target in range(Y.shape[1]):
            if pattern[target % 3] == "0":
                found[number :: len(patterns), target] = np.nan
    return found


@both
@pytest.mark.parametrize("observed", OBSERVE)
@pytest.mark.parametrize("name", KERNELS)
def test_an_observation_operator_is_the_dense_fit(name, observed, intercept):
    kernel, found = draw(name)
    C = OBSERVE[observed]
    X, Y = rows(N, 3, 3 if C is None else len(C))
    weights = weights_of(kernel, found)
    problem = Problem.of(list(parts_of(found, X, Y).values()), weights, intercept=intercept, observe=C)
    W, bias = naive(found, weights.psi, X, Y, np.eye(3) if C is None else C, 1e-2, intercept)
    for solution in (solve(problem, [1e-2])[0], SpectralSolver(problem).solve(1e-2)):
        mine = weights.combined(solution.h)
        np.testing.assert_allclose(mine, W, atol=1e-8 * np.abs(W).max())
        np.testing.assert_allclose(problem.bias(mine), bias, atol=1e-8)


@both
@pytest.mark.parametrize("observed", ["identity", "one component", "two mixed"])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_miss_targets_are_the_dense_fit(name, observed, intercept):
    kernel, found = draw(name)
    C = OBSERVE[observed]
    X, Y = rows(N, 3, 3 if C is None else len(C))
    Y = missing(Y)
    Y[5] = np.nan  # nothing there: no part of the fit
    some = np.isfinite(Y).any(axis=1)
    parts = list(parts_of(found, X[some], Y[some]).values())
    weights = weights_of(kernel, found)
    problem = Problem.of(parts, weights, intercept=intercept, observe=C)
    W, bias = naive(found, weights.psi, X, Y, np.eye(3) if C is None else C, 1e-2, intercept)
    scores = []
    for solution in (solve(problem, [1e-2], scores=True)[0], SpectralSolver(problem).solve(1e-2)):
        mine = weights.combined(solution.h)
        np.testing.assert_allclose(mine, W, atol=1e-8 * np.abs(W).max())
        np.testing.assert_allclose(problem.bias(mine), bias, atol=1e-8)
        scores.append(solution.gcv)
    assert scores[0] == pytest.approx(scores[1], rel=1e-7)


@both
@pytest.mark.parametrize("name", ["identity", "curl trace"])
def test_gcv_counts_what_was_observed(name, intercept):
    """Against the hat matrix of the dense fit, by its action on unit targets."""
    kernel, found = draw(name)
    X, Y = rows(15, 3, 3)
    Y = missing(Y)
    weights, there = weights_of(kernel, found), np.isfinite(Y)
    problem = Problem.of(list(parts_of(found, X, Y).values()), weights, intercept=intercept)
    (solution,) = solve(problem, [0.1], scores=True)
    F, hat = plain_map(found.omega).transform(X), []
    for place in np.argwhere(there):
        unit = np.where(there, 0.0, np.nan)
        unit[tuple(place)] = 1.0
        W, bias = naive(found, weights.psi, X, unit, np.eye(3), 0.1, intercept)
        hat.append((F @ W + bias)[there])
    residual = Y[there] - np.array(hat).T @ Y[there]
    size = len(residual)
    expected = (residual @ residual / size) / (1 - np.trace(hat) / size) ** 2
    assert solution.gcv == pytest.approx(expected, rel=1e-7)


def test_without_ties_outputs_are_fits_of_their_own():
    """A = I: a system for each set of targets that the same rows have, the size of one scalar fit."""
    kernel, found = draw("identity")
    X, Y = rows(N, 3, 3)
    Y = missing(Y)
    parts = parts_of(found, X, Y)
    problem = Problem.of(list(parts.values()), weights_of(kernel, found))
    assert [block.G.shape for block in problem.blocks] == [(2 * D, 2 * D)] * 2  # targets 0 and 1 go together
    (solution,) = solve(problem, [1e-3])
    for target in range(3):
        have = np.isfinite(Y[:, target])
        alone = parts_of(found, X[have], Y[have][:, [target]])
        weights = weights_of(kernels.Decomposable(kernels.Gaussian(0.7)).fix(3, 1), found)
        (one,) = solve(Problem.of(list(alone.values()), weights), [1e-3 * N / have.sum()])  # per row of the whole
        np.testing.assert_allclose(solution.h[:, target], one.h[:, 0], rtol=1e-8)


def test_sums_of_patterns_add_by_leaf_and_file(tmp_path):
    _, found = draw("identity")
    X, Y = rows(N, 3, 3)
    Y = missing(Y)
    whole = parts_of(found, X, Y)
    first, second = parts_of(found, X[:17], Y[:17]), parts_of(found, X[17:], Y[17:])
    save_moments(tmp_path / "a", first)
    save_moments(tmp_path / "b", second)
    assert merge_moments(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for merged in (merge_folds(first, second), load_moments(tmp_path / "c")):
        assert sorted(merged) == sorted(whole) == [(0, ""), (0, "001"), (0, "110")]
        for part, moments in merged.items():
            np.testing.assert_allclose(moments.packed, whole[part].packed, rtol=1e-12, atol=1e-12)
            assert moments.observed == part[1] and moments.n == whole[part].n
    with pytest.raises(InputError, match="different plans"):
        _ = whole[0, ""] + whole[0, "001"]


def test_too_many_patterns_are_refused():
    _, found = draw("identity")
    X, Y = rows(N, 3, 4)
    for number in range(MOST_PATTERNS + 1):
        Y[number, [bool(number >> bit & 1) for bit in range(4)]] = np.nan
    assert MOST_PATTERNS + 1 < 15
    with pytest.raises(InputError, match=r"at most 8.*nan: drop"):
        parts_of(found, X, Y)
    # Fewer in each part, more in both: refused when they meet.
    left, right = parts_of(found, X[:7], Y[:7]), parts_of(found, X[7:], Y[7:])
    with pytest.raises(InputError, match="at most 8"):
        merge_folds(left, right)


def test_an_observation_of_low_rank_does_not_go_with_missing_targets():
    kernel, found = draw("identity")
    X, Y = rows(N, 3, 2)
    parts = list(parts_of(found, X, missing(Y)).values())
    with pytest.raises(InputError, match="linearly independent"):
        Problem.of(parts, weights_of(kernel, found), observe=OBSERVE["rank one"])


def test_folds_choose_with_missing_targets():
    kernel, found = draw("curl trace")
    X, Y = rows(N, 3, 3)
    Y = missing(Y)
    density = (found.omega, found.log_density, None)
    both_kernels = (kernel, kernels.Decomposable(kernels.Gaussian(0.7)))
    settings = [Setting(one, 3, 2 * D, density, True, True) for one in both_kernels]
    sums = BlockSums(plain_map(found.omega), np.zeros(3), block_rows=16)
    for fold in range(3):
        sums.add(X[fold::3], Y[fold::3], fold, partial=True)
    folds = by_fold(sums.moments())
    ridges = [1e-4, 1e-2]
    table = [kfold_errors(folds, one, ridges) for one in settings]
    chosen = choose(folds, settings, ridges)
    assert [score.value for score in chosen.table] == np.ravel(table).tolist()
    # By hand, for the winner and the first fold.
    setting, ridge = settings[chosen.candidate], chosen.fit.solution.ridge
    squares = 0.0
    for held in range(3):
        (fit,) = setting.solve(pooled([fold for number, fold in enumerate(folds) if number != held]), [ridge])
        predicted = plain_map(found.omega).transform(X[held::3]) @ fit.W + fit.bias
        squares += np.nansum((predicted - Y[held::3]) ** 2)
        assert sum(squared_error(part, fit.W, fit.bias).sum() for part in folds[held]) == pytest.approx(
            np.nansum((predicted - Y[held::3]) ** 2), rel=1e-9
        )
    assert min(score.value for score in chosen.table) == pytest.approx(squares / np.isfinite(Y).sum(), rel=1e-9)


def test_covariance_is_of_the_rows_that_have_both():
    _, found = draw("identity")
    X, Y = rows(400, 3, 3)
    parts = list(parts_of(found, X, Y).values())
    np.testing.assert_allclose(target_covariance(parts), np.cov(Y.T, bias=True), rtol=1e-10)
    gaps = missing(Y, ("111", "111", "110"))
    covariance = target_covariance(list(parts_of(found, X, gaps).values()))
    for i in range(3):
        for j in range(3):
            both = np.isfinite(gaps[:, i]) & np.isfinite(gaps[:, j])
            expected = np.cov(gaps[both][:, i], gaps[both][:, j], bias=True)[0, 1]
            assert covariance[i, j] == pytest.approx(expected, rel=1e-8)


def test_class_weights_count_rows_as_often():
    """Whole weights: as if a row came that many times."""
    _, found = draw("identity")
    rng = np.random.default_rng(0)
    X, codes = rng.standard_normal((30, 3)), rng.integers(0, 3, 30)
    Y, weight = np.eye(3)[codes], np.array([1.0, 3.0, 2.0])
    features = plain_map(found.omega)
    weighted = BlockSums(features, np.full(3, 0.3), block_rows=8, class_weight=weight)
    weighted.add(X, Y)
    often = BlockSums(features, np.full(3, 0.3), block_rows=8)
    times = weight[codes].astype(int)
    often.add(np.repeat(X, times, axis=0), np.repeat(Y, times, axis=0))
    mine, wanted = weighted.moments()[0, ""], often.moments()[0, ""]
    np.testing.assert_allclose(mine.packed, wanted.packed, rtol=1e-12, atol=1e-13)
    assert mine.n == 30 and reduce(add, [mine, mine]).n == 60
    np.testing.assert_allclose(target_covariance(mine), target_covariance(wanted), atol=1e-13)


@pytest.mark.parametrize("observed", ["identity", "two mixed"])
@pytest.mark.parametrize("penalty", ["trace", "frobenius"])
def test_a_learned_matrix_is_that_of_its_own_fixed_point(observed, penalty):
    """Given the A that was learned the fit is the dense one, and A is what the fit's own W asks for."""
    C = OBSERVE[observed]
    X, Y = rows(N, 3, 3 if C is None else len(C))
    scalar = kernels.Gaussian(0.7)
    found = frequencies.IID().draw(kernels.Decomposable(scalar), d=3, p=3, count=D, seed=2)
    setting = Setting(kernels.Decomposable(scalar, kernels.Learned(penalty)), 3, 2 * D,
                      (found.omega, found.log_density, None), False, True, C)  # fmt: skip
    (part,) = parts_of(found, X, Y).values()
    for fit in setting.solve([part], [1e-3, 1e-2]):
        A = fit.kernel.output.matrix(3)
        psi = weights_of(fit.kernel, found).psi
        W, bias = naive(found, psi, X, Y, np.eye(3) if C is None else C, fit.solution.ridge, True)
        np.testing.assert_allclose(fit.W, W, atol=1e-7 * np.abs(W).max())
        np.testing.assert_allclose(fit.bias, bias, atol=1e-7)
        values, vectors = np.linalg.eigh(W.T @ W)
        power = np.maximum(values, 0) ** (1 / 2 if penalty == "trace" else 1 / 3)
        size = power.sum() if penalty == "trace" else np.sqrt(np.sum(power**2))
        best = (vectors * power * (3 if penalty == "trace" else np.sqrt(3)) / size) @ vectors.T
        np.testing.assert_allclose(A, best, atol=2e-3 * np.abs(A).max())
    gaps = list(parts_of(found, X, missing(Y)).values())
    if C is None:
        with pytest.raises(InputError, match="all targets"):
            setting.solve(gaps, [1e-3])


def test_a_learned_matrix_stands_alone_and_keeps_its_weight():
    """w k0 A at a ridge is k0 A at ridge / w; beside other terms it is refused, before any pass."""
    X, Y = rows(N, 3, 3)
    scalar = kernels.Gaussian(0.7)
    kernel = kernels.Decomposable(scalar, "learned")
    found = frequencies.IID().draw(kernel, d=3, p=3, count=D, seed=2)
    (part,) = parts_of(found, X, Y).values()

    def setting(chosen):
        return Setting(chosen, 3, 2 * D, (found.omega, found.log_density, None), False, True)

    (plain,), (weighted,) = setting(kernel).solve([part], [1e-3]), setting(10 * kernel).solve([part], [1e-2])
    np.testing.assert_allclose(weighted.W, plain.W, rtol=1e-6, atol=1e-9)
    assert weighted.kernel.terms()[0][0] == 10 and plain.solution.converged
    for mixed in (kernel + kernels.CurlFree(scalar), kernels.CurlFree(scalar) + kernel):
        with pytest.raises(InputError, match="no other term"):
            setting(mixed)
    assert setting(kernel + 0 * kernels.CurlFree(scalar)) is not None


def test_gcv_does_not_feel_the_size_of_weights():
    kernel, found = draw("identity")
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((30, 3)), np.eye(3)[rng.integers(0, 3, 30)]
    scores = []
    for size in (0.01, 1.0, 100.0):
        weight = size * np.array([1.0, 2.0, 3.0])
        sums = BlockSums(plain_map(found.omega), Y.mean(axis=0), block_rows=8, class_weight=weight)
        sums.add(X, Y)
        (solution,) = solve(Problem.of(sums.moments()[0, ""], weights_of(kernel, found)), [1e-2], scores=True)
        scores.append(solution.gcv)
    np.testing.assert_allclose(scores, scores[0])
