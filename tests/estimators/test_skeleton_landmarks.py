"""Landmarks of skeletons: exact values in place of random features, which relu over spheres has none of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dorff import (
    DoublyStochasticRegressor,
    ORFFClassifier,
    ORFFRegressor,
    RandomFeatures,
    StochasticORFFRegressor,
)
from dorff.data import ingest
from dorff.errors import InputError
from dorff.exact import ExactRidge
from dorff.features import Recipe
from dorff.fit import fit
from dorff.frequencies import Landmarks, Paths
from dorff.kernels import (
    Angle,
    Category,
    ColumnBlock,
    CurlFree,
    Decomposable,
    FloatArray,
    Layer,
    Matern,
    Sign,
    Skeleton,
    SkeletonNode,
    Sphere,
)
from dorff.model.outcomes import joint_std
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model

SIDE, STRIDE = 4, 2
PATCHES = [(row, column) for row in range(0, 8 - SIDE + 1, STRIDE) for column in range(0, 8 - SIDE + 1, STRIDE)]
BLOCKS = [list(range(SIDE**2 * at, SIDE**2 * (at + 1))) for at in range(len(PATCHES))]
RELU = Skeleton([Layer()], inputs=[Sphere(columns=block) for block in BLOCKS])
MIXED = Skeleton(
    inputs=[Angle([0.5, 2.0], columns=[0, 3]), Sign(columns=1), Category(5, columns=2),
            ColumnBlock(Matern(0.7), columns=[4, 5]), Sphere(columns=[6, 7, 8])],
    nodes={"left": SkeletonNode([0, 1, 2], "step"), "top": SkeletonNode(["left", 3, 4, 5], "step")},
)  # fmt: skip


def digits(n: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Overlapping patches of 4 x 4 pixels of images of digits, one after another, and the digits."""
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))[:n]
    images = data.data[order].reshape(-1, 8, 8)
    parts = [images[:, row : row + SIDE, column : column + SIDE].reshape(n, -1) for row, column in PATCHES]
    return np.concatenate(parts, axis=1), data.target[order].astype(float)


def mixed_rows(n: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 9))
    X[:, 1], X[:, 2] = rng.choice([-1.0, 1.0], n), rng.integers(0, 5, n)
    X[: n // 4, 6:] = 0.0
    return X


@pytest.mark.parametrize("kernel", ["relu over patches", "a step over a step"])
def test_features_are_the_nystroem_approximation_of_a_skeleton(kernel: str) -> None:
    scalar, X = (RELU, digits(80)[0]) if kernel == "relu over patches" else (MIXED, mixed_rows(80))
    phi = Recipe.of(scalar, Landmarks(), d=X.shape[1], n_features=25).among(X, 0).draw(0).phi
    Z = phi.arrays()["landmarks"]
    dense = scalar.gram(X, Z) @ np.linalg.solve(scalar.gram(Z, Z), scalar.gram(Z, X))
    np.testing.assert_allclose(phi.gram(X, X), dense, atol=1e-8)
    diagonal = np.diag(scalar.gram(X, X))
    np.testing.assert_allclose(scalar.diagonal(X), diagonal, atol=1e-12)
    assert diagonal.min() < 0.99, "some rows are zero on a sphere"


def test_paths_say_that_landmarks_have_such_features() -> None:
    for scalar, d in ((RELU, SIDE**2 * len(PATCHES)), (MIXED, 9)):
        with pytest.raises(InputError, match="or sampler landmarks"):
            Recipe.of(scalar, Paths(), d=d, n_features=64)


def test_an_estimator_takes_landmarks_where_there_are_no_random_features() -> None:
    (X, y), (at, truth) = digits(600), digits(1797)
    at, truth = at[600:], truth[600:]
    model = ORFFClassifier(Decomposable(RELU, "simplex"), 256).fit(X, y)
    assert model.model_.sampler == {"type": "landmarks"} and model.score(at, truth) > 0.95
    parts = ORFFClassifier(Decomposable(RELU), 256, ridge=1e-4, cv=None, calibrate=False)
    parts.partial_fit(X[:300], y[:300], classes=np.arange(10.0)).partial_fit(X[300:], y[300:])
    assert parts.model_.sampler == {"type": "landmarks"} and parts.score(at, truth) > 0.9
    steps = StochasticORFFRegressor(Decomposable(RELU), 64).fit(X, y)
    assert steps.score(at, truth) > 0.3
    with pytest.raises(InputError, match="landmarks are chosen once"):
        DoublyStochasticRegressor(Decomposable(RELU)).fit(X, y)


def test_with_all_rows_as_landmarks_the_fit_is_exact() -> None:
    X, y = digits(120)
    at = digits(200)[0][120:]
    kernel = Decomposable(RELU)
    model = ORFFRegressor(kernel, 500, ridge=1e-3, cv=None).fit(X, y)
    exact = ExactRidge.fit(kernel.fix(X.shape[1], 1), X, y[:, None], ridge=1e-3)
    np.testing.assert_allclose(model.predict(at), exact.predict(at)[:, 0], rtol=1e-6)


def test_deviations_are_those_of_the_exact_process_where_a_patch_is_empty_too() -> None:
    X, y = digits(120)
    at = digits(200)[0][120:]
    at[:20, BLOCKS[0]] = 0.0
    at[5] = 0.0
    model = ORFFRegressor(Decomposable(RELU), 500, ridge=1e-2, intercept=False, cv=None).fit(X, y)
    k, system = RELU.gram(at, X), RELU.gram(X, X) + 120 * 1e-2 * np.eye(120)
    mean = k @ np.linalg.solve(system, y)
    std = np.sqrt(RELU.diagonal(at) - np.einsum("ij,ji->i", k, np.linalg.solve(system, k.T)))
    found, deviation = model.predict(at, return_std=True)
    prior = np.sqrt(model.noise_[0, 0] / (120 * 1e-2))
    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-8)
    prior *= np.sqrt(model.posterior_model_.posterior.factor)  # the noise is an estimate
    np.testing.assert_allclose(deviation, prior * std, rtol=1e-5)
    assert deviation[5] < 0.7 * prior, "k(0, 0) = 1 / pi"
    covariance = model.model_.covariance(at) if model.model_.posterior else model.posterior_model_.covariance(at)
    np.testing.assert_allclose(covariance[:, 0, 0], deviation**2, rtol=1e-8)


def test_deviations_of_probabilities_know_that_a_patch_is_empty() -> None:
    X, y = digits(30)
    model = ORFFClassifier(
        Decomposable(RELU), 30, loss="multinomial", posterior=True, calibrate=False, ridge=1e-2, cv=None
    )
    kept = model.fit(X, y > 4).posterior_model_
    at = np.zeros((1, X.shape[1]))
    exact = joint_std(kept.outcome, kept.predict(at), kept.covariance(at))
    np.testing.assert_allclose(kept.outcome_std(at), exact, rtol=1e-9)


def test_a_transformer_has_landmarks_where_they_are_asked_for() -> None:
    X = digits(100)[0]
    F = RandomFeatures(RELU, 64, sampler=Landmarks()).fit_transform(X)
    np.testing.assert_allclose(np.sum(F**2, axis=1), RELU.diagonal(X), atol=0.3)
    with pytest.raises(InputError, match="or sampler landmarks"):
        RandomFeatures(RELU, 64).fit(X)


def test_fields_have_no_landmarks() -> None:
    kernel = CurlFree(Skeleton([Layer(activation={"exponential": 1.0})]))
    with pytest.raises(InputError, match="landmarks need a decomposable kernel"):
        Recipe(kernel.fix(2, 2), Landmarks(), 2, 2, 16)


def job(folder: Path, scalar: dict[str, Any], **features: Any) -> dict[str, Any]:
    return {
        "data": {"store": str(folder / "a.zarr"), "targets": {"classes": "classes"}},
        "kernel": {"type": "decomposable", "scalar": scalar, "output": "simplex"},
        "features": features,
        "cluster": {"type": "serial"},
        "state": str(folder / "state"),
        "model": str(folder / "model"),
    }


def stored(folder: Path, n: int) -> tuple[FloatArray, FloatArray]:
    X, y = digits(n)
    np.savez(folder / "a.npz", x=X, label=y.astype(int))
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], classes="label", shard_rows=200)
    return X, y


def test_a_job_takes_landmarks_where_there_are_no_random_features(tmp_path: Path) -> None:
    stored(tmp_path, 1100)
    X, y = (rows[1100:] for rows in digits(1797))
    scalar = {
        "type": "skeleton",
        "inputs": [{"type": "sphere", "columns": block} for block in BLOCKS],
        "layers": [{"activation": "relu"}],
    }
    body = Job.model_validate(job(tmp_path, scalar))
    (chosen,) = [one for one in make_plan(body).resolved if one.key == "features.sampler"]
    assert chosen.value == {"type": "landmarks"} and "infinite variance" in chosen.why
    report = fit(body)
    model = load_model(report.model)
    assert model.kernel.terms()[0][1].scalar == RELU and model.sampler == {"type": "landmarks"}
    names = np.array(make_plan(body).dataset.target_columns, dtype=float)
    assert np.mean(names[np.argmax(model.predict(X), axis=1)] == y) > 0.95
    assert fit(body).outcome == "unchanged"
    with pytest.raises(InputError, match="or sampler landmarks"):
        make_plan(Job.model_validate(job(tmp_path, scalar, sampler={"type": "paths"})))


def test_the_plan_counts_what_exact_values_take() -> None:
    """Of many windows the kernel's values at all nodes are more than features."""
    wide = Skeleton([Layer(3), Layer()], shape=(8, 8, 1))
    plain, deep = (Recipe.of(one, Landmarks(), d=64, n_features=256) for one in (Skeleton([Layer()]), wide))
    assert deep.numbers > plain.numbers + 30 * 256 * 256
    assert deep.flops > plain.flops
