"""The search for a skeleton's length-scales: its features move with them, and data drawn from a skeleton tell them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff import ORFFRegressor, tune_lengthscales
from dorff.data import ingest
from dorff.errors import InputError
from dorff.features import Recipe, with_lengthscale
from dorff.features.lengthscale_search import Evidence
from dorff.features.projected import UnitFeatures
from dorff.fit import fit
from dorff.frequencies import Paths
from dorff.kernels import (
    Angle,
    Category,
    ColumnBlock,
    Decomposable,
    FloatArray,
    Gaussian,
    Layer,
    Matern,
    Sign,
    Skeleton,
    Sphere,
    input_lengthscales,
)
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model

MIXED = Skeleton(
    [Layer(activation="erf")],
    inputs=[Angle(columns=[0, 3]), Sign(columns=1), Category(4, columns=2), ColumnBlock(Matern(1.0), columns=[4, 5])],
)
WINDOWS = Skeleton([Layer(2, 1, "erf"), Layer()], shape=(3, 2, 1))


def rows(n: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    X[:, 1], X[:, 2] = rng.choice([-1.0, 1.0], n), rng.integers(0, 4, n)
    return X


@pytest.mark.parametrize(
    "lengthscale", [np.array([0.6]), np.array([0.5, 9.0, 9.0, 2.0, 0.7, 1.3])], ids=["one", "each"]
)
def test_unit_features_are_those_of_the_kernel_with_a_lengthscale(lengthscale: FloatArray) -> None:
    X = rows(20)
    stretched = MIXED.with_lengthscale(lengthscale)
    each = np.broadcast_to(lengthscale, 6)
    assert stretched.inputs[0].lengthscales(2) == pytest.approx(each[[0, 3]])
    assert stretched.inputs[3].lengthscales(2) == pytest.approx(each[[4, 5]])
    assert stretched.inputs[1:3] == MIXED.inputs[1:3], "signs and categories have none"
    features = UnitFeatures.of(Decomposable(MIXED), d=6, p=1, columns=200, seed=3)
    F = features.columns(X, lengthscale) * np.tile(features.psi(lengthscale)[:, 0, 0], 2)
    drawn = Recipe.of(stretched, Paths(), d=6, n_features=200).draw(3)
    np.testing.assert_allclose(F @ F.T, drawn.phi.gram(X, X), atol=1e-10)


@pytest.mark.parametrize("skeleton", [MIXED, WINDOWS], ids=["mixed", "windows"])
def test_the_gradient_of_the_evidence_is_its_differences(skeleton: Skeleton) -> None:
    X, Y = rows(60), np.random.default_rng(1).normal(size=(60, 1, 2))
    features = UnitFeatures.of(Decomposable(skeleton), d=6, p=1, columns=40, seed=0)
    evidence, lengths = Evidence(features, X, Y), np.array([0.9, 1.1, 1.3, 0.8, 1.7, 1.2])
    _, gradient = evidence(lengths, 0.3)
    for axis in range(6):
        step = np.exp(1e-5 * np.eye(6)[axis])
        slope = (evidence(lengths * step, 0.3)[0] - evidence(lengths / step, 0.3)[0]) / 2e-5
        assert gradient[axis] == pytest.approx(slope, abs=1e-4)
    assert skeleton is WINDOWS or not np.any(gradient[1:3])


@pytest.mark.parametrize("true", [0.4, 1.5])
def test_data_of_a_skeleton_tell_its_lengthscale(true: float) -> None:
    X = np.random.default_rng(0).normal(size=(500, 6))
    K = Skeleton([Layer()], inputs=Angle(true)).gram(X, X)
    rng = np.random.default_rng(1)
    Y = np.linalg.cholesky(K + 1e-10 * np.eye(500)) @ rng.normal(size=(500, 4))
    Y = Y / Y.std(axis=0) + 0.05 * rng.normal(size=(500, 4))
    tuned = tune_lengthscales(Decomposable(Skeleton([Layer()])), X, Y)
    assert 0.6 < tuned.lengthscale[0] / true < 1.6, tuned.status
    (scalar,) = (base.scalar for _, base in tuned.kernel.terms())
    assert scalar == Skeleton([Layer()], inputs=Angle(float(tuned.lengthscale[0])))


def test_a_sum_of_skeletons_shares_one_lengthscale() -> None:
    X = np.random.default_rng(0).normal(size=(300, 6))
    kernel = Decomposable(WINDOWS) + Decomposable(Gaussian(1.0)) * 0.5
    tuned = tune_lengthscales(kernel, X, np.sin(X[:, 0]) * X[:, 1])
    first, second = input_lengthscales(tuned.kernel, np.ones(6))
    assert first == pytest.approx(dict.fromkeys(range(6), tuned.lengthscale[0])) and first == pytest.approx(second)


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        (Skeleton([Layer()], inputs=Sign()), "signs, categories and spheres have none"),
        (
            Skeleton([Layer(activation="exponential")], inputs=[Angle(columns=0), Sphere(columns=[1, 2])]),
            "over spheres",
        ),
        (Skeleton([Layer()], inputs=[Angle(columns=0), Sphere(columns=[1, 2, 3])]), "which this skeleton has none of"),
    ],
    ids=["signs", "a sphere", "no random features"],
)
def test_what_cannot_be_tuned_says_why(skeleton: Skeleton, message: str) -> None:
    X = np.random.default_rng(0).choice([-1.0, 1.0], (50, 4))
    with pytest.raises(InputError, match=message):
        tune_lengthscales(Decomposable(skeleton), X, X[:, 0])


def job(folder: Path, inputs: Any, **solve: Any) -> Job:
    scalar = {"type": "skeleton", "inputs": inputs, "layers": [{"activation": "erf"}]}
    return Job.model_validate(
        {
            "data": {"store": str(folder / "a.zarr")},
            "kernel": {"type": "decomposable", "scalar": scalar},
            "features": {"count": 200},
            "solve": solve,
            "cluster": {"type": "serial"},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
        }
    )


def stored(folder: Path) -> tuple[FloatArray, FloatArray]:
    X = rows(500)
    y = np.sin(2.0 * X[:, 0]) * X[:, 1] + np.cos(X[:, 4]) + 0.05 * np.random.default_rng(1).normal(size=500)
    np.savez(folder / "a.npz", x=X, y=y)
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=["y"], shard_rows=128)
    return X, y


def spaces(word: Any) -> list[dict[str, Any]]:
    return [
        {"type": "angle", "columns": [0, 3], "lengthscale": word},
        {"type": "sign", "columns": [1]},
        {"type": "category", "columns": [2], "values": 4},
        {"type": "block", "columns": [4, 5], "scalar": {"type": "gaussian", "lengthscale": word}},
    ]


@pytest.mark.parametrize("word", ["auto", "tune", {"tune": "each"}], ids=str)
def test_a_job_finds_the_lengthscales_of_a_skeleton(word: Any, tmp_path: Path) -> None:
    """Better than at lengths that are far too long; signs and categories stay as they are."""
    X, y = stored(tmp_path)
    body = job(tmp_path, spaces(word))
    report = fit(body)
    model = load_model(report.model)
    np.testing.assert_array_equal(model.feature_map.scale, 1.0)
    (lengths,) = input_lengthscales(model.kernel, np.ones(6))
    assert lengths is not None and sorted(lengths) == [0, 3, 4, 5]
    assert len({round(one, 9) for one in lengths.values()}) == (4 if isinstance(word, dict) else 1)
    assert report.tuned is not None and set(report.lengthscale_in_units[0]) == {"x0", "x3", "x4", "x5"}
    long = fit(job(tmp_path, spaces(100.0)))
    assert np.mean((model.predict(X)[:, 0] - y) ** 2) < 0.5 * np.mean(
        (load_model(long.model).predict(X)[:, 0] - y) ** 2
    )
    if word == "auto":
        chosen = {one.key: one for one in make_plan(body).resolved}
        assert chosen["solve.standardize"].value is False and "must stay" in chosen["solve.standardize"].why


def test_angles_alone_are_standardized_where_all_is_left_to_dorff(tmp_path: Path) -> None:
    X, _ = stored(tmp_path)
    report = fit(job(tmp_path, {"type": "angle", "lengthscale": "auto"}))
    model = load_model(report.model)
    np.testing.assert_allclose(model.feature_map.scale, X.std(axis=0), rtol=1e-6)
    (lengths,) = report.lengthscale_in_units
    assert len(lengths) == 6


def test_an_estimator_takes_the_tuned_kernel() -> None:
    X, y = rows(400), np.sin(3.0 * rows(400)[:, 0])
    kernel = tune_lengthscales(Decomposable(MIXED), X, y, each=True).kernel
    far = with_lengthscale(Decomposable(MIXED), 50.0)
    scores = [
        ORFFRegressor(one, 128, cv=None, ridge=1e-4).fit(X[:300], y[:300]).score(X[300:], y[300:])
        for one in (kernel, far)
    ]
    assert scores[0] > 0.9 and scores[0] > scores[1] + 0.2
