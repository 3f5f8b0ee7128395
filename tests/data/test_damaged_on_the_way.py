"""Metadata and chunks that are damaged on their way over the network are read once more before they are given up."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dorff.data import ingest, open_dataset
from dorff.data.array_files import PlainShards
from dorff.errors import InputError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(300.0).reshape(100, 3))
    ingest([tmp_path / "a.npy"], tmp_path / "s.zarr", inputs=["c0", "c1"], targets=["c2"], shard_rows=50)
    return tmp_path / "s.zarr"


class Wire:
    """Reads files, and damages the first `times` answers for each file of a name."""

    def __init__(self, name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self._name, self._times = Counter[Path](), name, times
        read = Path.read_bytes

        def damaged(path: Path) -> bytes:
            content = read(path)
            if path.name != name:
                return content
            self.reads[path] += 1
            return content[: len(content) // 2] if self.reads[path] <= times else content

        monkeypatch.setattr(Path, "read_bytes", damaged)


def test_metadata_damaged_once_are_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire("zarr.json", 1, monkeypatch)
    X, Y = open_dataset(store).read(0, 100)
    np.testing.assert_array_equal(np.hstack([X, Y]), np.arange(300.0).reshape(100, 3))
    assert set(wire.reads) >= {store / "zarr.json", store / "x" / "zarr.json"} and min(wire.reads.values()) >= 2


def test_metadata_damaged_twice_are_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire("zarr.json", 9, monkeypatch)
    with pytest.raises(InputError, match=r"zarr\.json"):
        open_dataset(store)
    assert wire.reads[store / "zarr.json"] >= 2


def test_metadata_of_zarr_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = zarr.open_group(tmp_path / "v2.zarr", mode="w", zarr_format=2)
    for name in "xy":
        group.create_array(name, data=np.arange(20.0), chunks=(10,))
    Wire(".zarray", 1, monkeypatch)
    assert open_dataset(tmp_path / "v2.zarr").rows == 20


@pytest.mark.parametrize(("times", "right"), [(1, True), (2, False)])
def test_chunks(times: int, right: bool, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of a chunk is wrong the first times."""
    fill, calls = PlainShards._fill, Counter[str]()

    def damaged(shards: PlainShards, file: Any, entry: Any, raw: Any) -> bool:
        whole = fill(shards, file, entry, raw)
        calls[shards.files.name] += 1
        return whole and calls[shards.files.name] > times

    monkeypatch.setattr(PlainShards, "_fill", damaged)
    if right:
        np.testing.assert_array_equal(open_dataset(store).read(0, 100)[0][:, 0], np.arange(0.0, 300.0, 3))
    else:
        with pytest.raises(InputError, match="damaged"):
            open_dataset(store).read(0, 100)
