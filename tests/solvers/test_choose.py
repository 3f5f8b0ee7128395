"""Choosing from the moments: folds as neighbours, parts of the features, a ridge for each output, the criteria."""

import tracemalloc
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cases import kfold_errors, moments_of, plain_map, rows
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Projected, Recipe, cut
from dorff.moments import Accumulator, TriangleAccumulator, pooled
from dorff.solvers import (
    Choice,
    LeftOut,
    Score,
    Setting,
    carried_ridges,
    choose,
    of_first,
    setting_scores,
    squared_error,
)
from dorff.solvers import system as systems
from dorff.solvers.choose import fold_scores
from dorff.solvers.ridge_path import path_bytes, path_errors
from dorff.solvers.select import FoldErrors
from dorff.spec.registry import CRITERIA

GAUSS = kernels.Gaussian(0.7)
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSS) + 0.7 * kernels.DivergenceFree(GAUSS)
MATRIX = np.array([[2.0, 0.6], [0.6, 0.5]])
RIDGES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0]
N, COUNT = 900, 32  # rows and frequencies

KERNELS = {
    "helmholtz": HELMHOLTZ,
    "curl": kernels.CurlFree(GAUSS),
    "identity": kernels.Decomposable(GAUSS),
    "matrix": kernels.Decomposable(GAUSS, MATRIX),
    "deficient": kernels.Decomposable(GAUSS, np.ones((2, 2))),
    "covariance": kernels.Decomposable(GAUSS, "covariance"),
    "two scalars": kernels.Decomposable(GAUSS, MATRIX) + kernels.Decomposable(kernels.Gaussian(1.3)) * 0.2,
}


@cache
def drawn(name: str, count: int = COUNT) -> tuple[Setting, FeatureMap]:
    kernel = KERNELS[name]
    found = frequencies.Orthogonal().draw(kernel.fix(2, 2, np.eye(2)), d=2, p=2, count=count, seed=3)
    density = None if found.log_density is None else (found.omega, found.log_density, found.serves)
    return Setting(kernel, 2, 2 * count, density, False, True), plain_map(found.omega)


def folds_of(features: FeatureMap, X, Y, fold_of):
    shift = np.array([0.3, -0.2])
    return [[moments_of(features, X[fold_of == k], Y[fold_of == k], y0=shift)] for k in range(fold_of.max() + 1)]


def one_by_one(folds, setting, ridges):
    """Each fold's training rows solved on their own."""
    errors = np.zeros((len(ridges), 2))
    for held, fold in enumerate(folds):
        for at, fit in enumerate(setting.solve(pooled(folds[:held] + folds[held + 1 :]), ridges)):
            errors[at] += squared_error(fold[0], fit.W, fit.bias)
    return errors


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_folds_as_neighbours_have_the_errors_of_their_own_solves(name, standardize, intercept):
    setting, features = drawn(name)
    setting = replace(setting, standardize=standardize, intercept=intercept)
    X, Y = rows(N, 2, 2)
    folds = folds_of(features, X, Y * [1.0, 30.0] if standardize else Y, np.arange(N) % 5)
    found = path_errors([part for (part,) in folds], setting, RIDGES)
    errors, rungs, digits = found.squares, found.rungs, found.digits
    assert set(rungs) == {"neighbours"}
    direct = [fit.solution.digits for fit in setting.solve(pooled(folds[1:]), RIDGES)]
    assert np.all(digits <= np.array(direct) + 0.3) and np.all(digits > np.array(direct) - 3.0)
    np.testing.assert_allclose(errors, one_by_one(folds, setting, RIDGES), rtol=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", ["identity", "matrix", "two scalars"])
def test_folds_as_neighbours_of_a_free_scale(name, intercept):
    """Against the rows themselves: f and one-hot targets about the mean of their outputs, f times one number."""
    setting, features = drawn(name)
    setting = replace(setting, intercept=intercept, free_scale=True)
    X, Y = rows(N, 2, 2)
    Y, fold_of, F = np.eye(2)[(Y[:, 0] > 0.4).astype(int)], np.arange(N) % 5, features.transform(X)
    folds, ridges = folds_of(features, X, Y, fold_of), [*RIDGES, 1e2]
    found = path_errors([part for (part,) in folds], setting, ridges)
    energy = np.sum((Y - 0.5) ** 2)
    wanted = []
    for ridge in ridges:
        f = np.empty(Y.shape)
        for k in range(5):
            (fit,) = setting.solve(pooled(folds[:k] + folds[k + 1 :]), [ridge])
            f[fold_of == k] = F[fold_of == k] @ fit.W + fit.bias
        f = f - f.mean(axis=1, keepdims=True)
        s = max(np.sum(f * (Y - 0.5)), 0.0) / np.sum(f**2)
        wanted.append(np.sum((s * f - Y + 0.5) ** 2))
    np.testing.assert_allclose(found.of_best_scale(energy, 2.0**-52), wanted, rtol=1e-8)
    scores = fold_scores(folds, setting, ridges)
    np.testing.assert_allclose([score.value for score in scores], np.array(wanted) / Y.size, rtol=1e-8)
    about = 1 - np.array(wanted) / np.sum((Y - Y.mean(axis=0)) ** 2)
    np.testing.assert_allclose([score.r2 for score in scores], about, rtol=1e-8)


def test_of_an_f_that_is_lost_in_rounding_no_scale_is_the_best():
    squares, tiny = np.array([[2.0, 2.0], [1.0, 1.0]]), np.array([1e-28, 3.0])
    found = FoldErrors(squares, ["direct"] * 2, np.ones(2), tiny)
    assert np.allclose(found.of_best_scale(4.0, 2.0**-52), [4.0, 4.0 - (3.0 + 4.0 - 2.0) ** 2 / 4 / 3.0])


def test_folds_of_few_rows_learn_their_output_matrix():
    """A learned output is another for each ridge and fold, which no factor of the rows knows."""
    scalar = kernels.Gaussian(0.7)
    found = frequencies.IID().draw(kernels.Decomposable(scalar).fix(2, 2, np.eye(2)), d=2, p=2, count=64, seed=3)
    setting = Setting(kernels.Decomposable(scalar, "learned"), 2, 128, None, False, True)
    X, Y = rows(40, 2, 2)
    folds = folds_of(plain_map(found.omega), X, Y, np.arange(40) % 4)
    scores = fold_scores(folds, setting, [1e-3, 1e-1])
    assert {score.rung for score in scores} == {"direct"}
    np.testing.assert_allclose([80 * score.value for score in scores],
                               one_by_one(folds, setting, [1e-3, 1e-1]).sum(axis=1), rtol=1e-9)  # fmt: skip
    alone = fold_scores(folds, replace(setting, kernel=kernels.Decomposable(scalar)), [1e-3, 1e-1])
    assert {score.rung for score in alone} == {"rows"} and alone[1].value != pytest.approx(scores[1].value, rel=1e-3)


def test_folds_that_are_no_neighbours_get_factors_of_their_own():
    """One fold holds the rows of a place that no other has, and few rows are left for the rest."""
    setting, features = drawn("helmholtz")
    X, Y = rows(260, 2, 2)
    fold_of = np.where(X[:, 0] > 0.3, 0, 1 + np.arange(260) % 2)
    folds = folds_of(features, X, Y, fold_of)
    found = path_errors([part for (part,) in folds], setting, RIDGES)
    errors, rungs = found.squares, found.rungs
    assert "factored" in rungs
    np.testing.assert_allclose(errors, one_by_one(folds, setting, RIDGES), rtol=1e-8)


def test_systems_that_no_factor_serves_are_solved_one_by_one():
    setting, features = drawn("helmholtz", 128)
    X, Y = rows(300, 2, 2)
    folds = folds_of(features, X, Y, np.arange(300) % 3)
    assert path_errors([part for (part,) in folds], setting, [1e-19]) is None
    (score,) = fold_scores(folds, setting, [1e-19])
    assert score.rung == "direct" and score.value == pytest.approx(
        one_by_one(folds, setting, [1e-19]).sum() / 600, rel=1e-12
    )


def test_large_systems_are_neighbours_and_small_ones_are_not():
    X, Y = rows(2000, 2, 2)
    for count, rung in ((64, "direct"), (128, "neighbours")):  # 256 and 512 unknowns
        setting, features = drawn("helmholtz", count)
        folds = folds_of(features, X, Y, np.arange(2000) % 4)
        table = fold_scores(folds, setting, [1e-4, 1e-3])
        assert {score.rung for score in table} == {rung} and {score.m for score in table} == {2 * count}
        wanted = one_by_one(folds, setting, [1e-4, 1e-3]).sum(axis=1) / 4000
        np.testing.assert_allclose([score.value for score in table], wanted, rtol=1e-9)


@pytest.mark.parametrize(("n", "count", "rung"), [(600, 16, "direct"), (60, 64, "rows"), (900, 256, "neighbours")])
@pytest.mark.parametrize("per_output", [False, True])
def test_a_choice_by_folds_knows_no_units(n, count, rung, per_output):
    """By each of the three ways to folds' errors: one target is smooth, the other noise, in whatever unit."""
    setting, features = drawn("identity", count)
    X, noise = rows(n, 2, 2)[0], np.random.default_rng(0).standard_normal((n, 2))
    Y = np.column_stack([np.sin(4 * X[:, 0]), np.zeros(n)]) + noise * [0.05, 1.0]
    table = []
    for units in ([1.0, 1.0], [1.0, 1e6], [1e5, 1e-3]):
        folds = folds_of(features, X, Y * units, np.arange(n) % 3)
        chosen = choose(folds, [setting], RIDGES, by="kfold", per_output=per_output)
        errors, spread = one_by_one(folds, setting, RIDGES), n * np.var(Y * units, axis=0)
        wanted = (1 - errors / spread).mean(axis=1)
        np.testing.assert_allclose([score.r2 for score in chosen.table[: len(RIDGES)]], wanted, rtol=1e-5)
        if per_output:
            assert chosen.table[-1].r2 == pytest.approx((1 - errors.min(axis=0) / spread).mean(), rel=1e-5)
            assert chosen.fit.solution.ridges.tolist() == np.array(RIDGES)[errors.argmin(axis=0)].tolist()
        else:
            assert chosen.fit.solution.ridge == RIDGES[int(wanted.argmax())]
            table.append((chosen.fit.solution.ridge, RIDGES[int(errors.sum(axis=1).argmin())]))
        assert {score.rung for score in chosen.table} == {rung}
    assert per_output or len({ridge for ridge, _ in table}) == 1 < len({loudest for _, loudest in table})


def test_kernels_of_fields_and_others_are_compared_pooled():
    setting, features = drawn("curl")
    X, Y = rows(N, 2, 2)
    folds = folds_of(features, X, Y * [1.0, 8.0], np.arange(N) % 3)
    other = replace(setting, kernel=KERNELS["identity"])
    chosen, spread = choose(folds, [other, setting], RIDGES), N * np.var(Y * [1.0, 8.0], axis=0)
    wanted = [1 - one_by_one(folds, one, RIDGES).sum(axis=1) / spread.sum() for one in (other, setting)]
    np.testing.assert_allclose([score.r2 for score in chosen.table], np.ravel(wanted), rtol=1e-8)
    alone = [score.r2 for score in choose(folds, [other], RIDGES).table]
    np.testing.assert_allclose(alone, (1 - one_by_one(folds, other, RIDGES) / spread).mean(axis=1), rtol=1e-8)


@pytest.mark.parametrize("name", ["helmholtz", "identity"])
def test_the_memory_of_a_path_is_what_is_said(name):
    setting, features = drawn(name, 256)
    X, Y = rows(3000, 2, 2)
    folds = [part for (part,) in folds_of(features, X, Y, np.arange(3000) % 4)]
    unknowns = 512 * (2 if name == "helmholtz" else 1)
    tracemalloc.start()
    try:
        before = sum(part.packed.nbytes for part in folds)
        path_errors(folds, setting, RIDGES)
        peak = tracemalloc.get_traced_memory()[1] + before
    finally:
        tracemalloc.stop()
    allowed = path_bytes(512, 2, unknowns=unknowns, folds=4, ridges=len(RIDGES))
    assert 0.6 * allowed < peak <= allowed


def test_kfold_by_hand_is_scikit_learns():
    setting, features = drawn("identity")
    X, Y = rows(N, 2, 2)
    F, fold_of, squares = features.transform(X), np.zeros(N, int), np.zeros(len(RIDGES))
    for number, (training, held) in enumerate(KFold(5, shuffle=True, random_state=0).split(X)):
        fold_of[held] = number
        for at, ridge in enumerate(RIDGES):
            model = Ridge(alpha=ridge * len(training)).fit(F[training], Y[training])
            squares[at] += np.sum((model.predict(F[held]) - Y[held]) ** 2)
    folds = folds_of(features, X, Y, fold_of)
    np.testing.assert_allclose(kfold_errors(folds, setting, RIDGES), squares / (2 * N), rtol=1e-8)
    errors = path_errors([part for (part,) in folds], setting, RIDGES).squares
    np.testing.assert_allclose(errors.sum(axis=1), squares, rtol=1e-8)


@pytest.mark.parametrize("name", ["helmholtz", "matrix"])
def test_a_part_of_the_features_is_a_pass_over_fewer(name):
    setting, features = drawn(name)
    X, Y = rows(200, 2, 2)
    folds = folds_of(features, X, Y, np.arange(200) % 2)
    fewer, density = cut(features, setting.density, COUNT // 2)
    assert fewer.m == COUNT // 2 and fewer.phi.weights == pytest.approx((COUNT // 4) ** -0.5)
    np.testing.assert_array_equal(density[0], setting.density[0][: COUNT // 4])
    parts, smaller = of_first(folds, setting, COUNT // 2)
    wanted = folds_of(fewer, X, Y, np.arange(200) % 2)
    for (part,), (own,) in zip(parts, wanted, strict=True):
        np.testing.assert_allclose(part.full, own.full, rtol=1e-11, atol=1e-11)
    own_setting = replace(setting, m=COUNT // 2, density=density)
    for mine, its in zip(smaller.solve(pooled(parts), RIDGES), own_setting.solve(pooled(wanted), RIDGES), strict=True):
        np.testing.assert_allclose(mine.W, its.W, rtol=1e-7, atol=1e-9)
    assert of_first(folds, setting, 2 * COUNT) == (folds, setting)


def test_choose_looks_at_every_kernel_count_and_ridge():
    setting, features = drawn("helmholtz")
    X, Y = rows(300, 2, 2)
    folds = folds_of(features, X, Y, np.arange(300) % 3)
    setting = replace(setting, sample=LeftOut(features, X, Y, np.ones(300)))
    settings = [setting, replace(setting, kernel=kernels.CurlFree(GAUSS))]
    for by in CRITERIA.names:
        found = choose(folds, settings, [1e-6, 1e-2], by=by, counts=(64, 16))
        assert [(s.candidate, s.m, s.ridge) for s in found.table] == [
            (candidate, m, ridge) for candidate in (0, 1) for m in (64, 16) for ridge in (1e-6, 1e-2)
        ]
        best = min(found.table, key=lambda score: score.value)
        assert (found.candidate, found.m, found.fit.solution.ridge) == (best.candidate, best.m, best.ridge)
        assert found.fit.weights.shape[0] == found.m
        for candidate, m in ((0, 64), (1, 16)):
            parts, part_of = of_first(folds, settings[candidate], m)
            mine = [s.value for s in found.table if (s.candidate, s.m) == (candidate, m)]
            again = setting_scores(parts, part_of, [1e-6, 1e-2], by=by)
            assert [score.value for score in again] == mine
            fits = part_of.solve(pooled(parts), [1e-6, 1e-2], scores=True)
            if by == "evidence":
                assert mine == [-fit.log_evidence for fit in fits]
            elif by == "gcv":
                assert mine == [fit.solution.gcv for fit in fits]


def test_each_output_has_the_ridge_that_is_best_for_it():
    """One target is rough and clean, the other smooth and noisy."""
    setting, features = drawn("identity")
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.5, 1.5, (N, 2))
    Y = np.column_stack([np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]), X[:, 0] + 2.0 * rng.standard_normal(N)])
    folds = folds_of(features, X, Y, np.arange(N) % 5)
    found = choose(folds, [setting], RIDGES, by="kfold", per_output=True)
    errors = one_by_one(folds, setting, RIDGES)
    best = np.array(RIDGES)[errors.argmin(axis=0)]
    assert best[0] < best[1]
    np.testing.assert_array_equal(found.fit.solution.ridges, best)
    last = found.table[-1]
    assert last.ridges == tuple(best) and last.ridge == pytest.approx(np.sqrt(best.prod()))
    assert last.value == pytest.approx(errors.min(axis=0).sum() / (2 * N), rel=1e-9)
    single = setting.solve(pooled(folds), best.tolist())
    np.testing.assert_allclose(found.fit.W, np.column_stack([single[0].W[:, 0], single[1].W[:, 1]]), rtol=1e-8)
    for by in ("gcv", "evidence"):
        each = choose(folds, [setting], RIDGES, by=by, per_output=True)
        assert len(each.table) == 1 and len(set(each.fit.solution.ridges)) == 2
        np.testing.assert_array_equal(
            each.fit.solution.ridges, setting.solve_each(pooled(folds), RIDGES, by).solution.ridges
        )


@pytest.mark.parametrize("name", ["helmholtz", "matrix"])
def test_outputs_that_share_a_system_share_their_ridge_by_kfold(name):
    setting, features = drawn(name)
    folds = folds_of(features, *rows(90, 2, 2), np.arange(90) % 3)
    with pytest.raises(InputError, match="ridge_per_output: by k-fold it needs outputs that do not share a system"):
        choose(folds, [setting], RIDGES, by="kfold", per_output=True)


def test_what_is_no_part_of_the_features_is_refused():
    setting, features = drawn("helmholtz")
    with pytest.raises(InputError, match="count: wanted 1 to 32 of the frequencies, got 33"):
        cut(features, setting.density, 66)


@pytest.mark.parametrize(
    ("kernel", "sampler"),
    [
        (kernels.Decomposable(GAUSS), frequencies.Quadrature()),
        (kernels.Decomposable(kernels.ArcCosine(1)), frequencies.IID()),
        (kernels.Decomposable(kernels.Polynomial(2)), frequencies.IID()),
    ],
)
def test_features_that_are_no_plain_pairs_have_no_parts(kernel, sampler):
    found: Drawn = Recipe(kernel.fix(3, 2, np.eye(2)), sampler, 3, 2, 64).draw(0)
    features = FeatureMap(found.phi, np.zeros(3), np.ones(3))
    with pytest.raises(InputError, match=r"features\.count: several need .*give one count"):
        cut(features, found.density, 4)


def test_structured_frequencies_are_written_out():
    found = Recipe(kernels.Decomposable(GAUSS).fix(64, 1, np.eye(1)), frequencies.SORF(), 64, 1, 256).draw(0)
    assert isinstance(found.phi, Projected)
    X = np.random.default_rng(0).standard_normal((5, 64))
    F, part = found.phi.transform(X), found.phi.first(16).transform(X)
    np.testing.assert_allclose(part[:, :16], F[:, :16] * np.sqrt(8), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(part[:, 16:], F[:, 128:144] * np.sqrt(8), rtol=1e-12, atol=1e-13)
    assert found.phi.first(128) is found.phi


@pytest.mark.parametrize("kind", [Accumulator, TriangleAccumulator])
def test_a_held_out_error_is_no_less_than_its_rounding(kind):
    """Weights that explode, and targets that are fitted exactly: neither has an error of 0, or less."""
    rng = np.random.default_rng(0)
    F, W = rng.standard_normal((60, 8)), rng.standard_normal((8, 2))
    F[:, 4:] = F[:, :4] + 1e-9 * F[:, 4:]
    sums = kind(8, 2, np.zeros(2))
    sums.add(np.column_stack([F, np.ones(60), F @ W]))
    part = sums.moments()
    null = np.vstack([np.eye(4), -np.eye(4)])[:, :2]
    for size in (0.0, 1e4, 1e8):
        found, true = squared_error(part, W + size * null, np.zeros(2)), np.sum((F @ null * size) ** 2, axis=0)
        gain = np.linalg.norm(F, 2) ** 2 * np.sum((W + size * null) ** 2, axis=0)
        gain *= part.unit if kind is Accumulator else part.unit**2
        assert np.all(found >= np.maximum(gain, 0.0)) and np.all(found <= 100 * gain + 1.5 * true)


def test_ridges_without_digits_do_not_win():
    """Smooth large targets in one dimension, down to ridges that no Gram matrix of the features can carry."""
    rng, ridges = np.random.default_rng(0), list(np.logspace(-24, -8, 9))
    omega = rng.standard_normal((32, 1)) / 2.0
    scalar = kernels.Gaussian(2.0)
    density = omega, scalar.log_density(omega, kernels.Measure.UNBOUNDED), None
    setting = Setting(kernels.Decomposable(scalar), 1, 64, density, False, True)
    X, fold_of = rng.uniform(-1, 1, (300, 1)), np.arange(300) % 5
    features, Y = plain_map(omega), 1e4 * np.exp(X)
    folds = [[moments_of(features, X[fold_of == k], Y[fold_of == k], y0=np.ones(1))] for k in range(5)]
    table = setting_scores(folds, setting, ridges, by="kfold")
    best = min(table, key=lambda score: score.value)
    assert all(score.value > 0 for score in table) and ridges[0] < best.ridge < ridges[-1]
    assert table[0].digits < 1 and table[-1].digits > table[0].digits + 2
    F = features.transform(X)
    for fold in range(5):  # the error of the best is that of its function on the rows themselves
        (fit,) = setting.solve(pooled(folds[:fold] + folds[fold + 1 :]), [best.ridge])
        there = fold_of == fold
        true = np.sum((F[there] @ fit.W + fit.bias - Y[there]) ** 2)
        assert 0.5 * true <= squared_error(folds[fold][0], fit.W, fit.bias).sum() <= max(2 * true, 1e2)


def test_systems_of_neighbours_are_refused_where_lapack_cannot_count(monkeypatch):
    setting, features = drawn("helmholtz")
    folds = folds_of(features, *rows(100, 2, 2), np.arange(100) % 2)
    monkeypatch.setattr(systems, "LARGEST_DIRECT", 127)
    with pytest.raises(InputError, match="the system has 128 unknowns"):
        path_errors([part for (part,) in folds], setting, [1e-3])


def test_ridges_of_directions_are_carried_to_the_directions_most_like_them():
    """A covariance whose largest direction is another one in the rows that are left."""
    setting, features = drawn("covariance")
    X, Y = rows(200, 2, 2)
    Y = np.random.default_rng(0).standard_normal((200, 2)) @ np.array([[1.1, 0.1], [0.0, 1.0]])
    (whole,), (turned,) = (folds_of(features, X, Y * [1.0, size], np.zeros(200, int)) for size in (1.0, 2.0))
    (fit,) = setting.solve(whole, [np.array([1e-3, 1.0])])
    np.testing.assert_array_equal(carried_ridges(setting, whole, fit), [1e-3, 1.0])
    np.testing.assert_array_equal(carried_ridges(setting, turned, fit), [1.0, 1e-3])
    (single,) = setting.solve(whole, [1e-2])
    assert carried_ridges(setting, turned, single) == 1e-2


def searched(name, X, Y, *, length=1.0, **options):
    """The ridges that are tried of themselves, over k(x, x), and the best: for a kernel `length` times as long."""
    setting, features = drawn(name)
    fold_of = np.arange(len(X)) % 4
    choice = choose(folds_of(features, X, Y, fold_of), [setting], None, **options)
    level = setting.level(folds_of(features, X, Y, fold_of)[0])
    return level, sorted(row.ridge / level for row in choice.table), choice


@pytest.mark.parametrize("by", ["kfold", "gcv", "evidence"])
def test_a_range_of_ridges_grows_where_the_best_is_at_an_end(by):
    X, _ = rows(N, 2, 2)
    _, features = drawn("identity")
    exact = features.transform(X) @ np.random.default_rng(0).standard_normal((2 * COUNT, 2))
    _, tried, choice = searched("identity", X, exact, by=by)
    assert tried[0] == pytest.approx(1e-14) and choice.fit.solution.ridge < 1e-8, "no noise: downwards"
    assert choice.fit.solution.digits >= 3.0
    noise = np.random.default_rng(1).standard_normal((N, 2))
    ranges = [searched("identity", X[seed::9], noise[seed::9], by=by)[1] for seed in range(9)]
    assert all(tried[0] == pytest.approx(1e-8) for tried in ranges)
    assert max(tried[-1] for tried in ranges) == pytest.approx(1e4), "nothing but noise: upwards"
    Y = exact / exact.std() + 0.5 * noise
    _, tried, choice = searched("identity", X, Y, by=by)
    assert (tried[0], tried[-1]) == pytest.approx((1e-8, 1.0)) and len(tried) in (11, 12)
    powers = np.log10(tried)
    assert np.sum(np.abs(powers - np.round(powers)) > 0.4) >= 2, "two lie between the best and its neighbours"
    scores = {row.ridge: row.least for row in choice.table}
    assert choice.fit.solution.ridge == min(scores, key=scores.get)


@pytest.mark.parametrize("by", ["kfold", "gcv", "evidence"])
def test_the_last_ridge_tried_is_where_a_parabola_through_the_best_three_is_least(by):
    X, Y = rows(N, 2, 2)
    level, tried, choice = searched("identity", X, Y, by=by)
    halves = [ridge for ridge in tried if abs(2 * np.log10(ridge) - round(2 * np.log10(ridge))) < 1e-6]
    (last,) = set(tried) - set(halves)  # but for rounding, to a sixteenth of a power of ten
    least = {np.log10(row.ridge / level): row.least for row in choice.table if row.ridge / level in halves}
    near = sorted(least, key=least.get)[:3]
    curve = np.polynomial.Polynomial.fit(near, [least[power] for power in near], 2)
    assert np.ptp(near) == pytest.approx(1.0), "the best has a neighbour on either side"
    assert np.log10(last) == pytest.approx(float(curve.deriv().roots()[0]), abs=1 / 32 + 1e-6)


def test_ridges_are_in_units_of_the_kernel():
    X, Y = rows(N, 2, 2)
    level, tried, _ = searched("curl", X, Y)
    assert level == pytest.approx(1 / 0.7**2, rel=0.3) and tried[0] <= 1e-8
    level, _, _ = searched("identity", X, Y)
    assert level == 1.0
    level, _, _ = searched("matrix", X, Y)
    assert level == pytest.approx(np.trace(MATRIX) / 2, rel=1e-2)


def test_each_output_has_the_best_of_the_whole_range():
    X, Y = rows(N, 2, 2)
    Y = np.column_stack([Y[:, 0], np.random.default_rng(1).standard_normal(N)])
    _, tried, choice = searched("identity", X, Y, per_output=True)
    assert tried[0] == pytest.approx(1e-14) and tried[-1] == pytest.approx(1e4)
    first, second = choice.fit.solution.ridges
    assert second > 10 * first


@pytest.mark.parametrize(("error", "lost"), [(0.5, True), (0.1005, False)])
def test_a_kernel_that_was_taken_for_its_digits_is_judged_by_its_own_error(error: float, lost: bool) -> None:
    """Another kernel has a small error at the same ridge, but too few digits."""
    setting, features = drawn("identity")
    X, Y = rows(N, 2, 2)
    (fit,) = setting.solve([moments_of(features, X, Y)], [1e-3])
    table = (Score(0, 1e-5, 0.1), Score(0, 1e-3, 0.1), Score(1, 1e-5, 2.0), Score(1, 1e-3, error))
    assert Choice(candidate=1, fit=fit, table=table).lost_digits == lost
