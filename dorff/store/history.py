"""What became of each fit of a model: one line of JSON each, with a checksum of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dorff.store.atomic import make_directory, reading, seal, space_on, sync_directory, unseal
from dorff.store.confined import open_plain, read_plain

HISTORY: Final = "history.jsonl"


def append_history(root: Path, record: Mapping[str, Any]) -> None:
    """Add a line to the history of the model at `root`, and wait for the disk."""
    path = root / HISTORY
    with space_on(path):
        make_directory(root, sync=True)
        with open_plain(path, "ab+", buffering=0) as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # a line that was torn stays by itself
            line = memoryview(seal(record) + b"\n")
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        sync_directory(root)


def read_history(root: Path) -> list[dict[str, Any]]:
    """Every line, oldest first; torn or damaged ones are left out."""
    path = root / HISTORY
    try:
        with reading(path):
            lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return []
    return [record for line in lines if (record := unseal(line)) is not None]
