"""Graphs on disk: what is written is read, in any runs; what is damaged or no graph is refused in a sentence."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

from dorff.data import verify
from dorff.data.edges import EdgeSource, open_graph, write_graph
from dorff.errors import InputError

N = 40


def matrix(n: int = N, seed: int = 0) -> sp.csr_array:
    """Symmetric weights with rows of many entries and of none."""
    A = sp.random_array((n, n), density=0.1, rng=np.random.default_rng(seed), format="lil")
    A[n // 3 : n // 2] = 0
    A[:, n // 3 : n // 2] = 0
    return sp.csr_array(A + A.T)


def put(path: Path, *, zarr_format: Any = 3, attributes: dict[str, Any] | None = None, **arrays: Any) -> Path:
    """A Zarr group as another program writes it."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes=attributes or {})
    for name, values in arrays.items():
        group.create_array(name, data=np.asarray(values), chunks=(50,) * np.asarray(values).ndim)
    return path


def csr(W: sp.csr_array) -> dict[str, Any]:
    return {"indptr": W.indptr, "indices": W.indices, "data": W.data}


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=10, write_page_checksum=True)
    return path


def whole(source: EdgeSource, step: int = 1000, n: int = N) -> sp.csr_array:
    """The matrix of all entries, read `step` at a time."""
    cuts = [*range(0, source.count, step), source.count]
    runs = [source.read(*run) for run in pairwise(cuts)]
    i, j, w = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    assert (i.dtype, j.dtype, w.dtype) == (np.int64, np.int64, np.float64)
    return sp.csr_array((w, (i, j)), shape=(n, n))


def same(A: sp.csr_array, B: sp.csr_array) -> bool:
    return bool((A.toarray() == B.toarray()).all())


@pytest.mark.parametrize("name", ["w.zarr", "w.parquet"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    W = matrix()
    write_graph(tmp_path / name, W)
    source = open_graph(tmp_path / name)
    assert (source.kind, source.n, source.count) == ("edges", N, W.nnz)
    assert all(same(whole(source, step), W) for step in (3, 10, 1000))
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with pytest.raises(InputError, match="is there already"):
        write_graph(tmp_path / name, W)
    if name.endswith("zarr"):
        assert verify(tmp_path / name) == []


@pytest.mark.parametrize("name", ["w.zarr", "w.parquet"])
def test_a_graph_of_no_edges(tmp_path: Path, name: str) -> None:
    write_graph(tmp_path / name, sp.csr_array((5, 5)))
    source = open_graph(tmp_path / name)
    assert (source.n, source.count) == (5, 0)
    assert [len(part) for part in source.read(0, 0)] == [0, 0, 0]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("pointers", [3, 2**16])
def test_a_matrix_by_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: int, pointers: int
) -> None:
    monkeypatch.setattr("dorff.data.edges.POINTERS", pointers)
    W = matrix()
    store = put(tmp_path / "w.zarr", zarr_format=zarr_format, attributes={"shape": [N, N]}, **csr(W))
    source = open_graph(store)
    assert (source.kind, source.n, source.count) == ("csr", N, W.nnz)
    assert all(same(whole(source, step), W) for step in (37, 1000))
    assert len(source.read(4, 4)[0]) == 0


def test_edges_without_weights_weigh_one(tmp_path: Path) -> None:
    i, j = np.array([0, 3, 5], np.uint32), np.array([1, 2, 4], np.int16)
    for path in (put(tmp_path / "a.zarr", i=i, j=j), table(tmp_path / "a.parquet", i=i, j=j)):
        source = open_graph(path)
        assert source.n is None
        assert [part.tolist() for part in source.read(0, 3)] == [[0, 3, 5], [1, 2, 4], [1.0, 1.0, 1.0]]


def test_a_folder_of_parquet_files_is_one_graph(tmp_path: Path) -> None:
    W = sp.coo_array(matrix())
    for part, cut in enumerate(np.array_split(np.arange(W.nnz), 3)):
        table(tmp_path / f"{part}.parquet", i=W.row[cut], j=W.col[cut], w=W.data[cut])
    (tmp_path / "_done.parquet").write_bytes(b"")
    source = open_graph(tmp_path)
    assert (source.count, source.n) == (W.nnz, None)
    assert all(same(whole(source, step), sp.csr_array(W)) for step in (7, 1000))
    table(tmp_path / "3.parquet", i=[1], j=[2])
    with pytest.raises(InputError, match="the column w in all of its files or in none"):
        open_graph(tmp_path)


def test_the_stamp_tells_changes(tmp_path: Path) -> None:
    for name in ("w.zarr", "w.parquet"):
        write_graph(tmp_path / name, matrix())
        before = open_graph(tmp_path / name).stamp()
        assert open_graph(tmp_path / name).stamp() == before
        shutil.rmtree(tmp_path / name) if name.endswith("zarr") else (tmp_path / name).unlink()
        write_graph(tmp_path / name, matrix(seed=1))
        assert open_graph(tmp_path / name).stamp() != before


@pytest.mark.parametrize(
    ("arrays", "attributes", "sentence"),
    [
        ({"x": [1]}, {}, "wanted a graph, the arrays i and j"),
        ({"i": [1]}, {}, "has no array 'j'"),
        ({"j": [1]}, {}, "has no array 'i'"),
        ({"indptr": [0, 0]}, {}, "has no array 'indices'"),
        ({"i": [0, 1], "j": [1]}, {}, "arrays of one length, got i 2, j 1"),
        ({"i": [0, 1], "j": [1, 2], "w": [1.0]}, {}, "arrays of one length, got i 2, j 2, w 1"),
        ({"i": [0.0], "j": [1.0]}, {}, "array i: wanted whole numbers of nodes, got float64"),
        ({"i": [[0, 1]], "j": [[1, 2]]}, {}, "array i: wanted one column, got 2"),
        ({"i": [0], "j": [1]}, {"nodes": "many"}, "wanted the number of nodes in its attributes, got 'many'"),
        ({"i": [0], "j": [1]}, {"shape": [2, 3]}, "wanted a square matrix"),
        ({"indptr": [0, 1], "indices": [0, 1]}, {}, "ascends from 0 to the number of indices, 2.*from 0 to 1"),
        ({"indptr": [0, 1, 2], "indices": [1, 0]}, {"shape": [5, 5]}, "one more than the nodes, 5; got 3 pointers"),
        ({"indptr": [0, 2], "indices": [1, 0], "data": [1.0]}, {}, "arrays of one length, got indices 2, data 1"),
    ],
)  # fmt: skip
def test_a_group_that_is_no_graph_is_refused(
    tmp_path: Path, arrays: dict[str, Any], attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        open_graph(put(tmp_path / "w.zarr", attributes=attributes, **arrays))


@pytest.mark.parametrize("indptr", [[0, 3, 1, 4, 4], [0, -1, 5, 4, 4]])
def test_pointers_that_do_not_ascend_are_refused(tmp_path: Path, indptr: list[int]) -> None:
    source = open_graph(put(tmp_path / "w.zarr", indptr=indptr, indices=[1, 2, 3, 0]))
    with pytest.raises(InputError, match="does not ascend"):
        source.read(0, source.count)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"i": [0]}, r"wanted the columns i, j and perhaps w, got \['i'\]"),
        ({"i": [0.5], "j": [1]}, "column i: wanted whole numbers of nodes, got double"),
        ({"i": [0], "j": [1], "w": ["a"]}, "column w: wanted numbers, got string"),
    ],
)  # fmt: skip
def test_parquet_that_is_no_graph_is_refused(tmp_path: Path, columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        open_graph(table(tmp_path / "w.parquet", **columns))


@pytest.mark.parametrize("name", ["w.npz", "w.csv", "w"])
def test_a_file_that_is_no_graph_is_refused(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        sp.save_npz(file, matrix()) if name.endswith("z") else file.write(b"i,j\n0,1\n")
    with pytest.raises(InputError, match=r"Parquet with .* or a Zarr group, got .* neither; write one .*write_graph"):
        open_graph(tmp_path / name)
    (tmp_path / name).unlink()
    table(tmp_path / name, i=[0], j=[1])
    assert open_graph(tmp_path / name).count == 1


def test_gaps_in_parquet(tmp_path: Path) -> None:
    """A gap is no node; a weight's is NaN, which whoever checks the weights refuses."""
    source = open_graph(table(tmp_path / "a.parquet", i=[0, None], j=[1, 2]))
    with pytest.raises(InputError, match="column i has 1 gaps"):
        source.read(0, 2)
    w = open_graph(table(tmp_path / "b.parquet", i=[0, 1], j=[1, 2], w=[1.0, None])).read(0, 2)[2]
    assert np.isnan(w).tolist() == [False, True]


def test_nothing_there(tmp_path: Path) -> None:
    for name in ("text", "text.parquet"):
        (tmp_path / name).write_text("1 2")
    (tmp_path / "empty").mkdir()
    for name, sentence in (
        ("no", "wanted a graph"),
        ("empty", "wanted a graph"),
        ("text", "got a file that is neither"),
        ("text.parquet", "cannot be read as Parquet"),
    ):
        with pytest.raises(InputError, match=sentence):
            open_graph(tmp_path / name)


def test_a_flipped_byte_of_what_is_stored_is_noticed(tmp_path: Path) -> None:
    W = sp.coo_array(matrix())
    columns = {"i": W.row.astype(np.int64), "j": W.col.astype(np.int64), "w": W.data}
    write_graph(tmp_path / "w.zarr", W)
    pq.write_table(
        pa.table(columns), tmp_path / "w.parquet", compression="none", use_dictionary=False, write_page_checksum=True
    )
    stored = W.data[5].tobytes()
    for path in (tmp_path / "w.zarr" / "w" / "c" / "0" / "0", tmp_path / "w.parquet"):
        content = path.read_bytes()
        path.write_bytes(content.replace(stored, bytes([stored[0] ^ 1]) + stored[1:], 1))
        assert path.read_bytes() != content
    for name, sentence in (
        ("w.zarr", "array w, chunk c/0/0.* is damaged"),
        ("w.parquet", "cannot be read as Parquet"),
    ):
        source = open_graph(tmp_path / name)
        with pytest.raises(InputError, match=sentence):
            source.read(0, source.count)


def test_missing_chunks_are_no_zeros(tmp_path: Path) -> None:
    W = matrix()
    write_graph(tmp_path / "ours.zarr", W)
    put(tmp_path / "csr.zarr", **csr(W))
    for name, array, chunk in (("ours.zarr", "i", "c/0/0"), ("csr.zarr", "indices", "c/1")):
        source = open_graph(tmp_path / name)
        (tmp_path / name / array / chunk).unlink()
        with pytest.raises(InputError, match=f"array {array}, chunk {chunk} is missing"):
            source.read(0, source.count)


def test_a_group_that_lost_its_weights_is_not_one_without(tmp_path: Path) -> None:
    write_graph(tmp_path / "w.zarr", matrix())
    shutil.rmtree(tmp_path / "w.zarr" / "w")
    with pytest.raises(InputError, match="has no array 'w'"):
        open_graph(tmp_path / "w.zarr")


def test_entries_that_are_not_there_are_refused(tmp_path: Path) -> None:
    write_graph(tmp_path / "w.zarr", matrix())
    source = open_graph(tmp_path / "w.zarr")
    with pytest.raises(InputError, match=f"wanted entries between 0 and {source.count}"):
        source.read(0, source.count + 1)


@pytest.mark.parametrize("name", ["w.zarr", "w.parquet"])
def test_only_a_symmetric_matrix_is_written(tmp_path: Path, name: str) -> None:
    """As edges, one direction would do."""
    W = sp.lil_array((4, 4))
    W[0, 1] = W[1, 0] = W[3, 2] = 1.0
    with pytest.raises(InputError, match=r"wanted symmetric weights, got 0\.0 from 2 to 3 and 1\.0 from 3 to 2"):
        write_graph(tmp_path / name, W)
    assert not any(tmp_path.iterdir())
    W[2, 3] = 1.0 + 1e-13
    write_graph(tmp_path / name, -W)  # what is wrong with it is said where it is used


@pytest.mark.parametrize("W", [np.eye(3), sp.csr_array((2, 3)), sp.csr_array(np.eye(2) * 1j)])
def test_only_a_square_sparse_matrix_is_written(tmp_path: Path, W: Any) -> None:
    with pytest.raises(InputError, match="wanted a square scipy sparse matrix"):
        write_graph(tmp_path / "w.zarr", W)


def test_weights_of_another_name_are_not_passed_over(tmp_path: Path) -> None:
    columns = {"i": [0, 1], "j": [1, 2], "__index_level_0__": [0, 1]}
    assert open_graph(table(tmp_path / "a.parquet", **columns)).count == 2
    with pytest.raises(InputError, match=r"got \['i', 'j', '__index_level_0__', 'weight'\]; name the weights w"):
        open_graph(table(tmp_path / "b.parquet", **columns, weight=[2.0, 3.0]))
    assert open_graph(table(tmp_path / "c.parquet", **columns, w=[2.0, 3.0], distance=[1.0, 2.0])).count == 2
