"""Descent by batches: slopes against finite differences, optima of other solvers, bits of a resumed run, orders."""

from dataclasses import replace

import numpy as np
import pytest

from dorff.errors import InputError
from dorff.features import Recipe
from dorff.frequencies import IID, GaussQuadrature, Orthogonal
from dorff.kernels import CurlFree, Decomposable, DivergenceFree, Gaussian
from dorff.model.losses import (
    EpsilonInsensitive,
    Hinge,
    Huber,
    Logistic,
    Multinomial,
    Poisson,
    Quantiles,
    SimplexHinge,
    Squared,
)
from dorff.model.weights import operator_weights
from dorff.moments import pinned
from dorff.solvers.descent import (
    Average,
    Constant,
    Cosine,
    Descent,
    DoublyStochastic,
    Expansion,
    InverseTime,
    Point,
    Rates,
    shuffled,
    steepest,
)
from dorff.solvers.minimise import lbfgs
from dorff.solvers.objective import Attempt, Evaluator, LossProblem

GAUSSIAN = Gaussian(1.5)
FIELD = 0.4 * CurlFree(GAUSSIAN) + 0.6 * DivergenceFree(GAUSSIAN)
COUPLED = Decomposable(GAUSSIAN, [[2.0, 0.5], [0.5, 1.0]])


@pytest.fixture(autouse=True)
def one_thread():
    with pinned():
        yield


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    Y = np.stack([np.sin(X[:, 0]) + 0.3 * X[:, 1], np.cos(X[:, 1])], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, 2))


def targets(loss, Y):
    if loss.takes in ("classes", "labels"):
        return np.eye(2)[Y.argmax(axis=1)]
    return np.round(np.exp(Y)) if loss.takes == "counts" else Y


def problem_of(kernel, loss, X, *, m=40, C=None, intercept=True):
    """The features, and the problem with all that L-BFGS wants too."""
    fixed = kernel.fix(2, 2)
    drawn = Recipe(fixed, Orthogonal(), 2, 2, m).draw(0)
    F, weights = drawn.phi.transform(X), operator_weights(fixed, m, drawn.density)
    mean = F.mean(axis=0) if intercept else np.zeros(m)
    S = (F - mean).T @ (F - mean) / len(F)
    C = np.eye(2) if C is None else C
    start = np.zeros(weights.shape[:2]), np.zeros(2)
    return F, LossProblem(loss, weights, C, (), intercept, mean, S, {0: float(len(F))}, start)


def least(problem, F, y, ridge):
    """By L-BFGS, in memory: the state."""
    Z, loss = np.hstack([F, np.ones((len(F), 1))]), problem.loss

    def ask(V, width):
        each, functions = [], V.shape[1] // len(problem.C)
        for number, part in enumerate(np.split(V, functions, axis=1)):
            terms = loss.terms(Z @ part, y, width[number] if isinstance(width, tuple) else width)
            beside = terms.value, terms.smooth, terms.slope**2 / 2, terms.curvature
            each.append(np.vstack([Z.T @ terms.slope, *(one.sum(axis=0) for one in beside)]))
        return {0: np.hstack(each)}

    return lbfgs(Evaluator(problem, ask), [Attempt(ridge)], [problem.start], 1e-10)[0]


def objective(problem, F, y, ridge, h, b):
    V = problem.columns(h, b)
    return problem.loss.terms(F @ V[:-1] + V[-1], y).value.sum() / len(F) + ridge * np.sum(h**2)


def descended(descent, F, y, epochs, batch, point=None):
    point = descent.start() if point is None else point
    for epoch in range(epochs):
        for start, _, order in shuffled(0, epoch, [(0, len(F))]):
            for at in range(0, len(order), batch):
                i = start + order[at : at + batch]
                point = descent.step(point, F[i], y[i], np.ones(len(i)))
    return point


LOSSES = [
    Squared(),
    Huber(0.5),
    EpsilonInsensitive(0.1),
    Poisson(),
    Logistic(),
    Multinomial(),
    Hinge(),
    SimplexHinge(),
    Quantiles((0.3,)),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("kernel", [COUPLED, FIELD], ids=["coupled", "field"])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_slope_is_that_of_the_objective(kernel, loss, intercept):
    """Against central differences of what a batch stands for, away from kinks."""
    X, Y = rows(30)
    C = np.array([[1.0, 0.5], [0.2, 1.0]])
    F, problem = problem_of(kernel, loss, X, m=8, C=C, intercept=intercept)
    y, w, ridge, size = targets(loss, Y), np.linspace(0.5, 2.0, 30), 0.03, 17.0
    descent = Descent(problem, ridge, Rates.of(problem, F, y, ridge=ridge, batch=8), size)
    theta = 0.3 * np.random.default_rng(1).standard_normal(len(descent.start().theta))

    def value(theta):
        h, b = descent.coefficients(theta)
        V = problem.columns(h, b)
        each = loss.terms(F @ V[:-1] + V[-1], y).value.sum(axis=1)
        return (w @ each + ridge * w.sum() * np.sum(h**2)) / size

    eps, slope = 1e-6, descent.slope(theta, F, y, w)
    numeric = [(value(theta + eps * e) - value(theta - eps * e)) / (2 * eps) for e in np.eye(len(theta))]
    if not intercept:
        numeric[-2:] = [0.0, 0.0]
    elif loss.centred:
        numeric[-2:] = numeric[-2:] - np.mean(numeric[-2:])
    assert np.allclose(slope, numeric, atol=1e-6 * np.abs(numeric).max())


@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
@pytest.mark.parametrize(
    ("kernel", "loss", "tolerance"),
    [(COUPLED, Squared(), 1e-4), (FIELD, Squared(), 1e-4), (COUPLED, Multinomial(), 1e-3), (COUPLED, Hinge(), 3e-3)],
    ids=lambda one: getattr(one, "kind", ""),
)
def test_long_runs_come_to_the_least_objective(kernel, loss, tolerance, adam):
    X, Y = rows()
    F, problem = problem_of(kernel, loss, X)
    y, ridge = targets(loss, Y), 1e-3
    rates = Rates.of(problem, F, y, ridge=ridge, batch=32)
    schedule = InverseTime(30.0, 0.5) if loss.kinked else Cosine(60 * 13) if adam else Constant()
    point = descended(Descent(problem, ridge, rates, 32.0, schedule, adam=adam), F, y, 60, 32)
    best = least(problem, F, y, ridge).value
    excess = objective(problem, F, y, ridge, *Descent(problem, ridge, rates, 32.0).coefficients(point.mean)) - best
    assert -1e-6 * best <= excess <= tolerance * (6 if adam else 1)


def test_the_square_comes_to_the_closed_form():
    X, Y = rows()
    F, problem = problem_of(COUPLED, Squared(), X)
    m, r, p = problem.weights.shape
    Phi = np.einsum("na,arp->npar", F, np.broadcast_to(problem.weights.psi, (m, r, p))).reshape(-1, m * r)
    full = np.hstack([Phi, np.tile(np.eye(2), (len(F), 1))])
    system = full.T @ full / len(F) + 1e-2 * np.diag([1.0] * (m * r) + [0.0, 0.0])
    exact = full @ np.linalg.solve(system, full.T @ Y.ravel() / len(F))
    rates = Rates.of(problem, F, Y, ridge=1e-2, batch=32)
    descent = Descent(problem, 1e-2, rates, 32.0)
    h, b = descent.coefficients(descended(descent, F, Y, 100, 32).mean)
    V = problem.columns(h, b)
    assert np.abs(F @ V[:-1] + V[-1] - exact.reshape(-1, 2)).max() < 1e-2


def test_longer_steps_where_it_is_flat_pay():
    X, Y = rows(2000)
    F, problem = problem_of(COUPLED, Squared(), X, m=200)
    rates = Rates.of(problem, F, Y, ridge=1e-6, batch=64)
    none = Rates.of(problem, F[:8], Y[:8], ridge=1e-6, batch=64)  # too few rows to tell a direction
    assert len(none.off) == 0 and 30 < len(rates.off) <= 64
    assert np.allclose(rates.U.T @ rates.U, np.eye(len(rates.off)), atol=1e-6)
    best = least(problem, F, Y, 1e-6).value
    excess = []
    for one in (rates, none):
        descent = Descent(problem, 1e-6, one, 64.0)
        h, b = descent.coefficients(descended(descent, F, Y, 5, 64).mean)
        excess.append(objective(problem, F, Y, 1e-6, h, b) - best)
    assert 0 < 3 * excess[0] < excess[1]


@pytest.mark.parametrize("adam", [False, True])
def test_a_run_that_goes_on_from_its_arrays_has_the_same_bits(adam, tmp_path):
    X, Y = rows(100)
    F, problem = problem_of(FIELD, Huber(), X)
    rates = Rates.of(problem, F, Y, ridge=1e-3, batch=16)
    descent = Descent(problem, 1e-3, rates, 16.0, InverseTime(), Average(first=3), adam=adam)
    batches = [
        start + order[at : at + 16]
        for epoch in range(2)
        for start, _, order in shuffled(5, epoch, [(0, 60), (60, 100)])
        for at in range(0, len(order), 16)
    ]
    whole = half = descent.start()
    for number, i in enumerate(batches):
        whole = descent.step(whole, F[i], Y[i], np.ones(len(i)))
        half = descent.step(half, F[i], Y[i], np.ones(len(i)))
        if number == 4:  # in the middle of a pass
            np.savez(tmp_path / "state.npz", **half.arrays())
            half = Point.of(np.load(tmp_path / "state.npz"))
    assert whole.step == half.step == len(batches)
    for name, value in whole.arrays().items():
        assert value.tobytes() == half.arrays()[name].tobytes()
    assert not np.array_equal(whole.theta, whole.mean)


def test_arrays_that_are_no_state_are_refused():
    with pytest.raises(InputError, match="state: wanted arrays theta, mean, first, second and step"):
        Point.of({"theta": np.zeros(2)})


def test_rows_are_shuffled_by_seed_and_pass_alone():
    shards = [(0, 7), (7, 12), (12, 30)]
    seen = [(a, b, order.tolist()) for a, b, order in shuffled(3, 1, shards)]
    assert seen == [(a, b, order.tolist()) for a, b, order in shuffled(3, 1, shards)]
    assert sorted((a, b) for a, b, _ in seen) == shards
    assert all(sorted(order) == list(range(b - a)) for a, b, order in seen)
    assert seen != [(a, b, order.tolist()) for a, b, order in shuffled(3, 2, shards)]
    assert seen != [(a, b, order.tolist()) for a, b, order in shuffled(4, 1, shards)]
    orders = {tuple(a for a, _, _ in shuffled(0, epoch, shards)) for epoch in range(20)}
    assert len(orders) > 2


def test_a_small_batch_makes_a_short_step():
    """Every row counts the same: halves of a batch add to its slope."""
    X, Y = rows(32)
    F, problem = problem_of(COUPLED, Squared(), X)
    descent = Descent(problem, 0.1, Rates.of(problem, F, Y, ridge=0.1, batch=32), 32.0)
    theta, w = np.random.default_rng(0).standard_normal(len(descent.start().theta)), np.ones(32)
    parts = [descent.slope(theta, F[i], Y[i], w[i]) for i in (slice(5), slice(5, 32))]
    assert np.allclose(sum(parts), descent.slope(theta, F, Y, w))


def test_schedules_and_averages():
    assert [Constant()(t) for t in (0, 9)] == [1.0, 1.0]
    assert [InverseTime(10.0, 2.0)(t) for t in (0, 10)] == [1.0, 0.25]
    assert np.allclose([Cosine(14, 4)(t) for t in (0, 3, 4, 9, 14, 20)], [0.25, 1.0, 1.0, 0.5, 0.0, 0.0])
    steps, plain, suffix, late = np.arange(10.0), 0.0, 0.0, 0.0
    for t, value in enumerate(steps):
        plain += Average().weight(t) * (value - plain)
        suffix += Average(first=5).weight(t) * (value - suffix)
        late += Average(decay=3.0).weight(t) * (value - late)
    assert np.allclose([plain, suffix], [steps.mean(), steps[5:].mean()])
    assert suffix < late < 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InverseTime(0.0), "InverseTime: wanted t0 above 0"),
        (lambda: Cosine(3, 3), "Cosine: wanted more steps than warmup"),
        (lambda: Average(-1), "Average: wanted first and decay, 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_curvature_of_losses():
    y = np.random.default_rng(0).standard_normal((500, 1))
    assert steepest(Squared(), y) == 2.0
    assert steepest(Poisson(), np.abs(7 * y)) == np.abs(7 * y).max()
    assert steepest(Logistic(), (y > 0).astype(float)) == 0.25


DOUBLE = DoublyStochastic(Squared(), np.eye(2), 1e-4, 0.3, 0.2, 16.0, InverseTime(20.0))


@pytest.mark.parametrize("kernel", [COUPLED, CurlFree(GAUSSIAN), DivergenceFree(GAUSSIAN), FIELD], ids=str)
def test_doubly_stochastic_is_descent_with_all_frequencies_held(kernel):
    """A twin that keeps every step's features and coefficients in lists, by the formulas of Oono's Alg. 5."""
    X, Y = rows(160)
    recipe = Recipe(kernel.fix(2, 2), IID(), 2, 2, 12)
    at, held, b = Expansion.empty(recipe, 9, np.zeros(2)), [], np.zeros(2)
    for t in range(10):
        i = slice(16 * t, 16 * (t + 1))
        phi, weights = at.block(t)
        psi = np.broadcast_to(weights.psi, (12, *weights.psi.shape[1:]))
        f = b + sum((np.einsum("na,arp,ar->np", one.transform(X[i]), p, a) for one, p, a in held), np.zeros((16, 2)))
        slope, eta = 2.0 * (f - Y[i]) / 16, 0.3 / (1 + t / 20)
        for _, _, a in held:
            a *= 1 - 2 * eta * 1e-4
        held.append((phi, psi, -eta * np.einsum("na,arp,np->ar", phi.transform(X[i]), psi, slope)))
        b = b - 0.2 / (1 + t / 20) * slope.sum(axis=0)
        at = DOUBLE.step(at, X[i], Y[i], np.ones(16))
    Z = rows(20, seed=1)[0]
    values = b + sum(np.einsum("na,arp,ar->np", one.transform(Z), p, a) for one, p, a in held)
    again = replace(at, kept={})  # the frequencies drawn once more
    assert np.allclose(at.values(Z), values) and np.array_equal(again.values(Z), at.values(Z))
    assert not np.allclose(at.block(0)[0].transform(Z), at.block(1)[0].transform(Z))


def test_doubly_stochastic_tends_to_the_kernel_fit():
    """Its mean step is that of the exact kernel: after many the error is near the noise's."""
    X, Y = rows(3200)
    recipe = Recipe(COUPLED.fix(2, 2), IID(), 2, 2, 64)
    rate, constant = DoublyStochastic.rates(Squared(), np.eye(2), recipe, X[:200], Y[:200], 32)
    descent = DoublyStochastic(Squared(), np.eye(2), 1e-6, rate, constant, 32.0, InverseTime(50.0, 0.5))
    at = Expansion.empty(recipe, 0, np.zeros(2))
    for t in range(100):
        i = slice(32 * t, 32 * (t + 1))
        at = descent.step(at, X[i], Y[i], np.ones(32))
    Z, truth = rows(300, seed=1)
    assert np.mean((at.values(Z) - truth) ** 2) < 0.03 < 0.3 < truth.var()


@pytest.mark.parametrize("count", [4, 16, 200])
@pytest.mark.parametrize("batch", [1, 8, 1000])
def test_the_rate_of_doubly_stochastic_descent_knows_rows_and_frequencies(count, batch):
    """1 / rate is curvature times (lambda + beta / batch + beta / D), each from the kernel's matrix written out."""
    X, Y = rows(60)
    recipe = Recipe(COUPLED.fix(2, 2), IID(), 2, 2, count)
    rate, constant = DoublyStochastic.rates(Squared(), np.eye(2), recipe, X, Y, batch)
    scalar = np.exp(-np.sum((X[:, None] - X[None]) ** 2, axis=2) / (2 * 1.5**2))
    matrix = np.kron(scalar, [[2.0, 0.5], [0.5, 1.0]])
    level, beta, D = np.linalg.eigvalsh(matrix)[-1] / 60, 3.0, count / 2
    assert 1.0 / rate == pytest.approx(2.0 * (level + beta / batch + beta / D), rel=1e-9)
    assert constant == pytest.approx(0.25)


def test_features_that_are_always_the_same_are_refused():
    with pytest.raises(InputError, match="sampler: GaussQuadrature gives every step the same features; use iid"):
        Expansion.empty(Recipe(COUPLED.fix(2, 2), GaussQuadrature(3), 2, 2, 20), 0, np.zeros(2))
