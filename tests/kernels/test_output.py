"""Output matrices: each against its dense definition, its rank, its grammar, and what it refuses."""

import json

import numpy as np
import pytest
from cases import LAW, positive
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from dorff import kernels
from dorff.errors import InputError
from dorff.kernels.output import as_output
from dorff.model.weights import operator_weights

SCALAR = kernels.Gaussian(0.7)
CHAIN = [[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]


def graph(p: int, seed: int, density: float):
    """A random symmetric, non-negative W (p, p), with self-loops, which L does not see."""
    rng = np.random.default_rng(seed)
    W = rng.uniform(0.5, 2.0, (p, p)) * (rng.uniform(size=(p, p)) < density)
    return np.triu(W) + np.triu(W, 1).T


def check_root(output: kernels.Output, p: int, A, covariance=None) -> None:
    """The root has as many rows as A has rank, gives A, and stays the root once the output is fixed."""
    fixed = output.fixed(p, covariance)
    root = output.root(p) if covariance is None else fixed.root(p)
    assert root.shape == (np.linalg.matrix_rank(A, hermitian=True), p)
    np.testing.assert_allclose(root.T @ root, A, atol=1e-12 * np.abs(A).max())
    assert fixed.p == p
    again = fixed.root(p)
    assert again.shape == root.shape
    np.testing.assert_allclose(again.T @ again, A, atol=1e-12 * np.abs(A).max())
    np.testing.assert_allclose(fixed.matrix(p), A, atol=1e-12 * np.abs(A).max())
    assert fixed.trace(p) == pytest.approx(np.trace(A))


@LAW
@given(p=st.integers(1, 9), rank=st.integers(1, 9), seed=st.integers(0, 99), exponent=st.integers(-12, 12))
def test_the_root_has_the_rank_of_a_whatever_the_units(p: int, rank: int, seed: int, exponent: int) -> None:
    rank = min(rank, p)
    A = positive(p, rank, seed) * 10.0**exponent
    check_root(kernels.Matrix(A), p, A)
    check_root(kernels.Covariance(), p, A, A)
    B = np.random.default_rng(seed).standard_normal((p, rank)) * 10.0**exponent
    check_root(kernels.Factor(B), p, B @ B.T)
    dependent = np.column_stack([B, B @ np.ones((rank, 2))])
    check_root(kernels.Factor(dependent), p, dependent @ dependent.T)


def test_a_factor_of_independent_columns_is_its_own_root() -> None:
    B = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_array_equal(kernels.Factor(B).root(5), B.T)


@LAW
@given(p=st.integers(2, 9), seed=st.integers(0, 99), density=st.floats(0.1, 1.0), offset=st.sampled_from([0.0, 0.1]))
def test_a_graph_gives_the_pseudo_inverse_of_its_laplacian(p: int, seed: int, density: float, offset: float) -> None:
    W = graph(p, seed, density)
    np.fill_diagonal(W, np.diag(W) + 1.0)
    W[0, 1] = W[1, 0] = 1.0
    off = W - np.diag(np.diag(W))
    L = np.diag(off.sum(axis=1)) - off + offset * np.eye(p)
    output = kernels.Graph(W, offset)
    check_root(output, p, np.linalg.pinv(L, hermitian=True, rcond=1e-12))
    assert len(output.root(p)) == p - (connected_components(off)[0] if offset == 0 else 0)
    # The norm that goes with A, on a vector in its range.
    f = output.matrix(p) @ np.arange(1.0, p + 1)
    differences = 0.5 * np.sum(off * (f[:, None] - f) ** 2) + offset * f @ f
    assert f @ np.linalg.pinv(output.matrix(p), hermitian=True, rcond=1e-12) @ f == pytest.approx(differences)


@pytest.mark.parametrize("p", [2, 3, 4, 10, 57])
def test_simplex_codes_are_as_far_apart_as_can_be(p: int) -> None:
    """Mroueh et al. (2012): unit vectors with inner products -1/(p-1); B B^T is p/(p-1) I, so A is B^T B."""
    codes = kernels.Simplex().root(p)
    A = np.full((p, p), -1.0 / (p - 1))
    np.fill_diagonal(A, 1.0)
    np.testing.assert_allclose(codes.T @ codes, A, atol=1e-14)
    np.testing.assert_allclose(codes @ codes.T, p / (p - 1) * np.eye(p - 1), atol=1e-13)
    check_root(kernels.Simplex(), p, A)
    # What predicts one-hot targets has as many coefficients as codes have numbers.
    weights = operator_weights(kernels.Decomposable(SCALAR, "simplex").fix(2, p), 4, None)
    assert weights.shape == (4, p - 1, p)


OUTPUTS = (
    ("identity", kernels.Identity()),
    ("covariance", kernels.Covariance()),
    ("simplex", kernels.Simplex()),
    ("learned", kernels.Learned()),
    ({"learned": "frobenius"}, kernels.Learned("frobenius")),
    ({"matrix": positive(3, 2).tolist()}, kernels.Matrix(positive(3, 2))),
    ({"factor": [[1.0, 0.0], [0.5, 2.0], [0.1, 0.3]]}, kernels.Factor([[1.0, 0.0], [0.5, 2.0], [0.1, 0.3]])),
    ({"graph": CHAIN, "offset": 0.1}, kernels.Graph(CHAIN, 0.1)),
)


@pytest.mark.parametrize(("config", "output"), OUTPUTS, ids=[str(config)[:12] for config, _ in OUTPUTS])
def test_every_output_goes_through_a_job_file_and_back(config, output) -> None:
    built = kernels.Decomposable(SCALAR, output)
    again = kernels.from_config(json.loads(json.dumps(built.config())))
    assert again.config() == built.config() == {"type": "decomposable", "scalar": SCALAR.config(), "output": config}
    X, covariance = np.random.default_rng(1).standard_normal((4, 2)), positive(3, 3)
    fixed = built.fix(2, 3, covariance)
    root = fixed.root(np.zeros((5, 2)))
    assert root.shape[0] == 5
    if isinstance(output, kernels.Learned):
        assert fixed.config() == built.config()
        return
    np.testing.assert_allclose(root[4].T @ root[4], fixed.matrix, atol=1e-14)
    np.testing.assert_array_equal(again.fix(2, 3, covariance).gram(X, X), fixed.gram(X, X))
    # What a model keeps is the fixed kernel: the same once more.
    kept = kernels.from_config(json.loads(json.dumps(fixed.config())))
    np.testing.assert_allclose(kept.gram(X, X), fixed.gram(X, X), atol=1e-15)
    np.testing.assert_allclose(fixed.gram(X, X), SCALAR.gram(X, X)[..., None, None] * fixed.matrix, atol=1e-15)


def test_a_graph_without_an_offset_has_none() -> None:
    assert as_output({"graph": CHAIN}).config() == {"graph": CHAIN, "offset": 0.0}
    assert kernels.Decomposable(SCALAR).output == kernels.Identity()


def test_what_is_not_known_yet_counts_as_the_identity_when_frequencies_are_drawn() -> None:
    for name in ("identity", "covariance", "learned", "simplex"):
        assert kernels.Decomposable(SCALAR, name).trace(2, 4) == 4.0
    assert kernels.Decomposable(SCALAR, 3.0 * np.eye(4)).trace(2, 4) == 12.0
    learned = kernels.Learned().fixed(4)
    assert learned.p == 4
    np.testing.assert_array_equal(learned.root(4), np.eye(4))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kernels.Factor([[0.0], [0.0]]), "must not be zero"),
        (
            lambda: kernels.Factor([1.0, 2.0]),
            r"output matrix must be p rows of finite numbers; got shape \(2,\)",
        ),
        (lambda: kernels.Factor([[np.inf]]), "finite"),
        (lambda: kernels.Graph([[0.0, -1.0], [-1.0, 0.0]]), "not be negative; the least is -1"),
        (lambda: kernels.Graph([[0.0, 1.0], [0.0, 0.0]]), "weights of the output graph must be symmetric"),
        (lambda: kernels.Graph([[0.0, 1.0]]), r"graph must be square and finite.*\(1, 2\)"),
        (lambda: kernels.Graph(np.eye(2)), "no edge and no offset"),
        (lambda: kernels.Graph(CHAIN, -0.1), "offset of the output graph .*-0.1"),
        (lambda: kernels.Graph(CHAIN, np.nan), "offset of the output graph .*nan"),
        (lambda: kernels.Learned("ridge"), "'trace' or 'frobenius', not 'ridge'"),
        (lambda: kernels.Matrix(np.empty((0, 0))), r"square and finite.*\(0, 0\)"),
        (lambda: kernels.Matrix([["a"]]), "a matrix of numbers"),
        (lambda: kernels.Factor([[1.0], [1.0, 2.0]]), "a matrix of numbers"),
        (lambda: kernels.Simplex().root(1), "needs two classes or more, got p = 1"),
        (lambda: kernels.Covariance().fixed(2), "which only a fit knows"),
        (lambda: kernels.Covariance().fixed(2, np.zeros((2, 2))), "do not vary"),
        (lambda: kernels.Covariance().fixed(2, np.eye(3)), "3 x 3 but there are 2 outputs"),
        (lambda: kernels.Matrix(np.eye(2)).fixed(3), "2 x 2 but there are 3 outputs; give a matrix"),
        (lambda: kernels.Factor(np.eye(2)).root(3), "2 x 2 but there are 3 outputs"),
        (lambda: kernels.Graph(CHAIN).root(2), "3 x 3 but there are 2 outputs"),
        (lambda: kernels.Decomposable(SCALAR, "learned").matrix, r"'learned' is known only .* use kernel.fix"),
        (lambda: kernels.Decomposable(SCALAR, "simplex").root(np.zeros((1, 1))), r"'simplex' .* use kernel.fix"),
        (lambda: kernels.Decomposable(SCALAR, "learned").fix(2, 3).matrix, "no values before a fit"),
        (lambda: kernels.Learned().fixed(3).root(2), "3 x 3 but there are 2 outputs"),
        (lambda: as_output("tree"), r"'identity', 'covariance', 'simplex', 'learned', .*not 'tree'"),
        (lambda: as_output({"matrix": [[1.0]], "offset": 1.0}), "a mapping with matrix, factor, graph"),
        (lambda: as_output({}), "a mapping with matrix, factor, graph"),
    ],
)
def test_what_cannot_be_an_output_matrix_says_why(build, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()
