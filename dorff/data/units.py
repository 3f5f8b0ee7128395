"""Units of columns, as the CF conventions have them."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

#: The attributes of a column that a data set and a model keep.
ATTRIBUTES: Final = ("units", "calendar", "standard_name", "long_name")

ColumnAttributes = dict[str, dict[str, str]]  # by column


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return those of `ATTRIBUTES` that are text, from the attributes of a variable or an array."""
    texts = {name: _text(attributes[name]) for name in ATTRIBUTES if name in attributes}
    return {name: text for name, text in texts.items() if text}


def _text(value: Any) -> str:
    """Return an attribute's text, also where it is bytes or an array of one text; "" where it is none."""
    values = np.asarray(value).reshape(-1)
    item = values[0] if len(values) == 1 else ""
    if isinstance(item, bytes):
        item = item.decode("utf-8", "replace")
    return item.strip("\0 ") if isinstance(item, str) else ""
