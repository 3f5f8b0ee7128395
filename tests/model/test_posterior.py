"""Posterior: the Bayesian linear model written out, its samples, its bands, and what a damaged file gives."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import rows, trig_map
from scipy.stats import norm

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.model.model import BLOCK_ROWS, Model
from dorff.model.posterior import CoupledBlock, Posterior, SeparableBlock
from dorff.model.weights import OperatorWeights
from dorff.store import load_model, save_model

P, M, N, S2 = 2, 12, 40, 0.3
SCALE = np.array([1.5, 0.5])
ROOT = np.array([[1.0, 0.4], [-0.3, 2.0]])
C = np.array([[1.0, 0.0], [0.5, 2.0], [1.0, -1.0]])


def dense(model, X, at, *, ridge, intercept=True, observe=None):
    """Covariance (k p, k p) of f at all rows of `at` together, everything written out: noise S2 of the scaled targets,
    prior h ~ N(0, S2/(l ridge)), b flat."""

    def columns(points):
        Phi = (
            np.einsum("na,arp->npar", model.feature_map.transform(points), model.weights)
            * model.target_scale[:, None, None]
        )
        ones = np.broadcast_to(np.eye(P), (len(points), P, P))
        return np.concatenate([Phi.reshape(len(points), P, -1), *([ones] if intercept else [])], axis=2)

    seen = np.eye(P) if observe is None else observe
    A = np.einsum("qp,npk->nqk", seen, columns(X))
    A = (A / model.target_scale[:, None] if observe is None else A / model.target_scale[0]).reshape(-1, A.shape[2])
    penalty = np.zeros(A.shape[1])
    penalty[: M * model.coefficients.shape[1]] = len(X) * ridge
    B = columns(at).reshape(-1, A.shape[1])
    return S2 * B @ np.linalg.solve(A.T @ A + np.diag(penalty), B.T)


def build(kind, *, intercept=True, observe=None, ridge=1e-2):
    """A model whose posterior is made by hand, from eigenvectors, as solvers do."""
    X, _ = rows(N, 2, P, seed=3)
    found = frequencies.Orthogonal().draw(kernels.CurlFree(kernels.Gaussian(0.7)).fix(2, 2), d=2, p=2, count=6, seed=1)
    features = trig_map(found.omega, X.mean(axis=0), np.full(2, 1.3))
    rng = np.random.default_rng(5)
    gain = rng.uniform(0.5, 2.0, M)
    root = ROOT[None] if kind == "separable" else rng.standard_normal((M, 2, P))
    scale = SCALE if observe is None and kind == "separable" else np.full(P, 0.7)
    weights, F = OperatorWeights(gain, root), features.transform(X)
    seen = np.eye(P) if observe is None else observe
    shift = N * ridge
    free = np.linalg.inv(N * seen.T @ seen) if intercept else np.zeros((P, P))
    if kind == "separable":
        phi = F * gain
        centre = phi.mean(axis=0) * intercept
        a, rotation = np.linalg.eigh(root[0] @ seen.T @ seen @ root[0].T)
        values, vectors = np.linalg.eigh((phi - centre).T @ (phi - centre))
        spread = 1.0 / (np.maximum(values, 0)[:, None] * a + shift)
        block = SeparableBlock(
            vectors, spread, np.full(2, S2), gain, centre, rotation.T @ root[0] * scale, rotation.T.copy()
        )
    else:
        feature, row = np.divmod(np.arange(2 * M), 2)
        psi = (gain[:, None, None] * root)[feature, row]
        Phi = F[:, feature, None] * psi
        centre = Phi.mean(axis=0) * intercept
        A = ((Phi - centre) @ seen.T).transpose(0, 2, 1).reshape(-1, 2 * M)
        inverse = np.linalg.inv(A.T @ A + shift * np.eye(2 * M))
        block = CoupledBlock(
            np.linalg.cholesky(inverse), np.ones((2 * M, 1)), np.array([S2]), feature, row, psi * scale,
            centre * scale,
        )  # fmt: skip
    q = len(seen)
    noise = np.full((q, q), 0.1) + np.diag(np.linspace(0.5, 1.5, q))
    posterior = Posterior((block,), S2 * free * np.outer(scale, scale), noise)
    h = rng.standard_normal((M, 2))
    model = Model(
        features, weights, h, np.array([1.0, -2.0]), scale, kernels.CurlFree(kernels.Gaussian(0.7)).fix(2, 2),
        {"type": "orthogonal"}, 1, {"report": {}}, observe, posterior,
    )  # fmt: skip
    return model, X


CASES = [
    ("separable", True, None), ("separable", False, None), ("separable", True, C), ("coupled", True, None),
    ("coupled", False, None), ("coupled", True, C),
]  # fmt: skip
NAMES = [f"{kind}{'' if free else ' through 0'}{'' if c is None else ' observed'}" for kind, free, c in CASES]


@pytest.mark.parametrize(("kind", "intercept", "observe"), CASES, ids=NAMES)
def test_is_the_bayesian_linear_model_written_out(kind, intercept, observe):
    """Covariance across outputs, its diagonal, and noise, to 1e-10."""
    model, X = build(kind, intercept=intercept, observe=observe)
    at, _ = rows(7, 2, P, seed=9)
    joint = dense(model, X, at, ridge=1e-2, intercept=intercept, observe=observe).reshape(7, P, 7, P)
    expected = np.stack([joint[i, :, i] for i in range(7)])
    found = model.covariance(at)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12 * expected.max())
    np.testing.assert_allclose(model.std(at) ** 2, np.einsum("npp->np", expected), rtol=1e-10)
    seen = np.eye(P) if observe is None else observe
    noisy = seen @ expected @ seen.T + model.posterior.noise
    np.testing.assert_allclose(model.covariance(at, noise=True), noisy, rtol=1e-10)
    np.testing.assert_allclose(model.std(at, noise=True) ** 2, np.einsum("nqq->nq", noisy), rtol=1e-10)


@pytest.mark.parametrize(("kind", "intercept", "observe"), CASES, ids=NAMES)
def test_samples_have_the_joint_law_of_whole_functions(kind, intercept, observe):
    """Mean and covariance over inputs and outputs together, within six of their own standard errors."""
    model, X = build(kind, intercept=intercept, observe=observe)
    at, _ = rows(4, 2, P, seed=9)
    count = 4000
    drawn = np.stack([one.predict(at).ravel() for one in model.sample(count, seed=2)])
    expected = dense(model, X, at, ridge=1e-2, intercept=intercept, observe=observe)
    variance = np.diag(expected)
    assert np.all(np.abs(drawn.mean(axis=0) - model.predict(at).ravel()) < 6 * np.sqrt(variance / count))
    error = np.sqrt((np.outer(variance, variance) + expected**2) / count)
    assert np.all(np.abs(np.cov(drawn.T) - expected) < 6 * error)


def test_samples_are_fixed_by_the_seed_and_are_models():
    model, X = build("separable")
    one, two, other = model.sample(1, seed=4)[0], model.sample(2, seed=4), model.sample(1, seed=5)[0]
    assert np.array_equal(one.predict(X), model.sample(1, seed=4)[0].predict(X))
    assert not np.allclose(two[0].predict(X), two[1].predict(X)) and not np.allclose(one.predict(X), other.predict(X))
    assert one.jacobian(X).shape == (N, P, 2) and one.posterior is None
    with pytest.raises(InputError, match="a sample has none"):
        one.std(X)
    with pytest.raises(InputError, match="count must be 1 or more, not 0"):
        model.sample(0)


def test_blocks_of_rows_do_not_matter(monkeypatch):
    for kind in ("separable", "coupled"):
        model, _ = build(kind)
        X, _ = rows(BLOCK_ROWS + 3, 2, P)
        whole = model.std(X), model.covariance(X)
        row_bytes = max(block.row_bytes for block in model.posterior.blocks) + 8 * P**2
        monkeypatch.setattr("dorff.model.posterior.STEP_BYTES", 7 * row_bytes)
        assert model.posterior.step == 7
        np.testing.assert_allclose(model.std(X), whole[0], rtol=1e-12)
        np.testing.assert_allclose(model.covariance(X), whole[1], rtol=1e-11, atol=1e-14)
        monkeypatch.undo()
    assert model.std(np.empty((0, 2))).shape == (0, P)


def test_memory_of_an_evaluation_is_what_it_says(monkeypatch):
    import tracemalloc

    k, n, step = 256, 4000, 2**22
    monkeypatch.setattr("dorff.model.posterior.STEP_BYTES", step)
    rng = np.random.default_rng(0)
    separable = SeparableBlock(
        rng.standard_normal((k, k)), np.ones((k, 2)), np.ones(2), np.ones(k), np.ones(k), np.eye(2), np.eye(2)
    )
    at = np.arange(k)
    coupled = CoupledBlock(
        separable.basis, np.ones((k, 1)), np.ones(1), at % 64, at * 0, rng.standard_normal((k, 2)), np.ones((k, 2))
    )
    for block, m in ((separable, k), (coupled, 64)):
        posterior, F = Posterior((block,), np.eye(2), np.eye(2)), rng.standard_normal((n, m))
        for of, result in ((posterior.variance, 8 * 2 * n), (posterior.covariance, 8 * 4 * n)):
            tracemalloc.start()
            of(F)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert 0.3 * step < peak - result < step


def test_plain_bands_are_normal_with_noise_or_without():
    model, X = build("coupled", observe=C)
    for level in (0.5, 0.95):
        z = norm.ppf(0.5 + level / 2)
        low, high = model.band(X, level)
        middle = model.predict(X) @ C.T
        np.testing.assert_allclose(high - middle, z * model.std(X, noise=True), rtol=1e-12)
        np.testing.assert_allclose(low + high, 2 * middle, rtol=1e-12, atol=1e-12)
        low, high = model.band(X, level, noise=False)
        np.testing.assert_allclose(high - low, 2 * z * model.std(X), rtol=1e-10)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 95.0, np.nan])
def test_levels_are_between_0_and_1(level):
    model, X = build("separable")
    with pytest.raises(InputError, match="level must be between 0 and 1"):
        model.band(X, level)


def test_conformal_bands_that_are_not_there_are_refused():
    model, X = build("separable")
    with pytest.raises(InputError, match=r"no conformal factors: fit with solve.conformal: true"):
        model.band(X, 0.5, conformal=True)
    with pytest.raises(InputError, match="noise is in them; ask for noise=True"):
        model.band(X, 0.5, conformal=True, noise=False)


def test_without_a_posterior_the_remedy_is_said():
    model, X = build("separable")
    bare = replace(model, posterior=None)
    for ask in (bare.std, bare.covariance, lambda x: bare.band(x, 0.5), lambda _: bare.sample(1)):
        with pytest.raises(InputError, match=r"keeps no posterior.*solve.posterior: true.*streaming"):
            ask(X)


# --- the file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "intercept", "observe"), CASES[::2], ids=NAMES[::2])
def test_saved_and_loaded_is_the_same_to_the_bit(tmp_path, kind, intercept, observe):
    model, X = build(kind, intercept=intercept, observe=observe)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert np.array_equal(again.covariance(X), model.covariance(X))
    assert np.array_equal(again.std(X, noise=True), model.std(X, noise=True))
    assert np.array_equal(again.sample(1, seed=3)[0].predict(X), model.sample(1, seed=3)[0].predict(X))
    without = load_model(tmp_path, posterior=False)
    assert without.posterior is None and np.array_equal(without.predict(X), model.predict(X))


def nbytes(posterior):
    return sum(array.nbytes for array in posterior.arrays().values())


def test_several_blocks_add_and_are_kept_apart(tmp_path):
    """As where rows miss targets: each output has a block of its own."""
    model, X = build("separable")
    (block,) = model.posterior.blocks
    parts = tuple(
        replace(block, spread=block.spread[:, [j]], variance=block.variance[[j]], loading=block.loading[[j]],
                into=block.into[[j]])
        for j in range(2)
    )  # fmt: skip
    split = replace(model, posterior=replace(model.posterior, blocks=parts))
    np.testing.assert_allclose(split.covariance(X), model.covariance(X), rtol=1e-12, atol=1e-15)
    save_model(split, tmp_path)
    again = load_model(tmp_path).posterior
    assert len(again.blocks) == 2 and nbytes(again) == nbytes(split.posterior)


def test_models_without_a_posterior_are_as_small_as_before(tmp_path):
    model, _ = build("coupled")
    bare = save_model(replace(model, posterior=None), tmp_path / "bare")
    full = save_model(model, tmp_path / "full")
    size = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in (bare, full)]
    assert size[1] - size[0] > nbytes(model.posterior)
    assert not list(bare.glob("posterior*"))


def test_damaged_arrays_are_refused(tmp_path):
    model, _ = build("coupled")
    version = save_model(model, tmp_path / "m")
    names = sorted(model.posterior.arrays())
    assert len(names) == 9
    for name in names:
        for flip in (True, False):
            copy = tmp_path / "copy"
            shutil.copytree(version, copy)
            (chunk,) = [path for path in (copy / name / "c").rglob("*") if path.is_file()]
            if flip:
                raw = bytearray(chunk.read_bytes())
                raw[-1] ^= 0x10
                chunk.write_bytes(raw)
            else:
                chunk.unlink()
            with pytest.raises(InputError, match=name):
                load_model(copy)
            assert load_model(copy, posterior=False).posterior is None
            shutil.rmtree(copy)


def other(model: Model, name: str, value: object) -> Model:
    """The model with another array in its posterior's only block."""
    (block,) = model.posterior.blocks
    return replace(model, posterior=replace(model.posterior, blocks=(replace(block, **{name: value}),)))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("separable", "basis", np.ones((M - 1, M))), ("separable", "basis", np.ones(M)),
        ("separable", "spread", np.ones((M, 3))), ("separable", "spread", np.ones((M - 1, 2))),
        ("separable", "variance", np.ones(3)), ("separable", "gain", np.ones(M + 1)),
        ("separable", "centre", np.ones((M, 1))), ("separable", "loading", np.ones((2, 3))),
        ("separable", "into", np.ones((2, 3))), ("separable", "gain", np.ones(M, dtype=np.int64)),
        ("coupled", "feature", np.full(2 * M, M)), ("coupled", "row", np.full(2 * M, -1)),
        ("coupled", "row", np.ones(2 * M)), ("coupled", "variance", np.ones(2)),
        ("coupled", "loading", np.ones((2 * M, 3))),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, kind, name, value):
    """Whole files, whose arrays belong to no posterior of this model."""
    model, _ = build(kind)
    save_model(other(model, name, value), tmp_path)
    with pytest.raises(InputError, match="posterior_0_"):
        load_model(tmp_path)


def test_a_noise_of_other_targets_is_refused(tmp_path):
    model, _ = build("separable")
    save_model(replace(model, posterior=replace(model.posterior, noise=np.eye(3))), tmp_path)
    with pytest.raises(InputError, match=r"posterior_noise should be float64 of shape \(2, 2\)"):
        load_model(tmp_path)
