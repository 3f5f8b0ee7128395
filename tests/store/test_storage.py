"""The seam below state, receipts, models and data sets: another storage is one class for its scheme."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from memory_storage import MemoryLocation, forget_all
from test_store import small_model, some_moments

from dorff.data import ingest, verify
from dorff.data.layout import staging
from dorff.engine import SerialEngine
from dorff.errors import InputError, LeaseError
from dorff.fit import fit
from dorff.predict import score
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.storage import location
from dorff.storage.files import remove_tree, unfinished, write_atomic
from dorff.storage.location import SCHEMES, Location, is_remote, locate
from dorff.store import (
    Lease,
    Receipt,
    append_history,
    current_version,
    forget,
    lease_state,
    load_model,
    load_moments,
    merge_moments,
    prune_versions,
    read_history,
    save_model,
    save_moments,
    versions,
)
from dorff.store.models import number_version, switch_current, write_version


@pytest.fixture(params=["local", "memory", pytest.param("gateway", marks=pytest.mark.process)])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    """A folder in each storage."""
    if request.param == "gateway":
        yield request.getfixturevalue("bucket") / "home"
        return
    monkeypatch.setitem(SCHEMES, "memory", MemoryLocation)
    forget_all()
    yield locate(tmp_path if request.param == "local" else "memory://store/home")
    assert request.param == "local" or not Path("memory:").exists()
    forget_all()


def test_a_location_keeps_its_storage(home: Location) -> None:
    write_atomic(home / "a" / "one.txt", [b"1", b"23"], sync=True)
    below = home / "a" / "one.txt"
    for same in (locate(str(below)), pickle.loads(pickle.dumps(below)), below.parent.parent / "a/one.txt"):
        assert same == below and same.read_bytes() == b"123" and hash(same) == hash(below)
    assert [path.name for path in home.rglob("*.txt")] == ["one.txt"] and below.stat().st_size == 3
    assert list(home.glob("*/one.*")) == [below] and unfinished(home / "a") == []
    remove_tree(home / "a")
    assert not below.exists() and not (home / "a").exists()


def test_schemes_that_nobody_knows_and_whole_buckets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(SCHEMES, "memory", raising=False)
    for scheme in ("memory", "gcs", "S3", "abfss", "https", "azure", "file", ""):
        for call in (locate, is_remote):
            with pytest.raises(InputError, match=rf"^{scheme}://b/a: no storage is called {scheme}://; write s3://"):
                call(f"{scheme}://b/a")
        with pytest.raises(InputError, match=r"no storage is called .*; write s3://BUCKET/PATH, gs:// or az://"):
            ingest(["r.npz"], f"{scheme}://b/sea.zarr", inputs=["x"])
    for bucket in ("s3://b", "gs://b/", "az://b//", "s3://"):
        with pytest.raises(InputError, match=rf"^{bucket}: names no place in a bucket; write s3://BUCKET/PATH"):
            locate(bucket)
    assert not is_remote("a/b") and not is_remote("./a://b") and list(tmp_path.iterdir()) == []
    monkeypatch.setitem(SCHEMES, "memory", MemoryLocation)
    assert locate("memory://a/b") != Path("/a/b") and Path("/a/b") != locate("memory://a/b")
    assert is_remote("memory://a") and MemoryLocation("/a") != locate("/a") and locate("/a") != MemoryLocation("/a")


def test_a_pipe_or_a_folder_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=f"{name}: is no plain file"):
            locate(tmp_path / name).open_plain()


def test_a_file_that_fails_half_way_never_appears(home: Location) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError

    write_atomic(home / "file", [b"old"], sync=False)
    with pytest.raises(RuntimeError):
        write_atomic(home / "file", chunks(), sync=False)
    assert (home / "file").read_bytes() == b"old" and [path.name for path in home.iterdir()] == ["file"]


def test_receipts_and_moments(home: Location) -> None:
    receipt = Receipt(
        plan="p", number=3, start=0, stop=4, digest="d", stamp="s", rows_used=4, rows_dropped=0, rows_read=4,
        low=(0.0,), high=(1.0,), seconds=0.1, syrk_seconds=0.1,
    )  # fmt: skip
    receipt.save(home / "receipts")
    assert Receipt.load(home / "receipts", 3) == receipt and Receipt.load(home / "receipts", 4) is None
    (home / "receipts" / "000003.json").rename(home / "receipts" / "000005.json")
    assert Receipt.load(home / "receipts", 5) is None  # in another's place
    sums = some_moments(8)
    for name in ("left", "right"):
        save_moments(home / f"{name}.moments", {(0, ""): sums})
    assert merge_moments(home / "left.moments", home / "right.moments", home / "both.moments")
    both = load_moments(home / "both.moments")
    assert both is not None and both[0, ""].n == 18
    assert np.array_equal(both[0, ""].packed, 2 * sums.packed)
    write_atomic(home / "both.moments", [(home / "both.moments").read_bytes()[:-3]], sync=False)
    assert load_moments(home / "both.moments") is None


def test_leases(home: Location) -> None:
    path = home / "lease"
    with Lease.take(path) as lease:
        state = lease_state(path)
        assert state is not None and state["token"] == lease.token == 1
        with pytest.raises(LeaseError, match="held by process"):
            Lease.take(path)
        with lease.fenced():
            lease.check()
    assert lease_state(path) is None
    with Lease.take(path) as second:
        assert second.token == 2
        with pytest.raises(LeaseError, match="was taken over"):
            lease.check()
    forget(path)
    assert not home.exists() or not list(home.iterdir())


def test_history(home: Location) -> None:
    append_history(home, {"a": 1})
    write_atomic(home / "history.jsonl", [(home / "history.jsonl").read_bytes() + b"torn"], sync=False)
    append_history(home, {"a": 2})
    assert [line["a"] for line in read_history(home)] == [1, 2]


def test_models(home: Location) -> None:
    model = small_model()
    for number in (1, 2, 3):
        assert save_model(model, home).name == f"v{number:06d}" == current_version(home)
    X = np.linspace(-1, 1, 4 * model.feature_map.d).reshape(4, -1)
    assert np.array_equal(load_model(home).predict(X), model.predict(X))
    assert np.array_equal(load_model(str(home / "v000002")).predict(X), model.predict(X))
    assert [path.name for path in prune_versions(home, 1)] == ["v000001", "v000002"]
    assert [path.name for path in versions(home)] == ["v000003"]
    chunk = home / "v000003" / "coefficients" / "c" / "0" / "0"
    write_atomic(chunk, [chunk.read_bytes()[:-8] + bytes(8)], sync=False)
    with pytest.raises(InputError, match="array coefficients is damaged"):
        load_model(home)


def test_a_whole_fit_and_another_of_appended_rows(home: Location, tmp_path: Path) -> None:
    """Rows, state and model in one storage: the fit reads, sums, publishes, and takes in what is appended."""
    X = np.random.default_rng(0).uniform(-1, 1, (3000, 2))
    Y = np.sin(3 * X)
    rows, store = home / "rows.zarr", str(home / "rows.zarr")
    local = tmp_path / "rows.npz"
    np.savez(local, x=X, y=Y)
    assert ingest([local], rows, inputs=["x"], targets=["y"], shard_rows=1024) == 3000
    assert verify(store) == []
    job = Job.model_validate({
        "data": {"store": store},
        "features": {"count": 64, "sampler": {"type": "orthogonal"}, "seed": 1}, "solve": {"ridge": 1e-6},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.5}},
        "cluster": {"type": "serial"}, "state": str(home / "state"), "model": str(home / "model"),
    })  # fmt: skip
    assert Job.model_validate(job.model_dump(mode="json")) == job
    first = fit(job)
    assert first.leaves_computed > 0 and load_model(home / "model").predict(X).shape == (3000, 2)
    assert score(home / "model", rows, engine=SerialEngine()).r2 > 0.99
    ingest([local], rows, inputs=["x"], targets=["y"], append=True, again=True)
    second = fit(job)
    assert second.rows_used == 6000 and current_version(home / "model") == "v000002"
    assert lease_state(home / "model" / "lease") is None


def test_a_file_that_is_deleted_meanwhile_has_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when `dorff plan` counts the sums of a fit that runs, which are merged and deleted all the time."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"12345")

    def files(*_: object) -> Iterator[Path]:
        yield tmp_path / "a"
        (tmp_path / "b").unlink()
        yield from (tmp_path / "b", tmp_path / "c")

    assert locate(tmp_path).bytes_below("[ac]") == 10
    monkeypatch.setattr(Location, "rglob", files)
    assert locate(tmp_path).bytes_below() == 10


def test_a_storage_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cellar-1.0.dist-info").mkdir()
    points = "[dorff.storage]\ncellar = cellar:Cellar\nlost = nowhere:Lost\nodd = cellar:ODD\nint = builtins:int\n"
    (tmp_path / "cellar-1.0.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "cellar.py").write_text(
        "from dorff.storage.location import Location\n\nODD = 3\n\nclass Cellar(Location):\n    __slots__ = ()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(location, "SCHEMES", {})
    with pytest.raises(InputError, match="no storage is called attic://"):
        locate("attic://a/b")
    assert locate("a:b") == Location("a:b")
    wine = locate("cellar://a/b")
    assert type(wine).__name__ == "Cellar" and wine.parts[-2:] == ("a", "b") and is_remote("cellar://a")
    wrong = {"lost": "nowhere:Lost cannot be loaded", "odd": "cellar:ODD is no Loc", "int": "builtins:int is no Loc"}
    for scheme, why in wrong.items():
        with pytest.raises(InputError, match=rf"dorff\.storage {scheme}: {why}"):
            locate(f"{scheme}://a")
    job = tmp_path / "job.yaml"
    job.write_text(
        "{data: {store: a}, kernel: {type: curl_free, scalar: {lengthscale: 1}}, state: s, model: 'lost://m'}"
    )
    with pytest.raises(InputError, match=r"job\.yaml: model dorff\.storage lost: nowhere:Lost cannot be loaded"):
        load_job(job)


def test_a_root_is_not_left_for_another_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "memory", MemoryLocation)
    job = tmp_path / "job.yaml"
    job.write_text(
        "{data: {store: a.zarr}, kernel: {type: curl_free, scalar: {lengthscale: 1}}, state: s, model: 'memory://m'}"
    )
    assert load_job(job).model == locate("memory://m")
    with pytest.raises(InputError, match=r"model '?memory.*allow dorff\.storage=memory"):
        load_job(job, root=tmp_path)
    scheme = {"dorff.storage": ("memory",)}
    with pytest.raises(InputError, match=r"model leads to memory://m, out of the root .*allow model=PLACE"):
        load_job(job, root=tmp_path, allowed=scheme)
    assert load_job(job, root=tmp_path, allowed=scheme | {"model": ("memory://m",)}) == load_job(job)


def test_a_file_that_must_be_new_replaces_none(home: Location) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for content, wins in ((b"first", True), (b"second", False)):
        try:
            with (home / "file").writing(sync=True, new=True) as file:
                file.write(content)
            assert wins
        except FileExistsError:
            assert not wins
    assert (home / "file").read_bytes() == b"first" and [one.name for one in home.iterdir()] == ["file"]


def test_a_folder_is_moved_whole_and_over_none_that_has_files(home: Location) -> None:
    for name in ("zarr.json", "x/c/0", "x/zarr.json"):
        write_atomic(home / "made" / name, [name.encode()], sync=False)
    (home / "made").rename(home / "there")
    assert not (home / "made").exists() and sorted(one.name for one in home.iterdir()) == ["there"]
    assert {str(one.relative_to(home / "there")) for one in (home / "there").rglob("*")} == {
        "x", "x/c", "x/c/0", "x/zarr.json", "zarr.json",
    }  # fmt: skip
    assert (home / "there" / "x" / "c" / "0").read_bytes() == b"x/c/0"
    write_atomic(home / "other" / "file", [b"1"], sync=False)
    with pytest.raises(OSError) as caught:
        (home / "other").rename(home / "there")
    assert caught.value.errno in (errno.EEXIST, errno.ENOTEMPTY) and (home / "other" / "file").exists()
    with pytest.raises(FileNotFoundError):
        (home / "none").rename(home / "new")
    assert not (home / "new").exists()


def test_files_are_read_from_anywhere_in_them(home: Location) -> None:
    """One that comes whole with its opening, one that is brought whole later, and one of which parts are brought."""
    rng = np.random.default_rng(0)
    for size in (0, 5, 3 * 2**16 + 7, 5 * 2**20 + 3):
        content = rng.bytes(size)
        write_atomic(home / "file", [content], sync=False)
        for buffering in (0, -1):
            with (home / "file").open_plain(buffering=buffering) as file:
                assert file.seek(0, os.SEEK_END) == size and file.read(10) == b"" and Path(file.name).name == "file"
                for _ in range(20):
                    start, length = (int(one) for one in rng.integers(0, size + 1, 2))
                    assert file.seek(start) == start == file.tell()
                    into = bytearray(length)
                    count = file.readinto(into)  # type: ignore[attr-defined]
                    assert into[:count] == content[start : start + length]
                    assert buffering == 0 or count == len(content[start : start + length])
                file.seek(size // 3)
                assert file.read() == content[size // 3 :]
    with pytest.raises(FileNotFoundError):
        (home / "none").open_plain()


def test_a_lock_is_of_one_at_a_time(home: Location) -> None:
    home.mkdir(parents=True, exist_ok=True)
    inside, most, threads = [0], [0], []

    def work() -> None:
        for _ in range(3):
            with (home / "lock").locked(60.0) as ours:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.02)
                assert ours()
                inside[0] -= 1

    for _ in range(4):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert most == [1]
    with (home / "lock").locked(0) as ours:
        assert ours() and {one.name for one in home.iterdir()} <= {"lock"}


@pytest.mark.slow
def test_a_lock_is_held_for_longer_than_it_takes_to_be_stale(home: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORFF_LOCK_SECONDS", "2")
    home.mkdir(parents=True, exist_ok=True)
    waits, ends = threading.Event(), list[float]()

    def wait() -> None:
        waits.set()
        with (home / "lock").locked(30.0):
            ends.append(time.monotonic())

    thread = threading.Thread(target=wait)
    with (home / "lock").locked(0) as ours:
        thread.start()
        waits.wait()
        time.sleep(0.1 if home.folders else 6.0)  # a stale one is taken after 4 s, and a part of another
        assert ours() and not ends
        write_atomic(home / "file", [b"mine"], sync=True)
    thread.join()
    assert ends


def test_who_finds_its_files_gone_was_overtaken(home: Location) -> None:
    (home / "sea.zarr").mkdir(parents=True, exist_ok=True)
    with (
        pytest.raises(InputError, match=r"sea\.zarr: another run has just written it; look at it, then run this one"),
        staging(home / "sea.zarr") as (folder, _),
    ):
        remove_tree(home / ".sea.zarr.partial")
        list(folder.iterdir())
    with pytest.raises(FileNotFoundError, match="none"), staging(home / "sea.zarr"):
        (home / "none").read_bytes()


def test_current_never_goes_back(home: Location) -> None:
    model = small_model()
    save_model(model, home)
    late = number_version(write_version(model, home))
    save_model(model, home)
    if home.folders:  # where the lock of a lease cannot be lost
        return
    with pytest.raises(LeaseError, match="a later version than v000002 is current"):
        switch_current(home, late.name)
    assert current_version(home) == "v000003"
    write_atomic(home / "current", [b"of a run that was paused for longer"], sync=False)
    assert current_version(home) == "v000003"
    write_atomic(home / "current", [(home / "current.000003").read_bytes()], sync=False)
    assert (home / "current").read_bytes().split()[0].decode() == current_version(home)


def test_files_that_change_within_a_second_are_told_apart(home: Location) -> None:
    times = []
    for content in (b"one", b"two", b"one"):
        write_atomic(home / "file", [content], sync=False)
        times.append((home / "file").stat().st_mtime_ns)
        assert list((home).stats(["file", "none"])) == [(3, times[-1]), None]
        time.sleep(0 if not home.folders else 0.02)
    assert times[0] != times[1] != times[2]
