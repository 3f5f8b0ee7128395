"""What ingest makes: the same store from any division of the rows, whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from cases import unsourced
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.data import ingest, open_dataset, shard_and_unit_rows, verify
from dorff.errors import InputError

ROWS = np.random.default_rng(2).standard_normal((4000, 3))
COLUMNS: dict[str, Any] = {"inputs": ["c0", "c1"], "targets": ["c2"]}


def files(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


def save(path: Path, rows: npt.NDArray[np.float64], *, csv: bool = False) -> Path:
    """Rows as a file."""
    if csv:
        path = path.with_suffix(".csv")
        path.write_text("\n".join(",".join(map(repr, row)) for row in rows.tolist()) + "\n")
    else:
        path = path.with_suffix(".npy")
        np.save(path, rows)
    return path


@settings(max_examples=25)
@given(
    cuts=st.lists(st.tuples(st.integers(1, 119), st.booleans(), st.booleans()), max_size=5, unique_by=lambda c: c[0]),
    shard_rows=st.sampled_from([7, 16, 30, 50, None]),
)
def test_any_division_into_sources_and_appends_gives_the_same_store(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, bool, bool]], shard_rows: int | None
) -> None:
    """A cut ends a source, and starts another (or an append), as a CSV file (or NPY)."""
    folder, rows = tmp_path_factory.mktemp("cuts"), ROWS[:120]
    whole = save(folder / "whole", rows)
    ingest([whole], folder / "one.zarr", **COLUMNS, shard_rows=shard_rows)
    calls: list[list[Path]] = [[]]
    bounds = [(0, False, False), *sorted(cuts), (120, False, False)]
    for (start, appended, csv), (stop, _, _) in pairwise(bounds):
        if appended:
            calls.append([])
        calls[-1].append(save(folder / str(start), rows[start:stop], csv=csv))
    for i, sources in enumerate(calls):
        more = {"shard_rows": None if i else shard_rows, "append": i > 0, "groups": "none"}
        rows_now = ingest(sources, folder / "many.zarr", **COLUMNS, **more)
    assert rows_now == 120
    assert unsourced(folder / "one.zarr") == unsourced(folder / "many.zarr")
    dataset = open_dataset(folder / "many.zarr")
    np.testing.assert_array_equal(np.hstack(dataset.read(0, 120)), rows)
    assert (dataset.input_columns, dataset.target_columns) == (("c0", "c1"), ("c2",))


def test_zarr_reads_what_was_written(tmp_path: Path) -> None:
    ingest([save(tmp_path / "a", ROWS)], tmp_path / "s.zarr", **COLUMNS, shard_rows=1024)
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    x = group["x"]
    assert isinstance(x, zarr.Array) and x.shards == (1024, 2) and x.dtype == np.float64
    np.testing.assert_array_equal(np.asarray(x[:]), ROWS[:, :2])
    assert group.attrs["columns"] == {"x": ["c0", "c1"], "y": ["c2"]}
    ends = [ROWS[:, :2].min(axis=0).tolist(), ROWS[:, :2].max(axis=0).tolist()]
    expected = {"first": 0, "rows": 4000, "sources": [ANY], "source_columns": ["c0", "c1", "c2"]}
    assert group.attrs["dorff"] == expected | {"crc32": ANY, "ranges": {"x": ends}}


@given(
    d=st.integers(1, 200_000),
    q=st.integers(0, 1000),
    shard_rows=st.none() | st.integers(1, 100_000) | st.just(2**24),
)
def test_shards_and_chunks_have_sensible_sizes(d: int, q: int, shard_rows: int | None) -> None:
    shard, unit = shard_and_unit_rows(d, q, shard_rows)
    assert shard % unit == 0
    if shard_rows is None:
        assert 1024 <= shard <= 16384
        assert shard == 1024 or shard * 8 * (d + q) <= 64 * 2**20
        assert unit == 1 or unit * 8 * (d + q) <= 4 * 2**20
        assert unit == shard or unit * 8 * (d + q) >= 2**20
    else:
        assert shard == shard_rows


def test_out_that_is_there_is_left_alone(tmp_path: Path) -> None:
    source = save(tmp_path / "a", ROWS)
    ingest([source], tmp_path / "s.zarr", **COLUMNS)
    (tmp_path / "file.zarr").write_text("mine")
    (tmp_path / "folder.zarr").mkdir()
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array("x", data=ROWS)
    before = {name: files(tmp_path / name) for name in ("s.zarr", "folder.zarr", "other.zarr")}
    for name in ("s.zarr", "file.zarr", "folder.zarr", "other.zarr"):
        with pytest.raises(InputError, match=f"{name}: is there already"):
            ingest([source], tmp_path / name, **COLUMNS)
    refusals = {
        "none": "there is no such file",
        "file": "not a Zarr",
        "folder": "not a Zarr",
        "other": "not made by `dorff ingest`",
    }
    for stem, message in refusals.items():
        with pytest.raises(InputError, match=message):
            ingest([source], tmp_path / f"{stem}.zarr", **COLUMNS, append=True)
    with pytest.raises(InputError, match="append the same inputs and targets"):
        ingest([source], tmp_path / "s.zarr", inputs=["c1", "c0"], targets=["c2"], append=True)
    with pytest.raises(InputError, match="has shards of 16384 rows, not 5"):
        ingest([source], tmp_path / "s.zarr", **COLUMNS, append=True, shard_rows=5)
    for rows in (0, 2**24 + 1, 99_999_999_999_999):
        with pytest.raises(InputError, match=rf"--shard-rows: wanted from 1 to 16,777,216 rows, got {rows:,}; correct"):
            ingest([source], tmp_path / "new.zarr", **COLUMNS, shard_rows=rows)
    assert before == {name: files(tmp_path / name) for name in before}
    assert not list(tmp_path.glob(".*"))


def test_a_failed_append_changes_nothing(tmp_path: Path) -> None:
    good, bad = save(tmp_path / "a", ROWS), tmp_path / "bad.csv"
    bad.write_text("1,2,3\n" * 3000 + "1,x,3\n")
    ingest([good], tmp_path / "s.zarr", **COLUMNS, shard_rows=256)
    before, stamp = files(tmp_path / "s.zarr"), open_dataset(tmp_path / "s.zarr").stamp(0, 4000)
    with pytest.raises(InputError, match=r"bad\.csv: column 'c1', row 3001: wanted a number, got 'x'"):
        ingest([good, bad], tmp_path / "s.zarr", **COLUMNS, append=True, again=True)
    assert files(tmp_path / "s.zarr") == before
    assert open_dataset(tmp_path / "s.zarr").stamp(0, 4000) == stamp
    assert not list(tmp_path.glob(".*"))


def test_an_append_keeps_what_others_added(tmp_path: Path) -> None:
    source = save(tmp_path / "a", ROWS)
    ingest([source], tmp_path / "s.zarr", **COLUMNS)
    group = zarr.open_group(tmp_path / "s.zarr", mode="a")
    group.attrs["title"] = "drifters"
    group["x"].attrs["units"] = "km"
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(tmp_path / "s.zarr", zarr_format=3)
    assert ingest([source], tmp_path / "s.zarr", **COLUMNS, append=True, again=True) == 8000
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    x = group["x"]
    assert isinstance(x, zarr.Array) and x.shape == (8000, 2)
    assert group.attrs["title"] == "drifters" and x.attrs["units"] == "km"


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[int] = []
    source = save(tmp_path / "a", ROWS)
    ingest([source, source], tmp_path / "s.zarr", **COLUMNS, again=True, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 8000


def test_a_damaged_store_is_not_appended_to(tmp_path: Path) -> None:
    source = save(tmp_path / "a", ROWS)
    ingest([source], tmp_path / "s.zarr", **COLUMNS, shard_rows=3000)
    (tmp_path / "s.zarr" / "y" / "c" / "1" / "0").unlink()
    with pytest.raises(InputError, match="array y, chunk c/1/0 is missing"):
        ingest([source], tmp_path / "s.zarr", **COLUMNS, append=True)


# Slow, and says how far it is, so that the parent can kill it in the middle.
CHILD = """
import os, sys, time
from dorff.data import ingest
def slowly(rows):
    print(rows, flush=True)
    time.sleep(0.01)
ingest(sys.argv[2:], sys.argv[1], inputs=["c0", "c1"], targets=["c2"], append=os.path.exists(sys.argv[1]),
       shard_rows=64, progress=slowly)
"""


def _killed_after(store: Path, sources: list[Path], lines: int) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, store, *sources], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(lines):
            child.stdout.readline()
        with pytest.raises(InputError, match="another run is writing it"):
            ingest(sources, store, **COLUMNS, append=store.exists())
        child.send_signal(signal.SIGKILL)


@pytest.mark.process
def test_killed_and_run_again(tmp_path: Path) -> None:
    sources = [save(tmp_path / str(i), ROWS[i * 100 : (i + 1) * 100]) for i in range(40)]
    store, uncut = tmp_path / "s.zarr", tmp_path / "uncut.zarr"
    ingest(sources, uncut, **COLUMNS, shard_rows=64)
    _killed_after(store, sources[:20], 5)
    assert not store.exists() and (tmp_path / ".s.zarr.partial").exists()
    ingest(sources[:20], store, **COLUMNS, shard_rows=64)
    before = files(store)
    _killed_after(store, sources[20:], 5)
    assert files(store) == before and verify(store) == []
    ingest(sources[20:], store, **COLUMNS, append=True)
    assert files(store) == files(uncut)
    assert not list(tmp_path.glob(".*"))


def test_an_append_cut_at_any_write_leaves_the_old_rows_and_can_be_run_again(tmp_path: Path) -> None:
    """The commit is a sequence of renames; each prefix of it is made here, as a cut would leave it."""
    head, tail = save(tmp_path / "head", ROWS[:1000]), save(tmp_path / "tail", ROWS[1000:1500])
    old, new, store = tmp_path / "old.zarr", tmp_path / "new.zarr", tmp_path / "s.zarr"
    ingest([head], old, **COLUMNS, shard_rows=300)
    ingest([head, tail], new, **COLUMNS, shard_rows=300)
    moved = [f"{a}/c/{k}/0" for a in "xy" for k in (3, 4)] + ["x/zarr.json", "y/zarr.json"]
    for count in range(len(moved) + 1):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(old, store)
        for name in moved[:count]:
            (store / name).parent.mkdir(exist_ok=True)
            shutil.copy(new / name, store / name)
        dataset = open_dataset(store)
        np.testing.assert_array_equal(np.hstack(dataset.read(0, dataset.n)), ROWS[:1000])
        assert verify(store) == []
        assert ingest([tail], store, **COLUMNS, append=True) == 1500
        assert files(store) == files(new)


LIMITED = """
import resource, sys
from dorff.data import ingest
from dorff.errors import IncompleteError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    ingest([sys.argv[1]], sys.argv[2], inputs=["c0", "c1"], targets=["c2"], append=len(sys.argv) > 3,
           again=len(sys.argv) > 3)
except IncompleteError as error:
    print(error)
"""


@pytest.mark.process
def test_no_space_left(tmp_path: Path) -> None:
    """The limit on a file's size stands in for a full disk, which fails in the same call."""
    source, store = save(tmp_path / "a", ROWS), tmp_path / "s.zarr"
    run: list[str | Path] = [sys.executable, "-c", LIMITED, source, store]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert f"{store}: no space left" in said
    assert not store.exists() and not list(tmp_path.glob(".*"))
    ingest([source], store, **COLUMNS)
    before = files(store)
    assert "no space left" in subprocess.run([*run, "append"], capture_output=True, text=True, check=True).stdout
    assert files(store) == before and not list(tmp_path.glob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    source = save(tmp_path / "a", ROWS)
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(InputError, match="cannot be written"):
        ingest([source], tmp_path / "shut" / "s.zarr", **COLUMNS)


PEAK = """
import sys
from pathlib import Path
from dorff.data import ingest
ingest([sys.argv[1]], sys.argv[2], inputs=sys.argv[3:], targets=[])
status = Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
print(status.split("VmHWM:")[1].split()[0])
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["r.npz", "r.parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str) -> None:
    """Compressed NPZ and a Parquet file of one row group: both tempt a reader to hold the whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def peak(rows: int) -> int:
        values = np.broadcast_to(ROWS[:1000, 0], (rows // 1000, 1000)).reshape(-1)
        columns: dict[str, Any] = {f"a{j}": values for j in range(8)}
        if name == "r.npz":
            np.savez_compressed(tmp_path / name, **columns)
        else:
            pq.write_table(pa.table(columns), tmp_path / name, row_group_size=rows)
        out = tmp_path / f"{rows}.zarr"
        run: list[str | Path] = [sys.executable, "-c", PEAK, tmp_path / name, out, *columns]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout) * 1024

    small, large = peak(200_000), peak(600_000)
    assert large - small < 8 * 400_000 * 8 // 2  # half of the rows added
