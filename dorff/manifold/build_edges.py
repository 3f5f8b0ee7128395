"""The last tasks of a neighbours' graph, and the edge store: the complete symmetric adjacency of each shard's rows."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.data import Dataset
from dorff.graphs import adjacency, both_ways, edge_weights, row_sums
from dorff.manifold.build_atlas import Atlas, load_atlas
from dorff.manifold.build_files import FloatArray, IntArray, write_parts
from dorff.manifold.build_frame import BuildTask, DamagedError, Frame, Slip, slip
from dorff.manifold.build_knn import LISTED, LISTS, ROWS, SCALES, SHARDS
from dorff.manifold.build_names import cuts_of, naming, turned
from dorff.store import read_plain, write_atomic

NODES, DEGREES, OWN_SCALES = range(3)  # parts of the file beside a shard's edges
EDGES: Final = "parquet"
COLUMNS: Final = (("row", np.int64), ("neighbour", np.int64), ("weight", np.float64))
Edges = tuple[IntArray, IntArray, FloatArray]


def cut(frame: Frame, dataset: Dataset, job: BuildTask) -> Slip:
    """Write which shards are together in a file of `sources`."""
    atlas = load_atlas(frame.directory, job.generation)
    cuts = cuts_of(frame, _listed(atlas, job.generation), SHARDS, atlas.count)
    return slip(frame, job, digest=write_parts(frame.path(job), [cuts.astype("<i8")]), files=len(cuts))


def sources(frame: Frame, dataset: Dataset, job: BuildTask) -> Slip:
    """Write for some shards which new lists name their rows: (k, 2) of the lists' shard and the part of its file."""
    atlas = load_atlas(frame.directory, job.generation)
    parts, named = turned(frame, job, _listed(atlas, job.generation), SHARDS, LISTS, atlas.count)
    older = named[named < atlas.ends[job.generation]].tolist()
    return slip(frame, job, digest=write_parts(frame.path(job), parts), older=older)


def _listed(atlas: Atlas, generation: int) -> Iterator[BuildTask]:
    """The tasks that wrote a generation's lists. DamagedError at once for all whose lists were deleted."""
    missing = [job for job in _lists(atlas, generation) if not atlas.frame.path(job).exists()]
    if missing:
        raise DamagedError(*missing)
    return _lists(atlas, generation)


def _lists(atlas: Atlas, generation: int) -> Iterator[BuildTask]:
    return (BuildTask("lists", generation, shard) for shard in atlas.new(generation))


def collect(frame: Frame, dataset: Dataset, job: BuildTask) -> Slip:
    """Write the edges of a shard's rows, from both their lists and the lists that name them; of an older generation's
    shard those that the new lists add, whose degrees are increments."""
    atlas = load_atlas(frame.directory, job.generation)
    new = atlas.birth(job.number) == job.generation
    rows, scales = own_scales(atlas, job.number, job.generation)
    entries = [_weighed(frame, np.empty(0, LISTED), (rows, scales))]
    if new:  # what its rows list; both_ways then has what lists them at their own places too
        lists = BuildTask("lists", job.generation, job.number)
        named = frame.numbers(lists, SHARDS)[0]
        parts = frame.read(lists, range(LISTS, LISTS + len(named)))
        for shard, part in zip(named.tolist(), parts, strict=True):
            entries.append(_weighed(frame, np.frombuffer(part, LISTED), own_scales(atlas, shard, job.generation)))
    for source, number in naming(frame, "sources", job.generation, job.number):
        if not new or source != job.number:
            part = frame.read(BuildTask("lists", job.generation, source), (number,))[0]
            entries.append(_weighed(frame, np.frombuffer(part, LISTED), (rows, scales)))
    i, j, w = both_ways(*(np.concatenate([one[at] for one in entries]) for at in range(3)))
    own = np.isin(i, rows)
    i, j, w = i[own], j[own], w[own]
    columns, place = np.unique(j, return_inverse=True)
    W = adjacency(np.searchsorted(rows, i), place, w, (len(rows), len(columns)))
    return save_edges(frame, job, rows, W, columns, scales)


def own_scales(atlas: Atlas, shard: int, generation: int) -> tuple[IntArray, FloatArray]:
    """A shard's rows (s,) and the distance of each to the last that it lists, as a task of a generation finds them."""
    birth = atlas.birth(shard)
    job, parts = BuildTask("lists", birth, shard), (ROWS, SCALES)
    if birth < generation:  # lists are kept no longer than they are needed
        job, parts = BuildTask("collect", birth, shard), (NODES, OWN_SCALES)
    rows, scales = atlas.frame.read(job, parts)
    return np.frombuffer(rows, "<i8"), np.frombuffer(scales, "<f8")


def _weighed(frame: Frame, listed: npt.NDArray[Any], scales: tuple[IntArray, FloatArray]) -> Edges:
    """The entries of A / 2 of a part of lists; `scales` are those of the rows that they name."""
    named = scales[1][np.searchsorted(scales[0], listed["neighbour"])]
    w = 0.5 * edge_weights(listed["distance"], listed["scale"], named, frame.knn.weights)
    return listed["row"], listed["neighbour"], w


def save_edges(
    frame: Frame, job: BuildTask, rows: IntArray, W: sp.csr_array, columns: IntArray, scales: FloatArray, **facts: Any
) -> Slip:
    """Write the edges W (s, c) of a shard's rows (s,) to the rows `columns` (c,), the rows' degrees and scales."""
    import pyarrow as pa  # large, and only fits with a graph need it
    import pyarrow.parquet as pq

    i, j = np.repeat(rows, np.diff(W.indptr)), columns[W.indices]
    w = W.data.astype(np.float64)
    values = (i.astype(np.int64), j.astype(np.int64), w)
    table = pa.table({name: value for (name, _), value in zip(COLUMNS, values, strict=True)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, compression="zstd", use_dictionary=["row"])
    write_atomic(frame.path(job, EDGES), [buffer.getbuffer()], sync=False)
    nodes = [rows.astype("<i8"), row_sums(W.indptr, w), scales]
    digest = f"{content_sum(values):08x}{write_parts(frame.path(job), nodes)}"
    owned = int((j < i).sum())
    return slip(frame, job, digest=digest, suffixes=("parts", EDGES), owned=owned, **facts)


def load_edges(frame: Frame, job: BuildTask, crc: int) -> Edges:
    """The rows, neighbours and weights (edges,) that such a task wrote, whose checksum is `crc`. DamagedError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        raw = pa.BufferReader(read_plain(frame.path(job, EDGES)))
        table = pq.ParquetFile(raw, page_checksum_verification=True).read(use_threads=False)
        values = tuple(table[name].to_numpy() for name, _ in COLUMNS)
        if [value.dtype for value in values] != [np.dtype(kind) for _, kind in COLUMNS] or content_sum(values) != crc:
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, ValueError, KeyError, OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            raise  # the disk's; Arrow's own about a damaged file have no number
        raise DamagedError(job) from error
    return values


def content_sum(values: tuple[npt.NDArray[Any], ...]) -> int:
    """CRC32 of arrays."""
    crc = 0
    for value in values:
        crc = zlib.crc32(np.ascontiguousarray(value).data, crc)
    return crc
