"""What is known of the columns of inputs and targets: names, kinds and units.

A fit keeps the `Columns` of its inputs and of its targets. Those of later rows are compared
with them, and numbers in other units are converted, by the rules that hold for files too
(`dorff.data.units`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dask.array as da
import numpy as np

from dorff.data.units import OPTION, Conversion, time_units, units_conversion
from dorff.errors import InputError
from dorff.estimators.arrays import StoredRows
from dorff.moments import FloatArray

NUMBER: Final = "number"
TIME: Final = "time"
DURATION: Final = "duration"

#: The calendar of datetime64, which xarray decodes dates of the calendar "standard" to as well.
DATETIME_CALENDAR: Final = "proleptic_gregorian"
_IN_PYTHON: Final = "the attribute units (without it numbers are taken as they are)"

Conversions = Mapping[int, Conversion]  # by the place of a column


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What is known of some columns; a field is None where nothing is known of any.

    `kinds` are "number", "time", "duration" or "time (calendar)" of a calendar of climate
    models. `attributes` are those of the CF conventions, "units" and "calendar" among them.
    Those of times and durations are what their seconds are.
    """

    names: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    attributes: tuple[Mapping[str, str], ...] | None = None

    def check_units(self, values: str) -> None:
        """Check units that claim to be a time since an origin; InputError, naming `values`, at one that is none."""
        for place, attributes in enumerate(self.attributes or ()):
            where = f"{values}, {self._label(place)}"
            try:
                time_units(attributes.get("units", ""), attributes.get("calendar", ""), where)
            except InputError as error:
                raise _in_python(error) from None

    def check_order(self, fitted: "Columns", values: str) -> None:
        """InputError, naming `values`, where a name of the fit is that of another column now."""
        names, fitted_names = self.names or (), fitted.names or ()
        for place, (name, fitted_name) in enumerate(zip(names, fitted_names, strict=False)):
            if name != fitted_name and name in fitted_names:
                problem = f"column {place} is {name!r}, but was {fitted_name!r} in the fit"
                raise InputError(f"{values}: {problem}; give the columns in the order {list(fitted_names)}")

    def conversions_to(self, fitted: "Columns", values: str, *, any_names: bool = False) -> Conversions:
        """Return the conversions to the units of the fit that change numbers, or must check them.

        There are none of columns with other names, which scikit-learn refuses, unless `any_names`:
        then columns are those of the fit by their places.

        Raises
        ------
        InputError
            A column cannot be converted, or holds times where the fit had numbers, or the
            reverse. It names `values`.
        """
        width = len(self.kinds or fitted.kinds or ())
        kinds, attributes = self._filled(width)
        fitted_kinds, fitted_attributes = fitted._filled(width)
        if not len(kinds) == len(fitted_kinds) == width:
            return {}  # another number of columns, which scikit-learn refuses
        if not any_names and self.names and fitted.names and self.names != fitted.names:
            return {}

        conversions = {}
        for place in range(width):
            where = f"{values}, {self._label(place)}"
            source, target = attributes[place], fitted_attributes[place]
            if kinds[place] != fitted_kinds[place] and not (source.get("units") and target.get("units")):
                remedy = "give times where the fit had times and numbers where it had numbers, or fit again"
                problem = f"expected {fitted_kinds[place]} values, as in the fit, got {kinds[place]} values"
                raise InputError(f"{where}: {problem}; {remedy}")
            try:
                conversion = units_conversion(source, target, where)
            except InputError as error:
                raise _in_python(error) from None
            if conversion is not None and conversion != Conversion():
                conversions[place] = conversion
        return conversions

    def _filled(self, width: int) -> tuple[tuple[str, ...], tuple[Mapping[str, str], ...]]:
        """Return kinds and attributes, where they are not known those of plain numbers."""
        return self.kinds or (NUMBER,) * width, self.attributes or ({},) * width

    def _label(self, place: int) -> str:
        return f"column {place}" if self.names is None else f"column {self.names[place]!r}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapted:
    """Inputs or targets: `values` that scikit-learn checks, or `Deferred`, and what is known of their columns.

    Inputs in memory whose columns have names are a pandas data frame.
    """

    values: Any
    columns: Columns = Columns()

    def converted_to(self, fitted: Columns, name: str, *, any_names: bool = False) -> Any:
        """Return the values in the units of the fit; lazily, where they are.

        Raises
        ------
        InputError
            The columns are not those of the fit: see `Columns.conversions_to`.
        """
        return convert_columns(self.values, self.columns.conversions_to(fitted, name, any_names=any_names), name)


def unique_names(names: Sequence[Any], values: str) -> tuple[str, ...] | None:
    """Return the names of columns, None where one is no text; InputError, naming `values`, where two are alike."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        shown = ", ".join(map(repr, repeated))
        raise InputError(f"{values}: more than one column is named {shown}; rename them, or leave one out")
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def seconds_attributes(kind: str, calendar: str) -> dict[str, str]:
    """Return the attributes that say what the seconds of times, or of durations, are."""
    if kind == DURATION:
        return {"units": "s"}
    return {"units": "seconds since 1970-01-01", "calendar": calendar}


def convert_columns(values: Any, conversions: Conversions, name: str) -> Any:
    """Return a copy of values (n,) or (n, columns) with some columns converted; lazily, where they are lazy."""
    if not conversions:
        return values
    if isinstance(values, StoredRows):
        return replace(values, conversions=conversions)
    if isinstance(values, da.Array):
        rows = values.rechunk({1: -1}) if values.ndim == 2 else values
        meta = np.empty((0,) * values.ndim)
        return da.map_blocks(convert_numbers, rows, conversions, name, dtype=np.float64, meta=meta)
    converted = convert_numbers(values, conversions, name)
    # A data frame, which scikit-learn reads the names from.
    named = not isinstance(values, np.ndarray | list | tuple)
    return type(values)(converted, columns=values.columns) if named else converted


def convert_numbers(values: Any, conversions: Conversions, name: str) -> FloatArray:
    """Return numbers (n,) or (n, columns) with some columns converted, as a copy."""
    try:
        converted: FloatArray = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers ({error}); convert them first") from None
    columns = converted[:, None] if converted.ndim == 1 else converted
    for place, conversion in conversions.items():
        columns[:, place] = conversion.convert(columns[:, place], f"{name}, column {place}")
    return converted


def _in_python(error: InputError) -> InputError:
    """Return an error on units whose remedy is a user's of estimators."""
    return InputError(str(error).replace(OPTION, _IN_PYTHON))
