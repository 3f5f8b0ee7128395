"""A file system as a network's: what one host does, another sees late.

`python network_fs.py FOLDER MOUNT SECONDS LOCKS` shows FOLDER at MOUNT, by FUSE. Names, sizes, times and what is not
there are kept for SECONDS after a look, so that a host which looks again sees the old; a file is what it was when it
was opened (close-to-open, as NFS has it). LOCKS are `own`, each mount's alone, as with NFS's `nolock`; `none`: refused;
or `linkless`, where hard links are refused. A name in FOLDER/.stale cannot be read once: its handle is stale, as that
of a file which another host has replaced.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from mfusepy import FUSE, FuseOSError, Operations


class Shown(Operations):  # type: ignore[misc]
    """The folder's files, as they are."""

    use_ns = True

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _at(self, path: str) -> str:
        return self._folder + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._at(path)) if fh is None else os.fstat(fh)
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_dev", "st_blocks")
        times = {f"st_{one}time": getattr(status, f"st_{one}time_ns") for one in "amc"}
        return {name: getattr(status, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def link(self, target: str, source: str) -> None:
        os.link(self._at(source), self._at(target))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._at(path), ns=times)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._at(path), length)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~(os.O_CREAT | os.O_EXCL | os.O_APPEND))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        mark = self._at("/.stale")
        if os.path.exists(mark):
            with open(mark) as file:
                name = file.read()
            if name and path.endswith(name):
                os.unlink(mark)
                raise FuseOSError(errno.ESTALE)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        pass  # no power cut here

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._at(path))
        names = (
            "f_bavail",
            "f_bfree",
            "f_blocks",
            "f_bsize",
            "f_favail",
            "f_ffree",
            "f_files",
            "f_frsize",
            "f_namemax",
        )
        return {name: getattr(status, name) for name in names}


class Unlocked(Shown):
    """No locks."""

    def lock(self, path: str, fh: int, cmd: int, lock: Any) -> int:
        raise FuseOSError(errno.ENOLCK)

    def flock(self, path: str, fh: int, op: int) -> int:
        raise FuseOSError(errno.ENOLCK)


class Linkless(Shown):
    """No hard links, as on exFAT, SMB and most of what shows a bucket as files."""

    def link(self, target: str, source: str) -> None:
        raise FuseOSError(errno.EPERM)


if __name__ == "__main__":
    folder, mount, seconds, locks = sys.argv[1:]
    kept = {f"{what}_timeout": float(seconds) for what in ("attr", "entry", "negative")}
    shown = {"own": Shown, "none": Unlocked, "linkless": Linkless}[locks]
    FUSE(shown(folder), mount, foreground=True, auto_cache=True, **kept)
