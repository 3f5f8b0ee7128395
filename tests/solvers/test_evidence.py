"""Evidence, noise variance, posterior and ridges per output, against scikit-learn and dense computations."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
from cases import every_kernel, plain_map, rows
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import Ridge, RidgeCV

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.estimators import ORFFRegressor
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments, TriangleAccumulator
from dorff.solvers import LARGEST_DIRECT, LARGEST_EVD, Fit, Problem, Setting, select
from dorff.solvers.outputs import output_directions

N, D, RIDGE = 30, 7, 1e-2
RNG = np.random.default_rng(5)
MIXED, ONE = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.5]]), np.array([[0.0, 1.0, 0.0]])
MORE = RNG.standard_normal((4, 3))
COUPLED = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 0.5]])
both = pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])


def moments(F: FloatArray, Y: FloatArray, weights: FloatArray, kind=Accumulator) -> list[Moments]:
    """The weighted moments of each pattern of targets, by hand."""
    seen, y0 = np.isfinite(Y), np.full(Y.shape[1], 0.4)
    found = []
    for pattern in np.unique(seen, axis=0):
        at = (seen == pattern).all(axis=1)
        word = "" if pattern.all() else "".join("1" if there else "0" for there in pattern)
        sums = kind(F.shape[1], Y.shape[1], y0, observed=word)
        Z = np.column_stack([F[at], np.ones(at.sum()), np.where(pattern, Y[at] - y0, 0.0)])
        sums.add(Z * np.sqrt(weights[at])[:, None])
        found.append(sums.moments())
    return found


@dataclass(frozen=True)
class Case:
    """Rows, a setting, and the covariance of all that was observed written out entry by entry."""

    setting: Setting
    F: FloatArray
    Y: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, name, *, C=None, gaps=False, weighted=False, standardize=False, intercept=True):
        kernel = {
            "coupled": kernels.Decomposable(kernels.Gaussian(0.9), COUPLED),
            "covariance": kernels.Decomposable(kernels.Gaussian(0.9), "covariance"),
            "simplex": kernels.Decomposable(kernels.Gaussian(0.9), "simplex"),
            "diagonal": kernels.Decomposable(kernels.Gaussian(0.9), np.diag([3.0, 0.0, 1.0])),
            "learned": kernels.Decomposable(kernels.Gaussian(0.9), "learned"),
        }.get(name) or dict(every_kernel(3, 3))[name]
        found = frequencies.Orthogonal().draw(kernel, d=3, p=3, count=D, seed=2)
        X, Y = rows(N, 3, 3 if C is None else len(C), seed=4)
        Y = Y + 0.3 * np.random.default_rng(1).standard_normal(Y.shape)
        if gaps:
            Y[::4, 0], Y[1::5, 1:] = np.nan, np.nan
        w = np.random.default_rng(2).uniform(0.3, 2.0, N) if weighted else np.ones(N)
        density = (found.omega, found.log_density, None)
        setting = Setting(kernel, 3, 2 * D, density, standardize, intercept, C)
        return cls(setting, plain_map(found.omega).transform(X), Y, w)

    def sums(self, kind):
        return moments(self.F, self.Y, self.weights, kind)

    @property
    def parts(self) -> list[Moments]:
        return self.sums(Accumulator)

    @property
    def C(self) -> FloatArray:
        return np.eye(3) if self.setting.observe is None else self.setting.observe

    @property
    def mean_weight(self) -> FloatArray:
        """(q,): of the rows that have a target."""
        seen = np.isfinite(self.Y)
        return self.weights @ seen / seen.sum(axis=0)

    @property
    def scale(self) -> FloatArray:
        return self.setting.scaling(self.parts)

    def alone(self, fit: Fit) -> bool:
        """Whether each target is a problem of its own: one target, or a diagonal output matrix."""
        one = len(fit.weights.root) == 1 and np.count_nonzero(fit.weights.root[0].T @ fit.weights.root[0]) <= 3
        return len(self.scale) == 1 or (self.setting.observe is None and one)

    def mean_noise(self, D: FloatArray) -> float:
        """What the prior is tied to: over the entries, less one a target for the intercept."""
        return float(np.average(D, weights=np.isfinite(self.Y).sum(axis=0) - self.setting.intercept))

    def kernel(self, fit: Fit, F: FloatArray, G: FloatArray) -> FloatArray:
        """l ridge cov f / noise, (n, k, p, p): of scaled targets."""
        inner = np.einsum("arp,arq->apq", fit.weights.psi, fit.weights.psi)
        return np.einsum("na,ka,apq->nkpq", F, G, inner) / (fit.solution.ridge * self.weights.sum())

    def dense(self, fit: Fit, D: FloatArray, level: FloatArray):
        """Of all scaled y that were observed, with noise D (q,): y, the covariance given the intercept, the map from
        f, the intercept's design and its basis. `level` (p,) multiplies the kernel of each output."""
        seen, n, p = np.isfinite(self.Y).ravel(), len(self.F), 3
        prior = (self.kernel(fit, self.F, self.F) * level[:, None]).transpose(0, 2, 1, 3).reshape(n * p, n * p)
        lift = np.kron(np.eye(n), self.C)
        noise = np.kron(np.diag(1 / self.weights), np.diag(D))
        V = (lift @ prior @ lift.T + noise)[np.ix_(seen, seen)]
        basis = scipy.linalg.orth(self.C.T)
        design = (np.tile(self.C @ basis, (n, 1)) if self.setting.intercept else np.zeros((len(lift), 0)))[seen]
        return (self.Y / self.scale).ravel()[seen], V, lift[seen], design, basis

    def log_density(self, fit: Fit, D: FloatArray) -> float:
        """Of y for noise D (q,) of the scaled targets, the intercept integrated out: of its contrasts, orthonormal to
        the design B, less log det B'B / 2; in the targets' units.

        Row weights are taken as they stand in the noise, less the constant that the evidence leaves out.
        """
        y, V, _, B, _ = self.dense(fit, D, np.full(3, self.mean_noise(D)))
        K = scipy.linalg.null_space(B.T) if B.size else np.eye(len(y))
        z = K.T @ y
        log = float(multivariate_normal(np.zeros(len(z)), K.T @ V @ K).logpdf(z))
        seen = np.isfinite(self.Y)
        units = seen.sum(axis=0) @ np.log(self.scale)
        if B.size:  # what the contrasts have of a density of y is one unit less for each direction of the intercept
            log -= 0.5 * np.linalg.slogdet(B.T @ B)[1]
            units -= (
                np.log(self.scale[0]) * B.shape[1] if self.setting.observe is not None else np.log(self.scale).sum()
            )
        return float(log - 0.5 * np.log(self.weights) @ seen.sum(axis=1) - units)

    def error_covariance(self, fit: Fit, G: FloatArray, D: FloatArray) -> FloatArray:
        """(k, p, p) at features G (k, m): of f less the ridge's estimate of it, which is linear in y and knows of one
        noise, for noise D (q,). Where that is one (or outputs are apart) it is kriging with a flat intercept
        (Rasmussen & Williams 2006, eq. 2.42)."""
        k, n, one = len(G), len(self.F), np.ones(3)
        across = self.kernel(fit, self.F, G).transpose(0, 2, 1, 3).reshape(n * 3, k * 3)
        own = self.kernel(fit, G, G).transpose(0, 2, 1, 3).reshape(3 * k, 3 * k)
        _, V, lift, B, basis = self.dense(fit, np.ones(len(self.C)), one)
        across = lift @ across
        L = np.linalg.solve(V, across).T
        if B.size:
            free = np.linalg.solve(B.T @ np.linalg.solve(V, B), np.linalg.solve(V, B).T)
            L = L - (L @ B) @ free + np.tile(basis, (k, 1)) @ free
        level = (
            np.tile(D, k) if self.alone(fit) and self.setting.observe is None else np.full(3 * k, self.mean_noise(D))
        )
        _, V, _, _, _ = self.dense(fit, D, level[:3])
        found = own * level - (across * level).T @ L.T - L @ (across * level) + L @ V @ L.T
        found *= np.outer(np.tile(fit.scale, k), np.tile(fit.scale, k))
        return np.array([found[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(k)])


CASES = [
    ("identity", {}), ("identity", {"gaps": True, "standardize": True}), ("identity", {"weighted": True}),
    ("diagonal", {"standardize": True}), ("diagonal", {"gaps": True}), ("coupled", {"standardize": True}),
    ("coupled", {"gaps": True}), ("covariance", {"weighted": True}), ("deficient", {}), ("simplex", {}),
    ("two scalars", {"standardize": True}), ("curl trace", {"standardize": True}), ("curl trace", {"gaps": True}),
    ("helmholtz trace", {"weighted": True, "gaps": True}), ("identity", {"C": MIXED, "standardize": True}),
    ("coupled", {"C": MORE}), ("coupled", {"C": ONE}), ("coupled", {"C": MIXED, "gaps": True}),
    ("helmholtz trace", {"C": MIXED}), ("learned", {}),
]  # fmt: skip
IDS = [f"{name} {' '.join(options)}" for name, options in CASES]
each = pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)


@both
@each
def test_evidence_is_the_dense_integral_and_greatest_over_the_noise_of_each_target(name, options, intercept):
    case = Case.of(name, intercept=intercept, **options)
    parts = case.parts
    (fit,) = case.setting.solve(parts, [RIDGE], scores=True)
    (model,) = select.noise_models(parts, [case.setting.reweighed(parts, fit)])
    assert fit.log_evidence == model.log_evidence == pytest.approx(case.log_density(fit, model.variance), rel=1e-8)
    for target in range(len(case.C)):
        for factor in (0.95, 1.05):
            other = model.variance * np.where(np.arange(len(case.C)) == target, factor, 1.0)
            assert case.log_density(fit, other) < fit.log_evidence
    if not case.alone(fit):
        np.testing.assert_allclose(fit.noise, np.diag(model.variance * case.scale**2 / case.mean_weight), rtol=1e-12)


@both
@each
def test_posterior_is_the_dense_one(name, options, intercept):
    case = Case.of(name, intercept=intercept, **options)
    parts = case.parts
    (fit,) = case.setting.solve(parts, [RIDGE])
    (fit,) = case.setting.judged(parts, [fit])
    found = case.setting.posterior(parts, fit)
    G = RNG.standard_normal((5, 2 * D))
    wanted = case.error_covariance(fit, G, np.diag(fit.noise) / case.scale**2 * case.mean_weight)
    np.testing.assert_allclose(found.covariance(G), wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max())
    np.testing.assert_allclose(found.variance(G), np.einsum("npp->np", wanted), rtol=1e-8)
    np.testing.assert_array_equal(found.noise, fit.noise)


@pytest.mark.parametrize("name", ["coupled", "curl trace"])
def test_samples_have_the_covariance_that_is_stated(name):
    """Where targets' noises differ, and columns hang together by them: to six standard errors of 4000 samples."""
    case = Case.of(name)
    (fit,) = case.setting.solve(case.parts, [RIDGE])
    found = case.setting.posterior(case.parts, fit)
    h, b = found.draw(np.random.default_rng(3), 4000, fit.solution.h.shape)
    values = np.einsum("a,nap->np", case.F[0], [fit.weights.combined(one) * fit.scale for one in h]) + b
    wanted, variance = found.covariance(case.F[:1])[0], found.variance(case.F[:1])[0]
    error = np.sqrt((np.outer(variance, variance) + wanted**2) / 4000)
    assert np.all(np.abs(np.cov(values.T) - wanted) < 6 * error)


def data(intercept: bool = False, q: int = 1):
    """Features (N, m) and targets about a mean, and the problem of independent outputs."""
    rng = np.random.default_rng(7)
    F = rng.standard_normal((N, 6))
    Y = F @ rng.standard_normal((6, q)) + rng.standard_normal((N, q)) + 2.0
    setting = Setting(kernels.Decomposable(kernels.Polynomial(2)), 3, 6, None, False, intercept)
    return F, Y, setting, moments(F, Y, np.ones(N))


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_evidence_and_deviations_are_scikit_learns_linear_process(ridge):
    F, Y, setting, parts = data()
    (fit,) = setting.solve(parts, [ridge], scores=True)
    s2 = fit.noise[0, 0]
    kernel = ConstantKernel(s2 / (N * ridge)) * DotProduct(0.0, "fixed") + WhiteKernel(s2)
    process = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(F, Y[:, 0])
    assert fit.log_evidence == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-8)
    G = np.random.default_rng(1).standard_normal((5, 6))
    mean, std = process.predict(G, return_std=True)
    found = setting.posterior(parts, fit)
    np.testing.assert_allclose(G @ fit.W[:, 0] + fit.bias, mean, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(found.variance(G)[:, 0] + s2), std, rtol=1e-8)


@both
@pytest.mark.parametrize("weighted", [False, True])
def test_a_path_of_ridges_is_scikit_learns(intercept, weighted):
    """Ridge penalises by alpha = l ridge."""
    F, Y, setting, _ = data(intercept, q=2)
    w = np.random.default_rng(3).uniform(0.2, 3.0, N) if weighted else np.ones(N)
    ridges = [1e-4, 1e-2, 1.0]
    for fit in setting.solve(moments(F, Y, w), ridges):
        twin = Ridge(alpha=w.sum() * fit.solution.ridge, fit_intercept=intercept).fit(F, Y, sample_weight=w)
        np.testing.assert_allclose(fit.W, twin.coef_.T, rtol=1e-8)
        np.testing.assert_allclose(fit.bias, twin.intercept_ if intercept else 0.0, rtol=1e-8)


@both
def test_gcv_is_ridge_cvs_error_where_every_row_weighs_the_same(intercept):
    """Leaving one out is GCV where the hat matrix has a constant diagonal: harmonics at equidistant points."""
    turn = 2 * np.pi * np.arange(N) / N
    F = np.column_stack([wave(k * turn) / k for k in (1, 2, 3) for wave in (np.cos, np.sin)])
    Y = (np.sin(turn) + np.random.default_rng(0).standard_normal(N))[:, None]
    setting = Setting(kernels.Decomposable(kernels.Polynomial(2)), 3, 6, None, False, intercept)
    ridges = np.array([1e-3, 1e-2, 1e-1, 1.0])
    twin = RidgeCV(N * ridges, fit_intercept=intercept, store_cv_results=True).fit(F, Y[:, 0])
    fits = setting.solve(moments(F, Y, np.ones(N)), list(ridges), scores=True)
    scores = [fit.solution.gcv for fit in fits]
    np.testing.assert_allclose(scores, twin.cv_results_.mean(axis=0), rtol=1e-8)
    assert twin.alpha_ == N * ridges[np.argmin(scores)]


RIDGES = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]


@both
@pytest.mark.parametrize("criterion", ["gcv", "evidence"])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_ridge_per_output_is_every_outputs_own_choice(criterion, gaps, intercept):
    case = Case.of("identity", gaps=gaps, intercept=intercept)
    fit = case.setting.solve_each(case.parts, RIDGES, criterion)
    G = RNG.standard_normal((4, 2 * D))
    found = case.setting.posterior(case.parts, fit)
    single = Setting(kernels.Decomposable(kernels.Gaussian(0.7)), 3, 2 * D, case.setting.density, False, intercept)
    evidence = 0.0
    for target in range(3):
        there = np.isfinite(case.Y[:, target])
        parts = moments(case.F[there], case.Y[there][:, [target]], np.ones(there.sum()))
        # A ridge is per row of the whole.
        fits = single.solve(parts, [ridge * N / there.sum() for ridge in RIDGES], scores=True)
        best = int(np.argmin([one.solution.gcv if criterion == "gcv" else -one.log_evidence for one in fits]))
        assert fit.solution.ridges[target] == RIDGES[best]
        np.testing.assert_allclose(fit.W[:, target], fits[best].W[:, 0], rtol=1e-8)
        np.testing.assert_allclose(fit.noise[target, target], fits[best].noise[0, 0], rtol=1e-8)
        alone = single.posterior(parts, fits[best]).variance(G)[:, 0]
        np.testing.assert_allclose(found.variance(G)[:, target], alone, rtol=1e-8)
        evidence += fits[best].log_evidence
    assert fit.log_evidence == pytest.approx(evidence, rel=1e-9)
    assert fit.solution.ridge == pytest.approx(np.exp(np.log(fit.solution.ridges).mean()))
    again = case.setting.solve(case.parts, [fit.solution.ridges])[0]
    np.testing.assert_array_equal(again.solution.h, fit.solution.h)


def test_a_ridge_per_eigenvector_is_that_of_rotated_targets():
    """k0 A in the eigenvectors of A is independent outputs, each with its eigenvalue in the ridge."""
    case = Case.of("coupled")
    fit = case.setting.solve_each(case.parts, RIDGES, "gcv")
    values, V = np.linalg.eigh(COUPLED)
    single = Setting(kernels.Decomposable(kernels.Gaussian(0.9)), 3, 2 * D, case.setting.density, False, True)
    chosen = []
    for number, value in enumerate(values):
        parts = moments(case.F, case.Y @ V[:, [number]], np.ones(N))
        fits = single.solve(parts, [ridge / value for ridge in RIDGES], scores=True)
        best = int(np.argmin([one.solution.gcv for one in fits]))
        chosen.append(RIDGES[best])
        np.testing.assert_allclose(fit.W @ V[:, number], fits[best].W[:, 0], atol=1e-8)
    assert sorted(fit.solution.ridges) == sorted(chosen)


def test_ridges_of_eigenvectors_have_one_noise_a_target_too():
    """The prior of each direction is tied to its own noise, as the fit has it; targets keep a noise each."""
    case = Case.of("coupled", intercept=False)
    fit = case.setting.solve_each(case.parts, [1e-4, 1e-3, 1e-2], "evidence")
    V, n = output_directions(fit.weights.root[0]), len(case.F)
    values = np.diag(V.T @ COUPLED @ V)
    np.testing.assert_allclose((V * values) @ V.T, COUPLED, atol=1e-12)
    ridges, variance = fit.solution.ridges, fit.solution.variance
    assert len(set(ridges)) > 1
    D = np.diag(fit.noise)
    S = case.F @ case.F.T / n
    prior = D.mean() * np.kron(S, (V * (values * variance / variance.mean() / ridges)) @ V.T)
    K, y = prior + np.kron(np.eye(n), np.diag(D)), case.Y.ravel()
    assert fit.log_evidence == pytest.approx(float(multivariate_normal(np.zeros(3 * n), K).logpdf(y)), rel=1e-8)
    estimate = np.kron(S, (V * (values / ridges)) @ V.T)  # with one noise
    L = estimate @ np.linalg.inv(estimate + np.eye(3 * n))
    wanted = prior - L @ prior - prior @ L.T + L @ K @ L.T
    found = case.setting.posterior(case.parts, fit).covariance(case.F)
    wanted = np.array([wanted[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(n)])
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9 * wanted.max())


def test_a_ridge_per_output_is_refused_where_outputs_hang_together():
    for name, options in [
        ("curl trace", {}), ("two scalars", {}), ("identity", {"C": MIXED}), ("coupled", {"gaps": True})
    ]:  # fmt: skip
        case = Case.of(name, **options)
        with pytest.raises(InputError, match=r"ridge_per_output: needs a kernel that is one scalar"):
            case.setting.solve_each(case.parts, RIDGES, "gcv")
        with pytest.raises(InputError, match=r"ridge_per_output: needs a kernel that is one scalar"):
            case.setting.solve(case.parts, [np.ones(3)])


def test_evidence_does_not_depend_on_units_nor_on_the_shift():
    """Targets in other units, each its own: the density falls by a factor for each entry; standardizing sees none."""
    case = Case.of("identity", standardize=True)
    units = np.array([1e-3, 1.0, 250.0])
    (fit,) = case.setting.solve(case.parts, [RIDGE], scores=True)
    (other,) = case.setting.solve(moments(case.F, case.Y * units, case.weights), [RIDGE], scores=True)
    assert other.log_evidence == pytest.approx(fit.log_evidence - (N - 1) * np.log(units).sum(), rel=1e-9)
    np.testing.assert_allclose(other.noise, fit.noise * np.outer(units, units), rtol=1e-9)


def test_a_target_that_does_not_vary_and_one_seen_once():
    F, Y, setting, _ = data(True, q=2)
    Y[:, 1] = 0.4
    (fit,) = setting.solve(moments(F, Y, np.ones(N)), [RIDGE], scores=True)
    assert fit.noise[1, 1] < 1e-30 and np.isfinite(fit.log_evidence) and not fit.solution.ill_conditioned
    Y[1:, 1] = np.nan
    parts = moments(F, Y, np.ones(N))
    (fit,) = setting.solve(parts, [RIDGE], scores=True)
    (alone,) = Setting(setting.kernel, 3, 6, None, False, True).solve(
        moments(F, Y[:, :1], np.ones(N)), [RIDGE], scores=True
    )
    assert fit.noise[1, 1] == 0.0 and fit.log_evidence == pytest.approx(alone.log_evidence, rel=1e-9)
    assert setting.posterior(parts, fit).variance(F).shape == (N, 2)


def test_a_target_seen_once_tells_no_noise_where_outputs_hang_together_either():
    case = Case.of("coupled")
    case.Y[1:, 2] = np.nan
    (fit,) = case.setting.judged(case.parts, case.setting.solve(case.parts, [RIDGE]))
    noise = np.diag(fit.noise)
    assert noise[2] == 0.0 and np.all(noise[:2] > 0.01)


LONG = np.longdouble


def least_squares(A, b):
    """min |A x - b| by Householder reflections in long double."""
    A, b = A.astype(LONG), b.astype(LONG)
    for j in range(A.shape[1]):
        v = A[j:, j].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        size = v @ v
        A[j:, j:] -= np.outer(v, 2 / size * (v @ A[j:, j:]))
        b[j:] -= np.outer(v, 2 / size * (v @ b[j:]))
    x = np.zeros((A.shape[1], b.shape[1]), LONG)
    for j in reversed(range(len(x))):
        x[j] = (b[j] - A[j, j + 1 :] @ x[j + 1 :]) / A[j, j]
    return x


def graded(kind, rows, m):
    """Features whose singular values fall over nine orders; nearly constant ones: what centring leaves is 1e-6."""
    rng = np.random.default_rng(2)
    U, V = np.linalg.qr(rng.standard_normal((rows, m)))[0], np.linalg.qr(rng.standard_normal((m, m)))[0]
    spread = (U * 10.0 ** -np.linspace(0, 9, m)) @ V * np.sqrt(rows)
    return spread if kind == "graded" else 1.0 + 1e-3 * spread


@pytest.mark.parametrize("noise", [0.0, 1.0], ids=["smooth", "noise"])
@pytest.mark.parametrize("kind", ["graded", "nearly constant"])
@pytest.mark.parametrize("route", [Accumulator, TriangleAccumulator], ids=["gram", "qr"])
def test_stated_digits_are_right_and_no_residual_is_too_small(route, kind, noise):
    """From condition 1e2 to 1e18, against long double: fitted values, GCV and noise variance."""
    n, m, rng = 80, 14, np.random.default_rng(0)
    F = graded(kind, n, m)
    exact = F.astype(LONG) - F.astype(LONG).mean(axis=0)
    Y = (1 - noise) * exact @ rng.standard_normal((m, 1)) / np.linalg.norm(exact.astype(float)) * n**0.5
    Y = (Y + noise * rng.standard_normal((n, 1))).astype(float)
    sums = route(m, 1, np.zeros(1))
    sums.add(np.column_stack([F, np.ones(n), Y]))
    setting = Setting(kernels.Decomposable(kernels.Polynomial(2)), 3, m, None, False, True)
    values, y = np.linalg.svd(exact.astype(float), compute_uv=False) ** 2, Y - Y.astype(LONG).mean()
    stated, errors = [], []
    for exponent in range(2, 19, 2):
        ridge = values[0] / n * 10.0**-exponent
        (fit,) = setting.solve([sums.moments()], [ridge], scores=True)
        penalty = np.sqrt(LONG(ridge) * n) * np.eye(m, dtype=LONG)
        x = least_squares(np.vstack([exact, penalty]), np.vstack([y, np.zeros((m, 1))]))
        errors.append(np.linalg.norm((exact @ (fit.solution.h - x)).astype(float)) / np.linalg.norm(Y))
        stated.append(fit.solution.digits)
        assert errors[-1] <= 10.0 ** -stated[-1] or stated[-1] == 0.0
        residual = float(np.sum((y - exact @ x) ** 2))
        left = 1 - (1 + np.sum(values / (values + n * ridge))) / n
        assert fit.solution.gcv >= 0.5 * residual / n / left**2
        assert fit.noise[0, 0] >= 0.5 * residual / (n - 1)
        if stated[-1] > 8:
            wanted = (residual + n * ridge * float(np.sum(x**2))) / (n - 1)
            assert fit.noise[0, 0] == pytest.approx(wanted, rel=1e-3)
    assert stated[0] > 6 and all(a >= b for a, b in pairwise(stated))
    if route is Accumulator:  # and it is not by much too careful
        assert stated[-1] == 0.0
        assert all(error > 10.0 ** (-digits - 5) for error, digits in zip(errors, stated, strict=True) if digits > 0)
    else:
        assert fit.solution.rung == "qr" and stated[-1] > 2


@pytest.mark.parametrize(("name", "options"), CASES[:-1], ids=IDS[:-1])
def test_triangles_say_the_same(name, options):
    """Evidence, noise and posterior from the QR of the rows."""
    case = Case.of(name, **options)
    triangles = case.sums(TriangleAccumulator)
    (fit,), (wanted,) = (case.setting.solve(parts, [RIDGE], scores=True) for parts in (triangles, case.parts))
    assert fit.solution.rung == "qr"
    assert fit.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-10)
    np.testing.assert_allclose(fit.noise, wanted.noise, rtol=1e-9, atol=1e-12)
    G = RNG.standard_normal((3, 2 * D))
    variances = (case.setting.posterior(parts, fit).variance(G) for parts in (triangles, case.parts))
    np.testing.assert_allclose(*variances, rtol=1e-9)


def test_systems_wider_than_lapack_counts_are_refused_before_they_are_formed():
    assert LARGEST_DIRECT**2 < 2**31 <= (LARGEST_DIRECT + 1) ** 2
    workspace = [1 + 6 * k + 2 * k**2 for k in (LARGEST_EVD, LARGEST_EVD + 1)]
    assert workspace[0] < 2**31 <= workspace[1]
    m, p = 400, 116  # 46400 unknowns, 17 GB
    weights = OperatorWeights(np.ones(m), np.ones((m, p, 1)) * np.eye(p))
    sums = Accumulator(m, p, np.zeros(p))
    sums.add(np.ones((2, m + 1 + p)))
    with pytest.raises(InputError, match=r"features.count: the system has 46400 unknowns.*46340; .*solve.route: cg"):
        Problem.of(sums.moments(), weights)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] != "learned"])
def test_route_cg_is_the_same_fit_without_scores(name, options):
    case = Case.of(name, **options)
    cg = replace(case.setting, method="cg")
    (fit,), (wanted,) = cg.solve(case.parts, [RIDGE]), case.setting.solve(case.parts, [RIDGE])
    assert fit.solution.rung == "cg" and fit.solution.converged and fit.solution.digits > 8
    np.testing.assert_allclose(fit.W, wanted.W, atol=1e-8 * np.abs(wanted.W).max())
    np.testing.assert_allclose(fit.bias, wanted.bias, atol=1e-8 * np.abs(wanted.bias).max())
    left = np.where(np.isfinite(case.Y), case.Y - (case.F @ fit.W + fit.bias) @ case.C.T, 0.0) / case.scale
    entries = np.isfinite(case.Y).sum(axis=0) - 1
    each, mean = case.weights @ left**2 / entries, wanted.solution.variance
    mean = mean[0] if len(mean) == 1 else np.average(mean, weights=entries)
    freedom = min(1 - np.average(each, weights=entries) / mean, fit.solution.h.size / entries.sum())
    each /= 1 - freedom
    noise = cg.noised(case.parts, fit).noise
    np.testing.assert_allclose(noise, np.diag(each * case.scale**2 / case.mean_weight), rtol=1e-6, atol=1e-12)


def test_at_ridge_zero_there_is_a_posterior_only_where_the_data_say_everything():
    F, Y, setting, parts = data()
    (fit,) = setting.solve(parts, [0.0], scores=True)
    variance = setting.posterior(parts, fit).variance(F)[:, 0]
    np.testing.assert_allclose(variance, fit.noise[0, 0] * np.diag(F @ np.linalg.solve(F.T @ F, F.T)), rtol=1e-9)
    assert fit.log_evidence == -np.inf
    F[:, 1] = 0.0
    parts = moments(F, Y, np.ones(N))
    (fit,) = setting.solve(parts, [0.0])
    with pytest.raises(InputError, match="give a ridge above 0"):
        setting.posterior(parts, fit)


@pytest.mark.parametrize(("name", "options"), [("coupled", {}), ("identity", {"gaps": True}), ("curl trace", {})])
def test_a_constant_factor_of_all_weights_changes_nothing(name, options):
    case = Case.of(name, weighted=True, **options)
    found = []
    for factor in (1.0, 1e6):
        parts = replace(case, weights=factor * case.weights).parts
        (fit,) = case.setting.solve(parts, [RIDGE])
        fit = case.setting.noised(parts, fit)
        known = case.setting.posterior(parts, fit)
        found.append([fit.W, fit.noise, known.noise, known.covariance(case.F[:3])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-10 * np.abs(one).max())


# --- targets of unequal noise ------------------------------------------------------------------------------------

TIED = np.array([[2.0, 0.7], [0.7, 1.0]])
RATES = list(np.logspace(-8, -3, 11))
SCALAR = kernels.Gaussian(0.6)
CURL = kernels.CurlFree(SCALAR) * 0.36


def field(kind: str, n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Inputs in the square, and a function drawn from the process of 300 other frequencies: a gradient, or outputs of
    covariance TIED."""
    rng = np.random.default_rng(seed)
    X, omega, phase = rng.uniform(-1, 1, (n, 2)), rng.standard_normal((300, 2)) / 0.6, rng.uniform(0, 2 * np.pi, 300)
    angle, h = X @ omega.T + phase, rng.standard_normal((300, 2)) / np.sqrt(150)
    if kind == "gradient":
        return X, -0.6 * (np.sin(angle) * h[:, 0]) @ omega
    return X, np.cos(angle) @ h @ np.linalg.cholesky(TIED).T


def best_evidence(kernel, X, Y, **options) -> float:
    fitted = ORFFRegressor(kernel, 200, ridge=RATES, criterion="evidence", **options).fit(X, Y)
    return float(fitted.log_evidences_.max())


@pytest.mark.statistical
@pytest.mark.parametrize("noises", [(0.1, 1.0), (1.0, 0.1), (0.3, 0.3)])
def test_evidence_finds_the_kernel_of_the_truth_whatever_the_noises(noises):
    """With one noise variance for fields, and one an output for others, a gradient with noises 0.1 and 1 counted as
    independent outputs, by hundreds of nats."""
    candidates = {
        "gradient": CURL,
        "tied": kernels.Decomposable(SCALAR, TIED),
        "apart": kernels.Decomposable(SCALAR, "identity"),
    }
    for truth, other, margin in (("gradient", "apart", 20), ("gradient", "tied", 20), ("tied", "gradient", 300)):
        X, f = field(truth, 500, 1)
        Y = f + np.array(noises) * np.random.default_rng(2).standard_normal(f.shape)
        assert best_evidence(candidates[truth], X, Y) > best_evidence(candidates[other], X, Y) + margin


@pytest.mark.parametrize("standardize", [False, True])
def test_a_kernel_has_the_same_evidence_however_it_is_written(standardize):
    """Independent outputs as they are, as two almost equal scalars, and by a matrix that ties them by next to
    nothing: whether the system falls apart is not what evidence compares. Of one matrix and fields, the same."""
    X, f = field("tied", 300, 3)
    Y = f + np.array([0.05, 0.4]) * np.random.default_rng(4).standard_normal(f.shape)
    found = frequencies.Orthogonal().draw(kernels.Decomposable(SCALAR), d=2, p=2, count=60, seed=2)
    F = plain_map(found.omega).transform(X)
    near = kernels.Gaussian(0.6 * (1 + 1e-10))
    for output in (np.eye(2), TIED):
        plain = kernels.Decomposable(SCALAR, output)
        hair = kernels.Decomposable(SCALAR, output + 1e-11 * np.array([[0.0, 1.0], [1.0, 0.0]]))
        values = []
        for kernel in (plain, 0.5 * plain + 0.5 * kernels.Decomposable(near, output), hair):
            density = (found.omega, found.log_density, None)
            setting = Setting(kernel, 2, 120, density, standardize, True)
            (fit,) = setting.solve(moments(F, Y, np.ones(len(X))), [1e-4], scores=True)
            values.append(fit.log_evidence)
        np.testing.assert_allclose(values, values[0], atol=1e-4)


MIX = np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5]])
BANDS = {
    "matrix": ("tied", kernels.Decomposable(SCALAR, TIED), {}),
    "matrix, weighed": ("tied", kernels.Decomposable(SCALAR, TIED), {"weighted": True, "standardize": True}),
    "matrix, origin": ("tied", kernels.Decomposable(SCALAR, TIED), {"intercept": False}),
    "matrix, evidence": ("tied", kernels.Decomposable(SCALAR, TIED), {"criterion": "evidence"}),
    "matrix, folds": ("tied", kernels.Decomposable(SCALAR, TIED), {"cv": 3}),
    "matrix, observed": ("tied", kernels.Decomposable(SCALAR, TIED), {"observe": MIX}),
    "matrix, gaps": ("tied", kernels.Decomposable(SCALAR, TIED), {"missing": "partial"}),
    "covariance": ("tied", kernels.Decomposable(SCALAR, "covariance"), {"criterion": "evidence"}),
    "learned": ("tied", kernels.Decomposable(SCALAR, "learned"), {}),
    "identity": ("tied", kernels.Decomposable(SCALAR, "identity"), {"criterion": "evidence"}),
    "curl": ("gradient", CURL, {}),
    "curl, weighed": ("gradient", CURL, {"weighted": True, "standardize": True, "criterion": "evidence"}),
    "curl, observed": ("gradient", CURL, {"observe": MIX, "intercept": False}),
    "helmholtz": ("gradient", CURL + 0.1 * kernels.DivergenceFree(SCALAR), {"cv": 3}),
}  # fmt: skip


@pytest.mark.statistical
@pytest.mark.parametrize("name", BANDS)
def test_noise_and_bands_are_right_for_each_target(name):
    """Noises that differ by six: each within its error, and bands of new targets that hold what they say."""
    truth, kernel, options = BANDS[name]
    n, m = 1500, 4000
    (X, f), rng, options = field(truth, n + m, 5), np.random.default_rng(6), dict(options)
    w = rng.gamma(2.0, 0.5, n) if options.pop("weighted", False) else np.ones(n)
    f = f @ MIX.T if "observe" in options else f
    noises = np.array([0.05, 0.3, 0.1])[: f.shape[1]]
    Y = f + noises * rng.standard_normal(f.shape)
    Y[:n] = f[:n] + (Y[:n] - f[:n]) / np.sqrt(w)[:, None]
    given = Y[:n].copy()
    if "missing" in options:
        given[::3, 0] = np.nan
    fitted = ORFFRegressor(kernel, 300, ridge=RATES, **options).fit(X[:n], given, sample_weight=w)
    # One ridge is too much for the clean one of outputs apart, whose bias counts as noise.
    tolerance = 0.13 if name == "identity" else 0.08
    np.testing.assert_allclose(np.sqrt(np.diag(fitted.noise_) * w.mean()), noises, rtol=tolerance)
    mean, std = fitted.posterior_model_.predict(X[n:]), fitted.predict(X[n:], return_std=True, noise=True)[1]
    values = mean if fitted.model_.observe is None else mean @ fitted.model_.observe.T
    std = np.sqrt(std**2 + np.diag(fitted.noise_) * (w.mean() - 1.0))  # of a row of weight 1
    for level, z in ((0.5, 0.67449), (0.95, 1.95996)):
        inside = np.mean(np.abs(Y[n:] - values) <= z * std, axis=0)
        np.testing.assert_allclose(inside, level, atol=0.05 if level == 0.5 else 0.03)


def test_one_spectrum_serves_all_ridges_where_columns_are_apart(monkeypatch):
    case, eigh, sizes = Case.of("identity"), scipy.linalg.eigh, []

    def counted(G, **options):
        sizes.append(len(G))
        return eigh(G, **options)

    monkeypatch.setattr(scipy.linalg, "eigh", counted)
    fits = case.setting.solve(case.parts, [1e-4, 1e-3, 1e-2], scores=True)
    assert len(fits) == 3 and sizes.count(2 * D) == 1


@pytest.mark.parametrize("name", ["coupled", "curl trace"])
def test_steps_towards_the_noise_end_close_to_where_they_lead(name, monkeypatch):
    case = Case.of(name)
    (fit,) = case.setting.solve(case.parts, [RIDGE])
    (found,) = select.noise_models(case.parts, [case.setting.reweighed(case.parts, fit)])
    monkeypatch.setattr(select, "CLOSE", 1e-12)
    monkeypatch.setattr(select, "STEPS", 2000)
    (last,) = select.noise_models(case.parts, [case.setting.reweighed(case.parts, fit)])
    np.testing.assert_allclose(found.variance, last.variance, rtol=2e-3)


def test_a_step_towards_the_noise_makes_no_variance_less_than_a_thousandth():
    """From a first that is far too small: the others' are left equal, for a few more steps."""
    case = Case.of("coupled")
    fits = case.setting.solve(case.parts, [RIDGE])
    trial, noise = case.setting.reweighed(case.parts, fits[0]), np.array([1e-8, 1.0, 3.0])
    _, step = select._stepped(trial.weighed(noise), case.parts, trial.ridge)
    change = step / noise
    assert change[1] == pytest.approx(change[2], rel=1e-9)
    assert 1e3 < change[0] / change[1] < 1e4


def test_no_variance_counts_as_less_than_a_part_in_ten_thousand_millions_of_their_mean():
    found = select.relative_noise(np.array([0.0, 3.0, 1e-7, 5.0]), np.array([10.0, 10.0, 10.0, 0.0]))
    mean = 3.0000001 / 30
    np.testing.assert_allclose(found, [1e-10, 0.3 / mean, 1e-8 / mean, 1.0], rtol=1e-9)
