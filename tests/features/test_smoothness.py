"""A kernel that nobody named: a Gaussian or a Matern kernel, by the exact evidence of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.gaussian_process.kernels import Matern as ScikitMatern

from dorff import ORFFClassifier, ORFFRegressor, frequencies
from dorff.data import ingest
from dorff.features.smoothness import ExactEvidence, tune_smoothness
from dorff.fit import fit
from dorff.kernels import Decomposable, FloatArray, Gaussian, Matern, ScalarKernel
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model

RATIOS = np.geomspace(1e-8, 1e4, 49)
MATERN, GAUSSIAN = Matern(0.8, nu=2.5), Gaussian(0.8)


def sample(kernel: ScalarKernel, n: int, seed: int, *, d: int = 2, q: int = 1, noise: float = 0.05) -> list[FloatArray]:
    """Draw inputs, and targets of an exact process of a kernel with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, d))
    root = np.linalg.cholesky(kernel.gram(X, X) + 1e-8 * np.eye(n))
    return [X, root @ rng.standard_normal((n, q)) + noise * rng.standard_normal((n, q))]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_exact_evidence_is_that_of_dense_covariances(intercept: bool, weighted: bool) -> None:
    """Up to what no kernel changes, so that kernels are compared."""
    X, Y = sample(MATERN, 60, 1, q=2)
    weights = np.random.default_rng(2).uniform(0.3, 3.0, 60) if weighted else np.ones(60)
    evidence = ExactEvidence(X=X, Y=Y + 3.0 * intercept, weights=weights, intercept=intercept)

    def dense(kernel: ScalarKernel, ratio: float) -> float:
        V = kernel.gram(X, X) + ratio * np.diag(1.0 / weights)
        P, log_det, ones = np.linalg.inv(V), np.linalg.slogdet(V)[1], np.ones((60, 1))
        if intercept:  # the restricted likelihood of Patterson & Thompson
            size = ones.T @ P @ ones
            log_det += np.log(size[0, 0])
            P = P - P @ ones @ ones.T @ P / size
        freedom = 60 - intercept
        return float(sum(-0.5 * (freedom * np.log(y @ P @ y / freedom) + log_det) for y in evidence.Y.T))

    kernels = [GAUSSIAN, MATERN, Matern([0.3, 5.0], nu=0.5)]
    wanted = [max(dense(kernel, float(ratio)) for ratio in RATIOS) for kernel in kernels]
    found = [evidence(kernel) for kernel in kernels]
    np.testing.assert_allclose(np.diff(found), np.diff(wanted), rtol=1e-7)


def test_the_exact_evidence_prefers_what_scikit_learn_does() -> None:
    X, y = sample(MATERN, 120, 3)
    found, wanted = list[float](), list[float]()
    evidence = ExactEvidence(X=X, Y=y, weights=np.ones(120), intercept=False)
    for kernel, twin in ((GAUSSIAN, RBF(0.8, "fixed")), (MATERN, ScikitMatern(0.8, "fixed", nu=2.5))):
        process = GaussianProcessRegressor(ConstantKernel(1.0) * twin + WhiteKernel(0.01), random_state=0).fit(X, y)
        wanted.append(process.log_marginal_likelihood_value_)
        found.append(evidence(kernel))
    assert found[1] - found[0] == pytest.approx(wanted[1] - wanted[0], abs=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_each_of_the_two_is_found_in_draws_of_its_own(seed: int) -> None:
    for kernel in (GAUSSIAN, MATERN):
        X, Y = sample(kernel, 500, seed)
        found = tune_smoothness(Decomposable(Gaussian(1.0)), X, Y, n_features=128)
        scalar = found.kernel.scalar
        assert type(scalar) is type(kernel), found.smoothness
        np.testing.assert_array_equal(found.lengthscale, scalar.lengthscale)
        if kernel is MATERN:
            assert found.lengthscale == pytest.approx(0.8, rel=0.4)


def test_length_scales_are_the_likeliest_for_all_rows_that_were_compared() -> None:
    """Half of these rows prefer length-scales that are longer by a quarter."""
    X, Y = sample(MATERN, 512, 1, noise=0.6)
    found = tune_smoothness(Decomposable(Gaussian(1.0)), X, Y, n_features=64)
    assert found.smoothness is not None and found.smoothness.endswith("512 rows")
    evidence = ExactEvidence(X=X, Y=Y, weights=np.ones(512), intercept=True)
    values = {factor: evidence(Matern(found.lengthscale * factor, nu=2.5)) for factor in (0.8, 1.0, 1.25)}
    assert values[1.0] > max(values.values()) - 0.2, values


@pytest.mark.parametrize("rows", [[], [1], [0, 100, 300]])
def test_a_target_that_hardly_varies_changes_nothing(rows: list[int]) -> None:
    """As that of a class of few rows, or of none among those that are compared."""
    X, Y = sample(MATERN, 600, 0)
    rare = np.zeros((600, 1))
    rare[rows] = 1.0
    alone, beside = (
        ExactEvidence(X=X, Y=targets, weights=np.ones(600), intercept=True).spread(256)
        for targets in (Y, np.hstack([Y, rare]))
    )
    np.testing.assert_array_equal(alone.Y, beside.Y)


def test_targets_that_hardly_vary_tell_no_kernel() -> None:
    X, _ = sample(MATERN, 600, 0)
    rare = np.zeros((600, 1))
    rare[[1, 2]] = 1.0
    found = tune_smoothness(Decomposable(Gaussian(1.0)), X, rare, n_features=32)
    assert isinstance(found.kernel.scalar, Gaussian)


def test_a_few_rows_or_targets_that_do_not_vary_are_a_gaussian() -> None:
    X, Y = sample(MATERN, 500, 0)
    for some in (X[:3], Y[:3]), (X, np.ones_like(Y)):
        assert isinstance(tune_smoothness(Decomposable(Gaussian(1.0)), *some, n_features=32).kernel.scalar, Gaussian)
    beside = np.column_stack([Y, np.ones(len(Y))])
    one, two = (tune_smoothness(Decomposable(Gaussian(1.0)), X, targets, n_features=64) for targets in (Y, beside))
    assert isinstance(one.kernel.scalar, Matern) and isinstance(two.kernel.scalar, Matern)
    np.testing.assert_allclose(one.lengthscale, two.lengthscale, rtol=1e-6)


def job(folder: Path, X: FloatArray, Y: FloatArray, **more: Any) -> Job:
    store = folder / "data.zarr"
    if not store.exists():
        np.savez(folder / "rows.npz", x=X, y=Y)
        ingest([folder / "rows.npz"], store, inputs=["x"], targets=["y"])
    paths = {"data": {"store": str(store)}, "state": str(folder / "state"), "model": str(folder / "model")}
    return Job.model_validate({**paths, "cluster": {"type": "serial"}, **more})


def scalar_of(folder: Path) -> ScalarKernel:
    ((_, term),) = load_model(folder / "model").kernel.terms()
    return term.scalar


def test_a_job_that_names_no_kernel_fits_the_likelier_one_and_says_so(tmp_path: Path) -> None:
    X, Y = sample(MATERN, 700, 0)
    plain = job(tmp_path, X, Y)
    fit(plain)
    found = scalar_of(tmp_path)
    assert isinstance(found, Matern) and found.nu == 2.5
    chosen = {choice.key: choice for choice in make_plan(plain).choices}
    assert chosen["kernel.scalar"].value == "matern" and "Matern-5/2" in chosen["kernel.scalar"].why
    fit(plain)
    assert scalar_of(tmp_path) == found, "nothing is chosen again"


def test_a_kernel_that_is_named_stays(tmp_path: Path) -> None:
    X, Y = sample(MATERN, 700, 0)
    fit(job(tmp_path, X, Y, kernel={"type": "decomposable", "scalar": {"type": "gaussian"}}))
    assert isinstance(scalar_of(tmp_path), Gaussian)


def test_rows_that_are_appended_change_no_kernel(tmp_path: Path) -> None:
    X, Y = sample(MATERN, 700, 0)
    plain = job(tmp_path, X[:400], Y[:400])
    fit(plain)
    first = scalar_of(tmp_path)
    smooth = 1e-3 * X[:, :1]
    np.savez(tmp_path / "later.npz", x=X[:300] + 0.01, y=smooth[:300])
    ingest([tmp_path / "later.npz"], tmp_path / "data.zarr", inputs=["x"], targets=["y"], append=True)
    fit(plain)
    assert isinstance(first, Matern) and scalar_of(tmp_path) == first


@pytest.mark.parametrize(
    "more",
    [
        {"features": {"sampler": {"type": "gauss_quadrature"}, "count": 128}},
        {"kernel": [{"type": "decomposable"}, {"type": "decomposable", "output": "covariance"}]},
        {"kernel": {"type": "sum", "terms": [{"weight": 1.0, "kernel": {"type": "decomposable"}}]}},
    ],
    ids=["a sampler of the Gaussian alone", "a list", "a sum"],
)
def test_where_there_is_no_choice_it_is_a_gaussian(more: dict[str, Any], tmp_path: Path) -> None:
    X, Y = sample(MATERN, 700, 0)
    fit(job(tmp_path, X, Y, **more))
    assert isinstance(scalar_of(tmp_path), Gaussian)


def test_estimators_choose_where_they_are_given_no_kernel() -> None:
    X, Y = sample(MATERN, 700, 0)
    chosen = ORFFRegressor(n_features=128).fit(X, Y)
    ((_, term),) = chosen.model_.kernel.terms()
    assert isinstance(term.scalar, Matern)
    for given in ({"kernel": "gaussian"}, {"sampler": frequencies.GaussQuadrature()}):
        ((_, term),) = ORFFRegressor(n_features=128, **given).fit(X, Y).model_.kernel.terms()
        assert isinstance(term.scalar, Gaussian)
    classes = (Y[:, 0] > 0).astype(int)
    assert ORFFClassifier(n_features=128).fit(X, classes).score(X, classes) > 0.95
