"""Folders of files that are parts of one table, such as Spark, Dask and polars write; with hive partitions too."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from dorff.data.labels import Run
from dorff.data.packing import FillValues
from dorff.data.readers import Reader, SourceBlock, common_dtype, ending, side_by_side, unwanted
from dorff.data.units import Conversions, TimeShift
from dorff.errors import InputError

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")


def part_files(folder: Path) -> list[Path]:
    """Return the files below a folder with the numbers in their paths in order; InputError unless they are alike."""
    below = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    files = [path for path in below if not any(name.startswith((".", "_")) for name in path.parts)]
    ends = sorted({ending(str(path)) for path in files})
    if len(ends) != 1:
        came = f"files of {', '.join(ends)}" if ends else "no files"
        remedy = "name files, or a folder of one format, whose files are one table"
        raise InputError(f"{folder}: wanted a file, got a folder with {came}; {remedy}.")
    return sorted(files, key=_natural_order)


def _natural_order(path: Path) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return a sorting key in which part-2 comes before part-10."""
    return tuple(tuple(map(_piece_order, re.split(r"(\d+)", name))) for name in path.parts)


def _piece_order(piece: str) -> tuple[int, int, str]:
    """Return the sorting key of a piece of a name, which is a number or has no digit."""
    return (1, int(piece), piece) if piece.isdecimal() else (0, 0, piece)


class FolderReader(Reader):
    """The rows of all files of a folder, in the order of the numbers in their names. Folders such as `year=2024` are
    columns with that value in all rows of the files below: numbers where all values are, else text. So is the folder
    itself, and those above it that are called so: a partition has the columns that the whole table has."""

    def __init__(self, folder: Path, open_part: Callable[[str], Reader]) -> None:
        files = part_files(folder)
        self._parts = [open_part(str(folder / file)) for file in files]
        above = _keys_above(folder)
        keys = [above | _keys(file.parts[:-1]) for file in files]
        for file, found in zip(files, keys, strict=True):
            if found.keys() != keys[0].keys():
                raise InputError(f"{folder}: {file} has the keys {list(found)}, others {list(keys[0])}; name one kind.")
        self._keys = {name: [found[name] for found in keys] for name in keys[0] if name not in self._parts[0].columns}
        known = {name: [value for value in values if value is not None] for name, values in self._keys.items()}
        self._numeric = {name for name, values in known.items() if _are_numbers(values)}
        self._attributes: dict[str, Mapping[str, str]] = {}
        super().__init__(str(folder), [*self._parts[0].columns, *self._keys], numbered=self._parts[0].numbered)

    def expand(self, name: str) -> tuple[str, ...]:
        return self._parts[0].expand(name)

    def dtype(self, column: str) -> np.dtype[Any]:
        if column not in self._keys:
            dtypes = {part.dtype(column) for part in self._having(column)}
            return dtypes.pop() if len(dtypes) == 1 else common_dtype([*dtypes])
        if column not in self._numeric:
            raise unwanted(self.path, column, "text", "real numbers; convert it or leave it out")
        return np.dtype(np.float64)

    def is_text(self, column: str) -> bool:
        if column in self._keys:
            return column not in self._numeric
        return any(part.is_text(column) for part in self._having(column))

    def has_text(self, column: str) -> bool:
        """Whether a column is text in any part, even beside numbers."""
        if column in self._keys:
            return column not in self._numeric
        return any(part.has_text(column) for part in self._having(column))

    def attributes(self, column: str) -> Mapping[str, str]:
        """Return what the first part gives a column; InputError where another part has other units."""
        if column in self._keys:
            return {}
        if column not in self._attributes:
            self._attributes[column] = self._common_attributes(column)
        return self._attributes[column]

    def _common_attributes(self, column: str) -> Mapping[str, str]:
        conversions, first = Conversions(), self._parts[0].attributes(column)
        for part in self._parts[1:]:
            if column not in part.columns:
                continue
            given = part.attributes(column)
            conversions.add(column, given, first, part.path)
            if column in conversions.by_column or column in conversions.assumed:
                units, other = (attributes.get("units", "none") for attributes in (first, given))
                problem = f"column {column!r} is in {other}, but in {units} in {self._parts[0].path}"
                raise InputError(f"{part.path}: {problem}; name the files, not their folder, to have them converted.")
        return first

    def keep_digits(self, columns: Collection[str], missing: FillValues) -> None:
        """Count the times of all parts from the first day of the first part that has such times."""
        own = [column for column in columns if column in self.columns and column not in self._keys]
        for column in own:
            self.attributes(column)  # which refuses parts of other units, as these are stored
        shifts: dict[str, TimeShift] = {}
        for part in self._parts:
            part.keep_digits(own, missing)
            shifts = {**part.time_shifts, **shifts}
        for part in self._parts:
            part.count_times(shifts)
        self._attributes.clear()  # the origins in them have changed

    @property
    def time_shifts(self) -> Mapping[str, TimeShift]:
        return self._parts[0].time_shifts

    def further_dimensions(self, column: str, columns: Collection[str]) -> tuple[str, ...]:
        return self._parts[0].further_dimensions(column, columns)

    def _having(self, column: str) -> list[Reader]:
        """Return the parts; InputError where one lacks the column."""
        for part in self._parts:
            part.resolve([column])
        return self._parts

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        numbers = [column for column in columns if column not in self._keys]
        texts = [label for label in labels if label not in self._keys]
        read = numbers or texts or [self._parts[0].columns[0]]  # a block says how many rows there are
        extra = [] if numbers or texts else read
        dtype = common_dtype([self.dtype(column) for column in columns])
        count = 0
        for place, part in enumerate(self._parts):
            part.resolve(read)
            for block in part.blocks(numbers, [*texts, *extra]):
                own = dict(zip(numbers, block.numbers.T, strict=True))
                runs = dict(zip([*texts, *extra], block.labels, strict=True))
                values = [own[name] if name in own else self._constant(name, place, len(block)) for name in columns]
                together = side_by_side(values, len(block)).astype(dtype, copy=False)
                marks = tuple(runs[name] if name in runs else self._run(name, place, len(block)) for name in labels)
                yield SourceBlock(together, marks)
            count += part.rows
            self.found_words |= part.found_words
        self.rows = count

    def _constant(self, name: str, place: int, rows: int) -> Any:
        value = self._keys[name][place]
        return np.full(rows, np.nan if value is None else float(value))

    def _run(self, name: str, place: int, rows: int) -> Run:
        value = self._keys[name][place]
        label = float(value) if value is not None and name in self._numeric else value
        return Run((label,), np.zeros(rows, np.int32))

    def content(self) -> str:
        every = "+".join(part.content() for part in self._parts)
        every += "".join(f"{name}={values}" for name, values in self._keys.items())
        return hashlib.blake2b(every.encode(), digest_size=12).hexdigest()


def _are_numbers(values: Sequence[str]) -> bool:
    """Whether the values of a key are numbers: not 7 and 007, which are names."""
    different = set(values)
    return all(map(NUMBER.fullmatch, different)) and len({float(value) for value in different}) == len(different)


def _keys_above(folder: Path) -> dict[str, str | None]:
    """Return the keys of a partition: of its name, and of those above it up to one without a key."""
    names: list[str] = []
    for name in reversed(folder.absolute().parts):
        if "=" not in name:
            break
        names.insert(0, name)
    return _keys(names)


def _keys(names: Sequence[str]) -> dict[str, str | None]:
    """Return the keys and values of folders with these names."""
    pairs = (name.partition("=") for name in names if "=" in name)
    return {unquote(key): None if value == NO_VALUE else unquote(value) for key, _, value in pairs}
