"""Lists what is missing or damaged in a Zarr store, without changing it."""

from __future__ import annotations

import os
from pathlib import Path

from dorff.data.files import ArrayFiles, Fault
from dorff.data.labels import stored_labels
from dorff.data.nodes import Node, committed_rows, group_attributes, open_zarr, walk
from dorff.errors import InputError

__all__ = ["Fault", "verify"]


def verify(path: str | os.PathLike[str]) -> list[Fault]:
    """Decode every chunk of every array below `path`, and list those that are missing or damaged.

    Inner chunks of shards are looked at one by one. A fault of a metadata file names that file as its chunk.
    What dorff wrote carries checksums, so that any flipped byte is found; in a store written by others
    without them (no CRC32C, and no compressor that checks) a flipped byte may be undetectable. Such a store
    may also leave out chunks that equal the fill value: they are listed as missing, for nothing tells them
    from lost ones.

    Raises:
        InputError: nothing at `path` looks like a Zarr store, or a file of it may not be read.
    """
    root = Path(path)
    nodes = list(walk(root)) if root.is_dir() else []
    if all(n.problem == "missing" for n in nodes):
        raise InputError(
            f"{root}: is not a Zarr store; give the folder that `dorff ingest` or another Zarr writer made."
        )
    faults: list[Fault] = []
    committed = _committed(root, nodes[0], faults)
    seen = {n.name for n in nodes}
    faults += [Fault(name, "zarr.json", "missing") for name in committed if name not in seen]
    for node in nodes:
        if node.problem:
            key = (
                ".zarray"
                if (node.path / ".zarray").is_file()
                else ".zgroup"
                if (node.path / ".zgroup").is_file()
                else "zarr.json"
            )
            faults.append(Fault(node.name, key, node.problem))
        elif node.is_array:
            faults += _array_faults(node, committed.get(node.name))
    return list(dict.fromkeys(faults))


def _committed(root: Path, here: Node, faults: list[Fault]) -> dict[str, int]:
    """The committed rows of each array that dorff wrote here; empty for a store written by others."""
    if here.problem or here.is_array:
        return {}
    try:
        attributes = group_attributes(root)
        rows = committed_rows(root, attributes)
        stored_labels(attributes, root)
    except InputError:
        faults.append(Fault("", "zarr.json", "damaged"))
        return {}
    names = attributes.get("columns")
    return {} if rows is None or not isinstance(names, dict) else dict.fromkeys(names, rows)


def _array_faults(node: Node, committed: int | None) -> list[Fault]:
    v3 = (node.path / "zarr.json").is_file()
    try:
        array = open_zarr(node.path, f"array {node.name}", v3=v3)
    except InputError:
        return [Fault(node.name, "zarr.json" if v3 else ".zarray", "damaged")]
    shape = tuple(array.shape)
    if committed is not None:
        if not shape or shape[0] < committed:
            return [Fault(node.name, "zarr.json", "damaged")]
        shape = (committed, *shape[1:])  # rows of an append that was cut are nobody's yet
    try:
        return list(ArrayFiles(array, node.path, node.name).faults(tuple((0, n) for n in shape)))
    except OSError as error:
        raise InputError(f"{node.path}: cannot be read ({error.strerror}); check the permissions.") from error
