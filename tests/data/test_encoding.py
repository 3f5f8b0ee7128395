"""Inputs that are no numbers: categories and times, and tables as others write them."""

import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from cases import unsourced

from dorff.data import Dataset, ingest, open_dataset
from dorff.data.encoding import MISSING_TIMES
from dorff.data.text_quantities import describe_quantities
from dorff.errors import InputError

HEADER = "lon,colour,when,u\n"
ROWS = ["1,red,2024-02-28,5", "2,blue,2024-02-29T06:00:00,6", "3,,2024-03-01 12:00:00.5,7", "4,red,,8"]


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.write_text(header + "\n".join(rows) + "\n")
    return path


def made(folder: Path, *sources: Path, inputs: str = "lon,colour,when", **more: Any) -> Dataset:
    ingest(sources, folder / "s.zarr", inputs=inputs.split(","), targets=["u"], **more)
    return open_dataset(folder / "s.zarr")


def test_text_is_categories_and_iso_dates_are_seconds(tmp_path: Path) -> None:
    data = made(tmp_path, write(tmp_path / "a.csv", ROWS))
    assert data.input_columns == ("lon", "colour=blue", "colour=red", "when")
    nan, hour = np.nan, 3600
    wanted = [[1, 0, 1, 0], [2, 1, 0, 30 * hour], [3, nan, nan, 60 * hour + 0.5], [4, 0, 1, nan]]
    np.testing.assert_array_equal(data.read(0, 4)[0], wanted)
    assert data.encoding == {
        "colour": {"one_hot": ["blue", "red"]},
        "when": {"time": ["seconds since 2024-02-28T00:00:00"]},
    }


def test_an_order_and_cycles(tmp_path: Path) -> None:
    data = made(
        tmp_path,
        write(tmp_path / "a.csv", ROWS),
        inputs="colour,when:day,when:week,when:year",
        ordered={"colour": ["red", "blue"]},
    )
    X = data.read(0, 4)[0]
    np.testing.assert_array_equal(X[:, 0], [0, 1, np.nan, 0])
    np.testing.assert_allclose(X[:2, 1:3], [[0, 1], [1, 0]], atol=1e-12)  # midnight, six in the morning
    turns = np.arctan2(X[:, 3::2], X[:, 4::2])[:2] / (2 * np.pi) % 1
    np.testing.assert_allclose(turns[:, 0], [2 / 7, 3.25 / 7], atol=1e-12)  # a Wednesday
    np.testing.assert_allclose(turns[:, 1], [58 / 366, 59.25 / 366], atol=1e-12)  # of a leap year
    assert data.input_columns[1:3] == ("when:day:sin", "when:day:cos")
    assert np.isnan(X[3, 1:]).all()


def test_parquet_gives_what_csv_does_however_the_rows_are_divided(tmp_path: Path) -> None:
    one = made(tmp_path, write(tmp_path / "a.csv", ROWS[1:]))
    for folder in ("more", "parquet"):
        (tmp_path / folder).mkdir()
    made(tmp_path / "more", *(write(tmp_path / f"{i}.csv", [row]) for i, row in enumerate(ROWS[1:])))
    assert unsourced(Path(one.path)) == unsourced(tmp_path / "more" / "s.zarr")
    when = np.array(["2024-02-29T06:00:00", "2024-03-01T12:00:00.5", "NaT"], "M8[ms]")
    table = {"lon": [2.0, 3, 4], "colour": pa.array(["blue", None, "red"]).dictionary_encode(), "when": when}
    pq.write_table(pa.table(table | {"u": [6.0, 7, 8]}), tmp_path / "a.parquet")
    np.testing.assert_array_equal(made(tmp_path / "parquet", tmp_path / "a.parquet").read(0, 3)[0], one.read(0, 3)[0])
    names = np.array(["blue", "", "red"])
    np.savez(tmp_path / "a.npz", lon=[2.0, 3, 4], colour=names, when=when, u=[6.0, 7, 8])
    (tmp_path / "npz").mkdir()
    np.testing.assert_array_equal(made(tmp_path / "npz", tmp_path / "a.npz").read(0, 3)[0], one.read(0, 3)[0])


def test_what_is_appended_is_encoded_alike(tmp_path: Path) -> None:
    first, more = write(tmp_path / "a.csv", ROWS), write(tmp_path / "b.csv", ["5,red,2025-02-28,1"])
    made(tmp_path, first)
    data = made(tmp_path, more, append=True)
    np.testing.assert_array_equal(data.read(4, 5)[0], [[5, 0, 1, 366 * 86400]])
    new = write(tmp_path / "c.csv", ["6,green,2025-02-28,1"])
    with pytest.raises(
        InputError, match=r"c\.csv: column 'colour': has 'green', which is none of its 2 categories \(b"
    ):
        made(tmp_path, new, append=True)
    data = made(tmp_path, new, append=True, unknown_zero=True)
    np.testing.assert_array_equal(data.read(5, 6)[0], [[6, 0, 0, 366 * 86400]])
    with pytest.raises(InputError, match="encoded as before; leave --one-hot and --ordered out"):
        made(tmp_path, new, append=True, one_hot=["lon"])
    (tmp_path / "other").mkdir()
    other = made(tmp_path / "other", more, encoding=data.encoding)
    np.testing.assert_array_equal(other.read(0, 1)[0], [[5, 0, 1, 366 * 86400]])
    assert other.encoding == data.encoding


def test_numbers_are_categories_where_that_is_said(tmp_path: Path) -> None:
    data = made(tmp_path, write(tmp_path / "a.csv", ROWS), inputs="lon", one_hot=["lon"])
    assert data.input_columns == ("lon=1", "lon=2", "lon=3", "lon=4")
    np.testing.assert_array_equal(data.read(0, 4)[0], np.eye(4))


def test_many_categories_are_read_in_blocks(tmp_path: Path) -> None:
    data = made(
        tmp_path, write(tmp_path / "a.csv", [f"1,c{i % 1000:03},2024-01-01,1" for i in range(4000)]), inputs="colour"
    )
    np.testing.assert_array_equal(data.read(0, 4000)[0], np.tile(np.eye(1000), (4, 1)))


@pytest.mark.parametrize(
    ("colour", "more", "message"),
    [
        (["red", "1.5"], {}, "column 'colour', row 2: wanted a number, got 'red'; correct it, empty it"),
        (["red"] * 20_000 + ["1.5"], {}, r"has text, and '1\.5', which is a number"),
        (["31/12/2023", "1/2/2024"], {}, "has text, and '1/2/2024', which is a date or time that is not read"),
        ([f"id{i}" for i in range(1001)], {}, "has more than 1,000 different texts, such as 'id0'; such a name"),
        (["2024-02-30", "2024-02-01"], {}, "such as '2024-02-01', and '2024-02-30', which cannot be read"),
        (["10000-01-01", "9999-01-01"], {}, "such as '9999-01-01', and '10000-01-01', which cannot be read"),
        (["2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"] * 12, {}, "23:59:59Z', and '2016-12-31T23:59:60Z', which"),
        (["no record", "2024-02-01T12:00"] * 12, {}, "such as '2024-02-01T12:00', and 'no record', which cannot"),
        (["2024-01", "2024-02"] * 12, {}, "has text, and '2024-01', which is a date or time that is not read"),
        (["2024-061", "2024-062"] * 12, {}, "has text, and '2024-061', which is a date or time that is not read"),
        (["2024-02-30T12:00", "2024-02-31T12:00"] * 12, {}, "and '2024-02-30T12:00', which is a date or time that"),
        (["2016-12-31", "2016-12-31T23:59:60Z"], {}, "got '2016-12-31T23:59:60Z'; there is none such"),
        (["NaT", "nat"], {}, "column 'colour' holds no value in any row; leave it out"),
        (["-999", "2024-02-01T12:00"], {}, "row 3: wanted a number, got '2024-02-01T12:00'.* such as -999: write all"),
        (["2024-05-31", "later"], {}, "wanted a date or time such as 2024-05-31 or 2024-05-31T12:00:00, got 'later'"),
        (["red", "blue"], {"inputs": "lon,colour:day"}, "column 'colour' holds no times, which colour:day needs"),
        (["red", "blue"], {"inputs": "lon:day"}, "column 'lon' holds no times, which lon:day needs"),
        (["red", "blue"], {"ordered": {"color": ["red"]}}, "--ordered color: is none of the inputs; name one of"),
        (["red", "blue"], {"ordered": {"colour": ["red"]}}, r"has 'blue', which is none of its 1 categories \(red\)"),
        (["red", "blue"], {"one_hot": ["u"]}, "--one-hot u: is none of the inputs"),
        (["red", "blue"], {"classes": "colour"}, "column 'colour' is among the inputs too; name it once"),
        (["", "", "NA"], {"one_hot": ["colour"]}, "column 'colour' holds no value in any row; leave it out"),
    ],
)  # fmt: skip
def test_what_is_no_category_is_refused(tmp_path: Path, colour: list[str], more: dict[str, Any], message: str) -> None:
    source = write(tmp_path / "a.csv", [f"1,{one},2024-01-01,1" for one in colour])
    with pytest.raises(InputError, match=message):
        made(tmp_path, source, **{"inputs": "lon,colour", **more})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


@pytest.mark.parametrize("cycle", ["", ":day", ":week", ":year"])
def test_the_remedy_for_times_that_are_numbers_can_be_copied(tmp_path: Path, cycle: str) -> None:
    for name, time in (("dates", "2024-05-30"), ("numbers", "12.5")):
        (tmp_path / f"{name}.csv").write_text(f"taken on,u\n{time},1\n2024-05-31,2\n")
    columns: dict[str, Any] = {"inputs": [f"taken on{cycle}"], "targets": ["u"]}
    ingest([tmp_path / "dates.csv"], tmp_path / "s.zarr", **columns)
    with pytest.raises(InputError, match="--units 'taken on=hours since 2000-01-01 00:00:00'"):
        ingest([tmp_path / "numbers.csv"], tmp_path / "s.zarr", **columns, append=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "lon;note;u\n1,5;a;2\n-2;b;,5\n"),
        ("a.csv", "1,5;a;2\n-2;b;,5\n"),
        ("a.txt", "lon\tnote\tu\n1.5\ta,b\t2\n-2\tc,d\t.5\n"),
        ("a.tsv.gz", "lon\tnote\tu\n1.5\ta;b\t2\n-2\tc;d\t.5\n"),
        ("a.csv", '\n"lon","note;s","u"\n1.5,"a;b",2\n-2,"c;d",.5\n'),
    ],
)
def test_separators_and_decimals_are_seen(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    inputs, target = ("c0", "c2") if text[0] == "1" else ("lon", "u")
    ingest([path], tmp_path / "s.zarr", inputs=[inputs], targets=[target])
    X, Y = open_dataset(tmp_path / "s.zarr").read(0, 2)
    np.testing.assert_array_equal(np.hstack([X, Y]), [[1.5, 2], [-2, 0.5]])


def test_decimals_of_both_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lon;u\n1,5;2\n2;0.5\n")
    with pytest.raises(InputError, match=r"a\.csv: column 'lon', row 2: wanted a number, got '1,5'; correct it"):
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["lon"], targets=["u"])


def test_each_file_can_be_a_group(tmp_path: Path) -> None:
    sources = [write(tmp_path / name, ROWS[:2]) for name in ("a.csv", "b.csv")]
    made(tmp_path, *sources, groups="FILE", again=True)
    groups = open_dataset(tmp_path / "s.zarr", groups="groups").block(0, 4).groups
    assert groups is not None and groups[0] == groups[1] != groups[2] == groups[3]
    strange = write(tmp_path / "c.csv", ["1,2"], "lon,FILE\n")
    with pytest.raises(InputError, match=r"c\.csv: has a column FILE, which here means each file itself; rename"):
        ingest([strange], tmp_path / "t.zarr", inputs=["lon"], groups="FILE")


def groups_of(store: Path) -> Any:
    """The groups' keys, None where there are none."""
    names = {"groups": "groups"} if (store / "groups").exists() else {}
    data = open_dataset(store, targets=None, **names)
    return data.block(0, data.n).groups


def test_seven_files_or_more_are_groups_by_themselves(tmp_path: Path) -> None:
    def sources(count: int, first: int = 0, header: str = "lon,u\n") -> list[Path]:
        numbers = range(first, first + count)
        return [write(tmp_path / f"{at}.csv", [f"{at},1", f"{at},2"], header) for at in numbers]

    def stored(name: str, files: list[Path], **more: Any) -> Any:
        ingest(files, tmp_path / name, inputs=["lon"], **{"targets": ["u"], **more})
        return groups_of(tmp_path / name)

    each = stored("each", sources(7))
    assert len(set(each)) == 7 and np.array_equal(each[::2], each[1::2])
    np.testing.assert_array_equal(each, stored("named", sources(7), groups="FILE"))
    assert stored("few", sources(6)) is None and stored("none", sources(7), groups="none") is None
    assert stored("classes", sources(7), classes="u", targets=[]) is None, "each file may be a class"
    named = sources(7, 10, "lon,FILE\n")
    assert stored("column", named, targets=["FILE"]) is None, "a column of that name, which was never refused"
    # Appended files are groups where the others are, and nowhere else, whatever their number.
    more = sources(6, 20)
    assert len(set(stored("each", more, append=True))) == 13
    assert len(set(stored("named", more[:1], append=True))) == 8
    for name in ("few", "none"):
        assert stored(name, more, append=True) is None
    with pytest.raises(InputError, match="append the same inputs and targets"):
        stored("each", sources(1, 30), append=True, groups="none")
    twice = [tmp_path / "0.csv"] * 5
    assert stored("twice", twice, again=True) is None, "one file, however often"


def test_damaged_encodings_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", ROWS)
    for damaged in ([1], {"colour": 3}, {"when": {"time": ["years"]}}, {"when:day": {"cycle": ["moon"]}}, {"a": {}}):
        with pytest.raises(InputError, match=r"s\.zarr: what it says of encodings is damaged; restore"):
            made(tmp_path, source, encoding=damaged)


TIMES = np.array(["2024-05-01T01:00", "2024-05-01T02:30", "NaT"], "M8[ns]") + np.timedelta64(123456789, "ns")
SINCE_DAY = [3600.123456, 9000.123456, np.nan]


@pytest.mark.parametrize(
    "kind",
    ["ns", "us", "tz", "int96", "dictionary", "polars", *(f"npz {unit}" for unit in ("ns", "us", "ps", ">ns"))],
)
def test_times_are_the_same_to_the_microsecond_from_any_array(tmp_path: Path, kind: str) -> None:
    u = [1.0, 2, 3]
    path = tmp_path / ("a.npz" if kind.startswith("npz") else "a.parquet")
    column = pa.array(TIMES)
    if kind.startswith("npz"):
        base = TIMES.astype("M8[us]") if kind == "npz ps" else TIMES  # picoseconds reach to 1970 and a few months
        dtype = {"npz ps": "M8[us]", "npz >ns": ">M8[ns]"}.get(kind, f"M8[{kind[4:]}]")
        np.savez(path, when=base.astype(dtype), u=u)
    elif kind == "polars":
        polars = pytest.importorskip("polars")
        polars.DataFrame({"when": TIMES, "u": u}).write_parquet(path)
    else:
        column = column.cast(pa.timestamp("us"), safe=False) if kind == "us" else column
        column = column.cast(pa.timestamp("ns", "Europe/Berlin")) if kind == "tz" else column
        column = column.dictionary_encode() if kind == "dictionary" else column
        table = pa.table({"when": column, "u": u})
        pq.write_table(table, path, use_deprecated_int96_timestamps=kind == "int96")
    data = made(tmp_path, path, inputs="when")
    assert data.encoding == {"when": {"time": ["seconds since 2024-05-01T00:00:00"]}}
    np.testing.assert_allclose(data.read(0, 3)[0][:, 0], SINCE_DAY, rtol=0, atol=4e-7)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "25s", "s", "ms", "us"])
def test_times_of_every_unit_of_numpy(tmp_path: Path, unit: str) -> None:
    times = np.array(["1965-03-02T10:11:12", "2024-05-01T02:30:20", "NaT"], "M8[s]").astype(f"M8[{unit}]")
    np.savez(tmp_path / "a.npz", when=times, u=[1.0, 2, 3])
    values = made(tmp_path, tmp_path / "a.npz", inputs="when").read(0, 3)[0][:, 0]
    assert values[1] - values[0] == np.diff(times.astype("M8[s]").astype(np.int64))[0]
    assert np.isnan(values[2]) and 0 <= values[0] < 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-01T00:00:01.123456789", 1.123456),
        ("2024-05-01 00:00:01.1234567", 1.123456),
        ("2024-05-01T00:00:01,5", 1.5),
        ("2024-05-01T02:00:00.123456789+02:00", 0.123456),
        ("2024-05-01 02:00:00.5 +0200", 0.5),
        ("20240501T000001Z", 1),
        ("20240501T0001", 60),
        ("2024-05-01 00:00:01 UTC", 1),
        ("2024-05-01t00:00:01z", 1),
        ("2024-05-01", 0),
    ],
)
def test_iso_times_as_they_are_written(tmp_path: Path, text: str, seconds: float) -> None:
    source = write(tmp_path / "a.csv", [f'1,a,"{text}",1', "1,a,2024-05-01T01:00:00.25,1"])
    data = made(tmp_path, source, inputs="when")
    np.testing.assert_allclose(data.read(0, 2)[0][:, 0], [seconds, 3600.25], rtol=0, atol=4e-7)


@pytest.mark.parametrize("text", ["2024-W18-3", "2024-122", "2024-05", "01.05.2024 10:00", "2024/05/01"])
def test_dates_of_other_forms_are_refused(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / "a.csv", [f"1,a,{text},1", f"1,a,{text},2"])
    with pytest.raises(InputError, match=r"'when'.*(date|2024-05-31)"):
        made(tmp_path, source, inputs="when")
    assert not (tmp_path / "s.zarr").exists()


def test_text_with_a_value_for_each_row_is_no_category(tmp_path: Path) -> None:
    """Ten texts in twenty rows are categories, eleven are not; of fewer rows any number."""
    for count, rows, refused in ((10, 20, False), (11, 20, True), (19, 19, False), (30, 60, False), (31, 60, True)):
        folder = tmp_path / f"{count} {rows}"
        folder.mkdir()
        lines = [f"1,{chr(97 + i % count % 26)}{i % count},2024-01-01,1" for i in range(rows)]
        files = [write(folder / "a.csv", lines[:5]), write(folder / "b.csv", [*lines[5:], "1,,2024-01-01,1"])]
        if refused:
            with pytest.raises(InputError, match=rf"'colour': has {count} different texts in {rows} rows.*--one-hot"):
                made(folder, *files, inputs="colour")
            assert not (folder / "s.zarr").exists()
        made(folder, *files, inputs="colour", one_hot=["colour"] if refused else [])
        assert len(open_dataset(folder / "s.zarr").input_columns) == count


#: Numbers and times as people write them, by what a refusal calls them; 1 to 4 stand in the place of {}.
QUANTITIES = {
    "numbers with something beside them": (
        "{} m", "{}.5m", "{}.5 m", "${}.50", "\N{EURO SIGN} {}", "({}.5)", "{}\N{DEGREE SIGN}C", "~{}", "<{}.5",
        "\N{EN DASH}{}.5", "{}.5-", "{} kg m-2",
    ),
    "numbers that are not written in decimals": (
        "{}.5+03", ".{}-102", "{}.-03",
        "{}/2", "0x0{}", "{}.5\N{PLUS-MINUS SIGN}0.1", "1.5 +/- 0.{}", "{}.5x10^3", "{}*10**5",
    ),
    "numbers with underscores": ("{}_000", "1{}_500.5", "-{}_250", "{}_100_203"),
    "angles": (
        "4{}.5N", "4{} w", "W 4{}.5", "4{}\N{DEGREE SIGN}30'N", "4{}d30m15sE", "4{}\N{DEGREE SIGN} 30' 15\"",
    ),
    "dates or times": (
        "0{}:30", "1{}:30:15", "{}:30 PM", "0{}-Mar-2024", "{} March 2024 12:00", "Mar {}, 2024", "2024-Mar-0{}",
        "PT{}H", "P{}DT12H30M", "1000{}-02-28", "+12024-02-0{}T12:00Z", "-0044-03-1{}",
    ),
}  # fmt: skip
#: Categories, though there are digits in them.
CATEGORIES = (
    "ST{}",
    "station {}",
    "Marina {}",
    "Junction 5/1{}",
    "MARCH{}",
    "SEPT{}",
    "{}D",
    "{}A",
    "{}N",
    "P{}D",
    "1d{}x",
    "buoy-4100{}",
    "2024Q{}",
    "Jan {}x",
    "{}-10",
    "12_10{}",
    "1_{}",
    "7{}-200-9",
    "12345-67-0{}",
    "r{}.x",
    "N{}",
    "{}{}A{}",
    "P{}",
    "v{}",
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("spelt", [spelt for kinds in QUANTITIES.values() for spelt in kinds])
@pytest.mark.parametrize("repeated", [True, False])
def test_numbers_and_times_in_other_forms_are_no_categories(
    tmp_path: Path, spelt: str, kind: str, repeated: bool
) -> None:
    """However often each value is repeated, as latitudes of a grid are."""
    (called,) = (name for name, spellings in QUANTITIES.items() if spelt in spellings)
    values = [spelt.replace("{}", str(1 + i % 4)) for i in range(40 if repeated else 4)]
    if kind == "csv":
        source = tmp_path / "a.csv"
        fields = ['"' + value.replace('"', '""') + '"' for value in values]
        source.write_text("\n".join(["v,u", *(f"{field},1" for field in fields)]) + "\n")
    else:
        source = tmp_path / "a.parquet"
        pq.write_table(pa.table({"v": values, "u": np.ones(len(values))}), source)
    with pytest.raises(InputError, match=rf"'v'.*{called}.*--one-hot v"):
        made(tmp_path, source, inputs="v")
    assert not (tmp_path / "s.zarr").exists()
    made(tmp_path, source, inputs="v", one_hot=["v"])
    assert len(open_dataset(tmp_path / "s.zarr").input_columns) == 4


def test_blanks_in_long_text_take_no_time() -> None:
    """Regular expressions may try such text in cubic time; a minute would be hours."""
    for beginning in ("1d1", "1", "1.5", "$1", "P1DT1", "1 jan"):
        for blank in (" ", ".", "'", ","):
            assert describe_quantities([beginning + blank * 10**6 + "x"]) == ""
            describe_quantities([beginning + blank * 36 + "x"] * 100)


@pytest.mark.parametrize("spelt", CATEGORIES)
def test_names_with_digits_are_categories(tmp_path: Path, spelt: str) -> None:
    values = [spelt.replace("{}", str(1 + i % 4)) for i in range(40)]
    pq.write_table(pa.table({"v": values, "u": np.ones(40)}), tmp_path / "a.parquet")
    made(tmp_path, tmp_path / "a.parquet", inputs="v")
    assert len(open_dataset(tmp_path / "s.zarr").input_columns) == 4


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("missing", sorted(MISSING_TIMES))
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("block", [2**20, 64])
def test_times_that_are_missing_may_be_written_so(
    tmp_path: Path, kind: str, missing: str, first: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a block, or a later file, in which all times are missing; zones may differ."""
    monkeypatch.setattr("dorff.data.csv_reader.BLOCK", block)
    times = ["2024-05-01T00:00:01", missing, "2024-05-01T02:00:02+02:00"]
    values = [*[missing] * 400, *times] if first else times
    for name, texts in (("a", values), ("b", [missing] * 3)):
        table = pa.table({"when": texts, "u": np.ones(len(texts))})
        pacsv.write_csv(table, tmp_path / f"{name}.csv") if kind == "csv" else pq.write_table(
            table, tmp_path / f"{name}.parquet"
        )
    data = made(tmp_path, tmp_path / f"a.{kind}", tmp_path / f"b.{kind}", inputs="when")
    read = data.read(0, data.n)[0][:, 0]
    np.testing.assert_array_equal(read[len(values) - 3 :], [1, np.nan, 2, np.nan, np.nan, np.nan])
    assert data.encoding == {"when": {"time": ["seconds since 2024-05-01T00:00:00"]}}


def test_categories_may_be_called_as_missing_times_are(tmp_path: Path) -> None:
    made(tmp_path, write(tmp_path / "a.csv", [f"1,{one},2024-01-01,1" for one in ("NAT", "SAT")]), inputs="colour")
    assert open_dataset(tmp_path / "s.zarr").input_columns == ("colour=NAT", "colour=SAT")


UNITS_OF_DURATIONS = ["W", "D", "h", "m", "s", "ms", "us", "ns", "25s"]


@pytest.mark.parametrize("unit", UNITS_OF_DURATIONS)
@pytest.mark.parametrize("kind", ["npy", "npz", "zarr"])
def test_durations_of_numpy_are_seconds(tmp_path: Path, unit: str, kind: str) -> None:
    durations = np.array([3, -2, "NaT"], f"m8[{unit}]")
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(path, durations)
    elif kind == "npz":
        np.savez(path, c0=durations)
    else:
        group = zarr.open_group(path, mode="w")
        group.create_array("c0", data=durations.astype("m8[ns]"), dimension_names=["row"])
        group["c0"].attrs["units"] = "ns"
    ingest([path], tmp_path / "s.zarr", inputs=["c0"])
    dataset = open_dataset(tmp_path / "s.zarr", targets=None)
    seconds = durations / np.timedelta64(1, "s")
    np.testing.assert_array_equal(dataset.read(0, 3)[0][:, 0], seconds)
    assert dataset.column_attributes["c0"]["units"] == "s"


@pytest.mark.parametrize("dtype", ["m8[M]", "m8[Y]", "m8"])
def test_durations_of_no_fixed_length_are_refused(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", t=np.array([1, 2], dtype), x=np.ones(2))
    with pytest.raises(InputError, match=r"column 't' .*durations"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["t"])
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["x"])


def test_fields_of_a_structured_array_are_columns(tmp_path: Path) -> None:
    kinds = [("x", ">f4"), ("n", "i8"), ("t", "m8[ms]"), ("v", "f8", (2,)), ("when", "M8[s]"), ("c", "U3")]
    rows = np.zeros(3, kinds)
    rows["x"], rows["n"], rows["v"], rows["c"] = [0.5, 1, 2], [2**40, 1, 2], [[1, 2], [3, 4], [5, 6]], list("aba")
    rows["t"], rows["when"] = np.arange(3), np.datetime64("2024-01-01") + np.arange(3)
    np.save(tmp_path / "a.npy", rows)
    ingest([tmp_path / "a.npy"], tmp_path / "s.zarr", inputs=["x", "n", "t", "v", "when"], classes="c")
    dataset = open_dataset(tmp_path / "s.zarr", targets=None)
    assert dataset.input_columns == ("x", "n", "t", "v0", "v1", "when")
    wanted = [[0.5, 2**40, 0, 1, 2, 0], [1, 1, 0.001, 3, 4, 86400], [2, 2, 0.002, 5, 6, 172800]]
    np.testing.assert_array_equal(dataset.read(0, 3)[0], wanted)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5", ".zarr"])
def test_records_that_are_no_columns_are_refused(tmp_path: Path, suffix: str) -> None:
    """Records within records, and in files of several arrays: each field is to be an array of its own."""
    rows = np.zeros(3, [("x", "f8"), ("r", [("a", "f8"), ("b", "i4")])])
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, rows)
        np.save(tmp_path / "square.npy", rows[["x"]].reshape(1, 3))
        with pytest.raises(InputError, match="structured"):
            ingest([tmp_path / "square.npy"], tmp_path / "s.zarr", inputs=["x"])
    elif suffix == ".npz":
        np.savez(path, x=np.ones(3), r=rows["r"])
    elif suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"], file["r"] = np.ones(3), rows["r"]
    else:
        group = zarr.open_group(path, mode="w", zarr_format=2)
        group.create_array("x", data=np.ones(3))
        group.create_array("r", data=rows["r"])
    with pytest.raises(InputError, match=r"column 'r' .*fields"):
        ingest([path], tmp_path / "s.zarr", inputs=["r"])
    assert ingest([path], tmp_path / "s.zarr", inputs=["x"]) == 3


def write_wide(path: Path) -> Path:
    """Arrays of two columns: of numbers, text and times."""
    arrays: dict[str, Any] = {
        "n": np.arange(30.0),
        "w": np.arange(60).reshape(30, 2) % 3,
        "s": np.array([["a", "b"]] * 15 + [["c", "d"]] * 15),
        "t": np.arange(60).reshape(30, 2).astype("M8[h]"),
    }
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        dims = {1: ("row",), 2: ("row", "part")}
        data = xr.Dataset({name: (dims[v.ndim], v) for name, v in arrays.items() if name in "nw"})
        data.to_netcdf(path) if path.suffix == ".nc" else data.to_zarr(path, consolidated=False)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".nc", ".zarr"])
@pytest.mark.parametrize("names", [["w"], ["w0", "w1"], ["w1"]])
def test_columns_of_an_array_are_categories(tmp_path: Path, suffix: str, names: list[str]) -> None:
    source, store = write_wide(tmp_path / f"a{suffix}"), tmp_path / "s.zarr"
    ingest([source], store, inputs=["n", "w"], one_hot=names)
    first = ("w0=0", "w0=1", "w0=2") if names != ["w1"] else ("w0",)
    assert open_dataset(store, targets=None).input_columns == ("n", *first, "w1=0", "w1=1", "w1=2")
    assert ingest([source], store, inputs=["n", "w"], append=True, again=True) == 60
    ordered = {name: ["2", "1", "0"] for name in names}
    ingest([source], tmp_path / "t.zarr", inputs=["n", "w"], ordered=ordered)
    rows = open_dataset(tmp_path / "t.zarr", targets=None).read(0, 3)[0]
    np.testing.assert_array_equal(rows[:, 2], [1, 2, 0])  # of 1, 0, 2
    np.testing.assert_array_equal(rows[:, 1], [0, 2, 1] if names == ["w1"] else [2, 0, 1])


def test_arrays_of_text_and_of_times_are_encoded_column_by_column(tmp_path: Path) -> None:
    source = write_wide(tmp_path / "a.npz")
    ingest([source], tmp_path / "s.zarr", inputs=["s", "t", "t0:day"])
    dataset = open_dataset(tmp_path / "s.zarr", targets=None)
    categories = ("s0=a", "s0=c", "s1=b", "s1=d")
    assert dataset.input_columns == (*categories, "t0", "t1", "t0:day:sin", "t0:day:cos")
    np.testing.assert_array_equal(dataset.read(1, 2)[0][0, :6], [1, 0, 1, 0, 7200, 10800])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": ["n", "t:day"]}, "t:day.*t0, t1"),
        ({"inputs": ["n"], "one_hot": ["w"]}, "--one-hot w0: is none of the inputs"),
        ({"inputs": ["n"], "groups": "w"}, "groups.*w0, w1"),
    ],
)
def test_an_array_where_a_column_is_wanted_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ingest([write_wide(tmp_path / "a.npz")], tmp_path / "s.zarr", **options)
