"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dorff.errors import InputError


@contextmanager
def space_on(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{path}: no space left on the disk; free some and run the same command again (nothing is lost)"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EPERM):
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another path") from error
        raise


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool) -> None:
    """Write a file beside its place and move it there in one step; nobody ever sees a part of it.

    `sync` waits for the disk. Files that carry a checksum and can be made again do without: a torn one is
    noticed when it is read.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with space_on(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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
            temporary.unlink(missing_ok=True)


def remove_torn(directory: Path, *, older: float = 3600.0) -> None:
    """Remove what writers that were killed left half-done, an hour ago or more: nobody is writing it any longer."""
    for path in directory.glob(".*"):
        with suppress(FileNotFoundError):  # another process tidies too
            if time.time() - path.stat().st_mtime > older:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_json(path: Path, value: Any, *, sync: bool = False) -> None:
    """`value` as readable JSON, atomically."""
    write_atomic(path, [json.dumps(value, indent=1, sort_keys=True).encode()], sync=sync)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
