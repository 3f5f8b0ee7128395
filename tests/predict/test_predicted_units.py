"""A model's rows in other units: files and Zarr stores that are scored and predicted."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import yaml

from dorff.store import load_model
from tests.command_line import call

ROWS = 120
HOURS = np.arange(ROWS, dtype=np.float64)
SST = 280 + 5 * np.sin(HOURS / 12)
START = np.datetime64("2024-01-01", "ns")


def rows(time: str, sst: str = "K", calendar: str = "standard") -> xr.Dataset:
    """Return the same rows with times, and targets, in these units."""
    unit, _, origin = time.partition(" since ")
    shift = (START - np.datetime64(origin, "ns")) / np.timedelta64(1, "h")
    numbers = (HOURS + shift) / {"hours": 1, "days": 24, "seconds": 1 / 3600}[unit]
    values = SST if sst == "K" else SST - 273.15
    variables = {
        "time": ("row", numbers, {"units": time, "calendar": calendar}),
        "sst": ("row", values, {"units": sst}),
    }
    return xr.Dataset(variables)


def job(folder: Path, store: Path, inputs: str, targets: str, name: str) -> Path:
    content: dict[str, Any] = {
        "data": {"store": str(store), "inputs": inputs, "targets": targets},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 12}},
        "features": {"count": 64},
        "solve": {"ridge": 1e-6, "select": "gcv"},
        "cluster": {"type": "serial"},
        "state": str(folder / f"{name}_state"),
        "model": str(folder / name),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    done = call("fit", path)
    assert done.exit_code == 0, done.output
    return folder / name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of a NetCDF file, and one of the same rows in a Zarr store of xarray's."""
    folder = tmp_path_factory.mktemp("units")
    given = rows("hours since 2024-01-01")
    given.to_netcdf(folder / "a.nc", engine="scipy")
    given.to_zarr(folder / "a.zarr", consolidated=False)
    done = call("ingest", folder / "a.nc", folder / "s.zarr", "--inputs", "time", "--targets", "sst")
    assert done.exit_code == 0, done.output
    zarr = job(folder, folder / "a.zarr", "time", "sst", "of_zarr")
    return {"netcdf": job(folder, folder / "s.zarr", "x", "y", "of_netcdf"), "zarr": zarr}


OTHERS = [
    ("hours since 2024-01-01", "K"),
    ("days since 2023-12-25", "degC"),
    ("seconds since 1970-01-01", "deg_C"),
]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("time", "sst"), OTHERS)
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_zarr_stores_of_others_score_alike_in_any_units(
    models: dict[str, Path], tmp_path: Path, kind: str, time: str, sst: str, zarr_format: int
) -> None:
    rows(time, sst).to_zarr(tmp_path / "b.zarr", zarr_format=zarr_format, consolidated=False)
    done = call("score", models[kind], tmp_path / "b.zarr", "--inputs", "time", "--targets", "sst", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rmse"] < 0.01
    assert (f"sst from {sst} to K" in done.stderr) == (sst != "K")
    assert (f"time from {time}" in done.stderr) == (time != "hours since 2024-01-01")


@pytest.mark.parametrize(("time", "sst"), OTHERS)
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_predictions_of_files_and_stores_are_alike_in_any_units(
    models: dict[str, Path], tmp_path: Path, kind: str, time: str, sst: str
) -> None:
    given = rows(time, sst)
    given.to_netcdf(tmp_path / "b.nc", engine="scipy")
    given.to_zarr(tmp_path / "b.zarr", consolidated=False)
    for source, more in (("b.nc", []), ("b.zarr", ["--inputs", "time"])):
        out = tmp_path / f"{source}.out.nc"
        done = call("predict", models[kind], tmp_path / source, out, *more)
        assert done.exit_code == 0, done.output
        with h5py.File(out) as file:
            np.testing.assert_allclose(file["sst_predicted"][:], SST, atol=0.02)
    done = call("score", models[kind], tmp_path / "b.nc", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["rmse"] < 0.01, done.output


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_text_is_a_time_for_models_of_either(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    times = START + (HOURS * 3600e9).astype("m8[ns]")
    lines = [f"{np.datetime64(time, 's')},{value}" for time, value in zip(times, SST, strict=True)]
    (tmp_path / "b.csv").write_text("time,sst\n" + "\n".join(lines) + "\n")
    done = call("score", models[kind], tmp_path / "b.csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rmse"] < 0.01
    assert "sst none here, K there" in done.stderr


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_what_cannot_be_converted_is_refused(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    other = rows("hours since 2024-01-01", calendar="noleap")
    other.to_zarr(tmp_path / "b.zarr", consolidated=False)
    other.to_netcdf(tmp_path / "b.nc", engine="scipy")
    stores = [("score", "b.zarr", "--inputs", "time", "--targets", "sst"), ("score", "b.nc")]
    for command, name, *more in stores:
        done = call(command, models[kind], tmp_path / name, *more)
        assert done.exit_code == 3 and "noleap" in done.stderr, done.output
    done = call("predict", models[kind], tmp_path / "b.zarr", tmp_path / "o.zarr", "--inputs", "time")
    assert done.exit_code == 3 and not (tmp_path / "o.zarr").exists()
    wrong = rows("hours since 2024-01-01")
    wrong["sst"].attrs["units"] = "m s-1"
    wrong.to_netcdf(tmp_path / "c.nc", engine="scipy")
    assert call("score", models[kind], tmp_path / "c.nc").exit_code == 3
    stated = call("score", models[kind], tmp_path / "c.nc", "--units", "sst=K", "--json")
    assert stated.exit_code == 0 and json.loads(stated.stdout)["rmse"] < 0.01


def test_a_model_keeps_the_units_of_inputs_and_targets(models: dict[str, Path]) -> None:
    for model in models.values():
        kept = load_model(model, posterior=False).info["data"]["column_attributes"]
        assert kept == {"time": {"units": "hours since 2024-01-01", "calendar": "standard"}, "sst": {"units": "K"}}


def test_ingest_like_a_model_converts_to_its_units(models: dict[str, Path], tmp_path: Path) -> None:
    rows("days since 2023-12-25", "degC").to_netcdf(tmp_path / "b.nc", engine="scipy")
    words = ["ingest", tmp_path / "b.nc", tmp_path / "b.zarr", "--inputs", "time", "--targets", "sst"]
    assert call(*words, "--like", models["netcdf"]).exit_code == 0
    with xr.open_zarr(tmp_path / "b.zarr", consolidated=False) as made:
        np.testing.assert_allclose(made.x.values[:, 0], HOURS, atol=1e-9)
        np.testing.assert_allclose(made.y.values[:, 0], SST, atol=1e-9)
