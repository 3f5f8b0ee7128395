"""Units of columns: kept with data sets and models, converted, or refused."""

from pathlib import Path

import cftime
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from dorff.data import ingest, open_dataset
from dorff.data.units import units_conversion
from dorff.errors import InputError

TIME = {"units": "hours since 2020-01-01", "calendar": "standard", "long_name": "time of day"}
SST = {"units": "degC", "standard_name": "sea_surface_temperature"}


def series(time: dict[str, str] = TIME, sst: dict[str, str] = SST) -> xr.Dataset:
    """Return two measurements, not decoded."""
    variables = {"time": ("row", [0.0, 12.0], time), "sst": ("row", [5.0, 6.0], {**sst, "note": "not kept"})}
    return xr.Dataset(variables)


@pytest.mark.parametrize("engine", ["scipy", "netcdf4"])
def test_a_data_set_keeps_the_attributes_of_its_columns(tmp_path: Path, engine: str) -> None:
    series().to_netcdf(tmp_path / "a.nc", engine=engine)
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"])
    assert open_dataset(tmp_path / "s.zarr").column_attributes == {"time": TIME, "sst": SST}
    series(sst={}).to_netcdf(tmp_path / "b.nc", engine=engine)
    ingest([tmp_path / "b.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"], append=True)
    assert open_dataset(tmp_path / "s.zarr", targets=None).column_attributes == {"time": TIME}
    assert open_dataset(tmp_path / "s.zarr").column_attributes["sst"] == SST


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_store_of_others_has_those_of_its_arrays(tmp_path: Path, zarr_format: int) -> None:
    series().to_zarr(tmp_path / "s.zarr", zarr_format=zarr_format, consolidated=False)
    dataset = open_dataset(tmp_path / "s.zarr", inputs="time", targets="sst")
    assert dataset.column_attributes == {"time": TIME, "sst": SST}


def test_columns_of_an_array_share_its_attributes(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "s.zarr")
    group.create_array("wind", data=np.zeros((3, 2))).attrs.update({"units": "m s-1", "offset": 3})
    group.create_array("plain", data=np.zeros(3))
    dataset = open_dataset(tmp_path / "s.zarr", inputs="wind", targets="plain")
    assert dataset.column_attributes == {"wind0": {"units": "m s-1"}, "wind1": {"units": "m s-1"}}


CALENDARS = ["standard", "gregorian", "proleptic_gregorian", "julian", "noleap", "365_day", "all_leap", "360_day"]


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("units", ["hours since 2001-02-28 06:30", "seconds since 0001-01-01", "days since 1850-1-1"])
def test_times_of_every_calendar_are_placed_as_by_cftime(units: str, calendar: str) -> None:
    dates = cftime.num2date(np.arange(0, 1000, 77.25), "days since 1999-12-30", calendar)
    other = "minutes since 1990-03-01 12:00:00"
    given, wanted = ({"units": text, "calendar": calendar} for text in (units, other))
    conversion = units_conversion(given, wanted, "here")
    assert conversion is not None
    numbers = cftime.date2num(dates, units, calendar)
    expected = cftime.date2num(dates, other, calendar)
    np.testing.assert_allclose(conversion.convert(numbers, "here"), expected, rtol=0, atol=2e-4)


# cftime passes over a zone of one digit and an hour alone: these are by hand.
@pytest.mark.parametrize(
    ("units", "number", "wanted"),
    [
        ("seconds since 1970-01-01T00:00:00Z", 1e9, 1e9),
        ("seconds since 1970-01-01 00:00:00.250000", 1.0, 1.25),
        ("Hours Since 1970-1-1 0:0:0.0", 2.0, 7200),
        ("hours since 1970-01-02 00:00:00 -5:00", 0.0, 86400 + 5 * 3600),
        ("hours since 1970-01-02 00:00:00+0530", 0.0, 86400 - 5.5 * 3600),
        ("h since 1970-01-01 00:00 0:00", 1.0, 3600),
        ("d since 1970-01-01 12", 1.0, 129600),
        ("msec since 1970-01-01 UTC", 1500.0, 1.5),
        ("ms since 1970-01-01", 1e12 + 1, 1e9 + 0.001),
        ("us since 1970-01-01", 1.5e6, 1.5),
        ("µs since 1970-01-01", 1.5e6, 1.5),
        ("nanoseconds since 1970-01-01", 1.5e9, 1.5),
        ("weeks since 1970-01-01", 1.0, 604800),
        ("mins since 1970-01-01 00:01", 1.0, 120),
        ("days @ 1970-01-02", 0.0, 86400),
        ("seconds since 1970-01-01 00:00:00.0000005", 0.0, 5e-7),
    ],
)
def test_times_as_people_write_them(units: str, number: float, wanted: float) -> None:
    conversion = units_conversion({"units": units}, {"units": "seconds since 1970-01-01"}, "here")
    assert conversion is not None
    assert conversion.convert(np.array([number]), "here")[0] == pytest.approx(wanted, rel=0, abs=1e-6)


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("months since 2000-01-01", "standard"),
        ("years since 2000-01-01", "360_day"),
        ("days since yesterday", ""),
        ("days since 2000-02-30", "standard"),
        ("days since 2000-01-01 garbage", ""),
        ("days since 01-01-2000", ""),
        ("days since 2000-01-01 00:00:00 EST", ""),
        ("fortnights since 2000-01-01", ""),
        ("days since 0000-01-01", "standard"),
        ("days since 2000-01-01", "mayan"),
        ("day as %Y%m%d.%f", ""),
    ],
)
def test_what_claims_to_be_a_time_and_is_none_is_refused(tmp_path: Path, units: str, calendar: str) -> None:
    time = {"units": units, **({"calendar": calendar} if calendar else {})}
    series(time).to_netcdf(tmp_path / "a.nc", engine="scipy")
    with pytest.raises(InputError, match=r"a\.nc: column 'time': units .*--units"):
        ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"])
    assert not (tmp_path / "s.zarr").exists()
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"], units={"time": "none"})
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr").read(0, 2)[0][:, 0], [0, 12])


@pytest.mark.parametrize(
    ("units", "calendar", "seconds"),
    [
        ("months since 2000-01-01", "360_day", 30 * 86400),
        ("common_years since 2000-01-01", "noleap", 365 * 86400),
    ],
)
def test_months_and_years_count_where_they_all_have_as_many_days(units: str, calendar: str, seconds: float) -> None:
    wanted = {"units": "seconds since 2000-01-01", "calendar": calendar}
    conversion = units_conversion({"units": units, "calendar": calendar}, wanted, "here")
    assert conversion is not None
    assert conversion.convert(np.array([2]), "here")[0] == 2 * seconds


@pytest.mark.parametrize("order", [1, -1])
def test_two_calendars_are_refused_unless_their_dates_are_the_same(tmp_path: Path, order: int) -> None:
    calendars = ["noleap", "standard"][::order]
    for number, calendar in enumerate(calendars):
        time = {"units": "days since 2000-01-01", "calendar": calendar}
        series(time).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    with pytest.raises(InputError, match=r"1\.nc: column 'time'.*calendar"):
        ingest([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "s.zarr", inputs=["time"])
    gregorian = {"units": "days since 1582-10-20", "calendar": ["proleptic_gregorian", "gregorian"][::order][0]}
    proleptic = gregorian | {"calendar": ["proleptic_gregorian", "gregorian"][::order][1]}
    conversion = units_conversion(gregorian, proleptic, "here")
    assert conversion is not None
    np.testing.assert_array_equal(conversion.convert(np.array([-5.0, 1e5]), "here"), [-5, 1e5])
    with pytest.raises(InputError, match="1582"):
        conversion.convert(np.array([-6.0]), "here")


@pytest.mark.parametrize("stored", ["f4", "i8", "packed", "bytes"])
def test_times_are_decoded_as_by_xarray_whatever_they_are_stored_as(tmp_path: Path, stored: str) -> None:
    numbers = np.array([0, 6, -1, 30])
    attributes = {"units": "hours since 2000-01-01T03:00:00", "_FillValue": -1}
    if stored == "packed":
        numbers, attributes = np.array([0, 12, -1, 60], "i2"), attributes | {"scale_factor": 0.5}
    elif stored == "i8":
        numbers = numbers.astype("i8")
    else:
        numbers = numbers.astype("f4")
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["time"] = numbers
        fill = np.array(attributes.pop("_FillValue"), numbers.dtype)
        file["time"].attrs.update({**attributes, "_FillValue": fill})
        if stored == "bytes":
            file["time"].attrs["units"] = np.bytes_(attributes["units"])
    other = xr.Dataset({"time": ("row", [0.5])}, attrs={})
    other["time"].attrs["units"] = "days since 2000-01-01"
    other.to_netcdf(tmp_path / "0.nc", engine="scipy")
    ingest([tmp_path / "0.nc", tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time"])
    raw = xr.Dataset({"time": ("row", numbers, {**attributes, "_FillValue": -1})})
    decoded = xr.decode_cf(raw).time.values
    wanted = (decoded - np.datetime64("2000-01-01")) / np.timedelta64(1, "D")
    X = open_dataset(tmp_path / "s.zarr", targets=None).read(0, 5)[0][:, 0]
    np.testing.assert_allclose(X, [0.5, *np.where(np.isnat(decoded), np.nan, wanted)], rtol=1e-15)


def test_other_units_are_converted_in_inputs_and_targets_alike(tmp_path: Path) -> None:
    units = {"sst": ["K", "degree_C"], "u": ["m/s", "cm s-1"], "days": ["days", "hours"]}
    values = {"sst": [[280.0, 281.0], [6.85, 7.85]], "u": [[0.5, 1], [50, 100]], "days": [[1, 2], [24, 48]]}
    for number in range(2):
        variables = {name: ("row", values[name][number], {"units": units[name][number]}) for name in units}
        xr.Dataset(variables).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    said: list[str] = []
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    ingest(files, tmp_path / "s.zarr", inputs=["sst", "days"], targets=["u"], notice=said.append)
    X, Y = open_dataset(tmp_path / "s.zarr").read(0, 4)
    np.testing.assert_allclose(X[2:], X[:2], rtol=1e-12)
    np.testing.assert_array_equal(Y[2:], Y[:2])
    assert "degree_C" in " ".join(said) and "cm s-1" in " ".join(said)
    ingest(files[:1], tmp_path / "t.zarr", inputs=["sst", "days"], targets=["u"])
    ingest(files[1:], tmp_path / "t.zarr", inputs=["sst", "days"], targets=["u"], append=True)
    appended = open_dataset(tmp_path / "t.zarr")
    np.testing.assert_array_equal(appended.read(0, 4)[0], X)
    assert appended.column_attributes["u"] == {"units": "m/s"}


def test_float32_stays_and_missing_numbers_are_those_of_the_source(tmp_path: Path) -> None:
    for number, (value, units) in enumerate([(280.0, "K"), (7.0, "degC")]):
        variables = {"sst": ("row", np.array([value, -9999], "f4"), {"units": units})}
        xr.Dataset(variables).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    ingest([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "s.zarr", inputs=["sst"], missing=[-9999])
    assert zarr.open_group(tmp_path / "s.zarr", mode="r")["x"].dtype == np.float32
    X = open_dataset(tmp_path / "s.zarr", targets=None).read(0, 4)[0][:, 0]
    np.testing.assert_allclose(X, [280, np.nan, 280.15, np.nan], rtol=1e-7)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("m", "s"), ("foo", "bar"), ("dB", "1"), ("degrees", "1"), ("psu", "1e-3"), ("days", "days since 2000-01-01")],
)
def test_units_that_cannot_be_converted_are_refused(tmp_path: Path, given: str, wanted: str) -> None:
    for number, units in enumerate([wanted, given]):
        variables = {"a": ("row", [0.0, 1.0]), "u": ("row", [1.0, 2.0], {"units": units})}
        xr.Dataset(variables).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    with pytest.raises(InputError, match=r"1\.nc: column 'u'.*--units"):
        ingest(files, tmp_path / "s.zarr", inputs=["a"], targets=["u"])
    ingest(files[1:], tmp_path / "s.zarr", inputs=["a"], targets=["u"])  # alone they pass
    assert open_dataset(tmp_path / "s.zarr").column_attributes == {"u": {"units": given}}


@pytest.mark.parametrize("spelling", ["degrees C", "Degrees C", "degree C", "deg. C", "degrees Celsius", "deg_C", "C"])
def test_spellings_of_degrees_celsius_are_one_unit(spelling: str) -> None:
    conversion = units_conversion({"units": spelling}, {"units": "K"}, "sst")
    np.testing.assert_allclose(conversion.convert(np.array([0.0, 10.0]), "sst"), [273.15, 283.15])


@pytest.mark.parametrize("units", [None, "", "seconds", "hour"])
def test_numbers_without_a_unit_of_time_beside_times_name_the_option_that_states_it(
    tmp_path: Path, units: str | None
) -> None:
    attributes = {} if units is None else {"units": units}
    series(time=attributes).to_netcdf(tmp_path / "0.nc", engine="scipy")
    series().to_netcdf(tmp_path / "1.nc", engine="scipy")
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    with pytest.raises(InputError, match=r"0\.nc: column 'time': .*--units"):
        ingest(files, tmp_path / "s.zarr", inputs=["time"], targets=["sst"])
    stated = {"time": "hours since 2020-01-02"}
    ingest(files, tmp_path / "s.zarr", inputs=["time"], targets=["sst"], units=stated)
    assert open_dataset(tmp_path / "s.zarr").column_attributes["time"]["units"] == stated["time"]


def test_differences_of_temperature_are_not_shifted() -> None:
    given = {"units": "degC", "long_name": "temperature anomaly"}
    with pytest.raises(InputError, match="difference"):
        units_conversion(given, {"units": "K"}, "here")
    for fine in ({"units": "degC"}, {"units": "mK", "long_name": "temperature anomaly"}):
        assert units_conversion(fine, {"units": "K"}, "here") is not None


@pytest.mark.parametrize("text", ["m**9**9**9**9", "m^999999999", "m" * 10**5, "(" * 90, "9" * 50 + "^9"])
def test_units_that_would_take_long_are_unknown(text: str) -> None:
    with pytest.raises(InputError, match="known"):
        units_conversion({"units": text}, {"units": "m"}, "here")


def test_units_on_one_side_alone_are_said(tmp_path: Path) -> None:
    series().to_netcdf(tmp_path / "a.nc", engine="scipy")
    (tmp_path / "b.csv").write_text("time,sst\n2020-01-02,7\n")
    said: list[str] = []
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"])
    ingest([tmp_path / "b.csv"], tmp_path / "s.zarr", inputs=["time"], targets=["sst"], append=True, notice=said.append)
    assert len(said) == 1 and "sst none here, degC there" in said[0]
    assert open_dataset(tmp_path / "s.zarr").read(2, 3)[0][0, 0] == 24


def test_labels_of_other_units_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        series({"units": f"hours since 2020-01-0{number + 1}"}).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    with pytest.raises(InputError, match=r"1\.nc: column 'time'.*labels"):
        ingest(files, tmp_path / "s.zarr", inputs=["sst"], groups="time")
    with pytest.raises(InputError, match=r"1\.nc: column 'time'.*labels"):
        ingest(files, tmp_path / "s.zarr", inputs=["time"], one_hot=["time"])


def test_cycles_of_other_calendars(tmp_path: Path) -> None:
    series({"units": "days since 2001-01-01 06:00", "calendar": "360_day"}).to_netcdf(tmp_path / "a.nc", engine="scipy")
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time:day", "time:year"])
    X = open_dataset(tmp_path / "s.zarr", targets=None).read(0, 2)[0]
    turns = np.arctan2(X[:, ::2], X[:, 1::2]) / (2 * np.pi) % 1
    np.testing.assert_allclose(turns, [[0.25, 0.25 / 360], [0.25, 12.25 / 360]], atol=1e-12)
    with pytest.raises(InputError, match="360_day"):
        ingest([tmp_path / "a.nc"], tmp_path / "t.zarr", inputs=["time:week"])


def test_a_changed_unit_is_another_pass(tmp_path: Path) -> None:
    series().to_zarr(tmp_path / "s.zarr", consolidated=False)
    before = open_dataset(tmp_path / "s.zarr", inputs="time", targets="sst").rows_spec()
    zarr.open_group(tmp_path / "s.zarr")["time"].attrs["units"] = "days since 2020-01-01"
    after = open_dataset(tmp_path / "s.zarr", inputs="time", targets="sst")
    assert after.rows_spec() != before
    assert after.converted({"time": TIME}).rows_spec() != after.rows_spec()
    np.testing.assert_array_equal(after.converted({"time": TIME}).read(0, 2)[0][:, 0], [0, 288])
