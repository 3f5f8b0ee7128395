"""Gridded NetCDF: cells as rows."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from dorff.data import ingest, open_dataset
from dorff.data.grids import Grid
from dorff.errors import InputError


def grid(rng: np.random.Generator) -> xr.Dataset:
    """Fields over (time, lat, lon), some of fewer dimensions or in another order."""
    sst = rng.standard_normal((5, 3, 4))
    sst[0, 1, 2] = np.nan
    variables = {
        "sst": (("time", "lat", "lon"), sst),
        "mask": (("lat", "lon"), rng.integers(0, 2, (3, 4))),
        "back": (("lon", "time"), rng.standard_normal((4, 5))),
        "depth": ("depth", [0.0, 10.0]),
    }
    times = np.datetime64("2020-02-28", "ns") + np.arange(5) * np.timedelta64(6, "h")
    return xr.Dataset(variables, coords={"time": times, "lat": [10.0, 20, 30], "lon": [1.0, 2, 3, 4]})


def as_netcdf4(data: xr.Dataset, path: Path) -> None:
    """As the NetCDF4 libraries write it, with scales."""
    with h5py.File(path, "w") as file:
        for name in data.coords:
            values = data[name].values
            if name == "time":
                values = (values - np.datetime64("2020-02-28")) / np.timedelta64(1, "h")
            file[str(name)] = values
            file[str(name)].make_scale(str(name))
        file["time"].attrs["units"] = "hours since 2020-02-28"
        for name, variable in data.data_vars.items():
            if name in ("sst", "mask", "back"):
                stored = file.create_dataset(str(name), data=np.nan_to_num(variable.values, nan=-999.0))
                for axis, dim in enumerate(variable.dims):
                    stored.dims[axis].attach_scale(file[str(dim)])
        file["sst"].attrs["_FillValue"] = -999.0


@pytest.mark.parametrize("kind", ["classic", "netcdf4"])
def test_cells_are_rows_with_their_coordinates(tmp_path: Path, kind: str) -> None:
    data = grid(np.random.default_rng(0))
    if kind == "classic":
        data.to_netcdf(tmp_path / "a.nc", engine="scipy")
    else:
        as_netcdf4(data, tmp_path / "a.nc")
    inputs = ["time", "lat", "lon", "mask", "back", "time:day"]
    assert ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=inputs, targets=["sst"]) == 60
    store = open_dataset(tmp_path / "s.zarr")
    X, Y = store.read(0, 60)
    hours = xr.DataArray(6.0 * np.arange(5), dims="time")
    for place, field in enumerate([hours, data.lat, data.lon, data.mask, data.back]):
        wanted = field.broadcast_like(data.sst).transpose("time", "lat", "lon").values.reshape(-1)
        np.testing.assert_array_equal(X[:, place], wanted)
    np.testing.assert_allclose(X[:, 5], np.sin(2 * np.pi * X[:, 0] / 24), atol=1e-12)
    np.testing.assert_array_equal(Y[:, 0], data.sst.values.reshape(-1))
    units, *calendar = store.encoding["time"]["time"]
    assert units.startswith("hours since 2020-02-28")
    assert calendar == (["proleptic_gregorian"] if kind == "classic" else [])


def test_coordinates_alone_make_a_grid_in_the_order_of_a_variable_on_it(tmp_path: Path) -> None:
    grid(np.random.default_rng(0)).to_netcdf(tmp_path / "a.nc", engine="scipy")
    assert ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["lon", "lat"]) == 12
    X = open_dataset(tmp_path / "s.zarr", targets=None).read(0, 12)[0]
    np.testing.assert_array_equal(X[:5], [[1, 10], [2, 10], [3, 10], [4, 10], [1, 20]])


def test_a_curved_grid_has_coordinates_of_two_dimensions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lat, lon, u = rng.standard_normal((3, 6, 7))
    places = {"lat": (("y", "x"), lat), "lon": (("y", "x"), lon)}
    xr.Dataset({"u": (("y", "x"), u)}, coords=places).to_netcdf(tmp_path / "a.nc", engine="scipy")
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["lon", "lat"], targets=["u"])
    X, Y = open_dataset(tmp_path / "s.zarr").read(0, 42)
    np.testing.assert_array_equal(np.hstack([X, Y]).T, [lon.ravel(), lat.ravel(), u.ravel()])


def test_times_of_files_that_count_from_different_days_are_one_time(tmp_path: Path) -> None:
    for number, day in enumerate(["2020-01-01", "2020-01-03"]):
        time = xr.DataArray([0.0, 12.0], dims="time", attrs={"units": f"hours since {day} 00:00:0.0"})
        xr.Dataset({"u": ("time", [1.0, 2.0])}, {"time": time}).to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    ingest([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "s.zarr", inputs=["time"], targets=["u"])
    np.testing.assert_array_equal(open_dataset(tmp_path / "s.zarr").read(0, 4)[0][:, 0], [0, 12, 48, 60])


def test_times_are_categories_where_that_is_said(tmp_path: Path) -> None:
    grid(np.random.default_rng(0)).to_netcdf(tmp_path / "a.nc", engine="scipy")
    ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["time", "lat"], one_hot=["time"])
    assert open_dataset(tmp_path / "s.zarr", targets=None).encoding["time"] == {"one_hot": ["0", "12", "18", "24", "6"]}


def test_variables_of_no_common_grid_are_refused(tmp_path: Path) -> None:
    grid(np.random.default_rng(0)).to_netcdf(tmp_path / "a.nc", engine="scipy")
    with pytest.raises(InputError, match=r"a\.nc: lat \(lat\), depth \(depth\), sst \(time, lat, lon\)"):
        ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["lat", "depth"], targets=["sst"])
    with pytest.raises(InputError, match=r"has no column 'station'; its columns are: "):
        ingest([tmp_path / "a.nc"], tmp_path / "s.zarr", inputs=["lat", "station"], targets=["sst"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nc"]


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 24, 100])
def test_slabs_are_the_cells_in_order(rows: int) -> None:
    cells, seen = np.arange(60).reshape(5, 3, 4), []
    for slab in Grid(("a", "b", "c"), cells.shape).slabs(rows):
        assert cells[slab].size <= rows
        seen.append(cells[slab].ravel())
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(60))
