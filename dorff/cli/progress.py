"""Progress on stderr: a bar on a terminal, elsewhere a line every so often."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, final

from dorff.cli.logs import say

EVERY: Final = 10.0  # seconds between lines


class Progress(Protocol):
    """Told how many rows, or whatever is counted, are done, of how many in all where that is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def meter(what: str, unit: str = "rows") -> Iterator[Progress]:
    """Show the rows (or other units) that are done, rows a second and the time left, until the block ends.

    The first call sets where the pace is counted from.
    """
    with (_bar if sys.stderr.isatty() else _lines)(what, unit) as progress:
        yield progress


@final
class _Rate:
    """Rows a second since the first call; `clock` is for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unit: str = "rows") -> None:
        self._clock, self._unit = clock, unit
        self._first: tuple[int, float] | None = None

    def text(self, done: int, total: int | None) -> str:
        now = self._clock()
        self._first = self._first or (done, now)
        rows, since = self._first
        parts = [f"{done:,} {self._unit}" if total is None else f"{done:,} of {total:,} {self._unit}"]
        if done > rows and now > since:
            rate = (done - rows) / (now - since)
            parts.append(f"{rate:,.0f} {self._unit}/s")
            if total is not None and done < total:
                parts.append(f"{timedelta(seconds=round((total - done) / rate))} left")
        return ", ".join(parts)


@contextmanager
def _lines(what: str, unit: str) -> Iterator[Progress]:
    pace, last = _Rate(unit=unit), time.monotonic()
    waiting: Callable[[], None] | None = None

    def progress(done: int, total: int | None = None, /) -> None:
        nonlocal last, waiting
        waiting = partial(say, f"{what}: {pace.text(done, total)}", clock=True, done=done, total=total, unit=unit)
        if time.monotonic() - last >= EVERY:
            waiting()
            last, waiting = time.monotonic(), None

    yield progress
    if waiting is not None:
        waiting()


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    from rich import progress as rich
    from rich.console import Console

    pace, columns = _Rate(unit=unit), (rich.TextColumn(what), rich.BarColumn(), rich.TextColumn("{task.fields[pace]}"))
    with rich.Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(what, total=None, pace="starting")

        def progress(done: int, total: int | None = None, /) -> None:
            bar.update(task, completed=done, total=total, pace=pace.text(done, total))

        yield progress
