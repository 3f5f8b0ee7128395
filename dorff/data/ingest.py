"""Turns files of rows into a Zarr group, or adds them to one; whole or not at all."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from dorff.data.columns import (
    CODED,
    OWN,
    attributes_to_keep,
    check_columns,
    check_dimensions,
    check_further,
    resolve_columns,
)
from dorff.data.conditions import Condition, check_some_left, compared_attributes, filter_sources, shorten_condition
from dorff.data.deliveries import Delivery
from dorff.data.encoding import Encoded, Encoding, from_attributes, with_encoded_times
from dorff.data.labels import (
    CLASSES,
    FILE,
    GROUPS,
    NO_GROUP,
    describe_new_labels,
    group_codes,
)
from dorff.data.layout import (
    Attributes,
    ShardWriter,
    columns_of,
    commit,
    read_json,
    reported,
    rewrite,
    staging,
    write_metadata,
)
from dorff.data.learning import Learner, text_times
from dorff.data.nodes import group_attributes, kept_of
from dorff.data.packing import FillValues
from dorff.data.pending_store import PendingStore
from dorff.data.readers import Reader, is_zarr, open_source
from dorff.data.resolutions import join_resolutions
from dorff.data.row_runs import clip_runs
from dorff.data.source_records import describe_changed_columns
from dorff.data.stores import count_unusable, several
from dorff.data.units import ColumnAttributes, Conversions, conversion_notices
from dorff.data.written_dates import describe_written_dates
from dorff.errors import InputError
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

NONE: Final = "none"  # groups
FILES: Final = 7  # sources, more than a job has folds: a group each
Progress = Callable[[int], None]
Notice = Callable[[str], None]


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
    where_attributes: ColumnAttributes | None = None,
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
    says how tables of text are written: `skip_rows`, `comment`, `delimiter`, `decimal` (`TextOptions`). To a
    condition, `missing` values are unknown, and numbers have the units that the store keeps, else the first source's,
    which it keeps then. `where_attributes` are those of a model, in whose units it compares then.

    `missing` are numbers and words that stand for none: NaN takes their place, and no label; words are looked for in
    tables of text, and in columns of labels. Where a column has an extreme value
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
        if again and replace_known:
            raise InputError("--again and --replace: rows cannot be both kept and replaced; give one of them.")
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
        kept_columns = list(dict.fromkeys(asked))
        asked += condition.columns if condition else ()
        text = {**(text or {}), "missing": absent.words}
        opened = [open_source(source, asked, fill_absent=fill, text=text) for source in sources]
        check_dimensions(opened, names, condition.columns if condition else ())
        if by_file and any(FILE in one.columns for one in opened):  # which then means that column
            names[GROUPS] = ()
        if append:
            encoding = kept_of(group_attributes(store), "encoding", {})
            column_attributes = kept_of(group_attributes(store), "column_attributes", ColumnAttributes())
            where_attributes = kept_of(group_attributes(store), "where_attributes", ColumnAttributes())
        stated = dict(units or {})
        if unknown := [name for name in stated if not any(name in reader.columns for reader in opened)]:
            raise InputError(f"--units {unknown[0]}: no source has such a column; name one of those that they have.")
        as_stored = {*stated, *one_hot, *(ordered or {}), *_category_columns(from_attributes(encoding or {}, store))}
        as_stored |= {name for array in CODED for name in names[array]}
        for reader in opened:
            reader.keep_digits([name for name in kept_columns if name not in as_stored], absent)
        filtered = []
        if condition is not None:
            kept = with_encoded_times(column_attributes or {}, encoding or {}, store) | (where_attributes or {})
            attributes = compared_attributes(opened, condition, kept=kept, stated=stated)
            where_attributes = (where_attributes or {}) | attributes
            for reader in opened:  # after their attributes, which are kept as the file has them
                reader.keep_digits([name for name in condition.paired_columns if name not in as_stored], absent)
            filtered = filter_sources(opened, condition, absent, wanted=attributes, stated=stated)
            opened = [*filtered]
        if encoding is not None and (one_hot or ordered):
            raise InputError(f"{store}: its inputs are encoded as before; leave --one-hot and --ordered out.")
        if encoding is None:
            encoded = [name for array, of in names.items() if array not in OWN[1:] for name in of]
            encodings = Learner(one_hot, ordered or {}, absent, stated, where).learn(
                opened, list(dict.fromkeys(encoded))
            )
        else:
            encodings = from_attributes(encoding, store)
            encodings |= text_times(opened, names["x"], encodings, column_attributes or {})
        readers = [Encoded(one, encodings, absent, zero=unknown_zero, stated=stated) for one in opened]
        columns = resolve_columns(readers, names)
        check_columns(columns, names)
        wanted = attributes_to_keep(readers, columns, encodings, column_attributes)
        labels = {column for array in CODED for column in columns.get(array, ())}
        labels |= _category_columns(encodings)
        conversions = [reader.conversions(wanted, labels) for reader in readers]
        with staging(store) as (folder, check):
            if append:
                pending = PendingStore.load(store, readers, columns, shard_rows)
            else:
                pending = PendingStore.create(readers, columns, shard_rows)
            kept_missing = tuple(value for value in every if value != "none")
            pending = replace(pending, encodings=encodings, missing=kept_missing)
            labels_before = pending.labels.labels
            kept_before = kept_of(group_attributes(store), "left_out", Attributes()) if append else {}
            beside = {name: kept for name, kept in (where_attributes or {}).items() if name not in wanted}
            pending = replace(pending, column_attributes=wanted, where_attributes=beside)
            pending = replace(pending, key=tuple(several(key)) or pending.key)
            for converted in conversions:
                resolutions = join_resolutions(pending.resolutions, converted.resolutions)
                pending = replace(pending, resolutions=resolutions)
            remarks = describe_changed_columns(pending.source_columns, readers)
            pending = replace(pending, source_columns=list(readers[-1].columns))
            shown = progress or (lambda _: None)
            compared = append or len(readers) > 1 or bool(pending.key)
            with Delivery(folder, pending, store if append else None, compared=compared) as delivery:
                added, unusable, ungrouped = _write(
                    folder,
                    pending,
                    readers,
                    conversions,
                    absent,
                    shown,
                    delivery,
                    where=where,
                    again=again or replace_known,
                )
                left_out = sum(reader.left_out for reader in readers)
                for number, rows_kept in enumerate(filtered if replace_known else ()):
                    rows_left_out = Encoded(rows_kept.complement(), encodings, absent, zero=True, stated=stated)
                    delivery.withdraw(number, rows_left_out, conversions[number], absent)
                if not added:
                    check_some_left(readers, where)
                pending, known = delivery.settle(pending, again=again, replace_known=replace_known)
            remarks += known
            if not append:
                remarks += describe_written_dates(pending.unitless_input_ends())
            if new_labels := describe_new_labels(labels_before, pending.labels.labels):
                remarks.append(f"column {columns[CLASSES][0]!r} {new_labels}")
            replaced_at_once = clip_runs(pending.dropped, pending.rows, pending.rows + added)
            if unusable and replaced_at_once:
                # With their metadata the staged rows can be read.
                write_metadata(folder, pending.arrays, rows=pending.rows + added, columns=columns)
                unusable -= count_unusable(folder, columns, replaced_at_once)
            before = kept_of(group_attributes(store), "unusable", 0) if append else 0
            unusable_before = max(0, before - delivery.unusable_replaced)
            pending = replace(pending, unusable=unusable_before + unusable)
            held = kept_before | ({where: kept_before.get(where, 0) + left_out} if where else {})
            pending = replace(pending, left_out=held)
            if append:
                _commit_append(folder, store, pending, pending.rows + added, check)
            else:
                write_metadata(folder, pending.arrays, rows=added, columns=columns, more=pending.attributes())
                check()
                folder.rename(store)
                sync_directory(store.parent)
        tell = notice or (lambda _: None)
        if where:
            tell(f"{left_out:,} of {added + left_out:,} rows were left out by --where {shorten_condition(where)}")
        if other := next((each for each in kept_before if each != where), ""):
            remedy = "where it is meant for these too, give it, and --replace, with them again"
            tell(f"rows before these were chosen by --where {shorten_condition(other)}; {remedy}")
        comparisons = [reader.comparison for reader in filtered]
        for sentence in (*conversion_notices(conversions, comparisons), *remarks):
            tell(sentence)
        for remark in next((reader.remarks for reader in opened if reader.remarks), ()):
            tell(remark)
        for value in (one for one in absent.unmet.values() if str(one) in map(str, missing)):
            tell(f"--missing {value}: no value of the columns named is it; see how the sources write it")
        found_words = frozenset().union(*(reader.found_words for reader in opened))
        for word in sorted(absent.unmet_words - found_words):
            if word in map(str, missing):
                tell(f"--missing {word}: no field of text is it; see how the sources write it")
        if unusable:
            others = "partial: only those with a gap in the inputs, or no target; unlabelled: only the former"
            problem = f"{unusable:,} of {added:,} rows hold NaN or infinity: a fit refuses them, or leaves them out"
            tell(f"{problem} where its job says data.nan: drop ({others})")
        if ungrouped:
            tell(f"{ungrouped:,} of {added:,} rows have no group: together they are one more group")
        return pending.rows + added


def _of_files(store: Path | None, sources: Sequence[str | os.PathLike[str]], classes: str | None) -> bool:
    """Whether each source is a group, where nothing is said of groups: in a store that is appended to as before."""
    if store is not None:
        return bool(columns_of(group_attributes(store)).get(GROUPS) == [FILE])
    return classes is None and len(set(sources)) >= FILES


def _category_columns(encodings: Mapping[str, Encoding]) -> set[str]:
    """Return the columns of categories, which are labels, also where these are numbers."""
    return {encoding.column for encoding in encodings.values() if encoding.kind in ("one_hot", "ordered")}


def _write(
    staging: Path,
    pending: PendingStore,
    readers: Sequence[Reader],
    conversions: Sequence[Conversions],
    absent: FillValues,
    progress: Progress,
    delivery: Delivery,
    *,
    where: str,
    again: bool,
) -> tuple[int, int, int]:
    """Write the last shard's rows, then all rows of the sources, into shards in the staging folder.

    Returns how many rows the sources have, how many of them hold NaN or infinity, and how many have no group.
    """
    coded = {array: pending.columns[array][0] for array in CODED if array in pending.columns}
    labels = list(dict.fromkeys(coded.values()))
    names = pending.number_columns
    added = unusable = ungrouped = 0
    with ExitStack() as stack:
        writers = {}
        for name, layout in pending.arrays.items():
            start = pending.rows - pending.rows % layout.shard_rows
            writers[name] = stack.enter_context(ShardWriter(staging / name, layout, start=start))
        for name, rows in pending.tail.items():
            writers[name].write(rows)
        for reader, converted in zip(readers, conversions, strict=True):
            intake = delivery.begin_source(pending.rows + added)
            shifts = reader.time_shifts
            shifted = [place for place, name in enumerate(names) if name in shifts]  # looked at as stored
            for block in reader.blocks(names, labels):
                numbers = block.numbers
                absent.look(numbers, skipped=shifted)
                if converted.by_column:
                    numbers = converted.convert(numbers, names, reader.path)
                stored = pending.number_arrays(numbers)
                pending.extend_input_ends(stored["x"])
                for name, column in coded.items():
                    run = absent.blank_labels(block.labels[labels.index(column)])
                    place_of = f"{reader.path}: column {column!r}"
                    codes = pending.labels.codes(run, place_of) if name == CLASSES else group_codes(run, place_of)
                    stored[name] = codes
                    if name == GROUPS:
                        pending.keep_group_names(run, place_of)
                    ungrouped += int(np.sum(codes == NO_GROUP)) if name == GROUPS else 0
                for name, values in stored.items():
                    writers[name].write(values)
                intake.add(stored)
                added += len(block)
                unusable += len(block) - int(np.isfinite(numbers).all(axis=1).sum())
                progress(added)
            if not reader.rows and not reader.left_out:
                problem = "has no rows; wanted at least one row of numbers"
                raise InputError(f"{reader.path}: {problem}.")
            record = intake.to_record(
                name=reader.path,
                content=reader.content(),
                where=where,
                left_out=reader.left_out,
            )
            pending.add_source(record, again=again)
        absent.check(readers[0].path + (f" and {len(readers) - 1} more" if len(readers) > 1 else ""), names)
    return added, unusable, ungrouped


def _commit_append(staging: Path, store: Path, pending: PendingStore, rows: int, check: Callable[[], None]) -> None:
    """Move the staged shards in, then commit the new number of rows. Until the last write readers see the old rows
    only: the one shard that is replaced holds them too."""
    for name in pending.arrays:
        for shard in sorted((staging / name / "c").iterdir(), key=lambda p: int(p.name)):
            if locate(store).folders:
                (store / name / "c" / shard.name).mkdir(parents=True, exist_ok=True)
            check()
            (shard / "0").replace(store / name / "c" / shard.name / "0")
            sync_directory(store / name / "c" / shard.name)
        sync_directory(store / name / "c")
    # The metadata is edited rather than written anew: what others added to it stays.
    for name in pending.arrays:
        check()
        array = read_json(store / name / "zarr.json")
        array["shape"][0] = rows
        rewrite(store / name / "zarr.json", array)
    commit(store, {"rows": rows, **pending.attributes()})
