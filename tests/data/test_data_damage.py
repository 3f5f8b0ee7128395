"""Missing and damaged chunks, of files and of shards' inner chunks, are found by verify and never read."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import google_crc32c
import numpy as np
import pytest
import zarr

from dorff.data import ingest, open_dataset, verify
from dorff.data.array_files import Fault
from dorff.errors import InputError

N, SHARD, UNIT = 3500, 1024, 256


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Zeros, so that a chunk read as its fill value would not show; four shards of four inner chunks."""
    return _ingest(tmp_path)


def _ingest(tmp_path: Path) -> Path:
    np.savez(tmp_path / "zeros.npz", x=np.zeros((N, 1100)), y=np.zeros(N))
    ingest([tmp_path / "zeros.npz"], tmp_path / "s.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    assert open_dataset(tmp_path / "s.zarr").unit_rows == UNIT
    return tmp_path / "s.zarr"


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


def _drop_inner(path: Path, chunk: int, *, chunks: int = SHARD // UNIT, at_end: bool = True) -> None:
    """Take one entry out of a shard's index, and make the index's checksum right again."""
    content = bytearray(path.read_bytes())
    start = len(content) - 16 * chunks - 4 if at_end else 0
    content[start + 16 * chunk : start + 16 * chunk + 16] = b"\xff" * 16
    index = bytes(content[start : start + 16 * chunks])
    content[start + 16 * chunks : start + 16 * chunks + 4] = struct.pack("<I", google_crc32c.value(index))
    path.write_bytes(content)


def _truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


CHUNK = UNIT * 1100 * 8 + 4
# what is done to the file of rows 1024..2047 of x, the fault, and the rows that it makes unreadable
FAULTS: dict[str, tuple[Callable[[Path], None], str, str, range]] = {
    "deleted shard": (lambda p: p.unlink(), "c/1/0", "missing", range(1024, 2048)),
    "deleted folder": (lambda p: shutil.rmtree(p.parent), "c/1/0", "missing", range(1024, 2048)),
    "deleted inner chunk": (lambda p: _drop_inner(p, 2), "c/1/0[2,0]", "missing", range(1536, 1792)),
    "flipped byte in a chunk": (lambda p: _flip(p, 10), "c/1/0[0,0]", "damaged", range(1024, 1280)),
    "flipped byte in its crc": (lambda p: _flip(p, CHUNK - 1), "c/1/0[0,0]", "damaged", range(1024, 1280)),
    "flipped byte in the index": (lambda p: _flip(p, -30), "c/1/0", "damaged", range(1024, 2048)),
    "flipped byte in the index's crc": (lambda p: _flip(p, -1), "c/1/0", "damaged", range(1024, 2048)),
    "cut short": (lambda p: _truncate(p, 3 * CHUNK), "c/1/0", "damaged", range(1024, 2048)),
    "cut by a byte": (lambda p: _truncate(p, p.stat().st_size - 1), "c/1/0", "damaged", range(1024, 2048)),
    "empty": (lambda p: _truncate(p, 0), "c/1/0", "damaged", range(1024, 2048)),
}


def test_zeros_are_written_and_whole(store: Path) -> None:
    assert verify(store) == []
    for shard, rows in enumerate((1024, 1024, 1024, N - 3 * 1024)):
        assert (store / "x" / "c" / str(shard) / "0").stat().st_size == -(-rows // UNIT) * CHUNK + 4 * 16 + 4
    assert not open_dataset(store).read(0, N)[0].any()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_listed_and_only_its_rows_are_refused(store: Path, name: str) -> None:
    harm, chunk, kind, rows = FAULTS[name]
    dataset = open_dataset(store)
    dataset.read(0, N)
    before = dataset.stamp(1024, 2048), dataset.stamp(0, 1024), dataset.stamp(2048, N)
    os.utime(store / "x" / "c" / "1" / "0", ns=(0, 0))
    harm(store / "x" / "c" / "1" / "0")
    assert verify(store) == [Fault("x", chunk, kind)]
    for start, stop in ((0, rows.start), (rows.stop, N)):
        assert len(dataset.read(start, stop)[0]) == stop - start
    for start, stop in ((rows.start, rows.start + 1), (rows.stop - 1, rows.stop), (0, N)):
        with pytest.raises(InputError) as caught:
            dataset.read(start, stop)
        message = str(caught.value)
        assert f"array x, chunk {chunk} is {kind}" in message and "dorff verify" in message
        assert str(store) in message
    assert dataset.stamp(1024, 2048) != before[0]
    assert (dataset.stamp(0, 1024), dataset.stamp(2048, N)) == before[1:]


def test_all_faults_are_listed(store: Path) -> None:
    _drop_inner(store / "x" / "c" / "0" / "0", 0)
    _drop_inner(store / "x" / "c" / "0" / "0", 3)
    _flip(store / "x" / "c" / "3" / "0", CHUNK + 1)
    (store / "y" / "c" / "2" / "0").unlink()
    assert verify(store) == [
        Fault("x", "c/0/0[0,0]", "missing"),
        Fault("x", "c/0/0[3,0]", "missing"),
        Fault("x", "c/3/0[1,0]", "damaged"),
        Fault("y", "c/2/0", "missing"),
    ]


def test_any_flipped_byte_is_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", x=np.zeros((10, 2)))
    ingest([tmp_path / "z.npz"], tmp_path / "s.zarr", inputs=["x"], targets=[], shard_rows=8)
    for path in sorted((tmp_path / "s.zarr" / "x" / "c").rglob("0")):
        if path.is_file():
            whole = path.read_bytes()
            for place in range(len(whole)):
                _flip(path, place)
                assert len(verify(tmp_path / "s.zarr")) == 1, (path, place)
                with pytest.raises(InputError):
                    open_dataset(tmp_path / "s.zarr", targets=None).read(0, 10)
            path.write_bytes(whole)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here whose reading fails")
def test_a_disk_that_fails_is_not_damage(store: Path) -> None:
    """The file of this process's memory opens, and cannot be read: the error goes on, and says of which file."""
    dataset, path = open_dataset(store), store / "x" / "c" / "1" / "0"
    path.unlink()
    path.symlink_to("/proc/self/mem")
    with pytest.raises(OSError) as caught:
        dataset.read(0, N)
    assert not isinstance(caught.value, InputError) and caught.value.filename == str(path)


def test_metadata_faults(store: Path) -> None:
    def restored(path: Path, content: bytes | None) -> list[Fault]:
        whole = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError):
            open_dataset(store)
        faults = verify(store)
        path.write_bytes(whole)
        return faults

    x, group = store / "x" / "zarr.json", store / "zarr.json"
    assert restored(x, None) == [Fault("x", "zarr.json", "missing")]
    assert restored(x, b"{") == [Fault("x", "zarr.json", "damaged")]
    assert restored(x, x.read_bytes().replace(b"crc32c", b"crc32d")) == [Fault("x", "zarr.json", "damaged")]
    assert restored(x, x.read_bytes().replace(b"3500", b"2500")) == [Fault("x", "zarr.json", "damaged")]
    assert restored(group, None) == [Fault("", "zarr.json", "missing")]
    assert restored(group, b"\xff\x00") == [Fault("", "zarr.json", "damaged")]
    assert restored(group, b"[]") == [Fault("", "zarr.json", "damaged")]
    damaged = group.read_bytes().replace(b'"rows": 3500', b'"rows": "a"')
    assert restored(group, damaged) == [Fault("", "zarr.json", "damaged")]
    assert verify(store) == []
    shutil.rmtree(store / "y")
    assert verify(store) == [Fault("y", "zarr.json", "missing")]


@pytest.mark.parametrize("location", ["start", "end"])
def test_index_at_either_end_and_chunks_across_columns(tmp_path: Path, location: str) -> None:
    group = zarr.open_group(tmp_path / "s.zarr", mode="w")
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(10, 1),
        codecs=[zarr.codecs.BytesCodec(endian="big"), zarr.codecs.GzipCodec()],
        index_location=location,
    )
    values = np.arange(100.0).reshape(50, 2) + 1
    group.create_array(
        "x", shape=(50, 2), chunks=(20, 2), dtype="f8", serializer=codec, compressors=None, filters=None
    )[:] = values
    group.create_array("y", data=values[:, 0], chunks=(7,))
    dataset = open_dataset(tmp_path / "s.zarr")
    np.testing.assert_array_equal(dataset.read(15, 47)[0], values[15:47])
    _drop_inner(tmp_path / "s.zarr" / "x" / "c" / "1" / "0", 3, chunks=4, at_end=location == "end")
    assert verify(tmp_path / "s.zarr") == [Fault("x", "c/1/0[1,1]", "missing")]
    dataset.read(0, 30)
    dataset.read(40, 50)
    with pytest.raises(InputError, match=r"array x, chunk c/1/0\[1,1\] is missing"):
        dataset.read(29, 31)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_stores_without_shards(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    group = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=zarr_format)
    values = np.arange(90.0).reshape(30, 3) + 1
    group.create_array("x", data=values, chunks=(8, 2))
    group.create_array("y", data=values[:, 0], chunks=(30,))
    dataset = open_dataset(tmp_path / "s.zarr")
    np.testing.assert_array_equal(dataset.read(3, 29)[0], values[3:29])
    chunk = "1.1" if zarr_format == 2 else "c/1/1"
    (tmp_path / "s.zarr" / "x" / chunk).write_bytes(b"not what a compressor writes")
    assert verify(tmp_path / "s.zarr") == [Fault("x", chunk, "damaged")]
    with pytest.raises(InputError, match=f"array x, chunk {chunk} is damaged"):
        dataset.read(0, 30)
    (tmp_path / "s.zarr" / "x" / chunk).unlink()
    assert verify(tmp_path / "s.zarr") == [Fault("x", chunk, "missing")]
    with pytest.raises(InputError, match=f"array x, chunk {chunk} is missing.*write empty chunks"):
        dataset.read(0, 30)
    dataset.read(0, 8)
    dataset.read(16, 30)


def test_what_is_not_a_store_is_not_verified(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path / "folder", tmp_path / "file"):
        with pytest.raises(InputError, match="not a Zarr store"):
            verify(path)
