"""Reads tables of text: CSV (RFC 4180), gzipped too, and the dialects that `csv_dialect` knows."""

import gzip
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from dorff.data.csv_dialect import BLANKS, EMPTY, LONG_SAMPLE, SAMPLE, Dialect, Sample, read_lines, recognise
from dorff.data.csv_numbers import (
    NO_NUMBER,
    AmbiguousError,
    Notation,
    column_notation,
    file_decimal,
    is_number,
)
from dorff.data.csv_stream import MOST_LINE, OPEN, CleanedText, CountedText, SoughtWords, TextFaultError
from dorff.data.labels import Label, Run
from dorff.data.readers import Digest, Numbers, Reader, SourceBlock, reading, side_by_side
from dorff.errors import InputError

BLOCK: Final = 2**20
COLUMN_BLOCK: Final = 64  # of the first row: a block must hold whole rows, and later ones may be longer
NAMED_DELIMITERS: Final = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "blanks": BLANKS, "space": BLANKS}
#: Whole numbers; 007 is text, and so are longer ones.
WHOLE: Final = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})(\.0*)?")
BOOLEANS: Final = {
    spelled: value for value in (False, True) for spelled in (str(value), str(value).lower(), str(value).upper())
}
TRUTH_WORDS: Final = ("true", "false", "yes", "no", "t", "f")
LONGEST_WORD: Final = 12  # that may stand for no number: Missing, not sampled
WIDEST: Final = 12  # blanks beside a word for no number
# Arrow keeps these words in a tree of 32,767 nodes of 11 letters at most, and does not check whether it is full.
MOST_PADDED: Final = 4000  # words, with and without blanks
MOST_LETTERS: Final = 60_000  # of all these words
DATE: Final = re.compile(r"\d{4}-?\d\d-?\d\d([T ].*)?")
NAMELESS: Final = "No line before its rows has a name for each column: write one, or name c0, c1, ..."
LAYOUT_OPTIONS: Final = "where it is written otherwise, give --skip-rows, --comment or --delimiter"


class CSVReader(Reader):
    """Columns of a CSV file.

    One whose first row holds numbers only has no header, but columns c0, c1, ... So has one whose first row holds a
    number, when such columns are asked for and none of that row's fields is: `asked` are the names that will be. Empty
    fields and NA, NaN, null and the like are NaN, or no label; of numbers dashes and stars are too. The first rows say
    how the file is written, which columns hold text, and how each writes its numbers, unless options say it.
    """

    def __init__(
        self,
        path: str,
        asked: Collection[str] = (),
        *,
        skip_rows: int = 0,
        comment: Sequence[str] = (),
        delimiter: str = "",
        decimal: str = "",
        missing: Sequence[str] = (),
    ) -> None:
        self.path = path
        delimiter = NAMED_DELIMITERS.get(delimiter, delimiter)
        if len(delimiter) > 1:
            raise InputError(f"--delimiter {delimiter}: wanted one character, or tab or blanks.")
        if decimal not in ("", ".", ","):
            raise InputError(f"--decimal {decimal}: wanted a point or a comma.")
        self._zipped = path.endswith(".gz")
        tabs = not delimiter and path.lower().removesuffix(".gz").endswith(".tsv")
        said = {
            "skip_rows": skip_rows,
            "comments": tuple(comment),
            "delimiter": "\t" if tabs else delimiter,
            "missing": tuple(missing),
        }
        with reading(path, "CSV"):
            self._dialect = self._recognised(asked, said)
        self._comments_said = bool(comment)
        rows = self._dialect.rows
        fields = {text for row in rows for text in row}
        self._decimal = decimal or file_decimal(fields)
        columns = [[row[j] for row in rows if j < len(row)] for j in range(self._dialect.width)]
        empty = EMPTY.union(NO_NUMBER, self._dialect.missing)
        values = [[text for text in column if text not in empty] for column in columns]
        self._text = [bool(texts) and not any(map(is_number, texts)) for texts in values]
        self._mixed = [bool(texts) and not all(map(is_number, texts)) for texts in values]
        self._notations: dict[int, Notation] = {}
        self._ambiguous: dict[int, str] = {}
        for j, texts in enumerate(values):
            try:
                notation = None if self._text[j] else column_notation(texts, self._decimal, said=bool(decimal))
            except AmbiguousError as error:
                self._ambiguous[j] = str(error)
                continue
            if notation is not None:
                self._notations[j] = notation
        longest = max([*self._dialect.names, ""], key=len) if not rows else ""
        first = rows[0] if rows else [longest]
        names = self._dialect.names or [f"c{j}" for j in range(self._dialect.width)]
        row_bytes = max(sum(len(text) + 1 for text in each) for each in (first, self._dialect.names))
        self._block = min(max(BLOCK, COLUMN_BLOCK * row_bytes), 4 * MOST_LINE)
        super().__init__(path, names, numbered=not self._dialect.names)
        self._missing = frozenset(missing)

    def _recognised(self, asked: Collection[str], said: Mapping[str, Any]) -> Dialect:
        opened: Any = gzip.open if self._zipped else open
        for size in (SAMPLE, LONG_SAMPLE):
            with opened(self.path, "rb") as file:
                lines, whole = read_lines(file, size, self.path)
            if whole or size == LONG_SAMPLE:
                return recognise(Sample(path=self.path, lines=lines, whole=whole, **said), asked)
            try:
                dialect = recognise(Sample(path=self.path, lines=lines, whole=whole, **said), asked)
            except InputError:
                continue
            if dialect.rows:
                return dialect
        raise AssertionError

    def resolve(self, names: Sequence[str]) -> tuple[str, ...]:
        """As every reader; InputError says what else may be wrong where a name is none of the first record's."""
        try:
            return super().resolve(names)
        except InputError as error:
            strange = any("\ufffd" in name for name in self.columns)
            coding = " Its names are not UTF-8 text: save the file as UTF-8." if strange else ""
            missing = [name for name in names if name not in self.columns]
            where = NAMELESS if self.numbered else "Its names are the first record's"
            hint = f" {where}; {LAYOUT_OPTIONS}." if missing and not strange else ""
            raise InputError(f"{error}{coding}{hint}") from None

    def dtype(self, column: str) -> np.dtype[Any]:
        """Text holds numbers of any precision."""
        place = self.columns.index(column)
        if place in self._ambiguous:
            value = self._ambiguous[place]
            problem = f"column {column!r}: the comma or point of {value!r} may be a decimal mark or part a thousand"
            remedy = "say which mark decimals have, --decimal . or --decimal ,"
            raise InputError(f"{self.path}: {problem}; {remedy}.")
        return np.dtype(np.float64)

    def is_text(self, column: str) -> bool:
        """Whether none of the first rows has a number there."""
        return self._text[self.columns.index(column)]

    def has_text(self, column: str) -> bool:
        """Whether any of the first rows has text there that is no number."""
        return self._mixed[self.columns.index(column)]

    def attributes(self, column: str) -> Mapping[str, str]:
        """Return the units that stand below a column's name, or a percent sign beside its numbers."""
        if column in self._dialect.units:
            return {"units": self._dialect.units[column]}
        place = self.columns.index(column) if column in self.columns else -1
        notation = self._notations.get(place)
        return {"units": "%"} if notation is not None and notation.percent else {}

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """Parse the file a block at a time; only the columns asked for are turned into numbers, or labels."""
        wanted = [self.columns.index(column) for column in columns]
        text = [self.columns.index(label) for label in labels]
        with reading(self.path, "CSV"), self._opened() as file:
            sought = SoughtWords(self._missing - self.found_words, self._dialect.separator)
            stream = CountedText(self._cleaned(file, self._digest), self._dialect.separator, sought)
            try:
                yield from self._parse(stream, wanted, text)
            except (pa.ArrowInvalid, TextFaultError) as error:
                if isinstance(error, pa.ArrowInvalid):
                    if "straddling" not in str(error) or not stream.quote:
                        raise self._explained(str(error)) from error
                    error = TextFaultError(stream.quote, OPEN, of_file=False)
                line = 1 + self._lines_before(error.place, of_file=error.of_file)
                raise InputError(f"{self.path}: line {line} {error.problem}.") from None
            self.rows = stream.records
            self.found_words |= sought.found

    def _opened(self) -> Any:
        return pa.input_stream(self.path, compression="gzip" if self._zipped else None)

    def _cleaned(self, file: Any, digest: Digest) -> CleanedText:
        dialect, blanks = self._dialect, self._dialect.delimiter == BLANKS
        checked = None if blanks or self._comments_said or dialect.width < 2 else (dialect.delimiter, dialect.width)
        return CleanedText(file, digest, start=dialect.start, comments=dialect.comments, blanks=blanks, checked=checked)

    def _lines_before(self, place: int, *, of_file: bool) -> int:
        """How many lines end before a byte, whether they end in LF, CR or both."""
        feeds = returns = 0
        with self._opened() as file:
            text = file if of_file else self._cleaned(file, Digest())
            while place and (piece := text.read(min(place, BLOCK))):
                feeds, returns, place = feeds + piece.count(b"\n"), returns + piece.count(b"\r"), place - len(piece)
        return max(feeds, returns)

    def _parse(self, stream: Any, wanted: list[int], text: list[int]) -> Iterator[SourceBlock]:
        if not self._dialect.rows:
            while stream.read(BLOCK):
                pass
            return
        # Arrow counts rows, for its messages, on one thread only; it is as fast there.
        read = pacsv.ReadOptions(
            use_threads=False,
            block_size=self._block,
            column_names=[str(j) for j in range(self._dialect.width)],  # our own: the file's may repeat
        )
        parse = pacsv.ParseOptions(delimiter=self._dialect.separator, newlines_in_values=True)
        kinds = {str(j): pa.string() if j in self._notations else pa.float64() for j in wanted}
        convert = pacsv.ConvertOptions(
            include_columns=[str(j) for j in (*wanted, *text)],
            column_types={str(j): pa.string() for j in text} | kinds,
            null_values=_with_blanks([*EMPTY, *NO_NUMBER, *self._dialect.missing]),
            strings_can_be_null=False,
            decimal_point=self._decimal,
        )
        count = 0
        for batch in pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert):
            if batch.num_rows:
                parts = zip(wanted, batch.columns, strict=False)
                numbers = [self._numbers(column, j, count) for j, column in parts]
                labels = (Run.of(column, _label) for column in batch.columns[len(wanted) :])
                count += batch.num_rows
                yield SourceBlock(side_by_side(numbers, len(batch)), tuple(labels))

    def _numbers(self, column: Any, place: int, before: int) -> Numbers:
        """Return a column as numbers (n,); `before` rows come before it."""
        notation = self._notations.get(place)
        if notation is not None:
            texts = pc.utf8_trim_whitespace(column)
            none = pc.is_in(texts, pa.array([*EMPTY, *NO_NUMBER, *self._dialect.missing]))
            texts = pc.if_else(none, None, texts)
            fits = pc.match_substring_regex(texts, f"^(?:{notation.pattern})$").fill_null(True)
            if not pc.all(fits).as_py():
                row = int(np.argmin(fits.to_numpy(zero_copy_only=False)))
                reason = f"In CSV column #{place}: Row #{before + row + 1}: invalid value '{texts[row].as_py()}'"
                raise pa.ArrowInvalid(reason)
            column = notation.parse(texts)
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values

    def _first_number(self, place: int) -> str:
        """Return the first number of a column in the first rows."""
        fields = (row[place].strip() for row in self._dialect.rows if place < len(row))
        return next(filter(is_number, fields), "")

    def _explained(self, reason: str) -> InputError:
        row = re.search(r"Row #(\d+)", reason)
        where = f"row {int(row[1]) + self._dialect.header}" if row else "some row"
        if column := re.search(r"In CSV column #(\d+)", reason):
            where = f"column {self.columns[int(column[1])]!r}, {where}"
        if text := re.search(r"invalid value '(.*)'", reason, re.DOTALL):
            value = text[1] if len(text[1]) < 60 else text[1][:60] + "..."
            what = f"wanted a number, got {value!r}; correct it, empty it, or leave the column out"
            if value in (*EMPTY, *NO_NUMBER, *self._dialect.missing):
                what = f"wanted a number, got {value!r} with blanks around it; remove the blanks"
            elif value.strip().lower() in TRUTH_WORDS:
                what = f"wanted a number, got {value!r}, but other rows have numbers there; write 1 and 0"
            elif len(value) <= LONGEST_WORD and (value.startswith("#") or not re.search(r"\d", value)):
                word = shlex.quote(value)  # as a shell wants it
                what += f"; --missing {word} takes it for none"
                if column:
                    what += (
                        f", and --one-hot {shlex.quote(self.columns[int(column[1])])} makes categories of all values"
                    )
                if column and int(column[1]) == 0 and " " not in value:
                    what += f", --comment {word} leaves out lines that begin with it"
            elif column and DATE.fullmatch(value):
                number = self._first_number(int(column[1]))
                what += f"; the first rows have numbers there, such as {number}: write all as dates, and leave fields "
                what += "without one empty"
            elif column and len(value) <= LONGEST_WORD and re.search(r"[^\W\d]", value):
                what += f"; --one-hot {shlex.quote(self.columns[int(column[1])])} makes categories of all values"
            if is_number(value.strip()):
                what += "; --decimal . (or ,) takes numbers with marks of thousands"
        elif "straddling" in reason:
            what = f"is longer than {self._block >> 20} MiB, while others are short; check its line ends and quotes"
        elif "invalid UTF8" in reason:
            what = "is not UTF-8 text; save the file as UTF-8"
        elif width := re.search(r"Expected (\d+) columns, got (\d+)(?:: (.{0,40}))?", reason):
            begins = f", {width[3]!r}" if width[3] else ""
            what = f"wanted {width[1]} fields, got {width[2]}{begins}; correct that row, or leave out lines that begin "
            what += "as it does by --comment TEXT"
        else:
            what = f"cannot be read as CSV ({' '.join(reason.split())[:200]}); check its quotes"
        return InputError(f"{self.path}: {where}: {what}.")


def _with_blanks(words: Sequence[str]) -> list[str]:
    """Return words as they are and with blanks around them, which Arrow takes away of numbers alone.

    The blanks are those of a column of fixed width and of a separator: many on one side,
    one at most on the other. Many words, or long ones, stay as they are: Arrow cannot hold
    them all. InputError where it cannot hold even these.
    """
    if len(words) > MOST_PADDED or sum(map(len, words)) > MOST_LETTERS:
        problem = f"wanted at most {MOST_PADDED:,} values of {MOST_LETTERS:,} letters in all"
        raise InputError(f"--missing: {problem}, got {len(words):,}; give fewer.")
    padded = []
    if 4 * (WIDEST + 1) * len(words) <= MOST_PADDED:
        for word in words:
            for blanks in (" " * count for count in range(WIDEST + 1)):
                padded += [f"{blanks}{word}", f"{blanks}{word} ", f"{word}{blanks}", f" {word}{blanks}"]
    padded = list(dict.fromkeys(padded))
    return padded if padded and sum(map(len, padded)) <= MOST_LETTERS else list(words)


def _label(field: str | float) -> Label | None:
    """Return what a field is as a label: None for none.

    A number is one only as it is usually written (1, 1.0, 0.5, 1.000000000000000000e+00 by
    NumPy's savetxt): 007, 1.10 and 1e5 may be names. A field that was read as a number is one.
    """
    text = repr(field) if isinstance(field, float) else field.strip()
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
