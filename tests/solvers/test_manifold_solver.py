"""Penalties <f, M f> against the dense dual (Minh 2016, eq. 72) and primal (eq. 74), from explicit features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from cases import every_kernel, kfold_errors, plain_map, positive, weights_of
from scipy.spatial import cKDTree

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments
from dorff.moments.gram import MIXED_UNIT
from dorff.solvers import Fit, Penalty, Problem, Setting, choose, solve
from dorff.solvers.cg import conjugate_gradients
from dorff.solvers.choose import fold_scores
from dorff.solvers.direct import SpectralSolver
from dorff.solvers.matrixfree import make_system, of_moments
from dorff.solvers.uncertainty import posterior

N, D = 26, 10


def knn(X: FloatArray, k: int = 4) -> FloatArray:
    """W (n, n) of heat weights: each row's k nearest others, half of what is listed by one of two only."""
    distance, near = cKDTree(X).query(X, k + 1)
    A = np.zeros((len(X), len(X)))
    np.put_along_axis(A, near[:, 1:], np.exp(-(distance[:, 1:] ** 2)), axis=1)
    return (A + A.T) / 2


def given(n: int, seed: int) -> FloatArray:
    """W of some random edges; some rows have none."""
    A = scipy.sparse.random(n, n, 0.08, rng=np.random.default_rng(seed)).toarray()
    np.fill_diagonal(A, 0.0)
    return A + A.T


def laplacian(W: FloatArray, *, normalised: bool, power: int = 1) -> FloatArray:
    degree = W.sum(axis=1)
    root = np.where(degree > 0, degree, 1.0) ** -0.5
    L = np.diag(degree) - W
    return np.linalg.matrix_power(root[:, None] * L * root if normalised else L, power)


def packed(square: FloatArray, n: int) -> Moments:
    """T (m + 1, m + 1) as moments."""
    columns = [square[: j + 1, j] for j in range(len(square))]
    return Moments(len(square) - 1, 0, n, np.zeros(0), np.concatenate(columns))


@dataclass(frozen=True)
class World:
    """Features F (N, m) of all rows, targets Y (N, q) with NaN for what is not known, row weights; C; and terms: L,
    what couples the views, what couples the outputs, and a weight."""

    F: FloatArray
    weights: OperatorWeights
    Y: FloatArray
    w: FloatArray
    terms: Sequence[tuple[FloatArray, FloatArray | None, FloatArray | None, float]]
    C: FloatArray | None = None
    ridge: float = 1e-3
    intercept: bool = True
    scale: FloatArray | None = None

    @property
    def P(self) -> int:
        return self.weights.shape[2]

    @property
    def l(self) -> float:  # noqa: E743
        return self.w[~np.isnan(self.Y).all(axis=1)].sum()

    @property
    def Phi(self) -> FloatArray:
        """(N P, m r), with the rows of a point together."""
        return np.einsum("na,arp->npar", self.F, self.weights.psi).reshape(len(self.F) * self.P, -1)

    @property
    def ones(self) -> FloatArray:
        return np.tile(np.eye(self.P), (len(self.F), 1))

    @property
    def seen(self) -> tuple[FloatArray, FloatArray]:
        """C*C J with weights (N P, N P), and C* y (N P,), of the scaled targets."""
        scale = np.ones(self.Y.shape[1]) if self.scale is None else self.scale
        C = np.eye(self.P) if self.C is None else self.C
        some, blocks, right = ~np.isnan(self.Y), [], []
        for there, y, w in zip(some, self.Y / scale, self.w, strict=True):
            blocks.append(w * C[there].T @ C[there])
            right.append(w * C[there].T @ y[there])
        return scipy.linalg.block_diag(*blocks), np.concatenate(right)

    @cached_property
    def M(self) -> FloatArray:
        """The sum of gI L (x) Q (N P, N P)."""
        total = np.zeros((len(self.F) * self.P,) * 2)
        for L, views, outputs, weight in self.terms:
            V = self.weights.count
            Q = np.kron(np.eye(V) if views is None else views, np.eye(self.P // V) if outputs is None else outputs)
            total += weight * np.kron(L, Q)
        return total

    def dual(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """a (N P,), b (P,) and f (N P,): eq. 72 with K = Phi Phi^T; b free makes the sum of a over the rows 0."""
        (J, right), K, E, lg = self.seen, self.Phi @ self.Phi.T, self.ones, self.l * self.ridge
        A = J + self.l * self.M
        if not self.intercept:
            a = np.linalg.solve(A @ K + lg * np.eye(len(K)), right)
            return a, np.zeros(self.P), K @ a
        system = np.block([[A @ K + lg * np.eye(len(K)), A @ E], [E.T, np.zeros((self.P, self.P))]])
        found = np.linalg.lstsq(system, np.append(right, np.zeros(self.P)), rcond=1e-13)[0]
        a, b = found[: -self.P], found[-self.P :]
        return a, b, K @ a + E @ b

    def primal(self) -> tuple[FloatArray, FloatArray]:
        """Eq. 74 over [Phi | 1]: the precision, and its solution."""
        J, right = self.seen
        Z = np.hstack([self.Phi, self.ones]) if self.intercept else self.Phi
        precision = Z.T @ (J + self.l * self.M) @ Z
        k = self.Phi.shape[1]
        precision[np.arange(k), np.arange(k)] += self.l * self.ridge
        return precision, np.linalg.lstsq(precision, Z.T @ right, rcond=1e-14)[0]

    def parts(self, rows: FloatArray | None = None) -> list[Moments]:
        """The moments of the rows with targets, or of some of them, pattern by pattern; about a y0 that is not 0."""
        some = ~np.isnan(self.Y)
        q, made = self.Y.shape[1], []
        y0 = np.linspace(0.4, 0.9, q)
        chosen = np.ones(len(self.Y), bool) if rows is None else np.isin(np.arange(len(self.Y)), rows)
        for pattern in np.unique(some[some.any(axis=1)], axis=0):
            at = np.flatnonzero(np.all(some == pattern, axis=1) & chosen)
            if not len(at):
                continue
            name = "" if pattern.all() else "".join(str(int(one)) for one in pattern)
            sums = Accumulator(self.F.shape[1], q, y0, observed=name)
            Z = np.column_stack([self.F[at], np.ones(len(at)), np.where(pattern, self.Y[at] - y0, 0.0)])
            sums.add(np.ascontiguousarray(np.sqrt(self.w[at])[:, None] * Z))
            made.append(sums.moments())
        return made

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        F1 = np.column_stack([self.F, np.ones(len(self.F))])
        return tuple(
            Penalty(packed(F1.T @ L @ F1, len(L)), weight, outputs, views) for L, views, outputs, weight in self.terms
        )

    def problem(self) -> Problem:
        return Problem.of(
            self.parts(), self.weights, intercept=self.intercept, scale=self.scale, observe=self.C,
            penalties=self.penalties,
        )  # fmt: skip

    def values(self, problem: Problem, h: FloatArray) -> FloatArray:
        """f (N, P) at all rows, in the scaled targets' units."""
        outputs = np.full(self.P, problem.scale[0]) if self.C is not None else problem.scale
        W = self.weights.combined(h)
        return self.F @ W + problem.bias(W) / outputs


def features(omega: FloatArray, X: FloatArray) -> FloatArray:
    return plain_map(omega).transform(X)


def world(name: str, seed: int = 0, **options) -> World:
    """A kernel, rows in a square, of which 2 in 3 have targets; L of a graph, identity Q, no C."""
    rng = np.random.default_rng(seed)
    kind, *size = name.split()
    p = int(size[0])
    d = p if kind in ("curl", "div", "helmholtz") else 2
    X = rng.uniform(-1.2, 1.2, (N, d))
    chosen = {"identity": "identity", "matrix": "matrix", "two": "two scalars", "deficient": "deficient",
              "curl": "curl trace", "div": "div trace", "helmholtz": "helmholtz trace"}.get(kind)  # fmt: skip
    if chosen:
        kernel = dict(every_kernel(d, p))[chosen].fix(d, p, None)
        found = frequencies.IID().draw(kernel, d=d, p=p, count=D, seed=seed)
        weights, F, q = weights_of(kernel, found), features(found.omega, X), p
    else:
        weights, F, q = several_views(kind, p, X, rng), np.empty(0), p
        F = features(rng.standard_normal((len(weights.gain) // 2, d)), X)
        options.setdefault("C", np.kron(np.full(weights.count, 1 / weights.count), np.eye(p)))
    C = options.get("C")
    q = q if C is None else len(C)
    Y = np.sin(X @ rng.standard_normal((d, q)) + np.arange(q)) + np.linspace(0.5, 2.0, q)
    Y[rng.permutation(N)[: N // 3]] = np.nan
    L = laplacian(knn(X), normalised=False)
    return World(F, weights, Y, np.ones(N), **({"terms": [(L, None, None, 1e-2)]} | options))


def several_views(kind: str, p: int, X: FloatArray, rng: np.random.Generator) -> OperatorWeights:
    """Three views of p outputs: with one root for all, or each feature with its own."""
    views = np.tile(rng.integers(0, 3, D), 2)
    root = rng.standard_normal((1 if kind == "views" else len(views), p, p))
    if kind == "views":
        root = np.linalg.cholesky(positive(p, p)).T[None] if p == 3 else np.diag(np.arange(1.0, p + 1))[None]
    return OperatorWeights(rng.uniform(0.5, 2.0, len(views)), root, views, 3)


BETWEEN = 3 * np.eye(3) - 1.0
KINDS = ["identity 1", "identity 2", "identity 3", "identity 4", "matrix 2", "matrix 3", "two 2", "deficient 3",
         "curl 2", "curl 3", "div 2", "div 3", "div 4", "helmholtz 2", "curl 4", "views 1", "views 2", "views 3",
         "mixed 2"]  # fmt: skip


def drawn(number: int) -> World:
    """Everything that can be combined, drawn by chance."""
    pick = Random(number)
    kind = KINDS[number % len(KINDS)]
    one = world(kind, number, intercept=pick.random() < 0.7)
    p = one.P // one.weights.count
    rng = np.random.default_rng(number)
    if kind.split()[0] not in ("views", "mixed") and pick.random() < 0.4:
        q = pick.choice([max(1, p - 1), p + 1])
        C = rng.standard_normal((q, p))
        Y = one.Y @ rng.standard_normal((p, q))
        one = replace(one, C=C, Y=Y)
    return replace(
        one, terms=[term(one, pick, rng) for _ in range(pick.choice([1, 1, 2]))],
        w=rng.uniform(0.3, 3.0, N) if pick.random() < 0.5 else one.w,
        **standardized(one, pick), Y=partial(one, pick, rng),
    )  # fmt: skip


def term(one: World, pick: Random, rng: np.random.Generator):
    V, p = one.weights.count, one.P // one.weights.count
    W = knn(one.F[:, :3]) if pick.random() < 0.5 else given(N, pick.randrange(99))
    L = laplacian(W, normalised=pick.random() < 0.5, power=pick.choice([1, 2]))
    root = one.weights.root[0]
    outputs = pick.choice([
        None, None, positive(p, pick.randint(1, p), pick.randrange(99)), np.diag(np.arange(p) + 0.5),
        root.T @ root @ root.T @ root,
    ])  # fmt: skip
    if V > 1 and pick.random() < 0.5:
        return np.eye(N), BETWEEN, outputs, 0.02
    views = np.diag(np.eye(V)[1]) if V > 1 and pick.random() < 0.5 else None
    return np.eye(N) if pick.random() < 0.2 else L, views, outputs, 10.0 ** pick.uniform(-3, 0)


def standardized(one: World, pick: Random):
    if pick.random() < 0.5:
        return {}
    q = one.Y.shape[1]
    return {"scale": np.full(q, 1.7) if one.C is not None else np.linspace(0.6, 2.1, q)}


def partial(one: World, pick: Random, rng: np.random.Generator) -> FloatArray:
    q = one.Y.shape[1]
    free = one.C is None or np.linalg.matrix_rank(one.C) == q
    if pick.random() < 0.6 or not free:
        return one.Y
    Y = one.Y.copy()
    for row in range(0, N, 3):
        Y[row, rng.integers(q)] = np.nan
    return Y


def close(found: FloatArray, wanted: FloatArray, tolerance: float = 1e-8) -> bool:
    return np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("number", range(4 * len(KINDS)))
def test_dual_primal_and_representer(number):
    one = drawn(number)
    problem, (J, right), (a, _, f) = one.problem(), one.seen, one.dual()
    # What neither C nor M sees of the intercept is open: each has the smallest of all, but from zeros of its own.
    open_ = scipy.linalg.null_space(one.ones.T @ (J + one.l * one.M) @ one.ones, rcond=1e-10)
    open_ = open_ if one.intercept else np.zeros((one.P, 0))
    solutions = [*solve(problem, [one.ridge]), SpectralSolver(problem).solve(one.ridge)]
    for solution in solutions:
        values = one.values(problem, solution.h).reshape(-1, one.P)
        difference = values - f.reshape(-1, one.P)
        difference -= (difference.mean(axis=0) @ open_) @ open_.T
        assert np.abs(difference).max() <= 1e-8 * max(1.0, np.abs(f).max())
        assert close(solution.h.ravel(), one.Phi.T @ a)  # the representer theorem
        own = -(J @ values.ravel() - right + one.l * one.M @ values.ravel()) / (one.l * one.ridge)
        assert close(one.Phi.T @ own, solution.h.ravel(), 1e-7)
        _, found = one.primal()
        assert close(solution.h.ravel(), found[: solution.h.size])
        assert solution.gcv is None and solution.log_evidence is None


def test_what_is_solved():
    """Outputs that fall apart have systems of m unknowns, one for each share of the penalties."""
    Q = positive(3, 3, 1)
    A, turn = Q @ Q + 2 * Q, np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    L = laplacian(knn(world("identity 3").F[:, :2]), normalised=True)
    diagonal = np.diag([1.0, 2.0, 2.0])
    for root, outputs, columns in [
        (np.eye(3), None, [3]), (np.eye(3), diagonal, [1, 2]), (np.eye(3), Q, [1, 1, 1]),
        (np.linalg.cholesky(A).T, Q, [1, 1, 1]), (np.linalg.cholesky(A).T, None, [3]),
        (np.linalg.cholesky(A).T, turn @ diagonal @ turn.T, [1]),
    ]:  # fmt: skip
        one = world("identity 3", terms=[(L, None, outputs, 0.1)])
        one = replace(one, weights=OperatorWeights(np.ones(2 * D), root[None]))
        problem = one.problem()
        blocks, (solution,) = problem.blocks, solve(problem, [one.ridge])
        assert close(one.values(problem, solution.h).ravel(), one.dual()[2])
        assert sorted(block.rhs.shape[1] for block in blocks) == columns
        assert len(blocks[0].rhs) == (2 * D if len(columns) > 1 or columns[0] > 1 else 6 * D)
    for kind in ("views 1", "views 2", "views 3"):
        one = world(kind)
        between = replace(one, terms=[*one.terms, (np.eye(N), BETWEEN, None, 0.1)])
        assert [block.rhs.shape for block in between.problem().blocks] == [(2 * D, int(kind[-1]))]
    assert [block.rhs.shape for block in world("mixed 2").problem().blocks] == [(4 * D, 1)]


POSTERIORS = ["identity 2", "matrix 3", "deficient 3", "curl 2", "views 1", "views 2", "views 3", "mixed 2"]


@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])
@pytest.mark.parametrize("kind", POSTERIORS)
def test_posterior(kind, intercept):
    one = world(kind, 3, intercept=intercept)
    V, p = one.weights.count, one.P // one.weights.count
    L = laplacian(given(N, 7), normalised=True)
    outputs = positive(p, p, 4) if kind == "identity 2" else None
    terms = [(L, None, outputs, 0.05), (np.eye(N), BETWEEN if V > 1 else None, None, 0.02)]
    one = replace(one, terms=terms, w=np.random.default_rng(1).uniform(0.5, 2.0, N))
    problem = one.problem()
    precision, _ = one.primal()
    (solution,) = solve(problem, [one.ridge])
    # s2 is the least objective over what the labelled rows have beyond the intercept.
    J, right = one.seen
    f = one.values(problem, solution.h).ravel()
    squares = np.nansum(one.w[:, None] * one.Y**2)
    least = squares - 2 * f @ right + f @ J @ f + one.l * (f @ one.M @ f + one.ridge * np.sum(solution.h**2))
    labelled = np.count_nonzero(~np.isnan(one.Y[:, 0])) - intercept
    count = np.array([labelled]) if problem.directions is not None else np.array([labelled * one.Y.shape[1]])
    assert np.isclose(np.sum(solution.variance * count), least, rtol=1e-9)
    H = np.sqrt(solution.variance[0]) * np.eye(p)
    if problem.directions is not None:
        H = (problem.directions * np.sqrt(solution.variance)) @ problem.directions.T
    Z = np.hstack([one.Phi, one.ones]) if intercept else one.Phi
    spread = np.kron(np.eye(N * V), H)
    wanted = spread @ Z @ np.linalg.inv(precision) @ Z.T @ spread
    noise = np.diag(np.linspace(0.3, 0.7, one.Y.shape[1]))
    found = posterior(problem, solution, noise, one.parts())
    np.testing.assert_array_equal(found.noise, noise)
    covariance = np.stack([wanted[i * one.P : (i + 1) * one.P, i * one.P : (i + 1) * one.P] for i in range(N)])
    assert close(found.covariance(one.F), covariance)
    summed = np.kron(np.ones((N, N)), found.intercept_covariance)
    for block in found.blocks:
        for j in range(len(block.variance)):
            own = block.spread[:, j if block.spread.shape[1] > 1 else 0] * block.variance[j]
            for column, size in zip(block.basis.T, own, strict=True):
                x, h, b = np.zeros((len(column), len(block.variance))), np.zeros(solution.h.shape), np.zeros(one.P)
                x[:, j] = column * np.sqrt(size)
                block.place(x[None], h[None], b[None])
                g = (one.F @ one.weights.combined(h) + b).ravel()
                summed += np.outer(g, g)
    assert close(summed, wanted)


def one_setting(kind: str, intercept: bool, standardize: bool, count: int = D) -> tuple[Setting, FloatArray, World]:
    """A setting, targets Y of which some are unlabelled, and a world of the same but for scales."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.2, 1.2, (N, 2))
    kernel = {
        "identity": kernels.Decomposable(kernels.Gaussian(0.8)),
        "covariance": kernels.Decomposable(kernels.Gaussian(0.8), "covariance"),
        "simplex": kernels.Decomposable(kernels.Gaussian(0.8), "simplex"),
        "plain": kernels.Decomposable(kernels.Gaussian(0.8), "covariance"),
        "curl": kernels.CurlFree(kernels.Gaussian(0.8)),
        "views": kernels.MultiView([(1, kernels.Gaussian(0.8)), (1, kernels.Gaussian(0.5))]),
    }[kind]
    p = 4 if kind == "views" else 2
    fixed = kernel.fix(2, p, np.eye(2))
    found = frequencies.IID().draw(fixed, d=2, p=p, count=count, seed=1)
    observe = np.kron([0.5, 0.5], np.eye(2)) if kind == "views" else None
    Y = np.sin(X @ rng.standard_normal((2, 2))) * [1.0, 3.0] + [0.5, 2.0]
    Y[rng.permutation(N)[:8]] = np.nan
    L, Q = laplacian(knn(X), normalised=True), positive(2, 2, 3)
    terms = [(L, None, Q if kind not in ("covariance", "simplex") else None, 0.3)] if kind != "plain" else []
    terms += [(np.eye(N), 2 * np.eye(2) - 1.0, None, 0.1)] if kind == "views" else []
    one = World(features(found.omega, X), weights_of(fixed, found), Y, np.ones(N), terms, observe, 1e-3, intercept)
    setting = Setting(
        kernel, 2, 2 * count, (found.omega, found.log_density, found.serves), standardize, intercept, observe,
        penalties=one.penalties,
    )  # fmt: skip
    return setting, Y, one


def refit(setting: Setting, one: World, rows: FloatArray, ridge: float) -> FloatArray:
    """C f (N, q) in the targets' units of the dense primal, the labelled among `rows` alone having targets."""
    Y = np.where(np.isin(np.arange(N), rows)[:, None], one.Y, np.nan)
    variance = np.nanvar(Y, axis=0)
    scale = np.ones(2)
    if setting.standardize:
        together = setting.observe is not None or setting.kernel.vector_field
        scale = np.sqrt(np.full(2, variance.mean()) if together else variance)
    there = ~np.isnan(Y[:, 0])
    covariance = np.cov((Y[there] / scale).T, bias=True) if setting.observe is None else None
    fixed = setting.kernel.fix(2, one.P, covariance)
    own = replace(one, Y=Y, scale=scale, ridge=ridge, weights=setting.weights(fixed))
    Z = np.hstack([own.Phi, own.ones]) if own.intercept else own.Phi
    f = (Z @ own.primal()[1]).reshape(N, -1)
    return (f if one.C is None else f @ one.C.T) * scale


def predicted(one: World, fit: Fit) -> FloatArray:
    f = one.F @ fit.W + fit.bias
    return f if one.C is None else f @ one.C.T


@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])
@pytest.mark.parametrize("count", [D, 3 * D], ids=["eigh", "rows"])
@pytest.mark.parametrize("kind", ["identity", "simplex", "views"])
def test_folds_of_a_free_scale_against_refits(kind, count, intercept):
    """Of one-hot rows: f and the rows about the mean of their outputs, f times the number that serves best."""
    if kind == "views" and count > D:
        pytest.skip("two penalties: their folds are not found by rows")
    setting, _, one = one_setting(kind, intercept, standardize=False, count=count)
    Y = np.where(np.isnan(one.Y[:, :1]), np.nan, np.column_stack([one.Y[:, 0] > 0.5, one.Y[:, 0] <= 0.5]))
    setting, one = replace(setting, free_scale=True), replace(one, Y=Y)
    labelled = np.flatnonzero(~np.isnan(Y[:, 0]))
    held, ridges = [labelled[start::3] for start in range(3)], list(np.logspace(-4, 1, 10))
    wanted, folds = [], [one.parts(rows) for rows in held]
    for ridge in ridges:
        f = np.concatenate([refit(setting, one, np.setdiff1d(labelled, rows), ridge)[rows] for rows in held])
        y = Y[np.concatenate(held)] - 0.5
        f = f - f.mean(axis=1, keepdims=True)
        s = max(np.sum(f * y), 0.0) / np.sum(f**2)
        wanted.append(np.mean((s * f - y) ** 2))
    plain = kfold_errors(folds, replace(setting, free_scale=False), ridges)
    found = kfold_errors(folds, setting, ridges)
    assert np.allclose(found, wanted, rtol=1e-8)
    assert np.all(found <= plain * (1 + 1e-9)) and np.min(found / plain) < 0.98
    assert np.allclose(kfold_errors(folds, setting, ridges[:2]), wanted[:2], rtol=1e-8)  # by Cholesky


@pytest.mark.parametrize("standardize", [True, False], ids=["standardize", "units"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "origin"])
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *[(kind, D) for kind in ("identity", "covariance", "curl", "views", "simplex")],
        *[(kind, 3 * D) for kind in ("identity", "covariance", "simplex", "plain")],
    ],
)
def test_folds_against_refits(kind, count, intercept, standardize):
    setting, Y, one = one_setting(kind, intercept, standardize, count)
    labelled = np.flatnonzero(~np.isnan(Y[:, 0]))
    held = [labelled[start::3] for start in range(3)]
    folds = [one.parts(rows) for rows in held]
    ridges = list(np.logspace(-4, 0, 10))
    wanted, r2 = [], []
    for ridge in ridges:
        errors = [(refit(setting, one, np.setdiff1d(labelled, rows), ridge)[rows] - Y[rows]) ** 2 for rows in held]
        squares, spread = np.sum(np.concatenate(errors), axis=0), len(labelled) * np.var(Y[labelled], axis=0)
        wanted.append(squares.sum() / (2 * len(labelled)))
        r2.append(1 - squares.sum() / spread.sum() if kind == "curl" else np.mean(1 - squares / spread))
    scores = fold_scores(folds, setting, ridges)  # by an eigh, or the few rows there are
    assert {score.rung for score in scores} == {"rows" if count > D else "direct"}
    assert np.allclose([score.value for score in scores], wanted, rtol=1e-8)
    assert np.allclose([score.r2 for score in scores], r2, rtol=1e-8)
    assert np.allclose(kfold_errors(folds, setting, ridges[:2]), wanted[:2], rtol=1e-8)  # by Cholesky
    smooth = replace(setting, penalties=tuple(replace(each, weight=30 * each.weight) for each in setting.penalties))
    candidates = [replace(setting, penalties=()), setting, smooth]
    chosen = choose(folds, candidates, ridges)
    table = np.array([score.r2 for score in chosen.table]).reshape(3, -1)
    assert np.allclose(table[1], r2, rtol=1e-8)
    assert {score.rung for score in chosen.table[10:]} == {"rows" if count > D else "direct"}
    assert all(score.digits > 3 for score in chosen.table if score.ridge > 1e-3)
    best = candidates[chosen.candidate]
    assert chosen.candidate == np.argmax(table) // 10
    terms = [(*term[:3], each.weight) for term, each in zip(one.terms, best.penalties, strict=False)]
    own = replace(one, terms=terms)
    assert close(predicted(own, chosen.fit), refit(best, own, labelled, chosen.fit.solution.ridge))


@pytest.mark.parametrize("weight", [1e-9, 1e-3, 1e3])
def test_rounding_of_a_penalty_counts_by_its_share_of_the_system(weight):
    """Beside the rows that a row of psi sees: what C enlarges elsewhere is no excuse, nor rows of other targets."""
    rng = np.random.default_rng(2)
    F, root = rng.standard_normal((N, D)), np.array([[[0.0, 1.0]]])
    T = F[1:] - F[:-1]
    sums = packed(np.pad(T.T @ T, ((0, 1), (0, 1))), N - 1)
    rough = replace(sums, unit=1e-8)
    Y = rng.standard_normal((N, 2))
    Y[: N // 2, 0] = np.nan
    Y[N // 2 :, 1] = np.nan
    top = (F[: N // 2] ** 2).sum(axis=0) + N * weight * np.diag(T.T @ T)
    share = N * weight * np.diag(T.T @ T).max() / top.max()
    weights = OperatorWeights(np.ones(D), root)
    for C in (None, np.diag([1e5, 1.0])):
        one = World(F, weights, Y, np.ones(N), [], C)
        penalty = Penalty(rough, weight, np.diag([0.0, 1.0]))
        problem = Problem.of(one.parts(), weights, intercept=True, observe=C, penalties=[penalty])
        assert np.isclose(problem.unit, max(1e-8 * share, sums.unit), rtol=1e-6)


@pytest.mark.parametrize("ridge", [1e-9, 1e-12])
def test_folds_by_rows_keep_their_digits_where_the_penalties_are_small(ridge):
    """Against least squares of stacked rows, in which nothing was squared; the intercept is free."""
    setting, _, one = one_setting("identity", True, standardize=False, count=3 * D)
    one = replace(one, ridge=ridge, terms=[(*one.terms[0][:3], 1e-9)])
    labelled = np.flatnonzero(~np.isnan(one.Y[:, 0]))
    held, Z = [labelled[start::3] for start in range(3)], np.hstack([one.Phi, one.ones])
    wanted = []
    for rows in held:
        there = np.isin(np.arange(N), np.setdiff1d(labelled, rows))
        own, some = replace(one, Y=np.where(there[:, None], one.Y, np.nan)), np.repeat(there, 2)
        values, vectors = np.linalg.eigh(own.M)
        smooth = (vectors * np.sqrt(own.l * np.maximum(values, 0.0))).T @ Z
        small = np.sqrt(own.l * ridge) * np.eye(own.Phi.shape[1], Z.shape[1])
        A, y = np.vstack([Z[some], small, smooth]), one.Y[there].ravel()
        h = np.linalg.lstsq(A, np.append(y, np.zeros(len(A) - len(y))), rcond=1e-15)[0]
        wanted.append(((Z @ h).reshape(N, 2) - one.Y)[rows] ** 2)
    folds = [one.parts(rows) for rows in held]
    (found,) = fold_scores(folds, replace(setting, penalties=one.penalties), [ridge])
    assert found.rung == "rows" and found.digits > 4.0
    assert np.isclose(found.value, np.mean(np.concatenate(wanted)), rtol=1e-6)


def test_folds_of_few_rows_in_float32_are_not_factored():
    """Noise of float32 is no rows: such folds are solved directly."""
    setting, _, one = one_setting("identity", True, standardize=False, count=3 * D)
    labelled = np.flatnonzero(~np.isnan(one.Y[:, 0]))
    folds = [one.parts(labelled[start::3]) for start in range(3)]
    coarse = [[replace(part, unit=MIXED_UNIT) for part in fold] for fold in folds]
    assert {score.rung for score in fold_scores(folds, setting, [1e-3])} == {"rows"}
    assert {score.rung for score in fold_scores(coarse, setting, [1e-3])} == {"direct"}


def test_fewer_features_cut_penalties_too():
    setting, _, one = one_setting("identity", True, False)
    at = np.concatenate([np.arange(D // 2), np.arange(D, D + D // 2)])
    less = replace(one, F=one.F[:, at] * np.sqrt(2.0), weights=OperatorWeights(np.ones(D), np.eye(2)[None]))
    chosen = choose([one.parts()], [setting], [1e-3], counts=[D])
    assert close(predicted(less, chosen.fit), refit(replace(setting, m=D, density=None), less, np.arange(N), 1e-3))


@pytest.mark.parametrize("kind", ["views 1", "views 2", "views 3"])
def test_views_without_penalties(kind):
    """The systems of m unknowns, one system for all outputs, and conjugate gradients: the same."""
    one = world(kind, terms=[])
    root = np.repeat(one.weights.root, 2 * D, axis=0)
    twin = replace(one, weights=replace(one.weights, root=root))
    (found,), (same,) = (solve(each.problem(), [one.ridge], scores=True) for each in (one, twin))
    system = make_system(*of_moments(one.parts()), one.weights, observe=one.C)
    iterated = conjugate_gradients(system, one.ridge)
    wanted = one.primal()[1]
    assert all(close(each.h.ravel(), wanted[: each.h.size]) for each in (found, same, iterated))
    assert np.isclose(found.gcv, same.gcv, rtol=1e-8)
    # With one output both have one noise variance.
    assert kind != "views 1" or np.isclose(found.log_evidence, same.log_evidence, rtol=1e-8)


def test_several_penalties_add_and_weight_zero_is_none():
    one = world("curl 2", 1)
    ((L, _, _, weight),) = one.terms
    twice = replace(one, terms=[(L, None, None, weight / 2), (L, None, None, weight / 2), (L, None, None, 0.0)])
    (solution,), (same,) = solve(one.problem(), [1e-3]), solve(twice.problem(), [1e-3])
    assert close(same.h, solution.h, 1e-11)
    assert len(twice.problem().penalty_borders) == 2


def test_a_penalty_smooths():
    """As its weight grows f goes to what it does not penalise: constants where L 1 = 0, and 0 where L = I."""
    one = world("identity 2", 2, terms=[])
    W = knn(one.F[:, :2]) + 1e-3
    for L, wanted in [(laplacian(W, normalised=False), np.nanmean(one.Y, axis=0)), (np.eye(N), np.zeros(2))]:
        problem = replace(one, terms=[(L, None, None, 1e7)]).problem()
        (solution,) = solve(problem, [one.ridge])
        assert np.abs(one.values(problem, solution.h) - wanted).max() < 1e-4


def test_a_shift_is_an_addition_to_the_diagonal():
    one = world("identity 2", 2)
    F1 = np.column_stack([one.F, np.ones(N)])
    T = F1.T @ laplacian(knn(one.F[:, :2]), normalised=True) @ F1
    lift = 1e-3 * np.diag(T).max()
    shifted, known = (
        Problem.of(one.parts(), one.weights, penalties=[Penalty(packed(square, N), 0.1, shift=shift)])
        for square, shift in [(T, 1e-3), (T + lift * np.eye(len(T)), 0.0)]
    )
    assert close(solve(shifted, [1e-3])[0].h, solve(known, [1e-3])[0].h, 1e-12)


def test_a_shift_makes_up_for_rounding():
    """(D - W) 1 = 0 and T >= 0, but for rounding: with the shift there is a factor, and what neither C nor M sees of
    the intercept stays as it is."""
    one = world("identity 2", 2, C=np.array([[1.0, 1.0]]))
    W = knn(one.F[:, :2])
    W[4:] = W[:, 4:] = 0.0
    F1, L = np.column_stack([one.F, np.ones(N)]), laplacian(W, normalised=False)
    noise = np.random.default_rng(0).standard_normal((2 * D + 1,) * 2) * 1e-13
    T = F1.T @ L @ F1
    T += (noise + noise.T) * np.diag(T).max()
    T[-1, -1] = -abs(T[-1, -1])
    problems = [
        Problem.of(one.parts(), one.weights, observe=one.C, penalties=[Penalty(packed(T, N), 10.0, shift=shift)])
        for shift in (0.0, 1e-11)
    ]
    assert [solve(problem, [1e-18])[0].rung for problem in problems] == ["eigh", "cholesky"]
    (solution,) = solve(problems[1], [one.ridge])
    bias = problems[1].bias(one.weights.combined(solution.h))
    assert abs(bias @ [1.0, -1.0]) < 1e-12
    f = replace(one, terms=[(L, None, None, 10.0)]).dual()[2].reshape(N, 2)
    assert close(one.values(problems[1], solution.h) @ [1.0, 1.0], f @ [1.0, 1.0])


def test_a_penalty_of_another_size():
    one, sums = world("identity 2"), packed(np.eye(2 * D + 1), N)
    with pytest.raises(InputError, match=r"outputs must be \(2, 2\) here, got \(3, 3\)"):
        Problem.of(one.parts(), one.weights, penalties=[Penalty(sums, 1.0, np.eye(3))])


def test_what_does_not_go_with_penalties():
    setting, _, one = one_setting("identity", True, False)
    folds = [one.parts(np.arange(0, N, 2)), one.parts(np.arange(1, N, 2))]
    for by in ("gcv", "evidence"):
        with pytest.raises(InputError, match="choose by kfold"):
            choose(folds, [setting], [1e-3, 1.0], by=by)
        with pytest.raises(InputError, match="choose by kfold"):
            choose(folds, [setting], [1e-3], by=by, per_output=True, counts=[D, 2 * D])
    with pytest.raises(InputError, match="one ridge for all outputs"):
        choose(folds, [setting], [1e-3, 1.0], by="kfold", per_output=True)
    with pytest.raises(InputError, match="learned"):
        replace(setting, kernel=kernels.Decomposable(kernels.Gaussian(0.8), "learned"))
    views, _, of_views = one_setting("views", True, False)
    with pytest.raises(InputError, match="several do not go with a multi-view kernel"):
        choose([of_views.parts()], [views], [1e-3], counts=[D])
