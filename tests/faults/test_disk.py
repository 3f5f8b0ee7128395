"""Disks that fill up, fail, lie and lose; inputs that change: the same bits, or a refusal and the old model stays."""

from __future__ import annotations

import errno
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import call
from harness import (
    GAUSSIAN,
    LEAF,
    ROWS,
    SHARD,
    Faults,
    Found,
    current,
    files,
    flip,
    found,
    leaf_count,
    leaves_of,
    one_process,
    receipts,
    run_fit,
    run_here,
    sea,
    some_seeds,
    start,
    swap_shard,
    truncate,
    wait_until,
    write_job,
    write_store,
)
from quick import slow

from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import DoesNotFitError, InputError
from dorff.fit import fit
from dorff.plan import costs, make_plan, seconds
from dorff.plan.routes import Way
from dorff.spec.cluster import LocalCluster, SerialCluster
from dorff.spec.reader import load_job
from dorff.store import load_model

Record = Callable[..., None]
PLACES = {"partial": r"/nodes/\.", "receipt": r"/receipts/\.", "model": r"/models/\.new"}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}
OTHER = {"count": 64, "seed": 7}  # other features: other moments and another model


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here, so none can be filled up: {error}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def with_old_model(folder: Path, store: Path) -> tuple[Path, bytes]:
    """A job whose model root has a version of another fit; that version's coefficients."""
    fit(load_job(write_job(folder, store, features=OTHER)), engine=SerialEngine())
    return write_job(folder, store), load_model(folder / "models").coefficients.tobytes()


def still_old(folder: Path, old: bytes) -> bool:
    return current(folder) == "v000001" and load_model(folder / "models").coefficients.tobytes() == old


@pytest.mark.process  # mount
@pytest.mark.parametrize("what", PLACES)
@pytest.mark.usefixtures("small_leaves")
def test_a_full_disk_stops_the_fit_which_goes_on_when_there_is_room(
    what: str, small_disk: Path, faults: Faults, store: Path, truth: Found, record_fault: Record
) -> None:
    job, old = with_old_model(small_disk, store)
    faults.add("fill", PLACES[what], "fill", where="driver", skip=0 if what == "model" else 4, target=small_disk)
    stopped = run_here(job, faults=faults)
    assert faults.hits("fill")
    assert stopped.code == 5 and "no space left" in stopped.err, stopped
    assert still_old(small_disk, old)
    kept = receipts(small_disk)
    (small_disk / "filler").unlink()
    report = fit(load_job(job), engine=SerialEngine())
    again = report.leaves_computed + kept - 2 * leaf_count(job)
    assert again == 0, "a leaf with a receipt was done again"
    redone = {"partial": "1 leaf", "receipt": "1 leaf", "model": "0"}[what]
    record_fault(f"ENOSPC while writing a {what}", 1, "exit 5, then same bits", *found(job).against(truth), redone)


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.usefixtures("small_leaves")
def test_a_disk_that_fails_under_a_file(
    what: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job, old = with_old_model(tmp_path, store)
    faults.add("io", PLACES[what], "write", amount=errno.EIO, where="driver", skip=0 if what == "model" else 4)
    failed = run_here(job, faults=faults)
    assert faults.hits("io") and failed.code == 5 and str(tmp_path) in failed.err, failed
    assert still_old(tmp_path, old)
    assert run_here(job, faults=faults).code == 0
    lost, twice = found(job).against(truth)
    record_fault(f"EIO while writing a {what}", 1, "exit 5, then same bits", lost, twice, "1 leaf")


@pytest.mark.process
@pytest.mark.parametrize("what", ["partial", pytest.param("receipt", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_leaves")
def test_a_limit_on_files_is_as_a_full_disk(
    what: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job, old = with_old_model(tmp_path, store)
    faults.add("limit", PLACES[what], "file size", amount=100, where="driver", skip=3)
    stopped = run_fit(job, faults=faults)
    assert stopped.code == 5 and still_old(tmp_path, old), stopped
    fit(load_job(job), engine=SerialEngine())
    record_fault(
        f"EFBIG while writing a {what}", 1, "exit 5, then same bits", *found(job).against(truth), "1 leaf"
    )  # fmt: skip


@pytest.mark.parametrize("times", [1, 0])
@pytest.mark.usefixtures("small_leaves")
def test_an_input_that_cannot_be_read_is_tried_again_and_then_named(
    times: int, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job = write_job(tmp_path, store)
    faults.add("io", r"sea\.zarr/x/c/60/", "raise", amount=errno.EIO, where="driver", times=times)
    ended = run_here(job, faults=faults)
    if times:
        assert ended.code == 0, ended
    else:
        assert ended.code == 5 and "x/c/60" in ended.err and not current(tmp_path), ended
        assert len(faults.hits("io")) == 3
        fit(load_job(job), engine=SerialEngine())
    outcome = "same bits" if times else "exit 5 naming the file, then same bits"
    record_fault(
        f"EIO while reading an input chunk, {'once' if times else 'always'}", times or 3, outcome,
        *found(job).against(truth), "1 leaf",
    )  # fmt: skip


class _StopError(Exception):
    """Stands for whatever ends a driver in the middle."""


@pytest.fixture(scope="module")
def half_done(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state with the receipts of about half the leaves."""
    folder = tmp_path_factory.mktemp("half")
    job = write_job(folder, store)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise _StopError

    with leaves_of(), pytest.raises(_StopError):
        fit(load_job(job), engine=SerialEngine(), progress=stop)
    return folder


def delete(path: Path, _seed: int) -> None:
    path.unlink()


DAMAGES = {"flipped": flip, "truncated": truncate, "deleted": delete}


@pytest.mark.parametrize("seed", some_seeds(1, 8))
@pytest.mark.parametrize("what", ["nodes", "receipts"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.usefixtures("small_leaves")
def test_damaged_state_is_done_again(
    damage: str, what: str, seed: int, half_done: Path, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    shutil.copytree(half_done / "runs", tmp_path / "runs")
    job = write_job(tmp_path, store)
    kept, victims = receipts(tmp_path), files(tmp_path, f"runs/*/{what}/*")
    victim = victims[int(np.random.default_rng(seed).integers(len(victims)))]
    DAMAGES[damage](victim, seed)
    report = fit(load_job(job), engine=SerialEngine())
    again = report.leaves_computed + kept - leaf_count(job)
    largest = 1 if what == "receipts" else 2 ** int(victim.name[:2])
    assert 0 <= again <= largest
    name = {"nodes": "partial", "receipts": "receipt"}[what]
    record_fault(f"{damage} {name}", 1, "same bits", *found(job).against(truth), f"{again} leaves")


@pytest.mark.usefixtures("small_leaves")
def test_a_receipt_deleted_after_the_fit_costs_one_leaf(
    store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job = write_job(tmp_path, store)
    fit(load_job(job), engine=SerialEngine())
    files(tmp_path, "runs/*/receipts/*")[5].unlink()
    report = fit(load_job(job), engine=SerialEngine())
    assert report.leaves_computed == 1
    record_fault("deleted receipt, after the fit", 1, "same bits", *found(job).against(truth), "1 leaf")


@pytest.mark.parametrize("seed", some_seeds(2, 12))
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.usefixtures("small_leaves")
def test_a_damaged_model_is_refused_and_published_again(
    damage: str, seed: int, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job = write_job(tmp_path, store)
    fit(load_job(job), engine=SerialEngine())
    versions = [path for path in files(tmp_path, "models/v000001/**/*") if path.stat().st_size]
    DAMAGES[damage](versions[seed % len(versions)], seed)
    try:
        load_model(tmp_path / "models")
        outcome = "changes nothing that is read: same bits"  # a key of Zarr's that has a default
        assert damage == "flipped" and versions[seed % len(versions)].name == "zarr.json"
        found(job).against(truth)
    except InputError as error:
        assert "v000001" in str(error)
        outcome = "refused; fit again: same bits"
    report = fit(load_job(job), engine=SerialEngine())
    assert report.leaves_computed == 0
    record_fault(f"{damage} model", 1, outcome, *found(job).against(truth), "0")


@pytest.mark.parametrize(
    ("damage", "array"),
    [
        ("flipped", "x"), ("truncated", "y"), ("deleted", "x"),
        *slow(("flipped", "y"), ("truncated", "x"), ("deleted", "y")),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small_leaves")
def test_a_damaged_input_is_named_and_nothing_published(
    damage: str, array: str, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    mine = tmp_path / "sea.zarr"
    shutil.copytree(store, mine)
    job, old = with_old_model(tmp_path, mine)
    chunk = mine / array / "c" / "77" / "0"
    good = chunk.read_bytes()
    DAMAGES[damage](chunk, 3)
    with pytest.raises(InputError, match=rf"array {array}, chunk c/77/0"):
        fit(load_job(job), engine=SerialEngine())
    assert still_old(tmp_path, old)
    chunk.write_bytes(good)
    fit(load_job(job), engine=SerialEngine())
    record_fault(f"{damage} input chunk", 1, "exit 3 naming it; restored: same bits", *found(job).against(truth), "0")


@pytest.mark.process
@pytest.mark.parametrize(
    "which", ["being read", *(pytest.param(one, marks=pytest.mark.slow) for one in ("done", "to come"))]
)
@pytest.mark.usefixtures("small_leaves")
def test_an_input_that_changes_during_the_fit_is_read_again(
    which: str, faults: Faults, store: Path, tmp_path: Path, record_fault: Record
) -> None:
    """The fit stands still in the middle of leaf 5, a shard is rewritten, the fit goes on: the sums are of the rows
    as they are now, or it says that they changed and the next run's are."""
    mine, other = tmp_path / "sea.zarr", tmp_path / "other.zarr"
    shutil.copytree(store, mine)
    X, Y = sea()
    write_store(other, X, Y + 1.0)
    job = write_job(tmp_path, mine)
    bounds = [0]
    while bounds[-1] < ROWS:
        bounds.append(bounds[-1] + round(LEAF * (1 + (len(bounds) - 1) / 16) / SHARD) * SHARD)
    first, last = (bounds[leaf] // SHARD for leaf in (5, 6))
    faults.add("stand still", rf"sea\.zarr/x/c/{last - 1}/", "SIGSTOP", where="driver")
    with start("fit", job, "--json", faults=faults) as running:
        faults.wait("stand still")
        wait_until(lambda: receipts(tmp_path) >= 5, what="the fifth receipt")
        swap_shard(mine, {"done": 3, "being read": first, "to come": last + 5}[which], other)
        running.signal(signal.SIGCONT)
        ended = running.end()
    outcome = "same bits as one run on the new rows"
    if ended.code:
        assert ended.code in (5, 6) and "changed" in ended.err and not current(tmp_path), ended
        outcome = f"exit {ended.code}; run again: {outcome}"
        fit(load_job(job), engine=SerialEngine())
    lost, twice = found(job).against(one_process(tmp_path / "truth", mine))
    record_fault(f"input changed during the fit (leaf {which})", 1, outcome, lost, twice, "1 leaf")


#: Jobs that `auto` solves directly, off the default; by rows of folds, held-out rows and classes.
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "one field, no posterior": {"solve": {"ridge": 1e-6, "posterior": False}},
    "folds": {"solve": {"ridge": [1e-6, 1e-3], "select": "kfold", "folds": {"count": 3, "by": "rows"}}},
    "conformal": {"kernel": PLAIN, "solve": {"ridge": 1e-6, "conformal": True}},
    "classes": {"kernel": PLAIN, "data": {"targets": {"classes": "classes"}}},
}


@pytest.fixture(scope="module")
def labelled(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows, with classes."""
    X, Y = sea()
    path = tmp_path_factory.mktemp("labelled") / "sea.zarr"
    np.savez(path.with_suffix(".npz"), x=X, y=Y, classes=np.array(["a", "b", "c"])[(X[:, 0] > 0) + (X[:, 1] > 1) * 1])
    ingest([path.with_suffix(".npz")], path, inputs=["x"], targets=["y"], classes="classes", shard_rows=SHARD)
    return path


def ways_job(name: str, folder: Path, labelled: Path, **more: Any) -> Path:
    words = {**WAYS[name], **more}
    return write_job(folder, labelled, **{**words, "data": {"store": str(labelled), **words.get("data", {})}})


def fill(disk: Path, free: int) -> None:
    """Leave so many bytes of a small file system free."""
    with (disk / "filler").open("ab") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - free)))


@pytest.mark.process  # mount
@pytest.mark.parametrize("name", ["default", "classes", *slow("one field, no posterior", "folds", "conformal")])
@pytest.mark.usefixtures("small_leaves")
def test_free_disk_decides_nothing_but_whether_there_is_a_fit(
    name: str, small_disk: Path, labelled: Path, tmp_path: Path
) -> None:
    """With 3.6 MiB free the job is refused, with what to do; with room it is the fit that it is on any disk."""
    job = ways_job(name, small_disk, labelled, features={"count": 256})
    fill(small_disk, 3600 * 2**10)
    for words in (["plan", job, "--json"], ["fit", job, "--json"]):
        done = call(*words)
        assert done.exit_code == 4 and done.stdout == "", done
        assert re.search(r"runs: the moments need [0-9.]+ MiB of disk, 3\.[45] MiB are free; free some", done.stderr)
    assert ("set solve.route: streaming" in done.stderr) == (name in ("default", "one field, no posterior")), done
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "job.yaml"]
    (small_disk / "filler").unlink()
    truth = ways_job(name, tmp_path, labelled, features={"count": 256})
    reports = [fit(load_job(one), engine=SerialEngine()) for one in (job, truth)]
    assert [report.route for report in reports] == ["direct", "direct"]
    found(job).against(found(truth))


@pytest.mark.parametrize("name", WAYS)
def test_neither_clock_nor_memory_of_a_machine_choose_the_way(
    name: str, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, routes = load_job(ways_job(name, tmp_path, labelled, features={"count": 1024})), set()
    for rate in (1e7, 1e10, 1e14):
        monkeypatch.setattr(seconds, "_syrk_rate", lambda width, rate=rate: rate)
        monkeypatch.setattr(seconds, "_thin_rate", lambda width, rate=rate: rate / 10)
        routes.add(make_plan(job).costs.route)
    assert routes == {"direct"}
    memory = psutil.virtual_memory()._replace(total=costs.DRIVER_BYTES)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(DoesNotFitError, match=r"MiB at its peak, this machine has \d+ MiB; lower features.count"):
        make_plan(job)


@pytest.mark.parametrize("cluster", [SerialCluster(), LocalCluster(workers=3)], ids=["serial", "local"])
def test_ways_that_would_fit_are_named_to_the_byte(
    cluster: SerialCluster | LocalCluster, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(write_job(tmp_path, store)).model_copy(update={"cluster": cluster})
    way = Way("streaming", 5_000_000, 7_000_000, 3_000_000, 1.0, 1, 1.0)
    needed = replace(make_plan(job).costs, peak_bytes=2**50, disk_bytes=2**50, others=(way,))
    each = 5_000_000 if isinstance(cluster, SerialCluster) else 3 * (costs.WORKER_BYTES + 5_000_000)
    least = costs.DRIVER_BYTES + 7_000_000 + each
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "00-000000.moments").write_bytes(bytes(1000))  # sums that are there already need no room
    for memory, disk, named in ((0, 0, True), (-1, 0, False), (0, -1, False), (2**40, 2**40, True)):
        total = psutil.virtual_memory()._replace(total=least + memory)
        monkeypatch.setattr(psutil, "virtual_memory", lambda total=total: total)
        monkeypatch.setattr(costs, "free_bytes", lambda path, free=2_999_000 + disk: free)
        for one in (needed, replace(needed, peak_bytes=0)):  # the memory is short, or the disk
            with pytest.raises(DoesNotFitError) as error:
                costs.refuse_small_machine(job, one, tmp_path)
            assert ("solve.route: streaming" in str(error.value)) == named, error.value
            assert ("at its peak" in str(error.value)) == (one is needed)


@pytest.mark.parametrize("by", ["leaves", "rows"])
@pytest.mark.usefixtures("small_leaves")
def test_folds_of_leaves_are_a_remedy_where_there_are_as_many(
    by: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"solve": {"ridge": [1e-6, 1e-3], "select": "kfold", "folds": {"count": 3, "by": by}}}
    job = load_job(write_job(tmp_path, store, **words))
    needed, small = make_plan(job).costs, psutil.virtual_memory()._replace(total=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    for leaves, named in ((3, by == "rows"), (2, False)):
        with pytest.raises(DoesNotFitError, match=r"this machine has 1 MiB; lower features\.count") as error:
            costs.refuse_small_machine(job, replace(needed, leaves=leaves), tmp_path)
        assert ("or set solve.folds.by: leaves" in str(error.value)) == named


@pytest.mark.slow
@pytest.mark.parametrize("folds", ["leaves", *slow("rows")])
@pytest.mark.usefixtures("small_leaves")
def test_how_many_sums_are_kept_changes_no_bit(
    folds: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are thinned out to what the disk has room for, and the job goes on with another level."""
    words = {"solve": {"ridge": [1e-6, 1e-3], "select": "kfold", "folds": {"count": 3, "by": folds}}}
    truth, levels, fits = one_process(tmp_path / "truth", store, **words), [], []
    for free in (2**40, 2 * 10**6, 10**6):
        monkeypatch.setattr(costs, "free_bytes", lambda path, free=free: free)
        job = write_job(tmp_path / str(free), store, **words)
        levels.append(make_plan(load_job(job)).costs.kept_level)
        fit(load_job(job), engine=SerialEngine())
        fits.append(len(files(tmp_path / str(free), "runs/*/nodes/*")))
        found(job).against(truth)
        files(tmp_path / str(free), "runs/*/receipts/*")[3].unlink()
        monkeypatch.setattr(costs, "free_bytes", lambda path: 2 * 10**6)
        fit(load_job(job), engine=SerialEngine())
        found(job).against(truth)
    assert levels == sorted(set(levels)) and fits == sorted(fits, reverse=True)


@pytest.mark.parametrize("small", ["machine", "disk", "workers"])
@pytest.mark.usefixtures("small_leaves")
def test_a_qr_is_left_out_where_the_job_gives_it_too_little_alone(
    small: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(write_job(tmp_path, store, features={"count": 512}))
    plan = make_plan(job)
    assert plan.by_qr() is not None
    if small == "workers":
        least = int((plan.costs.worker_bytes + 2**20) / 0.95)
        tight = job.model_copy(update={"cluster": job.cluster.model_copy(update={"memory": least})})
        assert make_plan(tight).by_qr() is None
        return
    total = psutil.virtual_memory()._replace(total=plan.costs.peak_bytes)
    if small == "machine":
        monkeypatch.setattr(psutil, "virtual_memory", lambda: total)
    else:
        monkeypatch.setattr(costs, "free_bytes", lambda path: 10)
    with pytest.raises(DoesNotFitError, match=r"lost the digits, and a QR .* does not fit: .*set solve.qr: false"):
        plan.by_qr()
