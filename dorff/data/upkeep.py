"""Keeps a store in order: lists what is missing or damaged, without changing it; takes shards off its front."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dorff.data.array_files import ArrayFiles, Fault
from dorff.data.labels import CLASSES, stored_labels
from dorff.data.layout import commit
from dorff.data.metadata import Attributes, has_seal, lost_seal, reported, staging
from dorff.data.nodes import Node, check_seals, committed, group_attributes, ingested, open_array, open_zarr, walk
from dorff.data.opening import open_dataset
from dorff.errors import InputError
from dorff.storage.files import rmtree, sync_directory
from dorff.storage.location import locate


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """Decode every chunk of every array below `path`, and list those that are missing or damaged.

    Inner chunks of shards are looked at one by one. A fault of a metadata file names that file as its chunk. What
    dorff wrote carries checksums, metadata too, so that any flipped byte is found; in a store written by others
    without them (no CRC32C, and no compressor that checks) a flipped byte may be undetectable. Such a store may also
    leave out chunks that equal the fill value: they are listed as missing, for nothing tells them from lost ones.

    Raises InputError: nothing at `path` looks like a Zarr store, or a file of it may not be read."""
    root = locate(path)
    nodes = list(walk(root)) if root.is_dir() else []
    if all(n.problem == "missing" for n in nodes):
        raise InputError(f"{root}: is not a Zarr store; give a folder that `dorff ingest` or another writer made.")
    groups: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    for node in nodes:
        if node.problem:
            faults.append(Fault(node.name, node.key, node.problem))
        elif node.is_array:
            faults += _array_faults(node, groups.get(node.name.rpartition("/")[0]))
        else:
            faults += _group_faults(node, groups)
    seen = {node.name for node in nodes}
    for group, attributes in groups.items():
        lost = (f"{group}/{name}".lstrip("/") for name in _columns(attributes))
        faults += [Fault(name, "zarr.json", "missing") for name in lost if name not in seen]
    return list(dict.fromkeys(faults))


def _columns(attributes: Attributes) -> dict[str, Any]:
    """The columns of each array that dorff wrote into a group; empty for a group written by others."""
    names = attributes.get("columns")
    return names if "dorff" in attributes and isinstance(names, dict) else {}


def _group_faults(node: Node, groups: dict[str, dict[str, Any]]) -> Iterator[Fault]:
    """Put the attributes of a group that is whole among `groups`."""
    try:
        attributes = group_attributes(node.path)
        committed(node.path, attributes)
        stored_labels(attributes, node.path)
    except InputError:
        yield Fault(node.name, node.key, "damaged")
    else:
        groups[node.name] = attributes


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
    the rows that go ends with an error.

    Other programs see the arrays' whole length: Zarr fills what is gone with zeros.

    Returns:
        The rows in the store.

    Raises InputError: `keep` below 1; not a store that ingest made; another process is writing it; IncompleteError:
    the disk failed."""
    if keep < 1:
        raise InputError(f"keep: wanted at least 1 row, got {keep}; to be rid of all rows, remove the store.")
    path = locate(store).resolve()
    with reported(path):
        group_attributes(path)  # before anything is made beside what is no store
        return _trimmed(path, keep)


def _trimmed(path: Path, keep: int) -> int:
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
            commit(path, {"first": first, **_counts(path, attributes, first)})
        for name, shard in shards.items():
            _remove_before(path / name / "c", first // shard)
    return rows - first


def _counts(path: Path, attributes: Attributes, first: int) -> dict[str, Any]:
    """How often each label is left without the rows before `first`; nothing where there are no labels."""
    table = stored_labels(attributes, path)
    if table is None:
        return {}
    dataset, counts = open_dataset(path, inputs=CLASSES, targets=None), np.array(table.counts)
    for start, stop in dataset.runs():
        if start >= first:
            break
        codes = dataset.exact(CLASSES, start, min(stop, first))
        counts -= np.bincount(codes[codes >= 0], minlength=len(counts))
    return {"counts": {CLASSES: counts.tolist()}}


def _remove_before(chunks: Path, number: int) -> None:
    for entry in list(chunks.iterdir()):
        if entry.name.isdecimal() and int(entry.name) < number:
            rmtree(entry)
    sync_directory(chunks)
