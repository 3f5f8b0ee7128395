"""Builds the graph of rows that do not fit in memory, as stages of tasks that leave an edge store of sharded Parquet.
Each build has a folder of its own, named by what it is of; a driver that was killed goes on with what is done. What
tasks write depends on the rows and on how the graph is cut alone, not on the number of workers nor on their order."""

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import dorff.manifold.build_edges as build_edges
import dorff.manifold.build_knn as build_knn
import dorff.manifold.build_spec as build_spec
from dorff.data import Dataset
from dorff.data.edges import write_graph
from dorff.engine import Engine, Task
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN, Given, Graph, checked
from dorff.manifold.build_edges import CUTS, EDGES, graph_shape, graph_stamp
from dorff.manifold.build_spec import BuildTask, ChangedError, DamagedError, GraphSpec, lasting, load_layout, load_spec
from dorff.manifold.leaves import DONE, Shards, write_done
from dorff.passes import Config, Leaf, Pass, Stage, Tree, unchanged
from dorff.plan.graph_sizes import Sizes, copied_bytes, given_source
from dorff.storage.files import hide, read_record, remove_torn, rmtree
from dorff.storage.location import locate
from dorff.store import Lease, Receipt

RUN_ROWS: Final = 2**17  # of which copies are in a file, at most
AGAIN: Final = 5  # times that one task's files may turn out damaged
ROUNDS: Final = 3  # of rows that change while their graph is built
GHOST: Final = 3600.0  # seconds without a change, after which nobody is making a folder that has no record
Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Fence = Callable[[], AbstractContextManager[None]]  # inside, no other run deletes and none begins


class Reading(NamedTuple):
    """Files that a task reads and that are not the build's own: their name for messages, and their fingerprint."""

    name: str
    stamp: str


class Step(NamedTuple):
    """What the tasks of a stage do: the function, its name for messages, the files it writes by their suffixes, and
    what it reads that is not the build's own."""

    make: Callable[[GraphSpec, Dataset, BuildTask], build_spec.Written]
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
    "landmarks": Step(build_knn.landmarks, "landmarks found", reads=_rows),
    "assign": Step(build_knn.assign, "runs of rows dealt to partitions", ("parts", build_spec.INPUTS), _rows),
    "groups": Step(build_knn.groups, "shards laid out"),
    "lists": Step(build_knn.lists, "shards with their neighbours listed"),
    CUTS: Step(build_edges.cut, "lists counted"),
    "sources": Step(build_edges.sources, "lists sorted"),
    "collect": Step(build_edges.collect, "shards of edges written", ("parts", EDGES)),
}
GIVEN: Final[dict[str, Step]] = {
    "screen": Step(build_edges.screen, "runs of rows looked at", reads=_rows),
    "bucket": Step(build_edges.bucket, "runs of edges read", reads=_given_edges),
    CUTS: Step(build_edges.cut, "edges counted"),
    "gather": Step(build_edges.sources, "edges sorted"),
    "collect": Step(build_edges.complete, "shards of edges written", ("parts", EDGES)),
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


def build(
    graph: Graph, dataset: Dataset, frozen: Pass, columns: Sequence[int] | None, engine: Engine, directory: Path,
    told: Told, *, sizes: Sizes | None = None, lease: Lease | None = None,
) -> Shards:  # fmt: skip
    """The graph over all rows of a data set (inputs only), built below `directory` or found there.

    Distances are of the inputs `columns` (None: all) as the features of `this` pass scale them; its seed draws the
    landmarks, and its rule for NaN is kept: rows with any input that is not finite are refused or left out. `told` is
    called with what is done, and how many of how many. Older builds of the same graph are deleted before a new one
    begins, so that there is never room needed for two; one that fails has to be made from the start by the next run.
    Nothing begins nor is deleted but under the `lease`, where there is one.

    Rows that are linked (`KNN.append`) are dealt to the landmarks of the first build, in shards of their own: once
    there are many times as many rows as then, or after hundreds of appends, a graph made anew is better and cheaper.
    Raises InputError: rows or a given graph not as wanted; IncompleteError: rows or a given graph changed, or files
    turned out damaged, again and again, or the folder was deleted; LeaseError: the lease was lost."""
    if not dataset.rows:
        raise InputError(f"{dataset.path}: has no rows to make a graph of")
    fence: Fence = nullcontext if lease is None else lease.fenced
    useless = False
    for _ in range(ROUNDS):
        config = _config(graph, dataset, frozen, columns, directory, sizes or Sizes())
        spec = _begin(directory, config, fence) if useless else _open(directory, config, fence)
        try:
            with lasting(spec.directory):
                shards, useless = _built(spec, dataset, engine, told, fence), False
        except ChangedError:
            shards, useless = None, True
        if shards is not None:
            return shards
    remedy = "run again when nobody writes to them"
    raise IncompleteError(f"{dataset.path}: rows, or their graph, changed each time it was built; {remedy}")


def _config(
    graph: Graph, dataset: Dataset, frozen: Pass, columns: Sequence[int] | None, directory: Path, sizes: Sizes
) -> Config:
    """All that a build depends on besides the rows' values, as JSON."""
    used = list(range(dataset.d)) if columns is None else [int(column) for column in columns]
    of = {"format": 1, "store": str(locate(dataset.path).resolve()), "rows": dataset.rows_spec(), "columns": used}
    of["graph"] = graph.config()
    config: Config = {**of, "family": _digest(of), "d": dataset.d, "first": dataset.first}
    config |= {"seed": frozen.spec.seed, "nan": frozen.spec.nan, "sizes": asdict(sizes)}
    center, scale = frozen.features.center[used], frozen.features.scale[used]
    config |= {"center": center.tolist(), "scale": scale.tolist()}
    if isinstance(graph, KNN):
        rows = min(RUN_ROWS, sizes.input_bytes // copied_bytes(dataset))
        config["step"] = max(dataset.unit_rows, rows // dataset.unit_rows * dataset.unit_rows)
        config["n"] = None if graph.append == "link" else dataset.n
    elif isinstance(graph, Given):
        path = _path(graph, dataset, directory)
        source = given_source(path, dataset.n)
        config |= {"graph": Given(path).config(), "step": sizes.shard_rows, "n": dataset.n}
        config |= graph_shape(source, sizes)
    else:
        raise InputError("graph: this one has no edges to build")
    return {**config, "name": _digest(config)}


def _path(graph: Given, dataset: Dataset, directory: Path) -> str:
    """Where the edges of a given graph are; one in memory is written below `directory`."""
    if graph.path is not None:
        return str(Path(graph.path).resolve())
    path = directory / f"given-{_digest(graph.config())}.parquet"
    if not path.exists():
        write_graph(path, checked(graph.source, dataset.n))
    return str(path)


def _digest(config: object) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _open(directory: Path, config: Config, fence: Fence) -> GraphSpec:
    """The last build of this name, or a new one."""
    for path in sorted(directory.glob(f"{config['name']}-*"))[-1:]:
        with suppress(IncompleteError):
            return load_spec(path)
    return _begin(directory, config, fence)


def _begin(directory: Path, config: Config, fence: Fence) -> GraphSpec:
    """A new build, in a folder that no process has known before; all others of the same graph are deleted first."""
    editions = sorted(directory.glob(f"{config['name']}-*"))
    number = int(editions[-1].name.split("-")[1]) + 1 if editions else 0
    spec = GraphSpec.of(directory / f"{config['name']}-{number:04d}-{uuid.uuid4().hex[:8]}", config)
    with fence():
        gone = [hide(path) for path in _others(directory, config)]
    for path in gone:  # nobody sees these any longer
        rmtree(path, ignore_errors=True)
    if directory.is_dir():
        remove_torn(directory)
    with fence():
        spec.save()
    return spec


def _others(directory: Path, config: Config) -> Iterator[Path]:
    """The builds of the same graph, of the same rows and scales or of others; and what is none any longer."""
    for path in sorted(directory.glob("[0-9a-f]*-*-*")):
        try:
            record = read_record(path / build_spec.GRAPH)
        except NotADirectoryError:
            continue
        except FileNotFoundError:  # tasks that came late wrote into a build that had been deleted
            record = None if time.time() - path.stat().st_mtime > GHOST else {}
        if record is None or record.get("family") == config["family"] or path.name.startswith(config["name"]):
            yield path


def _built(spec: GraphSpec, dataset: Dataset, engine: Engine, told: Told, fence: Fence) -> Shards | None:
    """All generations of a build, made or found, damage mended; None where rows, or a given graph, were touched."""
    damaged = Counter[BuildTask]()
    while True:
        stages = Stages(spec, dataset, engine, told)
        try:
            return _run(stages, spec, dataset, fence, damaged)
        except DamagedError as error:
            for task in error.tasks:
                spec.void(task)
                damaged[task] += 1
                if damaged[task] > AGAIN:
                    remedy = "check the disk, and that every worker sees this folder, then run again"
                    raise IncompleteError(f"{spec.path(task)}: missing or damaged again and again; {remedy}") from error


def _run(stages: Stages, spec: GraphSpec, dataset: Dataset, fence: Fence, damaged: Counter[BuildTask]) -> Shards | None:
    """The stages of all generations; of what tasks have left, the `damaged` is made again. DamagedError."""
    generation, alone = -1, 0
    for generation, span in enumerate(_spans(spec, dataset)):
        if spec.span(generation) is None:
            with fence():
                spec.begin(generation, *span)
        if isinstance(spec.graph, KNN):
            _nearest(stages, spec, generation, [task.number for task in damaged if task[:2] == ("lists", generation)])
            lists = spec.path(BuildTask("lists", generation, 0)).parent
            if lists.is_dir():
                with fence():
                    gone = hide(lists)
                rmtree(gone, ignore_errors=True)
            remove_torn(lists.parent)
        else:
            alone = _given(stages, spec)
    if stages.touched():
        return None
    layout = load_layout(spec.directory, generation)
    if not (spec.directory / build_spec.GRAPH).exists():
        raise FileNotFoundError(spec.directory)
    return Shards(str(spec.directory), generation, layout.count, dataset, alone=alone)


def _spans(spec: GraphSpec, dataset: Dataset) -> Iterator[tuple[int, int]]:
    """The rows of each generation; a new one for those that are in none. ChangedError where rows are gone."""
    generation, stop = 0, dataset.first
    while (span := spec.span(generation)) is not None:
        yield span
        generation, stop = generation + 1, span[1]
    if stop > dataset.n:
        raise ChangedError
    if stop < dataset.n:
        yield stop, dataset.n


def _nearest(stages: Stages, spec: GraphSpec, generation: int, deleted: Sequence[int]) -> None:
    """All stages of one generation; a finished one needs its lists but for `deleted`, of which damage is made anew."""
    if not generation:
        stages.run("landmarks", 0, [0])
    rows = stages.run("assign", generation, spec.new_runs(generation))
    stages.run("groups", generation, [0])
    new = load_layout(spec.directory, generation).new(generation)
    if wanted := deleted if (spec.folder(generation) / DONE).exists() else new:
        stages.run("lists", generation, wanted)
    (counted,) = stages.run(CUTS, generation, [0])
    names = stages.run("sources", generation, range(counted.facts[0]))
    shards = stages.run("collect", generation, [*new, *(shard for receipt in names for shard in receipt.facts)])
    write_done(spec, generation, rows, shards)


def _given(stages: Stages, spec: GraphSpec) -> int:
    """All stages of a given graph; how many of its rows have no edge."""
    runs = spec.new_runs(0)
    rows = stages.run("screen", 0, runs)
    stages.run("bucket", 0, range(spec.config["edge_runs"]))
    (counted,) = stages.run(CUTS, 0, [0])
    stages.run("gather", 0, range(counted.facts[0]))
    shards = stages.run("collect", 0, runs)
    write_done(spec, 0, rows, shards)
    return sum(receipt.facts[1] for receipt in shards)
