"""Numbers that stand for none: those that a file declares (CF conventions 1.11, 2.5.1, 8.1), and what looks so."""

import base64
import math
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.data.labels import Run
from dorff.errors import InputError

Array = npt.NDArray[Any]
NUMBER_KINDS: Final = "buif"
MOST_COLUMNS: Final = 2**20  # each has a name: what claims more is no table
FAR: Final = 10  # times the range of a column's other values
LARGE: Final = 1e15  # in size: from here on, few in a column far from its others are no data
NEAR_END: Final = 2  # NetCDF fills integers of 64 bits with their minimum and 2
MOST_LARGE: Final = 4  # different ones; more are data
NUMBER_KEYS: Final = (
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "valid_range",
    "valid_min",
    "valid_max",
)
WHOLE: Final = re.compile(r"[+-]?\d{1,20}")
SEPARATORS: Final = re.compile(r"[\s,;]+")
DIGITS: Final = 1e-3  # how far, relatively, a large one may be off by the digits it is written with


def _either(value: float) -> tuple[float, float]:
    """A number, and what is left of it in float32."""
    with np.errstate(over="ignore"):
        return value, float(np.float32(value))


def _usual() -> frozenset[float]:
    """Fill values that are common: of one digit, 7 to 9, ends of integers and floats, powers of ten, NetCDF's own."""
    same = [float(one * whole + "." + one * part) for one in "789" for whole in range(2, 11) for part in range(5)]
    ends = [2.0**bits - one for bits in (15, 16, 31, 32, 63, 64, 127) for one in (0, 1)]
    large = [15 * 2.0**119, *(10.0**power for power in range(20, 39)), float(np.finfo("f4").max), np.finfo("f8").max]
    usual = (one for value in (*same, *ends, *large) for one in (*_either(value), *_either(-value)))
    return frozenset(value for value in usual if np.isfinite(value) and (value < 0 or value >= 999))


USUAL: Final = _usual()


def _is_usual(value: float) -> bool:
    return (abs(value) >= LARGE and any(math.isclose(value, one, rel_tol=DIGITS) for one in USUAL)) or value in USUAL


class FillValues:
    """What stands for no number: numbers and words that were `given`, and numbers that look so. What looks so is one of
    `USUAL`, or of few that are `LARGE`, farther from the column's other values than `FAR` times their range. Others
    have to differ, and what is neither large nor -999 or less has to come twice. But one of `USUAL` that is either
    may also be the only one below zero, or have others all the same, or none. Constants, `=-9999`, do not look so,
    and nothing does where the word none is among those given."""

    def __init__(self, given: Sequence[float | str]) -> None:
        self._all_given = tuple(given)
        self._keep, self._counts = "none" in given, defaultdict[int, Counter[float]](Counter)
        self._low, self._high = np.array(np.inf), np.array(-np.inf)
        texts = [str(value).strip() for value in given if value != "none"]
        if not all(texts):
            raise InputError("--missing: wanted a number or a word, got an empty one; empty fields are none anyway.")
        self._texts = tuple(dict.fromkeys(texts))
        #: Those given that are no numbers, such as M; and those of them that no label has been.
        self.words = tuple(text for text in self._texts if not _is_float(text))
        self.unmet_words = set(self.words)
        numbers = (value for value in given if value != "none" and _is_float(value))
        self.unmet = {float(value): value for value in numbers}  # that no value has been
        self._given = {one: value for value in self.unmet for one in _either(value)}

    def another(self) -> "FillValues":
        """Return one of the same values given that looks at other columns."""
        other = FillValues(self._all_given)
        other.unmet, other.unmet_words = self.unmet, self.unmet_words
        return other

    def look(self, numbers: Array, skipped: Sequence[int] = ()) -> None:
        """Look at further rows (n, columns), but not at the columns in the places `skipped`."""
        if skipped:
            numbers = numbers.copy()
            numbers[:, list(skipped)] = np.nan
        low, high = _extreme(np.fmin, numbers), _extreme(np.fmax, numbers)
        for j, ends in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if any(end in USUAL or abs(end) >= LARGE for end in ends):
                values = self._set_apart(j, numbers[:, j].astype(np.float64))
                low[j], high[j] = values.min(initial=np.inf), values.max(initial=-np.inf)
        self._low, self._high = np.fmin(self._low, low), np.fmax(self._high, high)

    def without_given(self, numbers: Array) -> Array:
        """Return numbers of any shape with NaN in the place of those given."""
        for one, value in self._given.items():
            near = _is_near(numbers, one)
            if near.any():
                self.unmet.pop(value, None)
                numbers = np.where(near, np.nan, numbers).astype(numbers.dtype)
        return numbers

    def find_given(self, integers: Array) -> npt.NDArray[np.bool_]:
        """Return which integers of any shape are among those given.

        To the last digit where these are written as integers.
        """
        found = np.zeros(integers.shape, bool)
        for text in filter(_is_float, self._texts):
            number = float(text)
            is_whole = WHOLE.fullmatch(text) is not None
            rough = integers.astype(np.float64)
            near = integers == int(text) if is_whole else _is_near(rough, number)
            if near.any():
                self.unmet.pop(number, None)
                found |= near
        return found

    def check_ends(self, integers: Array, where: str) -> None:
        """Raise InputError, naming `where`, for integers at the ends of their type."""
        ends = np.iinfo(integers.dtype)
        at_end = integers >= ends.max - NEAR_END
        if ends.min < 0:
            at_end |= integers <= ends.min + NEAR_END
        if at_end.any() and not self._keep:
            value = integers[at_end][0]
            problem = f"has {value}: at the end of its type, it looks like a number that stands for none"
            raise InputError(f"{where} {problem}; {_missing_remedy([str(value)])}.")

    def blank_labels(self, run: Run) -> Run:
        """Further rows of labels without those given."""
        return Run(tuple(map(self._blank_label, run.values)), run.index)

    def _blank_label(self, value: Any) -> Any:
        """Return None for a label that was given, as a number or as text; any other one as it is."""
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if isinstance(text, str):
            text = text.strip()
            if text not in self._texts:
                return value
            self.unmet_words.discard(text)
            value = float(text) if _is_float(text) else text
        elif value not in self._given:
            return value
        self.unmet.pop(self._given.get(value, np.nan), None)
        return None

    def _set_apart(self, j: int, values: Array) -> Array:
        """Count what may be fill values of a column; returns what is none."""
        counts, values = self._counts[j], values[np.isfinite(values)]
        apart = np.isin(values, list(USUAL)) | (np.abs(values) >= LARGE)
        codes, times = np.unique(values[apart], return_counts=True)
        counts.update(dict(zip(codes.tolist(), times.tolist(), strict=True)))
        large = [value for value in counts if abs(value) >= LARGE]
        data = large if len(large) > MOST_LARGE else []
        for value in data:
            del counts[value]
        return np.append(values[~apart], data)

    def check(self, where: str, columns: Sequence[str]) -> None:
        """InputError, for the files `where`, where one of the columns holds what looks like one."""
        seen = [
            (columns[j], repr(value).removesuffix(".0"), self._counts[j][value])
            for j in sorted(self._counts)
            if columns[j][0] != "="
            for value in self._look_so(j)
        ]
        if seen and not self._keep:
            each = "; ".join(f"column {name!r} has {value} in {count:,} rows" for name, value, count in seen[:3])
            remedy = _missing_remedy(value for _, value, _ in seen)
            problem = "far from the other values there, it looks like a number that stands for none"
            raise InputError(f"{where}: {each}: {problem}; {remedy}.")

    def _look_so(self, j: int) -> Iterator[float]:
        low, high = self._low[j], self._high[j]
        for value in sorted(self._counts[j], key=lambda value: (_is_usual(value), abs(value))):
            large, far = abs(value) >= LARGE, max(low - value, value - high) > FAR * (high - low)
            sure = large or value <= -999
            alone = sure and _is_usual(value) and (far or value < 0 <= low)
            if alone or (far and low < high and (sure or self._counts[j][value] > 1)):
                yield value
            elif large:
                low, high = min(low, value), max(high, value)


def _missing_remedy(values: Iterable[str]) -> str:
    """Say how to name numbers that stand for none."""
    flags = " ".join(f"--missing {value}" for value in dict.fromkeys(values))
    return f"give {flags} to have NaN in its place, or --missing none to keep it"


def _is_near(numbers: Array, given: float) -> npt.NDArray[np.bool_]:
    """Return which numbers are one that was given, but for the digits that a large one may lack."""
    return np.isclose(numbers, given, DIGITS, 0) if abs(given) >= LARGE else np.asarray(numbers == given)


def _is_float(value: float | str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _extreme(least: np.ufunc, numbers: Array) -> Array:
    """(columns,) of numbers (n, columns): 64 rows side by side first, which is some ten times as fast."""
    whole, columns = len(numbers) // 64 * 64, numbers.shape[1]
    if whole and numbers.flags.c_contiguous:
        wide = least.reduce(numbers[:whole].reshape(-1, 64 * columns), axis=0)
        numbers = np.concatenate([wide.reshape(64, columns), numbers[whole:]])
    return np.asarray(least.reduce(numbers, axis=0))


@dataclass(frozen=True)
class Packing:
    """Turns stored values into numbers: `stored * scale + offset`, NaN for fill values and outside `low` to `high`.

    Integers are taken as `unsigned` or `signed` of the same bytes where that is said.
    """

    fills: tuple[float, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unsigned: bool = False
    low: float = -np.inf
    high: float = np.inf
    # Not shown: what is shown names the passes over stores that were there before this was known.
    signed: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, attributes: Mapping[str, Any], stored: np.dtype[Any], where: object) -> Self:
        """Read the attributes by which the CF conventions (2.5.1, 8.1) and the NetCDF user's guide (B) pack numbers.

        Numbers are `stored` as this type. The attributes are `_FillValue`, `missing_value`,
        `scale_factor`, `add_offset`, `_Unsigned`, `valid_range`, `valid_min` and
        `valid_max`, as numbers or as text.
        Bounds that are whole numbers are of stored values.

        Raises
        ------
        InputError
            One is no number, or there are too many: `where` says of what.
        """
        numbers = {key: _numbers(attributes.get(key), f"{where}: its attribute {key}") for key in NUMBER_KEYS}
        fills = [*numbers["_FillValue"].tolist(), *numbers["missing_value"].tolist()]
        scale = _single(numbers["scale_factor"], 1.0, f"{where}: its attribute scale_factor")
        offset = _single(numbers["add_offset"], 0.0, f"{where}: its attribute add_offset")
        unsigned = ",".join(_texts(attributes.get("_Unsigned", ""))).lower()
        packed = (scale, offset, _integers(stored, unsigned == "true", unsigned == "false"))

        ends = _bounds(numbers["valid_range"], *packed)
        if len(ends) == 1 or len(ends) > 2:
            came = ", ".join(map(str, ends[:5]))
            raise InputError(f"{where}: its attribute valid_range: wanted two numbers, got {came}; correct it.")
        if not ends:
            least, most = (_bounds(numbers[key], *packed)[:1] for key in ("valid_min", "valid_max"))
            absent = math.copysign(math.inf, scale)
            ends = [*(least or [-absent]), *(most or [absent])]
        return cls(
            # A float, which is how it is shown, unless that is another number.
            fills=tuple(dict.fromkeys(float(f) if float(f) == f else f for f in fills if f == f)),
            scale=scale,
            offset=offset,
            unsigned=unsigned == "true",
            low=min(ends),
            high=max(ends),
            signed=unsigned == "false",
        )

    @property
    def plain(self) -> bool:
        """Whether stored values are the numbers themselves."""
        return self == Packing()

    def keeps_integers(self, stored: np.dtype[Any]) -> bool:
        """Whether decoded values are the stored integers, of 64 bits, or none."""
        is_whole = (self.scale, self.offset, self.unsigned, self.signed) == (1.0, 0.0, False, False)
        return is_whole and stored.kind in "iu" and stored.itemsize == 8

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """The type of decoded values: fills and bounds alone keep a float's type, all else gives float64."""
        if self.plain or (stored.kind == "f" and self.scale == 1 and self.offset == 0):
            return stored
        return np.dtype(np.float64)

    def decode(self, stored: Array) -> Array:
        """Decode stored values of any shape; a plain packing returns its argument."""
        if self.plain:
            return stored
        stored = stored.view(_integers(stored.dtype, self.unsigned, self.signed))
        # A copy even where nothing changes type: the fills are overwritten below.
        values = stored.astype(self.dtype(stored.dtype))
        values = values * self.scale + self.offset if (self.scale, self.offset) != (1.0, 0.0) else values
        for fill in self.fills:
            values[stored == _as_stored(fill, stored.dtype)] = np.nan
        values[(values < self.low) | (values > self.high)] = np.nan
        return values


def _integers(stored: np.dtype[Any], unsigned: bool, signed: bool) -> np.dtype[Any]:
    """The type as which integers are read; any other type itself."""
    if unsigned and stored.kind == "i":
        return np.dtype(stored.str.replace("i", "u"))
    if signed and stored.kind == "u":
        return np.dtype(stored.str.replace("u", "i"))
    return stored


def _as_stored(fill: float, dtype: np.dtype[Any]) -> Any:
    """The fill value in the stored type: -1 marks 255 in an unsigned byte, 0.1 differs in float32; NaN if none."""
    if dtype.kind == "f":
        return np.float64(fill).astype(dtype)
    bits = 8 * dtype.itemsize
    fits = float(fill).is_integer() and -(2 ** (bits - 1)) <= fill < 2**bits
    return np.array(int(fill) % 2**bits, f"u{bits // 8}").view(dtype.newbyteorder("=")) if fits else np.nan


def _bounds(bounds: Array, scale: float, offset: float, stored: np.dtype[Any]) -> list[float]:
    """Bounds as numbers: whole ones are of values `stored` so. NaN bounds nothing."""
    if bounds.dtype.kind in "iu":
        values = bounds.tolist()
        if stored.kind == "u":  # -1 marks 255 in an unsigned byte
            values = [value % 2 ** (8 * stored.itemsize) if value < 0 else value for value in values]
        return [value * scale + offset for value in values]
    return [float(bound) for bound in bounds if not np.isnan(bound)]


def _single(numbers: Array, absent: float, where: str) -> float:
    """The one number of an attribute, finite and other than 0 unless that is what it is where it is `absent`."""
    if not numbers.size:
        return absent
    values = {float(number) for number in numbers}
    if len(values) > 1 or not math.isfinite(min(values)) or (absent and min(values) == 0):
        came = ", ".join(map(str, numbers.tolist()[:5]))
        raise InputError(
            f"{where}: wanted one finite number{' other than 0' if absent else ''}, got {came}; correct it."
        )
    return min(values)


def _numbers(value: Any, where: str) -> Array:
    """The numbers of an attribute (n,), whole ones as integers; of text those that it spells."""
    values = np.asarray([] if value is None else value).ravel()
    if values.dtype.kind in NUMBER_KINDS:
        return values
    numbers = [number for text in _texts(value) for number in _spelled(text, where)]
    whole = bool(numbers) and all(isinstance(number, int) for number in numbers)
    if whole and min(numbers) >= -(2**63) and max(numbers) < 2**63:
        return np.array(numbers, np.int64)
    if whole and min(numbers) >= 0 and max(numbers) < 2**64:
        return np.array(numbers, np.uint64)
    return np.array(numbers, np.float64)


def _texts(value: Any) -> list[str]:
    """An attribute as text, without what pads it."""
    items = np.asarray(value).ravel().tolist()
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in items]
    return [text.strip("\0 \t\r\n") for text in texts]


def _spelled(text: str, where: str) -> list[int | float]:
    """The numbers of a text, or the float that xarray writes into Zarr v3: its eight bytes in base64."""
    with suppress(ValueError, struct.error):
        return [float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])]
    try:
        return [int(word) if WHOLE.fullmatch(word) else float(word) for word in SEPARATORS.split(text) if word]
    except ValueError:
        raise InputError(f"{where}: wanted numbers, got {text[:60]!r}; correct the attribute.") from None
