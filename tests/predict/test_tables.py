"""Predictions for tables that are no data sets, and as CSV and NetCDF."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pyarrow.csv as pacsv
import pytest
import xarray as xr
import zarr
from command_line import CURL, INDEPENDENT, call, field, write_csv, write_job

from dorff.data import ingest, open_dataset
from dorff.data.array_readers import VariablesReader
from dorff.data.nodes import GridError
from dorff.engine import SerialEngine
from dorff.errors import InputError, MissingArrayError, PatternsError
from dorff.kernels.scalar import FloatArray
from dorff.predict import Uncertainty, predict, score
from dorff.predict.tables import TableOptions, Tables, rows_to_score

INPUTS = "x,colour,size,when,when:year"


def write_table(path: Path, n: int, seed: int = 0) -> Path:
    """Rows of x; colour; size; when; u, as others write them."""
    rng = np.random.default_rng(seed)
    colours, sizes = rng.choice(["red", "blue", "green"], n), rng.choice(["small", "big"], n)
    when = np.datetime64("2024-01-01T12:30") + rng.integers(0, 500_000, n) * np.timedelta64(1, "m")
    x = np.round(rng.uniform(-1, 1, n), 6)
    u = np.sin(3 * x) + (colours == "red") + 0.1 * rng.standard_normal(n)
    rows = [f"{a};{b};{c};{d};{e}".replace(".", ",") for a, b, c, d, e in zip(x, colours, sizes, when, u, strict=True)]
    path.write_text("\n".join(["x;colour;size;when;u", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a table, one of a grid, and data beside them."""
    folder = tmp_path_factory.mktemp("tables")
    ordered = {"size": ["small", "big"]}
    ingest(
        [write_table(folder / "a.csv", 600)],
        folder / "a.zarr",
        inputs=INPUTS.split(","),
        targets=["u"],
        ordered=ordered,
    )
    write_table(folder / "new.csv", 70, seed=1)
    kernel = {**INDEPENDENT, "scalar": {"type": "gaussian", "lengthscale": [1.0] * 5 + [1e7, 1.0, 1.0]}}
    job = {"data": {"store": "a.zarr"}, "kernel": kernel, "state": "runs/a", "model": "a"}
    assert call("fit", write_job(folder / "a.yaml", **job)).exit_code == 0
    grid(folder / "sea.nc")
    ingest([folder / "sea.nc"], folder / "sea.zarr", inputs=["lon", "lat"], targets=["u", "v"])
    job = {"data": {"store": "sea.zarr", "nan": "drop"}, "kernel": CURL, "state": "runs/sea", "model": "sea"}
    assert call("fit", write_job(folder / "sea.yaml", **job)).exit_code == 0
    return folder


def grid(path: Path) -> None:
    """A field over (lat, lon) with a gap."""
    u, v = field(30 * 20)[:, 2:].T.reshape(2, 30, 20).copy()
    u[3, 4] = np.nan
    places = {"lat": ("lat", np.linspace(50, 51, 30), {"units": "degrees_north"}), "lon": np.linspace(0, 1, 20)}
    xr.Dataset({"u": (("lat", "lon"), u), "v": (("lat", "lon"), v)}, places).to_netcdf(path, engine="scipy")


def values(store: Path, array: str = "y") -> FloatArray:
    return np.asarray(zarr.open_array(str(store / array), mode="r")[:])


def test_a_table_is_encoded_as_the_model_was_and_comes_back_with_its_words(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = call("predict", place / "a", place / "new.csv", out, "--std", "--bands", "0.9", "--json")
    assert done.exit_code == 0 and '"rows": 70, "nan_rows": 0' in done.stdout, done.output
    assert call(
        "ingest", place / "new.csv", tmp_path / "new.zarr", "--inputs", INPUTS, "--targets", "u", "--like", place / "a"
    ).exit_code == 0  # fmt: skip
    predict(place / "a", tmp_path / "new.zarr", tmp_path / "out.zarr", engine=SerialEngine())
    given = pacsv.read_csv(place / "new.csv", parse_options=pacsv.ParseOptions(delimiter=";"))
    table = pacsv.read_csv(out)
    assert set(table.column_names) == {
        "x", "colour", "size", "when", "when:year:sin", "when:year:cos", "u_predicted", "u_std", "u_low_90", "u_high_90"
    }  # fmt: skip
    for name in ("colour", "size", "when"):
        assert table[name].cast("string").to_pylist() == given[name].cast(table[name].type).cast("string").to_pylist()
    np.testing.assert_array_equal(table["u_predicted"], values(tmp_path / "out.zarr")[:, 0])
    assert (np.asarray(table["u_low_90"]) < np.asarray(table["u_predicted"])).all()
    assert score(place / "a", tmp_path / "new.zarr", engine=SerialEngine()).r2 > 0.8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.zarr", "out.csv", "out.zarr"]


def test_gaps_are_empty_and_new_categories_zero(place: Path, tmp_path: Path) -> None:
    rows = ["x;colour;size;when", "1;red;big;2024-05-05", "NA;red;;", "1;pink;small;2024-05-05"]
    (tmp_path / "new.csv").write_text("\n".join(rows))
    words = ("predict", place / "a", tmp_path / "new.csv", tmp_path / "out.csv")
    done = call(*words)
    assert done.exit_code == 3 and "new.csv: column 'colour': has 'pink', which is none of its 3" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]
    assert call(*words, "--unknown-zero").exit_code == 0
    table = pacsv.read_csv(tmp_path / "out.csv", convert_options=pacsv.ConvertOptions(strings_can_be_null=True))
    assert [value is None for value in table["u_predicted"].to_pylist()] == [False, True, False]
    assert table["colour"].to_pylist() == ["red", "red", None] and table["size"].to_pylist() == ["big", None, "small"]
    assert table["x"].to_pylist() == [1, None, 1] and table["when"].to_pylist()[1] is None


def test_netcdf_has_the_inputs_as_coordinates(place: Path, tmp_path: Path) -> None:
    assert call("predict", place / "a", place / "a.zarr", tmp_path / "out.nc", "--std").exit_code == 0
    predict(place / "a", place / "a.zarr", tmp_path / "out.zarr", engine=SerialEngine())
    with h5py.File(tmp_path / "out.nc") as file:
        np.testing.assert_array_equal(file["u_predicted"][:], values(tmp_path / "out.zarr")[:, 0])
        near = ["x", "size", "when", "when_year_sin", "when_year_cos", "colour"]
        assert file["u_predicted"].attrs["coordinates"].split() == near
        assert set(file["colour"].asstr()[:]) == {"red", "blue", "green"} and file["u_std"].shape == (600,)
        assert file["when"].attrs["units"] == "seconds since 2024-08-04T00:00:00"
    assert VariablesReader(str(tmp_path / "out.nc")).variables["u_predicted"].dims == ("row",)


def test_a_grid_comes_back_as_a_grid(place: Path, tmp_path: Path) -> None:
    assert call("predict", place / "sea", place / "sea.nc", tmp_path / "out.nc", "--std").exit_code == 0
    predict(place / "sea", place / "sea.zarr", tmp_path / "out.zarr", engine=SerialEngine())
    given = xr.open_dataset(place / "sea.nc", engine="scipy")
    with h5py.File(tmp_path / "out.nc") as file:
        for place_, name in enumerate(("u", "v")):
            np.testing.assert_array_equal(
                file[f"{name}_predicted"][:], values(tmp_path / "out.zarr")[:, place_].reshape(30, 20)
            )
        np.testing.assert_array_equal(file["lat"][:], given["lat"])
        assert file["lat"].attrs["units"] == "degrees_north" and file["v_std"].shape == (30, 20)
    variables = VariablesReader(str(tmp_path / "out.nc")).variables
    assert variables["u_predicted"].dims == ("lat", "lon")
    assert set(variables) == {"lat", "lon", "u_predicted", "v_predicted", "u_std", "v_std"}


def test_a_file_gives_a_data_set_too(place: Path, tmp_path: Path) -> None:
    assert call("predict", place / "sea", place / "sea.nc", tmp_path / "out.zarr").exit_code == 0
    predict(place / "sea", place / "sea.zarr", tmp_path / "same.zarr", engine=SerialEngine())
    np.testing.assert_array_equal(values(tmp_path / "out.zarr"), values(tmp_path / "same.zarr"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.zarr", "same.zarr"]


def test_classes_have_their_words(place: Path, tmp_path: Path) -> None:
    ingest([place / "a.csv"], tmp_path / "c.zarr", inputs=["x", "u"], classes="colour")
    kernel = {**INDEPENDENT, "output": "simplex"}
    data = {"store": "c.zarr", "targets": {"classes": "classes"}}
    job = write_job(tmp_path / "c.yaml", data=data, kernel=kernel, state="runs/c", model="c")
    assert call("fit", job).exit_code == 0
    assert call("predict", tmp_path / "c", place / "new.csv", tmp_path / "out.csv").exit_code == 0
    table = pacsv.read_csv(tmp_path / "out.csv")
    names = [name.removesuffix("_probability") for name in table.column_names if name.endswith("_probability")]
    likeliest = np.argmax(np.column_stack([table[f"{name}_probability"] for name in names]), axis=1)
    assert sorted(names) == ["blue", "green", "red"]
    assert table["class_predicted"].to_pylist() == [names[place] for place in likeliest]


def test_a_data_set_that_is_encoded_otherwise_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("x;colour;size;when;u\n1;red;big;2025-01-01;1\n2;blue;small;2025-01-02;1\n")
    ordered = {"size": ["small", "big"]}
    ingest([tmp_path / "b.csv"], tmp_path / "b.zarr", inputs=INPUTS.split(","), targets=["u"], ordered=ordered)
    for run in (score, lambda *where, engine: predict(*where, tmp_path / "o.zarr", engine=engine)):
        with pytest.raises(InputError, match=r"b\.zarr: its input (colour|when) is encoded otherwise than the m"):
            run(place / "a", tmp_path / "b.zarr", engine=SerialEngine())
    assert open_dataset(tmp_path / "b.zarr").encoding["when"] == {"time": ["seconds since 2025-01-01T00:00:00"]}


def test_a_model_of_nameless_inputs_wants_a_data_set(place: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "sea.csv", field(10))
    done = call("predict", place / "sea", tmp_path / "sea.csv", tmp_path / "out.csv")
    assert done.exit_code == 3 and "sea.csv: has no column 'lon'; its columns are: a, b, u, v" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["sea.csv"]


def test_a_score_leaves_out_the_rows_that_the_jobs_column_says_have_no_label(place: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, known = rng.uniform(-1, 1, 500), (np.arange(500) % 5 > 0) * 1.0
    np.savez(tmp_path / "a.npz", x=x, known=known, y=np.where(known == 1, np.sin(3 * x), 1e3))
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["x"], targets=["y"], also={"known": "known"})
    job = {"data": {"store": "s.zarr", "labelled": "known"}, "kernel": INDEPENDENT, "model": "m"}
    assert call("fit", write_job(tmp_path / "job.yaml", **job)).exit_code == 0
    scores = score(tmp_path / "m", tmp_path / "s.zarr", engine=SerialEngine())
    assert (scores.rows, scores.rows_dropped) == (400, 100) and scores.rmse < 0.01
    ingest([tmp_path / "a.npz"], tmp_path / "all.zarr", inputs=["x"], targets=["y"])
    assert score(tmp_path / "m", tmp_path / "all.zarr", engine=SerialEngine()).rmse > 100


def test_numbers_that_stand_for_none_are_remembered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 200).round(4)
    rows = [f"{-9999 if row % 40 == 7 else one},{np.sin(one):.4f}" for row, one in enumerate(x)]
    (tmp_path / "a.csv").write_text("\n".join(["x,u", *rows]))
    named = {"inputs": ["x"], "targets": ["u"]}
    with pytest.raises(InputError, match="--missing -9999"):
        ingest([tmp_path / "a.csv"], tmp_path / "a.zarr", **named)
    ingest([tmp_path / "a.csv"], tmp_path / "a.zarr", **named, missing=[-9999, "M"])
    job = {"data": {"store": "a.zarr", "nan": "drop"}, "kernel": INDEPENDENT, "state": "runs/a", "model": "a"}
    assert "NaN" not in call("plan", write_job(tmp_path / "a.yaml", **job)).output
    refused = write_job(tmp_path / "b.yaml", **{**job, "data": {"store": "a.zarr"}})
    said = call("plan", refused).stderr
    assert "a.zarr: 5 of 200 rows came with NaN or infinity in some column" in said and "data.nan" in said
    assert call("fit", refused).exit_code == 3 and call("fit", tmp_path / "a.yaml").exit_code == 0
    (tmp_path / "new.csv").write_text("x,u\n0.5,1\n-9999,1\n-7,1\nM,1\n")
    done = call("predict", tmp_path / "a", tmp_path / "new.csv", tmp_path / "out.csv", "--missing", "-7")
    assert done.exit_code == 0 and "3 of 4 rows are NaN" in done.stderr, "those given and the model's"
    done = call("predict", tmp_path / "a", tmp_path / "new.csv", tmp_path / "own.csv")
    assert done.exit_code == 0 and "2 of 4 rows are NaN" in done.stderr
    assert (
        call(
            "ingest", tmp_path / "new.csv", tmp_path / "like.zarr", "--inputs", "x", "--like", tmp_path / "a"
        ).exit_code
        == 0
    )
    np.testing.assert_array_equal(values(tmp_path / "like.zarr", "x")[:, 0], [0.5, np.nan, -7, np.nan])
    ingest([tmp_path / "new.csv"], tmp_path / "none.zarr", **named, missing=["none", "M"])
    assert open_dataset(tmp_path / "none.zarr", inputs=["x"], targets=None).missing == ("M",)
    told = list[str]()
    (tmp_path / "more.csv").write_text("x,u\n0.5,1\n0.25,1\n")
    ingest([tmp_path / "more.csv"], tmp_path / "a.zarr", **named, append=True, missing=["-8"], notice=told.append)
    ingest([tmp_path / "new.csv"], tmp_path / "a.zarr", **named, append=True)
    np.testing.assert_array_equal(values(tmp_path / "a.zarr", "x")[-6:, 0], [0.5, 0.25, 0.5, np.nan, -7, np.nan])
    dataset = open_dataset(tmp_path / "a.zarr", inputs=["x"], targets=None)
    assert dataset.missing == ("-9999", "M", "-8") and dataset.unusable == 7, "five, and two appended"
    assert [one.split(":")[0] for one in told] == ["--missing -8"], "of what was given before nothing is said"


@pytest.mark.parametrize("name", ["out.parquet", "out.npz", "out.h5", "out.csv.gz", "out.Parquet"])
def test_files_that_are_not_written_are_refused(name: str, place: Path, tmp_path: Path) -> None:
    for rows in (place / "new.csv", place / "a.zarr"):
        done = call("predict", place / "a", rows, tmp_path / name)
        assert done.exit_code == 3 and "predictions can be .zarr, .csv or .nc, not ." in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [(0, "NaN", "x"), (1, "", "u"), (0, "inf", "x"), (1, "-inf", "u")],
)
def test_rows_that_cannot_be_scored_are_named_and_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: int, value: str, named: str
) -> None:
    """By file, row, column and number; the condition in the message leaves them out."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).uniform(0, 1, 200).round(4)
    lines = [[f"{one}", f"{np.sin(one):.4f}"] for one in x]
    write = Path("a.csv").write_text
    write("\n".join(["x,u", *map(",".join, lines)]) + "\n")
    ingest(["a.csv"], "a.zarr", inputs=["x"], targets=["u"])
    job = {"data": {"store": "a.zarr"}, "kernel": INDEPENDENT, "state": "runs/a", "model": "a"}
    assert call("fit", write_job(tmp_path / "a.yaml", **job)).exit_code == 0
    for row in (7, 9, 150):
        lines[row][column] = value
    Path("b.csv").write_text("\n".join(["x,u", *map(",".join, lines)]) + "\n")
    ingest(["b.csv"], "b.zarr", inputs=["x"], targets=["u"])
    for rows, shown in ((["b.csv"], "b.csv"), (["a.csv", "b.csv"], "a.csv and 1 more"), (["b.zarr"], "b.zarr")):
        done = call("score", "a", *rows)
        number = 207 if len(rows) > 1 else 7
        assert done.exit_code == 3 and f"{shown}" in done.stderr and "dorff-score" not in done.stderr
        assert f"row {number}, column {named}: expected a finite number" in done.stderr
        assert f"3 of {len(rows) * 200} rows came" in done.stderr
    (condition,) = re.findall('--where "([^"]*)"', done.stderr)
    scored = call("score", "a", "b.csv", "--where", condition, "--json")
    assert scored.exit_code == 0 and json.loads(scored.stdout)["rows"] == 197, scored.stderr


@pytest.mark.parametrize("kind", [InputError, MissingArrayError, PatternsError, GridError])
def test_what_is_refused_of_a_file_keeps_its_class(place: Path, tmp_path: Path, kind: type[InputError]) -> None:
    """A caller may go on after some refusals, and the message names the file."""
    new, options = place / "new.csv", TableOptions()
    asked = Uncertainty(False, False, ())
    with (
        pytest.raises(InputError, match=re.escape(f"{new}: is wrong")) as predicting,
        Tables.opened(place / "a", new, tmp_path / "out.csv", asked=asked, options=options) as tables,
    ):
        raise kind(f"{tables.store}: is wrong")
    with (
        pytest.raises(InputError, match=re.escape(f"{new} and 1 more files: is wrong")) as scoring,
        rows_to_score(place / "a", [new, new], ["u"], options=options) as rows,
    ):
        raise kind(f"{rows.store}: is wrong")
    assert predicting.type is scoring.type is kind
