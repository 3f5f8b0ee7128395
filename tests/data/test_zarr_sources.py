"""Zarr groups as sources of ingest: grids, packed numbers, text, chunks that are absent or damaged."""

import re
import shlex
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr
from command_line import call
from numcodecs import Zlib

from dorff.data import ingest, open_dataset
from dorff.data.edges import open_graph
from dorff.data.labels import Classes
from dorff.errors import InputError

Array = npt.NDArray[Any]
NAMES = ["time", "lat", "lon", "mask", "back", "sst"]
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
# In Zarr v3 xarray warns of text of fixed length, whose type has no specification yet.
IGNORE_TEXT = pytest.mark.filterwarnings("ignore:.*(Zarr V3|Zarr format 3|consolidated).*")


def grid() -> xr.Dataset:
    rng = np.random.default_rng(0)
    sst = np.round(rng.normal(15, 5, (6, 5, 7)), 2)
    sst[0, 1, 2] = np.nan
    fields = {
        "sst": (("time", "lat", "lon"), sst, {"units": "degC", "standard_name": "sea_surface_temperature"}),
        "mask": (("lat", "lon"), rng.integers(0, 2, (5, 7))),
        "back": (("lon", "time"), rng.standard_normal((7, 6)).astype("f4")),
    }
    times = np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(6, "h")
    return xr.Dataset(fields, {"time": times, "lat": np.linspace(40, 30, 5), "lon": np.arange(7) * 50.0})


PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 10.0, "_FillValue": -32767}
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunked": {"sst": {"chunks": (4, 2, 3)}, "back": {"chunks": (3, 4)}},
    "packed": {"sst": {**PACKED, "chunks": (1, 5, 7)}},
    "filled": {"sst": {"_FillValue": -9999.0}},
    "sharded": {"sst": {"chunks": (2, 2, 2), "shards": (4, 4, 8)}},
}


@FORMATS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cells_are_those_that_xarray_broadcasts(tmp_path: Path, zarr_format: Any, layout: str) -> None:
    if layout == "sharded" and zarr_format == 2:
        pytest.skip("Zarr v2 has no shards")
    path, encoding = tmp_path / "g.zarr", LAYOUTS[layout]
    grid().to_zarr(path, zarr_format=zarr_format, consolidated=False, encoding=encoding)
    assert ingest([path], tmp_path / "s.zarr", inputs=NAMES[:-1], targets=["sst"]) == 210
    dataset = open_dataset(tmp_path / "s.zarr")
    data = xr.open_zarr(path, consolidated=False, decode_times=False)
    wanted = [field.values.ravel() for field in xr.broadcast(data.sst, *(data[name] for name in NAMES[:-1]))]
    X, Y = dataset.read(0, 210)
    np.testing.assert_array_equal(X, np.column_stack(wanted[1:]))
    np.testing.assert_array_equal(Y[:, 0], wanted[0])
    assert dataset.column_attributes["sst"]["standard_name"] == "sea_surface_temperature"
    assert dataset.encoding["time"]["time"][0].startswith("hours since 2024-01-01")


@pytest.mark.parametrize("block_bytes", [8 * 6, 8 * 6 * 7, 8 * 6 * 50, 2**22])
@pytest.mark.parametrize("kept_bytes", [0, 700, 2**24])
def test_blocks_and_what_is_kept_of_chunks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, kept_bytes: int
) -> None:
    grid().to_zarr(tmp_path / "g.zarr", consolidated=False, encoding=LAYOUTS["chunked"])
    ingest([tmp_path / "g.zarr"], tmp_path / "a.zarr", inputs=NAMES[:-1], targets=["sst"])
    monkeypatch.setattr("dorff.data.readers.BLOCK_BYTES", block_bytes)
    monkeypatch.setattr("dorff.data.variables.KEPT_BYTES", kept_bytes)
    monkeypatch.setattr("dorff.data.variables.SMALL_BYTES", kept_bytes // 10)
    monkeypatch.setattr("dorff.data.zarr_reader.KEPT_BYTES", kept_bytes)
    ingest([tmp_path / "g.zarr"], tmp_path / "b.zarr", inputs=NAMES[:-1], targets=["sst"])
    for name in ("x/c/0/0", "y/c/0/0", "zarr.json"):
        assert (tmp_path / "a.zarr" / name).read_bytes() == (tmp_path / "b.zarr" / name).read_bytes()


def test_no_chunk_is_decoded_twice_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid().to_zarr(tmp_path / "g.zarr", consolidated=False, encoding={"sst": {"chunks": (3, 5, 7)}})
    monkeypatch.setattr("dorff.data.readers.BLOCK_BYTES", 8 * 2 * 5)  # a slab is 5 cells
    monkeypatch.setattr("dorff.data.variables.SMALL_BYTES", 0)
    loaded: list[str] = []
    real = zarr.Array.__getitem__

    def load(self: Any, selection: Any) -> Any:
        loaded.append(self.path or str(self.store_path))
        return real(self, selection)

    monkeypatch.setattr(zarr.Array, "__getitem__", load)
    ingest([tmp_path / "g.zarr"], tmp_path / "a.zarr", inputs=["sst"])
    assert sum("sst" in path for path in loaded) == 2


@FORMATS
def test_a_group_in_a_group_has_dimensions_of_its_own(tmp_path: Path, zarr_format: Any) -> None:
    path = tmp_path / "g.zarr"
    grid().isel(lat=slice(2)).to_zarr(path, zarr_format=zarr_format, consolidated=False)
    grid().to_zarr(path, group="deep/er", zarr_format=zarr_format, consolidated=False, mode="a")
    inputs = [f"deep/er/{name}" for name in ("lat", "lon")]
    assert ingest([path], tmp_path / "s.zarr", inputs=inputs, targets=["deep/er/sst"]) == 210
    assert ingest([path], tmp_path / "t.zarr", inputs=["lat", "lon"], targets=["sst"]) == 84


def write_sparse(path: Path, zarr_format: Any, *, shards: bool) -> Array:
    """Chunks that hold the fill value are left out, as is Zarr's default."""
    values = np.zeros((8, 6))
    values[:4, :3] = np.arange(12.0).reshape(4, 3) + 1
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    layout: dict[str, Any] = {"chunks": (4, 3), "fill_value": 0.0}
    layout |= {"shards": (8, 6)} if shards else {}
    layout |= {"dimension_names": ["row", "c"]} if zarr_format == 3 else {}
    group.create_array("u", shape=values.shape, dtype="f8", **layout)[:] = values
    return values


@pytest.mark.parametrize(("zarr_format", "shards"), [(2, False), (3, False), (3, True)])
def test_absent_chunks_are_refused_or_filled(tmp_path: Path, zarr_format: int, shards: bool) -> None:
    path, out = tmp_path / "g.zarr", tmp_path / "s.zarr"
    values = write_sparse(path, zarr_format, shards=shards)
    with pytest.raises(InputError, match=r"array u, chunk .* is missing; .*--absent-chunks fill"):
        ingest([path], out, inputs=["u"])
    assert not out.exists()
    ingest([path], out, inputs=["u"], absent_chunks="fill")
    np.testing.assert_array_equal(open_dataset(out, targets=None).read(0, 8)[0], values)


def test_the_command_says_how_to_fill_absent_chunks(tmp_path: Path) -> None:
    path, out = tmp_path / "g.zarr", tmp_path / "s.zarr"
    write_sparse(path, 3, shards=False)
    refused = call("ingest", path, out, "--inputs", "u")
    assert refused.exit_code == InputError.exit_code and "--absent-chunks fill" in refused.stderr
    assert call("ingest", path, out, "--inputs", "u", "--absent-chunks", "fill").exit_code == 0
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    useless = call("ingest", tmp_path / "a.npy", tmp_path / "t.zarr", "--inputs", "c0", "--absent-chunks", "fill")
    assert useless.exit_code == InputError.exit_code and "--absent-chunks" in useless.stderr
    # A job that reads the store itself is told the same.
    with pytest.raises(InputError, match="--absent-chunks fill"):
        open_dataset(path, inputs="u", targets=None).read(0, 8)


@pytest.mark.parametrize("absent", ["refuse", "fill"])
def test_a_damaged_chunk_is_refused_by_name(tmp_path: Path, absent: Any) -> None:
    grid().to_zarr(tmp_path / "g.zarr", consolidated=False, encoding=LAYOUTS["chunked"])
    chunk = tmp_path / "g.zarr" / "sst" / "c" / "1" / "0" / "2"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"array sst, chunk c/1/0/2 is damaged"):
        ingest([tmp_path / "g.zarr"], tmp_path / "s.zarr", inputs=["lat"], targets=["sst"], absent_chunks=absent)
    assert not (tmp_path / "s.zarr").exists()
    # What is not asked for is no concern.
    assert ingest([tmp_path / "g.zarr"], tmp_path / "s.zarr", inputs=["lat"], targets=["mask"]) == 35


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_xarray_fills_chunks_alike(tmp_path: Path, zarr_format: Any) -> None:
    """In v2 the fill value of an array is its _FillValue, so NaN; in v3 only the attribute is."""
    data = xr.Dataset({"u": (("y", "x"), np.ones((4, 4)))}, {"x": np.arange(4.0), "y": np.arange(4.0)})
    data.to_zarr(
        tmp_path / "g.zarr",
        zarr_format=zarr_format,
        consolidated=False,
        encoding={"u": {"chunks": (2, 2), "_FillValue": -1.0}},
    )
    for lost in (tmp_path / "g.zarr" / "u").rglob("0.1" if zarr_format == 2 else "c/0/1"):
        lost.unlink()
    ingest([tmp_path / "g.zarr"], tmp_path / "s.zarr", inputs=["x", "y"], targets=["u"], absent_chunks="fill")
    wanted = xr.open_zarr(tmp_path / "g.zarr", consolidated=False).u.values.ravel()
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr").read(0, 16)[1][:, 0], wanted)


def write_words(path: Path, zarr_format: Any, kind: str) -> list[str]:
    words = ["red", "blue", "red", "grün", ""] * 4
    values: Array = np.array(words, object if kind == "any" else "U5")
    values = np.char.encode(values, "utf-8") if kind == "bytes" else values
    data = xr.Dataset({"word": ("row", values), "x": ("row", np.arange(20.0)), "code": ("row", np.arange(20) % 3)})
    data.to_zarr(path, zarr_format=zarr_format, consolidated=False, encoding={"word": {"chunks": (6,)}})
    return words


@IGNORE_TEXT
@FORMATS
@pytest.mark.parametrize("kind", ["any", "fixed", "bytes"])
def test_text_is_categories_classes_and_groups(tmp_path: Path, zarr_format: Any, kind: str) -> None:
    words = write_words(tmp_path / "g.zarr", zarr_format, kind)
    ingest([tmp_path / "g.zarr"], tmp_path / "a.zarr", inputs=["x", "word"])
    dataset = open_dataset(tmp_path / "a.zarr", targets=None)
    assert dataset.input_columns == ("x", "word=blue", "word=grün", "word=red")
    wanted = [float(word == "red") if word else np.nan for word in words]
    np.testing.assert_array_equal(dataset.read(0, 20)[0][:, 3], wanted)

    ingest([tmp_path / "g.zarr"], tmp_path / "b.zarr", inputs=["x"], classes="word", groups="code")
    dataset = open_dataset(tmp_path / "b.zarr", targets=Classes("classes"), groups="groups")
    assert dataset.labels == ("red", "blue", "grün")
    codes = [("red", "blue", "grün").index(word) if word else -1 for word in words]
    np.testing.assert_array_equal(dataset.codes(0, 20), codes)

    ingest([tmp_path / "g.zarr"], tmp_path / "c.zarr", inputs=["x"], groups="word")
    groups = open_dataset(tmp_path / "c.zarr", targets=None, groups="groups").block(0, 20).groups
    assert groups is not None and len({*zip(groups.tolist(), words, strict=True)}) == len(set(words))


@IGNORE_TEXT
@FORMATS
@pytest.mark.parametrize("kind", ["any", "fixed", "bytes"])
def test_text_of_a_store_by_others_is_classes(tmp_path: Path, zarr_format: Any, kind: str) -> None:
    words = write_words(tmp_path / "g.zarr", zarr_format, kind)
    dataset = open_dataset(tmp_path / "g.zarr", inputs="x", targets=Classes("word"))
    assert dataset.labels == ("blue", "grün", "red")
    Y = dataset.read(3, 17)[1]
    wanted = [("blue", "grün", "red").index(word) if word else -1 for word in words[3:17]]
    np.testing.assert_array_equal(dataset.codes(3, 17), wanted)
    assert np.isnan(Y[np.array(wanted) < 0]).all()


def test_a_source_is_known_by_its_values(tmp_path: Path) -> None:
    """Rechunked and in the other format it is the same source."""
    grid().to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False)
    grid().to_zarr(tmp_path / "b.zarr", zarr_format=2, consolidated=False, encoding={"sst": {"chunks": (1, 2, 3)}})
    (grid() + 1e-9).to_zarr(tmp_path / "c.zarr", consolidated=False)
    columns: Any = {"inputs": ["lat", "lon"], "targets": ["sst"]}
    ingest([tmp_path / "a.zarr"], tmp_path / "s.zarr", **columns)
    with pytest.raises(InputError, match="would be there twice"):
        ingest([tmp_path / "b.zarr"], tmp_path / "s.zarr", **columns, append=True)
    assert ingest([tmp_path / "c.zarr"], tmp_path / "s.zarr", **columns, append=True) == 420


def test_what_is_no_group_of_others_is_refused(tmp_path: Path) -> None:
    grid().to_zarr(tmp_path / "g.zarr", consolidated=False)
    ingest([tmp_path / "g.zarr"], tmp_path / "s.zarr", inputs=["lat"], targets=["mask"])
    (tmp_path / "empty").mkdir()
    for source, words in (("s.zarr", "is a data set"), ("g.zarr/sst", "single Zarr array"), ("empty", "got a folder")):
        with pytest.raises(InputError, match=words):
            ingest([tmp_path / source], tmp_path / "t.zarr", inputs=["lat"])
    (tmp_path / "g.zarr" / "sst" / "zarr.json").write_text("{")
    assert ingest([tmp_path / "g.zarr"], tmp_path / "t.zarr", inputs=["lat"], targets=["mask"]) == 35
    with pytest.raises(InputError, match=r"sst.*cannot be read as JSON"):
        ingest([tmp_path / "g.zarr"], tmp_path / "u.zarr", inputs=["lat"], targets=["sst"])


@pytest.mark.parametrize("targets", ["sst", "mask", Classes("mask")])
def test_a_grid_that_is_opened_as_rows_is_refused_by_the_command_that_makes_them(tmp_path: Path, targets: Any) -> None:
    """Of three dimensions; or of two, as lat and lon may have one length by chance."""
    grid().isel(lon=slice(5)).to_zarr(tmp_path / "a grid.zarr", consolidated=False)
    with pytest.raises(InputError, match="dorff ingest") as caught:
        open_dataset(tmp_path / "a grid.zarr", inputs=["lat", "lon"], targets=targets)
    command = shlex.split(re.findall("`(.*)`", str(caught.value))[0])
    options = dict(zip(command[4::2], command[5::2], strict=True))
    made = ingest(
        [command[2]],
        tmp_path / command[3],
        inputs=options["--inputs"].split(","),
        targets=options["--targets"].split(",") if "--targets" in options else (),
        classes=options.get("--classes"),
    )
    assert made == (150 if targets == "sst" else 25)


def test_a_chunk_that_is_longer_than_it_says_is_no_source(tmp_path: Path) -> None:
    data = xr.Dataset({"u": (("y", "x"), np.ones((4, 4)))}, {"y": np.arange(4.0), "x": np.arange(4.0)})
    data.to_zarr(tmp_path / "g.zarr", zarr_format=2, consolidated=False, encoding={"u": {"compressors": Zlib()}})
    (tmp_path / "g.zarr" / "u" / "0.0").write_bytes(zlib.compress(bytes(2**22)))
    with pytest.raises(InputError, match=r"array u, chunk 0\.0 is damaged"):
        ingest([tmp_path / "g.zarr"], tmp_path / "s.zarr", inputs=["x", "y"], targets=["u"])
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("layout", [{"zarr_format": 2}, {"zarr_format": 3}, {"shards": (20, 2)}])
@pytest.mark.parametrize(("targets", "weights"), [("y", None), (None, "w"), (Classes("label"), "w")])
def test_the_remedy_for_chunks_that_were_left_out_can_be_followed(
    tmp_path: Path, layout: dict[str, Any], targets: Any, weights: str | None
) -> None:
    shards = layout.get("shards")
    group = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=layout.get("zarr_format", 3))
    rows = np.arange(1.0, 61)
    rows[20:40] = 0
    arrays = {"x": np.column_stack([rows, rows]), "y": rows, "w": rows, "label": rows.astype("i4") % 3}
    for name, values in arrays.items():
        group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(10, 2)[: values.ndim],
            shards=None if shards is None else shards[: values.ndim],
            fill_value=0,
            config={"write_empty_chunks": False},
        )
        group[name][...] = values
    with pytest.raises(InputError, match=r"missing.*write empty chunks") as caught:
        dataset = open_dataset(tmp_path / "s.zarr", targets=targets, weights=weights)
        dataset.block(0, 60)
    match = re.search("`(dorff ingest [^`]*)`.*its arrays: ([^)]*)", str(caught.value))
    assert match is not None, caught.value
    _, *words = shlex.split(match[1].replace("ROWS.zarr", str(tmp_path / "rows.zarr")))
    assert call(*words).exit_code == 0
    _, *target = match[2].split(", ")
    names = Classes("classes") if target == ["classes"] else target or None
    copied = open_dataset(tmp_path / "rows.zarr", targets=names, weights="weights" if weights else None).block(0, 60)
    np.testing.assert_array_equal(copied.X, arrays["x"])
    if weights:
        np.testing.assert_array_equal(copied.weights, rows)


def test_chunks_of_data_sets_and_graphs_are_not_copied_by_ingest(tmp_path: Path) -> None:
    """It does not read them, and a data set leaves no chunk out."""
    np.save(tmp_path / "a.npy", np.arange(60.0).reshape(30, 2))
    store = tmp_path / "s.zarr"
    ingest([tmp_path / "a.npy"], store, inputs=["c0"], targets=["c1"], shard_rows=10)
    next((store / "x" / "c" / "1").iterdir()).unlink()
    with pytest.raises(InputError, match=r"is missing.*restore them from a copy") as caught:
        open_dataset(store).read(0, 30)
    assert "dorff ingest" not in str(caught.value) and "other writers" not in str(caught.value)
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in "ij":
        group.create_array(name, shape=(30,), dtype="i8", chunks=(10,), fill_value=0)
    with pytest.raises(InputError, match=r"missing.*write empty chunks") as caught:
        open_graph(tmp_path / "g.zarr").read(0, 30)
    assert "dorff ingest" not in str(caught.value)
