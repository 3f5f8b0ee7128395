"""Graphs that users give: edges or CSR matrices in Zarr, edges in Parquet; opened and written."""

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.data.edge_source import EDGES, POINTERS, RUN, EdgeSource, open_zarr_graph
from dorff.data.layout import ArrayLayout, ShardWriter, write_metadata
from dorff.data.metadata import reported, staging
from dorff.data.nodes import node
from dorff.data.readers import reading
from dorff.errors import InputError
from dorff.storage.files import sync_directory
from dorff.storage.location import locate

PARQUET: Final = b"PAR1"  # how such a file begins
EQUAL: Final = 1e-10  # as of graphs that are read: a computed matrix may be symmetric only to rounding


def open_graph(path: str | os.PathLike[str]) -> EdgeSource:
    """The graph at `path`, one of:

    - a Zarr group with the arrays i and j (whole numbers from 0) and perhaps w: edges;
    - a Zarr group with indptr, indices and perhaps data: a symmetric CSR matrix, as scipy's and anndata's;
    - a Parquet file, or a folder of them in the order of their names, with the columns i, j and perhaps w: edges.

    A Zarr group's attribute `shape` or `nodes` says how many nodes there are, where it is there.

    Raises InputError: nothing of the kind, or it is damaged, or arrays differ in length or are not numbers."""
    root: Path = locate(path).resolve()
    if root.is_file() and not _is_parquet(root):
        raise InputError(
            f"{root}: wanted a graph, Parquet with the columns i, j (and w) or a Zarr group, got a file that is "
            "neither; write one with dorff.data.edges.write_graph(PATH, W), W a scipy sparse matrix."
        )
    if parts := parquet_files(root):
        from dorff.data.arrow_readers import open_parquet_graph  # Arrow, which is large

        return open_parquet_graph(root, parts)
    if not root.is_dir() or node(root).problem == "missing":
        raise InputError(
            f"{root}: wanted a graph, a Zarr group or Parquet files, but there is none; check the path, or write one "
            "with dorff.data.edges.write_graph."
        )
    return open_zarr_graph(root)


def parquet_files(root: Path) -> tuple[str, ...]:
    """The Parquet files at a path; none where it is something else."""
    if root.is_file():
        return (str(root),)
    files = sorted(root.glob("*.parquet")) if root.is_dir() else []
    return tuple(str(file) for file in files if not file.name.startswith((".", "_")))


def _is_parquet(file: Path) -> bool:
    """Whether a file is Parquet, or says that it is by its name: reading it then tells what is wrong with it."""
    if file.suffix == ".parquet":
        return True
    with reading(str(file), "Parquet"), file.open("rb") as opened:
        return opened.read(len(PARQUET)) == PARQUET


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
    columns = dict(zip(EDGES, (entries.row, entries.col, entries.data), strict=True))
    columns = {name: np.asarray(v, np.float64 if name == "w" else np.int64) for name, v in columns.items()}
    with reported(store), staging(store) as (folder, check):
        if store.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            table = pa.table(columns).replace_schema_metadata({"nodes": str(W.shape[0])})
            pq.write_table(table, folder / "edges", write_page_checksum=True)
            check()
            (folder / "edges").rename(store)
        else:
            _write_zarr(folder, columns, W.shape[0])
            check()
            folder.rename(store)
        sync_directory(store.parent)


def _check_symmetric(W: sp.csr_array) -> None:
    """InputError unless W (n, n) is symmetric to a relative `EQUAL`: as a list of edges it would seem to be."""
    apart = sp.coo_array(abs(W - W.T) - EQUAL * abs(W).maximum(abs(W.T)))
    if (apart.data > 0).any():
        at = int(np.argmax(apart.data > 0))
        i, j = int(apart.row[at]), int(apart.col[at])
        raise InputError(
            f"W: wanted symmetric weights, got {W[i, j]} from {i} to {j} and {W[j, i]} from {j} to {i}; make it "
            "symmetric, (W + W.T) / 2 or W.maximum(W.T) say."
        )


def _write_zarr(folder: Path, columns: dict[str, npt.NDArray[Any]], n: int) -> None:
    layouts = {name: ArrayLayout(1, RUN, POINTERS, str(values.dtype)) for name, values in columns.items()}
    for name, layout in layouts.items():
        with ShardWriter(folder / name, layout) as writer:
            writer.write(columns[name][:, None])
    names = {name: (name,) for name in columns}
    write_metadata(folder, layouts, rows=len(columns["i"]), columns=names, more={"nodes": n})
