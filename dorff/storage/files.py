"""Files of any storage that are either whole or absent, and lines that say when they are damaged."""

import errno
import json
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from dorff.errors import NO_SPACE, DorffError, IncompleteError, InputError
from dorff.storage.location import locate

Record = dict[str, Any]
_REFUSED: Final = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
_AGAIN: Final = "run the same command again (what is done is kept)"
_MARKS: Final = ("current", "plan.json", "zarr.json", ".zgroup")  # of a model, a plan's state, a data set
_UNFINISHED: Final = re.compile(r"\.(new-|gone-|.+\.)[0-9a-f]{32}")  # names that nothing but dorff gives


@contextmanager
def space_on(path: Path) -> Iterator[None]:
    """Turn a full, failing or read-only disk into one clear sentence."""
    try:
        with reading(path):
            yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise IncompleteError(f"{path}: no space left on the disk; free some and {_AGAIN}") from error
        if error.errno in _REFUSED and not isinstance(error, DorffError):  # of a storage that says it in full
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another path") from error
        raise


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a failing disk into one clear sentence; what else may go wrong is the caller's."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO or isinstance(error, DorffError):
            raise
        raise IncompleteError(f"{path}: the disk failed ({error.strerror}); check it and {_AGAIN}") from error


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool) -> None:
    """Write a file beside its place and move it there in one step; nobody ever sees a part of it. `sync` waits for the
    disk. Files with a checksum that can be made again do without: reading tells a torn one."""
    with space_on(path):
        if locate(path).folders:
            make_directory(path.parent, sync=sync)
        with locate(path).writing(sync=sync) as file:
            for chunk in chunks:
                file.write(chunk)


def remove_torn(directory: Path, *, older: float = 3600.0) -> None:
    """Remove what killed writers of dorff left half-done `older` seconds ago or more; hidden files of others stay."""
    for path in unfinished(directory):
        with suppress(FileNotFoundError):  # another process tidies too
            if time.time() - path.lstat().st_mtime > older:
                rmtree(path) if path.is_dir() else path.unlink()


def unfinished(directory: Path, begin: str = ".") -> list[Path]:
    """What is being written or removed here, or was when its process was killed; of names that begin so."""
    with reading(directory):
        return [path for path in directory.glob(f"{begin}*") if _UNFINISHED.fullmatch(path.name)]


def identity(path: Path, names: int = 3) -> str:
    """What a file that is kept is, as the last `names` of its path say: a hash of the plan, sweep, term or graph that
    it is of, and which part of that. It is under the file's checksum: one in another's place (a copy, a restore, a
    write gone astray) is whole, and yet as good as damaged, because it would be counted for what it is not."""
    return "/".join(path.parts[-names:])


def seal(record: Mapping[str, Any], of: str = "") -> bytes:
    """`record` as one line of JSON with its own checksum, `of` this identity."""
    text = json.dumps(record, sort_keys=True)
    return f'{{"crc32": "{zlib.crc32(f"{of}{text}".encode()):08x}", "record": {text}}}'.encode()


def unseal(line: bytes, of: str = "") -> Record | None:
    """The record of such a line, or None where it is not to the byte what was written, or of another identity."""
    try:
        record = json.loads(line)["record"]
        return record if isinstance(record, dict) and seal(record, of) == line else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def write_record(path: Path, record: Mapping[str, Any], *, sync: bool) -> None:
    write_atomic(path, [seal(record, identity(path))], sync=sync)


def read_record(path: Path) -> Record | None:
    """Such a record; None where it is damaged, or was written in another's place. FileNotFoundError."""
    return unseal(read_plain(path), identity(path))


def make_directory(path: Path, *, sync: bool) -> None:
    """Make a directory and those above it; `sync` makes the new ones survive a power cut."""
    new = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if sync:
        for one in new:
            sync_directory(one.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory so that it is there whole or not at all."""
    rmtree(hide(path), ignore_errors=True)  # remove_torn takes what is left


def hide(path: Path) -> Path:
    """Take a directory out of sight in one step; returns where it waits to be removed."""
    if not locate(path).folders:  # a move would copy it
        rmtree(path)
        return path
    gone = path.with_name(f".gone-{uuid.uuid4().hex}")
    path.rename(gone)
    sync_directory(gone.parent)
    return gone


def sync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut; of a file, its bytes."""
    locate(path).sync()


def rmtree(path: Path, *, ignore_errors: bool = False) -> None:
    locate(path).remove_tree(ignore_errors=ignore_errors)


def free_bytes(path: Path) -> int:
    """How many bytes more the storage of a path, which need not be there yet, can hold."""
    while locate(path).folders and not path.exists():
        path = path.parent
    return locate(path).free_bytes()


def check_confined(folder: Path) -> None:
    """InputError where anything below a folder is a link, or no plain file: what is read would lie elsewhere, or
    reading (a pipe, a device) would never end. In a bucket is nothing of that kind."""
    if not locate(folder).folders:
        return
    for entry in list(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            check_confined(entry)
        else:
            open_plain(entry, buffering=0).close()


def check_output(path: Path, *, default: bool = False) -> None:
    """InputError where a file cannot be written at `path` without harm: something else than a plain file is there, or
    it lies in a model, a state or a data set; that is right for a `default` place alone."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"
        raise InputError(f"{path}: is {kind}, which is not replaced; name another file")
    inside = [] if default else [one for one in path.resolve().parents for mark in _MARKS if (one / mark).is_file()]
    if inside:
        raise InputError(f"{path}: lies in {inside[0]}, a model, a state or a data set; name a file elsewhere")


def open_plain(path: Path, *, buffering: int = -1) -> BinaryIO:
    """`open` to read every file of a state or a model: follows no link, and waits for nobody at a pipe. InputError
    where it is something else than a plain file, OSError otherwise."""
    return locate(path).open_plain(buffering=buffering)


def read_plain(path: Path) -> bytes:
    with open_plain(path, buffering=0) as file:
        return file.read()
