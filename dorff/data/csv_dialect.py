"""How a file of text is written: what separates fields, where its rows begin, what its columns are called.

Recognised are a line of names or none; comments before it, of which the last may have the names; a line of units as
ERDDAP writes it; Campbell's TOA5; Excel's `sep=;`; columns separated by blanks. Options say what is not.
"""

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from dorff.data.csv_numbers import NO_NUMBER, is_number
from dorff.data.csv_stream import MOST_LINE, NUL, TOO_LONG, collapse_blanks
from dorff.errors import InputError

BLANKS: Final = " "  # the delimiter of columns that any number of blanks or tabs separate
DELIMITERS: Final = (",", "\t", ";", "|", BLANKS)
MARKERS: Final = ("#", "%", "//")  # of comments, before the first row
NO_MARKERS: Final = ("\0",)  # with which no line of text begins
SAMPLE: Final = 2**16  # bytes of the first rows
LONG_SAMPLE: Final = 2**20  # where comments take all of these
FIRST_LINES: Final = 4  # of names, units and rows
MOST_FIELDS: Final = 2**18  # of a line
MOST_HEAD: Final = 2**25  # bytes that are read for them
# What Arrow takes for no value.
_BROKEN: Final = ("-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "-NaN", "-nan", "NaN", "nan")
EMPTY: Final = frozenset((*_BROKEN, "", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null"))
ISO_TIME: Final = re.compile(r"\d{4}-?\d\d-?\d\d([T ].*)?")
LOGGERS: Final = {"TOA5": (1, 2, 4), "TOACI1": (1, None, 2)}  # records of names and of units, and the first row's
BINARY_LOGGERS: Final = ("TOB1", "TOB2", "TOB3")
UNIT: Final = re.compile(
    r"utc|gmt|[cmuµnk]?m|m?s|secs?|seconds?|min|mins|minutes?|h|hrs?|hours?|d|days?|[kmuµ]?g|[mu]?mol|m?l|k|c|f|deg|degt"
    r"|deg_?[cf]|degrees?(_(c|f|north|east|true))?|celsius|kelvin|rad|[hkm]?pa|d?bar|decibars?|db|mb|mbar|k?w|j|m?v|m?a"
    r"|k?hz|n|psu|pss|pp[mtb]|percent|%|counts?|unitless|kts?|knots?|ft|mi|nmi|mph|ntu|yyyy-mm-dd.*",
    re.I,
)
NO_UNITS: Final = frozenset({"", "utc", "gmt", "ts", "rn"})  # a time zone, a logger's clock and row number
MISSING_OR_METRES: Final = frozenset({"M", "MM"})
"""Words for missing values of weather stations, which are no evidence of a line of units."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a file of text is written.

    `names` are those of its columns, none where it has none; `units` stand beside some. `start` bytes come before its
    first row, among them `header` records from the names on. `width` is the
    number of fields of a row, `rows` are the first ones. Lines that begin with one of `comments` are comments.
    `missing` are words for no number.
    """

    delimiter: str
    names: tuple[str, ...] = ()
    units: dict[str, str] = field(default_factory=dict)
    width: int = 0
    start: int = 0
    header: int = 0
    comments: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)

    @property
    def separator(self) -> str:
        """What stands between fields when Arrow reads them."""
        return "\t" if self.delimiter == BLANKS else self.delimiter

    def score(self, asked: Collection[str]) -> tuple[int, bool]:
        """Return how well it explains the file: the names asked for that it has, and whether all rows are alike."""
        alike = self.width > 1 and self.delimiter != "," and all(len(row) == self.width for row in self.rows)
        if self.delimiter == BLANKS:
            alike = alike and any(all(map(is_number, column)) for column in zip(*self.rows, strict=True))
            return (len(set(self.names) & set(asked)) if alike else 0), alike
        return len(set(self.names) & set(asked)), alike


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first lines of a file, and whether these are all; with what the user says of it."""

    path: str
    lines: list[bytes]
    whole: bool
    skip_rows: int = 0
    comments: tuple[str, ...] = ()
    delimiter: str = ""
    missing: tuple[str, ...] = ()

    @property
    def text(self) -> list[str]:
        """The lines as text, without a byte-order mark."""
        texts = [line.decode("utf-8", "replace") for line in self.lines]
        return [texts[0].removeprefix("\ufeff"), *texts[1:]] if texts else []


def read_lines(file: Any, size: int, path: str) -> tuple[list[bytes], bool]:
    """Return whole lines of a binary file, and whether these are all.

    They are of `size` bytes or a little more, and at least `FIRST_LINES` that are not empty.
    InputError, naming the `path`, where a line is too long, or so many are empty.
    """
    text, ended = bytearray(), False
    filled, line_begin = 0, 0  # lines that are not empty, and where the last one begins
    while not ended and (len(text) < size or filled < FIRST_LINES):
        before = max(0, len(text) - 1)
        piece = file.read(size)
        ended = not piece
        text += piece
        filled += len(re.findall(rb"[^\r\n][\r\n]", text[before:]))
        line_begin = max(line_begin, text.rfind(b"\n", before) + 1, text.rfind(b"\r", before) + 1)
        if len(text) - line_begin > MOST_LINE:
            line = 1 + max(text.count(b"\n"), text.count(b"\r"))
            raise InputError(f"{path}: line {line} {TOO_LONG}.")
        if len(text) > MOST_HEAD:
            problem = f"has fewer than {FIRST_LINES} lines that are not empty in {MOST_HEAD >> 20} MiB"
            raise InputError(f"{path}: {problem}; it is no table of text, or remove the empty lines.")
    lines = bytes(text).splitlines(keepends=True)
    return (lines, True) if ended else (lines[:-1] or lines, False)


def recognise(sample: Sample, asked: Collection[str]) -> Dialect:
    """Return how a file is written; InputError where it has no rows of text."""
    texts = sample.text
    for number, text in enumerate(texts, 1):
        if "\0" in text:
            raise InputError(f"{sample.path}: line {number} {NUL}.")
        if text.strip():
            break
    skipped = sample.skip_rows
    separator_line = re.fullmatch(r'"?sep=(.)"?\s*', texts[skipped]) if skipped < len(texts) else None
    stated_delimiter = sample.delimiter
    if separator_line is not None:
        skipped += 1
        stated_delimiter = stated_delimiter or separator_line[1]
    candidates = [stated_delimiter] if stated_delimiter else _candidates(texts)
    narrow = [mark for mark in candidates if max((text.count(mark) for text in texts), default=0) < MOST_FIELDS]
    if not narrow:
        raise InputError(f"{sample.path}: has a line of more than {MOST_FIELDS:,} fields; it is no table of text.")
    dialects = [_layout(sample, texts, skipped, candidate, asked) for candidate in narrow]
    found = [dialect for dialect in dialects if dialect is not None]
    if not found:
        raise InputError(f"{sample.path}: is empty; wanted at least one row of numbers.")
    return max(found, key=lambda dialect: dialect.score(asked))


def _candidates(texts: Sequence[str]) -> list[str]:
    """Return a comma, and the other delimiters that stand somewhere in these lines."""
    marks = {",", *"".join(texts)}
    if "\t" in marks:
        marks.add(BLANKS)
    return [delimiter for delimiter in DELIMITERS if delimiter in marks]


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A record or a comment: its fields, and the first of its lines and the one after its last."""

    fields: list[str]
    first: int
    stop: int
    comment: bool = False


def _records(lines: list[str], first: int, delimiter: str, comments: tuple[str, ...]) -> Iterator[_Record]:
    """Go through what lines from number `first` on hold; markers count until the first row unless they are given."""
    at, leading = first, True
    seen: tuple[str, ...] = ()

    def following() -> Iterator[str]:
        nonlocal at
        while at < len(lines):
            line, at = lines[at], at + 1
            yield collapse_blanks(line.encode()).decode() if delimiter == BLANKS else line

    reader = csv.reader(following(), delimiter="\t" if delimiter == BLANKS else delimiter)
    with suppress(csv.Error):
        while at < len(lines):
            begin = at
            line = lines[at].lstrip() if delimiter == BLANKS else lines[at]
            markers = comments or (MARKERS if leading else seen)
            if line.startswith(markers):
                seen += tuple(marker for marker in MARKERS if line.startswith(marker))
                at += 1
                yield _Record(fields=[], first=begin, stop=at, comment=True)
                continue
            fields = next(reader, None)
            if fields:
                leading = False
                yield _Record(fields=[part.strip() for part in fields], first=begin, stop=at)


def _layout(sample: Sample, lines: list[str], first: int, delimiter: str, asked: Collection[str]) -> Dialect | None:
    """Return what a file is if this separates its fields; None where it has no records then."""
    first = _after_block(lines, first)
    stated_markers = sample.comments
    names_like_comments = tuple(name for name in asked if name.startswith(MARKERS))  # such as #id
    first_line = next((line for line in lines[first:] if line.strip()), "")
    if not stated_markers and first_line.startswith(names_like_comments):
        records = list(_records(lines, first, delimiter, NO_MARKERS))
    else:
        records = list(_records(lines, first, delimiter, stated_markers))
    body = [record for record in records if not record.comment]
    if not sample.whole and len(body) > 2:
        body.pop()  # its end may not have come
    if not body:
        return None
    if delimiter == BLANKS and not sample.delimiter and any(set(",;|") & set("".join(r.fields)) for r in body):
        return None
    comments = [lines[record.first] for record in records if record.comment and record.stop <= body[0].first]
    head = _header(sample, body, comments, delimiter, asked)
    rows = [record.fields for record in body[head.first_row :]]
    width = len(rows[0]) if rows and not head.names else len(head.names)
    trailing = bool(rows) and all(len(row) == width + 1 and not row[-1] for row in rows)
    lines_before_rows = body[head.first_row].first if rows else body[-1].stop
    named = zip(head.names, head.units, strict=False)
    return Dialect(
        delimiter=delimiter,
        names=head.names,
        units={name: unit for name, unit in named if unit.lower() not in NO_UNITS and "\ufffd" not in unit},
        width=width + trailing,
        start=sum(map(len, sample.lines[:lines_before_rows])),
        header=head.first_row - head.names_row,
        comments=stated_markers or _seen_markers(lines, records),
        missing=(*sample.missing, "MM") if head.names[:1] == ("YY",) else sample.missing,
        rows=rows,
    )


def _seen_markers(lines: Sequence[str], records: Sequence[_Record]) -> tuple[str, ...]:
    """Return the usual markers that the comments among the records begin with."""
    comments = [lines[record.first].lstrip() for record in records if record.comment]
    return tuple(marker for marker in MARKERS if any(comment.startswith(marker) for comment in comments))


def _after_block(lines: list[str], first: int) -> int:
    """Return the line after a comment between /* and */, as PANGAEA writes it; `first` where there is none."""
    if first < len(lines) and lines[first].startswith("/*"):
        return next((at + 1 for at in range(first, len(lines)) if "*/" in lines[at]), first)
    return first


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Names and units of columns; among the records the one of the names and the first row."""

    names: tuple[str, ...]
    units: tuple[str, ...] = ()
    names_row: int = 0
    first_row: int = 0


def _header(
    sample: Sample, body: Sequence[_Record], comments: Sequence[str], delimiter: str, asked: Collection[str]
) -> _Header:
    """Return what the records and the comments before them say of the columns."""
    first = body[0].fields
    if first[0] in BINARY_LOGGERS:
        problem = f"is {first[0]}, a binary format of Campbell's"
        raise InputError(f"{sample.path}: {problem}; convert it to TOA5 (CardConvert).")
    if first[0] in LOGGERS and len(body) > 1:
        names_row, units_row, first_row = LOGGERS[first[0]]
        names = body[names_row].fields
        units = body[units_row].fields if units_row is not None and units_row < len(body) else []
        return _Header(names=tuple(names), units=tuple(units), names_row=names_row, first_row=min(first_row, len(body)))
    markers = "".join(sample.comments) or "#%/"
    commented = _names_in_comments([text.strip().lstrip(markers) for text in comments], delimiter, len(first), asked)
    if len(first) == 1 and " " in first[0]:  # blanks may separate its fields
        commented = None
    if commented and (set(asked) & set(commented[0]) or (_all_numbers(first) and not _numbered(asked))):
        return _Header(names=tuple(commented[0]), units=tuple(commented[1]))
    names_row = _names_row(body, asked)
    names = body[names_row].fields
    if _headless(names, asked):
        return _Header(names=(), names_row=names_row, first_row=names_row)
    below = body[names_row + 1].fields if names_row + 1 < len(body) else []
    rows = [record.fields for record in body[names_row + 2 :]]
    if not set(below) & set(sample.missing) and _is_units(below, rows, len(names)):
        return _Header(names=tuple(names), units=tuple(below), names_row=names_row, first_row=names_row + 2)
    return _Header(names=tuple(names), names_row=names_row, first_row=names_row + 1)


def _names_row(body: Sequence[_Record], asked: Collection[str]) -> int:
    """Return the record of the names: the first, unless it has none that is asked for and another has two or all."""
    wanted = set(asked)
    counts = [len(wanted & set(record.fields)) for record in body]
    best = max(range(len(body)), key=counts.__getitem__)
    return best if not counts[0] and counts[best] > 1 else 0


def _names_in_comments(
    comments: Sequence[str], delimiter: str, width: int, asked: Collection[str]
) -> tuple[list[str], list[str]] | None:
    """Return names, and units or none, in comments that have as many fields as a row; None without such.

    They are the last ones, unless others have names that are asked for. `comments` are without their markers.
    """
    found: list[list[str]] = []
    for comment in comments:
        rows = [fields for fields in _split(comment.strip(), delimiter, asked) if len(fields) == width]
        if rows and not _all_numbers(rows[0]):
            found.append(max(rows, key=lambda fields: len(set(asked) & set(fields))))
    if not found:
        return None
    counts = [len(set(asked) & set(fields)) for fields in found]
    is_last_of_units = len(found) > 1 and _has_units(found[-1])
    last = len(found) - 2 if is_last_of_units else len(found) - 1
    place = counts.index(max(counts)) if max(counts) else last
    below = found[place + 1 : place + 2]
    return found[place], below[0] if below and _has_units(below[0]) else []


def _split(text: str, delimiter: str, asked: Collection[str]) -> Iterator[list[str]]:
    """Go through the fields of a comment, and of what follows a colon, as in "# columns: a b".

    Where a name that is asked for comes so, also those that something else separates than in rows.
    """
    for part in (text, text.partition(":")[2]):
        yield _fields(part, delimiter)
    for other in DELIMITERS:
        for part in (text, text.partition(":")[2]):
            fields = _fields(part, other)
            if set(asked) & set(fields) - {""}:
                yield fields


def _fields(text: str, delimiter: str) -> list[str]:
    line = collapse_blanks(text.encode()).decode() if delimiter == BLANKS else text
    with suppress(csv.Error):
        rows = csv.reader([line.strip()], delimiter="\t" if delimiter == BLANKS else delimiter)
        return [field.strip() for field in next(rows, [])]
    return []


def _is_units(fields: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether the record after the names has units: no numbers, where all rows after it have them."""
    if len(fields) != width or not rows or any(len(row) < width for row in rows):
        return False
    if any(text in EMPTY - {""} or (is_number(text) and text != "1") or ISO_TIME.fullmatch(text) for text in fields):
        return False
    numeric = [
        j
        for j in range(width)
        if any(row[j] not in EMPTY for row in rows) and all(row[j] in EMPTY or is_number(row[j]) for row in rows)
    ]
    sure = [text for text in fields if text not in MISSING_OR_METRES]
    return any(fields[j] not in ("", "1") for j in numeric) and _has_units(sure)


def _has_units(fields: Sequence[str]) -> bool:
    """Whether one of the fields is a usual unit: "m s-1", "degrees_north", "seconds since 1970-01-01"."""
    return any(_is_unit(text) for text in fields)


def _is_unit(text: str) -> bool:
    if " since " in text:
        return True
    text = text.strip("[]()")
    parts = [re.sub(r"[-+]?\d+$", "", part) for part in re.split(r"[\s*/.^()]+", text)]
    symbols = [part for part in parts if part]
    return bool(symbols) and all(map(UNIT.fullmatch, symbols))


def _numbered(asked: Collection[str]) -> bool:
    return any(re.fullmatch("c[0-9]+", name) for name in asked)


def _all_numbers(row: Sequence[str]) -> bool:
    """Whether a record has numbers and empty fields only, and a number at least."""
    numbers = [is_number(text) for text in row if text not in EMPTY and text not in NO_NUMBER]
    return any(numbers) and all(numbers)


def _headless(row: Sequence[str], asked: Collection[str]) -> bool:
    """Whether a first row is data: numbers, empty fields, and text only where c0, c1, ... are asked for."""
    some = any(is_number(text) for text in row if text not in EMPTY)
    return _all_numbers(row) or (some and _numbered(asked) and not set(asked) & set(row))
