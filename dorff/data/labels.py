"""Class labels: what a value in a file means as one, and the code that it is stored as."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError

Label: TypeAlias = str | int | bool | float
CLASSES: Final = "classes"  # the array that ingest writes codes to
GROUPS: Final = "groups"  # and of groups
FILE: Final = "FILE"  # the groups of rows that are each source's
MISSING: Final = -1
MAX_LABELS: Final = 10_000
MAX_REAL: Final = 100  # numbers that are not whole: beyond it, they are measured, not named
MAX_TEXT: Final = 1000
GROUP_NAME: Final = 60  # letters of a group's name that a data set keeps, for reports
MOST_GROUP_NAMES: Final = 1000  # groups whose names it keeps: those that come first
LISTED_LABELS: Final = 10  # new ones, and those before, that a remark lists
LISTED_TEXT: Final = 40  # and letters of each
WHOLE: Final = re.compile("0|-?[1-9][0-9]{0,17}")
LARGEST = 2.0**53  # of the whole numbers that float64 tells apart
Codes = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Run:
    """A column of labels: `values`, in order of first appearance, and each row's place there (n,) or MISSING."""

    values: tuple[Any, ...]
    index: npt.NDArray[np.int32]

    @classmethod
    def of(cls, column: Any, parse: Callable[[Any], Any] | None = None) -> "Run":
        """Of an Arrow or NumPy column; `parse` is applied to each different value."""
        if isinstance(column, np.ndarray):
            import pyarrow as pa  # large, and only files that are read need it

            column = pa.array(_as_arrow_takes(column))
            column = column.cast(pa.string()) if pa.types.is_temporal(column.type) else column
        labelled = column.dictionary_encode()
        values = labelled.dictionary.to_pylist()
        index = labelled.indices.fill_null(MISSING).to_numpy(zero_copy_only=False)
        return cls(tuple(map(parse, values) if parse else values), index)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: slice) -> "Run":
        return Run(self.values, self.index[rows])

    def take(self, rows: npt.NDArray[np.intp]) -> "Run":
        """Return these rows, with the values that they have in order of first appearance."""
        index = self.index[rows]
        codes, first = np.unique(index[index != MISSING], return_index=True)
        order = codes[np.argsort(first)]
        place = np.full(len(self.values) + 1, MISSING, np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return Run(tuple(self.values[code] for code in order), place[index])


def _as_arrow_takes(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column (n,) in a type that Arrow encodes without loss; of times all that a microsecond holds."""
    if column.dtype.kind == "M":
        taken = np.datetime_data(column.dtype) in {(unit, 1) for unit in ("D", "s", "ms", "us", "ns")}
        return column.astype(column.dtype.newbyteorder("=") if taken else "M8[us]", copy=False)
    short = column.dtype.kind == "f" and column.dtype.itemsize not in (4, 8)  # Arrow hashes no others
    return column.astype(np.float64 if short else column.dtype.newbyteorder("="), copy=False)


class LabelTable:
    """The labels seen so far, in order of first appearance, and how often each was; it grows as rows are coded. Two
    values are one label when their texts are: 1 and 1.0 are, and 1 and "1"."""

    def __init__(self, labels: Sequence[Label] = (), counts: Sequence[int] = ()) -> None:
        self._values = list(labels)
        self._codes = {text_of(label): code for code, label in enumerate(labels)}
        self._counts = np.array(counts, np.int64)
        self._real = sum(isinstance(label, float) for label in labels)

    @property
    def labels(self) -> tuple[Label, ...]:
        """All of one kind: text as soon as there are two of text, numbers and booleans."""
        kinds = {float if type(label) is int else type(label) for label in self._values}
        return tuple(self._values if len(kinds) < 2 else map(text_of, self._values))

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts.tolist())

    def codes(self, run: Run, where: str) -> npt.NDArray[np.int32]:
        """The codes (n, 1) of further rows; `where` is their file and column, for messages. Raises InputError: more
        than 10,000 labels or 100 of real numbers, an infinite one, text above 1000 letters."""
        # Values that first appear in later rows are left to them: their order is that of the rows.
        seen = run.values[: int(run.index.max(initial=MISSING)) + 1]
        codes = np.array([*(self._code(value, where) for value in seen), MISSING], np.int32)[run.index]
        of_rows = np.bincount(codes[codes != MISSING], minlength=len(self._values))
        of_rows[: len(self._counts)] += self._counts
        self._counts = of_rows
        return codes[:, None]

    def _code(self, value: Any, where: str) -> int:
        if (label := label_of(value, where)) is None:
            return MISSING
        code = self._codes.setdefault(text_of(label), len(self._values))
        if code == len(self._values):
            self._values.append(label)
            self._real += isinstance(label, float)
            real = self._real > MAX_REAL
            if real or len(self._values) > MAX_LABELS:
                many = f"{MAX_REAL if real else MAX_LABELS:,} different labels"
                many += " that are no whole numbers" if real else ""
                looks = "it looks like a target, or like a name for each row"
                remedy = "give numbers to --targets, or another column to --classes"
                raise InputError(f"{where}: has more than {many}, such as {value!r}; {looks}: {remedy}.")
        return code


def describe_new_labels(before: Sequence[Label], after: Sequence[Label]) -> str | None:
    """Say which labels are new, each of which is a class more; None if none are, or all are.

    A label that is misspelt is one of them.
    """
    known = {text_of(label) for label in before}
    new = [label for label in after if text_of(label) not in known]
    if not before or not new:
        return None
    return f"has the new labels {_list_labels(new)}; those before are {_list_labels(before)}"


def _list_labels(labels: Sequence[Label]) -> str:
    """Return the first labels, cut, and how many there are more."""
    listed = ", ".join(text_of(label)[:LISTED_TEXT] for label in labels[:LISTED_LABELS])
    left = len(labels) - LISTED_LABELS
    return f"{listed} and {left:,} more" if left > 0 else listed


def group_codes(run: Run, where: str) -> npt.NDArray[np.int64]:
    """Codes (n, 1) of rows' groups; the same for the same label in any file, and whatever came before. A whole number
    is its own code; any other label has 64 bits of its text's BLAKE2b, as rows without one have of the empty text.
    InputError as in `LabelTable.codes`, but for the number of labels: groups may be many."""
    codes = np.array([*(_group_code(label_of(value, where)) for value in run.values), NO_GROUP], np.int64)
    return codes[run.index, None]


def group_names(run: Run, where: str) -> dict[int, str]:
    """Return the names, cut to `GROUP_NAME` letters, of groups whose codes are no numbers of their own."""
    texts = [text_of(label) for value in run.values if (label := label_of(value, where)) is not None]
    return {_group_code(text): text[:GROUP_NAME] for text in texts if not WHOLE.fullmatch(text)}


def _group_code(label: Label | None) -> int:
    text = "" if label is None else text_of(label)
    if WHOLE.fullmatch(text):
        return int(text)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


NO_GROUP: Final = _group_code(None)


def label_of(value: Any, where: str) -> Label | None:
    """A file's value as a label: whole numbers as int, text without space around it; None for none and NaN."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: the label {value[:60]!r} is not UTF-8 text; write it as such.") from error
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            came = f"a label has {len(value):,} characters"
            raise InputError(f"{where}: {came}, wanted {MAX_TEXT:,} at most; shorten it.")
        return value.strip() or None
    if isinstance(value, bool | int) or value is None:
        return value
    if not isinstance(value, float | Decimal):
        raise InputError(f"{where}: {value!r} is no label; wanted text, numbers or booleans, convert it.")
    if math.isnan(value):
        return None
    if math.isinf(value):
        raise InputError(f"{where}: wanted labels, got {value}; empty that field, or write the label as text.")
    return int(value) if value == int(value) else float(value)


def text_of(label: Label) -> str:
    return label if isinstance(label, str) else repr(label)


def stored_labels(attributes: Mapping[str, Any], where: object) -> LabelTable | None:
    """The labels that ingest kept in a group's attributes; None if none. InputError where they are damaged."""
    dorff = attributes.get("dorff")
    if not isinstance(dorff, dict) or "labels" not in dorff:
        return None
    try:
        labels, counts = dorff["labels"][CLASSES], dorff["counts"][CLASSES]
        table = LabelTable(labels, counts)
        whole = all(isinstance(count, int) and count >= 0 for count in counts) and sum(counts) <= dorff["rows"]
        whole &= len(set(map(text_of, labels))) == len(labels) == len(counts)
        whole &= all(isinstance(label, Label) for label in labels)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(f"{where}: its attributes dorff.labels are damaged; restore its metadata from a copy.")
    return table


@dataclass(frozen=True)
class Classes:
    """Targets that are class labels: the array `name`. `labels`, such as a model's, say which labels there are, and in
    which order; without them they are the array's own."""

    name: str
    labels: tuple[Label, ...] | None = None


@dataclass(frozen=True)
class Coding:
    """What the stored values of an array of labels mean. `values`, sorted, are those that another's array holds; None
    where it holds codes 0, 1, ..., as dorff's do, and negative ones for none. `places` gives for each value (or code)
    its label's place in `labels`, -1 for none."""

    labels: tuple[Label, ...]
    places: tuple[int, ...]
    values: tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | None = None

    @classmethod
    def of_values(cls, values: Sequence[Any], classes: Classes, where: str, *, boolean: bool) -> "Coding":
        """Of another's array: `values` are all that it holds."""
        of_rows = [label_of(bool(v) if boolean else v, where) for v in values]
        own = dict.fromkeys(label for label in of_rows if label is not None)
        labels, places = placed(tuple(own), classes, where)
        place = {None: MISSING} | dict(zip(own, places, strict=True))
        return cls(labels, tuple(place[label] for label in of_rows), tuple(values))

    def codes(self, stored: npt.NDArray[Any], where: Callable[[int], str]) -> Codes:
        """Places in `labels` (n,) of stored values (n,); -1 where there is none. Raises InputError at a value that was
        not there when the data set was opened; `where` names its row."""
        places = np.array([*self.places, MISSING])
        if self.values is None:
            index = np.maximum(stored, MISSING).astype(np.intp)
            strange = index >= len(self.places)
        else:
            values = np.array(self.values, stored.dtype)
            index = np.searchsorted(values, stored)
            none = np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(len(stored), bool)
            strange = (values[np.minimum(index, len(values) - 1)] != stored) & ~none
            index[none] = MISSING
        if strange.any():
            row = int(np.argmax(strange))
            problem = f"holds the label {stored[row].item()!r}, which was not there when the data set was opened"
            raise InputError(f"{where(row)}: {problem}; open it again.")
        return np.asarray(places[index])

    def one_hot(self, codes: Codes) -> npt.NDArray[np.float64]:
        """Rows (n, K) of zeros with a one at the label's place; of NaN where there is no label."""
        Y = np.zeros((len(codes), len(self.labels)))
        known = codes != MISSING
        Y[np.flatnonzero(known), codes[known]] = 1.0
        Y[~known] = np.nan
        return Y


def distinct(runs: Iterable[npt.NDArray[Any]], where: str) -> list[Any]:
    """The different values of runs (n,) of stored values, sorted, without NaN; InputError beyond 10,000."""
    seen: set[Any] = set()
    for run in runs:
        values = np.unique(run)
        seen.update((values[~np.isnan(values)] if values.dtype.kind == "f" else values).tolist())
        if len(seen) > MAX_LABELS:
            remedy = "name it as a target, or name another array"
            raise InputError(f"{where}: has more than {MAX_LABELS:,} different values, which are no classes; {remedy}.")
        if any(isinstance(v, float) and abs(v) > LARGEST for v in values.tolist()):
            raise InputError(f"{where}: has labels beyond 2^53, which float64 cannot tell apart; renumber them.")
    return sorted(seen)


def placed(own: tuple[Label, ...], classes: Classes, where: str) -> tuple[tuple[Label, ...], tuple[int, ...]]:
    """The labels to use, and the place there of each of the array's own."""
    if not own:
        raise InputError(f"{where}: holds no label in any row; fill some in, or name another array.")
    if classes.labels is None:
        return own, tuple(range(len(own)))
    place = {text_of(label): i for i, label in enumerate(classes.labels)}
    if unknown := [label for label in own if text_of(label) not in place]:
        problem = f"holds labels other than the {len(place):,} wanted, such as {unknown[0]!r} ({len(unknown):,} in all)"
        raise InputError(f"{where}: {problem}; leave their rows out, or fit to them.")
    return tuple(classes.labels), tuple(place[text_of(label)] for label in own)
