"""Opens the arrays of a Zarr group as inputs and targets, and reads runs of their rows."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from dorff.data.classes import Classes, Codes, Coding, distinct
from dorff.data.labels import CLASSES, Label, stored_labels, text_of
from dorff.data.nodes import StoredArray, committed_rows, group_attributes, open_array, stored_columns
from dorff.data.rows import Column, Reads, RowBlock, group_keys
from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
# A common multiple of the arrays' shards beyond this many of the largest is given up.
MAX_SHARDS_IN_COMMON: Final = 16
RUN_ROWS: Final = 65536
ONE_HOT_BYTES: Final = 16 * 2**20  # of a unit's rows of labels, at most
OPENING_BYTES: Final = 2**20  # metadata, indices and the interpreter's own small change during one read


@final
@dataclass(frozen=True)
class Dataset:
    """Rows of inputs (n, d) and targets (n, q) in a Zarr group. Names and numbers only: small, picklable.

    `shard_rows` is the rows of the coarsest chunk (shard, where sharded) of all arrays involved, the unit of
    writing; `unit_rows` those of the coarsest inner chunk: reading multiples of it decodes no chunk twice.
    Where arrays differ each is the least common multiple, or the largest when the former would exceed 16
    times the largest: reads are then right all the same, but decode some chunks twice.

    Where the targets are classes, `coding` says what the stored values mean, Y (n, q) is one-hot, q the number
    of labels, and a row without a label is NaN. A unit's rows are then fewer where its Y would take over 16 MiB.

    `weights` and `groups` are the columns of the rows' weights and groups, None where all weigh 1, and where no groups
    were asked for. `reads` counts the rows read through this object.
    """

    path: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    n: int
    d: int
    q: int
    shard_rows: int
    unit_rows: int
    input_columns: tuple[str, ...]
    target_columns: tuple[str, ...]
    coding: Coding | None = None
    weights: Column | None = None
    groups: Column | None = None
    reads: Reads = field(default_factory=Reads, compare=False, repr=False)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that are read, each once."""
        columns = [column.array for column in (self.weights, self.groups) if column is not None]
        return tuple(dict.fromkeys((*self.inputs, *self.targets, *columns)))

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The classes' labels, in the order of Y's columns; None where the targets are numbers."""
        return None if self.coding is None else self.coding.labels

    def read(self, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        """X (stop - start, d) and Y (stop - start, q) of a run of rows, C-contiguous float64.

        The presence of every chunk that the rows need is checked first, so that none is ever read as zeros.

        Raises:
            InputError: rows outside 0..n; a chunk that is missing or damaged. In a store written by others
                without checksums a flipped byte cannot always be noticed.
        """
        self._check_rows(start, stop)
        X = self._read_arrays(self.inputs, start, stop)
        self.reads.rows += stop - start
        if self.coding is None:
            return X, self._read_arrays(self.targets, start, stop)
        return X, self.coding.one_hot(self.codes(start, stop))

    def block(self, start: int, stop: int) -> RowBlock:
        """A run of rows with their weights and groups, where there are any; as `read`, and InputError at a weight
        below 0. A weight may be NaN or infinite."""
        X, Y = self.read(start, stop)
        weights = self.row_weights(start, stop)
        groups = None if self.groups is None else group_keys(self._column(self.groups, start, stop))
        return RowBlock(np.arange(start, stop), X, Y, weights, groups)

    def row_weights(self, start: int, stop: int) -> FloatArray | None:
        """The weights (stop - start,) of a run of rows; None where all weigh 1. InputError at one below 0."""
        if self.weights is None:
            return None
        weights = self._column(self.weights, start, stop).astype(np.float64)
        if (weights < 0).any():
            row = int(np.argmax(weights < 0))
            raise InputError(
                f"{self.path}: row {start + row}, column {self.weights.name}: wanted a weight of at least 0, got "
                f"{weights[row]}; mend the data, or leave the weights out."
            )
        return weights

    def counted(self) -> Dataset:
        """The same data set with a count of reads of its own."""
        return replace(self, reads=Reads())

    def codes(self, start: int, stop: int) -> Codes:
        """Each row's place in `labels`, (stop - start,); -1 where it has no label. InputError unless classes."""
        values = self.stored_labels(start, stop)
        return self.classes().codes(values, lambda row: f"{self.path}: array {self.targets[0]}, row {start + row}")

    def classes(self) -> Coding:
        """What the stored labels mean. InputError where the targets are numbers."""
        if self.coding is None:
            raise InputError(f"{self.path}: its targets are numbers; open labels with targets=Classes(NAME).")
        return self.coding

    def runs(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of all rows in order, in whole units of a moderate number of rows."""
        step = max(1, RUN_ROWS // self.unit_rows) * self.unit_rows
        return ((start, min(start + step, self.n)) for start in range(0, self.n, step))

    def stamp(self, start: int, stop: int) -> str:
        """A fingerprint of the files that hold these rows: their names, sizes and times of change."""
        self._check_rows(start, stop)
        digest = hashlib.blake2b(digest_size=16)
        for name in self.arrays:
            files = self._open(name).files
            for _, key in files.files(_rows(files.shape, start, stop)):
                try:
                    status = os.stat(files.directory / key)
                    digest.update(f"{name}/{key} {status.st_size} {status.st_mtime_ns}\n".encode())
                except FileNotFoundError:  # reading says so in full; a stamp only differs
                    digest.update(f"{name}/{key} missing\n".encode())
        return digest.hexdigest()

    def unit_bytes(self) -> int:
        """Peak bytes of reading one unit: the result, and one array's chunks, encoded, decoded and copied."""
        working = 0
        for name in self.arrays:
            stored = self._open(name)
            chunk = stored.files.inner
            # Rounded up for columns, and for an array whose chunks do not divide the unit.
            rows = (-(-self.unit_rows // chunk[0]) + (self.unit_rows % chunk[0] > 0)) * chunk[0]
            across = -(-stored.columns // chunk[1]) * chunk[1] if len(chunk) == 2 else 1
            item = stored.array.dtype.itemsize
            copies = item if stored.packing.plain else item + 2 * 8
            decoded = self.unit_rows * stored.columns * copies
            # Zarr holds a chunk encoded and decoded; of shards, their decoded chunks put together as well.
            held = 2.1 if stored.files.index is None else 3.1
            working = max(working, int(held * rows * across * item) + decoded)
        # Stored labels, their places and which are none; the labels' own table.
        coded = 0 if self.coding is None else 8 * 8 * self.unit_rows + 256 * self.q
        columns = [self._open(column.array).columns for column in (self.weights, self.groups) if column is not None]
        beside = sum(columns) + 3 * len(columns)  # what a column is picked from, itself, its numbers and keys
        return OPENING_BYTES + working + 8 * self.unit_rows * (self.d + self.q + beside) + coded

    def rows_spec(self) -> dict[str, object]:
        """What the rows are and how they lie, without how many there are; for JSON and for hashes.

        Classes have the key "labels", weights and groups theirs.
        """
        arrays = {name: self._open(name) for name in self.arrays}
        columns = {"weights": self.weights, "groups": self.groups}
        return {
            "inputs": list(self.inputs),
            "targets": list(self.targets),
            "arrays": {
                name: {
                    "dtype": str(stored.array.dtype),
                    "columns": stored.columns,
                    "packing": repr(stored.packing),
                }
                for name, stored in arrays.items()
            },
            "shard_rows": self.shard_rows,
            "unit_rows": self.unit_rows,
            "d": self.d,
            "q": self.q,
            **({} if self.labels is None else {"labels": list(self.labels)}),
            **{key: [column.array, column.place] for key, column in columns.items() if column is not None},
        }

    def _check_rows(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n:
            raise InputError(
                f"{self.path}: wanted rows between 0 and {self.n}, got {start} to {stop}; ask for rows it has."
            )

    def _open(self, name: str) -> StoredArray:
        return open_array(Path(self.path), name, text=self.coding is not None and name in self.targets)

    def _read_arrays(self, names: tuple[str, ...], start: int, stop: int) -> FloatArray:
        arrays = [open_array(Path(self.path), name) for name in names]
        out, column = np.empty((stop - start, sum(stored.columns for stored in arrays))), 0
        for stored in arrays:
            self._read_array(stored, start, stop, out[:, column : column + stored.columns])
            column += stored.columns
        return out

    def stored_labels(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The array of labels as stored: numbers as float64 (n,), NaN where there is none, or text (n,)."""
        self._check_rows(start, stop)
        stored = open_array(Path(self.path), self.targets[0], text=True)
        dtype = np.dtype(stored.array.dtype)
        values = np.empty((stop - start, 1), dtype if dtype.kind in "SU" else np.float64)
        self._read_array(stored, start, stop, values)
        return values[:, 0]

    def exact(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows (stop - start, columns) of one array of the store: int64 where it holds whole numbers, else float64."""
        self._check_rows(start, stop)
        stored = open_array(Path(self.path), name)
        whole = stored.packing.plain and np.dtype(stored.array.dtype).kind in "biu"
        values = np.empty((stop - start, stored.columns), np.int64 if whole else np.float64)
        self._read_array(stored, start, stop, values)
        return values

    def _column(self, column: Column, start: int, stop: int) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self.exact(column.array, start, stop)[:, column.place])

    def _read_array(self, stored: StoredArray, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        files = stored.files
        if stored.rows < stop:
            raise InputError(
                f"{self.path}: array {files.name} has {stored.rows} rows now, fewer than {stop}; it was cut "
                "or replaced: open it again."
            )
        if start == stop:
            return
        if stored.plain is not None:
            if fault := stored.plain.read(start, stop, stored.packing, out):
                raise self._damage(files.name, fault.chunk, fault.kind)
            return
        if fault := files.first_fault(_rows(files.shape, start, stop)):
            raise self._damage(files.name, fault.chunk, fault.kind)
        # A unit at a time: what decoding needs beside the result does not grow with the rows asked for.
        cuts = [start, *range((start // self.unit_rows + 1) * self.unit_rows, stop, self.unit_rows), stop]
        for a, b in pairwise(cuts):
            try:
                rows = np.asarray(stored.array[a:b])
            except MemoryError:
                raise
            except Exception as error:
                bad = next(files.faults(_rows(files.shape, a, b)), None)
                raise self._damage(files.name, bad.chunk if bad else f"of rows {a} to {b}", "damaged") from error
            out[a - start : b - start] = stored.packing.decode(rows).reshape(b - a, -1)

    def _damage(self, array: str, chunk: str, kind: str) -> InputError:
        hint = "; other writers may leave out chunks that equal the fill value: have them write empty chunks"
        return InputError(
            f"{self.path}: array {array}, chunk {chunk} is {kind}; `dorff verify {self.path}` lists all "
            "such chunks, "
            f"then restore them from a copy or ingest again{hint if kind == 'missing' else ''}."
        )


def open_dataset(
    path: str | os.PathLike[str],
    *,
    inputs: str | Sequence[str] = "x",
    targets: str | Sequence[str] | Classes | None = "y",
    weights: str | None = None,
    groups: str | None = None,
) -> Dataset:
    """Open arrays of the Zarr group at `path` (a local folder, v2 or v3) as inputs and targets.

    A list of arrays is stacked as columns; `targets=None` opens inputs only. Arrays are 1-d or 2-d, of real
    numbers. Values packed by the CF conventions (fill value, scale, offset), as xarray writes them, are
    unpacked.

    `Classes(name)` are one-hot targets. The labels are those that ingest kept; of an array of integers, booleans
    or text by others they are its different values, sorted, found by reading all of it now.

    `weights` and `groups` name a column each, of numbers: an array of one column, or a column of any array.

    Raises:
        InputError: not a Zarr group; an array that is missing, not of numbers, of more than two dimensions,
            or of another length; no such column; classes that are real numbers, or more than 10,000, or not those
            wanted.
    """
    if "://" in os.fspath(path):
        raise InputError(f"{path}: wanted a local folder, got an address; copy the store to a local folder first.")
    group = Path(os.path.abspath(path))
    attributes = group_attributes(group)
    classes = targets if isinstance(targets, Classes) else None
    x_names, y_names = _names(inputs), _names(targets.name if isinstance(targets, Classes) else targets)
    if not x_names:
        raise InputError(
            f"{group}: inputs: wanted at least one array, got none; name the arrays that hold the inputs."
        )
    arrays = {name: open_array(group, name) for name in x_names}
    arrays |= {name: open_array(group, name, text=classes is not None) for name in y_names}
    width = {name: stored.columns for name, stored in arrays.items()}
    weighing, grouping = (
        None if name is None else Column.find(group, attributes, name, tuple(width)) for name in (weights, groups)
    )
    arrays |= {column.array: open_array(group, column.array) for column in (weighing, grouping) if column is not None}
    shard_rows, unit_rows = _row_grids(list(arrays.values()))
    dataset = Dataset(
        path=str(group),
        inputs=x_names,
        targets=y_names,
        n=_length(group, arrays, committed_rows(group, attributes)),
        d=sum(width[name] for name in x_names),
        q=sum(width[name] for name in y_names),
        shard_rows=shard_rows,
        unit_rows=unit_rows,
        input_columns=tuple(c for name in x_names for c in stored_columns(attributes, name, width[name])),
        target_columns=tuple(c for name in y_names for c in stored_columns(attributes, name, width[name])),
        weights=weighing,
        groups=grouping,
    )
    return dataset if classes is None else _with_classes(dataset, classes, attributes)


def _with_classes(dataset: Dataset, classes: Classes, attributes: dict[str, Any]) -> Dataset:
    """The data set with the meaning of its labels."""
    where = f"{dataset.path}: array {classes.name}"
    stored = open_array(Path(dataset.path), classes.name, text=True)
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
        values = distinct((dataset.stored_labels(start, stop) for start, stop in dataset.runs()), where)
        coding = Coding.of_values(values, classes, where, boolean=dtype.kind == "b")
    q = len(coding.labels)
    unit, most = dataset.unit_rows, max(1, ONE_HOT_BYTES // (8 * q))
    if unit > most:
        unit = next(k for k in range(most, 0, -1) if unit % k == 0)
    return replace(dataset, q=q, unit_rows=unit, target_columns=tuple(map(text_of, coding.labels)), coding=coding)


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _rows(shape: tuple[int, ...], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    return ((start, stop), *((0, width) for width in shape[1:]))


def _length(group: Path, arrays: dict[str, StoredArray], committed: int | None) -> int:
    if committed is not None:
        for name, stored in arrays.items():
            if stored.rows < committed:
                raise InputError(
                    f"{group}: array {name} has {stored.rows} rows, fewer than the {committed} of the "
                    "store; restore it or ingest again."
                )
        return committed
    (first, n), *others = ((name, stored.rows) for name, stored in arrays.items())
    for name, rows in others:
        if rows != n:
            raise InputError(
                f"{group}: array {first} has {n} rows but array {name} has {rows}; inputs and targets need as many."
            )
    return n


def _row_grids(arrays: list[StoredArray]) -> tuple[int, int]:
    """Rows of the coarsest shard and of the coarsest inner chunk, the second dividing the first."""
    outer, inner = [max(1, s.files.outer[0]) for s in arrays], [max(1, s.files.inner[0]) for s in arrays]
    largest = max(zip(outer, inner, strict=True))
    shard, unit = math.lcm(*outer), math.lcm(*inner)
    shard = shard if shard <= MAX_SHARDS_IN_COMMON * largest[0] else largest[0]
    return shard, unit if shard % unit == 0 else largest[1]
