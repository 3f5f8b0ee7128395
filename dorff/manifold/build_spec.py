"""What all tasks of one graph's building have in common, frozen in its folder; its files; and where a row is."""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset
from dorff.data.row_runs import mark_rows
from dorff.errors import IncompleteError
from dorff.graphs import KNN, Graph
from dorff.moments import FloatArray, IntArray
from dorff.passes import Config, not_finite
from dorff.plan.graph_sizes import Sizes
from dorff.storage.files import identity, open_plain, read_record, write_atomic, write_record
from dorff.store import Receipt

#: Where a part begins, its bytes, its CRC32, and the CRC32 of these three, the part's number and the file's identity.
_ENTRY: Final = np.dtype([("begin", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("own", "<u4")])
_KINDS: Final = ("|u1", "<f4", "<f8")  # that rows are kept as: the first that loses nothing


def write_parts(path: Path, parts: Sequence[npt.NDArray[Any]]) -> str:
    """Write arrays, one a part, atomically; returns a digest of all."""
    table, begin = np.zeros(len(parts), _ENTRY), len(parts) * _ENTRY.itemsize
    contents = [np.ascontiguousarray(part).tobytes() for part in parts]
    for number, content in enumerate(contents):
        entry = table[number]
        entry["begin"], entry["size"], entry["crc"] = begin, len(content), zlib.crc32(content)
        begin += len(content)
    digest = hashlib.blake2b(table.tobytes(), digest_size=8).hexdigest()  # the same in every build
    table["own"] = [_own(path, entry, number) for number, entry in enumerate(table)]
    write_atomic(path, [table.tobytes(), *contents], sync=False)
    return digest


def read_parts(path: Path, numbers: Sequence[int]) -> list[bytes]:
    """Some parts of such a file. ValueError where one of them is not what was written, FileNotFoundError."""
    with open_plain(path, buffering=0) as file:
        return [_part(path, file, number) for number in numbers]


def _part(path: Path, file: BinaryIO, number: int) -> bytes:
    file.seek(number * _ENTRY.itemsize)
    if len(head := file.read(_ENTRY.itemsize)) != _ENTRY.itemsize:
        raise ValueError("too short")
    entry = np.frombuffer(head, _ENTRY)[0]
    if entry["own"] != _own(path, entry, number):
        raise ValueError("its table's checksum is wrong, or it is another file's")
    file.seek(int(entry["begin"]))
    content = file.read(int(entry["size"]))
    if len(content) != entry["size"] or zlib.crc32(content) != entry["crc"]:
        raise ValueError("its checksum is wrong")
    return content


def _own(path: Path, entry: Any, number: int) -> int:
    name = f"{number} {identity(path)}".encode()
    return zlib.crc32(entry.tobytes()[: _ENTRY.fields["own"][1]], zlib.crc32(name))  # type: ignore[index]


def packed(X: FloatArray) -> npt.NDArray[Any]:
    """The same rows as bytes or float32, where every bit comes back."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for kind in _KINDS:
            small = X.astype(kind)
            if np.array_equal(small.astype("<f8").view("<i8"), X.view("<i8")):
                break
    return small


def row_sums(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """CRC32 (n,) of each row (n, d), C-contiguous."""
    width, raw = rows.shape[1] * rows.itemsize, rows.reshape(-1).view("u1").data
    sums = (zlib.crc32(raw[at : at + width]) for at in range(0, len(rows) * width, width))
    return np.fromiter(sums, np.uint32, len(rows))


def read_rows(path: Path, kind: str, d: int, places: IntArray, sums: npt.NDArray[np.uint32]) -> FloatArray:
    """Rows (k, d) at these places (k,) of a file of rows, whose CRC32 are `sums` (k,), as float64. ValueError where
    one of them is another, FileNotFoundError."""
    width = d * np.dtype(kind).itemsize
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    rows = np.empty((len(places), d), kind)
    raw, at = rows.reshape(-1).view("u1").data, 0
    with open_plain(path, buffering=0) as file:
        for run in np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1) if len(places) else ():
            size = len(run) * width
            file.seek(int(run[0]) * width)
            if len(content := file.read(size)) != size:
                raise ValueError("too short")
            raw[at : at + size] = content
            at += size
    if not np.array_equal(row_sums(rows), sums[order]):
        raise ValueError("a row's checksum is wrong")
    out = np.empty((len(places), d))
    out[order] = rows
    return out


GRAPH: Final = "graph.json"
#: What a task has written: a digest of it, and whole numbers that later stages need.
Written = tuple[str, Sequence[int]]
GENERATION: Final = "generation.json"
VOID: Final = "void"  # the stamp of no files: of a task that is to be done again


class BuildTask(NamedTuple):
    """A task of a build: its stage, generation of rows, and number in the stage; numbers go on through generations."""

    stage: str
    generation: int
    number: int


class DamagedError(Exception):
    """Files of a build are missing or damaged; the tasks that are its arguments make them again."""

    @property
    def tasks(self) -> tuple[BuildTask, ...]:
        return self.args


class ChangedError(Exception):
    """What a build was made of, or its own record, is not what it was: another one is to be begun."""


@dataclass(frozen=True, eq=False)
class GraphSpec:
    """A build: its folder, what its graph is, and how inputs are scaled and rows are cut. `columns` (k,) are those
    that distances are of. `config` is all of it, and what is a plain number or word, as JSON."""

    directory: Path
    graph: Graph
    columns: IntArray
    center: FloatArray
    scale: FloatArray
    sizes: Sizes
    config: Config = field(repr=False)

    @classmethod
    def of(cls, directory: Path, config: Config) -> "GraphSpec":
        graph, columns = Graph.from_config(config["graph"]), np.array(config["columns"], np.int64)
        center, scale = np.array(config["center"]), np.array(config["scale"])
        return cls(directory, graph, columns, center, scale, Sizes(**config["sizes"]), config)

    def save(self) -> None:
        write_record(self.directory / GRAPH, self.config, sync=True)

    @property
    def knn(self) -> KNN:
        assert isinstance(self.graph, KNN)
        return self.graph

    def scaled(self, X: FloatArray) -> FloatArray:
        """The columns (n, k) of inputs (n, d) that distances are of, as the features see them."""
        return (X[:, self.columns] - self.center) / self.scale

    def path(self, task: BuildTask, suffix: str = "parts") -> Path:
        """A file that a task writes."""
        return self.folder(task.generation) / task.stage / f"{task.number:06d}.{suffix}"

    def folder(self, generation: int) -> Path:
        """The folder of a generation. Its name and the two below it say of which graph a file is, and which part."""
        return self.directory / f"{self.config['name']}-{generation:03d}"

    def void(self, task: BuildTask) -> Receipt | None:
        """Have a task done again. Its receipt stays, for its digest; returns what it was."""
        folder = self.path(task).parent
        if (earlier := Receipt.load(folder, task.number)) is not None:
            replace(earlier, stamp=VOID).save(folder)
        return earlier

    def read(self, task: BuildTask, numbers: Sequence[int]) -> list[bytes]:
        """Parts of a task's file. DamagedError."""
        try:
            return read_parts(self.path(task), numbers)
        except (FileNotFoundError, ValueError) as error:
            raise DamagedError(task) from error

    def numbers(self, task: BuildTask, *numbers: int) -> list[IntArray]:
        """Parts that are whole numbers. DamagedError."""
        return [np.frombuffer(part, "<i8") for part in self.read(task, numbers)]

    def begin(self, generation: int, start: int, stop: int) -> None:
        """Write down the rows of a generation."""
        write_record(self.folder(generation) / GENERATION, {"start": start, "stop": stop}, sync=True)

    def span(self, generation: int) -> tuple[int, int] | None:
        """The rows of a generation; None where there is none yet. ChangedError where that is damaged."""
        try:
            record = read_record(self.folder(generation) / GENERATION)
        except FileNotFoundError:
            return None
        if record is None:
            raise ChangedError
        return record["start"], record["stop"]

    def runs(self, generation: int) -> IntArray:
        """(runs, 3): of each run up to this generation the first row, the one after the last, and the generation."""
        return np.concatenate([_cuts(self.directory, one) for one in range(generation + 1)])

    def new_runs(self, generation: int) -> list[int]:
        """The numbers of a generation's own runs."""
        return [number for number, run in enumerate(self.runs(generation).tolist()) if run[2] == generation]


@lru_cache(maxsize=16)
def load_spec(directory: Path) -> GraphSpec:
    """The build in a folder. IncompleteError where there is none any longer, or it is damaged."""
    try:
        config = read_record(directory / GRAPH)
    except FileNotFoundError as error:
        raise _deleted(directory) from error
    if config is None:
        raise IncompleteError(f"{directory}: the graph's record is damaged; run the job again")
    return GraphSpec.of(directory, config)


def _deleted(directory: Path) -> IncompleteError:
    return IncompleteError(f"{directory}: the graph was deleted, by another run maybe; run the job again")


@contextmanager
def lasting(directory: Path) -> Iterator[None]:
    """Say so where files are missing because the build's folder was deleted: IncompleteError."""
    try:
        yield
    except (FileNotFoundError, DamagedError) as error:
        if (directory / GRAPH).exists():
            raise
        raise _deleted(directory) from error


@lru_cache(maxsize=64)
def _cuts(directory: Path, generation: int) -> IntArray:
    """The runs of a generation. IncompleteError where there is none: its folder was deleted."""
    spec = load_spec(directory)
    span, step = spec.span(generation), spec.config["step"]
    if span is None:
        raise _deleted(directory)
    edges = [span[0], *range(span[0] - span[0] % step + step, span[1], step), span[1]]
    return np.array([(start, stop, generation) for start, stop in pairwise(edges)], np.int64)


def read_inputs(spec: GraphSpec, dataset: Dataset, start: int, stop: int) -> FloatArray:
    """X (stop - start, d) of a run of rows, NaN in those dropped. InputError at an input that is not finite,
    where these are refused."""
    rows, dropped = dataset.block(start, stop), mark_rows(dataset.dropped, start, stop)
    good = rows.whole() | dropped
    if spec.config["nan"] == "refuse" and not good.all():
        raise not_finite(dataset, rows, int(np.argmin(good)))
    return np.where(dropped[:, None], np.nan, rows.X) if dropped.any() else rows.X


#: Of each row of a run: its place among the run's rows in their file (-1: left out), its partition, its checksum.
ROW: Final = np.dtype([("place", "<i4"), ("home", "<i4"), ("crc", "<u4")])
KIND, TABLE, HOMES, MEMBERS = range(4)  # parts of a run's file; from MEMBERS on one a partition, then the counts
BLOCK: Final = 16  # partitions whose candidates are counted in one part
INPUTS: Final = "rows"  # a run's other file
Table = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Layout:
    """The runs and shards of all generations up to one. `runs` (R, 3) are those of `GraphSpec.runs`. Of neighbours'
    graphs a shard is what a row of `groups` (G, 5) says: its partition, the first row that may be listed, the first
    that lists, the one after the last that does, and the one after the last that may be listed. Of a given graph it is
    a run. `ends` (generations + 1,) counts the shards of all generations before each."""

    spec: GraphSpec
    generation: int
    runs: IntArray
    groups: IntArray
    ends: IntArray

    @property
    def count(self) -> int:
        return int(self.ends[-1])

    def birth(self, shard: int) -> int:
        """The generation that a shard came with."""
        return int(np.searchsorted(self.ends, shard, "right")) - 1

    def new(self, generation: int) -> range:
        """The shards that came with a generation."""
        return range(int(self.ends[generation]), int(self.ends[generation + 1]))

    def run_of(self, rows: IntArray) -> IntArray:
        """The run (k,) that each row is in."""
        return np.searchsorted(self.runs[:, 0], rows, "right") - 1

    def run_task(self, run: int) -> BuildTask:
        """The task that wrote a run's files."""
        return BuildTask("assign", int(self.runs[run, 2]), run)

    def shards_of(self, homes: IntArray, rows: IntArray) -> IntArray:
        """The shard (k,) of rows at home in these partitions."""
        span = int(self.runs[-1, 1]) + 1
        key = self.groups[:, 0] * span + self.groups[:, 2]
        order = np.argsort(key)
        return order[np.searchsorted(key[order], homes * span + rows, "right") - 1]

    def shard_of(self, rows: IntArray) -> IntArray:
        """The shard (k,) of each row; -1 for a row that was left out."""
        if not isinstance(self.spec.graph, KNN):
            return self.run_of(rows)
        table, shards = self.table(rows), np.full(len(rows), -1)
        kept = table["place"] >= 0
        shards[kept] = self.shards_of(table["home"][kept].astype(np.int64), rows[kept])
        return shards

    def table(self, rows: IntArray) -> Table:
        """What ROW says (k,) of each row."""
        runs, table = self.run_of(rows), np.empty(len(rows), ROW)
        for run in np.unique(runs):
            here = runs == run
            table[here] = _table(self.spec.directory, self.run_task(int(run)))[rows[here] - self.runs[run, 0]]
        return table

    def copies(self, runs: IntArray, rows: Table) -> FloatArray:
        """X (k, d) of rows of these runs (k,), of which `rows` (k,) says what ROW does. DamagedError."""
        d, X = self.spec.config["d"], np.empty((len(rows), self.spec.config["d"]))
        for run in np.unique(runs):
            task, here = self.run_task(int(run)), runs == run
            places, kind = rows["place"][here].astype(np.int64), _kind(self.spec.directory, task)
            try:
                X[here] = read_rows(self.spec.path(task, INPUTS), kind, d, places, rows["crc"][here])
            except (FileNotFoundError, ValueError) as error:
                raise DamagedError(task) from error
        return X


@lru_cache(maxsize=32)
def load_layout(directory: Path, generation: int) -> Layout:
    """Where the rows of a build are. DamagedError."""
    spec = load_spec(directory)
    runs = spec.runs(generation)
    if not isinstance(spec.graph, KNN):
        return Layout(spec, generation, runs, np.empty((0, 5), np.int64), np.array([0, len(runs)]))
    groups = [spec.numbers(BuildTask("groups", one, 0), 0)[0].reshape(-1, 5) for one in range(generation + 1)]
    return Layout(spec, generation, runs, np.concatenate(groups), np.cumsum([0, *map(len, groups)]))


@lru_cache(maxsize=16)
def _table(directory: Path, task: BuildTask) -> Table:
    return np.frombuffer(load_spec(directory).read(task, (TABLE,))[0], ROW)


@lru_cache(maxsize=2**14)
def _kind(directory: Path, task: BuildTask) -> str:
    return load_spec(directory).read(task, (KIND,))[0].decode()
