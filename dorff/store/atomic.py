"""Files that are either whole or absent, and lines that say when they are damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dorff.errors import IncompleteError, InputError

_REFUSED: Final = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
_UNFINISHED: Final = re.compile(r"\.(new-|gone-|.+\.)[0-9a-f]{32}")  # names that nothing but dorff gives


@contextmanager
def space_on(path: Path) -> Iterator[None]:
    """Turn a full, failing or read-only disk into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise IncompleteError(
                f"{path}: no space left on the disk; free some and run the same command again (nothing is lost)"
            ) from error
        if error.errno == errno.EIO:
            raise _failed(path, error) from error
        if error.errno in _REFUSED:
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another path") from error
        raise


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a failing disk into one clear sentence; what else may go wrong is the caller's."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise _failed(path, error) from error
        raise


def _failed(path: Path, error: OSError) -> IncompleteError:
    return IncompleteError(
        f"{path}: the disk failed ({error.strerror}); check it and run the same command again (what is done is kept)"
    )


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool) -> None:
    """Write a file beside its place and move it there in one step; nobody ever sees a part of it.

    `sync` waits for the disk. Files that carry a checksum and can be made again do without: a torn one is
    noticed when it is read.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with space_on(path):
        try:
            make_directory(path.parent, sync=sync)
            with temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if sync:
                sync_directory(path.parent)
        finally:
            with suppress(OSError):  # what went wrong is said above
                temporary.unlink(missing_ok=True)


def remove_torn(directory: Path, *, older: float = 3600.0) -> None:
    """Remove what writers of dorff that were killed left half-done, `older` seconds ago or more: nobody is writing it
    any longer. Hidden files of others stay."""
    for path in unfinished(directory):
        with suppress(FileNotFoundError):  # another process tidies too
            if time.time() - path.lstat().st_mtime > older:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def unfinished(directory: Path, begin: str = ".") -> list[Path]:
    """What is being written or removed here, or was when its process was killed; of names that begin so."""
    with reading(directory):
        return [path for path in directory.glob(f"{begin}*") if _UNFINISHED.fullmatch(path.name)]


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:
    """`value` as readable JSON, atomically."""
    write_atomic(path, [json.dumps(value, indent=1, sort_keys=True).encode()], sync=sync)


def identity(path: Path, names: int = 3) -> str:
    """What a file that is kept is, as the last `names` of its path say: a hash of the plan, sweep, term or graph that
    it is of, and which part of that.

    It is under the file's checksum: one in another's place (a copy, a restore, a write gone astray) is whole, and yet
    as good as damaged, because it would be counted for what it is not.
    """
    return "/".join(path.parts[-names:])


def seal(record: Mapping[str, Any], of: str = "") -> bytes:
    """`record` as one line of JSON with its own checksum, `of` this identity."""
    text = json.dumps(record, sort_keys=True)
    return f'{{"crc32": "{zlib.crc32(f"{of}{text}".encode()):08x}", "record": {text}}}'.encode()


def unseal(line: bytes, of: str = "") -> dict[str, Any] | None:
    """The record of such a line, or None where it is not to the byte what was written, or of another identity."""
    try:
        record = json.loads(line)["record"]
        return record if isinstance(record, dict) and seal(record, of) == line else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def make_directory(path: Path, *, sync: bool) -> None:
    """Make a directory and those above it; `sync` makes the new ones survive a power cut."""
    new = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in new:
            sync_directory(one.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory so that it is there whole or not at all."""
    shutil.rmtree(hide(path), ignore_errors=True)  # remove_torn takes what is left


def hide(path: Path) -> Path:
    """Take a directory out of sight in one step; returns where it waits to be removed."""
    gone = path.with_name(f".gone-{uuid.uuid4().hex}")
    path.rename(gone)
    sync_directory(gone.parent)
    return gone


def sync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut; of a file, its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Make everything at and below this directory survive a power cut."""
    for below in path.rglob("*"):
        sync_directory(below)
    sync_directory(path)
