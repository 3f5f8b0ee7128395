"""Predictions of tables as people have them: for rows of any file that ingest reads, and as CSV or NetCDF."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset, ingest, open_dataset
from dorff.data.encoding import Encoding, from_attributes
from dorff.data.layout import reported, staging
from dorff.data.nodes import group_attributes
from dorff.data.readers import ending, open_source
from dorff.data.units import ISO_SECONDS, Conversion
from dorff.errors import InputError
from dorff.model import Model
from dorff.predict.shared import ModelInputs, labels_of
from dorff.predict.writing import check_free
from dorff.spec.registry import READERS
from dorff.storage.files import sync_directory
from dorff.storage.location import is_remote
from dorff.store import load_model

TABLES: Final = (".csv", ".nc")
ROWS: Final = 65536  # written at a time
NO_VARIABLE: Final = "This is a netCDF dimension but not a netCDF variable.%10d"  # as NetCDF4 calls such a scale


@dataclass(frozen=True)
class Tables:
    """Rows `given` and predictions `wanted`, and data sets that stand for files, `store` and `out`:
    the same places where not. `inputs` are the arrays of inputs of a file that was ingested."""

    given: Path
    wanted: Path
    store: Path
    out: Path
    inputs: tuple[str, ...] | None = None

    @classmethod
    @contextmanager
    def opened(
        cls, model: Path, given: Path, wanted: Path, arrays: Sequence[str] = (), **options: Any
    ) -> "Iterator[Tables]":
        """What stands for files is in a folder beside `wanted`, and gone at the end. The columns of a file are encoded
        as the model's were, and numbers stand for none as there; `options` are those of `ingest`. InputError where
        `wanted` is there, the model says no columns, `arrays` are named of a file, or options given of a data set."""
        if arrays if given.is_file() else options:
            problem = f"{given}: is {'a file, ingest it for --inputs and --views' if arrays else 'no file'}"
            raise InputError(f"{problem}; leave {'these' if arrays else '--missing and --unknown-zero'} out")
        if (name := ending(str(wanted))) in READERS.names and wanted.suffix not in TABLES:
            raise InputError(f"{wanted}: predictions become a data set, {' or '.join(TABLES)}, no {name}; rename it")
        if not given.is_file() and wanted.suffix not in TABLES:
            yield cls(given, wanted, given, wanted)
            return
        if is_remote(wanted if wanted.suffix in TABLES else given):
            raise InputError(f"{wanted}: files are read and written on this machine; give data sets, or paths here")
        check_free(wanted)
        with staging(wanted.absolute()) as (folder, _):
            if given.is_file():
                data = load_model(model, posterior=False).info.get("data", {})
                encoding = data.get("encoding", {})
                options["missing"] = [*data.get("missing", ()), *options.get("missing", ())]
                names = _columns(from_attributes(encoding, model), data.get("inputs", ()), given)
                ingest([given], folder / "in.zarr", inputs=names, encoding=encoding, **options)
                yield cls(given, wanted, folder / "in.zarr", folder / "out.zarr", ("x",))
            else:
                yield cls(given, wanted, given, folder / "out.zarr")

    def finish(self, model: Path, inputs: Sequence[str] | None, views: Sequence[str] | None) -> None:
        """Move the predictions to their place, as a table where one is wanted."""
        if self.out == self.wanted:
            return
        with reported(self.wanted):
            made = self.out
            if self.wanted.suffix in TABLES:
                fitted, made = load_model(model, posterior=False), self.out.with_name(self.wanted.name)
                arrays = ModelInputs.of(fitted, inputs, views).arrays
                values = Values.of(fitted, open_dataset(self.store, inputs=arrays, targets=None), self.out)
                _write_csv(made, values) if self.wanted.suffix == ".csv" else self._write_netcdf(made, values)
            check_free(self.wanted)
            made.rename(self.wanted)
            sync_directory(self.wanted.absolute().parent)

    def _write_netcdf(self, path: Path, values: "Values") -> None:
        """On the grid of the inputs' file, with its coordinates, where it has one; else along rows."""
        import h5py  # large

        from dorff.data.grids import Grid

        start = values.dataset.first
        reader: Any = open_source(self.given, values.named) if self.inputs else None
        given = getattr(reader, "grid", None)
        grid, of_dims = (Grid(("row",), (values.dataset.rows,)), {}) if given is None else (given, reader.coordinates())
        with h5py.File(path, "w") as file:
            file.attrs["Conventions"] = "CF-1.11"
            for dim, length in zip(grid.dims, grid.shape, strict=True):
                column, attributes = of_dims.get(dim, (np.zeros(length), {}))
                file[dim] = column
                file[dim].attrs.update(attributes)
                file[dim].make_scale(dim if dim in of_dims else NO_VARIABLE % length)
            inputs, outputs = values.read(start, start + 1)
            inputs = {name: column for name, column in inputs.items() if name not in of_dims}
            for name, column in (inputs | outputs).items():
                stored = file.create_dataset(name, grid.shape, h5py.string_dtype() if column.dtype == object else "f8")
                stored.attrs.update({"units": values.units[name]} if name in values.units else {})
                stored.attrs.update({"coordinates": " ".join(inputs)} if inputs and name in outputs else {})
                for axis, dim in enumerate(grid.dims):
                    stored.dims[axis].attach_scale(file[dim])
            for slab in grid.slabs(ROWS):
                shape = [part.stop - part.start for part in slab]
                start, before = start + math.prod(shape), start
                inputs, outputs = values.read(before, start)
                for name, column in (inputs | outputs).items():
                    if name not in of_dims:
                        file[name][slab] = column.reshape(shape)


Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Values:
    """What a table holds: inputs as they were before ingest made numbers of them, and predictions, by name."""

    dataset: Dataset
    encodings: dict[str, Encoding]
    predictions: Dataset
    outputs: tuple[str, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, dataset: Dataset, out: Path) -> "Values":
        """Of the predictions in the data set `out`: u, u_std, u_low_95 ...; of classes red_probability ..., class."""
        labels, arrays = labels_of(model) or (), group_attributes(out)["columns"]
        kind = "" if not labels else "_probability" if "calibration" in model.info else "_decision"
        endings = {array: "" if array == "classes" else kind if array == "y" else f"_{array}" for array in arrays}
        names = [f"{name}{endings[array]}" for array, columns in arrays.items() for name in columns]
        encodings = from_attributes(dataset.encoding, dataset.path)
        predictions = open_dataset(out, inputs=list(arrays), targets=None)
        return cls(dataset, encodings, predictions, tuple(names), tuple(map(str, labels)))

    @property
    def named(self) -> tuple[str, ...]:
        """The inputs' columns in their file."""
        return tuple(_columns(self.encodings, self.dataset.input_columns, Path(self.dataset.path)))

    @property
    def units(self) -> dict[str, str]:
        """Of the inputs that are times."""
        return {name: one.words[0] for name, one in self.encodings.items() if one.kind == "time"}

    @property
    def clocks(self) -> dict[str, Conversion | None]:
        """How the inputs that are times become seconds since 1970; None for a calendar that timestamps do not have."""
        clocks: dict[str, Conversion | None] = {}
        for name, encoding in self.encodings.items():
            if encoding.kind == "time":
                units = encoding.units(self.dataset.path)
                clocks[name] = units.conversion_to(ISO_SECONDS, name) if units.is_gregorian else None
        return clocks

    def read(self, start: int, stop: int) -> tuple[Columns, Columns]:
        """Inputs and predictions of a run of rows, numbers or text (rows,)."""
        X, names = self.dataset.read(start, stop)[0], self.dataset.input_columns
        inputs = {name: column for name, column in zip(names, X.T, strict=True) if not name.startswith("=")}
        for one in self.encodings.values():
            if one.kind == "ordered" and one.name in inputs:
                inputs[one.name] = _words(one.words, inputs[one.name])
            elif one.kind == "one_hot" and inputs.keys() >= set(one.columns):
                places = np.column_stack([inputs.pop(name) for name in one.columns])
                inputs[one.name] = _words(one.words, np.where(places.sum(axis=1) == 1, places.argmax(axis=1), np.nan))
        outputs = dict(zip(self.outputs, self.predictions.read(start, stop)[0].T, strict=True))
        if self.labels:
            outputs["class"] = _words(self.labels, outputs["class"])
        return inputs, outputs


def _words(words: Sequence[str], codes: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """The word (n,) of each code (n,), "" where it is none."""
    return np.array([*words, ""], object)[np.nan_to_num(codes, nan=-1).astype(np.intp)]


def _columns(encodings: Mapping[str, Encoding], inputs: Sequence[str], where: Path) -> list[str]:
    """What ingest is asked for to make these inputs."""
    if not inputs:
        raise InputError(f"{where}: the model does not say which columns its inputs are; ingest the file first")
    of = {column: one.name for one in encodings.values() for column in one.columns}
    names = [of.get(column, column) for column in inputs]
    return [name for place, name in enumerate(names) if name not in encodings or name not in names[:place]]


def _write_csv(path: Path, values: Values) -> None:
    """Times are written as such; what there is none of is empty."""
    import pyarrow as pa  # large
    import pyarrow.csv as pacsv

    def arrow(name: str, column: npt.NDArray[Any]) -> Any:
        if name not in values.units:
            return pa.array(column, from_pandas=True)
        conversion = clocks[name]
        if conversion is None:
            return pa.array(column, from_pandas=True)
        times = np.round(conversion.convert(column, f"column {name!r}") * 1e6)
        return pa.array(times, pa.float64(), from_pandas=True).cast(pa.int64()).cast(pa.timestamp("us"))

    clocks = values.clocks
    dataset, writer = values.dataset, None
    for start, stop in dataset.cuts(ROWS):
        inputs, outputs = values.read(start, stop)
        table = pa.table({name: arrow(name, column) for name, column in (inputs | outputs).items()})
        writer = writer or pacsv.CSVWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
