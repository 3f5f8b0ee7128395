"""The tasks that make a nearest-neighbour graph of rows that do not fit in memory.

Rows are dealt to partitions by landmarks, the centres of a small k-means of a sample (Lloyd 1982). A row is at home in
the partition of its nearest landmark, and a candidate in those of its nearest few, so that partitions overlap: a row's
list is exact among the candidates of its home, and a neighbour is missed only where it is none of them. Rows are
copied, sorted by home, so that a partition is read without the rest; the shards of the edge store are the homes.
A partition with more candidates than are held has several shards, whose candidates are looked at in parts; one with
many times more is cut by row number."""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial, reduce
from pathlib import Path
from typing import Final

import numpy as np
import scipy.sparse as sp

import dorff.manifold.build_spec as build_spec
from dorff.data import Dataset
from dorff.graphs import neighbours, own_scale
from dorff.manifold.build_spec import BuildTask, GraphSpec, Layout, Table, Written, load_layout, load_spec, write_parts
from dorff.moments import FloatArray, IntArray
from dorff.store import write_atomic

#: A candidate of a partition: its place in the run, and what build_spec.ROW says.
MEMBER: Final = np.dtype([("row", "<i4"), *((name, build_spec.ROW[name]) for name in build_spec.ROW.names or ())])
#: The same with the row's number and run.
CANDIDATE: Final = np.dtype([*MEMBER.descr, ("number", "<i8"), ("run", "<i4")])
#: A row, one that it lists, their distance, and the row's own scale.
LISTED: Final = np.dtype([("row", "<i8"), ("neighbour", "<i8"), ("distance", "<f8"), ("scale", "<f8")])
ROWS, SCALES, SHARDS, LISTS = range(4)  # parts of a file of lists; from LISTS on one for each of SHARDS
WINDOW: Final = 8  # times as many candidates as are held are looked at, in parts
LLOYD: Final = 6  # rounds
PIECES: Final = 256  # places that the sample is from, at most
PIECE_ROWS: Final = 64  # of each, at least
_TILE: Final = 2**21  # distances to landmarks, or counts of candidates, held at a time


def landmarks(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write the landmarks (P, k), in scaled inputs: of the first generation, for all."""
    runs = spec.runs(0)
    start, stop = int(runs[0, 0]), int(runs[-1, 1])
    n, d = stop - start, dataset.d
    wanted = spec.sizes.partitions(n, d)
    count = min(n, spec.sizes.rows(d), wanted * spec.sizes.sample_rows)
    pieces = max(1, min(PIECES, count // PIECE_ROWS))
    firsts = start + np.arange(pieces) * n // pieces
    ends = np.minimum(firsts + -(-count // pieces), np.append(firsts[1:], stop))
    parts = [build_spec.read_inputs(spec, dataset, int(a), int(b)) for a, b in zip(firsts, ends, strict=True)]
    X = np.concatenate(parts)
    x = spec.scaled(X[np.isfinite(X).all(axis=1)])
    return write_parts(spec.path(task), [centres(x, wanted, spec.config["seed"])]), ()


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
    places = np.empty((len(x), count), np.int64)
    norms, step = np.einsum("ij,ij->i", L, L), max(1, _TILE // len(L))
    for at in range(0, len(x), step):
        with np.errstate(over="ignore", invalid="ignore"):  # distances that are no numbers are refused later
            D = x[at : at + step] @ (-2.0 * L.T)
            D += norms
        few = np.sort(np.argpartition(D, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(np.take_along_axis(D, few, axis=1), axis=1, kind="stable")
        places[at : at + step] = np.take_along_axis(few, order, axis=1)
    return places


@lru_cache(maxsize=2)
def _landmarks(directory: Path) -> FloatArray:
    spec = load_spec(directory)
    return np.frombuffer(spec.read(BuildTask("landmarks", 0, 0), (0,))[0]).reshape(-1, len(spec.columns))


def assign(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Copy the rows of a run, sorted by home, and write down where each is and of which partitions it is a candidate.
    Rows whose inputs are not finite are left out."""
    start, stop = map(int, spec.runs(task.generation)[task.number, :2])
    kept, near, rows = _dealt(spec, dataset, start, stop)
    order = np.argsort(near[:, 0], kind="stable")
    rows = rows[order]
    table = np.zeros(stop - start, build_spec.ROW)
    table["place"] = -1
    table["place"][kept[order]] = np.arange(len(order))
    table["home"][kept] = near[:, 0]
    table["crc"][kept[order]] = build_spec.row_sums(rows)
    members = np.zeros(near.shape, MEMBER)
    members["row"] = kept[:, None]
    for name in build_spec.ROW.names or ():
        members[name] = table[name][kept][:, None]
    P = len(_landmarks(spec.directory))
    counts = np.array([np.bincount(one, minlength=P) for one in (near[:, 0], near.ravel())])
    by_partition = np.split(members.ravel()[np.argsort(near, axis=None, kind="stable")], np.cumsum(counts[1])[:-1])
    homes, held = counts.astype("<i8")
    parts: list[Table] = [np.frombuffer(rows.dtype.str.encode(), "u1"), table, homes, *by_partition]
    parts += np.split(held, range(build_spec.BLOCK, P, build_spec.BLOCK))
    write_atomic(spec.path(task, build_spec.INPUTS), [rows.data.cast("B") if rows.size else b""], sync=False)
    return write_parts(spec.path(task), parts), ()


def _dealt(spec: GraphSpec, dataset: Dataset, start: int, stop: int) -> tuple[IntArray, IntArray, Table]:
    """Those of rows start..stop-1, from 0, that are finite, their nearest landmarks and inputs; a part at a time."""
    L, step = _landmarks(spec.directory), spec.sizes.rows(dataset.d)
    kept, near, rows = [], [], []
    for at in range(start, stop, step):
        X = build_spec.read_inputs(spec, dataset, at, min(at + step, stop))
        good = np.flatnonzero(np.isfinite(X).all(axis=1))
        X = X[good]
        kept.append(good + (at - start))
        near.append(nearest(spec.scaled(X), L, min(spec.sizes.memberships, len(L))))
        rows.append(build_spec.packed(X))
    widest = max((one.dtype for one in rows), key=lambda kind: kind.itemsize)
    return np.concatenate(kept), np.concatenate(near), np.concatenate([one.astype(widest, copy=False) for one in rows])


def groups(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which rows of which partitions are a shard each: those of a generation. See `Layout.groups`."""
    runs, own = spec.runs(task.generation), spec.new_runs(task.generation)
    tasks = [BuildTask("assign", generation, run) for run, generation in enumerate(runs[:, 2].tolist())]
    homes = reduce(np.add, (spec.numbers(tasks[run], build_spec.HOMES)[0] for run in own))  # (P,)
    shards = []
    for p, ends in _candidates_of(spec, tasks, len(homes)):
        if homes[p]:
            row_at = cache(partial(_row_at, spec, runs, tasks, p, ends))
            older = int(ends[own[0] - 1]) if own[0] else 0
            for reach, first, last, end in _pieces(older, int(ends[-1]), spec.sizes.rows(dataset.d)):
                shards.append((p, row_at(reach), row_at(first), row_at(last), row_at(end)))
    return write_parts(spec.path(task), [np.array(shards, "<i8").reshape(-1, 5)]), ()


def _candidates_of(spec: GraphSpec, tasks: Sequence[BuildTask], P: int) -> Iterator[tuple[int, IntArray]]:
    """Each partition, with the ends (runs,) of the runs among its candidates; counts of few partitions are held."""
    blocks = -(-P // build_spec.BLOCK)
    step = max(1, _TILE // (build_spec.BLOCK * len(tasks)))
    for block in range(0, blocks, step):
        parts = range(build_spec.MEMBERS + P + block, build_spec.MEMBERS + P + min(block + step, blocks))
        ends = np.cumsum([np.concatenate(spec.numbers(one, *parts)) for one in tasks], axis=0)
        yield from enumerate(ends.T, block * build_spec.BLOCK)


def _row_at(spec: GraphSpec, runs: IntArray, tasks: Sequence[BuildTask], p: int, ends: IntArray, place: int) -> int:
    """The number of the row that is the candidate at this place in partition p."""
    if (run := int(np.searchsorted(ends, place, "right"))) == len(runs):
        return int(runs[-1, 1])
    member = np.frombuffer(spec.read(tasks[run], (build_spec.MEMBERS + p,))[0], MEMBER)[place - int(ends[run])]
    return int(runs[run, 0] + member["row"])


def _pieces(older: int, total: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """(First that may be listed, first and end of those that list, end): none before `older` lists anew."""
    windows = -(-(total - older) // (WINDOW * most))
    for window in range(windows):
        start, stop = (older + (total - older) * one // windows for one in (window, window + 1))
        reach = max(0, stop - WINDOW * most) if older else start
        pieces = 1 if stop - reach <= most else -(-2 * (stop - start) // most)
        for piece in range(pieces):
            a, b = (start + (stop - start) * one // pieces for one in (piece, piece + 1))
            yield min(reach, start), a, b, stop


def lists(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write the neighbours that the rows of a shard list, by the shard of the neighbour."""
    layout = load_layout(spec.directory, task.generation)
    p, begin, first, last, end = map(int, layout.groups[task.number])
    candidates = _candidates(layout, p, begin, end)
    rows, homes = candidates["number"], candidates["home"].astype(np.int64)
    queries = np.flatnonzero((homes == p) & (rows >= first) & (rows < last))
    index, distance = _nearest_of(layout, candidates, queries, spec.sizes.rows(dataset.d))
    scale, listed = own_scale(index, distance), index >= 0
    listing, other = np.nonzero(listed)[0], index[listed]
    entries = np.empty(len(listing), LISTED)
    entries["row"], entries["neighbour"] = rows[queries[listing]], rows[other]
    entries["distance"], entries["scale"] = distance[listed], scale[listing]
    shard = layout.shards_of(homes[other], rows[other])
    order, names = np.argsort(shard, kind="stable"), np.unique(shard)
    parts = np.split(entries[order], np.searchsorted(shard[order], names[1:]))
    head: list[Table] = [rows[queries].astype("<i8"), scale, names.astype("<i8")]
    return write_parts(spec.path(task), head + parts), ()


def _candidates(layout: Layout, p: int, begin: int, end: int) -> Table:
    """The candidates of a partition among rows begin..end-1, ascending."""
    held = []
    for run in range(int(layout.run_of(np.array(begin))), int(np.searchsorted(layout.runs[:, 0], end))):
        members = np.frombuffer(layout.spec.read(layout.run_task(run), (build_spec.MEMBERS + p,))[0], MEMBER)
        some = np.empty(len(members), CANDIDATE)
        for name in MEMBER.names or ():
            some[name] = members[name]
        some["number"], some["run"] = layout.runs[run, 0] + members["row"], run
        held.append(some[(some["number"] >= begin) & (some["number"] < end)])
    return np.concatenate(held)


def _scaled(layout: Layout, some: Table) -> FloatArray:
    """The scaled inputs (c, k) of candidates."""
    return layout.spec.scaled(layout.copies(some["run"], some))


def _nearest_of(layout: Layout, candidates: Table, queries: IntArray, most: int) -> tuple[IntArray, FloatArray]:
    """`neighbours` of these queries among candidates; where these are more than `most`, by parts of half as many."""
    k, numbers = layout.spec.knn.neighbours, candidates["number"]
    if len(candidates) <= most:
        return neighbours(_scaled(layout, candidates), k, queries=queries, numbers=numbers)
    own, parts = _scaled(layout, candidates[queries]), []
    others = np.setdiff1d(np.arange(len(candidates)), queries)
    for at in range(0, len(others), max(1, most // 2)):
        part = others[at : at + max(1, most // 2)]
        x, places = np.concatenate([own, _scaled(layout, candidates[part])]), np.concatenate([queries, part])
        index, distance = neighbours(x, k, queries=np.arange(len(queries)), numbers=numbers[places])
        listed = index >= (len(queries) if at else 0)  # queries are with every part, and count with the first
        parts.append((np.where(listed, places[index], -1), np.where(listed, distance, np.inf)))
    index, distance = (np.concatenate(one, axis=1) for one in zip(*parts, strict=True))
    order = np.lexsort((index, distance), axis=-1)[:, :k]  # places ascend as numbers do
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(distance, order, axis=1)
