"""A job of three lines: what it leaves out, what that comes to and why; and what a sample of rows tells before the
pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dorff.data import ingest
from dorff.data.dataset import group_keys
from dorff.engine import SerialEngine
from dorff.errors import DoesNotFitError, InputError
from dorff.fit import fit
from dorff.kernels import CurlFree, Decomposable, Gaussian, Matern
from dorff.kernels.scalar import FloatArray
from dorff.passes import FoldRule
from dorff.plan import features_for, freeze_constants, make_plan, resolving
from dorff.plan import sampled as look_at
from dorff.plan.sampled import alike, block_length, dependence, distance, linear_r2, look, sketch
from dorff.spec.job import Job
from dorff.store import load_model
from tests.cases import LAW

RNG = np.random.default_rng(5)


def table(n: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 50.0, 0.01]
    return X, np.sin(2 * X[:, :1]) + X[:, 1:2] / 50 + 0.2 * rng.normal(size=(n, 1))


def walk(n: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Positions that wander, and a noise that stays from one row to the next."""
    rng = np.random.default_rng(seed)
    X, noise = np.cumsum(rng.normal(size=(n, 3)) * 0.1, axis=0), np.zeros((n, 1))
    for row in range(1, n):
        noise[row] = 0.97 * noise[row - 1] + 0.25 * rng.normal(size=1)
    return X, np.sin(X[:, :1]) + noise


def stored(path: Path, X: FloatArray, Y: FloatArray, *, append: bool = False, **more: Any) -> Path:
    source = path.with_suffix(".npz")
    np.savez(source, x=X, y=Y, **({"groups": more["of"]} if "of" in more else {}))
    named = {"groups": "groups"} if "of" in more else {}
    ingest([source], path, inputs=["x"], targets=["y"], append=append, shard_rows=more.get("shard_rows"), **named)
    return path


def job(store: Path, folder: Path, **more: Any) -> Job:
    paths = {"data": {"store": str(store)}, "state": str(folder / "state"), "model": str(folder / "model")}
    return Job.model_validate({**paths, "cluster": {"type": "serial"}, **more})


def chosen(described: Job) -> dict[str, Any]:
    return {one.key: one.value for one in make_plan(described).choices}


def test_three_lines_are_a_job_that_says_what_it_chose(tmp_path: Path) -> None:
    described = job(stored(tmp_path / "a.zarr", *table(700)), tmp_path)
    before = chosen(described)
    count, sampler = before["features.count"], before["features.sampler"]["type"]
    assert before.items() >= {"solve.standardize": True, "solve.select": "kfold"}.items()
    assert sampler in ("lattice", "landmarks") and count <= 1024  # there are three inputs
    report = fit(described, engine=SerialEngine())
    after = {one["key"]: one["value"] for one in report.choices}
    assert after.items() >= before.items() and after["solve.folds.by"] == "rows"
    lengths = after["kernel.lengthscale"]
    assert [*lengths] == ["x0", "x1", "x2"]
    assert lengths["x2"] > 5 * max(lengths["x0"], lengths["x1"]), "an input that tells nothing is not far away"
    assert report.score is not None and report.score > 0.9 and report.m <= count and report.folds == 5
    assert all(one["why"] for one in report.choices)
    assert fit(described, engine=SerialEngine()).outcome == "unchanged"


def test_classes_are_the_targets_of_data_without_y(tmp_path: Path) -> None:
    X, Y = table(300)
    np.savez(tmp_path / "a.npz", x=X, c=np.where(Y[:, 0] > 0, "up", "down"))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=[], classes="c")
    described = job(tmp_path / "a.zarr", tmp_path)
    assert chosen(described)["data.targets"] == {"classes": "classes"}
    report = fit(described, engine=SerialEngine())
    model = load_model(tmp_path / "model")
    assert model.info["labels"] == ["down", "up"] and report.rows_used == 300
    right = np.argmax(model.predict(X), axis=1) == (Y[:, 0] > 0)
    assert right.mean() > 0.9
    balanced = Job.model_validate(described.model_dump(exclude_unset=True) | {"solve": {"class_weight": "balanced"}})
    assert make_plan(balanced).job.classes == "classes"
    with pytest.raises(InputError, match="conformal has no effect: it is for numbers"):
        make_plan(Job.model_validate(described.model_dump(exclude_unset=True) | {"solve": {"conformal": True}}))
    with pytest.raises(InputError, match="class_weight has no effect: it is for classes"):
        make_plan(job(stored(tmp_path / "b.zarr", X, Y), tmp_path, solve={"class_weight": "balanced"}))
    with pytest.raises(InputError, match="no array 'y'"):  # named: not taken for anything else
        make_plan(Job.model_validate(
            {**described.model_dump(), "data": {"store": str(tmp_path / "a.zarr"), "targets": "y"}}
        ))  # fmt: skip


def test_a_vector_field_without_numbers_has_one_scale_and_one_length(tmp_path: Path) -> None:
    X = np.random.default_rng(1).uniform(-3, 3, (400, 2)) * 1000
    Y = np.column_stack([np.cos(X[:, 0] / 1000), np.sin(X[:, 1] / 1000)])
    described = job(stored(tmp_path / "a.zarr", X, Y), tmp_path, kernel={"type": "curl_free"})
    report = fit(described, engine=SerialEngine())
    after = {one["key"]: one["value"] for one in report.choices}
    assert isinstance(after["kernel.lengthscale"], float) and report.score is not None and report.score > 0.99
    assert np.ptp(make_plan(described).frozen().features.scale) == 0


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"features": {"count": 64}}, {"solve.standardize", "solve.select"}),
        ({"kernel": {"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 2.0}}}, {"features.count"}),
        ({"solve": {"ridge": 1e-3}}, {"features.count", "solve.standardize"}),
        ({"solve": {"select": "gcv", "standardize": False}}, {"features.count"}),
    ],
)
def test_what_a_job_says_is_left_alone(said: dict[str, Any], left: set[str], tmp_path: Path) -> None:
    X, Y = table(300)
    described = job(stored(tmp_path / "a.zarr", X, np.hstack([Y, Y, Y])), tmp_path, **said)
    keys = chosen(described)
    assert left <= keys.keys()
    for part, options in said.items():
        assert not {f"{part}.{key}" for key in options} & keys.keys()
    if "kernel" in said:
        assert keys["solve.standardize"] is False  # a length-scale is in the inputs' own units
    if said == {"solve": {"ridge": 1e-3}}:
        assert keys["solve.select"] == "gcv" and not make_plan(described).job.deals  # nothing is to be chosen


@pytest.mark.statistical
def test_appended_rows_change_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more rows than there are features: those of fewer are few, and chosen by again."""
    monkeypatch.setattr(resolving, "LEAST_ROWS", (100_000, 1_900, 0))
    X, Y = table(2000)
    ends = np.unique([X.argmin(axis=0), X.argmax(axis=0)])  # first, so that no later row is outside of their box
    order = np.concatenate([ends, np.setdiff1d(np.arange(2000), ends)])
    X, Y = X[order], Y[order]
    store = stored(tmp_path / "a.zarr", X[:1100], Y[:1100])
    described = job(store, tmp_path)
    first = fit(described, engine=SerialEngine())
    stored(store, X[1100:], Y[1100:], append=True)
    again = fit(described, engine=SerialEngine())
    samplers = [{one["key"]: one["value"] for one in report.choices}["features.sampler"] for report in (first, again)]
    assert samplers[0] == samplers[1] and again.rows_used == 2000 and again.outcome == "published"
    assert first.lengthscale == again.lengthscale
    random = {"features": {"sampler": {"type": "orthogonal"}}}
    fit(job(store, tmp_path / "random", **random), engine=SerialEngine())
    assert chosen(job(store, tmp_path / "elsewhere", **random))["features.count"] == 2048 == features_for(2000)


def test_groups_are_used_without_being_named(tmp_path: Path) -> None:
    X, Y = table(400)
    described = job(stored(tmp_path / "a.zarr", X, Y, of=np.arange(400) // 20), tmp_path, features={"count": 64})
    assert chosen(described)["solve.folds.by"] == "groups"
    report = fit(described, engine=SerialEngine())
    assert report.held_by == "groups" and report.quality is not None and report.quality["by"] == "groups"


def test_a_walk_is_held_out_in_blocks_and_a_table_by_rows(tmp_path: Path) -> None:
    for name, (X, Y), by in (("walk", walk(600), "blocks"), ("table", table(600), "rows")):
        described = job(stored(tmp_path / f"{name}.zarr", X, Y), tmp_path / name, features={"count": 64})
        report = fit(described, engine=SerialEngine())
        assert report.held_by == by, report.quality
        rule = make_plan(described).frozen().folds
        assert rule.run == (block_length(600, 5) if by == "blocks" else 1)
        assert len(np.unique(rule.of_rows(np.arange(rule.run)))) == 1


def test_blocks_may_be_asked_for(tmp_path: Path) -> None:
    described = job(
        stored(tmp_path / "a.zarr", *table(600)), tmp_path, features={"count": 64}, solve={"folds": {"by": "blocks"}}
    )
    assert fit(described, engine=SerialEngine()).held_by == "blocks"


def test_what_has_not_the_memory_gets_fewer_features_or_folds_of_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "LEAST_ROWS", (100_000, 1_000, 0))
    random = {"features": {"sampler": {"type": "orthogonal"}}}
    described = job(stored(tmp_path / "a.zarr", *table(2000)), tmp_path, **random)
    assert chosen(described)["features.count"] == 2048
    small = described.model_copy(update={"cluster": type(described.cluster)(type="serial", memory="420MiB")})
    fewer = chosen(small)["features.count"]
    assert fewer in resolving.COUNTS and fewer < 2048 and make_plan(small).costs.worker_bytes <= 0.95 * 420 * 2**20
    tiny = described.model_copy(update={"cluster": type(described.cluster)(type="serial", memory="300MiB")})
    with pytest.raises(DoesNotFitError, match=r"features.count \(now 2048\)"):
        make_plan(tiny)


def test_sums_that_fit_nowhere_are_streamed_at_one_ridge(tmp_path: Path) -> None:
    described = job(
        stored(tmp_path / "a.zarr", *table(2000)), tmp_path, features={"count": 16384},
        cluster={"type": "serial", "memory": "1GiB"},
    )  # fmt: skip
    plan = make_plan(described)
    assert plan.costs.route == "streaming" and plan.job.solve.ridges == (1e-6,)
    assert {"solve.route", "solve.ridge"} <= {one.key for one in plan.choices}


def test_a_state_of_one_count_does_not_bind_another_job(tmp_path: Path) -> None:
    store = stored(tmp_path / "a.zarr", *table(300))
    fit(job(store, tmp_path, features={"count": 512}), engine=SerialEngine())
    described = job(store, tmp_path)
    assert make_plan(described).costs.m == 512, "sums of these features are there already"
    assert make_plan(job(store, tmp_path, features={"count": 128})).costs.m == 128


def test_lengthscales_of_terms_are_said_or_left_out_together(tmp_path: Path) -> None:
    X = np.random.default_rng(1).uniform(-3, 3, (60, 2))
    terms = [
        {"weight": 0.5, "kernel": {"type": "curl_free"}},
        {"weight": 0.5, "kernel": {"type": "divergence_free", "scalar": {"type": "gaussian", "lengthscale": 2.0}}},
    ]
    described = job(stored(tmp_path / "a.zarr", X, X), tmp_path, kernel={"type": "sum", "terms": terms})
    with pytest.raises(InputError, match="terms of a sum are tuned together"):
        make_plan(described)


def test_the_error_without_neighbours_is_that_of_a_fit_without_them() -> None:
    """The residuals of rows that are left out together, by the hat matrix and by a solve without them."""
    n, m, ridge = 40, 6, 0.3
    F, Y = RNG.normal(size=(n, m)), RNG.normal(size=(n, 2))
    near = np.array([[3, 4, 5, 9], [n, 7, 8, 38]])  # n is no row
    values, vectors = np.linalg.eigh(F.T @ F)
    Z, sizes = F @ vectors, np.sqrt(values + np.array([[9.0], [ridge]]))
    left = Y - (Z / sizes[:, None]) @ np.swapaxes(Z / sizes[:, None], 1, 2) @ Y
    found = look_at._without(Z, sizes, left, near)[1]
    for rows, errors in ((near[0], found[0]), (near[1, 1:], found[1, 1:])):
        rest = np.setdiff1d(np.arange(n), rows)
        W = np.linalg.solve(F[rest].T @ F[rest] + ridge * np.eye(m), F[rest].T @ Y[rest])
        np.testing.assert_allclose(errors, Y[rows] - F[rows] @ W, rtol=1e-6)


@pytest.mark.parametrize("gaps", [[], [5, 6, 40, 59]])
def test_rows_beside_are_those_of_the_next_numbers(gaps: list[int]) -> None:
    """Each row predicted without itself, and without those within three numbers of it, by fits to the others."""
    numbers = np.delete(np.arange(60), gaps)
    X, Y = walk(60, 4)
    F, Y = np.column_stack([np.sin(X), np.cos(X)])[numbers], Y[numbers]
    F, Y, n = F - F.mean(axis=0), (Y - Y.mean(axis=0)) / Y.std(axis=0), len(numbers)
    share, _, beside = dependence(F, Y, numbers)

    def least(reach: int) -> float:
        errors = []
        for ridge in look_at._RIDGES:
            hat = F @ np.linalg.solve(F.T @ F + ridge * n * np.eye(6), F.T)
            left, each = Y - hat @ Y, []
            for at in range(n):
                out = np.flatnonzero(abs(numbers - numbers[at]) <= reach)
                each.append(np.linalg.solve(np.eye(len(out)) - hat[np.ix_(out, out)], left[out])[out == at][0, 0])
            errors.append(np.mean(np.square(each)))
        return min(errors)

    assert beside == n // 20
    alone = min(
        np.mean(((Y - hat @ Y)[:, 0] / (1 - np.diag(hat) - 1 / n)) ** 2)
        for hat in (F @ np.linalg.solve(F.T @ F + r * n * np.eye(6), F.T) for r in look_at._RIDGES)
    )
    assert share == pytest.approx(max(0.0, 1 - alone / least(beside)), abs=1e-5) and share > 0.02


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_tell_their_neighbours_errors_are_told_from_those_that_do_not(seed: int) -> None:
    for (X, Y), tells in ((table(500, seed), False), (walk(500, seed), True)):
        scaled = (X - X.mean(axis=0)) / X.std(axis=0)
        F = sketch(Decomposable(Gaussian(1.0)), scaled, seed)
        share, correlation, beside = dependence(F, Y, np.arange(500))
        assert beside == 16 and (share > look_at.ALIKE or correlation > look_at.CORRELATED) == tells
    X, Y = table(500, seed)
    noise = np.repeat(np.random.default_rng(seed).normal(size=(25, 1)), 20, axis=0)
    F = sketch(Decomposable(Gaussian(1.0)), X / X.std(axis=0), seed)
    _, correlation, _ = dependence(F, Y + noise, np.arange(500))
    assert correlation > look_at.CORRELATED, "noise that stays, at inputs that do not"


def test_neither_a_smooth_function_without_noise_nor_few_rows_are_alike() -> None:
    X = np.sort(np.random.default_rng(0).uniform(-3, 3, (400, 1)), axis=0)
    F = sketch(Decomposable(Gaussian(0.5)), X, 0)
    share, correlation, _ = dependence(F, np.sin(2 * X), np.arange(400))
    assert share < look_at.ALIKE and correlation < look_at.CORRELATED
    assert dependence(F[:10], X[:10], np.arange(10))[:2] == (0.0, 0.0)
    assert dependence(F, np.ones((400, 2)), np.arange(400))[:2] == (0.0, 0.0)


def test_a_linear_model_is_that_of_scikit_learn() -> None:
    X, Y = table(300)
    Y = np.hstack([Y, X[:, :1] + 0.01 * Y, np.ones_like(Y)])
    fold_of = FoldRule(5, True, 3).of_rows(np.arange(300))
    found = linear_r2(X, Y, fold_of)
    errors = [
        np.sum((Y - cross_val_predict(model, X, Y, cv=PredefinedSplit(fold_of))) ** 2, axis=0)
        for model in (make_pipeline(StandardScaler(), Ridge(ridge * 240)) for ridge in look_at._LINEAR_RIDGES)
    ]
    expected = 1 - np.min(errors, axis=0)[:2] / np.sum((Y - Y.mean(axis=0)) ** 2, axis=0)[:2]
    np.testing.assert_allclose(np.array(found[:2], float), expected, atol=1e-4)
    assert found[2] is None and linear_r2(X, Y, np.zeros(300, int)) == (None, None, None)


@LAW
@given(st.integers(1, 10**9), st.integers(2, 40))
def test_blocks_are_a_power_of_two_and_enough_of_them(rows: int, folds: int) -> None:
    length = block_length(rows, folds)
    assert length & (length - 1) == 0 and (length == 1 or rows >= look_at.BLOCKS * folds * length)
    assert rows < 2 * look_at.BLOCKS * folds * length


def test_a_look_tells_whether_rows_in_order_are_alike() -> None:
    (X, Y), kernel, numbers = walk(500), Decomposable(Gaussian(1.0)), np.arange(500)
    X = X / X.std(axis=0)
    looked = look(kernel, X, Y, numbers, 0)
    assert alike(looked.dependence, looked.correlation) and looked.rows == 500
    assert (looked.dependence, looked.correlation) == dependence(sketch(kernel, X, 0), Y, numbers)[:2]
    apart = look(kernel, X, np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(500, 1)), numbers, 0)
    few = look(kernel, X[:10], Y[:10], numbers[:10], 0)
    assert not alike(apart.dependence, apart.correlation) and not alike(few.dependence, few.correlation)
    assert few.rows == 10


@pytest.mark.parametrize("by", ["auto", "rows", "blocks", "leaves", "groups"])
def test_a_linear_model_has_the_folds_of_the_pass(by: str, tmp_path: Path) -> None:
    X, Y = table(40_000)
    of = np.arange(len(X)) // 900
    store = stored(tmp_path / "a.zarr", X, Y + X[:, :1], of=of, shard_rows=2048)
    solve = {"folds": {"by": by, "count": 3}, "select": "kfold", "ridge": [1e-4, 1e-2]}
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}
    plan = make_plan(job(store, tmp_path, features={"count": 2048}, solve=solve, kernel=kernel))
    frozen = freeze_constants(plan)
    looked, features, rule = frozen.constants.sampled, frozen.features, frozen.folds
    rows = np.concatenate([np.arange(start, stop) for start, stop in look_at.sample_runs(0, len(X))])
    fold_of = rule.of_rows(rows if by in ("rows", "blocks") else group_keys(of[rows]))
    if by == "leaves":
        fold_of = np.array([leaf.number % 3 for row in rows for leaf in plan.leaves if leaf.start <= row < leaf.stop])
    scaled = (X - features.center) / features.scale
    assert looked is not None and looked["rows"] == len(rows)
    assert looked["linear"] == pytest.approx(linear_r2(scaled[rows], (Y + X[:, :1])[rows], fold_of), rel=1e-9)
    assert len(np.unique(fold_of)) == 3


def test_several_files_are_dealt_by_file(tmp_path: Path) -> None:
    X, Y = table(700)
    for part in range(7):
        rows = slice(100 * part, 100 * part + 100)
        np.savez(tmp_path / f"{part}.npz", x=X[rows], y=Y[rows])
    ingest(sorted(tmp_path.glob("*.npz")), tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    plan = make_plan(job(tmp_path / "a.zarr", tmp_path, features={"count": 64}))
    (by,) = (one for one in plan.choices if one.key == "solve.folds.by")
    assert by.value == "groups" and "source files" in by.why
    report = fit(plan.job, engine=SerialEngine())
    assert report.held_by == "groups" and 2 <= report.folds <= 5
    rule, data = plan.frozen().folds, plan.dataset
    folds = rule.of(data.block(0, 700)).reshape(7, 100)
    assert np.all(folds == folds[:, :1]) and len(np.unique(folds)) == report.folds


def test_distances_are_in_length_scales() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    one = distance(Decomposable(Gaussian(1.0)), X)
    assert one is not None and 1.0 < one < 3.0
    assert distance(CurlFree(Matern(0.01, nu=2.5)), X) == pytest.approx(100 * one)
    assert distance(Decomposable(Gaussian((1.0, 10.0))), X * [1, 10]) == pytest.approx(one)
    assert distance(Decomposable(Gaussian(1.0)), np.ones((5, 2))) is None


def test_a_linear_model_of_wide_rows_takes_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, shapes = rng.normal(size=(2000, 600)), list[tuple[int, int]]()
    Y = X[:, :1] + 0.1 * rng.normal(size=(2000, 1))
    monkeypatch.setattr(look_at, "LINEAR_FLOPS", 2e7)
    svd = look_at.scipy.linalg.svd
    monkeypatch.setattr(look_at.scipy.linalg, "svd", lambda A, **more: (shapes.append(A.shape), svd(A, **more))[1])
    linear_r2(X, Y, np.arange(2000) % 4)
    assert len(shapes) == 4 and all(100 < n < 200 for n, _ in shapes)


@pytest.mark.parametrize(("rows", "count"), [(1, 1024), (19_999, 1024), (20_000, 2048), (99_999, 2048), (10**5, 4096)])
def test_features_follow_the_rows(rows: int, count: int) -> None:
    assert features_for(rows) == count


def test_the_rows_that_are_looked_at_are_runs_of_all_of_them(tmp_path: Path) -> None:
    runs = look_at.sample_runs(100, 10**6)
    assert len(runs) == look_at.RUNS and runs[0][0] == 100 and runs[-1][1] == 10**6
    assert {stop - start for start, stop in runs} == {look_at.RUN_ROWS} and look_at.sample_runs(5, 900) == [(5, 900)]
    described = job(stored(tmp_path / "a.zarr", *table(300)), tmp_path, features={"count": 64})
    frozen = freeze_constants(make_plan(described))
    assert frozen.constants.sampled is not None and frozen.constants.sampled["rows"] == 300
