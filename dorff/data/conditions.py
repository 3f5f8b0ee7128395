"""Rows of a source that hold for a condition on its columns, such as `PSAL_QC in (1, 2) and depth < 500`.

The grammar is a part of Python's, read by `ast` and never evaluated as Python: comparisons of a column with constants,
`in`, `and`, `or`, `not` and parentheses. What a missing value says is unknown, as in SQL, and rows for which the
condition is unknown are left out.

A constant is rounded to the type of the column, so that 0.1 is the 0.1 of a float32 column. Two columns are compared as
float64, which holds both exactly: 0.1 of a float32 column is not 0.1 of a float64 column, as in NumPy and pandas.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.encoding import (
    ISO,
    is_missing_time,
    label_texts,
    microseconds,
    seconds,
    stated_attributes,
    time_number,
)
from dorff.data.labels import Label, Run, label_of, text_of
from dorff.data.packing import FillValues
from dorff.data.readers import Numbers, Reader, SourceBlock, without_given
from dorff.data.times import Times
from dorff.data.units import (
    ISO_MICROSECONDS,
    ColumnAttributes,
    Conversion,
    Conversions,
    TimeShift,
    TimeUnits,
    first_with_units,
    time_units,
)
from dorff.errors import InputError

LONGEST: Final = 4000  # characters of a condition
MOST_SHOWN: Final = 200  # of them in a message
MOST_SHOWN_PART: Final = 60  # of a constant, or another part of a condition, in a message
DEEPEST: Final = 100  # operations within each other, far fewer than the recursion that Python allows
#: What is not read by Python as it stands: text in quotes, which may hold any of the others, names, blanks, comments.
TOKEN: Final = re.compile(
    r"""
    (?P<text>
        '{3}(?:[^\\]|\\.)*?'{3} | "{3}(?:[^\\]|\\.)*?"{3} | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"
    )
    | `(?P<name>[^`]+)`
    | (?P<blanks>[\r\n\f]+)
    | (?P<comment>\#)
    """,
    re.DOTALL | re.VERBOSE,
)
BRACKETS: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
LINE_END: Final = re.compile(r"[\r\n]")
UNREADABLE: Final = re.compile("[\x00\ud800-\udfff]")  # which neither Python nor a file of text has
COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
MIRRORED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}
LARGEST: Final = float(np.finfo(np.float64).max)
NAT_NUMBER: Final = float(np.iinfo(np.int64).min)  # as NumPy has NaT, which xarray writes without a fill value
MICROSECOND_NS: Final = 1000  # as near as times in text are told apart
Constant = str | int | float | bool
LEADING_ZERO: Final = re.compile(r"[+-]?0\d")
COMPACT_DATE: Final = re.compile(r"(\d{4})(\d\d)(\d\d)")
#: How a missing value, and one that is not finite, is called elsewhere.
MISSING_WORDS: Final = ("nan", "nat", "na", "null", "none")
INFINITE_WORDS: Final = ("inf", "infinity")
BARE_DATE: Final = re.compile(r"(?<!['\"\d])\d{4}-\d\d-\d\d")
BARE_EQUALS: Final = re.compile(r"(?<![=!<>])=(?!=)")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Truth:
    """For each row whether a condition holds, and whether it does not; neither where that is unknown."""

    yes: Mask
    no: Mask

    def __and__(self, other: "_Truth") -> "_Truth":
        return _Truth(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: "_Truth") -> "_Truth":
        return _Truth(self.yes | other.yes, self.no & other.no)

    def __invert__(self) -> "_Truth":
        return _Truth(self.no, self.yes)


class Condition:
    """A condition on rows. `columns` are the names in it; those that are no identifiers stand between backquotes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._check_text()
        self._places: dict[str, str] = {}  # the identifier that stands for each name between backquotes
        plain = TOKEN.sub(self._plain_token, text).strip()
        self._names = {place: name for name, place in self._places.items()}
        self._root = self._parse(plain)
        self._source = plain.encode()  # places of nodes are bytes of it
        names = (self._name(node) for node in ast.walk(self._root) if isinstance(node, ast.Name))
        self.columns = tuple(dict.fromkeys(names))
        self.texts: set[str] = set()  # columns that are compared with text by ==, != and in, and so read as text
        self.pairs: list[tuple[str, str]] = []  # columns that are compared with each other
        self.numbers: dict[str, Constant] = {}  # the first, also as text, that a column is compared with
        self._check(self._root)

    @property
    def paired_columns(self) -> tuple[str, ...]:
        """Return the columns that are compared with another one."""
        return tuple(dict.fromkeys(name for pair in self.pairs for name in pair))

    def _check_text(self) -> None:
        """Raise InputError where Python would not read a text, or would take too long for it."""
        if len(self.text) > LONGEST:
            raise self._refusal(f"has {len(self.text):,} characters, more than {LONGEST:,}; write it shorter")
        if match := UNREADABLE.search(self.text):
            raise self._refusal(f"has the character {match[0]!r}, which no text has; write it without that")
        if _bracket_depth(TOKEN.sub("", self.text)) > DEEPEST:
            raise self._depth_refusal()

    def _plain_token(self, match: re.Match[str]) -> str:
        """Return what Python reads in place of a token: text as it is, an identifier for a name."""
        if match["comment"]:
            raise self._refusal("has a # outside of quotes; leave comments out, and write names with # in backquotes")
        if match["blanks"]:
            return " "
        if match["name"] is None:
            if LINE_END.search(match["text"]):
                raise self._refusal(f"{_shorten(match['text'])} has a line end within quotes; write it as \\n")
            return match["text"]
        prefix = "_column_"
        while prefix in self.text:  # a column of the file may be called so
            prefix += "_"
        place = self._places.setdefault(match["name"], f"{prefix}{len(self._places)}_")
        return f" {place} "

    def _parse(self, plain: str) -> ast.expr:
        """Return the tree of a condition; InputError where Python cannot read it, or it is deeper than `DEEPEST`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python does not know, which it leaves as they are
                root = ast.parse(plain, mode="eval").body
        except (SyntaxError, ValueError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self._refusal(f"cannot be read ({reason}); {_describe_slip(plain)}") from None
        except (RecursionError, MemoryError):
            raise self._depth_refusal() from None
        if _depth(root) > DEEPEST:
            raise self._depth_refusal()
        return root

    def _depth_refusal(self) -> InputError:
        problem = f"has more than {DEEPEST} operations or brackets within each other"
        return self._refusal(f"{problem}; write it flat, as by in (...) or A and B and C")

    def holding(self, columns: Mapping[str, "ComparedColumn"]) -> Mask:
        """Return which rows (n,) hold for it, by its columns."""
        return self._truth(self._root, columns).yes

    def _name(self, node: ast.Name) -> str:
        """Return the column that a name is of, as it is written: Python has one Greek letter for both forms of µ."""
        written = self._plain_source(node)
        return self._names.get(written, written)

    def _plain_source(self, node: ast.expr) -> str:
        return self._source[node.col_offset : node.end_col_offset].decode()

    def _written(self, node: ast.expr) -> str:
        """Return a node as it is written, with its names between backquotes."""
        written = self._plain_source(node)
        for place, name in self._names.items():
            quoted = f"`{name}`".replace("\\", r"\\")
            written = re.sub(f" ?{place} ?", quoted, written)
        return written

    def _check(self, node: ast.expr) -> None:
        """Raise InputError where a node is none of the grammar's."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._check(part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._check(node.operand)
        elif isinstance(node, ast.Compare):
            for left, sign, right in _pairs(node):
                self._check_pair(left, sign, right)
        else:
            shown = _shorten(self._written(node))
            raise self._refusal(f"{shown!r} is no comparison; '&' is written and, '|' or, '~' not, '=' ==")

    def _check_pair(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> None:
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(left, ast.Name):
                raise self._refusal("a column stands before in")
            for element in self._elements(right):
                self._note_number(left, self._constant(element))
                self._note_text(left, self._constant(element))
            return
        if type(sign) not in COMPARISONS:
            remedy = _describe_special_value(self._written(right)) or "write == or !="
            raise self._refusal(f"is and is not compare nothing; {remedy}")
        named = [isinstance(side, ast.Name) for side in (left, right)]
        if not any(named):
            raise self._refusal("a comparison needs a column")
        if isinstance(left, ast.Name) and isinstance(right, ast.Name):
            self.pairs.append((self._name(left), self._name(right)))
        for column, side, is_name in zip((right, left), (left, right), named, strict=True):
            constant = None if is_name else self._constant(side)
            self._note_number(column, constant)
            if isinstance(sign, ast.Eq | ast.NotEq):
                self._note_text(column, constant)

    def _elements(self, node: ast.expr) -> Sequence[ast.expr]:
        """Return the constants after `in`: those in brackets, or one in parentheses, which Python drops."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return node.elts
        before, after = self._source[: node.col_offset], self._source[node.end_col_offset or 0 :]
        if not before.rstrip().endswith(b"(") or not after.lstrip().startswith(b")"):
            raise self._refusal("after in stand constants in parentheses, such as (1, 2)")
        return [node]

    def _note_text(self, column: ast.expr, constant: Constant | None) -> None:
        if isinstance(constant, str) and isinstance(column, ast.Name):
            self.texts.add(self._name(column))

    def _note_number(self, column: ast.expr, constant: Constant | None) -> None:
        if constant is None or not isinstance(column, ast.Name):
            return
        if not isinstance(constant, str) or not math.isnan(_spelled_number(constant)):
            self.numbers.setdefault(self._name(column), constant)

    def check_columns(self, reader: Reader) -> None:
        """Raise InputError where a name in the condition is none of a source's columns."""
        for name in self.columns:
            remedy = _describe_special_value(name)
            if len(name) > MOST_SHOWN:
                remedy = "name one that it has"
            if name not in reader.columns and remedy:
                raise self._refusal(f"{reader.path} has no column {_shorten(name)!r}; {remedy}")
            reader.resolve_single(name, "--where")

    def check_times(self, reader: Reader) -> None:
        """Raise InputError where numbers are compared with times whose origin is not the file's."""
        shifts = reader.time_shifts
        for name, number in self.numbers.items():
            if name not in shifts:
                continue
            problem = f"column {name!r} holds times that are counted from their first day"
            date = _date_of(reader, name, number)
            remedy = f"write the date, such as {date!r}, in place of {number}"
            where = f"--where {shorten_condition(self.text)}: {reader.path}"
            raise InputError(f"{where}: {problem}; {remedy}.")

    def _constant(self, node: ast.expr) -> Constant:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._constant(node.operand)
            if isinstance(value, int | float):
                return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
            if not isinstance(node.value, str) and not abs(node.value) <= LARGEST:
                raise self._refusal(f"{_shorten(self._written(node))} is too large a number; finite ones end at 1e308")
            return node.value
        written = self._written(node)
        remedy = _describe_special_value(written) or "correct it"
        raise self._refusal(f"{_shorten(written)!r} is no column, number or text in quotes; {remedy}")

    def _truth(self, node: ast.expr, columns: Mapping[str, "ComparedColumn"]) -> _Truth:
        if isinstance(node, ast.BoolOp):
            first, *others = (self._truth(part, columns) for part in node.values)
            for other in others:
                first = first & other if isinstance(node.op, ast.And) else first | other
            return first
        if isinstance(node, ast.UnaryOp):
            return ~self._truth(node.operand, columns)
        assert isinstance(node, ast.Compare)
        first, *others = (self._compare(*pair, columns) for pair in _pairs(node))
        for other in others:
            first = first & other
        return first

    def _compare(
        self,
        left: ast.expr,
        sign: ast.cmpop,
        right: ast.expr,
        columns: Mapping[str, "ComparedColumn"],
    ) -> _Truth:
        if not isinstance(left, ast.Name):
            left, right, sign = right, left, MIRRORED.get(type(sign), type(sign))()
        assert isinstance(left, ast.Name)
        column = columns[self._name(left)]
        if isinstance(right, ast.Name):
            other = columns[self._name(right)]
            return self._compare_columns(column, type(sign), other)
        if isinstance(sign, ast.In | ast.NotIn):
            none = np.zeros(len(column.values), bool)
            found = _Truth(none, ~none)
            for element in self._elements(right):
                found = found | self._compare_constant(column, ast.Eq, self._constant(element))
            return ~found if isinstance(sign, ast.NotIn) else found
        return self._compare_constant(column, type(sign), self._constant(right))

    def _compare_columns(self, left: "ComparedColumn", sign: type[ast.cmpop], right: "ComparedColumn") -> _Truth:
        """Compare two columns: as times if both hold times, text by == and !=, all else as numbers.

        Times are compared exactly though their origins or units differ. Numbers are compared as float64, in which
        those of shorter types are exact.
        """
        compare = COMPARISONS[sign]
        times, other_times = left.find_times(), right.find_times()
        if times is not None and other_times is not None and times.is_comparable(other_times):
            differences = times.minus(other_times, f"{left.place} and {right.name!r}")
            return _truth_of_numbers(differences, compare(differences, 0.0))
        if isinstance(left.values, Run) and isinstance(right.values, Run) and sign in (ast.Eq, ast.NotEq):
            texts, other_texts = _row_texts(left.values, left.place), _row_texts(right.values, right.place)
            known = (texts != "") & (other_texts != "")
            # Times that are written differently are equal, whatever text other rows have.
            is_same = (texts == other_texts) | (_row_times(left) == _row_times(right))
            result = is_same if sign is ast.Eq else ~is_same
            return _Truth(known & result, known & ~result)
        numbers, other_numbers = self._column_numbers(left), self._column_numbers(right)
        known = ~np.isnan(numbers) & ~np.isnan(other_numbers)
        if known.any() and (left.times is not None or right.times is not None):
            problem = f"{left.place} and {right.name!r} are compared, of which only one holds times"
            raise self._refusal(f"{problem}; write both as times")
        return _truth_of_numbers(numbers, compare(numbers, other_numbers), known)

    def _compare_constant(self, column: "ComparedColumn", sign: type[ast.cmpop], constant: Constant) -> _Truth:
        """Compare a column with a constant."""
        if isinstance(column.values, Run):
            known = self._compare_labels(column, column.values, sign, constant)
            yes = np.array([*(value is True for value in known), False])
            no = np.array([*(value is False for value in known), False])
            return _Truth(yes[column.values.index], no[column.values.index])
        times = column.times
        if times is not None and isinstance(constant, str) and math.isnan(_spelled_number(constant)):
            return self._compare_with_date(column, times, sign, constant)
        number = column.nearest(self._number_of_constant(column, constant))
        return _truth_of_numbers(column.values, COMPARISONS[sign](column.values, number))

    def _compare_with_date(self, column: "ComparedColumn", times: Times, sign: type[ast.cmpop], date: str) -> _Truth:
        """Compare times with a date, in the units that the file has."""
        number = time_number(date, times.units)
        if number is None:
            problem = f"{column.place} holds times, and {_shorten(date)!r} is no date such as 2024-05-31T12:00:00"
            raise self._refusal(f"{problem} of their calendar ({times.units.calendar})")
        number = _nearest_number(number, column.dtype)
        # What is equal but for the rounding of units such as days is equal.
        tolerance = MICROSECOND_NS / times.units.unit_ns + 4 * abs(np.spacing(number))
        numbers = np.where(np.abs(times.numbers - number) <= tolerance, number, times.numbers)
        return _truth_of_numbers(numbers, COMPARISONS[sign](numbers, number))

    def _number_of_constant(self, column: "ComparedColumn", constant: Constant) -> float:
        """Return the number that a constant is or spells; InputError where it is none."""
        if not isinstance(constant, str):
            return float(constant)
        if column.times is not None and (match := COMPACT_DATE.fullmatch(constant.strip())):
            remedy = f"write '{'-'.join(match.groups())}', or a number without quotes"
            problem = f"{column.place} holds times, and {constant!r} may be a date or a number"
            raise self._refusal(f"{problem}; {remedy}")
        number = _spelled_number(constant)
        if math.isnan(number):
            raise self._number_wanted(column, constant)
        return number

    def _number_wanted(self, column: "ComparedColumn", constant: str) -> InputError:
        hint = ""
        if ISO.fullmatch(constant.strip()):
            units = f"--units '{column.name}=hours since 2000-01-01'"
            hint = f"; where they are times, state their units, such as {units}"
        return self._refusal(f"{column.place} holds numbers, which {_shorten(constant)!r} is not{hint}")

    def _compare_labels(
        self, column: "ComparedColumn", run: Run, sign: type[ast.cmpop], constant: Constant
    ) -> list[bool | None]:
        """Return how each label of a column's run compares with a constant; None for no label."""
        labels = [label_of(value, column.place) for value in run.values]
        time = _time_of(constant)
        if time is not None:
            return self._compare_labels_with_time(column, labels, sign, str(constant), time)
        if sign in (ast.Eq, ast.NotEq):
            is_equal = sign is ast.Eq
            return [None if label is None else column.is_label(label, constant) is is_equal for label in labels]
        if isinstance(constant, str):
            raise self._order_refusal(column, labels, constant)
        numbers = self._label_numbers(column, labels)
        compare, nearest = COMPARISONS[sign], column.nearest(constant)
        return [None if math.isnan(number) else bool(compare(number, nearest)) for number in numbers]

    def _compare_labels_with_time(
        self,
        column: "ComparedColumn",
        labels: Sequence[Label | None],
        sign: type[ast.cmpop],
        constant: str,
        time: float,
    ) -> list[bool | None]:
        """Return how each label compares with a constant that is a time, in seconds; None for no label.

        Labels that are times are compared as such, whatever text other rows have; all others by == and != alone.
        """
        texts = [None if label is None else text_of(label) for label in labels]
        is_missing = [text is None or is_missing_time(text) for text in texts]
        times = _known_times(texts, column.place).tolist()
        no_times = [
            number
            for number, (value, missing) in enumerate(zip(times, is_missing, strict=True))
            if math.isnan(value) and not missing
        ]
        if no_times and not any(isinstance(label, str) for label in labels):
            raise self._number_wanted(column, constant)
        if no_times and sign not in (ast.Eq, ast.NotEq):
            word = texts[no_times[0]]
            problem = f"{column.place_of_label(no_times[0])}: {word!r} is no date or time, so that it has no order"
            raise self._refusal(f"{problem}; correct it, or take it for none by --missing {word}")
        truths: list[bool | None] = []
        for label, value, missing in zip(labels, times, is_missing, strict=True):
            if label is None or missing:
                truths.append(None)
            elif math.isnan(value):
                truths.append(column.is_label(label, constant) is (sign is ast.Eq))
            else:
                truths.append(bool(COMPARISONS[sign](value, time)))
        return truths

    def _order_refusal(self, column: "ComparedColumn", labels: Sequence[Label | None], constant: str) -> InputError:
        """Return why labels are not compared by < or > with text that is no time."""
        texts = [text_of(label) for label in labels if label is not None]
        if texts and _times(texts, column.place) is not None:
            problem = f"{column.place} holds times, and {_shorten(constant)!r} is no date"
            return self._refusal(f"{problem} such as 2024-05-31T12:00:00")
        return self._refusal(f"{column.place} holds text, which has no order; == or in (...) compare it")

    def _column_numbers(self, column: "ComparedColumn") -> Numbers:
        """Return a column as numbers (n,), also one of text that spells numbers."""
        if not isinstance(column.values, Run):
            return column.values
        labels = [label_of(value, column.place) for value in column.values.values]
        return np.array([*self._label_numbers(column, labels), math.nan])[column.values.index]

    def _label_numbers(self, column: "ComparedColumn", labels: Sequence[Label | None]) -> list[float]:
        """Return the number that each label is or spells, NaN for no label; InputError where one is none."""
        numbers = [math.nan if label is None else _number_of_label(label) for label in labels]
        for place, (label, number) in enumerate(zip(labels, numbers, strict=True)):
            if label is not None and math.isnan(number):
                problem = f"{column.place_of_label(place)}: holds text, and {label!r} is no number"
                raise self._refusal(f"{problem}; compare it by == or in (...)")
        return numbers

    def _refusal(self, problem: str) -> InputError:
        example = "write such as 'PSAL_QC in (1, 2) and depth < 500', odd names between backquotes"
        return InputError(f"--where {shorten_condition(self.text)}: {problem}; {example}.")


def shorten_condition(text: str) -> str:
    """Return a condition as messages have it, cut if it is long."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _shorten(part: str) -> str:
    """Return a part of a condition as messages have it, cut if it is long."""
    return part if len(part) <= MOST_SHOWN_PART else f"{part[:MOST_SHOWN_PART]}..."


def _bracket_depth(text: str) -> int:
    """Return how many brackets are open at once, at most."""
    return max(accumulate(BRACKETS.get(character, 0) for character in text), default=0)


def _depth(root: ast.AST) -> int:
    """Return how many nodes of a tree lie within each other, without recursion."""
    depth, level = 0, [root]
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _describe_special_value(written: str) -> str:
    """Return what to write in place of a name for missing or infinite values, such as np.nan; "" for any other."""
    word = written.lower().rpartition(".")[2].lstrip("+- ")
    if word in MISSING_WORDS:
        return "a missing value equals nothing: NAME == NAME keeps the rows that have a value"
    if word in INFINITE_WORDS:
        return "finite numbers are kept by NAME > -1e308 and NAME < 1e308"
    return ""


def _describe_slip(text: str) -> str:
    """Return how the usual slips of a condition that cannot be read are written."""
    if BARE_DATE.search(text):
        return "dates are in quotes, such as time >= '2024-05-31'"
    if BARE_EQUALS.search(text):
        return "= is written =="
    return "and, or, not and in are in small letters, text is in quotes"


def _pairs(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Go through the comparisons of a chain, 1 <= a < 3."""
    return zip([node.left, *node.comparators[:-1]], node.ops, node.comparators, strict=True)


def _number_of_label(label: Label) -> float:
    """Return the number that a label is or spells, 0 and 1 for truth values; NaN if none."""
    return _spelled_number(label) if isinstance(label, str) else float(label)


def _spelled_number(text: str) -> float:
    """Return the number that a text spells, NaN if it is none."""
    try:
        return math.nan if "_" in text else float(text)  # Python's underscores stand in names elsewhere
    except ValueError:
        return math.nan


def _nearest_number(number: float, dtype: np.dtype[Any]) -> float:
    """Return the number of a floating-point type that is nearest; the number itself where that is 0 or infinite."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = float(dtype.type(number))
    return number if nearest == 0 or math.isinf(nearest) else nearest


def _row_texts(run: Run, place: str) -> npt.NDArray[Any]:
    """Return the text of each row (n,), "" where there is no label."""
    texts = [text or "" for text in label_texts(run, place)]
    return np.array([*texts, ""], object)[run.index]


def _truth_of_numbers(column: Numbers, result: Any, known: Mask | None = None) -> _Truth:
    known = ~np.isnan(column) if known is None else known & ~np.isnan(column)
    return _Truth(known & result, known & ~result)


def _time_of(constant: Constant) -> float | None:
    """Return the seconds of a constant that is an ISO time, None of any other."""
    if not isinstance(constant, str) or is_missing_time(constant):
        return None
    times = _times([constant], "")
    return None if times is None else float(times[0])


def _times(texts: Sequence[Any], place: str) -> npt.NDArray[np.float64] | None:
    """Return seconds of ISO times; None where a text is none."""
    try:
        return seconds(texts, place)
    except InputError:
        return None


def _known_times(texts: Sequence[str | None], place: str) -> npt.NDArray[np.float64]:
    """Return seconds of ISO times, NaN of any other text."""
    times = _times(texts, place)
    if times is not None:
        return times
    written = [text if text is not None and ISO.fullmatch(text) else None for text in texts]
    times = _times(written, place)
    if times is not None:
        return times
    # One is written as a time, but is none: 2024-02-30.
    single = [_times([text], place) for text in written]
    return np.array([math.nan if time is None else time[0] for time in single])


def _row_times(column: "ComparedColumn") -> npt.NDArray[np.float64]:
    """Return the seconds of each row (n,) of text, NaN where it is no time."""
    assert isinstance(column.values, Run)
    times = _known_times(label_texts(column.values, column.place), column.place)
    return np.append(times, np.nan)[column.values.index]


@dataclass(frozen=True, kw_only=True)
class ComparedColumn:
    """What a condition sees of a column of the file `path`: numbers (n,) or labels of some rows.

    Numbers are float64, by the `conversion` of those of the file, whose type is `dtype`. `times` are those of the file
    as it has them. `rows_before` come before these in the file.
    """

    values: Numbers | Run
    name: str
    path: str
    dtype: np.dtype[Any]
    conversion: Conversion
    times: Times | None = None
    rows_before: int = 0

    @property
    def place(self) -> str:
        """Return where it stands, for messages."""
        return f"{self.path}: column {self.name!r}"

    def place_of_label(self, number: int) -> str:
        """Return where the label of this number stands first, for messages."""
        assert isinstance(self.values, Run)
        rows = np.flatnonzero(self.values.index == number)
        return f"{self.place}, data row {self.rows_before + rows[0] + 1:,}" if len(rows) else self.place

    def nearest(self, number: float) -> float:
        """Return the number that a constant would be in this column, rounded as the file's numbers are."""
        if self.dtype == np.float64 or not math.isfinite(number):
            return number
        stored = self.conversion.invert(number)
        nearest = _nearest_number(stored, self.dtype)
        if nearest == stored:
            return number
        return float(self.conversion.convert(np.array([nearest]), self.place)[0])

    def is_label(self, label: Label, constant: Constant) -> bool:
        """Whether a label of this column is what a constant says.

        Numbers are compared as such, also where one of both is text that spells one; but '01' is a name beside 1.
        Text is compared as it is: 1.0 and 1.00 may be names.
        """
        if isinstance(label, str) and isinstance(constant, str):
            return label == constant.strip()
        if isinstance(constant, str) and LEADING_ZERO.match(constant.strip()):
            return False
        if isinstance(label, bool) or isinstance(constant, bool):
            spelled = str(label).lower(), str(constant).strip().lower()
            return spelled[0] == spelled[1] or _number_of_label(label) == _number_of_label(constant)
        return _number_of_label(label) == self.nearest(_number_of_label(constant))

    def find_times(self) -> Times | None:
        """Return the times of the rows (n,), NaN where there is none; None where a value is no time."""
        if not isinstance(self.values, Run):
            is_empty = self.times is None and bool(np.isnan(self.values).all())
            return Times(numbers=self.values, units=ISO_MICROSECONDS) if is_empty else self.times
        try:
            times = microseconds(label_texts(self.values, self.place), self.place)
        except InputError:
            return None
        return Times(numbers=np.append(times, np.nan)[self.values.index], units=ISO_MICROSECONDS)


def compared_attributes(
    readers: Sequence[Reader], condition: Condition, *, kept: ColumnAttributes, stated: Mapping[str, str]
) -> ColumnAttributes:
    """Return the attributes of a condition's columns, in whose units it compares.

    They are those that a data set or model `kept`, else those of the first source that has units. `stated` are units
    in place of a source's own. InputError where a source lacks such a column.
    """
    for reader in readers:
        condition.check_columns(reader)
    return {
        column: kept[column]
        if column in kept
        else first_with_units(stated_attributes(reader, column, stated) for reader in readers)
        for column in condition.columns
    }


def filter_sources(
    readers: Sequence[Reader],
    condition: Condition,
    absent: FillValues,
    *,
    wanted: ColumnAttributes,
    stated: Mapping[str, str],
) -> list["FilteredReader"]:
    """Return the sources with those of their rows that hold for a condition.

    It compares numbers in the units that are `wanted` of its columns. `stated` are units in place of a source's own.
    """
    for reader in readers:
        condition.check_times(reader)
    for left, right in condition.pairs:
        with_numbers = [reader for reader in readers if not reader.is_text(left) and not reader.is_text(right)]
        for reader in with_numbers:
            _check_times_of_pair(reader, left, right, wanted=wanted, stated=stated)
        if len(with_numbers) < len(readers):
            continue  # text, and times that are text, have no units
        if all(_time_units(reader, left, wanted[left], stated) is not None for reader in readers):
            continue
        pair = Conversions()
        pair.add(right, wanted[right], wanted[left], "--where")
        if right in pair.converted:
            problem = f"is compared with {left!r}, but would have to be converted {pair.converted[right]}"
            raise InputError(f"--where: column {right!r}: {problem}; write both columns in the same units.")
    return [FilteredReader(reader, condition, absent, wanted=wanted, stated=stated) for reader in readers]


def _check_times_of_pair(
    reader: Reader,
    left: str,
    right: str,
    *,
    wanted: ColumnAttributes,
    stated: Mapping[str, str],
) -> None:
    """Raise InputError where one of two columns that are compared holds times, and the other none of its calendar."""
    units, other_units = (_time_units(reader, name, wanted[name], stated) for name in (left, right))
    if units is not None and other_units is not None:
        units.conversion_to(other_units, f"--where: {reader.path}: column {left!r}, compared with {right!r},")
    elif units is not None or other_units is not None:
        time, number = (left, right) if units is not None else (right, left)
        remedy = f"state the units of {number!r}, such as --units '{number}=hours since 2000-01-01'"
        problem = f"column {number!r} is compared with the times of {time!r}, but has no units of time"
        raise InputError(f"--where: {reader.path}: {problem}; {remedy}.")


def check_some_left(readers: Sequence[Reader], where: str) -> None:
    """Raise InputError where a condition holds for no row of sources that were read."""
    if where:
        left_out = sum(reader.left_out for reader in readers)
        raise InputError(f"--where {shorten_condition(where)}: holds for none of {left_out:,} rows; correct it.")


class FilteredReader(Reader):
    """The rows of a source that hold for a condition; `left_out` counts the others that were read.

    Values that are among those `absent` are unknown to the condition. `comparison` says how its numbers become those
    in the units that are `wanted`. How a row is compared does not depend on the columns that are read beside it.
    """

    def __init__(
        self,
        reader: Reader,
        condition: Condition,
        absent: FillValues,
        *,
        wanted: ColumnAttributes,
        stated: Mapping[str, str],
    ) -> None:
        super().__init__(reader.path, reader.columns, numbered=reader.numbered)
        self._reader, self._condition, self._absent = reader, condition, absent
        self.remarks = reader.remarks
        self._keeps = True
        """Whether rows are read for which the condition holds, rather than the others."""
        units = {name: _time_units(reader, name, wanted[name], stated) for name in condition.columns}
        self._units = {name: time for name, time in units.items() if time is not None}
        named = [name for name in condition.texts if name not in self._units]
        self._text = [name for name in condition.columns if name in named or reader.has_text(name)]
        self._numbers = [name for name in condition.columns if name not in self._text]
        self.comparison = Conversions()
        for name in condition.columns:
            if name in self._text and reader.is_text(name):
                continue
            if name in reader.time_shifts:
                continue  # compared with times alone, in the units that it has
            self.comparison.add(name, stated_attributes(reader, name, stated), wanted[name], self.path)
            if name in self._text and name in self.comparison.converted:
                problem = f"its values are compared as text, but their units differ ({self.comparison.converted[name]})"
                remedy = "convert them, or state units by --units"
                raise InputError(f"--where: {self.path}: column {name!r}: {problem}; {remedy}.")

    def expand(self, name: str) -> tuple[str, ...]:
        return self._reader.expand(name)

    def resolve(self, names: Sequence[str]) -> tuple[str, ...]:
        return self._reader.resolve(names)

    def dtype(self, column: str) -> np.dtype[Any]:
        return self._reader.dtype(column)

    def is_text(self, column: str) -> bool:
        return self._reader.is_text(column)

    def attributes(self, column: str) -> Mapping[str, str]:
        return self._reader.attributes(column)

    @property
    def time_shifts(self) -> Mapping[str, TimeShift]:
        return self._reader.time_shifts

    def content(self) -> str:
        return self._reader.content()

    def complement(self) -> "FilteredReader":
        """Return a reader of the other rows of the source, which this one leaves out."""
        others = copy(self)
        others._keeps = not self._keeps
        return others

    def _compared_numbers(self, name: str, numbers: Numbers, rows_before: int) -> ComparedColumn:
        """Return a column of numbers, which are those of the file in float64."""
        conversion = self.comparison.by_column.get(name, Conversion())
        units = self._units.get(name)
        if units is not None:
            numbers = np.where(numbers == NAT_NUMBER, np.nan, numbers)
        return ComparedColumn(
            values=conversion.convert(numbers, f"{self.path}: column {name!r}"),
            name=name,
            path=self.path,
            dtype=_number_dtype(self._reader, name),
            conversion=conversion,
            times=None if units is None else Times(numbers=numbers, units=units),
            rows_before=rows_before,
        )

    def _compared_labels(self, name: str, run: Run, rows_before: int) -> ComparedColumn:
        return ComparedColumn(
            values=self._absent.blank_labels(run),
            name=name,
            path=self.path,
            dtype=_number_dtype(self._reader, name),
            conversion=Conversion(),
            rows_before=rows_before,
        )

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        text, numbers = self._text, self._numbers
        every_number = list(dict.fromkeys([*columns, *numbers]))
        every_label = list(dict.fromkeys([*labels, *text]))
        pick = [every_number.index(column) for column in columns]
        compared = [every_number.index(name) for name in numbers]
        self.left_out = kept = 0
        for block in self._reader.blocks(every_number, every_label):
            runs = dict(zip(every_label, block.labels, strict=True))
            before = self.left_out + kept
            values = {name: self._compared_labels(name, runs[name], before) for name in text}
            known = without_given(self._reader, numbers, block.numbers[:, compared], self._absent)
            for name, column in zip(numbers, known.astype(np.float64).T, strict=True):
                values[name] = self._compared_numbers(name, column, before)
            rows = np.flatnonzero(self._condition.holding(values) == self._keeps)
            self.left_out += len(block) - len(rows)
            kept += len(rows)
            if len(rows):
                taken = tuple(runs[label].take(rows) for label in labels)
                yield SourceBlock(block.numbers[rows][:, pick], taken)
        self.rows = kept
        self.found_words = self._reader.found_words


def _number_dtype(reader: Reader, column: str) -> np.dtype[Any]:
    """Return the type that constants are rounded to: of a column of float16 or float32 its own, else float64."""
    if reader.is_text(column):
        return np.dtype(np.float64)
    dtype = reader.dtype(column)
    is_short = dtype.kind == "f" and dtype.itemsize < 8
    return dtype.newbyteorder("=") if is_short else np.dtype(np.float64)


def _date_of(reader: Reader, column: str, number: Constant) -> str:
    """Return the date that a number is in the units of a file; an example where it is none."""
    units = _time_units(reader, column, {}, {})
    value = _spelled_number(number) if isinstance(number, str) else number
    date = None
    if units is not None and math.isfinite(value):
        date = units.date_of(int(value) - reader.time_shifts[column].count)
    return "2024-05-31T12:00:00" if date is None else date.replace(" ", "T")


def _time_units(reader: Reader, column: str, wanted: Mapping[str, str], stated: Mapping[str, str]) -> TimeUnits | None:
    """Return the units of a column of numbers that are times; None of any other.

    They are those that are `stated`, else the source's own, else those that are `wanted` of it.
    """
    if reader.has_text(column):
        return None
    where = f"{reader.path}: column {column!r}"
    attributes = stated_attributes(reader, column, stated)
    if "units" not in attributes:
        attributes = dict(wanted)
    return time_units(attributes.get("units", ""), attributes.get("calendar", ""), where)
