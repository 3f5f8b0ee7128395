"""Faults of data that a library would pass over: lost rows, rows that come twice, numbers that stand for none."""

import csv
import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from cases import unsourced
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

from dorff.data import csv_reader, ingest, open_dataset
from dorff.data.csv_reader import CSVReader
from dorff.data.nodes import kept_of
from dorff.data.packing import FillValues
from dorff.data.readers import Digest, open_source
from dorff.errors import InputError

RNG = np.random.default_rng(5)
XY: dict[str, Any] = {"inputs": ["x"], "targets": ["y"]}
TEXT = "x,y,note\n" + "".join(f'{i}.25,{-i},"a, ""b""\nc{i}"\n' if i % 3 else f"{i},{-i},d\n" for i in range(40))


def numbers(path: Path) -> Any:
    """The inputs and targets that come of a file."""
    out = path.with_suffix(".zarr")
    n = ingest([path], out, **XY)
    return np.hstack(open_dataset(out).read(0, n))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("place", "line"), [(0, 1), (1, 1), (8, 1), (10, 2), (len(TEXT) // 2, None), (len(TEXT) - 1, 67), (len(TEXT), 68)]
)
def test_a_nul_byte_is_refused_with_its_line(tmp_path: Path, place: int, line: int | None, zipped: bool) -> None:
    path = tmp_path / ("a.csv.gz" if zipped else "a.csv")
    data = TEXT[:place].encode() + b"\0" + TEXT[place:].encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    line = line or 1 + TEXT[:place].count("\n")
    with pytest.raises(InputError, match=rf"{path.name}: line {line} holds a NUL byte"):
        ingest([path], tmp_path / "o.zarr", **XY)
    assert not (tmp_path / "o.zarr").exists()


def test_the_line_of_a_nul_byte_far_down(tmp_path: Path) -> None:
    """Beyond the first block, and where lines end in CR, or in both."""
    for end in ("\n", "\r", "\r\n"):
        data = ("x,y" + end + ("1.5,2.5" + end) * 300_000).encode()
        (tmp_path / "a.csv").write_bytes(data[:-4] + b"\0" + data[-4:])
        with pytest.raises(InputError, match=r"line 300001 holds a NUL byte"):
            ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", **XY)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_refused_and_named(tmp_path: Path, coding: str) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT.encode(coding))
    with pytest.raises(InputError, match=r"a\.csv: line 1 holds a NUL byte.*UTF-16"):
        ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", **XY)


def test_records_are_counted_and_not_lines(tmp_path: Path) -> None:
    """Quoted line ends, every line end, blank lines, a byte-order mark, no line end at the last."""
    want = [[i + 0.25 * (i % 3 > 0), -i] for i in range(40)]
    blank = TEXT.replace("\n1", "\n\n1").replace("\n2", "\n\n\n2")
    quoted = '"x",y,"no\nte"' + TEXT[8:]
    for text in (TEXT, TEXT[:-1], "\n\n" + TEXT, TEXT + "\n\n", "\ufeff" + TEXT, quoted, "\ufeff" + quoted, blank):
        for end in ("\n", "\r\n", "\r"):
            (tmp_path / "a.csv").write_bytes(text.replace("\n", end).encode())
            ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", **XY)
            np.testing.assert_array_equal(np.hstack(open_dataset(tmp_path / "o.zarr").read(0, 40)), want)
            for path in sorted((tmp_path / "o.zarr").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            (tmp_path / "o.zarr").rmdir()


MANY = [(90_000, 3), (3, 400_000)]  # lines before and after: more than a block that is read at a time


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("stray", ['1,2,"stray', '1,2,"', '1,2,"a ""b""', '1,2,"""', '"1,2,c', '1,"2,c'])
@pytest.mark.parametrize(
    ("before", "after"),
    [(0, 0), (5, 0), (0, 5), (600, 700), *(pytest.param(*many, marks=pytest.mark.slow) for many in MANY)],
)
def test_a_quote_that_nothing_closes_is_refused_with_its_line(
    tmp_path: Path, name: str, stray: str, before: int, after: int
) -> None:
    """It would swallow all rows after it; also in a column that is not read, and where more than a block follows."""
    for end in ("\n", "\r\n"):
        text = "\ufeffx,y,note\n" + '1,2,"a, ""b""\nc"\n' * before + stray + "\n1,2,c" * after
        data = text.replace("\n", end).encode()
        (tmp_path / name).write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
        with pytest.raises(InputError, match=rf"{name}: line {2 + 2 * before} opens a quote that does not end"):
            ingest([tmp_path / name], tmp_path / "o.zarr", **XY)
        assert not (tmp_path / "o.zarr").exists()


BYTES = [b"\0", b"\r", b"\n", b'"', b",", b"\xff", b"\xef\xbb\xbf", b" ", b"\t", b"\x1a", b"#", b"7", b'""', b"\r\n"]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    texts=st.lists(
        st.sampled_from(["a", '"b"', '"c, d"', '"e\nf"', '"g""h"', '5" i', '""', ' "j"', '"k\r\n"', '"l"""']),
        min_size=1,
        max_size=30,
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    last=st.booleans(),
    inserted=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(BYTES)), max_size=2),
    block=st.sampled_from([64, 200, 2**20]),
)
def test_bytes_anywhere_change_no_number_of_rows_in_silence(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str, last: bool,
    inserted: list[tuple[int, bytes]], block: int,
) -> None:  # fmt: skip
    """As many rows as Python's own reader finds, or a refusal; a block of Arrow's may end anywhere."""
    data = end.join(["x,n,t", *(f'{i}.5,"{i}",{text}' for i, text in enumerate(texts))]).encode() + end.encode() * last
    for place, more in inserted:
        data = data[: place % len(data)] + more + data[place % len(data) :]
    path = tmp_path_factory.mktemp("bytes") / "a.csv"
    path.write_bytes(data)
    records = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"), newline="")) if row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_reader, "BLOCK", block)
        try:
            reader = CSVReader(str(path), ["x"])
            rows = sum(len(part) for part in reader.blocks(reader.resolve(["x"])))
        except InputError as error:
            assert str(path) in str(error) and (inserted or "is longer than" in str(error))
            return
    assert b"\0" not in data and rows == len(records) - 1


def test_a_byte_order_mark_is_one_where_the_file_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a quoted name with a line end in it; where a block of 576 bytes begins it is text, and no quote opens."""
    monkeypatch.setattr(csv_reader, "BLOCK", 64)
    begun = "x,y,note\n" + "1,2,c\n" * 93 + "10000,20,"
    for number, (text, rows) in enumerate((('\ufeff"no\nte",x\n"a",1\n"b",2\n', 2), (begun + '\ufeff"\n1,2,c\n', 95))):
        (tmp_path / "a.csv").write_text(text, encoding="utf-8")
        assert ingest([tmp_path / "a.csv"], tmp_path / f"{number}.zarr", inputs=["x"]) == rows


def test_the_last_record_may_be_one_quoted_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x\n1\n"2"\n"3"')
    assert ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", inputs=["x"]) == 3


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_quote_inside_a_field_opens_nothing(tmp_path: Path, name: str) -> None:
    """Inches; also where the file, or a piece of it, ends with one."""
    for rows in (1, 2, 3):
        data = ("x,t\n" + '1,6"\n' * rows).encode()[:-1]
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        assert ingest([tmp_path / name], tmp_path / f"{rows}.zarr", inputs=["x"]) == rows


def test_what_is_wrong_is_told_whatever_quote_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no block holds has no quote to close; a number that is none stands before a quote that goes on."""
    (tmp_path / "a.csv").write_text("x,y,note\n1,2,c\n1,2," + "c" * 3 * 2**20 + "\n")
    with pytest.raises(InputError, match="is longer than") as caught:
        ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", **XY)
    assert "opens a quote" not in str(caught.value)
    monkeypatch.setattr(csv_reader, "BLOCK", 64)
    for length in (200, 100_000):  # Arrow reads some blocks ahead
        text = "x,y,note\nbad,2,c\n" + "1,2,c\n" * 92 + '1,2,"' + "c\n" * length + '"\n'
        (tmp_path / "a.csv").write_text(text)  # blocks of 576 bytes: the first ends in the quote
        with pytest.raises(InputError, match="wanted a number, got 'bad'"):
            ingest([tmp_path / "a.csv"], tmp_path / "o.zarr", **XY)


def test_rows_that_a_library_loses_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader holds what it has read against what the file says: here a block of each goes missing."""
    monkeypatch.setattr(csv_reader, "BLOCK", 4096)
    monkeypatch.setattr("dorff.data.readers.BLOCK_BYTES", 4096)
    monkeypatch.setattr("dorff.data.arrow_readers.BLOCK_BYTES", 4096)
    x, y = RNG.standard_normal((2, 5000))
    for name in ("a.csv", "a.parquet", "a.npz"):
        write(tmp_path / name, np.column_stack([x, y]))
        whole = open_source(tmp_path / name, ["x", "y"])
        assert sum(map(len, whole.blocks(["x", "y"]))) == 5000
        reader = open_source(tmp_path / name, ["x", "y"])
        real = reader._read
        monkeypatch.setattr(reader, "_read", lambda c, k, real=real: (b for i, b in enumerate(real(c, k)) if i != 1))
        with pytest.raises(InputError, match=rf"{name}: has 5000 rows, but \d+ could be read"):
            list(reader.blocks(["x", "y"]))


def test_arrays_with_more_bytes_than_their_shape_are_refused(tmp_path: Path) -> None:
    """A header that says 100 rows of 1000."""
    np.save(tmp_path / "a.npy", RNG.standard_normal((1000, 2)))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"(1000, 2)", b"(100, 2) "))
    with pytest.raises(InputError, match=r"a\.npy: has more bytes than its shape \(100, 2\)"):
        ingest([tmp_path / "a.npy"], tmp_path / "o.zarr", inputs=["c0"], targets=["c1"])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("k.npy", data.replace(b"(1000, 2)", b"(100, 2) "))
    with pytest.raises(InputError, match=r"a\.npz: has more bytes than its shape \(100, 2\)"):
        ingest([tmp_path / "a.npz"], tmp_path / "o.zarr", inputs=["k0"], targets=["k1"])


def write(path: Path, rows: Any) -> Path:
    """Columns x and y in the format that the name says."""
    x, y = rows.T.copy()
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"x": x, "y": y}), path)
    elif path.suffix == ".npz":
        np.savez(path, x=x, y=y)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = x, y
    else:
        text = "x,y\n" + "".join(f"{a!r},{b!r}\n" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.npz", "a.h5"])
def test_the_same_content_is_added_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first ingest, in an append, twice in one command, under another name; forced it is there twice."""
    monkeypatch.setattr("dorff.data.readers.BLOCK_BYTES", 2**14)
    rows, other = RNG.standard_normal((2, 9000, 2))
    other[:-1] = rows[:-1]  # the last row alone is another
    first, later, store = write(tmp_path / name, rows), write(tmp_path / f"b{name}", other), tmp_path / "s.zarr"
    copy = tmp_path / f"copy-{name}"
    copy.write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=rf"copy-{name}: has the content of .*/{name}, so that its rows"):
        ingest([first, copy], store, **XY)
    assert ingest([first], store, **XY) == 9000
    before = unsourced(store)
    for again in ([first], [copy], [later, first]):
        with pytest.raises(InputError, match=rf"has the content of .*/{name}, so that its rows"):
            ingest(again, store, **XY, append=True)
        assert unsourced(store) == before
    with pytest.raises(InputError, match=r"8,999 of 9,000 rows are there"):
        ingest([later], store, **XY, append=True)
    assert ingest([later], store, **XY, append=True, again=True) == 18000
    with pytest.raises(InputError, match="--again"):
        ingest([later], store, **XY, append=True)
    assert ingest([later, later], store, **XY, append=True, again=True) == 36000
    assert len(json.loads((store / "zarr.json").read_text())["attributes"]["dorff"]["sources"]) == 4


def test_contents_of_one_checksum_are_not_taken_for_the_same() -> None:
    """CRC32C alone has 32 bits, and small files are many."""
    contents: dict[int, bytes] = {}
    pairs = []
    for number in range(200_000):
        content = hashlib.blake2b(str(number).encode(), digest_size=12).digest()
        pairs.append((contents.setdefault(google_crc32c.value(content), content), content))
    same = [pair for pair in pairs if pair[0] != pair[1]]
    assert same
    for pair in same:
        first, second = Digest(), Digest()
        for digest, content in zip((first, second), pair, strict=True):
            digest.update(content[:5])
            digest.update(content[5:])
        assert str(first) != str(second)


def test_text_is_the_same_with_and_without_gzip(tmp_path: Path) -> None:
    rows = RNG.standard_normal((50, 2))
    plain, zipped = write(tmp_path / "a.csv", rows), write(tmp_path / "a.csv.gz", rows)
    ingest([plain], tmp_path / "s.zarr", **XY)
    with pytest.raises(InputError, match=r"a\.csv\.gz: has the content of"):
        ingest([zipped], tmp_path / "s.zarr", **XY, append=True)


def test_side_by_side_sources_are_named_by_all_their_files(tmp_path: Path) -> None:
    for name, column in (("a", "x"), ("b", "y"), ("c", "y")):
        (tmp_path / f"{name}.csv").write_text(f"{column}\n" + "".join(f"{v}\n" for v in RNG.standard_normal(20)))
    pairs = [f"{tmp_path}/a.csv+{tmp_path}/{name}.csv" for name in "bc"]
    assert ingest(pairs[:1], tmp_path / "s.zarr", **XY) == 20
    assert ingest(pairs[1:], tmp_path / "s.zarr", **XY, append=True) == 40
    with pytest.raises(InputError, match="has the content of"):
        ingest(pairs[1:], tmp_path / "s.zarr", **XY, append=True)


def test_a_store_that_remembers_no_source_is_appended_to(tmp_path: Path) -> None:
    """As those that an earlier dorff made."""
    source, store = write(tmp_path / "a.csv", RNG.standard_normal((20, 2))), tmp_path / "s.zarr"
    ingest([source], store, **XY)
    group = json.loads((store / "zarr.json").read_text())
    del group["attributes"]["dorff"]["sources"], group["attributes"]["dorff"]["crc32"]
    (store / "zarr.json").write_text(json.dumps(group))
    for array in "xy":
        about = json.loads((store / array / "zarr.json").read_text())
        del about["attributes"]["dorff"]
        (store / array / "zarr.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="20 of 20 rows are there"):
        ingest([source], store, **XY, append=True)
    assert ingest([source], store, **XY, append=True, again=True) == 40
    with pytest.raises(InputError, match="has the content of"):
        ingest([source], store, **XY, append=True)


def test_the_command_line_refuses_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", RNG.standard_normal((20, 2)))
    words = ("ingest", "a.csv", "s.zarr", "--inputs", "x", "--targets", "y")
    assert call(*words).exit_code == 0
    before = unsourced(tmp_path / "s.zarr")
    result = call(*words, "--append")
    assert result.exit_code == 3 and "--again" in result.stderr and unsourced(tmp_path / "s.zarr") == before
    assert json.loads(call(*words, "--append", "--again", "--json").stdout)["rows"] == 40
    result = call(*words[:2], "t.zarr", *words[3:], "--again")
    assert result.exit_code == 3 and "give --append" in result.stderr and not (tmp_path / "t.zarr").exists()
    assert call("ingest", "a.csv", *words[1:2], "t.zarr", *words[3:], "--again").exit_code == 0


SPOILT = {  # a fill value, and how many rows have it, among values around 15
    "-9999": ("-9999", 3), "once": ("-9999", 1), "-999.9": ("-999.9", 2), "NetCDF's": ("9.969209968386869e+36", 2),
    "CMIP's": ("1e20", 1), "-99": ("-99", 2), "9999": ("9999", 2), "999": ("999", 2),
    "int16": ("-32768", 2), "short": ("32767", 4), "short NetCDF's": ("9.97e36", 1), "6 digits": ("9.96921e+36", 3),
    "float32": ("-3.4028235e38", 2), "-888": ("-888.8", 2),
    "of its own": ("-4.7e15", 1), "MERRA's": ("1e15", 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("column", ["x", "y"])
def test_what_looks_like_a_fill_value_is_refused(tmp_path: Path, kind: str, column: str) -> None:
    text, count = SPOILT[kind]
    values = 15 + RNG.standard_normal((5000, 2))
    rows = [[repr(a), repr(b)] for a, b in values.tolist()]
    at = ["x", "y"].index(column)
    for row in range(count):
        rows[700 * row + 11][at] = text
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in rows))
    named = repr(float(text)).removesuffix(".0")
    with pytest.raises(InputError) as caught:
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", **XY)
    assert f"column {column!r} has {named} in {count} rows" in str(caught.value)
    assert f"--missing {named} to have NaN" in str(caught.value) and not (tmp_path / "s.zarr").exists()
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", **XY, missing=[float(text)])
    found = np.hstack(open_dataset(tmp_path / "s.zarr").read(0, 5000))
    values[[700 * row + 11 for row in range(count)], at] = np.nan
    np.testing.assert_array_equal(found, values)
    ingest([tmp_path / "a.csv"], tmp_path / "k.zarr", **XY, missing=["none"])
    assert np.nanmax(np.abs(np.hstack(open_dataset(tmp_path / "k.zarr").read(0, 5000)))) == abs(float(text))


def test_all_fill_values_of_a_column_and_the_only_negative_one(tmp_path: Path) -> None:
    """A dead sensor; and a wide range of values none of which is below zero."""
    for values in (np.full(50, -9999.0), np.r_[RNG.uniform(0, 20000, 500), -9999.0, -9999.0]):
        np.savez(tmp_path / "a.npz", x=np.arange(len(values)), y=values)
        with pytest.raises(InputError, match="column 'y' has -9999 in"):
            ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", **XY)


@pytest.mark.parametrize(
    ("codes", "others"),
    [
        ([-9999, 9.97e36], 15 + RNG.standard_normal(5000)),
        ([-9999] * 9 + [-8888], 15 + RNG.standard_normal(5000)),
        ([-999, 9.96921e36, 5e33], RNG.standard_normal(5000)),
        ([-99, -99, -999, -9999], RNG.uniform(0, 5, 90)),
        ([-9999], 5 + RNG.uniform(0, 20000, 500)),
        ([-9999, 4.4e17], RNG.uniform(0, 20000, 500)),
        ([9.97e36] * 9, np.zeros(50)),
        ([1e20] * 9, np.zeros(50)),
        ([9.97e36] * 9, np.empty(0)),
    ],
)
def test_several_codes_and_few_others(codes: list[float], others: Any, tmp_path: Path) -> None:
    """One does not hide another; each is named once, and what is then left is ingested."""
    values = RNG.permutation(np.r_[codes, others])
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{value!r}\n" for i, value in enumerate(values.tolist())))
    with pytest.raises(InputError, match="looks like a number that stands for none") as caught:
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", **XY)
    for code in set(codes):
        assert f"--missing {repr(float(code)).removesuffix('.0')} " in str(caught.value)
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", **XY, missing=codes)
    found = open_dataset(tmp_path / "s.zarr").read(0, len(values))[1][:, 0]
    np.testing.assert_array_equal(np.isnan(found), np.isin(values, codes))


def test_a_large_number_is_the_same_in_other_digits(tmp_path: Path) -> None:
    values = RNG.standard_normal(400).astype("f4")
    values[:7] = [9.96921e36, 9.969209968386869e36, 9.97e36, -999.9, -999.95, -1e20, 9.5e36]
    for name, dtype in (("a", "f4"), ("b", "f8")):
        np.savez(tmp_path / name, x=np.zeros(400), y=values.astype(dtype))
        out, told = tmp_path / f"{name}.zarr", []
        given = ["9.97e36", "-999.9", "-9.97e36", "none"]
        ingest([tmp_path / f"{name}.npz"], out, **XY, missing=given, notice=told.append)
        found = open_dataset(out).read(0, 400)[1][:, 0]
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(found)), [0, 1, 2, 3])
        assert [sentence.partition(" is it")[0] for sentence in told if "unusable" not in sentence][:1] == [
            "--missing -9.97e36: no value of the columns named"
        ]


def test_a_number_given_that_no_value_is_has_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,c,w\n1,5,-9999\n2,-8,1\n")
    words = ("ingest", "a.csv", "s.zarr", "--inputs", "x", "--classes", "c", "--weights", "w")
    result = call(*words, *(word for value in ("-9999", "-8", "12345", "-0.1") for word in ("--missing", value)))
    assert result.exit_code == 0
    for value in ("12345", "-0.1"):
        assert f"--missing {value}: no value of the columns named is it" in result.stderr
    assert result.stderr.count("no value") == 2


@pytest.mark.parametrize("inputs", ["kind", "time", "time:day", "kind,time,time:week", "=0,kind"])
def test_missing_is_of_the_source_and_not_of_what_becomes_of_it(tmp_path: Path, inputs: str) -> None:
    """Categories have columns of 0, and so has a time at the start of its first day."""
    times = np.datetime64("2026-01-05") + np.arange(60) * np.timedelta64(1, "h")
    rows = [f"{time},{'ab'[number % 2]},{number - 7}" for number, time in enumerate(times)]
    (tmp_path / "a.csv").write_text("\n".join(["time,kind,y", *rows]))
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=inputs.split(","), targets=["y"], missing=["0"])
    with xr.open_zarr(tmp_path / "s.zarr", consolidated=False) as made:
        assert np.isfinite(made.x.values).all()
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(made.y.values[:, 0])), [7])


@pytest.mark.parametrize("row", [0, 63, 64, 69])
def test_a_fill_value_is_seen_in_any_row_and_beside_infinities(tmp_path: Path, row: int) -> None:
    values = RNG.standard_normal((70, 2))
    values[row, 1], values[30, 1], values[40, 1] = -9999, np.inf, -np.inf
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(InputError, match="column 'c1' has -9999 in 1 rows"):
        ingest([tmp_path / "a.npy"], tmp_path / "s.zarr", inputs=["c0"], targets=["c1"])
    np.save(tmp_path / "a.npy", np.where(np.isfinite(values), values, 0))
    with pytest.raises(InputError, match="column 'c1' has -9999 in 1 rows"):
        ingest([tmp_path / "a.npy"], tmp_path / "s.zarr", inputs=["c0"], targets=["c1"])
    with pytest.raises(InputError, match="column 'y' has -9999 in 1 rows"):
        ingest([write(tmp_path / "a.csv", np.nan_to_num(values, posinf=0, neginf=0))], tmp_path / "s.zarr", **XY)
    values[row, 1], values[-1, 0] = 0, -20000  # the only other value as far
    watch = FillValues(())
    values[3, 0] = -9999
    watch.look(values)
    watch.check("here", ["a", "b"])


def test_float32_and_several_fill_values(tmp_path: Path) -> None:
    values = RNG.standard_normal((400, 2)).astype("f4")
    values[::7, 0], values[3, 1] = -999.9, 1e20
    np.savez(tmp_path / "a.npz", x=values[:, 0], y=values[:, 1])
    with pytest.raises(InputError, match="--missing"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", **XY, missing=[-999.9])
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", **XY, missing=[-999.9, 1e20])
    found = np.hstack(open_dataset(tmp_path / "s.zarr").read(0, 400))
    wanted = values.astype(float)
    wanted[::7, 0], wanted[3, 1] = np.nan, np.nan
    np.testing.assert_array_equal(found, wanted)
    assert open_dataset(tmp_path / "s.zarr").rows_spec()["arrays"]["x"]["dtype"] == "float32"


ORDINARY = {
    "constant": np.full(1000, 3.5), "zero": np.zeros(1000), "0/1": RNG.integers(0, 2, 1000),
    "mask of 16 bits": 65535 * RNG.integers(0, 2, 1000), "nearly all zero": np.r_[np.zeros(990), np.ones(10)],
    "counts to 20000": np.r_[RNG.integers(0, 20000, 3000), [9999] * 9],
    "capped": RNG.poisson(9000, 2000).clip(0, 9999), "huge": 1e20 * RNG.random(99),
    "cauchy": RNG.standard_cauchy(20000), "lognormal": np.exp(4 * RNG.standard_normal(20000)),
    "whole lognormal": np.rint(np.exp(3 * RNG.standard_normal(20000))), "pareto": np.rint(RNG.pareto(0.5, 5000)),
    "zipf": RNG.zipf(1.3, 5000).clip(0, 10**12), "saturated": (2**15 * RNG.standard_normal(2000)).clip(-32768, 32767),
    "longitude": np.full(20, -99.0), "balance": np.r_[RNG.normal(0, 9000, 900), [-9999.0] * 3],
    "price": np.r_[RNG.uniform(1, 900, 900), [999.0] * 30], "year": np.r_[np.arange(1900, 2020), [9999.0]],
    "infinite": np.r_[RNG.standard_normal(50), np.inf, -np.inf], "none": np.full(9, np.nan),
    "two digits": np.r_[RNG.uniform(1, 5, 900), [99.0] * 30],
    "nanoseconds": 1.7e18 + 86400e9 * np.arange(300),
    "three days": np.r_[np.zeros(9), 1.7e18, 1.71e18, 1.72e18],
    "densities": np.repeat([5e19, 1e20, 2e20], 9), "one density": np.full(9, 6.02e23), "levels": 1e30 * np.arange(3.0),
    "few huge": np.r_[RNG.uniform(1, 5, 900), 1e18 * np.arange(1.0, 9)],
    "wide tail": np.r_[RNG.uniform(0, 9e14, 900), 4e15, 2e16], "on and off": 7e15 * RNG.integers(0, 2, 100),
    "six times the range": np.r_[RNG.uniform(-800, 800, 900), [-9999.0] * 20, [9999.0] * 20],
    "pressure": 101325 + 999 * RNG.standard_normal(999), "1e30 times": 1e30 * np.rint(9 * RNG.standard_normal(999)),
    "one far": np.r_[np.linspace(1, 5, 900), 5e14],
}  # fmt: skip


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_data_are_no_fill_values(tmp_path: Path, kind: str) -> None:
    for sign in (1, -1) if kind not in ("longitude",) else (1,):
        values = sign * ORDINARY[kind].astype(float)
        if kind in ("mask of 16 bits", "price", "year", "two digits") and sign < 0:
            continue  # nobody has those
        np.savez(tmp_path / "a.npz", x=values, y=np.arange(len(values)))
        ingest([tmp_path / "a.npz"], tmp_path / f"{sign}.zarr", **XY)


def test_fill_values_and_valid_ranges_of_netcdf(tmp_path: Path) -> None:
    """What a file declares is NaN, so that the job's rule for NaN holds; whole bounds are of packed values."""
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        file.createDimension("row", 5)
        packed = file.createVariable("x", "h", ("row",))
        packed[:] = [10, -32767, 2000, -20, 30]
        packed.scale_factor, packed.add_offset = 0.5, 100.0
        packed.missing_value, packed.valid_range = np.int16(-32767), np.array([-10, 1000], "i2")
        plain = file.createVariable("y", "f", ("row",))
        plain[:] = [1e20, 2.0, 3.0, 0.1, 7.5]
        plain._FillValue, plain.valid_min, plain.valid_max = np.float32(1e20), np.float64(0.1), np.float32(5)
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", **XY)
    X, Y = open_dataset(tmp_path / "s.zarr").read(0, 5)
    np.testing.assert_array_equal(X[:, 0], [105, np.nan, np.nan, np.nan, 115])
    np.testing.assert_array_equal(Y[:, 0], np.array([np.nan, 2, 3, 0.1, np.nan], "f4"))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"], file["y"] = np.array([3, 200, 255], "i2").astype("u1").view("i1"), np.array([1.0, 2.0, -5.0])
        file["x"].attrs.update({"_Unsigned": "true", "valid_range": np.array([0, -56], "i1")})
        file["x"].attrs["missing_value"] = [1e20, 259.0]  # no byte is that, and 259 is not 3
        file["y"].attrs.update({"scale_factor": -2.0, "valid_min": np.int32(0)})
    ingest([tmp_path / "b.h5"], tmp_path / "b.zarr", **XY)
    X, Y = open_dataset(tmp_path / "b.zarr").read(0, 3)
    np.testing.assert_array_equal(X[:, 0], [3, 200, np.nan])
    np.testing.assert_array_equal(Y[:, 0], [-2, -4, np.nan])


def test_missing_is_for_labels_and_weights_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,c,w\n1,5,-9999\n2,-9999,1\n-9999,6,2\n")
    words = ("ingest", "a.csv", "s.zarr", "--inputs", "x", "--classes", "c", "--weights", "w", "--missing", "-9999")
    result = json.loads(call(*words, "--missing", "none", "--json").stdout)
    assert result["classes"] == {"labels": [5, 6], "counts": [1, 1], "missing": 1}
    dataset = open_dataset(tmp_path / "s.zarr", targets=None, weights="weights")
    block = dataset.block(0, 3)
    np.testing.assert_array_equal(block.X[:, 0], [1, 2, np.nan])
    np.testing.assert_array_equal(block.weights, [np.nan, 1, 2])
    result = call(*words[:2], "t.zarr", *words[3:-1], " ")
    assert result.exit_code == 3 and "--missing: wanted" in result.stderr


@pytest.mark.parametrize(
    ("inputs", "targets", "also", "words"),
    [
        (["x", "y"], ["y"], {}, "column 'y' is among both inputs and targets"),
        (["x", "x"], ["y"], {}, "inputs: column 'x' is named 2 times"),
        (["x"], ["y", "y"], {}, "targets: column 'y' is named 2 times"),
        (["x"], ["y"], {"view": ["y", "y"]}, "view: column 'y' is named 2 times"),
    ],
)
def test_a_column_has_one_place(tmp_path: Path, inputs: Any, targets: Any, also: Any, words: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(InputError, match=words):
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=inputs, targets=targets, also=also)
    assert not (tmp_path / "s.zarr").exists()
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["x"], targets=["y"], also={"view": ["x", "y"]})
    ingest([tmp_path / "a.csv"], tmp_path / "t.zarr", inputs=["x", "=-9999"], targets=["=-9999"])  # no column


@pytest.mark.parametrize("kept", [{"missing": 5, "encoding": "x", "unusable": "many"}, "nothing", None])
def test_what_others_write_under_the_names_that_ingest_keeps_is_ignored(kept: object) -> None:
    attributes = {"dorff": kept}
    found = [
        kept_of(attributes, name, empty) for name, empty in (("missing", ["a"]), ("encoding", {}), ("unusable", 3))
    ]
    assert found == [["a"], {}, 3] and kept_of({"dorff": {"unusable": 7}}, "unusable", 3) == 7


@pytest.mark.parametrize("word", ["False", "yes", "T", "no"])
def test_truth_beside_numbers_is_not_to_be_taken_for_none(word: str, tmp_path: Path) -> None:
    """A column of booleans, as Parquet has them, and a night of CSV with words."""
    pq.write_table(pa.table({"wet": [True, False, True], "t": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text(f"wet,t\n{word},4\n{word},5\n")
    store = tmp_path / "s.zarr"
    ingest([tmp_path / "a.parquet"], store, inputs=["wet"], targets=["t"])
    with pytest.raises(InputError, match=rf"got '{word}', but other rows have numbers there; write 1 and 0") as refused:
        ingest([tmp_path / "b.csv"], store, inputs=["wet"], targets=["t"], append=True)
    assert "--missing" not in str(refused.value)
