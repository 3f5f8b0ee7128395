"""The engine's contract; the serial engine, the oracle of the tests; the driver's signals; memory."""

import errno
import gc
import logging
import math
import signal
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.resource_tracker import ensure_running
from types import FrameType
from typing import Any, Final

import numpy as np
import psutil

from dorff.errors import NO_SPACE, CorruptError, DoesNotFitError, IncompleteError, InputError, StoppedError
from dorff.errors.stopping import SIGNALS, clear_stop, request_stop, stop_requested
from dorff.moments.blas import FloatArray, pinned
from dorff.spec.cluster import ClusterSpec
from dorff.spec.registry import CLUSTERS

PATIENCE: Final = 45.0  # seconds without a scheduler that answers, or without a worker
_ONE: Final = 0.1  # seconds in which two signals are one: `timeout` sends it to the process, and to its group
TRIES: Final = 3  # of a task whose storage fails, whose sums do not agree with themselves, or whose worker dies
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_spare: Final[list[FloatArray]] = []  # what this process's last leaf was summed in, for its next one


class Stop:
    """Which signal asked this process to stop, if one did."""

    _caught, _at = 0, 0.0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal; KeyboardInterrupt at the second one."""
        now = time.monotonic()
        if self._caught and now - self._at > _ONE:
            raise KeyboardInterrupt
        self._caught, self._at = number, now
        request_stop()

    def error(self) -> BaseException:
        """What a run ends with that was stopped."""
        if self._caught == signal.SIGINT:
            return KeyboardInterrupt()
        return StoppedError("stopped; what is done is kept, and the same command goes on from there")


@contextmanager
def stopping_on_signals() -> Iterator[Stop]:
    """Inside the block a first SIGTERM or SIGINT sets `errors.stopping`, a second one is a KeyboardInterrupt at once.
    After a first one the block ends with `Stop.error`, whatever else it ends with: an error may be what the signal did
    to others, and who tries again after an error must not swallow the signal. Signals reach the main thread alone: in
    any other nothing is changed."""
    stop = Stop()
    clear_stop()
    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop.handle) for number in mine}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopped = stop_requested()
        clear_stop()
        if stopped and not isinstance(sys.exception(), KeyboardInterrupt):
            raise stop.error()


@contextmanager
def starting_without_interrupts() -> Iterator[None]:
    """Threads and processes started inside the block never see a SIGINT, nor do those that they start; one waits here.
    Ctrl-C goes to the terminal's every process, and a Python that still starts would answer with a traceback."""
    ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Task:
    """A call of a module-level function with small arguments; `tag` is the caller's own, and stays with the driver.
    `name` is what messages call it; by default its tag."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tag: Any = None
    name: str | None = None

    def __str__(self) -> str:
        return str(self.tag) if self.name is None else self.name


Done = Callable[[Task, Any], Iterable[Task]]


class Engine(ABC):
    """Runs tasks. Every task may run more than once and on any process; results come back to the driver."""

    threads: int
    memory: float = math.inf  # bytes of the largest worker now, of one without a limit too

    @abstractmethod
    def run(self, tasks: Iterable[Task], done: Done) -> None:
        """Run all tasks; `done(task, result)` is called in the driver at each end and gives the tasks that follow.

        Those go before the ones still waiting. A DorffError raised by a task ends the run and is raised here, but:

        - an OSError or a CorruptError is tried again, three times in all, and ends the run as an IncompleteError;
        - a task that kills its worker every time is left out after three workers; all others are done, but those
          that it would have made possible; then a QuarantineError names it.

        A first SIGTERM or SIGINT is an orderly stop: tasks are asked to stop (`errors.stopping`), and the run ends with
        a StoppedError or, of SIGINT, a KeyboardInterrupt, even where all were done. A second one ends it at once."""

    def close(self) -> None:  # noqa: B027 - nothing to close is the default
        """Give back what the engine holds."""


def try_again(error: BaseException, task: Task, failures: int) -> None:
    """Return where a task that has failed so many times is worth another try; raise what ends the run otherwise."""
    if isinstance(error, CorruptError) and failures < TRIES:
        return
    if not isinstance(error, OSError) or isinstance(error, InputError):
        raise error
    where = error.filename or task
    if error.errno in _CLOSED:
        raise InputError(f"{where}: {error.strerror}; check the path and its permissions") from error
    if (full := error.errno in NO_SPACE) or failures >= TRIES:
        problem = "no space left on the disk" if full else f"{error.strerror or error}, {TRIES} times over"
        remedy = "free some" if full else "look at the disk or the network it is on"
        kept = f"what is done is kept: {remedy}, and run the same command again"
        raise IncompleteError(f"{where}: {problem}; {kept}") from error


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
            if stop_requested():
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


@contextmanager
def open_engine(cluster: ClusterSpec, *, patience: float = PATIENCE, needs: float = 0.0) -> Iterator[Engine]:
    """The engine for a job's cluster, closed at the end of the block. A cluster that should be running has `patience`
    seconds to answer and to have a worker, and as long again whenever it falls silent. IncompleteError where it does
    not; InputError where it would be reached by plain TCP off loopback, or a worker has other versions than the driver;
    DoesNotFitError where no worker of it has the bytes it `needs`."""
    if (entry := CLUSTERS.get(cluster.type)) is None:
        raise InputError(f"cluster.type: no installed package has '{cluster.type}'; install the one that has")
    silent: AbstractContextManager[None] = nullcontext()
    if not cluster.in_driver:  # Dask's log is not shown: what matters is raised in the driver
        from distributed.utils import silence_logging_cmgr

        silent = silence_logging_cmgr(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a client that failed before left open
            gc.collect()  # Dask's thread, were it to collect such a client, would wait for who waits for it
    with silent, closing(_started(entry.build, cluster, patience)) as engine:
        if math.isinf(cluster.memory) and 0.95 * (largest := engine.memory) < needs:
            has = f"a worker needs {needs / 0.95 / 2**20:.0f} MiB, and the largest has {largest / 2**20:.0f} MiB"
            raise DoesNotFitError(f"cluster: {has}; start larger ones (--memory-limit), or lower features.count")
        yield engine


def _started(start: Callable[..., Engine], cluster: ClusterSpec, patience: float) -> Engine:
    try:
        return start(cluster, patience)
    except AssertionError as error:  # Dask's own, where its thread has not started after 10 s
        if traceback.extract_tb(error.__traceback__)[-1].name != "_start_unlocked":
            raise
        problem = f"cluster.type {cluster.type}: no thread could be started within 10 s"
        raise IncompleteError(f"{problem}; this machine has too much to do, run again when it has less") from error


class PeakMemory:
    """The largest sum of PSS (each shared page counted once) seen so far, in bytes; 0 where the system tells none."""

    bytes = _resident = 0

    def sample(self) -> None:
        """Look once, at this process and all below; PSS, which is dear, when the cheap RSS has grown by a hundredth."""
        me = psutil.Process()
        processes = [me, *me.children(recursive=True)]
        resident = sum(_bytes(process, shared=True) for process in processes)
        if resident > 1.01 * self._resident:
            self._resident = resident
            self.bytes = max(self.bytes, sum(_bytes(process, shared=False) for process in processes))


def _bytes(process: psutil.Process, *, shared: bool) -> int:
    """RSS, all that is `shared` in it, or PSS; 0 of a process that is gone, and of a system that does not tell."""
    with suppress(psutil.Error, AttributeError):
        return int(process.memory_info().rss if shared else process.memory_full_info().pss)
    return 0


@contextmanager
def peak_memory(*, every: float = 1.0) -> Iterator[PeakMemory]:
    """Sample about once in `every` seconds until the block ends; a sample costs about a millisecond."""
    peak = PeakMemory()
    try:
        with repeating(peak.sample, every, "dorff-memory"):
            yield peak
    finally:
        peak.sample()


@contextmanager
def repeating(action: Callable[[], None], every: float, name: str) -> Iterator[None]:
    """Do this once in `every` seconds until the block ends, in a thread of this name."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every):
            action()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def spare_square(width: int) -> FloatArray | None:
    """A square (w, w) that this process's last sums left, where there is one; whatever is in it."""
    try:
        square = _spare.pop()
    except IndexError:  # none, or another thread's by now
        return None
    return square if len(square) == width else None


def leave_spare(squares: Iterable[FloatArray | None]) -> None:
    """Leave the squares of sums that are not used any more to this process's next ones."""
    _spare[:] = [square for square in squares if square is not None]


def forget_spare() -> None:
    """Give back the memory that this process keeps between its leaves; engines call it when a run is over."""
    _spare.clear()
