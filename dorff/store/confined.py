"""Files of a state or a model: plain ones, in their places. Whoever may write there can lead nobody elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, cast

from dorff.errors import InputError

_MARKS: Final = ("current", "plan.json", "zarr.json", ".zgroup")  # of a model, a plan's state, a data set


def check_confined(folder: Path) -> None:
    """InputError where anything below a folder is a link, or no plain file: what is read would lie elsewhere, or
    reading (a pipe, a device) would never end."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            check_confined(Path(entry.path))
        elif not entry.is_file(follow_symlinks=False):
            raise _refused(entry.path)


def check_output(path: Path, *, default: bool = False) -> None:
    """InputError where a file cannot be written at `path` without harm: something else than a plain file is there, or
    it lies in a model, a state or a data set; that is right for a `default` place alone."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        kind = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"
        raise InputError(f"{path}: is {kind}, which is not replaced; name another file")
    inside = [] if default else [one for one in path.resolve().parents for mark in _MARKS if (one / mark).is_file()]
    if inside:
        raise InputError(f"{path}: lies in {inside[0]}, a model, a state or a data set; name a file elsewhere")


def open_plain(path: Path, mode: str = "rb", *, buffering: int = -1) -> BinaryIO:
    """`open` for every file of a state or a model: follows no link, and waits for nobody at a pipe. InputError where
    it is something else than a plain file, OSError otherwise."""
    return cast(BinaryIO, open(path, mode, buffering, opener=plain_handle))


def read_plain(path: Path) -> bytes:
    """All of such a file."""
    with open_plain(path, buffering=0) as file:
        return file.read()


def plain_handle(path: str | Path, flags: int) -> int:
    """`os.open`, as above."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise _refused(path) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _refused(path)
    return handle


def _refused(path: str | Path) -> InputError:
    kind = "a link" if os.path.islink(path) else "no plain file"
    return InputError(f"{path}: is {kind}, which does not belong there; remove it, or put the file back from a copy")
