"""Predictions of tables as people have them: for rows of any file that ingest reads, and as CSV or NetCDF."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset, ingest, open_dataset
from dorff.data.encoding import Encoding, from_attributes, to_attributes, with_encoded_times
from dorff.data.ingest import NONE
from dorff.data.labels import CLASSES
from dorff.data.layout import reported, staging
from dorff.data.nodes import group_attributes, kept_of, node
from dorff.data.output_names import check_ending
from dorff.data.packing import FillValues
from dorff.data.readers import Reader, is_zarr, open_source
from dorff.data.units import ISO_SECONDS, Conversion
from dorff.data.variables import GriddedReader
from dorff.errors import InputError
from dorff.model import Model
from dorff.predict.columns import OutputColumn, duplicates, fitted_targets, model_inputs, output_columns
from dorff.predict.netcdf import write_netcdf
from dorff.predict.own_units import OwnUnits, find_own_units
from dorff.predict.renaming import Renaming
from dorff.predict.shared import ModelInputs, Notice, labels_of
from dorff.predict.writing import Uncertainty, check_free
from dorff.storage.files import sync_directory
from dorff.storage.location import is_remote
from dorff.store import load_model

TABLES: Final = (".csv", ".nc")
ROWS: Final = 65536  # written at a time
#: Seconds since 1970 at which the years 0 and 10000 begin: years of ISO 8601 have four digits.
ISO_YEARS: Final = (-62_167_219_200.0, 253_402_300_800.0)
CLOCKS: Final = "clocks"  # an array of times of which the model knows the cycles alone
KEYS: Final = ("weights", "labelled")  # columns beside inputs and targets that a score uses


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are read, and which columns are called otherwise than the model's.

    `renaming` says the latter, and `notice` is called with sentences about what was
    converted or left out. All others are arguments of `dorff.data.ingest`.
    """

    missing: Sequence[str] = ()
    unknown_zero: bool = False
    units: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    text: Mapping[str, Any] = field(default_factory=dict)
    absent_chunks: Literal["refuse", "fill"] = "refuse"
    renaming: Renaming = field(default_factory=Renaming)
    notice: Notice | None = None

    def reading(self) -> dict[str, Any]:
        """Return the arguments of `ingest`."""
        names = {option.name for option in fields(self)} - {"renaming", "notice"}
        return {name: getattr(self, name) for name in names}

    def list_options(self) -> list[str]:
        """Return the options of files that a user gave, as they are written on the command line."""
        values = {**self.reading(), **self.text}
        del values["text"]
        if self.absent_chunks == "refuse":
            del values["absent_chunks"]
        return sorted("--" + name.replace("_", "-") for name, value in values.items() if value)

    def open(self, source: Path, asked: Sequence[str]) -> Reader:
        """Open a table of which columns are `asked` for."""
        return open_source(source, asked, text=self.text)


@dataclass(frozen=True, kw_only=True)
class RowsToScore:
    """A data set, and what `score` is called with: its arrays and columns, those that are called otherwise."""

    store: Path
    renaming: Renaming
    inputs: Sequence[str] | None
    targets: Sequence[str] | None
    weights: str | None = None
    labelled: str | None = None


@contextmanager
def rows_to_score(
    model: Path,
    data: Sequence[Path],
    targets: Sequence[str],
    *,
    options: TableOptions,
    arrays: Sequence[str] | None = None,
    views: Sequence[str] | None = None,
) -> Iterator[RowsToScore]:
    """Open a data set, or files, which become a temporary data set with inputs and targets as the model's.

    `targets` name arrays, or columns of files; those that the model was fitted to if
    there are none. Weights, and the column that says which rows are labelled, are those
    of the model's job where the data have them. InputError for several of which one is
    no file, and as in `Tables.opened`.
    """
    fitted = load_model(model, posterior=False)
    named = [*(arrays or ()), *(views or ())]
    for source in data:
        table = is_table(source, fitted, named)
        if len(data) > 1 and not table:
            raise InputError(f"{source}: is no file of rows; give one data set, or files alone")
        check_options(source, options, table=table, named=bool(named))
    if not table:
        yield RowsToScore(store=data[0], renaming=options.renaming, inputs=arrays, targets=list(targets) or None)
        return

    classes = labels_of(fitted) is not None
    measured = list(targets) or _measured(fitted, model, options.renaming)
    if classes and len(measured) != 1:
        raise InputError(f"--targets: a classifier is scored by one column of labels, not {', '.join(measured)}")
    beside = _columns_beside(fitted, data[0], measured, options)
    columns: dict[str, Any] = {"classes": measured[0]} if classes else {"targets": measured}
    columns |= {"weights": beside["weights"]} if "weights" in beside else {}
    columns |= {"also": {"labelled": beside["labelled"]}} if "labelled" in beside else {}
    with TemporaryDirectory(prefix="dorff-score-") as folder:
        store = Path(folder, "rows.zarr")
        _ingest_like(fitted, data, store, options, known=_known(fitted), **columns)
        targets_of_model = [] if classes else fitted_targets(fitted)
        with _naming_sources(store, data):
            yield RowsToScore(
                store=store,
                renaming=options.renaming.only([*model_inputs(fitted), *targets_of_model]),
                inputs=["x"],
                targets=[CLASSES if classes else "y"],
                weights="weights" if "weights" in beside else "",
                labelled="labelled" if "labelled" in beside else "",
            )


@contextmanager
def _naming_sources(store: Path, sources: Sequence[Path]) -> Iterator[None]:
    """Name the files, not the data set that stands for them, where something is refused."""
    try:
        yield
    except InputError as error:
        more = f" and {len(sources) - 1} more files" if len(sources) > 1 else ""
        error.args = (str(error).replace(str(store), f"{sources[0]}{more}"),)
        raise


def _columns_beside(model: Model, source: Path, targets: Sequence[str], options: TableOptions) -> dict[str, str]:
    """Return the columns of weights, and of what is labelled, that a table has."""
    data = model.info.get("data", {})
    kept = data.get("columns", {})
    there = options.open(source, [*_inputs_in_table(model, options.renaming, source), *targets]).columns
    named = {key: options.renaming.to_table(kept.get(key) or data[key]) for key in KEYS if data.get(key)}
    return {key: column for key, column in named.items() if column in there}


def _measured(model: Model, path: Path, renaming: Renaming) -> list[str]:
    """Return the columns of a table that hold what the model was fitted to."""
    if labels_of(model) is None:
        return [renaming.to_table(name) for name in fitted_targets(model)]
    name = model.info.get("data", {}).get("columns", {}).get(CLASSES)
    if name is None:
        raise InputError(f"{path}: does not say which column its labels were; name it in --targets")
    return [renaming.to_table(name)]


def _known(model: Model) -> list[str]:
    """Return the names of all columns that a model knows, as tables have them."""
    data = model.info.get("data", {})
    columns = data.get("columns", {})
    targets = [columns[CLASSES]] if CLASSES in columns else [] if labels_of(model) else fitted_targets(model)
    beside = [columns.get(key) or data[key] for key in KEYS if data.get(key)]
    return [*model_inputs(model), *targets, *beside]


def _inputs_in_table(model: Model, renaming: Renaming, where: Path) -> list[str]:
    """Return what ingest is asked for, of a table, to make the model's inputs."""
    data = model.info.get("data", {})
    names = _columns(from_attributes(data.get("encoding", {}), where), data.get("inputs", ()), where)
    return [renaming.to_table(name) for name in names]


def _own_units(model: Model, source: Path, options: TableOptions) -> OwnUnits:
    """Return the units of a table's columns, and the model's of those without any."""
    data, renaming = model.info.get("data", {}), options.renaming
    encoding = renaming.encoding_to_table(data.get("encoding", {}), source)
    return find_own_units(
        options.open(source, _inputs_in_table(model, renaming, source)),
        from_attributes(encoding, source),
        {renaming.to_table(name): kept for name, kept in data.get("column_attributes", {}).items()},
        options.units,
        FillValues([*data.get("missing", ()), *options.missing]),
    )


def _ingest_like(
    model: Model,
    sources: Sequence[Path],
    store: Path,
    options: TableOptions,
    *,
    known: Sequence[str],
    own_units: bool = False,
    **columns: Any,
) -> None:
    """Ingest tables as those of the model were, in its units or in those of the first table.

    Conditions compare in the model's units in both. `known` are the columns that the model has names for, and further
    `columns` arguments of `ingest`.
    """
    data, renaming = model.info.get("data", {}), options.renaming
    names, kept = _inputs_in_table(model, renaming, sources[0]), data.get("column_attributes")
    for source in sources if renaming else ():
        renaming.check(_all_columns(source, names, options), known, source)
    reading = options.reading()
    reading["missing"] = [*data.get("missing", ()), *options.missing]
    encoding = renaming.encoding_to_table(data.get("encoding", {}), sources[0])
    attributes = None if kept is None else {renaming.to_table(name): described for name, described in kept.items()}
    reading["where_attributes"] = with_encoded_times(attributes or {}, encoding, sources[0])
    if own_units:
        own = _own_units(model, sources[0], options)
        encoding, attributes = to_attributes(own.encodings), own.column_attributes
        columns |= {"also": {CLOCKS: own.clocks}} if own.clocks else {}
    ingest(
        list(sources),
        store,
        inputs=names,
        groups=NONE,
        encoding=encoding,
        column_attributes=attributes,
        notice=options.notice,
        again=len(sources) > 1,
        **reading,
        **columns,
    )


def check_options(given: Path, options: TableOptions, *, table: bool, named: bool) -> None:
    """Raise InputError where arrays, or views, are named of a file, or options of files given of a data set."""
    if table and named:
        raise InputError(f"{given}: is a file, ingest it for --inputs and --views; leave these out")
    if not table and (of_files := options.list_options()):
        raise InputError(f"{given}: is no file; leave {', '.join(of_files)} out")


def is_table(path: Path, model: Model, arrays: Sequence[str] = ()) -> bool:
    """Whether rows are to be ingested: of a file, of files side by side, or of a Zarr group by others that has
    none of the arrays of the model's inputs, such as a grid. `arrays` are those that a user names."""
    if is_remote(path):
        return False
    if path.is_file() or ("+" in str(path) and all(Path(part).is_file() for part in str(path).split("+"))):
        return True
    if arrays or not is_zarr(path) or "dorff" in group_attributes(path):
        return False
    return not any(node(path / name).is_array for name in ModelInputs.of(model, None, None).arrays)


def _all_columns(source: Path, asked: Sequence[str], options: TableOptions) -> list[str]:
    """Return the columns of a table; of a file of variables these, too."""
    reader = options.open(source, asked)
    return [*reader.columns, *(reader.variables if isinstance(reader, GriddedReader) else ())]


def _check_free_names(model: Model, asked: Uncertainty, where: Path, columns: Sequence[str]) -> None:
    """Raise InputError where a column of the rows has the name of one of the predictions."""
    arrays = ["y", *([CLASSES] if labels_of(model) is not None else []), *asked.widths(model)]
    names = [column.name for array in arrays for column in output_columns(model, array, noise=asked.noise)]
    for name in [*(name for name in names if name in columns), *duplicates(names)]:
        problem = f"has a column {name!r}, which is what a prediction would be called"
        raise InputError(f"{where}: {problem}; rename it there, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Rows `given` and predictions `wanted`, and data sets that stand for files, `store` and `out`:
    the same places where not. `inputs` are the arrays of inputs of a file that was ingested."""

    given: Path
    wanted: Path
    store: Path
    out: Path
    options: TableOptions
    inputs: tuple[str, ...] | None = None

    @classmethod
    @contextmanager
    def opened(
        cls,
        model: Path,
        given: Path,
        wanted: Path,
        *,
        asked: Uncertainty,
        options: TableOptions,
        arrays: Sequence[str] | None = None,
        views: Sequence[str] | None = None,
    ) -> "Iterator[Tables]":
        """What stands for files is in a folder beside `wanted`, and gone at the end. The columns of a file are encoded
        as the model's were, and numbers stand for none as there. InputError where `wanted` is there, the model says no
        columns, `arrays` are named of a file, `options` of files given of a data set, or a column of the rows has the
        name of one of the predictions."""
        if wanted.suffix.lower() in TABLES and is_remote(wanted):
            raise InputError(f"{wanted}: files are read and written on this machine; give data sets, or paths here")
        fitted = load_model(model, posterior=False)
        table = is_table(given, fitted, [*(arrays or ()), *(views or ())])
        check_options(given, options, table=table, named=bool(arrays or views))
        check_ending(wanted, "predictions", (".zarr", *TABLES))
        if not table and wanted.suffix.lower() not in TABLES:
            yield cls(given=given, wanted=wanted, store=given, out=wanted, options=options)
            return
        check_free(wanted)
        with staging(wanted.absolute()) as (folder, _):
            store = given
            if table:
                store = folder / "in.zarr"
                names = _inputs_in_table(fitted, options.renaming, given)
                _check_free_names(fitted, asked, given, _all_columns(given, names, options))
                _ingest_like(fitted, [given], store, options, known=model_inputs(fitted), own_units=True)
            else:
                dataset = open_dataset(store, inputs=ModelInputs.of(fitted, arrays, views).arrays, targets=None)
                _check_free_names(fitted, asked, given, dataset.input_columns)
            with _naming_sources(store, [given]):
                yield cls(
                    given=given,
                    wanted=wanted,
                    store=store,
                    out=folder / "out.zarr",
                    options=options,
                    inputs=("x",) if table else None,
                )

    def finish(self, model: Path, inputs: Sequence[str] | None, views: Sequence[str] | None) -> None:
        """Move the predictions to their place, as a table where one is wanted."""
        if self.out == self.wanted:
            return
        with reported(self.wanted):
            made = self.out
            if self.wanted.suffix.lower() in TABLES:
                fitted, made = load_model(model, posterior=False), self.out.with_name(self.wanted.name)
                arrays = ModelInputs.of(fitted, inputs, views).arrays
                own = _own_units(fitted, self.given, self.options) if self.inputs else None
                arrays += (CLOCKS,) if own is not None and own.clocks else ()
                dataset = open_dataset(self.store, inputs=arrays, targets=None)
                values = Values.of(fitted, dataset, self.out, frozenset() if own is None else own.numbers)
                if self.wanted.suffix.lower() == ".csv":
                    _write_csv(made, values)
                    if self.options.notice is not None and (sentence := values.describe_numbers()):
                        self.options.notice(sentence)
                else:
                    write_netcdf(made, values, self._source(values), model)
            check_free(self.wanted)
            made.rename(self.wanted)
            sync_directory(self.wanted.absolute().parent)

    def _source(self, values: "Values") -> Reader | None:
        """Return the reader of the table whose rows these are; None where some were left out, or of a data set."""
        return self.options.open(self.given, values.named) if self.inputs and not self.options.where else None


Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Values:
    """What a table holds: inputs as they were before ingest made numbers of them, and predictions, by name. `labels`
    are those of a classifier, `numbers` the times that stay numbers where others are dates."""

    dataset: Dataset
    encodings: dict[str, Encoding]
    predictions: Dataset
    outputs: tuple[OutputColumn, ...]
    labels: tuple[str, ...]
    numbers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Model, dataset: Dataset, out: Path, numbers: frozenset[str] = frozenset()) -> "Values":
        """Return the values of the predictions in the data set `out`."""
        attributes = group_attributes(out)
        noise = kept_of(attributes, "uncertainty", dict[str, Any]()).get("std", {}).get("noise", False)
        arrays = list(attributes["columns"])
        outputs = [column for array in arrays for column in output_columns(model, array, noise=noise)]
        return cls(
            dataset=dataset,
            encodings=from_attributes(dataset.encoding, dataset.path),
            predictions=open_dataset(out, inputs=arrays, targets=None),
            outputs=tuple(outputs),
            labels=tuple(map(str, labels_of(model) or ())),
            numbers=numbers,
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The inputs' columns in their file."""
        return tuple(_columns(self.encodings, self.dataset.input_columns, Path(self.dataset.path)))

    @property
    def dates(self) -> dict[str, Conversion]:
        """How times become seconds since 1970, of the inputs that can be written as dates of ISO 8601."""
        found: dict[str, Conversion] = {}
        for name, encoding in self.encodings.items():
            if encoding.kind != "time" or name in self.numbers:
                continue
            units = encoding.units(self.dataset.path)
            if not units.is_gregorian:
                continue
            to_seconds = units.conversion_to(ISO_SECONDS, name)
            if self._are_iso_dates(name, to_seconds):
                found[name] = to_seconds
        return found

    def _are_iso_dates(self, name: str, to_seconds: Conversion) -> bool:
        """Whether ISO 8601 has dates of all values of an input that are finite."""
        place = self.dataset.input_columns.index(name)
        begin, end = ISO_YEARS
        for start, stop in self.dataset.cuts(ROWS):
            times = self.dataset.read(start, stop)[0][:, place]
            times = times[np.isfinite(times)]
            if (times < to_seconds.earliest).any():
                return False
            seconds = to_seconds.convert(times, name)
            if (seconds < begin).any() or (seconds >= end).any():
                return False
        return True

    def describe_numbers(self) -> str:
        """Return a sentence on times that CSV has as numbers though other times are dates there; "" without any."""
        written = self.numbers | self.dates.keys()
        shown = [
            f"{name} ({encoding.words[0]}, {encoding.units(name).calendar})"
            for name, encoding in self.encodings.items()
            if encoding.kind == "time" and name not in written
        ]
        if not shown:
            return ""
        return f"times are written as numbers, as ISO 8601 has no such dates: {', '.join(shown)}"

    def attributes(self, name: str) -> dict[str, str]:
        """The CF attributes of an input or a prediction."""
        output = next((column for column in self.outputs if column.name == name), None)
        if output is not None:
            return dict(output.attributes)
        of_time = self.encodings[name].attributes if name in self.encodings else {}
        return self.dataset.column_attributes.get(name, {}) | of_time

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
        names_out = [column.name for column in self.outputs]
        outputs = dict(zip(names_out, self.predictions.read(start, stop)[0].T, strict=True))
        if self.labels:
            outputs["class_predicted"] = _words(self.labels, outputs["class_predicted"])
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
        if name not in dates:
            return pa.array(column, from_pandas=True)
        times = np.round(dates[name].convert(column, f"column {name!r}") * 1e6)
        return pa.array(times, pa.float64(), from_pandas=True).cast(pa.int64()).cast(pa.timestamp("us"))

    dates = values.dates
    dataset, writer = values.dataset, None
    for start, stop in dataset.cuts(ROWS):
        inputs, outputs = values.read(start, stop)
        table = pa.table({name: arrow(name, column) for name, column in (inputs | outputs).items()})
        writer = writer or pacsv.CSVWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
