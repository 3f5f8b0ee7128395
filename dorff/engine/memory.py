"""Memory of this process: its peak, its children's among it; and what it keeps from one task to the next."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt
import psutil

Square = npt.NDArray[np.float64]
_spare: Final[list[Square]] = []  # what this process's last leaf was summed in, for its next one


@final
class PeakMemory:
    """The largest sum of PSS (each shared page counted once) seen so far, in bytes; 0 where the system tells none."""

    def __init__(self) -> None:
        self.bytes = 0
        self._resident = 0

    def sample(self) -> None:
        """Look once, at this process and all below it.

        PSS is dear to ask for, so it is asked for when the cheap RSS has grown by a hundredth.
        """
        me = psutil.Process()
        pids = [process.pid for process in [me, *me.children(recursive=True)]]
        resident = sum(map(_resident, pids))
        if resident > 1.01 * self._resident:
            self._resident = resident
            self.bytes = max(self.bytes, sum(map(_proportional, pids)))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # gone meanwhile, or a system without /proc
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):  # gone meanwhile, or a system without /proc
        return 0
    return 0


@contextmanager
def peak_memory(*, every: float = 1.0) -> Iterator[PeakMemory]:
    """Sample about once in `every` seconds until the block ends; a sample costs about a millisecond."""
    peak, over = PeakMemory(), threading.Event()

    def watch() -> None:
        while not over.wait(every):
            peak.sample()

    thread = threading.Thread(target=watch, name="dorff-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        peak.sample()
        over.set()
        thread.join()


def spare_square(width: int) -> Square | None:
    """A square (w, w) that this process's last sums left, where there is one; whatever is in it."""
    try:
        square = _spare.pop()
    except IndexError:  # none, or another thread's by now
        return None
    return square if len(square) == width else None


def leave_spare(squares: Iterable[Square | None]) -> None:
    """Leave the squares of sums that are not used any more to this process's next ones."""
    _spare[:] = [square for square in squares if square is not None]


def forget_spare() -> None:
    """Give back the memory that this process keeps between its leaves; engines call it when a run is over."""
    _spare.clear()
