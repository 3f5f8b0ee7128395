"""Folders of others: nothing in them may lead elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from dorff.errors import InputError


def check_confined(folder: Path) -> None:
    """InputError where anything below a folder is a link, or no plain file: what is read would lie elsewhere, or
    reading (a pipe, a device) would never end."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            check_confined(Path(entry.path))
        elif not entry.is_file(follow_symlinks=False):
            kind = "a link" if entry.is_symlink() else "no plain file"
            raise InputError(f"{entry.path}: is {kind}, which does not belong there; copy the folder's files anew")
