"""Turns files of rows into a Zarr group, or adds them to one; whole or not at all."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from dorff.data.columns import (
    CODED,
    OWN,
    Columns,
    attributes_to_keep,
    check_columns,
    check_further,
    resolve_columns,
)
from dorff.data.conditions import Condition, FilteredReader
from dorff.data.dataset import Dataset
from dorff.data.deliveries import (
    MAX_RUNS,
    ColumnSample,
    Comparison,
    KeyColumns,
    KnownRows,
    Runs,
    SourceIntake,
    SourceRecord,
    has_jumped,
    iterate_runs,
    mark_rows,
    median_absolute_deviation,
    merge_runs,
    read_sources,
    split_changed_columns,
    subtract_runs,
)
from dorff.data.encoding import Encoded, Encoding, from_attributes, to_attributes
from dorff.data.labels import (
    CLASSES,
    FILE,
    GROUPS,
    MOST_GROUP_NAMES,
    NO_GROUP,
    LabelTable,
    Run,
    group_codes,
    group_names,
    stored_labels,
)
from dorff.data.layout import (
    ArrayLayout,
    Attributes,
    ShardWriter,
    columns_of,
    commit,
    normal,
    read_json,
    reported,
    rewrite,
    shard_and_unit_rows,
    staging,
    write_metadata,
)
from dorff.data.learning import Learner, text_times
from dorff.data.nodes import group_attributes, ingested, kept_of, open_array
from dorff.data.packing import FillValues
from dorff.data.readers import Numbers, Reader, common_dtype, is_zarr, open_source
from dorff.data.stores import open_dataset, several
from dorff.data.units import ColumnAttributes, Conversions, conversion_notices
from dorff.errors import InputError
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

NONE: Final = "none"  # groups
MAX_RECORDED_COLUMNS: Final = 1000
"""Names of the last source's columns that a store keeps."""
FILES: Final = 7  # sources, more than a job has folds: a group each
Progress = Callable[[int], None]
Notice = Callable[[str], None]


@dataclass(frozen=True)
class _Target:
    """The store to be: its columns, arrays and labels, the rows there already, and those of an unfilled shard;
    `records` are its sources as far as they were recorded, `unrecorded` the contents of others, `dropped` its rows
    that do not count, `source_columns` the columns of its last source."""

    columns: Columns
    arrays: dict[str, ArrayLayout]
    labels: LabelTable
    rows: int = 0
    tail: dict[str, Numbers] | None = None
    records: list[SourceRecord] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    dropped: Runs = ()
    key: tuple[str, ...] = ()
    source_columns: list[str] = field(default_factory=list)
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    column_attributes: ColumnAttributes = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unusable: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows, by condition
    ends: list[Numbers] = field(default_factory=list)
    group_names: dict[str, str] = field(default_factory=dict)

    def name_groups(self, run: Run, where: str) -> None:
        """Keep the names of groups that first come in a run, as long as they are few."""
        room = MOST_GROUP_NAMES - len(self.group_names)
        if room > 0:
            found = {str(code): name for code, name in group_names(run, where).items()}
            new = [code for code in found if code not in self.group_names]
            self.group_names.update({code: found[code] for code in new[:room]})

    def see(self, inputs: Numbers) -> None:
        """Lower and raise `ends`, the least and largest of each input, by further rows if all before were seen so."""
        if self.ends:
            finite = np.where(np.isfinite(inputs), inputs, np.nan)
            self.ends[:] = [
                end(known, end.reduce(finite, axis=0, initial=np.nan))
                for end, known in zip((np.fmin, np.fmax), self.ends, strict=True)
            ]

    def attributes(self) -> Attributes:
        """What is committed with the rows."""
        encoding: Attributes = {"encoding": to_attributes(self.encodings)} if self.encodings else {}
        more: Attributes = {"missing": list(self.missing), "unusable": self.unusable, "left_out": self.left_out}
        more["group_names"] = self.group_names
        more["column_attributes"] = {column: each for column, each in self.column_attributes.items() if each}
        if CLASSES in self.columns:
            more |= {"labels": {CLASSES: list(self.labels.labels)}, "counts": {CLASSES: list(self.labels.counts)}}
        if self.ends and np.isfinite(self.ends).all():
            more["ranges"] = {"x": [end.tolist() for end in self.ends]}
        more |= {
            "dropped": [list(run) for run in self.dropped],
            "key": list(self.key),
            "source_columns": self.source_columns[:MAX_RECORDED_COLUMNS],
        }
        sources = [*self.unrecorded, *(record.to_attribute() for record in self.records)]
        return {"sources": sources, **encoding, **{name: one for name, one in more.items() if one}}

    def remember(self, reader: Reader, intake: SourceIntake, *, again: bool) -> None:
        """Record a source that was read; InputError where it has no rows or, unless `again`, was ingested before."""
        if not reader.rows and not reader.left_out:
            raise InputError(f"{reader.path}: has no rows; wanted at least one row of numbers.")
        content, there = reader.content(), {one.content: one.name for one in self.records if not one.dropped}
        there |= dict.fromkeys(self.unrecorded, "a source of rows that the data set has already")
        if content in there and not again:
            problem = f"has the content of {there[content]}, so that its rows would be there twice"
            raise InputError(f"{reader.path}: {problem}; leave it out, or give --again to have them twice.")
        self.records.append(
            SourceRecord(
                name=reader.path,
                content=content,
                first=intake.first,
                rows=intake.rows,
                box=intake.box,
            )
        )


def ingest(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    inputs: Sequence[str],
    targets: Sequence[str] = (),
    classes: str | None = None,
    weights: str | None = None,
    groups: str | None = None,
    also: Mapping[str, str | Sequence[str]] | None = None,
    missing: Sequence[float | str] = (),
    one_hot: Sequence[str] = (),
    ordered: Mapping[str, Sequence[str]] | None = None,
    encoding: Attributes | None = None,
    column_attributes: ColumnAttributes | None = None,
    where: str = "",
    text: Mapping[str, object] | None = None,
    units: Mapping[str, str] | None = None,
    unknown_zero: bool = False,
    absent_chunks: Literal["refuse", "fill"] = "refuse",
    append: bool = False,
    again: bool = False,
    replace_known: bool = False,
    key: Sequence[str] = (),
    shard_rows: int | None = None,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> int:
    """Write the rows of all sources, in order, as arrays `x` (n, d) and `y` (n, q) of a Zarr v3 group.

    A source is a file: CSV (gzipped or not, with or without header), Parquet, NPY, NPZ, NetCDF, HDF5; a Zarr group; or
    several side by side, `a.csv+b.csv`, whose columns together make each row. Variables with named dimensions
    broadcast. `absent_chunks="fill"` takes the fill value for chunks of Zarr that are not there. `inputs` and `targets`
    name columns; the name of a 2-d array stands for all its columns, a file without names has c0, c1, ..., and `=0` is
    a column of zeros. No targets: no `y`. Numbers are kept as float32 where all sources hold no more, else as float64;
    NaN and infinities are kept.

    Inputs of text become a column of 0 and 1 for each category, sorted; 0, 1, ... where they are `ordered` so. ISO
    dates and times become seconds since the first row's day, numbers of units "hours since 2000-01-01" stay in these;
    a name when:day, when:week or when:year is sine and cosine of when's place there. `one_hot` names more columns of
    categories. The store remembers it (`Encoding`), and so do models: rows are appended so, and `encoding` is that of
    another store or model. What is no category is refused, or `unknown_zero`: 0 in all columns, a gap in an order.

    A column of numbers has units where a source's attributes say so (CF conventions). The store keeps them; numbers of
    further sources are converted to those of the first, appended ones to the store's, and times in any calendar to one
    origin. `column_attributes` are those of a model, or of another store, to convert to. `units` states a column's
    units in place of what the sources say, "none" for none.

    `classes` names a column of labels: text, whole numbers, booleans, or at most 100 other numbers. They become
    the array `classes` (n, 1) of codes, -1 where there is none (an empty field, NaN, null); code k is the label
    `dorff.labels["classes"][k]` of the group's attributes, in order of first appearance, and
    `dorff.counts["classes"][k]` is how often it comes. Labels of different kinds are kept as text.

    `weights` names a column of rows' weights, which become the array `weights` (n, 1). `groups` names a column of
    labels that say which rows go together, such as trials; any number of them. They become the array `groups` (n, 1) of
    int64: whole numbers as they are, 64 bits of a hash of any other label; rows without a label are a group. FILE makes
    each source a group, as by itself are those of a new store of `FILES` sources or more, whose rows have no classes
    (of which a file may be one), and those that are appended to it; NONE makes none.

    `also` names columns of numbers for further arrays, such as the inputs of another view, or the column that says
    which rows are labelled: {"cells": ["h0", "h1"], "known": "known"}.

    Memory does not grow with the rows. A new store is written beside `out` and renamed at the end; `append=True` adds
    rows to one that ingest made, keeping its layout: its old rows can be read at any moment, and the new ones and their
    labels appear together. Stopped midway, the same call can be made again, and what it makes does not differ.
    `shard_rows` overrides the rows of a shard; `progress` is called with the number of rows written so far by this
    call, `notice` with a sentence about a likely oversight. A store remembers its sources by digests of their content
    (of text what is in the file, without gzip; of other files all bytes): one that is there already, under any name, is
    refused unless `again`.

    `where` keeps the rows that hold for a condition (`Condition`), and the store says how many were left out. `text`
    says how tables of text are written: `skip_rows`, `comment`, `delimiter`, `decimal` (`TextOptions`).

    `missing` are numbers that stand for none: NaN takes their place, and no label. Where a column has an extreme value
    that is commonly used so, far from its other values (`FillValues` says what that is), it is refused, unless "none"
    is among `missing`. The store remembers them, and so do models. Returns the rows in the store. Raises InputError,
    and changes nothing: for a source that cannot be read, a column that is missing or not of numbers, `out` there
    already (or, to append, not there or of other columns), more than 10,000 labels, a column named twice or both input
    and target, a source that is there already, what looks like a fill value; IncompleteError: no space left, or the
    disk failed: run it again."""
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    store = locate(out).resolve()
    with reported(store):
        every = [str(value) for value in missing]
        if append:
            every = [*dict.fromkeys((*kept_of(group_attributes(store), "missing", []), *every))]
        elif store.exists():
            raise InputError(f"{store}: is there already; choose another name, or give --append to add rows to it.")
        elif again and len(sources) == 1:
            raise InputError("--again: one source is not twice in a new data set; leave it out, or give --append.")
        absent = FillValues(every)
        by_file = groups is None and _of_files(store if append else None, sources, classes)
        groups = FILE if by_file else None if groups == NONE else groups
        for array, of in (also or {}).items():
            check_further(array, several(of))
        own = dict(zip(OWN, (inputs, targets, classes, weights, groups), strict=True))
        names = {array: several(of) for array, of in (own | dict(also or {})).items()}
        asked = [part for of in names.values() for name in of for part in (name, name.rpartition(":")[0])]
        fill = absent_chunks == "fill"
        if fill and not any(is_zarr(part) for source in sources for part in os.fspath(source).split("+")):
            raise InputError("--absent-chunks: none of the sources is a Zarr group; leave it out.")
        condition = Condition(where) if where else None
        asked += condition.columns if condition else ()
        opened = [open_source(source, asked, fill_absent=fill, text=text) for source in sources]
        opened = [FilteredReader(reader, condition) for reader in opened] if condition else opened
        if by_file and any(FILE in one.columns for one in opened):  # which then means that column
            names[GROUPS] = ()
        if append:
            encoding = kept_of(group_attributes(store), "encoding", {})
            column_attributes = kept_of(group_attributes(store), "column_attributes", ColumnAttributes())
        stated = dict(units or {})
        if unknown := [name for name in stated if not any(name in reader.columns for reader in opened)]:
            raise InputError(f"--units {unknown[0]}: no source has such a column; name one of those that they have.")
        if encoding is not None and (one_hot or ordered):
            raise InputError(f"{store}: its inputs are encoded as before; leave --one-hot and --ordered out.")
        if encoding is None:
            encoded = [name for array, of in names.items() if array not in OWN[1:] for name in of]
            encodings = Learner(one_hot, ordered or {}, absent, stated).learn(opened, list(dict.fromkeys(encoded)))
        else:
            encodings = from_attributes(encoding, store)
            encodings |= text_times(opened, names["x"], encodings, column_attributes or {})
        readers = [Encoded(one, encodings, absent, zero=unknown_zero, stated=stated) for one in opened]
        columns = resolve_columns(readers, names)
        check_columns(columns, names)
        wanted = attributes_to_keep(readers, columns, encodings, column_attributes)
        labels = {column for array in CODED for column in columns.get(array, ())}
        labels |= {each.column for each in encodings.values() if each.kind in ("one_hot", "ordered")}
        conversions = [reader.conversions(wanted, labels) for reader in readers]
        with staging(store) as (folder, check):
            target = _existing(store, readers, columns, shard_rows) if append else _fresh(readers, columns, shard_rows)
            target = replace(target, encodings=encodings, missing=tuple(one for one in every if one != "none"))
            kept_before = kept_of(group_attributes(store), "left_out", Attributes()) if append else {}
            target = replace(target, column_attributes=wanted)
            target = replace(target, key=tuple(several(key)) or target.key)
            remarks = _column_remarks(target, readers)
            target = replace(target, source_columns=list(readers[-1].columns))
            shown = progress or (lambda _: None)
            compared = append or len(readers) > 1
            with _Delivery(folder, target, store if append else None, compared=compared) as delivery:
                added, unusable, ungrouped = _write(
                    folder, target, readers, conversions, absent, shown, delivery, again=again
                )
                left_out = sum(reader.left_out for reader in readers)
                if where and not added:
                    raise InputError(f"--where {where}: holds for none of {left_out:,} rows; correct it.")
                target, known = delivery.settle(target, again=again, replace_known=replace_known)
            remarks += known
            before = kept_of(group_attributes(store), "unusable", 0) if append else 0
            target = replace(target, unusable=before + unusable)
            held = kept_before | ({where: kept_before.get(where, 0) + left_out} if where else {})
            target = replace(target, left_out=held)
            if append:
                _commit_append(folder, store, target, target.rows + added, check)
            else:
                write_metadata(folder, target.arrays, rows=added, columns=columns, more=target.attributes())
                check()
                folder.rename(store)
                sync_directory(store.parent)
        tell = notice or (lambda _: None)
        if where:
            tell(f"{left_out:,} of {added + left_out:,} rows were left out by --where {where}")
        if other := next((each for each in kept_before if each != where), ""):
            tell(f"rows before these were chosen by --where {other}; give it again where it is meant")
        for sentence in (*conversion_notices(conversions), *remarks):
            tell(sentence)
        for remark in next((reader.remarks for reader in opened if reader.remarks), ()):
            tell(remark)
        for value in (one for one in absent.unmet.values() if str(one) in map(str, missing)):
            tell(f"--missing {value}: no value of the columns named is it; see how the sources write it")
        if unusable:
            others = "partial: only those with a gap in the inputs, or no target; unlabelled: only the former"
            problem = f"{unusable:,} of {added:,} rows hold NaN or infinity: a fit refuses them, or leaves them out"
            tell(f"{problem} where its job says data.nan: drop ({others})")
        if ungrouped:
            tell(f"{ungrouped:,} of {added:,} rows have no group: together they are one more group")
        return target.rows + added


def _of_files(store: Path | None, sources: Sequence[str | os.PathLike[str]], classes: str | None) -> bool:
    """Whether each source is a group, where nothing is said of groups: in a store that is appended to as before."""
    if store is not None:
        return bool(columns_of(group_attributes(store)).get(GROUPS) == [FILE])
    return classes is None and len(set(sources)) >= FILES


def _fresh(readers: Sequence[Reader], columns: Columns, shard_rows: int | None) -> _Target:
    shard, unit = shard_and_unit_rows(sum(map(len, columns.values())), 0, shard_rows)
    arrays = {name: ArrayLayout(len(of), shard, unit, _dtype(readers, name, of)) for name, of in columns.items()}
    none = np.full(len(columns["x"]), np.nan)
    return _Target(columns, arrays, LabelTable(), ends=[none, none])


def _dtype(readers: Sequence[Reader], array: str, columns: Sequence[str]) -> str:
    if array in CODED:
        return "int32" if array == CLASSES else "int64"
    return str(common_dtype([r.dtype(c) for r in readers for c in columns]))


def _existing(store: Path, readers: Sequence[Reader], columns: Columns, shard_rows: int | None) -> _Target:
    attributes = group_attributes(store)
    remedy = "so rows cannot be appended; ingest all its rows into a new store."
    (_, rows), held = ingested(store, attributes, remedy)
    if held != {name: list(of) for name, of in columns.items()}:
        remedy = "append the same inputs and targets, groups as before."
        raise InputError(f"{store}: has columns {held}, the sources {columns}; {remedy}")
    arrays = {name: _kept_layout(store, name) for name in columns}
    for name, layout in arrays.items():
        if shard_rows not in (None, layout.shard_rows):
            raise InputError(f"{store}: has shards of {layout.shard_rows} rows, not {shard_rows}; leave it out.")
        wanted = _dtype(readers, name, columns[name])
        if not np.can_cast(wanted, layout.stored):
            raise InputError(f"{store}: array {name} holds {layout.dtype}, but the sources give {wanted}; start anew.")
    # The partly filled last shard is written again, longer; its rows are read now, before anything changes.
    first = rows - rows % arrays["x"].shard_rows
    tail = {name: open_dataset(store, inputs=name, targets=None).exact(name, first, rows) for name in columns}
    records, unrecorded = read_sources(attributes["dorff"].get("sources", []), store)
    labels = stored_labels(attributes, store) or LabelTable()
    ends = [np.array(end, dtype=np.float64) for end in attributes["dorff"].get("ranges", {}).get("x", ())]
    return _Target(
        columns,
        arrays,
        labels,
        rows,
        tail,
        records,
        unrecorded,
        dropped=merge_runs(kept_of(attributes, "dropped", [])),
        key=tuple(kept_of(attributes, "key", [])),
        source_columns=kept_of(attributes, "source_columns", []),
        ends=ends,
        group_names=dict(kept_of(attributes, "group_names", dict[str, str]())),
    )


def _column_remarks(target: _Target, readers: Sequence[Reader]) -> list[str]:
    """Say which columns the first source lacks, or has besides, that differs from the one before it."""
    before = target.source_columns
    for reader in readers:
        after = list(reader.columns)
        if before and len(before) < MAX_RECORDED_COLUMNS:
            added, missing = split_changed_columns(before, after)
            changes = [f"the new columns {', '.join(added[:10])}"] * bool(added)
            changes += [f"no columns {', '.join(missing[:10])} any more"] * bool(missing)
            if changes:
                return [f"{reader.path}: has {' and '.join(changes)}, compared with the source before it"]
        before = after
    return []


def _kept_layout(store: Path, name: str) -> ArrayLayout:
    stored = open_array(store, name)
    files, dtype = stored.files, np.dtype(stored.array.dtype).name
    layout = ArrayLayout(stored.columns, files.outer[0], files.inner[0], dtype)
    wanted, held = normal(layout.metadata(stored.rows)), normal(read_json(store / name / "zarr.json"))
    if any(wanted[key] != held.get(key) for key in ("data_type", "chunk_grid", "chunk_key_encoding", "codecs")):
        raise InputError(f"{store}: array {name} is not as `dorff ingest` writes it; ingest all rows into a new one.")
    return layout


def _write(
    staging: Path,
    target: _Target,
    readers: Sequence[Reader],
    conversions: Sequence[Conversions],
    absent: FillValues,
    progress: Progress,
    delivery: "_Delivery",
    *,
    again: bool,
) -> tuple[int, int, int]:
    """Write the last shard's rows, then all rows of the sources, into shards in the staging folder. Returns how many
    rows the sources have, how many of them hold NaN or infinity, and how many have no group."""
    plain = {array: of for array, of in target.columns.items() if array not in CODED}
    coded = {array: target.columns[array][0] for array in CODED if array in target.columns}
    labels = list(dict.fromkeys(coded.values()))
    names = list(dict.fromkeys(c for of in plain.values() for c in of))
    place = {column: i for i, column in enumerate(names)}
    places = {array: [place[c] for c in of] for array, of in plain.items()}
    added = unusable = ungrouped = 0
    with ExitStack() as stack:
        writers = {}
        for name, layout in target.arrays.items():
            start = target.rows - target.rows % layout.shard_rows
            writers[name] = stack.enter_context(ShardWriter(staging / name, layout, start=start))
        for name, rows in (target.tail or {}).items():
            writers[name].write(rows)
        for reader, converted in zip(readers, conversions, strict=True):
            intake = delivery.begin(target.rows + added)
            for block in reader.blocks(names, labels):
                numbers = absent.blank(block.numbers)
                if converted.by_column:
                    numbers = converted.convert(numbers, names, reader.path)
                target.see(numbers[:, places["x"]])
                stored = {
                    name: numbers[:, places[name]].astype(target.arrays[name].stored, copy=False) for name in places
                }
                for name, column in coded.items():
                    run = absent.blank_labels(block.labels[labels.index(column)])
                    where = f"{reader.path}: column {column!r}"
                    codes = target.labels.codes(run, where) if name == CLASSES else group_codes(run, where)
                    stored[name] = codes
                    if name == GROUPS:
                        target.name_groups(run, where)
                    ungrouped += int(np.sum(codes == NO_GROUP)) if name == GROUPS else 0
                for name, values in stored.items():
                    writers[name].write(values)
                intake.add(stored)
                added += len(block)
                unusable += len(block) - int(np.isfinite(numbers).all(axis=1).sum())
                progress(added)
            target.remember(reader, intake, again=again)
        absent.check(readers[0].path + (f" and {len(readers) - 1} more" if len(readers) > 1 else ""), names)
    return added, unusable, ungrouped


class _Delivery(AbstractContextManager["_Delivery"]):
    """The sources of one call, and what of their rows the store has already; in temporary files until it is left."""

    def __init__(self, folder: Path, target: _Target, store: Path | None, *, compared: bool) -> None:
        self._target, self._store = target, store
        self._columns = _key_columns(target)
        self._sampled = [name for name in ("x", "y") if name in target.columns]
        self._intakes: list[SourceIntake] = []
        self._known: KnownRows | None = None
        if compared:
            self._folder = Path(tempfile.mkdtemp(prefix="dorff-"))
            if locate(folder).folders:
                self._folder = folder / ".delivered"  # no array has such a name
                self._folder.mkdir(parents=True)
            self._known = KnownRows(self._folder)

    def __exit__(self, *failure: object) -> None:
        if self._known is not None:
            self._known.close()
            self._folder.rmdir()
            self._known = None

    def begin(self, first: int) -> SourceIntake:
        """Return what takes the rows of the next source, which starts with this row number."""
        intake = SourceIntake(
            first,
            len(self._target.columns["x"]),
            columns=self._columns,
            known=self._known,
            sampled=self._sampled,
        )
        self._intakes.append(intake)
        return intake

    def settle(self, target: _Target, *, again: bool, replace_known: bool) -> tuple[_Target, list[str]]:
        """Return the target with what is known of its sources, and remarks on them.

        Raises InputError for a source that seems to be there already unless `again` or `replace_known`, and for
        rows to be replaced that nothing identifies.
        """
        if self._known is None:
            return target, []
        comparisons, met = self._compare()
        earlier, records = target.records[: -len(self._intakes)], target.records[-len(self._intakes) :]
        remarks = self._spread_remarks()
        for record, comparison in zip(records, comparisons, strict=True):
            remarks += _known_remarks(record, comparison, target, again=again, replace_known=replace_known)
        replaced = 0
        if replace_known and met:
            before = sum(stop - first for first, stop in target.dropped)
            dropped = merge_runs(target.dropped, met)
            if len(dropped) > MAX_RUNS:
                problem = f"the rows to be replaced lie in {len(dropped):,} places of it, more than {MAX_RUNS:,}"
                raise InputError(f"{self._store}: {problem}; ingest all its rows into a new store.")
            target, replaced = replace(target, dropped=dropped), sum(b - a for a, b in dropped) - before
            remarks.append(f"{replaced:,} rows that were there before are dropped for those delivered")
        records = [
            replace(record, duplicates=comparison.duplicates, corrected=comparison.corrected)
            for record, comparison in zip(records, comparisons, strict=True)
        ]
        records[-1] = replace(records[-1], replaced=replaced)
        return replace(target, records=[*earlier, *records]), remarks

    def _compare(self) -> tuple[list[Comparison], Runs]:
        """Compare the delivered rows with those of the store that could be equal."""
        assert self._known is not None
        for numbers, rows in self._earlier_rows():
            self._known.offer(numbers, *self._columns.digests(rows), declared=bool(self._target.key))
        stops = [intake.stop for intake in self._intakes]
        return self._known.compare(stops, key_identifies=bool(self._target.key))

    def _earlier_rows(self) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]]:
        """Read the rows of sources whose inputs overlap with a delivered source's, without dropped ones."""
        if self._store is None:
            return
        target, opened = self._target, self._opened()
        delivered = [
            SourceRecord(name="", content="", first=intake.first, rows=intake.rows, box=intake.box)
            for intake in self._intakes
        ]
        earlier = target.records[: -len(self._intakes)]
        apart = [one for one in earlier if one.dropped or not any(map(one.overlaps, delivered))]
        step = opened["x"].unit_rows * max(1, 65536 // opened["x"].unit_rows)
        skipped = merge_runs([(one.first, one.stop) for one in apart], target.dropped)
        for start, stop in iterate_runs(subtract_runs(opened["x"].first, target.rows, skipped), step):
            yield np.arange(start, stop), {name: dataset.exact(name, start, stop) for name, dataset in opened.items()}

    def _spread_remarks(self) -> list[str]:
        """Say which columns of a source vary far more than before, or, of targets, far less."""
        target = self._target
        names = [name for array in self._sampled for name in target.columns[array]]
        before = None if self._store is None else self._stored_spreads(len(names))
        sample, remarks = ColumnSample(), []
        for intake, record in zip(self._intakes, target.records[-len(self._intakes) :], strict=True):
            known = sample.spreads(len(names)) if before is None else before
            for name, old, new in zip(names, known, intake.sample.spreads(len(names)), strict=True):
                encoding = target.encodings.get(name)
                is_time = encoding is not None and encoding.clock
                if not is_time and has_jumped(old, new, either=name in target.columns.get("y", ())):
                    spreads = f"its median absolute deviation is {new:.3g}, but {old:.3g} before"
                    remarks.append(f"{record.name}: column {name!r} may have another unit: {spreads}; check it")
            sample = sample.merge(intake.sample)
        return remarks

    def _stored_spreads(self, columns: int) -> list[float | None]:
        """Estimate the spreads of the store's columns from a sample of its rows."""
        opened = self._opened()
        dataset = opened["x"]
        keep, count = [], max(1, min(16, -(-dataset.rows // dataset.unit_rows)))
        rows = min(2048, dataset.unit_rows)
        for start in np.linspace(dataset.first, max(dataset.first, dataset.n - rows), count).astype(int).tolist():
            stop = min(start + rows, dataset.n)
            values = np.hstack([opened[name].exact(name, start, stop) for name in self._sampled])
            keep.append(values[~mark_rows(self._target.dropped, start, stop)])
        values = np.vstack([np.empty((0, columns)), *keep])
        return [median_absolute_deviation(column) for column in values.T]

    def _opened(self) -> dict[str, Dataset]:
        assert self._store is not None
        return {name: open_dataset(self._store, inputs=name, targets=None) for name in self._target.columns}


def _key_columns(target: _Target) -> KeyColumns:
    """Return the columns that identify a row: those named, else the inputs and the group; and all of them."""
    places = {name: (array, place) for array, of in target.columns.items() for place, name in enumerate(of)}
    every = tuple((array, place) for array, of in target.columns.items() for place in range(len(of)))
    key = tuple((array, place) for array, place in every if array in ("x", GROUPS))
    if target.key:
        named = [
            column
            for name in target.key
            for column in (target.encodings[name].columns if name in target.encodings else (name,))
        ]
        if unknown := [name for name in named if name not in places]:
            held = ", ".join(list(places)[:20])
            problem = f"wanted columns that are ingested, got {unknown[0]!r}; the columns are: {held}"
            raise InputError(f"--key: {problem}; name it in --also too, or leave it out.")
        key = tuple(places[name] for name in named)
    return KeyColumns(key=key, row=every)


def _known_remarks(
    record: SourceRecord, comparison: Comparison, target: _Target, *, again: bool, replace_known: bool
) -> list[str]:
    """Say how many rows of a source are there already; InputError where it seems to be an earlier one."""
    by = ", ".join(target.key) if target.key else "inputs"
    found = f"{comparison.duplicates:,} of {comparison.rows:,} rows are there already"
    if comparison.corrected:
        found += f", and {comparison.corrected:,} have the {by} of a row there, but other values"
    if replace_known and comparison.known_keys and not comparison.is_identified:
        remedy = "name columns that identify a row by --key"
        raise InputError(
            f"{record.name}: {found}; several rows have the same {by}, so that none can be replaced; {remedy}."
        )
    if not (comparison.duplicates or comparison.corrected):
        return []
    if comparison.is_redelivery and not (again or replace_known):
        remedy = "give --replace to have these rows in place of those, --again to have both, or leave the source out"
        raise InputError(f"{record.name}: {found}: it seems to be an earlier source, delivered again; {remedy}.")
    choice = "" if again or replace_known else "; --replace would have taken the new ones in their place"
    return [f"{record.name}: {found}{choice}"]


def _commit_append(staging: Path, store: Path, target: _Target, rows: int, check: Callable[[], None]) -> None:
    """Move the staged shards in, then commit the new number of rows. Until the last write readers see the old rows
    only: the one shard that is replaced holds them too."""
    for name in target.arrays:
        for shard in sorted((staging / name / "c").iterdir(), key=lambda p: int(p.name)):
            if locate(store).folders:
                (store / name / "c" / shard.name).mkdir(parents=True, exist_ok=True)
            check()
            (shard / "0").replace(store / name / "c" / shard.name / "0")
            sync_directory(store / name / "c" / shard.name)
        sync_directory(store / name / "c")
    # The metadata is edited rather than written anew: what others added to it stays.
    for name in target.arrays:
        check()
        array = read_json(store / name / "zarr.json")
        array["shape"][0] = rows
        rewrite(store / name / "zarr.json", array)
    commit(store, {"rows": rows, **target.attributes()})
