"""Takes rows away from the front of a store, whole shards at a time."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from dorff.data.labels import CLASSES, stored_labels
from dorff.data.layout import commit
from dorff.data.metadata import Attributes, reported, staging
from dorff.data.nodes import check_seals, group_attributes, ingested, open_array
from dorff.data.opening import open_dataset
from dorff.errors import InputError
from dorff.storage.files import rmtree, sync_directory
from dorff.storage.location import locate


def trim(store: str | os.PathLike[str], *, keep: int) -> int:
    """Remove rows from the front of a store that ingest made, so that at least `keep` of the last are left.

    Only whole shards go. The rows that stay keep their numbers: the first is the largest multiple of a shard's rows
    that leaves `keep`. It is committed before any file is removed; killed at any moment, the store holds the old rows
    or the new ones, and the same call removes what is left over. Rows are appended as before. A pass that is reading
    the rows that go ends with an error.

    Other programs see the arrays' whole length: Zarr fills what is gone with zeros.

    Returns:
        The rows in the store.

    Raises:
        InputError: `keep` below 1; not a store that ingest made; another process is writing it.
        IncompleteError: the disk failed.
    """
    if keep < 1:
        raise InputError(f"keep: wanted at least 1 row, got {keep}; to be rid of all rows, remove the store.")
    path = locate(store).resolve()
    with reported(path):
        group_attributes(path)  # before anything is made beside what is no store
        return _trimmed(path, keep)


def _trimmed(path: Path, keep: int) -> int:
    with staging(path):
        attributes = group_attributes(path)
        remedy = "so rows cannot be taken away; leave them out when it is ingested."
        (before, rows), names = ingested(path, attributes, remedy)
        arrays = {name: open_array(path, name) for name in names}
        check_seals(path, attributes, arrays)
        shards = {name: stored.files.outer[0] for name, stored in arrays.items()}
        unit = math.lcm(*shards.values())
        first = max(before, (rows - keep) // unit * unit)
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
    """Remove the shards before a number."""
    for entry in list(chunks.iterdir()):
        if entry.name.isdecimal() and int(entry.name) < number:
            rmtree(entry)
    sync_directory(chunks)
