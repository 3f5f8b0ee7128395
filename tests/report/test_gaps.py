"""Cells of maps that never had a value, found where values are missing by place and not at random."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from command_line import INDEPENDENT, call, write_job
from matplotlib.image import imread
from numpy.testing import assert_array_equal

from dorff import kernels
from dorff.fit import sites as drawn_sites
from dorff.kernels.scalar import FloatArray
from dorff.model import HeldSample, Model, Sites
from dorff.report.describe import Subject
from dorff.report.fields import Plane, draw_derivatives, draw_field, draw_maps
from dorff.report.figures import png
from dorff.report.gaps import GREY, Gaps
from dorff.report.page import render
from dorff.store import load_model, save_model
from tests.report.test_report import GAUSSIAN, a_model

RNG = np.random.default_rng(0)
PLACES = RNG.uniform(0, 1, (1500, 2))
LAND = (PLACES[:, 0] - 0.3) ** 2 + (PLACES[:, 1] - 0.4) ** 2 < 0.25**2
GRID = np.stack(np.meshgrid(np.linspace(0, 1, 50), np.linspace(0, 1, 50)), axis=-1).reshape(-1, 2)
IS_LAND = (GRID[:, 0] - 0.3) ** 2 + (GRID[:, 1] - 0.4) ** 2 < 0.25**2


def test_land_is_found_to_within_the_spacing_of_places() -> None:
    gaps = Gaps.find(PLACES, ~LAND)
    assert gaps is not None
    wrong = gaps.cover(GRID) != IS_LAND
    to_coast = np.abs(np.hypot(GRID[:, 0] - 0.3, GRID[:, 1] - 0.4) - 0.25)
    assert IS_LAND.mean() > 0.15 and wrong.mean() < 0.02 and to_coast[wrong].max() < 0.05


def test_values_that_are_missing_at_sea_at_random_leave_no_holes() -> None:
    gaps = Gaps.find(PLACES, ~LAND & (RNG.uniform(size=len(PLACES)) > 0.05))
    assert gaps is not None
    covered = gaps.cover(GRID)
    far = np.hypot(GRID[:, 0] - 0.3, GRID[:, 1] - 0.4) > 0.32
    assert covered[far].mean() < 0.01 and covered[IS_LAND].mean() > 0.9


@pytest.mark.parametrize("share", [0.002, 0.05, 0.3, 0.5, 0.9, 0.998])
def test_values_that_are_missing_at_random_are_no_gaps(share: float) -> None:
    assert all(
        Gaps.find(PLACES, np.random.default_rng(seed).uniform(size=len(PLACES)) > share) is None for seed in range(10)
    )


def test_values_that_are_missing_at_times_are_no_gaps() -> None:
    """The same places, over and over: somewhere there was a value."""
    places, times = np.repeat(PLACES[:300], 5, axis=0), np.tile(np.arange(5), 300)
    assert Gaps.find(places, times % 2 == 0) is None


def sea(folder: Path, nan: str = "drop", shard_rows: int = 256) -> Model:
    """A model of a field with an island in its midst, on a grid of 24 by 30, over places and two times."""
    lat, lon = np.linspace(48, 50, 24), np.linspace(0, 4, 30)
    depth = np.sin(lon)[None, None, :] + lat[None, :, None] / 50 + np.array([0.0, 0.1])[:, None, None]
    depth[:, 6:18, 10:22] = np.nan
    coordinates = {"time": [0.0, 1.0], "lat": lat, "lon": lon}
    xr.Dataset({"depth": (("time", "lat", "lon"), depth)}, coords=coordinates).to_netcdf(folder / "sea.nc")
    names = ("--inputs", "lon,lat,time", "--targets", "depth")
    assert call("ingest", folder / "sea.nc", folder / "s.zarr", *names, "--shard-rows", shard_rows).exit_code == 0
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": [1.0, 1.0, 2.0]}}
    solve = {"folds": {"by": "rows"}, "select": "kfold", "posterior": True}
    job = write_job(
        folder / "j.yaml", data={"store": "s.zarr", "nan": nan}, kernel=kernel, solve=solve, model="m", state="st"
    )
    assert call("fit", job).exit_code == 0
    return load_model(folder / "m", held=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return sea(tmp_path_factory.mktemp("sea"))


def is_island(places: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether places (n, 2 or more) are nearer to the grid's points without values."""
    lon, lat = places[:, 0] * 29 / 4, (places[:, 1] - 48) * 23 / 2
    return np.asarray((np.abs(lon - 15.5) < 6) & (np.abs(lat - 11.5) < 6))


def sites_of(model: Model) -> Sites:
    assert model.held is not None and model.held.sites is not None
    return model.held.sites


def without_sites(model: Model) -> Model:
    assert model.held is not None
    return replace(model, held=replace(model.held, sites=None))


def test_a_model_knows_where_its_data_have_no_values(model: Model) -> None:
    sites = sites_of(model)
    assert_array_equal(sites.observed, ~is_island(sites.inputs))
    assert sites.observed.sum() == 1000  # of 1,152, and the island thinned alike
    assert 190 < (~sites.observed).sum() < 288


def maps(subject: Subject) -> bytes:
    return png(draw_maps(Plane(subject, 0, 1), whole=False))


def grey_share(png: bytes) -> float:
    pixels = imread(io.BytesIO(png))
    return float((np.abs(pixels - np.array(GREY)).max(axis=-1) < 0.01).mean())


def test_maps_have_no_colours_where_there_never_was_a_value(model: Model) -> None:
    subject, before = Subject.of(model), Subject.of(without_sites(model))
    _, _, grid = Plane(subject, 0, 1).points(40)
    assert np.mean(Plane(subject, 0, 1).never_observed(grid) != is_island(grid)) < 0.01
    assert grey_share(maps(subject)) > 0.05
    assert grey_share(maps(before)) == 0
    assert "Grey: " in render(model, Path("m")) and "Grey: " not in render(without_sites(model), Path("m"))
    # Along other planes there are values at every place, though not at every latitude or longitude.
    assert Plane(subject, 1, 2).gaps is None and not Plane(subject, 1, 2).never_observed(grid).any()


def test_colours_are_those_of_cells_with_values(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model says of land, however wild, is not seen and does not set the scale."""
    subject, predict, std = Subject.of(model), Model.predict, Model.std
    plane, picture = Plane(subject, 0, 1), maps(subject)

    def wild(self: Model, X: FloatArray) -> FloatArray:
        return predict(self, X) + 1e6 * plane.never_observed(X)[:, None]

    def unsure(self: Model, X: FloatArray, **options: bool) -> FloatArray:
        return std(self, X, **options) + 1e6 * plane.never_observed(X)[:, None]

    monkeypatch.setattr(Model, "predict", wild)
    assert maps(subject) == picture
    monkeypatch.setattr(Model, "std", unsure)
    smoothed = imread(io.BytesIO(maps(subject)))  # a little is seen along the coast
    assert np.abs(smoothed - imread(io.BytesIO(picture))).mean() < 0.01


def test_fields_have_neither_colours_nor_arrows_there() -> None:
    field = a_model(kernels.Decomposable(GAUSSIAN), 2, 2, {"data": {"low": [0, 0], "high": [1, 1]}})
    places = 2 * PLACES - 0.5  # of which land is all that is seen
    sample = HeldSample(np.arange(2), np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)))
    sites = Sites(places, np.abs(places - 0.5).max(axis=1) > 0.45)
    there = Subject.of(replace(field, held=replace(sample, sites=sites)))
    before = Subject.of(replace(field, held=sample))
    for draw in (draw_field, draw_derivatives):
        assert grey_share(png(draw(there, False))) > 0.35 and grey_share(png(draw(before, False))) < 1e-3


def test_models_of_before_have_no_sites(model: Model, tmp_path: Path) -> None:
    save_model(without_sites(model), tmp_path / "old")
    old = load_model(tmp_path / "old", held=True)
    assert old.held is not None and old.held.sites is None and not list((tmp_path / "old").rglob("*site*"))
    save_model(model, tmp_path / "new")
    assert_array_equal(sites_of(load_model(tmp_path / "new", held=True)).observed, sites_of(model).observed)


def test_sites_are_drawn_alike_from_many_rows(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many of each kind, at the same rate, from all over the data, whatever the size of chunks."""
    monkeypatch.setattr(drawn_sites, "SAMPLE_ROWS", 100)
    monkeypatch.setattr(drawn_sites, "WINDOWS", 16)
    monkeypatch.setattr(drawn_sites, "WINDOW_ROWS", 40)
    few = []
    for shard_rows in (256, 64):
        (folder := tmp_path / str(shard_rows)).mkdir()
        few.append(sites_of(sea(folder, shard_rows=shard_rows)))
    n_observed, n_empty = few[0].observed.sum(), (~few[0].observed).sum()
    assert n_observed <= 100 and n_empty <= 100 and len(few[0].observed) > 100
    assert 2.5 < n_observed / n_empty < 7.0  # 4 of the data
    assert np.ptp(few[0].inputs, axis=0) == pytest.approx([4, 2, 1], abs=0.5)
    assert_array_equal(few[0].inputs, few[1].inputs)
    assert_array_equal(few[0].observed, few[1].observed)


def test_rows_without_labels_are_no_gaps(tmp_path: Path) -> None:
    held = sea(tmp_path, nan="unlabelled").held
    assert held is not None and held.sites is None
