"""What the page calls columns and groups: by their attributes, times as dates, groups by the names in the files."""

import re
from pathlib import Path

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from command_line import INDEPENDENT, call, write_job

from dorff import kernels
from dorff.data import ingest
from dorff.data.labels import MOST_GROUP_NAMES
from dorff.data.nodes import group_attributes
from dorff.data.units import text_attributes
from dorff.report.describe import Subject, common_unit, rate, read_column
from dorff.report.figures import label_axes, new_figure
from dorff.report.page import render
from dorff.store import load_model
from tests.report.test_report import GAUSSIAN, a_model


def page_text(page: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of moorings, whose names are text, over time and depth."""
    folder, rng = tmp_path_factory.mktemp("columns"), np.random.default_rng(0)
    hours, depth = np.arange(600) * 6.0, rng.uniform(0, 100, 600)
    temperature = 12 + np.sin(hours / 500) - depth / 50 + 0.1 * rng.standard_normal(600)
    attributes = {
        "time": {"units": "hours since 2024-03-01", "standard_name": "time"},
        "depth": {"units": "m"},
        "t": {"units": "degree_Celsius", "long_name": "temperature"},
    }
    columns = {"time": hours, "depth": depth, "t": temperature}
    columns["mooring"] = rng.choice(["north", "south", "the long one"], 600)
    data = {name: ("obs", values, attributes.get(name, {})) for name, values in columns.items()}
    xr.Dataset(data).to_netcdf(folder / "a.nc")
    ingest([folder / "a.nc"], folder / "s.zarr", inputs=["time", "depth"], targets=["t"], groups="mooring")
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": [500.0, 50.0]}}
    solve = {"folds": {"by": "groups", "count": 3}, "select": "kfold"}
    job = write_job(folder / "j.yaml", data={"store": "s.zarr"}, kernel=kernel, solve=solve, model="m", state="st")
    assert call("fit", job).exit_code == 0
    return folder / "m"


def test_units_are_those_of_attributes_and_times_are_dates(model: Path, tmp_path: Path) -> None:
    subject = Subject.of(load_model(model, held=True))
    assert [column.label for column in (*subject.inputs, *subject.targets)] == ["time", "depth (m)", "t (°C)"]
    assert call("report", model, "-o", tmp_path / "page.html").exit_code == 0
    text = page_text(tmp_path / "page.html")
    assert "time 2024-03-01 2024-07-28 18:00:00" in text and "t (°C)" in text and "depth (m)" in text


def test_axes_of_times_have_dates_at_round_places(model: Path) -> None:
    subject = Subject.of(load_model(model, held=True))
    figure = new_figure(5, 3)
    axes = figure.add_subplot()
    axes.plot([0.0, 3594.0], [0, 1])
    label_axes(axes, subject.inputs[0], "t")
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    ticks = {place: label.get_text() for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)}
    shown = {place: text for place, text in ticks.items() if low <= place <= high}
    months = (pd.date_range("2024-03-01", "2024-08-01", freq="MS") - pd.Timestamp("2024-03-01")) / pd.Timedelta("1h")
    assert list(shown) == list(months) and list(shown.values()) == ["Mar", "Apr", "May", "Jun", "Jul", "Aug"]
    assert "2024" in axes.xaxis.get_offset_text().get_text()


@pytest.mark.parametrize(
    ("units", "label"),
    [
        ("m s-1", "u (m/s)"), ("m/s", "u (m/s)"), ("degrees_north", "u (°)"), ("K", "u (K)"), ("psu", "u (psu)"),
        ("1", "u"), ("days since 2000-01-01", "u"), ("furlongs per fortnight", "u (furlongs per fortnight)"),
    ],
)  # fmt: skip
def test_units_of_attributes(units: str, label: str) -> None:
    assert read_column("u", {"units": units}).label == label


def test_attributes_count_more_than_names_and_rates_know_them() -> None:
    assert read_column("u_m_s", {"units": "cm s-1"}).label == "u_m_s (cm/s)"
    speed, length = read_column("u", {"units": "m s-1"}), read_column("x_km")
    assert rate([length, length], [speed, speed]).unit == "s⁻¹"
    places = [read_column("lon", {"units": "degrees_east"}), read_column("lat", {"units": "degrees_north"})]
    assert common_unit(places) == "°"
    odd = read_column("t", {"units": "days since 2000-02-30", "calendar": "360_day"})
    assert odd.shown(0) == "2000-02-30" and odd.label == "t"


CALENDARS = {
    "": ("0001-01-01", "1582-10-04"),
    "standard": ("0001-01-01", "1582-10-04"),
    "proleptic_gregorian": ("0001-01-01", "1582-10-14"),
    "julian": ("0001-01-01", "1582-10-04"),
    "noleap": ("0001-01-01", "1582-10-04"),
    "360_day": ("0001-01-01", "1582-10-04"),
}


@pytest.mark.parametrize("calendar", CALENDARS)
def test_times_of_any_calendar_and_before_1582_are_dates(calendar: str) -> None:
    """As xarray and cftime have them."""
    time = read_column("time", {"units": "days since 0001-01-01", "calendar": calendar})
    day = cftime.date2num(
        cftime.datetime(*map(int, CALENDARS[calendar][1].split("-")), calendar=calendar or "standard"),
        "days since 0001-01-01",
        calendar=calendar or "standard",
    )
    assert (time.shown(0.0), time.shown(float(day))) == CALENDARS[calendar]
    assert time.shown(float("nan")) == "nan" and time.shown(1e12) == "1e+12"


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("span", [20.0, 400.0, 36_500.0, 900_000.0])
def test_axes_of_early_times_have_dates(calendar: str, span: float) -> None:
    """At the same places as numbers of days; whatever the span."""
    time = read_column("time", {"units": "days since 0001-01-01", "calendar": calendar})
    axes = new_figure(5, 3).add_subplot()
    axes.plot([100.0, 100.0 + span], [0, 1])
    label_axes(axes, time, "t")
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    shown = {place: label.get_text() for place, label in ticks if low <= place <= high}
    assert 2 <= len(shown) <= 8
    if calendar != "proleptic_gregorian":
        assert list(shown.values()) == [time.shown(place) for place in shown]


def test_groups_keep_their_names_as_long_as_they_are_few(model: Path, tmp_path: Path) -> None:
    names = load_model(model).info["data"]["group_names"]
    assert set(names.values()) <= {"north", "south", "the long one"} and names
    frame = pd.DataFrame({"x": np.arange(3000.0), "y": np.arange(3000.0)})
    frame["g"] = [f"{'n' * 80}{number}" for number in range(3000)]
    for name, part in (("a", frame[:900]), ("b", frame[900:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    options = {"inputs": ["x"], "targets": ["y"], "groups": "g"}
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", **options)
    ingest([tmp_path / "b.csv"], tmp_path / "s.zarr", **options, append=True)
    kept = group_attributes(tmp_path / "s.zarr")["dorff"]["group_names"]
    assert len(kept) == MOST_GROUP_NAMES and max(map(len, kept.values())) == 60
    frame["g"] = np.arange(3000)
    frame.to_csv(tmp_path / "c.csv", index=False)
    ingest([tmp_path / "c.csv"], tmp_path / "numbers.zarr", **options)
    assert "group_names" not in group_attributes(tmp_path / "numbers.zarr")["dorff"]


@pytest.mark.parametrize("d", [2, 3])
def test_signs_of_tex_in_names_and_units_stay_text(tmp_path: Path, d: int) -> None:
    """A picture neither breaks nor says something else."""
    names = [f"$\\frac{{{i}$" for i in range(d)]
    attributes = {name: {"units": "$\\frac{m$"} for name in names}
    info = {"data": {"inputs": names, "targets": names, "column_attributes": attributes}}
    field = a_model(kernels.Decomposable(GAUSSIAN), d, d, info)
    assert "\\frac{m" in render(field, tmp_path)


def test_attributes_have_no_control_characters() -> None:
    given = {"units": "m\x1b[31m s-1", "long_name": "speed of\nthe \u202esea\x00"}
    assert text_attributes(given) == {"units": "m [31m s-1", "long_name": "speed of the sea"}
