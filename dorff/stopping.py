"""Whether this process has been asked to stop its leaf at the end of a block."""

from __future__ import annotations

import signal
import threading
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
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
