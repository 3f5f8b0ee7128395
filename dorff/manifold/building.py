"""Builds the graph of rows that do not fit in memory, as stages of tasks that leave an edge store of sharded Parquet.

Each build has a folder of its own, named by what it is of; a driver that was killed goes on with what is done. What
tasks write depends on the rows and on how the graph is cut alone, not on the number of workers nor on their order.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from dorff.data import Dataset
from dorff.data.edges import write_graph
from dorff.engine import Engine
from dorff.errors import IncompleteError, InputError
from dorff.graphs import KNN, Given, Graph, checked
from dorff.manifold.build_atlas import load_atlas
from dorff.manifold.build_edges import collect, cut, sources
from dorff.manifold.build_files import read_record
from dorff.manifold.build_frame import FRAME, BuildTask, ChangedError, Frame, lasting, load_frame
from dorff.manifold.build_given import bucket, complete, cut_given, gather, graph_shape, graph_stamp, screen
from dorff.manifold.build_knn import assign, groups, landmarks, lists
from dorff.manifold.build_names import CUTS
from dorff.manifold.build_stages import Stage, Stages, Told
from dorff.manifold.edge_store import Shards, is_done, write_done
from dorff.passes import Pass
from dorff.plan.graph_sizes import Sizes, copied_bytes, given_source
from dorff.store import Lease, remove_torn
from dorff.store.atomic import hide

RUN_ROWS: Final = 2**17  # of which copies are in a file, at most
ROUNDS: Final = 3  # of rows that change while their graph is built
GHOST: Final = 3600.0  # seconds without a change, after which nobody is making a folder that has no record
Fence = Callable[[], AbstractContextManager[None]]  # inside, no other run deletes and none begins
NEAREST: Final[dict[str, tuple[Stage, str]]] = {
    "landmarks": (landmarks, "landmarks found"),
    "assign": (assign, "runs of rows dealt to partitions"),
    "groups": (groups, "shards laid out"),
    "lists": (lists, "shards with their neighbours listed"),
    CUTS: (cut, "lists counted"),
    "sources": (sources, "lists sorted"),
    "collect": (collect, "shards of edges written"),
}
GIVEN: Final[dict[str, tuple[Stage, str]]] = {
    "screen": (screen, "runs of rows looked at"),
    "bucket": (bucket, "runs of edges read"),
    CUTS: (cut_given, "edges counted"),
    "gather": (gather, "edges sorted"),
    "collect": (complete, "shards of edges written"),
}


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

    Raises:
        InputError: rows or a given graph that are not what was wanted.
        IncompleteError: rows or a given graph changed again and again, files turned out damaged again and again, or
            the folder was deleted meanwhile.
        LeaseError: the lease was lost.
    """
    if not dataset.rows:
        raise InputError(f"{dataset.path}: has no rows to make a graph of")
    fence: Fence = nullcontext if lease is None else lease.fenced
    useless = False
    for _ in range(ROUNDS):
        said = _said(graph, dataset, frozen, columns, directory, sizes or Sizes())
        frame = _begin(directory, said, fence) if useless else _open(directory, said, fence)
        try:
            with lasting(frame.directory):
                shards, useless = _built(frame, dataset, engine, told, fence), False
        except ChangedError:
            shards, useless = None, True
        if shards is not None:
            return shards
    raise IncompleteError(
        f"{dataset.path}: rows, or their graph, changed each time it had been built; run again when nobody writes to "
        "them"
    )


def _said(
    graph: Graph, dataset: Dataset, frozen: Pass, columns: Sequence[int] | None, directory: Path, sizes: Sizes
) -> dict[str, Any]:
    """All that a build depends on besides the rows' values, as JSON."""
    used = list(range(dataset.d)) if columns is None else [int(column) for column in columns]
    of = {
        "format": 1, "store": str(Path(dataset.path).resolve()), "rows": dataset.rows_spec(), "columns": used,
        "graph": graph.config(),
    }  # fmt: skip
    said: dict[str, Any] = {
        **of, "family": _digest(of), "d": dataset.d, "first": dataset.first, "seed": frozen.spec.seed,
        "nan": frozen.spec.nan, "center": frozen.features.center[used].tolist(),
        "scale": frozen.features.scale[used].tolist(), "sizes": asdict(sizes),
    }  # fmt: skip
    if isinstance(graph, KNN):
        rows = min(RUN_ROWS, sizes.input_bytes // copied_bytes(dataset))
        said["step"] = max(dataset.unit_rows, rows // dataset.unit_rows * dataset.unit_rows)
        said["n"] = None if graph.append == "link" else dataset.n
    elif isinstance(graph, Given):
        path = _path(graph, dataset, directory)
        source = given_source(path, dataset.n)
        said |= {"graph": Given(path).config(), "step": sizes.shard_rows, "n": dataset.n}
        said |= graph_shape(source, sizes)
    else:
        raise InputError("graph: this one has no edges to build")
    return {**said, "name": _digest(said)}


def _path(graph: Given, dataset: Dataset, directory: Path) -> str:
    """Where the edges of a given graph are; one in memory is written below `directory`."""
    if graph.path is not None:
        return str(Path(graph.path).resolve())
    path = directory / f"given-{_digest(graph.config())}.parquet"
    if not path.exists():
        write_graph(path, checked(graph.source, dataset.n))
    return str(path)


def _digest(said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _open(directory: Path, said: dict[str, Any], fence: Fence) -> Frame:
    """The last build of this name, or a new one."""
    for path in _editions(directory, said["name"])[-1:]:
        with suppress(IncompleteError):
            return load_frame(path)
    return _begin(directory, said, fence)


def _begin(directory: Path, said: dict[str, Any], fence: Fence) -> Frame:
    """A new build, in a folder that no process has known before: what it remembers of another is not of this one.

    All others of the same graph are deleted first.
    """
    editions = _editions(directory, said["name"])
    number = int(editions[-1].name.split("-")[1]) + 1 if editions else 0
    frame = Frame.of(directory / f"{said['name']}-{number:04d}-{uuid.uuid4().hex[:8]}", said)
    with fence():
        gone = [hide(path) for path in _others(directory, said)]
    for path in gone:  # nobody sees these any longer
        shutil.rmtree(path, ignore_errors=True)
    if directory.is_dir():
        remove_torn(directory)
    with fence():
        frame.save()
    return frame


def _editions(directory: Path, name: str) -> list[Path]:
    return sorted(directory.glob(f"{name}-*"))


def _others(directory: Path, said: dict[str, Any]) -> Iterator[Path]:
    """The builds of the same graph, of the same rows and scales or of others; and what is none any longer."""
    for path in sorted(directory.glob("[0-9a-f]*-*-*")):
        try:
            found = read_record(path / FRAME)
        except NotADirectoryError:
            continue
        except FileNotFoundError:  # tasks that came late wrote into a build that had been deleted
            found = None if time.time() - path.stat().st_mtime > GHOST else {}
        if found is None or found.get("family") == said["family"] or path.name.startswith(said["name"]):
            yield path


def _built(frame: Frame, dataset: Dataset, engine: Engine, told: Told, fence: Fence) -> Shards | None:
    """All generations of a build, made or found; None where rows, or a given graph, were touched meanwhile."""
    nearest = isinstance(frame.graph, KNN)
    stages = Stages(frame, dataset, engine, told, NEAREST if nearest else GIVEN)
    generation = -1
    for generation, span in enumerate(_spans(frame, dataset)):
        if frame.span(generation) is None:
            with fence():
                frame.begin(generation, *span)
        (_nearest if nearest else _given)(stages, frame, dataset, generation)
        if nearest:
            _drop(frame.path(BuildTask("lists", generation, 0)).parent, fence)
    stamps = _stamps(frame, dataset, generation)
    if any(job.stage in stamps and slip.stamp != stamps[job.stage](job.number) for job, slip in stages.slips.items()):
        return None
    atlas = stages.sure(lambda: load_atlas(frame.directory, generation))
    if not (frame.directory / FRAME).exists():
        raise FileNotFoundError(frame.directory)
    alone = sum(slip.facts.get("alone", 0) for slip in stages.slips.values())
    return Shards(str(frame.directory), generation, atlas.count, dataset, alone=alone)


def _spans(frame: Frame, dataset: Dataset) -> Iterator[tuple[int, int]]:
    """The rows of each generation; a new one for those that are in none. ChangedError where rows are gone."""
    generation, stop = 0, dataset.first
    while (span := frame.span(generation)) is not None:
        yield span
        generation, stop = generation + 1, span[1]
    if stop > dataset.n:
        raise ChangedError
    if stop < dataset.n:
        yield stop, dataset.n


def _stamps(frame: Frame, dataset: Dataset, generation: int) -> dict[str, Callable[[int], str]]:
    """Of the stages that read files which are not the build's own: what fingerprints a task's, as they are now."""
    cuts, (start, stop) = frame.runs(generation), frame.begun(0)

    def run(number: int) -> str:
        return dataset.stamp(int(cuts[number, 0]), int(cuts[number, 1]))

    if isinstance(frame.graph, KNN):
        return {"landmarks": lambda number: dataset.stamp(start, stop), "assign": run}
    edges = graph_stamp(frame.said["graph"]["path"])
    return {"screen": run, "bucket": lambda number: edges}


def _nearest(stages: Stages, frame: Frame, dataset: Dataset, generation: int) -> None:
    """All stages of a generation of a neighbours' graph. One that was finished needs its lists no more."""
    stamps = _stamps(frame, dataset, generation)
    if not generation:
        stages.run("landmarks", 0, [0], stamps["landmarks"])
    stages.run("assign", generation, frame.new_runs(generation), stamps["assign"])
    stages.run("groups", generation, [0])
    atlas = stages.sure(lambda: load_atlas(frame.directory, generation))
    new = atlas.new(generation)
    if not is_done(frame, generation):
        stages.run("lists", generation, new)
    (counted,) = stages.run(CUTS, generation, [0])
    found = stages.run("sources", generation, range(counted.facts["files"]))
    _finish(stages, frame, generation, [*new, *(shard for slip in found for shard in slip.facts["older"])])


def _given(stages: Stages, frame: Frame, dataset: Dataset, generation: int) -> None:
    """All stages of a given graph."""
    stamps = _stamps(frame, dataset, 0)
    stages.run("screen", 0, frame.new_runs(0), stamps["screen"])
    stages.run("bucket", 0, range(frame.said["edge_runs"]), stamps["bucket"])
    (counted,) = stages.run(CUTS, 0, [0])
    stages.run("gather", 0, range(counted.facts["files"]))
    _finish(stages, frame, generation, frame.new_runs(0))


def _finish(stages: Stages, frame: Frame, generation: int, shards: Sequence[int]) -> None:
    """Write a generation's edges, and that it is finished."""
    slips = stages.run("collect", generation, shards)
    of_rows = [(stage, generation) for stage in ("assign", "screen")]
    rows = [slip.digest for job, slip in sorted(stages.slips.items()) if job[:2] in of_rows]
    found = {slip.job.number: (slip.digest, int(slip.facts["owned"])) for slip in slips}
    write_done(frame, generation, rows, found)


def _drop(folder: Path, fence: Fence) -> None:
    """Delete what a stage left, which nothing reads any more."""
    if folder.is_dir():
        with fence():
            gone = hide(folder)
        shutil.rmtree(gone, ignore_errors=True)
    remove_torn(folder.parent)
