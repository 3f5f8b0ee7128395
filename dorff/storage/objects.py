"""Locations in a bucket: files are objects, folders what their names begin with; locks are objects too."""

import asyncio
import errno
import fnmatch
import io
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from operator import methodcaller
from types import SimpleNamespace
from typing import IO, Any, BinaryIO, ClassVar, Final, Self, cast

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from dorff.storage.bucket import AHEAD, HELD, BucketFile, BucketLock, Meta, RefusedError, T, ask, count, seconds
from dorff.storage.location import Location, locate

ONE_PUT: Final = 16 * 2**20  # bytes of a file that is sent in one request, in 30 s; a larger one goes in parts
PART: Final = 8 * 2**20  # of which there are 10,000 at most
_PAGE: Final = 1000  # names that a listing, or a deletion, has at most
_AT_ONCE: Final = 8  # requests that are under way together
_MARKER: Final = ".folder"
_HIDDEN: Final = re.compile(rf"\.folder|{HELD.pattern}")


class ObjectLocation(Location):
    """A place in a bucket, SCHEME://BUCKET/PATH. A folder is there where anything is below it: an empty one has a
    hidden marker, `.folder`. While a folder is being moved here the marker is not empty: nobody sees the folder."""

    __slots__ = ()
    folders = False
    scheme: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.scheme}:/{super().__str__()}" if self.root else super().__str__()

    def __fspath__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and super().__eq__(other)

    __hash__ = Location.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return locate, (str(self),)

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])

    def _ask(self, kind: str, call: Callable[[Any], T], requests: int = 1) -> T:
        return ask(str(self), kind, call, requests)

    def status(self) -> os.stat_result | None:
        """What is there; None where nothing is. Times are of whole seconds, as not all answers say more: below them
        stands what tells files of one size apart that changed in one second."""
        metas: Sequence[Meta] = []
        try:
            meta: Meta | None = self._ask("head", lambda store: store.head(self.key)) if self.key else None
        except FileNotFoundError:
            meta, metas = None, next(self.listed(), [])
            if not metas or self._moving(metas):
                return None
        except RefusedError:
            self.part(0, 1)  # says more of why
            raise
        size, tag = (0, "") if meta is None else (meta["size"], meta["e_tag"] or "")
        changed = max(map(seconds, metas if meta is None else [meta]), default=0)
        times = {"st_mtime": float(changed), "st_mtime_ns": changed * 10**9 + zlib.crc32(tag.encode()) % 10**9}
        mode = stat.S_IFDIR if meta is None else stat.S_IFREG
        return cast(os.stat_result, SimpleNamespace(st_mode=mode, st_size=size, **times))

    def exists(self, **_: object) -> bool:
        return self.status() is not None

    def is_dir(self, **_: object) -> bool:
        return (there := self.status()) is not None and stat.S_ISDIR(there.st_mode)

    def is_file(self, **_: object) -> bool:
        return (there := self.status()) is not None and stat.S_ISREG(there.st_mode)

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if (there := self.status()) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or folder", str(self))
        return there

    def resolve(self, strict: bool = False) -> Self:
        return self

    lstat, absolute = stat, resolve

    def listed(self, after: str | None = None) -> Iterator[Sequence[Meta]]:
        """The objects below, page by page, each a request; those whose keys come `after` one."""

        def page(store: Any) -> Sequence[Meta]:
            return next(iter(store.list(self.key or None, offset=after, chunk_size=_PAGE)), [])

        while metas := self._ask("list", page):
            yield metas
            if len(metas) < _PAGE:
                return
            after = metas[-1]["path"]

    def _moving(self, metas: Sequence[Meta]) -> bool:
        return any(meta["path"] == f"{self.key}/{_MARKER}" and meta["size"] for meta in metas[:64])

    def names(self) -> list[str]:
        there = self._ask("list", lambda store: store.list_with_delimiter(self.key or None))
        paths = [*there["common_prefixes"], *(meta["path"] for meta in there["objects"])]
        if (not paths and self.key) or self._moving(there["objects"]):
            raise FileNotFoundError(errno.ENOENT, "No such folder", str(self))
        return sorted(name for path in paths if not _HIDDEN.fullmatch(name := path.rpartition("/")[2]))

    def below(self) -> dict[str, int]:
        """The files below, as paths from here, and their sizes."""
        start = len(self.key) + 1 if self.key else 0
        sizes = {meta["path"][start:]: meta["size"] for page in self.listed() for meta in page}
        return {path: size for path, size in sizes.items() if not _HIDDEN.fullmatch(path.rpartition("/")[2])}

    def bytes_below(self, pattern: str = "*") -> int:
        return sum(size for path, size in self.below().items() if _matches(path, pattern))

    def iterdir(self) -> Generator[Self]:
        yield from (self / name for name in self.names())

    def glob(self, pattern: str, **_: object) -> Generator[Self]:
        first, mark, rest = pattern.partition("/")
        if pattern.count("*") > 2:  # one listing of all is the cheaper
            yield from (self / path for path in self._all() if _matches(f"/{path}", f"/{pattern}"))
        elif not set("*[") & set(first):
            yield from (self / first).glob(rest) if mark else [self / first] * (self / first).exists()
        elif self.is_dir():
            for name in fnmatch.filter(self.names(), first):
                yield from (self / name).glob(rest) if mark else (self / name,)

    def rglob(self, pattern: str, **_: object) -> Generator[Self]:
        yield from (self / path for path in self._all() if _matches(path, pattern))

    def _all(self) -> list[str]:
        """All that is below, folders too."""
        files = [file.split("/") for file in self.below()]
        return sorted({"/".join(parts[:k]) for parts in files for k in range(1, len(parts) + 1)})

    def open(self, mode: str = "rb", buffering: int = -1, *_: object, **__: object) -> Any:
        if mode != "rb":
            raise ValueError(f"{self}: wanted to be read, got mode {mode!r}; write it by `writing`")
        return self.open_plain(buffering=buffering)

    def open_plain(self, *, buffering: int = -1) -> BinaryIO:
        return cast(BinaryIO, BucketFile(str(self), self.part, ahead=buffering != 0))

    def read_bytes(self) -> bytes:
        content: bytes = self._ask("get", lambda store: store.get(self.key).bytes().to_bytes())
        count(bytes_in=len(content))
        return content

    def part(self, start: int, stop: int) -> tuple[bytes, int]:
        """These bytes of the file, as far as it goes, and its size."""

        def bring(store: Any) -> tuple[bytes, int]:
            answer = store.get(self.key, options={"range": (start, stop)})
            return answer.bytes().to_bytes(), answer.meta["size"]

        try:
            content, size = self._ask("get", bring)
        except EOFError:
            content, size = b"", self.stat().st_size
        count(bytes_in=len(content))
        return content, size

    @contextmanager
    def writing(self, *, sync: bool, new: bool = False) -> Iterator[BinaryIO]:
        with tempfile.SpooledTemporaryFile(max_size=AHEAD) as file:
            yield cast(BinaryIO, file)
            self.put(cast(IO[bytes], file), new=new)

    def put(self, content: bytes | IO[bytes], *, new: bool = False) -> None:
        """Make this the file's content, in one step; FileExistsError where it must be `new` and is there."""
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        size = file.seek(0, os.SEEK_END)
        whole, mode, part = new or size <= ONE_PUT, "create" if new else "overwrite", max(PART, -(-size // 10_000))

        def send(store: Any) -> None:
            file.seek(0)
            sent = file.read() if whole else file
            store.put(self.key, sent, mode=mode, use_multipart=not whole, chunk_size=part, max_concurrency=2)

        try:
            self._ask("put", send, 1 if whole else 2 - -size // part)
        except FileExistsError:
            file.seek(0)
            if self.read_bytes() != file.read():  # this one it was, where only the answer was lost
                raise
        count(bytes_out=size)

    def append(self, line: bytes) -> None:
        before = self.read_bytes() if self.exists() else b""
        self.put(before + (b"\n" if before and not before.endswith(b"\n") else b"") + line)

    def clear(self) -> None:
        self.put(b"")

    def renew(self) -> None:
        self.put(self.read_bytes() if self.exists() else b"")

    def sync(self) -> None:
        pass  # what is written outlives a power cut already

    def free_bytes(self) -> int:
        return sys.maxsize

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if (there := self.status()) is None:
            (self / _MARKER).put(b"")
        elif not (exist_ok and stat.S_ISDIR(there.st_mode)):
            raise FileExistsError(errno.EEXIST, "Is there already", str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, "No such file", str(self))
        self._delete([self.key])

    def _delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _PAGE):
            with suppress(FileNotFoundError):
                self._ask("delete", methodcaller("delete", keys[at : at + _PAGE]))

    def rmdir(self) -> None:
        if self.names():
            raise OSError(errno.ENOTEMPTY, "Not empty", str(self))
        self.remove_tree()

    def remove_tree(self, *, ignore_errors: bool = False) -> None:
        """First goes what says that it is a group, so that nobody reads a part of it as the whole."""
        with suppress(*(OSError,) * ignore_errors):
            keys, first = [meta["path"] for page in self.listed() for meta in page], f"{self.key}/zarr.json"
            self._delete([first] * (first in keys))
            self._delete([key for key in keys if key != first])

    def rename(self, target: str | os.PathLike[str]) -> Self:
        """Move a file, or a folder, by copies that the storage makes, of 5 GB an object at most. A folder's own
        zarr.json is copied last and deleted first. Until all is copied the target has a marker that is not empty, and
        is not there for anybody: who moves something there after this was killed begins anew. The lock of the target
        keeps others out meanwhile; where it is lost, the move ends (UnansweredError)."""
        to = cast(Self, locate(target))
        if self.is_file():
            self._copy("", to)
            self._delete([self.key])
            return to
        with to.locked(0):
            there = [meta for page in to.listed() for meta in page]
            if not to._moving(there) and any(meta["path"] != f"{to.key}/{_MARKER}" for meta in there):
                raise FileExistsError(errno.EEXIST, "Is there already", str(to))
            if not (names := [*self.below()]) and not self.exists():
                raise FileNotFoundError(errno.ENOENT, "No such folder", str(self))
            (to / _MARKER).put(b"moving")
            to._delete([meta["path"] for meta in there if meta["path"] != f"{to.key}/{_MARKER}"])
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                arrays = [name for name in names if name != "zarr.json"]
                for done in [pool.submit(copy_context().run, self._copy, f"/{name}", to) for name in arrays]:
                    done.result()
            for name in {"zarr.json"} & {*names}:
                self._copy(f"/{name}", to)
            (to / _MARKER).put(b"")
        self.remove_tree()
        return to

    replace = rename

    def _copy(self, name: str, to: Self) -> None:
        self._ask("copy", lambda store: store.copy(self.key + name, to.key + name))

    @contextmanager
    def locked(self, seconds: float, *, folder: bool = False) -> Iterator[Callable[[], bool]]:
        """Hold the lock, of which a storage has none: objects NAME.held.NONCE say who wants it, one each.

        Who wants it makes its object and then lists: it holds the lock where no other is there, else takes its own
        away and tries again. Of two that want it at once the later listing sees both: never do two hold it. An object
        that is `stale` by the storage's clock, against one's own just made, is nobody's, and removed: the clocks of
        machines do not matter. A holder renews its own. From when it sent the last renewal it knows by itself when it
        may have been overtaken, and never comes back: what is changed inside the block is asked for only where it ends
        before (UnansweredError). No name is used twice: who is late (to renew, release, remove) touches nobody's."""
        held = BucketLock(self, seconds)
        try:
            yield lambda: held.ours() and (not folder or self.exists())
        finally:
            held.release()

    def stats(self, names: Sequence[str]) -> Iterator[tuple[int, int] | None]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # which starts as many as there are names
            yield from pool.map(lambda name: next(Location.stats(self, [name])), names)

    def point(self, number: int, content: bytes) -> bool:
        """Versions are named by NAME.NUMBER, made where it must not be there: the highest counts, so that who comes
        late changes nothing. NAME itself is for copies in other places."""
        with suppress(FileExistsError):
            self.with_name(f"{self.name}.{number:06d}").put(content, new=True)
        *older, newest = self._pointers()
        for one in older[:-1]:
            one.unlink(missing_ok=True)
        self.put(latest := newest.read_bytes())
        return latest == content

    def pointed(self) -> bytes:
        return [self, *self._pointers()][-1].read_bytes()

    def _pointers(self) -> list[Self]:
        names = self.parent.names() if self.parent.exists() else []
        numbered = [name for name in names if re.fullmatch(re.escape(self.name) + r"\.\d{6,18}", name)]
        return [self.with_name(name) for name in sorted(numbered, key=lambda name: int(name.rpartition(".")[2]))]

    def zarr(self, *, read_only: bool = False) -> LocalStore:
        return _Below(self, read_only=read_only)


def _matches(path: str, pattern: str) -> bool:
    """Whether the last parts of a path are those of a pattern."""
    wanted = pattern.split("/")
    parts = path.split("/")[-len(wanted) :]
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class _Below(LocalStore):
    """What is below a folder as Zarr wants it; all goes through the location."""

    async def _open(self, *, mode: object = None) -> None:
        self._is_open = True

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        self._check_writable()
        await asyncio.to_thread(cast(ObjectLocation, self.root / key).put, value.to_bytes(), new=exclusive)
