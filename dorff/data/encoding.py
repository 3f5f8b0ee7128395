"""Columns that are no numbers as columns of numbers: categories, a column each or in an order, and times."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dorff.data.array_files import FloatArray
from dorff.data.calendars import year_spans
from dorff.data.csv_numbers import is_number
from dorff.data.labels import FILE, Run, label_of, text_of
from dorff.data.layout import Attributes
from dorff.data.packing import FillValues
from dorff.data.readers import BLOCK_BYTES, Numbers, Reader, SourceBlock, common_dtype, without_given
from dorff.data.resolutions import DIGITS, SHORT_DIGITS, TIME_DIGITS, Resolution
from dorff.data.units import (
    ISO_MICROSECONDS,
    NO_UNITS,
    ColumnAttributes,
    Conversions,
    TimeShift,
    TimeUnits,
    text_attributes,
    time_units,
)
from dorff.errors import InputError

CYCLES: Final = {"day": 86_400.0, "week": 7 * 86_400.0, "year": 0.0}  # seconds; years differ
MONDAY: Final = 3 * 86_400.0  # from the start of the week that 1970 begins in
# 2024-05-31T12:00:00,5+02:00 and 20240531T120000Z, with or without what follows the day or the hour.
ISO: Final = re.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)|(\d{4})(\d\d)(\d\d)(?=T))"
    r"(?:(?:T| +)(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)? ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?)?",
    re.I,
)
MISSING_TIMES: Final = frozenset(("NaT", "nat", "NAT"))  # as NumPy and pandas write a time that is missing
USUAL_CALENDARS: Final = ("", "standard", "gregorian")


@dataclass(frozen=True)
class Encoding:
    """How an input `name` becomes columns of numbers: by the `words` of its categories ("one_hot": a column each;
    "ordered": 0, 1, ...), in units such as "hours since 2000-01-01", and a calendar ("time"), or, where
    the name is a column and a cycle, when:day, as sine and cosine of the place there ("cycle": day, week or year)."""

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
            times = microseconds(values, where, self.column)
            return self.of_times(np.append(times, np.nan), ISO_MICROSECONDS, where)
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

    def check(self) -> None:
        """Raise ValueError or KeyError where this is not what `to_attributes` wrote."""
        known = {"one_hot": True, "ordered": True, "time": True, "cycle": self.words[:1] and self.words[0] in CYCLES}
        if not self.words or not known[self.kind]:
            raise ValueError(self.name)
        if self.kind == "time":
            self.units(self.name)

    @property
    def attributes(self) -> dict[str, str]:
        """Return units and calendar of a time."""
        return dict(zip(("units", "calendar"), self.words, strict=False)) if self.kind == "time" else {}

    def units(self, where: str) -> TimeUnits:
        """Return the units of a time; InputError, naming `where`, if they cannot be understood."""
        units = time_units(self.words[0], self.attributes.get("calendar", ""), where)
        if units is None:
            raise InputError(f"{where}: {self.words[0]!r} are no units of a time; restore its metadata from a copy.")
        return units

    def of_times(self, times: Numbers, units: TimeUnits, where: str) -> FloatArray:
        """Return the columns (n, columns) of times (n,) in `units`; InputError, naming `where`, of another calendar."""
        if self.kind == "time":
            return units.conversion_to(self.units(where), where).convert(times, where)[:, None]
        cycle = self.words[0]
        if cycle == "week" and not units.is_gregorian:
            problem = f"a {cycle} has no fixed length in the calendar {units.calendar}"
            raise InputError(f"{where}: {problem}; leave {self.name} out.")
        times = units.conversion_to(units.seconds, where).convert(times, where)
        begin: Any = -MONDAY
        span: Any = CYCLES[cycle]
        if cycle == "year":
            begin, end = year_spans(times, units.calendar, where)
            span = end - begin
        angle = 2 * np.pi * np.mod(times - begin, span) / span
        return np.column_stack([np.sin(angle), np.cos(angle)])


def seconds(values: Sequence[str | None], where: str, column: str = "NAME") -> FloatArray:
    """Return ISO dates and times as seconds since 1970, as `microseconds` reads them."""
    return microseconds(values, where, column) / 1e6


def microseconds(values: Sequence[str | None], where: str, column: str = "NAME") -> FloatArray:
    """Return ISO dates and times as microseconds since 1970, NaN where there is none.

    They are in UTC unless they have an offset of their own. Digits below a microsecond are cut off. NaT is none.
    Until the year 2255 these are whole numbers below 2^53, so that a later origin can be subtracted without rounding.
    InputError, naming `where` and saying how to state the units of the `column`, at other text.
    """
    times = _cast(values)
    if times is None:
        times = _cast([_plain_iso(value) for value in values])
    if times is not None:
        return times
    has_offset = np.array([_has_offset(value) for value in values], bool)
    if has_offset.any() and not has_offset.all():
        times = np.empty(len(values))
        for chosen in (has_offset, ~has_offset):
            texts = [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]
            times[chosen] = microseconds(texts, where, column)
        return times
    if len(values) > 1:  # so that the one that is wrong is named
        return np.concatenate([microseconds([value], where, column) for value in values])
    problem = f"wanted a date or time such as 2024-05-31 or 2024-05-31T12:00:00, got {values[0]!r}"
    remedy = "write it so"
    if ISO.fullmatch((values[0] or "").strip()):
        remedy = "there is none such (leap seconds are not read): correct it"
    if is_number(values[0] or ""):
        stated = f"--units '{column}=hours since 2000-01-01 00:00:00'"
        remedy = f"write it so, or state the units of numbers, as by {stated}"
    raise InputError(f"{where}: {problem}; {remedy}.")


def _cast(values: Sequence[str | None]) -> FloatArray | None:
    """Return microseconds since 1970 of texts as Arrow reads them; None where one is written in another way."""
    import pyarrow as pa  # large, and only files that are read need it

    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            times = pa.array(values, pa.string()).cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        return np.asarray(times.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    return None


def _has_offset(text: str | None) -> bool:
    """Whether a text is a time with an offset from UTC, such as Z."""
    match = None if text is None else ISO.fullmatch(text.strip())
    return match is not None and match[ISO.groups] is not None


def is_missing_time(text: str) -> bool:
    """Whether a text says that a time is missing."""
    return text.strip() in MISSING_TIMES


def _plain_iso(value: str | None) -> str | None:
    """Return an ISO time as Arrow reads it: six digits below the second at most, a decimal point, hyphens, Z."""
    if value is not None and is_missing_time(value):
        return None
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


def time_number(text: str, units: TimeUnits) -> float | None:
    """Return the number that an ISO date or time has in these units; None where it is none of their calendar."""
    plain = _plain_iso(text) if ISO.fullmatch(text.strip()) else None
    return None if plain is None else units.number_of(plain)


def label_texts(run: Run, where: str) -> list[str | None]:
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
        for encoding in encodings.values():
            encoding.check()
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        raise InputError(f"{where}: what it says of encodings is damaged; restore its metadata from a copy.") from None
    return encodings


def time_encoding(name: str, attributes: Mapping[str, str]) -> Encoding:
    """Return the encoding of times with these units, and their calendar where it is not the usual one."""
    calendar = attributes.get("calendar", "")
    usual = calendar.lower() in USUAL_CALENDARS
    return Encoding(name, "time", (attributes["units"],) if usual else (attributes["units"], calendar))


def with_encoded_times(attributes: ColumnAttributes, encoding: Any, where: object) -> ColumnAttributes:
    """Return the attributes of columns, with the units of those that an encoding says are times."""
    encodings = from_attributes(encoding, where)
    times = {name: one.attributes for name, one in encodings.items() if one.kind == "time"}
    return {name: text_attributes(attributes.get(name, {})) | times.get(name, {}) for name in {**attributes, **times}}


def source_column(readers: Sequence[Reader], name: str) -> str:
    """Return the column that a name is of: itself, or when of when:day, unless a column has that name."""
    column, _, cycle = name.rpartition(":")
    is_cycle = column and cycle in CYCLES and not any(name in reader.columns for reader in readers)
    return column if is_cycle else name


def stated_attributes(reader: Reader, column: str, stated: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a source's column, with the units that a user states in place of its own."""
    attributes = dict(reader.attributes(column))
    if column in stated:
        attributes["units"] = "" if stated[column] == NO_UNITS else stated[column]
    return {name: text for name, text in attributes.items() if text}


def time_attributes(reader: Reader, column: str, stated: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a column of numbers that are times; {} of any other.

    InputError for units that claim to be a time and cannot be understood.
    """
    if column in reader.columns and reader.is_text(column):
        return {}
    attributes = stated_attributes(reader, column, stated)
    where = f"{reader.path}: column {column!r}"
    units = time_units(attributes.get("units", ""), attributes.get("calendar", ""), where)
    return {} if units is None else attributes


class Encoded(Reader):
    """A source whose columns come as encodings say; of one number each; of zeros, `=0`; the label `FILE`, its path.
    `stated` are units in place of the source's own, by column."""

    def __init__(
        self,
        reader: Reader,
        encodings: Mapping[str, Encoding],
        absent: FillValues,
        *,
        zero: bool,
        stated: Mapping[str, str],
    ) -> None:
        super().__init__(reader.path, reader.columns, numbered=reader.numbered)
        self._reader, self._encodings, self._absent, self._zero = reader, encodings, absent, zero
        self._stated = stated
        self._of = {column: one for one in encodings.values() for column in one.columns}

    def resolve(self, names: Sequence[str], *, labels: bool = False) -> tuple[str, ...]:
        """The columns that names are encoded as, constants as they are; those of labels as they come."""
        if labels and tuple(names) == (FILE,):
            if FILE in self.columns:
                raise InputError(f"{self.path}: has a column {FILE}, which here means each file itself; rename it.")
            return (FILE,)
        columns: list[str] = []
        for name in names:
            encoding = None if labels else self._encodings.get(name)
            if _constant(name) is not None:
                columns.append(name)
            elif encoding is not None:
                self._reader.resolve((encoding.column,))
                columns += encoding.columns
            else:
                for column in self._reader.resolve((name,)):
                    encoding = None if labels else self._encodings.get(column)
                    columns += (column,) if encoding is None else encoding.columns
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
        if encoding is not None and encoding.kind in ("one_hot", "cycle"):
            return {}
        attributes = stated_attributes(self._reader, column, self._stated)
        if encoding is None or encoding.kind != "time":
            return attributes
        if attributes.get("calendar", "").lower() not in USUAL_CALENDARS:
            attributes.pop("calendar", None)
        return attributes | encoding.attributes

    @property
    def time_shifts(self) -> Mapping[str, TimeShift]:
        return self._reader.time_shifts

    def content(self) -> str:
        return self._reader.content()

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        """The source's blocks, cut so that those of many categories are no larger than others.

        What is missing is NaN before anything is encoded: zeros of categories are none of the source's.
        """
        constants = {column: value for column in columns if (value := _constant(column)) is not None}
        encodings = dict.fromkeys(self._of[column] for column in columns if column in self._of)
        scales = {one.column: self._time_units(one.column) if one.clock else None for one in encodings}
        numbers = [column for column in columns if column not in self._of and column not in constants]
        numbers = list(dict.fromkeys([*numbers, *(of for of, scale in scales.items() if scale)]))
        texts = list(dict.fromkeys([*labels, *(of for of, scale in scales.items() if not scale)]))
        texts = [of for of in texts if of != FILE]
        if len(constants) == len(columns):
            raise InputError(f"{self.path}: only constants are asked for; name one of its columns at least.")
        for read in self._reader.blocks(numbers, texts):
            known = without_given(self._reader, numbers, read.numbers, self._absent)
            whole = SourceBlock(known, read.labels)
            step = max(1, BLOCK_BYTES // (8 * len(columns))) if encodings else len(whole)
            for block in (whole[start : start + step] for start in range(0, len(whole), step)):
                runs = dict(zip(texts, block.labels, strict=True))
                runs[FILE] = Run((self.path,), np.zeros(len(block), "i4"))
                raw: dict[str, Numbers] = dict(zip(numbers, block.numbers.T, strict=True))
                parts = raw | {column: np.full(len(block), value) for column, value in constants.items()}
                for one in encodings:
                    scale, where = scales[one.column], f"{self.path}: column {one.column!r}"
                    if scale:
                        rows = one.of_times(raw[one.column], scale, where)
                    else:
                        run = self._absent.blank_labels(runs[one.column])
                        rows = one.table(label_texts(run, where), where, zero=self._zero)[run.index]
                    parts |= zip(one.columns, rows.T, strict=True)
                plain = not encodings and not constants
                together = block.numbers if plain else np.column_stack([parts[column] for column in columns])
                yield SourceBlock(together, tuple(runs[label] for label in labels))
        self.rows, self.left_out = self._reader.rows, self._reader.left_out

    def conversions(self, wanted: ColumnAttributes, labels: Collection[str]) -> Conversions:
        """Return how numbers of the columns become those with the `wanted` attributes.

        Times are converted as they are encoded. InputError for units that cannot be converted, and where `labels`,
        columns whose values are names, would have to be.
        """
        conversions = Conversions()
        for column, attributes in wanted.items():
            encoding = self._of.get(column)
            if encoding is None or encoding.kind != "time":
                given = stated_attributes(self._reader, column, self._stated)
                conversions.add(column, given, attributes, self.path)
                if column in conversions.converted:
                    is_short = common_dtype([self._reader.dtype(column)]) == np.float32
                    zero = conversions.by_column[column].zero
                    conversions.resolutions[column] = self._resolution(column, attributes, zero, is_short=is_short)
            elif given := time_attributes(self._reader, encoding.column, self._stated):
                conversions.add(column, given, encoding.attributes, self.path)
                conversion = conversions.by_column.pop(column, None)
                if conversion is not None and column in conversions.converted:
                    conversions.resolutions[column] = self._resolution(column, encoding.attributes, conversion.zero)
            else:
                units = encoding.units(self.path)
                if units.unit_seconds > 1:  # hours and days of text are rounded as those of other programs need not be
                    zero = ISO_MICROSECONDS.conversion_to(units, f"{self.path}: column {column!r}").zero
                    conversions.resolutions[column] = self._resolution(column, encoding.attributes, zero)
            if column in labels and column in conversions.converted:
                problem = f"its values are labels, whose units differ ({conversions.converted[column]})"
                raise InputError(f"{self.path}: column {column!r}: {problem}; convert them, or state units by --units.")
        return conversions

    def _resolution(
        self,
        column: str,
        wanted: Mapping[str, str],
        zero: float,
        *,
        is_short: bool = False,
    ) -> Resolution:
        """Return how closely values of a column are compared that were converted to the `wanted` units.

        `zero` is what 0 becomes; `is_short` says whether they were float32.
        """
        where = f"{self.path}: column {column!r}"
        units = time_units(wanted["units"], wanted.get("calendar", ""), where)
        if units is not None:
            return Resolution(digits=TIME_DIGITS, zero=zero, unit=units.unit_seconds)
        return Resolution(digits=SHORT_DIGITS if is_short else DIGITS, zero=zero)

    def _time_units(self, column: str) -> TimeUnits | None:
        """Return the units of a column of numbers that are times; None of text."""
        attributes = time_attributes(self._reader, column, self._stated)
        where = f"{self.path}: column {column!r}"
        return time_units(attributes["units"], attributes.get("calendar", ""), where) if attributes else None


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
