"""Numbers that stand for none: those that a file declares (CF conventions 1.11, 2.5.1, 8.1), and what looks so."""

import base64
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
MOST_LARGE: Final = 4  # different ones; more are data
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
    """The numbers that stand for none: those that were `given`, and those that look so. What looks so is one of
    `USUAL`, or of few that are `LARGE`, farther from the column's other values than `FAR` times their range. Others
    have to differ, and what is neither large nor -999 or less has to come twice. But one of `USUAL` that is either
    may also be the only one below zero, or have others all the same, or none. Constants, `=-9999`, do not look so,
    and nothing does where the word none is among those given."""

    def __init__(self, given: Sequence[float | str]) -> None:
        self._keep, self._counts = "none" in given, defaultdict[int, Counter[float]](Counter)
        self._low, self._high = np.array(np.inf), np.array(-np.inf)
        try:
            self.unmet = {float(value): value for value in given if value != "none"}  # that no value has been
        except ValueError:
            came = ", ".join(map(str, given))
            raise InputError(f"--missing: wanted numbers that stand for none, or the word none, got {came}.") from None
        self._given = {one: value for value in self.unmet for one in _either(value)}

    def blank(self, numbers: Array) -> Array:
        """Further rows (n, columns) with NaN in the place of those given; they are looked at."""
        for one, value in self._given.items():
            near = np.isclose(numbers, one, DIGITS, 0) if abs(one) >= LARGE else numbers == one
            if near.any():
                self.unmet.pop(value, None)
                numbers = np.where(near, np.nan, numbers).astype(numbers.dtype)
        low, high = _extreme(np.fmin, numbers), _extreme(np.fmax, numbers)
        for j, ends in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if any(end in USUAL or abs(end) >= LARGE for end in ends):
                values = self._set_apart(j, numbers[:, j].astype(np.float64))
                low[j], high[j] = values.min(initial=np.inf), values.max(initial=-np.inf)
        self._low, self._high = np.fmin(self._low, low), np.fmax(self._high, high)
        return numbers

    def blank_labels(self, run: Run) -> Run:
        """Further rows of labels without those given."""
        for label in run.values:
            self.unmet.pop(self._given.get(label, np.nan), None)
        return Run(tuple(None if value in self._given else value for value in run.values), run.index)

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
            flags = " ".join(f"--missing {value}" for value in dict.fromkeys(value for _, value, _ in seen))
            problem = "far from the other values there, it looks like a number that stands for none"
            remedy = f"give {flags} to have NaN in its place, or --missing none to keep it"
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


def _extreme(least: np.ufunc, numbers: Array) -> Array:
    """(columns,) of numbers (n, columns): 64 rows side by side first, which is some ten times as fast."""
    whole, columns = len(numbers) // 64 * 64, numbers.shape[1]
    if whole and numbers.flags.c_contiguous:
        wide = least.reduce(numbers[:whole].reshape(-1, 64 * columns), axis=0)
        numbers = np.concatenate([wide.reshape(64, columns), numbers[whole:]])
    return np.asarray(least.reduce(numbers, axis=0))


@dataclass(frozen=True)
class Packing:
    """Turns stored values into numbers: `stored * scale + offset`, NaN for fill values and outside `low` to `high`."""

    fills: tuple[float, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unsigned: bool = False
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Read `_FillValue`, `missing_value`, `scale_factor`, `add_offset`, `_Unsigned`, `valid_range`, `valid_min`
        and `valid_max` where they are. Bounds that are whole numbers are of stored values (NetCDF user's guide, B)."""
        fills = [f for key in ("_FillValue", "missing_value") for f in _numbers(attributes.get(key))]
        scale, offset = _numbers(attributes.get("scale_factor")), _numbers(attributes.get("add_offset"))
        unsigned = attributes.get("_Unsigned", "")
        text = unsigned.decode() if isinstance(unsigned, bytes) else str(unsigned)
        packed = (scale[0] if scale else 1.0, offset[0] if offset else 0.0, text.lower() == "true")
        if len(ends := _bounds(attributes.get("valid_range"), *packed)) != 2:
            least, most = (_bounds(attributes.get(key), *packed)[:1] for key in ("valid_min", "valid_max"))
            absent = math.copysign(math.inf, packed[0])
            ends = [*(least or [-absent]), *(most or [absent])]
        return cls(tuple(dict.fromkeys(f for f in fills if not np.isnan(f))), *packed, min(ends), max(ends))

    @property
    def plain(self) -> bool:
        """Whether stored values are the numbers themselves."""
        return self == Packing()

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """The type of decoded values: fills and bounds alone keep a float's type, all else gives float64."""
        if self.plain or (stored.kind == "f" and self == Packing(fills=self.fills, low=self.low, high=self.high)):
            return stored
        return np.dtype(np.float64)

    def decode(self, stored: Array) -> Array:
        """Decode stored values of any shape; a plain packing returns its argument."""
        if self.plain:
            return stored
        if self.unsigned and stored.dtype.kind == "i":
            stored = stored.view(stored.dtype.str.replace("i", "u"))
        # A copy even where nothing changes type: the fills are overwritten below.
        values = stored.astype(self.dtype(stored.dtype))
        values = values * self.scale + self.offset if (self.scale, self.offset) != (1.0, 0.0) else values
        for fill in self.fills:
            values[stored == _as_stored(fill, stored.dtype)] = np.nan
        values[(values < self.low) | (values > self.high)] = np.nan
        return values


def _as_stored(fill: float, dtype: np.dtype[Any]) -> Any:
    """The fill value in the stored type: -1 marks 255 in an unsigned byte, 0.1 differs in float32; NaN if none."""
    if dtype.kind == "f":
        return np.float64(fill).astype(dtype)
    bits = 8 * dtype.itemsize
    fits = fill.is_integer() and -(2 ** (bits - 1)) <= fill < 2**bits
    return np.array(int(fill) % 2**bits, f"u{bits // 8}").view(dtype.newbyteorder("=")) if fits else np.nan


def _bounds(value: Any, scale: float, offset: float, unsigned: bool) -> list[float]:
    """Bounds as numbers: whole ones are of stored values."""
    bounds = np.atleast_1d(np.asarray([] if value is None else value))
    if bounds.dtype.kind in "iu":
        stored = bounds.view(bounds.dtype.str.replace("i", "u")) if unsigned else bounds
        return [float(bound) for bound in stored * scale + offset]
    return [bound for bound in bounds.tolist() if not np.isnan(bound)] if bounds.dtype.kind == "f" else []


def _numbers(value: Any) -> list[float]:
    """Those of an attribute. A text is a float as xarray writes it into Zarr v3: its eight bytes in base64."""
    if isinstance(value, str):
        try:
            return [float(struct.unpack("<d", base64.b64decode(value, validate=True))[0])]
        except (ValueError, struct.error):  # any other text names no number
            return []
    array = np.asarray([] if value is None else value)
    return [float(v) for v in array.ravel()] if array.dtype.kind in NUMBER_KINDS else []
