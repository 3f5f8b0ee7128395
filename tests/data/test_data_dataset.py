"""Stores by dorff and by others, opened and read as they are."""

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.data import Dataset, open_dataset, verify
from dorff.errors import InputError

RNG = np.random.default_rng(1)


def make(
    path: Path,
    *,
    zarr_format: Literal[2, 3] = 3,
    **arrays: Any,
) -> Path:
    """A group of arrays written by zarr itself; a pair gives an array and how to create it."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, given_array in arrays.items():
        data, options = given_array if isinstance(given_array, tuple) else (given_array, {})
        group.create_array(name, data=data, config={"write_empty_chunks": True}, **options)
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_xarray_stores(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    a, t = RNG.standard_normal((300, 3)), RNG.standard_normal(300)
    t[7] = np.nan
    data = xr.Dataset(
        {
            "a": (("row", "feature"), a),
            "t": ("row", t),
            "p": ("row", np.round(t, 2)),
            "k": ("row", np.arange(300)),
        }
    )
    encoding = {
        "a": {"chunks": (40, 2)},
        "t": {"chunks": (100,)},
        "p": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -9999},
    }
    data.to_zarr(tmp_path / "s", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    dataset = open_dataset(tmp_path / "s", inputs=["a", "k"], targets=["t", "p"])
    assert (dataset.n, dataset.d, dataset.q, dataset.shard_rows, dataset.unit_rows) == (300, 4, 2, 600, 600)
    X, Y = dataset.read(5, 295)
    np.testing.assert_array_equal(X, np.column_stack([a, np.arange(300)])[5:295])
    np.testing.assert_array_equal(Y[:, 0], t[5:295])
    np.testing.assert_allclose(Y[:, 1], np.round(t, 2)[5:295], atol=1e-12)
    assert dataset.input_columns == ("a0", "a1", "a2", "k") and dataset.target_columns == ("t", "p")
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "i1", ">i8", "u2", "?"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_number_types(tmp_path: Path, dtype: str, zarr_format: Literal[2, 3]) -> None:
    values = (RNG.standard_normal((20, 2)) * 100).astype(dtype)
    options: dict[str, Any] = {"chunks": (6, 2)}
    dataset = open_dataset(make(tmp_path / "s", zarr_format=zarr_format, x=(values, options)), targets=None)
    X, Y = dataset.read(0, 20)
    assert X.dtype == np.float64 and X.flags.c_contiguous and Y.shape == (20, 0)
    np.testing.assert_array_equal(X, values.astype(np.float64))


@settings(max_examples=50)
@given(
    n=st.integers(1, 60),
    chunk=st.integers(1, 20),
    times=st.integers(1, 3),
    sharded=st.booleans(),
    data=st.data(),
)
def test_reading_rows_equals_slicing(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    chunk: int,
    times: int,
    sharded: bool,
    data: st.DataObject,
) -> None:
    x, y = RNG.standard_normal((n, 3)), RNG.standard_normal(n)
    options: dict[str, Any] = {"chunks": (chunk, 3)} | ({"shards": (chunk * times, 3)} if sharded else {})
    path = make(tmp_path_factory.mktemp("s") / "s", x=(x, options), y=(y, {"chunks": (times,)}))
    dataset = open_dataset(path, inputs=["x", "y"], targets="y")
    assert dataset.shard_rows % dataset.unit_rows == 0
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    X, Y = dataset.read(start, stop)
    np.testing.assert_array_equal(X, np.column_stack([x, y])[start:stop])
    np.testing.assert_array_equal(Y, y[start:stop, None])


def test_row_grids(tmp_path: Path) -> None:
    def rows(**chunks: dict[str, Any]) -> tuple[int, int]:
        arrays: dict[str, Any] = {name: (np.ones((40, 1)), options) for name, options in chunks.items()}
        dataset = open_dataset(make(tmp_path / "s", **arrays), inputs=list(chunks), targets=None)
        return dataset.shard_rows, dataset.unit_rows

    assert rows(a={"chunks": (8, 1), "shards": (24, 1)}) == (24, 8)
    assert rows(a={"chunks": (8, 1), "shards": (24, 1)}, b={"chunks": (6, 1)}) == (24, 24)
    assert rows(a={"chunks": (8, 1), "shards": (24, 1)}, b={"chunks": (16, 1)}) == (48, 16)
    assert rows(a={"chunks": (31, 1)}, b={"chunks": (8, 1), "shards": (32, 1)}) == (32, 8)  # given up: 992


def test_a_dataset_is_small_and_can_be_pickled(tmp_path: Path) -> None:
    dataset = open_dataset(make(tmp_path / "s", x=np.ones((9, 2)), y=np.ones(9)))
    dataset.read(0, 9)
    twin: Dataset = pickle.loads(pickle.dumps(dataset))
    assert twin == dataset and len(pickle.dumps(dataset)) < 1000
    np.testing.assert_array_equal(twin.read(0, 9)[0], np.ones((9, 2)))
    json.dumps(dataset.rows_spec())


def test_rows_spec_leaves_out_the_number_of_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"chunks": (4, 2)}
    a = open_dataset(make(tmp_path / "a", x=(np.ones((9, 2)), options)), targets=None)
    b = open_dataset(make(tmp_path / "b", x=(np.ones((11, 2)), options)), targets=None)
    c = open_dataset(make(tmp_path / "c", x=(np.ones((11, 2), "f4"), options)), targets=None)
    assert a.rows_spec() == b.rows_spec() != c.rows_spec()


def test_a_store_replaced_under_an_open_dataset_is_seen(tmp_path: Path) -> None:
    dataset = open_dataset(make(tmp_path / "s", x=np.ones((9, 2)), y=np.ones(9)))
    dataset.read(0, 9)
    make(tmp_path / "s", x=np.ones((10, 2)) * 2, y=np.ones(10))
    np.testing.assert_array_equal(dataset.read(0, 9)[0], np.full((9, 2), 2.0))
    make(tmp_path / "s", x=np.ones((5, 2)) * 2, y=np.ones(5))
    with pytest.raises(InputError, match="array x has 5 rows now, fewer than 9"):
        dataset.read(0, 9)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1 << 14, 16), "shards": (1 << 15, 16), "compressors": None},
        {"chunks": (1 << 14, 3)},
        {"chunks": (1 << 15, 16), "shards": (1 << 15, 16)},
    ],
)
def test_unit_bytes_bounds_what_a_read_takes(tmp_path: Path, options: dict[str, Any]) -> None:
    x = RNG.standard_normal((1 << 15, 16))
    path = make(tmp_path / "s", x=(x, options), y=(x[:, :2].astype("f4"), {"chunks": (1 << 13, 2)}))
    dataset = open_dataset(path)
    dataset.read(0, 10)
    for rows, bound in (
        (dataset.unit_rows, dataset.unit_bytes()),
        (1 << 15, dataset.unit_bytes() + x.nbytes * 18 // 16),
    ):
        tracemalloc.start()
        dataset.read(0, rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= bound
        assert rows > dataset.unit_rows or peak >= bound / 3  # a bound that means something


def test_bad_stores_get_one_sentence(tmp_path: Path) -> None:
    text = np.array(["a", "b"], dtype="U1")
    good = make(
        tmp_path / "g",
        zarr_format=2,
        x=np.ones((4, 2)),
        y=np.ones(4),
        z=np.ones(5),
        s=text,
        cube=np.ones((4, 1, 1)),
        m=np.ones(4) * 1j,
    )
    zarr.open_group(good, mode="a", zarr_format=2).create_group("sub")
    zarr.create_array(tmp_path / "array", data=np.ones(3))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("text")
    cases: list[tuple[str, str | list[str], str | list[str] | None, str]] = [
        ("g", "xx", "y", "has no array 'xx'; did you mean 'x'? the arrays in it are: cube, m, s, x, y, z"),
        ("g", "sub", None, "has no array 'sub'"),
        ("g", "x", "z", "array x has 4 rows but array z has 5"),
        ("g", ["x", "z"], None, "array x has 4 rows but array z has 5"),
        ("g", "s", None, "wanted real numbers, got type <U1"),
        ("g", "m", None, "wanted real numbers, got type complex128"),
        ("g", "cube", None, "wanted 1 or 2 dimensions"),
        ("g", [], None, "at least one array"),
        ("array", "x", None, "it is a single Zarr array, not a group"),
        ("folder", "x", None, "is not a Zarr store"),
        ("file", "x", None, "is not a Zarr store"),
        ("none", "x", None, "there is no such file"),
    ]
    for name, inputs, targets, message in cases:
        with pytest.raises(InputError) as caught:
            open_dataset(tmp_path / name, inputs=inputs, targets=targets)
        assert message in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"hdfs://b/s\.zarr: no storage is called hdfs://; write s3://BUCKET/PATH"):
        open_dataset("hdfs://b/s.zarr")
    for start, stop in ((-1, 2), (0, 5), (3, 2)):
        with pytest.raises(InputError, match=f"wanted rows between 0 and 4, got {start} to {stop}"):
            open_dataset(good).read(start, stop)


def test_nested_shards_are_refused(tmp_path: Path) -> None:
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2, 1))
    group = zarr.open_group(tmp_path / "s", mode="w")
    group.create_array(
        "x",
        shape=(16, 1),
        chunks=(8, 1),
        dtype="f8",
        compressors=None,
        serializer=zarr.codecs.ShardingCodec(chunk_shape=(4, 1), codecs=[inner]),
    )[:] = 1.0
    with pytest.raises(InputError, match="its shards are nested"):
        open_dataset(tmp_path / "s", targets=None)
