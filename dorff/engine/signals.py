"""The driver's signals: the first one asks for an orderly stop, the second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.resource_tracker import ensure_running
from types import FrameType
from typing import Final, final

from dorff.errors import StoppedError
from dorff.stopping import clear_stop, request_stop, stop_requested

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@final
class Stop:
    """Which signal asked this process to stop, if one did."""

    def __init__(self) -> None:
        self._caught: int | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal; KeyboardInterrupt at the second one."""
        if self._caught is not None:
            raise KeyboardInterrupt
        self._caught = number
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
    """Inside the block a first SIGTERM or SIGINT sets `dorff.stopping`, a second one is a KeyboardInterrupt at once.

    After a first one the block ends with `Stop.error`, if not with an error of its own: no signal is swallowed.
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
        asked = stop.asked
        clear_stop()
    if asked:
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
