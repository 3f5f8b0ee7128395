"""A second storage, in this process's memory, for the scheme memory://."""

from __future__ import annotations

import fnmatch
import io
import os
import stat
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, MutableMapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self, cast

from zarr.core.buffer import Buffer, cpu
from zarr.storage import MemoryStore

from dorff.storage.location import Location, locate

FILES: dict[str, tuple[bytes, float]] = {}  # content and time of change; folders end with a slash
LOCKS: dict[str, threading.Lock] = {}


class Status(NamedTuple):
    """What is at a location: a folder or a file, its size (bytes) and its time of change (s since 1970)."""

    folder: bool
    size: int
    modified: float


class NamedBytes(io.BytesIO):
    """A file's bytes in memory, with its name."""

    name = ""


class RemoteLocation(Location, ABC):
    """A location in a storage that the operating system knows nothing of: `pathlib`'s methods by a few of its own.

    Its text is SCHEME://PATH, and `locate` makes the same location of it, in other processes too. There are no links.
    """

    __slots__ = ()
    scheme: ClassVar[str]

    @abstractmethod
    def status(self) -> Status | None:
        """What is there; None where nothing is."""

    @abstractmethod
    def names(self) -> list[str]:
        """What is in the folder."""

    @abstractmethod
    def read_bytes(self) -> bytes:
        """The whole file."""

    @abstractmethod
    def put(self, content: bytes) -> None:
        """Make this the file's content, in one step."""

    @abstractmethod
    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None: ...

    @abstractmethod
    def unlink(self, missing_ok: bool = False) -> None: ...

    @abstractmethod
    def rmdir(self) -> None: ...

    @abstractmethod
    def rename(self, target: str | os.PathLike[str]) -> Self:
        """Move a file, over what is there, or a folder: FileExistsError where one is there that is not empty."""

    def __str__(self) -> str:
        return f"{self.scheme}:/{super().__str__()}"

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return locate, (str(self),)

    def exists(self, **_: object) -> bool:
        return self.status() is not None

    def is_dir(self, **_: object) -> bool:
        return (there := self.status()) is not None and there.folder

    def is_file(self, **_: object) -> bool:
        return (there := self.status()) is not None and not there.folder

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        there = self.status()
        if there is None:
            raise FileNotFoundError(2, "No such file", str(self))
        mode = stat.S_IFDIR if there.folder else stat.S_IFREG
        fields = {"st_mode": mode, "st_size": there.size, "st_mtime": there.modified}
        return cast(os.stat_result, SimpleNamespace(**fields, st_mtime_ns=round(there.modified * 1e9)))

    def lstat(self) -> os.stat_result:
        return self.stat()

    def absolute(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:
        return self

    def iterdir(self) -> Generator[Self]:
        yield from (self / name for name in self.names())

    def glob(self, pattern: str, **_: object) -> Generator[Self]:
        first, rest = pattern.split("/", 1) if "/" in pattern else (pattern, "")
        for name in sorted(self.names()) if self.is_dir() else ():
            if fnmatch.fnmatchcase(name, first):
                yield from (self / name).glob(rest) if rest else (self / name,)

    def rglob(self, pattern: str, **_: object) -> Generator[Self]:
        yield from self.glob(pattern)
        for below in sorted(self.iterdir()) if self.is_dir() else ():
            yield from below.rglob(pattern)

    def open(self, mode: str = "rb", *_: object, **__: object) -> Any:
        if mode != "rb":
            raise ValueError(f"{self}: wanted to be read, got mode {mode!r}; write it by `writing`")
        return self.open_plain()

    def open_plain(self, *, buffering: int = -1) -> BinaryIO:
        file = NamedBytes(self.read_bytes())
        file.name = str(self)
        return file

    def read_text(self, encoding: str | None = None, errors: str | None = None, *_: object) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def replace(self, target: str | os.PathLike[str]) -> Self:
        return self.rename(target)

    @contextmanager
    def writing(self, *, sync: bool) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        self.put(file.getvalue())

    def append(self, line: bytes) -> None:
        before = self.read_bytes() if self.exists() else b""
        self.put(before + (b"\n" if before and not before.endswith(b"\n") else b"") + line)

    def clear(self) -> None:
        self.put(b"")

    def sync(self) -> None:
        pass  # what is written outlives a power cut already

    def free_bytes(self) -> int:
        return sys.maxsize

    def renew(self) -> None:
        self.put(self.read_bytes())

    def remove_tree(self, *, ignore_errors: bool = False) -> None:
        try:
            for below in list(self.iterdir()):
                below.remove_tree() if below.is_dir() else below.unlink()
            self.rmdir()
        except OSError:
            if not ignore_errors:
                raise


class MemoryLocation(RemoteLocation):
    """A location in `FILES`."""

    scheme = "memory"

    def status(self) -> Status | None:
        if (file := FILES.get(str(self))) is not None:
            return Status(False, len(file[0]), file[1])
        below = f"{str(self).rstrip('/')}/"
        times = [changed for name, (_, changed) in list(FILES.items()) if name.startswith(below)]
        return Status(True, 0, max(times, default=0.0)) if times or self == self.parent else None

    def names(self) -> list[str]:
        below = f"{str(self).rstrip('/')}/"
        held = (name.removeprefix(below) for name in list(FILES) if name.startswith(below))
        names = list(dict.fromkeys(name.split("/")[0] for name in held if name))
        if not names and not self.exists():
            raise FileNotFoundError(2, "No such folder", str(self))
        return names

    def read_bytes(self) -> bytes:
        if str(self) not in FILES:
            raise FileNotFoundError(2, "No such file", str(self))
        return FILES[str(self)][0]

    def put(self, content: bytes) -> None:
        FILES[str(self)] = content, time.time()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.exists() and not exist_ok:
            raise FileExistsError(17, "Is there", str(self))
        FILES.setdefault(f"{self}/", (b"", time.time()))

    def unlink(self, missing_ok: bool = False) -> None:
        if FILES.pop(str(self), None) is None and not missing_ok:
            raise FileNotFoundError(2, "No such file", str(self))

    def rmdir(self) -> None:
        if self.names():
            raise OSError(39, "Not empty", str(self))
        FILES.pop(f"{self}/", None)

    def rename(self, target: str | os.PathLike[str]) -> Self:
        to, below = str(target), f"{self}/"
        if str(self) in FILES:
            FILES[to] = FILES.pop(str(self))
            return self / to
        if any(name.startswith(f"{to}/") and name != f"{to}/" for name in FILES):
            raise FileExistsError(17, "Is there", to)
        if not self.exists():
            raise FileNotFoundError(2, "No such file", str(self))
        for name in [name for name in FILES if name.startswith(below)]:
            FILES[f"{to}/{name.removeprefix(below)}"] = FILES.pop(name)
        return self / to

    @contextmanager
    def locked(self, seconds: float, *, folder: bool = False) -> Iterator[Callable[[], bool]]:
        FILES.setdefault(str(self) if not self.is_dir() else f"{self}/", (b"", time.time()))
        lock = LOCKS.setdefault(str(self), threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise BlockingIOError(11, "Locked", str(self))
        try:
            yield self.exists
        finally:
            lock.release()

    def zarr(self, *, read_only: bool = False) -> MemoryStore:
        return MemoryStore(_Below(f"{self}/"), read_only=read_only)


class _Below(MutableMapping[str, Buffer]):
    """The files below a folder as Zarr's memory store wants them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __getitem__(self, key: str) -> Buffer:
        return cpu.Buffer.from_bytes(FILES[self._folder + key][0])

    def __setitem__(self, key: str, value: Any) -> None:
        FILES[self._folder + key] = value.to_bytes(), time.time()

    def __delitem__(self, key: str) -> None:
        del FILES[self._folder + key]

    def __iter__(self) -> Iterator[str]:
        return iter([n.removeprefix(self._folder) for n in list(FILES) if n.startswith(self._folder) and n[-1] != "/"])

    def __len__(self) -> int:
        return sum(1 for _ in self)
