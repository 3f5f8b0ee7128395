"""The last tasks of a graph's building: the edge store, the complete symmetric adjacency of each shard's rows; from
lists of neighbours, or from edges that the user gives in any order. Which parts are of which shard is turned about
some shards at a time: as many names as there are files times shards are never held at once. Given edges are dealt to
the shards of both ends, so that each is checked and written by itself."""

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

import dorff.manifold.build_spec as build_spec
from dorff.data import Dataset
from dorff.data.edges import Edges, EdgeSource, open_graph
from dorff.errors import InputError
from dorff.graphs import KNN, degrees
from dorff.graphs.neighbourhood import adjacency, both_ways, check_edges, edge_weights, undirected
from dorff.manifold.build_knn import LISTED, LISTS, ROWS, SCALES, SHARDS
from dorff.manifold.build_spec import BuildTask, DamagedError, GraphSpec, Layout, Written, load_layout, write_parts
from dorff.moments import FloatArray, IntArray
from dorff.passes import Config
from dorff.plan.graph_sizes import Sizes
from dorff.store import read_plain, write_atomic

NODES, DEGREES, OWN_SCALES = range(3)  # parts of the file beside a shard's edges
EDGES: Final = "parquet"
COLUMNS: Final = (("row", np.int64), ("neighbour", np.int64), ("weight", np.float64))


def cut(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which shards are together in a file of names; and the shards of a given graph with rows left out."""
    layout, left = load_layout(spec.directory, task.generation), list[int]()
    cuts = cuts_of(spec, *_naming_shards(layout, task.generation), layout.count)
    if not isinstance(spec.graph, KNN):
        left = [n for n in range(layout.count) if b"\0" in spec.read(BuildTask("screen", 0, n), (0,))[0]]
    return write_parts(spec.path(task), [cuts.astype("<i8"), np.array(left, "<i8")]), (len(cuts),)


def sources(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write for some shards which files of new lists, or of given edges, name their rows: (k, 2) of the number of each
    and the part of it. The whole numbers are the shards of older generations that are named."""
    layout = load_layout(spec.directory, task.generation)
    parts, named = turned(spec, task, *_naming_shards(layout, task.generation), layout.count)
    return write_parts(spec.path(task), parts), named[named < layout.ends[task.generation]].tolist()


def _naming_shards(layout: Layout, generation: int) -> tuple[Iterator[BuildTask], int]:
    """The tasks whose files are cut by shard, and the last part; DamagedError at once for all whose lists are gone."""
    if not isinstance(layout.spec.graph, KNN):
        return (BuildTask("bucket", 0, number) for number in range(layout.spec.config["edge_runs"])), 0
    lists = [BuildTask("lists", generation, shard) for shard in layout.new(generation)]
    _require(layout.spec, lists)
    return iter(lists), SHARDS


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
        for shard, part in zip(named.tolist(), spec.read(own_lists, range(LISTS, LISTS + len(named))), strict=True):
            entries.append(_weighed(spec, np.frombuffer(part, LISTED), own_scales(layout, shard, task.generation)))
    for source, number in sources:
        if not new or source != own_lists:
            part = spec.read(source, (number,))[0]
            entries.append(_weighed(spec, np.frombuffer(part, LISTED), (rows, scales)))
    edges = both_ways(*(np.concatenate(ends) for ends in zip(*entries, strict=True)))
    return save_edges(spec, task, rows, edges, scales)


def own_scales(layout: Layout, shard: int, generation: int) -> tuple[IntArray, FloatArray]:
    """A shard's rows (s,) and the distance of each to the last that it lists, as a task of a generation finds them."""
    birth = layout.birth(shard)
    task, parts = BuildTask("lists", birth, shard), (ROWS, SCALES)
    if birth < generation:  # lists are kept no longer than they are needed
        task, parts = BuildTask("collect", birth, shard), (NODES, OWN_SCALES)
    rows, scales = layout.spec.read(task, parts)
    return np.frombuffer(rows, "<i8"), np.frombuffer(scales, "<f8")


def _weighed(spec: GraphSpec, listed: build_spec.Table, scales: tuple[IntArray, FloatArray]) -> Edges:
    """The entries of A / 2 of a part of lists; `scales` are those of the rows that they name."""
    named = scales[1][np.searchsorted(scales[0], listed["neighbour"])]
    w = 0.5 * edge_weights(listed["distance"], listed["scale"], named, spec.knn.weights)
    return listed["row"], listed["neighbour"], w


def save_edges(spec: GraphSpec, task: BuildTask, rows: IntArray, edges: Edges, scales: FloatArray) -> Written:
    """Write those of the edges that begin at a shard's rows (s,), ascending, and the rows' degrees and scales. The
    digest begins with the edges' checksum; the numbers: how many edges the shard owns, its rows without any."""
    import pyarrow as pa  # large, and only fits with a graph need it
    import pyarrow.parquet as pq

    i, j, w = edges
    own = np.isin(i, rows)
    columns, place = np.unique(j[own], return_inverse=True)
    W = adjacency(np.searchsorted(rows, i[own]), place, w[own], (len(rows), len(columns)))
    held = np.diff(W.indptr)
    values = np.repeat(rows, held), columns[W.indices], W.data
    table = pa.table({name: value for (name, _), value in zip(COLUMNS, values, strict=True)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, compression="zstd", use_dictionary=["row"])
    write_atomic(spec.path(task, EDGES), [buffer.getbuffer()], sync=False)
    digest = write_parts(spec.path(task), [rows.astype("<i8"), degrees(W), scales])
    return f"{content_sum(values):08x}{digest}", (int((values[1] < values[0]).sum()), int((held == 0).sum()))


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


def content_sum(values: Sequence[build_spec.Table], crc: int = 0) -> int:
    """CRC32 of arrays, after what `crc` is of."""
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
    return np.append(0, np.flatnonzero(np.diff((np.cumsum(held) - held) // MOST)) + 1)


def turned(
    spec: GraphSpec, task: BuildTask, files: Iterable[BuildTask], part: int, count: int
) -> tuple[list[IntArray], IntArray]:
    """What a file of names holds: of each shard (k, 2) the number of a file that names it in this part, and its own
    part there; and the shards that are named at all."""
    cuts = np.append(spec.numbers(BuildTask(CUTS, task.generation, 0), 0)[0], count)
    start, stop = cuts[task.number : task.number + 2]
    rows = [np.empty((0, 3), np.int64)]
    for one in files:
        names = spec.numbers(one, part)[0]
        a, b = np.searchsorted(names, (start, stop))
        if a < b:
            rows.append(np.column_stack([names[a:b], np.full(b - a, one.number), part + 1 + np.arange(a, b)]))
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


EDGE: Final = np.dtype([("i", "<i8"), ("j", "<i8"), ("w", "<f8")])


def screen(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write which rows (rows,) of a shard have finite inputs; the digest is of the inputs."""
    start, stop = map(int, spec.runs(0)[task.number, :2])
    X = build_spec.read_inputs(spec, dataset, start, stop)
    digest = write_parts(spec.path(task), [np.isfinite(X).all(axis=1).astype("u1")])
    return f"{digest}{zlib.crc32(X.data):08x}", ()


def bucket(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Deal a run of edges to the shards of their ends. InputError at a node that is no row, or a weight that is
    negative or not finite; ChangedError where the graph is no longer cut as when the build began."""
    path = spec.config["graph"]["path"]
    source = open_graph(path)
    if any(spec.config[name] != value for name, value in graph_shape(source, spec.sizes).items()):
        raise build_spec.ChangedError
    first = task.number * spec.sizes.edge_run
    i, j, w = source.read(first, min(first + spec.sizes.edge_run, source.count))
    check_edges(i, j, w, n=dataset.n, what=path)
    edges = np.empty(len(i), EDGE)
    edges["i"], edges["j"], edges["w"] = i, j, w
    run_of = load_layout(spec.directory, 0).run_of
    ends = [np.maximum(run_of(edges[name]), 0) for name in ("i", "j")]  # rows left behind are with the first
    apart = ends[0] != ends[1]
    shard, edges = np.concatenate([ends[0], ends[1][apart]]), np.concatenate([edges, edges[apart]])
    order = np.argsort(shard, kind="stable")
    names = np.unique(shard)
    parts: list[build_spec.Table] = [names.astype("<i8")]
    parts += np.split(edges[order], np.searchsorted(shard[order], names[1:]))
    return write_parts(spec.path(task), parts), ()


def graph_shape(source: EdgeSource, sizes: Sizes) -> Config:
    """What a build depends on of a given graph besides its edges: what these mean, and in how many runs they are."""
    return {"kind": source.kind, "edge_runs": -(-source.count // sizes.edge_run)}


def graph_stamp(path: str) -> str:
    """A fingerprint of a given graph's files; of one that cannot be opened it says so: reading it tells why."""
    try:
        return open_graph(path).stamp()
    except (FileNotFoundError, InputError):
        return "not to be opened"


def complete(spec: GraphSpec, dataset: Dataset, task: BuildTask) -> Written:
    """Write the edges of a shard's rows, but to rows that are left out or behind; rows that have none are counted.
    InputError at an edge with two weights, or, of a matrix, with one direction."""
    runs, left = spec.runs(0), spec.numbers(BuildTask(CUTS, 0, 0), 1)[0]
    start, stop = map(int, runs[task.number, :2])
    dealt = [spec.read(BuildTask("bucket", 0, at), (part,))[0] for at, part in naming(spec, "gather", 0, task.number)]
    edges = np.frombuffer(b"".join(dealt), EDGE)
    both, path = spec.config["kind"] == "csr", spec.config["graph"]["path"]
    i, j, w = both_ways(*undirected(edges["i"], edges["j"], edges["w"], both=both, what=path))
    keep = j >= runs[0, 0]
    for one in left.tolist():
        good = np.frombuffer(spec.read(BuildTask("screen", 0, one), (0,))[0], "u1").astype(bool)
        for end in (i, j):
            inside = np.flatnonzero((end >= runs[one, 0]) & (end < runs[one, 1]))
            keep[inside] &= good[end[inside] - runs[one, 0]]
    return save_edges(spec, task, np.arange(start, stop), (i[keep], j[keep], w[keep]), np.zeros(0))
