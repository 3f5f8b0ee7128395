"""Finds how the inputs of sources are to be encoded: by their types, their units, and the values of text."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dorff.data.conditions import check_some_left
from dorff.data.encoding import (
    CYCLES,
    ISO,
    Encoding,
    is_missing_time,
    label_texts,
    seconds,
    source_column,
    time_attributes,
    time_encoding,
)
from dorff.data.packing import FillValues
from dorff.data.readers import Reader
from dorff.data.text_quantities import describe_quantities
from dorff.data.units import GREGORIAN_START_SECONDS, ISO_SECONDS, ColumnAttributes, time_units
from dorff.errors import InputError

# Also ISO 8601's months, weeks and days of the year, which are not read.
ODD_DATE: Final = r"\d{1,4}([./-])\d{1,2}\1\d{1,4}\b.*|\d{4}-?W\d\d(-?\d)?|\d{4}-\d{3}|\d{4}-\d\d"
ODD_NUMBER: Final = r"[+\u2212-]?(\d+[.,]?\d*|[.,]\d+)([eEdD][+\u2212-]?\d+)?"
ODD: Final = re.compile(rf"{ODD_DATE}|{ODD_NUMBER}|{ISO.pattern}", re.IGNORECASE)
MOST: Final = 1000  # categories of a column
ROWS_TO_JUDGE: Final = 20  # with text; of fewer, values that all differ say little


@dataclass(frozen=True)
class Learner:
    """Finds how inputs are to be encoded: text as one_hot, unless it is a time or in `ordered`; numbers too where
    they are in `one_hot`. `absent` is what stands for none, `stated` are units of columns in place of the source's,
    `where` is the condition on rows."""

    one_hot: Sequence[str]
    ordered: Mapping[str, Sequence[str]]
    absent: FillValues
    stated: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    def learn(self, readers: Sequence[Reader], names: Sequence[str]) -> dict[str, Encoding]:
        """Of those names that need one, from all their rows. InputError at no categories, or an option of no input.

        The name of a 2-d array stands for each of its columns, in the options too.
        """
        names = _single_columns(readers, names)
        one_hot = _single_columns(readers, self.one_hot)
        ordered = {column: words for name, words in self.ordered.items() for column in _single_columns(readers, [name])}
        for name in (*one_hot, *ordered):
            if name not in names:
                option = "--one-hot" if name in one_hot else "--ordered"
                raise InputError(f"{option} {name}: is none of the inputs; name one of {', '.join(names)}.")
        return replace(self, one_hot=one_hot, ordered=ordered)._learn(readers, names)

    def _learn(self, readers: Sequence[Reader], names: Sequence[str]) -> dict[str, Encoding]:
        column = {name: source_column(readers, name) for name in names if not name.startswith("=")}
        times: dict[str, Encoding] = {}
        for of in column.values():
            given = (time_attributes(reader, of, self.stated) for reader in readers)
            if of not in self.one_hot and (attributes := next(filter(None, given), None)):
                times[of] = time_encoding(of, attributes)
        wanted = [of for of in dict.fromkeys(column.values()) if of not in self.ordered and of not in times]
        text = [of for of in wanted if of in self.one_hot or any(of in r.columns and r.is_text(of) for r in readers)]
        words = self._categories(readers, text, times)
        encodings = {name: Encoding(name, "ordered", tuple(each)) for name, each in self.ordered.items()}
        for name, of in column.items():
            if name != of and of not in times:
                readers[0].resolve_single(of, f"inputs: {name}")
                raise InputError(f"{readers[0].path}: column {of!r} holds no times, which {name} needs; write {of}.")
            if name != of:
                encodings[name] = Encoding(name, "cycle", (name.rpartition(":")[2],))
            elif of in times:
                encodings[name] = times[of]
            elif of in text:
                encodings[name] = Encoding(name, "one_hot", tuple(sorted(words[of])))
        return encodings

    def _categories(
        self, readers: Sequence[Reader], text: list[str], times: dict[str, Encoding]
    ) -> dict[str, set[str]]:
        """The different values of columns of text; those whose first is a time are put into `times` instead."""
        words: dict[str, set[str]] = {of: set() for of in text}
        rows = dict.fromkeys(text, 0)
        has_rows = False
        for reader in readers:
            wanted = reader.resolve([of for of in text if of not in times])
            for block in reader.blocks([], wanted) if wanted else ():
                has_rows |= len(block) > 0
                for of, run in zip(wanted, block.labels, strict=True):
                    where = f"{reader.path}: column {of!r}"
                    texts = label_texts(self.absent.blank_labels(run), where)
                    values = [value for value in texts if value is not None]
                    first_known = next((value for value in values if not is_missing_time(value)), "")
                    only_missing_before = all(map(is_missing_time, words[of]))
                    may_be_time = only_missing_before and of not in times and of not in self.one_hot
                    if may_be_time and (day := _day(first_known)):
                        times[of] = time_encoding(of, day)
                    if of not in times:
                        words[of].update(values)
                        known = np.array([*(value is not None for value in texts), False])
                        rows[of] += int(np.count_nonzero(known[run.index]))
                        self._check(of, words[of], where)
                if all(of in times for of in wanted):
                    break
        if text and not has_rows:
            check_some_left(readers, self.where)
        for of in text:
            if of not in times and all(map(is_missing_time, words[of])):
                raise InputError(f"{readers[0].path}: column {of!r} holds no value in any row; leave it out.")
            if of not in times and of not in self.one_hot:
                where = f"{readers[0].path}: column {of!r}"
                _check_no_quantity(words[of], of, where)
                _check_repeated(words[of], rows[of], of, where)
        return words

    def _check(self, of: str, words: set[str], where: str) -> None:
        """InputError where values are rather names of rows, numbers or other dates than categories."""
        if len(words) > MOST:
            problem = f"has more than {MOST:,} different texts, such as {min(words)!r}"
            if described := describe_quantities(words):
                problem = f"{problem}, {described}"
            remedy = "such a name for each row is no category: leave the column out, or name it in --groups"
            raise InputError(f"{where}: {problem}; {remedy}.")
        if of in self.one_hot:
            return
        if _are_flags(words):
            return
        if problem := _describe_odd_words(words):
            remedy = (
                f"write numbers alone, and dates as 2024-05-31, or give --one-hot {shlex.quote(of)} to have categories"
            )
            raise InputError(f"{where}: {problem}: {remedy}.")


def _are_flags(texts: set[str]) -> bool:
    """Whether texts are single characters, as quality flags are: 1, 4, B."""
    return all(len(text) == 1 for text in texts)


def _describe_odd_words(words: set[str]) -> str:
    """Return which text is beside a number or a time, that which cannot be read; "" if all may be categories."""
    odd = sorted(filter(ODD.fullmatch, words))
    if not odd:
        return ""
    times = [word for word in odd if _day(word)]
    no_times = [word for word in (*odd, *sorted(words)) if word not in times and not is_missing_time(word)]
    if times and no_times:
        return f"has dates or times, such as {times[-1]!r}, and {no_times[0]!r}, which cannot be read as one"
    if re.fullmatch(ODD_NUMBER, odd[0]):
        return f"has text, and {odd[0]!r}, which is a number"
    return f"has text, and {odd[0]!r}, which is a date or time that is not read"


def _check_no_quantity(texts: set[str], column: str, where: str) -> None:
    """Raise InputError where all texts are numbers or times that are written in another way."""
    if len(texts) < 2 or _are_flags(texts):
        return
    if described := describe_quantities(texts):
        problem = f"all of its text is {described}, such as {min(texts)!r}"
        raise InputError(f"{where}: {problem}; {_remedy(column)}.")


def _check_repeated(texts: set[str], rows: int, column: str, where: str) -> None:
    """Raise InputError where a category has fewer than two rows on the average, of `ROWS_TO_JUDGE` or more.

    The weight of a category with one row is fitted to that row alone and says nothing of any other.
    """
    if rows >= ROWS_TO_JUDGE and 2 * len(texts) > rows:
        problem = (
            f"has {len(texts):,} different texts in {rows:,} rows, such as {min(texts)!r}, too many for categories"
        )
        raise InputError(f"{where}: {problem}; {_remedy(column)}.")


def _remedy(column: str) -> str:
    written = "write numbers alone and times as 2024-05-31T12:00:00"
    return f"{written}, leave the column out, or give --one-hot {shlex.quote(column)} to have a column for each"


def _single_columns(readers: Sequence[Reader], names: Sequence[str]) -> list[str]:
    """Return names with those of single columns in place of each 2-d array's."""
    if not readers:
        return list(names)
    expanded = (column for name in names for column in readers[0].expand(name))
    return list(dict.fromkeys(expanded))


def _day(text: str) -> dict[str, str]:
    """Units and calendar of seconds since the start of the day of a time; {} where it is none."""
    try:
        day = seconds([text], "")[0] // CYCLES["day"] * CYCLES["day"]
    except InputError:
        return {}
    units = {"units": f"seconds since {np.datetime64(int(day), 's')}"}
    return units if day >= GREGORIAN_START_SECONDS else {**units, "calendar": ISO_SECONDS.calendar}


def text_times(
    readers: Sequence[Reader],
    names: Sequence[str],
    encodings: Mapping[str, Encoding],
    wanted: ColumnAttributes,
) -> dict[str, Encoding]:
    """Return encodings of text in columns that have `wanted` units of time, and no encoding yet."""
    found: dict[str, Encoding] = {}
    for name in names:
        attributes = wanted.get(name, {})
        is_text = any(name in reader.columns and reader.is_text(name) for reader in readers)
        if name not in encodings and is_text and "units" in attributes:
            encoding = time_encoding(name, attributes)
            if time_units(attributes["units"], attributes.get("calendar", ""), name) is not None:
                found[name] = encoding
    return found
