"""What writers of a store have in common: one at a time, in a folder beside it, and a full disk said in a sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from dorff.data.metadata import transient
from dorff.errors import IncompleteError, InputError
from dorff.storage.files import rmtree
from dorff.storage.location import locate

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staging(store: Path) -> Iterator[Path]:
    """An empty folder beside the store, ours alone. What a run that was cut left there is removed, and what it left of
    a zarr.json in the store."""
    folder = locate(store.with_name(f".{store.name}.partial"))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            is_there = held.enter_context(folder.locked(0))
        except BlockingIOError as error:
            raise InputError(f"{store}: another ingest is writing it; wait for its end.") from error
        if not is_there():
            raise InputError(f"{store}: another ingest has just written it; look at it, then run this one again.")
        for left in list(folder.iterdir()):
            rmtree(left) if left.is_dir() else left.unlink()
        for torn in (*store.glob(".zarr.json.*"), *store.glob("*/.zarr.json.*")):
            torn.unlink(missing_ok=True)
        try:
            yield folder
        finally:
            if is_there():  # not so once it has been renamed
                rmtree(folder, ignore_errors=True)


@contextmanager
def reported(store: Path) -> Iterator[None]:
    """Say in one sentence what the system refused: IncompleteError where the disk is full or fails."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise IncompleteError(
                f"{store}: no space left to write it; what was begun is removed: free some space and run it again."
            ) from error
        if transient(error):
            raise IncompleteError(
                f"{store}: the disk failed ({error}); what was begun is removed: check the disk and run it again."
            ) from error
        raise InputError(
            f"{store}: cannot be written ({error.strerror or error}); check the folder and its permissions."
        ) from error
