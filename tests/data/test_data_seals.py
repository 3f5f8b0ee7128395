"""The checksums of zarr.json: no flipped bit there changes what is read, and other programs may still write it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from dorff.data import Classes, Dataset, ingest, open_dataset, trim, verify
from dorff.data.array_files import Fault
from dorff.data.layout import has_seal, parse
from dorff.errors import InputError

N, SHARD = 40, 16
RNG = np.random.default_rng(5)
COLUMNS: dict[str, Any] = {"inputs": ["a", "b"], "targets": ["y"], "classes": "kind", "weights": "w", "groups": "g"}
ARRAYS = ("x", "y", "classes", "weights", "groups")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Inputs, targets, weights, groups, and labels of which one is not ASCII."""
    columns = {name: RNG.standard_normal(N) for name in "aby"}
    kind = np.array(["Å-1", "b2", "b3"])[np.arange(N) % 3]
    np.savez(tmp_path / "s.npz", **columns, kind=kind, w=np.ones(N), g=np.arange(N) // 7)
    ingest([tmp_path / "s.npz"], tmp_path / "s.zarr", **COLUMNS, shard_rows=SHARD)
    return tmp_path / "s.zarr"


def opened(store: Path) -> Dataset:
    """With all that there is."""
    return open_dataset(store, inputs=["x", "y"], targets=Classes("classes"), weights="w", groups="g")


def flips(whole: bytes) -> Iterator[tuple[int, bytes]]:
    """The bytes with each bit flipped in turn."""
    for place in range(len(whole)):
        for bit in range(8):
            yield place, whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]


def metadata(store: Path) -> list[Path]:
    """Every zarr.json."""
    return [store / "zarr.json", *(store / name / "zarr.json" for name in ARRAYS)]


def attributes_of(content: dict[str, Any]) -> dict[str, Any]:
    """A zarr.json's attributes, none where they are no object."""
    found = content.get("attributes")
    return found if isinstance(found, dict) else {}


def test_no_bit_of_any_metadata_can_flip_unnoticed(store: Path) -> None:
    """Refused, without its seal (which its group or arrays tell), or of the same content."""
    for path in metadata(store):
        whole = path.read_bytes()
        content, refused = parse(whole, path), 0
        assert has_seal(content["attributes"])
        for place, text in flips(whole):
            try:
                found = parse(text, path)
            except InputError:
                refused += 1
                continue
            assert not has_seal(attributes_of(found)) or found == content, (path, place, whole[place : place + 20])
        assert refused > 7 * len(whole)


def test_flips_are_refused_where_a_store_is_opened_and_listed(store: Path) -> None:
    """Some of them, through the files; those of the words that the checks themselves go by, each bit."""
    rng, block = np.random.default_rng(0), opened(store).block(0, N).checksums()
    for path in metadata(store):
        whole = path.read_bytes()
        every = list(flips(whole))
        words = [whole.index(word) + 1 for word in (b'"attributes"', b'"dorff"', b'"crc32"', b'"node_type"')]
        chosen = [every[8 * at + bit] for at in words for bit in (0, 5)]
        for _, text in [*chosen, *(every[at] for at in rng.choice(len(every), 6, replace=False))]:
            path.write_bytes(text)
            faults = verify(store)
            assert len(faults) == 0 or all((f.chunk, f.kind) == ("zarr.json", "damaged") for f in faults)
            try:
                found = opened(store).block(0, N).checksums()
            except InputError:
                assert faults
            else:
                assert not faults and found == block
        path.write_bytes(whole)
    assert verify(store) == []


def test_a_seal_that_is_lost_is_missed(store: Path) -> None:
    for path in metadata(store):
        whole = path.read_text()
        path.write_text(whole.replace('"dorff"', '"dorfg"'))
        with pytest.raises(InputError, match=r"zarr\.json: is damaged, it has no checksum.*restore it from a copy"):
            opened(store)
        with pytest.raises(InputError, match=r"no checksum|not made by"):
            trim(store, keep=1)
        with pytest.raises(InputError, match=r"no checksum|not made by"):
            ingest([store.with_suffix(".npz")], store, **COLUMNS, append=True)
        name = str(path.parent.relative_to(store)).strip(".")
        faults = [Fault(array, "zarr.json", "damaged") for array in ((name,) if name else sorted(ARRAYS))]
        assert verify(store) == faults
        path.write_text(whole)


def test_the_message_says_which_file_and_what_to_do(store: Path) -> None:
    path = store / "x" / "zarr.json"
    path.write_text(path.read_text().replace("40", "48"))
    with pytest.raises(InputError, match=r"x/zarr\.json: is damaged, its checksum .* remove the attribute dorff"):
        opened(store)
    assert verify(store) == [Fault("x", "zarr.json", "damaged")]
    (store.parent / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    assert verify(store.parent) == [Fault("s.zarr/x", "zarr.json", "damaged")]


def test_zarr_may_write_the_metadata_again(store: Path) -> None:
    block = opened(store).block(0, N).checksums()
    before = {path: path.read_bytes() for path in metadata(store)}
    group = zarr.open_group(store, mode="a")
    group.attrs["title"] = "drifters"
    for name in ARRAYS:
        group[name].attrs["units"] = {"of": [1.0, None], "note": "km"}
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(store, zarr_format=3)
    group.create_array("mine", data=np.arange(N))
    assert all(path.read_bytes() != content for path, content in before.items())
    assert verify(store) == [] and opened(store).block(0, N).checksums() == block
    assert open_dataset(store, inputs=["x", "mine"], targets=None).read(7, 8)[0][0, 2] == 7
    assert ingest([store.with_suffix(".npz")], store, **COLUMNS, append=True, again=True) == 2 * N
    assert verify(store) == [] and opened(store).block(0, N).checksums() == block
    content = parse((store / "zarr.json").read_bytes(), store)
    assert content["attributes"]["title"] == "drifters" and has_seal(content["attributes"])


def test_xarray_reads_and_changes_attributes(store: Path) -> None:
    with xr.open_zarr(store, consolidated=False, chunks=None) as found:
        np.testing.assert_array_equal(found["x"].values, opened(store).read(0, N)[0][:, :2])
        attributes = found.attrs
    more = xr.Dataset(attrs={**attributes, "history": "looked at"})
    more.to_zarr(store, mode="a", consolidated=False)
    assert verify(store) == [] and opened(store).rows == N
    assert parse((store / "zarr.json").read_bytes(), store)["attributes"]["history"] == "looked at"


def test_rows_that_another_program_adds_are_refused(store: Path) -> None:
    x = zarr.open_group(store, mode="a")["x"]
    assert isinstance(x, zarr.Array)
    x.append(np.ones((3, 2)))
    with pytest.raises(InputError, match="another program changed or copied the rows on purpose"):
        opened(store)


def test_stores_without_seals_open(store: Path, tmp_path: Path) -> None:
    """Those of others, and those of dorff before there were seals: neither group nor arrays have one."""
    block = opened(store).block(0, N).checksums()
    for path in metadata(store):
        content = json.loads(path.read_text())
        del content["attributes"]["dorff"]["crc32"]
        path.write_text(json.dumps(content))
    assert verify(store) == [] and opened(store).block(0, N).checksums() == block
    ingest([store.with_suffix(".npz")], store, **COLUMNS, append=True, again=True)
    assert verify(store) == [] and opened(store).block(0, N).checksums() == block
    assert not has_seal(parse((store / "zarr.json").read_bytes(), store)["attributes"])
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array("x", data=np.ones((9, 2)))
    assert open_dataset(tmp_path / "other.zarr", targets=None).rows == 9
    shutil.rmtree(tmp_path / "other.zarr")


def test_appends_and_trims_seal_again(store: Path) -> None:
    ingest([store.with_suffix(".npz")], store, **COLUMNS, append=True, again=True)
    trim(store, keep=20)
    for path in metadata(store):
        assert has_seal(parse(path.read_bytes(), path)["attributes"])
    assert verify(store) == [] and opened(store).first == 48
