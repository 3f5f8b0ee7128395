"""Times that are integers beyond 2^53: the origin is subtracted before they become float64, so no digit is lost."""

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from command_line import INDEPENDENT, call, write_job

from dorff.data import ingest
from dorff.data.nodes import group_attributes

ROWS = 60
STEPS = np.arange(ROWS, dtype=np.int64) * 7 + 3  # nanoseconds, or microseconds
DAY = np.datetime64("2024-01-05")
FORMATS = ["nc", "h5", "zarr2", "zarr3"]
#: Units, the integer at which the day begins, and the units that are kept.
TIMES = {
    "nanoseconds since 1970-01-01": (19_727 * 86_400 * 10**9, "nanoseconds since 2024-01-05"),
    "ns since 2000-01-01 06:00:00": ((8_770 * 24 - 6) * 3600 * 10**9, "ns since 2024-01-05"),
    "microseconds since 0001-01-01": (738_889 * 86_400 * 10**6, "microseconds since 2024-01-05"),
}


def write(path: Path, kind: str, time: np.ndarray[Any, Any], units: str, calendar: str) -> Path:
    """Write times as integers, with a target."""
    attributes = {"units": units, "calendar": calendar}
    target = np.sin(np.arange(len(time)) / 5)
    if kind == "nc":
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("row", len(time))
            stored = file.createVariable("time", time.dtype, ("row",), fill_value=-(2**63))
            stored.setncatts(attributes)
            stored[:] = time
            file.createVariable("u", "f8", ("row",))[:] = target
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("time", data=time).attrs.update(attributes)
            file.create_dataset("u", data=target)
    else:
        variables = {"time": ("row", time, attributes), "u": ("row", target)}
        xr.Dataset(variables).to_zarr(path, zarr_format=int(kind[-1]), consolidated=False)
    return path


def read_times(store: Path) -> tuple[np.ndarray[Any, Any], list[str]]:
    with xr.open_zarr(store, consolidated=False) as made:
        return made.x.values[:, 0], group_attributes(store)["dorff"]["encoding"]["time"]["time"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("units", TIMES)
def test_no_digit_is_lost(tmp_path: Path, kind: str, units: str) -> None:
    day, kept = TIMES[units]
    source = write(tmp_path / f"a.{kind}", kind, day + STEPS, units, "proleptic_gregorian")
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "s.zarr")
    assert words == [kept, "proleptic_gregorian"]
    np.testing.assert_array_equal(times, STEPS)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_second_delivery_keeps_them_too(tmp_path: Path, kind: str) -> None:
    """Its first day is another one: the difference of origins is whole."""
    units = "nanoseconds since 1970-01-01"
    day, kept = TIMES[units]
    write(tmp_path / f"a.{kind}", kind, day + STEPS, units, "standard")
    write(tmp_path / f"b.{kind}", kind, day + 86_400 * 10**9 + STEPS, units, "standard")
    ingest([tmp_path / f"a.{kind}"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    ingest([tmp_path / f"b.{kind}"], tmp_path / "s.zarr", inputs=["time"], targets=["u"], append=True)
    times, words = read_times(tmp_path / "s.zarr")
    assert words == [kept]
    np.testing.assert_array_equal(times, [*STEPS, *(STEPS + 86_400 * 10**9)])


@pytest.mark.parametrize("kind", ["nc", "zarr3"])
def test_gaps_stay_gaps_and_conditions_hold(tmp_path: Path, kind: str) -> None:
    day, _ = TIMES["nanoseconds since 1970-01-01"]
    time = day + STEPS
    time[[0, 7]] = -(2**63)
    if kind == "zarr3":
        source = write(tmp_path / "a.zarr3", kind, time, "nanoseconds since 1970-01-01", "standard")
        metadata = source / "time" / "zarr.json"
        metadata.write_text(metadata.read_text().replace('"units"', '"missing_value": -9223372036854775808, "units"'))
    else:
        source = write(tmp_path / "a.nc", kind, time, "nanoseconds since 1970-01-01", "standard")
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, _ = read_times(tmp_path / "s.zarr")
    wanted = STEPS.astype(np.float64)
    wanted[[0, 7]] = np.nan
    np.testing.assert_array_equal(times, wanted)


def test_stated_units_are_of_the_numbers_in_the_file(tmp_path: Path) -> None:
    day, _ = TIMES["nanoseconds since 1970-01-01"]
    source = write(tmp_path / "a.nc", "nc", day + STEPS, "nanoseconds since 1970-01-01", "standard")
    stated = "nanoseconds since 2000-01-01"
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"], units={"time": stated})
    times, words = read_times(tmp_path / "s.zarr")
    assert words == [stated]
    np.testing.assert_array_equal(times, (day + STEPS).astype(np.float64))


def test_others_stay_as_they_are(tmp_path: Path) -> None:
    """Integers that a float64 holds, and numbers that are no times."""
    seconds = write(tmp_path / "a.nc", "nc", 1_704_412_800 + STEPS, "seconds since 1970-01-01", "standard")
    ingest([seconds], tmp_path / "a.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "a.zarr")
    assert words == ["seconds since 1970-01-01"]
    np.testing.assert_array_equal(times, 1_704_412_800 + STEPS)
    counts = write(tmp_path / "b.nc", "nc", 2**60 + STEPS, "counts", "standard")
    ingest([counts], tmp_path / "b.zarr", inputs=["time"], targets=["u"])
    with xr.open_zarr(tmp_path / "b.zarr", consolidated=False) as made:
        np.testing.assert_array_equal(made.x.values[:, 0], (2**60 + STEPS).astype(np.float64))


def test_a_model_is_asked_at_the_same_nanoseconds(tmp_path: Path) -> None:
    """Steps of 7 ns, which a float64 of nanoseconds since 1970 does not tell apart."""
    day, _ = TIMES["nanoseconds since 1970-01-01"]
    source = write(tmp_path / "a.nc", "nc", day + STEPS, "nanoseconds since 1970-01-01", "standard")
    done = call("ingest", source, tmp_path / "s.zarr", "--inputs", "time", "--targets", "u")
    assert done.exit_code == 0, done.output
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": 35.0}}
    job = write_job(tmp_path / "j.yaml", data={"store": "s.zarr"}, kernel=kernel, state="st", model="m")
    assert call("fit", job).exit_code == 0
    done = call("predict", tmp_path / "m", source, tmp_path / "out.nc")
    assert done.exit_code == 0, done.output
    with h5py.File(tmp_path / "out.nc") as file:
        wanted = np.sin(np.arange(ROWS) / 5)
        np.testing.assert_allclose(file["u_predicted"][:], wanted, atol=0.05)
