"""The Dask engine: about two tasks a thread in flight on a cluster's workers; receipts travel, arrays do not."""

import math
import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from distributed import Client, Future, KilledWorker, LocalCluster

from dorff.engine.base import PATIENCE, TRIES, Done, Engine, Stop, Task, forget_spare, stopping_on_signals, try_again
from dorff.engine.worker import HUNG, NOTICE, Call, HungWorkers, own_versions, run_call, stop_run
from dorff.errors import IncompleteError, InputError, QuarantineError, StoppedError
from dorff.errors.stopping import stop_requested
from dorff.storage.bucket import count

LOSSES: Final = 10  # of a task whose scheduler was lost
Act = Callable[[], object]
_TICK: Final = 0.2  # seconds between looks at signals
_LOOK: Final = 1.0  # seconds between looks at the workers
_ANSWER: Final = 3.0  # seconds for an answer; who does not give one is asked again later


class DaskEngine(Engine):
    """Runs tasks on the workers of a Dask client.

    A task whose worker dies is run again by Dask itself, `distributed.scheduler.allowed-failures` times at most (none
    on a local cluster, 3 elsewhere if not configured). Then it is a suspect, as are tasks that only were on the same
    worker. Suspects run again at the end, one at a time, and one that dies alone after `TRIES` deaths or more is left
    out: it has killed three workers of a local cluster, or two where at its first death it only waited behind another.

    Who kills a worker Dask does not say. One that ends by SIGTERM is no death (`dorff.engine.worker`); but where they
    are killed outright, by a walltime or for their memory, an innocent task is left out if that meets it once in
    company, and then twice running alone, or `allowed-failures` + 1 times if that is more. Let workers live longer,
    be told, or allow more failures. The same command tries again what was left out.

    A local cluster's worker that neither speaks nor computes for `silence` seconds is killed, and another started. A
    run without a worker, or without a scheduler that answers, for `patience` seconds is an IncompleteError. `watch` is
    called several times a second while tasks run."""

    def __init__(
        self,
        client: Client,
        *,
        patience: float = PATIENCE,
        silence: float = HUNG,
        on_close: Act = lambda: None,
        watch: Act = lambda: None,
    ) -> None:
        self._client, self._patience, self._on_close = client, patience, on_close
        cluster = client.cluster
        self._watch = HungWorkers(cluster, after=silence).look if isinstance(cluster, LocalCluster) else watch

    @property
    def threads(self) -> int:  # type: ignore[override]
        return max(1, count_threads(self._client) or 0)

    @property
    def memory(self) -> float:  # type: ignore[override]
        scheduler: Any = self._client.scheduler
        with suppress(OSError):  # it does not say
            answer = self._client.sync(scheduler.identity, n_workers=-1, callback_timeout=_ANSWER)
            return max((one["memory_limit"] or math.inf for one in answer["workers"].values()), default=math.inf)
        return math.inf

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        try:
            with stopping_on_signals() as stop:
                _DaskRun(self._client, done, stop, self._patience, self._watch).run(tasks)
        finally:
            _tell(self._client, forget_spare)  # a cluster may outlive the run

    def close(self) -> None:
        try:
            with suppress(TimeoutError):  # of a scheduler that does not answer
                self._client.close(timeout=_ANSWER)
        finally:
            self._on_close()


class _Try(NamedTuple):
    task: Task
    failures: int = 0
    losses: int = 0
    deaths: int = 0  # of workers; one makes it a suspect


class _DaskRun:
    """One call of `DaskEngine.run`."""

    def __init__(self, client: Client, done: Done, stop: Stop, patience: float, watch: Act) -> None:
        self._client, self._done, self._stop, self._watch = client, done, stop, watch
        self._name, self._versions = uuid.uuid4().hex, own_versions()
        self._waiting, self._suspects = deque[_Try](), deque[_Try]()
        self._running = dict[Future[Any], _Try]()
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._killers: list[Task] = []
        self._workers = _Workers(client, patience)

    def run(self, tasks: Iterable[Task]) -> None:
        self._waiting.extend(map(_Try, tasks))
        try:
            while self._waiting or self._running or self._suspects:
                if stop_requested():
                    self._end_all()
                    raise self._stop.error()
                self._workers.look()
                self._watch()
                if self._client.status == "running":
                    while self._waiting and len(self._running) < max(1, 2 * self._workers.threads):
                        self._send(self._waiting.popleft())
                    if self._suspects and not self._running:
                        self._send(self._suspects.popleft())
                with suppress(queue.Empty):
                    self._take(self._ended.get(timeout=_TICK))
        finally:
            for future in self._running:
                future.release()  # what nobody wants is not run
        if self._killers and not stop_requested():
            names = ", ".join(map(str, self._killers))
            problem = f"tasks killed their worker every time they were tried: {names}; all others are done, and kept"
            remedy = "give workers more memory, or look at their logs, and run the same command again"
            raise QuarantineError(f"{problem}: {remedy}", tuple(task.tag for task in self._killers))

    def _send(self, attempt: _Try) -> None:
        call = Call(self._name, self._versions, attempt.task.function, attempt.task.arguments)
        future = self._client.submit(run_call, call, pure=False)
        self._running[future] = attempt
        future.add_done_callback(self._ended.put)

    def _take(self, future: Future[Any]) -> None:
        attempt = self._running[future]
        try:
            result, asked = future.result(timeout=_ANSWER)
        except CancelledError:  # the scheduler went away; the one that comes back is sent what was running again
            if attempt.losses + 1 >= LOSSES:
                remedy = "what is done is kept: look at the scheduler, and run the same command again"
                raise IncompleteError(f"the cluster lost a task {LOSSES} times ({attempt.task}); {remedy}") from None
            self._again(attempt._replace(losses=attempt.losses + 1))
        except Exception as error:
            if future.status != "error":  # its worker died with the result, or does not answer: Dask makes it again
                if not isinstance(error, OSError):
                    raise
                future.add_done_callback(self._ended.put)
                return
            self._failed(attempt, error)
        else:
            count(**asked)
            self._waiting.extendleft(map(_Try, self._done(attempt.task, result)))
        del self._running[future]
        future.release()

    def _failed(self, attempt: _Try, error: Exception) -> None:
        self._workers.missed = -1.0  # there was one, if too short for a look
        if isinstance(error, KilledWorker):
            deaths = attempt.deaths + error.allowed_failures + 1
            if attempt.deaths and deaths >= TRIES:
                self._killers.append(attempt.task)
            else:
                self._again(attempt._replace(deaths=deaths))
        elif isinstance(error, StoppedError):  # its worker was told to end; what it has done it has saved
            self._again(attempt)
        elif isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "dorff":
            raise InputError("a worker has no dorff; start workers from the driver's environment") from error
        else:
            try_again(error, attempt.task, attempt.failures + 1)
            self._again(attempt._replace(failures=attempt.failures + 1))

    def _again(self, attempt: _Try) -> None:
        (self._suspects if attempt.deaths else self._waiting).append(attempt)

    def _end_all(self) -> None:
        """Ask the tasks that run to stop, and wait until they have saved what they have."""
        until = time.monotonic() + NOTICE
        while time.monotonic() < until:
            busy = _tell(self._client, stop_run, self._name)
            if busy is not None and not any(busy.values()):
                return
            time.sleep(_TICK)


class _Workers:
    """How many threads there are, looked at once in a while; IncompleteError after `patience` seconds of none."""

    def __init__(self, client: Client, patience: float) -> None:
        self._client, self._patience = client, patience
        self._looked = self.missed = -1.0
        self.threads = 0

    def look(self) -> None:
        now = time.monotonic()
        if self._looked >= 0 and now - self._looked < _LOOK:
            return
        threads = count_threads(self._client)
        self._looked = time.monotonic()
        if threads:
            self.threads, self.missed = threads, -1.0
        elif self.missed < 0:
            self.missed = now
        elif now - self.missed > self._patience or self._client.status == "closed":
            who = "no workers" if threads == 0 else "the cluster's scheduler did not answer"
            remedy = "what is done is kept: look at the cluster, and run the same command again"
            raise IncompleteError(f"{who} for {self._looked - self.missed:.0f} s; {remedy}")


def count_threads(client: Client) -> int | None:
    """Threads of all workers; None where the scheduler does not say."""
    if client.status != "running" or (scheduler := client.scheduler) is None:
        return None
    with suppress(OSError):  # a TimeoutError is one
        return sum(map(int, client.sync(scheduler.ncores, callback_timeout=_ANSWER).values()))
    return None


def _tell(client: Client, function: Callable[..., object], *arguments: object) -> dict[str, Any] | None:
    """Have the workers call this, and what they answer; None where one of them does not within seconds."""
    if client.status != "running":
        return {}
    with suppress(OSError):
        options: Any = {"on_error": "ignore", "callback_timeout": _ANSWER}
        return cast(dict[str, Any], client.sync(client._run, function, *arguments, **options))
    return None
