"""Runs the stages of a build on an engine: what is missing is made, and what turns out damaged is made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from dorff.data import Dataset
from dorff.engine import Engine, Task
from dorff.errors import IncompleteError
from dorff.manifold.build_frame import ChangedError, DamagedError, Frame, Job, Slip, load_frame

T = TypeVar("T")
Stage = Callable[[Frame, Dataset, Job], Slip]
Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much
AGAIN: Final = 5  # times that one task's files may turn out damaged


@final
@dataclass(frozen=True)
class Lost:
    """A task could not be done: the files of other tasks are missing or damaged."""

    jobs: tuple[Job, ...]


def run_job(stage: Stage, directory: str, dataset: Dataset, job: Job) -> Slip | Lost:
    """Do a task of a build, on a worker; leave (and return) its slip."""
    try:
        return stage(load_frame(Path(directory)), dataset, job)
    except DamagedError as error:
        return Lost(error.jobs)


@final
class Stages:
    """The tasks of a build and their slips. `names` are the stages with what they do, for messages."""

    def __init__(
        self, frame: Frame, dataset: Dataset, engine: Engine, told: Told, stages: Mapping[str, tuple[Stage, str]]
    ) -> None:  # fmt: skip
        self._frame, self._dataset, self._engine, self._told, self._stages = frame, dataset, engine, told, stages
        self.slips: dict[Job, Slip] = {}

    def run(
        self, stage: str, generation: int, numbers: Iterable[int], stamp: Callable[[int], str] = lambda number: ""
    ) -> list[Slip]:
        """All slips of a stage, in order: those that are there and whose stamps are these, or made now.

        Raises:
            ChangedError: a task that was done on other files came to another result.
            IncompleteError: files turned out damaged again and again.
        """
        jobs = [Job(stage, generation, number) for number in numbers]
        for job in jobs:
            if (found := Slip.load(self._frame, job)) is not None:
                self.slips[job] = found
        missing = [job for job in jobs if job not in self.slips or self.slips[job].stamp != stamp(job.number)]
        words = self._stages[stage][1]
        waiting: dict[Job, list[Job]] = {}
        lost = Counter[Job]()
        left = set(missing)

        def done(task: Task, result: Slip | Lost) -> Sequence[Task]:
            job: Job = task.tag
            if isinstance(result, Lost):
                return self._lost(job, result, waiting, lost)
            self._take(result)
            if job in left:
                left.discard(job)
                self._told(words, len(jobs) - len(left), len(jobs))
            return [self._task(one) for one in waiting.pop(job, [])]

        self._told(words, len(jobs) - len(left), len(jobs))
        if missing:
            self._engine.run([self._task(job) for job in missing], done)
        return [self.slips[job] for job in jobs]

    def _lost(self, job: Job, result: Lost, waiting: dict[Job, list[Job]], lost: Counter[Job]) -> list[Task]:
        """The tasks that make what another one misses; that one follows the last of them."""
        tasks = []
        for one in result.jobs:
            if one not in waiting:
                lost[one] += 1
                if lost[one] > AGAIN:
                    raise IncompleteError(
                        f"{self._frame.path(one)}: missing or damaged again and again; check the disk, and that every "
                        "worker sees this folder, then run again"
                    )
                tasks.append(self._task(one))
            if one == result.jobs[-1]:
                waiting.setdefault(one, []).append(job)
            else:
                waiting.setdefault(one, [])
        return tasks

    def _take(self, slip: Slip) -> None:
        earlier = self.slips.get(slip.job)
        if earlier is not None and earlier.digest != slip.digest:
            raise ChangedError
        self.slips[slip.job] = slip

    def _task(self, job: Job) -> Task:
        function, words = self._stages[job.stage]
        arguments = (function, str(self._frame.directory), self._dataset, job)
        return Task(run_job, arguments, job, f"{words} ({job.number})")

    def sure(self, read: Callable[[], T]) -> T:
        """What `read` gives in the driver; files that it finds damaged are made again."""
        for _ in range(AGAIN):
            try:
                return read()
            except DamagedError as error:
                for job in error.jobs:
                    self._frame.path(job, "json").unlink(missing_ok=True)
                    self.slips.pop(job, None)
                    self.run(job.stage, job.generation, [job.number])
        return read()

    def drop(self, stage: str, generation: int) -> None:
        """Delete the files of a stage that nothing reads any more; its slips stay."""
        folder = self._frame.path(Job(stage, generation, 0)).parent
        for file in folder.glob("*.parts"):
            file.unlink(missing_ok=True)
