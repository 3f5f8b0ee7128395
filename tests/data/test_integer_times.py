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
from dorff.errors import InputError

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


@pytest.mark.parametrize("kind", ["nc", "h5"])
@pytest.mark.parametrize("later", [1, -1])
@pytest.mark.parametrize("units", TIMES)
def test_parts_of_a_folder_are_counted_from_one_day(tmp_path: Path, kind: str, later: int, units: str) -> None:
    """That of the first part, as where its files are named one by one."""
    day, kept = TIMES[units]
    length = later * 86_400 * (10**6 if units.startswith("micro") else 10**9)
    (tmp_path / "parts").mkdir()
    files = [tmp_path / "parts" / f"p{number}.{kind}" for number in range(3)]
    for number, file in enumerate(files):
        write(file, kind, day + number * length + STEPS, units, "standard")
    ingest([tmp_path / "parts"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "s.zarr")
    assert words[0].split(" since ")[0] == kept.split(" since ")[0]
    wanted = np.concatenate([STEPS, STEPS + length, STEPS + 2 * length])
    np.testing.assert_array_equal(times - times[0], wanted - wanted[0])
    ingest(files, tmp_path / "t.zarr", inputs=["time"], targets=["u"])
    one_by_one, their_words = read_times(tmp_path / "t.zarr")
    assert their_words == words
    np.testing.assert_array_equal(times, one_by_one)


@pytest.mark.parametrize("first", ["f8", "i4", "i8"])
def test_parts_that_hold_small_times_or_floats_are_counted_from_that_day_too(tmp_path: Path, first: str) -> None:
    (tmp_path / "parts").mkdir()
    day, kept = TIMES["nanoseconds since 1970-01-01"]
    small = (np.arange(ROWS) * 1000).astype(first)
    write(tmp_path / "parts" / "p0.h5", "h5", small, "nanoseconds since 1970-01-01", "standard")
    write(tmp_path / "parts" / "p1.h5", "h5", day + STEPS, "nanoseconds since 1970-01-01", "standard")
    ingest([tmp_path / "parts"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "s.zarr")
    assert words[0] == kept
    np.testing.assert_array_equal(times[ROWS:], STEPS)
    np.testing.assert_allclose(times[:ROWS], small.astype("f8") - day, rtol=1e-15)


@pytest.mark.parametrize("first", ["f8", "i4", "i8"])
def test_missing_numbers_of_any_part_stay_gaps(tmp_path: Path, first: str) -> None:
    (tmp_path / "parts").mkdir()
    small, large = (np.arange(ROWS) * 1000).astype(first), TIMES["nanoseconds since 1970-01-01"][0] + STEPS
    small[3] = large[5] = -999
    write(tmp_path / "parts" / "p0.h5", "h5", small, "nanoseconds since 1970-01-01", "standard")
    write(tmp_path / "parts" / "p1.h5", "h5", large, "nanoseconds since 1970-01-01", "standard")
    names = {"inputs": ["time"], "targets": ["u"]}
    with pytest.raises(InputError, match="--missing -999"):
        ingest([tmp_path / "parts"], tmp_path / "s.zarr", **names)
    ingest([tmp_path / "parts"], tmp_path / "s.zarr", **names, missing=["-999"])
    times, _ = read_times(tmp_path / "s.zarr")
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(times)), [3, ROWS + 5])


@pytest.mark.parametrize("units", ["hours since 1970-01-01", "nanoseconds since 1970-01-02", "m"])
def test_parts_of_other_units_are_refused(tmp_path: Path, units: str) -> None:
    (tmp_path / "parts").mkdir()
    day, _ = TIMES["nanoseconds since 1970-01-01"]
    write(tmp_path / "parts" / "p0.h5", "h5", day + STEPS, "nanoseconds since 1970-01-01", "standard")
    write(tmp_path / "parts" / "p1.h5", "h5", day + STEPS, units, "standard")
    with pytest.raises(InputError):
        ingest([tmp_path / "parts"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
@pytest.mark.parametrize("first", [0, 1_500, 70_000])
def test_times_that_become_large_late_keep_their_digits(tmp_path: Path, kind: str, first: int) -> None:
    """After those of the first 104 days since the origin, which a float64 holds."""
    early = np.linspace(0, 2**53 - 10, first).astype(np.int64)
    late = 105 * 86_400 * 10**9 + STEPS
    time = np.concatenate([early, late])
    source = write(tmp_path / f"a.{kind}", kind, time, "nanoseconds since 2024-01-01", "standard")
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "s.zarr")
    assert words[0] == "nanoseconds since 2024-04-15"
    np.testing.assert_array_equal(times[first:], STEPS)


def test_a_grid_of_one_time_keeps_its_digits(tmp_path: Path) -> None:
    """It has no dimension."""
    day, kept = TIMES["nanoseconds since 1970-01-01"]
    attributes = {"units": "nanoseconds since 1970-01-01"}
    for number in range(2):
        fields = {"time": ((), np.int64(day + 7 * number), attributes), "u": ("x", np.arange(5.0) + number)}
        xr.Dataset(fields).to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    ingest([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, words = read_times(tmp_path / "s.zarr")
    assert words[0] == kept
    np.testing.assert_array_equal(times, [0] * 5 + [7] * 5)


@pytest.mark.parametrize("kind", ["nc", "zarr3"])
def test_gaps_stay_gaps(tmp_path: Path, kind: str) -> None:
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


#: Hours in nanoseconds since 1970, from a midnight on, and a date at the 30th of them.
HOURS = np.datetime64("2026-01-01", "ns").astype("i8") + np.arange(ROWS) * 3600 * 10**9
SINCE_1970 = "nanoseconds since 1970-01-01"
MIDDLE = int(HOURS[30])
ENDS = {"min": -(2**63), "filled": -(2**63) + 2, "max": 2**63 - 1}


def write_hours(path: Path, kind: str, stored: np.ndarray[Any, Any], **further: np.ndarray[Any, Any]) -> Path:
    """Write times without a fill value, a target that is nowhere 0, and further times."""
    times = {"time": stored, **further}
    target = 3 + np.sin(np.arange(len(stored)))
    attributes = {"units": SINCE_1970, "calendar": "standard"}
    if kind == "nc":
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("row", len(stored))
            for name, values in times.items():
                variable = file.createVariable(name, values.dtype, ("row",), fill_value=False)
                variable.setncatts(attributes)
                variable[:] = values
            file.createVariable("u", "f8", ("row",))[:] = target
        return path
    variables = {name: ("row", values, attributes) for name, values in times.items()}
    xr.Dataset({**variables, "u": ("row", target)}).to_zarr(path, zarr_format=int(kind[-1]), consolidated=False)
    return path


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("value", [*ENDS.values(), 0, -999])
def test_missing_names_stored_integers(tmp_path: Path, kind: str, place: int, value: int) -> None:
    stored = HOURS.copy()
    stored[place] = value
    source = write_hours(tmp_path / f"a.{kind}", kind, stored)
    said: list[str] = []
    names = {"inputs": ["time"], "targets": ["u"], "missing": [str(value)], "notice": said.append}
    assert ingest([source], tmp_path / "s.zarr", **names) == ROWS
    times, _ = read_times(tmp_path / "s.zarr")
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(times)), [place])
    np.testing.assert_array_equal(np.diff(times[6:]), np.full(ROWS - 7, 3600e9))
    assert not [sentence for sentence in said if "no value of the columns" in sentence]


@pytest.mark.parametrize("kind", ["nc", "zarr3"])
@pytest.mark.parametrize("value", [*ENDS.values(), -999])
def test_an_undeclared_fill_value_is_named_as_stored(tmp_path: Path, kind: str, value: int) -> None:
    stored = HOURS.copy()
    stored[5] = value
    source = write_hours(tmp_path / f"a.{kind}", kind, stored)
    names = {"inputs": ["time"], "targets": ["u"]}
    with pytest.raises(InputError, match=f"column 'time' has {value}.*--missing {value} .*--missing none"):
        ingest([source], tmp_path / "s.zarr", **names)
    assert ingest([source], tmp_path / "s.zarr", **names, missing=["none"]) == ROWS
    times, _ = read_times(tmp_path / "s.zarr")
    np.testing.assert_allclose(times[5], float(value - int(HOURS[0])), rtol=1e-12)


def test_ends_of_unsigned_integers_are_named_too(tmp_path: Path) -> None:
    stored = HOURS.astype("u8")
    stored[5] = 2**64 - 2
    source = write_hours(tmp_path / "a.nc", "nc", stored)
    with pytest.raises(InputError, match=f"has {2**64 - 2}"):
        ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"], missing=[str(2**64 - 2)])
    times, _ = read_times(tmp_path / "s.zarr")
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(times)), [5])


@pytest.mark.parametrize("kind", ["nc", "zarr3"])
def test_an_undeclared_zero_is_the_origin(tmp_path: Path, kind: str) -> None:
    """As in other units of time: it may be 1970."""
    stored = HOURS.copy()
    stored[5] = 0
    source = write_hours(tmp_path / f"a.{kind}", kind, stored)
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    times, _ = read_times(tmp_path / "s.zarr")
    assert times[5] == -int(HOURS[0])


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
@pytest.mark.parametrize("inputs", [["time"], ["time", "time:day"], ["time:day"]])
def test_midnight_is_not_missing(tmp_path: Path, kind: str, inputs: list[str]) -> None:
    """It is 0 since the first day, and its sine too, but not in the file."""
    source = write_hours(tmp_path / f"a.{kind}", kind, HOURS)
    said: list[str] = []
    ingest([source], tmp_path / "s.zarr", inputs=inputs, targets=["u"], missing=["0"], notice=said.append)
    with xr.open_zarr(tmp_path / "s.zarr", consolidated=False) as made:
        assert np.isfinite(made.x.values).all()
    assert "--missing 0: no value of the columns named" in " ".join(said)


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
def test_missing_is_exact_to_the_last_digit(tmp_path: Path, kind: str) -> None:
    source = write_hours(tmp_path / f"a.{kind}", kind, HOURS[0] + STEPS)
    missing = [str(int(HOURS[0] + STEPS[3]))]
    ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"], missing=missing)
    times, _ = read_times(tmp_path / "s.zarr")
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(times)), [3])


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
@pytest.mark.parametrize(
    "condition",
    ["time < {}", "time != {}", "time >= {}", "time in ({}, 5)", "time == '{}'", "{} > time", "{} <= time < 5"],
)
def test_numbers_are_not_compared_with_counted_times(tmp_path: Path, kind: str, condition: str) -> None:
    source = write_hours(tmp_path / f"a.{kind}", kind, HOURS)
    where = condition.format(MIDDLE)
    with pytest.raises(InputError, match=r"--where.*column 'time'.*write the date, such as '2026-01-02T06:00:00'"):
        ingest([source], tmp_path / "s.zarr", inputs=["time"], targets=["u"], where=where)


@pytest.mark.parametrize("append", [False, True])
def test_no_number_is_compared_at_append_or_where_one_source_is_counted(tmp_path: Path, append: bool) -> None:
    source = write_hours(tmp_path / "a.nc", "nc", HOURS)
    further = write_hours(tmp_path / "b.nc", "nc", HOURS + 10**9)
    names = {"inputs": ["time"], "targets": ["u"]}
    if append:
        ingest([source], tmp_path / "s.zarr", **names)
    sources = [further] if append else [source, further]
    with pytest.raises(InputError, match="write the date"):
        ingest(sources, tmp_path / "s.zarr", **names, where=f"time < {MIDDLE}", append=append)


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
@pytest.mark.parametrize("inputs", [["time"], ["u"]])
@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("time < {}", 30),
        ("time != {}", ROWS - 1),
        ("time >= {}", ROWS - 30),
        ("time in ({}, '2026-01-01')", 2),
        ("time not in ({})", ROWS - 1),
    ],
)
def test_conditions_hold(tmp_path: Path, kind: str, inputs: list[str], condition: str, rows: int) -> None:
    """With dates, and with numbers in the units of the file where the times are in the condition alone."""
    source = write_hours(tmp_path / f"a.{kind}", kind, HOURS)
    targets = [] if inputs == ["u"] else ["u"]
    date = "'2026-01-02T06:00:00'"
    where = condition.format(date)
    assert ingest([source], tmp_path / "s.zarr", inputs=inputs, targets=targets, where=where) == rows
    if inputs == ["u"]:
        where = condition.format(MIDDLE).replace("'2026-01-01'", str(int(HOURS[0])))
        assert ingest([source], tmp_path / "t.zarr", inputs=inputs, where=where) == rows


@pytest.mark.parametrize("inputs", [["time", "end"], ["time"], ["u"]])
def test_times_of_one_origin_are_compared_with_each_other(tmp_path: Path, inputs: list[str]) -> None:
    """Their first days differ."""
    end = HOURS + 86_400 * 10**9
    end[:7] -= 2 * 86_400 * 10**9
    source = write_hours(tmp_path / "a.nc", "nc", HOURS, end=end)
    assert ingest([source], tmp_path / "s.zarr", inputs=inputs, where="time < end") == ROWS - 7
    assert ingest([source], tmp_path / "t.zarr", inputs=inputs, where="end < time") == 7


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3"])
def test_times_that_are_labels_stay_as_stored(tmp_path: Path, kind: str) -> None:
    """The same times of two files, whose first days differ, are the same groups and classes."""
    both = [HOURS, HOURS + 86_400 * 10**9]
    sources = [write_hours(tmp_path / f"{number}.{kind}", kind, stored) for number, stored in enumerate(both)]
    ingest(sources, tmp_path / "s.zarr", inputs=["u"], groups="time", again=True)
    with xr.open_zarr(tmp_path / "s.zarr", consolidated=False) as made:
        groups = made.groups.values[:, 0]
    np.testing.assert_array_equal(groups[24:ROWS], groups[ROWS:-24])
    assert len(np.unique(groups)) == ROWS + 24
    ingest(sources, tmp_path / "c.zarr", inputs=["u"], classes="time", again=True)
    kept = group_attributes(tmp_path / "c.zarr")["dorff"]["labels"]["classes"]
    assert [int(label) for label in kept] == np.unique(both).tolist()


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
