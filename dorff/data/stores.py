"""A data set's store as a whole: opened as inputs and targets, verified, shards taken off its front."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import dorff.data.nodes as nodes
from dorff.data.array_files import ArrayFiles, Fault
from dorff.data.dataset import Column, Dataset, describe_ingest
from dorff.data.labels import CLASSES, GROUPS, Classes, Coding, distinct, placed, stored_labels, text_of
from dorff.data.layout import Attributes, columns_of, commit, has_seal, lost_seal, reported, staging
from dorff.data.nodes import Node, check_seals, committed, group_attributes, ingested, open_array, open_zarr, walk
from dorff.data.row_runs import (
    Runs,
    clip_runs,
    count_rows,
    iterate_runs,
    merge_runs,
    subtract_runs,
)
from dorff.data.source_records import SourceRecord, find_source, read_sources
from dorff.data.units import ColumnAttributes
from dorff.errors import InputError
from dorff.storage.files import rmtree, sync_directory
from dorff.storage.location import locate

# A common multiple of the arrays' shards beyond this many of the largest is given up.
MAX_SHARDS_IN_COMMON: Final = 16
ONE_HOT_BYTES: Final = 16 * 2**20  # of a unit's rows of labels, at most


def open_dataset(
    path: str | os.PathLike[str],
    *,
    inputs: str | Sequence[str] = "x",
    targets: str | Sequence[str] | Classes | None = "y",
    weights: str | None = None,
    groups: str | None = None,
    labelled: str | None = None,
) -> Dataset:
    """Open arrays of the Zarr group at `path` (a local folder, v2 or v3) as inputs and targets.

    A list of arrays is stacked as columns; `targets=None` opens inputs only. Arrays are 1-d or 2-d, of real numbers.
    Values packed by the CF conventions (fill value, scale, offset), as xarray writes them, are unpacked.

    `Classes(name)` are one-hot targets. The labels are those that ingest kept; of an array of integers, booleans or
    text by others they are its different values, sorted, found by reading all of it now. `weights`, `groups` and
    `labelled` (0 and 1) name a column each, of numbers: an array of one column, or a column of any array. Labels are
    then those of the labelled rows. Raises InputError: not a Zarr group; an array that is missing, not of numbers, of
    more than two dimensions, or of another length; no such column; classes that are real numbers, or more than 10,000,
    or not those wanted."""
    group = locate(path).absolute()
    attributes = nodes.group_attributes(group)
    classes = targets if isinstance(targets, Classes) else None
    x_names, y_names = several(inputs), several(targets.name if isinstance(targets, Classes) else targets)
    if not x_names:
        raise InputError(f"{group}: inputs: wanted at least one array, got none; name those that hold the inputs.")
    try:
        arrays = {name: nodes.open_array(group, name) for name in x_names}
        arrays |= {name: nodes.open_array(group, name, text=classes is not None) for name in y_names}
    except nodes.GridError as error:
        raise InputError(f"{error}; {_cells_remedy(group, x_names, targets)}.") from error
    _check_first_dims(group, arrays, _cells_remedy(group, x_names, targets))
    width = {name: stored.columns for name, stored in arrays.items()}
    find, names = partial(Column.find, group, attributes, arrays=tuple(width)), (weights, groups, labelled)
    columns = [None if name is None else find(name=name) for name in names]
    arrays |= {column.array: nodes.open_array(group, column.array) for column in columns if column is not None}
    nodes.check_seals(group, attributes, arrays)
    rows, (shard_rows, unit_rows) = _rows(group, attributes, arrays), _row_grids(list(arrays.values()))
    numbers = x_names if classes else (*x_names, *y_names)
    column_attributes: ColumnAttributes = {}
    for name in numbers:
        column_attributes |= nodes.column_attributes(attributes, name, arrays[name])
    dataset = Dataset(
        path=str(group),
        inputs=x_names,
        targets=y_names,
        n=rows.stop,
        d=sum(width[name] for name in x_names),
        q=sum(width[name] for name in y_names),
        shard_rows=shard_rows,
        unit_rows=unit_rows,
        input_columns=tuple(c for name in x_names for c in nodes.stored_columns(attributes, name, width[name])),
        target_columns=tuple(c for name in y_names for c in nodes.stored_columns(attributes, name, width[name])),
        weights=columns[0],
        groups=columns[1],
        labelled=columns[2],
        first=rows.start,
        encoding=nodes.kept_of(attributes, "encoding", {}),
        column_attributes=column_attributes,
        missing=tuple(nodes.kept_of(attributes, "missing", [])),
        unusable=nodes.kept_of(attributes, "unusable", 0),
        dropped=merge_runs(nodes.kept_of(attributes, "dropped", [])),
    )
    return dataset if classes is None else _with_classes(dataset, classes, attributes)


def _cells_remedy(group: Path, inputs: Sequence[str], targets: str | Sequence[str] | Classes | None) -> str:
    """Say how rows are made of arrays with more, or other, dimensions."""
    classes = isinstance(targets, Classes)
    names = targets.name if isinstance(targets, Classes) else targets
    command = describe_ingest(group, inputs, several(names), classes=classes)
    return f"make a row of each cell: {command}"


def _check_first_dims(group: Path, arrays: Mapping[str, nodes.StoredArray], remedy: str) -> None:
    """InputError where arrays by others lie along different dimensions, such as lat and lon, of one length perhaps."""
    first = {name: stored.dims[0] for name, stored in arrays.items() if stored.dims and stored.dims[0]}
    if len(set(first.values())) > 1:
        shown = ", ".join(f"{name} along {dim}" for name, dim in first.items())
        raise InputError(f"{group}: its arrays have no rows in common ({shown}); {remedy}.")


def check_disjoint(inputs: Sequence[str], targets: Sequence[str], what: str) -> None:
    """InputError where one of these, `what` says of what, is both an input and a target; constants may be."""
    for name in targets:
        if name in inputs and not name.startswith("="):
            problem = f"{what} {name!r} is among both inputs and targets, so that a model would learn to repeat it"
            raise InputError(f"{problem}; name it as one of them.")


def _with_classes(dataset: Dataset, classes: Classes, attributes: Attributes) -> Dataset:
    where = f"{dataset.path}: array {classes.name}"
    stored = nodes.open_array(locate(dataset.path), classes.name, text=True)
    dtype = np.dtype(stored.array.dtype)
    if stored.columns != 1:
        raise InputError(f"{where}: wanted one column of labels, got {stored.columns}; name an array of one.")
    table = stored_labels(attributes, dataset.path) if classes.name == CLASSES else None
    if table is not None:
        coding = Coding(*placed(table.labels, classes, where))
    elif dtype.kind == "f":
        problem = f"wanted labels (whole numbers, booleans, text), got {dtype}; it looks like a target"
        remedy = "Name its column in `dorff ingest --classes` to have labels, or store it as integers"
        raise InputError(f"{where}: {problem}. {remedy}.")
    else:
        runs = ((dataset.stored_labels(*run), dataset.labelled_rows(*run)) for run in dataset.runs())
        values = distinct((values if some is None else values[some] for values, some in runs), where)
        if not values and dataset.labelled is not None:
            problem = f"holds no label in any row that column {dataset.labelled.name} has a 1 for"
            raise InputError(f"{where}: {problem}; set it to 1 where there is a label, or name another column.")
        coding = Coding.of_values(values, classes, where, boolean=dtype.kind == "b")
    q = len(coding.labels)
    unit, most = dataset.unit_rows, max(1, ONE_HOT_BYTES // (8 * q))
    if unit > most:
        unit = next(k for k in range(most, 0, -1) if unit % k == 0)
    return replace(dataset, q=q, unit_rows=unit, target_columns=tuple(map(text_of, coding.labels)), coding=coding)


def several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of which one may be given as such, or none."""
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _rows(group: Path, attributes: Attributes, arrays: dict[str, nodes.StoredArray]) -> range:
    if (committed := nodes.committed(group, attributes)) is not None:
        for name, stored in arrays.items():
            if stored.rows < committed.stop:
                problem = f"array {name} has {stored.rows} rows, fewer than the {committed.stop} of the store"
                raise InputError(f"{group}: {problem}; restore it or ingest again.")
        return committed
    (first, n), *others = ((name, stored.rows) for name, stored in arrays.items())
    for name, rows in others:
        if rows != n:
            raise InputError(f"{group}: array {first} has {n} rows but array {name} has {rows}; all need as many.")
    return range(n)


def _row_grids(arrays: list[nodes.StoredArray]) -> tuple[int, int]:
    """Rows of the coarsest shard and of the coarsest inner chunk, the second dividing the first."""
    outer, inner = [max(1, s.files.outer[0]) for s in arrays], [max(1, s.files.inner[0]) for s in arrays]
    largest = max(zip(outer, inner, strict=True))
    shard, unit = math.lcm(*outer), math.lcm(*inner)
    shard = shard if shard <= MAX_SHARDS_IN_COMMON * largest[0] else largest[0]
    return shard, unit if shard % unit == 0 else largest[1]


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """Decode every chunk of every array below `path`, and list those that are missing or damaged.

    Inner chunks of shards are looked at one by one. A fault of a metadata file names that file as its chunk. What dorff
    wrote carries checksums, metadata too, so that any flipped byte is found; in a store written by others without them
    (no CRC32C, and no compressor that checks) a flipped byte may be undetectable. Such a store may also leave out
    chunks that equal the fill value: they are listed as missing, for nothing tells them from lost ones. Raises
    InputError: nothing at `path` looks like a Zarr store, or a file of it may not be read."""
    root = locate(path)
    nodes = list(walk(root)) if root.is_dir() else []
    if all(n.problem == "missing" for n in nodes):
        raise InputError(f"{root}: is not a Zarr store; give a folder that `dorff ingest` or another writer made.")
    groups: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    for node in nodes:
        if node.problem:
            faults.append(Fault(node.name, node.key, node.problem))
            continue
        if node.is_array:
            faults += _array_faults(node, groups.get(node.name.rpartition("/")[0]))
            continue
        try:
            attributes = group_attributes(node.path)
            committed(node.path, attributes)
            stored_labels(attributes, node.path)
        except InputError:
            faults.append(Fault(node.name, node.key, "damaged"))
        else:
            groups[node.name] = attributes
    seen = {node.name for node in nodes}
    for group, attributes in groups.items():
        lost = (f"{group}/{name}".lstrip("/") for name in _columns(attributes))
        faults += [Fault(name, "zarr.json", "missing") for name in lost if name not in seen]
    return list(dict.fromkeys(faults))


def _columns(attributes: Attributes) -> Mapping[str, Any]:
    """The columns of each array that dorff wrote into a group; empty for a group written by others."""
    return columns_of(attributes) if "dorff" in attributes else {}


def _array_faults(node: Node, attributes: Attributes | None) -> list[Fault]:
    """`attributes` are those of the array's group; None where they are not known."""
    try:
        array = open_zarr(node.path, f"array {node.name}", v3=node.key == "zarr.json")
    except InputError:
        return [Fault(node.name, node.key, "damaged")]
    name, region = node.path.name, tuple((0, n) for n in array.shape)
    if attributes is not None and lost_seal(attributes, name, sealed=has_seal(dict(array.attrs))):
        return [Fault(node.name, node.key, "damaged")]
    if attributes is not None and name in _columns(attributes):
        rows = committed(node.path, attributes) or range(0)
        if not region or array.shape[0] < rows.stop:
            return [Fault(node.name, node.key, "damaged")]
        # Rows of an append that was cut are nobody's yet, trimmed ones no more.
        region = ((rows.start, rows.stop), *region[1:])
    try:
        return list(ArrayFiles(array, node.path, node.name).faults(region, decode=True))
    except OSError as error:
        raise InputError(f"{node.path}: cannot be read ({error.strerror}); check the permissions.") from error


def trim(store: str | os.PathLike[str], *, keep: int) -> int:
    """Remove rows from the front of a store that ingest made, so that at least `keep` of the last are left.

    Only whole shards go. The rows that stay keep their numbers: the first is the largest multiple of a shard's rows
    that leaves `keep`. It is committed before any file is removed; killed at any moment, the store holds the old rows
    or the new ones, and the same call removes what is left over. Rows are appended as before. A pass that is reading
    the rows that go ends with an error. Other programs see the arrays' whole length: Zarr fills what is gone with
    zeros. Returns the rows in the store.

    InputError: `keep` below 1; no store of ingest; another process is writing it; IncompleteError: the disk failed."""
    if keep < 1:
        raise InputError(f"keep: wanted at least 1 row, got {keep}; to be rid of all rows, remove the store.")
    path = locate(store).resolve()
    with reported(path):
        group_attributes(path)  # before anything is made beside what is no store
        with staging(path) as (_, check):
            attributes = group_attributes(path)
            remedy = "so rows cannot be taken away; leave them out when it is ingested."
            (before, rows), names = ingested(path, attributes, remedy)
            arrays = {name: open_array(path, name) for name in names}
            check_seals(path, attributes, arrays)
            shards = {name: stored.files.outer[0] for name, stored in arrays.items()}
            unit = math.lcm(*shards.values())
            first = max(before, (rows - keep) // unit * unit)
            check()
            if first > before:
                dropped = merge_runs(nodes.kept_of(attributes, "dropped", []))
                changes: Attributes = {"dropped": [list(run) for run in dropped if run[1] > first]}
                if not dropped:
                    changes = {}
                if unusable := nodes.kept_of(attributes, "unusable", 0):
                    unusable -= count_unusable(path, names, subtract_runs(before, first, dropped))
                    changes |= {"unusable": max(0, unusable)}
                commit(path, {"first": first, **changes, **_counts(path, attributes, first)})
            for name, shard in shards.items():
                chunks = path / name / "c"
                for entry in list(chunks.iterdir()):
                    if entry.name.isdecimal() and int(entry.name) < first // shard:
                        rmtree(entry)
                sync_directory(chunks)
    return rows - first


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What `drop` took away: the source, how many rows, and how many are left."""

    source: SourceRecord
    rows: int
    rows_left: int


def drop(store: str | os.PathLike[str], source: str, *, dry_run: bool = False) -> Dropped:
    """Take the rows of one source out of a store that `ingest` made.

    The other rows keep their numbers. The rows stay in their files, but weigh nothing
    from now on, whatever they hold: the next fit sums again only the leaves that had
    some of them. One step commits it.

    Parameters
    ----------
    store : path
        The store.
    source : str
        The path that the source was ingested from, or the last part of it, or the
        digest of its content. Several sources of a name, as of a file that is written
        anew each night, are told apart by their contents only.
    dry_run : bool
        Change nothing.

    Returns
    -------
    Dropped

    Raises
    ------
    InputError
        No store of `ingest`; no such source, or several; its rows were dropped before;
        no row would be left; another process is writing the store.
    IncompleteError
        The disk failed.
    """
    path = locate(store).resolve()
    with reported(path):
        group_attributes(path)  # before anything is made beside what is no store
        with staging(path) as (_, check):
            attributes = group_attributes(path)
            remedy = "so its sources are not known; leave them out when it is ingested."
            (first, rows), names = ingested(path, attributes, remedy)
            check_seals(path, attributes, {name: open_array(path, name) for name in names})
            records, _ = read_sources(nodes.kept_of(attributes, "sources", []), path)
            before = merge_runs(nodes.kept_of(attributes, "dropped", []))
            record = find_source(records, source, path, subtract_runs(first, rows, before))
            after = merge_runs(before, [(max(first, record.first), max(first, record.stop))])
            gone = count_rows(clip_runs(after, first, rows))
            left = rows - first - gone
            dropped = gone - count_rows(clip_runs(before, first, rows))
            if not left:
                problem = f"{record.name} has all the rows that are left"
                raise InputError(f"{path}: {problem}; to be rid of them, remove the store.")
            if not dry_run:
                going = subtract_runs(max(first, record.first), max(first, record.stop), before)
                unusable = nodes.kept_of(attributes, "unusable", 0)
                unusable -= count_unusable(path, names, going)
                sources = [
                    one if not isinstance(one, Mapping) else _marked(one, record)
                    for one in attributes["dorff"]["sources"]
                ]
                check()
                changes: Attributes = {"dropped": [list(run) for run in after], "sources": sources}
                left_out = nodes.kept_of(attributes, "left_out", dict[str, int]())
                changes |= {
                    "unusable": max(0, unusable),
                    "left_out": _left_out_without(left_out, records, record),
                }
                commit(path, changes)
    return Dropped(source=record, rows=dropped, rows_left=left)


def _marked(attribute: Mapping[str, Any], record: SourceRecord) -> Mapping[str, Any]:
    """Return a source's attribute, marked as dropped if it is of this record."""
    if SourceRecord.from_attribute(attribute) != record:
        return attribute
    return {**attribute, "dropped": True}


def _left_out_without(
    left_out: Mapping[str, int], records: Sequence[SourceRecord], record: SourceRecord
) -> Mapping[str, int]:
    """Return how many rows each condition left out, without one of the sources."""
    if record.where not in left_out:
        return left_out
    remaining = [source for source in records if source != record and not source.dropped]
    if any(source.where == record.where for source in remaining):
        return {**left_out, record.where: max(0, left_out[record.where] - record.left_out)}
    return {where: rows for where, rows in left_out.items() if where != record.where}


def count_unusable(path: Path, names: Mapping[str, Any], runs: Runs) -> int:
    """Count the rows of these runs that hold NaN or infinity; `names` are the store's arrays."""
    columns = [name for name in names if name not in (CLASSES, GROUPS)]
    dataset = open_dataset(path, inputs=columns, targets=None)
    count = 0
    for start, stop in iterate_runs(runs, dataset.unit_rows):
        values = dataset.read(start, stop)[0]
        count += int(np.count_nonzero(~np.isfinite(values).all(axis=1)))
    return count


def _counts(path: Path, attributes: Attributes, first: int) -> dict[str, Any]:
    """How often each label is left without the rows before `first`; nothing where there are no labels."""
    if (table := stored_labels(attributes, path)) is None:
        return {}
    dataset, counts = open_dataset(path, inputs=CLASSES, targets=None), np.array(table.counts)
    for start, stop in dataset.runs():
        if start >= first:
            break
        codes = dataset.exact(CLASSES, start, min(stop, first))
        counts -= np.bincount(codes[codes >= 0], minlength=len(counts))
    return {"counts": {CLASSES: counts.tolist()}}
