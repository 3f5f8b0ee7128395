"""Variables with named dimensions broadcast as in xarray; ragged arrays; variables that are several columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import netCDF4
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from cases import LAW
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.data import ingest, open_dataset
from dorff.errors import InputError

Array = npt.NDArray[Any]


def rows_of(
    source: Path, inputs: Sequence[str], targets: Sequence[str] = (), **options: Any
) -> tuple[Array, list[str]]:
    """Ingest, and return the rows with the names of their columns."""
    out = source.with_name("rows.zarr")
    n = ingest([source], out, inputs=inputs, targets=targets, **options)
    dataset = open_dataset(out, targets="y" if targets else None)
    X, Y = dataset.read(0, n)
    return np.hstack([X, Y]), [*dataset.input_columns, *dataset.target_columns]


def flattened(data: xr.Dataset, names: Sequence[str]) -> Array:
    """The dense twin: xarray's own broadcasting."""
    return np.column_stack([field.values.ravel() for field in xr.broadcast(*(data[name] for name in names))])


def write(data: xr.Dataset, folder: Path, engine: str) -> Path:
    path = folder / "data.nc"
    data.to_netcdf(path, engine=engine)
    return path


ENGINES = pytest.mark.parametrize("engine", ["scipy", "netcdf4"])


def argo(levels: int = 15) -> xr.Dataset:
    """Profiles as Argo's files have them: no coordinates, flags of single characters, padded text."""
    rng = np.random.default_rng(0)
    pressure = np.sort(rng.uniform(0, 2000, (4, levels)), axis=1)
    flags = rng.choice([b"1", b"4"], (4, levels))
    variables = {
        "PRES": (("N_PROF", "N_LEVELS"), pressure, {"_FillValue": 99999.0}),
        "TEMP": (("N_PROF", "N_LEVELS"), rng.normal(10, 3, (4, levels))),
        "JULD": ("N_PROF", np.arange(4.0)),
        "LATITUDE": ("N_PROF", rng.uniform(-60, 60, 4)),
        "CYCLE": ((), np.int32(7)),
        "TEMP_QC": (("N_PROF", "N_LEVELS"), flags.astype("S1")),
        "PLATFORM": (("N_PROF",), np.array([b"5904", b"5905", b"5904", b"61"], "S4")),
        "DATA_TYPE": ((), np.array(b"Argo profile", "S12")),
    }
    return xr.Dataset(variables)


@ENGINES
def test_a_row_is_a_level_of_a_profile(tmp_path: Path, engine: str) -> None:
    path = write(argo(), tmp_path, engine)
    names = ["JULD", "LATITUDE", "PRES", "CYCLE"]
    rows, columns = rows_of(path, names, ["TEMP"])
    assert columns == [*names, "TEMP"]
    np.testing.assert_array_equal(rows, flattened(argo(), ["PRES", *names, "TEMP"])[:, 1:])


@ENGINES
def test_single_characters_are_flags_of_levels_and_texts_of_profiles(tmp_path: Path, engine: str) -> None:
    data = argo()
    path = write(data, tmp_path, engine)
    options = {"one_hot": ["TEMP_QC", "PLATFORM", "DATA_TYPE"]}
    rows, columns = rows_of(path, ["PRES", "TEMP_QC", "PLATFORM", "DATA_TYPE"], ["TEMP"], **options)
    assert columns[1:-1] == [
        *("TEMP_QC=1", "TEMP_QC=4", "PLATFORM=5904", "PLATFORM=5905", "PLATFORM=61", "DATA_TYPE=Argo profile")
    ]
    flags, platforms = data.TEMP_QC.values.ravel(), np.repeat(data.PLATFORM.values, 15)
    np.testing.assert_array_equal(rows[:, 1], flags == b"1")
    np.testing.assert_array_equal(rows[:, 4], platforms == b"5905")
    assert (rows[:, 6] == 1).all()


@pytest.mark.parametrize("model", ["NETCDF3_CLASSIC", "NETCDF4"])
def test_characters_as_argo_writes_them(tmp_path: Path, model: Any) -> None:
    """Flags lie along the levels themselves, texts along a dimension of their own."""
    flags = np.array([list("114"), list("141")], "S1")
    with netCDF4.Dataset(tmp_path / "data.nc", "w", format=model) as file:
        for dim, length in {"N_PROF": 2, "N_LEVELS": 3, "STRING4": 4}.items():
            file.createDimension(dim, length)
        file.createVariable("PRES", "f4", ("N_PROF", "N_LEVELS"))[:] = np.arange(6.0).reshape(2, 3)
        file.createVariable("PRES_QC", "S1", ("N_PROF", "N_LEVELS"))[:] = flags
        file.createVariable("DIRECTION", "S1", ("N_PROF",))[:] = np.array(list("AD"), "S1")
        file.createVariable("PLATFORM", "S1", ("N_PROF", "STRING4"))[:] = np.array([list("59 "), list("61 ")], "S1")[
            :, [0, 1, 2, 2]
        ]
        file.createVariable("FORMAT", "S1", ("STRING4",))[:] = np.array(list("3.1 "), "S1")
    words = ["PRES_QC", "PLATFORM", "DIRECTION", "FORMAT"]
    rows, columns = rows_of(tmp_path / "data.nc", ["PRES", *words], one_hot=words)
    kinds = ["PRES_QC=1", "PRES_QC=4", "PLATFORM=59", "PLATFORM=61", "DIRECTION=A", "DIRECTION=D", "FORMAT=3.1"]
    assert columns == ["PRES", *kinds]
    np.testing.assert_array_equal(rows[:, 1], flags.ravel() == b"1")
    np.testing.assert_array_equal(rows[:, [3, 5]], np.repeat([[1, 1], [0, 0]], 3, axis=0))


@ENGINES
def test_groups_and_classes_broadcast_too(tmp_path: Path, engine: str) -> None:
    path = write(argo(), tmp_path, engine)
    ingest([path], tmp_path / "s.zarr", inputs=["PRES"], classes="TEMP_QC", groups="PLATFORM")
    labels = open_dataset(tmp_path / "s.zarr", inputs=["classes", "groups"], targets=None).read(0, 60)[0]
    names = argo().TEMP_QC.values.ravel()
    assert len({*zip(labels[:, 0], names, strict=True)}) == 2
    assert (labels[:, 1].reshape(4, 15) == labels[::15, 1:]).all() and len(set(labels[:, 1])) == 3


def test_a_variable_of_its_own_components_is_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 6, 3))[0], rng.standard_normal(6)
    data = xr.Dataset({"X": (("sample", "feature"), X), "y": ("sample", y)}, {"feature": ["a", "b", "c"]})
    rows, columns = rows_of(write(data, tmp_path, "netcdf4"), ["X"], ["y"])
    assert columns == ["X0", "X1", "X2", "y"]
    np.testing.assert_array_equal(rows, np.column_stack([X, y]))


def test_bounds_are_columns_beside_their_times(tmp_path: Path) -> None:
    """Another variable's bounds lie along `nv` too, but not along time."""
    data = xr.Dataset(
        {"bounds": (("t", "nv"), np.arange(8.0).reshape(4, 2)), "other": (("z", "nv"), np.ones((3, 2)))},
        {"t": np.arange(4.0)},
    )
    rows, columns = rows_of(write(data, tmp_path, "scipy"), ["t", "bounds"])
    assert columns == ["t", "bounds0", "bounds1"] and rows.shape == (4, 3)


def test_a_numbered_column_is_one_column_beside_cells(tmp_path: Path) -> None:
    data = argo(levels=5)
    path = write(data, tmp_path, "scipy")
    rows, columns = rows_of(path, ["JULD", "PRES3"], ["TEMP0", "TEMP4"])
    assert columns == ["JULD", "PRES3", "TEMP0", "TEMP4"]
    np.testing.assert_array_equal(rows[:, 1:], np.column_stack([data.PRES[:, 3], data.TEMP[:, 0], data.TEMP[:, 4]]))
    (tmp_path / "rows.zarr").rename(tmp_path / "first.zarr")
    rows, _ = rows_of(path, ["PRES"], ["TEMP2"])
    np.testing.assert_array_equal(rows[:, 1], np.repeat(data.TEMP.values[:, 2], 5))


def test_cells_that_only_the_file_shows_are_said(tmp_path: Path) -> None:
    said: list[str] = []
    path = write(argo(), tmp_path, "scipy")
    rows, _ = rows_of(path, ["JULD"], ["TEMP"], notice=said.append)
    assert rows.shape == (60, 2)
    assert any("TEMP (N_PROF, N_LEVELS)" in sentence and "TEMP0" in sentence for sentence in said)


def test_places_on_a_curved_grid_are_sure(tmp_path: Path) -> None:
    said: list[str] = []
    lat, lon, u = np.random.default_rng(0).standard_normal((3, 6, 7))
    places = {"lat": (("y", "x"), lat), "lon": (("y", "x"), lon)}
    path = write(xr.Dataset({"u": (("y", "x"), u)}, coords=places), tmp_path, "scipy")
    rows, _ = rows_of(path, ["lon", "lat"], ["u"], notice=said.append)
    np.testing.assert_array_equal(rows, np.column_stack([lon.ravel(), lat.ravel(), u.ravel()]))
    assert said == []


@pytest.mark.parametrize("names", [["t", "y", "x", "lat", "u"], ["lat", "lon", "t", "u"], ["mask", "u", "z0"]])
def test_fields_of_fewer_dimensions_are_repeated_along_the_others(tmp_path: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    data = xr.Dataset(
        {
            "u": (("t", "y", "x"), rng.standard_normal((5, 3, 4))),
            "mask": (("y", "x"), rng.integers(0, 2, (3, 4))),
            "z0": ((), 2.5),
        },
        {"t": np.arange(5.0), "y": np.arange(3.0), "x": np.arange(4.0)}
        | {name: (("y", "x"), rng.standard_normal((3, 4))) for name in ("lat", "lon")},
    )
    rows, _ = rows_of(write(data, tmp_path, "netcdf4"), names)
    np.testing.assert_array_equal(rows, flattened(data, ["u", *names])[:, 1:])


def curved(order: Sequence[str]) -> xr.Dataset:
    """A field of time on a curved grid."""
    rng = np.random.default_rng(0)
    data = xr.Dataset(
        {"sst": (("time", "y", "x"), rng.standard_normal((5, 3, 4)))},
        {"time": np.arange(5.0)} | {name: (("y", "x"), rng.standard_normal((3, 4))) for name in ("lat", "lon")},
    )
    data["sst"] = data.sst.transpose(*order)
    return data


@pytest.mark.parametrize("kind", ["scipy", "netcdf4", "h5", "zarr2", "zarr3"])
@pytest.mark.parametrize("order", [("time", "y", "x"), ("x", "time", "y")])
@pytest.mark.parametrize("names", [["time", "lat", "lon"], ["lon", "time"], ["x", "lat", "time"]])
def test_a_variable_that_is_not_asked_for_says_what_cells_there_are(
    tmp_path: Path, kind: str, order: Sequence[str], names: list[str]
) -> None:
    data = curved(order).assign_coords(x=np.arange(4.0) * 7)
    if kind.startswith("zarr"):
        path = tmp_path / "data.zarr"
        data.to_zarr(path, zarr_format=int(kind[-1]), consolidated=False)
    else:
        path = tmp_path / ("data.h5" if kind == "h5" else "data.nc")
        data.to_netcdf(path, engine="scipy" if kind == "scipy" else "netcdf4")
    rows, columns = rows_of(path, names)
    assert columns == names
    np.testing.assert_array_equal(rows, flattened(data, ["sst", *names])[:, 1:])


@pytest.mark.parametrize("field", [("time", "y"), ("time", "y", "x", "band"), ("time", "y", "x", "x")])
def test_variables_of_other_dimensions_do_not_say_it(tmp_path: Path, field: tuple[str, ...]) -> None:
    path = write(curved(("time", "y", "x")).drop_vars("sst"), tmp_path, "netcdf4")
    with netCDF4.Dataset(path, "a") as file:
        file.createDimension("band", 2)
        file.createVariable("sst", "f8", field)[:] = 1.0
    with pytest.raises(InputError, match="no variable spans the dimensions time, y, x"):
        ingest([path], tmp_path / "s.zarr", inputs=["time", "lat", "lon"])


@settings(LAW, max_examples=30)
@given(data=st.data())
def test_any_variables_broadcast_as_in_xarray(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One variable of all dimensions, in any order, and others of some."""
    lengths = {"a": 2, "b": 3, "c": 4}
    every = tuple(data.draw(st.permutations(sorted(lengths))))
    some = st.lists(st.sampled_from(sorted(lengths)), unique=True, max_size=3).map(tuple)
    dims = {"u": every} | {f"v{place}_": data.draw(some) for place in range(data.draw(st.integers(0, 3)))}
    count = {name: int(np.prod([lengths[dim] for dim in of])) for name, of in dims.items()}
    fields = {
        name: (of, np.arange(float(count[name])).reshape([lengths[dim] for dim in of]) + 100 * place)
        for place, (name, of) in enumerate(dims.items())
    }
    path = tmp_path_factory.mktemp("any") / "data.nc"
    dataset = xr.Dataset(fields)
    dataset.to_netcdf(path, engine=data.draw(st.sampled_from(["scipy", "netcdf4"])))
    names = data.draw(st.permutations(list(dims)))
    with mock.patch("dorff.data.readers.BLOCK_BYTES", data.draw(st.sampled_from([64, 500, 2**22]))):
        rows, _ = rows_of(path, names)
    # Of several that have all dimensions the first gives the order.
    first = next(name for name in names if len(dims[name]) == 3)
    np.testing.assert_array_equal(rows, flattened(dataset, [first, *names])[:, 1:])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [(["a", "b"], "dimensions t, z, d"), (["a", "d2"], "no variable spans the dimensions t, z, d"), (["s"], "no dim")],
)
def test_dimensions_that_no_variable_spans_are_refused_by_name(tmp_path: Path, inputs: list[str], words: str) -> None:
    fields = {"a": (("t", "z"), np.ones((2, 3))), "a2": (("t", "z"), np.ones((2, 3))), "s": ((), 1.0)}
    fields |= {"b": (("t", "d"), np.ones((2, 4))), "b2": (("t", "d"), np.ones((2, 4))), "d2": ("d", np.ones(4))}
    path = write(xr.Dataset(fields), tmp_path, "scipy")
    with pytest.raises(InputError, match=words):
        ingest([path], tmp_path / "s.zarr", inputs=inputs, targets=[])
    assert not (tmp_path / "s.zarr").exists()


def test_a_dimension_without_a_variable_is_no_column(tmp_path: Path) -> None:
    """NetCDF4 keeps a data set of zeros for it."""
    path = write(argo(), tmp_path, "netcdf4")
    with h5py.File(path) as file:
        assert "N_PROF" in file
    with pytest.raises(InputError, match="no column 'N_PROF'"):
        ingest([path], tmp_path / "s.zarr", inputs=["N_PROF"], targets=["TEMP"])


def test_a_variable_that_is_named_like_another_dimension(tmp_path: Path) -> None:
    """NetCDF4 stores it by another name."""
    with netCDF4.Dataset(tmp_path / "data.nc", "w") as file:
        file.createDimension("obs", 4)
        file.createDimension("depth", 3)
        file.createVariable("depth", "f8", ("obs",))[:] = np.arange(4.0)
        file.createVariable("u", "f8", ("obs", "depth"))[:] = np.arange(12.0).reshape(4, 3)
        file.createVariable("time", "f8", ("obs",))[:] = np.arange(4.0) * 10
    rows, columns = rows_of(tmp_path / "data.nc", ["time", "depth"], ["u"])
    assert columns == ["time", "depth", "u0", "u1", "u2"]
    np.testing.assert_array_equal(rows[:, :2], np.column_stack([np.arange(4) * 10, np.arange(4)]))


def drifters(sizes: Sequence[int]) -> xr.Dataset:
    rng = np.random.default_rng(0)
    n = sum(sizes)
    return xr.Dataset(
        {
            "rowsize": ("traj", np.array(sizes, "i4")),
            "type": ("traj", [f"t{place % 2}" for place in range(len(sizes))]),
            "mass": ("traj", np.arange(len(sizes), dtype="f8")),
            "ve": ("obs", rng.standard_normal(n)),
            "lon": ("obs", rng.standard_normal(n)),
        }
    )


@pytest.mark.parametrize("sizes", [[3, 1, 4], [0, 2, 0, 0, 5, 0], [1] * 50])
@pytest.mark.parametrize("said", ["sample_dimension", "its name", "instance_dimension"])
def test_what_a_drifter_has_is_repeated_along_its_observations(tmp_path: Path, sizes: list[int], said: str) -> None:
    data, of = drifters(sizes), np.repeat(np.arange(len(sizes)), sizes)
    if said == "sample_dimension":
        data.rowsize.attrs["sample_dimension"] = "obs"
    elif said == "instance_dimension":
        of = np.random.default_rng(1).permutation(of)
        data["which"] = xr.DataArray(of.astype("i4"), dims="obs", attrs={"instance_dimension": "traj"})
        data = data.drop_vars("rowsize")
    path = write(data, tmp_path, "netcdf4")
    rows, columns = rows_of(path, ["lon", "mass", "type"], ["ve"])
    assert columns == ["lon", "mass", "type=t0", "type=t1", "ve"]
    np.testing.assert_array_equal(rows[:, [0, 1, -1]], np.column_stack([data.lon, of, data.ve]))
    np.testing.assert_array_equal(rows[:, 2], of % 2 == 0)


def test_observations_of_profiles_of_trajectories(tmp_path: Path) -> None:
    """An indexed ragged array of contiguous ones (CF conventions, H.6.3)."""
    sizes, of = [2, 3, 1, 4], np.array([1, 0, 1, 2])
    data = drifters(sizes).rename({"traj": "profile"})
    data.rowsize.attrs["sample_dimension"] = "obs"
    data["which"] = xr.DataArray(of, dims="profile", attrs={"instance_dimension": "traj"})
    data["depth"] = xr.DataArray([10.0, 20.0, 30.0], dims="traj")
    rows, _ = rows_of(write(data, tmp_path, "netcdf4"), ["lon", "depth", "mass"])
    profile = np.repeat(np.arange(4), sizes)
    np.testing.assert_array_equal(rows, np.column_stack([data.lon, data.depth.values[of[profile]], profile]))


def test_numbers_of_other_samples_lead_elsewhere(tmp_path: Path) -> None:
    data = drifters([3, 1, 4])
    data["dives"] = xr.DataArray(np.array([1, 1, 0]), dims="traj", attrs={"sample_dimension": "dive"})
    data["zdives"] = data.dives
    data.rowsize.attrs["sample_dimension"] = "obs"
    data["depth"] = xr.DataArray([5.0, 6.0], dims="dive")
    path = write(data, tmp_path, "netcdf4")
    assert rows_of(path, ["lon", "mass"])[0].shape == (8, 2)
    (tmp_path / "rows.zarr").rename(tmp_path / "first.zarr")
    np.testing.assert_array_equal(rows_of(path, ["depth", "mass"])[0], [[5, 0], [6, 1]])


def test_blocks_that_are_cut_anywhere_repeat_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list(np.random.default_rng(0).integers(0, 6, 200))
    data, of = drifters(sizes), np.repeat(np.arange(200), sizes)
    data.rowsize.attrs["sample_dimension"] = "obs"
    path = write(data, tmp_path, "netcdf4")
    monkeypatch.setattr("dorff.data.variables.STEP", 7)
    monkeypatch.setattr("dorff.data.readers.BLOCK_BYTES", 8 * 4 * 11)
    rows, _ = rows_of(path, ["lon", "mass"], ["ve"])
    np.testing.assert_array_equal(rows, np.column_stack([data.lon, of, data.ve]))


@pytest.mark.parametrize(
    ("sizes", "words"), [([3, 1, 5], "adds up to 9, but obs has 8"), ([9, -1, 0], "got -1"), ([4, 4, 0], "")]
)
def test_sizes_that_do_not_add_up_are_refused(tmp_path: Path, sizes: list[int], words: str) -> None:
    data = drifters([3, 1, 4])
    data["rowsize"] = xr.DataArray(np.array(sizes, "i4"), dims="traj", attrs={"sample_dimension": "obs"})
    path = write(data, tmp_path, "netcdf4")
    if words:
        with pytest.raises(InputError, match=words):
            ingest([path], tmp_path / "s.zarr", inputs=["lon", "mass"], targets=["ve"])
        assert not (tmp_path / "s.zarr").exists()
    else:
        assert ingest([path], tmp_path / "s.zarr", inputs=["lon", "mass"], targets=["ve"]) == 8


@pytest.mark.parametrize(
    ("place", "words"), [(3, "0 to 2, got 3 in row 6"), (-1, "got -1 in row 6"), (-99, "wanted whole numbers")]
)
def test_places_of_no_instance_are_refused(tmp_path: Path, place: int, words: str) -> None:
    data = drifters([3, 1, 4])
    attributes = {"instance_dimension": "traj", "missing_value": -99}
    data["which"] = xr.DataArray([0, 0, 1, 1, 2, 2, place, 0], dims="obs", attrs=attributes)
    path = write(data.drop_vars("rowsize"), tmp_path, "netcdf4")
    with pytest.raises(InputError, match=f"which: .*{words}"):
        ingest([path], tmp_path / "s.zarr", inputs=["lon", "mass"], targets=["ve"])
    assert not (tmp_path / "s.zarr").exists()


def sections() -> xr.Dataset:
    """A series along time, and what has a further dimension: depth, or both of a map."""
    n, levels = 6, 3
    values = np.arange(n * levels).reshape(n, levels)
    return xr.Dataset(
        {
            "u": ("time", np.arange(n) + 0.5),
            "temp": (("time", "depth"), values + 0.5),
            "qc": (("time", "depth"), values % 2),
            "upside": (("depth", "time"), values.T % 2),
            "level_qc": ("depth", np.arange(levels) % 2),
            "map_qc": (("time", "lat", "lon"), np.ones((n, 2, 2))),
            "ok": ("time", np.arange(n) % 2),
            "scale": ((), 3.0),
        },
        {"time": np.arange(float(n)), "depth": np.arange(float(levels)), "lat": [0.0, 1], "lon": [5.0, 6]},
    )


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize(
    ("options", "option", "dims"),
    [
        ({"where": "qc == 1"}, "--where", "depth"),
        ({"where": "ok == 1 and upside == 1"}, "--where", "depth"),
        ({"where": "map_qc == 1"}, "--where", "lat and lon"),
        ({"weights": "qc"}, "--weights", "depth"),
        ({"weights": "map_qc"}, "--weights", "lat and lon"),
        ({"groups": "qc"}, "--groups", "depth"),
    ],
)
def test_what_describes_rows_multiplies_none(
    tmp_path: Path, suffix: str, options: dict[str, Any], option: str, dims: str
) -> None:
    path = tmp_path / f"data{suffix}"
    data = sections()
    data.to_netcdf(path) if suffix == ".nc" else data.to_zarr(path, consolidated=False)
    with pytest.raises(InputError, match=rf"{option}: .*has the dimension {dims}"):
        rows_of(path, ["time"], ["u"], **options)
    with pytest.raises(InputError, match="dimension"):
        rows_of(path, ["time:day" if suffix == ".nc" else "time", "=0"], ["u"], **options)


@pytest.mark.parametrize(
    ("inputs", "target", "where", "count"),
    [
        (["time", "depth"], "temp", "qc == 1", 9),
        (["time", "depth"], "temp", "level_qc == 1", 6),
        (["time", "depth"], "temp", "ok == 1 and scale == 3", 9),
        (["time", "depth"], "temp", "upside == 1", 9),
        (["time"], "u", "qc0 == 1", 3),
        (["time"], "u", "scale == 3", 6),
        (["time", "lat", "lon"], "u", "map_qc == 1", 24),
    ],
)
def test_a_condition_of_the_dimensions_of_rows_is_taken(
    tmp_path: Path, inputs: list[str], target: str, where: str, count: int
) -> None:
    rows, _ = rows_of(write(sections(), tmp_path, "netcdf4"), inputs, [target], where=where)
    assert len(rows) == count


def test_observations_do_not_multiply_trajectories(tmp_path: Path) -> None:
    """Of a ragged array: what a trajectory has, and a flag of each of its observations."""
    data = xr.Dataset(
        {
            "drogue": ("traj", [1.0, 0, 1]),
            "rowsize": ("traj", [2, 1, 3], {"sample_dimension": "obs"}),
            "qc": ("obs", [1, 4, 1, 1, 4, 1]),
            "x": ("obs", np.arange(6.0)),
        }
    )
    path = write(data, tmp_path, "netcdf4")
    with pytest.raises(InputError, match=r"--where: .*'qc' has the dimension obs"):
        rows_of(path, ["drogue"], where="qc == 1")
    assert len(rows_of(path, ["drogue", "x"], where="qc == 1")[0]) == 4
    (tmp_path / "rows.zarr").rename(tmp_path / "first.zarr")
    assert rows_of(path, ["x"], where="drogue == 1")[0].tolist() == [[0], [1], [3], [4], [5]]


def test_files_side_by_side_have_dimensions_of_their_own(tmp_path: Path) -> None:
    """The cells of one file beside the rows of another, of which there are as many."""
    data = sections()
    path = write(data, tmp_path, "netcdf4")
    np.savetxt(tmp_path / "b.csv", np.arange(18), header="v", comments="")
    out = tmp_path / "s.zarr"
    assert ingest([f"{path}+{tmp_path / 'b.csv'}"], out, inputs=["v"], where="qc == 1") == 9
    with pytest.raises(InputError, match="'qc' has the dimension depth"):
        source = f"{path}+{tmp_path / 'b.csv'}"
        ingest([source], tmp_path / "t.zarr", inputs=["v", "time"], where="qc == 1")
