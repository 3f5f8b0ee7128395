"""Rows that are delivered again in other units are found among those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from dorff.data import ingest
from dorff.data.resolutions import Resolution
from dorff.data.stores import open_dataset
from dorff.errors import InputError

ROWS = 500


def times(step: str, start: str = "2024-06-02", rows: int = ROWS) -> pd.DatetimeIndex:
    return pd.date_range(start, periods=rows, freq=step)


def write_csv(path: Path, when: pd.DatetimeIndex, values: npt.ArrayLike) -> Path:
    texts = [f"{moment.isoformat()}Z" for moment in when]
    pd.DataFrame({"time": texts, "T": values}).to_csv(path, index=False)
    return path


def write_grid(path: Path, when: pd.DatetimeIndex, values: npt.ArrayLike, units: str) -> Path:
    rows = xr.Dataset({"T": ("time", values)}, {"time": when})
    rows.to_netcdf(path, encoding={"time": {"units": units, "dtype": "f8"}})
    return path


def write_columns(path: Path, columns: dict[str, tuple[npt.ArrayLike, str]]) -> Path:
    """Columns of values and units."""
    variables = {name: ("row", np.asarray(values), {"units": units}) for name, (values, units) in columns.items()}
    xr.Dataset(variables).to_netcdf(path)
    return path


def dropped(store: Path) -> int:
    """Rows that do not count."""
    dataset = open_dataset(store, inputs="x", targets=None)
    return int(sum(stop - start for start, stop in dataset.dropped))


def add(source: Path, store: Path, inputs: list[str], **options: Any) -> list[str]:
    """What is said of a further source."""
    said: list[str] = []
    ingest([source], store, inputs=inputs, targets=["T"], append=True, notice=said.append, **options)
    return said


@pytest.mark.parametrize("key", [[], ["time"]], ids=["by inputs", "by a key"])
@pytest.mark.parametrize("step", ["20min", "37s", "50ms"])
@pytest.mark.parametrize("units", ["hours since 1900-01-01", "days since 1950-01-01", "days since 2024-06-01"])
class TestTimes:
    def test_each_row_is_replaced(self, units: str, step: str, key: list[str], tmp_path: Path) -> None:
        store, when, values = tmp_path / "s.zarr", times(step), np.arange(ROWS) / 8
        first = write_csv(tmp_path / "a.csv", when, values)
        ingest([first], store, inputs=["time"], targets=["T"], key=key)
        again = write_grid(tmp_path / "b.nc", when, values + 1, units)
        (known,) = [note for note in add(again, store, ["time"], replace_known=True) if "are there already" in note]
        assert f"0 of {ROWS} rows are there already, and {ROWS} have" in known
        assert dropped(store) == ROWS

    def test_a_night_delivered_again_is_refused(self, units: str, step: str, key: list[str], tmp_path: Path) -> None:
        """And so it is the other way round."""
        when, values = times(step), np.arange(ROWS) / 8
        text = write_csv(tmp_path / "a.csv", when, values)
        grid = write_grid(tmp_path / "b.nc", when, values, units)
        for number, (first, second) in enumerate(((text, grid), (grid, text))):
            store = tmp_path / f"{number}.zarr"
            ingest([first], store, inputs=["time"], targets=["T"], key=key)
            with pytest.raises(InputError, match=rf"{ROWS} of {ROWS} rows are there already"):
                add(second, store, ["time"])


UNITS = {
    "km/h after m/s": ("m s-1", "km h-1", lambda values: values * 3.6),
    "cm after m": ("m", "cm", lambda values: values * 100),
    "K after degC": ("degC", "K", lambda values: values + 273.15),
    "degF after K": ("K", "degF", lambda values: (values - 273.15) * 1.8 + 32),
}


@pytest.mark.parametrize("pair", UNITS)
class TestUnits:
    """Numbers with all digits, and such as people write."""

    @pytest.mark.parametrize("digits", [1, 3, 17])
    def test_each_row_is_replaced(self, pair: str, digits: int, tmp_path: Path) -> None:
        units, others, convert = UNITS[pair]
        depth = np.unique(np.random.default_rng(1).normal(15, 4, 900).round(digits))
        rows, values, store = len(depth), np.arange(len(depth)) / 8, tmp_path / "s.zarr"
        first = write_columns(tmp_path / "a.nc", {"z": (depth, units), "T": (values, "1")})
        ingest([first], store, inputs=["z"], targets=["T"], key=["z"])
        again = write_columns(tmp_path / "b.nc", {"z": (convert(depth), others), "T": (values + 1, "1")})
        add(again, store, ["z"], replace_known=True)
        assert dropped(store) == rows

        third = write_columns(tmp_path / "c.nc", {"z": (depth, units), "T": (values + 2, "1")})
        add(third, store, ["z"], replace_known=True)
        assert dropped(store) == 2 * rows, "rows that were converted are found later too"

    @pytest.mark.parametrize("kind", ["f8", "f4"])
    def test_targets_that_are_equal_are_no_corrections(self, pair: str, kind: str, tmp_path: Path) -> None:
        units, others, convert = UNITS[pair]
        place, store = np.arange(float(ROWS)), tmp_path / "s.zarr"
        values = np.random.default_rng(2).normal(15, 4, ROWS).round(2)
        first = write_columns(tmp_path / "a.nc", {"z": (place, "m"), "T": (values, units)})
        ingest([first], store, inputs=["z"], targets=["T"])
        again = write_columns(tmp_path / "b.nc", {"z": (place, "m"), "T": (convert(values).astype(kind), others)})
        with pytest.raises(InputError, match=rf"{ROWS} of {ROWS} rows are there already:"):
            add(again, store, ["z"])


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1]])
def test_rows_of_two_other_units_are_compared_by_the_fewer_digits(order: list[int], tmp_path: Path) -> None:
    """Also where the second one has more: the first rows are still those of float32."""
    values = np.random.default_rng(3).normal(15, 4, ROWS).round(2)
    place, store = np.arange(float(ROWS)), tmp_path / "s.zarr"
    nights = [
        write_columns(tmp_path / "a.nc", {"z": (place - ROWS, "m"), "T": (values, "degC")}),
        write_columns(tmp_path / "b.nc", {"z": (place, "m"), "T": ((values + 273.15).astype("f4"), "K")}),
        write_columns(tmp_path / "c.nc", {"z": (place, "m"), "T": (values * 1.8 + 32, "degF")}),
    ]
    ingest([nights[order[0]]], store, inputs=["z"], targets=["T"])
    add(nights[order[1]], store, ["z"])
    with pytest.raises(InputError, match=rf"{ROWS} of {ROWS} rows are there already:"):
        add(nights[order[2]], store, ["z"])


def test_rows_of_one_call_are_found_too(tmp_path: Path) -> None:
    when, values, said = times("20min"), np.arange(ROWS) / 8, list[str]()
    first = write_csv(tmp_path / "a.csv", when, values)
    again = write_grid(tmp_path / "b.nc", when, values + 1, "hours since 1900-01-01")
    ingest([first, again], tmp_path / "s.zarr", inputs=["time"], targets=["T"], replace_known=True, notice=said.append)
    assert dropped(tmp_path / "s.zarr") == ROWS, said


def test_places_in_a_cycle_are_compared_as_times_are(tmp_path: Path) -> None:
    store, when, values = tmp_path / "s.zarr", times("20min"), np.arange(ROWS) / 8
    inputs = ["time", "time:day", "time:year"]
    ingest([write_csv(tmp_path / "a.csv", when, values)], store, inputs=inputs, targets=["T"])
    again = write_grid(tmp_path / "b.nc", when, values + 1, "hours since 1900-01-01")
    add(again, store, inputs, replace_known=True)
    assert dropped(store) == ROWS


def test_places_in_a_cycle_near_zero_are_compared_as_others(tmp_path: Path) -> None:
    """Noon and midnight, as other programs round them: the sine is 1e-11 rather than 0."""
    store, when, values = tmp_path / "s.zarr", times("12h"), np.arange(ROWS) / 8
    inputs, units = ["time", "time:day"], "days since 1950-01-01"
    ingest([write_csv(tmp_path / "a.csv", when, values)], store, inputs=inputs, targets=["T"])
    again = write_grid(tmp_path / "b.nc", when, values + 1, units)
    with h5py.File(again, "a") as file:
        file["time"][:] = np.nextafter(file["time"][:], np.inf)
    add(again, store, inputs, replace_known=True)
    assert dropped(store) == ROWS


def test_rows_of_two_other_origins_are_compared_by_the_farther_one(tmp_path: Path) -> None:
    when, values, store = times("37s"), np.arange(ROWS) / 8, tmp_path / "s.zarr"
    ingest([write_csv(tmp_path / "a.csv", when, values)], store, inputs=["time"], targets=["T"])
    near = write_grid(tmp_path / "b.nc", when + pd.Timedelta(days=1), values, "seconds since 2024-06-01")
    add(near, store, ["time"])
    far = write_grid(tmp_path / "c.nc", when, values + 1, "days since 0001-01-01")
    add(far, store, ["time"], replace_known=True)
    assert dropped(store) == ROWS


def test_times_of_fast_instruments_stay_apart(tmp_path: Path) -> None:
    """Each night counts its seconds from its own start, 20,000 rows a second."""
    store, values = tmp_path / "s.zarr", np.arange(ROWS) / 8
    first, second = times("50us"), times("50us", "2024-06-03")
    units = "seconds since {:%Y-%m-%d}"
    ingest(
        [write_grid(tmp_path / "a.nc", first, values, units.format(first[0]))], store, inputs=["time"], targets=["T"]
    )
    add(write_grid(tmp_path / "b.nc", second, values, units.format(second[0])), store, ["time"])
    corrected = write_grid(tmp_path / "c.nc", second[:200], values[:200] + 1, units.format(second[0]))
    add(corrected, store, ["time"], replace_known=True)
    assert dropped(store) == 200


def test_other_values_in_other_units_are_other_rows(tmp_path: Path) -> None:
    depth, store = np.linspace(0, 5, ROWS), tmp_path / "s.zarr"
    first = write_columns(tmp_path / "a.nc", {"z": (depth, "m"), "T": (depth, "1")})
    ingest([first], store, inputs=["z"], targets=["T"], key=["z"])
    other = write_columns(tmp_path / "b.nc", {"z": (depth * 100 + 1e-3, "cm"), "T": (depth, "1")})
    add(other, store, ["z"], replace_known=True)
    assert dropped(store) == 0


@given(
    st.integers(-(10**9), 10**9),
    st.integers(-6, 6),
    st.floats(-1, 1),
    st.sampled_from([0.0, 273.15, -1e3, 1.0]),
)
def test_rounding_takes_neighbours_of_a_short_number_to_one(
    number: int, places: int, error: float, zero: float
) -> None:
    """Within the rounding of sums with the other zero; other numbers of so many places stay others."""
    value = number / 10.0**places
    resolution = Resolution(digits=13, zero=zero)
    ulps = 4 * np.spacing(max(abs(value), abs(zero)))
    first, second = resolution.round(np.array([value, value + error * ulps]))
    assert first == second == pytest.approx(value, rel=1e-12, abs=1e-12 * abs(zero))
    if abs(value) * 1e9 > abs(zero) and places >= 0:
        assert resolution.round(np.array([value + 10.0**-places]))[0] != first


def test_rounding_keeps_what_is_no_number() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(Resolution(digits=10, zero=2.0).round(values), values)


@pytest.mark.parametrize("units", ["hours since 1900-01-01", "days since 1950-01-01", "days since 0001-01-01"])
def test_text_is_found_among_times_that_others_rounded(units: str, tmp_path: Path) -> None:
    """Programs differ in the last bit of hours and days; of so many rows some would be rounded apart."""
    rows, store = 20_000, tmp_path / "s.zarr"
    when, values = times("37s", rows=rows), np.arange(rows) / 8
    grid = write_grid(tmp_path / "a.nc", when, values, units)
    with h5py.File(grid, "a") as file:
        exact = file["time"][:]
        file["time"][:] = np.where(np.arange(rows) % 2, np.nextafter(exact, np.inf), exact)
    ingest([grid], store, inputs=["time"], targets=["T"])
    add(write_csv(tmp_path / "b.csv", when, values + 1), store, ["time"], replace_known=True)
    assert dropped(store) == rows


def test_text_of_milliseconds_stays_apart_in_hours(tmp_path: Path) -> None:
    """A millisecond is no round number of hours: times are rounded in seconds."""
    when, values, store = times("1ms"), np.arange(ROWS) / 8, tmp_path / "s.zarr"
    grid = write_grid(tmp_path / "a.nc", when, values, "hours since 1900-01-01")
    ingest([grid], store, inputs=["time"], targets=["T"])
    corrected = write_csv(tmp_path / "b.csv", when[::2], values[::2] + 1)
    add(corrected, store, ["time"], replace_known=True)
    assert dropped(store) == ROWS // 2


@pytest.mark.parametrize("step", ["100us", "200us"])
def test_rows_that_rounding_takes_for_one_are_not_replaced(step: str, tmp_path: Path) -> None:
    """Seconds since 1970 are compared to the millisecond."""
    when, values, store = times(step), np.arange(ROWS) / 8, tmp_path / "s.zarr"
    ingest(
        [write_grid(tmp_path / "a.nc", when, values, "seconds since 1970-01-01")],
        store,
        inputs=["time"],
        targets=["T"],
        key=["time"],
    )
    corrected = write_grid(tmp_path / "b.nc", when[::20], values[::20] + 1, "microseconds since 1970-01-01")
    with pytest.raises(InputError, match="different rows have one 'time'"):
        add(corrected, store, ["time"], replace_known=True)
    assert dropped(store) == 0


def test_delivered_rows_that_rounding_takes_for_one_replace_none(tmp_path: Path) -> None:
    when, values, store = times("100us"), np.arange(ROWS) / 8, tmp_path / "s.zarr"
    units = "seconds since 1970-01-01"
    first = write_grid(tmp_path / "a.nc", when[::20], values[::20], units)
    ingest([first], store, inputs=["time"], targets=["T"], key=["time"])
    finer = write_grid(tmp_path / "b.nc", when, values + 1, "microseconds since 1970-01-01")
    with pytest.raises(InputError, match="different rows have one 'time'"):
        add(finer, store, ["time"], replace_known=True)


@pytest.mark.parametrize("replace_known", [True, False])
def test_a_constant_of_a_file_is_found_in_other_units(replace_known: bool, tmp_path: Path) -> None:
    """Files of one temperature each, whose boxes do not overlap by the last digit."""
    lat, values = np.linspace(40, 50, ROWS).round(3), np.arange(ROWS) / 8
    for number, celsius in enumerate([12.3, 12.31, 8.7, 0.1]):
        store = tmp_path / f"{number}.zarr"
        in_celsius = {"z": (np.full(ROWS, celsius), "degC"), "lat": (lat, "1"), "T": (values, "1")}
        first = write_columns(tmp_path / f"a{number}.nc", in_celsius)
        ingest([first], store, inputs=["z", "lat"], targets=["T"])
        in_kelvin = {"z": (np.full(ROWS, round(celsius + 273.15, 2)), "K"), "lat": (lat, "1"), "T": (values, "1")}
        again = write_columns(tmp_path / f"b{number}.nc", in_kelvin)
        if not replace_known:
            with pytest.raises(InputError, match="500 of 500 rows are there already"):
                add(again, store, ["z", "lat"])
        else:
            add(again, store, ["z", "lat"], replace_known=True)
            assert dropped(store) == ROWS


@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_short_numbers_of_float32_are_found_in_other_units(decimals: int, tmp_path: Path) -> None:
    """Four decimals often lie half a step from two rounded values."""
    kelvin = np.random.default_rng(0).uniform(280, 300, ROWS).round(decimals)
    lat, values, store = np.linspace(40, 50, ROWS).round(3), np.arange(ROWS) / 8, tmp_path / "s.zarr"
    celsius = (kelvin - 273.15).round(decimals)
    first = write_columns(tmp_path / "a.nc", {"temp": (celsius, "degC"), "lat": (lat, "1"), "T": (values, "1")})
    ingest([first], store, inputs=["temp", "lat"], targets=["T"])
    short = write_columns(
        tmp_path / "b.nc", {"temp": (kelvin.astype("f4"), "K"), "lat": (lat, "1"), "T": (values + 1, "1")}
    )
    add(short, store, ["temp", "lat"], replace_known=True)
    assert dropped(store) == ROWS
