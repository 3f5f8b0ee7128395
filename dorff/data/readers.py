"""What a source of rows is, read in blocks of bounded size; and how one is opened: a file, or files side by side."""

import difflib
import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import google_crc32c
import numpy as np

from dorff.data.labels import Run
from dorff.data.layout import METADATA, transient
from dorff.data.packing import MOST_COLUMNS, NUMBER_KINDS, Array, FillValues
from dorff.data.units import TimeShift
from dorff.errors import IncompleteError, InputError
from dorff.errors.shown import UNPRINTABLE, show
from dorff.spec.part import Part
from dorff.spec.registry import READERS, Entry, lazily

Numbers = Array  # (rows, columns asked for), float32 or float64
BLOCK_BYTES: Final = 4 * 2**20
MOST_ROW: Final = 2**25  # bytes of a row of an array: a block has one row at least
NUMBERS: Final = "real numbers; convert it or leave it out"
FIELDS: Final = "real numbers; save each of its fields as an array, a[name] for name in a.dtype.names"
DURATIONS: Final = "numbers, or durations in weeks or shorter units; convert it by .astype('m8[s]')"
LABELS: Final = "labels: text, whole numbers or booleans; convert it"


@dataclass(frozen=True)
class SourceBlock:
    """Rows of a source: numbers (rows, columns asked for), and a run of each column of labels asked for."""

    numbers: Numbers
    labels: tuple[Run, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice) -> "SourceBlock":
        return SourceBlock(self.numbers[rows], tuple(run[rows] for run in self.labels))


class Digest:
    """Names content: BLAKE2b of its first 64 KiB (small files are many), CRC32C of all (which is cheap), length."""

    def __init__(self) -> None:
        self.length, self._first, self._all = 0, hashlib.blake2b(digest_size=12), 0

    def update(self, piece: bytes) -> None:
        """Add bytes; it does not matter how they are cut."""
        self._first.update(piece[: max(0, 2**16 - self.length)])
        self._all = google_crc32c.extend(self._all, piece)
        self.length += len(piece)

    def follow(self, path: str, rows: int, of: int) -> None:
        """Add a file's bytes, as large a part of them as so many rows are of all: just read, they are in memory."""
        with open(path, "rb") as file:
            stop = os.fstat(file.fileno()).st_size * rows // of
            file.seek(self.length)
            while piece := file.read(min(stop - self.length, 2**20)):
                self.update(piece)

    def __str__(self) -> str:
        whole = self._first.copy()
        whole.update(f"{self._all} {self.length}".encode())
        return whole.hexdigest()


class Reader(ABC):
    """One source. Columns are selected by name; a name may stand for several (a 2-d array)."""

    rows = 0  # that the file says it has, known when all have been read
    left_out = 0  # those of its rows that a condition left out of these

    def __init__(self, path: str, columns: Sequence[str], *, numbered: bool = False) -> None:
        self.path = path
        self.columns = tuple(columns)
        self.numbered = numbered  # the names are c0, c1, ... only because the file has none
        self.remarks: tuple[str, ...] = ()  # sentences on how the source was understood
        self.found_words: frozenset[str] = frozenset()  # of text, that stand for none, in what was read
        self._digest = Digest()

    def expand(self, name: str) -> tuple[str, ...]:
        """The columns that a name stands for."""
        return (name,)

    @abstractmethod
    def dtype(self, column: str) -> np.dtype[Any]:
        """The type that a column's numbers come in; InputError where they are not numbers."""

    def is_text(self, column: str) -> bool:
        """Whether a column holds text, or times as such."""
        try:
            self.dtype(column)
        except InputError:
            return True
        return False

    def has_text(self, column: str) -> bool:
        """Whether a column is known to hold text, even beside numbers."""
        return self.is_text(column)

    def attributes(self, column: str) -> Mapping[str, str]:
        """Return the CF attributes that the source gives a column, among `units.ATTRIBUTES`.

        Returns {} for a column without attributes, and for one that the source lacks.
        """
        return {}

    def further_dimensions(self, column: str, columns: Collection[str]) -> tuple[str, ...]:
        """Return the dimensions that a column has, and none of `columns`: along them it has several values for a row.

        Returns () where the source has no named dimensions, or lacks all of `columns`.
        """
        return ()

    def keep_digits(self, columns: Collection[str], missing: FillValues) -> None:
        """Count those times from a later origin that a float64 cannot hold as they are.

        Their stored integers that are `missing` become NaN, and what looks like a fill value
        is refused. Sources without units of their own have none such.
        """
        return

    def count_times(self, shifts: Mapping[str, TimeShift]) -> None:
        """Count the times of these columns from a later origin, that of another source of the same units.

        To be called after `keep_digits`, whose origins these replace.
        """
        return

    @property
    def time_shifts(self) -> Mapping[str, TimeShift]:
        """What is subtracted from the stored times of each column that is counted from a later origin."""
        return {}

    def blocks(self, columns: Sequence[str], labels: Sequence[str] = ()) -> Iterator[SourceBlock]:
        """All rows of the columns, and of those of labels, in order, in blocks of any size and bounded memory.
        InputError where there are not as many as the file says."""
        count, self._digest = 0, Digest()
        for block in self._read(columns, labels):
            count += len(block)
            yield block
        if count != self.rows:
            remedy = "check its line ends and quotes"
            raise InputError(f"{self.path}: has {self.rows} rows, but {count} could be read; {remedy}.")

    @abstractmethod
    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """What `blocks` gives; sets `rows`."""

    def content(self) -> str:
        """Names what `blocks` has read."""
        return str(self._digest)

    def resolve(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns that the names stand for; InputError for a name that no column or several have."""
        counts = Counter(self.columns)
        resolved = [column for name in names for column in self.expand(name)]
        for column in resolved:
            if UNPRINTABLE.search(column):  # they would reach terminals, and the headers of CSV files
                raise InputError(f"{self.path}: column {show(column)} has characters that are not printed; rename it.")
            if (count := counts[column]) > 1:
                raise InputError(f"{self.path}: {count} columns are named {column!r}; rename them, one name a column.")
            if count == 0:
                held = ", ".join(self.columns[:20]) + (", ..." if len(self.columns) > 20 else "")
                near = difflib.get_close_matches(column, self.columns, n=1)
                remedy = f" (did you mean {near[0]!r}?)" if near else f"; its columns are: {held}; name some of them"
                raise InputError(f"{self.path}: has no column {column!r}{remedy}.")
        return tuple(resolved)

    def resolve_single(self, name: str, option: str) -> str:
        """Return the column of a name; InputError, naming the option, where it stands for several."""
        columns = self.resolve((name,))
        if columns != (name,):
            shown = ", ".join(columns[:3]) + (", ..." if len(columns) > 3 else "")
            problem = f"{name!r} stands for the columns {shown}" if columns else f"{name!r} has no columns"
            raise InputError(f"{option}: {self.path}: {problem}; name a single column.")
        return name


@contextmanager
def reading(path: str, format_name: str) -> Iterator[None]:
    """Turn what a format's library raises into one sentence about the file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; check the path.") from error
    except Exception as error:
        if transient(error):
            raise IncompleteError(f"{path}: the disk failed while it was read ({error}); run it again.") from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(f"{path}: cannot be read as {format_name} ({reason}); see that it is whole.") from error


def unwanted(path: str, column: str, kind: object, wanted: str) -> InputError:
    return InputError(f"{path}: column {column!r} holds {kind}, wanted {wanted}.")


def side_by_side(columns: Sequence[Array], rows: int) -> Numbers:
    """Columns (rows,) as one array (rows, columns), of none too."""
    return np.column_stack(columns) if columns else np.empty((rows, 0), np.float32)


def without_given(reader: Reader, columns: Sequence[str], numbers: Numbers, missing: FillValues) -> Numbers:
    """Return a source's numbers (n, columns) with NaN in the place of those `missing`.

    Times that the reader counts from a later origin have it already.
    """
    shifts = reader.time_shifts
    stored = [place for place, column in enumerate(columns) if column not in shifts]
    if len(stored) == len(columns):
        return missing.without_given(numbers)
    known = numbers.copy()
    known[:, stored] = missing.without_given(numbers[:, stored])
    return known


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """float32 where it holds all the values exactly as they come, else float64."""
    return np.dtype(np.float32 if all(t.kind == "f" and t.itemsize <= 4 for t in dtypes) else np.float64)


class ArrayInfo(NamedTuple):
    """One array in a file: (rows,) or (rows, columns), and the type of its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ArraysReader(Reader):
    """A file of named arrays. A 2-d array k of j columns has the columns k0 ... k(j-1); k stands for all."""

    format_name: str

    def __init__(self, path: str, arrays: Mapping[str, ArrayInfo], *, numbered: bool = False) -> None:
        self.arrays = arrays
        for name, info in arrays.items():
            if len(info.shape) == 2 and info.shape[1] > MOST_COLUMNS:
                raise InputError(f"{path}: array {name!r} claims {info.shape[1]} columns, more than {MOST_COLUMNS}.")
        places = [
            (name if len(info.shape) == 1 else f"{name}{j}", name, j)
            for name, info in arrays.items()
            for j in range(info.shape[1] if len(info.shape) == 2 else len(info.shape) == 1)
        ]
        super().__init__(path, [column for column, _, _ in places], numbered=numbered)
        self._place = {column: (name, j) for column, name, j in places}

    @abstractmethod
    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        """Those columns of one array, `rows` rows at a time."""

    def expand(self, name: str) -> tuple[str, ...]:
        if (info := self.arrays.get(name)) is None or len(info.shape) == 1:
            return (name,)
        if len(info.shape) != 2:
            raise InputError(f"{self.path}: array {name!r} has shape {info.shape}, wanted 1-d or 2-d; reshape it.")
        return tuple(f"{name}{j}" for j in range(info.shape[1]))

    def dtype(self, column: str) -> np.dtype[Any]:
        """Return the type of a column's numbers; durations are float64 seconds."""
        dtype = self.arrays[self._place[column][0]].dtype
        if has_fixed_length(dtype):
            return np.dtype(np.float64)
        if dtype.kind not in NUMBER_KINDS:
            wanted = NUMBERS if dtype.fields is None else FIELDS
            raise unwanted(self.path, column, dtype, wanted)
        return dtype

    def attributes(self, column: str) -> dict[str, str]:
        """Return the unit of durations."""
        place = self._place.get(column)
        if place is None or not has_fixed_length(self.arrays[place[0]].dtype):
            return {}
        return {"units": "s"}

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Read each array once, side by side; those of labels once for them."""
        wanted: dict[str, list[int]] = {}
        for column in columns:
            name, j = self._place[column]
            wanted.setdefault(name, []).append(j)
        order = {place: i for i, place in enumerate((name, j) for name, places in wanted.items() for j in places)}
        pick = [order[self._place[column]] for column in columns]
        dtype = common_dtype([self.dtype(column) for column in columns])
        arrays = [*wanted.items(), *((name, [j]) for name, j in (self._place[label] for label in labels))]
        for label in labels:
            if (kind := self.arrays[self._place[label][0]].dtype).kind not in NUMBER_KINDS + "SUM":
                raise unwanted(self.path, label, kind, _wanted_labels(kind))
        infos = [self.arrays[name] for name, _ in arrays]
        self.rows = infos[0].shape[0]
        for (name, _), info in zip(arrays, infos, strict=True):
            if (n := info.shape[0]) != self.rows:
                lengths = f"array {arrays[0][0]!r} has {self.rows} rows but {name!r} has {n}"
                raise InputError(f"{self.path}: {lengths}; wanted as many.")
        for (name, _), info in zip(arrays, infos, strict=True):
            if (taken := info.dtype.itemsize * math.prod(info.shape[1:])) > MOST_ROW:
                problem = f"a row of array {name!r} takes {taken:,} bytes, more than {MOST_ROW:,}"
                raise InputError(f"{self.path}: {problem}; leave it out, or write it with shorter text.")
        rows = max(1, BLOCK_BYTES // sum(max(8, i.dtype.itemsize) * math.prod(i.shape[1:]) for i in infos))
        count = 0
        with reading(self.path, self.format_name):
            for parts in zip(*(self.stream(name, places, rows) for name, places in arrays), strict=True):
                count += len(parts[0])
                self._follow([name for name, _ in arrays], parts, count)
                runs = tuple(Run.of(part[:, 0]) for part in parts[len(wanted) :])
                numbers = [_seconds(part) for part in parts[: len(wanted)]]
                numbers = numbers or [np.empty((len(parts[-1]), 0))]
                yield SourceBlock(np.concatenate(numbers, axis=1)[:, pick].astype(dtype, copy=False), runs)

    def _follow(self, arrays: Sequence[str], parts: Sequence[Array], count: int) -> None:
        """Take note of what was read: parts of these arrays, the rows up to number `count`."""
        self._digest.follow(self.path, count, self.rows)


def _wanted_labels(dtype: np.dtype[Any]) -> str:
    """Say what was wanted in place of values that are neither numbers nor labels."""
    if dtype.fields is not None:
        return FIELDS
    if dtype.kind == "m":
        return DURATIONS
    return f"{LABELS} (NumPy's objects by .astype(str))"


def has_fixed_length(dtype: np.dtype[Any]) -> bool:
    """Whether values are durations of a unit that is always as long: weeks, not months."""
    units = np.datetime_data(dtype)[0] if dtype.kind == "m" else "generic"
    return units not in ("generic", "Y", "M")


def _seconds(values: Array) -> Numbers:
    """Return durations as seconds, NaT as NaN; any other numbers as they are."""
    if values.dtype.kind != "m":
        return values
    seconds: Numbers = values / np.timedelta64(1, "s")
    return seconds


class ColumnNames(Part):
    """The options of a format whose columns depend on those that will be `asked` for."""

    asked: tuple[str, ...] = ()


TextSettings = Mapping[str, Any] | None  # of `TextOptions`, by name


class TextOptions(ColumnNames):
    """The options of tables of text: how they are written, where that is not recognised.

    `missing` are words that stand for no number, beside those that are known. They do not
    have to be of text: other formats have them in columns of labels.
    """

    skip_rows: int = 0
    comment: tuple[str, ...] = ()
    delimiter: str = ""
    decimal: str = ""
    missing: tuple[str, ...] = ()


def open_source(
    source: str | os.PathLike[str], asked: Collection[str] = (), *, fill_absent: bool = False, text: TextSettings = None
) -> Reader:
    """The reader of a file, or of several as `a.csv+b.csv`; `asked` as of CSVReader. InputError for what none reads.
    With `fill_absent` chunks that are not there hold a Zarr array's fill value; `text` are `TextOptions`."""
    name = os.fspath(source)
    parts = [name] if "+" not in name or Path(name).exists() else name.split("+")
    given = {option: value for option, value in (text or {}).items() if value}
    readers = [_open_file(part, asked, fill_absent=fill_absent, text=given) for part in parts]
    layout = [option for option in given if option != "missing"]
    if layout and not any(_takes_text_options(part) for part in parts):
        option = layout[0].replace("_", "-")
        raise InputError(f"{name}: --{option} is for tables of text, which it is none of; leave it out.")
    return readers[0] if len(readers) == 1 else SideBySide(readers)


def _takes_text_options(path: str) -> bool:
    entry = READERS.get(ending(path))
    return Path(path).is_dir() or (entry is not None and issubclass(entry.options, TextOptions))


def is_zarr(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a local folder with the metadata of Zarr."""
    return any((Path(path) / key).is_file() for key in METADATA)


def ending(path: str) -> str:
    return Path(path.lower().removesuffix(".gz")).suffix + (".gz" if path.lower().endswith(".gz") else "")


def _open_file(path: str, asked: Collection[str], *, fill_absent: bool, text: Mapping[str, Any]) -> Reader:
    suffix = ending(path)
    if not Path(path).exists():
        raise InputError(f"{path}: there is no such file on this machine; check the path.")
    if is_zarr(path):
        return cast(Reader, _ZARR(path, asked, fill_absent=fill_absent))
    if Path(path).is_dir():
        return cast(Reader, _FOLDER(Path(path), lambda part: _open_file(part, asked, fill_absent=False, text=text)))
    if (entry := READERS.get(suffix)) is None:
        remedy = f"wanted one of {', '.join(READERS.names)}"
        raise InputError(f"{path}: its format is not known from {suffix or 'its name'!r}; {remedy}.")
    options = {"asked": asked} if "asked" in entry.options.model_fields else {}
    options |= text if issubclass(entry.options, TextOptions) else {}
    return cast(Reader, entry.build(path, **options))


def _add(ends: str, build: Callable[..., Reader], options: type[Part] = Part) -> None:
    READERS.add(*(Entry(end, build, options) for end in ends.split()))


_ZARR = lazily("dorff.data.zarr_reader", "ZarrReader")
_FOLDER = lazily("dorff.data.folders", "FolderReader")
_CSV = lazily("dorff.data.csv_reader", "CSVReader")  # Arrow and HDF5 take 40 MiB that fits need not hold
_add(".csv .tsv .txt .data .dat .asc .tab .csv.gz .tsv.gz .txt.gz .data.gz .dat.gz .asc.gz .tab.gz", _CSV, TextOptions)
_add(".parquet .pq", lazily("dorff.data.arrow_readers", "ParquetReader"))
_add(".arrow .feather .ipc", lazily("dorff.data.arrow_readers", "ArrowReader"))
_add(".npy", lazily("dorff.data.array_readers", "NPYReader"))
_add(".npz", lazily("dorff.data.array_readers", "NPZReader"))
_add(".nc .nc3 .nc4 .cdf .h5 .hdf5 .hdf", lazily("dorff.data.array_readers", "VariablesReader"), ColumnNames)


class SideBySide(Reader):
    """Sources with columns side by side: `a.csv+b.csv`. Columns without names are numbered on, c0, c1, ..."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = tuple(readers)
        self._place: dict[str, tuple[Reader, str]] = {}
        columns, number = [], 0
        for reader in readers:
            for column in reader.columns:
                columns.append(f"c{number}" if reader.numbered else column)
                number += reader.numbered
                self._place[columns[-1]] = (reader, column)
        numbered = all(reader.numbered for reader in readers)
        super().__init__("+".join(reader.path for reader in readers), columns, numbered=numbered)
        self.remarks = tuple(remark for reader in readers for remark in reader.remarks)

    def expand(self, name: str) -> tuple[str, ...]:
        expanded = (reader.expand(name) for reader in self._readers if not reader.numbered)
        return next((e for e in expanded if e != (name,)), (name,))

    def dtype(self, column: str) -> np.dtype[Any]:
        reader, name = self._place[column]
        return reader.dtype(name)

    def is_text(self, column: str) -> bool:
        reader, name = self._place[column]
        return reader.is_text(name)

    def has_text(self, column: str) -> bool:
        reader, name = self._place[column]
        return reader.has_text(name)

    def attributes(self, column: str) -> Mapping[str, str]:
        if column not in self._place:
            return {}
        reader, name = self._place[column]
        return reader.attributes(name)

    def further_dimensions(self, column: str, columns: Collection[str]) -> tuple[str, ...]:
        """As the source that has the column, by those of `columns` that this source has too."""
        if column not in self._place:
            return ()
        reader, name = self._place[column]
        return reader.further_dimensions(name, [self._place[other][1] for other in columns if self._has(reader, other)])

    def _has(self, reader: Reader, column: str) -> bool:
        return column in self._place and self._place[column][0] is reader

    def keep_digits(self, columns: Collection[str], missing: FillValues) -> None:
        for column in columns:
            if column in self._place:
                reader, name = self._place[column]
                reader.keep_digits([name], missing)

    @property
    def time_shifts(self) -> Mapping[str, TimeShift]:
        shifts = {reader: reader.time_shifts for reader in self._readers}
        places = self._place.items()
        return {column: shifts[reader][name] for column, (reader, name) in places if name in shifts[reader]}

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Read in step the sources that hold these columns; InputError when they differ in length."""
        held = {self._place[name][0] for name in (*columns, *labels)}
        readers = [reader for reader in self._readers if reader in held]
        streams = [r.blocks(self._of(r, columns), self._of(r, labels)) for r in readers]
        pick, pick_runs = (
            np.argsort([i for r in readers for i, name in enumerate(names) if self._place[name][0] is r])
            for names in (columns, labels)
        )
        for parts in _in_step(readers, streams):
            label_runs = [run for part in parts for run in part.labels]
            together = np.concatenate([part.numbers for part in parts], axis=1)
            yield SourceBlock(together[:, pick], tuple(label_runs[place] for place in pick_runs))
        self.rows = readers[0].rows
        self.found_words |= frozenset().union(*(reader.found_words for reader in readers))

    def _of(self, reader: Reader, names: Sequence[str]) -> list[str]:
        return [name for holder, name in map(self._place.__getitem__, names) if holder is reader]

    def content(self) -> str:
        """Of those that were read."""
        return "+".join(reader.content() for reader in self._readers if reader.rows)


def _in_step(readers: Sequence[Reader], streams: Sequence[Iterator[SourceBlock]]) -> Iterator[list[SourceBlock]]:
    """Cut streams of blocks at the same rows."""
    held = [next(stream, None) for stream in streams]
    done = 0
    while len(blocks := [block for block in held if block is not None]) == len(held):
        rows = min(map(len, blocks))
        yield [block[:rows] for block in blocks]
        pairs = zip(blocks, streams, strict=True)
        held = [block[rows:] if len(block) > rows else next(stream, None) for block, stream in pairs]
        done += rows
    counts = [done + len(rest or ()) + sum(map(len, more)) for rest, more in zip(held, streams, strict=True)]
    for reader, count in zip(readers, counts, strict=True):
        if count != counts[0]:
            remedy = "files side by side need as many rows each"
            raise InputError(f"{readers[0].path} has {counts[0]} rows but {reader.path} has {count}; {remedy}.")
