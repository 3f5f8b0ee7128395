"""What all tasks of one graph's building have in common, frozen in its folder; and where their files lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np

from dorff.data import Dataset
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN, Graph
from dorff.manifold.build_files import FloatArray, IntArray, read_parts, read_record, write_record
from dorff.passes import not_finite
from dorff.plan.graph_sizes import Sizes

T = TypeVar("T")
TRIES: Final = 3  # of rows that change while they are read
FRAME: Final = "graph.json"
GENERATION: Final = "generation.json"
VOID: Final = "void"  # the stamp of no file: of a task that is to be done again


class BuildTask(NamedTuple):
    """A task of a build: its stage, the generation of rows that it is of, and its number in the stage.

    Runs of rows and shards are numbered through all generations.
    """

    stage: str
    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.stage} {self.number}"


class DamagedError(Exception):
    """Files of a build are missing or damaged; `jobs` make them again."""

    def __init__(self, *jobs: BuildTask) -> None:
        super().__init__(*map(str, jobs))
        self.jobs = jobs


class ChangedError(Exception):
    """What a build was made of, or its own record, is not what it was: another one is to be begun."""


@final
@dataclass(frozen=True, eq=False)
class Frame:
    """A build: its folder, what its graph is, and how inputs are scaled and rows are cut. `columns` (k,) are those
    that distances are of; `step` the rows of a run. `said` is all of it as JSON."""

    directory: Path
    graph: Graph
    columns: IntArray
    center: FloatArray
    scale: FloatArray
    step: int
    seed: int
    nan: str
    sizes: Sizes
    said: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, directory: Path, said: dict[str, Any]) -> Frame:
        return cls(
            directory, Graph.from_config(said["graph"]), np.array(said["columns"], np.int64),
            np.array(said["center"]), np.array(said["scale"]), said["step"], said["seed"], said["nan"],
            Sizes(**said["sizes"]), said,
        )  # fmt: skip

    def save(self) -> None:
        write_record(self.directory / FRAME, self.said, sync=True)

    @property
    def knn(self) -> KNN:
        assert isinstance(self.graph, KNN)
        return self.graph

    def scaled(self, X: FloatArray) -> FloatArray:
        """The columns (n, k) of inputs (n, d) that distances are of, as the features see them."""
        return (X[:, self.columns] - self.center) / self.scale

    def path(self, job: BuildTask, suffix: str = "parts") -> Path:
        """A file that a task writes."""
        return self.directory / f"{job.generation:03d}" / job.stage / f"{job.number:06d}.{suffix}"

    def read(self, job: BuildTask, numbers: Sequence[int]) -> list[bytes]:
        """Parts of a task's file. DamagedError."""
        try:
            return read_parts(self.path(job), numbers)
        except (FileNotFoundError, ValueError) as error:
            raise DamagedError(job) from error

    def numbers(self, job: BuildTask, *numbers: int) -> list[IntArray]:
        """Parts that are whole numbers. DamagedError."""
        return [np.frombuffer(part, "<i8") for part in self.read(job, numbers)]

    def begin(self, generation: int, start: int, stop: int) -> None:
        """Write down the rows of a generation."""
        path = self.directory / f"{generation:03d}" / GENERATION
        write_record(path, {"start": start, "stop": stop}, sync=True)

    def span(self, generation: int) -> tuple[int, int] | None:
        """The rows of a generation; None where there is none yet. ChangedError where that is damaged."""
        try:
            found = read_record(self.directory / f"{generation:03d}" / GENERATION)
        except FileNotFoundError:
            return None
        if found is None:
            raise ChangedError
        return found["start"], found["stop"]

    def begun(self, generation: int) -> tuple[int, int]:
        """The rows of a generation that there is. IncompleteError where there is none: its folder was deleted."""
        span = self.span(generation)
        if span is None:
            raise _deleted(self.directory)
        return span

    def cuts(self, generation: int) -> IntArray:
        """(runs, 2): the first row of each run of a generation and the one after its last."""
        start, stop = self.begun(generation)
        edges = [start, *range(start - start % self.step + self.step, stop, self.step), stop]
        return np.array([*pairwise(edges)], np.int64)

    def runs(self, generation: int) -> IntArray:
        """(runs, 2): those of all generations up to this one."""
        return np.concatenate([_cuts(self.directory, one) for one in range(generation + 1)])

    def run_job(self, generation: int, run: int) -> BuildTask:
        """The task that wrote the files of a run, of a generation or an older one."""
        ends = np.cumsum([len(_cuts(self.directory, one)) for one in range(generation + 1)])
        return BuildTask("assign", int(np.searchsorted(ends, run, "right")), run)

    def new_runs(self, generation: int) -> range:
        """The numbers of a generation's own runs."""
        every, own = len(self.runs(generation)), len(_cuts(self.directory, generation))
        return range(every - own, every)


@lru_cache(maxsize=16)
def load_frame(directory: Path) -> Frame:
    """The build in a folder. IncompleteError where there is none any longer, or it is damaged."""
    try:
        said = read_record(directory / FRAME)
    except FileNotFoundError as error:
        raise _deleted(directory) from error
    if said is None:
        raise IncompleteError(f"{directory}: the graph's record is damaged; run the job again")
    return Frame.of(directory, said)


def _deleted(directory: Path) -> IncompleteError:
    return IncompleteError(f"{directory}: the graph was deleted, by another run maybe; run the job again")


@contextmanager
def lasting(directory: Path) -> Iterator[None]:
    """Say so where files are missing because the build's folder was deleted: IncompleteError."""
    try:
        yield
    except (FileNotFoundError, DamagedError) as error:
        if (directory / FRAME).exists():
            raise
        raise _deleted(directory) from error


@lru_cache(maxsize=64)
def _cuts(directory: Path, generation: int) -> IntArray:
    return load_frame(directory).cuts(generation)


@final
@dataclass(frozen=True)
class Slip:
    """A finished task: the fingerprint of the files that it read, where these are not the build's own, a digest of
    what it wrote, the bytes of its files by their suffixes, what else is to be known of it, and `base`, what it was
    made of: a digest of the digests of all tasks before it that read files which are not the build's own."""

    job: BuildTask
    stamp: str
    digest: str
    files: dict[str, int]
    facts: dict[str, Any] = field(default_factory=dict)
    base: str = field(kw_only=True)

    def save(self, frame: Frame) -> Slip:
        write_record(frame.path(self.job, "json"), asdict(self), sync=False)
        return self

    @classmethod
    def last(cls, frame: Frame, job: BuildTask) -> Slip | None:
        """What was left of a task last, whether or not it still holds; None where that is not known."""
        try:
            body = read_record(frame.path(job, "json"))
            found = None if body is None else cls(**{**body, "job": BuildTask(*body["job"])})
        except (FileNotFoundError, KeyError, TypeError):
            return None
        return found if found is not None and found.job == job else None

    @classmethod
    def load(cls, frame: Frame, job: BuildTask) -> Slip | None:
        """A task's slip where its files are there too, else None: it is to be done again."""
        found = cls.last(frame, job)
        if found is None or found.stamp == VOID:
            return None
        try:
            whole = all(frame.path(job, name).stat().st_size == size for name, size in found.files.items())
        except FileNotFoundError:
            return None
        return found if whole else None

    @classmethod
    def void(cls, frame: Frame, job: BuildTask) -> Slip | None:
        """Have a task done again. Its slip stays, for its digest; returns it."""
        found = cls.last(frame, job)
        return None if found is None else replace(found, stamp=VOID).save(frame)


def slip(
    frame: Frame, job: BuildTask, *, stamp: str = "", digest: str, suffixes: Sequence[str] = ("parts",), **facts: Any
) -> Slip:
    """The slip of a task whose files are written; it is yet to be left."""
    files = {name: frame.path(job, name).stat().st_size for name in suffixes}
    return Slip(job, stamp, digest, files, facts, base="")


def unchanged(stamp: Callable[[], str], read: Callable[[], T], what: str) -> tuple[T, str]:
    """What `read` gives of some files, and their fingerprint `stamp`, the same before and after.

    InputError as `read`, unless files were torn then; IncompleteError where they changed each time they were read:
    `what` are they?
    """
    for _ in range(TRIES):
        before, wrong, found = stamp(), None, None
        try:
            found = read()
        except InputError as error:
            wrong = error
        if stamp() == before:
            if found is None:
                assert wrong is not None
                raise wrong
            return found, before
    raise IncompleteError(
        f"{what} changed while they were read, {TRIES} times; run the job again when nothing writes to them"
    )


def read_run(dataset: Dataset, start: int, stop: int, read: Callable[[], T]) -> tuple[T, str]:
    """`unchanged` of what `read` makes of rows start..stop-1."""
    return unchanged(lambda: dataset.stamp(start, stop), read, f"{dataset.path}: rows {start}..{stop - 1}")


def read_inputs(frame: Frame, dataset: Dataset, start: int, stop: int) -> FloatArray:
    """X (stop - start, d) of a run of rows. InputError at an input that is not finite, where these are refused."""
    rows = dataset.block(start, stop)
    if frame.nan == "refuse" and not (good := rows.whole()).all():
        raise not_finite(dataset, rows, int(np.argmin(good)))
    return rows.X
