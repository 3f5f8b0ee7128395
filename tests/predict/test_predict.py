"""Predictions from Zarr to Zarr, whole or not at all; scores."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import plain_map, weights_of
from distributed import Client

from dorff import frequencies, kernels
from dorff.data import ingest, open_dataset, trim, verify
from dorff.engine import SerialEngine
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import InputError, LeaseError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.predict import predict, score, writing
from dorff.store import Lease, save_model

ROWS = 20_000


@pytest.fixture(scope="module")
def model() -> Model:
    kernel = kernels.CurlFree(kernels.Gaussian(0.7)).fix(2, 2)
    found = frequencies.Orthogonal().draw(kernel, d=2, p=2, count=20, seed=1)
    weights = weights_of(kernel, found)
    h = np.random.default_rng(2).standard_normal(weights.shape[:2])
    return Model(
        plain_map(found.omega), weights, h, np.array([1.0, -2.0]), np.ones(2), kernel, {"type": "orthogonal"}, 1
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Model) -> tuple[Path, FloatArray, FloatArray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((ROWS, 2))
    Y = model.predict(X) + rng.standard_normal((ROWS, 2)) * [0.5, 2.0] + [0.0, 100.0]
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "a.npz", x=X, y=Y)
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=["y"], shard_rows=1024)
    return folder / "a.zarr", X, Y


def values(path: Path) -> FloatArray:
    array = zarr.open_array(str(path / "y"), mode="r")
    return np.asarray(array[...])


@pytest.mark.process
def test_predictions_are_the_models_on_every_engine(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path
) -> None:
    store, X, _ = data
    save_model(model, tmp_path / "m")
    assert predict(tmp_path / "m", store, tmp_path / "serial.zarr", engine=SerialEngine(shuffle=1)) == ROWS
    with local_cluster(2) as cluster, Client(cluster) as client:
        predict(tmp_path / "m", store, tmp_path / "dask.zarr", engine=DaskEngine(client))
    np.testing.assert_allclose(values(tmp_path / "serial.zarr"), model.predict(X), rtol=1e-12)
    assert np.array_equal(values(tmp_path / "serial.zarr"), values(tmp_path / "dask.zarr"))
    assert verify(tmp_path / "serial.zarr") == []
    assert zarr.open_array(str(tmp_path / "serial.zarr" / "y")).chunks[0] <= 4096  # whole shards of the inputs


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


def test_a_stopped_prediction_goes_on_and_never_mixes_models(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path
) -> None:
    store, X, _ = data
    other = replace(model, coefficients=-model.coefficients)
    save_model(model, tmp_path / "a")
    save_model(other, tmp_path / "b")

    def stop(done: int, _total: int) -> None:
        if done > ROWS // 2:
            raise Interrupted

    out = tmp_path / "out.zarr"
    with pytest.raises(Interrupted):
        predict(tmp_path / "a", store, out, engine=SerialEngine(), progress=stop)
    assert not out.exists() and len(list(tmp_path.glob(".out.zarr.*.partial/y/c/*/0"))) >= 3
    seen: list[int] = []
    predict(tmp_path / "a", store, tmp_path / "again.zarr", engine=SerialEngine())
    predict(tmp_path / "a", store, out, engine=SerialEngine(), progress=lambda done, _: seen.append(done))
    assert seen[0] > ROWS // 2, "finished shards are not done again"
    assert np.array_equal(values(out), values(tmp_path / "again.zarr"))

    mixed = tmp_path / "mixed.zarr"
    with pytest.raises(Interrupted):
        predict(tmp_path / "a", store, mixed, engine=SerialEngine(), progress=stop)
    predict(tmp_path / "b", store, mixed, engine=SerialEngine())
    np.testing.assert_allclose(values(mixed), other.predict(X), rtol=1e-12)
    assert not list(tmp_path.glob(".mixed*"))


def test_what_another_run_wrote_meanwhile_is_left_alone(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between this run's first look at the place and its lease."""
    store, _, _ = data
    save_model(model, tmp_path / "m")
    predict(tmp_path / "m", store, tmp_path / "first.zarr", engine=SerialEngine())
    out, take = tmp_path / "out.zarr", Lease.take

    def late(path: Path) -> Lease:
        (tmp_path / "first.zarr").rename(out)
        return take(path)

    monkeypatch.setattr(Lease, "take", late)
    with pytest.raises(InputError, match="is there already"):
        predict(tmp_path / "m", store, out, engine=SerialEngine())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out.zarr"]


def overtaken(folder: Path) -> Lease:
    """Another run's lease on out.zarr, whose lease was not renewed for long."""
    (file,) = folder.glob(".out.zarr.lease.0*")
    os.utime(file, (0, 0))
    return Lease.take(folder / ".out.zarr.lease")


def test_a_run_that_is_overtaken_at_its_last_step_moves_nothing(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = data
    save_model(model, tmp_path / "m")
    out, commit, others = tmp_path / "out.zarr", writing.commit, list[Lease]()

    def late(*words: Any) -> None:
        others.append(overtaken(tmp_path))
        commit(*words)

    monkeypatch.setattr(writing, "commit", late)
    with pytest.raises(LeaseError, match="was taken over"):
        predict(tmp_path / "m", store, out, engine=SerialEngine())
    assert not out.exists()
    others[0].check()  # it is still the other's
    others[0].release()


def test_a_run_that_is_overtaken_writes_no_more_shards(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path
) -> None:
    store, _, _ = data
    save_model(model, tmp_path / "m")
    seen, others = list[int](), list[Lease]()

    def tell(done: int, _total: int) -> None:
        seen.append(done)
        if len(seen) == 2:  # the first shard is written
            others.append(overtaken(tmp_path))

    with pytest.raises(LeaseError, match="was taken over"):
        predict(tmp_path / "m", store, tmp_path / "out.zarr", engine=SerialEngine(), progress=tell)
    others[0].release()
    assert len(seen) == 2 and len(list(tmp_path.glob(".out.zarr.*.partial/y/c/*/0"))) < 4 < ROWS / 4096


def test_another_model_in_the_same_place_is_the_one_that_is_scored(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path
) -> None:
    store, _, _ = data
    version = save_model(model, tmp_path / "m")
    first = score(version, store, engine=SerialEngine())
    version.rename(tmp_path / "away")
    again = save_model(replace(model, coefficients=0 * model.coefficients), tmp_path / "m")
    assert again == version
    second = score(version, store, engine=SerialEngine())
    assert second.per_output["y0"]["rmse"] > 2 * first.per_output["y0"]["rmse"]


def test_scores_are_the_definitions(model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path) -> None:
    store, X, Y = data
    save_model(model, tmp_path / "m")
    found = score(tmp_path / "m", store, engine=SerialEngine(shuffle=2))
    error, spread = (Y - model.predict(X)) ** 2, (Y - Y.mean(axis=0)) ** 2
    assert found.rows == ROWS
    assert found.r2 == pytest.approx(1 - error.sum() / spread.sum(), rel=1e-10)
    assert found.rmse == pytest.approx(np.sqrt(error.mean()), rel=1e-12)
    for j, name in enumerate(("y0", "y1")):
        assert found.per_output[name]["r2"] == pytest.approx(1 - error[:, j].sum() / spread[:, j].sum(), rel=1e-9)
        assert found.per_output[name]["rmse"] == pytest.approx(np.sqrt(error[:, j].mean()), rel=1e-12)


def test_coarse_chunks_of_others_are_predicted_whole(model: Model, tmp_path: Path) -> None:
    X = np.random.default_rng(4).standard_normal((9000, 2))
    for version in (2, 3):
        group = zarr.open_group(str(tmp_path / f"v{version}.zarr"), mode="w", zarr_format=version)
        group.create_array("x", data=X, chunks=(7000, 2))
        save_model(model, tmp_path / "m")
        predict(tmp_path / "m", tmp_path / f"v{version}.zarr", tmp_path / f"o{version}.zarr", engine=SerialEngine())
        np.testing.assert_allclose(values(tmp_path / f"o{version}.zarr"), model.predict(X), rtol=1e-12)


def test_bad_input_is_refused_and_writes_nothing(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path
) -> None:
    store, _, _ = data
    save_model(model, tmp_path / "m")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="4 input columns, but the model was fitted to 2"):
        predict(tmp_path / "m", store, tmp_path / "o.zarr", engine=SerialEngine(), inputs=["x", "y"])
    with pytest.raises(InputError, match="no model here"):
        predict(tmp_path / "none", store, tmp_path / "o.zarr", engine=SerialEngine())
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match="is there already"):
        predict(tmp_path / "m", store, tmp_path / "m", engine=SerialEngine())
    np.savez(tmp_path / "b.npz", x=np.ones((3, 2)), y=[[1.0, 2.0], [np.nan, 1.0], [1.0, 1.0]])
    ingest([tmp_path / "b.npz"], tmp_path / "b.zarr", inputs=["x"], targets=["y"])
    with pytest.raises(InputError, match=r"row 1, column y0: expected a finite number, got nan"):
        score(tmp_path / "m", tmp_path / "b.zarr", engine=SerialEngine())


@pytest.mark.parametrize("keep", [ROWS - 1024, ROWS - 6 * 1024])
def test_predictions_and_scores_of_a_trimmed_store_keep_the_rows_numbers(
    model: Model, data: tuple[Path, FloatArray, FloatArray], tmp_path: Path, keep: int
) -> None:
    """A shard of predictions is four of the inputs': the first row that is left is inside one."""
    _, X, Y = data
    first = ROWS - keep
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    store, out, kept = tmp_path / "a.zarr", tmp_path / "o.zarr", tmp_path / "kept.zarr"
    ingest([tmp_path / "a.npz"], store, inputs=["x"], targets=["y"], shard_rows=1024)
    assert trim(store, keep=keep) == keep
    save_model(model, tmp_path / "m")
    told: list[tuple[int, int]] = []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    assert predict(tmp_path / "m", store, out, engine=SerialEngine(), progress=progress) == keep
    assert told[-1] == (keep, keep)
    found = open_dataset(out, inputs="y", targets=None)
    assert (found.first, found.n) == (first, ROWS) and verify(out) == []
    np.testing.assert_allclose(found.read(first, ROWS)[0], model.predict(X[first:]), rtol=1e-12)
    np.savez(tmp_path / "kept.npz", x=X[first:], y=Y[first:])
    ingest([tmp_path / "kept.npz"], kept, inputs=["x"], targets=["y"], shard_rows=1024)
    assert score(tmp_path / "m", store, engine=SerialEngine()) == score(tmp_path / "m", kept, engine=SerialEngine())
    trim(out, keep=1)
    assert open_dataset(out, inputs="y", targets=None).first == ROWS - ROWS % 4096
