"""A store while `ingest` writes it: what it has, what it gets, what will be committed.

`PendingStore.create` describes a new store, `PendingStore.load` one that rows are
appended to. Its `attributes` become those of the Zarr group once all rows are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from dorff.data.columns import CODED, Columns
from dorff.data.encoding import Encoding, to_attributes
from dorff.data.labels import (
    CLASSES,
    MOST_GROUP_NAMES,
    LabelTable,
    Run,
    group_names,
    stored_labels,
)
from dorff.data.layout import (
    ArrayLayout,
    Attributes,
    normal,
    read_json,
    shard_and_unit_rows,
)
from dorff.data.nodes import group_attributes, ingested, kept_of, open_array
from dorff.data.readers import Numbers, Reader, common_dtype
from dorff.data.resolutions import Resolution
from dorff.data.row_runs import Runs, merge_runs, subtract_runs
from dorff.data.source_records import (
    MAX_RECORDED_COLUMNS,
    SourceRecord,
    read_sources,
)
from dorff.data.stores import open_dataset
from dorff.data.units import ColumnAttributes
from dorff.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PendingStore:
    """The store to be.

    Attributes
    ----------
    columns : dict of tuple of str
        The columns of each array.
    arrays : dict of ArrayLayout
        The layout of each array.
    labels : LabelTable
        Labels of classes; grows while rows are coded.
    rows : int
        One past the number of the last row before this call; 0 in a new store.
    tail : dict of array, optional
        Rows of each array's last shard if that is not full: it is written again.
    records : list of SourceRecord
        The sources; grows while they are read.
    unrecorded : list of str
        Contents of sources that were ingested before sources were recorded.
    dropped : runs of rows
        Rows that do not count.
    key : tuple of str
        Columns that a user declared to identify a row.
    source_columns : list of str
        Columns of the last source.
    encodings : dict of Encoding
        How columns of text and times become numbers.
    column_attributes : dict of dict
        CF attributes of columns.
    where_attributes : dict of dict
        CF attributes of columns of conditions, in whose units they compare.
    resolutions : dict of Resolution
        How closely columns are compared of which some rows were converted.
    missing : tuple of str
        Values that stand for a missing one.
    unusable : int
        Rows that hold NaN or infinity.
    left_out : dict of int
        How many rows each condition left out.
    input_ends : list of array
        Least and largest value of each input; empty if not known.
    group_names : dict of str
        Names of groups by their codes, as long as they are few.
    """

    columns: Columns
    arrays: dict[str, ArrayLayout]
    labels: LabelTable
    rows: int = 0
    tail: Mapping[str, Numbers] = field(default_factory=dict)
    records: list[SourceRecord] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    dropped: Runs = ()
    key: tuple[str, ...] = ()
    source_columns: list[str] = field(default_factory=list)
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    column_attributes: ColumnAttributes = field(default_factory=dict)
    where_attributes: ColumnAttributes = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unusable: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    input_ends: list[Numbers] = field(default_factory=list)
    group_names: dict[str, str] = field(default_factory=dict)

    @property
    def number_columns(self) -> list[str]:
        """The columns of numbers, each once, that sources are asked for."""
        plain = [columns for array, columns in self.columns.items() if array not in CODED]
        return list(dict.fromkeys(column for columns in plain for column in columns))

    def number_arrays(self, numbers: Numbers) -> dict[str, Numbers]:
        """Return rows of `number_columns` (n, columns) as arrays are stored, by name."""
        place = {column: number for number, column in enumerate(self.number_columns)}
        stored = {}
        for array, columns in self.columns.items():
            if array not in CODED:
                values = numbers[:, [place[column] for column in columns]]
                stored[array] = values.astype(self.arrays[array].stored, copy=False)
        return stored

    @classmethod
    def create(
        cls,
        readers: Sequence[Reader],
        columns: Columns,
        shard_rows: int | None,
    ) -> Self:
        """Return a new store for these columns of the sources, without rows."""
        width = sum(map(len, columns.values()))
        shard, unit = shard_and_unit_rows(width, 0, shard_rows)
        arrays = {
            array: ArrayLayout(len(names), shard, unit, _dtype(readers, array, names))
            for array, names in columns.items()
        }
        unknown = np.full(len(columns["x"]), np.nan)
        return cls(
            columns=columns,
            arrays=arrays,
            labels=LabelTable(),
            input_ends=[unknown, unknown],
        )

    @classmethod
    def load(
        cls,
        store: Path,
        readers: Sequence[Reader],
        columns: Columns,
        shard_rows: int | None,
    ) -> Self:
        """Return a store that ingest made, to which the sources are to be appended.

        Raises InputError: no store of ingest, other columns, another type or layout.
        """
        attributes = group_attributes(store)
        remedy = "so rows cannot be appended; ingest all its rows into a new store."
        (_, rows), held = ingested(store, attributes, remedy)
        if held != {array: list(names) for array, names in columns.items()}:
            remedy = "append the same inputs and targets, groups as before."
            problem = f"has columns {held}, the sources {columns}"
            raise InputError(f"{store}: {problem}; {remedy}")
        arrays = {array: _stored_layout(store, array) for array in columns}
        for array, layout in arrays.items():
            if shard_rows not in (None, layout.shard_rows):
                problem = f"has shards of {layout.shard_rows} rows, not {shard_rows}"
                raise InputError(f"{store}: {problem}; leave it out.")
            wanted = _dtype(readers, array, columns[array])
            if not np.can_cast(wanted, layout.stored):
                held_dtype = f"array {array} holds {layout.dtype}"
                problem = f"{held_dtype}, but the sources give {wanted}"
                raise InputError(f"{store}: {problem}; start anew.")

        # The partly filled last shard is written again, longer; its rows are read now,
        # before anything changes.
        first = rows - rows % arrays["x"].shard_rows
        tail = {}
        for array in columns:
            dataset = open_dataset(store, inputs=array, targets=None)
            tail[array] = dataset.exact(array, first, rows)
        own = attributes["dorff"]
        records, unrecorded = read_sources(own.get("sources", []), store)
        ends = own.get("ranges", {}).get("x", ())
        names = kept_of(attributes, "group_names", dict[str, str]())
        return cls(
            columns=columns,
            arrays=arrays,
            labels=stored_labels(attributes, store) or LabelTable(),
            rows=rows,
            tail=tail,
            records=records,
            unrecorded=unrecorded,
            dropped=merge_runs(kept_of(attributes, "dropped", [])),
            key=tuple(kept_of(attributes, "key", [])),
            source_columns=kept_of(attributes, "source_columns", []),
            resolutions={
                column: Resolution(**kept) for column, kept in kept_of(attributes, "resolutions", Attributes()).items()
            },
            input_ends=[np.array(end, dtype=np.float64) for end in ends],
            group_names=dict(names),
        )

    def keep_group_names(self, run: Run, where: str) -> None:
        """Keep the names of a run's groups as long as they are few."""
        room = MOST_GROUP_NAMES - len(self.group_names)
        if room > 0:
            found = {str(code): name for code, name in group_names(run, where).items()}
            new = [code for code in found if code not in self.group_names]
            self.group_names.update({code: found[code] for code in new[:room]})

    def extend_input_ends(self, inputs: Numbers) -> None:
        """Extend `input_ends` by further rows, if they are known of all before."""
        if self.input_ends:
            finite = np.where(np.isfinite(inputs), inputs, np.nan)
            self.input_ends[:] = [
                end(known, end.reduce(finite, axis=0, initial=np.nan))
                for end, known in zip((np.fmin, np.fmax), self.input_ends, strict=True)
            ]

    def unitless_input_ends(self) -> dict[str, tuple[float, float]]:
        """Return the least and largest value of inputs that are plain numbers, of a new store."""
        least, largest = (end.tolist() for end in self.input_ends)
        return {
            name: (low, high)
            for name, low, high in zip(self.columns["x"], least, largest, strict=True)
            if name not in self.encodings and not self.column_attributes.get(name)
        }

    def add_source(self, record: SourceRecord, *, again: bool) -> None:
        """Record a source; InputError if it was ingested before, unless `again`."""
        present = [known for known in self.records if known.rows and not known.dropped]
        names = {known.content: known.name for known in present}
        unnamed = "a source of rows that the data set has already"
        names |= dict.fromkeys(self.unrecorded, unnamed)
        if record.content in names and not again:
            earlier = names[record.content]
            problem = f"has the content of {earlier}"
            effect = "so that its rows would be there twice"
            remedy = "leave it out, or give --again to have them twice"
            same = [known for known in present if known.content == record.content]
            if same and all(map(self._is_replaced, same)):
                effect = "whose rows were replaced by later ones"
                remedy = "give --replace to have them again, in place of rows with their key, or leave it out"
            raise InputError(f"{record.name}: {problem}, {effect}; {remedy}.")
        self.records.append(record)

    def _is_replaced(self, record: SourceRecord) -> bool:
        """Whether other rows took the place of all rows of a source."""
        return not subtract_runs(record.first, record.stop, self.dropped)

    def attributes(self) -> Attributes:
        """Return what is committed with the rows, without what is empty."""
        kept_attributes = _known(self.column_attributes)
        optional: Attributes = {
            "missing": list(self.missing),
            "unusable": self.unusable,
            "left_out": self.left_out,
            "group_names": self.group_names,
            "column_attributes": kept_attributes,
            "where_attributes": _known(self.where_attributes),
            "resolutions": {column: asdict(resolution) for column, resolution in self.resolutions.items()},
            "dropped": [list(run) for run in self.dropped],
            "key": list(self.key),
            "source_columns": self.source_columns[:MAX_RECORDED_COLUMNS],
        }
        if self.encodings:
            optional["encoding"] = to_attributes(self.encodings)
        if CLASSES in self.columns:
            # Without rows of labels, an empty list still says that there are classes.
            optional["labels"] = {CLASSES: list(self.labels.labels)}
            optional["counts"] = {CLASSES: list(self.labels.counts)}
        if self.input_ends and np.isfinite(self.input_ends).all():
            optional["ranges"] = {"x": [end.tolist() for end in self.input_ends]}
        kept = {name: value for name, value in optional.items() if value}
        sources = [record.to_attribute() for record in self.records]
        return {"sources": [*self.unrecorded, *sources], **kept}


def _known(attributes: ColumnAttributes) -> ColumnAttributes:
    """Return the attributes of columns that have some."""
    return {column: kept for column, kept in attributes.items() if kept}


def _dtype(readers: Sequence[Reader], array: str, columns: Sequence[str]) -> str:
    """Return the type that an array of these columns of the sources is stored in."""
    if array in CODED:
        return "int32" if array == CLASSES else "int64"
    dtypes = [reader.dtype(name) for reader in readers for name in columns]
    return str(common_dtype(dtypes))


def _stored_layout(store: Path, array: str) -> ArrayLayout:
    """Return the layout of a store's array; InputError if ingest did not write it."""
    stored = open_array(store, array)
    files, dtype = stored.files, np.dtype(stored.array.dtype).name
    layout = ArrayLayout(stored.columns, files.outer[0], files.inner[0], dtype)
    wanted = normal(layout.metadata(stored.rows))
    held = normal(read_json(store / array / "zarr.json"))
    checked = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs")
    if any(wanted[key] != held.get(key) for key in checked):
        problem = f"array {array} is not as `dorff ingest` writes it"
        raise InputError(f"{store}: {problem}; ingest all rows into a new one.")
    return layout
