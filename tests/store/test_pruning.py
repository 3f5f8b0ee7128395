"""What is removed: old versions and plans when asked, what killed writers left when old; nothing of others."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from test_store import small_model

from dorff.errors import InputError
from dorff.storage.files import remove_torn, seal
from dorff.store import Lease, lease_beside, load_model, prune_state, prune_versions, save_model, versions
from dorff.store import lease as leases
from dorff.store.models import number_version, switch_current, write_version

H = "0123456789abcdef" * 2


def test_the_last_versions_up_to_the_current_one_are_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model here"):
        prune_versions(tmp_path, 1)
    for _ in range(5):
        save_model(small_model(), tmp_path)
    judged = write_version(small_model(), tmp_path)
    os.utime(judged, (time.time() - 3 * 3600,) * 2)  # being judged for hours
    switch_current(tmp_path, "v000004")  # somebody went back by one
    with pytest.raises(InputError, match="keep: wanted 1 or more, got 0"):
        prune_versions(tmp_path, 0)
    names = [f"v00000{number}" for number in range(1, 6)]
    for keep, gone in ((9, []), (4, []), (3, names[:1]), (1, names[:3])):
        assert [path.name for path in prune_versions(tmp_path, keep, dry_run=True)] == gone
        assert [path.name for path in versions(tmp_path)] == names
    assert [path.name for path in prune_versions(tmp_path, 2)] == names[:2]
    assert [path.name for path in prune_versions(tmp_path, 1)] == names[2:3]
    assert [path.name for path in versions(tmp_path)] == names[3:] and load_model(tmp_path).p == 1
    assert load_model(judged).p == 1 and number_version(judged).name == "v000006"
    (tmp_path / "current").write_text("v000009")
    with pytest.raises(InputError, match="is damaged"):
        prune_versions(tmp_path, 1)
    assert [path.name for path in versions(tmp_path)] == ["v000004", "v000005", "v000006"]


def test_versions_are_in_order_past_a_million(tmp_path: Path) -> None:
    for number in (2, 999_999):
        (tmp_path / f"v{number:06d}").mkdir()
    assert save_model(small_model(), tmp_path).name == "v1000000"
    assert [path.name for path in versions(tmp_path)] == ["v000002", "v999999", "v1000000"]
    assert [path.name for path in prune_versions(tmp_path, 2)] == ["v000002"]


def test_the_plans_used_last_are_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no plans here"):
        prune_state(tmp_path, 1)
    for age, name in enumerate("abcd"):
        for below in (tmp_path / name, tmp_path / name / "receipts"):
            below.mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
        for below in (tmp_path / name / "receipts", tmp_path / name):
            os.utime(below, (time.time() - 100 * age - 50,) * 2)
    (tmp_path / "other").mkdir()  # no plan
    (tmp_path / "d" / "receipts" / "000000.json").write_text("{}")  # d is used again: it is the last now
    with pytest.raises(InputError, match="keep: wanted 1 or more"):
        prune_state(tmp_path, -1)
    assert [path.name for path in prune_state(tmp_path, 1, dry_run=True)] == ["a", "b", "c"]
    with Lease.take(lease_beside(tmp_path / "b")):  # a run is at it
        assert [path.name for path in prune_state(tmp_path, 2)] == ["c"]
        assert [path.name for path in prune_state(tmp_path, 1)] == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir() if "lease" not in path.name) == ["b", "d", "other"]
    assert [path.name for path in prune_state(tmp_path, 1)] == ["b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "other"]


def some_plans(state: Path, names: str) -> None:
    for name in names:
        (state / name).mkdir()
        (state / name / "plan.json").write_text("{}")


def test_a_run_that_takes_a_pruned_plans_lease_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run comes just after prune gave the lease back."""
    release, runs = Lease.release, []

    def and_take(lease: Lease) -> None:
        release(lease)
        runs.append(Lease.take(lease.path))

    some_plans(tmp_path, "ab")
    monkeypatch.setattr(Lease, "release", and_take)
    (gone,) = prune_state(tmp_path, 1)
    monkeypatch.undo()
    (run,) = runs
    run.check()
    assert run.path == lease_beside(gone) and not gone.exists()
    assert {path.name for path in tmp_path.glob("*.lease.*")} == {
        f"{gone.name}.lease.{end}" for end in ("lock", "000002")
    }
    run.release()


def test_a_plan_whose_lease_was_taken_meanwhile_stays(tmp_path: Path) -> None:
    """The run comes when prune has seen that the lease is free, and waits for it."""
    some_plans(tmp_path, "ab")
    for name in "ab":
        os.utime(tmp_path / name, (ord(name),) * 2)
    path, gone = lease_beside(tmp_path / "a"), []
    thread = threading.Thread(target=lambda: gone.extend(prune_state(tmp_path, 1)))
    with leases.locked(path):
        thread.start()
        time.sleep(0.2)
        path.with_name("a.lease.000001").write_bytes(seal(asdict(leases.Holder.this_process(60.0))))
    thread.join()
    assert gone == [] and (tmp_path / "a" / "plan.json").exists() and path.with_name("a.lease.000001").stat().st_size


def test_what_killed_writers_left_is_removed_when_old(tmp_path: Path) -> None:
    """Names that dorff gives, and no others: hidden files of version control and editors stay."""
    torn = [f".a.moments.{H}", f".current.{H}", f".new-{H}", f".gone-{H}", f"..b.{H}"]
    others = [
        ".gitignore", ".git", ".dvc", ".nfs0000000001", f".{H}", f".new-{H[1:]}", f".new-{H}x", f".a.{H.upper()}",
        f"a.{H}", f".old-{H}", ".new-1",
    ]  # fmt: skip
    for name in (*torn, *others):
        if name.startswith((".new", ".gone", ".git", ".dvc")):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    young = f".a.moments.{H[::-1]}"
    (tmp_path / young).write_text("x")
    remove_torn(tmp_path, older=9000.0)
    assert {path.name for path in tmp_path.iterdir()} == {*torn, *others, young}
    remove_torn(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, young}
