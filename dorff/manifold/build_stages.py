"""Runs the stages of a build on an engine: what is missing is made, and what turns out damaged is made again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar, final

from dorff.data import Dataset
from dorff.engine import Engine, Task
from dorff.errors import IncompleteError
from dorff.manifold.build_frame import BuildTask, ChangedError, DamagedError, Frame, Slip, lasting, load_frame

T = TypeVar("T")
Stage = Callable[[Frame, Dataset, BuildTask], Slip]
Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much
AGAIN: Final = 5  # times that one task's files may turn out damaged


@final
@dataclass(frozen=True)
class Lost:
    """A task could not be done: the files of other tasks are missing or damaged."""

    jobs: tuple[BuildTask, ...]


@final
@dataclass(frozen=True)
class Changed:
    """A task came to another result than before: what later tasks made of that is of no use."""


def run_job(stage: Stage, directory: str, dataset: Dataset, job: BuildTask, base: str) -> Slip | Lost | Changed:
    """Do a task of a build, on a worker; leave (and return) its slip.

    A slip is void from before its files are touched, and one of another digest is left so: wherever this or the driver
    is killed, the next run comes here again.
    """
    try:
        with lasting(Path(directory)):
            frame = load_frame(Path(directory))
            earlier = Slip.void(frame, job)
            found = replace(stage(frame, dataset, job), base=base)
            if earlier is not None and earlier.digest != found.digest:
                return Changed()
            return found.save(frame)
    except ChangedError:
        return Changed()
    except DamagedError as error:
        return Lost(error.jobs)


@final
class Stages:
    """The tasks of a build and their slips. `names` are the stages with what they do, for messages."""

    def __init__(
        self, frame: Frame, dataset: Dataset, engine: Engine, told: Told, stages: Mapping[str, tuple[Stage, str]]
    ) -> None:
        self._frame, self._dataset, self._engine, self._told, self._stages = frame, dataset, engine, told, stages
        self.slips: dict[BuildTask, Slip] = {}
        self._bases: dict[tuple[int, str], str] = {}

    def run(
        self, stage: str, generation: int, numbers: Iterable[int], stamp: Callable[[int], str] = lambda number: ""
    ) -> list[Slip]:
        """All slips of a stage, in order: those that are there and whose stamps are these, or made now.

        Raises:
            ChangedError: a task that was done on other files came to another result, now or before.
            IncompleteError: files turned out damaged again and again.
        """
        jobs = [BuildTask(stage, generation, number) for number in numbers]
        missing = []
        for job in jobs:
            if (found := Slip.load(self._frame, job)) is not None:
                self._take(found)
            if found is None or found.stamp != stamp(job.number):
                missing.append(job)
        words = self._stages[stage][1]
        waiting: dict[BuildTask, list[BuildTask]] = {}
        lost = Counter[BuildTask]()
        left = set(missing)

        def done(task: Task, result: Slip | Lost | Changed) -> Sequence[Task]:
            job: BuildTask = task.tag
            if isinstance(result, Changed):
                raise ChangedError
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

    def _lost(
        self, job: BuildTask, result: Lost, waiting: dict[BuildTask, list[BuildTask]], lost: Counter[BuildTask]
    ) -> list[Task]:
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
        if slip.base != self._base(slip.job) or (earlier is not None and earlier.digest != slip.digest):
            raise ChangedError
        self.slips[slip.job] = slip

    def _base(self, job: BuildTask) -> str:
        """What a task is made of: see `Slip`. Those before it are all done when its stage begins."""
        key = (job.generation, job.stage)
        if key not in self._bases:
            order = list(self._stages)
            place = (job.generation, order.index(job.stage))
            before = [
                f"{one} {slip.digest}"
                for one, slip in sorted(self.slips.items())
                if slip.stamp and (one.generation, order.index(one.stage)) < place
            ]
            self._bases[key] = hashlib.blake2b("\n".join(before).encode(), digest_size=8).hexdigest()
        return self._bases[key]

    def _task(self, job: BuildTask) -> Task:
        function, words = self._stages[job.stage]
        arguments = (function, str(self._frame.directory), self._dataset, job, self._base(job))
        return Task(run_job, arguments, job, f"{words} ({job.number})")

    def sure(self, read: Callable[[], T]) -> T:
        """What `read` gives in the driver; files that it finds damaged are made again."""
        for _ in range(AGAIN):
            try:
                return read()
            except DamagedError as error:
                for job in error.jobs:
                    Slip.void(self._frame, job)
                    self.run(job.stage, job.generation, [job.number])
        return read()
