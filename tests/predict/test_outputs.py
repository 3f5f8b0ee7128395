"""What predictions are called and say of themselves, and scores of tables whose columns may be called otherwise."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from command_line import INDEPENDENT, call, write_job

from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.predict import predict, score
from dorff.predict.renaming import Renaming

INPUTS = ["x", "colour", "size", "when", "when:year"]
LENGTHS = [1.0] * 5 + [1e7, 1.0, 1.0]
UNITS = {"units": "degC", "standard_name": "sea_water_temperature", "long_name": "temperature"}


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """Rows of a number, a category, one in an order, a time, two targets, a weight and a label."""
    rng = np.random.default_rng(seed)
    x, colour = rng.uniform(-1, 1, n), rng.choice(["blue", "green", "red"], n)
    hours = rng.integers(0, 8000, n)
    frame = pd.DataFrame({"x": x, "colour": colour, "size": rng.choice(["big", "small"], n)})
    frame["when"] = (pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, "h")).strftime("%Y-%m-%dT%H:%M:%S")
    frame["u"] = np.sin(3 * x) + (colour == "red") + 0.05 * rng.standard_normal(n)
    frame["v"] = np.cos(3 * x) + 0.05 * rng.standard_normal(n)
    frame["w"], frame["kind"] = rng.integers(1, 4, n), np.where(x + 0.1 * rng.standard_normal(n) > 0, "yes", "no")
    frame["known"] = (np.arange(n) % 4 > 0) * 1
    return frame


def grid(path: Path, *, lon: str = "lon", lat: str = "lat", engine: Any = "netcdf4") -> xr.Dataset:
    """A temperature over (lat, lon), without values in a corner; as NetCDF, or Zarr where `path` ends so."""
    latitudes, longitudes = np.linspace(50, 51, 12), np.linspace(0, 1, 16)
    values = np.sin(3 * latitudes)[:, None] + np.cos(3 * longitudes)
    values[:3, :4] = np.nan
    dataset = xr.Dataset(
        {"t": ((lat, lon), values, UNITS)},
        {
            lat: (lat, latitudes, {"units": "degrees_north", "standard_name": "latitude", "axis": "Y"}),
            lon: (lon, longitudes, {"units": "degrees_east", "long_name": "degrees east of Greenwich"}),
        },
    )
    if path.suffix == ".zarr":
        dataset.to_zarr(path, zarr_format=3, consolidated=False)
    else:
        dataset.to_netcdf(path, engine=engine)
    return dataset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of a table: `a` (least squares), `q` (quantiles), `c` (classes); and `sea`, of a grid."""
    folder = tmp_path_factory.mktemp("outputs")
    table(600).to_csv(folder / "a.csv", index=False)
    table(200, seed=1).to_csv(folder / "new.csv", index=False)
    options: dict[str, Any] = {"inputs": INPUTS, "ordered": {"size": ["small", "big"]}, "weights": "w"}
    options |= {"also": {"sure": "known"}}
    ingest([folder / "a.csv"], folder / "a.zarr", targets=["u", "v"], **options)
    ingest([folder / "a.csv"], folder / "c.zarr", classes="kind", **options)
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": LENGTHS}}
    data = {"weights": "weights", "labelled": "known"}
    fits: dict[str, dict[str, Any]] = {
        "a": {"data": {"store": "a.zarr", **data}, "solve": {"conformal": True}},
        "q": {"data": {"store": "a.zarr"}, "solve": {"loss": {"quantiles": [0.05, 0.5]}}},
        "c": {"data": {"store": "c.zarr", "targets": {"classes": "classes"}, **data}},
        "sea": {"data": {"store": "sea.zarr", "nan": "drop"}, "kernel": INDEPENDENT},
    }
    fits["q"]["solve"]["ridge"] = [1e-3]
    grid(folder / "sea.nc")
    ingest([folder / "sea.nc"], folder / "sea.zarr", inputs=["lon", "lat"], targets=["t"])
    for name, job in fits.items():
        job = {"kernel": kernel, "state": f"runs/{name}", "model": name} | job
        done = call("fit", write_job(folder / f"{name}.yaml", **job))
        assert done.exit_code == 0, done.output
    return folder


def answer(*words: object) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(*words: object) -> str:
    done = call(*words)
    assert done.exit_code == 3, done.output
    return done.stderr


# What predictions are called


@pytest.mark.parametrize(
    ("model", "words", "wanted"),
    [
        ("a", ["--std", "--bands", "0.9"], ["predicted", "std", "low_90", "high_90"]),
        ("q", [], ["q5", "q50"]),
    ],
)
def test_no_prediction_is_called_as_a_target(
    place: Path, tmp_path: Path, model: str, words: list[str], wanted: list[str]
) -> None:
    names = {f"{target}_{ending}" for target in ("u", "v") for ending in wanted}
    assert call("predict", place / model, place / "new.csv", tmp_path / "o.csv", *words).exit_code == 0
    assert {*pd.read_csv(tmp_path / "o.csv").columns} == {*INPUTS[:4], "when:year:sin", "when:year:cos", *names}
    assert call("predict", place / model, place / "new.csv", tmp_path / "o.nc", *words).exit_code == 0
    with xr.open_dataset(tmp_path / "o.nc") as written:
        assert {*written.data_vars} == names
    assert call("predict", place / model, place / "new.csv", tmp_path / "o.zarr", *words).exit_code == 0
    columns = zarr.open_group(tmp_path / "o.zarr", mode="r").attrs["columns"]
    assert {name for array in columns.values() for name in array} == names
    measured = pd.read_csv(place / "new.csv")
    together = measured.join(pd.read_csv(tmp_path / "o.csv")[sorted(names)], validate="1:1")
    assert {"u", *names} <= {*together.columns}


def test_of_classes_too(place: Path, tmp_path: Path) -> None:
    assert call("predict", place / "c", place / "new.csv", tmp_path / "o.csv").exit_code == 0
    written = pd.read_csv(tmp_path / "o.csv")
    assert {"yes_probability", "no_probability", "class_predicted"} <= {*written.columns}
    assert (written["class_predicted"] == pd.read_csv(place / "new.csv")["kind"]).mean() > 0.85


def test_rows_without_a_prediction_have_no_class(place: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(place / "new.csv")
    number = next(name for name in rows.columns if pd.api.types.is_float_dtype(rows[name]))
    rows.loc[[0, 3], number] = np.nan
    rows.to_csv(tmp_path / "gaps.csv", index=False)
    for name in ("o.csv", "o.nc", "o.zarr"):
        assert call("predict", place / "c", tmp_path / "gaps.csv", tmp_path / name).exit_code == 0
    written = pd.read_csv(tmp_path / "o.csv")["class_predicted"]
    without = np.flatnonzero(written.isna())
    assert without.tolist() == [0, 3]
    with xr.open_dataset(tmp_path / "o.nc") as opened:
        assert np.flatnonzero(opened["class_predicted"].values.astype(str) == "").tolist() == [0, 3]
    group = zarr.open_group(tmp_path / "o.zarr", mode="r")
    codes = np.asarray(group["classes"][:, 0])
    assert np.flatnonzero(codes == -1).tolist() == [0, 3]
    assert group.attrs["dorff"]["counts"]["classes"] == np.bincount(codes[codes >= 0], minlength=2).tolist()


@pytest.mark.parametrize(
    ("model", "column", "words"),
    [("a", "u_predicted", []), ("a", "v_low_90", ["--bands", "0.9"]), ("q", "u_q5", []), ("c", "class_predicted", [])],
)
def test_a_table_that_has_a_column_of_that_name_is_refused(
    place: Path, tmp_path: Path, model: str, column: str, words: list[str]
) -> None:
    table(20).assign(**{column: 1.0}).to_csv(tmp_path / "t.csv", index=False)
    assert column in refused("predict", place / model, tmp_path / "t.csv", tmp_path / "o.csv", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_predictions_as_inputs_of_a_model_do_not_hide_its_own(place: Path, tmp_path: Path) -> None:
    """An input that is called u_predicted was overwritten in the table."""
    table(200).rename(columns={"v": "u_predicted"}).to_csv(tmp_path / "t.csv", index=False)
    ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=["x", "u_predicted"], targets=["u"])
    job = write_job(tmp_path / "j.yaml", data={"store": "s.zarr"}, kernel=INDEPENDENT, model="m", state="st")
    assert call("fit", job).exit_code == 0
    assert "u_predicted" in refused("predict", tmp_path / "m", tmp_path / "s.zarr", tmp_path / "o.nc")
    assert call("predict", tmp_path / "m", tmp_path / "s.zarr", tmp_path / "o.zarr").exit_code == 0


# Scores of tables


@pytest.mark.parametrize("model", ["a", "q", "c"])
def test_a_table_has_the_score_of_its_data_set(place: Path, tmp_path: Path, model: str) -> None:
    columns: dict[str, Any] = {"classes": "kind"} if model == "c" else {"targets": ["u", "v"]}
    encoding = zarr.open_group(place / "a.zarr", mode="r").attrs["dorff"]["encoding"]
    also = {"sure": "known"}
    ingest(
        [place / "new.csv"], tmp_path / "s.zarr", inputs=INPUTS, encoding=encoding, weights="w", also=also, **columns
    )
    targets = "classes" if model == "c" else "y"
    coverage = ["--coverage"] if model == "a" else []
    of_table = answer("score", place / model, place / "new.csv", *coverage)
    of_store = answer("score", place / model, tmp_path / "s.zarr", "--targets", targets, *coverage)
    assert of_table == of_store
    weighed = model != "q"
    assert of_table["rows"] == (150 if weighed else 200)
    assert of_table["weights"] == ("weights" if weighed else None)


def test_several_tables_and_tables_side_by_side(place: Path, tmp_path: Path) -> None:
    frame = table(200, seed=1)
    frame[:80].to_csv(tmp_path / "one.csv", index=False)
    frame[80:].to_parquet(tmp_path / "two.parquet")
    frame[["x", "colour", "size", "when"]].to_csv(tmp_path / "inputs.csv", index=False)
    frame[["u", "v", "w", "known"]].to_csv(tmp_path / "targets.csv", index=False)
    whole = answer("score", place / "a", place / "new.csv")
    parts = answer("score", place / "a", tmp_path / "one.csv", tmp_path / "two.parquet")
    shutil.copy(tmp_path / "one.csv", tmp_path / "same.csv")
    twice = answer("score", place / "a", tmp_path / "one.csv", tmp_path / "same.csv")
    assert twice["rows"] == 2 * answer("score", place / "a", tmp_path / "one.csv")["rows"]
    beside = answer("score", place / "a", f"{tmp_path}/inputs.csv+{tmp_path}/targets.csv")
    assert parts["rows"] == whole["rows"] and abs(parts["r2"] - whole["r2"]) < 1e-9
    assert beside["rows"] == whole["rows"] and abs(beside["r2"] - whole["r2"]) < 1e-9
    assert "a.zarr" in refused("score", place / "a", place / "new.csv", place / "a.zarr")


def test_grids_are_scored_as_netcdf_and_zarr(place: Path, tmp_path: Path) -> None:
    wanted = score(place / "sea", place / "sea.zarr", engine=SerialEngine())
    grid(tmp_path / "sea.zarr")
    for source in (place / "sea.nc", tmp_path / "sea.zarr"):
        scores = answer("score", place / "sea", source)
        assert (scores["rows"], scores["rows_dropped"]) == (12 * 16 - 12, 12) and scores["r2"] == wanted.r2


def test_scores_of_tables_understand_what_ingest_does(place: Path, tmp_path: Path) -> None:
    frame = table(40, seed=2)
    frame.loc[3, "colour"], frame.loc[5, "x"] = "pink", -9999.0
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "pink" in refused("score", place / "a", tmp_path / "t.csv")
    assert "--missing" in refused("score", place / "a", tmp_path / "t.csv", "--unknown-zero")
    words = ["--unknown-zero", "--missing", "-9999"]
    scores = answer("score", place / "a", tmp_path / "t.csv", *words)
    assert (scores["rows"], scores["rows_dropped"]) == (29, 11), "as of a fit: of gaps, and without a label"
    assert "leave" in refused("score", place / "a", place / "a.zarr", "--unknown-zero")
    assert "ingest it" in refused("score", place / "a", place / "new.csv", "--inputs", "x")
    assert "colour" in refused("score", place / "c", place / "new.csv", "--targets", "kind,colour")


ODD_TABLE = ["--skip-rows", "2", "--comment", "Total", "--delimiter", ";", "--decimal", ","]
KEPT_ROWS = ["--where", "flag in (1, 2) and x > -0.5"]


def write_odd(frame: pd.DataFrame, path: Path, flags: Any) -> None:
    """Write a report of semicolons and decimal commas, with M and *** for what is missing."""
    text = frame.assign(flag=flags).to_csv(index=False, sep=";", decimal=",", na_rep="M")
    lines = text.replace(";yes;", ";***;").splitlines()
    path.write_text("\n".join(["a report", "of x;u", *lines[:5], "Total;3", *lines[5:]]) + "\n")


def test_tables_are_read_by_the_options_of_ingest(place: Path, tmp_path: Path) -> None:
    """`predict` and `score` of an odd table give what they give of the same rows as plain CSV."""
    frame, flags = table(40, seed=3), np.resize(["1", "2", "B", "4"], 40)
    frame.loc[7, "u"] = frame.loc[9, "x"] = np.nan
    write_odd(frame, tmp_path / "odd.dat", flags)
    kept = frame[np.isin(flags, ["1", "2"]) & (frame["x"] > -0.5)]
    kept.to_csv(tmp_path / "plain.csv", index=False)
    odd = [*ODD_TABLE, *KEPT_ROWS, "--missing", "M"]

    scores = answer("score", place / "a", tmp_path / "odd.dat", *odd)
    assert scores == answer("score", place / "a", tmp_path / "plain.csv")
    assert "--missing M" in refused("score", place / "a", tmp_path / "odd.dat", *ODD_TABLE)

    for name, words in (("odd.dat", odd), ("plain.csv", [])):
        done = call("predict", place / "a", tmp_path / name, tmp_path / f"{name}.out.csv", *words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "odd.dat.out.csv").read_bytes() == (tmp_path / "plain.csv.out.csv").read_bytes()


def test_cells_that_are_left_out_leave_no_grid(place: Path, tmp_path: Path) -> None:
    words = ["--where", "lat > 50.5"]
    done = call("predict", place / "sea", place / "sea.nc", tmp_path / "o.nc", *words)
    assert done.exit_code == 0 and "96 of 192 rows were left out" in done.stderr, done.output
    assert call("predict", place / "sea", place / "sea.nc", tmp_path / "whole.nc").exit_code == 0
    whole = xr.load_dataset(tmp_path / "whole.nc").t_predicted
    found = xr.load_dataset(tmp_path / "o.nc")
    assert found.t_predicted.dims == ("row",) and found.lat.attrs["units"] == "degrees_north"
    np.testing.assert_array_equal(found.t_predicted, whole.where(whole.lat > 50.5, drop=True).values.ravel())
    assert answer("score", place / "sea", place / "sea.nc", *words)["rows"] == 96


@pytest.mark.parametrize("source", ["curved.nc", "curved.h5", "curved.zarr"])
def test_a_curved_grid_is_predicted_on_its_cells(place: Path, tmp_path: Path, source: str) -> None:
    """Its inputs have fewer dimensions than the field, which is not asked for."""
    rng = np.random.default_rng(0)
    places = {"lat": ("y", 50 + rng.random(5)), "lon": (("x", "time"), rng.random((6, 2)))}
    field = xr.Dataset({"t": (("x", "time", "y"), np.zeros((6, 2, 5)))}, places)
    if source.endswith(".zarr"):
        field.to_zarr(tmp_path / source, zarr_format=3, consolidated=False)
    else:
        field.to_netcdf(tmp_path / source, engine="netcdf4")
    cells = field.to_dataframe().reset_index()[["lon", "lat"]]
    cells.to_csv(tmp_path / "cells.csv", index=False)

    for given, out in [("cells.csv", "wanted.csv"), (source, "o.csv"), (source, "o.nc"), (source, "o.zarr")]:
        done = call("predict", place / "sea", tmp_path / given, tmp_path / out)
        assert done.exit_code == 0, done.output

    wanted = pd.read_csv(tmp_path / "wanted.csv").t_predicted
    predicted = xr.load_dataset(tmp_path / "o.nc").t_predicted
    assert predicted.dims == ("x", "time", "y")
    np.testing.assert_allclose(predicted.values.ravel(), wanted, atol=1e-9)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv").t_predicted, wanted, atol=1e-9)
    with xr.open_zarr(tmp_path / "o.zarr", consolidated=False) as stored:
        np.testing.assert_allclose(stored.y.values[:, 0], wanted, atol=1e-9)


@pytest.mark.parametrize("command", ["predict", "score"])
@pytest.mark.parametrize("name", ["lat", "lon"])
def test_a_conversion_of_units_is_said_once(place: Path, tmp_path: Path, command: str, name: str) -> None:
    """That of a column of the condition, too, which the table and its data set are both converted for."""
    degrees = grid(tmp_path / "degrees.nc")
    degrees[name] = (name, np.radians(degrees[name].values), {"units": "radian"})
    degrees.to_netcdf(tmp_path / "radians.nc")
    out = [tmp_path / "o.nc"] if command == "predict" else []
    done = call(command, place / "sea", tmp_path / "radians.nc", *out, "--where", "lat > 50.5 and lon > 0")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("units are converted") == 1


@pytest.mark.parametrize("command", ["predict", "score"])
@pytest.mark.parametrize("name", ["none.csv", "none.nc", "none.zarr", "none"])
def test_what_is_not_there_is_no_such_file(place: Path, tmp_path: Path, command: str, name: str) -> None:
    out = [tmp_path / "o.zarr"] if command == "predict" else []
    sentence = refused(command, place / "sea", tmp_path / name, *out)
    assert f"{name}: there is no such file or folder" in sentence and "Zarr" not in sentence


@pytest.mark.parametrize("command", ["predict", "score"])
@pytest.mark.parametrize("source", ["sea.nc", "sea.zarr", "new.csv"])
def test_names_that_are_there_are_said_once(place: Path, tmp_path: Path, command: str, source: str) -> None:
    if source == "sea.zarr":
        grid(tmp_path / source)
    path = tmp_path / source if source == "sea.zarr" else place / source
    model, known = ("a", "colour") if source == "new.csv" else ("sea", "lat")
    out = [tmp_path / "o.csv"] if command == "predict" else []
    sentence = refused(command, place / model, path, *out, "--rename", f"foo={known}")
    names = sentence.split("it has ")[1].split(".")[0].split(", ")
    assert known in names and len(set(names)) == len(names)


@pytest.mark.parametrize("command", ["predict", "score"])
def test_options_of_files_are_refused_of_data_sets(place: Path, tmp_path: Path, command: str) -> None:
    out = [tmp_path / "o.zarr"] if command == "predict" else []
    options = [["--where", "x > 0"], ["--missing", "M"], ["--units", "x=m"], ["--absent-chunks", "fill"]]
    options += [["--skip-rows", "1"], ["--comment", "x"], ["--delimiter", ";"], ["--decimal", ","], ["--unknown-zero"]]
    for words in options:
        assert f"leave {words[0]} out" in refused(command, place / "a", place / "a.zarr", *out, *words)
    grid_options = [words for words in options[4:8]]
    for words in grid_options:
        assert f"{words[0]} is for tables of text" in refused(command, place / "sea", place / "sea.nc", *out, *words)


def test_chunks_that_are_absent_are_filled_at_predict(place: Path, tmp_path: Path) -> None:
    grid(tmp_path / "sea.zarr")
    group = zarr.open_group(tmp_path / "sea.zarr", mode="r+")
    group.create_array("gap", shape=(12, 16), chunks=(4, 4), dtype="f8", dimension_names=("lat", "lon"))
    words = ["--where", "gap == 0"]
    assert "--absent-chunks fill" in refused("score", place / "sea", tmp_path / "sea.zarr", *words)
    assert answer("score", place / "sea", tmp_path / "sea.zarr", *words, "--absent-chunks", "fill")["rows"] == 180


def test_tables_of_targets_otherwise_named_are_scored_by_targets(place: Path, tmp_path: Path) -> None:
    frame = table(200, seed=1)
    frame.rename(columns={"u": "eastward", "v": "northward"}).to_csv(tmp_path / "t.csv", index=False)
    assert "'u'" in refused("score", place / "a", tmp_path / "t.csv")
    named = answer("score", place / "a", tmp_path / "t.csv", "--targets", "eastward,northward")
    assert named["r2"] == answer("score", place / "a", place / "new.csv")["r2"]


# Columns that are called otherwise

OTHERWISE = {"x": "place", "colour": "farbe", "size": "dim=1", "when": "time", "u": "eastward", "w": "weight"}
PAIRS = ",".join(f"{new}={old}" for old, new in OTHERWISE.items())


def test_a_table_with_other_names_is_the_same_table(place: Path, tmp_path: Path) -> None:
    table(200, seed=1).rename(columns=OTHERWISE).to_csv(tmp_path / "t.csv", index=False)
    assert "'x'" in refused("score", place / "a", tmp_path / "t.csv")
    of_table = answer("score", place / "a", tmp_path / "t.csv", "--rename", PAIRS)
    assert of_table | {"per_output": 0} == answer("score", place / "a", place / "new.csv") | {"per_output": 0}
    inputs = ",".join(pair for pair in PAIRS.split(",") if pair.endswith(("=x", "=colour", "=size", "=when")))
    for name in ("o.csv", "o.nc"):
        assert call("predict", place / "a", tmp_path / "t.csv", tmp_path / name, "--rename", inputs).exit_code == 0
    assert call("predict", place / "a", place / "new.csv", tmp_path / "same.csv").exit_code == 0
    written, same = pd.read_csv(tmp_path / "o.csv"), pd.read_csv(tmp_path / "same.csv")
    np.testing.assert_array_equal(written["u_predicted"], same["u_predicted"])
    assert {"place", "farbe", "dim=1", "time", "time:year:sin"} <= {*written.columns}


def test_a_data_set_with_other_names_is_the_same_data_set(place: Path, tmp_path: Path) -> None:
    table(200, seed=1).rename(columns=OTHERWISE).to_csv(tmp_path / "t.csv", index=False)
    names = [OTHERWISE[name] for name in INPUTS[:4]] + ["time:year"]
    kept = zarr.open_group(place / "a.zarr", mode="r").attrs["dorff"]["encoding"]
    renaming = Renaming.parse(PAIRS.split(","))
    encoding = renaming.encoding_to_table(kept, tmp_path)
    ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=names, targets=["eastward", "v"], encoding=encoding)
    pairs = ",".join(pair for pair in PAIRS.split(",") if not pair.endswith("=w"))
    scores = answer("score", place / "a", tmp_path / "s.zarr", "--rename", pairs)
    assert {*scores["per_output"]} == {"u", "v"} and scores["r2"] > 0.7
    inputs = ",".join(pair for pair in pairs.split(",") if not pair.endswith("=u"))
    assert call("predict", place / "a", tmp_path / "s.zarr", tmp_path / "o.zarr", "--rename", inputs).exit_code == 0
    predict(place / "a", place / "a.zarr", tmp_path / "p.zarr", engine=SerialEngine())


def test_arrays_and_grids_by_others_with_other_names(place: Path, tmp_path: Path) -> None:
    grid(tmp_path / "g.zarr", lon="longitude", lat="latitude")
    grid(tmp_path / "g.nc", lon="longitude", lat="latitude")
    grid(tmp_path / "same.zarr")
    pairs = "longitude=lon,latitude=lat"
    wanted = answer("score", place / "sea", place / "sea.nc")
    for source in ("g.zarr", "g.nc"):
        assert answer("score", place / "sea", tmp_path / source, "--rename", pairs) == wanted
        out = tmp_path / f"{source}.nc"
        assert call("predict", place / "sea", tmp_path / source, out, "--rename", pairs).exit_code == 0
        with xr.open_dataset(out) as written:
            assert written["t_predicted"].dims == ("latitude", "longitude")
    assert call("predict", place / "sea", tmp_path / "same.zarr", tmp_path / "o.nc").exit_code == 0
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    for name, values in (("longitude", np.linspace(0, 1, 9)), ("latitude", np.linspace(50, 51, 9))):
        group.create_array(name, data=values)
    words = ["--inputs", "longitude,latitude", "--rename"]
    assert call("predict", place / "sea", tmp_path / "rows.zarr", tmp_path / "o.csv", *words, pairs).exit_code == 0
    swapped = ["--inputs", "latitude,longitude", "--rename", pairs]
    assert "order" in refused("predict", place / "sea", tmp_path / "rows.zarr", tmp_path / "p.csv", *swapped)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ("longitud=lon,latitude=lat", ["longitud", "did you mean 'longitude'"]),
        ("longitude=lom,latitude=lat", ["lom", "did you mean 'lon'"]),
        ("longitude=lon,latitude=lon", ["lon", "twice"]),
        ("longitude=lon,longitude=lat", ["longitude", "twice"]),
        ("longitude=t,latitude=lat", ["'t'"]),
        ("longitude,latitude=lat", ["longitude", "OLD=NEW"]),
        ("=lon,latitude=lat", ["OLD=NEW"]),
    ],
)
@pytest.mark.parametrize("source", ["t.csv", "t.zarr"])
def test_names_that_do_not_fit_are_refused(
    place: Path, tmp_path: Path, source: str, pairs: str, words: list[str]
) -> None:
    pd.DataFrame({"longitude": [0.1, 0.2], "latitude": [50.0, 50.5]}).to_csv(tmp_path / "t.csv", index=False)
    ingest([tmp_path / "t.csv"], tmp_path / "t.zarr", inputs=["longitude", "latitude"])
    error = refused("predict", place / "sea", tmp_path / source, tmp_path / "o.csv", "--rename", pairs)
    assert all(word in error for word in words) and not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize("source", ["t.csv", "t.zarr"])
def test_a_name_that_is_there_already_is_not_hit_twice(place: Path, tmp_path: Path, source: str) -> None:
    columns = {"lon": [0.1, 0.2], "lat": [50.0, 50.5], "longitude": [0.3, 0.4]}
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    ingest([tmp_path / "t.csv"], tmp_path / "t.zarr", inputs=["lon", "lat", "longitude"])
    out = tmp_path / "o.csv"
    assert "'lon'" in refused("predict", place / "sea", tmp_path / source, out, "--rename", "longitude=lon")
    if source == "t.csv":  # the names are swapped
        pairs = "lat=lon,lon=lat"
        columns = {"lat": [0.1, 0.2], "lon": [50.0, 50.5]}
        pd.DataFrame(columns).to_csv(tmp_path / "s.csv", index=False)
        pd.DataFrame({"lon": columns["lat"], "lat": columns["lon"]}).to_csv(tmp_path / "r.csv", index=False)
        assert call("predict", place / "sea", tmp_path / "s.csv", out, "--rename", pairs).exit_code == 0
        assert call("predict", place / "sea", tmp_path / "r.csv", tmp_path / "p.csv").exit_code == 0
        swapped, same = pd.read_csv(out), pd.read_csv(tmp_path / "p.csv")
        np.testing.assert_array_equal(swapped["t_predicted"], same["t_predicted"])


# NetCDF


def test_netcdf_keeps_what_columns_say_of_themselves(place: Path, tmp_path: Path) -> None:
    words = ["--std", "--bands", "0.9"]
    assert call("predict", place / "sea", place / "sea.nc", tmp_path / "o.nc", *words).exit_code == 0
    with xr.open_dataset(tmp_path / "o.nc") as written, xr.open_dataset(place / "sea.nc") as given:
        for name in ("lat", "lon"):
            assert written[name].attrs == given[name].attrs
        assert UNITS.items() <= written["t_predicted"].attrs.items()
        assert written["t_predicted"].attrs["ancillary_variables"].split() == ["t_std", "t_low_90", "t_high_90"]
        assert {written[name].attrs["units"] for name in ("t_std", "t_low_90", "t_high_90")} == {"degC"}
        assert written["t_std"].attrs["standard_name"] == "sea_water_temperature standard_error"
        assert "temperature" in written["t_low_90"].attrs["long_name"]
        assert written.attrs["Conventions"].startswith("CF-1.") and "t predicted" in written.attrs["title"]
        for key in ("history", "source"):
            assert "model sea, version v" in written.attrs[key] and "dorff " in written.attrs[key]


def test_netcdf_is_the_same_bytes_where_its_time_is_given(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    for name in ("a.nc", "b.nc"):
        assert call("predict", place / "a", place / "new.csv", tmp_path / name, "--std").exit_code == 0
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()
    with h5py.File(tmp_path / "a.nc") as file:
        assert file.attrs["history"].startswith("1970-01-02T00:00:00Z dorff ")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert "SOURCE_DATE_EPOCH" in refused("predict", place / "a", place / "new.csv", tmp_path / "c.nc")


def test_netcdf_of_rows_is_read_by_xarray_with_times_and_words(place: Path, tmp_path: Path) -> None:
    frame = table(200, seed=1)
    frame.loc[0, "colour"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert call("predict", place / "a", tmp_path / "t.csv", tmp_path / "o.nc").exit_code == 0
    with xr.open_dataset(tmp_path / "o.nc") as written:
        assert (written["when"].to_numpy() == pd.to_datetime(frame["when"]).to_numpy()).all()
        assert written["colour"].to_numpy()[1:].tolist() == frame["colour"].tolist()[1:]
        assert np.isnan(written["u_predicted"][0]) and written["u_predicted"].notnull()[1:].all()
        assert {"x", "colour", "size", "when", "when_year_sin"} <= {*written.coords}
        assert written["when_year_sin"].attrs["long_name"] == "when:year:sin"


@pytest.mark.parametrize(
    ("columns", "variables"),
    [
        (["u (m/s)", "2m temp"], {"u_m_s_", "v2m_temp"}),
        (["row", "depth.m"], {"row", "depth_m"}),
        (["a b", "a_b"], None),
    ],
)
def test_names_that_netcdf_does_not_have(tmp_path: Path, columns: list[str], variables: set[str] | None) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(size=(60, 2)), columns=columns)
    frame["y/z"] = frame.sum(axis=1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    ingest([tmp_path / "t.csv"], tmp_path / "s.zarr", inputs=columns, targets=["y/z"])
    job = write_job(tmp_path / "j.yaml", data={"store": "s.zarr"}, kernel=INDEPENDENT, model="m", state="st")
    assert call("fit", job).exit_code == 0
    if variables is None:
        assert "a_b" in refused("predict", tmp_path / "m", tmp_path / "t.csv", tmp_path / "o.nc")
        assert not (tmp_path / "o.nc").exists()
        return
    assert call("predict", tmp_path / "m", tmp_path / "t.csv", tmp_path / "o.nc").exit_code == 0
    with xr.open_dataset(tmp_path / "o.nc") as written:
        assert {*written.coords} == variables and {*written.data_vars} == {"y_z_predicted"}


def test_a_renaming_is_checked_where_it_is_made() -> None:
    for pairs in (["a=b", "a=c"], ["a=b", "c=b"], ["a="], ["a"]):
        with pytest.raises(InputError, match="--rename"):
            Renaming.parse(pairs)
    assert Renaming.parse(["a=1=b"]).names == {"a=1": "b"}
