"""Files as public trackers and archives show them, each written here as its tool writes it.

Each case names where its kind was reported (project and number of the issue, or the archive). A file comes out right,
or it is refused by a sentence that names the column or the attribute and what to do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

from dorff.data import ingest, open_dataset
from dorff.errors import InputError

Array = npt.NDArray[Any]
N = 24


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file, the options of ingest, and the rows that should come, or words of the refusal."""

    source: str
    name: str
    write: Callable[[Path], Any]
    inputs: str
    targets: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    rows: Callable[[], Array] | None = None
    refused: str = ""

    @property
    def label(self) -> str:
        return self.source.replace(" ", "-")


def text(content: str, encoding: str = "utf-8") -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content.encode(encoding))


def netcdf(**encodings: Any) -> Callable[[Callable[[], xr.Dataset]], Callable[[Path], Any]]:
    return lambda make: lambda path: make().to_netcdf(path, engine="netcdf4", encoding=encodings or None)


HOURS = np.datetime64("2024-03-01T00:00:00") + np.arange(N) * np.timedelta64(3600, "s")
SECONDS = HOURS.astype("datetime64[s]").astype(float)
SPEED = np.round(np.sin(np.arange(N)), 3)


def series(values: Array = SPEED) -> Callable[[], Array]:
    """Rows of times, in seconds since 1970, and a target."""
    return lambda: np.column_stack([SECONDS, values])


def grid(dims: dict[str, Array], name: str, units: str = "m s-1", **attributes: Any) -> xr.Dataset:
    shape = [len(values) for values in dims.values()]
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    variable = xr.Variable(list(dims), values, {"units": units, **attributes})
    return xr.Dataset({name: variable}, coords={dim: (dim, along) for dim, along in dims.items()})


def cells(dims: dict[str, Array]) -> Callable[[], Array]:
    def rows() -> Array:
        mesh = [axis.ravel() for axis in np.meshgrid(*dims.values(), indexing="ij")]
        return np.column_stack([*mesh, np.arange(len(mesh[0]))])

    return rows


def months(calendar: str, units: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", N)
            time = file.createVariable("time", "f4", ("time",))
            time.setncatts({"units": units} | ({"calendar": calendar} if calendar else {}))
            time[:] = np.arange(N) + 0.5
            file.createVariable("sst", "f4", ("time",))[:] = SPEED

    return write


def ndbc(path: Path) -> None:
    head = "#YY  MM DD hh mm WDIR WSPD  WTMP\n#yr  mo dy hr mn degT m/s   degC\n"
    rows = [
        f"2024 03 01 {i % 24:02d} 00  {10 * i:3d} {1 + i / 10:4.1f}   {'MM' if i == 3 else 20 + i / 10}"
        for i in range(N)
    ]
    path.write_text(head + "\n".join(rows) + "\n")


def toa5(path: Path) -> None:
    head = (
        '"TOA5","6843","CR3000","6843","CR3000.Std.22","CPU:flux.CR3","24006","ts"\n"TIMESTAMP","RECORD","Ux"\n'
        '"TS","RN","m/s"\n"","","Smp"\n'
    )
    rows = [
        f'"{str(hour).replace("T", " ")}",{i},{"NAN" if i == 5 else speed}'
        for i, (hour, speed) in enumerate(zip(HOURS, SPEED, strict=True))
    ]
    path.write_text(head + "\n".join(rows) + "\n")


def stamps(unit: str, **options: Any) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        table = pa.table({"when": pa.array(HOURS.astype(f"datetime64[{unit}]")), "u": SPEED})
        pq.write_table(table, path, **options)

    return write


def far_stamps(year: int) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        hours = np.datetime64(f"{year:04}-03-01", "us") + np.arange(N) * np.timedelta64(3_600_000_000, "us")
        pq.write_table(pa.table({"when": hours, "u": SPEED}), path)

    return write


def argo(path: Path) -> None:
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        for dim, length in (("N_PROF", 2), ("N_LEVELS", N // 2), ("DATE_TIME", 14), ("STRING8", 8)):
            file.createDimension(dim, length)
        file.createVariable("REFERENCE_DATE_TIME", "S1", ("DATE_TIME",))[:] = np.array(list("19500101000000"), "S1")
        number = file.createVariable("PLATFORM_NUMBER", "S1", ("N_PROF", "STRING8"))
        number[:] = np.array([list("6901494 ")] * 2, "S1")
        day = file.createVariable("JULD", "f8", ("N_PROF",), fill_value=999999.0)
        day.setncatts({"units": "days since 1950-01-01 00:00:00 UTC", "conventions": "Relative julian days"})
        day[:] = [26000.25, 26010.5]
        for name, scale in (("PRES", 10.0), ("TEMP", 0.5)):
            levels = file.createVariable(name, "f4", ("N_PROF", "N_LEVELS"), fill_value=99999.0)
            levels[:] = np.ma.masked_equal(scale * np.arange(N).reshape(2, -1), 5 * scale)


def argo_rows() -> Array:
    days = np.repeat([26000.25, 26010.5], N // 2) * 86400 - 20 * 365.25 * 86400
    values = np.where(np.arange(N) == 5, np.nan, np.arange(N))
    return np.column_stack([days, 10 * values, 0.5 * values])


def drifters(path: Path) -> None:
    sizes = [10, 0, 14]
    xr.Dataset(
        {
            "rowsize": ("traj", np.array(sizes, "i8"), {"sample_dimension": "obs"}),
            "ve": ("obs", SPEED.astype("f4"), {"units": "m/s", "_FillValue": -1e34}),
        },
        coords={
            "id": ("traj", np.array([101143, 101144, 78809])),
            "time": ("obs", HOURS.astype("datetime64[ns]")),
            "lon": ("obs", np.linspace(-60, -50, N)),
        },
    ).to_netcdf(path)


def radar(path: Path) -> None:
    dims = {"time": np.array([0.0]), "lat": np.linspace(36, 37, 4), "lon": np.linspace(-76, -75, 6)}
    data = grid(dims, "u", "cm s-1")
    data["time"].attrs["units"] = "hours since 2024-03-01"
    data.to_netcdf(path, encoding={"u": {"dtype": "i2", "_FillValue": -32768, "scale_factor": 0.5}})


def radar_rows() -> Array:
    rows = cells({"lat": np.linspace(36, 37, 4), "lon": np.linspace(-76, -75, 6)})()
    return rows


def roms(path: Path) -> None:
    """Velocities on two staggered grids."""
    xr.Dataset(
        {
            "u": (("eta_u", "xi_u"), np.zeros((4, 5))),
            "v": (("eta_v", "xi_v"), np.zeros((3, 6))),
            "lon_u": (("eta_u", "xi_u"), np.zeros((4, 5))),
        }
    ).to_netcdf(path)


def wrf(path: Path) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("Time", N), file.createDimension("DateStrLen", 19)
        times = file.createVariable("Times", "S1", ("Time", "DateStrLen"))
        words = [str(hour).replace("T", "_") for hour in HOURS]
        times[:] = np.array([list(word) for word in words], "S1")
        file.createVariable("U10", "f4", ("Time",))[:] = SPEED


def unsigned(path: Path) -> None:
    """Bytes that are unsigned, in a classic file, as NetCDF-Java writes them."""
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("obs", N)
        file.createVariable("x", "f4", ("obs",))[:] = np.arange(N)
        level = file.createVariable("level", "i1", ("obs",))
        level.set_auto_maskandscale(False)
        level.setncatts({"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": np.int8(-1)})
        level[:] = (np.arange(N) + 240).astype("u1").view("i1")


def unsigned_rows() -> Array:
    stored = (np.arange(N) + 240) % 256
    return np.column_stack([np.arange(N), np.where(stored == 255, np.nan, stored * 0.5)])


def times_text(pattern: str) -> str:
    return "".join(pattern.format(t=str(hour), u=speed) for hour, speed in zip(HOURS, SPEED, strict=True))


LAT, LON = np.linspace(30, 31, 4), np.linspace(-10, -9, 6)
CASES = [
    Case(
        source="xarray 5939",
        name="a.nc",
        write=months("", "months since 1955-01-01"),
        inputs="time",
        targets="sst",
        refused="month",
    ),
    Case(
        source="xarray 1467",
        name="a.nc",
        write=months("noleap", "years since 1948-1-1 00:00:00     "),
        inputs="time",
        targets="sst",
        refused="year",
    ),
    Case(
        source="cftime 68",
        name="a.nc",
        write=months("360", "months since 1960-01-01"),
        inputs="time",
        targets="sst",
        refused="360",
    ),
    Case(
        source="IRI Data Library",
        name="a.nc",
        write=months("360_day", "months since 1960-01-01"),
        inputs="time",
        targets="sst",
        rows=lambda: np.column_stack([30 * 86400 * (np.arange(N) + 0.5), SPEED]),
        options={"since": ("1960-01-01", "360_day")},
    ),
    Case(
        source="explorer 781 TOA5",
        name="a.dat",
        write=toa5,
        inputs="TIMESTAMP",
        targets="Ux",
        rows=series(np.where(np.arange(N) == 5, np.nan, SPEED)),
    ),
    Case(
        source="tidyfinance 75",
        name="a.csv",
        inputs="month",
        targets="Index",
        write=text("month,Index\n" + "".join(f'{i},"1,{i:03}.34"\n' for i in range(N))),
        rows=lambda: np.column_stack([np.arange(N), 1000.34 + np.arange(N)]),
    ),
    Case(
        source="pandas 22584",
        name="a.csv",
        inputs="c0",
        targets="c1",
        write=text("".join(f'{i},"{1 + i},000"\n' for i in range(N))),
        refused="c1",
    ),
    Case(
        source="duckdb 17220",
        name="a.csv",
        inputs="x",
        targets="u",
        write=text("x,u\n" + "".join(f'{i},"1,2,{i}"\n' for i in range(N))),
        refused="u",
    ),
    Case(
        source="MET 3342 NDBC",
        name="a.txt",
        write=ndbc,
        inputs="WDIR",
        targets="WTMP",
        rows=lambda: np.column_stack([10 * np.arange(N), np.where(np.arange(N) == 3, np.nan, 20 + np.arange(N) / 10)]),
    ),
    Case(
        source="tsdat 207 A2e",
        name="a.csv",
        inputs="c0",
        targets="c1",
        write=text(times_text("{t}.000000,{u},3.734\n").replace("T", " ")),
        rows=series(),
    ),
    Case(
        source="brightwind 61",
        name="a.csv",
        inputs="Date/Time",
        targets="Speed",
        write=text("Logger,Symphonie\nSite,Mast 7\n\nDate/Time,Speed\n" + times_text("{t},{u}\n")),
        rows=series(),
    ),
    Case(
        source="pandas 10898",
        name="a.csv",
        inputs="date",
        targets="Param1",
        write=text(
            ";;;;\n;;;;\ndate;Param1;Param2\n;m/s;m/s\n" + "".join(f"01.01.1990 {i:02}:00;{i};2\n" for i in range(N))
        ),
        refused="date",
    ),
    Case(
        source="erddapy 51 csvp",
        name="a.csv",
        inputs="time (UTC)",
        targets="u (m s-1)",
        write=text("time (UTC),u (m s-1)\n" + times_text("{t}Z,{u}\n")),
        rows=series(),
    ),
    Case(
        source="erddapy 51 csv0",
        name="a.csv",
        inputs="c0",
        targets="c1",
        write=text(times_text("{t}Z,{u}\n")),
        rows=series(),
    ),
    Case(
        source="ERDDAP tabledap csv",
        name="a.csv",
        inputs="time",
        targets="u",
        write=text("time,u\nUTC,m s-1\n" + times_text("{t}Z,{u}\n")),
        rows=series(),
    ),
    Case(
        source="datafusion 1360",
        name="a.parquet",
        write=far_stamps(9999),
        inputs="when",
        targets="u",
        rows=lambda: np.column_stack([SECONDS - SECONDS[0] + np.datetime64("9999-03-01", "s").astype(float), SPEED]),
    ),
    Case(
        source="cudf 8070",
        name="a.parquet",
        write=far_stamps(723),
        inputs="when",
        targets="u",
        rows=lambda: np.column_stack([SECONDS - SECONDS[0] + np.datetime64("0723-03-01", "s").astype(float), SPEED]),
    ),
    Case(
        source="spark 39905 INT96",
        name="a.parquet",
        write=stamps("ns", use_deprecated_int96_timestamps=True),
        inputs="when",
        targets="u",
        rows=series(),
    ),
    Case(
        source="clickhouse 1161 nanos",
        name="a.parquet",
        write=stamps("ns", version="2.6"),
        inputs="when",
        targets="u",
        rows=series(),
    ),
    Case(source="oce 812 Argo", name="a.nc", write=argo, inputs="JULD,PRES", targets="TEMP", rows=argo_rows),
    Case(
        source="clouddrift 326",
        name="a.nc",
        write=drifters,
        inputs="time,lon",
        targets="ve",
        options={"groups": "id"},
        rows=lambda: np.column_stack([SECONDS, np.linspace(-60, -50, N), SPEED]),
    ),
    Case(source="DART 1180 HF radar", name="a.nc", write=radar, inputs="lat,lon", targets="u", rows=radar_rows),
    Case(source="ROMS staggered", name="a.nc", write=roms, inputs="lon_u", targets="u,v", refused="v"),
    Case(source="WRF Times", name="a.nc", write=wrf, inputs="Times", targets="U10", refused="Times"),
    Case(source="netcdf-java _Unsigned", name="a.nc", write=unsigned, inputs="x", targets="level", rows=unsigned_rows),
    Case(
        source="CMIP6 noleap",
        name="a.nc",
        inputs="time,lat",
        targets="tas",
        options={"since": ("2000-01-01", "noleap")},
        write=lambda path: grid(
            {"time": xr.date_range("2000-02-27", periods=3, calendar="noleap", use_cftime=True).values, "lat": LAT},
            "tas",
            "K",
        ).to_netcdf(path, encoding={"time": {"units": "days since 1850-01-01", "calendar": "noleap"}}),
        rows=lambda: np.column_stack([np.repeat([57, 58, 59], 4) * 86400.0, np.tile(LAT, 3), np.arange(12)]),
    ),
    Case(
        source="ERA5 packed",
        name="a.nc",
        inputs="latitude,longitude",
        targets="t2m",
        write=lambda path: grid({"latitude": LAT, "longitude": LON}, "t2m", "K").to_netcdf(
            path, encoding={"t2m": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 100.0, "_FillValue": -32767}}
        ),
        rows=cells({"latitude": LAT, "longitude": LON}),
    ),
    Case(
        source="IEM ASOS",
        name="a.csv",
        inputs="valid",
        targets="tmpf",
        write=text(
            "#DEBUG: Format Typ -> onlycomma\n#DEBUG: Time Period\nstation,valid,tmpf\n"
            + "".join(
                f"AMW,{str(t)[:16].replace('T', ' ')},{'M' if i == 2 else u}\n"
                for i, (t, u) in enumerate(zip(HOURS, SPEED, strict=True))
            )
        ),
        refused="tmpf",
    ),
    Case(
        source="Excel German",
        name="a.csv",
        inputs="Zeit",
        targets="Wert",
        write=text("\ufeffsep=;\r\nZeit;Wert\r\n" + times_text("{t};{u}\r\n").replace(".", ",")),
        rows=series(),
    ),
    Case(
        source="Excel Windows-1252",
        name="a.csv",
        inputs="x",
        targets="Länge",
        write=text("x;Länge\n" + "1;2,5\n" * 9, "cp1252"),
        refused="UTF-8",
    ),
    Case(
        source="GHCN-Daily dly",
        name="a.dly",
        inputs="c0",
        write=text("ACW00011604194901TMAX  289  X  289  X\n" * 9),
        refused="dly",
    ),
    Case(
        source="AWIPS UTF-16",
        name="a.csv",
        inputs="x",
        targets="u",
        write=text("x,u\n1,2\n3,4\n", "utf-16"),
        refused="UTF-8",
    ),
    Case(
        source="SeaDataNet ODV",
        name="a.txt",
        inputs="Depth [m]",
        targets="Temp [degC]",
        write=text(
            "//<Encoding>UTF-8</Encoding>\n//<Version>ODV</Version>\nCruise\tDepth [m]\tTemp [degC]\n"
            + "".join(f"C1\t{i}\t{20 - i / 10}\n" for i in range(N))
        ),
        rows=lambda: np.column_stack([np.arange(N), 20 - np.arange(N) / 10]),
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.label) for case in CASES])
def test_a_public_file_is_right_or_refused(case: Case, tmp_path: Path) -> None:
    path, store = tmp_path / case.name, tmp_path / "s.zarr"
    case.write(path)
    options = {key: value for key, value in case.options.items() if key != "since"}
    names = {"inputs": case.inputs.split(","), "targets": [name for name in case.targets.split(",") if name]}
    if case.refused:
        with pytest.raises(InputError) as refusal:
            ingest([path], store, **names, **options)
        assert path.name in str(refusal.value) and case.refused in str(refusal.value) and not store.exists()
        return
    n = ingest([path], store, **names, **options)
    assert case.rows is not None
    dataset, expected = open_dataset(store), case.rows()
    X, Y = dataset.read(0, n)
    for name, attributes in dataset.column_attributes.items():
        if name in dataset.input_columns and " since " in attributes.get("units", ""):
            column = dataset.input_columns.index(name)
            X[:, column] = since(X[:, column], attributes, *case.options.get("since", ("1970-01-01", "standard")))
    np.testing.assert_allclose(np.hstack([X, Y]), expected, rtol=1e-6, atol=1e-4)


def since(values: Array, attributes: Any, origin: str, calendar: str) -> Array:
    """Times in seconds since an origin, by cftime."""
    import cftime

    kept = attributes.get("calendar", "standard")
    begin = cftime.num2date(0, attributes["units"], kept) - cftime.num2date(0, f"days since {origin}", kept)
    unit = cftime.num2date(1, attributes["units"], kept) - cftime.num2date(0, attributes["units"], kept)
    assert kept == calendar or calendar == "standard"
    return np.asarray(values * unit.total_seconds() + begin.total_seconds())
