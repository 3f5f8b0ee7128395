"""A lease: of several runs that want to change one thing, one may; fenced, so that a late one cannot."""

import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil

from dorff.errors import DorffError, InputError, LeaseError
from dorff.storage.files import make_directory, open_plain, reading, seal, space_on, unseal
from dorff.storage.location import locate

LEASE: Final = "lease"  # its name in what it is of, such as a model's root
_PATIENCE: Final = 10.0  # seconds to wait for the lock, which is held for milliseconds


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as its file says: a process of a machine that was started once, for `seconds` at a time.
    `nonce` tells this holding from every other."""

    host: str
    boot: str
    namespace: str
    pid: int
    birth: str
    seconds: float
    nonce: str

    @classmethod
    def this_process(cls, seconds: float) -> "Holder":
        pid = os.getpid()
        return cls(*_machine(), pid, _birth(pid) or "", seconds, uuid.uuid4().hex)

    def holds(self, age: float) -> bool:
        """Whether a lease of its own that was renewed `age` seconds ago is not free."""
        return not self.gone and abs(age) <= self.seconds

    @property
    def gone(self) -> bool:
        """Whether it ran where this process runs, and runs no longer. Elsewhere nobody can tell: False."""
        return (self.host, self.boot, self.namespace) == _machine() and _birth(self.pid) != self.birth

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease(AbstractContextManager["Lease"]):
    """The right to change what `path` is the lease of; renewed by a thread until it is released or lost. Its file is
    `path`.NUMBER, where the number is the token, which only grows: a damaged file is a free lease, and yet its token
    is known. Age is by the file system's own clock, which every host sees alike: a file's time of change against that
    of the lock file, touched just now. A holder that was paused for too long may be overtaken; it finds out at its
    next `check`, and inside `fenced` it cannot happen."""

    def __init__(self, path: Path, token: int, holder: Holder) -> None:
        self.path: Final = path
        self.token: Final = token
        self._holder: Final = holder
        self._released: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._renewing, name="dorff-lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, path: Path, *, seconds: float = 60.0) -> "Lease":
        """Take the lease, valid for `seconds` after each renewal; LeaseError names who holds it and until when. Free
        is: released, damaged, not renewed for its seconds, or of a process of this host that is gone. A lease from the
        future is of a clock that was set back, and free too: where that is wrong, its holder is fenced."""
        if not 0 < seconds < math.inf:
            raise InputError(f"seconds: a lease lasts for more than 0, got {seconds}; 60 is usual")
        holder = Holder.this_process(seconds)
        with space_on(path):
            while True:
                make_directory(path.parent, sync=True)
                # Whoever forgot the lease removed the folder meanwhile; or, where locks are late, another was first.
                with suppress(FileNotFoundError, FileExistsError):
                    return cls(path, _claim(path, holder), holder)

    def check(self) -> None:
        """LeaseError where the lease was lost, or released."""
        token, holder, _ = _newest(self.path)
        if (token, holder) != (self.token, self._holder):
            why = f"was taken over by {holder}, after this run had been paused" if holder else "is no longer held"
            raise LeaseError(f"{self.path}: the lease {why}; nothing is published by this run, run it again")

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Inside, the lease is held and cannot be lost; for the few steps that must not come late."""
        with space_on(self.path), locked(self.path):
            self.check()
            yield

    def release(self) -> None:
        """Give it back; a lost lease is left alone. Where the disk fails, it ends with this process all the same."""
        self._released.set()
        self._thread.join()
        with suppress(OSError, DorffError), locked(self.path):
            if _newest(self.path)[:2] == (self.token, self._holder):
                locate(_file(self.path, self.token)).clear()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renewing(self) -> None:
        while not self._released.wait(self._holder.seconds / 3):
            try:
                with locked(self.path):
                    if _newest(self.path)[:2] != (self.token, self._holder):
                        return  # `check` says so
                    locate(_file(self.path, self.token)).renew()
            except (OSError, DorffError):
                continue  # the disk or the lock may come back before the lease runs out


def _claim(path: Path, holder: Holder) -> int:
    """Write the next token's file, unless the lease is held; returns the token."""
    with locked(path) as now:
        token, held, changed = _newest(path)
        if held == holder:  # the answer was lost
            return token
        if held is not None and held.holds(now - changed):
            until = _local_time(time.time() + held.seconds - (now - changed))
            raise LeaseError(f"{path}: held by {held} until {until} at least; wait for its end, then run again")
        with locate(_file(path, token + 1)).writing(sync=True, new=True) as file:
            file.write(seal(asdict(holder)))
        for older in _files(path) - {token + 1}:
            _file(path, older).unlink(missing_ok=True)
    return token + 1


def lease_state(path: Path) -> dict[str, Any] | None:
    """Who holds the lease, with `token` and `until` (local time); None where it is free. Writes nothing."""
    token, holder, changed = _newest(path) if path.parent.is_dir() else (0, None, 0.0)
    if holder is None or not holder.holds(time.time() - changed):
        return None
    return {"host": holder.host, "pid": holder.pid, "token": token, "until": _local_time(changed + holder.seconds)}


def lease_beside(directory: Path) -> Path:
    """Where the lease of a directory is that may itself be removed."""
    return directory.with_name(f"{directory.name}.{LEASE}")


def forget(path: Path) -> None:
    """Remove the files of a free lease, its lock too; nothing where somebody holds it, or where the disk fails. Under
    its lock, so that nobody takes it meanwhile. The lock goes last: whoever waited for it finds that it is no longer
    the one there, and waits for the new one (`locked`). Where a network's file system shows the old one still, two
    may get in at once: then the last to write is the holder, and the other, whose nonce is not in the file, finds out
    at its next `check`. Tokens begin again at 1, and the nonce tells who holds which."""
    with suppress(OSError, DorffError), locked(path) as now:
        _, holder, changed = _newest(path)
        if holder is None or not holder.holds(now - changed):
            for token in _files(path):
                _file(path, token).unlink(missing_ok=True)
            path.with_name(f"{path.name}.lock").unlink()


@contextmanager
def locked(path: Path) -> Iterator[float]:
    """The lock beside a lease, for one process and thread at a time; yields the file system's time (s)."""
    lock = locate(path.with_name(f"{path.name}.lock"))
    while True:
        with ExitStack() as held:
            try:
                is_there = held.enter_context(lock.locked(_PATIENCE))
            except BlockingIOError as error:
                problem = f"locked for more than {_PATIENCE:g} s by {_newest(path)[1] or 'a process'}"
                remedy = "let it go on or end it, then run again"
                raise LeaseError(f"{path}: {problem}, which was paused while it published; {remedy}") from error
            if is_there():  # not removed by `forget` meanwhile
                lock.renew()
                yield lock.lstat().st_mtime
                return


def _newest(path: Path) -> tuple[int, Holder | None, float]:
    """The last token given (0: none), its holder (None: free), and when its file was last touched (s)."""
    with reading(path):
        token = max(_files(path), default=0)
    try:
        file = _file(path, token)
        with reading(path), open_plain(file) as opened:  # so that a network's file system asks its server
            record, changed = unseal(opened.read(1 << 16)), file.lstat().st_mtime
        return token, None if record is None else Holder(**record), changed
    except (FileNotFoundError, TypeError):
        return token, None, 0.0


def _files(path: Path) -> set[int]:
    """The tokens whose files are there; at most a few."""
    begin = f"{path.name}."
    names = (one.name.removeprefix(begin) for one in path.parent.iterdir() if one.name.startswith(begin))
    return {int(name) for name in names if name.isascii() and name.isdigit()}


def _file(path: Path, token: int) -> Path:
    return path.with_name(f"{path.name}.{token:06d}")


def _machine() -> tuple[str, str, str]:
    """Host, boot and process namespace: where they are the same, a process id means the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux
        return socket.gethostname(), f"{psutil.boot_time():.0f}", ""


def _birth(pid: int) -> str | None:
    """When a process was started, in ticks since the boot, which no clock that is set can change; None: it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie has ended
    with suppress(psutil.NoSuchProcess):
        return f"{psutil.Process(pid).create_time():.2f}"
    return None


def _local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec="seconds")
