"""Graphs that users give, read and written: entries (i, j, w), edges or CSR matrices in Zarr, edges in Parquet."""

import hashlib
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, cast, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.data.layout import ArrayLayout, Attributes, ShardWriter, reported, staging, write_metadata
from dorff.data.nodes import check_seals, committed, group_attributes, node, open_array
from dorff.data.readers import reading
from dorff.errors import InputError
from dorff.spec.registry import lazily
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Edges = tuple[IntArray, IntArray, FloatArray]

RUN: Final = 2**20  # entries read at a time
POINTERS: Final = 2**16  # of a matrix's row pointers, read at a time
EDGES: Final = ("i", "j", "w")
MATRIX: Final = ("indptr", "indices", "data")
PARQUET: Final = b"PAR1"  # how such a file begins
_open_parquet = lazily("dorff.data.arrow_readers", "open_parquet_graph")  # Arrow, which is large
EQUAL: Final = 1e-10  # as of graphs that are read: a computed matrix may be symmetric only to rounding


@dataclass(frozen=True)
class EdgeSource(ABC):
    """The entries (i, j, w) of a graph on disk: names and numbers only, small and picklable. `kind` "edges" is a list:
    each undirected edge once, or in both directions with one weight. "csr" is a matrix, with both. `n` is the number of
    nodes where the source says it, `count` that of the entries; w is 1 where they are not `weighted`. Whether nodes are
    in range and weights right is for who knows the rows (`dorff.graphs`)."""

    kind: ClassVar[str] = "edges"
    path: str
    n: int | None
    count: int
    weighted: bool

    @final
    def read(self, start: int, stop: int) -> Edges:
        """Entries start..stop-1: i and j int64, w float64, 1 where none is stored. Raises InputError: entries it has
        not; a file, chunk or page that is missing or damaged, as checksums tell."""
        if not 0 <= start <= stop <= self.count:
            raise InputError(f"{self.path}: wanted entries between 0 and {self.count}, got {start} to {stop}.")
        return self._read(start, stop)

    def degrees(self, start: int, stop: int) -> IntArray:
        """How many entries nodes start..stop-1 are an end of, (stop - start,); of a matrix, which has an edge at both
        its ends, how many begin at them. Ends that are no such node are not counted. InputError as `read`."""
        counts = np.zeros(stop - start, np.int64)
        for at in range(0, self.count, RUN):
            for ends in self.read(at, min(at + RUN, self.count))[:2]:
                np.add.at(counts, ends[(ends >= start) & (ends < stop)] - start, 1)
        return counts

    def stamp(self) -> str:
        """A fingerprint of its files: their names, sizes and times of change."""
        root, digest = locate(self.path), hashlib.blake2b(digest_size=16)
        files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
        for file in files:
            status = file.stat()
            digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    @abstractmethod
    def _read(self, start: int, stop: int) -> Edges: ...


class ZarrEdges(EdgeSource):
    """The arrays i, j and perhaps w of a Zarr group."""

    def _read(self, start: int, stop: int) -> Edges:
        i, j = (_values(self.path, name, start, stop) for name in EDGES[:2])
        return i, j, _values(self.path, "w", start, stop, float) if self.weighted else np.ones(stop - start)


@dataclass(frozen=True)
class ZarrMatrix(EdgeSource):
    """The arrays indptr, indices and perhaps data of a Zarr group."""

    kind: ClassVar[str] = "csr"
    n: int

    def _read(self, start: int, stop: int) -> Edges:
        weights = _values(self.path, "data", start, stop, float) if self.weighted else np.ones(stop - start)
        return self._rows(start, stop), _values(self.path, "indices", start, stop), weights

    def degrees(self, start: int, stop: int) -> IntArray:
        return np.maximum(np.diff(self._pointers(start, stop - start + 1)), 0)

    def _rows(self, start: int, stop: int) -> IntArray:
        """The row of each entry: row r has those from indptr[r] to indptr[r + 1] - 1."""
        firsts = range(0, self.n, POINTERS)  # of runs of pointers; one before `at` has the row of the first entry
        at = bisect_right(firsts, start, lo=1, key=lambda first: self._pointers(first, 1)[0])
        parts = []
        for first in firsts[at - 1 :]:
            pointers = self._pointers(first, min(POINTERS, self.n - first) + 1)
            if (np.diff(pointers) < 0).any():
                raise InputError(f"{self.path}: its indptr does not ascend after row {first}; write it anew.")
            inside = np.clip(pointers, start, stop)
            counts = inside[1:] - inside[:-1]
            parts.append(np.repeat(np.arange(first, first + len(counts)), counts))
            if pointers[-1] >= stop:
                break
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if len(rows) != stop - start:
            raise InputError(f"{self.path}: its indptr does not rise from 0 to the number of indices; write it anew.")
        return rows

    def _pointers(self, first: int, count: int) -> IntArray:
        return _values(self.path, "indptr", first, first + count)


def open_zarr_graph(root: Path) -> EdgeSource:
    """The edges or matrix in the Zarr group at `root`; InputError as `open_graph`."""
    attributes = group_attributes(root)
    there = {name for name in (*EDGES, *MATRIX) if (root / name).is_dir()}
    names = EDGES if "i" in there or "j" in there else MATRIX
    if names is MATRIX and not there & set(MATRIX[:2]):
        problem = "wanted a graph, the arrays i and j (and w) or indptr and indices (and data), but it has none of them"
        raise InputError(f"{root}: {problem}; write one with dorff.data.edges.write_graph.")
    weighted = names[2] in there or names[2] in (attributes.get("columns") or {})
    arrays = {name: open_array(root, name) for name in names[: 2 + weighted]}
    check_seals(root, attributes, arrays)
    for name, stored in arrays.items():
        if stored.columns != 1:
            raise InputError(f"{root}: array {name}: wanted one column, got {stored.columns}; write it as one.")
        kind, plain = stored.array.dtype, stored.packing.plain
        if name != names[2] and not (np.dtype(kind).kind in "iu" and plain):
            came = f"{kind}{'' if plain else ', packed'}"
            raise InputError(f"{root}: array {name}: wanted whole numbers of nodes, got {came}; write it as int64.")
    rows = committed(root, attributes)
    count = arrays[names[1]].rows if rows is None else rows.stop
    paired = arrays if names is EDGES else {name: arrays[name] for name in names[1:] if name in arrays}
    if any(stored.rows != count for stored in paired.values()):
        lengths = ", ".join(f"{name} {stored.rows}" for name, stored in paired.items())
        raise InputError(f"{root}: wanted arrays of one length, got {lengths}; write the graph anew.")
    nodes = _nodes(root, attributes)
    if names is EDGES:
        return ZarrEdges(str(root), nodes, count, weighted)
    return _matrix(root, arrays["indptr"].rows - 1, nodes, count, weighted)


def _matrix(root: Path, n: int, nodes: int | None, count: int, weighted: bool) -> ZarrMatrix:
    ends = [int(_values(str(root), "indptr", at, at + 1)[0]) for at in (0, n)] if n >= 0 else []
    if ends != [0, count] or nodes not in (None, n):
        got = f"{n + 1} pointers{f' from {ends[0]} to {ends[1]}' if ends else ''}"
        wanted = f"that ascends from 0 to the number of indices, {count}, with one more than the nodes"
        wanted += "" if nodes is None else f", {nodes}"
        raise InputError(f"{root}: wanted an indptr {wanted}; got {got}: write it anew.")
    return ZarrMatrix(str(root), n, count, weighted)


def _nodes(root: Path, attributes: Attributes) -> int | None:
    ours = attributes.get("dorff")
    nodes = ours.get("nodes") if isinstance(ours, dict) else attributes.get("nodes")
    shape = attributes.get("shape")
    if nodes is None and isinstance(shape, list):
        if len(shape) != 2 or shape[0] != shape[1]:
            raise InputError(f"{root}: wanted a square matrix, its attribute shape says {shape}; write it anew.")
        nodes = shape[0]
    if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 0):
        raise InputError(f"{root}: wanted the number of nodes in its attributes, got {nodes!r}; write it anew.")
    return nodes


def _values(path: str, name: str, start: int, stop: int, dtype: type = np.int64) -> npt.NDArray[Any]:
    """A run of an array of one column, (stop - start,); no chunk that is absent is read as zeros."""
    stored = open_array(locate(path), name)
    if start < stop and stored.rows < stop:
        raise InputError(f"{path}: array {name} has {stored.rows} entries now, fewer than {stop}; open it again.")
    return stored.values(start, stop, dtype, " or write the graph anew")[:, 0]


def open_graph(path: str | os.PathLike[str]) -> EdgeSource:
    """The graph at `path`, one of:

    - a Zarr group with the arrays i and j (whole numbers from 0) and perhaps w: edges;
    - a Zarr group with indptr, indices and perhaps data: a symmetric CSR matrix, as scipy's and anndata's;
    - a Parquet file, or a folder of them in the order of their names, with the columns i, j and perhaps w: edges.

    A Zarr group's attribute `shape` or `nodes` says how many nodes there are, where it is there. Raises InputError:
    nothing of the kind, or it is damaged, or arrays differ in length or are not numbers."""
    root: Path = locate(path).resolve()
    if root.is_file() and root.suffix != ".parquet":  # of that name, reading it tells what is wrong with it
        with reading(str(root), "Parquet"), root.open("rb") as opened:
            begin = opened.read(len(PARQUET))
        if begin != PARQUET:
            wanted = "a graph, Parquet with the columns i, j (and w) or a Zarr group"
            remedy = "write one with dorff.data.edges.write_graph(PATH, W), W a scipy sparse matrix"
            raise InputError(f"{root}: wanted {wanted}, got a file that is neither; {remedy}.")
    files = [file for file in sorted(root.glob("*.parquet")) if not file.name.startswith((".", "_"))]
    if parts := [root] if root.is_file() else files:
        return cast(EdgeSource, _open_parquet(root, tuple(map(str, parts))))
    if not root.is_dir() or node(root).problem == "missing":
        remedy = "check the path, or write one with dorff.data.edges.write_graph"
        raise InputError(f"{root}: wanted a graph, a Zarr group or Parquet files, but there is none; {remedy}.")
    return open_zarr_graph(root)


def write_graph(path: str | os.PathLike[str], W: Any) -> None:
    """Write a scipy sparse matrix of weights (n, n) as edges: Parquet where the name ends so, else a Zarr group.
    Entries are written as they are, both directions, with checksums; the whole appears at once or not at all.
    InputError where something is there already, or W is no symmetric sparse matrix of numbers."""
    store = locate(path).resolve()
    if not sp.issparse(W) or W.ndim != 2 or W.shape[0] != W.shape[1] or W.dtype.kind not in "biuf":
        raise InputError(f"W: wanted a square scipy sparse matrix of real numbers, got {W!r}; convert it to one.")
    if store.exists():
        raise InputError(f"{store}: is there already; choose another name.")
    W = sp.csr_array(W.astype(np.float64))
    _check_symmetric(W)
    entries = sp.coo_array(W)
    columns = {"i": entries.row.astype(np.int64), "j": entries.col.astype(np.int64), "w": entries.data}
    with reported(store), staging(store) as (folder, check):
        made = folder
        if store.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            table = pa.table(columns).replace_schema_metadata({"nodes": str(W.shape[0])})
            made = folder / "edges"
            pq.write_table(table, made, write_page_checksum=True)
        else:
            layouts = {name: ArrayLayout(1, RUN, POINTERS, str(values.dtype)) for name, values in columns.items()}
            for name, layout in layouts.items():
                with ShardWriter(folder / name, layout) as writer:
                    writer.write(columns[name][:, None])
            names = {name: (name,) for name in columns}
            write_metadata(folder, layouts, rows=entries.nnz, columns=names, more={"nodes": W.shape[0]})
        check()
        made.rename(store)
        sync_directory(store.parent)


def _check_symmetric(W: sp.csr_array) -> None:
    """InputError unless W (n, n) is symmetric to a relative `EQUAL`: as a list of edges it would seem to be."""
    apart = sp.coo_array(abs(W - W.T) - EQUAL * abs(W).maximum(abs(W.T)))
    if (apart.data > 0).any():
        at = int(np.argmax(apart.data > 0))
        i, j = int(apart.row[at]), int(apart.col[at])
        problem = f"W: wanted symmetric weights, got {W[i, j]} from {i} to {j} and {W[j, i]} from {j} to {i}"
        raise InputError(f"{problem}; make it symmetric, (W + W.T) / 2 or W.maximum(W.T) say.")
