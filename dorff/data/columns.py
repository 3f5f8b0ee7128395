"""Which columns of the sources become which arrays of a data set, and with which attributes."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from dorff.data.encoding import Encoded, Encoding, source_column
from dorff.data.labels import CLASSES, GROUPS
from dorff.data.readers import Reader
from dorff.data.stores import check_disjoint
from dorff.data.units import ColumnAttributes, first_with_units, text_attributes
from dorff.errors import InputError

WEIGHTS: Final = "weights"
CODED: Final = (CLASSES, GROUPS)  # arrays of whole numbers that stand for labels
OWN: Final = ("x", "y", CLASSES, WEIGHTS, GROUPS)  # arrays that have an argument each, in the order of these
NAMES: Final = {"x": "inputs", "y": "targets"}
Columns = dict[str, tuple[str, ...]]  # by array


def check_further(array: str, columns: Sequence[str]) -> None:
    """InputError where a further array cannot have this name, or has no columns."""
    if array in OWN or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", array):
        remedy = f"take one of letters, digits, - and _, and none of {', '.join(OWN)}, which have options of their own"
        raise InputError(f"also: {array!r} is no name for a further array; {remedy}.")
    if not columns:
        raise InputError(f"also: {array}: wanted at least one column, got none; name its columns.")


def resolve_columns(readers: Sequence[Encoded], names: Columns) -> Columns:
    """The columns of each array, the same in all sources."""
    if not readers:
        raise InputError("sources: wanted at least one file, got none; name the files to ingest.")
    if not names["x"]:
        raise InputError("inputs: wanted at least one column, got none; name the columns that are inputs.")
    listed = {array: of for array, of in names.items() if of}
    first, *others = ({name: one.resolve(of, labels=name in CODED) for name, of in listed.items()} for one in readers)
    for reader, other in zip(readers[1:], others, strict=True):
        for array, of in first.items():
            if other[array] != of:
                counts = f"{len(other[array])} columns, but for {len(of)} in {readers[0].path}"
                problem = f"{', '.join(listed[array])} stands for {counts}"
                raise InputError(f"{reader.path}: {problem}; all sources need the same columns.")
    return first


def check_dimensions(readers: Sequence[Reader], names: Columns, compared: Sequence[str]) -> None:
    """Raise InputError where weights, groups or columns of a condition have several values for a row.

    All other columns, inputs and targets above all, say what a row is. Those that describe rows
    would repeat them along a further dimension. `compared` are the columns of a condition.
    """
    describing = [(f"--{array}", names.get(array, ())) for array in (WEIGHTS, GROUPS)]
    defining = [name for array, listed in names.items() if array not in (WEIGHTS, GROUPS) for name in listed]
    for reader in readers:
        sources = [source_column([reader], name) for name in defining]
        columns = [column for name in sources for column in reader.expand(name)]
        for option, listed in (*describing, ("--where", compared)):
            for name in listed:
                further = reader.further_dimensions(name, columns)
                if not further:
                    continue
                along = " and ".join(further)
                problem = f"{name!r} has the dimension {along}, and neither inputs nor targets do"
                effect = "so that it has several values for a row"
                remedy = f"name inputs along {along} too to have a row of each"
                if len(further) == 1:
                    remedy += f", or, where it has two dimensions, a column of it such as {name}0"
                raise InputError(f"{option}: {reader.path}: {problem}, {effect}; {remedy}.")


def check_columns(columns: Columns, names: Columns) -> None:
    """Refuse classes, weights or groups that are no single column, of their own where they are labels; and columns
    that are named twice in an array, or are both inputs and targets."""
    for array in (CLASSES, WEIGHTS, GROUPS):
        of = columns.get(array, ("",))
        if len(of) > 1 or of[0].startswith("="):
            came = "a constant" if len(of) == 1 else f"{len(of)} columns"
            what = "weights" if array == WEIGHTS else "labels"
            raise InputError(f"{array}: wanted one column of {what}, got {came}, {', '.join(of[:3])}; name one.")
        for other in (name for name in columns if name not in CODED):
            if array in CODED and (of[0] in columns[other] or (array == CLASSES and of[0] in names[other])):
                remedy = "name it once, as what is to be told from the inputs"
                if array == GROUPS:
                    remedy = f"leave it out here, and write solve.folds.by: {of[0]} in the job"
                raise InputError(f"{array}: column {of[0]!r} is among the {NAMES.get(other, other)} too; {remedy}.")
    for array, of in columns.items():
        for column, count in Counter(of).items():
            if count > 1 and not column.startswith("="):
                raise InputError(f"{NAMES.get(array, array)}: column {column!r} is named {count} times; name it once.")
    check_disjoint(columns["x"], columns.get("y", ()), "column")


def attributes_to_keep(
    readers: Sequence[Encoded],
    columns: Columns,
    encodings: Mapping[str, Encoding],
    kept: ColumnAttributes | None,
) -> ColumnAttributes:
    """Return the CF attributes of each column in the store to be, {} where it has none.

    They are those `kept` of a store that is appended to, or of a model; where there is none, the first source's.
    """
    attributes: ColumnAttributes = {}
    categories = [encoding.column for encoding in encodings.values() if encoding.kind == "one_hot"]
    names = [name for of in columns.values() for name in of if not name.startswith("=")]
    encoded = {column for encoding in encodings.values() for column in encoding.columns if encoding.kind == "time"}
    for column in dict.fromkeys([*names, *categories]):
        first = first_with_units(reader.attributes(column) for reader in readers)
        attributes[column] = first if kept is None or column in encoded else text_attributes(kept.get(column, {}))
    return attributes
