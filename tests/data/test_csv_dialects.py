"""Tables of text as instruments, archives and spreadsheets write them."""

import gzip
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call

from dorff.data import csv_reader, ingest, open_dataset
from dorff.data.readers import open_source
from dorff.errors import InputError

XU: dict[str, Any] = {"inputs": ["x"], "targets": ["u"]}
WANTED = [[1.5, 2], [-2, 0.5], [3.25, 7]]


def rows(path: Path, **options: Any) -> Any:
    """The numbers of x and u that come of a file."""
    out = path.with_name("out.zarr")
    n = ingest([path], out, **{**XU, **options})
    return np.hstack(open_dataset(out).read(0, n))


def units(path: Path, *names: str) -> list[str]:
    reader = open_source(path, names)
    return [reader.attributes(name).get("units", "") for name in names]


TEXTS = {
    "erddap": "x,t,u\nm,UTC,m s-1\n1.5,2024-05-01T00:00:00Z,2\n-2,2024-05-01T01:00:00Z,.5\n3.25,,7\n",
    "erddap without units of x": "x,t,u\n,UTC,degrees_north\n1.5,2024-05-01,2\n-2,2024-05-01,.5\n3.25,,7\n",
    "toa5": '"TOA5","77","CR3"\n"x","RECORD","u"\n"m","RN","m/s"\n"","","Smp"\n1.5,0,2\n-2,1,.5\n3.25,2,7\n',
    "toaci1": '"TOACI1","77","t"\n"x","RECORD","u"\n1.5,0,2\n-2,1,.5\n3.25,2,7\n',
    "comments": '# made by a logger, "no 7\nx,u\n# noted,\n1.5,2\n-2,.5\n#end\n3.25,7\n# 3 rows',
    "percent comments": "% a\n%b\nx,u\n1.5,2\n-2,.5\n3.25,7\n",
    "odv": "//<Creator>x y</Creator>\n//SDN\nx\tu\tq\n1.5\t2\t1\n-2\t.5\t1\n3.25\t7\t2\n",
    "savetxt": "# x,u\n1.5,2\n-2,.5\n3.25,7\n",
    "savetxt of blanks": "# x u\n1.5 2\n-2 .5\n3.25 7\n",
    "savetxt after others": "# made of a, b\n# x, u\n1.5,2\n-2,.5\n3.25,7\n",
    "names after a colon": "# columns: x u q\n1.5 2 1\n-2 .5 1\n3.25 7 1\n",
    "ndbc": "#YY x MM  u\n#yr m mo m/s\n2024 1.5  05 2.0\n2024 -2   05 0.5\n2024 3.25 05 7.0\n",
    "pangaea": "/* DATA DESCRIPTION:\nCitation:\tx\tu\n*/\nx\tu\n1.5\t2\n-2\t.5\n3.25\t7\n",
    "sep": "\ufeffsep=;\nx;u\n1,5;2\n-2;,5\n3,25;7\n",
    "sep of commas": "sep=,\nx,u\n1.5,2\n-2,.5\n3.25,7\n",
    "pipes": "x|note|u\n1.5|a, b|2\n-2|c|.5\n3.25||7\n",
    "blanks": "   x     note   u\n   1.5   a      2\n  -2     b       .5\n   3.25  c      7\n",
    "blanks and tabs": "x \t note u\n1.5 a\t2\n-2\t b  .5  \n 3.25 c 7\n",
    "blanks with quotes": 'x note u\n1.5 "a b" 2\n-2 "c  d" .5\n3.25 e 7\n',
    "trailing delimiter": "x,note,u\n1.5,a,2,\n-2,b,.5,\n3.25,c,7,\n",
    "quoted numbers": '"x","u"\n"1.5","2"\n"-2"," .5 "\n"3.25","7"\n',
    "names further down": "Report of a logger\nStation;42\n\nx,u\n1.5,2\n-2,.5\n3.25,7\n",
    "a first name with a mark": "#id,x,u\na,1.5,2\nb,-2,.5\nc,3.25,7\n",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", TEXTS)
def test_dialects_are_recognised(tmp_path: Path, name: str, end: str) -> None:
    data = TEXTS[name].replace("\n", end).encode()
    for file in ("a.dat", "a.csv.gz"):
        (tmp_path / file).write_bytes(gzip.compress(data) if file.endswith("gz") else data)
        reader = open_source(tmp_path / file, ["x", "u", *(["#id"] if "#id" in TEXTS[name] else [])])
        got = np.concatenate([block.numbers for block in reader.blocks(reader.resolve(["x", "u"]))])
        np.testing.assert_array_equal(got, WANTED, err_msg=file)
        assert reader.rows == 3


@pytest.mark.parametrize("block", [64, 100, 4096])
def test_comments_and_blanks_are_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Whole blocks of comments; blocks that end in a run of blanks, or in a comment."""
    monkeypatch.setattr(csv_reader, "BLOCK", block)
    monkeypatch.setattr(csv_reader, "COLUMN_BLOCK", 1)
    lines = [f"  {i}.5 \t  {-i}   " for i in range(300)]
    for at in (290, 200, 100, 3):
        lines[at:at] = [f"#  said {'again ' * (j % 9)}" for j in range(40)]
    (tmp_path / "a.txt").write_text("# x u\n" + "\n".join(lines) + "\n")
    np.testing.assert_array_equal(rows(tmp_path / "a.txt"), [[i + 0.5, -i] for i in range(300)])


def test_units_are_kept_where_they_are_those_of_numbers(tmp_path: Path) -> None:
    for name, wanted in {
        "erddap": ["m", "m s-1", ""],
        "toa5": ["m", "m/s", ""],
        "ndbc": ["m", "m/s", ""],
        "savetxt": ["", "", ""],
    }.items():
        (tmp_path / "a.csv").write_text(TEXTS[name])
        assert units(tmp_path / "a.csv", "x", "u", "t") == wanted, name
    (tmp_path / "a.csv").write_text(TEXTS["erddap"])
    assert len(rows(tmp_path / "a.csv")) == 3
    assert open_dataset(tmp_path / "out.zarr").column_attributes["u"]["units"] == "m s-1"


@pytest.mark.parametrize(
    "text",
    [
        "x,note,u\nred,blue,green\n1.5,a,2\n-2,b,.5\n",  # no units
        "x,note,u\nm,a,9\n1.5,a,2\n-2,b,.5\n",  # a number
        "x,note,u\nm,a,NA\n1.5,a,2\n-2,b,.5\n",  # a row without u
        "x,id,u\nM,1,1\n1.5,2,2\n-2,3,.5\n",  # M and MM are as often missing values
        "x,id,u\nMM,1,\n1.5,2,2\n-2,3,.5\n",
        "x,u\n1,M\n2,2\n3,.5\n",
    ],
)
def test_what_may_be_a_row_is_no_line_of_units(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=r"column '[xu]', row 2: wanted a number"):
        rows(tmp_path / "a.csv")


def test_metres_in_capitals_beside_other_units_are_units(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,t,u\nM,UTC,1\n1.5,2024-05-01,2\n-2,2024-05-02,.5\n")
    assert units(tmp_path / "a.csv", "x") == ["M"]
    assert len(rows(tmp_path / "a.csv")) == 2


@pytest.mark.parametrize("code", ["FPKG1", "A", "42A01", "Tower-3"])
def test_the_way_to_have_codes_among_numbers_is_named(code: str, tmp_path: Path) -> None:
    """Stations are called 41001 and FPKG1, flags 1 and A."""
    (tmp_path / "a.csv").write_text("x,u\n" + "".join(f"{41001 + i % 2},{i}\n{code},{i}\n" for i in range(20)))
    with pytest.raises(InputError, match="--one-hot x makes categories"):
        rows(tmp_path / "a.csv")
    assert rows(tmp_path / "a.csv", one_hot=["x"]).shape == (40, 4)


def test_missing_words_of_numbers(tmp_path: Path) -> None:
    words = ["NAN", "-", "--", "***", "********", "N/A", "#N/A", "NULL", "None", "", "nan", "."]
    (tmp_path / "a.csv").write_text("x,u\n" + "".join(f"{word},1\n" for word in words) + "2.5,3\n")
    got = rows(tmp_path / "a.csv")
    assert np.isnan(got[:-1, 0]).all() and got[-1, 0] == 2.5 and len(got) == len(words) + 1
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.txt").write_text("#YY MM u\n#yr mo m\n2024 1 MM\n2024 2 5\n")
    np.testing.assert_array_equal(rows(tmp_path / "b" / "b.txt", inputs=["YY"], targets=["MM"], also={"u": "u"}), [
        [2024, 1], [2024, 2],
    ])  # fmt: skip


ASOS = (
    "station,valid,x,u,sky,net\n"
    "DSM,2024-05-01 00:53,M,55.0,CLR,IA\nDSM,M,66.0,T,M,M\n"
    "AMW,2024-05-01 02:53,65.0,54.1,OVC,IA\nAMW,2024-05-01 03:53,M,2,CLR,MN\n"
)
NAN = np.nan


@pytest.mark.parametrize("words", [["M", "T"], ["T", -9, "M"], [" M ", "T", "none"]])
def test_given_words_stand_for_none(tmp_path: Path, words: list[Any]) -> None:
    """In numbers, times, categories, labels and groups; the data set remembers them for further tables."""
    path = tmp_path / "a.csv"
    path.write_text(ASOS)
    with pytest.raises(InputError, match=r"column 'x', row 2: .* --missing M"):
        rows(path)
    said: list[str] = []
    columns: dict[str, Any] = {"inputs": ["x", "valid", "sky"], "also": {"rain": "u"}, "targets": []}
    columns |= {"classes": "station", "groups": "net"}
    ingest([path], tmp_path / "s.zarr", **columns, missing=words, notice=said.append)
    dataset = open_dataset(tmp_path / "s.zarr", targets=None)
    hour = 3600.0
    wanted = [[NAN, 3180, 1, 0], [66, NAN, NAN, NAN], [65, 2 * hour + 3180, 0, 1], [NAN, 3 * hour + 3180, 1, 0]]
    assert dataset.input_columns == ("x", "valid", "sky=CLR", "sky=OVC")
    np.testing.assert_array_equal(dataset.read(0, 4)[0], wanted)
    rain = open_dataset(tmp_path / "s.zarr", inputs="rain", targets=None)
    np.testing.assert_array_equal(rain.read(0, 4)[0][:, 0], [55, NAN, 54.1, 2])
    assert not any("--missing M" in sentence or "--missing T" in sentence for sentence in said)
    assert any("1 of 4 rows have no group" in sentence for sentence in said)
    (tmp_path / "b.csv").write_text("station,valid,x,u,sky,net\nM,2024-05-01,M,T,M,M\n")
    ingest([tmp_path / "b.csv"], tmp_path / "s.zarr", **columns, append=True)
    assert np.isnan(open_dataset(tmp_path / "s.zarr", targets=None).read(4, 5)[0][0, [0, 2, 3]]).all()


def test_given_words_are_no_names_and_no_units(tmp_path: Path) -> None:
    """A first row of words that stand for none is a row, also where M would be metres."""
    path = tmp_path / "a.csv"
    path.write_text("x,u\nM,M\n1.5,2\n")
    np.testing.assert_array_equal(rows(path, missing=["M"]), [[NAN, NAN], [1.5, 2]])
    (tmp_path / "b").mkdir()
    path = tmp_path / "b" / "a.csv"
    path.write_text("M,2\n1.5,M\n")
    np.testing.assert_array_equal(rows(path, inputs=["c0"], targets=["c1"], missing=["M"]), [[NAN, 2], [1.5, NAN]])


@pytest.mark.parametrize("word", ["-999,9", "***", "/", "missing", "1.234.567", "-99 "])
def test_any_word_may_stand_for_none(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'x;u\n"{word}";1\n2;3\n'.replace(";", ";" if "," in word else ","))
    np.testing.assert_array_equal(rows(path, missing=[word])[:, 0], [NAN, 2])


def test_what_a_word_is_in_other_formats(tmp_path: Path) -> None:
    """Labels of text are none by words, and by numbers that are given; numbers are not compared with words."""
    labels = np.array([b"M", b"9", b"a ", b"9"])
    np.savez(tmp_path / "a.npz", x=np.array([1.0, 9, 3, 4]), u=np.ones(4), c=labels)
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["x"], classes="c", missing=["M", 9, "a"])
    dataset = open_dataset(tmp_path / "s.zarr", targets=None)
    np.testing.assert_array_equal(dataset.read(0, 4)[0][:, 0], [1, NAN, 3, 4])
    codes = open_dataset(tmp_path / "s.zarr", inputs="classes", targets=None).read(0, 4)[0]
    assert (codes == -1).all()


@pytest.mark.parametrize("word", ["", "  "])
def test_an_empty_word_is_refused(tmp_path: Path, word: str) -> None:
    (tmp_path / "a.csv").write_text("x,u\n1,2\n")
    with pytest.raises(InputError, match="--missing"):
        rows(tmp_path / "a.csv", missing=[word])


NUMBERS = {
    "thousands": (['"1,000.5"', '"12,345"', "7.25"], [1000.5, 12345, 7.25]),
    "millions": (['"1,000,000"', "5", '"2,000"'], [1e6, 5, 2000]),
    "decimal commas": (['"1,5"', '"1,000"', "3"], [1.5, 1, 3]),
    "points between thousands": (['"1.000,5"', '"12.345"', '"7,25"'], [1000.5, 12345, 7.25]),
    "blanks": (["1 000.5", "12\u202f345", "7"], [1000.5, 12345, 7]),
    "apostrophes": (["1'000.5", "12'345", "7"], [1000.5, 12345, 7]),
    "percent": (["50.3%", "4 %", "-.5%"], [50.3, 4, -0.5]),
    "minus": (["\u22121.5", "\u22122", "3e\u22122"], [-1.5, -2, 0.03]),
    "fortran": (["1.5D+03", "1d-1", "2.E2"], [1500, 0.1, 200]),
    "plus": (["+1.5", ".5", "5."], [1.5, 0.5, 5]),
    "infinity": (["-inf", "Infinity", "1.5D0"], [-np.inf, np.inf, 1.5]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_as_people_write_them(tmp_path: Path, name: str) -> None:
    texts, wanted = NUMBERS[name]
    (tmp_path / "a.csv").write_text("x,u\n" + "".join(f"{text},1\n" for text in texts) + ",1\n--,1\n")
    np.testing.assert_array_equal(rows(tmp_path / "a.csv")[:, 0], [*wanted, np.nan, np.nan])
    assert units(tmp_path / "a.csv", "x") == ["%" if name == "percent" else ""]


def test_decimal_commas_between_semicolons_group_by_points(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;u\n1.000,5;2\n2;,5\n1 000,25;7\n")
    np.testing.assert_array_equal(rows(tmp_path / "a.csv"), [[1000.5, 2], [2, 0.5], [1000.25, 7]])


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
@pytest.mark.parametrize(
    "column",
    [
        ["1,000", "1,007", "1,014"],
        ["900", "998", "1,005"],
        ["-1,000", "\u22121,007", "+2,000"],
        ["1,005%", "3%"],
        ["1,000e3", ""],
    ],
)
def test_commas_that_may_part_thousands_are_refused(tmp_path: Path, delimiter: str, column: list[str]) -> None:
    lines = [f"{number}{delimiter}{text}\n" for number, text in enumerate(column)]
    (tmp_path / "a.txt").write_text(f"u{delimiter}x\n" + "".join(lines))
    with pytest.raises(InputError, match=r"column 'x'.*--decimal"):
        rows(tmp_path / "a.txt")
    parsed = rows(tmp_path / "a.txt", text={"decimal": "."})[0, 0]
    assert parsed == {"1,005%": 1005, "900": 900, "-1,000": -1000, "1,000e3": 1e6}.get(column[0], 1000)


def test_commas_before_three_digits_are_decimal_where_another_number_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;u\n1,000;2,5\n1,007;3\n")
    np.testing.assert_array_equal(rows(tmp_path / "a.csv"), [[1, 2.5], [1.007, 3]])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.csv").write_text("x;u\n0,125;2\n1,007;3\n")
    np.testing.assert_array_equal(rows(tmp_path / "b" / "a.csv"), [[0.125, 2], [1.007, 3]])


def test_underscores_part_no_thousands(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,u\n12_100,1\n12_101,1\n12_100,2\n")
    np.testing.assert_array_equal(rows(tmp_path / "a.csv")[:, :2], [[1, 0], [0, 1], [1, 0]])
    for number, (where, kept) in enumerate({"x == '12_100'": 2, "x != 12100": 3}.items()):
        assert ingest([tmp_path / "a.csv"], tmp_path / f"{number}.zarr", inputs=["u"], where=where) == kept


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (['"1,000"', '"2,500"', "7"], "'1,000' may be a decimal mark.*--decimal"),
        (['"1,5"', "1.5"], "row 2: wanted a number, got '1,5'"),
        (["50.3%", "4"], "wanted a number, got '50.3%'"),
        (["1,000.5", "2"], "wanted 2 fields, got 3"),
        (["1.5", "(1.5)"], r"wanted a number, got '\(1.5\)'"),
        (["1.5", "$1.5"], "wanted a number, got"),
        (["1.5", "12 m"], "wanted a number, got"),
        (['"12,34.5"', "1"], "wanted a number, got"),
        (["1.5"] * 30_000 + ['"1,000.5"'], r"row 30002: wanted a number, got '1,000.5'.*--decimal"),
        (['"1,000.5"'] * 30_000 + ["12,3.4"], "wanted 2 fields, got 3"),
        (['"1,000.5"'] * 30_000 + ['"12,3.4"'], "'x', row 30002: wanted a number, got '12,3.4'"),
    ],
)
def test_what_is_no_sure_number_is_refused(tmp_path: Path, column: list[str], message: str) -> None:
    (tmp_path / "a.csv").write_text("x,u\n" + "".join(f"{text},1\n" for text in column))
    with pytest.raises(InputError, match=message):
        rows(tmp_path / "a.csv")
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'"TOB1","77","CR3"\n"x","u"\nabc', "binary"),
        (b"x,u\n1,2\n3,4\nTotal: 7\n", "'Total: 7'.*--comment"),
        ("x,Größe\n1,2\n".encode("cp1252"), "not UTF-8 text: save"),
        (b"some report\nof a logger\nX,U\n1,2\n", "no column 'x'.*--skip-rows"),
        (b"# x,u\n1.5,2\n#3,4\n", "line 3 is a comment by its beginning.*--comment"),
        (b'# x,u\nn,x,u\n"a\n# b",1,2\n', "inside of quotes"),
        (b"# only\n# comments\n", "is empty"),
        (b"x,u\n", "has no rows"),
        (b"# x\nx,u\n", "has no rows"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_do(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(InputError, match=message):
        rows(tmp_path / "a.csv", targets=["Größe" if b"Gr" in data else "u"])


@pytest.mark.parametrize("shift", range(-1, 11))
def test_ends_of_lines_in_quotes_are_kept_where_blocks_meet(tmp_path: Path, shift: int) -> None:
    """The bytes CR and LF of a quoted text lie on either side of the first MiB, and near it.

    A reader leaves out the text of the header, 8 bytes.
    """
    path, block = tmp_path / "notes.csv", 2**20
    text = "x,note,u\r\n"
    rows = (block - 100) // len("1,a,1.5\r\n")
    text += "1,a,1.5\r\n" * rows
    before = text + '1,"'
    note = "n" * (block - 1 + shift - len(before)) + "\r\nend"
    path.write_bytes(f'{before}{note}",2.5\r\n1,a,1.5\r\n'.encode())
    reader = open_source(str(path), ["x", "note", "u"])
    found = set[Any]()
    count = 0
    for source_block in reader.blocks(["x", "u"], ["note"]):
        found.update(source_block.labels[0].values)
        count += len(source_block)
    assert count == rows + 2
    assert found == {"a", note}


WEATHER = "x,gust,qc\n1,M,a\n2,3.5,T\n3,999,b\n4,M,a\n"


@pytest.mark.parametrize(
    ("missing", "unmet"),
    [
        (["M"], []),
        (["M", "MM"], ["MM"]),
        (["M", "Q", "5"], ["5", "Q"]),
        (["M", "T", "999"], []),  # T in a column of labels
        (["M", "a"], []),
        (["M", "x"], ["x"]),  # a name alone
    ],
)
@pytest.mark.parametrize("kind", ["csv", "quoted", "tsv", "blanks", "folder", "side by side", "where"])
def test_words_that_no_field_is_are_said(tmp_path: Path, kind: str, missing: list[str], unmet: list[str]) -> None:
    text, path = WEATHER, tmp_path / "a.csv"
    if kind == "quoted":
        text = "".join('"' + '","'.join(line.split(",")) + '"\n' for line in text.splitlines())
    elif kind in ("tsv", "blanks"):
        path = tmp_path / ("a.tsv" if kind == "tsv" else "a.txt")
        text = text.replace(" ", "").replace(",", "\t" if kind == "tsv" else "   ")
    elif kind == "folder":
        path = tmp_path / "table" / "a.csv"
        path.parent.mkdir()
    path.write_text(text)
    source = str(path.parent if kind == "folder" else path)
    if kind == "side by side":
        (tmp_path / "b.csv").write_text("n\n1\n2\n3\n4\n")
        source += f"+{tmp_path / 'b.csv'}"
    said: list[str] = []
    options: dict[str, Any] = {"where": "x > 0"} if kind == "where" else {}
    arrays = {"inputs": ["x"], "targets": ["gust"], "classes": "qc"}
    ingest([source], tmp_path / "s.zarr", missing=missing, notice=said.append, **arrays, **options)
    words = [sentence.split()[1].rstrip(":") for sentence in said if sentence.startswith("--missing")]
    assert sorted(words) == unmet


@pytest.mark.parametrize("length", [1, 7, 100])
def test_words_are_found_where_blocks_of_a_file_meet(tmp_path: Path, length: int) -> None:
    """At any place, in the last field too; parts of longer ones are none."""
    word = "M" * length
    for number in range(3):
        block = 2**20 - len("x,u\n") - length + number
        rows = "1,2" + "0" * (block % 4) + "\n" + "1,2\n" * (block // 4 - 1) + "1,"
        (tmp_path / f"{number}.csv").write_text(f"x,u\n{rows}{word}\n3,4\n5,{word}")
        said: list[str] = []
        arrays = {"inputs": ["x"], "targets": ["u"]}
        missing = [word, word[1:] or "N"]
        ingest([tmp_path / f"{number}.csv"], tmp_path / f"{number}.zarr", missing=missing, notice=said.append, **arrays)
        assert [one.split()[1] for one in said if "--missing" in one] == [f"{missing[1]}:"]


@pytest.mark.parametrize("field", [" M ", " M", "M ", "       M", "M         ", '" M "', " NA ", " -9 ", "   ", " -- "])
def test_blanks_around_words_for_no_number_do_not_count(tmp_path: Path, field: str) -> None:
    """Beyond the first rows, too."""
    rows = ["1,2", f"2,{field}", "3,4"] * 10_000
    (tmp_path / "t.csv").write_text("\n".join(["x,u", *rows]))
    ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=["x"], targets=["u"], missing=["M", "-9"])
    u = open_dataset(tmp_path / "s.zarr", inputs=["x"], targets=["y"]).read(0, 30_000)[1][:, 0]
    np.testing.assert_array_equal(u, [2, np.nan, 4] * 10_000)


@pytest.mark.parametrize("word", ["#DIV/0!", "#VALUE!", "(null)", r"\N", "n.d.", "!", "out & in"])
def test_the_option_for_a_word_can_be_pasted_into_a_shell(tmp_path: Path, word: str) -> None:
    (tmp_path / "t.csv").write_text(f"x,u\n1,2\n2,{word}\n3,4\n")
    names = {"inputs": ["x"], "targets": ["u"]}
    with pytest.raises(InputError, match="takes it for none") as refused:
        ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", **names)
    _, _, option = str(refused.value).partition("--missing ")
    given = shlex.split(option.partition(" takes it")[0])
    assert ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", **names, missing=given) == 3


@pytest.mark.parametrize("word", ["M", "NA", ""])
def test_more_blanks_around_a_word_are_said(tmp_path: Path, word: str) -> None:
    (tmp_path / "t.csv").write_text(f"x,u\n1,2\n2,{' ' * 30}{word}{' ' * 30}\n3,4\n")
    with pytest.raises(
        InputError, match=f"column 'u', row 3: .* got '{word}' with blanks around it; remove"
    ) as refused:
        ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=["x"], targets=["u"], missing=["M"])
    assert "--missing" not in str(refused.value)


def test_very_many_words_for_no_number_are_taken(tmp_path: Path) -> None:
    words = [f"M{number}" for number in range(1000)]
    (tmp_path / "t.csv").write_text("x,u\n1,2\n2,M999\n3,M0\n")
    ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=["x"], targets=["u"], missing=words)
    u = open_dataset(tmp_path / "s.zarr", inputs=["x"], targets=["y"]).read(0, 3)[1][:, 0]
    np.testing.assert_array_equal(u, [2, np.nan, np.nan])


@pytest.mark.parametrize(("count", "length", "taken"), [(200, 200, True), (3000, 18, True), (400, 200, False)])
def test_long_words_for_no_number_do_not_end_the_process(tmp_path: Path, count: int, length: int, taken: bool) -> None:
    """Arrow does not check whether its tree of such words is full."""
    words = [f"{number}{'M' * length}"[:length] for number in range(1000, 1000 + count)]
    (tmp_path / "t.csv").write_text(f"x,u\n1,2\n2,{words[-1]}\n3,{words[0]}\n")

    def read() -> None:
        ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=["x"], targets=["u"], missing=words)

    if not taken:
        with pytest.raises(InputError, match=r"--missing: wanted at most 4,000 values of 60,000 letters"):
            read()
        return
    read()
    u = open_dataset(tmp_path / "s.zarr", inputs=["x"], targets=["y"]).read(0, 3)[1][:, 0]
    np.testing.assert_array_equal(u, [2, np.nan, np.nan])


@pytest.mark.parametrize("word", ["Total", "Sum", "EOF"])
def test_a_line_of_sums_at_the_end_may_be_left_out_as_a_comment(word: str, tmp_path: Path) -> None:
    """With `--missing` it would be one more row, with a gap."""
    source = tmp_path / "a.csv"
    lines = [f"{row},{row % 7},{row % 5}" for row in range(300)]
    source.write_text("\n".join(["x,y,u", *lines, f"{word},1,2"]) + "\n")
    words = ("ingest", source, tmp_path / "s.zarr", "--inputs", "x,y", "--targets", "u")
    assert f"--comment {word} " in " ".join(call(*words).stderr.split())
    done = call(*words, "--comment", word)
    assert done.exit_code == 0 and "300 rows" in done.stdout, done.output
