"""The learned output matrix against dense and scipy twins, and what it is for."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from cases import LAW, positive
from hypothesis import given
from hypothesis import strategies as st

from dorff.errors import InputError
from dorff.kernels import Learned
from dorff.kernels.scalar import FloatArray
from dorff.solvers.outputs import FLOORS, NORMS, LearnedOutput, learn_output

penalties = pytest.mark.parametrize("penalty", NORMS)


def matrix(learned: LearnedOutput) -> FloatArray:
    """A (p, p)."""
    return learned.factor @ learned.factor.T


@dataclass(frozen=True)
class Rows:
    """Features (n, m) and targets (n, q) = F W C' + noise, W (m, p) of rank `rank`."""

    F: FloatArray
    Y: FloatArray
    W: FloatArray
    C: FloatArray | None

    @classmethod
    def of(cls, n, m, p, rank, *, noise=0.3, q=None, seed=0) -> "Rows":
        rng = np.random.default_rng(seed)
        F = rng.standard_normal((n, m)) / np.sqrt(m)
        W = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, p)) / np.sqrt(rank)
        C = None if q is None else rng.standard_normal((q, p))
        Y = F @ W if C is None else F @ W @ C.T
        return cls(F, Y + noise * rng.standard_normal(Y.shape), W, C)

    @property
    def p(self) -> int:
        return self.W.shape[1]

    def learn(self, ridge, penalty) -> LearnedOutput:
        spectrum, V = np.linalg.eigh(self.F.T @ self.F)
        return learn_output(spectrum, V.T @ (self.F.T @ self.Y), len(self.F), ridge, penalty=penalty, observe=self.C)

    def solve(self, A, ridge) -> tuple[FloatArray, float]:
        """W (m, p) and the objective, less tr E / l, for A = B B': every Kronecker product formed, no eigenvectors."""
        n, m, p = len(self.F), self.F.shape[1], self.p
        S, C = self.F.T @ self.F, np.eye(p) if self.C is None else self.C
        values, Q = np.linalg.eigh(A)
        B = Q * np.sqrt(np.maximum(values, 0.0)) @ Q.T
        RCB = self.F.T @ self.Y @ C @ B
        U = np.linalg.solve(np.kron(S, B.T @ C.T @ C @ B) + n * ridge * np.eye(m * p), RCB.ravel()).reshape(m, p)
        loss = np.sum((self.Y - self.F @ U @ B.T @ C.T) ** 2) - np.sum(self.Y**2)
        return U @ B.T, loss / n + ridge * np.sum(U**2)


def size(A, penalty) -> float:
    """What the constraint holds at p."""
    return float(np.trace(A) if penalty == "trace" else np.sum(A**2))


@penalties
@given(p=st.integers(1, 5), seed=st.integers(0, 99))
@LAW
def test_the_closed_forms_are_the_least_penalty(penalty: str, p: int, seed: int) -> None:
    """min tr(A^-1 G) with tr A = p is A ~ G^(1/2), with |A|_F^2 = p it is A ~ G^(1/3): scipy finds nothing less.

    By Lagrange: A^-1 G A^-1 = multiplier d size / dA, which is a multiple of I, or of A.
    """
    G = positive(p, p + 3, seed)
    values, Q = np.linalg.eigh(G)
    A = (Q * values ** (1 / (NORMS[penalty] + 1))) @ Q.T
    A *= (p / size(A, penalty)) ** (1 / NORMS[penalty])
    multiplier = np.linalg.inv(A) @ G @ np.linalg.inv(A) @ np.linalg.inv(A if penalty == "frobenius" else np.eye(p))
    np.testing.assert_allclose(multiplier, multiplier[0, 0] * np.eye(p), atol=1e-8 * abs(multiplier[0, 0]))

    def value(entries):
        L = np.zeros((p, p))
        L[np.tril_indices(p)] = entries
        M = L @ L.T + 1e-12 * np.eye(p)
        M *= (p / size(M, penalty)) ** (1 / NORMS[penalty])
        return np.sum(G * np.linalg.inv(M))

    least = np.sum(G * np.linalg.inv(A))
    rng = np.random.default_rng(seed)
    around = np.linalg.cholesky(A)[np.tril_indices(p)] * rng.uniform(0.5, 1.5, p * (p + 1) // 2)
    found = scipy.optimize.minimize(value, around, method="L-BFGS-B", options={"maxiter": 200})
    assert found.fun >= least * (1 - 1e-9)
    assert found.fun <= least * (1 + 1e-3)  # near it: the search was one


@penalties
@pytest.mark.parametrize("q", [None, 2, 5], ids=["all", "q < p", "q > p"])
@pytest.mark.parametrize("ridge", [1e-3, 1e-2, 1e-1])
def test_the_minimum_is_that_of_a_general_optimiser(penalty: str, q: int | None, ridge: float) -> None:
    """Over W alone: A eliminated, the penalty is |W|_*^2 / p, or (sum of sigma^(4/3))^(3/2) / sqrt p."""
    rows = Rows.of(40, 6, 3, 2, q=q)
    learned = rows.learn(ridge, penalty)
    assert learned.converged
    np.testing.assert_allclose(size(matrix(learned), penalty), rows.p)
    W, objective = rows.solve(matrix(learned), ridge)
    assert objective == pytest.approx(learned.history[-1], rel=1e-6)
    C = np.eye(rows.p) if rows.C is None else rows.C

    def value(entries):
        V = entries.reshape(W.shape)
        U, sigma, Vt = np.linalg.svd(V, full_matrices=False)
        sigma = np.maximum(sigma, 1e-12)
        power = 1.0 if penalty == "trace" else 4 / 3
        total, exponent = np.sum(sigma**power), 2.0 / power
        weight = ridge * rows.p ** (-1.0 / NORMS[penalty])
        residual = rows.Y - rows.F @ V @ C.T
        slope = weight * exponent * total ** (exponent - 1) * power * (U * sigma ** (power - 1)) @ Vt
        gradient = slope - 2 / len(rows.F) * rows.F.T @ residual @ C
        loss = (np.sum(residual**2) - np.sum(rows.Y**2)) / len(rows.F)
        return loss + weight * total**exponent, gradient.ravel()

    rng = np.random.default_rng(1)
    assert objective == pytest.approx(value(W.ravel())[0], rel=1e-7)
    for start in (rng.standard_normal(W.size), W.ravel() + 0.1 * rng.standard_normal(W.size)):
        found = scipy.optimize.minimize(value, start, jac=True, method="BFGS", options={"maxiter": 500, "gtol": 1e-9})
        assert objective <= found.fun + 1e-6 * abs(found.fun)
        assert found.fun == pytest.approx(objective, rel=1e-4)


@penalties
@given(
    p=st.integers(1, 7),
    m=st.integers(1, 12),
    seed=st.integers(0, 99),
    exponent=st.integers(-9, 3),
    q=st.sampled_from([None, 1, 4]),
)
@LAW
def test_the_objective_never_rises(penalty: str, p: int, m: int, seed: int, exponent: int, q: int | None) -> None:
    """Also with fewer features than outputs, and with fewer rows than features."""
    rows = Rows.of(10, m, p, min(m, p), q=q, seed=seed)
    learned = rows.learn(10.0**exponent, penalty)
    history = np.array(learned.history)
    assert np.all(np.diff(history) <= 1e-13 * np.abs(history[1:]))
    assert size(matrix(learned), penalty) == pytest.approx(p)
    assert np.linalg.matrix_rank(learned.factor) == learned.factor.shape[1] <= min(m, p, 9 if q is None else q)


@penalties
def test_the_first_value_is_the_identitys_and_the_last_is_less(penalty: str) -> None:
    rows = Rows.of(60, 20, 6, 2)
    learned = rows.learn(1e-2, penalty)
    W, identity = rows.solve(np.eye(6), 1e-2)
    e = (FLOORS[0] * np.linalg.norm(W, 2)) ** 2
    assert learned.history[0] == pytest.approx(identity + 1e-2 * e * 6, rel=1e-9)
    assert learned.history[-1] == pytest.approx(rows.solve(matrix(learned), 1e-2)[1], rel=1e-8)
    assert learned.history[-1] < identity - 1e-3 * abs(identity)


@penalties
@given(seed=st.integers(0, 20), exponent=st.integers(-9, 9), ridge=st.sampled_from([0.0, 1e-4, 1e-2, 1.0]))
@LAW
def test_a_does_not_depend_on_the_units_and_turns_with_the_outputs(
    penalty: str, seed: int, exponent: int, ridge: float
) -> None:
    rows = Rows.of(30, 8, 4, 2, seed=seed)
    A = matrix(rows.learn(ridge, penalty))
    scaled = Rows(rows.F, rows.Y * 10.0**exponent, rows.W, None)
    np.testing.assert_allclose(matrix(scaled.learn(ridge, penalty)), A, atol=1e-5)
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))
    turned = Rows(rows.F, rows.Y @ turn, rows.W, None)
    np.testing.assert_allclose(matrix(turned.learn(ridge, penalty)), turn.T @ A @ turn, atol=1e-5)
    # Features in another unit are another ridge; observing all outputs through a rotation changes nothing.
    other = Rows(rows.F * 10.0, rows.Y, rows.W, None)
    np.testing.assert_allclose(matrix(other.learn(ridge * 100.0, penalty)), A, atol=1e-5)
    observed = Rows(rows.F, rows.Y @ turn, rows.W, turn.T)
    np.testing.assert_allclose(matrix(observed.learn(ridge, penalty)), A, atol=1e-5)


def test_the_trace_finds_the_subspace_and_its_rank() -> None:
    """Eight outputs of two latent functions: A has rank two, and its range is theirs."""
    rows = Rows.of(400, 20, 8, 2, noise=0.2)
    learned = rows.learn(0.02, "trace")
    assert learned.factor.shape == (8, 2)
    assert np.max(scipy.linalg.subspace_angles(learned.factor, rows.W.T @ rows.W @ np.eye(8)[:, :2])) < 0.2


@penalties
def test_a_learned_output_predicts_better_than_independent_ones(penalty: str) -> None:
    """Many outputs of few latent functions, few rows: each with the best of its ridges, over eight sets of rows."""
    gains = []
    for seed in range(8):
        rows, ridges = Rows.of(40, 16, 8, 2, noise=0.7, seed=seed), (3e-3, 1e-2, 3e-2, 1e-1)
        new = np.random.default_rng(1000 + seed).standard_normal((300, 16)) / 4.0

        def least(matrices, rows=rows, ridges=ridges, new=new):
            pairs = zip(ridges, matrices, strict=True)
            return min(np.mean((new @ (rows.solve(A, ridge)[0] - rows.W)) ** 2) for ridge, A in pairs)

        learned = [matrix(rows.learn(ridge, penalty)) for ridge in ridges]
        gains.append(least([np.eye(8)] * len(ridges)) / least(learned) - 1.0)
    assert np.mean(gains) > 0.1
    assert np.mean(gains) > 3 * np.std(gains, ddof=1) / np.sqrt(len(gains))


def test_outputs_that_nobody_observes_are_left_out() -> None:
    rows = Rows.of(60, 10, 4, 3, q=2)
    learned = rows.learn(1e-3, "trace")
    assert learned.factor.shape == (4, 2)
    np.testing.assert_allclose(matrix(learned) @ scipy.linalg.null_space(rows.C), 0.0, atol=1e-8)


def test_without_a_ridge_a_is_the_limit_from_above() -> None:
    rows = Rows.of(40, 6, 3, 3)
    for penalty in NORMS:
        zero = rows.learn(0.0, penalty)
        assert zero.converged
        np.testing.assert_allclose(matrix(zero), matrix(rows.learn(1e-9, penalty)), atol=1e-6)


def test_what_cannot_be_learned_says_why() -> None:
    with pytest.raises(InputError, match="'trace' or 'frobenius', not 'nuclear'"):
        Learned("nuclear")
    with pytest.raises(InputError, match="explain nothing of the targets"):
        learn_output(np.ones(2), np.zeros((2, 2)), 3.0, 1.0)
