"""The rows of a Zarr group as inputs and targets, read in runs, checked, named by their files; and such a run."""

import hashlib
import shlex
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.array_files import Fault, FloatArray, row_region
from dorff.data.labels import MISSING, Codes, Coding, Label
from dorff.data.layout import Attributes, columns_of
from dorff.data.nodes import StoredArray, group_attributes, node, open_array, stored_columns
from dorff.data.row_runs import Runs, clip_runs, count_rows, mark_rows
from dorff.data.units import ColumnAttributes, Conversions
from dorff.errors import InputError
from dorff.storage.location import is_remote, locate

Keys = npt.NDArray[np.uint64]
EXACT: Final = 2**53  # whole numbers up to here are the same as float64
RUN_ROWS: Final = 65536
OPENING_BYTES: Final = 2**20  # metadata, indices and the interpreter's own small change during one read


@dataclass(frozen=True)
class Column:
    """One column of a store: number `place` of `array`. `name` is what it was asked for by."""

    name: str
    array: str
    place: int

    @classmethod
    def find(cls, group: Path, attributes: Attributes, name: str, arrays: Sequence[str]) -> "Column":
        """An array of one column by its name, else a column by its own: one that ingest named, or of `arrays`.
        InputError where there is none, or where an array of that name has several columns."""
        names = dict(columns_of(attributes)) | {
            one: stored_columns(attributes, one, open_array(group, one, text=True).columns) for one in arrays
        }
        if node(group / name).is_array:
            if (width := open_array(group, name).columns) != 1:
                remedy = f"name one of them: {', '.join(stored_columns(attributes, name, width))}"
                raise InputError(f"{group}: wanted one column, but array {name!r} has {width}; {remedy}.")
            return cls(name, name, 0)
        for array, columns in names.items():
            if name in columns:
                return cls(name, array, list(columns).index(name))
        open_array(group, name)  # says what arrays there are
        raise AssertionError


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows `numbers` (n,) of a data set: X (n, d), Y (n, q), and their weights and groups' keys, (n,) both. `weights`
    is None where all weigh 1, `groups` where rows are not grouped."""

    numbers: npt.NDArray[np.int64]
    X: FloatArray
    Y: FloatArray
    weights: FloatArray | None = None
    groups: Keys | None = None
    weights_stored: bool = True
    """Whether `weights` are the data set's own. Others are 0 of dropped rows and 1 of the rest."""

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, keep: npt.NDArray[np.bool_ | np.intp] | slice) -> "RowBlock":
        """The rows that `keep` marks (n,) or numbers; a run of them is in the same memory."""
        weights = None if self.weights is None else self.weights[keep]
        groups = None if self.groups is None else self.groups[keep]
        return RowBlock(self.numbers[keep], self.X[keep], self.Y[keep], weights, groups, self.weights_stored)

    @classmethod
    def joined(cls, blocks: "Sequence[RowBlock]") -> "RowBlock":
        """Return the rows of all blocks, with their groups where all have some."""
        if len(blocks) == 1:
            return blocks[0]
        numbers, X, Y = (np.concatenate([getattr(one, name) for one in blocks]) for name in ("numbers", "X", "Y"))
        keys = [block.groups for block in blocks if block.groups is not None]
        groups = np.concatenate(keys) if len(keys) == len(blocks) else None
        if all(block.weights is None for block in blocks):
            return cls(numbers, X, Y, groups=groups)
        # Of a data set without weights only the blocks with dropped rows have some.
        weights = [np.ones(len(one)) if one.weights is None else one.weights for one in blocks]
        stored = all(block.weights_stored for block in blocks)
        return cls(numbers, X, Y, np.concatenate(weights), groups, weights_stored=stored)

    def weighty(self) -> "RowBlock":
        """Without the rows of weight 0, which count for nothing, whatever they hold."""
        return self if self.weights is None or self.weights.all() else self[self.weights != 0]

    def whole(self, *, partial: bool = False) -> npt.NDArray[np.bool_]:
        """(n,): which rows have finite inputs, targets (any of them with `partial`, if they have some) and weight."""
        enough = np.any if partial and self.Y.shape[1] else np.all
        good: npt.NDArray[np.bool_] = np.isfinite(self.X).all(axis=1) & enough(np.isfinite(self.Y), axis=1)
        return good if self.weights is None else good & np.isfinite(self.weights)

    def unlabelled(self) -> int:
        """How many rows weigh anything, and have finite inputs and no target."""
        rows = self.weighty()
        return int(np.count_nonzero(np.isfinite(rows.X).all(axis=1) & ~np.isfinite(rows.Y).any(axis=1)))

    def checksums(self, before: Sequence[int] = ()) -> list[int]:
        """CRC32 of the values that there are of X, Y, weights and groups, each continued from `before`.

        Of a data set without weights, dropped rows count as NaN: the checksums of the other rows stay, however the
        rows are cut into blocks."""
        X, Y, weights = self.X, self.Y, self.weights
        if not self.weights_stored and weights is not None:
            dropped = weights[:, None] == 0
            X, Y, weights = np.where(dropped, np.nan, X), np.where(dropped, np.nan, Y), None
        arrays = [array.data for array in (X, Y, weights, self.groups) if array is not None]
        return [zlib.crc32(values, crc) for values, crc in zip(arrays, before or [0] * len(arrays), strict=True)]


class Reads:
    """Counts the rows that have been read."""

    rows = 0


def group_keys(values: npt.NDArray[Any]) -> Keys:
    """A key (n,) for each value (n,), the same for equal ones: whole numbers, or float64. Up to 2^53 in size a
    number's key does not depend on its type; 0 and -0 are one, and all NaN: rows without a group are a group."""
    real = values.astype(np.float64) + 0.0  # -0 + 0 is 0
    if values.dtype.kind != "f":
        return np.where((values >= -EXACT) & (values <= EXACT), real.view(np.uint64), values.view(np.uint64))
    real[np.isnan(real)] = np.nan
    return real.view(np.uint64)


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
    were asked for. `labelled` is a column of 0 and 1: Y is NaN in rows of 0, whatever their targets are. `reads`
    counts the rows read through this object. `encoding` is `encoding.to_attributes` of inputs that were no numbers,
    `column_attributes` the CF attributes of inputs and targets by column (`units.ATTRIBUTES`), {} where there are none,
    `conversions` how numbers come in other units than they are stored in (`converted`),
    `missing` what stood for no number, and `unusable` how many rows had NaN or infinity as they came.

    Rows have the numbers first..n-1: those before `first` are gone (`trim`) or left out (`window`), and never read.
    `dropped` are runs of rows that were taken away (`drop`, or replaced): they weigh nothing, whatever they hold."""

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
    first: int = 0
    labelled: Column | None = None
    dropped: Runs = ()
    encoding: Attributes = field(default_factory=dict, compare=False, repr=False)
    column_attributes: ColumnAttributes = field(default_factory=dict, compare=False, repr=False)
    conversions: Conversions = field(default_factory=Conversions, compare=False, repr=False)
    missing: tuple[str, ...] = field(default=(), compare=False, repr=False)
    unusable: int = field(default=0, compare=False, repr=False)
    reads: Reads = field(default_factory=Reads, compare=False, repr=False)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that are read, each once."""
        columns = [column.array for column in self._columns.values()]
        return tuple(dict.fromkeys((*self.inputs, *self.targets, *columns)))

    @property
    def _columns(self) -> dict[str, Column]:
        """The columns beside inputs and targets, by what they are for."""
        named = {"weights": self.weights, "groups": self.groups, "labelled": self.labelled}
        return {key: column for key, column in named.items() if column is not None}

    @property
    def rows(self) -> int:
        return self.n - self.first

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The classes' labels, in the order of Y's columns; None where the targets are numbers."""
        return None if self.coding is None else self.coding.labels

    def read(self, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        """X (stop - start, d) and Y (stop - start, q) of a run of rows, C-contiguous float64. Every chunk they need
        is looked for first, so that none is ever read as zeros. Raises InputError: rows outside first..n; a chunk
        that is missing or damaged; a row that is neither labelled nor not (see `labelled_rows`). In a store of others
        without checksums flipped bytes may go unnoticed."""
        self._check_rows(start, stop)
        X = self._read_arrays(self.inputs, start, stop, self.input_columns)
        self.reads.rows += stop - start
        if self.coding is not None:
            return X, self.coding.one_hot(self.codes(start, stop))
        Y = self._read_arrays(self.targets, start, stop, self.target_columns)
        if (labelled := self.labelled_rows(start, stop)) is not None:
            Y[~labelled] = np.nan
        return X, Y

    def block(self, start: int, stop: int) -> RowBlock:
        """As `read`, with weights (which may be NaN or infinite) and groups; InputError at a weight below 0 too."""
        X, Y = self.read(start, stop)
        weights = self.row_weights(start, stop)
        groups = None if self.groups is None else group_keys(self._column(self.groups, start, stop))
        return RowBlock(np.arange(start, stop), X, Y, weights, groups, self.weights is not None)

    def row_weights(self, start: int, stop: int) -> FloatArray | None:
        """The weights (stop - start,) of a run of rows, 0 of those dropped; None where all of them weigh 1. InputError
        at one below 0."""
        dropped = mark_rows(self.dropped, start, stop)
        if self.weights is None:
            return np.where(dropped, 0.0, 1.0) if dropped.any() else None
        weights = np.where(dropped, 0.0, self._column(self.weights, start, stop).astype(np.float64))
        if (weights < 0).any():
            row = int(np.argmax(weights < 0))
            problem = f"row {start + row}, column {self.weights.name}: wanted a weight of at least 0"
            raise InputError(f"{self.path}: {problem}, got {weights[row]}; mend the data, or leave the weights out.")
        return weights

    def labelled_rows(self, start: int, stop: int) -> npt.NDArray[np.bool_] | None:
        """Which rows (stop - start,) of a run `labelled` has a 1 for; None without. InputError at neither 0 nor 1."""
        if self.labelled is None:
            return None
        values = self._column(self.labelled, start, stop)
        labelled: npt.NDArray[np.bool_] = values == 1
        if (strange := (values != 0) & ~labelled).any():
            row = int(np.argmax(strange))
            problem = f"row {start + row}, column {self.labelled.name}: wanted 1 (labelled) or 0 (unlabelled)"
            raise InputError(f"{self.path}: {problem}, got {values[row]}; mend the data, or name another column.")
        return labelled

    def inputs_only(self) -> "Dataset":
        """The same rows, with the same numbers and cuts, of inputs alone: q is 0."""
        return replace(self, targets=(), q=0, target_columns=(), coding=None, weights=None, groups=None, labelled=None)

    def converted(self, wanted: ColumnAttributes) -> "Dataset":
        """Return the same rows in other units: each column in those of the attributes that are `wanted` of it.

        InputError where units cannot be converted. Columns that `wanted` does not have stay as they are.
        """
        conversions = Conversions()
        for column, attributes in wanted.items():
            conversions.add(column, self.column_attributes.get(column, {}), attributes, self.path)
        return replace(self, conversions=conversions)

    def counted(self) -> "Dataset":
        """The same data set with a count of reads of its own."""
        return replace(self, reads=Reads())

    def window(self, start: int) -> "Dataset":
        """The same data set without the rows before number `start`; the others keep their numbers."""
        self._check_rows(start, self.n)
        return replace(self, first=start)

    @property
    def rows_dropped(self) -> int:
        """How many of the rows were dropped."""
        return count_rows(clip_runs(self.dropped, self.first, self.n))

    def codes(self, start: int, stop: int) -> Codes:
        """Each row's place in `labels`, (stop - start,); -1 where it is not labelled. InputError unless classes."""
        coding, values, labelled = self.classes(), self.stored_labels(start, stop), self.labelled_rows(start, stop)
        where = f"{self.path}: array {self.targets[0]}"
        codes = np.full(stop - start, MISSING, dtype=np.intp)
        rows = np.flatnonzero(np.ones(len(codes), bool) if labelled is None else labelled)
        codes[rows] = coding.codes(values[rows], lambda row: f"{where}, row {start + rows[row]}")
        return codes

    def classes(self) -> Coding:
        """What the stored labels mean. InputError where the targets are numbers."""
        if self.coding is None:
            raise InputError(f"{self.path}: its targets are numbers; open labels with targets=Classes(NAME).")
        return self.coding

    def runs(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of all rows in order, in whole units of a moderate number of rows."""
        return self.cuts(max(1, RUN_ROWS // self.unit_rows) * self.unit_rows)

    def cuts(self, step: int) -> Iterator[tuple[int, int]]:
        """(start, stop) of all rows in order, cut at the multiples of `step`."""
        begin = self.first - self.first % step
        return ((max(start, self.first), min(start + step, self.n)) for start in range(begin, self.n, step))

    def stamp(self, start: int, stop: int) -> str:
        """A fingerprint of the files that hold these rows (names, sizes, times of change), and of rows dropped."""
        self._check_rows(start, stop)
        digest = hashlib.blake2b(digest_size=16)
        for first, end in clip_runs(self.dropped, start, stop):
            digest.update(f"dropped {first} {end}\n".encode())
        for name in self.arrays:
            files = self._open(name).files
            keys = [key for _, key in files.files(row_region(files.shape, start, stop))]
            for key, status in zip(keys, locate(files.directory).stats(keys), strict=True):
                # Of one that is missing reading says so in full; a stamp only differs.
                text = "missing" if status is None else f"{status[0]} {status[1]}"
                digest.update(f"{name}/{key} {text}\n".encode())
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
        columns = [self._open(column.array).columns for column in self._columns.values()]
        if self.dropped:
            columns.append(0)  # weights of their own
        beside = sum(columns) + 3 * len(columns)  # what a column is picked from, itself, its numbers and keys
        return OPENING_BYTES + working + 8 * self.unit_rows * (self.d + self.q + beside) + coded

    def rows_spec(self) -> dict[str, object]:
        """What the rows are and how they lie, without how many there are; for JSON and for hashes. Classes have the
        key "labels", and the columns of weights, groups and of what is labelled have theirs."""
        arrays = {}
        for name in self.arrays:
            stored = self._open(name)
            packing = repr(stored.packing) + (", signed" if stored.packing.signed else "")
            arrays[name] = {"dtype": str(stored.array.dtype), "columns": stored.columns, "packing": packing}
        named = {"inputs": list(self.inputs), "targets": list(self.targets), "arrays": arrays}
        sizes = {name: getattr(self, name) for name in ("shard_rows", "unit_rows", "d", "q")}
        labels = {} if self.labels is None else {"labels": list(self.labels)}
        units = {} if self.conversions.by_column == {} else {"conversions": repr(self.conversions.by_column)}
        for column in (*self.input_columns, *self.target_columns):
            attributes = self.column_attributes.get(column, {})
            if "units" in attributes:
                units[f"units of {column}"] = f"{attributes['units']} {attributes.get('calendar', '')}"
        return named | sizes | labels | units | {key: [one.array, one.place] for key, one in self._columns.items()}

    def _check_rows(self, start: int, stop: int) -> None:
        if not self.first <= start <= stop <= self.n:
            raise InputError(f"{self.path}: wanted rows between {self.first} and {self.n}, got {start} to {stop}.")

    def _open(self, name: str) -> StoredArray:
        return open_array(locate(self.path), name, text=self.coding is not None and name in self.targets)

    def _read_arrays(self, names: tuple[str, ...], start: int, stop: int, column_names: tuple[str, ...]) -> FloatArray:
        """Return rows of arrays side by side, in the units that are wanted of their columns."""
        arrays = [self._open(name) for name in names]
        out, column = np.empty((stop - start, sum(stored.columns for stored in arrays))), 0
        for stored in arrays:
            self._read_array(stored, start, stop, out[:, column : column + stored.columns])
            column += stored.columns
        return self.conversions.convert(out, column_names, self.path) if self.conversions.by_column else out

    def stored_labels(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The array of labels as stored: numbers as float64 (n,), NaN where there is none, or text (n,)."""
        self._check_rows(start, stop)
        stored = open_array(locate(self.path), self.targets[0], text=True)
        dtype = np.dtype(stored.array.dtype)
        kept = object if dtype.kind == "T" else dtype if dtype.kind in "SU" else np.float64
        out = np.empty((stop - start, 1), kept)
        return self._read_array(stored, start, stop, out)[:, 0]

    def exact(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows (stop - start, columns) of one array of the store: int64 where it holds whole numbers, else float64."""
        self._check_rows(start, stop)
        stored = self._open(name)
        whole = stored.packing.plain and np.dtype(stored.array.dtype).kind in "biu"
        out = np.empty((stop - start, stored.columns), np.int64 if whole else np.float64)
        return self._read_array(stored, start, stop, out)

    def _column(self, column: Column, start: int, stop: int) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self.exact(column.array, start, stop)[:, column.place])

    def _read_array(self, stored: StoredArray, start: int, stop: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if stored.rows < stop:
            problem = f"array {stored.files.name} has {stored.rows} rows now, fewer than {stop}"
            raise InputError(f"{self.path}: {problem}; it was cut or replaced: open it again.")
        # A unit at a time: what decoding needs beside the result does not grow with the rows asked for.
        if fault := stored.read(start, stop, out, step=self.unit_rows):
            raise InputError(f"{self.path}: {fault}; {self._chunk_remedy(fault)}.")
        return out

    def _chunk_remedy(self, fault: Fault) -> str:
        """Say what to do about a chunk that is missing or damaged."""
        remedy = f"`dorff verify {self.path}` lists all such chunks, then restore them from a copy or ingest again"
        path = locate(self.path)
        if fault.kind != "missing" or "dorff" in group_attributes(path):  # whose chunks are all written
            return remedy
        further: list[str] = []
        for option, column in (("--weights", self.weights), ("--groups", self.groups)):
            further += [] if column is None else [option, column.name]
        command = describe_ingest(
            path,
            self.inputs,
            self.targets,
            classes=self.coding is not None,
            further=further,
            fill_absent=True,
        )
        return f"{remedy}{fault.hint}, or copy the rows with that value: {command}"


def describe_ingest(
    group: Path,
    inputs: Sequence[str],
    targets: Sequence[str],
    *,
    classes: bool,
    further: Sequence[str] = (),
    fill_absent: bool = False,
) -> str:
    """Return how a data set is made of arrays in a Zarr group by others, for the end of a sentence.

    `further` are more words of the command.
    """
    command = ["dorff", "ingest", str(group), "ROWS.zarr", "--inputs", ",".join(inputs)]
    if targets:
        command += ["--classes" if classes else "--targets", ",".join(targets)]
    command += further
    if fill_absent:
        command += ["--absent-chunks", "fill"]
    copy = "copy it to this machine, then " if is_remote(group) else ""
    arrays = ["x", *(["classes" if classes else "y"] if targets else [])]
    return f"{copy}`{shlex.join(command)}`, and name that store (its arrays: {', '.join(arrays)})"
