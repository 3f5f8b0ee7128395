"""What is said on stderr: sentences for people, or one JSON object a line for programs."""

import atexit
import io
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO, final

from dorff.errors.secrets import redact


class Style(StrEnum):
    """What lines on stderr are."""

    TEXT = "text"
    JSON = "json"


@final
class _Objects:
    """Writes lines as objects; from several threads."""

    def __init__(self, stream: TextIO | None, command: str) -> None:
        self._stream, self._command, self._lock = stream, command, threading.Lock()

    def write(self, message: str, level: str, fields: dict[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "level": level, "command": self._command, "message": message, **fields}
        with self._lock:
            print(json.dumps(line, default=str), file=self._stream or sys.stderr, flush=True)

    def pass_on(self, reader: int, end: str) -> None:
        """Lines that others wrote, libraries and worker processes, up to the line `end`."""
        with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
            for line in map(str.rstrip, lines):
                if line == end:
                    return
                if line:
                    self.write(redact(line), "warning", {"source": "stderr"})


_objects: _Objects | None = None


def say(message: str, level: str = "info", *, clock: bool = False, **fields: object) -> None:
    """A message to the user, on stderr. `fields` are for programs; `clock` puts the time before it for people."""
    message = redact(message)
    if _objects is not None:
        _objects.write(message.removeprefix("dorff: "), level, fields)
        return
    now = f"{datetime.now():%H:%M:%S} " if clock else ""
    print(f"{now}{message}", file=sys.stderr, flush=True)


@contextmanager
def logging(style: Style, command: str) -> Iterator[None]:
    """Say what is said in this style until the block ends."""
    global _objects
    if style == Style.JSON:
        _objects = _of_process(command) if _is_ours(sys.stderr) else _Objects(None, command)
    try:
        yield
    finally:
        _objects = None


def _is_ours(stream: TextIO) -> bool:
    """Whether it is the process' stderr rather than a test's buffer."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):
        return False


def unfailing(handle: int) -> TextIO:
    """Text to an open file, for messages: what cannot be written (a full disk, a reader that left) is not said."""
    raw = io.BufferedWriter(_Unfailing(handle, "wb", closefd=False))  # type: ignore[type-var]  # typeshed's is of FileIO itself
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


@final
class _Unfailing(io.FileIO):
    def write(self, content: bytes | memoryview) -> int:  # type: ignore[override]
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def _of_process(command: str) -> _Objects:
    """What anybody else writes to stderr goes through a pipe and comes out as objects, as long as the process lives;
    our own lines go straight to it, so that none is lost with a process that is killed."""
    (reader, writer), end = os.pipe(), uuid.uuid4().hex  # some processes outlive us: no end of file would come
    real = unfailing(os.dup(2))
    objects = _Objects(real, command)
    passing = threading.Thread(target=objects.pass_on, args=(reader, end), daemon=True)
    passing.start()
    os.dup2(writer, 2)

    def finish() -> None:
        sys.stderr.flush()
        os.dup2(real.fileno(), 2)
        os.write(writer, f"\n{end}\n".encode())
        passing.join()

    atexit.register(finish)  # after those of libraries that are imported later
    return objects
