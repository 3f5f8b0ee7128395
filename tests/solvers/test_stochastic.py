"""Evidence and GCV by random vectors, of sums over a lattice, against those of the same sums written out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from quick import slow

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.kernels import OperatorKernel
from dorff.moments import LatticeMoments, ToeplitzAdder
from dorff.passes.blocks import extents_of
from dorff.solvers import Fit, Setting, stochastic, uncertainty
from dorff.solvers.cg import iterate
from dorff.solvers.setting import CG

N, ROOT = 20_000, np.array([[1.0, 0.4], [0.4, 2.0]])
SCALAR = kernels.Matern(0.3, nu=2.5)
KERNELS: dict[str, OperatorKernel] = {
    "identity": kernels.Decomposable(SCALAR),
    "matrix": kernels.Decomposable(SCALAR, ROOT),
    "divergence-free": kernels.DivergenceFree(SCALAR),
    "helmholtz": kernels.CurlFree(SCALAR) * 0.4 + kernels.DivergenceFree(SCALAR) * 0.6,
}
WAYS = ("plain", "weights", "origin", "missing", "observe")


def case(kernel: OperatorKernel, way: str, *, error: float = 2e-1) -> tuple[list, Setting]:
    """Sums over a lattice, of each pattern of targets, and a setting that iterates."""
    rng, intercept = np.random.default_rng(1), way != "origin"
    X = rng.uniform(0, 1, (N, 2)) ** 1.5
    Y = np.column_stack([np.sin(5 * X[:, 0]) * X[:, 1], 3 * np.cos(4 * X[:, 1])])
    Y += rng.standard_normal((N, 2)) * [0.1, 0.5]
    Y = Y[:, :1] if way == "one" else Y
    w = rng.uniform(0.2, 2.0, N) if way == "weights" else np.ones(N)
    sampler = frequencies.Lattice(error).over(np.ones(2), constant=not intercept)
    drawn = sampler.draw(kernel, d=2, p=2, count=4000, seed=0)
    modes, parts, y0 = drawn.transform, [], Y.mean(axis=0)
    assert isinstance(modes, frequencies.Modes)
    groups = np.arange(N) % 3 if way == "missing" else np.full(N, 2)
    for group, word in enumerate(("10", "01", "11")):
        at, mask = groups == group, np.array([letter == "1" for letter in word[: Y.shape[1]]])
        if at.any():
            sums = ToeplitzAdder(
                extents_of(modes), Y.shape[1], y0, tolerance=1e-12, observed="" if mask.all() else word
            )
            theta = X[at] * modes.step
            theta -= 2 * np.pi * np.round(theta / (2 * np.pi))
            sums.add(np.column_stack([theta, w[at], np.where(mask, Y[at] - y0, 0.0)]))
            parts.append(LatticeMoments.of(sums.moments()).on(modes.modes, modes.extents))
    observe = {
        "observe": np.array([[1.0, 1.0], [0.0, 1.0]]),
        "one": np.array([[1.0, 0.5]]),
        "two of one": np.array([[1.0], [0.5]]),
    }.get(way)
    density = (drawn.omega, drawn.log_density, None)
    return parts, Setting(kernel, 2, 2 * modes.D, density, False, intercept, observe, method=CG)


def twins(parts: list[LatticeMoments], setting: Setting, ridge: float) -> tuple[Fit, Fit]:
    (found,) = setting.solve(parts, [ridge], scores=True)
    (wanted,) = replace(setting, method="direct").solve([part.gram() for part in parts], [ridge], scores=True)
    return found, wanted


CASES = [
    *((name, "plain", 1e-2) for name in KERNELS),
    *(("identity", way, 1e-2) for way in WAYS[1:]),
    *(("identity", "plain", ridge) for ridge in (1e-5, 1e-8)),
    *slow(*(("divergence-free", way, 1e-2) for way in WAYS[1:])),
    *slow(*(("divergence-free", "plain", ridge) for ridge in (1e-5, 1e-8))),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "way", "ridge"), CASES)
def test_it_is_the_evidence(name: str, way: str, ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its standard errors where the factored block is a part of the system, and with the same noise."""
    parts, setting = case(KERNELS[name], way)
    unknowns = setting.m * (2 if name == "helmholtz" else 1)
    monkeypatch.setattr(stochastic, "HEAVY", int((0.5 if ridge > 1e-4 else 0.9) * unknowns))
    found, wanted = twins(parts, setting, ridge)
    error = found.solution.error
    assert 1e-3 < error < 1e-3 * N
    assert abs(found.log_evidence - wanted.log_evidence) < 4 * error
    assert 1e-9 * wanted.solution.gcv < found.solution.gcv_error < 1e-2 * wanted.solution.gcv
    assert abs(found.solution.gcv - wanted.solution.gcv) < 4 * found.solution.gcv_error
    np.testing.assert_allclose(found.noise_variance, wanted.noise_variance, rtol=0.2)


@pytest.mark.statistical
def test_it_is_exact_where_all_is_factored_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the noise, by which an evidence at its greatest hardly changes."""
    parts, setting = case(KERNELS["helmholtz"], "weights")
    found, wanted = twins(parts, setting, 1e-4)
    assert found.solution.error < 1e-8
    assert abs(found.log_evidence - wanted.log_evidence) < 0.05
    assert abs(found.solution.gcv - wanted.solution.gcv) < 1e-8 and found.solution.gcv_error < 1e-8
    monkeypatch.setattr(stochastic, "HEAVY", 100)
    first, again = (setting.solve(parts, [1e-2], scores=True)[0] for _ in range(2))
    assert first.log_evidence == again.log_evidence and first.solution.error > 0


def test_the_error_falls_with_more_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "HEAVY", 32)
    parts, setting = case(KERNELS["identity"], "plain")
    few, many = [], []
    for errors, probes in ((few, 8), (many, 128)):
        monkeypatch.setattr(stochastic, "PROBES", probes)
        errors.append(setting.solve(parts, [1e-3], scores=True)[0].solution.error)
    assert 0.1 < many[0] / few[0] < 0.6  # about a quarter


def test_scores_are_as_far_from_what_is_exact_as_their_standard_errors_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root mean square over estimates of their own vectors each is within a third of 1, where its own standard
    error is a seventh."""
    monkeypatch.setattr(stochastic, "HEAVY", 8)
    parts, setting = case(KERNELS["identity"], "plain")
    exact, of, apart = twins(parts, setting, 1e-3)[1].solution.gcv, prepared(parts, setting, []), []
    for probes in range(12, 36):  # another number of them is another draw
        monkeypatch.setattr(stochastic, "PROBES", probes)
        solution = stochastic.estimated(of, 1e-3).solution
        apart.append((solution.gcv - exact) / solution.gcv_error)
    assert 2 / 3 < np.sqrt(np.mean(np.square(apart))) < 4 / 3


def test_what_does_not_converge_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "HEAVY", 2)
    monkeypatch.setattr(stochastic, "MOST_STEPS", 5)
    parts, setting = case(KERNELS["identity"], "plain")
    (fit,) = setting.solve(parts, [1e-6], scores=True)
    assert fit.log_evidence == -np.inf and fit.solution.error == np.inf
    assert fit.solution.gcv == fit.solution.gcv_error == np.inf


@pytest.mark.parametrize("name", ["identity", "divergence-free"])
def test_each_vector_gives_what_the_matrices_written_out_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "HEAVY", 16)
    parts, setting = case(KERNELS[name], "weights")
    of = setting._preconditioned(setting.weights(setting.fixed(parts)), parts, np.ones(2))
    k, a, shift = of.system.size, float(of.system.a[0]), 1e-3 * of.system.problem.l
    G = a * of.system.apply(np.eye(k), np.zeros(k, int))
    inside = np.ix_(of.inverse._at, of.inverse._at)
    np.testing.assert_allclose(a * of.inverse._block, G[inside], atol=1e-9 * np.abs(G).max())
    A, (L, log_det) = G + shift * np.eye(k), of.inverse.root(np.eye(k), a, shift)
    assert abs(log_det - np.linalg.slogdet(L @ L.T / shift)[1]) < 1e-9 * k
    w, at = np.random.default_rng(5).choice([-1.0, 1.0], (k, 3)), np.zeros(3, int)
    x, logs = stochastic._traced(of, L @ w, at, shift)
    B = np.linalg.solve(L, np.linalg.solve(L, A).T)
    values, vectors = np.linalg.eigh((B + B.T) / 2)
    np.testing.assert_allclose(logs, np.log(values) @ (vectors.T @ w) ** 2, rtol=1e-4)
    np.testing.assert_allclose(x, np.linalg.solve(A, L @ w), atol=1e-2 * np.abs(x).max())
    assert of.inverse.trace(a, shift) == pytest.approx(np.trace(np.linalg.inv(L @ L.T)), rel=1e-9)
    np.testing.assert_allclose(of.inverse.solve(L @ w, np.full(3, a), shift), np.linalg.solve(L.T, w), rtol=1e-6)
    shares = of.system.shares(w, w, at).sum(axis=0)
    np.testing.assert_allclose(a * shares, np.einsum("kn,kj,jn->n", w, G, w), rtol=1e-9)


def prepared(parts: list[LatticeMoments], setting: Setting, ridges: Sequence[float]) -> stochastic.Preconditioned:
    return setting._preconditioned(setting.weights(setting.fixed(parts)), parts, np.ones(2), ridges)


@pytest.mark.parametrize(("name", "error"), [("identity", 2e-3), ("divergence-free", 1e-1)])
def test_what_is_factored_follows_from_the_ridges(name: str, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """More for smaller ridges, and all in the end; and as much as may be where steps would be too many else."""
    parts, setting = case(KERNELS[name], "plain", error=error)
    m, every = setting.m, [1.0, 1e-2, 1e-12]
    monkeypatch.setattr(stochastic, "HEAVY", 2 * m)
    sizes = [len(prepared(parts, setting, [ridge]).inverse._at) for ridge in every]
    assert sizes[0] < sizes[1] <= sizes[2] == m and sizes[0] < m // 4
    assert sizes[0] <= len(prepared(parts, setting, every).inverse._at) <= m
    assert len(prepared(parts, setting, []).inverse._at) == m
    monkeypatch.setattr(stochastic, "HEAVY", m // 4)
    sizes = [len(prepared(parts, setting, [ridge]).inverse._at) for ridge in every]
    assert sizes[0] <= sizes[1] <= sizes[2] and abs(sizes[2] - m // 4) <= 2
    system, inverse = prepared(parts, setting, every[1:2])
    assert iterate(system, every[1], inverse, tolerance=1e-12).iterations < 200
    most = [inverse._diagonal[rows].max() for rows in (inverse._at, np.arange(system.size))]
    assert most[0] == most[1] > 3.0 * np.delete(inverse._diagonal, inverse._at).max()


@pytest.mark.parametrize(("ridge", "factored"), [(1e-2, 32), (1e-4, 32), *slow((1e-8, 256))])
def test_it_stops_where_rounding_hides_the_rest(ridge: float, factored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the digits that more steps would say, and nearer to the solution than these, and than 1e-6."""
    monkeypatch.setattr(stochastic, "HEAVY", factored)
    parts, setting = case(KERNELS["identity"], "plain", error=2e-3)
    system, inverse = prepared(parts, setting, [])
    early, late = (iterate(system, ridge, inverse, tolerance=tolerance) for tolerance in (None, 1e-13))
    shift, apart = ridge * system.problem.l, early.solved.x - late.solved.x
    error = np.sum(apart * system.apply(apart, np.arange(2))) + shift * np.sum(apart**2)
    energy, most = np.sum(late.solved.x * system.rhs), 0.1 * 10.0 ** -max(early.solution.digits, 5.0)
    assert early.iterations < late.iterations and early.solution.converged
    assert early.solution.digits == pytest.approx(late.solution.digits, abs=1e-6)
    assert np.sqrt(error / energy) < most
    assert early.errors[-1] * np.sqrt(inverse.slack(system.a, shift)) <= 1.001 * most


class Columns:
    """Instead of normal vectors the columns of the identity, so large that their products' mean is it again."""

    def __init__(self, seed: int) -> None:
        self._normal = RANDOM(seed)

    def standard_normal(self, shape: tuple[int, int]) -> np.ndarray:
        return self._normal.standard_normal(shape) if shape[1] == 1 else np.sqrt(shape[0]) * np.eye(*shape)


RANDOM = np.random.default_rng
SURE = [
    *((name, "plain", 1e-2) for name in list(KERNELS)[:2]),
    *slow(*((name, "plain", 1e-2) for name in list(KERNELS)[2:])),
    *(("identity", way, 1e-2) for way in (*WAYS[1:], "one", "two of one")),
    ("matrix", "missing", 1e-2),
    ("identity", "plain", 1e-8),
    *slow(*((name, way, 1e-3) for name in list(KERNELS)[1:] for way in WAYS[1:])),
]


def sure(name: str, way: str, ridge: float) -> tuple[list, Setting, Fit]:
    """Sums, a setting that iterates, and its fit."""
    parts, setting = case(KERNELS[name], way)
    (fit,) = setting.solve(parts, [ridge])
    return parts, setting, setting.noised(parts, fit)


@pytest.mark.parametrize(("name", "way", "ridge"), SURE)
def test_the_posterior_is_that_of_its_samples(
    name: str, way: str, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many as there are unknowns, in directions across each other, nothing is left to chance."""
    parts, setting, fit = sure(name, way, ridge)
    direct = replace(setting, method="direct").posterior([part.gram() for part in parts], fit)
    tied = name != "identity" or way in ("observe", "one", "two of one")
    together = np.count_nonzero(np.any(np.broadcast_to(fit.weights.root, fit.weights.shape) != 0, axis=2))
    together = together if tied else setting.m
    monkeypatch.setattr(stochastic, "HEAVY", int((0.5 if ridge > 1e-4 else 0.9) * together))
    monkeypatch.setattr(np.random, "default_rng", Columns)
    for module, number in ((stochastic, "SAMPLES"), (stochastic, "PROBES"), (uncertainty, "SAMPLES")):
        monkeypatch.setattr(module, number, together)
    found = setting.posterior(parts, fit)
    F = RANDOM(3).standard_normal((20, setting.m))
    wanted = direct.covariance(F)
    np.testing.assert_allclose(found.covariance(F), wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())
    np.testing.assert_allclose(found.variance(F, setting.observe), direct.variance(F, setting.observe), rtol=2e-4)
    np.testing.assert_allclose(found.intercept_covariance, direct.intercept_covariance, rtol=1e-9)


@pytest.mark.parametrize("noise", [-1.0, -0.2])
def test_samples_of_what_is_not_positive_are_refused(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounding may leave a system; seen at the first step, and at the third."""
    monkeypatch.setattr(stochastic, "HEAVY", 20)
    parts, setting = case(KERNELS["divergence-free"], "plain")
    of = setting._preconditioned(setting.weights(setting.fixed(parts)), parts, np.ones(2))
    with pytest.raises(InputError, match=r"deviations need more than 1000 steps .* at the ridge 0.01; raise"):
        stochastic.samples(of, 1e-2, 0, np.array([noise, 1.0]))


def test_samples_at_ridge_0_are_refused() -> None:
    """Of one target, whose noise is found without them, as of others."""
    for way in ("one", "plain"):
        parts, setting, fit = sure("identity", way, 1e-2)
        fit = replace(fit, solution=replace(fit.solution, ridge=0.0))
        with pytest.raises(InputError, match="at ridge 0 what the data do not see has no bounds"):
            setting.posterior(parts, fit)
