"""Fits of stores some of whose rows were dropped or replaced: those rows weigh nothing, whatever they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dorff.data import drop, ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import FitReport, fit
from dorff.model import Model
from dorff.passes import blocks as leaf_sizes
from dorff.predict import score
from dorff.spec.job import Job
from dorff.store import load_model

Array = npt.NDArray[Any]

N, SHARD = 640, 128
DROPPED = slice(256, 320)
"""Rows of the third leaf."""


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of a shard, so that small data have several."""
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


def make_rows(bad: bool) -> Array:
    """Columns x0, x1, y0, y1, weight, group; `bad`: what is to be dropped holds nonsense."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, 2))
    Y = np.column_stack([np.sin(2 * X[:, 0]), np.cos(X[:, 1])]) + 0.1 * rng.standard_normal((N, 2))
    weight, group = np.ones(N), np.repeat(np.arange(N // 32), 32)
    weight[DROPPED] = 0.0
    if bad:
        X[DROPPED], Y[DROPPED] = 1e6, np.nan
    return np.column_stack([X, Y, weight, group])


def write_store(folder: Path, bad: bool = False, sources: str = "abc") -> Path:
    """Three sources; the rows of the second are those to be dropped."""
    rows, paths = make_rows(bad), []
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"a": slice(DROPPED.start), "b": DROPPED, "c": slice(DROPPED.stop, N)}
    for name, part in parts.items():
        if name not in sources:
            continue
        paths.append(folder / f"{name}.npz")
        names = {"x0": 0, "x1": 1, "y0": 2, "y1": 3, "weight": 4, "group": 5}
        np.savez(paths[-1], **{one: rows[part, at] for one, at in names.items()})
    ingest(
        paths, folder / "s.zarr", inputs=["x0", "x1"], targets=["y0", "y1"], weights="weight", groups="group",
        shard_rows=SHARD, missing=["none"],
    )  # fmt: skip
    return folder / "s.zarr"


def job(store: Path, *, weights: str | None = None, **parts: Any) -> Job:
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.2}}
    described: dict[str, Any] = {
        "data": {"store": str(store), **({"weights": weights} if weights else {})}, "kernel": kernel,
        "features": {"count": 32, "sampler": {"type": "orthogonal"}}, "solve": {"ridge": 1e-3},
        "cluster": {"type": "serial"},
        "state": str(store.parent / "state"), "model": str(store.parent / "model"),
    }  # fmt: skip
    for part, more in parts.items():
        described[part] = {**described.get(part, {}), **more} if isinstance(more, dict) else more
    return Job.model_validate(described)


def fitted(described: Job) -> tuple[Model, FitReport]:
    report = fit(described, engine=SerialEngine())
    return load_model(Path(described.model)), report


SOLVES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "chosen": {"ridge": [1e-6, 1e-3], "select": "gcv", "standardize": True},
    "folds": {"ridge": [1e-6, 1e-3], "select": "kfold"},
    "groups": {"ridge": [1e-6, 1e-3], "select": "kfold", "folds": {"by": "groups"}},
    "cg": {"route": "cg"},
    "streaming": {"route": "streaming"},
    "quantiles": {"loss": {"quantiles": [0.5]}},
    "adam": {"solver": "adam", "loss": "huber", "epochs": 2},
    "sgd": {"solver": "sgd", "loss": "squared", "epochs": 2},
    "conformal": {"conformal": True, "ridge": [1e-3], "select": "kfold"},
}


@pytest.mark.parametrize("bad", [False, True], ids=["finite", "nonsense"])
@pytest.mark.parametrize("solve", SOLVES)
def test_dropped_rows_are_rows_of_weight_zero(tmp_path: Path, solve: str, bad: bool) -> None:
    """The bits of the fit in which a column gives them weight zero."""
    store = write_store(tmp_path / "a", bad)
    drop(store, "b.npz")
    model, report = fitted(job(store, solve=SOLVES[solve]))
    twin_store = write_store(tmp_path / "b", bad)
    twin, other = fitted(job(twin_store, weights="weight", solve=SOLVES[solve]))
    X = make_rows(False)[:, :2]
    assert np.array_equal(model.predict(X), twin.predict(X))
    assert (report.rows_used, report.rows_dropped) == (other.rows_used, other.rows_dropped) == (576, 64)
    assert report.table == other.table
    for end in ("low", "high"):
        assert model.info["data"][end] == twin.info["data"][end]


def test_only_leaves_that_had_dropped_rows_are_summed_again(tmp_path: Path) -> None:
    store = write_store(tmp_path / "a")
    before, _ = fitted(job(store))
    drop(store, "b.npz")
    model, report = fitted(job(store))
    assert report.outcome != "unchanged" and (report.leaves_computed, report.leaves_reused) == (1, 4)
    fresh_store = write_store(tmp_path / "b")
    drop(fresh_store, "b.npz")
    fresh, _ = fitted(job(fresh_store))
    X = make_rows(False)[:, :2]
    assert np.array_equal(model.predict(X), fresh.predict(X))
    assert not np.array_equal(model.predict(X), before.predict(X))
    assert fitted(job(store))[1].outcome == "unchanged"


def test_sources_are_dropped_one_after_another(tmp_path: Path) -> None:
    """Each drop concerns its own leaves; the last source stays; a dropped file may come again."""
    store = write_store(tmp_path / "a")
    fitted(job(store))
    drop(store, "b.npz")
    fitted(job(store))
    drop(store, "c.npz")
    model, report = fitted(job(store))
    assert (report.rows_used, report.rows_dropped) == (256, 384)
    assert (report.leaves_computed, report.leaves_reused) == (3, 2)
    with pytest.raises(InputError, match="all the rows"):
        drop(store, "a.npz")
    fresh_store = write_store(tmp_path / "b")
    drop(fresh_store, "c.npz")
    drop(fresh_store, "b.npz")
    fresh, _ = fitted(job(fresh_store))
    X = make_rows(False)[:, :2]
    assert np.array_equal(model.predict(X), fresh.predict(X))
    ingest(
        [store.parent / "c.npz"], store, inputs=["x0", "x1"], targets=["y0", "y1"], weights="weight",
        groups="group", append=True,
    )  # fmt: skip
    _, again = fitted(job(store))
    assert (again.rows_used, again.rows_dropped) == (576, 384) and again.leaves_reused == 5


PARTS: dict[str, dict[str, Any]] = {
    "lattice": {"features": {"sampler": {"type": "lattice"}}},
    "identity": {"manifold": [{"graph": {"type": "identity"}, "weight": 0.1}]},
    "knn": {"manifold": [{"graph": {"type": "knn", "neighbours": 4}, "weight": 0.1}]},
    "unlabelled": {"data": {"nan": "unlabelled"}, "manifold": [{"graph": {"type": "identity"}, "weight": 0.1}]},
}


@pytest.mark.parametrize("part", PARTS)
def test_dropped_rows_are_in_no_sum(tmp_path: Path, part: str) -> None:
    """The fit of a store that never had them, on a lattice and with manifold terms."""
    models = []
    for name in ("drop", "absent"):
        store = write_store(tmp_path / name, sources="abc" if name == "drop" else "ac")
        if name == "drop":
            drop(store, "b.npz")
        models.append(fitted(job(store, **PARTS[part]))[0])
    X = make_rows(False)[:, :2]
    np.testing.assert_allclose(models[0].predict(X), models[1].predict(X), rtol=0, atol=1e-9)


CLASSES = ["a", "b", "c"]


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_classes_of_dropped_rows_count_no_more(tmp_path: Path, loss: str) -> None:
    """A class that only dropped rows have, and balanced weights: as with weight zero."""
    rows, models = make_rows(False), []
    label = np.array(CLASSES)[(np.arange(N) % 2)]
    label[DROPPED] = "c"
    for name in ("drop", "weight"):
        folder = tmp_path / name
        folder.mkdir()
        parts = {"a": slice(DROPPED.start), "b": DROPPED, "c": slice(DROPPED.stop, N)}
        for part, at in parts.items():
            np.savez(folder / f"{part}.npz", x0=rows[at, 0], x1=rows[at, 1], k=label[at], weight=rows[at, 4])
        store = folder / "s.zarr"
        ingest([folder / f"{part}.npz" for part in parts], store, inputs=["x0", "x1"], classes="k", weights="weight")
        if name == "drop":
            drop(store, "b.npz")
        data = {"targets": {"classes": "classes"}}
        if name == "weight":
            data["weights"] = "weight"
        models.append(fitted(job(store, data=data, solve={"loss": loss}))[0])
    X = rows[:, :2]
    assert np.array_equal(models[0].predict(X), models[1].predict(X))


def test_constants_are_made_anew_where_the_first_rows_are_dropped(tmp_path: Path) -> None:
    store = write_store(tmp_path / "a")
    fitted(job(store, solve={"standardize": True}))
    drop(store, "a.npz")
    model, report = fitted(job(store, solve={"standardize": True}))
    fresh_store = write_store(tmp_path / "b")
    drop(fresh_store, "a.npz")
    fresh, _ = fitted(job(fresh_store, solve={"standardize": True}))
    X = make_rows(False)[:, :2]
    assert report.rows_used == N - DROPPED.start and np.array_equal(model.predict(X), fresh.predict(X))


def test_scores_leave_dropped_rows_out(tmp_path: Path) -> None:
    """Equal to the score of a store that never had them."""
    store = write_store(tmp_path / "a", bad=True)
    drop(store, "b.npz")
    described = job(store)
    fitted(described)
    found = score(Path(described.model), store, engine=SerialEngine())
    rows = np.delete(make_rows(False), np.r_[DROPPED], axis=0)
    np.savez(tmp_path / "kept.npz", x0=rows[:, 0], x1=rows[:, 1], y0=rows[:, 2], y1=rows[:, 3])
    ingest([tmp_path / "kept.npz"], tmp_path / "kept.zarr", inputs=["x0", "x1"], targets=["y0", "y1"])
    twin = score(Path(described.model), tmp_path / "kept.zarr", engine=SerialEngine())
    assert found.rows == twin.rows == N - 64
    np.testing.assert_allclose(found.r2, twin.r2, rtol=1e-12)
