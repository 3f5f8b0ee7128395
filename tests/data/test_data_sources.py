"""Every file format, read into the same rows; and every way in which a file can be wrong."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from scipy.io import netcdf_file

from dorff.data import ingest, open_dataset
from dorff.errors import InputError

Array = npt.NDArray[np.float64]
ROWS: Array = np.round(np.random.default_rng(0).standard_normal((2500, 4)), 6)
NAMES = ("a", "b", "u", "v")


def write_csv(path: Path, rows: Array = ROWS, *, header: bool = True, delimiter: str = ",") -> Path:
    lines = [delimiter.join(NAMES[: rows.shape[1]])] if header else []
    text = "\n".join(lines + [delimiter.join(map(repr, row)) for row in rows.tolist()]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_netcdf3(path: Path, rows: Array) -> None:
    with netcdf_file(path, "w") as file:
        file.createDimension("row", None)
        file.createDimension("column", 2)
        for name, values in (("a", rows[:, 0]), ("b", rows[:, 1])):
            file.createVariable(name, "d", ("row",))[:] = values
        file.createVariable("w", "d", ("row", "column"))[:] = rows[:, 2:]


def write_hdf5(path: Path, rows: Array) -> None:
    with h5py.File(path, "w") as file:
        file["a"], file["group/b"], file["w"] = rows[:, 0], rows[:, 1], rows[:, 2:]


WRITERS: dict[str, tuple[Callable[[Path, Array], object], list[str], list[str]]] = {
    "r.csv": (write_csv, ["a", "b"], ["u", "v"]),
    "r.csv.gz": (write_csv, ["a", "b"], ["u", "v"]),
    "r.tsv": (lambda p, r: write_csv(p, r, delimiter="\t"), ["a", "b"], ["u", "v"]),
    "r.data": (lambda p, r: write_csv(p, r, header=False), ["c0", "c1"], ["c2", "c3"]),
    "r.parquet": (
        lambda p, r: pq.write_table(pa.table(dict(zip(NAMES, r.T, strict=True))), p),
        ["a", "b"],
        ["u", "v"],
    ),
    "r.npy": (np.save, ["c0", "c1"], ["c2", "c3"]),
    "f.npy": (lambda p, r: np.save(p, np.asfortranarray(r)), ["c0", "c1"], ["c2", "c3"]),
    "r.npz": (lambda p, r: np.savez_compressed(p, a=r[:, 0], b=r[:, 1], w=r[:, 2:]), ["a", "b"], ["w"]),
    "f.npz": (lambda p, r: np.savez(p, z=np.asfortranarray(r)), ["z0", "z1"], ["z2", "z3"]),
    "big.npz": (lambda p, r: np.savez(p, z=r.astype(">f8")), ["z0", "z1"], ["z2", "z3"]),
    "r.h5": (write_hdf5, ["a", "group/b"], ["w"]),
    "r.nc": (write_netcdf3, ["a", "b"], ["w0", "w1"]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_its_rows(tmp_path: Path, name: str) -> None:
    write, inputs, targets = WRITERS[name]
    write(tmp_path / name, ROWS)
    out = tmp_path / "out.zarr"
    assert ingest([tmp_path / name], out, inputs=inputs, targets=targets) == len(ROWS)
    X, Y = open_dataset(out).read(0, len(ROWS))
    np.testing.assert_array_equal(X, ROWS[:, :2])
    np.testing.assert_array_equal(Y, ROWS[:, 2:])


def test_side_by_side_files_make_rows(tmp_path: Path) -> None:
    write_csv(tmp_path / "loc.csv", ROWS[:, :2], header=False)
    np.save(tmp_path / "mag.npy", ROWS[:, 2:])
    source = f"{tmp_path}/loc.csv+{tmp_path}/mag.npy"
    ingest([source], tmp_path / "o.zarr", inputs=["c3", "c0"], targets=["c1", "c2"])
    X, Y = open_dataset(tmp_path / "o.zarr").read(0, len(ROWS))
    np.testing.assert_array_equal(np.hstack([X, Y]), ROWS[:, [3, 0, 1, 2]])


def test_side_by_side_files_of_different_length_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "loc.csv", ROWS[:, :2], header=False)
    write_csv(tmp_path / "mag.csv", ROWS[:-3, 2:], header=False)
    with pytest.raises(InputError, match=r"loc\.csv has 2500 rows but .*mag\.csv has 2497"):
        ingest([f"{tmp_path}/loc.csv+{tmp_path}/mag.csv"], tmp_path / "o.zarr", inputs=["c0"], targets=["c3"])
    assert not (tmp_path / "o.zarr").exists()


def test_a_plus_in_a_file_name_is_only_a_plus(tmp_path: Path) -> None:
    write_csv(tmp_path / "a+b.csv")
    assert ingest([tmp_path / "a+b.csv"], tmp_path / "o.zarr", inputs=["a"], targets=[]) == len(ROWS)


def test_netcdf4_is_unpacked(tmp_path: Path) -> None:
    values = np.array([0.5, np.nan, -3.25, 100.0])
    data = xr.Dataset({"t": ("row", values), "f": ("row", values.astype("f4"))})
    packed = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 10.0, "_FillValue": -99}
    encoding = {"t": packed, "f": {"_FillValue": np.float32(-9.9)}}
    with h5py.File(tmp_path / "p.nc", "w") as file:  # what a NetCDF4 writer stores of this encoding
        for name in ("t", "f"):
            variable = xr.conventions.encode_cf_variable(xr.Variable("row", data[name], encoding=encoding[name]))
            stored = file.create_dataset(name, data=variable.values)
            stored.attrs.update({k: np.atleast_1d(v) for k, v in variable.attrs.items()})
        assert file["t"].dtype == np.int16
    ingest([tmp_path / "p.nc"], tmp_path / "o.zarr", inputs=["t"], targets=["f"])
    X, Y = open_dataset(tmp_path / "o.zarr").read(0, 4)
    np.testing.assert_array_equal(X[:, 0], values)
    np.testing.assert_array_equal(Y[:, 0], values)
    assert open_dataset(tmp_path / "o.zarr").rows_spec()["arrays"] == {
        "x": {"dtype": "float64", "columns": 1, "packing": PLAIN},
        "y": {"dtype": "float32", "columns": 1, "packing": PLAIN},
    }


PLAIN = "Packing(fills=(), scale=1.0, offset=0.0, unsigned=False, low=-inf, high=inf)"


def test_unsigned_bytes_of_netcdf3(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "u.nc", "w") as file:
        file.createDimension("row", 3)
        variable = file.createVariable("t", "b", ("row",))
        variable[:] = np.array([1, -2, -1], "i1")
        variable._Unsigned, variable._FillValue = "true", np.int8(-1)
    ingest([tmp_path / "u.nc"], tmp_path / "o.zarr", inputs=["t"], targets=[])
    X, _ = open_dataset(tmp_path / "o.zarr", targets=None).read(0, 3)
    np.testing.assert_array_equal(X[:, 0], [1.0, 254.0, np.nan])


def test_csv_as_found_in_the_wild(tmp_path: Path) -> None:
    text = '\ufeff"b,c", a ,t\r\n"1",\t2 ,"x, y"\r\n\r\nNA,-inf,\r\n,nan,z\r\n1e-320,0.1,q'
    (tmp_path / "w.csv").write_bytes(gzip.compress(text.encode()[:20]) + gzip.compress(text.encode()[20:]))
    (tmp_path / "w.csv").rename(tmp_path / "w.csv.gz")
    ingest([tmp_path / "w.csv.gz"], tmp_path / "o.zarr", inputs=["a"], targets=["b,c"])
    X, Y = open_dataset(tmp_path / "o.zarr").read(0, 4)
    np.testing.assert_array_equal(X[:, 0], [2.0, -np.inf, np.nan, 0.1])
    np.testing.assert_array_equal(Y[:, 0], [1.0, np.nan, np.nan, 1e-320])


def test_float32_is_kept_only_where_all_sources_have_it(tmp_path: Path) -> None:
    rows = ROWS.astype("f4")
    np.savez(tmp_path / "a.npz", x=rows[:, :2], y=rows[:, 2:].astype("f2"))
    np.savez(tmp_path / "b.npz", x=rows[:, :2], y=ROWS[:, 2:])
    pq.write_table(pa.table({"x0": rows[:, 0], "x1": rows[:, 1]}), tmp_path / "c.parquet")
    both = [tmp_path / "a.npz", tmp_path / "b.npz"]
    ingest(both, tmp_path / "o.zarr", inputs=["x"], targets=["y"])
    spec = open_dataset(tmp_path / "o.zarr").rows_spec()["arrays"]
    assert isinstance(spec, dict)
    assert (spec["x"]["dtype"], spec["y"]["dtype"]) == ("float32", "float64")
    X, _ = open_dataset(tmp_path / "o.zarr").read(2500, 5000)
    assert X.dtype == np.float64
    np.testing.assert_array_equal(X, rows[:, :2])
    ingest([tmp_path / "c.parquet"], tmp_path / "p.zarr", inputs=["x0", "x1"], targets=[])
    dataset = open_dataset(tmp_path / "p.zarr", targets=None)
    assert "float32" in str(dataset.rows_spec())
    ingest([tmp_path / "a.npz"], tmp_path / "p.zarr", inputs=["x"], targets=[], append=True, again=True)
    with pytest.raises(InputError, match="array x holds float32, but the sources give float64"):
        write_csv(tmp_path / "d.csv", header=False)
        np.savez(tmp_path / "d.npz", x=ROWS[:, :2])
        ingest([tmp_path / "d.npz"], tmp_path / "p.zarr", inputs=["x"], targets=[], append=True)


def _bad_files(folder: Path) -> dict[str, tuple[list[str], list[str], str]]:
    """source -> inputs, targets, what the message must say."""
    write_csv(folder / "good.csv")
    (folder / "text.csv").write_text("a,b\n" + "1,2\n" * 5 + "3,abc\n1,2\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b\n")
    (folder / "twice.csv").write_text("a,a\n1,2\n")
    (folder / "quote.csv").write_text('a,b\n1,"2\n' + "1,2\n" * 400_000)
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 10)
    (folder / "cut.csv.gz").write_bytes(gzip.compress(repr(ROWS.tolist()).encode())[:500])
    (folder / "plain.csv.gz").write_text("a,b\n1,2\n")
    (folder / "strange.xls").write_text("a")
    for name in ("no.parquet", "no.npy", "no.npz", "no.nc", "no.h5"):
        (folder / name).write_bytes(b"nonsense" * 10)
    (folder / "empty.npy").write_bytes(b"")
    pq.write_table(pa.table({"a": [1.0], "s": ["x"]}), folder / "s.parquet")
    (folder / "cut.parquet").write_bytes((folder / "s.parquet").read_bytes()[:-20])
    np.savez(folder / "a.npz", a=ROWS[:, 0], b=ROWS[1:, 0], s=np.array(["x"]), t=ROWS.reshape(10, 10, -1))
    np.savez(folder / "o.npz", o=np.array([object()], dtype=object), z=ROWS[:0, 0], m=ROWS[:, 0] * 1j)
    np.save(folder / "cube.npy", ROWS.reshape(10, 10, -1))
    (folder / "cut.npz").write_bytes((folder / "a.npz").read_bytes()[:-3000])
    (folder / "folder.csv").mkdir()
    return {
        "absent.csv": (["a"], ["b"], "there is no such file"),
        "folder.csv": (["a"], ["b"], "wanted a file, got a folder"),
        "good.csv": (["aa"], ["b"], "has no column 'aa' (did you mean 'a'?)"),
        "text.csv": (["a"], ["b"], "column 'b', row 7: wanted a number, got 'abc'"),
        "ragged.csv": (["a"], ["b"], "row 3: wanted 2 fields, got 3"),
        "empty.csv": (["a"], ["b"], "is empty"),
        "header.csv": (["a"], ["b"], "has no rows"),
        "twice.csv": (["a"], [], "2 columns are named 'a'"),
        "quote.csv": (["a"], ["b"], "quote.csv: line 2 opens a quote that does not end; remove"),
        "binary.csv": (["a"], ["b"], "binary.csv: line 1 holds a NUL byte"),
        "cut.csv.gz": (["a"], ["b"], "cannot be read as CSV"),
        "plain.csv.gz": (["a"], ["b"], "cannot be read as CSV"),
        "strange.xls": (["a"], ["b"], "its format is not known from '.xls'"),
        "no.parquet": (["a"], ["b"], "cannot be read as Parquet"),
        "no.npy": (["c0"], [], "cannot be read as NPY"),
        "no.npz": (["a"], [], "cannot be read as NPZ"),
        "no.nc": (["a"], [], "is neither HDF5 nor NetCDF"),
        "no.h5": (["a"], [], "is neither HDF5 nor NetCDF"),
        "empty.npy": (["c0"], [], "is empty"),
        "s.parquet": (["a"], ["s"], "column 's' holds string, wanted real numbers"),
        "cut.parquet": (["a"], [], "cannot be read as Parquet"),
        "a.npz": (["a"], ["b"], "array 'a' has 2500 rows but 'b' has 2499"),
        "./a.npz": (["a"], ["s"], "column 's' holds <U1, wanted real numbers"),
        "././a.npz": (["t"], [], "array 't' has shape (10, 10, 100)"),
        "o.npz": (["o"], [], "column 'o' holds object"),
        "./o.npz": (["z"], [], "has no rows"),
        "././o.npz": (["m"], [], "column 'm' holds complex128"),
        "cube.npy": (["c0"], [], "has shape (10, 10, 100)"),
        "cut.npz": (["a"], [], "cannot be read as NPZ"),
    }


def test_bad_files_get_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    for name, (inputs, targets, message) in _bad_files(tmp_path).items():
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            ingest([f"{tmp_path}/{name}"], tmp_path / "out.zarr", inputs=inputs, targets=targets)
        assert name.replace("./", "") in str(caught.value) and "\n" not in str(caught.value), name
        assert len(str(caught.value)) < 500 + len(str(tmp_path)), name
        assert not list(tmp_path.glob("*out.zarr*")) + list(tmp_path.glob(".*")), name


def test_sources_need_the_same_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a,B,u,v\n1,2,3,4\n")
    with pytest.raises(InputError, match=r"b\.csv: has no column 'b'"):
        ingest([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "o.zarr", inputs=["a"], targets=["b"])
    np.savez(tmp_path / "a.npz", x=ROWS[:, :2])
    np.savez(tmp_path / "b.npz", x=ROWS[:, :3])
    with pytest.raises(InputError, match=r"b\.npz: x stands for 3 columns, but for 2 in .*a\.npz"):
        ingest([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "o.zarr", inputs=["x"], targets=[])
    for sources, inputs, message in (
        ([], ["a"], "at least one file"),
        (["a.csv"], [], "at least one column"),
    ):
        with pytest.raises(InputError, match=message):
            ingest([tmp_path / s for s in sources], tmp_path / "o.zarr", inputs=inputs, targets=[])


def test_columns_may_change_places_between_sources(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("t,b,a\nx,4,3\n")
    ingest([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "o.zarr", inputs=["a"], targets=["b"])
    X, Y = open_dataset(tmp_path / "o.zarr").read(0, 2)
    np.testing.assert_array_equal(np.hstack([X, Y]), [[1, 2], [3, 4]])


def test_constant_columns(tmp_path: Path) -> None:
    """`=0` puts a plane of measurements into space."""
    write_csv(tmp_path / "loc.csv", ROWS[:, :2], header=False)
    write_csv(tmp_path / "mag.csv", ROWS[:, 2:], header=False)
    source, out = f"{tmp_path}/loc.csv+{tmp_path}/mag.csv", tmp_path / "o.zarr"
    ingest([source, source], out, again=True, inputs=["c0", "=0", "=-1.5", "c1"], targets=["=0", "c2"])
    dataset, rows, zero = open_dataset(out), np.tile(ROWS, (2, 1)), np.zeros(2 * len(ROWS))
    X, Y = dataset.read(0, dataset.n)
    np.testing.assert_array_equal(X, np.column_stack([rows[:, 0], zero, zero - 1.5, rows[:, 1]]))
    np.testing.assert_array_equal(Y, np.column_stack([zero, rows[:, 2]]))
    assert dataset.input_columns == ("c0", "=0", "=-1.5", "c1")


@pytest.mark.parametrize(
    ("inputs", "message"), [(["=x"], "column '=x': wanted a number after '=', got 'x'"), (["=0"], "only constants")]
)
def test_what_is_no_constant_is_refused(tmp_path: Path, inputs: list[str], message: str) -> None:
    write_csv(tmp_path / "a.csv")
    with pytest.raises(InputError, match=message):
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=inputs, targets=[])
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
