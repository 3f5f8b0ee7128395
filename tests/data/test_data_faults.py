"""Killed, or out of disk, at any step of an ingest, an append, a trim, rows replaced or a source dropped: the store
holds the old rows or the new."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff.data import Classes, drop, ingest, open_dataset, trim, verify
from dorff.errors import InputError

pytestmark = pytest.mark.process

COLUMNS: dict[str, Any] = {"inputs": ["x"], "classes": "k"}
SHARD = 8

# Does one thing again and again, each time in a fresh folder and with a fault at a later step: the process ends there,
# or the call fails with an error number. A step is a file or folder that is opened for writing, made, renamed or
# removed; with errors, one that is only opened too. Says for each folder how the call ended.
RUNNER = """
import errno, json, os, shutil, sys
from dorff.data import drop, ingest, trim
from dorff.errors import IncompleteError

action, fault, every, home = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
columns = {"inputs": ["x"], "classes": "k"}


def act(folder):
    store = f"{folder}/s.zarr"
    if action == "trim":
        trim(store, keep=10)
    elif action == "drop":
        drop(store, "more.npz")
    else:
        replaced = action == "replace"
        append = replaced or action == "append"
        ingest([f"{home}/{action}.npz"], store, **columns, append=append, replace_known=replaced, shard_rows=8)


def child(folder, step):
    left = step

    def hook(event, arguments):
        nonlocal left
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
        if event == "open":
            writes = fault == "EIO" or bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            writes &= str(arguments[0]).startswith(home)
        left -= writes
        if writes and left == 0:
            if fault == "kill":
                os._exit(9)
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)), str(arguments[0]))

    sys.addaudithook(hook)
    try:
        act(folder)
    except IncompleteError as error:
        print(json.dumps([folder, "incomplete", str(error)]), flush=True)
    else:
        print(json.dumps([folder, "done" if left > 0 else "done all the same", ""]), flush=True)
    os._exit(0 if left > 0 else 1)


os.makedirs(f"{home}/warm")  # so that what is imported on the way is, before the steps are counted
if os.path.exists(f"{home}/old.zarr"):
    shutil.copytree(f"{home}/old.zarr", f"{home}/warm/s.zarr")
act(f"{home}/warm")
step = 1
while True:
    folder = f"{home}/{fault}{step}"
    os.makedirs(folder)
    if os.path.exists(f"{home}/old.zarr"):
        shutil.copytree(f"{home}/old.zarr", f"{folder}/s.zarr")
    number = os.fork()
    if number == 0:
        try:
            child(folder, step)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    if status == 9:
        print(json.dumps([folder, "killed", ""]), flush=True)
    if status in (0, 2):
        sys.exit(status)
    step += every
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there can be one: what is written in these tests waits for the disk at every step."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def files(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


def save(path: Path, start: int, stop: int) -> Path:
    """Rows of numbers and labels."""
    rows = np.arange(start, stop)
    np.savez(path, x=np.column_stack([rows, -rows]) + 0.5, k=rows % 3)
    return path


def act(action: str, home: Path, store: Path) -> None:
    """What the runner does."""
    if action == "trim":
        trim(store, keep=10)
    elif action == "drop":
        drop(store, "more.npz")
    else:
        replaced = action == "replace"
        append = replaced or action == "append"
        source = home / f"{action}.npz"
        ingest([source], store, **COLUMNS, append=append, replace_known=replaced, shard_rows=SHARD)


def run(action: str, fault: str, home: Path, *, every: int = 1) -> list[tuple[Path, str, str]]:
    """The old store, and then the same with a fault at each step: (folder, how the call ended, what it said)."""
    first = save(home / "new.npz", 0, 20)
    save(home / "append.npz", 20, 30)
    save(home / "replace.npz", 16, 26)
    more = [save(home / "more.npz", 20, 30)] if action == "drop" else []
    if action != "new":
        ingest([first, *more], home / "old.zarr", **COLUMNS, shard_rows=SHARD)
    command = [sys.executable, "-c", RUNNER, action, fault, str(every), str(home)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ended = [json.loads(line) for line in said]
    *_, (last, how, _) = ended
    assert how == "done"
    shutil.move(Path(last) / "s.zarr", home / "new.zarr")
    return [(Path(folder), how, what) for folder, how, what in ended[:-1]]


def check(action: str, home: Path, folder: Path) -> bool:
    """Old rows or new, whole; made new by the same call, with the same bytes. Whether they were new already."""
    store, goal = folder / "s.zarr", files(home / "new.zarr")
    if not store.exists():
        assert action == "new"
    else:
        dataset = open_dataset(store, targets=Classes("classes"))
        committed = next(n for n in ("new", "old") if _same(store, home / f"{n}.zarr"))
        rows = np.arange(dataset.first, dataset.n)
        if action == "replace":  # those that come again have other numbers
            rows = np.where(rows < 20, rows, rows - 4)
        expected = {"drop": ((20, 30),), "replace": ((16, 20),)}
        assert dataset.dropped == (expected.get(action, ()) if committed == "new" else ())
        np.testing.assert_array_equal(dataset.read(dataset.first, dataset.n)[0][:, 0], rows + 0.5)
        np.testing.assert_array_equal(dataset.codes(dataset.first, dataset.n), rows % 3)
        assert verify(store) == []
        if committed == "new":
            if action == "trim":  # what is left over goes
                act(action, home, store)
            elif action == "append":  # a job that is simply run again does not add its rows twice
                with pytest.raises(InputError, match="--again"):
                    act(action, home, store)
            elif action == "drop":
                with pytest.raises(InputError, match="before"):
                    act(action, home, store)
            assert files(store) == goal
            return True
    act(action, home, store)
    assert files(store) == goal and not list(folder.glob(".*"))
    return False


def _same(store: Path, other: Path) -> bool:
    return other.exists() and (store / "zarr.json").read_bytes() == (other / "zarr.json").read_bytes()


EVERY = [pytest.param(1, marks=pytest.mark.slow), 5]  # which steps: all of them, or a sample


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("action", ["new", "append", "trim", "replace", "drop"])
def test_killed_at_any_step(home: Path, action: str, every: int) -> None:
    ended = run(action, "kill", home, every=every)
    assert all(how == "killed" for _, how, _ in ended)
    new = [check(action, home, folder) for folder, _, _ in ended]
    assert len(new) * every >= {"new": 30, "append": 30, "trim": 8, "replace": 30, "drop": 4}[action]
    assert new == sorted(new), "the rows are committed once"


@pytest.mark.parametrize(
    ("action", "fault", "every"),
    [
        ("append", "ENOSPC", 7),
        ("new", "EIO", 7),
        *(
            pytest.param(action, fault, 1, marks=pytest.mark.slow)
            for action in ("new", "append", "trim", "replace", "drop")
            for fault in ("ENOSPC", "EIO")
        ),
    ],
)
def test_no_space_or_a_failing_disk_at_any_step(home: Path, action: str, fault: str, every: int) -> None:
    """An error in tidying up, once the rows are there, is passed over."""
    ended = run(action, fault, home, every=every)
    assert any(how == "incomplete" for _, how, _ in ended)
    for folder, how, said in ended:
        if how == "incomplete":
            assert ("no space left" if fault == "ENOSPC" else "the disk failed") in said and "run it again" in said
            assert not any(any(left.iterdir()) for left in folder.glob(".*"))
        assert check(action, home, folder) or how == "incomplete"
