"""The tasks that bring a graph that the user gives, in any order of its edges, into an edge store.

Its shards are runs of rows. Edges are read in runs of any size and dealt to the shards of both ends, so that each
shard can be checked and written by itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset
from dorff.data.edges import EdgeSource, open_graph
from dorff.errors import InputError
from dorff.graphs import adjacency, both_ways, check_edges, undirected
from dorff.manifold.build_edges import CUTS, Edges, cuts_of, naming, save_edges, turned
from dorff.manifold.build_files import write_parts
from dorff.manifold.build_spec import BuildTask, ChangedError, GraphSpec, Written, read_inputs
from dorff.plan.graph_sizes import Sizes
from dorff.spec.registry import Config

EDGE: Final = np.dtype([("i", "<i8"), ("j", "<i8"), ("w", "<f8")])


def screen(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which rows (rows,) of a shard have finite inputs; the digest is of the inputs."""
    start, stop = map(int, spec.runs(0)[task.number])
    X = read_inputs(spec, dataset, start, stop)
    good = np.isfinite(X).all(axis=1)
    digest = write_parts(spec.path(task), [good.astype("u1")])
    return f"{digest}{zlib.crc32(X.data):08x}", ()


def bucket(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Deal a run of edges to the shards of their ends.

    InputError at a node that is no row, or a weight that is negative or not finite.
    """
    i, j, w = _edges(spec, dataset, spec.config["graph"]["path"], task.number)
    edges = np.empty(len(i), EDGE)
    edges["i"], edges["j"], edges["w"] = i, j, w
    ends = [_shards(spec, edges[name]) for name in ("i", "j")]
    apart = ends[0] != ends[1]
    shard, edges = np.concatenate([ends[0], ends[1][apart]]), np.concatenate([edges, edges[apart]])
    order = np.argsort(shard, kind="stable")
    names = np.unique(shard)
    parts: list[npt.NDArray[Any]] = [names.astype("<i8")]
    parts += np.split(edges[order], np.searchsorted(shard[order], names[1:]))
    return write_parts(spec.path(task), parts), ()


def _edges(spec: GraphSpec, dataset: Dataset, path: str, run: int) -> Edges:
    """A run of the graph's edges. ChangedError where the graph is no longer cut as when the build began."""
    source = open_graph(path)
    if any(spec.config[name] != value for name, value in graph_shape(source, spec.sizes).items()):
        raise ChangedError
    at = run * spec.sizes.edge_run
    i, j, w = source.read(at, min(at + spec.sizes.edge_run, source.count))
    check_edges(i, j, w, n=dataset.n, what=path)
    return i, j, w


def graph_shape(source: EdgeSource, sizes: Sizes) -> Config:
    """What a build depends on of a given graph besides its edges: what these mean, and in how many runs they are."""
    return {"kind": source.kind, "edge_runs": -(-source.count // sizes.edge_run)}


def graph_stamp(path: str) -> str:
    """A fingerprint of a given graph's files; of one that cannot be opened it says so: reading it tells why."""
    try:
        return open_graph(path).stamp()
    except (FileNotFoundError, InputError):
        return "not to be opened"


def _shards(spec: GraphSpec, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The shard of each row; rows that the data set has left behind are in the first, and without edges."""
    return np.maximum(np.searchsorted(spec.runs(0)[:, 0], rows, "right") - 1, 0)


def cut_given(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which shards are together in a file of `gather`; and the shards with rows that are left out."""
    count = len(spec.runs(0))
    cuts = cuts_of(spec, _buckets(spec), 0, count)
    left = [n for n in range(count) if b"\0" in spec.read(BuildTask("screen", 0, n), (0,))[0]]
    parts = [cuts.astype("<i8"), np.array(left, "<i8")]
    return write_parts(spec.path(task), parts), (len(cuts),)


def gather(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write for some shards which files of edges each is in, (k, 2): their number and the part."""
    parts, _ = turned(spec, task, _buckets(spec), 0, 1, len(spec.runs(0)))
    return write_parts(spec.path(task), parts), ()


def _buckets(spec: GraphSpec) -> Iterator[BuildTask]:
    return (BuildTask("bucket", 0, number) for number in range(spec.config["edge_runs"]))


def complete(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write the edges of a shard's rows. Edges to rows that are left out, or left behind, are left out; rows that have
    none are counted.

    InputError at an edge with two weights, or, of a matrix, with one direction.
    """
    runs, left = spec.runs(0), spec.numbers(BuildTask(CUTS, 0, 0), 1)[0]
    start, stop = map(int, runs[task.number])
    dealt = [spec.read(BuildTask("bucket", 0, at), (part,))[0] for at, part in naming(spec, "gather", 0, task.number)]
    edges = np.frombuffer(b"".join(dealt), EDGE)
    both, path = spec.config["kind"] == "csr", spec.config["graph"]["path"]
    i, j, w = both_ways(*undirected(edges["i"], edges["j"], edges["w"], both=both, what=path))
    keep = (i >= start) & (i < stop) & (j >= runs[0, 0])
    for one in left.tolist():
        good = np.frombuffer(spec.read(BuildTask("screen", 0, one), (0,))[0], "u1").astype(bool)
        for end in (i, j):
            inside = np.flatnonzero((end >= runs[one, 0]) & (end < runs[one, 1]))
            keep[inside] &= good[end[inside] - runs[one, 0]]
    i, j, w = i[keep], j[keep], w[keep]
    columns, place = np.unique(j, return_inverse=True)
    rows = np.arange(start, stop)
    W = adjacency(i - start, place, w, (len(rows), len(columns)))
    return save_edges(spec, task, rows, W, columns, np.zeros(0))
