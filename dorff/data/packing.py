"""How a file packs its numbers: fill values, scale and offset (CF conventions 1.11, 2.5.1 and 8.1)."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NUMBER_KINDS: Final = "buif"
MOST_COLUMNS: Final = 2**20  # each has a name: what claims more is no table


@final
@dataclass(frozen=True)
class Packing:
    """Turns stored values into numbers: fill values become NaN, then `stored * scale + offset`."""

    fills: tuple[float, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unsigned: bool = False

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Read `_FillValue`, `missing_value`, `scale_factor`, `add_offset` and `_Unsigned` where they are."""
        fills = [f for key in ("_FillValue", "missing_value") for f in _numbers(attributes.get(key))]
        scale, offset = _numbers(attributes.get("scale_factor")), _numbers(attributes.get("add_offset"))
        unsigned = attributes.get("_Unsigned", "")
        text = unsigned.decode() if isinstance(unsigned, bytes) else str(unsigned)
        return cls(
            fills=tuple(dict.fromkeys(f for f in fills if not np.isnan(f))),
            scale=scale[0] if scale else 1.0,
            offset=offset[0] if offset else 0.0,
            unsigned=text.lower() == "true",
        )

    @property
    def plain(self) -> bool:
        """Whether stored values are the numbers themselves."""
        return self == Packing()

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """The type of decoded values: fills alone keep a float's type, all else gives float64."""
        if self.plain or (stored.kind == "f" and self == Packing(fills=self.fills)):
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
        return values


def _as_stored(fill: float, dtype: np.dtype[Any]) -> Any:
    """The fill value in the stored type: -1 marks 255 in an unsigned byte, 0.1 differs in float32."""
    return np.float64(fill).astype(dtype) if dtype.kind == "f" else np.int64(fill).astype(dtype)


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
