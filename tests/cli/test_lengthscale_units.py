"""Length-scales are said in the inputs' own units: by fit, inspect, the report and estimators."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from command_line import call, write_job

from dorff import ORFFRegressor, kernels
from dorff.data import ingest
from dorff.kernels import MultiView, input_lengthscales

RNG = np.random.default_rng(8)
N = 500
HOURS, DEPTH, SALT = 2000 * RNG.random(N), 300 * RNG.random(N), RNG.normal(35, 0.5, N)
SPREADS = {"time": HOURS.std(), "depth": DEPTH.std(), "salt": SALT.std()}
UNITS = {"time": "hours", "depth": "m", "salt": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose inputs have units, but for one."""
    place = tmp_path_factory.mktemp("units")
    warmth = 12 + 3 * np.sin(HOURS / 300) - DEPTH / 100 + 0.3 * (SALT - 35) + 0.1 * RNG.standard_normal(N)
    current = np.column_stack([np.sin(HOURS / 300), np.cos(DEPTH / 90)]) + 0.05 * RNG.standard_normal((N, 2))
    attributes = {"time": {"units": "hours since 2024-03-01"}, "depth": {"units": "m"}, "salt": {"units": "1"}}
    columns = {"time": HOURS, "depth": DEPTH, "salt": SALT, "warmth": warmth, "u": current[:, 0], "v": current[:, 1]}
    data = {name: ("obs", values, attributes.get(name, {})) for name, values in columns.items()}
    xr.Dataset(data).to_netcdf(place / "a.nc")
    ingest([place / "a.nc"], place / "table.zarr", inputs=["time", "depth", "salt"], targets=["warmth"])
    return place


def test_a_fit_says_what_its_lengthscales_are_in_the_units_of_its_inputs(folder: Path) -> None:
    settings = {"data": {"store": "table.zarr"}, "kernel": {"type": "decomposable"}, "model": "m", "state": "s"}
    job = write_job(folder / "table.yaml", **settings)
    result = call("fit", job, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    (scaled,), (lengths,) = report["lengthscale"], report["lengthscale_in_units"]
    assert list(lengths) == list(SPREADS)
    for (name, one), length in zip(lengths.items(), scaled, strict=True):
        assert one["units"] == UNITS[name]
        assert one["lengthscale"] == pytest.approx(length * SPREADS[name], rel=0.02)  # scales come of a sample

    shown = [
        f"{name} {one['lengthscale']:.3g}" + (f" {one['units']}" if one["units"] else "")
        for name, one in lengths.items()
    ]
    (choice,) = [one for one in report["choices"] if one["key"] == "kernel.lengthscale"]
    assert list(choice["value"].values()) == scaled
    assert f"in standard deviations; in the inputs' units {', '.join(shown)}" in choice["why"]
    again = call("fit", write_job(folder / "again.yaml", **settings | {"model": "again"}))
    assert again.exit_code == 0 and f"length-scale {', '.join(shown)}, held-out" in again.stdout
    assert f"in the inputs' units {', '.join(shown)}" in " ".join(again.stdout.split())

    kept = json.loads(call("inspect", folder / "m", "--json").stdout)
    assert kept["report"]["lengthscale_in_units"] == [lengths]

    assert call("report", folder / "m", "-o", folder / "page.html").exit_code == 0
    text = " ".join(re.sub(r"<[^>]*>", " ", (folder / "page.html").read_text()).split())
    for name, one in lengths.items():
        unit = {"hours": " hours", "m": " m"}.get(one["units"], "")
        assert f"{name} {one['lengthscale']:.4g}{unit}" in text
    assert "standard deviations)" in text.split("s = ")[1][:150]


def test_one_lengthscale_of_all_inputs_is_said_once(folder: Path) -> None:
    ingest([folder / "a.nc"], folder / "field.zarr", inputs=["time", "depth"], targets=["u", "v"])
    scalar = {"type": "gaussian", "lengthscale": 90.0}
    job = {
        "data": {"store": "field.zarr"},
        "kernel": {"type": "curl_free", "scalar": scalar},
        "model": "f",
        "state": "t",
    }
    report = json.loads(call("fit", write_job(folder / "field.yaml", **job), "--json").stdout)
    assert report["lengthscale_in_units"] == [
        {"time": {"lengthscale": 90.0, "units": "hours"}, "depth": {"lengthscale": 90.0, "units": "m"}}
    ]
    kilometres = {"east": ("obs", HOURS, {"units": "km"}), "north": ("obs", DEPTH, {"units": "km"})}
    field = xr.Dataset(kilometres | {"u": ("obs", np.sin(HOURS / 300)), "v": ("obs", np.cos(DEPTH / 90))})
    field.to_netcdf(folder / "b.nc")
    ingest([folder / "b.nc"], folder / "plane.zarr", inputs=["east", "north"], targets=["u", "v"])
    del job["kernel"]["scalar"]  # type: ignore[attr-defined]
    job |= {"data": {"store": "plane.zarr"}, "model": "g"}
    answer = json.loads(call("fit", write_job(folder / "plane.yaml", **job), "--json").stdout)
    ((name, one),) = answer["lengthscale_in_units"][0].items()
    assert name == "all inputs" and one["units"] == "km"
    (choice,) = [one for one in answer["choices"] if one["key"] == "kernel.lengthscale"]
    assert f"in the inputs' units {one['lengthscale']:.3g} km" in choice["why"]


def test_lengthscales_of_terms_and_views() -> None:
    scale = np.array([2.0, 10.0, 0.5])
    gaussian, matern = kernels.Gaussian([1.0, 3.0, 4.0]), kernels.Matern(2.0)
    both = kernels.Sum([(1.0, kernels.Decomposable(gaussian)), (0.5, kernels.Decomposable(matern))])
    assert input_lengthscales(both, scale) == [{0: 2.0, 1: 30.0, 2: 2.0}, {0: 4.0, 1: 20.0, 2: 1.0}]
    views = [((0, 2), kernels.Gaussian([1.0, 3.0])), ((1,), matern)]
    assert input_lengthscales(MultiView(views), scale) == [{0: 2.0, 2: 1.5}, {1: 20.0}]
    assert input_lengthscales(kernels.Decomposable(kernels.ArcCosine(1)), scale) == [None]


@pytest.mark.parametrize("standardize", [True, False])
def test_an_estimator_has_lengthscales_and_noise_in_units(standardize: bool) -> None:
    X = np.column_stack([HOURS, DEPTH])
    y = np.column_stack([np.sin(HOURS / 300), np.cos(DEPTH / 90)]) + [0.1, 0.2] * RNG.standard_normal((N, 2))
    kernel = kernels.Gaussian(0.8 if standardize else [400.0, 70.0])
    fitted = ORFFRegressor(kernel, 100, ridge=1e-4, standardize=standardize).fit(X, y)
    (lengths,) = fitted.lengthscales_
    assert lengths is not None
    assert lengths == pytest.approx(0.8 * X.std(axis=0) if standardize else [400.0, 70.0], rel=0.02)

    # Variances, in squares of units: their roots are the noise that was added.
    assert fitted.noise_.shape == (2, 2) and fitted.noise_[0, 1] == fitted.noise_[1, 0] == 0.0
    assert np.sqrt(np.diag(fitted.noise_)) == pytest.approx([0.1, 0.2], rel=0.15)
    centimetres = ORFFRegressor(kernel, 100, ridge=1e-4, standardize=True).fit(X, y * [100.0, 1.0])
    metres = ORFFRegressor(kernel, 100, ridge=1e-4, standardize=True).fit(X, y)
    assert np.diag(centimetres.noise_) == pytest.approx(np.diag(metres.noise_) * [1e4, 1.0], rel=1e-6)
    assert "squares of the targets' units" in " ".join(str(ORFFRegressor.__doc__).split())
