"""Whether this process has been asked to stop its leaf at the end of a block; and how a command ends on a signal."""

import atexit
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

from dorff.errors import IncompleteError

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
UNWINDING: Final = 8.0  # seconds for leases to be given back and workers to end, once nothing is being saved
MOST: Final = 25.0  # seconds from a signal to the end, a leaf's saving included: schedulers kill after 30
_working: Final = threading.Event()  # a command runs, which an exception can end in good order
_caught: Final = set[int]()
_asked: Final = threading.Event()


def request_stop() -> None:
    """Ask: the leaf that runs in this process saves what it has at its next block's end and raises StoppedError."""
    _asked.set()


def clear_stop() -> None:
    """Take it back; engines do before a run."""
    _asked.clear()


def stop_requested() -> bool:
    """Whether it was asked."""
    return _asked.is_set()


def take_signals() -> None:
    """A first SIGTERM or SIGINT ends the process in good order, and in time whatever it does meanwhile."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, _handle)
    signal.signal(signal.SIGURG, lambda *_: None)
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)  # the last: from here on the exit code stands
    threading.Thread(target=_watch, args=(reader,), name="dorff-signals", daemon=True).start()


@contextmanager
def working() -> Iterator[None]:
    """Inside, a signal is a KeyboardInterrupt; outside the process has nothing to put in order, and ends at once."""
    _working.set()
    try:
        yield
    finally:
        _working.clear()


def signalled() -> bool:
    """Whether a signal came while a command ran: what is raised then may be a library's, in the exception's place."""
    return bool(_caught)


def skip_cleaning_at_exit() -> None:
    """Leave memory and Zarr's thread to the system when this process ends; called when its work is done.

    Python would look through all memory, which takes long. Zarr gives its thread 0.2 s to stop, and where a busy
    machine needs longer its handler ends with a traceback.
    """
    atexit.register(gc.freeze)
    if (zarr := sys.modules.get("zarr.core.sync")) is not None:
        atexit.unregister(zarr.cleanup_resources)


def _handle(number: int, _frame: FrameType | None) -> None:
    if not _working.is_set():
        _end()
    if number == signal.SIGINT or number not in _caught:  # a scheduler may say it twice; only a person insists
        _caught.add(number)
        raise KeyboardInterrupt


def _watch(reader: int) -> None:
    """Wait for a signal, and end the process if it did not: it may be deep in a library, or one took the exception."""
    while os.read(reader, 1)[0] not in SIGNALS:
        pass
    # The system may have given the signal to any thread; handlers run in the main one, when what it waits for is over.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)
    began = busy = time.monotonic()
    while (now := time.monotonic()) < min(busy + UNWINDING, began + MOST):
        if stop_requested():
            busy = now
        time.sleep(0.1)
    from multiprocessing import active_children  # only here: it takes longer to import than all of this

    for child in active_children():
        with suppress(OSError, ValueError):
            child.kill()
    _end()


def _end() -> NoReturn:
    """End the process at once; what is done is on the disk."""
    if select.select([], [2], [], 0)[1]:  # a pipe that nobody reads must not keep us
        with suppress(OSError):
            os.write(2, b"dorff: stopped; run the same command again\n")
    os._exit(IncompleteError.exit_code)
