"""Class labels: every reader, type and gap; appended, cut, refused; read as one-hot targets of any store."""

import gzip
import json
import pickle
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from cases import unsourced
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

from dorff.data import Classes, Label, class_counts, ingest, open_dataset, verify
from dorff.data.layout import sealed
from dorff.errors import InputError

RNG = np.random.default_rng(3)
X = np.round(RNG.standard_normal(300), 6)
PLACES = RNG.integers(-1, 3, 300)  # -1: no label
PLACES[:5] = [2, -1, 0, 2, 1]
ORDER = [2, 0, 1]  # of first appearance
KINDS: dict[str, tuple[Label, Label, Label]] = {
    "text": ("Ähre", "b, c", "d "),
    "whole": (7, -1, 10**15),
    "real": (0.5, -1e-7, 2),
    "boolean": (True, False, True),
}


def column(kind: str, *, none: object = None) -> list[Any]:
    """The labels of all rows, `none` where there is none."""
    return [none if k < 0 else KINDS[kind][k] for k in PLACES]


def write_csv(path: Path, values: list[Any], *, header: bool = True, spell: Callable[[Any], str] = str) -> Path:
    """The inputs and labels as columns x and c; text is quoted."""
    fields = ['"' + v + '"' if isinstance(v, str) else "" if v is None else spell(v) for v in values]
    text = "x,c\n" * header + "".join(f"{x!r},{f}\n" for x, f in zip(X.tolist(), fields, strict=False))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_parquet(path: Path, values: list[Any]) -> Path:
    pq.write_table(pa.table({"x": X[: len(values)], "c": values}), path, row_group_size=70)
    return path


def labels_of(values: list[Any]) -> tuple[Label, ...]:
    """The labels that a column has, in order of first appearance."""
    return tuple(dict.fromkeys(v.strip() if isinstance(v, str) else v for v in values if v is not None))


def check(store: Path, values: list[Any], *, labels: tuple[Label, ...] | None = None) -> None:
    """The store reads as the one-hot rows of the values."""
    wanted = labels_of(values) if labels is None else labels
    dataset = open_dataset(store, inputs="x", targets=Classes("classes"))
    assert dataset.labels is not None and list(map(repr, dataset.labels)) == list(map(repr, wanted))
    assert dataset.target_columns == tuple(map(str, wanted)) and dataset.q == len(wanted)
    found, Y = dataset.read(0, dataset.n)
    np.testing.assert_array_equal(found[:, 0], np.resize(X, len(values)))
    np.testing.assert_array_equal(Y, dense([v.strip() if isinstance(v, str) else v for v in values], dataset.labels))
    assert class_counts(dataset) == tuple(int(np.nansum(Y[:, j])) for j in range(len(wanted)))
    assert verify(store) == []


def dense(values: list[Any], labels: tuple[Label, ...]) -> Any:
    """One row a value: one-hot, NaN where there is none."""
    return np.array([[np.nan if v is None else float(v == label) for label in labels] for v in values])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["c.csv", "c.csv.gz", "headless.csv", "c.parquet", "category.parquet"])
def test_tables(tmp_path: Path, name: str, kind: str) -> None:
    values, path = column(kind), tmp_path / name
    if name == "c.parquet":
        write_parquet(path, values)
    elif name == "category.parquet":  # pandas' categories: some unused, in an order of their own
        dictionary = pa.array([KINDS[kind][0], *reversed(dict.fromkeys(KINDS[kind]))])
        place = {v: i for i, v in enumerate(dictionary.to_pylist())}
        index = pa.array([None if v is None else place[v] for v in values], pa.int32())
        write_parquet(path, pa.DictionaryArray.from_arrays(index, dictionary))
    else:
        write_csv(path, values, header=name != "headless.csv")
    x, c = ("c0", "c1") if name == "headless.csv" else ("x", "c")
    assert ingest([path], tmp_path / "s.zarr", inputs=[x], classes=c, shard_rows=64) == 300
    check(tmp_path / "s.zarr", values)


@pytest.mark.parametrize(
    ("spell", "values"),
    [
        (lambda v: f"{float(v):.18e}", [1, 2, None, 0.5, 1]),  # numpy.savetxt
        (lambda v: f"{float(v)}", [1, 2, None, -3]),  # pandas, of whole numbers with gaps
        (lambda v: str(v).lower(), [True, None, False]),
        (lambda v: str(v).upper(), [False, True]),
        (lambda v: f"  {v} ", [1, 2]),
    ],
)
def test_spellings_of_numbers_and_booleans_in_text(
    tmp_path: Path, spell: Callable[[Any], str], values: list[Any]
) -> None:
    ingest([write_csv(tmp_path / "a.csv", values, spell=spell)], tmp_path / "s.zarr", inputs=["x"], classes="c")
    wanted = labels_of(values)
    assert open_dataset(tmp_path / "s.zarr", targets=Classes("classes")).labels == wanted
    assert [type(v) for v in open_dataset(tmp_path / "s.zarr", targets=Classes("classes")).labels or ()] == [
        type(v) for v in wanted
    ]


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        (["007", "7", "07"], ("007", "7", "07")),  # names that only look like numbers
        (["1.1", "1.10"], ("1.1", "1.10")),
        (["1e5", "100000", "9" * 40], ("1e5", "100000", "9" * 40)),
        (["1", "1.0", "2"], (1, 2)),
        (["3", "A", "True"], ("3", "A", "True")),  # kinds mixed are all text
        (["1", "0.5"], (1, 0.5)),
        (["NA", "nan", "null", "", '""', " ", "x"], ("x",)),
        (["inf", "-0"], ("inf", "0")),
        ([" a", "a ", "a"], ("a",)),
    ],
)
def test_what_a_field_means(tmp_path: Path, fields: list[str], labels: tuple[Label, ...]) -> None:
    (tmp_path / "a.csv").write_text("x,c\n" + "".join(f"1,{field}\n" for field in fields))
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["x"], classes="c")
    found = open_dataset(tmp_path / "s.zarr", targets=Classes("classes")).labels
    assert found is not None and list(map(repr, found)) == list(map(repr, labels))


ARRAYS: dict[str, tuple[Any, tuple[Label, ...]]] = {
    "U": (np.array(["b", "", "aa", "b"]), ("b", "aa")),
    ">U": (np.array(["b", "é", "b"], ">U3"), ("b", "é")),
    "S": (np.array([b"b", b"", "é".encode()]), ("b", "é")),
    "i1": (np.array([3, -1, 3], "i1"), (3, -1)),
    ">i8": (np.array([2**60, 2**60 + 1], ">i8"), (2**60, 2**60 + 1)),
    "u8": (np.array([2**63, 1], "u8"), (2**63, 1)),
    "bool": (np.array([True, False]), (True, False)),
    "f4": (np.array([1, np.nan, 0.5, -0.0, 0.0], "f4"), (1, 0.5, 0)),
    "f2": (np.array([1, np.nan, 0.5], "f2"), (1, 0.5)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ("a.npz", "a.npy", "a.h5") for kind in ARRAYS if (name, kind[-1]) != ("a.h5", "U")],
)  # HDF5 has no type for NumPy's text
def test_arrays(tmp_path: Path, name: str, kind: str) -> None:
    values, labels = ARRAYS[kind]
    path, classes = tmp_path / name, "c"
    if name == "a.npz":
        np.savez_compressed(path, x=np.ones(len(values)), c=values)
    elif name == "a.npy":
        np.save(path, values)
        np.save(tmp_path / "x.npy", np.ones(len(values)))
        classes = "c1"
    else:
        with h5py.File(path, "w") as file:
            file["x"], file["c"] = np.ones(len(values)), values
    source, inputs = (f"{tmp_path}/x.npy+{path}", "c0") if name == "a.npy" else (str(path), "x")
    ingest([source], tmp_path / "s.zarr", inputs=[inputs], classes=classes)
    dataset = open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
    assert dataset.labels is not None and list(map(repr, dataset.labels)) == list(map(repr, labels))
    assert len(dataset.read(0, dataset.n)[1]) == len(values)


def test_a_column_of_a_matrix(tmp_path: Path) -> None:
    """A table of numbers without names, the class first: as NPY, in either order of axes, and NPZ."""
    table = np.column_stack([PLACES.astype(float), X])
    table[PLACES < 0, 0] = np.nan
    np.save(tmp_path / "c.npy", table)
    np.save(tmp_path / "f.npy", np.asfortranarray(table))
    np.savez(tmp_path / "c.npz", c=table)
    np.savez(tmp_path / "f.npz", c=np.asfortranarray(table))
    for source in ("c.npy", "f.npy", "c.npz", "f.npz"):
        store = tmp_path / f"{source}.zarr"
        ingest([tmp_path / source], store, inputs=["c1"], classes="c0", shard_rows=64)
        check(store, [None if k < 0 else k for k in PLACES.tolist()])


def test_netcdf_and_hdf5(tmp_path: Path) -> None:
    """Text of both kinds, characters, packed numbers with a fill value."""
    text = column("text", none="")
    fixed = np.array([v.encode() for v in text])
    characters = fixed.view("S1").reshape(len(fixed), -1)
    codes = np.where(PLACES < 0, -99, PLACES).astype("i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["fixed"], file["characters"] = X, fixed, characters
        file.create_dataset("free", data=text, dtype=h5py.string_dtype())
        file["packed"] = codes
        file["packed"].attrs["_FillValue"] = np.int16(-99)
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        for name, size in (("row", 300), ("length", characters.shape[1])):
            file.createDimension(name, size)
        file.createVariable("x", "d", ("row",))[:] = X
        file.createVariable("characters", "c", ("row", "length"))[:] = characters
        packed = file.createVariable("packed", "h", ("row",))
        packed[:], packed._FillValue = codes, np.int16(-99)
    for source, name in [(s, n) for s in ("a.h5", "a.nc") for n in ("fixed", "free", "characters", "packed")]:
        if source == "a.nc" and name in ("fixed", "free"):
            continue
        store = tmp_path / f"{source}-{name}.zarr"
        ingest([tmp_path / source], store, inputs=["x"], classes=name, shard_rows=64)
        whole = [None if k < 0 else k for k in PLACES.tolist()]
        check(store, whole if name == "packed" else column("text"))


def test_types_of_parquet(tmp_path: Path) -> None:
    import datetime

    columns: dict[str, tuple[Any, tuple[Label, ...]]] = {
        "decimal": (pa.array([Decimal("1.50"), Decimal("2.00"), None]), (1.5, 2)),
        "date": (pa.array([datetime.date(2024, 1, 2), None, None]), ("2024-01-02",)),
        "bytes": (pa.array([b"a", b"b", b"a"]), ("a", "b")),
        "large": (pa.array(["a", None, "nan"], pa.large_string()), ("a", "nan")),
        "half": (pa.array(np.array([0.5, 1, np.nan], "f2")), (0.5, 1)),
        "uint": (pa.array([2**64 - 1, None, 0], pa.uint64()), (2**64 - 1, 0)),
    }
    pq.write_table(pa.table({"x": [1.0, 2, 3]} | {k: v for k, (v, _) in columns.items()}), tmp_path / "a.parquet")
    for name, (_, labels) in columns.items():
        ingest([tmp_path / "a.parquet"], tmp_path / f"{name}.zarr", inputs=["x"], classes=name)
        found = open_dataset(tmp_path / f"{name}.zarr", targets=Classes("classes")).labels
        assert found is not None and list(map(repr, found)) == list(map(repr, labels))


def test_side_by_side(tmp_path: Path) -> None:
    """The labels in a file of their own, whose blocks end at other rows."""
    values = [v for _ in range(200) for v in column("text")]
    table = np.column_stack([np.resize(X, len(values))] * 9)
    np.save(tmp_path / "x.npy", table)
    write_csv(tmp_path / "c.csv", values)
    (tmp_path / "c.csv").write_text("c\n" + "".join(f'"{v or ""}"\n' for v in values))
    ingest([f"{tmp_path}/x.npy+{tmp_path}/c.csv"], tmp_path / "s.zarr", inputs=["c0"], targets=["c8"], classes="c")
    check(tmp_path / "s.zarr", values)
    X_, Y = open_dataset(tmp_path / "s.zarr").read(0, len(values))
    np.testing.assert_array_equal(X_, Y)


POOL: list[list[Any]] = [["a", "b", None, "Ä"], [1, 2, 3, None], [1, "a", 2.5, True], [0.5, 1, None, 2.25]]


@settings(max_examples=12)
@given(
    values=st.sampled_from(POOL).flatmap(lambda pool: st.lists(st.sampled_from(pool), min_size=40, max_size=40)),
    cuts=st.lists(st.tuples(st.integers(1, 39), st.booleans()), max_size=4, unique_by=lambda cut: cut[0]),
)
def test_any_division_into_sources_and_appends_gives_the_same_store(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], cuts: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    columns: dict[str, Any] = {"inputs": ["x"], "targets": ["=1"], "classes": "c"}

    def save(name: str, start: int, stop: int) -> Path:
        path = folder / f"{name}.csv"
        rows = "".join(f"{i},{'' if values[i] is None else values[i]}\n" for i in range(start, stop))
        path.write_text("x,c\n" + rows)
        return path

    ingest([save("whole", 0, 40)], folder / "one.zarr", **columns, shard_rows=16)
    calls: list[list[Path]] = [[]]
    for (start, appended), (stop, _) in pairwise([(0, False), *sorted(cuts), (40, False)]):
        if appended:
            calls.append([])
        calls[-1].append(save(str(start), start, stop))
    for i, sources in enumerate(calls):
        ingest(sources, folder / "many.zarr", **columns, shard_rows=None if i else 16, append=i > 0)
    assert unsourced(folder / "one.zarr") == unsourced(folder / "many.zarr")


def files(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


def test_an_append_cut_at_any_write_leaves_the_old_rows_and_labels(tmp_path: Path) -> None:
    """The commit is a sequence of renames; each prefix of it is made here, as a cut would leave it."""
    first, later = ["a", "b", None] * 20, ["c", "a", "d"] * 20
    head, tail = write_csv(tmp_path / "head.csv", first), write_csv(tmp_path / "tail.csv", later)
    old, new, store = tmp_path / "old.zarr", tmp_path / "new.zarr", tmp_path / "s.zarr"
    columns: dict[str, Any] = {"inputs": ["x"], "classes": "c"}
    ingest([head], old, **columns, shard_rows=16)
    ingest([head, tail], new, **columns, shard_rows=16)
    held = open_dataset(old, targets=Classes("classes"))
    moved = [f"{a}/c/{k}/0" for a in ("x", "classes") for k in range(3, 8)] + ["x/zarr.json", "classes/zarr.json"]
    for count in range(len(moved) + 1):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(old, store)
        for name in moved[:count]:
            (store / name).parent.mkdir(exist_ok=True)
            shutil.copy(new / name, store / name)
        check(store, first)
    before = open_dataset(store, targets=Classes("classes"))
    assert before.rows_spec() == held.rows_spec()
    ingest([tail], store, **columns, append=True)
    assert files(store) == files(new)
    np.testing.assert_array_equal(before.read(0, 60)[1], dense(first, ("a", "b")))  # opened before, read after
    assert class_counts(before) == (20, 20)
    after = open_dataset(store, targets=Classes("classes"))
    assert after.labels == ("a", "b", "c", "d") and class_counts(after) == (40, 20, 20, 20)
    again = tmp_path / "again.zarr"
    ingest([head, head], again, **columns, shard_rows=16, again=True)
    known = open_dataset(again, targets=Classes("classes"))
    assert known.rows_spec() == held.rows_spec() != after.rows_spec()  # new labels are another question, counts not


KILLED = """
import os, signal, sys
from dorff.data import ingest
ingest(sys.argv[2:], sys.argv[1], inputs=["x"], classes="c", append=True, again=True,
       progress=lambda rows: rows > 300 and os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.process
def test_killed_in_an_append_and_run_again(tmp_path: Path) -> None:
    head, tail = write_csv(tmp_path / "a.csv", column("text")), write_csv(tmp_path / "b.csv", column("whole"))
    store, uncut = tmp_path / "s.zarr", tmp_path / "uncut.zarr"
    columns: dict[str, Any] = {"inputs": ["x"], "classes": "c"}
    ingest([head, tail, tail], uncut, **columns, shard_rows=64, again=True)
    ingest([head], store, **columns, shard_rows=64)
    before = files(store)
    assert subprocess.run([sys.executable, "-c", KILLED, store, tail, tail], check=False).returncode == -signal.SIGKILL
    assert files(store) == before and (tmp_path / ".s.zarr.partial").exists()
    check(store, column("text"))
    ingest([tail, tail], store, **columns, append=True, again=True)
    assert files(store) == files(uncut)


def test_too_many_labels_and_what_is_no_label(tmp_path: Path) -> None:
    def refused(message: str, *, classes: str = "c", inputs: tuple[str, ...] = ("x",), **columns: Any) -> None:
        n = len(next(iter(columns.values())))
        pq.write_table(pa.table({"x": np.ones(n)} | columns), tmp_path / "a.parquet")
        with pytest.raises(InputError, match=message) as caught:
            ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", inputs=inputs, classes=classes)
        assert "\n" not in str(caught.value) and not list(tmp_path.glob("*s.zarr*"))

    many = np.arange(10_001)
    refused(r"a\.parquet: column 'c': has more than 10,000 different labels, such as 10000; it looks like", c=many)
    refused("more than 10,000 different labels, such as 'id10000'", c=[f"id{i}" for i in many])
    real = RNG.standard_normal(3000)
    refused("more than 100 different labels that are no whole numbers, .* looks like a target", c=real)
    refused("a label has 1,001 characters", c=["x" * 1001])
    refused("wanted labels, got inf", c=[1.5, np.inf])
    refused("is not UTF-8", c=[b"\xff"])
    refused("holds list<", c=[[1], [2]])
    refused("'c' is among the inputs too", c=[1, 2], inputs=("x", "c"))
    refused("wanted one column of labels, got a constant, =0", c=[1], classes="=0")
    refused("has no column 'd'", c=[1], classes="d")
    refused("cannot be read as CSV|has no column", c=[1], classes="e")
    pq.write_table(pa.table({"x": np.ones(10_000), "c": many[:-1]}), tmp_path / "b.parquet")
    ingest([tmp_path / "b.parquet"], tmp_path / "s.zarr", inputs=["x"], classes="c")
    before = files(tmp_path / "s.zarr")
    dataset = open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
    assert dataset.q == 10_000 and dataset.shard_rows % dataset.unit_rows == 0
    assert dataset.unit_rows * dataset.q * 8 <= 16 * 2**20
    np.testing.assert_array_equal(np.flatnonzero(dataset.read(9_990, 10_000)[1]), np.arange(10) * 10_001 + 9_990)
    pq.write_table(pa.table({"x": np.ones(1), "c": [-1]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="more than 10,000 different labels"):
        ingest([tmp_path / "c.parquet"], tmp_path / "s.zarr", inputs=["x"], classes="c", append=True)
    assert files(tmp_path / "s.zarr") == before


def test_files_without_labels(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "o.npz", x=np.ones(2), c=np.array(["a", None], dtype=object), w=np.ones((2, 3)), z=np.ones(2) * 1j
    )
    for classes, message in (("c", r"holds object, .*\.astype\(str\)"), ("w", "got 3 columns"), ("z", "complex128")):
        with pytest.raises(InputError, match=message):
            ingest([tmp_path / "o.npz"], tmp_path / "s.zarr", inputs=["x"], classes=classes)
    np.save(tmp_path / "o.npy", np.array(["a", None], dtype=object))
    with pytest.raises(InputError, match=r"o\.npy: column 'c0' holds object, .*\.astype\(str\)"):
        ingest([f"{tmp_path}/o.npz+{tmp_path}/o.npy"], tmp_path / "s.zarr", inputs=["x"], classes="c0")
    (tmp_path / "b.csv").write_bytes(b"x,c\n1,a\n2,\xff\n")
    with pytest.raises(InputError, match=r"b\.csv: column 'c', row 3: is not UTF-8"):
        ingest([tmp_path / "b.csv"], tmp_path / "s.zarr", inputs=["x"], classes="c")
    (tmp_path / "none.csv").write_text("x,c\n1,\n2,NA\n")
    ingest([tmp_path / "none.csv"], tmp_path / "s.zarr", inputs=["x"], classes="c")
    with pytest.raises(InputError, match="array classes: holds no label in any row"):
        open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
    (tmp_path / "some.csv").write_text("x,c\n1,a\n")
    ingest([tmp_path / "some.csv"], tmp_path / "s.zarr", inputs=["x"], classes="c", append=True)
    assert class_counts(open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))) == (1,)
    with pytest.raises(InputError, match="append the same inputs and targets"):
        ingest([tmp_path / "some.csv"], tmp_path / "s.zarr", inputs=["x"], append=True)


def test_damaged_labels(tmp_path: Path) -> None:
    ingest([write_csv(tmp_path / "a.csv", ["a", "b"])], tmp_path / "s.zarr", inputs=["x"], classes="c")
    group = tmp_path / "s.zarr" / "zarr.json"
    whole = json.loads(group.read_text())
    for labels, counts in ((["a"], [1, 1]), (["a", "a"], [1, 1]), (["a", None], [1, 1]), (["a", "b"], [2, 1]), (3, 4)):
        whole["attributes"]["dorff"] |= {"labels": {"classes": labels}, "counts": {"classes": counts}}
        group.write_text(json.dumps(sealed(whole)))
        with pytest.raises(InputError, match=r"attributes dorff\.labels are damaged"):
            open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
        assert [(fault.chunk, fault.kind) for fault in verify(tmp_path / "s.zarr")] == [("zarr.json", "damaged")]
        arrays = json.loads(call("inspect", tmp_path / "s.zarr", "--json").stdout)["arrays"]
        assert "damaged" in arrays[0]["problem"] and arrays[1]["rows"] == 2


def test_damaged_codes_are_found_and_never_read(tmp_path: Path) -> None:
    ingest(
        [write_csv(tmp_path / "a.csv", column("text"))], tmp_path / "s.zarr", inputs=["x"], classes="c", shard_rows=64
    )
    dataset = open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
    shard = tmp_path / "s.zarr" / "classes" / "c" / "2" / "0"
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)
    assert [(fault.array, fault.chunk) for fault in verify(tmp_path / "s.zarr")] == [("classes", "c/2/0[0,0]")]
    assert len(dataset.read(0, 128)[1]) == len(dataset.codes(192, 300)) + 20 == 128
    with pytest.raises(InputError, match=r"array classes, chunk .* is damaged"):
        dataset.read(100, 200)


def test_kinds_that_come_to_differ(tmp_path: Path) -> None:
    """Numbers become text when text comes; the same label is then the same text."""
    np.savez(tmp_path / "a.npz", x=np.ones(3), c=np.array([2, 1, 2]))
    np.savez(tmp_path / "b.npz", x=np.ones(3), c=np.array(["1", "x", "3"]))
    (tmp_path / "c.csv").write_text("x,c\n0,3\n0,2.0\n0,4\n")
    for i, (source, labels) in enumerate(
        {"a.npz": (2, 1), "b.npz": ("2", "1", "x", "3"), "c.csv": ("2", "1", "x", "3", "4")}.items()
    ):
        ingest([tmp_path / source], tmp_path / "s.zarr", inputs=["x"], classes="c", append=i > 0)
        dataset = open_dataset(tmp_path / "s.zarr", targets=Classes("classes"))
        assert dataset.labels == labels
    assert dataset.codes(0, 9).tolist() == [0, 1, 0, 1, 2, 3, 3, 0, 4]


def test_unit_bytes_bounds_what_a_read_takes(tmp_path: Path) -> None:
    rows = 1 << 15
    np.savez(tmp_path / "a.npz", x=np.zeros((rows, 4)), c=np.arange(rows) % 300)
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["x"], classes="c")
    group = zarr.open_group(tmp_path / "s.zarr", mode="a")
    group.create_array("codes", data=(np.arange(rows) % 3).astype("i8"), chunks=(1 << 13,))
    for name in ("classes", "codes"):
        dataset = open_dataset(tmp_path / "s.zarr", targets=Classes(name))
        dataset.read(0, 10)
        tracemalloc.start()
        dataset.read(0, dataset.unit_rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert dataset.unit_bytes() / 4 <= peak <= dataset.unit_bytes()


@settings(max_examples=20)
@given(
    chunk=st.integers(1, 20),
    times=st.integers(1, 3),
    sharded=st.booleans(),
    bounds=st.tuples(*[st.integers(0, 90)] * 2),
)
def test_one_hot_rows_equal_a_dense_twin(
    tmp_path_factory: pytest.TempPathFactory, chunk: int, times: int, sharded: bool, bounds: tuple[int, int]
) -> None:
    """Any run of rows, across shards and chunks, of an array by others; the same rows stored one-hot beside it."""
    path = tmp_path_factory.mktemp("s") / "s"
    options: dict[str, Any] = {"chunks": (chunk,)} | ({"shards": (chunk * times,)} if sharded else {})
    group = zarr.open_group(path, mode="w")
    group.create_array("x", data=X[:90, None], chunks=(7, 1))
    values = PLACES[:90] * 5
    group.create_array("c", data=values, config={"write_empty_chunks": True}, **options)
    group.create_array("y", data=(values[:, None] == [-5, 0, 5, 10]).astype(float), chunks=(90, 4))
    start, stop = sorted(bounds)
    dataset = open_dataset(path, targets=Classes("c"))
    assert dataset.labels == (-5, 0, 5, 10) and dataset.unit_rows % chunk == 0
    X_, Y = dataset.read(start, stop)
    _, dense_twin = open_dataset(path).read(start, stop)
    np.testing.assert_array_equal(Y, dense_twin)
    np.testing.assert_array_equal(X_[:, 0], X[start:stop])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_by_others(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    arrays: dict[str, tuple[Any, tuple[Label, ...], list[int]]] = {
        "u1": (np.array([3, 0, 3, 255], "u1"), (0, 3, 255), [1, 0, 1, 2]),
        "bool": (np.array([True, False, True, True]), (False, True), [1, 0, 1, 1]),
        "U": (np.array(["b", "", "Ä", "b"]), ("b", "Ä"), [0, -1, 1, 0]),
        "S": (np.array([b"b", b"a", b"b", b"c"]), ("a", "b", "c"), [1, 0, 1, 2]),
    }
    group = zarr.open_group(tmp_path / "s", mode="w", zarr_format=zarr_format)
    group.create_array("x", data=np.arange(4.0), config={"write_empty_chunks": True})
    for name, (values, labels, codes) in arrays.items():
        if zarr_format == 3 and name in "US":
            with pytest.warns(Warning, match="specification"):
                group.create_array(name, data=values, chunks=(3,))
                dataset = open_dataset(tmp_path / "s", targets=Classes(name))
        else:
            group.create_array(name, data=values, chunks=(3,))
            dataset = open_dataset(tmp_path / "s", targets=Classes(name))
        assert dataset.labels == labels and list(map(type, dataset.labels)) == list(map(type, labels))
        assert dataset.codes(0, 4).tolist() == codes
        np.testing.assert_array_equal(dataset.read(1, 4)[1], np.array([one_hot(c, len(labels)) for c in codes[1:]]))
        assert class_counts(dataset) == tuple(codes.count(j) for j in range(len(labels)))
        assert pickle.loads(pickle.dumps(dataset)) == dataset
        json.dumps(dataset.rows_spec())
        assert dataset.unit_bytes() > 0 and dataset.stamp(0, 4)


def one_hot(code: int, width: int) -> list[float]:
    return [np.nan if code < 0 else float(j == code) for j in range(width)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_labels_by_the_cf_conventions(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    values = np.array([0.0, np.nan, 2, -1])
    data = xr.Dataset({"x": ("row", X[:4]), "c": ("row", values), "k": ("row", np.array([0, 1, 0, -1]))})
    encoding = {"c": {"dtype": "i2", "_FillValue": -9}}
    data.to_zarr(tmp_path / "s", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    dataset = open_dataset(tmp_path / "s", targets=Classes("c"))
    assert dataset.labels == (-1, 0, 2) and dataset.codes(0, 4).tolist() == [1, -1, 2, 0]
    assert open_dataset(tmp_path / "s", targets=Classes("k")).labels == (-1, 0, 1)


def test_arrays_that_are_no_classes(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "s", mode="w", zarr_format=2)
    group.create_array("x", data=np.ones(10_001))
    group.create_array("many", data=np.arange(10_001))
    group.create_array("big", data=np.full(10_001, 2**60))
    group.create_array("wide", data=np.ones((10_001, 2), "i4"))
    group.create_array("complex", shape=(10_001,), dtype="c16")
    for name, message in (
        ("x", "wanted labels .*, got float64; it looks like a target.*--classes"),
        ("many", "more than 10,000 different values"),
        ("big", "beyond 2"),
        ("wide", "wanted one column of labels, got 2"),
        ("complex", "wanted labels, got type complex128"),
        ("none", "has no array 'none'"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            open_dataset(tmp_path / "s", targets=Classes(name))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="its targets are numbers"):
        open_dataset(tmp_path / "s", targets="x").codes(0, 1)


def test_labels_that_a_model_knows(tmp_path: Path) -> None:
    """A model's labels give the columns, whatever the order of the store's."""
    ingest([write_csv(tmp_path / "a.csv", ["b", "a", None])], tmp_path / "s.zarr", inputs=["x"], classes="c")
    dataset = open_dataset(tmp_path / "s.zarr", targets=Classes("classes", labels=("a", "z", "b")))
    assert dataset.codes(0, 3).tolist() == [2, 0, -1] and class_counts(dataset) == (1, 0, 1)
    assert dataset.q == 3 and dataset.rows_spec()["labels"] == ["a", "z", "b"]
    with pytest.raises(InputError, match=r"holds labels other than the 2 wanted, such as 'b' \(1 in all\)"):
        open_dataset(tmp_path / "s.zarr", targets=Classes("classes", labels=("a", "z")))
    group = zarr.open_group(tmp_path / "t", mode="w")
    group.create_array("x", data=np.ones(3))
    group.create_array("c", data=np.array([5, 3, 5]))
    other = open_dataset(tmp_path / "t", targets=Classes("c", labels=(5, 4, 3)))
    assert other.codes(0, 3).tolist() == [0, 2, 0]
    group.create_array("c", data=np.array([5, 4, 6]), overwrite=True)
    with pytest.raises(InputError, match=r"array c, row 1: holds the label .*4.*, which was not there"):
        other.codes(0, 3)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv", ["b", "a", None, "a"])
    words = ("ingest", "a.csv", "s.zarr", "--inputs", "x", "--classes", "c")
    assert json.loads(call(*words, "--json").stdout) == {
        "rows": 4,
        "store": "s.zarr",
        "classes": {"labels": ["b", "a"], "counts": [1, 2], "missing": 1},
    }
    assert call(*words, "--append", "--again").stdout == "s.zarr: 8 rows, 2 labels, 2 rows without one\n"
    classes = json.loads(call("inspect", "s.zarr", "--json").stdout)["arrays"][0]
    assert (classes["name"], classes["labels"], classes["counts"]) == ("classes", ["b", "a"], [2, 4])
    assert "- b\n" in call("inspect", "s.zarr").stdout
    assert call("verify", "s.zarr").exit_code == 0
    np.savetxt(tmp_path / "r.csv", RNG.standard_normal((200, 2)), delimiter=",", header="x,c", comments="")
    for changed, code, said in (
        (("r.csv", "r.zarr", "--classes", "c"), 3, "looks like a target"),
        (("a.csv", "r.zarr", "--classes", "c,x"), 3, "wanted one column of labels, got 2"),
        (("a.csv", "r.zarr", "--classes", "C"), 3, "has no column 'C'"),
        (("a.csv", "r.zarr", "--classes"), 2, "requires an argument"),
    ):
        result = call("ingest", "--inputs", "x", *changed)
        assert result.exit_code == code and said in result.stderr and not (tmp_path / "r.zarr").exists()


def test_likely_oversights_are_questioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n1,2\n,3\n4,inf\n")
    result = call("ingest", "a.csv", "s.zarr", "--inputs", "x,=0,=0", "--targets", "y", "--json")
    assert json.loads(result.stdout) == {"rows": 3, "store": "s.zarr"}
    assert "=0" not in result.stderr
    assert "2 of 3 rows hold NaN or infinity" in result.stderr


def _flip_byte(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)


def _cut_in_half(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_flip_byte, _cut_in_half, Path.unlink])
def test_labels_are_shown_where_their_rows_cannot_be_counted(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """After a source was dropped, counts are those of the rows that are left."""
    store = tmp_path / "s.zarr"
    for name, labels in (("a", ["a", "b", "a"]), ("b", ["a", "b", "b"])):
        write_csv(tmp_path / f"{name}.csv", labels)
    sources = [tmp_path / "a.csv", tmp_path / "b.csv"]
    ingest(sources, store, inputs=["x"], classes="c", shard_rows=3, again=True)
    assert call("drop", store, "--source", "a.csv").exit_code == 0

    def inspected() -> dict[str, Any]:
        done = call("inspect", store, "--json")
        assert done.exit_code == 0, done.output
        arrays: list[dict[str, Any]] = json.loads(done.stdout)["arrays"]
        return next(array for array in arrays if array["name"] == "classes")

    whole = inspected()
    assert whole["counts"] == [1, 2] and "problem" not in whole
    damage(store / "classes" / "c" / "1" / "0")
    damaged = inspected()
    assert "cannot be counted" in damaged.pop("problem") and "counts" not in damaged
    assert damaged == {name: value for name, value in whole.items() if name != "counts"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (["bloom", "clear", "turbid"], ["Bloom", "clear"], "has the new labels Bloom; those before are bloom, clear"),
        ([1, 2], [2, 7, 12], "has the new labels 7, 12; those before are 1, 2"),
        ([True, False], ["yes"], "has the new labels yes; those before are True, False"),
        (["bloom"], [f"k{i:02}" for i in range(25)], "k08, k09 and 15 more; those before are bloom"),
        (["a" * 900], ["b" * 900], f"has the new labels {'b' * 40}; those before are {'a' * 40}"),
        (["bloom", "clear"], ["clear", None], None),
        ([None], ["bloom"], None),  # there were no labels before
    ],
)
def test_new_labels_of_an_append_are_said(
    before: list[Any], after: list[Any], said: str | None, tmp_path: Path
) -> None:
    """One that is misspelt would be a class more without a word."""
    store = tmp_path / "s.zarr"
    ingest([write_csv(tmp_path / "a.csv", before)], store, inputs=["x"], classes="c")
    write_csv(tmp_path / "b.csv", after)
    words = ("ingest", tmp_path / "b.csv", store, "--inputs", "x", "--classes", "c", "--append", "--again")
    done = call(*words)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if "new labels" in line]
    assert len(lines) == (said is not None), done.stderr
    assert said is None or ("column 'c'" in lines[0] and said in lines[0]), lines
    assert "new labels" not in call(*words).stderr
