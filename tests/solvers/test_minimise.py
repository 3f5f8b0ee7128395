"""The objective of a loss against a dense one; its coordinates; the least of it against direct solutions, scikit-learn
and small quadratic programs; fits in step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from cases import plain_map, positive, weights_of
from scipy.optimize import linprog, minimize
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, QuantileRegressor
from sklearn.svm import SVC, SVR, LinearSVC
from test_manifold_solver import BETWEEN, D, World, features, knn, laplacian, packed, world

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.model.losses import (
    EpsilonInsensitive,
    FloatArray,
    Hinge,
    Huber,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Quantiles,
    SimplexHinge,
    Squared,
    SquaredHinge,
    Terms,
)
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments
from dorff.passes.slopes import Question, SlopeSums
from dorff.solvers import minimise, solve
from dorff.solvers.bundle import YOUNG_PASSES, Bundle
from dorff.solvers.minimise import lbfgs, newton, newton_step
from dorff.solvers.objective import (
    Attempt,
    Evaluator,
    Frame,
    LossProblem,
    State,
    feature_moments,
    fold_sizes,
    without_mean,
)

Point = tuple[FloatArray, FloatArray]


class Half(Loss):
    """r^2 / 2: each row curves by 1."""

    kind = "half"

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        r = f - y
        return Terms(r**2 / 2, r**2 / 2, r, np.ones_like(r))


@dataclass(frozen=True)
class Task:
    """A world (features of rows, targets, weights, terms) and a loss; the labelled rows are in `folds` folds."""

    one: World
    loss: Loss
    folds: int = 1

    @property
    def there(self) -> Any:
        return ~np.isnan(self.one.Y).all(axis=1)

    @property
    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray, Any]:
        """F, targets as values have them, weights and folds of the labelled rows."""
        Y = self.loss.spread(self.one.Y[self.there] / (1.0 if self.one.scale is None else self.one.scale))
        return self.one.F[self.there], Y, self.one.w[self.there], np.arange(len(Y)) % self.folds

    @property
    def C(self) -> FloatArray:
        return np.eye(self.one.P) if self.one.C is None else self.one.C

    @cached_property
    def problem(self) -> LossProblem:
        one, (F, _, w, fold) = self.one, self.rows
        mean = w @ F / w.sum()
        terms = tuple(each.term(one.weights, each.weight, np.zeros(one.P)) for each in one.penalties)
        start = np.zeros(one.weights.shape[:2]), np.zeros(one.P)
        S, sizes = F.T @ (w[:, None] * F) / w.sum() - np.outer(mean, mean), self._sizes(w, fold)
        problem = LossProblem(self.loss, one.weights, self.C, terms, one.intercept, mean, S, sizes, start)
        return problem if one.intercept else without_mean(problem)

    @staticmethod
    def _sizes(w: FloatArray, fold: Any) -> dict[int, float]:
        return {int(number): float(w[fold == number].sum()) for number in np.unique(fold)}

    def ask(self, V: FloatArray, width: float | tuple[float, ...]) -> Mapping[int, FloatArray]:
        """Of each fold [F | 1]^T G and the sums beside it, with everything written out."""
        F, Y, w, fold = self.rows
        Z = np.column_stack([F, np.ones(len(F))])
        each, W = [], np.where(np.isnan(Y), 0.0, w[:, None])
        for number, at in enumerate(range(0, V.shape[1], len(self.C))):
            own = width[number] if isinstance(width, tuple) else width
            terms = self.loss.terms(Z @ V[:, at : at + len(self.C)], np.nan_to_num(Y), own)
            each.append(
                [W * one for one in (terms.slope, terms.value, terms.smooth, terms.slope**2 / 2, terms.curvature)]
            )
        slopes, *beside = (np.hstack(some) for some in zip(*each, strict=True))
        return {
            number: np.vstack([Z[fold == number].T @ slopes[fold == number],
                               *(one[fold == number].sum(axis=0) for one in beside)])
            for number in range(self.folds)
        }  # fmt: skip

    def curved(self, V: FloatArray) -> dict[int, Moments]:
        F, Y, w, _ = self.rows
        Z = np.column_stack([F, np.ones(len(F))])
        d = np.where(np.isnan(Y), 0.0, w[:, None]) * self.loss.terms(Z @ V, np.nan_to_num(Y)).curvature
        return {c: packed(Z.T @ (one[:, None] * Z), len(Z)) for c, one in enumerate(d.T) if one.any()}

    def evaluator(self) -> Evaluator:
        return Evaluator(self.problem, self.ask)

    def at(self, h: FloatArray, b: FloatArray, *, width: float = 0.0, ridge: float | None = None) -> State:
        ridge = self.one.ridge if ridge is None else ridge
        return self.evaluator()([(Attempt(ridge), h, b)], width)[0]

    def objective(self, h: FloatArray, b: FloatArray, *, width: float = 0.0, ridge: float | None = None) -> Any:
        """The objective and that with the smooth loss, each row and term written out."""
        one, Y, w = self.one, self.rows[1], self.rows[2]
        f = (one.Phi @ h.ravel()).reshape(-1, one.P) + b
        terms = self.loss.terms(f[self.there] @ self.C.T, np.nan_to_num(Y), width)
        W = np.where(np.isnan(Y), 0.0, w[:, None])
        more = (one.ridge if ridge is None else ridge) * np.sum(h**2) + f.ravel() @ one.M @ f.ravel()
        return tuple(np.sum(W * some) / w.sum() + more for some in (terms.value, terms.smooth))

    def point(self, seed: int = 0) -> Point:
        """Any h and b, b as it may be."""
        rng, (m, r, P) = np.random.default_rng(seed), self.one.weights.shape
        h, b = rng.standard_normal((m, r)), rng.standard_normal(P)
        return h, self.problem.free(b)

    @property
    def amid(self) -> Point:
        """A point where losses curve: near the middle of the targets."""
        h, b = self.point(2)
        middle = np.linalg.pinv(self.C) @ np.nanmedian(self.rows[1], axis=0)
        return 0.1 * h, 0.1 * b + (middle if self.one.intercept else 0.0)


GRAPH = laplacian(knn(np.random.default_rng(0).uniform(-1.2, 1.2, (26, 2))), normalised=False)
TAU = (0.2, 0.5, 0.9)
NONE: dict[str, Any] = {"terms": []}
#: Name: the world, the loss, what else.
SPECS: dict[str, tuple[str, Loss, dict[str, Any]]] = {
    "identity": ("identity 2", Huber(1.2), {}),
    "gains": ("identity 2", Logistic(), {}),
    "no intercept": ("identity 2", Logistic(), {**NONE, "intercept": False}),
    "no intercept with terms": ("curl 2", Huber(0.5), {"intercept": False}),
    "matrix": ("matrix 3", Squared(), {}),
    "matrix alone": ("deficient 3", Poisson(), NONE),
    "coupled terms": ("identity 3", Logistic(), {"terms": [(GRAPH, None, positive(3, 2), 0.02)]}),
    "two terms": ("matrix 2", Squared(), {"terms": [(GRAPH, None, None, 0.02), (np.eye(26), None, None, 0.01)]}),
    "curl": ("curl 2", SquaredHinge(), NONE),
    "curl with terms": ("curl 2", Squared(), {}),
    "div": ("div 3", EpsilonInsensitive(0.1), NONE),
    "helmholtz": ("helmholtz 2", Squared(), NONE),
    "two": ("two 2", Poisson(), {}),
    "observed": ("matrix 2", Squared(), {**NONE, "C": np.array([[1.0, 0.5], [0.0, 1.0], [-1.0, 2.0]])}),
    "observed with terms": ("matrix 3", Squared(), {"C": np.array([[1.0, 0.5, -1.0], [0.0, 1.0, 0.5]])}),
    "observed field": ("curl 3", Huber(0.3), {**NONE, "C": np.array([[0.5, -1.0, 0.8]])}),
    "views": ("views 2", Squared(), {"terms": [(GRAPH, None, None, 0.02), (np.eye(26), BETWEEN, None, 0.01)]}),
    "views alone": ("views 1", Logistic(), NONE),
    "mixed views": ("mixed 2", Huber(1.5), {"terms": [(GRAPH, BETWEEN, positive(2, 2), 0.02)]}),
    "quantiles": ("identity 2", Quantiles(TAU, 2.0), {}),
    "quantiles of one shape": ("matrix 2", Quantiles(TAU, 0.0), NONE),
    "quantiles of fields": ("curl 2", Quantiles((0.3, 0.6), 1.0), {"C": np.array([[1.0, 0.5]])}),
    "simplex": ("simplex 3", SimplexHinge(), NONE),
    "simplex with terms": ("simplex 3", SimplexHinge(), {}),
    "multinomial": ("matrix 3", Multinomial(), {}),
    "hinge": ("identity 2", Hinge(), NONE),
}  # fmt: skip
every = pytest.mark.parametrize("name", SPECS)


def suited(Y: FloatArray, loss: Loss) -> FloatArray:
    """Targets of the loss's kind, missing where Y has none."""
    made = {
        "numbers": lambda: Y,
        "counts": lambda: np.round(np.abs(2.0 * Y)),
        "labels": lambda: (np.nanmedian(Y, axis=0) < Y).astype(float),
        "classes": lambda: np.eye(Y.shape[1])[np.argmax(np.nan_to_num(Y - np.nanmean(Y, axis=0)), axis=1)],
    }[loss.takes]()
    return np.where(np.isnan(Y), np.nan, made)


def simplex_world(p: int, options: dict[str, Any]) -> World:
    one = world(f"identity {p}", **options)
    kernel = kernels.Decomposable(kernels.Gaussian(0.7), "simplex").fix(2, p, None)
    return replace(one, weights=weights_of(kernel, frequencies.IID().draw(kernel, d=2, p=p, count=D, seed=0)))


@cache
def task(name: str, folds: int = 1) -> Task:
    kind, loss, options = SPECS[name]
    size = int(kind.split()[1])
    one = simplex_world(size, dict(options)) if kind.startswith("simplex") else world(kind, **options)
    Y, rng = suited(one.Y, loss), np.random.default_rng(9)
    if loss.takes != "classes" and Y.shape[1] > 1 and name not in ("matrix", "helmholtz", "observed"):
        Y = np.where(rng.random(Y.shape) < 0.15, np.nan, Y)
    one = replace(one, Y=Y, w=rng.uniform(0.3, 2.0, len(Y)))
    if name == "gains":
        one = replace(one, weights=replace(one.weights, gain=rng.uniform(0.5, 2.0, len(one.weights.gain))))
    if loss.levels > 1:
        J, C = np.eye(loss.levels), np.eye(one.P) if one.C is None else one.C
        root = np.kron(one.weights.root, loss.root[None])
        one = replace(one, weights=replace(one.weights, root=root), C=np.kron(C, J))
    return Task(one, loss, folds)


def test_worlds_are_of_every_kind() -> None:
    weights = [task(name).one.weights for name in SPECS]
    assert {one.shape[1] for one in weights} >= {1, 2, 3} and any(one.views is not None for one in weights)
    assert any(len(one.root) > 1 and one.views is not None for one in weights)
    assert any(one.separable and np.any(one.gain != 1.0) for one in weights)
    assert any(np.isnan(task(name).rows[1]).any() for name in SPECS)


@every
@pytest.mark.parametrize("width", [0.0, 0.3])
def test_the_objective_and_its_slopes_are_dense_ones(name: str, width: float) -> None:
    this, step = task(name, 2), 1e-6
    h, b = this.point()
    state = this.at(h, b, width=width)
    value, smooth = this.objective(h, b, width=width)
    assert (state.value, state.smooth) == pytest.approx((value, smooth), rel=1e-12)
    assert (smooth < value) == (this.loss.kinked and width > 0)
    for seed in range(4):
        dh, db = this.point(seed + 1)
        up, down = (this.objective(h + s * dh, b + s * db, width=width)[1] for s in (step, -step))
        there = np.sum(state.gh * dh) + np.sum(state.gb * db * this.one.intercept)
        if this.one.intercept:
            assert there == pytest.approx((up - down) / (2 * step), rel=2e-6, abs=1e-7)
        up, down = (this.objective(h + s * dh, b, width=width)[1] for s in (step, -step))
        assert np.sum(state.gh * dh) == pytest.approx((up - down) / (2 * step), rel=2e-6, abs=1e-7)
    assert this.one.intercept or not np.any(state.gb)
    if this.loss.centred:
        assert state.gb.sum() == pytest.approx(0.0, abs=1e-12)
    else:
        for j, e in enumerate(np.eye(len(b)) * this.one.intercept):
            up, down = (this.objective(h, b + s * e, width=width)[1] for s in (step, -step))
            assert state.gb[j] == pytest.approx((up - down) / (2 * step), rel=2e-6, abs=1e-7)


@every
def test_states_say_what_they_are_of(name: str) -> None:
    """The mean loss, curvature and excess, of the rows that are not left out, and the loss of those that are."""
    this = task(name, 3)
    h, b = this.point(3)
    F, Y, w, fold = this.rows
    f = (F @ this.one.weights.combined(h) + b) @ this.C.T
    W, terms = np.where(np.isnan(Y), 0.0, w[:, None]), this.loss.terms(f, np.nan_to_num(Y), 0.4)
    evaluator = this.evaluator()
    trials = [Attempt(0.1), Attempt(0.2, 0), Attempt(0.3, 2), Attempt(0.0, 1)]
    points = [this.point(seed) for seed in (3, 4, 3, 3)]
    states = evaluator([(trial, *at) for trial, at in zip(trials, points, strict=True)], 0.4)
    assert evaluator.count == 1
    for trial, state, at in zip(trials, states, points, strict=True):
        assert state.trial is trial and state.h is at[0] and state.b is at[1]
    for number in (0, 2, 3):
        state, trial = states[number], trials[number]
        rows = fold != (-1 if trial.without is None else trial.without)
        l, part = w[rows].sum(), W[rows]  # noqa: E741
        loss = np.sum(part * terms.value[rows]) / l
        assert state.loss == pytest.approx(loss, rel=1e-12)
        assert state.curvature == pytest.approx(np.sum(part * terms.curvature[rows]) / l / len(this.C), rel=1e-12)
        below = terms.value - terms.smooth - 0.4 * terms.slope**2 / 2
        excess = np.sum(part * below[rows]) / l if this.loss.kinked else 0.0
        assert state.excess == pytest.approx(excess, rel=1e-9, abs=1e-12) and state.excess >= 0
        assert (state.gap == np.inf) == (trial.ridge == 0) and state.gap >= state.excess
        if trial.without is None:
            assert state.held is None
        else:
            assert state.held is not None and state.held[0] == pytest.approx(
                np.sum((W * terms.value)[~rows]), rel=1e-12
            )
            np.testing.assert_allclose(state.held[1:], np.sum((W * terms.slope)[~rows], axis=0), rtol=1e-9, atol=1e-9)
    for state, trial, at in zip(states, trials, points, strict=True):  # as asked one by one
        (alone,) = this.evaluator()([(trial, *at)], 0.4)
        assert alone.value == pytest.approx(state.value, rel=1e-13)
        np.testing.assert_allclose(alone.gh, state.gh, rtol=1e-11, atol=1e-13)


@every
@pytest.mark.parametrize("curvature", [0.02, 1.0])
def test_coordinates_give_the_state_back_and_turn_slopes(name: str, curvature: float) -> None:
    this, step = task(name), 1e-5
    state = this.at(*this.point(), width=0.3)
    frame = Frame(this.problem, this.one.ridge, curvature)
    z = frame.place(state)
    h, b = frame.point(z)
    np.testing.assert_allclose(h, state.h, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(b, state.b, rtol=1e-8, atol=1e-9)
    rng, slope = np.random.default_rng(1), frame.slope(state)
    assert slope.shape == z.shape == (state.h.size + state.b.size,)
    P = state.b.size
    for _ in range(3):
        e = rng.standard_normal(len(z))
        e /= np.linalg.norm(e)
        e[-P:] = this.problem.free(e[-P:])
        up, down = (this.objective(*frame.point(z + s * e), width=0.3)[1] for s in (step, -step))
        assert slope @ e == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-6 * np.linalg.norm(slope))
    if this.loss.centred:
        assert slope[-P:].sum() == pytest.approx(0.0, abs=1e-10)
    assert this.one.intercept or not np.any(slope[-P:])
    at = Frame.at(this.problem, state)
    most = 0.5 if this.loss.kinked else np.inf
    assert (at.ridge, at.curvature) == (this.one.ridge, min(max(state.curvature, 1e-3), most))
    assert Frame.at(this.problem, state._replace(curvature=70.0)).curvature == min(70.0, most)
    assert Frame.at(this.problem, state._replace(curvature=0.0)).curvature == 1e-3


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name][1].levels == 1])
def test_in_these_coordinates_a_quadratic_is_round(name: str) -> None:
    """Where each row curves by 1, terms or not: the second derivative along all coefficients is the identity, with
    the level of the constants kept; it is the squared loss's at 2 where there are no terms."""
    this = task(name)
    Y = np.where(np.isnan(this.rows[1]).any(), 0.5, this.one.Y)
    for loss, curvature in ((Half(), 1.0), (Squared(), 2.0)):
        if curvature == 2.0 and this.one.terms:
            continue
        one = replace(this.one, Y=np.where(this.there[:, None], np.nan_to_num(Y), np.nan))
        own = Task(one, loss)
        frame = Frame(own.problem, one.ridge, curvature)
        size = one.weights.shape[0] * one.weights.shape[1]
        H = np.zeros((size, size))
        zero = frame.slope(own.at(*frame.point(np.zeros(size + one.P))))
        for j in range(size):
            e = np.eye(size + one.P)[j]
            H[:, j] = (frame.slope(own.at(*frame.point(e))) - zero)[:size]
        np.testing.assert_allclose(H, np.eye(size), atol=2e-9)


def dense_step(this: Task, state: State) -> FloatArray:
    """(dh, db) of the second derivative by differences; the constants that may not move left out."""
    m, r, P = this.one.weights.shape
    k, step = m * r, 1e-5
    size = k + P if this.one.intercept else k

    def slope(x: FloatArray) -> FloatArray:
        b = state.b + (x[k:] if this.one.intercept else 0.0)
        there = this.at(state.h + x[:k].reshape(m, r), b)
        return np.concatenate([there.gh.ravel(), there.gb])[:size]

    H = np.array([(slope(step * e) - slope(-step * e)) / (2 * step) for e in np.eye(size)])
    found = np.linalg.lstsq((H + H.T) / 2, -slope(np.zeros(size)), rcond=1e-9)[0]
    return np.concatenate([found, np.zeros(k + P - size)])


SMOOTH = [name for name in SPECS if not SPECS[name][1].kinked and not SPECS[name][1].coupled]


@pytest.mark.parametrize("name", SMOOTH)
def test_newtons_step_is_that_of_the_dense_second_derivative(name: str) -> None:
    this = task(name)
    state = this.at(*this.amid)
    dh, db = newton_step(this.problem, state, this.curved(this.problem.columns(state.h, state.b)))
    wanted = dense_step(this, state)
    k = dh.size
    F, (h, b) = this.one.F, (wanted[:k].reshape(dh.shape), wanted[k:])
    np.testing.assert_allclose(dh, h, rtol=1e-4, atol=2e-5 * np.abs(h).max())
    np.testing.assert_allclose(  # of b, what the rows see
        (F @ this.one.weights.combined(dh) + db) @ this.C.T, (F @ this.one.weights.combined(h) + b) @ this.C.T,
        rtol=1e-4, atol=3e-5 * np.abs(F @ this.one.weights.combined(h)).max(),
    )  # fmt: skip
    assert this.one.intercept or not np.any(db)


APART = {"identity": 2, "no intercept": 2, "coupled terms": 1, "matrix": 1, "curl": 1, "observed": 1, "views alone": 1,
         "curl with terms": 1}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_outputs_that_do_not_hang_together_are_solved_for_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    this = task(name)
    groups = minimise._apart(this.problem)
    _, r, P = this.one.weights.shape
    assert len(groups) == APART[name]
    for which, count in ((0, r), (1, len(this.C)), (2, P)):
        assert sorted(np.concatenate([group[which] for group in groups]).tolist()) == list(range(count))
    state = this.at(*this.amid)
    weighed = this.curved(this.problem.columns(state.h, state.b))
    apart = newton_step(this.problem, state, weighed)
    monkeypatch.setattr(minimise, "_apart", lambda problem: [(np.arange(r), np.arange(len(this.C)), np.arange(P))])
    together = newton_step(this.problem, state, weighed)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7 * np.abs(other).max())


def test_a_term_ties_outputs_together_and_so_does_a_centred_loss() -> None:
    assert len(minimise._apart(task("coupled terms").problem)) == 1
    one = task("identity")
    assert len(minimise._apart(replace(one.problem, loss=SimplexHinge()))) == 1
    Q = np.array([[1.0, 0.0], [0.0, 2.0]])
    untied = Task(replace(one.one, terms=[(GRAPH, None, Q, 0.1)]), one.loss)
    assert len(minimise._apart(untied.problem)) == 2


def test_a_column_that_curves_nowhere_takes_part_by_its_ridge() -> None:
    """As of squared hinges that are all satisfied; the other output's step is what it is with it."""
    this = Task(replace(task("hinge").one, C=None), SquaredHinge())
    h, b = np.zeros(this.one.weights.shape[:2]), np.array([0.3, 0.2])
    state = this.at(h, b)
    weighed = this.curved(this.problem.columns(h, b))
    full = newton_step(this.problem, state, weighed)
    del weighed[1]
    dh, _ = newton_step(this.problem, state, weighed)
    np.testing.assert_allclose(dh[:, 0], full[0][:, 0], rtol=1e-12)
    np.testing.assert_allclose(dh[:, 1], -state.gh[:, 1] / (2 * this.one.ridge), rtol=1e-5)


def test_a_system_that_is_singular_is_refused_with_what_to_do() -> None:
    this = task("identity")
    state = this.at(*this.point())
    minus = {c: packed(-one.full, one.n) for c, one in this.curved(this.problem.columns(state.h, state.b)).items()}
    with pytest.raises(InputError, match=r"newton: its system is singular .*raise the ridge, or set solve\.solver"):
        newton_step(this.problem, state, minus)


SQUARED = [name for name in SPECS if isinstance(SPECS[name][1], Squared)]
MORE = ["identity", "no intercept", "no intercept with terms", "coupled terms", "curl", "mixed views", "views alone",
        "observed field", "div"]  # fmt: skip


@pytest.mark.parametrize("name", [*SQUARED, *MORE])
@pytest.mark.parametrize("way", ["lbfgs", "newton"])
def test_the_least_of_squares_is_the_direct_solution(name: str, way: str) -> None:
    """With missing targets, weights, terms, any kernel and C; of the targets themselves where it is another loss's."""
    this = task(name)
    if not isinstance(this.loss, Squared):
        Y = np.where(np.isnan(this.one.Y), np.nan, np.random.default_rng(2).standard_normal(this.one.Y.shape) + 1.0)
        this = Task(replace(this.one, Y=Y), Squared())
    one = this.one
    problem = one.problem()
    (solution,) = solve(problem, [one.ridge])
    if way == "newton":
        state = newton(this.evaluator(), this.curved, Attempt(one.ridge), this.point(), 1e-15)
    else:
        (state,) = lbfgs(this.evaluator(), [Attempt(one.ridge)], [this.point()], 1e-13)
    W = one.weights.combined(solution.h)
    b = problem.bias(W)
    least = this.objective(solution.h, b)[0]
    assert state.value == pytest.approx(this.objective(state.h, state.b)[0], rel=1e-12)
    assert -1e-9 * least <= state.value - least <= 1e-9 * least
    found, wanted = (one.F @ V + c for V, c in ((one.weights.combined(state.h), state.b), (W, b)))
    np.testing.assert_allclose(found @ this.C.T, wanted @ this.C.T, atol=2e-5 * np.abs(wanted).max())


@every
def test_newton_and_lbfgs_find_the_same_and_no_point_nearby_is_less(name: str) -> None:
    this = task(name)
    if this.loss.kinked:
        this = Task(replace(this.one, ridge=2e-2), this.loss)
    tolerance = 1e-5 if this.loss.kinked else 1e-7
    trial = Attempt(this.one.ridge)
    (state,) = lbfgs(this.evaluator(), [trial], [this.problem.start], tolerance)
    assert state.value == pytest.approx(this.objective(state.h, state.b)[0], rel=1e-12)
    assert state.excess <= tolerance * state.value
    if name in SMOOTH:
        other = newton(this.evaluator(), this.curved, trial, this.problem.start, 1e-12)
        assert other.value <= state.value * (1 + 1e-10) and state.value <= other.value * (1 + 1e-6)
        if this.one.intercept:
            f, g = (this.one.F @ this.one.weights.combined(at.h) + at.b for at in (state, other))
            np.testing.assert_allclose(f @ this.C.T, g @ this.C.T, atol=0.02 * np.abs(g).max())
    assert this.loss.centred == (abs(state.b.sum()) < 1e-8 and this.loss.centred)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(10):
            h = state.h + size * rng.standard_normal(state.h.shape)
            b = state.b + size * this.problem.free(rng.standard_normal(state.b.shape))
            assert this.objective(h, b)[0] >= state.value * (1 - 3 * tolerance)


@pytest.mark.parametrize("name", SPECS)
def test_the_gap_is_never_less_than_what_there_is_to_gain(name: str) -> None:
    """Without an intercept, at points far and near, for a ridge that is not tiny; and it is small in the end."""
    own = task(name)
    this = Task(replace(own.one, intercept=False, ridge=3e-2), own.loss)
    trial = Attempt(3e-2)
    shown: list[State] = []
    (end,) = lbfgs(this.evaluator(), [trial], [this.problem.start], 1e-9, shown.append)
    gaps = []
    for width in (0.0, 0.01, 1.0):
        for size in (0.0, 1e-3, 1e-2, 0.1, 1.0):
            dh, _ = this.point(1)
            state = this.at(end.h + size * dh, end.b, width=width, ridge=3e-2)
            assert state.gap >= state.value - end.value - 1e-12  # which is not below the least
            gaps.append(state.gap)
    assert max(gaps) > 1e-3
    assert all(state.value - state.gap <= end.value * (1 + 1e-12) for state in shown)
    bound = max(state.value - state.gap for state in [*shown, end])
    assert end.value - bound <= (1e-4 if this.loss.kinked else 1e-6) * end.value


def test_with_an_intercept_the_gap_is_at_a_level_that_is_kept() -> None:
    """b moves with h so that the values' mean stays: at the least of those fits, the bound says so."""
    this = Task(replace(task("identity").one, terms=[], ridge=3e-2), Huber(0.5))
    level = np.array([0.2, -0.1])
    h = 0.1 * this.point()[0]
    mean = this.problem.mean

    def tied(x: FloatArray) -> tuple[float, FloatArray]:
        own = x.reshape(h.shape)
        state = this.at(own, level - mean @ this.one.weights.combined(own))
        return state.value, (state.gh - this.problem.pulled(np.outer(mean, state.gb))).ravel()

    found = minimize(tied, h.ravel(), jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-10})
    for size in (0.0, 0.01, 0.3):
        own = found.x.reshape(h.shape) + size * h
        state = this.at(own, level - mean @ this.one.weights.combined(own))
        assert state.gap >= state.value - found.fun - 1e-12
        if size == 0.0:
            assert state.gap < 1e-8 < abs(state.gb).max()  # though b is not what is best


@pytest.mark.parametrize(
    "name", [name for name in SPECS if SPECS[name][1].kinked and SPECS[name][2].get("terms") == []]
)
@pytest.mark.parametrize("folds", [1, 3])
def test_the_gap_of_a_bundle_is_a_bound_for_every_constant(name: str, folds: int) -> None:
    """With an intercept, and without some of the rows: of the least that a much longer iteration finds."""
    this = Task(task(name).one, task(name).loss, folds)
    trials = [Attempt(1e-2), *(Attempt(1e-2, fold) for fold in range(folds) if folds > 1)]
    starts = [this.problem.start] * len(trials)
    least = lbfgs(this.evaluator(), trials, starts, 1e-7)
    for tolerance in (0.3, 1e-2, 1e-4):
        states = lbfgs(this.evaluator(), trials, starts, tolerance)
        for state, best in zip(states, least, strict=True):
            assert state.value - state.gap <= best.value * (1 + 1e-9)
            assert best.value - best.gap <= state.value * (1 + 1e-9)
            assert state.gap <= tolerance * state.value or state.excess <= tolerance * state.value
    assert all(best.gap <= 1e-6 * best.value for best in least)


def test_planes_of_the_last_two_passes_are_kept_however_few_there_may_be() -> None:
    this = Task(replace(task("simplex").one, ridge=1e-2), task("simplex").loss)
    bundle = Bundle(this.problem)
    added = []
    for seed in range(4):
        before = len(bundle.columns)
        bundle.add([this.at(*this.point(2 * seed + number)) for number in range(2)])
        added.append(bundle.slopes[before:])
        bundle.bound(1e-2, 1e-6, 1)
        young = np.concatenate(added[-2:])
        kept = bundle.slopes[bundle.ages < YOUNG_PASSES]
        assert len(young) == len(kept) and np.array_equal(np.sort(young, axis=0), np.sort(kept, axis=0))


FOLDS = ["identity", "curl with terms", "quantiles of fields", "views", "matrix alone", "simplex"]


@pytest.mark.parametrize("name", FOLDS)
def test_fits_without_a_fold_are_those_of_the_other_rows(name: str) -> None:
    this = task(name, 3)
    ridge, tolerance = 1e-2, 1e-4 if this.loss.kinked else 1e-8
    trials = [Attempt(ridge), Attempt(ridge, 0), Attempt(ridge, 1), Attempt(10 * ridge), Attempt(ridge, 2)]
    starts = [this.problem.start, *(this.point(seed) for seed in range(1, 5))]
    evaluator = this.evaluator()
    states = lbfgs(evaluator, trials, starts, tolerance)
    assert [state.trial for state in states] == trials
    F, Y, w, fold = this.rows
    for trial, state in zip(trials, states, strict=True):
        kept = fold != (-1 if trial.without is None else trial.without)
        Y_kept = this.one.Y.copy()
        Y_kept[np.flatnonzero(this.there)[~kept]] = np.nan
        alone = Task(replace(this.one, Y=Y_kept, ridge=trial.ridge), this.loss)
        (other,) = lbfgs(alone.evaluator(), [Attempt(trial.ridge)], [alone.problem.start], tolerance)
        assert state.value == pytest.approx(other.value, rel=1e-3 if this.loss.kinked else 2e-7)
        assert state.value == pytest.approx(alone.objective(state.h, state.b)[0], rel=1e-11)
        f = (F @ this.one.weights.combined(state.h) + state.b) @ this.C.T
        W = np.where(np.isnan(Y), 0.0, w[:, None])
        cost = np.sum((W * this.loss.terms(f, np.nan_to_num(Y)).value)[~kept])
        assert (state.held is None) == (trial.without is None)
        assert state.held is None or state.held[0] == pytest.approx(cost, rel=1e-11)
    assert evaluator.count < sum(len(asked(this, trial, tolerance)) for trial in trials)  # passes serve several


def asked(this: Task, trial: Attempt, tolerance: float) -> list[State]:
    """What a trial alone is shown, pass by pass."""
    shown: list[State] = []
    lbfgs(this.evaluator(), [trial], [this.problem.start], tolerance, shown.append)
    return shown


@pytest.mark.parametrize("name", ["quantiles", "multinomial"])
def test_fits_in_step_have_the_same_bits_whatever_the_pace(name: str) -> None:
    """Threads that wait at random; and passes are the same: what they ask for, in the same order."""
    this = task(name, 2)
    trials = [Attempt(1e-1), Attempt(1e-2, 0), Attempt(1e-2, 1)]
    runs = []
    for seed in range(5):
        rng, passes = np.random.default_rng(seed), []

        def slow(V: FloatArray, width: float, rng: Any = rng, passes: list[Any] = passes) -> Mapping[int, FloatArray]:
            passes.append((V.copy(), width))
            threading.Event().wait(2e-3 * rng.random() * (rng.random() < 0.1))
            return this.ask(V, width)

        states = lbfgs(Evaluator(this.problem, slow), trials, [this.problem.start] * 3, 1e-3)
        runs.append((states, passes))
    states, passes = runs[0]
    assert len({V.shape[1] for V, _ in passes}) > 1  # some were over before others
    for again, others in runs[1:]:
        assert len(others) == len(passes)
        assert all(np.array_equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(passes, others, strict=True))
        for one, other in zip(states, again, strict=True):
            assert one.value == other.value
            assert np.array_equal(one.h, other.h) and np.array_equal(one.b, other.b)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_error_in_a_pass_comes_out_and_leaves_no_thread(after: int) -> None:
    this, before = task("quantiles", 2), threading.enumerate()
    calls = 0

    def fails(V: FloatArray, width: float) -> Mapping[int, FloatArray]:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError("the disk is full")
        return this.ask(V, width)

    with pytest.raises(OSError, match="the disk is full"):
        lbfgs(Evaluator(this.problem, fails), [Attempt(1e-2), Attempt(1e-3, 0)], [this.problem.start] * 2, 1e-6)
    assert calls == after + 1 and threading.enumerate() == before


def test_an_error_in_a_trials_own_thread_comes_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    this, before, real = task("identity"), threading.enumerate(), Frame.slope
    main = threading.current_thread()

    def fails(frame: Frame, state: State) -> FloatArray:
        if threading.current_thread() is not main and state.trial.without == 0:
            raise MemoryError("no more")
        return real(frame, state)

    monkeypatch.setattr(Frame, "slope", fails)
    with pytest.raises(MemoryError, match="no more"):
        lbfgs(task("identity", 2).evaluator(), [Attempt(1e-2), Attempt(1e-3, 0)], [this.problem.start] * 2, 1e-6)
    assert threading.enumerate() == before


def test_nothing_is_left_running_when_all_is_well() -> None:
    before = threading.enumerate()
    this = task("hinge", 2)
    lbfgs(this.evaluator(), [Attempt(1e-2), Attempt(1e-2, 1)], [this.problem.start] * 2, 1e-5)
    assert threading.enumerate() == before


@pytest.mark.parametrize("name", ["identity", "quantiles"])
def test_what_is_shown_is_the_first_trials_state_of_each_pass(name: str) -> None:
    this, shown = task(name, 2), list[State]()
    evaluator = this.evaluator()
    trials = [Attempt(1e-2), Attempt(1e-3, 0)]
    states = lbfgs(evaluator, trials, [this.problem.start] * 2, 1e-5, shown.append)
    assert len(shown) == evaluator.count and shown[0].h is this.problem.start[0]
    assert {state.trial for state in shown} <= set(trials) and shown[0].trial is trials[0]
    assert any(state.value == pytest.approx(states[0].value, rel=1e-12) for state in shown)


def test_newton_shows_each_state_and_counts_both_kinds_of_pass() -> None:
    this, shown, times = task("matrix alone"), list[State](), 0
    evaluator = this.evaluator()

    def curved(V: FloatArray) -> Mapping[int, Moments]:
        nonlocal times
        times += 1
        return this.curved(V)

    start = tuple(5.0 * one for one in this.point())  # so far that steps are halved
    end = newton(evaluator, curved, Attempt(1e-3), start, 1e-12, shown.append)
    assert evaluator.count == times + len(shown) and len(shown) > times
    assert end is shown[-1] or end in shown
    accepted = [shown[0]]
    for state in shown[1:]:
        if state.value < accepted[-1].value:
            accepted.append(state)
    assert end.value == accepted[-1].value


def test_newton_ends_at_the_first_state_whose_step_gains_no_more_than_the_tolerance() -> None:
    """Half of slope times step, about what the objective falls by: a third above the tolerance or below it."""
    this = task("matrix alone")
    trial, start = Attempt(1e-3), tuple(3.0 * part for part in this.point())
    states = [this.at(*start, ridge=1e-3)]
    gains = list[float]()
    for _ in range(20):
        state = states[-1]
        dh, db = newton_step(this.problem, state, this.curved(this.problem.columns(state.h, state.b)))
        gains.append(-0.5 * float(np.sum(state.gh * dh) + np.sum(state.gb * db)) / state.value)
        if gains[-1] < 1e-10:
            break
        states.append(newton(this.evaluator(), this.curved, trial, (state.h, state.b), 0.5 * gains[-1]))
    assert len(gains) > 4
    for tolerance in (3.0 * gains[2], gains[2] / 3.0, gains[3] / 3.0):
        end = newton(this.evaluator(), this.curved, trial, start, tolerance)
        first = next(state for state, gain in zip(states, gains, strict=False) if gain <= tolerance)
        assert end.value == pytest.approx(first.value, rel=1e-12)


@pytest.mark.parametrize("ridges", [(1e-2, 10.0), (10.0, 1e-2)])
@pytest.mark.parametrize("name", ["div", "quantiles of fields"])
def test_the_width_is_narrow_enough_for_every_trial(name: str, ridges: tuple[float, float]) -> None:
    this, trials = task(name), [Attempt(ridge) for ridge in ridges]
    for state in lbfgs(this.evaluator(), trials, [this.problem.start] * 2, 3e-4):
        assert state.excess <= 3e-4 * state.value


@pytest.mark.parametrize("loss", [Huber(0.3), SquaredHinge()])
def test_newton_goes_on_where_nothing_curves(loss: Loss) -> None:
    """All rows of a target are far beyond `delta`, or all their hinges are satisfied: its step is without bounds."""
    own = task("identity").one
    Y = own.Y if isinstance(loss, Huber) else np.where(np.isnan(own.Y), np.nan, (own.Y > 1.0).astype(float))
    this, (h, b) = Task(replace(own, Y=Y), loss), task("identity").problem.start
    trial, start = Attempt(own.ridge), (h, b + np.array([-9.0, 0.0]))
    if isinstance(loss, SquaredHinge):
        this = Task(replace(own, Y=np.where(np.isnan(Y), np.nan, np.column_stack([Y[:, 0], np.ones(len(Y))]))), loss)
        start = (h, b + np.array([0.0, 30.0]))
    (wanted,) = lbfgs(this.evaluator(), [trial], [this.problem.start], 1e-9)
    found = newton(this.evaluator(), this.curved, trial, start, 1e-9)
    assert found.value == pytest.approx(wanted.value, rel=1e-6)


def test_a_start_at_the_least_takes_one_pass() -> None:
    this = task("multinomial")
    trial = Attempt(this.one.ridge)
    (state,) = lbfgs(this.evaluator(), [trial], [this.problem.start], 1e-10)
    evaluator = this.evaluator()
    (again,) = lbfgs(evaluator, [trial], [(state.h, state.b)], 1e-4)
    assert evaluator.count == 1 and np.array_equal(again.h, state.h)


def test_passes_end_where_there_are_too_many() -> None:
    this = task("quantiles")
    evaluator = Evaluator(this.problem, this.ask, 6)
    (state,) = lbfgs(evaluator, [Attempt(1e-4)], [this.problem.start], 1e-9)
    assert evaluator.count <= 8 and state.value < this.at(*this.problem.start).value
    this = task("matrix alone")
    evaluator = Evaluator(this.problem, this.ask, 6)
    newton(evaluator, this.curved, Attempt(1e-4), tuple(5.0 * one for one in this.point()), 1e-15)
    assert 6 <= evaluator.count <= 8 + minimise.HALVINGS


def test_tolerance_is_what_is_left_to_gain() -> None:
    """Over a range of tolerances, of a loss without a kink and one with, that far from the least or nearer."""
    for name in ("multinomial", "hinge"):
        this = task(name)
        trial, counts = Attempt(1e-2), []
        (best,) = lbfgs(this.evaluator(), [trial], [this.problem.start], 1e-7)
        for tolerance in (1e-2, 1e-3, 1e-5):
            evaluator = this.evaluator()
            (state,) = lbfgs(evaluator, [trial], [this.problem.start], tolerance)
            assert state.value - best.value <= 2 * tolerance * best.value
            assert state.excess <= tolerance * state.value
            counts.append(evaluator.count)
        assert counts[0] <= counts[1] <= counts[2] < 600
        assert counts[0] < counts[2]


# Against others


@cache
def plain(n: int, m: int, takes: str, q: int = 1, seed: int = 0, intercept: bool = True) -> World:
    """A scalar kernel's features, targets of that kind, no terms; f = F W + b."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    F = plain_map(rng.standard_normal((m // 2, 2))).transform(X)
    smooth = np.sin(X @ rng.standard_normal((2, q)) + np.arange(q)) * 1.5
    noisy = smooth + 0.5 * rng.standard_t(3, (n, q))
    Y = {
        "numbers": lambda: noisy,
        "counts": lambda: rng.poisson(np.exp(smooth)).astype(float),
        "labels": lambda: (noisy > 0).astype(float),
        "classes": lambda: np.eye(q)[np.argmax(noisy, axis=1)],
    }[takes]()
    return World(F, OperatorWeights(np.ones(m), np.eye(q)[None]), Y, np.ones(n), [], None, 1e-3, intercept)


def least(this: Task) -> State:
    tolerance = 1e-6 if this.loss.kinked else 1e-7
    (state,) = lbfgs(this.evaluator(), [Attempt(this.one.ridge)], [this.problem.start], tolerance)
    return state


def near(this: Task, W: FloatArray, b: Any) -> float:
    """How the least objective differs from that at another's W and b, relative to it; and by Newton, where there is."""
    theirs = this.objective(np.asarray(W, float), np.atleast_1d(np.asarray(b, float)))[0]
    values = [least(this).value]
    if not this.loss.kinked and not this.loss.coupled:
        start = this.problem.start
        values.append(newton(this.evaluator(), this.curved, Attempt(this.one.ridge), start, 1e-12).value)
    apart = max((value / theirs - 1 for value in values), key=abs)
    print(f"differs by {apart:.2e}")
    assert abs(apart) <= 1e-5
    return apart


@pytest.mark.parametrize("ridge", [1e-2, 1e-4])
def test_multinomial_is_scikit_learns(ridge: float) -> None:
    one = replace(plain(300, 16, "classes", 4), ridge=ridge)
    other = LogisticRegression(C=1 / (2 * 300 * ridge), tol=1e-10, max_iter=5000)
    other.fit(one.F, np.argmax(one.Y, axis=1))
    near(Task(one, Multinomial()), other.coef_.T, other.intercept_)


@pytest.mark.parametrize("ridge", [1e-2, 1e-4])
def test_logistic_is_scikit_learns(ridge: float) -> None:
    one = replace(plain(300, 16, "labels"), ridge=ridge)
    other = LogisticRegression(C=1 / (2 * 300 * ridge), tol=1e-10, max_iter=5000)
    other.fit(one.F, one.Y[:, 0])
    near(Task(one, Logistic()), other.coef_.T, other.intercept_)


@pytest.mark.parametrize(("loss", "name"), [(Hinge(), "hinge"), (SquaredHinge(), "squared_hinge")])
@pytest.mark.parametrize("ridge", [1e-2, 1e-3])
def test_hinges_are_those_of_liblinear(loss: Loss, name: str, ridge: float) -> None:
    """Without an intercept, which LinearSVC would pull to 0."""
    one = replace(plain(200, 12, "labels", intercept=False), ridge=ridge)
    other = LinearSVC(C=1 / (2 * 200 * ridge), loss=name, dual=True, fit_intercept=False, tol=1e-9, max_iter=10**6)
    other.fit(one.F, one.Y[:, 0])
    near(Task(one, loss), other.coef_.T, 0.0)


@pytest.mark.parametrize("ridge", [1e-2, 1e-3])
def test_hinges_are_those_of_libsvm_with_an_intercept(ridge: float) -> None:
    one = replace(plain(200, 12, "labels", seed=1), ridge=ridge)
    other = SVC(C=1 / (2 * 200 * ridge), kernel="precomputed", tol=1e-8).fit(one.F @ one.F.T, one.Y[:, 0])
    W = one.F[other.support_].T @ other.dual_coef_.T
    near(Task(one, Hinge()), W, other.intercept_)


@pytest.mark.parametrize("ridge", [1e-2, 1e-3])
@pytest.mark.parametrize("epsilon", [0.1, 0.6])
def test_insensitive_losses_are_those_of_libsvm(ridge: float, epsilon: float) -> None:
    one = replace(plain(200, 12, "numbers"), ridge=ridge)
    other = SVR(C=1 / (2 * 200 * ridge), epsilon=epsilon, kernel="precomputed", tol=1e-8)
    other.fit(one.F @ one.F.T, one.Y[:, 0])
    W = one.F[other.support_].T @ other.dual_coef_.T
    near(Task(one, EpsilonInsensitive(epsilon)), W, other.intercept_)


@pytest.mark.parametrize("alpha", [1.0, 0.01])
def test_huber_is_scikit_learns_at_its_scale(alpha: float) -> None:
    """Which it finds too: sigma + H(r / sigma) sigma is ours of delta = epsilon sigma, over sigma."""
    one = plain(300, 16, "numbers")
    other = HuberRegressor(epsilon=1.35, alpha=alpha, tol=1e-9, max_iter=10**4).fit(one.F, one.Y[:, 0])
    one = replace(one, ridge=alpha * other.scale_ / 300)
    near(Task(one, Huber(1.35 * other.scale_)), other.coef_[:, None], other.intercept_)


@pytest.mark.parametrize("alpha", [0.1, 1e-3])
def test_poisson_is_scikit_learns(alpha: float) -> None:
    one = replace(plain(300, 16, "counts"), ridge=alpha / 2)
    other = PoissonRegressor(alpha=alpha, tol=1e-10, max_iter=5000, solver="newton-cholesky").fit(one.F, one.Y[:, 0])
    near(Task(one, Poisson()), other.coef_[:, None], other.intercept_)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.8])
def test_quantiles_are_scikit_learns_without_a_penalty(tau: float) -> None:
    """That has no squares to penalise: of 4 features, at so small a ridge that it does not count."""
    one = replace(plain(200, 4, "numbers"), ridge=1e-9)
    other = QuantileRegressor(quantile=tau, alpha=0.0).fit(one.F, one.Y[:, 0])
    this = Task(one, Quantiles((tau,)))
    W = other.coef_[:, None]
    assert 1e-9 * np.sum(W**2) < 1e-6 * this.objective(W, np.array([other.intercept_]))[0]
    near(this, W, other.intercept_)


def program(one: World, loss: Loss) -> float:
    """The least objective of a loss that is the largest of lines in each value, by a quadratic program: t_ij at least
    each line; by SLSQP from the linear program's solution, whose constraints are the same."""
    F, (m, r, P), n = one.F, one.weights.shape, len(one.F)
    Phi, size = one.Phi, m * r + P
    lines: list[tuple[FloatArray, FloatArray]] = []  # slope (n P,) by f, constant (n P,)
    Y = loss.spread(one.Y).ravel()
    if isinstance(loss, Quantiles):
        tau = np.tile(loss.quantiles, n * P // loss.levels)
        lines = [(-tau, tau * Y), (1 - tau, (tau - 1) * Y)]
    else:
        others = 1.0 - Y
        lines = [(others, others / (P - 1)), (0.0 * Y, 0.0 * Y)]
    E = np.tile(np.eye(P), (len(F), 1))
    Z = np.hstack([Phi, E])
    A = np.vstack([np.hstack([slope[:, None] * Z, -np.eye(n * P)]) for slope, _ in lines])
    c = np.concatenate([-constant for _, constant in lines])
    equal = np.concatenate([np.zeros(m * r), np.ones(P), np.zeros(n * P)])[None]
    tied: dict[str, Any] = {"A_eq": equal, "b_eq": [0.0]} if loss.centred else {}
    costs = np.concatenate([np.zeros(size), np.full(n * P, 1 / n)])
    first = linprog(costs, A_ub=A, b_ub=c, bounds=[(-20, 20)] * size + [(None, None)] * (n * P), **tied)
    assert first.status == 0
    scale = np.concatenate([np.full(m * r, one.ridge), np.zeros(P + n * P)])
    limits = [{"type": "ineq", "fun": lambda x: c - A @ x, "jac": lambda x: -A}]
    if loss.centred:
        limits.append({"type": "eq", "fun": lambda x: equal @ x, "jac": lambda x: equal})
    found = minimize(
        lambda x: (float(costs @ x + scale @ x**2), costs + 2 * scale * x), first.x, jac=True, method="SLSQP",
        constraints=limits, options={"ftol": 1e-13, "maxiter": 500},
    )  # fmt: skip
    assert found.success or found.status == 8, found.message
    return float(found.fun)


@pytest.mark.parametrize("coupling", [0.0, 2.0])
def test_several_quantiles_are_those_of_a_quadratic_program(coupling: float) -> None:
    loss = Quantiles((0.25, 0.75), coupling)
    one = replace(plain(30, 6, "numbers"), ridge=2e-2)
    one = replace(one, weights=replace(one.weights, root=loss.root[None]), C=np.eye(2))
    wanted = program(one, loss)
    apart = least(Task(one, loss)).value / wanted - 1
    print(f"differs by {apart:.2e}")
    assert abs(apart) <= 1e-5


def test_the_simplex_cone_is_that_of_a_quadratic_program() -> None:
    one = replace(plain(25, 6, "classes", 3), ridge=2e-2)
    root = kernels.output.Simplex().root(3)
    one = replace(one, weights=replace(one.weights, root=root[None]))
    wanted = program(one, SimplexHinge())
    apart = least(Task(one, SimplexHinge())).value / wanted - 1
    print(f"differs by {apart:.2e}")
    assert abs(apart) <= 1e-5


def test_by_sums_over_blocks_of_rows_it_is_the_same() -> None:
    """The pass's own sums in the place of the dense ones, for a loss with a kink and by Newton."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (80, 2))
    found = frequencies.IID().draw(kernels.Decomposable(kernels.Gaussian(0.7)), d=2, p=2, count=6, seed=0)
    phi, Y = plain_map(found.omega), rng.poisson(2.0, (80, 2)).astype(float)
    weights = OperatorWeights(np.ones(12), np.eye(2)[None])
    for loss in (Quantiles((0.3, 0.6)), Poisson()):
        root = np.kron(weights.root, loss.root[None])
        one = World(features(found.omega, X), replace(weights, root=root), Y, np.ones(80), [], np.eye(2 * loss.levels))
        this = Task(one, loss, 2)

        def sums(V: FloatArray, width: float, curved: bool, loss: Loss = loss) -> SlopeSums:
            sums = SlopeSums(Question(V, loss, (1.0, 1.0), width, curved), phi, 16, None)
            for fold in range(2):
                sums.add(X[fold::2], Y[fold::2], fold)
            return sums

        def ask(V: FloatArray, width: float) -> dict[int, FloatArray]:
            return {part[0]: adder.moments().values for part, adder in sums(V, width, False).sums.items()}

        trials, starts = [Attempt(1e-2), Attempt(1e-2, 1)], [this.problem.start] * 2
        dense, summed = (lbfgs(Evaluator(this.problem, way), trials, starts, 1e-6) for way in (this.ask, ask))
        for a, b in zip(dense, summed, strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-8)
        if not loss.kinked:

            def curved(V: FloatArray) -> dict[int, Moments]:
                return sums(V, 0.0, True).total(Moments) and {
                    part[0]: one for part, one in sums(V, 0.0, True).total(Moments).items()
                }

            end = newton(Evaluator(this.problem, ask), curved, trials[0], starts[0], 1e-12)
            assert end.value == pytest.approx(dense[0].value, rel=1e-5) and end.value <= dense[0].value


def test_moments_say_the_features_mean_and_spread_and_the_folds_sizes() -> None:
    """Over all rows, whatever targets they have."""
    rng = np.random.default_rng(0)
    F, w = rng.standard_normal((40, 5)) + 0.5, rng.uniform(0.5, 2.0, 40)
    fold, pattern = np.arange(40) % 3, np.where(np.arange(40) < 25, "", "10")
    parts = {}
    for number in range(3):
        for observed in ("", "10"):
            at = (fold == number) & (pattern == observed)
            sums = Accumulator(5, 2, np.zeros(2), observed=observed)
            Y = np.column_stack([rng.standard_normal(at.sum()), np.zeros(at.sum())])
            Z = np.column_stack([F[at], np.ones(at.sum()), Y])
            sums.add(np.ascontiguousarray(np.sqrt(w[at])[:, None] * Z))
            parts[number, observed] = sums.moments()
    mean, S = feature_moments(list(parts.values()))
    np.testing.assert_allclose(mean, w @ F / w.sum(), rtol=1e-12)
    np.testing.assert_allclose(S, np.cov(F.T, aweights=w, bias=True), rtol=1e-11, atol=1e-13)
    parts[7, ""] = Accumulator(5, 2, np.zeros(2)).moments()  # of no rows
    assert fold_sizes(parts) == pytest.approx({number: w[fold == number].sum() for number in range(3)})


def test_without_an_intercept_nothing_is_taken_off() -> None:
    problem = replace(task("identity").problem, intercept=False)
    raw = without_mean(problem)
    F, _, w, _ = task("identity").rows
    assert not np.any(raw.mean) and raw.loss is problem.loss
    np.testing.assert_allclose(raw.S, F.T @ (w[:, None] * F) / w.sum(), rtol=1e-12, atol=1e-14)
    assert not np.any(problem.free(np.ones(2))) and np.array_equal(
        task("identity").problem.free(np.ones(2)), np.ones(2)
    )
    np.testing.assert_allclose(task("simplex").problem.free(np.array([1.0, 2.0, 6.0])), [-2.0, -1.0, 3.0])
