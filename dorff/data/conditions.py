"""Rows of a source that hold for a condition on its columns, such as `PSAL_QC in (1, 2) and depth < 500`.

The grammar is a part of Python's, read by `ast` and never evaluated as Python: comparisons of a column with constants,
`in`, `and`, `or`, `not` and parentheses. What a missing value says is unknown, as in SQL, and rows for which the
condition is unknown are left out.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.encoding import label_texts, seconds, stated_attributes
from dorff.data.labels import Run, label_of, text_of
from dorff.data.packing import FillValues
from dorff.data.readers import Numbers, Reader, SourceBlock
from dorff.data.units import ColumnAttributes, Conversions, first_with_units
from dorff.errors import InputError

LONGEST: Final = 4000  # characters of a condition
QUOTED: Final = re.compile(r"`([^`]+)`")
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
Constant = str | int | float | bool
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
        quoted = list(dict.fromkeys(QUOTED.findall(text)))
        self._names = {f"_column_{number}": name for number, name in enumerate(quoted)}
        places = {name: place for place, name in self._names.items()}
        plain = QUOTED.sub(lambda match: places[match[1]], text)
        try:
            if len(text) > LONGEST:
                raise ValueError(f"it has more than {LONGEST:,} characters")
            self._root = ast.parse(plain.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
            raise self._refusal(f"cannot be read ({reason})") from None
        names = (node.id for node in ast.walk(self._root) if isinstance(node, ast.Name))
        self.columns = tuple(dict.fromkeys(self._names.get(name, name) for name in names))
        self.texts: set[str] = set()  # columns that are compared with text by ==, != and in, and so read as text
        self.pairs: list[tuple[str, str]] = []  # columns that are compared with each other
        self._check(self._root)

    def holding(self, values: Mapping[str, Numbers | Run], where: str) -> Mask:
        """Return which rows (n,) hold for it, by the `values` of its columns; `where` names the file for messages."""
        return self._truth(self._root, values, where).yes

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
            shown = ast.unparse(node)[:60]
            raise self._refusal(f"{shown!r} is no comparison; '&' is written and, '|' or, '~' not, '=' ==")

    def _check_pair(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> None:
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(left, ast.Name):
                raise self._refusal("a column stands before in")
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise self._refusal("after in stand constants in parentheses, such as (1, 2)")
            for element in right.elts:
                self._note_text(left, self._constant(element))
            return
        if type(sign) not in COMPARISONS:
            raise self._refusal("is and is not compare nothing; write == or !=")
        named = [isinstance(side, ast.Name) for side in (left, right)]
        if not any(named):
            raise self._refusal("a comparison needs a column")
        if isinstance(left, ast.Name) and isinstance(right, ast.Name):
            self.pairs.append((self._names.get(left.id, left.id), self._names.get(right.id, right.id)))
        for column, side, is_name in zip((right, left), (left, right), named, strict=True):
            constant = None if is_name else self._constant(side)
            if isinstance(sign, ast.Eq | ast.NotEq):
                self._note_text(column, constant)

    def _note_text(self, column: ast.expr, constant: Constant | None) -> None:
        if isinstance(constant, str) and isinstance(column, ast.Name):
            self.texts.add(self._names.get(column.id, column.id))

    def _constant(self, node: ast.expr) -> Constant:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._constant(node.operand)
            if isinstance(value, int | float):
                return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
            return node.value
        raise self._refusal(f"{ast.unparse(node)[:60]!r} is no column, number or text in quotes")

    def _truth(self, node: ast.expr, values: Mapping[str, Numbers | Run], where: str) -> _Truth:
        if isinstance(node, ast.BoolOp):
            first, *others = (self._truth(part, values, where) for part in node.values)
            for other in others:
                first = first & other if isinstance(node.op, ast.And) else first | other
            return first
        if isinstance(node, ast.UnaryOp):
            return ~self._truth(node.operand, values, where)
        assert isinstance(node, ast.Compare)
        first, *others = (self._compare(*pair, values, where) for pair in _pairs(node))
        for other in others:
            first = first & other
        return first

    def _compare(
        self, left: ast.expr, sign: ast.cmpop, right: ast.expr, values: Mapping[str, Numbers | Run], where: str
    ) -> _Truth:
        if not isinstance(left, ast.Name):
            left, right, sign = right, left, MIRRORED.get(type(sign), type(sign))()
        assert isinstance(left, ast.Name)
        name = self._names.get(left.id, left.id)
        column, place = values[name], f"{where}: column {name!r}"
        if isinstance(right, ast.Name):
            other_name = self._names.get(right.id, right.id)
            other, other_place = values[other_name], f"{where}: column {other_name!r}"
            compare = COMPARISONS[type(sign)]
            if isinstance(column, Run) and isinstance(other, Run) and isinstance(sign, ast.Eq | ast.NotEq):
                texts, other_texts = _row_texts(column, place), _row_texts(other, other_place)
                known = (texts != "") & (other_texts != "")
                result = compare(texts, other_texts)
                return _Truth(known & result, known & ~result)
            column, other = self._numbers(column, place), self._numbers(other, other_place)
            return _of_numbers(column, compare(column, other), ~np.isnan(other))
        if isinstance(sign, ast.In | ast.NotIn):
            assert isinstance(right, ast.Tuple | ast.List | ast.Set)
            none = np.zeros(len(column), bool)
            found = _Truth(none, ~none)
            for element in right.elts:
                found = found | self._equal(column, ast.Eq(), self._constant(element), place)
            return ~found if isinstance(sign, ast.NotIn) else found
        return self._equal(column, sign, self._constant(right), place)

    def _equal(self, column: Numbers | Run, sign: ast.cmpop, constant: Constant, place: str) -> _Truth:
        """Return how a column compares with a constant."""
        compare = COMPARISONS[type(sign)]
        if isinstance(column, Run):
            known = self._labels(column, type(sign), constant, place)
            yes = np.array([*(value is True for value in known), False])
            no = np.array([*(value is False for value in known), False])
            return _Truth(yes[column.index], no[column.index])
        try:
            number = float(constant)
        except ValueError:
            raise self._refusal(f"{place} holds numbers, which {constant!r} is not") from None
        return _of_numbers(column, compare(column, number))

    def _labels(self, run: Run, sign: type[ast.cmpop], constant: Constant, place: str) -> list[bool | None]:
        """Return how each label of a run compares with a constant; None for no label."""
        texts = label_texts(run, place)
        compare = COMPARISONS[sign]
        time = _times([constant], place) if isinstance(constant, str) else None
        times = None if time is None else _times(texts, place)
        if time is not None and times is not None:
            return [None if np.isnan(each) else bool(compare(each, time[0])) for each in times]
        by_name = sign in (ast.Eq, ast.NotEq)
        if by_name and isinstance(constant, str | bool):
            wanted = label_of(constant, place)
            text = "" if wanted is None else text_of(wanted)
            return [None if label is None else bool(compare(label, text)) for label in texts]
        if isinstance(constant, str):
            raise self._refusal(f"{place} holds text, which has no order; == or in (...) compare it")
        if by_name:  # text that is no number differs from every number
            numbers = [None if label is None else _number(label) for label in texts]
        else:
            numbers = [None if label is None else self._number(label, place) for label in texts]
        return [None if number is None else bool(compare(number, constant)) for number in numbers]

    def _numbers(self, column: Numbers | Run, place: str) -> Numbers:
        """Return a column as numbers (n,), also one of text that spells numbers."""
        if not isinstance(column, Run):
            return column
        labels = label_texts(column, place)
        numbers = [math.nan if label is None else self._number(label, place) for label in labels]
        return np.array([*numbers, math.nan])[column.index]

    def _number(self, text: str, place: str) -> float:
        number = _number(text)
        if math.isnan(number):
            problem = f"{place} holds text, and {text!r} is no number; compare it by == or in (...)"
            raise self._refusal(problem)
        return number

    def _refusal(self, problem: str) -> InputError:
        example = "write such as 'PSAL_QC in (1, 2) and depth < 500', odd names between backquotes"
        return InputError(f"--where {self.text[:200]}: {problem}; {example}.")


def _pairs(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Go through the comparisons of a chain, 1 <= a < 3."""
    return zip([node.left, *node.comparators[:-1]], node.ops, node.comparators, strict=True)


def _number(text: str) -> float:
    """Return the number that a text spells, NaN if it is none."""
    try:
        return math.nan if "_" in text else float(text)  # Python's underscores stand in names elsewhere
    except ValueError:
        return math.nan


def _row_texts(run: Run, place: str) -> npt.NDArray[Any]:
    """Return the text of each row (n,), "" where there is no label."""
    texts = [text or "" for text in label_texts(run, place)]
    return np.array([*texts, ""], object)[run.index]


def _of_numbers(column: Numbers, result: Any, known: Mask | None = None) -> _Truth:
    known = ~np.isnan(column) if known is None else known & ~np.isnan(column)
    return _Truth(known & result, known & ~result)


def _times(texts: Sequence[Any], place: str) -> npt.NDArray[np.float64] | None:
    """Return seconds of ISO times; None where a text is none."""
    try:
        return seconds(texts, place)
    except InputError:
        return None


def filter_sources(
    readers: Sequence[Reader],
    condition: Condition,
    absent: FillValues,
    *,
    kept: ColumnAttributes,
    stated: Mapping[str, str],
) -> list["FilteredReader"]:
    """Return the sources with those of their rows that hold for a condition.

    It compares numbers in the units that a data set or model `kept` for a column, else in those of the first source
    that has some. `stated` are units in place of a source's own.
    """
    wanted = {
        column: kept[column]
        if column in kept
        else first_with_units(stated_attributes(reader, column, stated) for reader in readers)
        for column in condition.columns
    }
    for left, right in condition.pairs:
        pair = Conversions()
        pair.add(right, wanted[right], wanted[left], "--where")
        if right in pair.converted:
            problem = f"is compared with {left!r}, but would have to be converted {pair.converted[right]}"
            raise InputError(f"--where: column {right!r}: {problem}; write both columns in the same units.")
    return [FilteredReader(reader, condition, absent, wanted=wanted, stated=stated) for reader in readers]


class FilteredReader(Reader):
    """The rows of a source that hold for a condition; `left_out` counts the others that were read.

    Values that are among those `absent` are unknown to the condition. `comparison` says how its numbers become those
    in the units that are `wanted`.
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
        for name in condition.columns:
            reader.resolve_single(name, "--where")
        self._text = [name for name in condition.columns if name in condition.texts or reader.has_text(name)]
        self._numbers = [name for name in condition.columns if name not in self._text]
        self.comparison = Conversions()
        for name in condition.columns:
            if name in self._text and reader.is_text(name):
                continue
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

    def content(self) -> str:
        return self._reader.content()

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        text, numbers = self._text, self._numbers
        every_number = list(dict.fromkeys([*columns, *numbers]))
        every_label = list(dict.fromkeys([*labels, *text]))
        pick = [every_number.index(column) for column in columns]
        compared = [every_number.index(name) for name in numbers]
        self.left_out = kept = 0
        for block in self._reader.blocks(every_number, every_label):
            runs = dict(zip(every_label, block.labels, strict=True))
            values: dict[str, Numbers | Run] = {name: self._absent.blank_labels(runs[name]) for name in text}
            known = self._absent.without_given(block.numbers[:, compared])
            values |= zip(numbers, self.comparison.convert(known, numbers, self.path).T, strict=True)
            mask = self._condition.holding(values, self.path)
            rows = np.flatnonzero(mask)
            self.left_out += len(block) - len(rows)
            kept += len(rows)
            if len(rows):
                taken = tuple(runs[label].take(rows) for label in labels)
                yield SourceBlock(block.numbers[rows][:, pick], taken)
        self.rows = kept
