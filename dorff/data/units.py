"""Units of columns, as the CF conventions have them: kept with data, compared and converted.

Every conversion is an affine map of float64 numbers. Units of time ("hours since 2000-01-01") are read here and placed
in their calendar by cftime; other units are those of UDUNITS, by pint with cf_xarray's registry, which is imported only
where two texts differ.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.calendars import date_text
from dorff.data.resolutions import Resolution
from dorff.errors import InputError
from dorff.errors.shown import UNPRINTABLE

FloatArray = npt.NDArray[np.float64]
ColumnAttributes = dict[str, dict[str, str]]  # by column

#: The attributes of a column that a data set and a model keep.
ATTRIBUTES: Final = ("units", "calendar", "standard_name", "long_name")
NO_UNITS: Final = "none"  # stated in place of units that are not to count
#: How a user of the command line states units; estimators have a remedy of their own.
OPTION: Final = "--units (none: numbers as they are)"

_CALENDARS: Final = {"": "standard", "gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
_KNOWN_CALENDARS: Final = ("standard", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day")
_GREGORIAN: Final = ("standard", "proleptic_gregorian")  # the same dates since October 15, 1582
_SECOND: Final = 10**9  # in nanoseconds
_DAY: Final = 86_400 * _SECOND
_GREGORIAN_START: Final = -141_427 * _DAY  # October 15, 1582, from 1970

GREGORIAN_START_SECONDS: Final = _GREGORIAN_START // _SECOND
_TIME_UNITS: Final = {
    "nanosecond nanosec nsec ns": 1,
    "microsecond microsec usec us µs μs": 10**3,
    "millisecond millisec msec ms": 10**6,
    "second sec s": _SECOND,
    "minute min": 60 * _SECOND,
    "hour hr h": 3600 * _SECOND,
    "day d": _DAY,
    "week wk": 7 * _DAY,
}
_NANOSECONDS: Final = {
    spelling: length
    for names, length in _TIME_UNITS.items()
    for name in names.split()
    for spelling in (name, f"{name}s" if len(name) > 1 else name)
}
# Units whose length depends on the calendar, and the days that they have where it is the same for all of them.
_CALENDAR_UNITS: Final = {
    "month": {"360_day": 30},
    "months": {"360_day": 30},
    "common_year": {"noleap": 365},
    "common_years": {"noleap": 365},
    "year": {},
    "years": {},
}

_SINCE: Final = re.compile(r"(?P<unit>\S+)\s+(?P<word>since|after|from|ref|@)\s+(?P<origin>.+)", re.IGNORECASE)
_CLAIMS_TIME: Final = re.compile(r"\bsince\b|\bas\s+%?[yY]|%Y|\byyyy", re.IGNORECASE)
_ORIGIN: Final = re.compile(
    r"(?P<year>[+-]?\d{1,6})-(?P<month>\d\d?)(?:-(?P<day>\d\d?))?"
    r"(?:(?:T|\s+)(?P<hour>\d\d?)(?::(?P<minute>\d\d?)(?::(?P<second>\d\d?)(?P<fraction>\.\d*)?)?)?"
    r"(?:\s*(?P<zone>Z|UTC|GMT|[+-]\d\d?(?::?\d\d)?)|\s+(?P<bare_zone>\d\d?:\d\d))?|\s*(?P<utc>Z|UTC|GMT))?",
    re.IGNORECASE,
)
_ZONE: Final = re.compile(r"(?P<sign>[+-]?)(?P<hours>\d\d?):?(?P<minutes>\d\d)?")

# Spellings that are common, by what the registry knows.
_SPELLINGS: Final = {
    "degC": "deg_c degree_c degrees_c degree_celsius degrees_celsius deg_celsius celsius celcius degc degreec oc °c ºc",
    "degF": "deg_f degree_f degrees_f degree_fahrenheit degrees_fahrenheit fahrenheit degf °f",
    "K": "kelvin kelvins deg_k degk degrees_kelvin degree_kelvin degrees_k degree_k",
    "PSU": "psu pss pss-78 pss78 pss-1978 pss_78 practical_salinity_unit practical_salinity_units",
    "mbar": "mb mbar millibar millibars",
    "knot": "kt kts knot knots",
}
_SPELLED: Final = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_NUMBER: Final = re.compile(r"(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)(?:[ *]+(?P<rest>\D.*))?")
_UNSAFE: Final = re.compile(r"\d\s*(?:\*\*|\^)|(?:\*\*|\^)\s*\(?[+-]?\d{3}|.{100}", re.DOTALL)  # powers that take long
_DIFFERENCE: Final = re.compile(r"anomal|differen|tendency|standard_error|uncertaint|range", re.IGNORECASE)


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return those of `ATTRIBUTES` that are text, from the attributes of a variable or an array."""
    texts = {name: _text(attributes[name]) for name in ATTRIBUTES if name in attributes}
    return {name: text for name, text in texts.items() if text}


def _text(value: Any) -> str:
    """Return an attribute's text, also where it is bytes or an array of one text; "" where it is none.

    Spaces come for control characters and line ends: it is written to files and pages.
    """
    values = np.asarray(value).reshape(-1)
    item = values[0] if len(values) == 1 else ""
    if isinstance(item, bytes):
        item = item.decode("utf-8", "replace")
    return " ".join(UNPRINTABLE.sub(" ", item).split()) if isinstance(item, str) else ""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The map `(value * factor + shift) / divisor` of numbers from one unit to another.

    Values before `earliest` have no counterpart: the calendars of the two units differ there.
    """

    factor: float = 1.0
    shift: float = 0.0
    divisor: float = 1.0
    earliest: float = -math.inf

    @property
    def is_identity(self) -> bool:
        """Whether values stay as they are."""
        return (self.factor, self.shift, self.divisor) == (1.0, 0.0, 1.0)

    @property
    def zero(self) -> float:
        """The number in the other unit that 0 becomes."""
        return self.shift / self.divisor

    def convert(self, values: npt.NDArray[Any], where: str) -> FloatArray:
        """Return values of any shape in the other unit; InputError, naming `where`, at one that is too early."""
        numbers = values.astype(np.float64)
        self.check(numbers, where)
        if self.is_identity:
            return numbers
        converted: FloatArray = (numbers * self.factor + self.shift) / self.divisor
        return converted

    def check(self, values: npt.NDArray[Any], where: str) -> None:
        """Raise InputError, naming `where`, at a value that is too early."""
        if self.earliest > -math.inf and (values < self.earliest).any():
            problem = "has times before October 15, 1582, where the calendars standard and proleptic_gregorian differ"
            raise InputError(f"{where}: {problem}; write them by the calendar of the other rows.")

    def invert(self, number: float) -> float:
        """Return the number that becomes this one in the other unit, but for rounding."""
        return (number * self.divisor - self.shift) / self.factor


@dataclass(frozen=True, kw_only=True)
class TimeShift:
    """What is subtracted from times, a whole `count`, so that they have `units` of a later origin."""

    count: int
    units: str


@dataclass(frozen=True, kw_only=True)
class TimeUnits:
    """Units of time since an origin, by a calendar: `unit_ns` long, the origin `origin_ns` after 1970-01-01 there."""

    unit_ns: int
    origin_ns: int
    calendar: str

    def conversion_to(self, other: "TimeUnits", where: str) -> Conversion:
        """Return how times become those of `other`; InputError, naming `where`, where the calendars differ."""
        earliest = -math.inf
        if self.calendar != other.calendar:
            if not {self.calendar, other.calendar} <= set(_GREGORIAN):
                problem = f"has times by the calendar {self.calendar}, but {other.calendar} was wanted"
                raise InputError(f"{where}: {problem}; times of two calendars are not converted: use one for all.")
            earliest = (_GREGORIAN_START - self.origin_ns) / self.unit_ns
        shift = self.origin_ns - other.origin_ns
        common = math.gcd(self.unit_ns, other.unit_ns, shift)
        return Conversion(
            factor=float(self.unit_ns // common),
            shift=float(shift // common),
            divisor=float(other.unit_ns // common),
            earliest=earliest,
        )

    def number_of(self, date: str) -> float | None:
        """Return the number that a date, 2024-05-31T12:00:00 say, has in these units; None where it is none."""
        date_ns = _origin(date, self.calendar)
        return None if date_ns is None else (date_ns - self.origin_ns) / self.unit_ns

    def date_of(self, number: int) -> str | None:
        """Return the date, to the second, of a whole number in these units; None where it is none."""
        return date_text((number * self.unit_ns + self.origin_ns) // _SECOND, self.calendar)

    def shift_to_day(self, time: int, units: str) -> TimeShift | None:
        """Return how times are counted from the start of the day of `time`; None where that is no whole count.

        `units` is the text that these units are of.
        """
        day_ns = (time * self.unit_ns + self.origin_ns) // _DAY * _DAY
        count, rest = divmod(day_ns - self.origin_ns, self.unit_ns)
        day = date_text(day_ns // _SECOND, self.calendar)
        match = _SINCE.fullmatch(units.strip())
        if rest or day is None or match is None:
            return None
        return TimeShift(count=count, units=f"{match['unit']} since {day}")

    @property
    def seconds(self) -> "TimeUnits":
        """Seconds since 1970 by the same calendar."""
        return TimeUnits(unit_ns=_SECOND, origin_ns=0, calendar=self.calendar)

    @property
    def unit_seconds(self) -> float:
        """The length of the unit in seconds."""
        return self.unit_ns / _SECOND

    @property
    def is_gregorian(self) -> bool:
        return self.calendar in _GREGORIAN


#: Units of longitudes by the CF conventions, and with a blank.
_EAST: Final = re.compile(r"degrees?[_ ]?e(ast)?")
#: How dates and times that are text count: ISO 8601 has the proleptic Gregorian calendar.
ISO_SECONDS: Final = TimeUnits(unit_ns=_SECOND, origin_ns=0, calendar="proleptic_gregorian")
ISO_MICROSECONDS: Final = TimeUnits(unit_ns=1000, origin_ns=0, calendar="proleptic_gregorian")


def unit_of_lengths(attributes: Mapping[str, str]) -> str | None:
    """Return the unit of differences of a column that has these attributes: of times since an origin the unit of time.

    None if the column has no unit.
    """
    units = attributes.get("units", "").strip()
    if units in ("", "1", NO_UNITS):
        return None
    since = _SINCE.fullmatch(units)
    return since["unit"] if since else units


def time_units(units: str, calendar: str, where: str) -> TimeUnits | None:
    """Return what a text such as "hours since 2000-01-01" says (CF conventions, 4.4); None of units of anything else.

    InputError, naming `where`, for what claims to be a time and cannot be understood.
    """
    match = _SINCE.fullmatch(units.strip())
    word = match["unit"].lower() if match else ""
    is_time = word in _NANOSECONDS or word in _CALENDAR_UNITS
    if not is_time and not _CLAIMS_TIME.search(units):
        return None
    shown = f"units {units!r}" + (f", calendar {calendar!r}" if calendar else "")
    remedy = f"write them as hours since 2000-01-01 00:00:00, or state them by {OPTION}"
    kind = calendar.strip().lower()
    kind = _CALENDARS.get(kind, kind)
    if kind not in _KNOWN_CALENDARS:
        raise InputError(f"{where}: {shown}: wanted one of the calendars {', '.join(_KNOWN_CALENDARS)}; {remedy}.")
    if match is None or not is_time:
        raise InputError(f"{where}: {shown}: cannot be understood as a time; {remedy}.")
    if word in _CALENDAR_UNITS:
        days = _CALENDAR_UNITS[word].get(kind)
        if days is None:
            problem = f"{word} have no fixed length in the calendar {kind}"
            raise InputError(f"{where}: {shown}: {problem}; {remedy}.")
        unit_ns = days * _DAY
    else:
        unit_ns = _NANOSECONDS[word]
    origin_ns = _origin(match["origin"].strip(), kind)
    if origin_ns is None:
        raise InputError(f"{where}: {shown}: its origin cannot be understood as a date and time; {remedy}.")
    return TimeUnits(unit_ns=unit_ns, origin_ns=origin_ns, calendar=kind)


def _origin(text: str, calendar: str) -> int | None:
    """Return the nanoseconds from 1970-01-01 to a date and time of a calendar; None where it is none there.

    cftime reads dates too, but passes over what it does not know: one-digit zones, names of zones, hours alone.
    """
    import cftime

    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (
        int(match[name] or default)
        for name, default in (("year", 0), ("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0))
    )
    zone = match["zone"] or match["bare_zone"] or "Z"
    offset = _ZONE.fullmatch(zone)
    minutes = 0
    if offset is not None:
        minutes = 60 * int(offset["hours"]) + int(offset["minutes"] or 0)
        minutes = -minutes if offset["sign"] == "-" else minutes
    fraction = Fraction(f"0{match['fraction']}") if len(match["fraction"] or "") > 1 else Fraction(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cftime.CFWarning)  # years before 1, which come
        try:
            date = cftime.datetime(year, month, day, hour, minute, second, calendar=calendar)
            since = int(cftime.date2num(date, "seconds since 1970-01-01", calendar=calendar))
        except (ValueError, OverflowError):
            return None
    return (since - 60 * minutes) * _SECOND + round(fraction * _SECOND)


def units_conversion(source: Mapping[str, str], target: Mapping[str, str], where: str) -> Conversion | None:
    """Return how numbers of a column with the attributes `source` become those of one with `target`.

    None where one of them says no units. InputError, naming `where`, where units cannot be converted.
    """
    given, wanted = source.get("units", ""), target.get("units", "")
    if not given or not wanted:
        return None
    time = time_units(given, source.get("calendar", ""), where)
    if given == wanted and time is None:
        return Conversion()
    wanted_time = time_units(wanted, target.get("calendar", ""), where)
    if time is not None and wanted_time is not None:
        return time.conversion_to(wanted_time, where)
    remedy = f"convert it, or state its units by {OPTION}"
    problem = f"is in {given!r}, but {wanted!r} was wanted"
    if time is not None or wanted_time is not None:
        raise InputError(f"{where}: {problem}: only one of them is a time; {remedy}.")
    conversion = _affine(given, wanted)
    if isinstance(conversion, str):
        raise InputError(f"{where}: {problem}: {conversion}; {remedy}.")
    about = " ".join(each.get(name, "") for each in (source, target) for name in ("standard_name", "long_name"))
    if conversion.shift and _DIFFERENCE.search(about):
        raise InputError(f"{where}: {problem}, and it looks like a difference, whose zero is the same; {remedy}.")
    return conversion


@cache
def _affine(given: str, wanted: str) -> Conversion | str:
    """Return the conversion between units that are no times; or why there is none."""
    known = {text: _registered(text) for text in (given, wanted)}
    for text, registered in known.items():
        if registered is None:
            return f"{text!r} is no unit that is known"
    source, target = known[given], known[wanted]
    assert source is not None and target is not None
    number, unit = source
    wanted_number, wanted_unit = target
    registry = _registry()
    # By roots, not dimensions: of an angle and of a ratio the latter are the same.
    if registry.get_root_units(unit)[1] != registry.get_root_units(wanted_unit)[1]:
        return "they measure different things"
    points = np.array([0.0, 1.0, 2.0]) * number
    try:
        zero, single, double = registry.Quantity(points, unit).to(wanted_unit).magnitude / wanted_number
    except Exception:  # whatever pint raises of logarithms and of offsets within products
        return "no conversion between them is known"
    slope = (double - zero) / 2
    if not np.allclose(single - zero, slope, rtol=1e-9) or not np.isfinite([zero, slope]).all() or not slope:
        return "their conversion is not linear"
    if zero:
        # The difference of shifted numbers lost digits.
        slope = float(Fraction(float(slope)).limit_denominator(10**6))
        return Conversion(factor=slope, shift=float(zero))
    slope = float(double) / 2
    inverse = round(1 / slope) if slope < 1 else 1
    if math.isclose(slope * inverse, 1.0, rel_tol=1e-12):
        return Conversion(divisor=float(inverse))
    whole = float(round(slope))
    return Conversion(factor=whole if math.isclose(slope, whole, rel_tol=1e-12) else slope)


def _registry() -> Any:
    """Return the units of pint and UDUNITS."""
    from cf_xarray.units import units

    return units


def _registered(text: str) -> tuple[float, Any] | None:
    """Return a number and a unit of the registry that a text means, such as 0.001 and "1" for 1e-3; None if unknown."""
    name = " ".join(text.split())
    match = _NUMBER.fullmatch(name)
    number = float(match["number"]) if match else 1.0
    rest = (match["rest"] or "1") if match else name
    plain = rest.lower().replace("deg.", "deg").replace("degrees ", "degrees_").replace("degree ", "degree_")
    spelled = _SPELLED.get(plain.replace("deg ", "deg_").replace(" ", "_"))
    if not number or _UNSAFE.search(name):
        return None
    # UDUNITS multiplies by a point too: m.s-1.
    candidates = [spelled] if spelled else [rest, re.sub(r"(?<=[A-Za-z0-9])\.(?=[A-Za-z])", " ", rest), rest.lower()]
    for candidate in candidates:
        try:
            return number, _registry().parse_units(candidate)
        except Exception:  # whatever pint raises: the text may be anything
            continue
    return None


@dataclass(kw_only=True)
class Conversions:
    """How the columns of some rows become those of a data set or model, and what a user should know of it.

    `converted` and `assumed` say of columns which units were converted, and which are known on one side alone.
    `resolutions` say of those converted how closely their values are compared with others.
    """

    by_column: dict[str, Conversion] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)

    def add(self, column: str, source: Mapping[str, str], target: Mapping[str, str], where: str) -> None:
        """Compare the units of a column with those wanted; InputError, naming `where`, if they cannot be converted."""
        conversion = units_conversion(source, target, f"{where}: column {column!r}")
        given, wanted = source.get("units", ""), target.get("units", "")
        if conversion is None:
            if given or wanted:
                self.assumed[column] = f"{given or 'none'} here, {wanted or 'none'} there"
            return
        if not conversion.is_identity or conversion.earliest > -math.inf:
            self.by_column[column] = conversion
        if not conversion.is_identity:
            self.converted[column] = f"from {given} to {wanted}"

    def union(self, other: "Conversions") -> "Conversions":
        """Return the conversions of both, those of `self` where they share a column."""
        return Conversions(
            by_column={**other.by_column, **self.by_column},
            converted={**other.converted, **self.converted},
            assumed={**other.assumed, **self.assumed},
        )

    def convert(self, numbers: npt.NDArray[Any], columns: Sequence[str], where: str) -> npt.NDArray[Any]:
        """Return rows of numbers (n, columns), of the same type, whose columns are converted."""
        converted = numbers.copy()
        for place, column in enumerate(columns):
            if column in self.by_column:
                conversion = self.by_column[column]
                converted[:, place] = conversion.convert(numbers[:, place], f"{where}: column {column!r}")
        return converted


def first_with_units(given: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the first attributes that have units; without such the first that are any, or {}."""
    known = [dict(attributes) for attributes in given if attributes]
    with_units = [attributes for attributes in known if "units" in attributes]
    return next(iter([*with_units, *known]), {})


def is_longitude(name: str, attributes: Mapping[str, str]) -> bool:
    """Return whether a column has longitudes in degrees, by its units or, without any, its name."""
    units = attributes.get("units", "").lower()
    is_named = name.lower().startswith("lon")
    return _EAST.fullmatch(units) is not None or (is_named and (not units or units.startswith("deg")))


def conversion_notices(conversions: Sequence[Conversions], compared: Sequence[Conversions] = ()) -> list[str]:
    """Return sentences for a user on the conversions of one or more sources, each column named once in a sentence.

    `compared` are those of columns in a condition, of the same sources.
    """
    sentences = []
    both = [*conversions] if not compared else [a.union(b) for a, b in zip(conversions, compared, strict=True)]
    if converted := _first_by_column([conversion.converted for conversion in both]):
        sentences.append(f"units are converted: {converted}")
    if assumed := _first_by_column([conversion.assumed for conversion in both]):
        problem = "units are known on one side alone, so that numbers are taken as they are"
        sentences.append(f"{problem}: {assumed}; state them by --units where that is wrong")
    return sentences


def _first_by_column(texts: Sequence[Mapping[str, str]]) -> str:
    """Return the first text of each column, and how many further sources have one."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for by_column in texts:
        first = {**by_column, **first}
        counts.update(list(by_column))
    more = {column: f" (and {count - 1} more)" if count > 1 else "" for column, count in counts.items()}
    return "; ".join(f"{column} {text}{more[column]}" for column, text in first.items())
