"""The Dask engine: about two tasks a thread in flight on a cluster's workers; receipts travel, arrays do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, final

from distributed import Client, Future, KilledWorker, as_completed

from dorff.blocks import forget_spare
from dorff.engine.base import Done, Engine, Task
from dorff.errors import IncompleteError
from dorff.threads import pin

ATTEMPTS = 3  # of a task that Dask loses: its scheduler restarted, say


@final
class DaskEngine(Engine):
    """Runs tasks on the workers of a Dask client.

    A task whose worker dies is run again by Dask itself, `distributed.scheduler.allowed-failures` times at most.
    """

    def __init__(self, client: Client, *, on_close: Callable[[], object] = lambda: None) -> None:
        self._client, self._on_close = client, on_close

    @property
    def threads(self) -> int:  # type: ignore[override]
        """Threads of all workers now; workers may come and go."""
        return max(1, sum(int(count) for count in self._client.nthreads().values()))

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        try:
            self._run(tasks, done)
        finally:
            self._client.run(forget_spare, wait=False, on_error="ignore")  # a cluster may outlive the run

    def _run(self, tasks: Iterable[Task], done: Done) -> None:
        waiting = deque((task, 1) for task in tasks)
        running = dict[Future[Any], tuple[Task, int]]()
        finished = as_completed()
        while waiting or running:
            while waiting and len(running) < 2 * self.threads:
                task, attempt = waiting.popleft()
                future = self._client.submit(_on_worker, task.function, task.arguments, pure=False)
                running[future] = (task, attempt)
                finished.add(future)
            future = next(finished)
            task, attempt = running.pop(future)
            if future.status == "finished":
                waiting.extendleft((following, 1) for following in done(task, future.result()))
            elif future.status == "error":
                self._client.cancel(list(running))
                raise _as_raised(future.exception(), task)
            elif attempt < ATTEMPTS:
                waiting.append((task, attempt + 1))
            else:
                raise IncompleteError(
                    f"the cluster lost a task {ATTEMPTS} times ({task.tag}); what is done is kept: look at the "
                    "scheduler, and run the same command again"
                )
            future.release()

    def close(self) -> None:
        self._client.close()
        self._on_close()


def _as_raised(error: BaseException, task: Task) -> BaseException:
    """The task's own error, or in dorff's words that its workers died."""
    if not isinstance(error, KilledWorker):
        return error
    found = IncompleteError(
        f"a task killed its worker every time it was tried ({task.tag}); what is done is kept: give workers more "
        "memory, or look at their logs, and run the same command again"
    )
    found.__cause__ = error
    return found


def _on_worker(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    pin()
    return function(*arguments)
