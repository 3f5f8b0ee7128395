"""What all tasks of one graph's building have in common, frozen in its folder; and where their files lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np

from dorff.data import Dataset
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN, Graph
from dorff.manifold.build_files import FloatArray, IntArray, read_parts
from dorff.plan.graph_sizes import Sizes
from dorff.store import seal, unseal, write_atomic

T = TypeVar("T")
TRIES: Final = 3  # of rows that change while they are read
FRAME: Final = "graph.json"
GENERATION: Final = "generation.json"


class Job(NamedTuple):
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

    def __init__(self, *jobs: Job) -> None:
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
        write_atomic(self.directory / FRAME, [seal(self.said)], sync=True)

    @property
    def knn(self) -> KNN:
        assert isinstance(self.graph, KNN)
        return self.graph

    def scaled(self, X: FloatArray) -> FloatArray:
        """The columns (n, k) of inputs (n, d) that distances are of, as the features see them."""
        return (X[:, self.columns] - self.center) / self.scale

    def path(self, job: Job, suffix: str = "parts") -> Path:
        """A file that a task writes."""
        return self.directory / f"{job.generation:03d}" / job.stage / f"{job.number:06d}.{suffix}"

    def read(self, job: Job, numbers: Sequence[int]) -> list[bytes]:
        """Parts of a task's file. DamagedError."""
        try:
            return read_parts(self.path(job), numbers)
        except (FileNotFoundError, ValueError) as error:
            raise DamagedError(job) from error

    def numbers(self, job: Job, *numbers: int) -> list[IntArray]:
        """Parts that are whole numbers. DamagedError."""
        return [np.frombuffer(part, "<i8") for part in self.read(job, numbers)]

    def begin(self, generation: int, start: int, stop: int) -> None:
        """Write down the rows of a generation."""
        path = self.directory / f"{generation:03d}" / GENERATION
        write_atomic(path, [seal({"start": start, "stop": stop})], sync=True)

    def span(self, generation: int) -> tuple[int, int] | None:
        """The rows of a generation; None where there is none yet. ChangedError where that is damaged."""
        try:
            found = unseal((self.directory / f"{generation:03d}" / GENERATION).read_bytes())
        except FileNotFoundError:
            return None
        if found is None:
            raise ChangedError
        return found["start"], found["stop"]

    def cuts(self, generation: int) -> IntArray:
        """(runs, 2): the first row of each run of a generation and the one after its last."""
        span = self.span(generation)
        assert span is not None
        start, stop = span
        edges = [start, *range(start - start % self.step + self.step, stop, self.step), stop]
        return np.array([*pairwise(edges)], np.int64)

    def runs(self, generation: int) -> IntArray:
        """(runs, 2): those of all generations up to this one."""
        return np.concatenate([_cuts(self.directory, one) for one in range(generation + 1)])

    def run_job(self, generation: int, run: int) -> Job:
        """The task that wrote the files of a run, of a generation or an older one."""
        ends = np.cumsum([len(_cuts(self.directory, one)) for one in range(generation + 1)])
        return Job("assign", int(np.searchsorted(ends, run, "right")), run)

    def new_runs(self, generation: int) -> range:
        """The numbers of a generation's own runs."""
        every, own = len(self.runs(generation)), len(_cuts(self.directory, generation))
        return range(every - own, every)


@lru_cache(maxsize=16)
def load_frame(directory: Path) -> Frame:
    """The build in a folder. InputError where there is none, or it is damaged."""
    try:
        said = unseal((directory / FRAME).read_bytes())
    except FileNotFoundError:
        said = None
    if said is None:
        raise InputError(f"{directory}: no graph here, or its record is damaged; run the job again")
    return Frame.of(directory, said)


@lru_cache(maxsize=64)
def _cuts(directory: Path, generation: int) -> IntArray:
    return load_frame(directory).cuts(generation)


@final
@dataclass(frozen=True)
class Slip:
    """A finished task: the fingerprint of the files that it read, where these are not the build's own, a digest of
    what it wrote, the bytes of its files by their suffixes, and what else is to be known of it."""

    job: Job
    stamp: str
    digest: str
    files: dict[str, int]
    facts: dict[str, Any] = field(default_factory=dict)

    def save(self, frame: Frame) -> Slip:
        write_atomic(frame.path(self.job, "json"), [seal(asdict(self))], sync=False)
        return self

    @classmethod
    def load(cls, frame: Frame, job: Job) -> Slip | None:
        """A task's slip where its files are there too, else None: it is to be done again."""
        try:
            body = unseal(frame.path(job, "json").read_bytes())
            found = None if body is None else cls(**{**body, "job": Job(*body["job"])})
            if found is None or found.job != job:
                return None
            whole = all(frame.path(job, name).stat().st_size == size for name, size in found.files.items())
            return found if whole else None
        except (FileNotFoundError, KeyError, TypeError):
            return None


def slip(
    frame: Frame, job: Job, *, stamp: str = "", digest: str, suffixes: Sequence[str] = ("parts",), **facts: Any
) -> Slip:  # fmt: skip
    """Leave the slip of a task whose files are written."""
    files = {name: frame.path(job, name).stat().st_size for name in suffixes}
    return Slip(job, stamp, digest, files, facts).save(frame)


def unchanged(dataset: Dataset, start: int, stop: int, read: Callable[[], T]) -> tuple[T, str]:
    """What `read` gives of rows start..stop-1, and the fingerprint of their files, the same before and after.

    InputError as `read`, unless files were torn then; IncompleteError where rows changed each time they were read.
    """
    for _ in range(TRIES):
        stamp, wrong, found = dataset.stamp(start, stop), None, None
        try:
            found = read()
        except InputError as error:
            wrong = error
        if dataset.stamp(start, stop) == stamp:
            if found is None:
                assert wrong is not None
                raise wrong
            return found, stamp
    raise IncompleteError(
        f"{dataset.path}: rows {start}..{stop - 1} changed while they were read, {TRIES} times; run the job again "
        "when nothing writes to them"
    )


def read_inputs(frame: Frame, dataset: Dataset, start: int, stop: int) -> FloatArray:
    """X (stop - start, d) of a run of rows. InputError at an input that is not finite, where these are refused."""
    X, _ = dataset.read(start, stop)
    if frame.nan == "refuse" and not np.isfinite(X).all():
        row, column = np.argwhere(~np.isfinite(X))[0]
        raise InputError(
            f"{dataset.path}: row {start + row} (shard {(start + row) // dataset.shard_rows}), column "
            f"{dataset.input_columns[column]}: expected a finite number, got {X[row, column]}; mend the data, or set "
            "data.nan: drop"
        )
    return X
