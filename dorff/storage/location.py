"""Locations: paths that know the storage they lie in, local folders or, for a scheme of its own, another."""

import errno
import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import PosixPath
from typing import Any, BinaryIO, ClassVar, Final, Self, cast

import psutil

from dorff.errors import InputError
from dorff.errors.secrets import redact

_LATE: Final = 60.0  # seconds that NFS keeps what it knows of a folder, unless it is mounted otherwise (acdirmax)
_LOCAL: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs")  # file systems
_BUFFER: Final = 2**20  # bytes of a file that are written at a time: sums come a short column after another


class Location(PosixPath):
    """A path with what `pathlib` lacks: whole files, locks, durability, free space, and Zarr. Here a path of the
    operating system. Another storage is a subclass, which overrides these methods and those of `pathlib` that touch
    files; its errors are those of local files (FileNotFoundError, FileExistsError and so on)."""

    __slots__ = ()
    folders: ClassVar[bool] = True  # whether a file needs a folder that is there

    def __eq__(self, other: object) -> bool:
        return type(other) in (type(self), PosixPath) and super().__eq__(other)

    __hash__ = PosixPath.__hash__

    def absolute(self) -> Self:
        return type(self)(os.path.abspath(self))

    def resolve(self, strict: bool = False) -> Self:
        return type(self)(os.path.realpath(self, strict=strict))

    @contextmanager
    def writing(self, *, sync: bool, new: bool = False) -> Iterator[BinaryIO]:
        """A file to write, which appears at this path, whole, when the block ends without an error; over what is there
        or, `new`, FileExistsError where something is. `sync` waits until it would outlive a power cut. Its folder is
        there."""
        temporary = self.with_name(f".{self.name}.{uuid.uuid4().hex}")  # no other writer's
        try:
            with temporary.open("wb", buffering=_BUFFER) as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            try:
                self.hardlink_to(temporary) if new else temporary.replace(self)
            except OSError as error:
                if not new or error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                temporary.replace(self)  # there are no hard links here: the lock that is held has to do
            if sync:
                self.parent.sync()
        finally:
            with suppress(OSError):  # what went wrong is said above
                temporary.unlink(missing_ok=True)

    def open_plain(self, *, buffering: int = -1) -> BinaryIO:
        """Open the file to read and to seek in; InputError where it is a link or no plain file."""
        return self._opened("rb", buffering)

    def _opened(self, mode: str, buffering: int = -1) -> BinaryIO:
        return cast(BinaryIO, open(self, mode, buffering, opener=lambda _, flags: self._handle(flags)))

    def _handle(self, flags: int) -> int:
        """`os.open` of a plain file: follows no link, and waits for nobody at a pipe."""
        try:
            handle = os.open(self, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            raise _not_plain(self) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise _not_plain(self)
        return handle

    def append(self, line: bytes) -> None:
        """Add a line to the file, a new one where there is none, and wait for the disk. A torn one stays by itself."""
        with self._opened("ab+", 0) as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            left = memoryview(line)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        self.parent.sync()

    def clear(self) -> None:
        """Make the file, which is there, empty, and wait for the disk; needs no free space."""
        with self._opened("r+b") as file:
            file.truncate(0)
            os.fsync(file.fileno())

    def renew(self) -> None:
        """Set the file's time of change to now, by the storage's own clock."""
        os.utime(self, follow_symlinks=False)

    @contextmanager
    def locked(self, seconds: float, *, folder: bool = False) -> Iterator[Callable[[], bool]]:
        """Hold the lock of a file (made where there is none), or of a `folder`, for one process and thread at a time.
        Waits for `seconds`, then raises BlockingIOError. Yields a function: is what was locked still at this path?"""
        handle = os.open(self, os.O_RDONLY) if folder else self._handle(os.O_RDWR | os.O_CREAT)
        try:
            self._wait_for(handle, time.monotonic() + seconds)
            yield lambda: self._is(handle)
        finally:
            os.close(handle)

    def _wait_for(self, handle: int, end: float) -> None:
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                    problem = f"this file system cannot lock files ({error.strerror}); keep it on one that can"
                    raise InputError(f"{self.parent}: {problem}") from error
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > end:
                raise BlockingIOError(errno.EAGAIN, "Locked", str(self))
            time.sleep(0.01)

    def _is(self, handle: int) -> bool:
        """Whether an open file or folder is the one of this name."""
        try:
            return os.path.samestat(os.fstat(handle), os.lstat(self))
        except FileNotFoundError:
            return False

    def zarr(self, *, read_only: bool = False) -> Any:
        """Zarr's store for the folder."""
        from zarr.storage import LocalStore

        return LocalStore(self, read_only=read_only)

    def remove_tree(self, *, ignore_errors: bool = False) -> None:
        """Delete the folder and all below it."""
        shutil.rmtree(self, ignore_errors=ignore_errors)

    def sync(self) -> None:
        """Make what was renamed in this folder survive a power cut; of a file, its bytes."""
        handle = os.open(self, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free_bytes(self) -> int:
        """How many bytes more the storage of this path, which is there, can hold."""
        return shutil.disk_usage(self).free

    def appears(self) -> bool:
        """Whether the file is there, which another process says it has written. A network's file system goes on seeing
        for a while that it is not, where it was looked for before: this waits so long."""
        until = time.monotonic() + _LATE
        while not self.exists():
            if time.monotonic() > until or not self.folders or self._is_on_this_machine():
                return False
            time.sleep(0.2)
            with suppress(OSError):
                os.listdir(self.parent)  # some ask their server then
        return True

    def _is_on_this_machine(self) -> bool:
        mounts = [one for one in psutil.disk_partitions(all=True) if self.is_relative_to(one.mountpoint)]
        return max(mounts, key=lambda one: len(one.mountpoint)).fstype in _LOCAL

    def bytes_below(self, pattern: str = "*") -> int:
        """The size of the files below of such names; one that another process deletes meanwhile counts as none."""
        total = 0
        for path in self.rglob(pattern):
            with suppress(FileNotFoundError):
                total += 0 if path.is_dir() else path.lstat().st_size
        return total

    def stats(self, names: Sequence[str]) -> Iterator[tuple[int, int] | None]:
        """Size (bytes) and time of change (ns) of files below, None of one that is not there."""
        for name in names:
            try:
                # A million times: joining paths shows.
                status = os.stat(f"{self}/{name}") if self.folders else (self / name).stat()
                yield status.st_size, status.st_mtime_ns
            except FileNotFoundError:
                yield None

    def point(self, number: int, content: bytes) -> bool:
        """Have this file name version `number` by `content`. False where a later one is named already, which stays: in
        folders, whose locks cannot be lost, never."""
        with self.writing(sync=True) as file:
            file.write(content)
        return True

    def pointed(self) -> bytes:
        """The content that names the latest version. FileNotFoundError."""
        with self.open_plain(buffering=0) as file:
            return file.read()


#: The class of each scheme but local folders'. A package adds one by an entry point of `dorff.storage`, of its name.
SCHEMES: Final[dict[str, type[Location]]] = {}
_BUCKETS: Final = ("s3", "gs", "az")


def locate(path: str | os.PathLike[str]) -> Location:
    """The location of a path: SCHEME://PATH of a scheme that dorff or an installed package knows, or in a local folder.
    InputError where nobody knows the scheme, that package is broken, or the path is that of a whole bucket."""
    if isinstance(path, Location):
        return path
    scheme, mark, rest = os.fspath(path).partition("://")
    if mark and scheme in _BUCKETS and scheme not in SCHEMES:
        from dorff.storage import objects  # brings Zarr with it

        SCHEMES[scheme] = type(f"{scheme}_location", (objects.ObjectLocation,), {"__slots__": (), "scheme": scheme})
    if mark and scheme not in SCHEMES:
        for point in entry_points(group="dorff.storage", name=scheme):
            try:
                kind = point.load()
            except Exception as error:  # whatever another package's code raises
                raise InputError(f"dorff.storage {scheme}: {point.value} cannot be loaded ({error})") from error
            if not (isinstance(kind, type) and issubclass(kind, Location)):
                raise InputError(f"dorff.storage {scheme}: {point.value} is no Location")
            SCHEMES[scheme] = kind
    if not mark or "/" in scheme:
        return Location(path)
    if scheme not in SCHEMES or (scheme in _BUCKETS and not rest.partition("/")[2].strip("/")):
        what = "names no place in a bucket" if scheme in SCHEMES else f"no storage is called {scheme}://"
        raise InputError(f"{redact(str(path))}: {what}; write s3://BUCKET/PATH, gs:// or az://, or a local folder")
    return SCHEMES[scheme](f"/{rest}")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is of such a scheme."""
    return type(locate(path)) is not Location


def _not_plain(path: Location) -> InputError:
    kind = "a link" if path.is_symlink() else "no plain file"
    return InputError(f"{path}: is {kind}, which does not belong there; remove it, or put the file back from a copy")
