"""Solvers against a naive dense ORFF: the features of every output stacked, normal equations, no moments."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import scipy.linalg
from cases import every_kernel, kfold_errors, moments_of, plain_map, positive, rows, weights_of
from toy_solver import Inverse

from dorff import ORFFRegressor, frequencies, kernels
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments
from dorff.solvers import MOST_FACTORS, Problem, Setting, choose, direct, solve, squared_error, target_covariance
from dorff.solvers.direct import SpectralSolver
from dorff.solvers.uncertainty import posterior

EPS = np.finfo(np.float64).eps
N, D = 30, 48  # m r from 96 to 288 unknowns for 60 or 90 numbers: the systems are singular but for the ridge


@dataclass(frozen=True)
class Case:
    """One kernel and its frequencies on the rows X, Y."""

    kernel: kernels.OperatorKernel
    found: frequencies.Frequencies
    X: FloatArray
    Y: FloatArray
    weights: OperatorWeights

    @property
    def psi(self) -> FloatArray:
        return self.weights.psi

    def problem(self, chosen=slice(None), **options) -> Problem:
        return Problem.of(self.moments(chosen), self.weights, **options)

    def moments(self, chosen=slice(None)) -> Moments:
        features = plain_map(self.found.omega)
        return moments_of(features, self.X[chosen], self.Y[chosen], y0=np.array([0.3] * self.Y.shape[1]))


def covariances():
    yield "covariance", kernels.Decomposable(kernels.Gaussian(0.7), "covariance")
    yield "covariance of dependent targets", kernels.Decomposable(kernels.Gaussian(0.7), "covariance")
    yield "covariance and curl", (kernels.Decomposable(kernels.Gaussian(0.7), "covariance")
                                  + kernels.CurlFree(kernels.Gaussian(1.2)) * 0.1)  # fmt: skip


@cache
def case(name: str, d: int, p: int, count: int = D, n: int = N) -> Case:
    kernel = dict([*every_kernel(d, p), *covariances()])[name]
    X, Y = rows(n, d, p)
    if "dependent" in name:
        Y[:, -1] = Y[:, 0] - 2 * Y[:, 1] if p > 2 else 3 * Y[:, 0]
    found = frequencies.Orthogonal().draw(kernel, d=d, p=p, count=count, seed=5)
    fixed = kernel.fix(d, p, target_covariance(moments_of(plain_map(found.omega), X, Y)))
    return Case(fixed, found, X, Y, weights_of(fixed, found))


NAMES = [(name, d, p) for d, p in [(2, 2), (3, 3)] for name, _ in [*every_kernel(d, p), *covariances()]]
every_case = pytest.mark.parametrize(("name", "d", "p"), NAMES, ids=[f"{n} {d}" for n, d, _ in NAMES])
FEW = [("identity", 2, 2), ("covariance", 3, 3), ("curl trace", 2, 2), ("helmholtz bounded", 3, 3),
       ("sum trace", 2, 2)]  # fmt: skip
few_cases = pytest.mark.parametrize(("name", "d", "p"), FEW, ids=[f"{n} {d}" for n, d, _ in FEW])
both = pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])


def stacked(omega, psi, X):
    """Phi (n p, m r): row (i, o), column (a, k) is phi_a(x_i) psi[a, k, o]."""
    angles = X @ omega.T
    F = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(len(omega))
    Phi = F[:, None, :, None] * psi.transpose(2, 0, 1)[None]
    return Phi.reshape(len(X) * psi.shape[2], -1)


@dataclass(frozen=True)
class Naive:
    """Normal equations of the stacked features; the intercept is p more columns, which the ridge spares."""

    columns: FloatArray
    matrix: FloatArray
    solution: FloatArray
    intercept: int

    @classmethod
    def fit(cls, omega, psi, X, Y, ridge, intercept):
        n, p = Y.shape
        Phi = stacked(omega, psi, X)
        penalty = np.full(Phi.shape[1], n * ridge)
        if intercept:
            Phi = np.column_stack([Phi, np.tile(np.eye(p), (n, 1))])
            penalty = np.append(penalty, np.zeros(p))
        matrix = Phi.T @ Phi + np.diag(penalty)
        return cls(Phi, matrix, np.linalg.solve(matrix, Phi.T @ Y.ravel()), p if intercept else 0)

    @property
    def condition(self):
        values = np.abs(np.linalg.eigvalsh(self.matrix))
        return values.max() / values.min()

    @property
    def h(self):
        return self.solution[: len(self.solution) - self.intercept]

    @property
    def bias(self):
        return self.solution[len(self.h) :]

    def predict(self, omega, psi, X):
        values = (stacked(omega, psi, X) @ self.h).reshape(len(X), -1)
        return values + self.bias if self.intercept else values


def relative(found, wanted):
    return np.linalg.norm(np.ravel(found) - np.ravel(wanted)) / np.linalg.norm(wanted)


def allowed(condition):
    return 1e-8 if condition <= 1e6 else 100 * condition * EPS


@both
@every_case
def test_coefficients_agree_with_a_naive_dense_fit(name, d, p, intercept):
    this, scale = case(name, d, p), np.linspace(0.5, 2.0, p)
    problem = this.problem(intercept=intercept, scale=scale)
    largest = np.linalg.norm(stacked(this.found.omega, this.psi, this.X), 2) ** 2
    conditions = []
    for target in 10.0 ** np.arange(1, 14.5, 1.5):
        ridge = largest / target / N
        naive = Naive.fit(this.found.omega, this.psi, this.X, this.Y / scale, ridge, intercept)
        conditions.append(naive.condition)
        # Alone (Cholesky where the output eigenvalues are equal) and by eigh: the same answer.
        for solution in (solve(problem, [ridge])[0], SpectralSolver(problem).solve(ridge)):
            assert relative(solution.h, naive.h) <= allowed(naive.condition), (target, solution.rung)
            if intercept:
                bias = problem.bias(this.weights.combined(solution.h))
                assert relative(bias, naive.bias * scale) <= allowed(naive.condition)
    assert min(conditions) < 1e6 and max(conditions) > 1e12


def spectral_root(kernel, omega, log_density):
    """The symmetric root (D, p, p) of mu / rho, term by term from Minh's eq. 35-36; r = p for every kernel."""
    total = np.zeros((len(omega), len(omega[0]), len(omega[0])))
    for weight, term in kernel.terms():
        s = np.broadcast_to(term.scalar.lengthscale, omega.shape[1:]).astype(float)
        density = np.prod(s / np.sqrt(2 * np.pi) * np.exp(-0.5 * (omega * s) ** 2), axis=1)
        outer, squared = omega[:, :, None] * omega[:, None, :], np.sum(omega**2, axis=1)[:, None, None]
        if isinstance(term, kernels.CurlFree):
            M = outer
        elif isinstance(term, kernels.DivergenceFree):
            M = squared * np.eye(omega.shape[1]) - outer
        else:
            M = np.broadcast_to(term.output.matrix(outer.shape[1]), outer.shape)
        total += weight * density[:, None, None] * M / np.exp(log_density)[:, None, None]
    values, vectors = np.linalg.eigh(total)
    return np.einsum("aip,ap,ajp->aij", vectors, np.sqrt(np.maximum(values, 0)), vectors)


@both
@every_case
def test_predictions_agree_with_textbook_weights_of_full_rank(name, d, p, intercept):
    """Another root of the same mu / rho, r = p throughout: psi^T h is the same function."""
    this, ridge = case(name, d, p), 1e-4
    root = spectral_root(this.kernel, this.found.omega, this.found.log_density)
    full = np.concatenate([root, root])
    naive = Naive.fit(this.found.omega, full, this.X, this.Y, ridge, intercept)
    problem = this.problem(intercept=intercept)
    (solution,) = solve(problem, [ridge])
    W = this.weights.combined(solution.h)
    assert relative(W, np.einsum("arp,ar->ap", full, naive.h.reshape(full.shape[:2]))) < allowed(naive.condition)
    Z, _ = rows(15, d, p, seed=9)
    predicted = plain_map(this.found.omega).transform(Z) @ W + problem.bias(W)
    assert relative(predicted, naive.predict(this.found.omega, full, Z)) < allowed(naive.condition)


@pytest.mark.parametrize("name", ["matrix", "deficient", "covariance of dependent targets"])
def test_stein_equation_is_the_kronecker_system(name):
    """Brault (2016) 5.1: S H A + l ridge H = R B, here with every Kronecker product formed."""
    this, ridge = case(name, 3, 3), 1e-3
    problem = this.problem()
    (block,), B = problem.blocks, this.psi[0]
    big = np.kron(block.G, B @ B.T) + N * ridge * np.eye(len(block.G) * len(B))
    (solution,) = solve(problem, [ridge])
    assert solution.rung == "eigh"
    np.testing.assert_allclose(
        solution.h.ravel(), np.linalg.solve(big, (block.rhs @ block.rotation.T).ravel()), rtol=1e-9
    )
    assert solution.condition == pytest.approx(np.linalg.cond(big), rel=1e-8)


@few_cases
def test_a_list_of_ridges_is_the_single_fits(name, d, p):
    """More ridges than Cholesky factors are worth take the eigh; few take Cholesky, with or without their scores."""
    this, ridges = case(name, d, p), [1e-5, 1e-3, 1e-1, 10.0]
    problem = this.problem()
    filling = [1.0] * MOST_FACTORS
    for many, ridge in zip(solve(problem, ridges + filling)[: len(ridges)], ridges, strict=True):
        (one,) = solve(problem, [ridge])
        (scored,) = solve(problem, [ridge], scores=True)
        assert many.ridge == one.ridge == ridge
        assert relative(many.h, one.h) < 1e-8
        np.testing.assert_array_equal(one.h, scored.h)
        assert many.rung == "eigh" and one.rung == ("eigh" if name == "covariance" else "cholesky")
        assert many.gcv == pytest.approx(scored.gcv, rel=1e-7)
        assert many.condition == pytest.approx(np.linalg.cond(dense(problem, ridge)), rel=1e-6)
        # LAPACK's estimate is of the 1-norm: within a factor of the size.
        assert many.condition / len(many.h) < one.condition < many.condition * many.h.size


def dense(problem, ridge):
    """The matrix of the system, written out."""
    (block,) = problem.blocks
    matrix = np.kron(block.G, np.diag(block.a))
    return matrix + problem.l * ridge * np.eye(len(matrix))


@both
@few_cases
def test_gcv_is_that_of_the_dense_hat_matrix(name, d, p, intercept):
    this, scale = case(name, d, p), np.linspace(1.0, 3.0, p)
    y = (this.Y / scale).ravel()
    for solution in solve(this.problem(intercept=intercept, scale=scale), [1e-4, 1e-2, 1.0], scores=True):
        naive = Naive.fit(this.found.omega, this.psi, this.X, this.Y / scale, solution.ridge, intercept)
        hat = naive.columns @ np.linalg.solve(naive.matrix, naive.columns.T)
        residual = y - hat @ y
        size = len(y)
        expected = (residual @ residual / size) / (1 - np.trace(hat) / size) ** 2
        assert solution.gcv == pytest.approx(expected, rel=1e-7)


def test_gcv_is_infinite_where_no_freedom_is_left():
    this = case("identity", 2, 2)
    tight = solve(this.problem(slice(0, 5)), [0.0, 1.0], scores=True)
    assert tight[0].gcv == np.inf and np.isfinite(tight[1].gcv)


def setting(this, kernel, *, standardize=False, intercept=True):
    return Setting(kernel, this.X.shape[1], 2 * len(this.found.omega),
                   (this.found.omega, this.found.log_density, None), standardize, intercept)  # fmt: skip


@both
@pytest.mark.parametrize(("name", "d", "p"), [*FEW, ("covariance and curl", 2, 2)])
def test_kfold_is_fits_on_the_other_folds_by_hand(name, d, p, intercept):
    this, ridges = case(name, d, p), [1e-4, 1e-2, 1.0]
    kernel = dict([*every_kernel(d, p), *covariances()])[name]
    # Folds of 11, 10 and 9 rows: errors are pooled over rows, not over folds.
    fold_of = np.repeat([0, 1, 2, 0], [10, 10, 9, 1])
    for standardize in (False, True):
        folds = [[this.moments(fold_of == fold)] for fold in range(3)]
        chosen = setting(this, kernel, standardize=standardize, intercept=intercept)
        found = kfold_errors(folds, chosen, ridges)
        for ridge, error in zip(ridges, found, strict=True):
            squares = 0.0
            for fold in range(3):
                X, Y = this.X[fold_of != fold], this.Y[fold_of != fold]
                scale = Y.std(axis=0) if standardize else np.ones(p)
                if standardize and kernel.vector_field:
                    scale = np.full(p, np.sqrt(Y.var(axis=0).mean()))
                psi = weights_of(kernel.fix(d, p, np.cov((Y / scale).T, bias=True)), this.found).psi
                naive = Naive.fit(this.found.omega, psi, X, Y / scale, ridge, intercept)
                held = naive.predict(this.found.omega, psi, this.X[fold_of == fold]) * scale
                squares += np.sum((held - this.Y[fold_of == fold]) ** 2)
            assert error == pytest.approx(squares / (N * p), rel=1e-7)


def test_kfold_needs_two_folds():
    this = case("identity", 2, 2)
    with pytest.raises(InputError, match="at least two folds"):
        kfold_errors([[this.moments()]], setting(this, this.kernel), [1.0])


def test_choose_takes_the_least_error_over_kernels_and_ridges():
    this, ridges = case("helmholtz trace", 2, 2), [1e-6, 1e-3, 1.0]
    curl, div = kernels.CurlFree(kernels.Gaussian(0.7)), kernels.DivergenceFree(kernels.Gaussian(0.7))
    candidates = [setting(this, a * curl + (1 - a) * div) for a in (0.0, 0.3, 1.0)]
    folds = [[this.moments(slice(start, None, 4))] for start in range(4)]
    by_folds = choose(folds, candidates, ridges)
    table = np.array([kfold_errors(folds, one, ridges) for one in candidates])
    assert [score.value for score in by_folds.table] == table.ravel().tolist()
    best = np.unravel_index(np.argmin(table), table.shape)
    assert (by_folds.candidate, by_folds.fit.solution.ridge) == (best[0], ridges[best[1]])
    by_gcv = choose([[this.moments()]], candidates, ridges)
    scores = [fit.solution.gcv for one in candidates for fit in one.solve([this.moments()], ridges, scores=True)]
    assert [score.value for score in by_gcv.table] == scores
    assert by_gcv.fit.solution.gcv == min(scores)
    np.testing.assert_allclose([score.value for score in choose(folds, candidates, ridges, by="gcv").table], scores)
    # The winner is solved on all the rows.
    (again,) = candidates[by_folds.candidate].solve([this.moments()], [by_folds.fit.solution.ridge])
    assert relative(by_folds.fit.solution.h, again.solution.h) < 1e-8
    assert choose([[this.moments()]], candidates[:1], [0.1]).table == ()


@both
@every_case
def test_squared_error_is_that_of_the_predictions(name, d, p, intercept):
    this = case(name, d, p)
    train, test = this.moments(slice(0, 20)), this.moments(slice(20, None))
    problem = Problem.of(train, this.weights, intercept=intercept)
    (solution,) = solve(problem, [1e-2])
    W = this.weights.combined(solution.h)
    bias = problem.bias(W)
    predicted = plain_map(this.found.omega).transform(this.X[20:]) @ W + bias
    np.testing.assert_allclose(squared_error(test, W, bias), np.sum((predicted - this.Y[20:]) ** 2, axis=0), rtol=1e-9)


@pytest.mark.parametrize(("name", "d", "p"), [*FEW[2:], ("matrix", 2, 2), ("identity", 3, 3)])
def test_without_a_ridge_a_singular_system_falls_back_to_the_least_norm(name, d, p):
    """n < m: Cholesky fails or sees no digits left; the answer is that of lstsq on the centred features."""
    this = case(name, d, p, n=9, count=16)
    problem = this.problem()
    (solution,) = solve(problem, [0.0])
    assert solution.rung == "eigh" and solution.ill_conditioned
    Phi = stacked(this.found.omega, this.psi, this.X)
    Phi -= np.tile(Phi.reshape(9, p, -1).mean(axis=0), (9, 1))
    wanted, *_ = scipy.linalg.lstsq(Phi, (this.Y - this.Y.mean(axis=0)).ravel(), cond=1e-7)
    assert relative(solution.h, wanted) < 1e-5
    W = this.weights.combined(solution.h)
    np.testing.assert_allclose(squared_error(this.moments(), W, problem.bias(W)), 0.0, atol=1e-9)


def test_cholesky_hands_over_where_no_digits_are_left():
    """LAPACK factors this matrix without complaint; the answer would be 1e16 rather than the least norm."""
    this = case("curl trace", 2, 2)
    problem = this.problem()
    (block,) = problem.blocks
    size = len(block.G)
    block = replace(block, G=np.diag(np.append(np.ones(size - 1), 1e-17)), rhs=np.ones((size, 1)))
    problem = replace(problem, blocks=(block,))
    (solution,) = solve(problem, [0.0])
    assert solution.rung == "eigh" and solution.ill_conditioned
    np.testing.assert_allclose(solution.h.ravel(), np.append(np.ones(size - 1), 0.0), atol=1e-12)


@few_cases
@pytest.mark.parametrize("ridge", [0.0, 1e-6, 1.0])
def test_constant_targets_are_the_intercept(name, d, p, ridge):
    this = case(name, d, p)
    targets = np.linspace(-3.0, 7.0, p)
    moments = moments_of(plain_map(this.found.omega), this.X, np.tile(targets, (N, 1)), y0=targets)
    problem = Problem.of(moments, this.weights)
    for solution in (solve(problem, [ridge])[0], solve(problem, [ridge, 2.0], scores=True)[0]):
        W = this.weights.combined(solution.h)
        np.testing.assert_allclose(W, 0.0, atol=1e-12)
        np.testing.assert_allclose(problem.bias(W), targets, rtol=1e-12)


@few_cases
def test_one_row_is_the_intercept(name, d, p):
    this = case(name, d, p)
    problem = this.problem(slice(0, 1))
    (solution,) = solve(problem, [1e-3])
    W = this.weights.combined(solution.h)
    np.testing.assert_allclose(W, 0.0, atol=1e-10)
    np.testing.assert_allclose(problem.bias(W), this.Y[0], rtol=1e-9)


def test_ridge_is_per_row():
    """Minh's objective has 1/l: every row twice, and the answer stays."""
    this = case("helmholtz trace", 2, 2)
    once, twice = this.moments(), this.moments() + this.moments()
    assert twice.n == 2 * N
    first, second = (solve(Problem.of(m, this.weights), [1e-3])[0] for m in (once, twice))
    assert relative(first.h, second.h) < 1e-10


def test_condition_is_reported_and_judged():
    this = case("curl trace", 2, 2)
    problem = this.problem()
    fine, poor = solve(problem, [1e-2])[0], solve(problem, [1e-17])[0]
    assert not fine.ill_conditioned and fine.condition < 1e6
    assert poor.ill_conditioned
    # G is singular; what rounding made of its zeros, be it negative, is below every ridge that is asked for.
    tiny, _ = solve(problem, [1e-18, 1.0])
    largest = np.linalg.eigvalsh(problem.blocks[0].G)[-1]
    assert tiny.condition == pytest.approx(largest / (N * 1e-18), rel=1e-6) and np.all(np.isfinite(tiny.h))


def test_output_of_rank_one_predicts_along_one_direction():
    A = positive(3, 1)
    kernel = kernels.Decomposable(kernels.Gaussian(0.7), A)
    this = case("identity", 3, 3)
    weights = weights_of(kernel, this.found)
    (solution,) = solve(Problem.of(this.moments(), weights), [1e-3])
    assert solution.h.shape == (2 * D, 1)
    assert np.linalg.matrix_rank(weights.combined(solution.h), tol=1e-9) == 1


@pytest.mark.parametrize(
    "kernel", [kernels.Decomposable(kernels.Gaussian(0.7)), kernels.CurlFree(kernels.Gaussian(0.7))]
)
@pytest.mark.parametrize("criterion", ["gcv", "evidence"])
def test_a_solver_of_one_more_file_serves_fit_noise_scores_and_posterior(kernel, criterion, monkeypatch):
    X, Y = rows(60, 2, 2)
    options = {"n_features": 32, "ridge": [1e-3, 1e-2], "criterion": criterion}
    ours = ORFFRegressor(kernel, **options).fit(X, Y)
    monkeypatch.setattr(direct, "SOLVERS", (Inverse, *direct.SOLVERS))
    theirs = ORFFRegressor(kernel, **options).fit(X, Y)
    assert theirs.rung_ == "inverse" and ours.rung_ == "cholesky"
    for mine, other in zip(ours.predict(X, return_std=True), theirs.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(other, mine, rtol=1e-6, atol=1e-9)
    assert theirs.ridge_ == ours.ridge_ and theirs.log_evidence_ == pytest.approx(ours.log_evidence_, rel=1e-9)


def test_digits_count_what_centring_took_off():
    """Features far from zero: the sums were rounded with their mean in them, whichever solver."""
    rng, digits = np.random.default_rng(0), {}
    F, y = rng.standard_normal((200, 8)), rng.standard_normal((200, 1))
    for far in (0.0, 1e4):
        sums = Accumulator(8, 1, np.zeros(1))
        sums.add(np.hstack([F + far, np.ones((200, 1)), y]))
        problem = Problem.of(sums.moments(), OperatorWeights(np.ones(8), np.eye(1)[None]))
        (one,) = solve(problem, [1e-3])
        assert one.rung == "cholesky"
        assert one.digits == pytest.approx(SpectralSolver(problem).solve(1e-3).digits, abs=1.0)
        digits[far] = one.digits
    assert digits[1e4] < digits[0.0] - 4


def test_a_block_whose_columns_have_ridges_of_their_own_has_an_inverse_for_each():
    problem = case("identity", 2, 2).problem()
    (block,), ridges = problem.blocks, np.array([1e-3, 1e-1])
    basis, spread = direct.factor_of(problem, block, ridges).inverses()
    for column, shift in enumerate(problem.shifts(block, ridges)):
        inverse = np.linalg.inv(block.G * block.a[column] + shift * np.eye(len(block.G)))
        np.testing.assert_allclose((basis * spread[:, column]) @ basis.T, inverse, rtol=1e-7, atol=1e-9 / shift)


def test_at_ridge_0_there_is_no_posterior_of_what_the_data_do_not_see():
    this = case("identity", 2, 2)  # fewer rows than features
    problem = this.problem()
    (solution,) = solve(problem, [0.0])
    with pytest.raises(InputError, match="no bounds"):
        posterior(problem, solution, np.eye(2), [this.moments()])
