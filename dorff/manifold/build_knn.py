"""The tasks that make a nearest-neighbour graph of rows that do not fit in memory.

Rows are dealt to partitions by landmarks, the centres of a small k-means of a sample (Lloyd 1982). A row is at home in
the partition of its nearest landmark, and a candidate in those of its nearest few, so that partitions overlap: a row's
list is exact among the candidates of its home, and a neighbour is missed only where it is none of them. Rows are
copied, sorted by home, so that a partition is read without the rest; the shards of the edge store are the homes.
A partition with more candidates than are held is cut by row number, in whole runs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.data import Dataset
from dorff.graphs import neighbours, own_scale
from dorff.manifold.build_atlas import COUNTS, INPUTS, MEMBERS, ROW, load_atlas
from dorff.manifold.build_files import FloatArray, IntArray, packed, row_sums, write_parts
from dorff.manifold.build_frame import Frame, Job, Slip, load_frame, read_inputs, slip
from dorff.store import write_atomic

#: A candidate of a partition: its place in the run, and what ROW says.
MEMBER: Final = np.dtype([("row", "<i4"), *((name, ROW[name]) for name in ROW.names or ())])
#: A row, one that it lists, their distance, and the row's own scale.
LISTED: Final = np.dtype([("row", "<i8"), ("neighbour", "<i8"), ("distance", "<f8"), ("scale", "<f8")])
ROWS, SCALES, SHARDS, LISTS = range(4)  # parts of a file of lists; from LISTS on one for each of SHARDS
LLOYD: Final = 6  # rounds
PIECES: Final = 256  # places that the sample is from
_TILE: Final = 2**21  # distances to landmarks held at a time


def landmarks(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write the landmarks (P, k), in scaled inputs: of the first generation, for all."""
    span = frame.span(0)
    assert span is not None
    start, stop = span
    n, d = stop - start, dataset.d
    wanted = frame.sizes.partitions(n, d)
    stamp = dataset.stamp(start, stop)
    count = min(n, frame.sizes.rows(d), wanted * frame.sizes.sample_rows)
    pieces = min(PIECES, count)
    firsts = start + np.arange(pieces) * n // pieces
    ends = np.minimum(firsts + -(-count // pieces), np.append(firsts[1:], stop))
    parts = [read_inputs(frame, dataset, int(a), int(b))[0] for a, b in zip(firsts, ends, strict=True)]
    X = np.concatenate(parts)
    x = frame.scaled(X[np.isfinite(X).all(axis=1)])
    digest = write_parts(frame.path(job), [centres(x, wanted, frame.seed)])
    return slip(frame, job, stamp=stamp, digest=digest)


def centres(x: FloatArray, count: int, seed: int) -> FloatArray:
    """At most `count` centres (P, k) of rows (s, k): some rows, moved by a few rounds of Lloyd; equal ones once."""
    if not len(x):
        return np.zeros((1, x.shape[1]))
    L = x[np.sort(np.random.default_rng(seed).permutation(len(x))[:count])]
    for _ in range(LLOYD):
        home = nearest(x, L, 1)[:, 0]
        sums = sp.csr_array((np.ones(len(x)), home, np.arange(len(x) + 1)), shape=(len(x), len(L))).T @ x
        held = np.bincount(home, minlength=len(L))
        L = np.where(held[:, None] > 0, sums / np.maximum(held, 1)[:, None], L)
    return np.unique(L, axis=0)


def nearest(x: FloatArray, L: FloatArray, count: int) -> IntArray:
    """The `count` landmarks L (P, k) nearest to each row x (n, k), nearest first: (n, count)."""
    found = np.empty((len(x), count), np.int64)
    norms, step = np.einsum("ij,ij->i", L, L), max(1, _TILE // len(L))
    for at in range(0, len(x), step):
        D = x[at : at + step] @ (-2.0 * L.T)
        D += norms
        few = np.sort(np.argpartition(D, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(np.take_along_axis(D, few, axis=1), axis=1, kind="stable")
        found[at : at + step] = np.take_along_axis(few, order, axis=1)
    return found


@lru_cache(maxsize=2)
def _landmarks(directory: Path) -> FloatArray:
    frame = load_frame(directory)
    raw = frame.read(Job("landmarks", 0, 0), (0,))[0]
    return np.frombuffer(raw).reshape(-1, len(frame.columns))


def assign(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Copy the rows of a run, sorted by home, and write down where each is and of which partitions it is a candidate.

    Rows whose inputs are not finite are left out.
    """
    start, stop = map(int, frame.runs(job.generation)[job.number])
    X, stamp = read_inputs(frame, dataset, start, stop)
    L = _landmarks(frame.directory)
    kept = np.flatnonzero(np.isfinite(X).all(axis=1))
    near = nearest(frame.scaled(X[kept]), L, min(frame.sizes.memberships, len(L)))
    order = np.argsort(near[:, 0], kind="stable")
    table = np.zeros(stop - start, ROW)
    table["place"] = -1
    table["place"][kept[order]] = np.arange(len(order))
    table["home"][kept] = near[:, 0]
    copy = packed(X[kept[order]])
    table["crc"][kept[order]] = row_sums(copy)
    members = np.zeros(near.shape, MEMBER)
    members["row"] = kept[:, None]
    for name in ROW.names or ():
        members[name] = table[name][kept][:, None]
    of = np.argsort(near, axis=None, kind="stable")
    counts = np.array([np.bincount(one, minlength=len(L)) for one in (near[:, 0], near.ravel())])
    cuts = np.cumsum(counts[1])[:-1]
    parts: list[npt.NDArray[Any]] = [np.frombuffer(copy.dtype.str.encode(), "u1"), table, counts.astype("<i8")]
    write_atomic(frame.path(job, INPUTS), [copy.tobytes()], sync=False)
    digest = write_parts(frame.path(job), parts + np.split(members.ravel()[of], cuts))
    return slip(frame, job, stamp=stamp, digest=digest, suffixes=("parts", INPUTS), left_out=int(len(X) - len(kept)))


def groups(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write which partitions and runs are a shard each: those of a generation's rows."""
    own = frame.new_runs(job.generation)
    jobs = [Job("assign", one, run) for one in range(job.generation + 1) for run in frame.new_runs(one)]
    counts = np.array([frame.numbers(one, COUNTS)[0].reshape(2, -1) for one in jobs])  # (runs, 2, P)
    most, found = frame.sizes.rows(dataset.d), []
    for p in range(counts.shape[2]):
        at_home, held = counts[:, 0, p], counts[:, 1, p]
        pieces = -(-int(held[own].sum()) // most)
        ends = np.cumsum(held[own])
        cuts = [own.start + int(np.searchsorted(ends, ends[-1] * piece / pieces)) for piece in range(1, pieces)]
        for a, b in pairwise(sorted({own.start, *(cut + 1 for cut in cuts), own.stop})):
            if at_home[a:b].sum():
                found.append((p, _reach(held, a, b, most) if own.start else a, a, b))
    return slip(frame, job, digest=write_parts(frame.path(job), [np.array(found, "<i8").reshape(-1, 4)]))


def _reach(held: IntArray, a: int, b: int, most: int) -> int:
    """The first of the runs before `a` that are candidates for rows of runs a..b-1, as many as are held."""
    total = np.cumsum(held[:b][::-1])[::-1]
    return min(a, int(np.argmax(total <= most))) if total[a] <= most else a


def lists(frame: Frame, dataset: Dataset, job: Job) -> Slip:
    """Write the neighbours that the rows of a shard list, by the shard of the neighbour."""
    atlas = load_atlas(frame.directory, job.generation)
    p, begin, own, end = map(int, atlas.groups[job.number])
    held, copies = [], []
    for run in range(begin, end):
        found = np.frombuffer(frame.read(atlas.run_job(run), (MEMBERS + p,))[0], MEMBER)
        held.append(found)
        copies.append(frame.scaled(atlas.copies(run, found["place"].astype(np.int64), found["crc"])))
    members, x = np.concatenate(held), np.concatenate(copies)
    del copies
    run_of = np.repeat(np.arange(begin, end), [len(one) for one in held])
    rows = atlas.runs[run_of, 0] + members["row"]
    queries = np.flatnonzero((members["home"] == p) & (run_of >= own))
    index, distance = neighbours(x, frame.knn.neighbours, queries=queries, numbers=rows)
    scale, listed = own_scale(index, distance), index >= 0
    one, other = queries[np.nonzero(listed)[0]], index[listed]
    entries = np.empty(len(one), LISTED)
    entries["row"], entries["neighbour"], entries["distance"] = rows[one], rows[other], distance[listed]
    entries["scale"] = scale[np.nonzero(listed)[0]]
    shard = atlas.shards_of(members["home"][other].astype(np.int64), run_of[other])
    names, cuts = np.unique(shard, return_index=False), np.argsort(shard, kind="stable")
    parts = np.split(entries[cuts], np.searchsorted(shard[cuts], names[1:]))
    head: list[npt.NDArray[Any]] = [rows[queries].astype("<i8"), scale, names.astype("<i8")]
    return slip(frame, job, digest=write_parts(frame.path(job), head + parts))
