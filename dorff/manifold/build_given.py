"""The tasks that bring a graph that the user gives, in any order of its edges, into an edge store.

Its shards are runs of rows. Edges are read in runs of any size and dealt to the shards of both ends, so that each
shard can be checked and written by itself.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data import Dataset
from dorff.data.edges import open_graph
from dorff.graphs import adjacency, check_edges, undirected
from dorff.manifold.build_edges import save_edges
from dorff.manifold.build_files import write_parts
from dorff.manifold.build_frame import Frame, Job, Slip, read_inputs, slip, unchanged

EDGE: Final = np.dtype([("i", "<i8"), ("j", "<i8"), ("w", "<f8")])


def screen(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write which rows (rows,) of a shard have finite inputs; the digest is of the inputs."""
    start, stop = map(int, frame.runs(0)[job.number])
    X, stamp = unchanged(dataset, start, stop, lambda: read_inputs(frame, dataset, start, stop))
    good = np.isfinite(X).all(axis=1)
    digest = write_parts(frame.path(job), [good.astype("u1")])
    return slip(frame, job, stamp=stamp, digest=f"{digest}{zlib.crc32(X.data):08x}", left_out=int((~good).sum()))


def bucket(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Deal a run of edges to the shards of their ends.

    InputError at a node that is no row, or a weight that is negative or not finite.
    """
    path = frame.said["graph"]["path"]
    source = open_graph(path)
    stamp = source.stamp()
    at = job.number * frame.sizes.edge_run
    i, j, w = source.read(at, min(at + frame.sizes.edge_run, source.count))
    check_edges(i, j, w, n=dataset.n, what=path)
    edges = np.empty(len(i), EDGE)
    edges["i"], edges["j"], edges["w"] = i, j, w
    ends = [_shards(frame, edges[name]) for name in ("i", "j")]
    apart = ends[0] != ends[1]
    shard, edges = np.concatenate([ends[0], ends[1][apart]]), np.concatenate([edges, edges[apart]])
    order = np.argsort(shard, kind="stable")
    names = np.unique(shard)
    parts: list[npt.NDArray[Any]] = [names.astype("<i8")]
    parts += np.split(edges[order], np.searchsorted(shard[order], names[1:]))
    return slip(frame, job, stamp=stamp, digest=write_parts(frame.path(job), parts))


def _shards(frame: Frame, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The shard of each row; rows that the data set has left behind are in the first, and without edges."""
    return np.maximum(np.searchsorted(frame.runs(0)[:, 0], rows, "right") - 1, 0)


def gather(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write for each shard which files of edges it is in, (k, 2): their number and the part; then the shards with rows
    that are left out."""
    found = []
    for number in range(frame.said["edge_runs"]):
        named = frame.numbers(Job("bucket", 0, number), 0)[0]
        found.append(np.column_stack([named, np.full(len(named), number), 1 + np.arange(len(named))]))
    table = np.concatenate(found) if found else np.empty((0, 3), np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    count = len(frame.runs(0))
    parts = [part[:, 1:].astype("<i8") for part in np.split(table, np.searchsorted(table[:, 0], np.arange(1, count)))]
    left = [n for n in range(count) if b"\0" in frame.read(Job("screen", 0, n), (0,))[0]]
    return slip(frame, job, digest=write_parts(frame.path(job), [*parts, np.array(left, "<i8")]))


def complete(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write the edges of a shard's rows. Edges to rows that are left out, or left behind, are left out.

    InputError at an edge with two weights, or, of a matrix, with one direction.
    """
    runs, listed = frame.runs(0), Job("gather", 0, 0)
    start, stop = map(int, runs[job.number])
    parts, left = frame.numbers(listed, job.number, len(runs))
    dealt = [frame.read(Job("bucket", 0, number), (part,))[0] for number, part in parts.reshape(-1, 2).tolist()]
    edges = np.frombuffer(b"".join(dealt), EDGE)
    both, path = frame.said["kind"] == "csr", frame.said["graph"]["path"]
    i, j, w = undirected(edges["i"], edges["j"], edges["w"], both=both, what=path)
    i, j, w = np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([w, w])
    keep = (i >= start) & (i < stop) & (j >= runs[0, 0])
    for one in left.tolist():
        good = np.frombuffer(frame.read(Job("screen", 0, one), (0,))[0], "u1").astype(bool)
        for end in (i, j):
            inside = np.flatnonzero((end >= runs[one, 0]) & (end < runs[one, 1]))
            keep[inside] &= good[end[inside] - runs[one, 0]]
    i, j, w = i[keep], j[keep], w[keep]
    columns, place = np.unique(j, return_inverse=True)
    rows = np.arange(start, stop)
    W = adjacency(i - start, place, w, (len(rows), len(columns)))
    return save_edges(frame, job, rows, W, columns, np.zeros(0))
