"""Units of columns: kept with data sets and models, converted, or refused."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from dorff.data import ingest, open_dataset

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
