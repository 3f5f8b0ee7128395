"""Predictions beside a table's inputs: these are as the table has them, in its units and times."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow.csv as pacsv
import pytest
import xarray as xr
from command_line import INDEPENDENT, call, write_job

from dorff.data import open_dataset

ROWS = 90
HOURS = np.arange(ROWS, dtype=np.float64)
PRESSURE = np.linspace(1000, 900, ROWS)  # hPa
SST = 280 + 5 * np.sin(HOURS / 12)
ORIGIN = pd.Timestamp("2024-01-01")


def fit(folder: Path, name: str, inputs: str) -> None:
    store = folder / f"{name}.zarr"
    done = call("ingest", folder / "a.nc", store, "--inputs", inputs, "--targets", "sst")
    assert done.exit_code == 0, done.output
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": 12.0}}
    job = {"data": {"store": str(store)}, "kernel": kernel, "state": f"{name}_runs", "model": name}
    assert call("fit", write_job(folder / f"{name}.yaml", **job)).exit_code == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of hours and hPa: `m` of both, `cycles` of the time of day."""
    folder = tmp_path_factory.mktemp("own")
    variables = {
        "time": ("row", HOURS, {"units": "hours since 2024-01-01"}),
        "p": ("row", PRESSURE, {"units": "hPa", "standard_name": "air_pressure"}),
        "sst": ("row", SST, {"units": "K"}),
    }
    xr.Dataset(variables).to_netcdf(folder / "a.nc", engine="scipy")
    fit(folder, "m", "time,p")
    fit(folder, "cycles", "time:day,p")
    return folder


def write_rows(path: Path) -> list[str]:
    """Write the same rows with days and Pa, or with dates and Pa; return options that say units."""
    dates = ORIGIN + pd.to_timedelta(HOURS, "h")
    stated = ["--units", "p=Pa"]
    if path.name == "days.nc":
        variables = {
            "time": ("row", HOURS / 24 + 1, {"units": "days since 2023-12-31"}),
            "p": ("row", PRESSURE * 100, {"units": "Pa", "long_name": "pressure"}),
        }
        xr.Dataset(variables).to_netcdf(path, engine="scipy")
        return []
    if path.name == "days.csv":
        pd.DataFrame({"time": HOURS / 24 + 1, "p": PRESSURE * 100}).to_csv(path, index=False)
        return [*stated, "--units", "time=days since 2023-12-31"]
    frame = pd.DataFrame({"time": dates, "p": PRESSURE * 100})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return stated


FILES = ["days.nc", "days.csv", "dates.csv", "dates.parquet"]


def predict(model: Path, given: Path, out: Path, options: Sequence[str]) -> str:
    done = call("predict", model, given, out, *options)
    assert done.exit_code == 0, done.output
    return done.stderr


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("model", ["m", "cycles"])
def test_csv_has_the_inputs_of_the_file(place: Path, tmp_path: Path, name: str, model: str) -> None:
    options = write_rows(tmp_path / name)
    told = predict(place / model, tmp_path / name, tmp_path / "out.csv", options)
    table = pacsv.read_csv(tmp_path / "out.csv").to_pandas()
    assert {"time", "p", "sst_predicted"} <= set(table.columns)
    np.testing.assert_array_equal(table["p"], PRESSURE * 100)
    if name == "days.csv":
        np.testing.assert_array_equal(table["time"], HOURS / 24 + 1)
    else:
        assert list(table["time"]) == list(ORIGIN + pd.to_timedelta(HOURS, "h"))
    assert "p from Pa to hPa" in told
    predict(place / model, place / "a.nc", tmp_path / "own.csv", [])
    wanted = pacsv.read_csv(tmp_path / "own.csv").to_pandas()["sst_predicted"]
    np.testing.assert_allclose(table["sst_predicted"], wanted, rtol=1e-9)


@pytest.mark.parametrize("name", FILES)
def test_netcdf_has_the_inputs_of_the_file_and_says_their_units(place: Path, tmp_path: Path, name: str) -> None:
    options = write_rows(tmp_path / name)
    predict(place / "m", tmp_path / name, tmp_path / "out.nc", options)
    with xr.open_dataset(tmp_path / "out.nc") as table:
        times = table["time"].values
        np.testing.assert_array_equal(table["p"], PRESSURE * 100)
        assert table["p"].attrs["units"] == "Pa" and table["sst_predicted"].attrs["units"] == "K"
        assert table["p"].attrs["standard_name"] == "air_pressure"
    assert np.abs(times - (ORIGIN + pd.to_timedelta(HOURS, "h")).values).max() < np.timedelta64(1, "us")
    if name.startswith("days"):
        with h5py.File(tmp_path / "out.nc") as file:
            np.testing.assert_array_equal(file["time"][:], HOURS / 24 + 1)


def test_a_file_without_units_has_those_of_the_model(place: Path, tmp_path: Path) -> None:
    pd.DataFrame({"time": ORIGIN + pd.to_timedelta(HOURS, "h"), "p": PRESSURE}).to_csv(tmp_path / "a.csv")
    told = predict(place / "m", tmp_path / "a.csv", tmp_path / "out.nc", [])
    assert "units are known on one side alone" in told
    with h5py.File(tmp_path / "out.nc") as file:
        assert file["p"].attrs["units"] == "hPa"
        np.testing.assert_array_equal(file["p"][:], PRESSURE)


def test_what_is_refused_is_said_of_the_file(place: Path, tmp_path: Path) -> None:
    early = {"units": "days since 1500-01-01", "calendar": "proleptic_gregorian"}
    variables = {"time": ("row", HOURS, early), "p": ("row", PRESSURE, {"units": "hPa"})}
    xr.Dataset(variables).to_netcdf(tmp_path / "early.nc", engine="scipy")
    wrong = {**variables, "p": ("row", PRESSURE, {"units": "m"})}
    xr.Dataset(wrong).to_netcdf(tmp_path / "wrong.nc", engine="scipy")
    for name, problem in (("early.nc", "before October 15, 1582"), ("wrong.nc", "measure different things")):
        done = call("predict", place / "m", tmp_path / name, tmp_path / "out.csv")
        assert done.exit_code == 3 and problem in done.stderr, done.output
        assert name in done.stderr and "in.zarr" not in done.stderr
        assert not (tmp_path / "out.csv").exists()


EARLY = ["standard", "proleptic_gregorian", "julian", "noleap", "360_day"]


@pytest.mark.parametrize("calendar", EARLY)
def test_early_times_have_a_report_and_predictions(tmp_path: Path, calendar: str) -> None:
    """Climatologies count from year 1; the place in the year is of their calendar, too."""
    attributes = {"units": "days since 0001-01-01", "calendar": calendar}
    days = 15.0 + 30 * HOURS
    variables: dict[str, Any] = {"time": ("row", days, attributes), "sst": ("row", SST)}
    xr.Dataset(variables).to_netcdf(tmp_path / "a.nc", engine="scipy")
    fit(tmp_path, "m", "time,time:year")
    done = call("report", tmp_path / "m", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "0001-01-16" in (tmp_path / "page.html").read_text()
    told = predict(tmp_path / "m", tmp_path / "a.nc", tmp_path / "out.csv", [])
    shown = pd.read_csv(tmp_path / "out.csv")["time"]
    if calendar == "proleptic_gregorian":
        assert shown[0].startswith("0001-01-16 00:00:00")
    else:
        np.testing.assert_array_equal(shown, days)
        assert "times are written as numbers" in told and calendar in told
    predict(tmp_path / "m", tmp_path / "a.nc", tmp_path / "out.nc", [])
    with h5py.File(tmp_path / "out.nc") as file:
        np.testing.assert_array_equal(file["time"][:], days)
        assert file["time"].attrs["units"] == "days since 0001-01-01"


@pytest.mark.parametrize(
    "name",
    ["o.nc.gz", "o.csv.gz", "o.CSV.GZ", "o.parquet.gz", "o.feather", "o.tsv", "o.xlsx", "o.json", "o.zip", "o.h5"],
)
def test_outputs_named_as_files_of_other_formats_are_refused(place: Path, tmp_path: Path, name: str) -> None:
    """No folder has the name of a file."""
    wrong = [
        (call("predict", place / "m", place / "a.nc", tmp_path / name), ".zarr, .csv or .nc"),
        (call("predict", place / "m", place / "m.zarr", tmp_path / name), ".zarr, .csv or .nc"),
        (call("ingest", place / "a.nc", tmp_path / name, "--inputs", "time"), "can be .zarr"),
        (call("report", place / "m", "-o", tmp_path / name), ".html or .htm"),
    ]
    for done, known in wrong:
        assert done.exit_code == 3 and known in done.stderr, done.output
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run.p1", "f.preds", "sea.store", "v1.2", "2024.a"])
def test_names_with_a_point_are_names(place: Path, tmp_path: Path, name: str) -> None:
    ingested, predicted = tmp_path / f"rows_{name}", tmp_path / f"field_{name}"
    for done in (
        call("ingest", place / "a.nc", ingested, "--inputs", "time"),
        call("predict", place / "m", place / "a.nc", predicted),
        call("report", place / "m", "-o", tmp_path / name),
    ):
        assert done.exit_code == 0, done.output
    assert open_dataset(ingested, inputs=["x"], targets=None).n == ROWS
    assert open_dataset(predicted, inputs=["y"], targets=None).n == ROWS


@pytest.mark.parametrize("name", ["sea.store", "sea.dat", "sea.data", "sea.nc"])
def test_data_sets_of_any_name_are_appended_to(tmp_path: Path, name: str) -> None:
    """A schedule goes on where the names of earlier data sets would be refused today."""
    for number in range(2):
        pd.DataFrame({"a": [number, 0.5, 1.0], "b": [1.0, 2.0, 3.0]}).to_csv(tmp_path / f"t{number}.csv", index=False)
    made = call("ingest", tmp_path / "t0.csv", tmp_path / "sea.zarr", "--inputs", "a")
    assert made.exit_code == 0, made.output
    absent = call("ingest", tmp_path / "t1.csv", tmp_path / name, "--inputs", "a", "--append")
    assert absent.exit_code == 3 and "there is no such file or folder; check the path" in absent.stderr
    store = (tmp_path / "sea.zarr").rename(tmp_path / name)
    again = call("ingest", tmp_path / "t1.csv", store, "--inputs", "a")
    assert again.exit_code == 3 and "is there already" in again.stderr
    done = call("ingest", tmp_path / "t1.csv", store, "--inputs", "a", "--append")
    assert done.exit_code == 0, done.output
    assert open_dataset(store, inputs=["x"], targets=None).n == 6


def test_endings_in_capitals_are_known(place: Path, tmp_path: Path) -> None:
    predict(place / "m", place / "a.nc", tmp_path / "out.CSV", [])
    assert len(pd.read_csv(tmp_path / "out.CSV")) == ROWS


@pytest.mark.parametrize("where", ["p > 950", "p <= 950 and time >= 80", "sst > 280"])
def test_conditions_of_score_and_predict_keep_the_same_rows(place: Path, tmp_path: Path, where: str) -> None:
    """They compare in the model's units."""
    variables = {
        "time": ("row", HOURS / 24 + 1, {"units": "days since 2023-12-31"}),
        "p": ("row", PRESSURE * 100, {"units": "Pa"}),
        "sst": ("row", SST - 273.15, {"units": "degC"}),
    }
    xr.Dataset(variables).to_netcdf(tmp_path / "new.nc", engine="scipy")
    predict(place / "m", tmp_path / "new.nc", tmp_path / "out.csv", ["--where", where])
    written = pd.read_csv(tmp_path / "out.csv")
    scored = call("score", place / "m", tmp_path / "new.nc", "--where", where, "--json")
    assert scored.exit_code == 0, scored.output
    wanted = {"p": PRESSURE, "time": HOURS, "sst": SST}
    expected = pd.DataFrame(wanted).query(where)
    np.testing.assert_allclose(written["p"], 100 * expected["p"])
    assert len(written) == len(expected) == json.loads(scored.stdout)["rows"]


@pytest.mark.parametrize("hours", [1e14, 8e7, -2.2e7], ids=["in no calendar", "year 11150", "year -485"])
def test_times_beyond_the_years_of_iso_dates_are_numbers(place: Path, tmp_path: Path, hours: float) -> None:
    variables = {
        "time": ("row", [0.0, hours], {"units": "hours since 2024-01-01"}),
        "p": ("row", [1000.0, 990.0], {"units": "hPa"}),
    }
    xr.Dataset(variables).to_netcdf(tmp_path / "in.nc", engine="scipy")
    done = call("predict", place / "m", tmp_path / "in.nc", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert "times are written as numbers" in " ".join(done.output.split())
    assert pacsv.read_csv(tmp_path / "out.csv")["time"].to_pylist() == [0.0, hours]
