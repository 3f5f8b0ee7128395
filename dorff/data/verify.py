"""Lists what is missing or damaged in a Zarr store, without changing it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dorff.data.array_files import ArrayFiles, Fault
from dorff.data.labels import stored_labels
from dorff.data.metadata import Attributes, has_seal, lost_seal
from dorff.data.nodes import Node, committed, group_attributes, open_zarr, walk
from dorff.errors import InputError
from dorff.storage.location import locate


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """Decode every chunk of every array below `path`, and list those that are missing or damaged.

    Inner chunks of shards are looked at one by one. A fault of a metadata file names that file as its chunk.
    What dorff wrote carries checksums, metadata too, so that any flipped byte is found; in a store written by others
    without them (no CRC32C, and no compressor that checks) a flipped byte may be undetectable. Such a store
    may also leave out chunks that equal the fill value: they are listed as missing, for nothing tells them
    from lost ones.

    Raises:
        InputError: nothing at `path` looks like a Zarr store, or a file of it may not be read.
    """
    root = locate(path)
    nodes = list(walk(root)) if root.is_dir() else []
    if all(n.problem == "missing" for n in nodes):
        raise InputError(
            f"{root}: is not a Zarr store; give the folder that `dorff ingest` or another Zarr writer made."
        )
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
