"""Units read from column names such as `x_km` or `u_m_s`, for labels and for derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

# suffix: (unit as shown, what it measures, in SI units)
_UNITS: Final = {
    "m_s": ("m/s", "speed", 1.0),
    "cm_s": ("cm/s", "speed", 0.01),
    "mm_s": ("mm/s", "speed", 0.001),
    "km_h": ("km/h", "speed", 1 / 3.6),
    "km": ("km", "length", 1000.0),
    "m": ("m", "length", 1.0),
    "cm": ("cm", "length", 0.01),
    "mm": ("mm", "length", 0.001),
    "deg": ("°", "angle", 1.0),
    "degC": ("°C", "temperature", 1.0),
    "K": ("K", "temperature", 1.0),
    "T": ("T", "field", 1.0),
    "uT": ("µT", "field", 1e-6),
    "nT": ("nT", "field", 1e-9),
    "Pa": ("Pa", "pressure", 1.0),
    "hPa": ("hPa", "pressure", 100.0),
}
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@final
@dataclass(frozen=True)
class ColumnLabel:
    """A column's name without its unit, and the unit where the name ends in one that is known."""

    name: str
    unit: str | None = None
    measures: str | None = None
    factor: float = 1.0

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@final
@dataclass(frozen=True)
class Rate:
    """A derivative's unit; numbers in target units per input unit are multiplied by `factor` to be in it."""

    unit: str
    factor: float = 1.0

    def scaled(self, largest: float) -> Rate:
        """The same with a power of ten taken out where numbers up to `largest` (unscaled) would be awkward."""
        size = abs(largest * self.factor)
        if not math.isfinite(size) or size == 0 or 0.1 <= size < 1000:
            return self
        exponent = math.floor(math.log10(size))
        power = str(exponent).translate(_SUPERSCRIPTS)
        joint = " " if self.unit == "s⁻¹" else " × "
        return Rate(f"10{power}{joint}{self.unit}", self.factor * 10.0**-exponent)


def read_column(column: str) -> ColumnLabel:
    """The column that a name describes: `u_m_s` is u in m/s, `depth` is depth in no unit that is known."""
    for suffix, (unit, measures, factor) in _UNITS.items():
        if column.endswith(f"_{suffix}") and len(column) > len(suffix) + 1:
            return ColumnLabel(column.removesuffix(f"_{suffix}"), unit, measures, factor)
    return ColumnLabel(column)


def common_unit(columns: Sequence[ColumnLabel]) -> str | None:
    """The unit of all the columns, None where they differ or have none."""
    units = {column.unit for column in columns}
    return units.pop() if len(units) == 1 else None


def rate(inputs: Sequence[ColumnLabel], targets: Sequence[ColumnLabel]) -> Rate:
    """The unit of d target / d input: per second for velocities over lengths, said in words where unknown."""
    below, above = common_unit(inputs), common_unit(targets)
    if below is None or above is None:
        return Rate("target units per input unit")
    if (targets[0].measures, inputs[0].measures) == ("speed", "length"):
        return Rate("s⁻¹", targets[0].factor / inputs[0].factor)
    return Rate(f"{above} / {below}")
