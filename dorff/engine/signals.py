"""The driver's signals: the first one asks for an orderly stop, the second one ends it at once."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.resource_tracker import ensure_running
from types import FrameType
from typing import Final, final

from dorff.errors import StoppedError
from dorff.errors.stopping import SIGNALS, clear_stop, request_stop, stop_requested

_ONE: Final = 0.1  # seconds in which two signals are one: `timeout` sends it to the process, and to its group


@final
class Stop:
    """Which signal asked this process to stop, if one did."""

    def __init__(self) -> None:
        self._caught, self._at = 0, 0.0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal; KeyboardInterrupt at the second one."""
        now = time.monotonic()
        if self._caught and now - self._at > _ONE:
            raise KeyboardInterrupt
        self._caught, self._at = number, now
        request_stop()

    @property
    def asked(self) -> bool:
        return stop_requested()

    def error(self) -> BaseException:
        """What a run ends with that was stopped."""
        if self._caught == signal.SIGINT:
            return KeyboardInterrupt()
        return StoppedError("stopped; what is done is kept, and the same command goes on from there")


@contextmanager
def stopping_on_signals() -> Iterator[Stop]:
    """Inside the block a first SIGTERM or SIGINT sets `process.stopping`, a second one is a KeyboardInterrupt at once.

    After a first one the block ends with `Stop.error`, whatever else it ends with: an error may be what the signal did
    to others, and who tries again after an error must not swallow the signal.
    Signals reach the main thread alone: in any other nothing is changed.
    """
    stop = Stop()
    clear_stop()
    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop.handle) for number in mine}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopped = stop.asked
        clear_stop()
        if stopped and not isinstance(sys.exception(), KeyboardInterrupt):
            raise stop.error()


@contextmanager
def starting_without_interrupts() -> Iterator[None]:
    """Threads and processes started inside the block never see a SIGINT, nor do those that they start; one waits here.

    Ctrl-C goes to the terminal's every process, and a Python that still starts would answer with a traceback.
    """
    ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
