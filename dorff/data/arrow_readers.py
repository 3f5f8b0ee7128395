"""Files that Arrow reads: CSV (RFC 4180), gzipped too, by commas, semicolons or tabs; Parquet, of rows and of edges."""

import codecs
import csv
import gzip
import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyarrow import types

from dorff.data import readers
from dorff.data.edges import EDGES, RUN, Edges, EdgeSource
from dorff.data.labels import Label, Run
from dorff.data.readers import BLOCK_BYTES, Digest, Numbers, Reader, SourceBlock, common_dtype, reading, side_by_side
from dorff.errors import InputError

EMPTY: Final = frozenset(pacsv.ConvertOptions().null_values)  # what is read as NaN, or as no label
BOOLEANS: Final = {word: one for one in (False, True) for word in (str(one), str(one).lower(), str(one).upper())}
WHOLE: Final = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})(\.0*)?")  # 007 is text, and so are longer numbers
BLOCK: Final = 2**20
# After a separator or a line's end: a quoted field, kept as the group where its end may not have come.
QUOTED: Final = r"""(?<=[%s\r\n])(?:"[^"]*(?:""[^"]*)*"(?=[^"])|("[^"]*(?:""[^"]*)*"?\Z))"""
NUL: Final = "holds a NUL byte, which CSV cannot have; remove it or, where the file is UTF-16 text, save it as UTF-8"
OPEN: Final = "opens a quote that does not end; remove the quote, or close it in a row of less than 1 MiB"
SAMPLE: Final = 2**16  # characters of the first rows, which say how a file is written
DECIMAL: Final = r"[+-]?\d*%s\d+(?:[eE][+-]?\d+)?"
COLUMN_BLOCK: Final = 64  # of the first row: a block must hold whole rows, and later ones may be longer


class CSVReader(Reader):
    """Columns of a CSV file; one whose first row holds numbers only has no header, but columns c0, c1, ... So has one
    whose first row holds a number, when such columns are asked for and none of that row's fields is: `asked` are the
    names that will be. Empty fields and NA, NaN, null and the like are NaN, or no label. The first rows say what fields
    are separated by, whether decimals have a comma there, and which columns hold text."""

    def __init__(self, path: str, asked: Collection[str] = ()) -> None:
        self.path = path
        with reading(path, "CSV"):
            self._zipped = path.endswith(".gz")
            self._delimiter, rows, self._blank = self._sample(path, set(asked))
        fields = [field for row in rows for field in row]
        comma, point = (any(re.fullmatch(DECIMAL % sign, field) for field in fields) for sign in (",", "[.]"))
        self._decimal = "," if comma and not point and self._delimiter != "," else "."
        rows = [[field.strip() for field in row] for row in rows]
        first = rows[0]
        self._header = not _headless([field.replace(self._decimal, ".") for field in first], asked)
        self._text = [
            any(values := [row[j] for row in rows[self._header :] if j < len(row) and row[j] not in EMPTY])
            and not any(_is_number(value.replace(self._decimal, ".")) for value in values)
            for j in range(len(first))
        ]
        self._block = max(BLOCK, COLUMN_BLOCK * sum(len(field) + 1 for field in first))
        names = first if self._header else [f"c{j}" for j in range(len(first))]
        super().__init__(path, names, numbered=not self._header)

    def dtype(self, column: str) -> np.dtype[Any]:
        """Text holds numbers of any precision."""
        return np.dtype(np.float64)

    def is_text(self, column: str) -> bool:
        """Whether none of the first rows has a number there."""
        return self._text[self.columns.index(column)]

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Parse the file a block at a time; only the columns asked for are turned into numbers, or labels."""
        place = {column: str(j) for j, column in enumerate(self.columns)}
        wanted, text = [place[column] for column in columns], [place[label] for label in labels]
        with reading(self.path, "CSV"), self._opened() as file:
            stream = _Counted(file, self._delimiter, self._digest)
            try:
                yield from self._parse(stream, wanted, text)
            except (pa.ArrowInvalid, _FaultError) as error:
                fault = (stream.quote, OPEN) if "straddling" in str(error) and stream.quote else error.args
                if len(fault) < 2:
                    raise self._explained(str(error)) from error
                raise InputError(f"{self.path}: line {1 + self._lines_before(fault[0])} {fault[1]}.") from None
            self.rows = stream.records - self._header

    def _opened(self) -> Any:
        return pa.input_stream(self.path, compression="gzip" if self._zipped else None)

    def _lines_before(self, place: int) -> int:
        """How many lines end before a byte, whether they end in LF, CR or both."""
        feeds = returns = 0
        with self._opened() as file:
            while piece := file.read(min(place, BLOCK)):
                feeds, returns, place = feeds + piece.count(b"\n"), returns + piece.count(b"\r"), place - len(piece)
        return max(feeds, returns)

    def _parse(self, stream: Any, wanted: list[str], text: list[str]) -> Iterator[SourceBlock]:
        # Arrow counts rows, for its messages, on one thread only; it is as fast there.
        read = pacsv.ReadOptions(
            use_threads=False,
            block_size=self._block,
            column_names=[str(j) for j in range(len(self.columns))],  # our own: the file's may repeat
            skip_rows=self._blank,
            skip_rows_after_names=int(self._header),
        )
        parse = pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        convert = pacsv.ConvertOptions(
            include_columns=wanted + text,
            column_types=dict.fromkeys(wanted, pa.float64()) | dict.fromkeys(text, pa.string()),
            strings_can_be_null=True,
            decimal_point=self._decimal,
        )
        for batch in pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert):
            if batch.num_rows:
                numbers = [column.to_numpy(zero_copy_only=False) for column in batch.columns[: len(wanted)]]
                labels = (Run.of(column, _label) for column in batch.columns[len(wanted) :])
                yield SourceBlock(side_by_side(numbers, len(batch)), tuple(labels))

    def _explained(self, reason: str) -> InputError:
        row = re.search(r"Row #(\d+)", reason)
        where = f"row {row[1]}" if row else "some row"
        if column := re.search(r"In CSV column #(\d+)", reason):
            where = f"column {self.columns[int(column[1])]!r}, {where}"
        if text := re.search(r"invalid value '(.*)'", reason, re.DOTALL):
            value = text[1] if len(text[1]) < 60 else text[1][:60] + "..."
            what = f"wanted a number, got {value!r}; correct it, empty it, or leave the column out"
        elif "invalid UTF8" in reason:
            what = "is not UTF-8 text; save the file as UTF-8"
        elif width := re.search(r"Expected (\d+) columns, got (\d+)", reason):
            what = f"wanted {width[1]} fields, got {width[2]}; correct that row"
        else:
            what = f"cannot be read as CSV ({' '.join(reason.split())[:200]}); check its quotes"
        return InputError(f"{self.path}: {where}: {what}.")

    def _sample(self, path: str, asked: set[str]) -> tuple[str, list[list[str]], int]:
        """What fields are separated by, the first rows that are not blank, and how many lines are before them. A
        semicolon or tab where the first row then has names that are `asked`, or all rows have as many fields."""
        samples = {one: self._first_rows(path, one) for one in (",", "\t", ";")}
        if Path(path.removesuffix(".gz")).suffix == ".tsv":
            return "\t", *samples["\t"]

        def fit(delimiter: str) -> tuple[bool, bool]:
            first, *others = samples[delimiter][0]
            alike = delimiter != "," and len(first) > 1 and all(len(row) == len(first) for row in others)
            return bool(asked & {field.strip() for field in first}), alike

        best = max(samples, key=fit)
        return best, *samples[best]

    def _first_rows(self, path: str, delimiter: str) -> tuple[list[list[str]], int]:
        opened: Any = gzip.open if self._zipped else open
        rows: list[list[str]] = []
        blank = size = 0
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file, suppress(csv.Error):
            for row in csv.reader(file, delimiter=delimiter):
                if any("\0" in field for field in row) and not rows:
                    raise InputError(f"{path}: line {blank + 1} {NUL}.")
                blank += not rows and not row
                rows += [row] if row else []
                size += 1 + sum(map(len, row))
                if size > SAMPLE:
                    break
        if not rows:
            raise InputError(f"{path}: is empty; wanted at least one row of numbers.")
        return rows, blank


class _FaultError(Exception):
    """The byte where the text is at fault, and what is wrong there."""


class _Counted:
    """The text of a CSV file on its way to Arrow: without NUL, quotes closed, with a digest, its records counted
    by other code than Arrow's. They are the lines that are not empty; a quoted field's are its own (RFC 4180)."""

    closed = False  # Arrow asks

    def __init__(self, file: Any, delimiter: str, digest: Digest) -> None:
        self._file, self._digest, self._quoted = file, digest, re.compile(QUOTED.encode() % delimiter.encode())
        self._opened = re.compile(b'(?<=[%s\r\n])"' % delimiter.encode())
        self._records, self._rest = 0, b"\n"  # not counted yet: the last byte, and a quoted field that has no end yet

    @property
    def records(self) -> int:
        """How many have begun."""
        return self._records + (len(self._rest) > 1 and self._rest[:1] in b"\r\n")

    @property
    def quote(self) -> int:
        """The byte of a quote that has not been closed so far; 0 where there is none."""
        return self._digest.length - len(self._rest) + 1 if self._rest.count(b'"', 1) % 2 else 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes; _FaultError where one is NUL, or where a quote is open at the end."""
        piece: bytes = self._file.read(size)
        mark = codecs.BOM_UTF8 if self._digest.length == 0 else b""
        if b"\0" in piece:
            raise _FaultError(self._digest.length + piece.index(b"\0"), NUL)
        if not piece and self.quote:
            raise _FaultError(self.quote, OPEN)
        self._digest.update(piece)
        text = self._rest + piece.removeprefix(mark)
        stop = len(text)
        if b'"' in text:
            text = self._quoted.sub(rb"\1_", text)
            unended = self._opened.search(text)
            stop, text = (unended.start(), text[:-1]) if unended else (len(text), text)
        values = np.frombuffer(text, np.uint8, stop)
        ends = values == 10
        if b"\r" in text:
            ends |= values == 13
        self._records += int(np.count_nonzero(ends[:-1] > ends[1:]))
        self._rest = text[stop - 1 :]
        return piece


def _headless(row: Sequence[str], asked: Collection[str]) -> bool:
    """Whether a first row is data: numbers, empty fields, and text only where c0, c1, ... are asked for."""
    numbers = [_is_number(field) for field in row if field not in EMPTY]
    numbered = any(re.fullmatch("c[0-9]+", name) for name in asked) and not set(asked) & set(row)
    return any(numbers) and (all(numbers) or numbered)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python's literals allow it, files do not


def _label(text: str) -> Label | None:
    """A field as a label. A number is one only as it is usually written (1, 1.0, 0.5, 1.000000000000000000e+00 by
    NumPy's savetxt): 007, 1.10 and 1e5 may be names."""
    text = text.strip()
    if text in EMPTY:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) and text in (repr(value), f"{value:.18e}") else text


class ParquetReader(Reader):
    """Columns of a Parquet file; nulls are NaN."""

    def __init__(self, path: str) -> None:
        with reading(path, "Parquet"):
            self._schema = pq.read_schema(path)
        super().__init__(path, self._schema.names)

    def dtype(self, column: str) -> np.dtype[Any]:
        """The column's type; integers, decimals and booleans come as float64."""
        kind = self._schema.field(column).type
        if types.is_float16(kind) or types.is_float32(kind):
            return np.dtype(np.float32)
        if any(is_of(kind) for is_of in (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean)):
            return np.dtype(np.float64)
        raise readers.unwanted(self.path, column, kind, readers.NUMBERS)

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        dtype = common_dtype([self.dtype(column) for column in columns])
        wanted = [*columns, *labels]
        rows = max(1, BLOCK_BYTES // (8 * len(wanted)))
        # Without a buffer of its own, or with pre_buffer, Arrow holds whole row groups.
        with reading(self.path, "Parquet"), pq.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20) as file:
            self.rows, count = file.metadata.num_rows, 0
            for batch in file.iter_batches(rows, columns=wanted, use_threads=False):
                count += len(batch)
                self._digest.follow(self.path, count, self.rows)
                numbers = [self._numbers(batch.column(column), dtype) for column in columns]
                runs = tuple(self._labels(batch.column(label), label) for label in labels)
                yield SourceBlock(side_by_side(numbers, len(batch)), runs)

    def _labels(self, column: Any, name: str) -> Run:
        if types.is_dictionary(column.type):  # its own dictionary may hold more, in another order
            column = column.dictionary_decode()
        kind = column.type
        if types.is_temporal(kind):
            column = column.cast(pa.string())
        elif types.is_nested(kind):
            raise readers.unwanted(self.path, name, kind, readers.LABELS)
        elif types.is_float16(kind) or types.is_null(kind):
            column = column.cast(pa.float32())
        return Run.of(column)

    def _numbers(self, column: Any, dtype: np.dtype[Any]) -> Numbers:
        if types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values.astype(dtype, copy=False)


@dataclass(frozen=True)
class ParquetEdges(EdgeSource):
    """The columns i, j and perhaps w of Parquet files: `files` are their names, `starts` the entries before each."""

    files: tuple[str, ...]
    starts: tuple[int, ...]

    def _read(self, start: int, stop: int) -> Edges:
        names = EDGES if self.weighted else EDGES[:2]
        out = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64), np.ones(stop - start)
        for file, (first, end) in zip(self.files, pairwise((*self.starts, self.count)), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                parts = tuple(part[low - start : high - start] for part in out)
                _read_parquet(file, names, low - first, parts[: len(names)])
        return out


def open_parquet_graph(root: Path, files: tuple[str, ...]) -> ParquetEdges:
    """The edges in these files; InputError as `open_graph`."""
    starts, count, nodes, weighted = [], 0, None, set()
    for file in files:
        with reading(file, "Parquet"), pq.ParquetFile(file) as opened:
            schema, rows = opened.schema_arrow, opened.metadata.num_rows
        _check_columns(file, schema)
        weighted.add("w" in schema.names)
        stated = (schema.metadata or {}).get(b"nodes", b"").decode("ascii", "replace")
        nodes = int(stated) if stated.isdigit() else nodes
        starts.append(count)
        count += rows
    if len(weighted) > 1:
        raise InputError(f"{root}: wanted the column w in all of its files or in none; write them alike.")
    return ParquetEdges(str(root), nodes, count, weighted.pop(), files, tuple(starts))


def _check_columns(file: str, schema: Any) -> None:
    others = [name for name in schema.names if name not in EDGES and not name.startswith("__")]  # but pandas' index
    remedy = "name the weights w, drop the rest" if "w" not in schema.names and others else "rename them"
    if remedy != "rename them" or not {*EDGES[:2]}.issubset(schema.names):
        raise InputError(f"{file}: wanted the columns i, j and perhaps w, got {schema.names}; {remedy}.")
    for name in EDGES[: 2 + ("w" in schema.names)]:
        kind, what = schema.field(name).type, "numbers" if name == "w" else "whole numbers of nodes"
        weight = name == "w" and (types.is_floating(kind) or types.is_boolean(kind))
        if not types.is_integer(kind) and not weight:
            raise InputError(f"{file}: column {name}: wanted {what}, got {kind}; convert it.")


def _read_parquet(file: str, names: tuple[str, ...], skip: int, out: tuple[npt.NDArray[Any], ...]) -> None:
    """Fill `out`, an array for each name, with the rows from `skip` on."""
    stop = skip + len(out[0])
    with (
        reading(file, "Parquet"),
        pq.ParquetFile(file, pre_buffer=False, buffer_size=2**20, page_checksum_verification=True) as opened,
    ):
        sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if starts[-1] < stop:
            raise InputError(f"{file}: has {starts[-1]} rows now, fewer than {stop}; open the graph again.")
        groups = [g for g in range(len(sizes)) if starts[g] < stop and starts[g + 1] > skip]
        at = int(starts[groups[0]])
        for batch in opened.iter_batches(RUN, row_groups=groups, columns=list(names), use_threads=False):
            low, high = max(skip, at), min(stop, at + len(batch))
            if low < high:
                for name, values in zip(names, out, strict=True):
                    values[low - skip : high - skip] = _column(file, batch.column(name), name)[low - at : high - at]
            at += len(batch)


def _column(file: str, column: Any, name: str) -> npt.NDArray[Any]:
    if name != "w" and column.null_count:
        raise InputError(f"{file}: column {name} has {column.null_count} gaps; leave those edges out.")
    try:
        converted = column.cast(pa.float64() if name == "w" else pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}: column {name} has a number out of range ({error}); mend the graph.") from error
    return np.asarray(converted.to_numpy(zero_copy_only=False))
