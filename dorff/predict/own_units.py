"""Columns of a table in its own units and times, which predictions written beside them keep."""

from collections.abc import Mapping
from dataclasses import dataclass

from dorff.data.encoding import Encoding, stated_attributes, time_encoding
from dorff.data.packing import FillValues
from dorff.data.readers import Reader
from dorff.data.units import ColumnAttributes, time_units

#: Text of dates and times: of these seconds a float64 holds a microsecond until the year 2242.
_TEXT_TIMES = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True, kw_only=True)
class OwnUnits:
    """How ingest is to encode the inputs of a table, and the attributes that it is to keep of them.

    `numbers` are the columns of times whose units the table itself does not say: `--units`
    or the model do, and the table has numbers. `clocks` are times that the model knows
    only by their place in a day, week or year.
    """

    encodings: dict[str, Encoding]
    column_attributes: ColumnAttributes
    numbers: frozenset[str]
    clocks: tuple[str, ...]


def find_own_units(
    reader: Reader,
    encodings: Mapping[str, Encoding],
    attributes: ColumnAttributes,
    stated: Mapping[str, str],
    missing: FillValues,
) -> OwnUnits:
    """Return the units that a table has, and those of a model for columns of which it says none.

    Parameters
    ----------
    reader : Reader
        The table.
    encodings, attributes
        Those of the model, by the names that the table has for its inputs.
    stated : mapping
        Units of columns in place of the table's own.
    missing : FillValues
        What stands for none in the table.
    """
    own_encodings, own_attributes = dict(encodings), dict(attributes)
    numbers = set()
    times = {name for name, encoding in encodings.items() if encoding.kind == "time"}
    cycles = {encoding.column for encoding in encodings.values() if encoding.kind == "cycle"}
    columns = dict.fromkeys([*attributes, *sorted(times | cycles)])
    reader.keep_digits([column for column in columns if column not in stated], missing)
    for column in columns:
        if column not in reader.columns:
            continue
        kept = attributes.get(column, {}) | (encodings[column].attributes if column in times else {})
        is_time = column in cycles or _is_time(kept)
        is_text = reader.is_text(column)
        own = _TEXT_TIMES if is_time and is_text else stated_attributes(reader, column, stated)
        if is_time and not is_text and "units" not in reader.attributes(column):
            numbers.add(column)
        if "units" not in own:
            continue
        beside = {name: text for name, text in kept.items() if name not in ("units", "calendar")}
        own_attributes[column] = beside | own
        if is_time and _is_time(own):
            own_encodings[column] = time_encoding(column, own)
    clocks = cycles.difference(times) & own_encodings.keys()
    return OwnUnits(
        encodings=own_encodings,
        column_attributes=own_attributes,
        numbers=frozenset(numbers),
        clocks=tuple(sorted(clocks)),
    )


def _is_time(attributes: Mapping[str, str]) -> bool:
    units, calendar = attributes.get("units", ""), attributes.get("calendar", "")
    return bool(units) and time_units(units, calendar, "times") is not None
