"""`lengthscale: tune`: the evidence against dense and scikit-learn twins, its gradient, and what it finds."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import LAW, moments_of, plain_map
from hypothesis import given
from hypothesis import strategies as st
from pass_specs import spec_of
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel

from dorff import kernels
from dorff.data import ingest, open_dataset
from dorff.errors import InputError
from dorff.features.lengthscale_search import Evidence, tune_lengthscales
from dorff.features.projected import UnitFeatures, with_lengthscale
from dorff.features.smoothness import tune_smoothness
from dorff.model.weights import OperatorWeights
from dorff.plan.lengthscale import UNITS, spread_rows, tuned_config, tunes
from dorff.solvers import Problem
from dorff.solvers.direct import SpectralSolver

UNIT = kernels.Gaussian(1.0)
SCALARS = (
    UNIT, kernels.Matern(1.0, nu=2.5), kernels.RationalQuadratic(1.0, alpha=2.0), kernels.Laplacian(1.0),
    kernels.Cauchy(1.0),
)  # fmt: skip
CURL, DIV = kernels.CurlFree(UNIT), kernels.DivergenceFree(kernels.Matern(1.0, nu=2.5))
FIELDS = (
    CURL, DIV, 0.3 * kernels.CurlFree(UNIT, "bounded") + 0.7 * kernels.DivergenceFree(UNIT, "unbounded"),
    0.3 * CURL + 0.7 * DIV + 2.0 * kernels.Decomposable(kernels.RationalQuadratic(1.0)),
)  # fmt: skip
KERNELS = (
    *(kernels.Decomposable(scalar) for scalar in SCALARS),
    kernels.Decomposable(UNIT, "covariance") + 0.5 * kernels.Decomposable(kernels.Cauchy(1.0)),
    *FIELDS,
)


def evidence_of(kernel, *, d=2, n=30, seed=0, columns=16, intercept=True, weighted=False, observe=None) -> Evidence:
    """The evidence of rows of noise, with enough columns for all of the kernel's laws."""
    rng = np.random.default_rng(seed)
    features = UnitFeatures.of(kernel, d=d, p=d, columns=columns, seed=seed)
    X, Y = rng.standard_normal((n, d)), rng.standard_normal((n, d)) + 2.0
    weights = rng.uniform(0.2, 2.0, n) if weighted else None
    if features.separable:
        return Evidence(features, X, Y[:, None, :], intercept, weights)
    if observe is not None:
        features, Y = features.observed(observe), Y @ observe.T
    return Evidence(features, X, Y[:, :, None], intercept, weights)


def written_out(evidence, lengthscale) -> tuple[np.ndarray, np.ndarray]:
    """F (n, m) by NumPy's own cosines, and psi (m, R, P), scaled."""
    features = evidence.features
    z = evidence.X @ (features.units / lengthscale).T
    psi = features.psi(lengthscale) / np.sqrt(evidence.scale(lengthscale))
    return np.hstack([np.cos(z), np.sin(z)]) / np.sqrt(len(features.units)), np.concatenate([psi, psi])


def problem_of(evidence, lengthscale) -> Problem:
    """The problem that a fit of the same features would solve."""
    separable = evidence.features.separable
    Y = evidence.Y[:, 0, :] if separable else evidence.Y[:, :, 0]
    psi = evidence.features.psi(lengthscale)
    psi = psi * np.eye(Y.shape[1]) if separable else psi
    features = plain_map(evidence.features.units / lengthscale)
    psi = np.concatenate([psi, psi])
    weights = OperatorWeights(np.ones(len(psi)), psi[:1] if np.all(psi == psi[0]) else psi)
    return Problem.of(moments_of(features, evidence.X, Y), weights, intercept=evidence.intercept)


def scalar_with(scalar, lengthscale):
    return with_lengthscale(kernels.Decomposable(scalar), lengthscale).terms()[0][1].scalar


def gp(scalar, X, rng, *, noise=0.1):
    """Targets (n, 1) drawn from the exact process of variance 1, with noise."""
    root = np.linalg.cholesky(scalar.gram(X, X) + noise**2 * np.eye(len(X)))
    return root @ rng.standard_normal((len(X), 1))


@given(st.sampled_from(KERNELS), st.integers(0, 99), st.integers(2, 4), st.booleans(), st.booleans(), st.booleans())
@LAW
def test_the_gradient_is_that_of_finite_differences(kernel, seed, d, each, intercept, weighted) -> None:
    evidence = evidence_of(kernel, d=d, seed=seed, columns=32, intercept=intercept, weighted=weighted)
    logs = 0.3 * np.random.default_rng(seed).standard_normal(1 + (d if each else 1))
    step, numeric = 1e-4, np.empty(len(logs))
    for i in range(len(logs)):
        ahead = [logs + k * step * (np.arange(len(logs)) == i) for k in (-2, -1, 1, 2)]
        values = [evidence(np.exp(at[:-1]), float(np.exp(at[-1])))[0] for at in ahead]
        numeric[i] = np.dot([1, -8, 8, -1], values) / (12 * step)
    gradient = evidence(np.exp(logs[:-1]), float(np.exp(logs[-1])))[1]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


def test_the_gradient_with_targets_that_observe_a_field() -> None:
    evidence = evidence_of(FIELDS[3], d=3, columns=32, observe=np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]))
    at, step = np.array([0.9, 1.2, 0.7]), 1e-5
    gradient = evidence(at, 0.3)[1]
    for i in range(3):
        moved = [evidence(at * np.exp(sign * step * (np.arange(3) == i)), 0.3)[0] for sign in (1, -1)]
        assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(gradient[i], rel=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_value_is_the_dense_restricted_likelihood(kernel, intercept) -> None:
    """The covariance of all entries written out, the flat intercept integrated out by Harville's determinants."""
    evidence, s, ratio = evidence_of(kernel, intercept=intercept, weighted=True), np.array([0.8, 1.3]), 0.2
    F, psi = written_out(evidence, s)
    n, P, c = evidence.Y.shape
    Phi = np.einsum("na,arp->npar", F, psi).reshape(n * P, -1)
    V = Phi @ Phi.T / ratio + np.diag(np.repeat(1.0 / evidence.weights, P))
    inverse, total = np.linalg.inv(V), 0.0
    B = np.tile(np.eye(P), (n, 1)) if intercept else np.empty((n * P, 0))
    left = np.linalg.inv(B.T @ inverse @ B)
    projected = inverse - inverse @ B @ left @ B.T @ inverse
    freedom = n * P - B.shape[1]
    dets = np.linalg.slogdet(V)[1] + np.linalg.slogdet(B.T @ inverse @ B)[1]
    dets += P * np.log(evidence.weights).sum()  # the constant that is left out
    for column in evidence.Y.reshape(n * P, c).T:
        s2 = column @ projected @ column / freedom
        total += -0.5 * (freedom * (np.log(2 * np.pi * s2) + 1) + dets)
    assert evidence(s, ratio)[0] == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kernel", [KERNELS[0], *FIELDS], ids=str)
def test_the_value_is_that_of_a_fit(kernel, intercept) -> None:
    """The moments' way to the same number: `Solution.log_evidence`."""
    evidence, s, ratio = evidence_of(kernel, intercept=intercept), np.array([0.8, 1.3]), 0.2
    ridge = ratio * evidence.scale(s) / len(evidence.X)
    solution = SpectralSolver(problem_of(evidence, s)).solve(ridge)
    assert evidence(s, ratio)[0] == pytest.approx(solution.log_evidence, rel=1e-9)


def test_the_value_is_scikit_learns_without_an_intercept() -> None:
    evidence, s, ratio = evidence_of(KERNELS[0], intercept=False), np.array([0.9]), 0.2
    F, _ = written_out(evidence, s)
    total = 0.0
    for y in evidence.Y[:, 0, :].T:
        s2 = y @ np.linalg.solve(F @ F.T / ratio + np.eye(len(F)), y) / len(F)
        kernel = ConstantKernel(s2 / ratio, "fixed") * DotProduct(0.0, "fixed") + WhiteKernel(s2, "fixed")
        total += GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(F, y).log_marginal_likelihood_value_
    assert evidence(s, ratio)[0] == pytest.approx(total, rel=1e-10)


def test_one_length_scale_is_all_of_them_equal() -> None:
    evidence = evidence_of(FIELDS[3], columns=32)
    (one, by_one), (each, by_each) = evidence(np.array([0.7]), 0.1), evidence(np.full(2, 0.7), 0.1)
    assert one == each
    np.testing.assert_allclose(by_one, [by_each[:2].sum(), by_each[2]], rtol=1e-12)


def test_many_outputs_are_one_system() -> None:
    """Equal columns multiply the evidence and its gradient; what is factored stays (m, m)."""
    evidence = evidence_of(KERNELS[0])
    value, gradient = evidence(np.ones(1), 0.1)
    many = replace(evidence, Y=np.tile(evidence.Y, 50))
    assert many.features.roots.shape == (1, 1, 3)
    found, by = many(np.ones(1), 0.1)
    assert found == pytest.approx(50 * value, rel=1e-12)
    np.testing.assert_allclose(by, 50 * gradient, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_features_are_the_kernels_at_every_length_scale(kernel) -> None:
    """The mean over frequencies against exact values, to six of its own standard errors."""
    s = np.array([0.8, 1.7])
    features = UnitFeatures.of(kernel, d=2, p=2, columns=2**12, seed=3)
    omega, psi = features.units / s, features.psi(s)
    points = np.array([[0.0, 0.0], [0.4, -0.3], [1.0, 1.5]])
    each = np.cos(points @ omega.T)[:, :, None, None] * np.einsum("jrp,jrq->jpq", psi, psi)
    exact = with_lengthscale(kernel, s, identity=True).fix(2, 2).gram(points, np.zeros((1, 2)))[:, 0]
    P = each.shape[-1]
    error = each.std(axis=1) / np.sqrt(len(omega)) + 1e-12
    assert np.all(np.abs(each.mean(axis=1) - exact[:, :P, :P]) < 6 * error)


@pytest.mark.statistical
@pytest.mark.parametrize("scalar", [UNIT, kernels.Matern(1.0, nu=2.5)], ids=str)
def test_the_length_scale_of_an_exact_process_is_found(scalar) -> None:
    """Within a factor of 1.6 each; on average over draws within 15 in 100 and three of the mean's own errors.

    Few features draw the exact process none too well, and a shorter length-scale gives them more to work with.
    """
    logs = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, (200, 2))
        Y = gp(scalar_with(scalar, 0.8), X, rng, noise=0.3)
        found = tune_lengthscales(kernels.Decomposable(scalar), X, Y, n_features=256, seed=seed)
        assert found.converged and found.status == "converged"
        logs.append(np.log(found.lengthscale[0] / 0.8))
    assert np.max(np.abs(logs)) < np.log(1.6)
    assert abs(np.mean(logs)) < np.log(1.15) + 3 * np.std(logs, ddof=1) / np.sqrt(len(logs))


@pytest.mark.parametrize(("rows", "apart"), [(15, False), (300, True)])
def test_few_rows_tell_one_lengthscale_and_many_tell_one_an_input(rows: int, apart: bool) -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((rows, 3)) * [1.0, 10.0, 0.1]
    Y = np.sin(3 * X[:, 0]) * apart + X @ [1.0, 0.1, 10.0] + 0.5 * rng.standard_normal(rows)
    found = tune_lengthscales(kernels.Decomposable(UNIT), X, Y, each=True, n_features=64)
    each = found.lengthscale / X.std(axis=0)
    assert found.converged
    assert (np.ptp(each) > 0.2 * each.min()) == apart


def test_inputs_without_effect_get_long_length_scales() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (400, 4)) * [1.0, 100.0, 1.0, 1.0]
    Y = gp(kernels.Gaussian([0.7, 120.0]), X[:, :2], rng)
    found = tune_lengthscales(kernels.Decomposable(UNIT), X, Y, each=True, n_features=256)
    near, far = found.lengthscale[:2], found.lengthscale[2:]
    np.testing.assert_array_less(np.abs(np.log(near / [0.7, 120.0])), np.log(1.5))
    assert np.all(far > 5)  # over twice the width of the data
    assert found.kernel.terms()[0][1].scalar == kernels.Gaussian(found.lengthscale)
    one = tune_lengthscales(kernels.Decomposable(UNIT), X, Y, n_features=256)
    assert found.log_evidence > one.log_evidence + 50


@pytest.mark.statistical
@pytest.mark.parametrize("waves", [1.0, 1.5])
def test_waves_along_an_input_are_seen_beside_what_is_smooth(waves: float) -> None:
    """That input begins longer than they are, and the evidence has no slope towards them there."""
    rng = np.random.default_rng(int(2 * waves))
    X = rng.uniform(-1, 1, (1200, 4))
    smooth = 3 * np.sin(2 * X[:, 0]) * X[:, 1] + 2 * X[:, 2] ** 2
    y = np.column_stack([smooth + np.sin(2 * np.pi * waves * X[:, 3]), 3 * X[:, 0] + 2 * np.cos(3 * X[:, 1])])
    y += rng.normal(size=y.shape) * [0.3, 0.1]
    tuned = tune_lengthscales(kernels.Decomposable(UNIT), X, y, each=True, n_features=192)
    assert 0.5 < tuned.lengthscale[3] * np.pi * waves < 2.5, tuned.lengthscale
    assert tuned.history[-1] == pytest.approx(tuned.log_evidence, rel=1e-6) and tuned.converged


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("waves", "noise", "count"), [(12, 0.3, 256), (25, 0.3, 256), (12, 2.0, 256), (40, 0.7, 256), (100, 0.3, 512)]
)
def test_waves_that_are_short_beside_the_data_are_seen(waves: int, noise: float, count: int) -> None:
    """Climbs from about the median distance end where all is noise."""
    rng = np.random.default_rng(waves)
    X = rng.uniform(0.0, 1000.0, (2048, 1))
    y = 10.0 + np.sin(2 * np.pi * waves * X[:, 0] / 1000.0) + noise * rng.standard_normal(2048)
    tuned = tune_lengthscales(kernels.Decomposable(UNIT), X, y, n_features=count)
    assert tuned.status == "converged" and 0.05 < tuned.lengthscale[0] * waves / 1000.0 < 0.6, tuned


@pytest.mark.statistical
def test_waves_of_few_rows_are_seen_in_most_samples() -> None:
    """Where the evidence is not much higher than that of another length-scale."""
    seen = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 1000, (60, 1))
        y = 10.0 + np.sin(2 * np.pi * 8 * X[:, 0] / 1000.0) + 0.7 * rng.standard_normal(60)
        tuned = tune_lengthscales(kernels.Decomposable(UNIT), X, y, n_features=128)
        seen += 0.05 < tuned.lengthscale[0] * 8 / 1000.0 < 0.6
    assert seen >= 4


def test_the_length_scale_of_a_field_is_found() -> None:
    """A curl-free field drawn from the exact process; through C as well, which mixes its targets."""
    rng = np.random.default_rng(2)
    X, C = rng.uniform(-2, 2, (150, 2)), np.array([[1.0, 0.5], [-0.3, 2.0]])
    K = kernels.CurlFree(kernels.Gaussian(0.9)).gram(X, X).transpose(0, 2, 1, 3).reshape(300, 300)
    Y = (np.linalg.cholesky(K + 0.01 * np.eye(300)) @ rng.standard_normal(300)).reshape(150, 2)
    for kernel in (CURL, 0.8 * CURL + 0.2 * kernels.DivergenceFree(UNIT)):
        found = tune_lengthscales(kernel, X, Y, n_features=192)
        assert found.converged and abs(np.log(found.lengthscale[0] / 0.9)) < np.log(1.4)
    seen = tune_lengthscales(CURL, X, Y @ C.T, n_features=192, observe=C)
    assert abs(np.log(seen.lengthscale[0] / 0.9)) < np.log(1.4)


def test_units_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (120, 2))
    Y = np.hstack([gp(kernels.Gaussian(0.8), X, rng), gp(kernels.Gaussian(0.8), X, rng)])
    kernel = kernels.Decomposable(UNIT)
    found = tune_lengthscales(kernel, X, Y, each=True, n_features=64)
    moved = tune_lengthscales(kernel, X * [3.0, 0.01] + 5.0, Y * 10.0 - 7.0, each=True, n_features=64)
    np.testing.assert_allclose(moved.lengthscale, found.lengthscale * [3.0, 0.01], rtol=1e-3)
    assert moved.ridge == pytest.approx(found.ridge, rel=1e-2)
    assert moved.log_evidence == pytest.approx(found.log_evidence - 2 * 119 * np.log(10.0), rel=1e-6)


def test_the_ridge_is_the_one_of_a_fit_with_the_most_evidence() -> None:
    """Of the kernel as it is, a weight of 4 on it as well."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (100, 2))
    Y, kernel = gp(kernels.Gaussian(0.8), X, rng), 4.0 * kernels.Decomposable(UNIT)
    found = tune_lengthscales(kernel, X, Y, n_features=64, seed=5)
    features = UnitFeatures.of(kernel, d=2, p=1, columns=64, seed=5)
    problem = problem_of(Evidence(features, X, Y[:, None]), found.lengthscale)
    values = [SpectralSolver(problem).solve(found.ridge * factor).log_evidence for factor in (0.9, 1.0, 1.1)]
    assert values[1] == max(values) == pytest.approx(found.log_evidence, rel=1e-9)
    assert found.history[-1] == pytest.approx(found.log_evidence) and list(found.history) == sorted(found.history)


@pytest.mark.parametrize("each", [False, True])
def test_rows_that_are_not_whole_are_left_out(each) -> None:
    rng = np.random.default_rng(5)
    X = rng.uniform(-2, 2, (80, 2))
    Y = gp(kernels.Gaussian(0.8), X, rng)
    bad = np.zeros(100, dtype=bool)
    bad[[3, 17, 40, 60, *range(84, 100)]] = True
    wide_X, wide_Y, weights = np.ones((100, 2)), np.ones((100, 1)), np.ones(100)
    wide_X[~bad], wide_Y[~bad] = X, Y
    wide_X[3, 0], wide_Y[17], weights[40], weights[60:61] = np.nan, np.inf, 0.0, np.nan
    wide_Y[84:] = np.nan
    kernel = kernels.Decomposable(UNIT)
    found = tune_lengthscales(kernel, wide_X, wide_Y, each=each, n_features=32, weights=weights)
    wanted = tune_lengthscales(kernel, X, Y, each=each, n_features=32)
    np.testing.assert_array_equal(found.lengthscale, wanted.lengthscale)
    assert found.rows == 80


def test_noise_and_constants_are_said_to_tell_nothing() -> None:
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, (60, 3))
    kernel = kernels.Decomposable(UNIT)
    guess = kernels.median_lengthscale(X)
    flat = tune_lengthscales(kernel, X, rng.standard_normal(60), n_features=32)
    assert not flat.converged and "flat" in flat.status and flat.lengthscale == pytest.approx([guess])
    for seed in range(20):  # of which a shorter start comes to more than noise, by chance
        noise = np.random.default_rng(seed).standard_normal((150, 2))
        rough = kernels.Decomposable(kernels.Matern(1.0, nu=1.5))
        tuned = tune_lengthscales(rough, noise[:, :1], noise[:, 1], n_features=64)
        assert tuned.lengthscale[0] > 0.03 * kernels.median_lengthscale(noise[:, :1]), seed
    for X_, Y in ((X, np.ones(60)), (X[:2], np.arange(2.0)), (np.ones((60, 3)), np.ones((60, 2)))):
        none = tune_lengthscales(kernel, X_, Y)
        assert not none.converged and "say nothing" in none.status and none.log_evidence == -np.inf
    same = tune_lengthscales(kernel, np.ones((60, 3)), rng.standard_normal(60), each=True, n_features=32)
    assert "flat" in same.status and np.all(same.lengthscale == 1.0)


def test_bounds_are_said() -> None:
    rng = np.random.default_rng(8)
    X = rng.uniform(-2, 2, (100, 2))
    exact = tune_lengthscales(kernels.Decomposable(UNIT), X, np.sin(X[:, 0]), n_features=64)
    assert "the ratio of noise to signal at a bound" in exact.status
    each = tune_lengthscales(kernels.Decomposable(UNIT), X, np.sin(3 * X[:, 0]), each=True, n_features=64)
    assert "of inputs 1 at the upper bound (no effect)" in each.status
    assert np.isfinite(each.lengthscale).all()


def test_a_class_that_the_sample_misses_is_no_matter() -> None:
    rng = np.random.default_rng(9)
    X = rng.uniform(-2, 2, (90, 2))
    Y = np.zeros((90, 3))
    Y[range(90), (X[:, 0] > 0).astype(int)] = 1.0
    kernel = kernels.Decomposable(UNIT, "simplex")
    with_it, without = (tune_lengthscales(kernel, X, part, n_features=32) for part in (Y, Y[:, :2]))
    assert with_it.lengthscale == pytest.approx(without.lengthscale, rel=1e-9)


def test_what_cannot_be_tuned_is_refused() -> None:
    X, Y = np.zeros((9, 2)), np.arange(9.0)
    kernel = kernels.Decomposable(UNIT)
    with pytest.raises(InputError, match="ArcCosine has none to tune; use a kernel with one"):
        tune_lengthscales(kernels.Decomposable(kernels.ArcCosine(1)), X, Y)
    with pytest.raises(InputError, match="of as many rows; got shapes"):
        tune_lengthscales(kernel, X, Y[:5])
    with pytest.raises(InputError, match="weights must be 9 numbers"):
        tune_lengthscales(kernel, X, Y, weights=-np.ones(9))
    with pytest.raises(InputError, match="rows must be a whole number of 4 or more, not 2"):
        tune_lengthscales(kernel, X, Y, rows=2)
    with pytest.raises(InputError, match="none of 9 rows is free of NaN"):
        tune_lengthscales(kernel, X * np.nan, Y)
    with pytest.raises(InputError, match="CurlFree needs as many targets as inputs"):
        tune_lengthscales(CURL, X, Y)
    with pytest.raises(InputError, match="n_features must be a whole number"):
        tune_lengthscales(kernel, X, Y, n_features=1)


def job_kernel(word, *, output="identity", kind="gaussian"):
    return {"type": "decomposable", "scalar": {"type": kind, "lengthscale": word}, "output": output}


def test_words_of_a_job_become_numbers() -> None:
    rng = np.random.default_rng(10)
    X = rng.uniform(-2, 2, (60, 2))
    Y = np.hstack([gp(kernels.Gaussian(0.8), X, rng)] * 2)
    pair = {"type": "sum", "terms": [{"weight": w, "kernel": job_kernel("tune", kind=k)} for w, k in
                                     ((0.5, "gaussian"), (2.0, "cauchy"))]}  # fmt: skip
    configs = [job_kernel("tune"), job_kernel(0.3), job_kernel("tune", output="covariance"), job_kernel("tune each"),
               pair, job_kernel("median")]  # fmt: skip
    assert [tunes(config) for config in configs] == [False, None, False, True, False, None]
    how = {"X": X, "Y": Y, "n_features": 64}
    filled, found = tuned_config(configs, partial(tune_lengthscales, **how), partial(tune_smoothness, **how))
    assert found[0] is found[2] and found[1] is None and found[5] is None
    wanted = tune_lengthscales(kernels.Decomposable(UNIT), X, Y, n_features=64)
    assert filled[0]["scalar"]["lengthscale"] == filled[2]["scalar"]["lengthscale"] == wanted.lengthscale[0]
    assert filled[1] == configs[1] and filled[5] == configs[5] and len(filled[3]["scalar"]["lengthscale"]) == 2
    first, second = (term["kernel"]["scalar"]["lengthscale"] for term in filled[4]["terms"])
    assert first == second == found[4].lengthscale[0]
    mixed = {"type": "sum", "terms": [{"weight": 1.0, "kernel": job_kernel(word)} for word in ("tune", 0.3)]}
    with pytest.raises(InputError, match="the terms of a sum are tuned together"):
        tunes(mixed)


def test_the_rows_are_spread_over_those_there_at_the_first_plan(tmp_path: Path) -> None:
    n = 40_000
    Z = np.column_stack([np.arange(n, dtype=float), np.ones(n), np.ones(n)])
    Z[::7, 1], Z[5, 2] = np.nan, 0.0
    for name, rows in (("first", Z), ("more", Z[:100] + 9.0)):
        np.savez(tmp_path / f"{name}.npz", x=rows[:, :1], y=rows[:, 1:2], w=rows[:, 2:])
    wanted = {"inputs": ["x"], "targets": ["y"], "weights": "w"}
    ingest([tmp_path / "first.npz"], tmp_path / "a.zarr", **wanted, shard_rows=512)
    store = open_dataset(tmp_path / "a.zarr", weights="weights")
    spec = spec_of()
    first, name = spread_rows(spec, store, store.n)
    assert 8000 < len(first.X) <= 8192 and np.isfinite(first.Y).all() and 5.0 not in first.X and 7.0 not in first.X
    assert first.X[0] < 10 and first.X[-1] > n - 10 and len(np.unique(first.X // store.unit_rows)) <= UNITS
    ingest([tmp_path / "more.npz"], tmp_path / "a.zarr", **wanted, append=True)
    store = open_dataset(tmp_path / "a.zarr", weights="weights")
    assert spread_rows(spec, store, n)[1] == name != spread_rows(spec, store, store.n)[1]
