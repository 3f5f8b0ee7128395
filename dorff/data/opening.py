"""Opens the arrays of a Zarr group as inputs and targets."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import dorff.data.nodes as nodes
from dorff.data.dataset import Dataset
from dorff.data.labels import CLASSES, Classes, Coding, distinct, stored_labels, text_of
from dorff.data.metadata import Attributes
from dorff.data.rows import Column
from dorff.errors import InputError
from dorff.storage.location import is_remote, locate

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

    `Classes(name)` are one-hot targets. The labels are those that ingest kept; of an array of integers, booleans
    or text by others they are its different values, sorted, found by reading all of it now.

    `weights`, `groups` and `labelled` (0 and 1) name a column each, of numbers: an array of one column, or a column of
    any array. Labels are then those of the labelled rows.

    Raises InputError: not a Zarr group; an array that is missing, not of numbers, of more than two dimensions, or of
    another length; no such column; classes that are real numbers, or more than 10,000, or not those wanted."""
    if "://" in os.fspath(path) and not is_remote(path):
        raise InputError(f"{path}: wanted a local folder, got an address; copy the store to a local folder first.")
    group = locate(path).absolute()
    attributes = nodes.group_attributes(group)
    classes = targets if isinstance(targets, Classes) else None
    x_names, y_names = several(inputs), several(targets.name if isinstance(targets, Classes) else targets)
    if not x_names:
        raise InputError(f"{group}: inputs: wanted at least one array, got none; name those that hold the inputs.")
    arrays = {name: nodes.open_array(group, name) for name in x_names}
    arrays |= {name: nodes.open_array(group, name, text=classes is not None) for name in y_names}
    width = {name: stored.columns for name, stored in arrays.items()}
    find, names = partial(Column.find, group, attributes, arrays=tuple(width)), (weights, groups, labelled)
    columns = [None if name is None else find(name=name) for name in names]
    arrays |= {column.array: nodes.open_array(group, column.array) for column in columns if column is not None}
    nodes.check_seals(group, attributes, arrays)
    rows, (shard_rows, unit_rows) = _rows(group, attributes, arrays), _row_grids(list(arrays.values()))
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
        missing=tuple(nodes.kept_of(attributes, "missing", [])),
        unusable=nodes.kept_of(attributes, "unusable", 0),
    )
    return dataset if classes is None else _with_classes(dataset, classes, attributes)


def check_disjoint(inputs: Sequence[str], targets: Sequence[str], what: str) -> None:
    """InputError where one of these, `what` says of what, is both an input and a target; constants may be."""
    for name in targets:
        if name in inputs and not name.startswith("="):
            raise InputError(
                f"{what} {name!r} is among both inputs and targets, so that a model would learn to repeat it; name it "
                "as one of them."
            )


def _with_classes(dataset: Dataset, classes: Classes, attributes: Attributes) -> Dataset:
    where = f"{dataset.path}: array {classes.name}"
    stored = nodes.open_array(locate(dataset.path), classes.name, text=True)
    dtype = np.dtype(stored.array.dtype)
    if stored.columns != 1:
        raise InputError(f"{where}: wanted one column of labels, got {stored.columns}; name an array of one.")
    table = stored_labels(attributes, dataset.path) if classes.name == CLASSES else None
    if table is not None:
        coding = Coding.of_table(table, classes, where)
    elif dtype.kind == "f":
        raise InputError(
            f"{where}: wanted labels (whole numbers, booleans, text), got {dtype}; it looks like a target. Name its "
            "column in `dorff ingest --classes` to have labels, or store it as integers."
        )
    else:
        values = distinct((_labels(dataset, start, stop) for start, stop in dataset.runs()), where)
        if not values and dataset.labelled is not None:
            raise InputError(
                f"{where}: holds no label in any row that column {dataset.labelled.name} has a 1 for; set it to 1 "
                "where there is a label, or name another column."
            )
        coding = Coding.of_values(values, classes, where, boolean=dtype.kind == "b")
    q = len(coding.labels)
    unit, most = dataset.unit_rows, max(1, ONE_HOT_BYTES // (8 * q))
    if unit > most:
        unit = next(k for k in range(most, 0, -1) if unit % k == 0)
    return replace(dataset, q=q, unit_rows=unit, target_columns=tuple(map(text_of, coding.labels)), coding=coding)


def _labels(dataset: Dataset, start: int, stop: int) -> npt.NDArray[Any]:
    values, labelled = dataset.stored_labels(start, stop), dataset.labelled_rows(start, stop)
    return values if labelled is None else values[labelled]


def several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of which one may be given as such, or none."""
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _rows(group: Path, attributes: Attributes, arrays: dict[str, nodes.StoredArray]) -> range:
    if (committed := nodes.committed(group, attributes)) is not None:
        for name, stored in arrays.items():
            if stored.rows < committed.stop:
                raise InputError(
                    f"{group}: array {name} has {stored.rows} rows, fewer than the {committed.stop} of the "
                    "store; restore it or ingest again."
                )
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
