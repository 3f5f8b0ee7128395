"""The Dask engine: about two tasks a thread in flight on a cluster's workers; receipts travel, arrays do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, final

from distributed import Client, Future, KilledWorker, as_completed

from dorff.engine.base import Done, Engine, Task
from dorff.errors import IncompleteError
from dorff.threads import pin

ATTEMPTS = 3


@final
class DaskEngine(Engine):
    """Runs tasks on the workers of a Dask client. A task whose worker dies is run again, at most 3 times."""

    def __init__(self, client: Client, *, on_close: Callable[[], object] = lambda: None) -> None:
        self._client, self._on_close = client, on_close

    @property
    def threads(self) -> int:  # type: ignore[override]
        """Threads of all workers now; workers may come and go."""
        return max(1, sum(int(count) for count in self._client.nthreads().values()))

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        waiting, running = deque(tasks), dict[Future[Any], tuple[Task, int]]()
        finished = as_completed()
        failed = dict[int, int]()
        while waiting or running:
            while waiting and len(running) < 2 * self.threads:
                task = waiting.popleft()
                future = self._client.submit(_on_worker, task.function, task.arguments, pure=False)
                running[future] = (task, failed.get(id(task), 0))
                finished.add(future)
            future = next(finished)
            task, attempts = running.pop(future)
            error = future.exception() if future.status == "error" else None
            if future.status == "finished":
                waiting.extendleft(done(task, future.result()))
            elif error is None or isinstance(error, KilledWorker):
                # Lost or cancelled with its worker or scheduler: nothing on a worker is irreplaceable.
                if attempts + 1 >= ATTEMPTS:
                    raise IncompleteError(
                        f"a task killed its worker {ATTEMPTS} times ({task.tag}); what is done is kept: give workers "
                        "more memory, or look at their logs, and run the same command again"
                    ) from error
                failed[id(task)] = attempts + 1
                waiting.append(task)
            else:
                self._client.cancel(list(running))
                raise error
            future.release()

    def close(self) -> None:
        self._client.close()
        self._on_close()


def _on_worker(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    pin()
    return function(*arguments)
