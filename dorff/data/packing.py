"""Numbers that stand for none. How a file says so, with scale and offset (CF conventions 1.11, 2.5.1 and 8.1); and
what looks like one that no file declares."""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError

Array = npt.NDArray[Any]
NUMBER_KINDS: Final = "buif"
MOST_COLUMNS: Final = 2**20  # each has a name: what claims more is no table
FAR: Final = 10  # times the range of a column's other values


def either(value: float) -> tuple[float, float]:
    """A number, and what is left of it in float32."""
    with np.errstate(over="ignore"):
        return value, float(np.float32(value))


def _usual() -> frozenset[float]:
    """Fill values that are common: nines, the ends of integers and floats, powers of ten, and NetCDF's own."""
    nines = [float("9" * whole + "." + "9" * part) for whole in range(2, 11) for part in range(5)]
    ends = [2.0**bits - one for bits in (15, 16, 31, 32, 63, 64, 127) for one in (0, 1)]
    large = [15 * 2.0**119, *(10.0**power for power in range(20, 39)), float(np.finfo("f4").max), np.finfo("f8").max]
    usual = (one for value in (*nines, *ends, *large) for one in (*either(value), *either(-value)))
    return frozenset(value for value in usual if np.isfinite(value) and (value < 0 or value >= 999))


USUAL: Final = _usual()


@final
class FillValues:
    """The numbers that stand for none in `columns`: those that were `given`, and those that look so.

    What looks so is one of `USUAL`, outside of the column's other values. One of -999 or less, or of 1e15 or more in
    size, does where it is farther from them than `FAR` times their range, or there are none, or it is (twice or more)
    the only one below zero. Any other has to come twice, and be so far from others that differ. Constants, `=-9999`,
    do not, and nothing does where the word none is among those given.
    """

    def __init__(self, given: Sequence[float | str], columns: Sequence[str]) -> None:
        self._columns, self._keep, self._counts = columns, "none" in given, Counter[tuple[int, float]]()
        self._low, self._high = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
        try:
            self.given = tuple(one for value in given if value != "none" for one in either(float(value)))
        except ValueError:
            came = ", ".join(map(str, given))
            raise InputError(f"--missing: wanted numbers that stand for none, or the word none, got {came}.") from None

    def blank(self, numbers: Array) -> Array:
        """Further rows (n, columns) with NaN in the place of those given; they are looked at."""
        if self.given:
            numbers = np.where(np.isin(numbers, self.given), np.nan, numbers).astype(numbers.dtype)
        low, high = _extreme(np.fmin, numbers), _extreme(np.fmax, numbers)
        for j, ends in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if any(end in USUAL or np.isinf(end) for end in ends):
                values = numbers[:, j][np.isfinite(numbers[:, j])].astype(np.float64)
                usual = np.isin(values, list(USUAL))
                self._counts.update((j, value) for value in values[usual].tolist())
                low[j], high[j] = values[~usual].min(initial=np.inf), values[~usual].max(initial=-np.inf)
        self._low, self._high = np.fmin(self._low, low), np.fmax(self._high, high)
        return numbers

    def check(self, where: str) -> None:
        """InputError, for the files `where`, where a column holds what looks like one."""
        seen = [
            (self._columns[j], repr(value).removesuffix(".0"), count)
            for (j, value), count in sorted(self._counts.items())
            if self._columns[j][0] != "=" and self._looks_so(j, value, count)
        ]
        if seen and not self._keep:
            each = "; ".join(f"column {name!r} has {value} in {count:,} rows" for name, value, count in seen[:3])
            remedy = " ".join(f"--missing {value}" for value in dict.fromkeys(value for _, value, _ in seen))
            raise InputError(
                f"{where}: {each}: far from the other values there, it looks like a number that stands for none; give "
                f"{remedy} to have NaN in its place, or --missing none to keep it."
            )

    def _looks_so(self, j: int, value: float, count: int) -> bool:
        low, high, sure = self._low[j], self._high[j], value <= -999 or abs(value) >= 1e15
        if low > high:
            return sure
        far = max(low - value, value - high) > FAR * (high - low)
        if sure:
            return far or (count > 1 and value < 0 <= low)
        return far and count > 1 and low < high


def _extreme(least: np.ufunc, numbers: Array) -> Array:
    """(columns,) of numbers (n, columns): 64 rows side by side first, which is some ten times as fast."""
    whole, columns = len(numbers) // 64 * 64, numbers.shape[1]
    if not whole or not numbers.flags.c_contiguous:
        return np.asarray(least.reduce(numbers, axis=0))
    wide = least.reduce(numbers[:whole].reshape(-1, 64 * columns), axis=0)
    return np.asarray(least.reduce(np.concatenate([wide.reshape(64, columns), numbers[whole:]]), axis=0))


@final
@dataclass(frozen=True)
class Packing:
    """Turns stored values into numbers: fill values become NaN, then `stored * scale + offset`, and what is not from
    `low` to `high` then becomes NaN too."""

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
        ends = _bounds(attributes.get("valid_range"), *packed)
        if len(ends) != 2:
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
    """The fill value in the stored type: -1 marks 255 in an unsigned byte, 0.1 differs in float32; NaN where the type
    has no such value."""
    if dtype.kind == "f":
        return np.float64(fill).astype(dtype)
    bits = 8 * dtype.itemsize
    return (
        np.array(int(fill) % 2**bits, f"u{dtype.itemsize}").view(dtype.newbyteorder("="))
        if _fits(fill, bits)
        else np.nan
    )


def _fits(value: float, bits: int) -> bool:
    return bool(np.isfinite(value)) and value == int(value) and -(2 ** (bits - 1)) <= value < 2**bits


def _bounds(value: Any, scale: float, offset: float, unsigned: bool) -> list[float]:
    """Bounds as numbers: whole ones are of stored values."""
    bounds = np.atleast_1d(np.asarray([] if value is None else value))
    if bounds.dtype.kind in "iu":
        stored = bounds.view(bounds.dtype.str.replace("i", "u")) if unsigned else bounds
        return [float(bound) for bound in stored * scale + offset]
    return [bound for bound in bounds.tolist() if not np.isnan(bound)] if bounds.dtype.kind == "f" else []


def _numbers(value: Any) -> list[float]:
    if value is None:
        return []
    if isinstance(value, str):
        return _base64_number(value)
    array = np.asarray(value)
    return [float(v) for v in array.ravel()] if array.dtype.kind in NUMBER_KINDS else []


def _base64_number(text: str) -> list[float]:
    """A float as xarray writes it into Zarr v3 attributes: its eight bytes in base64."""
    try:
        return [float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])]
    except (ValueError, struct.error):  # any other text names no number
        return []
