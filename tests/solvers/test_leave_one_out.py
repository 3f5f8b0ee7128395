"""Leave-one-out from leverages, against fits to all rows but one: every kind of weights, targets, rows."""

from dataclasses import replace

import numpy as np
import pytest
from cases import LAW, plain_map, rows
from hypothesis import given
from hypothesis import strategies as st
from quick import slow

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.moments import Kind, Triangle, by_fold, pooled
from dorff.passes import BlockSums
from dorff.solvers import Setting, Spread, choose, of_first, row_sums, setting_scores
from dorff.solvers.direct import problem_of, solve
from dorff.solvers.uncertainty import LeftOut

GAUSS = kernels.Gaussian(0.7)
MATRIX = np.array([[2.0, 0.6], [0.6, 0.5]])
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSS) + 0.7 * kernels.DivergenceFree(GAUSS)
KERNELS = {
    "identity": kernels.Decomposable(GAUSS),
    "matrix": kernels.Decomposable(GAUSS, MATRIX),
    "deficient": kernels.Decomposable(GAUSS, np.ones((2, 2))),
    "covariance": kernels.Decomposable(GAUSS, "covariance"),
    "learned": kernels.Decomposable(GAUSS, "learned"),
    "curl-free": kernels.CurlFree(GAUSS),
    "helmholtz": HELMHOLTZ,
    "two scalars": kernels.Decomposable(GAUSS, MATRIX) + kernels.Decomposable(kernels.Gaussian(1.3)) * 0.2,
}
OBSERVE = {
    "tall": np.array([[1.0, 0.2], [0.5, 2.0], [1.0, -1.0]]),
    "square": np.array([[1.0, 0.5], [0.0, 2.0]]),
    "one row": np.array([[1.0, 0.5]]),
}
N, COUNT = 40, 12
RIDGES = [1e-4, 1e-2, 0.3]


class Rows:
    """Rows in memory, their sums, and each one's absence; weights if `weighed`, some targets missing if `partial`."""

    def __init__(self, kernel, q=2, *, seed=0, n=N, weighed=False, partial=False, **options):
        found = frequencies.Orthogonal().draw(kernel.fix(2, 2, np.eye(2)), d=2, p=2, count=COUNT, seed=3)
        density = None if found.log_density is None else (found.omega, found.log_density, found.serves)
        self.setting = Setting(kernel, 2, 2 * COUNT, density, **{"standardize": True, "intercept": True} | options)
        self.features, rng = plain_map(found.omega), np.random.default_rng(seed)
        self.X, self.Y = rows(n, 2, q, seed)
        self.Y *= np.linspace(1.0, 20.0, q)
        self.w = rng.uniform(0.2, 3.0, n) if weighed else np.ones(n)
        self.partial, self.y0 = partial, np.linspace(0.3, -0.2, q)
        if partial:
            self.Y[::3, 0] = self.Y[1::4, -1] = np.nan
            self.Y[np.isnan(self.Y).all(axis=1), 0] = 1.0

    def parts(self, some=slice(None)):
        sums = BlockSums(self.features, self.y0, block_rows=64)
        sums.add(self.X[some], self.Y[some], partial=self.partial, weights=self.w[some])
        return pooled(by_fold(sums.moments()))

    @property
    def sampled(self):
        """The setting with all rows to leave out."""
        return replace(self.setting, sample=LeftOut(self.features, self.X, self.Y, self.w))

    def one_by_one(self, ridge):
        """Predictions (n, q), each by the fit to all other rows, with the constants of all rows."""
        parts, setting, values = self.parts(), self.setting, np.empty(self.Y.shape)
        (fit,) = setting.solve(parts, [ridge])
        C = np.eye(len(fit.scale)) if setting.observe is None else setting.observe
        for i in range(len(self.X)):
            problem = problem_of(
                self.parts(np.arange(len(self.X)) != i), fit.weights, intercept=setting.intercept,
                scale=setting.scaling(parts), observe=setting.observe,
            )  # fmt: skip
            (solution,) = solve(problem, [ridge * self.w.sum() / (self.w.sum() - self.w[i])])
            W = problem.weights.combined(solution.h)
            f = self.features.transform(self.X[i : i + 1]) @ (W * problem.outputs) + problem.bias(W)
            values[i] = C @ f[0]
        return values

    def check(self, rtol=1e-8):
        _, errors = self.sampled.left_out(self.parts(), RIDGES)
        scores = setting_scores([self.parts()], self.sampled, RIDGES, by="loo")
        for ridge, squares, score in zip(RIDGES, errors.squares, scores, strict=True):
            sums = row_sums(self.Y, self.one_by_one(ridge), self.w)
            np.testing.assert_allclose(squares, sums[4], rtol=rtol)
            r2 = float(self.setting.r2.score(sums[4], Spread.of(*sums[:4])))
            assert 1 - score.r2 == pytest.approx(1 - r2, rel=rtol)
            assert score.value == pytest.approx(sums[4].sum() / sums[1].sum(), rel=rtol)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_as_fits_without_each_row(name, intercept):
    Rows(KERNELS[name], intercept=intercept).check()


@pytest.mark.parametrize("name", ["identity", "matrix", "curl-free", "helmholtz"])
def test_rows_that_weigh_and_miss_targets(name):
    Rows(KERNELS[name], weighed=True, partial=True).check()


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("observe", OBSERVE)
@pytest.mark.parametrize("name", ["helmholtz", *slow("identity", "matrix")])
def test_targets_that_are_combinations_of_outputs(name, observe, partial, intercept):
    C = OBSERVE[observe]
    if partial and (len(C) == 1 or np.linalg.matrix_rank(C) < len(C)):
        return  # refused, or the same
    Rows(KERNELS[name], len(C), weighed=True, partial=partial, observe=C, intercept=intercept).check()


@pytest.mark.slow
@LAW
@given(
    seed=st.integers(0, 99), n=st.integers(4, 30), weighed=st.booleans(), partial=st.booleans(),
    name=st.sampled_from(["identity", "matrix", "curl-free"]), standardize=st.booleans(),
)  # fmt: skip
def test_as_fits_without_each_row_whatever_the_rows(seed, n, weighed, partial, name, standardize):
    one = Rows(KERNELS[name], seed=seed, n=n, weighed=weighed, partial=partial, standardize=standardize)
    one.check(rtol=1e-7)


@pytest.mark.parametrize("intercept", [True, False])
def test_one_hot_rows_at_the_best_scale(intercept):
    one = Rows(KERNELS["identity"], intercept=intercept, standardize=False, free_scale=True, weighed=True)
    one.Y = np.eye(2)[(one.Y[:, 0] > np.median(one.Y[:, 0])).astype(int)]
    scores = setting_scores([one.parts()], one.sampled, RIDGES, by="loo")
    for ridge, score in zip(RIDGES, scores, strict=True):
        f, y = one.one_by_one(ridge), one.Y - 0.5
        f = f - f.mean(axis=1, keepdims=True)
        s = max(0.0, one.w @ np.sum(f * y, axis=1)) / (one.w @ np.sum(f**2, axis=1))
        assert score.value == pytest.approx(one.w @ np.sum((s * f - y) ** 2, axis=1) / one.w.sum() / 2, rel=1e-8)
        mean = np.average(one.Y, axis=0, weights=one.w)
        squares = one.w @ np.sum((one.Y - mean) ** 2, axis=1)
        assert 1 - score.r2 == pytest.approx(2 * score.value * one.w.sum() / squares, rel=1e-8)


def test_a_sample_is_of_some_rows_and_the_mean_over_all_samples_is_that_over_all_rows():
    one = Rows(HELMHOLTZ)
    _, every = one.sampled.left_out(one.parts(), RIDGES)
    halves = [LeftOut(one.features, one.X[at::2], one.Y[at::2], one.w[at::2]) for at in (0, 1)]
    some = [replace(one.setting, sample=half).left_out(one.parts(), RIDGES)[1].squares for half in halves]
    np.testing.assert_allclose(sum(some), every.squares, rtol=1e-12)
    assert not np.allclose(some[0], some[1], rtol=1e-2)


@pytest.mark.parametrize("name", ["identity", "helmholtz"])
def test_the_first_features_are_those_of_a_fit_of_as_many(name):
    one = Rows(KERNELS[name])
    choice = choose([one.parts()], [one.sampled], RIDGES, by="loo", counts=(8, 24))
    assert len(choice.table) == 6
    parts, setting = of_first([one.parts()], one.sampled, 8)
    again = setting_scores(parts, setting, RIDGES, by="loo")
    assert [score.value for score in again] == [score.value for score in choice.table[:3]]
    F = one.features.transform(one.X)[:, [*range(4), *range(12, 16)]] * np.sqrt(3.0)
    (fit,) = setting.solve(parts[0], [0.3])
    residuals = np.abs(one.Y - F @ fit.W - fit.bias)
    assert again[2].value > np.mean(residuals**2)  # left out they are larger than fitted


def test_what_one_row_alone_tells_counts_as_y0():
    """A target that one row alone has: without that row nothing is known of it."""
    one = Rows(KERNELS["identity"], partial=True)
    one.Y[:, 0] = np.nan
    one.Y[:, 1] = np.where(np.isnan(one.Y[:, 1]), 1.0, one.Y[:, 1])
    one.Y[7, 0] = 2.0
    _, errors = one.sampled.left_out(one.parts(), [1e-2])
    assert errors.squares[0, 0] == pytest.approx((2.0 - one.y0[0]) ** 2)
    (score,) = setting_scores([one.parts()], one.sampled, [1e-2], by="loo")
    assert 0.0 < score.r2 < 1.0


@pytest.mark.parametrize("name", ["identity", "curl-free"])
def test_where_rounding_leaves_no_digit_a_fit_is_not_called_good(name):
    """More features than rows, and hardly a ridge: residuals and I - H are small, then rounding both."""
    one = Rows(KERNELS[name], n=10)
    (small, least), errors = one.sampled.left_out(one.parts(), [1e-11, 1e-17])
    assert least.solution.ill_conditioned and not small.solution.ill_conditioned
    np.testing.assert_allclose(errors.squares[0], np.sum((one.Y - one.one_by_one(1e-11)) ** 2, axis=0), rtol=1e-4)
    np.testing.assert_allclose(errors.squares[1], np.sum((one.Y - one.y0) ** 2, axis=0), rtol=1e-6)


def test_it_chooses_as_the_errors_say_and_takes_no_other_way():
    one, other = Rows(KERNELS["identity"]), Rows(KERNELS["matrix"])
    choice = choose([one.parts()], [one.sampled, other.sampled], None, by="loo")
    assert len(choice.table) > 18 and {score.candidate for score in choice.table} == {0, 1}
    best = max(choice.table, key=lambda score: score.r2)
    assert (choice.candidate, choice.fit.solution.ridge) == (best.candidate, best.ridge)
    (alone,) = choose([one.parts()], [one.sampled], [0.3], by="loo").table
    assert alone.r2 is not None
    nothing = replace(one.sampled.sample, X=one.X[:0], Y=one.Y[:0], weights=one.w[:0])
    none = [(one.setting, False), (replace(one.setting, sample=nothing), False), (one.sampled, True)]
    for setting, per_output in none:
        with pytest.raises(InputError, match="leave-one-out: needs rows of a sample, and one ridge"):
            choose([one.parts()], [setting], RIDGES, by="loo", per_output=per_output)


@pytest.mark.parametrize("name", ["identity", "matrix", "helmholtz", "learned"])
def test_triangles_give_the_same(name):
    one = Rows(KERNELS[name], weighed=True)
    sums = BlockSums(one.features, one.y0, block_rows=64, kind=Kind.TRIANGLE)
    sums.add(one.X, one.Y, weights=one.w)
    parts = pooled(by_fold(sums.total(Triangle)))
    (fit, *_), errors = one.sampled.left_out(parts, RIDGES)
    assert fit.solution.rung == "qr"
    np.testing.assert_allclose(errors.squares, one.sampled.left_out(one.parts(), RIDGES)[1].squares, rtol=1e-8)
