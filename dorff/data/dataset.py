"""Opens the arrays of a Zarr group as inputs and targets, and reads runs of their rows."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt

from dorff.data.nodes import StoredArray, committed_rows, group_attributes, open_array, stored_columns
from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]
# A common multiple of the arrays' shards beyond this many of the largest is given up.
MAX_SHARDS_IN_COMMON: Final = 16
OPENING_BYTES: Final = 2**20  # metadata, indices and the interpreter's own small change during one read


@final
@dataclass(frozen=True)
class Dataset:
    """Rows of inputs (n, d) and targets (n, q) in a Zarr group. Names and numbers only: small, picklable.

    `shard_rows` is the rows of the coarsest chunk (shard, where sharded) of all arrays involved, the unit of
    writing; `unit_rows` those of the coarsest inner chunk: reading multiples of it decodes no chunk twice.
    Where arrays differ each is the least common multiple, or the largest when the former would exceed 16
    times the largest: reads are then right all the same, but decode some chunks twice.
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

    def read(self, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        """X (stop - start, d) and Y (stop - start, q) of a run of rows, C-contiguous float64.

        The presence of every chunk that the rows need is checked first, so that none is ever read as zeros.

        Raises:
            InputError: rows outside 0..n; a chunk that is missing or damaged. In a store written by others
                without checksums a flipped byte cannot always be noticed.
        """
        self._check_rows(start, stop)
        X, Y = np.empty((stop - start, self.d)), np.empty((stop - start, self.q))
        for names, out in ((self.inputs, X), (self.targets, Y)):
            column = 0
            for name in names:
                stored = open_array(Path(self.path), name)
                self._read_array(stored, start, stop, out[:, column : column + stored.columns])
                column += stored.columns
        return X, Y

    def stamp(self, start: int, stop: int) -> str:
        """A fingerprint of the files that hold these rows: their names, sizes and times of change."""
        self._check_rows(start, stop)
        digest = hashlib.blake2b(digest_size=16)
        for name in dict.fromkeys(self.inputs + self.targets):
            files = open_array(Path(self.path), name).files
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
        for name in (*self.inputs, *self.targets):
            stored = open_array(Path(self.path), name)
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
        return OPENING_BYTES + working + 8 * self.unit_rows * (self.d + self.q)

    def rows_spec(self) -> dict[str, object]:
        """What the rows are and how they lie, without how many there are; for JSON and for hashes."""
        arrays = {name: open_array(Path(self.path), name) for name in self.inputs + self.targets}
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
        }

    def _check_rows(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n:
            raise InputError(
                f"{self.path}: wanted rows between 0 and {self.n}, got {start} to {stop}; ask for rows it has."
            )

    def _read_array(self, stored: StoredArray, start: int, stop: int, out: FloatArray) -> None:
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
    targets: str | Sequence[str] | None = "y",
) -> Dataset:
    """Open arrays of the Zarr group at `path` (a local folder, v2 or v3) as inputs and targets.

    A list of arrays is stacked as columns; `targets=None` opens inputs only. Arrays are 1-d or 2-d, of real
    numbers. Values packed by the CF conventions (fill value, scale, offset), as xarray writes them, are
    unpacked.

    Raises:
        InputError: not a Zarr group; an array that is missing, not of numbers, of more than two dimensions,
            or of another length.
    """
    if "://" in os.fspath(path):
        raise InputError(f"{path}: wanted a local folder, got an address; copy the store to a local folder first.")
    group = Path(os.path.abspath(path))
    attributes = group_attributes(group)
    x_names, y_names = _names(inputs), _names(targets)
    if not x_names:
        raise InputError(
            f"{group}: inputs: wanted at least one array, got none; name the arrays that hold the inputs."
        )
    arrays = {name: open_array(group, name) for name in (*x_names, *y_names)}
    width = {name: stored.columns for name, stored in arrays.items()}
    shard_rows, unit_rows = _row_grids(list(arrays.values()))
    return Dataset(
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
    )


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
