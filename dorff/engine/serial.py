"""The serial engine: one task after another in this process. The oracle of the tests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import final

import numpy as np

from dorff.engine.base import Done, Engine, Task, try_again
from dorff.engine.signals import Stop, stopping_on_signals
from dorff.engine.worker import forget_spare
from dorff.errors import CorruptError, StoppedError
from dorff.moments.blas import pinned


@final
class SerialEngine(Engine):
    """Runs tasks in the order given, or shuffled by a seed (results must not depend on it)."""

    threads = 1

    def __init__(self, *, shuffle: int | None = None) -> None:
        self._rng = None if shuffle is None else np.random.default_rng(shuffle)

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        try:
            with stopping_on_signals() as stop, pinned():
                self._run(deque(tasks), done, stop)
        finally:
            forget_spare()

    def _run(self, waiting: deque[Task], done: Done, stop: Stop) -> None:
        failures = Counter[int]()  # by the task's identity: tasks may be equal
        while waiting:
            if stop.asked:
                raise stop.error()
            if self._rng is not None:
                waiting.rotate(int(self._rng.integers(len(waiting))))
            task = waiting.popleft()
            try:
                result = task.function(*task.arguments)
            except StoppedError as error:
                raise stop.error() from error
            except (OSError, CorruptError) as error:
                failures[id(task)] += 1
                try_again(error, task, failures[id(task)])
                waiting.append(task)
            else:
                waiting.extendleft(done(task, result))


def serial_engine(cluster: object, patience: float) -> Engine:
    """The engine of a job's `cluster: {type: serial}`, which has no options that matter here and waits for nobody."""
    return SerialEngine()
