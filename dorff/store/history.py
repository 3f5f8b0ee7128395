"""What became of each fit of a model: one line of JSON each, with a checksum of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dorff.storage.files import make_directory, read_plain, reading, seal, space_on, unseal
from dorff.storage.location import locate

HISTORY: Final = "history.jsonl"


def append_history(root: Path, record: Mapping[str, Any]) -> None:
    """Add a line to the history of the model at `root`, and wait for the disk."""
    path = root / HISTORY
    with space_on(path):
        make_directory(root, sync=True)
        locate(path).append(seal(record) + b"\n")


def read_history(root: Path) -> list[dict[str, Any]]:
    """Every line, oldest first; torn or damaged ones are left out."""
    path = root / HISTORY
    try:
        with reading(path):
            lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return []
    return [record for line in lines if (record := unseal(line)) is not None]
