"""Tables in several files, and in Arrow's own."""

import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

from dorff.data import ingest, open_dataset
from dorff.errors import InputError


def inputs(source: Path, *names: str) -> Any:
    out = source.with_name("out.zarr")
    n = ingest([source], out, inputs=names)
    return open_dataset(out, targets=None).read(0, n)[0]


def write_part(path: Path, *values: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": values, "name": [f"n{value % 2}" for value in values]})
    pq.write_table(table, path) if path.suffix == ".parquet" else pa.feather.write_feather(table, path)


@pytest.mark.parametrize("end", [".parquet", ".arrow"])
def test_parts_come_in_the_order_of_their_numbers(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "table"
    for number in (10, 2, 1, 0):
        write_part(folder / f"part-{number}{end}", number, number + 0.5)
    (folder / "_SUCCESS").write_text("")
    (folder / f".part-1{end}.crc").write_text("x")
    np.testing.assert_array_equal(inputs(folder, "x")[:, 0], [0, 0.5, 1, 1.5, 2, 2.5, 10, 10.5])


def test_partitions_are_columns(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    for year, month, site in ((2024, 10, "a b"), (2024, 2, "c"), (2023, 12, "c")):
        write_part(folder / f"year={year}/month={month}/site={site.replace(' ', '%20')}/part-0.parquet", month)
    write_part(folder / "year=2025/month=__HIVE_DEFAULT_PARTITION__/site=c/part-0.parquet", 1)
    got = inputs(folder, "year", "month", "x", "site")
    wanted = [[2023, 12, 12, 0, 1], [2024, 2, 2, 0, 1], [2024, 10, 10, 1, 0], [2025, np.nan, 1, 0, 1]]
    np.testing.assert_array_equal(got, wanted)
    (tmp_path / "keys").mkdir()
    folder.rename(tmp_path / "keys" / "table")
    np.testing.assert_array_equal(inputs(tmp_path / "keys" / "table", "year")[:, 0], [2023, 2024, 2024, 2025])


class TestNewPartitions:
    """Folders that are added to a table after it was ingested."""

    names: ClassVar[dict[str, Any]] = {"inputs": ["year", "x", "site"], "targets": ["u"]}

    def write(self, table: Path, year: str, site: str, *values: float) -> Path:
        folder = table / f"year={year}" / f"site={site}"
        folder.mkdir(parents=True)
        x = np.array(values)
        pq.write_table(pa.table({"x": x, "u": np.sin(x)}), folder / "part-0.parquet")
        return folder

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        """Two years of two sites."""
        for year in ("2023", "2024"):
            for site in "ab":
                self.write(tmp_path / "table", year, site, *range(10))
        ingest([tmp_path / "table"], tmp_path / "s.zarr", **self.names)
        return tmp_path / "s.zarr"

    def append(self, store: Path, *sources: Path, **options: Any) -> tuple[int, list[str]]:
        said: list[str] = []
        n = ingest(sources, store, **self.names, append=True, notice=said.append, **options)
        return n, said

    @pytest.mark.parametrize("depth", ["year", "site", "relative"])
    def test_one_is_appended_by_itself(self, depth: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the columns of its name, and of the names above it; whatever it is called by."""
        part = self.write(store.parent / "table", "2025", "b", *range(10))
        if depth == "relative":
            monkeypatch.chdir(part.parent)
        source = {"year": part.parent, "site": part, "relative": Path()}[depth]
        n, said = self.append(store, source)
        assert n == 50 and not said
        rows = open_dataset(store).read(40, 50)[0]
        np.testing.assert_array_equal(rows[:, [0, 2, 3]], [[2025, 0, 1]] * 10)

    def test_files_that_are_the_same_in_another_partition_are_other_rows(self, store: Path) -> None:
        part = self.write(store.parent / "table", "2025", "a", *range(10))
        assert self.append(store, part)[0] == 50
        with pytest.raises(InputError, match="would be there twice"):
            self.append(store, part)
        moved = part.parent.rename(part.parent.with_name("year=2026"))
        assert self.append(store, moved)[0] == 60

    def test_the_whole_table_again_is_refused_or_replaces(self, store: Path) -> None:
        self.write(store.parent / "table", "2025", "a", *range(10))
        with pytest.raises(InputError, match="40 of 50 rows are there already"):
            self.append(store, store.parent / "table")
        n, _ = self.append(store, store.parent / "table", replace_known=True)
        assert n == 90 and open_dataset(store).dropped == ((0, 40),)

    def test_the_partition_without_a_value_has_none(self, store: Path) -> None:
        part = self.write(store.parent / "table", "__HIVE_DEFAULT_PARTITION__", "b", *range(10))
        assert self.append(store, part)[0] == 50
        rows = open_dataset(store).read(40, 50)[0]
        assert np.isnan(rows[:, 0]).all() and (rows[:, 3] == 1).all()


def test_folders_that_are_no_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_part(tmp_path / "mixed" / "a.parquet", 1)
    (tmp_path / "mixed" / "b.csv").write_text("x\n1\n")
    write_part(tmp_path / "keys" / "k=1" / "a.parquet", 1)
    write_part(tmp_path / "keys" / "b.parquet", 1)
    write_part(tmp_path / "less" / "a.parquet", 1)
    pq.write_table(pa.table({"y": [1.0]}), tmp_path / "less" / "b.parquet")
    for name, message in {
        "empty": "got a folder with no files",
        "mixed": "with files of .csv, .parquet",
        "keys": "has the keys",
        "less": r"b\.parquet: has no column 'x'",
    }.items():
        with pytest.raises(InputError, match=message):
            inputs(tmp_path / name, "x")


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    write_part(tmp_path / "table" / "a.parquet", 1)
    inputs(tmp_path / "table", "x")
    with pytest.raises(InputError, match="twice"):
        ingest([tmp_path / "table"], tmp_path / "out.zarr", inputs=["x"], append=True)


@pytest.mark.parametrize("kind", ["file", "stream", "zstd", "lz4", "polars"])
def test_files_of_arrow(tmp_path: Path, kind: str) -> None:
    x = np.arange(1000.0)
    when = np.datetime64("2024-05-01", "ns") + np.arange(1000) * np.timedelta64(1, "h")
    table = pa.table({"name": [f"n{i % 3}" for i in range(1000)], "when": when, "x": x})
    path = tmp_path / "a.arrow"
    if kind == "polars":
        pytest.importorskip("polars").from_arrow(table).write_ipc(path)
    elif kind in ("file", "stream"):
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(path, table.schema) as file:
            file.write_table(table, max_chunksize=300)
    else:
        pa.feather.write_feather(table, path, compression=kind)
    got = inputs(path, "x", "when", "name")
    np.testing.assert_array_equal(got[:, 0], x)
    np.testing.assert_array_equal(got[:, 1], 3600 * x)
    np.testing.assert_array_equal(got[:, 2:], np.eye(3)[np.arange(1000) % 3])


LABELS = pa.array(["u", "v", None, "v"])
TEXT = {
    "string": LABELS,
    "large_string": LABELS.cast(pa.large_string()),
    "string_view": LABELS.cast(pa.string_view()),  # as polars writes text
    "binary_view": LABELS.cast(pa.binary_view()),
    "dictionary": LABELS.dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None, 0], pa.int8()), pa.array(["v", "u", "unused"], pa.string_view())
    ),
    "runs": pc.run_end_encode(LABELS),
}


@pytest.mark.parametrize("kind", TEXT)
def test_text_of_every_type_of_arrow_is_categories(tmp_path: Path, kind: str) -> None:
    table = pa.table({"a": TEXT[kind], "u": np.ones(4)})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    X = inputs(tmp_path / "a.arrow", "a")
    np.testing.assert_array_equal(X, [[1, 0], [0, 1], [np.nan, np.nan], [0, 1]])


def test_numbers_in_runs_are_numbers(tmp_path: Path) -> None:
    table = pa.table({"a": pc.run_end_encode(pa.array([1.5, 1.5, None, 2.0]))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    np.testing.assert_array_equal(inputs(tmp_path / "a.arrow", "a")[:, 0], [1.5, 1.5, np.nan, 2.0])


OTHERS = {
    "period": pa.array(pd.period_range("2024-01", periods=2, freq="M")),
    "interval": pa.array(pd.arrays.IntervalArray.from_breaks(range(3))),
    "uuid": pa.array([b"0123456789abcdef"] * 2, pa.uuid()),
    "months": pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
    "list": pa.array([[1.0, 2.0]] * 2),
    "list_view": pa.array([[1.0, 2.0]] * 2, pa.list_view(pa.float64())),
    "struct": pa.array([{"lon": 1.0}] * 2),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_types_that_are_neither_numbers_nor_labels_are_named(tmp_path: Path, kind: str) -> None:
    table = pa.table({"a": OTHERS[kind], "u": np.ones(2)})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"column 'a' holds .*; convert it"):
        inputs(tmp_path / "a.arrow", "a")


def test_durations_and_times_of_day_are_seconds(tmp_path: Path) -> None:
    day, later = datetime.time(1, 0, 0, 500000), datetime.timedelta(hours=-1)
    columns = {f"t{unit}": pa.array([day, None], pa.time32(unit)) for unit in ("ms",)}
    columns |= {f"t{unit}": pa.array([day, None], pa.time64(unit)) for unit in ("us", "ns")}
    columns |= {f"d{unit}": pa.array([later, None], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    got = inputs(tmp_path / "a.parquet", *columns)
    np.testing.assert_array_equal(got, [[3600.5] * 3 + [-3600] * 4, [np.nan] * 7])
    assert open_dataset(tmp_path / "out.zarr", targets=None).column_attributes["dns"]["units"] == "s"


def write_sea(path: Path, hours: list[float], since: str, sst: list[float], units: str) -> None:
    path.parent.mkdir(exist_ok=True)
    times = xr.Variable("time", hours, {"units": f"hours since {since}"})
    values = xr.Variable("time", sst, {"units": units})
    xr.Dataset({"sst": values}, {"time": times}).to_netcdf(path, engine="netcdf4")


@pytest.mark.parametrize("column", ["time", "sst"])
def test_parts_in_other_units_are_not_put_together(tmp_path: Path, column: str) -> None:
    write_sea(tmp_path / "sea" / "0.nc", [0, 1], "2024-01-01", [10, 11], "degC")
    since, units = ("2024-01-02", "degC") if column == "time" else ("2024-01-01", "K")
    write_sea(tmp_path / "sea" / "1.nc", [2, 3], since, [12, 13], units)
    with pytest.raises(InputError, match=rf"1\.nc: column '{column}'"):
        ingest([tmp_path / "sea"], tmp_path / "out.zarr", inputs=["time"], targets=["sst"])
    assert not (tmp_path / "out.zarr").exists()
    files = sorted((tmp_path / "sea").iterdir())
    assert ingest(files, tmp_path / "out.zarr", inputs=["time"], targets=["sst"]) == 4


def test_parts_may_spell_the_same_units_differently(tmp_path: Path) -> None:
    write_sea(tmp_path / "sea" / "0.nc", [0, 1], "2024-01-01", [10, 11], "degC")
    write_sea(tmp_path / "sea" / "1.nc", [2, 3], "2024-01-01 00:00:00", [12, 13], "celsius")
    rows = ingest([tmp_path / "sea"], tmp_path / "out.zarr", inputs=["time"], targets=["sst"])
    _, targets = open_dataset(tmp_path / "out.zarr").read(0, rows)
    np.testing.assert_array_equal(targets[:, 0], [10, 11, 12, 13])


def test_a_percent_sign_in_one_part_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "0.csv").write_text("x,c\n1,1.5%\n2,2.5%\n")
    (tmp_path / "parts" / "1.csv").write_text("x,c\n3,0.015\n4,0.025\n")
    with pytest.raises(InputError, match=r"1\.csv: column 'c'"):
        ingest([tmp_path / "parts"], tmp_path / "out.zarr", inputs=["x"], targets=["c"])


@pytest.mark.parametrize(
    ("keys", "count"), [(["007", "7"], 2), (["1.0", "1"], 2), (["+5", "5", "6"], 3), (["05", "06", "07"], 3)]
)
def test_keys_that_are_written_differently_are_different_groups(tmp_path: Path, keys: list[str], count: int) -> None:
    for key in keys:
        folder = tmp_path / "table" / f"station={key}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("n\n1\n2\n")
    ingest([tmp_path / "table"], tmp_path / "a.zarr", inputs=["n"], groups="station")
    assert len(set(zarr.open_group(tmp_path / "a.zarr")["groups"][:, 0].tolist())) == count


@pytest.mark.parametrize("name", ["²", "①", "x=1/³"])
def test_folders_may_be_called_by_digits_that_are_no_decimals(tmp_path: Path, name: str) -> None:
    for folder in (tmp_path / "table" / name, tmp_path / "table" / name / "2"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.csv").write_text("n\n1\n2\n")
    assert ingest([tmp_path / "table"], tmp_path / "a.zarr", inputs=["n"]) == 4
