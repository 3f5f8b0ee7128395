"""The engine's contract: run tasks in any order, with what each one's end asks for next."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from dorff.errors import CorruptError, IncompleteError, InputError

TRIES: Final = 3  # of a task whose storage fails, whose sums do not agree with themselves, or whose worker dies
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


@final
@dataclass(frozen=True)
class Task:
    """A call of a module-level function with small arguments; `tag` is the caller's own, and stays with the driver.

    `name` is what messages call it; by default its tag.
    """

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

    @abstractmethod
    def run(self, tasks: Iterable[Task], done: Done) -> None:
        """Run all tasks; `done(task, result)` is called in the driver at each end and gives the tasks that follow.

        Those go before the ones still waiting. A DorffError raised by a task ends the run and is raised here, but:

        - an OSError or a CorruptError is tried again, three times in all, and ends the run as an IncompleteError;
        - a task that kills its worker every time is left out after three workers; all others are done, but those
          that it would have made possible; then a QuarantineError names it.

        A first SIGTERM or SIGINT is an orderly stop: the tasks that run are asked to stop (`process.stopping`), and
        the run ends with a StoppedError or, of SIGINT, a KeyboardInterrupt, even where all were done by then. A second
        signal ends the run at once.
        """

    def close(self) -> None:  # noqa: B027 - nothing to close is the default
        """Give back what the engine holds."""


def try_again(error: BaseException, task: Task, failures: int) -> None:
    """Return where a task that has failed so many times is worth another try; raise what ends the run otherwise."""
    if isinstance(error, CorruptError) and failures < TRIES:
        return
    if not isinstance(error, OSError):
        raise error
    where = error.filename or task
    if error.errno in _FULL:
        raise IncompleteError(
            f"{where}: no space left on the disk; what is done is kept: free some, and run the same command again"
        ) from error
    if error.errno in _CLOSED:
        raise InputError(f"{where}: {error.strerror}; check the path and its permissions") from error
    if failures >= TRIES:
        raise IncompleteError(
            f"{where}: {error.strerror or error}, {TRIES} times over; what is done is kept: look at the disk or the "
            "network it is on, and run the same command again"
        ) from error
