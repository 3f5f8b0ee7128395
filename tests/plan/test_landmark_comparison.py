"""The comparison of landmarks with random features: the folds that it holds out, and the noise that it finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff import kernels
from dorff.data import RowBlock, ingest
from dorff.features import Recipe
from dorff.frequencies import Landmarks, Orthogonal
from dorff.plan import choosing, make_plan
from dorff.plan.landmark_choice import (
    COMPARED_FOLDS,
    Comparison,
    compare_samplers,
    count_landmarks,
    has_enough_landmarks,
)
from dorff.plan.sampled import held_out_score
from dorff.solvers import Setting
from dorff.spec.job import Job


@pytest.mark.parametrize("shard_rows", [64, 1024])
def test_groups_are_held_out_together_however_many_shards_the_rows_lie_in(
    shard_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, folds = np.random.default_rng(0), dict[int, set[int]]()
    groups = np.repeat(np.arange(30), 20)
    X = rng.uniform(-1, 1, (30, 4))[groups] + 0.05 * rng.standard_normal((600, 4))
    y = rng.standard_normal(30)[groups] + 0.1 * rng.standard_normal(600)
    np.savez(tmp_path / "rows.npz", x=X, y=y[:, None], groups=groups)
    named: dict[str, Any] = {"inputs": ["x"], "targets": ["y"], "groups": "groups"}
    ingest([tmp_path / "rows.npz"], tmp_path / "data.zarr", shard_rows=shard_rows, **named)

    def compared(setting: Setting, recipe: Recipe, rows: RowBlock, fold_of: Any, **options: Any) -> Any:
        for number, fold in zip(rows.numbers.tolist(), fold_of.tolist(), strict=True):
            folds.setdefault(int(groups[number]), set()).add(fold)
        return compare_samplers(setting, recipe, rows, fold_of, **options)

    monkeypatch.setattr(choosing, "compare_samplers", compared)
    body = {"data": {"store": str(tmp_path / "data.zarr")}, "cluster": {"type": "serial"}}
    make_plan(Job.model_validate({**body, "state": str(tmp_path / "state"), "model": str(tmp_path / "model")}))
    assert len(folds) == 30 and all(len(of_group) == 1 for of_group in folds.values())


def test_the_noise_is_that_of_the_penalty_of_the_rows_that_folds_are_predicted_from() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (200, 1))
    rows = RowBlock(np.arange(200), X, np.sin(3 * X) + 0.3 * rng.standard_normal((200, 1)))
    kernel = kernels.Decomposable(kernels.Gaussian(0.7))
    setting = Setting(kernel, 1, 32, None, False, True)
    recipe = Recipe(kernel.fix(1, 1), Orthogonal(), 1, 1, 32)
    found = compare_samplers(setting, recipe, rows, None, most_rows=200, fitted=200, seed=0)
    best = held_out_score(setting, rows, np.arange(200) % COMPARED_FOLDS, 0, Landmarks())
    assert found.ratio == pytest.approx(160 * best.ridge)
    assert found.landmarks == best.least


@pytest.mark.parametrize(("count", "compared"), [(199, True), (200, False)])
def test_rows_that_can_all_be_landmarks_are_not_compared_with_random_features(count: int, compared: bool) -> None:
    """Landmarks at all rows have the exact kernel, and random features are better on a sample by luck alone."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (200, 2))
    rows = RowBlock(np.arange(200), X, rng.standard_normal((200, 1)))
    kernel = kernels.Decomposable(kernels.Gaussian(0.7))
    recipe = Recipe(kernel.fix(2, 1), Orthogonal(), 2, 1, count)
    setting = Setting(kernel, 2, count, None, False, True)
    found = compare_samplers(setting, recipe, rows, None, most_rows=200, fitted=200, seed=0)
    assert (found.random is not None) == compared and found.enough > 0
    assert found.enough_of_landmarks == (found.enough if compared else 0.0)
    assert compared or found.prefers_landmarks


def test_landmarks_leave_out_at_most_a_twentieth_of_the_posterior_variance() -> None:
    """The posterior variance is that of an exact Gaussian process at the rows of its fit."""
    n, ratio = 200, 0.1
    X = np.random.default_rng(2).uniform(-4, 4, (n, 2))
    kernel = kernels.Gaussian(0.7)
    gram = kernel.gram(X, X)
    smoother = np.linalg.solve(gram + ratio * np.eye(n), gram)
    posterior_variance = float(np.trace(gram - gram @ smoother)) / n
    comparison = Comparison(
        rows=64,
        fitted=n,
        features=32,
        most_features=32,
        landmarks=0.1,
        random=0.1,
        ratio=ratio,
        freedom=float(np.trace(smoother)),
    )
    recipe = Recipe(kernels.Decomposable(kernel).fix(2, 1), Landmarks(), 2, 1, n)
    found = count_landmarks(recipe, X, comparison.enough, seed=0)
    assert comparison.enough == pytest.approx(0.05 * posterior_variance, rel=1e-9)
    assert found.count < n and found.missing <= 0.05 * posterior_variance


@pytest.mark.parametrize(("n_rows", "enough"), [(1020, True), (1024, True), (1025, False)])
def test_landmarks_at_all_rows_are_enough(n_rows: int, enough: bool) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (1024, 2))
    recipe = Recipe(kernels.Decomposable(kernels.Gaussian(0.7)).fix(2, 1), Landmarks(), 2, 1, 1024).among(X, 0)
    assert has_enough_landmarks(recipe, n_rows, count_is_chosen=False) == enough


@pytest.mark.parametrize("n", [1, 3, 20])
def test_there_are_no_more_landmarks_than_rows(n: int) -> None:
    X = np.random.default_rng(0).uniform(-4, 4, (n, 2))
    recipe = Recipe(kernels.Decomposable(kernels.Gaussian(0.7)).fix(2, 1), Landmarks(), 2, 1, 1024)
    assert count_landmarks(recipe, X, 0.0, seed=0).count == n
