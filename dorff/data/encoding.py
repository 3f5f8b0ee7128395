"""Columns that are no numbers as columns of numbers: categories, a column each or in an order, and times."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dorff.data.array_files import FloatArray
from dorff.data.labels import FILE, Run, label_of, text_of
from dorff.data.layout import Attributes
from dorff.data.packing import FillValues
from dorff.data.readers import BLOCK_BYTES, Numbers, Reader, SourceBlock
from dorff.errors import InputError

CYCLES: Final = {"day": 86_400.0, "week": 7 * 86_400.0, "year": 0.0}  # seconds; years differ
MONDAY: Final = 3 * 86_400.0  # from the start of the week that 1970 begins in
UNITS: Final = {"day": 86_400.0, "hour": 3600.0, "hr": 3600.0, "minute": 60.0, "min": 60.0, "second": 1.0, "sec": 1.0}
SINCE: Final = re.compile(
    r"([a-z]+?)s? since (\d{1,4})-(\d\d?)-(\d\d?)(?:[T ]+(\d\d?):(\d\d?)(?::(\d\d?)(?:\.0*)?)?)? ?(?:Z|UTC|\+00:?00)?",
    re.I,
)
CALENDARS: Final = ("standard", "gregorian", "proleptic_gregorian", "")
# 2024-05-31T12:00:00,5+02:00 and 20240531T120000Z, with or without what follows the day or the hour.
ISO: Final = re.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)|(\d{4})(\d\d)(\d\d)(?=T))"
    r"(?:(?:T| +)(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)? ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?)?",
    re.I,
)
ODD_DATE: Final = r"\d{1,4}([./-])\d{1,2}\1\d{1,4}\b.*|\d{4}-?W\d\d(-?\d)?|\d{4}-\d{3}|\d{4}-\d\d"
ODD: Final = re.compile(rf"{ODD_DATE}|[+\u2212-]?(\d+[.,]?\d*|[.,]\d+)([eEdD][+\u2212-]?\d+)?")
#: Numbers with something beside them: $3.50, (1.5), 12 m, 1,000.5, 50.3%.
ADORNED: Final = re.compile(r"[^\w\d]{0,3}\d[\d.,'_\s\u2212+-]*([eEdD][+-]?\d+)?\D{0,8}")
MOST: Final = 1000  # categories of a column
ROWS_TO_JUDGE: Final = 20  # with text; of fewer, values that all differ say little


@dataclass(frozen=True)
class Encoding:
    """How an input `name` becomes columns of numbers: by the `words` of its categories ("one_hot": a column each;
    "ordered": 0, 1, ...), in units such as "hours since 2000-01-01" ("time"), or, where the name is a column and a
    cycle, when:day, as sine and cosine of the place there ("cycle": day, week or year)."""

    name: str
    kind: str
    words: tuple[str, ...]

    @property
    def column(self) -> str:
        """The source's."""
        return self.name.rpartition(":")[0] if self.kind == "cycle" else self.name

    @property
    def clock(self) -> bool:
        return self.kind in ("time", "cycle")

    @property
    def columns(self) -> tuple[str, ...]:
        """The store's."""
        if self.kind == "one_hot":
            return tuple(f"{self.name}={word}" for word in self.words)
        return (f"{self.name}:sin", f"{self.name}:cos") if self.kind == "cycle" else (self.name,)

    def table(self, values: Sequence[str | None], where: str, *, zero: bool) -> FloatArray:
        """A row of numbers (values + 1, columns) for each value, and NaN, for none, as the last. InputError where one
        is no time or category; but with `zero` it is 0 in all columns of one_hot, and a gap in an order."""
        if self.clock:
            return self.of_seconds(np.append(seconds(values, where), np.nan))
        place = {word: number for number, word in enumerate(self.words)}
        new = [value for value in values if value is not None and value not in place]
        if new and not zero:
            held = ", ".join(self.words[:8]) + (", ..." if len(self.words) > 8 else "")
            problem = f"has {new[0]!r}, which is none of its {len(self.words):,} categories ({held})"
            raise InputError(f"{where}: {problem}; correct it, or give --unknown-zero to have no category there.")
        rows = np.eye(len(place)) if self.kind == "one_hot" else np.arange(len(place), dtype=np.float64)[:, None]
        gap = np.full(rows.shape[1], np.nan)
        unknown = np.zeros(rows.shape[1]) if self.kind == "one_hot" else gap
        each = [gap if value is None else rows[place[value]] if value in place else unknown for value in values]
        return np.array([*each, gap])

    def of_seconds(self, times: FloatArray) -> FloatArray:
        """Columns (n, columns) of seconds (n,) since 1970."""
        if self.kind == "time":
            scale, start = units_of(self.words[0]) or (1.0, 0.0)
            return ((times - start) / scale)[:, None]
        begin, length = np.zeros(len(times)) - MONDAY, CYCLES[self.words[0]]
        span: Any = length
        if not length:
            year = np.nan_to_num(times).astype("datetime64[s]").astype("datetime64[Y]")
            begin, end = (one.astype("datetime64[s]").astype(np.float64) for one in (year, year + 1))
            span = end - begin
        angle = 2 * np.pi * np.mod(times - begin, span) / span
        return np.column_stack([np.sin(angle), np.cos(angle)])


def units_of(text: str, calendar: str = "standard") -> tuple[float, float] | None:
    """Seconds of a unit, and of its origin since 1970: "hours since 2000-01-01" (CF conventions, 4.4). Or None."""
    match = SINCE.fullmatch(text.strip())
    if match is None or match[1].lower() not in UNITS or calendar.lower() not in CALENDARS:
        return None
    year, month, day, *clock = (int(part or 0) for part in match.groups()[1:])
    try:
        start = np.datetime64(f"{year:04}-{month:02}-{day:02}", "s").astype(np.int64)
    except ValueError:
        return None
    return UNITS[match[1].lower()], float(start + 3600 * clock[0] + 60 * clock[1] + clock[2])


def seconds(values: Sequence[str | None], where: str) -> FloatArray:
    """Return ISO dates and times as seconds since 1970, NaN where there is none.

    They are in UTC unless they have an offset of their own. Digits below a microsecond are cut off.
    """
    times = _cast(values)
    if times is None:
        times = _cast([_plain_iso(value) for value in values])
    if times is not None:
        return times
    if len(values) > 1:  # some have an offset, others have none
        return np.concatenate([seconds([value], where) for value in values])
    problem = f"wanted a date or time such as 2024-05-31 or 2024-05-31T12:00:00, got {values[0]!r}"
    raise InputError(f"{where}: {problem}; write it so.")


def _cast(values: Sequence[str | None]) -> FloatArray | None:
    """Return seconds since 1970 of texts as Arrow reads them; None where one is written in another way."""
    import pyarrow as pa  # large, and only files that are read need it

    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            times = pa.array(values, pa.string()).cast(kind).cast(pa.int64()).cast(pa.float64())
        except pa.ArrowInvalid:
            continue
        return np.asarray(times.to_numpy(zero_copy_only=False) / 1e6)
    return None


def _plain_iso(value: str | None) -> str | None:
    """Return an ISO time as Arrow reads it: six digits below the second at most, a decimal point, hyphens, Z."""
    match = None if value is None else ISO.fullmatch(value.strip())
    if match is None:
        return value
    *date, hour, minute, second, digits, zone = (part or "" for part in match.groups())
    day = "-".join(part for part in date if part)
    if not hour:
        return day
    fraction = f".{digits[:6]}" if digits else ""
    zone = "Z" if zone.upper() in ("Z", "UTC", "GMT") else zone.replace(":", "")
    return f"{day}T{hour}:{minute or '00'}:{second or '00'}{fraction}{zone}"


def _texts(run: Run, where: str) -> list[str | None]:
    labels = [label_of(value, where) for value in run.values]
    return [None if label is None else text_of(label) for label in labels]


def to_attributes(encodings: Mapping[str, Encoding]) -> Attributes:
    """What a store, or a model, keeps of them."""
    return {name: {one.kind: list(one.words)} for name, one in encodings.items()}


def from_attributes(attributes: Any, where: object) -> dict[str, Encoding]:
    """What `to_attributes` gave; InputError where it is damaged."""
    try:
        pairs = {name: next(iter(one.items())) for name, one in attributes.items()}
        encodings = {name: Encoding(name, kind, tuple(map(str, words))) for name, (kind, words) in pairs.items()}
        sure: Mapping[str, Any] = {"time": units_of, "cycle": CYCLES.__contains__, "one_hot": bool, "ordered": bool}
        if not all(one.words and sure[one.kind](one.words[0]) for one in encodings.values()):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        raise InputError(f"{where}: what it says of encodings is damaged; restore its metadata from a copy.") from None
    return encodings


@dataclass(frozen=True)
class Learner:
    """Finds how inputs are to be encoded: text as one_hot, unless it is a time or in `ordered`; numbers too where
    they are in `one_hot`. `absent` is what stands for none."""

    one_hot: Sequence[str]
    ordered: Mapping[str, Sequence[str]]
    absent: FillValues

    def learn(self, readers: Sequence[Reader], names: Sequence[str]) -> dict[str, Encoding]:
        """Of those names that need one, from all their rows. InputError at no categories, or an option of no input."""
        for name in (*self.one_hot, *self.ordered):
            if name not in names:
                option = "--one-hot" if name in self.one_hot else "--ordered"
                raise InputError(f"{option} {name}: is none of the inputs; name one of {', '.join(names)}.")
        column = {name: _column(readers, name) for name in names if not name.startswith("=")}
        timed = ((of, _time_units(one, of)) for of in column.values() for one in reversed(readers))  # the first's stay
        times = {of: units for of, units in timed if units and of not in self.one_hot}
        wanted = [of for of in dict.fromkeys(column.values()) if of not in self.ordered and of not in times]
        text = [of for of in wanted if of in self.one_hot or any(of in r.columns and r.is_text(of) for r in readers)]
        words = self._categories(readers, text, times)
        encodings = {name: Encoding(name, "ordered", tuple(each)) for name, each in self.ordered.items()}
        for name, of in column.items():
            if name != of and of not in times:
                raise InputError(f"{readers[0].path}: column {of!r} holds no times, which {name} needs; write {of}.")
            if name != of:
                encodings[name] = Encoding(name, "cycle", (name.rpartition(":")[2],))
            elif of in times:
                encodings[name] = Encoding(name, "time", (times[of],))
            elif of in text:
                encodings[name] = Encoding(name, "one_hot", tuple(sorted(words[of])))
        return encodings

    def _categories(self, readers: Sequence[Reader], text: list[str], times: dict[str, str]) -> dict[str, set[str]]:
        """The different values of columns of text; those whose first is a time get their units in `times` instead."""
        words: dict[str, set[str]] = {of: set() for of in text}
        rows = dict.fromkeys(text, 0)
        for reader in readers:
            wanted = reader.resolve([of for of in text if of not in times])
            for block in reader.blocks([], wanted) if wanted else ():
                for of, run in zip(wanted, block.labels, strict=True):
                    where = f"{reader.path}: column {of!r}"
                    texts = _texts(self.absent.blank_labels(run), where)
                    values = [value for value in texts if value is not None]
                    if not words[of] and of not in times and of not in self.one_hot and (units := _day(values[:1])):
                        times[of] = units
                    if of not in times:
                        words[of].update(values)
                        known = np.array([*(value is not None for value in texts), False])
                        rows[of] += int(np.count_nonzero(known[run.index]))
                        self._check(of, words[of], where)
                if all(of in times for of in wanted):
                    break
        for of in text:
            if of not in times and not words[of]:
                raise InputError(f"{readers[0].path}: column {of!r} holds no value in any row; leave it out.")
            if of not in times:
                self._check_repeated(of, words[of], rows[of], readers[0].path)
        return words

    def _check(self, of: str, words: set[str], where: str) -> None:
        """InputError where values are rather names of rows, numbers or other dates than categories."""
        if len(words) > MOST:
            remedy = "such a name for each row is no category: leave the column out, or name it in --groups"
            looks = _looks_like(words)
            raise InputError(f"{where}: has more than {MOST:,} different texts, {looks}; {remedy}.")
        if of in self.one_hot:
            return
        if odd := sorted(filter(ODD.fullmatch, words)):
            remedy = f"write numbers alone, and dates as 2024-05-31, or give --one-hot {of} to have categories"
            problem = f"has text, and {odd[0]!r}, which is a number, or a date not as in ISO 8601"
            raise InputError(f"{where}: {problem}: {remedy}.")

    def _check_repeated(self, of: str, words: set[str], rows: int, where: str) -> None:
        """Raise InputError where a category has fewer than two rows on the average, of `ROWS_TO_JUDGE` or more.

        The weight of a category with one row is fitted to that row alone and says nothing of any other.
        """
        if of in self.one_hot or rows < ROWS_TO_JUDGE or 2 * len(words) <= rows:
            return
        problem = f"has {len(words):,} different texts in {rows:,} rows, {_looks_like(words)}, too many for categories"
        remedy = f"write numbers alone and times as 2024-05-31T12:00:00, leave the column out, or give --one-hot {of}"
        raise InputError(f"{where}: column {of!r}: {problem}; {remedy} to have a column for each.")


def _looks_like(words: set[str]) -> str:
    """Return what the values of a column look like, with an example."""
    example = min(words)
    if all(map(ADORNED.fullmatch, words)):
        return f"numbers with something beside them, such as {example!r}"
    return f"such as {example!r}"


def _column(readers: Sequence[Reader], name: str) -> str:
    """The column of a name: itself, or when of when:day, unless a column has that name."""
    of, _, cycle = name.rpartition(":")
    return of if of and cycle in CYCLES and not any(name in reader.columns for reader in readers) else name


def _day(values: Sequence[str]) -> str:
    """Seconds since the start of the day of a time; "" where it is none."""
    try:
        day = seconds(values, "")[0] // CYCLES["day"] * CYCLES["day"]
    except (InputError, IndexError):
        return ""
    return f"seconds since {np.datetime64(int(day), 's')}"


def _time_units(reader: Reader, column: str) -> str:
    """Return the units of a column of numbers that are times; "" of any other."""
    attributes = reader.attributes(column)
    units = attributes.get("units", "")
    return units if units_of(units, attributes.get("calendar", "")) else ""


class Encoded(Reader):
    """A source whose columns come as encodings say; of one number each; of zeros, `=0`; the label `FILE`, its path."""

    def __init__(self, reader: Reader, encodings: Mapping[str, Encoding], absent: FillValues, *, zero: bool) -> None:
        super().__init__(reader.path, reader.columns, numbered=reader.numbered)
        self._reader, self._encodings, self._absent, self._zero = reader, encodings, absent, zero
        self._of = {column: one for one in encodings.values() for column in one.columns}

    def resolve(self, names: Sequence[str], *, labels: bool = False) -> tuple[str, ...]:
        """The columns that names are encoded as, constants as they are; those of labels as they come."""
        if labels and tuple(names) == (FILE,):
            if FILE in self.columns:
                raise InputError(f"{self.path}: has a column {FILE}, which here means each file itself; rename it.")
            return (FILE,)
        columns: list[str] = []
        for name in names:
            one = None if labels else self._encodings.get(name)
            given = (name,) if _constant(name) is not None else self._reader.resolve((one.column if one else name,))
            columns += one.columns if one else given
        return tuple(columns)

    def dtype(self, column: str) -> np.dtype[Any]:
        """The shortest type that holds a constant; categories are small whole numbers."""
        value, one = _constant(column), self._of.get(column)
        if one is None and value is None:
            return self._reader.dtype(column)
        short = one.kind in ("one_hot", "ordered") if one else np.float32(value or 0) == value
        return np.dtype(np.float32 if short else np.float64)

    def attributes(self, column: str) -> Mapping[str, str]:
        """Return the source's attributes of a column; of times, with the units that they come in."""
        encoding = self._of.get(column)
        if encoding is None:
            return self._reader.attributes(column)
        if encoding.kind != "time":
            return {}
        return {**self._reader.attributes(encoding.column), "units": encoding.words[0]}

    def content(self) -> str:
        return self._reader.content()

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """The source's blocks, cut so that those of many categories are no larger than others."""
        constants = {column: value for column in columns if (value := _constant(column)) is not None}
        encodings = dict.fromkeys(self._of[column] for column in columns if column in self._of)
        scales = {one.column: one.clock and units_of(_time_units(self._reader, one.column)) for one in encodings}
        numbers = [column for column in columns if column not in self._of and column not in constants]
        numbers = list(dict.fromkeys([*numbers, *(of for of, scale in scales.items() if scale)]))
        texts = list(dict.fromkeys([*labels, *(of for of, scale in scales.items() if not scale)]))
        texts = [of for of in texts if of != FILE]
        if len(constants) == len(columns):
            raise InputError(f"{self.path}: only constants are asked for; name one of its columns at least.")
        for whole in self._reader.blocks(numbers, texts):
            step = max(1, BLOCK_BYTES // (8 * len(columns))) if encodings else len(whole)
            for block in (whole[start : start + step] for start in range(0, len(whole), step)):
                runs = dict(zip(texts, block.labels, strict=True))
                runs[FILE] = Run((self.path,), np.zeros(len(block), "i4"))
                raw: dict[str, Numbers] = dict(zip(numbers, block.numbers.T, strict=True))
                parts = raw | {column: np.full(len(block), value) for column, value in constants.items()}
                for one in encodings:
                    scale, where = scales[one.column], f"{self.path}: column {one.column!r}"
                    if scale:
                        rows = one.of_seconds(raw[one.column].astype(np.float64) * scale[0] + scale[1])
                    else:
                        run = self._absent.blank_labels(runs[one.column])
                        rows = one.table(_texts(run, where), where, zero=self._zero)[run.index]
                    parts |= zip(one.columns, rows.T, strict=True)
                plain = not encodings and not constants
                together = block.numbers if plain else np.column_stack([parts[column] for column in columns])
                yield SourceBlock(together, tuple(runs[label] for label in labels))
        self.rows = self._reader.rows


def _constant(name: str) -> float | None:
    """The number of a name such as `=0`; None for any other name."""
    if not name.startswith("="):
        return None
    try:
        value = float(name[1:])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"column {name!r}: wanted a number after '=', got {name[1:]!r}; write it as =0 or =1.5.")
    return value
