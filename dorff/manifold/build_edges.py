"""The last tasks of a neighbours' graph, and the edge store: the complete symmetric adjacency of each shard's rows.

Which files that are cut by shard have a part of which shard is turned about: by shard, some shards at a time. As many
names as there are files times shards are never held at once, nor are they in one file.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.data import Dataset
from dorff.graphs import adjacency, both_ways, edge_weights, row_sums
from dorff.manifold.build_files import FloatArray, IntArray, write_parts
from dorff.manifold.build_knn import LISTED, LISTS, ROWS, SCALES, SHARDS
from dorff.manifold.build_layout import Layout, load_layout
from dorff.manifold.build_spec import BuildTask, DamagedError, GraphSpec, Written
from dorff.store import read_plain, write_atomic

NODES, DEGREES, OWN_SCALES = range(3)  # parts of the file beside a shard's edges
EDGES: Final = "parquet"
COLUMNS: Final = (("row", np.int64), ("neighbour", np.int64), ("weight", np.float64))
Edges = tuple[IntArray, IntArray, FloatArray]


def cut(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which shards are together in a file of `sources`."""
    layout = load_layout(spec.directory, task.generation)
    cuts = cuts_of(spec, _listed(layout, task.generation), SHARDS, layout.count)
    return write_parts(spec.path(task), [cuts.astype("<i8")]), (len(cuts),)


def sources(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write for some shards which new lists name their rows: (k, 2) of the lists' shard and the part of its file."""
    layout = load_layout(spec.directory, task.generation)
    parts, named = turned(spec, task, _listed(layout, task.generation), SHARDS, LISTS, layout.count)
    older = named[named < layout.ends[task.generation]].tolist()
    return write_parts(spec.path(task), parts), older


def _listed(layout: Layout, generation: int) -> Iterator[BuildTask]:
    """The tasks that wrote a generation's lists. DamagedError at once for all whose lists were deleted."""
    _require(layout.spec, _lists(layout, generation))
    return _lists(layout, generation)


def _lists(layout: Layout, generation: int) -> Iterator[BuildTask]:
    return (BuildTask("lists", generation, shard) for shard in layout.new(generation))


def _require(spec: GraphSpec, tasks: Iterable[BuildTask]) -> None:
    """DamagedError for all of these tasks whose files are missing: lists are deleted once they are not needed."""
    if missing := [task for task in tasks if not spec.path(task).exists()]:
        raise DamagedError(*missing)


def collect(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write the edges of a shard's rows, from both their lists and the lists that name them; of an older generation's
    shard those that the new lists add, whose degrees are increments."""
    layout = load_layout(spec.directory, task.generation)
    new = layout.birth(task.number) == task.generation
    own_lists = BuildTask("lists", task.generation, task.number)
    sources = [(own_lists._replace(number=source), part) for source, part in naming(spec, "sources", *task[1:])]
    _require(spec, [*([own_lists] if new else []), *(source for source, _ in sources)])
    rows, scales = own_scales(layout, task.number, task.generation)
    entries = [_weighed(spec, np.empty(0, LISTED), (rows, scales))]
    if new:  # what its rows list; both_ways then has what lists them at their own places too
        named = spec.numbers(own_lists, SHARDS)[0]
        parts = spec.read(own_lists, range(LISTS, LISTS + len(named)))
        for shard, part in zip(named.tolist(), parts, strict=True):
            entries.append(_weighed(spec, np.frombuffer(part, LISTED), own_scales(layout, shard, task.generation)))
    for source, number in sources:
        if not new or source != own_lists:
            part = spec.read(source, (number,))[0]
            entries.append(_weighed(spec, np.frombuffer(part, LISTED), (rows, scales)))
    i, j, w = both_ways(*(np.concatenate([one[at] for one in entries]) for at in range(3)))
    own = np.isin(i, rows)
    i, j, w = i[own], j[own], w[own]
    columns, place = np.unique(j, return_inverse=True)
    W = adjacency(np.searchsorted(rows, i), place, w, (len(rows), len(columns)))
    return save_edges(spec, task, rows, W, columns, scales)


def own_scales(layout: Layout, shard: int, generation: int) -> tuple[IntArray, FloatArray]:
    """A shard's rows (s,) and the distance of each to the last that it lists, as a task of a generation finds them."""
    birth = layout.birth(shard)
    task, parts = BuildTask("lists", birth, shard), (ROWS, SCALES)
    if birth < generation:  # lists are kept no longer than they are needed
        task, parts = BuildTask("collect", birth, shard), (NODES, OWN_SCALES)
    rows, scales = layout.spec.read(task, parts)
    return np.frombuffer(rows, "<i8"), np.frombuffer(scales, "<f8")


def _weighed(spec: GraphSpec, listed: npt.NDArray[Any], scales: tuple[IntArray, FloatArray]) -> Edges:
    """The entries of A / 2 of a part of lists; `scales` are those of the rows that they name."""
    named = scales[1][np.searchsorted(scales[0], listed["neighbour"])]
    w = 0.5 * edge_weights(listed["distance"], listed["scale"], named, spec.knn.weights)
    return listed["row"], listed["neighbour"], w


def save_edges(
    spec: GraphSpec, task: BuildTask, rows: IntArray, W: sp.csr_array, columns: IntArray, scales: FloatArray
) -> Written:
    """Write the edges W (s, c) of a shard's rows (s,) to the rows `columns` (c,), the rows' degrees and scales.

    The digest begins with the checksum of the edges; the whole numbers are how many edges the shard owns, and how many
    of its rows have none.
    """
    import pyarrow as pa  # large, and only fits with a graph need it
    import pyarrow.parquet as pq

    i, j = np.repeat(rows, np.diff(W.indptr)), columns[W.indices]
    w = W.data.astype(np.float64)
    values = (i.astype(np.int64), j.astype(np.int64), w)
    table = pa.table({name: value for (name, _), value in zip(COLUMNS, values, strict=True)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, compression="zstd", use_dictionary=["row"])
    write_atomic(spec.path(task, EDGES), [buffer.getbuffer()], sync=False)
    nodes = [rows.astype("<i8"), row_sums(W.indptr, w), scales]
    alone = int((np.diff(W.indptr) == 0).sum())
    return f"{content_sum(values):08x}{write_parts(spec.path(task), nodes)}", (int((j < i).sum()), alone)


def load_edges(spec: GraphSpec, task: BuildTask, crc: int) -> Edges:
    """The rows, neighbours and weights (edges,) that such a task wrote, whose checksum is `crc`. DamagedError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        raw = pa.BufferReader(read_plain(spec.path(task, EDGES)))
        table = pq.ParquetFile(raw, page_checksum_verification=True).read(use_threads=False)
        values = tuple(table[name].to_numpy() for name, _ in COLUMNS)
        if [value.dtype for value in values] != [np.dtype(kind) for _, kind in COLUMNS] or content_sum(values) != crc:
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, ValueError, KeyError, OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            raise  # the disk's; Arrow's own about a damaged file have no number
        raise DamagedError(task) from error
    return values


def content_sum(values: tuple[npt.NDArray[Any], ...]) -> int:
    """CRC32 of arrays."""
    crc = 0
    for value in values:
        crc = zlib.crc32(np.ascontiguousarray(value).data, crc)
    return crc


CUTS: Final = "cuts"  # the stage whose only file says, in part 0, which shard each file of names begins with
MOST: Final = 2**20  # names in a file, and those of one shard more


def cuts_of(spec: GraphSpec, files: Iterable[BuildTask], part: int, count: int) -> IntArray:
    """The first shard of each file of names, of `count` shards that are named, ascending, in this part of files."""
    held = np.zeros(count, np.int64)
    for one in files:
        held[spec.numbers(one, part)[0]] += 1
    block = (np.cumsum(held) - held) // MOST
    return np.append(0, np.flatnonzero(np.diff(block)) + 1)


def turned(
    spec: GraphSpec, task: BuildTask, files: Iterable[BuildTask], part: int, first: int, count: int
) -> tuple[list[npt.NDArray[np.int64]], IntArray]:
    """What a file of names holds: of each shard (k, 2) the number of a file that names it and its part there, from
    `first` on; and the shards that are named at all."""
    cuts = np.append(spec.numbers(BuildTask(CUTS, task.generation, 0), 0)[0], count)
    start, stop = cuts[task.number : task.number + 2]
    rows = [np.empty((0, 3), np.int64)]
    for one in files:
        names = spec.numbers(one, part)[0]
        a, b = np.searchsorted(names, (start, stop))
        if a < b:
            rows.append(np.column_stack([names[a:b], np.full(b - a, one.number), first + np.arange(a, b)]))
    table = np.concatenate(rows)
    table = table[np.argsort(table[:, 0], kind="stable")]
    parts = np.split(table[:, 1:].astype("<i8"), np.searchsorted(table[:, 0], np.arange(start + 1, stop)))
    return parts, np.unique(table[:, 0])


def naming(spec: GraphSpec, stage: str, generation: int, shard: int) -> list[tuple[int, int]]:
    """The files that name a shard, and the part of each, as the files of names of this stage say. DamagedError."""
    cuts = spec.numbers(BuildTask(CUTS, generation, 0), 0)[0]
    block = int(np.searchsorted(cuts, shard, "right")) - 1
    names = spec.numbers(BuildTask(stage, generation, block), shard - int(cuts[block]))[0]
    return [(number, part) for number, part in names.reshape(-1, 2).tolist()]
