"""The engine's contract: run tasks in any order, with what each one's end asks for next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class Task:
    """A call of a module-level function with small arguments; `tag` is the caller's own, and stays with the driver."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tag: Any = None


Done = Callable[[Task, Any], Iterable[Task]]


class Engine(ABC):
    """Runs tasks. Every task may run more than once and on any process; results come back to the driver."""

    threads: int

    @abstractmethod
    def run(self, tasks: Iterable[Task], done: Done) -> None:
        """Run all tasks; `done(task, result)` is called in the driver at each end and gives the tasks that follow.

        Those go before the ones still waiting. A DorffError raised by a task ends the run and is raised here.
        """

    def close(self) -> None:  # noqa: B027 - nothing to close is the default
        """Give back what the engine holds."""
