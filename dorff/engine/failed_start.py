"""Why the workers of a local cluster did not start, and what to do about it.

Dask reports its own part of a failure ("Nanny failed to start."). The cause is in the
chain of exceptions below it or, where a worker's process died, in what the process wrote
to stderr.
"""

import errno
import os
import re
import resource
import socket
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from dorff.errors import NO_SPACE, DoesNotFitError, DorffError, IncompleteError, InputError
from dorff.errors.secrets import redact

SHARED_MEMORY: Final = "/dev/shm"
KEPT_LINES: Final = 20
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
_OPEN_FILES: Final = (errno.EMFILE, errno.ENFILE)
#: Causes that a process's text is searched for; every other one is reported as it is.
_NUMBERS: Final = (*NO_SPACE, errno.EROFS, *_OPEN_FILES, errno.EAGAIN, errno.ENOMEM)
_NO_THREAD: Final = "can't start new thread"
_SERIAL: Final = "set cluster.type: serial"
_OTHER_FOLDER: Final = "name another folder by TMPDIR (DASK_TEMPORARY_DIRECTORY)"


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """A reason as text, its error number, and the file or folder that it is about."""

    text: str
    number: int | None
    place: str = ""


def explain_failed_start(error: BaseException, output: Sequence[str]) -> DorffError:
    """Return the error that a failed start of a local cluster ends with.

    Parameters
    ----------
    error : BaseException
        What Dask raised.
    output : sequence of str
        The last lines that the workers' processes wrote to stderr.

    Returns
    -------
    DorffError
        DoesNotFitError or InputError where another try cannot help before the machine
        or the job is changed; IncompleteError otherwise.
    """
    cause = _find_cause(error, [line.strip() for line in output if line.strip()])
    problem = f"the local cluster's workers cannot start: {redact(cause.text)}"
    if cause.number in NO_SPACE:
        return DoesNotFitError(f"{problem}; {_more_space(cause.place)}, or {_SERIAL}")
    if cause.number in _OPEN_FILES:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f"raise the limit on open files (ulimit -n, {limit} now)"
        return DoesNotFitError(f"{problem}; {remedy}, or lower cluster.workers")
    if cause.number == errno.EAGAIN:
        remedy = "raise the limit on processes (ulimit -u, or a container's limit on pids)"
        return DoesNotFitError(f"{problem}; {remedy}, or lower cluster.workers")
    if cause.number == errno.ENOMEM:
        remedy = "close other programs, or lower cluster.workers"
        return DoesNotFitError(f"{problem}; {remedy}")
    if cause.number in _CLOSED:
        return InputError(f"{problem}; {_other_place(cause.place)}, or {_SERIAL}")
    if cause.number in (errno.EADDRNOTAVAIL, socket.EAI_NONAME):
        remedy = "set cluster.host to an address of this machine, or leave it out"
        return InputError(f"{problem}; {remedy}")
    if re.match(r"(ImportError|ModuleNotFoundError)\b", cause.text):
        return InputError(f"{problem}; mend the installation, or {_SERIAL}")
    return IncompleteError(f"{problem}; see why, and run the same command again")


def _more_space(place: str) -> str:
    if place == SHARED_MEMORY:
        larger = "enlarge it (docker run --shm-size, mount -o remount,size=)"
        return f"remove unused files from {place}, {larger}"
    return f"free some, {_OTHER_FOLDER}"


def _other_place(place: str) -> str:
    if place == SHARED_MEMORY:
        return f"mount a tmpfs on {place} that this user may write to"
    return f"check the path and its permissions, {_OTHER_FOLDER}"


def _find_cause(error: BaseException, lines: list[str]) -> _Cause:
    """Return the innermost cause whose kind is known, else what a process wrote last."""
    chain = [error]
    while below := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(below)
    for link in reversed(chain):
        cause = _cause_of(link)
        if cause.number is not None:
            return cause
    for line in reversed(lines):
        if (number := _number_in(line)) is not None:
            return _Cause(text=line, number=number)
    if not isinstance(chain[-1], RuntimeError):
        return _cause_of(chain[-1])
    silent = "their processes end as they start, without a word (killed for memory?)"
    return _Cause(text=lines[-1] if lines else silent, number=None)


def _cause_of(error: BaseException) -> _Cause:
    """Describe one exception; semaphores are files in shared memory, which has no name."""
    text = str(error) or type(error).__name__
    if not isinstance(error, OSError) or error.errno is None:
        number = errno.ENOMEM if isinstance(error, MemoryError) else _number_in(text)
        return _Cause(text=text, number=number)
    frames = traceback.extract_tb(error.__traceback__)
    is_semaphore = bool(frames) and frames[-1].filename.endswith("multiprocessing/synchronize.py")
    place = str(error.filename or (SHARED_MEMORY if is_semaphore else ""))
    said = error.strerror or text
    return _Cause(text=f"{place}: {said}" if place else said, number=error.errno, place=place)


def _number_in(text: str) -> int | None:
    """Return the error number that a text of another process is about."""
    if _NO_THREAD in text:
        return errno.EAGAIN
    if text.startswith("MemoryError"):
        return errno.ENOMEM
    return next((number for number in _NUMBERS if os.strerror(number) in text), None)


@contextmanager
def copied_stderr() -> Iterator[deque[str]]:
    """Keep the last lines written to stderr, by processes started in the block too.

    Processes that are started inside keep a pipe as their stderr. A thread passes on
    what comes through it until the last of them has ended.
    """
    lines = deque[str](maxlen=KEPT_LINES)
    stderr = os.dup(2)
    reader, writer = os.pipe()

    def pass_on() -> None:
        with os.fdopen(reader, "rb") as pipe, os.fdopen(stderr, "wb", 0) as unchanged:
            for line in pipe:
                lines.append(line.decode(errors="replace"))
                with suppress(OSError):
                    unchanged.write(line)

    passing = threading.Thread(target=pass_on, name="dorff-stderr", daemon=True)
    passing.start()
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield lines
    except BaseException:
        os.dup2(stderr, 2)
        passing.join(timeout=5.0)  # the processes that wrote have ended
        raise
    else:
        os.dup2(stderr, 2)
