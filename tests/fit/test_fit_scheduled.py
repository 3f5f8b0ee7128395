"""Fits from cron: nothing new touches nothing, windows slide, gates keep the old model, one run at a time."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff.data import drop, ingest, trim
from dorff.engine import SerialEngine
from dorff.errors import GateError, InputError, LeaseError
from dorff.fit import FitReport, fit, state_lease
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.passes import blocks as leaf_sizes
from dorff.plan import Plan, make_plan
from dorff.spec.job import Job
from dorff.store import Lease, load_model, read_history

SHARD = 512


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


def rows(n: int, seed: int = 0, noise: float = 0.1) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    return X, np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + noise * rng.standard_normal((n, 2))


def write(path: Path, X: FloatArray, Y: FloatArray, *, append: bool = False) -> Path:
    source = path.with_suffix(".npz")
    np.savez(source, x=X, y=Y)
    ingest([source], path, inputs=["x"], targets=["y"], append=append, shard_rows=None if append else SHARD)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "sea.zarr", *rows(3000))


def job(store: Path, *, data: dict[str, Any] | None = None, **more: Any) -> Job:
    folder = store.parent
    return Job.model_validate(
        {
            "data": {"store": str(store), **(data or {})},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "features": {"count": 32, "sampler": {"type": "orthogonal"}},
            "cluster": {"type": "serial"},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
            **more,
        }
    )


def again(store: Path, **more: Any) -> FitReport:
    return fit(job(store, **more), engine=SerialEngine())


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path, with its inode and time of change."""
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in [folder, *folder.rglob("*")]}


def coefficients(store: Path) -> FloatArray:
    return load_model(store.parent / "model").coefficients


@pytest.mark.parametrize("route", ["direct", "streaming"])
def test_nothing_new_touches_nothing(store: Path, route: str) -> None:
    first = again(store, solve={"route": route})
    assert first.outcome == "published" and first.coverage == 1.0
    before = everything(store.parent)
    second = again(store, solve={"route": route}, publish={"digits": 2})  # where it goes to is not what it is of
    assert everything(store.parent) == before
    assert (second.outcome, second.leaves_computed, second.reads) == ("unchanged", 0, 0.0)
    assert second.model == first.model and second.rows_used == 3000


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"solve": {"ridge": 1e-3}}, {"features": {"count": 32, "seed": 1}}, {"data": {"nan": "drop"}}],
    ids=lambda change: next(iter(change)),
)
def test_another_job_is_something_new(store: Path, change: dict[str, Any]) -> None:
    again(store)
    assert again(store, **change).outcome == "published"


def test_a_damaged_model_is_published_again(store: Path) -> None:
    first = again(store)
    values = coefficients(store)
    file = next(path for path in Path(first.model, "coefficients", "c").rglob("*") if path.is_file())
    raw = bytearray(file.read_bytes())
    raw[8] ^= 1
    file.write_bytes(raw)
    report = again(store)
    assert report.outcome == "published" and report.leaves_computed == 0
    assert np.array_equal(coefficients(store), values)


def test_touched_files_and_lost_receipts_cost_their_leaf_and_publish_nothing(store: Path) -> None:
    first = again(store)
    os.utime(store / "x" / "c" / "2" / "0")
    next((store.parent / "state").glob("*/receipts/000004.json")).unlink()
    report = again(store)
    assert (report.outcome, report.leaves_computed, report.rewritten) == ("unchanged", 2, [])
    assert report.model == first.model and len(list((store.parent / "model").glob("v*"))) == 1
    assert again(store).leaves_computed == 0


def test_lost_sums_are_made_again_and_nothing_is_published(store: Path) -> None:
    """Of a published model: later fits stand on them."""
    first = again(store)
    for node in (store.parent / "state").glob("*/nodes/*"):
        node.unlink()
    report = again(store)
    assert (report.outcome, report.leaves_computed, report.model) == ("unchanged", 6, first.model)
    assert again(store).leaves_computed == 0


def test_a_rewritten_shard_is_reported_and_the_rest_used_again(store: Path, tmp_path: Path) -> None:
    again(store)
    shutil.copy(store / "y" / "c" / "2" / "0", store / "y" / "c" / "3" / "0")
    report = again(store)
    assert (report.outcome, report.leaves_computed, report.rewritten) == ("published", 1, [3])
    found = coefficients(store)
    shutil.rmtree(tmp_path / "state")
    shutil.rmtree(tmp_path / "model")
    assert again(store).leaves_computed == 6
    assert np.array_equal(coefficients(store), found)


def test_a_run_killed_before_it_published_is_not_nothing_new(store: Path) -> None:
    """Receipts of new rows do not make the old model one of them."""
    again(store)
    write(store, *rows(600, seed=1), append=True)
    from dorff.fit import run_pass

    run_pass(make_plan(job(store)), SerialEngine())  # and then killed
    report = again(store)
    assert (report.outcome, report.leaves_computed, report.rows_used) == ("published", 0, 3600)


def test_a_window_slides_by_leaving_leaves_out(store: Path, tmp_path: Path) -> None:
    window = {"window": 1500}
    first = again(store, data=window)
    assert first.rows_used == 3000 - 2 * SHARD  # 1500 rows before the end are in leaf 2
    write(store, *rows(1000, seed=1), append=True)
    report = again(store, data=window)
    assert report.rows_used == 4000 - 4 * SHARD and report.coverage == 1.0
    assert report.leaves_computed == 3  # of rows 2560.. the partly filled one and two new ones; leaf 4 is used again
    found = coefficients(store)
    # One pass of the same plan (its constants are frozen) over the same rows has the same bits.
    shutil.rmtree(tmp_path / "model")
    for folder in ("receipts", "nodes"):
        shutil.rmtree(next((tmp_path / "state").glob(f"*/{folder}")))
    assert again(store, data=window).leaves_computed == 4
    assert np.array_equal(coefficients(store), found)
    assert again(store, data={"window": 10**6}).rows_used == 4000


def test_tuned_length_scales_stay_frozen(store: Path) -> None:
    """When rows come, and when those they were tuned on leave the window."""
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "tune"}}
    first = again(store, kernel=kernel)
    write(store, *rows(600, seed=1), append=True)
    report = again(store, kernel=kernel)
    assert report.leaves_computed == 3 and report.lengthscale == first.lengthscale
    window = again(store, kernel=kernel, data={"window": 1500})
    assert window.leaves_computed == 0 and window.lengthscale == first.lengthscale


def test_rewritten_rows_are_told_against_the_published_model(store: Path) -> None:
    """Whoever summed them first; and where they are among the first rows, so that constants and all sums are new."""
    again(store)
    shutil.copy(store / "y" / "c" / "2" / "0", store / "y" / "c" / "3" / "0")
    from dorff.fit import run_pass

    run_pass(make_plan(job(store)), SerialEngine())  # killed before it published, or a tune
    assert again(store).rewritten == [3]
    shutil.copy(store / "y" / "c" / "2" / "0", store / "y" / "c" / "0" / "0")
    report = again(store)
    assert report.rewritten == [0] and report.leaves_computed == 6
    assert read_history(store.parent / "model")[-1]["rewritten"] == [0]


def test_folds_held_out_do_not_change_as_leaves_come(store: Path) -> None:
    conformal = {"solve": {"conformal": True, "ridge": 1e-6, "folds": {"by": "leaves"}}}
    small = write(store.parent / "small.zarr", *rows(1500))
    first = again(small, **conformal)
    assert first.held_by == "rows"  # of three leaves none can be spared
    write(small, *rows(1500, seed=1), append=True)
    assert again(small, **conformal).leaves_computed == 4
    with pytest.raises(InputError, match=r"data.window: leaves grow .* use folds.by: rows"):
        again(store, data={"window": 1500}, solve={"select": "kfold", "folds": {"count": 2, "by": "leaves"}})


def test_rows_appended_while_the_lease_was_waited_for_are_seen(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's append and publish between this one's plan and its lease are not undone."""
    from dorff.fit import run as module

    looked = module.nothing_new

    def late(plan: Plan) -> Model | None:
        found = looked(plan)
        monkeypatch.setattr(module, "nothing_new", looked)
        write(store, *rows(600, seed=1), append=True)
        assert again(store).rows_used == 3600
        return found

    monkeypatch.setattr(module, "nothing_new", late)
    assert again(store).rows_used == 3600
    assert [line["rows_used"] for line in read_history(store.parent / "model")] == [3600]


def test_rows_that_were_trimmed_are_left_out(store: Path) -> None:
    again(store)
    assert trim(store, keep=2000) == 2488  # without the first shard; without two they would be fewer
    report = again(store)
    assert (report.outcome, report.leaves_computed, report.rows_used, report.coverage) == ("published", 0, 2488, 1.0)
    write(store, *rows(50, seed=1), append=True)
    assert again(store).leaves_computed == 1


def test_the_gate_keeps_what_is_worse(store: Path, tmp_path: Path) -> None:
    holdout = write(tmp_path / "held.zarr", *rows(500, seed=9))
    rule = {"margin": 0.01, "holdout": str(holdout)}
    first = again(store, publish=rule)
    assert first.score is not None and first.score > 0.8 and first.score_by == "holdout"
    known = again(store, publish=rule)
    assert (known.outcome, known.score, known.score_by) == ("unchanged", first.score, "holdout")
    write(store, *rows(3000, seed=2, noise=9.0), append=True)
    with pytest.raises(GateError, match=r"held-out score .* more than publish.margin 0.01 below the current model's"):
        again(store, publish=rule)
    model = tmp_path / "model"
    assert load_model(model).info["data"]["rows"] == 3000 and sorted(model.glob("v*")) == [Path(first.model)]
    refused = read_history(model)[-1]
    assert refused["outcome"] == "refused" and refused["score"] < refused["old_score"] - 0.01
    file = next(path for path in Path(first.model, "coefficients", "c").rglob("*") if path.is_file())
    raw = file.read_bytes()
    file.write_bytes(b"\0" + raw[1:])  # damaged, it is still what the new one has to come up to
    with pytest.raises(GateError, match=r"publish.margin"):
        again(store, publish=rule)
    assert read_history(model)[-1]["old_score"] == first.score
    file.write_bytes(raw)
    assert again(store, publish={**rule, "margin": 5.0}).leaves_computed == 0  # what was refused is not lost
    assert [entry["outcome"] for entry in read_history(model)] == ["published", "refused", "refused", "published"]


def test_a_holdout_of_another_kind_is_refused_before_the_pass(store: Path, tmp_path: Path) -> None:
    X, Y = rows(100)
    wide = write(tmp_path / "wide.zarr", np.hstack([X, X]), Y)
    for holdout, why in ((wide, "of 4 inputs"), (tmp_path / "none.zarr", "none.zarr")):
        with pytest.raises(InputError, match=f"publish.holdout: .*{why}"):
            again(store, publish={"holdout": str(holdout)})
    assert not (tmp_path / "state").exists()
    with pytest.raises(ValueError, match=r"publish\.holdout"):
        job(store, publish={"holdout": str(store)})


def test_the_gate_compares_folds(store: Path) -> None:
    solve = {"ridge": 1e-6, "select": "kfold", "folds": {"count": 2, "by": "rows"}}
    first = again(store, solve=solve, publish={"margin": 0.01})
    model = load_model(first.model)
    assert first.score_by == "kfold" and first.score is not None
    assert first.score == model.info["report"]["table"][0]["r2"]  # by hand in test_score.py
    write(store, *rows(3000, seed=2, noise=9.0), append=True)
    with pytest.raises(GateError, match=r"publish.margin"):
        again(store, solve=solve, publish={"margin": 0.01})


def test_the_gate_counts_digits(store: Path) -> None:
    hard = {"solve": {"ridge": 0.0, "qr": False}, "kernel": {
        "type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 500.0}}}  # fmt: skip
    with pytest.raises(GateError, match="digits"):
        again(store, **hard)
    assert not list((store.parent / "model").glob("v*"))
    assert again(store, **hard, publish={"digits": 0}).status == "ill_conditioned"


def test_one_run_at_a_time(store: Path, tmp_path: Path) -> None:
    plan = make_plan(job(store))
    for path in (state_lease(plan), tmp_path / "model" / "lease"):
        with Lease.take(path), pytest.raises(LeaseError):
            again(store)
    assert again(store).outcome == "published"
    with Lease.take(tmp_path / "model" / "lease"):
        assert again(store).outcome == "unchanged"  # needs none


def test_keep_prunes(store: Path) -> None:
    for ridge in (1e-6, 1e-5, 1e-4):
        again(store, solve={"ridge": ridge}, publish={"keep": 2})
    assert sorted(path.name for path in (store.parent / "model").glob("v*")) == ["v000002", "v000003"]
    json.dumps(read_history(store.parent / "model"))


def of_sums(store: Path, **more: Any) -> list[str]:
    """What a plan says of sums that it cannot use."""
    return [one for one in make_plan(job(store, **more)).warnings if "summed anew" in one]


@pytest.mark.parametrize("route", ["direct", "streaming"])
def test_a_folder_that_moved_is_the_reason_why_its_rows_are_summed_anew(store: Path, route: str) -> None:
    """Whether a link leads to the new place or not, and as long as the sums of the new path are not there."""
    again(store, solve={"route": route})
    assert not of_sums(store, solve={"route": route})
    moved = store.parent.rename(f"{store.parent}-moved") / store.name
    for path in (moved, store):
        (planned,) = of_sums(path, solve={"route": route}, state=str(moved.parent / "state"))
        assert "data.store" in planned and str(store) in planned and "3,000 rows" in planned
        if not store.parent.is_symlink():
            store.parent.symlink_to(moved.parent)
    report = again(moved, solve={"route": route})
    assert planned in report.warnings and report.leaves_computed > 0
    assert planned in report.version_reasons
    assert not of_sums(moved, solve={"route": route})


def version_reasons(store: Path) -> list[str]:
    """What the current version says of why it was made, which is in the history as well."""
    reasons: list[str] = load_model(store.parent / "model").info["report"]["version_reasons"]
    assert read_history(store.parent / "model")[-1]["version_reasons"] == reasons
    return reasons


def test_a_new_version_says_what_differs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that were appended, of values that are others, and of another version of dorff."""
    again(store)
    assert version_reasons(store) == []

    write(store, *rows(600, seed=3), append=True)
    assert again(store).outcome == "published"
    assert version_reasons(store) == ["rows: 0 to 3,600, before 0 to 3,000"]

    X, Y = (np.concatenate(pair) for pair in zip(rows(3000), rows(600, seed=3), strict=True))
    Y[2000] += 1.0
    shutil.rmtree(store)
    write(store, X, Y)
    again(store)
    (reason,) = version_reasons(store)
    assert "leaves" in reason

    shutil.rmtree(store)
    write(store, X, Y)
    assert again(store).outcome == "unchanged"  # the same rows, ingested again

    monkeypatch.setattr("dorff.fit.fit_report.__version__", "0.0.7")
    monkeypatch.setattr("dorff.fit.choice.version", lambda name: "0.0.7" if name == "dorff" else version(name))
    report = again(store)
    (reason,) = version_reasons(store)
    assert report.leaves_computed == 0 and "dorff: 0.0.7" in reason


def test_a_new_version_names_another_kind_of_processor(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the driver, those of receipts, and not where it is the same or unknown."""
    again(store)
    kept = load_model(store.parent / "model").info["processors"]
    receipts = list((store.parent / "state").glob("*/receipts/*.json"))
    assert len(kept) == 1 and "numba" in kept[0]
    assert receipts and all(kept[0] in receipt.read_text() for receipt in receipts)

    write(store, *rows(600, seed=3), append=True)
    monkeypatch.setattr("dorff.passes.leaf.processor_kind", lambda: "numba other, openblas Other")
    again(store)
    reasons = version_reasons(store)
    assert any(
        "processor" in reason and "numba other" in reason and f"before {kept[0]}" in reason for reason in reasons
    )

    write(store, *rows(600, seed=4), append=True)
    monkeypatch.setattr("dorff.fit.choice.processor_kind", lambda: "numba third")
    again(store)
    assert any("numba third" in reason for reason in version_reasons(store))

    write(store, *rows(600, seed=5), append=True)
    again(store)
    assert not any("processor" in reason for reason in version_reasons(store))


def test_a_state_that_moved_alone_is_used(store: Path) -> None:
    again(store)
    state = store.with_name("state").rename(store.with_name("elsewhere"))
    assert not of_sums(store, state=str(state))
    assert again(store, state=str(state)).leaves_computed == 0


def test_of_keys_that_sums_depend_on_the_one_that_changed_is_named(store: Path, tmp_path: Path) -> None:
    again(store, solve={"ridge": 1e-4})
    assert not of_sums(store, solve={"ridge": 1e-3})
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 2.0}}
    for change, key in (
        ({"kernel": kernel}, "kernel"),
        ({"data": {"nan": "drop"}}, "data.nan"),
        ({"features": {"count": 32, "sampler": {"type": "orthogonal"}, "seed": 1}}, "features.seed"),
    ):
        (planned,) = of_sums(store, solve={"ridge": 1e-4}, **change)
        assert f"differ in {key}" in planned, planned
    other = write(tmp_path / "other.zarr", *rows(3000, seed=5))
    assert not of_sums(other, solve={"ridge": 1e-4})  # sums of other rows are of no use to anybody


@pytest.mark.parametrize("new", [["Bloom"], ["Bloom", "none"], ["9"]])
def test_new_labels_of_classes_are_named_as_what_sums_differ_in(new: list[str], tmp_path: Path) -> None:
    store, labels = tmp_path / "lake.zarr", ["bloom", "clear", "turbid"]

    def write_labels(names: list[str], *, append: bool) -> None:
        X, source = rows(600, seed=int(append))[0], tmp_path / "lake.csv"
        lines = [f"{x},{y},{names[number % len(names)]}" for number, (x, y) in enumerate(X)]
        source.write_text("\n".join(["x,y,cls", *lines]))
        ingest([source], store, inputs=["x", "y"], classes="cls", append=append)

    classes = {"data": {"targets": {"classes": "classes"}}}
    lattice = {"features": {"count": 32, "sampler": {"type": "lattice"}}, "state": str(tmp_path / "other")}
    write_labels(labels, append=False)
    for more in ({}, lattice):
        again(store, **classes, **more)
        assert not of_sums(store, **classes, **more)
    write_labels([*labels, *new], append=True)
    (planned,) = of_sums(store, **classes)
    assert "differ in class labels;" in planned, planned
    (planned,) = of_sums(store, **classes, solve={"class_weight": "balanced"})
    assert "solve.class_weight" in planned and "class labels" in planned, planned
    (planned,) = of_sums(store, **classes, **lattice)
    assert "of another set of class labels" in planned, planned


@pytest.mark.parametrize("sampler", ["auto", "lattice", "orthogonal"])
@pytest.mark.parametrize("nights", [1, 2])
def test_rows_that_came_and_were_dropped_stop_no_fit(sampler: str, nights: int, tmp_path: Path) -> None:
    """Between two fits: none of the rows since the first counts."""
    store, X = tmp_path / "sea.zarr", rows(600)[0]

    def write_night(name: str, X: FloatArray) -> None:
        np.savez(tmp_path / name, x=X, y=np.sin(X))
        ingest([tmp_path / name], store, inputs=["x"], targets=["y"], append=store.exists())

    write_night("first.npz", X)
    how = {"features": {"count": 32, "sampler": sampler if sampler == "auto" else {"type": sampler}}}
    again(store, **how)
    expected = coefficients(store)
    for night in range(nights):
        write_night(f"n{night}.npz", X + 7.0 + night)
    for night in range(nights):
        drop(store, f"n{night}.npz")
    report = again(store, **how)
    assert report.rows_used == 600
    np.testing.assert_allclose(coefficients(store), expected, rtol=1e-6, atol=1e-9)
