"""Rows that are kept by a condition on their columns."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
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
        ("n in (3)", [3]),
        ("flag in ('good')", [5]),
        ("not (n not in\n( -3 , 4 )) or n in((2))", [2, 4]),
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
        "(n in 3)",
        "flag in 'good'",
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


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("celsius < kelvin", "column 'kelvin'.*same units"),
        ("celsius < depth", "column 'depth'.*measure different things"),
        ("time < depth", "'depth' is compared with the times of 'time'.*--units 'depth="),
        ("plain == time", "'plain' is compared with the times of 'time'.*--units 'plain="),
        ("time < other", "--where.*column 'time'.*calendar"),
        ("text >= other", "--where.*'2024-01-02'"),
    ],
)
def test_columns_that_measure_other_things_are_not_compared(tmp_path: Path, where: str, problem: str) -> None:
    since, units = "hours since 2024-01-01", ("degC", "degC", "K", "m", "")
    names = ("celsius", "warmer", "kelvin", "depth", "plain")
    columns = {name: ([7.0], unit) for name, unit in zip(names, units, strict=True)}
    write_series(tmp_path / "a.nc", **columns, time=([7.0], since), other=([7.0], since))
    with xr.open_dataset(tmp_path / "a.nc", decode_times=False) as dataset:
        dataset.other.attrs["calendar"] = "360_day"
        dataset.to_netcdf(tmp_path / "b.nc")
    (tmp_path / "c.csv").write_text("m,text\n1,2024-01-02\n")
    source = f"{tmp_path / 'b.nc'}+{tmp_path / 'c.csv'}"
    with pytest.raises(InputError, match=problem):
        ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where="celsius <= warmer") == 1


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


def write_spelled(path: Path) -> Path:
    """Numbers and truth values as CSV has them, and columns of such types in other formats."""
    numbers, flags = np.array([1.0, 2.0, 1.5, np.nan]), np.array([True, False, True, False])
    if path.suffix == ".csv":
        path.write_text("n,qc,ok,name\n0,1.0,true,007\n1,2.0,false,1.10\n2,1.5,true,1e5\n3,,false,\n")
    elif path.suffix == ".parquet":
        names = ["007", "1.10", "1e5", None]
        table = {"n": np.arange(4.0), "qc": numbers, "ok": flags, "name": names}
        pq.write_table(pa.table(table), path)
    elif path.suffix == ".npz":
        names = np.array(["007", "1.10", "1e5", ""])
        np.savez(path, n=np.arange(4.0), qc=numbers, ok=flags, name=names)
    else:
        names = np.array(["007", "1.10", "1e5", ""], object)
        columns = {"n": np.arange(4.0), "qc": numbers, "ok": flags.astype("i1"), "name": names}
        dataset = xr.Dataset({name: ("row", values) for name, values in columns.items()})
        dataset.to_netcdf(path) if path.suffix == ".nc" else dataset.to_zarr(path, consolidated=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".nc", ".zarr"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("qc == '1.0'", [0]),
        ("qc == '1'", [0]),
        ("qc in ('1.0', '2.00')", [0, 1]),
        ("qc != '1.50'", [0, 1]),
        ("qc in ('1.5', 2)", [1, 2]),
        ("qc == 1.0", [0]),
        ("ok == 1", [0, 2]),
        ("ok == True", [0, 2]),
        ("ok != '1'", [1, 3]),
        ("name == '007'", [0]),
        ("name in ('7', '1.1')", []),  # names, which are as they are
        ("name in ('1.10', '1e5')", [1, 2]),
        ("name in (7, 1e5)", [0, 2]),
    ],
)
def test_constants_are_normalised_as_values_are(tmp_path: Path, suffix: str, where: str, kept: list[int]) -> None:
    source = write_spelled(tmp_path / f"a{suffix}")
    if not kept:
        with pytest.raises(InputError, match="holds for none"):
            ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
        return
    n = ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
    found = open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0]
    np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("where", ["ok == 'true'", "ok == 'True'", "ok in ('TRUE')"])
def test_truth_values_are_compared_with_words(tmp_path: Path, suffix: str, where: str) -> None:
    source = write_spelled(tmp_path / f"a{suffix}")
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where) == 2


HOURS = np.array([0.0, 1, 25, np.nan, 48])  # after 2026-01-01


def write_times(path: Path, units: str = "hours since 2026-01-01", **attributes: str) -> dict[str, Any]:
    """Times as each format has them; returns what `ingest` has to be told."""
    numbers = np.arange(5.0)
    moments = np.datetime64("2026-01-01", "us") + (HOURS * 3.6e9).astype("m8[us]")
    moments[3] = np.datetime64("NaT")
    texts = [None if np.isnat(one) else str(one) for one in moments]
    if path.name == "numbers.csv":
        np.savetxt(path, np.column_stack([numbers, HOURS]), delimiter=",", header="n,t", comments="")
        return {"units": {"t": units}}
    if path.suffix == ".csv":
        path.write_text("n,t\n" + "".join(f"{i},{text or ''}\n" for i, text in enumerate(texts)))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"n": numbers, "t": pa.array(moments)}), path)
    elif path.suffix == ".npz":
        np.savez(path, n=numbers, t=moments)
    else:
        days = units.startswith("days")
        since = np.datetime64(units.split()[2], "us")
        hours = (np.datetime64("2026-01-01", "us") - since) / np.timedelta64(1, "h") + HOURS
        values = hours / 24 if days else hours
        columns = {"n": ("row", numbers), "t": ("row", values, {"units": units, **attributes})}
        dataset = xr.Dataset(columns)
        dataset.to_netcdf(path) if path.suffix == ".nc" else dataset.to_zarr(path, consolidated=False)
    return {}


SOURCES = ["numbers.csv", "texts.csv", "a.parquet", "a.npz", "a.nc", "a.zarr"]
DATES = [
    ("t >= '2026-01-01T01:00'", [1, 2, 4]),
    ("t < '2026-01-02'", [0, 1]),
    ("'2026-01-01 01:00:00Z' == t", [1]),
    ("t != '2026-01-01T03:00:00+02:00'", [0, 2, 4]),
    ("t in ('2026-01-02T01:00', '2026-01-03')", [2, 4]),
    ("t > '2026-01-01' and not t > '20260102T010000Z'", [1, 2]),
]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("where", "kept"), DATES)
@pytest.mark.parametrize("stored", [False, True])
def test_dates_are_compared_with_times_of_every_format(
    tmp_path: Path, name: str, where: str, kept: list[int], stored: bool
) -> None:
    told = write_times(tmp_path / name)
    inputs = ["n", "t"] if stored else ["n"]
    n = ingest([tmp_path / name], tmp_path / "s.zarr", inputs=inputs, where=where, **told)
    found = open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0]
    np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("units", ["days since 1950-01-01", "days since 1700-01-01", "hours since 1900-01-01"])
@pytest.mark.parametrize("first", [False, True])
def test_times_are_equal_but_for_the_rounding_of_their_units(tmp_path: Path, units: str, first: bool) -> None:
    """An hour is no number of days that a float holds, and other units come of another source."""
    write_times(tmp_path / "a.nc", units)
    write_times(tmp_path / "b.nc")
    sources = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for where, kept in DATES:
        ordered = sources if first else sources[::-1]
        n = ingest(ordered, tmp_path / "s.zarr", inputs=["n"], where=where, again=True)
        found = open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0]
        np.testing.assert_array_equal(found, [*kept, *kept])
        shutil.rmtree(tmp_path / "s.zarr")


@pytest.mark.parametrize("origin", ["0200-01-01", "1700-01-01", "1950-01-01", "2026-01-01"])
def test_times_that_were_added_up_in_days_are_those_of_their_dates(tmp_path: Path, origin: str) -> None:
    """Each sum rounds, by more than a microsecond where the origin is far."""
    moments = np.datetime64("2026-01-01", "m") + 6 * np.arange(240) * np.timedelta64(1, "m")
    begin = (moments[0] - np.datetime64(origin, "m")) / np.timedelta64(1, "D")
    days = (24 * begin + np.cumsum(np.r_[0, np.full(239, 0.1)])) / 24
    units = {"units": f"days since {origin}", "calendar": "proleptic_gregorian"}
    columns = {"n": ("row", np.arange(240.0)), "t": ("row", days, units)}
    xr.Dataset(columns).to_netcdf(tmp_path / "a.nc")
    dates = ", ".join(f"'{moment}'" for moment in moments[::2])
    conditions = {f"t in ({dates})": 120, f"t >= '{moments[121]}'": 119, f"t < '{moments[77]}'": 77}
    for number, (where, kept) in enumerate(conditions.items()):
        store = tmp_path / f"{number}.zarr"
        assert ingest([tmp_path / "a.nc"], store, inputs=["n"], where=where) == kept


def test_dates_are_of_the_calendar_of_the_times(tmp_path: Path) -> None:
    columns = {"n": np.arange(3.0), "t": np.array([57.0, 58, 59])}
    dataset = xr.Dataset({name: ("row", values) for name, values in columns.items()})
    dataset["t"].attrs |= {"units": "days since 2026-01-01", "calendar": "360_day"}
    dataset.to_netcdf(tmp_path / "a.nc")
    kept = {"t < '2026-02-30'": 2, "t >= '2026-02-30'": 1, "t == '2026-02-29T00:00'": 1}
    for number, (where, count) in enumerate(kept.items()):
        store = tmp_path / f"{number}.zarr"
        assert ingest([tmp_path / "a.nc"], store, inputs=["n"], where=where) == count
    with pytest.raises(InputError, match="360_day"):
        ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["n"], where="t < '2026-01-31'")


@pytest.mark.parametrize("name", ["a.parquet", "texts.csv", "a.npz", "a.nc+b.csv"])
@pytest.mark.parametrize(("where", "kept"), [("t <= end", [0, 1, 4]), ("end == t", [0]), ("t != end", [1, 2, 4])])
def test_columns_of_times_are_compared(tmp_path: Path, name: str, where: str, kept: list[int]) -> None:
    ends = ["2026-01-01T00:00Z", "2026-01-02 00:00", "2026-01-01", "2026-01-01", "2027-01-01"]
    (tmp_path / "b.csv").write_text("m,end\n" + "".join(f"1,{end}\n" for end in ends))
    first = name.partition("+")[0]
    write_times(tmp_path / first)
    source = f"{tmp_path / first}+{tmp_path / 'b.csv'}"
    n = ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where)
    found = open_dataset(tmp_path / "s.zarr", targets=None).read(0, n)[0][:, 0]
    np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("a.nc", "t > 'noon'", "holds times"),
        ("a.nc", "t == '2026-13-01'", "holds times"),
        ("a.zarr", "t in ('2026', '2026-01')", "holds times"),
        ("numbers.csv", "t > '2026-01-01'", "--units 't=hours since"),
        ("numbers.csv", "t == '2026-01-01'", "--units 't=hours since"),
        ("texts.csv", "t > 'noon'", "is no date"),
    ],
)
def test_what_is_no_date_is_refused(tmp_path: Path, name: str, where: str, said: str) -> None:
    write_times(tmp_path / name)
    with pytest.raises(InputError, match=said):
        ingest([tmp_path / name], tmp_path / "s.zarr", inputs=["n"], where=where)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_with_leading_zeros_are_not_numbers(tmp_path: Path, suffix: str) -> None:
    stations = ["01", "1", "B", "007", "7"]
    if suffix == ".csv":
        source = tmp_path / "a.csv"
        source.write_text("station,u\n" + "".join(f"{station},1\n" for station in stations))
    else:
        source = tmp_path / "a.parquet"
        pq.write_table(pa.table({"station": stations, "u": np.ones(5)}), source)
    for where, kept in {"station == '01'": 1, "station in ('007', 'B')": 2, "station != '01'": 4}.items():
        rows = ingest([source], tmp_path / "s.zarr", inputs=["u"], where=where)
        assert rows == kept, where
        shutil.rmtree(tmp_path / "s.zarr")


@pytest.mark.parametrize("where", ["u == '10.0'", "u in ('10')", "u in ('10', 'a')", "u != '2'", "u == 10"])
def test_a_column_of_csv_may_be_an_input_and_be_compared_with_text(tmp_path: Path, where: str) -> None:
    (tmp_path / "a.csv").write_text("u,v\n10.0,1\n2,2\n,3\n")
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["u"], targets=["v"], where=where)
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr").read(0, 1)[0], [[10.0]])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".h5"])
@pytest.mark.parametrize("inputs", [["when"], ["n", "when"], ["n"], ["when:day"]])
def test_a_condition_that_holds_for_no_row_is_what_is_named(tmp_path: Path, suffix: str, inputs: list[str]) -> None:
    source = write(tmp_path / f"a{suffix}")
    with pytest.raises(InputError, match=r"--where qc == 7: holds for none of 6 rows"):
        ingest([source], tmp_path / "s.zarr", inputs=inputs, where="qc == 7")
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("when >= 2024-05-02", "dates are in quotes"),
        ("qc = 1", "= is written =="),
        ("qc == 1 AND n < 3", "and, or, not and in are in small letters"),
        ("when > '2024-05'", "is no date such as"),
        ("when <= '02/05/2024'", "is no date such as"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_usual_slips_of_conditions_are_named(tmp_path: Path, suffix: str, where: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        ingest([write(tmp_path / f"a{suffix}")], tmp_path / "s.zarr", inputs=["n"], where=where)


def test_a_condition_of_each_night_compares_in_the_units_of_the_first(tmp_path: Path) -> None:
    """Also of columns that the data set does not keep."""
    places = np.arange(40.0)
    for night, (shift, unit, hours, since) in enumerate(
        [(0.0, "degC", 1.0, "hours since 2024-01-01"), (273.15, "K", 60.0, "minutes since 2024-01-01")]
    ):
        variables = {
            "a": ("row", places + 100 * night),
            "sst": ("row", np.linspace(5.0, 24.5, 40) + shift, {"units": unit}),
            "t": ("row", places * hours, {"units": since}),
        }
        xr.Dataset(variables).to_netcdf(tmp_path / f"{night}.nc", engine="scipy")
    for name, where, kept in (("sst", "sst > 15", 19), ("t", "t >= 6", 34)):
        store = tmp_path / f"{name}.zarr"
        assert ingest([tmp_path / "0.nc"], store, inputs=["a"], where=where) == kept
        assert ingest([tmp_path / "1.nc"], store, inputs=["a"], where=where, append=True) == 2 * kept
        rows = open_dataset(store, targets=None).read(0, 2 * kept)[0][:, 0]
        np.testing.assert_array_equal(rows[kept:], rows[:kept] + 100)
    ingest([tmp_path / "0.nc"], tmp_path / "plain.zarr", inputs=["a"])
    assert ingest([tmp_path / "1.nc"], tmp_path / "plain.zarr", inputs=["a"], where="sst > 288.15", append=True) == 59


TIMES_AND_TEXT = ["2024-05-31 00:00:00", "2024-05-31T00:00", "2024-06-01", "unknown", "2024-02-30", None]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("when == '2024-05-31'", [0, 1]),
        ("when != '2024-05-31'", [2, 3, 4]),
        ("when in ('2024-06-01T00:00:00Z', 'unknown')", [2, 3]),
        ("when not in ('2024-05-31', '2024-02-30')", [2, 3]),
        ("when == day", [0, 1, 3]),
        ("day != when", [2, 4]),
    ],
)
def test_times_beside_other_text_are_compared_as_times(
    tmp_path: Path, suffix: str, where: str, kept: list[int]
) -> None:
    """Else it depended on the rows that are read together which of them hold."""
    day = ["2024-05-31", "20240531T0000", "2024-05-30", "unknown", "2024-02-29", "2024-05-31"]
    table = pa.table({"n": np.arange(6.0), "when": TIMES_AND_TEXT, "day": day})
    if suffix == ".csv":
        csv.write_csv(table, tmp_path / "a.csv")
    else:
        pq.write_table(table, tmp_path / "a.parquet")
    ingest([tmp_path / f"a{suffix}"], tmp_path / "a.zarr", inputs=["n"], where=where)
    assert open_dataset(tmp_path / "a.zarr", targets=None).read(0, len(kept))[0][:, 0].tolist() == kept


@pytest.mark.parametrize("suffix", [".csv", ".parquet", "text and numbers"])
@pytest.mark.parametrize("where", ["begin < end", "not (end <= begin)", "begin != end"])
def test_columns_of_times_may_have_no_value(tmp_path: Path, suffix: str, where: str) -> None:
    begin = pa.array(["2024-05-31", "2024-06-01"])
    numbers = xr.Dataset({"end": ("row", [np.nan, np.nan])})
    numbers.to_netcdf(tmp_path / "end.nc", engine="netcdf4")
    parts = []
    for place, end in enumerate([["2024-06-02", None], [None, None]]):
        table = pa.table({"n": np.arange(2.0) + 2 * place, "begin": begin, "end": pa.array(end, pa.string())})
        if suffix == ".parquet":
            pq.write_table(table, tmp_path / f"{place}.parquet")
            parts.append(f"{tmp_path / str(place)}.parquet")
        elif suffix == ".csv" or not place:
            csv.write_csv(table, tmp_path / f"{place}.csv")
            parts.append(f"{tmp_path / str(place)}.csv")
        else:
            csv.write_csv(table.drop_columns("end"), tmp_path / f"{place}.csv")
            parts.append(f"{tmp_path / str(place)}.csv+{tmp_path}/end.nc")
    assert ingest(parts, tmp_path / "a.zarr", inputs=["n"], where=where) == 1


@pytest.mark.parametrize("name", ["µ", "Ω", "ﬁlter", "_column_0", "`ª b`"])
def test_names_are_those_that_are_written(tmp_path: Path, name: str) -> None:
    """Python takes the micro sign, the sign of the ohm and ligatures for other letters."""
    np.savez(tmp_path / "a.npz", **{"n": np.arange(4.0), name.strip("`"): np.arange(4.0)})
    where = f"{name} >= 2 and n != {name} or {name} == 3"
    assert ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["n"], where=where) == 1


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("not " * 990 + "n > 1", "within each other"),
        ("not (n > 1 or " * 150 + "n > 2" + ")" * 150, "within each other"),
        ("n < " + "9" * 400, "too large a number"),
        ("n in (1, -" + "9" * 400 + ")", "too large a number"),
        ("t < '20240531'", "write '2024-05-31'"),
        ("t in ('20240531', '20240601')", "write '2024-05-31'"),
        ("t != ' 20240531 '", "write '2024-05-31'"),
    ],
)
def test_what_may_mean_something_else_is_refused(tmp_path: Path, where: str, problem: str) -> None:
    write_series(tmp_path / "a.nc", t=(np.arange(5.0), "days since 2024-05-29"))
    with pytest.raises(InputError, match=problem):
        ingest([tmp_path / "a.nc"], tmp_path / "a.zarr", inputs=["n"], where=where)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".nc", ".npz"])
@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ("v == nan", "NAME == NAME keeps"),
        ("z != NaN", "NAME == NAME keeps"),
        ("null == z", "NAME == NAME keeps"),
        ("v in (1, nan)", "NAME == NAME keeps"),
        ("v != np.nan", "NAME == NAME keeps"),
        ("v is not None", "NAME == NAME keeps"),
        ("z < inf", "NAME < 1e308"),
        ("-inf < z", "NAME > -1e308"),
        ("0 < z < Infinity and v > 1", "NAME < 1e308"),
        ("z < v2", "no column 'v2'"),
        ("1 < z < v2", "no column 'v2'"),
    ],
)
def test_names_that_are_no_columns_are_refused_with_what_to_write(
    tmp_path: Path, suffix: str, where: str, remedy: str
) -> None:
    with pytest.raises(InputError, match=remedy):
        ingest([write_gaps(tmp_path / f"a{suffix}")], tmp_path / "s.zarr", inputs=["z"], where=where)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".nc", ".npz"])
def test_rows_with_a_value_are_kept_by_comparing_a_column_with_itself(tmp_path: Path, suffix: str) -> None:
    source = write_gaps(tmp_path / f"a{suffix}")
    assert ingest([source], tmp_path / "s.zarr", inputs=["z"], where="v == v and -1e308 < v < 1e308") == 2


def write_gaps(path: Path) -> Path:
    columns = {"z": np.array([1.0, 3, 5]), "v": np.array([2, np.nan, 6])}
    if path.suffix == ".nc":
        xr.Dataset({name: ("row", values) for name, values in columns.items()}).to_netcdf(path, engine="scipy")
    elif path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        path.write_text("z,v\n1,2\n3,\n5,6\n")
    return path


def test_a_column_may_be_called_nan(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=np.arange(4.0), nan=np.full(4, 2.0), inf=np.full(4, 3.0))
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["z"], where="z == nan or z == inf") == 2


@pytest.mark.parametrize("command", ["ingest", "score", "predict"])
@pytest.mark.parametrize("where", ["", " "])
def test_an_empty_condition_is_refused(
    tmp_path: Path, command: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a variable of a shell is that nobody set."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet")
    words = {"ingest": ["a.parquet", "s.zarr", "--inputs", "n"], "score": ["m", "a.parquet"]}
    done = call(command, *words.get(command, ["m", "a.parquet", "out.csv"]), "--where", where)
    assert done.exit_code == InputError.exit_code
    assert "--where" in done.output or (command != "ingest" and where)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_long_conditions_are_cut_in_every_message(tmp_path: Path) -> None:
    source, notices = write(tmp_path / "a.parquet"), list[str]()
    for place, where in enumerate((" or ".join(["n > 2"] * 400), " or ".join(["n > 3"] * 400))):
        append = place > 0
        ingest(
            [source], tmp_path / "s.zarr", inputs=["n"], where=where, append=append, again=append, notice=notices.append
        )
    said = [notice for notice in notices if "--where" in notice]
    assert len(said) == 3 and all(len(notice) < 400 and "n > " in notice for notice in said)
    with pytest.raises(InputError, match="holds for none") as refusal:
        ingest([source], tmp_path / "t.zarr", inputs=["n"], where=" and ".join(["n > 7"] * 400))
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("when < '2024-06-01'", "broken clock"),
        ("'2024-05-30' <= when", "broken clock"),
        ("level > 3", "deep"),
        ("level <= n", "deep"),
    ],
)
def test_text_that_has_no_order_is_named_with_its_row(
    tmp_path: Path, suffix: str, where: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands, though it is read with few other rows."""
    monkeypatch.setattr("dorff.data.csv_reader.BLOCK", 4096)
    n = 3000
    when = np.array(["2024-05-31T12:00:00", "2024-06-02"] * (n // 2), object)
    level = np.array(["1", "x"] + ["5"] * (n - 2), object)
    level[1] = None
    when[2345], level[2345] = "broken clock", "deep"
    table = pa.table({"n": np.arange(float(n)), "when": when.tolist(), "level": level.tolist()})
    if suffix == ".csv":
        csv.write_csv(table, tmp_path / "a.csv")
    else:
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    with pytest.raises(InputError, match=rf"data row 2,346: .*{word}"):
        ingest([tmp_path / f"a{suffix}"], tmp_path / "s.zarr", inputs=["n"], where=where)


@pytest.mark.parametrize(
    ("where", "kept"),
    [("when < '2024-06-01'", [0]), ("when != '2024-06-02'", [0]), ("when == when", [0, 2]), ("when != 'NaT'", [0, 2])],
)
def test_times_that_are_missing_are_unknown(tmp_path: Path, where: str, kept: list[int]) -> None:
    (tmp_path / "a.csv").write_text("n,when\n0,2024-05-31\n1,NaT\n2,2024-06-02\n")
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["n"], where=where)
    rows = open_dataset(tmp_path / "s.zarr", targets=None)
    assert rows.read(0, rows.n)[0][:, 0].tolist() == kept


TENTHS = np.array([0, 1, 3, 5, 7, 9, 10, 12])  # of which 0, 5 and 10 tenths are exact in every type
OF_TENTHS = [
    ("a > 0.1", [2, 3, 4, 5, 6, 7]),
    ("0.1 <= a", [1, 2, 3, 4, 5, 6, 7]),
    ("a == 0.7", [4]),
    ("a != 0.7", [0, 1, 2, 3, 5, 6, 7]),
    ("0.3 < a < 0.9", [3, 4]),
    ("0.3 <= a <= 0.9", [2, 3, 4, 5]),
    ("a in (0.1, 0.5, 1.2)", [1, 3, 7]),
    ("a not in (0.1, 0.3)", [0, 3, 4, 5, 6, 7]),
    ("not a <= 0.9", [6, 7]),
    ("a == '0.1'", [1]),
    ("a in ('0.30', 1.2)", [2, 7]),
    ("a != '1.2' and a > 0.9", [6]),
    ("a < 1e39 and a > -1e39", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("a >= 1e-60", [1, 2, 3, 4, 5, 6, 7]),
    ("a <= b", [0, 1, 2, 3, 4, 5, 6, 7]),
]


def write_tenths(path: Path, dtype: str) -> None:
    """Tenths in a type, as a; the same beside them, and a whole number."""
    columns: dict[str, Any] = {"n": np.arange(8), "a": (TENTHS / 10).astype(dtype)}
    columns["b"] = columns["a"].copy()
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.update(columns)
    elif path.suffix in (".parquet", ".arrow"):
        table = pa.table(columns)
        pq.write_table(table, path) if path.suffix == ".parquet" else feather.write_feather(table, path, "uncompressed")
    else:
        dataset = xr.Dataset({name: ("row", values) for name, values in columns.items()})
        dataset.to_netcdf(path) if path.suffix == ".nc" else dataset.to_zarr(path, consolidated=False)


SHORT_COLUMNS = [
    ("a.npz", "f2"),
    ("a.npz", "f4"),
    ("a.npz", ">f4"),
    ("a.npz", ">f2"),
    ("a.h5", "f2"),
    ("a.nc", "f4"),
    ("a.zarr", "f2"),
    ("a.zarr", "f4"),
    ("a.parquet", "f2"),
    ("a.parquet", "f4"),
    ("a.parquet", "f8"),
    ("a.arrow", "f2"),
    ("parts/a.parquet", "f2"),
    ("parts/a.parquet", "f4"),
    ("a.npz+b.csv", "f4"),
]


@pytest.mark.parametrize(("name", "dtype"), SHORT_COLUMNS)
@pytest.mark.parametrize(("where", "kept"), OF_TENTHS)
def test_constants_are_rounded_as_the_column_is(
    tmp_path: Path, name: str, dtype: str, where: str, kept: list[int]
) -> None:
    """Whatever is read beside it: a whole number makes it float64 on the way."""
    first = name.partition("+")[0]
    write_tenths(tmp_path / first, dtype)
    source = str(tmp_path / first)
    if first != name:
        (tmp_path / "b.csv").write_text("m\n" + "1.5\n" * 8)
        source += f"+{tmp_path / 'b.csv'}"
    elif "/" in name:
        write_tenths(tmp_path / "parts/b.parquet", dtype)
        source = str(tmp_path / "parts")
    count = 2 * len(kept) if "/" in name else len(kept)
    for number, inputs in enumerate((["n"], ["a"], ["b", "n"])):
        store = tmp_path / f"{number}.zarr"
        assert ingest([source], store, inputs=inputs, where=where) == count
        rows = open_dataset(store, targets=None).read(0, len(kept))[0]
        if "n" in inputs:
            np.testing.assert_array_equal(rows[:, -1], kept)
        else:
            np.testing.assert_array_equal(rows[:, 0], (TENTHS / 10).astype(dtype)[kept])


@pytest.mark.parametrize("inputs", [["n"], ["a"], ["b"]])
@pytest.mark.parametrize(
    ("where", "kept"), [("a == b", [0, 3, 6]), ("a > b", [1, 2, 7]), ("b >= a", [0, 3, 4, 5, 6]), ("a < b", [4, 5])]
)
def test_columns_of_different_widths_are_compared_exactly(
    tmp_path: Path, inputs: list[str], where: str, kept: list[int]
) -> None:
    tenths = TENTHS / 10
    np.savez(tmp_path / "a.npz", n=np.arange(8.0, dtype="f4"), a=tenths.astype("f4"), b=tenths)
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=inputs, where=where) == len(kept)
    rows = open_dataset(tmp_path / "s.zarr", targets=None).read(0, len(kept))[0]
    if inputs == ["n"]:
        np.testing.assert_array_equal(rows[:, 0], kept)


@pytest.mark.parametrize("inputs", [["n"], ["v"], ["n", "v"]])
@pytest.mark.parametrize(
    ("units", "other", "shift", "where", "kept"),
    [
        ("K", "degC", 273.15, "v >= 293.05", [1, 2]),
        ("K", "degC", 273.15, "v == 293.05", [1]),
        ("K", "degC", 273.15, "v in (293.05, 303.05)", [1, 2]),
        ("degC", "K", -273.15, "v <= 19.9", [0, 1]),
    ],
)
def test_constants_are_rounded_in_the_units_of_the_file(
    tmp_path: Path, inputs: list[str], units: str, other: str, shift: float, where: str, kept: list[int]
) -> None:
    """In which the column was rounded, though another file has the units of the condition."""
    a = write_series(tmp_path / "a.nc", v=(np.array([np.nan]), units))
    values = np.array([9.9, 19.9, 29.9]) + (0.0 if other == "degC" else 273.15)
    b = write_series(tmp_path / "b.nc", v=(values.astype("f4"), other))
    assert ingest([a, b], tmp_path / "s.zarr", inputs=inputs, where=where) == len(kept)
    rows = open_dataset(tmp_path / "s.zarr", targets=None).read(0, len(kept))[0]
    np.testing.assert_allclose(rows[:, 0], kept if "n" in inputs else values[kept] + shift, atol=1e-4)


@pytest.mark.parametrize("inputs", [["n"], ["t"]])
@pytest.mark.parametrize(("where", "kept"), [("t == '2024-01-01T01:06'", 1), ("t > '2024-01-01T01:06'", 2)])
def test_dates_are_rounded_as_short_times_are(tmp_path: Path, inputs: list[str], where: str, kept: int) -> None:
    times = np.array([0.0, 1.1, 2.3, 100.7], "f4")
    a = write_series(tmp_path / "a.nc", t=(times, "hours since 2024-01-01"))
    assert ingest([a], tmp_path / "s.zarr", inputs=inputs, where=where) == kept
    days = write_series(tmp_path / "b.nc", t=(np.array([1.5]), "days since 2020-01-01"))
    assert ingest([days, a], tmp_path / "t.zarr", inputs=inputs, where=where) == kept


TOO_MUCH = {
    "terms": "t" + " + t" * 990,
    "products": "t" + "*t" * 1900 + " == 1",
    "lambda": "lambda:" * 500 + "t",
    "choices": "t if t else " * 330 + "t == 1",
    "powers": "t == 1" + "**1" * 1300,
    "attributes": "t" + ".t" * 1900 + " == 1",
    "calls": "t" + "()" * 1900 + " == 1",
    "items": "t" + "[0]" * 1200 + " == 1",
    "braces": "{" * 190 + "}" * 190,
    "parentheses": "(" * 199 + "t == 1" + ")" * 199,
    "more parentheses": "(" * 1900 + "t == 1" + ")" * 1900,
    "minus": "t == " + "-" * 3900 + "1",
    "few minus": "t == " + "-" * 300 + "1",
    "inverted": "~" * 3900 + "t",
    "not": "not " * 900 + "t == 1",
    "hexadecimal": "t == 0x" + "f" * 3900,
    "negative hexadecimal": "-0x" + "f" * 3900 + " < t",
    "octal": "t in (1, 0o" + "7" * 3900 + ")",
    "binary": "t < 0b" + "1" * 3900,
    "digits": "t < " + "9" * 3900,
    "exponent": "t < 1e400",
    "long exponent": "t < 1e" + "9" * 3900,
    "towers": "t < 10**10**10",
    "null character": "t == 1\0",
    "null character in text": "t == 'a\0b'",
    "surrogate": "t == '\udcff'",
    "surrogate in a name": "`\ud800` == 1",
    "mark of byte order": "t == 1 and \ufeff t == 2",
    "no-break space": "t\u00a0== 1",
    "other digits": "t == \u0663",
    "comment": "t == 1 # flags\nand t == 2",
    "line end in text": "t == '''a\nb'''",
    "line end in a name": "`t\n` == 1",
    "long name": "t" * 3900 + " == 1",
    "long text": "t < '" + "x" * 3900 + "'",
    "long": "t == 1 or " * 500 + "t == 1",
}


@pytest.mark.parametrize("where", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_python_cannot_take_is_refused(tmp_path: Path, where: str) -> None:
    """By a sentence that names the condition, what came, and what to write; never by what Python raises."""
    np.savez(tmp_path / "a.npz", n=np.arange(3.0), t=np.arange(3.0))
    with pytest.raises(InputError, match=r"--where|: column ") as refusal:
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["n"], where=where)
    assert len(str(refusal.value)) < 800 and ";" in str(refusal.value)
    assert not (tmp_path / "s.zarr").exists()


def test_wide_conditions_are_no_deep_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=np.arange(3.0))
    wide = ["n == 1" + " or n == 1" * 350, "n in (" + "1, " * 1200 + "1)", "0 < n" + " <= n" * 700 + " < 2"]
    for number, where in enumerate([*wide, "not " * 90 + "n == 1", "(" * 90 + "n == 1" + ")" * 90]):
        assert ingest([tmp_path / "a.npz"], tmp_path / f"{number}.zarr", inputs=["n"], where=where) == 1


QUOTED_TEXTS = ["a`b`c", "`b`", "it's", 'say "b"', "#1", "a`b", "`", "(b", "_column_0_", "b c", "x == `b c`"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("text", QUOTED_TEXTS)
def test_text_is_taken_as_it_is(tmp_path: Path, suffix: str, text: str) -> None:
    """Names stand between backquotes outside of text alone."""
    table = pa.table({"n": np.arange(3.0), "q": ["other", text, "b"], "b c": [1.0, 2.0, 3.0], "_column_0": [7, 8, 9]})
    source = tmp_path / f"a{suffix}"
    csv.write_csv(table, source) if suffix == ".csv" else pq.write_table(table, source)
    conditions = {
        f"q == {text!r}": [1],
        f"q != {text!r}": [0, 2],
        f"`b c` >= 2 and q in ({text!r}, 'none')": [1],
        f"q in ({text!r}) or `b c` == 1": [0, 1],
        f"'''{text}''' == q or `_column_0` == 9" if not text.endswith("'") else "n > 0": [1, 2],
        f"_column_0 > 7\nand `b c` < 3\nand q != {text!r} or `b c` == 3": [2],
    }
    for number, (where, kept) in enumerate(conditions.items()):
        store = tmp_path / f"{number}.zarr"
        n = ingest([source], store, inputs=["n"], where=where)
        assert open_dataset(store, targets=None).read(0, n)[0][:, 0].tolist() == kept, where


@pytest.mark.parametrize("name", ["it's", 'a "b" c', "a 'b", "#n", "a (b", "_column_0", "_column_0_", "x.y"])
def test_names_between_backquotes_hold_anything(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", **{"n": np.arange(4.0), name: np.arange(4.0), "b c": np.arange(4.0)})
    where = f"`{name}` >= 2 and n != `b c` or `{name}` == 3 and `b c` == 3"
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["n"], where=where) == 1
    with pytest.raises(InputError, match=r"'`b c` \+ n' is no column"):
        ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", inputs=["n"], where=f"`{name}` == `b c` + n")


def test_names_may_look_as_those_that_stand_for_others(tmp_path: Path) -> None:
    columns = {"n": np.arange(4.0), "b c": np.arange(4.0), "_column_0_": np.zeros(4), "_column_0": np.zeros(4)}
    np.savez(tmp_path / "a.npz", **columns)
    where = "`b c` >= 2 and _column_0_ == 0 and _column_0 < n"
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["n"], where=where) == 2


START = np.datetime64("2024-01-01T00:00:00", "ns") + np.arange(6) * np.timedelta64(3600, "s")
LATER = np.array([-1, 0, 1, -1, 0, 1])


def write_pairs(path: Path, start: tuple[Any, str, str], end: tuple[Any, str, str]) -> Path:
    """Two columns of times, each in units and a calendar of its own."""
    columns: dict[str, Any] = {"n": ("row", np.arange(float(len(start[0]))))}
    for name, (values, units, calendar) in (("start", start), ("end", end)):
        columns[name] = ("row", values, {"units": units, "calendar": calendar})
    dataset = xr.Dataset(columns)
    dataset.to_netcdf(path) if path.suffix == ".nc" else dataset.to_zarr(path, consolidated=False)
    return path


def counts_since(times: Any, unit: str, origin: str) -> Any:
    return (times - np.datetime64(origin, "ns")) // np.timedelta64(1, unit)


def parts_since(times: Any, unit: str, origin: str) -> Any:
    return (times - np.datetime64(origin, "ns")) / np.timedelta64(1, unit)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("inputs", [["n"], ["start"], ["end", "start"]])
@pytest.mark.parametrize("step", ["h", "s", "ns"])
def test_times_that_xarray_writes_are_compared(tmp_path: Path, suffix: str, inputs: list[str], step: str) -> None:
    """By default each variable has an origin and unit of its own."""
    end = START + LATER * np.timedelta64(1, step)
    dataset = xr.Dataset({"n": ("row", np.arange(6.0)), "start": ("row", START), "end": ("row", end)})
    source = tmp_path / f"a{suffix}"
    dataset.to_netcdf(source) if suffix == ".nc" else dataset.to_zarr(source, consolidated=False)
    for number, (where, kept) in enumerate({"start < end": 2, "end == start": 2, "start >= end": 4}.items()):
        assert ingest([source], tmp_path / f"{number}.zarr", inputs=inputs, where=where) == kept
    where = "start < '2024-01-01T04' and end > '2024-01-01T00:30' and start <= end"
    kept = {"h": 2, "s": 2, "ns": 2}[step]
    assert ingest([source], tmp_path / "s.zarr", inputs=inputs, where=where) == kept


PAIRS = [
    ("h", "hours since 2024-01-01", "h", "hours since 2020-02-29 07:00:00"),
    ("h", "hours since 1750-01-01", "m", "minutes since 2023-12-31"),
    ("s", "seconds since 1970-01-01", "D", "days since 1950-01-01"),
    ("D", "days since 1800-01-01", "h", "hours since 1900-01-01"),
    ("ns", "nanoseconds since 1970-01-01", "s", "seconds since 2000-01-01T12:00:00"),
    ("us", "microseconds since 1970-01-01", "ns", "nanoseconds since 2023-12-30 23:59:59"),
    ("ms", "milliseconds since 1750-01-01", "W", "weeks since 2023-12-31"),
]


@pytest.mark.parametrize(("unit", "units", "other_unit", "other"), PAIRS)
@pytest.mark.parametrize("inputs", [["n"], ["end"], ["start", "end"]])
@pytest.mark.parametrize("exchanged", [False, True])
def test_times_of_other_units_are_compared(
    tmp_path: Path, unit: str, units: str, other_unit: str, other: str, inputs: list[str], exchanged: bool
) -> None:
    """Fractions of days and weeks are equal to whole seconds but for their rounding."""
    end = START + LATER * np.timedelta64(1, "h")

    def column(times: Any, unit: str, units: str) -> tuple[Any, str, str]:
        count = counts_since if unit in ("ns", "us", "ms", "s", "m", "h") else parts_since
        origin = units.partition(" since ")[2].replace(" ", "T")
        return count(times, unit, origin), units, "proleptic_gregorian"

    pair = column(START, unit, units), column(end, other_unit, other)
    if exchanged:
        pair = column(START, other_unit, other), column(end, unit, units)
    source = write_pairs(tmp_path / "a.nc", *pair)
    conditions = {
        "start < end": [2, 5],
        "start == end": [1, 4],
        "not end >= start": [0, 3],
        "start != end": [0, 2, 3, 5],
    }
    for number, (where, kept) in enumerate(conditions.items()):
        assert ingest([source], tmp_path / f"{number}.zarr", inputs=inputs, where=where) == len(kept)
        if inputs == ["n"]:
            found = open_dataset(tmp_path / f"{number}.zarr", targets=None).read(0, len(kept))[0][:, 0]
            np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("inputs", [["n"], ["start"], ["start", "end"]])
@pytest.mark.parametrize("origin", ["1970-01-01", "2023-12-31 23:59:59"])
def test_whole_nanoseconds_are_compared_exactly(tmp_path: Path, inputs: list[str], origin: str) -> None:
    """As whole numbers beyond 2^53 too, and beside another source, in whose units the data set is kept."""
    times = START + np.arange(6) * (np.timedelta64(20, "D") + np.timedelta64(7, "ns"))
    start = counts_since(times, "ns", "1970-01-01")
    end = counts_since(times + LATER, "ns", origin.replace(" ", "T"))
    pair = (start, "nanoseconds since 1970-01-01", "standard"), (end, f"nanoseconds since {origin}", "standard")
    source = write_pairs(tmp_path / "a.nc", *pair)
    hours = np.arange(6.0), "hours since 2024-01-01", "standard"
    first = write_pairs(tmp_path / "b.nc", hours, (hours[0] - 1.0, *hours[1:]))
    for number, (where, kept) in enumerate({"start < end": 2, "start == end": 2, "start > end": 2}.items()):
        assert ingest([source], tmp_path / f"{number}.zarr", inputs=inputs, where=where) == kept
        more = 6 if where == "start > end" else 0
        assert ingest([first, source], tmp_path / f"b{number}.zarr", inputs=inputs, where=where) == kept + more
    number = int(start[3])
    with pytest.raises(InputError, match="write the date"):
        ingest([source], tmp_path / "s.zarr", inputs=["n"], where=f"start == end and start >= {number}")
    # To later files a number is one in the units of the file.
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where="start < end") == 2
    where = f"start > {number - 10**9}"
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where=where, append=True, again=True) == 5


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian", "all_leap"])
def test_times_of_one_calendar_are_compared(tmp_path: Path, calendar: str) -> None:
    start = np.arange(6), "days since 2024-01-01", calendar
    end = 24 * (np.arange(6) + 30 + LATER), "hours since 2023-12-02", calendar
    shift = {"noleap": 0, "julian": 0, "all_leap": 0, "360_day": 1}[calendar]  # December has 31 days or 30
    source = write_pairs(tmp_path / "a.nc", start, end)
    kept = int((LATER + shift > 0).sum())
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where="start < end") == kept


def test_times_of_two_calendars_are_compared_since_1582(tmp_path: Path) -> None:
    start = np.arange(6), "days since 2024-01-01", "standard"
    end = np.arange(6) + LATER + 31, "days since 2023-12-01", "proleptic_gregorian"
    source = write_pairs(tmp_path / "a.nc", start, end)
    assert ingest([source], tmp_path / "s.zarr", inputs=["n"], where="start < end") == 2
    early = np.arange(6), "days since 1500-01-01", "standard"
    source = write_pairs(tmp_path / "b.nc", early, end)
    with pytest.raises(InputError, match=r"before October 15, 1582"):
        ingest([source], tmp_path / "t.zarr", inputs=["n"], where="start < end")


def test_missing_times_of_other_origins_are_unknown(tmp_path: Path) -> None:
    end = START + LATER * np.timedelta64(1, "h")
    end[[2, 4]] = np.datetime64("NaT")
    dataset = xr.Dataset({"n": ("row", np.arange(6.0)), "start": ("row", START), "end": ("row", end)})
    dataset.to_netcdf(tmp_path / "a.nc")
    for number, (where, kept) in enumerate({"start < end": 1, "start != end": 3, "not start < end": 3}.items()):
        assert ingest([tmp_path / "a.nc"], tmp_path / f"{number}.zarr", inputs=["n"], where=where) == kept
