"""Where the rows of a graph are: of which run, at which place in its file, and of which shard."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from dorff.graphs import KNN
from dorff.manifold.build_spec import BuildTask, DamagedError, FloatArray, GraphSpec, IntArray, load_spec, read_rows

#: What is known of each row of a run: its place among the run's rows in their file (-1: left out), the partition that
#: it is in, and its checksum.
ROW: Final = np.dtype([("place", "<i4"), ("home", "<i4"), ("crc", "<u4")])
KIND, TABLE, HOMES, MEMBERS = range(4)  # parts of a run's file; from MEMBERS on one a partition, then the counts
BLOCK: Final = 16  # partitions whose candidates are counted in one part
INPUTS: Final = "rows"  # a run's other file
Table = npt.NDArray[Any]


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """The runs and shards of all generations up to one.

    `runs` (R, 3) are those of `GraphSpec.runs`. Of neighbours' graphs a shard is what a row of `groups`
    (G, 5) says: its partition, the first row that may be listed, the first that lists, the one after the last that
    does, and the one after the last that may be listed. Of a given graph it is a run. `ends` (generations + 1,) counts
    the shards of all generations before each."""

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

    def inputs(self, rows: IntArray) -> FloatArray:
        """X (k, d) of rows that were not left out, from their copies."""
        return self.copies(self.run_of(rows), self.table(rows))

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
    ends = np.cumsum([0, *map(len, groups)])
    return Layout(spec, generation, runs, np.concatenate(groups), ends)


@lru_cache(maxsize=16)
def _table(directory: Path, task: BuildTask) -> Table:
    return np.frombuffer(load_spec(directory).read(task, (TABLE,))[0], ROW)


@lru_cache(maxsize=2**14)
def _kind(directory: Path, task: BuildTask) -> str:
    return load_spec(directory).read(task, (KIND,))[0].decode()
