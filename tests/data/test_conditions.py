"""Rows that are kept by a condition on their columns."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from command_line import call

from dorff.data import ingest, open_dataset
from dorff.errors import InputError

TABLE: dict[str, list[Any]] = {
    "n": [0.0, 1, 2, 3, 4, 5],
    "qc": [1.0, 2, 4, 1, np.nan, 2],
    "flag": ["1", "2", "B", None, "1", "good"],
    "when": ["2024-05-01", "2024-05-01 12:00", "2024-05-02", "2024-05-03", None, "2024-05-04"],
    "wind speed": [1.0, 2, 3, 4, 5, 6],
}


def write(path: Path) -> Path:
    if path.suffix == ".parquet":
        times = pa.array([None if w is None else np.datetime64(w.replace(" ", "T"), "ns") for w in TABLE["when"]])
        pq.write_table(pa.table(TABLE | {"when": times}), path)
    elif path.suffix == ".npz":
        flags = np.array([value or "" for value in TABLE["flag"]], "S4")
        when = np.array(["NaT" if w is None else w.replace(" ", "T") for w in TABLE["when"]], "M8[m]")
        np.savez(path, **(TABLE | {"flag": flags, "when": when}))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, values in TABLE.items():
                text = name in ("flag", "when")
                file[name] = [value or "" for value in values] if text else values
    else:
        cells = [["" if v is None or v != v else str(v) for v in values] for values in TABLE.values()]
        path.write_text("\n".join([",".join(TABLE), *map(",".join, zip(*cells, strict=True))]) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".h5"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("qc in (1, 2)", [0, 1, 3, 5]),
        ("qc not in (1, 2)", [2]),  # of a missing flag nothing is known
        ("qc != 1", [1, 2, 5]),
        ("not qc == 1", [1, 2, 5]),
        ("qc == 1 or n > 3", [0, 3, 4, 5]),
        ("not (qc == 1 and n < 3)", [1, 2, 3, 4, 5]),
        ("1 < qc <= 4 and n != 5", [1, 2]),
        ("2 <= n", [2, 3, 4, 5]),
        ("flag in (1, 2, '2')", [0, 1, 4]),
        ("flag in ['1', 'good']", [0, 4, 5]),
        ("flag != 'B'", [0, 1, 4, 5]),
        ("when >= '2024-05-01T12:00' and when < '2024-05-04'", [1, 2, 3]),
        ("when == '2024-05-01T12:00:00Z'", [1]),
        ("`wind speed` < -(-3)", [0, 1]),
        ("`wind speed` > n", [0, 1, 2, 3, 4, 5]),
        ("n > qc", [3, 5]),
        ("flag in (1, 2)", [0, 1, 4]),
        ("flag == 1.0", [0, 4]),
        ("flag != 1", [1, 2, 5]),
        ("flag not in (1, 'B')", [1, 5]),
        ("flag == flag", [0, 1, 2, 4, 5]),
        ("flag != flag", []),
    ],
)
def test_rows_are_kept_by_a_condition(tmp_path: Path, suffix: str, where: str, kept: list[int]) -> None:
    source = write(tmp_path / f"a{suffix}")
    said: list[str] = []
    if not kept:
        with pytest.raises(InputError, match="holds for none"):
            ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
        return
    n = ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where, notice=said.append)
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0], kept)
    assert any(f"{6 - len(kept)} of 6 rows were left out" in sentence for sentence in said)


def test_labels_categories_and_counts_are_of_kept_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet")
    columns: dict[str, Any] = {"inputs": ["n", "flag"], "one_hot": ["flag"], "classes": "qc", "groups": "when"}
    ingest([source], tmp_path / "s.zarr", where="qc in (2, 4)", **columns)
    data = open_dataset(tmp_path / "s.zarr", targets=None)
    assert data.input_columns == ("n", "flag=2", "flag=B", "flag=good")
    attributes = json.loads((tmp_path / "s.zarr" / "zarr.json").read_text())["attributes"]["dorff"]
    assert attributes["labels"] == {"classes": [2, 4]} and attributes["counts"] == {"classes": [2, 1]}
    assert attributes["left_out"] == {"qc in (2, 4)": 3}


def test_what_was_left_out_is_counted_over_appended_files(tmp_path: Path) -> None:
    said: list[str] = []
    for number, where in enumerate(("qc == 1", "qc == 1", "")):
        (tmp_path / f"{number}").mkdir()
        source = tmp_path / f"{number}" / "a.csv"
        source.write_text(f"n,qc\n{number},1\n5,4\n")
        ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where, append=number > 0, notice=said.append)
    attributes = json.loads((tmp_path / "s.zarr" / "zarr.json").read_text())["attributes"]["dorff"]
    assert attributes["rows"] == 4 and attributes["left_out"] == {"qc == 1": 2}
    assert "chosen by --where qc == 1" in said[-1]


def test_a_source_without_such_rows_is_none_but_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,qc\n1,4\n")
    (tmp_path / "b.csv").write_text("n,qc\n2,1\n")
    sources = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert ingest(sources, tmp_path / "s.zarr", inputs=["n"], where="qc == 1") == 1
    with pytest.raises(InputError, match="holds for none of 2 rows"):
        ingest(sources, tmp_path / "t.zarr", inputs=["n"], where="qc == 7")
    assert not (tmp_path / "t.zarr").exists()


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('touch hacked')",
        "n.__class__ == 1",
        "(lambda: 1)() == n",
        "[x for x in (1,)] == n",
        "n == f'{n}'",
        "n + 1 > 2",
        "n",
        "1 == 1",
        "n in 3",
        "n in (m, 1)",
        "n is 1",
        "n == 1 & qc == 1",
        "n = 1",
        "n ==",
        "n == None",
        "n == 1j",
        "(" * 3000 + "n == 1" + ")" * 3000,
        "m == 1",
        "n == 'red'",
        "flag > 'a'",
        "flag > 1",
        "flag == n",
        "n < flag",
    ],
)
def test_what_is_no_condition_is_refused(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet")
    done = call("ingest", "a.parquet", "s.zarr", "--inputs", "n", "--where", where)
    assert done.exit_code == InputError.exit_code, done.output
    assert "--where" in done.output or "no column 'm'" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]


def test_options_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "a report;;;\nn;u\n1.000,5;2\nTotal: 3\n! 4;5\n7;8\n"
    (tmp_path / "a.dat").write_text(text)
    words = ("--skip-rows", 1, "--comment", "Total", "--comment", "!", "--delimiter", ";", "--decimal", ",")
    done = call("ingest", "a.dat", "s.zarr", "--inputs", "n", "--targets", "u", *words)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.hstack(open_dataset(tmp_path / "s.zarr").read(0, 2)), [[1000.5, 2], [7, 8]])
    (tmp_path / "b.txt").write_text('n u\n"1,000" 2\n')
    done = call("ingest", "b.txt", "t.zarr", "--inputs", "n", "--delimiter", "blanks", "--decimal", ".")
    assert done.exit_code == 0 and open_dataset(tmp_path / "t.zarr", targets=None).read(0, 1)[0][0, 0] == 1000
    np.savez(tmp_path / "c.npz", n=[1.0])
    for more in (("--skip-rows", 1), ("--comment", "x"), ("--delimiter", "tab"), ("--decimal", ",")):
        done = call("ingest", "c.npz", "v.zarr", "--inputs", "n", *more)
        assert done.exit_code == InputError.exit_code and f"{more[0]} is for tables of text" in done.output
    for more in (("--delimiter", "ab"), ("--decimal", "x")):
        assert call("ingest", "a.dat", "v.zarr", "--inputs", "n", *more).exit_code == InputError.exit_code


FLAGS = ["1", "4", None, "2", "1"]
OTHER = ["1", "3", "1", None, "2"]


def write_flags(path: Path) -> Path:
    """Flags that are digits, as text or bytes; and numbers."""
    numbers = np.arange(5.0)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": numbers, "qc": FLAGS, "other": OTHER}), path)
    elif path.suffix == ".csv":
        rows = zip(numbers, FLAGS, OTHER, strict=True)
        lines = [",".join(str(n) if i == 0 else f'"{n or ""}"' for i, n in enumerate(row)) for row in rows]
        path.write_text("\n".join(["n,qc,other", *lines]) + "\n")
    else:
        columns: dict[str, Any] = {"n": ("n", numbers)}
        for name, flags in (("qc", FLAGS), ("other", OTHER)):
            columns[name] = ("n", np.array([flag or " " for flag in flags], "S1"))
        dataset = xr.Dataset(columns)
        if path.suffix == ".nc":
            dataset.to_netcdf(path)
        else:
            np.savez(path, **{name: values for name, (_, values) in columns.items()})
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".nc", ".npz"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("qc in (1, 2)", [0, 3, 4]),
        ("qc == '1'", [0, 4]),
        ("qc <= 2", [0, 3, 4]),
        ("qc != 1", [1, 3]),
        ("qc == other", [0]),
        ("qc > other", [1]),
        ("qc < n", [3, 4]),
        ("n >= qc", [3, 4]),
    ],
)
def test_flags_that_are_digits_in_text(tmp_path: Path, suffix: str, where: str, kept: list[int]) -> None:
    source = write_flags(tmp_path / f"a{suffix}")
    n = ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0], kept)


@pytest.mark.parametrize("suffix", [".parquet", ".nc", ".npz"])
def test_flags_of_one_digit_are_categories(tmp_path: Path, suffix: str) -> None:
    source = write_flags(tmp_path / f"a{suffix}")
    ingest([source], tmp_path / "s.zarr", inputs=["n", "qc"])
    assert open_dataset(tmp_path / "s.zarr", targets=None).input_columns == ("n", "qc=1", "qc=2", "qc=4")


@pytest.mark.parametrize("values", [["1", "10"], ["12", "13"], ["small", "3"], ["1.5", "2"]])
def test_longer_numbers_in_text_are_no_flags(tmp_path: Path, values: list[str]) -> None:
    pq.write_table(pa.table({"n": [0.0, 1], "qc": values}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="--one-hot qc"):
        ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", inputs=["n", "qc"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".h5"])
@pytest.mark.parametrize(
    ("where", "missing", "kept"),
    [
        ("n < 3", [0], [1, 2]),
        ("n != 2", [0, 2], [1, 3, 4, 5]),
        ("flag != 'B'", ["good"], [0, 1, 4]),
        ("flag in (1, 2)", [1], [1]),
    ],
)
def test_what_stands_for_none_is_unknown(
    tmp_path: Path, suffix: str, where: str, missing: list[Any], kept: list[int]
) -> None:
    source = write(tmp_path / f"a{suffix}")
    said: list[str] = []
    n = ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where, missing=missing, notice=said.append)
    found = open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0]
    np.testing.assert_array_equal(found, [np.nan if n in missing else n for n in kept])


MIXED = ["1", "B", "", "2"]


def test_text_beside_numbers_in_parts_of_a_table(tmp_path: Path) -> None:
    """Parts of a folder, and files side by side, say that a column has text as a single file does."""
    rows = list(enumerate(MIXED))
    for name in ("0", "1"):
        folder = tmp_path / "parts" / f"year=202{name}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("\n".join(["n,qc", *(f"{n},{qc}" for n, qc in rows)]) + "\n")
    (tmp_path / "n.csv").write_text("\n".join(["n", *(str(n) for n, _ in rows)]) + "\n")
    (tmp_path / "qc.csv").write_text("\n".join(["m,qc", *(f"{n},{qc}" for n, qc in rows)]) + "\n")
    for number, source in enumerate(("parts", "n.csv+qc.csv")):
        place = "+".join(str(tmp_path / part) for part in source.split("+"))
        n = ingest([place], tmp_path / f"{number}.zarr", inputs=["n"], where="qc in (1, 2)")
        assert n == (2 if number else 4)
    n = ingest([tmp_path / "parts"], tmp_path / "s.zarr", inputs=["n"], where="qc == 'B' and year == 2021")
    assert n == 1


def write_series(path: Path, **columns: tuple[Any, str]) -> Path:
    """Columns along n, each with its values and units."""
    length = len(next(iter(columns.values()))[0])
    variables = {name: ("row", values, {"units": units}) for name, (values, units) in columns.items()}
    xr.Dataset({"n": ("row", np.arange(float(length))), **variables}).to_netcdf(path)
    return path


UNITS = {
    "temperatures": ("degC", [10.0, 30, 20], "K", [283.15, 303.15, 293.15], "v < 20"),
    "percent": ("1", [0.1, 0.3, 0.2], "%", [10.0, 30, 20], "0.2 > v"),
    "origins": ("hours since 2024-01-01", [30.0, 50, 40], "hours since 2024-01-02", [6.0, 26, 16], "v < 40"),
    "lengths": ("m", [400.0, 600, 500], "km", [0.4, 0.6, 0.5], "v in (400, 7)"),
}


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("stored", [False, True])
def test_numbers_are_compared_in_the_units_of_the_first_source(tmp_path: Path, name: str, stored: bool) -> None:
    first_units, first, other_units, other, where = UNITS[name]
    a = write_series(tmp_path / "a.nc", v=(first, first_units))
    b = write_series(tmp_path / "b.nc", v=(other, other_units))
    inputs = ["n", "v"] if stored else ["n"]
    said: list[str] = []
    store = tmp_path / "s.zarr"
    assert ingest([a, b], store, inputs=inputs, where=where, again=True, notice=said.append) == 2
    assert sum(f"{other_units} to {first_units}" in sentence for sentence in said) == 1
    np.testing.assert_array_equal(open_dataset(store, targets=None).read(0, 2)[0][:, 0], [0, 0])
    if stored:  # and in those of the store
        c = write_series(tmp_path / "c.nc", v=([*other, other[0]], other_units))
        assert ingest([c], store, inputs=inputs, where=where, append=True, again=True) == 4
    units = {"v": other_units}  # stated in place of both
    assert ingest([b, a], tmp_path / "t.zarr", inputs=inputs, where="v == v", units=units, again=True) == 6


def test_columns_of_other_units_are_not_compared(tmp_path: Path) -> None:
    since = "hours since 2024-01-0"
    a = write_series(tmp_path / "a.nc", v=([30.0], f"{since}1"), w=([7.0], f"{since}2"), z=([9.0], f"{since}1"))
    with pytest.raises(InputError, match=r"column 'w'.*same units"):
        ingest([a], tmp_path / "s.zarr", inputs=["n"], where="v < w")
    assert ingest([a], tmp_path / "s.zarr", inputs=["n"], where="v > z") == 1


@pytest.mark.parametrize("where", ["v < 20", "v == '20'"])
def test_units_that_cannot_be_converted_are_refused(tmp_path: Path, where: str) -> None:
    a = write_series(tmp_path / "a.nc", v=([1.0, 2], "degC"))
    b = write_series(tmp_path / "b.nc", v=([1.0, 2], "m" if "<" in where else "K"))
    with pytest.raises(InputError, match=r"b\.nc: column 'v'.*--units"):
        ingest([a, b], tmp_path / "s.zarr", inputs=["n"], where=where)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("width", [1, 2])
def test_a_condition_on_several_columns_is_refused(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.arange(8.0 * width).reshape(8, width)
    np.savez("a.npz", n=np.arange(8.0), w=values)
    np.savez("b.npz", m=np.arange(8.0))
    xr.Dataset({"n": ("row", np.arange(8.0)), "w": (("row", "part"), values)}).to_netcdf("a.nc")
    for source in ("a.npz", "b.npz+a.npz", "a.nc"):
        done = call("ingest", source, "s.zarr", "--inputs", "n", "--where", "w < 3")
        assert done.exit_code == InputError.exit_code and "--where" in done.output and "w0" in done.output
    assert call("ingest", "a.npz", "s.zarr", "--inputs", "n", "--where", f"w0 < {3 * width}").exit_code == 0
    assert open_dataset("s.zarr", targets=None).rows == 3
