"""The stages of a build: leaves that leave receipts, as those of a pass do. A leaf makes no sum: nothing is merged."""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from dorff.data import Dataset
from dorff.engine import Engine, Task
from dorff.graphs import KNN
from dorff.manifold.build_edges import CUTS, EDGES, bucket, collect, complete, cut, graph_stamp, screen, sources
from dorff.manifold.build_knn import assign, groups, landmarks, lists
from dorff.manifold.build_spec import INPUTS, BuildTask, ChangedError, GraphSpec, Written, lasting, load_spec
from dorff.passes import Leaf, Stage, Tree, unchanged
from dorff.store import Receipt

Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much


class Reading(NamedTuple):
    """Files that a task reads and that are not the build's own: their name for messages, and their fingerprint."""

    name: str
    stamp: str


class Step(NamedTuple):
    """What the tasks of a stage do: the function, its name for messages, the files it writes by their suffixes, and
    what it reads that is not the build's own."""

    make: Callable[[GraphSpec, Dataset, BuildTask], Written]
    words: str
    suffixes: tuple[str, ...] = ("parts",)
    reads: Callable[[GraphSpec, Dataset, BuildTask], Reading] | None = None


def _rows(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Reading:
    """A run of rows; of landmarks all of the first generation."""
    runs = spec.runs(task.generation)
    some = runs if task.stage == "landmarks" else runs[[task.number]]
    start, stop = int(some[0, 0]), int(some[-1, 1])
    return Reading(f"{dataset.path}: rows {start}..{stop - 1}", dataset.stamp(start, stop))


def _given_edges(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Reading:
    path = spec.config["graph"]["path"]
    return Reading(path, graph_stamp(path))


NEAREST: Final[dict[str, Step]] = {
    "landmarks": Step(landmarks, "landmarks found", reads=_rows),
    "assign": Step(assign, "runs of rows dealt to partitions", ("parts", INPUTS), _rows),
    "groups": Step(groups, "shards laid out"),
    "lists": Step(lists, "shards with their neighbours listed"),
    CUTS: Step(cut, "lists counted"),
    "sources": Step(sources, "lists sorted"),
    "collect": Step(collect, "shards of edges written", ("parts", EDGES)),
}
GIVEN: Final[dict[str, Step]] = {
    "screen": Step(screen, "runs of rows looked at", reads=_rows),
    "bucket": Step(bucket, "runs of edges read", reads=_given_edges),
    CUTS: Step(cut, "edges counted"),
    "gather": Step(sources, "edges sorted"),
    "collect": Step(complete, "shards of edges written", ("parts", EDGES)),
}


@dataclass(frozen=True)
class Files:
    """What the tasks of a stage read and write: the source of its leaves. Small, picklable."""

    directory: str
    stage: str
    generation: int
    dataset: Dataset

    @property
    def path(self) -> str:
        return self.dataset.path

    @property
    def step(self) -> Step:
        return (NEAREST if isinstance(self.spec.graph, KNN) else GIVEN)[self.stage]

    @property
    def spec(self) -> GraphSpec:
        return load_spec(Path(self.directory))

    def task(self, number: int) -> BuildTask:
        return BuildTask(self.stage, self.generation, number)

    def read(self, number: int) -> Reading:
        """What a task reads that is not the build's own; of other tasks both are empty."""
        reads = self.step.reads
        return Reading("", "") if reads is None else reads(self.spec, self.dataset, self.task(number))

    def stamp(self, start: int, stop: int, read: str | None = None) -> str:
        """Of one task (start, start + 1): the fingerprint of what it reads, now or once, and its own files' sizes."""
        paths = [self.spec.path(self.task(start), suffix) for suffix in self.step.suffixes]
        sizes = [str(path.stat().st_size) if path.exists() else "none" for path in paths]
        return " ".join([self.read(start).stamp if read is None else read, *sizes])


class GraphStage(Stage):
    """A stage of a build; files and receipts are in one folder. The hash is of the build, and of the digests of all
    tasks of earlier stages that read files which are not the build's own."""

    @property
    def receipts(self) -> Path:
        return self.directory

    def node(self, level: int, index: int, key: str) -> Path:
        return self.directory / f"{index:06d}.parts"

    def leaf(self, source: Files, leaf: Leaf) -> Receipt:
        """Do a task. Its receipt is void from before its files are touched, and one of another digest is left so:
        wherever this or the driver is killed, the next run comes here again. Raises InputError: rows or edges that are
        not what was wanted; IncompleteError: they changed each time they were read, or the build's folder was deleted;
        ChangedError: the result is another than before: what later tasks made of that is of no use; DamagedError:
        files of other tasks are missing or damaged."""
        began, number = time.perf_counter(), leaf.number
        with lasting(Path(source.directory)):
            spec, task = source.spec, source.task(number)
            earlier = spec.void(task)
            (digest, facts), read = unchanged(
                lambda: source.read(number).stamp,
                lambda: source.step.make(spec, source.dataset, task),
                source.read(number).name,
            )
            if earlier is not None and earlier.digest != digest:
                raise ChangedError
            stamp, seconds = source.stamp(leaf.start, leaf.stop, read), time.perf_counter() - began
            which, used = (self.hash, number, leaf.start, leaf.stop, stamp), leaf.stop - leaf.start
            receipt = Receipt(*which, digest=digest, rows_used=used, seconds=seconds, facts=tuple(facts))
            receipt.save(self.receipts)
        return receipt


class Stages:
    """The stages of a build, run in their order."""

    def __init__(self, spec: GraphSpec, dataset: Dataset, engine: Engine, told: Told) -> None:
        self._spec, self._dataset, self._engine, self._told = spec, dataset, engine, told
        self._reading: list[Tree] = []  # of stages that read files which are not the build's own
        self._made_of = [spec.config["name"]]  # the digests of their tasks

    def run(self, stage: str, generation: int, numbers: Iterable[int]) -> list[Receipt]:
        """All receipts of a stage, in order: those that hold, or left now. Raises what tasks do (`GraphStage.leaf`)."""
        files = Files(str(self._spec.directory), stage, generation, self._dataset)
        words, folder = files.step.words, self._spec.path(files.task(0)).parent
        name = hashlib.sha256(" ".join([*self._made_of, stage, str(generation)]).encode()).hexdigest()[:16]
        leaves = [Leaf(number, number, number + 1, full=False) for number in numbers]
        tree = Tree(GraphStage(folder, name), files, leaves)

        def done(task: Task, receipt: Receipt) -> list[Task]:
            following = tree.done(task, receipt)
            self._told(words, len(tree.receipts), len(leaves))
            return following

        self._told(words, len(tree.receipts), len(leaves))
        if tree.missing():
            self._engine.run([replace(task, name=f"{words} ({task.tag[1]})") for task in tree.start()], done)
        receipts = [tree.receipts[leaf.number] for leaf in leaves]
        if files.step.reads is not None:
            self._reading.append(tree)
            self._made_of += [receipt.digest for receipt in receipts]
        return receipts

    def touched(self) -> bool:
        """Whether what stages read, that is not the build's own, was touched since."""
        return any([tree.revalidate() for tree in self._reading])
