"""A file system that fails at a chosen step: everything this process does with files below one directory is a step."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

_NAMED = {
    "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.listdir", "os.scandir",
}  # fmt: skip
_READING = {"open to read", "os.listdir", "os.scandir"}
_FREEING = {"os.remove", "os.rmdir", "os.truncate"}


@dataclass(frozen=True)
class Step:
    """One thing done with a file: what, and its path below the directory."""

    what: str
    path: str


class Fault(ABC):
    """What happens at the step."""

    sticky = False  # whether at all later ones, too

    def minds(self, step: Step) -> bool:
        """Whether this step is one of its own; a kill between two changes is like any other."""
        return step.what not in _READING

    @abstractmethod
    def strikes(self, step: Step) -> None:
        """Raise, or end the process."""


@final
class Kill(Fault):
    def strikes(self, step: Step) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@final
class FullDisk(Fault):
    sticky = True

    def minds(self, step: Step) -> bool:
        return super().minds(step) and step.what not in _FREEING

    def strikes(self, step: Step) -> None:
        if self.minds(step):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@final
class BadDisk(Fault):
    def minds(self, step: Step) -> bool:
        return True

    def strikes(self, step: Step) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@final
class Files:
    """Counts the steps below `root` and lets `fault` strike at number `at`; half of a write is done before it."""

    def __init__(self, root: Path, fault: Fault, at: int) -> None:
        self.steps: list[Step] = []
        self._root, self._fault, self._at = f"{root.resolve()}/", fault, at
        self._lock = threading.Lock()

    def install(self) -> None:
        """For the rest of this process."""
        fsync, opened, files = os.fsync, io.open, self

        class Torn(io.FileIO):
            def write(self, data: Any) -> int:
                raw = bytes(data)
                try:
                    files.step("write", str(self.name))
                except OSError:
                    super().write(raw[: len(raw) // 2])
                    raise
                return super().write(raw)

        def open_torn(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
            if not isinstance(file, int) and set(mode) & set("wax+") and self._below(os.fspath(file)) is not None:
                raw = Torn(file, mode.replace("b", ""))
                return raw if buffering == 0 else io.BufferedWriter(raw)
            return opened(file, mode, buffering, *rest, **more)

        def sync(handle: int) -> None:
            self.step("fsync", os.readlink(f"/proc/self/fd/{handle}"))
            fsync(handle)

        io.open = builtins.open = open_torn  # type: ignore[assignment]
        os.fsync = sync
        sys.addaudithook(self._hook)

    def step(self, what: str, path: str) -> None:
        below = self._below(path)
        if below is None:
            return
        with self._lock:
            number = len(self.steps)
            self.steps.append(Step(what, below))
        if number == self._at or (self._fault.sticky and number > self._at >= 0):
            self._fault.strikes(Step(what, below))

    def _below(self, path: str | bytes) -> str | None:
        text = f"{os.path.abspath(os.fsdecode(path))}/"
        return text.removeprefix(self._root).removesuffix("/") if text.startswith(self._root) else None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _NAMED or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.fspath(arguments[1] if event == "os.rename" else arguments[0])
        if event == "open":
            changes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            event = "open to write" if changes else "open to read"
        self.step(event, os.fsdecode(path))
