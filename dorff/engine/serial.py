"""The serial engine: one task after another in this process. The oracle of the tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

import numpy as np

from dorff.blocks import forget_spare
from dorff.engine.base import Done, Engine, Task
from dorff.threads import pinned


@final
class SerialEngine(Engine):
    """Runs tasks in the order given, or shuffled by a seed (results must not depend on it)."""

    threads = 1

    def __init__(self, *, shuffle: int | None = None) -> None:
        self._rng = None if shuffle is None else np.random.default_rng(shuffle)

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        waiting = deque(tasks)
        try:
            with pinned():
                while waiting:
                    if self._rng is not None:
                        waiting.rotate(int(self._rng.integers(len(waiting))))
                    task = waiting.popleft()
                    waiting.extendleft(done(task, task.function(*task.arguments)))
        finally:
            forget_spare()
