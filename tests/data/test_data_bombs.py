"""Small files that claim to be large take no more memory than their arrays declare."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pytest
import zarr
from command_line import call
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from dorff.data import array_readers, ingest, open_dataset, verify
from dorff.data.readers import open_source
from dorff.errors import InputError

LARGE = 2**27  # bytes of zeros
GOOD = np.arange(20.0).reshape(10, 2)
V2 = {
    "blosc": numcodecs.Blosc(), "zstd": numcodecs.Zstd(), "lz4": numcodecs.LZ4(), "zlib": numcodecs.Zlib(9),
    "gzip": numcodecs.GZip(9), "bz2": numcodecs.BZ2(), "lzma": numcodecs.LZMA(preset=0),
}  # fmt: skip
V3 = {"blosc": BloscCodec(), "zstd": ZstdCodec(), "gzip": GzipCodec()}
FILTERS = {"": None, "delta": [numcodecs.Delta("f8")], "shuffle": [numcodecs.Shuffle(8)]}
#: Reads each store, which has to fail; says how many bytes more than before this took at the peak.
READ = """
import sys
from pathlib import Path
import pyarrow  # which some codecs import
from dorff.data import open_dataset, verify
from dorff.errors import InputError
good, *bombs = sys.argv[1:]
open_dataset(good).read(0, 10), verify(good)
status = lambda: Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
peak = lambda: 1024 * int(status().split("VmHWM:")[1].split()[0])
before = peak()
for bomb in bombs:
    try:
        open_dataset(bomb).read(0, 10)
        print(bomb, "was read")
    except InputError:
        pass
    verify(bomb)
    if (more := peak() - before) > 2**25:
        print(bomb, f"took {more:,} bytes")
        break
"""


def store(path: Path, version: int, **options: Any) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name in "xy":
        group.create_array(name, shape=(10, 2), dtype="f8", **options)[:] = GOOD
    return path


def shard(content: bytes) -> bytes:
    """A shard of two chunks, the first of these bytes, the second the same."""
    index = np.array([[0, len(content)], [0, len(content)]], "<u8").tobytes()
    return content + index + google_crc32c.value(index).to_bytes(4, "little")


@pytest.fixture(scope="module")
def zeros() -> dict[str, bytes]:
    """Gigabytes, nearly, in a few KB."""
    many = np.zeros(LARGE, np.uint8)
    unsized = pa.BufferOutputStream()
    with pa.CompressedOutputStream(unsized, "zstd") as stream:
        stream.write(memoryview(many))
    return {name: bytes(codec.encode(many)) for name, codec in V2.items()} | {
        "unsized": unsized.getvalue().to_pybytes()
    }


@pytest.mark.process
def test_chunks_come_to_what_is_declared(tmp_path: Path, zeros: dict[str, bytes]) -> None:
    bombs = []
    for name, codec in V2.items():
        for kind, filters in FILTERS.items():
            bomb = store(tmp_path / f"{name}{kind}", 2, chunks=(10, 2), compressors=codec, filters=filters)
            assert np.array_equal(open_dataset(bomb).read(0, 10)[0], GOOD)
            (bomb / "x" / "0.0").write_bytes(zeros[name])
            bombs.append(bomb)
    unsized = store(tmp_path / "unsized", 2, chunks=(10, 2), compressors=V2["zstd"])
    (unsized / "x" / "0.0").write_bytes(zeros["unsized"])
    for name, codec in V3.items():
        plain = store(tmp_path / f"{name}-3", 3, chunks=(10, 2), compressors=codec)
        sharded = store(tmp_path / f"{name}-shards", 3, chunks=(5, 2), shards=(10, 2), compressors=codec)
        twice = store(tmp_path / f"{name}-twice", 3, chunks=(10, 2), compressors=[codec, GzipCodec(level=9)])
        for bomb in (plain, sharded, twice):
            assert np.array_equal(open_dataset(bomb).read(0, 10)[0], GOOD)
        (plain / "x" / "c" / "0" / "0").write_bytes(zeros[name])
        (sharded / "x" / "c" / "0" / "0").write_bytes(shard(zeros[name]))
        (twice / "x" / "c" / "0" / "0").write_bytes(bytes(V2["gzip"].encode(zeros[name])))
        bombs += [plain, sharded, twice]
    good = store(tmp_path / "good", 2, chunks=(10, 2), compressors=V2["blosc"])
    command = [sys.executable, "-W", "ignore", "-c", READ, good, *bombs, unsized]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr[-2000:]


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not")
@pytest.mark.parametrize("rows", [3, 10])
@pytest.mark.parametrize("name", [*V2, "checked", "unsized", "numcodecs.zlib", "numcodecs.lz4"])
def test_what_keeps_to_its_size_is_read(tmp_path: Path, name: str, rows: int) -> None:
    if name in V2:
        path = store(tmp_path / "s", 2, chunks=(rows, 2), compressors=V2[name], filters=[numcodecs.Delta("f8", "f8")])
    elif name == "unsized":
        path = store(tmp_path / "s", 2, chunks=(10, 2), compressors=V2["zstd"])
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd") as stream:
            stream.write(GOOD.tobytes())
        (path / "x" / "0.0").write_bytes(out.getvalue().to_pybytes())
    elif name == "checked":
        path = store(tmp_path / "s", 3, chunks=(rows, 2), compressors=[BloscCodec(), Crc32cCodec()])
    else:
        import zarr.codecs.numcodecs as more

        codec = more.Zlib() if name.endswith("zlib") else more.LZ4()
        path = store(tmp_path / "s", 3, chunks=(rows, 2), compressors=[codec])
    assert np.array_equal(open_dataset(path).read(0, 10)[0], GOOD) and verify(path) == []


@pytest.mark.parametrize("cut", [1, 5, 20])
@pytest.mark.parametrize("name", V2)
def test_a_chunk_that_ends_too_soon_is_damaged(tmp_path: Path, name: str, cut: int) -> None:
    path = store(tmp_path / "s", 2, chunks=(10, 2), compressors=V2[name])
    chunk = path / "x" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:-cut])
    with pytest.raises(InputError, match="damaged"):
        open_dataset(path).read(0, 10)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["compressor", "filters"])
@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "base64", "zfpy"])
def test_codecs_that_nothing_bounds_are_refused(tmp_path: Path, place: str, codec: str) -> None:
    path = store(tmp_path / "s", 2, chunks=(10, 2), compressors=V2["zlib"])
    metadata = json.loads((path / "x" / ".zarray").read_text())
    metadata[place] = {"id": codec} if place == "compressor" else [{"id": codec}]
    if place == "filters":
        metadata["compressor"] = None
    (path / "x" / ".zarray").write_text(json.dumps(metadata))
    (path / ".zmetadata").unlink(missing_ok=True)
    (path / "x" / "0.0").write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    with pytest.raises(InputError, match="array x"):
        open_dataset(path).read(0, 10)
    assert not (tmp_path / "marker").exists()


def test_a_chunk_far_larger_than_its_array_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "s", 2, chunks=(10, 2), compressors=V2["zlib"])
    metadata = json.loads((path / "x" / ".zarray").read_text())
    for chunks in ([2**27, 2], [10, 2**24], [2**60, 2]):
        (path / "x" / ".zarray").write_text(json.dumps(metadata | {"chunks": chunks}))
        (path / ".zmetadata").unlink(missing_ok=True)
        with pytest.raises(InputError, match="array x"):
            open_dataset(path).read(0, 10)
        assert call("verify", path).exit_code == 3


def test_a_lzma_stream_may_not_ask_for_a_large_dictionary(tmp_path: Path) -> None:
    raw = {"format": 3, "filters": [{"id": 33, "dict_size": 2**20}]}
    path = store(tmp_path / "s", 2, chunks=(10, 2), compressors=numcodecs.LZMA(**raw))
    assert np.array_equal(open_dataset(path).read(0, 10)[0], GOOD)
    metadata = json.loads((path / "x" / ".zarray").read_text())
    metadata["compressor"]["filters"][0]["dict_size"] = 2**32 - 1
    (path / "x" / ".zarray").write_text(json.dumps(metadata))
    (path / ".zmetadata").unlink(missing_ok=True)
    with pytest.raises(InputError, match="array x"):
        open_dataset(path).read(0, 10)


def test_the_index_of_a_shard_is_bounded(tmp_path: Path) -> None:
    path = store(tmp_path / "s", 3, chunks=(5, 2), shards=(10, 2), compressors=V3["zstd"])
    metadata = json.loads((path / "x" / "zarr.json").read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [2**36, 2]
    metadata["codecs"][0]["configuration"]["chunk_shape"] = [1, 2]
    (path / "x" / "zarr.json").write_text(json.dumps(metadata))
    with (path / "x" / "c" / "0" / "0").open("r+b") as file:
        file.truncate(16 * 2**36 + 4)  # of which nothing is on the disk
    with pytest.raises(InputError, match="array x"):
        open_dataset(path).read(0, 10)


def hdf5_chunks(path: Path, content: bytes | None = None) -> Path:
    """Two variables of one compressed chunk of ten numbers each, whose bytes may be others."""
    with h5py.File(path, "w") as file:
        for name in "xy":
            variable = file.create_dataset(name, data=np.arange(10.0), chunks=(10,), compression="gzip")
            if content is not None:
                variable.id.write_direct_chunk((0,), content)
    return path


def refusal(source: Path, x: str = "x", y: str = "y") -> str:
    """What is said of a source that has to be refused, which leaves nothing behind."""
    out = source.with_suffix(".refused")
    with pytest.raises(InputError) as refused:
        ingest([source], out, inputs=[x], targets=[y])
    assert not out.exists()
    return str(refused.value)


def test_chunks_of_hdf5_come_to_what_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = hdf5_chunks(tmp_path / "bomb.h5", zlib.compress(bytes(2**25), 9))
    assert "claims 80" in refusal(bomb)
    ingest([hdf5_chunks(tmp_path / "good.h5")], tmp_path / "good.zarr", inputs=["x"], targets=["y"])
    monkeypatch.setattr(array_readers, "MOST_CHUNK", 80)
    ingest([tmp_path / "good.h5"], tmp_path / "just.zarr", inputs=["x"], targets=["y"])
    monkeypatch.setattr(array_readers, "MOST_CHUNK", 79)
    said = refusal(tmp_path / "good.h5")
    assert "chunks of 80 bytes" in said and "smaller chunks" in said


def test_random_numbers_that_grow_when_compressed_are_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**63, 10).view(np.float64)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xy":
            file.create_dataset(name, data=values, chunks=(10,), compression="gzip")
    ingest([tmp_path / "a.h5"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    assert open_dataset(tmp_path / "a.zarr").n == 10


def npz(path: Path, header: bytes, size: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(size))
        good = io.BytesIO()
        np.save(good, np.zeros(1))
        archive.writestr("y.npy", good.getvalue())
    return path


def test_arrays_of_long_items_or_headers_are_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    size = 2**25 + 8
    described = {"descr": f"|S{size}", "fortran_order": False, "shape": (1,)}
    np.lib.format.write_array_header_1_0(header, described)
    said = refusal_of_label(npz(tmp_path / "text.npz", header.getvalue(), size))
    assert "takes 33,554,440 bytes" in said
    long = b"\x93NUMPY\x02\x00" + (2**24).to_bytes(4, "little")
    assert "claims 16,777,216 bytes" in refusal(npz(tmp_path / "header.npz", long, 2**24))


def refusal_of_label(source: Path) -> str:
    with pytest.raises(InputError) as refused:
        list(open_source(source).blocks(["y"], ["x"]))
    return str(refused.value)
