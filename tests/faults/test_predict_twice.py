"""Two runs of `dorff predict` that write to one place, paused and killed: the same bytes, and nothing left over."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from cases import plain_map
from harness import Faults, Running, start, wait_until

from dorff import kernels
from dorff.data import ingest, trim, verify
from dorff.model import Model
from dorff.model.weights import OperatorWeights
from dorff.store import save_model

pytestmark = pytest.mark.process

ROWS, SHARD, OUTPUTS = 6000, 512, 256  # so many outputs that a shard of predictions is written in four steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and inputs, and what one undisturbed run predicts."""
    folder, rng = tmp_path_factory.mktemp("predict"), np.random.default_rng(0)
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(2, OUTPUTS)
    weights = OperatorWeights(np.ones(16), np.eye(OUTPUTS)[None])
    h, ones = rng.standard_normal((16, OUTPUTS)), np.ones(OUTPUTS)
    save_model(Model(plain_map(rng.standard_normal((8, 2))), weights, h, ones, ones, kernel, {}, 0), folder / "models")
    np.savez(folder / "in.npz", x=rng.standard_normal((ROWS, 2)))
    ingest([folder / "in.npz"], folder / "in.zarr", inputs=["x"], targets=["=0"], shard_rows=SHARD)
    with predicting(folder) as running:
        assert running.end().code == 0
    (folder / "out.zarr").rename(folder / "truth.zarr")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    for name in ("models", "in.zarr"):
        (tmp_path / name).symlink_to(made / name)
    return tmp_path


def predicting(folder: Path, faults: Faults | None = None) -> Running:
    return start("predict", folder / "models", folder / "in.zarr", folder / "out.zarr", "--workers", 1, faults=faults)


def bytes_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def right(made: Path, folder: Path) -> None:
    """The predictions are those of an undisturbed run, to the byte, and nothing is beside them."""
    assert bytes_of(folder / "out.zarr") == bytes_of(made / "truth.zarr") and verify(folder / "out.zarr") == []
    assert sorted(path.name for path in folder.iterdir()) == ["faults", "in.zarr", "models", "out.zarr"]


@pytest.fixture
def faults(folder: Path) -> Faults:
    return Faults(folder / "faults")


def paused(folder: Path, faults: Faults) -> None:
    """Wait until a run stands still in the middle of its first shard, with some of it written."""
    faults.wait("stand still")
    wait_until(lambda: unfinished(folder), what="a shard that is begun")


def unfinished(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".out.zarr.*.partial/y/c/*/*") if path.name != "0"]


def age(folder: Path, seconds: float) -> None:
    """The lease was renewed so long ago: its holder has been paused."""
    (file,) = folder.glob(".out.zarr.lease.0*")
    os.utime(file, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("at", [3, 6], ids=["early", "late"])
def test_a_second_run_keeps_away_while_the_first_is_paused(at: int, made: Path, folder: Path, faults: Faults) -> None:
    faults.add("stand still", r"in\.zarr/x/c/7/", "SIGSTOP", where="driver")
    with predicting(folder, faults) as first:
        paused(folder, faults)
        faults.add("die", rf"in\.zarr/x/c/{at}/", "SIGKILL", where="driver")
        with predicting(folder, faults) as second:
            other = second.end()
        faults.remove("die")
        first.signal(signal.SIGCONT)
        ended = first.end()
    assert ended.code == 0, ended
    right(made, folder)
    assert other.code == 7 and f"held by process {first.process.pid}" in other.err, other


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "done"])
def test_a_run_that_was_overtaken_changes_nothing(killed: bool, made: Path, folder: Path, faults: Faults) -> None:
    """Paused for longer than its lease lasts: another takes over, and is killed in the middle of the same shard, or
    is done before the first goes on."""
    faults.add("stand still", r"in\.zarr/x/c/7/", "SIGSTOP", where="driver")
    with predicting(folder, faults) as first:
        paused(folder, faults)
        if killed:
            faults.add("die", r"in\.zarr/x/c/3/", "SIGKILL", where="driver")
        age(folder, 120.0)
        with predicting(folder, faults) as second:
            other = second.end()
        assert other.code == (-signal.SIGKILL if killed else 0), other
        first.signal(signal.SIGCONT)
        ended = first.end()
    assert ended.code == 7 and "the lease" in ended.err and "run it again" in ended.err, ended
    if killed:
        assert not (folder / "out.zarr").exists()
        with predicting(folder, faults) as third:
            assert third.end().code == 0
    right(made, folder)


def test_what_killed_runs_left_is_tidied_and_their_shards_are_kept(made: Path, folder: Path, faults: Faults) -> None:
    faults.add("die", r"in\.zarr/x/c/11/", "SIGKILL", where="driver")  # in the second shard
    with predicting(folder, faults) as first:
        assert first.end().code == -signal.SIGKILL
    (staging,) = folder.glob(".out.zarr.*.partial")
    shard, (left,) = staging / "y" / "c" / "0" / "0", unfinished(folder)
    kept = shard.stat().st_mtime_ns
    left.with_name("0.partial").write_bytes(b"as older versions called it")
    (staging / ".zarr.json.0123456789abcdef0123456789abcdef").write_bytes(b"{")
    with predicting(folder, faults) as second:
        assert second.end().code == 0
    assert (folder / "out.zarr" / "y" / "c" / "0" / "0").stat().st_mtime_ns == kept
    right(made, folder)


def test_what_killed_writers_left_in_a_store_is_tidied(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "in.zarr", tmp_path / "in.zarr")
    before = bytes_of(tmp_path / "in.zarr")
    for place in (tmp_path / "in.zarr", tmp_path / "in.zarr" / "x"):
        (place / ".zarr.json.0123456789abcdef0123456789abcdef").write_bytes(b"{")
    trim(tmp_path / "in.zarr", keep=ROWS)
    assert bytes_of(tmp_path / "in.zarr") == before
